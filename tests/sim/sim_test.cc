// The simulator's promises: many seeds without a violation, and every deliberate defect found.
//   ZHT_LONG=1 runs 20,000 seeds. One seed again: zht_sim --seeds 1 --from SEED --verbose
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "tests/sim/cluster.h"
#include "tests/sim/defects.h"

namespace zht::sim {

void PrintTo(const KnownDefect& one, std::ostream* out) { *out << one.name; }

namespace {

#ifdef __SANITIZE_ADDRESS__
constexpr bool kSanitized = true;  // ten times slower: fewer seeds, and no defects, whose runs are to go wrong
#else
constexpr bool kSanitized = false;
#endif

bool is_long() {
  const char* const set = std::getenv("ZHT_LONG");
  return set != nullptr && std::string(set) == "1";
}

std::string replay(std::uint64_t seed, const std::string& more = "") {
  return "build/release/tests/zht_sim --seeds 1 --from " + std::to_string(seed) + " --verbose" + more;
}

// In slices, so that ctest runs them side by side.
constexpr std::uint64_t kSlices = 8;

class Seeds : public testing::TestWithParam<std::uint64_t> {};

TEST_P(Seeds, HoldEveryInvariant) {
  const std::uint64_t each = (is_long() ? 20'000 : kSanitized ? 80 : 1'000) / kSlices;
  const std::uint64_t first = 1 + GetParam() * each;
  RunResult sum;
  for (std::uint64_t seed = first; seed < first + each; seed++) {
    const RunResult result = run_cluster(seed, {});
    for (const Violation& one : result.violations) ADD_FAILURE() << one.kind << ": " << one.text << "\n  " << replay(seed);
    if (HasFailure()) return;
    sum.answered += result.answered;
    sum.views += result.views;
    sum.snapshots += result.snapshots;
    sum.rewinds += result.rewinds;
    sum.unsure += result.unsure;
    sum.last_second_lost += result.last_second_lost;
    sum.happened += result.happened;
  }
  // The runs were not idle.
  EXPECT_GT(sum.answered, each * 1000);
  EXPECT_GT(sum.views, each * 10);
  EXPECT_GT(sum.snapshots, each / 2);
  if (is_long() || !kSanitized) {
    EXPECT_GT(sum.rewinds, 0u);
    EXPECT_GT(sum.unsure, 0u);
    // Whatever is said to go wrong did.
    for (std::size_t kind = 0; kind < static_cast<std::size_t>(Happened::count); kind++)
      EXPECT_GT(sum.happened.of(static_cast<Happened>(kind)), 0u) << name_of(static_cast<Happened>(kind)) << " never happened";
    // To lose what was not synced takes the power of all who had it: seldom, so that nearly every answer is judged.
    EXPECT_LT(sum.last_second_lost, each / 10);
  }
}
INSTANTIATE_TEST_SUITE_P(Slices, Seeds, testing::Range<std::uint64_t>(0, kSlices));

// The same world over the bare protocol, whose disk takes its time.
TEST(Protocol, HoldsEveryInvariant) {
  RunOptions options;
  options.instances = false;
  const std::uint64_t seeds = is_long() ? 4'000 : kSanitized ? 20 : 200;
  for (std::uint64_t seed = 1; seed <= seeds; seed++)
    for (const Violation& one : run_cluster(seed, options).violations)
      ADD_FAILURE() << one.kind << ": " << one.text << "\n  " << replay(seed, " --protocol");
}

// Keepers that leave, are lost and replaced, and whose votes are interrupted, all the time.
TEST(Keepers, ChangeAndForgetNothing) {
  RunOptions options;
  options.emphasis = RunOptions::Emphasis::keepers;
  const std::uint64_t seeds = is_long() ? 4'000 : kSanitized ? 10 : 100;
  FaultCounts happened;
  for (std::uint64_t seed = 1; seed <= seeds; seed++) {
    const RunResult result = run_cluster(seed, options);
    for (const Violation& one : result.violations) ADD_FAILURE() << one.kind << ": " << one.text << "\n  " << replay(seed, " --keepers");
    happened += result.happened;
  }
  EXPECT_GT(happened.of(Happened::keepers_changed), seeds);
  EXPECT_GT(happened.of(Happened::keeper_left), seeds / 10);
}

class Defective : public testing::TestWithParam<KnownDefect> {};

TEST_P(Defective, IsFound) {
  if (kSanitized) GTEST_SKIP() << "not in a sanitizer's build";
  RunOptions options;
  options.defects = {GetParam().defect};
  options.instances = GetParam().instances;
  options.emphasis = GetParam().emphasis;
  for (std::uint64_t seed = 1; seed <= GetParam().seeds; seed++)
    if (!run_cluster(seed, options).violations.empty()) return;
  FAIL() << GetParam().name << " was not noticed in " << GetParam().seeds << " seeds";
}
INSTANTIATE_TEST_SUITE_P(Each, Defective, testing::ValuesIn(known_defects().begin(), known_defects().end()),
                         [](const auto& one) { return std::string(one.param.name); });

TEST(Simulation, ASeedRepeatsExactly) {
  for (std::uint64_t seed = 1; seed <= 5; seed++) {
    const RunResult a = run_cluster(seed, {}), b = run_cluster(seed, {});
    EXPECT_EQ(a.events, b.events);
    EXPECT_EQ(a.messages, b.messages);
    EXPECT_EQ(a.answered, b.answered);
    EXPECT_EQ(a.longest_gap, b.longest_gap);
  }
}

// GOALS: writes again within 1 s when a primary's node dies, 0.3 s when its own init has seen the process end.
TEST(Simulation, AfterAPrimaryDiedServiceIsBackWithinASecond) {
  for (std::uint64_t seed = 1; seed <= (kSanitized ? 4 : 40); seed++) {
    RunOptions options;
    options.seconds = 2;
    options.scenario = RunOptions::Scenario::node_dies;
    const RunResult node = run_cluster(seed, options);
    EXPECT_TRUE(node.violations.empty()) << replay(seed, " --node-dies --seconds 2");
    EXPECT_LT(node.longest_gap, 1'000'000) << replay(seed, " --node-dies --seconds 2");
    options.scenario = RunOptions::Scenario::process_dies;
    const RunResult process = run_cluster(seed, options);
    EXPECT_TRUE(process.violations.empty()) << replay(seed, " --process-dies --seconds 2");
    EXPECT_LT(process.longest_gap, 300'000) << replay(seed, " --process-dies --seconds 2");
  }
}

}  // namespace
}  // namespace zht::sim

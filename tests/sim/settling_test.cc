// Views come to rest within seconds after every join, leave, death and return, with all copies where they should be.
#include "tests/sim/settling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

namespace zht::sim {
namespace {

using namespace std::chrono_literals;
using replication::Defect;

double seconds(base::Duration time) { return std::chrono::duration<double>(time).count(); }

struct Case {
  std::size_t copies;
  int instances;
};
void PrintTo(const Case& one, std::ostream* out) { *out << one.copies << " copies, " << one.instances << " instances"; }

class Settles : public testing::TestWithParam<Case> {
 protected:
  // What happened has come to rest within `limit`, and left nothing wrong.
  static void rests(Settling& cluster, const char* what, int nodes, base::Duration limit = 10s) {
    const std::uint64_t before = cluster.views();
    const auto took = cluster.settle(limit);
    ASSERT_TRUE(took) << what << " with " << nodes << " nodes: views go on changing\n" << cluster.words();
    EXPECT_EQ(cluster.wrong(), "") << what << " with " << nodes << " nodes";
    std::printf("%2d nodes, %-18s %5.2f s, %llu views\n", nodes, what, seconds(*took), static_cast<unsigned long long>(cluster.views() - before));
  }
};

TEST_P(Settles, AfterEachJoinDeathReturnAndLeaveOfOneToSixteenNodes) {
  Settling cluster({.instances = GetParam().instances, .partitions = 128, .copies = GetParam().copies});
  cluster.run(1s);
  constexpr int most = 16;
  for (int nodes = 2; nodes <= most; nodes++) {
    const int last = cluster.join();
    rests(cluster, "join", nodes);
    if (HasFatalFailure()) return;
    if (nodes != 3 && nodes != 5 && nodes != most) continue;
    cluster.kill(last);
    rests(cluster, "death", nodes, 15s);
    if (HasFatalFailure()) return;
    cluster.back(last);
    rests(cluster, "return", nodes);
    if (HasFatalFailure()) return;
    cluster.stop(1);
    rests(cluster, "restart, stopped", nodes);
    if (HasFatalFailure()) return;
    cluster.back(1);
    rests(cluster, "restart, started", nodes);
    if (HasFatalFailure()) return;
  }
  for (int nodes = most - 1; nodes >= 1; nodes -= nodes > 5 ? 5 : 1) {
    for (int last = most - 1; last >= nodes; last--)
      if (cluster.runs(last)) cluster.leave(last);
    rests(cluster, "leave", nodes, 20s);
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Copies, Settles, testing::Values(Case{2, 1}, Case{2, 2}, Case{3, 1}, Case{3, 2}), [](const auto& one) {
  return std::to_string(one.param.copies) + "CopiesOn" + std::to_string(one.param.instances) + "Instances";
});

// Nodes that are restarted one after the other: both synchronous copies must not come to lie on one node.
TEST(Settling, RollingRestartsLeaveEveryPartitionOnSeveralNodes) {
  for (std::uint64_t seed = 1; seed <= 6; seed++) {
    Settling cluster({.instances = 2, .partitions = 32, .seed = seed});
    cluster.run(1s);
    cluster.join();
    cluster.join();
    ASSERT_TRUE(cluster.settle(10s));
    for (int round = 0; round < 2; round++)
      for (int node = 0; node < 3; node++) {
        cluster.stop(node);
        while (cluster.runs(node)) cluster.run(10ms);
        cluster.back(node);
        cluster.run(base::Duration(300ms) + static_cast<int>(seed) * 150ms);
      }
    ASSERT_TRUE(cluster.settle(10s)) << "seed " << seed;
    EXPECT_EQ(cluster.wrong(), "") << "seed " << seed;
  }
}

TEST(Settling, CopiesAreOnAllRacksThatCanBe) {
  Settling cluster({.instances = 2, .partitions = 64, .racks = 2});
  cluster.run(1s);
  for (int nodes = 2; nodes <= 6; nodes++) {
    cluster.join();
    ASSERT_TRUE(cluster.settle(10s)) << nodes;
    EXPECT_EQ(cluster.wrong(), "") << nodes;
  }
}

// A thousand partitions, of which each newcomer takes its share.
base::Duration joins(std::size_t copies, replication::Defects defects) {
  Settling cluster({.instances = 1, .partitions = 1024, .copies = copies, .defects = defects});
  cluster.run(1s);
  base::Duration longest{};
  for (int nodes = 2; nodes <= 4; nodes++) {
    cluster.join();
    longest = std::max(longest, cluster.settle(60s).value_or(60s));
  }
  return longest;
}

TEST(Settling, AJoinMovesNothingTwice) {
  EXPECT_LT(joins(2, {}), 8s);
  EXPECT_LT(joins(3, {}), 8s);
}

// A plan that counts what is half moved as it stands moves too much, and some of it back.
TEST(Settling, ABalanceThatSwingsIsNoticed) { EXPECT_GT(joins(2, {Defect::forget_intents}), 12s); }

bool leaves_after_a_migration(replication::Defects defects) {
  Settling cluster({.instances = 2, .partitions = 64, .copies = 2, .defects = defects});
  cluster.run(1s);
  for (int nodes = 2; nodes <= 4; nodes++) {
    cluster.join();
    EXPECT_TRUE(cluster.settle(30s));
  }
  cluster.migrate(cluster.instance(2, 0), cluster.instance(2, 1));
  cluster.run(150ms);
  cluster.leave(2);
  return cluster.settle(30s) && cluster.wrong().empty();
}

TEST(Settling, ANodeLeavesInTheMiddleOfAMigrationWithinIt) { EXPECT_TRUE(leaves_after_a_migration({})); }

TEST(Settling, ALeaveThatNeverEndsIsNoticed) {
  EXPECT_FALSE(leaves_after_a_migration({Defect::hold_surplus, Defect::copies_by_instance, Defect::forget_intents}));
}

}  // namespace
}  // namespace zht::sim

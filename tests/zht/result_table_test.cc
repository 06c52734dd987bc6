// What is remembered of requests: by client and sequence, over all partitions; what travels with one partition.
#include "zht/core/result_table.h"

#include <gtest/gtest.h>

namespace zht::core {
namespace {

constexpr PartitionId kHere{3}, kThere{700};
constexpr std::uint64_t kNow = 1'700'000'000'000, kClient = (kNow / 4000) << 34 | 7;
using Verdict = ResultTable::Verdict;
using namespace std::chrono_literals;

Note note(std::uint64_t sequence, std::uint64_t floor = 0, Version version = 1, std::uint64_t client = kClient) {
  Note made{client, sequence, floor, kNow, {}};
  made.recorded.version = version;
  return made;
}

Verdict verdict(const ResultTable& table, PartitionId partition, std::uint64_t sequence, bool retry = false,
                std::uint64_t client = kClient) {
  return table.find(partition, client, sequence, retry).verdict;
}

TEST(ResultTableTest, WhatWasRecordedIsAnsweredWhateverTheOrder) {
  ResultTable table;
  for (const std::uint64_t sequence : {5, 2, 9, 3}) table.record(kHere, note(sequence, 0, 100 + sequence));
  for (const std::uint64_t sequence : {2, 3, 5, 9}) {
    const auto answer = table.find(kHere, kClient, sequence, true);
    ASSERT_EQ(answer.verdict, Verdict::answered) << sequence;
    EXPECT_EQ(answer.recorded->version, 100 + sequence);
  }
  for (const std::uint64_t sequence : {1, 4, 6, 10}) EXPECT_EQ(verdict(table, kHere, sequence), Verdict::fresh) << sequence;
}

TEST(ResultTableTest, TheFloorCountsInEveryPartition) {
  ResultTable table;
  table.record(kHere, note(1));
  table.record(kThere, note(3, 2));
  EXPECT_EQ(verdict(table, kHere, 1), Verdict::expired);
  EXPECT_EQ(verdict(table, kHere, 2), Verdict::expired);
  EXPECT_EQ(verdict(table, kThere, 3), Verdict::answered);
  EXPECT_EQ(verdict(table, kHere, 3), Verdict::expired) << "one number, two partitions: nobody knows";
  EXPECT_EQ(verdict(table, kHere, 4), Verdict::fresh);
}

TEST(ResultTableTest, APartitionTravelsAlone) {
  ResultTable table;
  for (std::uint64_t sequence = 1; sequence <= 200; sequence++)
    table.record(sequence % 2 == 0 ? kHere : kThere, note(sequence, sequence > 150 ? 100 : 0, sequence));
  Note refused = note(201, 100);
  refused.recorded.refused = true;
  refused.recorded.outcome = std::make_unique<std::string>("no");
  table.record(kHere, std::move(refused));
  std::string bytes;
  table.encode(kHere, bytes);

  ResultTable other;
  other.record(kThere, note(121, 0, 77));
  ASSERT_TRUE(other.decode(kHere, bytes));
  EXPECT_EQ(verdict(other, kHere, 100), Verdict::expired);
  EXPECT_EQ(verdict(other, kHere, 102), Verdict::answered);
  EXPECT_EQ(verdict(other, kHere, 200), Verdict::answered);
  EXPECT_EQ(verdict(other, kHere, 101), Verdict::fresh) << "an answer of another partition";
  EXPECT_EQ(verdict(other, kHere, 201), Verdict::fresh) << "a refusal does not travel";
  EXPECT_EQ(other.find(kThere, kClient, 121, true).recorded->version, 77u);
  other.drop(kHere);
  EXPECT_EQ(verdict(other, kHere, 200), Verdict::fresh);
  EXPECT_EQ(verdict(other, kThere, 121), Verdict::answered);
  other.drop(kThere);
  EXPECT_EQ(other.session_count(), 0u);
}

TEST(ResultTableTest, DamagedBytesAreRefused) {
  ResultTable table;
  table.record(kHere, note(1));
  table.record(kHere, note(2));
  std::string bytes;
  table.encode(kHere, bytes);
  for (std::size_t cut = 1; cut < bytes.size(); cut++) EXPECT_FALSE(ResultTable().decode(kHere, bytes.substr(0, cut))) << cut;
  EXPECT_FALSE(ResultTable().decode(kHere, bytes + "x"));
}

// A table whose clock the test moves.
struct Clocked : ResultTable {
  base::Time now{std::chrono::hours(5)};
  Clocked() { set_now(now); }
  void pass(base::Duration time) {
    set_now(now += time);
    forget_silent(kNow);
  }
};

TEST(ResultTableTest, AfterGoodbyeLateCopiesAreRefusedForAWhile) {
  Clocked table;
  table.record(kHere, note(1));
  table.forget(kClient);
  EXPECT_EQ(verdict(table, kHere, 2), Verdict::expired);
  table.pass(kGoodbye);
  EXPECT_EQ(table.session_count(), 1u);
  table.pass(1ms);
  EXPECT_EQ(table.session_count(), 0u);
  EXPECT_EQ(verdict(table, kHere, 2, true), Verdict::fresh) << "nothing is lost of who wants no answer any more";
}

TEST(ResultTableTest, ARetryOfASessionThatMayBeForgottenIsRefused) {
  Clocked table;
  table.record(kHere, note(1));
  table.pass(kSessionLife);
  EXPECT_EQ(verdict(table, kHere, 1, true), Verdict::answered);
  table.pass(1ms);
  EXPECT_EQ(table.session_count(), 0u);
  const std::uint64_t later = kClient + (std::uint64_t{1} << 34);
  EXPECT_EQ(verdict(table, kHere, 1, true), Verdict::expired) << "it may have been executed";
  EXPECT_EQ(verdict(table, kHere, 1, false), Verdict::fresh);
  EXPECT_EQ(verdict(table, kHere, 1, true, later), Verdict::fresh) << "began after whoever was forgotten";
  EXPECT_EQ(verdict(table, kThere, 1, true), Verdict::fresh) << "nothing was ever executed there";
  std::string bytes;
  table.encode(kHere, bytes);
  Clocked other;
  ASSERT_TRUE(other.decode(kHere, bytes));
  EXPECT_EQ(verdict(other, kHere, 1, true), Verdict::expired);
  EXPECT_EQ(verdict(other, kHere, 1, true, later), Verdict::fresh);
  EXPECT_EQ(other.session_count(), 0u);
  for (std::size_t cut = 1; cut < bytes.size(); cut++) EXPECT_FALSE(ResultTable().decode(kHere, bytes.substr(0, cut))) << cut;
  other.drop(kHere);
  EXPECT_EQ(verdict(other, kHere, 1, true), Verdict::fresh);
}

// Found by the simulator: the client was forgotten, and known again by another partition's results.
TEST(ResultTableTest, WhatWasForgottenStaysSoWhenAnotherPartitionBringsTheClientBack) {
  ResultTable elsewhere;
  elsewhere.record(kThere, note(11, 10));
  std::string bytes;
  elsewhere.encode(kThere, bytes);
  Clocked table;
  table.record(kHere, note(12, 11));
  table.pass(kSessionLife + 1ms);
  ASSERT_TRUE(table.decode(kThere, bytes));
  EXPECT_EQ(verdict(table, kThere, 11, true), Verdict::answered);
  EXPECT_EQ(verdict(table, kHere, 12, true), Verdict::expired);
  EXPECT_EQ(verdict(table, kThere, 12, true), Verdict::fresh);
}

TEST(ResultTableTest, WhatWasForgottenStaysSoWhenTheClientChangesSomethingElse) {
  Clocked table;
  table.record(kHere, note(12, 10));
  table.pass(kSessionLife + 1ms);
  table.record(kHere, note(14, 10));
  const auto check = [](const ResultTable& one) {
    EXPECT_EQ(verdict(one, kHere, 12, true), Verdict::expired);
    EXPECT_EQ(verdict(one, kHere, 14, true), Verdict::answered);
    EXPECT_EQ(verdict(one, kHere, 15, true), Verdict::fresh);
    EXPECT_EQ(verdict(one, kHere, 13, false), Verdict::fresh);
  };
  check(table);
  std::string bytes;
  table.encode(kHere, bytes);
  Clocked other;
  ASSERT_TRUE(other.decode(kHere, bytes));
  check(other);
  for (std::size_t cut = 1; cut < bytes.size(); cut++) EXPECT_FALSE(ResultTable().decode(kHere, bytes.substr(0, cut))) << cut;
  table.record(kHere, note(15, 13));
  EXPECT_EQ(verdict(table, kHere, 13, true), Verdict::expired) << "by the floor";
}

TEST(ResultTableTest, WhoHasAllItsAnswersLosesNothingByASilence) {
  Clocked table;
  table.record(kHere, note(1));
  table.pass(kSessionLife + 1ms);
  table.record(kHere, note(2, 1));
  EXPECT_EQ(verdict(table, kHere, 3, true), Verdict::fresh);
}

TEST(ResultTableTest, TheTimeOfDayForgetsNobody) {
  Clocked table;
  Note ahead = note(1);
  ahead.time_ms += std::uint64_t{48} * 3'600'000;
  table.record(kHere, std::move(ahead));
  table.record(kHere, note(2));
  table.forget_silent(kNow + std::uint64_t{240} * 3'600'000);
  EXPECT_EQ(verdict(table, kHere, 1, true), Verdict::answered);
  EXPECT_EQ(verdict(table, kHere, 2, true), Verdict::answered);
}

TEST(ResultTableTest, AClientFromTheFutureHasNobodyElseTakenForForgotten) {
  Clocked table;
  table.record(kHere, note(1, 0, 1, ~std::uint64_t{0}));
  table.pass(kSessionLife + 1ms);
  EXPECT_EQ(verdict(table, kHere, 1, true, ((kNow + 7'200'000) / 4000) << 34), Verdict::fresh);
}

TEST(ResultTableTest, ASilenceGoesOnWhereTheResultsGo) {
  Clocked table;
  table.record(kHere, note(1));
  table.pass(kSessionLife - 1s);
  std::string bytes;
  table.encode(kHere, bytes);
  Clocked other;
  ASSERT_TRUE(other.decode(kHere, bytes));
  other.pass(1s);
  EXPECT_EQ(other.session_count(), 1u);
  other.pass(1ms);
  EXPECT_EQ(other.session_count(), 0u);
}

TEST(ResultTableTest, AClientThatNeverRaisesItsFloorIsStoppedNotRemembered) {
  ResultTable table;
  for (std::uint64_t sequence = 1; sequence <= ResultTable::kMaxResults; sequence++) table.record(kHere, note(sequence));
  EXPECT_EQ(verdict(table, kHere, ResultTable::kMaxResults + 1), Verdict::full);
  EXPECT_EQ(verdict(table, kHere, 17), Verdict::answered);
  EXPECT_EQ(verdict(table, kHere, 1, false, kClient + 1), Verdict::fresh) << "others are served";
  table.record(kHere, note(ResultTable::kMaxResults, ResultTable::kMaxResults - 10));
  EXPECT_EQ(verdict(table, kHere, ResultTable::kMaxResults + 1), Verdict::fresh);
}

}  // namespace
}  // namespace zht::core

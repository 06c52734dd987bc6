// What is remembered of requests: by client and sequence, over all partitions; what travels with one partition.
#include "zht/core/result_table.h"

#include <gtest/gtest.h>

namespace zht::core {
namespace {

constexpr PartitionId kHere{3}, kThere{700};
constexpr std::uint64_t kNow = 1'700'000'000'000, kClient = (kNow / 4000) << 34 | 7;
using Verdict = ResultTable::Verdict;

Note note(std::uint64_t sequence, std::uint64_t floor = 0, Version version = 1, std::uint64_t client = kClient) {
  Note made{client, sequence, floor, kNow, {}};
  made.recorded.version = version;
  return made;
}

Verdict verdict(const ResultTable& table, PartitionId partition, std::uint64_t sequence, bool retry = false,
                std::uint64_t client = kClient) {
  return table.find(partition, client, sequence, retry, kNow).verdict;
}

TEST(ResultTableTest, WhatWasRecordedIsAnsweredWhateverTheOrder) {
  ResultTable table;
  for (const std::uint64_t sequence : {5, 2, 9, 3}) table.record(kHere, note(sequence, 0, 100 + sequence));
  for (const std::uint64_t sequence : {2, 3, 5, 9}) {
    const auto answer = table.find(kHere, kClient, sequence, true, kNow);
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
  EXPECT_EQ(other.find(kThere, kClient, 121, true, kNow).recorded->version, 77u);
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

TEST(ResultTableTest, AfterGoodbyeLateCopiesAreRefusedForAWhile) {
  ResultTable table;
  table.record(kHere, note(1));
  table.forget(kClient, kNow);
  EXPECT_EQ(verdict(table, kHere, 2), Verdict::expired);
  table.forget_silent(kNow + kGoodbyeMs);
  EXPECT_EQ(table.session_count(), 1u);
  table.forget_silent(kNow + kGoodbyeMs + 1);
  EXPECT_EQ(table.session_count(), 0u);
}

TEST(ResultTableTest, ARetryOfASessionThatMayBeForgottenIsRefused) {
  const ResultTable table;
  const std::uint64_t old_client = (kNow - kSessionLifeMs - 8000) / 4000 << 34;
  EXPECT_EQ(verdict(table, kHere, 1, true, old_client), Verdict::expired);
  EXPECT_EQ(verdict(table, kHere, 1, false, old_client), Verdict::fresh);
  EXPECT_EQ(verdict(table, kHere, 1, true), Verdict::fresh);
}

TEST(ResultTableTest, WhatWasForgottenStaysRefusedWhenTheClockIsSetBack) {
  ResultTable table;
  table.record(kHere, note(1));
  table.forget_silent(kNow + 24 * kSessionLifeMs);  // the time of day jumped, and nobody had said goodbye
  EXPECT_EQ(table.session_count(), 0u);
  EXPECT_EQ(verdict(table, kHere, 1, true), Verdict::expired) << "it may have been executed";
  EXPECT_EQ(verdict(table, kHere, 2, false), Verdict::fresh);
  // Found by the simulator: a snapshot went from a node whose clock was ahead to one whose clock was behind.
  std::string bytes;
  table.encode(kHere, bytes);
  ResultTable other;
  ASSERT_TRUE(other.decode(kHere, bytes));
  EXPECT_EQ(verdict(other, kHere, 1, true), Verdict::expired);
  EXPECT_EQ(other.session_count(), 0u);
  for (std::size_t cut = 1; cut < bytes.size(); cut++) EXPECT_FALSE(ResultTable().decode(kHere, bytes.substr(0, cut))) << cut;
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

// The bytes of frames: golden ones, whole circles, and refusals of what is not a frame.
#include <gtest/gtest.h>

#include "novoht/base/random.h"
#include "zht/wire/frame.h"

namespace zht::wire {
namespace {

// PROTOCOL.md's table, byte by byte. A change here is a change of the protocol.
TEST(WireTest, GoldenInsert) {
  std::string out;
  encode_request(out, Operation::insert("k", "vw"), {.request = 1, .client = 2, .sequence = 3, .floor = 4, .epoch = 5, .partition = PartitionId{6}});
  EXPECT_EQ(base::to_hex(out),
            "5a485431" "01" "01" "01" "00" "00000000" "03000000"
            "0100000000000000" "0200000000000000" "0300000000000000" "0400000000000000" "0500000000000000"
            "06000000" "01000000" "02000000" "00000000" "6b" "7677");
}

TEST(WireTest, GoldenSwapWithItsExtraFields) {
  std::string out;
  encode_request(out, Operation::cswap("k", Condition::equals("a"), "b", std::chrono::milliseconds(9)), {});
  EXPECT_EQ(base::to_hex(out).substr(144),
            "6b" "62" "0180" "0a000000" "03" "0000000000000000" "61" "0280" "08000000" "0900000000000000");
}

TEST(WireTest, OperationsComeBackWhole) {
  const Operation batch = Operation::batch({Operation::insert_new("{t}a", "1"), Operation::remove("{t}b", true),
                                            Operation::cswap_remove("{t}c", Condition::at_version(7)),
                                            Operation::lookup("{t}d", Range::tail(3)), Operation::update("{t}e", "p", "args")});
  std::string out;
  encode_request(out, batch, {.sequence = 9, .retry = true});
  const auto frame = next_frame(out, kMaxFrameSize);
  ASSERT_TRUE(frame && *frame);
  EXPECT_EQ((*frame)->size, out.size());
  EXPECT_TRUE((*frame)->flags & kRetry);
  const auto operation = decode_operation(**frame);
  ASSERT_TRUE(operation);
  ASSERT_EQ(operation->operation_count, 5u);
  Bytes rest = operation->operations;
  const auto insert = next_operation(rest), remove = next_operation(rest), swap = next_operation(rest),
             lookup = next_operation(rest), update = next_operation(rest);
  EXPECT_EQ(insert->key, "{t}a");
  EXPECT_EQ(insert->condition, Condition::Kind::absent);
  EXPECT_TRUE(remove->missing_ok);
  EXPECT_EQ(swap->condition_version, 7u);
  EXPECT_EQ(swap->desired, Desired::remove);
  EXPECT_EQ(lookup->range.kind, Range::Kind::tail);
  EXPECT_EQ(lookup->range.size, 3u);
  EXPECT_EQ(update->procedure, "p");
  EXPECT_EQ(update->value, "args");
  EXPECT_TRUE(rest.empty());
}

TEST(WireTest, AnEventualLookupSaysSo) {
  std::string out;
  encode_request(out, Operation::lookup_eventual("k", 7), {});
  EXPECT_EQ(base::to_hex(out).substr(16, 8), "04000000");
  EXPECT_EQ(base::to_hex(out).substr(144), "6b" "0180" "09000000" "05" "0700000000000000");
  const auto operation = decode_operation(**next_frame(out, kMaxFrameSize));
  ASSERT_TRUE(operation);
  EXPECT_TRUE(operation->eventual);
  EXPECT_EQ(operation->condition_version, 7u);
  out.clear();
  encode_request(out, Operation::lookup("k"), {});
  EXPECT_FALSE(decode_operation(**next_frame(out, kMaxFrameSize))->eventual);
}

TEST(WireTest, OutcomesComeBackWhole) {
  Outcome outcome;
  outcome.present = true;
  outcome.value = "abc";
  outcome.version = 5;
  outcome.size = 10;
  outcome.offset = 7;
  outcome.fragments = {1, 2};
  outcome.fragment_count = 4;
  Outcome inner;
  inner.code = Code::conflict;
  inner.message = "no";
  outcome.outcomes = {inner, inner};
  outcome.entries = {{"key", 3, 4}};
  outcome.cursor = 77;
  std::string out;
  encode_reply(out, OpKind::batch, outcome, 8, 9, 10);
  const auto frame = next_frame(out, kMaxFrameSize);
  ASSERT_TRUE(frame && *frame);
  EXPECT_EQ((*frame)->request, 8u);
  EXPECT_EQ((*frame)->epoch, 9u);
  const auto back = decode_outcome(**frame);
  ASSERT_TRUE(back);
  EXPECT_EQ(back->value, "abc");
  EXPECT_EQ(back->offset, 7u);
  EXPECT_EQ(back->fragments, outcome.fragments);
  EXPECT_EQ(back->fragment_count, 4u);
  ASSERT_EQ(back->outcomes.size(), 2u);
  EXPECT_EQ(back->outcomes[1].message, "no");
  ASSERT_EQ(back->entries.size(), 1u);
  EXPECT_EQ(back->entries[0].key, "key");
  EXPECT_EQ(back->cursor, 77u);
}

TEST(WireTest, WhatIsNotAFrameIsRefusedByName) {
  EXPECT_EQ(next_frame("GET / HTTP/1.1\r\n", kMaxFrameSize).code(), Code::invalid);
  std::string out;
  encode_request(out, Operation::lookup("key"), {});
  EXPECT_FALSE(next_frame(std::string_view(out).substr(0, 71), kMaxFrameSize)->has_value());  // not all of it yet
  std::string newer = out;
  newer[4] = 2;
  EXPECT_EQ(next_frame(newer, kMaxFrameSize).code(), Code::unsupported);
  EXPECT_EQ(next_frame(out, 74).code(), Code::invalid) << "over the size limit";
  std::string lying = out;
  lying[60] = 9;  // key size beyond the body
  EXPECT_EQ(next_frame(lying, kMaxFrameSize).code(), Code::invalid);
}

TEST(WireTest, AnUnknownFieldIsRefusedOnlyWhenItMustBeUnderstood) {
  for (const std::uint16_t tag : {std::uint16_t{0x0070}, std::uint16_t{0x8070}}) {
    std::string out;
    const std::size_t start = begin_reply(out, {});
    std::string extra;
    base::Writer writer(extra);
    writer.u16(tag);
    writer.str("future");
    end_reply(out, start, extra);
    EXPECT_EQ(decode_outcome(**next_frame(out, kMaxFrameSize)).has_value(), tag == 0x0070);
  }
}

std::string nested_outcomes(int depth) {
  Outcome outcome;
  for (int i = 0; i < depth; i++) {
    Outcome outer;
    outer.outcomes.push_back(std::move(outcome));
    outcome = std::move(outer);
  }
  std::string out;
  encode_reply(out, OpKind::batch, outcome, 1, 1, 0);
  return out;
}

TEST(WireTest, OutcomesWithinOutcomesHaveABottom) {
  EXPECT_TRUE(decode_outcome(**next_frame(nested_outcomes(2), kMaxFrameSize)));
  EXPECT_EQ(decode_outcome(**next_frame(nested_outcomes(500), kMaxFrameSize)).code(), Code::corrupt);
  std::string out;
  const std::size_t start = begin_reply(out, {});
  end_reply(out, start, std::string("\x22\x80\x01\0\0\0\x07", 7));  // outcomes: one byte where four belong
  EXPECT_EQ(decode_outcome(**next_frame(out, kMaxFrameSize)).code(), Code::corrupt);
}

// Bytes changed at random decode to something or to an error, never to a read past the end (run it under ASan too).
TEST(WireTest, GarbledFramesAreDecodedOrRefused) {
  Outcome batch;
  batch.outcomes.resize(2);
  batch.fragments = {1, 2, 3};
  batch.value = "abcdef";
  batch.entries = {{"key", 1, 2}};
  std::vector<std::string> frames(2);
  encode_reply(frames[0], OpKind::batch, batch, 1, 2, 3);
  encode_request(
      frames[1],
      Operation::batch({Operation::cswap("{t}a", Condition::equals("x"), "y"), Operation::update("{t}b", "add", "1")}),
      {.request = 1});
  base::Random random(7);
  for (int round = 0; round < 200'000; round++) {
    std::string frame = frames[random.below(2)];
    // The lengths in the header stay true, so that what lies behind them is reached.
    for (std::uint64_t i = 0; i <= random.below(4); i++)
      frame[kHeaderSize + random.below(frame.size() - kHeaderSize)] = static_cast<char>(random.next());
    const auto read = next_frame(frame, kMaxFrameSize);
    if (!read || !*read) continue;
    (void)decode_outcome(**read);
    const auto operation = decode_operation(**read);
    if (!operation) continue;
    Bytes rest = operation->operations;
    for (std::uint32_t i = 0; i < operation->operation_count && !rest.empty(); i++)
      if (!next_operation(rest)) break;
  }
}

}  // namespace
}  // namespace zht::wire

// What nodes say to each other, as bytes: golden ones, whole circles, and refusals.
#include <gtest/gtest.h>

#include "zht/core/replication/peer_frame.h"
#include "zht/server/manager_codec.h"

namespace zht::replication {
namespace {

Member member(std::uint32_t instance, std::uint64_t incarnation) { return {InstanceId{instance}, incarnation}; }
base::Time at(std::int64_t nanos) { return base::Time(base::Duration(nanos)); }
EntryPtr entry(std::uint64_t epoch, Version sequence, std::string payload) {
  return std::make_shared<Entry>(Entry{{Epoch{epoch}, sequence}, std::move(payload)});
}

PeerMessage everything() {
  PeerMessage message;
  message.from = member(1, 2);
  message.to = InstanceId{3};
  message.beacon = at(4);
  message.seen = 5;
  message.answered = at(6);
  message.answering = member(7, 8);
  message.generation = 9;
  message.departures = {{10, PartitionId{11}, Epoch{12}}};
  message.appends.push_back({PartitionId{1}, Epoch{2}, {Epoch{1}, 3}, 5, {Epoch{2}, 4}, 3, base::from_millis(7),
                             {entry(2, 4, "abc"), entry(2, 5, "")}});
  message.acks.push_back({PartitionId{1}, Epoch{2}, Ack::Verdict::elsewhere, 3, 4, 5, {Epoch{6}, 7}, 8});
  message.pieces.push_back({PartitionId{1}, Epoch{2}, 3, 4, true, {Epoch{5}, 6}, "piece"});
  message.piece_acks.push_back({PartitionId{1}, Epoch{2}, 3, 4});
  message.standings.push_back({PartitionId{1}, 2, {Epoch{3}, 4}});
  message.views.push_back({PartitionId{1}, {Epoch{2}, member(3, 4), {member(3, 4), member(5, 6)}, {member(7, 8)}, 2}});
  return message;
}

std::string encoded(const PeerMessage& message) {
  wire::Gathered out;
  encode_peer(out, message, 0x1122);
  return out.whole();
}

// The first frame's message, again as bytes: equal bytes are equal messages.
std::string again(const std::string& bytes) {
  const auto frame = wire::next_frame(bytes, wire::kMaxFrameSize);
  EXPECT_TRUE(frame && *frame);
  const auto message = decode_peer(**frame);
  EXPECT_TRUE(message) << message.error().message;
  return encoded(*message);
}

// PROTOCOL.md, "Between nodes", byte by byte. A change here is a change of the protocol.
TEST(PeerFrame, GoldenBeaconAndAppend) {
  PeerMessage message;
  message.from = member(1, 2);
  message.to = InstanceId{3};
  message.beacon = at(4);
  message.seen = 5;
  message.appends.push_back({PartitionId{6}, Epoch{7}, {Epoch{8}, 9}, 10, {Epoch{11}, 12}, 13, base::from_millis(16), {entry(14, 15, "hi")}});
  EXPECT_EQ(base::to_hex(encoded(message)),
            "5a485431" "01" "06" "00" "00" "00000000" "80000000" "0000000000000000"
            "2211000000000000" "0000000000000000" "0000000000000000" "0000000000000000" "00000000" "00000000" "80000000" "00000000"
            "01000000" "0200000000000000" "03000000" "01" "0400000000000000" "0500000000000000"
            "01" "06000000" "0700000000000000" "0800000000000000" "0900000000000000" "0a00000000000000"
            "0b00000000000000" "0c00000000000000" "0d00000000000000" "1000000000000000" "01000000"
            "0e00000000000000" "0f00000000000000" "02000000" "6869");
}

TEST(PeerFrame, ATimeThatCannotBeCountedOnFromIsNone) {
  PeerMessage message;
  message.from = member(1, 2);
  message.to = InstanceId{3};
  message.appends.push_back({PartitionId{6}, Epoch{7}, {}, 0, {}, 0, base::from_millis(9'000'000'000'000), {}});
  std::string bytes = encoded(message);
  EXPECT_EQ(again(bytes), bytes);  // a clock that is as wrong as that does not cut its node off
  const std::size_t at = bytes.size() - 4 - 8;
  bytes.replace(at, 8, 8, '\x7f');
  EXPECT_EQ(decode_peer(**wire::next_frame(bytes, wire::kMaxFrameSize)).code(), base::Code::invalid);
}

TEST(PeerFrame, EverythingComesBackWhole) {
  const std::string bytes = encoded(everything());
  EXPECT_EQ(again(bytes), bytes);
  const auto frame = wire::next_frame(bytes, wire::kMaxFrameSize);
  EXPECT_EQ(cluster_of(**frame), 0x1122u);
  const auto message = decode_peer(**frame);
  ASSERT_TRUE(message);
  EXPECT_EQ(message->appends.at(0).entries.at(0)->payload, "abc");
  EXPECT_EQ(message->views.at(0).view, everything().views[0].view);
}

TEST(PeerFrame, LongPayloadsAreGatheredAndNotCopied) {
  PeerMessage message;
  message.from = member(1, 2);
  message.to = InstanceId{3};
  const EntryPtr one = entry(1, 1, std::string(100'000, 'x'));
  message.appends.push_back({PartitionId{1}, Epoch{1}, {}, 2, {}, 0, {}, {one, entry(1, 2, "short")}});
  wire::Gathered out;
  encode_peer(out, message, 1);
  EXPECT_LT(out.bytes.size(), 300u);
  ASSERT_EQ(out.pieces.size(), 1u);
  EXPECT_EQ(out.pieces[0].bytes.data(), one->payload.data());
  const std::string bytes = out.whole();
  EXPECT_EQ(out.size(), bytes.size());
  const auto frame = wire::next_frame(bytes, wire::kMaxFrameSize);
  ASSERT_TRUE(frame && *frame);
  EXPECT_EQ((*frame)->size, bytes.size());
  const auto read = decode_peer(**frame);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->appends[0].entries[0]->payload, one->payload);
  EXPECT_EQ(read->appends[0].entries[1]->payload, "short");
}

TEST(PeerFrame, WhatIsMuchTravelsInSeveralFrames) {
  PeerMessage message;
  message.from = member(1, 2);
  message.to = InstanceId{3};
  message.beacon = at(4);
  for (std::uint32_t p = 0; p < 40; p++)
    message.appends.push_back({PartitionId{p}, Epoch{1}, {}, 1, {}, 0, {}, {entry(1, 1, std::string(1 << 20, 'x'))}});
  const std::string bytes = encoded(message);
  std::size_t frames = 0, appends = 0, beacons = 0;
  for (Bytes rest = bytes; !rest.empty();) {
    const auto frame = wire::next_frame(rest, wire::kMaxFrameSize);
    ASSERT_TRUE(frame && *frame);
    EXPECT_LE((*frame)->size, kPeerFrameSize + (2u << 20));
    rest.remove_prefix((*frame)->size);
    const auto part = decode_peer(**frame);
    ASSERT_TRUE(part);
    EXPECT_EQ(part->from, message.from);
    frames++;
    appends += part->appends.size();
    beacons += part->beacon != base::Time{};
  }
  EXPECT_GT(frames, 3u);
  EXPECT_EQ(appends, 40u);
  EXPECT_EQ(beacons, 1u);
}

TEST(PeerFrame, WhatIsCutShortOrUnknownIsRefused) {
  const std::string bytes = encoded(everything());
  wire::Frame frame = **wire::next_frame(bytes, wire::kMaxFrameSize);
  const Bytes whole = frame.value;
  std::size_t refused = 0;
  for (std::size_t size = 0; size < whole.size(); size++) {
    frame.value = whole.substr(0, size);
    refused += !decode_peer(frame).has_value();
  }
  // A message may end after each of its parts.
  EXPECT_EQ(refused, whole.size() - 6);
  std::string strange = std::string(whole) + std::string(13, '\x7f');
  frame.value = strange;
  EXPECT_EQ(decode_peer(frame).code(), Code::unsupported);
}

TEST(ManagerCodec, EverythingComesBackWhole) {
  ManagerMessage message;
  message.from = NodeId{1};
  message.to = NodeId{2};
  message.keeper.resize(2);
  KeeperMessage& change = message.keeper[0];
  change.kind = KeeperMessage::Kind::change;
  change.partition = PartitionId{3};
  change.change = {Change::Kind::recover, Epoch{4}, member(1, 2), member(3, 4), {member(1, 2), member(3, 4)}, 2};
  KeeperMessage& promise = message.keeper[1];
  promise.kind = KeeperMessage::Kind::promise;
  promise.epoch = Epoch{9};
  promise.ballot = {5, NodeId{6}};
  promise.accepted_at = {4, NodeId{7}};
  promise.view = View{Epoch{9}, member(1, 2), {member(1, 2)}, {member(5, 6)}, 1};
  message.views.push_back({PartitionId{8}, *promise.view});
  message.goals.push_back({PartitionId{9}, {InstanceId{1}, {InstanceId{1}, InstanceId{2}}}});
  message.nodes.push_back({NodeId{3}, 4, {member(1024, 2)}, 5, false, true, std::string("\0x", 2)});
  message.digest = 77;
  message.epochs = {Epoch{1}, Epoch{0}, Epoch{3}};
  message.answer_epochs = true;
  std::string bytes, once_more;
  server::encode_manager(bytes, message, 5);
  const auto frame = wire::next_frame(bytes, wire::kMaxFrameSize);
  ASSERT_TRUE(frame && *frame);
  EXPECT_EQ((*frame)->type, wire::FrameType::manager);
  const auto read = server::decode_manager(**frame);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->keeper.at(0).change, change.change);
  EXPECT_EQ(read->keeper.at(1).view, promise.view);
  EXPECT_EQ(read->keeper.at(1).accepted_at, promise.accepted_at);
  EXPECT_EQ(read->goals.at(0).goal, message.goals[0].goal);
  EXPECT_EQ(read->nodes.at(0).about, message.nodes[0].about);
  server::encode_manager(once_more, *read, 5);
  EXPECT_EQ(once_more, bytes);
}

TEST(Enrolment, GivesEachNumberOnce) {
  const View first{Epoch{3}, member(0, 77), {member(0, 77)}, {}, 0};
  Change change{Change::Kind::enrol, Epoch{3}, member(0, 88), {}, {}};
  const auto next = next_enrolment(first, change);
  ASSERT_TRUE(next);
  EXPECT_EQ(next->epoch, Epoch{4});
  EXPECT_EQ(next->primary.incarnation, 88u);
  EXPECT_FALSE(next_enrolment(*next, change)) << "another was given the number meanwhile";
  EXPECT_FALSE(next_view(first, change)) << "and it is nothing for a partition";
}

}  // namespace
}  // namespace zht::replication

// What nodes say to each other, as bytes: golden ones, whole circles, and refusals.
#include <gtest/gtest.h>

#include <functional>

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
  const auto message = decode_peer(**frame, 64);
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
  EXPECT_EQ(decode_peer(**wire::next_frame(bytes, wire::kMaxFrameSize), 64).code(), base::Code::invalid);
}

TEST(PeerFrame, EverythingComesBackWhole) {
  const std::string bytes = encoded(everything());
  EXPECT_EQ(again(bytes), bytes);
  const auto frame = wire::next_frame(bytes, wire::kMaxFrameSize);
  EXPECT_EQ(cluster_of(**frame), 0x1122u);
  const auto message = decode_peer(**frame, 64);
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
  const auto read = decode_peer(**frame, 64);
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
    const auto part = decode_peer(**frame, 64);
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
    refused += !decode_peer(frame, 64).has_value();
  }
  // A message may end after each of its parts.
  EXPECT_EQ(refused, whole.size() - 6);
  std::string strange = std::string(whole) + std::string(13, '\x7f');
  frame.value = strange;
  EXPECT_EQ(decode_peer(frame, 64).code(), Code::unsupported);
}

constexpr std::uint64_t kHuge[] = {kLastNumber + 1, ~std::uint64_t{0} - 1, ~std::uint64_t{0}};

// What a cluster of two partitions says of a message with this in it.
Code said_of(const std::function<void(PeerMessage&)>& change) {
  PeerMessage message = everything();
  message.departures[0].partition = PartitionId{1};
  change(message);
  const std::string bytes = encoded(message);
  const auto read = decode_peer(**wire::next_frame(bytes, wire::kMaxFrameSize), 2);
  EXPECT_TRUE(read || read.error().message.starts_with("a message between instances: ")) << read.error().message;
  return read ? Code::ok : read.code();
}

TEST(PeerFrame, NumbersThatCannotBeAreRefused) {
  EXPECT_EQ(said_of([](PeerMessage&) {}), Code::ok);
  const std::vector<std::function<PartitionId&(PeerMessage&)>> partitions{
      [](PeerMessage& m) -> auto& { return m.departures[0].partition; }, [](PeerMessage& m) -> auto& { return m.appends[0].partition; },
      [](PeerMessage& m) -> auto& { return m.acks[0].partition; },       [](PeerMessage& m) -> auto& { return m.pieces[0].partition; },
      [](PeerMessage& m) -> auto& { return m.piece_acks[0].partition; }, [](PeerMessage& m) -> auto& { return m.standings[0].partition; },
      [](PeerMessage& m) -> auto& { return m.views[0].partition; }};
  for (const auto& partition : partitions)
    for (const std::uint32_t number : {2u, 3u, 1u << 20, ~0u})
      EXPECT_EQ(said_of([&](PeerMessage& m) { partition(m) = PartitionId{number}; }), Code::invalid) << number;
  const std::vector<std::function<void(PeerMessage&, std::uint64_t)>> numbers{
      [](PeerMessage& m, std::uint64_t n) { m.departures[0].epoch = Epoch{n}; },
      [](PeerMessage& m, std::uint64_t n) { m.appends[0].epoch = Epoch{n}; },
      [](PeerMessage& m, std::uint64_t n) { m.appends[0].end = n; },
      [](PeerMessage& m, std::uint64_t n) { m.appends[0].previous.sequence = n; },
      [](PeerMessage& m, std::uint64_t n) { m.appends[0].takeover.sequence = n; },
      [](PeerMessage& m, std::uint64_t n) { m.appends[0].commit = n; },
      [](PeerMessage& m, std::uint64_t n) { m.acks[0].epoch = Epoch{n}; },
      [](PeerMessage& m, std::uint64_t n) { m.acks[0].match = n; },
      [](PeerMessage& m, std::uint64_t n) { m.acks[0].hint.sequence = n; },
      [](PeerMessage& m, std::uint64_t n) { m.pieces[0].index = n; },
      [](PeerMessage& m, std::uint64_t n) { m.pieces[0].at.epoch = Epoch{n}; },
      [](PeerMessage& m, std::uint64_t n) { m.standings[0].end.sequence = n; },
      [](PeerMessage& m, std::uint64_t n) { m.views[0].view.epoch = Epoch{n}; },
      [](PeerMessage& m, std::uint64_t n) { m.seen = n; }};
  for (const auto& set : numbers)
    for (const std::uint64_t number : kHuge) EXPECT_EQ(said_of([&](PeerMessage& m) { set(m, number); }), Code::invalid) << number;
}

TEST(PeerFrame, EntriesThatDoNotFollowEachOtherAreRefused) {
  EXPECT_EQ(said_of([](PeerMessage& m) { m.appends[0].entries[1] = entry(2, 6, ""); }), Code::invalid);
  EXPECT_EQ(said_of([](PeerMessage& m) { m.appends[0].entries[0] = entry(2, 0, ""); }), Code::invalid);
  EXPECT_EQ(said_of([](PeerMessage& m) { m.appends[0].entries[1] = entry(1, 5, ""); }), Code::invalid) << "an older epoch after a newer";
  EXPECT_EQ(said_of([](PeerMessage& m) { m.appends[0].entries[1] = entry(3, 5, ""); }), Code::invalid) << "an epoch that is not yet";
}

TEST(PeerFrame, AViewThatIsNoneIsRefused) {
  const auto with = [](const std::function<void(View&)>& change) { return said_of([&](PeerMessage& m) { change(m.views[0].view); }); };
  EXPECT_EQ(with([](View& view) { view.primary = member(7, 8); }), Code::invalid) << "led by a learner";
  EXPECT_EQ(with([](View& view) { view.sync.clear(); }), Code::invalid);
  EXPECT_EQ(with([](View& view) { view.learners.push_back(member(3, 9)); }), Code::invalid) << "an instance is in it twice";
  EXPECT_EQ(with([](View& view) { view.need = 65; }), Code::invalid);
  EXPECT_EQ(with([](View& view) { for (std::uint32_t i = 100; i < 164; i++) view.learners.push_back(member(i, 1)); }), Code::invalid);
}

TEST(ManagerCodec, NumbersThatCannotBeAreRefused) {
  const auto said = [](const std::function<void(ManagerMessage&)>& change) {
    ManagerMessage message;
    message.from = NodeId{1};
    message.to = NodeId{2};
    message.views.push_back({PartitionId{1}, View{Epoch{9}, member(1, 2), {member(1, 2)}, {}, 1}});
    message.keeper.resize(1);
    message.goals.push_back({PartitionId{1}, {InstanceId{1}, {InstanceId{1}}}});
    message.nodes.push_back({NodeId{3}, 4, {member(1024, 2)}});
    message.install.resize(1);
    change(message);
    std::string bytes;
    server::encode_manager(bytes, message, 5);
    const auto read = server::decode_manager(**wire::next_frame(bytes, wire::kMaxFrameSize), 2);
    return read ? Code::ok : read.code();
  };
  EXPECT_EQ(said([](ManagerMessage&) {}), Code::ok);
  EXPECT_EQ(said([](ManagerMessage& m) { m.views[0].partition = PartitionId{2}; }), Code::ok) << "the register of numbers";
  EXPECT_EQ(said([](ManagerMessage& m) { m.views[0].partition = PartitionId{3}; }), Code::invalid);
  EXPECT_EQ(said([](ManagerMessage& m) { m.goals[0].partition = PartitionId{2}; }), Code::invalid);
  EXPECT_EQ(said([](ManagerMessage& m) { m.goals[0].goal.members.resize(65); }), Code::invalid);
  EXPECT_EQ(said([](ManagerMessage& m) { m.keeper[0].partition = PartitionId{4}; }), Code::invalid);
  EXPECT_EQ(said([](ManagerMessage& m) { m.epochs.resize(4); }), Code::invalid);
  EXPECT_EQ(said([](ManagerMessage& m) { m.keepers.resize(65); }), Code::invalid);
  EXPECT_EQ(said([](ManagerMessage& m) { m.install.resize(6); }), Code::invalid);
  EXPECT_EQ(said([](ManagerMessage& m) { m.nodes[0].about.assign(70'000, 'x'); }), Code::invalid);
  EXPECT_EQ(said([](ManagerMessage& m) { m.nodes[0].instances.resize(1025); }), Code::invalid);
  for (const std::uint64_t number : kHuge) {
    EXPECT_EQ(said([&](ManagerMessage& m) { m.views[0].view.epoch = Epoch{number}; }), Code::invalid);
    EXPECT_EQ(said([&](ManagerMessage& m) { m.keeper[0].epoch = Epoch{number}; }), Code::invalid);
    EXPECT_EQ(said([&](ManagerMessage& m) { m.keeper[0].ballot.round = number; }), Code::invalid);
    EXPECT_EQ(said([&](ManagerMessage& m) { m.epochs = {Epoch{number}}; }), Code::invalid);
    EXPECT_EQ(said([&](ManagerMessage& m) { m.config = number; }), Code::invalid);
    EXPECT_EQ(said([&](ManagerMessage& m) { m.nodes[0].heartbeat = number; }), Code::invalid);
    EXPECT_EQ(said([&](ManagerMessage& m) { m.install[0].promised.round = number; }), Code::invalid);
    EXPECT_EQ(said([&](ManagerMessage& m) { m.life = number; }), Code::invalid);
    EXPECT_EQ(said([&](ManagerMessage& m) { m.checked = number; }), Code::invalid);
    EXPECT_EQ(said([&](ManagerMessage& m) { m.answers = number; }), Code::invalid);
    EXPECT_EQ(said([&](ManagerMessage& m) { m.seen = Sighting{1, number}; }), Code::invalid);
    EXPECT_EQ(said([&](ManagerMessage& m) { m.nodes[0].sighting = {number, 1}; }), Code::invalid);
  }
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
  message.nodes.back().sighting = {7, 8};
  message.life = 9;
  message.seen = Sighting{10, 11};
  message.checked = 12;
  message.answers = 13;
  message.folder = Folder::older;
  message.digest = 77;
  message.epochs = {Epoch{1}, Epoch{0}, Epoch{3}};
  message.answer_epochs = true;
  std::string bytes, once_more;
  server::encode_manager(bytes, message, 5);
  const auto frame = wire::next_frame(bytes, wire::kMaxFrameSize);
  ASSERT_TRUE(frame && *frame);
  EXPECT_EQ((*frame)->type, wire::FrameType::manager);
  const auto read = server::decode_manager(**frame, 64);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->keeper.at(0).change, change.change);
  EXPECT_EQ(read->keeper.at(1).view, promise.view);
  EXPECT_EQ(read->keeper.at(1).accepted_at, promise.accepted_at);
  EXPECT_EQ(read->goals.at(0).goal, message.goals[0].goal);
  EXPECT_EQ(read->nodes.at(0).about, message.nodes[0].about);
  EXPECT_EQ(read->nodes.at(0).sighting, message.nodes[0].sighting);
  EXPECT_EQ(read->seen, message.seen);
  EXPECT_EQ(read->folder, message.folder);
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

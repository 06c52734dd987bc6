// What others send can be anything: numbers that cannot be, and more bytes than there is room for. A running instance refuses it, by
// name where there is somebody to tell, and goes on.
#include "tests/zht/trio.h"

namespace zht::core {
namespace {

replication::PeerMessage said_by(std::uint32_t from, std::uint32_t to) {
  replication::PeerMessage message;
  message.from = {InstanceId{from}, 1};
  message.to = InstanceId{to};
  return message;
}

struct Bounds : testing::Test, Trio {
  // Instance `to` hears it, and goes on.
  void hear(std::size_t to, const replication::PeerMessage& message) {
    round(to, [&](Instance& core, std::string&) { core.on_peer(message); });
    run(50ms);
  }
  bool writes() {
    const auto number = ask(0, Operation::insert("key", "value"), sequence++);
    run(200ms);
    return answered(0, number) && answer(0, number).code == Code::ok;
  }
  std::uint64_t sequence = 1;
};

TEST_F(Bounds, PartitionsThatTheClusterDoesNotHaveAreNobodys) {
  begin();
  for (const std::uint32_t partition : {1u, 2u, 1u << 19, ~0u}) {
    replication::PeerMessage message = said_by(1, 0);
    message.views.push_back({PartitionId{partition}, {Epoch{5}, {InstanceId{0}, 1}, {{InstanceId{0}, 1}, {InstanceId{1}, 1}}, {}, 1}});
    message.appends.push_back({PartitionId{partition}, Epoch{5}, {}, 1, {}, 0, {}, {}});
    message.pieces.push_back({PartitionId{partition}, Epoch{5}, 1, 0, false, {}, "x"});
    message.standings.push_back({PartitionId{partition}, 1, {}});
    hear(0, message);
    round(0, [&](Instance& core, std::string&) {
      core.adopt(PartitionId{partition}, message.views[0].view);
      core.set_goal(PartitionId{partition}, {InstanceId{1}, {InstanceId{1}}});
      EXPECT_FALSE(core.take_over(PartitionId{partition}, Epoch{5}, {}));
    });
    EXPECT_EQ(all[0].core->replicator().partitions().size(), 1u);
  }
  EXPECT_TRUE(writes());
}

// One number at the end of its range must not take a partition away for ever.
TEST_F(Bounds, AViewFarAheadOfWhatIsKnownIsNotFollowed) {
  begin();
  for (const std::uint64_t epoch : {std::uint64_t{1} << 50, replication::kLastNumber, replication::kLastNumber + 1, ~std::uint64_t{0}}) {
    replication::PeerMessage message = said_by(1, 0);
    message.views.push_back({PartitionId{0}, {Epoch{epoch}, {InstanceId{1}, 1}, {{InstanceId{1}, 1}}, {}, 1}});
    hear(0, message);
    round(0, [&](Instance& core, std::string&) { core.adopt(PartitionId{0}, message.views[0].view); });
    EXPECT_LT(all[0].core->epoch_of(PartitionId{0}), Epoch{100}) << epoch;
    EXPECT_TRUE(writes());
  }
  const std::uint64_t leap = std::uint64_t{3} << 32;  // as when somebody keeps alone
  view = {Epoch{leap}, {InstanceId{0}, 1}, {{InstanceId{0}, 1}, {InstanceId{1}, 1}}, {{InstanceId{2}, 1}}, 2};
  run(300ms);
  EXPECT_TRUE(writes());
  EXPECT_EQ(all[0].core->epoch_of(PartitionId{0}), Epoch{leap});
}

// A lease counts from a beacon that was sent.
TEST_F(Bounds, AnAnswerToABeaconOfTheFutureIsNoLease) {
  begin();
  ASSERT_TRUE(writes());
  replication::PeerMessage message = said_by(1, 0);
  message.answered = clock.now() + 1h;
  message.answering = {InstanceId{0}, 1};
  hear(0, message);
  cut = {0};
  run(timing.lease + 100ms);
  const auto number = ask(0, Operation::lookup("key"));
  run(50ms);
  EXPECT_FALSE(answered(0, number) && !sent_away(0, number)) << "read without a lease";
}

}  // namespace
}  // namespace zht::core

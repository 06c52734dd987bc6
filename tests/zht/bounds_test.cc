// What others send can be anything: numbers that cannot be, and more bytes than there is room for. A running instance refuses it, by
// name where there is somebody to tell, and goes on.
#include "tests/zht/trio.h"
#include "zht/core/replication/manager.h"

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

// --- bytes ---

TEST_F(Bounds, TailsOfAllPartitionsTogetherAreBounded) {
  timing.all_tails_bytes = 64 << 10;
  begin();
  cut = {2};  // a learner that lags: what it lacks is dropped in the end, and it is sent the partition whole
  for (int i = 0; i < 400; i++) {
    ask(0, Operation::insert("key", std::string(1000, 'x')), sequence++);
    run(10ms);
    for (const One& one : all) EXPECT_LE(one.core->bytes().tails, timing.all_tails_bytes + one.core->bytes().uncommitted + 2000);
  }
  cut = {};
  run(3s);
  EXPECT_EQ(all[2].core->store_statistics().keys, 1u);
  EXPECT_TRUE(writes());
}

TEST_F(Bounds, UncommittedChangesAreBoundedAndMoreAreRefused) {
  timing.all_uncommitted_bytes = 100'000;
  timing.drop = timing.grace = 10s;  // nobody is dropped
  timing.lease = 9s;
  timing.patience = 100s;
  begin();
  cut = {1};
  std::vector<std::uint64_t> asked;
  for (int i = 0; i < 40; i++) {
    asked.push_back(ask(0, Operation::insert("key" + std::to_string(i), std::string(10'000, 'x')), sequence++));
    run(10ms);
  }
  EXPECT_LE(all[0].core->bytes().uncommitted, 120'000u);
  ASSERT_TRUE(answered(0, asked.back()));
  const Outcome refused = answer(0, asked.back());
  EXPECT_EQ(refused.code, Code::unavailable);
  EXPECT_NE(refused.message.find("the limit is 100000"), std::string::npos) << refused.message;
  EXPECT_FALSE(answered(0, asked.front())) << "it waits";
  EXPECT_GT(all[0].core->statistics().refused_for_room, 0u);
  cut = {};
  run(500ms);
  EXPECT_EQ(answer(0, asked.front()).code, Code::ok);
  EXPECT_EQ(all[0].core->bytes().uncommitted, 0u);
  EXPECT_TRUE(writes());
}

TEST_F(Bounds, WhatIsKeptToTakeEntriesBackIsBoundedAndMissedByNobody) {
  limits.undo = 50'000;
  timing.drop = timing.grace = 10s;
  timing.lease = 9s;
  begin();
  for (int i = 0; i < 20; i++) ask(0, Operation::insert("key" + std::to_string(i), std::string(10'000, 'o')), sequence++);
  run(200ms);
  cut = {1, 2};
  for (int i = 0; i < 20; i++) ask(0, Operation::insert("key" + std::to_string(i), std::string(10, 'n')), sequence++);
  EXPECT_LE(all[0].core->bytes().undo, 50'000u);
  Operation eventual = Operation::lookup("key0");
  eventual.eventual = true;
  const auto number = ask(0, eventual);
  run(20ms);
  EXPECT_FALSE(answered(0, number) && answer(0, number).code == Code::ok && answer(0, number).value == std::string(10, 'n'))
      << "shown before it was committed";
}

TEST_F(Bounds, AnswersThatWaitAreBounded) {
  limits.waiting = 100'000;
  timing.drop = timing.grace = 10s;
  timing.lease = 9s;
  timing.patience = 100s;
  begin();
  ask(0, Operation::insert("long", std::string(30'000, 'x')), sequence++);
  run(200ms);
  cut = {1};
  ask(0, Operation::append("long", "y"), sequence++);  // reads of it wait for this
  std::uint64_t last = 0;
  for (int i = 0; i < 10; i++) last = ask(0, Operation::lookup("long"));
  EXPECT_LE(all[0].core->bytes().waiting, 140'000u);
  ASSERT_TRUE(answered(0, last));
  EXPECT_EQ(answer(0, last).code, Code::unavailable);
  EXPECT_NE(answer(0, last).message.find("100000"), std::string::npos);
}

// Thousands wait for one key, and its value is long.
TEST_F(Bounds, NewsForCallbacksAreBounded) {
  limits.waiting = 100'000;
  begin();
  std::vector<std::uint64_t> waiting;
  for (int i = 0; i < 50; i++) waiting.push_back(ask(0, Operation::callback("key", Condition::present()), 0, {}, 60'000));
  ask(0, Operation::insert("key", std::string(10'000, 'x')), sequence++);
  EXPECT_LE(all[0].core->bytes().waiting, 120'000u);
  run(200ms);
  std::size_t told = 0, again = 0;
  for (const auto number : waiting) {
    told += answered(0, number) && !sent_away(0, number);
    again += sent_away(0, number);
  }
  EXPECT_GT(told, 5u);
  EXPECT_LT(told, 15u);
  EXPECT_EQ(told + again, waiting.size()) << "nobody is forgotten";
}

TEST(ResultBytes, AreBoundedAndGivenBack) {
  ResultTable table(kSessionLife, 100'000);
  table.set_now(base::Time(1h));
  const PartitionId partition{0};
  std::uint64_t sequence = 0;
  for (; table.find(partition, 7, sequence + 1, false).verdict == ResultTable::Verdict::fresh; sequence++)
    table.record_insert(partition, 7, sequence + 1, 0, 10, sequence + 1);
  EXPECT_EQ(table.find(partition, 7, sequence + 1, false).verdict, ResultTable::Verdict::full);
  EXPECT_EQ(table.find(partition, 8, 1, false).verdict, ResultTable::Verdict::full) << "another client";
  EXPECT_EQ(table.find(partition, 7, 1, true).verdict, ResultTable::Verdict::answered) << "what is known stays";
  EXPECT_LT(table.bytes(), 250'000u);
  EXPECT_GT(sequence, 500u);
  table.record_insert(partition, 7, sequence + 1, sequence, 10, sequence + 1);  // it has them all
  EXPECT_LT(table.bytes(), 2'000u);
  EXPECT_EQ(table.find(partition, 8, 1, false).verdict, ResultTable::Verdict::fresh);
  table.forget(7);
  table.drop(partition);
  EXPECT_EQ(table.bytes(), 0u);
}

TEST_F(Bounds, ChangesThatFindNoMemoryAreRefusedAndRemovalsAreNot) {
  limits.memory = 1 << 20;
  begin();
  std::uint64_t number = 0;
  int i = 0;
  for (; i < 60'000; i++) {  // short values stay in memory
    number = ask(0, Operation::insert("key" + std::to_string(i), "short"), sequence++);
    if (i % 200 == 0) run(10ms);
    if (answered(0, number) && answer(0, number).code != Code::ok) break;
  }
  ASSERT_TRUE(answered(0, number));
  const Outcome refused = answer(0, number);
  EXPECT_EQ(refused.code, Code::no_space);
  EXPECT_NE(refused.message.find("the limit is 1048576 (memory_limit)"), std::string::npos) << refused.message;
  EXPECT_LT(all[0].core->store_statistics().used_bytes, 2u << 20);
  EXPECT_TRUE(all[0].core->is_short_of_memory());
  std::uint64_t first = 0;
  for (int gone = 0; gone < i; gone++) {
    number = ask(0, Operation::remove("key" + std::to_string(gone)), sequence++);
    if (gone == 0) first = number;
    if (gone % 200 == 0) run(10ms);
  }
  run(300ms);
  EXPECT_EQ(answer(0, first).code, Code::ok);
  EXPECT_TRUE(writes());
  EXPECT_FALSE(all[0].core->is_short_of_memory());
}

TEST_F(Bounds, AValueGrowsNoLongerThanAnAnswer) {
  begin();
  const std::string piece(std::size_t{16} << 20, 'x');
  std::vector<Code> codes;
  for (int i = 0; i < 5; i++) {
    const auto number = ask(0, Operation::append("log", piece), sequence++);
    run(300ms);
    codes.push_back(answer(0, number).code);
  }
  EXPECT_EQ(codes, (std::vector<Code>{Code::ok, Code::ok, Code::ok, Code::no_space, Code::no_space}));
  const auto number = ask(0, Operation::lookup("log"));
  run(100ms);
  EXPECT_EQ(answer(0, number).value.size(), 3 * piece.size());
}

TEST(Remembered, WhatAManagerKnowsOfOthersIsBounded) {
  using namespace replication;
  ManagerOptions options;
  options.self = NodeId{1};
  options.keepers = {NodeId{1}};
  options.remembered = 100'000;
  NodeInfo self;
  self.node = NodeId{1};
  Manager manager(options, self, std::vector<replication::View>(1), {}, 1);
  for (std::uint64_t node = 2; node < 1000; node++) {
    ManagerMessage message;
    message.from = NodeId{2};
    message.nodes.push_back({NodeId{node}, 1, {}});
    message.nodes.back().about.assign(1000, 'x');
    manager.on_message(message, base::Time(1h));
  }
  EXPECT_LE(manager.remembered(), 100'000u);
  EXPECT_GT(manager.acquaintances(base::Time(1h)).size(), 50u);
  EXPECT_LT(manager.acquaintances(base::Time(1h)).size(), 101u);
  EXPECT_GT(manager.not_remembered(), 800u);
}

}  // namespace
}  // namespace zht::core

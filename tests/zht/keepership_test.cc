// Who may vote: after a restart, after a loss, and when a person says that a majority is gone.
#include "zht/core/replication/keepership.h"

#include <gtest/gtest.h>

#include "novoht/base/memory_files.h"

namespace zht::replication {
namespace {

using namespace std::chrono_literals;

constexpr std::uint32_t kPartitions = 2;
const std::vector<NodeId> kThree{NodeId{0}, NodeId{1}, NodeId{2}};

View view_of(std::uint64_t epoch) {
  View view;
  view.epoch = Epoch{epoch};
  view.primary = {InstanceId{1}, 1};
  view.sync = {view.primary, {InstanceId{2}, 1}};
  return view;
}

// Node 0, again and again on one disk.
class KeepershipTest : public testing::Test {
 protected:
  void start(std::uint64_t config, std::uint64_t voted, Defects defects = {}) {
    stop();
    ManagerOptions managing;
    managing.self = NodeId{0};
    managing.keepers = kThree;
    managing.config = config;
    managing.balances = false;
    std::vector<View> views(kPartitions, view_of(5));
    views.push_back({});
    manager = std::make_unique<Manager>(managing, NodeInfo{NodeId{0}, 1, {}, 0, true, false}, views, kThree, 1);
    KeepershipOptions options;
    options.self = NodeId{0};
    options.partitions = kPartitions;
    options.config = config;
    options.keepers = kThree;
    options.voted = voted;
    options.life = kLife;
    options.note_voted = [this](std::uint64_t in) -> Result<void> {
      noted = in;
      return {};
    };
    options.defects = defects;
    keepership = std::make_unique<Keepership>(options, *manager, [this]() -> Result<RegisterStore*> {
      TRY_LET(opened, novoht::Store::open(disk, "keeper", {}));
      store = std::move(opened);
      registers = std::make_unique<StoredRegisters>(*store, novoht::TableId{0});
      return registers.get();
    });
    ASSERT_TRUE(keepership->begin(std::vector<View>(kPartitions + 1, view_of(1))));
  }
  void stop() {
    keepership.reset();
    manager.reset();
    registers.reset();
    store.reset();
    disk.kill();
  }
  void TearDown() override { stop(); }
  void hear(std::uint64_t from, ManagerMessage message) {
    message.from = NodeId{from};
    keepership->on_message(message, now);
  }
  void hear_who_keeps(std::uint64_t from, std::uint64_t config, const std::vector<NodeId>& keepers) {
    ManagerMessage message;
    message.config = config;
    message.keepers = keepers;
    hear(from, message);
  }
  // As who knows it says it to this life.
  void hear_answer(std::uint64_t from, std::uint64_t config, std::uint64_t life) {
    ManagerMessage message;
    message.life = 1;
    message.config = config;
    message.keepers = kThree;
    message.answers = life;
    hear(from, message);
  }
  // All registers of one that voted in `source`, for those of `target`.
  ManagerMessage install(std::uint64_t source, std::uint64_t target) {
    ManagerMessage message;
    for (std::uint32_t p = 0; p <= kPartitions; p++) message.install.push_back({view_of(6), {}, {}, {}});
    message.install.push_back({keepers_view(target, kThree), {}, {}, {}});
    message.install.push_back({keepers_view(source, kThree), {}, {}, {}});
    return message;
  }
  void tick(base::Duration passes) {
    now += passes;
    keepership->tick(now);
  }

  static constexpr std::uint64_t kLife = 9;
  base::MemoryFiles disk;
  std::unique_ptr<novoht::Store> store;
  std::unique_ptr<RegisterStore> registers;
  std::unique_ptr<Manager> manager;
  std::unique_ptr<Keepership> keepership;
  std::uint64_t noted = 0;
  base::Time now{1h};
};

TEST_F(KeepershipTest, AFounderVotesAtOnceAndThatIsNoted) {
  start(1, 0);
  EXPECT_TRUE(keepership->votes());
  EXPECT_EQ(noted, 1u);
}

TEST_F(KeepershipTest, OneThatBeginsAgainAsksWhoKeepsFirst) {
  start(1, 0);
  start(1, 1);
  EXPECT_FALSE(keepership->votes());
  tick(0ms);
  std::size_t asked = 0;
  for (const ManagerMessage& message : manager->take_messages()) asked += message.asks_keepers;
  EXPECT_EQ(asked, 2u);
  hear_who_keeps(1, 1, kThree);
  tick(10ms);
  EXPECT_FALSE(keepership->votes());
  hear_who_keeps(2, 1, kThree);
  tick(10ms);
  EXPECT_TRUE(keepership->votes());
}

TEST_F(KeepershipTest, WhoDoesNotAnswerIsNotWaitedForLong) {
  start(1, 0);
  start(1, 1);
  tick(0ms);
  tick(999ms);
  EXPECT_FALSE(keepership->votes());
  tick(1ms);
  EXPECT_TRUE(keepership->votes());
}

TEST_F(KeepershipTest, OneThatWasGivenUpHearsOfItBeforeItVotes) {
  start(1, 0);
  start(1, 1);
  hear_who_keeps(1, std::uint64_t{3} << 32, {NodeId{1}});
  tick(0ms);
  tick(2s);
  EXPECT_FALSE(keepership->votes());
  EXPECT_FALSE(keepership->has_lost_registers());
  EXPECT_EQ(keepership->keepers(), std::vector<NodeId>{NodeId{1}});
  start(1, 1);  // although that was not noted elsewhere
  EXPECT_EQ(keepership->keepers(), std::vector<NodeId>{NodeId{1}});
}

TEST_F(KeepershipTest, OneThatHasLostItsRegistersVotesInThatConfigurationNoMore) {
  for (const bool broken : {false, true}) {
    start(2, 2, broken ? Defects{Defect::vote_after_loss} : Defects{});
    EXPECT_EQ(keepership->has_lost_registers(), true);
    hear(1, install(2, 2));
    EXPECT_EQ(keepership->votes(), broken);
    if (broken) continue;
    tick(0ms);
    EXPECT_EQ(manager->self().lost_registers, 2u);
    hear(1, install(2, 3));
    EXPECT_FALSE(keepership->votes()) << "it needs those of a majority";
    hear(2, install(2, 3));
    EXPECT_TRUE(keepership->votes());
    EXPECT_EQ(noted, 3u);
    tick(0ms);
    EXPECT_EQ(manager->self().lost_registers, 0u);
    stop();
    for (const std::string& path : disk.paths()) ASSERT_TRUE(disk.remove(path));
  }
}

// It was put back to a time when it had heard of three configurations, and there have been two more, in which it may have voted.
TEST_F(KeepershipTest, AnOlderCopyTakesNoRegistersBeforeItKnowsInWhatItMayHaveVoted) {
  start(3, 3);
  ASSERT_TRUE(keepership->distrust());
  hear(1, install(5, 5));
  EXPECT_FALSE(keepership->votes());
  hear_answer(1, 5, kLife);
  hear_answer(1, 5, kLife);
  hear_answer(2, 5, kLife - 1);  // that was for its life before
  hear_who_keeps(2, 4, kThree);  // behind
  tick(400ms);
  EXPECT_TRUE(keepership->has_lost_registers());
  EXPECT_EQ(manager->self().lost_registers, kLastNumber) << "nobody can decide another for it yet";
  std::size_t asked = 0;
  for (const ManagerMessage& message : manager->take_messages()) asked += message.asks_keepers;
  EXPECT_EQ(asked, 2u);
  hear_answer(2, 5, kLife);
  EXPECT_EQ(noted, 5u);
  tick(10ms);
  EXPECT_EQ(manager->self().lost_registers, 5u);
  hear(1, install(5, 5));
  EXPECT_FALSE(keepership->votes());
  hear(1, install(5, 6));
  hear(2, install(5, 6));
  EXPECT_TRUE(keepership->votes());
  EXPECT_EQ(noted, 6u);
}

// Neither knows what the other has forgotten.
TEST_F(KeepershipTest, AnOlderCopyAssuresNobodyOfWhoKeeps) {
  start(3, 3);
  ASSERT_TRUE(keepership->distrust());
  ManagerMessage question;
  question.life = 4;
  question.config = 3;
  question.asks_keepers = true;
  hear(1, question);
  for (const ManagerMessage& message : manager->take_messages()) {
    EXPECT_EQ(message.config, 3u);
    EXPECT_EQ(message.answers, 0u);
  }
  hear_answer(1, 3, kLife);
  hear_answer(2, 3, kLife);
  hear(1, question);
  for (const ManagerMessage& message : manager->take_messages()) EXPECT_EQ(message.answers, 4u);
}

TEST_F(KeepershipTest, WhoKeepsAloneDoesSoInAGenerationOfItsOwn) {
  start(1, 0);
  EXPECT_EQ(keepership->keep_alone(9, 7).code(), base::Code::conflict);
  ASSERT_TRUE(keepership->keep_alone(1, 7));
  const std::uint64_t config = keepership->config();
  EXPECT_EQ(generation_of(config), 8u);
  EXPECT_EQ(keepership->keepers(), std::vector<NodeId>{NodeId{0}});
  EXPECT_TRUE(keepership->votes());
  EXPECT_EQ(noted, config);
  for (std::uint32_t p = 0; p < kPartitions; p++) {
    const View& view = manager->view(PartitionId{p});
    EXPECT_EQ(number(view.epoch), std::uint64_t{8} << 32);
    EXPECT_EQ(view.sync, view_of(5).sync) << "the newest that was heard of, not the first";
  }
  // What those that were given up say is no news.
  hear_who_keeps(1, 2, kThree);
  EXPECT_EQ(keepership->config(), config);
  start(1, config);
  tick(0ms);
  tick(1s);
  EXPECT_TRUE(keepership->votes());
  EXPECT_EQ(keepership->config(), config);
  EXPECT_EQ(number(manager->view(PartitionId{0}).epoch), std::uint64_t{8} << 32);
}

}  // namespace
}  // namespace zht::replication

// Whether a data folder is an older copy of itself: three nodes that tell each other how far they are, and some that are put back.
#include "zht/core/replication/sightings.h"

#include <gtest/gtest.h>

namespace zht::replication {
namespace {

using namespace std::chrono_literals;
using Verdict = Sightings::Verdict;

// Nodes 1 to 3, all of which keep, with what each remembers; whoever is down neither hears nor says anything.
struct SightingsTest : testing::Test {
  struct One {
    std::uint64_t incarnation = 0;
    std::string disk;
    std::unique_ptr<Manager> manager;
    std::unique_ptr<Sightings> sightings;
  };
  std::map<std::uint64_t, One> all;
  base::Time now = base::Time{} + 1h;
  std::uint64_t lives = 100;
  std::set<std::uint64_t> voting;  // their keepers do, who were found to be older copies in this life

  void SetUp() override {
    for (std::uint64_t n = 1; n <= 3; n++) start(n);
    run(4s);
  }
  void start(std::uint64_t n) {
    One& one = all[n];
    one.incarnation = ++lives;
    ManagerOptions options;
    options.self = NodeId{n};
    options.keepers = {NodeId{1}, NodeId{2}, NodeId{3}};
    NodeInfo info;
    info.node = NodeId{n};
    info.heartbeat = one.incarnation * 1'000'000;
    info.instances = {{InstanceId{static_cast<std::uint32_t>(n)}, one.incarnation}};
    one.manager = std::make_unique<Manager>(options, info, std::vector<View>(1), options.keepers, n);
    SightingsOptions mine;
    mine.self = NodeId{n};
    mine.incarnation = one.incarnation;
    one.sightings = std::make_unique<Sightings>(mine, *one.manager, one.disk);
  }
  void stop(std::uint64_t n) {
    all[n].sightings.reset();
    all[n].manager.reset();
  }
  void stop_all() {
    for (std::uint64_t n = 1; n <= 3; n++) stop(n);
  }
  void run(base::Duration time) {
    for (base::Duration passed{}; passed < time; passed += 10ms) {
      now += 10ms;
      for (auto& [n, one] : all) {
        if (!one.sightings) continue;
        one.manager->tick(now);
        one.sightings->tick(now);
        one.sightings->note_change();
        if (auto text = one.sightings->to_save(now)) {
          one.disk = *text;
          one.sightings->saved();
        }
        one.sightings->set_votes(voting.contains(n));
      }
      for (auto& [n, one] : all) {
        if (!one.sightings) continue;
        for (ManagerMessage& message : one.manager->take_messages()) {
          message.life = one.incarnation;
          One& to = all[static_cast<std::uint64_t>(message.to)];
          if (!to.sightings) continue;
          to.manager->on_message(message, now);
          to.sightings->on_message(message, now);
        }
      }
    }
  }
  Verdict verdict(std::uint64_t n) { return all[n].sightings->verdict(); }
};

TEST_F(SightingsTest, WhoBeginsAgainWithWhatItHadIsConfirmedByTheOthers) {
  stop(1);
  run(2s);
  start(1);
  EXPECT_EQ(verdict(1), Verdict::waits);
  run(50ms);
  EXPECT_EQ(verdict(1), Verdict::confirmed);
  EXPECT_EQ(all[1].sightings->outdated(), 0u);
}

TEST_F(SightingsTest, AFolderThatOthersHaveSeenFurtherIsOutdatedAndStaysSo) {
  const std::string copy = all[1].disk;
  run(4s);
  stop(1);
  all[1].disk = copy;
  start(1);
  run(50ms);
  EXPECT_EQ(verdict(1), Verdict::outdated);
  EXPECT_NE(all[1].sightings->reason().find("has seen it further"), std::string::npos);
  const std::uint64_t found = all[1].incarnation;
  stop(1);
  start(1);
  run(50ms);
  EXPECT_EQ(verdict(1), Verdict::confirmed);  // of what it is since then
  EXPECT_EQ(all[1].sightings->outdated(), found);
}

TEST_F(SightingsTest, ACopyFromBeforeALifeDoesNotKnowThatLife) {
  const std::string copy = all[1].disk;
  stop(1);
  start(1);
  run(3s);
  stop(1);
  all[1].disk = copy;
  start(1);
  run(50ms);
  EXPECT_EQ(verdict(1), Verdict::outdated);
}

// One good keeper and itself are a majority: nobody waits for the third, who may never come back.
TEST_F(SightingsTest, WhoBeginsAgainWhileAMajorityRunsIsConfirmedAfterOneRoundTrip) {
  stop(1);
  stop(3);
  start(1);
  run(30ms);
  EXPECT_EQ(verdict(1), Verdict::confirmed);
}

TEST_F(SightingsTest, AnOlderCopyConfirmsNobodyUntilItsKeeperVotesAgain) {
  const std::string copy = all[1].disk;
  run(4s);
  stop_all();
  all[1].disk = copy;
  start(1);
  start(2);
  run(5s);
  EXPECT_EQ(verdict(1), Verdict::outdated);
  EXPECT_EQ(verdict(2), Verdict::waits);
  start(3);
  run(2s);
  EXPECT_EQ(verdict(2), Verdict::confirmed);
  EXPECT_EQ(verdict(3), Verdict::confirmed);
  voting = {1};  // the others have given it registers
  run(1s);
  stop(3);
  stop(2);
  start(2);
  run(30ms);
  EXPECT_EQ(verdict(2), Verdict::confirmed);
}

// Each of three was put back; the third, which knows that the second was further, comes late.
TEST_F(SightingsTest, TwoOlderCopiesDoNotConfirmEachOther) {
  std::map<std::uint64_t, std::string> copies;
  for (std::uint64_t n = 1; n <= 3; n++) {
    copies[n] = all[n].disk;
    run(4s);
  }
  stop_all();
  for (std::uint64_t n = 1; n <= 3; n++) all[n].disk = copies[n];
  start(1);
  start(2);
  run(5s);
  EXPECT_EQ(verdict(1), Verdict::outdated);
  EXPECT_EQ(verdict(2), Verdict::waits);
  start(3);
  run(2s);
  EXPECT_EQ(verdict(2), Verdict::outdated);
}

// All have restarted, and one does not come back: nobody's folder is known to be good, and still two of three may go on.
TEST_F(SightingsTest, AMajorityThatRestartedIsConfirmedWithoutTheRestAfterAWhile) {
  stop_all();
  start(2);
  start(3);
  run(500ms);
  EXPECT_EQ(verdict(2), Verdict::waits);
  run(1s);
  EXPECT_EQ(verdict(2), Verdict::confirmed);
  EXPECT_EQ(verdict(3), Verdict::confirmed);
}

TEST_F(SightingsTest, WhoIsAloneOfThreeIsNotConfirmed) {
  stop_all();
  start(1);
  run(5s);
  EXPECT_EQ(verdict(1), Verdict::waits);
  start(2);
  run(2s);
  EXPECT_EQ(verdict(1), Verdict::confirmed);  // a majority of the keepers
}

TEST_F(SightingsTest, OfThreeThatArePutBackToDifferentTimesOneCannotBeToldApart) {
  std::map<std::uint64_t, std::string> copies;
  for (std::uint64_t n = 1; n <= 3; n++) {
    copies[n] = all[n].disk;
    run(4s);
  }
  stop_all();
  for (std::uint64_t n = 1; n <= 3; n++) {
    all[n].disk = copies[n];
    start(n);
  }
  run(2s);
  EXPECT_EQ(verdict(1), Verdict::outdated);
  EXPECT_EQ(verdict(2), Verdict::outdated);
  EXPECT_EQ(verdict(3), Verdict::confirmed);
}

// The third comes late, when the others have confirmed each other.
TEST_F(SightingsTest, NobodysVoteCountsBeforeItHasLookedAtWhatTheOtherRemembers) {
  const std::string copy = all[2].disk;
  run(4s);
  stop_all();
  all[2].disk = copy;
  all[1].disk.clear();
  start(2);
  EXPECT_FALSE(all[2].sightings->trusts(NodeId{3}, all[3].incarnation));
  start(3);
  EXPECT_FALSE(all[3].sightings->trusts(NodeId{2}, all[2].incarnation));
  run(10ms);
  EXPECT_FALSE(all[3].sightings->trusts(NodeId{2}, all[2].incarnation) && verdict(2) != Verdict::outdated);
  run(2s);
  EXPECT_EQ(verdict(2), Verdict::outdated);
}

TEST(SightingsState, WhatIsCutOffOrForeignIsNothing) {
  SightingsState state;
  state.lives = {{7, 3}};
  state.seen = {{NodeId{2}, {9, 4}}};
  const std::string text = state.text();
  EXPECT_EQ(SightingsState::read(text).seen.at(NodeId{2}), (Sighting{9, 4}));
  for (std::size_t size = 0; size + 1 < text.size(); size++) EXPECT_TRUE(SightingsState::read(text.substr(0, size)).lives.empty()) << size;
  EXPECT_TRUE(SightingsState::read("another file\nlife 7 3\nend\n").lives.empty());
}

}  // namespace
}  // namespace zht::replication

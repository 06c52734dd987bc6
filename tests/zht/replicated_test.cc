// Instances that have partitions together, and what a restart may vouch for. No faults by chance here (tests/sim has those):
// each test is one thing that must be so.
#include "tests/zht/trio.h"

namespace zht::core {
namespace {

struct TrioTest : testing::Test, Trio {
  void SetUp() override { begin(); }
  Outcome look(std::size_t i) {
    const auto number = ask(i, Operation::lookup("k"));
    run(100ms);
    return answer(i, number);
  }
};

TEST_F(TrioTest, AChangeIsAnsweredWhenEverySyncMemberHasIt) {
  const auto first = ask(0, Operation::insert("k", "v"), 1);
  EXPECT_FALSE(answered(0, first));
  run(30ms);
  EXPECT_EQ(answer(0, first).version, 1u);
  cut = {1};
  const auto second = ask(0, Operation::append("k", "w"), 2);
  run(100ms);
  EXPECT_FALSE(answered(0, second));
  EXPECT_EQ(all[2].core->replicated_store().end(PartitionId{0}).sequence, 2u);  // the learner has it; that does not count
  cut.clear();
  run(200ms);
  EXPECT_EQ(answer(0, second).size, 2u);
}

// Found by the simulator: goals that came again and again changed the view every 20 ms, and with every view the member that had
// died was thought to have just been heard.
TEST_F(TrioTest, ADeadMemberIsDroppedThoughViewsFollowEachOther) {
  cut = {1};
  for (int i = 0; i < 100 && replication::in_sync(view, {InstanceId{1}, 1}); i++) {
    all[0].core->replicator().set_goal(PartitionId{0}, {InstanceId{0}, {InstanceId{0}, InstanceId{1}}});
    run(10ms);
  }
  EXPECT_FALSE(replication::in_sync(view, {InstanceId{1}, 1}));
  run(500ms);
  EXPECT_TRUE(replication::in_sync(view, {InstanceId{2}, 1}));
}

// Found with real nodes: one that was 200 to 400 ms away from all others led alone, and took in and dropped learners for as long as one looked.
TEST_F(TrioTest, WhoLeadsFarAwayFindsAnotherSynchronousCopy) {
  far[0] = 300ms;
  run(3s);
  kill(1);
  run(6s);
  EXPECT_EQ(view.primary.instance, InstanceId{0});
  EXPECT_TRUE(replication::in_sync(view, {InstanceId{2}, 1})) << replication::to_string(view);
  const auto epoch = view.epoch;
  const auto asked = ask(0, Operation::insert("k", "v"), 1);
  run(3s);
  EXPECT_TRUE(answered(0, asked));
  EXPECT_EQ(view.epoch, epoch) << "and keeps it";
}

TEST_F(TrioTest, WhoWasStoppedItselfDropsNobody) {
  const replication::View before = view;
  paused = {0};
  run(210ms);  // longer than `drop`, not as long as `grace`
  paused.clear();
  run(300ms);
  EXPECT_EQ(view, before);
}

// On a machine with too much to do each member does not run for a while, again and again.
TEST_F(TrioTest, AMemberThatIsStoppedAgainAndAgainIsGivenMoreTime) {
  const auto changes_in_five_stops = [&] {
    const std::uint64_t before = replication::number(view.epoch);
    for (int i = 0; i < 5; i++) {
      paused = {1};
      run(300ms);
      paused.clear();
      run(500ms);
    }
    return replication::number(view.epoch) - before;
  };
  EXPECT_GT(changes_in_five_stops(), 0u);
  EXPECT_EQ(changes_in_five_stops(), 0u);
  // Who does not come back is dropped all the same.
  paused = {1};
  run(1s);
  EXPECT_FALSE(replication::contains(view.sync, all[1].core->self()));
  paused.clear();
  // After some time of peace it is not waited for longer than others.
  run(30s);
  ASSERT_TRUE(replication::is_member(view, all[1].core->self()));
  const replication::Member other = view.sync.back();
  ASSERT_NE(other, view.primary);
  (void)ask(static_cast<std::size_t>(view.primary.instance), Operation::lookup("k"));  // where there is nothing to do it would be
  run(200ms);
  paused = {static_cast<std::size_t>(other.instance)};
  run(250ms);
  EXPECT_FALSE(replication::contains(view.sync, other));
}

// Two instances, of which one has a hundredth of the time it would need: it runs for a moment, and finds its mail, now and then.
struct Starved : testing::Test {
  Trio trio;
  void SetUp() override {
    trio.mail_waits = true;
    trio.view.epoch = Epoch{1};
    trio.view.need = 1;
    trio.view.primary = {InstanceId{0}, 1};
    trio.view.sync = {trio.view.primary};
    trio.open(0);
    trio.run(100ms);
    trio.open(1);
  }
  void run(base::Duration time) {
    for (base::Duration passed{}; passed < time; passed += 10ms) {
      trio.paused = {};
      if (++steps_ % 40 != 0) trio.paused = {1};
      trio.run(10ms);
    }
  }
  // The longest that a change has waited, of many one after another.
  base::Duration longest_wait(base::Duration time, base::Duration pause) {
    base::Duration longest{};
    for (const base::Time end = trio.clock.now() + time; trio.clock.now() < end; run(pause)) {
      const base::Time began = trio.clock.now();
      sequence_++;
      std::uint64_t number = 0;
      while (trio.clock.now() < end && (number == 0 || !trio.answered(0, number) || trio.sent_away(0, number))) {
        if (number == 0 || trio.sent_away(0, number)) number = trio.ask(0, Operation::insert("k", "v"), sequence_);
        run(10ms);
      }
      longest = std::max(longest, trio.clock.now() - began);
    }
    return longest;
  }

 private:
  std::uint64_t sequence_ = 0, steps_ = 0;
};

// It was taken in, dropped before it had come to say that it follows, and taken in again, for ever; and changes waited.
TEST_F(Starved, WhoHardlyRunsIsTakenInAndStays) {
  EXPECT_LT(longest_wait(20s, 500ms), 2s);
  ASSERT_EQ(trio.view.sync.size(), 2u);
  const replication::View before = trio.view;
  EXPECT_LT(replication::number(before.epoch), 10u);
  EXPECT_LT(longest_wait(10s, 500ms), 1s);
  EXPECT_EQ(trio.view, before);
}

// A lone instance's changes wait for a second one only when that one has shown that it runs.
TEST_F(Starved, NobodyWaitsForOneThatHasJustComeAndHardlyRuns) {
  EXPECT_LT(longest_wait(8s, 500ms), 50ms);
  EXPECT_EQ(trio.view.learners.size(), 1u);
}

// The first view names all; who is started some time after the others is not thrown out for it.
TEST(Founding, WhoStartsLaterIsWaitedFor) {
  Trio trio;
  trio.view.epoch = Epoch{1};
  trio.view.need = 2;
  trio.view.primary = {InstanceId{0}, 1};
  trio.view.sync = {trio.view.primary, {InstanceId{1}, 1}};
  trio.view.learners = {{InstanceId{2}, 1}};
  trio.open(0);
  trio.run(500ms);
  trio.open(2);
  trio.run(500ms);
  trio.open(1);
  trio.run(500ms);
  EXPECT_EQ(trio.view.epoch, Epoch{1}) << to_string(trio.view);
  const auto number = trio.ask(0, Operation::insert("k", "v"), 1);
  trio.run(100ms);
  EXPECT_TRUE(trio.answer(0, number).ok());
}

TEST(Founding, WhoNeverStartsIsNotWaitedForLong) {
  Trio trio;
  trio.view.epoch = Epoch{1};
  trio.view.need = 2;
  trio.view.primary = {InstanceId{1}, 1};
  trio.view.sync = {trio.view.primary, {InstanceId{0}, 1}};
  trio.view.learners = {{InstanceId{2}, 1}};
  trio.open(0);
  trio.open(2);
  trio.run(3s);
  EXPECT_EQ(trio.view.primary.instance, InstanceId{0});
  const auto number = trio.ask(0, Operation::insert("k", "v"), 1);
  trio.run(300ms);
  EXPECT_TRUE(trio.answer(0, number).ok());
}

struct HandOver : TrioTest {
  // The first hands over to the second and has proposed that; the keepers take their time.
  void propose() {
    granting = false;
    round(0, [](Instance& core, std::string&) { core.set_goal(PartitionId{0}, {InstanceId{1}, {InstanceId{0}, InstanceId{1}, InstanceId{2}}}); });
    for (int i = 0; i < 10 && (wished.empty() || wished.back().kind != replication::Change::Kind::transfer); i++) run(10ms);
  }
  bool decide() {
    granting = true;
    return grant(replication::Change::Kind::transfer);
  }
};

// What cannot be executed any more and not yet elsewhere waits, and goes where the answer says the moment that is known.
TEST_F(HandOver, ARequestMeanwhileIsToldWhoLeads) {
  propose();
  const auto change = ask(0, Operation::insert("k", "v"), 1), read = ask(0, Operation::lookup("k"));
  run(50ms);
  EXPECT_FALSE(answered(0, change));
  EXPECT_FALSE(answered(0, read));
  ASSERT_TRUE(decide());
  run(10ms);
  for (const auto number : {change, read}) {
    ASSERT_TRUE(sent_away(0, number));
    const wire::Frame& reply = all[0].replies.at(number);
    EXPECT_EQ(reply.flags & wire::kRetry, 0u) << "it was not executed";
    EXPECT_EQ(reply.second, 1u);
    EXPECT_EQ(reply.epoch, replication::number(view.epoch));
  }
}

TEST_F(HandOver, NobodyWaitsForOneThatIsNotDecided) {
  propose();
  const auto change = ask(0, Operation::insert("k", "v"), 1);
  run(300ms);
  EXPECT_TRUE(sent_away(0, change));
}

struct PatientHandOver : HandOver {
  PatientHandOver() { timing.retry = 10s; }
};

// Who led before hears of the new view from the next one, and late: a client does not wait for the next retry.
TEST_F(PatientHandOver, WhoDoesNotKnowTheViewYetIsToldAgainAtOnce) {
  propose();
  deaf = {0, 2};
  ASSERT_TRUE(decide());
  run(10ms);
  const auto change = ask(1, Operation::insert("k", "v"), 1);
  run(100ms);
  EXPECT_TRUE(answered(1, change));
}

struct WithoutRoom : testing::Test, Trio {
  bool writes() {
    const std::size_t primary = static_cast<std::uint32_t>(view.primary.instance);
    sequence++;
    const auto asked = ask(primary, Operation::insert("k" + std::to_string(sequence % 5), std::string(10'000, 'x')), sequence);
    run(100ms);
    const bool refused = answered(primary, asked) && !sent_away(primary, asked) && all[primary].replies.at(asked).status != 0;
    refusals += refused;
    return answered(primary, asked) && !sent_away(primary, asked) && !refused;
  }
  // Fills these disks; how many writes, 100 ms apart, then fail until twenty have passed, more than the logs' ends have room for.
  int failures(std::initializer_list<std::size_t> without_room) {
    segment_size = 1 << 16;
    begin();
    for (int i = 0; i < 20; i++) EXPECT_TRUE(writes());
    for (const std::size_t one : without_room) fill(one);
    int passed = 0, failed = 0;
    while (passed < 20 && failed < 100) writes() ? passed++ : failed++;
    return failed;
  }
  std::uint64_t sequence = 0;
  int refusals = 0;
};

TEST_F(WithoutRoom, WhereBothSynchronousCopiesHaveNoneTheLearnerLeads) {
  all.resize(4);
  EXPECT_LE(failures({0, 1}), 20);
  EXPECT_EQ(view.primary.instance, InstanceId{2});
  EXPECT_EQ(refusals, 0) << "others have room";
}

TEST_F(WithoutRoom, WhereNoCopyHasAnyAnotherIsTakenIn) {
  all.resize(5);
  EXPECT_LE(failures({0, 1, 2}), 30);
  EXPECT_GE(static_cast<std::uint32_t>(view.primary.instance), 3u);
  EXPECT_EQ(refusals, 0) << "others have room";
}

TEST_F(WithoutRoom, WhoHasLittleLeadsWhereNobodyHasMore) {
  full = {1, 2};  // so they say
  EXPECT_LE(failures({0}), 20);
  EXPECT_EQ(view.primary.instance, InstanceId{1});
}

TEST_F(WithoutRoom, WhatNobodyHasRoomForIsRefused) {
  EXPECT_EQ(failures({0, 1, 2}), 100);
  EXPECT_GT(refusals, 10);
  const auto read = ask(static_cast<std::uint32_t>(view.primary.instance), Operation::lookup("k0"));
  run(100ms);
  EXPECT_TRUE(answered(static_cast<std::uint32_t>(view.primary.instance), read));
}

TEST_F(TrioTest, AReadWaitsForTheChangeItSaw) {
  cut = {1};
  granting = false;
  ask(0, Operation::insert("k", "v"), 1);
  const auto seen = ask(0, Operation::lookup("k")), other = ask(0, Operation::lookup("other"));
  run(20ms);
  EXPECT_FALSE(answered(0, seen));
  EXPECT_EQ(answer(0, other).code, Code::not_found);  // under the lease
  run(500ms);
  const auto late = ask(0, Operation::lookup("other"));
  run(20ms);
  EXPECT_FALSE(answered(0, late));  // the lease is over
  granting = true;
  run(200ms);  // the silent one is dropped, the learner takes its place
  EXPECT_EQ(answer(0, seen).value, "v");
  EXPECT_EQ(answer(0, late).code, Code::not_found);
}

TEST_F(TrioTest, AnotherEpochIsSentAway) {
  EXPECT_TRUE(sent_away(0, ask(0, Operation::insert("k", "v"), 1, Epoch{7})));
  EXPECT_TRUE(sent_away(1, ask(1, Operation::insert("k", "v"), 1)));
  EXPECT_EQ(all[0].core->replicated_store().end(PartitionId{0}).sequence, 0u);
}

TEST_F(TrioTest, ARetryAfterFailoverIsAnsweredNotExecuted) {
  const auto first = ask(0, Operation::append("k", "x"), 1);
  const auto batch = ask(0, Operation::batch({Operation::append("k", "y"), Operation::lookup("k")}), 2);
  run(50ms);
  EXPECT_EQ(answer(0, first).size, 1u);
  EXPECT_EQ(answer(0, batch).outcomes[1].value, "xy");
  kill(0);
  run(1s);
  EXPECT_EQ(view.primary.instance, InstanceId{1});
  const auto again = ask(1, Operation::append("k", "x"), 1);
  const auto batch_again = ask(1, Operation::batch({Operation::append("k", "y"), Operation::lookup("k")}), 2);
  const auto fresh = ask(1, Operation::append("k", "z"), 3);
  run(200ms);
  EXPECT_EQ(answer(1, again).version, 1u);
  EXPECT_EQ(answer(1, batch_again).outcomes[1].value, "xy");
  EXPECT_EQ(answer(1, fresh).size, 3u);
}

TEST_F(TrioTest, WhatADeposedPrimaryNeverCommittedIsTakenBackWithItsAnswer) {
  const auto kept = ask(0, Operation::append("k", "a"), 1);
  run(50ms);
  EXPECT_TRUE(answered(0, kept));
  cut = {0};
  const auto lost = ask(0, Operation::append("k", "lost"), 2);
  const auto lost_too = ask(0, Operation::insert("new", "lost"), 3);
  run(1s);
  ASSERT_EQ(view.primary.instance, InstanceId{1});
  EXPECT_FALSE(answered(0, lost));
  const auto after = ask(1, Operation::append("k", "b"), 4);
  run(200ms);
  EXPECT_EQ(answer(1, after).size, 2u);
  cut.clear();
  run(2s);
  EXPECT_TRUE(sent_away(0, lost));
  EXPECT_TRUE(sent_away(0, lost_too));
  EXPECT_GT(all[0].core->replicated_store().rewinds(), 0u);
  for (const One& one : all) {
    const auto value = one.core->replicated_store().tables().lookup(novoht::TableId{0}, "k");
    ASSERT_TRUE(value);
    EXPECT_EQ(*value->contiguous() == "ab" || value->fragment_count() == 2, true);
    EXPECT_EQ(value->version(), 2u);
    EXPECT_FALSE(one.core->replicated_store().tables().lookup(novoht::TableId{0}, "new"));
  }
  const auto retried = ask(1, Operation::append("k", "lost"), 2);  // so it is executed now, once
  run(100ms);
  EXPECT_EQ(answer(1, retried).size, 6u);
}

TEST_F(TrioTest, WhileASynchronousCopyIsMissingForLongChangesAreToldSo) {
  kill(1);
  kill(2);
  run(500ms);
  ASSERT_EQ(view.sync.size(), 1u);
  const auto early = ask(0, Operation::append("k", "a"), 1);
  run(300ms);
  EXPECT_FALSE(answered(0, early)) << "another copy may be there in a moment";
  run(1s);
  EXPECT_TRUE(sent_away(0, early)) << "it may yet be committed";
  const auto late = ask(0, Operation::append("k", "b"), 2);
  run(20ms);
  EXPECT_EQ(answer(0, late).code, Code::unavailable);
  EXPECT_EQ(answer(0, late).message, "partition 0 has 1 of 2 synchronous copies, and changes wait for another; node 1 was the last to lose one");
  const auto again = ask(0, Operation::append("k", "a"), 1);
  run(20ms);
  ASSERT_TRUE(sent_away(0, again));
  EXPECT_TRUE(all[0].replies.at(again).key.starts_with("partition 0 has 1 of 2"));
  const auto elsewhere = ask(0, Operation::lookup("never written"));
  run(20ms);
  EXPECT_EQ(answer(0, elsewhere).code, Code::not_found) << "what nothing uncommitted touched is read";
  open(1);
  run(1s);
  EXPECT_EQ(view.sync.size(), 2u);
  const auto done = ask(0, Operation::append("k", "a"), 1);
  const auto anew = ask(0, Operation::append("k", "b"), 2);
  run(100ms);
  EXPECT_EQ(answer(0, done).size, 1u) << "once";
  EXPECT_EQ(answer(0, anew).size, 2u);
}

TEST_F(TrioTest, WhenAllSynchronousCopiesAreLostTheLearnerIsToldToLeadWithWhatItHas) {
  ask(0, Operation::append("k", "a"), 1);
  run(100ms);
  blocked = {{0, 2}};
  const auto lost = ask(0, Operation::append("k", "b"), 2);
  run(50ms);
  EXPECT_EQ(answer(0, lost).size, 2u);
  const auto report = all[2].core->replicator().report(PartitionId{0});
  EXPECT_TRUE(report.follows && report.was_in_step);
  EXPECT_EQ(report.end.sequence, 1u);
  const auto told = [&](std::size_t i, Epoch epoch, Version end) {
    return all[i].core->take_over(PartitionId{0}, epoch, {Epoch{1}, end}).has_value();
  };
  EXPECT_FALSE(told(1, view.epoch, 2)) << "a synchronous one may lead anyway";
  EXPECT_FALSE(told(2, view.epoch, 2)) << "it has not changed since it was looked at";
  EXPECT_FALSE(told(2, next_epoch(), 1));
  kill(0);
  kill(1);
  blocked.clear();
  const Epoch before = view.epoch;
  run(2s);
  ASSERT_EQ(view.epoch, before) << "nobody leads by itself";
  EXPECT_TRUE(sent_away(2, ask(2, Operation::lookup("k"))));

  ASSERT_TRUE(told(2, view.epoch, 1));
  run(500ms);
  ASSERT_EQ(view.primary.instance, InstanceId{2});
  const auto again = ask(2, Operation::append("k", "a"), 1);  // what it knows to be done is not done twice
  const auto anew = ask(2, Operation::append("k", "c"), 3);
  run(100ms);
  EXPECT_EQ(answer(2, again).version, 1u);
  EXPECT_EQ(answer(2, anew).size, 2u);

  // Those that were given up come back with more than is left: they are given what there is now.
  open(0);
  open(1);
  EXPECT_TRUE(sent_away(0, ask(0, Operation::lookup("k"), 0, before)));
  run(4s);
  EXPECT_EQ(view.primary.instance, InstanceId{2});
  EXPECT_EQ(view.sync.size(), 2u);
  for (const One& one : all) {
    const auto value = one.core->replicated_store().tables().lookup(novoht::TableId{0}, "k");
    std::string bytes;
    ASSERT_TRUE(value && value->read(0, value->size(), bytes));
    EXPECT_EQ(bytes, "ac");
    EXPECT_EQ(one.core->replicated_store().end(PartitionId{0}).sequence, 2u);
  }
}

// A client whose primary is gone registers again with the last version it saw. Whether the change came before its first primary
// died, before it asked again or after that, it is told of it.
TEST_F(TrioTest, AWaiterWhosePrimaryDiesIsWokenByTheNextOne) {
  for (const std::string key : {"before", "between", "after"}) ask(0, Operation::insert(key, "old"), next);
  run(50ms);
  const Version seen = all[0].core->replicated_store().end(PartitionId{0}).sequence;
  std::map<std::string, std::uint64_t> waiters;
  for (const std::string key : {"before", "between", "after"})
    waiters[key] = ask(0, Operation::callback(key, Condition::after_version(seen)), 0, {}, 60'000);
  blocked = {{1, 0}};  // the last acknowledgement never comes: neither the change nor the news of it is answered
  ask(0, Operation::insert("before", "new"), 100);
  run(20ms);
  for (const auto& [key, waiter] : waiters) EXPECT_FALSE(answered(0, waiter)) << key;
  kill(0);
  blocked.clear();
  run(1s);
  ASSERT_EQ(view.primary.instance, InstanceId{1});
  ask(1, Operation::insert("between", "new"), 101);
  run(50ms);
  for (auto& [key, waiter] : waiters) waiter = ask(1, Operation::callback(key, Condition::after_version(seen)), 0, {}, 60'000);
  run(50ms);
  EXPECT_EQ(answer(1, waiters["before"]).value, "new");
  EXPECT_EQ(answer(1, waiters["between"]).value, "new");
  EXPECT_FALSE(answered(1, waiters["after"]));
  ask(1, Operation::insert("after", "new"), 102);
  run(50ms);
  EXPECT_EQ(answer(1, waiters["after"]).value, "new");
}

TEST_F(TrioTest, AWatcherHearsOfWhatIsCommittedAndIsSentAwayWithItsPrimary) {
  const auto one = ask(0, Operation::callback("k", Condition::present()), 0, {}, 60'000);
  const auto other = ask(0, Operation::callback("other", Condition::present()), 0, {}, 60'000);
  run(50ms);
  EXPECT_FALSE(answered(0, one));
  ask(0, Operation::insert("k", "v"), 1);
  EXPECT_FALSE(answered(0, one));
  run(50ms);
  EXPECT_EQ(answer(0, one).value, "v");
  cut = {0};
  ask(0, Operation::insert("other", "never committed"), 2);
  run(1s);
  EXPECT_FALSE(answered(0, other));
  cut.clear();
  run(500ms);
  EXPECT_TRUE(sent_away(0, other));
}

// The clocks of the three differ by hours: what counts is the primary's, and what its log says.
TEST_F(TrioTest, TimesToLiveEndThroughTheLog) {
  all[1].clock = 5h;
  const auto put = ask(0, Operation::insert("k", "v", 1000ms), 1);
  run(50ms);
  EXPECT_TRUE(answered(0, put));
  const auto append = ask(0, Operation::append("k", "w"), 2);  // on the follower too it is still there
  run(50ms);
  EXPECT_EQ(answer(0, append).fragment_count, 2u);
  EXPECT_EQ(all[1].core->replicated_store().tables().lookup(novoht::TableId{0}, "k")->fragment_count(), 2u);
  clock.advance(1s);
  const auto gone = ask(0, Operation::lookup("k"));
  run(100ms);
  EXPECT_EQ(answer(0, gone).code, Code::not_found);
  EXPECT_FALSE(all[1].core->replicated_store().tables().lookup(novoht::TableId{0}, "k"));
}

// A lock that is held for some seconds is held for about as long, whatever clocks do and whoever leads.
TEST_F(TrioTest, TimesToLiveDoNotJumpWithAClockOrAPrimary) {
  for (const base::Duration wrong : {5h, -5h}) {
    all = std::deque<One>(3);
    me++;
    all[1].clock = all[2].clock = wrong;
    begin();
    const auto put = ask(0, Operation::insert("k", "v", 4s), 1);
    run(50ms);
    ASSERT_TRUE(answer(0, put).ok());
    all[0].clock = -wrong / 2;
    run(1s);
    EXPECT_TRUE(look(0).ok());
    kill(0);
    run(1s);
    const auto leads = static_cast<std::size_t>(view.primary.instance);
    ASSERT_NE(leads, 0u);
    EXPECT_TRUE(look(leads).ok());
    run(3s);
    EXPECT_EQ(look(leads).code, Code::not_found);
  }
}

TEST_F(TrioTest, AnyMemberMayAnswerWhatMayBeOld) {
  ask(0, Operation::insert("k", "v"), 1);
  run(200ms);
  const auto here = ask(1, Operation::lookup_eventual("k")), there = ask(2, Operation::lookup_eventual("k", 1));
  EXPECT_EQ(answer(1, here).value, "v");
  EXPECT_EQ(answer(2, there).value, "v");
  EXPECT_TRUE(sent_away(1, ask(1, Operation::lookup("k"))));
  EXPECT_TRUE(sent_away(2, ask(2, Operation::lookup("k"))));
  EXPECT_TRUE(sent_away(2, ask(2, Operation::lookup_eventual("k", 2))));  // it does not know of a second change
  EXPECT_EQ(answer(2, ask(2, Operation::lookup_eventual(""))).code, Code::invalid);
  cut = {1};
  granting = false;
  ask(0, Operation::insert("k", "uncommitted"), 2);
  run(100ms);
  EXPECT_TRUE(sent_away(2, ask(2, Operation::lookup_eventual("k"))));  // it has more than is committed
}

TEST_F(TrioTest, WhoHasNoPartInAPartitionForgetsIt) {
  ask(0, Operation::insert("k", "v"), 1);
  run(200ms);
  ASSERT_EQ(all[2].core->replicated_store().end(PartitionId{0}).sequence, 1u);
  granting = false;
  view.epoch = next_epoch();
  view.learners.clear();
  run(2s);
  EXPECT_EQ(all[2].core->replicated_store().end(PartitionId{0}).sequence, 0u);
  EXPECT_EQ(all[2].core->replicated_store().origin(PartitionId{0}).since, 1u);
  EXPECT_EQ(all[1].core->replicated_store().end(PartitionId{0}).sequence, 1u);
  granting = true;
  run(3s);  // and is given it again when it is needed
  EXPECT_EQ(all[2].core->replicated_store().end(PartitionId{0}).sequence, 1u);
}

TEST_F(TrioTest, ADamagedLogIsPutAsideAndHealedByAPeer) {
  for (std::uint64_t i = 1; i <= 40; i++) ask(0, Operation::append("k", std::string(500, 'x')), i);
  run(200ms);
  kill(1);
  for (const std::string& path : all[1].disk.paths()) {
    if (!path.starts_with("store/log-")) continue;
    std::string bytes = all[1].disk.contents(path);
    bytes[4000] = static_cast<char>(bytes[4000] ^ 1);
    all[1].disk.put(path, bytes);
    break;
  }
  open(1);
  // The bad record was synced long ago, or good ones follow it: either way it is not taken for a torn tail.
  EXPECT_TRUE(all[1].core->opened().damaged || all[1].core->opened().torn);
  run(4s);
  EXPECT_EQ(all[1].core->replicated_store().end(PartitionId{0}).sequence, 40u);
  EXPECT_EQ(all[1].core->replicated_store().tables().lookup(novoht::TableId{0}, "k")->fragment_count(), 40u);
  EXPECT_TRUE(replication::contains(view.sync, all[1].core->self()) || replication::contains(view.learners, all[1].core->self()));
}

// --- what a restart may vouch for ---

struct Restart : testing::Test {
  base::MemoryFiles disk;
  std::uint64_t incarnation = 1;
  std::unique_ptr<ReplicatedStore> store;
  ReplicatedStore::Options options;
  base::Random random{1};

  void open(std::string boot, bool always = false) {
    options.clustered = true;
    options.incarnation = incarnation;
    options.boot = std::move(boot);
    options.synced_before_shown = always;
    auto opened = ReplicatedStore::open(disk, "store", options);
    ASSERT_TRUE(opened) << opened.error().message;
    store = std::move(*opened);
  }
  void append(Bytes key) {
    const novoht::Change change = novoht::Change::insert(key, "v");
    const auto end = store->end(PartitionId{3});
    ASSERT_TRUE(store->apply(PartitionId{3}, {{Epoch{1}, end.sequence + 1}, encode_entry({&change, 1}, {})}));
    ASSERT_TRUE(store->tables().flush());
  }
  void end(bool power) {
    store.reset();
    if (power) disk.crash(random);
    else disk.kill();
    incarnation++;
  }
  std::uint64_t sure() { return store->origin(PartitionId{3}).sure; }
};

TEST_F(Restart, TheSameBootHasAllThatWasWritten) {
  open("one");
  EXPECT_EQ(sure(), 1u);
  append("k");
  end(false);
  open("one");
  EXPECT_EQ(store->end(PartitionId{3}).sequence, 1u);
  EXPECT_EQ(sure(), 1u);
}

TEST_F(Restart, AnotherBootMayHaveLostWhatWasNotSynced) {
  open("one");
  append("k");
  end(true);
  open("two");
  EXPECT_EQ(sure(), 2u);
  EXPECT_EQ(store->origin(PartitionId{3}).since, 1u);
  end(false);
  open("two");
  EXPECT_EQ(sure(), 2u);  // that does not pass
}

TEST_F(Restart, WhereEverythingWasSyncedBeforeItWasShownAnotherBootIsSure) {
  open("one", true);
  append("k");
  end(true);
  open("two", false);
  EXPECT_EQ(sure(), 1u);
  end(true);
  open("three", false);
  EXPECT_EQ(sure(), 3u);  // the second life promised less
}

TEST_F(Restart, WhoEndedWellIsSure) {
  open("one");
  append("k");
  ASSERT_TRUE(store->close());
  end(true);
  open("two");
  EXPECT_EQ(sure(), 1u);
  EXPECT_EQ(store->end(PartitionId{3}).sequence, 1u);
}

TEST_F(Restart, AnUnknownBootIsAnother) {
  open("");
  append("k");
  end(false);
  open("");
  EXPECT_EQ(sure(), 2u);
}

// What lies beyond the last good record may have been one that was acknowledged, and rotted since.
TEST_F(Restart, ALogThatEndsInABadRecordIsNotSure) {
  open("one", true);
  append("k");
  end(false);
  for (const std::string& path : disk.paths()) {
    if (!path.starts_with("store/log-")) continue;
    std::string bytes = disk.contents(path);
    const std::size_t last = bytes.find_last_not_of('\0');
    if (last < 64 || last + 100 > bytes.size()) continue;
    bytes[(last + 16) / 8 * 8 + 3] = 'x';
    disk.put(path, bytes);
  }
  open("one", true);
  EXPECT_TRUE(store->opened().torn);
  EXPECT_EQ(store->end(PartitionId{3}).sequence, 1u);
  EXPECT_EQ(sure(), 2u);
}

// The bad record is cut off while the store opens, and that is all that told of it.
TEST_F(Restart, WhoEndsInTheMiddleOfOpeningABadLogIsNotSureTheNextTime) {
  open("one", true);
  append("k");
  end(false);
  std::map<std::string, std::string> before;
  for (const std::string& path : disk.paths()) {
    std::string bytes = disk.contents(path);
    const std::size_t last = bytes.find_last_not_of('\0');
    if (path.starts_with("store/log-") && last != std::string::npos && last > 64) bytes[last] = static_cast<char>(bytes[last] ^ 1);
    before[path] = std::move(bytes);
  }
  std::uint64_t operations = 0;
  for (std::uint64_t stop = 0; stop <= operations; stop++) {  // the first time through, to count them
    for (bool power : {false, true}) {
      base::MemoryFiles again;
      for (const auto& [path, bytes] : before) again.put(path, bytes);
      options.incarnation = 2;
      if (stop > 0) again.stop_at(again.operations() + stop);
      auto opened = ReplicatedStore::open(again, "store", options);
      if (stop == 0) {
        ASSERT_TRUE(opened && (*opened)->opened().torn);
        operations = again.operations();
      }
      if (opened) opened->reset();
      if (power) again.crash(random);
      else again.kill();
      options.incarnation = 3;
      auto next = ReplicatedStore::open(again, "store", options);
      ASSERT_TRUE(next) << next.error().message;
      EXPECT_GE((*next)->origin(PartitionId{3}).sure, 2u) << "stopped at operation " << stop << (power ? " by power" : "");
      EXPECT_FALSE(*again.exists("store/UNSURE"));
    }
  }
  EXPECT_GT(operations, 5u);
}

TEST_F(Restart, AFailedSyncMakesTheNextLifeUnsure) {
  for (const bool always : {false, true}) {
    disk.crash(random);
    disk = base::MemoryFiles();
    incarnation = 1;
    open("one", always);
    append("k");
    store->distrust();
    end(false);
    open("one", always);
    EXPECT_EQ(sure(), always ? 1u : 2u);
    end(false);
    open("one", always);
    EXPECT_EQ(sure(), always ? 1u : 2u);
    end(false);
  }
}

TEST_F(Restart, HalfASnapshotIsNothing) {
  open("one");
  append("k");
  auto source = std::move(*store->export_snapshot(PartitionId{3}));
  const auto piece = source->read(0);
  ASSERT_TRUE(piece && piece->last);
  EXPECT_EQ(source->read(0)->bytes, piece->bytes);  // it can be said again
  ASSERT_TRUE(source->at());
  source.reset();
  ASSERT_TRUE(store->begin_import(PartitionId{3}, 1));
  ASSERT_TRUE(store->import(PartitionId{3}, Bytes(piece->bytes).substr(0, 30)));
  ASSERT_TRUE(store->tables().flush());
  end(false);
  open("one");
  EXPECT_EQ(store->end(PartitionId{3}).sequence, 0u);
  EXPECT_EQ(store->origin(PartitionId{3}).since, 2u);  // its first life's promises are not its own
  ASSERT_TRUE(store->begin_import(PartitionId{3}, 2));
  ASSERT_TRUE(store->import(PartitionId{3}, piece->bytes));
  ASSERT_TRUE(store->end_import(PartitionId{3}, {Epoch{1}, 1}).value());
  ASSERT_TRUE(store->tables().flush());
  end(false);
  open("one");
  EXPECT_EQ(store->end(PartitionId{3}).sequence, 1u);
  EXPECT_EQ(store->origin(PartitionId{3}).since, 2u);
  EXPECT_TRUE(store->tables().lookup(novoht::TableId{3}, "k"));
}

// Found by the simulator: a learner became the only sync member, and its whole copy went with the power.
TEST_F(Restart, ASnapshotThatWasTakenInSurvivesALossOfPowerWhateverTheDurability) {
  open("one");
  append("k");
  auto source = std::move(*store->export_snapshot(PartitionId{3}));
  const auto piece = source->read(0);
  ASSERT_TRUE(piece && piece->last);
  source.reset();
  ASSERT_TRUE(store->begin_import(PartitionId{3}, 1));
  ASSERT_TRUE(store->import(PartitionId{3}, piece->bytes));
  ASSERT_TRUE(store->end_import(PartitionId{3}, {Epoch{1}, 1}).value());
  append("later");
  ASSERT_TRUE(store->make_durable());
  append("last");
  end(true);
  open("another");
  EXPECT_TRUE(store->tables().lookup(novoht::TableId{3}, "k"));
  EXPECT_TRUE(store->tables().lookup(novoht::TableId{3}, "later"));
  EXPECT_EQ(store->origin(PartitionId{3}).since, 1u);
  EXPECT_EQ(sure(), 2u);
}

TEST_F(Restart, TheViewThatTookItInIsKnownAgain) {
  open("one");
  const auto joined = [&](std::uint32_t p) { return replication::number(store->origin(PartitionId{p}).joined); };
  EXPECT_EQ(joined(3), 0u);
  ASSERT_TRUE(store->note_joined(PartitionId{3}, Epoch{7}));
  ASSERT_TRUE(store->note_joined(PartitionId{4}, Epoch{2}));
  append("k");
  end(false);
  open("one");
  EXPECT_EQ(joined(3), 7u);
  EXPECT_EQ(joined(4), 2u);
  EXPECT_EQ(joined(5), 0u);
  ASSERT_TRUE(store->begin_import(PartitionId{3}, 2));
  end(false);
  open("one");
  EXPECT_EQ(store->end(PartitionId{3}).sequence, 0u);
  EXPECT_EQ(joined(3), 7u);
}

// Damage is put aside in steps; whoever dies in between leaves something that the next life goes on with, and in the end
// there is an empty store that vouches for nothing older.
TEST_F(Restart, DyingWhileADamagedStoreIsPutAsideLeavesNoHalfStore) {
  const auto prepare = [&] {
    store.reset();
    disk.kill();
    for (const std::string& path : disk.paths()) (void)disk.remove(path);
    disk.kill();
    incarnation = 1;
    open("one", true);
    for (int i = 0; i < 50; i++) append("key" + std::to_string(i));
    ASSERT_TRUE(store->tables().sync());
    for (int i = 0; i < 50; i++) append("key" + std::to_string(i));
    ASSERT_TRUE(store->tables().compact());
    end(false);
    for (const std::string& path : disk.paths()) {
      if (!path.starts_with("store/table-00000003")) continue;
      std::string bytes = disk.contents(path);
      bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 4);
      disk.put(path, bytes);
    }
  };
  for (std::uint64_t step = 1;; step++) {
    prepare();
    disk.stop_at(disk.operations() + step);
    options.incarnation = incarnation;
    const bool done = ReplicatedStore::open(disk, "store", options).has_value();
    disk.crash(random);
    incarnation++;
    open("two", true);
    if (HasFatalFailure()) FAIL() << "step " << step;
    ASSERT_EQ(store->end(PartitionId{3}).sequence, 0u) << "step " << step;
    ASSERT_GE(store->origin(PartitionId{3}).since, 2u) << "step " << step;
    if (done) {
      EXPECT_GT(step, 5u);
      return;
    }
  }
}

TEST(EntryTest, IsReadBackAndGarbledOnesAreRefused) {
  const std::array<novoht::Change, 3> changes{novoht::Change::insert("k", "v", base::from_millis(5)), novoht::Change::append("a", ""),
                                              novoht::Change::remove("r")};
  const std::string bytes = encode_entry(changes, "note");
  const auto back = decode_entry(bytes);
  ASSERT_TRUE(back);
  ASSERT_EQ(back->changes.size(), 3u);
  EXPECT_EQ(back->changes[0].expires, base::from_millis(5));
  EXPECT_EQ(back->changes[1].kind, novoht::Change::Kind::append);
  EXPECT_EQ(back->note, "note");
  for (std::size_t size = 0; size < bytes.size(); size++) EXPECT_FALSE(decode_entry(Bytes(bytes).substr(0, size)));
  EXPECT_FALSE(decode_entry(bytes + "x"));
}

}  // namespace
}  // namespace zht::core

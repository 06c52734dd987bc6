// The parts of replication one by one; tests/sim has them together.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>

#include "novoht/base/memory_files.h"
#include "novoht/core/format.h"
#include "zht/core/replication/balancer.h"
#include "zht/core/replication/channel.h"
#include "zht/core/replication/keeper.h"
#include "zht/core/replication/manager.h"
#include "zht/core/replication/recovery.h"

namespace zht::replication {
namespace {

using Kind = Change::Kind;

Member member(std::uint32_t instance, std::uint64_t incarnation = 1) { return {InstanceId{instance}, incarnation}; }

View view_of(std::uint64_t epoch, Members sync, Members learners = {}) { return {Epoch{epoch}, sync.front(), sync, learners}; }

std::optional<View> apply(const View& view, Kind kind, Member who, Member target, Members group = {}) {
  return next_view(view, {kind, view.epoch, who, target, std::move(group)});
}

// --- views ---

TEST(View, ChangesForAnotherEpochDoNotApply) {
  const View view = view_of(5, {member(0), member(1)});
  EXPECT_TRUE(next_view(view, {Kind::promote, Epoch{5}, member(1), member(1), {}}));
  EXPECT_FALSE(next_view(view, {Kind::promote, Epoch{4}, member(1), member(1), {}}));
  EXPECT_FALSE(next_view(view, {Kind::promote, Epoch{6}, member(1), member(1), {}}));
  EXPECT_FALSE(next_view(View{}, {Kind::exited, Epoch{0}, member(1), member(1), {}}));
}

TEST(View, OnlyASyncMemberIsPromoted) {
  const View view = view_of(1, {member(0), member(1)}, {member(2)});
  EXPECT_EQ(to_string(*apply(view, Kind::promote, member(1), member(1))), "2: 1.1* | 2.1");
  EXPECT_FALSE(apply(view, Kind::promote, member(2), member(2)));     // a learner
  EXPECT_FALSE(apply(view, Kind::promote, member(0), member(0)));     // the primary itself
  EXPECT_FALSE(apply(view, Kind::promote, member(1, 2), member(1)));  // a later life of a sync member
}

TEST(View, ThePrimaryAloneTakesInAndDrops) {
  const View view = view_of(1, {member(0), member(1)}, {member(2)});
  EXPECT_EQ(to_string(*apply(view, Kind::add_learner, member(0), member(3))), "2: 0.1* 1.1 | 2.1 3.1");
  EXPECT_FALSE(apply(view, Kind::add_learner, member(1), member(3)));
  EXPECT_FALSE(apply(view, Kind::add_learner, member(0), member(2, 7)));  // an instance is in a view once
  EXPECT_EQ(to_string(*apply(view, Kind::remove, member(0), member(1))), "2: 0.1* | 2.1");
  EXPECT_FALSE(apply(view, Kind::remove, member(0), member(0)));
  EXPECT_FALSE(apply(view, Kind::remove, member(0), member(9)));
  EXPECT_EQ(to_string(*apply(view, Kind::promote_learner, member(0), member(2))), "2: 0.1* 1.1 2.1");
  EXPECT_FALSE(apply(view, Kind::promote_learner, member(0), member(1)));
  EXPECT_EQ(to_string(*apply(view, Kind::transfer, member(0), member(1))), "2: 0.1 1.1* | 2.1");
  EXPECT_FALSE(apply(view, Kind::transfer, member(0), member(2)));
}

TEST(View, NeedsAsManyInSyncAsItOnceHad) {
  View view = view_of(1, {member(0)}, {member(1), member(2)});
  view = *next_view(view, {Change::Kind::promote_learner, Epoch{1}, member(0), member(1), {}, 2});
  EXPECT_EQ(view.need, 2u);
  view = *next_view(view, {Change::Kind::promote_learner, Epoch{2}, member(0), member(2), {}, 2});
  EXPECT_EQ(view.need, 2u);  // not more than are wanted
  view = *next_view(view, {Change::Kind::remove, Epoch{3}, member(0), member(1)});
  view = *next_view(view, {Change::Kind::remove, Epoch{4}, member(0), member(2)});
  EXPECT_EQ(view.need, 2u) << "a failure makes nobody content with less";
  view.learners = {member(1)};
  EXPECT_EQ(next_view(view, {Change::Kind::remove, Epoch{5}, member(0), member(1), {}, 1})->need, 1u) << "a planned end does";
}

TEST(View, ARestartedMemberTakesItsOldPlace) {
  const View view = view_of(1, {member(0), member(1)}, {member(2)});
  EXPECT_EQ(to_string(*apply(view, Kind::rejoin, member(0, 3), member(0, 3))), "2: 0.3* 1.1 | 2.1");
  EXPECT_EQ(to_string(*apply(view, Kind::rejoin, member(2, 2), member(2, 2))), "2: 0.1* 1.1 | 2.2");
  EXPECT_FALSE(apply(view, Kind::rejoin, member(0), member(0)));  // the same life
  EXPECT_FALSE(apply(view, Kind::rejoin, member(5, 2), member(5, 2)));
}

TEST(View, TheLastSyncMemberIsNeverCountedOut) {
  EXPECT_EQ(to_string(*apply(view_of(1, {member(0), member(1)}), Kind::exited, member(0), member(0))), "2: 1.1*");
  EXPECT_FALSE(apply(view_of(1, {member(0)}, {member(1)}), Kind::exited, member(0), member(0)));
}

TEST(View, RecoveryNeedsEverySyncMemberRestarted) {
  const View view = view_of(1, {member(0), member(1)}, {member(2)});
  EXPECT_EQ(to_string(*apply(view, Kind::recover, member(1, 2), member(1, 2), {member(0, 2), member(1, 2)})), "2: 1.2* | 2.1");
  EXPECT_FALSE(apply(view, Kind::recover, member(1, 2), member(1, 2), {member(1, 2)}));
  EXPECT_FALSE(apply(view, Kind::recover, member(1, 2), member(1, 2), {member(0, 1), member(1, 2)}));
  EXPECT_FALSE(apply(view, Kind::recover, member(2, 2), member(2, 2), {member(0, 2), member(1, 2)}));
}

TEST(View, WhenAllIsLostAnyOtherMayGoOnButNobodyWhoMayLeadAnyway) {
  View view = view_of(4, {member(0), member(1)}, {member(2), member(3)});
  view.need = 2;
  const auto made = apply(view, Kind::abandon, member(2), member(2));
  ASSERT_TRUE(made);
  EXPECT_EQ(to_string(*made), "5: 2.1* | 3.1");
  EXPECT_EQ(made->need, 1u) << "there is one, and it shall serve";
  EXPECT_EQ(to_string(*apply(view, Kind::abandon, member(2, 3), member(2, 3))), "5: 2.3* | 3.1");     // a learner, restarted
  EXPECT_EQ(to_string(*apply(view, Kind::abandon, member(1, 2), member(1, 2))), "5: 1.2* | 2.1 3.1"); // one that lost its place
  EXPECT_EQ(to_string(*apply(view, Kind::abandon, member(9), member(9))), "5: 9.1* | 2.1 3.1");       // one that had no part
  EXPECT_FALSE(apply(view, Kind::abandon, member(0), member(0)));
  EXPECT_FALSE(apply(view, Kind::abandon, member(1), member(1)));
  view.learners = {member(2, 5)};
  EXPECT_FALSE(apply(view, Kind::abandon, member(2, 4), member(2, 4))) << "an earlier life";
  EXPECT_FALSE(next_view(view, {Kind::abandon, Epoch{3}, member(7), member(7), {}}));
  // Whoever is out of it stays out until the new primary takes it in.
  EXPECT_FALSE(apply(*made, Kind::rejoin, member(0, 2), member(0, 2)));
  EXPECT_FALSE(apply(*made, Kind::promote, member(1), member(1)));
  EXPECT_FALSE(apply(*made, Kind::recover, member(1, 2), member(1, 2), {member(0, 2), member(1, 2)}));
}

// --- what is left of a partition ---

class Left : public testing::Test {
 protected:
  using Outlook = Prognosis::Outlook;
  // What an instance reports; `since`, `sure`: see ReplicaStore::Origin.
  CopyReport& reports(Member who, Version end, std::uint64_t since = 1, std::uint64_t sure = 1) {
    CopyReport& one = all.emplace_back();
    one.self = who;
    one.epoch = view.epoch;
    one.origin = {since, sure};
    one.end = {Epoch{1}, end};
    return one;
  }
  Prognosis look(std::set<std::uint32_t> gone = {}) {
    return prognosis(view, all, [gone](InstanceId one) { return gone.contains(static_cast<std::uint32_t>(one)); });
  }
  View view = view_of(4, {member(0), member(1)}, {member(2)});
  std::vector<CopyReport> all;
};

TEST_F(Left, WhoLeadsServes) {
  reports(member(0), 9);
  EXPECT_EQ(look({1}).outlook, Outlook::served);
}

TEST_F(Left, ASynchronousMemberThatAnswersWillLead) {
  reports(member(1), 9);
  EXPECT_EQ(look({0}).outlook, Outlook::returns);
  all.clear();
  reports(member(1, 2), 9);  // restarted, with all it had
  EXPECT_EQ(look({0}).outlook, Outlook::returns);
}

TEST_F(Left, NothingIsGivenUpWhileASynchronousMemberMayComeBack) {
  reports(member(2), 7);
  EXPECT_EQ(look().outlook, Outlook::waits);
  EXPECT_EQ(look().awaited, (Members{member(0), member(1)}));
  EXPECT_EQ(look({1}).outlook, Outlook::waits);
  EXPECT_EQ(look({1}).awaited, Members{member(0)});
  EXPECT_EQ(look({0, 1}).outlook, Outlook::lost);
}

TEST_F(Left, WhoMayLackItsEndWaitsForTheOthersAndRecoversWithThem) {
  reports(member(1, 2), 9, 1, 2);
  EXPECT_EQ(look().outlook, Outlook::waits);
  EXPECT_EQ(look().back, Members{member(1)});
  EXPECT_EQ(look({0}).outlook, Outlook::lost);
  EXPECT_EQ(look({0}).best, 0u) << "and is the best there is when nobody else comes";
  reports(member(0, 2), 8, 1, 2);
  EXPECT_EQ(look().outlook, Outlook::returns) << "all have restarted: together";
}

TEST_F(Left, EmptyDisksBringNothingBack) {
  reports(member(0, 2), 0, 2, 2);
  reports(member(1, 2), 0, 2, 2);
  reports(member(2), 7);
  const Prognosis is = look();
  EXPECT_EQ(is.outlook, Outlook::lost);
  EXPECT_EQ(is.emptied, (Members{member(0), member(1)}));
  EXPECT_EQ(is.best, 2u);
}

TEST_F(Left, TheLongestWholeLogIsTheBestAndWhatWasHeardIsCounted) {
  reports(member(2), 7).known_end = 12;
  reports(member(3), 9).whole = false;
  CopyReport& older = reports(member(4), 30);
  older.end.epoch = Epoch{0};
  reports(member(5), 8).known_commit = 11;
  const Prognosis is = look({0, 1});
  EXPECT_EQ(is.best, 3u);
  EXPECT_EQ(is.known_end, 30u);
  EXPECT_EQ(is.known_commit, 11u);
  all.clear();
  EXPECT_FALSE(look({0, 1}).best);
}

TEST(View, SurvivesItsEncodingAndNothingElseDecodes) {
  const View view = view_of(7, {member(3, 9), member(1)}, {member(2, 1'000'000'000'000)});
  std::string bytes;
  encode(bytes, view);
  base::Reader whole(bytes);
  EXPECT_EQ(decode_view(whole), view);
  EXPECT_TRUE(whole.done());
  for (std::size_t size = 0; size < bytes.size(); size++) {
    base::Reader part(base::Bytes(bytes).substr(0, size));
    (void)decode_view(part);
    EXPECT_FALSE(part.done()) << size;
  }
}

// --- keepers ---

class Keepers : public testing::Test {
 protected:
  static constexpr std::uint32_t kPartitions = 300;

  Keepers() {
    for (std::uint64_t i = 0; i < 3; i++) open(i);
  }

  void open(std::uint64_t i) {
    Box& box = boxes_[i];
    box.keeper.reset();
    box.saved.reset();
    box.store.reset();
    box.disk.kill();
    novoht::Options options;
    options.segment_size = 1 << 16;
    box.store = *novoht::Store::open(box.disk, "keeper", options);
    box.saved = std::make_unique<StoredRegisters>(*box.store, novoht::TableId{0});
    std::vector<Register> registers(kPartitions, Register{view_of(1, {member(0), member(1)}, {member(2)}), {}, {}, {}});
    ASSERT_TRUE(box.saved->load(registers));
    box.keeper = std::make_unique<Keeper>(KeeperOptions{NodeId{i}, {NodeId{0}, NodeId{1}, NodeId{2}}}, registers, *box.saved, i);
  }

  // Delivers what keepers say until they fall silent; `cut` ones hear and say nothing.
  void settle(std::vector<std::uint64_t> cut = {}) {
    const auto is_cut = [&](NodeId node) { return std::find(cut.begin(), cut.end(), static_cast<std::uint64_t>(node)) != cut.end(); };
    for (int i = 0; i < 200; i++) {
      now_ += std::chrono::milliseconds(10);
      for (; !under_way_.empty() && under_way_.front().at <= now_; under_way_.pop_front()) {
        const UnderWay& one = under_way_.front();
        const auto to = boxes_.find(static_cast<std::uint64_t>(one.send.to));
        if (!is_cut(one.send.to) && to != boxes_.end()) to->second.keeper->on(one.from, one.send.messages, now_);
      }
      for (auto& [number, box] : boxes_) {
        if (is_cut(NodeId{number})) continue;
        box.keeper->tick(now_);
        auto sends = box.keeper->end_round(now_);
        ASSERT_TRUE(sends);
        for (const KeeperSend& send : *sends) {
          messages_++;
          under_way_.push_back({now_ + delay_, NodeId{number}, send});
        }
      }
    }
  }

  void wish(std::uint64_t keeper, std::uint32_t partition, const Change& change) {
    KeeperMessage message;
    message.kind = KeeperMessage::Kind::change;
    message.partition = PartitionId{partition};
    message.change = change;
    boxes_[keeper].keeper->on(NodeId{9}, std::array{message}, now_);
  }
  std::string view(std::uint64_t keeper, std::uint32_t partition) { return to_string(boxes_[keeper].keeper->view(PartitionId{partition})); }

  struct Box {
    base::MemoryFiles disk;
    std::unique_ptr<novoht::Store> store;
    std::unique_ptr<StoredRegisters> saved;
    std::unique_ptr<Keeper> keeper;
  };
  std::map<std::uint64_t, Box> boxes_;
  struct UnderWay {
    base::Time at;
    NodeId from;
    KeeperSend send;
  };
  std::deque<UnderWay> under_way_;
  base::Duration delay_{};
  base::Time now_{std::chrono::hours(1)};
  int messages_ = 0;
};

// A keeper that lacks its last promise must not open its registers as if it had made none.
TEST_F(Keepers, APromiseThatRotsIsMissed) {
  wish(0, 4, {Kind::promote, Epoch{1}, member(1), member(1), {}});
  settle();
  Box& box = boxes_[1];
  box.keeper.reset();
  box.saved.reset();
  box.disk.kill();
  box.store.reset();
  const std::string path = "keeper/" + novoht::core::segment_name(1);
  const std::string good = box.disk.contents(path);
  novoht::core::SegmentHeader header;
  ASSERT_TRUE(novoht::core::parse_segment_header(good, path, header));
  std::uint64_t begin = 0, end = 0;  // of the last record with a register
  const std::uint64_t salt = novoht::core::segment_salt(header.store, 1);
  std::uint64_t at = novoht::core::kSegmentHeaderSize;
  while (const auto record = novoht::core::parse_record(good, at, salt, 0)) {
    at += record->size;
    const auto change = novoht::core::ChangeReader(record->changes, record->change_count).next();
    if (!change || change->key.size() != sizeof(std::uint32_t)) continue;
    begin = at - record->size;
    end = at;
  }
  ASSERT_LT(begin, end);
  for (at = begin; at < end; at++) {
    base::MemoryFiles disk;
    for (const std::string& one : box.disk.paths()) disk.put(one, box.disk.contents(one));
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 4);
    disk.put(path, bad);
    const auto opened = novoht::Store::open(disk, "keeper", {});
    ASSERT_FALSE(opened) << "offset " << at;
    EXPECT_EQ(opened.code(), Code::corrupt);
  }
}

TEST_F(Keepers, DecideAChangeOnceAndTellEachOther) {
  wish(0, 4, {Kind::promote, Epoch{1}, member(1), member(1), {}});
  settle();
  for (std::uint64_t i = 0; i < 3; i++) EXPECT_EQ(view(i, 4), "2: 1.1* | 2.1");
  EXPECT_EQ(view(0, 5), "1: 0.1* 1.1 | 2.1");
}

TEST_F(Keepers, OfTwoWishesForOneEpochOneIsGranted) {
  wish(0, 4, {Kind::promote, Epoch{1}, member(1), member(1), {}});
  wish(2, 4, {Kind::remove, Epoch{1}, member(0), member(1), {}});
  settle();
  EXPECT_TRUE(view(0, 4) == "2: 1.1* | 2.1" || view(0, 4) == "2: 0.1* | 2.1") << view(0, 4);
  for (std::uint64_t i = 1; i < 3; i++) EXPECT_EQ(view(i, 4), view(0, 4));
}

// On a slow network, or with slow disks, a proposal takes longer than its patience; it was begun anew each time, and never ended.
TEST_F(Keepers, DecideHoweverSlowTheWayBetweenThemIs) {
  delay_ = std::chrono::milliseconds(200);
  wish(0, 4, {Kind::promote, Epoch{1}, member(1), member(1), {}});
  settle();
  for (std::uint64_t i = 0; i < 3; i++) EXPECT_EQ(view(i, 4), "2: 1.1* | 2.1");
  EXPECT_LT(messages_, 60);
}

TEST_F(Keepers, SlowOnesThatAreAllAskedLetOneFinish) {
  delay_ = std::chrono::milliseconds(100);
  for (std::uint32_t p = 0; p < 100; p++)
    for (std::uint64_t i = 0; i < 3; i++) wish(i, p, {Kind::promote, Epoch{1}, member(1), member(1), {}});
  for (int i = 0; i < 3; i++) settle();
  for (std::uint32_t p = 0; p < 100; p++) EXPECT_EQ(view(1, p), "2: 1.1* | 2.1") << p;
}

TEST_F(Keepers, AMajorityIsNeededAndEnough) {
  wish(0, 4, {Kind::promote, Epoch{1}, member(1), member(1), {}});
  settle({1, 2});
  EXPECT_EQ(view(0, 4), "1: 0.1* 1.1 | 2.1");
  settle({2});
  EXPECT_EQ(view(0, 4), "2: 1.1* | 2.1");
  EXPECT_EQ(view(1, 4), "2: 1.1* | 2.1");
  EXPECT_EQ(view(2, 4), "1: 0.1* 1.1 | 2.1");
}

TEST_F(Keepers, RememberWhatTheyDecidedAcrossARestart) {
  wish(0, 4, {Kind::promote, Epoch{1}, member(1), member(1), {}});
  settle({2});
  for (std::uint64_t i = 0; i < 2; i++) open(i);
  EXPECT_EQ(view(0, 4), "2: 1.1* | 2.1");
  wish(2, 4, {Kind::remove, Epoch{1}, member(0), member(1), {}});  // the third, behind, tries another way
  settle();
  EXPECT_EQ(view(2, 4), "2: 1.1* | 2.1");
}

// Who had it decided has ended before it told anybody: the others have only accepted it, and nobody wishes for anything in the view before.
TEST_F(Keepers, DecideWhatTheyHaveAcceptedWhenAskedToSettle) {
  KeeperMessage accept;
  accept.kind = KeeperMessage::Kind::accept;
  accept.partition = PartitionId{4};
  accept.epoch = Epoch{2};
  accept.ballot = {1, NodeId{0}};
  accept.view = next_view(boxes_[0].keeper->view(PartitionId{4}), {Kind::promote, Epoch{1}, member(1), member(1), {}});
  accept.config = 1;
  for (std::uint64_t i = 1; i < 3; i++) {
    boxes_[i].keeper->on(NodeId{0}, std::array{accept}, now_);
    ASSERT_TRUE(boxes_[i].keeper->end_round(now_));
    open(i);
  }
  EXPECT_EQ(view(1, 4), "1: 0.1* 1.1 | 2.1");
  wish(2, 4, {Kind::settle, Epoch{1}, member(1), member(1), {}});
  settle();
  for (std::uint64_t i = 0; i < 3; i++) EXPECT_EQ(view(i, 4), "2: 1.1* | 2.1");
}

TEST_F(Keepers, ChangeNothingWhenAskedToSettleWhatNobodyAccepted) {
  wish(0, 4, {Kind::settle, Epoch{1}, member(1), member(1), {}});
  settle();
  for (std::uint64_t i = 0; i < 3; i++) EXPECT_EQ(view(i, 4), "1: 0.1* 1.1 | 2.1");
  wish(0, 4, {Kind::settle, Epoch{1}, member(1), member(1), {}});
  settle({1, 2});  // it cannot be told, and stands in nobody's way
  wish(0, 4, {Kind::promote, Epoch{1}, member(1), member(1), {}});
  settle();
  for (std::uint64_t i = 0; i < 3; i++) EXPECT_EQ(view(i, 4), "2: 1.1* | 2.1");
}

TEST_F(Keepers, HundredsOfChangesTravelTogether) {
  for (std::uint32_t p = 0; p < kPartitions; p++) wish(0, p, {Kind::exited, Epoch{1}, member(0), member(0), {}});
  settle();
  for (std::uint32_t p = 0; p < kPartitions; p++) EXPECT_EQ(view(1, p), "2: 1.1* | 2.1");
  EXPECT_LT(messages_, 30);
  EXPECT_LT(boxes_[1].store->statistics().syncs, 10u);
}

TEST_F(Keepers, OneWhoseDiskFailsFallsSilent) {
  boxes_[0].disk.fail_syncs(true);
  wish(0, 4, {Kind::promote, Epoch{1}, member(1), member(1), {}});
  EXPECT_FALSE(boxes_[0].keeper->end_round(now_));
  boxes_[0].disk.fail_syncs(false);
  EXPECT_FALSE(boxes_[0].keeper->end_round(now_));
}

// --- leases between two instances ---

constexpr base::Time at(int ms) { return base::Time(std::chrono::milliseconds(ms)); }

TEST(Channel, AnAnswerNamesWhatWasLeftSince) {
  Channel leader, follower;
  follower.depart(PartitionId{3}, Epoch{7});
  follower.on_beacon(at(100), leader.seen(), at(100));
  PeerMessage answer;
  follower.answer(answer);
  leader.on_answer(answer.answered, answer.generation, answer.departures);
  EXPECT_EQ(leader.answered(), at(100));
  EXPECT_TRUE(leader.has_left(PartitionId{3}, Epoch{7}));
  EXPECT_TRUE(leader.has_left(PartitionId{3}, Epoch{6}));
  EXPECT_FALSE(leader.has_left(PartitionId{3}, Epoch{8}));
  EXPECT_FALSE(leader.has_left(PartitionId{4}, Epoch{7}));
  follower.on_beacon(at(200), leader.seen(), at(200));  // it is known now, and need not be said again
  PeerMessage second;
  follower.answer(second);
  EXPECT_TRUE(second.departures.empty());
}

TEST(Channel, ARoundTripIsTheLongestOfLateButNotThatOfWhoDidNotRun) {
  using namespace std::chrono_literals;
  Channel channel;
  base::Time now = base::Time{} + 1h;
  const auto answered_after = [&](base::Duration time) {
    const base::Time stamp = now;
    now += time;
    channel.measure(stamp, now);
    channel.on_answer(stamp, 0, {});
  };
  answered_after(400ms);
  answered_after(200ms);
  EXPECT_GT(channel.round_trip(), 300ms);
  for (int i = 0; i < 50; i++) answered_after(1ms);
  EXPECT_LT(channel.round_trip(), 10ms);
  const base::Time stamp = now;
  now += 3s;  // this instance was stopped
  channel.excuse(3s, now);
  channel.measure(stamp, now + 1ms);
  EXPECT_LT(channel.round_trip(), 10ms);
  now += 1ms;
  answered_after(20s);
  EXPECT_EQ(channel.round_trip(), 1s) << "more is silence";
}

TEST(Channel, ADepartureIsSaidUntilItIsKnown) {
  Channel leader, follower;
  follower.on_beacon(at(100), 0, at(100));
  PeerMessage lost, first;
  follower.depart(PartitionId{1}, Epoch{2});
  follower.answer(lost);
  follower.on_beacon(at(140), leader.seen(), at(140));
  follower.answer(first);
  EXPECT_EQ(first.departures.size(), 1u);
  leader.on_answer(first.answered, first.generation, first.departures);
  leader.on_answer(at(100), 0, {});  // an older answer comes late and changes nothing
  EXPECT_EQ(leader.answered(), at(140));
  EXPECT_TRUE(leader.has_left(PartitionId{1}, Epoch{2}));
}

// Without anything between the two beacons come further and further apart, and silence is borne for as much longer; and no more than that.
TEST(Channel, WhoHasNothingToSayIsGivenTimeAndNoMore) {
  constexpr Channel::Beat kBeat{std::chrono::milliseconds(40), std::chrono::milliseconds(160)};
  const auto ms = [](int n) { return base::Duration(std::chrono::milliseconds(n)); };
  Channel sender, listener;
  sender.begin_beacons();
  int now = 100;
  std::vector<int> pauses;
  for (int i = 0; i < 5; i++) {
    sender.on_beacon_sent(at(now), false, kBeat);
    listener.on_beacon(at(now), 0, at(now));
    (void)listener.hear(at(now), ms(1000));
    (void)sender.hear(at(now + 1), ms(1000));  // its answer
    const int next = static_cast<int>((sender.next_beacon() - at(0)) / ms(1));
    pauses.push_back(next - now);
    EXPECT_GE(listener.leisure(at(now), kBeat) + 2 * kBeat.full, ms(next - now)) << "the next is not expected in time";
    EXPECT_EQ(sender.leisure(at(now + 1), kBeat), pauses.back() == 40 ? ms(0) : ms(pauses.back() - 1));
    now = next;
  }
  EXPECT_EQ(pauses, (std::vector{40, 80, 160, 160, 160}));
  // From now on nothing is answered: silence counts from the first beacon that was not, whatever goes after it.
  sender.on_beacon_sent(at(now), false, kBeat);
  EXPECT_EQ(sender.leisure(at(now), kBeat), ms(159));
  sender.on_beacon_sent(at(now + 160), false, kBeat);
  EXPECT_EQ(sender.leisure(at(now + 160), kBeat), ms(159));
  sender.on_beacon_sent(at(now + 200), true, kBeat);
  EXPECT_EQ(sender.leisure(at(now + 200), kBeat), ms(159));
  (void)sender.hear(at(now + 201), ms(1000));
  EXPECT_EQ(sender.leisure(at(now + 201), kBeat), ms(0)) << "at the full rate nobody is given more time";
}

// --- the balancer ---

class Balance : public testing::Test {
 protected:
  void place(std::uint32_t instances, std::uint32_t racks = 1000) {
    for (std::uint32_t i = 0; i < instances; i++) places_.push_back({InstanceId{i}, i % racks, false, true, i});
  }
  void fill(std::uint32_t partitions, std::uint32_t over) {
    for (std::uint32_t p = 0; p < partitions; p++)
      views_.push_back(view_of(1, {member(p % over), member((p + 1) % over)}, {member((p + 2) % over)}));
  }
  // Does what the goals say until there are none; returns how many there were.
  std::size_t run() {
    std::size_t moves = 0;
    for (int i = 0; i < 10'000; i++) {
      const auto goals = balance(views_, places_, options_);
      if (goals.empty()) return moves;
      EXPECT_LE(goals.size(), options_.moves);
      for (const Placed& one : goals) {
        View& view = views_[static_cast<std::uint32_t>(one.partition)];
        view = {next(view.epoch), {one.goal.primary, 1}, {}, {}};
        for (InstanceId instance : one.goal.members) view.sync.push_back({instance, 1});
        EXPECT_TRUE(contains(view.sync, view.primary));
        moves++;
      }
    }
    ADD_FAILURE() << "the balancer never rests";
    return moves;
  }
  std::map<std::uint32_t, int> copies() const {
    std::map<std::uint32_t, int> out;
    for (const Place& one : places_) out[static_cast<std::uint32_t>(one.instance)] = 0;
    for (const View& view : views_)
      for (const Members* all : {&view.sync, &view.learners}) for (Member one : *all) out[static_cast<std::uint32_t>(one.instance)]++;
    return out;
  }
  std::map<std::uint32_t, int> primaries() const {
    std::map<std::uint32_t, int> out;
    for (const View& view : views_) out[static_cast<std::uint32_t>(view.primary.instance)]++;
    return out;
  }
  std::vector<View> views_;
  std::vector<Place> places_;
  BalanceOptions options_;
};

TEST_F(Balance, WhatIsEvenStaysAsItIs) {
  place(4);
  fill(64, 4);
  EXPECT_EQ(run(), 0u);
}

TEST_F(Balance, GrowingMovesNoMoreThanItMust) {
  place(4);
  fill(64, 3);
  const std::size_t moves = run();
  for (const auto& [instance, count] : copies()) EXPECT_NEAR(count, 48, 1) << instance;
  for (const auto& [instance, count] : primaries()) EXPECT_NEAR(count, 16, 2) << instance;
  EXPECT_LE(moves, 48u + 16u);
}

TEST_F(Balance, ALeavingNodeIsEmptied) {
  place(5);
  fill(60, 5);
  places_[2].leaving = true;
  run();
  EXPECT_EQ(copies()[2], 0);
  for (const auto& [instance, count] : copies()) {
    if (instance == 2) continue;
    EXPECT_NEAR(count, 45, 1) << instance;
  }
}

TEST_F(Balance, ALeavingNodeIsEmptiedEvenIfCopiesGetFewer) {
  place(3);
  fill(9, 3);
  places_[0].leaving = true;
  run();
  EXPECT_EQ(copies()[0], 0);
  EXPECT_EQ(copies()[1], 9);
}

TEST_F(Balance, CopiesStayOnDifferentRacks) {
  place(6, 3);
  fill(60, 3);
  run();
  for (const auto& [instance, count] : copies()) EXPECT_NEAR(count, 30, 1) << instance;
  for (const View& view : views_) {
    std::vector<std::uint32_t> racks;
    for (const Members* all : {&view.sync, &view.learners}) for (Member one : *all) racks.push_back(static_cast<std::uint32_t>(one.instance) % 3);
    std::sort(racks.begin(), racks.end());
    EXPECT_EQ(std::unique(racks.begin(), racks.end()), racks.end()) << to_string(view);
  }
}

TEST_F(Balance, TwoCopiesAreNeverOnOneNode) {
  place(4);
  fill(64, 4);
  for (std::uint32_t i = 4; i < 8; i++) places_.push_back({InstanceId{i}, i, false, true, i - 4});  // a second instance each
  run();
  for (const View& view : views_) {
    std::set<std::uint64_t> nodes;
    for (Member one : view.sync) nodes.insert(static_cast<std::uint32_t>(one.instance) % 4);
    for (Member one : view.learners) nodes.insert(static_cast<std::uint32_t>(one.instance) % 4);
    EXPECT_EQ(nodes.size(), 3u);
  }
  for (const auto& [instance, count] : copies()) EXPECT_NEAR(count, 24, 2) << instance;
}

TEST_F(Balance, WhatHasADeadMemberIsLeftToRepair) {
  place(4);
  fill(8, 4);
  places_.pop_back();
  for (const Placed& one : balance(views_, places_, options_))
    EXPECT_FALSE(member_at(views_[static_cast<std::uint32_t>(one.partition)], InstanceId{3})) << static_cast<std::uint32_t>(one.partition);
}

TEST_F(Balance, AMoveThatLacksItsLastStepIsFinished) {
  place(4);
  for (std::uint32_t p = 0; p < 9; p++) views_.push_back(view_of(1, {member(p % 3), member((p + 1) % 3)}, {member((p + 2) % 3)}));
  views_[0].learners.push_back(member(3));  // its primary, instance 0, was to go, and has handed over
  views_[0].primary = member(1);
  options_.moving = {PartitionId{0}};
  for (const Placed& one : balance(views_, places_, options_)) EXPECT_NE(one.partition, PartitionId{0}) << "a move that is under way";
  options_.moving.clear();
  auto goals = balance(views_, places_, options_);
  ASSERT_FALSE(goals.empty());
  EXPECT_EQ(goals[0].partition, PartitionId{0});
  EXPECT_EQ(goals[0].goal.members.size(), 3u);
  EXPECT_TRUE(std::count(goals[0].goal.members.begin(), goals[0].goal.members.end(), InstanceId{3})) << "the newcomer has fewest";
  // From who leaves nothing more is moved to yet another when enough others have it.
  options_.moving = {PartitionId{0}};
  places_.push_back({InstanceId{4}, 4, false, true, 4});
  places_[0].leaving = true;
  goals = balance(views_, places_, options_);
  EXPECT_EQ(goals[0].goal, (Goal{InstanceId{1}, {InstanceId{1}, InstanceId{2}, InstanceId{3}}}));
}

TEST_F(Balance, ACopyTooManyGoesFromWhereThereIsNoRoom) {
  place(4);
  views_.push_back(view_of(1, {member(0), member(1)}, {member(2), member(3)}));
  places_[0].room = places_[1].room = false;
  const auto goals = balance(views_, places_, options_);
  ASSERT_EQ(goals.size(), 1u);
  EXPECT_EQ(goals[0].goal, (Goal{InstanceId{0}, {InstanceId{0}, InstanceId{2}, InstanceId{3}}}));
}

TEST_F(Balance, WhoHasNoRoomIsNotGivenMoreToLead) {
  place(3);
  fill(9, 1);  // led by the first, and nobody else
  for (View& view : views_) view = view_of(1, {member(0), member(1)}, {member(2)});
  places_[1].room = false;  // it would hand on what it is given, again and again
  run();
  EXPECT_EQ(primaries()[1], 0);
  EXPECT_NEAR(primaries()[2], 4, 1);
}

TEST_F(Balance, WhoStopsHandsOverToThoseWhoHaveCopiesAndStay) {
  place(4);
  fill(4, 4);  // partition p at p, p + 1 and p + 2
  views_.push_back(view_of(1, {member(0)}));
  places_[0].stopping = true;
  const auto goals = hand_over(views_, places_, 0);
  ASSERT_EQ(goals.size(), 3u) << "one has no copy there, and of one there is no other copy";
  for (const Placed& one : goals) EXPECT_EQ(one.goal.members.size(), 2u) << "nobody new";
  EXPECT_EQ(goals[0].goal, (Goal{InstanceId{1}, {InstanceId{1}, InstanceId{2}}}));
  EXPECT_EQ(goals[1].goal, (Goal{InstanceId{2}, {InstanceId{2}, InstanceId{3}}})) << "who leads goes on";
  EXPECT_EQ(goals[1].partition, PartitionId{2});
}

TEST_F(Balance, TwoWhoStopAtOnceDoNotHandPartitionsToEachOther) {
  place(4);
  fill(4, 4);
  views_.push_back(view_of(1, {member(0), member(1)}));
  places_[0].stopping = places_[1].stopping = true;
  for (std::uint64_t node : {0, 1}) {
    const auto goals = hand_over(views_, places_, node);
    EXPECT_EQ(goals.size(), 3u) << "not what both of them have alone";
    for (const Placed& one : goals) EXPECT_GE(one.goal.primary, InstanceId{2});
  }
  places_[2].room = false;
  EXPECT_EQ(hand_over(views_, places_, 1)[1].goal.primary, InstanceId{3}) << "rather to one with room";
  places_.erase(places_.begin() + 3);
  EXPECT_EQ(hand_over(views_, places_, 1)[1].goal.primary, InstanceId{2}) << "of those who live";
}

// --- gossip ---

// It was started and killed before it had said a word.
TEST(Manager, WhoEndedBeforeItWasHeardOfIsNoAcquaintance) {
  ManagerOptions options;
  options.self = NodeId{1};
  options.keepers = {NodeId{1}};
  Manager manager(options, NodeInfo{NodeId{1}, 0, {member(1)}, 0, true, false}, {view_of(1, {member(1)})}, {NodeId{1}}, 1);
  manager.ended(NodeId{4}, {member(4)}, true);
  const auto known = manager.acquaintances(at(1000));
  ASSERT_EQ(known.size(), 1u);
  EXPECT_EQ(known.front().info->node, NodeId{1});
}

TEST(Manager, GossipFindsWhatABroadcastMissed) {
  const std::vector<View> views(50, view_of(1, {member(0), member(1)}));
  std::vector<std::unique_ptr<Manager>> managers;
  for (std::uint64_t i = 0; i < 5; i++) {
    ManagerOptions options;
    options.self = NodeId{i};
    options.keepers = {NodeId{0}};
    options.balances = false;
    const Member self = member(static_cast<std::uint32_t>(i));
    managers.push_back(std::make_unique<Manager>(options, NodeInfo{NodeId{i}, 0, {self}, 0, true, false}, views, std::vector{NodeId{0}}, i));
  }
  managers[3]->adopt(PartitionId{17}, view_of(2, {member(1)}));
  managers[1]->adopt(PartitionId{40}, view_of(9, {member(0)}));
  base::Time now = at(1000);
  int said = 0;
  const auto run = [&](int rounds) {
    said = 0;
    for (int i = 0; i < rounds; i++) {
      now += std::chrono::milliseconds(100);
      for (auto& manager : managers) manager->tick(now);
      for (int hop = 0; hop < 4; hop++)
        for (auto& manager : managers)
          for (ManagerMessage& message : manager->take_messages()) {
            said += !message.epochs.empty();
            managers[static_cast<std::size_t>(message.to)]->on_message(message, now);
          }
    }
  };
  run(40);
  for (auto& manager : managers) {
    EXPECT_EQ(to_string(manager->view(PartitionId{17})), "2: 1.1*");
    EXPECT_EQ(to_string(manager->view(PartitionId{40})), "9: 0.1*");
    EXPECT_EQ(manager->candidates(now).size(), 5u);  // all have heard of all, though told only of the first
  }
  run(20);
  EXPECT_EQ(said, 0);  // settled: nothing is compared any more
  // Who stops is no place for a copy from that moment on: no other primary takes it in again while it empties.
  managers[2]->self().stopping = true;
  managers[2]->announce();
  for (const ManagerMessage& message : managers[2]->take_messages()) managers[static_cast<std::size_t>(message.to)]->on_message(message, now);
  for (auto& manager : managers) EXPECT_EQ(manager->candidates(now).size(), 4u);
}

// On a machine with too much to do every answer is late: then no view ever changed, for all wishes were thrown away meanwhile.
TEST(Manager, WishesAreToldHoweverLateTheKeeperAnswersTheKnock) {
  const std::vector<View> views(3, view_of(1, {member(0), member(1), member(2)}));
  ManagerOptions options;
  options.self = NodeId{1};
  options.keepers = {NodeId{0}};
  options.balances = false;
  Manager manager(options, NodeInfo{NodeId{1}, 1, {member(1)}, 0, true, false}, views, {NodeId{0}}, 1);
  std::vector<std::uint32_t> told;
  const auto look = [&] {
    for (const ManagerMessage& message : manager.take_messages())
      for (const KeeperMessage& one : message.keeper)
        if (one.kind == KeeperMessage::Kind::change) told.push_back(static_cast<std::uint32_t>(one.partition));
  };
  const auto answer = [&](base::Time now) {
    ManagerMessage message;
    message.from = NodeId{0};
    message.to = NodeId{1};
    manager.on_message(message, now);
    look();
  };
  const auto wish = [&](std::uint32_t p, base::Time now) {
    manager.tick(now);
    manager.wish({PartitionId{p}, {Kind::remove, Epoch{1}, member(1), member(2), {}}});
    look();
  };
  wish(0, at(1000));
  wish(1, at(1060));
  wish(0, at(1120));
  EXPECT_TRUE(told.empty()) << "a keeper that does not answer is told nothing";
  answer(at(1400));
  EXPECT_EQ(told, (std::vector<std::uint32_t>{0, 1}));
  told.clear();
  wish(2, at(2000));
  answer(at(4000));
  EXPECT_TRUE(told.empty()) << "long ago";
  // Heard just now: no knock is needed.
  wish(2, at(4010));
  EXPECT_EQ(told, (std::vector<std::uint32_t>{2}));
}

TEST(Manager, WhoHasEndedIsCountedOutOfEveryViewAtOnceAndComesBackInALaterLife) {
  const std::vector<View> views = {view_of(1, {member(0), member(1)}), view_of(1, {member(1), member(2)}), view_of(1, {member(2), member(0)})};
  ManagerOptions options;
  options.self = NodeId{1};
  options.keepers = {NodeId{0}, NodeId{1}, NodeId{2}};
  options.balances = false;
  Manager manager(options, NodeInfo{NodeId{1}, 1, {member(1)}, 0, true, false}, views, {NodeId{0}, NodeId{2}}, 1);
  const auto hear_of = [&](std::uint64_t heartbeat, Member one, base::Time now) {
    ManagerMessage gossip;
    gossip.from = NodeId{2};
    gossip.to = NodeId{1};
    gossip.nodes = {NodeInfo{NodeId{0}, heartbeat, {one}, 0, true, false}};
    gossip.digest = ~std::uint64_t{0};
    manager.on_message(gossip, now);
  };
  hear_of(1, member(0), at(1000));
  EXPECT_EQ(manager.candidates(at(1000)).size(), 1u);  // this manager itself has ticked never
  const auto wishes = [&] {
    std::map<NodeId, std::vector<std::string>> told;
    for (const ManagerMessage& message : manager.take_messages())
      for (const KeeperMessage& one : message.keeper) {
        if (one.kind != KeeperMessage::Kind::change) continue;
        told[message.to].push_back(std::string(name_of(one.change.kind)) + " " + std::to_string(static_cast<std::uint32_t>(one.partition)));
      }
    return told;
  };
  wishes();
  manager.ended(NodeId{0}, {member(0)}, true);
  const auto told = wishes();
  ASSERT_EQ(told.size(), 1u);  // the keeper that has ended is not asked
  EXPECT_EQ(told.begin()->first, NodeId{1});
  EXPECT_EQ(told.begin()->second, (std::vector<std::string>{"exited 0", "exited 2"}));
  EXPECT_TRUE(manager.candidates(at(1000)).empty());
  hear_of(2, member(0), at(1010));  // was under way when it ended
  EXPECT_TRUE(manager.candidates(at(1010)).empty());
  manager.adopt(PartitionId{0}, view_of(2, {member(1)}));
  manager.tick(at(1100));
  for (const auto& [keeper, what] : wishes()) EXPECT_EQ(what, (std::vector<std::string>{"exited 2"})) << "said again, where it is still needed";
  hear_of(3, member(0, 2), at(1200));
  EXPECT_EQ(manager.candidates(at(1200)).size(), 2u);
  manager.tick(at(5000));
  manager.tick(at(5100));
  EXPECT_TRUE(wishes().empty()) << "not for ever";
}

}  // namespace
}  // namespace zht::replication

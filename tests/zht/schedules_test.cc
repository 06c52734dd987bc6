// Schedules made for rules that chance hardly ever breaks (zht/core/replication/defect.h): with the rule broken each goes
// wrong, and with the rule it does not.
#include "tests/zht/trio.h"

namespace zht::core {
namespace {

using replication::Defect;
using replication::Defects;
using Kind = replication::Change::Kind;

struct Schedule : Trio {
  explicit Schedule(Defects broken) { defects = broken; }
  // All three have a change; then the learner has no part in the view any more, and that stays so.
  void let_go_of_the_learner() {
    begin();
    EXPECT_TRUE(change_at(0, "there", 1, 200ms));
    granting = false;
    view.learners.clear();
    view.epoch = next_epoch();
  }
  bool says(std::size_t i, std::uint64_t number, Bytes value) {
    return answered(i, number) && !sent_away(i, number) && answer(i, number).value == value;
  }
  bool done(std::size_t i, std::uint64_t number) {
    return answered(i, number) && !sent_away(i, number) && answer(i, number).ok();
  }
  // `i` leads and takes a change; false when that did not come about.
  bool change_at(std::size_t i, Bytes value, std::uint64_t sequence, base::Duration patience) {
    auto number = ask(i, Operation::insert("k", std::string(value)), sequence);
    for (base::Duration passed{}; passed < patience && !done(i, number); passed += 10ms) {
      run(10ms);
      if (sent_away(i, number)) number = ask(i, Operation::insert("k", std::string(value)), sequence);
    }
    return done(i, number);
  }
};

// Each returns whether something was shown that must not be.

// A follower comes back, on a line on which its primary hears it and is not heard. The primary has wished for that and does not learn of it; and
// the follower asks for the place at once, while the lease that its earlier life gave is still good.
bool no_grace_after_a_restart(Defects broken) {
  Schedule s({});
  s.begin();
  EXPECT_TRUE(s.change_at(0, "old", 1, 200ms));
  s.granting = false;
  s.blocked = {{0, 1}};
  s.kill(1);
  s.defects = broken;
  s.open(1);
  s.run(30ms);
  s.cut = {0};
  EXPECT_TRUE(s.grant(Kind::rejoin));
  s.granting = true;
  s.run(30ms);
  if (s.view.primary.instance != InstanceId{1} || !s.change_at(1, "new", 2, 90ms)) return false;
  const auto read = s.ask(0, Operation::lookup("k"), 0, Epoch{1});
  return s.says(0, read, "old");
}

// A follower that asked to depose its primary hears it again, and goes on granting it leases.
bool answers_after_deposing(Defects broken) {
  Schedule s(broken);
  s.timing.drop = 10s;
  s.begin();
  EXPECT_TRUE(s.change_at(0, "old", 1, 200ms));
  s.granting = false;
  s.blocked = {{0, 1}};
  s.run(300ms);
  s.blocked.clear();
  s.deaf = {0};
  s.run(150ms);
  EXPECT_TRUE(s.grant(Kind::promote));
  s.granting = true;
  s.blocked = {{0, 1}, {1, 0}, {0, 2}, {2, 0}};
  s.run(10ms);
  if (!s.change_at(1, "new", 2, 150ms)) return false;
  const auto read = s.ask(0, Operation::lookup("k"), 0, Epoch{1});
  return s.says(0, read, "old");
}

// A primary hands over, does not hear that it has, and serves on.
bool serves_while_it_hands_over(Defects broken) {
  Schedule s(broken);
  s.timing.drop = 40ms;
  s.begin();
  EXPECT_TRUE(s.change_at(0, "old", 1, 200ms));
  s.granting = false;
  s.round(0, [](Instance& core, std::string&) { core.set_goal(PartitionId{0}, {InstanceId{1}, {InstanceId{0}, InstanceId{1}, InstanceId{2}}}); });
  for (int i = 0; i < 10 && (s.wished.empty() || s.wished.back().kind != Kind::transfer); i++) s.run(10ms);
  s.cut = {0};
  if (!s.grant(Kind::transfer)) return false;
  s.granting = true;
  s.run(10ms);
  if (!s.change_at(1, "new", 2, 160ms)) return false;
  const auto read = s.ask(0, Operation::lookup("k"), 0, Epoch{1});
  return s.says(0, read, "old");
}

// A promotion that its author has not heard of is decided; the learner, synchronous now, deposes it without its lease.
bool needs_no_lease_of_who_may_be_promoted(Defects broken) {
  Schedule s(broken);
  s.timing.sync_copies = 3;
  s.timing.drop = 10s;
  s.granting = false;
  s.begin();
  EXPECT_TRUE(s.change_at(0, "old", 1, 200ms));
  s.run(300ms);
  s.deaf = {0, 1};
  if (!s.grant(Kind::promote_learner)) return false;
  s.view.need = 2;
  s.blocked = {{0, 2}, {2, 0}};
  s.run(300ms);
  if (!s.grant(Kind::promote)) return false;
  s.blocked = {{0, 2}, {2, 0}, {0, 1}, {1, 0}};
  s.run(10ms);
  if (!s.change_at(2, "new", 2, 150ms)) return false;
  const auto read = s.ask(0, Operation::lookup("k"), 0, Epoch{1});
  return s.says(0, read, "old");
}

// A primary gives up waiting for the learner it proposed to promote; the promotion is decided after all, and that member leads.
bool forgets_who_may_be_promoted(Defects broken) {
  Schedule s(broken);
  s.timing.sync_copies = 3;
  s.timing.drop = 100ms;
  s.granting = false;
  s.begin();
  EXPECT_TRUE(s.change_at(0, "old", 1, 200ms));
  s.run(100ms);
  s.blocked = {{0, 2}, {2, 0}};
  s.run(500ms);
  const bool acknowledged = s.change_at(0, "new", 2, 100ms);
  if (!s.grant(Kind::promote_learner)) return false;
  s.view.need = 2;
  s.kill(0);
  s.run(500ms);
  replication::Change promote{Kind::promote, s.view.epoch, s.all[2].core->self(), s.all[2].core->self(), {}};
  const auto made = replication::next_view(s.view, promote);
  if (!made) return false;
  s.view = *made;
  s.run(500ms);
  const auto read = s.ask(2, Operation::lookup("k"));
  s.run(200ms);
  return acknowledged && s.says(2, read, "old");
}

// Entries that the new primary never had stay with a follower, and rise again when that one leads.
bool keeps_what_the_primary_never_had(Defects broken) {
  Schedule s(broken);
  s.timing.drop = 10s;
  s.begin();
  s.granting = false;
  s.view.sync.push_back({InstanceId{2}, 1});
  s.view.learners.clear();
  s.view.epoch = s.next_epoch();
  s.run(200ms);
  EXPECT_TRUE(s.change_at(0, "there", 1, 200ms));
  s.blocked = {{0, 2}};
  s.ask(0, Operation::remove("k"), 2);
  s.ask(0, Operation::insert_new("k", "again"), 3);
  s.run(30ms);
  s.kill(0);
  s.blocked.clear();
  s.run(300ms);
  const auto lead = [&](std::size_t i) {
    const replication::Member who = s.all[i].core->self();
    const auto made = replication::next_view(s.view, {Kind::promote, s.view.epoch, who, who, {}});
    if (made) s.view = *made;
    return made.has_value();
  };
  if (!lead(2)) return false;
  s.run(200ms);
  const auto refused = s.ask(2, Operation::insert_new("k", "again"), 3);
  s.run(100ms);
  if (!s.answered(2, refused) || s.answer(2, refused).code != Code::conflict) return false;
  s.kill(2);
  s.run(300ms);
  if (!lead(1)) return false;
  s.view.need = 1;
  s.run(300ms);
  const auto read = s.ask(1, Operation::lookup("k"));
  s.run(300ms);
  return s.says(1, read, "again");
}

// A process stops between taking a value and looking at its lease. (The embedder's rule: the time is read last.)
bool looks_at_the_lease_first(Defects broken) {
  Schedule s({});
  s.begin();
  EXPECT_TRUE(s.change_at(0, "old", 1, 200ms));
  s.run(50ms);
  Instance& core = *s.all[0].core;
  std::string request, out;
  wire::encode_request(request, Operation::lookup("k"), {.request = 999, .epoch = 1, .partition = PartitionId{0}});
  const base::Time begun = s.clock.now();
  core.begin_round(begun, s.clock.wall());
  core.on_frame(ConnectionId{1}, **wire::next_frame(request, wire::kMaxFrameSize), out);
  (void)core.take_peer_messages();
  EXPECT_TRUE(core.end_round());
  s.cut = s.paused = {0};
  s.run(700ms);
  if (s.view.primary.instance != InstanceId{1} || !s.change_at(1, "new", 2, 300ms)) return false;
  core.finish_round(broken.has(Defect::lease_before_value) ? begun : s.clock.now());
  for (Send& send : core.take_sends()) Trio::take(s.all[0], send.frame);
  return s.says(0, 999, "old");
}

// A sync member begins again and hears, of all views, first of one from before it was taken in.
bool forgets_by_an_old_view(Defects broken) {
  Schedule s(broken.any() ? Defects{Defect::forget_by_old_view, Defect::forget_unasked} : Defects{Defect::forget_unasked});
  s.begin();
  EXPECT_TRUE(s.change_at(0, "there", 1, 200ms));
  s.granting = false;
  const replication::Members learners = std::exchange(s.view.learners, {});
  s.view.epoch = s.next_epoch();
  s.run(20ms);
  const replication::View old = s.view;
  s.view.learners = learners;
  s.view.epoch = s.next_epoch();
  s.run(200ms);
  s.view.sync.push_back(learners.front());
  s.view.learners.clear();
  s.view.epoch = s.next_epoch();
  s.run(200ms);
  EXPECT_EQ(s.all[2].core->replicated_store().end(PartitionId{0}).sequence, 1u);
  s.kill(2);
  const replication::View newest = std::exchange(s.view, old);
  s.open(2);
  s.view = newest;
  s.cut = {2};
  s.run(3s);
  return s.all[2].core->replicated_store().end(PartitionId{0}).sequence == 0;
}

// One that has no part in the view any more is told to lead alone, and the keepers take their time.
bool forgets_its_promise(Defects broken) {
  Schedule s(broken.any() ? Defects{Defect::forget_promise, Defect::forget_unasked} : Defects{Defect::forget_unasked});
  s.let_go_of_the_learner();
  s.run(200ms);
  s.kill(0);
  s.kill(1);
  const auto end = [&] { return s.all[2].core->replicated_store().end(PartitionId{0}); };
  EXPECT_EQ(end().sequence, 1u);
  EXPECT_TRUE(s.all[2].core->take_over(PartitionId{0}, s.view.epoch, end()));
  s.run(3s);
  return end().sequence == 0;
}

// One that has no part in the view any more learns of that, and those that have end: its copy is all that is left.
bool forgets_what_nobody_else_has(Defects broken) {
  Schedule s(broken);
  s.let_go_of_the_learner();
  s.run(200ms);
  s.kill(0);
  s.run(3s);  // one of two is not enough
  s.kill(1);
  s.run(3s);
  return s.all[2].core->replicated_store().end(PartitionId{0}).sequence == 0;
}

// All end when another has begun to lead: whoever decided that has told nobody who is left, and other keepers have only accepted it.
bool nobody_has_it_decided(Defects broken) {
  Schedule s(broken);
  s.begin();
  EXPECT_TRUE(s.change_at(0, "old", 1, 200ms));
  const replication::View before = s.view;
  s.view.primary = s.view.sync[1];
  s.view.epoch = s.next_epoch();
  EXPECT_TRUE(s.change_at(1, "new", 2, 1s));
  const replication::View accepted = s.view;
  for (std::size_t i = 0; i < s.all.size(); i++) s.kill(i);
  s.view = before;
  for (std::size_t i = 0; i < s.all.size(); i++) s.open(i);
  s.run(1s);
  const bool asked = std::any_of(s.wished.begin(), s.wished.end(), [](const auto& one) { return one.kind == Kind::settle; });
  if (asked) s.view = accepted;
  s.run(4s);
  return !s.change_at(1, "newest", 3, 1s);
}

TEST(FormerMember, ThrowsItsCopyAwayWhereThoseThatCountAreThere) {
  Schedule s({});
  s.let_go_of_the_learner();
  const auto end = [&] { return s.all[2].core->replicated_store().end(PartitionId{0}).sequence; };
  s.run(900ms);
  EXPECT_EQ(end(), 1u);
  s.blocked = {{1, 2}};
  s.run(2s);
  EXPECT_EQ(end(), 1u) << "one of the two has not said that it is there";
  s.blocked = {};
  s.run(2s);
  EXPECT_EQ(end(), 0u);
}

struct Case {
  const char* name;
  Defect defect;
  bool (*goes_wrong)(Defects);
};
void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

class Schedules : public testing::TestWithParam<Case> {};
TEST_P(Schedules, GoWrongWithoutTheRuleAndNotWithIt) {
  EXPECT_FALSE(GetParam().goes_wrong({})) << "with the rule";
  EXPECT_TRUE(GetParam().goes_wrong({GetParam().defect})) << "without it";
}
INSTANTIATE_TEST_SUITE_P(Each, Schedules,
                         testing::Values(Case{"forget_grace", Defect::forget_grace, no_grace_after_a_restart},
                                         Case{"keep_answering", Defect::keep_answering, answers_after_deposing},
                                         Case{"serve_in_transfer", Defect::serve_in_transfer, serves_while_it_hands_over},
                                         Case{"promotion_without_lease", Defect::promotion_without_lease,
                                              needs_no_lease_of_who_may_be_promoted},
                                         Case{"abandon_promotion", Defect::abandon_promotion, forgets_who_may_be_promoted},
                                         Case{"lease_before_value", Defect::lease_before_value, looks_at_the_lease_first},
                                         Case{"forget_by_old_view", Defect::forget_by_old_view, forgets_by_an_old_view},
                                         Case{"forget_promise", Defect::forget_promise, forgets_its_promise},
                                         Case{"forget_unasked", Defect::forget_unasked, forgets_what_nobody_else_has},
                                         Case{"leave_accepted", Defect::leave_accepted, nobody_has_it_decided},
                                         Case{"keep_surplus", Defect::keep_surplus, keeps_what_the_primary_never_had}),
                         [](const auto& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace zht::core

// A replica that is a stranger in the newest view, in this life: how it comes back, and how those that count judge what it has. See
// "Coming back" in README.md.
#include "zht/core/replication/replica.h"

namespace zht::replication {

using Kind = Change::Kind;

void Replica::tick_stranger() {
  const Member self = host_.self();
  const auto old = member_at(view_, self.instance);
  if (end_.epoch > view_.epoch) return ask_to_settle();
  if (!old || old->incarnation >= self.incarnation) return;
  if (in_sync(view_, *old)) come_back(*old);
  else if (old->incarnation >= origin_.sure) propose({Kind::rejoin, view_.epoch, self, self});
}

// This log has entries of a newer epoch than the newest view. That view is old news; or those who decided a newer one have ended before
// they told of it, and others have only accepted it; or the keepers are older copies of themselves, and then nothing comes of it.
void Replica::ask_to_settle() {
  if (view_.epoch == Epoch{0} || host_.now() < next_standing_ || broken(Defect::leave_accepted)) return;
  next_standing_ = host_.now() + host_.timing().patience;
  host_.propose(partition_, {Kind::settle, view_.epoch, host_.self(), host_.self(), {}});
}

// Of a sync member that has restarted. Its log may be an older copy, put back, and nothing in it would tell: so it says what it has, and
// a member that counts, in the life in which it does, has it come back where nothing lacks (weigh()). Where none is there, those that
// have restarted too must not have more; and while some are silent, it waits for them for `founding`.
void Replica::come_back(Member old) {
  const base::Time now = host_.now();
  const Timing& timing = host_.timing();
  const Member self = host_.self();
  if (now >= next_standing_) {
    next_standing_ = now + 2 * timing.retry;
    for (Member one : view_.sync)
      if (one.instance != self.instance)
        host_.message_to(one.instance).standings.push_back({partition_, origin_.since, end_});
  }
  const bool sure = old.incarnation >= origin_.sure;
  if (sure && broken(Defect::trust_old_copy)) return propose({Kind::rejoin, view_.epoch, self, self, {}});
  Change together{Kind::recover, view_.epoch, self, self, {}};
  bool all = true, most = true, first = true;
  for (Member one : view_.sync) {
    if (one.instance == self.instance) {
      together.group.push_back(self);
      continue;
    }
    const auto found = standings_.find(one.instance);
    if (found == standings_.end() || found->second.member.incarnation <= one.incarnation) {
      all = false;
      continue;
    }
    const Alive& other = found->second;
    all = all && now - other.at <= 4 * timing.drop;
    together.group.push_back(other.member);
    most = most && (other.standing.end <= end_ || now - other.at > timing.slow);  // who is gone again is waited for no longer
    first = first && (other.standing.end < end_ || other.standing.since > one.incarnation || other.member.instance > self.instance);
  }
  const bool whole = old.incarnation >= origin_.since && !import_;
  if (!whole || !most || !host_.may_vouch()) return;
  if (sure && (all || now - adopted_at_ > timing.founding)) propose({Kind::rejoin, view_.epoch, self, self, {}});
  else if (all && first) propose(together);  // the longest log has all that was acknowledged
}

void Replica::on_standing(Member from, const Standing& standing) {
  Alive& alive = standings_[from.instance];
  if (from.incarnation >= alive.member.incarnation) alive = {from, standing, host_.now()};
  weigh(from, standing);
}

// A member of this view has restarted, and says what it has. This one was there all the time, and knows what was acknowledged with it: a
// follower must have all that is committed, and whoever led all that this one has, for it may have committed that.
void Replica::weigh(Member from, const Standing& standing) {
  const auto old = member_at(view_, from.instance);
  if (!old || old->incarnation >= from.incarnation || !in_sync(view_, *old)) return;
  const bool whole = standing.since <= old->incarnation;
  if (role() == Role::primary) {
    const auto needed = position_of(std::max(commit_, takeover_.sequence));
    if (whole && needed && *needed <= standing.end) propose({Kind::rejoin, view_.epoch, host_.self(), from, {}});
    else followers_.at(*old).stuck = true;  // it is a learner first
  } else if (role() == Role::sync && *old == view_.primary && !deposing_) {
    if (whole && end_ <= standing.end) propose({Kind::rejoin, view_.epoch, host_.self(), from, {}});
  }
}

// The folder is an older copy than others have seen: what is in it speaks for no earlier life.
void Replica::distrust() { origin_ = host_.store().origin(partition_); }

}  // namespace zht::replication

// When a replica has nothing to do until something comes for it: then no tick looks at it, and a node whose partitions are all at rest
// sleeps. Whatever Replica::tick() or send() begins to do by itself must be asked here, or it is never done (Defect::rest_too_soon).
#include "zht/core/replication/replica.h"

namespace zht::replication {

bool Replica::rests() const {
  if (broken(Defect::rest_too_soon)) return true;
  if (waits() || taking_over_ || deposing_) return false;
  switch (role()) {
    case Role::primary: return rests_as_primary();
    case Role::learner: return !(import_ && import_->leads_to) && !broken(Defect::promote_learner_blindly);
    case Role::sync: return true;
    case Role::stranger: {
      if (end_.epoch > view_.epoch && view_.epoch != Epoch{0}) return false;
      const auto old = member_at(view_, host_.self().instance);
      return !old || old->incarnation >= host_.self().incarnation;
    }
  }
  return false;
}

// All that is logged is committed, every follower has it and knows that, and no copy is missing, too many or about to move.
bool Replica::rests_as_primary() const {
  if (wish_.kind != Change::Kind::none || goal_ || full_ || durable_ != end_.sequence || commit_ != end_.sequence) return false;
  for (const auto& [peer, follower] : followers_) {
    const bool in_step = follower.attached && follower.match >= end_.sequence && follower.commit >= commit_ && !follower.stuck &&
                         !follower.full && !follower.snapshot && !host_.channel(peer).has_left(partition_, view_.epoch);
    if (!in_step) return false;
  }
  const std::size_t wanted = host_.timing().sync_copies;
  const Spread& is = spread();
  const bool is_short = is.sync_nodes < wanted || is.sync_racks < std::min(wanted, is.racks);
  return !is.grows && view_.sync.size() + view_.learners.size() == is.nodes && (view_.learners.empty() || !is_short);
}

}  // namespace zht::replication

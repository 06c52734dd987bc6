// Rules that can be broken on purpose. Each names one rule of the protocol; with the defect switched on the rule is not
// kept, and the simulator must then find a violation: that is how it shows that it would notice. Nothing but tests ever
// switches one on.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace zht::replication {

enum class Defect : std::uint8_t {
  promote_learner_blindly,  // a learner may depose the primary
  acknowledge_early,        // a change is answered when the primary alone has it
  acknowledge_unsynced,     // a follower acknowledges before its durability point
  no_fence,                 // followers accept entries of any epoch
  drop_tail,                // a new primary throws away what it does not know to be committed
  abandon_promotion,        // the primary stops waiting for a learner whose promotion may still be decided
  promotion_without_lease,  // no lease is needed from a learner whose promotion is outstanding
  no_lease,                 // reads are answered without lease or confirmation
  lease_before_value,       // the lease is looked at first and the value taken later
  dirty_read,               // reads do not wait for the changes they saw
  keep_answering,           // a follower that asked to depose its primary still answers it
  keep_surplus,             // a follower keeps entries that its new primary never had
  few_copies,               // changes are committed with fewer sync members than wanted
  forget_grace,             // a restarted follower may depose at once
  serve_in_transfer,        // the old primary serves on while it hands over
  same_incarnation,         // a replica comes back under its old incarnation
  trust_torn,               // a log that ended in a bad record is taken to be complete
  trust_damage,             // a damaged log is cut at the damage and taken to be whole
  forget_loss,              // a replica that lost its log forgets that at its next restart
  forget_by_old_view,       // who hears, after a restart, of a view from before it was a member throws its copy away
  vouch_while_importing,    // a half imported snapshot counts as a whole log
  keeper_amnesia,           // keepers forget what they promised when they restart
  keeper_unsynced,          // keepers answer before their promise is durable
  install_from_one,         // new keepers take what one of the older ones knows for all that was decided
  no_retry_table,           // retries are executed again
  forget_refusals,          // a refused request is not remembered, so that a late copy of it may succeed
  trust_old_refusal,        // a client believes a refusal from before the epoch it last asked in
  keep_results_of_truncated,  // a truncated change leaves its answer behind
  wake_uncommitted,         // watchers are told of changes that are not committed
  vote_unasked,             // a keeper that begins again votes before it has asked who keeps
  same_generation,          // who keeps alone as a last resort goes on with the epochs as they were
  vote_after_loss,          // a keeper that has lost its registers takes another's of the same configuration and votes on
  forget_unasked,           // a former member throws its copy away without asking whether those who count are there
  copies_by_instance,       // copies are counted by instance: two on one node are taken for two
  forget_intents,           // who plans where partitions go counts what is half moved as it stands
  hold_surplus,             // a goal that needs one more copy where there is one too many waits for ever
  trust_old_copy,           // a restarted sync member comes back on its own word
  same_life_again,          // a folder that was put back begins a life that there was
  forget_sightings,         // nobody remembers how far another's folder was
  vote_from_old_copy,       // a keeper votes with registers that others have seen further
  leave_accepted,           // who has entries of a newer view than is known does not ask for that view to be decided
  forget_unsettled,         // that a key's change may be taken back is known only as long as there is room to take it back
  rest_too_soon,            // a replica with something to do at the next tick says that it has nothing
  forget_promise,           // a copy that was told to lead alone does not note it: it follows on, and may be thrown away
};

// A set of them.
class Defects {
 public:
  constexpr Defects() = default;
  constexpr Defects(std::initializer_list<Defect> which) { for (Defect one : which) bits_ |= bit(one); }
  constexpr bool has(Defect one) const { return (bits_ & bit(one)) != 0; }
  constexpr bool any() const { return bits_ != 0; }

 private:
  static constexpr std::uint64_t bit(Defect one) { return std::uint64_t{1} << static_cast<unsigned>(one); }
  std::uint64_t bits_ = 0;
};

}  // namespace zht::replication

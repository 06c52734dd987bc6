// A node's part in keeping: whether it is one of the keepers, who the others are, and how others take their place. Every node has
// one; on those that keep, there is a Keeper in it.
//
// Who keeps is a register like a partition's view, decided by those who keep: its epoch is the configuration's number, its value
// the list of nodes. From configuration c to c + 1:
//
//   1. The keepers of c decide the list of c + 1. Any list; nothing of the old one need be in it.
//   2. Whoever knows of it votes under c no more, durably, and sends its registers, as they are then and stay, to those of c + 1.
//   3. Who is in c + 1 waits for the registers of a majority of c (or for those of one that has got so far), takes of each
//      register the newest view and of that the acceptance with the highest ballot, makes that durable and begins to vote.
//
// What c decided, a majority accepted. One of them is in every majority that sent its registers, and it accepted before it sent
// them, for afterwards it votes no more; so all of c + 1 begin with every decision of c, and with the acceptance of whatever
// may yet be found to have been decided. An acceptance that another made is repeated as knowledge and never counted as a vote,
// for every message of a vote names its configuration. No clock, disk, thread or socket.
//
// A keeper that has lost its registers (they rotted, or are gone) votes no more in a configuration in which it may have voted: that
// it did is noted elsewhere (`note_voted`). It tells so, and the others decide a configuration with it in it, for which they give it
// theirs.
//
// A keeper whose folder is found to be an older copy (sightings.h) has lost its registers and cannot know in which configurations it voted. If
// that was in one after the newest it hears of, a majority of the keepers of the one before knew of it. So it asks them, in this life, until
// so many have answered that some of them must be in every such majority; up to there it may have voted, and in what is decided later it
// has not. Until then it takes no registers, and answers nobody who asks the same: two older copies do not assure each other.
//
// The last resort, when a majority of the keepers is gone for good: a node begins a configuration of another *generation*, which
// nobody has decided, and keeps alone (keep_alone()). Its number is higher than any that the lost ones can have decided, and so are
// the epochs of its views; so whoever hears of both follows the new one. And a keeper that begins again asks all it knows who keeps
// before it votes, for `look_around`: else those that were given up and come back together would decide before they hear.
//
// A keeper that was silent for `replace`, or leaves, is replaced by a living node when there is one: the keeper with the lowest
// number that lives wishes for that. Three keep as soon as there are three nodes, and one where only fewer are left.
#pragma once

#include <functional>
#include <memory>

#include "zht/core/replication/manager.h"

namespace zht::replication {

struct KeepershipOptions {
  NodeId self{0};
  std::uint32_t partitions = 0;
  std::uint64_t config = 1;     // who keeps, as last known
  std::vector<NodeId> keepers;
  base::Duration replace = std::chrono::seconds(10);  // a keeper that nobody heard for this long
  base::Duration again = std::chrono::milliseconds(300);  // what was not answered is said again
  base::Duration retry = std::chrono::milliseconds(30);   // see KeeperOptions
  base::Duration look_around = std::chrono::seconds(1);   // a keeper that begins again votes when all have answered, or then
  // The newest configuration in which this node has ever voted; 0: in none; nothing: a build that did not note it may have.
  std::optional<std::uint64_t> voted = 0;
  // Notes it durably, before the first vote. An error: it does not vote.
  std::function<Result<void>(std::uint64_t config)> note_voted;
  // Whether this node's folder is known to be no older copy (sightings.h): it does not vote before. And whether the votes of that life
  // of another count. Empty: always.
  std::function<bool()> may_vote;
  std::function<bool(NodeId node, std::uint64_t life)> trusts;
  bool outdated = false;   // ... that it was found to be one, in an earlier life
  std::uint64_t life = 0;  // this node's incarnation
  Defects defects;
  std::uint64_t seed = 1;
};

// Configurations of one generation are decided one after another; a higher one was begun as a last resort.
inline constexpr std::uint64_t generation_of(std::uint64_t config) { return config >> 32; }

// As NodeInfo::lost_registers: the node has lost them, and may have voted in later configurations than it knows.
inline constexpr std::uint64_t kNotKnown = kLastNumber;

// One thread. `manager` and what `open` returns outlive it.
class Keepership {
 public:
  // `open`: the store of registers, made when it is absent; called once, when this node keeps or kept.
  using Open = std::function<Result<RegisterStore*>()>;

  Keepership(KeepershipOptions options, Manager& manager, Open open);

  // In a life in which this node keeps, or kept once: takes up what the store has. `first`: the views a cluster began with, by
  // register (each partition's, then that of numbers); those of a node that was given its registers do not matter. Errors:
  // of the store; corrupt.
  Result<void> begin(std::vector<View> first);

  void on_message(const ManagerMessage& message, base::Time now);
  void tick(base::Time now);
  base::Time next_due() const;  // of tick()
  // A view that the manager has learned.
  void on_view(PartitionId partition, const View& view, base::Time now);
  // The last resort, see above: from now on this node alone decides, beginning with the newest views that it has heard of, or has
  // accepted. What the lost keepers have decided and it has not heard of is undone. `random`: two nodes that do this at once must not
  // give out one number. A person has seen to it that the majority of the keepers of `config` will not come back, and is off.
  // conflict: another configuration is known. unavailable: this node has not heard of every partition. io, corrupt: of the store.
  Result<void> keep_alone(std::uint64_t config, std::uint64_t random);

  // This node's folder is an older copy: what it promised since is not in it. From now on, durably, it has lost its registers. Errors:
  // of the store.
  Result<void> distrust();

  // What is to be said after everything it rests on is durable; the rest goes into the manager's messages. Views that were
  // decided here are adopted by the manager and broadcast. `again`: something here may be news to the manager. An error: this
  // node can keep no more, ever.
  Result<std::vector<KeeperSend>> end_round(base::Time now, bool& again);

  // Whether other keepers are known than at the last call.
  bool take_changed() { return std::exchange(changed_, false); }
  std::uint64_t config() const { return config_; }
  const std::vector<NodeId>& keepers() const { return keepers_; }
  bool keeps(NodeId node) const;
  bool votes() const { return keeper_ != nullptr; }
  // It is a keeper and cannot vote, for it does not have what it had promised: the others have to give it new registers.
  bool has_lost_registers() const {
    return keeps(options_.self) && !keeper_ && !failed_ && !awaits_vote() && (finds_out_ || voted_ >= config_);
  }
  Keeper* keeper() { return keeper_.get(); }
  std::string story() const;  // all that matters of its state, in a line, for people
  // Nothing that others still need of this node's registers would go with it.
  bool may_leave() const { return !keeps(options_.self) && uninformed_.size() * 2 < std::max<std::size_t>(keepers_.size(), 1); }

 private:
  // Registers: the partitions', that of numbers, and then
  PartitionId who_keeps() const { return PartitionId{options_.partitions + 1}; }  // decided; what follows it may not be here
  PartitionId votes_in() const { return PartitionId{options_.partitions + 2}; }   // the one these registers are of
  std::size_t count() const { return std::size_t{options_.partitions} + 3; }
  const View& view_of(PartitionId one) const { return registers_[static_cast<std::uint32_t>(one)].current; }

  bool trusts(const ManagerMessage& message) const {
    return !options_.trusts || options_.trusts(message.from, message.life) || options_.defects.has(Defect::vote_from_old_copy);
  }
  bool may_vote() const { return !options_.may_vote || options_.may_vote() || options_.defects.has(Defect::vote_from_old_copy); }
  bool awaits_vote() const { return vote_by_ != base::Time{}; }
  Result<void> save(const std::vector<Register>& registers, PartitionId from);  // and those after it
  ManagerMessage& message_for(NodeId node);
  Result<void> vote();
  void look_around(base::Time now);
  void find_out(base::Time now);
  void note_lost();
  Result<void> learn(std::uint64_t config, const std::vector<NodeId>& keepers);
  Result<void> note_voted();
  Result<void> take_in_own();
  Result<void> take_in(const ManagerMessage& message);
  void send_registers(base::Time now);
  void plan(base::Time now);

  const KeepershipOptions options_;
  Manager& manager_;
  const Open open_;
  RegisterStore* store_ = nullptr;
  base::Random random_;
  std::uint64_t config_;
  std::vector<NodeId> keepers_;
  bool changed_ = false;
  std::unique_ptr<Keeper> keeper_;     // votes
  std::vector<Register> registers_;    // of who does not vote any more, or not yet; none of who never kept
  std::map<NodeId, std::vector<Register>> gathered_;  // from keepers of the configuration before this
  std::set<NodeId> uninformed_;        // keepers that have not said that they have the registers
  std::map<NodeId, base::Time> silent_since_;
  base::Time next_registers_{}, next_plan_{}, next_question_{};
  std::uint64_t voted_ = 0;
  bool own_due_ = false;     // its own registers are to be taken in when it may vote
  bool finds_out_ = false;   // it may have voted in later configurations than it knows; and who has answered since it knows this one
  std::set<NodeId> answered_;
  // Before the first vote of this life: who has not said yet who keeps, and until when that is waited for (base::Time::max(): not
  // asked yet). The epoch of the clock: nothing is waited for.
  std::set<NodeId> asked_;
  base::Time vote_by_{};
  std::optional<Error> failed_;
};

// The view that the register of keepers has in this configuration.
View keepers_view(std::uint64_t config, const std::vector<NodeId>& keepers);
std::vector<NodeId> keepers_of(const View& view);

}  // namespace zht::replication

// Where partitions should be: a pure function of where they are and who is there. Its result is a list of wishes; nothing
// is lost when two nodes compute different ones, for a primary turns each into Changes and the keepers check those.
#pragma once

#include <map>
#include <set>
#include <span>

#include "zht/core/replication/replica.h"

namespace zht::replication {

struct Place {
  InstanceId instance{0};
  std::uint32_t rack = 0;
  bool leaving = false;  // to be emptied
  bool room = true;      // may take more, and lead more
  std::uint64_t node = 0;  // two copies are never on one
  bool stopping = false;   // ends for a while
  bool operator==(const Place&) const = default;
};

struct BalanceOptions {
  std::size_t copies = 3;
  // Goals that were set and are not reached yet. They count as reached, and their partitions are left alone: a plan that counted what
  // is half moved as not moved, or as there twice, would move more than is needed, and then some of it back, for ever.
  std::set<PartitionId> touched;  // were changed a moment ago, by somebody else perhaps: not moved for evenness
  std::map<PartitionId, Goal> under_way;
  std::set<PartitionId> moving;  // the same, of which the goal is not known: a move has a copy more for a while, and none is dropped here
  std::size_t moves = 4;    // goals at once: a copy costs network, and one more copy of the data while it lasts
  std::size_t empties = 4;  // of these, for what must move
  Defects defects;
};

struct Placed {
  PartitionId partition{0};
  Goal goal;
};

// Goals that differ from the views: first for what must move (from instances that are leaving), then for copies on different racks,
// then for evenness of copies, taken from where most are, then of primaries. No goal has two copies on one node. A partition with a
// member that is not among `places`, with too few, or with two on one node is left to its primary's repair.
std::vector<Placed> balance(std::span<const View> views, std::span<const Place> places, const BalanceOptions& options);

// Where the partitions go that have a copy on `node` when it ends for a while: to the members elsewhere, of each node one, led by one
// that stays. No copy is made for it, as long as the others are enough (Replica::want_goal): it comes back. `places`: those that live. Not
// among the goals are partitions of which nobody who stays has a copy; nothing is won there.
std::vector<Placed> hand_over(std::span<const View> views, std::span<const Place> places, std::uint64_t node);

}  // namespace zht::replication

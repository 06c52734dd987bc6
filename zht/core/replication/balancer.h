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
};

struct BalanceOptions {
  std::size_t copies = 3;
  std::set<PartitionId> moving;  // of what has a copy too many none is dropped here: a move under way has one more for a while
  std::size_t moves = 4;  // goals at once: a copy costs network, and one more copy of the data while it lasts
};

struct Placed {
  PartitionId partition{0};
  Goal goal;
};

// Goals that differ from the views: first for what must move (from instances that are leaving), then for evenness of
// copies, taken from where most are, then of primaries. A partition with a member that is not among `places`, or with too
// few, is left to its primary's repair.
std::vector<Placed> balance(std::span<const View> views, std::span<const Place> places, const BalanceOptions& options);

// Where the partitions go that have a copy on `node` when it ends for a while: to the members elsewhere, led by one that stays. No
// copy is made for it: it comes back. `places`: those that live. Not among the goals are partitions of which nobody who stays
// has a copy; nothing is won there.
std::vector<Placed> hand_over(std::span<const View> views, std::span<const Place> places, std::uint64_t node);

}  // namespace zht::replication

// What numbers may be that another node tells. A decoder asks here before anything is done with what it has read: a partition that
// the cluster does not have would make a replica of nothing, a number at the end of its range overflows with the next step, and a
// view without its primary is no view. What is refused is refused whole, by name, and never a reason to end.
//
// Epochs, sequences, ballots and heartbeats are counted one by one; kLastNumber is so far away that a cluster never comes to it, and
// leaves room to count on. One that is far ahead of what is known here is refused even below that (may_follow()): only
// Keepership::keep_alone() leaps, by 256 generations of 2^32 at most, and a node may have been away while that was done several times.
#pragma once

#include "zht/core/replication/manager.h"

namespace zht::replication {

inline constexpr std::size_t kMostAbout = std::size_t{64} << 10;  // bytes of what a node tells of itself

// invalid: what of it cannot be. A view of epoch 0, which says that none is known, has nobody in it.
Result<void> check_view(const View& view);
Result<void> check(const PeerMessage& message, std::uint32_t partitions);
Result<void> check(const ManagerMessage& message, std::uint32_t partitions);
Result<void> check(const Register& state);

}  // namespace zht::replication

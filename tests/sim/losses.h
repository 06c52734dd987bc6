// What the world took from the disks, and so what a partition may lack through nobody's fault.
//
// Durability interval promises less than always: what was acknowledged is on every sync member, but only written there. So a
// partition may lose entries only when each of its sync members has lost some: by its power, then what it had not synced; or
// because a bit of its files rotted, then all that its store did not find again. What any of them had kept must be there all
// the same, for the longest log leads.
#pragma once

#include <cstdint>
#include <map>

#include "tests/sim/history.h"
#include "tests/sim/ledger.h"
#include "zht/core/replication/view.h"

namespace zht::sim {

using replication::Member;
using replication::View;

class Losses {
 public:
  Losses(History& history, const Ledger& ledger) : history_(history), ledger_(ledger) {}

  void synced(Member who, std::uint32_t partition, Position end) { disks_[who.instance].synced[partition] = end; }
  void power_lost(Member who) { disks_[who.instance].lessened = who.incarnation; }
  void rotted(Member who) { disks_[who.instance].rotten = who.incarnation; }
  // The instance's next life has opened its store, which found the partition's log up to `end` and has synced that. `whole`:
  // nothing was cut off or put aside.
  void opened(Member who, std::uint32_t partition, Position end, bool whole);
  // The partition's newest view is this, or a disk of a member of it has lost something.
  void look(std::uint32_t partition, const View& view);

  bool any_rotted() const;
  bool has_rotted(Member who) const;

 private:
  struct Disk {
    std::uint64_t lessened = 0;  // the newest incarnation that may have left less than it had written; 0: none
    std::uint64_t rotten = 0;    // the one whose files rotted
    std::map<std::uint32_t, Position> synced;  // by partition
  };

  History& history_;
  const Ledger& ledger_;
  std::map<InstanceId, Disk> disks_;
};

}  // namespace zht::sim

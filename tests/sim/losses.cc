#include "tests/sim/losses.h"

#include <algorithm>

namespace zht::sim {

void Losses::opened(Member who, std::uint32_t partition, Position end, bool whole) {
  Disk& disk = disks_[who.instance];
  Position& kept = disk.synced[partition];
  if (!whole && disk.rotten != 0 && disk.rotten + 1 == who.incarnation) {
    disk.lessened = std::max(disk.lessened, disk.rotten);
    kept = end;
  } else if (history_.agreed(partition, ledger_, end) > history_.agreed(partition, ledger_, kept)) {
    kept = end;
  }
}

void Losses::look(std::uint32_t partition, const View& view) {
  Version kept = 0;
  for (Member one : view.sync) {
    const auto found = disks_.find(one.instance);
    if (found == disks_.end() || found->second.lessened < one.incarnation) return;
    if (const auto synced = found->second.synced.find(partition); synced != found->second.synced.end())
      kept = std::max(kept, history_.agreed(partition, ledger_, synced->second));
  }
  history_.may_lose(partition, kept);
}

bool Losses::any_rotted() const {
  return std::any_of(disks_.begin(), disks_.end(), [](const auto& one) { return one.second.rotten != 0; });
}

bool Losses::has_rotted(Member who) const {
  const auto found = disks_.find(who.instance);
  return found != disks_.end() && who.incarnation <= found->second.rotten;
}

}  // namespace zht::sim

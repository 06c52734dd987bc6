#include "fusionfs/fuse/inodes.h"

namespace fusionfs {

std::shared_ptr<MountedInode> InodeTable::find(InodeId inode) const {
  const Slice& at = slice(inode);
  const std::lock_guard lock(at.mutex);
  const auto found = at.inodes.find(raw(inode));
  return found == at.inodes.end() ? nullptr : found->second;
}

std::shared_ptr<MountedInode> InodeTable::get(InodeId inode, std::uint64_t more_lookups) {
  Slice& at = slice(inode);
  const std::lock_guard lock(at.mutex);
  auto& found = at.inodes[raw(inode)];
  if (!found) found = std::make_shared<MountedInode>(inode);
  found->lookups += more_lookups;
  return found;
}

void InodeTable::forget(InodeId inode, std::uint64_t lookups) {
  {
    Slice& at = slice(inode);
    const std::lock_guard lock(at.mutex);
    const auto found = at.inodes.find(raw(inode));
    if (found == at.inodes.end()) return;
    found->second->lookups -= std::min(lookups, found->second->lookups);
  }
  trim(inode);
}

void InodeTable::trim(InodeId inode) {
  Slice& at = slice(inode);
  std::shared_ptr<MountedInode> last;  // destroyed after the lock is released: that may close files
  const std::lock_guard lock(at.mutex);
  const auto found = at.inodes.find(raw(inode));
  if (found == at.inodes.end() || found->second->lookups > 0) return;
  {
    const std::lock_guard inner(found->second->mutex);
    if (found->second->opens > 0 || found->second->dirty || found->second->in_flight) return;
  }
  last = std::move(found->second);
  at.inodes.erase(found);
}

void InodeTable::opened(InodeId inode) {
  const std::lock_guard lock(mutex_);
  open_[raw(home_of(inode))].insert(inode);
}

void InodeTable::closed(InodeId inode) {
  const std::lock_guard lock(mutex_);
  const auto found = open_.find(raw(home_of(inode)));
  if (found == open_.end()) return;
  found->second.erase(inode);
  if (found->second.empty()) open_.erase(found);
}

std::vector<InodeId> InodeTable::open_in(HomeId home) const {
  const std::lock_guard lock(mutex_);
  const auto found = open_.find(raw(home));
  if (found == open_.end()) return {};
  return {found->second.begin(), found->second.end()};
}

std::vector<HomeId> InodeTable::open_homes() const {
  const std::lock_guard lock(mutex_);
  std::vector<HomeId> homes;
  for (const auto& [home, inodes] : open_) homes.push_back(HomeId{home});
  return homes;
}

std::vector<std::shared_ptr<MountedInode>> InodeTable::all() const {
  std::vector<std::shared_ptr<MountedInode>> list;
  for (const Slice& at : slices_) {
    const std::lock_guard lock(at.mutex);
    for (const auto& [id, inode] : at.inodes) list.push_back(inode);
  }
  return list;
}

std::size_t InodeTable::size() const {
  std::size_t sum = 0;
  for (const Slice& at : slices_) {
    const std::lock_guard lock(at.mutex);
    sum += at.inodes.size();
  }
  return sum;
}

}  // namespace fusionfs

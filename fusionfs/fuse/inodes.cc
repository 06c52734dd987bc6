#include "fusionfs/fuse/inodes.h"

#include <algorithm>

namespace fusionfs {
namespace {

constexpr std::size_t kBlock = 16;                             // what the allocator adds to each
constexpr std::size_t kNode = 6 * sizeof(void*) + 3 * kBlock;  // of a map, and its place in the map's table
constexpr std::size_t kManyInodes = 1000;                      // of one slice

std::size_t bytes_of(const std::string& text) { return text.capacity() < sizeof text / 2 ? 0 : text.capacity() + kBlock; }

std::size_t bytes_of(const KnownNames& known) {
  return sizeof known + known.names.size() * (kNode + sizeof(std::string));  // long names are few
}

// inode.mutex is held.
std::size_t bytes_of(const MountedInode& inode) {
  std::size_t sum = sizeof inode + 2 * kBlock + bytes_of(inode.record.content) + inode.reached_by.capacity() * sizeof(ReachedBy);
  for (const ReachedBy& each : inode.reached_by) sum += bytes_of(each.name);
  sum += inode.names ? bytes_of(*inode.names) : 0;
  return sum + inode.written.capacity() * sizeof(Extent) + (inode.content_stores.capacity() + inode.record.copies.capacity()) * sizeof(std::uint64_t);
}

// Whether the store can tell it all again. inode.mutex is held.
bool idle(const MountedInode& inode, base::Time now, base::Time before) {
  if (inode.opens > 0 || inode.dirty || inode.in_flight || inode.gone || inode.invalidating > 0) return false;
  if (inode.write_error != 0 || inode.appends_until != base::Time{}) return false;
  if (inode.names && (now < inode.names->lease_until || inode.names->loading)) return false;
  return inode.known_at < before && (inode.reached_by.empty() || inode.reached_by.back().at < before);
}

}  // namespace

std::shared_ptr<MountedInode> InodeTable::find(InodeId inode) const {
  const Slice& at = slice(inode);
  const std::lock_guard lock(at.mutex);
  const auto found = at.nodes->inodes.find(raw(inode));
  return found == at.nodes->inodes.end() ? nullptr : found->second.inode;
}

std::shared_ptr<MountedInode> InodeTable::get(InodeId inode, std::uint64_t more_lookups) {
  Slice& at = slice(inode);
  const std::lock_guard lock(at.mutex);
  Known& found = at.nodes->inodes[raw(inode)];
  if (!found.inode) {
    found.inode = std::make_shared<MountedInode>(inode);
    found.inode->unsure_until = found.unsure_until;
  }
  found.lookups += more_lookups;
  return found.inode;
}

void InodeTable::forget(InodeId inode, std::uint64_t lookups) {
  {
    Slice& at = slice(inode);
    const std::lock_guard lock(at.mutex);
    const auto found = at.nodes->inodes.find(raw(inode));
    if (found == at.nodes->inodes.end()) return;
    found->second.lookups -= std::min(lookups, found->second.lookups);
  }
  trim(inode);
}

void InodeTable::trim(InodeId inode) {
  Slice& at = slice(inode);
  std::shared_ptr<MountedInode> last;  // destroyed after the lock is released: that may close files
  const std::lock_guard lock(at.mutex);
  const auto found = at.nodes->inodes.find(raw(inode));
  if (found == at.nodes->inodes.end() || found->second.lookups > 0) return;
  if (found->second.inode) {
    const std::lock_guard inner(found->second.inode->mutex);
    if (found->second.inode->opens > 0 || found->second.inode->dirty || found->second.inode->in_flight) return;
  }
  last = std::move(found->second.inode);
  at.nodes->inodes.erase(found);
  // The pool keeps what its largest table took.
  if (at.nodes->inodes.empty() && at.nodes->inodes.bucket_count() > kManyInodes) at.nodes = std::make_unique<Nodes>();
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
    for (const auto& [id, known] : at.nodes->inodes) {
      if (known.inode) list.push_back(known.inode);
    }
  }
  return list;
}

std::size_t InodeTable::size() const {
  std::size_t sum = 0;
  for (const Slice& at : slices_) {
    const std::lock_guard lock(at.mutex);
    sum += at.nodes->inodes.size();
  }
  return sum;
}

std::size_t InodeTable::bytes() const {
  std::size_t sum = 0;
  for (const Slice& at : slices_) {
    const std::lock_guard lock(at.mutex);
    sum += at.nodes->inodes.size() * kNode;
    for (const auto& [id, known] : at.nodes->inodes) {
      if (!known.inode) continue;
      const std::lock_guard inner(known.inode->mutex);
      sum += bytes_of(*known.inode);
    }
  }
  return sum;
}

std::size_t InodeTable::drop_idle(base::Time now, base::Time before, base::Duration names_live) {
  std::size_t less = 0;
  for (Slice& at : slices_) {
    std::vector<std::shared_ptr<MountedInode>> dropped;  // destroyed after the lock is released
    const std::lock_guard lock(at.mutex);
    for (auto& [id, known] : at.nodes->inodes) {
      // Who has a reference of its own may be about to change it; a new one is given under this lock only.
      if (!known.inode || known.inode.use_count() > 1) continue;
      {
        const std::lock_guard inner(known.inode->mutex);
        if (!idle(*known.inode, now, before)) continue;
        less += bytes_of(*known.inode);
        known.unsure_until = known.inode->unsure_until;
        for (const ReachedBy& each : known.inode->reached_by) known.unsure_until = std::max(known.unsure_until, each.at + names_live);
      }
      dropped.push_back(std::move(known.inode));
    }
  }
  return less;
}

}  // namespace fusionfs

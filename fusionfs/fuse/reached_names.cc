// The names by which the kernel has come to an inode: what becomes of them here, and whether they lead there still. An open asks the
// store for the name, which tells of the inode too: one request, as for the inode alone.
#include <algorithm>
#include <cerrno>

#include "fusionfs/fuse/file_system.h"

namespace fusionfs {

void FileSystem::reached(MountedInode& inode, InodeId directory, const std::string& name) {
  const base::Time now = clock_.now();
  std::erase_if(inode.reached_by, [&](const ReachedBy& each) {
    return now - each.at > options_.name_timeout + kAnswerTaken || (each.directory == directory && each.name == name);
  });
  inode.reached_by.push_back({directory, name, now});
}

void FileSystem::unnamed_here(InodeId id, InodeId directory, const std::string& name) {
  const auto inode = table_.find(id);
  if (!inode) return;
  const std::lock_guard lock(inode->mutex);
  std::erase_if(inode->reached_by, [&](const ReachedBy& each) { return each.directory == directory && each.name == name; });
}

// The kernel moves its name with its time.
void FileSystem::renamed_here(InodeId id, InodeId from, const std::string& from_name, InodeId to, const std::string& to_name) {
  unnamed_here(id, from, from_name);
  const auto inode = table_.find(id);
  if (!inode) return;
  const std::lock_guard lock(inode->mutex);
  reached(*inode, to, to_name);
}

// Without a request: this mount alone has changed the directory's names since it led here.
bool FileSystem::surely_named(const ReachedBy& name) {
  if (!options_.leases) return false;
  const auto directory = table_.find(name.directory);
  if (!directory) return false;
  const std::lock_guard lock(directory->mutex);
  if (!directory->names || !directory->names->complete) return false;
  const KnownNames& known = *directory->names;
  return known.sequence == known.seen && clock_.now() < known.lease_until && name.at >= known.since && known.names.count(name.name) != 0;
}

Task<FileSystem::Named> FileSystem::check_names(std::shared_ptr<MountedInode> inode, Metadata::For what) {
  Named named;
  if (options_.name_timeout.count() == 0) co_return named;  // the kernel has asked on its way here
  std::vector<ReachedBy> names;
  {
    const std::lock_guard lock(inode->mutex);
    const base::Time now = clock_.now();
    if (now < inode->unsure_until) {  // which names they are was let go of
      named.stale = true;
      co_return named;
    }
    for (const ReachedBy& each : inode->reached_by) {
      if (now - each.at <= options_.name_timeout + kAnswerTaken) names.push_back(each);
    }
  }
  for (const ReachedBy& each : names) {
    if (surely_named(each)) continue;
    Reply reply = co_await metadata_.find(each.directory, each.name, what);
    if (reply.error != 0 && reply.error != ENOENT) {
      named.error = reply.error;
      co_return named;
    }
    if (reply.error == 0 && reply.entry->inode == inode->id) {
      if (reply.inode) named.found = std::move(reply.inode);
      continue;
    }
    // It stays among the names: this call may have come by another, and the kernel go on using this one.
    named.stale = true;
  }
  co_return named;
}

Task<int> FileSystem::open_directory(InodeId id, std::uint32_t thread) {
  const auto inode = table_.get(id, 0);
  if (retries_.on_second_walk(thread, Retries::Request::other, id)) co_return 0;
  bool known = false;
  {
    const std::lock_guard lock(inode->mutex);
    known = inode->record.mode != 0;
  }
  if (!known) co_await refresh(inode);  // its parent is listed
  const Named named = co_await check_names(inode, Metadata::For::looking);
  if (named.error != 0) co_return named.error;
  co_return named.stale ? retries_.stale(thread, 0, Retries::Request::other, id) : 0;
}

Task<Looked> FileSystem::getattr_by_name(InodeId id, std::uint32_t thread) {
  Looked looked = co_await getattr(id);
  if (looked.error != ENOENT) co_return looked;
  // Another mount has removed it, or has given its name to another. Of what was looked up during this very call the caller gets what
  // was known then.
  looked.error = retries_.stale(thread, ENOENT, Retries::Request::attributes, id);
  if (looked.error != ENOENT) co_return looked;
  const auto inode = table_.get(id, 0);
  const std::lock_guard lock(inode->mutex);
  if (inode->record.mode == 0) co_return looked;
  looked.error = 0;
  looked.inode = view(inode->record);
  co_return looked;
}

Task<Looked> FileSystem::setattr_by_name(SetRequest request, std::uint32_t thread) {
  const InodeId id = request.inode;
  const auto inode = table_.get(id, 0);
  bool open = false;
  {
    const std::lock_guard lock(inode->mutex);
    open = inode->opens > 0;
  }
  // The kernel does not say whether fchmod(2) and the like have a descriptor; of an open file they are as good as by one.
  const bool by_name = !open || (request.fields_set & SetRequest::kSize) != 0;
  Looked looked;
  if (by_name && !retries_.on_second_walk(thread, Retries::Request::other, id)) {
    const Named named = co_await check_names(inode, Metadata::For::looking);
    looked.error = named.error != 0 ? named.error : named.stale ? retries_.stale(thread, 0, Retries::Request::other, id) : 0;
    if (looked.error != 0) co_return looked;
  }
  looked = co_await setattr(std::move(request));
  if (looked.error == ENOENT) looked.error = retries_.stale(thread, ENOENT, Retries::Request::other, id);
  co_return looked;
}

}  // namespace fusionfs

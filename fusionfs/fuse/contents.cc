// Contents: reading, writing, appending, locking, committing. See file_system.h.
#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "fusionfs/fuse/file_system.h"

namespace fusionfs {
namespace {

// co_await: goes on on the background thread, after the jobs it has been given before.
struct InTurn {
  std::function<void(std::function<void()>)> later;
  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> waiter) {
    const auto post = later;  // this object may go before the call returns
    post([waiter] { waiter.resume(); });
  }
  void await_resume() const noexcept {}
};

}  // namespace

int errno_of_local(const base::Error& error) { return error.code == base::Code::no_space ? ENOSPC : EIO; }

std::uint32_t without_set_ids(std::uint32_t mode) {
  return mode & ~(S_ISUID | ((mode & S_IXGRP) != 0 ? std::uint32_t{S_ISGID} : 0u));
}

// Waits until the kernel has forgotten what somebody else has changed.
Task<int> FileSystem::forgotten_by_kernel(std::shared_ptr<MountedInode> inode) {
  bool waits = false;
  {
    const std::lock_guard lock(inode->mutex);
    waits = inode->invalidating > 0;
  }
  if (waits) {
    InTurn turn{[this](std::function<void()> job) { later(std::move(job)); }};
    co_await turn;
  }
  co_return 0;
}

// Before a file is used whose chunks are on a node that this mount has not heard of: it may just have come.
Task<int> FileSystem::find_stores(std::shared_ptr<MountedInode> inode) {
  bool known = true;
  {
    const std::lock_guard lock(inode->mutex);
    for (const std::uint64_t store : inode->record.stores()) known = known && stores_.known(store);
  }
  if (!known) {
    later([this] {
      const auto now = clock_.now();
      if (now - stores_sought_ < std::chrono::seconds(1)) return;
      stores_sought_ = now;
      static_cast<void>(stores_.refresh());
    });
    InTurn turn{[this](std::function<void()> job) { later(std::move(job)); }};
    co_await turn;
  }
  co_return 0;
}

void FileSystem::mark_dirty_locked(MountedInode& inode) {
  if (inode.dirty) return;
  inode.dirty = true;
  const std::lock_guard lock(dirty_mutex_);
  dirty_.insert(inode.id);
}

// Moves inline content to chunks. The record says so with the next commit.
int FileSystem::spill_locked(MountedInode& inode) {
  const auto content = content_of(inode);
  auto done = content->begin_writing(0);
  if (done && !inode.record.content.empty()) done = content->write(0, inode.record.content);
  if (!done) {
    warn(done.error().message);
    return errno_of_local(done.error());
  }
  inode.record.flags = static_cast<std::uint8_t>(inode.record.flags & ~Inode::kInline);
  inode.record.content.clear();
  inode.record.store = chunks_.identity();
  inode.spilled = true;
  inode.dirty_from = inode.dirty_to = 0;
  return 0;
}

int FileSystem::write(InodeId id, std::uint64_t offset, base::Bytes bytes) {
  const auto inode = table_.find(id);
  if (!inode) return EBADF;
  if (offset > kMaxFileSize || bytes.size() > kMaxFileSize - offset) return EFBIG;
  if (bytes.empty()) return 0;
  const std::uint64_t end = offset + bytes.size();
  const Nanos now = metadata_.now();
  std::shared_ptr<Content> content;
  {
    const std::lock_guard lock(inode->mutex);
    Inode& record = inode->record;
    if (record.mode == 0) return EBADF;
    if (record.has(Inode::kInline) && end <= kMaxInline) {
      if (record.content.size() < end) record.content.resize(end);
      std::copy(bytes.begin(), bytes.end(), record.content.begin() + static_cast<std::ptrdiff_t>(offset));
      if (inode->dirty_to == inode->dirty_from) {
        inode->dirty_from = offset;
        inode->dirty_to = end;
      } else {
        inode->dirty_from = std::min(inode->dirty_from, offset);
        inode->dirty_to = std::max(inode->dirty_to, end);
      }
      record.size = std::max(record.size, end);
      record.mtime = record.ctime = std::max(record.mtime, now);
      mark_dirty_locked(*inode);
      return 0;
    }
    if (record.has(Inode::kInline)) {
      if (const int error = spill_locked(*inode); error != 0) return error;
    }
    content = content_of(*inode);
    if (!inode->spilled) {
      const auto begun = content->begin_writing(record.size);
      if (!begun) {
        warn(begun.error().message);
        return errno_of_local(begun.error());
      }
    }
    if (record.store == 0) record.store = chunks_.identity();
  }
  const auto done = content->write(offset, bytes);
  const std::lock_guard lock(inode->mutex);
  if (!done) {
    warn(done.error().message);
    return errno_of_local(done.error());
  }
  inode->record.size = std::max(inode->record.size, end);
  // Counted by the next commit. Until then never 0: GNU tar --sparse does not even read what has no blocks.
  inode->record.blocks = std::max<std::uint64_t>(inode->record.blocks, (bytes.size() + 4095) / 4096 * 8);
  inode->record.mtime = inode->record.ctime = std::max(inode->record.mtime, now);
  mark_dirty_locked(*inode);
  return 0;
}

Task<int> FileSystem::append(InodeId id, std::uint64_t believed, std::string bytes) {
  const auto inode = table_.find(id);
  if (!inode) co_return EBADF;
  co_await inode->changing.take();
  bool mine = false, gone = false, contended = false;
  {
    const std::lock_guard lock(inode->mutex);
    gone = inode->gone;
    mine = inode->appends_until > clock_.now();
  }
  int error = 0;
  if (!mine && !gone) {
    // The right is kept for a moment, unless others want it: then each write asks for it and gives it back with its
    // commit. It lasts a hundred times longer than it is made use of, so that a thread that was held up does no harm.
    const base::Time asked = clock_.now();
    const LockReply reply = co_await locks_.take_append(id);
    error = reply.error == ENOENT ? 0 : reply.error;
    const std::lock_guard lock(inode->mutex);
    if (reply.error == ENOENT) inode->gone = gone = true;
    if (reply.inode) absorb_locked(*inode, *reply.inode, false);
    contended = reply.contended;
    if (reply.error == 0) {
      inode->appends_until = asked + kAppendsKept;
      const std::lock_guard dirty_lock(dirty_mutex_);
      appending_.insert(id);
    }
  }
  if (error == 0) {
    std::uint64_t end = 0;
    {
      const std::lock_guard lock(inode->mutex);
      end = inode->record.size;
    }
    error = write(id, end, bytes);
    if (error == 0 && end != believed) {  // the kernel has cached these bytes elsewhere
      const std::lock_guard lock(inode->mutex);
      invalidate(*inode);
    }
    if (contended) {
      const int committed = co_await commit(inode, true);
      if (error == 0) error = committed;
      bool refused = error != 0;
      {
        const std::lock_guard lock(inode->mutex);
        inode->appends_until = base::Time{};
      }
      if (refused) co_await locks_.drop(id, FileLock::Kind::append, session_);
    } else if (error == 0 && options_.commit_at_once) {
      error = co_await commit(inode);
    }
  }
  inode->changing.give();
  co_return error;
}

// Gives the right to append back.
Task<int> FileSystem::end_append(std::shared_ptr<MountedInode> inode) {
  co_await inode->changing.take();
  bool have = false;
  {
    const std::lock_guard lock(inode->mutex);
    have = std::exchange(inode->appends_until, base::Time{}) != base::Time{};
  }
  int error = 0;
  if (have) {
    error = co_await commit(inode);
    co_await locks_.drop(inode->id, FileLock::Kind::append, session_);
  }
  inode->changing.give();
  co_return error;
}

void FileSystem::tend_appends() {
  std::set<InodeId> all;
  {
    const std::lock_guard lock(dirty_mutex_);
    if (appending_.empty()) return;
    all.swap(appending_);
  }
  const base::Time now = clock_.now();
  std::vector<InodeId> still;
  for (const InodeId id : all) {
    const auto inode = table_.find(id);
    if (!inode) continue;
    {
      const std::lock_guard lock(inode->mutex);
      if (inode->appends_until == base::Time{}) continue;
      if (inode->appends_until > now) {
        still.push_back(id);
        continue;
      }
    }
    begin();
    fusionfs::start(end_append(inode), [this](int) { end(); });
  }
  const std::lock_guard lock(dirty_mutex_);
  appending_.insert(still.begin(), still.end());
}

Task<int> FileSystem::lock(InodeId id, FileLock lock, bool sleep, std::shared_ptr<FileLocks::Wait> wait,
                           std::uint64_t handle) {
  const auto inode = table_.find(id);
  if (!inode) co_return EBADF;
  const bool gives_up = lock.type == FileLock::Type::none;
  if (gives_up || lock.type == FileLock::Type::shared) {
    if (gives_up && !locks_.holds(id, lock.kind, lock.owner)) co_return 0;
    const int error = co_await commit_in_turn(inode);
    if (error != 0) co_return error;
  }
  const int error = co_await locks_.lock(id, lock, sleep, std::move(wait), handle);
  if (error != 0 || gives_up) co_return error;
  // Locked: what is read from here on is what the last holder has committed.
  const int refreshed = co_await refresh(inode);
  co_await forgotten_by_kernel(inode);
  co_return refreshed;
}

int FileSystem::read(InodeId id, std::uint64_t offset, char* to, std::size_t size, std::size_t& got) {
  got = 0;
  const auto inode = table_.find(id);
  if (!inode) return EBADF;
  std::shared_ptr<Content> content;
  {
    const std::lock_guard lock(inode->mutex);
    const Inode& record = inode->record;
    if (offset >= record.size) return 0;
    if (options_.relatime && !options_.read_only) {
      constexpr Nanos kDay = 86'400'000'000'000;
      const Nanos now = metadata_.now();
      if (record.atime <= record.mtime || record.atime <= record.ctime || now - record.atime > kDay) {
        inode->record.atime = now;
        inode->was_read = true;
      }
    }
    size = static_cast<std::size_t>(std::min<std::uint64_t>(size, record.size - offset));
    if (record.has(Inode::kInline) || record.store == 0) {
      std::size_t have = 0;
      if (offset < record.content.size()) have = record.content.copy(to, size, offset);
      std::fill(to + have, to + size, '\0');
      got = size;
      return 0;
    }
    content = content_of(*inode);
  }
  const auto done = content->read(offset, to, size);
  if (!done) {
    warn(done.error().message);
    return errno_of_local(done.error());
  }
  got = size;
  return 0;
}

Task<int> FileSystem::commit_in_turn(std::shared_ptr<MountedInode> inode) {
  {
    const std::lock_guard lock(inode->mutex);
    if (!inode->dirty && !inode->in_flight) co_return std::exchange(inode->write_error, 0);
  }
  co_await inode->changing.take();
  const int error = co_await commit(inode);
  inode->changing.give();
  co_return error;
}

// `changing` is held.
Task<int> FileSystem::commit(std::shared_ptr<MountedInode> inode, bool ends_append) {
  for (int round = 0; round < 3; ++round) {
    CommitRequest request;
    std::uint64_t from = 0, to = 0;
    bool spilled = false;
    {
      const std::lock_guard lock(inode->mutex);
      if (!inode->dirty) co_return std::exchange(inode->write_error, 0);
      inode->dirty = false;
      if (inode->gone) co_return 0;  // nobody else will ever see it
      const Inode& record = inode->record;
      request.inode = inode->id;
      request.size = record.size;
      request.mtime = record.mtime;
      if (ends_append) request.appended_by = session_;
      if (record.has(Inode::kInline)) {
        from = inode->dirty_from;
        to = inode->dirty_to;
        request.offset = from;
        request.bytes = record.content.substr(from, to - from);
        request.revision = record.revision;
      } else {
        request.store = record.store;
        request.wrote = inode->content ? inode->content_stores : record.stores();
        if (inode->content) {
          for (const std::uint64_t missed : inode->content->missed()) {
            std::erase(request.wrote, missed);
            warn("inode " + std::to_string(raw(inode->id)) + ": chunk store " + std::to_string(missed) +
                 " missed a change and has no copy any more; fusionfs scrub --replicas N makes another");
          }
        }
        inode->record.blocks = request.blocks = inode->content ? inode->content->blocks(record.size) : record.blocks;
      }
      spilled = inode->spilled;
      inode->in_flight = true;
    }
    Reply reply = co_await metadata_.commit(std::move(request));
    const std::lock_guard lock(inode->mutex);
    inode->in_flight = false;
    if (reply.error == 0) {
      if (spilled) inode->spilled = false;
      if (!inode->dirty) inode->dirty_from = inode->dirty_to = 0;
      if (reply.done) reply.inode->content = inode->record.content;
      absorb_locked(*inode, *reply.inode, true);
      co_return 0;
    }
    if (reply.error == ENOENT) {
      inode->gone = true;
      inode->record.links = 0;
      co_return 0;
    }
    mark_dirty_locked(*inode);
    if (reply.error != EMEDIUMTYPE) co_return reply.error;
    // Another mount has moved the content to chunks meanwhile: ours goes there too.
    const std::string mine = inode->record.content;
    const std::uint64_t mine_size = inode->record.size;
    inode->record.flags = static_cast<std::uint8_t>(inode->record.flags & ~Inode::kInline);
    inode->record.content.clear();
    inode->record.store = reply.inode->store;
    inode->record.copies = reply.inode->copies;
    inode->record.size = std::max(mine_size, reply.inode->size);
    const auto content = content_of(*inode);
    auto done = content->begin_writing(reply.inode->size);
    if (done) done = content->write(from, base::Bytes(mine).substr(from, to - from));
    inode->dirty_from = inode->dirty_to = 0;
    if (!done) {
      warn(done.error().message);
      co_return errno_of_local(done.error());
    }
  }
  co_return EIO;
}

Task<int> FileSystem::flush(InodeId id) {
  const auto inode = table_.find(id);
  if (!inode) co_return 0;
  if (client_.silent(tag_of(home_of(id)))) {
    // Who closes many files, or is killed with many open, is not held up even for a moment for each: the close says so, and what was
    // written is committed when the store answers again, which is tried all the time.
    const std::lock_guard lock(inode->mutex);
    if (inode->dirty || inode->in_flight) co_return EIO;
  }
  const int error = co_await commit_in_turn(inode);
  co_return error;
}

Task<int> FileSystem::wrote_past_cache(InodeId id, bool privileged) {
  const auto inode = table_.find(id);
  if (!inode) co_return EBADF;
  int error = options_.commit_at_once ? co_await commit_in_turn(inode) : 0;
  std::uint32_t mode = 0;
  bool attributes = false, shared = false;
  {
    const std::lock_guard lock(inode->mutex);
    mode = inode->record.mode;
    attributes = inode->record.has(Inode::kHasAttributes);
    shared = inode->opens > 1;
    if (shared) invalidate(*inode);
  }
  // What the kernel does itself before a write that goes through its cache.
  if (error == 0 && !privileged && without_set_ids(mode) != mode) {
    SetRequest request;
    request.inode = id;
    request.fields_set = SetRequest::kMode;
    request.mode = without_set_ids(mode) & 07777;
    request.now = metadata_.now();
    const Looked changed = co_await setattr(request);
    error = changed.error;
  }
  if (error == 0 && attributes) {
    const int removed = co_await remove_attribute(id, "security.capability");
    if (removed != ENODATA) error = removed;
  }
  // Its pages here and there may be older than what was written.
  if (shared) co_await forgotten_by_kernel(inode);
  co_return error;
}

// A small file written past the page cache is likely to be read soon. inode.mutex is held, and nobody else has it open: no
// page of it is locked by a read that waits for us.
void FileSystem::fill_cache_locked(MountedInode& inode) {
  const Inode& record = inode.record;
  if (!options_.fill_cache || inode.opens != 1 || inode.dirty || inode.in_flight || inode.gone) return;
  if (!record.has(Inode::kInline) || record.content.empty() || record.content.size() != record.size) return;
  if (inode.cached_revision == record.revision) options_.fill_cache(inode.id, record.content);
}

Task<int> FileSystem::sync(InodeId id) {
  const auto inode = table_.find(id);
  if (!inode) co_return EBADF;
  std::shared_ptr<Content> content;
  {
    const std::lock_guard lock(inode->mutex);
    content = inode->content;
  }
  if (content) {
    const auto done = content->sync();
    if (!done) {
      warn(done.error().message);
      co_return errno_of_local(done.error());
    }
  }
  const int error = co_await commit_in_turn(inode);
  co_return error;
}

Task<int> FileSystem::sync_directory(InodeId) { co_return 0; }  // every change of a name was acknowledged by the store

Task<int> FileSystem::closed(InodeId id, std::uint64_t owner) {
  int error = co_await flush(id);
  locks_.closed(id, owner);
  const int dropped = co_await locks_.drop(id, FileLock::Kind::record, owner);
  co_return error != 0 ? error : dropped;
}

Task<int> FileSystem::release(InodeId id, std::uint64_t handle, std::uint64_t flock_owner) {
  const auto inode = table_.find(id);
  if (!inode) co_return EBADF;
  const std::set<std::uint64_t> owners = locks_.begin_release(handle & ~kPastCache);
  int error = co_await commit_in_turn(inode);
  for (const std::uint64_t owner : owners) co_await locks_.drop(id, FileLock::Kind::record, owner);
  locks_.end_release(owners);
  if (flock_owner != 0) co_await locks_.drop(id, FileLock::Kind::flock, flock_owner);
  bool last = false, reap = false, appends = false, was_read = false;
  SetRequest read_at;
  {
    const std::lock_guard lock(inode->mutex);
    if ((handle & kPastCache) != 0) fill_cache_locked(*inode);
    inode->opens -= inode->opens > 0 ? 1 : 0;
    last = inode->opens == 0;
    reap = last && inode->gone;
    appends = last && inode->appends_until != base::Time{};
    was_read = last && std::exchange(inode->was_read, false) && !inode->gone;
    read_at.inode = id;
    read_at.atime = inode->record.atime;
    read_at.fields_set = SetRequest::kAtime | SetRequest::kKeepCtime;
    if (last && !inode->dirty && !inode->in_flight && !inode->gone) inode->content.reset();
  }
  if (last) table_.closed(id);
  if (appends) co_await end_append(inode);
  if (was_read) {
    Reply noted = co_await metadata_.setattr(read_at);
    if (noted.error == 0) absorb(*inode, *noted.inode, true);
  }
  // Whatever else: nobody has it open.
  if (last) co_await locks_.drop(id, FileLock::Kind::record, 0);
  if (reap) {
    std::shared_ptr<Content> content;
    std::uint64_t size = 0;
    std::vector<std::uint64_t> stores;
    {
      const std::lock_guard lock(inode->mutex);
      stores = inode->content_stores;
      content = std::move(inode->content);
      inode->content.reset();
      size = inode->record.size;
    }
    co_await metadata_.reap(id);
    if (content) {  // chunks that the store never heard of
      later([this, id, size, content, stores] {
        const auto done = stores_.remove(id, stores, size);
        if (!done) warn(done.error().message);
      });
    }
  }
  table_.trim(id);
  co_return error;
}

Task<int> FileSystem::allocate(InodeId id, int mode, std::uint64_t offset, std::uint64_t size) {
  if (options_.read_only) co_return EROFS;
  const bool keep_size = (mode & FALLOC_FL_KEEP_SIZE) != 0;
  const bool punch = (mode & FALLOC_FL_PUNCH_HOLE) != 0, zero = (mode & FALLOC_FL_ZERO_RANGE) != 0;
  if ((mode & ~(FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE)) != 0) co_return EOPNOTSUPP;
  if (size == 0) co_return EINVAL;
  if (offset > kMaxFileSize || size > kMaxFileSize - offset) co_return EFBIG;
  const auto inode = table_.find(id);
  if (!inode) co_return EBADF;
  const Nanos now = metadata_.now();
  const std::lock_guard lock(inode->mutex);
  Inode& record = inode->record;
  const std::uint64_t end = offset + size;
  if (record.has(Inode::kInline) && !punch && !zero && end <= kMaxInline) {
    // Room in the record is always there.
  } else if (record.has(Inode::kInline) && (punch || zero) && (end <= kMaxInline || keep_size || punch)) {
    if (offset < record.content.size()) {
      const std::uint64_t part = std::min<std::uint64_t>(size, record.content.size() - offset);
      std::fill_n(record.content.begin() + static_cast<std::ptrdiff_t>(offset), part, '\0');
      inode->dirty_from = inode->dirty_to == inode->dirty_from ? offset : std::min(inode->dirty_from, offset);
      inode->dirty_to = std::max(inode->dirty_to, offset + part);
    }
  } else {
    if (record.has(Inode::kInline)) {
      if (const int error = spill_locked(*inode); error != 0) co_return error;
    }
    const auto content = content_of(*inode);
    base::Result<void> done;
    if (!inode->spilled) done = content->begin_writing(record.size);
    if (record.store == 0) record.store = chunks_.identity();
    if (done && (punch || zero)) done = content->punch(offset, size);
    if (done && !punch) {
      // Past the end nothing may be allocated that a later, longer file would be cut by: only what lies within.
      const std::uint64_t until = keep_size ? std::min(end, record.size) : end;
      if (until > offset) done = content->allocate(offset, until - offset);
    }
    if (!done) {
      warn(done.error().message);
      co_return errno_of_local(done.error());
    }
  }
  if (!keep_size && !punch) record.size = std::max(record.size, end);
  record.mtime = record.ctime = std::max(record.mtime, now);
  mark_dirty_locked(*inode);
  co_return 0;
}

int FileSystem::seek(InodeId id, std::uint64_t offset, bool data, std::uint64_t& found) {
  const auto inode = table_.find(id);
  if (!inode) return EBADF;
  const std::lock_guard lock(inode->mutex);
  const Inode& record = inode->record;
  if (offset >= record.size) return ENXIO;
  if (record.has(Inode::kInline) || record.store == 0) {
    if (offset >= record.content.size() && data) return ENXIO;
    found = data ? offset : std::max<std::uint64_t>(offset, record.content.size());
    return 0;
  }
  const auto at = content_of(*inode)->seek(offset, record.size, data);
  if (!at) return errno_of_local(at.error());
  if (data && *at >= record.size) return ENXIO;
  found = *at;
  return 0;
}

}  // namespace fusionfs

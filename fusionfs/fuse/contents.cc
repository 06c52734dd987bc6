// Contents: reading, writing, appending, locking, committing. See file_system.h.
#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "fusionfs/fuse/file_system.h"

namespace fusionfs {
namespace {

constexpr int kReadRounds = 3;
constexpr std::chrono::seconds kStorePatience{6}, kNotWaitedAgain{60};
constexpr std::size_t kManyExtents = 1 << 16;  // of one file between two commits

// Of bytes written one after the other there is one; those that meet are joined when there are many, and when there are twice as many.
void note_written_locked(MountedInode& inode, std::uint64_t from, std::uint64_t to) {
  std::vector<Extent>& all = inode.written;
  if (inode.gone) return all.clear();  // nobody else will ever see it
  if (!all.empty() && all.back().to == from) {
    all.back().to = to;
    return;
  }
  if (all.size() >= kManyExtents && (all.size() & (all.size() - 1)) == 0) {
    std::sort(all.begin(), all.end(), [](const Extent& a, const Extent& b) { return a.from < b.from; });
    std::vector<Extent> joined;
    for (const Extent& each : all) {
      if (!joined.empty() && each.from <= joined.back().to)
        joined.back().to = std::max(joined.back().to, each.to);
      else
        joined.push_back(each);
    }
    all = std::move(joined);
  }
  all.push_back({from, to});
}

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
    auto turn = notices_.turn();
    co_await turn;
  }
  co_return 0;
}

// Which chunk stores there are, if that was not asked just now. Blocks.
void FileSystem::seek_stores() {
  const std::lock_guard lock(seeking_mutex_);
  const auto now = clock_.now();
  if (stores_sought_ != base::Time{} && now - stores_sought_ < std::chrono::seconds(1)) return;
  stores_sought_ = now;
  static_cast<void>(stores_.refresh());
}

// A file's bytes are with stores none of which has ever answered: the mount has just begun, or they have, and their servers are
// not announced yet, or have their first connection still to make. Waits, not for ever and not for each read; true: try again. Blocks.
bool FileSystem::await_stores(MountedInode& inode) {
  using Clock = std::chrono::steady_clock;
  std::vector<std::uint64_t> stores;
  {
    const std::lock_guard lock(inode.mutex);
    stores = inode.record.stores();
  }
  if (std::any_of(stores.begin(), stores.end(), [&](std::uint64_t each) { return stores_.heard(each); })) return false;
  const auto began = Clock::now();
  {
    const std::lock_guard lock(seeking_mutex_);
    for (const std::uint64_t each : stores) {
      const auto before = waited_for_.find(each);
      if (before != waited_for_.end() && began - before->second < kNotWaitedAgain) return false;
    }
  }
  for (;;) {
    seek_stores();
    const bool known = std::any_of(stores.begin(), stores.end(), [&](std::uint64_t each) { return stores_.known(each); });
    if (known || Clock::now() - began > kStorePatience) {
      const std::lock_guard lock(seeking_mutex_);
      for (const std::uint64_t each : stores) {
        if (!known) waited_for_[each] = Clock::now();
      }
      if (!known) return false;
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const std::lock_guard lock(inode.mutex);
  if (inode.content_stores == stores && !inode.dirty && !inode.in_flight) inode.content.reset();  // it knows none
  return true;
}

// Before a file is used whose chunks are on a node that this mount has not heard of: it may just have come.
Task<int> FileSystem::find_stores(std::shared_ptr<MountedInode> inode) {
  bool known = true;
  {
    const std::lock_guard lock(inode->mutex);
    for (const std::uint64_t store : inode->record.stores()) known = known && stores_.known(store);
  }
  if (!known) {
    chores_.post([this] { seek_stores(); });
    auto turn = chores_.turn();
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

// Of what was written fewer copies were made than asked for.
void FileSystem::note_lacking(const Inode& inode) {
  if (inode.wanted <= inode.stores().size() || inode.stores().empty()) return;
  if (options_.lacking) options_.lacking(inode.id);
  if (told_lacking_.exchange(true)) return;
  warn("inode " + std::to_string(raw(inode.id)) + " is on " + std::to_string(inode.stores().size()) + " of " +
       std::to_string(inode.wanted) + " chunk stores: no others are known. The copies that are lacking, of this and other files, are made "
       "when there are; how many: fusionfs status");
}

// Where the next bytes of a file go: chunks, to which inline content is moved. The record says so with the next commit. Blocks;
// inode.mutex is not held.
int FileSystem::prepare(MountedInode& inode, std::shared_ptr<Content>& content) {
  const std::lock_guard alone(inode.preparing);
  const auto refuse = [&](const base::Error& error) {
    warn(error.message);
    return errno_of_local(error);
  };
  bool new_content = false;
  {
    const std::lock_guard lock(inode.mutex);
    new_content = inode.record.stores().empty();
  }
  if (new_content && options_.copies > 1 && stores_.count() < options_.copies) seek_stores();
  for (int round = 0;;) {
    bool spill = false;
    std::string bytes;
    std::uint64_t size = 0;
    {
      const std::lock_guard lock(inode.mutex);
      Inode& record = inode.record;
      if (record.mode == 0) return EBADF;
      spill = record.has(Inode::kInline);
      if (spill) bytes = record.content;
      size = record.size;
      content = content_of(inode);
      if (!spill && record.store == 0) record.store = chunks_.identity();
      if (inode.spilled) return 0;
    }
    auto done = content->begin_writing(spill ? 0 : size);
    if (done && !bytes.empty()) done = content->write(0, bytes);
    if (!done && !spill && done.code() == base::Code::unavailable && round++ < kReadRounds && await_stores(inode)) continue;
    if (!done) return refuse(done.error());
    if (!spill) return 0;
    const std::lock_guard lock(inode.mutex);
    Inode& record = inode.record;
    // What came meanwhile, from here or another mount, is moved too, or is elsewhere already.
    if (!record.has(Inode::kInline) || record.content != bytes || inode.content != content) continue;
    if (inode.dirty_to > inode.dirty_from) note_written_locked(inode, inode.dirty_from, inode.dirty_to);
    record.flags = static_cast<std::uint8_t>(record.flags & ~Inode::kInline);
    record.content.clear();
    record.store = chunks_.identity();
    inode.spilled = true;
    inode.dirty_from = inode.dirty_to = 0;
    return 0;
  }
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
    if (inode->lost && !record.has(Inode::kInline)) return ESTALE;
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
  }
  if (const int error = prepare(*inode, content); error != 0) return error;
  const auto done = content->write(offset, bytes);
  const std::lock_guard lock(inode->mutex);
  if (!done) {
    warn(done.error().message);
    return errno_of_local(done.error());
  }
  note_written_locked(*inode, offset, end);
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
    contended = reply.contended || options_.strict;
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
    if (inode->lost) return ESTALE;
    content = content_of(*inode);
  }
  auto done = content->read(offset, to, size);
  for (int round = 0; !done && done.code() == base::Code::unavailable && round < kReadRounds && await_stores(*inode); ++round) {
    {
      const std::lock_guard lock(inode->mutex);
      content = content_of(*inode);
    }
    done = content->read(offset, to, size);
  }
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
    std::uint64_t from = 0, to = 0, size = 0;
    bool spilled = false;
    std::vector<Extent> written;
    std::shared_ptr<Content> content;
    {
      const std::lock_guard lock(inode->mutex);
      content = inode->record.has(Inode::kInline) ? nullptr : inode->content;
      size = inode->record.size;
    }
    const std::uint64_t blocks = content ? content->blocks(size) : 0;  // outside: it may be another node's
    {
      const std::lock_guard lock(inode->mutex);
      if (!inode->dirty) co_return std::exchange(inode->write_error, 0);
      inode->dirty = false;
      if (inode->gone && !inode->shared) co_return 0;  // nobody else will ever see it
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
        request.replicas = options_.copies > 1 ? options_.copies : 0;
        request.wrote = inode->content ? inode->content_stores : record.stores();
        if (inode->content) {
          for (const std::uint64_t missed : inode->content->missed()) {
            std::erase(request.wrote, missed);
            warn("inode " + std::to_string(raw(inode->id)) + ": chunk store " + std::to_string(missed) +
                 " missed a change and has no copy any more; another is made when there is a node for it");
          }
        }
        inode->record.blocks = request.blocks = content ? blocks : record.blocks;
        written.swap(inode->written);
      }
      spilled = inode->spilled;
      inode->in_flight = true;
    }
    Reply reply = co_await metadata_.commit(std::move(request));
    {
      const std::lock_guard lock(inode->mutex);
      inode->in_flight = false;
      if (reply.error == 0) {
        if (spilled) inode->spilled = false;
        if (!inode->dirty) inode->dirty_from = inode->dirty_to = 0;
        if (reply.done) reply.inode->content = inode->record.content;
        absorb_locked(*inode, *reply.inode, true);
        note_lacking(*reply.inode);
        co_return 0;
      }
      if (reply.error == ENOENT) {
        inode->gone = true;
        inode->shared = false;
        inode->record.links = 0;
        co_return 0;
      }
      mark_dirty_locked(*inode);
      if (reply.error != EMEDIUMTYPE && reply.error != EXDEV) {
        inode->written.insert(inode->written.begin(), written.begin(), written.end());
        co_return reply.error;
      }
    }
    const int moved = co_await commit_elsewhere(inode, *reply.inode, std::move(written));
    if (moved != 0) co_return moved;
  }
  co_return EIO;
}

// Another mount has moved the content to chunks meanwhile, or has begun the file anew on other nodes: what was written here goes there
// too. `changing` is held.
Task<int> FileSystem::commit_elsewhere(std::shared_ptr<MountedInode> inode, Inode record, std::vector<Extent> written) {
  auto turn = chores_.turn();
  co_await turn;
  const std::lock_guard alone(inode->preparing);
  std::shared_ptr<Content> mine, theirs;
  std::vector<std::uint64_t> left;
  std::string inlined;
  std::uint64_t size = 0;
  {
    const std::lock_guard lock(inode->mutex);
    mine = inode->content;
    left = inode->content_stores;
    size = std::max(inode->record.size, record.size);
    if (inode->record.has(Inode::kInline)) {
      inlined = inode->record.content;
      written = {{inode->dirty_from, inode->dirty_to}};
      mine = nullptr;
    }
    written.insert(written.end(), inode->written.begin(), inode->written.end());
  }
  theirs = stores_.open(inode->id, record.stores());
  auto done = theirs->begin_writing(record.size);
  for (const Extent& each : written) {
    for (std::uint64_t at = each.from; done && at < each.to;) {
      std::string piece(std::min<std::uint64_t>(each.to - at, std::uint64_t{1} << 20), '\0');
      if (mine)
        done = mine->read(at, piece.data(), piece.size());
      else
        piece = inlined.substr(std::min<std::size_t>(at, inlined.size()), piece.size());
      if (done && !piece.empty()) done = theirs->write(at, piece);
      at += std::max<std::size_t>(piece.size(), 1);
    }
  }
  if (done) done = theirs->sync();  // who waits for fsync has synced where it was
  if (!done) {
    warn(done.error().message);
    const std::lock_guard lock(inode->mutex);
    inode->written = std::move(written);
    co_return errno_of_local(done.error());
  }
  std::erase_if(left, [&](std::uint64_t each) {
    const std::vector<std::uint64_t> there = record.stores();
    return std::find(there.begin(), there.end(), each) != there.end();
  });
  {
    const std::lock_guard lock(inode->mutex);
    inode->record.flags = static_cast<std::uint8_t>(inode->record.flags & ~Inode::kInline);
    inode->record.content.clear();
    inode->record.store = record.store;
    inode->record.copies = record.copies;
    inode->record.size = std::max(inode->record.size, size);
    inode->content = theirs;
    inode->content_stores = record.stores();
    inode->spilled = false;
    inode->dirty_from = inode->dirty_to = 0;
    inode->written = std::move(written);
  }
  if (mine && !left.empty()) remove_chunks(inode->id, std::move(left), size, std::move(mine));
  co_return 0;
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

Task<int> FileSystem::take_privileges(InodeId id, Changer changer) {
  const auto inode = table_.find(id);
  if (!inode) co_return EBADF;
  std::uint32_t mode = 0, group = 0;
  bool attributes = false;
  {
    const std::lock_guard lock(inode->mutex);
    mode = inode->record.mode;
    group = inode->record.gid;
    attributes = inode->record.has(Inode::kHasAttributes);
  }
  std::uint32_t left = without_set_ids(mode);
  if (!changer.privileged && (left & S_ISGID) != 0 && !changer.belongs(group)) left &= ~std::uint32_t{S_ISGID};
  if (!changer.privileged && left != mode) {
    SetRequest request;
    request.inode = id;
    request.fields_set = SetRequest::kMode;
    request.mode = left & 07777;
    request.now = metadata_.now();
    const Looked changed = co_await setattr(request);
    if (changed.error != 0) co_return changed.error;
  }
  if (attributes) {
    const int removed = co_await remove_attribute(id, "security.capability");
    if (removed != ENODATA) co_return removed;
  }
  co_return 0;
}

Task<int> FileSystem::current(InodeId id) {
  if (!options_.strict) co_return 0;
  const auto inode = table_.find(id);
  if (!inode) co_return EBADF;
  const int error = co_await refresh(inode);
  if (error == 0) co_await find_stores(inode);
  co_return error;
}

Task<int> FileSystem::wrote_past_cache(InodeId id, Changer changer) {
  const auto inode = table_.find(id);
  if (!inode) co_return EBADF;
  int error = options_.commit_at_once ? co_await commit_in_turn(inode) : 0;
  bool shared = false;
  {
    const std::lock_guard lock(inode->mutex);
    shared = inode->opens > 1;
    if (shared) invalidate(*inode);
  }
  if (error == 0) error = co_await take_privileges(id, std::move(changer));
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
    // What others may keep too is let go of a while later (tend_nameless): a path that led here may be on its way still.
    reap = last && inode->gone && !inode->shared;
    appends = last && inode->appends_until != base::Time{};
    was_read = last && std::exchange(inode->was_read, false) && !inode->gone;
    read_at.inode = id;
    read_at.atime = inode->record.atime;
    read_at.fields_set = SetRequest::kAtime | SetRequest::kKeepCtime;
    if (last && !inode->dirty && !inode->in_flight && !inode->gone) inode->content.reset();
    drop_content_locked(*inode);
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
    const Reply reaped = co_await metadata_.reap(id);
    if (content && reaped.gone) remove_chunks(id, std::move(stores), size, std::move(content));  // that the store never heard of
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
  const std::uint64_t end = offset + size;
  const auto note = [&] {
    Inode& record = inode->record;
    if (!keep_size && !punch) record.size = std::max(record.size, end);
    record.mtime = record.ctime = std::max(record.mtime, now);
    mark_dirty_locked(*inode);
  };
  std::uint64_t old_size = 0;
  {
    const std::lock_guard lock(inode->mutex);
    Inode& record = inode->record;
    const bool inlined = record.has(Inode::kInline);
    if (inlined && (punch || zero) && (end <= kMaxInline || keep_size || punch)) {
      if (offset < record.content.size()) {
        const std::uint64_t part = std::min<std::uint64_t>(size, record.content.size() - offset);
        std::fill_n(record.content.begin() + static_cast<std::ptrdiff_t>(offset), part, '\0');
        inode->dirty_from = inode->dirty_to == inode->dirty_from ? offset : std::min(inode->dirty_from, offset);
        inode->dirty_to = std::max(inode->dirty_to, offset + part);
      }
      note();
      co_return 0;
    }
    if (inlined && !punch && !zero && end <= kMaxInline) {  // room in the record is always there
      note();
      co_return 0;
    }
    old_size = record.size;
  }
  std::shared_ptr<Content> content;
  if (const int error = prepare(*inode, content); error != 0) co_return error;
  base::Result<void> done;
  if (punch || zero) done = content->punch(offset, size);
  if (done && !punch) {
    // Past the end nothing may be allocated that a later, longer file would be cut by: only what lies within.
    const std::uint64_t until = keep_size ? std::min(end, old_size) : end;
    if (until > offset) done = content->allocate(offset, until - offset);
  }
  const std::lock_guard lock(inode->mutex);
  if (!done) {
    warn(done.error().message);
    co_return errno_of_local(done.error());
  }
  if (punch || zero) note_written_locked(*inode, offset, end);
  note();
  co_return 0;
}

int FileSystem::seek(InodeId id, std::uint64_t offset, bool data, std::uint64_t& found) {
  const auto inode = table_.find(id);
  if (!inode) return EBADF;
  std::shared_ptr<Content> content;
  std::uint64_t size = 0;
  {
    const std::lock_guard lock(inode->mutex);
    const Inode& record = inode->record;
    size = record.size;
    if (offset >= size) return ENXIO;
    if (record.has(Inode::kInline) || record.store == 0) {
      if (offset >= record.content.size() && data) return ENXIO;
      found = data ? offset : std::max<std::uint64_t>(offset, record.content.size());
      return 0;
    }
    content = content_of(*inode);
  }
  const auto at = content->seek(offset, size, data);
  if (!at) return errno_of_local(at.error());
  if (data && *at >= size) return ENXIO;
  found = *at;
  return 0;
}

}  // namespace fusionfs

#include "fusionfs/fuse/file_system.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "fusionfs/data/repair.h"
#include "fusionfs/fuse/wait.h"
#include "novoht/base/random.h"

namespace fusionfs {

using zht::Operation;
using zht::Outcome;

namespace {

constexpr std::uint64_t kDot = 1, kDotDot = 2;  // readdir cursors; an entry's is its sequence number + kDotDot
constexpr std::size_t kMostNames = 20'000;      // of a directory whose names are kept in memory
constexpr unsigned kMissesToLoad = 6;
constexpr std::size_t kAhead = 256;  // inodes fetched at once for readdirplus
constexpr std::chrono::milliseconds kAheadKept{20};  // where attributes are not believed: as old as a page of a listing may be
constexpr std::size_t kFinishedAtOnce = 256;  // inodes, when the mount ends
constexpr std::chrono::seconds kStoreSilent{10};
constexpr std::chrono::seconds kLeftAlone{4};  // longer than Metadata waits before it takes a change for abandoned
constexpr zht::Millis kLastWords{2'000};
constexpr std::size_t kMostChores = 10'000;
constexpr std::chrono::milliseconds kJustTold{2};
constexpr std::chrono::seconds kLookForNameless{5};  // longer than kOpensNow
constexpr Nanos kYoung = 10'000'000'000;  // how long an empty file is taken for one that is about to be written
constexpr std::chrono::seconds kRememberLess{1};
constexpr int kRememberLessShare = 10;  // of the time, one part
constexpr std::chrono::minutes kTroubleWindow{1};
constexpr unsigned kTroublesTold = 10;  // a window

// ESTALE: the directory itself is not there; another may have its name.
int error_in_directory(const Reply& reply) { return reply.error == ENOENT && reply.gone ? ESTALE : reply.error; }

}  // namespace

FileSystem::FileSystem(zht::Client& client, const base::Clock& clock, const ChunkStore& chunks,
                       FileSystemOptions options)
    : client_(client, options.moment),
      clock_(clock),
      chunks_(chunks),
      stores_(client_, chunks),
      options_(std::move(options)),
      session_(base::entropy() | 1),
      metadata_(client_, clock,
                {.session = options_.leases ? session_ : 0,
                 .held = [this](HomeId home) { return table_.open_in(home); },
                 .opener = options_.leases ? session_ : 0,
                 .gone = [this](const Inode& inode) { buried(inode); },
                 .orphaned = [this](const Inode& inode, bool elsewhere) { orphaned(inode, elsewhere); },
                 .spread = [this](InodeId directory) { spread(directory); },
                 .grown =
                     [this](HomeId home) {
                       begin();
                       chores_.post([this, home] {
                         wait(metadata_.split(home));
                         end();
                       });
                     },
                 .split_at = options_.split_at,
                 .left = [this] { settle_ = true; },
                 .trouble = [this](const std::string& text) { warn_of_store(text); }}),
      locks_(client_, clock,
             {.session = session_, .life = options_.lock_life, .warn = [this](const std::string& text) { warn(text); }}),
      retries_(clock) {}

FileSystem::~FileSystem() {
  {
    const std::lock_guard lock(ending_mutex_);
    stopping_ = true;
    ending_changed_.notify_all();
  }
  if (background_.joinable()) background_.join();
  notices_.stop();
  chores_.stop();
}

// A store that is silent for hours is not to fill the disk with the log of it.
void FileSystem::warn_of_store(const std::string& text) {
  unsigned left_out = 0;
  {
    const std::lock_guard lock(trouble_mutex_);
    const base::Time now = clock_.now();
    if (troubles_ == 0 || now - trouble_since_ > kTroubleWindow) {
      left_out = troubles_ > kTroublesTold ? troubles_ - kTroublesTold : 0;
      trouble_since_ = now;
      troubles_ = 0;
    }
    if (++troubles_ > kTroublesTold) return;
  }
  warn(text + (left_out > 0 ? "; " + std::to_string(left_out) + " more lines like this were left out before" : ""));
}

void FileSystem::end() { under_way_.fetch_sub(1, std::memory_order_acq_rel); }

Task<int> FileSystem::start(std::uint32_t root_mode, std::uint32_t uid, std::uint32_t gid) {
  Call seen(client_, Operation::lookup(inode_key(kRootInode)));
  const Outcome root = co_await seen;
  if (root.code == base::Code::not_found) {
    Reply made = co_await metadata_.make_root(root_mode, uid, gid);
    if (made.error != 0) co_return made.error;
  } else if (!root.ok()) {
    warn("root: " + root.message);
    co_return errno_of(root);
  }
  Call alive(client_, Operation::insert(session_key(session_), "1", options_.session_life));
  const Outcome inserted = co_await alive;
  if (!inserted.ok()) co_return errno_of(inserted);
  std::string id;
  base::Writer(id).u64(session_);
  Call listed(client_, Operation::append(kSessionsKey, id));
  const Outcome appended = co_await listed;
  if (!appended.ok()) co_return errno_of(appended);
  if (options_.previous_session != 0) {
    Call ended(client_, Operation::remove(session_key(options_.previous_session), true));
    co_await ended;
  }
  const int error = co_await bury_dead_sessions(true);
  if (!options_.serves_at.empty()) stores_.serve_at(options_.serves_at);
  background_ = std::thread([this] { run_background(); });
  co_return error;
}

// Sessions whose mount has gone: the inodes they kept alive go too, and what they left unfinished is settled. By whoever mounts,
// and from time to time by one of the mounts that live. Then a session has to be silent twice, that a machine which was asleep has
// the time to speak up.
Task<int> FileSystem::bury_dead_sessions(bool at_start) {
  Call call(client_, Operation::lookup(kSessionsKey));
  const Outcome sessions = co_await call;
  if (sessions.code == base::Code::not_found) co_return 0;
  if (!sessions.ok()) co_return errno_of(sessions);
  std::vector<std::uint64_t> all;
  for (base::Reader from(sessions.value); from.left() >= 8;) all.push_back(from.u64());
  if (std::find(all.begin(), all.end(), session_) == all.end()) {  // it was this one that was asleep
    std::string id;
    base::Writer(id).u64(session_);
    Call again(client_, Operation::append(kSessionsKey, id));
    const Outcome listed = co_await again;
    co_return listed.ok() ? 0 : errno_of(listed);
  }
  if (!at_start && base::entropy() % all.size() != 0) co_return 0;
  std::set<std::uint64_t> silent;
  std::string alive;
  for (const std::uint64_t session : all) {
    bool keep = session == session_;
    if (!keep) {
      Call look(client_, Operation::lookup(session_key(session), zht::Range::nothing()));
      const Outcome key = co_await look;
      keep = key.ok() || key.code != base::Code::not_found;
    }
    if (!keep && !at_start && silent_.count(session) == 0) {
      silent.insert(session);
      keep = true;
    }
    if (!keep) {
      const bool buried = co_await bury(session);
      keep = !buried;
    }
    if (keep) base::Writer(alive).u64(session);
  }
  silent_ = std::move(silent);
  if (alive.size() == sessions.value.size()) co_return 0;
  // A session that came meanwhile is in the way of the swap: the next one tries again.
  Call swap(client_, Operation::cswap(kSessionsKey, zht::Condition::at_version(sessions.version), alive));
  const Outcome swapped = co_await swap;
  if (swapped.ok() && !options_.read_only) settle_ = true;
  co_return 0;
}

Task<bool> FileSystem::bury(std::uint64_t session) {
  Call call(client_, Operation::lookup(session_orphans_key(session)));
  const Outcome orphans = co_await call;
  bool all = orphans.ok() || orphans.code == base::Code::not_found;
  if (orphans.ok()) {
    base::Reader list(orphans.value);
    while (list.ok() && list.left() >= 8) {
      const InodeId id{list.u64()};
      Reply reaped = co_await metadata_.reap(id, session);
      if (reaped.error != 0) all = false;
    }
  }
  if (all) {
    Call forget(client_, Operation::remove(session_orphans_key(session), true));
    co_await forget;
  }
  co_return all;
}

// What is left to do for an inode when the mount ends.
Task<int> FileSystem::finish(std::shared_ptr<MountedInode> inode) {
  const int error = co_await commit_in_turn(inode);
  if (error != 0) warn("inode " + std::to_string(raw(inode->id)) + ": writes could not be committed");
  if (error == EIO) co_return error;  // the rest goes with the session
  bool reap = false;
  {
    const std::lock_guard lock(inode->mutex);
    reap = inode->gone && inode->opens > 0;
  }
  if (reap) co_await metadata_.reap(inode->id);
  co_await end_append(inode);
  for (const auto kind : {FileLock::Kind::record, FileLock::Kind::flock}) co_await locks_.drop(inode->id, kind, 0);
  co_return error;
}

int FileSystem::stop() {
  ending_ = true;
  locks_.stop();
  struct Ending {
    std::mutex mutex;
    std::condition_variable changed;
    std::size_t under_way = 0;
    int first = 0;
  };
  const auto ending = std::make_shared<Ending>();
  const base::Time began = clock_.now();
  std::size_t given_up = 0;
  for (const auto& inode : table_.all()) {
    {
      std::unique_lock lock(ending->mutex);
      ending->changed.wait(lock, [&] { return ending->under_way < kFinishedAtOnce; });
      if (ending->first == EIO && clock_.now() - began > kStoreSilent) {
        lock.unlock();
        const std::lock_guard inode_lock(inode->mutex);
        given_up += inode->dirty ? 1 : 0;
        continue;
      }
      ending->under_way += 1;
    }
    fusionfs::start(finish(inode), [ending](int error) {
      const std::lock_guard lock(ending->mutex);
      if (ending->first == 0) ending->first = error;
      ending->under_way -= 1;
      ending->changed.notify_one();
    });
  }
  {
    std::unique_lock lock(ending->mutex);
    ending->changed.wait(lock, [&] { return ending->under_way == 0; });
  }
  if (given_up > 0) warn("the store does not answer: writes of " + std::to_string(given_up) + " more files could not be committed");
  const auto deadline = clock_.now() + std::chrono::seconds(60);
  while (under_way_.load(std::memory_order_acquire) + locking_.load(std::memory_order_acquire) > 0 &&
         clock_.now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  {
    const std::lock_guard lock(ending_mutex_);
    stopping_ = true;
    ending_changed_.notify_all();
  }
  if (background_.joinable()) background_.join();
  chores_.stop();
  notices_.stop();
  stores_.leave();
  // A session that is not ended here ends by itself.
  if (ending->first == 0 && client_.call(Operation::remove(session_key(session_), true), kLastWords).ok()) {
    // From here on nobody tells this session of more.
    if (wait(tend_nameless(Tend::at_the_end)) == 0) client_.call(Operation::remove(session_orphans_key(session_), true), kLastWords);
  }
  return ending->first;
}

// settling_ is set.
void FileSystem::settle(Task<Metadata::Leftovers> task) {
  begin();
  fusionfs::start(std::move(task), [this](Metadata::Leftovers left) {
    {
      const std::lock_guard lock(dirty_mutex_);
      again_.insert(again_.end(), std::make_move_iterator(left.again.begin()), std::make_move_iterator(left.again.end()));
    }
    settling_ = false;
    end();
  });
}

// Deletes chunks that no record speaks of. A mount that cannot keep up, or a node that does not answer, leaves them to that node's sweep.
void FileSystem::remove_chunks(InodeId inode, std::vector<std::uint64_t> stores, std::uint64_t size, std::shared_ptr<Content> content) {
  if (chores_.waiting() > kMostChores) return;
  chores_.post([this, inode, stores = std::move(stores), size, content = std::move(content)] {
    const auto done = stores_.remove(inode, stores, size);
    if (!done) warn(done.error().message + "; that node removes them by itself");
  });
}

// Keeps the session and its locks alive, commits what has been dirty for a while. Nothing here waits for a store, a disk or another node.
void FileSystem::run_background() {
  auto beat_at = clock_.now();
  auto stores_at = beat_at;
  auto locks_at = beat_at + options_.lock_life / 4;
  auto nameless_at = beat_at + kLookForNameless;
  auto commit_at = clock_.now() + options_.commit_interval;
  auto less_at = beat_at;
  base::Time settle_at = base::Time::max();
  std::deque<base::Time> again_at;
  std::unique_lock lock(ending_mutex_);
  for (;;) {
    bool appends = false;
    {
      const std::lock_guard dirty_lock(dirty_mutex_);
      appends = !appending_.empty();
    }
    const auto pause = appends ? kAppendsKept : std::min(options_.commit_interval, std::chrono::milliseconds(500));
    ending_changed_.wait_for(lock, pause, [this] { return stopping_; });
    if (stopping_) return;
    lock.unlock();
    const auto now = clock_.now();
    if (ending_) {  // nothing new is begun that stop() would have to wait for
      lock.lock();
      continue;
    }
    if (now >= beat_at) {
      client_.submit(Operation::insert(session_key(session_), "1", options_.session_life), [](Outcome) {});
      beat_at = now + options_.session_life / 4;
      // When what was left is old enough.
      if (settle_at == base::Time::max() && settle_.exchange(false)) settle_at = now + kLeftAlone;
      if (!burying_.exchange(true)) {
        begin();
        fusionfs::start(bury_dead_sessions(false), [this](int) {
          burying_ = false;
          end();
        });
      }
    }
    if (now >= stores_at) {
      if (!refreshing_.exchange(true)) {
        chores_.post([this] {
          if (const auto done = stores_.refresh(); !done) warn_of_store("chunk stores: " + done.error().message);
          refreshing_ = false;
        });
      }
      stores_at = now + kStoreLife / 4;
    }
    if (now >= locks_at) {
      locks_.keep_alive();
      locks_at = now + options_.lock_life / 4;
    }
    tend_appends();
    if (now >= less_at) {
      remember_less();
      const base::Time done = clock_.now();
      less_at = done + std::max<base::Duration>(kRememberLess, kRememberLessShare * (done - now));
    }
    if (now >= nameless_at) {
      nameless_at = now + kLookForNameless;
      if (!tending_.exchange(true)) {
        begin();
        fusionfs::start(tend_nameless(Tend::on), [this](int) {
          tending_ = false;
          end();
        });
      }
    }
    if (now >= settle_at && !settling_.exchange(true)) {
      settle_at = base::Time::max();
      // Of what is found once more, since by a clock that is ahead it is old enough only when it has been met before; and when a
      // directory without a name is sure to get none.
      again_at = {now + 2 * kLeftAlone, now + 8 * kLeftAlone};
      settle(metadata_.settle_leftovers());
    }
    if (!again_at.empty() && now >= again_at.front() && !settling_.exchange(true)) {
      again_at.pop_front();
      std::vector<std::string> keys;
      {
        const std::lock_guard dirty_lock(dirty_mutex_);
        keys.swap(again_);
      }
      settle(metadata_.look_again(std::move(keys)));
    }
    if (now >= commit_at) {
      std::set<InodeId> dirty;
      {
        const std::lock_guard dirty_lock(dirty_mutex_);
        dirty.swap(dirty_);
      }
      std::set<HomeId> asked;
      for (const InodeId id : dirty) {
        // Of a store that is silent one answer is enough to know that it is back.
        if (client_.silent(tag_of(home_of(id))) && !asked.insert(home_of(id)).second) {
          const std::lock_guard dirty_lock(dirty_mutex_);
          dirty_.insert(id);
          continue;
        }
        if (const auto inode = table_.find(id)) {
          begin();
          fusionfs::start(commit_in_turn(inode), [this, inode](int error) {
            if (error != 0) {
              const std::lock_guard inner(inode->mutex);
              inode->write_error = error;
            }
            end();
          });
        }
      }
      commit_at = now + options_.commit_interval;
    }
    lock.lock();
  }
}

// What the kernel keeps of a file that somebody else has changed goes. From then on the cache is filled anew, and is known
// to show at least what was known when it was emptied.
// inode.mutex is held.
void FileSystem::invalidate(MountedInode& changed) {
  if (!options_.changed_elsewhere) return;
  changed.invalidating += 1;
  notices_.post([this, id = changed.id] {
    const auto inode = table_.find(id);
    if (!inode) return;
    std::uint64_t revision = 0;
    {
      const std::lock_guard lock(inode->mutex);
      revision = inode->record.revision;
    }
    options_.changed_elsewhere(id);
    const std::lock_guard lock(inode->mutex);
    inode->invalidating -= 1;
    if (inode->invalidating == 0 && inode->opens > 0 && inode->cached_revision == 0) inode->cached_revision = revision;
  });
}

bool FileSystem::about_to_change_locked(const MountedInode& inode, const Inode& record) const {
  return record.size == 0 && is_regular(record.mode) && !inode.made_here && metadata_.now() - record.ctime < kYoung;
}

bool FileSystem::about_to_change(const Inode& inode) {
  if (inode.size != 0 || !is_regular(inode.mode) || metadata_.now() - inode.ctime >= kYoung) return false;
  const auto known = table_.find(inode.id);
  if (!known) return true;
  const std::lock_guard lock(known->mutex);
  return about_to_change_locked(*known, inode);
}

bool FileSystem::fresh(const MountedInode& inode) const {
  if ((inode.gone && !inode.shared) || inode.dirty || inode.in_flight) return true;
  if (about_to_change_locked(inode, inode.record)) return false;
  return inode.known_at != base::Time{} && clock_.now() - inode.known_at < options_.attribute_timeout;
}

void FileSystem::absorb_locked(MountedInode& inode, const Inode& record, bool our_change,
                               std::optional<std::uint64_t> listed) {
  Inode& mine = inode.record;
  const bool known = mine.id == record.id && mine.mode != 0;
  if (known && record.revision > mine.revision + (our_change ? 1 : 0)) inode.made_here = false;
  if (known && record.revision < mine.revision) return;  // overtaken by a newer answer
  if (is_directory(record.mode)) {
    inode.changes += 1;
    if (listed || !known || record.revision != mine.revision) inode.listed = listed;
  }
  if (known && record.revision > mine.revision + (our_change ? 1 : 0) && is_regular(record.mode)) {
    if (!our_change && (inode.cached_revision != 0 || inode.opens > 0)) invalidate(inode);
    inode.cached_revision = 0;
  } else if (our_change && inode.cached_revision == mine.revision) {
    inode.cached_revision = record.revision;
  }
  if (known && (inode.dirty || inode.in_flight)) {
    // What was written here and is not there yet stays.
    Inode merged = record;
    merged.size = std::max(record.size, mine.size);
    merged.mtime = std::max(record.mtime, mine.mtime);
    merged.ctime = std::max(record.ctime, mine.ctime);
    if (inode.spilled || !mine.has(Inode::kInline)) {
      merged.flags = static_cast<std::uint8_t>(merged.flags & ~Inode::kInline);
      merged.content.clear();
      if (record.store == 0) merged.copies = mine.copies;
      if (record.store == 0) merged.store = mine.store;
      merged.blocks = mine.blocks;
    } else if (record.has(Inode::kInline)) {
      if (merged.content.size() < mine.content.size()) merged.content.resize(mine.content.size());
      if (inode.dirty_to > inode.dirty_from) {
        merged.content.replace(inode.dirty_from, inode.dirty_to - inode.dirty_from, mine.content, inode.dirty_from,
                               inode.dirty_to - inode.dirty_from);
      } else {
        merged.content = mine.content;
      }
    } else if (inode.dirty_to > inode.dirty_from) {
      // In chunks by another mount, and these bytes are not there yet: the commit takes them there.
      merged.flags |= Inode::kInline;
      merged.store = 0;
      merged.copies.clear();
      merged.content = mine.content;
    }
    mine = std::move(merged);
  } else {
    mine = record;
    inode.content_dropped = false;
    if (!record.has(Inode::kInline) && record.store == 0) inode.content.reset();
  }
  inode.known_at = clock_.now();
  drop_content_locked(inode);
}

Inode FileSystem::absorb(MountedInode& inode, const Inode& record, bool our_change, std::optional<std::uint64_t> listed) {
  const std::lock_guard lock(inode.mutex);
  absorb_locked(inode, record, our_change, listed);
  return view(inode.record);
}

void FileSystem::touch_directory(InodeId directory) {
  if (const auto inode = table_.find(directory)) {
    const std::lock_guard lock(inode->mutex);
    inode->known_at = base::Time{};
  }
}

void FileSystem::note_names(InodeId directory, base::Time asked, const Reply& reply, unsigned records,
                            const std::string& removed, const std::string& added) {
  const auto inode = table_.find(directory);
  if (!inode) return;
  const std::lock_guard lock(inode->mutex);
  if (reply.error == EIO) {  // done or not: nobody knows
    inode->known_at = base::Time{};
    if (inode->names) inode->names->complete = false;
    return;
  }
  if (reply.sharded) {
    inode->spread = true;
    inode->names.reset();
  }
  if (!options_.leases || reply.sequence == 0 || inode->spread) return;
  if (!inode->names) inode->names = std::make_unique<KnownNames>();
  KnownNames& known = *inode->names;
  known.seen = std::max(known.seen, reply.sequence);
  known.lease_until = reply.lease_left > 0 ? asked + base::Duration(reply.lease_left) : base::Time{};
  if (!known.complete) return;
  if (known.sequence + records != reply.sequence) {
    known.complete = false;
    known.names.clear();
    return;
  }
  known.sequence = reply.sequence;
  if (!removed.empty()) known.names.erase(removed);
  if (!added.empty()) known.names.insert(added);
  if (known.names.size() > kMostNames) known.complete = false;
}

void FileSystem::note_change(InodeId directory, Nanos when, std::uint64_t sequence, unsigned records, int names,
                             int directories) {
  const auto inode = table_.find(directory);
  if (!inode) return;
  const std::lock_guard lock(inode->mutex);
  Inode& record = inode->record;
  const bool one_home = !inode->spread;
  if (one_home && sequence != 0 && inode->listed && sequence <= *inode->listed) return;  // another answer has told of it
  // Not known whether it was told of: reckoned, so that no older answer counts, and asked for.
  if (one_home && (sequence == 0 || !inode->listed)) inode->known_at = base::Time{};
  if (record.mode == 0 || when == 0) {
    inode->known_at = base::Time{};
    return;
  }
  inode->changes += 1;
  // As overlay() makes it of the listing.
  record.mtime = std::max(record.mtime, when);
  record.ctime = std::max(record.ctime, when);
  record.links = static_cast<std::uint32_t>(static_cast<int>(record.links) + directories);
  record.size += static_cast<std::uint64_t>(static_cast<std::int64_t>(32 * names));
  record.blocks = (record.size + 511) / 512;
  record.revision += records;
}

void FileSystem::spread(InodeId directory) {
  const auto inode = table_.find(directory);
  if (!inode) return;
  const std::lock_guard lock(inode->mutex);
  inode->spread = true;
  inode->names.reset();
}

void FileSystem::forget_names(InodeId directory) {
  const auto inode = table_.find(directory);
  if (!inode) return;
  const std::lock_guard lock(inode->mutex);
  if (inode->names) inode->names->complete = false;
}

bool FileSystem::surely_absent(InodeId directory, const std::string& name) {
  if (!options_.leases) return false;
  const auto inode = table_.find(directory);
  if (!inode) return false;
  const std::lock_guard lock(inode->mutex);
  if (!inode->names || !inode->names->complete) return false;
  const KnownNames& known = *inode->names;
  return known.sequence == known.seen && clock_.now() < known.lease_until && known.names.count(name) == 0;
}

bool FileSystem::should_load_names(InodeId directory) {
  if (!options_.leases) return false;
  const auto inode = table_.find(directory);
  if (!inode) return false;
  const std::lock_guard lock(inode->mutex);
  if (!inode->names || inode->names->complete || inode->names->loading) return false;
  KnownNames& known = *inode->names;
  if (clock_.now() >= known.lease_until || ++known.misses < kMissesToLoad) return false;
  if (inode->spread || inode->record.size > 4096 + 32 * kMostNames) return false;  // as overlay() computes it
  known.misses = 0;
  known.loading = true;
  return true;
}

void FileSystem::remember_names(MountedInode& directory, const Listing& listing) {
  if (!directory.names || directory.names->complete || listing.names.size() > kMostNames) return;
  KnownNames& known = *directory.names;
  if (listing.sequence != known.seen) return;
  known.names.clear();
  for (const auto& [sequence, name] : listing.names) known.names.insert(name.name);
  known.sequence = listing.sequence;
  known.complete = true;
  known.since = clock_.now();
}

Task<int> FileSystem::load_names(InodeId directory) {
  Listing none;
  Metadata::ListReply listed = co_await metadata_.list(directory, std::move(none));
  if (const auto inode = table_.find(directory)) {
    const std::lock_guard lock(inode->mutex);
    if (inode->names) {
      inode->names->loading = false;
      if (listed.error == 0) remember_names(*inode, listed.listing);
    }
  }
  co_return listed.error;
}

Inode FileSystem::as_seen_here(const Inode& inode) {
  const auto known = table_.find(inode.id);
  return known ? absorb(*known, inode) : view(inode);
}

void FileSystem::keep(InodeId directory, const std::string& name, const Inode& inode) {
  const auto known = table_.get(inode.id, 1);
  const std::lock_guard lock(known->mutex);
  absorb_locked(*known, inode, false);
  reached(*known, directory, name);
}
void FileSystem::forget(InodeId inode, std::uint64_t lookups) { table_.forget(inode, lookups); }

namespace {
// Of an answer about a directory: the last record of the listing that it knows. One that has many homes has no such number.
std::optional<std::uint64_t> listed_by(const Reply& reply) {
  return reply.shards.empty() ? std::optional(reply.sequence) : std::nullopt;
}
}  // namespace

Task<Looked> FileSystem::lookup(InodeId directory, std::string name, std::uint32_t thread) {
  Looked looked;
  if (name.size() > kMaxName) {
    looked.error = ENAMETOOLONG;
    co_return looked;
  }
  if (name == "." || name == "..") {
    looked = co_await lookup_number(directory, name == "..");
    co_return looked;
  }
  if (surely_absent(directory, name)) {
    looked.error = ENOENT;
    retries_.found_nothing(thread);
    co_return looked;
  }
  Reply reply;
  if (retries_.on_second_walk(thread)) {
    // What is found is opened next, whatever becomes of its name meanwhile.
    reply = co_await metadata_.find(directory, name, Metadata::For::looking_to_open);
    const bool local = reply.error == 0 && reply.inode && !is_directory(reply.entry->type);
    if (reply.error == 0 && !local) reply = co_await metadata_.lookup(directory, name);
  } else {
    reply = co_await metadata_.lookup(directory, name);
  }
  looked.error = reply.error;
  if (reply.error == ENOENT) {
    // In a directory that another mount has removed, and perhaps made anew.
    if (reply.gone)
      looked.error = retries_.stale(thread, ENOENT);
    else
      retries_.found_nothing(thread);
  }
  if (reply.error == ENOENT && should_load_names(directory)) {
    begin();
    fusionfs::start(load_names(directory), [this](int) { end(); });
  }
  if (reply.error == 0) {
    const auto inode = table_.get(reply.inode->id, 1);
    looked.inode = absorb(*inode, *reply.inode, false, listed_by(reply));
    {
      const std::lock_guard lock(inode->mutex);
      reached(*inode, directory, name);
    }
    retries_.looked_up(thread, inode->id);
  }
  co_return looked;
}

// An inode that is known by its number alone: of a file handle (open_by_handle_at, an NFS server), or a directory's parent.
Task<Looked> FileSystem::lookup_number(InodeId id, bool parent) {
  Looked looked;
  Reply reply = co_await metadata_.getattr(id);
  if (reply.error == 0 && parent && id != kRootInode) {
    if (is_directory(reply.inode->mode))
      reply = co_await metadata_.getattr(reply.inode->parent);
    else
      reply.error = ENOTDIR;
  }
  looked.error = reply.error;
  if (reply.error == 0) looked.inode = absorb(*table_.get(reply.inode->id, 1), *reply.inode, false, listed_by(reply));
  co_return looked;
}

Task<int> FileSystem::refresh(std::shared_ptr<MountedInode> inode, Metadata::For what) {
  std::uint64_t changes = 0;
  {
    const std::lock_guard lock(inode->mutex);
    if (inode->gone && !inode->shared) co_return 0;
    changes = inode->changes;
  }
  Reply reply;
  if (what == Metadata::For::opening)
    reply = co_await metadata_.open(inode->id);
  else
    reply = co_await metadata_.getattr(inode->id);
  const std::lock_guard lock(inode->mutex);
  const bool served_from_here = inode->record.mode != 0 && !inode->content_dropped;
  if (reply.error == ENOENT && served_from_here && (inode->gone || inode->opens > 0)) {
    // Removed elsewhere while open here, and this mount was silent for too long to be waited for: what is known goes on serving.
    inode->lost = !inode->gone || inode->shared;
    inode->gone = true;
    inode->shared = false;
    inode->record.links = 0;
    co_return 0;
  }
  if (reply.error == 0 && reply.inode->links == 0) inode->gone = inode->shared = true;
  if (reply.error == 0) {
    // Of a directory nothing was learned or reckoned since this was asked: it is right, whatever was reckoned before.
    if (is_directory(reply.inode->mode) && inode->changes == changes) inode->record.revision = 0;
    absorb_locked(*inode, *reply.inode, false, listed_by(reply));
  }
  co_return reply.error;
}

Task<Looked> FileSystem::getattr(InodeId id) {
  const auto inode = table_.get(id, 0);
  Looked looked;
  bool ask = false;
  {
    const std::lock_guard lock(inode->mutex);
    ask = !fresh(*inode);
    if (!ask) looked.inode = view(inode->record);
  }
  if (ask) {
    looked.error = co_await refresh(inode);
    if (looked.error == 0) {
      const std::lock_guard lock(inode->mutex);
      looked.inode = view(inode->record);
    }
  }
  co_return looked;
}

Task<Looked> FileSystem::setattr(SetRequest request) {
  const auto inode = table_.get(request.inode, 0);
  Looked looked;
  if (options_.read_only) {
    looked.error = EROFS;
    co_return looked;
  }
  {
    const std::lock_guard lock(inode->mutex);
    if (inode->gone && !inode->shared && inode->record.mode != 0 && (request.fields_set & SetRequest::kSize) == 0) {
      // Without a name; kept by this mount alone.
      Inode& record = inode->record;
      if ((request.fields_set & SetRequest::kMode) != 0)
        record.mode = (record.mode & kTypeMask) | (request.mode & 07777);
      if ((request.fields_set & SetRequest::kUid) != 0) record.uid = request.uid;
      if ((request.fields_set & SetRequest::kGid) != 0) record.gid = request.gid;
      if ((request.fields_set & SetRequest::kAtime) != 0) record.atime = request.atime;
      if ((request.fields_set & SetRequest::kMtime) != 0) record.mtime = request.mtime;
      record.ctime = metadata_.now();
      looked.inode = view(record);
      co_return looked;
    }
  }
  co_await inode->changing.take();
  if ((request.fields_set & SetRequest::kSize) != 0) {
    looked = co_await truncate(inode, request);
  } else {
    // A commit that arrived later would bring back its own mtime.
    looked.error = co_await commit(inode);
    if (looked.error == 0) {
      Reply reply = co_await metadata_.setattr(request);
      looked.error = reply.error;
      if (reply.error == 0) looked.inode = absorb(*inode, *reply.inode, true, listed_by(reply));
    }
  }
  inode->changing.give();
  co_return looked;
}

// `changing` is held.
Task<Looked> FileSystem::truncate(std::shared_ptr<MountedInode> inode, SetRequest request) {
  Looked looked;
  if (request.size > kMaxFileSize) {
    looked.error = EFBIG;
    co_return looked;
  }
  looked.error = co_await commit(inode);
  if (looked.error != 0) co_return looked;
  std::uint64_t old_size = 0;
  std::vector<std::uint64_t> stores;
  bool gone = false, known = false;
  {
    const std::lock_guard lock(inode->mutex);
    // Another mount may have made it longer: what is cut off its chunks is known by its size.
    known = inode->record.mode != 0 && inode->known_at != base::Time{} && clock_.now() - inode->known_at < kJustTold;
    gone = inode->gone && !inode->shared;
  }
  if (!known && !gone) {
    looked.error = co_await refresh(inode);
    if (looked.error != 0) co_return looked;
  }
  {
    const std::lock_guard lock(inode->mutex);
    old_size = inode->record.size;
    stores = inode->record.stores();
  }
  // The record first: after a crash in between, what is left in the chunks lies past the end and is cut by the next
  // writer.
  if (!gone) {
    Reply reply = co_await metadata_.setattr(request);
    if (reply.error == ENOENT) {
      gone = true;
    } else if (reply.error != 0) {
      looked.error = reply.error;
      co_return looked;
    } else {
      looked.inode = absorb(*inode, *reply.inode, true);
    }
  }
  std::shared_ptr<Content> cut;
  bool emptied = false;
  {
    const std::lock_guard lock(inode->mutex);
    if (gone) {
      inode->record.size = request.size;
      if (inode->record.content.size() > request.size) inode->record.content.resize(request.size);
      inode->record.mtime = inode->record.ctime = metadata_.now();
      looked.inode = view(inode->record);
    }
    if (!stores.empty() && request.size < old_size) {
      emptied = inode->record.has(Inode::kInline);
      if (emptied)
        inode->content.reset();  // truncated to nothing: small again until it grows
      else
        cut = content_of(*inode);
      inode->written.clear();
    }
  }
  if (!cut && !emptied) co_return looked;
  // Other nodes' disks are not waited for by a thread that answers.
  if (std::any_of(stores.begin(), stores.end(), [&](std::uint64_t each) { return each != chunks_.identity(); })) {
    auto turn = chores_.turn();
    co_await turn;
  }
  const auto done = emptied ? stores_.remove(inode->id, stores, old_size) : cut->truncate(request.size, old_size);
  if (!done) {
    warn(done.error().message);
    if (!emptied) looked.error = errno_of_local(done.error());
  }
  if (cut) {
    const std::lock_guard lock(inode->mutex);
    if (inode->opens == 0) inode->content.reset();
  }
  co_return looked;
}

std::shared_ptr<Content> FileSystem::content_of(MountedInode& inode) {
  std::vector<std::uint64_t> stores = inode.record.stores();
  if (stores.empty()) {
    // Where the first bytes go, and with them all others: here, and to other nodes.
    stores.push_back(chunks_.identity());
    for (const std::uint64_t each : stores_.choose(options_.copies - 1)) stores.push_back(each);
    inode.record.copies.assign(stores.begin() + 1, stores.end());
  }
  if (!inode.content || inode.content_stores != stores) {
    inode.content = stores_.open(inode.id, stores);
    inode.content_stores = stores;
  }
  return inode.content;
}

// As last known; asked for only when nothing is.
Task<Inode> FileSystem::seen_directory(InodeId directory) {
  const auto known = table_.get(directory, 0);
  for (const bool again : {true, false}) {
    {
      const std::lock_guard lock(known->mutex);
      if (known->record.mode != 0 || !again) co_return view(known->record);
    }
    co_await refresh(known);
  }
  co_return Inode{};
}

Task<Looked> FileSystem::make(InodeId directory, CreateRequest request) {
  Looked looked;
  if (request.name.size() > kMaxName) looked.error = ENAMETOOLONG;
  if (options_.read_only) looked.error = EROFS;
  if (request.target.size() > 4095) looked.error = ENAMETOOLONG;
  if (looked.error != 0) co_return looked;
  Reply reply;
  const base::Time asked = clock_.now();
  const std::string name = request.name;
  const bool is_dir = is_directory(request.mode);
  const Inode seen = co_await seen_directory(directory);
  request.parent_mode = seen.mode;
  request.parent_gid = seen.gid;
  if (is_dir) {
    reply = co_await metadata_.make_directory(directory, std::move(request), seen);
  } else {
    reply = co_await metadata_.create(directory, std::move(request));
  }
  looked.error = error_in_directory(reply);
  note_names(directory, asked, reply, reply.error == 0 ? 1 : 0, "", reply.error == 0 ? name : "");
  if (reply.error != 0) co_return looked;
  note_change(directory, reply.changed, reply.sequence, 1, 1, is_dir ? 1 : 0);
  const auto made = table_.get(reply.inode->id, 1);
  looked.inode = absorb(*made, *reply.inode, false, is_dir ? std::optional<std::uint64_t>(0) : std::nullopt);
  const std::lock_guard lock(made->mutex);
  made->made_here = true;
  reached(*made, directory, name);
  if (is_dir && options_.leases) {
    made->names = std::make_unique<KnownNames>();
    made->names->complete = true;  // empty
    made->names->since = asked;
  }
  co_return looked;
}

Task<Opened> FileSystem::create(InodeId directory, std::string name, std::uint32_t mode, std::uint32_t uid,
                                std::uint32_t gid, int flags) {
  Opened opened;
  if (name.size() > kMaxName) opened.error = ENAMETOOLONG;
  if (options_.read_only) opened.error = EROFS;
  if (opened.error != 0) co_return opened;
  CreateRequest request;
  request.name = name;
  request.mode = S_IFREG | (mode & 07777);
  request.uid = uid;
  request.gid = gid;
  const Inode seen = co_await seen_directory(directory);
  request.parent_mode = seen.mode;
  request.parent_gid = seen.gid;
  request.opener = session_;
  const base::Time asked = clock_.now();
  Reply reply = co_await metadata_.create(directory, std::move(request));
  note_names(directory, asked, reply, reply.error == 0 ? 1 : 0, "", reply.error == 0 ? name : "");
  if (reply.error == EEXIST && (flags & O_EXCL) == 0) {
    // It came into being since the kernel looked: open it.
    Looked looked = co_await lookup(directory, name);  // then opened as what was found, by no thread's name
    opened.error = looked.error;
    if (looked.error == 0 && !is_regular(looked.inode.mode))
      opened.error = is_directory(looked.inode.mode) ? EISDIR : EEXIST;
    if (opened.error == 0) opened = co_await open(looked.inode.id, flags & ~(O_CREAT | O_EXCL));
    if (looked.error == 0 && opened.error != 0) forget(looked.inode.id, 1);
    co_return opened;
  }
  opened.error = error_in_directory(reply);
  if (reply.error != 0) co_return opened;
  note_change(directory, reply.changed, reply.sequence, 1, 1, 0);
  const auto inode = table_.get(reply.inode->id, 1);
  table_.opened(inode->id);
  const std::lock_guard lock(inode->mutex);
  inode->opens += 1;
  absorb_locked(*inode, *reply.inode, false);
  inode->made_here = true;
  reached(*inode, directory, name);
  inode->cached_revision = inode->record.revision;
  opened.inode = view(inode->record);
  opened.alone = true;
  co_return opened;
}

Task<Looked> FileSystem::link(InodeId id, InodeId directory, std::string name) {
  Looked looked;
  if (name.size() > kMaxName) looked.error = ENAMETOOLONG;
  if (options_.read_only) looked.error = EROFS;
  if (looked.error != 0) co_return looked;
  looked = co_await getattr(id);
  if (looked.error != 0) co_return looked;
  if (is_directory(looked.inode.mode)) {
    looked.error = EPERM;
    co_return looked;
  }
  const base::Time asked = clock_.now();
  Reply reply = co_await metadata_.link(id, looked.inode.mode & kTypeMask, directory, name);
  note_names(directory, asked, reply, reply.error == 0 ? 1 : 0, "", reply.error == 0 ? name : "");
  looked.error = error_in_directory(reply);
  if (reply.error != 0) co_return looked;
  note_change(directory, reply.changed, reply.sequence, 1, 1, 0);
  const auto inode = table_.get(id, 1);
  looked.inode = absorb(*inode, *reply.inode, true);
  const std::lock_guard lock(inode->mutex);
  reached(*inode, directory, name);
  co_return looked;
}

// An inode's last name went, and so did the inode.
void FileSystem::buried(const Inode& inode) {
  std::shared_ptr<Content> content;
  if (const auto known = table_.find(inode.id)) {
    const std::lock_guard lock(known->mutex);
    known->gone = true;
    known->record.links = 0;
    known->record.ctime = std::max(known->record.ctime, inode.ctime);
    known->dirty = false;
    content = std::move(known->content);
    known->content.reset();
  }
  const std::uint64_t size = inode.size;
  std::vector<std::uint64_t> stores = inode.stores();
  if (stores.empty() && content) stores.push_back(chunks_.identity());
  if (!stores.empty()) remove_chunks(inode.id, std::move(stores), size, std::move(content));
}

// The last name went while the file is open here, or perhaps elsewhere.
void FileSystem::orphaned(const Inode& inode, bool elsewhere) {
  bool open = false;
  if (const auto known = table_.find(inode.id)) {
    const std::lock_guard lock(known->mutex);
    known->gone = true;
    known->shared = elsewhere;
    known->record.links = 0;
    known->record.ctime = std::max(known->record.ctime, inode.ctime);
    open = known->opens > 0;
  }
  if (!open && elsewhere) return;  // each that may have it open is told, this mount too if it opens it at this moment
  begin();
  if (!open) {
    fusionfs::start(metadata_.reap(inode.id), [this](Reply) { end(); });
    return;
  }
  std::string id;
  base::Writer(id).u64(raw(inode.id));
  client_.submit(Operation::append(session_orphans_key(session_), id), [this](Outcome) { end(); });
}

// Says of homes with open files that they are, and lets go of inodes without a name that are not open here (any more).
Task<int> FileSystem::tend_nameless(Tend how) {
  if (how == Tend::on) {
    for (const HomeId home : table_.open_homes()) co_await metadata_.keep_open(home);
  }
  Call call(client_, Operation::lookup(session_orphans_key(session_)));
  const Outcome list = co_await call;
  if (!list.ok()) co_return list.code == base::Code::not_found ? 0 : errno_of(list);
  const base::Time now = clock_.now();
  std::set<InodeId> listed;
  for (base::Reader from(list.value); from.left() >= 8;) listed.insert(InodeId{from.u64()});
  std::erase_if(nameless_, [&](const auto& each) { return listed.count(each.first) == 0; });
  bool all = true;
  for (const InodeId id : listed) {
    const base::Time since = nameless_.try_emplace(id, now).first->second;
    bool open = false;
    if (const auto inode = table_.find(id); inode && how == Tend::on) {
      const std::lock_guard lock(inode->mutex);
      open = inode->opens > 0;
      if (open && !inode->gone) inode->gone = inode->shared = true;
      if (open) inode->record.links = 0;
    }
    if (open || (how == Tend::on && now - since < kLookForNameless)) {
      all = false;
      continue;
    }
    Reply reaped = co_await metadata_.reap(id);
    all = all && reaped.error == 0;
  }
  if (how == Tend::at_the_end) co_return all ? 0 : EIO;
  // What has come meanwhile is in the way of this, and stays.
  if (all) {
    Call clear(client_, Operation::cswap_remove(session_orphans_key(session_), zht::Condition::at_version(list.version)));
    co_await clear;
    nameless_.clear();
  }
  co_return 0;
}

Task<int> FileSystem::unlink(InodeId directory, std::string name) {
  if (options_.read_only) co_return EROFS;
  const base::Time asked = clock_.now();
  Reply reply = co_await metadata_.unlink(directory, name);
  note_names(directory, asked, reply, reply.error == 0 ? 1 : 0, reply.error == 0 ? name : "", "");
  if (reply.error != 0) co_return error_in_directory(reply);
  note_change(directory, reply.changed, reply.sequence, 1, -1, 0);
  unnamed_here(reply.entry->inode, directory, name);
  if (reply.inode && reply.inode->links > 0) {
    if (const auto known = table_.find(reply.inode->id)) absorb(*known, *reply.inode, true);
  } else if (!reply.inode) {
    touch_directory(reply.entry->inode);  // its links changed in another home
  }
  co_return 0;
}

Task<int> FileSystem::remove_directory(InodeId directory, std::string name) {
  if (options_.read_only) co_return EROFS;
  const base::Time asked = clock_.now();
  Reply reply = co_await metadata_.remove_directory(directory, name);
  note_names(directory, asked, reply, reply.error == 0 ? 1 : 0, reply.error == 0 ? name : "", "");
  if (reply.error != 0) co_return error_in_directory(reply);
  note_change(directory, reply.changed, reply.sequence, 1, -1, -1);
  if (const auto known = table_.find(reply.entry->inode)) {
    const std::lock_guard lock(known->mutex);
    known->gone = true;
    known->record.links = 0;
    known->record.ctime = metadata_.now();
  }
  co_return 0;
}

Task<int> FileSystem::rename(InodeId from, std::string from_name, InodeId to, std::string to_name,
                             std::uint32_t flags) {
  if (options_.read_only) co_return EROFS;
  if (to_name.size() > kMaxName) co_return ENAMETOOLONG;
  const base::Time asked = clock_.now();
  Reply reply = co_await metadata_.rename(from, from_name, to, to_name, flags);
  const bool exchanged = (flags & kExchange) != 0, replaced = reply.other_entry.has_value();
  if (from == to) {
    const unsigned records = reply.error != 0 || !reply.done ? 0 : exchanged ? 4 : replaced ? 3 : 2;
    const bool moved = records > 0 && !exchanged;
    note_names(from, asked, reply, records, moved ? from_name : "", moved ? to_name : "");
  } else {
    forget_names(from);
    if (reply.error == 0 && reply.done)
      note_names(to, asked, reply, exchanged || replaced ? 2 : 1, "", to_name);
    else
      forget_names(to);
  }
  if (reply.error != 0) co_return error_in_directory(reply);
  if (reply.done) {
    const auto directory = [](const std::optional<Entry>& entry) { return entry && is_directory(entry->type) ? 1 : 0; };
    const int moved = directory(reply.entry), other = directory(reply.other_entry), over = replaced ? 1 : 0;
    if (from == to && (reply.left == 0 || exchanged)) {
      note_change(to, std::max(reply.changed, reply.left), reply.sequence, exchanged ? 4 : 2 + over, exchanged ? 0 : -over,
                  exchanged ? 0 : -other);
    } else {
      note_change(to, reply.changed, reply.sequence, 1 + over, 1 - over, moved - other);
      note_change(from, reply.left, 0, exchanged ? 2 : 1, exchanged ? 0 : -1, (exchanged ? other : 0) - moved);
    }
  }
  if (reply.done) {
    if (reply.other_entry && exchanged) renamed_here(reply.other_entry->inode, to, to_name, from, from_name);
    if (reply.other_entry && !exchanged) unnamed_here(reply.other_entry->inode, to, to_name);
    if (reply.entry) renamed_here(reply.entry->inode, from, from_name, to, to_name);
  }
  if (reply.entry) {
    if (reply.inode) {
      if (const auto known = table_.find(reply.inode->id)) absorb(*known, *reply.inode, true);
    } else {
      touch_directory(reply.entry->inode);
    }
  }
  if (reply.other_entry && (!reply.entry || reply.other_entry->inode != reply.entry->inode)) {
    const auto known = table_.find(reply.other_entry->inode);
    if (known && is_directory(reply.other_entry->type) && (flags & kExchange) == 0) {
      const std::lock_guard lock(known->mutex);
      known->gone = true;
      known->record.links = 0;
    } else if (known && reply.other && reply.other->links > 0) {
      absorb(*known, *reply.other, true);
    } else if (known && !reply.other) {
      touch_directory(reply.other_entry->inode);
    }
  }
  co_return 0;
}

Task<TextReply> FileSystem::read_link(InodeId id) {
  const auto inode = table_.get(id, 0);
  TextReply reply;
  bool ask = false;
  {
    const std::lock_guard lock(inode->mutex);
    ask = inode->record.mode == 0;  // a target never changes
  }
  if (ask) reply.error = co_await refresh(inode);
  const std::lock_guard lock(inode->mutex);
  if (reply.error == 0 && !is_symlink(inode->record.mode)) reply.error = EINVAL;
  if (reply.error == 0) reply.text = inode->record.content;
  co_return reply;
}

Task<Opened> FileSystem::open(InodeId id, int flags, bool privileged, std::uint32_t thread) {
  Opened opened;
  const bool writes = (flags & O_ACCMODE) != O_RDONLY;
  if (options_.read_only && (writes || (flags & O_TRUNC) != 0)) {
    opened.error = EROFS;
    co_return opened;
  }
  const auto inode = table_.get(id, 0);
  {
    const std::lock_guard lock(inode->mutex);
    inode->opens += 1;
  }
  table_.opened(id);
  // What was looked up during this very open(2) is what is opened, whatever has become of its name since.
  const bool looked_up = thread == 0 || retries_.on_second_walk(thread, Retries::Request::other, id);
  Named named;
  if (!looked_up) named = co_await check_names(inode, Metadata::For::opening);
  opened.error = named.error;
  if (opened.error == 0 && named.stale) opened.error = retries_.stale(thread, 0, Retries::Request::other, id);
  if (opened.error == 0 && named.found) {
    absorb(*inode, *named.found);
  } else if (opened.error == 0) {
    opened.error = co_await refresh(inode, Metadata::For::opening);
    if (opened.error == ENOENT && !looked_up) opened.error = retries_.stale(thread, ENOENT, Retries::Request::other, id);
    bool nameless = false;
    {
      const std::lock_guard lock(inode->mutex);
      nameless = inode->gone || inode->record.links == 0;
    }
    if (opened.error == 0 && nameless && !looked_up) opened.error = retries_.stale(thread, 0, Retries::Request::other, id);
  }
  if (opened.error == 0) {
    co_await forgotten_by_kernel(inode);  // its size, above all
    co_await find_stores(inode);
  }
  if (opened.error == 0 && (flags & O_TRUNC) != 0) {
    SetRequest request;
    request.inode = id;
    request.fields_set = SetRequest::kSize;
    request.size = 0;
    co_await inode->changing.take();
    {
      const std::lock_guard lock(inode->mutex);
      request.mode = without_set_ids(inode->record.mode) & 07777;
      if (!privileged && request.mode != (inode->record.mode & 07777)) request.fields_set |= SetRequest::kMode;
    }
    Looked truncated = co_await truncate(inode, request);
    inode->changing.give();
    opened.error = truncated.error;
  }
  if (opened.error != 0) {
    co_await release(id);
    co_return opened;
  }
  const std::lock_guard lock(inode->mutex);
  opened.keep_cache = inode->cached_revision != 0 && inode->cached_revision == inode->record.revision;
  inode->cached_revision = inode->record.revision;
  opened.inode = view(inode->record);
  opened.alone = (flags & O_TRUNC) != 0 && inode->opens == 1;
  co_return opened;
}

Task<DirectoryPage> FileSystem::read_directory(std::shared_ptr<OpenDirectory> directory, std::uint64_t cursor,
                                               std::size_t most, bool attributes) {
  DirectoryPage page;
  if (!directory->loaded || cursor == 0) {
    Metadata::ListReply listed = co_await metadata_.list(directory->id, std::move(directory->listing));
    if (listed.error == ENOENT) listed.error = 0;  // removed while open: empty
    directory->listing = std::move(listed.listing);
    directory->loaded = listed.error == 0;
    directory->ahead.clear();
    if (const auto known = table_.find(directory->id); known && listed.error == 0) {
      const std::lock_guard lock(known->mutex);
      remember_names(*known, directory->listing);
    }
    page.error = listed.error;
    if (page.error != 0) co_return page;
  }
  if (cursor < kDot) {
    DirectoryEntry dot;
    dot.name = ".";
    dot.inode = directory->id;
    dot.type = S_IFDIR;
    dot.next = kDot;
    page.entries.push_back(std::move(dot));
  }
  if (cursor < kDotDot && page.entries.size() < most) {
    DirectoryEntry up;
    up.name = "..";
    up.inode = directory->id;
    if (const auto known = table_.find(directory->id)) {
      const std::lock_guard lock(known->mutex);
      if (known->record.parent != InodeId{}) up.inode = known->record.parent;
    }
    up.type = S_IFDIR;
    up.next = kDotDot;
    page.entries.push_back(std::move(up));
  }
  const std::uint64_t after = cursor > kDotDot ? cursor - kDotDot : 0;
  auto at = directory->listing.names.upper_bound(after);
  while (at != directory->listing.names.end() && page.entries.size() < most) {
    const auto& [sequence, name] = *at;
    DirectoryEntry entry;
    entry.name = name.name;
    entry.inode = name.inode;
    entry.type = name.type;
    entry.next = sequence + kDotDot;
    // A directory's record is in its own home: the kernel looks it up when it needs to.
    if (attributes && counter_of(name.inode) != kDirectoryCounter) {
      if (clock_.now() - directory->ahead_at > std::max(options_.attribute_timeout, kAheadKept)) directory->ahead.clear();
      auto found = directory->ahead.find(raw(name.inode));
      if (found == directory->ahead.end()) {
        std::map<HomeId, std::vector<InodeId>> wanted;
        std::size_t count = 0;
        for (auto next = at; next != directory->listing.names.end() && count < kAhead; ++next, ++count) {
          const InodeId id = next->second.inode;
          if (counter_of(id) != kDirectoryCounter) wanted[home_of(id)].push_back(id);
        }
        directory->ahead.clear();
        directory->ahead_at = clock_.now();
        for (auto& [home, ids] : wanted) {
          Reply reply = co_await metadata_.inodes(home, std::move(ids));
          if (reply.error != 0) {
            if (page.entries.empty()) page.error = reply.error;
            co_return page;
          }
          for (auto& inode : reply.inodes) directory->ahead.emplace(raw(inode.id), std::move(inode));
        }
        found = directory->ahead.find(raw(name.inode));
        if (found == directory->ahead.end()) directory->ahead.emplace(raw(name.inode), Inode{});  // it went since
        found = directory->ahead.find(raw(name.inode));
      }
      if (found->second.mode != 0) {
        entry.has_attributes = true;
        entry.attributes = found->second;
      }
    }
    page.entries.push_back(std::move(entry));
    ++at;
  }
  co_return page;
}

Task<int> FileSystem::set_attribute(InodeId id, std::string name, std::string value, std::uint32_t flags,
                                    std::optional<std::uint32_t> mode) {
  if (options_.read_only) co_return EROFS;
  if (value.size() > kMaxAttributeValue) co_return E2BIG;
  const auto inode = table_.get(id, 0);
  AttributeRequest request;
  request.inode = id;
  request.name = std::move(name);
  request.value = std::move(value);
  request.flags = flags;
  request.mode = mode;
  Reply reply = co_await metadata_.set_attribute(std::move(request), false);
  if (reply.error == 0) absorb(*inode, *reply.inode, true, listed_by(reply));
  co_return reply.error;
}

Task<int> FileSystem::remove_attribute(InodeId id, std::string name) {
  if (options_.read_only) co_return EROFS;
  const auto inode = table_.get(id, 0);
  AttributeRequest request;
  request.inode = id;
  request.name = std::move(name);
  Reply reply = co_await metadata_.set_attribute(std::move(request), true);
  if (reply.error == 0) absorb(*inode, *reply.inode, true, listed_by(reply));
  co_return reply.error;
}

Task<TextReply> FileSystem::get_attribute(InodeId id, std::string name) {
  TextReply text;
  const Looked looked = co_await getattr(id);
  text.error = looked.error;
  if (text.error == 0 && !looked.inode.has(Inode::kHasAttributes)) text.error = ENODATA;
  if (text.error != 0) co_return text;
  Metadata::AttributesReply reply = co_await metadata_.get_attributes(id);
  text.error = reply.error != 0 ? reply.error : ENODATA;
  for (auto& [each, value] : reply.attributes) {
    if (each != name) continue;
    text.error = 0;
    text.text = std::move(value);
  }
  co_return text;
}

void FileSystem::note_use(InodeId id, const std::string& line) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 20;  // bytes of one file's history; then it begins anew
  constexpr zht::Millis kKept{std::chrono::hours(24 * 90)};
  auto operation = Operation::append(provenance_key(id), line, kMost);
  operation.ttl = kKept;
  begin();
  client_.submit(operation, [this, id, line](const Outcome& outcome) {
    if (outcome.code == base::Code::no_space)
      client_.submit(Operation::insert(provenance_key(id), line, kKept), [this](const Outcome&) { end(); });
    else
      end();
  });
}

Task<TextReply> FileSystem::layout(InodeId id, std::string what) {
  TextReply text;
  const Looked looked = co_await getattr(id);
  text.error = looked.error;
  if (text.error != 0) co_return text;
  const Inode& inode = looked.inode;
  const bool regular = is_regular(inode.mode), chunks = regular && !inode.has(Inode::kInline) && inode.store != 0;
  const auto partition = zht::partition_of(inode_key(id), client_.partition_count());
  std::vector<std::pair<std::string, std::string>> all{
      {"inode", std::to_string(raw(id))},
      {"home", std::to_string(raw(home_of(id)))},
      {"partition", std::to_string(static_cast<std::uint32_t>(partition))},
      {"content", !regular ? "none" : inode.has(Inode::kInline) ? "inline" : chunks ? "chunks" : "none"}};
  if (chunks) {
    const bool here = inode.store == chunks_.identity();
    all.emplace_back("store", std::to_string(inode.store) + (here ? " (this node)" : " (another node)"));
    std::string copies;
    for (const std::uint64_t each : inode.copies) {
      copies += (copies.empty() ? "" : " ") + std::to_string(each);
      if (each == chunks_.identity()) copies += " (this node)";
    }
    all.emplace_back("copies", copies.empty() ? "none" : copies);
    const std::size_t have = inode.stores().size(), wanted = std::max<std::size_t>(inode.wanted, 1);
    all.emplace_back("wanted", std::to_string(wanted));
    all.emplace_back("short_chunks", std::to_string(wanted > have ? chunk_count(inode) : 0));
    all.emplace_back("chunks", std::to_string((inode.size + kChunkSize - 1) / kChunkSize));
  }
  if (is_directory(inode.mode)) {
    const Reply homes = co_await metadata_.homes(id);
    all.emplace_back("homes", std::to_string(homes.shards.size() + 1));
  }
  text.error = ENODATA;
  for (const auto& [name, value] : all) {
    if (what != "layout" && what != name) continue;
    text.error = 0;
    text.text += what == "layout" ? name + "=" + value + "\n" : value;
  }
  co_return text;
}

Task<TextReply> FileSystem::list_attributes(InodeId id) {
  TextReply text;
  const Looked looked = co_await getattr(id);
  text.error = looked.error;
  if (text.error != 0 || !looked.inode.has(Inode::kHasAttributes)) co_return text;
  Metadata::AttributesReply reply = co_await metadata_.get_attributes(id);
  text.error = reply.error;
  for (auto& [each, value] : reply.attributes) {
    text.text += each;
    text.text += '\0';
  }
  co_return text;
}

int FileSystem::statistics(struct statvfs& to) const {
  if (::statvfs(chunks_.folder().c_str(), &to) != 0) return errno;
  to.f_namemax = kMaxName;
  to.f_fsid = 0;
  return 0;
}

}  // namespace fusionfs

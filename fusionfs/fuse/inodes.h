// The inodes that the kernel, or an open file, knows in this mount, with what this mount knows about them: the last
// record seen and when, what was written and not yet committed, and the open chunks.
#pragma once

#include <array>
#include <coroutine>
#include <map>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "fusionfs/core/format.h"
#include "fusionfs/core/task.h"
#include "fusionfs/data/content.h"
#include "novoht/base/clock.h"

namespace fusionfs {

// A mutex for coroutines: waiting holds no thread. First come, first served.
//   co_await turn.take(); ... turn.give();
class Turn {
 public:
  struct Wait {
    Turn& turn;
    bool await_ready() const noexcept { return false; }
    bool await_suspend(std::coroutine_handle<> waiter) {
      const std::lock_guard lock(turn.mutex_);
      if (!turn.taken_) {
        turn.taken_ = true;
        return false;
      }
      turn.waiting_.push_back(waiter);
      return true;
    }
    void await_resume() const noexcept {}
  };
  Wait take() { return Wait{*this}; }
  void give() {
    std::coroutine_handle<> next;
    {
      const std::lock_guard lock(mutex_);
      if (waiting_.empty()) {
        taken_ = false;
        return;
      }
      next = waiting_.front();
      waiting_.erase(waiting_.begin());
    }
    // What goes on here is another's: this thread, which has its own to finish, does not wait for the store in its stead. One that
    // did answered its close when every commit begun meanwhile had been given up: never, while the store is silent.
    const CallsBlock calls(CallsBlock::now() == CallsBlock::Which::every ? CallsBlock::Which::every : CallsBlock::Which::none);
    next.resume();
  }

 private:
  std::mutex mutex_;
  bool taken_ = false;                            // guarded by mutex_
  std::vector<std::coroutine_handle<>> waiting_;  // few; a deque takes 600 bytes when it is empty. Guarded by mutex_
};

// The names of a directory while this mount has its lease: then a name that is not here is nowhere, and need not be
// asked for. Every change of ours that the store answers says which record of the listing it was: a gap means that
// somebody else came between, and nothing is believed any more.
struct KnownNames {
  bool complete = false;
  std::uint64_t sequence = 0;  // `names` is the directory after this record
  std::uint64_t seen = 0;      // the last record the store has told of
  base::Time lease_until{};
  base::Time since{};  // `names` has been complete from then on
  std::unordered_set<std::string> names;
  unsigned misses = 0;  // lookups that found nothing and had to ask
  bool loading = false;
};

struct Extent {
  std::uint64_t from = 0, to = 0;  // bytes
};

// A name by which the kernel has been led to an inode: it may use it again, without asking, until its time is over.
struct ReachedBy {
  InodeId directory{};
  std::string name;
  base::Time at{};
};

// Members below `mutex` are guarded by it; it is held briefly and never while waiting for the store, a disk or another node.
struct MountedInode {
  explicit MountedInode(InodeId inode) : id(inode) {}
  const InodeId id;

  Turn changing;  // held across a commit or a truncation: these must reach the store in order

  std::mutex preparing;  // held while the first bytes go to chunks, which may take a node's time-out; taken before `mutex`

  std::mutex mutex;
  Inode record;                       // as this mount sees it: uncommitted writes included
  base::Time known_at{};              // when the store last said so; zero: never, or out of date
  std::uint64_t cached_revision = 0;  // what the kernel's page cache shows
  std::uint32_t opens = 0;
  unsigned invalidating = 0;                   // the kernel is about to be told that its cache is out of date
  bool was_read = false;                       // record.atime is to be committed
  bool made_here = false;                      // and no other mount has changed it since
  bool gone = false;                           // no name leads here any more
  bool shared = false;                         // gone, and another mount may have it open too: the store knows it still
  bool content_dropped = false;                // `record` is without the bytes of a small file, until it is opened
  bool lost = false;                           // gone from the store too, while open here: its chunks may be
  bool dirty = false;                          // size, mtime or content to commit
  bool in_flight = false;                      // a commit was sent and not yet answered
  bool spilled = false;                        // was inline, is in chunks now, and the store does not know yet
  std::uint64_t dirty_from = 0, dirty_to = 0;  // inline bytes to commit
  std::vector<Extent> written;                 // chunks' bytes since the last commit was sent
  int write_error = 0;                         // of a commit in the background: told once
  std::vector<ReachedBy> reached_by;           // the oldest first; those whose time is over go when another comes
  base::Time unsure_until{};                   // until then the kernel may use names of it that are not in `reached_by`
  std::unique_ptr<KnownNames> names;           // directories in which this mount changes names
  bool spread = false;                         // over several homes: no lease covers all names, `names` is of no use
  std::optional<std::uint64_t> listed;         // directories: `record` is as the store told it after this record of the listing
  std::uint64_t changes = 0;                   // directories: how often `record` was changed
  std::shared_ptr<Content> content;            // when there are chunks, or will be
  std::vector<std::uint64_t> content_stores;   // where `content` reads and writes
  base::Time appends_until{};                  // until then nobody else appends to it; zero: this mount has no such right
};

// The kernel decides how long inodes are known here: as long as it has room for them, which may be hundreds of MB. What the store can
// tell again is let go of before (drop_idle); the kernel's references stay, in some 70 bytes.
class InodeTable {
 public:
  std::shared_ptr<MountedInode> find(InodeId inode) const;                       // nothing: unknown, or let go of
  std::shared_ptr<MountedInode> get(InodeId inode, std::uint64_t more_lookups);  // made when absent
  void forget(InodeId inode, std::uint64_t lookups);
  // Takes it out when neither the kernel nor a file refers to it.
  void trim(InodeId inode);
  // Which inodes of a home are open in this mount.
  void opened(InodeId inode);
  void closed(InodeId inode);
  std::vector<InodeId> open_in(HomeId home) const;
  std::vector<HomeId> open_homes() const;
  std::vector<std::shared_ptr<MountedInode>> all() const;
  std::size_t size() const;
  std::size_t bytes() const;  // of memory, about
  // Lets go of what is not in use and was not looked at since `before`, if the store can tell it again. The kernel goes on using names
  // for `names_live` after they were looked up. Returns how many bytes less that makes.
  std::size_t drop_idle(base::Time now, base::Time before, base::Duration names_live);

 private:
  struct Known {
    std::uint64_t lookups = 0;  // the kernel's references
    base::Time unsure_until{};  // the inode's, when it is made again
    std::shared_ptr<MountedInode> inode;
  };
  // In pages of their own: what lies between inodes that are let go of would keep these pages from going back to the system.
  struct Nodes {
    std::pmr::unsynchronized_pool_resource pool;
    std::pmr::unordered_map<std::uint64_t, Known> inodes{&pool};
  };
  struct Slice {
    mutable std::mutex mutex;
    std::unique_ptr<Nodes> nodes = std::make_unique<Nodes>();  // guarded by mutex
  };
  Slice& slice(InodeId inode) { return slices_[(raw(inode) ^ raw(inode) >> kCounterBits) % slices_.size()]; }
  const Slice& slice(InodeId inode) const {
    return slices_[(raw(inode) ^ raw(inode) >> kCounterBits) % slices_.size()];
  }
  std::array<Slice, 64> slices_;
  mutable std::mutex mutex_;
  std::unordered_map<std::uint64_t, std::set<InodeId>> open_;  // by home. Guarded by mutex_
};

}  // namespace fusionfs

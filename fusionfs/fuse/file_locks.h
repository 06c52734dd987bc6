// The file locks of one mount: asked for in the store, waited for by callback, kept alive, given back.
//
//   auto wait = std::make_shared<FileLocks::Wait>();
//   int error = co_await locks.lock(inode, lock, true, wait);   // EINTR after locks.interrupt(*wait), EDEADLK
//
// Two processes that wait for each other's record locks are found by following who waits for whom, which is in the store
// while somebody waits. Any thread.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "fusionfs/core/locks.h"
#include "fusionfs/core/task.h"
#include "novoht/base/clock.h"
#include "zht/client.h"

namespace fusionfs {

class FileLocks {
 public:
  struct Options {
    std::uint64_t session = 0;
    std::chrono::milliseconds life{15'000};  // of what a mount holds when it says nothing any more
    std::function<void(const std::string&)> warn;
  };
  FileLocks(zht::Client& client, const base::Clock& clock, Options options);

  // Somebody who waits and may be told to stop.
  struct Wait {
    std::mutex mutex;
    bool interrupted = false;        // guarded by mutex
    zht::RequestNumber request = 0;  // guarded by mutex
  };
  void interrupt(Wait& wait);

  // Sets, or with Type::none takes away. 0, EAGAIN (not `sleep`: another's is in the way), EINTR, EDEADLK, ENOLCK, EIO.
  // `handle`: the open file that it is taken through (0: not known); with kSilent one that tells of its closing only when it is
  // released.
  Task<int> lock(InodeId inode, FileLock lock, bool sleep, std::shared_ptr<Wait> wait, std::uint64_t handle);
  struct Tested {
    int error = 0;
    FileLock lock;  // in the way; Type::none: nothing is
  };
  Task<Tested> test(InodeId inode, FileLock lock);
  // All of an owner (0: of the mount) on a file, as when a file is closed. Asks nobody when there are none.
  Task<int> drop(InodeId inode, FileLock::Kind kind, std::uint64_t owner);
  bool holds(InodeId inode, FileLock::Kind kind, std::uint64_t owner) const;
  // A handle is released: those who took record locks through it and have not closed it, that is, an open file description
  // that owns its locks (F_OFD_SETLK), and everybody where closing is silent. Their locks are the caller's to drop; until
  // end_release() a trial lock that meets one of them waits for that.
  std::set<std::uint64_t> begin_release(std::uint64_t handle);
  void end_release(const std::set<std::uint64_t>& owners);
  // A process has closed a descriptor of the file: it owns nothing there any more, through whatever handle it was taken.
  void closed(InodeId inode, std::uint64_t owner);
  static constexpr std::uint64_t kSilent = std::uint64_t{1} << 62;  // a handle's bit

  // The right to append: waits for it, `reply.inode` is the file as it is now. EINTR when the mount ends.
  Task<LockReply> take_append(InodeId inode);

  void keep_alive();  // from time to time, at least each quarter of a life; asks and does not wait
  void stop();        // whoever waits is interrupted, and so is who comes now
  std::chrono::milliseconds life() const { return options_.life; }

 private:
  Task<LockReply> ask(LockRequest request);
  LockRequest request_for(InodeId inode, const FileLock& lock) const;
  Task<int> wait_for_change(InodeId inode, const LockReply& met, std::shared_ptr<Wait> wait);
  Task<bool> in_a_circle(FileLock self, LockReply met, bool& last);
  Task<int> settle(InodeId inode, LocksRequest request);
  void remember(InodeId inode, const FileLock& lock);
  std::uint64_t releases_ended() const;

  zht::Client& client_;
  const base::Clock& clock_;
  const Options options_;
  mutable std::mutex mutex_;
  std::map<InodeId, std::vector<FileLock>> held_;                 // guarded by mutex_
  struct Taken {
    InodeId inode{};
    std::set<std::uint64_t> owners;
  };
  std::map<std::uint64_t, Taken> by_handle_;                      // guarded by mutex_
  std::multiset<std::uint64_t> released_;                         // owners whose locks are being dropped. Guarded by mutex_
  std::uint64_t releases_ = 0;                                    // ended, that dropped some. Guarded by mutex_
  std::set<std::uint64_t> processes_;                             // owners that close descriptors. Guarded by mutex_
  std::set<std::shared_ptr<Wait>> waits_;                         // guarded by mutex_
  bool stopped_ = false;                                          // guarded by mutex_
};

}  // namespace fusionfs

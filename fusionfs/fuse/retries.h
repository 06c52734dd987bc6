// Paths that the kernel walks a second time. It keeps names for a while (entry_timeout), so a request may come for an inode to which
// its name leads no more. Told ESTALE, the kernel walks the path anew within the same system call, with a LOOKUP for each part of it,
// and comes back: once. What it then brings was looked up during that very call (perhaps by another thread at the same moment), and is
// what the caller gets, though the name may have changed again; a second ESTALE would go to the program.
//
//   if (!retries.on_second_walk(thread) && name_has_changed) return retries.stale(thread, ENOENT);
//
// A system call is known by its thread: a thread makes one at a time. On the way along a path the kernel may also ask for attributes
// (permissions, when it does not know them): that ends only a call that was told ESTALE by such a request itself. A second walk may end
// in the kernel (EACCES, or ELOOP where a symbolic link has come): then the thread's next request is another call's. It is not taken
// for the same one unless its inode was looked up on the second walk, or nothing was. Any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "fusionfs/core/format.h"
#include "novoht/base/clock.h"

namespace fusionfs {

class Retries {
 public:
  explicit Retries(const base::Clock& clock) : clock_(clock) {}

  enum class Request { attributes, other };  // by which a call was told, or comes back

  // ESTALE when the `thread` (0: unknown) is not on a second walk already; else `otherwise`. `inode`: the request's; none: any is meant.
  int stale(std::uint32_t thread, int otherwise, Request request = Request::other, InodeId inode = {});
  bool on_second_walk(std::uint32_t thread) const;  // for a LOOKUP
  bool on_second_walk(std::uint32_t thread, Request request, InodeId inode) const;
  // A LOOKUP of the thread has found `inode`; or nothing, which ends the walk.
  void looked_up(std::uint32_t thread, InodeId inode);
  void found_nothing(std::uint32_t thread);
  // A request other than LOOKUP is answered: the system call is over, unless it was told ESTALE just now.
  void answered(std::uint32_t thread, Request request = Request::other);

 private:
  // A call that was told ESTALE comes back at once or, if it is refused on its way (EACCES), never. What it then looks up tells it from
  // others: so it may take as long as a busy store does.
  static constexpr std::chrono::seconds kComesBack{2}, kGoesOn{20};
  static constexpr std::size_t kMostThreads = 1024;
  static constexpr std::size_t kMostFound = 64;  // parts of a path; of a longer one, any inode may be the call's
  struct Walk {
    base::Time at{};  // of its last step
    bool just_told = true;
    Request request = Request::other;
    std::vector<InodeId> found{};  // by LOOKUPs since it was told
  };
  bool late(const Walk& walk) const { return clock_.now() - walk.at > (walk.found.empty() ? kComesBack : kGoesOn); }
  bool same_call(const Walk& walk, Request request, InodeId inode) const;

  const base::Clock& clock_;
  std::atomic<bool> any_{false};
  mutable std::mutex mutex_;
  std::map<std::uint32_t, Walk> walks_;  // by thread. Guarded by mutex_
};

}  // namespace fusionfs

// Chunks of this node of which no record speaks ("strays"): what a mount that died had written and not committed, a copy that
// missed a change while this node was away, a file that was removed meanwhile. They are never read; they take room.
//
//   Sweeper sweeper(client, chunks, epoch, tell);     // as long as this lives
//
// A chunk is a stray if its inode is gone, or names other stores only. (An inode that names none may be about to: its chunks are cut
// off by its next writer.) Nobody is writing a stray: writers are kept out while its record is read again and it goes.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "fusionfs/data/chunk_store.h"
#include "fusionfs/data/repair.h"
#include "zht/client.h"

namespace fusionfs {

// By inode: the index of its last chunk here. Errors: of this node's disk; unavailable, timeout: the store did not answer, or
// `stop` was set.
// `visit`: is given the record of each file of which chunks are here.
base::Result<std::map<InodeId, std::uint64_t>> find_strays(zht::Client& client, const ChunkStore& chunks,
                                                           const std::atomic<bool>* stop = nullptr,
                                                           const std::function<void(const Inode&)>& visit = {});
// False: it is none (any more), or somebody writes it.
base::Result<bool> remove_stray(zht::Client& client, const ChunkStore& chunks, InodeId inode, std::uint64_t last_chunk);

// What a sweep found of files that have fewer copies than asked for, and of which this node is to make them. Kept in the folder of chunks.
struct Short {
  std::uint64_t files = 0, chunks = 0;
};
std::optional<Short> read_short(const std::string& chunk_folder);

// Sweeps from time to time on a thread of its own: soon after it began and after `epoch` changed (other nodes came or went),
// since what was left then comes to light by and by; later seldom, and never more than a fiftieth of the time. With `repair` copies
// that are lacking are made.
class Sweeper {
 public:
  Sweeper(zht::Client& client, const ChunkStore& chunks, std::function<std::uint64_t()> epoch,
          std::function<void(const std::string&)> tell, Repair* repair = nullptr);
  ~Sweeper();  // waits for a request under way: seconds at most
  Sweeper(const Sweeper&) = delete;
  Sweeper& operator=(const Sweeper&) = delete;
  void look_at(InodeId inode);  // it lacks a copy: not only at the next sweep

 private:
  void run();
  void sweep();
  void mend(const std::vector<InodeId>& inodes);

  zht::Client& client_;
  const ChunkStore& chunks_;
  const std::function<std::uint64_t()> epoch_;
  const std::function<void(const std::string&)> tell_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Repair* const repair_;
  std::set<InodeId> urgent_;  // guarded by mutex_
  std::uint64_t told_lacking_ = 0;  // files. The thread's
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace fusionfs

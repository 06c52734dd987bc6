// Copies that a file lacks are made again: those that were asked for when there were too few chunk stores, those that missed a change, those
// of a node that does not come back. Each node sees to the files of which it has a copy and is the first to have one that lives.
//
//   Repair repair(client, chunks, stores, {});
//   if (repair.lacks(record) > 0) repair.mend(record);        // on a thread that may wait for disks and networks
//
// A copy counts when the commit that names it finds the file as it was when copying began: what is written meanwhile goes to the copies
// that the writer knows, and this one is made once more. What an attempt leaves on the other node is a stray (data/sweep.h).
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>

#include "fusionfs/data/stores.h"

namespace fusionfs {

// Of one file of which a store has at most one copy: so many chunks are on fewer nodes than asked for.
std::uint64_t chunk_count(const Inode& inode);

// One thread.
class Repair {
 public:
  struct Options {
    // A node that has not been heard of for so long is not waited for any more: it may only have been started anew.
    std::chrono::milliseconds lost_after{60'000};
    std::uint64_t bytes_per_second = std::uint64_t{32} << 20;  // copied; 0: as fast as it goes
  };
  Repair(zht::Client& client, const ChunkStore& local, Stores& stores, Options options)
      : client_(client), local_(local), stores_(stores), options_(options) {}

  // How many copies more there should be. `wanted`: instead of what was asked for when the file was written.
  std::size_t lacks(const Inode& inode, std::size_t wanted = 0);
  // Whether it is this node's business.
  bool is_mine(const Inode& inode) const;
  // Makes what is lacking, as far as there are other nodes. Returns how many copies were made. Errors: of this node's disk, or the store's;
  // unavailable: told to stop.
  base::Result<std::size_t> mend(const Inode& inode, std::size_t wanted = 0, const std::atomic<bool>* stop = nullptr);

 private:
  bool lives(std::uint64_t store);
  base::Result<bool> copy(const Inode& inode, std::uint64_t to, std::size_t wanted, const std::atomic<bool>* stop);
  void pace(std::uint64_t bytes);

  zht::Client& client_;
  const ChunkStore& local_;
  Stores& stores_;
  const Options options_;
  std::map<std::uint64_t, std::chrono::steady_clock::time_point> unheard_;  // stores, since when
  std::chrono::steady_clock::time_point next_{};                           // when the next bytes may be copied
};

}  // namespace fusionfs

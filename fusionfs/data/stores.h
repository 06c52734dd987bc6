// Every chunk store of the file system, as this mount reaches them: its own through the local file system, the others
// through their chunk servers, which write into the store where they listen.
//
//   Stores stores(client, chunks);
//   stores.refresh();                                             // from time to time, on a thread that may block
//   auto content = stores.open(inode, {home, copy});              // reads from the nearest, writes to all
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "fusionfs/data/chunk_peer.h"
#include "fusionfs/data/chunk_store.h"
#include "zht/client.h"

namespace fusionfs {

inline constexpr const char* kStoresKey = "{fusionfs}stores";        // u64 identities, one fragment each
inline constexpr const char* kChunkSecretKey = "{fusionfs}chunk_secret";
std::string store_key(std::uint64_t identity);                       // ttl; "host:port" of its chunk server
inline constexpr zht::Millis kStoreLife{12'000};

// Any thread, but refresh(), serve_at() and opener(), which block on the store, not on a client's own.
class Stores {
 public:
  Stores(zht::Client& client, const ChunkStore& local) : client_(client), local_(local) {}

  // What both ends of a link to a chunk server ask for: what the cluster asks for, as this node's data folder and the
  // environment have it; where that is nothing, a word that the store keeps.
  base::Result<zht::Opener> opener();
  // From now on refresh() says that this node's store is served at `address`.
  void serve_at(std::string address);
  base::Result<void> refresh();
  void leave();  // takes that back

  bool known(std::uint64_t identity) const;
  bool heard(std::uint64_t identity) const;  // it has answered, to this
  std::size_t count() const;  // that are known, this node's own included
  // Grows with each store that comes or goes.
  std::uint64_t epoch() const;
  // Of the file, whose bytes are in all of `stores` (the first is its home).
  std::shared_ptr<Content> open(InodeId inode, const std::vector<std::uint64_t>& stores) const;
  // Up to `count` other stores whose servers say they live, another choice each time; those that did not answer just now last.
  std::vector<std::uint64_t> choose(std::size_t count);
  // Deletes a file's chunks wherever they are. unavailable: not everywhere.
  base::Result<void> remove(InodeId inode, const std::vector<std::uint64_t>& stores, std::uint64_t size) const;

 private:
  std::shared_ptr<ChunkPeer> peer(std::uint64_t identity) const;

  zht::Client& client_;
  const ChunkStore& local_;
  mutable std::mutex mutex_;
  zht::Opener opener_;                                          // guarded by mutex_
  std::string address_;                                         // guarded by mutex_
  bool listed_ = false;                                         // guarded by mutex_
  std::map<std::uint64_t, std::shared_ptr<ChunkPeer>> peers_;   // those that live. Guarded by mutex_
  std::size_t next_ = 0;                                        // guarded by mutex_
  std::uint64_t epoch_ = 0;                                     // guarded by mutex_
};

}  // namespace fusionfs

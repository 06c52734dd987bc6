// Gives other nodes' mounts the chunks of this node: a thread for each connection, blocking calls (the work is the disk's
// and the network's), requests answered in order. data/chunk_protocol.h is what is said.
#pragma once

#include <atomic>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "fusionfs/data/chunk_link.h"
#include "fusionfs/data/chunk_protocol.h"
#include "fusionfs/data/chunk_store.h"
#include "novoht/base/random.h"

namespace fusionfs {

class ChunkServer {
 public:
  // Serves whoever proves what `opener` asks for. Listens on `host` (a number, IPv4 or IPv6) and `port`, 0: any. The store must
  // outlive it. unavailable: it cannot be listened on.
  static Result<std::unique_ptr<ChunkServer>> start(const ChunkStore& store, const std::string& host,
                                                    std::uint16_t port, zht::Opener opener);
  ~ChunkServer();  // ends connections
  ChunkServer(const ChunkServer&) = delete;
  ChunkServer& operator=(const ChunkServer&) = delete;
  std::uint16_t port() const { return port_; }

 private:
  ChunkServer(const ChunkStore& store, zht::Opener opener) : store_(store), opener_(std::move(opener)) {}
  void accept_all();
  struct Connection;
  void serve(Connection& connection);
  void make_room();  // for one more that has not proven itself; mutex_ is held
  ChunkAnswer answer(const ChunkRequest& request);
  std::shared_ptr<LocalContent> content(InodeId inode);

  struct Connection {
    explicit Connection(int socket, const zht::Opener& opener) : link(socket, opener, zht::Side::answerer) {}
    ChunkLink link;
    std::thread thread;
    std::atomic<bool> proven{false}, ended{false};
  };
  struct Open {
    std::shared_ptr<LocalContent> content;
    std::chrono::steady_clock::time_point used;
  };
  const ChunkStore& store_;
  const zht::Opener opener_;
  int listener_ = -1;
  std::uint16_t port_ = 0;
  std::atomic<bool> stopping_{false};
  std::thread acceptor_;
  base::Random random_{base::entropy()};  // the acceptor's
  std::mutex mutex_;
  std::map<InodeId, Open> open_;                          // guarded by mutex_
  std::list<std::unique_ptr<Connection>> connections_;    // guarded by mutex_
};

}  // namespace fusionfs

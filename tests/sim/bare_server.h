// How a node of the bare protocol serves requests, over the simulator's own store: what an instance does with its connections,
// its results and its watchers, in as little as the protocol needs.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "tests/sim/packet.h"
#include "tests/sim/sim_store.h"
#include "zht/core/replication/replicator.h"

namespace zht::sim {

class BareServer {
 public:
  // All of them outlive it. `send`: to a client; `turn_away`: with the newest views.
  using Send = std::function<void(int client, const Reply&)>;
  using TurnAway = std::function<void(int client, const Request&)>;
  BareServer(replication::Replicator& replicator, SimStore& store, Defects defects, Send send, TurnAway turn_away)
      : replicator_(replicator), store_(store), defects_(defects), send_(std::move(send)), turn_away_(std::move(turn_away)) {}

  void on_request(int from, const Request& request);
  void release(const replication::Released& one);
  // Who waits for a key where someone leads no more is turned away.
  void drop_watches();

 private:
  using Replica = replication::Replica;
  // What is remembered of requests of one epoch of one partition, and who waits for a key.
  struct Serving {
    Epoch epoch{0};
    std::map<std::pair<std::uint64_t, std::uint64_t>, std::pair<Reply, Version>> refused;
    std::map<std::uint64_t, std::uint64_t> floors;
    struct Watch {
      int client;
      Request request;
    };
    std::vector<Watch> watches;
  };
  struct Waiting {
    int client;
    Reply reply;
  };

  Serving& serving(std::uint32_t partition, Replica& replica);
  void hold(Replica& replica, int client, const Reply& reply, Version need, bool reads);
  void wake(std::uint32_t partition, Replica& replica, const std::string& key, Version version);

  replication::Replicator& replicator_;
  SimStore& store_;
  const Defects defects_;
  const Send send_;
  const TurnAway turn_away_;
  std::map<std::uint32_t, Serving> serving_;
  std::map<std::uint64_t, Waiting> waiting_;
  std::uint64_t next_token_ = 1;
};

}  // namespace zht::sim

// A node inside the caller's own process: the whole store as a library. Clients of this process reach its instances
// without a socket; other processes may be let in, or not.
//
//   TRY_LET(node, zht::Node::start({}));                     // in memory alone
//   auto client = node->client();
//   TRY(client->insert("greeting", "hello"));                // executed on this thread, when nobody else is at it
//
//   zht::NodeOptions options;
//   options.data_folder = "/var/lib/mine";                    // kept, recovered at the next start
//   options.listen = "127.0.0.1:5470";                        // others connect with cluster = "127.0.0.1:5470"
//
// Link with zht_node (CMake: zht::node). Source: [ZHT] 2.2 (a node is a manager and its instances), 4 (services on the
// same machine as their store).
#pragma once

#include <memory>
#include <string>

#include "zht/client.h"
#include "zht/procedure.h"

namespace zht {

namespace server {
class Node;
}

struct NodeOptions {
  // Where it keeps its data, made when absent, with mode 0700. Empty: in memory alone; nothing outlives the node.
  std::string data_folder;
  // Threads that serve, 1..1024; each owns a share of the partitions. 0: what the data folder has; new: one per core, at
  // most 8. Threads of this process work on an instance themselves where they find it idle, so one instance serves one
  // busy thread best; more let more threads work at once.
  unsigned instances = 0;
  unsigned partitions = 0;  // of the ring, `instances`..1048576, for good; 0: what the data folder has; new: 1024
  // interval: an acknowledged change survives any process crash at once, a loss of power up to `sync_interval`; always:
  // both at once; none: as interval without the syncs. In memory alone it has no meaning.
  enum class Durability { none, interval, always } durability = Durability::interval;
  Millis sync_interval{1'000};
  std::size_t max_value_size = kMaxValueSize;  // bytes of one request's value
  bool local_socket = false;  // other processes of this user find it through the data folder, as they would `zht serve`
  // host:port of the manager (port 0: any); instances take the ports after it. Empty: no TCP. Who connects proves the secret
  // in $ZHT_SECRET_FILE or `data_folder`/secret, and TLS as $ZHT_TLS_* say, as for `zht serve`. Where there is neither a secret is
  // made, which this user's clients on this machine find by the address (in memory alone: for the life of the node).
  std::string listen;
  std::string resp;           // host:port for Redis clients; empty: none
  bool insecure = false;      // no secret is made: whoever reaches these ports, other users of the machine too, may do everything
  // What update() may call, besides the general ones (add, max, set_if, list_take). Called once at the start.
  void (*add_procedures)(Procedures&) = nullptr;
};

class Node {
 public:
  // Recovers what the data folder holds and serves when it returns. Errors: conflict (another node has the folder: its
  // pid; an address is in use), invalid (an option: which, and its range; other counts than the folder was made with),
  // unsupported (data of a newer format), corrupt (file and offset), no_space, io.
  static Result<std::unique_ptr<Node>> start(NodeOptions options);
  // Lets the requests at hand finish, syncs (unless durability none) and closes. Requests of this process that come later
  // are `unavailable`; a callback that waits ends with it.
  ~Node();

  // A client of this node, without sockets; any number, from any thread. Its blocking calls execute on the calling thread
  // and do not know time-outs (they wait for nobody but the disk); completions run on a thread of the client's own. It may
  // outlive the node.
  std::unique_ptr<Client> client();

  const std::string& listen() const;  // host:port it got; empty: none
  const std::string& resp() const;    // the same for Redis clients

 private:
  Node() = default;
  Procedures procedures_;
  std::unique_ptr<server::Node> node_;  // ends before procedures_
};

}  // namespace zht

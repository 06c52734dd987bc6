// A node: one manager and its instances in one process. The manager answers membership, status and stop, keeps the
// node's services running, and owns everything the instances share: the data folder's lock, the table, the procedures.
//
//   Settings settings;
//   settings.data = "/var/lib/zht";
//   TRY_LET(node, Node::start(settings, procedures));   // recovered and listening when this returns
//   node->run(signals);                                 // until SIGTERM, SIGINT or a stop request
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "novoht/base/clock.h"
#include "novoht/base/result.h"
#include "zht/procedure.h"
#include "zht/security/guard.h"
#include "zht/server/witness.h"

namespace support {
class Config;
class SignalWaiter;
}

namespace zht {
class Client;
}

namespace zht::server {

struct Settings {
  std::string data;                       // the data folder; absolute
  std::string listen;                     // host:port of the manager; empty: unix sockets alone. Instances take the ports
                                          // after it, or any free one where those are in use; port 0: any
  std::string resp;                       // host:port for Redis clients; empty: none
  std::string http;                       // host:port of /metrics and /healthz; empty: none
  std::uint64_t instances = 0;            // 0: what the data folder has; new: one per core, 8 at most
  std::uint64_t partitions = 0;           // 0: what the data folder has; new: 1024
  std::string join;                        // host:port[,host:port] of nodes of the cluster this one is to belong to; empty: see `nodes`
  std::string nodes;                       // the list of nodes the cluster consists of (parse_nodes); empty: alone, until others join
  std::string advertise;                   // host under which others reach this node; empty: that of `listen`
  std::string rack;                        // copies are kept on different ones where there are any
  std::uint64_t replicas = 3, sync_replicas = 2;  // copies of each partition, and how many of them have every acknowledged change
  base::Duration failover = std::chrono::milliseconds(400);  // silence after which another takes over
  std::string durability = "interval";    // none, interval, always
  base::Duration sync_interval = std::chrono::seconds(1);
  std::uint64_t max_value_size = std::uint64_t{16} << 20;
  std::uint64_t segment_size = std::uint64_t{64} << 20;
  std::uint64_t memory_limit = 0;          // of all instances together; 0: half of the cgroup's or machine's (embedded: no limit)
  std::uint64_t max_connections = 20'000;  // of each instance
  bool udp = true;                         // datagrams too, where `listen` says
  base::Duration busy_poll = std::chrono::microseconds(50);  // 0: never
  std::string secret_file;                 // the cluster's secret; empty: `data`/secret, if there is one; "none": none
  std::string tls_certificate, tls_key, tls_ca;  // PEM files; all three, or none: no TLS
  std::string resp_tls = "auto", http_tls = "auto";  // auto (mutual where there is TLS), mutual, server, off
  bool insecure = false;                   // listen although nothing authenticates callers

  // For a node inside a program (zht/node.h), which owns its own life: it keeps no services and no request stops it.
  bool embedded = false;
  bool mapped = false;       // the log is written through memory (mapped_files.h), unless every round is synced
  bool unix_sockets = true;  // false: nobody finds it through the data folder
  bool in_memory = false;    // nothing is kept on disk; `data` is not used
};

// Makes the settings known to a Config (file, environment, --print-config). `settings` outlives it.
void add_settings(support::Config& config, Settings& settings);
// A configuration file with every setting at its default and what there is to know of it: the manual.
std::string_view example_config();
// What the node's connections prove, as its settings have it; null: nothing (own_secret.h: what comes of that). Errors as
// security::load_credentials.
base::Result<security::Opener> credentials_of(const Settings& settings);
bool says_none(const Settings& settings);  // "none" stands in the place of a secret's file
// invalid: a value that can never work, and what can.
base::Result<void> check_settings(const Settings& settings);

class Node {
 public:
  // Takes the data folder, recovers, listens. Errors: conflict (the folder is served already: pid; an address is in
  // use), invalid (settings), unsupported, corrupt, no_space, io. `procedures` outlives it. `witness`
  // (null: none) is kept told what to say when this process has ended. A node that a list of nodes names waits at its first start
  // for the others of the list (claims.h), as long as that takes; null when one of `signals` or a request to stop ended that.
  static base::Result<std::unique_ptr<Node>> start(const Settings& settings, const Procedures& procedures,
                                                   std::unique_ptr<Witness> witness = nullptr, support::SignalWaiter* signals = nullptr);
  ~Node();
  // Serves until a signal of `signals` or a stop request; then ends the services, the instances and the sockets.
  void run(support::SignalWaiter& signals);
  // The same for a caller who takes care of signals himself, and calls stop() from another thread.
  void run();
  void stop();
  void leave();  // stops at once, and the folder's services stay
  // Instead of run(), for an embedded node: a thread serves the manager's requests until the node is destroyed.
  void run_embedded();
  // A client without sockets, any number, any thread. It may outlive the node: its operations are unavailable then.
  std::unique_ptr<Client> client();
  const std::string& tcp() const;   // where the manager listens; empty: nowhere
  const std::string& resp() const;  // where Redis clients are served; empty: nowhere

 private:
  Node();
  struct Parts;
  std::shared_ptr<Parts> parts_;
};

}  // namespace zht::server

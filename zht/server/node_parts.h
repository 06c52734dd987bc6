// What a node is made of, for the files node*.cc alone: its cores, its instances, its listeners, and what it does with them. One
// idea a file: node_requests (what the manager is asked), node_status (what it tells), node_joining (how it becomes one of a
// cluster), node_founding (the first start of one of a list), node_pump (the cluster's core and the world), node_hand_over (partitions
// go elsewhere), node_recover (the last resort), node_backup (a backup's cut), node_instances, node_listeners; node.cc puts them together.
//
// Threads: everything here belongs to the manager's loop once start() has returned, but `clients`, `elsewhere_once` and `table`.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "zht/client.h"
#include "zht/net/event_loop.h"
#include "zht/net/frame_server.h"
#include "zht/net/peer_link.h"
#include "zht/resp/gateway.h"
#include "zht/security/guard.h"
#include "zht/server/claims.h"
#include "zht/server/cluster.h"
#include "zht/server/http_endpoint.h"
#include "zht/server/identity.h"
#include "zht/server/instance_thread.h"
#include "zht/server/node.h"
#include "zht/server/service_keeper.h"
#include "zht/server/strangers.h"
#include "zht/server/witness.h"
#include "zht/support/log.h"
#include "zht/support/process.h"
#include "zht/wire/zht.pb.h"

namespace zht::server {

inline const support::Log& logger() {
  static const support::Log log("zht.manager");
  return log;
}

struct Node::Parts final : net::FrameHandler {
  Settings settings;
  Identity identity;
  base::SystemClock clock;
  base::Time started{};
  std::unique_ptr<base::FileSystem> files = base::real_files();
  std::optional<support::LockFile> lock;
  PublishedTable table;
  std::unique_ptr<Cluster> cluster;
  std::unique_ptr<Witness> witness;  // null: none
  std::vector<wire::Instance> own;  // addresses of the instances here
  std::map<std::uint64_t, std::unique_ptr<net::PeerLink>> links;  // to other managers, by node
  std::map<std::uint64_t, std::string> managers;                  // where they listen
  std::string saved_managers;                                     // as in others.json
  std::vector<replication::Candidate> candidates;                 // as the instances were told
  std::string safety;  // as it was last logged
  std::uint64_t noted_writes = 0;
  std::string no_room;  // why this node takes no new copies; empty: it does
  std::map<InstanceId, std::string> addresses;
  std::map<InstanceId, replication::Site> sites;
  struct Joining {
    net::ConnectionNumber connection;
    std::uint64_t request, uid;
    base::Time until;
  };
  std::vector<Joining> joining;
  std::optional<Claims> claims;  // none: nothing is kept on disk
  std::string before;  // this node does not serve yet, because; empty: it does
  Strangers strangers;  // by node number
  std::set<std::pair<std::uint64_t, std::uint64_t>> begun_anew;  // founders and the folders they asked with; said once of each
  std::set<std::uint64_t> replaced;  // nodes that serve with another folder than they had; said once of each
  base::Time next_look{}, next_count_of_living{};
  std::uint64_t memory_limit = 0;  // of the instances together; 0: none
  base::Time next_count{};         // of the files
  std::uint64_t folder_bytes = 0;
  bool pump_wanted = false, leaving = false;
  base::Time hand_over_until{}, next_goals{}, left_at{};
  std::map<PartitionId, Epoch> handed_over;  // the views for which goals were said
  asio::thread_pool pool{1};  // syncs, and the end of services
  std::vector<std::unique_ptr<InstanceThread>> instances;
  net::EventLoop loop;
  std::unique_ptr<net::FrameServer> endpoint;
  std::optional<ServiceKeeper> services;
  security::Opener opener;  // what TCP connections prove; null: nothing
  std::string homeless_secret;  // a file that ends with this node; empty: none
  std::pair<std::string, std::uint16_t> address;  // of settings.listen
  std::string tcp, unix_path;
  std::unique_ptr<resp::Gateway> redis;
  std::unique_ptr<Client> redis_client;  // ends before the gateway, whose completions it calls
  std::string resp_address;
  std::unique_ptr<HttpEndpoint> http;
  std::string http_address;
  bool stopping = false;
  std::thread manager;  // of an embedded node
  std::atomic<std::uint64_t> clients{0};
  std::once_flag elsewhere_once;
  std::unique_ptr<Client> elsewhere;  // of clients in this process, for what other nodes have a part in
  Client* client_elsewhere();

  std::size_t on_frames(net::ConnectionNumber from, std::span<const wire::Frame> frames, std::string& out) override {
    for (const wire::Frame& frame : frames) on_frame(from, frame, out);
    return frames.size();
  }
  void on_frame(net::ConnectionNumber from, const wire::Frame& frame, std::string& out);
  void gather(std::function<void(const wire::Status&)> deliver);
  void gather_when_all_spoke(base::Time asked, std::function<void(const wire::Status&)> deliver);
  void gather_now(base::Time asked, std::function<void(const wire::Status&)> deliver);
  void status(net::ConnectionNumber to, std::uint64_t request);
  void migrate(const wire::Frame& frame, std::string& out);
  void tell_cluster(wire::ClusterStatus& to, base::Time asked = {});
  net::TlsPort tls_port(const std::string& kind) const;
  void recover(const wire::Frame& frame, std::string& out);
  void backup(net::ConnectionNumber from, const wire::Frame& frame, std::string& out);
  void on_closed(net::ConnectionNumber connection) override;
  void forget_cut(std::uint64_t cut);
  std::map<net::ConnectionNumber, std::uint64_t> cuts;  // by the connection on which one was begun: it ends with that
  base::Result<void> read_cut(const wire::BackupRequest& request, wire::BackupReply& reply);
  // What has been read of a cut and not been sent yet, by instance's place.
  struct CutBytes {
    std::uint64_t cut = 0;
    std::string bytes;
    std::size_t sent = 0;
    bool all_read = false;
  };
  std::map<std::size_t, CutBytes> cut_bytes;
  base::Result<void> take_over(const wire::TakeOver& wanted);
  bool lives(replication::Member one, base::Time now) const;  // in this life, as far as is heard
  base::Result<void> listen_for_redis(Node& node);
  base::Result<void> listen_for_http();
  void end_redis();
  void sync(net::ConnectionNumber to, std::uint64_t request);
  void keep_services();
  void stop();
  // The cluster.
  base::Result<bool> choose_identity(unsigned cores, support::SignalWaiter* signals);  // false: told to end while it asked to join
  base::Result<Identity> join_cluster(const std::string& to, std::uint64_t uid, const std::function<bool()>& is_over);
  base::Result<bool> begin_as_founder(support::SignalWaiter* signals);  // false: told to end before it began
  base::Result<bool> ask_founders();
  void claim(const wire::Frame& frame, std::string& out);
  void on_frame_before(const wire::Frame& frame, std::string& out);
  void note_uid(std::uint64_t number, const wire::NodeAbout& about);
  base::Result<void> open_cluster();
  void settle();
  void introduce();
  void pump();
  void pump_soon();
  void plan_tick(base::Time now);
  void hand_over();
  void look_whether_empty();
  void look_around(base::Time now);
  void look_who_lives(base::Time now);
  void inform_witness(bool in_order);
  void tell_safety();
  void look_for_room();
  void send(const replication::ManagerMessage& message);
  void tell_all(ClusterNews news);
  void tell_verdict();
  void note_changes();
  void remember(std::string text);
  void answer_joining(base::Time now);
  std::string join_reply(std::uint64_t number);
  void remember_others();
  replication::Timing timing() const;
  void begin_ticks();
  base::Result<void> open_instances(const Procedures& procedures);
  Error with_advice(Error error) const;
  std::string reachable(const std::string& bound) const;
  base::Result<void> listen_as_manager();
  void tell_tools() const;
  base::Result<void> listen();
};

}  // namespace zht::server

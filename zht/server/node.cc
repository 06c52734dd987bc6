#include "zht/server/node.h"

#include <sys/resource.h>
#include <unistd.h>

#include <asio/post.hpp>
#include <atomic>
#include <future>
#include <thread>
#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <nlohmann/json.hpp>
#include <vector>

#include "zht/client.h"
#include "zht/client/channel.h"
#include "zht/client/network_client.h"
#include "zht/client/table.h"
#include "zht/net/frame_server.h"
#include "zht/net/peer_link.h"
#include "zht/operation_names.h"
#include "zht/resp/gateway.h"
#include "zht/security/guard.h"
#include "zht/server/cluster.h"
#include "zht/server/http_endpoint.h"
#include "zht/server/identity.h"
#include "zht/server/in_process_client.h"
#include "zht/server/instance_thread.h"
#include "zht/server/manager_codec.h"
#include "zht/server/mapped_files.h"
#include "zht/server/no_files.h"
#include "zht/server/metrics.h"
#include "zht/server/service_keeper.h"
#include "zht/support/config.h"
#include "zht/support/log.h"
#include "zht/support/paths.h"
#include "zht/support/process.h"
#include "zht/wire/zht.pb.h"

namespace zht::server {

using base::Code;
using base::fail;
using base::Result;

namespace {

const support::Log& logger() {
  static const support::Log log("zht.manager");
  return log;
}

// Who leads and follows, as it changes: the story of a failover, in order.
const support::Log& view_logger() {
  static const support::Log log("zht.view");
  return log;
}

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.rfind("127.", 0) == 0;
}

// An address to listen on; refused where it would be open to a network and nothing authenticates who comes from there.
Result<std::pair<std::string, std::uint16_t>> allowed_address(const std::string& text, bool authenticated, bool insecure) {
  TRY_LET(address, net::parse_address(text));
  if (!is_loopback(address.first) && !authenticated && !insecure)
    return fail(Code::invalid, "listening on ", text,
                " would let anyone on the network in, unauthenticated; make a cluster secret (zht secret new), use a loopback "
                "address, or --insecure");
  return address;
}

void add_latencies(wire::InstanceStatus& to, const std::vector<support::CoarseHistogram>& latencies) {
  for (std::size_t kind = 1; kind < latencies.size(); kind++) {
    const auto& histogram = latencies[kind];
    if (histogram.count() == 0) continue;
    auto* one = to.add_latencies();
    one->set_operation(std::string(name_of(static_cast<OpKind>(kind))));
    one->set_count(histogram.count());
    one->set_total_nanos(histogram.sum());
    one->set_most_nanos(histogram.most());
    for (std::size_t i = 0; i < support::CoarseHistogram::kBuckets; i++) {
      if (histogram.bucket(i) == 0) continue;
      one->add_bucket(static_cast<std::uint32_t>(i));
      one->add_bucket_count(histogram.bucket(i));
    }
  }
}

resp::Facts facts_of(const wire::Status& status) {
  resp::Facts facts;
  facts.uptime_ms = status.uptime_ms();
  facts.durability = status.durability();
  for (const wire::InstanceStatus& one : status.instances()) {
    facts.keys += one.keys();
    facts.memory_bytes += one.memory_bytes();
    facts.disk_bytes += one.disk_bytes();
    facts.operations += one.operations();
  }
  return facts;
}

// Connections and segments are file descriptors; the default soft limit of 1024 is soon used up.
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

struct Node::Parts final : net::FrameHandler {
  Settings settings;
  Identity identity;
  base::SystemClock clock;
  base::Time started{};
  std::unique_ptr<base::FileSystem> files = base::real_files();
  std::optional<support::LockFile> lock;
  PublishedTable table;
  std::unique_ptr<Cluster> cluster;
  std::vector<wire::Instance> own;  // addresses of the instances here
  std::map<std::uint64_t, std::unique_ptr<net::PeerLink>> links;  // to other managers, by node
  std::map<std::uint64_t, std::string> managers;                  // where they listen
  std::string saved_managers;                                     // as in others.json
  std::vector<replication::Candidate> candidates;                 // as the instances were told
  std::map<InstanceId, std::string> addresses;
  std::map<InstanceId, replication::Site> sites;
  struct Joining {
    net::ConnectionNumber connection;
    std::uint64_t request, uid;
    base::Time until;
  };
  std::vector<Joining> joining;
  base::Time next_look{};
  bool pump_wanted = false, leaving = false;
  base::Time hand_over_until{}, next_goals{}, left_at{};
  asio::thread_pool pool{1};  // syncs, and the end of services
  std::vector<std::unique_ptr<InstanceThread>> instances;
  net::EventLoop loop;
  std::unique_ptr<net::FrameServer> endpoint;
  std::optional<ServiceKeeper> services;
  security::Opener opener;  // what TCP connections prove; null: nothing
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
  void status(net::ConnectionNumber to, std::uint64_t request);
  void migrate(const wire::Frame& frame, std::string& out);
  void tell_cluster(wire::ClusterStatus& to);
  Result<void> listen_for_redis(Node& node);
  Result<void> listen_for_http();
  void end_redis();
  void sync(net::ConnectionNumber to, std::uint64_t request);
  void keep_services();
  void stop();
  // The cluster.
  Result<void> choose_identity(unsigned cores);
  Result<Identity> join_cluster();
  Result<void> open_cluster();
  void settle();
  void introduce();
  void pump();
  void pump_soon();
  void hand_over();
  void look_whether_empty();
  void look_around(base::Time now);
  void send(const replication::ManagerMessage& message);
  void tell_all(ClusterNews news);
  void answer_joining(base::Time now);
  std::string join_reply(std::uint64_t number);
  void remember_others();
  replication::Timing timing() const;
  void begin_ticks();
  Result<void> open_instances(const Procedures& procedures);
  std::string reachable(const std::string& bound) const;
  Result<void> listen_as_manager();
  Result<void> listen();
};

void Node::Parts::on_frame(net::ConnectionNumber from, const wire::Frame& frame, std::string& out) {
  const auto kind = static_cast<wire::ControlKind>(frame.op);
  const auto reply = [&](Code code, Bytes message, Bytes body) {
    wire::encode_control(out, wire::FrameType::control_reply, kind, frame.request, code, message, body);
  };
  if (frame.type == wire::FrameType::goodbye) return;
  if (frame.type == wire::FrameType::manager) {
    if (frame.first != identity.cluster) return;
    if (const auto message = decode_manager(frame)) cluster->on_message(*message, clock.now()), pump_soon();
    else logger().warn("a message that is not one", {{"error", message.error()}});
    return;
  }
  if (frame.type != wire::FrameType::control_request)
    return reply(Code::invalid, "this is a node's manager; operations go to the instances its table names", {});
  switch (kind) {
    case wire::ControlKind::membership: return reply(Code::ok, {}, *table.get());
    case wire::ControlKind::status: return status(from, frame.request);
    case wire::ControlKind::stop:
      if (settings.embedded) return reply(Code::invalid, "this node is part of another program, which alone ends it", {});
      reply(Code::ok, {}, {});
      logger().info("asked to stop");
      loop.post([this] { stop(); });
      return;
    case wire::ControlKind::services_changed:
      if (settings.embedded) return reply(Code::invalid, "a node inside another program keeps no services", {});
      services->look(std::chrono::steady_clock::now());
      return reply(Code::ok, {}, {});
    case wire::ControlKind::sync: return sync(from, frame.request);
    case wire::ControlKind::join: {
      wire::JoinRequest request;
      if (tcp.empty()) return reply(Code::invalid, "this node listens on no address that others could reach; set listen", {});
      if (!request.ParseFromArray(frame.value.data(), static_cast<int>(frame.value.size())) || request.uid() == 0)
        return reply(Code::invalid, "a request to join that cannot be read", {});
      joining.push_back({from, frame.request, request.uid(), clock.now() + std::chrono::seconds(10)});
      return answer_joining(clock.now());
    }
    case wire::ControlKind::leave: {
      if (cluster->alone(clock.now())) return reply(Code::invalid, "this node is alone; what it holds is nowhere else", {});
      if (cluster->keeps(identity.number))
        return reply(Code::conflict, "node " + std::to_string(identity.number) + " is a keeper of the membership table, and those stay", {});
      leaving = true;
      cluster->set_leaving(true);
      logger().info("asked to leave", {{"node", identity.number}});
      return reply(Code::ok, {}, {});
    }
    case wire::ControlKind::migrate: return migrate(frame, out);
    case wire::ControlKind::complain:
    case wire::ControlKind::recover: break;
    case wire::ControlKind::hello:
    case wire::ControlKind::prove: return reply(Code::unsupported, "this node has no cluster secret", {});
  }
  reply(Code::unsupported, "control request " + std::to_string(frame.op) + " is not known to this build", {});
}

// Asks every instance, each on its own thread; `deliver` hears on the manager's when the last has reported.
void Node::Parts::gather(std::function<void(const wire::Status&)> deliver) {
  struct Gathering {
    wire::Status message;
    std::size_t left = 0;
    std::function<void(const wire::Status&)> deliver;
  };
  auto gathering = std::make_shared<Gathering>();
  auto& message = gathering->message;
  message.set_pid(static_cast<std::uint64_t>(::getpid()));
  message.set_data_folder(settings.data);
  message.set_manager_tcp(tcp);
  message.set_manager_unix(unix_path);
  message.set_resp(resp_address);
  message.set_http(http_address);
  if (redis) {
    const resp::Gateway::Counts counts = redis->counts();
    message.set_resp_connections(counts.connections);
    message.set_resp_commands(counts.commands);
  }
  const ProcessFigures process = process_figures();
  message.set_resident_bytes(process.resident_bytes);
  message.set_cpu_ms(static_cast<std::uint64_t>(process.cpu_seconds * 1000));
  message.set_open_files(process.open_files);
  message.set_durability(settings.durability);
  message.set_uptime_ms(static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(clock.now() - started).count()));
  message.set_incarnation(identity.member.incarnation);
  message.set_partition_count(identity.partition_count);
  message.set_max_value_size(settings.max_value_size);
  message.set_build(ZHT_VERSION);
  tell_cluster(*message.mutable_cluster());
  for (const auto& service : services->running()) {
    auto* one = message.add_services();
    one->set_name(service.name);
    one->set_pid(static_cast<std::uint64_t>(service.pid));
  }
  for (const auto& instance : own) {
    auto* one = message.add_instances();
    one->set_id(instance.id());
    one->set_tcp(instance.tcp());
    one->set_unix_socket(instance.unix_socket());
  }
  gathering->left = instances.size();
  gathering->deliver = std::move(deliver);
  for (std::size_t i = 0; i < instances.size(); i++) {
    instances[i]->report([this, i, gathering](InstanceReport report) {
      loop.post([i, gathering, report = std::move(report)] {
        auto& one = *gathering->message.mutable_instances(static_cast<int>(i));
        one.set_partitions(report.partitions);
        one.set_keys(report.store.keys);
        one.set_live_bytes(report.store.live_bytes);
        one.set_memory_bytes(report.store.memory_bytes);
        one.set_disk_bytes(report.store.log_bytes + report.store.checkpoint_bytes);
        one.set_operations(report.operations.operations);
        one.set_connections(report.connections);
        one.set_watchers(report.watchers);
        one.set_rounds(report.operations.rounds);
        one.set_syncs(report.store.syncs);
        one.set_redirects(report.operations.redirects);
        one.set_held(report.operations.held);
        one.set_let_go(report.operations.let_go);
        one.set_failure(report.failure);
        one.set_changes(report.operations.changes);
        one.set_retries_answered(report.operations.retries_answered);
        one.set_log_bytes(report.store.log_bytes);
        one.set_checkpoint_bytes(report.store.checkpoint_bytes);
        one.set_checkpoints(report.store.checkpoints);
        one.set_maintenance_failures(report.store.maintenance_failures);
        add_latencies(one, report.latencies);
        if (--gathering->left == 0) gathering->deliver(gathering->message);
      });
    });
  }
}

// Where every partition is, as far as this node knows, and whether there is enough of it.
void Node::Parts::tell_cluster(wire::ClusterStatus& to) {
  const base::Time now = clock.now();
  to.set_cluster(base::to_hex(Bytes(reinterpret_cast<const char*>(&identity.cluster), sizeof identity.cluster)));
  to.set_node(identity.number);
  to.set_table_version(cluster->version());
  for (std::uint64_t keeper : cluster->keepers()) to.add_keepers(keeper);
  std::map<std::uint64_t, wire::ClusterNode*> nodes;
  std::size_t there = 0, living_keepers = 0;
  for (const auto& [info, lives] : cluster->nodes(now)) {
    const auto number = static_cast<std::uint64_t>(info->node);
    if (info->leaving && info->instances.empty()) continue;
    wire::NodeAbout about;
    (void)about.ParseFromString(info->about);
    auto* one = to.add_nodes();
    nodes[number] = one;
    one->set_node(number);
    one->set_address(about.manager());
    one->set_rack(about.rack());
    one->set_instances(static_cast<std::uint32_t>(info->instances.size()));
    one->set_lives(lives);
    one->set_leaving(info->leaving);
    one->set_incarnation(info->heartbeat >> 32);
    there++;
    const bool keeps = cluster->keeps(number);
    one->set_keeper(keeps);
    living_keepers += keeps && lives;
  }
  to.set_living_keepers(static_cast<std::uint32_t>(living_keepers));
  const std::size_t copies = std::min<std::size_t>(settings.replicas, there), sync = std::min<std::size_t>(settings.sync_replicas, there);
  for (std::uint32_t p = 0; p < identity.partition_count; p++) {
    const replication::View& view = cluster->view(PartitionId{p});
    const auto count = [&](replication::Member one, auto add) {
      if (const auto node = nodes.find(node_of(one.instance)); node != nodes.end()) add(*node->second);
    };
    const auto lives = [&](replication::Member one) {
      const auto node = nodes.find(node_of(one.instance));
      return node != nodes.end() && node->second->lives() && node->second->incarnation() == one.incarnation;
    };
    if (view.epoch == Epoch{0}) {
      to.set_unknown(to.unknown() + 1);
      continue;
    }
    count(view.primary, [](wire::ClusterNode& one) { one.set_leads(one.leads() + 1); });
    std::size_t living = 0;
    for (replication::Member one : view.sync) {
      count(one, [](wire::ClusterNode& node) { node.set_copies(node.copies() + 1); });
      living += lives(one);
    }
    for (replication::Member one : view.learners) count(one, [](wire::ClusterNode& node) { node.set_learns(node.learns() + 1); });
    if (living == 0) to.set_unavailable(to.unavailable() + 1);
    else if (!lives(view.primary)) to.set_leaderless(to.leaderless() + 1);
    if (living > 0 && living < sync) to.set_at_risk(to.at_risk() + 1);
    if (view.sync.size() + view.learners.size() < copies) to.set_short_of_copies(to.short_of_copies() + 1);
    if (view.sync.size() + view.learners.size() > copies) to.set_moving(to.moving() + 1);
  }
}

// A wish: where the partitions named shall be led, and by that, where a copy shall be.
void Node::Parts::migrate(const wire::Frame& frame, std::string& out) {
  const auto reply = [&](Code code, Bytes message) {
    wire::encode_control(out, wire::FrameType::control_reply, wire::ControlKind::migrate, frame.request, code, message, {});
  };
  wire::MigrateRequest request;
  if (!request.ParseFromArray(frame.value.data(), static_cast<int>(frame.value.size()))) return reply(Code::invalid, "a request that cannot be read");
  const InstanceId to{request.to()};
  const auto candidates_now = cluster->candidates(clock.now());
  if (std::none_of(candidates_now.begin(), candidates_now.end(), [&](const auto& one) { return one.member.instance == to; }))
    return reply(Code::not_found, "instance " + std::to_string(request.to()) + " is not there, or has no room; see: zht members");
  for (std::uint32_t p : request.partitions()) {
    if (p >= identity.partition_count)
      return reply(Code::invalid, "partition " + std::to_string(p) + " of " + std::to_string(identity.partition_count));
    const replication::View& view = cluster->view(PartitionId{p});
    replication::Placed placed{PartitionId{p}, {to, {}}};
    for (const replication::Members* members : {&view.sync, &view.learners})
      for (replication::Member one : *members) placed.goal.members.push_back(one.instance);
    auto& members = placed.goal.members;
    if (std::find(members.begin(), members.end(), to) == members.end()) {
      // It takes the place of the copy on its own node, or of the one that leads now.
      auto place = std::find_if(members.begin(), members.end(), [&](InstanceId one) { return node_of(one) == node_of(to); });
      if (place == members.end() && members.size() >= settings.replicas) place = std::find(members.begin(), members.end(), view.primary.instance);
      if (place == members.end()) members.push_back(to);
      else *place = to;
    }
    cluster->send_goal(placed);
  }
  pump_soon();
  reply(Code::ok, {});
}

void Node::Parts::status(net::ConnectionNumber to, std::uint64_t request) {
  gather([this, to, request](const wire::Status& message) {
    if (endpoint == nullptr) return;
    std::string frame;
    wire::encode_control(frame, wire::FrameType::control_reply, wire::ControlKind::status, request, Code::ok, {},
                         message.SerializeAsString());
    endpoint->send(to, std::move(frame));
  });
}

void Node::Parts::sync(net::ConnectionNumber to, std::uint64_t request) {
  struct Gathering {
    std::size_t left = 0;
    std::optional<Error> failed;
  };
  auto gathering = std::make_shared<Gathering>();
  gathering->left = instances.size();
  for (auto& instance : instances) {
    instance->sync([this, gathering, to, request](const Result<void>& outcome) {
      loop.post([this, gathering, to, request, outcome] {
        if (!outcome && !gathering->failed) gathering->failed = outcome.error();
        if (--gathering->left != 0 || endpoint == nullptr) return;
        std::string frame;
        wire::encode_control(frame, wire::FrameType::control_reply, wire::ControlKind::sync, request,
                             gathering->failed ? gathering->failed->code : Code::ok,
                             gathering->failed ? Bytes(gathering->failed->message) : Bytes(), {});
        endpoint->send(to, std::move(frame));
      });
    });
  }
}

// --- the cluster ---

Result<void> Node::Parts::choose_identity(unsigned cores) {
  const auto instance_count = static_cast<std::uint32_t>(settings.instances), partitions = static_cast<std::uint32_t>(settings.partitions);
  auto known = read_identity(settings.data, instance_count, partitions);
  if (known) {
    identity = *known;
  } else if (known.code() != Code::not_found) {
    return known.error();
  } else if (!settings.join.empty()) {
    TRY_LET(joined, join_cluster());
    identity = joined;
    identity.instance_count = instance_count != 0 ? instance_count : cores;
    if (partitions != 0 && partitions != identity.partition_count)
      return fail(Code::invalid, "the cluster has ", identity.partition_count, " partitions, not ", partitions, "; leave --partitions out");
  } else if (!settings.nodes.empty()) {
    TRY_LET(mine, net::parse_address(settings.listen));
    // One instance where nothing is said: the number must be the same whoever computes it.
    TRY_LET(nodes, parse_nodes(settings.nodes, mine.second, std::max(1u, instance_count)));
    const std::string host = settings.advertise.empty() ? mine.first : settings.advertise;
    char name[256] = {};
    ::gethostname(name, sizeof name - 1);
    std::size_t self = nodes.size();
    for (std::size_t n = 0; n < nodes.size(); n++) {
      const auto parsed = net::parse_address(nodes[n].address);
      const bool here = parsed && parsed->second == mine.second &&
                        (parsed->first == host || parsed->first == name || parsed->first == std::string(name).substr(0, std::string(name).find('.')));
      if (here) self = std::min(self, n);
    }
    if (self == nodes.size())
      return fail(Code::invalid, settings.nodes, " does not name this node, ", host, ":", mine.second,
                  "; --listen or --advertise must be as the list has it");
    TRY_LET(fresh, fresh_identity(nodes[self].instances, partitions, cores));
    identity = fresh;
    identity.number = self + 1;
    identity.founding.nodes = nodes;
    identity.founding.copies = static_cast<std::uint32_t>(settings.replicas);
    identity.founding.sync_copies = static_cast<std::uint32_t>(settings.sync_replicas);
    identity.cluster = cluster_id(identity.founding);
    identity.keepers.clear();
    for (std::size_t n = 1; n <= identity.founding.keepers(); n++) identity.keepers.push_back(n);
  } else {
    TRY_LET(fresh, fresh_identity(instance_count, partitions, cores));
    identity = fresh;
    identity.founding.copies = static_cast<std::uint32_t>(settings.replicas);
    identity.founding.sync_copies = static_cast<std::uint32_t>(settings.sync_replicas);
  }
  return begin_life(settings.data, identity);
}

// Asks a node of the cluster for a number, until there is one.
Result<Identity> Node::Parts::join_cluster() {
  TRY_LET(seeds, client::parse_cluster(settings.join, opener));
  wire::JoinRequest request;
  const std::uint64_t uid = base::entropy() | 1;
  request.set_uid(uid);
  request.set_build(ZHT_VERSION);
  Error last{Code::unavailable, "no node to join"};
  const base::Time until = clock.now() + std::chrono::seconds(60);
  for (std::size_t n = 0; clock.now() < until; n++) {
    const client::Address& seed = seeds[n % seeds.size()];
    const base::Time deadline = clock.now() + std::chrono::seconds(11);
    auto channel = client::Channel::open(seed, deadline);
    auto answer = channel ? channel->control(wire::ControlKind::join, request.SerializeAsString(), deadline)
                          : Result<std::string>(channel.error());
    wire::JoinReply reply;
    if (answer && reply.ParseFromString(*answer) && reply.number() != 0 && reply.partition_count() != 0) {
      Identity joined;
      joined.member = {uid, 0};
      joined.cluster = reply.cluster();
      joined.number = reply.number();
      joined.partition_count = reply.partition_count();
      joined.config = std::max<std::uint64_t>(reply.config(), 1);
      joined.keepers.assign(reply.keepers().begin(), reply.keepers().end());
      joined.founding.partitions = reply.partition_count();
      for (const wire::NodeInfo& one : reply.nodes()) {
        wire::NodeAbout about;
        if (about.ParseFromString(one.about()) && !about.manager().empty()) managers[one.node()] = about.manager();
      }
      logger().info("joined", {{"cluster", base::to_hex(Bytes(reinterpret_cast<const char*>(&joined.cluster), 8))},
                               {"node", joined.number}, {"through", seed.text()}});
      return joined;
    }
    last = answer ? fail(Code::corrupt, seed.text(), ": an answer that cannot be read") : answer.error();
    if (last.code == Code::invalid || last.code == Code::unsupported) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  return base::add_context("joining " + settings.join, std::move(last));
}

replication::Timing Node::Parts::timing() const {
  replication::Timing timing;
  const auto part = [&](int percent) { return settings.failover * percent / 100; };
  timing.grace = settings.failover;
  timing.lease = part(87);
  timing.beacon = part(17);
  timing.drop = part(65);
  timing.retry = part(26);
  timing.copies = settings.replicas;
  timing.sync_copies = settings.sync_replicas;
  return timing;
}

Result<void> Node::Parts::open_cluster() {
  ClusterOptions options;
  options.identity = identity;
  options.save = [this](const Identity& changed) -> Result<void> {
    if (!settings.in_memory) TRY(save_identity(settings.data, changed));
    identity.keepers = changed.keepers;
    identity.config = changed.config;
    std::string names;
    for (std::uint64_t one : changed.keepers) names += (names.empty() ? "" : " ") + std::to_string(one);
    logger().info("other keepers", {{"nodes", names}, {"config", changed.config}});
    return {};
  };
  options.folder = (settings.in_memory ? "memory" : settings.data) + "/keeper";
  options.rack = settings.rack;
  options.copies = settings.replicas;
  options.sync_copies = settings.sync_replicas;
  options.max_value_size = settings.max_value_size;
  for (std::size_t n = 0; n < identity.founding.nodes.size(); n++) {
    const Founder& one = identity.founding.nodes[n];
    if (n + 1 == identity.number && options.rack.empty()) options.rack = one.rack;
    if (n + 1 != identity.number && !one.address.empty()) managers[n + 1] = one.address;
  }
  if (!settings.in_memory)
    if (const auto text = support::read_file(settings.data + "/others.json")) {
      const auto json = nlohmann::json::parse(*text, nullptr, false);
      if (json.is_object())
        for (const auto& [node, where] : json.items())
          if (where.is_string()) managers[std::strtoull(node.c_str(), nullptr, 10)] = where.get<std::string>();
    }
  for (const auto& [node, where] : managers) {
    replication::NodeInfo& info = options.known.emplace_back();
    info.node = replication::NodeId{node};
  }
  TRY_LET(opened, Cluster::open(std::move(options), *files));
  cluster = std::move(opened);
  return {};
}

// Where the others are, for the next life.
void Node::Parts::remember_others() {
  if (settings.in_memory) return;
  nlohmann::json json = nlohmann::json::object();
  for (const auto& [node, where] : managers) json[std::to_string(node)] = where;
  std::string text = json.dump(2) + "\n";
  if (text == saved_managers || managers.empty()) return;
  if (auto saved = support::write_file_atomically(settings.data + "/others.json", text); !saved)
    logger().warn("cannot remember the other nodes", {{"error", saved.error()}});
  else saved_managers = std::move(text);
}

void Node::Parts::introduce() {
  wire::NodeAbout about;
  about.set_uid(identity.member.node);
  about.set_manager(tcp.empty() ? std::string() : reachable(tcp));
  about.set_rack(settings.rack);
  about.set_pid(static_cast<std::uint64_t>(::getpid()));
  about.set_build(ZHT_VERSION);
  about.set_started_ms(base::to_millis(clock.wall()));
  for (const wire::Instance& one : own) *about.add_instances() = one;
  cluster->introduce(about);
}

// Before anything is served: what this node can decide by itself, because it alone keeps the table, is decided. A node on its own
// leads all its partitions when this returns.
void Node::Parts::settle() {
  for (int i = 0; i < 12; i++) {
    cluster->tick(clock.now());
    const auto step = cluster->step(clock.now());
    ClusterNews news;
    if (step) news.views = step->views;
    bool quiet = news.views.empty();
    for (auto& instance : instances) {
      InstanceNews heard = instance->settle(news);
      for (const replication::Wish& one : heard.wishes) cluster->wish(one);
      for (const replication::ViewNews& one : heard.views) cluster->adopt(one);
      quiet = quiet && heard.wishes.empty() && heard.views.empty();
    }
    if (quiet && i > 0) break;
  }
  table.set(cluster->table(clock.now()).SerializeAsString());
}

void Node::Parts::send(const replication::ManagerMessage& message) {
  const auto to = static_cast<std::uint64_t>(message.to);
  const auto where = managers.find(to);
  if (where == managers.end()) return;
  auto& link = links[to];
  if (!link) link = std::make_unique<net::PeerLink>(loop, net::PeerLinkOptions{.opener = opener});
  link->lead_to(where->second);
  wire::Gathered frame;
  encode_manager(frame.bytes, message, identity.cluster);
  link->send(std::move(frame));
}

void Node::Parts::tell_all(ClusterNews news) {
  const auto shared = std::make_shared<const ClusterNews>(std::move(news));
  for (auto& instance : instances) instance->tell(shared);
}

// Once for all that has come meanwhile: a keeper syncs its disk each time.
void Node::Parts::pump_soon() {
  if (std::exchange(pump_wanted, true)) return;
  loop.post([this] {
    pump_wanted = false;
    pump();
  });
}

// After anything happened: what follows from it goes out.
void Node::Parts::pump() {
  const base::Time now = clock.now();
  auto step = cluster->step(now);
  if (!step) {
    logger().error("the keeper's disk failed; this node keeps no views any more", {{"error", step.error()}});
    return;
  }
  for (const replication::ManagerMessage& message : step->messages) send(message);
  for (const auto& [what, where] : step->story) {
    std::uint64_t newest = 0;
    for (PartitionId partition : where) newest = std::max(newest, replication::number(cluster->view(partition).epoch));
    view_logger().info(what, {{"partitions", where.size()}, {"first", static_cast<std::uint32_t>(where.front())}, {"epoch", newest}});
    for (PartitionId partition : where)
      view_logger().debug(replication::to_string(cluster->view(partition)), {{"partition", static_cast<std::uint32_t>(partition)}});
  }
  if (!step->views.empty() || !step->goals.empty()) {
    ClusterNews news;
    news.views = std::move(step->views);
    news.goals = std::move(step->goals);
    tell_all(std::move(news));
  }
  if (step->table_changed) {
    table.set(cluster->table(now).SerializeAsString());
    next_look = {};
  }
  if (!joining.empty()) answer_joining(now);
  if (now >= next_look) look_around(now);
}

void Node::Parts::begin_ticks() {
  loop.every(std::chrono::milliseconds(10), [this] {
    cluster->tick(clock.now());
    pump();
  });
}

// Who is there, and where.
void Node::Parts::look_around(base::Time now) {
  next_look = now + std::chrono::milliseconds(200);
  std::map<InstanceId, std::string> where;
  for (const auto& [info, lives] : cluster->nodes(now)) {
    wire::NodeAbout about;
    if (!about.ParseFromString(info->about)) continue;
    const bool other = static_cast<std::uint64_t>(info->node) != identity.number;
    if (other && !about.manager().empty()) managers[static_cast<std::uint64_t>(info->node)] = about.manager();
    // Those here too: a partition may move from one instance of a node to another.
    for (const wire::Instance& one : about.instances())
      if (!one.tcp().empty()) where[InstanceId{one.id()}] = one.tcp();
  }
  ClusterNews news;
  if (auto found = cluster->candidates(now); found != candidates) news.candidates = candidates = std::move(found);
  if (auto found = cluster->sites(); found != sites) news.sites = sites = std::move(found);
  if (where != addresses) news.addresses = addresses = std::move(where);
  if (news.candidates || news.sites || news.addresses) tell_all(std::move(news));
  remember_others();
  look_whether_empty();
}

std::string Node::Parts::join_reply(std::uint64_t number) {
  wire::JoinReply reply;
  reply.set_cluster(identity.cluster);
  reply.set_number(number);
  reply.set_partition_count(identity.partition_count);
  for (std::uint64_t one : cluster->keepers()) reply.add_keepers(one);
  reply.set_config(cluster->config());
  for (const auto& [info, lives] : cluster->nodes(clock.now())) {
    if (info->about.empty()) continue;
    auto* node = reply.add_nodes();
    node->set_node(static_cast<std::uint64_t>(info->node));
    node->set_about(info->about);
  }
  reply.set_copies(static_cast<std::uint32_t>(settings.replicas));
  reply.set_sync_copies(static_cast<std::uint32_t>(settings.sync_replicas));
  return reply.SerializeAsString();
}

void Node::Parts::answer_joining(base::Time now) {
  std::erase_if(joining, [&](const Joining& one) {
    const auto number = cluster->enrol(one.uid);
    if (!number && now < one.until) return false;
    std::string frame;
    wire::encode_control(frame, wire::FrameType::control_reply, wire::ControlKind::join, one.request,
                         number ? Code::ok : Code::unavailable, number ? Bytes() : Bytes("the keepers do not answer"),
                         number ? join_reply(*number) : std::string());
    endpoint->send(one.connection, std::move(frame));
    return true;
  });
}

void Node::Parts::keep_services() {
  if (stopping) return;
  services->look(std::chrono::steady_clock::now());
}

// Services first, while the instances still serve them (a mount writes back what it holds); then the partitions that others
// have copies of are handed over, so that nobody waits for this node; then everything else.
void Node::Parts::stop() {
  if (std::exchange(stopping, true)) return;
  asio::post(pool, [this] {
    services->stop_all();
    loop.post([this] {
      constexpr auto kLongestHandOver = std::chrono::seconds(8);
      cluster->set_room(false);
      hand_over_until = clock.now() + kLongestHandOver;
      loop.every(std::chrono::milliseconds(20), [this] { hand_over(); });
    });
  });
}

// Wishes every partition with a copy here onto the members elsewhere, until none is left here or it takes too long.
void Node::Parts::hand_over() {
  const base::Time now = clock.now();
  const std::uint32_t first = first_instance(identity.number);
  const auto is_mine = [&](replication::Member one) {
    return static_cast<std::uint32_t>(one.instance) - first < identity.instance_count;
  };
  std::set<std::uint64_t> living;
  for (const auto& [info, lives] : cluster->nodes(now))
    if (lives) living.insert(static_cast<std::uint64_t>(info->node));
  std::size_t left = 0;
  const bool say = now >= next_goals;
  if (say) next_goals = now + std::chrono::milliseconds(400);
  for (std::uint32_t p = 0; p < identity.partition_count; p++) {
    const replication::View& view = cluster->view(PartitionId{p});
    replication::Placed placed{PartitionId{p}, {view.primary.instance, {}}};
    bool here = false;
    for (const replication::Members* members : {&view.sync, &view.learners})
      for (replication::Member one : *members) {
        if (is_mine(one)) here = true;
        else if (living.contains(node_of(one.instance))) placed.goal.members.push_back(one.instance);
      }
    if (!here || placed.goal.members.empty()) continue;
    left++;
    if (!say) continue;
    if (is_mine(view.primary) || !living.contains(node_of(view.primary.instance))) placed.goal.primary = placed.goal.members.front();
    cluster->send_goal(placed);
  }
  if (left > 0 && now < hand_over_until) return pump_soon();
  if (left > 0) logger().warn("not everything could be handed over in time", {{"partitions", left}});
  loop.stop();
}

// A node that leaves is emptied by the balancer; when nothing is left here, the others are told and it ends.
void Node::Parts::look_whether_empty() {
  if (!leaving || stopping) return;
  const std::uint32_t first = first_instance(identity.number);
  for (std::uint32_t p = 0; p < identity.partition_count; p++) {
    const replication::View& view = cluster->view(PartitionId{p});
    for (const replication::Members* members : {&view.sync, &view.learners})
      for (replication::Member one : *members)
        if (static_cast<std::uint32_t>(one.instance) - first < identity.instance_count) return;
  }
  if (left_at == base::Time{}) {
    logger().info("emptied, leaving the cluster", {{"node", identity.number}});
    cluster->set_left();
    left_at = clock.now();
  } else if (clock.now() - left_at > std::chrono::milliseconds(1500)) {  // gossip has told everyone by then
    stop();
  }
}

Result<void> Node::Parts::open_instances(const Procedures& procedures) {
  TRY_LET(durability, core::parse_durability(settings.durability));
  const std::uint32_t first = first_instance(identity.number);
  own.resize(identity.instance_count);
  std::string boot;
  if (const auto text = support::read_file("/proc/sys/kernel/random/boot_id")) boot = text->substr(0, text->find('\n'));
  for (std::uint32_t i = 0; i < identity.instance_count; i++) {
    own[i].set_id(first + i);
    own[i].mutable_member()->set_node(identity.member.node);
    own[i].mutable_member()->set_incarnation(identity.member.incarnation);
    InstanceThread::Options options;
    options.core.id = InstanceId{first + i};
    options.core.durability = durability;
    options.core.max_value_size = settings.max_value_size;
    options.core.segment_size = settings.segment_size;
    options.core.clustered = !settings.in_memory;
    options.core.incarnation = identity.member.incarnation;
    options.core.boot = boot;
    options.core.timing = timing();
    options.views = cluster->views();
    options.cluster = identity.cluster;
    options.tell_manager = [this](InstanceNews news) {
      loop.post([this, news = std::move(news)] {
        for (const replication::Wish& one : news.wishes) cluster->wish(one);
        for (const replication::ViewNews& one : news.views) cluster->adopt(one);
        pump_soon();
      });
    };
    // A log that is not there need not be compacted either.
    if (settings.in_memory) options.core.log_floor = std::numeric_limits<std::uint64_t>::max();
    options.folder = (settings.in_memory ? "memory" : settings.data) + "/store/" + std::to_string(i);
    options.sync_interval = settings.sync_interval;
    options.max_connections = settings.max_connections;
    options.busy_poll = settings.busy_poll;
    options.opener = opener;
    instances.push_back(std::make_unique<InstanceThread>(std::move(options), *files, clock, procedures, table, pool));
  }
  if (!settings.in_memory) TRY(support::make_private_folder(settings.data + "/store"));
  // Recovery reads whole logs; the instances do it side by side.
  std::vector<std::future<Result<void>>> opening;
  for (auto& instance : instances)
    opening.push_back(std::async(std::launch::async, [&instance] { return instance->open(); }));
  std::optional<Error> failed;
  for (auto& one : opening)
    if (auto opened = one.get(); !opened && !failed) failed = opened.error();
  if (failed) return *failed;
  return {};
}

// The one address a user chooses, before anything is recovered: a bad or taken one is told at once.
Result<void> Node::Parts::listen_as_manager() {
  endpoint = std::make_unique<net::FrameServer>(loop, *this);
  if (!settings.listen.empty()) {
    TRY_LET(parsed, allowed_address(settings.listen, opener != nullptr, settings.insecure));
    address = parsed;
    endpoint->guard(opener);
    TRY_LET(bound, endpoint->listen_tcp(settings.listen));
    tcp = bound;
  }
  return {};
}

// The address others are told, of one this process is bound to.
std::string Node::Parts::reachable(const std::string& bound) const {
  return settings.advertise.empty() ? bound : settings.advertise + bound.substr(bound.rfind(':'));
}

Result<void> Node::Parts::listen() {
  for (std::uint32_t i = 0; i < instances.size(); i++) {
    if (!settings.listen.empty()) {
      const std::string host = address.first.find(':') == std::string::npos ? address.first : "[" + address.first + "]";
      const std::uint32_t port = address.second == 0 ? 0 : address.second + 1 + i;
      Result<std::string> bound = port > 65'535 ? Result<std::string>(fail(Code::conflict, "no such port"))
                                                : instances[i]->listen_tcp(host + ":" + std::to_string(port));
      if (!bound && bound.code() == Code::conflict) bound = instances[i]->listen_tcp(host + ":0");
      if (!bound) return bound.error();
      own[i].set_tcp(reachable(*bound));
      if (settings.udp && !opener) {  // a datagram carries no connection that could have proven anything
        const auto datagrams = instances[i]->listen_udp(*bound);
        own[i].set_udp(datagrams.has_value());
        if (!datagrams) logger().warn("no datagrams", {{"address", *bound}, {"error", datagrams.error()}});
      }
    }
    if (!settings.unix_sockets) continue;
    TRY_LET(path, support::socket_path(settings.data, "instance-" + std::to_string(i) + ".sock"));
    TRY(instances[i]->listen_unix(path));
    own[i].set_unix_socket(path);
  }
  if (!settings.unix_sockets) return {};
  TRY_LET(path, support::socket_path(settings.data, "node.sock"));
  unix_path = path;
  return {};
}

// Redis clients know one address; the gateway's client knows which instance each key is with.
Result<void> Node::Parts::listen_for_redis(Node& node) {
  TRY(allowed_address(settings.resp, opener && opener->secret, settings.insecure));
  redis_client = node.client();
  redis = std::make_unique<resp::Gateway>(
      *redis_client,
      [this](std::function<void(resp::Facts)> tell) {
        loop.post([this, tell = std::move(tell)] {
          gather([tell](const wire::Status& status) { tell(facts_of(status)); });
        });
      },
      settings.max_connections, opener && opener->secret ? &*opener->secret : nullptr);
  TRY_LET(bound, redis->listen(settings.resp));
  resp_address = bound;
  redis->run();
  return {};
}

// Off unless asked for: a port is the machine's, and a node is often just one user's.
Result<void> Node::Parts::listen_for_http() {
  TRY_LET(where, allowed_address(settings.http, opener && opener->secret, settings.insecure));
  // Of a port that others than this machine's users reach, the figures are for who has the token.
  const bool asks = opener && opener->secret && !is_loopback(where.first);
  const std::string token = asks ? opener->secret->metrics_token() : std::string();
  http = std::make_unique<HttpEndpoint>(loop, [this, asks, token](const std::string& path, const std::string& bearer, HttpEndpoint::Answer answer) {
    if (path == "/metrics" && asks && !security::same(bearer, token))
      return answer({401, "text/plain", "Authorization: Bearer <what `zht secret token` prints>\n"});
    if (path == "/metrics")
      return gather([answer](const wire::Status& status) {
        answer({200, "text/plain; version=0.0.4", metrics_text(status)});
      });
    if (path == "/healthz")
      return gather([answer, asks](const wire::Status& status) {
        const std::string ails = what_ails(status);
        answer({ails.empty() ? 200 : 503, "text/plain", ails.empty() ? "ok\n" : asks ? "not well\n" : ails});
      });
    answer({path == "/" ? 200 : 404, "text/plain", "/metrics\n/healthz\n"});
  });
  TRY_LET(bound, http->listen(settings.http));
  http_address = bound;
  return {};
}

void Node::Parts::end_redis() {
  if (redis) redis->stop();
  redis_client.reset();
  redis.reset();
}

Node::Node() : parts_(std::make_shared<Parts>()) {}

Node::~Node() {
  parts_->end_redis();
  if (parts_->manager.joinable()) {
    parts_->loop.stop();
    parts_->manager.join();
  }
  if (parts_->endpoint) parts_->endpoint->stop();
  parts_->pool.join();  // a sync under way holds on to its store
  for (auto& instance : parts_->instances) instance->stop();
  parts_->cluster.reset();
  parts_->lock.reset();  // clients of this process may hold the rest for longer
}

Result<std::unique_ptr<Node>> Node::start(const Settings& settings, const Procedures& procedures) {
  TRY(check_settings(settings));
  std::unique_ptr<Node> node(new Node);
  Parts& parts = *node->parts_;
  parts.settings = settings;
  parts.started = parts.clock.now();
  if (!settings.embedded) raise_descriptor_limit();
  const unsigned cores = std::min(8u, std::max(1u, std::thread::hardware_concurrency()));
  if (settings.in_memory) {
    TRY_LET(identity, fresh_identity(static_cast<std::uint32_t>(settings.instances),
                                     static_cast<std::uint32_t>(settings.partitions), cores));
    identity.member.incarnation = 1;
    parts.identity = identity;
    parts.files = no_files();
  } else {
    // Where every round is synced anyway, a system call less is nothing.
    if (settings.embedded && settings.durability != "always") parts.files = mapped_files();
    TRY(support::make_private_folder(settings.data));
    auto lock = support::LockFile::acquire(settings.data + "/node.lock");
    if (!lock) {
      if (lock.code() != Code::conflict) return lock.error();
      const auto holder = support::held_by(settings.data + "/node.lock");
      return fail(Code::conflict, "a node already serves ", settings.data, holder && *holder > 0 ? " (pid " + std::to_string(*holder) + ")" : "",
                  "; stop it with: zht stop --data ", settings.data);
    }
    parts.lock.emplace(std::move(*lock));
  }
  const std::string secret_folder = settings.in_memory ? std::string() : settings.data;
  // A node inside a program is told as a client is: by the environment.
  TRY_LET(opener, settings.embedded ? security::credentials_from_environment(secret_folder)
                                    : security::load_credentials(settings.secret_file,
                                                                 {settings.tls_certificate, settings.tls_key, settings.tls_ca},
                                                                 secret_folder));
  parts.opener = std::move(opener);
  parts.services.emplace(settings.data);
  if (!settings.in_memory) TRY(parts.choose_identity(cores));
  TRY(parts.listen_as_manager());
  TRY(parts.open_cluster());
  TRY(parts.open_instances(procedures));
  TRY(parts.listen());
  parts.introduce();
  parts.settle();
  for (auto& instance : parts.instances) instance->run();
  // The manager's socket last: who reaches it finds everything else serving.
  if (settings.unix_sockets) TRY(parts.endpoint->listen_unix(parts.unix_path));
  if (!settings.resp.empty()) TRY(parts.listen_for_redis(*node));
  if (!settings.http.empty()) TRY(parts.listen_for_http());
  logger().info("serving", {{"data", settings.data},
                            {"instances", parts.identity.instance_count},
                            {"partitions", parts.identity.partition_count},
                            {"durability", settings.durability},
                            {"incarnation", parts.identity.member.incarnation},
                            {"listen", parts.tcp.empty() ? std::string("unix") : parts.tcp},
                            {"resp", parts.resp_address.empty() ? std::string("off") : parts.resp_address},
                            {"http", parts.http_address.empty() ? std::string("off") : parts.http_address},
                            {"secret", parts.opener && parts.opener->secret ? parts.opener->secret->origin() : std::string("none")},
                            {"tls", parts.opener && parts.opener->tls ? "on" : "off"}});
  return node;
}

void Node::run_embedded() {
  parts_->begin_ticks();
  parts_->manager = std::thread([this] { parts_->loop.run(); });
}

Client* Node::Parts::client_elsewhere() {
  std::call_once(elsewhere_once, [this] {
    client::NetworkClient::Source source;
    if (!unix_path.empty()) source.seeds.push_back({unix_path, {}, 0, nullptr});
    if (!tcp.empty())
      if (auto seed = client::parse_address(tcp)) {
        seed->opener = opener;
        source.seeds.push_back(*std::move(seed));
      }
    const std::string encoded = *table.get();
    auto known = client::parse_table(encoded, true, opener);
    if (source.seeds.empty() || !known) return;
    elsewhere = std::make_unique<client::NetworkClient>(ClientOptions{}, std::move(source), *std::move(known));
  });
  return elsewhere.get();
}

std::unique_ptr<Client> Node::client() {
  InProcessClient::Options options;
  options.partition_count = parts_->identity.partition_count;
  options.max_value_size = parts_->settings.max_value_size;
  if (!parts_->settings.in_memory) options.elsewhere = [parts = parts_.get()] { return parts->client_elsewhere(); };
  for (const replication::View& view : parts_->cluster->views())
    options.instance_of.push_back(node_of(view.primary.instance) == parts_->identity.number
                                      ? static_cast<std::uint32_t>(view.primary.instance) % kInstancesOfNode
                                      : 0);  // it will say that others have a part in it
  std::vector<InstanceThread*> instances;
  for (auto& instance : parts_->instances) instances.push_back(instance.get());
  return std::make_unique<InProcessClient>(std::move(options), std::move(instances), parts_, parts_->clients++);
}

const std::string& Node::tcp() const { return parts_->tcp; }
const std::string& Node::resp() const { return parts_->resp_address; }

void Node::run(support::SignalWaiter& signals) {
  Parts& parts = *parts_;
  struct OnSignal final : net::Ready {
    OnSignal(Parts& p, support::SignalWaiter& s) : parts(p), signals(s) {}
    void on_ready(std::uint32_t) override {
      if (const auto number = signals.wait(std::chrono::milliseconds(0))) logger().info("stopping", {{"signal", *number}});
      parts.stop();
    }
    Parts& parts;
    support::SignalWaiter& signals;
  } on_signal(parts, signals);
  parts.loop.add(signals.fd(), EPOLLIN, on_signal).value();
  run();
  parts.loop.remove(signals.fd(), on_signal);
}

void Node::stop() {
  parts_->loop.post([parts = parts_.get()] { parts->stop(); });
}

void Node::leave() { parts_->loop.stop(); }

void Node::run() {
  Parts& parts = *parts_;
  parts.keep_services();
  parts.loop.every(std::chrono::milliseconds(500), [&parts] { parts.keep_services(); });
  parts.begin_ticks();
  parts.loop.run();
  parts.end_redis();
  parts.endpoint->stop();
  parts.pool.join();
  for (auto& instance : parts.instances) instance->stop();
  logger().info("stopped");
}

}  // namespace zht::server

#include "zht/server/node.h"

#include <sys/resource.h>
#include <unistd.h>

#include <asio/post.hpp>
#include <atomic>
#include <future>
#include <thread>
#include <limits>
#include <vector>

#include "zht/client.h"
#include "zht/net/frame_server.h"
#include "zht/operation_names.h"
#include "zht/resp/gateway.h"
#include "zht/security/guard.h"
#include "zht/server/http_endpoint.h"
#include "zht/server/identity.h"
#include "zht/server/in_process_client.h"
#include "zht/server/instance_thread.h"
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

std::string encode_table(const core::MembershipTable& table, std::uint64_t max_value_size) {
  wire::MembershipTable message;
  message.set_version(table.version);
  message.set_partition_count(table.partition_count());
  message.set_max_value_size(max_value_size);
  for (const auto& instance : table.instances) {
    auto* one = message.add_instances();
    one->set_id(static_cast<std::uint32_t>(instance.id));
    one->mutable_member()->set_node(instance.member.node);
    one->mutable_member()->set_incarnation(instance.member.incarnation);
    one->set_tcp(instance.tcp);
    one->set_unix_socket(instance.unix_socket);
    one->set_udp(instance.udp);
  }
  wire::PartitionRun* run = nullptr;
  for (std::uint32_t p = 0; p < table.partition_count(); p++) {
    const core::View& view = table.partitions[p];
    if (run != nullptr && view == table.partitions[p - 1]) {
      run->set_count(run->count() + 1);
      continue;
    }
    run = message.add_partitions();
    run->set_first(p);
    run->set_count(1);
    run->mutable_view()->set_epoch(static_cast<std::uint64_t>(view.epoch));
    run->mutable_view()->set_primary(static_cast<std::uint32_t>(view.primary));
    for (InstanceId id : view.sync) run->mutable_view()->add_sync(static_cast<std::uint32_t>(id));
    for (InstanceId id : view.learners) run->mutable_view()->add_learners(static_cast<std::uint32_t>(id));
  }
  return message.SerializeAsString();
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
  core::MembershipTable table;
  std::string encoded_table;
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

  std::size_t on_frames(net::ConnectionNumber from, std::span<const wire::Frame> frames, std::string& out) override {
    for (const wire::Frame& frame : frames) on_frame(from, frame, out);
    return frames.size();
  }
  void on_frame(net::ConnectionNumber from, const wire::Frame& frame, std::string& out);
  void gather(std::function<void(const wire::Status&)> deliver);
  void status(net::ConnectionNumber to, std::uint64_t request);
  Result<void> listen_for_redis(Node& node);
  Result<void> listen_for_http();
  void end_redis();
  void sync(net::ConnectionNumber to, std::uint64_t request);
  void keep_services();
  void stop();
  Result<void> open_instances(const Procedures& procedures);
  Result<void> listen_as_manager();
  Result<void> listen();
};

void Node::Parts::on_frame(net::ConnectionNumber from, const wire::Frame& frame, std::string& out) {
  const auto kind = static_cast<wire::ControlKind>(frame.op);
  const auto reply = [&](Code code, Bytes message, Bytes body) {
    wire::encode_control(out, wire::FrameType::control_reply, kind, frame.request, code, message, body);
  };
  if (frame.type == wire::FrameType::goodbye) return;
  if (frame.type != wire::FrameType::control_request)
    return reply(Code::invalid, "this is a node's manager; operations go to the instances its table names", {});
  switch (kind) {
    case wire::ControlKind::membership: return reply(Code::ok, {}, encoded_table);
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
  for (const auto& service : services->running()) {
    auto* one = message.add_services();
    one->set_name(service.name);
    one->set_pid(static_cast<std::uint64_t>(service.pid));
  }
  for (const auto& instance : table.instances) {
    auto* one = message.add_instances();
    one->set_id(static_cast<std::uint32_t>(instance.id));
    one->set_tcp(instance.tcp);
    one->set_unix_socket(instance.unix_socket);
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

void Node::Parts::keep_services() {
  if (stopping) return;
  services->look(std::chrono::steady_clock::now());
}

// Services first, while the instances still serve them (a mount writes back what it holds); then everything else.
void Node::Parts::stop() {
  if (std::exchange(stopping, true)) return;
  asio::post(pool, [this] {
    services->stop_all();
    loop.stop();
  });
}

Result<void> Node::Parts::open_instances(const Procedures& procedures) {
  TRY_LET(durability, core::parse_durability(settings.durability));
  std::vector<core::InstanceAddress> addresses(identity.instance_count);
  for (std::uint32_t i = 0; i < identity.instance_count; i++) addresses[i].id = InstanceId{i};
  table = core::lone_table(identity.member, std::move(addresses), identity.partition_count);
  for (std::uint32_t i = 0; i < identity.instance_count; i++) {
    InstanceThread::Options options;
    options.core = {InstanceId{i}, durability, settings.max_value_size, settings.segment_size};
    // A log that is not there need not be compacted either.
    if (settings.in_memory) options.core.log_floor = std::numeric_limits<std::uint64_t>::max();
    options.folder = (settings.in_memory ? "memory" : settings.data) + "/store/" + std::to_string(i);
    options.sync_interval = settings.sync_interval;
    options.max_connections = settings.max_connections;
    options.busy_poll = settings.busy_poll;
    options.opener = opener;
    instances.push_back(std::make_unique<InstanceThread>(std::move(options), *files, clock, procedures, table, encoded_table, pool));
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

Result<void> Node::Parts::listen() {
  for (std::uint32_t i = 0; i < instances.size(); i++) {
    if (!settings.listen.empty()) {
      const std::string host = address.first.find(':') == std::string::npos ? address.first : "[" + address.first + "]";
      const std::uint32_t port = address.second == 0 ? 0 : address.second + 1 + i;
      Result<std::string> bound = port > 65'535 ? Result<std::string>(fail(Code::conflict, "no such port"))
                                                : instances[i]->listen_tcp(host + ":" + std::to_string(port));
      if (!bound && bound.code() == Code::conflict) bound = instances[i]->listen_tcp(host + ":0");
      if (!bound) return bound.error();
      table.instances[i].tcp = *bound;
      if (settings.udp && !opener) {  // a datagram carries no connection that could have proven anything
        const auto datagrams = instances[i]->listen_udp(*bound);
        table.instances[i].udp = datagrams.has_value();
        if (!datagrams) logger().warn("no datagrams", {{"address", *bound}, {"error", datagrams.error()}});
      }
    }
    if (!settings.unix_sockets) continue;
    TRY_LET(path, support::socket_path(settings.data, "instance-" + std::to_string(i) + ".sock"));
    TRY(instances[i]->listen_unix(path));
    table.instances[i].unix_socket = path;
  }
  encoded_table = encode_table(table, settings.max_value_size);
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
    TRY_LET(identity, begin_life(settings.data, static_cast<std::uint32_t>(settings.instances),
                                 static_cast<std::uint32_t>(settings.partitions), cores));
    parts.identity = identity;
  }
  const std::string secret_folder = settings.in_memory ? std::string() : settings.data;
  // A node inside a program is told as a client is: by the environment.
  TRY_LET(opener, settings.embedded ? security::credentials_from_environment(secret_folder)
                                    : security::load_credentials(settings.secret_file,
                                                                 {settings.tls_certificate, settings.tls_key, settings.tls_ca},
                                                                 secret_folder));
  parts.opener = std::move(opener);
  parts.services.emplace(settings.data);
  TRY(parts.listen_as_manager());
  TRY(parts.open_instances(procedures));
  TRY(parts.listen());
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
  parts_->manager = std::thread([this] { parts_->loop.run(); });
}

std::unique_ptr<Client> Node::client() {
  InProcessClient::Options options;
  options.partition_count = parts_->table.partition_count();
  options.max_value_size = parts_->settings.max_value_size;
  for (const core::View& view : parts_->table.partitions) options.instance_of.push_back(static_cast<std::uint32_t>(view.primary));
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
  parts.loop.run();
  parts.end_redis();
  parts.endpoint->stop();
  parts.pool.join();
  for (auto& instance : parts.instances) instance->stop();
  logger().info("stopped");
}

}  // namespace zht::server

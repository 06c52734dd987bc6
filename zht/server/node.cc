#include "zht/server/node.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <asio/post.hpp>
#include <cstdlib>
#include <thread>

#include "zht/client/network_client.h"
#include "zht/client/table.h"
#include "zht/server/in_process_client.h"
#include "zht/server/mapped_files.h"
#include "zht/server/memory.h"
#include "zht/server/no_files.h"
#include "zht/server/node_parts.h"
#include "zht/server/own_secret.h"
#include "zht/server/served.h"
#include "zht/support/paths.h"

namespace zht::server {

using base::Code;
using base::fail;
using base::Result;

namespace {

// Connections and segments are file descriptors; the default soft limit of 1024 is soon used up.
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

void Node::Parts::keep_services() {
  if (stopping) return;
  services->look(std::chrono::steady_clock::now());
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
  if (!parts_->homeless_secret.empty()) ::unlink(parts_->homeless_secret.c_str());
  parts_->lock.reset();  // clients of this process may hold the rest for longer
}

Result<security::Opener> credentials_of(const Settings& settings) {
  const std::string folder = settings.in_memory ? std::string() : settings.data;
  // A node inside a program is told as a client is: by the environment.
  if (settings.embedded) return security::credentials_from_environment(security::End::node, folder);
  return security::load_credentials(security::End::node, settings.secret_file, {settings.tls_certificate, settings.tls_key, settings.tls_ca}, folder);
}

bool says_none(const Settings& settings) {
  const char* said = std::getenv("ZHT_SECRET_FILE");
  return settings.embedded ? said != nullptr && std::string_view(said) == "none" : settings.secret_file == "none";
}

Result<std::unique_ptr<Node>> Node::start(const Settings& settings, const Procedures& procedures, std::unique_ptr<Witness> witness,
                                          support::SignalWaiter* signals) {
  TRY(check_settings(settings));
  std::unique_ptr<Node> node(new Node);
  Parts& parts = *node->parts_;
  parts.settings = settings;
  parts.witness = std::move(witness);
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
    if (settings.mapped && settings.durability != "always") parts.files = mapped_files();
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
  if (settings.listen.empty() && !settings.in_memory && is_member(settings.data))
    return fail(Code::invalid, "the node in ", settings.data, " belongs to a cluster, which reaches it by TCP: start it with --listen and the "
                "address it had (zht members --cluster ANOTHER shows it)");
  TRY_LET(opener, find_or_make_credentials(settings, parts.homeless_secret));
  parts.opener = std::move(opener);
  parts.services.emplace(settings.data);
  TRY(parts.listen_as_manager());  // who may not, or cannot, takes no number of a cluster
  if (!settings.in_memory) {
    TRY_LET(chosen, parts.choose_identity(cores, signals));
    if (!chosen) return std::unique_ptr<Node>();
    TRY_LET(claims, Claims::open(settings.data, parts.identity.cluster));
    parts.claims.emplace(std::move(claims));
  }
  const bool new_founder = !settings.in_memory && parts.identity.member.incarnation == 0;
  if (new_founder) {
    TRY_LET(began, parts.begin_as_founder(signals));
    if (!began) return std::unique_ptr<Node>();
  }
  std::optional<StartMark> mark;
  if (!settings.in_memory && !settings.embedded) {
    set_up_allocator();
    if (const auto last = mark.emplace(settings.data).begin()) logger().warn(*last, {{"data", settings.data}});
  }
  TRY(parts.open_cluster());
  TRY(parts.open_instances(procedures));
  if (mark) mark->done();
  TRY(parts.listen());
  parts.introduce();
  parts.tell_tools();
  parts.settle();
  for (auto& instance : parts.instances) instance->run();
  // The manager's socket last: who reaches it finds everything else serving.
  if (settings.unix_sockets && !new_founder) TRY(parts.endpoint->listen_unix(parts.unix_path));
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
                            {"secret", security::prover_of(parts.opener) != nullptr ? parts.opener->prover()->origin() : std::string("none")},
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
  parts.loop.every(std::chrono::seconds(5), [&parts] { asio::post(parts.pool, give_back_memory); });
  parts.begin_ticks();
  parts.loop.run();
  parts.end_redis();
  parts.endpoint->stop();
  parts.pool.join();
  for (auto& instance : parts.instances) instance->stop();
  parts.inform_witness(true);
  logger().info("stopped");
}

}  // namespace zht::server

#include "zht/server/node_parts.h"

#include <unistd.h>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <thread>

#include "novoht/base/random.h"
#include "zht/client/channel.h"
#include "zht/client/table.h"
#include "zht/support/paths.h"

// How a node becomes one of a cluster: by itself, as the list of nodes says, or by asking one that is in it.
namespace zht::server {

using base::Code;
using base::fail;
using base::Result;

// --- the cluster ---

Result<bool> Node::Parts::choose_identity(unsigned cores, support::SignalWaiter* signals) {
  const auto instance_count = static_cast<std::uint32_t>(settings.instances), partitions = static_cast<std::uint32_t>(settings.partitions);
  auto known = read_identity(settings.data, instance_count, partitions);
  if (!known && known.code() != Code::not_found) return known.error();
  // What has no life yet is the folder of a founder that never came to serve.
  const bool unborn = known && known->member.incarnation == 0 && known->founding.nodes.size() > 1;
  const std::uint64_t uid = known ? known->member.node : base::entropy() | 1;
  if (known && (!unborn || (settings.join.empty() && settings.nodes.empty()))) {
    identity = *known;
  } else if (!settings.join.empty()) {
    const base::Time until = clock.now() + std::chrono::seconds(60);
    bool ended = false;
    auto joined = join_cluster(settings.join, uid, [&] {
      ended = ended || (signals != nullptr && signals->wait(std::chrono::milliseconds(0)));
      return ended || clock.now() >= until;
    });
    if (ended && !joined) return false;
    if (!joined) return std::move(joined).error();
    remember_others();  // before it has an identity: a next life with one and without this would find nobody
    identity = *std::move(joined);
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
    identity.member.node = uid;
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
  if (identity.member.incarnation == 0 && identity.founding.nodes.size() > 1) TRY(save_identity(settings.data, identity));
  else TRY(begin_life(settings.data, identity));
  return true;
}

// Asks nodes of the cluster for a number, until there is one or `is_over`.
Result<Identity> Node::Parts::join_cluster(const std::string& to, std::uint64_t uid, const std::function<bool()>& is_over) {
  TRY_LET(seeds, client::parse_cluster(to, opener));
  wire::JoinRequest request;
  request.set_uid(uid);
  request.set_build(ZHT_VERSION);
  Error last{Code::unavailable, "no node to join"};
  bool told = false;
  for (std::size_t n = 0; !is_over(); n++) {
    const client::Address& seed = seeds[n % seeds.size()];
    auto channel = client::Channel::open(seed, clock.now() + std::chrono::seconds(2));
    const base::Time deadline = clock.now() + std::chrono::seconds(11);  // the keepers are given ten
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
    if (!std::exchange(told, true)) logger().info("cannot join yet", {{"through", seed.text()}, {"error", last}});
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  return base::add_context("joining " + to, std::move(last));
}

Result<void> Node::Parts::open_cluster() {
  ClusterOptions options;
  options.identity = identity;
  options.save = [this](const Identity& changed) -> Result<void> {
    if (!settings.in_memory) TRY(save_identity(settings.data, changed));
    const bool others = identity.config != changed.config;
    identity.keepers = changed.keepers;
    identity.config = changed.config;
    identity.voted = changed.voted;
    if (!others) return {};
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
  if (!settings.in_memory) {
    options.remembered.emplace();
    if (auto text = support::read_file(settings.data + "/sightings")) options.remembered = *std::move(text);
  }
  TRY_LET(opened, Cluster::open(std::move(options), *files));
  cluster = std::move(opened);
  if (!cluster->damage().empty())
    logger().error("what this node kept is damaged; it votes again when the other keepers, a majority, have given it theirs (else see: zht recover)",
                   {{"error", cluster->damage()}});
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

// Whose number it is, as that node tells; see claims.h.
void Node::Parts::note_uid(std::uint64_t number, const wire::NodeAbout& about) {
  if (settings.in_memory || about.uid() == 0 || claims->of(number) == about.uid()) return;
  const auto uid = claims->claim(number, about.uid());
  if (uid && *uid != about.uid() && replaced.insert(number).second)
    logger().error("a node serves with another data folder than it had: what it had acknowledged is gone. End it, empty its folder and have "
                   "it --join", {{"node", number}, {"address", about.manager()}});
}

void Node::Parts::introduce() {
  wire::NodeAbout about;
  about.set_uid(identity.member.node);
  about.set_manager(tcp.empty() ? std::string() : reachable(tcp));
  about.set_rack(settings.rack);
  about.set_pid(static_cast<std::uint64_t>(::getpid()));
  about.set_build(ZHT_VERSION);
  about.set_older_copy(cluster->older_copy());
  about.set_started_ms(base::to_millis(clock.wall()));
  for (const wire::Instance& one : own) *about.add_instances() = one;
  cluster->introduce(about);
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

}  // namespace zht::server

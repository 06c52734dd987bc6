#include "zht/server/node_parts.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <utility>

#include "zht/server/manager_codec.h"

// Between the cluster's core and the world: what happened goes in, what follows from it goes out.
namespace zht::server {

namespace {

// Who leads and follows, as it changes: the story of a failover, in order.
const support::Log& view_logger() {
  static const support::Log log("zht.view");
  return log;
}

const support::Log& safety_logger() {
  static const support::Log log("zht.safety");
  return log;
}

// Where the instances of founders most likely listen: on the ports after their manager's. Until they say so themselves: a primary that
// waited for that would have dropped members it has never reached.
std::map<InstanceId, std::string> founders_instances(const Founding& founding) {
  std::map<InstanceId, std::string> where;
  for (std::size_t n = 0; n < founding.nodes.size(); n++) {
    const auto manager = net::parse_address(founding.nodes[n].address);
    if (!manager) continue;
    const auto& [host, port] = *manager;
    const std::string name = host.find(':') == std::string::npos ? host : "[" + host + "]";
    for (std::uint32_t i = 0; i < founding.nodes[n].instances && port + 1 + i <= 65'535; i++)
      where[InstanceId{first_instance(n + 1) + i}] = name + ":" + std::to_string(port + 1 + i);
  }
  return where;
}

}  // namespace

// Before anything is served: what this node can decide by itself, because it alone keeps the table, is decided. A node on its own
// leads all its partitions when this returns.
void Node::Parts::settle() {
  for (int i = 0; i < 12; i++) {
    cluster->tick(clock.now());
    const auto step = cluster->step(clock.now());
    ClusterNews news;
    if (step) news.views = step->views;
    if (step && step->remember) remember(*step->remember);
    if (step && step->verdict) tell_verdict();
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
  cluster->tick(now);
  auto step = cluster->step(now);
  if (!step) {
    logger().error("the keeper's disk failed; this node keeps no views any more", {{"error", step.error()}});
    return plan_tick(now);
  }
  for (const replication::ManagerMessage& message : step->messages) send(message);
  if (step->remember) remember(*std::move(step->remember));
  if (step->verdict) tell_verdict();
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
  else if (now >= next_count_of_living) look_who_lives(now);
  plan_tick(now);
}

// What is due is done within some milliseconds; a manager to whom nothing happens sleeps until something is.
void Node::Parts::plan_tick(base::Time now) {
  constexpr auto kPause = std::chrono::milliseconds(10);
  loop.set_alarm(joining.empty() ? std::max(now + kPause, cluster->next_due()) : now + kPause);
}

void Node::Parts::begin_ticks() {
  loop.on_alarm([this] { pump(); });
  loop.set_alarm(clock.now());
}

// Who is there, and where.
void Node::Parts::look_around(base::Time now) {
  const bool settled = !leaving && !stopping && (safety == "safe" || cluster->alone(now));
  next_look = now + std::chrono::milliseconds(settled ? 1000 : 200);
  std::map<InstanceId, std::string> where = founders_instances(identity.founding);
  for (const auto& [info, lives] : cluster->nodes(now)) {
    wire::NodeAbout about;
    if (!about.ParseFromString(info->about)) continue;
    note_uid(static_cast<std::uint64_t>(info->node), about);
    const bool other = static_cast<std::uint64_t>(info->node) != identity.number;
    if (other && !about.manager().empty()) managers[static_cast<std::uint64_t>(info->node)] = about.manager();
    // Those here too: a partition may move from one instance of a node to another.
    for (const wire::Instance& one : about.instances())
      if (!one.tcp().empty() && node_of(InstanceId{one.id()}) == static_cast<std::uint64_t>(info->node)) where[InstanceId{one.id()}] = one.tcp();
  }
  if (where != addresses) {
    ClusterNews news;
    news.addresses = addresses = std::move(where);
    tell_all(std::move(news));
  }
  look_who_lives(now);
  note_changes();
  remember_others();
  inform_witness(false);
  look_for_room();
  tell_safety();
  look_whether_empty();
}

void Node::Parts::look_who_lives(base::Time now) {
  next_count_of_living = now + std::chrono::milliseconds(200);
  ClusterNews news;
  if (auto found = cluster->candidates(now); found != candidates) news.candidates = candidates = std::move(found);
  if (auto found = cluster->sites(); found != sites) news.sites = sites = std::move(found);
  if (news.candidates || news.sites) tell_all(std::move(news));
}

// What instances or this keeper have written counts for how far the folder is.
void Node::Parts::note_changes() {
  std::uint64_t written = 0;
  for (const auto& instance : instances) written += instance->writes();
  if (std::exchange(noted_writes, written) != written) cluster->note_change();
}

// A node whose disk is nearly full, or whose store failed, is no place for more copies: it says so to all, and they choose others.
void Node::Parts::look_for_room() {
  if (settings.in_memory || stopping) return;
  std::string why;
  for (const auto& instance : instances) {
    if (why.empty() && instance->is_short_of_memory()) why = "the memory of an instance is nearly full";
    if (instance->failed()) why = "the store of an instance failed";
  }
  struct statvfs disk {};
  if (why.empty() && ::statvfs(settings.data.c_str(), &disk) == 0) {
    // Room for a few segments of the log; twice that before it is said to be there again.
    const std::uint64_t free = std::uint64_t{disk.f_bavail} * disk.f_frsize, few = 4 * settings.segment_size;
    if (free < (no_room.empty() ? few : 2 * few)) why = "the disk is nearly full";
  }
  if (why == no_room) return;
  no_room = why;
  cluster->set_room(why.empty());
  pump_soon();
  if (why.empty()) logger().info("has room for copies again", {{"data", settings.data}});
  else logger().warn("takes no new copies", {{"data", settings.data}, {"because", why}});
}

// Whether data are safe, said when that changes: beginning and end of a failover's story.
void Node::Parts::tell_safety() {
  constexpr auto kAcquaintance = std::chrono::seconds(2);  // who has just begun thinks all dead that it has not heard of yet
  if (cluster->alone(clock.now()) || (safety.empty() && clock.now() - started < kAcquaintance)) return;
  wire::ClusterStatus now;
  tell_cluster(now);
  if (now.unknown() > 0) return;  // not yet heard of all
  const std::string is = now.unavailable() > 0 ? "lost" : now.leaderless() + now.at_risk() + now.short_of_copies() > 0 ? "at risk" : "safe";
  if (is == std::exchange(safety, is)) return;
  if (is == "safe") return safety_logger().info("data are safe", {{"nodes", now.nodes_size()}, {"partitions", identity.partition_count}});
  safety_logger().warn(is == "lost" ? "partitions have no living copy" : "partitions lack copies",
                       {{"unavailable", now.unavailable()}, {"leaderless", now.leaderless()},
                        {"at_risk", now.at_risk()}, {"short_of_copies", now.short_of_copies()}});
}

// Keepers first: those that decide are the best to know.
void Node::Parts::inform_witness(bool in_order) {
  if (!witness) return;
  wire::Testament testament;
  testament.set_in_order(in_order);
  wire::ExitedRequest& last = *testament.mutable_last();
  last.set_cluster(identity.cluster);
  last.set_node(identity.number);
  for (const wire::Instance& one : own) {
    auto* member = last.add_members();
    member->set_instance(one.id());
    member->set_incarnation(identity.member.incarnation);
  }
  constexpr int kMost = 16;  // one of them will listen
  for (const bool keepers : {true, false})
    for (const auto& [node, where] : managers)
      if (node != identity.number && cluster->keeps(node) == keepers && testament.managers_size() < kMost) testament.add_managers(where);
  witness->inform(testament);
}

}  // namespace zht::server

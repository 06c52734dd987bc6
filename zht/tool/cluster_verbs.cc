#include "zht/tool/cluster_verbs.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "zht/support/output.h"
#include "zht/support/paths.h"
#include "zht/tool/manager.h"

namespace zht::tool {

using namespace std::chrono_literals;
using nlohmann::json;

namespace {

bool is_safe(const wire::ClusterStatus& cluster) {
  return cluster.unavailable() + cluster.leaderless() + cluster.at_risk() + cluster.short_of_copies() + cluster.unknown() == 0 &&
         cluster.living_keepers() * 2 > static_cast<std::uint32_t>(cluster.keepers_size());
}

std::string state_of(const wire::ClusterNode& node) {
  std::string state = node.lives() ? "lives" : "silent";
  if (node.leaving()) state += ", leaving";
  if (node.full()) state += ", no room";
  if (node.keeper()) state += ", keeper";
  if (!node.older_copy().empty()) state += ", was put back";
  return state;
}

// What the others say of a node that has ended: that it has left, or that it is still of the cluster. Unknown when none of them
// answers, though some are known.
enum class Ended { left, missed, unknown };
Ended how_it_ended(const wire::ClusterStatus& before, const security::Opener& opener) {
  constexpr auto kLastWord = 2s;  // a node's last word takes that long to reach the others, at most
  constexpr auto kAnswer = 10s;   // others that are there answer within that, however busy
  const auto began = std::chrono::steady_clock::now();
  for (Ended ended = Ended::left;; std::this_thread::sleep_for(50ms)) {
    for (const wire::ClusterNode& other : before.nodes()) {
      if (other.node() == before.node() || other.address().empty()) continue;
      ended = Ended::unknown;
      auto seeds = client::parse_cluster(other.address(), opener);
      const auto now = seeds ? client::fetch_status(seeds->front(), 1s) : Result<wire::Status>(seeds.error());
      if (!now) continue;
      ended = Ended::left;
      for (const wire::ClusterNode& one : now->cluster().nodes()) {
        if (one.node() == before.node()) ended = Ended::missed;
      }
      break;
    }
    const auto waited = std::chrono::steady_clock::now() - began;
    if (ended == Ended::left || waited > (ended == Ended::missed ? kLastWord : kAnswer)) return ended;
  }
}

// Which node that is, as its owner knows it.
std::string name_of(const wire::Status& status) {
  return "node " + std::to_string(status.cluster().node()) + (status.manager_tcp().empty() ? "" : " at " + status.manager_tcp()) + " (data in " +
         status.data_folder() + ")";
}

// What is left on the node that leaves, and why that may take: in words.
std::string what_is_left(const wire::ClusterStatus& cluster) {
  const wire::ClusterNode* self = nullptr;
  std::size_t takers = 0;
  for (const wire::ClusterNode& one : cluster.nodes()) {
    if (one.node() == cluster.node()) self = &one;
    else takers += one.lives() && !one.leaving() && !one.full();
  }
  if (self == nullptr) return "the others are told";
  const std::uint32_t held = self->copies() + self->learns();
  std::string text = std::to_string(self->leads()) + " partitions are led there, " + std::to_string(held) + " have a copy there";
  if (held == 0) text = self->keeper() ? "it is empty, and waits for another keeper in its place" : "it is empty";
  if (takers == 0) text += "; no other node lives and has room";
  const bool decides = cluster.living_keepers() * 2 > static_cast<std::uint32_t>(cluster.keepers_size());
  if (!decides) text += "; most keepers are silent, and nothing can be decided";
  const auto waiting = cluster.unavailable() + cluster.leaderless() + cluster.at_risk();
  if (waiting > 0) text += "; " + std::to_string(waiting) + " partitions have to become safe before they move";
  return text;
}

Result<void> leave(const support::Program& program, bool yes) {
  TRY_LET(addresses, managers(program));
  if (addresses.size() > 1)
    return fail(Code::invalid, addresses.size(), " nodes are named (", program.common().cluster.empty() ? "$ZHT_CLUSTER" : "--cluster",
                "); say which one is to leave: --data FOLDER, or --cluster with its address alone");
  TRY_LET(last, client::fetch_status(addresses.front(), patience(program, 5s)));  // who else is there, and what it has
  if (!yes) {
    if (::isatty(STDIN_FILENO) == 0)
      return fail(Code::invalid, name_of(last), " would be emptied and ended; say --yes to do it without being asked");
    std::cerr << "Empty " << name_of(last) << " onto the others, and end it? Type yes: " << std::flush;
    std::string word;
    if (!std::getline(std::cin, word) || word != "yes") return fail(Code::invalid, "nothing was done");
  }
  TRY(client::ask_to_leave(addresses.front(), patience(program, 5s)));
  if (!program.common().quiet) std::cerr << "zht: " << name_of(last) << " is being emptied; it goes on with that should this be interrupted\n";
  const auto limit = std::chrono::steady_clock::now() + patience(program, 600s);
  std::string said;
  auto said_at = std::chrono::steady_clock::now();
  for (int silent = 0; silent < 3;) {
    if (std::chrono::steady_clock::now() > limit)
      return fail(Code::timeout, "the node is still being emptied: ", what_is_left(last.cluster()), "; see: zht status");
    std::this_thread::sleep_for(200ms);
    auto status = client::fetch_status(addresses.front(), 2s);
    silent = status ? 0 : silent + 1;
    if (!status) continue;
    last = *std::move(status);
    const auto now = std::chrono::steady_clock::now();
    std::string left = what_is_left(last.cluster());
    // Said when it changes, but not all the time; and once more when it does not.
    const bool changed = left != said;
    if (program.common().quiet || now - said_at < (changed ? 2s : 15s)) continue;
    std::cerr << "zht: " << (changed ? "" : "still: ") << left << "\n";
    said = std::move(left);
    said_at = now;
  }
  switch (how_it_ended(last.cluster(), addresses.front().opener)) {
    case Ended::missed:
      return fail(Code::unavailable, "node ", last.cluster().node(), " ended before it was empty; start it and have it leave again");
    case Ended::unknown:
      return fail(Code::unavailable, "node ", last.cluster().node(), " has ended, and no other node answers;",
                  " see there whether it has left: zht status");
    case Ended::left: break;
  }
  if (!program.common().quiet) std::cerr << "zht: the node has left\n";
  return {};
}

struct Migration {
  std::vector<std::uint32_t> partitions;
  std::int64_t from = -1, to = -1;
  bool watch = false;
};

Result<void> migrate(const support::Program& program, const Migration& wanted) {
  if (wanted.to < 0) return fail(Code::invalid, "migrate needs --to INSTANCE; see: zht members");
  if (wanted.partitions.empty() && wanted.from < 0) return fail(Code::invalid, "migrate needs partitions, or --from INSTANCE");
  TRY_LET(addresses, managers(program));
  TRY_LET(before, client::fetch_table(addresses, patience(program, 5s)));
  const auto is_there = [&](std::int64_t id) {
    return std::any_of(before->instances.begin(), before->instances.end(), [&](const auto& one) { return one.id == id; });
  };
  if (wanted.from >= 0 && !is_there(wanted.from)) return fail(Code::not_found, "instance ", wanted.from, " is not there; see: zht members");
  if (wanted.from >= 0 && wanted.from == wanted.to) return fail(Code::invalid, "--from and --to name the same instance, ", wanted.to);
  std::vector<std::uint32_t> partitions = wanted.partitions;
  for (std::uint32_t p = 0; wanted.from >= 0 && p < before->partition_count; p++)
    if (before->instances[before->owners[p].instance].id == static_cast<std::uint32_t>(wanted.from)) partitions.push_back(p);
  const auto count_left = [&](const client::Table& table) {
    std::size_t left = 0;
    for (std::uint32_t p : partitions) left += table.instances[table.owners[p].instance].id != static_cast<std::uint32_t>(wanted.to);
    return left;
  };
  for (std::uint32_t p : partitions)
    if (p >= before->partition_count) return fail(Code::invalid, "partition ", p, " of ", before->partition_count);
  const auto limit = std::chrono::steady_clock::now() + patience(program, 60s);
  std::size_t left = count_left(*before), shown = left + 1;
  // A goal is forgotten when its partition's leader changes meanwhile; so it is said again.
  for (auto next = std::chrono::steady_clock::now(); left > 0;) {
    if (std::chrono::steady_clock::now() > limit) return fail(Code::timeout, left, " of ", partitions.size(), " partitions have not moved yet");
    if (std::chrono::steady_clock::now() >= next) {
      next = std::chrono::steady_clock::now() + 2s;
      TRY(client::ask_to_migrate(addresses.front(), partitions, static_cast<std::uint32_t>(wanted.to), patience(program, 5s)));
    }
    std::this_thread::sleep_for(20ms);
    TRY_LET(table, client::fetch_table(addresses, patience(program, 5s)));
    left = count_left(*table);
    if (wanted.watch && left != std::exchange(shown, left) && !program.common().quiet)
      std::cerr << "zht: " << partitions.size() - left << " of " << partitions.size() << " partitions are led by instance " << wanted.to << "\n";
  }
  if (program.common().json) support::print_json({{"partitions", partitions.size()}, {"to", wanted.to}});
  return {};
}

}  // namespace

json cluster_json(const wire::ClusterStatus& cluster) {
  json nodes = json::array();
  for (const wire::ClusterNode& one : cluster.nodes())
    nodes.push_back({{"node", one.node()},
                     {"address", one.address()},
                     {"rack", one.rack()},
                     {"instances", one.instances()},
                     {"lives", one.lives()},
                     {"leaving", one.leaving()},
                     {"full", one.full()},
                     {"keeper", one.keeper()},
                     {"incarnation", one.incarnation()},
                     {"leads", one.leads()},
                     {"copies", one.copies()},
                     {"learns", one.learns()}});
  return {{"cluster", cluster.cluster()},
          {"node", cluster.node()},
          {"table_version", cluster.table_version()},
          {"safe", is_safe(cluster)},
          {"keepers", cluster.keepers_size()},
          {"living_keepers", cluster.living_keepers()},
          {"unavailable", cluster.unavailable()},
          {"leaderless", cluster.leaderless()},
          {"at_risk", cluster.at_risk()},
          {"short_of_copies", cluster.short_of_copies()},
          {"on_one_node", cluster.on_one_node()},
          {"not_safe", std::vector<std::uint32_t>(cluster.not_safe().begin(), cluster.not_safe().end())},
          {"moving", cluster.moving()},
          {"unknown", cluster.unknown()},
          {"nodes", std::move(nodes)}};
}

void print_nodes(const wire::ClusterStatus& cluster) {
  support::Table table({"NODE", "ADDRESS", "RACK", "INSTANCES", "LEADS", "COPIES", "LEARNS", "STATE"});
  for (const wire::ClusterNode& one : cluster.nodes())
    table.row({std::to_string(one.node()), one.address().empty() ? "unix" : one.address(), one.rack().empty() ? "-" : one.rack(),
               std::to_string(one.instances()), std::to_string(one.leads()), std::to_string(one.copies()), std::to_string(one.learns()),
               state_of(one)});
  table.print();
}

void print_cluster(const wire::ClusterStatus& cluster) {
  std::cout << (is_safe(cluster) ? "data is safe" : "DATA IS NOT SAFE") << ": " << cluster.living_keepers() << " of "
            << cluster.keepers_size() << " keepers live";
  const auto say = [](std::uint32_t count, const char* what) {
    if (count > 0) std::cout << "; " << count << " partitions " << what;
  };
  say(cluster.unavailable(), "have no living copy");
  say(cluster.leaderless(), "wait for another to lead them");
  say(cluster.at_risk(), "have fewer synchronous copies than wanted");
  say(cluster.on_one_node(), "of these have all of them on one node");
  say(cluster.short_of_copies(), "have fewer copies than wanted");
  say(cluster.moving(), "are moving");
  say(cluster.unknown(), "are unknown to this node");
  if (cluster.unavailable() + cluster.leaderless() + cluster.unknown() > 0) std::cout << "; what would help: zht recover";
  std::cout << "\n";
  if (cluster.not_safe_size() > 0) {
    const auto all = cluster.unavailable() + cluster.leaderless() + cluster.at_risk() + cluster.short_of_copies();
    std::cout << "partitions ";
    for (int i = 0; i < cluster.not_safe_size(); i++) std::cout << (i > 0 ? ", " : "") << cluster.not_safe(i);
    constexpr int kNamed = 16;  // more a node does not name
    std::cout << (cluster.not_safe_size() >= kNamed && all > kNamed ? ", and more\n" : "\n");
  }
  std::cout << "\n";
  for (const wire::ClusterNode& one : cluster.nodes())
    if (!one.older_copy().empty())
      std::cout << "node " << one.node() << ": its data folder is an older copy of itself, put back: " << one.older_copy() << "\n\n";
}

void add_cluster_verbs(support::Program& program) {
  auto yes = std::make_shared<bool>(false);
  auto& leaving = program.verb("leave", "Empties the node onto the others, then ends it. Names it and asks first, then waits.",
                               {"zht leave --data /var/lib/zht", "zht leave --cluster 10.0.0.7:5470 --yes"});
  leaving.options().add_flag("--yes", *yes, "do not ask");
  leaving.action([&program, yes] { return leave(program, *yes); });
  auto wanted = std::make_shared<Migration>();
  auto& verb = program.verb("migrate", "Moves partitions to another instance while they are in use.",
                            {"zht migrate 17 --to 1024", "zht migrate --from 0 --to 2048 --watch"});
  verb.options().add_option("partition", wanted->partitions, "partitions to move");
  verb.options().add_option("--from", wanted->from, "all that this instance leads");
  verb.options().add_option("--to", wanted->to, "instance that shall lead them; see zht members");
  verb.options().add_flag("--watch", wanted->watch, "tell how far it is");
  verb.action([&program, wanted] { return migrate(program, *wanted); });
}

}  // namespace zht::tool

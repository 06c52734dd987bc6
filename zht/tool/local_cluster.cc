// `zht cluster up N`: N nodes on this machine, for trying things out. Each has a data folder (DIR/1 ... DIR/N), ports on
// loopback, and is an ordinary `zht serve`; DIR/cluster.json remembers their addresses, so that the same call starts again what is
// not running, and `down` ends exactly those.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "zht/client/local_node.h"
#include "zht/support/output.h"
#include "zht/support/paths.h"
#include "zht/support/process.h"
#include "zht/tool/manager.h"
#include "zht/tool/verbs.h"

namespace zht::tool {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

constexpr std::uint16_t kFirstPort = 7470;
constexpr unsigned kMostNodes = 64;

struct Member {
  unsigned number = 0;
  std::string folder, address;  // host:port of its manager
  bool begun = false;           // it has served: its number is that data folder's, and never again another's
};

struct Plan {
  std::string folder;
  unsigned instances = 1, founders = 0;  // the first so many nodes began the cluster, the others joined it
  std::vector<Member> nodes;
};

std::string plan_path(const std::string& folder) { return folder + "/cluster.json"; }

Result<std::string> folder_of(const support::Program& program, const std::string& flag) {
  if (!flag.empty()) return support::absolute_path(flag);
  TRY_LET(data, support::data_folder(program.common().data));
  return data + "-cluster";
}

Result<std::optional<Plan>> read_plan(const std::string& folder) {
  struct stat info {};
  if (::stat(plan_path(folder).c_str(), &info) != 0) return std::optional<Plan>();
  TRY_LET(text, support::read_file(plan_path(folder)));
  const auto read = json::parse(text, nullptr, false);
  const auto broken = fail(Code::corrupt, plan_path(folder), " does not say what nodes there are; remove ", folder, " to begin anew");
  if (!read.is_object() || !read.contains("nodes") || !read["nodes"].is_array()) return broken;
  Plan plan;
  plan.folder = folder;
  if (!read.contains("instances") || !read["instances"].is_number_unsigned() || !read.contains("founders") ||
      !read["founders"].is_number_unsigned())
    return broken;
  plan.instances = read["instances"].get<unsigned>();
  plan.founders = read["founders"].get<unsigned>();
  for (const auto& one : read["nodes"]) {
    if (!one.is_object() || !one.contains("address") || !one["address"].is_string()) return broken;
    if (!client::parse_address(one["address"].get<std::string>())) return broken;
    const auto number = static_cast<unsigned>(plan.nodes.size() + 1);
    plan.nodes.push_back({number, folder + "/" + std::to_string(number), one["address"].get<std::string>()});
    plan.nodes.back().begun = one.value("begun", false);
  }
  if (plan.nodes.empty() || plan.founders == 0 || plan.founders > plan.nodes.size()) return broken;
  return std::optional<Plan>(std::move(plan));
}

Result<void> write_plan(const Plan& plan) {
  json nodes = json::array();
  for (const Member& node : plan.nodes) nodes.push_back({{"address", node.address}, {"begun", node.begun}});
  return support::write_file_atomically(plan_path(plan.folder), json{{"instances", plan.instances},
                                                                        {"founders", plan.founders},
                                                                        {"nodes", nodes}}.dump(2) + "\n");
}

bool is_free(std::uint16_t port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int on = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const bool bound = ::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  ::close(fd);
  return bound;
}

// A manager's port with its instances' behind it. `first`: where to look from; conflict when `exactly` that is not free.
Result<std::uint16_t> take_ports(std::uint16_t first, unsigned count, bool exactly) {
  for (unsigned port = first; port + count < 65536; port += count + 1) {
    unsigned taken = 0;
    for (unsigned i = 0; i <= count && taken == 0; i++)
      if (!is_free(static_cast<std::uint16_t>(port + i))) taken = port + i;
    if (taken == 0) return static_cast<std::uint16_t>(port);
    if (exactly) return fail(Code::conflict, "port ", taken, " of 127.0.0.1 is taken by another process; choose with --port, or leave it out");
  }
  return fail(Code::conflict, "no free ports of 127.0.0.1 from ", first, " on");
}

std::string joined_addresses(const std::vector<Member>& nodes) {
  std::string all;
  for (const Member& node : nodes) all += (all.empty() ? "" : ",") + node.address;
  return all;
}

// Checked when the plan was read.
std::uint16_t port_of(const Member& node) { return client::parse_address(node.address).value().port; }

bool runs(const Member& node) { return support::held_by(node.folder + "/node.lock").has_value(); }

// Asks it to end. The process that has its folder, 0 where that is not known; nothing: none runs.
Result<std::optional<int>> ask_to_end(const Member& node) {
  const auto holder = support::held_by(node.folder + "/node.lock");
  if (!holder) return std::optional<int>();
  TRY_LET(manager, client::manager_of(node.folder));
  if (!client::ask_to_stop(manager, 2s) && *holder > 0) ::kill(*holder, SIGTERM);  // starting, or too busy to listen
  return std::optional<int>(*holder);
}

Result<void> await_end(const Member& node, int process, Millis limit) {
  const auto gone = [&] { return !runs(node) && (process == 0 || !support::process_exists(process)); };
  if (support::wait_until(limit, gone)) return {};
  if (process > 0) {
    std::cerr << "zht: node " << node.number << " (pid " << process << ") does not end by itself; killed\n";
    ::kill(process, SIGKILL);
    if (support::wait_until(5s, gone)) return {};
  }
  return fail(Code::timeout, "node ", node.number, " in ", node.folder, " has not ended; see node.log there");
}

// Whether something ends with it that may have to write to other nodes first: a mount, an agent.
bool has_services(const Member& node) {
  if (!runs(node)) return false;
  const auto manager = client::manager_of(node.folder);
  if (!manager) return true;
  const auto told = client::fetch_status(*manager, 2s);
  return !told || told->services_size() > 0;
}

// Nodes that were started go on without this process, half a cluster perhaps, and who presses Ctrl-C is told so.
void tell_when_interrupted() {
  struct sigaction action {};
  action.sa_handler = [](int number) {
    constexpr char text[] = "\nzht: interrupted; nodes that were started go on: zht cluster up starts the rest, zht cluster down ends them\n";
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text, sizeof text - 1);
    ::signal(number, SIG_DFL);
    ::raise(number);
  };
  ::sigaction(SIGINT, &action, nullptr);
}

// Whether every node's table names an instance of every node.
bool complete(const std::vector<Member>& nodes) {
  for (const Member& node : nodes) {
    const auto manager = client::manager_of(node.folder);
    if (!manager) return false;
    const auto table = client::fetch_table(*manager, 2s);
    if (!table || (*table)->instances.size() < nodes.size()) return false;
  }
  return true;
}

struct UpFlags {
  unsigned count = 3, instances = 0, port = 0;
  std::string dir, partitions, replicas, sync_replicas, durability;
};

Result<void> up(const support::Program& program, const UpFlags& flags) {
  TRY_LET(folder, folder_of(program, flags.dir));
  TRY(support::make_private_folder(folder));
  TRY_LET(lock, support::LockFile::acquire(folder + "/cluster.lock", 30s));  // two of these at once
  TRY_LET(before, read_plan(folder));
  Plan plan = before.value_or(Plan{folder, flags.instances == 0 ? 1 : flags.instances, flags.count, {}});
  if (before && flags.instances != 0 && flags.instances != plan.instances)
    return fail(Code::invalid, folder, " was made with ", plan.instances, " instances a node, not ", flags.instances, "; use another --dir");
  if (plan.nodes.size() > flags.count)
    return fail(Code::invalid, folder, " has a cluster of ", plan.nodes.size(), " nodes, more than ", flags.count,
                "; take nodes out with zht leave, or use another --dir");
  const std::size_t known = plan.nodes.size();
  std::uint16_t next = flags.port != 0 ? static_cast<std::uint16_t>(flags.port) : kFirstPort;
  for (const Member& node : plan.nodes)
    next = std::max<std::uint16_t>(next, static_cast<std::uint16_t>(port_of(node) + plan.instances + 1));
  while (plan.nodes.size() < flags.count) {
    TRY_LET(port, take_ports(next, plan.instances, flags.port != 0 && plan.nodes.empty()));
    const auto number = static_cast<unsigned>(plan.nodes.size() + 1);
    plan.nodes.push_back({number, folder + "/" + std::to_string(number), "127.0.0.1:" + std::to_string(port)});
    next = static_cast<std::uint16_t>(port + plan.instances + 1);
  }
  tell_when_interrupted();
  // What these say is for one node, not for each of ours.
  for (const char* name : {"ZHT_LISTEN", "ZHT_RESP", "ZHT_HTTP", "ZHT_JOIN", "ZHT_NODES", "ZHT_ADVERTISE", "ZHT_DATA", "ZHT_CLUSTER"})
    ::unsetenv(name);
  const Millis limit = patience(program, client::kStartTime);
  std::vector<Member> started;
  const auto give_up = [&](const Member& node, Error error) {
    for (const Member& one : started)
      if (const auto asked = ask_to_end(one); asked && *asked) (void)await_end(one, **asked, 10s).has_value();
    return base::add_context("node " + std::to_string(node.number) + " at " + node.address + " (data in " + node.folder + ")", std::move(error));
  };
  // A new cluster is founded by all its nodes, so that three of them are keepers and any one of them may die; later ones join.
  const std::string listed = folder + "/nodes";
  TRY(write_plan(plan));  // first: what runs can be ended, and what is missing started, whatever comes after
  if (known == 0) {
    std::string lines;
    for (const Member& node : plan.nodes) lines += node.address + " instances=" + std::to_string(plan.instances) + "\n";
    TRY(support::write_file_atomically(listed, lines));
  }
  const std::string founder = joined_addresses({plan.nodes.begin(), plan.nodes.begin() + static_cast<std::ptrdiff_t>(plan.founders)});
  const auto is_fresh = [](const Member& node) {
    struct stat there {};
    return ::stat((node.folder + "/node.json").c_str(), &there) != 0;
  };
  std::vector<Member> others;  // that have data
  for (Member& node : plan.nodes) {
    if (is_fresh(node)) continue;
    node.begun = true;
    others.push_back(node);
  }
  // Who has served once is known to the others, and what it held is counted on: with its data gone it must not pass for the node
  // it was. It joins as another, when those are there.
  const auto has_lost = [&](const Member& node) { return node.begun && is_fresh(node) && !others.empty(); };
  std::vector<Member*> order;
  for (const bool last : {false, true})
    for (Member& node : plan.nodes)
      if (has_lost(node) == last) order.push_back(&node);
  for (Member* const next_one : order) {
    Member& node = *next_one;
    if (runs(node)) continue;
    const bool fresh = is_fresh(node), lost = has_lost(node);
    const std::uint16_t port = port_of(node);
    if (!is_free(port))
      return give_up(node, fail(Code::conflict, "port ", port, " is taken by another process; end that, or use another --dir"));
    std::vector<std::string> arguments{"--listen", node.address};
    if (!fresh) arguments.push_back("--as-before");  // what it was first brought up with holds on: durability, copies
    if (fresh) {
      arguments.insert(arguments.end(), {"--instances", std::to_string(plan.instances)});
      if (!flags.replicas.empty()) arguments.insert(arguments.end(), {"--replicas", flags.replicas});
      if (!flags.sync_replicas.empty()) arguments.insert(arguments.end(), {"--sync-replicas", flags.sync_replicas});
      if (lost) arguments.insert(arguments.end(), {"--join", joined_addresses(others)});
      else if (node.number > plan.founders) arguments.insert(arguments.end(), {"--join", founder});
      else if (plan.founders > 1) arguments.insert(arguments.end(), {"--nodes", listed});
      if (node.number <= plan.founders && !flags.partitions.empty()) arguments.insert(arguments.end(), {"--partitions", flags.partitions});
    }
    if (!flags.durability.empty()) arguments.insert(arguments.end(), {"--durability", flags.durability});
    auto serving = client::start_node(node.folder, arguments, limit);
    if (!serving) return give_up(node, std::move(serving).error());
    node.begun = true;
    TRY(write_plan(plan));
    started.push_back(node);
    if (!program.common().quiet) std::cerr << "zht: node " << node.number << " serves " << node.address << ", data in " << node.folder
                                                  << (lost ? " (that it had before is gone: it joined as a new node)" : "") << "\n";
  }
  if (!support::wait_until(std::min<Millis>(limit, 60s), [&] { return complete(plan.nodes); }))
    return fail(Code::timeout, "the nodes serve, but do not all know each other yet; see node.log in ", folder, "/1 and so on");
  const std::string addresses = joined_addresses(plan.nodes);
  if (program.common().json) {
    json nodes = json::array();
    for (const Member& node : plan.nodes)
      nodes.push_back({{"number", node.number},
                       {"address", node.address},
                       {"data", node.folder},
                       {"pid", support::held_by(node.folder + "/node.lock").value_or(0)}});
    support::print_json({{"cluster", addresses}, {"dir", folder}, {"nodes", nodes}, {"started", started.size()}});
    return {};
  }
  if (!program.common().quiet)
    std::cerr << "zht: " << plan.nodes.size() << " nodes in " << folder << (started.empty() ? " (they were running already)" : "")
              << "; to talk to them:  eval \"$(zht cluster up " << plan.nodes.size() << (flags.dir.empty() ? "" : " --dir " + flags.dir)
              << " -q)\"  or:\n";
  std::cout << "export ZHT_CLUSTER=" << addresses << "\n";
  return {};
}

struct DownFlags {
  std::string dir;
  bool remove = false;
};

Result<void> down(const support::Program& program, const DownFlags& flags) {
  TRY_LET(folder, folder_of(program, flags.dir));
  TRY_LET(plan, read_plan(folder));
  if (!plan) return fail(Code::not_found, "there is no cluster in ", folder, "; zht cluster up makes one");
  std::size_t ended = 0;
  std::optional<Error> failed;
  // All at once, so that none hands its partitions to another that ends next; but one after the other where something beside a node may
  // have to write to the others. The youngest first: the oldest know best how things stand, and start first again.
  const bool together = std::none_of(plan->nodes.begin(), plan->nodes.end(), has_services);
  std::vector<std::pair<const Member*, int>> ending;
  const auto await_all = [&] {
    for (const auto& [node, process] : ending) {
      auto done = await_end(*node, process, patience(program, 20s));
      if (!done && !failed) failed = std::move(done).error();
      else if (done) ended++;
    }
    ending.clear();
  };
  for (auto node = plan->nodes.rbegin(); node != plan->nodes.rend(); ++node) {
    auto asked = ask_to_end(*node);
    if (!asked && !failed) failed = std::move(asked).error();
    else if (asked && *asked) ending.emplace_back(&*node, **asked);
    if (!together) await_all();
  }
  await_all();
  if (failed) return *failed;
  if (flags.remove)
    for (const auto& entry : [&] {
           std::vector<std::string> all;
           for (const Member& node : plan->nodes) all.push_back(node.folder);
           all.push_back(plan_path(folder));
           all.push_back(folder + "/cluster.lock");
           all.push_back(folder + "/nodes");
           return all;
         }()) {
      std::error_code error;
      std::filesystem::remove_all(entry, error);
      if (error) return fail(Code::io, "cannot remove ", entry, ": ", error.message());
    }
  if (program.common().json) support::print_json({{"dir", folder}, {"stopped", ended}, {"removed", flags.remove}});
  else if (!program.common().quiet)
    std::cerr << "zht: " << ended << " of " << plan->nodes.size() << " nodes ended; their data "
              << (flags.remove ? "is removed\n" : "stays in " + folder + " (zht cluster up starts them again)\n");
  return {};
}

Result<int> status(const support::Program& program, const std::string& dir) {
  TRY_LET(folder, folder_of(program, dir));
  TRY_LET(plan, read_plan(folder));
  if (!plan) return fail(Code::not_found, "there is no cluster in ", folder, "; zht cluster up makes one");
  support::Table table({"NODE", "PID", "ADDRESS", "STATE", "KEYS", "DATA"});
  json nodes = json::array();
  std::size_t well = 0;
  for (const Member& node : plan->nodes) {
    const auto pid = support::held_by(node.folder + "/node.lock");
    std::string state = "not running";
    std::uint64_t keys = 0;
    if (pid) {
      const auto manager = client::manager_of(node.folder);
      const auto told = manager ? client::fetch_status(*manager, patience(program, 3s)) : Result<wire::Status>(manager.error());
      // One that listens elsewhere, or nowhere, is cut off from the others.
      state = !told ? "does not answer" : told->manager_tcp() == node.address ? "serves" : "serves, but not at its address";
      if (told) {
        well += state == "serves";
        for (const auto& instance : told->instances()) keys += instance.keys();
      }
    }
    table.row({std::to_string(node.number), pid ? std::to_string(*pid) : "-", node.address, state, std::to_string(keys), node.folder});
    nodes.push_back({{"number", node.number},
                     {"pid", pid.value_or(0)},
                     {"address", node.address},
                     {"state", state},
                     {"keys", keys},
                     {"data", node.folder}});
  }
  if (program.common().json) support::print_json({{"dir", folder}, {"cluster", joined_addresses(plan->nodes)}, {"nodes", nodes}});
  else table.print();
  return well == plan->nodes.size() ? 0 : base::exit_status_of(Code::unavailable);
}

}  // namespace

void add_local_cluster_verbs(support::Program& program) {
  auto up_flags = std::make_shared<UpFlags>();
  auto& up_verb = program.verb("cluster up",
                               "Starts a cluster of N nodes on this machine, for trying things out: loopback ports, a data folder each. Run "
                               "again, it starts what does not run; with a larger N, more nodes join.",
                               {"zht cluster up 3", "eval \"$(zht cluster up 3 -q)\" && zht insert greeting hello"});
  auto& up_app = up_verb.options();
  up_app.add_option("N", up_flags->count, "how many nodes (3)")->check(CLI::Range(1u, kMostNodes));
  up_app.add_option("--dir", up_flags->dir, "where their data folders are (default: the local node's data folder with -cluster behind it)");
  up_app.add_option("--instances", up_flags->instances, "threads that serve, of each node (1)")->check(CLI::Range(1u, 64u));
  up_app.add_option("--partitions", up_flags->partitions, "slices of the ring (1024)");
  up_app.add_option("--replicas", up_flags->replicas, "copies of each partition (3, as far as there are nodes)");
  up_app.add_option("--sync-replicas", up_flags->sync_replicas, "copies that have every acknowledged change (2)");
  up_app.add_option("--durability", up_flags->durability, "none, interval (default) or always");
  up_app.add_option("--port", up_flags->port, "of the first node's manager (default: free ones from 7470 on)")->check(CLI::Range(1024u, 65000u));
  up_verb.action([&program, up_flags] { return up(program, *up_flags); });

  auto down_flags = std::make_shared<DownFlags>();
  auto& down_verb = program.verb("cluster down", "Ends exactly the nodes that zht cluster up started. Their data stays.",
                                 {"zht cluster down", "zht cluster down --dir /tmp/try --remove"});
  down_verb.options().add_option("--dir", down_flags->dir, "as given to zht cluster up");
  down_verb.options().add_flag("--remove", down_flags->remove, "remove their data too");
  down_verb.action([&program, down_flags] { return down(program, *down_flags); });

  auto dir = std::make_shared<std::string>();
  auto& status_verb = program.verb("cluster status", "Shows the nodes that zht cluster up started; exit status 5 when one does not serve.",
                                   {"zht cluster status", "zht cluster status --json"});
  status_verb.options().add_option("--dir", *dir, "as given to zht cluster up");
  status_verb.action([&program, dir] { return status(program, *dir); });
}

}  // namespace zht::tool

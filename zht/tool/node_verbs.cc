// The node: how it is, who is in it, and its end.
#include <signal.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "zht/client/local_node.h"
#include "zht/support/output.h"
#include "zht/support/paths.h"
#include "zht/support/process.h"
#include "zht/support/service.h"
#include "zht/tool/cluster_verbs.h"
#include "zht/tool/manager.h"
#include "zht/tool/top_view.h"
#include "zht/tool/verbs.h"

namespace zht::tool {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

// What is bounded in bytes: what it takes, and what it may.
json bounds_json(const wire::InstanceStatus& one) {
  const auto both = [](std::uint64_t bytes, std::uint64_t limit) { return json{{"bytes", bytes}, {"limit", limit}}; };
  return {{"memory", both(one.memory_used(), one.memory_limit())},
          {"tails", both(one.tail_bytes(), one.tail_limit())},
          {"uncommitted", both(one.uncommitted_bytes(), one.uncommitted_limit())},
          {"undo", both(one.undo_bytes(), one.undo_limit())},
          {"waiting", both(one.waiting_bytes(), one.waiting_limit())},
          {"results", both(one.results_bytes(), one.results_limit())},
          {"watchers", both(one.watchers_bytes(), one.watchers_limit())}};
}

json status_json(const wire::Status& status) {
  std::uint64_t keys = 0, live = 0, memory = 0, disk = 0, operations = 0;
  json instances = json::array();
  for (const wire::InstanceStatus& one : status.instances()) {
    keys += one.keys();
    live += one.live_bytes();
    memory += one.memory_bytes();
    disk += one.disk_bytes();
    operations += one.operations();
    json instance{{"id", one.id()},
                  {"tcp", one.tcp()},
                  {"unix", one.unix_socket()},
                  {"partitions", one.partitions()},
                  {"keys", one.keys()},
                  {"live_bytes", one.live_bytes()},
                  {"memory_bytes", one.memory_bytes()},
                  {"disk_bytes", one.disk_bytes()},
                  {"operations", one.operations()},
                  {"connections", one.connections()},
                  {"watchers", one.watchers()},
                  {"rounds", one.rounds()},
                  {"syncs", one.syncs()},
                  {"redirects", one.redirects()},
                  {"leases", one.leases()},
                  {"behind", one.behind()},
                  {"learners_behind", one.learners_behind()},
                  {"waiting", one.waiting()},
                  {"sending", one.sending()},
                  {"receiving", one.receiving()},
                  {"bounds", bounds_json(one)},
                  {"cold_bytes", one.cold_bytes()},
                  {"refused_for_memory", one.refused_for_memory()},
                  {"refused_for_room", one.refused_for_room()}};
    if (!one.failure().empty()) instance["failure"] = one.failure();
    instances.push_back(std::move(instance));
  }
  json services = json::array();
  for (const wire::ServiceStatus& one : status.services())
    services.push_back({{"name", one.name()}, {"pid", one.pid()}});
  return {{"pid", status.pid()},
          {"data", status.data_folder()},
          {"tcp", status.manager_tcp()},
          {"unix", status.manager_unix()},
          {"resp", status.resp()},
          {"http", status.http()},
          {"durability", status.durability()},
          {"uptime_ms", status.uptime_ms()},
          {"incarnation", status.incarnation()},
          {"partitions", status.partition_count()},
          {"max_value_bytes", status.max_value_size()},
          {"build", status.build()},
          {"keys", keys},
          {"live_bytes", live},
          {"memory_bytes", memory},
          {"resident_bytes", status.resident_bytes()},
          {"disk_bytes", status.folder_bytes() != 0 ? status.folder_bytes() : disk},
          {"memory_limit_bytes", status.memory_limit()},
          {"remembered_bytes", status.remembered_bytes()},
          {"remembered_limit_bytes", status.remembered_limit()},
          {"not_remembered", status.not_remembered()},
          {"operations", operations},
          {"no_room", status.no_room()},
          {"cluster", cluster_json(status.cluster())},
          {"instances", std::move(instances)},
          {"services", std::move(services)}};
}

// What was refused, and what is nearly full.
void print_bounds(const wire::Status& status) {
  for (const wire::InstanceStatus& one : status.instances()) {
    const auto nearly = [&](const char* what, std::uint64_t bytes, std::uint64_t limit) {
      if (limit == 0 || bytes < limit / 10 * 9) return;
      std::cout << "instance " << one.id() << ": " << what << " take " << support::human_size(bytes) << ", the limit is "
                << support::human_size(limit) << "\n";
    };
    nearly("values, keys and index", one.memory_used(), one.memory_limit());
    nearly("changes that wait for other copies", one.uncommitted_bytes(), one.uncommitted_limit());
    nearly("answers that wait", one.waiting_bytes(), one.waiting_limit());
    nearly("answers kept for retries", one.results_bytes(), one.results_limit());
    nearly("callbacks", one.watchers_bytes(), one.watchers_limit());
    if (one.refused_for_memory() > 0)
      std::cout << "instance " << one.id() << ": " << one.refused_for_memory() << " changes were refused for want of memory\n";
  }
}

void print_status(const wire::Status& status) {
  std::cout << "node " << status.pid() << " serves " << status.data_folder() << ", up "
            << support::human_duration(std::chrono::milliseconds(status.uptime_ms())) << ", durability "
            << status.durability() << ", " << status.partition_count() << " partitions\n"
            << "manager " << status.manager_unix()
            << (status.manager_tcp().empty() ? "" : " and " + status.manager_tcp())
            << (status.resp().empty() ? "" : ", redis clients " + status.resp())
            << (status.http().empty() ? "" : ", metrics http://" + status.http() + "/metrics") << "\n"
            << "memory " << support::human_size(status.resident_bytes())
            << (status.memory_limit() != 0 ? ", its data's limit " + support::human_size(status.memory_limit()) : "") << ", disk "
            << support::human_size(status.folder_bytes()) << "\n";
  if (!status.no_room().empty())
    std::cout << "TAKES NO NEW COPIES: " << status.no_room() << "; what it leads is led by others where there are any\n";
  print_bounds(status);
  print_cluster(status.cluster());
  if (status.cluster().nodes_size() > 1) {
    print_nodes(status.cluster());
    std::cout << "\n";
  }
  support::Table table(
      {"INSTANCE", "PARTITIONS", "KEYS", "LIVE", "MEMORY", "DISK", "OPERATIONS", "CONNECTIONS", "WATCHERS", "STATE"});
  for (const wire::InstanceStatus& one : status.instances())
    table.row({std::to_string(one.id()), std::to_string(one.partitions()), support::human_count(one.keys()),
               support::human_size(one.live_bytes()), support::human_size(one.memory_bytes()),
               support::human_size(one.disk_bytes()), support::human_count(one.operations()),
               std::to_string(one.connections()), std::to_string(one.watchers()),
               one.failure().empty() ? "serving" : "read-only: " + one.failure()});
  table.print();
  if (status.cluster().nodes_size() > 1) {
    std::cout << "\n";
    copies_table(status).print();
  }
  if (status.services_size() == 0) return;
  std::cout << "\n";
  support::Table services({"SERVICE", "PID"});
  for (const wire::ServiceStatus& one : status.services())
    services.row({one.name(), one.pid() == 0 ? "not running" : std::to_string(one.pid())});
  services.print();
}

Result<void> show_status(const support::Program& program) {
  TRY_LET(addresses, managers(program));
  TRY_LET(status, status_of(addresses, patience(program, 5s)));
  if (program.common().json)
    support::print_json(status_json(status));
  else
    print_status(status);
  return {};
}

Result<void> show_members(const support::Program& program) {
  TRY_LET(addresses, managers(program));
  TRY_LET(table, client::fetch_table(addresses, patience(program, 5s)));
  std::vector<std::uint64_t> counts(table->instances.size());
  for (const client::Owner& owner : table->owners) counts[owner.instance]++;
  json list = json::array();
  support::Table lines({"INSTANCE", "PARTITIONS", "ADDRESSES"});
  for (std::size_t i = 0; i < table->instances.size(); i++) {
    std::string all;
    json texts = json::array();
    for (const client::Address& address : table->instances[i].addresses) {
      all += (all.empty() ? "" : " ") + address.text();
      texts.push_back(address.text());
    }
    lines.row({std::to_string(table->instances[i].id), std::to_string(counts[i]), all});
    list.push_back({{"id", table->instances[i].id}, {"partitions", counts[i]}, {"addresses", texts}});
  }
  auto status = status_of(addresses, patience(program, 5s));  // an instance's address does for the rest
  if (program.common().json) {
    json all{{"version", table->version}, {"partitions", table->partition_count}, {"instances", list}};
    if (status) all["nodes"] = cluster_json(status->cluster())["nodes"];
    support::print_json(all);
    return {};
  }
  if (status) print_nodes(status->cluster());
  std::cout << "\n";
  lines.print();
  return {};
}

// Services whose node is gone (kill -9) still hold their locks.
Result<std::size_t> stop_left_services(const std::string& folder) {
  std::size_t count = 0;
  for (const std::string& name : support::running_services(folder)) {
    const auto pid = support::service_pid(folder, name);
    if (!pid || *pid <= 0) continue;
    auto stopped = support::stop_process(*pid, 10s);
    if (!stopped) return base::add_context("service " + name, std::move(stopped).error());
    count++;
  }
  return count;
}

Result<void> stop(const support::Program& program) {
  if (!program.common().cluster.empty())
    return fail(Code::invalid, "stop ends the node of a data folder on this machine; give --data, not --cluster");
  TRY_LET(folder, support::data_folder(program.common().data));
  const std::string lock = folder + "/node.lock";
  const auto holder = support::held_by(lock);
  bool stopped_services = false;
  if (holder) {
    TRY_LET(manager, client::manager_of(folder));
    if (!client::ask_to_stop(manager, 2s) && *holder > 0) kill(*holder, SIGTERM);  // starting, or too busy to listen
    const Millis limit = patience(program, 60s);
    // Gone: the lock is free and the process too, so that whoever looks afterwards sees neither.
    if (!support::wait_until(limit, [&] { return !support::held_by(lock) && !support::process_exists(*holder); }))
      return fail(Code::timeout, "node ", *holder, " in ", folder, " has not ended within ", limit.count(),
                  " ms; see node.log there");
  }
  TRY_LET(left, stop_left_services(folder));
  stopped_services = left > 0;
  if (program.common().json)
    support::print_json({{"data", folder}, {"stopped", holder.has_value()}, {"pid", holder.value_or(0)}});
  else if (!program.common().quiet && !holder)
    std::cerr << "zht: no node runs in " << folder << (stopped_services ? "; services it had left were stopped" : "")
              << "\n";
  return {};
}

}  // namespace

void add_node_verbs(support::Program& program) {
  program.verb("status", "Shows the node: instances, keys, sizes, services.", {"zht status", "zht status --json"})
      .action([&program] { return show_status(program); });
  program
      .verb("members", "Shows the cluster: nodes, instances, their addresses and partitions.",
            {"zht members", "zht members --json"})
      .action([&program] { return show_members(program); });
  program
      .verb("stop", "Stops the local node and its services, and waits until they are gone.",
            {"zht stop", "zht stop --data /var/lib/zht"})
      .action([&program] { return stop(program); });
  add_cluster_verbs(program);
}

}  // namespace zht::tool

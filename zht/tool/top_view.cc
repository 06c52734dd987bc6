#include "zht/tool/top_view.h"

#include <array>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "zht/support/histogram.h"
#include "zht/support/output.h"

namespace zht::tool {
namespace {

using nlohmann::json;
using Buckets = std::map<std::uint32_t, std::uint64_t>;

void add(Buckets& to, const wire::OperationStatus& one, bool minus) {
  for (int i = 0; i < std::min(one.bucket_size(), one.bucket_count_size()); i++) {
    std::uint64_t& count = to[one.bucket(i)];
    count = minus ? count - std::min(count, one.bucket_count(i)) : count + one.bucket_count(i);
  }
}

double at(const Buckets& buckets, double part) {
  std::uint64_t all = 0, seen = 0;
  for (const auto& [index, count] : buckets) all += count;
  const auto wanted = static_cast<std::uint64_t>(part * static_cast<double>(all));
  for (const auto& [index, count] : buckets)
    if (count > 0 && (seen += count) > wanted && index < support::CoarseHistogram::kBuckets)
      return static_cast<double>(support::CoarseHistogram::upper_end(index)) / 1000;
  return 0;
}

TopView::Times times_of(const Buckets& buckets, std::uint64_t total, double seconds) {
  std::uint64_t count = 0;
  for (const auto& [index, in_it] : buckets) count += in_it;
  return {seconds > 0 ? static_cast<double>(count) / seconds : 0, at(buckets, 0.5), at(buckets, 0.99),
          at(buckets, 0.999), total};
}

std::string fixed(double value, int digits) {
  char text[48];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}
std::string whole(double value) { return support::human_count(static_cast<std::uint64_t>(value + 0.5)); }
std::string micros(double value) { return value == 0 ? "-" : fixed(value, value < 100 ? 1 : 0); }

std::vector<std::string> lines_of(const support::Table& table) {
  std::vector<std::string> all;
  const std::string text = table.text();
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    all.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return all;
}

json times_json(const TopView::Times& times) {
  return {{"ops_per_s", times.rate},
          {"p50_us", times.p50},
          {"p99_us", times.p99},
          {"p999_us", times.p999},
          {"operations", times.count}};
}

}  // namespace

TopView::TopView(const std::optional<wire::Status>& before, const wire::Status& status, double between)
    : now(status), seconds(between) {
  const bool same_life = before && before->pid() == now.pid() && before->incarnation() == now.incarnation() &&
                         before->instances_size() == now.instances_size() && between > 0;
  since_start = !same_life;
  if (since_start) seconds = std::max(0.001, static_cast<double>(now.uptime_ms()) / 1000);
  std::map<std::string, std::pair<Buckets, std::uint64_t>> by_operation;
  Buckets everything;
  std::uint64_t total = 0;
  for (int i = 0; i < now.instances_size(); i++) {
    Buckets mine;
    std::uint64_t count = 0;
    for (const bool minus : {false, true}) {
      if (minus && !same_life) break;
      for (const auto& one : (minus ? *before : now).instances(i).latencies()) {
        auto& operation = by_operation[one.operation()];
        add(mine, one, minus);
        add(operation.first, one, minus);
        add(everything, one, minus);
        if (minus) continue;
        count += one.count();
        operation.second += one.count();
      }
    }
    total += count;
    instances.push_back({std::to_string(now.instances(i).id()), times_of(mine, count, seconds), &now.instances(i)});
  }
  all = times_of(everything, total, seconds);
  for (const auto& [name, one] : by_operation)
    operations.push_back({name, times_of(one.first, one.second, seconds), nullptr});
  const auto since = [&](std::uint64_t is, std::uint64_t was) {
    return static_cast<double>(is - std::min(is, same_life ? was : 0));
  };
  cpu_percent = since(now.cpu_ms(), same_life ? before->cpu_ms() : 0) / 10 / seconds;
  resp_rate = since(now.resp_commands(), same_life ? before->resp_commands() : 0) / seconds;
}

std::vector<std::string> TopView::lines(std::size_t width) const {
  std::uint64_t keys = 0, live = 0, memory = 0, disk = 0, connections = 0, watchers = 0;
  for (const auto& one : now.instances()) {
    keys += one.keys();
    live += one.live_bytes();
    memory += one.memory_bytes();
    disk += one.disk_bytes();
    connections += one.connections();
    watchers += one.watchers();
  }
  std::vector<std::string> out;
  out.push_back("zht " + now.build() + "  node " + std::to_string(now.pid()) + "  up " +
                support::human_duration(std::chrono::milliseconds(now.uptime_ms())) + "  durability " +
                now.durability() + "  " + now.data_folder());
  out.push_back("operations/s " + whole(all.rate) + "   p50 " + micros(all.p50) + " us   p99 " + micros(all.p99) +
                " us   p99.9 " + micros(all.p999) + " us   " +
                (since_start ? "since its start" : "in the last " + fixed(seconds, 1) + " s"));
  out.push_back("keys " + support::human_count(keys) + "   data " + support::human_size(live) + "   memory " +
                support::human_size(memory) + " (process " + support::human_size(now.resident_bytes()) + ")   disk " +
                support::human_size(disk) + "   cpu " + fixed(cpu_percent, 0) + "%");
  out.push_back("partitions " + support::human_count(now.partition_count()) + "   connections " +
                support::human_count(connections) + "   watchers " + support::human_count(watchers) +
                (now.resp().empty() ? ""
                                    : "   redis " + now.resp() + ": " + support::human_count(now.resp_connections()) +
                                          " connections, " + whole(resp_rate) + "/s"));
  out.emplace_back();
  support::Table by_instance({"INSTANCE", "OPS/S", "P50 US", "P99 US", "P99.9 US", "PARTITIONS", "KEYS", "MEMORY",
                              "DISK", "CONNS", "WATCHERS", "STATE"});
  for (const Row& row : instances)
    by_instance.row({row.name, whole(row.times.rate), micros(row.times.p50), micros(row.times.p99),
                     micros(row.times.p999), std::to_string(row.instance->partitions()),
                     support::human_count(row.instance->keys()), support::human_size(row.instance->memory_bytes()),
                     support::human_size(row.instance->disk_bytes()), std::to_string(row.instance->connections()),
                     std::to_string(row.instance->watchers()),
                     row.instance->failure().empty() ? "serving" : "read-only"});
  for (auto& line : lines_of(by_instance)) out.push_back(std::move(line));
  if (now.cluster().nodes_size() > 1) {
    const wire::ClusterStatus& cluster = now.cluster();
    out.emplace_back();
    for (auto& line : lines_of(copies_table(now))) out.push_back(std::move(line));
    out.push_back("table " + std::to_string(cluster.table_version()) + "   moving " + std::to_string(cluster.moving()) + "   short of copies " +
                  std::to_string(cluster.short_of_copies()) + "   at risk " + std::to_string(cluster.at_risk()) + "   without a copy " +
                  std::to_string(cluster.unavailable()));
  }
  out.emplace_back();
  support::Table by_operation({"OPERATION", "OPS/S", "P50 US", "P99 US", "P99.9 US", "SINCE START"});
  for (const Row& row : operations)
    by_operation.row({row.name, whole(row.times.rate), micros(row.times.p50), micros(row.times.p99),
                      micros(row.times.p999), support::human_count(row.times.count)});
  for (auto& line : lines_of(by_operation)) out.push_back(std::move(line));
  if (now.services_size() > 0) {
    out.emplace_back();
    support::Table services({"SERVICE", "PID"});
    for (const auto& one : now.services())
      services.row({one.name(), one.pid() == 0 ? "not running" : std::to_string(one.pid())});
    for (auto& line : lines_of(services)) out.push_back(std::move(line));
  }
  for (std::string& line : out)
    if (line.size() > width) line.resize(width);
  return out;
}

support::Table copies_table(const wire::Status& status) {
  support::Table table({"INSTANCE", "LEADS", "WITH LEASE", "BEHIND", "LEARNERS BEHIND", "WAITING", "SENDING", "RECEIVING"});
  for (const wire::InstanceStatus& one : status.instances())
    table.row({std::to_string(one.id()), std::to_string(one.partitions()), std::to_string(one.leases()),
               support::human_count(one.behind()), support::human_count(one.learners_behind()), support::human_count(one.waiting()),
               std::to_string(one.sending()), std::to_string(one.receiving())});
  return table;
}

nlohmann::json TopView::json() const {
  nlohmann::json value = times_json(all);
  value["pid"] = now.pid();
  value["seconds"] = seconds;
  value["since_start"] = since_start;
  value["uptime_ms"] = now.uptime_ms();
  value["resident_bytes"] = now.resident_bytes();
  value["cpu_percent"] = cpu_percent;
  value["partitions"] = now.partition_count();
  value["resp_connections"] = now.resp_connections();
  value["resp_commands_per_s"] = resp_rate;
  value["instances"] = nlohmann::json::array();
  for (const Row& row : instances) {
    nlohmann::json one = times_json(row.times);
    one["id"] = row.instance->id();
    one["partitions"] = row.instance->partitions();
    one["keys"] = row.instance->keys();
    one["live_bytes"] = row.instance->live_bytes();
    one["memory_bytes"] = row.instance->memory_bytes();
    one["disk_bytes"] = row.instance->disk_bytes();
    one["connections"] = row.instance->connections();
    one["watchers"] = row.instance->watchers();
    one["leases"] = row.instance->leases();
    one["behind"] = row.instance->behind();
    one["learners_behind"] = row.instance->learners_behind();
    one["sending"] = row.instance->sending();
    one["receiving"] = row.instance->receiving();
    if (!row.instance->failure().empty()) one["failure"] = row.instance->failure();
    value["instances"].push_back(std::move(one));
  }
  value["by_operation"] = nlohmann::json::object();
  for (const Row& row : operations) value["by_operation"][row.name] = times_json(row.times);
  return value;
}

}  // namespace zht::tool

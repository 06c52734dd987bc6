#include "zht/server/metrics.h"

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <functional>

#include "zht/support/histogram.h"
#include "zht/types.h"
#include "zht/wire/zht.pb.h"

namespace zht::server {
namespace {

using wire::InstanceStatus;

constexpr std::array<double, 16> kBounds = {0.000005, 0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001,
                                            0.0025,   0.005,   0.01,     0.025,   0.05,   0.1,     0.5,    2.5};

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

std::string quoted(const std::string& text) {
  std::string made;
  for (char c : text) made += c == '\\' ? "\\\\" : c == '"' ? "\\\"" : c == '\n' ? "\\n" : std::string(1, c);
  return "\"" + made + "\"";
}

class Text {
 public:
  void family(const std::string& name, const char* type, const char* help) {
    out_ += "# HELP " + name + " " + help + "\n# TYPE " + name + " " + type + "\n";
  }
  void line(const std::string& name, const std::string& labels, double value) {
    out_ += name + (labels.empty() ? "" : "{" + labels + "}") + " " + number(value) + "\n";
  }
  void one(const std::string& name, const char* type, const char* help, double value, const std::string& labels = {}) {
    family(name, type, help);
    line(name, labels, value);
  }
  void per_instance(const std::string& name, const char* type, const char* help, const wire::Status& status,
                    const std::function<double(const InstanceStatus&)>& value) {
    family(name, type, help);
    for (const InstanceStatus& instance : status.instances()) line(name, label(instance), value(instance));
  }
  static std::string label(const InstanceStatus& instance) {
    return "instance=\"" + std::to_string(instance.id()) + "\"";
  }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

void add_latencies(Text& text, const wire::Status& status) {
  const std::string name = "zht_operation_seconds";
  text.family(name, "histogram", "from a request's arrival in its round to the reply's leave, by operation");
  for (const InstanceStatus& instance : status.instances()) {
    for (const wire::OperationStatus& one : instance.latencies()) {
      const std::string labels = Text::label(instance) + ",operation=\"" + one.operation() + "\"";
      std::uint64_t seen = 0;
      int at = 0;
      for (const double bound : kBounds) {
        for (; at < one.bucket_size() &&
               static_cast<double>(support::CoarseHistogram::lower_end(one.bucket(at))) <= bound * 1e9;
             at++)
          seen += one.bucket_count(at);
        text.line(name + "_bucket", labels + ",le=\"" + number(bound) + "\"", static_cast<double>(seen));
      }
      text.line(name + "_bucket", labels + ",le=\"+Inf\"", static_cast<double>(one.count()));
      text.line(name + "_sum", labels, static_cast<double>(one.total_nanos()) / 1e9);
      text.line(name + "_count", labels, static_cast<double>(one.count()));
    }
  }
}

// What is bounded in bytes: what it takes, and what it may.
void add_bounds(Text& text, const wire::Status& status) {
  struct Bound {
    const char* what;
    std::uint64_t (InstanceStatus::*bytes)() const;
    std::uint64_t (InstanceStatus::*limit)() const;
  };
  using I = InstanceStatus;
  static constexpr std::array<Bound, 7> kAll{{{"memory", &I::memory_used, &I::memory_limit},
                                              {"tails", &I::tail_bytes, &I::tail_limit},
                                              {"uncommitted", &I::uncommitted_bytes, &I::uncommitted_limit},
                                              {"undo", &I::undo_bytes, &I::undo_limit},
                                              {"waiting", &I::waiting_bytes, &I::waiting_limit},
                                              {"results", &I::results_bytes, &I::results_limit},
                                              {"watchers", &I::watchers_bytes, &I::watchers_limit}}};
  for (const bool limits : {false, true}) {
    const char* const name = limits ? "zht_bound_bytes" : "zht_bounded_bytes";
    text.family(name, "gauge", limits ? "what each of zht_bounded_bytes may be; 0: no limit" : "memory that is bounded, by what takes it");
    for (const InstanceStatus& one : status.instances())
      for (const Bound& bound : kAll)
        text.line(name, Text::label(one) + ",what=" + quoted(bound.what), static_cast<double>((one.*(limits ? bound.limit : bound.bytes))()));
  }
}

}  // namespace

std::string metrics_text(const wire::Status& status) {
  Text text;
  text.one("zht_build_info", "gauge", "1; the build is a label", 1, "version=" + quoted(status.build()));
  text.one("zht_uptime_seconds", "gauge", "since the node was started", static_cast<double>(status.uptime_ms()) / 1000);
  text.one("zht_incarnation", "gauge", "the life of the node: grows with every start",
           static_cast<double>(status.incarnation()));
  const auto gauge = [&](const char* name, const char* help, auto value) {
    text.per_instance(name, "gauge", help, status,
                      [&](const InstanceStatus& i) { return static_cast<double>(value(i)); });
  };
  const auto counter = [&](const char* name, const char* help, auto value) {
    text.per_instance(name, "counter", help, status,
                      [&](const InstanceStatus& i) { return static_cast<double>(value(i)); });
  };
  using I = InstanceStatus;
  gauge("zht_partitions", "partitions the instance owns", [](const I& i) { return i.partitions(); });
  gauge("zht_keys", "keys that are there", [](const I& i) { return i.keys(); });
  gauge("zht_live_bytes", "bytes of keys and values", [](const I& i) { return i.live_bytes(); });
  gauge("zht_memory_bytes", "what the index and the values take in memory",
        [](const I& i) { return i.memory_bytes(); });
  add_bounds(text, status);
  text.one("zht_memory_limit_bytes", "gauge", "of the instances together; 0: none", static_cast<double>(status.memory_limit()));
  text.one("zht_folder_bytes", "gauge", "all files of the store and of the keeper", static_cast<double>(status.folder_bytes()));
  text.one("zht_remembered_bytes", "gauge", "what the manager knows of other nodes", static_cast<double>(status.remembered_bytes()));
  counter("zht_refused_for_memory_total", "changes refused because memory is full", [](const I& i) { return i.refused_for_memory(); });
  counter("zht_refused_for_room_total", "requests refused because too much waits for other copies or is kept for retries",
          [](const I& i) { return i.refused_for_room(); });
  gauge("zht_cold_bytes", "values that lie on disk alone", [](const I& i) { return i.cold_bytes(); });
  gauge("zht_log_bytes", "bytes of the log on disk", [](const I& i) { return i.log_bytes(); });
  gauge("zht_checkpoint_bytes", "bytes of checkpoints on disk", [](const I& i) { return i.checkpoint_bytes(); });
  gauge("zht_connections", "connections of native clients", [](const I& i) { return i.connections(); });
  gauge("zht_watchers", "callbacks that wait", [](const I& i) { return i.watchers(); });
  gauge("zht_read_only", "1: the store failed and only reads", [](const I& i) { return i.failure().empty() ? 0 : 1; });
  gauge("zht_leases", "partitions it leads whose reads are answered at once", [](const I& i) { return i.leases(); });
  gauge("zht_behind", "changes that the synchronous copy furthest behind lacks", [](const I& i) { return i.behind(); });
  gauge("zht_learners_behind", "changes that the learner furthest behind lacks", [](const I& i) { return i.learners_behind(); });
  gauge("zht_waiting", "answers that wait for other copies", [](const I& i) { return i.waiting(); });
  gauge("zht_sending", "copies that are being sent whole", [](const I& i) { return i.sending(); });
  gauge("zht_receiving", "copies that are being received whole", [](const I& i) { return i.receiving(); });
  counter("zht_requests_total", "requests since start, also those that were refused",
          [](const I& i) { return i.operations(); });
  counter("zht_changes_total", "log records written for requests", [](const I& i) { return i.changes(); });
  counter("zht_retries_answered_total", "repeated requests answered from memory",
          [](const I& i) { return i.retries_answered(); });
  counter("zht_redirects_total", "requests sent away, as their membership table was old",
          [](const I& i) { return i.redirects(); });
  counter("zht_rounds_total", "rounds: one log write each", [](const I& i) { return i.rounds(); });
  counter("zht_syncs_total", "syncs of the log to disk", [](const I& i) { return i.syncs(); });
  counter("zht_checkpoints_total", "checkpoints written", [](const I& i) { return i.checkpoints(); });
  counter("zht_maintenance_failures_total", "failures of checkpoints and compaction",
          [](const I& i) { return i.maintenance_failures(); });
  add_latencies(text, status);
  const wire::ClusterStatus& cluster = status.cluster();
  text.one("zht_table_version", "counter", "of the membership table: grows with every view", static_cast<double>(cluster.table_version()));
  text.family("zht_partitions_in_state", "gauge", "of all partitions of the cluster, those that are not as they should be, as this node knows it");
  for (const auto& [state, count] : {std::pair("unavailable", cluster.unavailable()), std::pair("leaderless", cluster.leaderless()),
                                     std::pair("at_risk", cluster.at_risk()), std::pair("short_of_copies", cluster.short_of_copies()),
                                     std::pair("on_one_node", cluster.on_one_node()),
                                     std::pair("moving", cluster.moving()), std::pair("unknown", cluster.unknown())})
    text.line("zht_partitions_in_state", "state=" + quoted(state), static_cast<double>(count));
  const auto per_node = [&](const char* name, const char* help, auto value) {
    text.family(name, "gauge", help);
    for (const wire::ClusterNode& node : cluster.nodes())
      text.line(name, "node=\"" + std::to_string(node.node()) + "\"", static_cast<double>(value(node)));
  };
  using N = wire::ClusterNode;
  per_node("zht_node_lives", "1: heard of within two seconds, and spoke when asked", [](const N& n) { return n.lives() ? 1 : 0; });
  per_node("zht_node_full", "1: takes no new copies", [](const N& n) { return n.full() ? 1 : 0; });
  per_node("zht_node_leads", "partitions it leads", [](const N& n) { return n.leads(); });
  per_node("zht_node_copies", "synchronous copies it has", [](const N& n) { return n.copies(); });
  per_node("zht_node_learns", "copies it has that are not synchronous", [](const N& n) { return n.learns(); });
  text.one("zht_disk_full", "gauge", "1: the disk of the data folder is nearly full, or failed", status.no_room().empty() ? 0 : 1);
  text.one("zht_resp_connections", "gauge", "connections of Redis clients",
           static_cast<double>(status.resp_connections()));
  text.one("zht_resp_commands_total", "counter", "commands of Redis clients",
           static_cast<double>(status.resp_commands()));
  text.family("zht_service_running", "gauge", "1: the service the node keeps has a process");
  for (const wire::ServiceStatus& service : status.services())
    text.line("zht_service_running", "service=" + quoted(service.name()), service.pid() != 0 ? 1 : 0);
  text.one("process_resident_memory_bytes", "gauge", "of the node's process",
           static_cast<double>(status.resident_bytes()));
  text.one("process_cpu_seconds_total", "counter", "user and system", static_cast<double>(status.cpu_ms()) / 1000);
  text.one("process_open_fds", "gauge", "open files and sockets", static_cast<double>(status.open_files()));
  return text.take();
}

std::string what_ails(const wire::Status& status) {
  std::string out;
  if (!status.no_room().empty()) out += status.no_room() + ": " + status.data_folder() + "\n";
  for (const InstanceStatus& instance : status.instances())
    if (!instance.failure().empty())
      out += "instance " + std::to_string(instance.id()) + " only reads: " + instance.failure() + "\n";
  return out;
}

std::string what_is_at_risk(const wire::Status& status) {
  const wire::ClusterStatus& cluster = status.cluster();
  std::string out;
  const auto say = [&](std::uint32_t count, const char* what) {
    if (count > 0) out += (out.empty() ? "data is not safe: " : "; ") + std::to_string(count) + " partitions " + what;
  };
  say(cluster.unavailable(), "have no living copy");
  say(cluster.leaderless(), "wait for another to lead them");
  say(cluster.at_risk(), "have fewer synchronous copies than wanted");
  say(cluster.short_of_copies(), "have fewer copies than wanted");
  return out.empty() ? out : out + "\n";
}

ProcessFigures process_figures() {
  ProcessFigures figures;
  std::ifstream statm("/proc/self/statm");
  std::uint64_t pages = 0;
  if (statm >> pages >> pages) figures.resident_bytes = pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  rusage usage{};
  if (::getrusage(RUSAGE_SELF, &usage) == 0)
    figures.cpu_seconds = static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                          static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
  if (DIR* folder = ::opendir("/proc/self/fd")) {
    while (::readdir(folder) != nullptr) figures.open_files++;
    figures.open_files -= std::min<std::uint64_t>(figures.open_files, 3);  // . and .. and the folder itself
    ::closedir(folder);
  }
  return figures;
}

}  // namespace zht::server

#include "zht/server/node_parts.h"

#include <unistd.h>
#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "zht/operation_names.h"
#include "zht/server/metrics.h"
#include "zht/wire/zht.pb.h"

// What a node tells of itself and of the cluster: to `zht status`, to Redis' INFO, to /metrics.
namespace zht::server {

using base::Code;

namespace {

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

void add_memory(wire::InstanceStatus& to, const InstanceReport& report) {
  to.set_memory_used(report.store.used_bytes);
  to.set_memory_limit(report.limits.memory);
  to.set_cold_bytes(report.store.cold_bytes);
  to.set_tail_bytes(report.bytes.tails);
  to.set_tail_limit(report.timing.all_tails_bytes);
  to.set_uncommitted_bytes(report.bytes.uncommitted);
  to.set_uncommitted_limit(report.timing.all_uncommitted_bytes);
  to.set_undo_bytes(report.bytes.undo);
  to.set_undo_limit(report.limits.undo);
  to.set_waiting_bytes(report.bytes.waiting);
  to.set_waiting_limit(report.limits.waiting);
  to.set_results_bytes(report.bytes.results);
  to.set_results_limit(report.limits.results);
  to.set_watchers_bytes(report.bytes.watchers);
  to.set_watchers_limit(core::Watchers::kMaxBytes);
  to.set_refused_for_memory(report.operations.refused_for_memory);
  to.set_refused_for_room(report.operations.refused_for_room);
}

// Of the files that the node keeps: logs, checkpoints, what is put aside of damaged ones, the keeper's. (Services have folders too.)
std::uint64_t bytes_of_files(const std::string& data) {
  namespace fs = std::filesystem;
  std::uint64_t sum = 0;
  std::error_code ignored;
  const auto add = [&](const fs::directory_entry& entry) {
    if (entry.is_regular_file(ignored)) sum += entry.file_size(ignored);
  };
  for (fs::directory_iterator top(data, ignored), end; !ignored && top != end; top.increment(ignored)) {
    add(*top);
    const std::string name = top->path().filename();
    if (!name.starts_with("store") && !name.starts_with("keeper")) continue;
    std::error_code gone;  // files come and go meanwhile
    for (fs::recursive_directory_iterator below(*top, gone), last; !gone && below != last; below.increment(gone)) add(*below);
  }
  return sum;
}

}  // namespace

// A node that died a moment ago is thought to live until it has been silent for two seconds: so all are asked for a word first. Where all
// are there that takes one exchange of messages.
void Node::Parts::gather(std::function<void(const wire::Status&)> deliver) {
  const base::Time asked = clock.now();
  cluster->knock_everywhere();
  pump_soon();
  gather_when_all_spoke(asked, std::move(deliver));
}

void Node::Parts::gather_when_all_spoke(base::Time asked, std::function<void(const wire::Status&)> deliver) {
  constexpr auto kLongest = std::chrono::seconds(1);
  const base::Time now = clock.now();
  bool all = true;
  for (const auto& [info, lives] : cluster->nodes(now)) {
    const auto number = static_cast<std::uint64_t>(info->node);
    const bool has_left = info->leaving && info->instances.empty();
    all = all && (number == identity.number || !lives || has_left || cluster->spoke(number) >= asked);
  }
  if (all || now - asked > kLongest) return gather_now(asked, std::move(deliver));
  loop.after(std::chrono::milliseconds(2), [this, asked, deliver = std::move(deliver)]() mutable {
    gather_when_all_spoke(asked, std::move(deliver));
  });
}

// Asks every instance, each on its own thread; `deliver` hears on the manager's when the last has reported.
void Node::Parts::gather_now(base::Time asked, std::function<void(const wire::Status&)> deliver) {
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
  message.set_no_room(no_room);
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
  message.set_memory_limit(memory_limit);
  if (!settings.in_memory && clock.now() >= next_count) {
    next_count = clock.now() + std::chrono::seconds(5);
    folder_bytes = bytes_of_files(settings.data);
  }
  message.set_folder_bytes(folder_bytes);
  message.set_remembered_bytes(cluster->remembered());
  message.set_remembered_limit(replication::ManagerOptions{}.remembered);
  message.set_not_remembered(cluster->not_remembered());
  tell_cluster(*message.mutable_cluster(), asked);
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
        one.set_disk_bytes(report.store.log_bytes + report.store.kept_bytes + report.store.checkpoint_bytes + report.store.cold_file_bytes);
        one.set_operations(report.operations.operations);
        one.set_connections(report.connections);
        one.set_watchers(report.watchers);
        one.set_rounds(report.operations.rounds);
        one.set_syncs(report.store.syncs);
        one.set_redirects(report.operations.redirects);
        one.set_held(report.operations.held);
        one.set_let_go(report.operations.let_go);
        one.set_failure(report.failure);
        one.set_leases(report.replication.leases);
        one.set_behind(report.replication.behind);
        one.set_learners_behind(report.replication.learners_behind);
        one.set_waiting(report.replication.waiting);
        one.set_sending(report.replication.sending);
        one.set_receiving(report.replication.receiving);
        one.set_changes(report.operations.changes);
        one.set_retries_answered(report.operations.retries_answered);
        one.set_log_bytes(report.store.log_bytes);
        one.set_checkpoint_bytes(report.store.checkpoint_bytes);
        one.set_checkpoints(report.store.checkpoints);
        one.set_maintenance_failures(report.store.maintenance_failures);
        add_memory(one, report);
        add_latencies(one, report.latencies);
        if (--gathering->left == 0) gathering->deliver(gathering->message);
      });
    });
  }
}

// Where every partition is, as far as this node knows, and whether there is enough of it.
// `asked`: nodes that have not spoken since then are not counted.
void Node::Parts::tell_cluster(wire::ClusterStatus& to, base::Time asked) {
  const base::Time now = clock.now();
  to.set_cluster(base::to_hex(Bytes(reinterpret_cast<const char*>(&identity.cluster), sizeof identity.cluster)));
  to.set_node(identity.number);
  to.set_table_version(cluster->version());
  for (std::uint64_t keeper : cluster->keepers()) to.add_keepers(keeper);
  std::map<std::uint64_t, wire::ClusterNode*> nodes;
  std::size_t there = 0, living_keepers = 0;
  for (const auto& [info, heard] : cluster->nodes(now)) {
    const auto number = static_cast<std::uint64_t>(info->node);
    if (info->leaving && info->instances.empty()) continue;
    const bool lives = heard && (number == identity.number || cluster->spoke(number) >= asked);
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
    one->set_full(!info->room);
    one->set_incarnation(info->instances.empty() ? 0 : info->instances.front().incarnation);
    one->set_older_copy(about.older_copy());
    there++;
    const bool keeps = cluster->keeps(number);
    one->set_keeper(keeps);
    living_keepers += keeps && lives && info->lost_registers != cluster->config();
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
    // What fails together is one copy: two on a node are no more than one.
    std::set<std::uint64_t> living, synchronous, all;
    for (replication::Member one : view.sync) {
      count(one, [](wire::ClusterNode& node) { node.set_copies(node.copies() + 1); });
      if (lives(one)) living.insert(node_of(one.instance));
      synchronous.insert(node_of(one.instance));
    }
    all = synchronous;
    for (replication::Member one : view.learners) {
      count(one, [](wire::ClusterNode& node) { node.set_learns(node.learns() + 1); });
      all.insert(node_of(one.instance));
    }
    const bool led = lives(view.primary), short_of = all.size() < copies, risky = !living.empty() && living.size() < sync;
    if (living.empty()) to.set_unavailable(to.unavailable() + 1);
    else if (!led) to.set_leaderless(to.leaderless() + 1);
    if (risky) to.set_at_risk(to.at_risk() + 1);
    if (risky && synchronous.size() == 1 && view.sync.size() > 1) to.set_on_one_node(to.on_one_node() + 1);
    if (short_of) to.set_short_of_copies(to.short_of_copies() + 1);
    if (view.sync.size() + view.learners.size() > copies) to.set_moving(to.moving() + 1);
    constexpr int kNamed = 16;
    if ((living.empty() || !led || risky || short_of) && to.not_safe_size() < kNamed) to.add_not_safe(p);
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

}  // namespace zht::server

#include "zht/server/node_parts.h"

#include <algorithm>

#include "zht/server/manager_codec.h"
#include "zht/support/log.h"

// The operator's last resort: what this node has of partitions that nobody serves, and what it is told to go on with.
namespace zht::server {

using base::Code;
using base::Result;
using base::fail;

namespace {

const support::Log& recovery_logger() {
  static const support::Log log("zht.recover");
  return log;
}

void put(wire::CopyReport& to, const replication::CopyReport& one) {
  const auto millis = [](base::Duration time) {
    return static_cast<std::uint64_t>(std::max<std::int64_t>(0, std::chrono::duration_cast<std::chrono::milliseconds>(time).count()));
  };
  to.mutable_self()->set_instance(static_cast<std::uint32_t>(one.self.instance));
  to.mutable_self()->set_incarnation(one.self.incarnation);
  to.set_epoch(replication::number(one.epoch));
  to.set_follows(one.follows);
  to.set_whole(one.whole);
  to.set_since(one.origin.since);
  to.set_sure(one.origin.sure);
  to.set_end_epoch(replication::number(one.end.epoch));
  to.set_end(one.end.sequence);
  to.set_durable(one.durable);
  to.set_commit(one.commit);
  to.set_known_end(one.known_end);
  to.set_known_commit(one.known_commit);
  to.set_heard_ms(millis(one.heard));
  to.set_was_in_step(one.was_in_step);
  to.set_in_step_ms(millis(one.in_step));
}

}  // namespace

bool Node::Parts::lives(replication::Member one, base::Time now) const {
  const std::uint64_t node = node_of(one.instance);
  for (const auto& [info, lives] : cluster->nodes(now))
    if (static_cast<std::uint64_t>(info->node) == node) return lives && replication::contains(info->instances, one);
  return false;
}

// Has this node's copy lead. A person has looked at what all nodes report; what can be checked here is checked again.
Result<void> Node::Parts::take_over(const wire::TakeOver& wanted) {
  const PartitionId partition{wanted.partition()};
  if (wanted.partition() >= identity.partition_count) return fail(Code::invalid, "there are ", identity.partition_count, " partitions");
  const replication::View& view = cluster->view(partition);
  if (replication::number(view.epoch) != wanted.epoch())
    return fail(Code::conflict, "its view has changed meanwhile: epoch ", replication::number(view.epoch), " after ", wanted.epoch());
  for (replication::Member one : view.sync) {
    const std::uint64_t node = node_of(one.instance);
    const bool given_up = std::find(wanted.gone().begin(), wanted.gone().end(), node) != wanted.gone().end();
    if (lives(one, clock.now())) return fail(Code::conflict, "node ", node, " has a synchronous copy and lives");
    bool silent = true;
    for (const auto& [info, lives] : cluster->nodes(clock.now()))
      if (static_cast<std::uint64_t>(info->node) == node) silent = !lives;
    if (silent && !given_up) return fail(Code::conflict, "node ", node, " has a synchronous copy and was not given up");
  }
  const std::size_t place = wanted.instance() - first_instance(identity.number);
  if (place >= instances.size()) return fail(Code::invalid, "instance ", wanted.instance(), " is not of this node");
  Result<void> done = fail(Code::unavailable, "the instance is ending");
  instances[place]->with_instance([&](core::Instance& instance) {
    done = instance.take_over(partition, Epoch{wanted.epoch()}, {Epoch{wanted.end_epoch()}, wanted.end()});
  });
  if (done)
    recovery_logger().warn("told to lead without what other copies had", {{"partition", wanted.partition()}, {"view", replication::to_string(view)},
                                                                 {"instance", wanted.instance()}, {"end", wanted.end()}});
  return done;
}

void Node::Parts::recover(const wire::Frame& frame, std::string& out) {
  const auto answer = [&](Code code, Bytes message, Bytes body) {
    wire::encode_control(out, wire::FrameType::control_reply, wire::ControlKind::recover, frame.request, code, message, body);
  };
  wire::RecoverRequest request;
  if (!request.ParseFromArray(frame.value.data(), static_cast<int>(frame.value.size())))
    return answer(Code::invalid, "a request that cannot be read", {});
  wire::RecoverReply reply;
  reply.set_node(identity.number);
  if (request.has_keep_alone()) {
    const wire::KeepAlone& wanted = request.keep_alone();
    const auto done = cluster->keep_alone(wanted.config(), {wanted.gone().begin(), wanted.gone().end()}, clock.now());
    if (!done) return answer(done.code(), done.error().message, {});
    recovery_logger().warn("keeps alone now, without what the lost keepers knew", {{"before", wanted.config()}, {"config", cluster->config()}});
    pump_soon();
  }
  reply.set_config(cluster->config());
  for (std::uint64_t one : cluster->keepers()) reply.add_keepers(one);
  reply.set_table_version(cluster->version());
  reply.set_lost_registers(cluster->has_lost_registers());
  for (const wire::TakeOver& one : request.take_over()) {
    const auto done = take_over(one);
    if (!done) reply.add_refused("partition " + std::to_string(one.partition()) + ": " + done.error().message);
  }
  std::vector<std::uint32_t> wanted(request.partitions().begin(), request.partitions().end());
  if (wanted.empty() && request.take_over().empty())  // those that want something
    for (std::uint32_t p = 0; p < identity.partition_count; p++) {
      const replication::View& view = cluster->view(PartitionId{p});
      if (!lives(view.primary, clock.now()) || nodes_of(view.sync) < view.need) wanted.push_back(p);
    }
  std::map<std::uint32_t, wire::PartitionReport*> reports;
  for (std::uint32_t p : wanted) {
    if (p >= identity.partition_count) continue;
    wire::PartitionReport& report = *reply.add_partitions();
    report.set_partition(p);
    to_proto(*report.mutable_view(), cluster->view(PartitionId{p}));
    reports[p] = &report;
  }
  for (auto& instance : instances)
    instance->with_instance([&](core::Instance& core) {
      for (const auto& [p, report] : reports)
        put(*report->add_copies(), core.replicator().report(PartitionId{p}));
    });
  answer(Code::ok, {}, reply.SerializeAsString());
}

}  // namespace zht::server

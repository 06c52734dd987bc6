#include "zht/server/node_parts.h"

#include <algorithm>
#include <asio/post.hpp>
#include <utility>

// Partitions go elsewhere: because someone wishes it, because this node ends for a while, because it leaves.
namespace zht::server {

using base::Code;

// A wish: where the partitions named shall be led, and by that, where a copy shall be.
void Node::Parts::migrate(const wire::Frame& frame, std::string& out) {
  const auto reply = [&](Code code, Bytes message) {
    wire::encode_control(out, wire::FrameType::control_reply, wire::ControlKind::migrate, frame.request, code, message, {});
  };
  wire::MigrateRequest request;
  if (!request.ParseFromArray(frame.value.data(), static_cast<int>(frame.value.size()))) return reply(Code::invalid, "a request that cannot be read");
  const InstanceId to{request.to()};
  const auto candidates_now = cluster->candidates(clock.now());
  if (std::none_of(candidates_now.begin(), candidates_now.end(), [&](const auto& one) { return one.member.instance == to; }))
    return reply(Code::not_found, "instance " + std::to_string(request.to()) + " is not there, or has no room; see: zht members");
  for (std::uint32_t p : request.partitions()) {
    if (p >= identity.partition_count)
      return reply(Code::invalid, "partition " + std::to_string(p) + " of " + std::to_string(identity.partition_count));
    const replication::View& view = cluster->view(PartitionId{p});
    replication::Placed placed{PartitionId{p}, {to, {}}};
    for (const replication::Members* members : {&view.sync, &view.learners})
      for (replication::Member one : *members) placed.goal.members.push_back(one.instance);
    auto& members = placed.goal.members;
    if (std::find(members.begin(), members.end(), to) == members.end()) {
      // It takes the place of the copy on its own node, or of the one that leads now.
      auto place = std::find_if(members.begin(), members.end(), [&](InstanceId one) { return node_of(one) == node_of(to); });
      if (place == members.end() && members.size() >= settings.replicas) place = std::find(members.begin(), members.end(), view.primary.instance);
      if (place == members.end()) members.push_back(to);
      else *place = to;
    }
    cluster->send_goal(placed);
  }
  pump_soon();
  reply(Code::ok, {});
}

// Services first, while the instances still serve them (a mount writes back what it holds); then the partitions that others
// have copies of are handed over, so that nobody waits for this node; then everything else.
void Node::Parts::stop() {
  if (std::exchange(stopping, true)) return;
  asio::post(pool, [this] {
    services->stop_all();
    loop.post([this] {
      constexpr auto kLongestHandOver = std::chrono::seconds(8);
      cluster->set_stopping();
      hand_over_until = clock.now() + kLongestHandOver;
      loop.every(std::chrono::milliseconds(20), [this] { hand_over(); });
    });
  });
}

// Wishes every partition with a copy here onto the members elsewhere, until none is left here or it takes too long. It is a walk of
// several views (another leads, a learner becomes synchronous, the copy here goes): each time it is said to whoever leads now.
void Node::Parts::hand_over() {
  const base::Time now = clock.now();
  const auto goals = cluster->hand_over(now);
  const bool all = now >= next_goals;  // what was said may be lost
  if (all) next_goals = now + std::chrono::milliseconds(200);
  for (const replication::Placed& one : goals) {
    Epoch& said = handed_over[one.partition];
    const Epoch epoch = cluster->view(one.partition).epoch;
    if (std::exchange(said, epoch) != epoch || all) cluster->send_goal(one);
  }
  const bool decided = cluster->can_decide(now);
  if (!goals.empty() && decided && now < hand_over_until) return pump_soon();
  if (!goals.empty())
    logger().warn("not everything could be handed over" + std::string(decided ? " in time" : ": most keepers have ended or are silent"),
                  {{"partitions", goals.size()}});
  loop.stop();
}

// A node that leaves is emptied by the balancer; when nothing is left here, the others are told and it ends.
void Node::Parts::look_whether_empty() {
  if (!leaving || stopping) return;
  const std::uint32_t first = first_instance(identity.number);
  for (std::uint32_t p = 0; p < identity.partition_count; p++) {
    const replication::View& view = cluster->view(PartitionId{p});
    for (const replication::Members* members : {&view.sync, &view.learners})
      for (replication::Member one : *members)
        if (static_cast<std::uint32_t>(one.instance) - first < identity.instance_count) return;
  }
  if (!cluster->may_leave()) return;  // others are to keep first
  if (left_at == base::Time{}) {
    logger().info("emptied, leaving the cluster", {{"node", identity.number}});
    cluster->set_left();
    pump_soon();
    left_at = clock.now();
  } else if (clock.now() - left_at > std::chrono::milliseconds(500)) {  // all were told; who did not hear it, hears it from others
    stop();
  }
}

}  // namespace zht::server

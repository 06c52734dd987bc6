#include "zht/server/node_parts.h"

#include "zht/server/manager_codec.h"

// What a node's manager is asked, frame by frame.
namespace zht::server {

using base::Code;
using base::Result;

namespace {
constexpr std::size_t kMostJoining = 1000;  // at once

// What a caller must be to ask that; what is not named, any may ask.
security::Role role_for(wire::ControlKind kind) {
  switch (kind) {
    case wire::ControlKind::join:
    case wire::ControlKind::exited:
    case wire::ControlKind::claim: return security::Role::node;
    case wire::ControlKind::stop:
    case wire::ControlKind::services_changed:
    case wire::ControlKind::leave:
    case wire::ControlKind::migrate:
    case wire::ControlKind::backup:
    case wire::ControlKind::recover: return security::Role::admin;
    default: return security::Role::client;
  }
}

}  // namespace

void Node::Parts::on_frame(net::ConnectionNumber from, const wire::Frame& frame, std::string& out) {
  const auto kind = static_cast<wire::ControlKind>(frame.op);
  if (frame.type == wire::FrameType::control_request && endpoint->role(from) < role_for(kind))
    return wire::encode_control(out, wire::FrameType::control_reply, kind, frame.request, Code::invalid,
                                role_for(kind) == security::Role::node
                                    ? "only nodes of the cluster may ask that: it takes the secret itself"
                                    : "a client's key does not do for that: it takes the cluster's secret, or its admin key",
                                {});
  if (!before.empty()) return on_frame_before(frame, out);
  const auto reply = [&](Code code, Bytes message, Bytes body) {
    wire::encode_control(out, wire::FrameType::control_reply, kind, frame.request, code, message, body);
  };
  if (frame.type == wire::FrameType::goodbye) return;
  if (frame.type == wire::FrameType::manager) {
    if (frame.first != identity.cluster) return;
    const auto message = decode_manager(frame, identity.partition_count);
    if (!message) return logger().warn("a message that is not one", {{"error", message.error()}});
    const auto node = static_cast<std::uint64_t>(message->from);
    if (!cluster->belongs(message->from)) {
      if (strangers.note(node, clock.now()))
        logger().warn("refused what a node says that the cluster has not", {{"node", node}});
      return;
    }
    cluster->on_message(*message, clock.now());
    pump_soon();
    return;
  }
  if (frame.type != wire::FrameType::control_request)
    return reply(Code::invalid, "this is a node's manager; operations go to the instances its table names", {});
  switch (kind) {
    case wire::ControlKind::membership: return reply(Code::ok, {}, *table.get());
    case wire::ControlKind::status: return status(from, frame.request);
    case wire::ControlKind::stop:
      if (settings.embedded) return reply(Code::invalid, "this node is part of another program, which alone ends it", {});
      reply(Code::ok, {}, {});
      logger().info("asked to stop");
      loop.post([this] { stop(); });
      return;
    case wire::ControlKind::services_changed:
      if (settings.embedded) return reply(Code::invalid, "a node inside another program keeps no services", {});
      services->look(std::chrono::steady_clock::now());
      return reply(Code::ok, {}, {});
    case wire::ControlKind::sync: return sync(from, frame.request);
    case wire::ControlKind::join: {
      wire::JoinRequest request;
      if (tcp.empty()) return reply(Code::invalid, "this node listens on no address that others could reach; set listen", {});
      if (!request.ParseFromArray(frame.value.data(), static_cast<int>(frame.value.size())) || request.uid() == 0)
        return reply(Code::invalid, "a request to join that cannot be read", {});
      if (joining.size() >= kMostJoining)
        return reply(Code::unavailable, std::to_string(joining.size()) + " nodes join already, which is as many as may at once", {});
      joining.push_back({from, frame.request, request.uid(), clock.now() + std::chrono::seconds(10)});
      return pump_soon();
    }
    case wire::ControlKind::leave: {
      if (cluster->alone(clock.now())) return reply(Code::invalid, "this node is alone; what it holds is nowhere else", {});
      leaving = true;
      cluster->set_leaving();
      pump_soon();
      logger().info("asked to leave", {{"node", identity.number}});
      return reply(Code::ok, {}, {});
    }
    case wire::ControlKind::exited: {
      wire::ExitedRequest request;
      if (!request.ParseFromArray(frame.value.data(), static_cast<int>(frame.value.size())))
        return reply(Code::invalid, "a request that cannot be read", {});
      if (request.cluster() != identity.cluster) return reply(Code::invalid, "this node is of another cluster", {});
      if (request.node() == identity.number) return reply(Code::invalid, "this node has not ended", {});
      if (request.members_size() > static_cast<int>(kInstancesOfNode)) return reply(Code::invalid, "more instances than a node has", {});
      replication::Members members;
      for (const wire::InstanceMember& one : request.members()) members.push_back({InstanceId{one.instance()}, one.incarnation()});
      logger().warn("a node's process has ended, says its witness", {{"node", request.node()},
                                                                     {"incarnation", members.empty() ? 0 : members.front().incarnation}});
      cluster->tick(clock.now());
      cluster->ended(request.node(), members, !request.known());
      pump_soon();
      return reply(Code::ok, {}, {});
    }
    case wire::ControlKind::migrate: return migrate(frame, out);
    case wire::ControlKind::recover: return recover(frame, out);
    case wire::ControlKind::claim: return settings.in_memory ? reply(Code::unsupported, "this node keeps nothing", {}) : claim(frame, out);
    case wire::ControlKind::backup: return backup(from, frame, out);
    case wire::ControlKind::complain: break;
    case wire::ControlKind::hello:
    case wire::ControlKind::prove: return reply(Code::unsupported, "this node has no cluster secret", {});
  }
  reply(Code::unsupported, "control request " + std::to_string(frame.op) + " is not known to this build", {});
}

void Node::Parts::sync(net::ConnectionNumber to, std::uint64_t request) {
  struct Gathering {
    std::size_t left = 0;
    std::optional<Error> failed;
  };
  auto gathering = std::make_shared<Gathering>();
  gathering->left = instances.size();
  for (auto& instance : instances) {
    instance->sync([this, gathering, to, request](const Result<void>& outcome) {
      loop.post([this, gathering, to, request, outcome] {
        if (!outcome && !gathering->failed) gathering->failed = outcome.error();
        if (--gathering->left != 0 || endpoint == nullptr) return;
        std::string frame;
        wire::encode_control(frame, wire::FrameType::control_reply, wire::ControlKind::sync, request,
                             gathering->failed ? gathering->failed->code : Code::ok,
                             gathering->failed ? Bytes(gathering->failed->message) : Bytes(), {});
        endpoint->send(to, std::move(frame));
      });
    });
  }
}

}  // namespace zht::server

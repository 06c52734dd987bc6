#include "zht/server/manager_codec.h"

#include "zht/core/replication/bounds.h"
#include "zht/wire/zht.pb.h"

namespace zht::server {
namespace {

using namespace replication;
using base::Code;
using base::Result;
using base::fail;

std::uint32_t id(InstanceId value) { return static_cast<std::uint32_t>(value); }
std::uint64_t id(NodeId value) { return static_cast<std::uint64_t>(value); }

void put(wire::InstanceMember& to, Member one) {
  to.set_instance(id(one.instance));
  to.set_incarnation(one.incarnation);
}
Member get(const wire::InstanceMember& from) { return {InstanceId{from.instance()}, from.incarnation()}; }

void put(wire::Ballot& to, Ballot ballot) {
  to.set_round(ballot.round);
  to.set_node(id(ballot.node));
}
Ballot get(const wire::Ballot& from) { return {from.round(), NodeId{from.node()}}; }

void put(wire::ViewChange& to, const Change& change) {
  to.set_kind(static_cast<std::uint32_t>(change.kind));
  to.set_base(number(change.base));
  put(*to.mutable_who(), change.who);
  put(*to.mutable_target(), change.target);
  for (Member one : change.group) put(*to.add_group(), one);
  to.set_copies(change.copies);
}
Change get(const wire::ViewChange& from) {
  Change change;
  change.kind = from.kind() <= static_cast<std::uint32_t>(Change::Kind::last) ? static_cast<Change::Kind>(from.kind()) : Change::Kind::none;
  change.base = Epoch{from.base()};
  change.who = get(from.who());
  change.target = get(from.target());
  for (const auto& one : from.group()) change.group.push_back(get(one));
  change.copies = from.copies();
  return change;
}

void put(wire::KeeperMessage& to, const KeeperMessage& message) {
  to.set_kind(static_cast<std::uint32_t>(message.kind));
  to.set_partition(static_cast<std::uint32_t>(message.partition));
  to.set_epoch(number(message.epoch));
  if (message.ballot != Ballot{}) put(*to.mutable_ballot(), message.ballot);
  if (message.accepted_at != Ballot{}) put(*to.mutable_accepted_at(), message.accepted_at);
  if (message.view) to_proto(*to.mutable_view(), *message.view);
  to.set_config(message.config);
  if (message.kind == KeeperMessage::Kind::change) put(*to.mutable_change(), message.change);
}

bool get(const wire::KeeperMessage& from, KeeperMessage& message) {
  if (from.kind() > static_cast<std::uint32_t>(KeeperMessage::Kind::last)) return false;
  message.kind = static_cast<KeeperMessage::Kind>(from.kind());
  message.partition = PartitionId{from.partition()};
  message.epoch = Epoch{from.epoch()};
  message.ballot = get(from.ballot());
  message.accepted_at = get(from.accepted_at());
  if (from.has_view()) message.view = from_proto(from.view());
  message.config = from.config();
  if (from.has_change()) message.change = get(from.change());
  return true;
}

void put(wire::Sighting& to, Sighting one) {
  to.set_incarnation(one.incarnation);
  to.set_mark(one.mark);
}
Sighting get(const wire::Sighting& from) { return {from.incarnation(), from.mark()}; }

void put(wire::NodeInfo& to, const NodeInfo& info) {
  to.set_node(id(info.node));
  to.set_heartbeat(info.heartbeat);
  for (Member one : info.instances) put(*to.add_instances(), one);
  to.set_rack(info.rack);
  to.set_room(info.room);
  to.set_leaving(info.leaving);
  to.set_about(info.about);
  to.set_stopping(info.stopping);
  to.set_lost_registers(info.lost_registers);
  if (info.sighting.incarnation != 0) put(*to.mutable_sighting(), info.sighting);
}
NodeInfo get(const wire::NodeInfo& from) {
  NodeInfo info;
  info.node = NodeId{from.node()};
  info.heartbeat = from.heartbeat();
  for (const auto& one : from.instances()) info.instances.push_back(get(one));
  info.rack = from.rack();
  info.room = from.room();
  info.leaving = from.leaving();
  info.about = from.about();
  info.stopping = from.stopping();
  info.lost_registers = from.lost_registers();
  info.sighting = get(from.sighting());
  return info;
}

}  // namespace

void to_proto(wire::ReplicaView& to, const View& view) {
  to.set_epoch(number(view.epoch));
  put(*to.mutable_primary(), view.primary);
  for (Member one : view.sync) put(*to.add_sync(), one);
  for (Member one : view.learners) put(*to.add_learners(), one);
  to.set_need(view.need);
}

View from_proto(const wire::ReplicaView& from) {
  View view;
  view.epoch = Epoch{from.epoch()};
  view.primary = get(from.primary());
  for (const auto& one : from.sync()) view.sync.push_back(get(one));
  for (const auto& one : from.learners()) view.learners.push_back(get(one));
  view.need = from.need();
  return view;
}

void encode_manager(std::string& out, const ManagerMessage& message, std::uint64_t cluster) {
  wire::ManagerMessage proto;
  proto.set_from(id(message.from));
  proto.set_to(id(message.to));
  for (const KeeperMessage& one : message.keeper) put(*proto.add_keeper(), one);
  for (const ViewNews& one : message.views) {
    auto* news = proto.add_views();
    news->set_partition(static_cast<std::uint32_t>(one.partition));
    to_proto(*news->mutable_view(), one.view);
  }
  for (const Placed& one : message.goals) {
    auto* goal = proto.add_goals();
    goal->set_partition(static_cast<std::uint32_t>(one.partition));
    goal->set_primary(id(one.goal.primary));
    for (InstanceId member : one.goal.members) goal->add_members(id(member));
  }
  for (const NodeInfo& one : message.nodes) put(*proto.add_nodes(), one);
  proto.set_digest(message.digest);
  for (Epoch one : message.epochs) proto.add_epochs(number(one));
  proto.set_answer_epochs(message.answer_epochs);
  proto.set_config(message.config);
  for (NodeId one : message.keepers) proto.add_keepers(id(one));
  for (const Register& one : message.install) {
    auto* to = proto.add_install();
    to_proto(*to->mutable_current(), one.current);
    put(*to->mutable_promised(), one.promised);
    put(*to->mutable_accepted_at(), one.accepted_at);
    if (one.accepted) to_proto(*to->mutable_accepted(), *one.accepted);
  }
  proto.set_installed(message.installed);
  proto.set_asks_keepers(message.asks_keepers);
  proto.set_life(message.life);
  if (message.seen) put(*proto.mutable_seen(), *message.seen);
  proto.set_checked(message.checked);
  proto.set_answers(message.answers);
  proto.set_folder(static_cast<std::uint32_t>(message.folder));
  const std::size_t start = wire::begin_node_frame(out, wire::FrameType::manager, cluster);
  proto.AppendToString(&out);
  wire::end_node_frame(out, start);
}

Result<ManagerMessage> decode_manager(const wire::Frame& frame, std::uint32_t partitions) {
  wire::ManagerMessage proto;
  if (!proto.ParseFromArray(frame.value.data(), static_cast<int>(frame.value.size())))
    return fail(Code::invalid, "a message between managers of ", frame.value.size(), " bytes is not one");
  ManagerMessage message;
  message.from = NodeId{proto.from()};
  message.to = NodeId{proto.to()};
  for (const auto& one : proto.keeper()) {
    KeeperMessage& read = message.keeper.emplace_back();
    if (!get(one, read)) return fail(Code::unsupported, "a keeper's message of kind ", one.kind(), " is not known to this build");
  }
  for (const auto& one : proto.views()) message.views.push_back({PartitionId{one.partition()}, from_proto(one.view())});
  for (const auto& one : proto.goals()) {
    Placed& placed = message.goals.emplace_back();
    placed.partition = PartitionId{one.partition()};
    placed.goal.primary = InstanceId{one.primary()};
    for (std::uint32_t member : one.members()) placed.goal.members.push_back(InstanceId{member});
  }
  for (const auto& one : proto.nodes()) message.nodes.push_back(get(one));
  message.digest = proto.digest();
  for (std::uint64_t one : proto.epochs()) message.epochs.push_back(Epoch{one});
  message.answer_epochs = proto.answer_epochs();
  message.config = proto.config();
  for (std::uint64_t one : proto.keepers()) message.keepers.push_back(NodeId{one});
  for (const auto& one : proto.install()) {
    Register& state = message.install.emplace_back();
    state.current = from_proto(one.current());
    state.promised = get(one.promised());
    state.accepted_at = get(one.accepted_at());
    if (one.has_accepted()) state.accepted = from_proto(one.accepted());
  }
  message.installed = proto.installed();
  message.asks_keepers = proto.asks_keepers();
  message.life = proto.life();
  if (proto.has_seen()) message.seen = get(proto.seen());
  message.checked = proto.checked();
  message.answers = proto.answers();
  message.folder = proto.folder() <= static_cast<std::uint32_t>(Folder::last) ? static_cast<Folder>(proto.folder()) : Folder::unknown;
  if (auto checked = check(message, partitions); !checked) return base::add_context("a message between managers", std::move(checked).error());
  return message;
}

}  // namespace zht::server

#include "zht/core/replication/bounds.h"

namespace zht::replication {
namespace {

std::uint32_t id(PartitionId partition) { return static_cast<std::uint32_t>(partition); }

Result<void> check_partition(PartitionId partition, std::uint32_t count) {
  if (id(partition) >= count) return base::fail(Code::invalid, "partition ", id(partition), " of ", count);
  return {};
}

// Of what is counted one by one.
Result<void> check_numbers(const char* what, std::initializer_list<std::uint64_t> all) {
  for (const std::uint64_t one : all)
    if (one > kLastNumber) return base::fail(Code::invalid, what, " ", one, " is past ", kLastNumber);
  return {};
}

Result<void> check_epoch(Epoch epoch) { return check_numbers("epoch", {number(epoch)}); }
Result<void> check_position(Position at) { return check_numbers("a place in a log at", {number(at.epoch), at.sequence}); }

Result<void> check_count(const char* what, std::size_t count, std::size_t most) {
  if (count > most) return base::fail(Code::invalid, count, " ", what, ", the limit is ", most);
  return {};
}

// Its entries follow `previous` one after the other, and none is of a later epoch than the view in which it is sent.
Result<void> check_append(const Append& one) {
  TRY(check_epoch(one.epoch));
  TRY(check_position(one.previous));
  TRY(check_position(one.takeover));
  TRY(check_numbers("sequence", {one.end, one.commit}));
  Position before = one.previous;
  for (const EntryPtr& entry : one.entries) {
    if (entry->at.sequence != before.sequence + 1 || entry->at.epoch < before.epoch || entry->at.epoch > one.epoch)
      return base::fail(Code::invalid, "entry ", entry->at.sequence, " of epoch ", number(entry->at.epoch), " after ", before.sequence, " of epoch ",
                        number(before.epoch), ", sent in epoch ", number(one.epoch));
    before = entry->at;
  }
  return check_position(before);
}

Result<void> check_ballot(const Ballot& ballot) { return check_numbers("round", {ballot.round}); }

Result<void> check_change(const Change& change) {
  TRY(check_epoch(change.base));
  return check_count("members of a group", change.group.size(), kMostMembers);
}

Result<void> check_keeper_message(const KeeperMessage& one, std::uint32_t partitions) {
  TRY(check_partition(one.partition, partitions + 2));  // and the registers of numbers and of keepers
  TRY(check_epoch(one.epoch));
  TRY(check_ballot(one.ballot));
  TRY(check_ballot(one.accepted_at));
  TRY(check_change(one.change));
  TRY(check_numbers("configuration", {one.config}));
  return one.view ? check_view(*one.view) : Result<void>{};
}

Result<void> check_node(const NodeInfo& info) {
  TRY(check_numbers("heartbeat", {info.heartbeat}));
  TRY(check_numbers("configuration", {info.lost_registers}));
  TRY(check_numbers("sighting", {info.sighting.incarnation, info.sighting.mark}));
  TRY(check_count("bytes that a node tells of itself", info.about.size(), kMostAbout));
  return check_count("instances of a node", info.instances.size(), kMostInstancesOfNode);
}

}  // namespace

Result<void> check_view(const View& view) {
  TRY(check_epoch(view.epoch));
  TRY(check_count("members of a view", view.sync.size() + view.learners.size(), kMostMembers));
  TRY(check_numbers("copies that are needed,", {view.need}));
  TRY(check_count("copies needed", view.need, kMostMembers));
  if (view.epoch != Epoch{0} && !contains(view.sync, view.primary))
    return base::fail(Code::invalid, "view ", to_string(view), ": its primary is not synchronous in it");
  if (view.epoch == Epoch{0} && view.sync.size() + view.learners.size() > 0) return base::fail(Code::invalid, "a view of epoch 0 with members");
  std::vector<InstanceId> seen;
  for (const Members* members : {&view.sync, &view.learners})
    for (Member one : *members) {
      if (std::find(seen.begin(), seen.end(), one.instance) != seen.end())
        return base::fail(Code::invalid, "view ", to_string(view), ": instance ", static_cast<std::uint32_t>(one.instance), " is in it twice");
      seen.push_back(one.instance);
    }
  return {};
}

Result<void> check(const Register& state) {
  TRY(check_view(state.current));
  TRY(check_ballot(state.promised));
  TRY(check_ballot(state.accepted_at));
  return state.accepted ? check_view(*state.accepted) : Result<void>{};
}

Result<void> check(const PeerMessage& message, std::uint32_t partitions) {
  TRY(check_count("departures", message.departures.size(), partitions));
  TRY(check_numbers("generation", {message.seen, message.generation}));
  for (const Departure& one : message.departures) {
    TRY(check_partition(one.partition, partitions));
    TRY(check_epoch(one.epoch));
    TRY(check_numbers("generation", {one.generation}));
  }
  for (const Append& one : message.appends) {
    TRY(check_partition(one.partition, partitions));
    TRY(check_append(one));
  }
  for (const Ack& one : message.acks) {
    TRY(check_partition(one.partition, partitions));
    TRY(check_epoch(one.epoch));
    TRY(check_position(one.hint));
    TRY(check_numbers("sequence", {one.match, one.commit, one.floor, one.snapshot}));
  }
  for (const SnapshotPiece& one : message.pieces) {
    TRY(check_partition(one.partition, partitions));
    TRY(check_epoch(one.epoch));
    TRY(check_position(one.at));
    TRY(check_numbers("piece", {one.id, one.index}));
  }
  for (const SnapshotAck& one : message.piece_acks) {
    TRY(check_partition(one.partition, partitions));
    TRY(check_epoch(one.epoch));
    TRY(check_numbers("piece", {one.id, one.next}));
  }
  for (const Standing& one : message.standings) {
    TRY(check_partition(one.partition, partitions));
    TRY(check_position(one.end));
  }
  for (const ViewNews& one : message.views) {
    TRY(check_partition(one.partition, partitions));
    TRY(check_view(one.view));
  }
  return {};
}

Result<void> check(const ManagerMessage& message, std::uint32_t partitions) {
  TRY(check_numbers("life", {message.life, message.checked, message.answers}));
  if (message.seen) TRY(check_numbers("sighting", {message.seen->incarnation, message.seen->mark}));
  for (const KeeperMessage& one : message.keeper) TRY(check_keeper_message(one, partitions));
  for (const ViewNews& one : message.views) {
    TRY(check_partition(one.partition, partitions + 1));  // and the register of numbers
    TRY(check_view(one.view));
  }
  TRY(check_count("goals", message.goals.size(), std::size_t{4} * partitions));
  for (const Placed& one : message.goals) {
    TRY(check_partition(one.partition, partitions));
    TRY(check_count("members of a goal", one.goal.members.size(), kMostMembers));
  }
  TRY(check_count("nodes", message.nodes.size(), kMostNodes));
  for (const NodeInfo& one : message.nodes) TRY(check_node(one));
  TRY(check_count("epochs", message.epochs.size(), std::size_t{partitions} + 1));
  for (Epoch one : message.epochs) TRY(check_epoch(one));
  TRY(check_numbers("configuration", {message.config}));
  TRY(check_count("keepers", message.keepers.size(), kMostMembers));
  TRY(check_count("registers", message.install.size(), std::size_t{partitions} + 3));
  for (const Register& one : message.install) TRY(check(one));
  return {};
}

}  // namespace zht::replication

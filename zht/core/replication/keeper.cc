#include "zht/core/replication/keeper.h"

#include <algorithm>

#include "zht/core/replication/bounds.h"

namespace zht::replication {
namespace {

using Kind = KeeperMessage::Kind;

constexpr char kSynced[] = "synced";  // no partition's key: those have four bytes

std::string key_of(PartitionId partition) {
  std::string key;
  base::Writer(key).u32(static_cast<std::uint32_t>(partition));
  return key;
}

void encode(std::string& out, const Register& state) {
  encode(out, state.current);
  base::Writer writer(out);
  for (const Ballot& ballot : {state.promised, state.accepted_at}) {
    writer.u64(ballot.round);
    writer.u64(static_cast<std::uint64_t>(ballot.node));
  }
  writer.u8(state.accepted ? 1 : 0);
  if (state.accepted) encode(out, *state.accepted);
}

// Rounds grow one by one while an epoch is being decided: nobody is this far ahead.
bool is_near(const Ballot& ballot, const Ballot& known) { return ballot.round <= known.round + (std::uint64_t{1} << 20); }

Ballot decode_ballot(base::Reader& reader) {
  const std::uint64_t round = reader.u64();
  return {round, NodeId{reader.u64()}};
}

Result<Register> decode_register(Bytes bytes) {
  base::Reader reader(bytes);
  Register state;
  state.current = decode_view(reader);
  state.promised = decode_ballot(reader);
  state.accepted_at = decode_ballot(reader);
  if (reader.u8() != 0) state.accepted = decode_view(reader);
  if (!reader.done()) return base::fail(Code::corrupt, "a keeper's register of ", bytes.size(), " bytes is not one");
  if (const auto checked = check(state); !checked) return base::fail(Code::corrupt, "a keeper's register: ", checked.error().message);
  return state;
}

}  // namespace

Result<void> StoredRegisters::save(std::span<const Item> items) {
  std::string value;
  for (const Item& item : items) {
    value.clear();
    encode(value, *item.state);
    TRY(store_.apply(table_, std::array{novoht::Change::insert(key_of(item.partition), value)}));
  }
  TRY(store_.sync());
  // A record that says, by being there, that those before are durable. Without it a promise that rots would be taken for one that
  // was being written when the process ended: cut off, and never missed.
  TRY(store_.apply(table_, std::array{novoht::Change::insert(kSynced, "")}));
  return store_.flush();
}

Result<void> StoredRegisters::load(std::vector<Register>& registers) const {
  for (std::uint32_t p = 0; p < registers.size(); p++) {
    const auto found = store_.lookup(table_, key_of(PartitionId{p}));
    if (!found) continue;
    std::string value;
    TRY(found->read(0, found->size(), value));
    auto state = decode_register(value);
    if (!state) return base::add_context("partition " + std::to_string(p), std::move(state).error());
    registers[p] = *std::move(state);
  }
  return {};
}

Keeper::Keeper(KeeperOptions options, std::vector<Register> registers, RegisterStore& store, std::uint64_t seed)
    : options_(std::move(options)), registers_(std::move(registers)), store_(store), random_(seed) {
  CHECK(std::find(options_.keepers.begin(), options_.keepers.end(), options_.self) != options_.keepers.end());
}

void Keeper::on(NodeId from, std::span<const KeeperMessage> messages, base::Time now) {
  if (failed_) return;
  for (const KeeperMessage& message : messages)
    if (static_cast<std::uint32_t>(message.partition) < registers_.size() && is_ours(from, message)) on(from, message, now);
}

bool Keeper::is_ours(NodeId from, const KeeperMessage& message) {
  if (message.kind == Kind::change || message.kind == Kind::ask || message.kind == Kind::view) return true;
  if (message.config == options_.config) return true;
  const PartitionId who_keeps{options_.partitions + 1};
  if (static_cast<std::uint32_t>(who_keeps) >= registers_.size()) return false;
  if (message.config < options_.config) {
    tell(from, who_keeps);
  } else {
    KeeperMessage ask = about(Kind::ask, who_keeps);
    ask.epoch = at(who_keeps).current.epoch;
    send(from, std::move(ask));
  }
  return false;
}

void Keeper::on(NodeId from, const KeeperMessage& message, base::Time now) {
  switch (message.kind) {
    case Kind::change: return on_change(from, message, now);
    case Kind::ask:
      if (message.epoch < at(message.partition).current.epoch) tell(from, message.partition);
      return;
    case Kind::view:
      if (message.view) learn(message.partition, *message.view);
      return;
    case Kind::prepare: return on_prepare(from, message);
    case Kind::promise: return on_promise(from, message, now);
    case Kind::refuse: return on_refuse(message, now);
    case Kind::accept: return on_accept(from, message);
    case Kind::accepted: return on_accepted(from, message);
  }
}

void Keeper::on_change(NodeId from, const KeeperMessage& message, base::Time now) {
  const Register& state = at(message.partition);
  if (message.change.base > state.current.epoch) {
    KeeperMessage ask = about(Kind::ask, message.partition);
    ask.epoch = state.current.epoch;
    return send(from, std::move(ask));
  }
  const bool settles = message.change.kind == Change::Kind::settle && message.change.base == state.current.epoch;
  if (!settles && !next_of(message.partition, message.change)) return tell(from, message.partition);
  // One at a time: whoever wished for another change will wish again, for the view that comes of this one.
  const auto found = proposals_.find(static_cast<std::uint32_t>(message.partition));
  if (found == proposals_.end()) propose(message.partition, message.change, now, now);
  else if (found->second.change.kind == Change::Kind::settle) found->second.change = message.change;
}

void Keeper::propose(PartitionId partition, const Change& change, base::Time begun, base::Time now) {
  const auto number = static_cast<std::uint32_t>(partition);
  const Register& state = at(partition);
  std::uint64_t& round = rounds_[number];
  round = std::max(round, state.promised.round) + 1;
  Proposal& proposal = proposals_[number] = {};
  proposal.change = change;
  proposal.epoch = next(state.current.epoch);
  proposal.ballot = {round, options_.self};
  proposal.begun = begun;
  say(partition, proposal, now);
}

// To those who have not answered. With the same ballot, however long they take: where a message and a sync take longer than any
// patience here, ballot after ballot would come too early for the one before, and nothing would ever be decided.
void Keeper::say(PartitionId partition, Proposal& proposal, base::Time now) {
  KeeperMessage message = about(proposal.phase == Proposal::Phase::prepare ? Kind::prepare : Kind::accept, partition);
  message.ballot = proposal.ballot;
  message.view = proposal.value;
  for (NodeId keeper : options_.keepers)
    if (!proposal.votes.contains(keeper)) send(keeper, message);
  const base::Duration wait = options_.retry * (1u << std::min(proposal.said++, 2u));
  proposal.deadline = now + wait + base::Duration(random_.below(2 * static_cast<std::uint64_t>(wait.count())));
}

// Another keeper proposes too: it is let finish, for about as long as that seems to take here.
void Keeper::on_refuse(const KeeperMessage& message, base::Time now) {
  const auto number = static_cast<std::uint32_t>(message.partition);
  if (!is_near(message.ballot, at(message.partition).promised)) return;
  std::uint64_t& round = rounds_[number];
  round = std::max(round, message.ballot.round);
  const auto found = proposals_.find(number);
  if (found == proposals_.end() || found->second.epoch != message.epoch || found->second.ballot >= message.ballot) return;
  Proposal& proposal = found->second;
  if (std::exchange(proposal.refused, true)) return;
  const auto tried = static_cast<std::uint64_t>(std::max(now - proposal.begun, options_.retry).count());
  proposal.deadline = now + base::Duration(random_.below(2 * tried));
}

void Keeper::on_prepare(NodeId from, const KeeperMessage& message) {
  if (!is_open(from, message)) return;
  Register& state = at(message.partition);
  if (!is_near(message.ballot, state.promised)) return;
  const bool yes = message.ballot >= state.promised;
  if (message.ballot > state.promised) {
    state.promised = message.ballot;
    dirty_.insert(message.partition);
  }
  KeeperMessage answer = about(yes ? Kind::promise : Kind::refuse, message.partition);
  answer.ballot = state.promised;
  answer.accepted_at = state.accepted_at;
  answer.view = state.accepted;
  send(from, std::move(answer));
}

void Keeper::on_promise(NodeId from, const KeeperMessage& message, base::Time now) {
  Proposal* const proposal = proposal_of(message, Proposal::Phase::prepare);
  if (proposal == nullptr) return;
  if (message.view && message.view->epoch == message.epoch && message.accepted_at > proposal->best_at) {
    proposal->best_at = message.accepted_at;
    proposal->best = message.view;
  }
  proposal->votes.insert(from);
  if (!is_majority(proposal->votes)) return;
  // What may have been decided must be decided again; only where nothing was is the wish free.
  proposal->value = proposal->best ? proposal->best : next_of(message.partition, proposal->change);
  if (!proposal->value) {
    CHECK(proposal->change.kind == Change::Kind::settle, "the register has not moved since the change was checked");
    proposals_.erase(static_cast<std::uint32_t>(message.partition));
    return;
  }
  proposal->phase = Proposal::Phase::accept;
  proposal->votes.clear();
  proposal->said = 0;
  say(message.partition, *proposal, now);
}

void Keeper::on_accept(NodeId from, const KeeperMessage& message) {
  if (!message.view || message.view->epoch != message.epoch || !is_open(from, message)) return;
  Register& state = at(message.partition);
  if (!is_near(message.ballot, state.promised)) return;
  if (message.ballot < state.promised) {
    KeeperMessage refusal = about(Kind::refuse, message.partition);
    refusal.ballot = state.promised;
    return send(from, std::move(refusal));
  }
  state.promised = state.accepted_at = message.ballot;
  state.accepted = message.view;
  dirty_.insert(message.partition);
  KeeperMessage answer = about(Kind::accepted, message.partition);
  answer.ballot = message.ballot;
  send(from, std::move(answer));
}

void Keeper::on_accepted(NodeId from, const KeeperMessage& message) {
  Proposal* const proposal = proposal_of(message, Proposal::Phase::accept);
  if (proposal == nullptr) return;
  proposal->votes.insert(from);
  if (!is_majority(proposal->votes)) return;
  const View decided = *proposal->value;
  learn(message.partition, decided);
  for (NodeId keeper : options_.keepers)
    if (keeper != options_.self) tell(keeper, message.partition);
}

bool Keeper::is_open(NodeId from, const KeeperMessage& message) {
  const Epoch open = next(at(message.partition).current.epoch);
  if (message.epoch < open) tell(from, message.partition);
  if (message.epoch > open) {
    KeeperMessage ask = about(Kind::ask, message.partition);
    ask.epoch = at(message.partition).current.epoch;
    send(from, std::move(ask));
  }
  return message.epoch == open;
}

std::optional<View> Keeper::next_of(PartitionId partition, const Change& change) const {
  const View& current = at(partition).current;
  if (static_cast<std::uint32_t>(partition) == options_.partitions) return next_enrolment(current, change);
  if (static_cast<std::uint32_t>(partition) == options_.partitions + 1) return next_keepers(current, change);
  return next_view(current, change, options_.defects);
}

Keeper::Proposal* Keeper::proposal_of(const KeeperMessage& message, Proposal::Phase phase) {
  const auto found = proposals_.find(static_cast<std::uint32_t>(message.partition));
  if (found == proposals_.end()) return nullptr;
  Proposal& proposal = found->second;
  const bool same = proposal.epoch == message.epoch && proposal.ballot == message.ballot && proposal.phase == phase;
  return same ? &proposal : nullptr;
}

void Keeper::learn(PartitionId partition, const View& view) {
  Register& state = at(partition);
  if (!may_follow(state.current.epoch, view.epoch)) return;
  state = {view, {}, {}, {}};
  dirty_.insert(partition);
  rounds_.erase(static_cast<std::uint32_t>(partition));
  proposals_.erase(static_cast<std::uint32_t>(partition));
  news_.push_back(partition);
}

void Keeper::tick(base::Time now) {
  if (failed_) return;
  std::vector<std::uint32_t> again;
  for (const auto& [partition, proposal] : proposals_)
    if (now >= proposal.deadline) again.push_back(partition);
  std::sort(again.begin(), again.end());
  for (std::uint32_t partition : again) {
    Proposal& proposal = proposals_[partition];
    if (proposal.refused) propose(PartitionId{partition}, Change(proposal.change), proposal.begun, now);
    else say(PartitionId{partition}, proposal, now);
  }
}

Result<std::vector<KeeperSend>> Keeper::end_round(base::Time now) {
  if (failed_) return *failed_;
  std::vector<KeeperSend> out;
  // What a keeper says to itself is heard at once, though never before it is durable.
  while (!dirty_.empty() || !sends_.empty()) {
    std::vector<RegisterStore::Item> items;
    for (PartitionId partition : dirty_) items.push_back({partition, &at(partition)});
    dirty_.clear();
    if (!items.empty() && !failed_)
      if (auto saved = store_.save(items); !saved) failed_ = std::move(saved).error();
    if (failed_) return *failed_;
    std::map<NodeId, std::vector<KeeperMessage>> sends = std::exchange(sends_, {});
    for (auto& [to, messages] : sends)
      if (to != options_.self) out.push_back({to, std::move(messages)});
    if (const auto own = sends.find(options_.self); own != sends.end()) on(options_.self, own->second, now);
  }
  return out;
}

void Keeper::tell(NodeId to, PartitionId partition) {
  KeeperMessage message = about(Kind::view, partition);
  message.view = at(partition).current;
  message.epoch = message.view->epoch;
  send(to, std::move(message));
}

KeeperMessage Keeper::about(Kind kind, PartitionId partition) const {
  KeeperMessage message;
  message.kind = kind;
  message.partition = partition;
  message.epoch = next(at(partition).current.epoch);
  message.config = options_.config;
  return message;
}

}  // namespace zht::replication

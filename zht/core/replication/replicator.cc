#include "zht/core/replication/replicator.h"

namespace zht::replication {

Replicator::Replicator(ReplicatorOptions options, ReplicaStore& store)
    : self_(options.self), timing_(options.timing), store_(store), defects_(options.defects), observer_(options.observer),
      replicas_(options.partitions), home_(std::move(options.home)) {
  CHECK(timing_.grace > timing_.lease, "a follower must be silent for longer than a lease lasts");
}

Replica* Replicator::find(PartitionId partition) {
  const auto number = static_cast<std::uint32_t>(partition);
  if (number >= replicas_.size() || !replicas_[number].replica) return nullptr;
  activate(partition, replicas_[number]);
  return replicas_[number].replica.get();
}

Replica* Replicator::look(PartitionId partition) const {
  const auto number = static_cast<std::uint32_t>(partition);
  return number < replicas_.size() ? replicas_[number].replica.get() : nullptr;
}

Replica& Replicator::get(PartitionId partition) {
  const auto number = static_cast<std::uint32_t>(partition);
  CHECK(has(partition));
  Slot& slot = replicas_[number];
  if (!slot.replica) {
    slot.replica = std::make_unique<Replica>(*this, partition);
    partitions_.push_back(partition);
  }
  activate(partition, slot);
  return *slot.replica;
}

void Replicator::activate(PartitionId partition, Slot& slot) {
  if (slot.active) return;
  slot.active = true;
  active_.push_back(partition);
}

void Replicator::adopt(PartitionId partition, const View& view) {
  if (failed_ || !has(partition)) return;
  Replica* const known = find(partition);
  if (known == nullptr && !member_at(view, self_.instance)) return;
  get(partition).adopt(view);
  neighbors_known_ = false;
}

// Every replica may have something to do now.
void Replicator::wake_all() {
  for (PartitionId partition : partitions_) activate(partition, replicas_[static_cast<std::uint32_t>(partition)]);
}

void Replicator::set_candidates(std::vector<Candidate> candidates) {
  if (candidates == candidates_) return;
  candidates_ = std::move(candidates);
  sites_version_++;
  wake_all();
}

void Replicator::set_sites(std::map<InstanceId, Site> sites) {
  if (sites == sites_) return;
  sites_ = std::move(sites);
  sites_version_++;
  wake_all();
}

void Replicator::set_goal(PartitionId partition, Goal goal) {
  if (Replica* const replica = find(partition); replica != nullptr && replica->role() == Replica::Role::primary)
    replica->set_goal(std::move(goal));
}

CopyReport Replicator::report(PartitionId partition) const {
  if (const Replica* const replica = look(partition)) return replica->report();
  CopyReport none;
  none.self = self_;
  none.origin = store_.origin(partition);
  return none;
}

Result<void> Replicator::take_over(PartitionId partition, const View& view, Epoch epoch, Position end) {
  if (failed_) return base::fail(Code::io, "its store failed");
  if (!has(partition)) return base::fail(Code::invalid, "partition ", static_cast<std::uint32_t>(partition), " of ", replicas_.size());
  Replica& replica = get(partition);
  replica.adopt(view);
  neighbors_known_ = false;
  return replica.take_over(epoch, end);
}

void Replicator::distrust() {
  for (PartitionId partition : partitions_) get(partition).distrust();
}

Figures Replicator::figures() const {
  Figures figures;
  for (PartitionId partition : partitions_) replicas_[static_cast<std::uint32_t>(partition)].replica->add_to(figures);
  figures.uncommitted_bytes = tails_.uncommitted;
  return figures;
}

PeerMessage& Replicator::message_to(InstanceId peer) {
  PeerMessage& message = messages_[peer];
  message.from = self_;
  message.to = peer;
  return message;
}

Site Replicator::site_of(InstanceId instance) const {
  const auto found = sites_.find(instance);
  if (found != sites_.end()) return found->second;
  return {home_ ? home_(instance) : ~std::uint64_t{0} - static_cast<std::uint32_t>(instance), 0};
}

// Each life of an instance has one. Of those that were not heard for longest nothing need be known.
Channel& Replicator::channel_of(Member peer) {
  constexpr std::size_t kMostChannels = 10'000;
  const auto earlier = [](const auto& a, const auto& b) { return a.second.heard() < b.second.heard(); };
  if (channels_.size() >= kMostChannels && !channels_.contains(peer))
    channels_.erase(std::min_element(channels_.begin(), channels_.end(), earlier));
  return channels_[peer];
}

void Replicator::on_message(const PeerMessage& message) {
  if (failed_ || message.to != self_.instance || message.from.instance == self_.instance) return;
  Channel& channel = channel_of(message.from);
  if (channel.hear(now_, timing_.drop + channel.leisure(now_, beat()))) note_mistake();
  // A beacon that was never sent is not answered: a lease on it would last until then.
  const bool answers = message.answered != base::Time{} && message.answering == self_ && message.answered <= last_beacon_;
  if (answers && channel.unsteady() == now_) keep_mistakes();  // it is one that should be heard with every beacon
  if (message.beacon != base::Time{}) {
    channel.on_beacon(message.beacon, message.seen, now_);
    answer_due_ = true;
  }
  if (answers) {
    channel.measure(message.answered, now_);
    channel.on_answer(message.answered, message.generation, message.departures);
    for (const Departure& one : message.departures) (void)find(one.partition);
  }
  for (const ViewNews& one : message.views) {
    if (find(one.partition) != nullptr) news_.push_back(one);
    adopt(one.partition, one.view);
    if (Replica* const replica = find(one.partition)) replica->on_view_of(message.from, one.view);
  }
  for (const Append& one : message.appends)
    if (has(one.partition)) get(one.partition).on_append(message.from, one);
  for (const Ack& one : message.acks)
    if (Replica* const replica = find(one.partition)) replica->on_ack(message.from, one);
  for (const SnapshotPiece& one : message.pieces)
    if (has(one.partition)) get(one.partition).on_piece(message.from, one);
  for (const SnapshotAck& one : message.piece_acks)
    if (Replica* const replica = find(one.partition)) replica->on_piece_ack(message.from, one);
  for (const Standing& one : message.standings)
    if (Replica* const replica = find(one.partition)) replica->on_standing(message.from, one);
}

int Replicator::mistakes() const {
  const auto steps = (now_ - mistaken_at_) / std::chrono::seconds(10);
  return steps >= mistakes_ ? 0 : mistakes_ - static_cast<int>(steps);
}

void Replicator::note_mistake() {
  constexpr int kMost = 2;
  mistakes_ = std::min(mistakes() + 1, kMost);
  mistaken_at_ = now_;
}

// It would be one again, were nothing remembered.
void Replicator::keep_mistakes() {
  mistakes_ = mistakes();
  if (mistakes_ > 0) mistaken_at_ = now_;
}

// Who was stopped, or did not come to run, has heard nobody: that is not to be laid to the others.
void Replicator::excuse_silence() {
  const base::Duration passed = ticked_ == base::Time{} ? base::Duration{} : now_ - ticked_;
  ticked_ = now_;
  const base::Duration missed = passed - (restless_.empty() ? 3 : 2) * timing_.beacon;  // see next_due()
  if (missed <= base::Duration{} || (neighbors_known_ && neighbors_.empty())) return;
  for (auto& [peer, channel] : channels_) channel.excuse(missed, now_);
  for (PartitionId partition : partitions_) replicas_[static_cast<std::uint32_t>(partition)].replica->excuse(missed);
}

void Replicator::find_neighbors() {
  neighbors_.clear();
  for (PartitionId partition : partitions_) {
    const Replica& replica = at(partition);
    const Replica::Role role = replica.role();
    for (Member one : replica.peers()) {
      Neighbor& neighbor = neighbors_[one];
      neighbor.follows = true;
      neighbor.partitions.push_back(partition);
    }
    if (role == Replica::Role::sync || role == Replica::Role::learner) neighbors_[replica.view().primary].partitions.push_back(partition);
  }
  for (auto& [peer, channel] : channels_) channel.end_beacons();
  for (const auto& [peer, neighbor] : neighbors_)
    if (neighbor.follows) channels_[peer].begin_beacons();
  neighbors_known_ = true;
  next_silence_ = next_beacon_ = {};
}

// Silence is seen here, for all partitions that are shared with a neighbor together: those that have to do with one that says nothing
// are looked at at every tick, and the others at none.
void Replicator::look_for_silence() {
  if (!neighbors_known_) find_neighbors();
  if (now_ < next_silence_) return;
  const base::Duration shortest = std::min(timing_.drop, timing_.grace);
  next_silence_ = base::Time::max();
  for (const auto& [peer, neighbor] : neighbors_) {
    const Channel& channel = channels_[peer];
    const base::Time suspicious = channel.heard() + shortest + channel.leisure(now_, beat());
    next_silence_ = std::min(next_silence_, suspicious);
    if (now_ < suspicious) continue;
    for (PartitionId partition : neighbor.partitions) activate(partition, replicas_[static_cast<std::uint32_t>(partition)]);
  }
}

base::Time Replicator::next_due() const {
  if (failed_) return next_farewell_;
  if (!active_.empty() || !restless_.empty() || !neighbors_known_ || beacon_wanted_ || !is_idle()) return {};
  if (neighbors_.empty()) return base::Time::max();
  // Not much later than the last tick: who was stopped tells that by the time that has passed since.
  return std::min({next_silence_, next_beacon_, ticked_ + 2 * timing_.beacon});
}

void Replicator::tick() {
  excuse_silence();
  if (!failed_) {
    look_for_silence();
    for (PartitionId partition : std::exchange(restless_, {})) {
      Slot& slot = replicas_[static_cast<std::uint32_t>(partition)];
      slot.restless = false;
      activate(partition, slot);
    }
    looks_ += active_.size();
    for (PartitionId partition : active_) at(partition).tick();
    return;
  }
  if (now_ < next_farewell_) return;
  next_farewell_ = now_ + timing_.retry;
  for (PartitionId partition : partitions_) {
    const View& view = get(partition).view();
    if (is_member(view, self_)) wishes_.push_back({partition, {Change::Kind::exited, view.epoch, self_, self_, {}}});
  }
}

std::uint64_t Replicator::mark() {
  serial_++;
  piece_sent_ = false;
  for (PartitionId partition : active_) {
    Replica& replica = get(partition);
    replica.mark(serial_);
    if (!failed_ && replica.role() == Replica::Role::primary) replica.send();
  }
  return serial_;
}

void Replicator::durable(std::uint64_t mark, base::Time now) {
  now_ = std::max(now_, now);
  if (failed_) return;
  for (PartitionId partition : active_) get(partition).on_durable(mark);
}

// In turn, so that each partition keeps about as much. What a follower lacks goes only where that is not enough: it costs a snapshot.
void Replicator::trim_tails() {
  const std::size_t budget = timing_.all_tails_bytes + tails_.uncommitted;
  const std::size_t share = timing_.all_tails_bytes / (2 * partitions_.size() + 1);
  for (std::size_t left = 2 * partitions_.size(); left > 0 && tails_.all > budget - budget / 8; left--) {
    const auto number = static_cast<std::uint32_t>(partitions_[trimmed_++ % partitions_.size()]);
    replicas_[number].replica->trim(share, left > partitions_.size() ? Replica::Wanted::keep : Replica::Wanted::drop);
  }
}

void Replicator::finish(base::Time now) {
  now_ = std::max(now_, now);
  if (failed_) return;
  if (tails_.all > timing_.all_tails_bytes + tails_.uncommitted) trim_tails();
  stamped_ = false;
  if (!active_.empty()) note_busy();
  done_.clear();
  std::erase_if(active_, [&](PartitionId partition) {
    Slot& slot = replicas_[static_cast<std::uint32_t>(partition)];
    Replica& replica = *slot.replica;
    if (replica.role() == Replica::Role::primary) replica.release();
    replica.send();
    if (replica.waits()) return false;
    slot.active = false;
    done_.push_back(partition);
    if (!replica.rests() && !std::exchange(slot.restless, true)) restless_.push_back(partition);
    return true;
  });
  send_beacons();
  if (!std::exchange(answer_due_, false)) return;
  for (auto& [peer, channel] : channels_) {
    if (!channel.answer_due()) continue;
    answer_beacon(peer, channel);
    answer_due_ = answer_due_ || channel.answer_due();  // of two lives of an instance one waits
  }
}

// Two incarnations of one instance may both wait for an answer, an old message that comes late from the dead one: it gets
// none in the same round.
void Replicator::answer_beacon(Member peer, Channel& channel) {
  PeerMessage& message = message_to(peer.instance);
  if (message.answered != base::Time{} && message.answering > peer) return;
  message.answering = peer;
  channel.answer(message);
  // Beacons that would be due soon go with answers: in each pair one of the two begins, and three messages do for both.
  const base::Duration most = channel.next_beacon() - channel.beacon_sent();
  if (channel.sends_beacons() && now_ - channel.beacon_sent() >= std::max(most / 2, timing_.beacon)) send_beacon(peer, channel);
}

// From the moment on when there is something to do, beacons go at their full rate.
void Replicator::note_busy() {
  if (!is_busy()) next_beacon_ = next_silence_ = {};
  busy_at_ = now_;
}

void Replicator::send_beacons() {
  // One on demand, for reads without a lease, but not a storm of them.
  const bool demanded = beacon_wanted_ && now_ - last_beacon_ >= std::chrono::milliseconds(1);
  if (!demanded && now_ < next_beacon_) return;
  if (!neighbors_known_) find_neighbors();
  if (demanded) beacon_wanted_ = false;
  next_beacon_ = base::Time::max();
  for (const auto& [peer, neighbor] : neighbors_) {
    if (!neighbor.follows) continue;
    Channel& channel = channels_[peer];
    const bool due = now_ >= channel.next_beacon() || (is_busy() && now_ - channel.beacon_sent() >= timing_.beacon);
    if (demanded || due) send_beacon(peer, channel);
    next_beacon_ = std::min(next_beacon_, is_busy() ? channel.beacon_sent() + timing_.beacon : channel.next_beacon());
  }
}

void Replicator::send_beacon(Member peer, Channel& channel) {
  if (!std::exchange(stamped_, true)) last_beacon_ = std::max(now_, last_beacon_ + base::Duration(1));
  channel.on_beacon_sent(now_, is_busy(), beat());
  PeerMessage& message = message_to(peer.instance);
  message.beacon = last_beacon_;
  message.seen = channel.seen();
}

void Replicator::fail() {
  failed_ = true;
  messages_.clear();
  for (PartitionId partition : partitions_) get(partition).abandon();
}

std::vector<PeerMessage> Replicator::take_messages() {
  std::vector<PeerMessage> out;
  for (auto& [peer, message] : std::exchange(messages_, {})) out.push_back(std::move(message));
  return out;
}

void Replicator::on_promoted(PartitionId partition) {
  if (observer_ != nullptr) observer_->on_promoted(self_, partition);
}
void Replicator::on_appended(PartitionId partition, const Entry& entry, Position previous) {
  if (observer_ != nullptr) observer_->on_appended(self_, partition, entry, previous);
}
void Replicator::on_committed(PartitionId partition, Version first, Version last) {
  if (observer_ != nullptr) observer_->on_committed(self_, partition, first, last);
}
void Replicator::on_broken(PartitionId partition, std::string_view what) {
  if (observer_ != nullptr) observer_->on_broken(self_, partition, what);
}

}  // namespace zht::replication

#include "zht/core/replication/sightings.h"

#include <algorithm>
#include <sstream>

namespace zht::replication {
namespace {

constexpr char kHead[] = "zht sightings 1";
constexpr std::size_t kLives = 1000;  // older ones are forgotten, and so thought never to have been

}  // namespace

SightingsState SightingsState::read(Bytes saved) {
  std::istringstream in{std::string(saved)};
  std::string word;
  SightingsState state;
  if (!std::getline(in, word) || word != kHead) return {};
  std::uint64_t a = 0, b = 0, c = 0;
  while (in >> word) {
    if (word == "end") return state;
    if (word == "outdated" && in >> a) state.outdated = a;
    else if (word == "life" && in >> a >> b) state.lives[a] = b;
    else if (word == "seen" && in >> a >> b >> c) state.seen[NodeId{a}] = {b, c};
  }
  return {};
}

std::string SightingsState::text() const {
  std::ostringstream out;
  out << kHead << "\noutdated " << outdated << "\n";
  for (const auto& [life, mark] : lives) out << "life " << life << " " << mark << "\n";
  for (const auto& [node, one] : seen) out << "seen " << static_cast<std::uint64_t>(node) << " " << one.incarnation << " " << one.mark << "\n";
  out << "end\n";
  return std::move(out).str();
}

bool SightingsState::is_past(Sighting one) const {
  if (one.incarnation == 0 || one.incarnation < outdated) return true;
  const auto life = lives.find(one.incarnation);
  return life != lives.end() && life->second >= one.mark;
}

Sightings::Sightings(SightingsOptions options, Manager& manager, Bytes saved)
    : options_(std::move(options)), manager_(manager), state_(SightingsState::read(saved)) {
  state_.lives.try_emplace(options_.incarnation, 0);
  while (state_.lives.size() > kLives) state_.lives.erase(state_.lives.begin());
  for (const auto& [info, lives] : manager_.acquaintances({}))
    if (info->node != options_.self) known_.insert(info->node);
  if (known_.empty()) verdict_ = Verdict::confirmed;
}

Sighting Sightings::seen(NodeId node) const {
  const auto found = state_.seen.find(node);
  return found == state_.seen.end() ? Sighting{} : found->second;
}

bool Sightings::trusts(NodeId node, std::uint64_t life) const {
  const auto peer = peers_.find(node);
  return life == 0 || node == options_.self || (peer != peers_.end() && peer->second.trusted == life);
}

void Sightings::on_message(const ManagerMessage& message, base::Time now) {
  if (message.from == options_.self) return;
  if (message.life == 0) {
    told_.insert(message.from);
    return;
  }
  Peer& peer = peers_[message.from];
  if (message.life > peer.life) {
    peer.life = message.life;
    peer.next_tell = {};
  }
  if (message.checked == options_.incarnation) peer.trusted = std::max(peer.trusted, message.life);
  if (message.seen) {
    const bool past = state_.is_past(*message.seen) || state_.outdated == options_.incarnation || options_.defects.has(Defect::forget_sightings);
    if (!past && !found_) {
      found_ = true;
      next_save_ = {};
      std::ostringstream words;
      words << "node " << static_cast<std::uint64_t>(message.from) << " has seen it further: life " << message.seen->incarnation << " at "
            << message.seen->mark;
      if (const auto life = state_.lives.find(message.seen->incarnation); life == state_.lives.end()) words << ", which it does not know";
      else words << ", here it ends at " << life->second;
      reason_ = std::move(words).str();
    }
    // It is answered when what follows from it is durable.
    if (past) {
      told_.insert(message.from);
      manager_.message_for(message.from).checked = message.life;
    }
  }
  if (peer.trusted < peer.life && now >= peer.next_tell) tell(message.from, peer, now);
}

void Sightings::tell(NodeId node, Peer& peer, base::Time now) {
  peer.next_tell = now + options_.again;
  ManagerMessage& message = manager_.message_for(node);
  message.seen = seen(node);
  message.config = manager_.config();
  message.keepers = manager_.keepers();
}

void Sightings::tick(base::Time now) {
  if (begun_ == base::Time{}) begun_ = now;
  for (const auto& [info, lives] : manager_.acquaintances(now)) {
    if (info->node == options_.self) continue;
    Peer& peer = peers_[info->node];
    const Sighting one = info->sighting;
    if (one.incarnation != 0 && one.incarnation == peer.trusted && seen(info->node) < one) {
      state_.seen[info->node] = one;
      learned_ = true;
    }
    const bool begins = verdict_ == Verdict::waits && known_.contains(info->node) && !told_.contains(info->node);
    const bool met = lives && (peer.trusted < peer.life || one.incarnation > peer.trusted);
    if ((begins || met) && now >= peer.next_tell) tell(info->node, peer, now);
  }
  if (verdict_ == Verdict::waits && !found_) conclude(now);
}

void Sightings::conclude(base::Time now) {
  const bool all = std::all_of(known_.begin(), known_.end(), [&](NodeId one) { return told_.contains(one); });
  std::size_t keepers = 0;
  for (NodeId one : manager_.keepers()) keepers += one == options_.self || told_.contains(one);
  if (all || (now - begun_ >= options_.patience && keepers * 2 > manager_.keepers().size())) verdict_ = Verdict::confirmed;
}

std::optional<std::string> Sightings::to_save(base::Time now) {
  if (saving_ || (verdict_ == Verdict::waits && !found_)) return {};
  if (now < next_save_ || (!found_ && !changed_ && !learned_)) return {};
  next_save_ = now + options_.period;
  std::uint64_t& mark = state_.lives[options_.incarnation];
  if (std::exchange(changed_, false)) mark++;  // it may be on the disk before the host has heard that it is
  saving_ = {mark, found_};
  learned_ = false;
  SightingsState written = state_;
  if (found_) written.outdated = options_.incarnation;
  return written.text();
}

void Sightings::saved() {
  if (!saving_) return;
  const Saving done = *std::exchange(saving_, {});
  if (done.outdated) {
    found_ = false;
    state_.outdated = options_.incarnation;
    verdict_ = Verdict::outdated;
  }
  if (found_) return;  // nothing that it says of itself is to be remembered yet
  manager_.self().sighting = {options_.incarnation, done.mark};
}

}  // namespace zht::replication

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
    if (info->node != options_.self && !(info->leaving && info->instances.empty())) known_.insert(info->node);
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
  Peer& peer = peers_[message.from];
  if (message.life == 0) {  // a build that remembers nothing
    peer.told = true;
    peer.folder = Folder::good;
    return;
  }
  if (message.life > peer.life) peer = {message.life, peer.trusted, false, Folder::unknown, {}};
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
      if (message.life == peer.life) peer.told = true;
      ManagerMessage& answer = manager_.message_for(message.from);
      answer.checked = message.life;
      answer.folder = folder();
    }
  }
  if (message.life == peer.life && (message.seen || message.checked != 0)) peer.folder = message.folder;
  if (peer.trusted < peer.life && now >= peer.next_tell) tell(message.from, peer, now);
  conclude(now);
}

void Sightings::tell(NodeId node, Peer& peer, base::Time now) {
  peer.next_tell = now + options_.again;
  ManagerMessage& message = manager_.message_for(node);
  message.seen = seen(node);
  message.folder = folder();
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
    const bool begins = verdict_ == Verdict::waits && known_.contains(info->node) && (!peer.told || peer.folder == Folder::unknown);
    const bool met = lives && (peer.trusted < peer.life || one.incarnation > peer.trusted);
    if ((begins || met) && now >= peer.next_tell) tell(info->node, peer, now);
  }
  conclude(now);
}

Folder Sightings::folder() const {
  if (verdict_ == Verdict::outdated && votes_) return Folder::good;
  if (found_ || verdict_ == Verdict::outdated) return Folder::older;
  return verdict_ == Verdict::confirmed ? Folder::good : Folder::unknown;
}

void Sightings::conclude(base::Time now) {
  if (verdict_ != Verdict::waits || found_) return;
  const auto has_told = [&](NodeId one) {
    const auto peer = peers_.find(one);
    return peer != peers_.end() && peer->second.told;
  };
  std::size_t good = 0, possible = 0;
  const bool keeps = std::find(manager_.keepers().begin(), manager_.keepers().end(), options_.self) != manager_.keepers().end();
  for (NodeId one : manager_.keepers()) {
    if (one == options_.self || !has_told(one)) continue;
    const Peer& peer = peers_.at(one);
    good += peer.folder == Folder::good;
    // What this one remembers of it, it has looked at.
    possible += peer.folder != Folder::older && (peer.trusted == peer.life || peer.life == 0);
  }
  const auto is_majority = [&](std::size_t others) { return (others + keeps) * 2 > manager_.keepers().size(); };
  const bool late = begun_ != base::Time{} && now - begun_ >= options_.patience;
  if (std::all_of(known_.begin(), known_.end(), has_told) || (good > 0 && is_majority(good)) || (late && is_majority(possible)))
    verdict_ = Verdict::confirmed;
}

std::string Sightings::story() const {
  constexpr const char* kVerdicts[] = {"waits", "confirmed", "outdated"};
  std::ostringstream out;
  out << kVerdicts[static_cast<int>(verdict_)];
  if (found_) out << ", found outdated";
  for (NodeId one : known_)
    if (const auto peer = peers_.find(one); peer == peers_.end() || !peer->second.told) out << ", not told by " << static_cast<std::uint64_t>(one);
  for (const auto& [node, peer] : peers_)
    if (peer.trusted < peer.life) out << ", not looked at by " << static_cast<std::uint64_t>(node) << "." << peer.life;
  return std::move(out).str();
}

base::Time Sightings::next_due() const {
  if (verdict_ == Verdict::waits) return {};
  return !saving_ && (found_ || changed_ || learned_) ? next_save_ : base::Time::max();
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

// Older copies of data folders: nodes' folders are copied while they run, and put back after a kill: one's within a moment, or all nodes'
// while they are off, each from another time. What is known to have been further must not be believed.
//
// What nobody noted durably nobody can know: so one's copy is put back only when all other keepers have noted that it was further,
// and a run in which those of all nodes were put back ends where a majority of the keepers could be taken for what they were. Else a
// person accepts the loss, after a while in which everything is judged as ever; from then on no partition is.
#include "tests/sim/world.h"

namespace zht::sim {
namespace {

constexpr const char* kRemembered = "own/sightings";

std::map<std::string, std::string> copy_of(const base::MemoryFiles& disk) {
  std::map<std::string, std::string> files;
  for (const std::string& path : disk.paths()) files[path] = disk.contents(path);
  return files;
}

void become(base::MemoryFiles& disk, const std::map<std::string, std::string>& files) {
  std::set<std::string> folders;
  for (const std::string& path : disk.paths()) {
    CHECK(disk.remove(path).has_value());
    folders.insert(path.substr(0, path.rfind('/')));
  }
  for (const std::string& folder : folders) CHECK(disk.sync_folder(folder).has_value());
  for (const auto& [path, contents] : files) disk.put(path, contents);
}

Result<void> write(base::MemoryFiles& disk, const std::string& text) {
  const std::string fresh = std::string(kRemembered) + ".new";
  TRY(disk.make_folder("own"));
  TRY_LET(file, disk.open(fresh, base::OpenMode::create));
  TRY(file->truncate(0));
  TRY(file->write_at(0, text));
  TRY(file->sync());
  TRY(disk.rename(fresh, kRemembered));
  return disk.sync_folder("own");
}

}  // namespace

// --- a node ---

SightingsState Node::remembered() const { return SightingsState::read(own_disk.contents(kRemembered)); }

void Node::begin_sightings() {
  if (!world_.options.instances) return;
  SightingsOptions options;
  options.self = NodeId{static_cast<std::uint64_t>(id_)};
  options.incarnation = incarnation;
  options.period = std::chrono::milliseconds(50);
  options.again = std::chrono::milliseconds(60);
  options.defects = world_.options.defects;
  sightings = std::make_unique<Sightings>(options, *manager, own_disk.contents(kRemembered));
  told_verdict_ = sightings->verdict();
}

void Node::keep_sightings() {
  if (!sightings) return;
  sightings->set_votes(keepership->votes());
  sightings->tick(now());
  sightings->note_change();
  if (const auto text = sightings->to_save(now())) {
    if (write(own_disk, *text)) sightings->saved();
    else sightings->not_saved();
  }
  tell_verdict();
}

void Node::tell_verdict() {
  if (std::exchange(told_verdict_, sightings->verdict()) == sightings->verdict()) return;
  if (sightings->verdict() == Sightings::Verdict::outdated) {
    world_.say("n%d is an older copy: %s", id_, sightings->reason().c_str());
    for (Seat& seat : seats)
      seat.round([&] {
        seat.instance->replicated_store().set_outdated(incarnation);
        seat.replicator->distrust();
      });
    CHECK(keepership->distrust().has_value());
  }
  use_sightings();
}

void Node::use_sightings() {
  if (!sightings) return;
  for (Seat& seat : seats) seat.replicator->set_may_vouch(sightings->verdict() != Sightings::Verdict::waits);
}

void Node::copy_folder() {
  constexpr std::size_t kMost = 8;
  FolderCopy& copy = copies_.emplace_back();
  copy.at = world_.now;
  copy.disk = copy_of(disk);
  copy.keeper_disk = copy_of(keeper_disk);
  copy.own_disk = copy_of(own_disk);
  copy.incarnation = incarnation;
  copy.config = config_;
  copy.voted = voted_;
  copy.keepers = keepers_;
  if (copies_.size() > kMost) copies_.pop_front();
}

bool Node::put_back(const std::function<bool(const SightingsState&)>& may) {
  std::vector<const FolderCopy*> fit;
  for (const FolderCopy& one : copies_) {
    const auto found = one.own_disk.find(kRemembered);
    if (may(SightingsState::read(found == one.own_disk.end() ? std::string() : found->second))) fit.push_back(&one);
  }
  if (fit.empty()) return false;
  const FolderCopy& copy = *fit[world_.random.below(fit.size())];
  world_.say("n%d is put back to its folder of %lld ms ago, life %llu", id_, static_cast<long long>((world_.now - copy.at) / ms),
             static_cast<unsigned long long>(copy.incarnation));
  become(disk, copy.disk);
  become(keeper_disk, copy.keeper_disk);
  become(own_disk, copy.own_disk);
  incarnation = copy.incarnation;
  config_ = copy.config;
  voted_ = copy.voted;
  keepers_ = copy.keepers;
  return true;
}

// --- the world ---

// As zht/server/identity.h: by the time of day, so that no two lives are the same.
std::uint64_t Cluster::next_life(const Node& node) const {
  const bool by_clock = options.emphasis == RunOptions::Emphasis::old_copies && !options.defects.has(Defect::same_life_again);
  return std::max(node.incarnation + 1, by_clock ? static_cast<std::uint64_t>(now / ms) + 1000 : 0);
}

void Cluster::copy_folders() {
  if (now >= stop_faults || quiet_) return;
  for (Node& node : nodes)
    if (node.up && random.chance(0.4)) node.copy_folder();
  at(now + between(random, 100 * ms, 400 * ms), [this] { copy_folders(); });
}

// One's, while others have what it held: as with files that rot.
void Cluster::put_back(int i) {
  Node& node = nodes[static_cast<std::size_t>(i)];
  for (const View& view : latest_) {
    if (!has_part(view, i)) continue;
    const bool held = std::any_of(view.sync.begin(), view.sync.end(), [&](Member one) {
      const Node& other = node_of(one.instance);
      return other.number() != i && other.up && other.incarnation == one.incarnation;
    });
    if (!held) return;
  }
  if (keeps(i)) {
    std::size_t vote = 0;
    for (const Node& other : nodes) vote += keeps(other.number()) && other.up && other.keepership->votes() && other.keepership->config() == config;
    if (vote < 2 || vote + 1 < keepers.size()) return;
  }
  const auto noted = [&](const SightingsState& past) {
    for (const Node& other : nodes) {
      if (other.number() == i || !keeps(other.number())) continue;
      const SightingsState memory = other.remembered();
      const auto seen = memory.seen.find(NodeId{static_cast<std::uint64_t>(i)});
      if (seen == memory.seen.end() || past.is_past(seen->second)) return false;
    }
    return true;
  };
  if (!node.put_back(noted)) return;
  result.put_back++;
}

// All are off, and each has an older copy of its folder put back, from a time of its own.
void Cluster::put_all_back() {
  if (quiet_) return;
  for (const Node& node : nodes)
    if (node.known && !node.up) return at(now + 50 * ms, [this] { if (now < stop_faults - 100 * ms) put_all_back(); });
  for (Node& node : nodes)
    if (node.up) node.stop(false);
  const auto any = [](const SightingsState&) { return true; };
  for (Node& node : nodes)
    if (node.known && random.chance(0.9)) node.put_back(any);
  quiet_ = true;
  cut_.clear();
  const auto is_believed = [&](NodeId one) {
    const SightingsState past = nodes[static_cast<std::size_t>(one)].remembered();
    return std::all_of(nodes.begin(), nodes.end(), [&](const Node& other) {
      const SightingsState memory = other.remembered();
      const auto seen = memory.seen.find(one);
      return seen == memory.seen.end() || past.is_past(seen->second);
    });
  };
  // In the newest configuration, or in one before it of which so many know no newer one.
  bool told_apart = true;
  for (const auto& [number, list] : decided_keepers_) {
    const auto believed = std::count_if(list.begin(), list.end(), [&, of = number](NodeId one) {
      return is_believed(one) && (of == config || nodes[static_cast<std::size_t>(one)].knows_config() == of);
    });
    told_apart = told_apart && static_cast<std::size_t>(believed) * 2 <= list.size();
    say("all are off, and put back; %zu keepers of configuration %llu could be taken for what they were", static_cast<std::size_t>(believed),
        static_cast<unsigned long long>(number));
  }
  if (!told_apart) {  // nobody can know: what comes of it is not judged
    for (std::uint32_t p = 0; p < partition_count; p++) history.give_up(p);
    clients.back().finished = true;
    return;
  }
  result.all_put_back++;
  for (Node& node : nodes)
    if (node.known) at(now + between(random, 1 * ms, 600 * ms), [this, i = node.number()] { restart(i); });
  at(now + between(random, 2500 * ms, 3500 * ms), [this] { accept_loss(); });
}

// As `zht recover --accept-data-loss` does it.
void Cluster::accept_loss() {
  say("a person accepts the loss");
  result.sole_copy_lost = true;
  for (std::uint32_t p = 0; p < partition_count; p++) history.give_up(p);
  replace_keepers();
}

}  // namespace zht::sim

// A disaster and a person: all synchronous copies of a partition are destroyed at once, and someone who looks at what is left
// decides to go on with the best of it (zht/core/replication/recovery.h). Some of the machines come back with empty disks, some
// much later, as they were, although they were given up.
#include <algorithm>

#include "tests/sim/world.h"
#include "zht/core/replication/recovery.h"

namespace zht::sim {

namespace {

void wipe(base::MemoryFiles& disk) {
  for (const std::string& path : disk.paths())
    CHECK(disk.remove(path).has_value() && disk.sync_folder(path.substr(0, path.find('/'))).has_value());
}

}  // namespace

void Cluster::destroy() {
  const auto p = static_cast<std::uint32_t>(random.below(partition_count));
  const View view = latest_[p];
  Members victims = view.sync;
  if (!view.learners.empty() && random.chance(0.3)) victims.push_back(view.learners.front());
  std::size_t keepers_away = 0;
  result.disasters++;
  for (Member one : victims) {
    const int i = home(one.instance);
    Node& node = nodes[static_cast<std::size_t>(i)];
    if (node.up) node.stop(false);
    // A majority of the keepers must be there, or nobody can decide anything.
    const bool soon = random.chance(0.3) || (keeps(i) && ++keepers_away > (keepers.size() - 1) / 2);
    const bool emptied = soon || random.chance(0.5);
    node.disk.fail_syncs(false);
    if (emptied)
      wipe(node.disk);
    node.removed = !soon;
    say("n%d is destroyed%s", i, soon ? ", and comes back empty" : emptied ? ", and its disk" : "; its disk is found again later");
    if (soon) at(now + between(random, 50 * ms, 900 * ms), [this, i] { restart(i); });
  }
  at(now + between(random, 300 * ms, 1500 * ms), [this] { operate(); });
}

// Looks at what every node that runs says, as `zht recover --accept-data-loss --gone` does.
void Cluster::operate() {
  for (std::uint32_t p = 0; p < partition_count; p++) {
    View view;
    std::vector<CopyReport> reports;
    for (Node& node : nodes) {
      if (!node.up || now < node.paused_until) continue;
      if (const View& known = node.manager->view(PartitionId{p}); known.epoch > view.epoch) view = known;
      for (const Seat& seat : node.seats)
        if (!seat.replicator->failed()) reports.push_back(seat.replicator->report(PartitionId{p}));
    }
    const Prognosis is = prognosis(view, reports, [this](InstanceId one) { return node_of(one).removed; });
    if (view.epoch == Epoch{0} || is.outlook != Prognosis::Outlook::lost || !is.best) continue;
    const CopyReport& best = reports[*is.best];
    const auto i = static_cast<std::uint32_t>(best.self.instance);
    say("partition %u is lost in view %s: instance %u goes on with %llu of %llu entries", p, to_string(view).c_str(), i,
        static_cast<unsigned long long>(best.end.sequence), static_cast<unsigned long long>(is.known_end));
    given_up_.insert({p, view.epoch, best.self});
    node_of(best.self.instance).seat_of(best.self.instance).take_over(PartitionId{p}, view.epoch, best.end);
  }
  if (now < work_until) at(now + between(random, 150 * ms, 400 * ms), [this] { operate(); });
}

// A majority of those who keep, or all of them, are gone with what they had promised; some disks are found again at the end.
void Cluster::destroy_keepers() {
  std::vector<NodeId> victims = keepers;
  const std::size_t many = random.chance(0.2) ? victims.size() : victims.size() / 2 + 1;
  while (victims.size() > many) victims.erase(victims.begin() + static_cast<std::ptrdiff_t>(random.below(victims.size())));
  result.disasters++;
  for (NodeId one : victims) {
    Node& node = nodes[static_cast<std::size_t>(one)];
    if (node.up) node.stop(false);
    node.disk.fail_syncs(false);
    node.keeper_disk.fail_syncs(false);
    // What all keepers had on their disks, and nobody else remembers, nobody can bring back.
    const bool emptied = random.chance(0.4) && (victims.size() < keepers.size() || one != victims.front());
    if (emptied) {
      wipe(node.disk);
      wipe(node.keeper_disk);
    }
    node.removed = true;
    say("keeper n%d is destroyed%s", static_cast<int>(one), emptied ? ", and its disk" : "; its disk is found again later");
  }
  at(now + between(random, 300 * ms, 1500 * ms), [this] { replace_keepers(); });
}

// As `zht recover --accept-data-loss --gone` does it.
void Cluster::replace_keepers() {
  const auto again = [this] { if (now < work_until) at(now + between(random, 100 * ms, 300 * ms), [this] { replace_keepers(); }); };
  std::uint64_t newest = 0;
  for (const Node& node : nodes)
    if (node.up) newest = std::max(newest, node.keepership->config());
  Node* chosen = nullptr;
  std::size_t vote = 0;
  const std::vector<NodeId>* who = nullptr;
  for (Node& node : nodes) {
    if (!node.up || now < node.paused_until || node.keepership->config() != newest) continue;
    who = &node.keepership->keepers();
    const bool keeper = node.keepership->keeps(NodeId{static_cast<std::uint64_t>(node.number())}) && !node.keepership->has_lost_registers();
    vote += keeper;
    const bool was = chosen != nullptr && chosen->keepership->keeps(NodeId{static_cast<std::uint64_t>(chosen->number())});
    if (chosen == nullptr || (keeper && !was) || (keeper == was && node.manager->version() > chosen->manager->version())) chosen = &node;
  }
  if (chosen == nullptr) return again();
  std::size_t gone = 0;  // for good, or with all they had promised
  for (NodeId one : *who) {
    const Node& node = nodes[static_cast<std::size_t>(one)];
    gone += node.removed || (node.up && node.keepership->has_lost_registers());
  }
  if (vote * 2 > who->size()) return operate();  // enough of them are there, for others had taken their place
  if (gone + vote < who->size() || !chosen->keep_alone(newest)) return again();  // one that is silent may come back
  result.kept_alone++;
  say("n%d keeps alone, configuration %llu", chosen->number(), static_cast<unsigned long long>(chosen->keepership->config()));
  at(now + between(random, 100 * ms, 500 * ms), [this] { operate(); });
}

bool Node::keep_alone(std::uint64_t config) {
  bool done = false;
  const auto keep = [&] {
    const std::vector<View> newest = [&] {
      std::vector<View> all;
      for (std::uint32_t p = 0; p < world_.partition_count; p++) all.push_back(world_.latest(p));
      return all;
    }();
    const auto kept = keepership->keep_alone(config, world_.random.next());
    if (!kept) return world_.say("n%d refuses to keep: %s", id_, kept.error().message.c_str());
    done = true;
    for (std::uint32_t p = 0; p < world_.partition_count; p++) {
      View was = newest[p];
      was.epoch = manager->view(PartitionId{p}).epoch;
      if (was == manager->view(PartitionId{p})) continue;
      world_.say("partition %u: the view %s is undone", p, to_string(newest[p]).c_str());
      world_.result.undone++;
      world_.history.give_up(p);
    }
  };
  keep();
  after_turn();
  return done;
}

// Told of every view that is decided.
void Cluster::look_for_abandoned(std::uint32_t p, const View& view) {
  const Epoch before{number(view.epoch) - 1};
  if (view.sync.size() != 1 || !given_up_.contains({p, before, view.primary})) return;
  result.abandoned++;
  history.abandoned(p, before, now);
  for (Client& client : clients) client.forget(p);
}

void Client::forget(std::uint32_t partition) {
  std::erase_if(seen_, [&](const auto& one) { return one.first.first == partition; });
  forgot_[partition] = world_.now;
}

}  // namespace zht::sim

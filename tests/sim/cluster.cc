#include "tests/sim/cluster.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <variant>

#include "tests/sim/rot.h"
#include "tests/sim/words.h"
#include "tests/sim/world.h"

namespace zht::sim {

Cluster::Cluster(std::uint64_t seed, const RunOptions& run) : random(seed * 2 + 1), options(run), history(result.violations) {
  base::Random shape(seed * 2);  // of its own, so that the rest of a seed's world does not depend on it
  const bool plain = !options.instances || options.scenario != RunOptions::Scenario::faults;
  if (!plain && shape.chance(0.35)) seat_count = shape.chance(0.8) ? 2 : 3;
  const auto pick = [&](auto... choices) { return std::array{choices...}[random.below(sizeof...(choices))]; };
  partition_count = static_cast<std::uint32_t>(pick(1, 1, 2, 3));
  timing.copies = static_cast<std::size_t>(pick(3, 3, 3, 4));
  timing.sync_copies = static_cast<std::size_t>(pick(2, 2, 2, 2, 2, 3, 3, 1));
  timing.tail_bytes = static_cast<std::size_t>(pick(1 << 10, 1 << 14, 1 << 20));
  timing.message_bytes = static_cast<std::size_t>(pick(200, 4096, 1 << 20));
  base::Random little(seed * 2 + 1'000'000'007);  // likewise
  if (!plain && little.chance(0.3)) {
    const auto bytes = [&](auto... choices) { return static_cast<std::size_t>(std::array{choices...}[little.below(sizeof...(choices))]); };
    timing.all_tails_bytes = bytes(500, 2000, 8000);
    timing.all_uncommitted_bytes = bytes(500, 2000, 8000);
    limits.undo = bytes(300, 1000, 8000);
    limits.waiting = bytes(500, 2000, 8000);
    limits.results = bytes(1 << 12, 1 << 14);
  }
  if (options.scenario != RunOptions::Scenario::faults) timing = Timing{};
  for (std::uint32_t p = 0; p < partition_count; p++) {
    View view;
    view.epoch = Epoch{1};
    view.need = static_cast<std::uint32_t>(timing.sync_copies);
    for (std::uint32_t i = 0; i < 3; i++) {
      const auto place = static_cast<std::uint32_t>(shape.below(static_cast<std::uint64_t>(seat_count)));
      const Member one{InstanceId{(p + i) % kSeeds + kNodes * place}, 1};
      if (i == 0) view.primary = one;
      (i < timing.sync_copies ? view.sync : view.learners).push_back(one);
    }
    first.push_back(view);
    decided_[{p, 1}] = view;
  }
  latest_ = first;
  loss_ = random.chance(0.5) ? 0 : random.unit() * 0.05;
  repeat_ = random.chance(0.5) ? 0 : random.unit() * 0.05;
  tail_ = between(random, 200, 4000);
  rot_allowed_ = random.chance(0.3);
  always = random.chance(0.8);
  power_ = (always || options.instances) && random.chance(0.7);
  round_pause = random.chance(0.4) ? 0.0005 * random.unit() : 0;
  // Each seed leaves some faults out and overdoes others.
  for (int& weight : weights_) weight = pick(0, 0, 1, 1, 3);
  weights_[random.below(weights_.size())] += 2;
  crash_point_ = random.chance(0.3) ? 0.01 * random.unit() : 0;
  pace_ = pick(0.3, 1.0, 1.0, 2.0);
  const auto weigh = [&](Fault fault, int weight) { weights_[static_cast<std::size_t>(fault)] = weight; };
  if (options.emphasis == RunOptions::Emphasis::power) {  // the power goes again and again, and disks are slow
    always = power_ = slow_disk = true;
    rot_allowed_ = false;
    pace_ = 0.5;
    weights_.fill(0);
    weigh(Fault::power_primary, 1);
    crash_point_ = 0.01;
  }
  if (options.emphasis == RunOptions::Emphasis::stalls) {  // processes stop between their work and their answers
    round_pause = 0.002;
    weigh(Fault::pause, 4);
    weigh(Fault::isolate, 2);
  }
  if (options.emphasis == RunOptions::Emphasis::loaded) {  // nothing fails, but one process or two of six never come to run
    loss_ = repeat_ = crash_point_ = round_pause = 0;
    rot_allowed_ = false;
    weights_.fill(0);
    weigh(Fault::pause, 1);
    pace_ = 0.5;
  }
  if (options.emphasis == RunOptions::Emphasis::starved) {  // three nodes, of which one or two hardly ever run, and nothing else
    loss_ = repeat_ = crash_point_ = round_pause = 0;
    rot_allowed_ = slow_disk = false;
  }
  if (options.emphasis == RunOptions::Emphasis::keepers) {  // others keep again and again, and votes are interrupted
    replace_after = 300 * ms;
    pace_ = 0.5;
    for (const Fault fault : {Fault::come_and_go, Fault::interrupt_vote, Fault::split, Fault::ragged, Fault::one_way, Fault::move})
      weigh(fault, 3);
  }
  if (options.emphasis == RunOptions::Emphasis::rot) {  // files rot again and again
    rot_allowed_ = true;
    pace_ = 0.3;
    weigh(Fault::crash_primary, 4);
    weigh(Fault::power_primary, 2);
  }
  if (options.emphasis == RunOptions::Emphasis::disaster || options.emphasis == RunOptions::Emphasis::lost_keepers) {
    // What was acknowledged is synced, and lost with the disks alone.
    always = true;
    rot_allowed_ = false;
  }
  if (options.emphasis == RunOptions::Emphasis::old_copies) {  // folders are copied, and put back after a kill
    always = true;
    rot_allowed_ = false;
    timing.sync_copies = std::max<std::size_t>(timing.sync_copies, 2);
    weigh(Fault::crash_primary, 4);
    weigh(Fault::failing_disk, 0);
    weigh(Fault::come_and_go, 0);
  }
  if (options.emphasis == RunOptions::Emphasis::refusals) {  // few keys, many refusals, and answers that come late
    partition_count = 1;
    pace_ = 0.5;
    weights_.fill(0);
    weigh(Fault::stall_link, 1);
  }
  for (int i = 0; i < kKeepers; i++) keepers.push_back(NodeId{static_cast<std::uint64_t>(i)});
  decided_keepers_[1] = keepers;
  // Mostly two nodes a rack; or all in one, or one rack smaller than the others.
  const auto racks = shape.below(4);
  for (int i = 0; i < kNodes; i++) {
    nodes.emplace_back(*this, i);
    if (seat_count > 1 && racks >= 2) nodes.back().rack = racks == 2 ? 0 : static_cast<std::uint32_t>((i + 1) / 3);
  }
  for (int i = 0; i <= kClients; i++) {
    Client& client = clients.emplace_back(*this, kClientBase + i, i == kClients);
    client.views = first;
    client.read_bias = i < 3 ? 0.2 : i == 3 ? 0.9 : 1;
    client.watch_bias = i == 2 ? 0.2 : i == 4 ? 0.5 : 0;
    if (options.emphasis == RunOptions::Emphasis::refusals) client.read_bias = client.watch_bias = 0;
  }
}

void Cluster::say(const char* format, ...) {
  if (!options.verbose) return;
  std::printf("%9.3f ", static_cast<double>(now) / 1e6);
  va_list arguments;
  va_start(arguments, format);
  std::vprintf(format, arguments);
  va_end(arguments);
  std::printf("\n");
}

RunResult Cluster::run() {
  stop_faults = static_cast<Micros>(options.seconds * static_cast<double>(sec));
  work_until = stop_faults + 2500 * ms;
  const Micros end = work_until + 8 * sec;
  if (options.scenario != RunOptions::Scenario::faults) {
    loss_ = repeat_ = crash_point_ = round_pause = 0;
    rot_allowed_ = false;
    tail_ = 400;
  }
  for (int i = 0; i < kSeeds; i++) nodes[static_cast<std::size_t>(i)].start();
  for (int i = 0; i < kClients; i++) at(between(random, 0, 20 * ms), [this, i] { clients[static_cast<std::size_t>(i)].next(); });
  if (options.emphasis == RunOptions::Emphasis::starved) {
    const int well = static_cast<int>(random.below(3));
    for (int i = 0; i < 3; i++)
      if (i != well && (random.chance(0.5) || i == (well + 1) % 3)) at(between(random, 0, 500 * ms), [this, i] { starve(i); });
    nodes[3].stop(false);
    nodes[3].removed = true;
  } else if (options.scenario == RunOptions::Scenario::faults) {
    at(between(random, 50 * ms, 300 * ms), [this] { fault(); });
  } else {
    at(1 * sec + between(random, 0, 200 * ms), [this] { crash(home(latest_[0].primary.instance), false); });
  }
  if (options.emphasis == RunOptions::Emphasis::disaster) at(between(random, 800 * ms, stop_faults), [this] { destroy(); });
  if (options.emphasis == RunOptions::Emphasis::old_copies) {
    at(between(random, 50 * ms, 200 * ms), [this] { copy_folders(); });
    at(stop_faults + 2500 * ms, [this] { operate(); });  // two faults at once may need a person: seldom
    if (random.chance(0.5)) at(between(random, stop_faults / 2, stop_faults - 200 * ms), [this] { put_all_back(); });
  }
  if (options.emphasis == RunOptions::Emphasis::lost_keepers) at(between(random, 800 * ms, stop_faults), [this] { destroy_keepers(); });
  at(stop_faults, [this] { heal(); });
  at(work_until + 500 * ms, [this] { clients.back().read_all(); });
  while (!events_.empty() && now < end && result.violations.size() < 20 && !clients.back().finished) {
    Event event = std::move(const_cast<Event&>(events_.top()));
    events_.pop();
    now = event.at;
    result.events++;
    event.run();
    if (result.events > 1'000'000) bad("storm of messages", std::to_string(result.messages) + " by " + std::to_string(now) + " us");
  }
  judge();
  return result;
}

void Cluster::send(int from, int to, Packet packet) {
  if (to < 0 || (to < kClientBase && to >= kNodes)) return;
  result.messages++;
  if (const auto* peer = std::get_if<PeerMessage>(&packet))
    for (const SnapshotPiece& piece : peer->pieces) result.snapshots += piece.last;
  if (from != to && cut_.contains({from, to})) return happened(cut_.contains({to, from}) ? Happened::cut_both_ways : Happened::cut_one_way);
  if (from != to && random.chance(loss_)) return happened(Happened::dropped);
  if (auto* const message = std::get_if<ManagerMessage>(&packet); message != nullptr && options.instances)
    message->life = nodes[static_cast<std::size_t>(from)].incarnation;
  const auto shared = std::make_shared<const Packet>(std::move(packet));
  if (options.messages) tell(from, to, *shared);
  const int copies = from != to && random.chance(repeat_) ? 2 : 1;
  if (copies == 2) happened(Happened::repeated);
  for (int i = 0; i < copies; i++) {
    Micros delay = 20;
    if (from != to) {
      delay = between(random, 50, 400);
      if (random.chance(0.1)) delay += between(random, 0, tail_);
      if (slow_until_ > now) delay += between(random, 0, 150 * ms);
      if (const auto stalled = stalled_.find(from); stalled != stalled_.end() && stalled->second > now + delay) {
        delay = stalled->second - now + between(random, 0, 400);
        happened(Happened::link_stalled);
      }
      if (delay > 400) happened(Happened::delayed);
    }
    if (i > 0) delay += between(random, 0, random.chance(0.2) ? 2 * sec : 20 * ms);
    at(now + delay, [this, from, to, order = result.messages, shared] { deliver(from, to, order, shared); });
  }
}

void Cluster::deliver(int from, int to, std::uint64_t order, const PacketPtr& packet) {
  if (from != to && cut_.contains({from, to})) return happened(cut_.contains({to, from}) ? Happened::cut_both_ways : Happened::cut_one_way);
  std::uint64_t& latest = arrived_[{from, to}];
  if (order < latest) happened(Happened::overtaken);
  latest = std::max(latest, order);
  if (to >= kClientBase) clients[static_cast<std::size_t>(to - kClientBase)].on(*packet);
  else nodes[static_cast<std::size_t>(to)].deliver(from, packet);
}

void Cluster::tell(int from, int to, const Packet& packet) {
  if (const auto* const message = std::get_if<PeerMessage>(&packet))
    for (const std::string& line : words_of(*message)) say("n%d to n%d: %s", from, to, line.c_str());
}

void Cluster::answered() {
  result.answered++;
  if (last_answer_ > 0 && now < work_until) result.longest_gap = std::max(result.longest_gap, now - last_answer_);
  last_answer_ = now;
}

void Cluster::learned(PartitionId partition, const View& view) {
  const auto p = static_cast<std::uint32_t>(partition);
  const auto [known, fresh] = decided_.emplace(std::pair(p, number(view.epoch)), view);
  if (!fresh) {
    if (known->second != view) bad("two views in one epoch", "partition " + std::to_string(p) + " epoch " + std::to_string(number(view.epoch)));
    return;
  }
  result.views++;
  // Those that were given up ask who keeps when they come back, and can reach everyone by then.
  if (now > stop_faults && number(view.epoch) >> 32 < number(latest_[p].epoch) >> 32)
    bad("keepers that were given up go on", "partition " + std::to_string(p) + " view " + to_string(view));
  const auto before = decided_.find({p, number(view.epoch) - 1});
  if (before != decided_.end() && before->second.primary.instance != view.primary.instance && in_sync(view, before->second.primary))
    happened(Happened::moved);
  if (view.epoch > latest_[p].epoch) latest_[p] = view;
  if (is_destroyed(p)) {
    history.give_up(p);
    result.sole_copy_lost = true;
  }
  if (!always) losses.look(p, latest_[p]);
  look_for_abandoned(p, view);
  say("partition %u view %s", p, to_string(view).c_str());
}

// The one copy left is the damaged one: no protocol can save what it held.
bool Cluster::is_destroyed(std::uint32_t p) const {
  const Members& sync = latest_[p].sync;
  return std::all_of(sync.begin(), sync.end(), [&](Member one) { return losses.has_rotted(one); });
}

void Cluster::look_for_losses() {
  for (std::uint32_t p = 0; p < partition_count && !always; p++) losses.look(p, latest_[p]);
}

// --- faults ---

// The worst moments to die are just after something became durable.
void Cluster::crash_point(int node) {
  if (quiet_ || crash_point_ == 0 || now >= stop_faults || !random.chance(crash_point_)) return;
  at(now + between(random, 0, 300), [this, node] { if (now < stop_faults) crash(node, power_ && random.chance(0.5)); });
}

bool Cluster::crash_now(int node) {
  if (quiet_ || crash_point_ == 0 || now >= stop_faults || !random.chance(crash_point_ / 4)) return false;
  at(now, [this, node] { crash(node, power_ && random.chance(0.7)); });
  return true;
}

bool Cluster::dies_opening() { return !quiet_ && crash_point_ > 0 && now < stop_faults && now > 0 && random.chance(0.1); }

void Cluster::crash(int i, bool power) {
  Node& node = nodes[static_cast<std::size_t>(i)];
  if (!node.up) return;
  result.faults++;
  say("crash n%d%s", i, power ? " (power)" : "");
  const std::uint64_t life = node.incarnation;
  node.stop(power);
  happened(Happened::killed);
  if (power) look_for_losses();
  if (rot_allowed_) rot(i);
  if (rot_allowed_) rot_keeper(i, power);
  if (options.emphasis == RunOptions::Emphasis::old_copies && random.chance(0.5)) put_back(i);
  const bool scenario = options.scenario != RunOptions::Scenario::faults;
  if (scenario ? options.scenario == RunOptions::Scenario::process_dies : !power && random.chance(0.4)) reaped(i, life, 5);
  Micros away = random.chance(0.4) ? between(random, 5 * ms, 100 * ms) : between(random, 100 * ms, 1500 * ms);
  if (crash_point_ > 0 && random.chance(0.4)) away = between(random, 300, 4 * ms);
  if (scenario) away = 3 * sec;
  at(now + away, [this, i] { restart(i); });
}

// One bit of one file, and only while another has what it held. Once a run, for two such losses may leave nobody; or again and
// again, while that is not so.
void Cluster::rot(int i) {
  Node& node = nodes[static_cast<std::size_t>(i)];
  bool others = true;
  for (const View& view : latest_) {
    if (!has_part(view, i)) continue;
    others = others && std::any_of(view.sync.begin(), view.sync.end(), [&](Member one) {
      const int n = home(one.instance);
      return n != i && nodes[static_cast<std::size_t>(n)].up && !losses.has_rotted(one);
    });
  }
  const bool again = options.emphasis == RunOptions::Emphasis::rot;
  const Seat& seat = node.seats[node.seats.size() == 1 ? 0 : random.below(node.seats.size())];
  Stretch where{options.instances ? any_file(node.disk, seat.folder(), random) : SimStore::kPath};
  where.size = node.disk.contents(where.path).size();
  if ((losses.any_rotted() && !again) || !others || where.size < 400 || !random.chance(0.5)) return;
  if (again && random.chance(0.5))
    if (auto last = last_record(node.disk, seat.folder())) where = *std::move(last);
  const std::uint64_t byte = flip_a_bit(node.disk, where, random);
  losses.rotted(seat.self());
  happened(Happened::bit_rot);
  say("rot in n%d at byte %llu of %s", i, static_cast<unsigned long long>(byte), where.path.c_str());
}

// What a keeper has promised, as long as all others have theirs: two of three that forget leave nobody to decide. After a loss of
// power not in its last record: on the disk that looks as if it had never been synced, and torn.
void Cluster::rot_keeper(int i, bool power) {
  if (!keeps(i) || keepers.size() < 3 || !random.chance(0.3)) return;
  for (const auto& [node, when] : keeper_rot_)
    if (when + 1 >= config) return;
  for (const Node& other : nodes)
    if (keeps(other.number()) && other.voted() != config) return;  // it has not been given its registers yet
  Node& node = nodes[static_cast<std::size_t>(i)];
  Stretch where{any_file(node.keeper_disk, "keeper", random)};
  where.size = std::min<std::size_t>(node.keeper_disk.contents(where.path).size(), 4096);  // the rest is not written yet, mostly
  if (const auto last = last_record(node.keeper_disk, "keeper"); power && last && last->path == where.path)
    where.size = std::min<std::size_t>(where.size, last->begin);
  if (where.size < 100) return;
  keeper_rot_[i] = config;
  const std::uint64_t byte = flip_a_bit(node.keeper_disk, where, random);
  happened(Happened::keeper_rot);
  say("rot in what n%d keeps at byte %llu of %s", i, static_cast<unsigned long long>(byte), where.path.c_str());
}

// The node's own init has seen the process die, and says so.
void Cluster::reaped(int node, std::uint64_t life, int times) {
  if (times == 0) return;
  at(now + between(random, 2 * ms, 30 * ms), [this, node, life, times] {
    for (std::uint32_t p = 0; p < partition_count; p++)
      for (const Seat& seat : nodes[static_cast<std::size_t>(node)].seats) {
        const Member who{seat.id(), life};
        if (!is_member(latest_[p], who)) continue;
        ManagerMessage message;
        message.from = NodeId{static_cast<std::uint64_t>(node)};
        KeeperMessage& one = message.keeper.emplace_back();
        one.kind = KeeperMessage::Kind::change;
        one.partition = PartitionId{p};
        one.change = {Change::Kind::exited, latest_[p].epoch, who, who, {}};
        const int keeper = static_cast<int>(keepers[random.below(keepers.size())]);
        message.to = NodeId{static_cast<std::uint64_t>(keeper)};
        send(node, keeper, std::move(message));
      }
    reaped(node, life, times - 1);
  });
}

void Cluster::restart(int i) {
  Node& node = nodes[static_cast<std::size_t>(i)];
  if (node.up || node.removed) return;
  if (!options.defects.has(Defect::same_incarnation)) node.incarnation = next_life(node);
  node.disk.fail_syncs(false);
  node.keeper_disk.fail_syncs(false);
  happened(Happened::restarted);
  node.start();
}

void Cluster::fault() {
  if (now >= stop_faults || quiet_) return;
  const bool loaded = options.emphasis == RunOptions::Emphasis::loaded;
  const Micros hold = random.chance(0.3) ? between(random, 10 * ms, 150 * ms) : between(random, 150 * ms, loaded ? 500 * ms : 1200 * ms);
  const auto any_node = [&] { return static_cast<int>(random.below(kNodes)); };
  const std::uint32_t p = static_cast<std::uint32_t>(random.below(partition_count));
  const int primary = home(latest_[p].primary.instance);
  const int i = random.chance(0.5) ? primary : any_node();
  result.faults++;
  int total = 0;
  for (int weight : weights_) total += weight;
  std::size_t pick = 0;
  for (int r = static_cast<int>(random.below(static_cast<std::uint64_t>(total))); r >= weights_[pick]; pick++) r -= weights_[pick];
  switch (static_cast<Fault>(pick)) {
    case Fault::crash_primary: crash(i, false); break;
    case Fault::power_primary: crash(i, power_); break;
    case Fault::power_many:
      if (power_ && random.chance(0.3)) {
        for (int j = 0; j < kNodes; j++) crash(j, true);
        happened(Happened::power_lost_by_all);
      }
      else crash(any_node(), false);
      break;
    case Fault::isolate: say("isolate n%d", i); split({i}, hold, false); break;
    case Fault::split: {
      std::set<int> side;
      for (int j = 0; j < kNodes; j++) if (random.chance(0.5)) side.insert(j);
      for (int j = 0; j < kClients; j++) if (random.chance(0.5)) side.insert(kClientBase + j);
      say("split");
      split(side, hold, true);
      break;
    }
    case Fault::one_way: cut({{i, any_node()}}, hold); break;
    case Fault::peers_only: {
      Links links;
      for (int j = 0; j < kNodes; j++) if (j != i) links.insert({i, j}), links.insert({j, i});
      say("n%d sees only clients", i);
      cut(links, hold);
      break;
    }
    case Fault::pause:
      say("pause n%d for %lld ms", i, static_cast<long long>(hold / ms));
      nodes[static_cast<std::size_t>(i)].paused_until = now + hold;
      happened(Happened::stalled);
      break;
    case Fault::slow_network: slow_until_ = now + hold / 2; break;
    case Fault::slow_disk: slow_disk = !slow_disk; break;
    case Fault::move: move_something(); break;
    case Fault::ragged: {  // some links, some directions
      Links links;
      const double density = random.chance(0.5) ? 0.25 : 0.6;
      for (int x = 0; x < kNodes; x++) for (int y = 0; y < kNodes; y++) if (x != y && random.chance(density)) links.insert({x, y});
      say("ragged cut of %zu links", links.size());
      cut(links, hold);
      break;
    }
    case Fault::full_disk: {
      std::set<int> full{i};
      if (random.chance(0.3))  // nobody who counts has room
        for (Member one : latest_[p].sync) full.insert(home(one.instance));
      for (const int j : full) {
        if (!nodes[static_cast<std::size_t>(j)].up) continue;
        say("disk of n%d is full", j);
        nodes[static_cast<std::size_t>(j)].set_full(true);
        at(now + hold, [this, j] { if (nodes[static_cast<std::size_t>(j)].up) nodes[static_cast<std::size_t>(j)].set_full(false); });
      }
      break;
    }
    case Fault::failing_disk: {
      Node& node = nodes[static_cast<std::size_t>(i)];
      if (!node.up || !power_) break;
      node.disk.fail_syncs(true);
      node.keeper_disk.fail_syncs(true);
      // The process that fails to sync ends; what it had written since the last sync is not to be trusted.
      at(now + between(random, 50 * ms, 400 * ms), [this, i] { crash(i, true); });
      break;
    }
    case Fault::come_and_go: come_or_go(); break;
    case Fault::interrupt_vote:
      vote_armed_ = true;
      if (random.chance(0.5)) move_something();  // that there is a vote
      break;
    case Fault::stall_link: {
      // Long enough for another to lead, and for clients to ask that one.
      const Micros until = now + between(random, 200 * ms, 700 * ms);
      say("what n%d says is held back for %lld ms", i, static_cast<long long>((until - now) / ms));
      stalled_[i] = until;
      break;
    }
    case Fault::clock: {
      const double rate = 1 + (random.unit() * 2 - 1) * 0.05;
      const bool jumps = random.chance(0.5);
      const Micros ahead = jumps ? between(random, -sec * 86400, sec * 86400) : 0;
      say("clock of n%d goes at %.3f%s", i, rate, jumps ? " and shows another time of day" : "");
      nodes[static_cast<std::size_t>(i)].set_clock(rate, ahead);
      happened(Happened::clock_rate);
      if (jumps) happened(Happened::clock_jump);
      break;
    }
    case Fault::count: break;
  }
  at(now + static_cast<Micros>(pace_ * static_cast<double>(between(random, 40 * ms, 700 * ms))), [this] { fault(); });
}

// A wish of a balancer that has its own ideas.
void Cluster::move_something() {
  const std::uint32_t p = static_cast<std::uint32_t>(random.below(partition_count));
  const View& view = latest_[p];
  Node& node = node_of(view.primary.instance);
  if (!node.up || now < node.paused_until) return;
  Goal goal;
  for (const Members* members : {&view.sync, &view.learners}) for (Member one : *members) goal.members.push_back(one.instance);
  if (random.chance(0.6)) {
    const InstanceId fresh = any_instance();
    if (std::find(goal.members.begin(), goal.members.end(), fresh) == goal.members.end())
      goal.members[random.below(goal.members.size())] = fresh;
  }
  goal.primary = goal.members[random.below(goal.members.size())];
  say("partition %u shall be led by instance %u", p, static_cast<std::uint32_t>(goal.primary));
  node.set_goal(PartitionId{p}, goal);
}

void Cluster::accepted(int voter, int proposer, PartitionId partition) {
  if (!vote_armed_ || voter == proposer || now >= stop_faults) return;
  vote_armed_ = false;
  interrupt_vote(proposer, partition);
}

// The proposer, and who leads the partition, learn of the decision and nobody else does; who voted for it ends and begins
// again. Only what was promised and is durable keeps the others from deciding otherwise.
void Cluster::interrupt_vote(int proposer, PartitionId partition) {
  happened(Happened::vote_interrupted);
  say("a vote of n%d is interrupted", proposer);
  std::set<int> side = {proposer};
  const int primary = home(latest_[static_cast<std::uint32_t>(partition) % partition_count].primary.instance);
  if (random.chance(0.7)) side.insert(primary);
  Links links;
  for (int x : side) for (int y = 0; y < kNodes; y++) if (!side.contains(y)) links.insert({x, y});
  const Micros hold = between(random, 300 * ms, 1500 * ms);
  cut(links, hold);
  at(now + 700, [this, side, hold] { split(side, hold, false); });
  for (int j = 0; j < kNodes; j++)
    if (keeps(j) && j != proposer && random.chance(0.9)) at(now + between(random, 0, 600), [this, j] { crash(j, power_ && random.chance(0.7)); });
}

void Cluster::other_keepers(int node, std::uint64_t number, const std::vector<NodeId>& list) {
  const auto [known, fresh] = decided_keepers_.emplace(number, list);
  if (!fresh) {
    if (known->second != list) bad("two lists of keepers of one number", "configuration " + std::to_string(number) + " at " + name(node));
    return;
  }
  happened(Happened::keepers_changed);
  std::string names;
  for (NodeId one : list) names += " n" + std::to_string(static_cast<int>(one));
  say("keepers %llu:%s", static_cast<unsigned long long>(number), names.c_str());
  if (number <= config) return;
  if (options.emphasis == RunOptions::Emphasis::keepers && now < stop_faults) hear_one_first();
  config = number;
  keepers = list;
}

// For a while nobody hears the older keepers, but one.
void Cluster::hear_one_first() {
  if (!random.chance(0.7)) return;
  Links links;
  const NodeId heard = deaf_ ? *deaf_ : keepers[random.below(keepers.size())];
  for (NodeId older : keepers) {
    if (older == heard) continue;
    for (int j = 0; j < kNodes; j++) links.insert({static_cast<int>(older), j});
  }
  cut(links, between(random, 1000 * ms, 2500 * ms));
}

// A keeper is not told what the others decide, until others keep.
void Cluster::deafen(NodeId keeper) {
  deaf_ = keeper;
  Links links;
  for (int j = 0; j < kNodes; j++) links.insert({j, static_cast<int>(keeper)});
  say("n%d is deaf", static_cast<int>(keeper));
  const Micros hold = between(random, 600 * ms, 1500 * ms);
  cut(links, hold);
  at(now + hold + 1000 * ms, [this] { deaf_.reset(); });
}

bool Cluster::has_part(const View& view, int node) {
  const auto here = [&](Member one) { return home(one.instance) == node; };
  return std::any_of(view.sync.begin(), view.sync.end(), here) || std::any_of(view.learners.begin(), view.learners.end(), here);
}

void Cluster::left(int i) {
  for (const View& view : latest_) if (has_part(view, i)) return;
  Node& node = nodes[static_cast<std::size_t>(i)];
  if (!node.keepership->may_leave()) return;
  happened(Happened::left);
  if (i < kKeepers) happened(Happened::keeper_left);
  say("n%d has left", i);
  node.stop(false);
  node.leaving = false;
  at(now + between(random, 100 * ms, 1500 * ms), [this, i] { restart(i); });
}

void Cluster::come_or_go() {
  const int i = static_cast<int>(random.below(kNodes));
  Node& node = nodes[static_cast<std::size_t>(i)];
  if (!node.known) {
    say("n%d joins", i);
    happened(Happened::joined);
    node.known = true;
    node.start();
  } else {
    node.leaving = !node.leaving;
    say("n%d %s", i, node.leaving ? "is leaving" : "stays");
    const auto id = NodeId{static_cast<std::uint64_t>(i)};
    const auto other = std::find_if(keepers.begin(), keepers.end(), [&](NodeId one) { return one != id; });
    if (options.emphasis == RunOptions::Emphasis::keepers && node.leaving && keeps(i) && other != keepers.end()) deafen(*other);
  }
}

// On a machine of which others have nearly all: it runs for a moment, finds what came meanwhile, and waits for its next turn.
void Cluster::starve(int i) {
  if (now >= stop_faults) return;
  Node& node = nodes[static_cast<std::size_t>(i)];
  node.paused_until = now + between(random, 100 * ms, 700 * ms);
  happened(Happened::stalled);
  at(node.paused_until + between(random, 1 * ms, 12 * ms), [this, i] { starve(i); });
}

void Cluster::split(const std::set<int>& side, Micros hold, bool clients_too) {
  Links links;
  std::vector<int> all;
  for (int j = 0; j < kNodes; j++) all.push_back(j);
  for (int j = 0; j < kClients; j++) if (clients_too || random.chance(0.7)) all.push_back(kClientBase + j);
  for (int x : all) for (int y : all) if (side.contains(x) != side.contains(y)) links.insert({x, y});
  cut(links, hold);
}

void Cluster::cut(Links links, Micros hold) {
  std::erase_if(links, [](const auto& link) { return link.first == link.second; });
  for (const auto& link : links) cut_[link]++;
  at(now + hold, [this, links] {
    for (const auto& link : links)
      if (const auto found = cut_.find(link); found != cut_.end() && --found->second <= 0) cut_.erase(found);
  });
}

void Cluster::heal() {
  say("heal");
  const Micros together = random.chance(0.5) ? between(random, 0, 1500 * ms) : -1;
  cut_.clear();
  loss_ = repeat_ = 0;
  slow_until_ = 0;
  stalled_.clear();
  vote_armed_ = slow_disk = false;
  for (int i = 0; i < kNodes; i++) {
    Node& node = nodes[static_cast<std::size_t>(i)];
    node.paused_until = now;
    node.leaving = false;
    if (node.removed) {  // it comes back although it was given up
      at(now + (together >= 0 ? together : between(random, 0, 1500 * ms)), [this, i] {
        nodes[static_cast<std::size_t>(i)].removed = false;
        restart(i);
      });
      continue;
    }
    if (node.up) node.set_full(false);
    if (node.up && node.has_failed()) crash(i, true);
    if (!node.up && node.known) restart(i);
  }
}

void Cluster::judge() {
  if (!clients.back().finished && result.violations.empty()) {
    std::string where;
    for (const View& view : latest_) where += " [" + to_string(view) + "]";
    for (int i = 0; i < kNodes; i++) {
      Node& node = nodes[static_cast<std::size_t>(i)];
      if (node.up)
        say("n%d: %s; its folder: %s", i, node.keepership->story().c_str(), node.sightings ? node.sightings->story().c_str() : "not asked about");
      for (std::uint32_t p = 0; p < partition_count && node.up; p++)
        for (Seat& seat : node.seats)
          if (Replica* const replica = seat.replicator->find(PartitionId{p}))
            say("%u partition %u: view %s, %s", static_cast<std::uint32_t>(seat.id()), p, to_string(replica->view()).c_str(),
                replica->story().c_str());
    }
    bad("did not recover", where);
  }
  for (Node& node : nodes) {
    for (Seat& seat : node.seats) {
      if (node.up) seat.check_tables("at the end");
      seat.note_rewinds();
    }
  }
  if (result.violations.size() < 20) history.judge();
  result.last_second_lost = history.lost();
}

RunResult run_cluster(std::uint64_t seed, const RunOptions& options) { return Cluster(seed, options).run(); }

}  // namespace zht::sim

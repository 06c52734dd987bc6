// A node: its process and its machine, its manager and its keeper.
#include "tests/sim/rot.h"
#include "tests/sim/unsynced_registers.h"
#include "tests/sim/world.h"

namespace zht::sim {

Node::Node(Cluster& world, int id) : world_(world), id_(id) {
  rate_ = 1 + (world.random.unit() * 2 - 1) * 0.05;
  offset_ = between(world.random, 1 * sec, 1000 * sec);
  known = id < kSeeds;
  rack = static_cast<std::uint32_t>(id % 3);
  for (int place = 0; place < world.seat_count; place++) seats.emplace_back(*this, place);
  for (int i = 0; i < kKeepers; i++) keepers_.push_back(NodeId{static_cast<std::uint64_t>(i)});
}

Micros Node::world_now() const { return world_.now; }

base::Time Node::now() const { return base::Time(std::chrono::microseconds(local(world_.now))); }

void Node::start() {
  const Defects defects = world_.options.defects;
  up = powered = true;
  life_++;
  full_ = false;
  Members own;
  for (Seat& seat : seats) {
    if (!seat.open()) return die_opening();
    own.push_back(seat.replicator->self());
  }
  std::vector<View> views = world_.first;
  if (incarnation > 1 && !defects.has(Defect::same_incarnation)) views.assign(views.size(), View{});
  ManagerOptions options;
  options.self = NodeId{static_cast<std::uint64_t>(id_)};
  options.config = config_;
  options.keepers = keepers_;
  options.balancing.copies = world_.timing.copies;
  options.balances = world_.partition_count > 1;
  std::vector<NodeId> peers;
  for (int i = 0; i < kSeeds; i++) peers.push_back(NodeId{static_cast<std::uint64_t>(i)});
  NodeInfo info{options.self, incarnation << 32, own, rack, !full_, leaving};
  manager = std::make_unique<Manager>(options, info, views, peers, world_.random.next());
  begin_sightings();
  KeepershipOptions keeping;
  if (sightings) {
    keeping.may_vote = [this] { return sightings->verdict() != Sightings::Verdict::waits; };
    keeping.trusts = [this](NodeId node, std::uint64_t life) { return sightings->trusts(node, life); };
    keeping.outdated = sightings->outdated() != 0;
    keeping.life = incarnation;
  }
  keeping.self = options.self;
  keeping.partitions = world_.partition_count;
  keeping.config = config_;
  keeping.keepers = keepers_;
  keeping.replace = std::chrono::microseconds(world_.replace_after);
  keeping.defects = defects;
  keeping.seed = world_.random.next();
  keeping.voted = voted_;
  keeping.note_voted = [this](std::uint64_t config) -> Result<void> {
    voted_ = config;
    return {};
  };
  keepership = std::make_unique<Keepership>(keeping, *manager, [this] { return open_registers(); });
  if (keepership->keeps(options.self) || !keeper_disk.paths().empty()) {
    std::vector<View> registers = world_.first;
    registers.push_back(keepers_view(1, {options.self}));  // of numbers, which nobody asks for here
    const bool dies = world_.dies_opening();
    if (dies) keeper_disk.stop_at(keeper_disk.operations() + 1 + world_.random.below(8));
    const auto begun = keepership->begin(std::move(registers));
    if (!begun && dies) return die_opening();
    CHECK(begun.has_value(), begun ? "" : begun.error().message);
    keeper_disk.stop_at(~std::uint64_t{0});
    if (keepership->has_lost_registers()) {
      world_.say("n%d has lost what it kept", id_);
      world_.happened(Happened::keeper_lost);
    }
  }
  use_sightings();
  for (Seat& seat : seats)
    seat.round([&] {
      seat.replicator->set_sites(manager->sites());
      for (std::uint32_t p = 0; p < world_.partition_count; p++) seat.adopt(PartitionId{p}, manager->view(PartitionId{p}));
    });
  tick();
}

bool Node::load_registers() {
  novoht::Options options;
  options.segment_size = 1 << 16;
  auto opened = novoht::Store::open(keeper_disk, "keeper", options);
  CHECK(opened || opened.code() == base::Code::corrupt || opened.code() == base::Code::io, opened ? "" : opened.error().message);
  if (!opened) return opened.code() == base::Code::io;
  registers_ = *std::move(opened);
  register_store_ = std::make_unique<StoredRegisters>(*registers_, novoht::TableId{0});
  std::vector<Register> all(world_.partition_count + 3);
  return register_store_->load(all).has_value();
}

// What is damaged is put aside, as a node's server does it.
Result<RegisterStore*> Node::open_registers() {
  if (!load_registers()) {
    register_store_.reset();
    registers_.reset();
    keeper_disk.stop_at(~std::uint64_t{0});  // it is one step there
    for (const std::string& path : keeper_disk.paths()) TRY(keeper_disk.remove(path));
    TRY(keeper_disk.sync_folder("keeper"));
    CHECK(load_registers());
  }
  if (!registers_) return base::fail(base::Code::io, "it died");
  if (world_.options.defects.has(Defect::keeper_unsynced)) register_store_ = std::make_unique<UnsyncedRegisters>(*registers_);
  return register_store_.get();
}

void Node::die_opening() {
  world_.happened(Happened::died_opening);
  const bool power = world_.loses_power();
  world_.say("n%d dies while it opens a store%s", id_, power ? " (power)" : "");
  stop(power);
  if (power) world_.look_for_losses();
  world_.at(world_.now + between(world_.random, 300, 40 * ms), [this] { world_.restart(id_); });
}

void Node::set_full(bool full) {
  if (full && !full_) world_.happened(Happened::disk_full);
  full_ = full;
  for (Seat& seat : seats) seat.set_full(full);
  if (world_.options.instances) disk.set_capacity(full ? disk.used() : std::uint64_t{1} << 60);
}

void Node::stop(bool power) {
  up = false;
  ended[incarnation] = world_.now;
  life_++;
  for (Seat& seat : seats) seat.close();
  keepership.reset();
  sightings.reset();
  manager.reset();
  register_store_.reset();
  registers_.reset();
  powered = !power && world_.options.scenario != RunOptions::Scenario::node_dies;
  disk.set_capacity(std::uint64_t{1} << 60);
  if (power) {
    boot++;
    for (const Seat& seat : seats) world_.losses.power_lost(seat.self());
    world_.happened(Happened::power_lost);
    const auto surface = [&] {
      std::string all;
      for (const std::string& path : disk.paths()) all += path + disk.contents(path);
      return base::hash64(all, 0);
    };
    const std::uint64_t before = surface();
    disk.crash(world_.random);
    keeper_disk.crash(world_.random);
    own_disk.crash(world_.random);
    if (surface() != before) world_.happened(Happened::unsynced_lost);
  } else {
    disk.kill();
    keeper_disk.kill();
    own_disk.kill();
  }
}

void Node::tick() {
  if (!up) return;
  if (world_.now >= paused_until) {
    NodeInfo& info = manager->self();
    info.room = !full_;
    info.leaving = leaving;
    base::Time due = std::min(manager->next_due(), keepership->next_due());
    if (sightings) due = std::min(due, sightings->next_due());
    if (due <= now()) {
      manager->tick(now());
      keepership->tick(now());
      keep_sightings();
    }
    const std::uint64_t life = life_;
    for (Seat& seat : seats) {
      if (world_.now >= paused_until) seat.tick();
      if (life != life_) return;
    }
    for (Seat& seat : seats) seat.sync();
    if (leaving && world_.now < world_.stop_faults) world_.left(id_);
    if (!up) return;
  }
  const Micros next = std::max(world_.now + between(world_.random, 8 * ms, 12 * ms), paused_until);
  world_.at(next, [this, life = life_] { if (life == life_) tick(); });
}

void Node::deliver(int from, const PacketPtr& packet) {
  if (!up) {  // where the machine still runs, its kernel says that nobody listens
    const auto* request = std::get_if<Request>(packet.get());
    if (request != nullptr && powered) world_.send(id_, from, Reply{request->client, request->sequence, request->epoch, Status::retry, {}, 0});
    return;
  }
  if (world_.now < paused_until) {  // a stopped process finds its mail when it wakes
    world_.at(paused_until + between(world_.random, 0, 500), [this, from, packet, life = life_] { if (life == life_) deliver(from, packet); });
    return;
  }
  if (const auto* peer = std::get_if<PeerMessage>(packet.get())) {
    Seat& seat = seat_of(peer->to);
    return seat.round([&] { seat.on_peer(*peer); });
  }
  if (const auto* request = std::get_if<Request>(packet.get())) {
    Seat& seat = seat_of(request->to);
    return seat.round([&] { seat.on_request(from, *request); });
  }
  if (std::holds_alternative<GetViews>(*packet)) world_.send(id_, from, Views{manager->views()});
  if (const auto* message = std::get_if<ManagerMessage>(packet.get())) {
    manager->on_message(*message, now());
    if (sightings) {
      sightings->on_message(*message, now());
      tell_verdict();
    }
    keepership->on_message(*message, now());
  }
  after_turn();
}

Seat& Node::seat_of(InstanceId instance) {
  return seats[static_cast<std::size_t>(static_cast<std::uint32_t>(instance) / kNodes) % seats.size()];
}

bool Node::has_failed() const {
  return std::any_of(seats.begin(), seats.end(), [](const Seat& one) { return one.replicator->failed(); });
}

void Node::after_turn() {
  std::vector<std::pair<PartitionId, View>> adopt_later;
  for (int i = 0; i < 3; i++) {  // what one of them says may be news to another
    for (const Placed& one : manager->take_goals())
      for (Seat& seat : seats) seat.replicator->set_goal(one.partition, one.goal);
    for (PartitionId partition : manager->take_news()) {
      const View view = manager->view(partition);
      world_.learned(partition, view);
      if (world_.options.instances) adopt_later.emplace_back(partition, view);
      else seats.front().adopt(partition, view);
      keepership->on_view(partition, view, now());
    }
    bool again = false;
    auto sends = keepership->end_round(now(), again);
    if (!sends) break;  // it can promise nothing more
    for (KeeperSend& send : *sends) {
      for (const KeeperMessage& one : send.messages)
        if (one.kind == KeeperMessage::Kind::accepted) world_.accepted(id_, static_cast<int>(send.to), one.partition);
      ManagerMessage message;
      message.from = NodeId{static_cast<std::uint64_t>(id_)};
      message.to = send.to;
      message.keeper = std::move(send.messages);
      world_.send(id_, static_cast<int>(send.to), std::move(message));
    }
  }
  if (keepership->take_changed()) {
    config_ = keepership->config();
    keepers_ = keepership->keepers();
    world_.other_keepers(id_, config_, keepers_);
  }
  for (ManagerMessage& message : manager->take_messages()) {
    const int to = static_cast<int>(message.to);
    world_.send(id_, to, std::move(message));
  }
  if (!adopt_later.empty())
    world_.at(world_.now, [this, adopt_later, life = life_] {
      if (life != life_) return;
      for (Seat& seat : seats) {
        seat.round([&] { for (const auto& [partition, view] : adopt_later) seat.adopt(partition, view); });
        if (life != life_) return;
      }
    });
  for (Seat& seat : seats) seat.drop_watches();
}

// The clock goes on from where it is, at another rate; the time of day may jump. A clock that jumps although nobody set it is
// one that was stopped: see Fault::pause.
void Node::set_clock(double rate, Micros wall_ahead) {
  offset_ = local(world_.now) - static_cast<Micros>(static_cast<double>(world_.now) * rate);
  rate_ = rate;
  wall_ahead_ = wall_ahead;
}

void Node::set_goal(PartitionId partition, const Goal& goal) {
  for (Seat& seat : seats) seat.round([&] { seat.replicator->set_goal(partition, goal); });
}

void Node::reply_retry(int to, const Request& request) {
  Reply reply{request.client, request.sequence, request.epoch, Status::retry, {}, 0};
  world_.send(id_, to, reply);
  world_.send(id_, to, Views{manager->views()});
}

}  // namespace zht::sim

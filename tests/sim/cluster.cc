#include "tests/sim/cluster.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <variant>

#include "tests/sim/rot.h"
#include "tests/sim/unsynced_registers.h"
#include "tests/sim/words.h"
#include "tests/sim/world.h"

namespace zht::sim {

// --- a node ---

Node::Node(Cluster& world, int id) : world_(world), id_(id) {
  rate_ = 1 + (world.random.unit() * 2 - 1) * 0.05;
  offset_ = between(world.random, 1 * sec, 1000 * sec);
  known = id < kSeeds;
  for (int i = 0; i < kKeepers; i++) keepers_.push_back(NodeId{static_cast<std::uint64_t>(i)});
}

Micros Node::world_now() const { return world_.now; }

base::Time Node::now() const { return base::Time(std::chrono::microseconds(local(world_.now))); }

void Node::start() {
  const Defects defects = world_.options.defects;
  up = powered = true;
  life_++;
  syncing_ = finish_later_ = full_ = failure_noted_ = false;
  marked_ = unsynced_ = 0;
  out_.clear();
  asked_.clear();
  if (!world_.options.instances) open_protocol();
  else if (!open_instance()) return die_opening();
  const Member self = replicator->self();
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
  NodeInfo info{options.self, incarnation << 32, {self}, static_cast<std::uint32_t>(id_ % 3), !full_, leaving};
  manager = std::make_unique<Manager>(options, info, views, peers, world_.random.next());
  KeepershipOptions keeping;
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
  round([this] {
    for (std::uint32_t p = 0; p < world_.partition_count; p++) {
      if (instance) instance->adopt(PartitionId{p}, manager->view(PartitionId{p}));
      else replicator->adopt(PartitionId{p}, manager->view(PartitionId{p}));
    }
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

void Node::open_protocol() {
  store = std::make_unique<SimStore>(disk, incarnation, world_.options.defects);
  const SimStore::Opened& opened = store->opened();
  world_.say("start n%d.%llu with %zu entries%s%s", id_, static_cast<unsigned long long>(incarnation), opened.entries,
             opened.torn ? ", torn" : "", opened.damaged ? ", DAMAGED" : "");
  if (opened.torn) world_.happened(Happened::torn_log);
  const Member self{InstanceId{static_cast<std::uint32_t>(id_)}, incarnation};
  own_ = std::make_unique<Replicator>(self, world_.timing, *store, world_.options.defects, this);
  replicator = own_.get();
  replicator->begin(now());
  server_ = std::make_unique<BareServer>(
      *own_, *store, world_.options.defects, [this](int client, const Reply& reply) { world_.send(id_, client, reply); },
      [this](int client, const Request& request) { reply_retry(client, request); });
}

bool Node::open_instance() {
  core::InstanceOptions options;
  options.id = InstanceId{static_cast<std::uint32_t>(id_)};
  options.clustered = true;
  options.incarnation = incarnation;
  options.boot = "boot " + std::to_string(boot);
  options.durability = world_.always ? core::Durability::always : core::Durability::interval;
  options.segment_size = world_.options.emphasis == RunOptions::Emphasis::rot ? 1 << 12 : 1 << 13;
  options.log_floor = 0;
  options.timing = world_.timing;
  options.maintain_budget = {};  // by the computer's clock, a run would not repeat
  options.keep_departed = std::chrono::milliseconds(50 + world_.random.below(3000));
  options.defects = world_.options.defects;
  options.observer = this;
  const bool dies = world_.dies_opening();
  if (dies) disk.stop_at(disk.operations() + 1 + world_.random.below(20));
  auto opened = Instance::open(disk, "store", options, procedures(), std::vector<View>(world_.partition_count));
  if (!opened && dies) return false;
  disk.stop_at(~std::uint64_t{0});
  CHECK(opened.has_value(), opened ? "" : opened.error().message);
  instance = *std::move(opened);
  replicator = &instance->replicator();
  const core::ReplicatedStore::Opened& how = instance->opened();
  world_.say("start n%d.%llu%s%s%s", id_, static_cast<unsigned long long>(incarnation), how.torn ? ", torn" : "",
             how.sure ? "" : ", unsure", how.damaged ? (", DAMAGED: " + how.damage).c_str() : "");
  if (how.torn) world_.happened(Happened::torn_log);
  world_.result.unsure += !how.sure;
  world_.result.damaged += how.damaged;
  note_alone(false);
  for (std::uint32_t p = 0; p < world_.partition_count; p++) {
    seen_[p] = instance->replicated_store().end(PartitionId{p});
    world_.losses.opened(self(), p, seen_[p], !how.damaged && !how.torn);
  }
  world_.look_for_losses();
  check_tables("opened");
  return true;
}

// Whatever brought them there, the tables are what they must be at the log's end.
void Node::check_tables(const char* when) {
  if (!instance || replicator->failed()) return;
  for (std::uint32_t p = 0; p < world_.partition_count; p++) {
    if (const Replica* const replica = replicator->look(PartitionId{p}); replica != nullptr && replica->importing()) continue;
    const Position end = instance->replicated_store().end(PartitionId{p});
    const std::string wrong = world_.ledger.compare(p, end, instance->replicated_store().tables());
    if (wrong.empty()) continue;
    world_.bad("tables are not what the log makes of them",
               Cluster::name(id_) + " " + when + " partition " + std::to_string(p) + ": " + wrong);
  }
}

void Node::set_full(bool full) {
  if (full && !full_) world_.happened(Happened::disk_full);
  full_ = full;
  if (store) store->set_full(full);
  if (instance) disk.set_capacity(full ? disk.used() : std::uint64_t{1} << 60);
}

void Node::stop(bool power) {
  up = false;
  ended[incarnation] = world_.now;
  life_++;
  if (instance) world_.result.rewinds += instance->replicated_store().rewinds();
  replicator = nullptr;
  server_.reset();
  own_.reset();
  instance.reset();
  keepership.reset();
  manager.reset();
  register_store_.reset();
  store.reset();
  registers_.reset();
  powered = !power && world_.options.scenario != RunOptions::Scenario::node_dies;
  disk.set_capacity(std::uint64_t{1} << 60);
  if (power) {
    boot++;
    world_.losses.power_lost(self());
    world_.happened(Happened::power_lost);
    const auto surface = [&] {
      std::string all;
      for (const std::string& path : disk.paths()) all += path + disk.contents(path);
      return base::hash64(all, 0);
    };
    const std::uint64_t before = surface();
    disk.crash(world_.random);
    keeper_disk.crash(world_.random);
    if (surface() != before) world_.happened(Happened::unsynced_lost);
  } else {
    disk.kill();
    keeper_disk.kill();
  }
}

void Node::tick() {
  if (!up) return;
  if (world_.now >= paused_until) {
    round([this] {
      NodeInfo& info = manager->self();
      info.room = !full_;
      info.leaving = leaving;
      manager->tick(now());
      replicator->set_candidates(manager->candidates(now()));
      replicator->set_sites(manager->sites());
      keepership->tick(now());
      if (instance) instance->on_tick();
      else replicator->tick();
    });
    const bool due = world_.now - synced_at_ > 900 * ms || world_.random.chance(0.02);
    if (instance && !world_.always && due) sync_instance();
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
  round([&] {
    if (const auto* message = std::get_if<PeerMessage>(packet.get())) {
      if (instance) instance->on_peer(*message);
      else replicator->on_message(*message);
    }
    if (const auto* request = std::get_if<Request>(packet.get())) {
      if (instance) on_frame_request(from, *request);
      else server_->on_request(from, *request);
    }
    if (std::holds_alternative<GetViews>(*packet)) world_.send(id_, from, Views{manager->views()});
    if (const auto* message = std::get_if<ManagerMessage>(packet.get())) {
      manager->on_message(*message, now());
      keepership->on_message(*message, now());
    }
  });
}

// One round of a node's event loop: what came, then the disk, then what may be said.
void Node::round(const std::function<void()>& work) {
  if (instance) return instance_round(work);
  const base::Time begun = now();
  replicator->begin(begun);
  work();
  if (!up) return;
  marked_ = replicator->mark();
  if (!replicator->failed() && !store->flush()) return fail();
  if (!world_.always) replicator->durable(marked_, now());
  else if (store->dirty()) {
    unsynced_ = marked_;
    if (!syncing_) sync_soon();
  }
  if (finish_later_) return;
  const bool stall = world_.round_pause > 0 && world_.now < world_.stop_faults && world_.random.chance(world_.round_pause);
  if (!stall) return finish(now());
  // The process is stopped between its work and its answers.
  finish_later_ = true;
  world_.happened(Happened::stalled_answer);
  const Micros until = world_.now + between(world_.random, 50 * ms, 900 * ms);
  paused_until = std::max(paused_until, until);
  const bool stale = world_.options.defects.has(Defect::lease_before_value);
  world_.at(paused_until, [this, life = life_, begun, stale] {
    if (life != life_) return;
    finish_later_ = false;
    finish(stale ? begun : now());
  });
}

void Node::instance_round(const std::function<void()>& work) {
  const base::Time begun = now();
  instance->begin_round(begun, wall());
  work();
  for (PeerMessage& message : instance->take_peer_messages())
    world_.send(id_, static_cast<int>(static_cast<std::uint32_t>(message.to)), std::move(message));
  const bool dirty = instance->dirty();
  // What was said before the disk has it is said; what was to be said after that is not.
  if (dirty && world_.crash_now(id_)) {
    paused_until = world_.now + 1;
    finish_later_ = true;
    return;
  }
  const bool written = instance->end_round().has_value();
  if (!written) {
    note_failure();
    out_.clear();
  } else {
    note_alone(true);
  }
  if (finish_later_) return;
  const bool stall = world_.round_pause > 0 && world_.now < world_.stop_faults && world_.random.chance(world_.round_pause);
  if (!stall) {
    finish(now());
    if (dirty && world_.random.chance(0.2)) world_.crash_point(id_);
    return;
  }
  finish_later_ = true;
  world_.happened(Happened::stalled_answer);
  paused_until = std::max(paused_until, world_.now + between(world_.random, 50 * ms, 900 * ms));
  const bool stale = world_.options.defects.has(Defect::lease_before_value);
  world_.at(paused_until, [this, life = life_, begun, stale] {
    if (life != life_) return;
    finish_later_ = false;
    finish(stale ? begun : now());
  });
}

// What an instance wrote while it was alone in a view passed by its replica, and so by us; it is in the log.
// `shown`: what is there may have been acknowledged. Else it is what a life wrote at its very end.
void Node::note_alone(bool shown) {
  for (std::uint32_t p = 0; p < world_.partition_count; p++) {
    core::ReplicatedStore& held = instance->replicated_store();
    const Position end = held.end(PartitionId{p});
    Position& seen = seen_[p];
    if (end == seen) continue;
    const View& view = world_.latest(p);
    if (!shown && (view.sync.size() != 1 || view.primary.instance != self().instance)) continue;
    if (end.sequence == 0 || world_.ledger.find(p, end) != nullptr) {
      seen = end;
      continue;
    }
    auto tail = held.tables().begin_tail(novoht::TableId{p}, seen.sequence);
    const auto take = [&](const novoht::LogRecord& record) -> Result<void> {
      const Position at{Epoch{record.epoch}, record.version};
      if (world_.ledger.find(p, at) == nullptr)
        if (const std::string wrong = world_.ledger.add(p, at, seen, record.changes, record.note); !wrong.empty())
          world_.bad("a log with a wrong entry", Cluster::name(id_) + ": " + wrong);
      seen = at;
      world_.result.alone++;
      return {};
    };
    Result<bool> more = tail ? Result<bool>(true) : Result<bool>(tail.error());
    while (more && seen != end) more = (*tail)->next(1 << 20, take);
    if (!more) world_.bad("a log that cannot be read", Cluster::name(id_) + ": " + more.error().message);
    else if (shown) world_.history.committed(p, world_.ledger, end, Cluster::name(id_));
    seen = end;
  }
}

void Node::sync_instance() {
  if (replicator->failed()) return;
  if (instance->dirty()) {
    auto job = instance->begin_sync();
    if (!job) return;
    const auto synced = (*job)->run();
    instance->finish_sync(synced);
    if (!synced) return note_failure();
  }
  synced_at_ = world_.now;
  for (std::uint32_t p = 0; p < world_.partition_count; p++) world_.losses.synced(self(), p, instance->replicated_store().end(PartitionId{p}));
}

void Node::on_frame_request(int from, const Request& asked) {
  const std::uint64_t number = next_frame_++;
  asked_[number] = {from, asked};
  const std::string bytes = encode(asked, number, world_.partition_count);
  const auto frame = wire::next_frame(bytes, wire::kMaxFrameSize);
  CHECK(frame && *frame);
  instance->on_frames(ConnectionId{static_cast<std::uint64_t>(from)}, {&**frame, 1}, out_);
}

void Node::take_frames(Bytes frames) {
  while (!frames.empty()) {
    const auto frame = wire::next_frame(frames, wire::kMaxFrameSize);
    CHECK(frame && *frame, "an instance answers in frames");
    frames.remove_prefix((*frame)->size);
    const auto found = asked_.find((*frame)->request);
    if (found == asked_.end()) {
      world_.bad("answered twice, or what nobody asked", Cluster::name(id_));
      continue;
    }
    const Asked asked = std::move(found->second);
    asked_.erase(found);
    std::string what;
    const auto reply = decode(asked.request, **frame, what);
    if (!reply) {
      if (!replicator->failed()) world_.bad("an answer that may not be", Cluster::name(id_) + ": " + what);
      continue;
    }
    if (reply->status == Status::retry) reply_retry(asked.client, asked.request);
    else world_.send(id_, asked.client, *reply);
  }
}

void Node::sync_soon() {
  syncing_ = true;
  const Micros when = world_.now + between(world_.random, 50, world_.slow_disk ? 60 * ms : 1500);
  world_.at(when, [this, life = life_, mark = marked_] {
    if (life != life_) return;
    syncing_ = false;
    if (!store->sync()) return fail();
    replicator->durable(mark, now());
    if (unsynced_ > mark) sync_soon();
    // What was written is acknowledged when the process runs again.
    if (!finish_later_ && world_.now >= paused_until) finish(now());
    world_.crash_point(id_);
  });
}

void Node::note_failure() {
  if (std::exchange(failure_noted_, true)) return;
  world_.happened(Happened::disk_failed);
  world_.say("disk of n%d failed", id_);
}

void Node::fail() {
  if (replicator->failed()) return;
  note_failure();
  replicator->fail();
  after_round();
}

void Node::finish(base::Time at) {
  if (instance) instance->finish_round(at);
  else replicator->finish(at);
  after_round();
}

void Node::after_round() {
  if (instance) {
    take_frames(std::exchange(out_, {}));
    for (const core::Send& send : instance->take_sends()) take_frames(send.frame);
  }
  for (PeerMessage& message : instance ? instance->take_peer_messages() : replicator->take_messages()) {
    const int to = static_cast<int>(static_cast<std::uint32_t>(message.to));
    world_.send(id_, to, std::move(message));
  }
  for (const Released& one : replicator->take_released()) server_->release(one);
  for (const Wish& wish : replicator->take_wishes()) {
    manager->wish(wish);
  }
  for (const ViewNews& one : instance ? instance->take_news() : replicator->take_news()) manager->adopt(one.partition, one.view);
  std::vector<std::pair<PartitionId, View>> adopt_later;
  for (int i = 0; i < 3; i++) {  // what one of them says may be news to another
    for (const Placed& one : manager->take_goals()) replicator->set_goal(one.partition, one.goal);
    for (PartitionId partition : manager->take_news()) {
      const View view = manager->view(partition);
      world_.learned(partition, view);
      if (instance) adopt_later.emplace_back(partition, view);
      else replicator->adopt(partition, view);
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
      round([&] { for (const auto& [partition, view] : adopt_later) instance->adopt(partition, view); });
    });
  if (server_) server_->drop_watches();
}

// The clock goes on from where it is, at another rate; the time of day may jump. A clock that jumps although nobody set it is
// one that was stopped: see Fault::pause.
void Node::set_clock(double rate, Micros wall_ahead) {
  offset_ = local(world_.now) - static_cast<Micros>(static_cast<double>(world_.now) * rate);
  rate_ = rate;
  wall_ahead_ = wall_ahead;
}

void Node::set_goal(PartitionId partition, const Goal& goal) {
  round([&] { replicator->set_goal(partition, goal); });
}

void Node::reply_retry(int to, const Request& request) {
  Reply reply{request.client, request.sequence, request.epoch, Status::retry, {}, 0};
  world_.send(id_, to, reply);
  world_.send(id_, to, Views{manager->views()});
}

void Node::on_promoted(Member, PartitionId partition) {
  world_.say("n%d leads partition %u with %s", id_, static_cast<unsigned>(partition), replicator->get(partition).story().c_str());
  // One that learns late of a view that is over leads nobody: it will find neither lease nor acknowledgement.
  if (manager == nullptr || replicator->get(partition).view().epoch < world_.latest(static_cast<std::uint32_t>(partition)).epoch) return;
  if (instance) {
    const auto p = static_cast<std::uint32_t>(partition);
    world_.history.promoted(p, world_.ledger, replicator->get(partition).end(), Cluster::name(id_));
    return check_tables("promoted");
  }
  world_.history.promoted(static_cast<std::uint32_t>(partition), store->table(partition).log, Cluster::name(id_));
}

void Node::on_committed(Member, PartitionId partition, Version first_version, Version last) {
  const Replica& replica = *replicator->look(partition);
  if (replica.role() == Replica::Role::primary && replica.view().sync.size() < std::min<std::size_t>(replica.view().need, world_.timing.sync_copies))
    world_.bad("committed with too few copies", Cluster::name(id_) + " entry " + std::to_string(last));
  if (!store) {
    const auto to = replica.position_of(last);
    if (to) world_.history.committed(static_cast<std::uint32_t>(partition), world_.ledger, *to, Cluster::name(id_));
    return;
  }
  const PartitionTable& table = store->table(partition);
  for (Version v = first_version; v <= last; v++)
    world_.history.committed(static_cast<std::uint32_t>(partition), table.log[v - 1], Cluster::name(id_));
}

void Node::on_appended(Member, PartitionId partition, const Entry& entry, Position previous) {
  if (!instance) return;
  const auto view = core::decode_entry(entry.payload);
  CHECK(view.has_value());
  const std::string wrong = world_.ledger.add(static_cast<std::uint32_t>(partition), entry.at, previous, view->changes, view->note);
  if (!wrong.empty()) world_.bad("a log with a wrong entry", Cluster::name(id_) + ": " + wrong);
}

void Node::on_broken(Member, PartitionId partition, std::string_view what) {
  // After the power has taken what the others had not synced, who was ahead of them begins anew.
  if (world_.history.has_lost(static_cast<std::uint32_t>(partition))) return;
  if (world_.history.was_abandoned(static_cast<std::uint32_t>(partition))) return;
  world_.bad("broken inside", Cluster::name(id_) + ": " + std::string(what));
}

// Those who count must have been there a moment ago: as long as their answer may be under way, and counts.
void Node::on_forgotten(Member, PartitionId partition, const View& view) {
  world_.happened(Happened::forgotten);
  for (Member one : view.sync) {
    const Node& node = world_.nodes[static_cast<std::size_t>(static_cast<std::uint32_t>(one.instance))];
    const auto end = node.ended.find(one.incarnation);
    if (end == node.ended.end() || world_.now - end->second < 3500 * ms) continue;
    world_.bad("a copy was thrown away while those that count were gone",
               Cluster::name(id_) + " partition " + std::to_string(static_cast<std::uint32_t>(partition)) + " view " + to_string(view));
  }
}

// --- a client ---

void Client::next() {
  if (busy_ || (!reader_ && world_.now > world_.work_until)) return;
  base::Random& random = world_.random;
  request_ = {};
  if (reader_) {
    if (todo_.empty()) {
      finished = true;
      return;
    }
    std::tie(request_.partition, request_.key) = todo_.back();
    todo_.pop_back();
  } else {
    request_.partition = static_cast<std::uint32_t>(random.below(world_.partition_count));
    const bool refusals = world_.options.emphasis == RunOptions::Emphasis::refusals;
    request_.key = refusals ? "x" : kKeys[random.below(std::size(kKeys))];
    if (random.chance(watch_bias)) request_.verb = Verb::watch;
    else if (random.chance(read_bias)) request_.verb = Verb::lookup;  // who never writes stays with a deposed primary
    else if (request_.key == "a" || request_.key == "b") request_.verb = random.chance(0.5) ? Verb::append : Verb::lookup;
    else request_.verb = std::array{Verb::lookup, Verb::lookup, Verb::insert, Verb::remove, Verb::cswap, Verb::cswap}[random.below(6)];
    request_.value = std::to_string(id_) + "." + std::to_string(sequence_ + 1) + ";";
    const auto& seen = seen_[{request_.partition, request_.key}];
    if (world_.options.instances) {
      const bool appended = request_.verb == Verb::append;
      if (appended && random.chance(0.3)) request_.verb = random.chance(0.5) ? Verb::update : Verb::batch;
      if (request_.verb == Verb::insert && random.chance(0.4)) request_.ttl_ms = 1 + random.below(400);
      if (request_.verb == Verb::lookup) request_.eventual = random.chance(0.15);
      if (request_.eventual && random.chance(0.5)) request_.after = seen.second;
    }
    if (request_.verb == Verb::cswap) request_.expected = seen.first;
    if (request_.verb == Verb::watch) request_.after = seen.second;
  }
  request_.client = static_cast<std::uint64_t>(id_);
  request_.sequence = ++sequence_;
  request_.floor = sequence_ - 1;
  busy_ = true;
  began_ = world_.now;
  call_ = world_.history.called(request_, world_.now);
  world_.result.operations++;
  post();
}

void Client::post() {
  request_.epoch = view().epoch;
  const bool anywhere = request_.eventual && world_.random.chance(0.7);
  const int to = anywhere ? static_cast<int>(world_.random.below(kNodes)) : static_cast<int>(static_cast<std::uint32_t>(view().primary.instance));
  world_.send(id_, to, request_);
  request_.again = true;
  const std::uint64_t timer = ++timer_;
  world_.at(world_.now + 120 * ms + between(world_.random, 0, 60 * ms), [this, timer] {
    if (timer != timer_ || !busy_) return;
    if (is_enough()) return give_up();
    world_.send(id_, static_cast<int>(world_.random.below(kNodes)), GetViews{});
    post();
  });
}

bool Client::is_enough() const {
  if (reader_) return world_.is_destroyed(request_.partition);
  return world_.now - began_ > 2500 * ms;
}

void Client::give_up() {
  world_.result.given_up++;
  busy_ = false;
  ++timer_;
  world_.at(world_.now + 5 * ms, [this] { next(); });
}

void Client::on(const Packet& packet) {
  if (const auto* news = std::get_if<Views>(&packet))
    for (std::uint32_t p = 0; p < views.size(); p++)
      if (news->views[p].epoch > views[p].epoch) views[p] = news->views[p];
  const auto* reply = std::get_if<Reply>(&packet);
  if (reply == nullptr || !busy_ || reply->sequence != request_.sequence) return;
  if (reply->status == Status::retry || reply->status == Status::full) {
    if (reply->epoch != request_.epoch) return;
    const std::uint64_t timer = ++timer_;
    world_.send(id_, static_cast<int>(world_.random.below(kNodes)), GetViews{});
    world_.at(world_.now + between(world_.random, 2 * ms, 15 * ms), [this, timer] {
      if (timer != timer_ || !busy_) return;
      if (is_enough()) give_up();
      else post();
    });
    return;
  }
  // It was asked again in a newer epoch, where the old refusal is not remembered: only an answer from there counts.
  const bool refusal = request_.changes() && reply->status != Status::ok;
  if (refusal && reply->epoch < request_.epoch && !world_.options.defects.has(Defect::trust_old_refusal)) return;
  busy_ = false;
  ++timer_;
  world_.history.returned(call_, *reply, world_.now);
  if (world_.options.messages)
    world_.say("c%d: request %llu, verb %d on %s of %u: status %d, version %llu, asked in %llu", id_,
               static_cast<unsigned long long>(request_.sequence), static_cast<int>(request_.verb), request_.key.c_str(), request_.partition,
               static_cast<int>(reply->status), static_cast<unsigned long long>(reply->version), static_cast<unsigned long long>(reply->epoch));
  world_.answered();
  if (began_ < forgot_[request_.partition]) return world_.at(world_.now + between(world_.random, 0, 8 * ms), [this] { next(); });
  auto& seen = seen_[{request_.partition, request_.key}];
  if (!request_.changes() || reply->status == Status::mismatch) seen.first = reply->value;
  if (request_.verb == Verb::cswap && reply->status == Status::ok) seen.first = request_.value;
  seen.second = std::max(seen.second, reply->version);
  world_.at(world_.now + between(world_.random, 0, 8 * ms), [this] { next(); });
}

void Client::read_all() {
  for (std::uint32_t p = 0; p < world_.partition_count; p++)
    for (const char* key : kKeys) todo_.emplace_back(p, key);
  for (std::uint32_t p = 0; p < world_.partition_count; p++) views[p] = world_.latest(p);
  next();
}

// --- the world ---

Cluster::Cluster(std::uint64_t seed, const RunOptions& run) : random(seed * 2 + 1), options(run), history(result.violations) {
  const auto pick = [&](auto... choices) { return std::array{choices...}[random.below(sizeof...(choices))]; };
  partition_count = static_cast<std::uint32_t>(pick(1, 1, 2, 3));
  timing.copies = static_cast<std::size_t>(pick(3, 3, 3, 4));
  timing.sync_copies = static_cast<std::size_t>(pick(2, 2, 2, 2, 2, 3, 3, 1));
  timing.tail_bytes = static_cast<std::size_t>(pick(1 << 10, 1 << 14, 1 << 20));
  timing.message_bytes = static_cast<std::size_t>(pick(200, 4096, 1 << 20));
  if (options.scenario != RunOptions::Scenario::faults) timing = Timing{};
  for (std::uint32_t p = 0; p < partition_count; p++) {
    View view;
    view.epoch = Epoch{1};
    view.need = static_cast<std::uint32_t>(timing.sync_copies);
    for (std::uint32_t i = 0; i < 3; i++) {
      const Member one{InstanceId{(p + i) % kSeeds}, 1};
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
  if (options.emphasis == RunOptions::Emphasis::refusals) {  // few keys, many refusals, and answers that come late
    partition_count = 1;
    pace_ = 0.5;
    weights_.fill(0);
    weigh(Fault::stall_link, 1);
  }
  for (int i = 0; i < kKeepers; i++) keepers.push_back(NodeId{static_cast<std::uint64_t>(i)});
  decided_keepers_[1] = keepers;
  for (int i = 0; i < kNodes; i++) nodes.emplace_back(*this, i);
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
    loss_ = repeat_ = crash_point_ = round_pause = 0;
    rot_allowed_ = false;
    tail_ = 400;
    at(1 * sec + between(random, 0, 200 * ms), [this] { crash(static_cast<int>(static_cast<std::uint32_t>(latest_[0].primary.instance)), false); });
  }
  if (options.emphasis == RunOptions::Emphasis::disaster) at(between(random, 800 * ms, stop_faults), [this] { destroy(); });
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
  if (crash_point_ == 0 || now >= stop_faults || !random.chance(crash_point_)) return;
  at(now + between(random, 0, 300), [this, node] { if (now < stop_faults) crash(node, power_ && random.chance(0.5)); });
}

bool Cluster::crash_now(int node) {
  if (crash_point_ == 0 || now >= stop_faults || !random.chance(crash_point_ / 4)) return false;
  at(now, [this, node] { crash(node, power_ && random.chance(0.7)); });
  return true;
}

bool Cluster::dies_opening() { return crash_point_ > 0 && now < stop_faults && now > 0 && random.chance(0.1); }

void Cluster::crash(int i, bool power) {
  Node& node = nodes[static_cast<std::size_t>(i)];
  if (!node.up) return;
  result.faults++;
  say("crash n%d%s", i, power ? " (power)" : "");
  const Member old = node.self();
  node.stop(power);
  happened(Happened::killed);
  if (power) look_for_losses();
  if (rot_allowed_) rot(i);
  if (rot_allowed_) rot_keeper(i, power);
  const bool scenario = options.scenario != RunOptions::Scenario::faults;
  if (scenario ? options.scenario == RunOptions::Scenario::process_dies : !power && random.chance(0.4)) reaped(old, 5);
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
    if (!member_at(view, InstanceId{static_cast<std::uint32_t>(i)})) continue;
    others = others && std::any_of(view.sync.begin(), view.sync.end(), [&](Member one) {
      const int n = static_cast<int>(static_cast<std::uint32_t>(one.instance));
      return n != i && nodes[static_cast<std::size_t>(n)].up && !losses.has_rotted(one);
    });
  }
  const bool again = options.emphasis == RunOptions::Emphasis::rot;
  Stretch where{options.instances ? any_file(node.disk, "store", random) : SimStore::kPath};
  where.size = node.disk.contents(where.path).size();
  if ((losses.any_rotted() && !again) || !others || where.size < 400 || !random.chance(0.5)) return;
  if (again && random.chance(0.5))
    if (auto last = last_record(node.disk, "store")) where = *std::move(last);
  const std::uint64_t byte = flip_a_bit(node.disk, where, random);
  losses.rotted(node.self());
  happened(Happened::bit_rot);
  say("rot in n%d at byte %llu of %s", i, static_cast<unsigned long long>(byte), where.path.c_str());
}

// What a keeper has promised, as long as all others have theirs: two of three that forget leave nobody to decide. After a loss of
// power not in its last record: on the disk that looks as if it had never been synced, and torn.
void Cluster::rot_keeper(int i, bool power) {
  if (!keeps(i) || keepers.size() < 3 || !random.chance(0.3)) return;
  for (const auto& [node, when] : keeper_rot_)
    if (when + 1 >= config) return;
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
void Cluster::reaped(Member who, int times) {
  if (times == 0) return;
  at(now + between(random, 2 * ms, 30 * ms), [this, who, times] {
    for (std::uint32_t p = 0; p < partition_count; p++) {
      if (!is_member(latest_[p], who)) continue;
      ManagerMessage message;
      const int node = static_cast<int>(static_cast<std::uint32_t>(who.instance));
      message.from = NodeId{static_cast<std::uint64_t>(node)};
      KeeperMessage& one = message.keeper.emplace_back();
      one.kind = KeeperMessage::Kind::change;
      one.partition = PartitionId{p};
      one.change = {Change::Kind::exited, latest_[p].epoch, who, who, {}};
      const int keeper = static_cast<int>(keepers[random.below(keepers.size())]);
      message.to = NodeId{static_cast<std::uint64_t>(keeper)};
      send(node, keeper, std::move(message));
    }
    reaped(who, times - 1);
  });
}

void Cluster::restart(int i) {
  Node& node = nodes[static_cast<std::size_t>(i)];
  if (node.up || node.removed) return;
  if (!options.defects.has(Defect::same_incarnation)) node.incarnation++;
  node.disk.fail_syncs(false);
  node.keeper_disk.fail_syncs(false);
  happened(Happened::restarted);
  node.start();
}

void Cluster::fault() {
  if (now >= stop_faults) return;
  const bool loaded = options.emphasis == RunOptions::Emphasis::loaded;
  const Micros hold = random.chance(0.3) ? between(random, 10 * ms, 150 * ms) : between(random, 150 * ms, loaded ? 500 * ms : 1200 * ms);
  const auto any_node = [&] { return static_cast<int>(random.below(kNodes)); };
  const std::uint32_t p = static_cast<std::uint32_t>(random.below(partition_count));
  const int primary = static_cast<int>(static_cast<std::uint32_t>(latest_[p].primary.instance));
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
        for (Member one : latest_[p].sync) full.insert(static_cast<int>(static_cast<std::uint32_t>(one.instance)));
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
  Node& node = nodes[static_cast<std::size_t>(static_cast<std::uint32_t>(view.primary.instance))];
  if (!node.up || now < node.paused_until) return;
  Goal goal;
  for (const Members* members : {&view.sync, &view.learners}) for (Member one : *members) goal.members.push_back(one.instance);
  if (random.chance(0.6)) {
    const InstanceId fresh{static_cast<std::uint32_t>(random.below(kNodes))};
    if (std::find(goal.members.begin(), goal.members.end(), fresh) == goal.members.end())
      goal.members[random.below(goal.members.size())] = fresh;
  }
  goal.primary = goal.members[random.below(goal.members.size())];
  say("partition %u shall be led by n%u", p, static_cast<std::uint32_t>(goal.primary));
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
  const int primary = static_cast<int>(static_cast<std::uint32_t>(latest_[static_cast<std::uint32_t>(partition) % partition_count].primary.instance));
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
  config = number;
  keepers = list;
}

void Cluster::left(int i) {
  for (const View& view : latest_) if (member_at(view, InstanceId{static_cast<std::uint32_t>(i)})) return;
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
    if (node.up && node.replicator->failed()) crash(i, true);
    if (!node.up && node.known) restart(i);
  }
}

void Cluster::judge() {
  if (!clients.back().finished && result.violations.empty()) {
    std::string where;
    for (const View& view : latest_) where += " [" + to_string(view) + "]";
    for (int i = 0; i < kNodes; i++) {
      Node& node = nodes[static_cast<std::size_t>(i)];
      for (std::uint32_t p = 0; p < partition_count && node.up; p++)
        if (Replica* const replica = node.replicator->find(PartitionId{p}))
          say("n%d partition %u: view %s, %s", i, p, to_string(replica->view()).c_str(), replica->story().c_str());
    }
    bad("did not recover", where);
  }
  for (Node& node : nodes) {
    if (node.up) node.check_tables("at the end");
    if (node.instance) result.rewinds += node.instance->replicated_store().rewinds();
  }
  if (result.violations.size() < 20) history.judge();
  result.last_second_lost = history.lost();
}

RunResult run_cluster(std::uint64_t seed, const RunOptions& options) { return Cluster(seed, options).run(); }

}  // namespace zht::sim

// One instance of a node: its rounds, its disk's faults, and what it tells those who check.
#include "tests/sim/world.h"

namespace zht::sim {

namespace {

std::uint64_t home_of(InstanceId one) { return static_cast<std::uint64_t>(home(one)); }

}  // namespace

Seat::Seat(Node& node, int place) : node_(node), world_(node.world()), place_(place) {}

InstanceId Seat::id() const { return InstanceId{static_cast<std::uint32_t>(node_.number() + kNodes * place_)}; }
Member Seat::self() const { return {id(), node_.incarnation}; }
std::string Seat::folder() const { return place_ == 0 ? "store" : "store-" + std::to_string(place_); }
std::string Seat::name() const { return Cluster::name(node_.number()) + (place_ == 0 ? "" : "/" + std::to_string(place_)); }

bool Seat::open() {
  syncing_ = finish_later_ = failure_noted_ = false;
  marked_ = unsynced_ = 0;
  out_.clear();
  asked_.clear();
  if (world_.options.instances) return open_instance();
  open_protocol();
  return true;
}

void Seat::close() {
  note_rewinds();
  replicator = nullptr;
  server_.reset();
  own_.reset();
  instance.reset();
  store.reset();
}

void Seat::note_rewinds() {
  if (instance) world_.result.rewinds += instance->replicated_store().rewinds();
}

void Seat::open_protocol() {
  store = std::make_unique<SimStore>(node_.disk, node_.incarnation, world_.options.defects);
  const SimStore::Opened& opened = store->opened();
  world_.say("start %s.%llu with %zu entries%s%s", name().c_str(), static_cast<unsigned long long>(node_.incarnation), opened.entries,
             opened.torn ? ", torn" : "", opened.damaged ? ", DAMAGED" : "");
  if (opened.torn) world_.happened(Happened::torn_log);
  const ReplicatorOptions options{self(), world_.partition_count, world_.timing, world_.options.defects, this, home_of};
  own_ = std::make_unique<Replicator>(options, *store);
  replicator = own_.get();
  replicator->begin(node_.now());
  server_ = std::make_unique<BareServer>(
      *own_, *store, world_.options.defects, [this](int client, const Reply& reply) { world_.send(node_.number(), client, reply); },
      [this](int client, const Request& request) { node_.reply_retry(client, request); });
}

bool Seat::open_instance() {
  core::InstanceOptions options;
  options.id = id();
  options.clustered = true;
  options.incarnation = node_.incarnation;
  options.outdated = node_.remembered().outdated;
  options.boot = "boot " + std::to_string(node_.boot);
  options.durability = world_.always ? core::Durability::always : core::Durability::interval;
  options.segment_size = world_.options.emphasis == RunOptions::Emphasis::rot ? 1 << 12 : 1 << 13;
  options.log_floor = 0;
  options.timing = world_.timing;
  options.home = home_of;
  options.limits = world_.limits;
  options.maintain_budget = {};  // by the computer's clock, a run would not repeat
  options.keep_departed = std::chrono::milliseconds(50 + world_.random.below(3000));
  options.defects = world_.options.defects;
  options.observer = this;
  const bool dies = world_.dies_opening();
  if (dies) node_.disk.stop_at(node_.disk.operations() + 1 + world_.random.below(20));
  auto opened = Instance::open(node_.disk, folder(), options, procedures(), std::vector<View>(world_.partition_count));
  if (!opened && dies) return false;
  node_.disk.stop_at(~std::uint64_t{0});
  CHECK(opened.has_value(), opened ? "" : opened.error().message);
  instance = *std::move(opened);
  replicator = &instance->replicator();
  const core::ReplicatedStore::Opened& how = instance->opened();
  world_.say("start %s.%llu%s%s%s", name().c_str(), static_cast<unsigned long long>(node_.incarnation), how.torn ? ", torn" : "",
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
void Seat::check_tables(const char* when) {
  if (!instance || replicator->failed()) return;
  for (std::uint32_t p = 0; p < world_.partition_count; p++) {
    if (const Replica* const replica = replicator->look(PartitionId{p}); replica != nullptr && replica->importing()) continue;
    const Position end = instance->replicated_store().end(PartitionId{p});
    const std::string wrong = world_.ledger.compare(p, end, instance->replicated_store().tables());
    if (wrong.empty()) continue;
    world_.bad("tables are not what the log makes of them",
               name() + " " + when + " partition " + std::to_string(p) + ": " + wrong);
  }
}

// One round of a node's event loop: what came, then the disk, then what may be said.
void Seat::round(const std::function<void()>& work) {
  if (instance) return instance_round(work);
  const base::Time begun = node_.now();
  replicator->begin(begun);
  work();
  if (!node_.up) return;
  marked_ = replicator->mark();
  if (!replicator->failed() && !store->flush()) return fail();
  if (!world_.always) replicator->durable(marked_, node_.now());
  else if (store->dirty()) {
    unsynced_ = marked_;
    if (!syncing_) sync_soon();
  }
  if (finish_later_) return;
  if (!stalls()) return finish(node_.now());
  finish_later(begun);
}

bool Seat::stalls() {
  return world_.round_pause > 0 && world_.now < world_.stop_faults && world_.random.chance(world_.round_pause);
}

// The process is stopped between its work and its answers.
void Seat::finish_later(base::Time begun) {
  finish_later_ = true;
  world_.happened(Happened::stalled_answer);
  node_.paused_until = std::max(node_.paused_until, world_.now + between(world_.random, 50 * ms, 900 * ms));
  const bool stale = world_.options.defects.has(Defect::lease_before_value);
  world_.at(node_.paused_until, [this, life = node_.life(), begun, stale] {
    if (life != node_.life()) return;
    finish_later_ = false;
    finish(stale ? begun : node_.now());
  });
}

void Seat::instance_round(const std::function<void()>& work) {
  const base::Time begun = node_.now();
  instance->begin_round(begun, node_.wall());
  work();
  for (PeerMessage& message : instance->take_peer_messages()) world_.send(node_.number(), home(message.to), std::move(message));
  const bool dirty = instance->dirty();
  // What was said before the disk has it is said; what was to be said after that is not.
  if (dirty && world_.crash_now(node_.number())) {
    node_.paused_until = world_.now + 1;
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
  if (stalls()) return finish_later(begun);
  finish(node_.now());
  if (dirty && world_.random.chance(0.2)) world_.crash_point(node_.number());
}

// What an instance wrote while it was alone in a view passed by its replica, and so by us; it is in the log.
// `shown`: what is there may have been acknowledged. Else it is what a life wrote at its very end.
void Seat::note_alone(bool shown) {
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
          world_.bad("a log with a wrong entry", name() + ": " + wrong);
      seen = at;
      world_.result.alone++;
      return {};
    };
    Result<bool> more = tail ? Result<bool>(true) : Result<bool>(tail.error());
    while (more && seen != end) more = (*tail)->next(1 << 20, take);
    if (!more) world_.bad("a log that cannot be read", name() + ": " + more.error().message);
    else if (shown) world_.history.committed(p, world_.ledger, end, name());
    seen = end;
  }
}

void Seat::sync() {
  if (!instance || world_.always || replicator->failed()) return;
  if (world_.now - synced_at_ <= 900 * ms && !world_.random.chance(0.02)) return;
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

void Seat::on_request(int from, const Request& asked) {
  if (!instance) return server_->on_request(from, asked);
  const std::uint64_t number = next_frame_++;
  asked_[number] = {from, asked};
  const std::string bytes = encode(asked, number, world_.partition_count);
  const auto frame = wire::next_frame(bytes, wire::kMaxFrameSize);
  CHECK(frame && *frame);
  instance->on_frames(ConnectionId{static_cast<std::uint64_t>(from)}, {&**frame, 1}, out_);
}

void Seat::take_frames(Bytes frames) {
  while (!frames.empty()) {
    const auto frame = wire::next_frame(frames, wire::kMaxFrameSize);
    CHECK(frame && *frame, "an instance answers in frames");
    frames.remove_prefix((*frame)->size);
    const auto found = asked_.find((*frame)->request);
    if (found == asked_.end()) {
      world_.bad("answered twice, or what nobody asked", name());
      continue;
    }
    const Asked asked = std::move(found->second);
    asked_.erase(found);
    std::string what;
    const auto reply = decode(asked.request, **frame, what);
    if (!reply) {
      if (!replicator->failed()) world_.bad("an answer that may not be", name() + ": " + what);
      continue;
    }
    if (reply->status == Status::retry) node_.reply_retry(asked.client, asked.request);
    else world_.send(node_.number(), asked.client, *reply);
  }
}

void Seat::sync_soon() {
  syncing_ = true;
  const Micros when = world_.now + between(world_.random, 50, world_.slow_disk ? 60 * ms : 1500);
  world_.at(when, [this, life = node_.life(), mark = marked_] {
    if (life != node_.life()) return;
    syncing_ = false;
    if (!store->sync()) return fail();
    replicator->durable(mark, node_.now());
    if (unsynced_ > mark) sync_soon();
    // What was written is acknowledged when the process runs again.
    if (!finish_later_ && world_.now >= node_.paused_until) finish(node_.now());
    world_.crash_point(node_.number());
  });
}

void Seat::note_failure() {
  if (std::exchange(failure_noted_, true)) return;
  world_.happened(Happened::disk_failed);
  world_.say("disk of %s failed", name().c_str());
}

void Seat::fail() {
  if (replicator->failed()) return;
  note_failure();
  replicator->fail();
  after_round();
}

// When it said that it would have something to do, as a node's event loop does: what is not due is not done.
void Seat::tick() {
  replicator->set_candidates(node_.manager->candidates(node_.now()));
  replicator->set_sites(node_.manager->sites());
  if ((instance ? instance->next_due() : replicator->next_due()) > node_.now()) return;
  round([this] {
    if (instance) instance->on_tick();
    else replicator->tick();
  });
}

void Seat::on_peer(const PeerMessage& message) {
  if (instance) instance->on_peer(message);
  else replicator->on_message(message);
}

void Seat::adopt(PartitionId partition, const View& view) {
  if (instance) instance->adopt(partition, view);
  else replicator->adopt(partition, view);
}

void Seat::set_full(bool full) {
  if (store) store->set_full(full);
}

void Seat::drop_watches() {
  if (server_) server_->drop_watches();
}

void Seat::finish(base::Time at) {
  if (instance) instance->finish_round(at);
  else replicator->finish(at);
  after_round();
}

void Seat::on_promoted(Member, PartitionId partition) {
  world_.say("%s leads partition %u with %s", name().c_str(), static_cast<unsigned>(partition), replicator->get(partition).story().c_str());
  // One that learns late of a view that is over leads nobody: it will find neither lease nor acknowledgement.
  if (node_.manager == nullptr || replicator->get(partition).view().epoch < world_.latest(static_cast<std::uint32_t>(partition)).epoch) return;
  if (instance) {
    const auto p = static_cast<std::uint32_t>(partition);
    world_.history.promoted(p, world_.ledger, replicator->get(partition).end(), name());
    return check_tables("promoted");
  }
  world_.history.promoted(static_cast<std::uint32_t>(partition), store->table(partition).log, name());
}

void Seat::on_committed(Member, PartitionId partition, Version first_version, Version last) {
  const Replica& replica = *replicator->look(partition);
  std::set<int> homes;
  for (Member one : replica.view().sync) homes.insert(home(one.instance));
  if (replica.role() == Replica::Role::primary && homes.size() < std::min<std::size_t>(replica.view().need, world_.timing.sync_copies))
    world_.bad("committed on too few nodes", name() + " entry " + std::to_string(last) + " in view " + to_string(replica.view()));
  if (!store) {
    const auto to = replica.position_of(last);
    if (to) world_.history.committed(static_cast<std::uint32_t>(partition), world_.ledger, *to, name());
    return;
  }
  const PartitionTable& table = store->table(partition);
  for (Version v = first_version; v <= last; v++)
    world_.history.committed(static_cast<std::uint32_t>(partition), table.log[v - 1], name());
}

void Seat::on_appended(Member, PartitionId partition, const Entry& entry, Position previous) {
  if (!instance) return;
  const auto view = core::decode_entry(entry.payload);
  CHECK(view.has_value());
  const std::string wrong = world_.ledger.add(static_cast<std::uint32_t>(partition), entry.at, previous, view->changes, view->note);
  if (!wrong.empty()) world_.bad("a log with a wrong entry", name() + ": " + wrong);
}

void Seat::on_broken(Member, PartitionId partition, std::string_view what) {
  // After the power has taken what the others had not synced, who was ahead of them begins anew.
  if (world_.history.has_lost(static_cast<std::uint32_t>(partition))) return;
  if (world_.history.was_abandoned(static_cast<std::uint32_t>(partition))) return;
  world_.bad("broken inside", name() + ": " + std::string(what));
}

// Those who count must have been there a moment ago: as long as their answer may be under way, and counts.
void Seat::on_forgotten(Member, PartitionId partition, const View& view) {
  world_.happened(Happened::forgotten);
  for (Member one : view.sync) {
    const Node& node = world_.node_of(one.instance);
    const auto end = node.ended.find(one.incarnation);
    if (end == node.ended.end() || world_.now - end->second < 3500 * ms) continue;
    world_.bad("a copy was thrown away while those that count were gone",
               name() + " partition " + std::to_string(static_cast<std::uint32_t>(partition)) + " view " + to_string(view));
  }
}


void Seat::after_round() {
  if (instance) {
    take_frames(std::exchange(out_, {}));
    for (const core::Send& send : instance->take_sends()) take_frames(send.frame);
  }
  for (PeerMessage& message : instance ? instance->take_peer_messages() : replicator->take_messages())
    world_.send(node_.number(), home(message.to), std::move(message));
  for (const Released& one : replicator->take_released()) server_->release(one);
  if (const std::vector<Wish> wishes = replicator->take_wishes(); !wishes.empty()) {
    node_.manager->tick(node_.now());
    for (const Wish& wish : wishes) node_.manager->wish(wish);
  }
  for (const ViewNews& one : instance ? instance->take_news() : replicator->take_news()) node_.manager->adopt(one.partition, one.view);
  node_.after_turn();
}

void Seat::take_over(PartitionId partition, Epoch epoch, Position end) {
  round([&] {
    const auto told = instance->take_over(partition, epoch, end);
    if (!told) world_.say("%s refuses: %s", name().c_str(), told.error().message.c_str());
  });
}

}  // namespace zht::sim

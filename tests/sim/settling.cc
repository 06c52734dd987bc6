#include "tests/sim/settling.h"

#include <algorithm>
#include <cstdio>
#include <deque>
#include <map>
#include <queue>
#include <set>
#include <sstream>

#include "zht/core/replication/keepership.h"

namespace zht::sim {

using namespace replication;
using namespace std::chrono_literals;

namespace {

constexpr std::uint32_t kIds = 64;  // an instance's number says its node

std::uint64_t home(InstanceId one) { return static_cast<std::uint32_t>(one) / kIds; }

// Where logs end, and nothing else.
class Positions final : public ReplicaStore {
 public:
  struct Log {
    Position end;
    Origin origin{1, 1};
  };
  class Whole final : public SnapshotSource {
   public:
    explicit Whole(Position at) : at_(at) {}
    Version begun() const override { return at_.sequence; }
    std::optional<Position> at() const override { return at_; }
    Result<Piece> read(std::uint64_t) override { return Piece{"all", true}; }

   private:
    Position at_;
  };
  Origin origin(PartitionId p) const override { return logs_[p].origin; }
  Result<void> note_joined(PartitionId p, Epoch epoch) override {
    logs_[p].origin.joined = epoch;
    return {};
  }
  Position end(PartitionId p) const override { return logs_[p].end; }
  Version floor(PartitionId p) const override { return logs_[p].end.sequence; }
  Result<void> apply(PartitionId p, const Entry& entry) override {
    logs_[p].end = entry.at;
    return {};
  }
  Result<void> rewind(PartitionId p, Position to) override {
    logs_[p].end = to;
    return {};
  }
  void settle(PartitionId, Version) override {}
  Result<std::unique_ptr<SnapshotSource>> export_snapshot(PartitionId p) override {
    return std::unique_ptr<SnapshotSource>(std::make_unique<Whole>(logs_[p].end));
  }
  Result<void> begin_import(PartitionId p, std::uint64_t incarnation) override {
    logs_[p] = {{}, {incarnation, incarnation, logs_[p].origin.joined}};
    return {};
  }
  Result<void> import(PartitionId, Bytes) override { return {}; }
  Result<bool> end_import(PartitionId p, Position at) override {
    logs_[p].end = at;
    return true;
  }
  Result<void> make_durable() override { return {}; }
  Log& log(PartitionId p) { return logs_[p]; }

 private:
  mutable std::map<PartitionId, Log> logs_;
};

class Registers final : public RegisterStore {
 public:
  Result<void> save(std::span<const Item> items) override {
    for (const Item& one : items) kept_[static_cast<std::uint32_t>(one.partition)] = *one.state;
    return {};
  }
  Result<void> load(std::vector<Register>& registers) const override {
    for (const auto& [p, one] : kept_)
      if (p < registers.size()) registers[p] = one;
    return {};
  }
  bool empty() const { return kept_.empty(); }

 private:
  std::map<std::uint32_t, Register> kept_;
};

}  // namespace

class Settling::Impl {
 public:
  explicit Impl(const SettlingOptions& options) : options_(options), random_(options.seed) {
    timing_.copies = options.copies;
    timing_.sync_copies = options.sync_copies;
    latest_.resize(options.partitions);
    for (std::uint32_t p = 0; p < options.partitions; p++) {
      View& view = latest_[p];
      view.epoch = Epoch{1};
      view.primary = {InstanceId{p % static_cast<std::uint32_t>(options.instances)}, 1};
      view.sync = {view.primary};
      view.need = 1;
    }
    first_ = latest_;
    first_.push_back({Epoch{1}, {InstanceId{0}, 1}, {{InstanceId{0}, 1}}, {}, 0});  // of numbers, which nobody asks for here
  }

  int join() {
    Node& node = nodes_.emplace_back();
    node.number = static_cast<int>(nodes_.size()) - 1;
    for (int i = 0; i < options_.instances; i++)
      node.seats.emplace_back().id = InstanceId{static_cast<std::uint32_t>(node.number) * kIds + static_cast<std::uint32_t>(i)};
    for (std::uint32_t p = 0; p < options_.partitions && node.number == 0 && options_.data; p++)
      node.seats[p % node.seats.size()].store.log(PartitionId{p}).end = {Epoch{1}, 5};
    start(node);
    return node.number;
  }

  void back(int number) { start(at(number)); }

  void leave(int number) {
    Node& node = at(number);
    node.leaving = true;
    node.manager->self().leaving = true;
    node.manager->announce();
  }

  void stop(int number) {
    Node& node = at(number);
    node.stopping = true;
    node.manager->self().stopping = true;
    node.manager->announce();
    node.ends_at = now_ + 8s;
  }

  void kill(int number) { end(at(number)); }

  void migrate(InstanceId from, InstanceId to) {
    for (std::uint32_t p = 0; p < options_.partitions; p++) {
      const View& view = latest_[p];
      if (view.primary.instance != from) continue;
      Placed placed{PartitionId{p}, {to, {}}};
      for (const Members* members : {&view.sync, &view.learners})
        for (Member one : *members) placed.goal.members.push_back(one.instance);
      auto& members = placed.goal.members;
      auto place = std::find_if(members.begin(), members.end(), [&](InstanceId one) { return home(one) == home(to); });
      if (place == members.end() && members.size() >= options_.copies) place = std::find(members.begin(), members.end(), from);
      if (place == members.end()) members.push_back(to);
      else *place = to;
      at(0).manager->send_goal(placed);
    }
  }

  bool runs(int number) const { return nodes_[static_cast<std::size_t>(number)].up; }
  base::Time now() const { return now_; }
  base::Time last_change() const { return last_change_; }
  std::uint64_t views() const { return views_; }
  bool leaves() const {
    return std::any_of(nodes_.begin(), nodes_.end(), [](const Node& one) { return one.up && (one.leaving || one.stopping); });
  }

  void step() {
    now_ += 1ms;
    std::vector<ManagerMessage> managers;
    while (!wires_.empty() && wires_.top().at <= now_) {
      const Wire wire = wires_.top();
      wires_.pop();
      Node& to = at(wire.to);
      if (!to.up) continue;
      if (wire.peer) {
        for (Seat& seat : to.seats)
          if (seat.id == wire.peer->to) seat.mail.push_back(wire.peer);
      } else {
        to.mail.push_back(wire.manager);
      }
    }
    for (Node& node : nodes_)
      if (node.up) turn(node);
  }

  std::string wrong() const {
    std::map<std::uint64_t, std::size_t> copies, leads;
    std::set<std::uint32_t> racks;
    std::size_t living = 0;
    for (const Node& one : nodes_) {
      living += one.up;
      if (!one.up) continue;
      racks.insert(rack(one));
      for (const Seat& seat : one.seats) copies[static_cast<std::uint32_t>(seat.id)], leads[static_cast<std::uint32_t>(seat.id)];
    }
    std::ostringstream out;
    for (std::uint32_t p = 0; p < options_.partitions; p++) {
      const View& view = latest_[p];
      std::set<std::uint64_t> sync, all, places;
      std::size_t members = 0;
      bool dead = false;
      for (const Members* list : {&view.sync, &view.learners})
        for (Member one : *list) {
          const Node& node = nodes_[home(one.instance)];
          dead = dead || !node.up || node.incarnation != one.incarnation;
          all.insert(home(one.instance));
          places.insert(rack(node));
          if (list == &view.sync) sync.insert(home(one.instance));
          copies[static_cast<std::uint32_t>(one.instance)]++;
          members++;
        }
      leads[static_cast<std::uint32_t>(view.primary.instance)]++;
      const char* is = nullptr;
      if (dead) is = "has a member that is gone";
      else if (all.size() != std::min(options_.copies, living)) is = "has not as many copies as are wanted, on as many nodes";
      else if (members != all.size()) is = "has two copies on a node";
      else if (sync.size() < std::min(options_.sync_copies, living)) is = "is not synchronous on as many nodes as are wanted";
      else if (view.need < std::min(options_.sync_copies, living)) is = "needs fewer synchronous copies than are wanted";
      else if (places.size() < std::min({options_.copies, racks.size(), living})) is = "is not on as many racks as could be";
      if (is != nullptr) out << "partition " << p << " " << is << ": " << to_string(view) << "\n";
    }
    if (!out.str().empty()) return std::move(out).str();
    // Evenness: where racks bind the copies, as even as they let them be.
    const auto uneven = [&](const auto& counts, std::size_t slack, const char* what) {
      const auto by = [](const auto& a, const auto& b) { return a.second < b.second; };
      const auto [least, most] = std::minmax_element(counts.begin(), counts.end(), by);
      if (most->second > least->second + slack)
        out << what << ": instance " << most->first << " has " << most->second << ", instance " << least->first << " " << least->second << "\n";
    };
    if (options_.racks == 0) uneven(copies, 2, "copies are uneven");
    if (options_.racks == 0) uneven(leads, 2 + options_.partitions / 32, "leads are uneven");
    return std::move(out).str();
  }

  std::string words() const {
    std::ostringstream out;
    for (const std::string& line : last_) out << line << "\n";
    std::size_t shown = 0;
    for (std::uint32_t p = 0; p < options_.partitions && shown < 8; p++, shown++) out << "partition " << p << " " << to_string(latest_[p]) << "\n";
    return std::move(out).str();
  }

 private:
  struct Seat {
    InstanceId id{0};
    Positions store;
    std::unique_ptr<Replicator> replicator;
    std::vector<std::shared_ptr<const PeerMessage>> mail;
  };
  struct Node {
    int number = 0;
    bool up = false, leaving = false, stopping = false;
    std::uint64_t incarnation = 0, config = 1, voted = 0;
    std::vector<NodeId> keepers{NodeId{0}};
    std::deque<Seat> seats;
    Registers registers;
    std::vector<NodeInfo> known;  // of the others, as a node notes it on its disk
    std::unique_ptr<Manager> manager;
    std::unique_ptr<Keepership> keepership;
    std::vector<std::shared_ptr<const ManagerMessage>> mail;
    base::Time next_tick{}, next_look{}, next_goals{}, ends_at{}, emptied_at{};
  };
  struct Wire {
    base::Time at{};
    std::uint64_t order = 0;
    int to = 0;
    std::shared_ptr<const PeerMessage> peer;
    std::shared_ptr<const ManagerMessage> manager;
    bool operator<(const Wire& other) const { return at != other.at ? at > other.at : order > other.order; }
  };

  Node& at(int number) { return nodes_[static_cast<std::size_t>(number)]; }
  std::uint32_t rack(const Node& node) const { return options_.racks == 0 ? 0 : static_cast<std::uint32_t>(node.number) % options_.racks + 1; }

  void start(Node& node) {
    node.up = true;
    node.leaving = node.stopping = false;
    node.emptied_at = {};
    node.incarnation++;
    const bool founds = node.number == 0 && node.incarnation == 1;
    Members own;
    for (Seat& seat : node.seats) {
      own.push_back({seat.id, node.incarnation});
      const ReplicatorOptions replication{own.back(), options_.partitions, timing_, options_.defects, nullptr, home};
      seat.replicator = std::make_unique<Replicator>(replication, seat.store);
      seat.replicator->begin(now_);
    }
    ManagerOptions options;
    options.self = NodeId{static_cast<std::uint64_t>(node.number)};
    options.config = node.config;
    options.keepers = node.keepers;
    options.balance = 300ms;
    options.balancing.copies = options_.copies;
    options.balancing.moves = 32;
    options.balancing.defects = options_.defects;
    options.partitions = options_.partitions;
    std::vector<View> views(options_.partitions + 1);
    if (founds) views = first_;
    NodeInfo info{options.self, node.incarnation << 32, own, rack(node), true, false};
    std::vector<NodeId> peers{NodeId{0}};
    for (NodeId one : node.keepers) peers.push_back(one);
    for (const NodeInfo& one : node.known) peers.push_back(one.node);
    std::erase(peers, options.self);
    node.manager = std::make_unique<Manager>(options, info, views, peers, random_.next());
    ManagerMessage heard;
    heard.from = options.self;
    heard.nodes = node.known;
    node.manager->on_message(heard, base::Time{});
    KeepershipOptions keeping;
    keeping.self = options.self;
    keeping.partitions = options_.partitions;
    keeping.config = node.config;
    keeping.keepers = node.keepers;
    keeping.replace = 10s;
    keeping.defects = options_.defects;
    keeping.seed = random_.next();
    keeping.voted = node.voted;
    keeping.note_voted = [&node](std::uint64_t config) -> Result<void> {
      node.voted = config;
      return {};
    };
    node.keepership = std::make_unique<Keepership>(keeping, *node.manager, [&node]() -> Result<RegisterStore*> { return &node.registers; });
    if (node.keepership->keeps(options.self) || !node.registers.empty()) CHECK(node.keepership->begin(first_).has_value());
    for (Seat& seat : node.seats) {
      seat.mail.clear();
      seat.replicator->set_sites(node.manager->sites());
      for (std::uint32_t p = 0; p < options_.partitions; p++) seat.replicator->adopt(PartitionId{p}, node.manager->view(PartitionId{p}));
    }
    node.mail.clear();
    node.next_tick = now_;
  }

  void end(Node& node) {
    node.up = false;
    node.known.clear();
    for (const auto& [info, lives] : node.manager->acquaintances(now_))
      if (static_cast<int>(info->node) != node.number) node.known.push_back(*info);
    node.keepership.reset();
    node.manager.reset();
    for (Seat& seat : node.seats) seat.replicator.reset();
    last_change_ = now_;
  }

  void turn(Node& node) {
    const bool tick = now_ >= node.next_tick;
    if (tick) node.next_tick = now_ + 10ms;
    bool manages = tick || !node.mail.empty();
    for (const auto& message : std::exchange(node.mail, {})) {
      node.manager->on_message(*message, now_);
      node.keepership->on_message(*message, now_);
    }
    if (tick) {
      node.manager->tick(now_);
      node.keepership->tick(now_);
      if (now_ >= node.next_look) look(node);
      if (!node.up) return;
    }
    for (Seat& seat : node.seats)
      if (tick || !seat.mail.empty()) {
        round(node, seat, tick);
        manages = true;
      }
    if (manages) follow(node);
  }

  void look(Node& node) {
    node.next_look = now_ + 200ms;
    for (Seat& seat : node.seats) {
      seat.replicator->set_candidates(node.manager->candidates(now_));
      seat.replicator->set_sites(node.manager->sites());
    }
    const auto mine = [&](Member one) { return home(one.instance) == static_cast<std::uint64_t>(node.number); };
    const bool empty = std::none_of(node.manager->views().begin(), node.manager->views().begin() + options_.partitions, [&](const View& view) {
      return std::any_of(view.sync.begin(), view.sync.end(), mine) || std::any_of(view.learners.begin(), view.learners.end(), mine);
    });
    if (node.leaving && empty && node.keepership->may_leave()) {
      if (node.emptied_at == base::Time{}) {
        node.emptied_at = now_;
        node.manager->self().instances.clear();
        node.manager->announce();
      } else if (now_ - node.emptied_at > 500ms) {
        end(node);
      }
      return;
    }
    if (!node.stopping) return;
    const auto goals = node.manager->hand_over(now_);
    for (const Placed& one : goals) node.manager->send_goal(one);
    if (goals.empty() || now_ >= node.ends_at) end(node);
  }

  void round(Node& node, Seat& seat, bool tick) {
    Replicator& replicator = *seat.replicator;
    replicator.begin(now_);
    for (const auto& message : std::exchange(seat.mail, {})) replicator.on_message(*message);
    if (tick) replicator.tick();
    const auto mark = replicator.mark();
    replicator.durable(mark, now_);
    replicator.finish(now_);
    for (PeerMessage& message : replicator.take_messages()) {
      const int to = static_cast<int>(home(message.to));
      wires_.push({arrival(node.number, to), order_++, to, std::make_shared<const PeerMessage>(std::move(message)), nullptr});
    }
    for (const Wish& wish : replicator.take_wishes()) node.manager->wish(wish);
    for (const ViewNews& one : replicator.take_news()) node.manager->adopt(one.partition, one.view);
    (void)replicator.take_released();
  }

  // What follows from it all for the cluster.
  void follow(Node& node) {
    for (bool again = true; again;) {
      again = false;
      for (const Placed& one : node.manager->take_goals())
        for (Seat& seat : node.seats) seat.replicator->set_goal(one.partition, one.goal);
      for (PartitionId partition : node.manager->take_news()) {
        again = true;
        const View& view = node.manager->view(partition);
        node.keepership->on_view(partition, view, now_);
        if (static_cast<std::uint32_t>(partition) >= options_.partitions) continue;
        learned(partition, view);
        for (Seat& seat : node.seats) seat.replicator->adopt(partition, view);
      }
      auto sends = node.keepership->end_round(now_, again);
      CHECK(sends.has_value());
      for (KeeperSend& one : *sends) {
        ManagerMessage message;
        message.from = NodeId{static_cast<std::uint64_t>(node.number)};
        message.to = one.to;
        message.keeper = std::move(one.messages);
        send(node, std::move(message));
      }
      for (ManagerMessage& message : node.manager->take_messages()) send(node, std::move(message));
    }
    if (!node.keepership->take_changed()) return;
    node.config = node.keepership->config();
    node.keepers = node.keepership->keepers();
  }

  void send(Node& node, ManagerMessage message) {
    const int to = static_cast<int>(message.to);
    if (to < static_cast<int>(nodes_.size()))
      wires_.push({arrival(node.number, to), order_++, to, nullptr, std::make_shared<const ManagerMessage>(std::move(message))});
  }

  base::Duration between(base::Duration most) {
    return base::Duration(static_cast<base::Duration::rep>(random_.below(static_cast<std::uint64_t>(most.count()))));
  }

  // In order between two nodes, as a connection carries them.
  base::Time arrival(int from, int to) {
    base::Time& last = links_[{from, to}];
    last = std::max(last, now_ + (from == to ? base::Duration(50us) : options_.way / 5 + between(options_.way)));
    return last;
  }

  void learned(PartitionId partition, const View& view) {
    View& known = latest_[static_cast<std::uint32_t>(partition)];
    if (view.epoch <= known.epoch) return;
    known = view;
    views_++;
    last_change_ = now_;
    std::ostringstream line;
    line << std::chrono::duration_cast<std::chrono::milliseconds>(now_ - begun_).count() << " ms: partition " << static_cast<std::uint32_t>(partition)
         << " " << to_string(view);
    if (options_.verbose) std::puts(line.str().c_str());
    last_.push_back(std::move(line).str());
    if (last_.size() > 40) last_.pop_front();
  }

  const SettlingOptions options_;
  base::Random random_;
  Timing timing_;
  const base::Time begun_ = base::Time(1000s);
  base::Time now_ = begun_, last_change_ = begun_;
  std::deque<Node> nodes_;
  std::vector<View> first_, latest_;
  std::priority_queue<Wire> wires_;
  std::uint64_t order_ = 0, views_ = 0;
  std::map<std::pair<int, int>, base::Time> links_;
  std::deque<std::string> last_;
};

Settling::Settling(const SettlingOptions& options) : impl_(std::make_unique<Impl>(options)) { impl_->join(); }
Settling::~Settling() = default;

int Settling::join() { return impl_->join(); }
void Settling::leave(int node) { impl_->leave(node); }
void Settling::kill(int node) { impl_->kill(node); }
void Settling::back(int node) { impl_->back(node); }
void Settling::stop(int node) { impl_->stop(node); }
void Settling::migrate(InstanceId from, InstanceId to) { impl_->migrate(from, to); }
InstanceId Settling::instance(int node, int place) const {
  return InstanceId{static_cast<std::uint32_t>(node) * kIds + static_cast<std::uint32_t>(place)};
}
bool Settling::runs(int node) const { return impl_->runs(node); }
std::string Settling::wrong() const { return impl_->wrong(); }
std::string Settling::words() const { return impl_->words(); }
std::uint64_t Settling::views() const { return impl_->views(); }

void Settling::run(base::Duration time) {
  for (const base::Time end = impl_->now() + time; impl_->now() < end;) impl_->step();
}

std::optional<base::Duration> Settling::settle(base::Duration limit, base::Duration quiet) {
  const base::Time begun = impl_->now();
  while (impl_->now() - begun < limit + quiet) {
    impl_->step();
    const base::Time last = std::max(begun, impl_->last_change());
    if (!impl_->leaves() && impl_->now() - last >= quiet) return last - begun;
  }
  return {};
}

}  // namespace zht::sim

#include "zht/server/cluster.h"

#include <algorithm>

#include "novoht/base/random.h"
#include "zht/server/manager_codec.h"

namespace zht::server {

using base::Result;
using namespace replication;

namespace {

std::uint64_t id(NodeId node) { return static_cast<std::uint64_t>(node); }
std::uint32_t id(InstanceId instance) { return static_cast<std::uint32_t>(instance); }

// The register that numbers nodes: as many as founded the cluster have one.
View first_enrolment(const Founding& founding) {
  View view;
  view.epoch = Epoch{founding.nodes.size()};
  view.primary = {InstanceId{0}, 1};
  view.sync = {view.primary};
  return view;
}

// What keepers hold at first: each partition's view, and after them the register of numbers.
std::vector<View> first_registers(const Founding& founding) {
  std::vector<View> views = first_views(founding);
  views.push_back(first_enrolment(founding));
  return views;
}

std::string tell(const View& before, const View& after) {
  if (before.epoch == Epoch{0}) return {};
  std::string line;
  const auto name = [](Member one) { return std::to_string(id(one.instance)) + "." + std::to_string(one.incarnation); };
  const auto add = [&](const std::string& words) { line += (line.empty() ? "" : ", ") + words; };
  if (before.primary != after.primary)
    add(name(after.primary) + (before.primary.instance == after.primary.instance ? std::string(" is back and leads on")
                                                                                 : " leads after " + name(before.primary)));
  for (Member one : after.sync)
    if (!in_sync(before, one) && one != after.primary) add(name(one) + " is synchronous");
  for (Member one : after.learners)
    if (!is_member(before, one)) add(name(one) + " learns");
  for (const Members* members : {&before.sync, &before.learners})
    for (Member one : *members)
      if (!member_at(after, one.instance)) add(name(one) + " is out");
  return line;
}

}  // namespace

Cluster::Cluster(ClusterOptions options, base::FileSystem& files) : options_(std::move(options)), files_(files) {}

Result<std::unique_ptr<Cluster>> Cluster::open(ClusterOptions options, base::FileSystem& files) {
  std::unique_ptr<Cluster> cluster(new Cluster(std::move(options), files));
  const ClusterOptions& mine = cluster->options_;
  const Identity& identity = mine.identity;
  const NodeId self{identity.number};
  std::vector<View> views(identity.partition_count);
  views.emplace_back();
  std::vector<NodeId> keepers;
  for (std::uint64_t one : identity.keepers) keepers.push_back(NodeId{one});
  if (std::find(keepers.begin(), keepers.end(), self) != keepers.end()) {
    TRY(cluster->open_registers());
    // Who was not there at the beginning was given the registers; so all of them are in the store.
    if (!identity.founding.nodes.empty()) views = first_registers(identity.founding);
    std::vector<Register> state;
    for (const View& view : views) state.push_back({view, {}, {}, {}});
    TRY(static_cast<StoredRegisters&>(*cluster->registers_).load(state));
    for (std::size_t p = 0; p < views.size(); p++) views[p] = state[p].current;
    cluster->make_keeper(std::move(state));
    if (identity.config > 1 && identity.keepers.front() == identity.number)
      cluster->uninformed_.insert(identity.keepers.begin() + 1, identity.keepers.end());
  } else if (!identity.founding.nodes.empty() && identity.member.incarnation == 1) {
    // In its first life a founder knows the first views, whether they are still the newest or not.
    views = first_registers(identity.founding);
  }
  cluster->told_.assign(views.begin(), views.end() - 1);

  ManagerOptions manager;
  manager.self = self;
  manager.keepers = keepers;
  manager.config = identity.config;
  manager.balances = mine.balances;
  manager.balance = std::chrono::milliseconds(300);
  manager.balancing.copies = mine.copies;
  manager.balancing.moves = 32;
  manager.partitions = identity.partition_count;
  NodeInfo info;
  info.node = self;
  info.heartbeat = identity.member.incarnation << 32;
  for (std::uint32_t i = 0; i < identity.instance_count; i++)
    info.instances.push_back({InstanceId{first_instance(identity.number) + i}, identity.member.incarnation});
  info.rack = rack_number(mine.rack);
  std::vector<NodeId> peers;
  for (const NodeInfo& one : mine.known)
    if (one.node != self) peers.push_back(one.node);
  for (NodeId one : keepers)
    if (one != self) peers.push_back(one);
  cluster->manager_ = std::make_unique<Manager>(std::move(manager), std::move(info), std::move(views), std::move(peers), base::entropy());
  ManagerMessage heard;  // what is known of the others is older than anything they will say
  heard.nodes = mine.known;
  cluster->manager_->on_message(heard, base::Time{});
  return cluster;
}

Result<void> Cluster::open_registers() {
  novoht::Options store;
  store.segment_size = std::uint64_t{1} << 20;
  TRY_LET(opened, novoht::Store::open(files_, options_.folder, store));
  store_ = std::move(opened);
  registers_ = std::make_unique<StoredRegisters>(*store_, novoht::TableId{0});
  return {};
}

void Cluster::make_keeper(std::vector<Register> state) {
  KeeperOptions keeper;
  keeper.self = NodeId{self()};
  for (std::uint64_t one : options_.identity.keepers) keeper.keepers.push_back(NodeId{one});
  keeper.partitions = partition_count();
  keeper_ = std::make_unique<Keeper>(std::move(keeper), std::move(state), *registers_, base::entropy());
}

bool Cluster::adopt_keepers(std::uint64_t config, const std::vector<NodeId>& keepers) {
  Identity changed = options_.identity;
  changed.config = config;
  changed.keepers.clear();
  for (NodeId one : keepers) changed.keepers.push_back(id(one));
  if (options_.save && !options_.save(changed)) return false;
  options_.identity = std::move(changed);
  manager_->set_keepers(config, keepers);
  return true;
}

void Cluster::grow_keepers(base::Time now) {
  const auto& keepers = options_.identity.keepers;
  if (!keeper_ || failed_ || keepers.size() != 1 || keepers.front() != self()) return;
  std::vector<NodeId> three = {NodeId{self()}};
  for (const auto& [info, lives] : manager_->acquaintances(now))
    if (lives && !info->leaving && id(info->node) != self() && three.size() < 3) three.push_back(info->node);
  if (three.size() < 3) return;
  std::vector<Register> state = keeper_->registers();
  if (!adopt_keepers(options_.identity.config + 1, three)) return;
  make_keeper(std::move(state));
  uninformed_ = {id(three[1]), id(three[2])};
}

void Cluster::send_registers(base::Time now) {
  if (uninformed_.empty() || !keeper_ || now < next_registers_) return;
  next_registers_ = now + std::chrono::milliseconds(300);
  for (std::uint64_t node : uninformed_) {
    ManagerMessage& message = manager_->message_for(NodeId{node});
    message.config = config();
    message.keepers = manager_->keepers();
    message.install = keeper_->registers();
  }
}

Result<void> Cluster::become_keeper(const ManagerMessage& message) {
  if (message.config < config() || message.install.size() != std::size_t{partition_count()} + 1) return {};
  if (std::find(message.keepers.begin(), message.keepers.end(), NodeId{self()}) == message.keepers.end()) return {};
  if (!keeper_) {
    if (!registers_) TRY(open_registers());
    std::vector<RegisterStore::Item> items;
    for (std::uint32_t p = 0; p < message.install.size(); p++) items.push_back({PartitionId{p}, &message.install[p]});
    TRY(registers_->save(items));
    if (!adopt_keepers(message.config, message.keepers)) return {};
    make_keeper(message.install);
    for (std::uint32_t p = 0; p < message.install.size(); p++) manager_->adopt(PartitionId{p}, message.install[p].current);
  }
  manager_->message_for(message.from).installed = true;
  return {};
}

void Cluster::introduce(const wire::NodeAbout& about) { manager_->self().about = about.SerializeAsString(); }

void Cluster::set_left() {
  NodeInfo& self = manager_->self();
  self.leaving = true;
  self.instances.clear();
}

void Cluster::on_message(const ManagerMessage& message, base::Time now) {
  if (id(message.to) != self()) return;
  manager_->on_message(message, now);
  if (keeper_) keeper_->on(message.from, message.keeper, now);
  if (message.installed) uninformed_.erase(id(message.from));
  if (!message.install.empty()) {
    if (auto became = become_keeper(message); !became) failed_ = std::move(became).error();
  } else if (message.config > config() && std::find(message.keepers.begin(), message.keepers.end(), NodeId{self()}) == message.keepers.end()) {
    (void)adopt_keepers(message.config, message.keepers);  // told again, when it cannot be noted
  }
}

void Cluster::tick(base::Time now) {
  manager_->tick(now);
  if (keeper_) keeper_->tick(now);
  grow_keepers(now);
  send_registers(now);
}

std::optional<std::uint64_t> Cluster::enrol(std::uint64_t uid) {
  const PartitionId numbers{partition_count()};
  const View& current = manager_->view(numbers);
  if (current.primary.incarnation == uid) return number(current.epoch);
  if (current.epoch != Epoch{0}) manager_->wish({numbers, {Change::Kind::enrol, current.epoch, {InstanceId{0}, uid}, {}, {}}});
  return {};
}

void Cluster::send_goal(const Placed& goal) { manager_->send_goal(goal); }

Result<Cluster::Step> Cluster::step(base::Time now) {
  Step step;
  for (bool again = true; again;) {  // what one of them says may be news to another
    again = false;
    for (Placed& one : manager_->take_goals()) step.goals.push_back(std::move(one));
    for (PartitionId partition : manager_->take_news()) {
      again = true;
      const View& view = manager_->view(partition);
      if (keeper_ && !failed_) {
        KeeperMessage news;
        news.kind = KeeperMessage::Kind::view;
        news.partition = partition;
        news.view = view;
        keeper_->on(NodeId{self()}, {&news, 1}, now);
      }
      const auto p = static_cast<std::uint32_t>(partition);
      if (p >= told_.size() || view.epoch <= told_[p].epoch) continue;
      if (auto line = tell(told_[p], view); !line.empty()) step.story[line].push_back(partition);
      told_[p] = view;
      step.views.push_back({partition, view});
    }
    if (keeper_ && !failed_) {
      auto sends = keeper_->end_round(now);
      if (!sends) failed_ = std::move(sends).error();
      else
        for (KeeperSend& send : *sends) {
          ManagerMessage& message = step.messages.emplace_back();
          message.from = NodeId{self()};
          message.to = send.to;
          message.keeper = std::move(send.messages);
        }
      for (PartitionId partition : keeper_->take_news()) {
        again = true;
        manager_->adopt(partition, keeper_->view(partition));
        manager_->broadcast(partition);
      }
    }
    for (ManagerMessage& message : manager_->take_messages()) {
      if (id(message.to) == self()) {
        again = true;
        on_message(message, now);
      } else {
        step.messages.push_back(std::move(message));
      }
    }
  }
  std::uint64_t seen = 0;
  for (const auto& [info, lives] : manager_->acquaintances(now))
    seen += base::hash64(info->about, id(info->node)) + (info->leaving && info->instances.empty());
  step.table_changed = !step.views.empty() || std::exchange(nodes_seen_, seen) != seen;
  if (failed_ && keeper_) {
    keeper_.reset();
    return *failed_;
  }
  return step;
}

std::vector<View> Cluster::views() const {
  return {manager_->views().begin(), manager_->views().begin() + partition_count()};
}

wire::NodeAbout Cluster::about(std::uint64_t node) const {
  for (const auto& [info, lives] : manager_->acquaintances({})) {
    if (id(info->node) != node) continue;
    wire::NodeAbout about;
    (void)about.ParseFromString(info->about);
    return about;
  }
  return {};
}

std::uint64_t Cluster::version() const {
  // Grows with every view and with every start of a node; the same at all managers that know the same.
  std::uint64_t version = 0;
  for (std::uint32_t p = 0; p < partition_count(); p++) version += number(manager_->view(PartitionId{p}).epoch);
  for (const auto& [info, lives] : manager_->acquaintances({})) version += info->heartbeat >> 32;
  return version;
}

bool Cluster::alone(base::Time now) const {
  for (const auto& [info, lives] : manager_->acquaintances(now))
    if (id(info->node) != self() && !(info->leaving && info->instances.empty())) return false;
  return true;
}

wire::MembershipTable Cluster::table(base::Time now) const {
  wire::MembershipTable message;
  message.set_version(version());
  message.set_partition_count(partition_count());
  message.set_max_value_size(options_.max_value_size);
  const bool lone = alone(now);
  for (const auto& [info, lives] : manager_->acquaintances(now)) {
    if (info->leaving && info->instances.empty()) continue;
    wire::NodeAbout about;
    if (!about.ParseFromString(info->about)) continue;
    for (wire::Instance& one : *about.mutable_instances()) {
      // What is replicated is answered later, and a datagram's sender cannot be.
      one.set_udp(one.udp() && lone);
      *message.add_instances() = std::move(one);
    }
  }
  wire::PartitionRun* run = nullptr;
  const View* last = nullptr;
  for (std::uint32_t p = 0; p < partition_count(); p++) {
    const View& view = manager_->view(PartitionId{p});
    if (view.epoch == Epoch{0}) {
      run = nullptr;
      continue;
    }
    if (run != nullptr && view == *last) {
      run->set_count(run->count() + 1);
      continue;
    }
    last = &view;
    run = message.add_partitions();
    run->set_first(p);
    run->set_count(1);
    run->mutable_view()->set_epoch(number(view.epoch));
    run->mutable_view()->set_primary(id(view.primary.instance));
    for (Member one : view.sync) run->mutable_view()->add_sync(id(one.instance));
    for (Member one : view.learners) run->mutable_view()->add_learners(id(one.instance));
  }
  return message;
}

}  // namespace zht::server

#include "zht/server/cluster.h"

#include <algorithm>

#include "novoht/base/random.h"

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
  // A founder knows the first views; in a later life they may not be the newest, and then only the registers count.
  std::vector<View> first;
  if (!identity.founding.nodes.empty()) first = first_registers(identity.founding);
  if (!first.empty() && identity.member.incarnation == 1) views = first;
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
  info.heartbeat = identity.member.incarnation;  // that of the next life is greater, for no node says so much in a microsecond
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

  if (mine.remembered) {
    SightingsOptions sightings;
    sightings.self = self;
    sightings.incarnation = identity.member.incarnation;
    cluster->sightings_ = std::make_unique<Sightings>(std::move(sightings), *cluster->manager_, *mine.remembered);
    cluster->told_verdict_ = cluster->sightings_->verdict();
  }
  KeepershipOptions keeping;
  keeping.self = self;
  keeping.partitions = identity.partition_count;
  keeping.config = identity.config;
  keeping.keepers = keepers;
  keeping.replace = mine.replace_keeper;
  keeping.seed = base::entropy();
  keeping.voted = identity.voted;
  if (!identity.voted && identity.member.incarnation > 1) {  // of a build that did not note it
    TRY_LET(there, files.exists(mine.folder));
    if (there) TRY(cluster->open_registers());
    if (!cluster->damage_.empty()) keeping.voted = identity.config;
  }
  Cluster* const raw = cluster.get();
  keeping.may_vote = [raw] { return raw->may_vouch(); };
  keeping.trusts = [raw](NodeId node, std::uint64_t life) { return !raw->sightings_ || raw->sightings_->trusts(node, life); };
  keeping.outdated = cluster->outdated() != 0;
  keeping.life = identity.member.incarnation;
  keeping.note_voted = [raw](std::uint64_t config) -> Result<void> {
    Identity changed = raw->options_.identity;
    changed.voted = config;
    if (raw->options_.save) TRY(raw->options_.save(changed));
    raw->options_.identity = std::move(changed);
    return {};
  };
  cluster->keepership_ = std::make_unique<Keepership>(std::move(keeping), *cluster->manager_, [raw] { return raw->open_registers(); });
  TRY_LET(kept, files.exists(cluster->options_.folder));
  if (kept || cluster->keepership_->keeps(self)) TRY(cluster->keepership_->begin(first));
  // Nobody else ever knew anything of a lone node's views.
  const bool lone = identity.founding.nodes.size() == 1 && identity.keepers == std::vector<std::uint64_t>{1} && cluster->alone({});
  if (lone && cluster->keepership_->has_lost_registers()) {
    for (std::uint32_t p = 0; p < identity.partition_count; p++) cluster->manager_->adopt(PartitionId{p}, first[p]);
    TRY(cluster->keepership_->keep_alone(identity.config, base::entropy()));
  }
  return cluster;
}

Result<void> Cluster::open_store() {
  novoht::Options store;
  store.segment_size = std::uint64_t{1} << 20;
  TRY_LET(opened, novoht::Store::open(files_, options_.folder, store));
  auto registers = std::make_unique<StoredRegisters>(*opened, novoht::TableId{0});
  std::vector<Register> all(std::size_t{options_.identity.partition_count} + 3);
  TRY(registers->load(all));
  store_ = std::move(opened);
  registers_ = std::move(registers);
  return {};
}

// What is damaged is put aside, where a person may look at it. What was promised there is lost, so this node will not vote before
// the others have given it their registers in a newer configuration; but what its instances hold is there all the same.
Result<RegisterStore*> Cluster::open_registers() {
  if (registers_) return registers_.get();
  auto opened = open_store();
  if (!opened && opened.code() == base::Code::corrupt) {
    std::string aside;
    for (int n = 1; aside.empty(); n++) {
      const std::string path = options_.folder + "-damaged-" + std::to_string(n);
      TRY_LET(taken, files_.exists(path));
      if (!taken) aside = path;
    }
    TRY(files_.rename(options_.folder, aside));
    damage_ = opened.error().message + "; put aside as " + aside;
    opened = open_store();
  }
  if (!opened) return std::move(opened).error();
  return registers_.get();
}

Result<void> Cluster::keep_alone(std::uint64_t config, const std::set<std::uint64_t>& gone, base::Time now) {
  if (config != this->config()) return base::fail(base::Code::conflict, "the keepers have changed meanwhile");
  std::size_t vote = 0;
  for (std::uint64_t one : keepers()) {
    if (one == self()) {
      vote += keepership_->votes();
      continue;
    }
    bool lives = false, lost = false;
    for (const auto& [info, living] : nodes(now))
      if (id(info->node) == one) lives = living, lost = info->lost_registers == config || info->lost_registers == replication::kNotKnown;
    if (lives && gone.contains(one)) return base::fail(base::Code::conflict, "node ", one, " was given up, and lives");
    if (!lives && !gone.contains(one)) return base::fail(base::Code::conflict, "node ", one, " keeps, is silent, and was not given up");
    vote += lives && !lost;
  }
  if (vote * 2 > keepers().size()) return base::fail(base::Code::conflict, "a majority of the keepers lives");
  TRY(keepership_->keep_alone(config, base::entropy()));
  return {};
}

// So that the next life asks the right ones. When it cannot be noted it is tried again: what counts is in the registers.
void Cluster::note_keepers() {
  if (keepership_->config() == options_.identity.config) return;
  Identity changed = options_.identity;
  changed.config = keepership_->config();
  changed.keepers.clear();
  for (NodeId one : keepership_->keepers()) changed.keepers.push_back(id(one));
  if (options_.save && !options_.save(changed)) return;
  options_.identity = std::move(changed);
}

void Cluster::introduce(const wire::NodeAbout& about) { manager_->self().about = about.SerializeAsString(); }

void Cluster::set_left() {
  NodeInfo& self = manager_->self();
  self.leaving = true;
  self.instances.clear();
  manager_->announce();
}

void Cluster::on_message(const ManagerMessage& message, base::Time now) {
  if (id(message.to) != self()) return;
  // A message may come before the news that a node which it tells of has a number. It is told again.
  const auto unknown = [&](const NodeInfo& one) { return id(one.node) != self() && !belongs(one.node); };
  if (std::any_of(message.nodes.begin(), message.nodes.end(), unknown)) {
    ManagerMessage known = message;
    std::erase_if(known.nodes, unknown);
    return on_known(known, now);
  }
  on_known(message, now);
}

void Cluster::on_known(const ManagerMessage& message, base::Time now) {
  manager_->on_message(message, now);
  if (sightings_) sightings_->on_message(message, now);
  keepership_->on_message(message, now);
}

void Cluster::tick(base::Time now) {
  manager_->tick(now);
  if (sightings_) {
    sightings_->set_votes(keepership_->votes());
    sightings_->tick(now);
  }
  keepership_->tick(now);
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
  if (sightings_) {
    step.remember = sightings_->to_save(now);
    const auto verdict = sightings_->verdict();
    step.verdict = std::exchange(told_verdict_, verdict) != verdict;
    if (step.verdict && verdict == Sightings::Verdict::outdated)
      if (auto done = keepership_->distrust(); !done) failed_ = std::move(done).error();
  }
  for (bool again = true; again;) {  // what one of them says may be news to another
    again = false;
    for (Placed& one : manager_->take_goals()) step.goals.push_back(std::move(one));
    for (PartitionId partition : manager_->take_news()) {
      again = true;
      const View& view = manager_->view(partition);
      keepership_->on_view(partition, view, now);
      const auto p = static_cast<std::uint32_t>(partition);
      if (p >= told_.size() || view.epoch <= told_[p].epoch) continue;
      if (auto line = tell(told_[p], view); !line.empty()) step.story[line].push_back(partition);
      told_[p] = view;
      step.views.push_back({partition, view});
    }
    auto sends = keepership_->end_round(now, again);
    if (!sends) {
      failed_ = std::move(sends).error();
    } else {
      for (KeeperSend& send : *sends) {
        ManagerMessage& message = step.messages.emplace_back();
        message.from = NodeId{self()};
        message.to = send.to;
        message.keeper = std::move(send.messages);
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
  if (sightings_)
    for (ManagerMessage& message : step.messages) message.life = sightings_->life();
  std::uint64_t seen = 0;
  for (const auto& [info, lives] : manager_->acquaintances(now))
    seen += base::hash64(info->about, id(info->node)) ^ std::uint64_t{info->instances.empty()} << 3 ^
            std::uint64_t{info->leaving} << 2 ^ std::uint64_t{info->stopping} << 1 ^ std::uint64_t{info->room};
  step.table_changed = !step.views.empty() || std::exchange(nodes_seen_, seen) != seen;
  note_keepers();
  if (failed_ && !std::exchange(told_failure_, true)) return *failed_;
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
  for (const auto& [info, lives] : manager_->acquaintances({})) version += info->instances.empty() ? 0 : info->instances.front().incarnation;
  return version;
}

bool Cluster::belongs(NodeId node) const {
  const std::uint64_t given = number(manager_->view(PartitionId{partition_count()}).epoch);
  return given == 0 || (id(node) >= 1 && id(node) <= given && id(node) != self());
}

bool Cluster::can_decide(base::Time now) const {
  std::size_t living = 0;
  for (const auto& [info, lives] : manager_->acquaintances(now)) living += lives && keeps(id(info->node));
  return living * 2 > keepers().size();
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

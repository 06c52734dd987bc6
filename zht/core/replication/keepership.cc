#include "zht/core/replication/keepership.h"

#include <algorithm>

namespace zht::replication {
namespace {

using Kind = KeeperMessage::Kind;

// What a majority of the keepers of one configuration know together.
void merge(Register& into, const Register& more) {
  if (more.current.epoch < into.current.epoch) return;
  if (more.current.epoch > into.current.epoch) {
    into = more;
    return;
  }
  into.promised = std::max(into.promised, more.promised);
  if (more.accepted_at <= into.accepted_at) return;
  into.accepted_at = more.accepted_at;
  into.accepted = more.accepted;
}

}  // namespace

View keepers_view(std::uint64_t config, const std::vector<NodeId>& keepers) {
  View view;
  view.epoch = Epoch{config};
  for (NodeId one : keepers) view.sync.push_back({InstanceId{static_cast<std::uint32_t>(view.sync.size())}, static_cast<std::uint64_t>(one)});
  if (!view.sync.empty()) view.primary = view.sync.front();
  return view;
}

std::vector<NodeId> keepers_of(const View& view) {
  std::vector<NodeId> keepers;
  for (Member one : view.sync) keepers.push_back(NodeId{one.incarnation});
  return keepers;
}

Keepership::Keepership(KeepershipOptions options, Manager& manager, Open open)
    : options_(std::move(options)),
      manager_(manager),
      open_(std::move(open)),
      random_(options_.seed),
      config_(options_.config),
      keepers_(options_.keepers) {}

bool Keepership::keeps(NodeId node) const { return std::find(keepers_.begin(), keepers_.end(), node) != keepers_.end(); }

Result<void> Keepership::begin(std::vector<View> first) {
  TRY_LET(store, open_());
  store_ = store;
  registers_.resize(count());
  for (std::size_t i = 0; i < first.size() && i + 2 < count(); i++) registers_[i].current = first[i];
  // The founders began to vote without anyone's registers; that is not written down until it is over.
  if (options_.config == 1 && keeps(options_.self))
    for (PartitionId one : {who_keeps(), votes_in()})
      registers_[static_cast<std::uint32_t>(one)].current = keepers_view(options_.config, options_.keepers);
  TRY(store_->load(registers_));
  if (options_.defects.has(Defect::keeper_amnesia))
    for (Register& one : registers_) one = {one.current, {}, {}, {}};
  const View decided = view_of(who_keeps());
  if (number(decided.epoch) >= config_ && !decided.sync.empty()) {
    config_ = number(decided.epoch);
    keepers_ = keepers_of(decided);
    changed_ = config_ != options_.config;
    manager_.set_keepers(config_, keepers_);
  } else {
    registers_[static_cast<std::uint32_t>(who_keeps())] = {keepers_view(config_, keepers_), {}, {}, {}};
  }
  const std::uint64_t held = number(view_of(votes_in()).epoch);
  if (held == config_ && keeps(options_.self)) {
    vote();
  } else if (held == 0) {
    registers_.clear();  // only a part of what was given to it
  } else if (held + 1 == config_) {
    if (keeps(options_.self)) gathered_[options_.self] = registers_;
    uninformed_.insert(keepers_.begin(), keepers_.end());
  }
  if (config_ > 1 && held == config_) uninformed_.insert(keepers_.begin(), keepers_.end());
  uninformed_.erase(options_.self);
  for (std::uint32_t p = 0; p <= options_.partitions && !registers_.empty(); p++)
    manager_.adopt(PartitionId{p}, registers_[p].current);
  if (keeper_) registers_.clear();
  return {};
}

void Keepership::vote() {
  KeeperOptions keeper{options_.self, keepers_, options_.retry, options_.defects, options_.partitions, config_};
  std::vector<Register> state(registers_.begin(), registers_.end() - 1);
  keeper_ = std::make_unique<Keeper>(std::move(keeper), std::move(state), *store_, random_.next());
  gathered_.clear();
}

// Other keepers were decided. From here on this node votes under the older ones no more.
Result<void> Keepership::learn(std::uint64_t config, const std::vector<NodeId>& keepers) {
  if (config <= config_ || keepers.empty()) return {};
  const View made = keepers_view(config, keepers);
  if (keeper_) {
    registers_ = keeper_->registers();
    registers_.push_back({keepers_view(config_, keepers_), {}, {}, {}});
    keeper_.reset();
  }
  gathered_.clear();
  uninformed_.clear();
  if (!registers_.empty()) {
    registers_[static_cast<std::uint32_t>(who_keeps())] = {made, {}, {}, {}};
    std::vector<RegisterStore::Item> items;
    for (PartitionId one : {who_keeps(), votes_in()}) items.push_back({one, &registers_[static_cast<std::uint32_t>(one)]});
    TRY(store_->save(items));
  }
  const bool last = config == number(registers_.empty() ? Epoch{0} : view_of(votes_in()).epoch) + 1;
  config_ = config;
  keepers_ = keepers;
  changed_ = true;
  manager_.set_keepers(config_, keepers_);
  if (registers_.empty() || !last) return {};
  uninformed_.insert(keepers_.begin(), keepers_.end());
  uninformed_.erase(options_.self);
  next_registers_ = {};
  if (!keeps(options_.self)) return {};
  ManagerMessage own;  // of its own registers it has heard, too
  own.from = options_.self;
  own.install = registers_;
  return take_in(own);
}

Result<void> Keepership::take_in(const ManagerMessage& message) {
  if (message.install.size() != count()) return {};
  const View target = message.install[static_cast<std::uint32_t>(who_keeps())].current;
  const View source = message.install[static_cast<std::uint32_t>(votes_in())].current;
  if (number(target.epoch) > config_) TRY(learn(number(target.epoch), keepers_of(target)));
  ManagerMessage& answer = manager_.message_for(message.from);
  answer.config = config_;
  answer.keepers = keepers_;
  if (number(target.epoch) != config_ || !keeps(options_.self)) return {};
  answer.installed = votes();
  if (votes()) return {};
  std::vector<Register> state;
  if (source == target) {  // from one that has taken them in
    state = message.install;
  } else {
    const std::vector<NodeId> before = keepers_of(source);
    if (next(source.epoch) != target.epoch || std::find(before.begin(), before.end(), message.from) == before.end()) return {};
    gathered_[message.from] = message.install;
    if (gathered_.size() * 2 <= source.sync.size() && !options_.defects.has(Defect::install_from_one)) return {};
    for (const auto& [from, registers] : gathered_) {
      if (state.empty()) state = registers;
      for (std::size_t i = 0; i < state.size(); i++) merge(state[i], registers[i]);
    }
  }
  for (PartitionId one : {who_keeps(), votes_in()})
    state[static_cast<std::uint32_t>(one)] = {keepers_view(config_, keepers_), {}, {}, {}};
  if (store_ == nullptr) {
    TRY_LET(store, open_());
    store_ = store;
  }
  std::vector<RegisterStore::Item> items;  // in this order: what was taken in counts when the last one is there
  for (std::uint32_t p = 0; p < state.size(); p++) items.push_back({PartitionId{p}, &state[p]});
  TRY(store_->save(items));
  registers_ = std::move(state);
  vote();
  for (std::uint32_t p = 0; p <= options_.partitions; p++) manager_.adopt(PartitionId{p}, registers_[p].current);
  registers_.clear();
  uninformed_.insert(keepers_.begin(), keepers_.end());
  uninformed_.erase(options_.self);
  if (message.from != options_.self) manager_.message_for(message.from).installed = true;
  return {};
}

void Keepership::on_message(const ManagerMessage& message, base::Time now) {
  if (failed_) return;
  if (keeper_) keeper_->on(message.from, message.keeper, now);
  if (message.installed && message.config == config_) uninformed_.erase(message.from);
  Result<void> done;
  if (!message.install.empty()) done = take_in(message);
  else if (message.config > config_) done = learn(message.config, message.keepers);
  if (!done) failed_ = std::move(done).error();
}

void Keepership::on_view(PartitionId partition, const View& view, base::Time now) {
  if (!keeper_ || failed_) return;
  KeeperMessage news;
  news.kind = Kind::view;
  news.partition = partition;
  news.view = view;
  keeper_->on(options_.self, {&news, 1}, now);
}

void Keepership::tick(base::Time now) {
  if (failed_) return;
  if (keeper_) keeper_->tick(now);
  send_registers(now);
  plan(now);
}

void Keepership::send_registers(base::Time now) {
  if (uninformed_.empty() || now < next_registers_ || (!keeper_ && registers_.empty())) return;
  next_registers_ = now + options_.again;
  for (NodeId node : uninformed_) {
    ManagerMessage& message = manager_.message_for(node);
    message.config = config_;
    message.keepers = keepers_;
    message.install = keeper_ ? keeper_->registers() : registers_;
    if (keeper_) message.install.push_back({keepers_view(config_, keepers_), {}, {}, {}});
  }
}

// Who should keep. Only the keeper with the lowest number that lives wishes; two that do are harmless.
void Keepership::plan(base::Time now) {
  if (now < next_plan_) return;
  next_plan_ = now + options_.again;
  struct Known {
    bool lives, leaves;
    base::Duration silent;
    std::uint32_t rack;
  };
  std::map<NodeId, Known> known;
  for (const auto& [info, lives] : manager_.acquaintances(now)) {
    auto [since, fresh] = silent_since_.try_emplace(info->node, now);
    if (lives) since->second = now;
    known[info->node] = {lives, info->leaving, now - since->second, info->rack};
  }
  if (!keeper_ || known.empty()) return;
  std::vector<NodeId> stay, good;
  for (NodeId one : keepers_) {
    const auto found = known.find(one);
    if (found == known.end()) continue;
    if (found->second.lives && one < options_.self) return;  // its business
    // Until it has the registers it cannot vote; who lives will have them soon.
    if (found->second.lives && uninformed_.contains(one)) return;
    if (!found->second.leaves && found->second.silent < options_.replace) stay.push_back(one);
  }
  std::vector<std::uint32_t> racks;
  for (NodeId one : stay) racks.push_back(known[one].rack);
  for (const auto& [node, about] : known)
    if (about.lives && !about.leaves && !keeps(node)) good.push_back(node);
  // Other racks first.
  const auto elsewhere = [&](NodeId one) { return std::find(racks.begin(), racks.end(), known[one].rack) == racks.end(); };
  std::stable_partition(good.begin(), good.end(), elsewhere);
  const std::size_t wanted = std::max<std::size_t>(3, keepers_.size());
  std::vector<NodeId> list = stay;
  for (NodeId one : good)
    if (list.size() < wanted) list.push_back(one);
  // Without anyone to take its place a silent one may come back, and one of two is no majority of anything.
  const auto is_listed = [&](NodeId one) { return std::find(list.begin(), list.end(), one) != list.end(); };
  for (NodeId one : keepers_)
    if (list.size() < wanted && known.contains(one) && !known[one].leaves && !is_listed(one)) list.push_back(one);
  if (list.size() < wanted && list.size() % 2 == 0 && list.size() > 1) {
    for (const auto& [node, about] : known)
      if (!about.leaves && !keeps(node) && about.silent < options_.replace) return;  // it may soon be heard again
    list.pop_back();
  }
  std::vector<NodeId> sorted = list, present = keepers_;
  std::sort(sorted.begin(), sorted.end());
  std::sort(present.begin(), present.end());
  const bool waits = keepers_.size() == 1 && sorted.size() < 3 && !known[options_.self].leaves;  // for a third node
  if (sorted.empty() || sorted == present || waits) return;
  KeeperMessage message;
  message.kind = Kind::change;
  message.partition = who_keeps();
  message.change = {Change::Kind::keepers, Epoch{config_}, {}, {}, keepers_view(1, sorted).sync};
  keeper_->on(options_.self, {&message, 1}, now);
}

Result<std::vector<KeeperSend>> Keepership::end_round(base::Time now, bool& again) {
  std::vector<KeeperSend> out;
  if (!failed_ && keeper_) {
    auto sends = keeper_->end_round(now);
    if (!sends) {
      failed_ = std::move(sends).error();
    } else {
      out = *std::move(sends);
      View decided;
      for (PartitionId partition : keeper_->take_news()) {
        again = true;
        if (partition == who_keeps()) {
          decided = keeper_->view(partition);
        } else {
          manager_.adopt(partition, keeper_->view(partition));
          manager_.broadcast(partition);
        }
      }
      if (decided.epoch != Epoch{0})
        if (auto learned = learn(number(decided.epoch), keepers_of(decided)); !learned) failed_ = std::move(learned).error();
    }
  }
  if (!failed_) return out;
  keeper_.reset();
  registers_.clear();
  uninformed_.clear();
  return *failed_;
}

}  // namespace zht::replication

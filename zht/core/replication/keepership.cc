#include "zht/core/replication/keepership.h"

#include <algorithm>
#include <sstream>

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
      keepers_(options_.keepers),
      voted_(options_.voted.value_or(0)),
      finds_out_(options_.outdated) {
  note_lost();
}

void Keepership::note_lost() {
  manager_.self().lost_registers = finds_out_ ? kNotKnown : has_lost_registers() ? config_ : 0;
}

bool Keepership::keeps(NodeId node) const { return std::find(keepers_.begin(), keepers_.end(), node) != keepers_.end(); }

// In this order.
Result<void> Keepership::save(const std::vector<Register>& registers, PartitionId from) {
  std::vector<RegisterStore::Item> items;
  for (auto p = static_cast<std::uint32_t>(from); p < registers.size(); p++) items.push_back({PartitionId{p}, &registers[p]});
  return store_->save(items);
}

// Tells who keeps, as this node knows it.
ManagerMessage& Keepership::message_for(NodeId node) {
  ManagerMessage& message = manager_.message_for(node);
  message.config = config_;
  message.keepers = keepers_;
  return message;
}

Result<void> Keepership::begin(std::vector<View> first) {
  TRY_LET(store, open_());
  store_ = store;
  registers_.resize(count());
  for (std::size_t i = 0; i < first.size() && i + 2 < count(); i++) registers_[i].current = first[i];
  // The founders begin to vote without anyone's registers.
  const bool founds = options_.config == 1 && voted_ == 0 && keeps(options_.self) && !options_.outdated;
  if (founds)
    for (PartitionId one : {who_keeps(), votes_in()})
      registers_[static_cast<std::uint32_t>(one)].current = keepers_view(options_.config, options_.keepers);
  TRY(store_->load(registers_));
  if (founds) TRY(save(registers_, who_keeps()));
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
  const bool votes = held == config_ && keeps(options_.self);
  if (held == 0) {
    registers_.clear();  // only a part of what was given to it, or all it had is gone
  } else if (held + 1 == config_) {
    if (keeps(options_.self)) gathered_[options_.self] = registers_;
    uninformed_.insert(keepers_.begin(), keepers_.end());
  }
  if (config_ > 1 && held == config_) uninformed_.insert(keepers_.begin(), keepers_.end());
  uninformed_.erase(options_.self);
  finds_out_ = finds_out_ && registers_.empty();  // else it was given them after it was found to be one
  for (std::uint32_t p = 0; p <= options_.partitions && !registers_.empty(); p++)
    manager_.adopt(PartitionId{p}, registers_[p].current);
  if (!votes) return {};
  if (!founds && !options_.defects.has(Defect::vote_unasked))
    for (const auto& [info, lives] : manager_.acquaintances({}))
      if (info->node != options_.self) asked_.insert(info->node);
  if (asked_.empty() && may_vote()) return vote();
  vote_by_ = base::Time::max();
  return {};
}

// Whether what this node votes in is what the others go by; see the head of keepership.h.
void Keepership::look_around(base::Time now) {
  if (vote_by_ == base::Time::max()) vote_by_ = now + options_.look_around;
  if (may_vote() && (asked_.empty() || now >= vote_by_)) {
    if (auto begun = vote(); !begun) failed_ = std::move(begun).error();
    return;
  }
  if (now < next_question_) return;
  next_question_ = now + options_.retry;
  for (NodeId node : asked_) {
    message_for(node).asks_keepers = true;
  }
}

// In which configurations this node may have voted; see the head of keepership.h.
void Keepership::find_out(base::Time now) {
  if (now < next_question_) return;
  next_question_ = now + options_.again;
  for (NodeId node : keepers_)
    if (node != options_.self) message_for(node).asks_keepers = true;
}

Result<void> Keepership::note_voted() {
  if (voted_ >= config_) return {};
  if (options_.note_voted) TRY(options_.note_voted(config_));
  voted_ = config_;
  return {};
}

Result<void> Keepership::vote() {
  vote_by_ = {};
  asked_.clear();
  TRY(note_voted());
  KeeperOptions keeper{options_.self, keepers_, options_.retry, options_.defects, options_.partitions, config_};
  std::vector<Register> state(registers_.begin(), registers_.end() - 1);
  keeper_ = std::make_unique<Keeper>(std::move(keeper), std::move(state), *store_, random_.next());
  registers_.clear();
  gathered_.clear();
  for (std::uint32_t p = 0; p < options_.partitions && p < manager_.views().size(); p++)  // what was heard before it voted
    if (const View& heard = manager_.view(PartitionId{p}); heard.epoch > keeper_->view(PartitionId{p}).epoch) on_view(PartitionId{p}, heard, {});
  return {};
}

// Other keepers were decided. From here on this node votes under the older ones no more.
Result<void> Keepership::learn(std::uint64_t config, const std::vector<NodeId>& keepers) {
  if (!may_follow(Epoch{config_}, Epoch{config}) || keepers.empty()) return {};
  const View made = keepers_view(config, keepers);
  if (keeper_) {
    registers_ = keeper_->registers();
    registers_.push_back({keepers_view(config_, keepers_), {}, {}, {}});
    keeper_.reset();
  }
  vote_by_ = {};
  asked_.clear();
  gathered_.clear();
  uninformed_.clear();
  answered_.clear();
  next_question_ = {};
  if (!registers_.empty()) {
    registers_[static_cast<std::uint32_t>(who_keeps())] = {made, {}, {}, {}};
    TRY(save(registers_, who_keeps()));
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
  return take_in_own();
}

Result<void> Keepership::take_in_own() {
  own_due_ = !may_vote();
  if (own_due_ || registers_.empty()) return {};
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
  ManagerMessage& answer = message_for(message.from);
  if (number(target.epoch) != config_ || !keeps(options_.self)) return {};
  answer.installed = votes() || awaits_vote();
  const bool lost = (voted_ >= config_ && !options_.defects.has(Defect::vote_after_loss)) || !may_vote() || finds_out_;
  if (votes() || awaits_vote() || lost) return {};  // what it has promised in this configuration nobody else knows
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
  TRY(save(state, PartitionId{0}));  // what was taken in counts when the last one is there
  registers_ = std::move(state);
  for (std::uint32_t p = 0; p <= options_.partitions; p++) manager_.adopt(PartitionId{p}, registers_[p].current);
  TRY(vote());
  uninformed_.insert(keepers_.begin(), keepers_.end());
  uninformed_.erase(options_.self);
  if (message.from != options_.self) manager_.message_for(message.from).installed = true;
  return {};
}

void Keepership::on_message(const ManagerMessage& message, base::Time now) {
  if (failed_) return;
  if (keeper_ && trusts(message)) {
    keeper_->on(message.from, message.keeper, now);
  } else if (keeper_) {
    for (const KeeperMessage& one : message.keeper)
      if (one.kind == Kind::change || one.kind == Kind::ask || one.kind == Kind::view) keeper_->on(message.from, {&one, 1}, now);
  }
  if (message.installed && message.config == config_) uninformed_.erase(message.from);
  if (message.asks_keepers && message.config <= config_) {
    ManagerMessage& answer = message_for(message.from);
    if (may_vote() && !finds_out_) answer.answers = message.life;
  }
  if (message.config != 0 && message.config <= config_) asked_.erase(message.from);
  Result<void> done;
  if (!message.install.empty() && trusts(message)) done = take_in(message);
  else if (message.config > config_) done = learn(message.config, message.keepers);
  if (done && finds_out_ && message.config == config_ && keeps(message.from) && trusts(message) &&
      (message.life == 0 || (message.answers == options_.life && options_.life != 0))) {
    answered_.insert(message.from);
    if (answered_.size() >= keepers_.size() - keepers_.size() / 2) {
      done = note_voted();
      finds_out_ = !done;
    }
  }
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
  if (awaits_vote()) look_around(now);
  if (finds_out_) find_out(now);
  if (own_due_ && may_vote())
    if (auto taken = take_in_own(); !taken) failed_ = std::move(taken).error();
  note_lost();
  send_registers(now);
  plan(now);
}

base::Time Keepership::next_due() const {
  if (failed_) return base::Time::max();
  if (awaits_vote() || own_due_ || !uninformed_.empty() || (keeper_ && keeper_->waits())) return {};
  return finds_out_ ? std::min(next_question_, next_plan_) : next_plan_;
}

void Keepership::send_registers(base::Time now) {
  if (uninformed_.empty() || now < next_registers_ || (!keeper_ && registers_.empty()) || !may_vote()) return;
  next_registers_ = now + options_.again;
  for (NodeId node : uninformed_) {
    ManagerMessage& message = message_for(node);
    message.install = keeper_ ? keeper_->registers() : registers_;
    if (keeper_) message.install.push_back({keepers_view(config_, keepers_), {}, {}, {}});
  }
}

// Who should keep. Only the keeper with the lowest number that lives wishes; two that do are harmless.
void Keepership::plan(base::Time now) {
  if (now < next_plan_) return;
  next_plan_ = now + options_.again;
  struct Known {
    bool lives, leaves, lost;  // lives, and could be given registers
    base::Duration silent;
    std::uint32_t rack;
  };
  std::map<NodeId, Known> known;
  for (const auto& [info, lives] : manager_.acquaintances(now)) {
    auto [since, fresh] = silent_since_.try_emplace(info->node, now);
    if (lives) since->second = now;
    const bool unsure = info->lost_registers == kNotKnown;
    known[info->node] = {lives && !unsure, info->leaving, info->lost_registers == config_, now - since->second, info->rack};
  }
  if (!keeper_ || known.empty()) return;
  std::vector<NodeId> stay, good;
  bool again = false;  // the same, in a new configuration, so that one that has lost its registers has them again
  for (NodeId one : keepers_) {
    const auto found = known.find(one);
    if (found == known.end()) continue;
    const bool lives = found->second.lives && !found->second.lost;
    again = again || (found->second.lives && found->second.lost);
    if (lives && one < options_.self) return;  // its business
    // Until it has the registers it cannot vote; who lives will have them soon.
    if (lives && uninformed_.contains(one)) return;
    if (!found->second.leaves && found->second.silent < options_.replace) stay.push_back(one);
  }
  std::stable_partition(stay.begin(), stay.end(), [&](NodeId one) { return !known[one].lost; });
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
  if (sorted.empty() || (sorted == present && !again) || waits) return;
  KeeperMessage message;
  message.kind = Kind::change;
  message.partition = who_keeps();
  message.change = {Change::Kind::keepers, Epoch{config_}, {}, {}, keepers_view(1, sorted).sync};
  keeper_->on(options_.self, {&message, 1}, now);
}

Result<void> Keepership::keep_alone(std::uint64_t config, std::uint64_t random) {
  if (failed_) return *failed_;
  if (config != config_) return fail(Code::conflict, "the keepers are of configuration ", config_, ", not ", config);
  if (store_ == nullptr) {
    TRY_LET(store, open_());
    store_ = store;
  }
  const std::uint64_t generation = generation_of(config_) + 1 + random % 255;
  if (generation >= generation_of(kLastNumber)) return fail(Code::no_space, "generation ", generation, " would be past the last");
  std::vector<Register> state(count());
  const std::vector<Register> own = keeper_ ? keeper_->registers() : registers_;
  for (std::uint32_t p = 0; p <= options_.partitions; p++) {
    View newest = p < manager_.views().size() ? manager_.view(PartitionId{p}) : View{};
    if (p < own.size()) {
      // What it accepted may have been decided by the others.
      if (own[p].current.epoch > newest.epoch) newest = own[p].current;
      if (own[p].accepted && own[p].accepted->epoch > newest.epoch) newest = *own[p].accepted;
    }
    if (p < options_.partitions && newest.epoch == Epoch{0})
      return fail(Code::unavailable, "partition ", p, ": this node has not heard who holds it");
    if (p < options_.partitions && !options_.defects.has(Defect::same_generation)) newest.epoch = Epoch{generation << 32};
    state[p].current = std::move(newest);
  }
  // Numbers that the lost ones gave out and nobody has heard of are not given out again.
  constexpr std::uint64_t kMore = 8;
  View& numbers = state[options_.partitions].current;
  std::uint64_t given = number(numbers.epoch);
  for (const auto& [info, lives] : manager_.acquaintances({})) given = std::max(given, static_cast<std::uint64_t>(info->node));
  numbers.epoch = Epoch{given + kMore};
  numbers.primary = {InstanceId{0}, 1};  // nobody's: who asks for a number again is given another
  numbers.sync = {numbers.primary};
  const std::uint64_t made = generation << 32;
  const std::vector<NodeId> alone{options_.self};
  for (PartitionId one : {who_keeps(), votes_in()}) state[static_cast<std::uint32_t>(one)].current = keepers_view(made, alone);
  TRY(save(state, PartitionId{0}));
  keeper_.reset();
  uninformed_.clear();
  finds_out_ = false;
  registers_ = std::move(state);
  config_ = made;
  keepers_ = alone;
  changed_ = true;
  manager_.set_keepers(config_, keepers_);
  for (std::uint32_t p = 0; p <= options_.partitions && p < manager_.views().size(); p++) {
    manager_.adopt(PartitionId{p}, registers_[p].current);
    manager_.broadcast(PartitionId{p});
  }
  return vote();
}

Result<void> Keepership::distrust() {
  if (failed_ || options_.defects.has(Defect::vote_from_old_copy)) return {};
  finds_out_ = true;
  answered_.clear();
  next_question_ = {};
  TRY(note_voted());
  keeper_.reset();
  vote_by_ = {};
  asked_.clear();
  gathered_.clear();
  uninformed_.clear();
  own_due_ = false;
  if (store_ != nullptr) TRY(save(std::vector<Register>(count()), votes_in()));  // without a configuration that they are of they count for nothing
  registers_.clear();
  return {};
}

std::string Keepership::story() const {
  std::ostringstream out;
  out << "configuration " << config_ << " of";
  for (NodeId one : keepers_) out << " " << static_cast<std::uint64_t>(one);
  out << (keeper_ ? ", votes" : awaits_vote() ? ", looks around" : has_lost_registers() ? ", has lost its registers" : "");
  if (finds_out_) out << ", does not know in what it voted";
  if (voted_ != 0) out << ", voted in " << voted_;
  if (failed_) out << ", failed";
  if (!registers_.empty()) out << ", has registers of " << number(view_of(votes_in()).epoch);
  for (const auto& [node, registers] : gathered_) out << ", gathered from " << static_cast<std::uint64_t>(node);
  for (NodeId one : uninformed_) out << ", owes " << static_cast<std::uint64_t>(one);
  return std::move(out).str();
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

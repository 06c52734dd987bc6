#include "zht/core/replication/manager.h"

#include <algorithm>

namespace zht::replication {
namespace {

constexpr std::size_t kMostGoals = 100'000;  // that wait for the next look at them
constexpr std::size_t kMostEnded = 4 * kMostInstancesOfNode;

std::size_t size_of(const NodeInfo& info) { return sizeof info + info.about.size() + info.instances.size() * sizeof(Member); }

}  // namespace

Manager::Manager(ManagerOptions options, NodeInfo self, std::vector<View> views, std::vector<NodeId> peers, std::uint64_t seed)
    : options_(std::move(options)), views_(std::move(views)), random_(seed) {
  CHECK(!options_.keepers.empty());
  for (NodeId peer : peers) nodes_[peer].info.node = peer;
  nodes_[options_.self].info = std::move(self);
}

ManagerMessage& Manager::message_to(NodeId node) {
  ManagerMessage& message = messages_[node];
  message.from = options_.self;
  message.to = node;
  return message;
}

std::vector<ManagerMessage> Manager::take_messages() {
  std::vector<ManagerMessage> out;
  for (auto& [node, message] : std::exchange(messages_, {})) out.push_back(std::move(message));
  return out;
}

void Manager::adopt(PartitionId partition, const View& view) {
  const auto number = static_cast<std::uint32_t>(partition);
  if (number >= views_.size() || !may_follow(views_[number].epoch, view.epoch)) return;
  views_[number] = view;
  tries_.erase(number);
  news_.push_back(partition);
}

void Manager::broadcast(PartitionId partition) {
  for (const auto& [node, known] : nodes_)
    if (node != options_.self) message_to(node).views.push_back({partition, view(partition)});
}

// Any keeper will do, but two that propose for one partition only hinder each other: so all managers ask the same one first, and
// the next when a wish has to be said again.
void Manager::wish(const Wish& wish) {
  Tries& tries = tries_[static_cast<std::uint32_t>(wish.partition)];
  if (tries.base != wish.change.base) tries = {wish.change.base, 0};
  NodeId keeper = options_.keepers[tries.count++ % options_.keepers.size()];
  for (std::size_t i = 1; i < options_.keepers.size() && has_ended(keeper); i++)
    keeper = options_.keepers[tries.count++ % options_.keepers.size()];
  if (keeper == options_.self || now_ - doors_[keeper].heard < options_.fresh) tell(keeper, wish);
  else knock(keeper, wish);
}

bool Manager::has_ended(NodeId node) const {
  const auto known = nodes_.find(node);
  return known != nodes_.end() && known->second.ended;
}

void Manager::ended(NodeId node, const Members& members, bool out) {
  constexpr auto kLongest = std::chrono::seconds(3);
  const auto known = nodes_.find(node);  // one that ended before it was heard of is nobody's acquaintance
  const auto later = [&](Member one) {  // it runs again already
    return std::any_of(members.begin(), members.end(), [&](Member old) { return old.instance == one.instance && old.incarnation < one.incarnation; });
  };
  if (node != options_.self && known != nodes_.end() &&
      std::none_of(known->second.info.instances.begin(), known->second.info.instances.end(), later)) {
    known->second.ended = true;
    known->second.heard = {};
    doors_[node].heard = {};
  }
  if (!out) return;
  for (Member one : members) {
    const auto said = std::find_if(ended_.begin(), ended_.end(), [&](const Ended& other) { return other.member == one; });
    if (said != ended_.end()) said->until = now_ + kLongest;
    else if (ended_.size() < kMostEnded) ended_.push_back({one, now_ + kLongest});
  }
  count_out();
}

// Said again every so often: a keeper may have ended with it, or be busy with another change.
void Manager::count_out() {
  constexpr auto kAgain = std::chrono::milliseconds(30);
  std::erase_if(ended_, [&](Ended& one) {
    if (now_ >= one.until) return true;
    if (now_ < one.next) return false;
    one.next = now_ + kAgain;
    for (std::uint32_t p = 0; p < partitions().size(); p++)
      if (is_member(views_[p], one.member)) wish({PartitionId{p}, {Change::Kind::exited, views_[p].epoch, one.member, one.member, {}}});
    return false;
  });
}

void Manager::tell(NodeId keeper, const Wish& wish) {
  KeeperMessage message;
  message.kind = KeeperMessage::Kind::change;
  message.partition = wish.partition;
  message.change = wish.change;
  message_to(keeper).keeper.push_back(std::move(message));
}

// Who is heard but hears nobody must not have views changed: he would not learn of them. A primary that no answer reaches would drop
// all its members one after another and be the only one left, deaf. So a wish is told to a keeper that answers.
void Manager::knock(NodeId keeper, const Wish& wish) {
  Door& door = doors_[keeper];
  const bool knocks = !door.wishes.empty() && now_ - door.knocked < options_.fresh / 4;
  door.wishes[wish.partition] = {wish, now_};
  if (knocks) return;
  door.knocked = now_;
  KeeperMessage message;  // what it knows of the partition: certainly newer than nothing
  message.kind = KeeperMessage::Kind::ask;
  message.partition = wish.partition;
  message_to(keeper).keeper.push_back(std::move(message));
}

void Manager::answered(NodeId keeper, base::Time now) {
  Door& door = doors_[keeper];
  door.heard = now;
  for (const auto& [partition, one] : std::exchange(door.wishes, {}))
    if (one.wish.change.base == view(partition).epoch && now - one.at < options_.wish_life) tell(keeper, one.wish);
}

void Manager::on_message(const ManagerMessage& message, base::Time now) {
  now_ = std::max(now_, now);
  if (const auto known = nodes_.find(message.from); known != nodes_.end()) known->second.spoke = now;
  for (const ViewNews& one : message.views) adopt(one.partition, one.view);
  if (std::find(options_.keepers.begin(), options_.keepers.end(), message.from) != options_.keepers.end()) answered(message.from, now);
  for (const KeeperMessage& one : message.keeper) {
    const auto number = static_cast<std::uint32_t>(one.partition);
    if (number >= views_.size()) continue;
    if (one.kind == KeeperMessage::Kind::view && one.view) adopt(one.partition, *one.view);
    if (one.kind == KeeperMessage::Kind::ask && one.epoch < views_[number].epoch) {
      KeeperMessage answer;
      answer.kind = KeeperMessage::Kind::view;
      answer.partition = one.partition;
      answer.view = views_[number];
      message_to(message.from).keeper.push_back(std::move(answer));
    }
  }
  if (goals_.size() < kMostGoals) goals_.insert(goals_.end(), message.goals.begin(), message.goals.end());
  for (const NodeInfo& one : message.nodes) hear_of(one, now);
  if (!message.nodes.empty() && message.digest != digest()) {
    ManagerMessage& answer = message_to(message.from);
    answer.answer_epochs = true;
    answer.epochs.clear();
    for (const View& view : views_) answer.epochs.push_back(view.epoch);
  }
  if (!message.epochs.empty()) compare(message);
}

void Manager::hear_of(const NodeInfo& info, base::Time now) {
  if (info.node == options_.self) return;
  const auto found = nodes_.find(info.node);
  if (found == nodes_.end() && info.heartbeat == 0) return;
  const std::size_t before = found == nodes_.end() ? 0 : size_of(found->second.info), after = size_of(info);
  if (after > before && remembered_ + after - before > options_.remembered) return void(forgotten_++);
  Known& known = found == nodes_.end() ? nodes_[info.node] : found->second;
  if (info.heartbeat <= known.info.heartbeat) return;
  const bool same_life = !known.info.instances.empty() && known.info.instances == info.instances;
  if (known.ended && same_life) return;  // news of it that was under way when it ended
  remembered_ += after - before;
  known = {info, now, false, known.spoke};
}

void Manager::compare(const ManagerMessage& message) {
  ManagerMessage& answer = message_to(message.from);
  bool behind = false;
  for (std::uint32_t p = 0; p < views_.size() && p < message.epochs.size(); p++) {
    if (message.epochs[p] < views_[p].epoch) answer.views.push_back({PartitionId{p}, views_[p]});
    behind = behind || message.epochs[p] > views_[p].epoch;
  }
  if (!behind || !message.answer_epochs) return;
  answer.epochs.clear();
  for (const View& view : views_) answer.epochs.push_back(view.epoch);
}

void Manager::tick(base::Time now) {
  now_ = std::max(now_, now);
  if (!ended_.empty()) count_out();
  if (now >= next_gossip_) {
    next_gossip_ = now + options_.gossip;
    gossip(now);
  }
  if (!intents_.empty()) follow_up(now);
  if (options_.balances && now >= next_plan_) {
    next_plan_ = now + options_.balance;
    plan(now);
  }
}

base::Time Manager::next_due() const {
  if (!ended_.empty() || !intents_.empty()) return {};
  return options_.balances && !rests_ ? std::min(next_gossip_, next_plan_) : next_gossip_;  // with which a plan comes
}

void Manager::gossip(base::Time now) {
  Known& me = nodes_[options_.self];
  me.info.heartbeat++;
  me.heard = now;
  std::vector<NodeId> others;
  for (const auto& [node, known] : nodes_)
    if (node != options_.self) others.push_back(node);
  std::vector<NodeInfo> infos;
  for (const auto& [node, known] : nodes_)
    if (known.info.heartbeat > 0) infos.push_back(known.info);
  for (int i = 0; i < 2 && !others.empty(); i++) gossip_to(others[random_.below(others.size())], infos);
}

void Manager::gossip_to(NodeId node, std::vector<NodeInfo> nodes) {
  ManagerMessage& message = message_to(node);
  message.nodes = std::move(nodes);
  message.digest = digest();
  message.config = options_.config;
  message.keepers = options_.keepers;
}

void Manager::knock_everywhere() {
  for (const auto& [node, known] : nodes_) {
    if (node == options_.self || (known.info.leaving && known.info.instances.empty())) continue;
    ManagerMessage& message = message_to(node);
    message.config = options_.config;
    message.keepers = options_.keepers;
    message.asks_keepers = true;
  }
}

base::Time Manager::spoke(NodeId node) const {
  const auto known = nodes_.find(node);
  return known == nodes_.end() ? base::Time{} : known->second.spoke;
}

void Manager::announce() {
  NodeInfo& me = self();
  me.heartbeat++;
  for (const auto& [node, known] : nodes_)
    if (node != options_.self) gossip_to(node, {me});
}

std::vector<Place> Manager::places(base::Time now) const {
  std::vector<Place> places;
  for (const auto& [node, known] : nodes_) {
    const NodeInfo& info = known.info;
    if (node != options_.self && !lives(known, now)) continue;
    for (Member one : info.instances)
      places.push_back({one.instance, info.rack, info.leaving, info.room && !info.stopping, static_cast<std::uint64_t>(node), info.stopping});
  }
  return places;
}

std::vector<Placed> Manager::hand_over(base::Time now) const {
  return replication::hand_over(partitions(), places(now), static_cast<std::uint64_t>(options_.self));
}

bool Manager::set_keepers(std::uint64_t config, std::vector<NodeId> keepers) {
  if (!may_follow(Epoch{options_.config}, Epoch{config}) || keepers.empty()) return false;
  options_.config = config;
  options_.keepers = std::move(keepers);
  return true;
}

bool Manager::lives(const Known& known, base::Time now) const {
  return known.heard != base::Time{} && now - known.heard < options_.dead;
}

// Someone else may have set a goal, who planned before or a person: the primary that was told has perhaps handed on, with the rest of the
// way still to go, and the next knows nothing of that. A view that stays as it is with a copy too many is such a one.
std::set<PartitionId> Manager::moving(base::Time now) {
  constexpr auto kAtRest = std::chrono::seconds(2);
  std::set<PartitionId> moving;
  std::map<PartitionId, Surplus> surplus;
  for (std::uint32_t p = 0; p < partitions().size(); p++) {
    const View& view = views_[p];
    if (view.sync.size() + view.learners.size() <= options_.balancing.copies) continue;
    const auto known = surplus_.find(PartitionId{p});
    const bool same = known != surplus_.end() && known->second.epoch == view.epoch;
    const base::Time since = same ? known->second.since : now;
    surplus[PartitionId{p}] = {view.epoch, since};
    if (now - since < kAtRest) moving.insert(PartitionId{p});
  }
  surplus_ = std::move(surplus);
  return moving;
}

// The living keeper with the lowest id plans; two at once do no harm.
bool Manager::plans(base::Time now) const {
  for (NodeId keeper : options_.keepers) {
    const auto known = nodes_.find(keeper);
    if (keeper < options_.self && known != nodes_.end() && lives(known->second, now)) return false;
  }
  return std::find(options_.keepers.begin(), options_.keepers.end(), options_.self) != options_.keepers.end();
}

// Partitions whose view was changed lately by an operator or a repair, and not by this planner's goals.
std::set<PartitionId> Manager::touched(base::Time now) {
  constexpr auto kLeftAlone = std::chrono::seconds(3);
  std::set<PartitionId> touched;
  const bool first = views_seen_.empty();
  views_seen_.resize(partitions().size());
  for (std::uint32_t p = 0; p < partitions().size(); p++) {
    Surplus& seen = views_seen_[p];
    if (seen.epoch != views_[p].epoch) seen = {views_[p].epoch, first || planned_moves_.contains(PartitionId{p}) ? base::Time{} : now};
    if (seen.since != base::Time{} && now - seen.since < kLeftAlone) touched.insert(PartitionId{p});
  }
  planned_moves_.clear();
  for (const auto& [partition, intent] : intents_) planned_moves_.insert(partition);
  return touched;
}

void Manager::plan(base::Time now) {
  rests_ = true;
  if (!plans(now)) return intents_.clear();
  forget_hopeless(now);
  BalanceOptions balancing = options_.balancing;
  balancing.moving = moving(now);
  balancing.touched = touched(now);
  if (!balancing.defects.has(Defect::forget_intents))
    for (const auto& [partition, intent] : intents_) balancing.under_way[partition] = intent.goal;
  balancing.empties = 2 * balancing.moves - std::min(2 * balancing.moves, balancing.under_way.size());
  balancing.moves -= std::min(balancing.moves, balancing.under_way.size());
  planned_ = now;
  // Where nothing moves, of the same views and places the same plan would come: none.
  std::vector<Place> living = places(now);
  const bool still = balancing.moving.empty() && balancing.touched.empty() && intents_.empty();
  if (still && no_plan_of_ == version() && living == places_) return;
  std::vector<Placed> goals = balance(partitions(), living, balancing);
  rests_ = still && goals.empty();
  no_plan_of_ = rests_ ? version() : 0;
  places_ = std::move(living);
  for (Placed& one : goals) {
    send_goal(one);
    if (balancing.defects.has(Defect::forget_intents)) continue;
    intents_[one.partition] = {std::move(one.goal), view(one.partition), now, now, true};
  }
}

// Whether the step from the view last seen to this one leads away from the goal.
bool Manager::is_foreign(const Intent& intent, const View& now_is) {
  for (const Members* members : {&now_is.sync, &now_is.learners})
    for (Member one : *members)
      if (!intent.goal.has(one.instance) && !member_at(intent.seen, one.instance)) return true;
  return intent.seen.primary.instance == intent.goal.primary && now_is.primary.instance != intent.goal.primary;
}

// Goals that were reached are done with, and the next may be set; a new primary is told where its partition goes.
void Manager::follow_up(base::Time now) {
  constexpr auto kSoon = std::chrono::milliseconds(50), kAgain = std::chrono::milliseconds(1000);
  bool done = false;
  for (auto one = intents_.begin(); one != intents_.end();) {
    Intent& intent = one->second;
    const View& now_is = view(one->first);
    if (intent.seen.epoch != now_is.epoch) {
      // An operator or a repair moves the partition: the goal that was made for the older view is given up.
      if (is_foreign(intent, now_is)) {
        one = intents_.erase(one);
        continue;
      }
      intent.told = intent.told && intent.seen.primary == now_is.primary;
      intent.seen = now_is;
      intent.changed = now;
    }
    const std::vector<InstanceId>& wanted = intent.goal.members;
    const bool there = now_is.primary.instance == intent.goal.primary && now_is.sync.size() + now_is.learners.size() == wanted.size() &&
                       std::all_of(wanted.begin(), wanted.end(), [&](InstanceId member) { return member_at(now_is, member).has_value(); });
    if (there) {
      one = intents_.erase(one);
      done = true;
      continue;
    }
    // A goal may be lost on its way, or not be taken: a primary that has not heard of a newcomer yet lets go of it.
    if (!intent.told || now - intent.said >= kAgain) {
      intent.told = true;
      intent.said = now;
      send_goal({one->first, intent.goal});
    }
    ++one;
  }
  if (done && intents_.size() < options_.balancing.moves / 2) next_plan_ = std::min(next_plan_, planned_ + kSoon);
}

// A goal that has lost a member, or whose way is blocked: another is made of how things are now. Copies under way are waited for.
void Manager::forget_hopeless(base::Time now) {
  constexpr auto kBlocked = std::chrono::seconds(3);
  std::map<InstanceId, Place> by_instance;
  for (const Place& one : places(now)) by_instance[one.instance] = one;
  std::erase_if(intents_, [&](const auto& one) {
    const Intent& intent = one.second;
    bool copies = false;
    for (InstanceId member : intent.goal.members) {
      const auto place = by_instance.find(member);
      const bool is_there = member_at(intent.seen, member).has_value();
      if (place == by_instance.end() || place->second.leaving || (!place->second.room && !is_there)) return true;
      for (Member learner : intent.seen.learners) copies = copies || learner.instance == member;
    }
    return now - intent.changed > kBlocked && !copies;
  });
}

void Manager::send_goal(const Placed& goal) {
  const InstanceId primary = view(goal.partition).primary.instance;
  for (const auto& [node, known] : nodes_) {
    const auto is_it = [&](Member one) { return one.instance == primary; };
    if (std::none_of(known.info.instances.begin(), known.info.instances.end(), is_it)) continue;
    if (node == options_.self) goals_.push_back(goal);
    else message_to(node).goals.push_back(goal);
    return;
  }
}

std::uint64_t Manager::version() const {
  std::uint64_t sum = 0;
  for (const View& view : views_) sum += number(view.epoch);
  return sum;
}

std::uint64_t Manager::digest() const {
  std::uint64_t hash = 0;
  for (const View& view : views_) hash = (hash ^ number(view.epoch)) * 0x9e3779b97f4a7c15 + 1;
  return hash;
}

std::vector<Manager::Acquaintance> Manager::acquaintances(base::Time now) const {
  std::vector<Acquaintance> out;
  for (const auto& [node, known] : nodes_) out.push_back({&known.info, node == options_.self || lives(known, now)});
  return out;
}

std::vector<Candidate> Manager::candidates(base::Time now) const {
  std::vector<Candidate> out;
  for (const auto& [node, known] : nodes_) {
    if (!lives(known, now) || known.info.leaving || known.info.stopping || !known.info.room) continue;
    for (Member one : known.info.instances) out.push_back({one, known.info.rack, static_cast<std::uint64_t>(node)});
  }
  return out;
}

std::map<InstanceId, Site> Manager::sites() const {
  std::map<InstanceId, Site> out;
  for (const auto& [node, known] : nodes_)
    for (Member one : known.info.instances) out[one.instance] = {static_cast<std::uint64_t>(node), known.info.rack};
  return out;
}

}  // namespace zht::replication

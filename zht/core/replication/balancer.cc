#include "zht/core/replication/balancer.h"

#include <algorithm>
#include <set>

namespace zht::replication {
namespace {

class Plan {
 public:
  Plan(std::span<const View> views, std::span<const Place> places, const BalanceOptions& options)
      : places_(places), options_(options) {
    std::set<std::uint64_t> nodes;
    for (const Place& one : places_) {
      copies_[one.instance], primaries_[one.instance];
      if (!one.leaving) nodes.insert(one.node);
    }
    staying_ = nodes.size();
    for (const View& view : views) {
      Goal now;
      now.primary = view.primary.instance;
      for (const Members* members : {&view.sync, &view.learners})
        for (Member one : *members) now.members.push_back(one.instance);
      const bool whole = std::all_of(now.members.begin(), now.members.end(), [&](InstanceId one) { return find(one) != nullptr; });
      movable_.push_back(whole && now.members.size() >= std::min(options_.copies, staying_));
      for (InstanceId one : now.members) copies_[one]++;
      primaries_[now.primary]++;
      now_.push_back(now);
    }
    goals_ = now_;
  }

  std::vector<Placed> make() {
    for (std::size_t p = 0; p < goals_.size() && moves_ < options_.moves; p++) empty_leaving(p);
    for (std::size_t p = 0; p < goals_.size() && moves_ < options_.moves; p++) trim(p);
    while (moves_ < options_.moves && even_copies()) moves_++;
    for (std::size_t p = 0; p < goals_.size() && moves_ < options_.moves; p++) even_primary(p);
    std::vector<Placed> out;
    for (std::size_t p = 0; p < goals_.size(); p++)
      if (goals_[p] != now_[p]) out.push_back({PartitionId{static_cast<std::uint32_t>(p)}, goals_[p]});
    return out;
  }

 private:
  const Place* find(InstanceId instance) const {
    const auto found = std::find_if(places_.begin(), places_.end(), [&](const Place& one) { return one.instance == instance; });
    return found == places_.end() ? nullptr : &*found;
  }

  // Another copy on the goal's node (that of `except` not counted)?
  bool shares_node(const Goal& goal, std::uint64_t node, InstanceId except) const {
    return std::any_of(goal.members.begin(), goal.members.end(), [&](InstanceId one) {
      const Place* const place = one == except ? nullptr : find(one);
      return place != nullptr && place->node == node;
    });
  }

  // Another copy of the goal's rack (that of `except` not counted)?
  bool shares_rack(const Goal& goal, std::uint32_t rack, InstanceId except) const {
    return std::any_of(goal.members.begin(), goal.members.end(), [&](InstanceId one) {
      const Place* const place = one == except ? nullptr : find(one);
      return place != nullptr && place->rack == rack;
    });
  }

  // Who could take the place of `from`: on another rack than the rest if possible, then with the fewest copies.
  const Place* replacement(const Goal& goal, InstanceId from) const {
    const Place* best = nullptr;
    const auto rank = [&](const Place& one) { return std::tuple(shares_rack(goal, one.rack, from), copies_.at(one.instance), one.instance); };
    for (const Place& one : places_)
      if (!one.leaving && one.room && !shares_node(goal, one.node, from) && !goal.has(one.instance) &&
          (best == nullptr || rank(one) < rank(*best)))
        best = &one;
    return best;
  }

  void replace(Goal& goal, InstanceId from, InstanceId to) {
    std::replace(goal.members.begin(), goal.members.end(), from, to);
    copies_[from]--;
    copies_[to]++;
    if (goal.primary != from) return;
    // Rather one that has the data already.
    goal.primary = goal.members.front() != to || goal.members.size() == 1 ? goal.members.front() : goal.members[1];
    primaries_[from]--;
    primaries_[goal.primary]++;
  }

  // Its primary has the rest of the way in mind, and would take it along.
  bool moves(std::size_t p) const { return now_[p].members.size() > std::max<std::size_t>(options_.copies, 1); }

  void empty_leaving(std::size_t p) {
    Goal& goal = goals_[p];
    for (InstanceId one : Goal(goal).members) {
      const Place* const place = find(one);
      if (place == nullptr || !place->leaving) continue;
      // With enough of others the move that was begun is finished; another would only make one more copy.
      if (goal.members.size() > std::max<std::size_t>(options_.copies, 1)) drop(goal, one);
      else if (const Place* const to = replacement(goal, one)) replace(goal, one, to->instance);
      else if (goal.members.size() > 1) drop(goal, one);  // fewer nodes than copies: do without
    }
    moves_ += goal != now_[p];
  }
  // A move that was not finished has left a copy too many, or a member without room had another taken in: one goes from where there is
  // no room, or most are, of several the last that came.
  void trim(std::size_t p) {
    Goal& goal = goals_[p];
    if (!movable_[p] || goal != now_[p] || options_.moving.contains(PartitionId{static_cast<std::uint32_t>(p)})) return;
    const auto rank = [&](InstanceId one) { return std::pair(!find(one)->room, copies_[one]); };
    while (goal.members.size() > std::max<std::size_t>(options_.copies, 1)) {
      InstanceId surplus = goal.primary;
      for (InstanceId one : goal.members)
        if (one != goal.primary && (surplus == goal.primary || rank(one) >= rank(surplus))) surplus = one;
      drop(goal, surplus);
    }
    moves_ += goal != now_[p];
  }
  void drop(Goal& goal, InstanceId from) {
    std::erase(goal.members, from);
    copies_[from]--;
    if (goal.primary != from) return;
    goal.primary = goal.members.front();
    primaries_[from]--;
    primaries_[goal.primary]++;
  }

  bool even_copies() {
    std::vector<const Place*> full, empty;
    for (const Place& one : places_)
      if (!one.leaving) full.push_back(&one);
    std::stable_sort(full.begin(), full.end(), [&](auto* a, auto* b) { return copies_[a->instance] > copies_[b->instance]; });
    for (const Place* one : full)
      if (one->room) empty.insert(empty.begin(), one);
    for (const Place* most : full)
      for (const Place* least : empty) {
        if (copies_[most->instance] <= copies_[least->instance] + 1) break;
        if (move_one(most, least)) return true;
      }
    return false;
  }

  bool move_one(const Place* most, const Place* least) {
    for (std::size_t p = 0; p < goals_.size(); p++) {
      Goal& goal = goals_[p];
      if (!movable_[p] || goal != now_[p] || moves(p) || !goal.has(most->instance) || goal.has(least->instance)) continue;
      if (shares_node(goal, least->node, most->instance)) continue;
      // Evenness is not worth two copies on one rack.
      if (shares_rack(goal, least->rack, most->instance) && !shares_rack(goal, most->rack, most->instance)) continue;
      replace(goal, most->instance, least->instance);
      return true;
    }
    return false;
  }

  void even_primary(std::size_t p) {
    Goal& goal = goals_[p];
    if (!movable_[p] || goal != now_[p] || moves(p)) return;
    InstanceId best = goal.primary;
    for (InstanceId one : goal.members) {
      const Place* const place = find(one);
      // One without room could change nothing, and would hand it on.
      const bool may = place != nullptr && !place->leaving && place->room;
      if (may && primaries_[one] + 1 < primaries_[goal.primary] && primaries_[one] < primaries_[best]) best = one;
    }
    if (best == goal.primary) return;
    primaries_[goal.primary]--;
    primaries_[best]++;
    goal.primary = best;
    moves_++;
  }

  const std::span<const Place> places_;
  const BalanceOptions options_;
  std::vector<Goal> now_, goals_;
  std::vector<bool> movable_;
  std::map<InstanceId, std::size_t> copies_, primaries_;
  std::size_t moves_ = 0, staying_ = 0;  // staying_: nodes
};

}  // namespace

std::vector<Placed> balance(std::span<const View> views, std::span<const Place> places, const BalanceOptions& options) {
  return Plan(views, places, options).make();
}

std::vector<Placed> hand_over(std::span<const View> views, std::span<const Place> places, std::uint64_t node) {
  std::map<InstanceId, const Place*> by_instance;
  for (const Place& one : places) by_instance[one.instance] = &one;
  const auto place_of = [&](InstanceId instance) {
    const auto found = by_instance.find(instance);
    return found == by_instance.end() ? nullptr : found->second;
  };
  std::vector<Placed> out;
  for (std::size_t p = 0; p < views.size(); p++) {
    Placed placed{PartitionId{static_cast<std::uint32_t>(p)}, {views[p].primary.instance, {}}};
    bool here = false;
    const Place* heir = nullptr;
    const auto rank = [](const Place& one) { return std::tuple(one.leaving, !one.room); };
    for (const Members* members : {&views[p].sync, &views[p].learners})
      for (Member one : *members) {
        const Place* const place = place_of(one.instance);
        if (place == nullptr) continue;
        here = here || place->node == node;
        if (place->node == node) continue;
        placed.goal.members.push_back(one.instance);
        if (!place->stopping && (heir == nullptr || rank(*place) < rank(*heir))) heir = place;
      }
    if (!here || heir == nullptr) continue;
    const Place* const primary = place_of(placed.goal.primary);
    if (primary == nullptr || primary->node == node || primary->stopping) placed.goal.primary = heir->instance;
    out.push_back(std::move(placed));
  }
  return out;
}

}  // namespace zht::replication

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
    for (std::size_t p = 0; options_.trim && p < goals_.size() && moves_ < options_.moves; p++) trim(p);
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
  static bool has(const Goal& goal, InstanceId instance) {
    return std::find(goal.members.begin(), goal.members.end(), instance) != goal.members.end();
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
      if (!one.leaving && one.room && !shares_node(goal, one.node, from) && !has(goal, one.instance) &&
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

  void empty_leaving(std::size_t p) {
    Goal& goal = goals_[p];
    for (InstanceId one : Goal(goal).members) {
      const Place* const place = find(one);
      if (place == nullptr || !place->leaving) continue;
      if (const Place* const to = replacement(goal, one)) replace(goal, one, to->instance);
      else if (goal.members.size() > 1) drop(goal, one);  // fewer nodes than copies: do without
    }
    moves_ += goal != now_[p];
  }
  // A move that was not finished has left a copy too many: the last that came goes.
  void trim(std::size_t p) {
    Goal& goal = goals_[p];
    if (!movable_[p] || goal != now_[p]) return;
    while (goal.members.size() > std::max<std::size_t>(options_.copies, 1)) {
      const auto surplus = std::find_if(goal.members.rbegin(), goal.members.rend(), [&](InstanceId one) { return one != goal.primary; });
      drop(goal, *surplus);
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
      if (!movable_[p] || goal != now_[p] || !has(goal, most->instance) || has(goal, least->instance)) continue;
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
    if (!movable_[p] || goal != now_[p]) return;
    InstanceId best = goal.primary;
    for (InstanceId one : goal.members) {
      const Place* const place = find(one);
      if (place != nullptr && !place->leaving && primaries_[one] + 1 < primaries_[goal.primary] && primaries_[one] < primaries_[best]) best = one;
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

}  // namespace zht::replication

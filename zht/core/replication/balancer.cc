#include "zht/core/replication/balancer.h"

#include <algorithm>
#include <optional>
#include <set>
#include <unordered_map>

namespace zht::replication {
namespace {

class Plan {
 public:
  Plan(std::span<const View> views, std::span<const Place> places, const BalanceOptions& options)
      : places_(places), options_(options), copies_(places.size()), leads_(places.size()), held_(places.size()) {
    std::set<std::uint64_t> nodes;
    std::set<std::uint32_t> racks;
    for (std::size_t i = 0; i < places_.size(); i++) {
      index_[places_[i].instance] = i;
      if (places_[i].leaving) continue;
      nodes.insert(places_[i].node);
      racks.insert(places_[i].rack);
    }
    racks_ = racks.size();
    for (std::size_t p = 0; p < views.size(); p++) {
      Goal now;
      now.primary = views[p].primary.instance;
      for (const Members* members : {&views[p].sync, &views[p].learners})
        for (Member one : *members) now.members.push_back(one.instance);
      const auto under_way = options_.under_way.find(PartitionId{static_cast<std::uint32_t>(p)});
      const bool goes = under_way != options_.under_way.end();
      if (goes) now = under_way->second;
      const bool whole = std::all_of(now.members.begin(), now.members.end(), [&](InstanceId one) { return find(one) != nullptr; });
      free_.push_back(!goes);
      const bool touched = options_.touched.contains(PartitionId{static_cast<std::uint32_t>(p)});
      movable_.push_back(!goes && !touched && whole &&
                         now.members.size() >= std::min(options_.copies, nodes.size()) && nodes_of(now) == now.members.size());
      for (InstanceId one : now.members) {
        if (find(one) == nullptr) continue;
        copies_[index_.at(one)]++;
        held_[index_.at(one)].push_back(p);
      }
      if (find(now.primary) != nullptr) leads_[index_.at(now.primary)]++;
      now_.push_back(now);
    }
    goals_ = now_;
  }

  std::vector<Placed> make() {
    for (std::size_t p = 0; p < goals_.size() && moves_ < options_.empties; p++) empty_leaving(p);
    for (std::size_t p = 0; p < goals_.size() && moves_ < options_.moves; p++) trim(p);
    for (std::size_t p = 0; p < goals_.size() && moves_ < options_.moves; p++) spread(p);
    while (moves_ < options_.moves && even_copies()) moves_++;
    for (std::size_t p = 0; p < goals_.size() && moves_ < options_.moves; p++) even_primary(p);
    std::vector<Placed> out;
    for (std::size_t p = 0; p < goals_.size(); p++)
      if (goals_[p] != now_[p]) out.push_back({PartitionId{static_cast<std::uint32_t>(p)}, goals_[p]});
    return out;
  }

 private:
  const Place* find(InstanceId instance) const {
    const auto found = index_.find(instance);
    return found == index_.end() ? nullptr : &places_[found->second];
  }
  std::size_t& copies(InstanceId instance) { return copies_[index_.at(instance)]; }
  std::size_t& leads(InstanceId instance) { return leads_[index_.at(instance)]; }

  std::size_t nodes_of(const Goal& goal) const {
    std::set<std::uint64_t> nodes;
    for (InstanceId one : goal.members)
      if (const Place* const place = find(one)) nodes.insert(place->node);
    return nodes.size();
  }

  // Another copy of the goal there (that of `except` not counted)?
  template <typename Where>
  bool shares(const Goal& goal, InstanceId except, Where where) const {
    return std::any_of(goal.members.begin(), goal.members.end(), [&](InstanceId one) {
      const Place* const place = one == except ? nullptr : find(one);
      return place != nullptr && where(*place);
    });
  }
  bool shares_node(const Goal& goal, std::uint64_t node, InstanceId except) const {
    return shares(goal, except, [&](const Place& one) { return one.node == node; });
  }
  bool shares_rack(const Goal& goal, std::uint32_t rack, InstanceId except) const {
    return shares(goal, except, [&](const Place& one) { return one.rack == rack; });
  }

  // Which could take the place of `from`: on another rack than the rest if possible, then with the fewest copies.
  const Place* replacement(const Goal& goal, InstanceId from) const {
    const Place* best = nullptr;
    const auto rank = [&](const Place& one) { return std::tuple(shares_rack(goal, one.rack, from), copies_[index_.at(one.instance)], one.instance); };
    for (const Place& one : places_)
      if (!one.leaving && one.room && !shares_node(goal, one.node, from) && !goal.has(one.instance) &&
          (best == nullptr || rank(one) < rank(*best)))
        best = &one;
    return best;
  }

  void replace(Goal& goal, InstanceId from, InstanceId to) {
    std::replace(goal.members.begin(), goal.members.end(), from, to);
    copies(from)--;
    copies(to)++;
    if (goal.primary != from) return;
    // Rather one that has the data already.
    goal.primary = goal.members.front() != to || goal.members.size() == 1 ? goal.members.front() : goal.members[1];
    leads(from)--;
    if (find(goal.primary) != nullptr) leads(goal.primary)++;
  }

  // Its primary has the rest of the way in mind, and would take it along.
  bool moves(std::size_t p) const { return now_[p].members.size() > std::max<std::size_t>(options_.copies, 1); }

  void empty_leaving(std::size_t p) {
    if (!free_[p]) return;
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
  // A move that was not finished has left a copy too many, or a member without room had another taken in: one goes that shares its node,
  // from where there is no room, or where most are, of several the last that came.
  void trim(std::size_t p) {
    Goal& goal = goals_[p];
    const PartitionId partition{static_cast<std::uint32_t>(p)};
    const bool whole = std::all_of(goal.members.begin(), goal.members.end(), [&](InstanceId one) { return find(one) != nullptr; });
    if (!free_[p] || !whole || goal != now_[p] || options_.moving.contains(partition)) return;
    const auto rank = [&](InstanceId one) {
      const Place& place = *find(one);
      return std::tuple(shares_node(goal, place.node, one), !place.room, shares_rack(goal, place.rack, one), copies(one));
    };
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
    copies(from)--;
    if (goal.primary != from) return;
    goal.primary = goal.members.front();
    leads(from)--;
    if (find(goal.primary) != nullptr) leads(goal.primary)++;
  }

  // Two copies share a rack, and there is one without: a copy that does not lead goes there.
  void spread(std::size_t p) {
    Goal& goal = goals_[p];
    if (!movable_[p] || goal != now_[p] || moves(p)) return;
    std::set<std::uint32_t> racks;
    for (InstanceId one : goal.members) racks.insert(find(one)->rack);
    if (racks.size() >= std::min(goal.members.size(), racks_)) return;
    for (InstanceId one : Goal(goal).members) {
      if (one == goal.primary || !shares_rack(goal, find(one)->rack, one)) continue;
      const Place* const to = replacement(goal, one);
      if (to == nullptr || shares_rack(goal, to->rack, one)) continue;
      replace(goal, one, to->instance);
      moves_++;
      return;
    }
  }

  bool even_copies() {
    std::vector<std::size_t> full, empty;
    for (std::size_t i = 0; i < places_.size(); i++)
      if (!places_[i].leaving) full.push_back(i);
    std::stable_sort(full.begin(), full.end(), [&](std::size_t a, std::size_t b) { return copies_[a] > copies_[b]; });
    for (std::size_t one : full)
      if (places_[one].room) empty.insert(empty.begin(), one);
    for (std::size_t most : full)
      for (std::size_t least : empty) {
        if (copies_[most] <= copies_[least] + 1) break;
        if (move_one(most, places_[least])) return true;
      }
    return false;
  }

  bool move_one(std::size_t from, const Place& least) {
    const Place& most = places_[from];
    for (std::size_t p : held_[from]) {
      Goal& goal = goals_[p];
      if (!movable_[p] || goal != now_[p] || moves(p) || goal.has(least.instance)) continue;
      if (shares_node(goal, least.node, most.instance)) continue;
      // Evenness is not worth two copies on one rack.
      if (shares_rack(goal, least.rack, most.instance) && !shares_rack(goal, most.rack, most.instance)) continue;
      replace(goal, most.instance, least.instance);
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
      const bool may = !place->leaving && place->room;
      if (may && leads(one) + 1 < leads(goal.primary) && leads(one) < leads(best)) best = one;
    }
    if (best == goal.primary) return;
    leads(goal.primary)--;
    leads(best)++;
    goal.primary = best;
    moves_++;
  }

  const std::span<const Place> places_;
  const BalanceOptions& options_;
  std::unordered_map<InstanceId, std::size_t> index_;
  std::vector<std::size_t> copies_, leads_;      // by place
  std::vector<std::vector<std::size_t>> held_;   // ... the partitions that are there now
  std::vector<Goal> now_, goals_;                // by partition
  std::vector<bool> free_, movable_;             // ... not under way; and whole, on nodes of their own
  std::size_t moves_ = 0, racks_ = 0;
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
  const auto home_of = [&](Member one) {
    const Place* const place = place_of(one.instance);
    return place == nullptr ? std::optional<std::uint64_t>() : place->node;
  };
  std::vector<Placed> out;
  for (std::size_t p = 0; p < views.size(); p++) {
    Placed placed{PartitionId{static_cast<std::uint32_t>(p)}, {views[p].primary.instance, {}}};
    bool here = false;
    const Place* heir = nullptr;
    std::set<std::uint64_t> nodes;
    const auto rank = [](const Place& one) { return std::tuple(one.leaving, !one.room); };
    for (const Members* members : {&views[p].sync, &views[p].learners})
      for (Member one : *members) {
        const Place* const place = place_of(one.instance);
        if (place == nullptr) continue;
        here = here || place->node == node;
        // Two on one node are no more than one; the primary or a synchronous one comes first.
        const View& view = views[p];
        const bool led = place->node != node && view.primary != one && home_of(view.primary) == place->node;
        if (place->node == node || led || !nodes.insert(place->node).second) continue;
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

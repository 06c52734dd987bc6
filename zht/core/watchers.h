// Clients waiting for a key to change (callback). Each waits in the list of its key and is looked at only when that key
// changes, so a waiter costs nothing in between and a slow one delays nobody. Source: [ZHT] 2.1.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "zht/types.h"

namespace zht::core {

enum class ConnectionId : std::uint64_t {};

struct Watcher {
  ConnectionId connection{0};
  std::uint64_t request = 0;
  PartitionId partition{0};
  std::string key;
  Condition condition;
  Range range;
  base::Time deadline{};
};

class Watchers {
 public:
  // Bounds; past them a callback is refused with no_space.
  static constexpr std::size_t kMaxPerKey = 10'000, kMaxInAll = 1'000'000;

  Result<void> add(Watcher watcher);
  // Takes out the watchers of `key` that `wants` says yes to, in the order they came.
  template <typename Wants>
  std::vector<Watcher> take(const std::string& key, Wants wants);
  bool watched(const std::string& key) const { return by_key_.contains(key); }
  bool empty() const { return by_id_.empty(); }
  std::size_t count() const { return by_id_.size(); }
  std::vector<Watcher> take_overdue(base::Time now);
  void drop(ConnectionId connection);
  base::Time next_deadline() const { return by_deadline_.empty() ? base::Time::max() : by_deadline_.begin()->first; }

 private:
  struct Entry {
    Watcher watcher;
    std::multimap<base::Time, std::uint64_t>::iterator deadline;
  };
  Watcher remove(std::uint64_t id);
  std::uint64_t next_ = 1;
  std::unordered_map<std::uint64_t, Entry> by_id_;
  std::unordered_map<std::string, std::vector<std::uint64_t>> by_key_;
  std::unordered_map<std::uint64_t, std::vector<std::uint64_t>> by_connection_;  // may name watchers that are gone
  std::multimap<base::Time, std::uint64_t> by_deadline_;
};

template <typename Wants>
std::vector<Watcher> Watchers::take(const std::string& key, Wants wants) {
  std::vector<Watcher> taken;
  const auto list = by_key_.find(key);
  if (list == by_key_.end()) return taken;
  std::vector<std::uint64_t> chosen;
  for (std::uint64_t id : list->second)
    if (wants(by_id_.at(id).watcher)) chosen.push_back(id);
  for (std::uint64_t id : chosen) taken.push_back(remove(id));
  return taken;
}

}  // namespace zht::core

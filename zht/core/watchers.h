// Clients waiting for a key to change (callback). Each waits in the list of its key and is looked at only when that key
// changes, so a waiter costs nothing in between and a slow one delays nobody. Source: [ZHT] 2.1.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <unordered_set>
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
  static constexpr std::size_t kMaxPerKey = 10'000, kMaxPerConnection = 100'000, kMaxInAll = 1'000'000;
  static constexpr std::size_t kMaxBytes = std::size_t{256} << 20;  // of keys, expected values and what holds them

  Result<void> add(Watcher watcher);
  // Takes out the watchers of `key` that `wants` says yes to, in the order they came.
  template <typename Wants>
  std::vector<Watcher> take(const std::string& key, Wants wants);
  bool watched(const std::string& key) const { return by_key_.contains(key); }
  bool empty() const { return by_id_.empty(); }
  std::size_t count() const { return by_id_.size(); }
  std::size_t bytes() const { return bytes_; }
  std::vector<Watcher> take_overdue(base::Time now);
  std::vector<Watcher> take_all(PartitionId partition);  // looks at every watcher
  void drop(ConnectionId connection);
  base::Time next_deadline() const { return by_deadline_.empty() ? base::Time::max() : by_deadline_.begin()->first; }

 private:
  struct Entry {
    Watcher watcher;
    std::multimap<base::Time, std::uint64_t>::iterator deadline;
  };
  static std::size_t size_of(const Watcher& watcher);
  Watcher take_out(std::uint64_t id);  // of everything but the key's list
  Watcher remove(std::uint64_t id);
  std::uint64_t next_ = 1;
  std::unordered_map<std::uint64_t, Entry> by_id_;
  std::unordered_map<std::string, std::vector<std::uint64_t>> by_key_;
  std::unordered_map<ConnectionId, std::unordered_set<std::uint64_t>> by_connection_;
  std::multimap<base::Time, std::uint64_t> by_deadline_;
  std::size_t bytes_ = 0;
};

template <typename Wants>
std::vector<Watcher> Watchers::take(const std::string& key, Wants wants) {
  std::vector<Watcher> taken;
  const auto list = by_key_.find(key);
  if (list == by_key_.end()) return taken;
  std::erase_if(list->second, [&](std::uint64_t id) {
    if (!wants(by_id_.at(id).watcher)) return false;
    taken.push_back(take_out(id));
    return true;
  });
  if (list->second.empty()) by_key_.erase(list);
  return taken;
}

}  // namespace zht::core

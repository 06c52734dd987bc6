#include "zht/core/watchers.h"

#include <algorithm>

namespace zht::core {

Result<void> Watchers::add(Watcher watcher) {
  if (by_id_.size() >= kMaxInAll) return fail(Code::no_space, "callback: ", kMaxInAll, " waiters on this instance, the limit");
  auto& list = by_key_[watcher.key];
  if (list.size() >= kMaxPerKey)
    return fail(Code::no_space, "callback: ", kMaxPerKey, " waiters on key \"", base::escape(watcher.key), "\", the limit");
  const std::uint64_t id = next_++;
  list.push_back(id);
  auto& mine = by_connection_[static_cast<std::uint64_t>(watcher.connection)];
  mine.push_back(id);
  if (mine.size() > 64 && mine.size() % 64 == 0) std::erase_if(mine, [&](std::uint64_t old) { return old != id && !by_id_.contains(old); });
  const auto deadline = by_deadline_.emplace(watcher.deadline, id);
  by_id_.emplace(id, Entry{std::move(watcher), deadline});
  return {};
}

Watcher Watchers::remove(std::uint64_t id) {
  const auto at = by_id_.find(id);
  Watcher watcher = std::move(at->second.watcher);
  by_deadline_.erase(at->second.deadline);
  by_id_.erase(at);
  const auto list = by_key_.find(watcher.key);
  std::erase(list->second, id);
  if (list->second.empty()) by_key_.erase(list);
  return watcher;
}

std::vector<Watcher> Watchers::take_overdue(base::Time now) {
  std::vector<Watcher> overdue;
  while (!by_deadline_.empty() && by_deadline_.begin()->first <= now) overdue.push_back(remove(by_deadline_.begin()->second));
  return overdue;
}

void Watchers::drop(ConnectionId connection) {
  const auto mine = by_connection_.find(static_cast<std::uint64_t>(connection));
  if (mine == by_connection_.end()) return;
  for (std::uint64_t id : mine->second)
    if (by_id_.contains(id)) remove(id);
  by_connection_.erase(mine);
}

}  // namespace zht::core

#include "zht/core/watchers.h"

#include <algorithm>

namespace zht::core {

std::size_t Watchers::size_of(const Watcher& watcher) { return 256 + 2 * watcher.key.size() + watcher.condition.value.size(); }

Result<void> Watchers::add(Watcher watcher) {
  if (by_id_.size() >= kMaxInAll) return fail(Code::no_space, "callback: ", kMaxInAll, " waiters on this instance, the limit");
  if (bytes_ + size_of(watcher) > kMaxBytes)
    return fail(Code::no_space, "callback: the waiters of this instance take ", bytes_, " bytes, the limit is ", kMaxBytes);
  const auto mine = by_connection_.find(watcher.connection);
  if (mine != by_connection_.end() && mine->second.size() >= kMaxPerConnection)
    return fail(Code::no_space, "callback: ", kMaxPerConnection, " waiters on one connection, the limit");
  const auto list = by_key_.find(watcher.key);
  if (list != by_key_.end() && list->second.size() >= kMaxPerKey)
    return fail(Code::no_space, "callback: ", kMaxPerKey, " waiters on key \"", base::escape(watcher.key), "\", the limit");
  const std::uint64_t id = next_++;
  bytes_ += size_of(watcher);
  by_key_[watcher.key].push_back(id);
  by_connection_[watcher.connection].insert(id);
  const auto deadline = by_deadline_.emplace(watcher.deadline, id);
  by_id_.emplace(id, Entry{std::move(watcher), deadline});
  return {};
}

Watcher Watchers::take_out(std::uint64_t id) {
  const auto at = by_id_.find(id);
  Watcher watcher = std::move(at->second.watcher);
  by_deadline_.erase(at->second.deadline);
  by_id_.erase(at);
  bytes_ -= size_of(watcher);
  const auto mine = by_connection_.find(watcher.connection);
  mine->second.erase(id);
  if (mine->second.empty()) by_connection_.erase(mine);
  return watcher;
}

Watcher Watchers::remove(std::uint64_t id) {
  Watcher watcher = take_out(id);
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

std::vector<Watcher> Watchers::take_all(PartitionId partition) {
  std::vector<std::uint64_t> ids;
  for (const auto& [id, entry] : by_id_)
    if (entry.watcher.partition == partition) ids.push_back(id);
  std::vector<Watcher> taken;
  for (std::uint64_t id : ids) taken.push_back(remove(id));
  return taken;
}

void Watchers::drop(ConnectionId connection) {
  for (;;) {
    const auto mine = by_connection_.find(connection);
    if (mine == by_connection_.end()) return;
    remove(*mine->second.begin());
  }
}

}  // namespace zht::core

#include "fusionfs/fuse/retries.h"

#include <algorithm>
#include <cerrno>

namespace fusionfs {

// mutex_ is held.
bool Retries::same_call(const Walk& walk, Request request, InodeId inode) const {
  if (late(walk) || walk.request != request) return false;
  const std::vector<InodeId>& found = walk.found;
  return inode == InodeId{} || found.empty() || found.size() >= kMostFound || std::find(found.begin(), found.end(), inode) != found.end();
}

int Retries::stale(std::uint32_t thread, int otherwise, Request request, InodeId inode) {
  if (thread == 0) return otherwise;
  const std::lock_guard lock(mutex_);
  const auto walk = walks_.find(thread);
  if (walk != walks_.end() && same_call(walk->second, request, inode)) return otherwise;
  if (walks_.size() >= kMostThreads) std::erase_if(walks_, [&](const auto& each) { return late(each.second); });
  if (walks_.size() >= kMostThreads) return otherwise;
  walks_[thread] = {.at = clock_.now(), .request = request};
  any_.store(true, std::memory_order_release);
  return ESTALE;
}

bool Retries::on_second_walk(std::uint32_t thread) const {
  if (!any_.load(std::memory_order_acquire)) return false;
  const std::lock_guard lock(mutex_);
  const auto walk = walks_.find(thread);
  return walk != walks_.end() && !late(walk->second);
}

bool Retries::on_second_walk(std::uint32_t thread, Request request, InodeId inode) const {
  if (!any_.load(std::memory_order_acquire)) return false;
  const std::lock_guard lock(mutex_);
  const auto walk = walks_.find(thread);
  return walk != walks_.end() && same_call(walk->second, request, inode);
}

void Retries::looked_up(std::uint32_t thread, InodeId inode) {
  if (!any_.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(mutex_);
  const auto walk = walks_.find(thread);
  if (walk == walks_.end()) return;
  walk->second.just_told = false;
  walk->second.at = clock_.now();
  if (walk->second.found.size() < kMostFound) walk->second.found.push_back(inode);
}

void Retries::found_nothing(std::uint32_t thread) {
  if (!any_.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(mutex_);
  walks_.erase(thread);
  any_.store(!walks_.empty(), std::memory_order_release);
}

void Retries::answered(std::uint32_t thread, Request request) {
  if (!any_.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(mutex_);
  const auto walk = walks_.find(thread);
  if (walk == walks_.end() || walk->second.request != request) return;
  if (walk->second.just_told)
    walk->second.just_told = false;
  else
    walks_.erase(walk);
  any_.store(!walks_.empty(), std::memory_order_release);
}

}  // namespace fusionfs

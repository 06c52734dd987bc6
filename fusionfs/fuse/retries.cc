#include "fusionfs/fuse/retries.h"

#include <cerrno>

namespace fusionfs {

int Retries::stale(std::uint32_t thread, int otherwise, Request request) {
  if (thread == 0) return otherwise;
  const std::lock_guard lock(mutex_);
  const auto walk = walks_.find(thread);
  if (walk != walks_.end() && !late(walk->second) && walk->second.request == request) return otherwise;
  if (walks_.size() >= kMostThreads) std::erase_if(walks_, [&](const auto& each) { return late(each.second); });
  if (walks_.size() >= kMostThreads) return otherwise;
  walks_[thread] = {clock_.now(), true, request};
  any_.store(true, std::memory_order_release);
  return ESTALE;
}

bool Retries::on_second_walk(std::uint32_t thread) const {
  if (!any_.load(std::memory_order_acquire)) return false;
  const std::lock_guard lock(mutex_);
  const auto walk = walks_.find(thread);
  return walk != walks_.end() && !late(walk->second);
}

bool Retries::on_second_walk(std::uint32_t thread, Request request) const {
  if (!any_.load(std::memory_order_acquire)) return false;
  const std::lock_guard lock(mutex_);
  const auto walk = walks_.find(thread);
  return walk != walks_.end() && !late(walk->second) && walk->second.request == request;
}

void Retries::looked_up(std::uint32_t thread) {
  if (!any_.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(mutex_);
  if (const auto walk = walks_.find(thread); walk != walks_.end()) walk->second.just_told = false;
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

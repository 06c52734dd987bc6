#include "zht/server/local_queue.h"

#include <thread>

namespace zht::server {
namespace {

// A round takes about half a microsecond; longer ones (a sync, a holder without a core) are slept through.
constexpr int kSpins = 200;

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

bool LocalQueue::try_lock() {
  std::uint32_t free = 0;
  return state_.load() == 0 && state_.compare_exchange_strong(free, 1);
}

void LocalQueue::lock() {
  for (int i = 0; i < kSpins; i++) {
    if (try_lock()) return;
    pause();
  }
  // Whoever slept takes it as "somebody may still sleep": one needless wake-up at the end instead of a lost one.
  while (state_.exchange(2) != 0) state_.wait(2);
}

void LocalQueue::release() {
  if (state_.exchange(0) == 2) state_.notify_one();
}

void LocalQueue::unlock() {
  while (LocalRequest* requests = take()) {
    round_(requests);
    done(requests);
  }
  release();
  // Queued between the last look and the release: its caller saw the queue held and will sleep.
  while (queued() && try_lock()) {
    if (LocalRequest* requests = take()) {
      round_(requests);
      done(requests);
    }
    release();
  }
}

LocalRequest* LocalQueue::take() {
  if (queue_.load(std::memory_order_relaxed) == nullptr) return nullptr;
  LocalRequest* newest = queue_.exchange(nullptr);
  LocalRequest* oldest = nullptr;
  while (newest != nullptr) {
    LocalRequest* const before = newest->next_;
    newest->next_ = oldest;
    oldest = newest;
    newest = before;
  }
  return oldest;
}

void LocalQueue::done(LocalRequest* requests) {
  while (requests != nullptr) {
    LocalRequest* const following = requests->next_;
    std::atomic<std::uint32_t>& flag = requests->done_;
    const bool sleeps = flag.exchange(1) == 2;
    if (sleeps) flag.notify_one();  // by address only: the request itself may be gone
    requests = following;
  }
}

void LocalQueue::run(LocalRequest& request) {
  if (try_lock()) {
    request.next_ = nullptr;
    round_(&request);
    unlock();
    return;
  }
  request.next_ = queue_.load();
  while (!queue_.compare_exchange_weak(request.next_, &request)) {
  }
  for (int i = 0;; i++) {
    if (request.done_.load() == 1) return;
    if (try_lock()) {
      unlock();  // executes what is queued, ours with it unless it was done meanwhile
      continue;
    }
    if (i < kSpins) {
      pause();
      continue;
    }
    std::uint32_t expected = 0;
    if (request.done_.compare_exchange_strong(expected, 2) || expected == 2) request.done_.wait(2);
  }
}

}  // namespace zht::server

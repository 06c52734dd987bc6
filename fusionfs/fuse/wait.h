// Blocking on a Task, for threads that may: tests, start and stop of a mount, command line tools.
//   Reply reply = wait(metadata.lookup(kRootInode, "a"));
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>

#include "fusionfs/core/task.h"

namespace fusionfs {

// Runs `task` and blocks until it is done. Not on a client's thread.
template <typename T>
T wait(Task<T> task) {
  // Shared with the completion: its last act is to wake this thread, which may be gone before that act returns.
  struct State {
    std::mutex mutex;
    std::condition_variable done;
    std::optional<T> result;
  };
  const auto state = std::make_shared<State>();
  start(std::move(task), [state](T value) {
    const std::lock_guard lock(state->mutex);
    state->result.emplace(std::move(value));
    state->done.notify_one();
  });
  std::unique_lock lock(state->mutex);
  state->done.wait(lock, [&] { return state->result.has_value(); });
  return std::move(*state->result);
}

}  // namespace fusionfs

// `zht bench --operation callback`: how long after a change are those woken who wait for it, and is anyone forgotten?
#pragma once

#include <string>
#include <vector>

#include "zht/client.h"
#include "zht/support/histogram.h"

namespace zht::tool {

struct WakeOptions {
  std::uint64_t waiters = 10'000, key_size = 15, value_size = 132, rounds = 1;
  bool one_key = false;  // all wait for the same key; else each for its own
};

struct WakeResult {
  support::Histogram after_change;  // from just before the change was asked for to the waiter's completion
  support::Histogram after_answer;  // from the change's answer to it; 0 for those woken before
  std::uint64_t woken = 0, lost = 0;
  double seconds = 0;  // of the changes
};

// `waiting` registers the waiters, `changing` makes the changes, one after the other. `registered` is called when all
// of a round wait: it returns when the instances have them all, and may do worse, such as end the node.
Result<WakeResult> run_wake(Client& waiting, Client& changing, const WakeOptions& options,
                            const std::function<Result<void>()>& registered);

}  // namespace zht::tool

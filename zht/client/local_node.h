// The node of this machine: found through its unix socket, started in the background when none runs.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "zht/client.h"
#include "zht/client/table.h"

namespace zht::client {

struct LocalNode {
  std::string data_folder;
  Address manager;
  std::shared_ptr<const Table> table;
  bool started = false;  // by this very call
};

// Where the manager of the node in `data_folder` listens, whether it runs or not.
Result<Address> manager_of(const std::string& data_folder);

// The node of `data_folder` (resolved: absolute). When none answers and `start`, one is started and said so on stderr
// unless `quiet`; of several callers at once one starts it. unavailable: none runs, or it did not come up; the message has
// the last line of its log. `patience` bounds the waiting for one that is starting; `cancelled` ends it early.
inline constexpr Millis kStartTime{120'000};  // recovery of a large store included
Result<LocalNode> find_node(const std::string& data_folder, bool start, bool quiet, Millis patience = kStartTime,
                            const std::atomic<bool>* cancelled = nullptr);

// No node runs there, and the last one ended because it was told to: a node empties its lock file when it ends, a killed
// one leaves its pid in it. What was stopped is not started again by clients that are still running.
bool stopped_on_purpose(const std::string& data_folder);

// Starts `zht serve --data <folder> <arguments...>` in the background and waits until it answers.
Result<LocalNode> start_node(const std::string& data_folder, const std::vector<std::string>& arguments,
                             Millis patience = kStartTime, const std::atomic<bool>* cancelled = nullptr);

}  // namespace zht::client

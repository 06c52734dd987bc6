// A zht::Client whose store is in the same process and on a disk in memory: the real core, frames and log, without
// sockets and threads of a server. For the unit tests of everything that stands on the store.
//
//   zht::Procedures procedures; fabriq::add_procedures(procedures);
//   testing_support::LocalStore store(procedures);
//   auto client = store.client();
//   client->insert("k", "v");
//   store.restart(true);             // kill -9 and recover: what was flushed is there
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "novoht/base/memory_files.h"
#include "zht/client.h"
#include "zht/core/instance.h"

namespace testing_support {

class LocalStore {
 public:
  explicit LocalStore(const zht::Procedures& procedures, std::uint32_t partition_count = 16,
                      zht::core::Durability durability = zht::core::Durability::interval);
  ~LocalStore();
  std::unique_ptr<zht::Client> client();  // any number; must not outlive the store
  // Ends this life and begins another. crash: nothing is synced, waiting callbacks fail with unavailable.
  void restart(bool crash);
  base::FakeClock& clock() { return clock_; }
  void advance(base::Duration by);  // moves the clock and lets time-outs and expiry happen
  zht::core::InstanceStatistics statistics();

 private:
  friend class LocalClient;
  void execute(zht::Operation operation, std::uint64_t client, std::uint64_t sequence, zht::Completion completion,
               zht::Millis timeout);
  void open();
  using Done = std::vector<std::pair<zht::Completion, zht::Outcome>>;
  void deliver_sends(Done& done);

  const zht::Procedures& procedures_;
  const std::uint32_t partition_count_;
  const zht::core::Durability durability_;
  base::MemoryFiles files_;
  base::FakeClock clock_;
  std::mutex mutex_;
  std::uint64_t incarnation_ = 0;
  zht::core::MembershipTable table_;
  std::unique_ptr<zht::core::Instance> instance_;
  std::map<std::uint64_t, zht::Completion> waiting_;  // callbacks, by request
  std::uint64_t next_request_ = 1;
  std::uint64_t next_client_ = 1;
};

}  // namespace testing_support

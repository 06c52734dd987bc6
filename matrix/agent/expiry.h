// Jobs do not stay for ever: some time after a job's end (`--keep`, 7 days unless told otherwise) its records, its outputs and its
// line in the history go. The agent looks from time to time, a thousand jobs at once, so that neither the store nor its disk notices.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "novoht/base/result.h"
#include "zht/client.h"

namespace matrix {

class Expiry {
 public:
  // Of the jobs that `agent` runs, whose outputs lie in <data_folder>/matrix/<job>/. `client` outlives this.
  Expiry(zht::Client& client, std::string agent, std::string data_folder)
      : client_(client), agent_(std::move(agent)), data_folder_(std::move(data_folder)) {}
  ~Expiry();  // waits for a request under way
  Expiry(const Expiry&) = delete;
  Expiry& operator=(const Expiry&) = delete;

  void start();  // looks on a thread of its own from now on

  struct Pass {
    std::size_t removed = 0;
    bool more = false;  // jobs are left that have not been looked at since the first
  };
  // Looks at the next jobs. `now_us`: microseconds since 1970. Errors: the store's; what was removed is removed.
  base::Result<Pass> pass(std::uint64_t now_us);

 private:
  void run();
  base::Result<bool> expired(const std::string& id, std::uint64_t now_us, bool too_many);

  zht::Client& client_;
  const std::string agent_, data_folder_;
  std::size_t next_ = 0;  // line of the history
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace matrix

// A client that waits for a silent store once: the operation that first finds no answer waits for the client's whole time, those
// that come while the silence lasts for a moment only. So a program that works on a hundred files ends soon after the first of them
// has failed, not a hundred time-outs later.
//
//   PatientClient patient(client);
//   wait(... patient ...);                          // 30 s, then EIO
//   patient.silent(key);                            // true: the next one for this partition is given up after 1 s
//
// A partition is silent from an operation that ended with `timeout` or `unavailable` to the next answer of that partition; all
// are, when nobody at all answered while that operation waited, to the next answer of anybody. Callbacks, and operations with a
// time of their own, are neither cut short nor looked at. Any thread; what is submitted may outlive this object, not `client`.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <set>

#include "zht/client.h"

namespace fusionfs {

class PatientClient final : public zht::Client {
 public:
  static constexpr zht::Millis kMoment{1'000};

  // `moment`: how long an operation waits while nobody answers; not longer than the client's own time.
  explicit PatientClient(zht::Client& client, zht::Millis moment = kMoment);

  void submit(zht::Operation operation, zht::Completion completion, zht::Millis timeout = {}) override;
  zht::Outcome call(zht::Operation operation, zht::Millis timeout = {}) override;
  std::uint32_t partition_count() const override { return partitions_; }
  zht::ClientCounts counts() const override { return client_.counts(); }
  zht::RequestNumber start(zht::Operation operation, zht::Completion completion, zht::Millis timeout = {}) override;
  void cancel(zht::RequestNumber request) override { client_.cancel(request); }

  // Whether whoever has the partition of this key, or "{tag}", has not answered of late.
  bool silent(zht::Bytes key) const;

 private:
  struct Known {
    std::atomic<std::uint64_t> answers{0};
    std::atomic<bool> any{false};  // silence
    std::mutex mutex;
    bool all = false;                   // guarded by mutex
    std::set<zht::PartitionId> silent;  // guarded by mutex
    bool is_silent(zht::PartitionId partition);
    void note(zht::PartitionId partition, std::uint64_t answers_before, const zht::Outcome& outcome);
  };

  zht::Client& client_;
  const zht::Millis moment_;
  const std::uint32_t partitions_;
  const std::shared_ptr<Known> known_;
};

}  // namespace fusionfs

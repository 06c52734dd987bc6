// The share of housekeeping that writers do themselves, so that the log keeps its bound however fast they write.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "novoht/core/checkpointing.h"

namespace novoht::core {

// One thread.
class WriteThrottle {
 public:
  // What they refer to outlives this.
  WriteThrottle(const Options& options, Log& log, Checkpointing& checkpointing, Failures& failures)
      : options_(options), log_(log), checkpointing_(checkpointing), failures_(failures) {}

  void begin();  // the log has been opened
  // Before a record of so many bytes is written. May wait for the disk.
  void before_record(std::size_t record_size);

  std::uint64_t limit() const { return std::max(limit_, most(0)); }  // of the log's segments, bytes
  const Statistics::Share& share() const { return share_; }

 private:
  using Nanoseconds = std::chrono::duration<double, std::nano>;
  static constexpr Nanoseconds kNap{20'000};

  std::uint64_t wanted(std::size_t record_size) const;
  std::uint64_t most(std::size_t record_size) const;
  void help(std::size_t record_size, std::uint64_t step, std::size_t slice);

  const Options& options_;
  Log& log_;
  Checkpointing& checkpointing_;
  Failures& failures_;
  std::uint64_t limit_ = 0;
  std::uint64_t owed_ = 0, taken_before_ = 0;  // checkpoints' bytes: still to be taken by writers; taken by anybody when last asked
  Nanoseconds owed_time_{};                    // of waiting for the disk
  Position helped_at_ = 0, help_again_ = 0;
  Statistics::Share share_;
};

}  // namespace novoht::core

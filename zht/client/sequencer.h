// Numbers the requests of one client that may change something, and knows its floor: every number up to it was answered or
// given up, so the store may forget those. Not thread-safe; its owner's mutex guards it.
#pragma once

#include <cstdint>
#include <deque>

#include "novoht/base/check.h"

namespace zht::client {

class Sequencer {
 public:
  std::uint64_t begin() {
    open_.push_back(true);
    return floor_ + open_.size();
  }
  void end(std::uint64_t sequence) {
    CHECK(sequence > floor_ && sequence <= floor_ + open_.size(), "a sequence number ends once");
    open_[sequence - floor_ - 1] = false;
    while (!open_.empty() && !open_.front()) {
      open_.pop_front();
      floor_++;
    }
  }
  std::uint64_t floor() const { return floor_; }
  bool idle() const { return open_.empty(); }

 private:
  std::deque<bool> open_;  // floor_ + 1, floor_ + 2, ...
  std::uint64_t floor_ = 0;
};

}  // namespace zht::client

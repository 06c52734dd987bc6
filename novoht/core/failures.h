// Housekeeping's failures, and when to try again: a full disk is not tried at every call, the pauses double.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

namespace novoht::core {

class Failures {
 public:
  void note(const std::string& message) {
    count_++;
    last_ = message;
  }
  void tell(const std::string& message) { last_ = message; }  // no failure of housekeeping
  std::uint64_t count() const { return count_; }
  const std::string& last() const { return last_; }

  // Calls that are still to be let pass.
  bool resting() const { return rest_ > 0; }
  void let_one_pass() { rest_--; }
  void rest() {
    rest_ = next_rest_;
    next_rest_ = std::min(next_rest_ * 2, kLongest);
  }
  void worked() { next_rest_ = 1; }

 private:
  static constexpr std::uint64_t kLongest = 1024;
  std::uint64_t count_ = 0, rest_ = 0, next_rest_ = 1;
  std::string last_;
};

}  // namespace novoht::core

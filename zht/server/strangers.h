// Who speaks and is none of the cluster's, as far as is known here. One that has just joined is that for a moment, until its enrolment
// has come here too; the log is told of those who stay so, once of each.
#pragma once

#include <cstdint>
#include <map>

#include "novoht/base/clock.h"

namespace zht::server {

// Not thread-safe.
class Strangers {
 public:
  // `one` has spoken: whether it is to be told of.
  bool note(std::uint64_t one, base::Time now) {
    if (first_heard_.size() >= kMost && !first_heard_.contains(one)) return false;
    const auto [known, is_new] = first_heard_.try_emplace(one, now);
    if (is_new || known->second == kTold || now - known->second < kPatience) return false;
    known->second = kTold;
    return true;
  }

 private:
  static constexpr base::Duration kPatience = std::chrono::seconds(5);
  static constexpr std::size_t kMost = 64;
  static constexpr base::Time kTold = base::Time::max();
  std::map<std::uint64_t, base::Time> first_heard_;
};

}  // namespace zht::server

// Until when an answer is waited for on a connection. Connections die together, of one cable or one machine, and each would be found
// out by itself after kPatience, one after the other as its turn to be asked comes: eleven seconds until every partition of a cluster could be
// changed again. So when one was found dead, those on which nothing has been heard since that one fell silent are given kImpatience.
#pragma once

#include <algorithm>

#include "novoht/base/clock.h"

namespace zht::client {

class Silence {
 public:
  static constexpr base::Duration kImpatience = std::chrono::milliseconds(300);

  // One that had been silent since then was found dead. True: that is news, and limits are nearer than they were.
  bool found(base::Time since, base::Time now) {
    if (since <= since_) return false;
    since_ = since;
    found_ = now;
    return true;
  }
  // Of a connection on which `heard` was the last that was heard, and that is awaited since `quiet_since`.
  base::Time limit(base::Time quiet_since, base::Duration patience, base::Time heard) const {
    const base::Time limit = quiet_since + patience;
    if (since_ == base::Time{} || heard > since_) return limit;
    return std::min(limit, std::max(quiet_since, found_) + kImpatience);
  }

 private:
  base::Time since_{}, found_{};
};

}  // namespace zht::client

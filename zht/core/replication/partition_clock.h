// The time of a partition, in which its keys' times to live are counted. Wall clocks jump, and those of two members may be hours apart;
// a lock that is held for ten seconds must then not be free at once, or never, because another leads. So the primary's time goes on
// evenly whatever its wall clock does, members are told it, and the next primary goes on from there. It comes closer to the
// leader's wall clock by at most a tenth of the time that passes, so that what is meant as a time of day is right again some day.
#pragma once

#include <algorithm>

#include "novoht/base/clock.h"

namespace zht::replication {

class PartitionClock {
 public:
  // As another leads by it.
  void set(base::Time now, base::WallTime time) { at_ = now, time_ = time; }
  // Never set: the wall clock's. `now` does not go back between calls, and so the time does not either.
  base::WallTime read(base::Time now, base::WallTime wall) {
    if (at_ == base::Time{}) {
      set(now, wall);
    } else if (now > at_) {
      const base::Duration passed = now - at_;
      time_ += passed + std::clamp(wall - (time_ + passed), -passed / 10, passed / 10);
      at_ = now;
    }
    return time_;
  }

 private:
  base::Time at_{};
  base::WallTime time_{};
};

}  // namespace zht::replication

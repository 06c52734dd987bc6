// Promises that a build can break on purpose, so that the tests named for them can be seen to fail: tests/mutants/run builds
// each with `cmake -DZHT_MUTANT=NAME`. In every other build kMutant is `none`, and what stands behind it is not compiled.
// (Rules of replication are broken at run time, by the simulator: zht/core/replication/defect.h.)
#pragma once

#include <cstdint>

#if __has_include("novoht/base/chosen_mutant.h")  // made by CMake, of ZHT_MUTANT
#include "novoht/base/chosen_mutant.h"
#else
#define ZHT_MUTANT none
#endif

namespace base {

enum class Mutant : std::uint8_t {
  none,
  refuse_changes,      // a node refuses every change
  write_late,          // every second round's records are written with the next round's
  stale_read,          // now and then a lookup is answered as it was the time before
  execute_twice,       // a request that is sent again is executed again
  never_wake,          // who waits for a change is not told of it
  never_expire,        // times to live are not looked at
  never_sync,          // nothing is ever synced to a disk
  one_copy,            // a change is acknowledged when the primary alone has it
  drop_fsync,          // a mount's fsync returns at once
  record_twice,        // a task's end is recorded twice
  settle_nothing,      // an acknowledged message stays in its queue
  cut_apart,           // the nodes' parts of a backup are of different moments
};

inline constexpr Mutant kMutant = Mutant::ZHT_MUTANT;

}  // namespace base

// What the world does to a cluster, by name. Each run counts what really happened, not what was meant to: `zht_sim --stats`
// shows it, and a test asks that every kind happens in every slice of the seeds.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace zht::sim {

enum class Happened : std::uint8_t {
  dropped,           // a message was lost
  delayed,           // ... came late by more than the network's own time
  repeated,          // ... came twice
  overtaken,         // ... came before one that was sent earlier on the same link
  cut_both_ways,     // a link carried nothing in either direction
  cut_one_way,       // ... in one direction only
  link_stalled,      // all that a node said was held back, and came at once, later
  killed,            // a process ended
  restarted,         // ... and began again
  stalled,           // a process was stopped and went on
  stalled_answer,    // ... between its work and its answers
  power_lost,        // a machine lost its power
  power_lost_by_all, // ... all at once
  unsynced_lost,     // ... and its disk something that was written
  torn_log,          // a log ended in the middle of a record
  disk_full,         // a write found no room
  disk_failed,       // a sync failed
  bit_rot,           // a bit of a log or checkpoint changed by itself
  keeper_rot,        // ... of what a keeper had promised
  keeper_lost,       // a keeper began again without what it had promised
  forgotten,         // a former member threw its copy away
  died_opening,      // a process or its machine ended while it opened a store
  clock_rate,        // a clock went faster or slower than before
  clock_jump,        // the time of day jumped, by up to a day, either way
  joined,            // a node that was not there came in
  left,              // a node that was told to leave was emptied and ended
  keeper_left,       // ... that had been a keeper
  keepers_changed,   // other nodes keep
  moved,             // a primary handed over to another
  vote_interrupted,  // keepers ended, and their proposer was cut off, in the middle of a vote
  count
};

const char* name_of(Happened kind);

class FaultCounts {
 public:
  void add(Happened kind) { counts_[static_cast<std::size_t>(kind)]++; }
  std::uint64_t of(Happened kind) const { return counts_[static_cast<std::size_t>(kind)]; }
  FaultCounts& operator+=(const FaultCounts& more) {
    for (std::size_t i = 0; i < counts_.size(); i++) counts_[i] += more.counts_[i];
    return *this;
  }

 private:
  std::array<std::uint64_t, static_cast<std::size_t>(Happened::count)> counts_{};
};

}  // namespace zht::sim

// A whole cluster in one thread: nodes with the real cores (Replicator, Keeper, Manager), clients, and a world that drops,
// delays, repeats and reorders messages, cuts links, stops and kills processes, tears, fills, fails and rots disks, lets
// clocks drift, moves partitions about and lets nodes join and leave. One seed is one run, repeated exactly.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/sim/faults.h"
#include "tests/sim/history.h"
#include "zht/core/replication/defect.h"

namespace zht::sim {

struct RunOptions {
  Defects defects;
  // What the nodes run: whole instances, with frames going in and out and a real store below; or the bare protocol over the
  // simulator's own small store, whose entries, too, are the simulator's.
  bool instances = true;
  double seconds = 5;    // of faults, in the simulation's time
  bool verbose = false;  // the story, on stdout
  bool messages = false;  // ... and what instances say to each other
  // What the world does most: chance alone takes long to find some defects.
  enum class Emphasis : std::uint8_t {
    none, power, stalls, loaded, refusals, keepers, rot, disaster, lost_keepers, starved, old_copies
  } emphasis = Emphasis::none;
  // One clean crash instead of faults: how long does nothing work?
  enum class Scenario : std::uint8_t { faults, node_dies, process_dies } scenario = Scenario::faults;
};

struct RunResult {
  std::vector<Violation> violations;
  std::uint64_t operations = 0, answered = 0, given_up = 0, events = 0, views = 0, faults = 0;
  std::uint64_t snapshots = 0, rewinds = 0, messages = 0, alone = 0, unsure = 0, damaged = 0;
  Micros longest_gap = 0;  // without any answer to anyone
  FaultCounts happened;
  // Durability interval, and all sync members of a partition lost their power: what they had not synced is gone, as
  // agreed. That partition's answers are not judged any more.
  std::uint64_t last_second_lost = 0;
  // Disaster: how often all synchronous copies of a partition were destroyed, and a person went on with what was left. Who asked
  // in that partition before is not judged.
  std::uint64_t disasters = 0, abandoned = 0;
  // Lost keepers: how often a node went on alone, and in how many partitions it had not heard of the newest view: those are not
  // judged any more.
  std::uint64_t kept_alone = 0, undone = 0;
  std::uint64_t put_back = 0, all_put_back = 0;  // old copies: folders of one node; of all, each from another time
  bool sole_copy_lost = false;  // the world destroyed the last copy of a partition: that one is not judged any more
};

RunResult run_cluster(std::uint64_t seed, const RunOptions& options);

}  // namespace zht::sim

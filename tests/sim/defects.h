// The deliberate defects by name, and within how many seeds the simulator finds each.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "tests/sim/cluster.h"

namespace zht::sim {

struct KnownDefect {
  const char* name;
  replication::Defect defect;
  std::uint64_t seeds;
  bool instances = true;  // what finds it: whole instances, or the bare protocol (RunOptions::instances)
  RunOptions::Emphasis emphasis = RunOptions::Emphasis::none;
};

std::span<const KnownDefect> known_defects();
const KnownDefect* find_defect(const std::string& name);

}  // namespace zht::sim

// The deliberate defects by name, and within how many seeds the simulator finds each.
#pragma once

#include <cstdint>
#include <optional>
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
  // Another rule that catches, mostly, what comes of this one's being broken: it is broken too. That this one then makes the difference
  // is a test of its own.
  std::optional<replication::Defect> behind = {};
  replication::Defects all() const { return behind ? replication::Defects{defect, *behind} : replication::Defects{defect}; }
};

std::span<const KnownDefect> known_defects();
const KnownDefect* find_defect(const std::string& name);

}  // namespace zht::sim

// The deliberate defects by name, and within how many seeds the simulator finds each.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "zht/core/replication/defect.h"

namespace zht::sim {

struct KnownDefect {
  const char* name;
  replication::Defect defect;
  std::uint64_t seeds;
};

std::span<const KnownDefect> known_defects();
const KnownDefect* find_defect(const std::string& name);

}  // namespace zht::sim

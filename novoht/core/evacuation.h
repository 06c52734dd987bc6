// Moves entries together when the arena wastes too much between them.
#pragma once

#include <cstdint>
#include <vector>

#include "novoht/core/tables.h"

namespace novoht::core {

class Evacuation {
 public:
  Evacuation(Tables& tables, Arena& arena) : tables_(tables), arena_(arena) {}
  // Moves some entries. Returns whether there is more to do. `may_begin`: not while there are tables that nobody can see yet, whose
  // entries would not be found.
  bool step(bool may_begin);
  const Statistics::Share& share() const { return share_; }

 private:
  Tables& tables_;
  Arena& arena_;
  std::vector<TableId> left_;  // from whom the arena's old chunks have still to be cleared; the last one from cursor_ on
  std::uint64_t cursor_ = 0;
  Statistics::Share share_;
};

}  // namespace novoht::core

#include "novoht/core/evacuation.h"

namespace novoht::core {

bool Evacuation::step(bool may_begin) {
  if (!arena_.evacuating() && (!may_begin || !arena_.wants_evacuation())) return false;
  const Timed timed(share_);
  if (!arena_.evacuating()) {
    arena_.begin_evacuation();
    tables_.each([&](TableId id, const TableState&) { left_.push_back(id); });
    cursor_ = 0;
  }
  constexpr std::size_t kEntries = 400;  // moved in a step
  while (!left_.empty()) {
    if (TableState* const state = tables_.find(left_.back())) {
      cursor_ = state->table.evacuate(cursor_, kEntries);
      if (cursor_ != 0) return true;
    }
    left_.pop_back();
    cursor_ = 0;
    if (!left_.empty()) return true;
  }
  arena_.end_evacuation();
  return false;
}

}  // namespace novoht::core

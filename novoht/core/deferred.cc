#include "novoht/core/deferred.h"

namespace novoht::core {

void DeferredChanges::make_some() {
  for (std::size_t i = begin_; i < end_; i++) changes_[i % kAhead].state->table.prefetch_entry(changes_[i % kAhead].hash, changes_[i % kAhead].wanted());
  while (begin_ < end_) make_first();
  begin_ = end_ = 0;
}

}  // namespace novoht::core

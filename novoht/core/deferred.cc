#include "novoht/core/deferred.h"

namespace novoht::core {

void DeferredChanges::make_some() {
  for (std::size_t i = begin_; i < end_; i++) {
    const One& one = changes_[i % kAhead];
    one.state->table.prefetch_entry(one.hash, one.wanted());
  }
  while (begin_ < end_) make_first();
  begin_ = end_ = 0;
}

}  // namespace novoht::core

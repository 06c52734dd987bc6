// What a lookup hands out: an entry as its caller sees it.
#pragma once

#include <optional>

#include "novoht/core/table.h"
#include "novoht/store.h"

namespace novoht {

struct ValueMaker {
  // In its place, as a copy of what is just being stored would have to wait for it.
  static void make(std::optional<ValueView>& place, const core::Entry& entry, const core::ColdValues* cold) {
    ValueView& view = place.emplace();
    view.entry_ = &entry;
    view.cold_ = cold;
    view.version_ = entry.version;
    if (entry.form == core::Entry::kWhole) [[likely]] {
      view.bytes_ = entry.payload();
      view.size_ = entry.value_size;
      view.fragment_count_ = 1;
    } else {
      if (const auto bytes = entry.contiguous()) view.bytes_ = bytes->data();
      view.size_ = entry.size();
      view.fragment_count_ = entry.fragment_count();
    }
    if (entry.expires) view.expires_ = base::from_millis(entry.expires_ms());
  }
};

}  // namespace novoht

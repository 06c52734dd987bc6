// The payload of a replicated entry: the changes that a request came down to, and the note that is remembered of it (who
// asked, and the answer). What is logged and sent is this and nothing else, so members never evaluate, and never look at a
// clock.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "novoht/store.h"

namespace zht::core {

std::string encode_entry(std::span<const novoht::Change> changes, base::Bytes note);

struct EntryView {
  std::vector<novoht::Change> changes;  // borrow from the payload
  base::Bytes note;                     // empty: nobody asked for it
};
// corrupt: not what encode_entry() makes.
base::Result<EntryView> decode_entry(base::Bytes payload);

}  // namespace zht::core

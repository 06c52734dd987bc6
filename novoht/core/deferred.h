// Changes that are in the log and in their tables' versions, but not yet among the keys; nor are their records sealed.
//
// A change alone waits, in the record that was just written of it, while others follow: first for its bucket, then for its
// entry. So the memory of several changes is on its way at once, though each came in a call of its own. Its checksum waits
// too: to read again what was written just now, in pieces of other sizes, costs the processor more than the sum itself.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "novoht/core/format.h"
#include "novoht/core/log.h"
#include "novoht/core/tables.h"

namespace novoht::core {

inline constexpr std::size_t kAhead = 16;  // keys whose memory is fetched before it is needed

// Makes the change that lies at `from` as a record has it. Returns its size there.
inline std::size_t make_placed_change(Table& table, const char* from, std::uint64_t hash, Version version) {
  const PlacedChange change(from);
  switch (change.kind) {
    case Change::Kind::insert: table.put(hash, change.key, change.value, change.expires_ms, version); break;
    case Change::Kind::append: table.append(hash, change.key, change.value, change.expires_ms, version); break;
    case Change::Kind::remove: table.erase(hash, change.key); break;
  }
  return change.size;
}

// Some changes, oldest first. One thread.
class DeferredChanges {
 public:
  struct One {
    TableState* state;
    char* record;
    std::uint64_t hash;
    Version version;
    std::uint32_t size, head;  // of the record; of what comes before the change
    // Of the entry, which an insert of a value as long as the one before overwrites; the first part of a long one will do.
    std::size_t wanted() const { return std::clamp<std::size_t>(sizeof(Entry) + size - head + 56, 128, kWantedOfEntry); }
  };

  explicit DeferredChanges(const Log& log) : log_(log) {}

  void add(const One& one) {
    if (end_ - begin_ == kAhead) make_first();
    changes_[end_++ % kAhead] = one;
    if (end_ - begin_ > kAhead / 2) {
      const One& next = changes_[(end_ - kAhead / 2 - 1) % kAhead];
      next.state->table.prefetch_entry(next.hash, next.wanted());
    }
  }
  // Before anything looks at a table's keys, and before the log's memory moves.
  void make_all() {
    if (begin_ != end_) make_some();
  }

 private:
  static constexpr std::size_t kWantedOfEntry = 512;

  void make_first() {
    const One& one = changes_[begin_++ % kAhead];
    seal_record(one.record, one.size, log_.salt(), log_.offset_of(one.record));
    make_placed_change(one.state->table, one.record + one.head, one.hash, one.version);
  }
  void make_some();

  const Log& log_;
  std::array<One, kAhead> changes_;
  std::size_t begin_ = 0, end_ = 0;  // modulo kAhead
};

}  // namespace novoht::core

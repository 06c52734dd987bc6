#include "novoht/core/memory_limit.h"

namespace novoht::core {

void MemoryLimit::note(TableId table, std::uint64_t hash, const Entry& entry) {
  if (entry.used) {
    if (wanted_.size() < kWantedMost && entry.on_disk()) wanted_.emplace_back(table, hash);
    return;
  }
  const_cast<Entry&>(entry).used = true;  // entries are ours; what they hold does not change
}

void MemoryLimit::look_whether_near() {
  near_ = cold_ != nullptr && (used() > limit_ / 4 * 3 || cold_->live_bytes() > 0);
  if (near_) arena_.be_frugal();
}

Result<void> MemoryLimit::keep_up() {
  TRY(warm_wanted());
  const std::uint64_t now_used = used();
  auto kept = keep(now_used > used_before_ ? (now_used - used_before_) * 2 : 0);
  used_before_ = used();
  return kept;
}

void MemoryLimit::keep_while_opening() {
  look_whether_near();
  if (auto kept = keep(std::uint64_t{1} << 40); !kept) failures_.tell(kept.error().message);
}

// Sends some values to the disk that were not used since the hand last came by; or, with `empty`, copies some out of that
// file. Returns how many bytes went; 0 with `empty` when the hand has been everywhere.
Result<std::uint64_t> MemoryLimit::cool(std::optional<std::uint32_t> empty) {
  constexpr std::size_t kEntries = 2000;  // looked at, in all tables of a step
  Hand& hand = empty ? emptying_hand_ : hand_;
  std::uint64_t gone = 0;
  if (hand.table == 0 && hand.cursor == 0) {
    ids_.clear();
    tables_.each([this](TableId id, const TableState&) { ids_.push_back(id); });
  }
  for (std::size_t tables = 0; hand.table < ids_.size() && tables < 64 && gone == 0; tables++) {
    if (TableState* const state = tables_.find(ids_[hand.table])) {
      TRY_LET(cooled, state->table.cool(hand.cursor, kEntries, slice_, empty));
      if (cooled.unread) failures_.tell(cooled.unread->message);
      gone += cooled.bytes;
      hand.cursor = cooled.cursor;
      if (hand.cursor != 0) break;
    }
    hand.table++;
  }
  if (!empty) round_gone_ += gone;
  if (hand.table >= ids_.size()) {
    hand = {};
    if (empty) {
      emptying_.reset();
    } else {
      const std::uint64_t now_used = used();
      fruitless_rounds_ = round_gone_ < now_used / 16 ? fruitless_rounds_ + 1 : 0;
      round_gone_ = 0;
      if (fruitless_rounds_ >= 2) quiet_until_ = now_used + now_used / 8;
    }
  }
  return gone;
}

Result<void> MemoryLimit::warm_wanted() {
  constexpr std::uint64_t kMost = std::uint64_t{64} << 10;  // bytes of a value that comes back whole
  std::uint64_t came = 0;
  while (!wanted_.empty() && came < slice_) {
    const auto [table, hash] = wanted_.back();
    wanted_.pop_back();
    TableState* const state = tables_.find(table);
    if (state == nullptr) continue;
    TRY_LET(some, state->table.warm(hash, kMost));
    came += some;
  }
  return {};
}

// Sends values to the disk until the limit is kept, or `at_least` so many bytes have gone.
Result<void> MemoryLimit::keep(std::uint64_t at_least) {
  for (std::uint64_t gone = 0; exceeded() && gone <= at_least;) {
    TRY_LET(some, cool({}));
    gone += some;
    if (some == 0 && at_least < slice_) break;  // looked at enough for once
  }
  return {};
}

Result<bool> MemoryLimit::empty_a_file() {
  if (cold_ == nullptr) return false;
  if (!emptying_) {
    std::uint32_t file = 0;
    if (!cold_->wants_emptying(file)) return false;
    emptying_ = file;
    emptying_hand_ = {};
  }
  TRY(cool(emptying_));
  return emptying_.has_value();
}

}  // namespace novoht::core

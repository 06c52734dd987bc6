// A store's tables: what each holds, what is on disk of it, and what all of them take there.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "novoht/core/table.h"
#include "novoht/store.h"

namespace novoht::core {

inline constexpr std::uint32_t kDirectTables = 1 << 16;  // ids below are found by an array

// A table and what is on disk of it.
struct TableState {
  TableState(Arena& arena, ColdValues* cold) : table(arena, cold) {}
  void begin_unsaved(Position position) {
    unsaved_from = position;
    if (!from) from = position;
  }
  Table table;
  Version version = 0;
  std::uint64_t epoch = 0;
  std::optional<Position> unsaved_from;   // the first record that the checkpoint does not have
  std::optional<Position> changed_since;  // the first record since the checkpoint being written was begun
  std::uint64_t checkpoint_bytes = 0;     // 0: none
  bool awaits_name = false;               // its checkpoint is among those that are written and not yet synced
  std::uint64_t birth = 0;                // another for each table that ever had this id
  std::optional<Position> from;           // no record of it lies before; nothing: it has none
};

// Adds the time of its life to a share of housekeeping.
class Timed {
 public:
  explicit Timed(Statistics::Share& share) : share_(share) {}
  ~Timed() {
    const auto taken = std::chrono::steady_clock::now() - begin_;
    const auto count = static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(taken).count());
    share_.times++;
    share_.nanoseconds += count;
    share_.longest = std::max(share_.longest, count);
  }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  Statistics::Share& share_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

class Tables {
 public:
  TableState* find(TableId id) const {
    const auto number = static_cast<std::uint32_t>(id);
    if (number < direct_.size()) [[likely]]
      return direct_[number].get();
    const auto found = others_.find(number);
    return found == others_.end() ? nullptr : found->second.get();
  }
  TableState& get(TableId id, Arena& arena, ColdValues* cold) {
    if (TableState* const state = find(id)) return *state;
    put(id, std::make_unique<TableState>(arena, cold));
    return *find(id);
  }
  // What reads the table's records as they follow each other must not go on.
  void reborn(TableState& state) { state.birth = ++births_; }
  // The table is what it was at `to`, by the rewind record at `position`; after its keys were restored.
  void take_back(TableState& state, Version to, std::uint64_t epoch, Position position) {
    state.version = to;
    state.epoch = epoch;
    if (!state.unsaved_from) state.begin_unsaved(position);
    // The same versions come again: whoever reads records in their order begins after this one, or not at all.
    state.from = position;
    reborn(state);
  }
  // In place of the one that is there, if there is.
  void put(TableId id, std::unique_ptr<TableState> state) {
    const auto number = static_cast<std::uint32_t>(id);
    state->birth = ++births_;
    if (number < kDirectTables) {
      if (direct_.size() <= number) direct_.resize(number + 1);
      direct_[number] = std::move(state);
    } else {
      others_[number] = std::move(state);
    }
  }
  void erase(TableId id) {
    const auto number = static_cast<std::uint32_t>(id);
    if (number < direct_.size()) direct_[number].reset();
    else others_.erase(number);
  }
  template <typename Visit>
  void each(Visit visit) const {
    for (std::uint32_t i = 0; i < direct_.size(); i++)
      if (direct_[i] != nullptr) visit(TableId{i}, *direct_[i]);
    for (const auto& [number, state] : others_) visit(TableId{number}, *state);
  }

 private:
  std::vector<std::unique_ptr<TableState>> direct_;
  std::unordered_map<std::uint32_t, std::unique_ptr<TableState>> others_;
  std::uint64_t births_ = 0;
};

struct Extent {
  std::uint64_t live_bytes = 0;  // with what a key costs in a record or a checkpoint
  std::uint64_t tables = 0;
};
inline Extent extent_of(const Tables& tables) {
  Extent sum;
  tables.each([&](TableId, const TableState& state) {
    sum.live_bytes += state.table.live_bytes() + 32 * state.table.count();
    sum.tables++;
  });
  return sum;
}

// What checkpoints of all unsaved tables may take beyond the ones they replace, at any time while they are made one after
// another: those that grow, and the largest beside its predecessor.
inline std::uint64_t checkpoint_room(const Tables& tables) {
  constexpr std::uint64_t kFile = 4096;  // beside the entries, rounded as file systems do
  std::uint64_t growth = 0, largest = 0;
  tables.each([&](TableId, const TableState& state) {
    if (!state.unsaved_from) return;
    const std::uint64_t size = state.table.live_bytes() + 32 * state.table.count() + kFile;
    if (size > state.checkpoint_bytes) growth += size - state.checkpoint_bytes;
    largest = std::max(largest, std::min(size, state.checkpoint_bytes));
  });
  return growth + largest;
}

}  // namespace novoht::core

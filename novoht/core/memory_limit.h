// The memory limit: values that were not used for long go to the disk, and those that are used again come back. A hand goes
// round all tables' entries, as a clock's; what was not used since it last came by goes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "novoht/core/cold.h"
#include "novoht/core/failures.h"
#include "novoht/core/tables.h"

namespace novoht::core {

// One thread.
class MemoryLimit {
 public:
  // `limit`: bytes; `slice`: bytes that may go or come at one step. What they refer to outlives this.
  MemoryLimit(Tables& tables, Arena& arena, Failures& failures, std::uint64_t limit, std::size_t slice)
      : tables_(tables), arena_(arena), failures_(failures), limit_(limit), slice_(slice) {}

  // Where values may lie. Before this there is no limit.
  void begin(ColdValues& cold) { cold_ = &cold; }

  std::uint64_t used() const { return arena_.used() + arena_.outside(); }
  bool exceeded() const { return cold_ != nullptr && used() > std::max(limit_, quiet_until_); }
  // By how much keys, index and short values alone take more; 0: they do not, or values are still being sent to the disk.
  std::uint64_t exceeded_for_good() const { return cold_ != nullptr && fruitless_rounds_ >= 2 && used() > limit_ ? used() - limit_ : 0; }

  // Used values stay in memory, and one on disk that is used again is wanted back.
  void note_use(TableId table, std::uint64_t hash, const Entry& entry) {
    if (near_) note(table, hash, entry);
  }
  void look_whether_near();  // where there is plenty of memory nothing is done for the limit

  // What housekeeping does for it at each call. Errors: io, no_space, corrupt.
  Result<void> keep_up();
  // Sends values to the disk until the limit is kept. A disk without room for them is no reason not to open.
  void keep_while_opening();
  // Copies some values out of a file that is mostly dead. Returns whether there is more to do. Errors: as above.
  Result<bool> empty_a_file();

 private:
  struct Hand {
    std::size_t table = 0;  // index among ids_
    std::uint64_t cursor = 0;
  };
  static constexpr std::size_t kWantedMost = 64;

  void note(TableId table, std::uint64_t hash, const Entry& entry);
  Result<std::uint64_t> cool(std::optional<std::uint32_t> empty);
  Result<void> keep(std::uint64_t at_least);
  Result<void> warm_wanted();

  Tables& tables_;
  Arena& arena_;
  Failures& failures_;
  const std::uint64_t limit_;
  const std::size_t slice_;
  ColdValues* cold_ = nullptr;  // null: no limit
  bool near_ = false;
  std::vector<TableId> ids_;
  Hand hand_, emptying_hand_;
  std::optional<std::uint32_t> emptying_;  // a file
  std::uint64_t used_before_ = 0;  // memory, when keep_up() was last called
  // When the hand has gone round twice and found hardly anything that could go, it rests until so much memory is in use.
  std::uint64_t quiet_until_ = 0;
  std::uint64_t round_gone_ = 0;  // bytes, since the hand was at the beginning
  int fruitless_rounds_ = 0;
  std::vector<std::pair<TableId, std::uint64_t>> wanted_;  // on disk, and used more than once: table and hash
};

}  // namespace novoht::core

// Keeps the log short: tables are written to checkpoints, the one that holds on to the oldest record first, a slice at a time,
// and segments of which no record is needed any more are dropped. Entries are taken on the caller's thread; writing and syncing
// are done by another.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "novoht/core/background.h"
#include "novoht/core/checkpoint.h"
#include "novoht/core/failures.h"
#include "novoht/core/log.h"
#include "novoht/core/tables.h"

namespace novoht::core {

// One thread.
class Checkpointing {
 public:
  static constexpr std::uint64_t kCostOfCheckpoint = 4096;  // beside its entries, in bytes of these

  // What they refer to outlives this.
  Checkpointing(base::FileSystem& files, const std::string& folder, const Options& options, Tables& tables, Log& log, Failures& failures)
      : files_(files), folder_(folder), options_(options), tables_(tables), log_(log), failures_(failures), background_(files.threads()) {}

  // Before anything else is asked: the store's id, and where values lie that are not in memory, or null.
  void open(std::uint64_t store, ColdValues* cold) {
    store_ = store;
    cold_ = cold;
  }
  // Waits for what is being done; what is written has no name and comes to nothing.
  void close();

  // One piece of work, the most urgent; no entry is moved. `slice`: bytes of a checkpoint that are taken. Returns whether there is
  // more that need not wait. Errors: io, no_space; then note_failure().
  Result<bool> step(std::size_t slice);
  // Every table that has changed has a checkpoint, and the log is as short as can be, when this returns. Errors: io, no_space.
  Result<void> compact();
  void note_failure(const base::Error& error);
  // Makes the next segment ready. Without room for it housekeeping is all the more urgent, for it makes room.
  Result<void> prepare_segment();
  bool starved() const { return starved_; }  // there was no room
  bool idle() const { return checkpoint_ == nullptr && !background_.running(); }

  // What all tables hold. Asking them is not for every record: what they said is good while a hundredth of it is written.
  const Extent& extent() const;
  void extent_has_changed() { extent_until_ = 0; }
  // Bytes: a log longer than this is shortened.
  std::uint64_t log_bound() const;

  // Records from here on stay, for an export or a tail has still to read them.
  void hold(Position position) { held_.insert(position); }
  void let_go(Position position) {
    held_.erase(held_.find(position));
    trim_due_ = true;
  }
  // Whether no checkpoint would let anything go, for an export or a tail holds the oldest record that is needed.
  bool is_held() const { return !held_.empty() && needed_from() == *held_.begin(); }

  // A table's checkpoint that is being made, or waits for its name.
  bool is_making(TableId table) const;
  // One that is being written, or is written: it comes to nothing. Not while the background is at it.
  void forget(TableId table);
  // The table was dropped by the record at `position`: its checkpoint goes when the log is durable up to `durable_at`.
  void dropped(TableId table, Position position, Position durable_at) { doomed_.push_back({table, position, durable_at}); }
  // The table's checkpoint on disk is that of a living table again.
  void lives(TableId table) {
    std::erase_if(doomed_, [&](const Doomed& one) { return one.table == table; });
  }
  // A checkpoint that others have made has its name.
  void replaced(TableId table) {
    lives(table);
    extent_has_changed();
    trim_due_ = true;
  }

  // The background's work. Its failure is told once, by the call that takes its outcome.
  bool working() const { return background_.running(); }
  bool syncing() const { return background_.running() && background_is_ != Work::slice; }
  bool wait_until_done(std::chrono::steady_clock::time_point until) const { return background_.wait_until_done(until); }
  void wait_until_done() const { background_.wait_until_done(); }
  Result<void> wait();
  bool take_if_done();  // false: the work goes on. Its outcome is not told.

  std::uint64_t taken() const { return taken_; }  // bytes of checkpoints, since open
  std::uint64_t checkpoints() const { return checkpoints_; }
  const Statistics::Share& taking_share() const { return taking_share_; }
  const Statistics::Share& log_share() const { return log_share_; }

 private:
  struct Doomed {  // dropped tables whose checkpoint may still be there
    TableId table;
    Position position;  // of the drop record
    Position durable_at;
  };
  struct Written {
    TableId table;
    std::unique_ptr<CheckpointWriter> writer;
  };
  // What the background does: write a slice of the checkpoint, or sync the log, or sync the log and what is written, and name it.
  enum class Work { slice, sync, naming };
  static constexpr std::size_t kSlicesWaiting = 4;  // at most, while one is written
  // Those that are written: they are synced and named together, for a sync costs as much for many as for one, and with hundreds
  // of tables the log would grow meanwhile to many times what it may be.
  static constexpr std::size_t kNamedTogether = 32;
  static constexpr std::uint64_t kTogetherBytes = std::uint64_t{16} << 20;

  std::string path_of(std::string_view name) const { return folder_ + "/" + std::string(name); }
  Position needed_from() const;
  bool is_long();
  std::optional<TableId> next_to_save() const;
  bool enough_written() const;
  Result<void> begin(TableId table);
  Result<void> go_on(std::size_t bytes);
  Result<void> complete();
  Result<void> start_sync(bool with_checkpoints);
  Result<void> name_written();
  Result<void> take_background(Result<void> outcome);
  Result<bool> remove_dropped();

  base::FileSystem& files_;
  const std::string& folder_;
  const Options& options_;
  Tables& tables_;
  Log& log_;
  Failures& failures_;
  ColdValues* cold_ = nullptr;
  std::uint64_t store_ = 0;

  std::unique_ptr<CheckpointWriter> checkpoint_;  // being written
  TableId table_{};                               // of it
  bool taken_whole_ = false, written_whole_ = false;  // all of the table is in it; was handed over
  std::vector<Written> written_;
  bool naming_due_ = false;  // what is written must not wait for more: a failure, above all for want of room
  std::vector<Doomed> doomed_;
  std::multiset<Position> held_;
  mutable Extent extent_;
  mutable Position extent_until_ = 0;
  Position short_until_ = 0;  // the log was short when last asked, and is taken for short up to here
  bool trim_due_ = true;
  std::uint64_t segments_seen_ = 0;
  bool starved_ = false;
  std::uint64_t taken_ = 0, checkpoints_ = 0;
  Statistics::Share taking_share_, log_share_;

  Work background_is_ = Work::sync;
  std::unique_ptr<SyncJob> log_job_;
  Log::Syncing log_syncing_;
  Result<void> log_outcome_;
  Background background_;  // last: what it works on outlives it
};

}  // namespace novoht::core

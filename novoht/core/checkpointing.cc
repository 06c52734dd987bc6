#include "novoht/core/checkpointing.h"

#include <algorithm>

namespace novoht::core {

// Asking every table is not for every record: what they said is good while a hundredth of it is written.
const Extent& Checkpointing::extent() const {
  if (log_.position() >= extent_until_) {
    extent_ = extent_of(tables_);
    extent_until_ = log_.position() + std::clamp<std::uint64_t>(extent_.live_bytes / 128, 1 << 10, 1 << 20);
  }
  return extent_;
}

std::uint64_t Checkpointing::log_bound() const {
  const double most = options_.log_slack * static_cast<double>(extent().live_bytes);
  return std::max(options_.log_floor, most < 9e18 ? static_cast<std::uint64_t>(most) : UINT64_MAX);
}

Position Checkpointing::needed_from() const {
  Position needed = log_.position();
  tables_.each([&](TableId, const TableState& state) {
    if (state.unsaved_from) needed = std::min(needed, *state.unsaved_from);
  });
  for (const Doomed& one : doomed_) needed = std::min(needed, one.position);
  if (!held_.empty()) needed = std::min(needed, *held_.begin());
  return needed;
}

bool Checkpointing::is_long() {
  if (starved_ && log_.segment_count() >= 2) return true;
  if (log_.segment_count() < 4 || log_.position() < short_until_) return false;
  if (log_.position() - log_.begin() > log_bound()) return true;
  // Asking every table is not for every round: once short, the log is that for a while.
  constexpr std::uint64_t kWhile = std::uint64_t{64} << 10;
  short_until_ = log_.position() + std::min(kWhile, options_.segment_size / 4);
  return false;
}

Result<bool> Checkpointing::step(std::size_t slice) {
  if (background_.running()) {
    auto outcome = background_.poll();
    if (!outcome) {
      if (background_is_ == Work::slice) TRY(go_on(slice));
      return false;
    }
    const bool was_slice = background_is_ == Work::slice;
    TRY(take_background(*std::move(outcome)));
    if (!was_slice) return true;
  }
  if (checkpoint_ != nullptr) {
    log_.expect_sync();
    TRY(go_on(slice));
    return !background_.running();
  }
  const Timed timed(log_share_);
  if (log_.wants_sync_for_trim()) {
    TRY(start_sync(false));
    return !background_.running();
  }
  TRY_LET(more_trimmed, log_.drop_trimmed(true));
  if (more_trimmed) return true;
  TRY_LET(more_doomed, remove_dropped());
  if (more_doomed) return true;
  // What is needed changes with checkpoints and drops, what can go with each new segment.
  if (trim_due_ || segments_seen_ != log_.segment_count()) {
    trim_due_ = true;  // still, should this fail
    TRY_LET(trimmed, log_.trim(needed_from()));
    trim_due_ = false;
    segments_seen_ = log_.segment_count();
    if (trimmed) return true;
  }
  if (written_.empty() && !is_long()) return false;
  if (const auto table = next_to_save()) {
    TRY(begin(*table));
    return true;
  }
  if (written_.empty()) return false;
  naming_due_ = false;
  TRY(start_sync(true));
  return !background_.running();
}

// The table that holds on to the oldest record; but nothing when those that are written should rather be named now.
std::optional<TableId> Checkpointing::next_to_save() const {
  std::optional<TableId> oldest;
  Position from = log_.position();
  tables_.each([&](TableId id, const TableState& state) {
    if (state.awaits_name || !state.unsaved_from || *state.unsaved_from >= from) return;
    from = *state.unsaved_from;
    oldest = id;
  });
  if (!written_.empty() && (enough_written() || log_.position() - from <= log_bound())) return {};
  return oldest;
}

// Their predecessors take room until they have their names.
bool Checkpointing::enough_written() const {
  std::uint64_t bytes = 0;
  for (const Written& one : written_) bytes += one.writer->size();
  return written_.size() >= kNamedTogether || bytes >= kTogetherBytes || naming_due_ || starved_ ||
         files_.free_bytes(folder_) < 4 * kTogetherBytes;
}

Result<void> Checkpointing::begin(TableId table) {
  TableState& state = *tables_.find(table);
  const CheckpointHeader header{
      .store = store_, .table = table, .version = state.version, .epoch = state.epoch, .position = log_.position()};
  const std::string attachment = options_.companion == nullptr ? std::string() : options_.companion->attachment(table);
  TRY_LET(writer, CheckpointWriter::begin(files_, path_of(checkpoint_name(table)), header, attachment));
  checkpoint_ = std::move(writer);
  table_ = table;
  taken_ += kCostOfCheckpoint;
  taken_whole_ = written_whole_ = false;
  state.changed_since.reset();
  return {};
}

// Takes some more of the checkpoint, and has it written, in the background, as soon as there is a slice of it; when that was
// all, its end too.
Result<void> Checkpointing::go_on(std::size_t bytes) {
  const Timed timed(taking_share_);
  TableState& state = *tables_.find(table_);
  if (!taken_whole_ && checkpoint_->waiting() < kSlicesWaiting * std::max(bytes, options_.maintain_slice)) {
    const std::uint64_t before = checkpoint_->taken();
    auto taken = checkpoint_->take_some(state.table, cold_, bytes);
    taken_ += checkpoint_->taken() - before;
    if (!taken) {
      (void)background_.wait();
      checkpoint_.reset();
      return std::move(taken).error();
    }
    taken_whole_ = *taken;
  }
  if (background_.running() || (!taken_whole_ && checkpoint_->waiting() < options_.maintain_slice)) return {};
  background_is_ = Work::slice;
  written_whole_ = taken_whole_;
  checkpoint_->hand_over();
  const CheckpointEnd end{.entries = checkpoint_->entries(), .version = state.version, .position = log_.position()};
  background_.start([this, all = taken_whole_, end]() -> Result<void> {
    TRY(checkpoint_->write_taken());
    return all ? checkpoint_->write_end(end) : Result<void>{};
  });
  if (auto outcome = background_.poll()) TRY(take_background(*std::move(outcome)));
  return {};
}

// A checkpoint's entries may be as new as the log's last record, so the log is synced before the checkpoint has its name.
Result<void> Checkpointing::start_sync(bool with_checkpoints) {
  TRY_LET(job, log_.begin_sync(log_syncing_));
  log_job_ = std::move(job);
  background_is_ = with_checkpoints ? Work::naming : Work::sync;
  background_.start([this, with_checkpoints]() -> Result<void> {
    log_outcome_ = log_job_->run();
    if (!log_outcome_ || !with_checkpoints) return log_outcome_;
    for (const Written& one : written_) TRY(one.writer->sync());
    for (const Written& one : written_) TRY(one.writer->give_name());
    return files_.sync_folder(folder_);
  });
  if (auto outcome = background_.poll()) return take_background(*std::move(outcome));
  return {};
}

Result<void> Checkpointing::take_background(Result<void> outcome) {
  if (background_is_ == Work::slice) {
    if (outcome && written_whole_) {
      tables_.find(table_)->awaits_name = true;
      written_.push_back({table_, std::move(checkpoint_)});
    }
    if (!outcome) checkpoint_.reset();
    return outcome;
  }
  log_.end_sync(log_syncing_, log_outcome_);
  log_job_.reset();
  if (background_is_ == Work::sync) return outcome;
  for (const Written& one : written_) {
    TableState& state = *tables_.find(one.table);
    state.awaits_name = false;
    if (!outcome) continue;
    state.checkpoint_bytes = one.writer->size();
    state.unsaved_from = state.changed_since;
    trim_due_ = true;
    std::erase_if(doomed_, [&](const Doomed& doomed) { return doomed.table == one.table; });
    checkpoints_++;
  }
  written_.clear();
  naming_due_ = false;
  return outcome;
}

Result<void> Checkpointing::wait() {
  if (auto outcome = background_.wait()) return take_background(*std::move(outcome));
  return {};
}

void Checkpointing::forget(TableId table) {
  if (checkpoint_ != nullptr && table_ == table) checkpoint_.reset();
  std::erase_if(written_, [&](const Written& one) { return one.table == table; });
  if (TableState* const state = tables_.find(table)) state->awaits_name = false;
}

Result<bool> Checkpointing::remove_dropped() {
  if (doomed_.empty()) return false;
  const Doomed one = doomed_.front();
  if (log_.durable() < one.durable_at) return false;  // once it is, or with the next checkpoint
  TRY_LET(there, files_.exists(path_of(checkpoint_name(one.table))));
  if (there) {
    TRY(files_.remove(path_of(checkpoint_name(one.table))));
    TRY(files_.sync_folder(folder_));
  }
  doomed_.erase(doomed_.begin());
  trim_due_ = true;
  return !doomed_.empty();
}

void Checkpointing::note_failure(const base::Error& error) {
  failures_.note(error.message);
  failures_.rest();
  naming_due_ = true;
  if (error.code == Code::no_space) (void)log_.let_go_kept().has_value();
}

Result<void> Checkpointing::complete() {
  TRY(wait());
  while (checkpoint_ != nullptr) {
    TRY(go_on(std::size_t{1} << 20));
    TRY(wait());
  }
  return {};
}

Result<void> Checkpointing::name_written() {
  if (written_.empty()) return {};
  TRY(start_sync(true));
  return wait();
}

Result<void> Checkpointing::compact() {
  TRY(complete());
  TRY(name_written());
  std::vector<TableId> unsaved;
  tables_.each([&](TableId id, const TableState& state) {
    if (state.unsaved_from) unsaved.push_back(id);
  });
  for (const TableId table : unsaved) {
    TRY(begin(table));
    TRY(complete());
    if (enough_written()) TRY(name_written());
  }
  TRY(name_written());
  TRY(log_.let_go_kept());
  if (log_.dirty()) TRY(log_.sync());
  for (bool more = !doomed_.empty(); more;) {
    TRY_LET(again, remove_dropped());
    more = again;
  }
  if (!unsaved.empty()) TRY(log_.rotate());
  TRY(log_.trim(needed_from()));
  TRY(log_.sync());
  for (bool more = true; more;) {
    TRY_LET(again, log_.drop_trimmed(false));
    more = again;
  }
  return files_.sync_folder(folder_);
}

void Checkpointing::close() {
  (void)wait().has_value();
  checkpoint_.reset();
  written_.clear();
}

Result<void> Checkpointing::prepare_segment() {
  auto prepared = log_.prepare();
  starved_ = !prepared && prepared.code() == Code::no_space;
  return prepared;
}

bool Checkpointing::is_making(TableId table) const {
  const TableState* const state = tables_.find(table);
  return (checkpoint_ != nullptr && table_ == table) || (state != nullptr && state->awaits_name);
}

bool Checkpointing::take_if_done() {
  auto outcome = background_.poll();
  if (!outcome) return !background_.running();
  (void)take_background(*std::move(outcome)).has_value();
  return true;
}

}  // namespace novoht::core

#include "novoht/core/opening.h"

#include <algorithm>

#include "novoht/core/replay.h"

namespace novoht::core {

Result<LogScan> Opening::run(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (const auto table = checkpoint_table(name)) TRY(load_checkpoint(name, *table));
  }
  TRY_LET(scan, scan_log(files_, folder_, names, store_, durable_, options_.read_only, *this));
  if (!gaps_.empty()) return gaps_.begin()->second;
  for (const auto& [number, loaded] : loaded_) {
    if (loaded.reached < loaded.end)
      return base::fail(Code::corrupt, path_of(checkpoint_name(TableId{number})), ": has changes up to version ", loaded.end,
                        ", but the log ends at version ", loaded.reached, " of the table");
  }
  return scan;
}

void Opening::prepare(const Record& record, std::uint64_t hash) {
  if (const TableState* const state = tables_.find(record.table)) state->table.prefetch_bucket(hash);
}
void Opening::approach(const Record& record, std::uint64_t hash) {
  if (const TableState* const state = tables_.find(record.table)) state->table.prefetch_entry(hash);
}

Result<void> Opening::load_checkpoint(const std::string& name, TableId table) {
  TableState& state = tables_.get(table, arena_, cold_);
  TRY_LET(read, read_checkpoint(
                    files_, path_of(name), store_, table,
                    [&](const CheckpointHeader&, Bytes attachment) -> Result<void> {
                      if (options_.companion == nullptr) return {};
                      return options_.companion->restore(table, attachment);
                    },
                    [&](std::span<const ReadEntry> entries) {
                      constexpr std::size_t kFar = 16;
                      for (std::size_t i = 0; i < entries.size(); i++) {
                        if (i + kFar < entries.size()) state.table.prefetch_bucket(entries[i + kFar].hash);
                        state.table.load(entries[i].hash, entries[i].entry);
                      }
                      if (memory_.exceeded()) keep_limit();
                    }));
  state.version = read.header.version;
  state.epoch = read.header.epoch;
  state.checkpoint_bytes = read.size;
  state.from = read.header.position;
  durable_ = std::max(durable_, read.end.position);
  loaded_[static_cast<std::uint32_t>(table)] = {read.header.position, read.end.version, read.header.version};
  checkpoint_bytes_ += read.size;
  return {};
}

Result<void> Opening::take(const Record& record, const Change* change, std::uint64_t hash,
                               const RecordPlace& place) {
  if (record.type == RecordType::mark || record.type == RecordType::trim) return {};
  const auto number = static_cast<std::uint32_t>(record.table);
  const auto loaded = loaded_.find(number);
  if (loaded != loaded_.end() && place.position < loaded->second.position) return {};
  if (record.type == RecordType::drop) {
    const TableState* const state = tables_.find(record.table);
    if (state != nullptr && state->checkpoint_bytes > 0) checkpointing_.dropped(record.table, place.position, place.position);
    if (loaded != loaded_.end()) loaded_.erase(loaded);
    gaps_.erase(number);
    tables_.erase(record.table);
    if (options_.companion != nullptr) TRY(options_.companion->restore(record.table, {}));
    return {};
  }
  TableState& state = tables_.get(record.table, arena_, cold_);
  if (record.type == RecordType::rewind) return replay_rewind(state, record, place);
  if (loaded != loaded_.end()) loaded->second.reached = std::max(loaded->second.reached, record.version);
  if (record.version != state.version + 1 && !gaps_.contains(number)) {
    gaps_.emplace(number, base::fail(Code::corrupt, place.path, " offset ", place.offset, ": table ", number, " version ",
                                     record.version, ", expected ", state.version + 1, ": records are missing before"));
  }
  TRY(replay_changes(state, record, change, hash, place));
  if (memory_.exceeded()) [[unlikely]]
    if (replayed_since_ += record.size; replayed_since_ > options_.maintain_slice) keep_limit();
  state.version = record.version;
  state.epoch = record.epoch;
  if (!state.unsaved_from) state.begin_unsaved(place.position);
  if (options_.companion != nullptr)
    TRY(options_.companion->replay(record.table, record.version, record.epoch, record.note));
  return {};
}

Result<void> Opening::replay_changes(TableState& state, const Record& record, const Change* change, std::uint64_t hash,
                                       const RecordPlace& place) {
  const auto loaded = loaded_.find(static_cast<std::uint32_t>(record.table));
  const bool fuzzy = loaded != loaded_.end() && record.version <= loaded->second.end;
  if (change != nullptr && !fuzzy) {
    core::replay_change(state.table, *change, hash, record.version);
    return {};
  }
  if (!core::replay_changes(state.table, record.changes, record.change_count, record.version, fuzzy))
    return base::fail(Code::corrupt, place.path, " offset ", place.offset, ": a record with malformed changes");
  return {};
}

// The keys are set to what they were, so it does not matter how new those are that the checkpoint brought; and what comes
// after finds them older than itself.
Result<void> Opening::replay_rewind(TableState& state, const Record& record, const RecordPlace& place) {
  const auto number = static_cast<std::uint32_t>(record.table);
  if (record.version > state.version)
    gaps_.emplace(number, base::fail(Code::corrupt, place.path, " offset ", place.offset, ": table ", number, " is taken back to version ",
                                     record.version, ", but has ", state.version, ": records are missing before"));
  if (!core::replay_rewind(state.table, record.changes, record.change_count, record.version))
    return base::fail(Code::corrupt, place.path, " offset ", place.offset, ": a record with malformed changes");
  tables_.take_back(state, record.version, record.epoch, place.position);
  if (options_.companion != nullptr) TRY(options_.companion->rewound(record.table, record.version));
  return {};
}

}  // namespace novoht::core

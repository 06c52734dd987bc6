#include "novoht/store.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <deque>
#include <set>
#include <unordered_map>

#include "novoht/core/background.h"
#include "novoht/core/checkpoint.h"
#include "novoht/core/folder.h"
#include "novoht/core/log.h"
#include "novoht/core/recovery.h"
#include "novoht/core/replay.h"
#include "novoht/core/snapshot.h"
#include "novoht/core/tables.h"
#include "novoht/core/views.h"

namespace novoht {

using core::Entry;
using core::Position;
using core::Tables;
using core::TableState;
using core::Timed;

namespace {

constexpr std::size_t kAhead = 16;                   // keys whose memory is fetched before it is needed
constexpr std::size_t kTogether = 32;                // the same in prefetch_all(), where nothing else is done meanwhile
constexpr std::size_t kWantedOfEntry = 512;
constexpr std::uint64_t kCostOfCheckpoint = 4096;    // beside its entries, in bytes of these

class StoreImpl final : public Store, private core::SnapshotHost, private core::ImportHost {
 public:
  StoreImpl(base::FileSystem& files, std::string folder, Options options)
      : files_(files), folder_(std::move(folder)), options_(options), arena_(files.threads()),
        log_(files, folder_, options.segment_size, [this] { return extent().live_bytes; }, [this] { return checkpoint_room(tables_); },
             [this] { return log_bound(); }),
        background_(files.threads()) {}
  ~StoreImpl() override {
    settle();
    (void)wait_for_background().has_value();
    checkpoint_.reset();
    written_.clear();
    if (!options_.read_only) log_.close();
    tables_.each([](TableId, TableState& state) { state.table.forget(); });
  }

  Result<void> recover();

  void set_now(base::WallTime now) override { now_ms_ = base::to_millis(now); }

  std::optional<ValueView> lookup(TableId table, Bytes key) const override {
    settle();
    const TableState* const state = tables_.find(table);
    std::optional<ValueView> found;
    if (state == nullptr) return found;
    const std::uint64_t hash = core::Table::hash(key);
    const Entry* const entry = state->table.find(hash, key);
    if (entry == nullptr || is_expired(*entry)) return found;
    if (near_limit_) note_use(table, hash, *entry);
    ValueMaker::make(found, *entry, cold_.get());
    return found;
  }

  void lookup_many(TableId table, std::span<const Bytes> keys, std::span<std::optional<ValueView>> found) const override {
    CHECK(keys.size() == found.size(), "lookup_many(): as many places as keys");
    settle();
    const TableState* const state = tables_.find(table);
    for (std::size_t begin = 0; begin < keys.size(); begin += kAhead) {
      const std::size_t count = std::min(kAhead, keys.size() - begin);
      std::uint64_t hashes[kAhead];
      if (state != nullptr) {
        for (std::size_t i = 0; i < count; i++) {
          hashes[i] = core::Table::hash(keys[begin + i]);
          state->table.prefetch_bucket(hashes[i]);
        }
        for (std::size_t i = 0; i < count; i++) state->table.prefetch_entry(hashes[i]);
      }
      for (std::size_t i = 0; i < count; i++) {
        const Entry* const entry = state == nullptr ? nullptr : state->table.find(hashes[i], keys[begin + i]);
        found[begin + i].reset();
        if (entry == nullptr || is_expired(*entry)) continue;
        if (near_limit_) note_use(table, hashes[i], *entry);
        ValueMaker::make(found[begin + i], *entry, cold_.get());
      }
    }
  }

  void prefetch(TableId table, Bytes key) const override {
    if (const TableState* const state = tables_.find(table)) state->table.prefetch_bucket(core::Table::hash(key));
  }

  void prefetch_all(std::span<const TableKey> keys) const override {
    const TableState* states[kTogether];
    std::uint64_t hashes[kTogether];
    for (std::size_t begin = 0; begin < keys.size(); begin += kTogether) {
      std::size_t count = 0;
      for (const TableKey& one : keys.subspan(begin, std::min(kTogether, keys.size() - begin))) {
        const TableState* const state = tables_.find(one.table);
        if (state == nullptr) continue;
        state->table.prefetch();
        states[count] = state;
        hashes[count++] = core::Table::hash(one.key);
      }
      for (std::size_t i = 0; i < count; i++) states[i]->table.prefetch_root(hashes[i]);
      for (std::size_t i = 0; i < count; i++) states[i]->table.prefetch_bucket(hashes[i]);
      for (std::size_t i = 0; i < count; i++) states[i]->table.prefetch_entry(hashes[i]);
    }
  }

  Version version(TableId table) const override {
    const TableState* const state = tables_.find(table);
    return state == nullptr ? 0 : state->version;
  }
  std::uint64_t epoch(TableId table) const override {
    const TableState* const state = tables_.find(table);
    return state == nullptr ? 0 : state->epoch;
  }
  std::vector<TableId> tables() const override {
    std::vector<TableId> ids;
    tables_.each([&](TableId id, const TableState& state) {
      if (state.version > 0) ids.push_back(id);
    });
    std::sort(ids.begin(), ids.end());
    return ids;
  }

  Result<Version> apply(TableId table, std::span<const Change> changes, Bytes note, std::uint64_t epoch) override;
  Result<void> rewind(TableId table, Version to, std::uint64_t epoch, std::span<const Restored> restored) override;

  Result<void> apply_many(std::span<const TableChange> changes, std::span<Version> versions) override;

  Result<void> flush() override {
    settle();
    return log_.flush();
  }
  Result<void> sync() override {
    settle();
    return log_.sync();
  }
  Result<std::unique_ptr<SyncJob>> begin_sync() override {
    settle();
    core::Log::Syncing what;
    TRY_LET(job, log_.begin_sync(what));
    syncing_.push_back(what);
    return std::unique_ptr<SyncJob>(std::move(job));
  }
  void finish_sync(const Result<void>& outcome) override {
    CHECK(!syncing_.empty(), "finish_sync() without begin_sync()");
    log_.end_sync(syncing_.front(), outcome);
    syncing_.pop_front();
  }
  bool dirty() const override { return log_.dirty(); }

  Result<bool> maintain(base::Duration budget) override;
  Result<void> compact() override;

  ScanPage scan(TableId table, std::uint64_t cursor, std::size_t limit, Bytes prefix) const override;
  bool has_expiries(TableId table) const override {  // what is deferred has none
    const TableState* const state = tables_.find(table);
    return state != nullptr && state->table.has_expiries();
  }
  std::vector<std::string> expired(TableId table, std::size_t limit) const override {
    settle();
    const TableState* const state = tables_.find(table);
    if (state == nullptr) return {};
    return state->table.expired(now_ms_, limit);
  }
  Result<void> drop(TableId table) override;
  Result<std::unique_ptr<Export>> begin_export(TableId table) override;
  Result<std::unique_ptr<Import>> begin_import(TableId table) override;
  Result<std::unique_ptr<LogTail>> begin_tail(TableId table, Version after) override;
  std::uint64_t used_memory() const override { return arena_.used() + arena_.outside(); }
  Statistics statistics() const override;

 private:
  struct Doomed {
    TableId table;
    Position position;  // of the drop record
    Position durable_at;
  };

  // A change that is in the log and in its table's version, but not yet among its keys; nor is its record sealed.
  struct Deferred {
    TableState* state;
    char* record;
    std::uint64_t hash;
    Version version;
    std::uint32_t size, head;  // of the record; of what comes before the change
    // Of the entry, which an insert of a value as long as the one before overwrites; the first part of a long one will do.
    std::size_t wanted() const { return std::clamp<std::size_t>(sizeof(Entry) + size - head + 56, 128, kWantedOfEntry); }
  };
  void defer(const Deferred& one);
  void settle_one() const;
  void settle_all() const;
  // Before anything looks at a table's keys, and before the log's memory moves.
  void settle() const {
    if (deferred_begin_ != deferred_end_) settle_all();
  }
  static std::size_t take_change(core::Table& table, const char* from, std::uint64_t hash, Version version);

  // For the memory limit: used values stay in memory, and one on disk that is used again is wanted back.
  void note_use(TableId table, std::uint64_t hash, const Entry& entry) const {
    if (entry.used) {
      if (wanted_.size() < kWantedMost && entry.on_disk()) wanted_.emplace_back(table, hash);
      return;
    }
    const_cast<Entry&>(entry).used = true;  // entries are ours; what they hold does not change
  }
  bool over_limit() const { return cold_ != nullptr && used_memory() > std::max(options_.memory_limit, quiet_until_); }
  void look_whether_near() {  // where there is plenty of memory nothing is done for the limit
    near_limit_ = cold_ != nullptr && (used_memory() > options_.memory_limit / 4 * 3 || cold_->live_bytes() > 0);
    if (near_limit_) arena_.be_frugal();
  }
  Result<std::uint64_t> cool_step(std::optional<std::uint32_t> empty);
  Result<void> warm_wanted();
  Result<void> keep_limit(std::uint64_t at_least);
  Result<bool> empty_cold_file();
  // A disk without room for them is no reason not to open: memory holds more than it should.
  void keep_limit_while_opening() {
    look_whether_near();
    replayed_since_ = 0;
    if (auto kept = keep_limit(std::uint64_t{1} << 40); !kept) last_failure_ = kept.error().message;
  }

  bool is_expired(const Entry& entry) const { return entry.expires && entry.expires_ms() <= now_ms_; }
  std::string path_of(std::string_view name) const { return folder_ + "/" + std::string(name); }
  Result<void> load_checkpoint(const std::string& name, TableId table, Position& durable);
  Result<void> replay(const core::Record& record, const Change* change, std::uint64_t hash, const core::RecordPlace& place);
  Result<void> replay_changes(TableState& state, const core::Record& record, const Change* change, std::uint64_t hash,
                              const core::RecordPlace& place);
  Result<void> replay_rewind(TableState& state, const core::Record& record, const core::RecordPlace& place);
  void take_back(TableState& state, Version to, std::uint64_t epoch, Position position);
  bool may_be_deferred(const TableState& state, const Change& change, std::uint64_t epoch) const;
  Version apply_deferred(TableId table, TableState& state, std::uint64_t hash, const Change& change, Bytes note,
                         std::uint64_t epoch, std::size_t size);
  Result<Version> apply_any(TableId table, std::span<const Change> changes, Bytes note, std::uint64_t epoch);
  Result<void> write_record(TableId table, TableState& state, std::span<const Change> changes, Bytes note, std::uint64_t epoch);
  Position needed_from() const;
  bool log_is_long();
  std::uint64_t log_bound() const;  // bytes
  std::uint64_t log_wanted(std::size_t record_size) const;
  std::uint64_t log_most(std::size_t record_size) const;
  void help_before(std::size_t record_size);
  void help(std::size_t record_size, std::uint64_t step, std::size_t slice);
  const core::Extent& extent() const;
  void note_failure(const base::Error& error);
  Result<bool> step();
  Result<bool> compact_some();
  Result<bool> shorten_log(std::size_t slice);
  bool evacuate_some();
  Result<void> begin_checkpoint(TableId table);
  Result<void> continue_checkpoint(std::size_t bytes);
  void forget_checkpoint(TableId table);
  std::optional<TableId> next_to_save() const;
  bool enough_written() const;
  Result<void> start_sync(bool with_checkpoints);
  Result<void> complete_checkpoint();
  Result<void> name_written();
  Result<void> take_background(Result<void> outcome);
  Result<void> wait_for_background();
  Result<bool> remove_doomed();

  // For snapshots.
  core::Log& log() override { return log_; }
  std::uint64_t store_id() const override { return id_; }
  void hold(Position position) override { held_.insert(position); }
  void let_go(Position position) override {
    held_.erase(held_.find(position));
    trim_due_ = true;
  }
  std::uint64_t birth_of(TableId table) override { return tables_.get(table, arena_, cold_.get()).birth; }
  std::unique_ptr<core::Shadow> make_shadow() override { return std::make_unique<HiddenTable>(*this); }
  Result<bool> install(TableId table, std::unique_ptr<core::Shadow>& shadow, std::unique_ptr<core::Installation>& installation,
                       const core::Imported& imported, std::size_t bytes, bool all) override;
  Result<std::string> attachment_of(TableId id, const core::Imported& imported);
  class HiddenTable final : public core::Shadow {
   public:
    explicit HiddenTable(StoreImpl& store)
        : store_(store), state_(std::make_unique<TableState>(store.arena_, store.cold_.get())) {
      store_.hidden_++;
    }
    ~HiddenTable() override { store_.hidden_--; }
    core::Table& table() override { return state_->table; }
    std::unique_ptr<TableState> take() { return std::move(state_); }

   private:
    StoreImpl& store_;
    std::unique_ptr<TableState> state_;
  };

  base::FileSystem& files_;
  const std::string folder_;
  const Options options_;
  std::unique_ptr<base::FileLock> lock_;
  std::uint64_t id_ = 0;
  core::Arena arena_;  // before the tables that live in it
  std::unique_ptr<core::ColdValues> cold_;  // with a memory limit; before the tables too
  Tables tables_;
  core::Log log_;
  std::uint64_t now_ms_ = 0;

  // The embedder's unfinished jobs. They may finish in any order: when n have, the n that were begun first hold.
  std::deque<core::Log::Syncing> syncing_;

  std::unique_ptr<core::CheckpointWriter> checkpoint_;  // being written
  TableId checkpoint_table_{};
  bool taken_whole_ = false, written_whole_ = false;  // all of the table is in it; was handed over
  static constexpr std::size_t kSlicesWaiting = 4;    // at most, while one is written
  // Those that are written: they are synced and named together, for a sync costs as much for many as for one, and with hundreds
  // of tables the log would grow meanwhile to many times what it may be.
  static constexpr std::size_t kNamedTogether = 32;
  static constexpr std::uint64_t kTogetherBytes = std::uint64_t{16} << 20;
  struct Written {
    TableId table;
    std::unique_ptr<core::CheckpointWriter> writer;
  };
  std::vector<Written> written_;
  bool naming_due_ = false;  // what is written must not wait for more: a failure, above all for want of room
  // Tables from whom the arena's old chunks have still to be cleared; the last one from `evacuation_cursor_` on.
  std::vector<TableId> evacuating_;
  std::uint64_t evacuation_cursor_ = 0;
  // The memory limit: where the hand is that looks for values that were not used, and the same for the file being emptied.
  struct Hand {
    std::size_t table = 0;  // index among table_ids_
    std::uint64_t cursor = 0;
  };
  std::vector<TableId> table_ids_;
  Hand hand_, emptying_hand_;
  std::optional<std::uint32_t> emptying_;
  std::uint64_t used_before_ = 0;  // memory, when maintain() was last called
  // When the hand has gone round twice and found hardly anything that could go, it rests until so much memory is in use.
  std::uint64_t quiet_until_ = 0;
  bool near_limit_ = false;
  std::uint64_t round_gone_ = 0;  // bytes, since the hand was at the beginning
  int fruitless_rounds_ = 0;
  static constexpr std::size_t kWantedMost = 64;
  mutable std::vector<std::pair<TableId, std::uint64_t>> wanted_;  // on disk, and used more than once: table and hash

  Position short_until_ = 0;    // the log was short when last asked, and is taken for short up to here
  // What writers do of the housekeeping, see help_before(). Bytes; positions.
  std::uint64_t log_limit_ = 0;  // of the log's segments
  std::uint64_t owed_ = 0, taken_ = 0, taken_before_ = 0;  // checkpoints' bytes: still to be taken by writers; taken by anybody
  using Nanoseconds = std::chrono::duration<double, std::nano>;
  static constexpr Nanoseconds kNap{20'000};
  Nanoseconds owed_time_{};  // of waiting for the disk
  Position helped_at_ = 0, help_again_ = 0;
  mutable core::Extent extent_;
  mutable Position extent_until_ = 0;
  bool trim_due_ = true;
  std::uint64_t segments_seen_ = 0;
  bool starved_ = false;        // there was no room for another segment
  std::multiset<Position> held_;  // from where exports and tails have still to read
  int hidden_ = 0;                // tables being imported: evacuation would not find their entries
  std::uint64_t installations_ = 0;
  std::vector<Doomed> doomed_;  // dropped tables whose checkpoint may still be there
  std::vector<Change> with_removes_;
  mutable std::array<Deferred, kAhead> deferred_;  // those from begin to end, modulo
  mutable std::size_t deferred_begin_ = 0, deferred_end_ = 0;

  // Only while opening.
  std::uint64_t replayed_since_ = 0;  // the limit was last looked after
  struct Loaded {
    Position position = 0;
    Version end = 0;  // records up to here may be in the checkpoint's entries
    Version reached = 0;  // the latest version that the log had
  };
  std::unordered_map<std::uint32_t, Loaded> loaded_;
  std::unordered_map<std::uint32_t, base::Error> gaps_;  // tables of which records are missing

  Statistics::Share evacuation_, checkpointing_, log_keeping_, cooling_, helping_;
  std::uint64_t records_ = 0, checkpoints_ = 0, failures_ = 0, rest_ = 0, next_rest_ = 1;
  std::uint64_t recovered_records_ = 0, recovered_bytes_ = 0, torn_bytes_ = 0;
  std::string last_failure_;

  // What the background does: write a slice of the checkpoint, or sync the log, or sync the log and what is written, and name it.
  enum class Work { slice, sync, naming };
  Work background_is_ = Work::sync;
  std::unique_ptr<SyncJob> log_job_;
  core::Log::Syncing log_syncing_;
  Result<void> log_outcome_;
  core::Background background_;  // last: what it works on outlives it
};

// --- changes ---

Result<Version> StoreImpl::apply(TableId table, std::span<const Change> changes, Bytes note, std::uint64_t epoch) {
  if (changes.size() == 1) [[likely]] {
    TableState* const state = tables_.find(table);
    if (state != nullptr && may_be_deferred(*state, changes[0], epoch)) [[likely]] {
      const std::size_t size = core::padded(core::record_head_size(note, epoch) + core::change_size(changes[0]));
      if (size <= kMaxRecordSize && log_.has_room(size)) [[likely]]
        return apply_deferred(table, *state, core::Table::hash(changes[0].key), changes[0], note, epoch, size);
    }
  }
  return apply_any(table, changes, note, epoch);
}

// A change alone, for which nothing has to be asked first. One that expires must not wait: whether a table has such keys is
// asked before it would be settled.
bool StoreImpl::may_be_deferred(const TableState& state, const Change& change, std::uint64_t epoch) const {
  return !options_.read_only && change.expires == base::kNever && !state.table.has_expiries() && epoch >= state.epoch &&
         change.key.size() - 1 < options_.max_key_size && change.value.size() <= options_.max_value_size;
}

// The index's memory is fetched while the record is written; the change itself is made later.
inline Version StoreImpl::apply_deferred(TableId table, TableState& state, std::uint64_t hash, const Change& change, Bytes note,
                                         std::uint64_t epoch, std::size_t size) {
  state.table.prefetch_bucket(hash);
  char* const to = log_.next();
  const Position position = log_.position();
  const Version version = ++state.version;
  core::RecordFields fields;
  fields.table = table;
  fields.version = version;
  fields.epoch = epoch;
  fields.note = note;
  fields.changes = std::span(&change, 1);
  core::write_record(to, size, fields, position, log_.durable());
  log_.commit(size);
  records_++;
  state.epoch = epoch;
  if (!state.unsaved_from) [[unlikely]]
    state.begin_unsaved(position);
  if (!state.changed_since) [[unlikely]]
    state.changed_since = position;
  defer({&state, to, hash, version, static_cast<std::uint32_t>(size),
         static_cast<std::uint32_t>(core::record_head_size(note, epoch))});
  return version;
}

Result<void> StoreImpl::apply_many(std::span<const TableChange> changes, std::span<Version> versions) {
  CHECK(changes.size() == versions.size(), "apply_many(): as many places as changes");
  std::fill(versions.begin(), versions.end(), Version{0});
  for (std::size_t begin = 0; begin < changes.size(); begin += kAhead) {
    const auto some = changes.subspan(begin, std::min(kAhead, changes.size() - begin));
    TableState* states[kAhead];
    std::uint64_t hashes[kAhead];
    for (std::size_t i = 0; i < some.size(); i++) {
      states[i] = tables_.find(some[i].table);
      hashes[i] = core::Table::hash(some[i].change.key);
      if (states[i] != nullptr) states[i]->table.prefetch_bucket(hashes[i]);
    }
    for (std::size_t i = 0; i < some.size(); i++) {
      const Change& change = some[i].change;
      const std::size_t size = core::padded(core::kRecordHeaderSize + core::change_size(change));
      // No epoch given: the table's own must be none.
      if (states[i] != nullptr && may_be_deferred(*states[i], change, 0) && log_.has_room(size)) [[likely]] {
        versions[begin + i] = apply_deferred(some[i].table, *states[i], hashes[i], change, {}, 0, size);
        continue;
      }
      TRY_LET(version, apply_any(some[i].table, std::span(&change, 1), {}, 0));
      versions[begin + i] = version;
      for (std::size_t later = i + 1; later < some.size(); later++) states[later] = tables_.find(some[later].table);
    }
  }
  return {};
}

Result<Version> StoreImpl::apply_any(TableId table, std::span<const Change> changes, Bytes note, std::uint64_t epoch) {
  if (options_.read_only) return base::fail(Code::invalid, folder_, ": the store was opened for reading only");
  for (const Change& change : changes) {
    if (change.key.empty() || change.key.size() > options_.max_key_size) [[unlikely]]
      return base::fail(Code::invalid, "a key of ", change.key.size(), " bytes; keys have 1 to ", options_.max_key_size);
    if (change.value.size() > options_.max_value_size) [[unlikely]]
      return base::fail(Code::invalid, "a value of ", change.value.size(), " bytes; the limit is ", options_.max_value_size);
  }
  if (changes.size() > core::kMaxChanges) [[unlikely]]
    return base::fail(Code::invalid, changes.size(), " changes in one record; the limit is ", core::kMaxChanges);
  TableState& state = tables_.get(table, arena_, cold_.get());
  if (epoch < state.epoch) [[unlikely]]
    return base::fail(Code::invalid, "epoch ", epoch, " after ", state.epoch, "; an epoch may only grow");
  if (state.table.has_expiries()) {
    settle();
    // What is expired is absent: an append must not find it. The record says so, for replay knows no time.
    with_removes_.clear();
    for (const Change& change : changes) {
      if (change.kind != Change::Kind::append) continue;
      const Entry* const entry = state.table.find(core::Table::hash(change.key), change.key);
      if (entry != nullptr && is_expired(*entry)) with_removes_.push_back(Change::remove(change.key));
    }
    if (!with_removes_.empty()) {
      with_removes_.insert(with_removes_.end(), changes.begin(), changes.end());
      changes = with_removes_;
    }
  }
  TRY(write_record(table, state, changes, note, epoch));
  return state.version;
}

Result<void> StoreImpl::write_record(TableId id, TableState& state, std::span<const Change> changes, Bytes note,
                                     std::uint64_t epoch) {
  const std::size_t size = core::record_size(changes, note, epoch);
  if (size > kMaxRecordSize || changes.size() > core::kMaxChanges) [[unlikely]]
    return base::fail(Code::invalid, "a record of ", size, " bytes; the limit is ", kMaxRecordSize);
  if (!log_.has_room(size)) [[unlikely]] {
    settle();
    help_before(size);
  }
  auto room = log_.room(size);
  if (!room) [[unlikely]]
    return std::move(room).error();
  char* const to = *room;
  const Position position = log_.position();
  const Version version = state.version + 1;
  // The index's memory is fetched while the record is written.
  std::uint64_t hashes[kAhead];
  const std::size_t ahead = std::min(changes.size(), kAhead);
  for (std::size_t i = 0; i < ahead; i++) {
    hashes[i] = core::Table::hash(changes[i].key);
    state.table.prefetch_bucket(hashes[i]);
  }
  core::RecordFields fields;
  fields.table = id;
  fields.version = version;
  fields.epoch = epoch;
  fields.note = note;
  fields.changes = changes;
  core::write_record(to, size, fields, position, log_.durable());
  if (!changes.empty()) {
    settle();
    for (std::size_t i = 0; i < ahead; i++) state.table.prefetch_entry(hashes[i]);
  }
  core::seal_record(to, size, log_.salt(), log_.offset());
  log_.commit(size);
  records_++;

  state.version = version;
  state.epoch = epoch;
  if (!state.unsaved_from) state.begin_unsaved(position);
  if (!state.changed_since) state.changed_since = position;

  // From the record's copy: the caller's views may lie in the very value that changes.
  const char* at = to + core::record_head_size(note, epoch);
  for (std::size_t i = 0; i < changes.size(); i++)
    at += take_change(state.table, at, i < kAhead ? hashes[i] : core::Table::hash(changes[i].key), version);
  return {};
}

// Makes the change that lies at `from` as a record has it. Returns its size there.
std::size_t StoreImpl::take_change(core::Table& table, const char* from, std::uint64_t hash, Version version) {
  const core::PlacedChange change(from);
  switch (change.kind) {
    case Change::Kind::insert: table.put(hash, change.key, change.value, change.expires_ms, version); break;
    case Change::Kind::append: table.append(hash, change.key, change.value, change.expires_ms, version); break;
    case Change::Kind::remove: table.erase(hash, change.key); break;
  }
  return change.size;
}

// A change alone waits, in the record that was just written of it, while others follow: first for its bucket, then for its
// entry. So the memory of several changes is on its way at once, though each came in a call of its own. Its checksum waits
// too: to read again what was written just now, in pieces of other sizes, costs the processor more than the sum itself.
void StoreImpl::defer(const Deferred& one) {
  if (deferred_end_ - deferred_begin_ == kAhead) settle_one();
  deferred_[deferred_end_++ % kAhead] = one;
  if (deferred_end_ - deferred_begin_ > kAhead / 2) {
    const Deferred& next = deferred_[(deferred_end_ - kAhead / 2 - 1) % kAhead];
    next.state->table.prefetch_entry(next.hash, next.wanted());
  }
}

void StoreImpl::settle_one() const {
  const Deferred& one = deferred_[deferred_begin_++ % kAhead];
  core::seal_record(one.record, one.size, log_.salt(), log_.offset_of(one.record));
  take_change(one.state->table, one.record + one.head, one.hash, one.version);
}

void StoreImpl::settle_all() const {
  for (std::size_t i = deferred_begin_; i < deferred_end_; i++)
    deferred_[i % kAhead].state->table.prefetch_entry(deferred_[i % kAhead].hash, deferred_[i % kAhead].wanted());
  while (deferred_begin_ < deferred_end_) settle_one();
  deferred_begin_ = deferred_end_ = 0;
}

Result<void> StoreImpl::rewind(TableId table, Version to, std::uint64_t epoch, std::span<const Restored> restored) {
  if (options_.read_only) return base::fail(Code::invalid, folder_, ": the store was opened for reading only");
  settle();
  TableState& state = tables_.get(table, arena_, cold_.get());
  const auto number = static_cast<std::uint32_t>(table);
  if (to > state.version || epoch > state.epoch)
    return base::fail(Code::invalid, "table ", number, " of version ", state.version, " and epoch ", state.epoch,
                      " cannot be taken back to version ", to, " and epoch ", epoch);
  if (restored.size() > core::kMaxChanges)
    return base::fail(Code::invalid, restored.size(), " keys to restore in one record; the limit is ", core::kMaxChanges);
  std::vector<std::string> entries;
  entries.reserve(restored.size());
  for (const Restored& one : restored) {
    if (one.key.empty() || one.key.size() > options_.max_key_size)
      return base::fail(Code::invalid, "a key of ", one.key.size(), " bytes; keys have 1 to ", options_.max_key_size);
    if (one.present && (one.version > to || one.fragment_ends.empty() || one.fragment_ends.back() != one.value.size()))
      return base::fail(Code::invalid, "a key of version ", one.version, " and ", one.fragment_ends.size(),
                        " fragments cannot be restored in version ", to);
    entries.push_back(one.present ? core::encode_restored(one) : std::string());
  }
  std::vector<Change> changes;
  for (std::size_t i = 0; i < restored.size(); i++)
    changes.push_back({restored[i].present ? core::kRestore : Change::Kind::remove, restored[i].key, entries[i]});
  const std::size_t size = core::record_size(changes, {}, epoch);
  if (size > kMaxRecordSize)
    return base::fail(Code::invalid, "a record of ", size, " bytes; the limit is ", kMaxRecordSize);
  help_before(size);
  TRY_LET(place, log_.room(size));
  core::RecordFields fields;
  fields.type = core::RecordType::rewind;
  fields.table = table;
  fields.version = to;
  fields.epoch = epoch;
  fields.changes = changes;
  const Position position = log_.position();
  core::encode_record(place, size, fields, log_.salt(), log_.offset(), position, log_.durable());
  log_.commit(size);
  records_++;
  const std::size_t head = core::record_head_size({}, epoch), exact = base::load<std::uint32_t>(place + 8);
  CHECK(core::replay_rewind(state.table, Bytes(place + head, exact - head), changes.size(), to), "rewind(): a record of our own");
  take_back(state, to, epoch, position);
  if (!state.changed_since) state.changed_since = position;
  return {};
}

// After the keys are restored; `position`: the rewind record's.
void StoreImpl::take_back(TableState& state, Version to, std::uint64_t epoch, Position position) {
  state.version = to;
  state.epoch = epoch;
  if (!state.unsaved_from) state.begin_unsaved(position);
  // The same versions come again: whoever reads records in their order begins after this one, or not at all.
  state.from = position;
  tables_.reborn(state);
}

Result<void> StoreImpl::drop(TableId table) {
  if (options_.read_only) return base::fail(Code::invalid, folder_, ": the store was opened for reading only");
  settle();
  TableState* const state = tables_.find(table);
  if (state == nullptr) return {};
  if ((checkpoint_ != nullptr && checkpoint_table_ == table) || state->awaits_name) (void)wait_for_background().has_value();
  const std::size_t size = core::record_size({}, {}, 0);
  TRY_LET(to, log_.room(size));
  core::RecordFields fields;
  fields.type = core::RecordType::drop;
  fields.table = table;
  fields.version = state->version + 1;
  const Position position = log_.position();
  core::encode_record(to, size, fields, log_.salt(), log_.offset(), position, log_.durable());
  log_.commit(size);
  forget_checkpoint(table);
  std::erase_if(doomed_, [&](const Doomed& one) { return one.table == table; });
  if (state->checkpoint_bytes > 0) doomed_.push_back({table, position, log_.position()});
  tables_.erase(table);
  extent_until_ = 0;
  return {};
}

// --- snapshots ---

Result<std::unique_ptr<Export>> StoreImpl::begin_export(TableId table) {
  if (options_.read_only) return base::fail(Code::invalid, folder_, ": the store was opened for reading only");
  settle();
  (void)birth_of(table);  // an absent table goes out as an empty one
  const std::string attachment = options_.companion == nullptr ? std::string() : options_.companion->attachment(table);
  return std::unique_ptr<Export>(new core::TableExport(*this, *this, table, attachment));
}

Result<std::unique_ptr<Import>> StoreImpl::begin_import(TableId table) {
  if (options_.read_only) return base::fail(Code::invalid, folder_, ": the store was opened for reading only");
  settle();
  return std::unique_ptr<Import>(new core::TableImport(*this, table));
}

Result<std::unique_ptr<LogTail>> StoreImpl::begin_tail(TableId table, Version after) {
  if (options_.read_only) return base::fail(Code::invalid, folder_, ": the store was opened for reading only");
  settle();
  const TableState& state = tables_.get(table, arena_, cold_.get());
  if (after > state.version)
    return base::fail(Code::conflict, "table ", static_cast<std::uint32_t>(table), " has version ", state.version,
                      ", asked for what follows ", after);
  const Position oldest = std::max({state.from.value_or(log_.position()), log_.begin(), log_.trimmed_to()});
  const Position from = after == state.version ? log_.position() : oldest;
  return std::unique_ptr<LogTail>(new core::TableTail(*this, *this, table, after, from));
}

// The imported table's checkpoint takes the place of the old one's by one rename; from its position on there is no record of
// the table yet, and those before are then of no interest.
Result<bool> StoreImpl::install(TableId id, std::unique_ptr<core::Shadow>& shadow, std::unique_ptr<core::Installation>& installation,
                                const core::Imported& imported, std::size_t bytes, bool all) {
  settle();
  if (log_.failed()) return log_.failure();
  const TableState* const old = tables_.find(id);
  const core::Installation::Before before{old == nullptr ? 0 : old->birth, old == nullptr ? 0 : old->version};
  if (installation != nullptr && installation->before() != before) {
    installation.reset();
    all = true;
  }
  Companion* const companion = options_.companion;
  if (installation == nullptr) {
    std::string attachment = imported.attachment;
    if (companion != nullptr) {
      TRY_LET(known, attachment_of(id, imported));
      attachment = std::move(known);
    }
    const core::CheckpointHeader header{
        .store = id_, .table = id, .version = imported.version, .epoch = imported.epoch, .position = log_.position()};
    TRY_LET(begun, core::Installation::begin(files_, folder_, log_, header, attachment, before, ++installations_));
    installation = std::move(begun);
  }
  TRY_LET(written, installation->go_on(shadow->table(), cold_.get(), bytes, all));
  if (!written) return false;
  // A checkpoint of the old table must not get the name after this one. (A failing one is not this call's matter.)
  if (background_.running() && ((checkpoint_ != nullptr && checkpoint_table_ == id) || (old != nullptr && old->awaits_name))) {
    if (all) {
      (void)wait_for_background().has_value();
    } else {
      auto outcome = background_.poll();
      if (!outcome) return false;
      (void)take_background(*std::move(outcome)).has_value();
    }
    if (log_.failed()) return log_.failure();
  }
  forget_checkpoint(id);
  const std::string attachment = companion == nullptr ? std::string() : companion->attachment(id);
  if (companion != nullptr) {
    if (auto told = companion->restore(id, installation->attachment()); !told) {
      TRY(companion->restore(id, attachment));
      return std::move(told).error();
    }
  }
  if (auto named = installation->give_name(); !named) {
    // Which of the two tables the next open will find is not known now: then nothing may be written for either.
    if (named.code() != Code::no_space) log_.fail_with(named.error());
    if (companion != nullptr) TRY(companion->restore(id, attachment));
    return std::move(named).error();
  }
  auto state = static_cast<HiddenTable&>(*shadow).take();
  state->version = imported.version;
  state->epoch = imported.epoch;
  state->checkpoint_bytes = installation->size();
  state->from = log_.position();
  tables_.put(id, std::move(state));
  extent_until_ = 0;
  std::erase_if(doomed_, [&](const Doomed& one) { return one.table == id; });
  trim_due_ = true;
  return true;
}

// The embedder's part of what comes in, as its checkpoint will have it.
Result<std::string> StoreImpl::attachment_of(TableId id, const core::Imported& imported) {
  Companion& companion = *options_.companion;
  const std::string before = companion.attachment(id);
  const auto tell = [&]() -> Result<void> {
    TRY(companion.restore(id, imported.attachment));
    for (const auto& note : imported.notes) TRY(companion.replay(id, note.version, note.epoch, note.note));
    return {};
  };
  auto told = tell();
  std::string attachment = told ? companion.attachment(id) : std::string();
  TRY(companion.restore(id, before));
  if (!told) return std::move(told).error();
  return attachment;
}

// --- reading ---

ScanPage StoreImpl::scan(TableId table, std::uint64_t cursor, std::size_t limit, Bytes prefix) const {
  settle();
  ScanPage page;
  page.cursor = cursor;
  const TableState* const state = tables_.find(table);
  if (state == nullptr) {
    page.cursor = 0;
    return page;
  }
  // A page may come back with few keys, or none, when the prefix is rare: the caller's turn to breathe.
  constexpr std::size_t kVisitedAtMost = 16'384;
  std::size_t visited = 0;
  do {
    page.cursor = state->table.walk(page.cursor, std::max<std::size_t>(limit, 1) - page.entries.size(), [&](const Entry& entry) {
      visited++;
      if (is_expired(entry) || !entry.key().starts_with(prefix)) return;
      page.entries.push_back({std::string(entry.key()), entry.version, entry.size()});
    });
  } while (page.cursor != 0 && page.entries.size() < limit && visited < kVisitedAtMost);
  return page;
}

Statistics StoreImpl::statistics() const {
  settle();
  Statistics s;
  s.memory_bytes = arena_.reserved();
  tables_.each([&](TableId, const TableState& state) {
    if (state.version > 0) s.tables++;
    s.keys += state.table.count();
    s.live_bytes += state.table.live_bytes();
    s.memory_bytes += sizeof(TableState) + state.table.index_bytes() + state.table.long_bytes();
    s.checkpoint_bytes += state.checkpoint_bytes;
  });
  s.used_bytes = used_memory();
  if (cold_ != nullptr) {
    s.cold_bytes = cold_->live_bytes();
    s.cold_file_bytes = cold_->file_bytes();
    if (fruitless_rounds_ >= 2 && s.used_bytes > options_.memory_limit) s.over_limit_bytes = s.used_bytes - options_.memory_limit;
  }
  s.log_bytes = log_.bytes();
  s.log_limit = std::max(log_limit_, log_most(0));
  s.kept_bytes = log_.kept_bytes();
  s.reused_segments = log_.reused_segments();
  s.segments = log_.segment_count();
  s.records = records_;
  s.flushes = log_.flushes();
  s.syncs = log_.syncs();
  s.checkpoints = checkpoints_;
  s.recovered_records = recovered_records_;
  s.recovered_bytes = recovered_bytes_;
  s.torn_bytes_cut = torn_bytes_;
  s.evacuation = evacuation_;
  s.checkpointing = checkpointing_;
  s.log_keeping = log_keeping_;
  s.cooling = cooling_;
  s.helping = helping_;
  s.maintenance_failures = failures_;
  s.last_failure = log_.failed() ? log_.failure().message : last_failure_;
  return s;
}

// --- housekeeping ---

Position StoreImpl::needed_from() const {
  Position needed = log_.position();
  tables_.each([&](TableId, const TableState& state) {
    if (state.unsaved_from) needed = std::min(needed, *state.unsaved_from);
  });
  for (const Doomed& one : doomed_) needed = std::min(needed, one.position);
  if (!held_.empty()) needed = std::min(needed, *held_.begin());
  return needed;
}

std::uint64_t StoreImpl::log_bound() const {
  const double most = options_.log_slack * static_cast<double>(extent().live_bytes);
  return std::max(options_.log_floor, most < 9e18 ? static_cast<std::uint64_t>(most) : UINT64_MAX);
}

bool StoreImpl::log_is_long() {
  if (starved_ && log_.segment_count() >= 2) return true;
  if (log_.segment_count() < 4 || log_.position() < short_until_) return false;
  if (log_.position() - log_.begin() > log_bound()) return true;
  // Asking every table is not for every round: once short, the log is that for a while.
  constexpr std::uint64_t kWhile = std::uint64_t{64} << 10;
  short_until_ = log_.position() + std::min(kWhile, options_.segment_size / 4);
  return false;
}

Result<void> StoreImpl::begin_checkpoint(TableId table) {
  TableState& state = *tables_.find(table);
  const core::CheckpointHeader header{
      .store = id_, .table = table, .version = state.version, .epoch = state.epoch, .position = log_.position()};
  const std::string attachment = options_.companion == nullptr ? std::string() : options_.companion->attachment(table);
  TRY_LET(writer, core::CheckpointWriter::begin(files_, path_of(core::checkpoint_name(table)), header, attachment));
  checkpoint_ = std::move(writer);
  checkpoint_table_ = table;
  taken_ += kCostOfCheckpoint;
  taken_whole_ = written_whole_ = false;
  state.changed_since.reset();
  return {};
}

// One that is being written, or is written: it comes to nothing. Not while the background is at it.
void StoreImpl::forget_checkpoint(TableId table) {
  if (checkpoint_ != nullptr && checkpoint_table_ == table) checkpoint_.reset();
  std::erase_if(written_, [&](const Written& one) { return one.table == table; });
  if (TableState* const state = tables_.find(table)) state->awaits_name = false;
}

// Takes some more of the checkpoint, and has it written, in the background, as soon as there is a slice of it; when that was
// all, its end too.
Result<void> StoreImpl::continue_checkpoint(std::size_t bytes) {
  const Timed timed(checkpointing_);
  TableState& state = *tables_.find(checkpoint_table_);
  if (!taken_whole_ && checkpoint_->waiting() < kSlicesWaiting * std::max(bytes, options_.maintain_slice)) {
    const std::uint64_t before = checkpoint_->taken();
    auto taken = checkpoint_->take_some(state.table, cold_.get(), bytes);
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
  const core::CheckpointEnd end{.entries = checkpoint_->entries(), .version = state.version, .position = log_.position()};
  background_.start([this, all = taken_whole_, end]() -> Result<void> {
    TRY(checkpoint_->write_taken());
    return all ? checkpoint_->write_end(end) : Result<void>{};
  });
  if (auto outcome = background_.poll()) TRY(take_background(*std::move(outcome)));
  return {};
}

// A checkpoint's entries may be as new as the log's last record, so the log is synced before the checkpoint has its name.
Result<void> StoreImpl::start_sync(bool with_checkpoints) {
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

Result<void> StoreImpl::take_background(Result<void> outcome) {
  if (background_is_ == Work::slice) {
    if (outcome && written_whole_) {
      tables_.find(checkpoint_table_)->awaits_name = true;
      written_.push_back({checkpoint_table_, std::move(checkpoint_)});
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

Result<void> StoreImpl::wait_for_background() {
  if (auto outcome = background_.wait()) return take_background(*std::move(outcome));
  return {};
}

Result<bool> StoreImpl::remove_doomed() {
  if (doomed_.empty()) return false;
  const Doomed one = doomed_.front();
  if (log_.durable() < one.durable_at) return false;  // once it is, or with the next checkpoint
  TRY_LET(there, files_.exists(path_of(core::checkpoint_name(one.table))));
  if (there) {
    TRY(files_.remove(path_of(core::checkpoint_name(one.table))));
    TRY(files_.sync_folder(folder_));
  }
  doomed_.erase(doomed_.begin());
  trim_due_ = true;
  return !doomed_.empty();
}

// Moves some entries when the arena wastes too much. Returns whether there is more to do.
bool StoreImpl::evacuate_some() {
  if (!arena_.evacuating() && (hidden_ > 0 || !arena_.wants_evacuation())) return false;
  const Timed timed(evacuation_);
  if (!arena_.evacuating()) {
    arena_.begin_evacuation();
    tables_.each([&](TableId id, const TableState&) { evacuating_.push_back(id); });
    evacuation_cursor_ = 0;
  }
  constexpr std::size_t kEntries = 400;  // moved in a step
  while (!evacuating_.empty()) {
    if (TableState* const state = tables_.find(evacuating_.back())) {
      evacuation_cursor_ = state->table.evacuate(evacuation_cursor_, kEntries);
      if (evacuation_cursor_ != 0) return true;
    }
    evacuating_.pop_back();
    evacuation_cursor_ = 0;
    if (!evacuating_.empty()) return true;
  }
  arena_.end_evacuation();
  return false;
}

// One piece of work, the most urgent. Returns whether there is more that need not wait.
Result<bool> StoreImpl::step() {
  // Without room for another segment the rest is all the more urgent: it is what makes room.
  auto prepared = log_.prepare();
  starved_ = !prepared && prepared.code() == Code::no_space;
  TRY_LET(more, compact_some());
  // While a checkpoint is on its way to make room, the want of it is no failure that calls for a pause.
  if (!more && !(starved_ && (checkpoint_ != nullptr || background_.running()))) TRY(prepared);
  return more;
}

Result<bool> StoreImpl::compact_some() {
  if (evacuate_some()) return true;
  if (cold_ != nullptr) {
    const Timed timed(cooling_);
    TRY_LET(more, empty_cold_file());
    if (more) return true;
  }
  return shorten_log(options_.maintain_slice);
}

// The same of what makes the log shorter. No entry is moved. `slice`: bytes of a checkpoint that are taken.
Result<bool> StoreImpl::shorten_log(std::size_t slice) {
  if (background_.running()) {
    auto outcome = background_.poll();
    if (!outcome) {
      if (background_is_ == Work::slice) TRY(continue_checkpoint(slice));
      return false;
    }
    const bool was_slice = background_is_ == Work::slice;
    TRY(take_background(*std::move(outcome)));
    if (!was_slice) return true;
  }
  if (checkpoint_ != nullptr) {
    log_.expect_sync();
    TRY(continue_checkpoint(slice));
    return !background_.running();
  }
  const Timed timed(log_keeping_);
  if (log_.wants_sync_for_trim()) {
    TRY(start_sync(false));
    return !background_.running();
  }
  TRY_LET(more_trimmed, log_.drop_trimmed(true));
  if (more_trimmed) return true;
  TRY_LET(more_doomed, remove_doomed());
  if (more_doomed) return true;
  // What is needed changes with checkpoints and drops, what can go with each new segment.
  if (trim_due_ || segments_seen_ != log_.segment_count()) {
    trim_due_ = true;  // still, should this fail
    TRY_LET(trimmed, log_.trim(needed_from()));
    trim_due_ = false;
    segments_seen_ = log_.segment_count();
    if (trimmed) return true;
  }
  if (written_.empty() && !log_is_long()) return false;
  if (const auto table = next_to_save()) {
    TRY(begin_checkpoint(*table));
    return true;
  }
  if (written_.empty()) return false;
  naming_due_ = false;
  TRY(start_sync(true));
  return !background_.running();
}

// The table that holds on to the oldest record; but nothing when those that are written should rather be named now.
std::optional<TableId> StoreImpl::next_to_save() const {
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
bool StoreImpl::enough_written() const {
  std::uint64_t bytes = 0;
  for (const Written& one : written_) bytes += one.writer->size();
  return written_.size() >= kNamedTogether || bytes >= kTogetherBytes || naming_due_ || starved_ ||
         files_.free_bytes(folder_) < 4 * kTogetherBytes;
}

// Sends some values to the disk that were not used since the hand last came by; or, with `empty`, copies some out of that
// file. Returns how many bytes went; 0 with `empty` when the hand has been everywhere.
Result<std::uint64_t> StoreImpl::cool_step(std::optional<std::uint32_t> empty) {
  constexpr std::size_t kEntries = 2000;  // looked at, in all tables of a step
  Hand& hand = empty ? emptying_hand_ : hand_;
  std::uint64_t gone = 0;
  if (hand.table == 0 && hand.cursor == 0) {
    table_ids_.clear();
    tables_.each([this](TableId id, const TableState&) { table_ids_.push_back(id); });
  }
  for (std::size_t tables = 0; hand.table < table_ids_.size() && tables < 64 && gone == 0; tables++) {
    if (TableState* const state = tables_.find(table_ids_[hand.table])) {
      TRY_LET(cooled, state->table.cool(hand.cursor, kEntries, options_.maintain_slice, empty));
      if (cooled.unread) last_failure_ = cooled.unread->message;
      gone += cooled.bytes;
      hand.cursor = cooled.cursor;
      if (hand.cursor != 0) break;
    }
    hand.table++;
  }
  if (!empty) round_gone_ += gone;
  if (hand.table >= table_ids_.size()) {
    hand = {};
    if (empty) {
      emptying_.reset();
    } else {
      const std::uint64_t used = used_memory();
      fruitless_rounds_ = round_gone_ < used / 16 ? fruitless_rounds_ + 1 : 0;
      round_gone_ = 0;
      if (fruitless_rounds_ >= 2) quiet_until_ = used + used / 8;
    }
  }
  return gone;
}

Result<void> StoreImpl::warm_wanted() {
  constexpr std::uint64_t kMost = std::uint64_t{64} << 10;  // bytes of a value that comes back whole
  std::uint64_t came = 0;
  while (!wanted_.empty() && came < options_.maintain_slice) {
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
Result<void> StoreImpl::keep_limit(std::uint64_t at_least) {
  for (std::uint64_t gone = 0; over_limit() && gone <= at_least;) {
    TRY_LET(some, cool_step({}));
    gone += some;
    if (some == 0 && at_least < options_.maintain_slice) break;  // looked at enough for once
  }
  return {};
}

// Returns whether there is more to do.
Result<bool> StoreImpl::empty_cold_file() {
  if (!emptying_) {
    std::uint32_t file = 0;
    if (!cold_->wants_emptying(file)) return false;
    emptying_ = file;
    emptying_hand_ = {};
  }
  TRY(cool_step(emptying_));
  return emptying_.has_value();
}

Result<bool> StoreImpl::maintain(base::Duration budget) {
  if (options_.read_only || log_.failed()) return false;
  settle();
  look_whether_near();
  if (cold_ != nullptr && rest_ == 0) {
    const auto keep = [this]() -> Result<void> {
      const Timed timed(cooling_);
      TRY(warm_wanted());
      const std::uint64_t used = used_memory();
      TRY(keep_limit(used > used_before_ ? (used - used_before_) * 2 : 0));
      return {};
    };
    auto kept = keep();
    used_before_ = used_memory();
    if (!kept) {
      failures_++;
      last_failure_ = kept.error().message;
    }
  }
  if (rest_ > 0) {
    rest_--;
    return false;
  }
  const auto end = std::chrono::steady_clock::now() + budget;
  constexpr int kStepsStarved = 16;  // at least: while writes are refused for want of room, nothing is more urgent
  for (int steps = 1;; steps++) {
    auto more = step();
    if (!more) {
      note_failure(more.error());
      return more;
    }
    next_rest_ = 1;
    if (!*more) return more;
    if (std::chrono::steady_clock::now() >= end && !(starved_ && steps < kStepsStarved)) return more;
  }
}

// A full disk is not tried again at every call: the pauses double.
void StoreImpl::note_failure(const base::Error& error) {
  failures_++;
  last_failure_ = error.message;
  naming_due_ = true;
  if (error.code == Code::no_space) (void)log_.let_go_kept().has_value();
  rest_ = next_rest_;
  next_rest_ = std::min<std::uint64_t>(next_rest_ * 2, 1024);
}

// --- the log's bound ---

// Housekeeping keeps the log no longer than this by itself, as far as it is called and the disk keeps up.
std::uint64_t StoreImpl::log_wanted(std::size_t record_size) const {
  return std::max({log_bound(), options_.log_per_table * extent().tables, 4 * log_.largest_segment(record_size)});
}

// And this is the most it may be, whatever the speed of who writes.
std::uint64_t StoreImpl::log_most(std::size_t record_size) const {
  const std::uint64_t wanted = log_wanted(record_size);
  return wanted > UINT64_MAX / 4 ? UINT64_MAX : 2 * (wanted + log_.largest_segment(record_size));
}

// Asking every table is not for every record: what they said is good while a hundredth of it is written.
const core::Extent& StoreImpl::extent() const {
  if (log_.position() >= extent_until_) {
    extent_ = extent_of(tables_);
    extent_until_ = log_.position() + std::clamp<std::uint64_t>(extent_.live_bytes / 128, 1 << 10, 1 << 20);
  }
  return extent_;
}

// Before a record is written. While the log is longer than wanted by more than a quarter, who writes takes checkpoints: for each
// byte as many as let all tables be taken twice before the log is as long as it may be, a slice at a time. When these are taken
// and the disk has not got them yet, it is the disk's pace that counts: from kSlowFrom of the way on who writes waits for it,
// for each byte the longer the nearer the end is, in pieces of about 20 us so that none waits long; at the end, until there is room.
void StoreImpl::help_before(std::size_t record_size) {
  const Position position = log_.position();
  if (position + record_size < help_again_ || log_.failed()) return;
  const std::uint64_t wanted = log_wanted(record_size), largest = log_.largest_segment(record_size), most = log_most(record_size);
  const std::uint64_t written = position - helped_at_;
  helped_at_ = position;
  // When tables become small, the log cannot at once: it has to by as much as is written.
  log_limit_ = std::max(most, log_limit_ - std::min(log_limit_, written));
  std::uint64_t step = std::clamp<std::uint64_t>(wanted / 256, 1 << 10, 8 << 10);
  const auto ask_after = [&](std::uint64_t bytes) {
    help_again_ = position + record_size + bytes;
    log_.ask_at(help_again_);
    if (log_.bytes_ahead(record_size) + record_size + bytes + log_.kept_bytes() > log_limit_) (void)log_.let_go_kept(true).has_value();
  };
  const std::uint64_t ahead = log_.bytes_ahead(record_size) + record_size + step;
  const std::uint64_t taken = taken_ - taken_before_;
  taken_before_ = taken_;
  const bool long_log = most != UINT64_MAX && ahead > wanted + 2 * largest + wanted / 4;
  // What exports and tails hold no checkpoint lets go, nor one that has failed just now.
  const bool in_vain = long_log && (rest_ > 0 || (!held_.empty() && needed_from() == *held_.begin()));
  if (!long_log || in_vain) {
    constexpr std::uint64_t kFar = std::uint64_t{1} << 20;
    owed_ = 0;
    owed_time_ = {};
    if (rest_ > 0 && long_log) rest_--;
    const std::uint64_t far =
        long_log ? step : most == UINT64_MAX ? kFar : std::clamp((wanted + 2 * largest + wanted / 4 - ahead) / 4, step, kFar);
    if (in_vain) log_limit_ = std::max(log_limit_, ahead);
    return ask_after(far);
  }
  const double work = static_cast<double>(extent().live_bytes + kCostOfCheckpoint * extent().tables);
  const auto share = static_cast<std::uint64_t>(static_cast<double>(written) * 2 * work / static_cast<double>(wanted)) + 1;
  // What cannot be taken because a sync is under way is not made good in one burst.
  owed_ = std::min(owed_ + share - std::min(owed_ + share, taken), 8 * (share + options_.maintain_slice));
  constexpr double kSlowFrom = 0.7;
  constexpr Nanoseconds kPerByte(40), kMost(10e6);  // just before the end; at once
  const double way = static_cast<double>(ahead - wanted - 2 * largest) / static_cast<double>(wanted);
  const double nearness = std::clamp((way - kSlowFrom) / (1 - kSlowFrom), 0.0, 1.0);
  owed_time_ = nearness == 0 ? owed_time_.zero()
                             : std::min<Nanoseconds>(
                                   owed_time_ + kPerByte * (nearness * nearness * static_cast<double>(written)), kMost);
  step = static_cast<std::uint64_t>(std::clamp(kNap / kPerByte / (nearness * nearness + 1e-6), 512.0, static_cast<double>(step)));
  help(record_size, step, std::min<std::uint64_t>(2 * share, options_.maintain_slice));
  taken_before_ = taken_;
  log_limit_ = std::max(log_limit_, std::min(ahead, log_.bytes_ahead(record_size) + record_size + step));
  ask_after(step);
}

void StoreImpl::help(std::size_t record_size, std::uint64_t step, std::size_t slice) {
  const Timed timed(helping_);
  const std::uint64_t begun = taken_;
  for (;;) {
    const bool full = log_.bytes_ahead(record_size) + record_size + step > log_limit_;
    if (!full && (taken_ - begun >= slice || (owed_ == 0 && owed_time_ < kNap))) return;
    if (background_.running() && full) {
      background_.wait_until_done();
    } else if (background_.running() && background_is_ != Work::slice && owed_time_ >= kNap) {
      const auto before = std::chrono::steady_clock::now();
      const bool done = background_.wait_until_done(before + std::chrono::duration_cast<std::chrono::nanoseconds>(owed_time_));
      owed_time_ -= std::min<Nanoseconds>(owed_time_, std::chrono::steady_clock::now() - before);
      if (!done) return;
    }
    const std::uint64_t before = taken_;
    const auto more = shorten_log(slice);
    if (!more) return note_failure(more.error());
    next_rest_ = 1;
    owed_ -= std::min(owed_, taken_ - before);
    if (!*more && !(full && background_.running())) return;
  }
}

Result<void> StoreImpl::complete_checkpoint() {
  TRY(wait_for_background());
  while (checkpoint_ != nullptr) {
    TRY(continue_checkpoint(std::size_t{1} << 20));
    TRY(wait_for_background());
  }
  return {};
}

Result<void> StoreImpl::name_written() {
  if (written_.empty()) return {};
  TRY(start_sync(true));
  return wait_for_background();
}

Result<void> StoreImpl::compact() {
  if (options_.read_only) return base::fail(Code::invalid, folder_, ": the store was opened for reading only");
  if (log_.failed()) return log_.failure();
  settle();
  TRY(complete_checkpoint());
  TRY(name_written());
  std::vector<TableId> unsaved;
  tables_.each([&](TableId id, const TableState& state) {
    if (state.unsaved_from) unsaved.push_back(id);
  });
  for (const TableId table : unsaved) {
    TRY(begin_checkpoint(table));
    TRY(complete_checkpoint());
    if (enough_written()) TRY(name_written());
  }
  TRY(name_written());
  TRY(log_.let_go_kept());
  if (log_.dirty()) TRY(log_.sync());
  for (bool more = !doomed_.empty(); more;) {
    TRY_LET(again, remove_doomed());
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

// --- opening ---

Result<void> StoreImpl::load_checkpoint(const std::string& name, TableId table, Position& durable) {
  TableState& state = tables_.get(table, arena_, cold_.get());
  TRY_LET(read, core::read_checkpoint(
                    files_, path_of(name), id_, table,
                    [&](const core::CheckpointHeader&, Bytes attachment) -> Result<void> {
                      if (options_.companion == nullptr) return {};
                      return options_.companion->restore(table, attachment);
                    },
                    [&](std::span<const core::ReadEntry> entries) {
                      constexpr std::size_t kFar = 16;
                      for (std::size_t i = 0; i < entries.size(); i++) {
                        if (i + kFar < entries.size()) state.table.prefetch_bucket(entries[i + kFar].hash);
                        state.table.load(entries[i].hash, entries[i].entry);
                      }
                      if (over_limit()) keep_limit_while_opening();
                    }));
  state.version = read.header.version;
  state.epoch = read.header.epoch;
  state.checkpoint_bytes = read.size;
  state.from = read.header.position;
  durable = std::max(durable, read.end.position);
  loaded_[static_cast<std::uint32_t>(table)] = {read.header.position, read.end.version, read.header.version};
  recovered_bytes_ += read.size;
  return {};
}

Result<void> StoreImpl::replay(const core::Record& record, const Change* change, std::uint64_t hash,
                               const core::RecordPlace& place) {
  if (record.type == core::RecordType::mark || record.type == core::RecordType::trim) return {};
  const auto number = static_cast<std::uint32_t>(record.table);
  const auto loaded = loaded_.find(number);
  if (loaded != loaded_.end() && place.position < loaded->second.position) return {};
  if (record.type == core::RecordType::drop) {
    const TableState* const state = tables_.find(record.table);
    if (state != nullptr && state->checkpoint_bytes > 0) doomed_.push_back({record.table, place.position, place.position});
    if (loaded != loaded_.end()) loaded_.erase(loaded);
    gaps_.erase(number);
    tables_.erase(record.table);
    if (options_.companion != nullptr) TRY(options_.companion->restore(record.table, {}));
    return {};
  }
  TableState& state = tables_.get(record.table, arena_, cold_.get());
  if (record.type == core::RecordType::rewind) return replay_rewind(state, record, place);
  if (loaded != loaded_.end()) loaded->second.reached = std::max(loaded->second.reached, record.version);
  if (record.version != state.version + 1 && !gaps_.contains(number)) {
    gaps_.emplace(number, base::fail(Code::corrupt, place.path, " offset ", place.offset, ": table ", number, " version ",
                                     record.version, ", expected ", state.version + 1, ": records are missing before"));
  }
  TRY(replay_changes(state, record, change, hash, place));
  if (over_limit()) [[unlikely]]
    if (replayed_since_ += record.size; replayed_since_ > options_.maintain_slice) keep_limit_while_opening();
  state.version = record.version;
  state.epoch = record.epoch;
  if (!state.unsaved_from) state.begin_unsaved(place.position);
  if (options_.companion != nullptr)
    TRY(options_.companion->replay(record.table, record.version, record.epoch, record.note));
  return {};
}

Result<void> StoreImpl::replay_changes(TableState& state, const core::Record& record, const Change* change, std::uint64_t hash,
                                       const core::RecordPlace& place) {
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
Result<void> StoreImpl::replay_rewind(TableState& state, const core::Record& record, const core::RecordPlace& place) {
  const auto number = static_cast<std::uint32_t>(record.table);
  if (record.version > state.version)
    gaps_.emplace(number, base::fail(Code::corrupt, place.path, " offset ", place.offset, ": table ", number, " is taken back to version ",
                                     record.version, ", but has ", state.version, ": records are missing before"));
  if (!core::replay_rewind(state.table, record.changes, record.change_count, record.version))
    return base::fail(Code::corrupt, place.path, " offset ", place.offset, ": a record with malformed changes");
  take_back(state, record.version, record.epoch, place.position);
  if (options_.companion != nullptr) TRY(options_.companion->rewound(record.table, record.version));
  return {};
}

Result<void> StoreImpl::recover() {
  if (options_.max_key_size == 0 || options_.max_key_size > kMaxKeySize)
    return base::fail(Code::invalid, "max_key_size ", options_.max_key_size, "; it is 1 to ", kMaxKeySize);
  if (options_.max_value_size > kMaxValueSize)
    return base::fail(Code::invalid, "max_value_size ", options_.max_value_size, "; it is at most ", kMaxValueSize);
  if (!(options_.log_slack >= 1.0)) return base::fail(Code::invalid, "log_slack ", options_.log_slack, "; it is at least 1");
  TRY_LET(lock, core::begin_folder(files_, folder_, options_.create, options_.read_only));
  lock_ = std::move(lock);
  TRY_LET(names, files_.list(folder_));
  TRY_LET(about_bytes, core::read_file(files_, path_of(core::kStoreName)));
  TRY_LET(about, core::parse_store_file(about_bytes, path_of(core::kStoreName)));
  id_ = about.id;

  Position durable = 0;
  std::vector<std::string> leftovers;
  std::uint32_t last_cold = 0;
  for (const std::string& name : names) {
    std::uint32_t number = 0;
    if (!core::ColdValues::is_name(name, number)) continue;
    leftovers.push_back(name);
    last_cold = std::max(last_cold, number);
  }
  if (options_.memory_limit != 0 && !options_.read_only)
    cold_ = std::make_unique<core::ColdValues>(files_, folder_, id_, options_.segment_size, last_cold + 1, options_.map_cold_values);
  for (const std::string& name : names) {
    if (const auto table = core::checkpoint_table(name)) TRY(load_checkpoint(name, *table, durable));
    if (name.ends_with(".new") || core::is_kept_name(name)) leftovers.push_back(name);
  }
  struct Sink final : core::RecordSink {
    explicit Sink(StoreImpl& into) : store(into) {}
    void prepare(const core::Record& record, std::uint64_t hash) override {
      if (const TableState* const state = store.tables_.find(record.table)) state->table.prefetch_bucket(hash);
    }
    void approach(const core::Record& record, std::uint64_t hash) override {
      if (const TableState* const state = store.tables_.find(record.table)) state->table.prefetch_entry(hash);
    }
    Result<void> take(const core::Record& record, const Change* change, std::uint64_t hash, const core::RecordPlace& place) override {
      return store.replay(record, change, hash, place);
    }
    StoreImpl& store;
  } sink(*this);
  TRY_LET(scan, core::scan_log(files_, folder_, names, id_, durable, options_.read_only, sink));
  if (!gaps_.empty()) return gaps_.begin()->second;
  for (const auto& [number, loaded] : loaded_) {
    if (loaded.reached < loaded.end)
      return base::fail(Code::corrupt, path_of(core::checkpoint_name(TableId{number})), ": has changes up to version ", loaded.end,
                        ", but the log ends at version ", loaded.reached, " of the table");
  }
  loaded_.clear();
  recovered_records_ = scan.records;
  recovered_bytes_ += scan.bytes;
  torn_bytes_ = scan.torn_bytes;
  if (!options_.read_only) {
    if (torn_bytes_ > 0 && options_.companion != nullptr) TRY(options_.companion->torn());
    for (const std::string& name : leftovers) TRY(files_.remove(path_of(name)));
    TRY(core::mend_log(files_, folder_, scan));
  }
  log_.adopt(std::move(scan.state));
  extent_until_ = 0;
  helped_at_ = help_again_ = log_.position();
  log_limit_ = log_.bytes_ahead(0);
  log_.ask_at(help_again_);
  return {};
}

}  // namespace

Result<std::unique_ptr<Store>> Store::open(base::FileSystem& files, std::string folder, Options options) {
  while (folder.size() > 1 && folder.ends_with('/')) folder.pop_back();
  auto store = std::make_unique<StoreImpl>(files, std::move(folder), options);
  TRY(store->recover());
  return std::unique_ptr<Store>(std::move(store));
}

}  // namespace novoht

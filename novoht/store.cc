#include "novoht/store.h"

#include <algorithm>
#include <chrono>
#include <deque>

#include "novoht/core/checkpointing.h"
#include "novoht/core/deferred.h"
#include "novoht/core/evacuation.h"
#include "novoht/core/folder.h"
#include "novoht/core/memory_limit.h"
#include "novoht/core/opening.h"
#include "novoht/core/replay.h"
#include "novoht/core/snapshot.h"
#include "novoht/core/views.h"
#include "novoht/core/write_throttle.h"

namespace novoht {

using core::Entry;
using core::kAhead;
using core::Position;
using core::Tables;
using core::TableState;
using core::Timed;

namespace {

constexpr std::size_t kTogether = 32;  // keys whose memory is fetched in prefetch_all(), where nothing else is done meanwhile

class StoreImpl final : public Store, private core::SnapshotHost, private core::ImportHost {
 public:
  StoreImpl(base::FileSystem& files, std::string folder, Options options)
      : files_(files), folder_(std::move(folder)), options_(options), arena_(files.threads()),
        memory_(tables_, arena_, failures_, options_.memory_limit, options_.maintain_slice), evacuation_(tables_, arena_),
        log_(files, folder_, options_.segment_size, [this] { return checkpointing_.extent().live_bytes; },
             [this] { return checkpoint_room(tables_); }, [this] { return checkpointing_.log_bound(); }),
        deferred_(log_), checkpointing_(files, folder_, options_, tables_, log_, failures_),
        throttle_(options_, log_, checkpointing_, failures_) {}
  ~StoreImpl() override {
    settle();
    checkpointing_.close();
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
    memory_.note_use(table, hash, *entry);
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
        memory_.note_use(table, hashes[i], *entry);
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
  std::uint64_t used_memory() const override { return memory_.used(); }
  Statistics statistics() const override;

 private:
  // Before anything looks at a table's keys, and before the log's memory moves.
  void settle() const { deferred_.make_all(); }
  Result<void> may_write() const {
    if (options_.read_only) return base::fail(Code::invalid, folder_, ": the store was opened for reading only");
    return {};
  }
  bool is_expired(const Entry& entry) const { return entry.expires && entry.expires_ms() <= now_ms_; }
  std::string path_of(std::string_view name) const { return folder_ + "/" + std::string(name); }
  bool may_be_deferred(const TableState& state, const Change& change, std::uint64_t epoch) const;
  Version apply_deferred(TableId table, TableState& state, std::uint64_t hash, const Change& change, Bytes note,
                         std::uint64_t epoch, std::size_t size);
  Result<Version> apply_any(TableId table, std::span<const Change> changes, Bytes note, std::uint64_t epoch);
  Result<void> write_record(TableId table, TableState& state, std::span<const Change> changes, Bytes note, std::uint64_t epoch);
  Result<bool> step();

  // For snapshots.
  core::Log& log() override { return log_; }
  std::uint64_t store_id() const override { return id_; }
  void hold(Position position) override { checkpointing_.hold(position); }
  void let_go(Position position) override { checkpointing_.let_go(position); }
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
  std::uint64_t now_ms_ = 0;
  core::Arena arena_;  // before the tables that live in it
  std::unique_ptr<core::ColdValues> cold_;  // with a memory limit; before the tables too
  Tables tables_;
  core::Failures failures_;
  mutable core::MemoryLimit memory_;
  core::Evacuation evacuation_;
  core::Log log_;
  mutable core::DeferredChanges deferred_;
  core::Checkpointing checkpointing_;
  core::WriteThrottle throttle_;

  // The embedder's unfinished jobs. They may finish in any order: when n have, the n that were begun first hold.
  std::deque<core::Log::Syncing> syncing_;
  int hidden_ = 0;  // tables being imported
  std::uint64_t installations_ = 0;
  std::vector<Change> with_removes_;
  Statistics::Share cooling_;
  std::uint64_t records_ = 0, recovered_records_ = 0, recovered_bytes_ = 0, torn_bytes_ = 0;
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
  deferred_.add({&state, to, hash, version, static_cast<std::uint32_t>(size),
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
  TRY(may_write());
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
    throttle_.before_record(size);
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
    at += core::make_placed_change(state.table, at, i < kAhead ? hashes[i] : core::Table::hash(changes[i].key), version);
  return {};
}

Result<void> StoreImpl::rewind(TableId table, Version to, std::uint64_t epoch, std::span<const Restored> restored) {
  TRY(may_write());
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
    if (std::string& entry = entries.emplace_back(); one.present) core::append_restored(entry, one);
  }
  std::vector<Change> changes;
  for (std::size_t i = 0; i < restored.size(); i++)
    changes.push_back({restored[i].present ? core::kRestore : Change::Kind::remove, restored[i].key, entries[i]});
  const std::size_t size = core::record_size(changes, {}, epoch);
  if (size > kMaxRecordSize)
    return base::fail(Code::invalid, "a record of ", size, " bytes; the limit is ", kMaxRecordSize);
  throttle_.before_record(size);
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
  tables_.take_back(state, to, epoch, position);
  if (!state.changed_since) state.changed_since = position;
  return {};
}

Result<void> StoreImpl::drop(TableId table) {
  TRY(may_write());
  settle();
  TableState* const state = tables_.find(table);
  if (state == nullptr) return {};
  if (checkpointing_.is_making(table)) (void)checkpointing_.wait().has_value();
  const std::size_t size = core::record_size({}, {}, 0);
  TRY_LET(to, log_.room(size));
  core::RecordFields fields;
  fields.type = core::RecordType::drop;
  fields.table = table;
  fields.version = state->version + 1;
  const Position position = log_.position();
  core::encode_record(to, size, fields, log_.salt(), log_.offset(), position, log_.durable());
  log_.commit(size);
  checkpointing_.forget(table);
  checkpointing_.lives(table);
  if (state->checkpoint_bytes > 0) checkpointing_.dropped(table, position, log_.position());
  tables_.erase(table);
  checkpointing_.extent_has_changed();
  return {};
}

// --- snapshots ---

Result<std::unique_ptr<Export>> StoreImpl::begin_export(TableId table) {
  TRY(may_write());
  settle();
  (void)birth_of(table);  // an absent table goes out as an empty one
  const std::string attachment = options_.companion == nullptr ? std::string() : options_.companion->attachment(table);
  return std::unique_ptr<Export>(new core::TableExport(*this, *this, table, attachment));
}

Result<std::unique_ptr<Import>> StoreImpl::begin_import(TableId table) {
  TRY(may_write());
  settle();
  return std::unique_ptr<Import>(new core::TableImport(*this, table));
}

Result<std::unique_ptr<LogTail>> StoreImpl::begin_tail(TableId table, Version after) {
  TRY(may_write());
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
  if (checkpointing_.working() && checkpointing_.is_making(id)) {
    if (all) (void)checkpointing_.wait().has_value();
    else if (!checkpointing_.take_if_done()) return false;
    if (log_.failed()) return log_.failure();
  }
  checkpointing_.forget(id);
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
  checkpointing_.replaced(id);
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
  s.over_limit_bytes = memory_.exceeded_for_good();
  if (cold_ != nullptr) {
    s.cold_bytes = cold_->live_bytes();
    s.cold_file_bytes = cold_->file_bytes();
  }
  s.log_bytes = log_.bytes();
  s.log_limit = throttle_.limit();
  s.kept_bytes = log_.kept_bytes();
  s.reused_segments = log_.reused_segments();
  s.segments = log_.segment_count();
  s.records = records_;
  s.flushes = log_.flushes();
  s.syncs = log_.syncs();
  s.checkpoints = checkpointing_.checkpoints();
  s.recovered_records = recovered_records_;
  s.recovered_bytes = recovered_bytes_;
  s.torn_bytes_cut = torn_bytes_;
  s.evacuation = evacuation_.share();
  s.checkpointing = checkpointing_.taking_share();
  s.log_keeping = checkpointing_.log_share();
  s.cooling = cooling_;
  s.helping = throttle_.share();
  s.maintenance_failures = failures_.count();
  s.last_failure = log_.failed() ? log_.failure().message : failures_.last();
  return s;
}

// --- housekeeping ---

// One piece of work, the most urgent. Returns whether there is more that need not wait.
Result<bool> StoreImpl::step() {
  auto prepared = checkpointing_.prepare_segment();
  if (evacuation_.step(hidden_ == 0)) return true;
  if (cold_ != nullptr) {
    const Timed timed(cooling_);
    TRY_LET(more, memory_.empty_a_file());
    if (more) return true;
  }
  TRY_LET(more, checkpointing_.step(options_.maintain_slice));
  // While a checkpoint is on its way to make room, the want of it is no failure that calls for a pause.
  if (!more && !(checkpointing_.starved() && !checkpointing_.idle())) TRY(prepared);
  return more;
}

Result<bool> StoreImpl::maintain(base::Duration budget) {
  if (options_.read_only || log_.failed()) return false;
  settle();
  memory_.look_whether_near();
  if (cold_ != nullptr && !failures_.resting()) {
    const Timed timed(cooling_);
    if (auto kept = memory_.keep_up(); !kept) failures_.note(kept.error().message);
  }
  if (failures_.resting()) {
    failures_.let_one_pass();
    return false;
  }
  const auto end = std::chrono::steady_clock::now() + budget;
  constexpr int kStepsStarved = 16;  // at least: while writes are refused for want of room, nothing is more urgent
  for (int steps = 1;; steps++) {
    auto more = step();
    if (!more) {
      checkpointing_.note_failure(more.error());
      return more;
    }
    failures_.worked();
    if (!*more) return more;
    if (std::chrono::steady_clock::now() >= end && !(checkpointing_.starved() && steps < kStepsStarved)) return more;
  }
}

Result<void> StoreImpl::compact() {
  TRY(may_write());
  if (log_.failed()) return log_.failure();
  settle();
  return checkpointing_.compact();
}

// --- opening ---

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

  std::vector<std::string> leftovers;
  std::uint32_t last_cold = 0;
  for (const std::string& name : names) {
    std::uint32_t number = 0;
    if (core::ColdValues::is_name(name, number)) last_cold = std::max(last_cold, number);
    else if (!name.ends_with(".new") && !core::is_kept_name(name)) continue;
    leftovers.push_back(name);
  }
  if (options_.memory_limit != 0 && !options_.read_only) {
    cold_ = std::make_unique<core::ColdValues>(files_, folder_, id_, options_.segment_size, last_cold + 1, options_.map_cold_values);
    memory_.begin(*cold_);
  }
  checkpointing_.open(id_, cold_.get());
  core::Opening opening(files_, folder_, options_, id_, tables_, arena_, cold_.get(), memory_, checkpointing_);
  TRY_LET(scan, opening.run(names));
  recovered_records_ = scan.records;
  recovered_bytes_ = opening.checkpoint_bytes() + scan.bytes;
  torn_bytes_ = scan.torn_bytes;
  if (!options_.read_only) {
    if (torn_bytes_ > 0 && options_.companion != nullptr) TRY(options_.companion->torn());
    for (const std::string& name : leftovers) TRY(files_.remove(path_of(name)));
    TRY(core::mend_log(files_, folder_, scan));
  }
  log_.adopt(std::move(scan.state));
  checkpointing_.extent_has_changed();
  throttle_.begin();
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

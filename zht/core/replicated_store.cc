#include "zht/core/replicated_store.h"

#include <algorithm>

#include "novoht/base/check.h"

namespace zht::core {

using base::fail;
using novoht::Change;
using novoht::TableId;
using replication::Position;

namespace {

constexpr char kDamagedName[] = "DAMAGED", kUnsureName[] = "UNSURE";
constexpr std::size_t kMostUndoKeys = 60'000;  // of a partition: what one record restores
constexpr std::size_t kPieceSize = std::size_t{256} << 10;

std::uint32_t number_of(PartitionId partition) { return static_cast<std::uint32_t>(partition); }

// What a life leaves for the next one to judge it by.
struct Life {
  std::string boot;
  bool synced_before_shown = false, closed = false;
};
std::string encode(const Life& life) {
  std::string out;
  base::Writer writer(out);
  writer.u8(static_cast<std::uint8_t>((life.synced_before_shown ? 1 : 0) | (life.closed ? 2 : 0)));
  writer.str(life.boot);
  return out;
}
Life decode_life(Bytes bytes) {
  base::Reader reader(bytes);
  const std::uint8_t flags = reader.u8();
  return {std::string(reader.str()), (flags & 1) != 0, (flags & 2) != 0};
}

std::string encode_number(std::uint64_t number) {
  std::string out;
  base::Writer(out).u64(number);
  return out;
}
std::uint64_t decode_number(Bytes bytes) { return base::Reader(bytes).u64(); }

// Of the newest view that took this instance in.
constexpr char kJoined[] = "joined ";
std::string joined_key_of(PartitionId partition) { return kJoined + std::to_string(number_of(partition)); }

// A partition's: when its log was begun, and whether that was by a snapshot that has not come whole yet.
std::string key_of(PartitionId partition) { return "partition " + std::to_string(number_of(partition)); }
std::string encode_origin(std::uint64_t since, bool importing) {
  std::string out = encode_number(since);
  out.push_back(importing ? 1 : 0);
  return out;
}

// Pieces as the export gives them. The last one is kept, so that it can be said again.
class Snapshot final : public replication::SnapshotSource {
 public:
  Snapshot(novoht::Store& store, TableId table, std::unique_ptr<novoht::Export> from)
      : store_(store), table_(table), export_(std::move(from)), begun_(export_->begun()) {}

  Version begun() const override { return begun_; }
  std::optional<Position> at() const override { return last_ ? std::optional(at_) : std::nullopt; }

  Result<Piece> read(std::uint64_t index) override {
    if (index + 1 == next_) return Piece{piece_, last_};
    if (index != next_ || last_) return fail(Code::conflict, "piece ", index, " of a snapshot that goes on with ", next_);
    piece_.clear();
    do {  // an export hands out its parts one by one, and each piece costs a round trip
      TRY_LET(bytes, export_->next(kPieceSize - piece_.size()));
      piece_ += bytes;
      // The version that the snapshot leads to is the table's at the very moment when it is first known.
      if (at_.sequence == 0 && export_->version() != 0) at_ = {Epoch{store_.epoch(table_)}, export_->version()};
      last_ = export_->done();
    } while (!last_ && piece_.size() < kPieceSize);
    next_++;
    return Piece{piece_, last_};
  }

 private:
  novoht::Store& store_;
  const TableId table_;
  const std::unique_ptr<novoht::Export> export_;
  const Version begun_;
  std::string piece_;
  std::uint64_t next_ = 0;
  bool last_ = false;
  Position at_;
};

}  // namespace

ReplicatedStore::ReplicatedStore(base::FileSystem& files, std::string folder, Options options)
    : files_(files), folder_(std::move(folder)), options_(std::move(options)), results_(kSessionLife, options_.results_bytes),
      outdated_(options_.outdated) {}

ReplicatedStore::~ReplicatedStore() = default;

Result<std::unique_ptr<ReplicatedStore>> ReplicatedStore::open(base::FileSystem& files, std::string folder, Options options) {
  std::unique_ptr<ReplicatedStore> store(new ReplicatedStore(files, std::move(folder), std::move(options)));
  const auto open_store = [&]() -> Result<void> {
    novoht::Options settings = store->options_.store;
    settings.companion = store.get();
    TRY_LET(opened, novoht::Store::open(store->files_, store->folder_, settings));
    store->store_ = std::move(opened);
    return {};
  };
  if (!store->options_.clustered) {
    TRY(open_store());
    return store;
  }
  TRY_LET(half, store->files_.exists(store->folder_ + "/" + kDamagedName));
  if (half) TRY(store->put_aside());
  if (auto opened = open_store(); !opened) {
    if (opened.code() != Code::corrupt) return std::move(opened).error();
    store->opened_.damaged = true;
    store->opened_.damage = opened.error().message;
    store->results_ = ResultTable(kSessionLife, store->options_.results_bytes);
    TRY(store->put_aside());
    TRY(open_store());
  }
  TRY(store->begin_life());
  return store;
}

// Moves the files of a damaged store out of the way. Whoever finds the mark goes on with that: some of a store's files
// must never be taken for a store.
Result<void> ReplicatedStore::put_aside() {
  const std::string mark = folder_ + "/" + kDamagedName;
  TRY_LET(file, files_.open(mark, base::OpenMode::create));
  TRY(file->sync());
  TRY(files_.sync_folder(folder_));
  const std::string aside = folder_ + ".damaged-" + std::to_string(options_.incarnation);
  TRY(files_.make_folder(aside));
  TRY_LET(names, files_.list(folder_));
  for (const std::string& name : names)
    if (name != kDamagedName && name != "LOCK") TRY(files_.rename(folder_ + "/" + name, aside + "/" + name));
  TRY(files_.sync_folder(aside));
  TRY(files_.sync_folder(folder_));
  TRY(files_.remove(mark));
  return files_.sync_folder(folder_);
}

Result<void> ReplicatedStore::put_origin(std::string key, std::string value) {
  const Change change = Change::insert(key, value);
  TRY(store_->apply(kOrigins, {&change, 1}));
  return {};
}

std::optional<std::string> ReplicatedStore::get_origin(Bytes key) const {
  const auto found = store_->lookup(kOrigins, key);
  std::string value;
  if (!found || !found->read(0, found->size(), value)) return {};
  return value;
}

Result<void> ReplicatedStore::begin_life() {
  opened_.torn = store_->statistics().torn_bytes_cut > 0;
  TRY_LET(noted, files_.exists(folder_ + "/" + kUnsureName));
  if (const auto born = get_origin("born")) {
    born_ = decode_number(*born);
    if (const auto unsure = get_origin("unsure")) unsure_ = decode_number(*unsure);
    const auto last = get_origin("life");
    const Life life = last ? decode_life(*last) : Life{};
    const bool same_boot = !options_.boot.empty() && life.boot == options_.boot;
    opened_.sure = !opened_.torn && !noted && (same_boot || life.synced_before_shown || life.closed);
    if (!opened_.sure) {
      unsure_ = options_.incarnation;
      TRY(put_origin("unsure", encode_number(unsure_)));
    }
  } else {
    // New; or a lone node's, which has never promised anything to others.
    born_ = store_->tables().empty() ? options_.incarnation : 1;
    TRY(put_origin("born", encode_number(born_)));
  }
  std::vector<PartitionId> half;
  for (std::uint64_t cursor = 0;;) {
    const novoht::ScanPage page = store_->scan(kOrigins, cursor, 1000, "partition ");
    for (const novoht::ScanEntry& entry : page.entries) {
      const std::string value = get_origin(entry.key).value_or("");
      const auto number = static_cast<std::uint32_t>(std::strtoul(entry.key.c_str() + 10, nullptr, 10));
      if (value.size() != 9) return fail(Code::corrupt, folder_, ": origin of partition ", number, " of ", value.size(), " bytes");
      since_[number] = decode_number(value);
      if (value[8] != 0) half.push_back(PartitionId{number});
    }
    cursor = page.cursor;
    if (cursor == 0) break;
  }
  for (std::uint64_t cursor = 0;;) {
    const novoht::ScanPage page = store_->scan(kOrigins, cursor, 1000, kJoined);
    for (const novoht::ScanEntry& entry : page.entries) {
      const std::string value = get_origin(entry.key).value_or("");
      const auto number = static_cast<std::uint32_t>(std::strtoul(entry.key.c_str() + sizeof kJoined - 1, nullptr, 10));
      if (value.size() != 8) return fail(Code::corrupt, folder_, ": epoch of partition ", number, " of ", value.size(), " bytes");
      joined_[number] = Epoch{decode_number(value)};
    }
    cursor = page.cursor;
    if (cursor == 0) break;
  }
  // Half a snapshot is nothing.
  for (PartitionId partition : half) TRY(forget(partition, options_.incarnation));
  TRY(put_origin("life", encode(Life{options_.boot, options_.synced_before_shown, false})));
  TRY(store_->sync());
  return noted ? files_.remove(folder_ + "/" + kUnsureName) : Result<void>{};
}

Result<void> ReplicatedStore::close() {
  if (options_.clustered) {
    // The promise must not be on the disk before what it speaks of.
    TRY(store_->sync());
    TRY(put_origin("life", encode(Life{options_.boot, options_.synced_before_shown, true})));
  }
  return store_->sync();
}

std::vector<PartitionId> ReplicatedStore::partitions() const {
  std::vector<PartitionId> out;
  for (TableId table : store_->tables())
    if (table != kOrigins) out.push_back(static_cast<PartitionId>(table));
  return out;
}

// --- the store's companion: results of requests ---

Result<void> ReplicatedStore::restore(TableId table, Bytes attachment) {
  if (table == kOrigins) return {};
  return results_.decode(static_cast<PartitionId>(table), attachment);
}

Result<void> ReplicatedStore::replay(TableId table, Version version, std::uint64_t, Bytes bytes) {
  if (bytes.empty()) return {};  // housekeeping: nobody asked for it
  TRY_LET(note, decode_note(bytes, version));
  results_.record(static_cast<PartitionId>(table), std::move(note));
  return {};
}

Result<void> ReplicatedStore::rewound(TableId table, Version to) {
  if (table != kOrigins) results_.rewind(static_cast<PartitionId>(table), to);
  return {};
}

Result<void> ReplicatedStore::torn() {
  if (!options_.clustered) return {};
  TRY_LET(file, files_.open(folder_ + "/" + kUnsureName, base::OpenMode::create));
  TRY(file->sync());
  return files_.sync_folder(folder_);
}

// Not synced: on a failing disk that may take for ever, and after another boot it need not be known.
void ReplicatedStore::distrust() {
  if (options_.clustered && !options_.synced_before_shown) (void)files_.open(folder_ + "/" + kUnsureName, base::OpenMode::create).has_value();
}

std::string ReplicatedStore::attachment(TableId table) {
  std::string out;
  if (table != kOrigins) results_.encode(static_cast<PartitionId>(table), out);
  return out;
}

// --- the log ---

replication::ReplicaStore::Origin ReplicatedStore::origin(PartitionId partition) const {
  const auto found = since_.find(number_of(partition));
  const std::uint64_t since = std::max(found == since_.end() ? born_ : found->second, outdated_);
  const auto joined = joined_.find(number_of(partition));
  return {since, std::max(since, unsure_), joined == joined_.end() ? Epoch{0} : joined->second};
}

Result<void> ReplicatedStore::note_joined(PartitionId partition, Epoch epoch) {
  TRY(put_origin(joined_key_of(partition), encode_number(replication::number(epoch))));
  joined_[number_of(partition)] = epoch;
  return {};
}

Position ReplicatedStore::end(PartitionId partition) const {
  const TableId table = table_of(partition);
  return {Epoch{store_->epoch(table)}, store_->version(table)};
}

Version ReplicatedStore::floor(PartitionId partition) const {
  const auto found = undo_.find(number_of(partition));
  const bool none = found == undo_.end() || found->second.entries.empty();
  return none ? store_->version(table_of(partition)) : found->second.entries.front().before.sequence;
}

// What the keys of `changes` are before these are made.
Result<std::vector<ReplicatedStore::Before>> ReplicatedStore::before(PartitionId partition, std::span<const Change> changes) const {
  std::vector<Before> keys;
  std::unordered_map<Bytes, bool> appended;  // key -> only appended to
  if (changes.size() > 1)
    for (const Change& change : changes) {
      const bool append = change.kind == Change::Kind::append;
      const auto [found, fresh] = appended.emplace(change.key, append);
      if (!fresh) found->second = found->second && append;
    }
  for (const Change& change : changes) {
    bool cut = change.kind == Change::Kind::append;
    if (changes.size() > 1) {
      const auto found = appended.find(change.key);
      if (found == appended.end()) continue;  // a second change of the same key
      cut = found->second;
      appended.erase(found);
    }
    Before& was = keys.emplace_back();
    was.key = change.key;
    const auto value = store_->lookup(table_of(partition), change.key);
    if (!value) continue;
    was.present = true;
    was.cut = cut;
    was.version = value->version();
    was.expires = value->expires();
    was.size = value->size();
    was.fragment_count = value->fragment_count();
    if (cut) continue;
    for (std::uint32_t i = 0; i < was.fragment_count; i++) was.fragment_ends.push_back(value->fragment_end(i));
    TRY(value->read(0, was.size, was.value));
  }
  return keys;
}

Result<void> ReplicatedStore::apply(PartitionId partition, const replication::Entry& entry) {
  TRY(check_room());
  TRY_LET(view, decode_entry(entry.payload));
  Note note;
  if (!view.note.empty()) {
    TRY_LET(decoded, decode_note(view.note, entry.at.sequence));
    note = std::move(decoded);
  }
  TRY_LET(keys, before(partition, view.changes));
  if (cut_ != nullptr) cut_->before(partition, view.changes);
  const Position previous = end(partition);
  const TableId table = table_of(partition);
  if (entry.at.sequence != previous.sequence + 1)
    return fail(Code::invalid, "partition ", number_of(partition), ": entry ", entry.at.sequence, " after ", previous.sequence);
  TRY(store_->apply(table, view.changes, view.note, replication::number(entry.at.epoch)));
  Undos& undos = undo_[number_of(partition)];
  undos.keys += keys.size();
  undos.entries.push_back({previous, std::move(keys)});
  undo_bytes_ += size_of(undos.entries.back());
  // What cannot be restored by one record, or takes too much memory, cannot be taken back: a snapshot is asked for then.
  while (!undos.entries.empty() && (undos.keys > kMostUndoKeys || undo_bytes_ > options_.undo_bytes)) {
    undos.forgotten = undos.entries.front().before.sequence + 1;
    drop_first(undos);
  }
  if (!view.note.empty()) results_.record(partition, std::move(note));
  return {};
}

void ReplicatedStore::settle(PartitionId partition, Version commit) {
  const auto found = undo_.find(number_of(partition));
  if (found == undo_.end()) return;
  Undos& undos = found->second;
  undos.settled = std::max(undos.settled, commit);
  while (!undos.entries.empty() && undos.entries.front().before.sequence < commit) drop_first(undos);
}

std::size_t ReplicatedStore::size_of(const Undo& undo) {
  std::size_t size = sizeof undo;
  for (const Before& one : undo.keys) size += sizeof one + one.key.size() + one.value.size() + one.fragment_ends.size() * sizeof(std::uint64_t);
  return size;
}

Result<void> ReplicatedStore::check_room() const {
  if (!is_out_of_memory()) return {};
  return fail(Code::no_space, "values and index take ", store_->used_memory(), " bytes of memory, the limit is ", options_.memory_most);
}

void ReplicatedStore::drop_first(Undos& undos) {
  undo_bytes_ -= size_of(undos.entries.front());
  undos.keys -= undos.entries.front().keys.size();
  undos.entries.pop_front();
}

bool ReplicatedStore::unsettled(PartitionId partition, Bytes key) const {
  const auto found = undo_.find(number_of(partition));
  if (found == undo_.end()) return false;
  const bool perhaps = found->second.forgotten > found->second.settled && !options_.defects.has(replication::Defect::forget_unsettled);
  if (perhaps) return true;
  return std::any_of(found->second.entries.begin(), found->second.entries.end(), [&](const Undo& undo) {
    return std::any_of(undo.keys.begin(), undo.keys.end(), [&](const Before& one) { return one.key == key; });
  });
}

// --- snapshots ---

Result<std::unique_ptr<replication::SnapshotSource>> ReplicatedStore::export_snapshot(PartitionId partition) {
  const TableId table = table_of(partition);
  TRY_LET(from, store_->begin_export(table));
  return std::unique_ptr<replication::SnapshotSource>(std::make_unique<Snapshot>(*store_, table, std::move(from)));
}

Result<void> ReplicatedStore::empty(PartitionId partition, std::uint64_t incarnation) {
  imports_.erase(number_of(partition));
  if (cut_ != nullptr) cut_->replaced(partition);
  TRY(put_origin(key_of(partition), encode_origin(incarnation, true)));
  since_[number_of(partition)] = incarnation;
  if (const auto undos = undo_.find(number_of(partition)); undos != undo_.end()) {
    while (!undos->second.entries.empty()) drop_first(undos->second);
    undo_.erase(undos);
  }
  TRY(store_->drop(table_of(partition)));
  results_.drop(partition);
  return {};
}

Result<void> ReplicatedStore::begin_import(PartitionId partition, std::uint64_t incarnation) {
  TRY(empty(partition, incarnation));
  TRY_LET(into, store_->begin_import(table_of(partition)));
  imports_[number_of(partition)] = std::move(into);
  return {};
}

Result<void> ReplicatedStore::import(PartitionId partition, Bytes piece) {
  const auto found = imports_.find(number_of(partition));
  if (found == imports_.end()) return fail(Code::invalid, "partition ", number_of(partition), " takes in no snapshot");
  TRY(check_room());
  return found->second->write(piece);
}

Result<bool> ReplicatedStore::end_import(PartitionId partition, Position at) {
  constexpr std::size_t kAtOnce = std::size_t{1} << 20;  // bytes written of it: a millisecond or two
  const auto found = imports_.find(number_of(partition));
  if (found == imports_.end()) return fail(Code::invalid, "partition ", number_of(partition), " takes in no snapshot");
  TRY_LET(finished, found->second->finish_some(kAtOnce));
  if (!finished) return false;
  imports_.erase(found);
  if (end(partition) != at)
    return fail(Code::corrupt, "the snapshot of partition ", number_of(partition), " leads to ", end(partition).sequence, " of epoch ",
                replication::number(end(partition).epoch), ", expected ", at.sequence, " of epoch ", replication::number(at.epoch));
  TRY(put_origin(key_of(partition), encode_origin(since_[number_of(partition)], false)));
  TRY(make_durable());
  return true;
}

Result<void> ReplicatedStore::make_durable() {
  if (options_.synced_before_shown) return {};  // the round does it, before anything is acknowledged
  return store_->sync();
}

Result<void> ReplicatedStore::forget(PartitionId partition, std::uint64_t incarnation) {
  TRY(empty(partition, incarnation));
  return put_origin(key_of(partition), encode_origin(incarnation, false));
}

Result<void> ReplicatedStore::rewind(PartitionId partition, Position to) {
  const auto found = undo_.find(number_of(partition));
  if (found == undo_.end() || to.sequence < floor(partition))
    return fail(Code::invalid, "partition ", number_of(partition), " cannot be taken back to ", to.sequence, ", which is before ",
                floor(partition));
  Undos& undos = found->second;
  // From the newest on: the oldest word on a key counts, and what was cut is a beginning of what came after it.
  std::unordered_map<std::string, Before> keys;
  std::size_t count = 0;
  for (auto undo = undos.entries.rbegin(); undo != undos.entries.rend() && undo->before.sequence >= to.sequence; ++undo, count++) {
    for (const Before& one : undo->keys) {
      Before& was = keys[one.key];
      if (!one.cut) {
        was = one;
        continue;
      }
      if (was.key.empty()) {
        const auto value = store_->lookup(table_of(partition), one.key);
        CHECK(value && value->size() >= one.size && value->fragment_count() >= one.fragment_count);
        TRY(value->read(0, one.size, was.value));
        for (std::uint32_t i = 0; i < one.fragment_count; i++) was.fragment_ends.push_back(value->fragment_end(i));
      }
      CHECK(was.value.size() >= one.size && was.fragment_ends.size() >= one.fragment_count);
      was.value.resize(one.size);
      was.fragment_ends.resize(one.fragment_count);
      was.key = one.key;
      was.present = true;
      was.version = one.version;
      was.expires = one.expires;
    }
  }
  std::vector<novoht::Restored> restored;
  for (const auto& [key, one] : keys)
    restored.push_back({.key = key, .present = one.present, .version = one.version, .expires = one.expires, .value = one.value,
                        .fragment_ends = one.fragment_ends});
  TRY(store_->rewind(table_of(partition), to.sequence, replication::number(to.epoch), restored));
  for (; count > 0; count--) {
    undo_bytes_ -= size_of(undos.entries.back());
    undos.keys -= undos.entries.back().keys.size();
    undos.entries.pop_back();
  }
  if (!options_.defects.has(replication::Defect::keep_results_of_truncated)) results_.rewind(partition, to.sequence);
  rewinds_++;
  return {};
}

}  // namespace zht::core

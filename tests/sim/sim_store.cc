#include "tests/sim/sim_store.h"

#include <utility>

#include "novoht/base/check.h"

namespace zht::sim {
namespace {

// Record: crc u32 (of all that follows), body size u32, salt u64, place u64, durable u64, body; padded to 8.
constexpr std::size_t kHeader = 32;

struct Found {
  Bytes body;
  std::uint64_t durable = 0, salt = 0;
  std::size_t whole = 0;
};

std::optional<Found> record_at(Bytes file, std::size_t at, std::optional<std::uint64_t> salt) {
  if (at + kHeader > file.size()) return {};
  base::Reader reader(file.substr(at, kHeader));
  const std::uint32_t crc = reader.u32(), size = reader.u32();
  Found found;
  found.salt = reader.u64();
  const std::uint64_t place = reader.u64();
  found.durable = reader.u64();
  if (place != at || size > file.size() - at - kHeader || (salt && *salt != found.salt)) return {};
  if (base::crc32c(file.substr(at + 4, kHeader - 4 + size)) != crc) return {};
  found.body = file.substr(at + kHeader, size);
  found.whole = (kHeader + size + 7) & ~std::size_t{7};
  if (found.whole > file.size() - at) return {};
  return found;
}

void encode(base::Writer& writer, const Entry& entry) {
  writer.u64(replication::number(entry.at.epoch));
  writer.u64(entry.at.sequence);
  writer.str(entry.payload);
}

EntryPtr decode_entry(base::Reader& reader) {
  Entry entry;
  entry.at.epoch = Epoch{reader.u64()};
  entry.at.sequence = reader.u64();
  entry.payload = std::string(reader.str());
  return std::make_shared<Entry>(std::move(entry));
}

std::string encode(Position at) {
  std::string out;
  base::Writer writer(out);
  writer.u64(replication::number(at.epoch));
  writer.u64(at.sequence);
  return out;
}

// The whole log, some entries a piece.
class Snapshot final : public replication::SnapshotSource {
 public:
  explicit Snapshot(std::vector<EntryPtr> log) : log_(std::move(log)) {}
  Version begun() const override { return log_.size(); }
  std::optional<Position> at() const override { return log_.empty() ? Position{} : log_.back()->at; }
  Result<Piece> read(std::uint64_t index) override {
    std::string out;
    base::Writer writer(out);
    for (std::size_t i = index * kEntries; i < std::min(log_.size(), (index + 1) * kEntries); i++) encode(writer, *log_[i]);
    return Piece{std::move(out), (index + 1) * kEntries > log_.size()};
  }

 private:
  static constexpr std::size_t kEntries = 100;
  const std::vector<EntryPtr> log_;
};

}  // namespace

std::string encode(const Resolved& change) {
  std::string out;
  base::Writer writer(out);
  writer.u8(static_cast<std::uint8_t>(change.kind));
  writer.str(change.key);
  writer.str(change.value);
  writer.u64(change.client);
  writer.u64(change.sequence);
  writer.u64(change.floor);
  return out;
}

Resolved decode_resolved(Bytes payload) {
  base::Reader reader(payload);
  Resolved change;
  change.kind = static_cast<Resolved::Kind>(reader.u8());
  change.key = std::string(reader.str());
  change.value = std::string(reader.str());
  change.client = reader.u64();
  change.sequence = reader.u64();
  change.floor = reader.u64();
  CHECK(reader.done());
  return change;
}

void PartitionTable::apply(const Entry& entry) {
  const Resolved change = decode_resolved(entry.payload);
  Cell& cell = cells[change.key];
  cell.version = entry.at.sequence;
  switch (change.kind) {
    case Resolved::Kind::insert: cell.value = change.value; break;
    case Resolved::Kind::append: cell.value = cell.value.value_or("") + change.value; break;
    case Resolved::Kind::remove: cell.value.reset(); break;
  }
  Session& session = sessions[change.client];
  session.results[change.sequence] = entry.at.sequence;
  session.floor = std::max(session.floor, change.floor);
  session.results.erase(session.results.begin(), session.results.upper_bound(session.floor));
}

void PartitionTable::rebuild(bool keep_sessions) {
  cells.clear();
  const auto before = sessions;
  sessions.clear();
  for (const EntryPtr& entry : log) apply(*entry);
  if (keep_sessions) sessions = before;
}

SimStore::SimStore(base::FileSystem& files, std::uint64_t incarnation, Defects defects) : files_(files), defects_(defects) {
  CHECK(files_.make_folder("store").has_value());
  file_ = *files_.open(kPath, base::OpenMode::create);
  const std::uint64_t size = *file_->size();
  std::string contents(size, '\0');
  if (size > 0) CHECK(*file_->read_at(0, contents.data(), size) == size);
  if (contents.empty()) begin(incarnation);
  else recover(contents, incarnation);
  CHECK(flush() && file_->sync().has_value());
  synced_ = size_;
  for (auto& [partition, table] : tables_) {
    table.floor = table.end().sequence;
    opened_.entries += table.log.size();
  }
}

// A new file: salted, so that a record of an older one is never taken for one of its own.
void SimStore::begin(std::uint64_t incarnation) {
  CHECK(file_->truncate(0).has_value());
  tables_.clear();
  size_ = synced_ = 0;
  salt_ = incarnation * 1000 + 7;
  born_ = incarnation;
  unsure_ = 0;
  put(Record::born, PartitionId{0}, std::string(reinterpret_cast<const char*>(&incarnation), sizeof incarnation));
  CHECK(flush() && file_->sync().has_value() && files_.sync_folder("store").has_value());
  synced_ = size_;
}

void SimStore::recover(const std::string& contents, std::uint64_t incarnation) {
  std::size_t at = 0;
  std::uint64_t durable = 0;
  std::optional<std::uint64_t> salt;
  bool damaged = false;
  while (at < contents.size()) {
    const auto found = record_at(contents, at, salt);
    if (!found) break;
    salt = found->salt;
    salt_ = found->salt;
    durable = std::max(durable, found->durable);
    if (!replay(found->body)) {
      damaged = true;
      break;
    }
    at += found->whole;
  }
  bool torn = at < contents.size();
  damaged = damaged || !salt || at < durable;
  // A good record beyond a bad one that was durable when it was written: then the bad one was good once.
  for (std::size_t p = (at + 8) & ~std::size_t{7}; torn && !damaged && p + kHeader <= contents.size(); p += 8)
    if (const auto later = record_at(contents, p, salt); later && later->durable > at) damaged = true;
  if (damaged && defects_.has(Defect::trust_damage)) {
    damaged = !salt;
    torn = true;
  }
  opened_ = {damaged, torn, 0};
  if (damaged) {
    begin(defects_.has(Defect::forget_loss) ? 1 : incarnation);
    return;
  }
  size_ = synced_ = at;
  if (torn) {
    CHECK(file_->truncate(at).has_value());
    if (!defects_.has(Defect::trust_torn) && !defects_.has(Defect::trust_damage)) {
      unsure_ = incarnation;
      for (auto& [partition, table] : tables_) table.origin.sure = incarnation;
      put(Record::unsure, PartitionId{0}, std::string(reinterpret_cast<const char*>(&incarnation), sizeof incarnation));
    }
  }
  for (auto& [partition, table] : tables_) {
    if (!table.importing) continue;
    // Half a snapshot is nothing.
    const bool vouch = table.origin.since == 0;
    table.importing = false;
    if (vouch) {
      table.origin = {1, 1};
      continue;
    }
    CHECK(begin_import(PartitionId{partition}, incarnation).has_value());
    table.ending = true;
    CHECK(end_import(PartitionId{partition}, {}).value());
  }
}

void SimStore::put(Record kind, PartitionId partition, Bytes body) {
  std::string record;
  base::Writer writer(record);
  writer.u32(0);
  writer.u32(static_cast<std::uint32_t>(5 + body.size()));
  writer.u64(salt_);
  writer.u64(size_ + pending_.size());
  writer.u64(synced_);
  writer.u8(static_cast<std::uint8_t>(kind));
  writer.u32(static_cast<std::uint32_t>(partition));
  writer.raw(body);
  base::store(record.data(), base::crc32c(Bytes(record).substr(4)));
  record.resize((record.size() + 7) & ~std::size_t{7}, '\0');
  pending_ += record;
}

bool SimStore::replay(Bytes record) {
  base::Reader reader(record);
  const auto kind = static_cast<Record>(reader.u8());
  const std::uint32_t partition = reader.u32();
  const auto table_of = [&]() -> PartitionTable& {
    const auto [found, fresh] = tables_.try_emplace(partition);
    if (fresh) found->second.origin = {born_, std::max(born_, unsure_)};
    return found->second;
  };
  switch (kind) {
    case Record::born: born_ = reader.u64(); return reader.done();
    case Record::unsure:
      unsure_ = reader.u64();
      for (auto& [number, table] : tables_) table.origin.sure = std::max(table.origin.sure, unsure_);
      return reader.done();
    case Record::entry: {
      PartitionTable& table = table_of();
      const EntryPtr entry = decode_entry(reader);
      if (!reader.done() || entry->at.sequence != table.end().sequence + 1) return false;
      table.log.push_back(entry);
      table.apply(*entry);
      return true;
    }
    case Record::rewind: {
      PartitionTable& table = table_of();
      (void)reader.u64();
      const std::uint64_t to = reader.u64();
      if (!reader.done() || to > table.log.size()) return false;
      table.log.resize(to);
      table.rebuild(false);
      return true;
    }
    case Record::import_begin: {
      PartitionTable& table = table_of();
      const std::uint64_t since = reader.u64();
      const Epoch joined = table.origin.joined;
      table = {};
      table.origin = {since, since, joined};
      table.importing = true;
      return reader.done();
    }
    case Record::import_piece: {
      PartitionTable& table = table_of();
      while (reader.left() > 0 && reader.ok()) {
        const EntryPtr entry = decode_entry(reader);
        table.log.push_back(entry);
        table.apply(*entry);
      }
      return reader.done();
    }
    case Record::import_end: table_of().importing = false; return true;
    case Record::joined: table_of().origin.joined = Epoch{reader.u64()}; return reader.done();
  }
  return false;
}

bool SimStore::flush() {
  if (pending_.empty()) return true;
  if (!file_->write_at(size_, pending_)) return false;
  size_ += pending_.size();
  pending_.clear();
  return true;
}

bool SimStore::sync() {
  const std::uint64_t upto = size_;
  if (!file_->sync()) return false;
  synced_ = upto;
  return true;
}

const PartitionTable& SimStore::at(PartitionId partition) const {
  const auto [found, fresh] = tables_.try_emplace(static_cast<std::uint32_t>(partition));
  if (fresh) found->second.origin = {born_, std::max(born_, unsure_)};
  return found->second;
}

replication::ReplicaStore::Origin SimStore::origin(PartitionId partition) const { return at(partition).origin; }

Result<void> SimStore::note_joined(PartitionId partition, Epoch epoch) {
  (void)at(partition);
  table(partition).origin.joined = epoch;
  std::string body;
  base::Writer(body).u64(replication::number(epoch));
  put(Record::joined, partition, body);
  return {};
}

Position SimStore::end(PartitionId partition) const { return at(partition).end(); }
Version SimStore::floor(PartitionId partition) const { return at(partition).floor; }

Result<void> SimStore::apply(PartitionId partition, const Entry& entry) {
  if (full_) return base::fail(Code::no_space, "the disk is full");
  (void)at(partition);
  PartitionTable& mine = table(partition);
  CHECK(entry.at.sequence == mine.end().sequence + 1 && !mine.importing);
  mine.log.push_back(std::make_shared<Entry>(entry));
  mine.apply(entry);
  std::string body;
  base::Writer writer(body);
  encode(writer, entry);
  put(Record::entry, partition, body);
  return {};
}

Result<void> SimStore::rewind(PartitionId partition, Position to) {
  PartitionTable& mine = table(partition);
  CHECK(to.sequence >= mine.floor && to.sequence <= mine.log.size());
  mine.log.resize(to.sequence);
  CHECK(mine.end() == to);
  mine.rebuild(defects_.has(Defect::keep_results_of_truncated));
  put(Record::rewind, partition, encode(to));
  return {};
}

Result<std::unique_ptr<replication::SnapshotSource>> SimStore::export_snapshot(PartitionId partition) {
  return std::unique_ptr<replication::SnapshotSource>(std::make_unique<Snapshot>(table(partition).log));
}

Result<void> SimStore::begin_import(PartitionId partition, std::uint64_t incarnation) {
  PartitionTable& mine = table(partition);
  const Epoch joined = mine.origin.joined;
  mine = {};
  mine.importing = true;
  mine.ending = false;
  mine.origin = {incarnation, incarnation, joined};
  put(Record::import_begin, partition, std::string(reinterpret_cast<const char*>(&incarnation), sizeof incarnation));
  return {};
}

Result<void> SimStore::import(PartitionId partition, Bytes piece) {
  PartitionTable& mine = table(partition);
  base::Reader reader(piece);
  while (reader.left() > 0) {
    const EntryPtr entry = decode_entry(reader);
    CHECK(entry->at.sequence == mine.end().sequence + 1);
    mine.log.push_back(entry);
    mine.apply(*entry);
  }
  put(Record::import_piece, partition, piece);
  return {};
}

// It takes two calls, as a large one does.
Result<bool> SimStore::end_import(PartitionId partition, Position at) {
  PartitionTable& mine = table(partition);
  if (!std::exchange(mine.ending, true)) return false;
  CHECK(mine.end() == at);
  mine.importing = false;
  mine.floor = at.sequence;
  put(Record::import_end, partition, encode(at));
  return true;
}

}  // namespace zht::sim

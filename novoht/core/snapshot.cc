#include "novoht/core/snapshot.h"

#include <algorithm>

#include "novoht/core/replay.h"

namespace novoht::core {
namespace {

constexpr std::uint64_t kLargestBlock = std::uint64_t{1} << 40;  // more is not waited for: its size is damaged

}  // namespace

// --- going out ---

TableExport::TableExport(SnapshotHost& host, Store& store, TableId table, std::string attachment)
    : host_(host), store_(store), table_(table), birth_(host.birth_of(table)), begun_(store.version(table)),
      tail_(host, store, table, begun_, host.log().position()), buffer_(snapshot_magic()) {
  offset_ = buffer_.size();
  add_block(BlockKind::header, encode_checkpoint_header({.store = host.store_id(), .table = table, .version = begun_,
                                                         .epoch = store.epoch(table), .position = host.log().position()}));
  add_block(BlockKind::attachment, attachment);
}

void TableExport::add_block(BlockKind kind, Bytes payload) {
  const std::size_t before = buffer_.size();
  append_block(buffer_, kind, payload, offset_);
  offset_ += buffer_.size() - before;
}

Result<std::string> TableExport::next(std::size_t max_bytes) {
  max_bytes = std::max<std::size_t>(max_bytes, 1);
  if (stage_ == Stage::failed) return base::fail(Code::conflict, "this export has failed");
  while (sent_ == buffer_.size() && stage_ != Stage::ended) {
    buffer_.clear();
    sent_ = 0;
    if (auto done = more(max_bytes); !done) {
      stage_ = Stage::failed;
      return std::move(done).error();
    }
  }
  std::string piece = buffer_.substr(sent_, max_bytes);
  sent_ += piece.size();
  return piece;
}

Result<void> TableExport::more(std::size_t bytes) {
  if (host_.birth_of(table_) != birth_)
    return base::fail(Code::conflict, "table ", static_cast<std::uint32_t>(table_), " was dropped or replaced while it was exported");
  return stage_ == Stage::entries ? take_entries(bytes) : take_records(bytes);
}

Result<void> TableExport::take_entries(std::size_t bytes) {
  block_.clear();
  base::Writer w(block_);
  bool more = true;
  while (more && block_.size() < bytes) {
    // A few at a time: what a key's value takes is not known before.
    const ScanPage page = store_.scan(table_, cursor_, std::clamp<std::size_t>((bytes - block_.size()) / 128, 1, 64));
    for (const ScanEntry& listed : page.entries) {
      const auto value = store_.lookup(table_, listed.key);
      if (!value) continue;
      const bool expires = value->expires() != base::kNever, fragments = value->fragment_count() != 1;
      w.u8(static_cast<std::uint8_t>((expires ? 1 : 0) | (fragments ? 2 : 0)));
      w.u16(static_cast<std::uint16_t>(listed.key.size()));
      w.u64(value->version());
      if (expires) w.u64(base::to_millis(value->expires()));
      w.u64(value->size());
      if (fragments) w.u32(value->fragment_count());
      w.raw(listed.key);
      for (std::uint32_t i = 0; i + 1 < value->fragment_count(); i++) w.u64(value->fragment_end(i));
      TRY(value->read(0, value->size(), block_));
      entries_++;
    }
    cursor_ = page.cursor;
    more = cursor_ != 0;
  }
  if (!block_.empty()) add_block(BlockKind::entries, block_);
  if (more) return {};
  // No entry is newer than the table is now: up to here the records are needed.
  version_ = store_.version(table_);
  TRY(store_.flush());
  stage_ = Stage::records;
  return {};
}

Result<void> TableExport::take_records(std::size_t bytes) {
  block_.clear();
  const auto take = [&](const LogRecord& record) -> Result<void> {
    append_snapshot_record(block_, record.version, record.epoch, record.note, record.changes);
    return {};
  };
  while (block_.empty() && tail_.reached() < version_) {
    // No further: what comes later is held for a tail that goes on from here.
    TRY_LET(more, tail_.next_until(version_, bytes, take));
    if (!more && tail_.reached() < version_)
      return base::fail(Code::io, "table ", static_cast<std::uint32_t>(table_), " version ", version_, " is not in the log");
  }
  if (!block_.empty()) add_block(BlockKind::records, block_);
  if (tail_.reached() < version_) return {};
  add_block(BlockKind::end, encode_checkpoint_end({.entries = entries_, .version = version_, .position = host_.log().position()}));
  stage_ = Stage::ended;
  return {};
}

// --- made elsewhere ---

}  // namespace novoht::core

namespace novoht {

SnapshotWriter::SnapshotWriter(TableId table, Version version, std::uint64_t epoch, Bytes attachment)
    : stream_(core::snapshot_magic()), version_(version) {
  offset_ = stream_.size();
  const auto add_block = [&](core::BlockKind kind, Bytes payload) {
    const std::size_t before = stream_.size();
    core::append_block(stream_, kind, payload, offset_);
    offset_ += stream_.size() - before;
  };
  add_block(core::BlockKind::header, core::encode_checkpoint_header({.store = 0, .table = table, .version = version, .epoch = epoch, .position = 0}));
  add_block(core::BlockKind::attachment, attachment);
}

void SnapshotWriter::add(const Restored& entry) {
  core::append_restored(block_, entry);
  entries_++;
  if (block_.size() >= (std::size_t{256} << 10)) end_block();
}

void SnapshotWriter::end_block() {
  if (block_.empty()) return;
  const std::size_t before = stream_.size();
  core::append_block(stream_, core::BlockKind::entries, block_, offset_);
  offset_ += stream_.size() - before;
  block_.clear();
}

std::string SnapshotWriter::take() { return std::exchange(stream_, {}); }

void SnapshotWriter::end() {
  end_block();
  core::append_block(stream_, core::BlockKind::end, core::encode_checkpoint_end({.entries = entries_, .version = version_, .position = 0}),
                     offset_);
}

}  // namespace novoht

namespace novoht::core {

// --- coming in ---

base::Error TableImport::damaged(std::string_view what) const {
  return base::fail(Code::corrupt, "snapshot offset ", offset_, ": ", what);
}

Result<void> TableImport::write(Bytes bytes) {
  if (stage_ == Stage::failed) return base::fail(Code::invalid, "this import has failed");
  const auto fail_with = [this](base::Error error) {
    stage_ = Stage::failed;
    shadow_.reset();
    return error;
  };
  buffer_.append(bytes);
  std::size_t used = 0;
  for (;;) {
    const Bytes left = Bytes(buffer_).substr(used);
    if (stage_ == Stage::ended) {
      if (!left.empty()) return fail_with(base::fail(Code::invalid, "snapshot offset ", offset_, ": ", left.size(), " bytes beyond its end"));
      break;
    }
    if (stage_ == Stage::magic) {
      // What cannot become a snapshot is refused with its first bytes.
      const std::string magic = snapshot_magic();
      if (left.substr(0, 8) != Bytes(magic).substr(0, std::min<std::size_t>(8, left.size())) || left.size() >= kCheckpointMagicSize) {
        if (auto good = check_snapshot_magic(left); !good) return fail_with(std::move(good).error());
        used += kCheckpointMagicSize;
        offset_ += kCheckpointMagicSize;
        stage_ = Stage::header;
        continue;
      }
      break;
    }
    if (left.size() < kBlockHeaderSize) break;
    if (base::load<std::uint64_t>(left.data() + 16) != offset_) return fail_with(damaged("a block of another place"));
    const auto size = base::load<std::uint64_t>(left.data() + 8);
    if (size > kLargestBlock) return fail_with(damaged("a block's size is damaged"));
    if (left.size() - kBlockHeaderSize < size) break;
    const auto block = parse_block_at(left.substr(0, kBlockHeaderSize + size), offset_);
    if (!block) return fail_with(damaged("a block's checksum is wrong"));
    if (auto taken = take(block->kind, block->payload); !taken) return fail_with(std::move(taken).error());
    used += block->size;
    offset_ += block->size;
  }
  buffer_.erase(0, used);
  return {};
}

Result<void> TableImport::take(BlockKind kind, Bytes payload) {
  if (stage_ == Stage::header) {
    const auto header = kind == BlockKind::header ? parse_checkpoint_header(payload) : std::nullopt;
    if (!header) return damaged("no header");
    imported_.version = header->version;
    imported_.epoch = header->epoch;
    stage_ = Stage::attachment;
    return {};
  }
  if (stage_ == Stage::attachment) {
    if (kind != BlockKind::attachment) return damaged("no attachment");
    imported_.attachment = payload;
    stage_ = Stage::entries;
    return {};
  }
  if (kind == BlockKind::entries && stage_ == Stage::entries) return take_entries(payload);
  if (kind == BlockKind::records) return take_records(payload);
  if (kind == BlockKind::end) return take_end(payload);
  return damaged("a block that does not belong here");
}

Result<void> TableImport::take_entries(Bytes payload) {
  base::Reader in(payload);
  while (in.left() > 0) {
    const auto entry = parse_checkpoint_entry(in);
    if (!entry) return damaged("a malformed entry");
    shadow_->table().load(Table::hash(entry->key), *entry);
    newest_ = std::max(newest_, entry->version);
    entries_++;
  }
  return {};
}

Result<void> TableImport::take_records(Bytes payload) {
  stage_ = Stage::records;
  base::Reader in(payload);
  while (in.left() > 0) {
    const auto record = parse_snapshot_record(in);
    if (!record || record->version != imported_.version + 1 || record->epoch < imported_.epoch)
      return damaged("a record that does not follow version " + std::to_string(imported_.version));
    if (!replay_changes(shadow_->table(), record->changes, record->change_count, record->version, true))
      return damaged("a record with malformed changes");
    imported_.version = record->version;
    imported_.epoch = record->epoch;
    imported_.notes.push_back({record->version, record->epoch, std::string(record->note)});
  }
  return {};
}

Result<void> TableImport::take_end(Bytes payload) {
  const auto end = parse_checkpoint_end(payload);
  if (!end || end->entries != entries_ || end->version != imported_.version) return damaged("an end that does not fit");
  if (newest_ > end->version)
    return damaged("an entry of version " + std::to_string(newest_) + " in a table of version " + std::to_string(end->version));
  stage_ = Stage::ended;
  return {};
}

Result<bool> TableImport::finish_within(std::size_t bytes, bool all) {
  if (!complete())
    return base::fail(Code::corrupt, "snapshot offset ", offset_ + buffer_.size(), ": it ends there, in the middle");
  if (shadow_ == nullptr) return base::fail(Code::invalid, "this import is finished");
  auto done = host_.install(table_, shadow_, installation_, imported_, bytes, all);
  if (!done || *done) {
    installation_.reset();
    shadow_.reset();
  }
  return done;
}

}  // namespace novoht::core

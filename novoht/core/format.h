// The bytes of a store's files: functions from bytes to bytes. FORMAT.md is the same in words, with a worked example.
//
//   STORE                      what folder this is
//   LOCK                       held by the process that has the store open
//   log-<number>.segment       records, in order; <number> is 16 hexadecimal digits and never used twice
//   log-<number>.kept          what was that segment, and will be another
//   table-<id>.checkpoint      one table whole; <id> is 8 hexadecimal digits
//
// Positions in the log are counted in record bytes since the store was made, over all segments (`Position`): a segment's
// header says at which it begins.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "novoht/store.h"

namespace novoht::core {

using Position = std::uint64_t;

// Of every file: written, and the oldest that is read. Another is refused with `unsupported`. (1 was never released; before 3
// no segment was made out of an old one, so that what followed a segment's last record was zeros.)
inline constexpr std::uint32_t kFormat = 3, kOldestFormat = 2;

inline constexpr std::size_t kStoreFileSize = 40;
inline constexpr std::size_t kSegmentHeaderSize = 64;
inline constexpr std::size_t kRecordHeaderSize = 32;
// Of a segment that was another before: zeros that are written behind the last record with it, so that where the log ends is
// told from where its last record was damaged.
inline constexpr std::size_t kEndZeros = kRecordHeaderSize;
inline constexpr std::size_t kChangeHeaderSize = 7;
inline constexpr std::size_t kMaxChanges = 65'535;  // of one record
inline constexpr std::size_t kBlockHeaderSize = 24;

// Whether a file of that format can be read; else unsupported, naming the file.
Result<void> check_format(std::uint32_t format, const std::string& path);

// `number` in that many hexadecimal digits; and what lies between `before` and `after` in `name`, if it is just that.
std::string hex(std::uint64_t number, int digits);
std::optional<std::uint64_t> between(Bytes name, Bytes before, std::size_t digits, Bytes after);
std::string segment_name(std::uint64_t number);
std::string checkpoint_name(TableId table);
std::string kept_name(std::uint64_t number);  // of a segment that is kept until another is made out of it
bool is_kept_name(Bytes name);
std::optional<std::uint64_t> segment_number(Bytes name);  // nothing when it is not a segment's name
std::optional<TableId> checkpoint_table(Bytes name);

// --- STORE ---
struct StoreFile {
  std::uint64_t id = 0;  // random; in the header of every other file
  std::uint64_t created_ms = 0;
};
std::string encode_store_file(const StoreFile& about);
// Errors: invalid (not a store's), unsupported, corrupt. `path` is for the message.
Result<StoreFile> parse_store_file(Bytes bytes, const std::string& path);

// --- segments ---
struct SegmentHeader {
  std::uint64_t store = 0;
  std::uint64_t number = 0;
  Position begin = 0;        // of the first record
  Position needed_from = 0;  // records before this one were in checkpoints when the segment was begun
  std::uint64_t size = 0;    // of the file, in bytes
  bool reused = false;       // the file was another segment before, whose bytes lie behind the zeros after the last record
};
std::string encode_segment_header(const SegmentHeader& header);
enum class HeaderState { good, blank, bad };  // blank: prepared and not begun
// Errors: unsupported only. (A good header of another number is that of the segment that the file was before.)
Result<HeaderState> parse_segment_header(Bytes bytes, const std::string& path, SegmentHeader& header);

// What a segment's checksums begin with: no record of another store, segment or place checks out in this one.
std::uint64_t segment_salt(std::uint64_t store, std::uint64_t number);

// --- records ---
enum class RecordType : std::uint8_t {
  changes = 1,
  mark = 2,  // says only how far the log was synced; written when a store is closed
  trim = 3,  // the log before `version` (a position) is no longer needed; its segments may be gone
  drop = 4,  // the table is forgotten: its version starts again at 0
  rewind = 5,  // the table's records after `version` are taken back; its changes restore keys as they were
};

struct Record {
  RecordType type = RecordType::changes;
  TableId table{};
  Version version = 0;
  std::uint64_t epoch = 0;
  Bytes note;
  std::uint16_t change_count = 0;
  Bytes changes;         // see ChangeReader
  Position durable = 0;  // the log was known to be synced up to here when the record was written
  std::size_t size = 0;  // in the segment, padding and all
};

inline constexpr std::uint8_t kHasExpiry = 0x80;          // in a change's kind byte
inline constexpr std::uint8_t kHasEpoch = 1, kHasNote = 2;  // in a record's flags

inline constexpr std::size_t padded(std::size_t size) { return (size + 7) & ~std::size_t{7}; }

// Size of what comes before the changes.
inline constexpr std::size_t record_head_size(Bytes note, std::uint64_t epoch) {
  return kRecordHeaderSize + (epoch != 0 ? 8 : 0) + (note.empty() ? 0 : 4 + note.size());
}
// Size of the record in the segment.
inline std::size_t change_size(const Change& change) {
  return kChangeHeaderSize + (change.expires != base::kNever ? 8 : 0) + change.key.size() + change.value.size();
}
inline std::size_t record_size(std::span<const Change> changes, Bytes note, std::uint64_t epoch) {
  std::size_t size = record_head_size(note, epoch);
  for (const Change& change : changes) size += change_size(change);
  return padded(size);
}
struct RecordFields {
  RecordType type = RecordType::changes;
  TableId table{};
  Version version = 0;
  std::uint64_t epoch = 0;
  Bytes note;
  std::span<const Change> changes;
};
// A change as it lies in a record. Returns where it ends.
inline char* write_change(char* at, const Change& change) {
  const bool expires = change.expires != base::kNever;
  at[0] = static_cast<char>(static_cast<std::uint8_t>(change.kind) | (expires ? kHasExpiry : 0));
  base::store(at + 1, static_cast<std::uint16_t>(change.key.size()));
  base::store(at + 3, static_cast<std::uint32_t>(change.value.size()));
  at += kChangeHeaderSize;
  if (expires) {
    base::store(at, base::to_millis(change.expires));
    at += 8;
  }
  base::copy_bytes(at, change.key.data(), change.key.size());
  at += change.key.size();
  base::copy_bytes(at, change.value.data(), change.value.size());
  return at + change.value.size();
}
// Writes the record, record_size() bytes, to `to`: at `position` of the log, when the log is known to be synced up to
// `durable`. It is good once it is sealed: for `offset` of the segment with `salt`. (Two steps, so that a caller can have
// memory on its way in between.)
inline void write_record(char* to, std::size_t size, const RecordFields& fields, Position position, Position durable) {
  base::store(to + size - 8, std::uint64_t{0});  // the padding
  const std::uint64_t behind = (position - durable) / 8;
  base::store(to + 12, static_cast<std::uint32_t>(fields.table));
  base::store(to + 16, fields.version);
  base::store(to + 24, static_cast<std::uint32_t>(behind < UINT32_MAX ? behind : UINT32_MAX));
  to[28] = static_cast<char>(fields.type);
  to[29] = static_cast<char>((fields.epoch != 0 ? kHasEpoch : 0) | (fields.note.empty() ? 0 : kHasNote));
  base::store(to + 30, static_cast<std::uint16_t>(fields.changes.size()));
  char* at = to + kRecordHeaderSize;
  if (fields.epoch != 0) {
    base::store(at, fields.epoch);
    at += 8;
  }
  if (!fields.note.empty()) {
    base::store(at, static_cast<std::uint32_t>(fields.note.size()));
    std::memcpy(at + 4, fields.note.data(), fields.note.size());
    at += 4 + fields.note.size();
  }
  for (const Change& change : fields.changes) at = write_change(at, change);
  base::store(to + 8, static_cast<std::uint32_t>(at - to));
}
void seal_record(char* to, std::size_t size, std::uint64_t salt, std::uint64_t offset);
inline void encode_record(char* to, std::size_t size, const RecordFields& fields, std::uint64_t salt, std::uint64_t offset,
                          Position position, Position durable) {
  write_record(to, size, fields, position, durable);
  seal_record(to, size, salt, offset);
}
// The record at `offset` of the segment, if a whole good one is there; if not, `why` (unless null) says what is wrong.
std::optional<Record> parse_record(Bytes segment, std::uint64_t offset, std::uint64_t salt, Position position,
                                   std::string* why = nullptr);
// The same when only a part of the segment is at hand: `bytes` are those from `offset` on.
std::optional<Record> parse_record_at(Bytes bytes, std::uint64_t offset, std::uint64_t salt, Position position,
                                      std::string* why = nullptr);
// The header alone, kRecordHeaderSize bytes: table, version, type and size are good; the rest is not looked at.
std::optional<Record> parse_record_header(Bytes bytes, std::uint64_t offset, std::uint64_t salt);

// A change as it lies in a record that this process wrote itself: nothing is checked.
struct PlacedChange {
  explicit PlacedChange(const char* at) {
    const auto byte = static_cast<std::uint8_t>(at[0]);
    kind = static_cast<Change::Kind>(byte & 0x7f);
    const std::size_t key_size = base::load<std::uint16_t>(at + 1), value_size = base::load<std::uint32_t>(at + 3);
    const char* next = at + kChangeHeaderSize;
    if (byte & 0x80) {
      expires_ms = base::load<std::uint64_t>(next);
      next += 8;
    }
    key = Bytes(next, key_size);
    value = Bytes(next + key_size, value_size);
    size = static_cast<std::size_t>(next - at) + key_size + value_size;
  }
  Change::Kind kind;
  std::uint64_t expires_ms = 0;
  Bytes key, value;
  std::size_t size;
};

// A change of a rewind record alone: the value is the key's entry, as a checkpoint has it.
inline constexpr Change::Kind kRestore{4};

// Reads a record's or batch's changes one by one; a rewind record's where `restores`.
class ChangeReader {
 public:
  ChangeReader(Bytes bytes, std::size_t count, bool restores = false) : in_(bytes), left_(count), restores_(restores) {}
  // The next one; nothing at the end, or when the bytes make no sense (then ok() is false).
  std::optional<Change> next();
  bool ok() const { return ok_; }

 private:
  base::Reader in_;
  std::size_t left_;
  bool restores_, ok_ = true;
};

// --- checkpoints ---
struct CheckpointHeader {
  std::uint64_t store = 0;
  TableId table{};
  Version version = 0;      // of the table when the checkpoint was begun
  std::uint64_t epoch = 0;
  Position position = 0;    // records of the table from here on are to be replayed over it
};
struct CheckpointEnd {
  std::uint64_t entries = 0;
  Version version = 0;    // of the table when the checkpoint was ended: no entry is newer
  Position position = 0;  // the log was synced up to here before the checkpoint took its name
};
enum class BlockKind : std::uint32_t { header = 1, attachment = 2, entries = 3, end = 4, records = 5 };
struct Block {
  BlockKind kind{};
  Bytes payload;
  std::size_t size = 0;  // with its header
};
inline constexpr std::size_t kCheckpointMagicSize = 16;
std::string checkpoint_magic();
void append_block(std::string& out, BlockKind kind, Bytes payload, std::uint64_t offset);
std::optional<Block> parse_block(Bytes file, std::uint64_t offset);
// The same when only a part of the file is at hand: `bytes` are those from `offset` on.
std::optional<Block> parse_block_at(Bytes bytes, std::uint64_t offset);
std::string encode_checkpoint_header(const CheckpointHeader& header);
std::optional<CheckpointHeader> parse_checkpoint_header(Bytes payload);
std::string encode_checkpoint_end(const CheckpointEnd& end);
std::optional<CheckpointEnd> parse_checkpoint_end(Bytes payload);

// One key as a checkpoint has it. The ends of all fragments but the last.
struct CheckpointEntry {
  Bytes key;
  Version version = 0;
  std::uint64_t expires_ms = 0;
  std::uint64_t value_size = 0;
  std::uint32_t fragment_count = 1;
  Bytes fragment_ends;  // (fragment_count - 1) x 8 bytes
  Bytes value;
  std::uint64_t fragment_end(std::uint32_t index) const {
    return index + 1 == fragment_count ? value_size : base::load<std::uint64_t>(fragment_ends.data() + 8 * index);
  }
};
std::optional<CheckpointEntry> parse_checkpoint_entry(base::Reader& in);
void append_restored(std::string& out, const Restored& entry);  // one that is present; fragment_ends may be empty for one fragment

// --- snapshots: blocks as a checkpoint's, with the records that came meanwhile before the end ---
inline constexpr std::uint32_t kSnapshotFormat = 1;
std::string snapshot_magic();  // kCheckpointMagicSize bytes
// Errors: invalid (not a snapshot), corrupt, unsupported.
Result<void> check_snapshot_magic(Bytes bytes);
struct SnapshotRecord {
  Version version = 0;
  std::uint64_t epoch = 0;
  Bytes note;
  std::uint16_t change_count = 0;
  Bytes changes;  // as in a record of the log
};
void append_snapshot_record(std::string& out, Version version, std::uint64_t epoch, Bytes note, std::span<const Change> changes);
std::optional<SnapshotRecord> parse_snapshot_record(base::Reader& in);

}  // namespace novoht::core

#include "novoht/core/format.h"

#include <algorithm>
#include <limits>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace novoht::core {
namespace {

constexpr char kStoreMagic[] = "NoVoHTst";
constexpr char kSegmentMagic[] = "NoVoHTlg";
constexpr char kCheckpointMagic[] = "NoVoHTcp";
constexpr char kSnapshotMagic[] = "NoVoHTsn";

constexpr std::uint32_t kReused = 1;  // a flag of a segment's header

// Checksums of a record begin with its own place.
std::uint32_t seed_of(std::uint64_t salt, std::uint64_t offset) {
  char place[16];
  base::store(place, salt);
  base::store(place + 8, offset);
  return base::crc32c(Bytes(place, sizeof place));
}

}  // namespace

Result<void> check_format(std::uint32_t format, const std::string& path) {
  if (format >= kOldestFormat && format <= kFormat) return {};
  return base::fail(Code::unsupported, path, ": format ", format, "; this build knows formats ", kOldestFormat, " to ", kFormat);
}

std::string hex(std::uint64_t number, int digits) {
  std::string text(static_cast<std::size_t>(digits), '0');
  for (int i = digits - 1; i >= 0; i--, number >>= 4) text[static_cast<std::size_t>(i)] = "0123456789abcdef"[number & 15];
  return text;
}

std::optional<std::uint64_t> between(Bytes name, Bytes before, std::size_t digits, Bytes after) {
  if (name.size() != before.size() + digits + after.size() || !name.starts_with(before) || !name.ends_with(after)) return {};
  std::uint64_t number = 0;
  for (char c : name.substr(before.size(), digits)) {
    if (c >= '0' && c <= '9') number = number << 4 | static_cast<std::uint64_t>(c - '0');
    else if (c >= 'a' && c <= 'f') number = number << 4 | static_cast<std::uint64_t>(c - 'a' + 10);
    else return {};
  }
  return number;
}

std::string segment_name(std::uint64_t number) { return "log-" + hex(number, 16) + ".segment"; }
std::string kept_name(std::uint64_t number) { return "log-" + hex(number, 16) + ".kept"; }
bool is_kept_name(Bytes name) { return between(name, "log-", 16, ".kept").has_value(); }
std::string checkpoint_name(TableId table) { return "table-" + hex(static_cast<std::uint32_t>(table), 8) + ".checkpoint"; }
std::optional<std::uint64_t> segment_number(Bytes name) { return between(name, "log-", 16, ".segment"); }
std::optional<TableId> checkpoint_table(Bytes name) {
  const auto number = between(name, "table-", 8, ".checkpoint");
  if (!number) return {};
  return TableId{static_cast<std::uint32_t>(*number)};
}

std::string encode_store_file(const StoreFile& about) {
  std::string out(kStoreMagic, 8);
  base::Writer w(out);
  w.u32(kFormat);
  w.u32(0);
  w.u64(about.id);
  w.u64(about.created_ms);
  w.u32(0);
  w.u32(base::crc32c(out));
  return out;
}

Result<StoreFile> parse_store_file(Bytes bytes, const std::string& path) {
  if (bytes.size() < 8 || bytes.substr(0, 8) != Bytes(kStoreMagic, 8))
    return base::fail(Code::invalid, path, ": not a store's file");
  if (bytes.size() < kStoreFileSize)
    return base::fail(Code::corrupt, path, ": ", bytes.size(), " bytes, expected ", kStoreFileSize);
  base::Reader in(bytes);
  in.raw(8);
  const std::uint32_t format = in.u32();
  const std::uint32_t found = base::crc32c(bytes.substr(0, kStoreFileSize - 4));
  const std::uint32_t expected = base::load<std::uint32_t>(bytes.data() + kStoreFileSize - 4);
  if (found != expected) return base::fail(Code::corrupt, path, ": checksum ", found, ", expected ", expected);
  TRY(check_format(format, path));
  in.u32();
  StoreFile about;
  about.id = in.u64();
  about.created_ms = in.u64();
  return about;
}

std::string encode_segment_header(const SegmentHeader& header) {
  std::string out(kSegmentMagic, 8);
  base::Writer w(out);
  w.u32(kFormat);
  w.u32(0);
  w.u64(header.store);
  w.u64(header.number);
  w.u64(header.begin);
  w.u64(header.needed_from);
  w.u64(header.size);
  w.u32(header.reused ? kReused : 0);
  w.u32(base::crc32c(out));
  return out;
}

Result<HeaderState> parse_segment_header(Bytes bytes, const std::string& path, SegmentHeader& header) {
  bytes = bytes.substr(0, kSegmentHeaderSize);
  if (std::all_of(bytes.begin(), bytes.end(), [](char c) { return c == '\0'; })) return HeaderState::blank;
  if (bytes.size() < kSegmentHeaderSize || bytes.substr(0, 8) != Bytes(kSegmentMagic, 8)) return HeaderState::bad;
  if (base::crc32c(bytes.substr(0, kSegmentHeaderSize - 4)) != base::load<std::uint32_t>(bytes.data() + kSegmentHeaderSize - 4))
    return HeaderState::bad;
  base::Reader in(bytes);
  in.raw(8);
  TRY(check_format(in.u32(), path));
  in.u32();
  header.store = in.u64();
  header.number = in.u64();
  header.begin = in.u64();
  header.needed_from = in.u64();
  header.size = in.u64();
  header.reused = (in.u32() & kReused) != 0;
  return HeaderState::good;
}

std::uint64_t segment_salt(std::uint64_t store, std::uint64_t number) {
  char both[16];
  base::store(both, store);
  base::store(both + 8, number);
  return base::hash64(Bytes(both, sizeof both));
}

#if defined(__x86_64__)
namespace {
// One pass over a record of which every part is a multiple of eight bytes.
__attribute__((target("sse4.2"))) void seal_sse42(char* to, std::size_t size, std::uint64_t salt, std::uint64_t offset) {
  std::uint64_t state = _mm_crc32_u64(_mm_crc32_u64(0xffffffff, salt), offset);
  std::size_t at = 8;
  for (; at < kRecordHeaderSize; at += 8) state = _mm_crc32_u64(state, base::load<std::uint64_t>(to + at));
  base::store(to + 4, ~static_cast<std::uint32_t>(state));
  for (; at < size; at += 8) state = _mm_crc32_u64(state, base::load<std::uint64_t>(to + at));
  base::store(to, ~static_cast<std::uint32_t>(state));
}
const bool kFastSeal = __builtin_cpu_supports("sse4.2");
}  // namespace
#endif

void seal_record(char* to, std::size_t size, std::uint64_t salt, std::uint64_t offset) {
#if defined(__x86_64__)
  if (kFastSeal) return seal_sse42(to, size, salt, offset);
#endif
  const std::uint32_t header = base::crc32c(Bytes(to + 8, kRecordHeaderSize - 8), seed_of(salt, offset));
  base::store(to + 4, header);
  base::store(to, base::crc32c(Bytes(to + kRecordHeaderSize, size - kRecordHeaderSize), header));
}

std::optional<Record> parse_record_header(Bytes bytes, std::uint64_t offset, std::uint64_t salt) {
  if (bytes.size() < kRecordHeaderSize) return {};
  const char* const from = bytes.data();
  // The header's own checksum comes first: what it does not vouch for is not believed, its size least of all.
  if (base::crc32c(Bytes(from + 8, kRecordHeaderSize - 8), seed_of(salt, offset)) != base::load<std::uint32_t>(from + 4)) return {};
  Record record;
  record.type = static_cast<RecordType>(from[28]);
  record.table = TableId{base::load<std::uint32_t>(from + 12)};
  record.version = base::load<std::uint64_t>(from + 16);
  record.size = padded(base::load<std::uint32_t>(from + 8));
  return record;
}

std::optional<Record> parse_record(Bytes segment, std::uint64_t offset, std::uint64_t salt, Position position, std::string* why) {
  return parse_record_at(segment.substr(std::min<std::uint64_t>(offset, segment.size())), offset, salt, position, why);
}

std::optional<Record> parse_record_at(Bytes bytes, std::uint64_t offset, std::uint64_t salt, Position position, std::string* why) {
  const auto bad = [&](const auto&... parts) {
    if (why != nullptr) *why = base::fail(Code::corrupt, parts...).message;
    return std::nullopt;
  };
  if (bytes.size() < kRecordHeaderSize) return bad("the file ends");
  auto head = parse_record_header(bytes, offset, salt);
  if (!head) return bad("no record begins here");
  Record& record = *head;
  const char* const from = bytes.data();
  const std::uint32_t exact = base::load<std::uint32_t>(from + 8);
  const std::uint8_t type = static_cast<std::uint8_t>(from[28]), flags = static_cast<std::uint8_t>(from[29]);
  if (exact < kRecordHeaderSize || exact > kMaxRecordSize || type < 1 || type > 5 || (flags & ~(kHasEpoch | kHasNote)) != 0)
    return bad("a record's header of ", exact, " bytes and type ", int{type}, " that makes no sense");
  const auto name = [&] {
    return "the record of table " + std::to_string(static_cast<std::uint32_t>(record.table)) + " version " + std::to_string(record.version);
  };
  if (record.size > bytes.size()) return bad(name(), " of ", exact, " bytes goes beyond the end of the file");
  const std::uint32_t found = base::crc32c(Bytes(from + kRecordHeaderSize, record.size - kRecordHeaderSize),
                                           base::load<std::uint32_t>(from + 4));
  if (const auto expected = base::load<std::uint32_t>(from); found != expected)
    return bad(name(), " has checksum ", found, ", expected ", expected);
  const std::uint64_t behind = std::uint64_t{base::load<std::uint32_t>(from + 24)} * 8;
  record.durable = position > behind ? position - behind : 0;
  record.change_count = base::load<std::uint16_t>(from + 30);
  base::Reader in(Bytes(from + kRecordHeaderSize, exact - kRecordHeaderSize));
  if (flags & kHasEpoch) record.epoch = in.u64();
  if (flags & kHasNote) record.note = in.str();
  if (!in.ok()) return bad(name(), " is shorter than its parts");
  record.changes = in.raw(in.left());
  return head;
}

std::optional<Change> ChangeReader::next() {
  if (left_ == 0 || !ok_) {
    ok_ = ok_ && in_.done();
    return {};
  }
  left_--;
  const std::uint8_t kind = in_.u8();
  const std::uint16_t key_size = in_.u16();
  const std::uint32_t value_size = in_.u32();
  Change change;
  if (kind & kHasExpiry) change.expires = base::from_millis(in_.u64());
  change.kind = static_cast<Change::Kind>(kind & ~kHasExpiry);
  change.key = in_.raw(key_size);
  change.value = in_.raw(value_size);
  const bool known = restores_ ? change.kind == Change::Kind::remove || change.kind == kRestore
                               : change.kind >= Change::Kind::insert && change.kind <= Change::Kind::remove;
  ok_ = in_.ok() && key_size > 0 && known;
  if (!ok_) return {};
  return change;
}

std::string checkpoint_magic() {
  std::string out(kCheckpointMagic, 8);
  base::Writer w(out);
  w.u32(kFormat);
  w.u32(base::crc32c(out));
  return out;
}

void append_block(std::string& out, BlockKind kind, Bytes payload, std::uint64_t offset) {
  char header[kBlockHeaderSize];
  base::store(header + 4, static_cast<std::uint32_t>(kind));
  base::store(header + 8, std::uint64_t{payload.size()});
  base::store(header + 16, offset);
  base::store(header, base::crc32c(payload, base::crc32c(Bytes(header + 4, sizeof header - 4))));
  out.append(header, sizeof header);
  out.append(payload);
}

std::optional<Block> parse_block(Bytes file, std::uint64_t offset) {
  return parse_block_at(file.substr(std::min<std::uint64_t>(offset, file.size())), offset);
}

std::optional<Block> parse_block_at(Bytes bytes, std::uint64_t offset) {
  if (bytes.size() < kBlockHeaderSize) return {};
  const char* const from = bytes.data();
  const std::uint64_t size = base::load<std::uint64_t>(from + 8);
  if (size > bytes.size() - kBlockHeaderSize || base::load<std::uint64_t>(from + 16) != offset) return {};
  const Bytes payload(from + kBlockHeaderSize, size);
  if (base::crc32c(payload, base::crc32c(Bytes(from + 4, kBlockHeaderSize - 4))) != base::load<std::uint32_t>(from)) return {};
  const std::uint32_t kind = base::load<std::uint32_t>(from + 4);
  if (kind < 1 || kind > 5) return {};
  return Block{static_cast<BlockKind>(kind), payload, kBlockHeaderSize + size};
}

std::string encode_checkpoint_header(const CheckpointHeader& header) {
  std::string out;
  base::Writer w(out);
  w.u64(header.store);
  w.u32(static_cast<std::uint32_t>(header.table));
  w.u32(0);
  w.u64(header.version);
  w.u64(header.epoch);
  w.u64(header.position);
  return out;
}
std::optional<CheckpointHeader> parse_checkpoint_header(Bytes payload) {
  base::Reader in(payload);
  CheckpointHeader header;
  header.store = in.u64();
  header.table = TableId{in.u32()};
  in.u32();
  header.version = in.u64();
  header.epoch = in.u64();
  header.position = in.u64();
  if (!in.done()) return {};
  return header;
}

std::string encode_checkpoint_end(const CheckpointEnd& end) {
  std::string out;
  base::Writer w(out);
  w.u64(end.entries);
  w.u64(end.version);
  w.u64(end.position);
  return out;
}
std::optional<CheckpointEnd> parse_checkpoint_end(Bytes payload) {
  base::Reader in(payload);
  CheckpointEnd end;
  end.entries = in.u64();
  end.version = in.u64();
  end.position = in.u64();
  if (!in.done()) return {};
  return end;
}

std::optional<CheckpointEntry> parse_checkpoint_entry(base::Reader& in) {
  CheckpointEntry entry;
  const std::uint8_t flags = in.u8();
  const std::uint16_t key_size = in.u16();
  entry.version = in.u64();
  if (flags & 1) entry.expires_ms = std::min(in.u64(), base::kLatestMillis);
  entry.value_size = in.u64();
  if (flags & 2) entry.fragment_count = in.u32();
  entry.key = in.raw(key_size);
  if (!in.ok() || flags > 3 || key_size == 0 || entry.fragment_count == 0) return {};
  entry.fragment_ends = in.raw(std::size_t{8} * (entry.fragment_count - 1));
  entry.value = in.raw(entry.value_size);
  if (!in.ok()) return {};
  std::uint64_t last = 0;
  for (std::uint32_t i = 0; i < entry.fragment_count; i++) {
    const std::uint64_t end = entry.fragment_end(i);
    if (end < last || end > entry.value_size) return {};
    last = end;
  }
  return entry;
}

void append_restored(std::string& out, const Restored& entry) {
  base::Writer w(out);
  const bool expires = entry.expires != base::kNever, fragments = entry.fragment_ends.size() > 1;
  w.u8(static_cast<std::uint8_t>((expires ? 1 : 0) | (fragments ? 2 : 0)));
  w.u16(static_cast<std::uint16_t>(entry.key.size()));
  w.u64(entry.version);
  if (expires) w.u64(base::to_millis(entry.expires));
  w.u64(entry.value.size());
  if (fragments) w.u32(static_cast<std::uint32_t>(entry.fragment_ends.size()));
  w.raw(entry.key);
  for (std::size_t i = 0; i + 1 < entry.fragment_ends.size(); i++) w.u64(entry.fragment_ends[i]);
  w.raw(entry.value);
}

std::string snapshot_magic() {
  std::string out(kSnapshotMagic, 8);
  base::Writer w(out);
  w.u32(kSnapshotFormat);
  w.u32(base::crc32c(out));
  return out;
}

Result<void> check_snapshot_magic(Bytes bytes) {
  if (bytes.size() < kCheckpointMagicSize || bytes.substr(0, 8) != Bytes(kSnapshotMagic, 8))
    return base::fail(Code::invalid, "snapshot offset 0: these are not a snapshot's bytes");
  if (base::crc32c(bytes.substr(0, 12)) != base::load<std::uint32_t>(bytes.data() + 12))
    return base::fail(Code::corrupt, "snapshot offset 0: its first bytes are damaged");
  if (const auto format = base::load<std::uint32_t>(bytes.data() + 8); format != kSnapshotFormat)
    return base::fail(Code::unsupported, "snapshot format ", format, "; this build knows format ", kSnapshotFormat);
  return {};
}

void append_snapshot_record(std::string& out, Version version, std::uint64_t epoch, Bytes note, std::span<const Change> changes) {
  RecordFields fields;
  fields.version = version;
  fields.epoch = epoch;
  fields.note = note;
  fields.changes = changes;
  const std::size_t size = record_size(changes, note, epoch), head = record_head_size(note, epoch);
  std::string record(size, '\0');
  write_record(record.data(), size, fields, 0, 0);
  base::Writer w(out);
  w.u64(version);
  w.u64(epoch);
  w.str(note);
  w.u16(static_cast<std::uint16_t>(changes.size()));
  w.str(Bytes(record).substr(head, base::load<std::uint32_t>(record.data() + 8) - head));
}

std::optional<SnapshotRecord> parse_snapshot_record(base::Reader& in) {
  SnapshotRecord record;
  record.version = in.u64();
  record.epoch = in.u64();
  record.note = in.str();
  record.change_count = in.u16();
  record.changes = in.str();
  if (!in.ok()) return {};
  return record;
}

}  // namespace novoht::core

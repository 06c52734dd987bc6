#include "zht/backup/blocks.h"

namespace zht::backup {

using base::fail;

namespace {

constexpr std::uint8_t kExpires = 1, kFragments = 2;

Error damaged(std::string_view what) { return fail(Code::corrupt, "a backup's block: ", what); }

}  // namespace

void append_block(std::string& out, BlockKind kind, PartitionId partition, Bytes payload) {
  const std::size_t start = out.size();
  base::Writer writer(out);
  writer.u32(static_cast<std::uint32_t>(kind));
  writer.u32(static_cast<std::uint32_t>(partition));
  writer.u64(payload.size());
  const std::uint32_t crc = base::crc32c(payload, base::crc32c(Bytes(out).substr(start)));
  writer.u32(crc);
  writer.u32(0);
  writer.raw(payload);
}

Result<std::optional<Block>> next_block(Bytes bytes) {
  if (bytes.size() < kBlockHeaderSize) return std::optional<Block>{};
  base::Reader reader(bytes);
  const std::uint32_t kind = reader.u32(), partition = reader.u32();
  const std::uint64_t size = reader.u64();
  const std::uint32_t crc = reader.u32();
  if (kind < 1 || kind > 4 || size > kMaxBlockSize || reader.u32() != 0) return damaged("its header cannot be");
  if (bytes.size() - kBlockHeaderSize < size) return std::optional<Block>{};
  const Bytes payload = bytes.substr(kBlockHeaderSize, size);
  if (base::crc32c(payload, base::crc32c(bytes.substr(0, 16))) != crc) return damaged("its checksum is wrong");
  return std::optional<Block>({static_cast<BlockKind>(kind), PartitionId{partition}, payload, kBlockHeaderSize + payload.size()});
}

void append_entry(std::string& out, const Entry& entry) {
  base::Writer writer(out);
  const bool expires = entry.expires != base::kNever, fragments = entry.fragment_ends.size() > 1;
  writer.u8(static_cast<std::uint8_t>((expires ? kExpires : 0) | (fragments ? kFragments : 0)));
  writer.u16(static_cast<std::uint16_t>(entry.key.size()));
  writer.u64(entry.version);
  if (expires) writer.u64(base::to_millis(entry.expires));
  writer.u64(entry.value.size());
  if (fragments) writer.u32(static_cast<std::uint32_t>(entry.fragment_ends.size()));
  writer.raw(entry.key);
  if (fragments)
    for (std::size_t i = 0; i + 1 < entry.fragment_ends.size(); i++) writer.u64(entry.fragment_ends[i]);
  writer.raw(entry.value);
}

Result<Entry> EntryReader::next() {
  Entry entry;
  const std::uint8_t flags = in_.u8();
  const std::uint16_t key_size = in_.u16();
  entry.version = in_.u64();
  if (flags & kExpires) entry.expires = base::from_millis(in_.u64());
  const std::uint64_t size = in_.u64();
  const std::uint32_t count = flags & kFragments ? in_.u32() : 1;
  entry.key = in_.raw(key_size);
  if (!in_.ok() || flags > (kExpires | kFragments) || key_size == 0 || count == 0 || count - 1 > in_.left() / 8)
    return damaged("an entry that cannot be");
  if (flags & kFragments) {
    for (std::uint32_t i = 0; i + 1 < count; i++) {
      const std::uint64_t end = in_.u64();
      if (end > size || (!entry.fragment_ends.empty() && end < entry.fragment_ends.back())) return damaged("fragments that cannot be");
      entry.fragment_ends.push_back(end);
    }
    entry.fragment_ends.push_back(size);
  }
  entry.value = in_.raw(size);
  if (!in_.ok()) return damaged("an entry that is cut off");
  return entry;
}

void append_key(std::string& out, Bytes key) {
  base::Writer writer(out);
  writer.u16(static_cast<std::uint16_t>(key.size()));
  writer.raw(key);
}

Result<std::vector<Bytes>> parse_removed(Bytes payload) {
  std::vector<Bytes> keys;
  for (base::Reader in(payload); in.left() > 0;) {
    keys.push_back(in.raw(in.u16()));
    if (!in.ok() || keys.back().empty()) return damaged("a removed key that cannot be");
  }
  return keys;
}

Result<std::vector<std::uint64_t>> parse_kept(Bytes payload) {
  if (payload.size() % 8 != 0) return damaged("marks of kept keys that cannot be");
  std::vector<std::uint64_t> marks(payload.size() / 8);
  if (!payload.empty()) std::memcpy(marks.data(), payload.data(), payload.size());
  return marks;
}

std::string encode_end(const End& end) {
  std::string out;
  base::Writer writer(out);
  writer.u64(end.entries);
  writer.u64(end.kept);
  writer.u64(end.version);
  return out;
}

Result<End> parse_end(Bytes payload) {
  base::Reader in(payload);
  End end{in.u64(), in.u64(), in.u64()};
  if (!in.done()) return damaged("an end that cannot be");
  return end;
}

}  // namespace zht::backup

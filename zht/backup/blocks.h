// A partition's part of a backup as bytes: blocks, each with its checksum, as a node sends them and as they lie in the file
// (FORMAT.md). Functions from bytes to bytes.
//
//   std::string payload, out;
//   append_entry(payload, {.key = "k", .version = 3, .value = "v"});
//   append_block(out, BlockKind::entries, PartitionId{7}, payload);
//   ...
//   TRY_LET(block, next_block(rest));                     // nothing: it is not complete yet
//   for (EntryReader in(block->payload); in.more();) { TRY_LET(entry, in.next()); ... }
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "zht/types.h"

namespace zht::backup {

enum class BlockKind : std::uint32_t {
  entries = 1,  // keys with all there is of them
  kept = 2,     // on the way only: marks (mark_of) of keys that are as they were in the backup before
  removed = 3,  // in the file only: keys of the backup before that are gone
  end = 4,      // nothing more comes of this partition
};

inline constexpr std::size_t kBlockHeaderSize = 24;
inline constexpr std::uint64_t kMaxBlockSize = std::uint64_t{1} << 40;  // of a payload; more is damage

struct Block {
  BlockKind kind = BlockKind::end;
  PartitionId partition{0};
  Bytes payload;         // borrowed
  std::size_t size = 0;  // with its header
};
void append_block(std::string& out, BlockKind kind, PartitionId partition, Bytes payload);
// The first block of `bytes`; nothing where it is not complete. corrupt: a checksum, kind or size that is wrong.
Result<std::optional<Block>> next_block(Bytes bytes);

// A key with all there is of it; borrowed.
struct Entry {
  Bytes key;
  Version version = 0;
  base::WallTime expires = base::kNever;
  Bytes value;
  std::vector<std::uint64_t> fragment_ends;  // of all fragments; none: the value is one
};
void append_entry(std::string& out, const Entry& entry);
class EntryReader {
 public:
  explicit EntryReader(Bytes payload) : in_(payload) {}
  bool more() const { return in_.ok() && in_.left() > 0; }
  Result<Entry> next();  // corrupt

 private:
  base::Reader in_;
};

// Of one key in one version: what stands for it among those that are kept. Two of one partition that are equal are told from each
// other by neither side; then the partition is taken whole.
inline std::uint64_t mark_of(Bytes key, Version version) { return base::hash64(key, version); }

void append_key(std::string& out, Bytes key);                  // of a `removed` block
Result<std::vector<Bytes>> parse_removed(Bytes payload);       // borrowed. corrupt
Result<std::vector<std::uint64_t>> parse_kept(Bytes payload);  // corrupt

struct End {
  std::uint64_t entries = 0, kept = 0;  // that came before it
  Version version = 0;                  // of the partition
};
std::string encode_end(const End& end);
Result<End> parse_end(Bytes payload);  // corrupt

}  // namespace zht::backup

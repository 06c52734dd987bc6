// Where the content of each file lies in a backup: FORMAT.md, "In a backup", in code. Functions from bytes to bytes.
//
// A backup has a pack, pieces of files one after the other, and an index, which says of every file which pieces make it up. A piece may
// lie in the pack of a backup that this one builds on: what did not change is not written again.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "fusionfs/core/format.h"

namespace fusionfs {

inline constexpr std::uint64_t kBackupPiece = std::uint64_t{1} << 20;  // bytes of a file, from a multiple of this on

struct Piece {
  std::uint64_t offset = 0;  // in the file
  std::uint32_t size = 0;
  std::uint32_t below = 0;   // whose pack: 0 this backup's, 1 that of the one it builds on, and so on
  std::uint64_t place = 0;   // in the pack
  std::uint32_t sum = 0;     // CRC32C
  bool operator==(const Piece&) const = default;
};

struct SavedFile {
  enum Flag : std::uint8_t {
    kMoved = 1,  // it was changed after the cut and before it was read: the bytes are later ones
    kLost = 2,   // it went before it was read
  };
  std::uint64_t revision = 0;  // of the inode whose content this is
  std::uint64_t size = 0;
  std::uint8_t flags = 0;
  std::vector<Piece> pieces;  // in order; what lies between is zeros
};
using SavedFiles = std::map<InodeId, SavedFile>;

std::string encode_saved(const SavedFiles& files);
base::Result<SavedFiles> parse_saved(Bytes bytes);  // corrupt, unsupported

}  // namespace fusionfs

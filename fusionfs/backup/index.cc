#include "fusionfs/backup/index.h"

#include "fusionfs/data/content.h"

namespace fusionfs {

using base::Code;
using base::fail;

namespace {

constexpr char kMagic[] = "FFSBKidx";
constexpr std::uint32_t kSavedFormat = 1;

}  // namespace

std::string encode_saved(const SavedFiles& files) {
  std::string out(kMagic, 8);
  base::Writer writer(out);
  writer.u32(kSavedFormat);
  writer.u64(files.size());
  for (const auto& [inode, file] : files) {
    writer.u64(raw(inode));
    writer.u64(file.revision);
    writer.u64(file.size);
    writer.u8(file.flags);
    writer.u32(static_cast<std::uint32_t>(file.pieces.size()));
    for (const Piece& piece : file.pieces) {
      writer.u64(piece.offset);
      writer.u32(piece.size);
      writer.u32(piece.below);
      writer.u64(piece.place);
      writer.u32(piece.sum);
    }
  }
  writer.u32(base::crc32c(out));
  return out;
}

base::Result<SavedFiles> parse_saved(Bytes bytes) {
  const auto damaged = [](std::string_view what) { return fail(Code::corrupt, "a backup's list of files: ", what); };
  if (bytes.size() < 24 || bytes.substr(0, 8) != Bytes(kMagic, 8)) return damaged("it is none");
  if (const auto format = base::load<std::uint32_t>(bytes.data() + 8); format != kSavedFormat)
    return fail(Code::unsupported, "a backup's list of files of format ", format, "; this build reads ", kSavedFormat);
  if (base::load<std::uint32_t>(bytes.data() + bytes.size() - 4) != base::crc32c(bytes.substr(0, bytes.size() - 4)))
    return damaged("its checksum is wrong");
  base::Reader in(bytes.substr(12, bytes.size() - 16));
  SavedFiles files;
  for (std::uint64_t left = in.u64(); left > 0 && in.ok(); left--) {
    const InodeId inode{in.u64()};
    SavedFile& file = files[inode];
    file.revision = in.u64();
    file.size = in.u64();
    file.flags = in.u8();
    const std::uint32_t count = in.u32();
    if (file.size > kMaxFileSize || count > in.left() / 28) return damaged("a file that cannot be");
    std::uint64_t end = 0;
    for (std::uint32_t i = 0; i < count; i++) {
      Piece piece{in.u64(), in.u32(), in.u32(), in.u64(), in.u32()};
      if (piece.size == 0 || piece.size > kBackupPiece || piece.offset < end || piece.offset > file.size || file.size - piece.offset < piece.size ||
          piece.place > (std::uint64_t{1} << 60))
        return damaged("a piece that cannot be");
      end = piece.offset + piece.size;
      file.pieces.push_back(piece);
    }
  }
  if (!in.done()) return damaged("it does not end where it should");
  return files;
}

}  // namespace fusionfs

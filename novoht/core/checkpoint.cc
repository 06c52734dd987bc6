#include "novoht/core/checkpoint.h"

#include <algorithm>

#include "novoht/core/recovery.h"

namespace novoht::core {
namespace {

void append_entry(std::string& out, const Entry& entry) {
  const std::uint32_t fragments = entry.fragment_count();
  base::Writer w(out);
  w.u8(static_cast<std::uint8_t>((entry.expires ? 1 : 0) | (fragments != 1 ? 2 : 0)));
  w.u16(entry.key_size);
  w.u64(entry.version);
  if (entry.expires) w.u64(entry.expires_ms());
  w.u64(entry.size());
  if (fragments != 1) w.u32(fragments);
  w.raw(entry.key());
  for (std::uint32_t i = 0; i + 1 < fragments; i++) w.u64(entry.fragment_end(i));
  entry.read(0, entry.size(), out);
}

}  // namespace

Result<std::unique_ptr<CheckpointWriter>> CheckpointWriter::begin(base::FileSystem& files, std::string path,
                                                                  const CheckpointHeader& header, Bytes attachment) {
  const std::string temporary = path + ".new";
  TRY_LET(file, files.open(temporary, base::OpenMode::create));
  std::unique_ptr<CheckpointWriter> writer(new CheckpointWriter(files, std::move(path), std::move(file), header));
  TRY(writer->file_->truncate(0));
  const std::string magic = checkpoint_magic();
  TRY(writer->file_->write_at(0, magic));
  writer->offset_ = magic.size();
  TRY(writer->write(BlockKind::header, encode_checkpoint_header(header)));
  TRY(writer->write(BlockKind::attachment, attachment));
  return writer;
}

CheckpointWriter::~CheckpointWriter() {
  if (finished_) return;
  file_.reset();
  (void)files_.remove(path_ + ".new").has_value();
}

Result<void> CheckpointWriter::write(BlockKind kind, Bytes payload) {
  buffer_.clear();
  append_block(buffer_, kind, payload, offset_);
  TRY(file_->write_at(offset_, buffer_));
  offset_ += buffer_.size();
  return {};
}

bool CheckpointWriter::take_some(const Table& table, std::size_t bytes) {
  block_.clear();
  while (!walked_ && block_.size() < bytes) {
    cursor_ = table.walk(cursor_, std::clamp<std::size_t>(bytes / 64, 1, 32), [&](const Entry& entry) {
      append_entry(block_, entry);
      entries_++;
    });
    walked_ = cursor_ == 0;
  }
  return walked_;
}

Result<void> CheckpointWriter::write_taken() {
  if (block_.empty()) return {};
  return write(BlockKind::entries, block_);
}

Result<void> CheckpointWriter::finish(const CheckpointEnd& end, const std::string& folder) {
  TRY(write(BlockKind::end, encode_checkpoint_end(end)));
  TRY(file_->sync());
  file_.reset();
  TRY(files_.rename(path_ + ".new", path_));
  finished_ = true;
  return files_.sync_folder(folder);
}

Result<Checkpoint> read_checkpoint(base::FileSystem& files, const std::string& path, std::uint64_t store, TableId table,
                                   const std::function<Result<void>(const CheckpointHeader&, Bytes attachment)>& on_attachment,
                                   const std::function<void(const CheckpointEntry&)>& on_entry) {
  TRY_LET(bytes, read_file(files, path));
  if (bytes.size() < kCheckpointMagicSize || Bytes(bytes).substr(0, 8) != Bytes(checkpoint_magic()).substr(0, 8))
    return base::fail(Code::corrupt, path, " offset 0: not a checkpoint");
  if (base::crc32c(Bytes(bytes).substr(0, 12)) != base::load<std::uint32_t>(bytes.data() + 12))
    return base::fail(Code::corrupt, path, " offset 0: the checkpoint's first bytes are damaged");
  if (const auto format = base::load<std::uint32_t>(bytes.data() + 8); format != kFormat)
    return base::fail(Code::unsupported, path, ": format ", format, "; this build knows format ", kFormat);

  Checkpoint read;
  std::uint64_t at = kCheckpointMagicSize, entries = 0;
  const auto damaged = [&](std::string_view what) { return base::fail(Code::corrupt, path, " offset ", at, ": ", what); };
  for (int step = 0;; step++) {
    const auto block = parse_block(bytes, at);
    if (!block) return damaged("no good block");
    if (step == 0) {
      const auto header = block->kind == BlockKind::header ? parse_checkpoint_header(block->payload) : std::nullopt;
      if (!header) return damaged("no checkpoint header");
      if (header->store != store || header->table != table)
        return damaged("the checkpoint of another store or table");
      read.header = *header;
    } else if (step == 1) {
      if (block->kind != BlockKind::attachment) return damaged("no attachment");
      TRY(on_attachment(read.header, block->payload));
    } else if (block->kind == BlockKind::entries) {
      base::Reader in(block->payload);
      while (in.left() > 0) {
        const auto entry = parse_checkpoint_entry(in);
        if (!entry) return damaged("a malformed entry");
        on_entry(*entry);
        entries++;
      }
    } else {
      const auto end = block->kind == BlockKind::end ? parse_checkpoint_end(block->payload) : std::nullopt;
      if (!end || end->entries != entries) return damaged("a checkpoint's end that does not fit");
      if (at + block->size != bytes.size()) return damaged("bytes beyond the end");
      read.end = *end;
      read.size = bytes.size();
      return read;
    }
    at += block->size;
  }
}

}  // namespace novoht::core

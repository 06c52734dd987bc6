#include "novoht/core/checkpoint.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "novoht/core/file_bytes.h"
#include "novoht/core/read_ahead.h"

namespace novoht::core {
namespace {

Result<void> append_entry(std::string& out, const Entry& entry, const ColdValues* cold) {
  const std::uint32_t fragments = entry.fragment_count();
  const std::uint64_t size = entry.size();
  const std::size_t before = out.size();
  out.resize(before + 19 + (entry.expires ? 8 : 0) + (fragments != 1 ? 4 : 0) + entry.key_size + 8 * std::size_t{fragments - 1});
  char* at = out.data() + before;
  at[0] = static_cast<char>((entry.expires ? 1 : 0) | (fragments != 1 ? 2 : 0));
  base::store(at + 1, entry.key_size);
  base::store(at + 3, entry.version);
  at += 11;
  if (entry.expires) {
    base::store(at, entry.expires_ms());
    at += 8;
  }
  base::store(at, size);
  at += 8;
  if (fragments != 1) {
    base::store(at, fragments);
    at += 4;
  }
  base::copy_bytes(at, entry.key().data(), entry.key_size);
  at += entry.key_size;
  for (std::uint32_t i = 0; i + 1 < fragments; i++, at += 8) base::store(at, entry.fragment_end(i));
  return entry.read(0, size, cold, out);
}

}  // namespace

Result<std::unique_ptr<CheckpointWriter>> CheckpointWriter::begin(base::FileSystem& files, std::string path,
                                                                  const CheckpointHeader& header, Bytes attachment,
                                                                  std::string_view suffix) {
  std::string temporary = path + std::string(suffix);
  TRY_LET(file, files.open(temporary, base::OpenMode::create));
  std::unique_ptr<CheckpointWriter> writer(
      new CheckpointWriter(files, std::move(path), std::move(temporary), std::move(file), header));
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
  (void)files_.remove(temporary_).has_value();
}

Result<void> CheckpointWriter::write(BlockKind kind, Bytes payload) {
  buffer_.clear();
  append_block(buffer_, kind, payload, offset_);
  TRY(file_->write_at(offset_, buffer_));
  offset_ += buffer_.size();
  return {};
}

Result<bool> CheckpointWriter::take_some(const Table& table, const ColdValues* cold, std::size_t bytes) {
  const std::size_t before = block_.size();
  Result<void> taken;
  while (!walked_ && block_.size() - before < bytes) {
    cursor_ = table.walk(cursor_, std::clamp<std::size_t>(bytes / 64, 1, 32), [&](const Entry& entry) {
      if (!taken) return;
      taken = append_entry(block_, entry, cold);
      entries_++;
    });
    if (!taken) return std::move(taken).error();
    walked_ = cursor_ == 0;
  }
  taken_ += block_.size() - before;
  return walked_;
}

Result<void> CheckpointWriter::write_taken() {
  if (writing_.empty()) return {};
  TRY(write(BlockKind::entries, writing_));
  writing_.clear();
  // Else the disk is idle until the end, and then its sync takes long.
  constexpr std::uint64_t kExpectEvery = std::uint64_t{4} << 20;
  if (offset_ >= expected_until_ + kExpectEvery) {
    file_->expect_sync();
    expected_until_ = offset_;
  }
  return {};
}

Result<void> CheckpointWriter::write_end(const CheckpointEnd& end) {
  TRY(write(BlockKind::end, encode_checkpoint_end(end)));
  block_ = {};
  writing_ = {};
  buffer_ = {};
  file_->expect_sync();
  return {};
}

Result<void> CheckpointWriter::sync() { return file_->sync(); }

Result<void> CheckpointWriter::give_name() {
  file_.reset();
  TRY(files_.rename(temporary_, path_));
  finished_ = true;
  return {};
}

namespace {

constexpr std::size_t kBatch = 512;  // entries read ahead together
constexpr std::size_t kBatchesAhead = 16;

struct Batch {
  std::shared_ptr<char[]> hold;  // what everything here points into
  std::optional<CheckpointHeader> header;
  std::optional<Bytes> attachment;
  std::vector<ReadEntry> entries;
  std::optional<Checkpoint> whole;  // that was the end
  std::optional<base::Error> error;
};

// One thread.
class Reader {
 public:
  Reader(base::FileSystem& files, const std::string& path, std::uint64_t store, TableId table)
      : files_(files), path_(path), store_(store), table_(table) {}

  bool next(Batch& batch) {
    batch = Batch{.entries = std::move(batch.entries)};
    batch.entries.clear();
    if (done_) return false;
    if (auto read = read_some(batch); !read) {
      batch.error = std::move(read).error();
      done_ = true;
    }
    return true;
  }

 private:
  base::Error damaged(std::string_view what) const { return base::fail(Code::corrupt, path_, " offset ", at_, ": ", what); }

  // The next block, or more of the one that is being read.
  Result<void> read_some(Batch& batch) {
    if (file_ == nullptr) TRY(begin());
    if (left_.left() == 0) {
      TRY_LET(block, read_block());
      step_++;
      if (step_ <= 2 || block.kind != BlockKind::entries) {
        batch.hold = piece_.hold;
        return take(block, batch);
      }
      left_ = base::Reader(block.payload);
      block_size_ = block.size;
    }
    batch.hold = piece_.hold;
    while (left_.left() > 0 && batch.entries.size() < kBatch) {
      const auto entry = parse_checkpoint_entry(left_);
      if (!entry) return damaged("a malformed entry");
      batch.entries.push_back({*entry, Table::hash(entry->key)});
      entries_++;
    }
    if (left_.left() == 0) at_ += block_size_;
    return {};
  }

  // The block at at_, into piece_.
  Result<Block> read_block() {
    constexpr std::uint64_t kPiece = std::uint64_t{256} << 10;  // more than a block, as a rule
    const auto here = [this] { return piece_.bytes.substr(std::min(at_ - piece_.offset, std::uint64_t{piece_.bytes.size()})); };
    auto block = parse_block_at(here(), at_);
    if (!block && piece_.end() < file_->size()) {
      TRY_LET(piece, file_->read(at_, kPiece));
      piece_ = std::move(piece);
      if (here().size() >= kBlockHeaderSize) {
        // The size is not yet known to be good, but more than the file it cannot be.
        const std::uint64_t size = base::load<std::uint64_t>(here().data() + 8);
        if (size > here().size() - kBlockHeaderSize && size < file_->size()) {
          TRY_LET(larger, file_->read(at_, kBlockHeaderSize + size));
          piece_ = std::move(larger);
        }
      }
      block = parse_block_at(here(), at_);
    }
    if (!block) return damaged("no good block");
    return *block;
  }

  Result<void> begin() {
    TRY_LET(file, PieceReader::open(files_, path_, pool_));
    file_ = std::move(file);
    TRY_LET(piece, file_->read(0, kCheckpointMagicSize));
    const Bytes bytes = piece.bytes;
    if (bytes.size() < kCheckpointMagicSize || bytes.substr(0, 8) != Bytes(checkpoint_magic()).substr(0, 8))
      return base::fail(Code::corrupt, path_, " offset 0: not a checkpoint");
    if (base::crc32c(bytes.substr(0, 12)) != base::load<std::uint32_t>(bytes.data() + 12))
      return base::fail(Code::corrupt, path_, " offset 0: the checkpoint's first bytes are damaged");
    TRY(check_format(base::load<std::uint32_t>(bytes.data() + 8), path_));
    piece_ = std::move(piece);
    at_ = kCheckpointMagicSize;
    return {};
  }

  // A block other than of entries.
  Result<void> take(const Block& block, Batch& batch) {
    if (step_ == 1) {
      const auto header = block.kind == BlockKind::header ? parse_checkpoint_header(block.payload) : std::nullopt;
      if (!header) return damaged("no checkpoint header");
      if (header->store != store_ || header->table != table_) return damaged("the checkpoint of another store or table");
      batch.header = whole_.header = *header;
    } else if (step_ == 2) {
      if (block.kind != BlockKind::attachment) return damaged("no attachment");
      batch.attachment = block.payload;
    } else {
      const auto end = block.kind == BlockKind::end ? parse_checkpoint_end(block.payload) : std::nullopt;
      if (!end || end->entries != entries_) return damaged("a checkpoint's end that does not fit");
      // Records before the header's position are not looked at: beyond the log's end that would be all that is written from now on.
      // (The end's version may well be lower: the table was taken back meanwhile.)
      if (end->position < whole_.header.position) return damaged("a checkpoint that ended before it was begun");
      if (at_ + block.size != file_->size()) return damaged("bytes beyond the end");
      whole_.end = *end;
      whole_.size = file_->size();
      batch.whole = whole_;
      done_ = true;
    }
    at_ += block.size;
    return {};
  }

  base::FileSystem& files_;
  const std::string path_;
  const std::uint64_t store_;
  const TableId table_;
  PiecePool pool_;
  std::unique_ptr<PieceReader> file_;
  Piece piece_;
  std::uint64_t at_ = 0, block_size_ = 0, entries_ = 0;
  base::Reader left_{Bytes()};  // of the entries in the block at at_
  int step_ = 0;                // blocks begun
  Checkpoint whole_;
  bool done_ = false;
};

}  // namespace

Result<Checkpoint> read_checkpoint(base::FileSystem& files, const std::string& path, std::uint64_t store, TableId table,
                                   const std::function<Result<void>(const CheckpointHeader&, Bytes attachment)>& on_attachment,
                                   const std::function<void(std::span<const ReadEntry>)>& on_entries) {
  // A thread for each of a thousand small ones would cost more than it saves.
  constexpr std::uint64_t kThreadFrom = std::uint64_t{1} << 20;
  bool threaded = files.threads();
  if (threaded) {
    TRY_LET(file, files.open(path, base::OpenMode::read));
    TRY_LET(size, file->size());
    threaded = size >= kThreadFrom;
  }
  Reader reader(files, path, store, table);
  ReadAhead<Batch> batches(threaded, kBatchesAhead, [&reader](Batch& batch) { return reader.next(batch); });
  CheckpointHeader header;
  for (Batch batch; batches.next(batch);) {
    if (batch.error) return *batch.error;
    if (batch.header) header = *batch.header;
    if (batch.attachment) TRY(on_attachment(header, *batch.attachment));
    if (!batch.entries.empty()) on_entries(batch.entries);
    if (batch.whole) return *batch.whole;
  }
  return base::fail(Code::corrupt, path, ": no end");
}

Result<Checkpoint> read_checkpoint(base::FileSystem& files, const std::string& path, std::uint64_t store, TableId table,
                                   const std::function<Result<void>(const CheckpointHeader&, Bytes attachment)>& on_attachment,
                                   const std::function<void(const CheckpointEntry&)>& on_entry) {
  return read_checkpoint(files, path, store, table, on_attachment, [&](std::span<const ReadEntry> entries) {
    for (const ReadEntry& one : entries) on_entry(one.entry);
  });
}

}  // namespace novoht::core

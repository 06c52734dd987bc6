// Checkpoints: one table whole, in one file. A checkpoint is written a slice at a time while the table goes on changing,
// so an entry is as it was at some moment between begin and end; the log's records from the beginning on, played over it,
// make it exact (a change that an entry already has is known by the entry's version). Hence the log up to the end must be
// durable before the file takes its name.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "novoht/core/table.h"

namespace novoht::core {

// Writes <path>.new and renames it to <path>. One thread.
class CheckpointWriter {
 public:
  // `suffix`: of the file until it has its name; it ends in .new, which is what is removed when a store is opened.
  static Result<std::unique_ptr<CheckpointWriter>> begin(base::FileSystem& files, std::string path,
                                                         const CheckpointHeader& header, Bytes attachment,
                                                         std::string_view suffix = ".new");
  ~CheckpointWriter();  // an unfinished one leaves nothing

  // Takes some more of `table`, about `bytes`. Returns whether that was all of it. Errors: those of reading a value from
  // `cold`, which may be null; the checkpoint is then of no use.
  Result<bool> take_some(const Table& table, const ColdValues* cold, std::size_t bytes);
  // What was taken and not handed over. hand_over() while write_taken() is not running, which then writes it, on any one thread
  // and while more is taken.
  std::size_t waiting() const { return block_.size(); }
  void hand_over() { std::swap(block_, writing_); }
  Result<void> write_taken();
  // After all of it was taken and written, on any one thread and in this order: the end of the file; its sync; its name, which
  // holds once the folder is synced. Of several checkpoints each may be done for all of them before the next.
  Result<void> write_end(const CheckpointEnd& end);
  Result<void> sync();
  Result<void> give_name();

  std::uint64_t size() const { return offset_; }
  std::uint64_t entries() const { return entries_; }
  std::uint64_t taken() const { return taken_; }  // bytes of entries
  const CheckpointHeader& header() const { return header_; }

 private:
  CheckpointWriter(base::FileSystem& files, std::string path, std::string temporary, std::unique_ptr<base::File> file,
                   CheckpointHeader header)
      : files_(files), path_(std::move(path)), temporary_(std::move(temporary)), file_(std::move(file)), header_(header) {}
  Result<void> write(BlockKind kind, Bytes payload);

  base::FileSystem& files_;
  const std::string path_, temporary_;
  std::unique_ptr<base::File> file_;
  const CheckpointHeader header_;
  std::uint64_t offset_ = 0, entries_ = 0, cursor_ = 0, taken_ = 0, expected_until_ = 0;
  std::string block_, writing_, buffer_;  // being taken; being written, empty when that is done; the same with its header
  bool walked_ = false, finished_ = false;
};

struct Checkpoint {
  CheckpointHeader header;
  CheckpointEnd end;
  std::uint64_t size = 0;
};
// An entry as it was read, and its key's hash.
struct ReadEntry {
  CheckpointEntry entry;
  std::uint64_t hash = 0;
};
// Reads a checkpoint, calling for the attachment first and then for every entry: many at once, which are valid for the
// call. Errors: corrupt (file and offset), unsupported, io, and the callbacks'. Where the files allow threads, one of its
// own reads and checks ahead.
Result<Checkpoint> read_checkpoint(base::FileSystem& files, const std::string& path, std::uint64_t store, TableId table,
                                   const std::function<Result<void>(const CheckpointHeader&, Bytes attachment)>& on_attachment,
                                   const std::function<void(std::span<const ReadEntry>)>& on_entries);
// The same, one by one.
Result<Checkpoint> read_checkpoint(base::FileSystem& files, const std::string& path, std::uint64_t store, TableId table,
                                   const std::function<Result<void>(const CheckpointHeader&, Bytes attachment)>& on_attachment,
                                   const std::function<void(const CheckpointEntry&)>& on_entry);

}  // namespace novoht::core

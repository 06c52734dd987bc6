// Where file contents lie on a node: a folder of sparse files, one for each chunk of kChunkSize bytes of a FusionFS
// file, named by inode and index. The local file system does what it is good at: holes, caching, punching, syncing.
//
//   TRY_LET(store, ChunkStore::open("/var/lib/zht/chunks"));
//   LocalContent content(*store, inode);
//   TRY(content.write(70 << 20, "hello"));      // makes chunk 1 only; chunk 0 is a hole
//   TRY(content.read(0, buffer, size));         // zeros
//
// 64 MiB chunks rather than 1 MiB: a mount that reads and writes local chunks through the page cache pays one open, one
// descriptor and one fdatasync for each, and gains nothing from smaller ones, which a file system lays out no better.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "fusionfs/core/format.h"
#include "fusionfs/data/chunk_file.h"
#include "fusionfs/data/content.h"
#include "novoht/base/result.h"

namespace fusionfs {

using base::Result;

class ChunkStore {
 public:
  // Opens the folder, making it when absent. Errors: io, no_space; corrupt (its identity file is damaged).
  static Result<std::unique_ptr<ChunkStore>> open(const std::string& folder);
  ~ChunkStore();
  std::uint64_t identity() const { return identity_; }  // random, never 0; inodes name the store that has their content
  const std::string& folder() const { return folder_; }
  const Boots& boots() const { return boots_; }

  // Before it is written to, by whoever will: says that from now on a loss of power may leave bytes and checksums of
  // different age. end_writing(): everything is on the disk, if nobody else writes.
  Result<void> begin_writing();
  void end_writing();

  // Deletes all chunks of an inode whose size was `size` at most, and those directly after it. Any thread.
  Result<void> remove(InodeId inode, std::uint64_t size) const;
  struct Chunk {
    InodeId inode{};
    std::uint64_t index = 0;
  };
  Result<std::vector<Chunk>> list() const;  // every chunk there is
  std::string path_of(InodeId inode, std::uint64_t index) const;

 private:
  ChunkStore() = default;
  Result<void> read_boots();
  Result<void> write_boots(bool clean);
  std::string folder_;
  std::uint64_t identity_ = 0;
  Boots boots_;
  int users_ = -1;  // descriptor of the file whose lock says that somebody writes
};

// Of this node. Reads verify checksums. Several processes of the node may have an object of the same file each: what one writes, cuts
// off or begins anew the others see at their next call.
class LocalContent final : public Content {
 public:
  LocalContent(const ChunkStore& store, InodeId inode) : store_(store), inode_(inode) {}
  LocalContent(const LocalContent&) = delete;
  LocalContent& operator=(const LocalContent&) = delete;

  Result<void> begin_writing(std::uint64_t recorded_size) override;
  Result<void> read(std::uint64_t offset, char* to, std::size_t size) override;
  Result<void> write(std::uint64_t offset, base::Bytes bytes) override;
  Result<void> truncate(std::uint64_t size, std::uint64_t old_size) override;
  Result<void> allocate(std::uint64_t offset, std::uint64_t size) override;
  Result<void> punch(std::uint64_t offset, std::uint64_t size) override;
  Result<void> sync() override;
  Result<std::uint64_t> seek(std::uint64_t offset, std::uint64_t size, bool data) override;
  std::uint64_t blocks(std::uint64_t size) override;
  Result<std::vector<std::uint32_t>> sums(std::uint64_t offset, std::uint64_t count) override;
  // Marks the file as being written, as begin_writing() does, and cuts nothing off.
  Result<void> go_on_writing();
  // False: somebody is writing it. Else nobody begins to until this object goes: begin_writing() waits elsewhere, and finds
  // out if the chunks were removed meanwhile.
  Result<bool> keep_writers_out();

 private:
  using File = std::shared_ptr<ChunkFile>;
  Result<File> chunk(std::uint64_t index, bool make);  // nothing: there is none
  Result<File> chunk_locked(std::uint64_t index, bool make);
  Result<File> known_locked(std::uint64_t index);  // nothing: it is not open here, or was removed
  Result<File> first_locked();
  void forget_counts_locked();
  Result<bool> marked_locked();
  Result<void> go_on_writing_locked();

  const ChunkStore& store_;
  const InodeId inode_;
  std::mutex mutex_;
  std::map<std::uint64_t, File> files_;  // by index. Guarded by mutex_
  std::set<std::uint64_t> unsynced_;     // guarded by mutex_
  // What blocks() has counted, but for `uncounted_`: a commit costs what was written since the last, not the file. Guarded by mutex_
  std::map<std::uint64_t, std::uint64_t> counted_;
  std::set<std::uint64_t> uncounted_;
  std::uint64_t counted_sum_ = 0, counted_chunks_ = 0;
  bool writing_ = false;                 // guarded by mutex_
};

}  // namespace fusionfs

// Where file contents lie on a node: a folder of sparse files, one for each chunk of kChunkSize bytes of a FusionFS
// file, named by inode and index. The local file system does what it is good at: holes, caching, punching, syncing.
//
//   TRY_LET(store, ChunkStore::open("/var/lib/zht/chunks"));
//   Content content(*store, inode);
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
#include <string>
#include <vector>

#include "fusionfs/core/format.h"
#include "novoht/base/result.h"

namespace fusionfs {

using base::Result;

inline constexpr std::uint64_t kChunkSize = std::uint64_t{64} << 20;
inline constexpr std::uint64_t kMaxFileSize = std::uint64_t{1} << 50;  // bytes: 16 million chunks

class ChunkStore {
 public:
  // Opens the folder, making it when absent. Errors: io, no_space; corrupt (its identity file is damaged).
  static Result<std::unique_ptr<ChunkStore>> open(const std::string& folder);
  std::uint64_t identity() const { return identity_; }  // random, never 0; inodes name the store that has their content
  const std::string& folder() const { return folder_; }

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
  std::string folder_;
  std::uint64_t identity_ = 0;
};

// One file's chunks while it is open. Any thread. Errors name the chunk file.
class Content {
 public:
  Content(const ChunkStore& store, InodeId inode) : store_(store), inode_(inode) {}
  ~Content();
  Content(const Content&) = delete;
  Content& operator=(const Content&) = delete;

  // Before the first write: a writer that crashed may have left bytes past the recorded size, which a later, longer
  // file would show. Cuts them off, unless another live mount of this node is writing. Holds that mark until destroyed.
  Result<void> begin_writing(std::uint64_t recorded_size);

  // Fills all of `to`; holes and what lies past the chunks are zeros.
  Result<void> read(std::uint64_t offset, char* to, std::size_t size);
  Result<void> write(std::uint64_t offset, base::Bytes bytes);
  // After it nothing past `size` is left; `old_size` is how long the file was.
  Result<void> truncate(std::uint64_t size, std::uint64_t old_size);
  Result<void> allocate(std::uint64_t offset, std::uint64_t size);  // blocks, no change of what is read
  Result<void> punch(std::uint64_t offset, std::uint64_t size);     // zeros, and the blocks go
  Result<void> sync();                                              // what was written survives a loss of power
  // The next data (or hole) at or after `offset` in a file of `size` bytes; the end is a hole. `size` when there is
  // none.
  Result<std::uint64_t> seek(std::uint64_t offset, std::uint64_t size, bool data);
  std::uint64_t blocks(std::uint64_t size);  // of 512 bytes
  // The open chunk at `offset` for splicing, or -1 when it does not hold all of [offset, offset + size).
  int descriptor(std::uint64_t offset, std::size_t size, std::uint64_t& position);

 private:
  Result<int> chunk(std::uint64_t index, bool make);  // -1: there is none

  const ChunkStore& store_;
  const InodeId inode_;
  std::mutex mutex_;
  std::map<std::uint64_t, int> descriptors_;  // by index. Guarded by mutex_
  std::map<std::uint64_t, bool> unsynced_;    // guarded by mutex_
  bool writing_ = false;                      // guarded by mutex_
};

}  // namespace fusionfs

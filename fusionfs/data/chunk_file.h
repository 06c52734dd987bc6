// One chunk: up to 64 MiB of a file's bytes in a sparse local file, each 4 KiB of them with a checksum that is verified
// whenever it is read. The checksums lie behind the last byte a chunk can have, so that one fdatasync covers both:
//
//   [0, 64 MiB)   the bytes
//   64 MiB        "FCS1", u32 0, u64 boot, u64 0, u64 0
//   64 MiB + 32   u32 CRC32C of each block; 0: not known (nothing was written, or a write did not come to its end)
//
// A write says "not known" first, then writes the bytes, then what their checksum is: a process that is killed between
// leaves blocks that nobody verifies, never blocks that are refused. After a loss of power bytes and checksums may be of
// different age: `boot` says in which life of the machine the chunk was written, and where that life did not end with a
// sync, what does not agree is let pass (and told by scrub).
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "novoht/base/bytes.h"
#include "novoht/base/result.h"

namespace fusionfs {

inline constexpr std::uint64_t kChunkSize = std::uint64_t{64} << 20;
inline constexpr std::uint64_t kBlockSize = 4096;  // of a checksum

// The lives of this machine, as far as a chunk store has seen them.
struct Boots {
  std::uint64_t now = 0;
  std::set<std::uint64_t> clean;  // ended with a sync
  bool doubtful(std::uint64_t boot) const { return boot != 0 && boot != now && clean.count(boot) == 0; }
};

// Any thread, and any process: others may have the same file open. Errors name the file; corrupt also the block.
class ChunkFile {
 public:
  // Nothing when there is no such chunk and `make` is not set.
  static base::Result<std::unique_ptr<ChunkFile>> open(const std::string& path, bool make, const Boots& boots);
  ~ChunkFile();
  ChunkFile(const ChunkFile&) = delete;
  ChunkFile& operator=(const ChunkFile&) = delete;
  int descriptor() const { return fd_; }

  base::Result<void> read(std::uint64_t within, char* to, std::size_t size);
  base::Result<void> write(std::uint64_t within, base::Bytes bytes);
  base::Result<void> keep(std::uint64_t size);  // what follows goes
  base::Result<void> punch(std::uint64_t within, std::uint64_t size);
  base::Result<void> allocate(std::uint64_t within, std::uint64_t size);
  base::Result<void> sync();
  base::Result<std::uint64_t> seek(std::uint64_t within, bool data);  // kChunkSize: there is none (any more)
  base::Result<std::uint64_t> blocks();                                // of 512 bytes, those of the checksums not counted
  base::Result<std::vector<std::uint32_t>> sums(std::uint64_t first, std::uint64_t count);  // as kept; 0: not known

  struct Scrubbed {
    std::uint64_t blocks = 0;         // with data
    std::uint64_t without_sum = 0;    // given one now
    std::vector<std::uint32_t> bad;   // block numbers
  };
  base::Result<Scrubbed> scrub();
  // Puts `good` (a whole block) in place of a block that is still bad. False: it is not bad any more.
  base::Result<bool> heal(std::uint32_t block, base::Bytes good);

 private:
  class Hold;
  ChunkFile(std::string path, int fd, const Boots& boots) : path_(std::move(path)), fd_(fd), boots_(boots) {}
  base::Result<void> read_sums(std::uint64_t first, std::vector<std::uint32_t>& sums) const;
  base::Result<void> write_sums(std::uint64_t first, const std::vector<std::uint32_t>& sums) const;
  base::Result<void> clear_sums(std::uint64_t first, std::uint64_t last) const;
  base::Result<void> read_bytes(std::uint64_t within, char* to, std::size_t size) const;
  base::Result<void> write_bytes(std::uint64_t within, base::Bytes bytes) const;
  base::Result<void> load_block(std::uint64_t block, std::uint32_t sum, char* to);
  base::Result<void> cut(std::uint64_t from, std::uint64_t to);
  base::Result<void> mark();
  base::Result<bool> doubtful() const;
  base::Result<void> verified_read(std::uint64_t within, char* to, std::size_t size);

  const std::string path_;
  const int fd_;
  const Boots& boots_;
  std::mutex mutex_;     // of those who change it
  bool marked_ = false;  // guarded by mutex_
};

}  // namespace fusionfs

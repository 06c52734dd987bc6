// A file's bytes while it is open, wherever they lie: in this node's chunk store, in another's, in several.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "novoht/base/bytes.h"
#include "novoht/base/result.h"

namespace fusionfs {

inline constexpr std::uint64_t kMaxFileSize = std::uint64_t{1} << 50;  // bytes: 16 million chunks

// Any thread. Calls block on the disk, or on the network for a few seconds at most. Errors name the chunk; corrupt: its
// checksum does not agree; unavailable: the node that has it does not answer.
class Content {
 public:
  virtual ~Content() = default;

  // Before the first write: a writer that crashed may have left bytes past the recorded size, which a later, longer
  // file would show. Cuts them off, unless another live mount is writing. Holds that mark until destroyed.
  virtual base::Result<void> begin_writing(std::uint64_t recorded_size) = 0;

  // Fills all of `to`; holes and what lies past the chunks are zeros.
  virtual base::Result<void> read(std::uint64_t offset, char* to, std::size_t size) = 0;
  virtual base::Result<void> write(std::uint64_t offset, base::Bytes bytes) = 0;
  // After it nothing past `size` is left; `old_size` is how long the file was.
  virtual base::Result<void> truncate(std::uint64_t size, std::uint64_t old_size) = 0;
  virtual base::Result<void> allocate(std::uint64_t offset, std::uint64_t size) = 0;  // blocks; the same is read
  virtual base::Result<void> punch(std::uint64_t offset, std::uint64_t size) = 0;     // zeros, and the blocks go
  virtual base::Result<void> sync() = 0;  // what was written survives a loss of power
  // The next data (or hole) at or after `offset` in a file of `size` bytes; the end is a hole. `size` when there is
  // none.
  virtual base::Result<std::uint64_t> seek(std::uint64_t offset, std::uint64_t size, bool data) = 0;
  virtual std::uint64_t blocks(std::uint64_t size) = 0;  // of 512 bytes
  // The checksums of `count` blocks of kBlockSize from `offset` on, both inside one chunk; 0: not known, or nothing was written.
  virtual base::Result<std::vector<std::uint32_t>> sums(std::uint64_t offset, std::uint64_t count) = 0;
  // The chunk stores that missed a change since this was opened: what they have is no copy any more.
  virtual std::vector<std::uint64_t> missed() const { return {}; }
};

}  // namespace fusionfs

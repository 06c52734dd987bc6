// What a mount says to the chunk server of another node, over TCP, one request and one answer at a time:
//
//   frame:    u32 "FCW1", u32 size, u32 CRC32C of what follows, `size` bytes
//   request:  u8 operation, u64 inode, u64 first, u64 second, str bytes
//   answer:   u8 code (base::Code), u64 number, str bytes (of an error: its message)
//
// Before the first frame both ends prove that they belong to the cluster, inside TLS where it has that (chunk_link.h): whoever
// may read and change the file system's names may read and change its bytes, and nobody else. Then `hello` asks which
// store this is: an address may have gone over to another.
#pragma once

#include <cstdint>
#include <string>

#include "fusionfs/core/format.h"
#include "novoht/base/result.h"

namespace fusionfs {

enum class ChunkOperation : std::uint8_t {
  hello = 1,          // Answer: number, the store's identity
  begin_writing = 2,  // first: recorded size
  read = 3,           // first: offset; second: size. Answer: bytes
  write = 4,          // first: offset; bytes
  truncate = 5,       // first: new size; second: old size
  allocate = 6,       // first: offset; second: size
  punch = 7,          // first: offset; second: size
  sync = 8,
  seek_data = 9,   // first: offset; second: the file's size. Answer: number
  seek_hole = 10,  // the same
  blocks = 11,     // first: the file's size. Answer: number
  remove = 12,     // first: the file's size
  sums = 13,       // first: offset; second: count of blocks. Answer: bytes, u32 each
};

struct ChunkRequest {
  ChunkOperation operation = ChunkOperation::hello;
  InodeId inode{};
  std::uint64_t first = 0, second = 0;
  base::Bytes bytes;
};
struct ChunkAnswer {
  base::Code code = base::Code::ok;
  std::uint64_t number = 0;
  std::string bytes;
};

inline constexpr std::size_t kMostChunkBytes = std::size_t{1} << 20;  // of one request or answer

std::string encode(const ChunkRequest& request);
std::string encode(const ChunkAnswer& answer);
// `in` must outlive the request. Nothing: damaged, or an operation that this build does not know.
std::optional<ChunkRequest> decode_chunk_request(base::Bytes in);
std::optional<ChunkAnswer> decode_chunk_answer(base::Bytes in);

}  // namespace fusionfs

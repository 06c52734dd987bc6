#include "fusionfs/data/chunk_protocol.h"

namespace fusionfs {

using base::Bytes;
using base::Code;

std::string encode(const ChunkRequest& request) {
  std::string out;
  out.reserve(32 + request.bytes.size());
  base::Writer to(out);
  to.u8(static_cast<std::uint8_t>(request.operation));
  to.u64(raw(request.inode));
  to.u64(request.first);
  to.u64(request.second);
  to.str(request.bytes);
  return out;
}

std::optional<ChunkRequest> decode_chunk_request(Bytes in) {
  base::Reader from(in);
  ChunkRequest request;
  const std::uint8_t operation = from.u8();
  request.operation = static_cast<ChunkOperation>(operation);
  request.inode = InodeId{from.u64()};
  request.first = from.u64();
  request.second = from.u64();
  request.bytes = from.str();
  if (!from.done() || operation < 1 || operation > 13) return std::nullopt;
  return request;
}

std::string encode(const ChunkAnswer& answer) {
  std::string out;
  out.reserve(16 + answer.bytes.size());
  base::Writer to(out);
  to.u8(static_cast<std::uint8_t>(answer.code));
  to.u64(answer.number);
  to.str(answer.bytes);
  return out;
}

std::optional<ChunkAnswer> decode_chunk_answer(Bytes in) {
  base::Reader from(in);
  ChunkAnswer answer;
  answer.code = static_cast<Code>(from.u8());
  answer.number = from.u64();
  answer.bytes = from.str();
  if (!from.done()) return std::nullopt;
  return answer;
}

}  // namespace fusionfs

#include "fusionfs/data/chunk_protocol.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>

namespace fusionfs {

using base::Bytes;
using base::Code;
using base::fail;
using base::Result;

namespace {

constexpr std::uint32_t kMagic = 0x31574346;  // "FCW1"
constexpr std::size_t kHeader = 12, kMostPayload = kMostChunkBytes + 4096;

Result<void> wait_for(int socket, short events, std::chrono::milliseconds patience) {
  pollfd wanted{socket, events, 0};
  for (;;) {
    const int ready = ::poll(&wanted, 1, static_cast<int>(patience.count()));
    if (ready > 0) return {};
    if (ready == 0) return fail(Code::unavailable, "nothing came or went for ", patience.count(), " ms");
    if (errno != EINTR) return base::fail_errno(errno, "poll");
  }
}

Result<void> receive(int socket, char* to, std::size_t size, std::chrono::milliseconds patience) {
  while (size > 0) {
    TRY(wait_for(socket, POLLIN, patience));
    const ssize_t got = ::recv(socket, to, size, MSG_DONTWAIT);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got < 0) return fail(Code::unavailable, "the connection broke");
    if (got == 0) return fail(Code::unavailable, "the other side has closed the connection");
    to += got;
    size -= static_cast<std::size_t>(got);
  }
  return {};
}

}  // namespace

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
  if (!from.done() || operation < 1 || operation > 12) return std::nullopt;
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

Result<void> send_frame(int socket, Bytes payload, std::chrono::milliseconds patience) {
  std::string frame;
  frame.reserve(kHeader + payload.size());
  base::Writer to(frame);
  to.u32(kMagic);
  to.u32(static_cast<std::uint32_t>(payload.size()));
  to.u32(base::crc32c(payload));
  to.raw(payload);
  Bytes rest = frame;
  while (!rest.empty()) {
    const ssize_t put = ::send(socket, rest.data(), rest.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (put > 0) rest.remove_prefix(static_cast<std::size_t>(put));
    if (put < 0 && errno == EAGAIN) TRY(wait_for(socket, POLLOUT, patience));
    if (put < 0 && errno != EAGAIN && errno != EINTR) return fail(Code::unavailable, "the connection broke");
  }
  return {};
}

Result<std::string> receive_frame(int socket, std::chrono::milliseconds patience) {
  char header[kHeader];
  TRY(receive(socket, header, sizeof header, patience));
  const auto magic = base::load<std::uint32_t>(header), size = base::load<std::uint32_t>(header + 4),
             sum = base::load<std::uint32_t>(header + 8);
  if (magic != kMagic) return fail(Code::corrupt, "what came is no frame of the chunk protocol");
  if (size > kMostPayload) return fail(Code::corrupt, "a frame of ", size, " bytes; ", kMostPayload, " at most");
  std::string payload(size, '\0');
  TRY(receive(socket, payload.data(), size, patience));
  if (base::crc32c(payload) != sum) return fail(Code::corrupt, "a frame of ", size, " bytes: checksum does not agree");
  return payload;
}

}  // namespace fusionfs

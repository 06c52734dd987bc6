#include "fusionfs/data/chunk_link.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "fusionfs/data/chunk_protocol.h"

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
    const int ready = ::poll(&wanted, 1, static_cast<int>(std::max<std::int64_t>(0, patience.count())));
    if (ready > 0) return {};
    if (ready == 0) return fail(Code::unavailable, "nothing came or went for ", patience.count(), " ms");
    if (errno != EINTR) return base::fail_errno(errno, "poll");
  }
}

// 0 bytes: nothing yet.
Result<std::size_t> take(int socket, char* to, std::size_t size) {
  const ssize_t got = ::recv(socket, to, size, MSG_DONTWAIT);
  if (got > 0) return static_cast<std::size_t>(got);
  if (got == 0) return fail(Code::unavailable, "the other side has closed the connection");
  if (errno == EINTR || errno == EAGAIN) return std::size_t{0};
  return fail(Code::unavailable, "the connection broke");
}

}  // namespace

ChunkLink::ChunkLink(int socket, const zht::Opener& opener, zht::Side side)
    : socket_(socket), side_(side), guard_(std::make_unique<zht::Guard>(opener, side)) {}

ChunkLink::~ChunkLink() { ::close(socket_); }

void ChunkLink::shut_down() const { ::shutdown(socket_, SHUT_RDWR); }

bool ChunkLink::wait_for_more(std::chrono::milliseconds patience) const {
  return plain_from_ < plain_.size() || wait_for(socket_, POLLIN, patience).has_value();
}

Result<void> ChunkLink::prove(std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  const auto left = [&] {
    return std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  };
  std::string to_wire;
  if (side_ == zht::Side::asker) guard_->begin(to_wire);
  TRY(send_bytes(to_wire, left()));
  char piece[4096];
  while (!guard_->open()) {
    TRY(wait_for(socket_, POLLIN, left()));
    TRY_LET(got, take(socket_, piece, sizeof piece));
    to_wire.clear();
    const auto heard = guard_->receive(Bytes(piece, got), plain_, to_wire);
    TRY(send_bytes(to_wire, std::max(left(), std::chrono::milliseconds(1))));
    if (!heard) return heard;
  }
  if (guard_->transparent()) guard_.reset();
  return {};
}

Result<void> ChunkLink::send_bytes(Bytes rest, std::chrono::milliseconds patience) const {
  while (!rest.empty()) {
    const ssize_t put = ::send(socket_, rest.data(), rest.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (put > 0) rest.remove_prefix(static_cast<std::size_t>(put));
    if (put < 0 && errno == EAGAIN) TRY(wait_for(socket_, POLLOUT, patience));
    if (put < 0 && errno != EAGAIN && errno != EINTR) return fail(Code::unavailable, "the connection broke");
  }
  return {};
}

// Until there is some of it, decrypted.
Result<void> ChunkLink::receive_guarded(std::chrono::milliseconds patience) {
  thread_local std::string piece(std::size_t{64} << 10, '\0');
  plain_.erase(0, std::exchange(plain_from_, 0));
  while (plain_.empty()) {
    TRY(wait_for(socket_, POLLIN, patience));
    TRY_LET(got, take(socket_, piece.data(), piece.size()));
    std::string to_wire;
    const auto heard = guard_->receive(Bytes(piece).substr(0, got), plain_, to_wire);
    TRY(send_bytes(to_wire, patience));
    if (!heard) return heard;
  }
  return {};
}

Result<void> ChunkLink::receive_bytes(char* to, std::size_t size, std::chrono::milliseconds patience) {
  while (size > 0) {
    if (guard_ && plain_from_ == plain_.size()) TRY(receive_guarded(patience));
    std::size_t got = plain_.copy(to, size, plain_from_);
    plain_from_ += got;
    if (got == 0) {
      TRY(wait_for(socket_, POLLIN, patience));
      TRY_LET(direct, take(socket_, to, size));
      got = direct;
    }
    to += got;
    size -= got;
  }
  return {};
}

Result<void> ChunkLink::send(Bytes payload, std::chrono::milliseconds patience) {
  std::string frame;
  frame.reserve(kHeader + payload.size());
  base::Writer to(frame);
  to.u32(kMagic);
  to.u32(static_cast<std::uint32_t>(payload.size()));
  to.u32(base::crc32c(payload));
  to.raw(payload);
  if (!guard_) return send_bytes(frame, patience);
  std::string to_wire;
  TRY(guard_->send(frame, to_wire));
  return send_bytes(to_wire, patience);
}

Result<std::string> ChunkLink::receive(std::chrono::milliseconds patience) {
  char header[kHeader];
  TRY(receive_bytes(header, sizeof header, patience));
  const auto magic = base::load<std::uint32_t>(header), size = base::load<std::uint32_t>(header + 4),
             sum = base::load<std::uint32_t>(header + 8);
  if (magic != kMagic) return fail(Code::corrupt, "what came is no frame of the chunk protocol");
  if (size > kMostPayload) return fail(Code::corrupt, "a frame of ", size, " bytes; ", kMostPayload, " at most");
  std::string payload(size, '\0');
  TRY(receive_bytes(payload.data(), size, patience));
  if (base::crc32c(payload) != sum) return fail(Code::corrupt, "a frame of ", size, " bytes: checksum does not agree");
  return payload;
}

}  // namespace fusionfs

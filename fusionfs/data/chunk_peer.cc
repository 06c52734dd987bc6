#include "fusionfs/data/chunk_peer.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "fusionfs/data/chunk_file.h"

namespace fusionfs {

using base::Bytes;
using base::Code;
using base::fail;
using base::Result;

namespace {

constexpr std::chrono::milliseconds kConnect{2'000}, kPatience{8'000}, kSyncPatience{60'000};
constexpr std::chrono::seconds kLeftAlone{2}, kSilent{15};  // the latter longer than it takes until its address is forgotten
constexpr std::size_t kMostIdle = 16;

}  // namespace

Result<ChunkPeer::Link> ChunkPeer::connect() {
  const auto colon = address_.rfind(':');
  std::string host = address_.substr(0, colon);
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST;
  addrinfo* found = nullptr;
  if (colon == std::string::npos || ::getaddrinfo(host.c_str(), address_.c_str() + colon + 1, &hints, &found) != 0)
    return fail(Code::unavailable, "chunk store ", identity_, ": ", base::escape(address_), " is no address");
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> guard(found, ::freeaddrinfo);
  const int socket = ::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (socket < 0) return base::fail_errno(errno, "socket");
  int error = ::connect(socket, found->ai_addr, found->ai_addrlen) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    pollfd wanted{socket, POLLOUT, 0};
    int ready = 0;
    do {
      ready = ::poll(&wanted, 1, static_cast<int>(kConnect.count()));
    } while (ready < 0 && errno == EINTR);
    socklen_t size = sizeof error;
    error = ETIMEDOUT;
    if (ready > 0) ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size);
  }
  const int yes = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  auto link = std::make_unique<ChunkLink>(socket, opener_, zht::Side::asker);
  const std::string where = "chunk store " + std::to_string(identity_) + " at " + address_;
  if (error != 0) return fail(Code::unavailable, where, ": ", std::strerror(error));
  if (const auto proven = link->prove(kPatience); !proven) return base::add_context(where, proven.error());
  auto hello = exchange(*link, encode(ChunkRequest{}), kPatience);
  if (!hello) return base::add_context(where, std::move(hello).error());
  if (hello->code != Code::ok) return fail(Code::unavailable, where, ": ", hello->bytes);
  if (hello->number != identity_)
    return fail(Code::unavailable, "at ", address_, " is chunk store ", hello->number, ", not ", identity_);
  return link;
}

Result<ChunkAnswer> ChunkPeer::exchange(ChunkLink& link, Bytes request, std::chrono::milliseconds patience) {
  TRY(link.send(request, patience));
  TRY_LET(frame, link.receive(patience));
  auto answer = decode_chunk_answer(frame);
  if (!answer) return fail(Code::unavailable, "its answer cannot be read");
  return std::move(*answer);
}

Result<ChunkAnswer> ChunkPeer::ask(const ChunkRequest& request) {
  const std::string bytes = encode(request);
  const auto patience = request.operation == ChunkOperation::sync ? kSyncPatience : kPatience;
  // A kept connection may have broken meanwhile; every request may be made twice.
  for (bool fresh = false;;) {
    Link link;
    {
      const std::lock_guard lock(mutex_);
      if (std::chrono::steady_clock::now() < down_until_)
        return fail(Code::unavailable, "chunk store ", identity_, " at ", address_, " did not answer a moment ago");
      if (!idle_.empty() && !fresh) {
        link = std::move(idle_.back());
        idle_.pop_back();
      }
    }
    fresh = link == nullptr;
    Result<ChunkAnswer> answer = ChunkAnswer{};
    if (fresh) {
      auto made = connect();
      if (made)
        link = std::move(*made);
      else
        answer = made.error();
    }
    if (answer) {
      answer = exchange(*link, bytes, patience);
      if (!answer) answer = fail(Code::unavailable, "chunk store ", identity_, " at ", address_, ": ", answer.error().message);
    }
    const std::lock_guard lock(mutex_);
    if (answer) {
      silent_since_ = {};
      answered_ = true;
      if (idle_.size() < kMostIdle) idle_.push_back(std::move(link));
      return answer;
    }
    if (!fresh) {
      idle_.clear();  // they lead to the same place
      fresh = true;
      continue;
    }
    silent_since_ = std::chrono::steady_clock::now();
    down_until_ = silent_since_ + kLeftAlone;
    return fail(Code::unavailable, answer.error().message);
  }
}

bool ChunkPeer::has_answered() const {
  const std::lock_guard lock(mutex_);
  return answered_;
}

bool ChunkPeer::silent() const {
  const std::lock_guard lock(mutex_);
  return silent_since_ != std::chrono::steady_clock::time_point{} && std::chrono::steady_clock::now() - silent_since_ < kSilent;
}

Result<ChunkAnswer> RemoteContent::ask(ChunkOperation operation, std::uint64_t first, std::uint64_t second,
                                       Bytes bytes) {
  ChunkRequest request;
  request.operation = operation;
  request.inode = inode_;
  request.first = first;
  request.second = second;
  request.bytes = bytes;
  auto answer = peer_->ask(request);
  if (answer && answer->code != Code::ok) answer = base::Error{answer->code, peer_->address() + ": " + answer->bytes};
  if (answer) return answer;
  std::string what = "inode " + std::to_string(raw(inode_));
  if (operation == ChunkOperation::read || operation == ChunkOperation::write)
    what += " chunk " + std::to_string(first / kChunkSize) + " (byte " + std::to_string(first) + ")";
  return base::add_context(what, std::move(answer).error());
}

Result<void> RemoteContent::begin_writing(std::uint64_t recorded_size) {
  const std::lock_guard lock(mutex_);
  if (writing_) return {};
  TRY(ask(ChunkOperation::begin_writing, recorded_size));
  writing_ = true;
  return {};
}

Result<void> RemoteContent::read(std::uint64_t offset, char* to, std::size_t size) {
  while (size > 0) {
    const std::size_t part = std::min(size, kMostChunkBytes);
    TRY_LET(answer, ask(ChunkOperation::read, offset, part));
    if (answer.bytes.size() != part)
      return fail(Code::io, peer_->address(), ": ", answer.bytes.size(), " bytes came, ", part, " were asked for");
    std::memcpy(to, answer.bytes.data(), part);
    to += part;
    offset += part;
    size -= part;
  }
  return {};
}

Result<void> RemoteContent::write(std::uint64_t offset, Bytes bytes) {
  while (!bytes.empty()) {
    const Bytes part = bytes.substr(0, kMostChunkBytes);
    TRY(ask(ChunkOperation::write, offset, 0, part));
    bytes.remove_prefix(part.size());
    offset += part.size();
  }
  return {};
}

Result<void> RemoteContent::truncate(std::uint64_t size, std::uint64_t old_size) {
  TRY(ask(ChunkOperation::truncate, size, old_size));
  return {};
}
Result<void> RemoteContent::allocate(std::uint64_t offset, std::uint64_t size) {
  TRY(ask(ChunkOperation::allocate, offset, size));
  return {};
}
Result<void> RemoteContent::punch(std::uint64_t offset, std::uint64_t size) {
  TRY(ask(ChunkOperation::punch, offset, size));
  return {};
}
Result<void> RemoteContent::sync() {
  TRY(ask(ChunkOperation::sync));
  return {};
}
Result<std::uint64_t> RemoteContent::seek(std::uint64_t offset, std::uint64_t size, bool data) {
  TRY_LET(answer, ask(data ? ChunkOperation::seek_data : ChunkOperation::seek_hole, offset, size));
  return answer.number;
}
std::uint64_t RemoteContent::blocks(std::uint64_t size) {
  const auto answer = ask(ChunkOperation::blocks, size);
  return answer ? answer->number : (size + 511) / 512;
}

Result<std::vector<std::uint32_t>> RemoteContent::sums(std::uint64_t offset, std::uint64_t count) {
  TRY_LET(answer, ask(ChunkOperation::sums, offset, count));
  std::vector<std::uint32_t> found;
  base::Reader from(answer.bytes);
  while (from.left() >= 4) found.push_back(from.u32());
  if (found.size() != count)
    return fail(Code::io, peer_->address(), ": ", found.size(), " checksums came, ", count, " were asked for");
  return found;
}

}  // namespace fusionfs

#include "zht/client/channel.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace zht::client {
namespace {

using base::Code;
using base::fail;
using base::Result;
using namespace std::chrono_literals;

constexpr auto kReceiveTimeout = 250ms;  // of a blocking receive; long waits are made of these

base::Time now() { return base::SystemClock().now(); }

int millis_until(base::Time deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 3'600'000));
}

}  // namespace

void make_lively(int descriptor) {
  const int on = 1, idle_seconds = 15, between_seconds = 5, probes = 3;
  setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(descriptor, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPIDLE, &idle_seconds, sizeof idle_seconds);
  setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPINTVL, &between_seconds, sizeof between_seconds);
  setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

Result<int> open_socket(const SocketAddress& address, const std::string& name, base::Time deadline) {
  const int fd = socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return fail(Code::unavailable, name, ": socket: ", std::strerror(errno));
  const auto give_up = [&](int error) {
    close(fd);
    return fail(Code::unavailable, name, ": ", std::strerror(error));
  };
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address.storage), address.size) != 0) {
    if (errno != EINPROGRESS) return give_up(errno);
    pollfd wait{fd, POLLOUT, 0};
    int ready;
    do ready = poll(&wait, 1, millis_until(deadline));
    while (ready < 0 && errno == EINTR);
    if (ready == 0) return give_up(ETIMEDOUT);
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return give_up(error);
  }
  if (address.family() != AF_UNIX) make_lively(fd);
  return fd;
}

Channel& Channel::operator=(Channel&& from) noexcept {
  std::swap(fd_, from.fd_);
  out_ = std::move(from.out_);
  in_ = std::move(from.in_);
  from_ = from.from_;
  to_ = from.to_;
  requests_ = from.requests_;
  sent_ = from.sent_;
  patience_ = from.patience_;
  return *this;
}

Channel::~Channel() {
  if (fd_ >= 0) close(fd_);
}

Result<Channel> Channel::open(const Address& address, base::Time deadline) {
  TRY_LET(candidates, resolve(address));
  Error last = fail(Code::unavailable, address.text(), ": no such address");
  for (const SocketAddress& candidate : candidates) {
    auto fd = open_socket(candidate, address.text(), deadline);
    if (!fd) {
      last = std::move(fd).error();
      continue;
    }
    // Blocking from here: one system call less for each reply than waiting first.
    fcntl(*fd, F_SETFL, fcntl(*fd, F_GETFL) & ~O_NONBLOCK);
    const timeval timeout{0, std::chrono::microseconds(kReceiveTimeout).count()};
    setsockopt(*fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    return Channel(*fd);
  }
  return last;
}

Result<void> Channel::wait_for(short events, base::Time deadline) {
  pollfd wait{fd_, events, 0};
  int ready;
  do ready = poll(&wait, 1, millis_until(deadline));
  while (ready < 0 && errno == EINTR);
  if (ready > 0) return {};
  return fail(Code::unavailable, "no answer in time");
}

Result<void> Channel::send_only(base::Time deadline) {
  sent_ = false;
  for (std::size_t at = 0; at < out_.size();) {
    const ssize_t sent = send(fd_, out_.data() + at, out_.size() - at, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      at += static_cast<std::size_t>(sent);
      sent_ = true;
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return fail(Code::unavailable, "connection lost: ", std::strerror(errno));
    TRY(wait_for(POLLOUT, std::min<base::Time>(deadline, now() + patience_)));
  }
  out_.clear();
  if (out_.capacity() > (std::size_t{1} << 20)) std::string().swap(out_);
  return {};
}

Result<void> Channel::receive_more(base::Time deadline) {
  if (from_ == to_) from_ = to_ = 0;
  constexpr std::size_t room = 16 << 10;
  if (in_.size() < to_ + room) {
    in_.erase(0, from_);
    to_ -= from_;
    from_ = 0;
    // A frame whose header is here is received into one buffer of its size.
    std::size_t wanted = to_ + room;
    if (to_ >= wire::kHeaderSize)
      wanted = std::max(wanted, std::min<std::size_t>(wire::kHeaderSize + base::load<std::uint32_t>(in_.data() + 12),
                                                      wire::kMaxFrameSize) +
                                    1);
    if (in_.size() < wanted) in_.resize(wanted);
  }
  deadline = std::min<base::Time>(deadline, now() + patience_);
  for (;;) {
    if (deadline - now() < 2 * kReceiveTimeout) TRY(wait_for(POLLIN, deadline));
    const ssize_t got = recv(fd_, in_.data() + to_, in_.size() - to_, 0);
    if (got > 0) {
      to_ += static_cast<std::size_t>(got);
      return {};
    }
    if (got == 0) return fail(Code::unavailable, "connection closed by the other side");
    if (errno != EINTR && errno != EAGAIN) return fail(Code::unavailable, "connection lost: ", std::strerror(errno));
    if (now() >= deadline) return fail(Code::unavailable, "no answer in time");
  }
}

Result<wire::Frame> Channel::receive(base::Time deadline) {
  for (;;) {
    TRY_LET(frame, wire::next_frame(Bytes(in_).substr(from_, to_ - from_), wire::kMaxFrameSize));
    if (!frame) {
      TRY(receive_more(deadline));
      continue;
    }
    from_ += frame->size;
    // Request 0: the other side could not make sense of what was sent and says why.
    if (frame->request == 0) return fail(static_cast<Code>(std::min<int>(frame->status, 9)), frame->key);
    return *frame;
  }
}

Result<wire::Frame> Channel::exchange(std::uint64_t request, base::Time deadline) {
  TRY(send_only(deadline));
  if (in_.size() > (std::size_t{1} << 20) && from_ == to_) std::string().swap(in_), from_ = to_ = 0;
  for (;;) {
    TRY_LET(frame, receive(deadline));
    if (frame.request == request) return frame;
  }
}

Result<std::string> Channel::control(wire::ControlKind kind, base::Bytes body, base::Time deadline) {
  const std::uint64_t request = next_request();
  wire::encode_control(out_, wire::FrameType::control_request, kind, request, Code::ok, {}, body);
  TRY_LET(frame, exchange(request, deadline));
  if (frame.status != 0) return fail(static_cast<Code>(std::min<int>(frame.status, 9)), frame.key);
  return std::string(frame.value);
}

}  // namespace zht::client

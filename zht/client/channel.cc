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

constexpr auto kProofTime = 10s;
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
  fell_silent_ = from.fell_silent_;
  guard_ = std::move(from.guard_);
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
    Channel channel(*fd);
    if (candidate.family() != AF_UNIX && address.opener) {
      // A door that is half open is not waited at for ever.
      auto proven = channel.prove(address.opener, std::min<base::Time>(deadline, now() + kProofTime));
      if (!proven) {
        last = base::add_context(address.text(), std::move(proven).error());
        if (last.code == Code::unavailable) continue;
        return last;
      }
    }
    return channel;
  }
  return last;
}

Result<void> Channel::prove(const security::Opener& opener, base::Time deadline) {
  guard_ = std::make_unique<security::Guard>(opener, security::Side::asker);
  std::string to_wire;
  guard_->begin(to_wire);
  while (true) {
    TRY(send_all(to_wire, deadline));
    to_wire.clear();
    if (guard_->open()) break;
    char buffer[4096];
    TRY_LET(got, receive_some(buffer, sizeof buffer, deadline));
    auto received = guard_->receive({buffer, got}, in_, to_wire);
    to_ = in_.size();
    if (!received) {
      (void)send_all(to_wire, deadline).has_value();  // an alert
      return received;
    }
  }
  if (guard_->transparent()) guard_.reset();
  return {};
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
  if (guard_) {
    std::string sealed;
    TRY(guard_->send(out_, sealed));
    TRY(send_all(sealed, deadline));
  } else {
    TRY(send_all(out_, deadline));
  }
  out_.clear();
  if (out_.capacity() > (std::size_t{1} << 20)) std::string().swap(out_);
  return {};
}

Result<void> Channel::send_all(base::Bytes bytes, base::Time deadline) {
  for (std::size_t at = 0; at < bytes.size();) {
    const ssize_t sent = send(fd_, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      at += static_cast<std::size_t>(sent);
      sent_ = true;
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return fail(Code::unavailable, "connection lost: ", std::strerror(errno));
    TRY(wait_for(POLLOUT, std::min<base::Time>(deadline, now() + patience_)));
  }
  return {};
}

// Through TLS: what has come is unwrapped behind what in_ holds.
Result<void> Channel::receive_guarded(base::Time deadline) {
  in_.erase(0, from_);
  in_.resize(to_ - from_);
  from_ = 0;
  std::string to_wire;
  const std::size_t before = in_.size();
  while (in_.size() == before) {
    char buffer[16 << 10];
    TRY_LET(got, receive_some(buffer, sizeof buffer, deadline));
    TRY(guard_->receive({buffer, got}, in_, to_wire));
    if (!to_wire.empty()) TRY(send_all(std::exchange(to_wire, {}), deadline));
  }
  to_ = in_.size();
  return {};
}

Result<void> Channel::receive_more(base::Time deadline) {
  if (guard_) return receive_guarded(deadline);
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
  TRY_LET(got, receive_some(in_.data() + to_, in_.size() - to_, deadline));
  to_ += got;
  return {};
}

Result<std::size_t> Channel::receive_some(char* to, std::size_t room, base::Time deadline) {
  const base::Time patient_until = now() + patience_;
  const bool impatient = patient_until < deadline;
  deadline = std::min<base::Time>(deadline, patient_until);
  const auto silent = [&] {
    if (impatient) fell_silent_ = now();
    return fail(Code::unavailable, "no answer in time");
  };
  for (;;) {
    if (deadline - now() < 2 * kReceiveTimeout && !wait_for(POLLIN, deadline)) return silent();
    const ssize_t got = recv(fd_, to, room, 0);
    if (got > 0) return static_cast<std::size_t>(got);
    if (got == 0) return fail(Code::unavailable, "connection closed by the other side");
    if (errno != EINTR && errno != EAGAIN) return fail(Code::unavailable, "connection lost: ", std::strerror(errno));
    if (now() >= deadline) return silent();
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

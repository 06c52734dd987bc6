#include "zht/net/peer_link.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <span>

#include "zht/net/listen.h"

namespace zht::net {
namespace {

constexpr std::size_t kPiecesAtOnce = 64;
constexpr int kSmallSegment = 536;  // bytes: what every way on the Internet must carry (RFC 9293, 3.7.1)

addrinfo* look_up(const std::string& host, std::uint16_t port, bool numeric) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (numeric ? AI_NUMERICHOST : AI_ADDRCONFIG);
  addrinfo* found = nullptr;
  return ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) == 0 ? found : nullptr;
}

// What of `message` follows its first `skip` bytes, as far as there is room in `pieces`.
std::size_t collect(const wire::Gathered& message, std::size_t skip, std::span<iovec> pieces) {
  std::size_t count = 0, from = 0;
  const auto put = [&](base::Bytes bytes) {
    if (skip >= bytes.size()) {
      skip -= bytes.size();
      return;
    }
    bytes.remove_prefix(std::exchange(skip, 0));
    if (count < pieces.size()) pieces[count++] = {const_cast<char*>(bytes.data()), bytes.size()};
  };
  for (const auto& piece : message.pieces) {
    if (count == pieces.size()) return count;
    put(base::Bytes(message.bytes).substr(from, piece.at - from));
    put(piece.bytes);
    from = piece.at;
  }
  put(base::Bytes(message.bytes).substr(from));
  return count;
}

}  // namespace

PeerLink::PeerLink(EventLoop& loop, PeerLinkOptions options) : loop_(loop), options_(options), random_(base::entropy()) {}

PeerLink::~PeerLink() {
  close();
  if (resolver_.joinable()) resolver_.join();
}

void PeerLink::lead_to(const std::string& address) {
  if (address == address_) return;
  close();
  drop_all();
  address_ = address;
  failures_ = 0;
  if (!address_.empty()) connect();
}

void PeerLink::send(wire::Gathered message) {
  const bool hopeless = state_ == State::idle || state_ == State::resting;
  if (hopeless || queued_ + message.size() > options_.queue_size) {
    counts_.dropped++;
    return;
  }
  queued_ += message.size();
  queue_.push_back(std::move(message));
  if (state_ == State::up && !blocked_) flush();
}

void PeerLink::connect() {
  life_++;
  const auto parsed = parse_address(address_);
  if (!parsed) return rest();
  const auto& [host, port] = *parsed;
  if (addrinfo* const found = look_up(host, port, true); found != nullptr) {
    open(found->ai_addr, found->ai_addrlen);
    ::freeaddrinfo(found);
    return;
  }
  // A name: looking it up may take long.
  state_ = State::resolving;
  if (resolver_.joinable()) resolver_.join();  // the one before has posted its answer, or this would not be a new try
  resolver_ = std::thread([&loop = loop_, self = std::weak_ptr(self_), life = life_, host = host, port = port] {
    addrinfo* const found = look_up(host, port, false);
    loop.post([self, life, found] {
      if (const auto alive = self.lock(); alive && (*alive)->life_ == life) {
        if (found == nullptr) (*alive)->rest();
        else (*alive)->open(found->ai_addr, found->ai_addrlen);
      }
      if (found != nullptr) ::freeaddrinfo(found);
    });
  });
}

void PeerLink::open(const sockaddr* address, unsigned size) {
  descriptor_ = ::socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (descriptor_ < 0) return rest();
  const int on = 1, idle_seconds = 5, between_seconds = 2, probes = 3;
  const auto dead_ms = static_cast<unsigned>(std::chrono::duration_cast<std::chrono::milliseconds>(options_.dead).count());
  ::setsockopt(descriptor_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(descriptor_, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  ::setsockopt(descriptor_, IPPROTO_TCP, TCP_KEEPIDLE, &idle_seconds, sizeof idle_seconds);
  ::setsockopt(descriptor_, IPPROTO_TCP, TCP_KEEPINTVL, &between_seconds, sizeof between_seconds);
  ::setsockopt(descriptor_, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
  ::setsockopt(descriptor_, IPPROTO_TCP, TCP_USER_TIMEOUT, &dead_ms, sizeof dead_ms);
  if (stalls_ >= 2) ::setsockopt(descriptor_, IPPROTO_TCP, TCP_MAXSEG, &kSmallSegment, sizeof kSmallSegment);
  const int connected = ::connect(descriptor_, address, size);
  if ((connected != 0 && errno != EINPROGRESS) || !loop_.add(descriptor_, EPOLLOUT | EPOLLRDHUP, *this)) {
    ::close(std::exchange(descriptor_, -1));
    return rest();
  }
  state_ = State::connecting;
  loop_.after(options_.connect_timeout, [self = std::weak_ptr(self_), life = life_] {
    const auto alive = self.lock();
    if (alive && (*alive)->life_ == life && (*alive)->state_ != State::up) (*alive)->broken();
  });
}

void PeerLink::on_ready(std::uint32_t events) {
  if (state_ == State::connecting) {
    int error = 0;
    socklen_t size = sizeof error;
    ::getsockopt(descriptor_, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0 || (events & (EPOLLERR | EPOLLHUP)) != 0) return broken();
    if (events & EPOLLOUT) established();
    return;
  }
  if (state_ == State::proving) {
    if ((events & EPOLLIN) != 0) return prove();
    if (events & (EPOLLERR | EPOLLHUP | EPOLLRDHUP)) return broken();
    if ((events & EPOLLOUT) != 0 && !send_sealed()) broken();
    return;
  }
  // Nothing is ever said in this direction: what comes is the end.
  if (events & (EPOLLERR | EPOLLHUP | EPOLLRDHUP)) return broken();
  if (events & EPOLLOUT) flush();
}

void PeerLink::established() {
  if (!options_.opener) return came_up();
  state_ = State::proving;
  guard_ = std::make_unique<security::Guard>(options_.opener, security::Side::asker);
  guard_->begin(sealed_);
  loop_.change(descriptor_, EPOLLIN | EPOLLRDHUP, *this);
  if (!send_sealed()) broken();
}

// What the other side says until both are proven. Messages wait meanwhile.
void PeerLink::prove() {
  char buffer[4096];
  const ssize_t got = ::recv(descriptor_, buffer, sizeof buffer, 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    refusal_ = "closed before it had proven itself";
    return broken();
  }
  std::string plain;  // it has nothing to say
  const auto received = guard_->receive({buffer, static_cast<std::size_t>(got)}, plain, sealed_);
  if (!received) refusal_ = received.error().message;
  if (!send_sealed() || !received) return broken();
  if (!guard_->open()) return;
  refusal_.clear();
  if (guard_->transparent() && sealed_.empty()) guard_.reset();
  loop_.change(descriptor_, EPOLLOUT | EPOLLRDHUP, *this);
  came_up();
}

// False: the connection is lost. What the socket does not take waits for EPOLLOUT.
bool PeerLink::send_sealed() {
  while (sealed_sent_ < sealed_.size()) {
    const ssize_t wrote = ::send(descriptor_, sealed_.data() + sealed_sent_, sealed_.size() - sealed_sent_, MSG_NOSIGNAL);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0 && errno != EAGAIN) return false;
    if (wrote < 0) {
      if (state_ == State::proving) loop_.change(descriptor_, EPOLLIN | EPOLLOUT | EPOLLRDHUP, *this);
      else would_block();
      return true;
    }
    sealed_sent_ += static_cast<std::size_t>(wrote);
    counts_.bytes += static_cast<std::uint64_t>(wrote);
  }
  if (sealed_.capacity() > (std::size_t{1} << 20)) std::string().swap(sealed_);
  sealed_.clear();
  sealed_sent_ = 0;
  return true;
}

void PeerLink::would_block() {
  if (!std::exchange(blocked_, true)) loop_.change(descriptor_, EPOLLOUT | EPOLLRDHUP, *this);
}

// Through TLS, message by message.
void PeerLink::flush_sealed() {
  while (true) {
    if (!send_sealed()) return broken(errno);
    if (!sealed_.empty()) return;
    if (queue_.empty()) break;
    const wire::Gathered& message = queue_.front();
    if (!guard_->send(message.whole(), sealed_)) return broken();
    queued_ -= message.size();
    queue_.pop_front();
    counts_.messages++;
  }
  if (std::exchange(blocked_, false)) loop_.change(descriptor_, EPOLLRDHUP, *this);
}

void PeerLink::came_up() {
  state_ = State::up;
  failures_ = 0;
  blocked_ = true;  // as far as the loop knows: it waits for room
  counts_.connections++;
  flush();
}

void PeerLink::flush() {
  if (guard_) return flush_sealed();
  std::array<iovec, kPiecesAtOnce> pieces;
  while (!queue_.empty()) {
    std::size_t count = 0, first = sent_;
    for (const wire::Gathered& message : queue_) {
      count += collect(message, std::exchange(first, 0), std::span(pieces).subspan(count));
      if (count == pieces.size()) break;
    }
    msghdr header{};
    header.msg_iov = pieces.data();
    header.msg_iovlen = count;
    const ssize_t wrote = ::sendmsg(descriptor_, &header, MSG_NOSIGNAL);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0 && errno != EAGAIN) return broken(errno);
    if (wrote < 0) {
      would_block();
      return;
    }
    counts_.bytes += static_cast<std::uint64_t>(wrote);
    sent_ += static_cast<std::size_t>(wrote);
    while (!queue_.empty() && sent_ >= queue_.front().size()) {
      sent_ -= queue_.front().size();
      queued_ -= queue_.front().size();
      queue_.pop_front();
      counts_.messages++;
    }
  }
  if (std::exchange(blocked_, false)) loop_.change(descriptor_, EPOLLRDHUP, *this);
}

// The kernel has sent again and again what it was given, on a connection that was up.
bool PeerLink::stalled(int error) const {
  socklen_t size = sizeof error;
  if (state_ == State::up && error == 0) ::getsockopt(descriptor_, SOL_SOCKET, SO_ERROR, &error, &size);
  return state_ == State::up && error == ETIMEDOUT;
}

void PeerLink::broken(int error) {
  stalls_ = stalled(error) ? std::min(stalls_ + 1, 2u) : 0;
  close();
  rest();
}

void PeerLink::rest() {
  drop_all();
  state_ = State::resting;
  const auto most = std::min<base::Duration>(options_.first_pause * (1u << std::min(failures_++, 10u)), options_.longest_pause);
  const auto pause = most + base::Duration(random_.below(static_cast<std::uint64_t>(most.count()) / 2 + 1));
  loop_.after(pause, [self = std::weak_ptr(self_), life = life_] {
    const auto alive = self.lock();
    if (alive && (*alive)->life_ == life && (*alive)->state_ == State::resting) (*alive)->connect();
  });
}

void PeerLink::close() {
  life_++;
  state_ = State::idle;
  blocked_ = false;
  guard_.reset();
  sealed_.clear();
  sealed_sent_ = 0;
  if (descriptor_ < 0) return;
  loop_.remove(descriptor_, *this);
  ::close(std::exchange(descriptor_, -1));
}

void PeerLink::drop_all() {
  counts_.dropped += queue_.size();
  queue_.clear();
  queued_ = sent_ = 0;
}

}  // namespace zht::net

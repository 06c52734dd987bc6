#include "zht/net/frame_server.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

namespace zht::net {

using base::Code;
using base::fail;
using base::Result;

namespace {
// One read's worth. Large enough that 64 requests of some kilobytes come in one go, small enough to stay in the cache.
constexpr std::size_t kReadSize = std::size_t{256} << 10;
}  // namespace

struct FrameServer::Connection final : Ready {
  Connection(FrameServer& s, ConnectionNumber n, int d) : server(s), number(n), descriptor(d) {}
  ~Connection() override { ::close(descriptor); }
  void on_ready(std::uint32_t events) override { server.on_connection(*this, events); }
  FrameServer& server;
  const ConnectionNumber number;
  const int descriptor;
  std::string pending;        // the start of a frame whose rest has not arrived
  std::string out;            // replies of the round at hand, and of earlier ones the socket did not take
  std::size_t sent = 0;       // of `out`
  std::size_t released = 0;   // of `out`: may be sent; the rest belongs to the round at hand
  std::uint32_t interest = EPOLLIN;
  bool touched = false;
  bool gone = false;          // closed in this turn
  bool blocked = false;       // the socket takes no more for now
  bool closing = false;       // close once `out` is gone
};

struct FrameServer::Listener final : Ready {
  Listener(FrameServer& s, Listening l) : server(s), descriptor(l.descriptor), unix_path(std::move(l.unix_path)) {}
  ~Listener() override { ::close(descriptor); }
  void on_ready(std::uint32_t) override { server.accept(*this); }
  FrameServer& server;
  const int descriptor;
  const std::string unix_path;
};

FrameServer::FrameServer(EventLoop& loop, FrameHandler& handler, FrameServerLimits limits)
    : loop_(loop), handler_(handler), limits_(limits), buffer_(kReadSize, '\0') {
  loop_.end_of_turn([this] {
    close_round();
    if (!closed_.empty()) closed_.clear();
  });
}

FrameServer::~FrameServer() {
  stop();
  loop_.end_of_turn({});
}

Result<void> FrameServer::adopt(Listening listening) {
  auto listener = std::make_unique<Listener>(*this, std::move(listening));
  TRY(loop_.add(listener->descriptor, EPOLLIN, *listener));
  listeners_.push_back(std::move(listener));
  return {};
}

Result<std::string> FrameServer::listen_tcp(const std::string& address) {
  TRY_LET(listening, net::listen_tcp(address));
  std::string got = listening.address;
  TRY(adopt(std::move(listening)));
  return got;
}

Result<void> FrameServer::listen_unix(const std::string& path) {
  TRY_LET(listening, net::listen_unix(path));
  return adopt(std::move(listening));
}

void FrameServer::stop() {
  for (auto& listener : listeners_) {
    loop_.remove(listener->descriptor, *listener);
    if (!listener->unix_path.empty()) ::unlink(listener->unix_path.c_str());
  }
  listeners_.clear();
  while (!connections_.empty()) close(*connections_.begin()->second);
}

void FrameServer::accept(Listener& listener) {
  while (true) {
    const int descriptor = ::accept4(listener.descriptor, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (descriptor >= 0) {
      if (connections_.size() < limits_.connections) adopt(descriptor);
      else ::close(descriptor);
      continue;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
      // Out of descriptors: those connected go on, new ones wait.
      loop_.change(listener.descriptor, 0, listener);
      loop_.after(std::chrono::milliseconds(100), [this, held = &listener] {
        for (auto& one : listeners_)
          if (one.get() == held) loop_.change(one->descriptor, EPOLLIN, *one);
      });
    }
    return;
  }
}

void FrameServer::adopt(int descriptor) {
  const int on = 1;
  ::setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);  // a unix socket refuses; fine
  const ConnectionNumber number = next_++;
  auto connection = std::make_unique<Connection>(*this, number, descriptor);
  if (!loop_.add(descriptor, EPOLLIN, *connection)) return;
  connections_.emplace(number, std::move(connection));
}

void FrameServer::on_connection(Connection& connection, std::uint32_t events) {
  if (events & EPOLLOUT) {
    connection.blocked = false;
    flush(connection);
    if (!connections_.contains(connection.number)) return;
  }
  if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive(connection);
}

void FrameServer::receive(Connection& connection) {
  std::size_t got = 0;
  std::string_view bytes;
  if (connection.pending.empty()) {
    const ssize_t read = ::recv(connection.descriptor, buffer_.data(), buffer_.size(), 0);
    if (read < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (read <= 0 || connection.closing) return close(connection);
    got = static_cast<std::size_t>(read);
    bytes = std::string_view(buffer_).substr(0, got);
  } else {
    // The rest of a frame is read to where its start lies.
    const std::size_t before = connection.pending.size();
    std::size_t want = kReadSize;
    if (before >= wire::kHeaderSize) {
      const std::size_t whole = wire::kHeaderSize + base::load<std::uint32_t>(connection.pending.data() + 12);
      want = std::max(kReadSize / 4, whole - std::min(whole, before));
    }
    connection.pending.resize(before + want);
    const ssize_t read = ::recv(connection.descriptor, connection.pending.data() + before, want, 0);
    connection.pending.resize(before + (read > 0 ? static_cast<std::size_t>(read) : 0));
    if (read < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (read <= 0) return close(connection);
    got = connection.pending.size();
    bytes = connection.pending;
  }
  std::size_t used = 0;
  open_round();
  if (!consume(connection, bytes, used)) {
    connection.closing = true;
    std::string().swap(connection.pending);
    return set_interest(connection);
  }
  if (connection.pending.empty()) {
    if (used < got) connection.pending.assign(bytes.substr(used));
  } else if (used > 0) {
    connection.pending.erase(0, used);
    if (connection.pending.empty()) std::string().swap(connection.pending);
  }
  set_interest(connection);
}

bool FrameServer::consume(Connection& connection, std::string_view bytes, std::size_t& used) {
  std::array<wire::Frame, kFramesAtOnce> frames;
  const std::size_t before = connection.out.size();
  std::optional<base::Error> broken;
  for (std::size_t count = kFramesAtOnce; count == kFramesAtOnce && !broken;) {
    for (count = 0; count < kFramesAtOnce; count++) {
      auto complete = wire::next_frame(bytes.substr(used), limits_.frame_size, frames[count]);
      if (!complete) broken = std::move(complete).error();
      if (!complete || !*complete) break;
      used += frames[count].size;
    }
    if (count > 0) handler_.on_frames(connection.number, std::span(frames).first(count), connection.out);
  }
  if (broken) {
    const std::size_t start =
        wire::begin_reply(connection.out, {.status = static_cast<std::uint8_t>(broken->code)}, broken->message);
    wire::end_reply(connection.out, start);
  }
  if (connection.out.size() > before) touch(connection);
  return !broken;
}

void FrameServer::touch(Connection& connection) {
  if (std::exchange(connection.touched, true)) return;
  touched_.push_back(&connection);
}

// A round covers a turn of the loop: everything that was ready when it began.
void FrameServer::open_round() {
  if (!std::exchange(in_round_, true)) handler_.begin_round();
}

void FrameServer::close_round() {
  if (!in_round_) return;
  const bool kept = handler_.end_round();
  in_round_ = false;
  sending_.swap(touched_);
  for (Connection* const connection : sending_) {
    connection->touched = false;
    if (connection->gone) continue;
    if (!kept) {
      close(*connection);
      continue;
    }
    connection->released = connection->out.size();
    flush(*connection);
  }
  sending_.clear();
}

void FrameServer::run_round(const std::function<void()>& work) {
  open_round();
  work();
  close_round();
}

void FrameServer::send(ConnectionNumber to, std::string frame) {
  const auto found = connections_.find(to);
  if (found == connections_.end()) return;
  Connection& connection = *found->second;
  connection.out.append(frame);
  touch(connection);
  if (in_round_) return;
  connection.touched = false;
  std::erase(touched_, &connection);
  connection.released = connection.out.size();
  flush(connection);
}

void FrameServer::flush(Connection& connection) {
  while (connection.sent < connection.released && !connection.blocked) {
    const ssize_t wrote = ::send(connection.descriptor, connection.out.data() + connection.sent,
                                 connection.released - connection.sent, MSG_NOSIGNAL);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0 && errno != EAGAIN) return close(connection);
    if (wrote < 0) connection.blocked = true;
    else connection.sent += static_cast<std::size_t>(wrote);
  }
  if (connection.sent == connection.out.size()) {
    if (connection.out.capacity() > kReadSize) std::string().swap(connection.out);
    connection.out.clear();
    connection.sent = connection.released = 0;
    if (connection.closing) return close(connection);
  } else if (connection.sent > kReadSize) {
    connection.out.erase(0, connection.sent);
    connection.released -= connection.sent;
    connection.sent = 0;
  }
  set_interest(connection);
}

// Reads while its replies are taken, writes when the socket did not take all.
void FrameServer::set_interest(Connection& connection) {
  const bool reads = !connection.closing && connection.out.size() - connection.sent < limits_.unread_replies;
  const std::uint32_t wanted = (reads ? std::uint32_t{EPOLLIN} : 0u) | (connection.blocked ? std::uint32_t{EPOLLOUT} : 0u);
  if (std::exchange(connection.interest, wanted) != wanted) loop_.change(connection.descriptor, wanted, connection);
}

void FrameServer::close(Connection& connection) {
  if (std::exchange(connection.gone, true)) return;
  loop_.remove(connection.descriptor, connection);
  const auto found = connections_.find(connection.number);
  closed_.push_back(std::move(found->second));
  connections_.erase(found);
  handler_.on_closed(connection.number);
}

}  // namespace zht::net

#include "zht/net/frame_server.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <asio/basic_socket_acceptor.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/local/stream_protocol.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <cerrno>
#include <charconv>
#include <cstring>

namespace zht::net {

using base::Code;
using base::fail;
using base::Result;

namespace {
// One read's worth. Large enough that 64 requests of some kilobytes come in one go, small enough to stay in the cache.
constexpr std::size_t kReadSize = std::size_t{256} << 10;
}  // namespace

struct FrameServer::Connection {
  Connection(ConnectionNumber n, Socket s) : number(n), socket(std::move(s)) {}
  ConnectionNumber number;
  Socket socket;
  std::string pending;        // the start of a frame whose rest has not arrived
  std::string out;            // replies of the round at hand, and of earlier ones the socket did not take
  std::size_t sent = 0;       // of `out`
  std::size_t released = 0;   // of `out`: may be sent; the rest belongs to the round at hand
  bool touched = false;
  bool waiting_to_write = false;
  bool waiting_to_read = false;
  bool closing = false;       // close once `out` is gone
};

struct FrameServer::Listener {
  using Acceptor = asio::basic_socket_acceptor<asio::generic::stream_protocol>;
  Listener(asio::io_context& loop, asio::generic::stream_protocol::endpoint e, asio::generic::stream_protocol p)
      : acceptor(loop), retry(loop), endpoint(std::move(e)), protocol(p) {}
  Acceptor acceptor;
  asio::steady_timer retry;
  asio::generic::stream_protocol::endpoint endpoint;
  asio::generic::stream_protocol protocol;
  std::string unix_path;
};

Result<std::pair<std::string, std::uint16_t>> parse_address(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0)
    return fail(Code::invalid, "address \"", base::escape(text), "\" is not host:port");
  std::string host = text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  std::uint16_t port = 0;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data() + colon + 1, end, port);
  if (error != std::errc() || at != end || text.size() == colon + 1)
    return fail(Code::invalid, "address \"", base::escape(text), "\": the port is not a number from 0 to 65535");
  return std::pair{host, port};
}

FrameServer::FrameServer(asio::io_context& loop, FrameHandler& handler, FrameServerLimits limits)
    : loop_(loop), handler_(handler), limits_(limits), buffer_(kReadSize, '\0') {}

FrameServer::~FrameServer() { stop(); }

Result<void> FrameServer::listen(std::unique_ptr<Listener> listener) {
  asio::error_code error;
  listener->acceptor.open(listener->protocol, error);
  if (!error) {
    if (listener->unix_path.empty()) {
      const int on = 1;
      ::setsockopt(listener->acceptor.native_handle(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    }
    listener->acceptor.bind(listener->endpoint, error);
  }
  if (!error) listener->acceptor.listen(4096, error);
  if (!error) listener->acceptor.non_blocking(true, error);
  if (error) {
    if (error == asio::error::address_in_use) return fail(Code::conflict, "in use by another process");
    return fail(Code::io, error.message());
  }
  Listener& held = *listeners_.emplace_back(std::move(listener));
  accept(held);
  return {};
}

Result<std::string> FrameServer::listen_tcp(const std::string& address) {
  TRY_LET(parts, parse_address(address));
  asio::error_code error;
  asio::ip::tcp::resolver resolver(loop_);
  const auto found = resolver.resolve(parts.first, std::to_string(parts.second), asio::ip::tcp::resolver::passive, error);
  if (error || found.empty()) return fail(Code::invalid, "cannot listen on ", address, ": ", error.message());
  const asio::ip::tcp::endpoint endpoint = found.begin()->endpoint();
  auto listener = std::make_unique<Listener>(loop_, asio::generic::stream_protocol::endpoint(endpoint),
                                             asio::generic::stream_protocol(endpoint.protocol()));
  Listener& held = *listener;
  if (auto listening = listen(std::move(listener)); !listening)
    return base::add_context("cannot listen on " + address, std::move(listening).error());
  asio::ip::tcp::endpoint bound;
  socklen_t size = static_cast<socklen_t>(bound.capacity());
  ::getsockname(held.acceptor.native_handle(), bound.data(), &size);
  bound.resize(size);
  const bool v6 = bound.address().is_v6();
  return (v6 ? "[" : "") + bound.address().to_string() + (v6 ? "]:" : ":") + std::to_string(bound.port());
}

Result<void> FrameServer::listen_unix(const std::string& path) {
  sockaddr_un probe{};
  if (path.size() >= sizeof probe.sun_path)
    return fail(Code::invalid, "unix socket path of ", path.size(), " bytes, at most ", sizeof probe.sun_path - 1, ": ", path);
  const asio::local::stream_protocol::endpoint endpoint(path);
  ::unlink(path.c_str());  // whoever calls this holds the data folder's lock, so nobody serves there
  auto listener = std::make_unique<Listener>(loop_, asio::generic::stream_protocol::endpoint(endpoint),
                                             asio::generic::stream_protocol(endpoint.protocol()));
  listener->unix_path = path;
  if (auto listening = listen(std::move(listener)); !listening)
    return base::add_context("cannot listen on " + path, std::move(listening).error());
  ::chmod(path.c_str(), 0600);
  return {};
}

void FrameServer::stop() {
  for (auto& listener : listeners_) {
    asio::error_code ignored;
    listener->acceptor.close(ignored);
    listener->retry.cancel();
    if (!listener->unix_path.empty()) ::unlink(listener->unix_path.c_str());
  }
  while (!connections_.empty()) close(connections_.begin()->first);
}

void FrameServer::accept(Listener& listener) {
  listener.acceptor.async_accept([this, &listener](asio::error_code error, Socket socket) {
    if (error == asio::error::operation_aborted) return;
    if (error) {
      // Out of file descriptors, most likely: those connected go on, new ones wait.
      listener.retry.expires_after(std::chrono::milliseconds(100));
      listener.retry.async_wait([this, &listener](asio::error_code stopped) {
        if (!stopped) accept(listener);
      });
      return;
    }
    if (connections_.size() < limits_.connections) adopt(std::move(socket));
    accept(listener);
  });
}

void FrameServer::adopt(Socket socket) {
  asio::error_code ignored;
  socket.non_blocking(true, ignored);
  const int on = 1;
  ::setsockopt(socket.native_handle(), IPPROTO_TCP, 1 /* TCP_NODELAY */, &on, sizeof on);  // a unix socket refuses; fine
  const ConnectionNumber number = next_++;
  auto& connection = *connections_.emplace(number, std::make_unique<Connection>(number, std::move(socket))).first->second;
  wait_readable(connection);
}

void FrameServer::wait_readable(Connection& connection) {
  if (connection.waiting_to_read) return;
  connection.waiting_to_read = true;
  connection.socket.async_wait(Socket::wait_read, [this, number = connection.number](asio::error_code error) {
    const auto found = connections_.find(number);
    if (found == connections_.end()) return;
    found->second->waiting_to_read = false;
    if (error) return close(number);
    on_readable(number);
  });
}

void FrameServer::on_readable(ConnectionNumber number) {
  Connection& connection = *connections_.at(number);
  std::size_t got = 0;
  std::string_view bytes;
  if (connection.pending.empty()) {
    const ssize_t read = ::recv(connection.socket.native_handle(), buffer_.data(), buffer_.size(), 0);
    if (read < 0 && (errno == EAGAIN || errno == EINTR)) return wait_readable(connection);
    if (read <= 0) return close(number);
    got = static_cast<std::size_t>(read);
    bytes = std::string_view(buffer_).substr(0, got);
  } else {
    // The rest of a frame is read to where its start lies.
    const std::size_t before = connection.pending.size();
    std::size_t want = kReadSize;
    if (before >= wire::kHeaderSize) {
      const std::size_t whole = wire::kHeaderSize + base::load<std::uint32_t>(connection.pending.data() + 12);
      want = std::max(want / 4, whole - std::min(whole, before));
    }
    connection.pending.resize(before + want);
    const ssize_t read = ::recv(connection.socket.native_handle(), connection.pending.data() + before, want, 0);
    connection.pending.resize(before + (read > 0 ? static_cast<std::size_t>(read) : 0));
    if (read < 0 && (errno == EAGAIN || errno == EINTR)) return wait_readable(connection);
    if (read <= 0) return close(number);
    got = connection.pending.size();
    bytes = connection.pending;
  }
  std::size_t used = 0;
  open_round();
  const bool sound = consume(connection, bytes, used);
  if (!sound) {
    connection.closing = true;
    connection.pending.clear();
    touch(connection);
    return;
  }
  if (connection.pending.empty()) {
    if (used < got) connection.pending.assign(bytes.substr(used));
  } else if (used > 0) {
    connection.pending.erase(0, used);
    if (connection.pending.empty()) connection.pending.shrink_to_fit();
  }
  if (connection.out.size() - connection.sent < limits_.unread_replies) wait_readable(connection);
}

bool FrameServer::consume(Connection& connection, std::string_view bytes, std::size_t& used) {
  while (true) {
    auto next = wire::next_frame(bytes.substr(used), limits_.frame_size);
    if (!next) {
      const std::size_t start = wire::begin_reply(
          connection.out, {.status = static_cast<std::uint8_t>(next.code())}, next.error().message);
      wire::end_reply(connection.out, start);
      touch(connection);
      return false;
    }
    if (!*next) return true;
    used += (*next)->size;
    const std::size_t before = connection.out.size();
    handler_.on_frame(connection.number, **next, connection.out);
    if (connection.out.size() > before) touch(connection);
  }
}

void FrameServer::touch(Connection& connection) {
  if (std::exchange(connection.touched, true)) return;
  touched_.push_back(connection.number);
}

// A round ends after everything that is ready now has been handled: the handler posted here runs behind them.
void FrameServer::open_round() {
  if (std::exchange(in_round_, true)) return;
  handler_.begin_round();
  asio::post(loop_, [this] { close_round(); });
}

void FrameServer::close_round() {
  if (!in_round_) return;
  const bool kept = handler_.end_round();
  in_round_ = false;
  const auto touched = std::exchange(touched_, {});
  for (ConnectionNumber number : touched) {
    const auto found = connections_.find(number);
    if (found == connections_.end()) continue;
    Connection& connection = *found->second;
    connection.touched = false;
    if (!kept) {
      close(number);
      continue;
    }
    connection.released = connection.out.size();
    flush(connection);
  }
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
  std::erase(touched_, to);
  connection.released = connection.out.size();
  flush(connection);
}

void FrameServer::flush(Connection& connection) {
  if (connection.waiting_to_write) return;
  while (connection.sent < connection.released) {
    const ssize_t wrote = ::send(connection.socket.native_handle(), connection.out.data() + connection.sent,
                                 connection.released - connection.sent, MSG_NOSIGNAL);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0 && errno == EAGAIN) {
      connection.waiting_to_write = true;
      connection.socket.async_wait(Socket::wait_write, [this, number = connection.number](asio::error_code error) {
        const auto found = connections_.find(number);
        if (found == connections_.end()) return;
        found->second->waiting_to_write = false;
        if (error) return close(number);
        flush(*found->second);
      });
      return;
    }
    if (wrote < 0) return close(connection.number);
    connection.sent += static_cast<std::size_t>(wrote);
  }
  if (connection.sent == connection.out.size()) {
    if (connection.out.capacity() > kReadSize) std::string().swap(connection.out);
    connection.out.clear();
    connection.sent = connection.released = 0;
    if (connection.closing) return close(connection.number);
  } else if (connection.sent > kReadSize) {
    connection.out.erase(0, connection.sent);
    connection.released -= connection.sent;
    connection.sent = 0;
  }
  if (!connection.closing && connection.out.size() - connection.sent < limits_.unread_replies) wait_readable(connection);
}

void FrameServer::close(ConnectionNumber number) {
  const auto found = connections_.find(number);
  if (found == connections_.end()) return;
  const auto connection = std::move(found->second);  // outlives the handler's call
  connections_.erase(found);
  asio::error_code ignored;
  connection->socket.close(ignored);
  handler_.on_closed(number);
}

}  // namespace zht::net

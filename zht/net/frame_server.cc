#include "zht/net/frame_server.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
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
constexpr std::size_t kProofRead = 4096;  // of a connection that is not proven: a TLS client's longest words take two or three
constexpr std::size_t kStallBytes = std::size_t{64} << 10;

// What a connection is told that is beyond repair: request 0.
void error_frame(std::string& out, const base::Error& error) {
  const std::size_t start = wire::begin_reply(out, {.status = static_cast<std::uint8_t>(error.code)}, error.message);
  wire::end_reply(out, start);
}
// A peer that is gone without a word is noticed within half a minute. (A unix socket refuses these; fine.)
void make_lively(int descriptor) {
  const int on = 1, idle_seconds = 15, between_seconds = 5, probes = 3;
  ::setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(descriptor, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  ::setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPIDLE, &idle_seconds, sizeof idle_seconds);
  ::setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPINTVL, &between_seconds, sizeof between_seconds);
  ::setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

// What has arrived and is not read makes the kernel reset a connection that is closed, and a reset takes along what the
// other side has not read yet.
void hang_up(int descriptor, std::string& scratch) {
  ::shutdown(descriptor, SHUT_WR);
  for (int i = 0; i < 16 && ::recv(descriptor, scratch.data(), scratch.size(), MSG_DONTWAIT) > 0; i++) {}
}
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
  std::size_t released = 0;   // of `out`: may be sent; the rest belongs to the round at hand, or waits for more
  struct Held {
    std::uint64_t awaited = 0;
    std::size_t end = 0;      // of `out`: up to here
  };
  std::vector<Held> held;     // oldest first
  std::uint64_t awaited = 0;  // by replies of the round at hand
  std::uint32_t interest = EPOLLIN;
  std::size_t fresh = 0;      // bytes received since close_stalled() last looked; a whole frame counts as enough
  bool taken = false;         // some of `out` since then
  bool paused = false;        // complete frames lie in `pending`: its replies are not read
  bool touched = false;
  bool gone = false;          // closed in this turn
  bool blocked = false;       // the socket takes no more for now
  bool closing = false;       // close once `out` is gone
  security::Role role = security::Role::client;
  bool guarded = false;       // bytes pass through `guard`, which is there from the first ones on
  std::unique_ptr<security::Guard> guard;
  std::string sealed;         // with a guard: what goes over the wire, out of `out` and of the guard's own
  std::size_t sealed_sent = 0;
};

FrameServer::FrameServer(EventLoop& loop, FrameHandler& handler, FrameServerLimits limits)
    : loop_(loop), handler_(handler), limits_(limits), unproven_(limits.unproven), buffer_(kReadSize, '\0') {
  loop_.end_of_turn([this] {
    hear_proofs();
    close_round();
    if (!closed_.empty()) closed_.clear();
    if (drained_ && connections_.empty()) std::exchange(drained_, {})();
  });
  loop_.every(limits_.stall, [self = std::weak_ptr(self_)] {
    if (const auto alive = self.lock()) (*alive)->close_stalled();
  });
}

FrameServer::~FrameServer() {
  stop();
  loop_.end_of_turn({});
}

Result<void> FrameServer::adopt(Listening listening) {
  const bool tcp = listening.unix_path.empty();
  auto listener = std::make_unique<Acceptor>(loop_, std::move(listening), [this, tcp](int descriptor) { take(descriptor, tcp); });
  TRY(listener->begin());
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

Result<void> FrameServer::listen_udp(const std::string& address) {
  datagrams_ = std::make_unique<Datagrams>(loop_, [this](std::span<const wire::Frame> requests, std::string& out) {
    open_round();
    if (!requests.empty()) handler_.on_frames(kNoConnection, requests, out);
  });
  auto listening = datagrams_->listen(address);
  if (!listening) datagrams_.reset();
  return listening;
}

void FrameServer::drain(base::Duration longest, std::function<void()> done) {
  stop_listening();
  drained_ = std::move(done);
  std::vector<Connection*> all;
  for (auto& [number, connection] : connections_) all.push_back(connection.get());
  for (Connection* const connection : all) {
    connection->closing = true;
    if (connection->out.empty()) close(*connection);
    else set_interest(*connection);
  }
  loop_.after(longest, [self = std::weak_ptr(self_)] {
    if (const auto alive = self.lock(); alive && (*alive)->drained_) std::exchange((*alive)->drained_, {})();
  });
}

void FrameServer::stop() {
  stop_listening();
  while (!connections_.empty()) close(*connections_.begin()->second);
}

void FrameServer::stop_listening() {
  datagrams_.reset();
  for (auto& listener : listeners_)
    if (!listener->listening().unix_path.empty()) ::unlink(listener->listening().unix_path.c_str());
  listeners_.clear();
}

void FrameServer::take(int descriptor, bool tcp) {
  if (!tcp && !is_of_this_user(descriptor)) return void(::close(descriptor));
  if (connections_.size() - unproven_.size() < limits_.connections) return adopt(descriptor, tcp);
  std::string out;
  error_frame(out, fail(Code::unavailable, "this endpoint has ", limits_.connections, " connections, its limit"));
  (void)!::send(descriptor, out.data(), out.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  ::close(descriptor);
}

void FrameServer::adopt(int descriptor, bool tcp) {
  if (!tcp || !opener_) make_lively(descriptor);  // else once it is proven
  const ConnectionNumber number = next_++;
  auto connection = std::make_unique<Connection>(*this, number, descriptor);
  connection->role = !tcp ? security::Role::admin : opener_ ? security::Role::client : security::Role::node;
  connection->guarded = tcp && opener_;
  if (connection->guarded)
    if (const auto victim = unproven_.in_the_way()) close(*connections_.at(*victim));
  if (!loop_.add(descriptor, EPOLLIN, *connection)) return;
  if (connection->guarded) unproven_.add(number, std::chrono::steady_clock::now());
  connections_.emplace(number, std::move(connection));
}

void FrameServer::on_connection(Connection& connection, std::uint32_t events) {
  if (events & EPOLLOUT) {
    connection.blocked = false;
    flush(connection);
    if (connection.gone) return;
  }
  if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive(connection);
}

security::Role FrameServer::role(ConnectionNumber connection) const {
  const auto found = connections_.find(connection);
  return found == connections_.end() ? security::Role::client : found->second->role;
}

void FrameServer::guard(security::Opener opener) {
  if (!opener_ && opener)
    loop_.every(limits_.proof / 4, [self = std::weak_ptr(self_)] {
      if (const auto alive = self.lock()) (*alive)->close_unproven();
    });
  opener_ = std::move(opener);
}

// Half-open ones, and those who say one byte a second.
void FrameServer::close_unproven() {
  const auto late = std::chrono::steady_clock::now() - limits_.proof;
  for (const ConnectionNumber one : unproven_.older_than(late)) close(*connections_.at(one));
}

// A few a turn, so that those who have proven themselves do not wait for a crowd of hellos. Who has been answered already comes first,
// then the newest: what a crowd has sent before an honest caller came is not worked off before him. The others are told of again.
void FrameServer::hear_proofs() {
  if (knocking_.empty()) return;
  std::vector<ConnectionNumber> all = std::exchange(knocking_, {});
  const auto rank = [this](ConnectionNumber number) {
    const auto found = connections_.find(number);
    return std::pair(found != connections_.end() && found->second->guard != nullptr, number);
  };
  const auto most = static_cast<std::ptrdiff_t>(std::min<std::size_t>(all.size(), static_cast<std::size_t>(limits_.proofs_at_once)));
  std::partial_sort(all.begin(), all.begin() + most, all.end(), [&](auto a, auto b) { return rank(a) > rank(b); });
  for (auto one = all.begin(); one != all.begin() + most; ++one)
    if (const auto found = connections_.find(*one); found != connections_.end()) receive_guarded(*found->second);
}

// What comes goes through the guard: its own words are answered, frames that follow are handled as ever.
void FrameServer::receive_guarded(Connection& connection) {
  const bool proves = unproven_.contains(connection.number);
  const ssize_t read = ::recv(connection.descriptor, buffer_.data(), proves ? kProofRead : buffer_.size(), 0);
  if (read < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (read <= 0 || connection.closing) return close(connection);
  if (!connection.guard) connection.guard = std::make_unique<security::Guard>(opener_, security::Side::answerer);  // it says something
  connection.fresh += static_cast<std::size_t>(read);
  std::string& pending = connection.pending;
  const std::size_t before = pending.size();
  if (before == 0) connection.fresh = kStallBytes;
  const auto received = connection.guard->receive({buffer_.data(), static_cast<std::size_t>(read)}, pending, connection.sealed);
  partial_bytes_ += pending.size() - before;
  if (!received) {
    // Its last words are for whoever can read them; nothing more is read.
    connection.closing = true;
    return flush(connection);
  }
  if (proves && connection.guard->open()) {
    unproven_.remove(connection.number);
    make_lively(connection.descriptor);
    connection.role = connection.guard->role();
  }
  flush(connection);
  if (connection.gone) return;
  if (connection.guard->transparent() && connection.sealed.empty()) {
    connection.guard.reset();
    connection.guarded = false;
  }
  if (!pending.empty()) digest(connection, pending);
}

void FrameServer::receive(Connection& connection) {
  if (connection.guarded) [[unlikely]]
    return unproven_.contains(connection.number) ? knocking_.push_back(connection.number) : receive_guarded(connection);
  if (const std::size_t before = connection.pending.size(); before <= kReadSize / 2) {
    std::memcpy(buffer_.data(), connection.pending.data(), before);
    const ssize_t read = ::recv(connection.descriptor, buffer_.data() + before, buffer_.size() - before, 0);
    if (read < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (read <= 0 || connection.closing) return close(connection);
    connection.fresh += static_cast<std::size_t>(read);
    return digest(connection, std::string_view(buffer_).substr(0, before + static_cast<std::size_t>(read)));
  }
  // The rest of a long frame is read to where its start lies. Room for it grows with what has come, not with what was promised.
  const std::size_t before = connection.pending.size();
  std::size_t want = kReadSize;
  if (before >= wire::kHeaderSize) {
    const std::size_t whole = wire::kHeaderSize + base::load<std::uint32_t>(connection.pending.data() + 12);
    want = std::clamp(whole - std::min(whole, before), kReadSize / 4, std::max(kReadSize, before));
  }
  connection.pending.resize(before + want);
  const ssize_t read = ::recv(connection.descriptor, connection.pending.data() + before, want, 0);
  connection.pending.resize(before + (read > 0 ? static_cast<std::size_t>(read) : 0));
  if (read < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (read <= 0) return close(connection);
  partial_bytes_ += static_cast<std::size_t>(read);
  connection.fresh += static_cast<std::size_t>(read);
  digest(connection, connection.pending);
}

// Handles what is complete of `bytes`, which is `pending`, or that and what followed it in buffer_, and keeps the rest.
void FrameServer::digest(Connection& connection, std::string_view bytes) {
  std::size_t used = 0;
  open_round();
  const bool sound = consume(connection, bytes, used);
  if (connection.gone) return;
  if (!sound) {
    connection.closing = true;
    keep_rest(connection, {});
    return set_interest(connection);
  }
  if (used > 0) connection.fresh += std::max(used, kStallBytes);
  keep_rest(connection, bytes.substr(used));
  set_interest(connection);
}

void FrameServer::keep_rest(Connection& connection, std::string_view rest) {
  std::string& pending = connection.pending;
  if (pending.empty() && rest.empty()) [[likely]]
    return;
  partial_bytes_ -= pending.size();
  if (rest.empty()) {
    std::string().swap(pending);
  } else if (rest.end() == std::string_view(pending).end()) {
    pending.erase(0, pending.size() - rest.size());
  } else {
    if (pending.empty()) connection.fresh = kStallBytes;
    pending.assign(rest);
  }
  partial_bytes_ += pending.size();
  if (partial_bytes_ > limits_.partial_frames && !connection.closing)
    refuse(connection, fail(Code::no_space, "frames under way take ", limits_.partial_frames, " bytes, the limit"));
}

// One error, after which nothing more is read and the connection is closed.
void FrameServer::refuse(Connection& connection, const base::Error& error) {
  open_round();
  error_frame(connection.out, error);
  touch(connection);
  connection.closing = true;
  keep_rest(connection, {});
  set_interest(connection);
}

bool FrameServer::reads(const Connection& connection) const {
  return !connection.closing && connection.out.size() - connection.sent < limits_.unread_replies;
}

bool FrameServer::consume(Connection& connection, std::string_view bytes, std::size_t& used) {
  std::array<wire::Frame, kFramesAtOnce> frames;
  const std::size_t before = connection.out.size();
  std::optional<base::Error> broken;
  connection.paused = false;
  for (std::size_t count = kFramesAtOnce; count == kFramesAtOnce && !broken;) {
    // Replies that are not taken stop the reading of requests, also of those that have arrived.
    if (!reads(connection)) {
      connection.paused = true;
      break;
    }
    std::size_t at = used;
    for (count = 0; count < kFramesAtOnce; count++) {
      auto complete = wire::next_frame(bytes.substr(at), limits_.frame_size, frames[count]);
      if (!complete) broken = std::move(complete).error();
      if (!complete || !*complete) break;
      if (frames[count].type >= wire::FrameType::peer && connection.role != security::Role::node) [[unlikely]] {
        broken = fail(Code::invalid, "what nodes say to each other, from a connection that has not proven the cluster's secret itself");
        break;
      }
      at += frames[count].size;
    }
    if (count == 0) break;
    const std::size_t handled = handler_.on_frames(connection.number, std::span(frames).first(count), connection.out);
    connection.awaited = std::max(connection.awaited, handler_.awaits());
    for (std::size_t i = 0; i < handled; i++) used += frames[i].size;
    if (handled == count) continue;
    count = kFramesAtOnce;  // there is more
    broken.reset();
  }
  if (broken) error_frame(connection.out, *broken);
  if (connection.out.size() > before) touch(connection);
  return !broken;
}

// Frames that were left lying because of unread replies are handled in a round of their own, once those are read.
void FrameServer::go_on(Connection& connection) {
  connection.paused = false;
  loop_.post([self = std::weak_ptr(self_), number = connection.number] {
    const auto alive = self.lock();
    if (!alive) return;
    const auto found = (*alive)->connections_.find(number);
    if (found != (*alive)->connections_.end() && !found->second->closing && !found->second->pending.empty())
      (*alive)->digest(*found->second, found->second->pending);
  });
}

// Every connection that has given or taken nothing since the last look while it owes something.
void FrameServer::close_stalled() {
  std::vector<Connection*> stalled;
  for (auto& [number, connection] : connections_) {
    const bool owes_frame = !connection->pending.empty() && reads(*connection) && !connection->paused;
    const bool owes_reading = connection->sent < connection->released || !connection->sealed.empty();
    if ((owes_frame && connection->fresh < kStallBytes) || (owes_reading && !connection->taken)) stalled.push_back(connection.get());
    connection->fresh = 0;
    connection->taken = false;
  }
  for (Connection* connection : stalled) close(*connection);
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
    end_replies(*connection);
  }
  sending_.clear();
  if (datagrams_) datagrams_->close_round(kept);
}

// What lies in `out` may leave now, or waits.
void FrameServer::end_replies(Connection& connection) {
  const std::uint64_t awaited = std::exchange(connection.awaited, 0);
  if (awaited <= reached_ && connection.held.empty()) {
    connection.released = connection.out.size();
    return flush(connection);
  }
  if (connection.held.empty()) waiting_.push_back(connection.number);
  else if (awaited <= connection.held.back().awaited) return void(connection.held.back().end = connection.out.size());
  connection.held.push_back({awaited, connection.out.size()});
}

void FrameServer::release(std::uint64_t reached) {
  if (reached <= reached_) return;
  reached_ = reached;
  for (const ConnectionNumber number : std::exchange(waiting_, {})) {
    const auto found = connections_.find(number);
    if (found == connections_.end()) continue;
    Connection& connection = *found->second;
    auto first = connection.held.begin();
    for (; first != connection.held.end() && first->awaited <= reached; ++first) connection.released = first->end;
    connection.held.erase(connection.held.begin(), first);
    if (!connection.held.empty()) waiting_.push_back(number);
    flush(connection);
  }
}

void FrameServer::give_up_waiting() {
  for (const ConnectionNumber number : std::exchange(waiting_, {}))
    if (const auto found = connections_.find(number); found != connections_.end()) close(*found->second);
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
  if (connection.closing) return;
  connection.out.append(frame);
  if (connection.out.size() - connection.sent > limits_.unread_most) return close(connection);
  touch(connection);
  if (in_round_) return;
  connection.touched = false;
  std::erase(touched_, &connection);
  end_replies(connection);
}

// With a guard: what is released goes through it, no more of it than the socket takes soon.
void FrameServer::flush_guarded(Connection& connection) {
  constexpr std::size_t most = std::size_t{256} << 10;
  while (!connection.blocked) {
    if (connection.sealed_sent == connection.sealed.size()) {
      if (connection.sealed.capacity() > most) std::string().swap(connection.sealed);
      connection.sealed.clear();
      connection.sealed_sent = 0;
      if (connection.sent >= connection.released || !connection.guard->open()) return;
      const std::size_t some = std::min(most, connection.released - connection.sent);
      if (!connection.guard->send(std::string_view(connection.out).substr(connection.sent, some), connection.sealed))
        return close(connection);
      connection.sent += some;
    }
    const ssize_t wrote = ::send(connection.descriptor, connection.sealed.data() + connection.sealed_sent,
                                 connection.sealed.size() - connection.sealed_sent, MSG_NOSIGNAL);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0 && errno != EAGAIN) return close(connection);
    if (wrote < 0) connection.blocked = true;
    else connection.sealed_sent += static_cast<std::size_t>(wrote), connection.taken = true;
  }
}

void FrameServer::flush(Connection& connection) {
  if (connection.guard) [[unlikely]] {
    flush_guarded(connection);
    if (connection.gone) return;
    if (!connection.sealed.empty()) return set_interest(connection);
  }
  while (connection.sent < connection.released && !connection.blocked && !connection.guard) {
    const ssize_t wrote = ::send(connection.descriptor, connection.out.data() + connection.sent,
                                 connection.released - connection.sent, MSG_NOSIGNAL);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0 && errno != EAGAIN) return close(connection);
    if (wrote < 0) connection.blocked = true;
    else connection.sent += static_cast<std::size_t>(wrote), connection.taken = true;
  }
  if (connection.sent == connection.out.size()) {
    if (connection.out.capacity() > kReadSize) std::string().swap(connection.out);
    connection.out.clear();
    connection.sent = connection.released = 0;
    if (connection.closing) return close(connection);
  } else if (connection.sent > kReadSize) {
    connection.out.erase(0, connection.sent);
    connection.released -= connection.sent;
    for (Connection::Held& one : connection.held) one.end -= connection.sent;
    connection.sent = 0;
  }
  if (connection.paused && reads(connection)) go_on(connection);
  set_interest(connection);
}

// Reads while its replies are taken, writes when the socket did not take all.
void FrameServer::set_interest(Connection& connection) {
  const std::uint32_t wanted = (reads(connection) && !connection.paused ? std::uint32_t{EPOLLIN} : 0u) |
                               (connection.blocked ? std::uint32_t{EPOLLOUT} : 0u);
  if (std::exchange(connection.interest, wanted) != wanted) loop_.change(connection.descriptor, wanted, connection);
}

void FrameServer::close(Connection& connection) {
  if (std::exchange(connection.gone, true)) return;
  loop_.remove(connection.descriptor, connection);
  if (drained_ || connection.guard) hang_up(connection.descriptor, buffer_);
  partial_bytes_ -= connection.pending.size();
  unproven_.remove(connection.number);
  const auto found = connections_.find(connection.number);
  closed_.push_back(std::move(found->second));
  connections_.erase(found);
  handler_.on_closed(connection.number);
}

}  // namespace zht::net

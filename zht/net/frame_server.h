// An endpoint that speaks frames: accepts TCP and unix connections, and datagrams, on one event loop, hands every complete frame to a
// handler where it lies, and writes what the handler answers. All frames that the sockets hold at the moment make one
// round; their replies leave together, one write a connection, after the handler has closed the round.
//
// Everything runs on the loop's thread, whose end of turn it takes for itself. A connection that sends what is not a frame gets one error and is
// closed; one that does not read its replies is not read from until it does. Source: [ZHT] 3.7 (one event loop a core).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "novoht/base/result.h"
#include "zht/net/acceptor.h"
#include "zht/net/datagrams.h"
#include "zht/net/event_loop.h"
#include "zht/net/listen.h"
#include "zht/security/guard.h"
#include "zht/wire/frame.h"

namespace zht::net {

using ConnectionNumber = std::uint64_t;
inline constexpr ConnectionNumber kNoConnection = 0;  // on_frames(): of a datagram; nothing can be sent there later

inline constexpr std::size_t kFramesAtOnce = 32, kReplyBytesAtOnce = std::size_t{1} << 20;

class FrameHandler {
 public:
  virtual ~FrameHandler() = default;
  virtual void begin_round() {}
  // Frames of one connection, in order, as many as lay together in what it sent (at most kFramesAtOnce). The replies go
  // to `out`. Returns how many were handled: all, or as many as it took to append kReplyBytesAtOnce; the others come again.
  // Frames of kNoConnection are handled all.
  virtual std::size_t on_frames(ConnectionNumber from, std::span<const wire::Frame> frames, std::string& out) = 0;
  // Asked after on_frames(): what the replies it has just appended have to wait for, beyond the end of the round; they leave
  // when FrameServer::release() has come to that. 0: nothing. Not for datagrams.
  virtual std::uint64_t awaits() { return 0; }
  virtual void on_closed(ConnectionNumber) {}
  // Nothing of the round is sent before it returns. false: nothing of the round is sent at all, and the connections
  // that had replies in it are closed, so that their clients ask again.
  virtual bool end_round() { return true; }
};

// What one client, or all together, can make the endpoint hold. Past a limit the offender is told or closed; the others
// are served.
struct FrameServerLimits {
  std::size_t connections = 20'000;                  // one more, of those that are proven, is told so and closed
  std::size_t frame_size = wire::kMaxFrameSize;
  std::size_t unread_replies = std::size_t{8} << 20;  // bytes; a connection with more is not read from ...
  std::size_t unread_most = std::size_t{96} << 20;    // ... and with more than this closed: what others' changes send it
  std::size_t partial_frames = std::size_t{512} << 20;  // bytes of frames that are not complete, over all connections
  // A frame comes at 64 KiB in this time at least, and replies are taken at all within it, or the connection is closed.
  base::Duration stall = std::chrono::seconds(30);
  // Of guard(): a TCP connection proves itself in this time, and no more than so many are at it (one makes way: Unproven).
  base::Duration proof = std::chrono::seconds(5);
  std::size_t unproven = 1024;
  int proofs_at_once = 4;  // pieces of handshakes a turn; TLS's cost as much as hundreds of requests
};

class FrameServer {
 public:
  FrameServer(EventLoop& loop, FrameHandler& handler, FrameServerLimits limits = {});
  ~FrameServer();

  // Who connects over TCP from now on proves himself before any of his frames reaches the handler; null: nobody has to. Through
  // unix sockets come this user's processes and root's alone, always.
  void guard(security::Opener opener);
  // Returns the address it got ("127.0.0.1:40000" for port 0). invalid: not host:port; conflict: in use; io.
  base::Result<std::string> listen_tcp(const std::string& address);
  // Datagrams on the address that listen_tcp() returned. Errors as there.
  base::Result<void> listen_udp(const std::string& address);
  base::Result<void> listen_unix(const std::string& path);  // a stale socket file is replaced; mode 0600
  // Takes no more requests and lets the clients have the replies that are under way, for `longest` at most; then `done`,
  // once. On the loop's thread, which goes on running.
  void drain(base::Duration longest, std::function<void()> done);
  void stop();  // closes everything; on the loop's thread, or when it does not run

  // What the other end of a connection may ask for. A unix socket's end is this user's, who may read the secret: an admin. Over TCP
  // where nothing is asked, everybody may do everything. Frames of nodes never reach the handler from others (PROTOCOL.md).
  security::Role role(ConnectionNumber connection) const;
  // A frame outside any request, or a late reply. Dropped when the connection is gone. Inside a round it leaves with it.
  void send(ConnectionNumber to, std::string frame);
  // What FrameHandler::awaits() asked for up to `reached` has come: replies leave, in the order of their connection.
  void release(std::uint64_t reached);
  // It will never come: connections that wait are closed, so that their clients ask again.
  void give_up_waiting();
  // Runs a round of its own (a timer's work) and sends what comes of it.
  void run_round(const std::function<void()>& work);
  std::size_t connection_count() const { return connections_.size(); }

 private:
  struct Connection;

  base::Result<void> adopt(Listening listening);
  void take(int descriptor, bool tcp);
  void adopt(int descriptor, bool tcp);
  void on_connection(Connection& connection, std::uint32_t events);
  void receive(Connection& connection);
  void receive_guarded(Connection& connection);
  void close_unproven();
  void hear_proofs();
  void digest(Connection& connection, std::string_view bytes);
  bool consume(Connection& connection, std::string_view bytes, std::size_t& used);
  bool reads(const Connection& connection) const;
  void go_on(Connection& connection);
  void keep_rest(Connection& connection, std::string_view rest);
  void refuse(Connection& connection, const base::Error& error);
  void close_stalled();
  void stop_listening();
  void open_round();
  void close_round();
  void end_replies(Connection& connection);
  void flush(Connection& connection);
  void flush_guarded(Connection& connection);
  void set_interest(Connection& connection);
  void close(Connection& connection);
  void touch(Connection& connection);

  EventLoop& loop_;
  FrameHandler& handler_;
  FrameServerLimits limits_;
  security::Opener opener_;
  Unproven unproven_;
  std::vector<ConnectionNumber> knocking_;  // in this turn: unproven ones that said something
  std::vector<std::unique_ptr<Acceptor>> listeners_;
  std::unique_ptr<Datagrams> datagrams_;
  std::unordered_map<ConnectionNumber, std::unique_ptr<Connection>> connections_;
  std::vector<std::unique_ptr<Connection>> closed_;  // in this turn: their code may still be on the stack
  ConnectionNumber next_ = 1;
  std::vector<Connection*> touched_;  // have replies of this round
  std::vector<Connection*> sending_;  // scratch of close_round()
  bool in_round_ = false;
  std::uint64_t reached_ = 0;              // by release()
  std::vector<ConnectionNumber> waiting_;  // have replies that wait for more
  std::string buffer_;  // shared by all connections: what arrives complete never leaves it
  std::function<void()> drained_;  // while draining
  std::size_t partial_bytes_ = 0;  // of all connections' `pending`
  std::shared_ptr<FrameServer*> self_ = std::make_shared<FrameServer*>(this);  // what the loop was given may outlive us
};

}  // namespace zht::net

// Small requests without a connection: one datagram, one frame; one datagram back. PROTOCOL.md, "Datagrams", is the
// contract. A sender that has not shown that its address is its own gets a cookie and nothing else, in fewer bytes than it
// sent; one that has gets an answer of at most wire::kMaxDatagram bytes, or is told to ask over a connection. Whatever is not
// a well-formed request is dropped without an answer.
//
// The frames of a turn go to the server's handler in bunches, as those of connections do, and the answers leave together
// when the round is closed.
#pragma once

#include <sys/socket.h>

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "novoht/base/result.h"
#include "zht/net/cookie.h"
#include "zht/net/event_loop.h"
#include "zht/wire/frame.h"

namespace zht::net {

class Datagrams final : private Ready {
 public:
  // `execute` appends one reply frame for each of the requests to `out`, in order, and is called inside a round, which
  // it opens.
  using Execute = std::function<void(std::span<const wire::Frame> requests, std::string& out)>;
  Datagrams(EventLoop& loop, Execute execute);
  ~Datagrams() override;

  // The same host and port as a TCP endpoint has: "127.0.0.1:40000". conflict: in use; invalid; io.
  base::Result<void> listen(const std::string& address);
  // The round is over. kept: its answers are sent; else they are dropped, and their senders ask again.
  void close_round(bool kept);

 private:
  struct Answer {
    sockaddr_storage to{};
    socklen_t to_size = 0;
    std::uint64_t cookie = 0;
    std::size_t begin = 0, size = 0;  // in out_
  };
  void on_ready(std::uint32_t events) override;
  bool receive();
  void send();

  EventLoop& loop_;
  Execute execute_;
  int descriptor_ = -1;
  CookieJar cookies_;
  std::vector<char> buffer_;
  std::string out_;
  std::vector<Answer> answers_;
};

}  // namespace zht::net

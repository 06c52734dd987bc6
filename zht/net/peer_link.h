// The way from one server to another: a TCP connection on which this side alone speaks, kept up as long as the link lives.
// Messages are sent in order or not at all: whatever a broken connection held, and whatever comes while there is none or
// finds the queue full, is dropped. Who uses it says again what was not heard; that is cheaper than remembering it here.
//
//   PeerLink link(loop);
//   link.lead_to("10.0.0.7:5471");
//   link.send(std::move(frames));      // leaves at once where the socket takes it
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>

#include "novoht/base/random.h"
#include "zht/net/event_loop.h"
#include "zht/security/guard.h"
#include "zht/wire/gathered.h"

namespace zht::net {

struct PeerLinkOptions {
  std::size_t queue_size = std::size_t{64} << 20;                // bytes waiting for the socket; one message more is dropped
  base::Duration connect_timeout = std::chrono::seconds(1);      // and for the proof
  base::Duration first_pause = std::chrono::milliseconds(5);     // between tries to connect, doubling, and up to half as
  base::Duration longest_pause = std::chrono::milliseconds(300); // much again by chance
  base::Duration dead = std::chrono::seconds(1);                 // what is sent and not acknowledged by the peer's kernel
  security::Opener opener;                                       // what both sides prove first; null: nothing
};

struct PeerLinkCounts {
  std::uint64_t connections = 0, messages = 0, bytes = 0, dropped = 0;
};

// The loop's thread; it may end before or after the loop does, but not while that runs on another thread.
class PeerLink final : private Ready {
 public:
  explicit PeerLink(EventLoop& loop, PeerLinkOptions options = {});
  ~PeerLink() override;
  PeerLink(const PeerLink&) = delete;
  PeerLink& operator=(const PeerLink&) = delete;

  // host:port; another than before: the old connection is left. Empty: nowhere.
  void lead_to(const std::string& address);
  void send(wire::Gathered message);
  bool up() const { return state_ == State::up; }
  // Why the last proof failed, such as another secret there; empty: it did not.
  const std::string& refusal() const { return refusal_; }
  const PeerLinkCounts& counts() const { return counts_; }

 private:
  enum class State : std::uint8_t { idle, resolving, connecting, proving, up, resting };
  void on_ready(std::uint32_t events) override;
  void connect();
  void open(const sockaddr* address, unsigned size);
  void established();
  void prove();
  void came_up();
  bool send_sealed();
  void would_block();
  void flush_sealed();
  void flush();
  void broken(int error = 0);
  bool stalled(int error) const;
  void rest();
  void close();
  void drop_all();

  EventLoop& loop_;
  const PeerLinkOptions options_;
  base::Random random_;
  std::string address_;
  State state_ = State::idle;
  int descriptor_ = -1;
  bool blocked_ = false;
  unsigned failures_ = 0;
  // Connections that were made at once and on which bytes then stood still, one after another: somewhere on the way large packets are
  // lost without a word. From the second on small ones are sent.
  unsigned stalls_ = 0;
  std::uint64_t life_ = 0;  // of a connection or a try at one: what was begun for an earlier one is recognised
  std::deque<wire::Gathered> queue_;
  std::size_t queued_ = 0;     // bytes
  std::size_t sent_ = 0;       // of the first message
  std::unique_ptr<security::Guard> guard_;  // none: bytes go as they are
  std::string sealed_;                      // with a guard: for the wire
  std::size_t sealed_sent_ = 0;
  std::string refusal_;
  PeerLinkCounts counts_;
  std::thread resolver_;
  std::shared_ptr<PeerLink*> self_ = std::make_shared<PeerLink*>(this);  // what the loop was given may outlive us
};

}  // namespace zht::net

// How connections are taken from a listening socket on an event loop, the same way for every listener: a few a turn, so that a flood
// of new ones leaves those there are their share, and with a pause where the process has no descriptor left, so that the
// loop does not spin on a socket that stays readable.
//
//   Acceptor door(loop, listening, [&](int descriptor) { ... });     // `descriptor`: non-blocking, the function's to close
//   TRY(door.begin());
//
// Unproven keeps the connections apart that have not shown yet whom they belong to (a handshake, AUTH, a first request). They have
// a bound of their own, and when it is reached one of them is closed for the next: the oldest of three random ones. Were it always the
// oldest, a crowd that opens as many as there may be in the time that a handshake takes would push out every honest one; a random
// one alone would hit an honest one too often where the crowd is smaller.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "novoht/base/random.h"
#include "zht/net/event_loop.h"
#include "zht/net/listen.h"

namespace zht::net {

class Acceptor final : private Ready {  // the loop's thread
 public:
  // Connections a turn. More than handshakes are heard in one (FrameServerLimits::proofs_at_once): a crowd is to be let in and shown out
  // faster than it comes, and not to stand before an honest caller in the kernel's queue.
  static constexpr int kAtOnce = 32;
  static constexpr std::chrono::milliseconds kPause{100};        // without descriptors
  Acceptor(EventLoop& loop, Listening listening, std::function<void(int descriptor)> taken);
  ~Acceptor() override;  // closes the listening socket; what it had not taken is reset
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;
  base::Result<void> begin();
  const Listening& listening() const { return listening_; }

 private:
  void on_ready(std::uint32_t events) override;
  void rest();
  EventLoop& loop_;
  const Listening listening_;
  const std::function<void(int)> taken_;
  bool added_ = false;
  std::shared_ptr<Acceptor*> self_ = std::make_shared<Acceptor*>(this);  // what the loop was given may outlive us
};

class Unproven {  // one thread
 public:
  using Clock = std::chrono::steady_clock;
  explicit Unproven(std::size_t most) : most_(most), random_(base::entropy()) {}
  void add(std::uint64_t connection, Clock::time_point now);
  void remove(std::uint64_t connection);  // it is proven, or gone; unknown ones are passed over
  bool contains(std::uint64_t connection) const { return place_.contains(connection); }
  std::size_t size() const { return all_.size(); }
  // The one that makes way for another; nothing while there is room.
  std::optional<std::uint64_t> in_the_way();
  static constexpr int kDrawn = 3;
  std::vector<std::uint64_t> older_than(Clock::time_point since) const;

 private:
  struct One {
    std::uint64_t connection;
    Clock::time_point since;
  };
  const std::size_t most_;
  base::Random random_;
  std::vector<One> all_;
  std::unordered_map<std::uint64_t, std::size_t> place_;  // in all_
};

}  // namespace zht::net

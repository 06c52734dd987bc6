// A thread's event loop on epoll. A turn: wait, call every descriptor that is ready, run due timers and posted work, then
// end_of_turn. That last hook is why this is not Asio's loop: a round (one log write, one send a connection) should cover
// all that one wait has brought, and Asio cannot say when that is done; ending rounds by posted handlers cost a second
// epoll_wait, and its waits re-arm each descriptor with an epoll_ctl: seven system calls for a lone request instead of
// four (recv, pwrite, send, epoll_wait).
//
//   EventLoop loop;
//   loop.end_of_turn([&] { close_round(); });
//   loop.every(20ms, [&] { tick(); });
//   std::thread thread([&] { loop.run(); });
//   loop.post([&] { ... });               // any thread
//   loop.stop();                          // any thread; run() returns after the turn
//
// Everything but post() and stop() belongs to the thread that runs the loop (or comes before run()).
#pragma once

#include <sys/epoll.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "novoht/base/clock.h"
#include "novoht/base/result.h"

namespace zht::net {

// Whoever has a descriptor in a loop. Told with epoll's event bits.
class Ready {
 public:
  virtual ~Ready() = default;
  virtual void on_ready(std::uint32_t events) = 0;
};

class EventLoop {
 public:
  EventLoop();
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // Level-triggered. `ready` stays until remove(); io: the system has no room for one more.
  base::Result<void> add(int descriptor, std::uint32_t events, Ready& ready);
  void change(int descriptor, std::uint32_t events, Ready& ready);
  void remove(int descriptor, Ready& ready);  // from now on `ready` is not called, not even in this turn

  void every(base::Duration period, std::function<void()> work);
  void after(base::Duration delay, std::function<void()> work);
  void end_of_turn(std::function<void()> work) { end_of_turn_ = std::move(work); }

  void post(std::function<void()> work);  // any thread; runs in some later turn, in order
  void run();
  void stop();  // any thread

 private:
  struct Timer {
    base::Duration period{};  // zero: once
    std::function<void()> work;
  };
  int wait_time() const;
  void run_timers();
  void run_posted();

  int epoll_ = -1, wake_ = -1;
  std::atomic<bool> stopped_ = false;
  std::function<void()> end_of_turn_;
  std::multimap<std::chrono::steady_clock::time_point, Timer> timers_;
  std::vector<epoll_event> events_;  // of this turn
  std::size_t event_count_ = 0;
  std::mutex mutex_;  // guards posted_
  std::vector<std::function<void()>> posted_;
};

}  // namespace zht::net

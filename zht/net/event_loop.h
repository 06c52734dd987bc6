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
// Busy polling. Going to sleep and being woken costs more than a small request: on a virtual machine both sides of a lone
// request spend two thirds of its time that way. So when requests have been coming soon after each other, the loop looks
// again for up to busy_poll() before it sleeps. It learns from each wait whether looking was, or would have been, worth
// it, and gives up for a while when it was not, or when the kernel says (involuntary switches) that another thread wants
// this processor. An idle loop sleeps.
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
  // One timer that is set anew as often as its owner likes, for work whose time is known only from one moment to the next.
  void on_alarm(std::function<void()> work) { on_alarm_ = std::move(work); }
  void set_alarm(base::Time at) { alarm_ = at; }  // once; Time::max(): never
  bool found_nothing() const { return found_nothing_; }  // in this turn: no descriptor was ready, nor was anything posted
  void busy_poll(base::Duration longest) { busy_poll_ = longest; }  // 0 (default): always sleep
  void end_of_turn(std::function<void()> work) { end_of_turn_ = std::move(work); }

  void post(std::function<void()> work);  // any thread; runs in some later turn, in order
  void run();
  void turn();  // of run(): waits for something and sees to it. For who has something to wait for before run()
  void stop();  // any thread

 private:
  struct Timer {
    base::Duration period{};  // zero: once
    std::function<void()> work;
  };
  using Clock = std::chrono::steady_clock;
  int wait();
  base::Time next_timer() const;
  int wait_time(Clock::time_point now) const;
  bool poll_pays(Clock::time_point now);
  void polled(bool found);
  void run_timers();
  void run_posted();

  int epoll_ = -1, wake_ = -1;
  std::atomic<bool> stopped_ = false;
  std::function<void()> end_of_turn_;
  std::multimap<Clock::time_point, Timer> timers_;
  base::Time alarm_ = base::Time::max();
  std::function<void()> on_alarm_;
  bool found_nothing_ = false;
  std::vector<epoll_event> events_;  // of this turn
  std::size_t event_count_ = 0;

  base::Duration busy_poll_{};
  static constexpr int kSaved = 20, kSpent = 50, kMostCredit = 1000, kWorthATry = 4, kPoorRow = 4, kGoodRow = 64, kDearest = 1024;
  int credit_ = -kWorthATry;  // below zero: sleep
  int found_in_a_row_ = 0;
  int dear_ = 1;  // grows while nothing is found at all
  Clock::time_point looked_{};        // when the switches were last counted
  Clock::time_point no_poll_until_{};  // another thread wants the processor
  long switches_ = 0;

  std::mutex mutex_;  // guards posted_
  std::vector<std::function<void()>> posted_;
};

}  // namespace zht::net

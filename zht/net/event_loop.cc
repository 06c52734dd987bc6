#include "zht/net/event_loop.h"

#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "novoht/base/check.h"

namespace zht::net {

using namespace std::chrono_literals;

namespace {
constexpr auto kLookAtSwitches = 1ms;  // how often
constexpr long kSwitchesAllowed = 1;   // in that time; the kernel's own threads run now and then
constexpr auto kLeaveItAlone = 20ms;   // to whoever wants the processor

long involuntary_switches() {
  rusage usage{};
  ::getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nivcsw;
}
}  // namespace

EventLoop::EventLoop() : events_(256) {
  epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
  wake_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  CHECK(epoll_ >= 0 && wake_ >= 0, "no file descriptors left for an event loop");
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = nullptr;  // posted work
  CHECK(::epoll_ctl(epoll_, EPOLL_CTL_ADD, wake_, &event) == 0, "epoll_ctl");
}

EventLoop::~EventLoop() {
  ::close(wake_);
  ::close(epoll_);
}

base::Result<void> EventLoop::add(int descriptor, std::uint32_t events, Ready& ready) {
  epoll_event event{};
  event.events = events;
  event.data.ptr = &ready;
  if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, descriptor, &event) != 0) return base::fail_errno(errno, "epoll_ctl");
  return {};
}

void EventLoop::change(int descriptor, std::uint32_t events, Ready& ready) {
  epoll_event event{};
  event.events = events;
  event.data.ptr = &ready;
  CHECK(::epoll_ctl(epoll_, EPOLL_CTL_MOD, descriptor, &event) == 0, "epoll_ctl of a descriptor that was added");
}

void EventLoop::remove(int descriptor, Ready& ready) {
  ::epoll_ctl(epoll_, EPOLL_CTL_DEL, descriptor, nullptr);
  for (std::size_t i = 0; i < event_count_; i++)
    if (events_[i].data.ptr == &ready) events_[i].events = 0;
}

void EventLoop::every(base::Duration period, std::function<void()> work) {
  timers_.emplace(Clock::now() + period, Timer{period, std::move(work)});
}

void EventLoop::after(base::Duration delay, std::function<void()> work) {
  timers_.emplace(Clock::now() + delay, Timer{{}, std::move(work)});
}

void EventLoop::post(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    posted_.push_back(std::move(work));
  }
  const std::uint64_t one = 1;
  (void)!::write(wake_, &one, sizeof one);
}

void EventLoop::stop() {
  stopped_ = true;
  post([] {});
}

base::Time EventLoop::next_timer() const {
  return timers_.empty() ? alarm_ : std::min<base::Time>(alarm_, timers_.begin()->first);
}

int EventLoop::wait_time(Clock::time_point now) const {
  const base::Time next = next_timer();
  if (next == base::Time::max()) return -1;
  const auto left = next - now;
  if (left <= Clock::duration::zero()) return 0;
  return static_cast<int>(std::min<std::int64_t>(std::chrono::ceil<std::chrono::milliseconds>(left).count(), 1'000'000));
}

bool EventLoop::poll_pays(Clock::time_point now) {
  if (credit_ < 0 || now < no_poll_until_) return false;
  if (now - looked_ < kLookAtSwitches) return true;
  const long switches = involuntary_switches();
  const bool wanted = switches - switches_ > kSwitchesAllowed && now - looked_ < 10 * kLookAtSwitches;
  switches_ = switches;
  looked_ = now;
  if (wanted) no_poll_until_ = now + kLeaveItAlone;
  return !wanted;
}

// Credit counts microseconds, roughly: what was saved by polls that found something, less what polls in vain have cost. A
// loop that sleeps gains some by each wait that a poll would have made shorter.
void EventLoop::polled(bool found) {
  if (found) {
    credit_ = std::min(credit_ + kSaved, kMostCredit);
    found_in_a_row_ = std::min(found_in_a_row_ + 1, kGoodRow);
    if (found_in_a_row_ == kGoodRow) dear_ = 1;
    return;
  }
  // Nothing but polls in vain: perhaps whoever would send shares this processor, and cannot while we look.
  dear_ = found_in_a_row_ < kPoorRow ? std::min(4 * dear_, kDearest) : dear_;
  found_in_a_row_ = 0;
  credit_ -= kSpent * dear_;
}

// Returns as epoll_wait does.
int EventLoop::wait() {
  const int most = static_cast<int>(events_.size());
  const auto begin = Clock::now();
  const int longest = wait_time(begin);
  if (busy_poll_ == base::Duration::zero() || longest == 0) return ::epoll_wait(epoll_, events_.data(), most, longest);
  if (!poll_pays(begin)) {
    const int count = ::epoll_wait(epoll_, events_.data(), most, longest);
    // Half of a short sleep is falling asleep and waking.
    if (Clock::now() - begin <= 2 * busy_poll_) credit_ = count > 0 && credit_ < 0 ? credit_ + 1 : credit_;
    else credit_ = std::min(credit_, -kWorthATry);
    return count;
  }
  for (;;) {
    const int count = ::epoll_wait(epoll_, events_.data(), most, 0);
    if (count != 0) {
      polled(true);
      return count;
    }
    const auto now = Clock::now();
    if (next_timer() <= now) return 0;
    if (now - begin >= busy_poll_) {
      polled(false);
      return ::epoll_wait(epoll_, events_.data(), most, wait_time(now));
    }
  }
}

void EventLoop::run_timers() {
  const auto now = Clock::now();
  while (!timers_.empty() && timers_.begin()->first <= now) {
    Timer timer = std::move(timers_.begin()->second);
    timers_.erase(timers_.begin());
    timer.work();
    if (timer.period > base::Duration::zero()) timers_.emplace(now + timer.period, std::move(timer));
  }
  if (alarm_ > now) return;
  alarm_ = base::Time::max();
  on_alarm_();
}

void EventLoop::run_posted() {
  std::uint64_t count = 0;
  (void)!::read(wake_, &count, sizeof count);
  std::vector<std::function<void()>> work;
  {
    const std::lock_guard lock(mutex_);
    work.swap(posted_);
  }
  for (auto& one : work) one();
}

void EventLoop::run() {
  while (!stopped_) turn();
}

void EventLoop::turn() {
  const int count = wait();
  CHECK(count >= 0 || errno == EINTR, "epoll_wait");
  event_count_ = static_cast<std::size_t>(std::max(count, 0));
  found_nothing_ = event_count_ == 0;
  for (std::size_t i = 0; i < event_count_; i++) {
    if (events_[i].data.ptr == nullptr) run_posted();
    else if (events_[i].events != 0) static_cast<Ready*>(events_[i].data.ptr)->on_ready(events_[i].events);
  }
  event_count_ = 0;
  run_timers();
  if (end_of_turn_) end_of_turn_();
}

}  // namespace zht::net

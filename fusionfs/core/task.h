// Straight-line code over an asynchronous store: a Task is a coroutine that waits for replies without holding a thread.
// It goes on, on one of the client's own threads, when the reply is there; so it must not block.
//
//   Task<int> twice(zht::Client& client) {
//     const zht::Outcome first = co_await Call(client, Operation::lookup("a"));
//     ...
//   }
//   start(twice(client), [](int result) { ... });   // or, where a thread may block (fuse/wait.h): wait(twice(client))
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <coroutine>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "zht/client.h"

namespace fusionfs {

namespace detail {
// Coroutines' frames are a few kilobytes, which an allocator takes longer over than over small ones, and a request needs four:
// each thread keeps a few of each size that it has done with.
class Frames {
 public:
  static void* take(std::size_t size) {
    auto& kept = of(size);
    if (kept.empty()) return ::operator new(rounded(size));
    void* const frame = kept.back();
    kept.pop_back();
    return frame;
  }
  static void give(void* frame, std::size_t size) {
    auto& kept = of(size);
    if (size <= kLargest && kept.size() < kKept)
      kept.push_back(frame);
    else
      ::operator delete(frame);
  }

 private:
  static constexpr std::size_t kStep = 256, kLargest = 8192, kKept = 16;
  static constexpr std::size_t rounded(std::size_t size) { return (size + kStep - 1) / kStep * kStep; }
  struct Thread {
    std::array<std::vector<void*>, kLargest / kStep + 2> by_size;  // the last: larger ones, of which none is kept
    ~Thread() {
      for (auto& kept : by_size) {
        for (void* frame : kept) ::operator delete(frame);
      }
    }
  };
  static std::vector<void*>& of(std::size_t size) {
    thread_local Thread thread;
    return thread.by_size[std::min(rounded(size) / kStep, kLargest / kStep + 1)];
  }
};
}  // namespace detail

// A lazily started coroutine with one result and one waiter.
template <typename T>
class [[nodiscard]] Task {
 public:
  struct promise_type {
    std::optional<T> value;
    std::coroutine_handle<> waiter;

    Task get_return_object() { return Task(std::coroutine_handle<promise_type>::from_promise(*this)); }
    std::suspend_always initial_suspend() noexcept { return {}; }
    auto final_suspend() noexcept {
      struct Resume {
        bool await_ready() noexcept { return false; }
        std::coroutine_handle<> await_suspend(std::coroutine_handle<promise_type> self) noexcept {
          return self.promise().waiter;
        }
        void await_resume() noexcept {}
      };
      return Resume{};
    }
    void return_value(T&& result) { value.emplace(std::move(result)); }
    void return_value(const T& result) { value.emplace(result); }
    void unhandled_exception() { std::terminate(); }
    static void* operator new(std::size_t size) { return detail::Frames::take(size); }
    static void operator delete(void* frame, std::size_t size) { detail::Frames::give(frame, size); }
  };

  explicit Task(std::coroutine_handle<promise_type> handle) : handle_(handle) {}
  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Task& operator=(Task&&) = delete;
  ~Task() {
    if (handle_) handle_.destroy();
  }

  bool await_ready() const noexcept { return false; }
  std::coroutine_handle<> await_suspend(std::coroutine_handle<> waiter) noexcept {
    handle_.promise().waiter = waiter;
    return handle_;
  }
  T await_resume() { return std::move(*handle_.promise().value); }

 private:
  std::coroutine_handle<promise_type> handle_;
};

// While one of these lives, calls begun on this thread are made by this thread, which blocks for the reply: two
// wake-ups fewer than through the client's own thread. For a caller that has nothing else to do and may block.
class CallsBlock {
 public:
  // every: also those that could be under way beside others, or that nobody waits for: with a client in the store's own
  // process making them is less work than handing them over.
  enum class Which { none, lone, every };
  explicit CallsBlock(Which which) : before_(std::exchange(now_, which)) {}
  ~CallsBlock() { now_ = before_; }
  CallsBlock(const CallsBlock&) = delete;
  CallsBlock& operator=(const CallsBlock&) = delete;
  static Which now() { return now_; }

 private:
  Which before_;
  static inline thread_local Which now_ = Which::none;
};

// An operation that nobody waits for.
inline void call_and_forget(zht::Client& client, zht::Operation operation) {
  if (CallsBlock::now() == CallsBlock::Which::every)
    client.call(std::move(operation));
  else
    client.submit(std::move(operation), [](zht::Outcome) {});
}

// Where a reply and the coroutine that waits for it meet: whichever is second goes on. The caller keeps it alive until both came.
class Meeting {
 public:
  bool replied() const noexcept { return step_.load(std::memory_order_acquire) == kReplied; }
  // The reply is there; goes on with who waits. Once.
  void reply() {
    if (step_.exchange(kReplied, std::memory_order_acq_rel) == kWaiting) waiter_.resume();
  }
  // False: the reply has come meanwhile. As soon as it is true the coroutine may be going on elsewhere.
  bool wait(std::coroutine_handle<> waiter) noexcept {
    waiter_ = waiter;
    int expected = kSent;
    return step_.compare_exchange_strong(expected, kWaiting, std::memory_order_acq_rel);
  }

 private:
  static constexpr int kSent = 0, kWaiting = 1, kReplied = 2;
  std::atomic<int> step_{kSent};
  std::coroutine_handle<> waiter_;
};

// One operation, awaited. Begins when constructed, so that several can be under way at once:
//   Call one(client, a, {}, Call::Style::beside), two(client, b);
//   auto first = co_await one; auto second = co_await two;
class Call {
 public:
  enum class Style { alone, beside };  // beside: something else is to be done meanwhile

  Call(zht::Client& client, zht::Operation operation, zht::Millis timeout = {}, Style style = Style::alone)
      : state_(std::make_shared<State>()) {
    using Which = CallsBlock::Which;
    const Which which = CallsBlock::now();
    // A callback may take seconds: whoever waits for one lets its thread go on.
    if (operation.kind != zht::OpKind::callback &&
        (which == Which::every || (which == Which::lone && style == Style::alone))) {
      state_->outcome = client.call(std::move(operation), timeout);
      state_->meeting.reply();
      return;
    }
    client.submit(
        std::move(operation),
        [state = state_](zht::Outcome outcome) {
          state->outcome = std::move(outcome);
          state->meeting.reply();
        },
        timeout);
  }
  bool await_ready() const noexcept { return state_->meeting.replied(); }
  bool await_suspend(std::coroutine_handle<> waiter) noexcept {
    const std::shared_ptr<State> state = state_;  // a copy: the coroutine may go on and destroy this object
    return state->meeting.wait(waiter);
  }
  zht::Outcome await_resume() { return std::move(state_->outcome); }

 private:
  struct State {
    Meeting meeting;
    zht::Outcome outcome;
  };
  std::shared_ptr<State> state_;
};

namespace detail {
struct Detached {
  struct promise_type {
    Detached get_return_object() { return {}; }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_never final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { std::terminate(); }
  };
};
template <typename T, typename Then>
Detached drive(Task<T> task, Then then) {
  T result = co_await task;
  then(std::move(result));
}
}  // namespace detail

// Runs `task`; `then` gets its result, on this thread when nothing had to be waited for.
template <typename T, typename Then>
void start(Task<T> task, Then then) {
  detail::drive<T, Then>(std::move(task), std::move(then));
}

}  // namespace fusionfs

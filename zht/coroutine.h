// C++20 coroutines over a client: the same operations, co_awaited.
//
//   zht::Task<zht::Result<void>> move(zht::Coroutines store, std::string from, std::string to) {
//     auto value = co_await store.lookup(from);
//     if (!value) co_return value.error();
//     auto inserted = co_await store.insert(to, value->value);
//     if (!inserted) co_return inserted.error();
//     co_await store.remove(from);
//     co_return zht::Result<void>();
//   }
//   auto moved = zht::run(move(zht::Coroutines(*client), "a", "b"));          // a thread that waits
//
// Threads: a coroutine goes on where its answer arrived, on one of the client's threads, and there it must not block; or on
// whatever thread `Resume` takes it to. Every operation can be awaited by any coroutine type that takes plain awaitables;
// in Asio's coroutines use zht/asio.h, whose completion tokens keep Asio's executors and cancellation.
// Cancellation: a std::stop_token given to Coroutines ends its operations early (Client::cancel says with what).
#pragma once

#include <atomic>
#include <coroutine>
#include <exception>
#include <functional>
#include <optional>
#include <semaphore>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "zht/client.h"

namespace zht {

// A coroutine that begins when it is awaited (or given to run()) and ends with a T. Move-only; destroyed before it has
// ended only when it never began.
template <typename T>
class Task {
 public:
  struct promise_type {
    std::optional<T> value;
    std::exception_ptr thrown;
    std::coroutine_handle<> awaiting;
    Task get_return_object() { return Task(std::coroutine_handle<promise_type>::from_promise(*this)); }
    std::suspend_always initial_suspend() noexcept { return {}; }
    struct End {
      bool await_ready() noexcept { return false; }
      std::coroutine_handle<> await_suspend(std::coroutine_handle<promise_type> ended) noexcept {
        const std::coroutine_handle<> next = ended.promise().awaiting;
        return next ? next : std::noop_coroutine();
      }
      void await_resume() noexcept {}
    };
    End final_suspend() noexcept { return {}; }
    template <typename U>
    void return_value(U&& result) {
      value.emplace(std::forward<U>(result));
    }
    void unhandled_exception() { thrown = std::current_exception(); }
  };

  Task(Task&& from) noexcept : coroutine_(std::exchange(from.coroutine_, {})) {}
  Task& operator=(Task&& from) noexcept {
    std::swap(coroutine_, from.coroutine_);
    return *this;
  }
  ~Task() {
    if (coroutine_) coroutine_.destroy();
  }

  bool await_ready() const noexcept { return false; }
  std::coroutine_handle<> await_suspend(std::coroutine_handle<> awaiting) noexcept {
    coroutine_.promise().awaiting = awaiting;
    return coroutine_;
  }
  // The result; what the coroutine threw is thrown.
  T await_resume() {
    if (coroutine_.promise().thrown) std::rethrow_exception(coroutine_.promise().thrown);
    return std::move(*coroutine_.promise().value);
  }

 private:
  explicit Task(std::coroutine_handle<promise_type> coroutine) : coroutine_(coroutine) {}
  std::coroutine_handle<promise_type> coroutine_;
};

namespace coroutine_detail {

// A coroutine that nobody awaits: it begins at once and destroys itself.
struct Detached {
  struct promise_type {
    Detached get_return_object() noexcept { return {}; }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_never final_suspend() noexcept { return {}; }
    void return_void() noexcept {}
    void unhandled_exception() noexcept { std::terminate(); }  // what a task throws is kept, so nothing comes here
  };
};

template <typename T>
struct Kept {
  std::optional<T> value;
  std::exception_ptr thrown;
  T take() {
    if (thrown) std::rethrow_exception(thrown);
    return std::move(*value);
  }
};

template <typename T, typename Done>
Detached begin(Task<T>& task, Kept<T>& kept, Done done) {
  try {
    kept.value.emplace(co_await task);
  } catch (...) {
    kept.thrown = std::current_exception();
  }
  done();
}

}  // namespace coroutine_detail

// Begins `task` on this thread and waits for its end. Not on a client's thread.
template <typename T>
T run(Task<T> task) {
  coroutine_detail::Kept<T> kept;
  std::binary_semaphore ended(0);
  coroutine_detail::begin(task, kept, [&ended] { ended.release(); });
  ended.acquire();
  return kept.take();
}

// Begins all tasks, one after the other on the awaiting thread, and ends with the results in order when the last has ended.
// The first exception, in that order, is thrown.
template <typename T>
class All {
 public:
  explicit All(std::vector<Task<T>> tasks) : tasks_(std::move(tasks)), kept_(tasks_.size()), left_(tasks_.size() + 1) {}
  All(All&&) = delete;
  bool await_ready() const noexcept { return tasks_.empty(); }
  bool await_suspend(std::coroutine_handle<> awaiting) {
    for (std::size_t i = 0; i < tasks_.size(); i++)
      coroutine_detail::begin(tasks_[i], kept_[i], [this, awaiting] {
        if (left_.fetch_sub(1) == 1) awaiting.resume();
      });
    return left_.fetch_sub(1) != 1;  // all have ended already: go on at once
  }
  std::vector<T> await_resume() {
    std::vector<T> results;
    results.reserve(kept_.size());
    for (auto& one : kept_) results.push_back(one.take());
    return results;
  }

 private:
  std::vector<Task<T>> tasks_;
  std::vector<coroutine_detail::Kept<T>> kept_;
  std::atomic<std::size_t> left_;  // tasks, and the beginning itself
};
template <typename T>
All<T> all(std::vector<Task<T>> tasks) {
  return All<T>(std::move(tasks));
}

// Takes a coroutine to the thread it shall go on in, such as a loop's post(). Empty: it goes on where the answer arrived.
using Resume = std::function<void(std::coroutine_handle<>)>;

// One operation under way, to be awaited once, at once. T: what the coroutine gets, made from the outcome by `Convert`.
template <typename T>
class Awaited {
 public:
  using Convert = T (*)(Outcome);
  Awaited(Client& client, Operation operation, Millis timeout, const Resume* resume, std::stop_token stop, Convert convert)
      : client_(client), operation_(std::move(operation)), timeout_(timeout), resume_(resume), stop_(std::move(stop)), convert_(convert) {}
  Awaited(Awaited&&) = delete;

  bool await_ready() const noexcept { return false; }
  bool await_suspend(std::coroutine_handle<> awaiting) {
    // The answer may come before this function is through, on another thread. Whichever of the two is second lets the
    // coroutine go on; until then it, and this object in it, stay as they are.
    auto answered = [this, awaiting](Outcome outcome) {
      outcome_ = std::move(outcome);
      if (!second_.exchange(true)) return;
      if (resume_ != nullptr && *resume_)
        (*resume_)(awaiting);
      else
        awaiting.resume();
    };
    if (stop_.stop_possible()) {
      const RequestNumber request = client_.start(std::move(operation_), std::move(answered), timeout_);
      cancel_.emplace(stop_, Cancel{&client_, request});
    } else {
      client_.submit(std::move(operation_), std::move(answered), timeout_);
    }
    return !second_.exchange(true);
  }
  T await_resume() {
    cancel_.reset();
    return convert_(std::move(outcome_));
  }

 private:
  struct Cancel {
    Client* client;
    RequestNumber request;
    void operator()() const { client->cancel(request); }
  };
  Client& client_;
  Operation operation_;
  const Millis timeout_;
  const Resume* const resume_;
  const std::stop_token stop_;
  const Convert convert_;
  Outcome outcome_;
  std::atomic<bool> second_{false};
  std::optional<std::stop_callback<Cancel>> cancel_;
};

// Many operations, one answer each.
class AwaitedAll {
 public:
  AwaitedAll(Client& client, std::vector<Operation> operations, Millis timeout, const Resume* resume)
      : client_(client), operations_(std::move(operations)), timeout_(timeout), resume_(resume) {}
  AwaitedAll(AwaitedAll&&) = delete;
  bool await_ready() const noexcept { return false; }
  bool await_suspend(std::coroutine_handle<> awaiting) {
    client_.submit_all(
        std::move(operations_),
        [this, awaiting](std::vector<Outcome> outcomes) {
          outcomes_ = std::move(outcomes);
          if (!second_.exchange(true)) return;
          if (resume_ != nullptr && *resume_)
            (*resume_)(awaiting);
          else
            awaiting.resume();
        },
        timeout_);
    return !second_.exchange(true);
  }
  std::vector<Outcome> await_resume() { return std::move(outcomes_); }

 private:
  Client& client_;
  std::vector<Operation> operations_;
  const Millis timeout_;
  const Resume* const resume_;
  std::vector<Outcome> outcomes_;
  std::atomic<bool> second_{false};
};

// The operations of a client as awaitables; each means what the blocking one of that name means, errors included. Cheap to
// copy. The client, and this object, outlive what is awaited.
class Coroutines {
 public:
  explicit Coroutines(Client& client, Resume resume = {}, std::stop_token stop = {}, Millis timeout = {})
      : client_(&client), resume_(std::move(resume)), stop_(std::move(stop)), timeout_(timeout) {}
  // The same with another time-out for each operation, or another way to cancel.
  Coroutines within(Millis timeout) const { return Coroutines(*client_, resume_, stop_, timeout); }
  Coroutines until(std::stop_token stop) const { return Coroutines(*client_, resume_, std::move(stop), timeout_); }

  Awaited<Outcome> call(Operation operation) const { return ask<Outcome>(std::move(operation), [](Outcome outcome) { return outcome; }); }
  AwaitedAll call_all(std::vector<Operation> operations) const { return {*client_, std::move(operations), timeout_, &resume_}; }

  Awaited<Result<Version>> insert(std::string key, std::string value, Millis ttl = {}) const {
    return ask(Operation::insert(std::move(key), std::move(value), ttl), version_of);
  }
  Awaited<Result<Version>> insert_new(std::string key, std::string value, Millis ttl = {}) const {
    return ask(Operation::insert_new(std::move(key), std::move(value), ttl), version_of);
  }
  Awaited<Result<Value>> lookup(std::string key, Range range = {}) const {
    return ask(Operation::lookup(std::move(key), range), value_of);
  }
  Awaited<Result<Value>> lookup_eventual(std::string key, Version at_least = 0, Range range = {}) const {
    return ask(Operation::lookup_eventual(std::move(key), at_least, range), value_of);
  }
  Awaited<Result<Version>> remove(std::string key) const { return ask(Operation::remove(std::move(key)), version_of); }
  Awaited<Result<Appended>> append(std::string key, std::string value, std::uint64_t limit = 0) const {
    return ask(Operation::append(std::move(key), std::move(value), limit), appended_of);
  }
  Awaited<Result<Swap>> cswap(std::string key, Condition expected, std::string desired, Millis ttl = {}) const {
    return ask(Operation::cswap(std::move(key), std::move(expected), std::move(desired), ttl), swap_of);
  }
  Awaited<Result<Swap>> cswap_remove(std::string key, Condition expected) const {
    return ask(Operation::cswap_remove(std::move(key), std::move(expected)), swap_of);
  }
  Awaited<Result<Value>> callback(std::string key, Condition condition, Millis timeout, Range range = {}) const {
    return Awaited<Result<Value>>(*client_, Operation::callback(std::move(key), std::move(condition), range), timeout, &resume_, stop_,
                                  value_of);
  }
  Awaited<Result<std::string>> update(std::string key, std::string procedure, std::string arguments) const {
    return ask<Result<std::string>>(Operation::update(std::move(key), std::move(procedure), std::move(arguments)),
                                    [](Outcome outcome) -> Result<std::string> {
                                      if (!outcome.ok()) return outcome.error();
                                      return std::move(outcome.value);
                                    });
  }
  Awaited<Result<std::vector<Outcome>>> batch(std::vector<Operation> operations) const {
    return ask<Result<std::vector<Outcome>>>(Operation::batch(std::move(operations)),
                                             [](Outcome outcome) -> Result<std::vector<Outcome>> {
                                               if (!outcome.ok()) return outcome.error();
                                               return std::move(outcome.outcomes);
                                             });
  }

 private:
  template <typename T>
  Awaited<T> ask(Operation operation, T (*convert)(Outcome)) const {
    return Awaited<T>(*client_, std::move(operation), timeout_, &resume_, stop_, convert);
  }
  Client* client_;
  Resume resume_;
  std::stop_token stop_;
  Millis timeout_;
};

}  // namespace zht

// Work for another thread: syncs, above all, and memory and files made ready, which would stop the owner for
// milliseconds. Threads are started when first needed and kept, for to start one costs the owner as much as it saves.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>

#include "novoht/base/result.h"

namespace novoht::core {

// Does what it is handed, in order. Not threaded: at once, on the caller's thread. One owner.
class Worker {
 public:
  explicit Worker(bool threaded) : threaded_(threaded) {}
  ~Worker() { stop(); }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Everything that was handed over is done when this returns, and no more is taken.
  void stop() {
    if (!thread_.joinable()) return;
    {
      std::scoped_lock lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }

  bool threaded() const { return threaded_; }

  void run(std::function<void()> job) {
    if (threaded_ && !thread_.joinable()) {
      try {
        thread_ = std::thread([this] { work(); });
      } catch (const std::system_error&) {
        threaded_ = false;  // no thread to be had: slower, not worse
      }
    }
    if (!threaded_) return job();
    {
      std::scoped_lock lock(mutex_);
      jobs_.push_back(std::move(job));
    }
    wake_.notify_one();
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      std::function<void()> job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      job();
      job = nullptr;  // what it holds goes here too
      lock.lock();
    }
  }

  bool threaded_;
  std::mutex mutex_;  // of the two below
  std::deque<std::function<void()>> jobs_;
  bool stopping_ = false;
  std::condition_variable wake_;
  std::thread thread_;
};

// One piece of work at a time, whose outcome is wanted. Owned by one thread, which alone calls it. Not threaded: the work is
// done in start(), in the order of the calls.
class Background {
 public:
  explicit Background(bool threaded) : worker_(threaded) {}
  ~Background() { (void)wait(); }
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  bool running() const { return running_; }  // started, and its outcome not yet taken

  // Only when not running(). What `work` refers to must stay until the outcome was taken.
  void start(std::function<base::Result<void>()> work) {
    running_ = true;
    done_ = false;
    worker_.run([this, job = std::move(work)] {
      outcome_ = job();
      done_.store(true, std::memory_order_release);
      done_.notify_one();
    });
  }
  // Something more when that is done, of which nothing is told.
  void then(std::function<void()> work) { worker_.run(std::move(work)); }
  // The outcome, once it is there: then running() is false.
  std::optional<base::Result<void>> poll() {
    if (!running_ || !done_.load(std::memory_order_acquire)) return {};
    return wait();
  }
  // Whether the outcome is there, or nothing is running(), by then.
  bool wait_until_done(std::chrono::steady_clock::time_point until) const {
    // A nap takes longer than it should, by some fifty microseconds.
    constexpr std::chrono::microseconds kNap(50), kNapFrom(200);
    while (running_ && !done_.load(std::memory_order_acquire)) {
      const auto now = std::chrono::steady_clock::now();
      if (now >= until) return false;
      if (until - now < kNapFrom) std::this_thread::yield();
      else std::this_thread::sleep_for(kNap);
    }
    return true;
  }
  void wait_until_done() const {
    if (running_) done_.wait(false, std::memory_order_acquire);
  }
  // The same, waiting for it. Nothing when not running().
  std::optional<base::Result<void>> wait() {
    if (!running_) return {};
    done_.wait(false, std::memory_order_acquire);
    running_ = false;
    return std::move(outcome_);
  }

 private:
  bool running_ = false;
  base::Result<void> outcome_;
  std::atomic<bool> done_ = false;
  Worker worker_;  // last: it ends before what it writes to
};

}  // namespace novoht::core

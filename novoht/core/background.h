// One piece of work at a time for another thread: syncs, above all, which would stop the owner for milliseconds.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <system_error>
#include <thread>

#include "novoht/base/result.h"

namespace novoht::core {

// Owned by one thread, which alone calls it. Not threaded: the work is done in start(), in the order of the calls.
class Background {
 public:
  explicit Background(bool threaded) : threaded_(threaded) {}
  ~Background() { (void)wait(); }
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  bool running() const { return running_; }  // started, and its outcome not yet taken

  // Only when not running(). What `work` refers to must stay until the outcome was taken.
  void start(std::function<base::Result<void>()> work) {
    running_ = true;
    done_ = false;
    if (!threaded_) {
      outcome_ = work();
      done_ = true;
      return;
    }
    try {
      thread_ = std::thread([this, job = work] {
        outcome_ = job();
        done_.store(true, std::memory_order_release);
      });
    } catch (const std::system_error&) {  // no thread to be had: slower, not worse
      outcome_ = work();
      done_ = true;
    }
  }
  // The outcome, once it is there: then running() is false.
  std::optional<base::Result<void>> poll() {
    if (!running_ || !done_.load(std::memory_order_acquire)) return {};
    return wait();
  }
  // The same, waiting for it. Nothing when not running().
  std::optional<base::Result<void>> wait() {
    if (!running_) return {};
    if (thread_.joinable()) thread_.join();
    running_ = false;
    return std::move(outcome_);
  }

 private:
  const bool threaded_;
  bool running_ = false;
  std::thread thread_;
  base::Result<void> outcome_;
  std::atomic<bool> done_ = false;
};

}  // namespace novoht::core

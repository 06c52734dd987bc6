// A sequence that is made on one thread and used on another, some items ahead: what is read from the disk and checked
// while what came before is put into the tables.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace novoht::core {

// `make` fills the next item, or returns false: that was the last one. It is called on a thread of its own when
// `threaded`, else within next(). An item is reused with what it held, so make() clears what it does not set.
template <typename Item>
class ReadAhead {
 public:
  ReadAhead(bool threaded, std::size_t most, std::function<bool(Item&)> make) : most_(most), make_(std::move(make)) {
    if (!threaded) return;
    try {
      thread_ = std::thread([this] { run(); });
    } catch (const std::system_error&) {
      // No thread to be had: slower, not worse.
    }
  }
  ~ReadAhead() {
    if (!thread_.joinable()) return;
    {
      std::scoped_lock lock(mutex_);
      stopped_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  // The next item into `item`, whose old contents may be reused; false at the end.
  bool next(Item& item) {
    if (!thread_.joinable()) return make_(item);
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !ready_.empty() || ended_; });
    if (ready_.empty()) return false;
    free_.push_back(std::move(item));
    item = std::move(ready_.front());
    ready_.pop_front();
    lock.unlock();
    changed_.notify_all();
    return true;
  }

 private:
  void run() {
    for (Item item;;) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return ready_.size() < most_ || stopped_; });
        if (stopped_) return;
        if (!free_.empty()) {
          item = std::move(free_.back());
          free_.pop_back();
        }
      }
      const bool more = make_(item);
      {
        std::scoped_lock lock(mutex_);
        if (more) ready_.push_back(std::move(item));
        else ended_ = true;
      }
      changed_.notify_all();
      if (!more) return;
    }
  }

  const std::size_t most_;
  const std::function<bool(Item&)> make_;
  std::mutex mutex_;  // of the four below
  std::deque<Item> ready_;
  std::vector<Item> free_;
  bool stopped_ = false, ended_ = false;
  std::condition_variable changed_;
  std::thread thread_;
};

}  // namespace novoht::core

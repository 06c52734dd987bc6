// A thread that does what others have no time for, in the order in which it was asked. A mount has two: one for what the kernel is to be told,
// one for disks and networks, so that neither a node that does not answer nor a long list of chunks to delete is in the way of the former.
#pragma once

#include <condition_variable>
#include <coroutine>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace fusionfs {

class Worker {
 public:
  using Job = std::function<void()>;
  Worker() : thread_([this] { run(); }) {}
  ~Worker() { stop(); }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Any thread. After stop() it is forgotten.
  void post(Job job) {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
    changed_.notify_one();
  }
  std::size_t waiting() const {
    const std::lock_guard lock(mutex_);
    return jobs_.size();
  }
  // Does what it has been given, and no more.
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      changed_.notify_one();
    }
    if (thread_.joinable()) thread_.join();
  }

  // co_await: goes on on this thread, after the jobs it has been given before.
  struct Turn {
    Worker& worker;
    bool await_ready() const noexcept { return false; }
    void await_suspend(std::coroutine_handle<> waiter) {
      worker.post([waiter] { waiter.resume(); });
    }
    void await_resume() const noexcept {}
  };
  Turn turn() { return Turn{*this}; }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      const Job job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      job();
      lock.lock();
    }
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;   // guarded by mutex_
  bool stopping_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace fusionfs

// How threads of this process use an instance without a socket: whoever finds it idle works on it himself.
//
// An instance's core belongs to whoever holds its LocalQueue: its own thread for the length of a round, or a caller's
// thread for a round of its own. A caller who finds it held leaves his request in the queue, and the holder executes all
// that is queued before it lets go, in the same round: one write (and one sync) for everybody who came meanwhile. A lone
// caller pays neither a hand-over nor a wake-up, many make bigger rounds, and nobody is passed over: a holder looks at the
// queue again after it has let go.
//
//   LocalQueue queue([&](LocalRequest* requests) { ...one round... });
//   queue.run(request);                       // any thread; the request was executed when it returns
//   { const LocalQueue::Hold hold(queue); core.begin_round(...); ...; queue.take(); ... }   // the instance's thread
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

namespace zht::core {
class Instance;
}

namespace zht::server {

// What one caller wants done in a round. Lives on his stack until run() returns.
class LocalRequest {
 public:
  virtual ~LocalRequest() = default;
  virtual void expect(const core::Instance&) {}  // right before the round: memory may be asked for
  virtual void execute(core::Instance& core) = 0;  // inside a round, on whichever thread holds the instance
  bool kept = false;  // the round ended well; else nothing it answered may be believed
  // Durability always: what it answered may not be shown before this round's changes are synced; 0: it may.
  std::uint64_t needed = 0;

 private:
  friend class LocalQueue;
  LocalRequest* next_ = nullptr;
  std::atomic<std::uint32_t> done_{0};
};

// Any thread. Linearizable: a request is executed between run()'s beginning and its end, once.
class LocalQueue {
 public:
  // `round` executes a list of requests (LocalQueue::next) in one round and sets their `kept`. Called by whoever holds the
  // queue.
  explicit LocalQueue(std::function<void(LocalRequest*)> round) : round_(std::move(round)) {}

  void run(LocalRequest& request);

  void lock();
  void unlock();  // what was queued meanwhile is executed first, and looked for once more afterwards
  class Hold {
   public:
    explicit Hold(LocalQueue& queue) : queue_(queue) { queue_.lock(); }
    ~Hold() { queue_.unlock(); }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

   private:
    LocalQueue& queue_;
  };

  // For the holder: all that is queued, oldest first, which he then executes and hands to done().
  LocalRequest* take();
  static LocalRequest* next(const LocalRequest& request) { return request.next_; }
  static void done(LocalRequest* requests);  // wakes the callers; the requests are gone afterwards

 private:
  bool try_lock();
  void release();
  bool queued() const { return queue_.load() != nullptr; }

  const std::function<void(LocalRequest*)> round_;
  // 0 free, 1 held, 2 held and somebody sleeps until it is free. The order of operations on this and on queue_ is what
  // "nobody is passed over" rests on, hence sequentially consistent throughout.
  std::atomic<std::uint32_t> state_{0};
  std::atomic<LocalRequest*> queue_{nullptr};  // newest first
};

}  // namespace zht::server

// Asynchronous requests: one thread, one pipelined connection to each instance.
//
// Any thread submits; the thread wakes once for all that came meanwhile, encodes them into the connections' buffers and
// writes each buffer at once. A request lives in a slot until it is answered, its deadline passes, or the engine ends. When
// a connection breaks, its requests go out again on the next one under the same identity, in the order of their first
// sending; where they go is looked up anew each time the membership table changes. An instance that has requests and says
// nothing is asked anew on another connection, ever more rarely: a half-open connection is left, a busy instance not flooded.
// An eventual lookup goes to the next that has a copy where one is not reached, is silent for a quarter second or cannot answer.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "zht/client.h"
#include "zht/client/session.h"

namespace zht::client {

struct Pending {
  Operation operation;
  Completion completion;
  base::Time deadline{};
  Session::Number number;      // sequence 0: given by the engine when the operation is recorded
  bool maybe = false;          // an earlier sending of it may have been executed
  std::optional<Outcome> ready;  // nothing to send: this is the answer
  RequestNumber name = 0;        // for cancel(); 0: cannot be cancelled
  std::uint32_t turn = 0;        // of an eventual lookup: whom to ask (Table::asked)
};

class Engine {
 public:
  struct Options {
    Millis connect_timeout{2'000};
    std::size_t max_in_flight = 65'536;
    std::size_t max_waiters = 1'048'576;
    std::size_t max_connections = 256;
    // Called on the engine's thread when an instance cannot be reached or says that it is the wrong one. Must not block.
    std::function<void()> want_table;
  };
  Engine(Session& session, Options options);
  // Completes what is outstanding (timeout when it may have happened, else unavailable) and says goodbye.
  ~Engine();
  // Any thread; waits for room, except on the engine's own thread. (On the heap: a request passes through several hands,
  // and moving one takes as long as encoding it.)
  void submit(std::unique_ptr<Pending> pending);
  void submit_all(std::vector<std::unique_ptr<Pending>> pendings);
  void cancel(RequestNumber name);                 // any thread: ends the one of that name, if it is still there
  void table_changed();                            // any thread: session's table is a new one
  bool has_requests() const;                       // any thread
  bool on_thread() const { return std::this_thread::get_id() == thread_.get_id(); }

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
  std::thread thread_;
};

}  // namespace zht::client

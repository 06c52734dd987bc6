// A client inside the node's own process: no socket, no second copy of the membership table, no hand-over.
//
// call() and call_all() execute on the caller's thread, with the core of the instance that owns the key in hand
// (LocalQueue); threads that meet on one instance share a round. submit() hands to a thread of the client's own, which
// takes all that came meanwhile and executes it with one round an instance; completions run there and nowhere else, as
// everywhere (zht/client.h). A callback's answer comes from whichever thread changed the key and is handed to that thread
// too.
//
// Requests reach the core as frames, as a socket would bring them: one path to test. Most frames only point to the
// operation's own key and value; the others are encoded. A plain insert or lookup makes neither an Operation nor an Outcome.
// Durability always: a call waits for its sync, alone or with others who came meanwhile, and without the core, so that nobody else
// does; submit() and call_each() go on, and answer when it is done.
//
// The identity of a request is (this client and instance, sequence), numbered while the core is held; nothing here is ever
// sent twice, so the floor is always just below.
//
// All this is for partitions that this node has to itself. One that other nodes have copies of, or lead, is asked over a socket
// as any client does: its answer takes a network's time anyway, and may need another try elsewhere.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "zht/client.h"
#include "zht/server/instance_thread.h"

namespace zht::server {

class InProcessClient final : public Client {
 public:
  struct Options {
    std::uint32_t partition_count = 0;
    std::size_t max_value_size = kMaxValueSize;
    std::vector<std::uint32_t> instance_of;  // partition -> index into `instances`
    Millis timeout{10'000};                  // of a callback without one
    std::size_t max_in_flight = 65'536;      // of submit(), callbacks aside
    std::size_t max_waiters = 1'048'576;     // callbacks; one more is refused
    std::function<Client*()> elsewhere;      // the client for what other nodes have a part in; any thread, lives as `owner` does
  };
  // `number`: another for each client of a node. The instances live as long as `owner` is held, and may have stopped:
  // every operation is then `unavailable`.
  InProcessClient(Options options, std::vector<InstanceThread*> instances, std::shared_ptr<void> owner, std::uint64_t number);
  ~InProcessClient() override;

  void submit(Operation operation, Completion completion, Millis timeout) override;
  RequestNumber start(Operation operation, Completion completion, Millis timeout) override;
  void cancel(RequestNumber request) override;
  std::uint32_t partition_count() const override { return options_.partition_count; }
  Outcome call(Operation operation, Millis timeout) override;
  std::optional<Outcome> call_or_submit(Operation operation, Completion completion, Millis timeout) override;
  std::vector<Outcome> call_all(std::vector<Operation> operations, Millis timeout) override;
  void call_each(std::vector<Operation> operations, EachCompletion completion, bool waits) override;
  Result<Version> insert(Bytes key, Bytes value, Millis ttl) override;
  Result<Value> lookup(Bytes key, Range range) override;
  std::vector<Result<Value>> lookup_many(std::vector<std::string> keys) override;
  std::vector<Result<Version>> insert_many(std::vector<std::pair<std::string, std::string>> pairs, Millis ttl) override;

 private:
  // This client at one instance. Touched by whoever holds the core.
  struct Port {
    InstanceThread* thread = nullptr;
    std::uint64_t client = 0, sequence = 0;
    std::string in, out;  // scratch, as are:
    std::vector<wire::Frame> frames;
    void trim();  // after a large value
  };
  struct Ask {  // a plain insert or lookup, and its answer
    PartitionId partition{0};
    Bytes key, value;
    Value found;
    std::optional<Error> error;
    bool answered = false;
  };
  struct Item {
    const Operation* operation = nullptr;
    Outcome outcome;
    PartitionId partition{0};
    std::uint64_t request = 0;   // callback
    std::uint64_t timeout_ms = 0;
    bool answered = false;       // else a callback that waits
    bool elsewhere = false;      // not this node's alone: nothing was done
    bool late = false;           // may not be shown before it is synced (durability always)
  };
  class Round;
  class Plain;
  struct Job {  // submitted
    Operation operation;
    Completion completion;
    Millis timeout{};
    RequestNumber name = 0;  // for cancel(); 0: cannot be cancelled
  };
  struct Waiting {  // a callback registered with an instance
    Completion completion;
    base::Time deadline{};
    std::size_t instance = 0;
    RequestNumber name = 0;
    Operation operation;
  };
  struct Return {  // of what was asked elsewhere
    std::uint64_t request = 0;
    Outcome outcome;
  };
  struct Batch {  // whose items may be late; whoever hears last lets go of it
    std::vector<Operation> operations;
    std::vector<Job> jobs;
    std::vector<Item> items;
    EachCompletion completion;
  };
  struct Late {
    std::shared_ptr<Batch> batch;
    std::vector<Item*> items;
  };
  struct Away {
    Completion completion;
    RequestNumber there = 0, name = 0;
    OpKind kind{};
  };
  struct Arrival {
    std::size_t instance = 0;
    std::string frame;  // empty: the instance has stopped
  };

  static wire::Frame plain_frame(Port& port, const core::Instance& core, OpKind kind, std::uint64_t request, PartitionId partition,
                                 Bytes key, Bytes value);
  RequestNumber enqueue(Job job, bool named);
  void leave_locked(OpKind kind);  // an operation has ended. mutex_ is held
  Client* elsewhere() const;
  std::uint32_t instance_of(PartitionId partition) const { return options_.instance_of[static_cast<std::uint32_t>(partition)]; }
  bool is_plain(Bytes key, Bytes value) const {
    return !key.empty() && key.size() <= kMaxKeySize && value.size() <= options_.max_value_size;
  }
  void ask_one(OpKind kind, Ask& ask);
  void ask_all(OpKind kind, std::span<Ask> asks);
  void prepare(Item& item) const;
  void execute(std::size_t instance, std::vector<Item*>& items);
  void execute_all(std::vector<Item>& items);
  Late execute_each(const std::shared_ptr<Batch>& batch, const std::function<void(const Late&)>& deliver);
  void work();
  void run_jobs(std::vector<Job> jobs);
  void end_jobs(const Late& some);
  void take_arrivals(std::vector<Arrival>& arrivals);
  void end_waiting(std::map<std::uint64_t, Waiting>::iterator waiting, Outcome outcome);
  void end_early(const std::vector<RequestNumber>& names);
  void end_overdue();
  void send_elsewhere(Operation operation, Completion completion, Millis timeout, RequestNumber name);
  void take_returns(std::vector<Return>& returns);

  const Options options_;
  const std::shared_ptr<void> owner_;
  const std::uint64_t connection_;
  std::vector<Port> ports_;

  // The worker's own.
  std::map<std::uint64_t, Waiting> waiting_;  // by request
  std::uint64_t requests_ = 0;
  base::Time next_overdue_ = base::Time::max();
  std::map<std::uint64_t, Away> away_;
  std::size_t late_jobs_ = 0;

  mutable std::mutex mutex_;  // guards what follows; taken with a core in hand, never the other way round
  std::condition_variable wanted_, room_;
  std::vector<Job> jobs_;
  std::vector<Arrival> arrivals_;
  std::vector<Return> returns_;
  std::vector<Late> late_;
  std::size_t late_count_ = 0;  // rounds whose `then` is still to be heard
  std::vector<RequestNumber> cancelled_;
  RequestNumber names_ = 0;
  std::size_t in_flight_ = 0;  // callbacks not counted
  std::size_t waiters_ = 0;    // callbacks
  bool asleep_ = false, closing_ = false;
  std::thread worker_;  // from the first submit()
};

}  // namespace zht::server

// Fabriq: named queues of messages in the store. A push that was acknowledged is delivered; a message is *taken* by one
// consumer at a time under a lease, and one acknowledgement, with the receipt of its last delivery, settles it for
// good.
//
//   TRY_LET(client, zht::connect({}));
//   TRY_LET(queue, fabriq::Queue::create(*client, "jobs", {}));
//   fabriq::Producer producer(queue, {.id = "importer-7", .next_sequence = 0});
//   TRY(producer.push("first job"));
//
//   fabriq::Consumer consumer(queue, {});
//   TRY_LET(delivery, consumer.pop(30s));       // waits until there is one
//   ... work ...
//   TRY(queue.acknowledge(delivery.receipt));   // conflict: the lease ended and somebody else has it
//
// What is promised exactly once is the hand-over: the push (under a producer's id and sequence) and the settlement.
// What a consumer does in between may happen again after a crash; README.md shows how to make that harmless.
//
// Every call is one request to the instance that owns the partition, retried by the client until its deadline and
// executed once. Errors: those of zht::Client; not_found: no such queue. A Queue is a light handle that may be copied
// and used from any thread; Producer and Consumer say so themselves. The zht::Client outlives them all.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fabriq/core/messages.h"
#include "zht/client.h"

namespace fabriq {

struct QueueOptions {
  std::uint32_t partitions = 4;      // 1..1024; order holds within one: 1 makes a queue in strict order of arrival
  Millis visibility{30'000};         // how long a lease lasts when the consumer does not say; 1 ms to 12 h
  std::uint32_t max_deliveries = 0;  // then a message goes to the dead-letter list; 0: never
  std::uint64_t max_bytes = std::uint64_t{4}
                            << 30;  // kept in all partitions together; a push past it: no_space; 0: any
};

struct Delivery {
  std::string id;  // of the message: names it for ever, also in other queues' eyes
  std::string body;
  Receipt receipt;               // count 0 from an at-most-once pop: it is settled already
  std::uint32_t deliveries = 0;  // this one included
  base::WallTime pushed_at{};
  std::string producer;  // empty: pushed without one
  std::uint64_t sequence = 0;
};

struct Pushed {
  std::string id;
  bool repeated = false;  // this (producer, sequence), or this id, was here before; `id` is that message's
};

struct QueueInfo {
  Info total;
  std::vector<Info> partitions;
  // How far the fullest share of all messages ever pushed is from an even one: 0.02 is two in a hundred.
  double imbalance() const;
};

class Queue {
 public:
  // Makes it. invalid: the name or an option; conflict: there is one.
  static Result<Queue> create(zht::Client& client, std::string_view name, const QueueOptions& options);
  // not_found, with what to do about it.
  static Result<Queue> open(zht::Client& client, std::string_view name);
  static Result<std::vector<std::string>> list(zht::Client& client);  // names, sorted
  // Takes the queue away with all it holds; whoever waits on it gets not_found. Can be called again after a failure.
  static Result<void> destroy(zht::Client& client, std::string_view name);

  const std::string& name() const { return shared_->name; }
  const QueueRecord& record() const { return shared_->record; }
  std::uint32_t partitions() const { return shared_->record.partitions; }
  zht::Client& client() const { return *shared_->client; }
  std::string tag(std::uint32_t partition) const { return partition_tag(shared_->name, partition); }
  std::string id_of(std::uint32_t partition, std::uint64_t number) const;

  // Settles. Fine again with the same receipt, for a day. conflict: the lease ended and the message was handed out
  // again, or given back, or purged; or the receipt is not one of this queue.
  Result<void> acknowledge(const Receipt& receipt) const;
  // Others may have it, at once or after `delay`.
  Result<void> give_back(const Receipt& receipt, Millis delay = {}) const;
  // The lease ends `by` from now instead.
  Result<void> extend(const Receipt& receipt, Millis by) const;
  // Many at once, each judged by itself; as many requests as partitions concerned, in flight together.
  Result<std::vector<Settled>> settle(const std::vector<Settle>& items) const;
  Result<void> judge(const Settled& settled) const;  // as the three above say it

  // Up to `most` messages that could be popped, or lie on the dead-letter list, without taking them.
  Result<std::vector<Delivery>> peek(std::uint32_t most, bool dead = false) const;
  Result<QueueInfo> info() const;
  Result<std::uint64_t> purge() const;                                   // drops every message; returns how many
  Result<std::uint64_t> redrive(std::uint64_t most = UINT64_MAX) const;  // dead messages are ready again; how many

  // Building blocks: one request to one partition. The completion runs on a thread of the client.
  void push_async(std::uint32_t partition, const PushRequest& request,
                  std::function<void(Result<PushReply>)> done) const;
  void pop_async(std::uint32_t partition, const PopRequest& request,
                 std::function<void(Result<std::vector<Delivery>>, const PopReply&)> done) const;
  zht::Operation operation(std::uint32_t partition, std::string procedure, std::string arguments) const;
  Error explain(Error error) const;  // the partition's error in the queue's words
  std::vector<Delivery> deliveries_of(std::uint32_t partition, const PopReply& reply) const;

 private:
  struct Shared {
    zht::Client* client = nullptr;
    std::string name;
    QueueRecord record;
  };
  explicit Queue(std::shared_ptr<const Shared> shared) : shared_(std::move(shared)) {}
  Result<std::vector<std::string>> on_all(std::string procedure, const std::string& arguments) const;
  std::shared_ptr<const Shared> shared_;
};

struct ProducerOptions {
  // Who pushes: the same after a restart. With it, a push that is repeated with the same sequence stores nothing new;
  // what the last sequence was is for the application to remember, with the state the messages come from. Empty: every
  // push is a message of its own, and only the client's own retries are recognised.
  std::string id;
  std::uint64_t next_sequence = 0;
  Millis delay{0};                                            // messages can be had this much later; at most a year
  std::uint64_t max_pending_bytes = std::uint64_t{64} << 20;  // bodies on their way; push_async waits for room
  std::uint64_t max_pending = 65'536;                         // messages on their way; likewise
};

// Message s of a producer goes to partition (hash of its id + s) mod P: the same one for every retry, and each in turn.
// Messages on their way to one partition travel in one request while an earlier one is not yet answered, so that a fast
// producer is batched without waiting for anything, and the order within a partition is that of the pushes.
// Any thread.
class Producer {
 public:
  Producer(Queue queue, ProducerOptions options);
  ~Producer();  // waits for what is on its way
  Producer(Producer&&) noexcept;

  // invalid: larger than kMaxMessageSize; no_space: the queue is full; timeout: it may be there or not: push again with
  // the same producer and sequence.
  Result<Pushed> push(Bytes body);
  // `done` runs on a thread of the client. Blocks while max_pending messages or bytes are on their way: not from a
  // completion.
  void push_async(std::string body, std::function<void(Result<Pushed>)> done);
  std::vector<Result<Pushed>> push_all(std::vector<std::string> bodies);
  // A message with its own name instead of a sequence: the partition follows from it, a day's repeats store nothing
  // new.
  Result<Pushed> push_named(std::string id, Bytes body);
  void flush();  // waits until all are answered
  std::uint64_t next_sequence() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

struct ConsumerOptions {
  Millis lease{0};            // 0: the queue's visibility timeout
  bool at_most_once = false;  // settled by the pop itself: lost when the consumer dies with it
  bool oldest_first = false;  // looks at all partitions before each pop; slower, and nearly in order over partitions
  std::uint64_t max_bytes = std::uint64_t{1} << 20;  // of one pop, first message aside
};

// Takes messages from the queue's partitions in turn, staying on one while it has some. Waiting is done by callback on
// the partitions' bells, without asking again and again. One thread at a time.
class Consumer {
 public:
  Consumer(Queue queue, ConsumerOptions options);
  ~Consumer();
  Consumer(Consumer&&) noexcept;

  // not_found: none is ready, nor became so within `wait`.
  Result<Delivery> pop(Millis wait = {});

  struct Batch {
    std::vector<Delivery> deliveries;  // of one partition; empty when nothing came in time
    std::vector<Receipt> receipts;     // the same with neighbours joined: cheaper to settle when all is done
    std::vector<Settled> settled;      // what became of `settle`, in its order; busy: nothing, send it again
  };
  // Up to `most` (1..kMaxBatch) messages; `settle` rides along on the same request where it concerns the same
  // partition.
  Result<Batch> pop_batch(std::uint32_t most, Millis wait = {}, const std::vector<Settle>& settle = {});

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace fabriq

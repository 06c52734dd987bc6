// The client library over the real core of the store, in one process: queues, producers, consumers.
#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>

#include "fabriq/core/procedures.h"
#include "fabriq/fabriq.h"
#include "novoht/base/random.h"
#include "tests/support/local_client.h"

namespace fabriq_test {
namespace {

using namespace fabriq;
using namespace std::chrono_literals;

class QueueTest : public ::testing::Test {
 protected:
  QueueTest() : store_(procedures()), client_(store_.client()) {}
  static const zht::Procedures& procedures() {
    static const zht::Procedures all = [] {
      zht::Procedures made;
      add_procedures(made);
      return made;
    }();
    return all;
  }
  Queue make(const std::string& name, QueueOptions options = {}) {
    auto queue = Queue::create(*client_, name, options);
    EXPECT_TRUE(queue) << (queue ? "" : queue.error().message);
    return *queue;
  }
  testing_support::LocalStore store_;
  std::unique_ptr<zht::Client> client_;
};

TEST_F(QueueTest, WhatIsPushedIsPopped) {
  const Queue queue = make("jobs");
  Producer producer(queue, {});
  const auto pushed = producer.push("hello");
  ASSERT_TRUE(pushed);
  Consumer consumer(queue, {});
  const auto delivery = consumer.pop();
  ASSERT_TRUE(delivery);
  EXPECT_EQ(delivery->body, "hello");
  EXPECT_EQ(delivery->id, pushed->id);
  EXPECT_TRUE(queue.acknowledge(delivery->receipt));
  EXPECT_TRUE(queue.acknowledge(delivery->receipt));
  EXPECT_EQ(consumer.pop().code(), Code::not_found);
}

// What rides along on a pop and finds no room there is sent again by itself. The messages that were popped are the caller's even when
// that fails: nobody else has them until their leases end.
TEST_F(QueueTest, PoppedMessagesAreDeliveredThoughASettlementIsNot) {
  class Refusing final : public zht::Client {
   public:
    explicit Refusing(zht::Client& inner) : inner_(inner) {}
    void submit(zht::Operation operation, zht::Completion completion, zht::Millis timeout) override {
      if (operation.procedure != "fabriq.settle" || !refuses) return inner_.submit(std::move(operation), std::move(completion), timeout);
      zht::Outcome outcome;
      outcome.code = Code::unavailable;
      completion(std::move(outcome));
    }
    std::uint32_t partition_count() const override { return inner_.partition_count(); }
    bool refuses = true;

   private:
    zht::Client& inner_;
  };
  make("jobs", {.partitions = 1});
  Refusing refusing(*client_);
  const Queue queue = *Queue::open(refusing, "jobs");
  Producer producer(queue, {});
  constexpr int kCount = 1000;
  for (int i = 0; i < kCount; i++) ASSERT_TRUE(producer.push("body"));
  Consumer consumer(queue, {.lease = 1h});
  std::vector<Settle> back;
  while (back.size() < kCount - 2) {
    const auto delivery = consumer.pop();
    ASSERT_TRUE(delivery);
    back.push_back({Settle::Kind::give_back, delivery->receipt, 3'600'000});
  }
  const auto batch = consumer.pop_batch(1, {}, back);
  ASSERT_TRUE(batch) << batch.error().message;
  ASSERT_EQ(batch->deliveries.size(), 1u);
  const auto is = [&](Settled::Outcome outcome) {
    return std::count_if(batch->settled.begin(), batch->settled.end(), [&](const Settled& each) { return each.outcome == outcome; });
  };
  EXPECT_GT(is(Settled::Outcome::busy), 0) << "or this test shows nothing";
  EXPECT_EQ(is(Settled::Outcome::busy) + is(Settled::Outcome::done), kCount - 2);
  EXPECT_EQ(queue.info()->total.leased, static_cast<std::uint64_t>(is(Settled::Outcome::busy)) + 1);
}

TEST_F(QueueTest, ANameIsTakenOnceAndFreeAfterDelete) {
  const Queue queue = make("jobs");
  EXPECT_EQ(Queue::create(*client_, "jobs", {}).code(), Code::conflict);
  EXPECT_EQ(Queue::create(*client_, "bad name!", {}).code(), Code::invalid);
  EXPECT_EQ(Queue::create(*client_, "q", {.partitions = 0}).code(), Code::invalid);
  EXPECT_EQ(Queue::list(*client_).value(), std::vector<std::string>{"jobs"});
  Producer producer(queue, {.id = "p"});
  ASSERT_TRUE(producer.push("old"));
  EXPECT_TRUE(Queue::destroy(*client_, "jobs"));
  EXPECT_EQ(Queue::destroy(*client_, "jobs").code(), Code::not_found);
  EXPECT_EQ(Queue::open(*client_, "jobs").code(), Code::not_found);
  EXPECT_EQ(producer.push("lost").code(), Code::not_found);
  const Queue again = make("jobs");
  EXPECT_EQ(producer.push("to the old one").code(), Code::conflict);
  Producer other(again, {.id = "p"});
  const auto pushed = other.push("new");  // nothing of the old queue's memory is left
  ASSERT_TRUE(pushed);
  EXPECT_FALSE(pushed->repeated);
}

TEST_F(QueueTest, ACreateThatWasCutShortIsFinishedByWhoeverComes) {
  QueueRecord record;
  record.queue_id = 5;
  ASSERT_TRUE(client_->insert(queue_key("jobs"), record.encode()));
  const auto queue = Queue::open(*client_, "jobs");
  ASSERT_TRUE(queue) << queue.error().message;
  Producer producer(*queue, {});
  EXPECT_TRUE(producer.push("m"));
}

TEST_F(QueueTest, ADeleteThatWasCutShortIsFinishedByWhoeverComes) {
  const Queue queue = make("jobs");
  ASSERT_TRUE(Producer(queue, {}).push("m"));
  QueueRecord record = queue.record();
  record.phase = QueueRecord::Phase::deleting;
  ASSERT_TRUE(client_->insert(queue_key("jobs"), record.encode()));
  const Queue again = make("jobs");
  EXPECT_EQ(again.info()->total.ready, 0u);
}

TEST_F(QueueTest, AProducersMessagesAreSpreadEvenly) {
  const Queue queue = make("jobs", {.partitions = 8});
  Producer producer(queue, {.id = "p"});
  for (int i = 0; i < 800; i++) producer.push_async("m", {});
  producer.flush();
  const auto info = queue.info();
  ASSERT_TRUE(info);
  for (const Info& partition : info->partitions) EXPECT_EQ(partition.pushed, 100u);
  EXPECT_EQ(info->imbalance(), 0);
}

TEST_F(QueueTest, AProducerThatStartsAgainStoresNothingTwice) {
  const Queue queue = make("jobs");
  std::vector<std::string> ids;
  {
    Producer producer(queue, {.id = "p", .next_sequence = 100});
    for (int i = 0; i < 50; i++) ids.push_back(producer.push(std::to_string(i))->id);
    EXPECT_EQ(producer.next_sequence(), 150u);
  }
  Producer producer(queue, {.id = "p", .next_sequence = 120});  // its last state was older
  for (int i = 20; i < 60; i++) {
    const auto pushed = producer.push(std::to_string(i));
    ASSERT_TRUE(pushed);
    EXPECT_EQ(pushed->repeated, i < 50);
    if (i < 50) {
      EXPECT_EQ(pushed->id, ids[static_cast<std::size_t>(i)]);
    }
  }
  EXPECT_EQ(queue.info()->total.ready, 60u);
}

TEST_F(QueueTest, ANamedMessageIsStoredOnce) {
  const Queue queue = make("jobs");
  Producer producer(queue, {});
  const auto first = producer.push_named("order-1", "m");
  const auto again = producer.push_named("order-1", "m");
  ASSERT_TRUE(first && again);
  EXPECT_EQ(first->id, again->id);
  EXPECT_TRUE(again->repeated);
}

TEST_F(QueueTest, AReceiptOfAnotherQueueIsRefused) {
  const Queue one = make("one"), two = make("two");
  ASSERT_TRUE(Producer(one, {}).push("m"));
  const auto delivery = Consumer(one, {}).pop();
  ASSERT_TRUE(delivery);
  EXPECT_EQ(two.acknowledge(delivery->receipt).code(), Code::conflict);
  EXPECT_TRUE(one.acknowledge(delivery->receipt));
}

TEST_F(QueueTest, AMessageTooLargeIsRefusedWithTheLimit) {
  const Queue queue = make("jobs");
  Producer producer(queue, {});
  const auto refused = producer.push(std::string(kMaxMessageSize + 1, 'x'));
  EXPECT_EQ(refused.code(), Code::invalid);
  EXPECT_NE(refused.error().message.find(std::to_string(kMaxMessageSize)), std::string::npos);
  EXPECT_TRUE(producer.push(std::string(1 << 20, 'x')));
}

TEST_F(QueueTest, ABatchIsSettledByItsReceiptWithTheNextPop) {
  const Queue queue = make("jobs", {.partitions = 2});
  Producer producer(queue, {});
  for (int i = 0; i < 100; i++) producer.push_async(std::to_string(i), {});
  producer.flush();
  Consumer consumer(queue, {});
  std::vector<Settle> settle;
  std::set<std::string> seen;
  while (true) {
    const auto batch = consumer.pop_batch(10, {}, settle);
    ASSERT_TRUE(batch);
    for (const Settled& settled : batch->settled) EXPECT_TRUE(queue.judge(settled));
    settle.clear();
    for (const Delivery& delivery : batch->deliveries) EXPECT_TRUE(seen.insert(delivery.body).second);
    for (const Receipt& receipt : batch->receipts) settle.push_back({Settle::Kind::acknowledge, receipt, 0});
    if (batch->deliveries.empty()) break;
  }
  EXPECT_EQ(seen.size(), 100u);
  EXPECT_EQ(queue.info()->total.acked, 100u);
}

TEST_F(QueueTest, AWaitingConsumerIsWokenByAPush) {
  const Queue queue = make("jobs");
  std::atomic<int> got = 0;
  std::thread consumer([&] {
    Consumer it(queue, {});
    for (int i = 0; i < 20; i++) {
      const auto delivery = it.pop(60s);
      if (delivery && queue.acknowledge(delivery->receipt)) got++;
    }
  });
  Producer producer(queue, {});
  for (int i = 0; i < 20; i++) EXPECT_TRUE(producer.push("m"));
  consumer.join();
  EXPECT_EQ(got, 20);
}

TEST_F(QueueTest, AWaitingConsumerHearsThatTheQueueIsGone) {
  const Queue queue = make("jobs");
  std::atomic<bool> waiting = false;
  std::thread consumer([&] {
    Consumer it(queue, {});
    waiting = true;
    EXPECT_EQ(it.pop(60s).code(), Code::not_found);
  });
  while (!waiting) std::this_thread::yield();
  EXPECT_TRUE(Queue::destroy(*client_, "jobs"));
  consumer.join();
}

TEST_F(QueueTest, DeadMessagesAreSeenAndRedriven) {
  const Queue queue = make("jobs", {.max_deliveries = 1});
  ASSERT_TRUE(Producer(queue, {}).push("poison"));
  const auto delivery = Consumer(queue, {}).pop();
  ASSERT_TRUE(delivery);
  ASSERT_TRUE(queue.give_back(delivery->receipt));
  EXPECT_EQ(Consumer(queue, {}).pop().code(), Code::not_found);
  ASSERT_EQ(queue.peek(10, true)->size(), 1u);
  EXPECT_EQ(queue.redrive().value(), 1u);
  EXPECT_EQ(Consumer(queue, {}).pop()->body, "poison");
}

TEST_F(QueueTest, APurgedQueueIsEmptyAndLeavesNothingBehind) {
  const Queue queue = make("jobs", {.partitions = 1});
  Producer producer(queue, {});
  for (int i = 0; i < 500; i++) producer.push_async(std::string(1000, 'x'), {});
  producer.flush();
  Consumer consumer(queue, {});
  ASSERT_TRUE(consumer.pop_batch(10));
  EXPECT_EQ(queue.purge().value(), 500u);
  EXPECT_EQ(queue.info()->total.bytes, 0u);
  const auto where = zht::partition_of(queue.tag(0), client_->partition_count());
  EXPECT_EQ(client_->call(zht::Operation::scan(where, 0, queue.tag(0))).entries.size(), 3u);  // descriptor and states
}

TEST_F(QueueTest, NothingAcknowledgedIsLostWhenTheStoreCrashes) {
  const Queue queue = make("jobs");
  Producer producer(queue, {.id = "p"});
  for (int i = 0; i < 100; i++) ASSERT_TRUE(producer.push(std::to_string(i)));
  Consumer consumer(queue, {});
  const auto delivery = consumer.pop();
  ASSERT_TRUE(delivery && queue.acknowledge(delivery->receipt));
  store_.restart(true);
  const auto info = queue.info();
  ASSERT_TRUE(info) << info.error().message;
  EXPECT_EQ(info->total.ready, 99u);
  EXPECT_TRUE(queue.acknowledge(delivery->receipt));
}

}  // namespace
}  // namespace fabriq_test

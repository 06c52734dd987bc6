// Everything asynchronous about a client, over a node in this process: through sockets (NetworkClient) and without
// (in-process). Coroutines, Asio's tokens, many keys at once, cancellation.
#include <gtest/gtest.h>

#include <asio/bind_cancellation_slot.hpp>
#include <asio/bind_executor.hpp>
#include <asio/cancellation_signal.hpp>
#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <asio/this_coro.hpp>
#include <asio/use_awaitable.hpp>
#include <asio/use_future.hpp>
#include <set>
#include <thread>

#include "zht/asio.h"
#include "zht/coroutine.h"
#include "zht/node.h"

namespace zht {
namespace {

using namespace std::chrono_literals;

// Parameter: whether the client is one over TCP.
class AsyncTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    NodeOptions options;
    options.instances = 3;
    options.listen = "127.0.0.1:0";
    auto node = Node::start(options);
    ASSERT_TRUE(node) << node.error().message;
    node_ = *std::move(node);
    if (GetParam()) {
      ClientOptions over;
      over.cluster = node_->listen();
      auto connected = connect(over);
      ASSERT_TRUE(connected) << connected.error().message;
      client_ = *std::move(connected);
    } else {
      client_ = node_->client();
    }
  }
  std::unique_ptr<Node> node_;
  std::unique_ptr<Client> client_;
};

Task<std::string> tour(Coroutines store, std::string key) {
  if (!co_await store.insert(key, "one")) co_return "insert";
  if ((co_await store.insert_new(key, "two")).code() != Code::conflict) co_return "insert_new";
  auto appended = co_await store.append(key, "+two");
  if (!appended || appended->size != 7 || appended->fragment_index != 1) co_return "append";
  auto value = co_await store.lookup(key);
  if (!value || value->value != "one+two") co_return "lookup";
  auto swap = co_await store.cswap(key, Condition::at_version(value->version), "three");
  if (!swap || !swap->swapped) co_return "cswap";
  swap = co_await store.cswap(key, Condition::equals("no"), "x");
  if (!swap || swap->swapped || swap->current != "three") co_return "cswap that fails";
  auto waited = co_await store.callback(key, Condition::equals("three"), 10s);
  if (!waited || waited->value != "three") co_return "callback";
  auto sum = co_await store.update("{" + key + "}n", "add", "41");
  if (!sum || *sum != "41") co_return "update";
  std::vector<Operation> operations;
  operations.push_back(Operation::insert("{" + key + "}a", "1"));
  operations.push_back(Operation::append("{" + key + "}b", "2"));
  auto batch = co_await store.batch(std::move(operations));
  if (!batch || batch->size() != 2) co_return "batch";
  operations.clear();
  operations.push_back(Operation::lookup("{" + key + "}a"));
  operations.push_back(Operation::lookup("{" + key + "}none"));
  auto many = co_await store.call_all(std::move(operations));
  if (many.size() != 2 || many[0].value != "1" || many[1].code != Code::not_found) co_return "call_all";
  auto removed = co_await store.remove(key);
  if (!removed) co_return "remove";
  co_return "done";
}

TEST_P(AsyncTest, ACoroutineDoesEveryOperation) { EXPECT_EQ(run(tour(Coroutines(*client_), "k")), "done"); }

Task<std::vector<std::string>> tours(Coroutines store, int count) {
  std::vector<Task<std::string>> tasks;
  for (int i = 0; i < count; i++) tasks.push_back(tour(store, "k" + std::to_string(i)));
  co_return co_await all(std::move(tasks));
}

TEST_P(AsyncTest, ManyCoroutinesGoOnAtOnceAndEachEndsOnce) {
  const auto results = run(tours(Coroutines(*client_), 300));
  EXPECT_EQ(std::multiset<std::string>(results.begin(), results.end()).count("done"), 300u);
}

Task<int> throws(Coroutines store) {
  co_await store.insert("k", "v");
  throw std::runtime_error("thrown inside");
  co_return 1;
}

TEST_P(AsyncTest, WhatACoroutineThrowsArrivesWhereItIsAwaited) { EXPECT_THROW(run(throws(Coroutines(*client_))), std::runtime_error); }

Task<Code> wait_for_ever(Coroutines store) { co_return (co_await store.callback("never", Condition::present(), 1h)).code(); }

TEST_P(AsyncTest, AStopTokenEndsWhatACoroutineWaitsFor) {
  std::stop_source stop;
  std::jthread other([&] {
    std::this_thread::sleep_for(20ms);
    stop.request_stop();
  });
  EXPECT_EQ(run(wait_for_ever(Coroutines(*client_, {}, stop.get_token()))), Code::timeout);
  EXPECT_EQ(run(wait_for_ever(Coroutines(*client_, {}, stop.get_token()))), Code::timeout) << "asked to stop before it began";
}

TEST_P(AsyncTest, ACoroutineGoesOnWhereItIsTakenTo) {
  asio::io_context loop;
  auto work = asio::make_work_guard(loop);
  std::jthread thread([&] { loop.run(); });
  const auto here = [&](Coroutines store) -> Task<std::thread::id> {
    co_await store.insert("k", "v");
    co_return std::this_thread::get_id();
  };
  const Coroutines store(*client_, [&](std::coroutine_handle<> waiting) { asio::post(loop, waiting); });
  EXPECT_EQ(run(here(store)), thread.get_id());
  client_.reset();  // its thread may still be inside post()
  work.reset();
}

asio::awaitable<int> in_asio(Client& client) {
  Outcome inserted = co_await async_call(client, Operation::insert("a", "b"), asio::use_awaitable);
  if (!inserted.ok()) co_return 1;
  std::vector<Operation> operations;
  operations.push_back(Operation::lookup("a"));
  operations.push_back(Operation::lookup("none"));
  auto found = co_await async_call_all(client, std::move(operations), asio::use_awaitable);
  if (found[0].value != "b" || found[1].code != Code::not_found) co_return 2;
  co_return 0;
}

TEST_P(AsyncTest, AsiosCoroutinesAwaitItOnTheirExecutor) {
  asio::io_context loop;
  auto answer = asio::co_spawn(loop, in_asio(*client_), asio::use_future);
  loop.run();
  EXPECT_EQ(answer.get(), 0);
  client_.reset();  // its thread may still be inside post()
}

TEST_P(AsyncTest, AsiosCancellationEndsAnOperation) {
  asio::io_context loop;
  asio::cancellation_signal signal;
  std::optional<Outcome> ended;
  async_call(*client_, Operation::callback("never", Condition::present()),
             asio::bind_cancellation_slot(signal.slot(), asio::bind_executor(loop, [&](Outcome outcome) { ended = std::move(outcome); })),
             1h);
  asio::steady_timer timer(loop, 20ms);
  timer.async_wait([&](asio::error_code) { signal.emit(asio::cancellation_type::terminal); });
  loop.run();
  ASSERT_TRUE(ended);
  EXPECT_EQ(ended->code, Code::timeout);
}

TEST_P(AsyncTest, ManyKeysAreAnsweredEachByItself) {
  std::vector<std::pair<std::string, std::string>> pairs;
  std::vector<std::string> keys;
  for (int i = 0; i < 700; i++) {
    keys.push_back("k" + std::to_string(i));
    pairs.emplace_back(keys.back(), "v" + std::to_string(i));
  }
  for (const std::size_t count : {std::size_t{1}, std::size_t{16}, pairs.size()}) {
    std::vector<std::pair<std::string, std::string>> some(pairs.begin(), pairs.begin() + static_cast<std::ptrdiff_t>(count));
    for (const auto& version : client_->insert_many(some)) EXPECT_TRUE(version);
    std::vector<std::string> names(keys.begin(), keys.begin() + static_cast<std::ptrdiff_t>(count));
    names.push_back("absent");
    names.push_back("");
    const auto values = client_->lookup_many(names);
    ASSERT_EQ(values.size(), count + 2);
    for (std::size_t i = 0; i < count; i++) EXPECT_EQ(values[i]->value, pairs[i].second);
    EXPECT_EQ(values[count].code(), Code::not_found);
    EXPECT_EQ(values[count + 1].code(), Code::invalid);
  }
  std::set<std::string> seen;
  EXPECT_TRUE(client_->scan("k", [&](const ScanEntry& entry) { return seen.insert(entry.key).second; }, 3));
  EXPECT_EQ(seen, std::set<std::string>(keys.begin(), keys.end()));
  EXPECT_TRUE(client_->insert("{t}1", "x"));
  EXPECT_TRUE(client_->insert("{t}2", "x"));
  int tagged = 0;
  EXPECT_TRUE(client_->scan("{t}", [&](const ScanEntry&) { return ++tagged < 2; }));
  EXPECT_EQ(tagged, 2);
  for (const auto& version : client_->remove_many(keys)) EXPECT_TRUE(version);
  EXPECT_EQ(client_->lookup("k5").code(), Code::not_found);
  EXPECT_TRUE(client_->call_all({}).empty());
}

TEST_P(AsyncTest, OperationsOfOneCallOnOneKeyExecuteInTheirOrder) {
  std::vector<Operation> operations;
  for (int i = 0; i < 100; i++) operations.push_back(Operation::append("log", std::to_string(i) + ","));
  operations.push_back(Operation::lookup("log"));
  const auto outcomes = client_->call_all(std::move(operations));
  std::string expected;
  for (int i = 0; i < 100; i++) expected += std::to_string(i) + ",";
  EXPECT_EQ(outcomes.back().value, expected);
}

TEST_P(AsyncTest, ACancelledRequestEndsOnceAndOthersGoOn) {
  std::atomic<int> cancelled = 0, woken = 0;
  std::vector<RequestNumber> requests;
  for (int i = 0; i < 50; i++)
    requests.push_back(client_->start(
        Operation::callback("door", Condition::present()),
        [&](Outcome outcome) { outcome.code == Code::timeout ? cancelled++ : woken++; }, 1h));
  for (std::size_t i = 0; i < requests.size(); i += 2) client_->cancel(requests[i]);
  for (std::size_t i = 0; i < requests.size(); i += 4) client_->cancel(requests[i]);
  client_->cancel(0);
  client_->cancel(1'000'000);
  while (cancelled < 25) std::this_thread::yield();
  ASSERT_TRUE(client_->insert("door", "open"));
  while (woken < 25) std::this_thread::yield();
  EXPECT_EQ(cancelled, 25);
}

INSTANTIATE_TEST_SUITE_P(Clients, AsyncTest, testing::Bool(),
                         [](const auto& each) { return std::string(each.param ? "OverTcp" : "InProcess"); });

}  // namespace
}  // namespace zht

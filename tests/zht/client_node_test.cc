// A node inside this process: what its clients see is what clients over sockets see, with many threads at once, through
// restarts, beside clients from outside, and when it ends under them.
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <future>
#include <set>
#include <sstream>
#include <thread>

#include "zht/node.h"

namespace zht {
namespace {

using namespace std::chrono_literals;

class NodeTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "zht-node-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  NodeOptions kept() const {
    NodeOptions options;
    options.data_folder = folder_ + "/data";
    options.partitions = 16;
    return options;
  }
  static std::unique_ptr<Node> start(NodeOptions options) {
    auto node = Node::start(std::move(options));
    EXPECT_TRUE(node) << node.error().message;
    return node ? *std::move(node) : nullptr;
  }
  std::string folder_;
};

TEST_F(NodeTest, EveryOperationAnswersAsOverASocket) {
  const auto node = start({});
  const auto c = node->client();
  ASSERT_TRUE(c->insert("k", "one"));
  EXPECT_EQ(c->insert_new("k", "two").code(), Code::conflict);
  EXPECT_EQ(c->append("k", "+two")->fragment_index, 1u);
  const auto value = c->lookup("k");
  EXPECT_EQ(value->value, "one+two");
  EXPECT_EQ(value->fragments, (std::vector<std::uint32_t>{3, 4}));
  EXPECT_EQ(c->lookup("k", Range::tail(1))->value, "+two");
  const auto swap = c->cswap("k", Condition::equals("no"), "x");
  EXPECT_FALSE(swap->swapped);
  EXPECT_EQ(swap->current, "one+two");
  EXPECT_TRUE(c->cswap("k", Condition::at_version(value->version), "three")->swapped);
  EXPECT_EQ(c->callback("k", Condition::equals("three"), 10s)->value, "three");
  EXPECT_EQ(c->callback("k", Condition::absent(), 1ms).code(), Code::timeout);
  EXPECT_EQ(*c->update("n", "add", "41"), "41");
  EXPECT_TRUE(c->batch({Operation::insert("{t}a", "1"), Operation::append("{t}b", "2")}));
  EXPECT_EQ(c->batch({Operation::remove("{t}a"), Operation::check("{t}b", Condition::absent())}).code(), Code::conflict);
  EXPECT_EQ(c->lookup("{t}a")->value, "1");
  const auto all = c->call_all({Operation::lookup("k"), Operation::lookup(""), Operation::callback("k", Condition::present()),
                                Operation::scan(partition_of("k", c->partition_count()))});
  EXPECT_EQ(all[0].value, "three");
  EXPECT_EQ(all[1].code, Code::invalid);
  EXPECT_EQ(all[2].value, "three");
  EXPECT_EQ(all[3].entries.at(0).key, "k");
  EXPECT_TRUE(c->remove("k"));
  EXPECT_EQ(c->remove("k").code(), Code::not_found);
  const std::string big(kMaxValueSize, 'b');
  ASSERT_TRUE(c->insert("big", big));
  EXPECT_EQ(c->lookup("big")->value, big);
  EXPECT_EQ(c->insert("big", big + "b").code(), Code::invalid);
}

TEST_F(NodeTest, ThreadsThatMeetOnOneKeyLoseNothing) {
  for (const unsigned instances : {1u, 3u, 2u}) {
    NodeOptions options = kept();
    options.data_folder += std::to_string(instances);
    options.instances = instances;
    if (instances == 2) options.durability = NodeOptions::Durability::always;  // threads that meet share a sync
    const auto node = start(options);
    const auto one = node->client(), other = node->client();
    constexpr int threads = 6, each = 400;
    std::atomic<int> submitted = 0;
    std::vector<std::thread> pool;
    for (int t = 0; t < threads; t++)
      pool.emplace_back([&, t] {
        Client& c = t % 2 == 0 ? *one : *other;
        for (int i = 0; i < each; i++) {
          EXPECT_TRUE(c.update("sum", "add", "1"));
          EXPECT_TRUE(c.append("log", std::to_string(t) + " " + std::to_string(i) + "\n"));
          c.submit(Operation::update("sum", "add", "1"), [&](Outcome outcome) {
            EXPECT_TRUE(outcome.ok()) << outcome.message;
            submitted++;
          });
          if (i % 100 == 0) {
            for (const Outcome& outcome : c.call_all({Operation::update("sum", "add", "1"), Operation::update("more", "add", "1")}))
              EXPECT_TRUE(outcome.ok());
          }
        }
      });
    for (auto& thread : pool) thread.join();
    EXPECT_EQ(one->callback("sum", Condition::equals(std::to_string(threads * (2 * each + 4))), 20s).code(), Code::ok);
    EXPECT_EQ(*one->update("more", "add", "0"), std::to_string(threads * 4));
    // Each thread's lines are there once and in its order.
    const auto log = one->lookup("log");
    std::vector<int> next(threads, 0);
    std::istringstream lines(log->value);
    for (int t, i; lines >> t >> i;) EXPECT_EQ(next[static_cast<std::size_t>(t)]++, i);
    EXPECT_EQ(next, std::vector<int>(threads, each));
  }
}

TEST_F(NodeTest, ACallbackIsWokenByAnotherClientWhicheverWayItCame) {
  NodeOptions options = kept();
  options.listen = "127.0.0.1:0";
  const auto node = start(options);
  const auto inside = node->client(), waiting = node->client();
  ClientOptions over_tcp;
  over_tcp.cluster = node->listen();
  const auto outside = connect(over_tcp);
  ASSERT_TRUE(outside) << outside.error().message;
  for (int i = 0; i < 20; i++) {
    const std::string key = "k" + std::to_string(i);
    auto here = std::async(std::launch::async, [&] { return waiting->callback(key, Condition::present(), 20s); });
    auto there = std::async(std::launch::async, [&] { return (*outside)->callback(key, Condition::present(), 20s); });
    ASSERT_TRUE(i % 2 == 0 ? inside->insert(key, "v") : (*outside)->insert(key, "v"));
    EXPECT_EQ(here.get()->value, "v");
    EXPECT_EQ(there.get()->value, "v");
  }
}

TEST_F(NodeTest, WhatWasAcknowledgedIsThereAfterARestart) {
  for (int life = 0; life < 3; life++) {
    const auto node = start(kept());
    const auto c = node->client();
    for (int i = 0; i < 200; i++) {
      const auto appended = c->append("k" + std::to_string(i % 10), "x");
      ASSERT_TRUE(appended) << appended.error().message;
      EXPECT_EQ(appended->size, static_cast<std::uint64_t>(life * 20 + i / 10 + 1));
    }
  }
  NodeOptions other = kept();
  other.partitions = 32;
  EXPECT_EQ(Node::start(other).code(), Code::invalid) << "made with 16";
}

// A child that appends its count and says so through `told`, until it is killed.
[[noreturn]] void count_until_killed(const NodeOptions& options, int told) {
  auto node = Node::start(options);
  if (!node) _exit(1);
  const auto c = (*node)->client();
  for (std::uint32_t i = 0;; i++) {
    const std::string number = std::to_string(i) + " ";
    if (!c->append("log" + std::to_string(i % 3), number) || !c->call_all({Operation::insert("last", number)})[0].ok()) _exit(1);
    if (write(told, &i, sizeof i) != sizeof i) _exit(1);
  }
}

TEST_F(NodeTest, WhatWasAcknowledgedSurvivesTheDeathOfItsProcess) {
  std::uint32_t expected = 0;  // the last number told
  for (int life = 0; life < 4; life++) {
    NodeOptions options = kept();
    options.data_folder += std::to_string(life);
    options.instances = 2;
    int told[2];
    ASSERT_EQ(pipe(told), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) count_until_killed(options, told[1]);
    close(told[1]);
    for (std::uint32_t i = 0; i < 3000u + 500u * static_cast<std::uint32_t>(life); i++)
      ASSERT_EQ(read(told[0], &expected, sizeof expected), static_cast<ssize_t>(sizeof expected));
    kill(child, SIGKILL);
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
    for (std::uint32_t more; read(told[0], &more, sizeof more) == static_cast<ssize_t>(sizeof more);) expected = more;
    close(told[0]);

    const auto node = start(options);
    const auto c = node->client();
    EXPECT_GE(std::stoul(c->lookup("last")->value), expected);
    std::uint32_t there = 0;
    for (std::uint32_t k = 0; k < 3; k++) {
      std::istringstream log(c->lookup("log" + std::to_string(k))->value);
      std::uint32_t next = k;
      for (std::uint32_t number; log >> number; next += 3) ASSERT_EQ(number, next);
      there += (next - k) / 3;
    }
    EXPECT_GE(there, expected + 1);
    EXPECT_LE(there, expected + 2) << "one at most was under way";
  }
}

TEST_F(NodeTest, AFolderIsServedOnce) {
  const auto node = start(kept());
  EXPECT_EQ(Node::start(kept()).code(), Code::conflict);
}

TEST_F(NodeTest, AClientOutlivesItsNode) {
  auto node = start(kept());
  const auto c = node->client();
  ASSERT_TRUE(c->insert("k", "v"));
  std::promise<Outcome> waiting;
  c->submit(Operation::callback("k", Condition::absent()), [&](Outcome outcome) { waiting.set_value(std::move(outcome)); }, 60s);
  std::atomic<bool> stop = false;
  std::atomic<int> unavailable = 0;
  std::vector<std::thread> pool;
  for (int t = 0; t < 3; t++)
    pool.emplace_back([&] {
      while (!stop) {
        const auto outcome = c->lookup("k");
        EXPECT_TRUE(outcome.has_value() || outcome.code() == Code::unavailable);
        if (!outcome) unavailable++;
      }
    });
  node.reset();
  EXPECT_EQ(waiting.get_future().get().code, Code::unavailable);
  EXPECT_EQ(c->insert("k", "w").code(), Code::unavailable);
  while (unavailable < 3) std::this_thread::yield();
  stop = true;
  for (auto& thread : pool) thread.join();
  const auto again = start(kept());
  EXPECT_EQ(again->client()->lookup("k")->value, "v");
}

TEST_F(NodeTest, EverySubmittedOperationIsAnsweredWhenTheClientEnds) {
  const auto node = start({});
  std::atomic<int> answered = 0;
  {
    const auto c = node->client();
    for (int i = 0; i < 1000; i++) {
      Operation operation = i % 10 == 0 ? Operation::callback("never", Condition::present())
                                        : Operation::insert("k" + std::to_string(i), "v");
      c->submit(std::move(operation), [&](Outcome) { answered++; }, 60s);
    }
  }
  EXPECT_EQ(answered, 1000);
}

TEST_F(NodeTest, OptionsThatCannotBeAreNamed) {
  NodeOptions options;
  options.local_socket = true;
  EXPECT_EQ(Node::start(options).code(), Code::invalid);
  options = {};
  options.instances = 8;
  options.partitions = 4;
  EXPECT_EQ(Node::start(options).code(), Code::invalid);
  options = kept();
  options.listen = "0.0.0.0:0";
  ::setenv("ZHT_SECRET_FILE", "none", 1);
  EXPECT_EQ(Node::start(options).code(), Code::invalid) << "open to a network that nothing authenticates";
  options.listen = "127.0.0.1:0";
  EXPECT_EQ(Node::start(options).code(), Code::invalid) << "open to other users of this machine";
  options.insecure = true;
  EXPECT_TRUE(Node::start(options));
  ::unsetenv("ZHT_SECRET_FILE");
}

TEST_F(NodeTest, OneThatListensHasASecretThatThisUsersClientsFind) {
  for (const bool in_memory : {true, false}) {
    NodeOptions options = in_memory ? NodeOptions{} : kept();
    options.listen = "127.0.0.1:0";
    const auto node = start(options);
    const auto found = connect({.cluster = node->listen()});
    ASSERT_TRUE(found) << found.error().message;
    EXPECT_TRUE((*found)->insert("k", "v"));
    ::setenv("ZHT_SECRET_FILE", "none", 1);
    EXPECT_EQ(connect({.cluster = node->listen()}).code(), Code::invalid) << "who does not know it";
    ::unsetenv("ZHT_SECRET_FILE");
  }
}

TEST_F(NodeTest, OtherProcessesFindItThroughItsFolderWhereAskedFor) {
  NodeOptions options = kept();
  options.local_socket = true;
  options.durability = NodeOptions::Durability::always;
  const auto node = start(options);
  ASSERT_TRUE(node->client()->insert("k", "v"));
  ClientOptions outside;
  outside.data_folder = options.data_folder;
  outside.start_node = false;
  const auto c = connect(outside);
  ASSERT_TRUE(c) << c.error().message;
  EXPECT_EQ((*c)->lookup("k")->value, "v");
  ASSERT_TRUE((*c)->insert("k", "w"));
  EXPECT_EQ(node->client()->lookup("k")->value, "w");
}

}  // namespace
}  // namespace zht

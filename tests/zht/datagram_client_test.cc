// A client that asks in datagrams gets what one on connections gets, and nothing happens twice.
#include <gtest/gtest.h>

#include <thread>

#include "zht/client/channel.h"
#include "zht/client/control.h"
#include "zht/client/datagram_channel.h"
#include "zht/client/session.h"
#include "zht/client/table.h"
#include "zht/node.h"
#include "zht/wire/zht.pb.h"

namespace zht {
namespace {

using namespace std::chrono_literals;

struct DatagramClientTest : testing::Test {
  void SetUp() override {
    NodeOptions options;
    options.listen = "127.0.0.1:0";
    options.insecure = true;  // a datagram proves nothing
    options.instances = 1;
    auto started = Node::start(options);
    ASSERT_TRUE(started) << started.error().message;
    node = *std::move(started);
  }
  std::unique_ptr<Client> connected() const {
    ClientOptions options;
    options.cluster = node->listen();
    options.datagrams = true;
    return std::move(connect(options)).value();
  }
  base::Time soon() const { return base::SystemClock().now() + 20s; }
  std::uint64_t connections() const {  // of the instance
    auto channel = client::Channel::open(*client::parse_address(node->listen()), soon());
    wire::Status status;
    EXPECT_TRUE(status.ParseFromString(channel->control(wire::ControlKind::status, {}, soon()).value()));
    return status.instances(0).connections();
  }
  std::unique_ptr<Node> node;
};

TEST_F(DatagramClientTest, SmallRequestsNeedNoConnection) {
  // On a machine that is busy with other things an answer may take too long, once.
  for (int attempt = 0; attempt < 20; attempt++) {
    const auto client = connected();
    ASSERT_TRUE(client->insert("try", "1"));
    EXPECT_EQ(client->lookup("try")->value, "1");
    if (connections() == 0) return;
  }
  FAIL() << "a connection was made each time";
}

TEST_F(DatagramClientTest, EveryOperationAnswersAsOverAConnection) {
  const auto client = connected();
  ASSERT_TRUE(client->insert("k", "one"));
  EXPECT_EQ(client->lookup("k")->value, "one");
  EXPECT_EQ(client->append("k", "+two")->fragment_index, 1u);
  EXPECT_EQ(client->cswap("k", Condition::equals("no"), "x")->current, "one+two");
  EXPECT_TRUE(client->cswap("k", Condition::equals("one+two"), "three")->swapped);
  EXPECT_EQ(*client->update("n", "add", "41"), "41");
  EXPECT_TRUE(client->remove("k"));
  EXPECT_EQ(client->lookup("k").code(), Code::not_found);
}

TEST_F(DatagramClientTest, WhatDoesNotFitGoesOverAConnection) {
  const auto client = connected();
  const std::string large(100'000, 'v');
  ASSERT_TRUE(client->insert("large", large));
  EXPECT_EQ(client->lookup("large")->value, large);
  const auto refused = client->cswap("large", Condition::equals("small"), "x");  // small to ask, large to answer
  ASSERT_TRUE(refused) << refused.error().message;
  EXPECT_FALSE(refused->swapped);
  EXPECT_EQ(refused->current, large);
  EXPECT_EQ(client->callback("large", Condition::present(), 10s)->value, large);
  EXPECT_TRUE(client->batch({Operation::insert("{t}a", "1"), Operation::append("{t}b", "2")}));
  EXPECT_GT(connections(), 0u);
}

TEST_F(DatagramClientTest, ManyThreadsAppendOnceEach) {
  const auto client = connected();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; t++)
    threads.emplace_back([&] {
      for (int i = 0; i < 300; i++) EXPECT_TRUE(client->append("log", "x"));
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(client->lookup("log")->value.size(), 1200u);
}

// The network may deliver a datagram twice, and a client that heard nothing sends it again.
TEST_F(DatagramClientTest, ARepeatedRequestIsExecutedOnce) {
  auto manager = client::Channel::open(*client::parse_address(node->listen()), soon());
  const auto table = client::parse_table(*manager->control(wire::ControlKind::membership, {}, soon()), false);
  ASSERT_TRUE(table);
  const auto& instance = (*table)->instances[0];
  ASSERT_TRUE(instance.datagrams);
  auto channel = client::DatagramChannel::open(instance.addresses.back());
  const Operation operation = Operation::append("log", "x");
  const PartitionId partition = partition_of("log", (*table)->partition_count);
  wire::Identity who{.client = client::new_client_id(), .sequence = 1, .epoch = (*table)->owner_of(partition).epoch, .partition = partition};
  for (int i = 0; i < 5; i++) {
    who.request = channel->next_request();
    wire::encode_request(channel->out(), operation, who);
    const auto frame = channel->exchange(who.request, soon());
    ASSERT_TRUE(frame) << frame.error().message;
    EXPECT_EQ(frame->status, 0);
    EXPECT_EQ(frame->second, 1u) << "the value's size";
  }
}

}  // namespace
}  // namespace zht

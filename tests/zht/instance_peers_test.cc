// Whom an instance listens to: instances of its own cluster of which its manager has told it. What others say has no effect.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <future>
#include <mutex>

#include "novoht/base/memory_files.h"
#include "zht/core/replication/peer_frame.h"
#include "zht/server/instance_thread.h"

namespace zht::server {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kCluster = 77;

class InstancePeersTest : public testing::Test {
 protected:
  void SetUp() override {
    InstanceThread::Options options;
    options.folder = "store";
    options.cluster = kCluster;
    options.core.segment_size = 1 << 20;
    options.core.incarnation = 1;
    options.core.clustered = true;
    replication::View view;
    view.epoch = Epoch{1};
    view.primary = {InstanceId{0}, 1};
    view.sync = {view.primary};
    options.views = {view};
    options.tell_manager = [this](InstanceNews news) {
      const std::lock_guard lock(mutex_);
      for (const replication::ViewNews& one : news.views) heard_.push_back(replication::number(one.view.epoch));
      changed_.notify_all();
    };
    instance_ = std::make_unique<InstanceThread>(options, files_, clock_, procedures_, table_, pool_);
    ASSERT_TRUE(instance_->open());
    const std::string address = *instance_->listen_tcp("127.0.0.1:0");
    instance_->run();
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socket_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ASSERT_EQ(::connect(socket_, reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
  }
  void TearDown() override {
    ::close(socket_);
    instance_->stop();
    pool_.join();
  }
  void tell_of(std::uint32_t instance) {
    ClusterNews news;
    news.addresses = {{InstanceId{instance}, "127.0.0.1:1"}};
    instance_->tell(std::make_shared<const ClusterNews>(std::move(news)));
    std::promise<void> taken;  // the report comes after the news, in the order in which they were given to the loop
    instance_->report([&](InstanceReport) { taken.set_value(); });
    taken.get_future().wait();
  }
  // `from` says that another instance leads, in this epoch.
  void say(std::uint32_t from, std::uint64_t epoch, std::uint64_t cluster = kCluster) {
    replication::PeerMessage message;
    message.from = {InstanceId{from}, 1};
    message.to = InstanceId{0};
    replication::View view;
    view.epoch = Epoch{epoch};
    view.primary = {InstanceId{from}, 1};
    view.sync = {view.primary};
    view.learners = {{InstanceId{0}, 1}};
    message.views.push_back({PartitionId{0}, view});
    wire::Gathered frame;
    replication::encode_peer(frame, message, cluster);
    ASSERT_EQ(::send(socket_, frame.bytes.data(), frame.bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(frame.bytes.size()));
  }
  // The epochs that were passed on to the manager, when this one has been.
  std::vector<std::uint64_t> heard_until(std::uint64_t epoch) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, 60s, [&] { return std::find(heard_.begin(), heard_.end(), epoch) != heard_.end(); });
    return heard_;
  }
  std::uint64_t epoch() {
    std::uint64_t epoch = 0;
    instance_->with_instance([&](core::Instance& core) { epoch = replication::number(core.view_of(PartitionId{0}).epoch); });
    return epoch;
  }

  base::MemoryFiles files_;
  base::SystemClock clock_;
  Procedures procedures_;
  PublishedTable table_;
  asio::thread_pool pool_{1};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::uint64_t> heard_;
  std::unique_ptr<InstanceThread> instance_;
  int socket_ = -1;
};

// All on one connection, so what came before has been looked at when the last is heard of.
TEST_F(InstancePeersTest, StrangersAndOtherClustersHaveNoSay) {
  tell_of(1024);
  say(7, 90);                    // nobody has told of it
  say(1024, 80, kCluster + 1);   // of another cluster, under a number that is known here
  say(1024, 5);
  EXPECT_EQ(heard_until(5), std::vector<std::uint64_t>{5});
  EXPECT_EQ(epoch(), 5u);
}

TEST_F(InstancePeersTest, OneThatHasJoinedIsHeardFromThenOn) {
  tell_of(1024);
  say(2048, 9);
  say(1024, 3);
  EXPECT_EQ(heard_until(3), std::vector<std::uint64_t>{3});
  tell_of(2048);
  say(2048, 9);
  EXPECT_EQ(heard_until(9), (std::vector<std::uint64_t>{3, 9}));
}

}  // namespace
}  // namespace zht::server

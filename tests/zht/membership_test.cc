// What a manager holds of its cluster, without sockets: whom it listens to.
#include <gtest/gtest.h>

#include "novoht/base/memory_files.h"
#include "zht/server/cluster.h"

namespace zht::server {
namespace {

using replication::NodeId;

std::unique_ptr<Cluster> founded(base::FileSystem& files, std::size_t nodes, std::uint64_t number) {
  ClusterOptions options;
  options.identity.number = number;
  options.identity.instance_count = 1;
  options.identity.partition_count = options.identity.founding.partitions = 8;
  options.identity.member.incarnation = 1;
  for (std::size_t n = 0; n < nodes; n++) options.identity.founding.nodes.push_back({"127.0.0.1:" + std::to_string(9000 + n), 1, ""});
  for (std::size_t n = 1; n <= options.identity.founding.keepers(); n++) options.identity.keepers.push_back(n);
  options.folder = "keeper";
  auto opened = Cluster::open(std::move(options), files);
  EXPECT_TRUE(opened) << (opened ? "" : opened.error().message);
  return opened ? std::move(*opened) : nullptr;
}

TEST(MembershipTest, ANodeWithoutANumberOfTheClusterDoesNotBelong) {
  base::MemoryFiles files;
  const auto cluster = founded(files, 3, 2);
  ASSERT_TRUE(cluster);
  EXPECT_TRUE(cluster->belongs(NodeId{1}));
  EXPECT_TRUE(cluster->belongs(NodeId{3}));
  EXPECT_FALSE(cluster->belongs(NodeId{0}));
  EXPECT_FALSE(cluster->belongs(NodeId{2})) << "that is this node itself";
  EXPECT_FALSE(cluster->belongs(NodeId{4})) << "the cluster has given three numbers";
}

TEST(MembershipTest, OneThatIsAskedToJoinGetsTheNextNumberAndBelongs) {
  base::MemoryFiles files;
  const auto cluster = founded(files, 1, 1);
  ASSERT_TRUE(cluster);
  EXPECT_FALSE(cluster->belongs(NodeId{2}));
  std::optional<std::uint64_t> number;
  base::Time now{std::chrono::seconds(5)};
  for (int i = 0; i < 100 && !number; i++, now += std::chrono::milliseconds(10)) {
    cluster->tick(now);
    number = cluster->enrol(4711);
    EXPECT_TRUE(cluster->step(now));
  }
  EXPECT_EQ(number, 2u);
  EXPECT_TRUE(cluster->belongs(NodeId{2}));
  EXPECT_FALSE(cluster->belongs(NodeId{3}));
}

}  // namespace
}  // namespace zht::server

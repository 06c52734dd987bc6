// The parts of the client that need no server.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <fstream>

#include "zht/client/address.h"
#include "zht/client/channel.h"
#include "zht/client/local_node.h"
#include "zht/client/sequencer.h"
#include "zht/client/session.h"
#include "zht/client/silence.h"
#include "zht/client/table.h"
#include "zht/wire/zht.pb.h"

namespace zht::client {
namespace {

// Five connections that died together, each asked when the one before was given up: found out after 2 s and four times 0.3 s, not 10 s.
TEST(SilenceTest, ConnectionsThatDiedTogetherAreFoundTogether) {
  using namespace std::chrono_literals;
  Silence silence;
  const base::Time begun = base::Time{} + 1h;
  const base::Time heard = begun - 10s;  // the last word on each
  base::Time now = begun;
  for (int i = 0; i < 5; i++) {
    const base::Time asked = now;
    now = silence.limit(asked, kPatience, heard);
    silence.found(asked, now);
  }
  EXPECT_EQ(now - begun, 2s + 4 * Silence::kImpatience);
  // One asked at the same time as the first is not waited for after that one's end.
  EXPECT_EQ(silence.limit(begun, kPatience, heard), begun + kPatience);
  // Who was heard since is waited for as ever; so is whoever is asked before anything was found out.
  EXPECT_EQ(silence.limit(now, kPatience, now), now + kPatience);
  EXPECT_EQ(Silence().limit(now, kPatience, heard), now + kPatience);
}

TEST(SequencerTest, TheFloorFollowsTheOldestOpenRequest) {
  Sequencer sequencer;
  EXPECT_EQ(sequencer.begin(), 1u);
  EXPECT_EQ(sequencer.begin(), 2u);
  EXPECT_EQ(sequencer.begin(), 3u);
  sequencer.end(2);
  EXPECT_EQ(sequencer.floor(), 0u);
  sequencer.end(1);
  EXPECT_EQ(sequencer.floor(), 2u);
  EXPECT_FALSE(sequencer.idle());
  sequencer.end(3);
  EXPECT_EQ(sequencer.floor(), 3u);
  EXPECT_TRUE(sequencer.idle());
  EXPECT_EQ(sequencer.begin(), 4u);
}

TEST(SessionTest, ANewNameIsTakenInTimeAndRequestsEndUnderTheirOwn) {
  Session session(std::make_shared<Table>());
  const base::Time start = base::SystemClock().now();
  const auto first = session.begin(start);
  const std::uint64_t first_name = first.identity->id;
  EXPECT_EQ(first_name, session.id());
  EXPECT_EQ(session.begin(start + kIdentityLife / 2).identity, first.identity);
  const auto later = session.begin(start + 2 * kIdentityLife);
  EXPECT_NE(later.identity->id, first_name);
  EXPECT_EQ(later.sequence, 1u);
  EXPECT_EQ(first.identity->id, first_name) << "still open";
  session.end(first);
  EXPECT_EQ(session.floor(*first.identity), 1u);
  EXPECT_FALSE(session.may_say_goodbye());
  session.end(later);
  EXPECT_TRUE(session.may_say_goodbye());
}

TEST(SessionTest, AnInstanceThatIsSlowIsGivenLongerForAWhile) {
  auto several = std::make_shared<Table>();
  several->lone = false;
  Session session(several);
  const std::string path = testing::TempDir() + "/silent-" + std::to_string(getpid());
  const int listener = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  ::unlink(path.c_str());
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(listener, 8), 0);  // and never answers
  const base::Time begin = base::SystemClock().now(), late = begin + std::chrono::hours(1);
  EXPECT_EQ(session.patience(7, begin), kPatienceAmongOthers);
  base::Time last{};
  for (int i = 0; i < 5; i++) {
    auto channel = Channel::open({path, {}, 0}, late);
    ASSERT_TRUE(channel);
    channel->set_patience(std::chrono::milliseconds(1));
    wire::encode_control(channel->out(), wire::FrameType::control_request, wire::ControlKind::status, channel->next_request(), Code::ok, {}, {});
    ASSERT_FALSE(channel->exchange(1, late));
    ASSERT_TRUE(channel->fell_silent());
    last = *channel->fell_silent();
    Session::Ticket ticket = session.take_channel(7);
    ticket.channel = std::make_unique<Channel>(*std::move(channel));
    session.give_back(std::move(ticket), 7, false, false);
    EXPECT_EQ(session.patience(7, last), std::min<base::Duration>(kPatienceAmongOthers * (2 << std::min(i, 2)), kPatience));
  }
  ::close(listener);
  ::unlink(path.c_str());
  EXPECT_EQ(session.patience(7, last), kPatience);
  EXPECT_EQ(session.patience(8, last), kPatienceAmongOthers) << "another";
  EXPECT_EQ(session.patience(7, last + std::chrono::seconds(60)), kPatienceAmongOthers);
}

TEST(AddressTest, IsReadOrRefused) {
  EXPECT_EQ(*parse_address("127.0.0.1:80"), (Address{{}, "127.0.0.1", 80}));
  EXPECT_EQ(*parse_address("[::1]:80"), (Address{{}, "::1", 80}));
  EXPECT_EQ(parse_address("[::1]:80")->text(), "[::1]:80");
  EXPECT_EQ(*parse_address("unix:/run/x"), (Address{"/run/x", {}, 0}));
  for (const char* bad : {"", "host", ":80", "host:", "host:0", "host:65536", "host:x", "::1:80", "::::", "unix:"})
    EXPECT_EQ(parse_address(bad).code(), Code::invalid) << bad;
}

TEST(AddressTest, AClusterIsAListOrAFile) {
  EXPECT_EQ(parse_cluster("a:1,b:2")->size(), 2u);
  EXPECT_EQ(parse_cluster("a:1,,b:2").code(), Code::invalid);
  EXPECT_EQ(parse_cluster("/no/such/file").code(), Code::not_found);
  const std::string path = testing::TempDir() + "/cluster-" + std::to_string(getpid());
  std::ofstream(path) << "# ours\n a:1 \n\nb:2 # second\n";
  const auto addresses = parse_cluster(path);
  ASSERT_TRUE(addresses) << addresses.error().message;
  EXPECT_EQ((*addresses)[1], (Address{{}, "b", 2}));
  std::ofstream(path) << "# nothing\n";
  EXPECT_EQ(parse_cluster(path).code(), Code::invalid);
  unlink(path.c_str());
}

wire::MembershipTable two_instances() {
  wire::MembershipTable table;
  table.set_version(5);
  table.set_partition_count(8);
  for (std::uint32_t id : {3u, 7u}) {
    auto* instance = table.add_instances();
    instance->set_id(id);
    instance->set_tcp("10.0.0.1:" + std::to_string(id));
    instance->set_unix_socket("/run/" + std::to_string(id));
    auto* run = table.add_partitions();
    run->set_first(id == 3 ? 0 : 4);
    run->set_count(4);
    run->mutable_view()->set_primary(id);
    run->mutable_view()->set_epoch(id * 10);
  }
  return table;
}

TEST(TableTest, SaysWhoOwnsAPartitionAndWhereItListens) {
  const auto near = parse_table(two_instances().SerializeAsString(), true);
  ASSERT_TRUE(near) << near.error().message;
  const Owner& owner = (*near)->owner_of(PartitionId{5});
  EXPECT_EQ((*near)->instances[owner.instance].id, 7u);
  EXPECT_EQ(owner.epoch, 70u);
  EXPECT_EQ((*near)->instances[0].addresses[0].path, "/run/3");
  // A path means nothing on another machine.
  const auto far = parse_table(two_instances().SerializeAsString(), false);
  EXPECT_EQ((*far)->instances[0].addresses, (std::vector<Address>{{{}, "10.0.0.1", 3}}));
}

TEST(TableTest, RefusesOneThatCannotBeUsed) {
  const auto code_of = [](const wire::MembershipTable& table) {
    return parse_table(table.SerializeAsString(), true).code();
  };
  EXPECT_EQ(parse_table("\xff\xff", true).code(), Code::corrupt);
  EXPECT_EQ(code_of({}), Code::corrupt);
  auto table = two_instances();
  table.mutable_partitions(1)->set_count(0xffffffff);
  EXPECT_EQ(code_of(table), Code::corrupt);
}

// A node that has just started, or has not heard where another listens, gives what it knows.
TEST(TableTest, WhatIsNotKnownYetHasNobodyToAsk) {
  auto table = two_instances();
  table.mutable_partitions(1)->set_count(1);
  table.mutable_partitions(0)->mutable_view()->set_primary(99);
  table.mutable_instances(0)->clear_tcp();
  table.mutable_instances(0)->clear_unix_socket();
  const auto parsed = *parse_table(table.SerializeAsString(), true);
  const auto& stranger = parsed->instances[parsed->owner_of(PartitionId{table.partitions(0).first()}).instance];
  EXPECT_EQ(stranger.id, 99u);
  EXPECT_TRUE(stranger.addresses.empty());
  EXPECT_EQ(parsed->instances[parsed->owner_of(PartitionId{parsed->partition_count - 1}).instance].id, kNobody);
  EXPECT_TRUE(parsed->instances[0].addresses.empty());
}

TEST(TableTest, TheNewestViewOfEachPartitionCounts) {
  auto proto = two_instances();
  const auto old = *parse_table(proto.SerializeAsString(), true);
  const std::uint32_t other = old->instances[1 - old->owners[0].instance].id;
  EXPECT_EQ(with_owner(*old, 0, other, old->owners[0].epoch), nullptr) << "not newer";
  EXPECT_EQ(with_owner(*old, 0, 4711, old->owners[0].epoch + 1), nullptr) << "who is that?";
  const auto learned = with_owner(*old, 0, other, old->owners[0].epoch + 1);
  ASSERT_NE(learned, nullptr);
  EXPECT_EQ(learned->instances[learned->owners[0].instance].id, other);
  const auto both = merged(*learned, old);
  EXPECT_EQ(both->instances[both->owners[0].instance].id, other) << "an old table takes nothing back";
  EXPECT_EQ(both->owners[1].epoch, old->owners[1].epoch);
}

}  // namespace
}  // namespace zht::client

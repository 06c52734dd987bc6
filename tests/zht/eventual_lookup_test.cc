// Whom a client asks for what may be old: instances of which each answers, refuses or says nothing.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <map>
#include <thread>

#include "zht/client/network_client.h"
#include "zht/wire/frame.h"
#include "zht/wire/zht.pb.h"

namespace zht::client {
namespace {

using namespace std::chrono_literals;

enum class Manner { answers, refuses, silent };

// Speaks frames at a TCP port of this machine. What it answers to lookups is its name.
class Speaker {
 public:
  Speaker(std::string name, Manner manner) : name_(std::move(name)), manner_(manner), listener_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(listener_, 16), 0);
    EXPECT_EQ(::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    address_ = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    thread_ = std::thread([this] { serve(); });
  }
  ~Speaker() {
    stopping_ = true;
    thread_.join();
    for (const auto& [descriptor, in] : connections_) ::close(descriptor);
    ::close(listener_);
  }
  const std::string& address() const { return address_; }
  std::atomic<int> ordinary{0}, eventual{0};  // requests that came

 private:
  void serve() {
    while (!stopping_) {
      std::vector<pollfd> all{{listener_, POLLIN, 0}};
      for (const auto& [descriptor, in] : connections_) all.push_back({descriptor, POLLIN, 0});
      ::poll(all.data(), all.size(), 10);
      if (all[0].revents != 0) connections_[::accept(listener_, nullptr, nullptr)];
      for (std::size_t i = 1; i < all.size(); i++)
        if (all[i].revents != 0) read(all[i].fd);
    }
  }
  void read(int descriptor) {
    char some[4096];
    const ssize_t got = ::recv(descriptor, some, sizeof some, 0);
    if (got <= 0) {
      ::close(descriptor);
      connections_.erase(descriptor);
      return;
    }
    std::string& in = connections_[descriptor];
    in.append(some, static_cast<std::size_t>(got));
    std::string out;
    for (;;) {
      const auto frame = wire::next_frame(in, wire::kMaxFrameSize);
      if (!frame || !*frame) break;
      if ((*frame)->type == wire::FrameType::request) take(**frame, out);
      in.erase(0, (*frame)->size);
    }
    if (out.empty()) return;
    EXPECT_EQ(::send(descriptor, out.data(), out.size(), MSG_NOSIGNAL), static_cast<ssize_t>(out.size()));
  }
  void take(const wire::Frame& frame, std::string& out) {
    ((frame.flags & wire::kEventual) != 0 ? eventual : ordinary)++;
    if (manner_ == Manner::silent) return;
    const bool refuses = manner_ == Manner::refuses;
    const std::size_t start = wire::begin_reply(out, {.op = frame.op,
                                                      .status = refuses ? wire::kStatusRetry : std::uint8_t{0},
                                                      .flags = refuses ? 0u : std::uint32_t{wire::kPresent},
                                                      .request = frame.request,
                                                      .version = 1,
                                                      .size = refuses ? 0 : name_.size(),
                                                      .epoch = frame.epoch,
                                                      .partition = frame.partition});
    if (!refuses) out += name_;
    wire::end_reply(out, start);
  }

  const std::string name_;
  const Manner manner_;
  const int listener_;
  std::string address_;
  std::map<int, std::string> connections_;  // what came and is not whole
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

// `members[0]` leads the only partition; the others follow or learn.
std::unique_ptr<Client> client_of(const std::vector<Speaker*>& members) {
  wire::MembershipTable table;
  table.set_version(1);
  table.set_partition_count(1);
  auto* run = table.add_partitions();
  run->set_count(1);
  run->mutable_view()->set_primary(0);
  run->mutable_view()->set_epoch(1);
  for (std::uint32_t i = 0; i < members.size(); i++) {
    auto* instance = table.add_instances();
    instance->set_id(i);
    instance->mutable_member()->set_node(i + 1);
    instance->set_tcp(members[i]->address());
    if (i < 2) run->mutable_view()->add_sync(i);
    else run->mutable_view()->add_learners(i);
  }
  ClientOptions options;
  options.timeout = 20s;
  return std::make_unique<NetworkClient>(options, NetworkClient::Source{}, *parse_table(table.SerializeAsString(), true));
}

Outcome ask(Client& client, Operation operation, Millis timeout = {}) {
  std::promise<Outcome> answer;
  client.submit(std::move(operation), [&](Outcome outcome) { answer.set_value(std::move(outcome)); }, timeout);
  return answer.get_future().get();
}

TEST(EventualLookup, IsSpreadOverAllCopies) {
  Speaker leads("leads", Manner::answers), follows("follows", Manner::answers), learns("learns", Manner::answers);
  const auto client = client_of({&leads, &follows, &learns});
  std::map<std::string, int> answers;
  for (int i = 0; i < 12; i++) answers[client->lookup_eventual("k")->value]++;
  EXPECT_EQ(answers, (std::map<std::string, int>{{"leads", 4}, {"follows", 4}, {"learns", 4}}));
  for (int i = 0; i < 12; i++) answers[ask(*client, Operation::lookup_eventual("k")).value]++;
  EXPECT_EQ(answers, (std::map<std::string, int>{{"leads", 8}, {"follows", 8}, {"learns", 8}}));
  for (const Outcome& one : client->call_all(std::vector<Operation>(12, Operation::lookup_eventual("k")))) answers[one.value]++;
  EXPECT_EQ(answers, (std::map<std::string, int>{{"leads", 12}, {"follows", 12}, {"learns", 12}}));
  EXPECT_EQ(client->lookup("k")->value, "leads");
  EXPECT_EQ(follows.ordinary + learns.ordinary, 0);
}

TEST(EventualLookup, IsAnsweredWhileWhoLeadsSaysNothing) {
  Speaker leads("leads", Manner::silent), follows("follows", Manner::answers);
  const auto client = client_of({&leads, &follows});
  for (int i = 0; i < 4; i++) {
    const auto blocking = client->lookup_eventual("k");
    ASSERT_TRUE(blocking) << blocking.error().message;
    EXPECT_EQ(blocking->value, "follows");
    EXPECT_EQ(ask(*client, Operation::lookup_eventual("k")).value, "follows");
  }
  for (const Outcome& one : client->call_all(std::vector<Operation>(4, Operation::lookup_eventual("k")))) EXPECT_EQ(one.value, "follows");
  EXPECT_GT(leads.eventual, 0) << "it was its turn too";
  EXPECT_EQ(ask(*client, Operation::lookup("k"), 300ms).code, Code::unavailable);
  EXPECT_EQ(follows.ordinary, 0);
}

TEST(EventualLookup, GoesOnWhereNobodyListens) {
  Speaker follows("follows", Manner::answers);
  auto leads = std::make_unique<Speaker>("leads", Manner::answers);
  const auto client = client_of({leads.get(), &follows});
  leads.reset();
  for (int i = 0; i < 4; i++) {
    EXPECT_EQ(client->lookup_eventual("k")->value, "follows");
    EXPECT_EQ(ask(*client, Operation::lookup_eventual("k")).value, "follows");
  }
}

TEST(EventualLookup, GoesToWhoLeadsWhenACopyCannotAnswer) {
  Speaker leads("leads", Manner::answers), follows("follows", Manner::refuses), learns("learns", Manner::refuses);
  const auto client = client_of({&leads, &follows, &learns});
  for (int i = 0; i < 6; i++) {
    EXPECT_EQ(client->lookup_eventual("k", 7)->value, "leads");
    EXPECT_EQ(ask(*client, Operation::lookup_eventual("k", 7)).value, "leads");
  }
  EXPECT_GT(follows.eventual + learns.eventual, 0);
}

}  // namespace
}  // namespace zht::client

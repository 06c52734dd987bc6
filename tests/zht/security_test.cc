// Who is let in: the handshake byte by byte, the guard with and without TLS, and the frame server against those who do not
// know the secret, know another, repeat what they overheard, say half of it, or say it slowly.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "zht/client.h"
#include "zht/client/channel.h"
#include "zht/net/acceptor.h"
#include "zht/net/frame_server.h"
#include "zht/net/peer_link.h"
#include "zht/node.h"
#include "zht/security/guard.h"

namespace zht::security {
namespace {

using namespace std::chrono_literals;

Secret secret(const std::string& text = "sixteen bytes or more of it") { return *Secret::from_text(text, "a test"); }

// Carries what both sides say until neither says more. The error of each; empty: none.
struct Ended {
  bool asker = false, answerer = false;  // done
  std::string asker_error, answerer_error;
};
struct Talk {
  Handshake asker, answerer;
  std::string to_answerer, to_asker;
  std::vector<std::string> said;  // by the asker
  Ended run() {
    Ended ended;
    std::string in_answerer, in_asker;
    asker.begin(to_answerer);
    while (!to_answerer.empty() || !to_asker.empty()) {
      if (!to_answerer.empty()) said.push_back(to_answerer);
      step(answerer, std::exchange(to_answerer, {}), in_answerer, to_asker, ended.answerer, ended.answerer_error);
      step(asker, std::exchange(to_asker, {}), in_asker, to_answerer, ended.asker, ended.asker_error);
    }
    return ended;
  }
  static void step(Handshake& side, const std::string& came, std::string& in, std::string& out, bool& done, std::string& error) {
    in += came;
    std::size_t used = 0;
    const auto took = side.take(in, used, out);
    in.erase(0, used);
    if (!took) error = took.error().message;
    else done = done || *took;
  }
};

TEST(HandshakeTest, TwoWhoKnowTheSecretArePlainlyLetIn) {
  const Secret s = secret(), same_text = secret("sixteen bytes or more of it\n");  // an editor's last newline does not count
  const Ended ended = Talk{Handshake(Side::asker, s), Handshake(Side::answerer, same_text), {}, {}, {}}.run();
  EXPECT_TRUE(ended.asker && ended.answerer) << ended.asker_error << ended.answerer_error;
}

// Bytes that PROTOCOL.md promises to clients of other makers.
TEST(KeyTest, IsDerivedAsTheProtocolSays) {
  const Key key = *secret("0123456789abcdef").key("client:alice");
  EXPECT_EQ(key.text(), "zht key client:alice " + key.word() + "\n");
  EXPECT_EQ(key.word().size(), 64u);
  EXPECT_NE(key.word(), secret("0123456789abcdef").key("client:bob")->word());
  EXPECT_NE(key.word(), secret("0123456789abcdeg").key("client:alice")->word());
  for (const char* bad : {"", "client:", "client:a b", "root", "Admin", "client:\n", "client:abcdefghijklmnopqrstuvwxyz0123456789"})
    EXPECT_EQ(secret().key(bad).code(), base::Code::invalid) << bad;
}

TEST(KeyTest, SaysWhoConnectsAndLetsNobodyPassForAnother) {
  const Secret root = secret();
  const struct {
    const char* name;
    Role role;
  } all[] = {{"admin", Role::admin}, {"client:alice", Role::client}};
  for (const auto& one : all) {
    const Key key = *root.key(one.name);
    Talk talk{Handshake(Side::asker, key), Handshake(Side::answerer, root), {}, {}, {}};
    const Ended ended = talk.run();
    EXPECT_TRUE(ended.asker && ended.answerer) << ended.asker_error << ended.answerer_error;
    EXPECT_EQ(talk.answerer.role(), one.role);
  }
  Talk node{Handshake(Side::asker, root), Handshake(Side::answerer, root), {}, {}, {}};
  EXPECT_TRUE(node.run().answerer);
  EXPECT_EQ(node.answerer.role(), Role::node);
  // The bytes of one key under another name, and a key of another cluster.
  std::array<char, kProofSize> bytes{};
  const std::string word = root.key("client:alice")->word();
  for (std::size_t i = 0; i < bytes.size(); i++) bytes[i] = static_cast<char>(std::stoi(word.substr(2 * i, 2), nullptr, 16));
  for (const Key& wrong : {Key("admin", bytes, "a test"), Key("client:bob", bytes, "a test"), *secret("another secret, as long").key("admin")}) {
    const Ended ended = Talk{Handshake(Side::asker, wrong), Handshake(Side::answerer, root), {}, {}, {}}.run();
    EXPECT_FALSE(ended.asker || ended.answerer);
  }
  // Who has a key alone answers nobody as a node would.
  const Key alice = *root.key("client:alice");
  EXPECT_FALSE((Talk{Handshake(Side::asker, *root.key("admin")), Handshake(Side::answerer, alice), {}, {}, {}}.run().asker));
}

TEST(HandshakeTest, AnAskerDoesNotProveItselfToWhoKnowsAnotherSecret) {
  const Secret s = secret(), other = secret("another secret of some length");
  Talk talk{Handshake(Side::asker, s), Handshake(Side::answerer, other), {}, {}, {}};
  const Ended ended = talk.run();
  EXPECT_FALSE(ended.asker || ended.answerer);
  EXPECT_NE(ended.asker_error.find("not ours"), std::string::npos) << ended.asker_error;
  EXPECT_EQ(talk.said.size(), 1u);  // its hello, and no proof to work on
}

TEST(HandshakeTest, EveryWrongProofIsRefused) {
  const Secret s = secret();
  for (std::size_t flip = 0; flip < kProofSize; flip++) {
    Handshake asker(Side::asker, s), answerer(Side::answerer, s);
    std::string hello, challenge, proof, verdict;
    std::size_t used = 0;
    asker.begin(hello);
    ASSERT_FALSE(*answerer.take(hello, used, challenge));
    ASSERT_FALSE(*asker.take(challenge, used, proof));
    proof[proof.size() - 1 - flip] ^= 1;
    EXPECT_EQ(answerer.take(proof, used, verdict).code(), base::Code::invalid);
    EXPECT_FALSE(verdict.empty());
  }
}

TEST(HandshakeTest, WhatWasOverheardIsOfNoUseAgain) {
  const Secret s = secret();
  Talk first{Handshake(Side::asker, s), Handshake(Side::answerer, s), {}, {}, {}};
  ASSERT_TRUE(first.run().answerer);
  Handshake answerer(Side::answerer, s);  // the next connection
  std::string out;
  std::size_t used = 0;
  ASSERT_FALSE(*answerer.take(first.said[0], used, out));
  EXPECT_EQ(answerer.take(first.said[1], used, out).code(), base::Code::invalid);
}

TEST(HandshakeTest, AProofCannotBeSentBack) {
  // Who knows nothing asks, and hands the answerer's own proof back to it.
  const Secret s = secret();
  Handshake answerer(Side::answerer, s);
  std::string out, hello;
  wire::encode_control(hello, wire::FrameType::control_request, wire::ControlKind::hello, 1, base::Code::ok, {}, '\1' + std::string(32, 'n'));
  std::size_t used = 0;
  ASSERT_FALSE(*answerer.take(hello, used, out));
  const std::string reply = out, proof = reply.substr(reply.size() - kProofSize);
  std::string prove;
  wire::encode_control(prove, wire::FrameType::control_request, wire::ControlKind::prove, 2, base::Code::ok, {}, proof);
  EXPECT_EQ(answerer.take(prove, used, out).code(), base::Code::invalid);
}

TEST(HandshakeTest, AProofOfOneTlsSessionIsNoneInAnother) {
  const Secret s = secret();
  const Ended ended = Talk{Handshake(Side::asker, s, std::string(32, 'a')), Handshake(Side::answerer, s, std::string(32, 'b')), {}, {}, {}}.run();
  EXPECT_FALSE(ended.asker || ended.answerer);
}

TEST(HandshakeTest, AProofBeforeTheHelloIsRefused) {
  const Secret s = secret();
  Handshake answerer(Side::answerer, s);
  std::string prove, out;
  wire::encode_control(prove, wire::FrameType::control_request, wire::ControlKind::prove, 2, base::Code::ok, {}, std::string(32, 'x'));
  std::size_t used = 0;
  EXPECT_EQ(answerer.take(prove, used, out).code(), base::Code::invalid);
}

TEST(HandshakeTest, InPiecesItIsTheSame) {
  const Secret s = secret();
  Handshake asker(Side::asker, s), answerer(Side::answerer, s);
  std::string hello, in, out;
  asker.begin(hello);
  for (const char byte : hello) {
    in += byte;
    std::size_t used = 0;
    const auto took = answerer.take(in, used, out);
    ASSERT_TRUE(took) << took.error().message;
    in.erase(0, used);
  }
  EXPECT_FALSE(out.empty());
}

TEST(HandshakeTest, WhatFollowsTheProofIsNotItsOwn) {
  const Secret s = secret();
  Handshake asker(Side::asker, s), answerer(Side::answerer, s);
  std::string hello, challenge, proof, verdict;
  std::size_t used = 0;
  asker.begin(hello);
  (void)*answerer.take(hello, used, challenge);
  (void)*asker.take(challenge, used, proof);
  EXPECT_TRUE(*answerer.take(proof + "ZHT1...", used, verdict));
  EXPECT_EQ(used, proof.size());
}

class SecretFileTest : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string write(const std::string& text, unsigned mode) {
    std::ofstream(folder_ + "/secret") << text;
    ::chmod((folder_ + "/secret").c_str(), mode);
    return folder_ + "/secret";
  }
  const std::string folder_ = testing::TempDir() + "zht-secret-" + std::to_string(::getpid());
};

TEST_F(SecretFileTest, IsReadWhenItsOwnerAloneCan) {
  EXPECT_TRUE(Secret::load(write("sixteen bytes or more", 0600)));
  EXPECT_TRUE(Secret::load(write("sixteen bytes or more", 0400)));
  for (const unsigned mode : {0644u, 0640u, 0604u, 0620u, 0602u, 0777u}) {
    const auto read = Secret::load(write("sixteen bytes or more", mode));
    EXPECT_EQ(read.code(), base::Code::invalid) << std::oct << mode;
    EXPECT_NE(read.error().message.find("chmod 600"), std::string::npos);
  }
}

TEST_F(SecretFileTest, ShortLongEmptyMissingAndFoldersAreToldApart) {
  EXPECT_EQ(Secret::load(write("fifteen bytes !\n", 0600)).code(), base::Code::invalid);
  EXPECT_EQ(Secret::load(write("", 0600)).code(), base::Code::invalid);
  EXPECT_EQ(Secret::load(write(std::string(4097, 'x'), 0600)).code(), base::Code::invalid);
  EXPECT_EQ(Secret::load(folder_ + "/none").code(), base::Code::not_found);
  EXPECT_EQ(Secret::load(folder_).code(), base::Code::invalid);
}

TEST_F(SecretFileTest, ANewOneIsPrivateRandomAndNeverReplaced) {
  ASSERT_TRUE(make_secret(folder_ + "/a"));
  ASSERT_TRUE(make_secret(folder_ + "/b"));
  EXPECT_EQ(make_secret(folder_ + "/a").code(), base::Code::conflict);
  struct stat info {};
  ASSERT_EQ(::stat((folder_ + "/a").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600u);
  EXPECT_NE(Secret::load(folder_ + "/a")->mac("x"), Secret::load(folder_ + "/b")->mac("x"));
}

TEST_F(SecretFileTest, ATextIsTheSecretOrNot) {
  const Secret s = secret("correct horse battery staple");
  EXPECT_TRUE(s.is("correct horse battery staple"));
  EXPECT_TRUE(s.is("correct horse battery staple\n"));
  EXPECT_FALSE(s.is("correct horse battery stapl"));
  EXPECT_FALSE(s.is(""));
  EXPECT_NE(s.metrics_token(), secret().metrics_token());
}

// ---- the frame server, and a client's channel, over real sockets ----

class Counts final : public net::FrameHandler {
 public:
  std::size_t on_frames(net::ConnectionNumber, std::span<const wire::Frame> frames, std::string& out) override {
    for (const wire::Frame& frame : frames) {
      wire::end_reply(out, wire::begin_reply(out, {.op = frame.op, .request = frame.request}));
      handled++;
    }
    return frames.size();
  }
  std::atomic<std::size_t> handled{0};
};

Opener opener_of(std::optional<Secret> s) {
  auto credentials = std::make_shared<Credentials>();
  credentials->secret = std::move(s);
  return credentials;
}

class DoorTest : public testing::Test {
 protected:
  void start(Opener opener, net::FrameServerLimits limits = {}) {
    server_ = std::make_unique<net::FrameServer>(loop_, counts_, limits);
    server_->guard(std::move(opener));
    address_ = *client::parse_address(*server_->listen_tcp("127.0.0.1:0"));
    thread_ = std::thread([this] { loop_.run(); });
  }
  void TearDown() override {
    loop_.stop();
    if (thread_.joinable()) thread_.join();
    server_.reset();
  }
  static base::Time soon() { return base::SystemClock().now() + 20s; }
  base::Result<client::Channel> open(const Opener& opener) {
    client::Address address = address_;
    address.opener = opener;
    return client::Channel::open(address, soon());
  }
  static std::string lookup(std::uint64_t request) {
    std::string out;
    wire::encode_request(out, Operation::lookup("key"), {.request = request});
    return out;
  }
  int raw() const {
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(address_.port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
    const timeval limit{20, 0};
    ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    return fd;
  }
  static std::string all_from(int fd) {  // until the other side closes
    std::string got;
    char buffer[4096];
    for (ssize_t n; (n = ::recv(fd, buffer, sizeof buffer, 0)) > 0;) got.append(buffer, static_cast<std::size_t>(n));
    ::close(fd);
    return got;
  }
  void expect_served(const Opener& opener) {
    auto channel = open(opener);
    ASSERT_TRUE(channel) << channel.error().message;
    channel->out() = lookup(1);
    EXPECT_TRUE(channel->exchange(1, soon()));
  }

  Counts counts_;
  net::EventLoop loop_;
  std::unique_ptr<net::FrameServer> server_;
  client::Address address_;
  std::thread thread_;
};

TEST_F(DoorTest, OpensToTheSecretAndToNothingElse) {
  start(opener_of(secret()));
  expect_served(opener_of(secret()));
  const std::size_t before = counts_.handled;
  const auto wrong = open(opener_of(secret("another secret of some length")));
  EXPECT_EQ(wrong.code(), base::Code::invalid);
  EXPECT_NE(wrong.error().message.find("not ours"), std::string::npos) << wrong.error().message;
  auto none = open(nullptr);
  ASSERT_TRUE(none);  // a connection, but no word gets through
  none->out() = lookup(1);
  const auto answer = none->exchange(1, soon());
  EXPECT_EQ(answer.code(), base::Code::invalid);
  EXPECT_NE(answer.error().message.find("ZHT_SECRET_FILE"), std::string::npos) << answer.error().message;
  EXPECT_EQ(counts_.handled, before);
}

TEST_F(DoorTest, AClientWithASecretLeavesANodeWithoutOne) {
  start(nullptr);
  const auto refused = open(opener_of(secret()));
  EXPECT_EQ(refused.code(), base::Code::invalid) << "no downgrade";
}

TEST_F(DoorTest, RequestsBeforeTheProofReachNobodyEvenBehindAHello) {
  start(opener_of(secret()));
  const Secret s = secret();
  Handshake asker(Side::asker, s);
  std::string hello;
  asker.begin(hello);
  const int fd = raw();
  const std::string bytes = hello + lookup(7) + lookup(8);
  ASSERT_EQ(::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  EXPECT_FALSE(all_from(fd).empty());  // told, then closed
  EXPECT_EQ(counts_.handled, 0u);
}

TEST_F(DoorTest, RequestsRightBehindTheProofAreServed) {
  start(opener_of(secret()));
  const Secret s = secret();
  Handshake asker(Side::asker, s);
  std::string out, in;
  asker.begin(out);
  const int fd = raw();
  ASSERT_GT(::send(fd, out.data(), out.size(), MSG_NOSIGNAL), 0);
  out.clear();
  char buffer[4096];
  std::size_t used = 0;
  while (out.empty()) {
    const ssize_t n = ::recv(fd, buffer, sizeof buffer, 0);
    ASSERT_GT(n, 0);
    in.append(buffer, static_cast<std::size_t>(n));
    ASSERT_TRUE(asker.take(in, used, out));
  }
  out += lookup(7);
  ASSERT_GT(::send(fd, out.data(), out.size(), MSG_NOSIGNAL), 0);
  ::shutdown(fd, SHUT_WR);
  for (in.clear(); in.size() < 2 * wire::kHeaderSize;) {
    const ssize_t n = ::recv(fd, buffer, sizeof buffer, 0);
    ASSERT_GT(n, 0);
    in.append(buffer, static_cast<std::size_t>(n));
  }
  ::close(fd);
  EXPECT_EQ(counts_.handled, 1u);
}

TEST_F(DoorTest, WhoProvesNothingInTimeIsClosed) {
  start(opener_of(secret()), {.proof = 300ms});
  const Secret s = secret();
  Handshake asker(Side::asker, s);
  std::string hello;
  asker.begin(hello);
  const int silent = raw(), half = raw(), slow = raw();
  ASSERT_GT(::send(half, hello.data(), 50, MSG_NOSIGNAL), 0);
  std::thread drip([&] {  // a byte at a time does not buy time
    for (const char byte : hello) {
      if (::send(slow, &byte, 1, MSG_NOSIGNAL) <= 0) return;
      std::this_thread::sleep_for(20ms);
    }
  });
  EXPECT_EQ(all_from(silent), "");
  EXPECT_EQ(all_from(half), "");
  all_from(slow);
  drip.join();
  expect_served(opener_of(secret()));
  EXPECT_EQ(counts_.handled, 1u);
}

TEST_F(DoorTest, ManyHalfOpenOnesKeepNobodyOut) {
  start(opener_of(secret()), {.connections = 200, .proof = 60s, .unproven = 50});
  std::vector<int> open_ones;
  for (int i = 0; i < 150; i++) open_ones.push_back(raw());
  expect_served(opener_of(secret()));
  // A hundred made way.
  std::size_t closed = 0;
  for (std::size_t i = 0; i < open_ones.size(); i++) {
    char byte;
    closed += ::recv(open_ones[i], &byte, 1, MSG_DONTWAIT) == 0;
    ::close(open_ones[i]);
  }
  EXPECT_GE(closed, 95u);
}

TEST(UnprovenTest, MostlyTheOldMakeWayAndNotAlwaysTheOldest) {
  net::Unproven all(64);
  const auto now = net::Unproven::Clock::now();
  for (std::uint64_t i = 0; i < 63; i++) all.add(i, now + std::chrono::seconds(i));
  EXPECT_FALSE(all.in_the_way());
  all.add(63, now + std::chrono::seconds(63));
  int oldest = 0, young = 0;
  for (int i = 0; i < 10'000; i++) {
    const auto one = all.in_the_way();
    ASSERT_TRUE(one);
    oldest += *one == 0;
    young += *one >= 48;
  }
  EXPECT_LT(oldest, 1'000);
  EXPECT_LT(young, 400) << "the youngest quarter";
  all.remove(7);
  all.remove(7);
  EXPECT_FALSE(all.in_the_way());
  EXPECT_EQ(all.size(), 63u);
  EXPECT_EQ(all.older_than(now + std::chrono::seconds(9)).size(), 9u);
}

TEST_F(DoorTest, LongWordsOfTheUnprovenAreNotKept) {
  start(opener_of(secret()));
  const int fd = raw();
  std::string big;
  wire::encode_request(big, Operation::insert("key", std::string(std::size_t{8} << 20, 'v')), {.request = 1});
  ASSERT_GT(::send(fd, big.data(), 2000, MSG_NOSIGNAL), 0);  // it is told of 8 MiB, and waits for none of them
  EXPECT_NE(all_from(fd).find("secret"), std::string::npos);
  EXPECT_EQ(counts_.handled, 0u);
}

// ---- TLS ----

class TlsTest : public DoorTest {
 protected:
  static void SetUpTestSuite() {
    folder_ = testing::TempDir() + "zht-tls-" + std::to_string(::getpid());
    const std::string script =
        "set -e; mkdir -p " + folder_ + "; cd " + folder_ +
        "; for ca in ca strange; do openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout $ca.key -out $ca.pem "
        "-subj /CN=$ca -days 3; openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout $ca-node.key -out $ca.csr -subj "
        "/CN=node; openssl x509 -req -in $ca.csr -CA $ca.pem -CAkey $ca.key -CAcreateserial -out $ca-node.pem -days 3; done; chmod 600 *.key";
    have_ = std::system(("sh -c '" + script + "' >/dev/null 2>&1").c_str()) == 0;
  }
  static void TearDownTestSuite() { std::filesystem::remove_all(folder_); }
  void SetUp() override {
    if (!have_) GTEST_SKIP() << "no openssl program to make certificates with";
  }
  static Opener opener(const std::string& own, const std::string& trusted, std::optional<Secret> s = {}) {
    auto credentials = std::make_shared<Credentials>();
    auto tls = TlsContext::load({folder_ + "/" + own + "-node.pem", folder_ + "/" + own + "-node.key", folder_ + "/" + trusted + ".pem"});
    EXPECT_TRUE(tls) << tls.error().message;
    credentials->tls = *tls;
    credentials->secret = std::move(s);
    return credentials;
  }
  inline static std::string folder_;
  inline static bool have_ = false;
};

TEST_F(TlsTest, BothSidesShowACertificateOfTheClustersCa) {
  start(opener("ca", "ca"));
  expect_served(opener("ca", "ca"));
  EXPECT_FALSE(open(opener("ca", "strange")));             // the node's is of another CA than the client trusts
  auto stranger = open(opener("strange", "ca"));           // TLS 1.3: the client hears of its refusal with the first answer
  if (stranger) {
    stranger->out() = lookup(1);
    EXPECT_FALSE(stranger->exchange(1, soon()));
  }
  auto plain = open(nullptr);
  ASSERT_TRUE(plain);
  plain->out() = lookup(1);
  const auto told = plain->exchange(1, soon());
  EXPECT_EQ(told.code(), base::Code::invalid);
  EXPECT_NE(told.error().message.find("TLS"), std::string::npos);
  EXPECT_EQ(counts_.handled, 1u);
}

TEST_F(TlsTest, WithASecretBothAreAskedFor) {
  start(opener("ca", "ca", secret()));
  expect_served(opener("ca", "ca", secret()));
  EXPECT_FALSE(open(opener("ca", "ca", secret("another secret of some length"))));
  EXPECT_FALSE(open(opener_of(secret())));
  EXPECT_EQ(counts_.handled, 1u);
}

TEST_F(TlsTest, AClientThatAsksForItDoesNotGoWithout) {
  start(nullptr);
  EXPECT_EQ(open(opener("ca", "ca")).code(), base::Code::invalid);
}

TEST_F(TlsTest, FilesThatDoNotFitAreNamed) {
  const auto load = [](const std::string& certificate, const std::string& key, const std::string& ca) {
    return TlsContext::load({certificate.empty() ? "" : folder_ + "/" + certificate, key.empty() ? "" : folder_ + "/" + key, folder_ + "/" + ca});
  };
  EXPECT_EQ(load("ca-node.pem", "", "ca.pem").code(), base::Code::invalid);
  EXPECT_EQ(load("ca-node.pem", "strange-node.key", "ca.pem").code(), base::Code::invalid);
  EXPECT_EQ(load("none.pem", "ca-node.key", "ca.pem").code(), base::Code::invalid);
  EXPECT_EQ(load("ca-node.pem", "ca-node.key", "ca-node.key").code(), base::Code::invalid);
}

// Links between nodes: what they carry arrives whole, where both know the secret, and nowhere else.
TEST_F(TlsTest, LinksBetweenNodesProveThemselvesToo) {
  const auto message = [](std::size_t number) {
    wire::Gathered out;
    const std::size_t start = wire::begin_node_frame(out.bytes, wire::FrameType::peer, 1);
    auto owner = std::make_shared<std::string>(std::string(number * 977 % 60'000, static_cast<char>('a' + number % 26)));
    out.gather(*owner, owner);
    wire::end_node_frame(out.bytes, start, out.pieces_size);
    return out;
  };
  class Keeps final : public net::FrameHandler {
   public:
    std::size_t on_frames(net::ConnectionNumber, std::span<const wire::Frame> frames, std::string&) override {
      for (const wire::Frame& frame : frames) got.emplace_back(frame.value);
      return frames.size();
    }
    std::vector<std::string> got;
  };
  for (const Opener& own : {opener_of(secret()), opener("ca", "ca"), opener("ca", "ca", secret())}) {
    net::EventLoop loop;
    Keeps keeps;
    net::FrameServer server(loop, keeps);
    server.guard(own);
    const std::string address = *server.listen_tcp("127.0.0.1:0");
    net::PeerLinkOptions right, wrong;
    right.opener = own;
    wrong.opener = opener_of(secret("another secret of some length"));
    net::PeerLink link(loop, right), stranger(loop, wrong);
    link.lead_to(address);
    stranger.lead_to(address);
    std::vector<std::string> sent;
    for (std::size_t i = 0; i < 100; i++) {
      link.send(message(i));
      stranger.send(message(i));
      sent.emplace_back(i * 977 % 60'000, static_cast<char>('a' + i % 26));
    }
    loop.every(5ms, [&] {
      if (keeps.got.size() >= sent.size() && !stranger.refusal().empty()) loop.stop();
    });
    loop.run();
    EXPECT_EQ(keeps.got, sent);
    EXPECT_EQ(stranger.counts().messages, 0u);
    EXPECT_FALSE(stranger.up());
  }
}

// A whole node over TLS and a secret: values of every size, many in flight, through the engine and the channels.
TEST_F(TlsTest, ANodeServesItsClientsThroughIt) {
  const std::string data = folder_ + "/data";
  std::filesystem::create_directories(data);
  std::filesystem::permissions(data, std::filesystem::perms::owner_all);
  ASSERT_TRUE(make_secret(data + "/secret"));
  ::setenv("ZHT_TLS_CERTIFICATE", (folder_ + "/ca-node.pem").c_str(), 1);
  ::setenv("ZHT_TLS_KEY", (folder_ + "/ca-node.key").c_str(), 1);
  ::setenv("ZHT_TLS_CA", (folder_ + "/ca.pem").c_str(), 1);
  {
    auto node = Node::start({.data_folder = data, .instances = 2, .listen = "127.0.0.1:0"});
    ASSERT_TRUE(node) << node.error().message;
    auto client = connect({.cluster = (*node)->listen(), .data_folder = data});
    ASSERT_TRUE(client) << client.error().message;
    std::vector<Operation> inserts;
    for (int i = 0; i < 2000; i++) inserts.push_back(Operation::insert("k" + std::to_string(i), std::string(static_cast<std::size_t>(i), 'v')));
    for (const Outcome& outcome : (*client)->call_all(std::move(inserts))) ASSERT_TRUE(outcome.ok()) << outcome.message;
    const std::string big(5 << 20, 'b');
    ASSERT_TRUE((*client)->call(Operation::insert("big", big)).ok());
    EXPECT_EQ((*client)->call(Operation::lookup("big")).value, big);
    for (int i = 0; i < 2000; i += 97)
      EXPECT_EQ((*client)->call(Operation::lookup("k" + std::to_string(i))).value.size(), static_cast<std::size_t>(i));
  }
  ::unsetenv("ZHT_TLS_CERTIFICATE");
  ::unsetenv("ZHT_TLS_KEY");
  ::unsetenv("ZHT_TLS_CA");
}

}  // namespace
}  // namespace zht::security

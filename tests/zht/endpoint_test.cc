// The native endpoint against clients that are broken, slow, greedy or hostile: the offender gets an error or is closed,
// everyone else is served, memory stays bounded. Connections and datagrams.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <fstream>
#include <future>
#include <thread>

#include "novoht/base/memory_files.h"
#include "novoht/base/random.h"
#include "zht/client/datagram_channel.h"
#include "zht/net/cookie.h"
#include "zht/net/frame_server.h"
#include "zht/server/in_process_client.h"
#include "zht/server/instance_thread.h"

namespace zht::net {
namespace {

using namespace std::chrono_literals;

// Answers every request with as many bytes as its partition says; the reply waits for what its epoch names.
class Answers final : public FrameHandler {
 public:
  std::size_t on_frames(ConnectionNumber from, std::span<const wire::Frame> frames, std::string& out) override {
    const std::size_t had = out.size();
    std::size_t done = 0;
    for (const wire::Frame& frame : frames) {
      const std::size_t start = wire::begin_reply(out, {.op = frame.op, .request = frame.request});
      out.append(std::min(frame.partition, std::uint32_t{200'000}), 'x');
      wire::end_reply(out, start);
      handled++;
      done++;
      awaited = std::max(awaited, frame.epoch);
      if (from != kNoConnection && out.size() - had >= kReplyBytesAtOnce) break;
    }
    return done;
  }
  std::uint64_t awaits() override { return std::exchange(awaited, 0); }
  std::uint64_t awaited = 0;  // what requests name as their epoch
  std::atomic<std::size_t> handled{0};
};

std::string request(std::uint64_t number, std::uint32_t answer_size, OpKind kind = OpKind::lookup, std::uint64_t awaited = 0) {
  std::string out;
  Operation operation = Operation::lookup("key");
  operation.kind = kind;
  wire::encode_request(out, operation, {.request = number, .epoch = awaited, .partition = PartitionId{answer_size}});
  return out;
}

// A client's socket, by hand.
class Wire {
 public:
  Wire(int type, const std::string& address) : fd_(::socket(AF_INET, type, 0)) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
    const timeval limit{20, 0};  // only a failing test waits so long
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  }
  ~Wire() { ::close(fd_); }
  Wire(Wire&& from) noexcept : fd_(std::exchange(from.fd_, -1)), in_(std::move(from.in_)) {}
  Wire& operator=(Wire&&) = delete;

  bool send(const std::string& bytes) const {
    for (std::size_t at = 0; at < bytes.size();) {
      const ssize_t sent = ::send(fd_, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
      if (sent <= 0) return false;
      at += static_cast<std::size_t>(sent);
    }
    return true;
  }
  // As much as the sockets between take.
  std::size_t send_some(const std::string& bytes) const {
    const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    return sent > 0 ? static_cast<std::size_t>(sent) : 0;
  }
  // The next reply; nothing when the other side has closed.
  std::optional<wire::Frame> reply() {
    in_.erase(0, std::exchange(used_, 0));
    for (;;) {
      auto frame = wire::next_frame(in_, wire::kMaxFrameSize);
      if (!frame) return {};
      if (*frame) {
        used_ = (*frame)->size;
        return **frame;
      }
      char buffer[65536];
      const ssize_t got = ::recv(fd_, buffer, sizeof buffer, 0);
      if (got <= 0) {
        EXPECT_TRUE(got == 0 || errno == ECONNRESET) << "nothing came, and it is not closed either";
        return {};
      }
      in_.append(buffer, static_cast<std::size_t>(got));
    }
  }
  // That lie here and are not taken.
  std::size_t bytes_now() const {
    char byte;
    return static_cast<std::size_t>(std::max<ssize_t>(0, ::recv(fd_, &byte, 1, MSG_PEEK | MSG_DONTWAIT)));
  }
  std::string datagram() const {
    char buffer[65536];
    const ssize_t got = ::recv(fd_, buffer, sizeof buffer, 0);
    EXPECT_GT(got, 0);
    return std::string(buffer, static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  }

 private:
  int fd_;
  std::string in_;
  std::size_t used_ = 0;
};

class EndpointTest : public testing::Test {
 protected:
  void start(FrameServerLimits limits = {}) {
    server_ = std::make_unique<FrameServer>(loop_, answers_, limits);
    address_ = *server_->listen_tcp("127.0.0.1:0");
    ASSERT_TRUE(server_->listen_udp(address_));
    thread_ = std::thread([this] { loop_.run(); });
  }
  void TearDown() override {
    if (!thread_.joinable()) return;
    loop_.stop();
    thread_.join();
    server_.reset();
  }
  Wire connection() const { return Wire(SOCK_STREAM, address_); }
  Wire datagrams() const { return Wire(SOCK_DGRAM, address_); }
  void expect_served() const {
    Wire other = connection();
    ASSERT_TRUE(other.send(request(7, 10)));
    const auto reply = other.reply();
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->request, 7u);
    EXPECT_EQ(reply->value.size(), 10u);
  }
  static std::size_t resident() {
    std::ifstream file("/proc/self/statm");
    std::size_t size = 0, pages = 0;
    file >> size >> pages;
    return pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  }

  EventLoop loop_;
  Answers answers_;
  std::unique_ptr<FrameServer> server_;
  std::string address_;
  std::thread thread_;
};

TEST_F(EndpointTest, RepliesThatWaitLeaveInTheirOrderWhenItComes) {
  start();
  Wire waits = connection();
  ASSERT_TRUE(waits.send(request(1, 10, OpKind::lookup, 5)));
  while (answers_.handled < 1) std::this_thread::yield();
  ASSERT_TRUE(waits.send(request(2, 300'000, OpKind::lookup, 7)));
  while (answers_.handled < 2) std::this_thread::yield();
  ASSERT_TRUE(waits.send(request(3, 10)));  // waits for nothing, but not before the others
  while (answers_.handled < 3) std::this_thread::yield();
  expect_served();
  EXPECT_EQ(waits.bytes_now(), 0u);
  loop_.post([this] { server_->release(5); });
  EXPECT_EQ(waits.reply()->request, 1u);
  expect_served();
  EXPECT_EQ(waits.bytes_now(), 0u);
  loop_.post([this] { server_->release(8); });
  EXPECT_EQ(waits.reply()->request, 2u);
  EXPECT_EQ(waits.reply()->request, 3u);
  ASSERT_TRUE(waits.send(request(4, 10, OpKind::lookup, 8)));
  EXPECT_EQ(waits.reply()->request, 4u) << "that has come";
  ASSERT_TRUE(waits.send(request(5, 10, OpKind::lookup, 9)));
  while (answers_.handled < 7) std::this_thread::yield();
  loop_.post([this] { server_->give_up_waiting(); });
  EXPECT_FALSE(waits.reply()) << "closed";
  expect_served();
}

// Files whose syncs wait at a gate.
class GatedFiles final : public base::FileSystem {
 public:
  Result<std::unique_ptr<base::File>> open(const std::string& path, base::OpenMode mode) override {
    TRY_LET(file, files_.open(path, mode));
    return std::unique_ptr<base::File>(std::make_unique<Gated>(*this, std::move(file)));
  }
  Result<bool> exists(const std::string& path) override { return files_.exists(path); }
  Result<void> rename(const std::string& from, const std::string& to) override { return files_.rename(from, to); }
  Result<void> remove(const std::string& path) override { return files_.remove(path); }
  Result<std::vector<std::string>> list(const std::string& folder) override { return files_.list(folder); }
  Result<void> make_folder(const std::string& path) override { return files_.make_folder(path); }
  Result<void> sync_folder(const std::string& path) override { return files_.sync_folder(path); }
  Result<std::unique_ptr<base::FileLock>> lock(const std::string& path) override { return files_.lock(path); }
  bool threads() const override { return false; }

  void close_gate() { passes_ = 0; }
  void let_pass(int more) {
    passes_ += more;
    passes_.notify_all();
  }
  std::atomic<int> syncs{0};  // that came to the gate
  std::atomic<bool> fails{false};

 private:
  class Gated final : public base::File {
   public:
    Gated(GatedFiles& files, std::unique_ptr<base::File> file) : files_(files), file_(std::move(file)) {}
    Result<std::size_t> read_at(std::uint64_t offset, char* to, std::size_t size) override { return file_->read_at(offset, to, size); }
    Result<void> write_at(std::uint64_t offset, Bytes data) override { return file_->write_at(offset, data); }
    Result<void> sync() override {
      files_.syncs++;
      for (int left = files_.passes_;; left = files_.passes_) {
        if (left > 0 && files_.passes_.compare_exchange_strong(left, left - 1)) break;
        if (left <= 0) files_.passes_.wait(left);
      }
      if (files_.fails) return fail(Code::io, "made to fail");
      return file_->sync();
    }
    Result<std::uint64_t> size() override { return file_->size(); }
    Result<void> truncate(std::uint64_t size) override { return file_->truncate(size); }
    Result<void> reserve(std::uint64_t size) override { return file_->reserve(size); }

   private:
    GatedFiles& files_;
    std::unique_ptr<base::File> file_;
  };
  base::MemoryFiles files_;
  std::atomic<int> passes_{1 << 20};
};

// An instance that syncs before it answers.
class SyncingInstanceTest : public testing::Test {
 protected:
  void SetUp() override {
    server::InstanceThread::Options options;
    options.folder = "store";
    options.core.durability = core::Durability::always;
    options.core.segment_size = 1 << 20;
    options.core.incarnation = 1;
    options.core.clustered = true;
    replication::View view;
    view.epoch = Epoch{1};
    view.primary = {InstanceId{0}, 1};
    view.sync = {view.primary};
    options.core.timing.copies = options.core.timing.sync_copies = 1;
    options.views = {view};
    instance_ = std::make_unique<server::InstanceThread>(options, files_, clock_, procedures_, table_, pool_);
    ASSERT_TRUE(instance_->open());
    address_ = *instance_->listen_tcp("127.0.0.1:0");
    instance_->run();
  }
  void TearDown() override {
    files_.let_pass(1 << 20);
    instance_->stop();
    pool_.join();
  }
  std::string insert(const std::string& key, std::uint64_t client, std::uint64_t sequence) {
    std::string out;
    wire::encode_request(out, Operation::insert(key, "new"), {.request = sequence, .client = client, .sequence = sequence, .epoch = 1});
    return out;
  }
  std::string lookup(const std::string& key) {
    std::string out;
    wire::encode_request(out, Operation::lookup(key), {.request = 99, .epoch = 1});
    return out;
  }
  std::unique_ptr<Client> client_inside() {
    server::InProcessClient::Options options;
    options.partition_count = 1;
    options.instance_of = {0};
    auto client = std::make_unique<server::InProcessClient>(options, std::vector<server::InstanceThread*>{instance_.get()}, nullptr, 1);
    EXPECT_TRUE(client->insert("first", "", {}));  // the round that begins to lead
    return client;
  }
  // Two connections that change things: from then on syncs are made elsewhere. The next one, of a change by the first, hangs.
  void hang_in_a_sync() {
    for (std::unique_ptr<Wire>* const wire : {&a_, &b_, &c_}) *wire = std::make_unique<Wire>(SOCK_STREAM, address_);
    ASSERT_TRUE(a_->send(insert("a", 1, 1)));
    ASSERT_TRUE(a_->reply());
    ASSERT_TRUE(b_->send(insert("b", 2, 1)));
    ASSERT_TRUE(b_->reply());
    files_.close_gate();
    const int before = files_.syncs;
    ASSERT_TRUE(a_->send(insert("a", 1, 2)));
    while (files_.syncs == before) std::this_thread::yield();
  }
  server::InstanceReport instance_report() {
    std::promise<server::InstanceReport> report;
    instance_->report([&](server::InstanceReport one) { report.set_value(std::move(one)); });
    return report.get_future().get();
  }

  GatedFiles files_;
  base::SystemClock clock_;
  Procedures procedures_;
  server::PublishedTable table_;
  asio::thread_pool pool_{1};
  std::unique_ptr<server::InstanceThread> instance_;
  std::string address_;
  std::unique_ptr<Wire> a_, b_, c_;
};

TEST_F(SyncingInstanceTest, ReadsAreServedAndWritesGatheredWhileASyncIsUnderWay) {
  ASSERT_NO_FATAL_FAILURE(hang_in_a_sync());
  const int syncs = files_.syncs;
  ASSERT_TRUE(b_->send(insert("b", 2, 2)));
  ASSERT_TRUE(c_->send(lookup("other")));
  EXPECT_EQ(c_->reply()->status, static_cast<std::uint8_t>(Code::not_found)) << "served meanwhile";
  while (instance_report().operations.changes < 4) std::this_thread::yield();  // the other change is made meanwhile
  EXPECT_EQ(files_.syncs, syncs);
  ASSERT_TRUE(c_->send(lookup("b")));  // what is not synced yet is shown to nobody
  while (instance_report().operations.by_kind[static_cast<std::size_t>(OpKind::lookup)] < 2) std::this_thread::yield();
  EXPECT_EQ(a_->bytes_now() + b_->bytes_now() + c_->bytes_now(), 0u);
  files_.let_pass(1);
  EXPECT_EQ(a_->reply()->status, 0);
  EXPECT_EQ(b_->bytes_now() + c_->bytes_now(), 0u);
  files_.let_pass(1);
  EXPECT_EQ(b_->reply()->status, 0);
  EXPECT_EQ(c_->reply()->value, "new");
}

TEST_F(SyncingInstanceTest, WhoWaitsForASyncThatFailsIsNotAcknowledged) {
  ASSERT_NO_FATAL_FAILURE(hang_in_a_sync());
  ASSERT_TRUE(b_->send(insert("b", 2, 2)));
  while (instance_report().operations.changes < 4) std::this_thread::yield();
  files_.fails = true;
  files_.let_pass(1 << 20);
  EXPECT_FALSE(a_->reply());
  EXPECT_FALSE(b_->reply());
}

TEST_F(SyncingInstanceTest, CallersOfTheProcessWaitForTheirSyncAndNobodyForThem) {
  const auto client = client_inside();
  c_ = std::make_unique<Wire>(SOCK_STREAM, address_);
  files_.close_gate();
  const int before = files_.syncs;
  auto first = std::async(std::launch::async, [&] { return client->insert("a", "1"); });
  while (files_.syncs == before) std::this_thread::yield();  // it hangs
  // Who reads what is on the disk is answered, whichever way he comes.
  EXPECT_EQ(client->lookup("other").code(), Code::not_found);
  ASSERT_TRUE(c_->send(lookup("other")));
  EXPECT_EQ(c_->reply()->status, static_cast<std::uint8_t>(Code::not_found));
  std::atomic<int> here = 0, late = 0, submitted = 0;
  client->call_each({Operation::lookup("other"), Operation::insert("b", "2"), Operation::lookup("a")},
                    [&](std::size_t index, const Outcome& outcome) {
                      if (index == 0) here += outcome.code == Code::not_found;
                      else late += outcome.ok();
                    });
  EXPECT_EQ(here, 1) << "before it returned";
  for (const char* key : {"c", "d", "e"}) client->submit(Operation::insert(key, "3"), [&](Outcome outcome) { submitted += outcome.ok(); });
  while (instance_report().operations.changes < 4) std::this_thread::yield();  // the others are made meanwhile
  auto reader = std::async(std::launch::async, [&] { return client->lookup("b"); });  // what is not synced yet is shown to nobody
  while (instance_report().operations.by_kind[static_cast<std::size_t>(OpKind::lookup)] < 5) std::this_thread::yield();
  EXPECT_EQ(files_.syncs, before + 1);
  EXPECT_EQ(late + submitted, 0);
  EXPECT_NE(first.wait_for(std::chrono::seconds(0)), std::future_status::ready);
  files_.let_pass(1);
  EXPECT_TRUE(first.get());
  while (files_.syncs == before + 1) std::this_thread::yield();  // one for all that came meanwhile
  EXPECT_EQ(submitted, 0);
  EXPECT_NE(reader.wait_for(std::chrono::seconds(0)), std::future_status::ready);
  files_.let_pass(1 << 20);
  EXPECT_EQ(reader.get()->value, "2");
  while (late < 2 || submitted < 3) std::this_thread::yield();
}

TEST_F(SyncingInstanceTest, CallersOfTheProcessAreToldOfASyncThatFails) {
  const auto client = client_inside();
  files_.close_gate();
  const int before = files_.syncs;
  auto first = std::async(std::launch::async, [&] { return client->insert("a", "1"); });
  while (files_.syncs == before) std::this_thread::yield();
  auto second = std::async(std::launch::async, [&] { return client->insert("a", "2"); });
  std::promise<Code> change, read;
  client->call_each({Operation::insert("b", "2"), Operation::lookup("a")}, [&](std::size_t index, const Outcome& outcome) {
    (index == 0 ? change : read).set_value(outcome.code);
  });
  while (instance_report().operations.changes < 4) std::this_thread::yield();
  files_.fails = true;
  files_.let_pass(1 << 20);
  EXPECT_EQ(first.get().code(), Code::timeout) << "it may be there after a restart";
  EXPECT_EQ(second.get().code(), Code::timeout);
  EXPECT_EQ(change.get_future().get(), Code::timeout);
  EXPECT_EQ(read.get_future().get(), Code::unavailable);
  EXPECT_FALSE(client->insert("c", "3"));
}

TEST_F(SyncingInstanceTest, AnInstanceThatEndsAnswersItsCallers) {
  const auto client = client_inside();
  files_.close_gate();
  const int before = files_.syncs;
  auto first = std::async(std::launch::async, [&] { return client->insert("a", "1"); });
  while (files_.syncs == before) std::this_thread::yield();
  std::promise<Code> change;
  client->call_each({Operation::insert("b", "2")}, [&](std::size_t, const Outcome& outcome) { change.set_value(outcome.code); });
  auto ending = std::async(std::launch::async, [&] { instance_->stop(); });
  files_.let_pass(1 << 20);
  EXPECT_TRUE(first.get());
  EXPECT_EQ(change.get_future().get(), Code::ok);
  ending.get();
  EXPECT_EQ(client->insert("c", "3").code(), Code::unavailable);
}

TEST_F(EndpointTest, WhatIsNoFrameGetsOneErrorAndIsClosed) {
  start();
  const std::string good = request(1, 0);
  const auto with = [&](std::size_t at, char byte) {
    std::string bytes = good;
    bytes[at] = byte;
    return bytes;
  };
  std::string huge = good;
  base::store(huge.data() + 12, std::uint32_t{0x7fffffff});
  base::store(huge.data() + 64, std::uint32_t{0x7fffffff - 3});
  for (const std::string& bytes : {std::string("GET / HTTP/1.1\r\n\r\n"), with(4, 9), with(5, 77), with(12, 99), huge}) {
    Wire bad = connection();
    ASSERT_TRUE(bad.send(bytes));
    const auto reply = bad.reply();
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->request, 0u);
    EXPECT_TRUE(reply->status == static_cast<std::uint8_t>(Code::invalid) ||
                reply->status == static_cast<std::uint8_t>(Code::unsupported));
    EXPECT_FALSE(reply->key.empty()) << "says why";
    EXPECT_FALSE(bad.reply());
    expect_served();
  }
}

TEST_F(EndpointTest, WhatCameBeforeGarbageIsAnswered) {
  start();
  Wire bad = connection();
  ASSERT_TRUE(bad.send(request(1, 5) + request(2, 6) + "garbage"));
  EXPECT_EQ(bad.reply()->value.size(), 5u);
  EXPECT_EQ(bad.reply()->value.size(), 6u);
  EXPECT_EQ(bad.reply()->request, 0u);
  EXPECT_FALSE(bad.reply());
}

TEST_F(EndpointTest, OneConnectionTooManyIsToldSo) {
  start({.connections = 2});
  Wire first = connection(), second = connection();
  ASSERT_TRUE(first.send(request(1, 1)) && second.send(request(1, 1)));
  ASSERT_TRUE(first.reply() && second.reply());
  Wire third = connection();
  const auto refused = third.reply();
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->status, static_cast<std::uint8_t>(Code::unavailable));
  EXPECT_FALSE(third.reply());
  ASSERT_TRUE(first.send(request(2, 3)));
  EXPECT_EQ(first.reply()->value.size(), 3u);
}

TEST_F(EndpointTest, AFrameThatIsNeverCompletedIsGivenUpAndIdleConnectionsStay) {
  start({.stall = 30ms});
  Wire idle = connection();
  ASSERT_TRUE(idle.send(request(1, 1)));
  ASSERT_TRUE(idle.reply());
  for (const std::size_t part : {1, 5, 71, 74}) {
    Wire slow = connection();
    ASSERT_TRUE(slow.send(request(1, 1).substr(0, part)));
    EXPECT_FALSE(slow.reply()) << part;
  }
  ASSERT_TRUE(idle.send(request(2, 4)));
  EXPECT_EQ(idle.reply()->value.size(), 4u);
}

TEST_F(EndpointTest, RequestsWaitWhileTheirRepliesAreNotRead) {
  constexpr std::size_t count = 20'000, size = 20'000;  // 400 MB of replies
  start({.unread_replies = 64 << 10});
  Wire greedy = connection();
  std::string requests;
  for (std::size_t i = 1; i <= count; i++) requests += request(i, size);
  const std::size_t before = resident();
  std::size_t sent = 0;
  for (int quiet = 0; quiet < 20; quiet++) {
    const std::size_t now = greedy.send_some(requests.substr(sent, 64 << 10));
    if (now > 0) quiet = 0;
    sent += now;
    if (now == 0) expect_served();
  }
  EXPECT_LT(answers_.handled, count / 2);
  EXPECT_LT(resident(), before + (std::size_t{64} << 20));
  // And all are answered to one that reads at last.
  std::thread rest([&] { EXPECT_TRUE(greedy.send(requests.substr(sent))); });
  for (std::size_t i = 1; i <= count; i++) {
    const auto reply = greedy.reply();
    ASSERT_TRUE(reply) << i;
    ASSERT_EQ(reply->request, i);
    ASSERT_EQ(reply->value.size(), size);
  }
  rest.join();
}

TEST_F(EndpointTest, OneThatNeverReadsIsClosed) {
  start({.unread_replies = 64 << 10, .stall = 30ms});
  Wire greedy = connection();
  std::string requests;
  for (std::size_t i = 1; i <= 2'000; i++) requests += request(i, 100'000);
  bool open = true;
  for (int i = 0; i < 10'000 && open; i++) open = greedy.send(requests);
  EXPECT_FALSE(open);
  expect_served();
}

TEST_F(EndpointTest, RepliesUnderWayArriveWhenItStops) {
  start();
  Wire slow = connection(), idle = connection();
  constexpr std::size_t count = 30, size = 150'000;  // more than the sockets hold
  for (std::size_t i = 1; i <= count; i++) ASSERT_TRUE(slow.send(request(i, size)));
  while (answers_.handled < count) std::this_thread::yield();
  loop_.post([this] { server_->drain(20s, [this] { loop_.stop(); }); });
  EXPECT_FALSE(idle.reply()) << "closed at once";
  for (std::size_t i = 1; i <= count; i++) {
    const auto reply = slow.reply();
    ASSERT_TRUE(reply) << i;
    EXPECT_EQ(reply->value.size(), size);
  }
  EXPECT_FALSE(slow.reply());
  thread_.join();
  server_.reset();
}

TEST_F(EndpointTest, APromiseOfManyBytesTakesNoMemory) {
  start();
  std::string header = request(1, 1).substr(0, wire::kHeaderSize);
  constexpr std::uint32_t promised = 60 << 20;
  base::store(header.data() + 12, promised);
  base::store(header.data() + 60, std::uint32_t{0});
  base::store(header.data() + 64, promised);
  const std::size_t before = resident();
  std::vector<Wire> many;
  for (int i = 0; i < 100; i++) {
    many.push_back(connection());
    ASSERT_TRUE(many.back().send(header));
  }
  expect_served();
  for (const Wire& one : many) ASSERT_TRUE(one.send(std::string(1000, 'x')));
  expect_served();
  EXPECT_LT(resident(), before + (std::size_t{100} << 20));
}

TEST_F(EndpointTest, FramesUnderWayAreBoundedOverAllConnections) {
  start({.partial_frames = 4 << 20});
  std::string frame;
  wire::encode_request(frame, Operation::insert("key", std::string(8 << 20, 'v')), {.request = 1});
  Wire big = connection();
  (void)big.send(frame.substr(0, 7 << 20));  // breaks off when it is refused
  const auto reply = big.reply();
  if (reply) { EXPECT_EQ(reply->status, static_cast<std::uint8_t>(Code::no_space)); }
  expect_served();
  Wire other = connection();
  ASSERT_TRUE(other.send(request(1, 1).substr(0, 40)));
  ASSERT_TRUE(other.send(request(1, 1).substr(40)));
  EXPECT_TRUE(other.reply()) << "the bytes of the refused frame are counted no more";
}

TEST_F(EndpointTest, RandomBytesHarmNothing) {
  start();
  base::Random random(5);
  for (int round = 0; round < 300; round++) {
    std::string bytes;
    for (std::uint64_t frames = 1 + random.below(4); frames > 0; frames--) bytes += request(frames, 100);
    for (std::uint64_t changes = random.below(5); changes > 0; changes--)
      bytes[random.below(bytes.size())] = static_cast<char>(random.next());
    Wire bad = connection();
    (void)bad.send(bytes.substr(0, random.below(bytes.size() + 1)));
    const Wire datagram = datagrams();
    (void)datagram.send(bytes.substr(0, random.below(bytes.size()) + 1));
  }
  expect_served();
}

// --- datagrams ---

struct DatagramTest : EndpointTest {
  std::string ask(const Wire& wire, std::uint64_t cookie, const std::string& frame) const {
    std::string bytes(wire::kDatagramCookieSize, '\0');
    base::store(bytes.data(), cookie);
    EXPECT_TRUE(wire.send(bytes + frame));
    return wire.datagram();
  }
  static std::uint64_t cookie_of(const std::string& datagram) { return base::load<std::uint64_t>(datagram.data()); }
  static wire::Frame frame_of(const std::string& datagram) {
    return **wire::next_frame(base::Bytes(datagram).substr(wire::kDatagramCookieSize), wire::kMaxFrameSize);
  }
};

TEST_F(DatagramTest, NothingIsDoneForAnAddressThatIsNotProven) {
  start();
  const Wire wire = datagrams();
  const std::string asked = request(5, 1000);
  for (const std::uint64_t cookie : {0, 12345}) {
    const std::string answer = ask(wire, cookie, asked);
    EXPECT_EQ(frame_of(answer).status, wire::kStatusCookie);
    EXPECT_EQ(frame_of(answer).request, 5u);
    EXPECT_LT(answer.size(), wire::kDatagramCookieSize + asked.size()) << "no amplification";
  }
  EXPECT_EQ(answers_.handled, 0u);
  const std::uint64_t cookie = cookie_of(ask(wire, 0, asked));
  const std::string answer = ask(wire, cookie, asked);
  EXPECT_EQ(frame_of(answer).status, 0);
  EXPECT_EQ(frame_of(answer).value.size(), 1000u);
  EXPECT_EQ(cookie_of(answer), cookie);
  EXPECT_EQ(frame_of(ask(datagrams(), cookie, asked)).status, wire::kStatusCookie) << "another port's";
}

TEST_F(DatagramTest, WhatDoesNotFitIsSentToAConnection) {
  start();
  const Wire wire = datagrams();
  const std::uint64_t cookie = cookie_of(ask(wire, 0, request(1, 0)));
  constexpr std::uint32_t most = wire::kMaxDatagram - wire::kDatagramCookieSize - wire::kHeaderSize;
  EXPECT_EQ(ask(wire, cookie, request(1, most)).size(), wire::kMaxDatagram);
  const std::string longer = ask(wire, cookie, request(2, most + 1));
  EXPECT_EQ(frame_of(longer).status, wire::kStatusStream);
  EXPECT_EQ(frame_of(longer).request, 2u);
  const std::size_t handled = answers_.handled;
  EXPECT_EQ(frame_of(ask(wire, cookie, request(3, 0, OpKind::callback))).status, wire::kStatusStream);
  EXPECT_EQ(answers_.handled, handled) << "a callback cannot wait there";
}

TEST_F(DatagramTest, WhatIsNoRequestIsNotAnswered) {
  start();
  const Wire wire = datagrams();
  const std::uint64_t cookie = cookie_of(ask(wire, 0, request(1, 0)));
  std::string head(wire::kDatagramCookieSize, '\0'), control, goodbye;
  base::store(head.data(), cookie);
  wire::encode_control(control, wire::FrameType::control_request, wire::ControlKind::membership, 3, Code::ok, {}, "x");
  wire::encode_goodbye(goodbye, 3);
  for (const std::string& bytes : {std::string("x"), head, head + "garbage", head + request(2, 0) + "more", head + control, head + goodbye,
                                   head + request(2, 0).substr(0, 73), head + request(2, 0) + std::string(1400, 'x')})
    ASSERT_TRUE(wire.send(bytes));
  const std::string answer = ask(wire, cookie, request(9, 3));
  EXPECT_EQ(frame_of(answer).request, 9u) << "the first to be answered";
}

TEST_F(DatagramTest, AChannelLearnsItsCookieAndAsksAgain) {
  start();
  client::Address to;
  to.host = "127.0.0.1";
  to.port = static_cast<std::uint16_t>(std::stoi(address_.substr(address_.rfind(':') + 1)));
  auto channel = client::DatagramChannel::open(to);
  ASSERT_TRUE(channel);
  for (int i = 0; i < 3; i++) {
    const std::uint64_t number = channel->next_request();
    channel->out().append(request(number, 77));
    const auto frame = channel->exchange(number, base::SystemClock().now() + 20s);
    ASSERT_TRUE(frame) << frame.error().message;
    EXPECT_EQ(frame->value.size(), 77u);
  }
  EXPECT_GE(answers_.handled, 3u) << "more where an answer was late";
}

TEST(CookieTest, AreSipHashes) {
  const std::uint64_t keys[2] = {0x0706050403020100, 0x0f0e0d0c0b0a0908};
  std::string data;
  for (char c = 0; c < 15; c++) data += c;
  EXPECT_EQ(siphash(keys, data), 0xa129ca6149be45e5) << "the paper's example";
  EXPECT_EQ(siphash(keys, ""), 0x726fdb47dd0e0e31);
}

}  // namespace
}  // namespace zht::net

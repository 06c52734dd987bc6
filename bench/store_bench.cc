// How many requests does one server core answer, and how fast? One epoll loop on one thread drives C connections with D
// requests in flight each, the same for every server: only the bytes of a request and of a reply differ.
//
//   store_bench --system redis --address 127.0.0.1:6379 --quick
//
// 15-byte keys and 132-byte values ([ZHT] 3.1), keys drawn evenly from a fixed set; every looked-up value is compared.
// `zht` also answers one connection over a unix socket and over datagrams, rows of their own.
// `zht` speaks the store's frames from this loop, as the peers' requests are spoken; `zht_client` goes through the C++
// client (one client, C x D operations in flight) to show what that costs or wins.
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <functional>
#include <memory>
#include <mutex>

#include "bench/measure.h"
#include "novoht/base/bytes.h"
#include "novoht/base/random.h"
#include "zht/client.h"
#include "zht/node.h"
#include "zht/types.h"
#include "zht/wire/frame.h"
#include "zht/wire/zht.pb.h"

namespace {

using bench::require;
using bench::wrong;

constexpr std::size_t kKeySize = 15;
constexpr std::size_t kValueSize = 132;

// Key `index` and its value, made without a table so that the client's caches stay small.
class Data {
 public:
  Data() {
    base::Random random(7);
    for (char& c : pattern_) c = static_cast<char>('a' + random.below(26));
  }
  static void key(std::size_t index, char* out) {
    std::memcpy(out, "key-", 4);
    for (std::size_t i = kKeySize; i-- > 4; index /= 10) out[i] = static_cast<char>('0' + index % 10);
  }
  void value(std::size_t index, char* out) const {
    key(index, out);
    std::memcpy(out + kKeySize, pattern_.data() + index % 3000, kValueSize - kKeySize);
  }
  bool matches(std::size_t index, base::Bytes value) const {
    char expected[kValueSize];
    this->value(index, expected);
    return value == base::Bytes(expected, kValueSize);
  }

 private:
  std::string pattern_ = std::string(4096, ' ');
};

// What one server's requests and replies look like.
class Protocol {
 public:
  struct Reply {
    std::size_t size = 0;       // bytes taken; 0: not complete yet
    std::uint64_t slot = 0;     // of the request it answers, where the protocol says so
    base::Bytes value;          // of a lookup
  };
  virtual ~Protocol() = default;
  virtual bool in_order() const { return true; }
  virtual bool stores() const { return true; }  // a looked-up value can be compared
  virtual void greet(int) {}  // once, on the connection's socket
  virtual void insert(std::string& out, base::Bytes key, base::Bytes value, std::uint64_t slot) = 0;
  virtual void lookup(std::string& out, base::Bytes key, std::uint64_t slot) = 0;
  virtual Reply reply(base::Bytes in, bool insert) = 0;
};

class Resp final : public Protocol {
 public:
  void insert(std::string& out, base::Bytes key, base::Bytes value, std::uint64_t) override {
    out.append("*3\r\n$3\r\nSET\r\n$15\r\n").append(key).append("\r\n$132\r\n").append(value).append("\r\n");
  }
  void lookup(std::string& out, base::Bytes key, std::uint64_t) override {
    out.append("*2\r\n$3\r\nGET\r\n$15\r\n").append(key).append("\r\n");
  }
  Reply reply(base::Bytes in, bool insert) override {
    constexpr base::Bytes head = "$132\r\n";
    if (insert) return line(in, "+OK\r\n");
    if (in.size() < head.size()) return {};
    require(in.starts_with(head), "redis: a lookup was not answered with 132 bytes");
    if (in.size() < head.size() + kValueSize + 2) return {};
    return {head.size() + kValueSize + 2, 0, in.substr(head.size(), kValueSize)};
  }
  static Reply line(base::Bytes in, base::Bytes expected) {
    if (in.size() < expected.size()) return {};
    require(in.starts_with(expected), "unexpected answer: " + base::escape(in.substr(0, 60)));
    return {expected.size(), 0, {}};
  }
};

// memcached's meta commands: its text protocol's plain `get` answers pipelined requests one write at a time.
class MemcachedText final : public Protocol {
 public:
  void insert(std::string& out, base::Bytes key, base::Bytes value, std::uint64_t) override {
    out.append("ms ").append(key).append(" 132\r\n").append(value).append("\r\n");
  }
  void lookup(std::string& out, base::Bytes key, std::uint64_t) override {
    out.append("mg ").append(key).append(" v\r\n");
  }
  Reply reply(base::Bytes in, bool insert) override {
    constexpr base::Bytes head = "VA 132\r\n";
    if (insert) return Resp::line(in, "HD\r\n");
    if (in.size() < head.size()) return {};
    require(in.starts_with(head), "memcached: a lookup was not answered with 132 bytes");
    if (in.size() < head.size() + kValueSize + 2) return {};
    return {head.size() + kValueSize + 2, 0, in.substr(head.size(), kValueSize)};
  }
};

// What echo_limit answers: nothing is stored, the reply is as long as the store's would be.
class Echo final : public Protocol {
 public:
  void insert(std::string& out, base::Bytes key, base::Bytes value, std::uint64_t slot) override {
    head(out, kHead + key.size() + value.size(), kHead, slot);
    out.append(key).append(value);
  }
  void lookup(std::string& out, base::Bytes key, std::uint64_t slot) override {
    head(out, kHead + key.size(), kHead + kValueSize, slot);
    out.append(key);
  }
  bool in_order() const override { return false; }
  bool stores() const override { return false; }
  Reply reply(base::Bytes in, bool insert) override {
    const std::size_t size = kHead + (insert ? 0 : kValueSize);
    if (in.size() < size) return {};
    require(base::load<std::uint32_t>(in.data() + 4) == size, "limit: an answer of another size");
    return {size, base::load<std::uint64_t>(in.data() + 8), {}};
  }

 private:
  static constexpr std::size_t kHead = 16;
  static void head(std::string& out, std::size_t size, std::size_t reply, std::uint64_t slot) {
    char bytes[kHead];
    base::store(bytes, static_cast<std::uint32_t>(size));
    base::store(bytes + 4, static_cast<std::uint32_t>(reply));
    base::store(bytes + 8, slot);
    out.append(bytes, kHead);
  }
};

// The store's own frames, each connection a client of its own. Table: who owns what, fetched once.
class Frames : public Protocol {
 public:
  explicit Frames(const zht::wire::MembershipTable& table, std::size_t window) : partition_count_(table.partition_count()) {
    epochs_.resize(partition_count_);
    for (const auto& run : table.partitions()) {
      for (std::uint32_t p = run.first(); p < run.first() + run.count(); ++p) epochs_.at(p) = run.view().epoch();
    }
    open_.resize(window);
    slots_.resize(window);
  }
  bool in_order() const override { return false; }
  void insert(std::string& out, base::Bytes key, base::Bytes value, std::uint64_t slot) override {
    operation_.kind = zht::OpKind::insert;
    operation_.value.assign(value);
    encode(out, key, slot, ++sequence_);
  }
  void lookup(std::string& out, base::Bytes key, std::uint64_t slot) override {
    operation_.kind = zht::OpKind::lookup;
    operation_.value.clear();
    encode(out, key, slot, 0);
  }
  Reply reply(base::Bytes in, bool insert) override {
    auto next = zht::wire::next_frame(in, zht::wire::kMaxFrameSize);
    if (!next) wrong("zht: " + next.error().message);
    if (!*next) return {};
    const zht::wire::Frame& frame = **next;
    require(frame.status == 0, "zht: a request was answered with status " + std::to_string(frame.status));
    // A sequence's place in the window is free again; the oldest one still open moves on.
    if (insert) {
      open_[slots_.at(frame.request) % open_.size()] = 0;
      while (oldest_ <= sequence_ && open_[oldest_ % open_.size()] != oldest_) ++oldest_;
    }
    return {frame.size, frame.request, frame.value};
  }

 private:
  void encode(std::string& out, base::Bytes key, std::uint64_t slot, std::uint64_t sequence) {
    operation_.key.assign(key);
    if (sequence != 0) {
      // As many in flight as there are slots, but a late answer may leave more than that between oldest and newest.
      if (sequence - oldest_ >= open_.size()) widen();
      open_[sequence % open_.size()] = sequence;
      slots_.at(slot) = sequence;
    }
    const zht::PartitionId partition = zht::partition_of(key, partition_count_);
    zht::wire::encode_request(out, operation_,
                              {.request = slot, .client = client_, .sequence = sequence, .floor = sequence == 0 ? 0 : oldest_ - 1,
                               .epoch = epochs_[static_cast<std::uint32_t>(partition)], .partition = partition});
  }
  void widen() {
    std::vector<std::uint64_t> wider(open_.size() * 2);
    for (const std::uint64_t one : open_) {
      if (one != 0) wider[one % wider.size()] = one;
    }
    open_.swap(wider);
  }
  std::uint32_t partition_count_;
  std::vector<std::uint64_t> epochs_;
  std::vector<std::uint64_t> open_;   // by sequence, modulo: those in flight
  std::vector<std::uint64_t> slots_;  // by slot: the sequence of its insert
  std::uint64_t sequence_ = 0, oldest_ = 1;  // given last; in flight the longest, or the next one
  // PROTOCOL.md, "Identity of a request": when it began, then chance.
  std::uint64_t client_ = static_cast<std::uint64_t>(std::time(nullptr)) / 4 << 34 | base::entropy() >> 30;
  zht::Operation operation_;
};

// The same in datagrams: a cookie before each frame.
class DatagramFrames final : public Frames {
 public:
  using Frames::Frames;
  void greet(int fd) override {
    std::string out;
    lookup(out, "key-00000000000", 0);
    char answer[zht::wire::kMaxDatagram];
    require(::send(fd, out.data(), out.size(), 0) > 0 && ::recv(fd, answer, sizeof answer, 0) > 8, "zht: no answer to a datagram");
    cookie_.assign(answer, zht::wire::kDatagramCookieSize);
  }
  void insert(std::string& out, base::Bytes key, base::Bytes value, std::uint64_t slot) override {
    out.append(cookie_);
    Frames::insert(out, key, value, slot);
  }
  void lookup(std::string& out, base::Bytes key, std::uint64_t slot) override {
    out.append(cookie_);
    Frames::lookup(out, key, slot);
  }
  Reply reply(base::Bytes in, bool insert) override {
    if (in.size() < cookie_.size()) return {};
    Reply reply = Frames::reply(in.substr(cookie_.size()), insert);
    reply.size += cookie_.size();
    return reply;
  }

 private:
  std::string cookie_ = std::string(zht::wire::kDatagramCookieSize, '\0');
};

// "host:port", "udp:host:port" or the path of a unix socket.
int dial(const std::string& address_text) {
  std::string address = address_text;
  if (address.starts_with("/")) {
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    std::snprintf(name.sun_path, sizeof name.sun_path, "%s", address.c_str());
    const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    require(fd >= 0 && ::connect(fd, reinterpret_cast<const sockaddr*>(&name), sizeof name) == 0, address + ": " + std::strerror(errno));
    return fd;
  }
  const int type = address.starts_with("udp:") ? SOCK_DGRAM : SOCK_STREAM;
  if (type == SOCK_DGRAM) address.erase(0, 4);
  const std::size_t colon = address.rfind(':');
  require(colon != std::string::npos, "\"" + address + "\" is not host:port");
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = type;
  require(::getaddrinfo(address.substr(0, colon).c_str(), address.substr(colon + 1).c_str(), &hints, &found) == 0 && found,
          address + ": no such address");
  const int fd = ::socket(found->ai_family, type | SOCK_CLOEXEC, 0);
  require(fd >= 0 && ::connect(fd, found->ai_addr, found->ai_addrlen) == 0, address + ": " + std::strerror(errno));
  ::freeaddrinfo(found);
  const int one = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  return fd;
}

constexpr std::size_t kRead = 64 << 10;

// One connection: `depth` slots, each free or waiting for an answer.
struct Connection {
  int fd = -1;
  std::unique_ptr<Protocol> protocol;
  std::string out;
  std::vector<char> in = std::vector<char>(2 * kRead);
  std::size_t in_used = 0, in_end = 0;  // received and not yet consumed lies between
  std::size_t out_sent = 0;
  struct Slot { std::uint64_t sent = 0; std::size_t key = 0; };
  std::vector<Slot> slots;
  std::uint64_t first = 0, last = 0;  // in-order protocols: requests answered and sent
};

using MakeProtocol = std::function<std::unique_ptr<Protocol>(std::size_t depth)>;

class Load {
 public:
  Load(const std::string& address, const MakeProtocol& make, std::size_t connections, std::size_t depth, const Data& data)
      : data_(data), connections_(connections), epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
    require(epoll_ >= 0, "epoll_create1");
    for (std::size_t i = 0; i < connections; ++i) {
      Connection& c = connections_[i];
      c.fd = dial(address);
      c.protocol = make(depth);
      c.slots.resize(depth);
      c.protocol->greet(c.fd);
      epoll_event event{};
      event.events = EPOLLIN;
      event.data.u64 = i;
      require(::epoll_ctl(epoll_, EPOLL_CTL_ADD, c.fd, &event) == 0, "epoll_ctl");
    }
  }
  ~Load() {
    for (Connection& c : connections_) ::close(c.fd);
    ::close(epoll_);
  }
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;

  // Sends requests for keys that `next` names, until it answers with nothing, and waits for all answers.
  void run(bool insert, const std::function<std::optional<std::size_t>()>& next, bench::Latencies& latencies) {
    std::size_t open = 0;
    for (Connection& c : connections_) {
      for (std::size_t slot = 0; slot < c.slots.size(); ++slot) open += send_one(c, insert, slot, clock_.nanoseconds(), next);
      flush(c);
    }
    epoll_event events[64];
    while (open > 0) {
      const int count = ::epoll_wait(epoll_, events, 64, 30'000);
      if (count < 0 && errno == EINTR) continue;
      require(count > 0, "no answer in 30 s");
      for (int i = 0; i < count; ++i) open -= serve(connections_[events[i].data.u64], insert, next, latencies);
    }
  }

 private:
  // `now`: of the turn, so that a batch of requests costs one look at the clock.
  bool send_one(Connection& c, bool insert, std::size_t slot, std::uint64_t now,
                const std::function<std::optional<std::size_t>()>& next) {
    const auto index = next();
    if (!index) return false;
    char key[kKeySize], value[kValueSize];
    Data::key(*index, key);
    c.slots[slot] = {now, *index};
    if (insert) {
      data_.value(*index, value);
      c.protocol->insert(c.out, {key, kKeySize}, {value, kValueSize}, slot);
    } else {
      c.protocol->lookup(c.out, {key, kKeySize}, slot);
    }
    ++c.last;
    return true;
  }

  void flush(Connection& c) {
    while (c.out_sent < c.out.size()) {
      const ssize_t sent = ::send(c.fd, c.out.data() + c.out_sent, c.out.size() - c.out_sent, MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      require(sent > 0, std::string("send: ") + std::strerror(errno));
      c.out_sent += static_cast<std::size_t>(sent);
    }
    c.out.clear();
    c.out_sent = 0;
  }

  // Reads what came, asks anew for each answer, and returns how many requests ended without a successor.
  std::size_t serve(Connection& c, bool insert, const std::function<std::optional<std::size_t>()>& next,
                    bench::Latencies& latencies) {
    if (c.in.size() - c.in_end < kRead) {
      std::memmove(c.in.data(), c.in.data() + c.in_used, c.in_end - c.in_used);
      c.in_end -= c.in_used;
      c.in_used = 0;
    }
    const ssize_t got = ::recv(c.fd, c.in.data() + c.in_end, kRead, 0);
    require(got > 0, got == 0 ? "the server closed the connection" : std::string("recv: ") + std::strerror(errno));
    c.in_end += static_cast<std::size_t>(got);
    const std::uint64_t now = clock_.nanoseconds();
    std::size_t ended = 0;
    for (;;) {
      const Protocol::Reply reply = c.protocol->reply({c.in.data() + c.in_used, c.in_end - c.in_used}, insert);
      if (reply.size == 0) break;
      const std::size_t slot = c.protocol->in_order() ? c.first % c.slots.size() : static_cast<std::size_t>(reply.slot);
      require(slot < c.slots.size() && c.first < c.last, "an answer that nobody asked for");
      ++c.first;
      if (!insert && c.protocol->stores()) require(data_.matches(c.slots[slot].key, reply.value), "a lookup returned another value");
      latencies.add(now - c.slots[slot].sent);
      c.in_used += reply.size;
      ended += !send_one(c, insert, slot, now, next);
    }
    if (c.in_used == c.in_end) c.in_used = c.in_end = 0;
    flush(c);
    return ended;
  }

  const Data& data_;
  std::vector<Connection> connections_;
  int epoll_;
  bench::Stopwatch clock_;
};

// The same load through the C++ client: `window` operations in flight, each answer asking anew from its completion.
class ClientLoad {
 public:
  ClientLoad(zht::Client& client, std::size_t window, const Data& data) : client_(client), window_(window), data_(data) {}

  void run(bool insert, const std::function<std::optional<std::size_t>()>& next, bench::Latencies& latencies) {
    insert_ = insert;
    next_ = &next;
    latencies_ = &latencies;
    for (std::size_t i = 0; i < window_; ++i) {
      std::unique_lock lock(mutex_);
      ask(lock);
    }
    std::unique_lock lock(mutex_);
    require(idle_.wait_for(lock, std::chrono::seconds(60), [&] { return open_ == 0; }), "no answer in 60 s");
  }

 private:
  void ask(std::unique_lock<std::mutex>& lock) {
    const auto index = (*next_)();
    if (!index) {
      if (open_ == 0) idle_.notify_all();
      return;
    }
    ++open_;
    lock.unlock();
    char key[kKeySize], value[kValueSize];
    Data::key(*index, key);
    data_.value(*index, value);
    const std::uint64_t sent = clock_.nanoseconds();
    zht::Operation operation = insert_ ? zht::Operation::insert({key, kKeySize}, {value, kValueSize})
                                       : zht::Operation::lookup({key, kKeySize});
    client_.submit(std::move(operation), [this, sent, index = *index](zht::Outcome outcome) {
      require(outcome.ok(), "zht: " + outcome.message);
      if (!insert_) require(data_.matches(index, outcome.value), "a lookup returned another value");
      std::unique_lock inner(mutex_);
      latencies_->add(clock_.nanoseconds() - sent);
      --open_;
      ask(inner);
    });
  }

  zht::Client& client_;
  const std::size_t window_;
  const Data& data_;
  bench::Stopwatch clock_;
  std::mutex mutex_;  // guards what follows; completions come on the client's threads
  std::condition_variable idle_;
  std::size_t open_ = 0;
  bool insert_ = false;
  const std::function<std::optional<std::size_t>()>* next_ = nullptr;
  bench::Latencies* latencies_ = nullptr;
};

// The membership table of the node at `address`.
zht::wire::MembershipTable membership_of(const std::string& address) {
  const int fd = dial(address);
  std::string out, in, body;
  zht::wire::MembershipRequest request;
  request.SerializeToString(&body);
  zht::wire::encode_control(out, zht::wire::FrameType::control_request, zht::wire::ControlKind::membership, 1,
                            zht::Code::ok, "", body);
  require(::send(fd, out.data(), out.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(out.size()), "zht: send");
  for (;;) {
    char buffer[65536];
    const ssize_t got = ::recv(fd, buffer, sizeof buffer, 0);
    require(got > 0, "zht: the manager closed the connection");
    in.append(buffer, static_cast<std::size_t>(got));
    auto next = zht::wire::next_frame(in, zht::wire::kMaxFrameSize);
    if (!next) wrong("zht: " + next.error().message);
    if (!*next) continue;
    zht::wire::MembershipTable table;
    require((*next)->status == 0 && table.ParseFromArray((*next)->value.data(), static_cast<int>((*next)->value.size())),
            "zht: no membership table");
    ::close(fd);
    return table;
  }
}

// A node inside this process, one instance, its data in a folder: one thread that waits for each answer, and one that asks
// for 16 keys at a time (a latency is then that of 16).
void in_process(const bench::Arguments& arguments, const bench::Report& report, const Data& data, std::size_t keys, double seconds,
                std::size_t at_least, const std::string& only) {
  zht::NodeOptions options;
  options.data_folder = arguments.folder + "/data";
  options.instances = 1;
  const bool always = arguments.durability == "always";
  if (always) options.durability = zht::NodeOptions::Durability::always;
  auto node = zht::Node::start(options);
  if (!node) wrong("zht: " + node.error().message);
  const auto client = (*node)->client();
  const auto text = [&](std::size_t index, bool value) {
    char bytes[kValueSize];
    value ? data.value(index, bytes) : Data::key(index, bytes);
    return std::string(bytes, value ? kValueSize : kKeySize);
  };
  for (std::size_t i = 0; i < keys; i += 16) {
    std::vector<std::pair<std::string, std::string>> pairs;
    for (std::size_t k = i; k < std::min(i + 16, keys); k++) pairs.emplace_back(text(k, false), text(k, true));
    for (const auto& version : client->insert_many(std::move(pairs))) require(version.has_value(), "zht: an insert failed");
  }
  for (const bool insert : {true, false}) {
    if (always && !insert) continue;  // a lookup does not sync
    for (const std::size_t together : {std::size_t{1}, std::size_t{16}}) {
      const std::string row = std::string("in-process ") + (insert ? "insert" : "lookup") + (always ? " always" : "") +
                              (together > 1 ? " x16" : "");
      if (!only.empty() && only.find("," + row + ",") == std::string::npos) continue;
      base::Random random(together);
      bench::Latencies latencies;
      latencies.reserve(1 << 23);
      std::size_t asked = 0;
      char key[kKeySize], value[kValueSize];
      bench::Stopwatch watch;
      std::uint64_t began = watch.nanoseconds();
      while (asked < at_least || asked % 256 != 0 || watch.seconds() < seconds) {
        if (together == 1) {
          const std::size_t index = random.below(keys);
          Data::key(index, key);
          if (insert) data.value(index, value);
          if (insert) {
            require(client->insert({key, kKeySize}, {value, kValueSize}).has_value(), "zht: an insert failed");
          } else {
            const auto found = client->lookup({key, kKeySize});
            require(found && data.matches(index, found->value), "a lookup returned another value");
          }
        } else if (insert) {
          std::vector<std::pair<std::string, std::string>> pairs;
          for (std::size_t i = 0; i < together; i++) {
            const std::size_t index = random.below(keys);
            pairs.emplace_back(text(index, false), text(index, true));
          }
          for (const auto& version : client->insert_many(std::move(pairs))) require(version.has_value(), "zht: an insert failed");
        } else {
          std::size_t indices[16];
          std::vector<std::string> wanted;
          for (std::size_t i = 0; i < together; i++) wanted.push_back(text(indices[i] = random.below(keys), false));
          const auto found = client->lookup_many(std::move(wanted));
          for (std::size_t i = 0; i < together; i++)
            require(found[i] && data.matches(indices[i], found[i]->value), "a lookup returned another value");
        }
        const std::uint64_t now = watch.nanoseconds();
        latencies.add(now - began);  // and of making the question: one look at the clock, which takes a tenth of an answer
        began = now;
        asked += together;
      }
      const double took = watch.seconds();
      report.row(row, "ops_per_s", static_cast<double>(asked) / took);
      report.latency(row, latencies);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bench::Arguments arguments = bench::parse("store", {"zht", "redis", "memcached", "limit", "zht_client", "zht_in_process"}, argc, argv);
  const bench::Report report(arguments);
  const Data data;
  const std::size_t keys = arguments.pick<std::size_t>(500, 100'000, 100'000);
  const double seconds = arguments.pick(0.0, 0.5, 3.0);
  const std::size_t at_least = arguments.pick<std::size_t>(1'000, 2'000, 10'000);
  const bool always = arguments.durability == "always";
  // For work on one row: --rows="insert 32x16,lookup 1x1".
  const std::string rows = arguments.option("rows", ""), only = rows.empty() ? "" : "," + rows + ",";
  if (arguments.system == "zht_in_process") {
    in_process(arguments, report, data, keys, seconds, at_least, only);
    return 0;
  }

  std::string address = arguments.address, unix_socket, udp;
  MakeProtocol make, make_datagrams;
  std::unique_ptr<zht::Client> client;
  if (arguments.system == "redis") {
    make = [](std::size_t) { return std::make_unique<Resp>(); };
  } else if (arguments.system == "memcached") {
    make = [](std::size_t) { return std::make_unique<MemcachedText>(); };
  } else if (arguments.system == "limit") {
    make = [](std::size_t) { return std::make_unique<Echo>(); };
  } else if (arguments.system == "zht") {
    const zht::wire::MembershipTable table = membership_of(arguments.option("listen", address));
    require(table.instances_size() == 1, "zht: the node under test must have one instance");
    address = table.instances(0).tcp();
    make = [table](std::size_t depth) { return std::make_unique<Frames>(table, depth); };
    make_datagrams = [table](std::size_t depth) { return std::make_unique<DatagramFrames>(table, depth); };
    unix_socket = table.instances(0).unix_socket();
    if (table.instances(0).udp()) udp = "udp:" + address;
  } else {
    auto connected = zht::connect({.cluster = {}, .data_folder = address, .start_node = false});
    if (!connected) wrong("zht: " + connected.error().message);
    client = *std::move(connected);
  }

  const auto measure = [&](const std::string& to, bool insert, std::size_t connections, std::size_t depth,
                           const std::function<std::optional<std::size_t>()>& next, bench::Latencies& latencies) {
    if (client != nullptr) {
      ClientLoad(*client, connections * depth, data).run(insert, next, latencies);
    } else {
      Load(to, to.starts_with("udp:") ? make_datagrams : make, connections, depth, data).run(insert, next, latencies);
    }
  };

  // Every key once, so that each lookup finds something.
  std::size_t loaded = 0;
  bench::Latencies ignored;
  measure(address, true, 8, 16, [&]() -> std::optional<std::size_t> {
    return loaded < keys ? std::optional(loaded++) : std::nullopt;
  }, ignored);

  const auto one_row = [&](const std::string& row, const std::string& to, bool insert, std::size_t connections, std::size_t depth) {
    if (!only.empty() && only.find("," + row + ",") == std::string::npos) return;
    base::Random random(connections * 1000 + depth);
    std::size_t asked = 0;
    bench::Latencies latencies;
    latencies.reserve(1 << 22);
    bench::Stopwatch watch;
    measure(to, insert, connections, depth, [&]() -> std::optional<std::size_t> {
      if (asked >= at_least && asked % 16 == 0 && watch.seconds() >= seconds) return std::nullopt;
      ++asked;
      return random.below(keys);
    }, latencies);
    const double took = watch.seconds();
    require(latencies.count() == asked, "answers are missing");
    report.row(row, "ops_per_s", static_cast<double>(asked) / took);
    report.latency(row, latencies);
  };
  constexpr std::size_t shapes[][2] = {{1, 1}, {8, 1}, {32, 1}, {32, 16}, {32, 64}};
  for (const bool insert : {true, false}) {
    if (always && !insert) continue;  // a lookup does not sync
    const std::string what = std::string(insert ? "insert " : "lookup ") + (always ? "always " : "");
    for (const auto& [connections, depth] : shapes)
      one_row(what + std::to_string(connections) + "x" + std::to_string(depth), address, insert, connections, depth);
    if (!unix_socket.empty()) one_row(what + "1x1 unix", unix_socket, insert, 1, 1);
    if (!udp.empty()) one_row(what + "1x1 udp", udp, insert, 1, 1);
  }
  return 0;
}

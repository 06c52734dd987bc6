// What each server of `store` is spoken to in: the bytes of a request and of its reply, the keys and values in them, and how a server is
// reached. The raw loop of store_bench.cc drives all of them alike.
#pragma once

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <string>
#include <vector>

#include "bench/measure.h"
#include "novoht/base/bytes.h"
#include "novoht/base/random.h"
#include "zht/types.h"
#include "zht/wire/frame.h"
#include "zht/wire/zht.pb.h"

namespace bench {

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
inline int dial(const std::string& address_text) {
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

// The answer of the node at `address` to a control request without parameters.
template <typename Answer>
Answer told_by(const std::string& address, zht::wire::ControlKind kind) {
  const int fd = dial(address);
  std::string out, in;
  zht::wire::encode_control(out, zht::wire::FrameType::control_request, kind, 1, zht::Code::ok, "", "");
  require(::send(fd, out.data(), out.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(out.size()), "zht: send");
  for (;;) {
    char buffer[65536];
    const ssize_t got = ::recv(fd, buffer, sizeof buffer, 0);
    require(got > 0, "zht: the manager closed the connection");
    in.append(buffer, static_cast<std::size_t>(got));
    auto next = zht::wire::next_frame(in, zht::wire::kMaxFrameSize);
    if (!next) wrong("zht: " + next.error().message);
    if (!*next) continue;
    Answer answer;
    require((*next)->status == 0 && answer.ParseFromArray((*next)->value.data(), static_cast<int>((*next)->value.size())),
            "zht: a control request was not answered");
    ::close(fd);
    return answer;
  }
}

}  // namespace bench

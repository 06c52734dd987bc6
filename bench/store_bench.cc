// How many requests does one server core answer, and how fast? The same keys, values and checks for every server, one client core.
//
//   store_bench --system redis --address 127.0.0.1:6379 --unix=/tmp/redis.sock --quick
//
// 15-byte keys and 132-byte values ([ZHT] 3.1), keys drawn evenly from a fixed set; every looked-up value is compared.
//
// Rows `insert|lookup CxD`: the raw loop. One epoll loop on one thread drives C connections over TCP with D requests in flight each, and
// speaks each server's own protocol: only the bytes of a request and of a reply differ. `1x1 unix` and, of `zht`, `1x1 udp` beside it.
//
// Rows `insert|lookup N callers tcp|unix`: N callers in one process, each with one request in flight, and each server's best client. `zht`
// is asked through its C++ client (one caller: blocking calls; more: submit(), whose requests share one connection). The peers' best
// clients merge requests in the same way (lettuce, hiredis' asynchronous calls): for them the raw loop stands, with one connection
// and N requests in flight, which has less to do for each request than any client library.
//
// Row `pause`: one connection looks up while others insert 100,000 a second, and the server's housekeeping goes on.
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "bench/measure.h"
#include "bench/store_protocols.h"
#include "novoht/base/random.h"
#include "zht/client.h"
#include "zht/node.h"
#include "zht/wire/zht.pb.h"

namespace {

using namespace bench;

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

using Next = std::function<std::optional<std::size_t>()>;  // the key of the next request; nothing: no more
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
  void run(bool insert, const Next& next, bench::Latencies& latencies) {
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
                const Next& next) {
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
  std::size_t serve(Connection& c, bool insert, const Next& next, bench::Latencies& latencies) {
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

// The same load through the C++ client: `callers` operations in flight, each answer asking anew from its completion. One caller makes
// blocking calls, as one thread of a program would.
class ClientLoad {
 public:
  ClientLoad(zht::Client& client, std::size_t callers, const Data& data) : client_(client), callers_(callers), data_(data) {}

  void run(bool insert, const Next& next, bench::Latencies& latencies) {
    if (callers_ == 1) {
      blocking(insert, next, latencies);
      return;
    }
    insert_ = insert;
    next_ = &next;
    latencies_ = &latencies;
    for (std::size_t i = 0; i < callers_; ++i) {
      std::unique_lock lock(mutex_);
      ask(lock);
    }
    std::unique_lock lock(mutex_);
    require(idle_.wait_for(lock, std::chrono::seconds(60), [&] { return open_ == 0; }), "no answer in 60 s");
  }

 private:
  zht::Operation operation(bool insert, std::size_t index) const {
    char key[kKeySize], value[kValueSize];
    Data::key(index, key);
    if (!insert) return zht::Operation::lookup({key, kKeySize});
    data_.value(index, value);
    return zht::Operation::insert({key, kKeySize}, {value, kValueSize});
  }
  void check(const zht::Outcome& outcome, bool insert, std::size_t index) const {
    require(outcome.ok(), "zht: " + outcome.message);
    if (!insert) require(data_.matches(index, outcome.value), "a lookup returned another value");
  }
  void blocking(bool insert, const Next& next, bench::Latencies& latencies) {
    while (const auto index = next()) {
      const std::uint64_t sent = clock_.nanoseconds();
      const zht::Outcome outcome = client_.call(operation(insert, *index));
      latencies.add(clock_.nanoseconds() - sent);
      check(outcome, insert, *index);
    }
  }
  void ask(std::unique_lock<std::mutex>& lock) {
    const auto index = (*next_)();
    if (!index) {
      if (open_ == 0) idle_.notify_all();
      return;
    }
    ++open_;
    lock.unlock();
    const std::uint64_t sent = clock_.nanoseconds();
    client_.submit(operation(insert_, *index), [this, sent, index = *index](zht::Outcome outcome) {
      check(outcome, insert_, index);
      std::unique_lock inner(mutex_);
      latencies_->add(clock_.nanoseconds() - sent);
      --open_;
      ask(inner);
    });
  }

  zht::Client& client_;
  const std::size_t callers_;
  const Data& data_;
  bench::Stopwatch clock_;
  std::mutex mutex_;  // guards what follows; completions come on the client's threads
  std::condition_variable idle_;
  std::size_t open_ = 0;
  bool insert_ = false;
  const Next* next_ = nullptr;
  bench::Latencies* latencies_ = nullptr;
};

// A node inside this process, one instance, its data in a folder: one thread that waits for each answer, and one that asks
// for 16 keys at a time (a latency is then that of 16).
void in_process(const bench::Arguments& arguments, const bench::Report& plain, const Data& data, std::size_t keys, double seconds,
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
      const bench::Report report = plain.with({.client = "C++ client", .transport = "in process", .connections = 0, .in_flight = together});
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

// Of each row so many requests at least, however long they take; a sync may take milliseconds.
std::size_t least(const bench::Arguments& arguments) {
  return arguments.durability == "always" ? arguments.pick<std::size_t>(64, 200, 1'000) : arguments.pick<std::size_t>(500, 2'000, 10'000);
}

// The system under test: where it listens and how it is spoken to.
struct Target {
  std::string tcp, unix_socket, udp;  // empty: not there
  MakeProtocol make, make_datagrams;
  std::string control;                // zht: of the node's manager
  std::string data_folder;
  bool rewrites = false;              // redis: its log can be rewritten
};

Target target_of(const bench::Arguments& arguments) {
  Target target;
  target.tcp = arguments.address;
  target.unix_socket = arguments.option("unix", "");
  if (arguments.system.starts_with("redis")) {
    target.make = [](std::size_t) { return std::make_unique<Resp>(); };
    target.rewrites = arguments.durability != "none";
  } else if (arguments.system == "memcached") {
    target.make = [](std::size_t) { return std::make_unique<MemcachedText>(); };
  } else if (arguments.system == "limit") {
    target.make = [](std::size_t) { return std::make_unique<Echo>(); };
  } else {
    target.control = arguments.option("listen", "");
    target.data_folder = arguments.address;
    const auto table = told_by<zht::wire::MembershipTable>(target.control, zht::wire::ControlKind::membership);
    require(table.instances_size() == 1, "zht: the node under test must have one instance");
    target.tcp = table.instances(0).tcp();
    target.unix_socket = table.instances(0).unix_socket();
    if (table.instances(0).udp()) target.udp = "udp:" + target.tcp;
    target.make = [table](std::size_t depth) { return std::make_unique<Frames>(table, depth); };
    target.make_datagrams = [table](std::size_t depth) { return std::make_unique<DatagramFrames>(table, depth); };
  }
  return target;
}

class Rows {
 public:
  Rows(const bench::Arguments& arguments, const Target& target, const Data& data)
      : arguments_(arguments), target_(target), data_(data), plain_(arguments) {
    // For work on some rows: --rows="insert 32x16,lookup 1x1".
    const std::string rows = arguments.option("rows", "");
    if (!rows.empty()) only_ = "," + rows + ",";
  }

  // Every key once, so that each lookup finds something.
  void fill() {
    std::size_t loaded = 0;
    bench::Latencies ignored;
    Load(target_.tcp, target_.make, 8, 16, data_).run(true, [&]() -> std::optional<std::size_t> {
      return loaded < keys_ ? std::optional(loaded++) : std::nullopt;
    }, ignored);
  }

  void raw(bool insert) {
    constexpr std::size_t shapes[][2] = {{1, 1}, {8, 1}, {32, 1}, {32, 16}, {32, 64}};
    for (const auto& [connections, depth] : shapes)
      raw_row(std::to_string(connections) + "x" + std::to_string(depth), target_.tcp, "tcp", insert, connections, depth);
    if (!target_.unix_socket.empty()) raw_row("1x1 unix", target_.unix_socket, "unix", insert, 1, 1);
    if (!target_.udp.empty()) raw_row("1x1 udp", target_.udp, "udp", insert, 1, 1);
  }

  void best_client(bool insert) {
    for (const std::string transport : {"tcp", "unix"}) {
      const std::string& address = transport == "tcp" ? target_.tcp : target_.unix_socket;
      if (address.empty()) continue;
      for (const std::size_t callers : {1, 32, 512, 2048}) {
        const std::string row = name(insert) + std::to_string(callers) + (callers == 1 ? " caller " : " callers ") + transport;
        bench::How how{.client = callers == 1 ? "C++ client, blocking calls" : "C++ client, submit", .transport = transport, .connections = 1,
                       .in_flight = callers};
        if (!target_.control.empty()) {
          zht::ClientOptions options;
          if (transport == "tcp") options.cluster = target_.control;  // it is told of unix sockets only through one
          else options.data_folder = target_.data_folder;
          options.start_node = false;
          auto client = zht::connect(options);
          if (!client) wrong("zht: " + client.error().message);
          ClientLoad load(**client, callers, data_);
          measure(row, how, insert, load);
        } else {
          how.client = "raw loop, requests merged";
          if (!wanted(row)) continue;
          Load load(address, target_.make, 1, callers, data_);
          measure(row, how, insert, load);
        }
      }
    }
  }

  // What do lookups wait at worst while inserts come at a steady rate, the same for every system, and the log is written, synced and
  // brought down again: of `zht` by checkpoints that follow each other, of `redis` by rewriting it once?
  void pause() {
    if (!wanted("pause")) return;
    const double seconds = arguments_.pick(0.2, 5.0, 20.0), rate = 100'000;
    std::uint64_t before = 0;
    if (!target_.control.empty() && arguments_.size != bench::Size::tiny) before = past_the_first_checkpoint();
    if (target_.rewrites) rewrite();
    std::atomic<bool> over = false;
    std::size_t inserted = 0;
    std::thread inserting([&] {
      base::Random random(3);
      bench::Latencies ignored;
      bench::Stopwatch watch;
      Load(target_.tcp, target_.make, 4, 16, data_).run(true, [&]() -> std::optional<std::size_t> {
        if (over) return std::nullopt;
        const double ahead = static_cast<double>(inserted) / rate - watch.seconds();
        if (inserted % 64 == 0 && ahead > 0) std::this_thread::sleep_for(std::chrono::duration<double>(ahead));
        ++inserted;
        return random.below(keys_);
      }, ignored);
    });
    base::Random random(4);
    bench::Latencies latencies;
    latencies.reserve(1 << 22);
    bench::Stopwatch watch;
    Load(target_.tcp, target_.make, 1, 1, data_).run(false, [&]() -> std::optional<std::size_t> {
      if (watch.seconds() >= seconds) return std::nullopt;
      return random.below(keys_);
    }, latencies);
    const double took = watch.seconds();
    over = true;
    inserting.join();
    const bench::Report report = plain_.with({.client = "raw loop", .transport = "tcp", .connections = 1, .in_flight = 1});
    report.row("pause", "p50_us", latencies.percentile_us(0.5));
    report.row("pause", "p999_us", latencies.percentile_us(0.999));
    report.row("pause", "p9999_us", latencies.percentile_us(0.9999));
    report.row("pause", "max_us", latencies.max_us());
    report.row("pause", "inserts_per_s", static_cast<double>(inserted) / took);
    if (!target_.control.empty()) report.row("pause", "checkpoints", static_cast<double>(checkpoints() - before));
  }

 private:
  std::string name(bool insert) const {
    return std::string(insert ? "insert " : "lookup ") + (arguments_.durability == "always" ? "always " : "");
  }
  bool wanted(const std::string& row) const { return only_.empty() || only_.find("," + row + ",") != std::string::npos; }

  void raw_row(const std::string& shape, const std::string& to, const char* transport, bool insert, std::size_t connections, std::size_t depth) {
    if (!wanted(name(insert) + shape)) return;
    Load load(to, to.starts_with("udp:") ? target_.make_datagrams : target_.make, connections, depth, data_);
    measure(name(insert) + shape, {.client = "raw loop", .transport = transport, .connections = connections, .in_flight = depth}, insert, load);
  }

  template <typename AnyLoad>
  void measure(const std::string& row, const bench::How& how, bool insert, AnyLoad& load) {
    if (!wanted(row)) return;
    base::Random random(how.connections * 1000 + how.in_flight);
    std::size_t asked = 0;
    bench::Latencies latencies;
    latencies.reserve(1 << 22);
    bench::Stopwatch watch;
    load.run(insert, [&]() -> std::optional<std::size_t> {
      if (asked >= at_least_ && asked % 16 == 0 && watch.seconds() >= seconds_) return std::nullopt;
      ++asked;
      return random.below(keys_);
    }, latencies);
    const double took = watch.seconds();
    require(latencies.count() == asked, "answers are missing");
    const bench::Report report = plain_.with(how);
    report.row(row, "ops_per_s", static_cast<double>(asked) / took);
    report.latency(row, latencies);
  }

  std::uint64_t checkpoints() const {
    const auto status = told_by<zht::wire::Status>(target_.control, zht::wire::ControlKind::status);
    require(status.instances_size() == 1, "zht: no status");
    return status.instances(0).checkpoints();
  }
  // Inserts as fast as they go until the log has been brought down for the first time: from then on checkpoints follow each other.
  std::uint64_t past_the_first_checkpoint() {
    bench::Stopwatch watch;
    const std::uint64_t before = checkpoints();
    base::Random random(5);
    while (checkpoints() == before) {
      require(watch.seconds() < 60, "zht: no checkpoint in 60 s of inserts");
      std::size_t left = 200'000;
      bench::Latencies ignored;
      Load(target_.tcp, target_.make, 8, 64, data_).run(true, [&]() -> std::optional<std::size_t> {
        if (left == 0) return std::nullopt;
        --left;
        return random.below(keys_);
      }, ignored);
    }
    return checkpoints();
  }
  void rewrite() {
    const int fd = dial(target_.tcp);
    const std::string_view ask = "*1\r\n$12\r\nBGREWRITEAOF\r\n";
    char answer[128];
    require(::send(fd, ask.data(), ask.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(ask.size()) && ::recv(fd, answer, sizeof answer, 0) > 0 &&
                answer[0] == '+', "redis: its log is not rewritten");
    ::close(fd);
  }

  const bench::Arguments& arguments_;
  const Target& target_;
  const Data& data_;
  const bench::Report plain_;
  std::string only_;
  const std::size_t keys_ = arguments_.pick<std::size_t>(500, 100'000, 100'000);
  const double seconds_ = arguments_.pick(0.0, 0.5, 2.0);
  const std::size_t at_least_ = least(arguments_);
};

}  // namespace

int main(int argc, char** argv) {
  const bench::Arguments arguments =
      bench::parse("store", {"zht", "zht_sleeping", "redis", "redis_no_log", "memcached", "limit", "zht_in_process"}, argc, argv);
  const Data data;
  if (arguments.system == "zht_in_process") {
    const std::string rows = arguments.option("rows", "");
    in_process(arguments, bench::Report(arguments), data, arguments.pick<std::size_t>(500, 100'000, 100'000), arguments.pick(0.0, 0.5, 2.0),
               least(arguments), rows.empty() ? "" : "," + rows + ",");
    return 0;
  }
  const Target target = target_of(arguments);
  Rows rows(arguments, target, data);
  rows.fill();
  for (const bool insert : {true, false}) {
    if (arguments.durability == "always" && !insert) continue;  // a lookup does not sync
    rows.raw(insert);
    rows.best_client(insert);
  }
  if (arguments.durability != "always") rows.pause();
  return 0;
}

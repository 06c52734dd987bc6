// What does a message cost? One client in a closed loop (a push; a pop that also settles), then eight clients with many
// messages on their way. The same loops, bodies and checks for every system; a popped message is always settled, and
// each must be had exactly once.
//
//   queue_bench --system redis --address 127.0.0.1:6379 --quick
//
// All over TCP, and in all of them the settlement of what was had rides on the next pop, in one write with it.
//
// fabriq      through its client library, which batches pipelined pushes; --listen=host:port
// redis       streams: XADD; XACK, XDEL of the last and XREADGROUP in one pipeline; pipelined: COUNT, many ids per XACK
// beanstalkd  put; delete of the last and reserve in one write
// limit       echo_limit: what is pushed or asked for is appended to a file, answers are as long as messages; nothing is kept
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "bench/measure.h"
#include "fabriq/fabriq.h"
#include "novoht/base/bytes.h"
#include "zht/client.h"

namespace {

using bench::require;
using bench::wrong;

constexpr int kClients = 8;

// A body of `size` bytes that tells its number.
std::string body_of(std::uint64_t number, std::size_t size) {
  std::string body(size, 'b');
  for (std::size_t i = 0; i < 16; i++, number >>= 4) body[i] = "0123456789abcdef"[number & 15];
  return body;
}
std::uint64_t number_of(std::string_view body) {
  std::uint64_t number = 0;
  for (std::size_t i = 16; i-- > 0;)
    number = number << 4 | static_cast<std::uint64_t>(body[i] <= '9' ? body[i] - '0' : body[i] - 'a' + 10);
  return number;
}

// Ticks off each message once.
class Checklist {
 public:
  Checklist(std::size_t count, std::size_t size) : had_(count), size_(size) {}
  void had(std::string_view body) {
    require(body.size() == size_,
            "a message of " + std::to_string(body.size()) + " bytes, pushed with " + std::to_string(size_));
    const std::uint64_t number = number_of(body);
    require(number < had_.size() && body == body_of(number, size_), "a message that nobody pushed");
    require(had_[number].exchange(true) == false, "message " + std::to_string(number) + " was had twice");
    count_++;
  }
  std::size_t count() const { return count_; }

 private:
  std::vector<std::atomic<bool>> had_;
  std::size_t size_;
  std::atomic<std::size_t> count_ = 0;
};

// One client of one system.
class Client {
 public:
  virtual ~Client() = default;
  virtual void push(const std::string& body) = 0;
  // Hands one message to `checklist` and settles it (with the next pop, where the system can); false: none left.
  virtual bool pop(Checklist& checklist) = 0;
  virtual void finish() {}  // settles what is not settled yet
  virtual std::string name() const { return "raw socket"; }
  // Bodies first..first+count-1, at most `window` on their way.
  virtual void push_many(std::uint64_t first, std::size_t count, std::size_t size, std::size_t window) = 0;
  // Up to `window` messages; how many.
  virtual std::size_t pop_many(Checklist& checklist, std::size_t window) = 0;
};

class System {
 public:
  virtual ~System() = default;
  virtual void make_queue(const std::string& name) = 0;
  virtual void drop_queue(const std::string& name) = 0;
  virtual std::unique_ptr<Client> client(const std::string& queue) = 0;
};

// Fabriq -------------------------------------------------------------------------------------------------------------

template <typename T>
T need(base::Result<T> result, std::string_view what) {
  if (!result) wrong(std::string(what) + ": " + result.error().message);
  return *std::move(result);
}
void need(const base::Result<void>& result, std::string_view what) {
  if (!result) wrong(std::string(what) + ": " + result.error().message);
}

class FabriqClient final : public Client {
 public:
  FabriqClient(std::unique_ptr<zht::Client> client, const std::string& queue)
      : client_(std::move(client)),
        queue_(need(fabriq::Queue::open(*client_, queue), "open")),
        producer_(queue_, {}),
        consumer_(queue_, {}) {}
  ~FabriqClient() override { finish(); }
  void push(const std::string& body) override { need(producer_.push(body), "push"); }
  bool pop(Checklist& checklist) override { return take(checklist, 1) > 0; }
  void push_many(std::uint64_t first, std::size_t count, std::size_t size, std::size_t window) override {
    fabriq::Producer producer(queue_, {.max_pending = window});
    for (std::size_t i = 0; i < count; i++)
      producer.push_async(body_of(first + i, size), [](const base::Result<fabriq::Pushed>& pushed) {
        if (!pushed) wrong("push: " + pushed.error().message);
      });
    producer.flush();
  }
  std::string name() const override { return "C++ client"; }
  std::size_t pop_many(Checklist& checklist, std::size_t window) override {
    return take(checklist, static_cast<std::uint32_t>(window));
  }
  void finish() override {
    if (riding_.empty()) return;
    for (const auto& settled : need(queue_.settle(riding_), "acknowledge")) need(queue_.judge(settled), "acknowledge");
    riding_.clear();
  }

 private:
  std::size_t take(Checklist& checklist, std::uint32_t most) {
    auto batch = need(consumer_.pop_batch(most, {}, riding_), "pop");
    for (const auto& settled : batch.settled) need(queue_.judge(settled), "acknowledge");
    riding_.clear();
    for (const auto& delivery : batch.deliveries) checklist.had(delivery.body);
    for (const auto& receipt : batch.receipts) riding_.push_back({fabriq::Settle::Kind::acknowledge, receipt, 0});
    return batch.deliveries.size();
  }
  std::unique_ptr<zht::Client> client_;
  fabriq::Queue queue_;
  fabriq::Producer producer_;
  fabriq::Consumer consumer_;
  std::vector<fabriq::Settle> riding_;
};

class Fabriq final : public System {
 public:
  explicit Fabriq(const bench::Arguments& arguments) {
    options_.cluster = arguments.option("listen", "");
    require(!options_.cluster.empty(), "fabriq needs --listen=HOST:PORT: every system is measured over TCP");
    options_.start_node = false;
    admin_ = connect();
  }
  void make_queue(const std::string& name) override { need(fabriq::Queue::create(*admin_, name, {}), "create"); }
  void drop_queue(const std::string& name) override {
    const auto info = need(need(fabriq::Queue::open(*admin_, name), "open").info(), "info");
    require(info.total.ready + info.total.leased == 0, "messages are left in the queue");
    need(fabriq::Queue::destroy(*admin_, name), "delete");
  }
  std::unique_ptr<Client> client(const std::string& queue) override {
    return std::make_unique<FabriqClient>(connect(), queue);
  }

 private:
  std::unique_ptr<zht::Client> connect() { return need(zht::connect(options_), "connect"); }
  zht::ClientOptions options_;
  std::unique_ptr<zht::Client> admin_;
};

// Peers, over a plain blocking socket
// ----------------------------------------------------------------------------------

class Wire {
 public:
  explicit Wire(const std::string& address) {
    const auto colon = address.rfind(':');
    addrinfo* found = nullptr;
    if (colon == std::string::npos ||
        ::getaddrinfo(address.substr(0, colon).c_str(), address.substr(colon + 1).c_str(), nullptr, &found) != 0)
      wrong("no address: " + address);
    fd_ = ::socket(found->ai_family, SOCK_STREAM, 0);
    const int connected = ::connect(fd_, found->ai_addr, found->ai_addrlen);
    ::freeaddrinfo(found);
    if (connected != 0) wrong("cannot connect to " + address);
    const int one = 1;
    ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  }
  ~Wire() { ::close(fd_); }
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  void send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent <= 0) wrong("the server closed the connection");
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
  }
  // Valid until the next call.
  std::string_view line() {
    while (true) {
      const auto end = in_.find("\r\n", from_);
      if (end != std::string::npos) {
        const std::string_view text(in_.data() + from_, end - from_);
        from_ = end + 2;
        return text;
      }
      fill();
    }
  }
  std::string_view bytes(std::size_t count, std::size_t behind = 2) {  // and the line end behind them
    while (in_.size() - from_ < count + behind) fill();
    const std::string_view text(in_.data() + from_, count);
    from_ += count + behind;
    return text;
  }

 private:
  void fill() {
    if (from_ > (1u << 20)) {
      in_.erase(0, from_);
      from_ = 0;
    }
    if (from_ == in_.size()) {
      in_.clear();
      from_ = 0;
    }
    char buffer[1 << 18];
    const ssize_t got = ::recv(fd_, buffer, sizeof buffer, 0);
    if (got < 0 && errno == EINTR) return;
    if (got <= 0) wrong("the server closed the connection");
    in_.append(buffer, static_cast<std::size_t>(got));
  }
  int fd_ = -1;
  std::string in_;
  std::size_t from_ = 0;
};

std::size_t number_in(std::string_view text) {
  std::size_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  require(error == std::errc() && end == text.data() + text.size(), "not a number: " + std::string(text.substr(0, 60)));
  return number;
}

// Sends `count` requests and has their answers, at most `window` on their way, half of them in a write: the server always has some.
void keep_full(std::size_t count, std::size_t window, const std::function<void(std::size_t)>& put, const std::function<void()>& flush,
               const std::function<void()>& answered) {
  const std::size_t half = std::max<std::size_t>(1, window / 2);
  for (std::size_t sent = 0, had = 0; had < count;) {
    while (sent < count && sent - had + half <= window) {
      for (std::size_t i = 0; i < half && sent < count; i++) put(sent++);
      flush();
    }
    for (std::size_t i = 0; i < half && had < sent; i++, had++) answered();
  }
}

class RedisClient final : public Client {
 public:
  RedisClient(const std::string& address, std::string queue, int number)
      : wire_(address), queue_(std::move(queue)), consumer_("c" + std::to_string(number)) {}
  void push(const std::string& body) override {
    add(body);
    flush();
    pushed();
  }
  bool pop(Checklist& checklist) override { return pop_many(checklist, 1) > 0; }
  void push_many(std::uint64_t first, std::size_t count, std::size_t size, std::size_t window) override {
    keep_full(count, window, [&](std::size_t i) { add(body_of(first + i, size)); }, [&] { flush(); }, [&] { pushed(); });
  }
  std::size_t pop_many(Checklist& checklist, std::size_t window) override {
    const std::size_t riding = settle();
    command({"XREADGROUP", "GROUP", "g", consumer_, "COUNT", std::to_string(window), "STREAMS", queue_, ">"});
    flush();
    settled(riding);
    const std::string_view head = wire_.line();
    if (head == "*-1") return 0;
    require(head == "*1", "redis: XREADGROUP: " + std::string(head));
    require(wire_.line() == "*2", "redis: one stream");
    string();
    const std::size_t count = array();
    for (std::size_t i = 0; i < count; i++) {
      require(array() == 2, "redis: an entry");
      ids_.emplace_back(string());
      require(array() == 2, "redis: one field");
      string();
      checklist.had(string());
    }
    return count;
  }
  void finish() override {
    const std::size_t riding = settle();
    flush();
    settled(riding);
  }
  void command(const std::vector<std::string>& words) {
    out_ += "*" + std::to_string(words.size()) + "\r\n";
    for (const std::string& word : words)
      (out_ += "$" + std::to_string(word.size()) + "\r\n").append(word).append("\r\n");
  }
  void flush() {
    wire_.send(out_);
    out_.clear();
  }
  std::string_view answer() { return wire_.line(); }

 private:
  // Puts the settlement of what was had before the next command; how many messages.
  std::size_t settle() {
    if (ids_.empty()) return 0;
    std::vector<std::string> ack{"XACK", queue_, "g"}, drop{"XDEL", queue_};
    ack.insert(ack.end(), ids_.begin(), ids_.end());
    drop.insert(drop.end(), ids_.begin(), ids_.end());
    command(ack);
    command(drop);
    const std::size_t count = ids_.size();
    ids_.clear();
    return count;
  }
  void settled(std::size_t count) {
    if (count == 0) return;
    require(wire_.line() == ":" + std::to_string(count), "redis: XACK");
    require(wire_.line() == ":" + std::to_string(count), "redis: XDEL");
  }
  void add(const std::string& body) {
    (out_ += "*5\r\n$4\r\nXADD\r\n$" + std::to_string(queue_.size()) + "\r\n" + queue_ + "\r\n$1\r\n*\r\n$1\r\nb\r\n$" +
             std::to_string(body.size()) + "\r\n")
        .append(body)
        .append("\r\n");
  }
  void pushed() {
    const std::string_view head = wire_.line();
    require(head.starts_with("$"), "redis: XADD: " + std::string(head));
    wire_.bytes(number_in(head.substr(1)));
  }
  std::string_view string() {
    const std::string_view head = wire_.line();
    require(head.starts_with("$"), "redis: a string: " + std::string(head));
    return wire_.bytes(number_in(head.substr(1)));
  }
  std::size_t array() {
    const std::string_view head = wire_.line();
    require(head.starts_with("*"), "redis: an array: " + std::string(head));
    return number_in(head.substr(1));
  }
  Wire wire_;
  std::string queue_, consumer_, out_;
  std::vector<std::string> ids_;  // had and not settled
};

class Redis final : public System {
 public:
  explicit Redis(const bench::Arguments& arguments) : address_(arguments.address) {}
  void make_queue(const std::string& name) override {
    RedisClient it(address_, name, 0);
    it.command({"XGROUP", "CREATE", name, "g", "0", "MKSTREAM"});
    it.flush();
    require(it.answer() == "+OK", "redis: XGROUP");
  }
  void drop_queue(const std::string& name) override {
    RedisClient it(address_, name, 0);
    it.command({"XLEN", name});
    it.command({"DEL", name});
    it.flush();
    require(it.answer() == ":0", "redis: messages are left");
    it.answer();
  }
  std::unique_ptr<Client> client(const std::string& queue) override {
    return std::make_unique<RedisClient>(address_, queue, ++clients_);
  }

 private:
  std::string address_;
  std::atomic<int> clients_ = 0;
};

class BeanstalkClient final : public Client {
 public:
  BeanstalkClient(const std::string& address, const std::string& queue) : wire_(address) {
    wire_.send("use " + queue + "\r\nwatch " + queue + "\r\nignore default\r\n");
    require(wire_.line() == "USING " + queue && wire_.line() == "WATCHING 2" && wire_.line() == "WATCHING 1",
            "beanstalkd: use and watch");
  }
  void push(const std::string& body) override {
    put(body);
    flush();
    require(wire_.line().starts_with("INSERTED "), "beanstalkd: put");
  }
  bool pop(Checklist& checklist) override { return pop_many(checklist, 1) > 0; }
  void push_many(std::uint64_t first, std::size_t count, std::size_t size, std::size_t window) override {
    keep_full(count, window, [&](std::size_t i) { put(body_of(first + i, size)); }, [&] { flush(); },
              [&] { require(wire_.line().starts_with("INSERTED "), "beanstalkd: put"); });
  }
  std::size_t pop_many(Checklist& checklist, std::size_t window) override {
    const std::size_t riding = std::exchange(riding_, 0);  // their deletes are in out_
    for (std::size_t i = 0; i < window; i++) out_ += "reserve-with-timeout 0\r\n";
    flush();
    settled(riding);
    std::size_t count = 0;
    for (std::size_t i = 0; i < window; i++) {
      const std::string head(wire_.line());
      if (head == "TIMED_OUT") continue;
      require(head.starts_with("RESERVED "), "beanstalkd: reserve: " + head);
      const auto space = head.rfind(' ');
      checklist.had(wire_.bytes(number_in(std::string_view(head).substr(space + 1))));
      out_ += "delete " + head.substr(9, space - 9) + "\r\n";
      count++;
    }
    riding_ = count;
    return count;
  }
  void finish() override {
    flush();
    settled(std::exchange(riding_, 0));
  }

 private:
  void settled(std::size_t count) {
    for (std::size_t i = 0; i < count; i++) require(wire_.line() == "DELETED", "beanstalkd: delete");
  }
  void put(const std::string& body) {
    (out_ += "put 1 0 60 " + std::to_string(body.size()) + "\r\n").append(body).append("\r\n");
  }
  void flush() {
    wire_.send(out_);
    out_.clear();
  }
  Wire wire_;
  std::string out_;
  std::size_t riding_ = 0;
};

class Beanstalkd final : public System {
 public:
  explicit Beanstalkd(const bench::Arguments& arguments) : address_(arguments.address) {}
  void make_queue(const std::string&) override {}
  void drop_queue(const std::string&) override {}
  std::unique_ptr<Client> client(const std::string& queue) override {
    return std::make_unique<BeanstalkClient>(address_, queue);
  }

 private:
  std::string address_;
};

// What echo_limit answers: a push with its 16 bytes, a pop with as many as a message has. Nobody keeps a message, so each pop ticks off
// the next one of those that were pushed.
struct Pushed {
  std::atomic<std::size_t> size = 0, count = 0, had = 0;
};

class LimitClient final : public Client {
 public:
  LimitClient(const std::string& address, Pushed& pushed) : wire_(address), pushed_(pushed) {}
  void push(const std::string& body) override {
    put(body);
    flush();
    wire_.bytes(kHead, 0);
  }
  bool pop(Checklist& checklist) override { return pop_many(checklist, 1) > 0; }
  void push_many(std::uint64_t first, std::size_t count, std::size_t size, std::size_t window) override {
    keep_full(count, window, [&](std::size_t i) { put(body_of(first + i, size)); }, [&] { flush(); }, [&] { wire_.bytes(kHead, 0); });
  }
  std::size_t pop_many(Checklist& checklist, std::size_t window) override {
    const std::size_t first = pushed_.had.fetch_add(window), all = pushed_.count, size = pushed_.size;
    const std::size_t count = first < all ? std::min(window, all - first) : 0;
    if (count == 0) return 0;
    head(kHead, kHead + count * size);
    flush();
    wire_.bytes(kHead + count * size, 0);
    for (std::size_t i = 0; i < count; i++) checklist.had(body_of(first + i, size));
    return count;
  }

 private:
  static constexpr std::size_t kHead = 16;
  void head(std::size_t size, std::size_t reply) {
    char bytes[kHead] = {};
    base::store(bytes, static_cast<std::uint32_t>(size));
    base::store(bytes + 4, static_cast<std::uint32_t>(reply));
    out_.append(bytes, kHead);
  }
  void put(const std::string& body) {
    head(kHead + body.size(), kHead);
    out_ += body;
    pushed_.size = body.size();
    ++pushed_.count;
  }
  void flush() {
    wire_.send(out_);
    out_.clear();
  }
  Wire wire_;
  Pushed& pushed_;
  std::string out_;
};

class Limit final : public System {
 public:
  explicit Limit(const bench::Arguments& arguments) : address_(arguments.address) {}
  void make_queue(const std::string&) override { pushed_.size = pushed_.count = pushed_.had = 0; }
  void drop_queue(const std::string&) override {}
  std::unique_ptr<Client> client(const std::string&) override { return std::make_unique<LimitClient>(address_, pushed_); }

 private:
  std::string address_;
  Pushed pushed_;
};

// The measurements
// -----------------------------------------------------------------------------------------------------

void closed_loop(System& system, const bench::Report& report, const std::string& kind, const std::string& label,
                 std::size_t size, std::size_t count) {
  const std::string queue = "closed-" + label;
  system.make_queue(queue);
  {
    auto client = system.client(queue);
    bench::Latencies pushes, pops;
    pushes.reserve(count);
    pops.reserve(count);
    Checklist checklist(count, size);
    for (std::size_t i = 0; i < count; i++) {
      const std::string body = body_of(i, size);
      bench::Stopwatch watch;
      client->push(body);
      pushes.add(watch.nanoseconds());
    }
    for (std::size_t i = 0; i < count; i++) {
      bench::Stopwatch watch;
      require(client->pop(checklist), "a message is missing");
      pops.add(watch.nanoseconds());
    }
    client->finish();
    require(checklist.count() == count, "messages are missing");
    const bench::Report told = report.with({.client = client->name(), .transport = "tcp", .connections = 1, .in_flight = 1});
    told.latency("push " + kind + label, pushes);
    told.latency("pop " + kind + label, pops);
  }
  system.drop_queue(queue);
}

void pipelined(System& system, const bench::Report& report, const std::string& label, std::size_t size,
               std::size_t count, std::size_t window) {
  const std::string queue = "pipelined-" + label;
  system.make_queue(queue);
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < kClients; i++) clients.push_back(system.client(queue));
  const auto all = [&](const std::function<void(Client&, std::size_t)>& work) {
    bench::Stopwatch watch;
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < clients.size(); i++) threads.emplace_back([&, i] { work(*clients[i], i); });
    for (auto& thread : threads) thread.join();
    return watch.seconds();
  };
  const std::size_t each = count / kClients;
  Checklist checklist(each * kClients, size);
  const double pushing = all([&](Client& client, std::size_t i) { client.push_many(i * each, each, size, window); });
  const double popping = all([&](Client& client, std::size_t) {
    while (client.pop_many(checklist, window) > 0) {
    }
    client.finish();
  });
  require(checklist.count() == each * kClients,
          "messages are missing: " + std::to_string(checklist.count()) + " of " + std::to_string(each * kClients));
  const bench::Report told = report.with({.client = clients[0]->name(), .transport = "tcp", .connections = kClients, .in_flight = window});
  told.row("push " + label + " pipelined", "msgs_per_s", static_cast<double>(each * kClients) / pushing);
  told.row("pop " + label + " pipelined", "msgs_per_s", static_cast<double>(each * kClients) / popping);
  clients.clear();
  system.drop_queue(queue);
}

}  // namespace

int main(int argc, char** argv) {
  const bench::Arguments arguments = bench::parse("queue", {"fabriq", "redis", "beanstalkd", "limit"}, argc, argv);
  const bench::Report report(arguments);
  std::unique_ptr<System> system;
  if (arguments.system == "fabriq")
    system = std::make_unique<Fabriq>(arguments);
  else if (arguments.system == "redis")
    system = std::make_unique<Redis>(arguments);
  else if (arguments.system == "beanstalkd")
    system = std::make_unique<Beanstalkd>(arguments);
  else
    system = std::make_unique<Limit>(arguments);
  const bool always = arguments.durability == "always";
  const std::string kind = always ? "always " : "";

  const std::string only = arguments.option("only", "");  // --only=1MB
  const auto wanted = [&](const std::string& label) { return only.empty() || only == label; };

  // Each push waits for a disk when it is to be safe at once.
  const std::size_t messages =
      always ? arguments.pick<std::size_t>(100, 1'000, 10'000) : arguments.pick<std::size_t>(200, 20'000, 50'000);
  if (wanted("50B")) closed_loop(*system, report, kind, "50B", 50, messages);
  if (wanted("1KB")) closed_loop(*system, report, kind, "1KB", 1'000, messages);
  if (wanted("1MB")) closed_loop(*system, report, kind, "1MB", 1'000'000, arguments.pick<std::size_t>(5, 40, 300));
  if (always) return 0;
  if (wanted("50B")) pipelined(*system, report, "50B", 50, arguments.pick<std::size_t>(1'600, 1'000'000, 2'000'000), 256);
  if (wanted("1KB")) pipelined(*system, report, "1KB", 1'000, arguments.pick<std::size_t>(1'600, 300'000, 600'000), 256);
  if (wanted("1MB")) pipelined(*system, report, "1MB", 1'000'000, arguments.pick<std::size_t>(16, 160, 800), 8);
  return 0;
}

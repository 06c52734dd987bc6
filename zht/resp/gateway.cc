#include "zht/resp/gateway.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <deque>
#include <mutex>
#include <unordered_map>

#include "zht/net/listen.h"
#include "zht/resp/commands.h"
#include "zht/resp/parser.h"

namespace zht::resp {

namespace {
constexpr std::size_t kMaxArgument = std::size_t{64} << 20;
constexpr std::size_t kMaxUnderWay = 10'000;
constexpr std::size_t kMaxUnread = std::size_t{64} << 20;
constexpr std::size_t kReadSize = std::size_t{64} << 10;
}  // namespace

class Gateway::Parts {
 public:
  Parts(Client& client, std::size_t max_connections) : client_(client), max_connections_(max_connections), buffer_(kReadSize, '\0') {
    loop_.end_of_turn([this] { end_turn(); });
  }
  ~Parts() { stop(); }

  base::Result<std::string> listen(const std::string& address) {
    TRY_LET(listening, net::listen_tcp(address));
    listener_ = std::make_unique<Listener>(*this, listening.descriptor);
    TRY(loop_.add(listening.descriptor, EPOLLIN, *listener_));
    return listening.address;
  }
  void run() {
    thread_ = std::thread([this] {
      pthread_setname_np(pthread_self(), "resp");
      loop_.run();
    });
  }
  void stop() {
    if (!thread_.joinable()) return;
    loop_.stop();
    thread_.join();
    connections_.clear();
    closed_.clear();
    listener_.reset();
  }

 private:
  // A command under way: its outcomes so far, and then its reply.
  struct Slot {
    Plan plan;
    std::vector<Outcome> outcomes;
    std::size_t left = 0;
  };
  struct Connection final : net::Ready {
    Connection(Parts& p, std::uint64_t n, int d) : parts(p), number(n), descriptor(d), parser(kMaxArgument) {}
    ~Connection() override { ::close(descriptor); }
    void on_ready(std::uint32_t events) override { parts.on_connection(*this, events); }
    Parts& parts;
    const std::uint64_t number;
    const int descriptor;
    Parser parser;
    std::deque<Slot> slots;        // oldest first
    std::uint64_t first_slot = 0;  // number of slots.front()
    std::string out;
    std::size_t sent = 0;
    std::uint32_t interest = EPOLLIN;
    bool blocked = false, ended = false, touched = false;  // ended: nothing more is read; closes when all is sent
  };
  struct Listener final : net::Ready {
    Listener(Parts& p, int d) : parts(p), descriptor(d) {}
    ~Listener() override { ::close(descriptor); }
    void on_ready(std::uint32_t) override { parts.accept(); }
    Parts& parts;
    const int descriptor;
  };
  struct Arrived {
    std::uint64_t connection, slot;
    std::size_t index;
    Outcome outcome;
  };

  void accept() {
    while (true) {
      const int descriptor = ::accept4(listener_->descriptor, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
      if (descriptor < 0) return;
      if (connections_.size() >= max_connections_) {
        ::close(descriptor);
        continue;
      }
      const int on = 1;
      ::setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      auto connection = std::make_unique<Connection>(*this, next_++, descriptor);
      if (loop_.add(descriptor, EPOLLIN, *connection)) connections_.emplace(connection->number, std::move(connection));
    }
  }

  void on_connection(Connection& connection, std::uint32_t events) {
    if (events & EPOLLOUT) {
      connection.blocked = false;
      touch(connection);
    }
    if (!(events & (EPOLLIN | EPOLLHUP | EPOLLERR))) return;
    const ssize_t read = ::recv(connection.descriptor, buffer_.data(), buffer_.size(), 0);
    if (read < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (read <= 0 || connection.ended) return close(connection);
    connection.parser.feed(std::string_view(buffer_).substr(0, static_cast<std::size_t>(read)));
    take_commands(connection);
  }

  void take_commands(Connection& connection) {
    touch(connection);
    std::vector<std::string> command;
    while (!connection.ended && connection.slots.size() < kMaxUnderWay) {
      switch (connection.parser.next(command)) {
        case Parser::Step::more: return;
        case Parser::Step::broken: {
          Slot slot;
          add_error(slot.plan.reply, "ERR " + connection.parser.error());
          connection.slots.push_back(std::move(slot));
          connection.ended = true;
          return;
        }
        case Parser::Step::command: start(connection, command); break;
      }
    }
  }

  void start(Connection& connection, const std::vector<std::string>& command) {
    const std::uint64_t number = connection.first_slot + connection.slots.size();
    Slot& slot = connection.slots.emplace_back();
    slot.plan = plan(command, client_.partition_count(), [this] { return info(); });
    commands_++;
    if (slot.plan.close) connection.ended = true;
    slot.left = slot.plan.operations.size();
    slot.outcomes.resize(slot.left);
    auto operations = std::move(slot.plan.operations);
    const auto timeout = slot.plan.timeout;
    for (std::size_t i = 0; i < operations.size(); i++)
      client_.submit(std::move(operations[i]),
                     [this, connection_number = connection.number, number, i](Outcome outcome) {
                       arrive({connection_number, number, i, std::move(outcome)});
                     },
                     timeout);
  }

  // On the client's thread. The loop is woken once for all that arrive until it looks.
  void arrive(Arrived arrived) {
    bool wake = false;
    {
      const std::lock_guard lock(mutex_);
      wake = arrived_.empty();
      arrived_.push_back(std::move(arrived));
    }
    if (wake) loop_.post([this] { take_arrived(); });
  }

  void take_arrived() {
    std::vector<Arrived> all;
    {
      const std::lock_guard lock(mutex_);
      all.swap(arrived_);
    }
    for (Arrived& one : all) {
      const auto found = connections_.find(one.connection);
      if (found == connections_.end()) continue;
      Connection& connection = *found->second;
      Slot& slot = connection.slots[one.slot - connection.first_slot];
      slot.outcomes[one.index] = std::move(one.outcome);
      if (--slot.left == 0) touch(connection);
    }
  }

  void touch(Connection& connection) {
    if (!std::exchange(connection.touched, true)) touched_.push_back(connection.number);
  }

  void end_turn() {
    // Writing makes room, which may let more commands in, which touches again.
    while (!touched_.empty())
      for (std::uint64_t number : std::exchange(touched_, {})) {
        const auto found = connections_.find(number);
        if (found == connections_.end()) continue;
        found->second->touched = false;
        write_replies(*found->second);
      }
    closed_.clear();
  }

  void write_replies(Connection& connection) {
    while (!connection.slots.empty() && connection.slots.front().left == 0) {
      Slot& slot = connection.slots.front();
      if (slot.plan.render) slot.plan.render(slot.outcomes, connection.out);
      else connection.out += slot.plan.reply;
      connection.slots.pop_front();
      connection.first_slot++;
    }
    while (connection.sent < connection.out.size() && !connection.blocked) {
      const ssize_t wrote = ::send(connection.descriptor, connection.out.data() + connection.sent,
                                   connection.out.size() - connection.sent, MSG_NOSIGNAL);
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote < 0 && errno != EAGAIN) return close(connection);
      if (wrote < 0) connection.blocked = true;
      else connection.sent += static_cast<std::size_t>(wrote);
    }
    if (connection.sent == connection.out.size()) {
      connection.out.clear();
      if (connection.out.capacity() > (std::size_t{1} << 20)) connection.out.shrink_to_fit();
      connection.sent = 0;
      if (connection.ended && connection.slots.empty()) return close(connection);
    }
    // What was left unread in the parser while too much was under way.
    if (connection.parser.buffered() > 0 && !connection.ended && connection.slots.size() < kMaxUnderWay / 2 && !connection.touched)
      take_commands(connection);
    const bool reads = !connection.ended && connection.slots.size() < kMaxUnderWay && connection.out.size() - connection.sent < kMaxUnread;
    const std::uint32_t wanted = (reads ? std::uint32_t{EPOLLIN} : 0u) | (connection.blocked ? std::uint32_t{EPOLLOUT} : 0u);
    if (std::exchange(connection.interest, wanted) != wanted) loop_.change(connection.descriptor, wanted, connection);
  }

  void close(Connection& connection) {
    loop_.remove(connection.descriptor, connection);
    const auto found = connections_.find(connection.number);
    closed_.push_back(std::move(found->second));
    connections_.erase(found);
  }

  std::string info() const {
    return "# Server\r\nredis_version:7.0.0\r\nserver_name:zht\r\nredis_mode:standalone\r\n# Clients\r\nconnected_clients:" +
           std::to_string(connections_.size()) + "\r\n# Stats\r\ntotal_commands_processed:" + std::to_string(commands_) + "\r\n";
  }

  Client& client_;
  const std::size_t max_connections_;
  net::EventLoop loop_;
  std::unique_ptr<Listener> listener_;
  std::unordered_map<std::uint64_t, std::unique_ptr<Connection>> connections_;
  std::vector<std::unique_ptr<Connection>> closed_;
  std::vector<std::uint64_t> touched_;
  std::uint64_t next_ = 1, commands_ = 0;
  std::string buffer_;
  std::mutex mutex_;  // guards arrived_
  std::vector<Arrived> arrived_;
  std::thread thread_;
};

Gateway::Gateway(Client& client, std::size_t max_connections) : parts_(std::make_unique<Parts>(client, max_connections)) {}
Gateway::~Gateway() = default;
base::Result<std::string> Gateway::listen(const std::string& address) { return parts_->listen(address); }
void Gateway::run() { parts_->run(); }
void Gateway::stop() { parts_->stop(); }

}  // namespace zht::resp

#include "zht/resp/gateway.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <deque>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "zht/net/acceptor.h"
#include "zht/net/listen.h"
#include "zht/resp/commands.h"
#include "zht/resp/parser.h"

namespace zht::resp {

namespace {
constexpr std::size_t kReadSize = std::size_t{64} << 10;
// Of one connection.
constexpr std::size_t kMaxUnderWay = 10'000;                // commands
constexpr std::size_t kMaxUnread = std::size_t{64} << 20;   // bytes of replies
constexpr std::size_t kMaxCommand = std::size_t{64} << 20;  // bytes of one command, all its arguments together
// Of all connections together; past it each has one command under way at a time, and none with a large half-read one is
// kept.
constexpr std::size_t kMaxUnproven = std::size_t{16} << 10;  // bytes of commands of a connection that has not authenticated
constexpr std::size_t kUnprovenRead = std::size_t{8} << 10;
constexpr std::size_t kProofsAtOnce = 4;             // pieces of TLS handshakes a turn
constexpr auto kProof = std::chrono::seconds(10);
constexpr std::size_t kMaxHeld = std::size_t{1} << 30;
constexpr int kCrowded = 16;
constexpr auto kKeepalive = std::chrono::seconds(300);  // a peer that is silent so long is asked if it lives
constexpr auto kStuck = std::chrono::seconds(120);      // a peer that reads nothing so long is closed
}  // namespace

class Gateway::Parts {
 public:
  Parts(Client& client, AskNode ask_node, std::size_t max_connections, const security::Prover* prover, net::TlsPort tls)
      : client_(client), ask_node_(std::move(ask_node)), max_connections_(max_connections), prover_(prover), tls_(std::move(tls)),
        buffer_(kReadSize, '\0') {
    loop_.end_of_turn([this] { end_turn(); });
    loop_.every(std::chrono::seconds(2), [this] { close_stuck(); });
  }
  ~Parts() { stop(); }

  base::Result<std::string> listen(const std::string& address) {
    TRY_LET(listening, net::listen_tcp(address));
    const std::string got = listening.address;
    listener_ = std::make_unique<net::Acceptor>(loop_, std::move(listening), [this](int descriptor) { take(descriptor, true); });
    TRY(listener_->begin());
    return got;
  }
  base::Result<void> listen_unix(const std::string& path) {
    TRY_LET(listening, net::listen_unix(path));
    unix_listener_ = std::make_unique<net::Acceptor>(loop_, std::move(listening), [this](int descriptor) { take(descriptor, false); });
    return unix_listener_->begin();
  }
  void run() {
    thread_ = std::thread([this] {
      pthread_setname_np(pthread_self(), "resp");
      loop_.run();
    });
  }
  Counts counts() const { return {open_.load(std::memory_order_relaxed), commands_.load(std::memory_order_relaxed)}; }
  void stop() {
    if (!thread_.joinable()) return;
    loop_.stop();
    thread_.join();
    connections_.clear();
    closed_.clear();
    listener_.reset();
    if (unix_listener_) ::unlink(unix_listener_->listening().unix_path.c_str());
    unix_listener_.reset();
  }

 private:
  // A command under way: the outcomes of its present step so far, then its reply.
  struct Slot {
    Plan plan;
    std::vector<Outcome> outcomes;
    std::size_t left = 0;
    std::size_t held = 0;  // bytes of its outcomes
    int protocol = 2;      // when it was sent: a HELLO after it changes nothing for it
  };
  struct Connection final : net::Ready {
    Connection(Parts& p, std::uint64_t n, int d, bool tcp)
        : parts(p), number(n), descriptor(d), parser(kMaxValueSize, kMaxCommand) {
      session.id = n;
      secured = tcp && p.tls_;
    }
    bool proven() const { return session.let_in() && (!secured || (tls && tls->ready())); }
    ~Connection() override { ::close(descriptor); }
    void on_ready(std::uint32_t events) override { parts.on_connection(*this, events); }
    Parts& parts;
    const std::uint64_t number;
    const int descriptor;
    bool secured = false;               // bytes go through `tls`, which is there from the first ones on
    std::optional<net::TlsSocket> tls;
    Session session;
    Parser parser;
    std::deque<Slot> slots;        // oldest first
    std::uint64_t first_slot = 0;  // number of slots.front()
    std::deque<Command> follow;    // come before what the parser has
    std::string out;
    std::size_t sent = 0;
    std::size_t held = 0;  // bytes of outcomes in slots
    std::size_t largest =
        4 << 20;  // of the outcomes lately: what the next one may be; at first so much that few are tried
    std::chrono::steady_clock::time_point progress = std::chrono::steady_clock::now();
    std::uint32_t interest = EPOLLIN;
    // ended: nothing more is read; closes when all is sent. starved: commands wait for room, not for bytes.
    bool spoke = false;
    bool blocked = false, ended = false, touched = false, starved = false;
  };
  struct Place {  // that an outcome is for
    std::uint64_t connection = 0, slot = 0;
    std::size_t index = 0;
  };
  struct Arrived {
    Place place;
    Outcome outcome;
    std::optional<Facts> facts;
  };

  void take(int descriptor, bool tcp) {
    if (!tcp && !net::is_of_this_user(descriptor)) return void(::close(descriptor));
    accepted_++;
    if (connections_.size() - unproven_.size() >= max_connections_) {
      say(descriptor, "-ERR max number of clients reached\r\n");
      ::close(descriptor);
      refused_++;
      return;
    }
    const int on = 1, idle = static_cast<int>(kKeepalive.count());
    ::setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    ::setsockopt(descriptor, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    ::setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    auto connection = std::make_unique<Connection>(*this, next_++, descriptor, tcp);
    connection->session.peer = tcp ? peer_of(descriptor) : "unix";
    connection->session.prover = tcp ? prover_ : nullptr;
    if (!connection->proven())
      if (const auto victim = unproven_.in_the_way()) close(*connections_.at(*victim));
    if (!loop_.add(descriptor, EPOLLIN, *connection)) return;
    if (!connection->proven()) unproven_.add(connection->number, std::chrono::steady_clock::now());
    connections_.emplace(connection->number, std::move(connection));
  }

  // After it has said something: whether it belongs to those that are proven (RESET takes that back).
  void look_at_proof(const Connection& connection) {
    if (connection.proven()) unproven_.remove(connection.number);
    else if (!unproven_.contains(connection.number)) unproven_.add(connection.number, std::chrono::steady_clock::now());
  }

  static std::string peer_of(int descriptor) {
    sockaddr_storage from{};
    socklen_t size = sizeof from;
    ::getpeername(descriptor, reinterpret_cast<sockaddr*>(&from), &size);
    char host[INET6_ADDRSTRLEN] = "?";
    if (from.ss_family == AF_INET) {
      const auto& four = reinterpret_cast<const sockaddr_in&>(from);
      ::inet_ntop(AF_INET, &four.sin_addr, host, sizeof host);
      return std::string(host) + ":" + std::to_string(ntohs(four.sin_port));
    }
    const auto& six = reinterpret_cast<const sockaddr_in6&>(from);
    ::inet_ntop(AF_INET6, &six.sin6_addr, host, sizeof host);
    return "[" + std::string(host) + "]:" + std::to_string(ntohs(six.sin6_port));
  }

  void on_connection(Connection& connection, std::uint32_t events) {
    if (events & EPOLLOUT) {
      connection.blocked = false;
      touch(connection);
    }
    if (!(events & (EPOLLIN | EPOLLHUP | EPOLLERR))) return;
    if (connection.secured)
      return unproven_.contains(connection.number) ? knocking_.push_back(connection.number) : receive_secured(connection);
    const std::size_t most = unproven_.contains(connection.number) ? kUnprovenRead : buffer_.size();
    const ssize_t read = ::recv(connection.descriptor, buffer_.data(), most, 0);
    if (read < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (read <= 0 || connection.ended) return close(connection);
    const std::string_view bytes = std::string_view(buffer_).substr(0, static_cast<std::size_t>(read));
    if (!std::exchange(connection.spoke, true) && net::is_tls(bytes)) {
      say(connection.descriptor, "-ERR this port speaks no TLS\r\n");
      return close(connection);
    }
    take_bytes(connection, bytes);
  }

  void receive_secured(Connection& connection) {
    std::string plain;
    if (!connection.tls) connection.tls.emplace(tls_, connection.descriptor);  // it says something
    const auto read = connection.tls->read(buffer_, plain);
    using Read = net::TlsSocket::Read;
    if (read == Read::nothing) return;
    if (read == Read::plain)
      say(connection.descriptor, "-ERR this port speaks TLS; with redis-cli: --tls --cacert CA --cert CERTIFICATE --key KEY\r\n");
    if (read == Read::plain || read == Read::failed || connection.ended) return close(connection);
    const std::uint64_t number = connection.number;
    touch(connection);  // the handshake may have more to say
    look_at_proof(connection);
    if (!plain.empty()) take_bytes(connection, plain);
    // What it asked before it ended is answered.
    if (read == Read::ended && connections_.contains(number)) connection.ended = true;
  }

  // A last word to one who cannot be served.
  static void say(int descriptor, std::string_view words) {
    (void)!::send(descriptor, words.data(), words.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    ::shutdown(descriptor, SHUT_WR);
  }

  void take_bytes(Connection& connection, std::string_view bytes) {
    unread_ -= connection.parser.buffered();
    connection.parser.feed(bytes);
    unread_ += connection.parser.buffered();
    // Who has not said who he is has no long words to say.
    if (!connection.session.let_in() && connection.parser.buffered() > kMaxUnproven) return close(connection);
    const std::uint64_t number = connection.number;
    take_commands(connection);
    if (const auto found = connections_.find(number); found == connections_.end()) return;
    look_at_proof(connection);
    if (unread_ > kMaxHeld && connection.parser.buffered() > (std::size_t{1} << 20)) return close(connection);
  }

  bool has_room(const Connection& connection) const {
    if (connection.slots.empty()) return true;
    if (connection.slots.back().plan.barrier || connection.slots.size() >= kMaxUnderWay) return false;
    if (held_ > kMaxHeld) return false;
    return connection.held + connection.out.size() - connection.sent + connection.slots.size() * connection.largest <
           kMaxUnread;
  }

  void take_commands(Connection& connection) {
    touch(connection);
    Command command;
    connection.starved = false;
    while (!connection.ended) {
      if (!has_room(connection)) {
        connection.starved = true;
        return;
      }
      if (!connection.follow.empty()) {
        command = std::move(connection.follow.front());
        connection.follow.pop_front();
        start(connection, std::move(command));
        continue;
      }
      unread_ -= connection.parser.buffered();
      const Parser::Step step = connection.parser.next(command);
      unread_ += connection.parser.buffered();
      if (step == Parser::Step::more) return;
      if (step == Parser::Step::broken) {
        Reply(connection.slots.emplace_back().plan.reply, connection.session.protocol)
            .error("ERR " + connection.parser.error());
        connection.ended = true;
        return;
      }
      start(connection, std::move(command));
    }
  }

  void start(Connection& connection, Command command) {
    const std::uint64_t number = connection.first_slot + connection.slots.size();
    commands_.store(commands_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    Slot& slot = connection.slots.emplace_back();
    slot.protocol = connection.session.protocol;
    slot.plan = plan(connection.session, std::move(command), client_.partition_count());
    if (slot.plan.close) connection.ended = true;
    for (auto at = slot.plan.follow.rbegin(); at != slot.plan.follow.rend(); ++at)
      connection.follow.push_front(std::move(*at));
    begin_step(connection, slot, number);
  }

  // Slots stay where they are in the deque while others are added and taken at its ends.
  void begin_step(Connection& connection, Slot& slot, std::uint64_t number) {
    auto operations = std::move(slot.plan.operations);
    const auto timeout = slot.plan.timeout;
    slot.left = operations.size() + (slot.plan.asks_node ? 1 : 0);
    slot.outcomes.clear();
    slot.outcomes.resize(operations.size());
    if (slot.plan.asks_node)
      ask_node_([this, connection_number = connection.number, number](Facts facts) {
        arrive({{connection_number, number, 0}, {}, std::move(facts)});
      });
    for (std::size_t i = 0; i < operations.size(); i++) {
      if (operations[i].kind != OpKind::callback) {
        wanted_.push_back(std::move(operations[i]));
        wanted_by_.push_back({connection.number, number, i});
        continue;
      }
      client_.submit(
          std::move(operations[i]),
          [this, connection_number = connection.number, number, i](Outcome outcome) {
            arrive({{connection_number, number, i}, std::move(outcome), {}});
          },
          timeout);
    }
  }

  // All that a turn has brought, of all connections, together: in the node's own process that is one round of each
  // instance, executed on this thread, and one write of its log. What comes of it (a SCAN's next step) has
  // the next turn, so that no command keeps the others waiting. Where changes have to be synced first (durability always) they
  // are answered when they are, and the loop goes on; only for a lone connection the sync is waited for.
  void run_wanted() {
    if (wanted_.empty()) return;
    const auto places = std::make_shared<std::vector<Place>>(std::exchange(wanted_by_, {}));
    for (const Place& one : *places)
      if (std::exchange(last_, one.connection) != one.connection) crowded_ = kCrowded;
    const bool lone = crowded_ == 0;
    if (crowded_ > 0) crowded_--;
    client_.call_each(
        std::exchange(wanted_, {}),
        [this, places, here = std::this_thread::get_id()](std::size_t index, Outcome outcome) {
          Arrived one{(*places)[index], std::move(outcome), {}};
          if (std::this_thread::get_id() == here) take(std::move(one));
          else arrive(std::move(one));
        },
        lone);
  }

  // On the client's or the node's thread. The loop is woken once for all that arrive until it looks.
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
    for (Arrived& one : all) take(std::move(one));
  }

  void take(Arrived one) {
    const auto found = connections_.find(one.place.connection);
    if (found == connections_.end()) return;
    Connection& connection = *found->second;
    Slot& slot = connection.slots[one.place.slot - connection.first_slot];
    if (one.facts) {
      facts_ = std::move(*one.facts);
    } else {
      const std::size_t size = size_of(one.outcome);
      slot.held += size;
      connection.held += size;
      held_ += size;
      connection.largest = std::max<std::size_t>(size, connection.largest - connection.largest / 4);
      slot.outcomes[one.place.index] = std::move(one.outcome);
    }
    if (--slot.left == 0) end_step(connection, slot, one.place.slot);
  }

  static std::size_t size_of(const Outcome& outcome) {
    std::size_t size = sizeof outcome + outcome.value.size() + outcome.entries.size() * 64;
    for (const Outcome& part : outcome.outcomes) size += size_of(part);
    return size;
  }

  void end_step(Connection& connection, Slot& slot, std::uint64_t number) {
    touch(connection);
    if (slot.plan.next) {
      const bool barrier = slot.plan.barrier;
      slot.plan = slot.plan.next(slot.outcomes);
      slot.plan.barrier |= barrier;
      release(connection, slot);
      return begin_step(connection, slot, number);
    }
    // WATCH's end decides what the next EXEC does, so it comes before anything later is planned.
    if (slot.plan.asks_node || slot.plan.barrier) {
      render(slot, slot.plan.reply);
      slot.plan.render = nullptr;
      slot.plan.barrier = false;
      release(connection, slot);
    }
  }

  void render(Slot& slot, std::string& out) {
    if (slot.plan.asks_node) {
      facts_.connections = connections_.size();
      facts_.commands = commands_;
      facts_.accepted = accepted_;
      facts_.refused = refused_;
      facts_.max_connections = max_connections_;
    }
    Reply reply(out, slot.protocol);
    if (slot.plan.render)
      slot.plan.render(slot.outcomes, facts_, reply);
    else
      reply.raw(slot.plan.reply);
  }

  void release(Connection& connection, Slot& slot) {
    connection.held -= slot.held;
    held_ -= slot.held;
    slot.held = 0;
    slot.outcomes.clear();
  }

  void touch(Connection& connection) {
    if (!std::exchange(connection.touched, true)) touched_.push_back(connection.number);
  }

  // As FrameServer::hear_proofs().
  void hear_proofs() {
    if (knocking_.empty()) return;
    std::vector<std::uint64_t> all = std::exchange(knocking_, {});
    const auto rank = [this](std::uint64_t number) {
      const auto found = connections_.find(number);
      return std::pair(found != connections_.end() && found->second->tls.has_value(), number);
    };
    const auto most = static_cast<std::ptrdiff_t>(std::min(all.size(), kProofsAtOnce));
    std::partial_sort(all.begin(), all.begin() + most, all.end(), [&](auto a, auto b) { return rank(a) > rank(b); });
    for (auto one = all.begin(); one != all.begin() + most; ++one)
      if (const auto found = connections_.find(*one); found != connections_.end()) receive_secured(*found->second);
  }

  void end_turn() {
    hear_proofs();
    run_wanted();
    // Writing makes room, which may let more commands in, which touches again.
    while (!touched_.empty())
      for (std::uint64_t number : std::exchange(touched_, {})) {
        const auto found = connections_.find(number);
        if (found == connections_.end()) continue;
        found->second->touched = false;
        write_replies(*found->second);
      }
    closed_.clear();
    open_.store(connections_.size(), std::memory_order_relaxed);
    if (!wanted_.empty()) loop_.post([] {});
  }

  void write_replies(Connection& connection) {
    while (!connection.slots.empty() && connection.slots.front().left == 0) {
      Slot& slot = connection.slots.front();
      if (slot.plan.render)
        render(slot, connection.out);
      else
        connection.out += slot.plan.reply;
      release(connection, slot);
      connection.slots.pop_front();
      connection.first_slot++;
    }
    if (connection.tls) {
      const auto wrote = connection.blocked ? net::TlsSocket::Wrote::blocked : connection.tls->write(connection.out, connection.sent);
      if (wrote == net::TlsSocket::Wrote::failed) return close(connection);
      connection.blocked = wrote == net::TlsSocket::Wrote::blocked;
      if (connection.tls->moved()) connection.progress = std::chrono::steady_clock::now();
    }
    while (!connection.tls && connection.sent < connection.out.size() && !connection.blocked) {
      const ssize_t wrote = ::send(connection.descriptor, connection.out.data() + connection.sent,
                                   connection.out.size() - connection.sent, MSG_NOSIGNAL);
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote < 0 && errno != EAGAIN) return close(connection);
      if (wrote < 0) {
        connection.blocked = true;
      } else {
        connection.sent += static_cast<std::size_t>(wrote);
        if (connection.out.size() > kReadSize) connection.progress = std::chrono::steady_clock::now();
      }
    }
    if (connection.sent == connection.out.size()) {
      connection.out.clear();
      if (connection.out.capacity() > (std::size_t{1} << 20)) connection.out.shrink_to_fit();
      connection.sent = 0;
      if (connection.ended && connection.slots.empty() && !connection.blocked) {
        if (connection.tls) connection.tls->end();
        return close(connection);
      }
    }
    if (connection.starved && !connection.ended && !connection.touched && has_room(connection))
      take_commands(connection);
    const bool reads = !connection.ended && has_room(connection);
    const std::uint32_t wanted =
        (reads ? std::uint32_t{EPOLLIN} : 0u) | (connection.blocked ? std::uint32_t{EPOLLOUT} : 0u);
    if (std::exchange(connection.interest, wanted) != wanted) loop_.change(connection.descriptor, wanted, connection);
  }

  void close_stuck() {
    const auto now = std::chrono::steady_clock::now();
    std::vector<Connection*> stuck;
    for (const auto& [number, connection] : connections_) {
      if (!connection->blocked)
        connection->progress = now;
      else if (now - connection->progress > kStuck)
        stuck.push_back(connection.get());
    }
    for (Connection* connection : stuck) close(*connection);
    for (const std::uint64_t number : unproven_.older_than(now - kProof)) close(*connections_.at(number));
  }

  void close(Connection& connection) {
    loop_.remove(connection.descriptor, connection);
    unproven_.remove(connection.number);
    const auto found = connections_.find(connection.number);
    held_ -= connection.held;
    unread_ -= connection.parser.buffered();
    closed_.push_back(std::move(found->second));
    connections_.erase(found);
  }

  Client& client_;
  const AskNode ask_node_;
  const std::size_t max_connections_;
  const security::Prover* const prover_;
  const net::TlsPort tls_;
  net::EventLoop loop_;
  std::unique_ptr<net::Acceptor> listener_, unix_listener_;
  net::Unproven unproven_{kMostUnproven};
  std::vector<std::uint64_t> knocking_;  // in this turn: unproven ones that said something over TLS
  std::unordered_map<std::uint64_t, std::unique_ptr<Connection>> connections_;
  std::vector<std::unique_ptr<Connection>> closed_;
  std::vector<std::uint64_t> touched_;
  std::uint64_t next_ = 1, accepted_ = 0, refused_ = 0;
  std::atomic<std::uint64_t> commands_ = 0, open_ = 0;  // written by the loop's thread alone
  std::size_t held_ = 0;                                // bytes of outcomes, all connections
  std::size_t unread_ = 0;                              // bytes that parsers hold, all connections
  Facts facts_;
  std::string buffer_;
  std::vector<Operation> wanted_;  // of this turn
  std::vector<Place> wanted_by_;   // as many
  std::uint64_t last_ = 0;         // connection whose operation was executed last
  int crowded_ = 0;                // turns, for which there is thought to be more than one connection
  std::mutex mutex_;               // guards arrived_
  std::vector<Arrived> arrived_;
  std::thread thread_;
};

Gateway::Gateway(Client& client, AskNode ask_node, std::size_t max_connections, const security::Prover* prover, net::TlsPort tls)
    : parts_(std::make_unique<Parts>(client, std::move(ask_node), max_connections, prover, std::move(tls))) {}
Gateway::~Gateway() = default;
base::Result<std::string> Gateway::listen(const std::string& address) { return parts_->listen(address); }
base::Result<void> Gateway::listen_unix(const std::string& path) { return parts_->listen_unix(path); }
void Gateway::run() { parts_->run(); }
void Gateway::stop() { parts_->stop(); }
Gateway::Counts Gateway::counts() const { return parts_->counts(); }

}  // namespace zht::resp

#include "zht/client/engine.h"

#include <algorithm>
#include <asio.hpp>
#include <atomic>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <thread>
#include <unordered_map>

#include "zht/client/silence.h"
#include "zht/support/log.h"

namespace zht::client {
namespace {

using namespace std::chrono_literals;
using Socket = asio::generic::stream_protocol::socket;
using base::Duration;
using base::Time;

// Between tries, doubling; for as long as a failover takes no longer than kBrisk, which is what a client may then be late.
constexpr Duration kFirstPause = 1ms, kBrisk = 16ms, kLongestPause = 100ms;
constexpr unsigned kBriskTries = 20;
constexpr Duration kSweepPrecision = 1ms;
constexpr Duration kCallbackGrace =
    500ms;  // the server says when a callback's time is over; this is for when it cannot
constexpr Duration kLongestPatience = 30s;  // with a silent instance; doubling from client::kPatience
constexpr Duration kLookAround = 250ms;      // after so much silence another node is asked who leads now
constexpr std::size_t kReadSize = 256 << 10;

Duration pause_after(unsigned failures) {
  if (failures >= kBriskTries) return kLongestPause;
  return std::min<Duration>(kFirstPause * (1u << std::min(failures, 10u)), kBrisk);
}

Time now() { return base::SystemClock().now(); }

}  // namespace

class Engine::Loop {
 public:
  Loop(Session& session, Options options)
      : session_(session),
        options_(std::move(options)),
        work_(asio::make_work_guard(io_)),
        timer_(io_),
        table_(session.table()) {
    lookups_->io = &io_;
  }

  ~Loop() {
    const std::lock_guard lock(lookups_->mutex);
    lookups_->io = nullptr;
  }
  void run() { io_.run(); }

  // ---- any thread ----
  void submit(std::unique_ptr<Pending>* pendings, std::size_t count, bool on_thread) {
    bool wake = false;
    {
      std::unique_lock lock(mutex_);
      for (std::size_t i = 0; i < count; i++) {
        if (is_waiter(*pendings[i])) {
          // Whoever waits for a condition may do so for hours: others are not held up by it.
          if (waiters_ >= options_.max_waiters)
            pendings[i]->ready = failed(Code::no_space, std::to_string(waiters_) + " callbacks wait already; ClientOptions::max_waiters");
          waiters_++;
        } else if (!on_thread && outstanding_ >= options_.max_in_flight) {
          if (wake) asio::post(io_, [this] { turn(); });
          wake = false;
          room_.wait(lock, [this] { return outstanding_ < options_.max_in_flight; });
        }
        if (!is_waiter(*pendings[i])) outstanding_++;
        inbox_.push_back(std::move(pendings[i]));
        wake = wake || !std::exchange(woken_, true);
      }
    }
    if (wake && !on_thread) asio::post(io_, [this] { turn(); });
  }
  bool has_requests() const {
    const std::lock_guard lock(mutex_);
    return outstanding_ + waiters_ > 0;
  }
  void cancel(RequestNumber name) {
    {
      const std::lock_guard lock(mutex_);
      cancelled_.push_back(name);
      if (std::exchange(woken_, true)) return;
    }
    asio::post(io_, [this] { turn(); });
  }
  void table_changed() {
    asio::post(io_, [this] {
      adopt_table();
      turn();
    });
  }
  void stop() {
    asio::post(io_, [this] { end(); });
  }

 private:
  struct Slot {
    std::unique_ptr<Pending> pending;
    std::uint32_t generation = 1;  // never 0: request 0 is what a connection itself is refused with
    enum class State : std::uint8_t { free, waiting, sent, resting } state = State::free;
    PartitionId partition{0};
    std::uint32_t instance = 0;  // id; waiting, sent
    unsigned tries = 0;
    std::uint64_t epoch = 0;  // it was last asked in
    Time next_try{};          // resting
    std::uint64_t order = 0;  // of submission
    Error last{Code::unavailable, ""};
  };

  // Threads that look names up, and outlive this when the name's servers are silent.
  using Found = Result<std::vector<SocketAddress>>;
  struct Lookups {
    std::mutex mutex;
    asio::io_context* io = nullptr;      // guarded by mutex; null: nobody waits any more
    std::set<std::string> under_way;     // guarded by mutex
    std::map<std::string, Found> found;  // guarded by mutex; each is used once: names move
  };
  static std::optional<Found> take_found(Lookups& lookups, const Address& address) {
    auto taken = lookups.found.extract(address.text());
    if (taken.empty()) return std::nullopt;
    return std::move(taken.mapped());
  }
  const std::shared_ptr<Lookups> lookups_ = std::make_shared<Lookups>();

  // The connection to one instance.
  struct Link {
    explicit Link(asio::io_context& io, std::uint32_t id) : socket(io), instance(id) {}
    Socket socket;
    std::uint32_t instance;
    enum class State : std::uint8_t { down, connecting, up, resting } state = State::down;
    std::uint64_t connection = 0;  // counts connections, so that a late handler of an old one is recognised
    unsigned failures = 0;
    Time until{};                        // connecting: gives up; resting: tries again
    std::vector<std::uint32_t> waiting;  // slots to send when it is up
    std::string out;                     // encoded requests
    std::size_t out_at = 0;
    std::unique_ptr<security::Guard> guard;  // none: bytes go and come as they are
    std::string sealed;                      // with a guard: for the wire
    std::size_t sealed_at = 0;
    bool writing = false, dirty = false;
    std::string in;  // received bytes in [in_from, in_to)
    std::size_t in_from = 0, in_to = 0;
    bool recorded = false;  // has carried requests that the store records
    std::string trouble;
    std::size_t sent = 0;       // slots that are sent here
    std::size_t awaited = 0;    // ... of which these are no callbacks: something should be heard soon
    Time quiet_since{};         // awaited > 0: when it last said something, or was first asked
    Time heard{};               // when it last said something, or was made
    Duration patience = kPatience;
    Time looked{};              // when a newer table was last asked for because of its silence
  };

  // ---- the loop's thread ----

  // One round: what was submitted is encoded, then every connection with something to say writes it at once.
  void turn() {
    for (;;) {
      {
        const std::lock_guard lock(mutex_);
        taken_.swap(inbox_);
        unwanted_.swap(cancelled_);
        woken_ = !taken_.empty() || !unwanted_.empty();
        if (!woken_) break;
      }
      if (ended_) {
        for (auto& pending : taken_) finish(*pending, failed(Code::unavailable, "the client is closing"));
        taken_.clear();
        unwanted_.clear();
        continue;
      }
      floor_of_ = nullptr;
      for (auto& pending : taken_) accept(std::move(pending));
      taken_.clear();
      for (const RequestNumber name : unwanted_) end_early(name);
      unwanted_.clear();
      flush();
    }
    flush();
  }

  void flush() {
    // A write may fail, and failing may make other links dirty: they are found by the next look.
    while (!dirty_.empty()) {
      Link* link = dirty_.back();
      dirty_.pop_back();
      link->dirty = false;
      write(*link);
    }
  }

  static Outcome failed(Code code, std::string message) {
    Outcome outcome;
    outcome.code = code;
    outcome.message = std::move(message);
    return outcome;
  }

  static bool is_waiter(const Pending& pending) { return pending.operation.kind == OpKind::callback; }

  void finish(Pending& pending, Outcome outcome) {
    if (pending.number.sequence != 0) session_.end(pending.number);
    {
      const std::lock_guard lock(mutex_);
      if (is_waiter(pending)) waiters_--;
      else if (outstanding_-- == options_.max_in_flight) room_.notify_all();
    }
    pending.completion(std::move(outcome));
  }

  void accept(std::unique_ptr<Pending> pending) {
    if (pending->ready) {
      finish(*pending, *std::move(pending->ready));
      return;
    }
    std::uint32_t index;
    if (free_.empty()) {
      index = static_cast<std::uint32_t>(slots_.size());
      slots_.emplace_back();
    } else {
      index = free_.back();
      free_.pop_back();
    }
    Slot& slot = slots_[index];
    slot.pending = std::move(pending);
    if (slot.pending->name != 0) named_[slot.pending->name] = index;
    if (slot.pending->number.sequence == 0 && is_recorded(slot.pending->operation.kind))
      slot.pending->number = session_.begin(now());
    slot.partition = client::partition_of(slot.pending->operation, table_->partition_count);
    slot.tries = 0;
    slot.order = ++orders_;
    slot.last = Error{Code::unavailable, ""};
    if (slot.pending->maybe && now() >= expiry(slot)) {  // a synchronous call whose time ran out while it waited
      complete(index, expired(slot));
      return;
    }
    wake_at(expiry(slot));
    route(index);
  }

  Time expiry(const Slot& slot) const {
    return slot.pending->deadline + (slot.pending->operation.kind == OpKind::callback ? kCallbackGrace : Duration(0));
  }

  void route(std::uint32_t index) {
    Slot& slot = slots_[index];
    const Owner& owner = table_->owner_of(slot.partition);
    slot.instance = table_->instances[slot.pending->operation.eventual ? choose(slot) : owner.instance].id;
    Link& link = link_to(slot.instance);
    if (link.state == Link::State::up) {
      send(link, index, owner.epoch);
      return;
    }
    slot.state = Slot::State::waiting;
    link.waiting.push_back(index);
    if (link.state == Link::State::down) connect(link);
  }

  // For an eventual lookup: the one whose turn it is, or the next after it that may be reached.
  std::uint32_t choose(Slot& slot) {
    const std::uint32_t turns = table_->turns(slot.partition);
    if (turns > 1) {
      slot.next_try = now() + kLookAround * (1u << std::min(slot.tries, 6u));
      wake_at(slot.next_try);
    }
    for (std::uint32_t i = 0; i < turns; i++, slot.pending->turn++) {
      const auto link = links_.find(table_->instances[table_->asked(slot.partition, slot.pending->turn)].id);
      if (link == links_.end() || link->second->state != Link::State::resting) break;
    }
    return table_->asked(slot.partition, slot.pending->turn);
  }

  // It has waited long enough for one copy, and there are others. Who was asked may still answer.
  void ask_another(std::uint32_t index) {
    Slot& slot = slots_[index];
    if (slot.state == Slot::State::sent) unsent(slot);
    slot.tries++;
    slot.pending->turn++;
    options_.want_table();
    route(index);
  }
  bool has_others(const Slot& slot) const {
    return slot.pending->operation.eventual && (slot.state == Slot::State::sent || slot.state == Slot::State::waiting) &&
           table_->turns(slot.partition) > 1;
  }

  void send(Link& link, std::uint32_t index, std::uint64_t epoch) {
    Slot& slot = slots_[index];
    const bool callback = slot.pending->operation.kind == OpKind::callback;
    slot.state = Slot::State::sent;
    slot.epoch = epoch;
    session_.counts().requests.fetch_add(1, std::memory_order_relaxed);
    link.sent++;
    if (!callback && link.awaited++ == 0) {
      link.quiet_since = now();
      wake_at(std::min(limit_of(link), link.quiet_since + kLookAround));
    }
    link.recorded = link.recorded || slot.pending->number.sequence != 0;
    std::uint64_t timeout_ms = 0;
    if (callback) {
      const auto left = std::chrono::ceil<Millis>(slot.pending->deadline - now()).count();
      timeout_ms = static_cast<std::uint64_t>(std::max<std::int64_t>(left, 1));
    }
    const Session::Number number = slot.pending->number;
    if (number.sequence != 0 &&
        number.identity != floor_of_) {  // asked for once a round: it need not be the very newest
      floor_of_ = number.identity;
      floor_ = session_.floor(*number.identity);
    }
    wire::encode_request(link.out, slot.pending->operation,
                         {.request = std::uint64_t{slot.generation} << 32 | index,
                          .client = number.sequence != 0 ? number.identity->id : 0,
                          .sequence = number.sequence,
                          .floor = number.sequence != 0 ? floor_ : 0,
                          .epoch = epoch,
                          .partition = slot.partition,
                          .timeout_ms = timeout_ms,
                          .retry = slot.pending->maybe});
    if (!link.dirty && !link.writing) {
      link.dirty = true;
      dirty_.push_back(&link);
    }
  }

  Link& link_to(std::uint32_t instance) {
    auto& link = links_[instance];
    if (!link) link = std::make_unique<Link>(io_, instance);
    return *link;
  }

  void connect(Link& link) {
    const auto instance = std::find_if(table_->instances.begin(), table_->instances.end(),
                                       [&](const Table::Instance& one) { return one.id == link.instance; });
    if (instance == table_->instances.end()) {
      link.trouble = "instance " + std::to_string(link.instance) + " is not in the membership table";
      rest(link);
      return;
    }
    if (instance->addresses.empty()) {
      link.trouble = link.instance == kNobody ? "nobody leads the partition" : "instance " + std::to_string(link.instance) + " has no known address";
      rest(link);
      return;
    }
    const Address& address = instance->addresses[link.failures % instance->addresses.size()];
    link.state = Link::State::connecting;
    link.until = now() + options_.connect_timeout;
    wake_at(link.until);
    const std::uint64_t connection = ++link.connection;
    const std::size_t turn_of = link.failures / instance->addresses.size();
    const auto go_on = [this, &link, address, connection, turn_of](const std::vector<SocketAddress>& found) {
      open(link, address, connection, found[turn_of % found.size()]);
    };
    if (const auto literal = resolve_literal(address); !literal.empty()) return go_on(literal);
    // A name. Looking it up may take as long as its servers are silent, and other instances' answers do not wait for that. What comes
    // when this try is over is for the next one.
    std::optional<Found> known;
    {
      const std::lock_guard lock(lookups_->mutex);
      known = take_found(*lookups_, address);
      if (!known && !lookups_->under_way.insert(address.text()).second) return;  // of an earlier try
    }
    if (known) return went(link, address, *known, go_on);
    std::thread([this, &link, address, connection, go_on, lookups = lookups_] {
      auto resolved = resolve(address);
      const std::lock_guard lock(lookups->mutex);
      lookups->under_way.erase(address.text());
      lookups->found.insert_or_assign(address.text(), std::move(resolved));
      if (lookups->io == nullptr) return;  // the engine has ended
      asio::post(*lookups->io, [this, &link, connection, go_on, address] {
        if (ended_ || connection != link.connection || link.state != Link::State::connecting) return;
        std::optional<Found> here;
        {
          const std::lock_guard taking(lookups_->mutex);
          here = take_found(*lookups_, address);
        }
        if (here) went(link, address, *here, go_on);
        turn();
      });
    }).detach();
  }

  void went(Link& link, const Address& address, const Found& found, const std::function<void(const std::vector<SocketAddress>&)>& go_on) {
    if (found && !found->empty()) return go_on(*found);
    link.trouble = found ? address.text() + ": no such address" : found.error().message;
    rest(link);
  }

  void open(Link& link, const Address& address, std::uint64_t connection, const SocketAddress& target) {
    make_way();
    const asio::generic::stream_protocol::endpoint endpoint(&target.storage, target.size, 0);
    link.socket = Socket(io_);
    link.socket.async_connect(endpoint, [this, &link, connection, address](asio::error_code error) {
      if (ended_ || connection != link.connection) return;
      if (error) {
        link.trouble = address.text() + ": " + error.message();
        rest(link);
      } else {
        prove(link, address);
      }
      turn();
    });
  }

  // Both sides show that they know the secret, where there is one; the link goes on connecting meanwhile.
  void prove(Link& link, const Address& address) {
    asio::error_code ignored;
    link.socket.non_blocking(true, ignored);
    if (!address.is_unix()) make_lively(link.socket.native_handle());
    link.out.clear();
    link.sealed.clear();
    link.out_at = link.sealed_at = link.in_from = link.in_to = 0;
    link.guard.reset();
    if (address.is_unix() || !address.opener) return connected(link, address);
    link.guard = std::make_unique<security::Guard>(address.opener, security::Side::asker);
    link.guard->begin(link.sealed);
    if (!send_proof(link, address)) return;
    prove_later(link, address);
  }

  // What the guard says while it proves fits any socket's buffer.
  bool send_proof(Link& link, const Address& address) {
    asio::error_code error;
    if (!link.sealed.empty()) asio::write(link.socket, asio::buffer(link.sealed), error);
    link.sealed.clear();
    if (!error) return true;
    link.trouble = address.text() + ": " + error.message();
    rest(link);
    return false;
  }

  void prove_later(Link& link, const Address& address) {
    const std::uint64_t connection = link.connection;
    link.socket.async_wait(Socket::wait_read, [this, &link, connection, address](asio::error_code error) {
      if (ended_ || connection != link.connection) return;
      char buffer[4096];
      const std::size_t got = error ? 0 : link.socket.read_some(asio::buffer(buffer), error);
      std::string plain;
      if (error == asio::error::would_block) {
        prove_later(link, address);
      } else if (error) {
        link.trouble = address.text() + ": " + (error == asio::error::eof ? "connection closed by the other side" : error.message());
        rest(link);
      } else if (const auto received = link.guard->receive({buffer, got}, plain, link.sealed); !received) {
        link.trouble = address.text() + ": " + received.error().message;
        rest(link);
      } else if (send_proof(link, address)) {
        if (!link.guard->open()) prove_later(link, address);
        else connected(link, address, plain);
      }
      turn();
    });
  }

  void connected(Link& link, const Address& address, const std::string& first = {}) {
    if (link.guard && link.guard->transparent()) link.guard.reset();
    link.in = first;
    link.in_to = first.size();
    log_.debug("connected", {{"instance", link.instance}, {"address", address.text()}});
    link.state = Link::State::up;
    link.heard = now();
    link.failures = 0;
    link.trouble.clear();
    link.writing = false;
    link.sent = link.awaited = 0;
    receive_later(link);
    std::vector<std::uint32_t> waiting;
    waiting.swap(link.waiting);
    std::sort(waiting.begin(), waiting.end(),
              [&](std::uint32_t a, std::uint32_t b) { return slots_[a].order < slots_[b].order; });
    for (const std::uint32_t index : waiting)
      if (slots_[index].state == Slot::State::waiting && slots_[index].instance == link.instance) route(index);
  }

  // Nobody there: a pause before the next try, and perhaps the table has changed.
  void rest(Link& link) {
    close(link);
    link.state = Link::State::resting;
    link.until = now() + pause_after(link.failures++);
    wake_at(link.until);
    options_.want_table();
    std::vector<std::uint32_t> waiting;
    waiting.swap(link.waiting);
    for (const std::uint32_t index : waiting) {
      Slot& slot = slots_[index];
      if (slot.state != Slot::State::waiting || slot.instance != link.instance) continue;
      if (has_others(slot)) route(index);
      else link.waiting.push_back(index);
    }
  }

  void close(Link& link) {
    link.connection++;
    asio::error_code ignored;
    link.socket.close(ignored);
    link.out.clear();
    link.out_at = 0;
    link.guard.reset();
    link.sealed.clear();
    link.sealed_at = 0;
    link.writing = false;
  }

  // An established connection is lost: its requests will be sent again, and may have been executed.
  void broken(Link& link, std::string why) {
    if (link.state != Link::State::up) return;
    log_.debug("connection lost", {{"instance", link.instance}, {"why", why}});
    link.trouble = std::move(why);
    for (std::uint32_t index = 0; index < slots_.size(); index++) {
      Slot& slot = slots_[index];
      if (slot.state != Slot::State::sent || slot.instance != link.instance) continue;
      slot.pending->maybe = true;
      slot.state = Slot::State::waiting;
      link.waiting.push_back(index);
    }
    rest(link);
  }

  // One connection more: where there are too many, the one that has been unused for longest goes.
  void make_way() {
    std::size_t up = 0;
    Link* unused = nullptr;
    for (auto& [id, link] : links_) {
      if (link->state != Link::State::up) continue;
      up++;
      if (link->sent == 0 && (unused == nullptr || link->quiet_since < unused->quiet_since)) unused = link.get();
    }
    if (up < options_.max_connections || unused == nullptr) return;
    close(*unused);
    unused->state = Link::State::down;
  }

  void write(Link& link) {
    if (link.guard && link.state == Link::State::up) {
      if (const auto sealed = link.guard->send(Bytes(link.out).substr(link.out_at), link.sealed); !sealed)
        return broken(link, sealed.error().message);
      link.out.clear();
      link.out_at = 0;
    }
    std::string& out = link.guard ? link.sealed : link.out;
    std::size_t& at = link.guard ? link.sealed_at : link.out_at;
    while (link.state == Link::State::up && !link.writing && at < out.size()) {
      asio::error_code error;
      const std::size_t sent = link.socket.write_some(asio::buffer(out.data() + at, out.size() - at), error);
      at += sent;
      if (error == asio::error::would_block) {
        link.writing = true;
        const std::uint64_t connection = link.connection;
        link.socket.async_wait(Socket::wait_write, [this, &link, connection](asio::error_code failure) {
          if (ended_ || connection != link.connection) return;
          link.writing = false;
          link.quiet_since = now();  // it takes what it is sent
          if (failure)
            broken(link, failure.message());
          else
            write(link);
          turn();
        });
      } else if (error) {
        broken(link, error.message());
        return;
      }
    }
    if (at == out.size()) {
      out.clear();
      at = 0;
      if (out.capacity() > (std::size_t{8} << 20)) std::string().swap(out);
    } else if (at > (std::size_t{4} << 20)) {
      out.erase(0, at);
      at = 0;
    }
  }

  void receive_later(Link& link) {
    const std::uint64_t connection = link.connection;
    link.socket.async_wait(Socket::wait_read, [this, &link, connection](asio::error_code error) {
      if (ended_ || connection != link.connection) return;
      if (error)
        broken(link, error.message());
      else
        receive(link);
      if (!ended_ && link.state == Link::State::up && connection == link.connection) receive_later(link);
      turn();
    });
  }

  void receive(Link& link) {
    const std::uint64_t connection = link.connection;
    // A bounded number of reads, so that one busy connection does not keep the others waiting.
    for (int reads = 0; reads < 8; reads++) {
      if (!link.guard) make_room(link);
      asio::error_code error;
      const std::size_t room = link.guard ? sealed_in_.size() : link.in.size() - link.in_to;
      char* const to = link.guard ? sealed_in_.data() : link.in.data() + link.in_to;
      const std::size_t got = link.socket.read_some(asio::buffer(to, room), error);
      if (error == asio::error::would_block) return;
      if (error) {
        broken(link, error == asio::error::eof ? "connection closed by the other side" : error.message());
        return;
      }
      if (!link.guard) {
        link.in_to += got;
      } else if (!unwrap(link, got)) {
        return;
      }
      link.quiet_since = link.heard = now();
      link.patience = kPatience;
      while (link.in_from < link.in_to) {
        const auto frame =
            wire::next_frame(Bytes(link.in).substr(link.in_from, link.in_to - link.in_from), wire::kMaxFrameSize);
        if (!frame) {
          broken(link, frame.error().message);
          return;
        }
        if (!*frame) break;
        link.in_from += (*frame)->size;
        on_frame(link, **frame);
        if (link.connection != connection) return;  // closed while the frame was handled
      }
      if (got < room) return;  // the socket is empty
    }
  }

  // Through TLS: what it held comes behind what `in` holds.
  bool unwrap(Link& link, std::size_t got) {
    link.in.resize(link.in_to);
    link.in.erase(0, std::exchange(link.in_from, 0));
    const auto received = link.guard->receive({sealed_in_.data(), got}, link.in, link.sealed);
    link.in_to = link.in.size();
    if (received) return true;
    broken(link, received.error().message);
    return false;
  }

  static void make_room(Link& link) {
    if (link.in_from == link.in_to) link.in_from = link.in_to = 0;
    if (link.in.size() < kReadSize) link.in.resize(kReadSize);
    if (link.in.size() - link.in_to >= kReadSize / 4) return;
    link.in.erase(0, link.in_from);
    link.in_to -= link.in_from;
    link.in_from = 0;
    std::size_t wanted = std::max(kReadSize, link.in_to + kReadSize / 4);
    if (link.in_to >= wire::kHeaderSize)
      wanted =
          std::max(wanted, std::min<std::size_t>(wire::kHeaderSize + base::load<std::uint32_t>(link.in.data() + 12),
                                                 wire::kMaxFrameSize));
    link.in.resize(wanted);
  }

  void on_frame(Link& link, const wire::Frame& frame) {
    if (frame.request == 0) {  // the other side could not read what we sent, and closes
      broken(link, "refused by the other side: " + std::string(frame.key));
      return;
    }
    const auto index = static_cast<std::uint32_t>(frame.request);
    if (index >= slots_.size() || slots_[index].generation != frame.request >> 32) return;  // given up meanwhile
    Slot& slot = slots_[index];
    // An eventual lookup may wait for another's connection by now.
    if (slot.state != Slot::State::sent && !(slot.state == Slot::State::waiting && slot.pending->operation.eventual)) return;
    if (slot.instance != link.instance) {
      // It was asked here before it was asked elsewhere. Only what was executed is an answer: a refusal of an older epoch binds
      // nobody who leads now.
      const bool executed = frame.status == 0 || !is_recorded(slot.pending->operation.kind);
      if (!executed || frame.status == wire::kStatusRetry || frame.status == static_cast<std::uint8_t>(Code::unavailable)) return;
    }
    if (frame.status != 0 && frame.status != wire::kStatusRetry && frame.epoch < slot.epoch && is_recorded(slot.pending->operation.kind))
      return;  // the same, on a connection that is used again
    if (slot.state == Slot::State::sent) unsent(slot);
    if (frame.status == wire::kStatusRetry && (frame.flags & wire::kRetry) != 0) slot.pending->maybe = true;
    session_.counts().replies.fetch_add(1, std::memory_order_relaxed);
    // Who leads knows everything that the others know.
    const bool was_follower = slot.pending->operation.eventual && frame.status == wire::kStatusRetry &&
                              slot.instance != table_->instances[table_->owner_of(slot.partition).instance].id;
    if (was_follower) slot.pending->turn = 0;
    if (frame.status == wire::kStatusRetry && redirected(index, frame)) return;
    if (was_follower) return route(index);
    if (frame.status == wire::kStatusRetry || frame.status == static_cast<std::uint8_t>(Code::unavailable)) {
      slot.last.message = frame.key.empty() ? "the partition is moving" : std::string(frame.key);
      slot.state = Slot::State::resting;
      slot.next_try = now() + pause_after(slot.tries++);
      if (slot.pending->operation.eventual) slot.pending->turn = slot.tries;
      wake_at(slot.next_try);
      if (frame.status == wire::kStatusRetry) options_.want_table();
      return;
    }
    auto outcome = wire::decode_outcome(frame);
    complete(index, outcome ? *std::move(outcome) : failed(outcome.error().code, outcome.error().message));
  }

  // Whether the refusal said who leads now: then that one is asked, at once.
  bool redirected(std::uint32_t index, const wire::Frame& frame) {
    session_.counts().redirects.fetch_add(1, std::memory_order_relaxed);
    Slot& slot = slots_[index];
    if ((frame.flags & wire::kPresent) == 0 || frame.partition != static_cast<std::uint32_t>(slot.partition)) return false;
    session_.learn(frame.partition, static_cast<std::uint32_t>(frame.second), frame.epoch);
    table_ = session_.table();
    // Known before, perhaps through another request's refusal: what counts is that it is newer than what was asked.
    if (table_->owner_of(slot.partition).epoch <= slot.epoch) return false;
    options_.want_table();
    route(index);
    return true;
  }

  // A sent request is no longer waited for on its connection. Leaves the slot's state to the caller.
  void unsent(const Slot& slot) {
    const auto link = links_.find(slot.instance);
    if (link == links_.end() || link->second->sent == 0) return;
    link->second->sent--;
    if (slot.pending->operation.kind != OpKind::callback && link->second->awaited > 0) link->second->awaited--;
  }

  // Whoever asked for it wants it no more.
  void end_early(RequestNumber name) {
    const auto found = named_.find(name);
    if (found == named_.end()) return;
    const std::uint32_t index = found->second;
    slots_[index].last.message = "cancelled";
    Outcome outcome = slots_[index].pending->operation.kind == OpKind::callback ? failed(Code::timeout, "cancelled")
                                                                                : expired(slots_[index]);
    if (slots_[index].state == Slot::State::sent) unsent(slots_[index]);
    complete(index, std::move(outcome));
  }

  void complete(std::uint32_t index, Outcome outcome) {
    Slot& slot = slots_[index];
    if (slot.pending->name != 0) named_.erase(slot.pending->name);
    const std::unique_ptr<Pending> pending = std::move(slot.pending);
    slot.state = Slot::State::free;
    slot.generation = std::max(slot.generation + 1, 1u);
    free_.push_back(index);
    finish(*pending, std::move(outcome));  // may submit, but that only fills the inbox
  }

  // Its time is over. It may have happened when it was sent and no definite answer came to any sending.
  Outcome expired(const Slot& slot) {
    const Operation& operation = slot.pending->operation;
    const bool sent = slot.state == Slot::State::sent || slot.pending->maybe;
    std::string why = slot.last.message;
    if (why.empty())
      if (const auto link = links_.find(slot.instance); link != links_.end()) why = link->second->trouble;
    if (operation.kind == OpKind::callback && sent) return failed(Code::timeout, "the condition did not hold in time");
    if (sent && is_recorded(operation.kind))
      return failed(Code::timeout, "no answer in time, the change may have happened" + (why.empty() ? "" : ": " + why));
    return failed(Code::unavailable, (why.empty() ? "no answer in time" : why) + (sent ? "" : "; nothing was changed"));
  }

  // ---- time ----

  void wake_at(Time time) {
    if (time >= wake_) return;
    wake_ = std::max(time, last_sweep_ + kSweepPrecision);
    timer_.expires_at(wake_);
    timer_.async_wait([this](asio::error_code error) {
      if (error || ended_) return;
      sweep();
      turn();
    });
  }

  Time limit_of(const Link& link) const { return silence_.limit(link.quiet_since, link.patience, link.heard); }

  // Looks at every slot and link. Rare: only when the earliest of their times has come.
  void sweep() {
    last_sweep_ = now();
    const Time time = last_sweep_;
    wake_ = Time::max();
    Time next = Time::max();
    floor_of_ = nullptr;
    for (auto& [id, link] : links_) {
      if (link->state == Link::State::up && link->awaited > 0) {
        if (limit_of(*link) <= time) {
          const auto silent = std::chrono::duration_cast<Millis>(time - link->quiet_since).count();
          // Others may have been looked at already.
          if (silence_.found(link->quiet_since, time)) next = std::min(next, time + Silence::kImpatience);
          link->patience = std::min<Duration>(2 * link->patience, kLongestPatience);
          broken(*link, "silent for " + std::to_string(silent) + " ms");
        } else {
          // Perhaps another leads by now: whoever is asked will know.
          const Time look = std::max(link->quiet_since, link->looked) + kLookAround;
          if (look <= time) {
            link->looked = time;
            options_.want_table();
          }
          next = std::min({next, limit_of(*link), std::max(link->quiet_since, link->looked) + kLookAround});
        }
      }
      const bool timed = link->state == Link::State::connecting || link->state == Link::State::resting;
      if (!timed) continue;
      if (link->until > time) {
        next = std::min(next, link->until);
      } else if (link->state == Link::State::connecting) {
        link->trouble = "no connection within " + std::to_string(options_.connect_timeout.count()) + " ms";
        rest(*link);
      } else if (std::any_of(link->waiting.begin(), link->waiting.end(), [&, id = id](std::uint32_t index) {
                   return slots_[index].state == Slot::State::waiting && slots_[index].instance == id;
                 })) {
        connect(*link);
      } else {
        link->waiting.clear();
        link->state = Link::State::down;
      }
    }
    for (std::uint32_t index = 0; index < slots_.size(); index++) {
      if (slots_[index].state == Slot::State::free) continue;
      if (expiry(slots_[index]) <= time) {
        Outcome outcome = expired(slots_[index]);
        if (slots_[index].state == Slot::State::sent) unsent(slots_[index]);
        complete(index, std::move(outcome));
        continue;
      }
      if (slots_[index].state == Slot::State::resting && slots_[index].next_try <= time) route(index);
      if (has_others(slots_[index])) {
        if (slots_[index].next_try <= time) ask_another(index);
        next = std::min(next, slots_[index].next_try);
      }
      next = std::min(next, expiry(slots_[index]));
      if (slots_[index].state == Slot::State::resting) next = std::min(next, slots_[index].next_try);
    }
    wake_at(next);
  }

  void adopt_table() {
    table_ = session_.table();
    // Whoever waits for an instance asks the one that owns the partition now, and asks at once.
    for (auto& [id, link] : links_) {
      link->waiting.clear();
      if (link->state == Link::State::resting) {
        link->state = Link::State::down;
        link->failures = 0;
      }
    }
    for (std::uint32_t index = 0; index < slots_.size(); index++) {
      Slot& slot = slots_[index];
      const Owner& owner = table_->owner_of(slot.partition);
      if (slot.state == Slot::State::waiting || (slot.state == Slot::State::resting && owner.epoch > slot.epoch)) {
        route(index);
      } else if (slot.state == Slot::State::sent && owner.epoch > slot.epoch && !slot.pending->operation.eventual &&
                 table_->instances[owner.instance].id != slot.instance) {
        // Its owner may be dead, or deposed and cut off: the new one is asked, under the same identity.
        unsent(slot);
        slot.pending->maybe = true;
        route(index);
      }
    }
    flush();
  }

  void end() {
    turn();
    ended_ = true;
    bool abandoned = false;
    for (std::uint32_t index = 0; index < slots_.size(); index++) {
      if (slots_[index].state == Slot::State::free) continue;
      abandoned = true;
      Outcome outcome = expired(slots_[index]);
      outcome.message = "the client was closed; " + outcome.message;
      complete(index, std::move(outcome));
    }
    turn();  // what completions have submitted
    for (auto& [id, link] : links_) {
      // What was given up may still arrive; the store must then recognise it.
      if (link->state == Link::State::up && link->recorded && !abandoned && link->out_at == link->out.size()) {
        std::string goodbye;
        wire::encode_goodbye(goodbye, session_.id());
        asio::error_code ignored;
        std::string sealed;
        if (link->guard && link->sealed.empty() && link->guard->send(goodbye, sealed)) goodbye = sealed;
        link->socket.write_some(asio::buffer(goodbye), ignored);
      }
      close(*link);
    }
    timer_.cancel();
    work_.reset();
  }

  Session& session_;
  const Options options_;
  const support::Log log_{"zht.client"};
  asio::io_context io_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  asio::steady_timer timer_;
  Time wake_ = Time::max(), last_sweep_{};
  Silence silence_;
  std::shared_ptr<const Table> table_;
  const Identity* floor_of_ = nullptr;  // whose floor_ is, in this round
  std::uint64_t floor_ = 0, orders_ = 0;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_;
  std::map<std::uint32_t, std::unique_ptr<Link>> links_;  // by instance id; never removed
  std::vector<Link*> dirty_;
  std::vector<std::unique_ptr<Pending>> taken_;
  std::vector<RequestNumber> unwanted_;
  std::unordered_map<RequestNumber, std::uint32_t> named_;  // slots that can be cancelled
  std::string sealed_in_ = std::string(std::size_t{64} << 10, '\0');  // scratch: what came over TLS
  bool ended_ = false;

  mutable std::mutex mutex_;
  std::condition_variable room_;
  std::vector<std::unique_ptr<Pending>> inbox_;
  std::vector<RequestNumber> cancelled_;
  std::size_t outstanding_ = 0;  // callbacks not counted
  std::size_t waiters_ = 0;      // callbacks
  bool woken_ = false;  // a turn is coming
};

Engine::Engine(Session& session, Options options) : loop_(std::make_unique<Loop>(session, std::move(options))) {
  thread_ = std::thread([this] { loop_->run(); });
}

Engine::~Engine() {
  loop_->stop();
  thread_.join();
}

void Engine::submit(std::unique_ptr<Pending> pending) { loop_->submit(&pending, 1, on_thread()); }
void Engine::submit_all(std::vector<std::unique_ptr<Pending>> pendings) {
  loop_->submit(pendings.data(), pendings.size(), on_thread());
}
void Engine::cancel(RequestNumber name) { loop_->cancel(name); }
void Engine::table_changed() { loop_->table_changed(); }
bool Engine::has_requests() const { return loop_->has_requests(); }

}  // namespace zht::client

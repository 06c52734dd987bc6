#include "zht/client/network_client.h"

#include <cstdlib>
#include <map>

#include "novoht/base/random.h"
#include "zht/client/control.h"
#include "zht/client/known_secrets.h"
#include "zht/client/local_node.h"
#include "zht/support/log.h"
#include "zht/support/paths.h"

namespace zht {
namespace client {
namespace {

using namespace std::chrono_literals;
using base::Time;

const support::Log& logger() {
  static const support::Log log("zht.client");
  return log;
}

constexpr auto kLookAgain = 10s;         // a table this old is asked for again when it is used
constexpr auto kSilenceBeforeStart = 1s;  // a local node nobody answers for is started again after this

Time now() { return base::SystemClock().now(); }

Outcome failed(const Error& error) {
  Outcome outcome;
  outcome.code = error.code;
  outcome.message = error.message;
  return outcome;
}

}  // namespace

NetworkClient::NetworkClient(ClientOptions options, Source source, std::shared_ptr<const Table> table)
    : options_(std::move(options)),
      source_(std::move(source)),
      partition_count_(table->partition_count),
      max_value_size_(table->max_value_size),
      session_(std::move(table), std::max<std::size_t>(options_.max_connections, 1)),
      looked_ms_(std::chrono::duration_cast<Millis>(now().time_since_epoch()).count()) {}

NetworkClient::~NetworkClient() {
  {
    const std::lock_guard lock(finder_mutex_);
    closing_ = true;
    finder_wanted_.notify_all();
  }
  // The finder uses the engine, and the engine wakes the finder.
  if (finder_.joinable()) finder_.join();
  engine_.reset();
  if (!session_.may_say_goodbye()) return;
  for (auto& [instance, channel] : session_.last_channels()) {
    wire::encode_goodbye(channel->out(), session_.id());
    if (!channel->send_only(now() + 10ms)) logger().debug("no goodbye", {{"instance", instance}});
  }
}

Engine& NetworkClient::engine() {
  std::call_once(engine_once_, [this] {
    engine_ = std::make_unique<Engine>(
        session_, Engine::Options{options_.connect_timeout, std::max<std::size_t>(options_.max_in_flight, 1), options_.max_waiters,
                                  std::max<std::size_t>(options_.max_connections, 1), [this] { want_table(); }});
    engine_seen_ = engine_.get();
  });
  return *engine_;
}

std::unique_ptr<Pending> NetworkClient::prepare(Operation&& operation, Completion&& completion, Millis timeout) {
  auto pending = std::make_unique<Pending>();
  if (auto valid = validate(operation, partition_count_, max_value_size_); !valid)
    pending->ready = failed(valid.error());
  pending->operation = std::move(operation);
  pending->completion = std::move(completion);
  if (pending->operation.eventual && !pending->ready) {
    const auto table = session_.table();
    pending->turn = table->best_turn(client::partition_of(pending->operation, partition_count_), ++eventual_lookups_);
  }
  const Time time = now();
  pending->deadline = time + (timeout.count() > 0 ? timeout : options_.timeout);
  const std::int64_t time_ms = std::chrono::duration_cast<Millis>(time.time_since_epoch()).count();
  if (std::int64_t looked = looked_ms_; time_ms - looked > Millis(kLookAgain).count() && looked_ms_.compare_exchange_strong(looked, time_ms))
    want_table();
  return pending;
}

void NetworkClient::submit(Operation operation, Completion completion, Millis timeout) {
  engine().submit(prepare(std::move(operation), std::move(completion), timeout));
}

RequestNumber NetworkClient::start(Operation operation, Completion completion, Millis timeout) {
  const RequestNumber name = ++requests_;
  auto pending = prepare(std::move(operation), std::move(completion), timeout);
  pending->name = name;
  engine().submit(std::move(pending));
  return name;
}

void NetworkClient::cancel(RequestNumber request) {
  if (request != 0 && engine_seen_ != nullptr) engine_->cancel(request);
}

void NetworkClient::submit_each(std::vector<Operation> operations, EachCompletion completion, Millis timeout) {
  const auto shared = std::make_shared<EachCompletion>(std::move(completion));
  std::vector<std::unique_ptr<Pending>> pendings;
  pendings.reserve(operations.size());
  for (std::size_t i = 0; i < operations.size(); i++)
    pendings.push_back(prepare(std::move(operations[i]), [shared, i](Outcome outcome) { (*shared)(i, std::move(outcome)); }, timeout));
  engine().submit_all(std::move(pendings));
}

Outcome NetworkClient::call_through_engine(std::unique_ptr<Pending> pending) {
  std::mutex mutex;
  std::condition_variable done;
  std::optional<Outcome> answer;
  pending->completion = [&](Outcome outcome) {
    // Notified under the lock: the caller's frame may be gone as soon as it can take it.
    const std::lock_guard lock(mutex);
    answer = std::move(outcome);
    done.notify_one();
  };
  engine().submit(std::move(pending));
  std::unique_lock lock(mutex);
  done.wait(lock, [&] { return answer.has_value(); });
  return *std::move(answer);
}

Outcome NetworkClient::call(Operation operation, Millis timeout) {
  const Engine* engine_now = engine_seen_;
  CHECK(engine_now == nullptr || !engine_now->on_thread(), "a blocking call from a completion would wait for itself");
  auto pending = prepare(std::move(operation), {}, timeout);
  if (auto outcome = call_here(pending)) return *std::move(outcome);
  return call_through_engine(std::move(pending));  // which ends it at once when its time is over
}

std::optional<Outcome> NetworkClient::call_or_submit(Operation operation, Completion completion, Millis timeout) {
  auto pending = prepare(std::move(operation), std::move(completion), timeout);
  if (auto outcome = call_here(pending)) return outcome;
  engine().submit(std::move(pending));
  return std::nullopt;
}

// On the caller's thread, over a channel of its own. Nothing: it goes on through the engine, under the same number.
std::optional<Outcome> NetworkClient::call_here(std::unique_ptr<Pending>& pending) {
  if (pending->ready) return std::move(pending->ready);
  // A callback waits long, and its connection would be of no other use meanwhile.
  if (pending->operation.kind == OpKind::callback) return std::nullopt;

  if (options_.datagrams) {
    if (auto outcome = call_by_datagram(*pending)) return *std::move(outcome);
    if (pending->number.sequence != 0 || pending->maybe) return call_through_engine(std::move(pending));
  }
  const bool recorded = is_recorded(pending->operation.kind);
  const PartitionId partition = client::partition_of(pending->operation, partition_count_);
  Session::Ticket ticket = session_.take(partition, pending->turn, recorded, now());
  const Owner owner = ticket.table->owner_of(partition);
  const Table::Instance& instance = ticket.table->instances[ticket.table->asked(partition, pending->turn)];
  const std::uint32_t instance_id = instance.id;
  pending->number = ticket.number;
  const bool has_others = pending->operation.eventual && ticket.table->turns(partition) > 1;
  if (!ticket.channel && ticket.may_open)
    ticket.channel = open_channel(instance, has_others ? std::min<Time>(pending->deadline, now() + kPatienceAmongOthers) : pending->deadline);
  if (has_others) pending->turn++;  // whom the engine asks if this one does not answer
  if (!ticket.channel) {
    if (has_others) want_table();
    if (ticket.may_open) session_.give_back(std::move(ticket), instance_id, false, false);
    return std::nullopt;
  }
  Channel& channel = *ticket.channel;
  const std::uint64_t request = channel.next_request();
  wire::encode_request(channel.out(), pending->operation,
                       {.request = request,
                        .client = ticket.client,
                        .sequence = ticket.number.sequence,
                        .floor = ticket.floor,
                        .epoch = owner.epoch,
                        .partition = partition});
  session_.counts().requests.fetch_add(1, std::memory_order_relaxed);
  auto frame = channel.exchange(request, pending->deadline);
  if (frame) session_.counts().replies.fetch_add(1, std::memory_order_relaxed);
  if (!frame) {
    pending->maybe = channel.anything_sent();
    if (has_others) want_table();
    session_.give_back(std::move(ticket), instance_id, false, false);
    return std::nullopt;
  }
  if (frame->status == wire::kStatusRetry || frame->status == static_cast<std::uint8_t>(Code::unavailable)) {
    if (frame->status == wire::kStatusRetry) redirected(*frame);
    pending->maybe = pending->maybe || (frame->flags & wire::kRetry) != 0;
    session_.give_back(std::move(ticket), instance_id, true, false);
    return std::nullopt;
  }
  auto outcome = wire::decode_outcome(*frame);
  session_.give_back(std::move(ticket), instance_id, true, true);
  return outcome ? *std::move(outcome) : failed(outcome.error());
}

std::optional<Outcome> NetworkClient::call_by_datagram(Pending& pending) {
  constexpr std::int64_t pause_ms = 5'000;  // where datagrams do not get through, each would cost a tenth of a second
  const auto now_ms = [] { return std::chrono::duration_cast<Millis>(now().time_since_epoch()).count(); };
  const Operation& operation = pending.operation;
  if (operation.kind == OpKind::batch || operation.kind == OpKind::scan ||
      operation.key.size() + operation.value.size() + operation.condition.value.size() > wire::kMaxDatagram ||
      now_ms() < no_datagrams_until_ms_)
    return {};
  const auto table = session_.table();
  const PartitionId partition = client::partition_of(operation, partition_count_);
  const Owner owner = table->owner_of(partition);
  const Table::Instance& instance = table->instances[table->asked(partition, pending.turn)];
  if (instance.addresses.empty()) return {};
  const Address& address = instance.addresses.back();
  if (!instance.datagrams || address.is_unix()) return {};

  std::optional<DatagramChannel> channel;
  {
    const std::lock_guard lock(datagram_mutex_);
    if (auto& idle = datagram_channels_[instance.id]; !idle.empty()) {
      channel.emplace(std::move(idle.back()));
      idle.pop_back();
    }
  }
  if (!channel) {
    auto opened = DatagramChannel::open(address);
    if (!opened) return {};
    channel.emplace(*std::move(opened));
  }
  if (is_recorded(operation.kind)) pending.number = session_.begin(now());
  const Session::Number number = pending.number;
  const std::uint64_t request = channel->next_request();
  wire::encode_request(channel->out(), operation,
                       {.request = request,
                        .client = number.sequence != 0 ? number.identity->id : 0,
                        .sequence = number.sequence,
                        .floor = number.sequence != 0 ? session_.floor(*number.identity) : 0,
                        .epoch = owner.epoch,
                        .partition = partition});
  std::optional<Outcome> answer;
  bool well = true;
  if (channel->fits()) {
    pending.maybe = true;  // until an answer says otherwise
    if (const auto frame = channel->exchange(request, pending.deadline); !frame) {
      well = false;
      no_datagrams_until_ms_ = now_ms() + pause_ms;
    } else if (frame->status == wire::kStatusRetry || frame->status == static_cast<std::uint8_t>(Code::unavailable)) {
      pending.maybe = channel->sent_again();
    } else if (frame->status != wire::kStatusStream) {
      auto outcome = wire::decode_outcome(*frame);
      answer = outcome ? *std::move(outcome) : failed(outcome.error());
      if (number.sequence != 0) session_.end(number);
    }
  }
  if (operation.eventual && !answer) pending.turn++;
  if (well) {
    const std::lock_guard lock(datagram_mutex_);
    datagram_channels_[instance.id].push_back(*std::move(channel));
  }
  return answer;
}

std::unique_ptr<Channel> NetworkClient::open_channel(const Table::Instance& instance, Time deadline) {
  const Time connected_by = std::min<Time>(deadline, now() + options_.connect_timeout);
  for (const Address& address : instance.addresses)
    if (auto opened = Channel::open(address, connected_by)) {
      opened->set_patience(session_.patience(instance.id, now()));
      return std::make_unique<Channel>(*std::move(opened));
    }
  return nullptr;
}

// What one call_all has to say to one instance, over a channel of its own.
struct NetworkClient::Group {
  std::uint32_t instance = 0;  // id
  std::vector<std::size_t> members;  // indices
  Session::Ticket ticket;
  std::uint64_t first_request = 0;
  bool well = false;  // everything was sent, then: and answered
  std::vector<std::optional<Outcome>> outcomes;  // of each member; nothing: through the engine
};

// Small enough that all of it is in the sockets' buffers before the first answer is read: so the two sides cannot wait for
// each other.
bool NetworkClient::small_enough(const std::vector<std::unique_ptr<Pending>>& pendings) const {
  constexpr std::size_t most_operations = 512, most_bytes = std::size_t{64} << 10;
  if (pendings.size() > most_operations) return false;
  std::size_t bytes = 0;
  for (const auto& pending : pendings) {
    const Operation& operation = pending->operation;
    if (operation.kind == OpKind::callback || operation.kind == OpKind::batch || operation.kind == OpKind::scan) return false;
    bytes += wire::kHeaderSize + operation.key.size() + operation.value.size() + operation.condition.value.size() + 64;
  }
  return bytes <= most_bytes;
}

void NetworkClient::send(Group& group, const std::vector<std::unique_ptr<Pending>>& pendings) {
  group.outcomes.resize(group.members.size());
  const Table& table = *group.ticket.table;
  if (!group.ticket.channel && group.ticket.may_open) {
    const Pending& first = *pendings[group.members[0]];
    const std::uint32_t asked = table.asked(client::partition_of(first.operation, partition_count_), first.turn);
    group.ticket.channel = open_channel(table.instances[asked], first.deadline);
  }
  if (!group.ticket.channel) return;
  Channel& channel = *group.ticket.channel;
  for (const std::size_t member : group.members) {
    Pending& pending = *pendings[member];
    const std::uint64_t request = channel.next_request();
    if (group.first_request == 0) group.first_request = request;
    if (is_recorded(pending.operation.kind)) pending.number = session_.begin(now());
    const Session::Number number = pending.number;
    const PartitionId partition = client::partition_of(pending.operation, partition_count_);
    wire::encode_request(channel.out(), pending.operation,
                         {.request = request,
                          .client = number.sequence != 0 ? number.identity->id : 0,
                          .sequence = number.sequence,
                          .floor = number.sequence != 0 ? session_.floor(*number.identity) : 0,
                          .epoch = table.owner_of(partition).epoch,
                          .partition = partition});
  }
  session_.counts().requests.fetch_add(group.members.size(), std::memory_order_relaxed);
  group.well = channel.send_only(pendings[group.members[0]]->deadline).has_value();
}

void NetworkClient::receive(Group& group, std::vector<std::unique_ptr<Pending>>& pendings) {
  std::size_t left = group.well ? group.members.size() : 0;
  while (left > 0) {
    auto frame = group.ticket.channel->receive(pendings[group.members[0]]->deadline);
    if (!frame) {
      group.well = false;
      break;
    }
    const std::uint64_t at = frame->request - group.first_request;
    if (at >= group.members.size()) continue;
    left--;
    // Wrong owner, or moving: tried again by the engine. That is an answer: this sending did nothing.
    session_.counts().replies.fetch_add(1, std::memory_order_relaxed);
    if (frame->status == wire::kStatusRetry) redirected(*frame);
    if (frame->status == wire::kStatusRetry && (frame->flags & wire::kRetry) != 0) pendings[group.members[at]]->maybe = true;
    if (frame->status == wire::kStatusRetry || frame->status == static_cast<std::uint8_t>(Code::unavailable)) continue;
    auto outcome = wire::decode_outcome(*frame);
    group.outcomes[at] = outcome ? *std::move(outcome) : failed(outcome.error());
  }
  const bool may_have_arrived = !group.well && group.ticket.channel && group.ticket.channel->anything_sent();
  for (std::size_t i = 0; i < group.members.size(); i++) {
    Pending& pending = *pendings[group.members[i]];
    if (!group.outcomes[i] && pending.operation.eventual) pending.turn++;
    if (!group.outcomes[i]) pending.maybe = pending.maybe || may_have_arrived;
    else if (pending.number.sequence != 0) session_.end(pending.number);
  }
  if (group.ticket.channel || group.ticket.may_open) session_.give_back(std::move(group.ticket), group.instance, group.well, false);
}

std::vector<Outcome> NetworkClient::call_all(std::vector<Operation> operations, Millis timeout) {
  std::vector<Outcome> answers(operations.size());
  if (operations.empty()) return answers;
  const Engine* engine_now = engine_seen_;
  CHECK(engine_now == nullptr || !engine_now->on_thread(), "a blocking call from a completion would wait for itself");
  std::vector<std::unique_ptr<Pending>> pendings;
  pendings.reserve(operations.size());
  for (Operation& operation : operations) pendings.push_back(prepare(std::move(operation), {}, timeout));
  if (small_enough(pendings)) {
    std::map<std::uint32_t, Group> groups;  // by instance id
    for (std::size_t i = 0; i < pendings.size(); i++) {
      if (pendings[i]->ready) continue;
      const auto partition = client::partition_of(pendings[i]->operation, partition_count_);
      const auto table = session_.table();
      Group& group = groups[table->instances[table->asked(partition, pendings[i]->turn)].id];
      group.members.push_back(i);
    }
    for (auto& [instance, group] : groups) {
      group.instance = instance;
      group.ticket = session_.take_channel(instance);
      send(group, pendings);
    }
    for (auto& [instance, group] : groups) {
      receive(group, pendings);
      for (std::size_t i = 0; i < group.members.size(); i++)
        if (group.outcomes[i]) pendings[group.members[i]]->ready = std::move(group.outcomes[i]);
    }
  }
  std::mutex mutex;
  std::condition_variable done;
  std::size_t left = 0;
  std::vector<std::unique_ptr<Pending>> others;
  for (std::size_t i = 0; i < pendings.size(); i++) {
    if (pendings[i]->ready) {
      answers[i] = *std::move(pendings[i]->ready);
      continue;
    }
    pendings[i]->completion = [&, i](Outcome outcome) {  // on the engine's thread alone
      answers[i] = std::move(outcome);
      const std::lock_guard lock(mutex);
      if (--left == 0) done.notify_one();
    };
    others.push_back(std::move(pendings[i]));
  }
  if (others.empty()) return answers;
  left = others.size();
  engine().submit_all(std::move(others));
  std::unique_lock lock(mutex);
  done.wait(lock, [&] { return left == 0; });
  return answers;
}

void NetworkClient::redirected(const wire::Frame& frame) {
  session_.counts().redirects.fetch_add(1, std::memory_order_relaxed);
  if ((frame.flags & wire::kPresent) != 0 && session_.learn(frame.partition, static_cast<std::uint32_t>(frame.second), frame.epoch))
    engine().table_changed();
  want_table();
}

ClientCounts NetworkClient::counts() const {
  const auto& counts = const_cast<Session&>(session_).counts();
  return {counts.requests, counts.replies, counts.redirects};
}

void NetworkClient::want_table() {
  const std::lock_guard lock(finder_mutex_);
  if (closing_ || table_wanted_) return;
  table_wanted_ = true;
  if (finder_.joinable())
    finder_wanted_.notify_all();
  else
    finder_ = std::thread([this] { look_for_table(); });
}

void NetworkClient::look_for_table() {
  while (!closing_) {
    {
      std::unique_lock lock(finder_mutex_);
      finder_wanted_.wait(lock, [this] { return table_wanted_ || closing_; });
    }
    const Time silent_since = now();
    for (auto pause = 5ms; !closing_ && !refresh_table(); pause = std::min<Millis>(pause * 2, 200ms)) {
      if (!engine().has_requests()) break;  // nobody waits for it
      if (!source_.local_folder.empty() && options_.start_node && now() - silent_since >= kSilenceBeforeStart &&
          !stopped_on_purpose(source_.local_folder)) {
        logger().info("the local node is gone, starting it", {{"data", source_.local_folder}});
        auto node = find_node(source_.local_folder, true, true, kStartTime, &closing_);
        if (!node) logger().warn("the local node does not start", {{"error", node.error()}});
      }
      std::unique_lock lock(finder_mutex_);
      finder_wanted_.wait_for(lock, pause, [this] { return closing_.load(); });
    }
    const std::lock_guard lock(finder_mutex_);
    table_wanted_ = false;
  }
}

// The seeds and some instances, whoever they are: a node that is silent or cut off must not be the only one that is asked. True
// when one knew more, or all that were asked answered and knew nothing newer.
bool NetworkClient::refresh_table() {
  const auto known = session_.table();
  std::vector<Address> addresses = source_.seeds, others;
  for (const Table::Instance& instance : known->instances)
    others.insert(others.end(), instance.addresses.begin(), instance.addresses.end());
  base::Random random(base::entropy());
  for (std::size_t i = others.size(); i > 1; i--) std::swap(others[i - 1], others[random.below(i)]);
  constexpr std::size_t most_others = 4;
  if (known->lone) addresses.insert(addresses.end(), others.begin(), others.end());
  else addresses.insert(addresses.end(), others.begin(), others.begin() + static_cast<std::ptrdiff_t>(std::min(others.size(), most_others)));
  if (!known->lone)
    for (std::size_t i = addresses.size(); i > 1; i--) std::swap(addresses[i - 1], addresses[random.below(i)]);
  const Millis patience = std::min<Millis>(options_.connect_timeout, known->lone ? 2s : 300ms);
  std::size_t answers = 0;
  for (const Address& address : addresses) {
    if (closing_) return false;
    auto table = fetch_table(address, patience);
    if (!table) {
      logger().debug("no membership table", {{"error", table.error()}});
      continue;
    }
    if ((*table)->partition_count != partition_count_) {
      logger().error("another cluster answers",
                     {{"address", address.text()}, {"partitions", (*table)->partition_count}});
      continue;
    }
    answers++;
    const bool news = (*table)->version > known->version || known->lone;
    if ((*table)->version >= known->version) {
      session_.set_table(*std::move(table));
      engine().table_changed();
    }
    if (news) return true;
  }
  return answers == addresses.size() && answers > 0;
}

}  // namespace client

Result<std::unique_ptr<Client>> connect(ClientOptions options) {
  client::NetworkClient::Source source;
  std::string cluster = options.cluster;
  if (cluster.empty() && options.data_folder.empty())
    if (const char* set = std::getenv("ZHT_CLUSTER"); set != nullptr) cluster = set;
  std::shared_ptr<const client::Table> table;
  if (cluster.empty()) {
    TRY_LET(folder, support::data_folder(options.data_folder));
    // Who asked for another time than the default does not want to wait longer for the node either.
    const Millis patience = options.timeout == ClientOptions{}.timeout ? client::kStartTime
                                                                       : std::max(options.timeout, options.connect_timeout);
    TRY_LET(node, client::find_node(folder, options.start_node, options.quiet, patience));
    source.local_folder = folder;
    source.seeds = {node.manager};
    table = node.table;
  } else {
    const auto folder = support::data_folder(options.data_folder);
    TRY_LET(seeds, client::find_cluster(cluster, folder ? *folder : std::string()));
    TRY_LET(found, client::fetch_table(seeds, options.connect_timeout));
    source.seeds = std::move(seeds);
    table = std::move(found);
  }
  return std::unique_ptr<Client>(
      std::make_unique<client::NetworkClient>(std::move(options), std::move(source), std::move(table)));
}

}  // namespace zht

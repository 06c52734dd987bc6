#include "zht/client/network_client.h"

#include <cstdlib>

#include "zht/client/control.h"
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
      session_(std::move(table)) {}

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
        session_, Engine::Options{options_.connect_timeout, std::max<std::size_t>(options_.max_in_flight, 1),
                                  [this] { want_table(); }});
    engine_seen_ = engine_.get();
  });
  return *engine_;
}

std::unique_ptr<Pending> NetworkClient::prepare(Operation&& operation, Completion&& completion, Millis timeout) const {
  auto pending = std::make_unique<Pending>();
  if (auto valid = validate(operation, partition_count_, max_value_size_); !valid)
    pending->ready = failed(valid.error());
  pending->operation = std::move(operation);
  pending->completion = std::move(completion);
  pending->deadline = now() + (timeout.count() > 0 ? timeout : options_.timeout);
  return pending;
}

void NetworkClient::submit(Operation operation, Completion completion, Millis timeout) {
  engine().submit(prepare(std::move(operation), std::move(completion), timeout));
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
  if (pending->ready) return *std::move(pending->ready);
  // A callback waits long, and its connection would be of no other use meanwhile.
  if (pending->operation.kind == OpKind::callback) return call_through_engine(std::move(pending));

  const bool recorded = is_recorded(pending->operation.kind);
  const PartitionId partition = client::partition_of(pending->operation, partition_count_);
  Session::Ticket ticket = session_.take(static_cast<std::uint32_t>(partition), recorded, now());
  const Owner owner = ticket.table->owner_of(partition);
  const Table::Instance& instance = ticket.table->instances[owner.instance];
  const std::uint32_t instance_id = instance.id;
  pending->number = ticket.number;
  if (!ticket.channel && ticket.may_open) {
    const Time connected_by = std::min<Time>(pending->deadline, now() + options_.connect_timeout);
    for (const Address& address : instance.addresses) {
      auto opened = Channel::open(address, connected_by);
      if (!opened) continue;
      ticket.channel = std::make_unique<Channel>(*std::move(opened));
      break;
    }
  }
  if (!ticket.channel) {
    if (ticket.may_open) session_.give_back(std::move(ticket), instance_id, false, false);
    return call_through_engine(std::move(pending));
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
  auto frame = channel.exchange(request, pending->deadline);
  if (!frame) {
    pending->maybe = channel.anything_sent();
    session_.give_back(std::move(ticket), instance_id, false, false);
    return call_through_engine(std::move(pending));  // which ends it at once when its time is over
  }
  if (frame->status == wire::kStatusRetry || frame->status == static_cast<std::uint8_t>(Code::unavailable)) {
    session_.give_back(std::move(ticket), instance_id, true, false);
    return call_through_engine(std::move(pending));
  }
  auto outcome = wire::decode_outcome(*frame);
  session_.give_back(std::move(ticket), instance_id, true, true);
  return outcome ? *std::move(outcome) : failed(outcome.error());
}

std::vector<Outcome> NetworkClient::call_all(std::vector<Operation> operations, Millis timeout) {
  std::vector<Outcome> answers(operations.size());
  if (operations.empty()) return answers;
  std::mutex mutex;
  std::condition_variable done;
  std::atomic<std::size_t> left = operations.size();
  std::vector<std::unique_ptr<Pending>> pendings;
  pendings.reserve(operations.size());
  for (std::size_t i = 0; i < operations.size(); i++)
    pendings.push_back(prepare(
        std::move(operations[i]),
        [&, i](Outcome outcome) {
          answers[i] = std::move(outcome);
          if (left.load(std::memory_order_relaxed) > 1 && left.fetch_sub(1) > 1) return;
          const std::lock_guard lock(mutex);
          left = 0;
          done.notify_one();
        },
        timeout));
  engine().submit_all(std::move(pendings));
  std::unique_lock lock(mutex);
  done.wait(lock, [&] { return left == 0; });
  return answers;
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

bool NetworkClient::refresh_table() {
  std::vector<Address> addresses = source_.seeds;
  for (const Table::Instance& instance : session_.table()->instances)
    addresses.insert(addresses.end(), instance.addresses.begin(), instance.addresses.end());
  for (const Address& address : addresses) {
    if (closing_) return false;
    auto table = fetch_table(address, std::min<Millis>(options_.connect_timeout, 2s));
    if (!table) {
      logger().debug("no membership table", {{"error", table.error()}});
      continue;
    }
    if ((*table)->partition_count != partition_count_) {
      logger().error("another cluster answers",
                     {{"address", address.text()}, {"partitions", (*table)->partition_count}});
      continue;
    }
    session_.set_table(*std::move(table));
    engine().table_changed();
    return true;
  }
  return false;
}

}  // namespace client

Result<std::unique_ptr<Client>> connect(ClientOptions options) {
  client::NetworkClient::Source source;
  std::string cluster = options.cluster;
  if (cluster.empty())
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
    TRY_LET(seeds, client::parse_cluster(cluster));
    TRY_LET(found, client::fetch_table(seeds, options.connect_timeout));
    source.seeds = std::move(seeds);
    table = std::move(found);
  }
  return std::unique_ptr<Client>(
      std::make_unique<client::NetworkClient>(std::move(options), std::move(source), std::move(table)));
}

}  // namespace zht

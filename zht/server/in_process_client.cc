#include "zht/server/in_process_client.h"

#include <algorithm>
#include <utility>

#include "novoht/base/check.h"
#include "zht/client/session.h"

namespace zht::server {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kTogether = 32;    // operations that the core sees at once
constexpr std::size_t kRoundSize = 256;  // operations: what others may have to wait for
constexpr std::size_t kScratch = std::size_t{4} << 20;  // bytes kept
constexpr const char* kStopped = "the node has stopped; nothing was changed";
constexpr const char* kLost = "the store failed, the change may be lost";
constexpr const char* kUnread = "the store failed before what was read was on the disk";
constexpr base::Duration kCallbackGrace = 500ms;  // the core ends a callback in time; this is for when it cannot

base::Time now() { return base::SystemClock().now(); }

Outcome failed(Code code, std::string message) {
  Outcome outcome;
  outcome.code = code;
  outcome.message = std::move(message);
  return outcome;
}

}  // namespace

// What a request says, without the bytes of a frame: nothing of it need be encoded and decoded again. `port`: numbers it.
wire::Frame InProcessClient::plain_frame(Port& port, const core::Instance& core, OpKind kind, std::uint64_t request, PartitionId partition,
                                         Bytes key, Bytes value) {
  wire::Frame frame;
  frame.op = static_cast<std::uint8_t>(kind);
  frame.request = request;
  if (client::is_recorded(kind)) {
    frame.first = port.client;
    frame.second = ++port.sequence;
    frame.third = port.sequence - 1;
  }
  frame.epoch = core.alone_epoch(partition);
  frame.partition = static_cast<std::uint32_t>(partition);
  frame.key = key;
  frame.value = value;
  return frame;
}

void InProcessClient::Port::trim() {
  if (in.capacity() + out.capacity() <= kScratch) return;
  std::string().swap(in);
  std::string().swap(out);
}

// Inserts or lookups without conditions, in one round. What they take and bring lies with the caller.
class InProcessClient::Plain final : public LocalRequest {
 public:
  Plain(Port& port, std::uint64_t connection, OpKind kind, std::span<Ask* const> asks)
      : port_(port), connection_(connection), kind_(kind), asks_(asks) {}

  // Those that are not answered then were not done here, and have to be asked as any other.
  void run() {
    port_.thread->run_local(*this);
    const bool reads = kind_ == OpKind::lookup;
    if (kept || (executed_ && reads && needed == 0)) return;
    for (Ask* const ask : asks_) {
      if (executed_ && !ask->answered) continue;
      ask->answered = true;
      ask->error = !executed_ ? fail(Code::unavailable, kStopped) : reads ? fail(Code::unavailable, kUnread) : fail(Code::timeout, kLost);
    }
  }

  void expect(const core::Instance& core) override {
    if (asks_.size() == 1) core.expect(asks_[0]->partition, asks_[0]->key);
  }
  void execute(core::Instance& core) override {
    executed_ = true;
    port_.out.clear();
    if (asks_.size() == 1) {
      if (core.is_alone(asks_[0]->partition)) core.on_frame(core::ConnectionId{connection_}, frame_of(core, 0), port_.out);
    } else {
      port_.frames.clear();
      for (std::size_t i = 0; i < asks_.size(); i++)
        if (core.is_alone(asks_[i]->partition)) port_.frames.push_back(frame_of(core, i));
      core.on_frames(core::ConnectionId{connection_}, port_.frames, port_.out);
    }
    wire::Frame reply;
    for (Bytes rest = port_.out; !rest.empty(); rest.remove_prefix(reply.size)) {
      const auto complete = wire::next_frame(rest, wire::kMaxFrameSize, reply);
      CHECK(complete && *complete && reply.request < asks_.size(), "a core answers what it was asked");
      answer(*asks_[reply.request], reply);
    }
    port_.trim();
  }

 private:
  wire::Frame frame_of(const core::Instance& core, std::size_t i) {
    return plain_frame(port_, core, kind_, i, asks_[i]->partition, asks_[i]->key, asks_[i]->value);
  }

  static void answer(Ask& ask, const wire::Frame& reply) {
    if (reply.status == wire::kStatusRetry) return;
    ask.answered = true;
    if (reply.status == 0 && reply.extra.empty()) {
      ask.found.value.assign(reply.value);
      ask.found.version = reply.first;
      ask.found.size = reply.second;
      return;
    }
    auto outcome = wire::decode_outcome(reply);
    auto value = outcome ? value_of(*std::move(outcome)) : Result<Value>(outcome.error());
    if (value) ask.found = *std::move(value);
    else ask.error = value.error();
  }

  Port& port_;
  const std::uint64_t connection_;
  const OpKind kind_;
  const std::span<Ask* const> asks_;
  bool executed_ = false;
};

void InProcessClient::ask_one(OpKind kind, Ask& ask) {
  ask.partition = partition_of(ask.key, options_.partition_count);
  Ask* const one = &ask;
  Plain(ports_[instance_of(ask.partition)], connection_, kind, {&one, 1}).run();
}

void InProcessClient::ask_all(OpKind kind, std::span<Ask> asks) {
  std::vector<std::vector<Ask*>> of_instance(ports_.size());
  for (Ask& ask : asks) {
    if (!is_plain(ask.key, ask.value)) continue;  // for the usual way to refuse
    ask.partition = partition_of(ask.key, options_.partition_count);
    of_instance[instance_of(ask.partition)].push_back(&ask);
  }
  for (std::size_t i = 0; i < of_instance.size(); i++)
    for (std::span<Ask* const> rest = of_instance[i]; !rest.empty();) {
      const std::size_t some = std::min(kRoundSize, rest.size());
      Plain(ports_[i], connection_, kind, rest.first(some)).run();
      rest = rest.subspan(some);
    }
}

Result<Version> InProcessClient::insert(Bytes key, Bytes value, Millis ttl) {
  if (ttl.count() == 0 && is_plain(key, value)) {
    Ask ask{.key = key, .value = value};
    ask_one(OpKind::insert, ask);
    if (ask.error) return *std::move(ask.error);
    if (ask.answered) return ask.found.version;
  }
  return Client::insert(key, value, ttl);
}

Result<Value> InProcessClient::lookup(Bytes key, Range range) {
  if (range.kind == Range::Kind::whole && is_plain(key, {})) {
    Ask ask{.key = key};
    ask_one(OpKind::lookup, ask);
    if (ask.error) return *std::move(ask.error);
    if (ask.answered) return std::move(ask.found);
  }
  return Client::lookup(key, range);
}

std::vector<Result<Value>> InProcessClient::lookup_many(std::vector<std::string> keys) {
  std::vector<Ask> asks(keys.size());
  for (std::size_t i = 0; i < keys.size(); i++) asks[i].key = keys[i];
  ask_all(OpKind::lookup, asks);
  std::vector<std::string> others;
  for (std::size_t i = 0; i < asks.size(); i++)
    if (!asks[i].answered) others.push_back(std::move(keys[i]));
  std::vector<Result<Value>> answers, values;
  if (!others.empty()) answers = Client::lookup_many(std::move(others));
  values.reserve(asks.size());
  std::size_t at = 0;
  for (Ask& ask : asks) {
    if (!ask.answered) values.push_back(std::move(answers[at++]));
    else if (ask.error) values.emplace_back(*std::move(ask.error));
    else values.emplace_back(std::move(ask.found));
  }
  return values;
}

std::vector<Result<Version>> InProcessClient::insert_many(std::vector<std::pair<std::string, std::string>> pairs, Millis ttl) {
  if (ttl.count() != 0) return Client::insert_many(std::move(pairs), ttl);
  std::vector<Ask> asks(pairs.size());
  for (std::size_t i = 0; i < pairs.size(); i++) {
    asks[i].key = pairs[i].first;
    asks[i].value = pairs[i].second;
  }
  ask_all(OpKind::insert, asks);
  std::vector<std::pair<std::string, std::string>> others;
  for (std::size_t i = 0; i < asks.size(); i++)
    if (!asks[i].answered) others.push_back(std::move(pairs[i]));
  std::vector<Result<Version>> answers, versions;
  if (!others.empty()) answers = Client::insert_many(std::move(others), ttl);
  versions.reserve(asks.size());
  std::size_t at = 0;
  for (Ask& ask : asks) {
    if (!ask.answered) versions.push_back(std::move(answers[at++]));
    else if (ask.error) versions.emplace_back(*std::move(ask.error));
    else versions.emplace_back(ask.found.version);
  }
  return versions;
}

// Some operations for one instance, in one round.
class InProcessClient::Round final : public LocalRequest {
 public:
  Round(Port& port, std::uint64_t connection, Item* const* items, std::size_t count)
      : port_(port), connection_(connection), items_(items), count_(count) {}

  void execute(core::Instance& core) override {
    executed_ = true;
    const bool always = core.durability() == core::Durability::always;
    for (std::size_t i = 0; i < count_;) {
      if (is_elsewhere(core, *items_[i])) {
        if (items_[i]->operation->eventual) execute_one(core, i);  // of this node's copy, if it has one
        else items_[i]->elsewhere = true;
        i++;
        continue;
      }
      // Plain ones that follow each other go together: the core fetches the memory of all their keys at once.
      // (Changes and reads each for themselves where changes have to wait for the disk.)
      const std::size_t begin = i;
      std::size_t end = i;
      while (end < count_ && end - i < kTogether && is_plain(*items_[end]->operation) && !is_elsewhere(core, *items_[end]) &&
             (!always || client::is_recorded(items_[end]->operation->kind) == client::is_recorded(items_[i]->operation->kind)))
        end++;
      if (end - i < 2) {
        execute_one(core, i++);
      } else {
        port_.frames.clear();
        for (; i < end; i++) port_.frames.push_back(*frame_of(core, i));
        port_.out.clear();
        core.on_frames(core::ConnectionId{connection_}, port_.frames, port_.out);
        take_answers();
      }
      if (!always) continue;
      const std::uint64_t rests_on = core.take_needed();
      needed = std::max(needed, rests_on);
      for (std::size_t one = begin; one < i; one++) items_[one]->late = rests_on > core.synced();
    }
    port_.trim();
  }

  void run() {
    port_.thread->run_local(*this);
    if (!kept) lose_all();
  }
  // Not waiting for the disk. False: `then` hears of what is late; true: nothing is.
  bool run(std::function<void(bool)> then) {
    port_.thread->run_local(*this, std::move(then));
    if (!kept) lose_all();
    return needed == 0;
  }
  static void lose(Item& item) {
    item.answered = true;
    item.outcome = client::is_recorded(item.operation->kind) ? failed(Code::timeout, kLost) : failed(Code::unavailable, kUnread);
  }

 private:
  // A request's number is its place here; those of callbacks are chosen by the client.
  static constexpr std::uint64_t kPlace = std::uint64_t{1} << 63;

  void lose_all() {
    for (std::size_t i = 0; i < count_; i++) {
      Item& item = *items_[i];
      item.answered = true;
      if (!executed_) item.outcome = failed(Code::unavailable, kStopped);
      else if (item.late || client::is_recorded(item.operation->kind)) lose(item);
    }
  }

  // Most operations are what a frame says, without the frame: nothing of them need be encoded and decoded again.
  static bool is_plain(const Operation& operation) {
    return (operation.kind == OpKind::insert || operation.kind == OpKind::lookup || operation.kind == OpKind::remove ||
            operation.kind == OpKind::append) &&
           operation.condition.kind == Condition::Kind::none && operation.ttl.count() == 0 && operation.limit == 0 &&
           operation.range.kind == Range::Kind::whole;
  }

  static bool is_elsewhere(const core::Instance& core, const Item& item) { return !core.is_alone(item.partition); }

  // The frame of the i-th item. It borrows from the operation, or from port_.in, which nobody changes before it is executed.
  Result<wire::Frame> frame_of(const core::Instance& core, std::size_t i) {
    const Item& item = *items_[i];
    const Operation& operation = *item.operation;
    const std::uint64_t request = item.request != 0 ? item.request : kPlace | i;
    if (is_plain(operation) && core.is_alone(item.partition)) {
      wire::Frame frame = plain_frame(port_, core, operation.kind, request, item.partition, operation.key, operation.value);
      if (operation.missing_ok) frame.flags = wire::kMissingOk;
      return frame;
    }
    const bool recorded = client::is_recorded(operation.kind);
    if (recorded) port_.sequence++;
    const wire::Identity identity{.request = request,
                                  .client = recorded ? port_.client : 0,
                                  .sequence = recorded ? port_.sequence : 0,
                                  .floor = recorded ? port_.sequence - 1 : 0,
                                  // As whoever leads a partition with others, the core would answer only later.
                                  .epoch = core.alone_epoch(item.partition),
                                  .partition = item.partition,
                                  .timeout_ms = item.timeout_ms};
    port_.in.clear();
    wire::encode_request(port_.in, operation, identity);
    TRY_LET(encoded, wire::next_frame(port_.in, wire::kMaxFrameSize));
    return *encoded;
  }

  void execute_one(core::Instance& core, std::size_t i) {
    const auto frame = frame_of(core, i);
    if (!frame) {
      items_[i]->outcome = failed(frame.code(), frame.error().message);
      items_[i]->answered = true;
      return;
    }
    port_.out.clear();
    core.on_frame(core::ConnectionId{connection_}, *frame, port_.out);
    take_answers();
  }

  void take_answers() {
    for (Bytes rest = port_.out; !rest.empty();) {
      const auto reply = wire::next_frame(rest, wire::kMaxFrameSize);
      if (!reply || !*reply) return;  // no core writes such
      rest.remove_prefix((*reply)->size);
      if (Item* const item = item_of((*reply)->request)) answer(*item, **reply);
    }
  }

  Item* item_of(std::uint64_t request) {
    if (request & kPlace) return items_[request & ~kPlace];
    for (std::size_t i = 0; i < count_; i++)
      if (items_[i]->request == request) return items_[i];
    return nullptr;
  }

  static void answer(Item& item, const wire::Frame& reply) {
    item.answered = true;
    if (reply.status == wire::kStatusRetry && item.operation->eventual) {
      item.answered = false;
      item.elsewhere = true;
    } else if (reply.status == wire::kStatusRetry) {
      item.outcome = failed(Code::unavailable, "the partition is moving");
    } else if (auto outcome = wire::decode_outcome(reply); outcome) {
      item.outcome = *std::move(outcome);
    } else {
      item.outcome = failed(outcome.code(), outcome.error().message);
    }
  }

  Port& port_;
  const std::uint64_t connection_;
  Item* const* const items_;
  const std::size_t count_;
  bool executed_ = false;
};

InProcessClient::InProcessClient(Options options, std::vector<InstanceThread*> instances, std::shared_ptr<void> owner,
                                 std::uint64_t number)
    : options_(std::move(options)), owner_(std::move(owner)), connection_(InstanceThread::kFirstLocal + number),
      ports_(instances.size()) {
  for (std::size_t i = 0; i < instances.size(); i++) {
    ports_[i].thread = instances[i];
    ports_[i].client = client::new_client_id();
    instances[i]->attach(connection_, [this, i](std::string frame) {
      const std::lock_guard lock(mutex_);
      arrivals_.push_back({i, std::move(frame)});
      if (asleep_) wanted_.notify_one();
    });
  }
}

InProcessClient::~InProcessClient() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    wanted_.notify_one();
  }
  if (worker_.joinable()) worker_.join();
  {
    std::unique_lock lock(mutex_);
    room_.wait(lock, [this] { return late_count_ == 0; });
  }
  // What the store keeps to recognise this client's retries may go.
  struct Goodbye final : LocalRequest {
    explicit Goodbye(std::uint64_t client) { wire::encode_goodbye(bytes, client); }
    void execute(core::Instance& core) override {
      std::string none;
      if (const auto frame = wire::next_frame(bytes, wire::kMaxFrameSize); frame && *frame)
        core.on_frame(core::ConnectionId{0}, **frame, none);
    }
    std::string bytes;
  };
  for (Port& port : ports_) {
    Goodbye goodbye(port.client);
    if (port.sequence > 0) port.thread->run_local(goodbye);
    port.thread->detach(connection_);
  }
}

void InProcessClient::prepare(Item& item) const {
  if (auto valid = validate(*item.operation, options_.partition_count, options_.max_value_size); !valid) {
    item.outcome = failed(valid.code(), valid.error().message);
    item.answered = true;
    return;
  }
  item.partition = client::partition_of(*item.operation, options_.partition_count);
}

void InProcessClient::execute(std::size_t instance, std::vector<Item*>& items) {
  for (std::size_t at = 0; at < items.size(); at += kRoundSize)
    Round(ports_[instance], connection_, items.data() + at, std::min(kRoundSize, items.size() - at)).run();
}

Client* InProcessClient::elsewhere() const { return options_.elsewhere ? options_.elsewhere() : nullptr; }

void InProcessClient::execute_all(std::vector<Item>& items) {
  std::vector<std::vector<Item*>> of_instance(ports_.size());
  for (Item& item : items)
    if (!item.answered) of_instance[options_.instance_of[static_cast<std::uint32_t>(item.partition)]].push_back(&item);
  for (std::size_t i = 0; i < of_instance.size(); i++) execute(i, of_instance[i]);
}

// Returns the items that may be shown; `deliver` hears of the others, on any thread and with a core in hand: it must only hand on.
InProcessClient::Late InProcessClient::execute_each(const std::shared_ptr<Batch>& batch, const std::function<void(const Late&)>& deliver) {
  std::vector<std::vector<Item*>> of_instance(ports_.size());
  Late now{batch, {}};
  for (Item& item : batch->items) {
    if (item.answered) now.items.push_back(&item);
    else of_instance[instance_of(item.partition)].push_back(&item);
  }
  for (std::size_t i = 0; i < of_instance.size(); i++)
    for (std::size_t at = 0; at < of_instance[i].size(); at += kRoundSize) {
      Late some{batch, {of_instance[i].begin() + static_cast<std::ptrdiff_t>(at),
                        of_instance[i].begin() + static_cast<std::ptrdiff_t>(std::min(at + kRoundSize, of_instance[i].size()))}};
      {
        const std::lock_guard lock(mutex_);
        late_count_++;
      }
      Round round(ports_[i], connection_, some.items.data(), some.items.size());
      const bool all = round.run([this, some, deliver](bool well) mutable {
        std::erase_if(some.items, [](const Item* item) { return !item->late; });
        if (!well)
          for (Item* const item : some.items) Round::lose(*item);
        deliver(some);
        const std::lock_guard lock(mutex_);
        if (--late_count_ == 0) room_.notify_all();
      });
      for (Item* const item : some.items)
        if (all || !item->late) now.items.push_back(item);
      if (!all) continue;
      const std::lock_guard lock(mutex_);
      late_count_--;
    }
  return now;
}

void InProcessClient::call_each(std::vector<Operation> operations, EachCompletion completion, bool waits) {
  if (waits) {
    std::vector<Outcome> outcomes = call_all(std::move(operations), {});
    for (std::size_t i = 0; i < outcomes.size(); i++) completion(i, std::move(outcomes[i]));
    return;
  }
  const auto batch = std::make_shared<Batch>();
  batch->operations = std::move(operations);
  batch->completion = std::move(completion);
  batch->items.resize(batch->operations.size());
  for (std::size_t i = 0; i < batch->items.size(); i++) {
    batch->items[i].operation = &batch->operations[i];
    // (They wait for something else than a disk.)
    if (batch->operations[i].kind == OpKind::callback) batch->items[i].answered = batch->items[i].elsewhere = true;
    else prepare(batch->items[i]);
  }
  const auto deliver = [this](const Late& some) {
    for (Item* const item : some.items) {
      const auto index = static_cast<std::size_t>(item - some.batch->items.data());
      if (!item->elsewhere) {
        some.batch->completion(index, std::move(item->outcome));
        continue;
      }
      submit(
          std::move(some.batch->operations[index]),
          [batch = some.batch, index](Outcome outcome) { batch->completion(index, std::move(outcome)); }, {});
    }
  };
  deliver(execute_each(batch, deliver));
}

Outcome InProcessClient::call(Operation operation, Millis timeout) {
  if (operation.kind == OpKind::callback) {
    CHECK(std::this_thread::get_id() != worker_.get_id(), "a blocking call from a completion would wait for itself");
    return Client::call(std::move(operation), timeout);
  }
  Item item;
  item.operation = &operation;
  prepare(item);
  if (!item.answered) {
    Item* const one = &item;
    Round(ports_[options_.instance_of[static_cast<std::uint32_t>(item.partition)]], connection_, &one, 1).run();
    if (item.elsewhere) {
      Client* const other = elsewhere();
      return other != nullptr ? other->call(std::move(operation), timeout) : failed(Code::unavailable, "the partition is moving");
    }
  }
  return std::move(item.outcome);
}

std::optional<Outcome> InProcessClient::call_or_submit(Operation operation, Completion completion, Millis timeout) {
  if (operation.kind != OpKind::callback) return call(std::move(operation), timeout);
  submit(std::move(operation), std::move(completion), timeout);
  return std::nullopt;
}

std::vector<Outcome> InProcessClient::call_all(std::vector<Operation> operations, Millis timeout) {
  if (std::any_of(operations.begin(), operations.end(), [](const Operation& one) { return one.kind == OpKind::callback; }))
    return Client::call_all(std::move(operations), timeout);
  std::vector<Item> items(operations.size());
  for (std::size_t i = 0; i < items.size(); i++) {
    items[i].operation = &operations[i];
    prepare(items[i]);
  }
  execute_all(items);
  std::vector<Outcome> outcomes;
  outcomes.reserve(items.size());
  std::vector<Operation> others;
  for (Item& item : items) {
    if (item.elsewhere) others.push_back(*item.operation);
    outcomes.push_back(std::move(item.outcome));
  }
  if (others.empty()) return outcomes;
  Client* const other = elsewhere();
  std::vector<Outcome> answers = other != nullptr ? other->call_all(std::move(others), timeout)
                                                  : std::vector<Outcome>(others.size(), failed(Code::unavailable, "the partition is moving"));
  for (std::size_t i = 0, at = 0; i < items.size(); i++)
    if (items[i].elsewhere) outcomes[i] = std::move(answers[at++]);
  return outcomes;
}

void InProcessClient::submit(Operation operation, Completion completion, Millis timeout) {
  enqueue({std::move(operation), std::move(completion), timeout, 0}, false);
}

RequestNumber InProcessClient::start(Operation operation, Completion completion, Millis timeout) {
  return enqueue({std::move(operation), std::move(completion), timeout, 0}, true);
}

void InProcessClient::cancel(RequestNumber request) {
  const std::lock_guard lock(mutex_);
  cancelled_.push_back(request);
  if (asleep_) wanted_.notify_one();
}

RequestNumber InProcessClient::enqueue(Job job, bool named) {
  std::unique_lock lock(mutex_);
  if (!worker_.joinable() && !closing_) worker_ = std::thread([this] { work(); });
  if (job.operation.kind == OpKind::callback) {
    if (waiters_ >= options_.max_waiters) {
      const std::string full = std::to_string(waiters_) + " callbacks wait already; ClientOptions::max_waiters";
      lock.unlock();
      job.completion(failed(Code::no_space, full));
      return 0;
    }
    waiters_++;
  } else {
    if (std::this_thread::get_id() != worker_.get_id())
      room_.wait(lock, [this] { return in_flight_ < options_.max_in_flight; });
    in_flight_++;
  }
  if (job.timeout.count() <= 0) job.timeout = options_.timeout;
  if (named) job.name = ++names_;
  const RequestNumber name = job.name;
  jobs_.push_back(std::move(job));
  if (asleep_) wanted_.notify_one();
  return name;
}

void InProcessClient::leave_locked(OpKind kind) {
  if (kind == OpKind::callback) waiters_--;
  else if (in_flight_-- == options_.max_in_flight) room_.notify_all();
}

// ---- the worker ----

void InProcessClient::work() {
  std::vector<Job> jobs;
  std::vector<Arrival> arrivals;
  std::vector<RequestNumber> cancelled;
  std::vector<Return> returns;
  std::vector<Late> late;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      asleep_ = true;
      const auto something = [this] {
        return (closing_ && late_jobs_ == 0) || !jobs_.empty() || !arrivals_.empty() || !cancelled_.empty() || !returns_.empty() || !late_.empty();
      };
      if (next_overdue_ == base::Time::max())
        wanted_.wait(lock, something);
      else
        wanted_.wait_until(lock, next_overdue_, something);
      asleep_ = false;
      jobs.swap(jobs_);
      arrivals.swap(arrivals_);
      cancelled.swap(cancelled_);
      returns.swap(returns_);
      late.swap(late_);
      if (closing_ && jobs.empty() && arrivals.empty() && returns.empty() && late.empty() && late_jobs_ == 0) break;
    }
    for (const Late& some : late) {
      late_jobs_ -= some.items.size();
      end_jobs(some);
    }
    late.clear();
    run_jobs(std::exchange(jobs, {}));
    take_arrivals(arrivals);
    arrivals.clear();
    take_returns(returns);
    returns.clear();
    end_early(cancelled);
    cancelled.clear();
    end_overdue();
  }
  // What is under way elsewhere ends early: its completions come back here.
  for (const auto& [request, away] : away_) elsewhere()->cancel(away.there);
  while (!away_.empty()) {
    {
      std::unique_lock lock(mutex_);
      asleep_ = true;
      wanted_.wait(lock, [this] { return !returns_.empty(); });
      asleep_ = false;
      returns.swap(returns_);
    }
    take_returns(returns);
    returns.clear();
  }
  for (auto& [request, waiting] : std::exchange(waiting_, {}))
    waiting.completion(failed(Code::timeout, "the client was closed; the condition did not hold in time"));
  for (;;) {  // what completions have submitted
    {
      const std::lock_guard lock(mutex_);
      jobs.swap(jobs_);
    }
    if (jobs.empty()) break;
    for (Job& job : jobs) job.completion(failed(Code::unavailable, "the client was closed; nothing was changed"));
    jobs.clear();
  }
}

void InProcessClient::run_jobs(std::vector<Job> submitted) {
  if (submitted.empty()) return;
  const auto batch = std::make_shared<Batch>();
  batch->jobs = std::move(submitted);
  std::vector<Job>& jobs = batch->jobs;
  std::vector<Item>& items = batch->items;
  items.resize(jobs.size());
  for (std::size_t i = 0; i < jobs.size(); i++) {
    Item& item = items[i];
    item.operation = &jobs[i].operation;
    prepare(item);
    if (jobs[i].operation.kind != OpKind::callback || item.answered) continue;
    item.request = ++requests_;
    item.timeout_ms = static_cast<std::uint64_t>(jobs[i].timeout.count());
    const base::Time deadline = now() + jobs[i].timeout + kCallbackGrace;
    // Known before it is registered: the answer may come at once.
    waiting_[item.request] = {std::move(jobs[i].completion), deadline,
                              options_.instance_of[static_cast<std::uint32_t>(item.partition)], jobs[i].name, jobs[i].operation};
    next_overdue_ = std::min(next_overdue_, deadline);
  }
  // A lone job's sync is shortest on this thread.
  if (jobs.size() == 1 && late_jobs_ == 0) {
    execute_all(items);
    return end_jobs({batch, {&items[0]}});
  }
  const Late now = execute_each(batch, [this](const Late& some) {
    const std::lock_guard lock(mutex_);
    late_.push_back(some);
    if (asleep_) wanted_.notify_one();
  });
  late_jobs_ += items.size() - now.items.size();
  end_jobs(now);
}

void InProcessClient::end_jobs(const Late& some) {
  std::vector<std::pair<Job*, Item*>> ended;
  for (Item* const item : some.items) {
    Job& job = some.batch->jobs[static_cast<std::size_t>(item - some.batch->items.data())];
    if (item->request != 0) {
      const auto waiting = waiting_.find(item->request);
      if (waiting == waiting_.end() || (!item->answered && !item->elsewhere)) continue;  // it has ended meanwhile, or waits
      job.completion = std::move(waiting->second.completion);
      waiting_.erase(waiting);
    }
    if (item->elsewhere) {
      send_elsewhere(std::move(job.operation), std::exchange(job.completion, {}), job.timeout, job.name);
      continue;
    }
    ended.emplace_back(&job, item);
  }
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [job, item] : ended) leave_locked(job->operation.kind);
  }
  for (const auto& [job, item] : ended) job->completion(std::move(item->outcome));
}

void InProcessClient::end_waiting(std::map<std::uint64_t, Waiting>::iterator waiting, Outcome outcome) {
  const Completion completion = std::move(waiting->second.completion);
  waiting_.erase(waiting);
  {
    const std::lock_guard lock(mutex_);
    leave_locked(OpKind::callback);
  }
  completion(std::move(outcome));
}

// Callbacks, and what is asked elsewhere: everything else is executed as soon as it is taken.
void InProcessClient::end_early(const std::vector<RequestNumber>& names) {
  for (const RequestNumber name : names) {
    const auto waiting = std::find_if(waiting_.begin(), waiting_.end(),
                                      [&](const auto& one) { return name != 0 && one.second.name == name; });
    if (waiting != waiting_.end()) end_waiting(waiting, failed(Code::timeout, "cancelled"));
    for (const auto& [request, away] : away_)
      if (name != 0 && away.name == name) elsewhere()->cancel(away.there);
  }
}

void InProcessClient::take_arrivals(std::vector<Arrival>& arrivals) {
  for (Arrival& arrival : arrivals) {
    if (arrival.frame.empty()) {
      for (auto one = waiting_.begin(); one != waiting_.end();) {
        const auto current = one++;
        if (current->second.instance == arrival.instance) end_waiting(current, failed(Code::unavailable, "the node has stopped"));
      }
      continue;
    }
    const auto frame = wire::next_frame(arrival.frame, wire::kMaxFrameSize);
    if (!frame || !*frame) continue;
    const auto waiting = waiting_.find((*frame)->request);
    if (waiting == waiting_.end()) continue;  // given up meanwhile
    if ((*frame)->status == wire::kStatusRetry) {  // another node leads the partition now
      Waiting one = std::move(waiting->second);
      waiting_.erase(waiting);
      const auto left = std::chrono::ceil<Millis>(one.deadline - kCallbackGrace - now());
      send_elsewhere(std::move(one.operation), std::move(one.completion), std::max(left, Millis(1)), one.name);
      continue;
    }
    auto outcome = wire::decode_outcome(**frame);
    end_waiting(waiting, outcome ? *std::move(outcome) : failed(outcome.code(), outcome.error().message));
  }
}

void InProcessClient::send_elsewhere(Operation operation, Completion completion, Millis timeout, RequestNumber name) {
  const std::uint64_t request = ++requests_;
  away_[request] = {std::move(completion), 0, name, operation.kind};
  Client* const other = elsewhere();
  const auto come_back = [this, request](Outcome outcome) {  // on the other client's thread
    const std::lock_guard lock(mutex_);
    returns_.push_back({request, std::move(outcome)});
    if (asleep_) wanted_.notify_one();
  };
  if (other == nullptr) return come_back(failed(Code::unavailable, "the partition is moving"));
  away_[request].there = other->start(std::move(operation), come_back, timeout);
}

void InProcessClient::take_returns(std::vector<Return>& returns) {
  for (Return& one : returns) {
    const auto away = away_.find(one.request);
    const Completion completion = std::move(away->second.completion);
    const OpKind kind = away->second.kind;
    away_.erase(away);
    {
      const std::lock_guard lock(mutex_);
      leave_locked(kind);
    }
    completion(std::move(one.outcome));
  }
}

void InProcessClient::end_overdue() {
  if (next_overdue_ == base::Time::max() || now() < next_overdue_) return;
  const base::Time time = now();
  std::vector<Waiting> overdue;
  next_overdue_ = base::Time::max();
  for (auto one = waiting_.begin(); one != waiting_.end();) {
    if (one->second.deadline > time) {
      next_overdue_ = std::min(next_overdue_, one->second.deadline);
      ++one;
      continue;
    }
    overdue.push_back(std::move(one->second));
    one = waiting_.erase(one);
  }
  {
    const std::lock_guard lock(mutex_);
    waiters_ -= overdue.size();
  }
  for (Waiting& one : overdue) one.completion(failed(Code::timeout, "the condition did not hold in time"));
}

}  // namespace zht::server

// The C API over the C++ client. Every function is a wall: nothing is thrown past it, and whoever calls it gets a code and
// this thread's message.
#define ZHT_BUILDING
#include "zht/c/zht.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <deque>
#include <mutex>
#include <unordered_map>

#include "zht/client.h"
#include "zht/node.h"
#include "zht/wire/frame.h"

struct zht_client {
  std::unique_ptr<zht::Client> client;
};

struct zht_node {
  std::unique_ptr<zht::Node> node;
};

struct zht_outcome {
  zht::Outcome outcome;
  std::vector<zht_outcome> outcomes;  // a batch's
};

namespace {

using zht::Bytes;
using zht::Code;
using zht::Error;
using zht::Millis;
using zht::Operation;
using zht::Outcome;
using zht::Result;

thread_local std::string last_error;

zht_code failed(Code code, std::string message) {
  last_error = std::move(message);
  return static_cast<zht_code>(code);
}
zht_code failed(const Error& error) { return failed(error.code, error.message); }

// Runs `work`, which returns a zht_code, behind the wall.
template <typename Work>
zht_code guarded(Work&& work) noexcept {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return failed(Code::no_space, "out of memory");
  } catch (const std::exception& error) {
    return failed(Code::io, error.what());
  }
}

Bytes bytes_of(zht_bytes bytes) { return bytes.size == 0 ? Bytes() : Bytes(static_cast<const char*>(bytes.data), bytes.size); }
std::string string_of(zht_bytes bytes) { return std::string(bytes_of(bytes)); }
std::string string_of(const char* text) { return text == nullptr ? std::string() : std::string(text); }
Millis millis_of(std::uint64_t ms) {
  return Millis(static_cast<std::int64_t>(std::min<std::uint64_t>(ms, 1'000'000'000'000)));  // 31 years
}

zht::Condition condition_of(int kind, zht_bytes value, std::uint64_t version) {
  return {static_cast<zht::Condition::Kind>(kind), string_of(value), version};
}

Result<Operation> operation_of(const zht_operation& from, int depth = 0) {
  if (from.kind < ZHT_INSERT || from.kind > ZHT_SCAN) return base::fail(Code::invalid, "operation of kind ", from.kind, "; 1 to 9");
  if (from.condition < ZHT_NONE || from.condition > ZHT_AFTER_VERSION)
    return base::fail(Code::invalid, "condition of kind ", from.condition, "; 0 to 5");
  if (from.range < ZHT_WHOLE || from.range > ZHT_NOTHING) return base::fail(Code::invalid, "range of kind ", from.range, "; 0 to 3");
  if (from.desired < ZHT_SET || from.desired > ZHT_KEEP) return base::fail(Code::invalid, "desired of kind ", from.desired, "; 0 to 2");
  Operation to;
  to.kind = static_cast<zht::OpKind>(from.kind);
  to.key = string_of(from.key);
  to.value = string_of(from.value);
  to.condition = condition_of(from.condition, from.condition_value, from.condition_version);
  to.desired = static_cast<zht::Desired>(from.desired);
  to.ttl = millis_of(from.ttl_ms);
  to.limit = from.limit;
  to.missing_ok = from.missing_ok;
  to.eventual = from.eventual;
  to.range = {static_cast<zht::Range::Kind>(from.range), from.range_offset, from.range_size};
  to.procedure = string_of(from.procedure);
  to.partition = zht::PartitionId{from.partition};
  to.cursor = from.cursor;
  if (from.operation_count > 0 && (depth > 0 || to.kind != zht::OpKind::batch))
    return base::fail(Code::invalid, "only a batch holds operations, and no batch holds a batch");
  if (from.operation_count > zht::kMaxBatchSize)
    return base::fail(Code::invalid, "batch: ", from.operation_count, " operations; at most ", zht::kMaxBatchSize);
  for (std::size_t i = 0; i < from.operation_count; i++) {
    TRY_LET(one, operation_of(from.operations[i], depth + 1));
    to.operations.push_back(std::move(one));
  }
  return to;
}

Operation owned(const zht::wire::OperationView& view) {
  Operation to;
  to.kind = view.kind;
  to.key = std::string(view.key);
  to.value = std::string(view.value);
  to.condition = {view.condition, std::string(view.condition_value), view.condition_version};
  to.desired = view.desired;
  to.ttl = millis_of(view.ttl_ms);
  to.limit = view.limit;
  to.missing_ok = view.missing_ok;
  to.eventual = view.eventual;
  to.range = view.range;
  to.procedure = std::string(view.procedure);
  to.cursor = view.cursor;
  return to;
}

struct FlatOperation {
  std::uint64_t tag = 0;
  Millis timeout{};
  Operation operation;
};

// Takes the first operation off `in`.
Result<FlatOperation> next_flat(Bytes& in) {
  constexpr std::size_t head = 16;
  if (in.size() <= head) return base::fail(Code::invalid, "flat operations: ", in.size(), " bytes where an operation should be");
  FlatOperation flat;
  flat.tag = base::load<std::uint64_t>(in.data());
  flat.timeout = Millis(base::load<std::uint32_t>(in.data() + 8));
  const auto partition = base::load<std::uint32_t>(in.data() + 12);
  in.remove_prefix(head);
  TRY_LET(view, zht::wire::next_operation(in));
  flat.operation = owned(view);
  flat.operation.partition = zht::PartitionId{partition};
  if (view.operation_count > zht::kMaxBatchSize)
    return base::fail(Code::invalid, "batch: ", view.operation_count, " operations; at most ", zht::kMaxBatchSize);
  Bytes rest = view.operations;
  for (std::uint32_t i = 0; i < view.operation_count; i++) {
    TRY_LET(one, zht::wire::next_operation(rest));
    flat.operation.operations.push_back(owned(one));
  }
  return flat;
}

std::unique_ptr<zht_outcome> wrapped(Outcome outcome) {
  auto handle = std::make_unique<zht_outcome>();
  handle->outcomes.resize(outcome.outcomes.size());
  for (std::size_t i = 0; i < outcome.outcomes.size(); i++) handle->outcomes[i].outcome = std::move(outcome.outcomes[i]);
  outcome.outcomes.clear();
  handle->outcome = std::move(outcome);
  return handle;
}

// Hands an outcome out and says how it went.
zht_code give(Outcome outcome, zht_outcome** to) {
  const Code code = outcome.code;
  if (code != Code::ok) last_error = outcome.message;
  if (to != nullptr) *to = wrapped(std::move(outcome)).release();
  return static_cast<zht_code>(code);
}

zht_code call(zht_client* client, Operation operation, std::uint64_t timeout_ms, zht_outcome** outcome) {
  if (outcome != nullptr) *outcome = nullptr;
  return give(client->client->call(std::move(operation), millis_of(timeout_ms)), outcome);
}

zht_code call_for_version(zht_client* client, Operation operation, std::uint64_t* version) {
  Outcome outcome = client->client->call(std::move(operation));
  if (outcome.ok() && version != nullptr) *version = outcome.version;
  return give(std::move(outcome), nullptr);
}

zht_code call_all(zht_client* client, std::vector<Operation> operations, std::uint64_t timeout_ms, zht_outcome** outcomes) {
  const std::size_t count = operations.size();
  std::fill_n(outcomes, count, nullptr);
  std::vector<Outcome> answers = client->client->call_all(std::move(operations), millis_of(timeout_ms));
  zht_code code = ZHT_OK;
  for (std::size_t i = count; i-- > 0;)
    if (const zht_code one = give(std::move(answers[i]), &outcomes[i]); one != ZHT_OK) code = one;
  return code;
}

}  // namespace

// Where answers wait to be taken. Completions hold it, so that one under way finds it whenever it comes.
struct zht_queue {
  struct Shared {
    Shared() : descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
    ~Shared() {
      if (descriptor >= 0) ::close(descriptor);
    }
    Shared(const Shared&) = delete;
    Shared& operator=(const Shared&) = delete;
    const int descriptor;
    std::mutex mutex;
    std::deque<std::pair<std::uint64_t, Outcome>> answers;
    std::unordered_multimap<std::uint64_t, zht::RequestNumber> under_way;  // by tag; 0: cannot be cancelled

    void put(std::uint64_t tag, Outcome outcome) {
      const std::lock_guard lock(mutex);
      answers.emplace_back(tag, std::move(outcome));
      signal();
    }
    void signal() {
      if (answers.size() != 1) return;  // else it is readable already
      const std::uint64_t one = 1;
      (void)!::write(descriptor, &one, sizeof one);
    }
    void quiet() {
      if (!answers.empty()) return;
      std::uint64_t count;
      (void)!::read(descriptor, &count, sizeof count);
    }
  };

  // With a number, so that it can be cancelled: what may wait long.
  void start(FlatOperation flat) {
    const std::uint64_t tag = flat.tag;
    // The answer may come before the number is noted; it then notes that there is none to note.
    auto ended = std::make_shared<bool>(false);
    const zht::RequestNumber request = client->start(
        std::move(flat.operation),
        [to = shared, tag, ended](Outcome outcome) {
          {
            const std::lock_guard lock(to->mutex);
            *ended = true;
            // Numbers of one tag are alike to whoever cancels it: any of them may go, they are all cancelled together.
            if (const auto noted = to->under_way.find(tag); noted != to->under_way.end()) to->under_way.erase(noted);
          }
          to->put(tag, std::move(outcome));
        },
        flat.timeout);
    const std::lock_guard lock(shared->mutex);
    if (!*ended) shared->under_way.emplace(tag, request);
  }

  void cancel(std::uint64_t tag) {
    std::vector<zht::RequestNumber> requests;
    {
      const std::lock_guard lock(shared->mutex);
      const auto [from, to] = shared->under_way.equal_range(tag);
      for (auto one = from; one != to; ++one) requests.push_back(one->second);
    }
    for (const zht::RequestNumber request : requests) client->cancel(request);
  }

  zht::Client* client = nullptr;
  std::shared_ptr<Shared> shared = std::make_shared<Shared>();
};

extern "C" {

const char* zht_code_name(int code) {
  return code >= 0 && code <= static_cast<int>(Code::unsupported) ? base::name_of(static_cast<Code>(code)).data() : "unknown";
}
const char* zht_error(void) { return last_error.c_str(); }
const char* zht_version_text(void) { return ZHT_VERSION; }

zht_code zht_connect(const zht_options* options, zht_client** client) {
  return guarded([&] {
    *client = nullptr;
    zht::ClientOptions to;
    if (options != nullptr) {
      to.cluster = string_of(options->cluster);
      to.data_folder = string_of(options->data_folder);
      if (options->timeout_ms != 0) to.timeout = millis_of(options->timeout_ms);
      if (options->connect_timeout_ms != 0) to.connect_timeout = millis_of(options->connect_timeout_ms);
      if (options->max_in_flight != 0) to.max_in_flight = options->max_in_flight;
      if (options->max_connections != 0) to.max_connections = options->max_connections;
      to.start_node = !options->no_start;
      to.quiet = options->quiet;
    }
    auto connected = zht::connect(std::move(to));
    if (!connected) return failed(connected.error());
    *client = new zht_client{*std::move(connected)};
    return ZHT_OK;
  });
}
void zht_close(zht_client* client) {
  (void)guarded([&] {
    delete client;
    return ZHT_OK;
  });
}
uint32_t zht_partition_count(const zht_client* client) { return client->client->partition_count(); }
uint32_t zht_partition_of(zht_bytes key, uint32_t partition_count) {
  return static_cast<std::uint32_t>(zht::partition_of(bytes_of(key), partition_count));
}

zht_code zht_node_start(const zht_node_options* options, zht_node** node) {
  return guarded([&] {
    *node = nullptr;
    zht::NodeOptions to;
    if (options != nullptr) {
      to.data_folder = string_of(options->data_folder);
      to.instances = options->instances;
      to.partitions = options->partitions;
      switch (options->durability) {
        case 0: to.durability = zht::NodeOptions::Durability::interval; break;
        case 1: to.durability = zht::NodeOptions::Durability::always; break;
        case 2: to.durability = zht::NodeOptions::Durability::none; break;
        default: return failed(Code::invalid, "durability is " + std::to_string(options->durability) + "; 0, 1 or 2");
      }
      if (options->sync_interval_ms != 0) to.sync_interval = millis_of(options->sync_interval_ms);
      if (options->max_value_size != 0) to.max_value_size = options->max_value_size;
      to.local_socket = options->local_socket;
      to.listen = string_of(options->listen);
      to.resp = string_of(options->resp);
    }
    auto started = zht::Node::start(std::move(to));
    if (!started) return failed(started.error());
    *node = new zht_node{*std::move(started)};
    return ZHT_OK;
  });
}
zht_code zht_node_client(zht_node* node, zht_client** client) {
  return guarded([&] {
    *client = new zht_client{node->node->client()};
    return ZHT_OK;
  });
}
const char* zht_node_listen(const zht_node* node) { return node->node->listen().c_str(); }
const char* zht_node_resp(const zht_node* node) { return node->node->resp().c_str(); }
void zht_node_stop(zht_node* node) {
  (void)guarded([&] {
    delete node;
    return ZHT_OK;
  });
}

zht_code zht_outcome_code(const zht_outcome* outcome) { return static_cast<zht_code>(outcome->outcome.code); }
const char* zht_outcome_message(const zht_outcome* outcome) { return outcome->outcome.message.c_str(); }
bool zht_outcome_present(const zht_outcome* outcome) { return outcome->outcome.present; }
zht_bytes zht_outcome_value(const zht_outcome* outcome) {
  return {outcome->outcome.value.data(), outcome->outcome.value.size()};
}
uint64_t zht_outcome_version(const zht_outcome* outcome) { return outcome->outcome.version; }
uint64_t zht_outcome_size(const zht_outcome* outcome) { return outcome->outcome.size; }
uint64_t zht_outcome_offset(const zht_outcome* outcome) { return outcome->outcome.offset; }
uint32_t zht_outcome_fragment_count(const zht_outcome* outcome) { return outcome->outcome.fragment_count; }
uint32_t zht_outcome_fragment_index(const zht_outcome* outcome) { return outcome->outcome.fragment_index; }
size_t zht_outcome_fragments(const zht_outcome* outcome, const uint32_t** sizes) {
  if (sizes != nullptr) *sizes = outcome->outcome.fragments.data();
  return outcome->outcome.fragments.size();
}
size_t zht_outcome_count(const zht_outcome* outcome) { return outcome->outcomes.size(); }
uint32_t zht_outcome_failed_index(const zht_outcome* outcome) { return outcome->outcome.failed_index; }
const zht_outcome* zht_outcome_at(const zht_outcome* outcome, size_t index) {
  return index < outcome->outcomes.size() ? &outcome->outcomes[index] : nullptr;
}
size_t zht_outcome_entry_count(const zht_outcome* outcome) { return outcome->outcome.entries.size(); }
zht_bytes zht_outcome_entry(const zht_outcome* outcome, size_t index, uint64_t* version, uint64_t* size) {
  if (index >= outcome->outcome.entries.size()) return {nullptr, 0};
  const zht::ScanEntry& entry = outcome->outcome.entries[index];
  if (version != nullptr) *version = entry.version;
  if (size != nullptr) *size = entry.size;
  return {entry.key.data(), entry.key.size()};
}
uint64_t zht_outcome_cursor(const zht_outcome* outcome) { return outcome->outcome.cursor; }
void zht_outcome_free(zht_outcome* outcome) { delete outcome; }

zht_code zht_call(zht_client* client, const zht_operation* operation, uint64_t timeout_ms, zht_outcome** outcome) {
  return guarded([&] {
    if (outcome != nullptr) *outcome = nullptr;
    auto made = operation_of(*operation);
    return made ? call(client, *std::move(made), timeout_ms, outcome) : failed(made.error());
  });
}

zht_code zht_call_all(zht_client* client, const zht_operation* operations, size_t count, uint64_t timeout_ms,
                      zht_outcome** outcomes) {
  return guarded([&] {
    std::fill_n(outcomes, count, nullptr);
    std::vector<Operation> all;
    for (std::size_t i = 0; i < count; i++) {
      auto made = operation_of(operations[i]);
      if (!made) return failed(made.error());
      all.push_back(*std::move(made));
    }
    return call_all(client, std::move(all), timeout_ms, outcomes);
  });
}

zht_code zht_insert(zht_client* client, zht_bytes key, zht_bytes value, uint64_t ttl_ms, uint64_t* version) {
  return guarded([&] { return call_for_version(client, Operation::insert(string_of(key), string_of(value), millis_of(ttl_ms)), version); });
}
zht_code zht_insert_new(zht_client* client, zht_bytes key, zht_bytes value, uint64_t ttl_ms, uint64_t* version) {
  return guarded(
      [&] { return call_for_version(client, Operation::insert_new(string_of(key), string_of(value), millis_of(ttl_ms)), version); });
}
zht_code zht_lookup(zht_client* client, zht_bytes key, zht_outcome** outcome) {
  return guarded([&] { return call(client, Operation::lookup(string_of(key)), 0, outcome); });
}
zht_code zht_lookup_eventual(zht_client* client, zht_bytes key, uint64_t at_least, zht_outcome** outcome) {
  return guarded([&] { return call(client, Operation::lookup_eventual(string_of(key), at_least), 0, outcome); });
}
zht_code zht_remove(zht_client* client, zht_bytes key, uint64_t* version) {
  return guarded([&] { return call_for_version(client, Operation::remove(string_of(key)), version); });
}
zht_code zht_append(zht_client* client, zht_bytes key, zht_bytes value, uint64_t limit, uint64_t* size, uint64_t* version) {
  return guarded([&] {
    Outcome outcome = client->client->call(Operation::append(string_of(key), string_of(value), limit));
    if (outcome.ok() && size != nullptr) *size = outcome.size;
    if (outcome.ok() && version != nullptr) *version = outcome.version;
    return give(std::move(outcome), nullptr);
  });
}
zht_code zht_cswap(zht_client* client, zht_bytes key, const zht_bytes* expected, zht_bytes desired, zht_outcome** outcome) {
  return guarded([&] {
    zht::Condition condition = expected == nullptr ? zht::Condition::absent() : zht::Condition::equals(string_of(*expected));
    return call(client, Operation::cswap(string_of(key), std::move(condition), string_of(desired)), 0, outcome);
  });
}
zht_code zht_cswap_version(zht_client* client, zht_bytes key, uint64_t expected, zht_bytes desired, zht_outcome** outcome) {
  return guarded([&] {
    zht::Condition condition = expected == 0 ? zht::Condition::absent() : zht::Condition::at_version(expected);
    return call(client, Operation::cswap(string_of(key), std::move(condition), string_of(desired)), 0, outcome);
  });
}
zht_code zht_callback_value(zht_client* client, zht_bytes key, zht_bytes value, uint64_t timeout_ms, zht_outcome** outcome) {
  return guarded([&] {
    return call(client, Operation::callback(string_of(key), zht::Condition::equals(string_of(value))), timeout_ms, outcome);
  });
}
zht_code zht_callback_change(zht_client* client, zht_bytes key, uint64_t version, uint64_t timeout_ms, zht_outcome** outcome) {
  return guarded([&] {
    return call(client, Operation::callback(string_of(key), zht::Condition::after_version(version)), timeout_ms, outcome);
  });
}
zht_code zht_update(zht_client* client, zht_bytes key, const char* procedure, zht_bytes arguments, zht_outcome** outcome) {
  return guarded([&] { return call(client, Operation::update(string_of(key), string_of(procedure), string_of(arguments)), 0, outcome); });
}
zht_code zht_batch(zht_client* client, const zht_operation* operations, size_t count, zht_outcome** outcome) {
  zht_operation batch = {};
  batch.kind = ZHT_BATCH;
  batch.operations = operations;
  batch.operation_count = count;
  return zht_call(client, &batch, 0, outcome);
}
zht_code zht_scan(zht_client* client, zht_bytes prefix, zht_entry_function entry, void* context) {
  return guarded([&] {
    const auto done = client->client->scan(string_of(prefix), [&](const zht::ScanEntry& one) {
      return entry(context, {one.key.data(), one.key.size()}, one.version, one.size);
    });
    return done ? ZHT_OK : failed(done.error());
  });
}
zht_code zht_lookup_many(zht_client* client, const zht_bytes* keys, size_t count, zht_outcome** outcomes) {
  return guarded([&] {
    std::vector<Operation> all;
    for (std::size_t i = 0; i < count; i++) all.push_back(Operation::lookup(string_of(keys[i])));
    return call_all(client, std::move(all), 0, outcomes);
  });
}
zht_code zht_insert_many(zht_client* client, const zht_bytes* keys, const zht_bytes* values, size_t count, zht_outcome** outcomes) {
  return guarded([&] {
    std::vector<Operation> all;
    for (std::size_t i = 0; i < count; i++) all.push_back(Operation::insert(string_of(keys[i]), string_of(values[i])));
    return call_all(client, std::move(all), 0, outcomes);
  });
}

zht_code zht_submit(zht_client* client, const zht_operation* operation, uint64_t timeout_ms, zht_completion_function completion,
                    void* context, uint64_t* request) {
  return guarded([&] {
    auto made = operation_of(*operation);
    if (!made) return failed(made.error());
    auto done = [completion, context](Outcome outcome) { completion(context, wrapped(std::move(outcome)).release()); };
    if (request == nullptr)
      client->client->submit(*std::move(made), std::move(done), millis_of(timeout_ms));
    else
      *request = client->client->start(*std::move(made), std::move(done), millis_of(timeout_ms));
    return ZHT_OK;
  });
}
void zht_cancel(zht_client* client, uint64_t request) {
  (void)guarded([&] {
    client->client->cancel(request);
    return ZHT_OK;
  });
}

zht_code zht_queue_make(zht_client* client, zht_queue** queue) {
  return guarded([&] {
    *queue = nullptr;
    auto made = std::make_unique<zht_queue>();
    if (made->shared->descriptor < 0) return failed(base::fail_errno(errno, "eventfd"));
    made->client = client->client.get();
    *queue = made.release();
    return ZHT_OK;
  });
}
void zht_queue_free(zht_queue* queue) {
  if (queue == nullptr) return;
  (void)guarded([&] {
    std::vector<std::uint64_t> tags;
    {
      const std::lock_guard lock(queue->shared->mutex);
      for (const auto& [tag, request] : queue->shared->under_way) tags.push_back(tag);
    }
    for (const std::uint64_t tag : tags) queue->cancel(tag);
    return ZHT_OK;
  });
  delete queue;
}
int zht_queue_descriptor(const zht_queue* queue) { return queue->shared->descriptor; }

zht_code zht_queue_submit(zht_queue* queue, const zht_operation* operation, uint64_t timeout_ms, uint64_t tag) {
  return guarded([&] {
    auto made = operation_of(*operation);
    if (!made) return failed(made.error());
    queue->start({tag, millis_of(timeout_ms), *std::move(made)});
    return ZHT_OK;
  });
}
void zht_queue_cancel(zht_queue* queue, uint64_t tag) {
  (void)guarded([&] {
    queue->cancel(tag);
    return ZHT_OK;
  });
}

size_t zht_queue_take(zht_queue* queue, zht_completed* completed, size_t most) {
  std::size_t taken = 0;
  (void)guarded([&] {
    const std::lock_guard lock(queue->shared->mutex);
    auto& answers = queue->shared->answers;
    if (answers.empty() || most == 0) return ZHT_OK;
    for (; taken < most && !answers.empty(); taken++) {
      completed[taken] = {answers.front().first, wrapped(std::move(answers.front().second)).release()};
      answers.pop_front();
    }
    queue->shared->quiet();
    return ZHT_OK;
  });
  return taken;
}

zht_code zht_queue_submit_flat(zht_queue* queue, const void* operations, size_t size) {
  return guarded([&] {
    Bytes in(static_cast<const char*>(operations), size);
    std::vector<FlatOperation> all;
    while (!in.empty()) {
      auto one = next_flat(in);
      if (!one) return failed(one.error());
      all.push_back(*std::move(one));
    }
    // Those of one time-out go together; callbacks one by one, each with a number to cancel it by.
    for (std::size_t at = 0; at < all.size();) {
      if (all[at].operation.kind == zht::OpKind::callback) {
        queue->start(std::move(all[at++]));
        continue;
      }
      std::vector<Operation> together;
      std::vector<std::uint64_t> tags;
      const Millis timeout = all[at].timeout;
      for (; at < all.size() && all[at].timeout == timeout && all[at].operation.kind != zht::OpKind::callback; at++) {
        together.push_back(std::move(all[at].operation));
        tags.push_back(all[at].tag);
      }
      queue->client->submit_each(
          std::move(together),
          [to = queue->shared, tags = std::move(tags)](std::size_t index, Outcome outcome) { to->put(tags[index], std::move(outcome)); },
          timeout);
    }
    return ZHT_OK;
  });
}

size_t zht_queue_take_flat(zht_queue* queue, void* to, size_t size, size_t* needed) {
  std::size_t used = 0;
  *needed = 0;
  (void)guarded([&] {
    const std::lock_guard lock(queue->shared->mutex);
    auto& answers = queue->shared->answers;
    if (answers.empty()) return ZHT_OK;
    std::string one;
    while (!answers.empty()) {
      one.clear();
      base::Writer writer(one);
      writer.u64(answers.front().first);
      writer.u32(0);
      zht::wire::encode_outcome(one, answers.front().second);
      base::store(one.data() + 8, static_cast<std::uint32_t>(one.size() - 12));
      if (one.size() > size - used) {
        if (used == 0) *needed = one.size();
        break;
      }
      std::memcpy(static_cast<char*>(to) + used, one.data(), one.size());
      used += one.size();
      answers.pop_front();
    }
    queue->shared->quiet();
    return ZHT_OK;
  });
  return used;
}

size_t zht_queue_call_flat(zht_queue* queue, const void* operation, size_t operation_size, void* to, size_t size, size_t* needed) {
  std::size_t used = 0;
  *needed = 0;
  const zht_code code = guarded([&] {
    Bytes in(static_cast<const char*>(operation), operation_size);
    auto flat = next_flat(in);
    if (!flat) return failed(flat.error());
    if (!in.empty()) return failed(Code::invalid, "one operation at a time");
    const std::uint64_t tag = flat->tag;
    if (flat->operation.kind == zht::OpKind::callback) {
      queue->start(*std::move(flat));
      return ZHT_OK;
    }
    auto answer = queue->client->call_or_submit(
        std::move(flat->operation), [shared = queue->shared, tag](Outcome outcome) { shared->put(tag, std::move(outcome)); }, flat->timeout);
    if (!answer) return ZHT_OK;
    std::string one;
    base::Writer writer(one);
    writer.u64(tag);
    writer.u32(0);
    zht::wire::encode_outcome(one, *answer);
    base::store(one.data() + 8, static_cast<std::uint32_t>(one.size() - 12));
    if (one.size() > size) {
      *needed = one.size();
      queue->shared->put(tag, *std::move(answer));
      return ZHT_OK;
    }
    std::memcpy(to, one.data(), one.size());
    used = one.size();
    return ZHT_OK;
  });
  return code == ZHT_OK ? used : static_cast<std::size_t>(-1);
}

}  // extern "C"

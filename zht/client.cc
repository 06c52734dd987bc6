// The typed blocking forms, all in terms of Client::submit.
#include "zht/client.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>

namespace zht {
namespace {

// Where a blocked caller waits for `left` completions.
class Waiter {
 public:
  explicit Waiter(std::size_t count) : left_(count) {}
  void done() {
    // Notified under the lock: the waiter may destroy this object as soon as it can take the mutex.
    const std::lock_guard lock(mutex_);
    if (--left_ == 0) ready_.notify_one();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    ready_.wait(lock, [this] { return left_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable ready_;
  std::size_t left_;
};

std::vector<Result<Version>> versions_of(std::vector<Outcome> outcomes) {
  std::vector<Result<Version>> versions;
  versions.reserve(outcomes.size());
  for (Outcome& outcome : outcomes) versions.push_back(version_of(std::move(outcome)));
  return versions;
}

}  // namespace

Result<Version> version_of(Outcome outcome) {
  if (!outcome.ok()) return outcome.error();
  return outcome.version;
}

Result<Value> value_of(Outcome outcome) {
  if (!outcome.ok()) return outcome.error();
  Value value;
  value.value = std::move(outcome.value);
  value.version = outcome.present ? outcome.version : 0;
  value.fragments = std::move(outcome.fragments);
  value.size = outcome.size;
  value.offset = outcome.offset;
  return value;
}

Result<Appended> appended_of(Outcome outcome) {
  if (!outcome.ok()) return outcome.error();
  return Appended{outcome.size, outcome.fragment_index, outcome.version};
}

Result<Swap> swap_of(Outcome outcome) {
  if (!outcome.ok() && outcome.code != Code::conflict) return outcome.error();
  Swap swap;
  swap.swapped = outcome.ok();
  swap.version = outcome.version;
  if (!swap.swapped && outcome.present) swap.current = std::move(outcome.value);
  return swap;
}

RequestNumber Client::start(Operation operation, Completion completion, Millis timeout) {
  submit(std::move(operation), std::move(completion), timeout);
  return 0;
}

void Client::cancel(RequestNumber) {}

void Client::submit_all(std::vector<Operation> operations, AllCompletion completion, Millis timeout) {
  struct Gathering {
    std::vector<Outcome> outcomes;
    std::atomic<std::size_t> left;
    AllCompletion completion;
  };
  auto gathering = std::make_shared<Gathering>();
  gathering->outcomes.resize(operations.size());
  gathering->left = operations.size();
  gathering->completion = std::move(completion);
  if (operations.empty()) return gathering->completion({});
  submit_each(
      std::move(operations),
      [gathering](std::size_t index, Outcome outcome) {
        gathering->outcomes[index] = std::move(outcome);
        if (gathering->left.fetch_sub(1) == 1) gathering->completion(std::move(gathering->outcomes));
      },
      timeout);
}

void Client::submit_each(std::vector<Operation> operations, EachCompletion completion, Millis timeout) {
  const auto shared = std::make_shared<EachCompletion>(std::move(completion));
  for (std::size_t i = 0; i < operations.size(); i++)
    submit(std::move(operations[i]), [shared, i](Outcome outcome) { (*shared)(i, std::move(outcome)); }, timeout);
}

void Client::call_each(std::vector<Operation> operations, EachCompletion completion, bool) {
  submit_each(std::move(operations), std::move(completion));
}

std::optional<Outcome> Client::call_or_submit(Operation operation, Completion completion, Millis timeout) {
  submit(std::move(operation), std::move(completion), timeout);
  return std::nullopt;
}

Outcome Client::call(Operation operation, Millis timeout) {
  Waiter waiter(1);
  Outcome answer;
  submit(
      std::move(operation),
      [&](Outcome outcome) {
        answer = std::move(outcome);
        waiter.done();
      },
      timeout);
  waiter.wait();
  return answer;
}

std::vector<Outcome> Client::call_all(std::vector<Operation> operations, Millis timeout) {
  std::vector<Outcome> answers(operations.size());
  if (operations.empty()) return answers;
  Waiter waiter(operations.size());
  for (std::size_t i = 0; i < operations.size(); i++)
    submit(
        std::move(operations[i]),
        [&answers, &waiter, i](Outcome outcome) {
          answers[i] = std::move(outcome);
          waiter.done();
        },
        timeout);
  waiter.wait();
  return answers;
}

Result<Version> Client::insert(Bytes key, Bytes value, Millis ttl) {
  return version_of(call(Operation::insert(std::string(key), std::string(value), ttl)));
}
Result<Version> Client::insert_new(Bytes key, Bytes value, Millis ttl) {
  return version_of(call(Operation::insert_new(std::string(key), std::string(value), ttl)));
}
Result<Value> Client::lookup(Bytes key, Range range) {
  return value_of(call(Operation::lookup(std::string(key), range)));
}
Result<Value> Client::lookup_eventual(Bytes key, Version at_least, Range range) {
  return value_of(call(Operation::lookup_eventual(std::string(key), at_least, range)));
}
Result<Version> Client::remove(Bytes key) { return version_of(call(Operation::remove(std::string(key)))); }

Result<Appended> Client::append(Bytes key, Bytes value, std::uint64_t limit) {
  return appended_of(call(Operation::append(std::string(key), std::string(value), limit)));
}
Result<Swap> Client::cswap(Bytes key, Condition expected, Bytes desired, Millis ttl) {
  return swap_of(call(Operation::cswap(std::string(key), std::move(expected), std::string(desired), ttl)));
}
Result<Swap> Client::cswap_remove(Bytes key, Condition expected) {
  return swap_of(call(Operation::cswap_remove(std::string(key), std::move(expected))));
}
Result<Value> Client::callback(Bytes key, Condition condition, Millis timeout, Range range) {
  return value_of(call(Operation::callback(std::string(key), std::move(condition), range), timeout));
}
Result<std::string> Client::update(Bytes key, std::string_view procedure, Bytes arguments) {
  Outcome outcome = call(Operation::update(std::string(key), std::string(procedure), std::string(arguments)));
  if (!outcome.ok()) return outcome.error();
  return std::move(outcome.value);
}
Result<std::vector<Outcome>> Client::batch(std::vector<Operation> operations) {
  Outcome outcome = call(Operation::batch(std::move(operations)));
  if (!outcome.ok()) return outcome.error();
  return std::move(outcome.outcomes);
}

std::vector<Result<Value>> Client::lookup_many(std::vector<std::string> keys) {
  std::vector<Operation> operations;
  operations.reserve(keys.size());
  for (std::string& key : keys) operations.push_back(Operation::lookup(std::move(key)));
  std::vector<Result<Value>> values;
  values.reserve(keys.size());
  for (Outcome& outcome : call_all(std::move(operations)))
    values.push_back(value_of(std::move(outcome)));
  return values;
}

std::vector<Result<Version>> Client::insert_many(std::vector<std::pair<std::string, std::string>> pairs, Millis ttl) {
  std::vector<Operation> operations;
  operations.reserve(pairs.size());
  for (auto& [key, value] : pairs) operations.push_back(Operation::insert(std::move(key), std::move(value), ttl));
  return versions_of(call_all(std::move(operations)));
}

std::vector<Result<Version>> Client::remove_many(std::vector<std::string> keys) {
  std::vector<Operation> operations;
  operations.reserve(keys.size());
  for (std::string& key : keys) operations.push_back(Operation::remove(std::move(key)));
  return versions_of(call_all(std::move(operations)));
}

Result<void> Client::scan(std::string prefix, const std::function<bool(const ScanEntry&)>& entry, std::uint64_t page) {
  if (page == 0 || page > 10'000) return fail(Code::invalid, "scan: ", page, " entries a page; 1 to 10000");
  // A prefix that holds a whole tag names its partition; else every partition may have such keys.
  const bool tagged = hash_tag(prefix).size() < prefix.size();
  const std::uint32_t first = tagged ? static_cast<std::uint32_t>(partition_of(prefix, partition_count())) : 0;
  const std::uint32_t last = tagged ? first + 1 : partition_count();
  // Most partitions have few such keys: the next ones are asked meanwhile.
  constexpr std::uint32_t kAhead = 64;
  for (std::uint32_t from = first; from < last; from += kAhead) {
    std::vector<Operation> pages;
    for (std::uint32_t p = from; p < std::min(last, from + kAhead); p++)
      pages.push_back(Operation::scan(PartitionId{p}, 0, prefix, page));
    std::vector<Outcome> outcomes = call_all(std::move(pages));
    for (std::size_t i = 0; i < outcomes.size(); i++) {
      Outcome outcome = std::move(outcomes[i]);
      for (;;) {
        if (!outcome.ok()) return outcome.error();
        for (const ScanEntry& one : outcome.entries)
          if (!entry(one)) return {};
        if (outcome.cursor == 0) break;
        outcome = call(Operation::scan(PartitionId{from + static_cast<std::uint32_t>(i)}, outcome.cursor, prefix, page));
      }
    }
  }
  return {};
}

}  // namespace zht

// The typed blocking forms, all in terms of Client::submit.
#include "zht/client.h"

#include <condition_variable>
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

Value value_of(Outcome outcome) {
  Value value;
  value.value = std::move(outcome.value);
  value.version = outcome.version;
  value.fragments = std::move(outcome.fragments);
  value.size = outcome.size;
  value.offset = outcome.offset;
  return value;
}

Result<Version> version_of(Outcome outcome) {
  if (!outcome.ok()) return outcome.error();
  return outcome.version;
}

Result<Swap> swap_of(Outcome outcome) {
  if (!outcome.ok() && outcome.code != Code::conflict) return outcome.error();
  Swap swap;
  swap.swapped = outcome.ok();
  swap.version = outcome.version;
  if (!swap.swapped && outcome.present) swap.current = std::move(outcome.value);
  return swap;
}

}  // namespace

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
  Outcome outcome = call(Operation::lookup(std::string(key), range));
  if (!outcome.ok()) return outcome.error();
  return value_of(std::move(outcome));
}
Result<Version> Client::remove(Bytes key) { return version_of(call(Operation::remove(std::string(key)))); }

Result<Appended> Client::append(Bytes key, Bytes value, std::uint64_t limit) {
  const Outcome outcome = call(Operation::append(std::string(key), std::string(value), limit));
  if (!outcome.ok()) return outcome.error();
  return Appended{outcome.size, outcome.fragment_index, outcome.version};
}
Result<Swap> Client::cswap(Bytes key, Condition expected, Bytes desired, Millis ttl) {
  return swap_of(call(Operation::cswap(std::string(key), std::move(expected), std::string(desired), ttl)));
}
Result<Swap> Client::cswap_remove(Bytes key, Condition expected) {
  return swap_of(call(Operation::cswap_remove(std::string(key), std::move(expected))));
}
Result<Value> Client::callback(Bytes key, Condition condition, Millis timeout, Range range) {
  Outcome outcome = call(Operation::callback(std::string(key), std::move(condition), range), timeout);
  if (!outcome.ok()) return outcome.error();
  Value value = value_of(std::move(outcome));
  if (!outcome.present) value.version = 0;
  return value;
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

}  // namespace zht

#include "zht/tool/bench_wake.h"

#include <condition_variable>
#include <memory>
#include <mutex>

#include "zht/tool/bench_load.h"

namespace zht::tool {
namespace {

using namespace std::chrono_literals;
using std::chrono::steady_clock;

// Waiters of one round. A change that comes late finds its waiter still there: they wait for ten minutes.
constexpr Millis kPatience{600'000};
constexpr auto kGivesUp = 30s;  // after the last change

struct Waiter {
  steady_clock::time_point asked{}, answered{}, woken{};
  std::string problem;
  bool done = false;
};

struct Round {
  std::mutex mutex;  // guards the rest
  std::condition_variable changed;
  std::vector<Waiter> waiters;
  std::size_t woken = 0;
};

std::uint64_t nanos(steady_clock::duration time) {
  return static_cast<std::uint64_t>(
      std::max<std::int64_t>(0, std::chrono::duration_cast<std::chrono::nanoseconds>(time).count()));
}

Result<void> one_round(Client& waiting, Client& changing, const WakeOptions& options, std::uint64_t number,
                       WakeResult& result, const std::function<Result<void>()>& registered) {
  const std::uint64_t keys = options.one_key ? 1 : options.waiters;
  const auto key_of = [&](std::uint64_t i) { return bench_key(options.one_key ? 0 : i, options.key_size); };
  const std::string wanted = "wake " + std::to_string(number) + ":" + std::string(options.value_size, 'w');
  std::vector<Operation> first;
  for (std::uint64_t i = 0; i < keys; i++)
    first.push_back(Operation::insert(key_of(i), "asleep " + std::to_string(number)));
  std::vector<Version> versions;
  for (const Outcome& outcome : changing.call_all(std::move(first))) {
    if (!outcome.ok()) return base::add_context("preparing", outcome.error());
    versions.push_back(outcome.version);
  }
  // Outlives this call: a completion may come after the round was given up.
  auto round = std::make_shared<Round>();
  round->waiters.resize(options.waiters);
  for (std::uint64_t i = 0; i < options.waiters; i++)
    waiting.submit(
        Operation::callback(key_of(i), Condition::after_version(versions[options.one_key ? 0 : i])),
        [round, i, wanted](Outcome outcome) {
          const auto now = steady_clock::now();
          const std::lock_guard lock(round->mutex);
          Waiter& waiter = round->waiters[i];
          waiter.woken = now;
          waiter.done = true;
          if (!outcome.ok())
            waiter.problem = std::string(base::name_of(outcome.code)) + ": " + outcome.message;
          else if (outcome.value != wanted)
            waiter.problem = "woken with \"" + base::escape(outcome.value, 40) + "\"";
          if (++round->woken == round->waiters.size()) round->changed.notify_all();
        },
        kPatience);
  TRY(registered());
  // Every instance once, so that connections are there: what is measured is the waking.
  std::vector<Operation> greetings;
  for (std::uint64_t i = 0; i < std::min<std::uint64_t>(100, std::max<std::uint64_t>(keys, 8)); i++)
    greetings.push_back(Operation::lookup(bench_key(i, options.key_size)));
  for (Operation& greeting : greetings) (void)changing.call(std::move(greeting));
  const auto began = steady_clock::now();
  for (std::uint64_t i = 0; i < keys; i++) {
    const auto asked = steady_clock::now();
    const Outcome outcome = changing.call(Operation::insert(key_of(i), wanted));
    const auto answered = steady_clock::now();
    if (!outcome.ok()) return base::add_context("changing " + key_of(i), outcome.error());
    const std::lock_guard lock(round->mutex);
    for (std::uint64_t w = i; w < (options.one_key ? options.waiters : i + 1); w++) {
      round->waiters[w].asked = asked;
      round->waiters[w].answered = answered;
    }
  }
  std::unique_lock lock(round->mutex);
  round->changed.wait_for(lock, kGivesUp, [&] { return round->woken == round->waiters.size(); });
  result.seconds += std::chrono::duration<double>(steady_clock::now() - began).count();
  for (const Waiter& waiter : round->waiters) {
    if (!waiter.problem.empty()) return fail(Code::corrupt, "a waiter ended otherwise: ", waiter.problem);
    if (!waiter.done) {
      result.lost++;
      continue;
    }
    result.woken++;
    result.after_change.add(nanos(waiter.woken - waiter.asked));
    result.after_answer.add(nanos(waiter.woken - waiter.answered));
  }
  return {};
}

}  // namespace

Result<WakeResult> run_wake(Client& waiting, Client& changing, const WakeOptions& options,
                            const std::function<Result<void>()>& registered) {
  WakeResult result;
  for (std::uint64_t i = 0; i < options.rounds; i++) TRY(one_round(waiting, changing, options, i, result, registered));
  return result;
}

}  // namespace zht::tool

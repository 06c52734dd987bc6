// `zht bench`: how fast is this store? Each connection is a client of its own with a number of operations in flight;
// every answer is checked.
#include <CLI/CLI.hpp>
#include <array>
#include <atomic>
#include <bit>
#include <condition_variable>
#include <iostream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "novoht/base/random.h"
#include "zht/support/output.h"
#include "zht/support/progress.h"
#include "zht/tool/verbs.h"

namespace zht::tool {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using std::chrono::steady_clock;

// Latencies in nanoseconds, to 1.6%: 64 steps in each power of two.
class Histogram {
 public:
  void add(std::uint64_t nanos) {
    counts_[index_of(nanos)]++;
    count_++;
    most_ = std::max(most_, nanos);
  }
  void merge(const Histogram& other) {
    for (std::size_t i = 0; i < counts_.size(); i++) counts_[i] += other.counts_[i];
    count_ += other.count_;
    most_ = std::max(most_, other.most_);
  }
  double micros_at(double part) const {
    const auto wanted = static_cast<std::uint64_t>(part * static_cast<double>(count_));
    std::uint64_t seen = 0;
    for (std::size_t i = 0; i < counts_.size(); i++)
      if ((seen += counts_[i]) > wanted) return static_cast<double>(value_of(i)) / 1000;
    return static_cast<double>(most_) / 1000;
  }
  std::uint64_t count() const { return count_; }
  double most_micros() const { return static_cast<double>(most_) / 1000; }

 private:
  static std::size_t index_of(std::uint64_t nanos) {
    if (nanos < 64) return nanos;
    const auto power = static_cast<unsigned>(std::bit_width(nanos)) - 7;  // so that nanos >> power is 64..127
    return (power + 1) * 64 + (nanos >> power) - 64;
  }
  static std::uint64_t value_of(std::size_t index) {
    if (index < 64) return index;
    return (64 + index % 64) << (index / 64 - 1);
  }
  std::array<std::uint64_t, 60 * 64> counts_{};
  std::uint64_t count_ = 0, most_ = 0;
};

struct BenchOptions {
  std::string operation = "set";
  std::uint64_t connections = 1, depth = 1, keys = 100'000, key_size = 15, value_size = 132, count = 0;
  Millis duration{3000};
  std::string letters;  // the alphabet, over and over
};

std::string key_of(const BenchOptions& options, std::uint64_t number) {
  std::string key = "bench:" + std::to_string(number);
  key.resize(std::max<std::size_t>(key.size(), options.key_size), '.');
  return key;
}
// Every key has one value, so that any lookup can be checked: its number, then letters from a place in the alphabet.
std::string value_of(const BenchOptions& options, std::uint64_t number) {
  std::string value = std::to_string(number) + ":";
  if (value.size() < options.value_size) value.append(options.letters, number % 26, options.value_size - value.size());
  return value;
}

// One connection's share of the load.
class Worker {
 public:
  Worker(const BenchOptions& options, std::unique_ptr<Client> client, std::uint64_t seed,
         std::atomic<std::uint64_t>& done)
      : options_(options), client_(std::move(client)), random_(seed), done_(done) {}

  void run(steady_clock::time_point end) {
    end_ = end;
    if (options_.depth == 1) {
      while (more()) {
        bool set = false;
        const std::uint64_t number = choose(set);
        Operation operation = make(number, set);
        const auto began = steady_clock::now();
        const Outcome outcome = client_->call(std::move(operation));
        finish(outcome, number, set, began);
      }
      return;
    }
    std::unique_lock lock(mutex_);
    in_flight_ = options_.depth;
    lock.unlock();
    for (std::uint64_t i = 0; i < options_.depth; i++) next();
    lock.lock();
    idle_.wait(lock, [this] { return in_flight_ == 0; });
  }
  const Histogram& histogram() const { return histogram_; }
  const std::string& failure() const { return failure_; }

 private:
  bool more() {
    if (!failure_.empty() || (options_.count > 0 && started_ >= options_.count / options_.connections)) return false;
    started_++;
    return options_.count > 0 || steady_clock::now() < end_;
  }
  std::uint64_t choose(bool& set) {
    set = options_.operation == "set" || (options_.operation == "mix" && random_.chance(0.5));
    return random_.below(options_.keys);
  }
  Operation make(std::uint64_t number, bool set) const {
    return set ? Operation::insert(key_of(options_, number), value_of(options_, number))
               : Operation::lookup(key_of(options_, number));
  }
  void finish(const Outcome& outcome, std::uint64_t number, bool set, steady_clock::time_point began) {
    histogram_.add(static_cast<std::uint64_t>((steady_clock::now() - began).count()));
    done_.fetch_add(1, std::memory_order_relaxed);
    if (!outcome.ok())
      failure_ = std::string(base::name_of(outcome.code)) + " for " + key_of(options_, number) + ": " + outcome.message;
    else if (set ? outcome.version == 0 : outcome.value != value_of(options_, number))
      failure_ = "wrong answer for " + key_of(options_, number) + ": \"" + base::escape(outcome.value, 60) + "\"";
  }
  // Runs on the client's thread but for the first of each chain, which have a lock to themselves.
  void next() {
    std::unique_lock lock(mutex_);
    if (!more()) {
      if (--in_flight_ == 0) idle_.notify_all();
      return;
    }
    bool set = false;
    const std::uint64_t number = choose(set);
    lock.unlock();
    const auto began = steady_clock::now();
    client_->submit(make(number, set), [this, number, set, began](Outcome outcome) {
      {
        const std::lock_guard guard(mutex_);
        finish(outcome, number, set, began);
      }
      next();
    });
  }

  const BenchOptions& options_;
  std::unique_ptr<Client> client_;
  base::Random random_;
  std::atomic<std::uint64_t>& done_;
  steady_clock::time_point end_;
  std::uint64_t started_ = 0;
  std::mutex mutex_;
  std::condition_variable idle_;
  std::uint64_t in_flight_ = 0;
  Histogram histogram_;
  std::string failure_;
};

Result<void> fill(Client& client, const BenchOptions& options, support::Progress& progress) {
  constexpr std::uint64_t page = 2000;
  for (std::uint64_t from = 0; from < options.keys; from += page) {
    std::vector<Operation> operations;
    for (std::uint64_t number = from; number < std::min(options.keys, from + page); number++)
      operations.push_back(Operation::insert(key_of(options, number), value_of(options, number)));
    for (const Outcome& outcome : client.call_all(std::move(operations)))
      if (!outcome.ok()) return base::add_context("filling", outcome.error());
    progress.set(from);
  }
  return {};
}

Result<void> bench(const support::Program& program, const BenchOptions& options) {
  const bool still = program.common().quiet || program.common().json;
  std::vector<std::unique_ptr<Worker>> workers;
  std::atomic<std::uint64_t> done{0};
  for (std::uint64_t i = 0; i < options.connections; i++) {
    TRY_LET(client, connect(program.common().client_options()));
    if (i == 0 && options.operation != "set") {
      support::Progress progress("filling", options.keys, still);
      TRY(fill(*client, options, progress));
    }
    workers.push_back(std::make_unique<Worker>(options, std::move(client), 1000 + i, done));
  }
  const auto began = steady_clock::now();
  std::vector<std::thread> threads;
  for (auto& worker : workers) threads.emplace_back([&worker, end = began + options.duration] { worker->run(end); });
  std::atomic<bool> over{false};
  std::thread watcher([&] {
    support::Progress progress(options.operation, options.count, still);
    while (!over) {
      progress.set(done);
      std::this_thread::sleep_for(20ms);
    }
    progress.clear();
  });
  for (auto& thread : threads) thread.join();
  const double seconds = std::chrono::duration<double>(steady_clock::now() - began).count();
  over = true;
  watcher.join();
  Histogram all;
  for (const auto& worker : workers) {
    if (!worker->failure().empty()) return fail(Code::corrupt, worker->failure());
    all.merge(worker->histogram());
  }
  const double rate = static_cast<double>(all.count()) / seconds;
  if (program.common().json) {
    support::print_json({{"operation", options.operation},
                         {"connections", options.connections},
                         {"in_flight", options.depth},
                         {"key_size", options.key_size},
                         {"value_size", options.value_size},
                         {"keys", options.keys},
                         {"operations", all.count()},
                         {"seconds", seconds},
                         {"ops_per_s", rate},
                         {"p50_us", all.micros_at(0.5)},
                         {"p99_us", all.micros_at(0.99)},
                         {"p999_us", all.micros_at(0.999)},
                         {"max_us", all.most_micros()}});
    return {};
  }
  const auto micros = [](double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1f", value);
    return std::string(text);
  };
  support::Table table({"OPERATION", "CONNECTIONS", "IN FLIGHT", "OPS/S", "P50 US", "P99 US", "P99.9 US", "MAX US"});
  table.row({options.operation, std::to_string(options.connections), std::to_string(options.depth),
             support::human_count(static_cast<std::uint64_t>(rate)), micros(all.micros_at(0.5)),
             micros(all.micros_at(0.99)), micros(all.micros_at(0.999)), micros(all.most_micros())});
  table.print();
  return {};
}

}  // namespace

void add_bench_verb(support::Program& program) {
  auto& verb =
      program.verb("bench", "Measures operations per second and latency, checking every answer.",
                   {"zht bench --operation get", "zht bench --connections 8 --in-flight 64 --duration 10s --json"});
  auto options = std::make_shared<BenchOptions>();
  auto& app = verb.options();
  app.add_option("--operation", options->operation, "set, get, or mix (half each)")
      ->check(CLI::IsMember({"set", "get", "mix"}));
  app.add_option("--connections", options->connections, "clients")->check(CLI::Range(1, 1000));
  app.add_option("--in-flight", options->depth, "operations each client has under way")->check(CLI::Range(1, 10'000));
  app.add_option("--keys", options->keys, "how many different keys")->check(CLI::Range(1, 1'000'000'000));
  app.add_option("--key-size", options->key_size, "bytes at least")->check(CLI::Range(1, 65'535));
  app.add_option("--value-size", options->value_size, "bytes at least")->check(CLI::Range(0, 16 << 20));
  app.add_option("--count", options->count, "operations in all, instead of --duration");
  support::add_duration(app, "--duration", options->duration, "how long");
  verb.action([&program, options] {
    for (std::uint64_t i = 0; i < options->value_size + 26; i++) options->letters += static_cast<char>('a' + i % 26);
    return bench(program, *options);
  });
}

}  // namespace zht::tool

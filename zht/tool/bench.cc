// `zht bench`: how fast is this store? Every answer is compared with what it must be.
#include <signal.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>

#include "zht/operation_names.h"
#include "zht/support/output.h"
#include "zht/support/process.h"
#include "zht/support/progress.h"
#include "zht/tool/bench_load.h"
#include "zht/tool/bench_wake.h"
#include "zht/tool/manager.h"
#include "zht/tool/verbs.h"

namespace zht::tool {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

struct BenchOptions {
  std::string operation = "insert", mix;
  LoadOptions load;
  WakeOptions wake;
  bool histogram = false, kill_node = false;
};

constexpr std::array<OpKind, 6> kSix = {OpKind::insert, OpKind::lookup, OpKind::append,
                                        OpKind::cswap,  OpKind::remove, OpKind::callback};

std::string micros(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", value);
  return text;
}

json latencies_json(const support::Histogram& histogram) {
  return {{"p50_us", histogram.micros_at(0.5)},
          {"p90_us", histogram.micros_at(0.9)},
          {"p99_us", histogram.micros_at(0.99)},
          {"p999_us", histogram.micros_at(0.999)},
          {"max_us", static_cast<double>(histogram.most()) / 1000}};
}

// [[most microseconds, count], ...], buckets that hold something.
json buckets_json(const support::Histogram& histogram) {
  json all = json::array();
  for (std::size_t i = 0; i < support::Histogram::kBuckets; i++)
    if (histogram.bucket(i) > 0)
      all.push_back({static_cast<double>(support::Histogram::upper_end(i)) / 1000, histogram.bucket(i)});
  return all;
}

// A bar for each power of two.
void print_histogram(const support::Histogram& histogram) {
  std::map<std::uint64_t, std::uint64_t> counts;
  for (std::size_t i = 0; i < support::Histogram::kBuckets; i++)
    if (histogram.bucket(i) > 0) counts[std::bit_ceil(support::Histogram::upper_end(i))] += histogram.bucket(i);
  std::uint64_t most = 1, seen = 0;
  for (const auto& [end, count] : counts) most = std::max(most, count);
  support::Table table({"UP TO US", "COUNT", "SHARE", ""});
  for (const auto& [end, count] : counts) {
    seen += count;
    char share[32];
    std::snprintf(share, sizeof share, "%.3f%%",
                  100 * static_cast<double>(seen) / static_cast<double>(histogram.count()));
    table.row({micros(static_cast<double>(end) / 1000), support::human_count(count), share,
               std::string((count * 50 + most - 1) / most, '#')});
  }
  table.print();
}

json phase_json(const std::string& name, const LoadResult& result, const BenchOptions& options) {
  json phase = latencies_json(result.all);
  phase["operation"] = name;
  phase["operations"] = result.all.count();
  phase["seconds"] = result.seconds;
  phase["requests"] = result.messages.requests;
  phase["replies"] = result.messages.replies;
  phase["redirects"] = result.messages.redirects;
  phase["ops_per_s"] = static_cast<double>(result.all.count()) / result.seconds;
  for (OpKind kind : kSix) {
    const auto& histogram = result.by_kind[static_cast<std::size_t>(kind)];
    if (histogram.count() == 0 || histogram.count() == result.all.count()) continue;
    phase["by_operation"][std::string(name_of(kind))] = latencies_json(histogram);
    phase["by_operation"][std::string(name_of(kind))]["operations"] = histogram.count();
  }
  if (options.histogram) phase["histogram_us"] = buckets_json(result.all);
  return phase;
}

void add_row(support::Table& table, const std::string& name, const support::Histogram& histogram, double seconds) {
  const double rate = static_cast<double>(histogram.count()) / seconds;
  table.row({name, support::human_count(histogram.count()), support::human_count(static_cast<std::uint64_t>(rate)),
             micros(histogram.micros_at(0.5)), micros(histogram.micros_at(0.99)), micros(histogram.micros_at(0.999)),
             micros(static_cast<double>(histogram.most()) / 1000)});
}

struct Phase {
  std::string name;
  Mix mix;
  bool in_order = false;
};

// What is run, and whether the keys must be there first.
Result<std::pair<std::vector<Phase>, bool>> phases_of(const BenchOptions& options) {
  const std::string& name = options.operation;
  if (!options.mix.empty()) {
    TRY_LET(mix, Mix::parse(options.mix));
    return std::pair(std::vector<Phase>{{"mix", mix}}, true);
  }
  // [ZHT] 3.1: every client inserts its keys, looks each up, and removes them all; append as the paper's later figures.
  if (name == "paper")
    return std::pair(std::vector<Phase>{{"insert", Mix::only(OpKind::insert), true},
                                        {"lookup", Mix::only(OpKind::lookup), true},
                                        {"append", Mix::only(OpKind::append), true},
                                        {"remove", Mix::only(OpKind::remove), true}},
                     false);
  if (name == "insert" || name == "set") return std::pair(std::vector<Phase>{{name, Mix::only(OpKind::insert)}}, false);
  if (name == "mix") return std::pair(std::vector<Phase>{{name, *Mix::parse("insert,lookup")}}, true);
  if (name == "six")
    return std::pair(
        std::vector<Phase>{{name, *Mix::parse("insert=25,lookup=40,append=10,cswap=10,remove=10,callback=5")}}, true);
  return std::pair(std::vector<Phase>{{name, *Mix::parse(name == "get" ? "lookup" : name)}}, true);
}

Result<void> bench_load(const support::Program& program, const BenchOptions& options) {
  const bool still = program.common().quiet || program.common().json;
  TRY_LET(phases, phases_of(options));
  std::vector<std::unique_ptr<Client>> clients;
  for (std::uint64_t i = 0; i < options.load.connections; i++) {
    TRY_LET(client, connect(program.common().client_options()));
    clients.push_back(std::move(client));
  }
  Load load(std::move(clients), options.load);
  std::atomic<std::uint64_t> done{0};
  // Draws what is done until `work` has ended.
  const auto watch = [&](const std::string& name, std::uint64_t total, const std::function<void()>& work) {
    done = 0;
    std::atomic<bool> over{false};
    std::thread watcher([&] {
      support::Progress progress(name, total, still);
      while (!over) {
        progress.set(done);
        std::this_thread::sleep_for(20ms);
      }
      progress.clear();
    });
    work();
    over = true;
    watcher.join();
  };
  if (phases.second) {
    Result<void> filled;
    watch("filling", options.load.keys, [&] { filled = load.fill(done); });
    TRY(std::move(filled));
  }
  json all = json::array();
  support::Table table({"OPERATION", "COUNT", "OPS/S", "P50 US", "P99 US", "P99.9 US", "MAX US"});
  support::Histogram merged;
  for (const Phase& phase : phases.first) {
    LoadResult result;
    watch(phase.name, phase.in_order ? options.load.keys : options.load.count,
          [&] { result = load.run(phase.mix, phase.in_order, done); });
    if (!result.failure.empty()) return fail(Code::corrupt, "wrong answer: ", result.failure);
    all.push_back(phase_json(phase.name, result, options));
    add_row(table, phase.name, result.all, result.seconds);
    for (OpKind kind : kSix) {
      const auto& histogram = result.by_kind[static_cast<std::size_t>(kind)];
      if (histogram.count() > 0 && histogram.count() < result.all.count())
        add_row(table, "  " + std::string(name_of(kind)), histogram, result.seconds);
    }
    merged.merge(result.all);
  }
  if (program.common().json) {
    json value = all.size() == 1 ? all[0] : json{{"operation", options.operation}, {"phases", all}};
    value["connections"] = options.load.connections;
    value["in_flight"] = options.load.depth;
    value["keys"] = options.load.keys;
    value["key_size"] = options.load.key_size;
    value["value_size"] = options.load.value_size;
    value["zipf"] = options.load.zipf;
    support::print_json(value);
    return {};
  }
  table.print();
  std::cout << "every answer was as expected\n";
  if (options.histogram) {
    std::cout << "\n";
    print_histogram(merged);
  }
  return {};
}

std::uint64_t watchers_of(const wire::Status& status) {
  std::uint64_t count = 0;
  for (const auto& instance : status.instances()) count += instance.watchers();
  return count;
}

Result<void> bench_wake(const support::Program& program, const BenchOptions& options) {
  TRY_LET(waiting, connect(program.common().client_options()));
  TRY_LET(changing, connect(program.common().client_options()));
  TRY_LET(addresses, managers(program));
  const auto all_wait = [&]() -> Result<void> {
    Result<wire::Status> status = fail(Code::unavailable, "no status");
    const bool there = support::wait_until(60s, [&] {
      status = status_of(addresses, 5s);
      return status && watchers_of(*status) >= options.wake.waiters;
    });
    if (!there && !status) return status.error();
    if (!there) return fail(Code::timeout, watchers_of(*status), " of ", options.wake.waiters, " waiters after 60 s");
    return {};
  };
  const auto registered = [&]() -> Result<void> {
    TRY(all_wait());
    if (!options.kill_node) return {};
    TRY_LET(status, status_of(addresses, 5s));
    const auto pid = static_cast<pid_t>(status.pid());
    if (::kill(pid, SIGKILL) != 0) return base::fail_errno(errno, "kill -9 of the node, process " + std::to_string(pid));
    support::wait_until(10s, [&] { return !support::process_exists(pid); });
    // The client finds it dead and starts it again, or somebody else does; then each waiter registers anew.
    return all_wait();
  };
  TRY_LET(result, run_wake(*waiting, *changing, options.wake, registered));
  if (program.common().json) {
    json value = latencies_json(result.after_change);
    value["operation"] = "callback";
    value["waiters"] = options.wake.waiters;
    value["one_key"] = options.wake.one_key;
    value["rounds"] = options.wake.rounds;
    value["killed_node"] = options.kill_node;
    value["woken"] = result.woken;
    value["lost"] = result.lost;
    value["seconds"] = result.seconds;
    value["after_answer"] = latencies_json(result.after_answer);
    if (options.histogram) value["histogram_us"] = buckets_json(result.after_change);
    support::print_json(value);
  } else {
    support::Table table({"WOKEN AFTER", "COUNT", "LOST", "P50 US", "P99 US", "P99.9 US", "MAX US"});
    const auto row = [&](const std::string& name, const support::Histogram& histogram) {
      table.row({name, support::human_count(result.woken), std::to_string(result.lost),
                 micros(histogram.micros_at(0.5)), micros(histogram.micros_at(0.99)),
                 micros(histogram.micros_at(0.999)), micros(static_cast<double>(histogram.most()) / 1000)});
    };
    row("the change was sent", result.after_change);
    row("the change was answered", result.after_answer);
    table.print();
    if (options.histogram) {
      std::cout << "\n";
      print_histogram(result.after_change);
    }
  }
  if (result.lost > 0) return fail(Code::corrupt, result.lost, " waiters were never woken");
  return {};
}

}  // namespace

void add_bench_verb(support::Program& program) {
  auto& verb = program.verb("bench", "Measures operations per second and latency, checking every answer.",
                            {"zht bench --operation lookup --connections 8",
                             "zht bench --mix insert=20,lookup=80 --zipf 0.99 --in-flight 64 --json"});
  auto options = std::make_shared<BenchOptions>();
  auto& app = verb.options();
  app.add_option("--operation", options->operation,
                 "insert (set), lookup (get), remove, append, cswap; mix: half insert, half lookup; six: all six "
                 "mixed; paper: insert "
                 "all keys, then lookup, append and remove all; callback: waiters and how soon they wake")
      ->check(CLI::IsMember(
          {"insert", "set", "lookup", "get", "remove", "append", "cswap", "mix", "six", "paper", "callback"}));
  app.add_option("--mix", options->mix, "instead of --operation: parts such as insert=50,lookup=40,append=10");
  LoadOptions& load = options->load;
  app.add_option("--connections", load.connections, "clients")->check(CLI::Range(1, 1000));
  app.add_option("--in-flight", load.depth, "operations each client has under way")->check(CLI::Range(1, 10'000));
  app.add_option("--keys", load.keys, "how many different keys")->check(CLI::Range(1, 500'000'000));
  app.add_option("--key-size", load.key_size, "bytes at least")->check(CLI::Range(1, 65'535));
  app.add_option("--value-size", load.value_size, "bytes at least")->check(CLI::Range(0, 16 << 20));
  app.add_option("--append-size", load.append_size, "bytes of what an append adds")->check(CLI::Range(1, 16 << 20));
  app.add_option("--zipf", load.zipf, "how uneven: 0.99 as web caches see it; 0: every key equally often")
      ->check(CLI::Range(0.0, 0.999));
  app.add_option("--count", load.count, "operations in all, instead of --duration");
  support::add_duration(app, "--duration", load.duration, "how long (3s)");
  app.add_flag("--histogram", options->histogram, "the distribution of latencies too");
  app.add_option("--waiters", options->wake.waiters, "callback: how many wait")->check(CLI::Range(1, 900'000));
  app.add_flag("--one-key", options->wake.one_key, "callback: all wait for one key, not each for its own");
  app.add_option("--rounds", options->wake.rounds, "callback: how often")->check(CLI::Range(1, 100'000));
  app.add_flag("--kill-node", options->kill_node,
               "callback: kill -9 of the local node when all wait; its clients start it again");
  verb.action([&program, options]() -> Result<void> {
    LoadOptions& mine = options->load;
    mine.keys = std::max(mine.keys, mine.connections * mine.depth);
    for (std::uint64_t i = 0; i < std::max(mine.value_size, mine.append_size) + 26; i++)
      mine.letters += static_cast<char>('a' + i % 26);
    options->wake.key_size = mine.key_size;
    options->wake.value_size = mine.value_size;
    if (options->operation == "callback" && options->mix.empty()) return bench_wake(program, *options);
    return bench_load(program, *options);
  });
}

}  // namespace zht::tool

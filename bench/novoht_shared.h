// Many threads on one table: what do lookups cost when others look up, or write, at the same time? SharedTable beside what
// an embedder would write in its place: a map under one std::shared_mutex, and 64 flat maps with a mutex each.
#pragma once

#include <array>
#include <atomic>
#include <mutex>
#include <shared_mutex>
#include <thread>

#include "bench/novoht_engines.h"
#include "novoht/base/random.h"
#include "novoht/shared_table.h"

namespace bench {

class SharedNovoht {
 public:
  explicit SharedNovoht(const std::string& folder) : files_(base::real_files()) {
    novoht::SharedOptions options;
    options.durability = novoht::Durability::none;  // its log is written all the same, every few milliseconds
    auto opened = novoht::SharedTable::open(*files_, folder + "/novoht", options);
    if (!opened) wrong(opened.error().message);
    table_ = *std::move(opened);
  }
  void insert(Bytes key, Bytes value) { require(table_->insert(key, value).has_value(), "insert failed"); }
  bool equals(Bytes key, Bytes expected) const {
    const auto view = table_->view(key);
    return view && view.value() == expected;
  }

 private:
  std::unique_ptr<base::FileSystem> files_;
  std::unique_ptr<novoht::SharedTable> table_;
};

// kShards maps, each under a lock of its own.
template <typename Kind, typename Mutex, typename ReadLock, std::size_t kShards>
class LockedMaps {
 public:
  explicit LockedMaps(const std::string&) {}
  void insert(Bytes key, Bytes value) {
    Shard& shard = shard_of(key);
    const std::lock_guard lock(shard.mutex);
    if (const auto found = shard.map.find(Kind::view(key)); found != shard.map.end()) found->second.assign(value);
    else shard.map.emplace(std::string(key), std::string(value));
  }
  bool equals(Bytes key, Bytes expected) {
    Shard& shard = shard_of(key);
    const ReadLock lock(shard.mutex);
    const auto found = shard.map.find(Kind::view(key));
    return found != shard.map.end() && found->second == expected;
  }

 private:
  struct alignas(64) Shard {
    Mutex mutex;
    typename Kind::Map map;
  };
  Shard& shard_of(Bytes key) { return shards_[kShards == 1 ? 0 : base::hash64(key) % kShards]; }
  std::array<Shard, kShards> shards_;
};
using SharedUnordered = LockedMaps<UnorderedMap, std::shared_mutex, std::shared_lock<std::shared_mutex>, 1>;
#ifdef WITH_ABSL
using ShardedFlat = LockedMaps<FlatHashMap, std::mutex, std::lock_guard<std::mutex>, 64>;
#endif

template <typename Table>
void measure_shared(const Arguments& arguments, const Report& report, const std::string& folder) {
  const auto pairs = arguments.pick<std::size_t>(2'000, 1'000'000, 1'000'000);
  const double seconds = arguments.pick<double>(0.02, 0.5, 2.0);
  Table table(folder);
  for (std::size_t i = 0; i < pairs; i++) {
    const Pair pair(i);
    table.insert(pair.key(), pair.value());
  }
  // Each thread looks up until the time is over, or overwrites pairs with what they are; returns how many each did.
  const auto run = [&](int readers, int writers) {
    std::atomic<bool> over = false;
    std::vector<std::uint64_t> counts(static_cast<std::size_t>(readers + writers));
    std::vector<std::thread> threads;
    for (int t = 0; t < readers + writers; t++) {
      threads.emplace_back([&, t] {
        base::Random random(static_cast<std::uint64_t>(t + 1));
        std::uint64_t count = 0;
        for (; !over.load(std::memory_order_relaxed); count++) {
          const Pair pair(random.below(pairs));
          if (t >= readers) table.insert(pair.key(), pair.value());
          else require(table.equals(pair.key(), pair.value()), "shared get: a wrong value");
        }
        counts[static_cast<std::size_t>(t)] = count;
      });
    }
    Stopwatch watch;
    while (watch.seconds() < seconds) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    over = true;
    for (std::thread& thread : threads) thread.join();
    const double took = watch.seconds();
    std::pair<double, double> rates{0, 0};
    for (int t = 0; t < readers + writers; t++)
      (t < readers ? rates.first : rates.second) += static_cast<double>(counts[static_cast<std::size_t>(t)]) / took;
    return rates;
  };
  report.row("shared get 1 thread", "ops_per_s", run(1, 0).first);
  report.row("shared get 2 threads", "ops_per_s", run(2, 0).first);
  const auto [reads, writes] = run(1, 1);
  report.row("shared get beside a writer", "ops_per_s", reads);
  report.row("shared insert beside a reader", "ops_per_s", writes);
}

}  // namespace bench

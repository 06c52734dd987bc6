// What does one operation cost an embedder? The paper's workload: 48-byte keys, 24-byte values, one thread; insert all,
// get in random order, append to all, remove all, each in an order of its own. NoVoHT has its log on and hands it to the
// operating system every kRound operations, with the housekeeping inside the measured time.
//
//   novoht_bench --system novoht --quick --dir /tmp/empty [--large=1] [--only=always,recover]
//
// Every answer is checked. Each section below runs in a process of its own, so that memory is counted from nothing:
//   1M 10M 100M   the workload, with memory and disk; sixteen keys a call where the system has such calls
//   p9999         every insert timed alone while the table grows from nothing and is then overwritten; once without and
//                 once with the housekeeping that comes between two rounds
//   always        inserts that survive a loss of power, one and 64 to a sync
//   recover       a process that inserted is gone without closing anything: until the first lookup is answered
//   limited       lookups of values for which there is not enough memory: of novoht and RocksDB's cache a quarter of the data
//   hash          how evenly hash64, FNV-1a and Jenkins spread keys over partitions ([ZHT] 3.2), and what each costs
//   shared        lookups and inserts of two threads at once (bench/novoht_shared.h)
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <numeric>

#include "bench/novoht_engines.h"
#include "bench/novoht_limit.h"
#include "bench/novoht_shared.h"
#include "novoht/base/hashes.h"

namespace bench {
namespace {

// Visits 0..count-1 in a scattered order, without a table: i * step modulo count, step prime to count.
class Order {
 public:
  Order(std::size_t count, std::uint64_t seed) : count_(count), step_((0x9e3779b97f4a7c15 ^ seed * 0x2545f4914f6cdd1d) % count | 1) {
    while (std::gcd(step_, count_) != 1) step_ += 2;
    step_ %= count_;
    if (step_ == 0) step_ = 1;
  }
  std::uint64_t next() {
    const std::uint64_t now = at_;
    at_ += step_;
    if (at_ >= count_) at_ -= count_;
    return now;
  }

 private:
  std::uint64_t count_, step_, at_ = 0;
};

// What a section tells the ones after it.
struct Notes {
  double bytes_per_pair = 0;
};

// Runs `section` in a process of its own, with an empty folder that is gone afterwards.
void in_own_process(const Arguments& arguments, const std::string& name, const std::function<void(const std::string& folder)>& section) {
  const std::string folder = arguments.folder + "/" + name;
  require(base::real_files()->make_folder(folder).has_value(), "make folder");
  std::fflush(stdout);
  const pid_t child = ::fork();
  require(child >= 0, "fork failed");
  if (child == 0) {
    section(folder);
    std::fflush(stdout);
    ::_exit(0);
  }
  int status = 0;
  require(::waitpid(child, &status, 0) == child, "waitpid failed");
  if (!WIFEXITED(status)) wrong(name + ": killed by signal " + std::to_string(WTERMSIG(status)));
  if (WEXITSTATUS(status) != 0) std::_Exit(WEXITSTATUS(status));
  const std::string command = "rm -rf '" + folder + "'";
  require(std::system(command.c_str()) == 0, "rm failed");
}

std::string name_of(std::size_t pairs) {
  return pairs > 1'000'000 && pairs % 1'000'000 == 0 ? std::to_string(pairs / 1'000'000) + "M" : "1M";
}

template <typename Engine>
class Measurement {
 public:
  explicit Measurement(const Arguments& arguments)
      : arguments_(arguments), report_(arguments),
        notes_(static_cast<Notes*>(::mmap(nullptr, sizeof(Notes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
    require(notes_ != MAP_FAILED, "mmap failed");
  }

  bool wanted(const std::string& section) const {
    const std::string only = "," + arguments_.option("only", section) + ",";
    return only.find("," + section + ",") != std::string::npos;
  }

  void run() {
    const auto pairs = arguments_.pick<std::size_t>(20'000, 1'000'000, 1'000'000);
    workload(pairs);
    tail(pairs);
    if constexpr (requires(Engine engine) { engine.commit(); }) {
      if (wanted("always")) in_own_process(arguments_, "always", [&](const std::string& folder) { synced(folder); });
      if (wanted("recover")) recover(pairs);
    }
    if constexpr (requires(const std::string& folder) { Engine::limited(folder, pairs, std::uint64_t{1}); }) {
      if (wanted("limited")) in_own_process(arguments_, "limited", [&](const std::string& folder) { limited(folder, pairs); });
    }
    if (arguments_.size == Size::full) workload(10'000'000);
    if (arguments_.option("large", "0") == "1") workload(100'000'000);
  }

 private:
  // Whether `pairs` of them fit into this machine's free memory, going by what a pair took before; else says so.
  bool fits(std::size_t pairs) const {
    if (notes_->bytes_per_pair == 0) return true;
    std::ifstream file("/proc/meminfo");
    double free_bytes = 0;
    for (std::string name, unit; file >> name >> free_bytes && name != "MemAvailable:";) std::getline(file, unit);
    free_bytes *= 1024;
    const double need = 1.25 * notes_->bytes_per_pair * static_cast<double>(pairs);
    if (need <= free_bytes) return true;
    std::fprintf(stderr, "skipped: %s pairs of %s need about %.1f GB of memory, and %.1f GB are free\n", name_of(pairs).c_str(),
                 arguments_.system.c_str(), need / 1e9, free_bytes / 1e9);
    return false;
  }

  void workload(std::size_t pairs) {
    const std::string size = name_of(pairs);
    if (!wanted(size) || !fits(pairs)) return;
    in_own_process(arguments_, size, [&](const std::string& folder) { single(folder, pairs); });
    if constexpr (requires(Engine engine, std::vector<Pair> many) { engine.insert_many(many); })
      in_own_process(arguments_, size + "x16", [&](const std::string& folder) { batched(folder, pairs); });
    if constexpr (requires(Engine engine, std::vector<Pair> many) { engine.insert_each(many); }) {
      in_own_process(arguments_, size + "each", [&](const std::string& folder) {
        Engine engine(folder, pairs, Use::plain);
        std::vector<Pair> some;
        timed(engine, "insert each x16", pairs, [&](std::size_t i) {
          some.emplace_back(i);
          if (some.size() < 16 && i + 1 < pairs) return;
          engine.insert_each(some);
          some.clear();
        });
        for (std::size_t i = 0; i < pairs; i += 7) require(engine.equals(Pair(i).key(), Pair(i).value()), "insert each x16: a wrong value");
      });
    }
  }

  // operation(i) for every pair, a round in between; the row is the mean.
  template <typename Operation>
  void timed(Engine& engine, const std::string& row, std::size_t pairs, Operation operation) {
    Stopwatch watch;
    for (std::size_t i = 0; i < pairs; i++) {
      operation(i);
      if (i % kRound == kRound - 1) engine.round();
    }
    engine.round();
    report_.row(row + " " + name_of(pairs), "us_per_op", watch.seconds() * 1e6 / static_cast<double>(pairs));
  }

  void single(const std::string& folder, std::size_t pairs) {
    const std::uint64_t memory_before = resident_bytes();
    Engine engine(folder, pairs, Use::plain);
    const auto footprint = [&](const std::string& row) {
      const double taken = static_cast<double>(resident_bytes() - memory_before);
      notes_->bytes_per_pair = std::max(notes_->bytes_per_pair, taken / static_cast<double>(pairs));
      report_.row(row + " " + name_of(pairs), "ram_mb", taken / 1e6);
      if constexpr (requires { engine.write_out(); }) engine.write_out();
      if (Engine::kOnDisk) report_.row(row + " " + name_of(pairs), "disk_mb", static_cast<double>(disk_bytes(folder)) / 1e6);
    };
    timed(engine, "insert", pairs, [&](std::size_t i) {
      const Pair pair(i);
      engine.insert(pair.key(), pair.value());
    });
    footprint("insert");
    Order random(pairs, 1);
    std::size_t good = 0, asked = 0;
    Stopwatch watch;
    do {
      for (std::size_t i = 0; i < pairs; i++) {
        const Pair pair(random.next());
        good += engine.equals(pair.key(), pair.value());
        if (i % kRound == kRound - 1) engine.round();
      }
      asked += pairs;
    } while (watch.seconds() < arguments_.pick(0.0, 1.0, 2.0));
    report_.row("get random " + name_of(pairs), "us_per_op", watch.seconds() * 1e6 / static_cast<double>(asked));
    require(good == asked, "get random: " + std::to_string(asked - good) + " wrong answers");
    Order appended(pairs, 2);
    timed(engine, "append", pairs, [&](std::size_t) {
      const Pair pair(appended.next());
      engine.append(pair.key(), pair.value());
    });
    footprint("append");
    for (std::size_t i = 0; i < pairs; i += 7) {
      const Pair pair(i);
      require(engine.equals(pair.key(), std::string(pair.value()) + std::string(pair.value())), "append: a wrong value");
    }
    Order removed(pairs, 3);
    timed(engine, "remove", pairs, [&](std::size_t) {
      const Pair pair(removed.next());
      engine.remove(pair.key());
    });
    for (std::size_t i = 0; i < pairs; i += 7) require(!engine.has(Pair(i).key()), "remove: a key is still there");
  }

  // The same, sixteen keys a call, where the engine has such calls.
  void batched(const std::string& folder, std::size_t pairs) {
    Engine engine(folder, pairs, Use::plain);
    std::vector<Pair> some;
    const auto gathered = [&](const std::string& row, std::uint64_t seed, auto operation) {
      Order order(pairs, seed);
      timed(engine, row + " x16", pairs, [&](std::size_t i) {
        some.emplace_back(order.next());
        if (some.size() < 16 && i + 1 < pairs) return;
        operation(some);
        some.clear();
      });
    };
    gathered("insert", 5, [&](std::span<const Pair> many) { engine.insert_many(many); });
    if constexpr (requires(std::vector<Pair> many) { engine.equal_many(many); }) {
      std::size_t good = 0;
      gathered("get random", 6, [&](std::span<const Pair> many) { good += engine.equal_many(many); });
      require(good == pairs, "get random x16: " + std::to_string(pairs - good) + " wrong answers");
    }
    if constexpr (requires(std::vector<Pair> many) { engine.append_many(many); }) {
      gathered("append", 7, [&](std::span<const Pair> many) { engine.append_many(many); });
      for (std::size_t i = 0; i < pairs; i += 7) {
        const Pair pair(i);
        require(engine.equals(pair.key(), std::string(pair.value()) + std::string(pair.value())), "append x16: a wrong value");
      }
    }
    if constexpr (requires(std::vector<Pair> many) { engine.remove_many(many); }) {
      gathered("remove", 8, [&](std::span<const Pair> many) { engine.remove_many(many); });
      for (std::size_t i = 0; i < pairs; i += 7) require(!engine.has(Pair(i).key()), "remove x16: a key is still there");
    }
  }

  void tail(std::size_t pairs) {
    if (!wanted("p9999") || arguments_.system == "limit") return;  // no growth there, and no room for overwriting
    // Overwritten as often as it takes until NoVoHT's log has been compacted more than once.
    const std::size_t times = arguments_.system == "novoht" ? 5 : arguments_.size == Size::full ? 2 : 1;
    in_own_process(arguments_, "p9999", [&](const std::string& folder) {
      Engine engine(folder, pairs, Use::plain);
      Latencies alone, with_round;
      alone.reserve(times * pairs);
      with_round.reserve(times * pairs);
      for (std::size_t i = 0; i < times * pairs; i++) {
        const Pair pair(i % pairs);
        Stopwatch watch;
        engine.insert(pair.key(), pair.value());
        alone.add(watch.nanoseconds());
        if (i % kRound == kRound - 1) engine.round();
        with_round.add(watch.nanoseconds());
      }
      for (std::size_t i = 0; i < pairs; i += 7) {
        const Pair pair(i);
        require(engine.equals(pair.key(), pair.value()), "insert p9999: a wrong value");
      }
      for (const auto& [row, latencies] : {std::pair{"insert p9999", &alone}, std::pair{"insert with rounds p9999", &with_round}}) {
        report_.row(row, "p999_us", latencies->percentile_us(0.999));
        report_.row(row, "p9999_us", latencies->percentile_us(0.9999));
        report_.row(row, "max_us", latencies->max_us());
      }
    });
  }

  // As many as a second holds, at most: a sync takes as long as the disk likes.
  void synced(const std::string& folder) {
    const auto most = arguments_.pick<std::size_t>(64, 20'000, 100'000);
    const double seconds = arguments_.pick<double>(0.2, 1.0, 3.0);
    for (const std::size_t group : {std::size_t{1}, std::size_t{64}}) {
      const std::string place = folder + "/" + std::to_string(group);
      require(base::real_files()->make_folder(place).has_value(), "make folder");
      Engine engine(place, most * group, Use::synced);
      std::size_t count = 0;
      Stopwatch watch;
      while (count < most * group && watch.seconds() < seconds) {
        for (std::size_t i = 0; i < group; i++, count++) {
          const Pair pair(count);
          engine.insert(pair.key(), pair.value());
        }
        engine.commit();
      }
      report_.row("insert always " + std::to_string(group), "ops_per_s", static_cast<double>(count) / watch.seconds());
      for (std::size_t i = 0; i < count; i += stride_) {
        const Pair pair(i);
        require(engine.equals(pair.key(), pair.value()), "insert always: a wrong value");
      }
    }
  }

  // Values of 1 KB, as a limit is set where values are long; every peer has the system's cache beside its own memory.
  void limited(const std::string& folder, std::size_t pairs) {
    const std::size_t count = pairs / 5, size = 1000;
    const std::uint64_t memory_before = resident_bytes();
    const auto engine = Engine::limited(folder, count, count * (kKeySize + size) / 4);
    const auto value = [&](const Pair& pair) {
      std::string bytes(size, '\0');
      for (std::size_t i = 0; i < size; i++) bytes[i] = pair.value()[i % kValueSize];
      return bytes;
    };
    for (std::size_t i = 0; i < count; i++) {
      const Pair pair(i);
      engine->insert(pair.key(), value(pair));
      if (i % kRound == kRound - 1) engine->round();
    }
    for (int i = 0; i < 1000; i++) engine->round();
    Order order(count, 9);
    std::size_t good = 0;
    Stopwatch watch;
    for (std::size_t i = 0; i < count; i++) {
      const Pair pair(order.next());
      good += engine->equals(pair.key(), value(pair));
    }
    require(good == count, "get random limited: " + std::to_string(count - good) + " wrong answers");
    report_.row("get random limited", "us_per_op", watch.seconds() * 1e6 / static_cast<double>(count));
    report_.row("get random limited", "ram_mb", static_cast<double>(resident_bytes() - memory_before) / 1e6);
  }

  void recover(std::size_t pairs) {
    const std::string folder = arguments_.folder + "/recover";
    require(base::real_files()->make_folder(folder).has_value(), "make folder");
    std::fflush(stdout);
    const pid_t child = ::fork();
    require(child >= 0, "fork failed");
    if (child == 0) {
      auto* const engine = new Engine(folder, pairs, Use::logged);
      for (std::size_t i = 0; i < pairs; i++) {
        const Pair pair(i);
        engine->insert(pair.key(), pair.value());
        if (i % kRound == kRound - 1) engine->round();
      }
      engine->round();
      ::kill(::getpid(), SIGKILL);
    }
    int status = 0;
    require(::waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "recover: the first process failed");
    in_own_process(arguments_, "recover", [&](const std::string&) {
      const double bytes = static_cast<double>(disk_bytes(folder));
      Stopwatch watch;
      Engine engine(folder, pairs, Use::logged);
      const Pair first(0);
      require(engine.equals(first.key(), first.value()), "recover: the first pair is wrong");
      const double seconds = watch.seconds();
      report_.row("recover " + name_of(pairs), "seconds", seconds);
      // Of those that read their whole log.
      if (arguments_.system == "novoht") report_.row("recover " + name_of(pairs), "mb_per_s", bytes / 1e6 / seconds);
      for (std::size_t i = 0; i < pairs; i += stride_) {
        const Pair pair(i);
        require(engine.equals(pair.key(), pair.value()), "recover: pair " + std::to_string(i) + " is wrong");
      }
    });
  }

  const Arguments& arguments_;
  const Report report_;
  // Outside the measured time some peers' pairs are looked up by sample where it shall be quick; ours never.
  const std::size_t stride_ = arguments_.size == Size::quick && arguments_.system != "novoht" ? 7 : 1;
  Notes* const notes_;
};

// 15-byte keys, as [ZHT] has them, over 1024 partitions: the fullest beside the mean, which chance alone puts at about 1.1.
template <typename Hash>
void measure_hash(const Arguments& arguments, const Report& report, const std::string& name, Hash hash) {
  const auto keys = arguments.pick<std::uint64_t>(20'000, 1'000'000, 1'000'000);
  constexpr std::uint64_t kPartitions = 1024;
  std::vector<std::uint64_t> counts(kPartitions);
  char key[16];
  for (std::uint64_t i = 0; i < keys; i++) {
    std::snprintf(key, sizeof key, "key%012llu", static_cast<unsigned long long>(i));
    counts[hash(Bytes(key, 15)) % kPartitions]++;
  }
  require(std::accumulate(counts.begin(), counts.end(), std::uint64_t{0}) == keys, "hash: keys are missing");
  report.row(name + " evenness", "max_over_mean",
             static_cast<double>(*std::max_element(counts.begin(), counts.end())) * kPartitions / static_cast<double>(keys));
  Stopwatch watch;
  std::uint64_t sum = 0;
  for (std::uint64_t i = 0; i < keys; i++) {
    base::store(key, i);
    sum += hash(Bytes(key, 15));
  }
  report.row(name, "us_per_op", watch.seconds() * 1e6 / static_cast<double>(keys));
  require(sum != 0, "hash: all zero");
}

// Shared: the same for many threads, if there is such.
template <typename Engine, typename Shared = void>
void measure(const Arguments& arguments) {
  Measurement<Engine> measurement(arguments);
  measurement.run();
  if constexpr (!std::is_void_v<Shared>) {
    if (measurement.wanted("shared"))
      in_own_process(arguments, "shared", [&](const std::string& folder) { measure_shared<Shared>(arguments, Report(arguments), folder); });
  }
}

// glibc's malloc asks for huge pages where it is told to when a process begins: so this program begins again. NoVoHT asks for them
// itself; a map `_tuned` has them too.
void with_huge_pages(char** argv) {
  if (std::getenv("GLIBC_TUNABLES") != nullptr) return;
  ::setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1", 1);
  ::execv("/proc/self/exe", argv);
  wrong("cannot begin again with huge pages");
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  using namespace bench;
  const Arguments arguments = parse("novoht",
                                    {"novoht", "limit", "unordered_map", "unordered_map_tuned", "flat_hash_map", "flat_hash_map_tuned", "kyoto",
                                     "tkrzw", "bdb", "leveldb", "rocksdb", "lmdb"},
                                    argc, argv);
  if (arguments.system.ends_with("_tuned")) with_huge_pages(argv);
  if (arguments.system == "novoht") {
    measure<NovohtEngine, SharedNovoht>(arguments);
    if (("," + arguments.option("only", "hash") + ",").find(",hash,") != std::string::npos) {
      measure_hash(arguments, Report(arguments), "hash64", [](Bytes key) { return base::hash64(key); });
      measure_hash(arguments, Report(arguments), "fnv1a", [](Bytes key) { return base::fnv1a64(key); });
      measure_hash(arguments, Report(arguments), "jenkins", [](Bytes key) { return std::uint64_t{base::jenkins32(key)}; });
    }
  }
  if (arguments.system == "limit") measure<LimitEngine>(arguments);
  if (arguments.system == "unordered_map") measure<MapEngine<UnorderedMap>, SharedUnordered>(arguments);
  if (arguments.system == "unordered_map_tuned") measure<MapEngine<UnorderedMap, true>>(arguments);
#ifdef WITH_ABSL
  if (arguments.system == "flat_hash_map") measure<MapEngine<FlatHashMap>, ShardedFlat>(arguments);
  if (arguments.system == "flat_hash_map_tuned") measure<MapEngine<FlatHashMap, true>>(arguments);
#else
  if (arguments.system.starts_with("flat_hash_map")) unavailable("built without absl::flat_hash_map (Debian package libabsl-dev)");
#endif
#ifdef WITH_KYOTO
  if (arguments.system == "kyoto") measure<KyotoEngine>(arguments);
#else
  if (arguments.system == "kyoto") unavailable("built without Kyoto Cabinet (Debian package libkyotocabinet-dev)");
#endif
#ifdef WITH_TKRZW
  if (arguments.system == "tkrzw") measure<TkrzwEngine>(arguments);
#else
  if (arguments.system == "tkrzw") unavailable("built without Tkrzw (Debian package libtkrzw-dev)");
#endif
#ifdef WITH_BDB
  if (arguments.system == "bdb") measure<BdbEngine>(arguments);
#else
  if (arguments.system == "bdb") unavailable("built without Berkeley DB (Debian package libdb5.3-dev)");
#endif
#ifdef WITH_LEVELDB
  if (arguments.system == "leveldb") measure<LevelDbEngine>(arguments);
#else
  if (arguments.system == "leveldb") unavailable("built without LevelDB (Debian package libleveldb-dev)");
#endif
#ifdef WITH_ROCKSDB
  if (arguments.system == "rocksdb") measure<RocksDbEngine>(arguments);
#else
  if (arguments.system == "rocksdb") unavailable("built without RocksDB (Debian package librocksdb-dev)");
#endif
#ifdef WITH_LMDB
  if (arguments.system == "lmdb") measure<LmdbEngine>(arguments);
#else
  if (arguments.system == "lmdb") unavailable("built without LMDB (Debian package liblmdb-dev)");
#endif
  return 0;
}

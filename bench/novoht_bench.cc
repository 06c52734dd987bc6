// What does one operation cost an embedder? The paper's workload: 48-byte keys, 24-byte values, one thread; insert all,
// get in random order, append to all, remove all, each in an order of its own. NoVoHT has its log on and hands it to the
// operating system every kRound operations, with the housekeeping inside the measured time.
//
//   novoht_bench --system novoht --quick --dir /tmp/empty [--keys=10000000]
//
// Peers: std::unordered_map and absl::flat_hash_map of strings, which keep nothing on disk, and Kyoto Cabinet's HashDB,
// which does. Every answer is checked. `insert p9999` times every insert alone, with the same housekeeping between them,
// while the table grows from nothing and is overwritten until it has been compacted.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#ifdef WITH_KYOTO
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"
#include <kchashdb.h>
#pragma GCC diagnostic pop
#endif
#ifdef WITH_ABSL
#include <absl/container/flat_hash_map.h>
#endif

#include "bench/measure.h"
#include "novoht/base/random.h"
#include "novoht/store.h"

namespace {

using base::Bytes;

constexpr std::size_t kKeySize = 48, kValueSize = 24;
constexpr std::size_t kRound = 256;  // operations between two flushes

// Key and value `index`, made on the spot: a table of them would cost every system a cache miss of its own.
struct Pair {
  explicit Pair(std::uint64_t index) {
    std::uint64_t word = index * 0x9e3779b97f4a7c15 + 1;
    for (std::size_t i = 0; i < kKeySize; i += 8, word = word * 0xd1342543de82ef95 + index) base::store(key_ + i, word);
    for (std::size_t i = 0; i < kValueSize; i += 8) base::store(value_ + i, index + i);
  }
  Bytes key() const { return Bytes(key_, kKeySize); }
  Bytes value() const { return Bytes(value_, kValueSize); }

 private:
  char key_[kKeySize], value_[kValueSize];
};

class NovohtEngine {
 public:
  static constexpr bool kOnDisk = true;
  NovohtEngine(const std::string& folder, std::size_t) : files_(base::real_files()) {
    auto opened = novoht::Store::open(*files_, folder + "/novoht", {});
    if (!opened) bench::wrong(opened.error().message);
    store_ = *std::move(opened);
  }
  void insert(Bytes key, Bytes value) { apply(novoht::Change::insert(key, value)); }
  void append(Bytes key, Bytes value) { apply(novoht::Change::append(key, value)); }
  void remove(Bytes key) { apply(novoht::Change::remove(key)); }
  bool equals(Bytes key, Bytes expected) const {
    const auto value = store_->lookup(kTable, key);
    return value && *value->contiguous() == expected;
  }
  bool has(Bytes key) const { return store_->lookup(kTable, key).has_value(); }
  std::size_t equal_many(std::span<const Pair> pairs) {
    keys_.clear();
    for (const Pair& pair : pairs) keys_.push_back(pair.key());
    found_.resize(pairs.size());
    store_->lookup_many(kTable, keys_, found_);
    std::size_t good = 0;
    for (std::size_t i = 0; i < pairs.size(); i++) good += found_[i] && *found_[i]->contiguous() == pairs[i].value();
    return good;
  }
  void insert_many(std::span<const Pair> pairs) {
    changes_.clear();
    for (const Pair& pair : pairs) changes_.push_back(novoht::Change::insert(pair.key(), pair.value()));
    bench::require(store_->apply(kTable, changes_).has_value(), "apply failed");
  }
  void round() {
    bench::require(store_->flush().has_value(), "flush failed");
    bench::require(store_->maintain({}).has_value(), "maintain failed");
  }

 private:
  static constexpr novoht::TableId kTable{0};
  void apply(const novoht::Change& change) {
    bench::require(store_->apply(kTable, std::span(&change, 1)).has_value(), "apply failed");
  }
  std::unique_ptr<base::FileSystem> files_;
  std::unique_ptr<novoht::Store> store_;
  std::vector<Bytes> keys_;
  std::vector<std::optional<novoht::ValueView>> found_;
  std::vector<novoht::Change> changes_;
};

template <typename Map>
class MapEngine {
 public:
  static constexpr bool kOnDisk = false;
  MapEngine(const std::string&, std::size_t) {}
  void insert(Bytes key, Bytes value) { map_.insert_or_assign(std::string(key), std::string(value)); }
  void append(Bytes key, Bytes value) { map_.find(std::string(key))->second.append(value); }
  void remove(Bytes key) { map_.erase(std::string(key)); }
  bool equals(Bytes key, Bytes expected) const {
    const auto found = map_.find(std::string(key));
    return found != map_.end() && found->second == expected;
  }
  bool has(Bytes key) const { return map_.find(std::string(key)) != map_.end(); }
  void round() {}

 private:
  Map map_;
};

#ifdef WITH_KYOTO
class KyotoEngine {
 public:
  static constexpr bool kOnDisk = true;
  KyotoEngine(const std::string& folder, std::size_t pairs) {
    // As its manual advises: twice as many buckets as pairs, and the whole file mapped.
    db_.tune_buckets(static_cast<std::int64_t>(2 * pairs));
    db_.tune_map(static_cast<std::int64_t>(pairs * 256 + (64 << 20)));
    bench::require(db_.open(folder + "/casket.kch", kyotocabinet::HashDB::OWRITER | kyotocabinet::HashDB::OCREATE),
                   "Kyoto Cabinet does not open");
  }
  void insert(Bytes key, Bytes value) { bench::require(db_.set(key.data(), key.size(), value.data(), value.size()), "set"); }
  void append(Bytes key, Bytes value) { bench::require(db_.append(key.data(), key.size(), value.data(), value.size()), "append"); }
  void remove(Bytes key) { bench::require(db_.remove(key.data(), key.size()), "remove"); }
  bool equals(Bytes key, Bytes expected) {
    char buffer[256];
    const auto size = db_.get(key.data(), key.size(), buffer, sizeof buffer);
    return size >= 0 && Bytes(buffer, static_cast<std::size_t>(size)) == expected;
  }
  bool has(Bytes key) { return db_.check(key.data(), key.size()) >= 0; }
  void round() {}

 private:
  kyotocabinet::HashDB db_;
};
#endif

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

template <typename Engine>
void measure(const bench::Arguments& arguments) {
  const std::size_t keys = std::strtoull(arguments.option("keys", "0").c_str(), nullptr, 10);
  const std::size_t pairs = keys != 0 ? keys : arguments.pick<std::size_t>(20'000, 300'000, 1'000'000);
  const std::string size = pairs > 1'000'000 && pairs % 1'000'000 == 0 ? std::to_string(pairs / 1'000'000) + "M" : "1M";
  bench::Report report(arguments);
  {
    const std::uint64_t memory_before = bench::resident_bytes();
    Engine engine(arguments.folder, pairs);
    const auto timed = [&](const std::string& row, auto operation) {
      bench::Stopwatch watch;
      for (std::size_t i = 0; i < pairs; i++) {
        operation(i);
        if (i % kRound == kRound - 1) engine.round();
      }
      engine.round();
      report.row(row + " " + size, "us_per_op", watch.seconds() * 1e6 / static_cast<double>(pairs));
    };
    const auto footprint = [&](const std::string& row) {
      report.row(row + " " + size, "ram_mb", static_cast<double>(bench::resident_bytes() - memory_before) / 1e6);
      if (Engine::kOnDisk) report.row(row + " " + size, "disk_mb", static_cast<double>(bench::disk_bytes(arguments.folder)) / 1e6);
    };
    timed("insert", [&](std::size_t i) {
      const Pair pair(i);
      engine.insert(pair.key(), pair.value());
    });
    footprint("insert");
    Order random(pairs, 1);
    std::size_t good = 0;
    timed("get random", [&](std::size_t) {
      const Pair pair(random.next());
      good += engine.equals(pair.key(), pair.value());
    });
    bench::require(good == pairs, "get random: " + std::to_string(pairs - good) + " wrong answers");
    // Sixteen keys a call, where the engine has such calls: inserts (of what is there already) are one record.
    if constexpr (requires(std::vector<Pair> many) { engine.equal_many(many); }) {
      Order many(pairs, 4);
      std::vector<Pair> some;
      std::size_t right = 0;
      timed("get random x16", [&](std::size_t i) {
        some.emplace_back(many.next());
        if (some.size() < 16 && i + 1 < pairs) return;
        right += engine.equal_many(some);
        some.clear();
      });
      bench::require(right == pairs, "get random x16: " + std::to_string(pairs - right) + " wrong answers");
      timed("overwrite x16", [&](std::size_t i) {
        some.emplace_back(many.next());
        if (some.size() < 16 && i + 1 < pairs) return;
        engine.insert_many(some);
        some.clear();
      });
    }
    Order appended(pairs, 2);
    timed("append", [&](std::size_t) {
      const Pair pair(appended.next());
      engine.append(pair.key(), pair.value());
    });
    footprint("append");
    for (std::size_t i = 0; i < pairs; i += 7) {
      const Pair pair(i);
      bench::require(engine.equals(pair.key(), std::string(pair.value()) + std::string(pair.value())), "append: a wrong value");
    }
    Order removed(pairs, 3);
    timed("remove", [&](std::size_t) {
      const Pair pair(removed.next());
      engine.remove(pair.key());
    });
    for (std::size_t i = 0; i < pairs; i += 7) bench::require(!engine.has(Pair(i).key()), "remove: a key is still there");
  }
  {
    const std::string folder = arguments.folder + "/p9999";
    bench::require(base::real_files()->make_folder(folder).has_value(), "make folder");
    Engine engine(folder, pairs);
    bench::Latencies latencies;
    latencies.reserve(5 * pairs);
    for (std::size_t i = 0; i < 5 * pairs; i++) {
      const Pair pair(i % pairs);
      bench::Stopwatch watch;
      engine.insert(pair.key(), pair.value());
      latencies.add(watch.nanoseconds());
      if (i % kRound == kRound - 1) engine.round();
    }
    for (std::size_t i = 0; i < pairs; i += 7) {
      const Pair pair(i);
      bench::require(engine.equals(pair.key(), pair.value()), "insert p9999: a wrong value");
    }
    report.row("insert p9999", "p9999_us", latencies.percentile_us(0.9999));
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bench::Arguments arguments =
      bench::parse("novoht", {"novoht", "unordered_map", "flat_hash_map", "kyoto"}, argc, argv);
  if (arguments.system == "novoht") {
    measure<NovohtEngine>(arguments);
  } else if (arguments.system == "unordered_map") {
    measure<MapEngine<std::unordered_map<std::string, std::string>>>(arguments);
  } else if (arguments.system == "flat_hash_map") {
#ifdef WITH_ABSL
    measure<MapEngine<absl::flat_hash_map<std::string, std::string>>>(arguments);
#else
    bench::unavailable("built without absl::flat_hash_map (Debian package libabsl-dev)");
#endif
  } else if (arguments.system == "kyoto") {
#ifdef WITH_KYOTO
    measure<KyotoEngine>(arguments);
#else
    bench::unavailable("built without Kyoto Cabinet (Debian package libkyotocabinet-dev)");
#endif
  }
  return 0;
}

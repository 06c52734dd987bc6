#include "novoht/tool/bench.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <mutex>
#include <thread>

#include "novoht/base/random.h"
#include "novoht/tool/progress.h"

namespace novoht::tool {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kRound = 256;      // changes between two flushes of a Store, where each need not be flushed
constexpr std::uint64_t kTimedEvery = 16;  // calls; so that the clock is not what is measured
constexpr TableId kTable{0};

std::string key_of(const BenchPlan& plan, std::uint64_t index) {
  std::string key(plan.key_size, '\0');
  const std::uint64_t scattered = index * 0x9e3779b97f4a7c15;
  for (std::size_t i = 0; i < key.size(); i++) key[i] = static_cast<char>(i < 8 ? index >> 8 * i : scattered >> i % 57);
  return key;
}
std::string value_of(const BenchPlan& plan, std::uint64_t index) {
  std::string value(plan.value_size, '\0');
  for (std::size_t i = 0; i < value.size(); i++) value[i] = static_cast<char>((index >> i % 57) + i);
  return value;
}

// What both kinds of table can do.
class Target {
 public:
  virtual ~Target() = default;
  virtual Result<void> change(std::span<const Change> changes) = 0;
  // The value is `expected`, once or (after appends) several times in a row.
  virtual Result<bool> holds(Bytes key, Bytes expected) = 0;
  virtual Statistics statistics() const = 0;
};

bool repeats(Bytes value, Bytes expected) {
  if (expected.empty()) return value.empty();
  if (value.empty() || value.size() % expected.size() != 0) return false;
  for (std::size_t at = 0; at < value.size(); at += expected.size())
    if (value.substr(at, expected.size()) != expected) return false;
  return true;
}

class StoreTarget final : public Target {
 public:
  StoreTarget(std::unique_ptr<Store> store, Durability durability) : store_(std::move(store)), durability_(durability) {}
  Result<void> change(std::span<const Change> changes) override {
    TRY(store_->apply(kTable, changes));
    changed_ += changes.size();
    if (durability_ == Durability::always) TRY(store_->sync());
    if (durability_ != Durability::none || changed_ >= kRound) {
      TRY(store_->flush());
      (void)store_->maintain({}).has_value();  // what fails there is in the statistics
      changed_ = 0;
    }
    return {};
  }
  Result<bool> holds(Bytes key, Bytes expected) override {
    const auto value = store_->lookup(kTable, key);
    if (!value) return false;
    if (const auto whole = value->contiguous()) return repeats(*whole, expected);
    copy_.clear();
    TRY(value->read(0, value->size(), copy_));
    return repeats(copy_, expected);
  }
  Statistics statistics() const override { return store_->statistics(); }

 private:
  std::unique_ptr<Store> store_;
  const Durability durability_;
  std::uint64_t changed_ = 0;
  std::string copy_;
};

class SharedTarget final : public Target {
 public:
  explicit SharedTarget(std::unique_ptr<SharedTable> table) : table_(std::move(table)) {}
  Result<void> change(std::span<const Change> changes) override {
    TRY(table_->apply(changes));
    return {};
  }
  Result<bool> holds(Bytes key, Bytes expected) override {
    const auto view = table_->view(key);
    return view && repeats(view.value(), expected);
  }
  Statistics statistics() const override { return table_->statistics(); }

 private:
  std::unique_ptr<SharedTable> table_;
};

Result<std::unique_ptr<Target>> open(base::FileSystem& files, const BenchPlan& plan) {
  if (plan.threads == 1) {
    TRY_LET(store, Store::open(files, plan.folder, {}));
    return std::unique_ptr<Target>(std::make_unique<StoreTarget>(std::move(store), plan.durability));
  }
  SharedOptions options;
  options.durability = plan.durability;
  TRY_LET(table, SharedTable::open(files, plan.folder, options));
  return std::unique_ptr<Target>(std::make_unique<SharedTarget>(std::move(table)));
}

// One thread's share of a workload: keys first, first + step, ... each once; get and mixed take them in a scattered order.
class Share {
 public:
  Share(const BenchPlan& plan, Target& target, const std::string& workload, std::uint64_t first)
      : plan_(plan), target_(target), workload_(workload), first_(first), random_(first + 1) {}

  Result<void> run(Progress* progress, const std::atomic<bool>& failed) {
    const std::uint64_t batch = workload_ == "get" ? 1 : plan_.batch;
    for (std::uint64_t index = first_, call = 0; index < plan_.count && !failed.load(std::memory_order_relaxed); call++) {
      const auto begin = Clock::now();
      if (workload_ == "get" || (workload_ == "mixed" && call % 2 == 0)) {
        TRY(look(index));
        index += plan_.threads;
      } else {
        TRY(change(index, batch));
      }
      if (call % kTimedEvery == 0) times_.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
      if (progress != nullptr) progress->at(index / 256 * 256);
    }
    return {};
  }
  const std::vector<double>& times() const { return times_; }

 private:
  Result<void> look(std::uint64_t index) {
    const std::uint64_t which = workload_ == "get" ? random_.below(plan_.count) : index;
    TRY_LET(good, target_.holds(key_of(plan_, which), value_of(plan_, which)));
    if (!good) return base::fail(Code::corrupt, workload_, ": key number ", which, " has a wrong value");
    return {};
  }
  Result<void> change(std::uint64_t& index, std::uint64_t batch) {
    keys_.clear();
    values_.clear();
    for (; index < plan_.count && keys_.size() < batch; index += plan_.threads) {
      keys_.push_back(key_of(plan_, index));
      values_.push_back(value_of(plan_, index));
    }
    changes_.clear();
    for (std::size_t i = 0; i < keys_.size(); i++) {
      if (workload_ == "remove") changes_.push_back(Change::remove(keys_[i]));
      else if (workload_ == "append") changes_.push_back(Change::append(keys_[i], values_[i]));
      else changes_.push_back(Change::insert(keys_[i], values_[i]));
    }
    return target_.change(changes_);
  }

  const BenchPlan& plan_;
  Target& target_;
  const std::string& workload_;
  const std::uint64_t first_;
  base::Random random_;
  std::vector<double> times_;
  std::vector<std::string> keys_, values_;
  std::vector<Change> changes_;
};

double round3(double number) {
  if (number == 0) return 0;
  const double scale = std::pow(10, 3 - std::ceil(std::log10(std::abs(number))));
  return std::round(number * scale) / scale;
}

Result<Json> run_workload(const BenchPlan& plan, Target& target, const std::string& workload) {
  std::atomic<bool> failed = false;
  std::mutex lock;  // guards `error`
  base::Error error;
  std::vector<Share> shares;
  shares.reserve(plan.threads);
  for (std::uint32_t t = 0; t < plan.threads; t++) shares.emplace_back(plan, target, workload, t);
  Progress progress(plan.progress, workload, plan.count);
  const auto work = [&](std::uint32_t number) {
    if (auto done = shares[number].run(number == 0 ? &progress : nullptr, failed); !done) {
      failed = true;
      const std::lock_guard guard(lock);
      error = std::move(done).error();
    }
  };
  const auto begin = Clock::now();
  std::vector<std::thread> threads;
  for (std::uint32_t t = 1; t < plan.threads; t++) threads.emplace_back(work, t);
  work(0);
  for (std::thread& thread : threads) thread.join();
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  if (failed) return error;
  std::vector<double> times;
  for (const Share& share : shares) times.insert(times.end(), share.times().begin(), share.times().end());
  std::sort(times.begin(), times.end());
  const auto at = [&](double part) {
    return round3(times.empty() ? 0 : times[std::min(times.size() - 1, static_cast<std::size_t>(part * static_cast<double>(times.size())))]);
  };
  return Json{{"workload", workload},
              {"ops_per_s", std::round(static_cast<double>(plan.count) / seconds)},
              {"us_per_op", round3(seconds * 1e6 / static_cast<double>(plan.count))},
              {"p50_us", at(0.5)},
              {"p99_us", at(0.99)},
              {"p999_us", at(0.999)},
              {"max_us", at(1)}};
}

Result<void> check(const BenchPlan& plan) {
  static const std::vector<std::string> known = {"insert", "overwrite", "get", "append", "mixed", "remove"};
  for (const std::string& workload : plan.workloads)
    if (std::find(known.begin(), known.end(), workload) == known.end())
      return base::fail(Code::invalid, "workload \"", base::escape(workload), "\" is none of insert overwrite get append mixed remove");
  if (plan.workloads.empty()) return base::fail(Code::invalid, "no workload");
  for (std::size_t i = 0; i + 1 < plan.workloads.size(); i++)
    if (plan.workloads[i] == "remove") return base::fail(Code::invalid, "remove comes last: afterwards there is nothing to look up");
  if (plan.count == 0) return base::fail(Code::invalid, "count is 0; it is at least 1");
  if (plan.threads == 0 || plan.threads > 256) return base::fail(Code::invalid, "threads is ", plan.threads, "; it is 1 to 256");
  if (plan.batch == 0 || plan.batch > 10'000) return base::fail(Code::invalid, "batch is ", plan.batch, "; it is 1 to 10000");
  if (plan.key_size == 0 || plan.key_size > kMaxKeySize)
    return base::fail(Code::invalid, "key size is ", plan.key_size, "; it is 1 to ", kMaxKeySize);
  if (plan.key_size < 8 && plan.count > std::uint64_t{1} << 8 * plan.key_size)
    return base::fail(Code::invalid, plan.count, " different keys do not fit into ", plan.key_size, " bytes");
  if (plan.value_size > kMaxValueSize) return base::fail(Code::invalid, "value size is ", plan.value_size, "; it is at most ", kMaxValueSize);
  std::error_code error;
  if (std::filesystem::exists(plan.folder, error) && !std::filesystem::is_empty(plan.folder, error))
    return base::fail(Code::invalid, plan.folder, ": not empty; the benchmark works in a folder of its own");
  return {};
}

}  // namespace

Result<Json> bench(const BenchPlan& plan) {
  TRY(check(plan));
  struct Cleaner {
    const BenchPlan& plan;
    ~Cleaner() {
      std::error_code ignored;
      if (!plan.keep) std::filesystem::remove_all(plan.folder, ignored);
    }
  } cleaner{plan};
  const auto files = base::real_files();
  TRY_LET(target, open(*files, plan));
  static constexpr const char* kDurabilities[] = {"none", "interval", "always"};
  Json out{{"count", plan.count}, {"key_bytes", plan.key_size}, {"value_bytes", plan.value_size}, {"threads", plan.threads},
           {"batch", plan.batch}, {"durability", kDurabilities[static_cast<int>(plan.durability)]}, {"results", Json::array()}};
  // Whatever is asked of keys needs them there.
  if (plan.workloads[0] != "insert") TRY(run_workload(plan, *target, "insert"));
  Statistics most = target->statistics();
  for (const std::string& workload : plan.workloads) {
    TRY_LET(row, run_workload(plan, *target, workload));
    out["results"].push_back(std::move(row));
    const Statistics now = target->statistics();
    if (now.memory_bytes >= most.memory_bytes) most = now;
  }
  out["memory_bytes"] = most.memory_bytes;
  out["disk_bytes"] = most.log_bytes + most.checkpoint_bytes;
  return out;
}

}  // namespace novoht::tool

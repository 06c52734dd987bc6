#include "zht/tool/bench_load.h"

#include <algorithm>
#include <cmath>
#include <thread>

#include "novoht/base/bytes.h"

namespace zht::tool {
namespace {

using std::chrono::steady_clock;

constexpr std::uint16_t kMostAppends = 8;  // then the value is set anew

const std::map<std::string, OpKind>& kinds() {
  static const std::map<std::string, OpKind> all = {{"insert", OpKind::insert}, {"lookup", OpKind::lookup},
                                                    {"remove", OpKind::remove}, {"append", OpKind::append},
                                                    {"cswap", OpKind::cswap},   {"callback", OpKind::callback}};
  return all;
}

}  // namespace

std::string bench_key(std::uint64_t number, std::uint64_t size) {
  std::string key = "bench:" + std::to_string(number);
  key.resize(std::max<std::size_t>(key.size(), size), '.');
  return key;
}

Mix Mix::only(OpKind kind) {
  Mix mix;
  mix.parts[static_cast<std::size_t>(kind)] = 1;
  return mix;
}

Result<Mix> Mix::parse(const std::string& text) {
  Mix mix;
  double sum = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    const std::string part = text.substr(at, end - at);
    const std::size_t equals = part.find('=');
    const auto kind = kinds().find(part.substr(0, equals));
    char* rest = nullptr;
    const std::string number = equals == std::string::npos ? "1" : part.substr(equals + 1);
    const double weight = std::strtod(number.c_str(), &rest);
    if (kind == kinds().end() || number.empty() || *rest != '\0' || !(weight >= 0) || weight > 1e9)
      return fail(Code::invalid, "\"", base::escape(part, 40),
                  "\" is no part of a mix; such as insert=50,lookup=40,append=5,cswap=3,remove=2,callback=0");
    mix.parts[static_cast<std::size_t>(kind->second)] += weight;
    sum += weight;
    at = end + 1;
  }
  if (sum <= 0) return fail(Code::invalid, "the mix \"", base::escape(text, 40), "\" holds no operation");
  return mix;
}

OpKind Mix::choose(base::Random& random) const {
  double sum = 0;
  for (double part : parts) sum += part;
  double at = random.unit() * sum;
  for (std::size_t i = 0; i < parts.size(); i++)
    if (parts[i] > 0 && (at -= parts[i]) < 0) return static_cast<OpKind>(i);
  return OpKind::lookup;
}

Zipf::Zipf(std::uint64_t n, double theta) : n_(static_cast<double>(n)), theta_(theta), alpha_(1 / (1 - theta)) {
  // The sum's tail is an integral: past a million terms the difference is under a millionth.
  constexpr std::uint64_t kTerms = 1'000'000;
  double zeta = 0;
  for (std::uint64_t i = 1; i <= std::min(n, kTerms); i++) zeta += 1 / std::pow(static_cast<double>(i), theta);
  if (n > kTerms) zeta += (std::pow(n_, 1 - theta) - std::pow(static_cast<double>(kTerms), 1 - theta)) / (1 - theta);
  zeta_ = zeta;
  const double zeta2 = 1 + 1 / std::pow(2.0, theta);
  eta_ = (1 - std::pow(2 / n_, 1 - theta)) / (1 - zeta2 / zeta_);
}

std::uint64_t Zipf::choose(base::Random& random) const {
  const double u = random.unit(), uz = u * zeta_;
  if (uz < 1 || n_ < 2) return 0;
  if (uz < 1 + std::pow(0.5, theta_)) return 1;
  return std::min(static_cast<std::uint64_t>(n_ * std::pow(eta_ * u - eta_ + 1, alpha_)),
                  static_cast<std::uint64_t>(n_) - 1);
}

// One operation after the other on keys of its own: number, number + stride, number + 2 stride ...
class Load::Chain {
 public:
  Chain(const LoadOptions& options, const Zipf* zipf, std::uint64_t number, std::uint64_t stride)
      : options_(options),
        zipf_(zipf),
        random_(1000 + number),
        number_(number),
        stride_(stride),
        models_((options.keys - number + stride - 1) / stride) {}

  void begin(const Mix& mix, bool in_order, std::uint64_t most) {
    mix_ = &mix;
    in_order_ = in_order;
    started_ = 0;
    most_ = in_order ? models_.size() : most;
  }
  bool may_start() const { return (most_ == 0 && !in_order_) || started_ < most_; }
  std::size_t size() const { return models_.size(); }

  // The next operation; its answer is the next that check() gets.
  Operation next() {
    index_ = in_order_ ? started_ : zipf_ != nullptr ? zipf_->choose(random_) : random_.below(models_.size());
    started_++;
    return make(mix_->choose(random_));
  }
  Operation fill(std::size_t index) {
    index_ = index;
    return make(OpKind::insert);
  }

  // What is wrong with the answer; empty: nothing. Takes over what the operation did.
  std::string check(const Outcome& outcome) {
    Model& model = models_[index_];
    const auto wrong = [&](const std::string& what) {
      return what + " of " + bench_key(key(), options_.key_size) + ": " + std::string(base::name_of(outcome.code)) +
             (outcome.message.empty() ? "" : " (" + outcome.message + ")") + ", version " +
             std::to_string(outcome.version) + ", \"" + base::escape(outcome.value, 60) + "\"; expected " +
             (model.present ? "version " + std::to_string(model.version) + ", generation " +
                                  std::to_string(model.generation) + ", " + std::to_string(model.appended) + " appends"
                            : "nothing");
    };
    switch (kind_) {
      case OpKind::insert:
        if (!outcome.ok() || outcome.version <= model.version) return wrong("insert");
        model = {outcome.version, model.generation + 1, 0, true};
        return {};
      case OpKind::lookup:
        if (!model.present) return outcome.code == Code::not_found ? "" : wrong("lookup");
        return outcome.ok() && outcome.version == model.version && equals(outcome.value, model) ? "" : wrong("lookup");
      case OpKind::remove:
        if (!model.present) return outcome.code == Code::not_found ? "" : wrong("remove");
        if (!outcome.ok() || outcome.version <= model.version) return wrong("remove");
        model = {outcome.version, model.generation, 0, false};
        return {};
      case OpKind::append: {
        const std::uint64_t size = model.present ? size_of(model) : 0;
        if (!outcome.ok() || outcome.version <= model.version || outcome.size != size + options_.append_size)
          return wrong("append");
        model = {outcome.version, model.present ? model.generation : 0,
                 static_cast<std::uint16_t>(model.present ? model.appended + 1 : 1), true};
        if (size == 0) model.generation = kNone;  // nothing but appends
        return {};
      }
      case OpKind::cswap:
        if (swaps_) {
          if (!outcome.ok() || outcome.version <= model.version) return wrong("cswap");
          model = {outcome.version, model.generation + 1, 0, true};
          return {};
        }
        return outcome.code == Code::conflict && outcome.present == model.present &&
                       (!model.present || (outcome.version == model.version && equals(outcome.value, model)))
                   ? ""
                   : wrong("cswap that expected something else");
      case OpKind::callback:
        return outcome.ok() && (!model.present || equals(outcome.value, model)) && outcome.present == model.present
                   ? ""
                   : wrong("callback for what is there");
      default:
        return wrong("something");
    }
  }
  OpKind kind() const { return kind_; }

 private:
  static constexpr std::uint32_t kNone = 0;  // generation of a value that append made

  std::uint64_t key() const { return number_ + stride_ * index_; }
  Bytes letters(std::uint64_t size) const { return Bytes(options_.letters).substr(key() % 26, size); }
  std::string head(const Model& model) const {
    return std::to_string(key()) + "." + std::to_string(model.generation) + ":";
  }
  std::string value(const Model& model) const {
    std::string made = model.generation == kNone ? std::string() : head(model);
    if (model.generation != kNone && made.size() < options_.value_size)
      made += letters(options_.value_size - made.size());
    for (std::uint16_t i = 0; i < model.appended; i++) made += letters(options_.append_size);
    return made;
  }
  std::uint64_t size_of(const Model& model) const {
    const std::uint64_t base =
        model.generation == kNone ? 0 : std::max<std::uint64_t>(head(model).size(), options_.value_size);
    return base + model.appended * options_.append_size;
  }
  bool equals(Bytes found, const Model& model) const {
    if (model.generation == kNone || model.appended > 0) return found == value(model);
    const std::string start = head(model);
    return found.substr(0, start.size()) == start &&
           found.substr(start.size()) ==
               letters(options_.value_size - std::min<std::uint64_t>(options_.value_size, start.size()));
  }

  Operation make(OpKind kind) {
    Model& model = models_[index_];
    if (kind == OpKind::append && model.appended >= kMostAppends) kind = OpKind::insert;
    kind_ = kind;
    std::string name = bench_key(key(), options_.key_size);
    const Model following{0, model.generation + 1, 0, true};
    switch (kind) {
      case OpKind::insert:
        return Operation::insert(std::move(name), value(following));
      case OpKind::remove:
        return Operation::remove(std::move(name));
      case OpKind::append:
        return Operation::append(std::move(name), std::string(letters(options_.append_size)));
      case OpKind::cswap:
        swaps_ = !random_.chance(0.1);
        if (!model.present)
          return Operation::cswap(std::move(name), swaps_ ? Condition::absent() : Condition::present(),
                                  value(following));
        return Operation::cswap(std::move(name),
                                swaps_ ? Condition::equals(value(model)) : Condition::at_version(model.version + 1),
                                value(following));
      case OpKind::callback:
        return Operation::callback(std::move(name),
                                   model.present ? Condition::at_version(model.version) : Condition::absent());
      default:
        return Operation::lookup(std::move(name));
    }
  }

  const LoadOptions& options_;
  const Zipf* const zipf_;
  base::Random random_;
  const std::uint64_t number_, stride_;
  std::vector<Model> models_;
  const Mix* mix_ = nullptr;
  bool in_order_ = false, swaps_ = true;
  std::uint64_t started_ = 0, most_ = 0, index_ = 0;
  OpKind kind_ = OpKind::lookup;
};

// A client and its chains. With several chains, completions come on the client's thread while the first operations are
// still being started on ours: hence the mutex.
class Load::Connection {
 public:
  Connection(std::unique_ptr<Client> client, std::vector<std::unique_ptr<Chain>> chains)
      : client_(std::move(client)), chains_(std::move(chains)) {}
  ClientCounts counts() const { return client_->counts(); }

  void begin(const Mix& mix, bool in_order, std::uint64_t most, steady_clock::time_point end,
             std::atomic<std::uint64_t>& done) {
    for (auto& chain : chains_)
      chain->begin(mix, in_order, most == 0 ? 0 : std::max<std::uint64_t>(1, most / chains_.size()));
    timed_ = most == 0 && !in_order;
    end_ = end;
    done_ = &done;
    histograms = {};
  }
  void run() {
    if (chains_.size() == 1) {
      Chain& chain = *chains_[0];
      while (chain.may_start() && failure.empty()) {
        const auto began = steady_clock::now();
        if (timed_ && began >= end_) break;
        finish(chain, client_->call(chain.next()), began);
      }
      return;
    }
    std::unique_lock lock(mutex_);
    running_ = chains_.size();
    lock.unlock();
    for (auto& chain : chains_) step(*chain);
    lock.lock();
    idle_.wait(lock, [this] { return running_ == 0; });
  }
  Result<void> fill(std::atomic<std::uint64_t>& done) {
    for (auto& chain : chains_) {
      for (std::size_t at = 0; at < chain->size();) {
        const std::size_t end = std::min<std::size_t>(chain->size(), at + 1000);
        std::vector<Operation> operations;
        for (std::size_t i = at; i < end; i++) operations.push_back(chain->fill(i));
        const auto outcomes = client_->call_all(std::move(operations));
        for (std::size_t i = at; i < end; i++) {
          (void)chain->fill(i);  // what check() is about
          if (auto wrong = chain->check(outcomes[i - at]); !wrong.empty())
            return base::fail(Code::corrupt, "filling: ", wrong);
        }
        done += end - at;
        at = end;
      }
    }
    return {};
  }

  std::array<support::Histogram, 10> histograms;
  std::string failure;

 private:
  void finish(Chain& chain, const Outcome& outcome, steady_clock::time_point began) {
    histograms[static_cast<std::size_t>(chain.kind())].add(
        static_cast<std::uint64_t>((steady_clock::now() - began).count()));
    done_->fetch_add(1, std::memory_order_relaxed);
    if (auto wrong = chain.check(outcome); !wrong.empty() && failure.empty()) failure = std::move(wrong);
  }
  void step(Chain& chain) {
    Operation operation;
    const auto began = steady_clock::now();
    {
      const std::lock_guard lock(mutex_);
      if (!chain.may_start() || !failure.empty() || (timed_ && began >= end_)) {
        if (--running_ == 0) idle_.notify_all();
        return;
      }
      operation = chain.next();
    }
    client_->submit(std::move(operation), [this, &chain, began](Outcome outcome) {
      {
        const std::lock_guard lock(mutex_);
        finish(chain, outcome, began);
      }
      step(chain);
    });
  }

  std::unique_ptr<Client> client_;
  std::vector<std::unique_ptr<Chain>> chains_;
  bool timed_ = true;
  steady_clock::time_point end_;
  std::atomic<std::uint64_t>* done_ = nullptr;
  std::mutex mutex_;  // guards the chains, the results and running_ while several chains run
  std::condition_variable idle_;
  std::size_t running_ = 0;
};

Load::Load(std::vector<std::unique_ptr<Client>> clients, const LoadOptions& options) : options_(options) {
  const std::uint64_t stride = options.connections * options.depth;
  if (options.zipf > 0) zipf_ = std::make_unique<Zipf>(std::max<std::uint64_t>(1, options.keys / stride), options.zipf);
  for (std::uint64_t c = 0; c < clients.size(); c++) {
    std::vector<std::unique_ptr<Chain>> chains;
    for (std::uint64_t d = 0; d < options.depth; d++)
      chains.push_back(std::make_unique<Chain>(options_, zipf_.get(), c * options.depth + d, stride));
    connections_.push_back(std::make_unique<Connection>(std::move(clients[c]), std::move(chains)));
  }
}

Load::~Load() = default;

Result<void> Load::fill(std::atomic<std::uint64_t>& done) {
  for (auto& connection : connections_) TRY(connection->fill(done));
  return {};
}

LoadResult Load::run(const Mix& mix, bool in_order, std::atomic<std::uint64_t>& done) {
  const auto began = steady_clock::now();
  const std::uint64_t most = options_.count == 0 ? 0 : std::max<std::uint64_t>(1, options_.count / connections_.size());
  const ClientCounts before = counts();
  for (auto& connection : connections_) connection->begin(mix, in_order, most, began + options_.duration, done);
  std::vector<std::thread> threads;
  for (auto& connection : connections_) threads.emplace_back([&connection] { connection->run(); });
  for (auto& thread : threads) thread.join();
  LoadResult result;
  result.seconds = std::chrono::duration<double>(steady_clock::now() - began).count();
  for (auto& connection : connections_) {
    for (std::size_t i = 0; i < result.by_kind.size(); i++) result.by_kind[i].merge(connection->histograms[i]);
    if (result.failure.empty()) result.failure = connection->failure;
  }
  for (const auto& one : result.by_kind) result.all.merge(one);
  const ClientCounts after = counts();
  result.messages = {after.requests - before.requests, after.replies - before.replies, after.redirects - before.redirects};
  return result;
}

ClientCounts Load::counts() const {
  ClientCounts sum;
  for (const auto& connection : connections_) {
    const ClientCounts one = connection->counts();
    sum.requests += one.requests;
    sum.replies += one.replies;
    sum.redirects += one.redirects;
  }
  return sum;
}

}  // namespace zht::tool

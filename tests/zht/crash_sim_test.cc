// One instance, a few clients, a disk that tears and loses, a process that dies at any moment: seeded schedules in one
// thread. After every crash the store must be exactly what the acknowledged requests made it, with the one request that
// was under way either whole or not at all; a retry of it must then give the first execution's answer, or execute once.
//
//   ZHT_SIM_SEEDS=20000 ZHT_SIM_FROM=1 build/release/tests/zht_core_test --gtest_filter='CrashSim.*'
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "novoht/base/memory_files.h"
#include "novoht/base/random.h"
#include "zht/core/instance.h"

namespace zht::core {
namespace {

using Model = std::map<std::string, std::string>;

const Procedures& procedures() {
  static const Procedures all = [] {
    Procedures made;
    add_general_procedures(made);
    return made;
  }();
  return all;
}

// What an operation does to the model, and the answer it should get. Keys share one tag, so that all may be batched.
struct Expected {
  Code code = Code::ok;
  std::string value;
  std::uint64_t size = 0;
};

Expected apply(Model& model, const Operation& operation) {
  const auto at = model.find(operation.key);
  const bool present = at != model.end();
  switch (operation.kind) {
    case OpKind::insert:
      if (operation.condition.kind == Condition::Kind::absent && present) return {Code::conflict, at->second, 0};
      model[operation.key] = operation.value;
      return {Code::ok, {}, operation.value.size()};
    case OpKind::append: {
      std::string& value = model[operation.key];
      value += operation.value;
      return {Code::ok, {}, value.size()};
    }
    case OpKind::remove:
      if (!present) return {Code::not_found, {}, 0};
      model.erase(at);
      return {};
    case OpKind::cswap: {
      const bool holds = operation.condition.kind == Condition::Kind::absent ? !present : present && at->second == operation.condition.value;
      if (!holds) return {Code::conflict, present ? at->second : "", 0};
      model[operation.key] = operation.value;
      return {Code::ok, {}, operation.value.size()};
    }
    case OpKind::update: {
      const std::string sum = std::to_string((present ? std::stoll(at->second) : 0) + std::stoll(operation.value));
      model[operation.key] = sum;
      return {Code::ok, sum, 0};
    }
    case OpKind::batch: {
      Model changed = model;
      for (const Operation& one : operation.operations)
        if (const Expected each = apply(changed, one); each.code != Code::ok) return {each.code, {}, 0};
      model = std::move(changed);
      return {};
    }
    default: return present ? Expected{Code::ok, at->second, at->second.size()} : Expected{Code::not_found, {}, 0};
  }
}

class CrashSim {
 public:
  CrashSim(std::uint64_t seed, Durability durability) : random_(seed), durability_(durability) { open(); }

  void run(int steps) {
    for (int i = 0; i < steps && !testing::Test::HasFailure(); i++) {
      clock_.advance(std::chrono::milliseconds(random_.below(50)));
      Client& client = clients_[random_.below(std::size(clients_))];
      if (random_.chance(0.05)) housekeeping();
      if (client.pending) deliver(client, true);
      else if (random_.chance(0.1) && !old_requests_.empty()) late_copy();
      else start(client);
    }
  }

 private:
  struct Client {
    std::uint64_t id = 0, sequence = 0, floor = 0;
    std::optional<Operation> pending;  // sent, and not answered as far as the client knows
    std::optional<Expected> executed;  // ... although it was, with this answer
    bool changed = false;              // and it changed something: only that is remembered in the next life
  };

  void open() {
    life_++;
    table_ = lone_table({1, life_}, {InstanceAddress{}}, 2);
    InstanceOptions options;
    options.durability = durability_;
    options.segment_size = 1 << 16;
    options.log_floor = 0;
    auto opened = Instance::open(disk_, "store", options, procedures(), table_);
    ASSERT_TRUE(opened) << opened.error().message;
    instance_ = std::move(*opened);
    for (std::size_t i = 0; i < std::size(clients_); i++)
      if (clients_[i].id == 0) clients_[i].id = ((base::to_millis(clock_.wall()) / 4000) << 34) | (i + 1);
  }

  std::string random_key() { return "{t}" + std::to_string(random_.below(4)); }
  Operation random_operation(bool inside_batch) {
    const std::string key = random_key();
    // Never the same twice, so that an executed change always shows.
    const std::string value = std::to_string(counter_++) + std::string(random_.below(random_.chance(0.05) ? 5000 : 12), 'x');
    switch (random_.below(inside_batch ? 5 : 8)) {
      case 0: return Operation::insert(key, value);
      case 1: return Operation::append(key, value);
      case 2: return Operation::remove(key);
      case 3: return Operation::insert_new(key, value);
      case 4: return random_.chance(0.3) || !model_.contains(key) ? Operation::cswap(key, Condition::absent(), value)
                                                                  : Operation::cswap(key, Condition::equals(model_.at(key)), value);
      case 5: return Operation::update("{t}sum", "add", std::to_string(1 + random_.below(100)));
      case 6: {
        std::vector<Operation> all;
        for (std::uint64_t n = 1 + random_.below(4); n > 0; n--) all.push_back(random_operation(true));
        all.push_back(Operation::update("{t}sum", "add", "1"));  // so that one that succeeds always shows
        return Operation::batch(std::move(all));
      }
      default: return Operation::lookup(key);
    }
  }

  std::string encode(const Client& client, const Operation& operation, bool retry) {
    const bool reads = operation.kind == OpKind::lookup;
    std::string out;
    wire::encode_request(out, operation, {.request = client.sequence, .client = client.id, .sequence = reads ? 0 : client.sequence,
                                          .floor = client.floor, .epoch = life_, .partition = partition_of("{t}", 2), .retry = retry});
    return out;
  }

  void start(Client& client) {
    client.sequence++;
    client.pending = random_operation(false);
    client.executed.reset();
    deliver(client, false);
  }

  // One request, one round; it may be cut short in several ways.
  void deliver(Client& client, bool retry) {
    const Operation operation = *client.pending;
    const std::string request = encode(client, operation, retry);
    Model after = model_;
    const Expected expected = client.executed ? *client.executed : apply(after, operation);  // executed: no effect now
    const bool may_die = random_.chance(0.15);
    if (may_die) disk_.stop_at(disk_.operations() + 1 + random_.below(6));
    std::string reply;
    instance_->begin_round(clock_.now(), clock_.wall());
    instance_->on_frame(ConnectionId{1}, **wire::next_frame(request, wire::kMaxFrameSize), reply);
    const bool written = instance_->end_round().has_value();
    if (may_die) return die(client, expected, after);
    ASSERT_TRUE(written);
    if (operation.kind != OpKind::lookup) old_requests_.push_back(request);
    if (random_.chance(0.15)) {  // the reply is lost on its way; the client will ask again
      if (operation.kind != OpKind::lookup && !client.executed) {
        client.executed = expected;
        client.changed = after != model_;
      }
      model_ = std::move(after);
      return;
    }
    check(operation, expected, reply);
    model_ = std::move(after);
    client.pending.reset();
    client.executed.reset();
    if (random_.chance(0.5)) client.floor = client.sequence;
  }

  void check(const Operation& operation, const Expected& expected, const std::string& reply) {
    const auto outcome = wire::decode_outcome(**wire::next_frame(reply, wire::kMaxFrameSize));
    ASSERT_TRUE(outcome) << outcome.error().message;
    ASSERT_EQ(base::name_of(outcome->code), base::name_of(expected.code)) << outcome->message;
    if (operation.kind == OpKind::batch) return;
    ASSERT_EQ(outcome->value, expected.value);
    if (expected.code == Code::ok && operation.kind != OpKind::remove && operation.kind != OpKind::update) {
      ASSERT_EQ(outcome->size, expected.size);
    }
  }

  // The process dies with the round's outcome unknown to anyone; with durability always the power goes as well.
  void die(Client& client, const Expected& expected, const Model& after) {
    instance_.reset();
    if (durability_ == Durability::always) disk_.crash(random_);
    else disk_.kill();
    old_requests_.clear();  // connections died with it
    open();
    if (testing::Test::HasFatalFailure()) return;
    const Model now = contents();
    const bool changes = after != model_;
    // Refusals are forgotten with the life they were made in; nobody was told of these yet.
    for (Client& one : clients_)
      if (one.executed && !one.changed) one.executed.reset();
    if (changes && now == after) {
      model_ = after;
      client.executed = expected;
      client.changed = true;
    } else {
      ASSERT_EQ(now, model_) << "neither with nor without the request that was under way";
    }
  }

  Model contents() {
    Model all;
    for (int i = 0; i < 4; i++) read_into(all, "{t}" + std::to_string(i));
    read_into(all, "{t}sum");
    return all;
  }
  void read_into(Model& all, const std::string& key) {
    Client reader;
    std::string reply;
    instance_->begin_round(clock_.now(), clock_.wall());
    instance_->on_frame(ConnectionId{1}, **wire::next_frame(encode(reader, Operation::lookup(key), false), wire::kMaxFrameSize), reply);
    ASSERT_TRUE(instance_->end_round());
    const auto outcome = wire::decode_outcome(**wire::next_frame(reply, wire::kMaxFrameSize));
    if (outcome->ok()) all[key] = outcome->value;
  }

  // A copy of an answered request that the network held back: it must change nothing.
  void late_copy() {
    const std::string& request = old_requests_[random_.below(old_requests_.size())];
    std::string reply;
    instance_->begin_round(clock_.now(), clock_.wall());
    instance_->on_frame(ConnectionId{1}, **wire::next_frame(request, wire::kMaxFrameSize), reply);
    ASSERT_TRUE(instance_->end_round());
    ASSERT_EQ(contents(), model_) << "a late copy was executed again";
  }

  void housekeeping() {
    instance_->begin_round(clock_.now(), clock_.wall());
    instance_->on_tick();
    ASSERT_TRUE(instance_->end_round());
  }

  base::Random random_;
  const Durability durability_;
  base::MemoryFiles disk_;
  base::FakeClock clock_;
  std::uint64_t life_ = 0, counter_ = 0;
  MembershipTable table_;
  std::unique_ptr<Instance> instance_;
  Client clients_[3];
  Model model_;
  std::vector<std::string> old_requests_;
};

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

void run_seeds(Durability durability) {
  const std::uint64_t from = from_environment("ZHT_SIM_FROM", 1), seeds = from_environment("ZHT_SIM_SEEDS", 300);
  for (std::uint64_t seed = from; seed < from + seeds; seed++) {
    CrashSim(seed, durability).run(120);
    ASSERT_FALSE(testing::Test::HasFailure())
        << "replay: ZHT_SIM_SEEDS=1 ZHT_SIM_FROM=" << seed << " zht_core_test --gtest_filter='CrashSim.*'";
  }
}

TEST(CrashSim, AKilledProcessLosesNothingAndRepeatsNothing) { run_seeds(Durability::interval); }
TEST(CrashSim, ALossOfPowerLosesNothingUnderAlways) { run_seeds(Durability::always); }

}  // namespace
}  // namespace zht::core

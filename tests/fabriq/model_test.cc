// Random schedules against a model: producers that crash and push again, consumers that settle promptly, late, twice or
// never, leases that are extended, messages given back, delayed, dead and redriven, purges, clocks that jump. After
// each step the partition must agree with the model about every receipt, every count, and which messages may be had.
//
// A failing schedule prints its seed: FABRIQ_SEED=17 fabriq_model_test. FABRIQ_SCHEDULES=100000 runs more of them.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>

#include "novoht/base/random.h"
#include "tests/fabriq/box.h"

namespace fabriq_test {
namespace {

using Outcome = Settled::Outcome;

struct Model {
  enum class Phase { fresh, leased, waiting, ready, settled, purged };
  struct Message {
    std::string body;
    Phase phase = Phase::fresh;
    std::uint64_t until = 0;  // leased, waiting
    std::uint32_t deliveries = 0;
    std::uint64_t lease = 0;  // of the last delivery
    bool given_up = false;
    bool dead_when_back = false;  // given back or run out after its last delivery
    std::uint64_t settled_by = 0;
    int settlements = 0;
  };
  std::map<std::uint64_t, Message> messages;
  std::uint32_t max_deliveries = 0;

  bool is_dead(const Message& m, std::uint64_t now) const {
    if (m.phase == Phase::ready) return m.dead_when_back;
    return m.phase == Phase::leased && m.until <= now && max_deliveries != 0 && m.deliveries >= max_deliveries;
  }
  bool is_ready(const Message& m, std::uint64_t now) const {
    if (is_dead(m, now)) return false;
    return m.phase == Phase::fresh || m.phase == Phase::ready ||
           ((m.phase == Phase::leased || m.phase == Phase::waiting) && m.until <= now);
  }
  bool is_leased(const Message& m, std::uint64_t now) const { return m.phase == Phase::leased && m.until > now; }
  bool is_waiting(const Message& m, std::uint64_t now) const { return m.phase == Phase::waiting && m.until > now; }
  std::size_t count(bool (Model::*is)(const Message&, std::uint64_t) const, std::uint64_t now) const {
    return static_cast<std::size_t>(
        std::count_if(messages.begin(), messages.end(), [&](const auto& m) { return (this->*is)(m.second, now); }));
  }
};

class Schedule {
 public:
  explicit Schedule(std::uint64_t seed)
      : random_(seed),
        max_deliveries_(random_.chance(0.5) ? 0 : static_cast<std::uint32_t>(1 + random_.below(4))),
        box_(Descriptor{.visibility_ms = kVisibility, .max_deliveries = max_deliveries_}) {
    model_.max_deliveries = max_deliveries_;
  }

  void run(int steps) {
    for (int i = 0; i < steps && !::testing::Test::HasFailure(); i++) step();
    if (!::testing::Test::HasFailure()) drain();
  }

 private:
  static constexpr std::uint64_t kVisibility = 30'000;
  struct Held {
    Receipt receipt;
    std::uint64_t issued = 0;
  };

  // Queue time at the next request: what the partition itself will make of the clock.
  std::uint64_t now() {
    const auto state = ReaderState::decode(box_.tables.value_of("{q:jobs:0}r"));
    const std::uint64_t wall = base::to_millis(box_.clock.wall());
    return std::max(wall + state->skew, state->clock);
  }

  void step() {
    const std::uint64_t dice = random_.below(100);
    if (dice < 25)
      push();
    else if (dice < 30)
      push_again();
    else if (dice < 33)
      push_named();
    else if (dice < 36)
      push_delayed();
    else if (dice < 58)
      pop(false);
    else if (dice < 61)
      pop(true);
    else if (dice < 80)
      settle();
    else if (dice < 95)
      move_clock();
    else if (dice < 98)
      check_counts();
    else if (dice < 99)
      redrive();
    else if (random_.chance(0.2))
      purge();
  }

  std::string body(std::uint64_t name) {
    std::string text = std::to_string(name) + ":";
    const std::uint64_t dice = random_.below(1000);
    text.append(dice < 15 ? 600'000 : dice < 40 ? 70'000 : random_.below(200), 'x');
    return text;
  }
  void stored(std::uint64_t number, const std::string& text, bool repeated) {
    const auto at = model_.messages.find(number);
    if (repeated) {
      ASSERT_TRUE(at != model_.messages.end());
      EXPECT_EQ(at->second.body, text);
      return;
    }
    ASSERT_TRUE(at == model_.messages.end()) << "number " << number << " was given twice";
    model_.messages[number].body = text;
  }

  void push() {
    const std::string producer(1, static_cast<char>('a' + random_.below(3)));
    auto& sent = sent_[producer];
    std::vector<std::string> bodies;
    for (std::uint64_t n = 1 + random_.below(8); n > 0; n--) bodies.push_back(body(next_name_++));
    const std::uint64_t first = sent.size();
    sent.insert(sent.end(), bodies.begin(), bodies.end());
    push_as(producer, first, bodies, first);
  }
  // The producer starts again from an older state of its own.
  void push_again() {
    const std::string producer(1, static_cast<char>('a' + random_.below(3)));
    const auto& sent = sent_[producer];
    if (sent.empty()) return;
    const std::uint64_t first = sent.size() - 1 - random_.below(std::min<std::uint64_t>(sent.size(), 40));
    const std::uint64_t count = 1 + random_.below(sent.size() - first);
    std::vector<std::string> bodies(sent.begin() + static_cast<std::ptrdiff_t>(first),
                                    sent.begin() + static_cast<std::ptrdiff_t>(first + count));
    push_as(producer, first, bodies, sent.size());
  }
  void push_as(const std::string& producer, std::uint64_t first, const std::vector<std::string>& bodies,
               std::uint64_t known) {
    const std::uint64_t time = base::to_millis(box_.clock.wall());
    // What a producer pushed before a silence of more than a day may be forgotten: it is not to be pushed again.
    if (time > last_push_[producer] + kMemoryMillis) forgotten_[producer] = known;
    if (first < forgotten_[producer]) return;
    if (first + bodies.size() > known) last_push_[producer] = std::max(time, last_push_[producer]);
    const auto reply = box_.push_as(producer, first, bodies);
    ASSERT_TRUE(reply) << reply.error().message;
    ASSERT_EQ(reply->messages.size(), bodies.size());
    for (std::size_t i = 0; i < bodies.size(); i++) {
      EXPECT_EQ(reply->messages[i].repeated, first + i < known) << producer << first + i;
      stored(reply->messages[i].number, bodies[i], reply->messages[i].repeated);
    }
  }
  void push_named() {
    PushRequest request;
    request.queue_id = 77;
    request.id = "name" + std::to_string(random_.below(50));
    const std::uint64_t time = base::to_millis(box_.clock.wall());
    const auto before = named_.find(request.id);
    if (before != named_.end() && time > before->second.second + kMemoryMillis) return;
    const std::string text = before != named_.end() ? before->second.first : body(next_name_++);
    request.messages = {{"", text}};
    const auto reply = box_.push(request);
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->messages[0].repeated, before != named_.end());
    stored(reply->messages[0].number, text, reply->messages[0].repeated);
    if (before == named_.end()) named_[request.id] = {text, time};
  }
  void push_delayed() {
    const std::string text = body(next_name_++);
    const std::uint64_t delay = 1 + random_.below(random_.chance(0.1) ? 100'000'000 : 100'000);
    const std::uint64_t time = now();
    const std::uint64_t number = box_.push(text, delay);
    ASSERT_NE(number & kAlone, 0u);
    stored(number, text, false);
    model_.messages[number].phase = Model::Phase::waiting;
    model_.messages[number].until = time + delay;
  }

  // What was handed out must have been free to have, in order, and counted right.
  void took(const Box::Popped& popped, bool at_most_once, std::uint64_t lease_ms, std::uint64_t time) {
    for (const PopReply::Message& got : popped.reply.messages) {
      auto at = model_.messages.find(got.number);
      ASSERT_TRUE(at != model_.messages.end());
      Model::Message& m = at->second;
      EXPECT_TRUE(model_.is_ready(m, time)) << "message " << got.number << " was handed out while it could not be had";
      EXPECT_EQ(got.body, m.body);
      EXPECT_EQ(got.deliveries, m.deliveries + 1);
      if (m.phase == Model::Phase::fresh) {
        EXPECT_EQ(got.number, next_fresh_++);
      }
      m.deliveries++;
      m.given_up = false;
      m.dead_when_back = false;
      if (at_most_once) {
        m.phase = Model::Phase::settled;
        m.settled_by = 0;
        m.settlements++;
        EXPECT_EQ(got.receipt.count, 0u);
        continue;
      }
      m.phase = Model::Phase::leased;
      m.until = time + lease_ms;
      m.lease = got.receipt.lease;
      EXPECT_EQ(got.receipt.first, got.number);
      held_.push_back({got.receipt, time});
    }
    std::size_t grouped = 0;
    for (const Receipt& group : popped.reply.groups) {
      grouped += group.count;
      if (group.count > 1 && random_.chance(0.5)) held_.push_back({group, time});
    }
    EXPECT_EQ(grouped, at_most_once ? 0 : popped.size());
    while (held_.size() > 300) held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(random_.below(held_.size())));
  }

  Box::Popped pop(bool at_most_once) {
    PopRequest request;
    request.max_count = static_cast<std::uint32_t>(random_.chance(0.3) ? 1 : random_.below(30));
    request.lease_ms = random_.chance(0.6) ? 0 : 1 + random_.below(random_.chance(0.2) ? 10'000'000 : 60'000);
    request.at_most_once = at_most_once;
    if (random_.chance(0.1)) request.max_bytes = 1 + random_.below(1000);
    std::vector<Outcome> expected;
    const std::uint64_t time = now();
    if (!held_.empty() && random_.chance(0.3)) {
      const Held& held = held_[random_.below(held_.size())];
      request.items = {{Settle::Kind::acknowledge, held.receipt, 0}};
      expected.push_back(expect(request.items[0], held.issued, time));
    }
    const auto popped = box_.pop(request);
    EXPECT_EQ(popped.reply.items.size(), expected.size());
    for (std::size_t i = 0; i < expected.size() && i < popped.reply.items.size(); i++)
      EXPECT_TRUE(forgiving_ || popped.reply.items[i].outcome == expected[i]);
    took(popped, at_most_once, request.lease_ms == 0 ? kVisibility : request.lease_ms, time);
    if (request.max_count > 0 && popped.size() == 0 && popped.reply.ready_left == 0 && popped.reply.next_event_ms > 0) {
      // It says that there is nothing, and when to look again.
      EXPECT_EQ(model_.count(&Model::is_ready, time), 0u);
      for (const auto& [number, m] : model_.messages) {
        if (!model_.is_leased(m, time) && !model_.is_waiting(m, time)) continue;
        EXPECT_LE(popped.reply.next_event_ms, m.until - time) << "message " << number << " would be overslept";
      }
    }
    return popped;
  }

  // What must become of `item`; changes the model accordingly.
  Outcome expect(const Settle& item, std::uint64_t issued, std::uint64_t time) {
    forgiving_ = false;
    if (item.receipt.era != era_) return Outcome::superseded;
    Outcome worst = Outcome::done;
    for (std::uint32_t i = 0; i < item.receipt.count; i++) {
      Model::Message& m = model_.messages.at(item.receipt.first + i);
      worst = std::max(worst, expect_one(m, item, issued, time));
    }
    return worst;
  }
  Outcome expect_one(Model::Message& m, const Settle& item, std::uint64_t issued, std::uint64_t time) {
    const std::uint64_t lease = item.receipt.lease;
    if (m.phase == Model::Phase::settled) {
      if (item.kind != Settle::Kind::acknowledge || m.settled_by != lease) return Outcome::superseded;
      if (time - issued > kMemoryMillis) forgiving_ = true;  // after a day it may be known, or not
      return Outcome::already;
    }
    if (m.lease != lease) return Outcome::superseded;
    if (m.given_up) return item.kind == Settle::Kind::give_back ? Outcome::already : Outcome::superseded;
    switch (item.kind) {
      case Settle::Kind::acknowledge:
        m.phase = Model::Phase::settled;
        m.settled_by = lease;
        m.settlements++;
        break;
      case Settle::Kind::give_back:
        m.given_up = true;
        m.dead_when_back = max_deliveries_ != 0 && m.deliveries >= max_deliveries_;
        m.phase = item.ms > 0 && !m.dead_when_back ? Model::Phase::waiting : Model::Phase::ready;
        m.until = time + item.ms;
        break;
      case Settle::Kind::extend:
        // Once counted as dead it is; until somebody looked, it can still be kept.
        m.phase = Model::Phase::leased;
        m.until = time + item.ms;
        break;
    }
    return Outcome::done;
  }

  void settle() {
    if (held_.empty()) return;
    const Held held =
        held_[random_.chance(0.7) ? held_.size() - 1 - random_.below(std::min<std::size_t>(held_.size(), 10))
                                  : random_.below(held_.size())];
    Settle item{Settle::Kind::acknowledge, held.receipt, 0};
    const std::uint64_t dice = random_.below(10);
    if (dice == 7) item = {Settle::Kind::give_back, held.receipt, random_.chance(0.5) ? 0 : random_.below(50'000)};
    if (dice >= 8) item = {Settle::Kind::extend, held.receipt, 1 + random_.below(100'000)};
    if (dice == 6) {
      item.receipt.tag ^= std::uint64_t{1} << random_.below(64);
      EXPECT_EQ(box_.ack(item.receipt), Outcome::forged);
      return;
    }
    // Whether a dead message was already found to be dead decides what an extension may do: look first.
    if (item.kind == Settle::Kind::extend) settle_down();
    const std::uint64_t time = now();
    if (item.kind == Settle::Kind::extend && held.receipt.era == era_) {
      for (std::uint32_t i = 0; i < held.receipt.count; i++)
        if (model_.is_dead(model_.messages.at(held.receipt.first + i), time)) return;
    }
    const Outcome expected = expect(item, held.issued, time);
    const Settled got = box_.settle(item.kind, item.receipt, item.ms);
    EXPECT_TRUE(forgiving_ || got.outcome == expected)
        << "kind " << static_cast<int>(item.kind) << " lease " << item.receipt.lease << " messages from "
        << item.receipt.first << " count " << item.receipt.count;
  }

  void move_clock() {
    const std::uint64_t dice = random_.below(100);
    if (dice < 60)
      box_.advance(std::chrono::milliseconds(random_.below(2'000)));
    else if (dice < 90)
      box_.advance(std::chrono::milliseconds(random_.below(40'000)));
    else if (dice < 97)
      box_.advance(std::chrono::milliseconds(random_.below(3'600'000)));
    else if (dice < 98)
      box_.advance(std::chrono::hours(random_.below(50)));
    else
      box_.clock.jump(-std::chrono::milliseconds(random_.below(100'000)));
  }

  // Until the partition has seen to everything that time has brought.
  Info settle_down() {
    Info info = box_.info();
    for (int i = 0; i < 100; i++) {
      PopRequest request;
      request.max_count = 0;
      const auto looked = box_.pop(request);
      info = box_.info();
      if (looked.reply.ready_left > 0 || looked.reply.next_event_ms > 0) break;
    }
    return info;
  }
  void check_counts() {
    const Info info = settle_down();
    const std::uint64_t time = now();
    EXPECT_EQ(info.ready, model_.count(&Model::is_ready, time));
    EXPECT_EQ(info.leased, model_.count(&Model::is_leased, time));
    EXPECT_EQ(info.waiting, model_.count(&Model::is_waiting, time));
    EXPECT_EQ(info.dead, model_.count(&Model::is_dead, time));
    EXPECT_EQ(info.pushed, model_.messages.size());
  }
  void redrive() {
    settle_down();
    const std::uint64_t time = now();
    std::string arguments;
    base::Writer writer(arguments);
    writer.u64(77);
    writer.u64(UINT64_MAX);
    const std::string reply = box_.run("fabriq.redrive", arguments);
    EXPECT_EQ(base::load<std::uint64_t>(reply.data()), model_.count(&Model::is_dead, time));
    for (auto& [number, m] : model_.messages) {
      if (!model_.is_dead(m, time)) continue;
      m.phase = Model::Phase::ready;
      m.dead_when_back = false;
      m.given_up = true;
      m.deliveries = 0;
    }
  }
  void purge() {
    box_.run("fabriq.purge", Bytes("\x4d\0\0\0\0\0\0\0", 8));
    era_++;
    for (auto& [number, m] : model_.messages) {
      if (m.phase == Model::Phase::fresh) next_fresh_++;
      if (m.phase != Model::Phase::settled) m.phase = Model::Phase::purged;
    }
    std::string keys;
    for (const auto& key : box_.tables.keys(Box::kTag)) base::Writer(keys).str(key);
    box_.run("fabriq.sweep", keys);
  }

  // Everything that is left is delivered and settled; then nothing may remain.
  void drain() {
    for (int round = 0; round < 2000; round++) {
      redrive();
      PopRequest request;
      request.max_count = 100;
      const std::uint64_t time = now();
      const auto popped = box_.pop(request);
      took(popped, false, kVisibility, time);
      for (const auto& got : popped.reply.messages) {
        const Settle item{Settle::Kind::acknowledge, got.receipt, 0};
        expect(item, time, now());
        EXPECT_EQ(box_.ack(got.receipt), Outcome::done);
      }
      const bool over = std::all_of(model_.messages.begin(), model_.messages.end(), [](const auto& m) {
        return m.second.phase == Model::Phase::settled || m.second.phase == Model::Phase::purged;
      });
      if (over) break;
      if (popped.size() == 0) box_.advance(std::chrono::hours(1));
      if (::testing::Test::HasFailure()) return;
    }
    for (const auto& [number, m] : model_.messages)
      EXPECT_EQ(m.settlements, m.phase == Model::Phase::purged ? 0 : 1) << "message " << number;
    box_.advance(std::chrono::hours(24 * 30));
    const Info info = settle_down();
    EXPECT_EQ(info.ready + info.leased + info.waiting + info.dead, 0u);
    EXPECT_LE(info.bytes, kSmallSegment);
    // What is left: descriptor, two states, at most one small segment, and the reader's page of each list.
    EXPECT_LE(box_.tables.count(Box::kTag), 6u);
  }

  base::Random random_;
  const std::uint32_t max_deliveries_;
  Box box_;
  Model model_;
  std::map<std::string, std::vector<std::string>> sent_;
  std::map<std::string, std::uint64_t> last_push_, forgotten_;
  std::map<std::string, std::pair<std::string, std::uint64_t>> named_;
  std::vector<Held> held_;
  std::uint64_t next_name_ = 0, next_fresh_ = 0;
  std::uint32_t era_ = 0;
  bool forgiving_ = false;  // of the last expectation
};

TEST(Model, ThePartitionAgreesWithItUnderEverySchedule) {
  const char* one = std::getenv("FABRIQ_SEED");
  const char* many = std::getenv("FABRIQ_SCHEDULES");
  const std::uint64_t first = one != nullptr ? std::strtoull(one, nullptr, 10) : 1;
  const std::uint64_t count = one != nullptr ? 1 : many != nullptr ? std::strtoull(many, nullptr, 10) : 150;
  for (std::uint64_t seed = first; seed < first + count; seed++) {
    Schedule schedule(seed);
    schedule.run(500);
    if (HasFailure()) {
      ADD_FAILURE() << "replay with: FABRIQ_SEED=" << seed << " fabriq_model_test";
      return;
    }
  }
}

}  // namespace
}  // namespace fabriq_test

// One table, many threads: what they may see of each other, and what is left after a crash. Run under ThreadSanitizer too.
#include "novoht/shared_table.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <map>
#include <thread>
#include <unordered_map>

#include "novoht/base/memory_files.h"
#include "novoht/base/random.h"
#include "novoht/core/shared_index.h"

namespace novoht {
namespace {

// A value that tells when it is torn: its number, then bytes that follow from key and number, of a length that does too.
std::string value_of(std::uint64_t key, std::uint64_t number) {
  std::string value(16 + (key * 7 + number * 13) % 300, '\0');
  base::store(value.data(), number);
  base::store(value.data() + 8, key);
  for (std::size_t i = 16; i < value.size(); i++) value[i] = static_cast<char>(key + number * 31 + i);
  return value;
}
std::string key_of(std::uint64_t number) { return "key " + std::to_string(number); }

std::unique_ptr<SharedTable> open(base::FileSystem& disk, Durability durability = Durability::none, std::uint64_t segment = 64 << 10) {
  SharedOptions options;
  options.durability = durability;
  options.flush_interval = std::chrono::milliseconds(1);
  options.store.segment_size = segment;
  auto opened = SharedTable::open(disk, "/store", options);
  EXPECT_TRUE(opened) << opened.error().message;
  return opened ? *std::move(opened) : nullptr;
}

// Threads that run until all are done; each has its number.
template <typename Work>
void together(int count, Work work) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; i++) threads.emplace_back([&work, i] { work(i); });
  for (std::thread& thread : threads) thread.join();
}

TEST(SharedTableTest, EveryKindOfChangeIsSeenAndKept) {
  base::MemoryFiles disk;
  {
    auto table = open(disk);
    EXPECT_EQ(*table->insert("a", "1"), 1u);
    EXPECT_EQ(*table->lookup("a"), "1");
    EXPECT_EQ(*table->append("a", "2"), 2u);
    EXPECT_EQ(*table->append("fresh", "x"), 3u);
    EXPECT_EQ(*table->lookup("a"), "12");
    EXPECT_EQ(table->view("a").version(), 2u);
    EXPECT_EQ(*table->remove("fresh"), 4u);
    EXPECT_FALSE(table->lookup("fresh"));
    EXPECT_FALSE(table->view("never"));
    EXPECT_EQ(*table->apply(std::array{Change::insert("b", "b"), Change::append("b", "c"), Change::remove("nothing")}), 5u);
    EXPECT_EQ(*table->lookup("b"), "bc");
    EXPECT_EQ(table->compare_swap("b", "bx", "d").code(), Code::conflict);
    EXPECT_EQ(*table->compare_swap("b", "bc", "d"), 6u);
    EXPECT_EQ(table->compare_swap("b", std::nullopt, "e").code(), Code::conflict);
    EXPECT_EQ(table->compare_swap_version("b", 5, "e").code(), Code::conflict);
    EXPECT_EQ(*table->compare_swap_version("b", 6, std::nullopt), 7u);
    EXPECT_FALSE(table->lookup("b"));
    EXPECT_EQ(*table->compare_swap("b", std::nullopt, ""), 8u);
    EXPECT_EQ(table->view("b").value(), "");
    EXPECT_EQ(table->insert("", "no key").code(), Code::invalid);
    EXPECT_EQ(table->insert(std::string(70'000, 'k'), "").code(), Code::invalid);
    EXPECT_EQ(table->count(), 2u);
    EXPECT_EQ(table->version(), 8u);
    EXPECT_EQ(table->scan(0, 10).entries.size(), 2u);
  }
  auto table = open(disk);
  EXPECT_EQ(*table->lookup("a"), "12");
  EXPECT_EQ(table->view("a").version(), 2u);
  EXPECT_EQ(table->count(), 2u);
  EXPECT_EQ(*table->insert("z", "z"), 9u);
}

// A moving set of keys against a plain map, through many splits, dead slots and growing values.
TEST(SharedIndexTest, HoldsWhatAMapHolds) {
  core::SharedIndex index(false);
  std::unordered_map<std::string, std::pair<std::string, Version>> model;
  base::Random random(1);
  for (Version version = 1; version <= 60'000; version++) {
    const std::string key = key_of(random.below(version / 4 + 10));
    const std::uint64_t hash = base::hash64(key);
    const std::string bytes(random.below(random.chance(0.01) ? 3000 : 30), static_cast<char>('a' + version % 26));
    switch (random.below(4)) {
      case 0: index.put(hash, key, bytes, 0, version); model[key] = {bytes, version}; break;
      case 1:
      case 2: {
        index.append(hash, key, bytes, 0, version);
        auto& value = model[key];
        value = {value.first + bytes, version};
        break;
      }
      default: index.erase(hash, key); model.erase(key);
    }
  }
  EXPECT_EQ(index.count(), model.size());
  for (std::uint64_t i = 0; i < 15'010; i++) {
    const std::string key = key_of(i);
    const core::SharedNode* const node = index.find(base::hash64(key), key);
    const auto expected = model.find(key);
    ASSERT_EQ(node != nullptr, expected != model.end()) << key;
    if (node == nullptr) continue;
    ASSERT_EQ(node->value(), expected->second.first);
    ASSERT_EQ(node->version, expected->second.second);
  }
}

TEST(SharedIndexTest, WhatAReaderMayLookAtIsNotFreedAndAfterwardsItIs) {
  core::SharedIndex index(true);
  const std::uint64_t hash = base::hash64("k");
  index.put(hash, "k", "old value", 0, 1);
  // More readers than there are places: the last ones are counted only.
  std::vector<std::uint32_t> places;
  for (int i = 0; i < 600; i++) places.push_back(index.enter());
  const Bytes old = index.find(hash, "k")->value();
  const std::uint64_t before = index.retired_count();
  for (Version v = 2; v < 20'000; v++) index.put(hash, "k", "new value", 0, v);
  EXPECT_EQ(old, "old value");
  EXPECT_GE(index.retired_count(), before + 19'000);
  for (const std::uint32_t place : places) index.leave(place);
  for (Version v = 20'000; v < 21'000; v++) index.put(hash, "k", "new value", 0, v);
  EXPECT_LT(index.retired_count(), 1000u);
}

// The heart of it: writers change keys of their own, with numbers that grow; readers check that no value is torn, none older
// than what was acknowledged before they looked, and none older than what they saw before.
TEST(SharedTableTest, ReadersSeeWholeValuesThatNeverGoBack) {
  constexpr int kWriters = 2, kReaders = 3;
  constexpr std::uint64_t kKeys = 3000, kChanges = 40'000;
  base::MemoryFiles disk;
  auto table = open(disk);
  std::vector<std::atomic<std::uint64_t>> acknowledged(kKeys);
  std::atomic<int> writing = kWriters;
  std::atomic<std::uint64_t> looked = 0, found = 0;
  together(kWriters + kReaders, [&](int thread) {
    base::Random random(100 + static_cast<std::uint64_t>(thread));
    if (thread < kWriters) {
      for (std::uint64_t number = 1; number <= kChanges; number++) {
        const std::uint64_t key = random.below(kKeys / kWriters) * kWriters + static_cast<std::uint64_t>(thread);
        if (random.chance(0.05)) {
          ASSERT_TRUE(table->remove(key_of(key)));
          continue;
        }
        ASSERT_TRUE(table->insert(key_of(key), value_of(key, number)));
        acknowledged[key].store(number);
        if (random.chance(0.02)) table->scan(0, 20);
      }
      writing--;
      return;
    }
    std::map<std::uint64_t, std::pair<Version, std::uint64_t>> seen;
    while (writing > 0) {
      const std::uint64_t key = random.below(kKeys);
      const std::uint64_t least = acknowledged[key].load();
      const auto view = table->view(key_of(key));
      looked++;
      if (!view) continue;
      found++;
      ASSERT_GE(view.value().size(), 16u);
      const auto number = base::load<std::uint64_t>(view.value().data());
      ASSERT_EQ(view.value(), value_of(key, number));
      ASSERT_GE(number, least);
      auto& last = seen[key];
      ASSERT_GE(view.version(), last.first);
      ASSERT_GE(number, last.second);
      ASSERT_TRUE(view.version() != last.first || number == last.second);
      last = {view.version(), number};
    }
  });
  EXPECT_GT(found.load(), 0u);
  EXPECT_GE(table->version(), kWriters * kChanges);
  for (std::uint64_t key = 0; key < kKeys; key++) {
    const auto view = table->view(key_of(key));
    EXPECT_TRUE(!view || base::load<std::uint64_t>(view.value().data()) == acknowledged[key].load());
  }
}

TEST(SharedTableTest, AReaderOfAGrowingValueSeesWhatWasAppendedAndNothingElse) {
  base::MemoryFiles disk;
  auto table = open(disk);
  std::atomic<bool> done = false;
  together(3, [&](int thread) {
    if (thread == 0) {
      for (int i = 0; i < 20'000; i++) {
        const char piece[3] = {static_cast<char>('a' + i % 26), static_cast<char>('A' + i % 26), '.'};
        ASSERT_TRUE(table->append("log", Bytes(piece, 3)));
      }
      done = true;
      return;
    }
    std::size_t last = 0;
    while (!done) {
      const auto view = table->view("log");
      if (!view) continue;
      const Bytes value = view.value();
      ASSERT_EQ(value.size() % 3, 0u);
      ASSERT_GE(value.size(), last);
      for (std::size_t i = last > 60 ? last - 60 : 0; i < value.size(); i += 3) {
        ASSERT_EQ(value[i], static_cast<char>('a' + i / 3 % 26));
        ASSERT_EQ(value[i + 1], static_cast<char>('A' + i / 3 % 26));
      }
      last = value.size();
    }
  });
  EXPECT_EQ(table->view("log").value().size(), 60'000u);
}

TEST(SharedTableTest, CompareSwapLetsOneThreadWin) {
  constexpr int kThreads = 4, kEach = 1000;
  base::MemoryFiles disk;
  auto table = open(disk);
  ASSERT_TRUE(table->insert("counter", "0"));
  together(kThreads, [&](int thread) {
    for (int i = 0; i < kEach;) {
      const auto view = table->view("counter");
      const std::string more = std::to_string(std::stoi(std::string(view.value())) + 1);
      const auto swapped = thread % 2 == 0 ? table->compare_swap("counter", view.value(), more)
                                           : table->compare_swap_version("counter", view.version(), more);
      ASSERT_TRUE(swapped || swapped.code() == Code::conflict);
      if (swapped) i++;
    }
  });
  EXPECT_EQ(*table->lookup("counter"), std::to_string(kThreads * kEach));
}

TEST(SharedTableTest, WhatWasAcknowledgedAlwaysSurvivesALossOfPower) {
  for (std::uint64_t seed = 1; seed <= 8; seed++) {
    base::MemoryFiles disk;
    base::Random random(seed);
    std::array<std::uint64_t, 3> acknowledged{};
    {
      auto table = open(disk, Durability::always, 4096);
      disk.stop_at(disk.operations() + 50 + random.below(600));
      together(3, [&](int thread) {
        for (std::uint64_t number = 1; number < 100'000; number++) {
          if (!table->insert("thread " + std::to_string(thread), value_of(7, number))) return;
          acknowledged[static_cast<std::size_t>(thread)] = number;
        }
      });
    }
    disk.crash(random);
    auto table = open(disk, Durability::always, 4096);
    ASSERT_TRUE(table);
    for (std::size_t thread = 0; thread < 3; thread++) {
      const auto value = table->lookup("thread " + std::to_string(thread));
      if (!value) {
        EXPECT_EQ(acknowledged[thread], 0u) << "seed " << seed;
        continue;
      }
      const auto number = base::load<std::uint64_t>(value->data());
      EXPECT_EQ(*value, value_of(7, number));
      EXPECT_GE(number, acknowledged[thread]) << "seed " << seed;
    }
  }
}

TEST(SharedTableTest, AFailingDiskIsToldAndReadingGoesOn) {
  base::MemoryFiles disk;
  auto table = open(disk, Durability::interval);
  ASSERT_TRUE(table->insert("a", "1"));
  disk.fail_writes(true);
  EXPECT_EQ(table->insert("b", "2").code(), Code::io);
  disk.fail_writes(false);
  EXPECT_EQ(table->insert("c", "3").code(), Code::io);
  EXPECT_EQ(table->sync().code(), Code::io);
  EXPECT_EQ(*table->lookup("a"), "1");
  EXPECT_FALSE(table->statistics().last_failure.empty());
}

// Any thread may move and read it.
class SharedClock final : public base::Clock {
 public:
  base::Time now() const override { return base::Time{} + std::chrono::milliseconds(ms.load()); }
  base::WallTime wall() const override { return base::from_millis(ms.load()); }
  std::atomic<std::uint64_t> ms = 1'000'000;
};

TEST(SharedTableTest, AnExpiredKeyIsAbsentAndThenGone) {
  base::MemoryFiles disk;
  SharedClock clock;
  SharedOptions options;
  options.clock = &clock;
  options.flush_interval = std::chrono::milliseconds(1);
  auto table = *SharedTable::open(disk, "/store", options);
  ASSERT_TRUE(table->insert("soon", "x", base::from_millis(1'000'500)));
  ASSERT_TRUE(table->insert("late", "y", base::from_millis(9'000'000)));
  EXPECT_EQ(table->view("soon").expires(), base::from_millis(1'000'500));
  clock.ms = 1'000'499;
  EXPECT_TRUE(table->lookup("soon"));
  clock.ms = 1'000'500;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (table->count() > 1 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  EXPECT_FALSE(table->lookup("soon"));
  EXPECT_EQ(table->count(), 1u);
  EXPECT_TRUE(table->lookup("late"));
}

}  // namespace
}  // namespace novoht

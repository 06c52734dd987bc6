// What a store promises while nothing fails: values, versions, fragments, expiry, batches, scans, reopening.
#include "novoht/store.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <set>

#include "novoht/base/memory_files.h"
#include "novoht/base/random.h"

namespace novoht {
namespace {

constexpr TableId kTable{3};

class StoreTest : public ::testing::Test {
 protected:
  StoreTest() { reopen(); }
  void reopen() {
    store.reset();
    auto opened = Store::open(disk, "/store", options);
    ASSERT_TRUE(opened) << opened.error().message;
    store = *std::move(opened);
    store->set_now(now);
  }
  void apply(std::vector<Change> changes, TableId table = kTable) {
    auto done = store->apply(table, changes);
    ASSERT_TRUE(done) << done.error().message;
  }
  void put(Bytes key, Bytes value) { apply({Change::insert(key, value)}); }
  void append(Bytes key, Bytes value) { apply({Change::append(key, value)}); }
  void remove(Bytes key) { apply({Change::remove(key)}); }
  std::string get(Bytes key, TableId table = kTable) {
    const auto value = store->lookup(table, key);
    if (!value) return "not_found";
    std::string bytes;
    EXPECT_TRUE(value->read(0, value->size(), bytes));
    EXPECT_EQ(bytes.size(), value->size());
    if (const auto whole = value->contiguous()) {
      EXPECT_EQ(*whole, bytes);
    }
    return bytes;
  }
  // "a|bc|d": with the fragments' ends.
  std::string fragments(Bytes key) {
    const auto value = store->lookup(kTable, key);
    if (!value) return "not_found";
    std::string bytes, shown;
    EXPECT_TRUE(value->read(0, value->size(), bytes));
    std::uint64_t begin = 0;
    for (std::uint32_t i = 0; i < value->fragment_count(); i++) {
      shown += (i == 0 ? "" : "|") + bytes.substr(begin, value->fragment_end(i) - begin);
      begin = value->fragment_end(i);
    }
    EXPECT_EQ(begin, value->size());
    return shown;
  }
  std::set<std::string> scan_all(std::size_t limit, Bytes prefix = {}) {
    std::set<std::string> keys;
    std::uint64_t cursor = 0;
    do {
      auto page = store->scan(kTable, cursor, limit, prefix);
      for (auto& entry : page.entries) keys.insert(entry.key);
      cursor = page.cursor;
    } while (cursor != 0);
    return keys;
  }

  base::MemoryFiles disk;
  Options options;
  base::WallTime now = base::from_millis(1'000'000);
  std::unique_ptr<Store> store;
};

TEST_F(StoreTest, AnInsertedValueIsFoundAndSurvivesReopening) {
  put("a", "1");
  put("b", "2");
  put("a", "3");
  EXPECT_EQ(get("a"), "3");
  EXPECT_EQ(get("c"), "not_found");
  EXPECT_EQ(get("a", TableId{4}), "not_found");
  reopen();
  EXPECT_EQ(get("a"), "3");
  EXPECT_EQ(get("b"), "2");
}

TEST_F(StoreTest, ManyLookedUpAtOnceAreAsLookedUpOneByOne) {
  std::vector<std::string> names;
  for (int i = 0; i < 100; i++) {
    names.push_back("key" + std::to_string(i));
    if (i % 3 != 0) put(names.back(), names.back());
  }
  apply({Change::insert("key1", "gone soon", now + std::chrono::milliseconds(1))});
  store->set_now(now + std::chrono::milliseconds(1));
  const std::vector<Bytes> keys(names.begin(), names.end());
  std::vector<std::optional<ValueView>> found(keys.size());
  for (const TableId table : {kTable, TableId{77}}) {
    store->lookup_many(table, keys, found);
    for (std::size_t i = 0; i < keys.size(); i++) {
      store->prefetch(table, keys[i]);
      const auto one = store->lookup(table, keys[i]);
      ASSERT_EQ(found[i].has_value(), one.has_value()) << keys[i];
      if (one) {
        EXPECT_EQ(*found[i]->contiguous(), *one->contiguous());
      }
    }
  }
}

TEST_F(StoreTest, ARemovedKeyIsGoneAndItsVersionGoesOn) {
  put("a", "1");
  remove("a");
  EXPECT_EQ(get("a"), "not_found");
  reopen();
  EXPECT_EQ(get("a"), "not_found");
  EXPECT_EQ(store->version(kTable), 2u);
  put("a", "2");
  EXPECT_EQ(store->lookup(kTable, "a")->version(), 3u);
}

TEST_F(StoreTest, AppendAddsAFragment) {
  append("log", "one");
  append("log", "");
  append("log", "three");
  EXPECT_EQ(fragments("log"), "one||three");
  EXPECT_EQ(store->lookup(kTable, "log")->version(), 3u);
  reopen();
  EXPECT_EQ(fragments("log"), "one||three");
  put("log", "new");
  EXPECT_EQ(fragments("log"), "new");
}

TEST_F(StoreTest, AValueGrownByManyAppendsKeepsItsFragments) {
  std::string expected, all;
  for (int i = 0; i < 3000; i++) {
    const std::string fragment(static_cast<std::size_t>(i % 97), static_cast<char>('a' + i % 26));
    append("log", fragment);
    expected += (i == 0 ? "" : "|") + fragment;
    all += fragment;
    if (i % 500 == 0) {
      EXPECT_EQ(fragments("log"), expected);
    }
  }
  for (int round = 0; round < 2; round++) {
    EXPECT_EQ(fragments("log"), expected);
    std::string part;
    ASSERT_TRUE(store->lookup(kTable, "log")->read(5000, 70'000, part));
    EXPECT_EQ(part, all.substr(5000, 70'000));
    part.clear();
    ASSERT_TRUE(store->lookup(kTable, "log")->read(all.size() - 3, 100, part));
    EXPECT_EQ(part, all.substr(all.size() - 3));
    part.clear();
    ASSERT_TRUE(store->lookup(kTable, "log")->read(all.size() + 3, 100, part));
    EXPECT_EQ(part, "");
    ASSERT_TRUE(store->compact());
    reopen();
  }
}

TEST_F(StoreTest, ABatchIsOneRecordWhoseLaterChangesSeeEarlierOnes) {
  apply({Change::insert("a", "1"), Change::append("a", "2"), Change::remove("b"), Change::insert("b", "3"), Change::remove("c")});
  EXPECT_EQ(fragments("a"), "1|2");
  EXPECT_EQ(get("b"), "3");
  EXPECT_EQ(store->version(kTable), 1u);
  reopen();
  EXPECT_EQ(fragments("a"), "1|2");
}

TEST_F(StoreTest, AnExpiredKeyIsAbsentToEverything) {
  const auto soon = now + std::chrono::milliseconds(10);
  apply({Change::insert("ttl", "x", soon), Change::insert("ttl2", "y", soon), Change::insert("stays", "z")});
  append("ttl", "+");
  EXPECT_EQ(fragments("ttl"), "x|+");
  EXPECT_EQ(store->lookup(kTable, "ttl")->expires(), soon);
  EXPECT_TRUE(store->expired(kTable, 10).empty());
  now = soon;
  store->set_now(now);
  EXPECT_EQ(get("ttl"), "not_found");
  EXPECT_EQ(scan_all(10), std::set<std::string>{"stays"});
  EXPECT_EQ(store->expired(kTable, 10).size(), 2u);
  EXPECT_EQ(store->expired(kTable, 1).size(), 1u);
  append("ttl", "fresh");
  EXPECT_EQ(fragments("ttl"), "fresh");
  EXPECT_EQ(store->lookup(kTable, "ttl")->expires(), base::kNever);
  reopen();
  EXPECT_EQ(fragments("ttl"), "fresh");
  EXPECT_EQ(get("ttl2"), "not_found");
  EXPECT_EQ(store->expired(kTable, 10), std::vector<std::string>{"ttl2"});
  remove("ttl2");
  EXPECT_TRUE(store->expired(kTable, 10).empty());
}

TEST_F(StoreTest, KeysAndValuesOverTheirLimitsChangeNothing) {
  EXPECT_EQ(store->apply(kTable, std::array{Change::insert("", "v")}).code(), Code::invalid);
  EXPECT_EQ(store->apply(kTable, std::array{Change::insert("k", "v"), Change::insert(std::string(65'536, 'k'), "v")}).code(), Code::invalid);
  EXPECT_EQ(get("k"), "not_found");
  EXPECT_EQ(store->version(kTable), 0u);
  const std::string longest(65'535, 'k');
  put(longest, "v");
  reopen();
  EXPECT_EQ(get(longest), "v");
}

TEST_F(StoreTest, TheEpochMayOnlyGrow) {
  ASSERT_TRUE(store->apply(kTable, {}, "note", 5));
  EXPECT_EQ(store->apply(kTable, {}, "note", 4).code(), Code::invalid);
  reopen();
  EXPECT_EQ(store->epoch(kTable), 5u);
  ASSERT_TRUE(store->compact());
  reopen();
  EXPECT_EQ(store->epoch(kTable), 5u);
  EXPECT_EQ(store->version(kTable), 1u);
}

TEST_F(StoreTest, AValueMayBeCopiedFromTheStoreItself) {
  put("a", std::string(100, 'x'));
  const Bytes inside = *store->lookup(kTable, "a")->contiguous();
  apply({Change::insert("a", "short"), Change::insert("b", inside), Change::append("b", inside)});
  EXPECT_EQ(get("b"), std::string(200, 'x'));
}

TEST_F(StoreTest, BigValuesComeBackWhole) {
  base::Random random(7);
  std::map<std::string, std::string> expected;
  for (const std::size_t size : {4095u, 4096u, 4097u, 40'000u, 3'000'000u, 20'000'000u}) {
    std::string value(size, '\0');
    for (char& c : value) c = static_cast<char>(random.next());
    expected["k" + std::to_string(size)] = value;
    put("k" + std::to_string(size), value);
  }
  append("k40000", "tail");
  expected["k40000"] += "tail";
  for (int round = 0; round < 3; round++) {
    for (const auto& [key, value] : expected) EXPECT_TRUE(get(key) == value) << key;
    if (round == 1) {
      ASSERT_TRUE(store->compact());
    }
    reopen();
  }
}

TEST_F(StoreTest, ManyKeysInManyTables) {
  base::Random random(11);
  std::map<std::pair<std::uint32_t, std::string>, std::string> expected;
  for (int i = 0; i < 60'000; i++) {
    const TableId table{static_cast<std::uint32_t>(random.below(5)) * 40'000};
    const std::string key = "key" + std::to_string(random.below(20'000));
    const auto at = std::pair{static_cast<std::uint32_t>(table), key};
    switch (random.below(4)) {
      case 0:
        apply({Change::remove(key)}, table);
        expected.erase(at);
        break;
      case 1:
        apply({Change::append(key, std::to_string(i))}, table);
        expected[at] += std::to_string(i);
        break;
      default:
        apply({Change::insert(key, "value" + std::to_string(i))}, table);
        expected[at] = "value" + std::to_string(i);
    }
  }
  for (int round = 0; round < 3; round++) {
    EXPECT_EQ(store->statistics().keys, expected.size());
    for (const auto& [at, value] : expected) ASSERT_EQ(get(at.second, TableId{at.first}), value);
    EXPECT_EQ(store->tables().size(), 5u);
    if (round == 1) {
      ASSERT_TRUE(store->compact());
    }
    reopen();
  }
}

TEST_F(StoreTest, AScanWhileTheTableGrowsMissesNoKeyThatWasThereAllTheTime) {
  for (int i = 0; i < 3000; i++) put("old" + std::to_string(i), "v");
  std::set<std::string> seen;
  std::uint64_t cursor = 0;
  int added = 0;
  do {
    auto page = store->scan(kTable, cursor, 7);
    EXPECT_LE(page.entries.size(), 7u);
    for (auto& entry : page.entries) seen.insert(entry.key);
    cursor = page.cursor;
    for (int i = 0; i < 40; i++) put("new" + std::to_string(added++), "v");
    for (int i = 0; i < 20; i++) remove("new" + std::to_string(added - 1 - i));
  } while (cursor != 0);
  for (int i = 0; i < 3000; i++) EXPECT_TRUE(seen.contains("old" + std::to_string(i))) << i;
  EXPECT_EQ(scan_all(1, "old12").size(), 111u);
  EXPECT_EQ(scan_all(1000).size(), store->statistics().keys);
}

TEST_F(StoreTest, ADroppedTableIsForgottenForGood) {
  put("a", "1");
  ASSERT_TRUE(store->compact());
  put("b", "2");
  apply({Change::insert("other", "x")}, TableId{9});
  ASSERT_TRUE(store->drop(kTable));
  EXPECT_EQ(store->tables(), std::vector<TableId>{TableId{9}});
  reopen();
  EXPECT_EQ(get("a"), "not_found");
  EXPECT_EQ(store->tables(), std::vector<TableId>{TableId{9}});
  put("a", "again");
  EXPECT_EQ(store->version(kTable), 1u);
  ASSERT_TRUE(store->sync());
  while (*store->maintain(std::chrono::milliseconds(1))) {
  }
  reopen();
  EXPECT_EQ(get("a"), "again");
  ASSERT_TRUE(store->drop(kTable));
  ASSERT_TRUE(store->compact());
  reopen();
  EXPECT_EQ(store->tables(), std::vector<TableId>{TableId{9}});
  EXPECT_EQ(get("other", TableId{9}), "x");
}

TEST_F(StoreTest, TheLogStaysWithinItsBoundWhileKeysAreOverwritten) {
  const std::string value(1000, 'v');
  for (int i = 0; i < 60'000; i++) {
    put("key" + std::to_string(i % 100), value);
    if (i % 16 == 0) {
      ASSERT_TRUE(store->flush());
      ASSERT_TRUE(store->maintain(std::chrono::microseconds(100)));
    }
  }
  EXPECT_GT(store->statistics().checkpoints, 2u);
  EXPECT_LT(disk.used(), std::uint64_t{60} << 20);
  reopen();
  EXPECT_EQ(store->statistics().keys, 100u);
  EXPECT_EQ(store->version(kTable), 60'000u);
  EXPECT_EQ(get("key7"), value);
  ASSERT_TRUE(store->compact());
  EXPECT_LT(disk.used(), std::uint64_t{10} << 20);
}

TEST_F(StoreTest, MemoryThatLiesIdleGoesBackWhileTheStoreIsUsed) {
  // Values of one size, then of another, then hardly any: recycling by size alone would keep all three.
  const auto fill = [&](std::size_t size, int keys) {
    for (int i = 0; i < keys; i++) {
      put("key" + std::to_string(i), std::string(size, static_cast<char>('a' + i % 26)));
      if (i % 64 == 0) {
        ASSERT_TRUE(store->maintain({}));
      }
    }
  };
  options.log_slack = 1000;
  reopen();
  fill(300, 200'000);
  fill(400, 200'000);
  EXPECT_LT(store->statistics().memory_bytes, std::uint64_t{250} << 20);
  for (int i = 2000; i < 200'000; i++) {
    remove("key" + std::to_string(i));
    if (i % 64 == 0) {
      ASSERT_TRUE(store->maintain({}));
    }
  }
  while (*store->maintain({})) {
  }
  EXPECT_LT(store->statistics().memory_bytes, std::uint64_t{85} << 20);
  for (int i = 0; i < 2000; i++) ASSERT_EQ(get("key" + std::to_string(i)), std::string(400, static_cast<char>('a' + i % 26)));
  fill(200, 5000);
  for (int i = 0; i < 5000; i++) ASSERT_EQ(get("key" + std::to_string(i)), std::string(200, static_cast<char>('a' + i % 26)));
}

// --- with a memory limit ---

TEST_F(StoreTest, ManyIndependentChangesAreAsIfEachHadComeAlone) {
  auto alone = Store::open(disk, "/alone", options);
  ASSERT_TRUE(alone) << alone.error().message;
  base::Random random(4);
  for (int round = 0; round < 200; round++) {
    std::vector<std::string> bytes;
    bytes.reserve(100);  // what the changes point into
    std::vector<TableChange> changes;
    for (std::uint64_t i = random.below(40); i > 0; i--) {
      const TableId table{static_cast<std::uint32_t>(random.below(3))};
      const std::string& key = bytes.emplace_back("key" + std::to_string(random.below(30)));
      const std::string& value = bytes.emplace_back(random.below(60), static_cast<char>('a' + random.below(26)));
      const std::uint64_t kind = random.below(8);
      if (kind == 0) changes.push_back({table, Change::remove(key)});
      else if (kind < 3) changes.push_back({table, Change::append(key, value)});
      else changes.push_back({table, Change::insert(key, value)});
    }
    std::vector<Version> versions(changes.size());
    ASSERT_TRUE(store->apply_many(changes, versions));
    for (std::size_t i = 0; i < changes.size(); i++) {
      const auto version = (*alone)->apply(changes[i].table, std::span(&changes[i].change, 1));
      ASSERT_TRUE(version);
      EXPECT_EQ(versions[i], *version);
    }
  }
  ASSERT_TRUE(store->flush());
  reopen();
  for (std::uint32_t table = 0; table < 3; table++) {
    for (int i = 0; i < 30; i++) {
      const std::string key = "key" + std::to_string(i);
      const auto expected = (*alone)->lookup(TableId{table}, key), found = store->lookup(TableId{table}, key);
      ASSERT_EQ(found.has_value(), expected.has_value()) << key;
      if (!found) continue;
      std::string bytes;
      ASSERT_TRUE(expected->read(0, expected->size(), bytes));
      EXPECT_EQ(get(key, TableId{table}), bytes);
      EXPECT_EQ(found->version(), expected->version());
    }
  }
}

TEST_F(StoreTest, OfManyIndependentChangesThoseBeforeARefusedOneAreMade) {
  const std::vector<TableChange> changes{{kTable, Change::insert("a", "1")}, {kTable, Change::insert("", "2")}, {kTable, Change::insert("c", "3")}};
  std::vector<Version> versions(3, 77);
  EXPECT_EQ(store->apply_many(changes, versions).code(), Code::invalid);
  EXPECT_EQ(versions, (std::vector<Version>{1, 0, 0}));
  EXPECT_EQ(get("a"), "1");
  EXPECT_EQ(get("c"), "not_found");
}

class ColdTest : public StoreTest {
 protected:
  ColdTest() { limit(1); }
  void limit(std::uint64_t bytes) {
    options.memory_limit = bytes;
    options.segment_size = 1 << 20;
    reopen();
  }
  void cool() {
    for (int i = 0; i < 20; i++) ASSERT_TRUE(store->maintain({}));
  }
  void overwrite(const std::string& path, const std::string& bytes) {
    auto file = disk.open(path, base::OpenMode::read_write);
    ASSERT_TRUE(file && (*file)->write_at(0, bytes));
  }
  std::vector<std::string> cold_files() {
    std::vector<std::string> found;
    for (const std::string& path : disk.paths())
      if (path.find("/cold-") != std::string::npos) found.push_back(path);
    return found;
  }
};

TEST_F(ColdTest, AValueOnDiskIsReadFromThereAndItsKeyIsNot) {
  put("short", "v");
  put("long", std::string(100, 'l'));
  put("longer", std::string(50'000, 'm'));
  const auto hot = store->statistics();
  cool();
  const auto cold = store->statistics();
  EXPECT_EQ(hot.cold_bytes, 0u);
  EXPECT_GE(cold.cold_bytes, 50'100u);
  EXPECT_LT(cold.used_bytes + 50'000, hot.used_bytes);
  EXPECT_EQ(cold.live_bytes, hot.live_bytes);
  EXPECT_FALSE(store->lookup(kTable, "long")->contiguous());
  EXPECT_TRUE(store->lookup(kTable, "short")->contiguous());
  EXPECT_EQ(get("long"), std::string(100, 'l'));
  EXPECT_EQ(get("longer"), std::string(50'000, 'm'));
  std::string part = "+";
  ASSERT_TRUE(store->lookup(kTable, "longer")->read(16'380, 20'000, part));
  EXPECT_EQ(part, "+" + std::string(20'000, 'm'));
  EXPECT_EQ(scan_all(10).size(), 3u);
  reopen();
  EXPECT_EQ(get("longer"), std::string(50'000, 'm'));
}

TEST_F(ColdTest, ALimitThatKeysAloneExceedIsSaidAndNothingElse) {
  limit(1 << 20);
  for (int i = 0; i < 3000; i++) put("key" + std::to_string(i), std::string(1000, 'v'));
  cool();
  EXPECT_EQ(store->statistics().over_limit_bytes, 0u);  // the values went
  EXPECT_LE(store->statistics().used_bytes, 1u << 20);
  for (int i = 0; i < 60'000; i++) put("short" + std::to_string(i), "v");
  for (int i = 0; i < 40; i++) cool();
  const auto after = store->statistics();
  EXPECT_GT(after.used_bytes, 1u << 20);
  EXPECT_EQ(after.over_limit_bytes, after.used_bytes - (1u << 20));
  EXPECT_EQ(get("short59999"), "v");
  EXPECT_EQ(get("key2999"), std::string(1000, 'v'));
}

TEST_F(ColdTest, AppendingToAValueOnDiskDoesNotReadIt) {
  put("log", std::string(200, 'a'));
  apply({Change::append("parts", std::string(900, 'p')), Change::append("parts", std::string(900, 'q'))});
  cool();
  const auto files = cold_files();
  ASSERT_EQ(files.size(), 1u);
  const std::string good = disk.contents(files[0]);
  overwrite(files[0], std::string(good.size(), 'x'));  // whoever reads it now will know
  append("log", "b");
  append("parts", "r");
  overwrite(files[0], good);
  EXPECT_EQ(fragments("log"), std::string(200, 'a') + "|b");
  EXPECT_EQ(fragments("parts"), std::string(900, 'p') + "|" + std::string(900, 'q') + "|r");
  EXPECT_EQ(store->lookup(kTable, "log")->fragment_count(), 2u);
  reopen();
  EXPECT_EQ(fragments("log"), std::string(200, 'a') + "|b");
}

TEST_F(ColdTest, DamageOnDiskIsNamedAndTheStoreGoesOn) {
  put("bad", std::string(100, 'b'));
  cool();
  const auto files = cold_files();
  ASSERT_EQ(files.size(), 1u);
  std::string bytes = disk.contents(files[0]);
  bytes[70] ^= 1;
  overwrite(files[0], bytes);
  std::string out = "as before";
  const auto read = store->lookup(kTable, "bad")->read(0, 100, out);
  EXPECT_EQ(read.code(), Code::corrupt);
  EXPECT_NE(read.error().message.find(files[0] + " offset 64"), std::string::npos) << read.error().message;
  EXPECT_EQ(out, "as before");
  put("good", std::string(100, 'g'));
  cool();
  EXPECT_EQ(get("good"), std::string(100, 'g'));
  ASSERT_FALSE(store->compact());  // a checkpoint cannot have it, the log still does
  reopen();
  EXPECT_EQ(get("bad"), std::string(100, 'b'));
}

TEST_F(ColdTest, AValueUsedAgainAndAgainComesBackToMemory) {
  limit(20'000);
  for (int i = 0; i < 200; i++) put("key" + std::to_string(i), std::string(1000, 'v'));
  cool();
  ASSERT_FALSE(store->lookup(kTable, "key7")->contiguous());
  for (int i = 0; i < 3; i++) {
    EXPECT_EQ(get("key7"), std::string(1000, 'v'));
    ASSERT_TRUE(store->maintain({}));
  }
  EXPECT_TRUE(store->lookup(kTable, "key7")->contiguous());
}

TEST_F(ColdTest, AnythingDoneWithValuesOnDiskIsAsWithThoseInMemory) {
  limit(1 << 20);
  base::Random random(5);
  std::map<std::string, std::string> expected;
  for (int i = 0; i < 60'000; i++) {
    const std::string key = "key" + std::to_string(random.below(3000));
    const std::string value(random.chance(0.01) ? random.below(40'000) : random.below(1500), static_cast<char>('a' + i % 26));
    switch (random.below(8)) {
      case 0:
        remove(key);
        expected.erase(key);
        break;
      case 1:
      case 2:
        append(key, Bytes(value).substr(0, 300));
        expected[key] += value.substr(0, 300);
        break;
      case 3:
      case 4: {
        const auto found = expected.find(key);
        ASSERT_EQ(get(key), found == expected.end() ? "not_found" : found->second);
        break;
      }
      default:
        put(key, value);
        expected[key] = value;
    }
    if (i % 16 == 0) {
      ASSERT_TRUE(store->maintain({}));
    }
    if (i % 20'000 == 10'000) reopen();
  }
  const auto statistics = store->statistics();
  EXPECT_LT(statistics.used_bytes, std::uint64_t{5} << 18);
  EXPECT_GT(statistics.cold_bytes, std::uint64_t{1} << 20);
  EXPECT_LT(statistics.cold_file_bytes, 2 * statistics.cold_bytes + (std::uint64_t{3} << 20));
  EXPECT_GT(statistics.checkpoints, 0u);
  EXPECT_EQ(statistics.maintenance_failures, 0u) << statistics.last_failure;
  for (int round = 0; round < 3; round++) {
    EXPECT_EQ(store->statistics().keys, expected.size());
    for (const auto& [key, value] : expected) ASSERT_TRUE(get(key) == value) << key;
    if (round == 1) {
      ASSERT_TRUE(store->compact());
    }
    if (round == 2) limit(0);
    reopen();
  }
  for (const auto& [key, value] : expected) ASSERT_TRUE(get(key) == value) << key;
  EXPECT_TRUE(cold_files().empty());
}

TEST_F(StoreTest, AnEmptyTableCostsLittleMemory) {
  const auto before = store->statistics().memory_bytes;
  for (std::uint32_t i = 0; i < 1000; i++) apply({Change::insert("k", "v")}, TableId{i});
  EXPECT_LT(store->statistics().memory_bytes - before, 1000u * 600 + (1u << 20));
}

// An embedder's partitions: the keys of each have plain hashes that begin with the same ten bits.
TEST_F(StoreTest, KeysOfOnePartitionTakeNoMoreMemoryThanAnyOthers) {
  const auto memory_with = [&](auto table_of) {
    store.reset();
    disk = {};
    reopen();
    for (int i = 0; i < 1'500'000; i++) {
      const std::string key = "key" + std::to_string(i);
      const auto table = static_cast<std::uint32_t>(table_of(key));
      if (table < 32) apply({Change::insert(key, "v")}, TableId{table});
    }
    return store->statistics().memory_bytes;
  };
  const auto any = memory_with([](Bytes key) { return base::hash64(key) % 1024; });
  EXPECT_LT(memory_with([](Bytes key) { return base::hash64(key) >> 54; }), any * 3 / 2);
}

}  // namespace
}  // namespace novoht

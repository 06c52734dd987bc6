// What a store keeps when the power goes, the process dies, the disk is full, fails or rots. A failing random test prints
// the seed; NOVOHT_SEED=<seed> replays it, NOVOHT_ROUNDS=<n> runs more of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>

#include "novoht/base/memory_files.h"
#include "novoht/core/format.h"
#include "tests/novoht/shadow.h"

namespace novoht {
namespace {

using testing::equals;
using testing::equals_prefix;
using testing::Model;
using testing::NoteKeeper;
using testing::OwnedRecord;

std::uint64_t number_from(const char* variable, std::uint64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// One disk, the store on it, every record applied to it, and what has been promised of them.
struct Trial {
  // `limit`: of memory; with 1 all values that may go to the disk do. `reusing`: small records, and so much housekeeping that
  // segments are made out of others all the time.
  explicit Trial(std::uint64_t from, std::uint64_t limit = 0, bool reusing = false) : seed(from), random(from), reuses(reusing) {
    options.memory_limit = limit;
    options.segment_size = 4096;
    options.log_slack = 1.0;
    options.maintain_slice = 100;  // checkpoints take many steps, and the tables change in between
  }
  Result<void> open() {
    notes = NoteKeeper();
    options.companion = &notes;
    TRY_LET(opened, Store::open(disk, "/store", options));
    store = std::move(opened);
    return {};
  }
  // One random step. Errors are the disk's.
  Result<void> step() {
    const std::uint64_t kind = random.below(100);
    if (kind < 60) {
      OwnedRecord record = testing::random_record(random, 3, 20, reuses ? 300 : 3000);
      // A record may be in the file although apply() failed after it; so it counts before.
      TRY_LET(version, testing::apply_to(*store, record));
      notes.add(record.table, version, record.note);
      records.push_back(std::move(record));
    } else if (kind < 75) {
      TRY(store->flush());
      flushed = records.size();
    } else if (kind < 82) {
      TRY(store->sync());
      flushed = synced = records.size();
    } else if (kind < 84) {
      const std::uint64_t so_far = records.size();
      TRY_LET(job, store->begin_sync());
      flushed = so_far;
      auto outcome = job->run();
      store->finish_sync(outcome);
      TRY(outcome);
      synced = so_far;
    } else if (kind < 99 || reuses) {
      for (int i = 0; i < (reuses ? 12 : 1); i++) TRY(store->maintain({}));
    } else {
      TRY(store->compact());
    }
    return {};
  }
  Result<void> run(int steps) {
    TRY(open());
    for (int i = 0; i < steps; i++) TRY(step());
    return {};
  }
  // Everything again after a crash: what is there is a prefix, and no shorter than promised.
  void recover(std::uint64_t least, const std::string& where) {
    store.reset();
    auto opened = open();
    ASSERT_TRUE(opened) << where << ": " << opened.error().message;
    ASSERT_TRUE(equals_prefix(*store, notes, records, least)) << where;
    flushed = synced = records.size();
  }

  const std::uint64_t seed;
  base::Random random;
  const bool reuses;
  base::MemoryFiles disk;
  Options options;
  NoteKeeper notes;
  std::unique_ptr<Store> store;
  std::vector<OwnedRecord> records;
  std::uint64_t flushed = 0, synced = 0;
};

// Without a memory limit, with values on disk, and with segments made out of others.
enum class Kind { in_memory, on_disk, reusing };
class EveryOperation : public ::testing::TestWithParam<Kind> {
 protected:
  struct OfKind : Trial {
    OfKind(std::uint64_t from, Kind kind) : Trial(from, kind == Kind::on_disk ? 1 : 0, kind == Kind::reusing) {}
  };
};
INSTANTIATE_TEST_SUITE_P(CrashTest, EveryOperation, ::testing::Values(Kind::in_memory, Kind::on_disk, Kind::reusing),
                         [](const auto& one) {
                           return std::string(one.param == Kind::in_memory ? "InMemory"
                                              : one.param == Kind::on_disk ? "OnDisk" : "Reusing");
                         });

TEST_P(EveryOperation, PowerLossKeepsWhatWasSynced) {
  constexpr int kSteps = 600;
  std::uint64_t operations = 0;
  {
    OfKind whole(1, GetParam());
    ASSERT_TRUE(whole.run(kSteps));
    operations = whole.disk.operations();
    EXPECT_GT(whole.store->statistics().checkpoints, 3u);
    EXPECT_EQ(whole.store->statistics().reused_segments > 3, GetParam() == Kind::reusing);
    EXPECT_EQ(whole.store->statistics().cold_bytes > 0, GetParam() == Kind::on_disk);
  }
  ASSERT_GT(operations, 200u);
  for (std::uint64_t at = 1; at <= operations; at++) {
    for (std::uint64_t how = 0; how < 3; how++) {
      OfKind trial(1, GetParam());
      trial.disk.stop_at(at);
      ASSERT_FALSE(trial.run(kSteps)) << "operation " << at << " did not stop";
      base::Random random(at * 3 + how);
      trial.disk.crash(random);
      trial.recover(trial.synced, "operation " + std::to_string(at) + " crash " + std::to_string(at * 3 + how));
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST_P(EveryOperation, DeathOfTheProcessKeepsWhatWasFlushed) {
  constexpr int kSteps = 600;
  OfKind whole(2, GetParam());
  ASSERT_TRUE(whole.run(kSteps));
  const std::uint64_t operations = whole.disk.operations();
  for (std::uint64_t at = 1; at <= operations; at++) {
    OfKind trial(2, GetParam());
    trial.disk.stop_at(at);
    ASSERT_FALSE(trial.run(kSteps));
    trial.disk.kill();
    trial.recover(trial.flushed, "operation " + std::to_string(at));
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST(CrashTest, ManyCrashesInARowLoseNothingPromised) {
  const std::uint64_t first = number_from("NOVOHT_SEED", 100);
  // 60 x 12 crashes; ZHT_LONG: more than ten thousand.
  const std::uint64_t rounds = number_from("NOVOHT_ROUNDS", std::getenv("ZHT_LONG") == nullptr ? 60 : 850);
  std::uint64_t deaths = 0, losses = 0, promised = 0, kept = 0;
  for (std::uint64_t seed = first; seed < first + rounds; seed++) {
    const std::string replay = "replay: NOVOHT_SEED=" + std::to_string(seed) + " NOVOHT_ROUNDS=1";
    // Every other one with values on disk, every third with segments made out of others.
    Trial trial(seed, seed % 2, seed % 3 == 0);
    ASSERT_TRUE(trial.open()) << replay;
    for (int life = 0; life < 12; life++) {
      trial.disk.stop_at(trial.disk.operations() + 1 + trial.random.below(150));
      for (;;) {
        if (!trial.step()) break;
      }
      if (trial.random.chance(0.3)) {
        deaths++;
        promised += trial.flushed;
        trial.disk.kill();
        trial.recover(trial.flushed, replay);
      } else {
        losses++;
        promised += trial.synced;
        trial.disk.crash(trial.random);
        // Opening may itself be cut short.
        if (trial.random.chance(0.5)) {
          trial.store.reset();
          trial.disk.stop_at(trial.disk.operations() + 1 + trial.random.below(8));
          (void)trial.open().has_value();
          trial.store.reset();
          trial.disk.crash(trial.random);
        }
        trial.recover(trial.synced, replay);
      }
      if (::testing::Test::HasFatalFailure()) return;
      kept += trial.records.size();
    }
  }
  std::printf("%llu crashes (%llu deaths of the process, %llu losses of power): 0 of %llu promised records lost, %llu checked, 0 wrong\n",
              static_cast<unsigned long long>(deaths + losses), static_cast<unsigned long long>(deaths),
              static_cast<unsigned long long>(losses), static_cast<unsigned long long>(promised), static_cast<unsigned long long>(kept));
}

TEST(CrashTest, AFullDiskRefusesChangesAndTheStoreGoesOnWhenThereIsRoomAgain) {
  for (std::uint64_t seed = 1; seed <= 20; seed++) {
    Trial trial(seed, seed % 2);
    ASSERT_TRUE(trial.open());
    Model model;
    int refused = 0;
    for (int round = 0; round < 5; round++) {
      trial.disk.set_capacity(trial.disk.used() + trial.random.below(12'000));
      for (int i = 0; i < 300; i++) {
        const OwnedRecord record = testing::random_record(trial.random, 3, 20, 3000);
        const auto applied = testing::apply_to(*trial.store, record);
        if (applied) {
          model.apply(record);
          trial.notes.add(record.table, *applied, record.note);
        } else {
          ASSERT_EQ(applied.code(), Code::no_space) << applied.error().message;
          refused++;
        }
        ASSERT_TRUE(trial.store->flush());
        const auto maintained = trial.store->maintain({});
        ASSERT_TRUE(maintained || maintained.code() == Code::no_space) << maintained.error().message;
      }
      ASSERT_TRUE(equals(*trial.store, model)) << "seed " << seed;
      if (round % 2 == 1) {
        ASSERT_TRUE(trial.store->sync());
        trial.disk.crash(trial.random);
        trial.store.reset();
        trial.disk.set_capacity(UINT64_MAX);
        ASSERT_TRUE(trial.open());
        ASSERT_TRUE(equals(*trial.store, model)) << "seed " << seed;
      }
    }
    EXPECT_GT(refused, 0) << "seed " << seed << ": the disk was never full";
  }
}

// As far as there is room for a checkpoint beside the old one: less than for another segment is enough.
TEST(CrashTest, OnAFullDiskHousekeepingMakesRoomByItself) {
  Trial trial(8);
  trial.options.segment_size = 16 << 10;
  trial.options.log_slack = 1000;  // nothing but the full disk asks for checkpoints
  trial.options.maintain_slice = 10'000;
  ASSERT_TRUE(trial.open());
  trial.disk.set_capacity(147'456 + 7200 + 7200);
  int applied = 0;
  for (int i = 0; i < 5000; i++) {
    const std::string key = "key" + std::to_string(i % 12), value(500, static_cast<char>('a' + i % 26));
    const auto version = trial.store->apply(TableId{0}, std::array{Change::insert(key, value)});
    ASSERT_TRUE(version || version.code() == Code::no_space) << version.error().message;
    if (version) applied++;
    ASSERT_TRUE(trial.store->flush());
    (void)trial.store->maintain({}).has_value();
  }
  EXPECT_GT(applied, 4000);
  EXPECT_GT(trial.store->statistics().checkpoints, 10u);
}

// A log that may be as long as it likes takes the disk, but for what the checkpoints need that give it back.
TEST(CrashTest, ASmallDiskIsNotFilledWithLogForGood) {
  for (const int tables : {1, 40}) {
    Trial trial(9);
    trial.options.segment_size = 64 << 20;
    trial.options.log_floor = std::uint64_t{64} << 20;
    trial.options.maintain_slice = 64 << 10;
    trial.disk.set_capacity(24 << 20);
    ASSERT_TRUE(trial.open());
    int refused = 0, refused_in_a_row = 0;
    for (int i = 0; i < 60'000; i++) {  // 60 MB of changes to 2 MB
      const std::string key = "key" + std::to_string(i % 2000), value(1000, static_cast<char>('a' + i % 26));
      const TableId table{static_cast<std::uint32_t>(i % 2000 % tables)};
      const auto version = trial.store->apply(table, std::array{Change::insert(key, value)});
      ASSERT_TRUE(version || version.code() == Code::no_space) << version.error().message;
      refused_in_a_row = version ? 0 : refused_in_a_row + 1;
      refused += version ? 0 : 1;
      ASSERT_LT(refused_in_a_row, 500) << tables << " tables, change " << i << ": " << version.error().message;
      if (i % 16 != 15) continue;
      ASSERT_TRUE(trial.store->flush());
      (void)trial.store->maintain({}).has_value();
    }
    EXPECT_LT(refused, 6000) << tables << " tables";
    EXPECT_GT(trial.store->statistics().checkpoints, 0u);
  }
}

TEST(CrashTest, AFailedWriteOrSyncLeavesAStoreThatOnlyReads) {
  for (const bool sync : {false, true}) {
    Trial trial(5);
    ASSERT_TRUE(trial.run(100));
    ASSERT_TRUE(trial.store->sync());
    trial.synced = trial.records.size();
    const OwnedRecord record = testing::random_record(trial.random, 3, 20, 100);
    ASSERT_TRUE(testing::apply_to(*trial.store, record));
    trial.records.push_back(record);
    sync ? trial.disk.fail_syncs(true) : trial.disk.fail_writes(true);
    EXPECT_EQ(trial.store->sync().code(), Code::io);
    trial.disk.fail_syncs(false);
    trial.disk.fail_writes(false);
    EXPECT_EQ(trial.store->sync().code(), Code::io);
    EXPECT_EQ(trial.store->flush().code(), Code::io);
    EXPECT_EQ(testing::apply_to(*trial.store, record).code(), Code::io);
    EXPECT_FALSE(trial.store->statistics().last_failure.empty());
    Model model;
    for (const OwnedRecord& one : trial.records) model.apply(one);
    EXPECT_TRUE(equals(*trial.store, model));
    trial.disk.crash(trial.random);
    trial.recover(trial.synced, "after failure");
  }
}

// Of three unsynced records of one size the second is lost. Its successor must stay lost when another takes its place.
TEST(CrashTest, ARecordBeyondATornOneNeverComesBack) {
  Trial trial(6);
  ASSERT_TRUE(trial.open());
  ASSERT_TRUE(trial.store->apply(TableId{0}, std::array{Change::insert("a", "1")}));
  ASSERT_TRUE(trial.store->sync());
  const std::string path = "/store/log-0000000000000001.segment";
  const std::string before = trial.disk.contents(path);
  ASSERT_TRUE(trial.store->apply(TableId{0}, std::array{Change::insert("b", "2")}));
  ASSERT_TRUE(trial.store->flush());
  const std::string between = trial.disk.contents(path);
  ASSERT_TRUE(trial.store->apply(TableId{0}, std::array{Change::insert("c", "3")}));
  ASSERT_TRUE(trial.store->flush());
  std::string torn = trial.disk.contents(path);
  for (std::size_t at = 0; at < torn.size(); at++)
    if (before[at] != between[at]) torn[at] = before[at];
  trial.disk.kill();
  trial.store.reset();
  trial.disk.put(path, torn);
  ASSERT_TRUE(trial.open());
  EXPECT_GT(trial.store->statistics().torn_bytes_cut, 0u);
  EXPECT_FALSE(trial.store->lookup(TableId{0}, "c"));
  ASSERT_TRUE(trial.store->apply(TableId{0}, std::array{Change::insert("d", "4")}));
  ASSERT_TRUE(trial.store->flush());
  trial.disk.kill();
  trial.store.reset();
  ASSERT_TRUE(trial.open());
  EXPECT_TRUE(trial.store->lookup(TableId{0}, "d"));
  EXPECT_FALSE(trial.store->lookup(TableId{0}, "c"));
  EXPECT_EQ(trial.store->version(TableId{0}), 2u);
}

// --- segments made out of others ---

// A store whose log has been through its segments more than once, and the last is full of older records.
void reuse_segments(Trial& trial) {
  ASSERT_TRUE(trial.open());
  for (int i = 0; i < 2000 && trial.store->statistics().reused_segments < 12; i++) {
    const OwnedRecord record = testing::random_record(trial.random, 3, 20, 3000);
    const auto version = testing::apply_to(*trial.store, record);
    ASSERT_TRUE(version);
    trial.notes.add(record.table, *version, record.note);
    trial.records.push_back(record);
    ASSERT_TRUE(trial.store->flush());
    for (int step = 0; step < 20; step++) ASSERT_TRUE(trial.store->maintain({}));
  }
  ASSERT_GE(trial.store->statistics().reused_segments, 12u);
}

TEST(ReuseTest, WhatASegmentWasBeforeIsNoTornTail) {
  Trial trial(11);
  reuse_segments(trial);
  for (int time = 0; time < 5; time++) {
    trial.disk.kill();
    trial.recover(trial.records.size(), "time " + std::to_string(time));
    EXPECT_EQ(trial.store->statistics().torn_bytes_cut, 0u);
    const OwnedRecord record = testing::random_record(trial.random, 3, 20, 100);
    ASSERT_TRUE(testing::apply_to(*trial.store, record));
    trial.records.push_back(record);
    ASSERT_TRUE(trial.store->flush());
  }
}

// The segment made out of another that was begun last, and where its last record begins and ends.
std::pair<std::string, std::pair<std::uint64_t, std::uint64_t>> last_reused(const base::MemoryFiles& disk) {
  std::string last;
  for (const std::string& path : disk.paths())
    if (path.ends_with(".segment")) {
      const std::string bytes = disk.contents(path);
      if (base::load<std::uint64_t>(bytes.data() + 24) == *core::segment_number(Bytes(path).substr(7))) last = path;
    }
  if (last.empty()) return {};
  const std::string bytes = disk.contents(last);
  const std::uint64_t salt = core::segment_salt(base::load<std::uint64_t>(bytes.data() + 16), *core::segment_number(Bytes(last).substr(7)));
  std::uint64_t begin = core::kSegmentHeaderSize, end = begin;
  while (const auto record = core::parse_record(bytes, end, salt, 0)) {
    begin = end;
    end += record->size;
  }
  return {last, {begin, end}};
}

TEST(ReuseTest, AnOlderSegmentsBytesMayRotBehindTheEndAndNowhereElse) {
  Trial trial(12);
  reuse_segments(trial);
  ASSERT_TRUE(trial.store->sync());
  trial.store.reset();
  const auto [last, place] = last_reused(trial.disk);
  ASSERT_FALSE(last.empty());
  const std::uint64_t end = place.second;
  const std::string good = trial.disk.contents(last);
  ASSERT_LT(end, good.size());
  int harmless = 0, refused = 0;
  for (std::size_t at = 0; at < good.size(); at += at < end ? 7 : 61) {
    base::MemoryFiles disk;
    for (const std::string& path : trial.disk.paths()) disk.put(path, trial.disk.contents(path));
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0xff);
    disk.put(last, bad);
    NoteKeeper notes;
    Options options = trial.options;
    options.companion = &notes;
    const auto opened = Store::open(disk, "/store", options);
    if (opened) {
      harmless++;
      ASSERT_TRUE(equals_prefix(**opened, notes, trial.records, trial.records.size())) << last << " offset " << at;
    } else {
      refused++;
      EXPECT_LT(at, end) << opened.error().message;
      EXPECT_EQ(opened.code(), Code::corrupt) << opened.error().message;
    }
  }
  EXPECT_GT(harmless, 5);
  EXPECT_GT(refused, 5);
}

// It was synced, and perhaps acknowledged: what is left must not look like a log that is whole.
TEST(ReuseTest, TheLastRecordsRotIsSeen) {
  Trial trial(14);
  reuse_segments(trial);
  ASSERT_TRUE(trial.store->sync());
  trial.disk.kill();
  const auto [last, end] = last_reused(trial.disk);
  ASSERT_FALSE(last.empty());
  const std::string good = trial.disk.contents(last);
  const std::uint64_t begin = end.first;
  ASSERT_LT(begin, end.second);
  for (std::uint64_t at = begin; at < end.second; at++) {
    base::MemoryFiles disk;
    for (const std::string& path : trial.disk.paths()) disk.put(path, trial.disk.contents(path));
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ (1 << trial.random.below(8)));
    disk.put(last, bad);
    NoteKeeper notes;
    Options options = trial.options;
    options.companion = &notes;
    const auto opened = Store::open(disk, "/store", options);
    if (opened) {
      EXPECT_GT((*opened)->statistics().torn_bytes_cut, 0u) << last << " offset " << at;
      ASSERT_TRUE(equals_prefix(**opened, notes, trial.records, trial.records.size() - 1)) << last << " offset " << at;
    }
  }
}

TEST(ReuseTest, WhatIsKeptGoesWhenTheStoreIsCompactedClosedOrOpened) {
  Trial trial(13);
  const auto kept_files = [&trial] {
    const auto paths = trial.disk.paths();
    return std::count_if(paths.begin(), paths.end(), [](const std::string& path) { return path.ends_with(".kept"); });
  };
  reuse_segments(trial);
  while (kept_files() == 0) {
    const OwnedRecord record = testing::random_record(trial.random, 3, 20, 3000);
    ASSERT_TRUE(testing::apply_to(*trial.store, record));
    trial.records.push_back(record);
    ASSERT_TRUE(trial.store->flush());
    ASSERT_TRUE(trial.store->maintain({}));
    ASSERT_LT(trial.records.size(), 5000u);
  }
  EXPECT_GT(trial.store->statistics().kept_bytes, 0u);
  trial.disk.kill();  // as if the process had died: it is there when the store is opened
  EXPECT_GT(kept_files(), 0);
  trial.recover(trial.records.size(), "opened again");
  EXPECT_EQ(kept_files(), 0);
  while (kept_files() == 0) {
    ASSERT_TRUE(testing::apply_to(*trial.store, testing::random_record(trial.random, 3, 20, 3000)));
    ASSERT_TRUE(trial.store->flush());
    ASSERT_TRUE(trial.store->maintain({}));
  }
  ASSERT_TRUE(trial.store->compact());
  EXPECT_EQ(kept_files(), 0);
  EXPECT_EQ(trial.store->statistics().kept_bytes, 0u);
}

// --- rot ---

// A small store with a checkpoint and a log, closed in peace.
struct Small {
  Small() {
    records.push_back({TableId{1}, {{Change::Kind::insert, "alpha", "first"}}, "n1", 1});
    records.push_back({TableId{1}, {{Change::Kind::append, "alpha", "second"}, {Change::Kind::insert, "beta", "x"}}, "", 1});
    records.push_back({TableId{2}, {{Change::Kind::insert, "gamma", std::string(700, 'g')}}, "n3", 1});
    records.push_back({TableId{1}, {{Change::Kind::remove, "beta", ""}}, "n4", 2});
    records.push_back({TableId{1}, {{Change::Kind::insert, "delta", "d"}}, "", 2});
    options.segment_size = 4096;
    options.companion = &notes;
    auto store = *Store::open(disk, "/store", options);
    for (std::size_t i = 0; i < records.size(); i++) {
      const auto version = testing::apply_to(*store, records[i]);
      notes.add(records[i].table, *version, records[i].note);
      if (i == 2) store->compact().value();
    }
    store->sync().value();
  }
  base::MemoryFiles disk;
  NoteKeeper notes;
  Options options;
  std::vector<OwnedRecord> records;
};

TEST(RotTest, AnyChangedByteOfAClosedStoreIsFoundOrHarmless) {
  Small small;
  int found = 0, harmless = 0;
  for (const std::string& path : small.disk.paths()) {
    if (path.ends_with("LOCK")) continue;
    const std::string good = small.disk.contents(path);
    for (std::size_t at = 0; at < good.size(); at++) {
      for (const int flip : {0x01, 0x80, 0xff}) {
        base::MemoryFiles disk;
        for (const std::string& other : small.disk.paths()) disk.put(other, small.disk.contents(other));
        std::string bad = good;
        bad[at] = static_cast<char>(bad[at] ^ flip);
        disk.put(path, bad);
        NoteKeeper notes;
        Options options = small.options;
        options.companion = &notes;
        auto opened = Store::open(disk, "/store", options);
        if (!opened) {
          found++;
          const Code code = opened.code();
          EXPECT_TRUE(code == Code::corrupt || code == Code::invalid || code == Code::unsupported) << opened.error().message;
          EXPECT_NE(opened.error().message.find(path), std::string::npos) << opened.error().message;
          // Nothing was changed by the refusal.
          EXPECT_TRUE(disk.contents(path) == bad);
        } else {
          harmless++;
          auto records = small.records;
          ASSERT_TRUE(equals_prefix(**opened, notes, records, records.size())) << path << " offset " << at << " flip " << flip;
        }
      }
    }
  }
  EXPECT_GT(found, 1000);
  EXPECT_GT(harmless, 1000);  // what was never written, and the closing mark
}

TEST(RotTest, AFileCutAnywhereIsRefusedOrLosesOnlyTheEndOfTheLog) {
  Small small;
  for (const std::string& path : small.disk.paths()) {
    if (path.ends_with("LOCK")) continue;
    const std::string good = small.disk.contents(path);
    for (std::size_t size = 0; size < good.size(); size++) {
      base::MemoryFiles disk;
      for (const std::string& other : small.disk.paths()) disk.put(other, small.disk.contents(other));
      disk.put(path, good.substr(0, size));
      NoteKeeper notes;
      Options options = small.options;
      options.companion = &notes;
      auto opened = Store::open(disk, "/store", options);
      if (!opened) continue;
      auto records = small.records;
      ASSERT_TRUE(equals_prefix(**opened, notes, records, 3)) << path << " cut to " << size;
      // And it can be written on.
      ASSERT_TRUE((*opened)->apply(TableId{1}, std::array{Change::insert("new", "value")}, {}, 9));
      ASSERT_TRUE((*opened)->sync());
      opened->reset();
      auto again = Store::open(disk, "/store", options);
      ASSERT_TRUE(again) << again.error().message;
      ASSERT_TRUE((*again)->lookup(TableId{1}, "new"));
    }
  }
}

TEST(RotTest, AMissingSegmentIsNamed) {
  Trial trial(3);
  ASSERT_TRUE(trial.open());
  for (int i = 0; i < 60; i++) ASSERT_TRUE(testing::apply_to(*trial.store, testing::random_record(trial.random, 3, 20, 3000)));
  ASSERT_TRUE(trial.store->sync());
  trial.store.reset();
  const auto paths = trial.disk.paths();
  std::vector<std::string> segments;
  for (const std::string& path : paths)
    if (path.ends_with(".segment")) segments.push_back(path);
  ASSERT_GE(segments.size(), 3u);
  for (const std::string& missing : {segments[0], segments[1], segments.back()}) {
    base::MemoryFiles disk;
    for (const std::string& path : paths)
      if (path != missing) disk.put(path, trial.disk.contents(path));
    auto opened = Store::open(disk, "/store", trial.options);
    if (missing == segments.back()) continue;  // may have been the spare, or hold only the mark
    ASSERT_FALSE(opened) << missing;
    EXPECT_EQ(opened.code(), Code::corrupt) << opened.error().message;
  }
}

TEST(RotTest, RandomBytesForAnyFileNeverBreakAnything) {
  Small small;
  base::Random random(9);
  for (int round = 0; round < 2000; round++) {
    base::MemoryFiles disk;
    for (const std::string& path : small.disk.paths()) {
      std::string bytes = small.disk.contents(path);
      const std::uint64_t edits = random.below(4);
      for (std::uint64_t i = 0; i < edits && !bytes.empty(); i++) {
        const std::size_t at = random.below(std::min<std::size_t>(bytes.size(), 1200));
        const std::size_t count = std::min<std::size_t>(bytes.size() - at, 1 + random.below(40));
        for (std::size_t k = 0; k < count; k++) bytes[at + k] = static_cast<char>(random.next());
      }
      disk.put(path, bytes);
    }
    Options options = small.options;
    NoteKeeper notes;
    options.companion = &notes;
    auto opened = Store::open(disk, "/store", options);
    if (!opened) continue;
    auto records = small.records;
    ASSERT_TRUE(equals_prefix(**opened, notes, records, 0)) << "round " << round;
  }
}

// --- opening ---

TEST(OpenTest, AFolderThatIsNoStoreIsRefusedAndLeftAlone) {
  base::MemoryFiles disk;
  disk.put("/photos/cat.jpg", "meow");
  const auto opened = Store::open(disk, "/photos", {});
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.code(), Code::invalid);
  EXPECT_NE(opened.error().message.find("cat.jpg"), std::string::npos);
  EXPECT_EQ(disk.paths(), std::vector<std::string>{"/photos/cat.jpg"});
  Options existing;
  existing.create = false;
  EXPECT_EQ(Store::open(disk, "/nowhere", existing).code(), Code::invalid);
  EXPECT_EQ(Store::open(disk, "/photos/cat.jpg", {}).code(), Code::invalid);
}

TEST(OpenTest, AStoreIsOpenOnce) {
  base::MemoryFiles disk;
  auto first = Store::open(disk, "/store", {});
  ASSERT_TRUE(first);
  EXPECT_EQ(Store::open(disk, "/store", {}).code(), Code::conflict);
  Options reading;
  reading.read_only = true;
  EXPECT_TRUE(Store::open(disk, "/store", reading));
  first->reset();
  EXPECT_TRUE(Store::open(disk, "/store", {}));
}

TEST(OpenTest, ANewerFormatIsRefusedAsUnsupported) {
  Small small;
  for (const std::string& path : small.disk.paths()) {
    if (path.ends_with("LOCK")) continue;
    base::MemoryFiles disk;
    for (const std::string& other : small.disk.paths()) disk.put(other, small.disk.contents(other));
    std::string bytes = disk.contents(path);
    if (base::Bytes(bytes).substr(0, 6) != "NoVoHT") continue;
    base::store(bytes.data() + 8, std::uint32_t{77});
    const std::size_t sum = path.ends_with("STORE") ? 36 : path.ends_with(".segment") ? 60 : 12;
    base::store(bytes.data() + sum, base::crc32c(base::Bytes(bytes).substr(0, sum)));
    disk.put(path, bytes);
    const auto opened = Store::open(disk, "/store", {});
    ASSERT_FALSE(opened) << path;
    EXPECT_EQ(opened.code(), Code::unsupported) << opened.error().message;
    EXPECT_NE(opened.error().message.find("format 77"), std::string::npos) << opened.error().message;
  }
}

TEST(OpenTest, ReadingOnlyChangesNothing) {
  Small small;
  std::map<std::string, std::string> before;
  for (const std::string& path : small.disk.paths()) before[path] = small.disk.contents(path);
  Options options;
  options.read_only = true;
  auto store = *Store::open(small.disk, "/store", options);
  EXPECT_TRUE(store->lookup(TableId{1}, "alpha"));
  EXPECT_EQ(store->apply(TableId{1}, std::array{Change::remove("alpha")}).code(), Code::invalid);
  EXPECT_FALSE(*store->maintain({}));
  store.reset();
  for (const auto& [path, bytes] : before) EXPECT_TRUE(small.disk.contents(path) == bytes) << path;
  EXPECT_EQ(small.disk.paths().size(), before.size());
}

}  // namespace
}  // namespace novoht

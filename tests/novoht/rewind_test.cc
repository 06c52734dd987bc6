// Taking records back: what a table is afterwards, at once and after whatever crash, in the middle of checkpoints too.
// NOVOHT_SEED=<seed> replays a failing random test.
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>

#include "novoht/base/memory_files.h"
#include "novoht/core/format.h"
#include "novoht/snapshot.h"
#include "tests/novoht/shadow.h"

namespace novoht {
namespace {

using testing::equals;
using testing::Model;
using testing::ModelValue;

// Every note by its version, as an embedder keeps results of requests.
class Notes final : public Companion {
 public:
  Result<void> restore(TableId table, Bytes attachment) override {
    auto& mine = notes[table];
    mine.clear();
    base::Reader in(attachment);
    while (in.left() > 0) {
      const Version version = in.u64();
      mine[version] = std::string(in.str());
    }
    return {};
  }
  Result<void> replay(TableId table, Version version, std::uint64_t, Bytes note) override {
    notes[table][version] = std::string(note);
    return {};
  }
  Result<void> rewound(TableId table, Version to) override {
    auto& mine = notes[table];
    mine.erase(mine.upper_bound(to), mine.end());
    return {};
  }
  std::string attachment(TableId table) override {
    std::string out;
    base::Writer writer(out);
    for (const auto& [version, note] : notes[table]) {
      writer.u64(version);
      writer.str(note);
    }
    return out;
  }
  std::map<TableId, std::map<Version, std::string>> notes;
};

// All that a table was at each of its versions, as far as it may be taken back to them.
struct State {
  Model model;
  std::map<TableId, std::map<Version, std::string>> notes;
};

struct Trial {
  explicit Trial(std::uint64_t seed) : random(seed) {
    options.segment_size = 4096;
    options.log_slack = 1.0;
    options.maintain_slice = 100;
    states.emplace_back();
  }
  Result<void> open() {
    kept = Notes();
    options.companion = &kept;
    TRY_LET(opened, Store::open(disk, "/store", options));
    store = std::move(opened);
    return {};
  }

  Result<void> apply() {
    testing::OwnedRecord record = testing::random_record(random, 2, 6, 2000);
    record.epoch = 1 + states.size() / 50;
    State next = states.back();
    past[record.table].push_back(next.model.tables[record.table]);
    next.model.apply(record);
    next.notes[record.table][next.model.tables[record.table].version] = record.note;
    states.push_back(next);  // it may be in the file although apply() failed after it
    TRY(testing::apply_to(*store, record));
    kept.notes = next.notes;
    return {};
  }
  Result<void> rewind() {
    const TableId table{static_cast<std::uint32_t>(random.below(2))};
    auto& mine = past[table];
    if (mine.empty()) return {};
    const std::size_t steps = 1 + random.below(std::min<std::size_t>(mine.size(), 6));
    const Model::TableModel target = mine[mine.size() - steps];
    State next = states.back();
    const Model::TableModel now = next.model.tables[table];
    std::vector<testing::OwnedChange> owned;
    std::map<std::string, std::pair<std::string, std::vector<std::uint64_t>>> values;
    std::vector<Restored> restored;
    for (const auto& [key, value] : target.values) {
      auto& [bytes, ends] = values[key];
      for (const std::string& fragment : value.fragments) {
        bytes += fragment;
        ends.push_back(bytes.size());
      }
    }
    for (const auto& [key, value] : target.values) {
      const auto found = now.values.find(key);
      if (found != now.values.end() && found->second == value) continue;
      const auto& [bytes, ends] = values.at(key);
      restored.push_back({.key = key, .present = true, .version = value.version, .value = bytes, .fragment_ends = ends});
    }
    for (const auto& [key, value] : now.values)
      if (!target.values.contains(key)) restored.push_back({.key = key, .fragment_ends = {}});
    mine.resize(mine.size() - steps);
    next.model.tables[table] = target;
    auto& notes = next.notes[table];
    notes.erase(notes.upper_bound(target.version), notes.end());
    states.push_back(next);
    TRY(store->rewind(table, target.version, target.epoch, restored));
    kept.notes = next.notes;
    return {};
  }
  Result<void> step() {
    const std::uint64_t kind = random.below(100);
    if (kind < 50) return apply();
    if (kind < 62) return rewind();
    if (kind < 74) {
      TRY(store->flush());
      flushed = states.size() - 1;
    } else if (kind < 80) {
      TRY(store->sync());
      flushed = synced = states.size() - 1;
    } else if (kind < 99) {
      TRY(store->maintain({}));
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
  bool is(const State& state) const {
    if (!equals(*store, state.model)) return false;
    for (const auto& [table, notes] : state.notes) {
      const auto found = kept.notes.find(table);
      if (!(found == kept.notes.end() ? notes.empty() : found->second == notes)) return false;
    }
    return true;
  }
  // The store is as after some number of the steps, and no fewer than `least`.
  void recover(std::size_t least, const std::string& where) {
    store.reset();
    auto opened = open();
    ASSERT_TRUE(opened) << where << ": " << opened.error().message;
    for (std::size_t i = least; i < states.size(); i++)
      if (is(states[i])) return;
    FAIL() << where << ": is none of the states " << least << " to " << states.size() - 1;
  }

  base::Random random;
  base::MemoryFiles disk;
  Options options;
  Notes kept;
  std::unique_ptr<Store> store;
  std::vector<State> states;
  std::map<TableId, std::vector<Model::TableModel>> past;
  std::size_t flushed = 0, synced = 0;
};

TEST(RewindTest, AtEveryWriteThePowerMayGo) {
  constexpr int kSteps = 250;
  std::uint64_t operations = 0;
  {
    Trial whole(1);
    ASSERT_TRUE(whole.run(kSteps));
    ASSERT_TRUE(whole.is(whole.states.back()));
    operations = whole.disk.operations();
    EXPECT_GT(whole.store->statistics().checkpoints, 3u);
  }
  for (std::uint64_t at = 1; at <= operations; at++) {
    for (std::uint64_t how = 0; how < 3; how++) {
      Trial trial(1);
      trial.disk.stop_at(at);
      ASSERT_FALSE(trial.run(kSteps));
      base::Random random(at * 3 + how);
      trial.disk.crash(random);
      trial.recover(trial.synced, "operation " + std::to_string(at) + " crash " + std::to_string(how));
      if (HasFatalFailure()) return;
    }
  }
}

TEST(RewindTest, ManySeedsSurviveTheProcess) {
  const char* const one = std::getenv("NOVOHT_SEED");
  const std::uint64_t from = one != nullptr ? std::strtoull(one, nullptr, 10) : 1, to = one != nullptr ? from : 150;
  for (std::uint64_t seed = from; seed <= to; seed++) {
    Trial trial(seed);
    ASSERT_TRUE(trial.run(300)) << seed;
    ASSERT_TRUE(trial.is(trial.states.back())) << seed;
    ASSERT_TRUE(trial.store->flush());
    trial.store.reset();
    trial.disk.kill();
    trial.recover(trial.states.size() - 1, "seed " + std::to_string(seed));
    if (HasFatalFailure()) return;
  }
}

struct RewindOnce : ::testing::Test {
  static constexpr TableId kTable{7};
  base::MemoryFiles disk;
  std::unique_ptr<Store> store = *Store::open(disk, "/store", {});
  void put(Bytes key, Bytes value) {
    const Change change = Change::insert(key, value);
    ASSERT_TRUE(store->apply(kTable, {&change, 1}, {}, 5));
  }
};

TEST_F(RewindOnce, WhatCannotBeIsRefusedAndChangesNothing) {
  put("a", "1");
  put("a", "2");
  const std::array<std::uint64_t, 1> ends{1};
  const Restored good{.key = "a", .present = true, .version = 1, .value = "1", .fragment_ends = ends};
  Restored late = good, odd = good, nameless = good;
  late.version = 2;
  odd.value = "12";
  nameless.key = "";
  EXPECT_EQ(store->rewind(kTable, 3, 5, {&good, 1}).code(), Code::invalid);
  EXPECT_EQ(store->rewind(kTable, 1, 6, {&good, 1}).code(), Code::invalid);
  EXPECT_EQ(store->rewind(kTable, 1, 5, {&late, 1}).code(), Code::invalid);
  EXPECT_EQ(store->rewind(kTable, 1, 5, {&odd, 1}).code(), Code::invalid);
  EXPECT_EQ(store->rewind(kTable, 1, 5, {&nameless, 1}).code(), Code::invalid);
  EXPECT_EQ(store->version(kTable), 2u);
  EXPECT_TRUE(store->rewind(kTable, 1, 5, {&good, 1}));
  EXPECT_EQ(store->version(kTable), 1u);
  EXPECT_EQ(store->lookup(kTable, "a")->version(), 1u);
}

TEST_F(RewindOnce, AnOpenExportEndsAndATailBeginsAfterIt) {
  put("a", "1");
  put("b", "2");
  auto from = *store->begin_export(kTable);
  ASSERT_TRUE(from->next(1));
  const Restored absent{.key = "b", .fragment_ends = {}};
  ASSERT_TRUE(store->rewind(kTable, 1, 5, {&absent, 1}));
  Result<std::string> piece = from->next(1 << 20);
  for (int i = 0; i < 100 && piece && !from->done(); i++) piece = from->next(1 << 20);
  EXPECT_EQ(piece.code(), Code::conflict);
  put("c", "3");
  ASSERT_TRUE(store->flush());
  std::string seen;
  auto tail = *store->begin_tail(kTable, 1);
  ASSERT_TRUE(tail->next(1 << 20, [&](const LogRecord& record) -> Result<void> {
    for (const Change& change : record.changes) seen += std::to_string(record.version) + std::string(change.key);
    return {};
  }));
  EXPECT_EQ(seen, "2c");
}

// The bytes of FORMAT.md: a key that was there, in two fragments and with an expiry, and one that was not.
TEST(RewindTest, TheRecordsBytesAreTheDocuments) {
  const std::array<std::uint64_t, 2> ends{1, 3};
  std::string entry;
  core::append_restored(entry, {.key = "k", .present = true, .version = 2, .expires = base::from_millis(1'800'000'000'000),
                                .value = "vwx", .fragment_ends = ends});
  const std::array<Change, 2> changes{Change{core::kRestore, "k", entry}, Change::remove("new")};
  core::RecordFields fields{.type = core::RecordType::rewind, .table = TableId{7}, .version = 2, .epoch = 5, .note = {}, .changes = changes};
  std::string record(core::record_size(changes, {}, 5), '\0');
  core::encode_record(record.data(), record.size(), fields, 0x1234, 64, 104, 104);
  EXPECT_EQ(base::to_hex(Bytes(record).substr(8)),
            "6500000007000000" "0200000000000000" "0000000005010200" "0500000000000000"
            "0401002b000000" "6b" "03" "0100" "0200000000000000" "00505c18a3010000" "0300000000000000" "02000000" "6b"
            "0100000000000000" "767778" "03030000000000" "6e6577" "000000");
  const auto parsed = core::parse_record_at(record, 64, 0x1234, 104);
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->type, core::RecordType::rewind);
  core::ChangeReader plain(parsed->changes, parsed->change_count);
  while (plain.next()) {}
  EXPECT_FALSE(plain.ok());  // only a rewind's
}

}  // namespace
}  // namespace novoht

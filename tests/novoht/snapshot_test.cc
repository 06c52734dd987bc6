// Tables going out while they are written, coming in, and catching up: whatever is changed in between, garbled, cut short
// or interrupted.
#include "novoht/snapshot.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <array>
#include <filesystem>

#include "novoht/base/memory_files.h"
#include "novoht/core/format.h"
#include "tests/novoht/format_document.h"
#include "tests/novoht/shadow.h"

namespace novoht {
namespace {

using testing::equals;
using testing::Model;
using testing::NoteKeeper;
using testing::OwnedRecord;

constexpr TableId kTable{1};

// A store on a disk of its own, and every record applied to it.
struct Side {
  explicit Side(std::uint64_t seed) : random(seed) {
    options.segment_size = 4096;
    options.log_slack = 1.0;
    options.maintain_slice = 100;
    open();
  }
  void open() {
    store.reset();
    notes = NoteKeeper();
    options.companion = &notes;
    auto opened = Store::open(disk, "/store", options);
    ASSERT_TRUE(opened) << opened.error().message;
    store = *std::move(opened);
  }
  void change(int count, std::uint64_t keys = 40) {
    for (int i = 0; i < count; i++) {
      OwnedRecord record = testing::random_record(random, 3, keys, 3000);
      const auto version = testing::apply_to(*store, record);
      ASSERT_TRUE(version) << version.error().message;
      notes.add(record.table, *version, record.note);
      records.push_back(std::move(record));
      ASSERT_TRUE(!random.chance(0.3) || store->maintain({}));
    }
  }
  // kTable as it was at `version`.
  Model model_at(Version version) const {
    Model model;
    for (const OwnedRecord& record : records)
      if (record.table == kTable && model.tables[kTable].version < version) model.apply(record);
    return model;
  }
  Model model() const { return model_at(UINT64_MAX); }

  base::Random random;
  base::MemoryFiles disk;
  Options options;
  NoteKeeper notes;
  std::unique_ptr<Store> store;
  std::vector<OwnedRecord> records;
};

::testing::AssertionResult holds(const Side& side, const Model& model) {
  const auto chain = side.notes.chain.find(kTable);
  if ((chain == side.notes.chain.end() ? 0 : chain->second) != model.notes.chain.at(kTable))
    return ::testing::AssertionFailure() << "notes differ";
  return equals(*side.store, model);
}

std::string export_whole(Store& store, std::size_t slice = 1000) {
  auto out = *store.begin_export(kTable);
  std::string bytes;
  while (!out->done()) bytes += *out->next(slice);
  return bytes;
}

Result<void> import_whole(Store& store, Bytes bytes, std::size_t slice = 1000) {
  TRY_LET(in, store.begin_import(kTable));
  for (std::size_t at = 0; at < bytes.size(); at += slice) TRY(in->write(bytes.substr(at, slice)));
  return in->finish();
}

// The same, finished in pieces, with `between` between them; and how many these were.
template <typename Between>
Result<int> import_in_pieces(Store& store, Bytes bytes, std::size_t piece, Between between) {
  TRY_LET(in, store.begin_import(kTable));
  TRY(in->write(bytes));
  for (int pieces = 1;; pieces++) {
    TRY_LET(done, in->finish_some(piece));
    if (done) return pieces;
    TRY(between());
  }
}

TEST(SnapshotTest, ATableWrittenBetweenSlicesArrivesAsItWasAtItsVersion) {
  for (std::uint64_t seed = 1; seed <= 300; seed++) {
    Side source(seed), target(seed + 1000);
    source.change(150);
    target.change(30);
    auto out = source.store->begin_export(kTable);
    ASSERT_TRUE(out);
    auto in = target.store->begin_import(kTable);
    ASSERT_TRUE(in);
    const Model before = target.model();
    while (!(*out)->done()) {
      const std::size_t slice = 1 + source.random.below(700);
      auto bytes = (*out)->next(slice);
      ASSERT_TRUE(bytes) << bytes.error().message;
      ASSERT_LE(bytes->size(), slice);
      ASSERT_TRUE((*in)->write(*bytes));
      if (source.random.chance(0.5)) source.change(static_cast<int>(source.random.below(6)));
      ASSERT_TRUE(!source.random.chance(0.05) || source.store->compact());
    }
    ASSERT_TRUE((*in)->complete());
    EXPECT_EQ((*in)->version(), (*out)->version());
    ASSERT_GE((*out)->version(), (*out)->begun());
    ASSERT_TRUE(holds(target, before)) << "seed " << seed << ": changed before finish()";
    const Model model = source.model_at((*out)->version());
    ASSERT_TRUE((*in)->finish());
    ASSERT_TRUE(holds(target, model)) << "seed " << seed;

    // The records that followed bring it up to date, some at a time, and it survives a loss of power.
    auto tail = source.store->begin_tail(kTable, (*out)->version());
    ASSERT_TRUE(tail) << tail.error().message;
    out->reset();
    in->reset();
    for (int round = 0; round < 5; round++) {
      source.change(20);
      ASSERT_TRUE(!source.random.chance(0.5) || source.store->compact());
      ASSERT_TRUE(source.store->flush());
      for (bool more = true; more;) {
        const auto next = (*tail)->next(1 + source.random.below(3000), [&](const LogRecord& record) -> Result<void> {
          TRY_LET(version, target.store->apply(kTable, record.changes, record.note, record.epoch));
          EXPECT_EQ(version, record.version);
          target.notes.add(kTable, version, record.note);
          return {};
        });
        ASSERT_TRUE(next) << "seed " << seed << ": " << next.error().message;
        more = *next;
      }
      ASSERT_EQ((*tail)->reached(), source.store->version(kTable));
      ASSERT_TRUE(holds(target, source.model())) << "seed " << seed;
    }
    ASSERT_TRUE(target.store->sync());
    target.disk.crash(target.random);
    target.open();
    ASSERT_TRUE(holds(target, source.model())) << "seed " << seed << " after a crash";
    tail->reset();
    // What was held is let go.
    ASSERT_TRUE(source.store->compact());
    EXPECT_LE(source.store->statistics().segments, 2u);
  }
}

TEST(SnapshotTest, ValuesOfAllFormsAndExpiriesArrive) {
  Side source(1), target(2);
  const auto apply = [&](const Change& change) { ASSERT_TRUE(source.store->apply(kTable, std::span(&change, 1))); };
  apply(Change::insert("empty", ""));
  apply(Change::insert(std::string("\0\xff", 2), std::string(100'000, 'x')));
  apply(Change::insert("expires", "soon", base::from_millis(5'000)));
  for (int i = 0; i < 300; i++) apply(Change::append("long", std::string(50, static_cast<char>('a' + i % 26))));
  ASSERT_TRUE(import_whole(*target.store, export_whole(*source.store, 777), 333));
  target.open();
  EXPECT_EQ(target.store->lookup(kTable, "empty")->size(), 0u);
  EXPECT_EQ(target.store->lookup(kTable, Bytes("\0\xff", 2))->size(), 100'000u);
  EXPECT_EQ(target.store->lookup(kTable, "expires")->expires(), base::from_millis(5'000));
  const auto value = target.store->lookup(kTable, "long");
  EXPECT_EQ(value->fragment_count(), 300u);
  EXPECT_EQ(value->fragment_end(7), 400u);
  target.store->set_now(base::from_millis(6'000));
  EXPECT_FALSE(target.store->lookup(kTable, "expires"));
}

TEST(SnapshotTest, AnEmptyTableArrivesAndTakesTheOldOnesPlace) {
  Side source(1), target(2);
  target.change(30);
  ASSERT_TRUE(import_whole(*target.store, export_whole(*source.store)));
  EXPECT_EQ(target.store->version(kTable), 0u);
  EXPECT_TRUE(target.store->scan(kTable, 0, 10).entries.empty());
  target.open();
  EXPECT_EQ(target.store->version(kTable), 0u);
  EXPECT_TRUE(target.store->scan(kTable, 0, 10).entries.empty());
}

// A small stream with every kind of block in it.
std::string small_stream() {
  Side source(3);
  const auto apply = [&](const Change& change, Bytes note) { EXPECT_TRUE(source.store->apply(kTable, std::span(&change, 1), note, 1)); };
  apply(Change::insert("a", "1"), "n");
  apply(Change::append("a", "2"), "");
  auto out = *source.store->begin_export(kTable);
  std::string bytes = *out->next(100);
  apply(Change::insert("b", "x", base::from_millis(99'000)), "later");
  while (!out->done()) bytes += *out->next(100);
  EXPECT_EQ(out->version(), 3u);
  EXPECT_EQ(out->begun(), 2u);
  return bytes;
}

TEST(SnapshotTest, AStreamGarbledAtAnyByteIsRefusedAndTheOldTableStays) {
  const std::string good = small_stream();
  Side target(4);
  target.change(20);
  const Model before = target.model();
  for (std::size_t at = 0; at < good.size(); at++) {
    for (const int flip : {0x01, 0x80, 0xff}) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ flip);
      const auto done = import_whole(*target.store, bad, 64);
      ASSERT_FALSE(done) << "offset " << at << " flip " << flip;
      EXPECT_TRUE(done.code() == Code::corrupt || done.code() == Code::invalid || done.code() == Code::unsupported) << done.error().message;
      EXPECT_NE(done.error().message.find("snapshot"), std::string::npos) << done.error().message;
    }
  }
  for (std::size_t size = 0; size < good.size(); size++) ASSERT_EQ(import_whole(*target.store, good.substr(0, size)).code(), Code::corrupt);
  EXPECT_EQ(import_whole(*target.store, good + "x").code(), Code::invalid);
  ASSERT_TRUE(holds(target, before));
  target.open();
  ASSERT_TRUE(holds(target, before));
  ASSERT_TRUE(import_whole(*target.store, good));
  EXPECT_EQ(target.store->version(kTable), 3u);
}

TEST(SnapshotTest, ANewerFormatIsRefusedAsUnsupported) {
  std::string bytes = small_stream();
  base::store(bytes.data() + 8, std::uint32_t{77});
  base::store(bytes.data() + 12, base::crc32c(Bytes(bytes).substr(0, 12)));
  Side target(4);
  const auto done = import_whole(*target.store, bytes);
  EXPECT_EQ(done.code(), Code::unsupported);
  EXPECT_NE(done.error().message.find("format 77"), std::string::npos) << done.error().message;
}

// Found by fuzzing: checksums good, and yet no table.
TEST(SnapshotTest, AnEntryNewerThanItsTableIsRefused) {
  using namespace core;
  std::string stream = snapshot_magic(), block;
  append_block(stream, BlockKind::header, encode_checkpoint_header({.table = kTable, .version = 2}), stream.size());
  append_block(stream, BlockKind::attachment, "", stream.size());
  base::Writer w(block);
  w.u8(0), w.u16(1), w.u64(9), w.u64(1), w.raw("k"), w.raw("v");
  append_block(stream, BlockKind::entries, block, stream.size());
  append_block(stream, BlockKind::end, encode_checkpoint_end({.entries = 1, .version = 2}), stream.size());
  Side target(1);
  EXPECT_EQ(import_whole(*target.store, stream).code(), Code::corrupt);
}

TEST(SnapshotTest, AnImportCutShortByACrashAtAnyOperationLeavesTheOldTableOrTheNewOne) {
  Side source(5);
  source.change(80);
  const std::string stream = export_whole(*source.store);
  const Model after = source.model();
  int old_ones = 0, new_ones = 0;
  for (const bool in_pieces : {false, true}) {
    std::uint64_t first = 0, last = 0;
    for (std::uint64_t at = 0; first + at <= last; at++) {
      for (const bool power : {false, true}) {
        Side target(6);
        target.change(60);
        ASSERT_TRUE(target.store->sync());
        const Model before = target.model();
        first = target.disk.operations();
        if (at > 0) target.disk.stop_at(first + at);
        const auto between = [&]() -> Result<void> {
          TRY(target.store->apply(TableId{99}, std::array{Change::append("k", "v")}));
          TRY(target.store->maintain({}));
          return {};
        };
        bool done = false;
        if (in_pieces) {
          const auto pieces = import_in_pieces(*target.store, stream, 20, between);
          done = pieces.has_value();
          ASSERT_TRUE(!done || *pieces > 3);
        } else {
          done = import_whole(*target.store, stream).has_value();
        }
        if (at == 0) {
          ASSERT_TRUE(done);
          last = target.disk.operations();
        }
        power ? target.disk.crash(target.random) : target.disk.kill();
        target.open();
        if (::testing::Test::HasFatalFailure()) return;
        const bool is_new = target.store->version(kTable) == source.store->version(kTable);
        is_new ? new_ones++ : old_ones++;
        ASSERT_TRUE(is_new || !done) << "operation " << at;
        ASSERT_TRUE(holds(target, is_new ? after : before)) << "operation " << at << (power ? " power" : " kill");
        // And it goes on.
        target.records.clear();
        const Version version = target.store->version(kTable);
        ASSERT_TRUE(target.store->apply(kTable, std::array{Change::insert("new", "value")}, {}, 9));
        ASSERT_TRUE(target.store->sync());
        target.open();
        ASSERT_EQ(target.store->version(kTable), version + 1);
      }
    }
  }
  EXPECT_GT(old_ones, 3);
  EXPECT_GT(new_ones, 1);
}

TEST(SnapshotTest, ATableChangedWhileAnImportIsFinishedIsReplacedAllTheSame) {
  Side source(5);
  source.change(200);
  const std::string stream = export_whole(*source.store);
  for (int changed_after = 1; changed_after <= 3; changed_after++) {
    Side target(6);
    target.change(60);
    int pieces = 0;
    const auto between = [&]() -> Result<void> {
      if (++pieces != changed_after) return {};
      TRY(target.store->apply(kTable, std::array{Change::insert("late", "value")}, {}, 9));
      TRY(target.store->compact());  // a checkpoint of the old one takes the same name
      return {};
    };
    const auto taken = import_in_pieces(*target.store, stream, 20, between);
    ASSERT_TRUE(taken) << taken.error().message;
    EXPECT_EQ(*taken, changed_after + 1) << "the next piece does all of it";
    ASSERT_TRUE(holds(target, source.model()));
    target.disk.crash(target.random);
    target.open();
    ASSERT_TRUE(holds(target, source.model()));
  }
}

TEST(SnapshotTest, ALargeTableIsFinishedBesideWritesToAnother) {
  const auto files = base::real_files();
  std::string folder = (std::filesystem::temp_directory_path() / "novoht-import-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  constexpr int kKeys = 30'000;
  const auto key = [](int i) { return "key " + std::to_string(i); };
  const auto value = [](int i) { return std::to_string(i) + std::string(300, 'v'); };
  std::string stream;
  {
    base::MemoryFiles disk;
    auto source = Store::open(disk, "/source", {});
    ASSERT_TRUE(source);
    for (int i = 0; i < kKeys; i++) ASSERT_TRUE((*source)->apply(kTable, std::array{Change::insert(key(i), value(i))}));
    stream = export_whole(**source, 1 << 20);
  }
  for (const bool last : {false, true}) {
    auto target = Store::open(*files, folder + "/store", {});
    ASSERT_TRUE(target) << target.error().message;
    if (!last) {
      int beside = 0;
      const auto pieces = import_in_pieces(**target, stream, 20'000, [&]() -> Result<void> {
        EXPECT_EQ((*target)->version(kTable), 0u);
        for (int i = 0; i < 20; i++) TRY((*target)->apply(TableId{2}, std::array{Change::insert(key(beside++ % 1000), "w")}));
        TRY((*target)->maintain({}));
        return {};
      });
      ASSERT_TRUE(pieces) << pieces.error().message;
      EXPECT_GT(*pieces, 100);
    }
    EXPECT_EQ((*target)->version(kTable), static_cast<Version>(kKeys));
    for (int i = 0; i < kKeys; i += 7) {
      const auto found = (*target)->lookup(kTable, key(i));
      ASSERT_TRUE(found && found->contiguous() == value(i)) << i;
    }
    EXPECT_TRUE((*target)->lookup(TableId{2}, key(0)));
  }
  std::filesystem::remove_all(folder);
}

TEST(SnapshotTest, WithoutRoomTheOldTableStaysAndIsUsable) {
  Side source(7), target(8);
  source.change(200, 200);
  target.change(20);
  const std::string stream = export_whole(*source.store);
  const Model before = target.model();
  ASSERT_TRUE(target.store->sync());
  target.disk.set_capacity(target.disk.used() + 3000);
  EXPECT_EQ(import_whole(*target.store, stream).code(), Code::no_space);
  ASSERT_TRUE(holds(target, before));
  target.disk.set_capacity(UINT64_MAX);
  ASSERT_TRUE(holds(target, before));
  ASSERT_TRUE(import_whole(*target.store, stream));
  ASSERT_TRUE(holds(target, source.model()));
}

TEST(SnapshotTest, ATableDroppedOrReplacedMeanwhileIsTold) {
  Side source(9);
  source.change(100);
  const std::string stream = export_whole(*source.store);
  for (const bool replace : {false, true}) {
    auto out = *source.store->begin_export(kTable);
    auto tail = *source.store->begin_tail(kTable, source.store->version(kTable));
    ASSERT_TRUE(out->next(50));
    ASSERT_TRUE(replace ? import_whole(*source.store, stream) : source.store->drop(kTable));
    ASSERT_TRUE(source.store->apply(kTable, std::array{Change::insert("a", "b")}, {}, 9));
    Result<std::string> next = std::string();
    while (next && !out->done()) next = out->next(1000);
    EXPECT_EQ(next.code(), Code::conflict);
    EXPECT_EQ(tail->next(1000, [](const LogRecord&) { return Result<void>(); }).code(), Code::conflict);
  }
}

TEST(LogTailTest, WhatTheLogNoLongerHasIsToldAsNotFound) {
  Side source(10);
  source.change(60);
  const Version version = source.store->version(kTable);
  ASSERT_TRUE(source.store->compact());
  const auto nothing = [](const LogRecord&) { return Result<void>(); };
  auto tail = *source.store->begin_tail(kTable, 0);
  EXPECT_EQ(tail->next(100'000, nothing).code(), Code::not_found);
  EXPECT_EQ(source.store->begin_tail(kTable, version + 1).code(), Code::conflict);
  // From where it is, nothing is missing.
  auto now = *source.store->begin_tail(kTable, version);
  EXPECT_FALSE(*now->next(100'000, nothing));
  source.change(30);
  ASSERT_TRUE(source.store->flush());
  while (*now->next(100'000, nothing)) {
  }
  EXPECT_EQ(now->reached(), source.store->version(kTable));
}

TEST(LogTailTest, ARecordThatIsRefusedComesAgain) {
  Side source(11);
  ASSERT_TRUE(source.store->apply(kTable, std::array{Change::insert("a", "1")}));
  ASSERT_TRUE(source.store->flush());
  auto tail = *source.store->begin_tail(kTable, 0);
  EXPECT_EQ(tail->next(1000, [](const LogRecord&) -> Result<void> { return base::fail(Code::unavailable, "later"); }).code(),
            Code::unavailable);
  EXPECT_EQ(tail->reached(), 0u);
  int seen = 0;
  EXPECT_FALSE(*tail->next(1000, [&](const LogRecord& record) -> Result<void> {
    seen++;
    EXPECT_EQ(record.changes[0].key, "a");
    return {};
  }));
  EXPECT_EQ(seen, 1);
}

// Table 7 at version 2; while it went out, version 3 came. (FORMAT.md, "Snapshot".)
TEST(SnapshotTest, TheDocumentsExampleIsWhatThisCodeWritesAndReads) {
  using namespace core;
  std::string out = snapshot_magic();
  append_block(out, BlockKind::header,
               encode_checkpoint_header({.store = 0x1122334455667788, .table = TableId{7}, .version = 2, .epoch = 0, .position = 104}),
               out.size());
  append_block(out, BlockKind::attachment, "mine", out.size());
  std::string block;
  base::Writer w(block);
  w.u8(0), w.u16(1), w.u64(2), w.u64(1), w.raw("k"), w.raw("v");
  append_block(out, BlockKind::entries, block, out.size());
  block.clear();
  append_snapshot_record(block, 3, 5, "note", std::array{Change::append("k", "w"), Change::remove("gone")});
  append_block(out, BlockKind::records, block, out.size());
  append_block(out, BlockKind::end, encode_checkpoint_end({.entries = 1, .version = 3, .position = 184}), out.size());
  EXPECT_EQ(base::to_hex(testing::from_format_document("snapshot")), base::to_hex(out));

  Side target(1);
  ASSERT_TRUE(import_whole(*target.store, testing::from_format_document("snapshot")));
  const auto value = target.store->lookup(kTable, "k");
  ASSERT_TRUE(value);
  EXPECT_EQ(*value->contiguous(), "vw");
  EXPECT_EQ(value->version(), 3u);
  EXPECT_EQ(target.store->version(kTable), 3u);
  EXPECT_EQ(target.store->epoch(kTable), 5u);
}

}  // namespace
}  // namespace novoht

// FORMAT.md's worked example is a store: this test encodes the same one, compares every byte, and opens the document's.
// These are the golden bytes of format 2: when they change, so does the format's number.
#include "novoht/core/format.h"

#include <gtest/gtest.h>

#include <array>
#include <iostream>

#include "novoht/base/memory_files.h"
#include "novoht/core/recovery.h"
#include "tests/novoht/format_document.h"

namespace novoht::core {
namespace {

constexpr std::uint64_t kStore = 0x1122334455667788;
constexpr std::uint64_t kExpiry = 1'800'000'000'000;  // far in the future: the example shall not change with the time

std::string example_segment() {
  const std::uint64_t salt = segment_salt(kStore, 2);
  constexpr Position kBegin = 104;
  std::string out = encode_segment_header({.store = kStore, .number = 2, .begin = kBegin, .needed_from = kBegin, .size = 4096});
  const auto add = [&](const RecordFields& fields, Position durable) {
    const std::size_t size = record_size(fields.changes, fields.note, fields.epoch), at = out.size();
    out.resize(at + size);
    encode_record(out.data() + at, size, fields, salt, at, kBegin + at - kSegmentHeaderSize, durable);
  };
  const std::array<Change, 1> appended{Change::append("log", "two")};
  const std::array<Change, 2> batch{Change::insert("k", "v", base::from_millis(kExpiry)), Change::remove("gone")};
  add({.table = TableId{7}, .version = 3, .epoch = 0, .note = {}, .changes = appended}, kBegin);
  add({.table = TableId{7}, .version = 4, .epoch = 5, .note = "note", .changes = batch}, kBegin);
  add({.type = RecordType::mark, .table = {}, .version = 0, .epoch = 0, .note = {}, .changes = {}},
      kBegin + out.size() - kSegmentHeaderSize);
  return out;
}

std::string example_checkpoint() {
  std::string out = checkpoint_magic();
  append_block(out, BlockKind::header,
               encode_checkpoint_header({.store = kStore, .table = TableId{7}, .version = 2, .epoch = 0, .position = 104}),
               out.size());
  append_block(out, BlockKind::attachment, "mine", out.size());
  std::string entries;
  base::Writer w(entries);
  w.u8(0), w.u16(4), w.u64(1), w.u64(3), w.raw("gone"), w.raw("bye");
  w.u8(2), w.u16(3), w.u64(2), w.u64(4), w.u32(2), w.raw("log"), w.u64(3), w.raw("one.");
  append_block(out, BlockKind::entries, entries, out.size());
  append_block(out, BlockKind::end, encode_checkpoint_end({.entries = 2, .version = 2, .position = 104}), out.size());
  return out;
}

void expect_in_document(const std::string& name, const std::string& bytes) {
  EXPECT_EQ(base::to_hex(testing::from_format_document(name)), base::to_hex(bytes)) << name;
}

TEST(FormatTest, TheDocumentsExampleIsWhatThisCodeWrites) {
  expect_in_document("STORE", encode_store_file({.id = kStore, .created_ms = 1'700'000'000'000}));
  expect_in_document("log-0000000000000002.segment", example_segment());
  expect_in_document("table-00000007.checkpoint", example_checkpoint());
}

TEST(FormatTest, TheDocumentsExampleOpensAsAStore) {
  base::MemoryFiles disk;
  for (const char* name : {"STORE", "log-0000000000000002.segment", "table-00000007.checkpoint"})
    disk.put(std::string("/example/") + name, testing::from_format_document(name));
  struct : Companion {
    Result<void> restore(TableId, Bytes attachment) override { seen += "restore " + std::string(attachment); return {}; }
    Result<void> replay(TableId, Version version, std::uint64_t epoch, Bytes note) override {
      seen += ", replay " + std::to_string(version) + " " + std::to_string(epoch) + " " + std::string(note);
      return {};
    }
    std::string attachment(TableId) override { return {}; }
    std::string seen;
  } companion;
  Options options;
  options.companion = &companion;
  auto store = Store::open(disk, "/example", options);
  ASSERT_TRUE(store) << store.error().message;
  EXPECT_EQ(companion.seen, "restore mine, replay 3 0 , replay 4 5 note");
  constexpr TableId kTable{7};
  EXPECT_EQ((*store)->version(kTable), 4u);
  EXPECT_EQ((*store)->epoch(kTable), 5u);
  EXPECT_FALSE((*store)->lookup(kTable, "gone"));
  const auto value = (*store)->lookup(kTable, "k");
  ASSERT_TRUE(value);
  EXPECT_EQ(*value->contiguous(), "v");
  EXPECT_EQ(value->expires(), base::from_millis(kExpiry));
  const auto log = (*store)->lookup(kTable, "log");
  ASSERT_TRUE(log);
  EXPECT_EQ(log->fragment_count(), 3u);
  std::string bytes;
  ASSERT_TRUE(log->read(0, 100, bytes));
  EXPECT_EQ(bytes, "one.two");
  EXPECT_EQ(log->fragment_end(0), 3u);
}

// As the format before this one wrote it.
std::string in_format_2(const std::string& name) {
  std::string bytes = testing::from_format_document(name);
  base::store(bytes.data() + 8, std::uint32_t{2});
  const std::size_t sum = name == "STORE" ? 36 : name.ends_with(".segment") ? 60 : 12;
  base::store(bytes.data() + sum, base::crc32c(Bytes(bytes).substr(0, sum)));
  return bytes;
}

TEST(FormatTest, AStoreOfTheFormatBeforeIsReadAndWrittenOn) {
  base::MemoryFiles disk;
  for (const char* name : {"STORE", "log-0000000000000002.segment", "table-00000007.checkpoint"})
    disk.put(std::string("/old/") + name, in_format_2(name));
  constexpr TableId kTable{7};
  for (int time = 0; time < 3; time++) {
    auto store = Store::open(disk, "/old", {});
    ASSERT_TRUE(store) << store.error().message;
    EXPECT_TRUE((*store)->lookup(kTable, "log"));
    EXPECT_EQ((*store)->version(kTable), 4u + static_cast<Version>(time));
    ASSERT_TRUE((*store)->apply(kTable, std::array{Change::insert("k", "new")}, {}, 5));
    if (time == 1) {  // then there are files of both formats
      ASSERT_TRUE((*store)->compact());
    }
  }
}

TEST(FormatTest, ARecordIsGoodOnlyInItsOwnPlace) {
  const std::string segment = example_segment();
  const std::uint64_t salt = segment_salt(kStore, 2);
  const auto record = parse_record(segment, kSegmentHeaderSize, salt, 104);
  ASSERT_TRUE(record);
  EXPECT_EQ(record->version, 3u);
  EXPECT_EQ(record->durable, 104u);
  const std::string moved = std::string(8, '\0') + segment;
  EXPECT_FALSE(parse_record(moved, kSegmentHeaderSize + 8, salt, 112));
  EXPECT_FALSE(parse_record(segment, kSegmentHeaderSize, segment_salt(kStore, 3), 104));
  EXPECT_FALSE(parse_record(segment, kSegmentHeaderSize, segment_salt(kStore + 1, 2), 104));
}

TEST(FormatTest, FileNamesAreReadBackAndNothingElseIs) {
  EXPECT_EQ(segment_name(0x1f), "log-000000000000001f.segment");
  EXPECT_EQ(segment_number("log-000000000000001f.segment"), 0x1fu);
  EXPECT_FALSE(segment_number("log-000000000000001F.segment"));
  EXPECT_FALSE(segment_number("log-1f.segment"));
  EXPECT_FALSE(segment_number("log-000000000000001f.segment.new"));
  EXPECT_EQ(checkpoint_name(TableId{0xabc}), "table-00000abc.checkpoint");
  EXPECT_EQ(checkpoint_table("table-00000abc.checkpoint"), TableId{0xabc});
  EXPECT_FALSE(checkpoint_table("table-00000abc.checkpoint.new"));
}

}  // namespace
}  // namespace novoht::core

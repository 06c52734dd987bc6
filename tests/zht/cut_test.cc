// A backup's cut in instances that have partitions together: what is in it, and when there is none.
#include "tests/zht/trio.h"

namespace zht::core {
namespace {

using backup::BlockKind;

// What was read of a cut.
struct Image {
  std::map<std::string, std::string> values;
  std::map<std::string, Version> versions;
  std::multiset<std::uint64_t> kept;
  std::optional<backup::End> end;
};
Image parse(Bytes bytes) {
  Image image;
  while (!bytes.empty()) {
    const auto block = backup::next_block(bytes);
    EXPECT_TRUE(block && *block) << "a block that cannot be read";
    if (!block || !*block) break;
    if ((*block)->kind == BlockKind::entries)
      for (backup::EntryReader in((*block)->payload); in.more();) {
        const auto entry = in.next();
        EXPECT_TRUE(entry);
        if (!entry) break;
        const auto known = image.versions.find(std::string(entry->key));
        EXPECT_TRUE(known == image.versions.end() || known->second == entry->version) << "a key in two versions";
        image.values[std::string(entry->key)] = entry->value;
        image.versions[std::string(entry->key)] = entry->version;
      }
    if ((*block)->kind == BlockKind::kept) {
      const auto marks = backup::parse_kept((*block)->payload);
      EXPECT_TRUE(marks);
      if (marks) image.kept.insert(marks->begin(), marks->end());
    }
    if ((*block)->kind == BlockKind::end) image.end = *backup::parse_end((*block)->payload);
    bytes.remove_prefix((*block)->size);
  }
  return image;
}

struct CutTest : testing::Test, Trio {
  static constexpr std::uint64_t kCut = 77;
  std::uint64_t sequence = 0;
  std::map<PartitionId, Version> since;

  void SetUp() override { begin(); }
  std::uint64_t change(const Operation& operation) { return ask(0, operation, ++sequence); }
  Outcome changed(const Operation& operation) {
    const auto number = change(operation);
    run(50ms);
    return answer(0, number);
  }
  Result<std::vector<CutMark>> begin_cut(std::size_t i = 0, base::Duration limit = 1s) {
    Result<std::vector<CutMark>> marks = base::fail(Code::io, "not asked");
    round(i, [&](Instance& core, std::string&) { marks = core.begin_cut(kCut, limit, since); });
    return marks;
  }
  Result<std::vector<CutMark>> end_pause(std::size_t i = 0) {
    Result<std::vector<CutMark>> marks = base::fail(Code::io, "not asked");
    round(i, [&](Instance& core, std::string&) { marks = core.end_pause(kCut); });
    return marks;
  }
  Result<std::size_t> unsure(std::size_t i = 0) {
    Result<std::size_t> unsure = base::fail(Code::io, "not asked");
    round(i, [&](Instance& core, std::string&) { unsure = core.unsure_of(kCut); });
    return unsure;
  }
  Result<bool> read(std::size_t bytes, std::string& out) {
    Result<bool> more = base::fail(Code::io, "not asked");
    round(0, [&](Instance& core, std::string&) { more = core.read_cut(kCut, bytes, out); });
    return more;
  }
  Image read_all() {
    std::string out;
    for (;;) {
      const auto more = read(100, out);
      EXPECT_TRUE(more) << more.error().message;
      if (!more || !*more) return parse(out);
    }
  }
};

TEST_F(CutTest, ChangesWaitWhileItIsMadeAndReadsDoNot) {
  EXPECT_TRUE(changed(Operation::insert("k", "before")).ok());
  ASSERT_TRUE(begin_cut());
  const auto waits = change(Operation::insert("k", "after"));
  run(50ms);
  EXPECT_FALSE(answered(0, waits));
  // What came later on the same connection waits behind it.
  const auto behind = ask(0, Operation::lookup("k"));
  run(50ms);
  EXPECT_FALSE(answered(0, behind));
  ASSERT_TRUE(end_pause());
  run(50ms);
  EXPECT_TRUE(answer(0, waits).ok());
  EXPECT_EQ(answer(0, behind).value, "after");
  EXPECT_EQ(*unsure(), 0u);
  EXPECT_EQ(read_all().values, (std::map<std::string, std::string>{{"k", "before"}}));
}

TEST_F(CutTest, ReadsAreAnsweredDuringAPause) {
  EXPECT_TRUE(changed(Operation::insert("k", "v")).ok());
  ASSERT_TRUE(begin_cut());
  const auto number = ask(0, Operation::lookup("k"));
  run(50ms);
  EXPECT_EQ(answer(0, number).value, "v");
}

TEST_F(CutTest, ItIsAsItWasWhateverChangesAfterwards) {
  std::map<std::string, std::string> then;
  for (int i = 0; i < 200; i++) {
    const std::string key = "k" + std::to_string(i);
    EXPECT_TRUE(changed(Operation::insert(key, "v" + std::to_string(i))).ok());
    then[key] = "v" + std::to_string(i);
  }
  EXPECT_TRUE(changed(Operation::append("k7", "+")).ok());
  then["k7"] += "+";
  ASSERT_TRUE(begin_cut());
  ASSERT_TRUE(end_pause());
  run(50ms);
  ASSERT_EQ(*unsure(), 0u);
  std::string out;
  for (int i = 0; i < 200; i++) {  // changed while it is read
    const std::string key = "k" + std::to_string(i);
    switch (i % 4) {
      case 0: EXPECT_TRUE(changed(Operation::insert(key, "later")).ok()); break;
      case 1: EXPECT_TRUE(changed(Operation::remove(key)).ok()); break;
      case 2: EXPECT_TRUE(changed(Operation::append(key, "later")).ok()); break;
      default: EXPECT_TRUE(changed(Operation::insert("new" + key, "later")).ok());
    }
    if (i == 1) {  // and there again
      EXPECT_TRUE(changed(Operation::insert("k1", "again")).ok());
    }
    if (i % 10 == 0) {
      ASSERT_TRUE(read(50, out));
    }
  }
  for (;;) {
    const auto more = read(1000, out);
    ASSERT_TRUE(more) << more.error().message;
    if (!*more) break;
  }
  const Image image = parse(out);
  EXPECT_EQ(image.values, then);
  ASSERT_TRUE(image.end);
  EXPECT_EQ(image.end->version, 201u);
}

TEST_F(CutTest, OfTheBackupBeforeOnlyTheNamesAreSent) {
  EXPECT_TRUE(changed(Operation::insert("same", "1")).ok());
  EXPECT_TRUE(changed(Operation::insert("other", "1")).ok());
  since[PartitionId{0}] = 2;
  EXPECT_TRUE(changed(Operation::insert("other", "2")).ok());
  ASSERT_TRUE(begin_cut());
  ASSERT_TRUE(end_pause());
  EXPECT_TRUE(changed(Operation::insert("same", "3")).ok());
  const Image image = read_all();
  EXPECT_EQ(image.values, (std::map<std::string, std::string>{{"other", "2"}}));
  EXPECT_EQ(std::set<std::uint64_t>(image.kept.begin(), image.kept.end()), std::set<std::uint64_t>{backup::mark_of("same", 1)});
}

TEST_F(CutTest, APartitionThatDidNotChangeIsNotSent) {
  EXPECT_TRUE(changed(Operation::insert("k", "1")).ok());
  since[PartitionId{0}] = 1;
  ASSERT_TRUE(begin_cut());
  ASSERT_TRUE(end_pause());
  EXPECT_TRUE(changed(Operation::insert("k", "2")).ok());
  EXPECT_FALSE(read_all().end);
}

TEST_F(CutTest, APauseThatNobodyEndsEndsAndTheCutIsLost) {
  ASSERT_TRUE(begin_cut(0, 100ms));
  const auto waits = change(Operation::insert("k", "v"));
  run(300ms);
  EXPECT_TRUE(answer(0, waits).ok());
  EXPECT_EQ(end_pause().code(), Code::unavailable);
  std::string out;
  EXPECT_EQ(read(100, out).code(), Code::unavailable);
}

// Who leads without knowing that another does must not vouch for a moment.
TEST_F(CutTest, AMarkIsCertainOnlyWithTheSynchronousCopies) {
  EXPECT_TRUE(changed(Operation::insert("k", "v")).ok());
  cut = {0};
  run(400ms);  // its leases are over, and it does not know that another leads
  ASSERT_EQ(begin_cut()->size(), 1u);
  ASSERT_TRUE(end_pause());
  run(500ms);
  const auto sure = unsure();
  EXPECT_TRUE(!sure || *sure == 1) << "certain, though nobody was asked";
  cut.clear();
  run(2s);
  EXPECT_EQ(view.primary.instance, InstanceId{1});
  EXPECT_EQ(unsure().code(), Code::unavailable);
}

TEST_F(CutTest, OneAtATime) {
  ASSERT_TRUE(begin_cut());
  EXPECT_EQ(begin_cut().code(), Code::conflict);
  round(0, [&](Instance& core, std::string&) { core.forget_cut(kCut); });
  EXPECT_TRUE(begin_cut());
}

// What uncommitted changes leave behind when another leads is not in any cut: they were never certain.
TEST_F(CutTest, WhatIsNotCommittedMakesItWait) {
  blocked = {{1, 0}};
  const auto number = change(Operation::insert("k", "v"));
  ASSERT_TRUE(begin_cut());
  ASSERT_TRUE(end_pause());
  EXPECT_EQ(*unsure(), 1u);
  blocked.clear();
  run(300ms);
  EXPECT_TRUE(answered(0, number));
  const auto sure = unsure();
  EXPECT_TRUE(!sure || *sure == 0);
}

TEST_F(CutTest, FollowersTakeNoPart) {
  const auto marks = begin_cut(1);
  ASSERT_TRUE(marks);
  EXPECT_TRUE(marks->empty());
}

}  // namespace
}  // namespace zht::core

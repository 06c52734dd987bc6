#include "fusionfs/core/format.h"

#include <gtest/gtest.h>

#include <array>

#include "fusionfs/core/access_list.h"
#include "fusionfs/core/requests.h"
#include "novoht/base/random.h"

namespace fusionfs {
namespace {

TEST(Format, AnInodeNumberCarriesItsHome) {
  const InodeId inode = make_inode(HomeId{0x1234}, 77);
  EXPECT_EQ(home_of(inode), HomeId{0x1234});
  EXPECT_EQ(counter_of(inode), 77u);
  EXPECT_EQ(inode_key(inode), "{d:1234}i/4d");
  EXPECT_EQ(kRootInode, make_inode(kRootHome, kDirectoryCounter));
  EXPECT_EQ(home_of(make_inode(HomeId{kMaxHome}, kMaxCounter)), HomeId{kMaxHome});
}

TEST(Format, KeysOfOneHomeShareItsTag) {
  EXPECT_EQ(tag_of(HomeId{10}), "{d:a}");
  EXPECT_EQ(entry_key(HomeId{10}, "name"), "{d:a}e/name");
  EXPECT_EQ(listing_key(HomeId{10}), "{d:a}l");
  EXPECT_EQ(attributes_key(make_inode(HomeId{10}, 2)), "{d:a}x/2");
}

std::string list_of(std::initializer_list<std::array<std::uint32_t, 3>> entries) {
  std::string list;
  base::Writer to(list);
  to.u32(2);
  for (const auto& [tag, bits, id] : entries) {
    to.u16(static_cast<std::uint16_t>(tag));
    to.u16(static_cast<std::uint16_t>(bits));
    to.u32(id);
  }
  return list;
}

TEST(AccessList, TheMasksBitsAreTheModesGroupBits) {
  const std::string list = list_of({{0x01, 6, 0}, {0x02, 7, 5}, {0x04, 0, 0}, {0x10, 4, 0}, {0x20, 1, 0}});
  EXPECT_EQ(mode_of_access_list(list, 0104777), 04641u);
  EXPECT_EQ(with_mode(list, 0100720), list_of({{0x01, 7, 0}, {0x02, 7, 5}, {0x04, 0, 0}, {0x10, 2, 0}, {0x20, 0, 0}}));
  EXPECT_FALSE(mode_says_it_all(list));
}

TEST(AccessList, OneOfThreeEntriesSaysNoMoreThanTheMode) {
  const std::string list = list_of({{0x01, 6, 0}, {0x04, 4, 0}, {0x20, 0, 0}});
  EXPECT_TRUE(mode_says_it_all(list));
  EXPECT_EQ(mode_of_access_list(list, 0), 0640u);
  EXPECT_EQ(with_mode(list, 0604), list_of({{0x01, 6, 0}, {0x04, 0, 0}, {0x20, 4, 0}}));
  EXPECT_FALSE(mode_says_it_all(list_of({{0x01, 6, 0}, {0x04, 4, 0}, {0x10, 4, 0}, {0x20, 0, 0}})));  // a mask alone is more
}

TEST(AccessList, WhatIsNoListSaysNothing) {
  const std::string list = list_of({{0x01, 6, 0}, {0x04, 4, 0}, {0x20, 0, 0}});
  for (const std::string& bytes : {std::string(), list.substr(0, 3), list.substr(0, list.size() - 1), "\3" + list.substr(1)}) {
    EXPECT_EQ(mode_of_access_list(bytes, 0644), std::nullopt);
    EXPECT_FALSE(mode_says_it_all(bytes));
    EXPECT_EQ(with_mode(bytes, 0), bytes);
    EXPECT_FALSE(inherit(bytes, 0644));
  }
}

Inode sample() {
  Inode inode;
  inode.id = make_inode(HomeId{3}, 9);
  inode.flags = Inode::kInline;
  inode.mode = 0100644;
  inode.uid = 1;
  inode.gid = 2;
  inode.links = 3;
  inode.device = 4;
  inode.size = 5;
  inode.blocks = 6;
  inode.atime = -7;
  inode.mtime = 8;
  inode.ctime = 9;
  inode.btime = 10;
  inode.store = 11;
  inode.parent = InodeId{12};
  inode.revision = 13;
  inode.content = "hello";
  return inode;
}

TEST(Format, InodeGoldenBytes) {
  EXPECT_EQ(base::to_hex(encode(sample())),
            "01010000a4810000010000000200000003000000"
            "0400000000000000050000000000000006000000000000"
            "00f9ffffffffffffff080000000000000009000000000000000a00000000000000"
            "0b000000000000000c000000000000000d00000000000000"
            "0500000068656c6c6f");
}

TEST(Format, InodeComesBackAsItWas) {
  const Inode inode = sample();
  const auto back = decode_inode(inode.id, encode(inode));
  ASSERT_TRUE(back);
  EXPECT_EQ(encode(*back), encode(inode));
  EXPECT_EQ(back->atime, -7);
  EXPECT_EQ(back->content, "hello");
}

TEST(Format, NoCutOrGarbledRecordIsRead) {
  const std::string inode = encode(sample());
  for (std::size_t size = 0; size < inode.size(); ++size)
    EXPECT_FALSE(decode_inode(sample().id, inode.substr(0, size))) << size;
  EXPECT_FALSE(decode_inode(sample().id, inode + "x"));
  std::string newer = inode;
  newer[0] = 2;
  EXPECT_FALSE(decode_inode(sample().id, newer));
  Entry entry;
  entry.inode = InodeId{5};
  entry.type = 0100000;
  entry.moving = Moving{1, 2, HomeId{3}, "there", true};
  entry.initial = inode;
  const std::string bytes = encode(entry);
  const auto back = decode_entry(bytes);
  ASSERT_TRUE(back);
  EXPECT_EQ(encode(*back), bytes);
  for (std::size_t size = 0; size < bytes.size(); ++size) EXPECT_FALSE(decode_entry(bytes.substr(0, size))) << size;
}

TEST(Format, RandomBytesNeverCrashADecoder) {
  base::Random random(1);
  for (int round = 0; round < 20'000; ++round) {
    std::string bytes(random.below(200), '\0');
    for (char& byte : bytes) byte = static_cast<char>(random.below(round % 2 == 0 ? 4 : 256));
    decode_inode(InodeId{1}, bytes);
    decode_entry(bytes);
    decode_dying(bytes);
    decode_attributes(bytes);
    base::Bytes rest = bytes;
    while (!rest.empty() && decode_listing(rest)) {
    }
    unpack<Reply>(bytes);
    unpack<CreateRequest>(bytes);
    unpack<TransferRequest>(bytes);
  }
}

TEST(Format, ListingRecordsFollowEachOther) {
  std::string bytes;
  ListingRecord record;
  record.kind = ListingRecord::Kind::add;
  record.type = 0040000;
  record.sequence = 1;
  record.inode = InodeId{99};
  record.live = 1;
  record.name = "first";
  encode(record, bytes);
  record.sequence = 2;
  record.name = std::string(255, 'n');
  encode(record, bytes);
  base::Bytes rest = bytes;
  EXPECT_EQ(decode_listing(rest)->name, "first");
  const auto second = decode_listing(rest);
  ASSERT_TRUE(second);
  EXPECT_EQ(second->name.size(), 255u);
  EXPECT_EQ(second->type, 0040000u);
  EXPECT_TRUE(rest.empty());
}

TEST(Format, SplitGoldenBytes) {
  Split split;
  split.moved = true;
  split.base = 2;
  split.prefix = 3;
  split.directory = InodeId{0x10};
  split.children = {HomeId{5}};
  split.next = HomeId{6};
  split.since = 7;
  split.dying = "x";
  const std::string bytes = encode(split);
  EXPECT_EQ(base::to_hex(bytes),
            "01020201"
            "03000000000000001000000000000000050000000000000006000000000000000700000000000000"
            "0100000078");
  EXPECT_EQ(encode(*decode_split(bytes)), bytes);
  for (std::size_t size = 0; size < bytes.size(); ++size) EXPECT_FALSE(decode_split(base::Bytes(bytes).substr(0, size)));
  // The names with bit 2 set are with the child, those with bit 3 have moved to the next one.
  EXPECT_EQ(split.place(0b0111), HomeId{5});
  EXPECT_EQ(split.place(0b1011), HomeId{6});
  EXPECT_EQ(split.place(0b0011), std::nullopt);
}

// What was added to a request is left out while it says nothing: nodes of older builds read the rest, and what their mounts send.
TEST(Format, AddedFieldsAreLeftOutAndMayBeMissing) {
  TransferRequest request;
  request.name = "a";
  const std::string before = pack(request);
  request.fence = 7;
  const std::string after = pack(request);
  EXPECT_EQ(after.size(), before.size() + 8);
  EXPECT_TRUE(after.starts_with(before));
  EXPECT_EQ(unpack<TransferRequest>(after)->fence, 7u);
  EXPECT_EQ(unpack<TransferRequest>(before)->fence, 0u);
  EXPECT_FALSE(unpack<TransferRequest>(after + "x"));
  EXPECT_FALSE(unpack<TransferRequest>(Bytes(after).substr(0, after.size() - 1)));
}

}  // namespace
}  // namespace fusionfs

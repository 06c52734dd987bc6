// Backups on disk: golden bytes, and what is refused.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "fusionfs/backup/index.h"
#include "zht/backup/image.h"

namespace zht::backup {
namespace {

std::string block_of(const Entry& entry) {
  std::string payload, out;
  append_entry(payload, entry);
  append_block(out, BlockKind::entries, PartitionId{7}, payload);
  return out;
}

TEST(BackupFormat, TheExampleOfTheDocumentIsWhatIsWritten) {
  const std::string bytes = block_of({.key = "k", .version = 3, .value = "v"});
  std::ifstream file(std::string(ZHT_TREE) + "/zht/backup/FORMAT.md");
  std::stringstream text;
  text << file.rdbuf();
  const std::string document = text.str();
  const std::size_t begin = document.find("```hex block\n");
  ASSERT_NE(begin, std::string::npos);
  std::string said;
  for (std::size_t at = begin + 13; document[at] != '`'; at++)
    if (std::isxdigit(static_cast<unsigned char>(document[at])) != 0) said.push_back(document[at]);
  EXPECT_EQ(base::to_hex(bytes), said);
}

TEST(BackupFormat, AnEntryComesBackWhole) {
  const Entry entry{.key = "key", .version = 1ull << 40, .expires = base::from_millis(1'700'000'000'123), .value = "abcdef",
                    .fragment_ends = {2, 2, 6}};
  std::string payload;
  append_entry(payload, entry);
  append_entry(payload, {.key = "other", .version = 1, .value = ""});
  EntryReader reader(payload);
  const auto first = reader.next();
  ASSERT_TRUE(first) << first.error().message;
  EXPECT_EQ(first->key, "key");
  EXPECT_EQ(first->version, 1ull << 40);
  EXPECT_EQ(first->expires, entry.expires);
  EXPECT_EQ(first->value, "abcdef");
  EXPECT_EQ(first->fragment_ends, entry.fragment_ends);
  ASSERT_TRUE(reader.more());
  EXPECT_EQ(reader.next()->key, "other");
  EXPECT_FALSE(reader.more());
}

TEST(BackupFormat, EveryFlippedBitOfABlockIsNoticed) {
  const std::string good = block_of({.key = "key", .version = 9, .value = std::string(40, 'v')});
  for (std::size_t bit = 0; bit < good.size() * 8; bit++) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << bit % 8));
    const auto block = next_block(bad);
    EXPECT_TRUE(!block || !*block) << "bit " << bit;  // wrong, or longer than what is there
  }
  for (std::size_t size = 0; size < good.size(); size++) EXPECT_FALSE(*next_block(Bytes(good).substr(0, size)));
}

TEST(BackupFormat, AnIndexComesBackAndDamageIsNoticed) {
  std::vector<Holding> holdings(3);
  holdings[0] = {.state = Holding::State::whole, .version = 5, .entries = 2, .removed = 0, .extents = {{24, 100}, {300, 7}}};
  holdings[1] = {.state = Holding::State::changes, .version = 9, .entries = 1, .removed = 3, .extents = {{124, 50}}};
  holdings[2] = {.state = Holding::State::same, .version = 4, .entries = 0, .removed = 0, .extents = {}};
  const std::string good = encode_index(holdings);
  const auto back = parse_index(good);
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(encode_index(*back), good);
  EXPECT_EQ(base::to_hex(Bytes(good).substr(0, 16)), "5a4854424b6964780100000003000000");
  for (std::size_t at = 0; at < good.size(); at++) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 1);
    EXPECT_FALSE(parse_index(bad)) << at;
  }
  std::string newer = good;
  newer[8] = 2;
  EXPECT_EQ(parse_index(newer).code(), Code::unsupported);
}

TEST(BackupFormat, AManifestComesBackAndANewerOneIsRefusedByName) {
  Manifest manifest;
  manifest.number = 4;
  manifest.parent = 3;
  manifest.cluster = "0123";
  manifest.partitions = 64;
  manifest.made = base::from_millis(1'700'000'000'123);
  manifest.parts["fusionfs"] = "{\"files\":1}";
  const std::string good = encode_manifest(manifest);
  const auto back = parse_manifest(good);
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(encode_manifest(*back), good);
  std::string changed = good;
  changed.replace(changed.find("\"partitions\": 64"), 16, "\"partitions\": 65");
  EXPECT_EQ(parse_manifest(changed).code(), Code::corrupt);
  std::string newer = good;
  newer.replace(newer.find("\"format\": 1"), 11, "\"format\": 2");
  const auto refused = parse_manifest(newer);
  EXPECT_EQ(refused.code(), Code::unsupported);
  EXPECT_NE(refused.error().message.find("format 2"), std::string::npos);
  EXPECT_EQ(parse_manifest("{}").code(), Code::corrupt);
  EXPECT_EQ(parse_manifest("").code(), Code::corrupt);
}

TEST(BackupFormat, AListOfFilesComesBackAndDamageIsNoticed) {
  fusionfs::SavedFiles files;
  files[fusionfs::InodeId{7}] = {.revision = 3, .size = 1 << 21, .flags = 0, .pieces = {{0, 1 << 20, 0, 0, 11}, {1 << 20, 100, 2, 5, 12}}};
  files[fusionfs::InodeId{9}] = {.revision = 1, .size = 5, .flags = fusionfs::SavedFile::kMoved, .pieces = {}};
  const std::string good = fusionfs::encode_saved(files);
  const auto back = fusionfs::parse_saved(good);
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(fusionfs::encode_saved(*back), good);
  EXPECT_EQ(base::to_hex(Bytes(good).substr(0, 20)), "464653424b696478010000000200000000000000");
  for (std::size_t at = 0; at < good.size(); at++) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 1);
    EXPECT_FALSE(fusionfs::parse_saved(bad)) << at;
  }
  files[fusionfs::InodeId{7}].pieces[1].offset = 5;  // over the first one
  EXPECT_EQ(fusionfs::parse_saved(fusionfs::encode_saved(files)).code(), Code::corrupt);
}

}  // namespace
}  // namespace zht::backup

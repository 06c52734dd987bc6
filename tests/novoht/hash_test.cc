// Golden values: hash64 decides where a key lives, on disk and on the wire, and crc32c what is believed. They never change.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "novoht/base/bytes.h"
#include "novoht/base/hashes.h"
#include "novoht/base/random.h"

namespace base {
namespace {

TEST(HashTest, GoldenValues) {
  EXPECT_EQ(hash64(""), 0xc96f21ebf6290549u);
  EXPECT_EQ(hash64("a"), 0x57418385339d49b7u);
  EXPECT_EQ(hash64("abc"), 0x0df63fc3f0fa22b1u);
  EXPECT_EQ(hash64("abcd"), 0xac5b474e99b0e990u);
  EXPECT_EQ(hash64("abcdefg"), 0x880d700cd91b2158u);
  EXPECT_EQ(hash64("abcdefgh"), 0x1af3ab88584d9a9du);
  EXPECT_EQ(hash64("0123456789abcdef"), 0x2705c096c41bcd3cu);
  EXPECT_EQ(hash64("0123456789abcdefg"), 0x3a124b770dc95c3au);
  EXPECT_EQ(hash64("The quick brown fox jumps over the lazy dog"), 0xab5563f1728baff8u);
  EXPECT_EQ(hash64("abc", 1), 0x097a8be8e9c7d5ecu);
}

TEST(HashTest, SameBytesAndCopyBytesAreMemcmpAndMemcpyAtEverySize) {
  Random random(2);
  for (std::size_t size = 0; size <= 160; size++) {
    std::string from(size + 2, '\0');
    for (char& c : from) c = static_cast<char>(random.next());
    std::string to(size + 2, '#');
    copy_bytes(to.data() + 1, from.data() + 1, size);
    ASSERT_EQ(to, "#" + from.substr(1, size) + "#") << size << " bytes";
    EXPECT_TRUE(same_bytes(to.data() + 1, from.data() + 1, size)) << size << " bytes";
    for (std::size_t at = 0; at < size; at++) {
      to[1 + at] = static_cast<char>(to[1 + at] ^ 0x40);
      EXPECT_FALSE(same_bytes(to.data() + 1, from.data() + 1, size)) << size << " bytes, the byte " << at;
      to[1 + at] = static_cast<char>(to[1 + at] ^ 0x40);
    }
  }
}

TEST(HashTest, EveryBitOfTheInputReachesTheTopAndTheBottom) {
  Random random(1);
  for (const std::size_t size : {1u, 3u, 4u, 7u, 8u, 9u, 15u, 16u, 17u, 31u, 32u, 33u, 48u, 100u}) {
    std::string key(size, '\0');
    for (char& c : key) c = static_cast<char>(random.next());
    const std::uint64_t before = hash64(key);
    for (std::size_t bit = 0; bit < 8 * size; bit++) {
      key[bit / 8] = static_cast<char>(key[bit / 8] ^ (1 << bit % 8));
      const std::uint64_t after = hash64(key);
      EXPECT_NE(after >> 32, before >> 32) << size << " bytes, bit " << bit;
      EXPECT_NE(static_cast<std::uint32_t>(after), static_cast<std::uint32_t>(before)) << size << " bytes, bit " << bit;
      key[bit / 8] = static_cast<char>(key[bit / 8] ^ (1 << bit % 8));
    }
  }
}

// [ZHT] 3.2: keys spread evenly over the ring, also keys that differ little.
TEST(HashTest, SimilarKeysAreSpreadEvenly) {
  constexpr int kSlices = 1024, kKeys = 1024 * 200;
  std::vector<int> slices(kSlices);
  for (int i = 0; i < kKeys; i++) slices[hash64("user:" + std::to_string(i)) >> 54]++;
  double chi = 0;
  for (const int count : slices) chi += (count - 200.0) * (count - 200.0) / 200.0;
  // Expected 1023, standard deviation 45.
  EXPECT_LT(chi, 1023 + 5 * 45);
  EXPECT_GT(chi, 1023 - 5 * 45);
}

TEST(CrcTest, OfALongInputIsThatOfItsParts) {
  std::string bytes(20'000, '\0');
  Random random(3);
  for (char& byte : bytes) byte = static_cast<char>(random.next());
  for (const std::size_t size : {4079u, 4080u, 4081u, 4096u, 8159u, 8160u, 8161u, 12'345u, 20'000u}) {
    const Bytes all = Bytes(bytes).substr(0, size);
    std::uint32_t parts = 0;
    for (std::size_t at = 0; at < size; at += 100) parts = crc32c(all.substr(at, 100), parts);
    EXPECT_EQ(crc32c(all), parts) << size;
  }
}

TEST(CrcTest, KnownValues) {
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);  // RFC 3720
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  for (std::size_t cut = 0; cut <= 9; cut++)
    EXPECT_EQ(crc32c(Bytes("123456789").substr(cut), crc32c(Bytes("123456789").substr(0, cut))), 0xe3069283u);
}

TEST(BytesTest, AReaderFailsOnceAndForGood) {
  std::string bytes;
  Writer writer(bytes);
  writer.u8(1);
  writer.u32(2);
  writer.str("three");
  Reader good(bytes);
  EXPECT_EQ(good.u8(), 1);
  EXPECT_EQ(good.u32(), 2u);
  EXPECT_EQ(good.str(), "three");
  EXPECT_TRUE(good.done());
  for (std::size_t size = 0; size < bytes.size(); size++) {
    Reader cut(Bytes(bytes).substr(0, size));
    (void)cut.u8(), (void)cut.u32(), (void)cut.str();
    EXPECT_FALSE(cut.ok()) << size;
    EXPECT_EQ(cut.u64(), 0u);
    EXPECT_EQ(cut.raw(1), "");
  }
}

TEST(HashTest, FnvAndJenkinsGiveTheirAuthorsValues) {
  EXPECT_EQ(fnv1a64(""), 0xcbf29ce484222325u);
  EXPECT_EQ(fnv1a64("a"), 0xaf63dc4c8601ec8cu);
  EXPECT_EQ(fnv1a64("foobar"), 0x85944171f73967e8u);
  EXPECT_EQ(jenkins32("a"), 0xca2e9442u);
  EXPECT_EQ(jenkins32("The quick brown fox jumps over the lazy dog"), 0x519e91f5u);
}

TEST(BytesTest, EscapeShowsWhatATerminalMayShow) {
  EXPECT_EQ(escape("plain"), "plain");
  EXPECT_EQ(escape(Bytes("a\"\\\n\x80\0", 6)), "a\\\"\\\\\\x0a\\x80\\x00");
  EXPECT_EQ(escape("longer", 4), "long...");
  EXPECT_EQ(to_hex(Bytes("\x00\xff", 2)), "00ff");
}

TEST(RandomTest, AnEqualSeedGivesEqualNumbers) {
  Random a(7), b(7), c(8);
  for (int i = 0; i < 100; i++) EXPECT_EQ(a.next(), b.next());
  EXPECT_NE(a.next(), c.next());
  for (int i = 0; i < 1000; i++) EXPECT_LT(a.below(7), 7u);
}

}  // namespace
}  // namespace base

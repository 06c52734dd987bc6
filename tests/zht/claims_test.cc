// Whose number is it: what nodes remember, and when a founder may begin.
#include "zht/server/claims.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "zht/support/paths.h"

namespace zht::server {
namespace {

using Verdict = FirstStart::Verdict;
constexpr std::uint64_t kMine = 77, kAnothers = 78;

base::Time at(std::chrono::milliseconds time) { return base::Time(time); }

TEST(FirstStart, BeginsAtOnceWhenAllWitnessesKnowItsUid) {
  FirstStart first(3, 2, kMine);
  first.answered(1, kMine, at(std::chrono::seconds(1)));
  EXPECT_EQ(first.verdict(at(std::chrono::seconds(1))), Verdict::waits);
  EXPECT_EQ(first.awaited(), std::vector<std::uint64_t>{3});
  first.answered(3, kMine, at(std::chrono::seconds(2)));
  EXPECT_EQ(first.verdict(at(std::chrono::seconds(2))), Verdict::begins);
}

TEST(FirstStart, GivesThoseWhoAreSilentAMoment) {
  FirstStart first(3, 2, kMine);
  first.answered(1, kMine, at(std::chrono::seconds(1)));
  EXPECT_EQ(first.verdict(at(std::chrono::seconds(1)) + FirstStart::kPatience - base::Duration(1)), Verdict::waits);
  EXPECT_EQ(first.verdict(at(std::chrono::seconds(1)) + FirstStart::kPatience), Verdict::begins);
}

TEST(FirstStart, NeverBeginsWithoutAMajority) {
  FirstStart first(5, 2, kMine);
  first.answered(1, kMine, at(std::chrono::seconds(1)));
  first.answered(1, kMine, at(std::chrono::seconds(2)));
  EXPECT_EQ(first.verdict(at(std::chrono::hours(1))), Verdict::waits);
}

TEST(FirstStart, OfTwoNeedsBoth) {
  FirstStart first(2, 1, kMine);
  EXPECT_EQ(first.verdict(at(std::chrono::hours(1))), Verdict::waits);
  first.answered(2, kMine, at(std::chrono::hours(1)));
  EXPECT_EQ(first.verdict(at(std::chrono::hours(1))), Verdict::begins);
}

TEST(FirstStart, IsTheEndForWhoIsKnownUnderAnotherUid) {
  FirstStart first(9, 1, kMine);
  for (std::uint64_t node = 2; node <= 7; node++) first.answered(node, kMine, at(std::chrono::seconds(1)));
  EXPECT_EQ(first.verdict(at(std::chrono::seconds(1))), Verdict::begins);
  first.answered(9, kAnothers, at(std::chrono::seconds(1)));  // no witness, but it remembers
  EXPECT_EQ(first.verdict(at(std::chrono::hours(1))), Verdict::lost);
}

TEST(FirstStart, OfOneThatIsNoWitnessNeedsAMajorityOfThose) {
  FirstStart first(9, 9, kMine);
  for (std::uint64_t node = 1; node <= 3; node++) first.answered(node, kMine, at(std::chrono::seconds(1)));
  first.answered(8, kMine, at(std::chrono::seconds(1)));
  EXPECT_EQ(first.verdict(at(std::chrono::hours(1))), Verdict::waits);
  first.answered(4, kMine, at(std::chrono::seconds(1)));
  EXPECT_EQ(first.verdict(at(std::chrono::hours(1))), Verdict::begins);
}

class ClaimsTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "zht-claims-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string folder_;
};

TEST_F(ClaimsTest, TheFirstToClaimANumberHasItForGood) {
  auto claims = Claims::open(folder_, 5);
  ASSERT_TRUE(claims);
  EXPECT_EQ(claims->of(2), 0u);
  EXPECT_EQ(*claims->claim(2, kMine), kMine);
  EXPECT_EQ(*claims->claim(2, kAnothers), kMine);
  EXPECT_EQ(*claims->claim(3, ~std::uint64_t{0}), ~std::uint64_t{0});
  auto later = Claims::open(folder_, 5);
  ASSERT_TRUE(later);
  EXPECT_EQ(later->of(2), kMine);
  EXPECT_EQ(*later->claim(2, kAnothers), kMine);
  EXPECT_EQ(later->of(3), ~std::uint64_t{0});
}

TEST_F(ClaimsTest, OfAnotherClusterCountForNothing) {
  auto claims = Claims::open(folder_, 5);
  ASSERT_TRUE(claims);
  EXPECT_EQ(*claims->claim(2, kMine), kMine);
  auto other = Claims::open(folder_, 6);
  ASSERT_TRUE(other);
  EXPECT_EQ(*other->claim(2, kAnothers), kAnothers);
}

TEST_F(ClaimsTest, WhatCannotBeReadIsSaid) {
  ASSERT_TRUE(support::write_file_atomically(folder_ + "/uids.json", "{]"));
  const auto claims = Claims::open(folder_, 5);
  ASSERT_FALSE(claims);
  EXPECT_EQ(claims.code(), base::Code::corrupt);
  EXPECT_NE(claims.error().message.find(folder_ + "/uids.json"), std::string::npos);
}

TEST_F(ClaimsTest, WhatCannotBeNotedIsNotSaid) {
  auto claims = Claims::open(folder_, 5);
  ASSERT_TRUE(claims);
  std::filesystem::remove_all(folder_);
  EXPECT_FALSE(claims->claim(2, kMine));
  EXPECT_EQ(claims->of(2), 0u);
}

}  // namespace
}  // namespace zht::server

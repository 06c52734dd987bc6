#include "matrix/core/expand.h"

#include <gtest/gtest.h>

namespace {

using matrix::expand;

TEST(Expand, EachPlaceholderIsWhatGnuParallelMakesOfIt) {
  const std::string item = "/data/dir.d/a.tar.gz";
  EXPECT_EQ(expand("{}", item, 3), item);
  EXPECT_EQ(expand("{.}", item, 3), "/data/dir.d/a.tar");
  EXPECT_EQ(expand("{/}", item, 3), "a.tar.gz");
  EXPECT_EQ(expand("{//}", item, 3), "/data/dir.d");
  EXPECT_EQ(expand("{/.}", item, 3), "a.tar");
  EXPECT_EQ(expand("{#}", item, 3), "3");
  EXPECT_EQ(expand("x{}y{#}z", "i", 7), "xiy7z");
}

TEST(Expand, SeveralSourcesAreCombinedAsGnuParallelDoes) {
  using Combined = std::vector<std::vector<std::string>>;
  EXPECT_EQ(matrix::combinations({{"a", "b"}, {"1", "2"}}), (Combined{{"a", "1"}, {"a", "2"}, {"b", "1"}, {"b", "2"}}));
  EXPECT_EQ(matrix::combinations({{"a"}, {}}), Combined{});
  const std::vector<std::string> parts{"/x/a.c", "it's"};
  EXPECT_EQ(expand("{}", parts, 1, false), "/x/a.c it's");
  EXPECT_EQ(expand("{2}-{1/.}-{#}", parts, 7, false), "it's-a-7");
  EXPECT_EQ(expand("{/}", parts, 1, false), "a.c it's");
  EXPECT_EQ(expand("echo {2} {}", parts, 1, true), "echo 'it'\\''s' '/x/a.c' 'it'\\''s'");
  EXPECT_EQ(expand("{3} {0} {01}", parts, 1, false), "{3} {0} /x/a.c");
  EXPECT_TRUE(matrix::has_placeholder("{2}", 2));
  EXPECT_FALSE(matrix::has_placeholder("{2}", 1));
}

TEST(Expand, OtherBracesStay) {
  EXPECT_EQ(expand("{a} { } {{}} ${x} {", "i", 1), "{a} { } {i} ${x} {");
  EXPECT_FALSE(matrix::has_placeholder("awk '{print $1}' {a}"));
  EXPECT_TRUE(matrix::has_placeholder("x{/.}"));
}

TEST(Expand, ItemsAreNotExpandedAgain) { EXPECT_EQ(expand("{} {#}", "{#}", 5), "{#} 5"); }

TEST(Expand, EdgesOfPaths) {
  EXPECT_EQ(expand("{//}", "name", 1), ".");
  EXPECT_EQ(expand("{//}", "/name", 1), "/");
  EXPECT_EQ(expand("{.}", ".profile", 1), ".profile");
  EXPECT_EQ(expand("{.}", "a.b/c", 1), "a.b/c");
  EXPECT_EQ(expand("{}", "", 1), "");
}

TEST(Expand, ShellLinesGetQuotedItems) {
  EXPECT_EQ(expand("echo {}", "it's; rm -rf $HOME", 1, true), "echo 'it'\\''s; rm -rf $HOME'");
}

}  // namespace

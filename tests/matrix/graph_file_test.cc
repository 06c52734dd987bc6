#include "matrix/tool/graph_file.h"

#include <gtest/gtest.h>

namespace matrix {
namespace {

std::string error_of(const std::string& text, const std::string& path = "g.toml") {
  const auto graph = parse_graph(path, text);
  return graph ? "no error" : graph.error().message;
}

TEST(GraphFile, TomlAndJsonSayTheSame) {
  const auto toml = parse_graph("g.toml", R"(
    name = "build"
    [tasks.link]
    command = "ld *.o"
    after = ["b", "a"]
    [tasks.a]
    command = ["cc", "-c", "a.c"]
    [tasks.b]
    command = ["cc", "-c", "b.c"]
    after = "a"
  )");
  ASSERT_TRUE(toml) << toml.error().message;
  EXPECT_EQ(toml->name, "build");
  ASSERT_EQ(toml->items.size(), 3u);
  EXPECT_EQ(toml->items[0].name, "a");
  EXPECT_EQ(toml->items[0].argv, (std::vector<std::string>{"cc", "-c", "a.c"}));
  EXPECT_EQ(toml->items[1].parents, std::vector<std::uint32_t>{0});
  EXPECT_EQ(toml->items[2].name, "link");
  EXPECT_EQ(toml->items[2].argv, (std::vector<std::string>{"/bin/sh", "-c", "ld *.o"}));
  EXPECT_EQ(toml->items[2].parents, (std::vector<std::uint32_t>{0, 1}));
  const auto json =
      parse_graph("g.json", R"({"name": "build", "tasks": {"link": {"command": "ld *.o", "after": ["b", "a"]},
    "a": {"command": ["cc", "-c", "a.c"]}, "b": {"command": ["cc", "-c", "b.c"], "after": ["a"]}}})");
  ASSERT_TRUE(json) << json.error().message;
  EXPECT_EQ(encode(json->items), encode(toml->items));
}

TEST(GraphFile, WhatIsWrongIsNamed) {
  EXPECT_EQ(error_of("name = \"x\"\n"), "g.toml: no tasks; write [tasks.NAME] with a command");
  EXPECT_EQ(error_of("[tasks.a]\ncomand = \"x\"\n"), "g.toml: task a: no command");
  EXPECT_EQ(error_of("[tasks.a]\ncommand = \"x\"\nafer = []\n"),
            "g.toml: task a: no key 'afer'; did you mean 'after'?");
  EXPECT_EQ(error_of("[tasks.a]\ncommand = [1]\n"), "g.toml: task a: command holds something that is not a string");
  EXPECT_EQ(error_of("[tasks.a]\ncommand = []\n"), "g.toml: task a: command is neither a string nor a list of strings");
  EXPECT_EQ(error_of("[tasks.one]\ncommand = \"x\"\nafter = [\"oen\"]\n[tasks.two]\ncommand = \"x\"\n"),
            "g.toml: task one waits for 'oen', which is not there; did you mean 'one'?");
  EXPECT_EQ(error_of("[tasks.a]\ncommand = \"x\"\nafter = [\"a\"]\n"), "g.toml: tasks wait for each other: a after a");
  EXPECT_EQ(error_of("[tasks.a]\ncommand = \"x\"\n[tasks.a]\n").substr(0, 9), "g.toml:3:");
  EXPECT_EQ(error_of("{\n\"tasks\": nonsense}", "g.json"), "g.json:2: not JSON");
  EXPECT_EQ(error_of("[]", "g.json"), "g.json: no tasks; write [tasks.NAME] with a command");
}

TEST(GraphFile, ACycleIsWalked) {
  const std::string text =
      "[tasks.a]\ncommand=\"x\"\nafter=[\"c\"]\n[tasks.b]\ncommand=\"x\"\nafter=[\"a\"]\n"
      "[tasks.c]\ncommand=\"x\"\nafter=[\"b\"]\n[tasks.d]\ncommand=\"x\"\nafter=[\"c\"]\n";
  const std::string error = error_of(text);
  EXPECT_NE(error.find("tasks wait for each other: "), std::string::npos) << error;
  for (const char* pair : {"a after c", "b after a", "c after b"})
    EXPECT_NE(error.find(pair), std::string::npos) << error;
}

}  // namespace
}  // namespace matrix

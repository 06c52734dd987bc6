// The novoht program from the outside: what it prints, and how it ends.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "novoht/base/file.h"

namespace {

using Json = nlohmann::json;

struct Outcome {
  int status = -1;
  std::string out, error;
};

class ToolTest : public ::testing::Test {
 protected:
  ToolTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "novoht-tool-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
  }
  ~ToolTest() override { std::filesystem::remove_all(folder_); }

  // Runs `novoht <arguments>`, in which STORE stands for a store's folder, with `input`.
  Outcome run(std::string arguments, const std::string& input = {}) const {
    for (std::size_t at; (at = arguments.find("STORE")) != std::string::npos;) arguments.replace(at, 5, folder_ + "/store");
    for (std::size_t at; (at = arguments.find("FOLDER")) != std::string::npos;) arguments.replace(at, 6, folder_);
    std::ofstream(folder_ + "/in", std::ios::binary) << input;
    const std::string command = std::string(NOVOHT_PROGRAM) + " " + arguments + " <" + folder_ + "/in >" + folder_ + "/out 2>" + folder_ + "/error";
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, slurp(folder_ + "/out"), slurp(folder_ + "/error")};
  }
  static std::string slurp(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  // It ended with `status`, printed nothing but one line on stderr that contains `words`.
  static void expect_refused(const Outcome& outcome, int status, const std::string& words) {
    EXPECT_EQ(outcome.status, status) << outcome.error;
    EXPECT_EQ(outcome.out, "");
    EXPECT_TRUE(outcome.error.starts_with("novoht: ")) << outcome.error;
    EXPECT_EQ(std::count(outcome.error.begin(), outcome.error.end(), '\n'), 1) << outcome.error;
    EXPECT_NE(outcome.error.find(words), std::string::npos) << outcome.error;
    EXPECT_NE(outcome.error.find("; "), std::string::npos) << "no remedy: " << outcome.error;
  }
  std::string folder_;
};

TEST_F(ToolTest, PutsGetsAppendsAndRemoves) {
  EXPECT_EQ(run("put STORE greeting hello").status, 0);
  EXPECT_EQ(run("get STORE greeting").out, "hello");
  EXPECT_EQ(run("append STORE greeting", " world").status, 0);
  EXPECT_EQ(run("get --fragments STORE greeting").out, "hello\n world\n");
  const Json json = Json::parse(run("get --json --fragments STORE greeting").out);
  EXPECT_EQ(json["value"], "hello world");
  EXPECT_EQ(json["version"], 2);
  EXPECT_EQ(json["fragments"], (Json{"hello", " world"}));
  EXPECT_EQ(run("remove STORE greeting").status, 0);
  expect_refused(run("get STORE greeting"), 3, "no key \"greeting\" in table 0");
  expect_refused(run("remove STORE greeting"), 3, "greeting");
}

TEST_F(ToolTest, CswapChangesOnlyWhatIsAsExpected) {
  EXPECT_EQ(run("cswap --absent --desired 1 STORE n").status, 0);
  expect_refused(run("cswap --absent --desired 1 STORE n"), 4, "version 1 and value \"1\"");
  EXPECT_EQ(run("cswap --expected 1 --desired 2 STORE n").status, 0);
  expect_refused(run("cswap --version 1 --desired 3 STORE n"), 4, "version 2");
  EXPECT_EQ(run("cswap --version 2 --remove STORE n").status, 0);
  expect_refused(run("cswap --expected 2 --desired 3 STORE n"), 4, "absent");
  expect_refused(run("cswap --desired 3 STORE n"), 2, "one of --expected");
}

TEST_F(ToolTest, ExportsWhatImportBringsBack) {
  EXPECT_EQ(run("put STORE a 1").status, 0);
  EXPECT_EQ(run("put --table 5 STORE b", std::string("\x80\x00\xff", 3)).status, 0);
  EXPECT_EQ(run("append --table 5 STORE b x").status, 0);
  const std::string lines = run("export STORE").out;
  EXPECT_EQ(run("import FOLDER/copy", lines).status, 0);
  EXPECT_EQ(run("export FOLDER/copy").out, lines);
  EXPECT_EQ(run("get --table 5 FOLDER/copy b").out, std::string("\x80\x00\xffx", 4));
  expect_refused(run("import --quiet FOLDER/bad", lines + "{\"key\":1,\"fragments\":[\"\"]}\n"), 2, "line 3");
}

TEST_F(ToolTest, ScansVerifiesInspectsAndCompacts) {
  for (const char* key : {"user:1", "user:2", "other"}) EXPECT_EQ(run(std::string("put STORE ") + key + " v").status, 0);
  EXPECT_EQ(Json::parse(run("scan --json --prefix user: STORE").out).size(), 2u);
  EXPECT_EQ(Json::parse(run("scan --json --limit 1 STORE").out).size(), 1u);
  EXPECT_EQ(Json::parse(run("stats --json STORE").out)["keys"], 3);
  EXPECT_EQ(Json::parse(run("compact --json STORE").out).count("disk_bytes"), 1u);
  const Json verified = Json::parse(run("verify --json STORE").out);
  EXPECT_EQ(verified["good"], true);
  EXPECT_EQ(verified["keys_checked"], 3);
  const Json inspected = Json::parse(run("inspect --json --records STORE").out);
  EXPECT_EQ(inspected["format"], 2);
  EXPECT_EQ(inspected["files"].size(), 2u);
}

TEST_F(ToolTest, DamageIsNamedWithItsPlace) {
  EXPECT_EQ(run("put STORE a 1").status, 0);
  EXPECT_EQ(run("put STORE b 2").status, 0);
  const std::string segment = folder_ + "/store/log-0000000000000001.segment";
  {
    std::fstream file(segment, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(100);
    file.put('!');
  }
  const std::string before = slurp(segment);
  expect_refused(run("verify STORE"), 7, "log-0000000000000001.segment offset 64");
  expect_refused(run("put STORE c 3"), 7, "offset 64");
  EXPECT_EQ(slurp(segment), before);
  EXPECT_EQ(run("inspect STORE").status, 0);
}

TEST_F(ToolTest, WhatIsNoStoreOrNoCommandIsRefused) {
  std::ofstream(folder_ + "/notes.txt") << "mine";
  expect_refused(run("get FOLDER k"), 2, "not a store");
  expect_refused(run("put FOLDER k v"), 2, "not a store");
  expect_refused(run("get FOLDER/nothing k"), 2, "no such folder");
  expect_refused(run("frobnicate"), 2, "no command \"frobnicate\"");
  expect_refused(run("get"), 2, "FOLDER");
  expect_refused(run("put --ttl-ms soon STORE k v"), 2, "soon");
  expect_refused(run("put STORE '' v"), 2, "0 bytes");
  const Outcome help = run("put --help");
  EXPECT_EQ(help.status, 0);
  EXPECT_TRUE(help.out.starts_with("Examples:\n  novoht put")) << help.out;
}

TEST_F(ToolTest, AStoreInUseIsNamedWithItsHolder) {
  EXPECT_EQ(run("put STORE a 1").status, 0);
  const auto files = base::real_files();
  const auto lock = files->lock(folder_ + "/store/LOCK");
  ASSERT_TRUE(lock);
  expect_refused(run("get STORE a"), 4, "process " + std::to_string(::getpid()));
  expect_refused(run("put STORE a 2"), 4, "process " + std::to_string(::getpid()));
}

}  // namespace

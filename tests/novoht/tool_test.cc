// The novoht program from the outside: what it prints, and how it ends.
#include <gtest/gtest.h>
#include <sys/mount.h>
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
  EXPECT_EQ(inspected["format"], 3);
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
  const Json file = Json::parse(run("inspect --json --records STORE").out)["files"][0];
  EXPECT_EQ(file["damaged_at"], 64);
  EXPECT_EQ(file["records_beyond"], file["records"].size());
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
  expect_refused(run("put --ttl-ms -1 STORE k v"), 2, "\"-1\" is no whole number from 0 to");
  expect_refused(run("put --ttl-ms 99999999999999999999 STORE k v"), 2, "no whole number");
  expect_refused(run("scan --limit -3 STORE"), 2, "see `novoht scan --help`");
  expect_refused(run("get --table 4294967296 STORE k"), 2, "from 0 to 4294967295");
  expect_refused(run("cswap --version -1 --remove STORE k"), 2, "no whole number");
  EXPECT_EQ(run("put STORE k v").status, 0);
  expect_refused(run("import STORE FOLDER"), 2, "a folder");
  expect_refused(run("import --snapshot STORE FOLDER"), 2, "a folder");
  expect_refused(run("export --snapshot --table 77 STORE"), 3, "no table 77");
  EXPECT_EQ(run("help put").out, run("put --help").out);
  EXPECT_EQ(run("help").out, run("--help").out);
  expect_refused(run("help frobnicate"), 2, "no command");
  const Outcome help = run("put --help");
  EXPECT_EQ(help.status, 0);
  EXPECT_TRUE(help.out.starts_with("Examples:\n  novoht put")) << help.out;
  const Outcome version = run("--version");
  EXPECT_EQ(version.status, 0);
  EXPECT_TRUE(version.out.starts_with("novoht 0.") && version.out.ends_with("writes format 3\n")) << version.out;
}

TEST_F(ToolTest, AStoreInUseIsNamedWithItsHolder) {
  EXPECT_EQ(run("put STORE a 1").status, 0);
  const auto files = base::real_files();
  const auto lock = files->lock(folder_ + "/store/LOCK");
  ASSERT_TRUE(lock);
  expect_refused(run("get STORE a"), 4, "process " + std::to_string(::getpid()));
  expect_refused(run("put STORE a 2"), 4, "process " + std::to_string(::getpid()));
}

TEST_F(ToolTest, KeysMayBeAnyBytes) {
  EXPECT_EQ(run("put --key-hex STORE 00ff0a bytes").status, 0);
  EXPECT_EQ(run("get --key-hex STORE 00FF0A").out, "bytes");
  EXPECT_EQ(run("scan --key-hex STORE").out, "00ff0a\n");
  EXPECT_EQ(Json::parse(run("scan --key-hex --prefix 00 --json STORE").out)[0]["key"]["hex"], "00ff0a");
  EXPECT_EQ(run("scan STORE").out, "\\x00\\xff\\x0a\n");
  EXPECT_EQ(run("append --key-hex --json STORE 00ff0a", std::string("\0\n", 2)).out, "{\"version\":2}\n");
  EXPECT_EQ(run("get --key-hex STORE 00ff0a").out, std::string("bytes\0\n", 7));
  EXPECT_EQ(run("remove --key-hex STORE 00ff0a").status, 0);
  expect_refused(run("get --key-hex STORE 0"), 2, "hexadecimal");
  expect_refused(run("get --key-hex STORE xx"), 2, "hexadecimal");
  expect_refused(run("put --key-hex STORE '' v"), 2, "0 bytes");
  expect_refused(run("put STORE " + std::string(65'536, 'k') + " v"), 2, "65536 bytes");
}

TEST_F(ToolTest, DumpsAllTables) {
  EXPECT_EQ(run("put STORE a 1").status, 0);
  EXPECT_EQ(run("put --table 9 STORE b 2").status, 0);
  EXPECT_EQ(run("dump STORE").out, "0\ta\t1\n9\tb\t2\n");
  EXPECT_EQ(Json::parse(run("dump --json STORE").out).size(), 2u);
}

TEST_F(ToolTest, ATableGoesFromStoreToStoreAsASnapshot) {
  for (const char* key : {"a", "b", "a"}) EXPECT_EQ(run(std::string("append --table 3 STORE ") + key + " x").status, 0);
  EXPECT_EQ(run("export --snapshot --table 3 STORE FOLDER/snap").status, 0);
  EXPECT_EQ(run("put --table 5 FOLDER/other old one").status, 0);
  EXPECT_EQ(run("import --snapshot --table 5 FOLDER/other FOLDER/snap").status, 0);
  EXPECT_EQ(Json::parse(run("get --json --table 5 FOLDER/other a").out)["version"], 3);
  expect_refused(run("get --table 5 FOLDER/other old"), 3, "old");
  std::string bytes = slurp(folder_ + "/snap");
  bytes[bytes.size() / 2] ^= 1;
  std::ofstream(folder_ + "/bad", std::ios::binary) << bytes;
  expect_refused(run("import --snapshot --table 5 FOLDER/other FOLDER/bad"), 7, "snapshot offset");
  expect_refused(run("import --snapshot --table 5 FOLDER/other -", "a foreign file"), 2, "not a snapshot");
  expect_refused(run("import --snapshot --table 5 FOLDER/other -"), 7, "in the middle");
  EXPECT_EQ(run("get --table 5 FOLDER/other a").out, "xx");
}

TEST_F(ToolTest, BenchMeasuresAndLeavesNothing) {
  const Json one = Json::parse(run("bench --json --count 3000 --workload insert,overwrite,get,append,mixed,remove FOLDER/bench").out);
  EXPECT_EQ(one["results"].size(), 6u);
  for (const Json& row : one["results"]) EXPECT_GT(row["ops_per_s"], 0) << row;
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/bench"));
  const Json many = Json::parse(run("bench --json --count 500 --threads 3 --durability always --batch 10 --keep FOLDER/bench").out);
  EXPECT_EQ(many["results"].size(), 4u);
  EXPECT_EQ(run("verify FOLDER/bench").status, 0);
  expect_refused(run("bench FOLDER/bench"), 2, "not empty");
  expect_refused(run("bench --count 300 --key-size 1 FOLDER/b"), 2, "do not fit");
  expect_refused(run("bench --workload frob FOLDER/b"), 2, "\"frob\"");
  expect_refused(run("bench --workload remove,get FOLDER/b"), 2, "remove comes last");
  expect_refused(run("bench --durability maybe FOLDER/b"), 2, "\"maybe\"");
  EXPECT_EQ(run("bench --count 100 FOLDER/b").out.substr(0, 8), "workload");
}

TEST_F(ToolTest, EveryVerbHelpsWithTwoExamples) {
  for (const char* verb : {"put", "get", "remove", "append", "cswap", "scan", "dump", "import", "export", "stats", "verify", "inspect",
                           "compact", "bench"}) {
    const Outcome help = run(std::string(verb) + " --help");
    EXPECT_EQ(help.status, 0);
    EXPECT_TRUE(help.out.starts_with("Examples:\n  novoht " + std::string(verb) + " ")) << help.out;
    const std::string line = help.out.substr(0, help.out.find("\n\n"));
    EXPECT_GE(std::count(line.begin(), line.end(), '\n'), 2) << help.out;
  }
}

// A disk of 8 MiB that becomes full, then has room again, then can only be read.
TEST_F(ToolTest, AFullAndAReadOnlyDiskAreTold) {
  const std::string disk = folder_ + "/disk";
  std::filesystem::create_directory(disk);
  if (::mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=8m") != 0) GTEST_SKIP() << "no right to mount";
  struct Mounted {
    const std::string& path;
    ~Mounted() { ::umount2(path.c_str(), MNT_DETACH); }
  } mounted{disk};
  EXPECT_EQ(run("put FOLDER/disk/store k v").status, 0);
  std::ofstream(disk + "/filler", std::ios::binary) << std::string(8 << 20, 'x');
  const std::string large(1'200'000, 'y');
  expect_refused(run("put FOLDER/disk/store big", large), 6, "No space left");
  EXPECT_EQ(run("get FOLDER/disk/store k").out, "v");
  EXPECT_EQ(run("verify FOLDER/disk/store").status, 0);
  std::filesystem::remove(disk + "/filler");
  EXPECT_EQ(run("put FOLDER/disk/store big", large).status, 0);
  EXPECT_EQ(run("get FOLDER/disk/store big").out, large);
  ASSERT_EQ(::mount("tmpfs", disk.c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, "size=8m"), 0);
  EXPECT_EQ(run("get FOLDER/disk/store k").out, "v");
  EXPECT_EQ(run("verify FOLDER/disk/store").status, 0);
  const Outcome refused = run("put FOLDER/disk/store k 2");
  EXPECT_EQ(refused.status, 7);
  EXPECT_NE(refused.error.find("Read-only file system"), std::string::npos) << refused.error;
}

}  // namespace

// The `zht` program as a user has it: arguments, standard streams, exit status.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <nlohmann/json.hpp>

#include "zht/support/paths.h"
#include "zht/support/process.h"

namespace {

using nlohmann::json;

struct Ran {
  int status = -1;
  std::string out;
};

class CliTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "zht-cli-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    program_ = *support::find_program("zht");
  }
  void TearDown() override {
    run("stop -q");
    std::filesystem::remove_all(folder_);
  }
  // Through the shell; what goes to stderr ends up in the file err.
  Ran run(const std::string& arguments, const std::string& before = "") const {
    const std::string command = "export ZHT_DATA='" + folder_ + "/data'; unset ZHT_CLUSTER; " + before + " '" +
                                program_ + "' " + arguments + " 2>'" + folder_ + "/err'";
    Ran ran;
    FILE* pipe = popen(command.c_str(), "r");
    std::array<char, 4096> buffer;
    for (std::size_t got; (got = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) ran.out.append(buffer.data(), got);
    const int status = pclose(pipe);
    ran.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return ran;
  }
  std::string out(const std::string& arguments, const std::string& before = "") const {
    const Ran ran = run(arguments, before);
    EXPECT_EQ(ran.status, 0) << arguments << ": " << err();
    return ran.out;
  }
  std::string err() const { return support::read_file(folder_ + "/err").value_or(""); }
  std::string folder_, program_;
};

TEST_F(CliTest, KeysAreChangedAndRead) {
  EXPECT_EQ(out("insert greeting hello"), "");
  EXPECT_NE(err().find("started a local node"), std::string::npos) << err();
  EXPECT_EQ(out("append greeting ', world'"), "");
  EXPECT_EQ(err(), "") << "said once";
  EXPECT_EQ(out("lookup greeting --raw"), "hello, world");
  EXPECT_EQ(out("lookup greeting --tail 1 --raw"), ", world");
  EXPECT_EQ(out("lookup greeting --offset 1 --size 4 --raw"), "ello");
  EXPECT_EQ(json::parse(out("lookup greeting --json"))["fragment_count"], 2);
  EXPECT_EQ(run("insert greeting x --new").status, 4);
  EXPECT_EQ(run("cswap greeting wrong y").status, 4);
  EXPECT_EQ(json::parse(run("cswap greeting wrong y --json").out)["current"], "hello, world");
  EXPECT_EQ(out("cswap greeting 'hello, world' bye"), "");
  EXPECT_EQ(out("cswap fresh --absent 1"), "");
  EXPECT_EQ(out("update counter add 41"), "41\n");
  EXPECT_EQ(out("lookup counter"), "41\n");
  EXPECT_EQ(out("remove greeting"), "");
  EXPECT_EQ(run("remove greeting").status, 3);
  EXPECT_EQ(out("remove greeting --missing-ok"), "");
  EXPECT_EQ(run("lookup greeting").status, 3);
}

TEST_F(CliTest, ValuesOfAnyBytesComeFromFilesAndStreams) {
  const std::string bytes("\0\xff\n'\"", 5);
  std::ofstream(folder_ + "/value") << bytes;
  out("insert a --file '" + folder_ + "/value'");
  EXPECT_EQ(out("lookup a --raw"), bytes);
  out("insert b -", "cat '" + folder_ + "/value' |");
  EXPECT_EQ(out("lookup b --raw"), bytes);
  EXPECT_EQ(json::parse(out("lookup b --json"))["value_b64"], "AP8KJyI=");
  EXPECT_EQ(run("insert c --file /no/such/file").status, 3);
  EXPECT_EQ(run("insert c x --file '" + folder_ + "/value'").status, 2);
}

TEST_F(CliTest, ScanFindsWhatBatchWrote) {
  std::ofstream(folder_ + "/batch") << R"({"op":"insert","key":"{t}a","value":"1"})"
                                    << "\n"
                                    << R"({"op":"append","key":"{t}b","value":"22"})"
                                    << "\n";
  out("batch '" + folder_ + "/batch'");
  out("insert other x");
  EXPECT_EQ(out("scan --count"), "3\n");
  EXPECT_EQ(json::parse(out("scan '{t}' --json")).size(), 2u);
  EXPECT_EQ(out("scan other").substr(0, 6), "other\t");
  std::ofstream(folder_ + "/batch") << R"({"op":"remove","key":"{t}a"})"
                                    << "\n"
                                    << R"({"op":"cswap","key":"{t}b","expect":"no","value":"x"})"
                                    << "\n";
  EXPECT_EQ(run("batch '" + folder_ + "/batch'").status, 4);
  EXPECT_EQ(out("lookup '{t}a' --raw"), "1");
  std::ofstream(folder_ + "/batch") << R"({"op":"insert","key":"one","value":"1"})"
                                    << "\n"
                                    << R"({"op":"insert","key":"two","value":"1"})"
                                    << "\n";
  EXPECT_EQ(run("batch '" + folder_ + "/batch'").status, 2) << "not one tag";
}

TEST_F(CliTest, CallbackWaitsForTheChangeOfAnother) {
  out("insert k old");
  auto waiting = std::async(std::launch::async, [this] {
    const std::string command =
        "ZHT_DATA='" + folder_ + "/data' '" + program_ + "' callback k --equals new --raw --timeout 2min";
    FILE* pipe = popen(command.c_str(), "r");
    std::array<char, 64> buffer{};
    const std::size_t got = fread(buffer.data(), 1, buffer.size(), pipe);
    pclose(pipe);
    return std::string(buffer.data(), got);
  });
  out("insert k other");
  out("insert k new");
  EXPECT_EQ(waiting.get(), "new");
  EXPECT_EQ(run("callback k --equals never --timeout 50ms").status, 5);
  EXPECT_EQ(run("callback k --present --absent").status, 2);
}

TEST_F(CliTest, PipeAnswersEachLineInOrder) {
  std::string lines;
  for (int i = 0; i < 300; i++)
    lines += R"({"op":"insert","key":"k)" + std::to_string(i) + R"(","value":"v)" + std::to_string(i) + "\"}\n";
  lines += "nonsense\n\n";
  for (int i = 0; i < 300; i++) lines += R"({"op":"lookup","key":"k)" + std::to_string(i) + "\"}\n";
  lines += R"({"op":"lookup","key":"none"})";  // no newline at the end
  std::ofstream(folder_ + "/lines") << lines;
  for (const char* depth : {"1", "50"}) {
    std::istringstream answers(out("pipe --pipeline " + std::string(depth) + " < '" + folder_ + "/lines'"));
    std::vector<json> all;
    for (std::string line; std::getline(answers, line);) all.push_back(json::parse(line));
    ASSERT_EQ(all.size(), 602u) << "a blank line is not answered";
    for (std::size_t i = 0; i < 300; i++) {
      EXPECT_EQ(all[i]["status"], "ok");
      EXPECT_EQ(all[301 + i]["value"], "v" + std::to_string(i));
    }
    EXPECT_EQ(all[300]["status"], "fail");
    EXPECT_EQ(all[601]["status"], "notfound");
  }
}

TEST_F(CliTest, StatusTellsTheNodeAndStopEndsIt) {
  EXPECT_EQ(run("status").status, 5);
  EXPECT_EQ(out("serve --background --instances 2 --partitions 16 --durability always"), "");
  EXPECT_EQ(run("serve --background").status, 4);
  out("insert k v");
  const json status = json::parse(out("status --json"));
  EXPECT_GT(status["pid"], 0);
  EXPECT_EQ(status["data"], folder_ + "/data");
  EXPECT_EQ(status["partitions"], 16);
  EXPECT_EQ(status["durability"], "always");
  EXPECT_EQ(status["keys"], 1);
  EXPECT_EQ(status["instances"].size(), 2u);
  EXPECT_EQ(json::parse(out("members --json"))["instances"].size(), 2u);
  EXPECT_EQ(json::parse(out("stop --json"))["stopped"], true);
  EXPECT_FALSE(support::process_exists(status["pid"].get<pid_t>()));
  EXPECT_EQ(json::parse(out("stop --json"))["stopped"], false);
  EXPECT_EQ(out("lookup k --raw"), "v") << "started again, with what it held";
}

TEST_F(CliTest, BenchChecksWhatItMeasures) {
  const json result =
      json::parse(out("bench --operation mix --count 2000 --keys 100 --connections 2 --in-flight 8 --json"));
  EXPECT_EQ(result["operations"], 2000);
  EXPECT_GT(result["ops_per_s"], 0);
  EXPECT_GE(result["p999_us"], result["p50_us"]);
}

}  // namespace

#include "zht/support/program.h"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>

namespace support {
namespace {

using namespace std::chrono_literals;

struct Ran {
  int status;
  std::string out, err;
};

class ProgramTest : public testing::Test {
 protected:
  ProgramTest() {
    auto& put = program_.verb("put", "Puts a value.", {"prog put a b", "prog put a - < file"});
    put.options().add_option("key", key_, "the key")->required();
    put.options().add_option("value", value_, "the value")->required();
    add_duration(put.options(), "--ttl", ttl_, "how long it lives");
    put.action([this]() -> base::Result<void> {
      if (key_ == "bad") return base::fail(base::Code::not_found, "key \"bad\" is not there");
      return {};
    });
    program_.verb("put set", "Two words.", {"prog put set", "prog put set"}).action([] { return 42; });
    program_.verb("set one", "Of two words, the first.", {"prog set one", "prog set one"}).action([] { return 1; });
    program_.verb("set two", "The second.", {"prog set two", "prog set two"}).action([] { return 2; });
    auto& run = program_.verb("run", "Runs a command.", {"prog run ls -l", "prog run -- ls"});
    run.takes_command().action([this, &run] { command_ = run.options().remaining(); });
  }
  Ran run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "prog");
    std::vector<char*> argv;
    for (std::string& word : arguments) argv.push_back(word.data());
    argv.push_back(nullptr);
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    Ran ran{program_.run(static_cast<int>(arguments.size()), argv.data()), {}, {}};
    ran.out = testing::internal::GetCapturedStdout();
    ran.err = testing::internal::GetCapturedStderr();
    return ran;
  }
  Program program_{"prog", "tries things", {"prog put a b", "prog put c d"}};
  std::string key_, value_;
  std::chrono::milliseconds ttl_{0};
  std::vector<std::string> command_;
};

TEST_F(ProgramTest, RunsTheVerbWithItsOptionsAndTheCommonOnes) {
  EXPECT_EQ(run({"--json", "put", "a", "-", "--ttl", "2s", "--timeout", "10ms"}).status, 0);
  EXPECT_EQ(key_, "a");
  EXPECT_EQ(value_, "-");
  EXPECT_EQ(ttl_, 2s);
  EXPECT_EQ(program_.common().timeout, 10ms);
  EXPECT_TRUE(program_.common().json);
  EXPECT_EQ(run({"put", "set"}).status, 42);
  EXPECT_EQ(run({"run", "ls", "-l", "--json"}).status, 0);
  EXPECT_EQ(command_, (std::vector<std::string>{"ls", "-l", "--json"}));
}

TEST_F(ProgramTest, HelpOpensWithTheExamples) {
  EXPECT_EQ(run({"--help"}).out.substr(0, 26), "Examples:\n  prog put a b\n ");
  EXPECT_EQ(run({"put", "--help"}).out.substr(0, 24), "Examples:\n  prog put a b");
  EXPECT_EQ(run({"help", "put"}).out, run({"put", "--help"}).out);
  const std::string of_set = run({"set", "--help"}).out;
  EXPECT_NE(of_set.find("set one"), std::string::npos);
  EXPECT_EQ(of_set.find("run"), std::string::npos) << "other verbs are not of it";
  EXPECT_NE(run({"--version"}).out.find("prog 0."), std::string::npos);
}

TEST_F(ProgramTest, BadUsageIsOneLineAndExitTwo) {
  const auto expect = [&](std::vector<std::string> arguments, const std::string& line) {
    const Ran ran = run(std::move(arguments));
    EXPECT_EQ(ran.status, 2);
    EXPECT_EQ(ran.err, line + "\n");
    EXPECT_EQ(ran.out, "");
  };
  expect({}, "prog: no verb given; try 'prog --help'");
  expect({"--nope"}, "prog: unknown option '--nope'; try 'prog --help'");
  expect({"pt"}, "prog: unknown verb 'pt', did you mean 'put'?; try 'prog --help'");
  expect({"frobnicate"}, "prog: unknown verb 'frobnicate'; try 'prog --help'");
  expect({"set"}, "prog: 'set' alone is no verb; it goes on with one or two; try 'prog set --help'");
  expect({"set", "up"}, "prog: 'set up' is no verb; it goes on with one or two; try 'prog set --help'");
  expect({"put", "a"}, "prog: value is missing; try 'prog put --help'");
  expect({"put", "a", "b", "c"}, "prog: unexpected argument 'c'; try 'prog put --help'");
  expect({"put", "a", "b", "--tll", "1s"},
         "prog: unknown option '--tll', did you mean '--ttl'?; try 'prog put --help'");
  expect({"put", "a", "b", "--ttl", "1"},
         "prog: --ttl: duration '1' has no unit; write it as 10ms, 2s, 5min or 1h; try 'prog put --help'");
}

TEST_F(ProgramTest, AnErrorIsOneLineAndItsCodesExitStatus) {
  const Ran ran = run({"put", "bad", "x"});
  EXPECT_EQ(ran.status, 3);
  EXPECT_EQ(ran.err, "prog: key \"bad\" is not there\n");
}

}  // namespace
}  // namespace support

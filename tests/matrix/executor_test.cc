#include "matrix/exec/executor.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <condition_variable>
#include <filesystem>
#include <fstream>

namespace matrix {
namespace {

using namespace std::chrono_literals;

class ExecutorTest : public testing::Test {
 protected:
  ExecutorTest() {
    std::string name = testing::TempDir() + "/matrix_executor.XXXXXX";
    folder_ = std::filesystem::canonical(mkdtemp(name.data()));
    options_.slots = 2;
    options_.grace = 300ms;
    make();
  }
  ~ExecutorTest() override {
    executor_.reset();
    std::filesystem::remove_all(folder_);
  }
  void make() {
    executor_.reset();
    executor_ = std::make_unique<Executor>(options_, [this](std::vector<Executor::Exit> exits) {
      const std::lock_guard lock(mutex_);
      for (auto& exit : exits) {
        EXPECT_EQ(exits_.count(exit.run), 0u) << "reported twice";
        exits_[exit.run] = std::move(exit);
      }
      changed_.notify_all();
    });
  }
  Executor::Task task(std::uint64_t run, std::vector<std::string> argv) {
    Executor::Task made;
    made.run = run;
    made.setting = setting_;
    made.argv = std::move(argv);
    made.output_stem = folder_ + "/out/" + std::to_string(run);
    return made;
  }
  Executor::Task shell(std::uint64_t run, std::string line) { return task(run, {"sh", "-c", std::move(line)}); }
  Executor::Exit wait(std::uint64_t run) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, 60s, [&] { return exits_.count(run) != 0; }))
        << "run " << run << " is not reported";
    return exits_[run];
  }
  Executor::Exit run(Executor::Task made) {
    const auto number = made.run;
    executor_->launch({std::move(made)});
    return wait(number);
  }
  void use(Setting::Options options) { setting_ = std::make_shared<const Setting>(std::move(options)); }
  template <typename Condition>
  bool eventually(Condition condition) {
    for (int i = 0; i < 6000; i++) {
      if (condition()) return true;
      usleep(10'000);
    }
    return false;
  }
  static bool alive(pid_t pid) {
    std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
    std::string number, name, state;
    stat >> number >> name >> state;
    return !state.empty() && state != "Z" && state != "X";
  }

  std::string folder_;
  Executor::Options options_;
  std::shared_ptr<const Setting> setting_ =
      std::make_shared<const Setting>(Setting::Options{{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/"}, "/", "", 022});
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint64_t, Executor::Exit> exits_;
  std::unique_ptr<Executor> executor_;
};

TEST_F(ExecutorTest, OutputAndExitCodeAreReported) {
  const auto exit = run(shell(1, "echo out; echo err >&2; exit 7"));
  EXPECT_EQ(exit.ended, Executor::Ended::exited);
  EXPECT_EQ(exit.status, 7);
  EXPECT_EQ(exit.output.text, "out\n");
  EXPECT_EQ(exit.error_output.text, "err\n");
  EXPECT_GT(exit.started_us, 0u);
  EXPECT_GE(exit.ended_us, exit.started_us);
  EXPECT_GT(exit.max_rss_bytes, 0u);
}

TEST_F(ExecutorTest, CommandsThatCannotRunSayWhy) {
  auto exit = run(task(1, {"no-such-command"}));
  EXPECT_EQ(exit.status, 127);
  EXPECT_EQ(exit.error, "cannot run: no-such-command: not found in PATH");
  exit = run(task(2, {"/no/such/command"}));
  EXPECT_EQ(exit.status, 127);
  exit = run(task(3, {"/etc/passwd"}));
  EXPECT_EQ(exit.status, 126);
  EXPECT_EQ(exit.error, "cannot run /etc/passwd: Permission denied");
  exit = run(task(4, {"/tmp"}));
  EXPECT_EQ(exit.status, 126);
  exit = run(task(5, {""}));
  EXPECT_EQ(exit.status, 127);
  exit = run(task(6, {}));
  EXPECT_EQ(exit.status, 127);
  use({{}, "/no/such/folder", "", 022});
  exit = run(task(7, {"true"}));
  EXPECT_EQ(exit.status, 126);
  EXPECT_EQ(exit.error, "cannot change to folder /no/such/folder: No such file or directory");
  use({{}, "/", "/no/such/input", 022});
  EXPECT_EQ(run(task(8, {"true"})).error, "cannot open its input /no/such/input: No such file or directory");
}

TEST_F(ExecutorTest, AScriptWithoutAFirstLineIsGivenToTheShell) {
  const std::string script = folder_ + "/script";
  std::ofstream(script) << "echo \"got $1\"\n";
  chmod(script.c_str(), 0755);
  EXPECT_EQ(run(task(1, {script, "word"})).output.text, "got word\n");
}

TEST_F(ExecutorTest, EnvironmentFolderInputAndMaskAreTheTasks) {
  std::ofstream(folder_ + "/input") << "from input";
  use({{"PATH=/usr/bin:/bin", "COMMON=1"}, folder_, folder_ + "/input", 027});
  auto made = shell(1, "cat; echo; echo $COMMON $OWN; pwd; umask");
  made.environment = {"OWN=2"};
  EXPECT_EQ(run(std::move(made)).output.text, "from input\n1 2\n" + folder_ + "\n0027\n");
}

TEST_F(ExecutorTest, TasksStartWithNoSignalBlockedOrIgnored) {
  const auto exit = run(shell(1, "grep -E 'SigBlk|SigIgn' /proc/self/status"));
  EXPECT_EQ(exit.output.text, "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
}

TEST_F(ExecutorTest, NoDescriptorOfTheAgentLeaksIntoATask) {
  EXPECT_EQ(run(shell(1, "ls /proc/self/fd | wc -l")).output.text, "4\n");  // 0, 1, 2 and ls's own
}

TEST_F(ExecutorTest, LongOutputGoesToAFileWhole) {
  const auto exit = run(shell(1, "head -c 300000 /dev/zero; echo end >&2"));
  EXPECT_EQ(exit.output.size, 300'000u);
  EXPECT_EQ(exit.output.text, "");
  EXPECT_EQ(std::filesystem::file_size(exit.output.file), 300'000u);
  EXPECT_EQ(exit.error_output.text, "end\n");
}

TEST_F(ExecutorTest, OutputOfAStreamTaskIsInItsFileWhileItRuns) {
  auto made = shell(1, "echo first; read line < " + folder_ + "/go; echo last");
  made.stream = true;
  ASSERT_EQ(mkfifo((folder_ + "/go").c_str(), 0600), 0);
  executor_->launch({std::move(made)});
  const std::string file = folder_ + "/out/1.out";
  EXPECT_TRUE(eventually([&] { return std::filesystem::exists(file) && std::filesystem::file_size(file) == 6; }));
  std::ofstream(folder_ + "/go") << "go\n";
  const auto exit = wait(1);
  EXPECT_EQ(exit.output.file, file);
  EXPECT_EQ(exit.output.size, 11u);
}

TEST_F(ExecutorTest, OutputThatCannotBeKeptIsSaidSo) {
  std::ofstream(folder_ + "/out") << "not a folder";
  const auto exit = run(shell(1, "head -c 300000 /dev/zero"));
  EXPECT_EQ(exit.status, 0);
  EXPECT_NE(exit.error.find("output is lost"), std::string::npos) << exit.error;
}

TEST_F(ExecutorTest, ATimeoutEndsTheWholeGroup) {
  auto made = shell(1, "sleep 1000 & echo $!; wait");
  made.timeout = 300ms;
  const auto exit = run(std::move(made));
  EXPECT_EQ(exit.ended, Executor::Ended::timed_out);
  const pid_t pid = std::stoi(exit.output.text);
  EXPECT_TRUE(eventually([&] { return !alive(pid); }));
}

TEST_F(ExecutorTest, ATaskThatIgnoresTheRequestIsKilledAfterTheGrace) {
  auto made = shell(1, "trap '' TERM; while :; do sleep 1; done");
  made.timeout = 100ms;
  const auto exit = run(std::move(made));
  EXPECT_EQ(exit.ended, Executor::Ended::timed_out);
  EXPECT_EQ(exit.signal, SIGKILL);
}

TEST_F(ExecutorTest, WhatATaskLeavesBehindEndsWithIt) {
  const auto exit = run(shell(1, "sleep 1000 & echo $!"));
  const pid_t pid = std::stoi(exit.output.text);
  EXPECT_TRUE(eventually([&] { return !alive(pid); }));
}

TEST_F(ExecutorTest, RunningAndQueuedTasksCanBeKilled) {
  std::vector<Executor::Task> tasks;
  for (std::uint64_t run = 1; run <= 5; run++) tasks.push_back(task(run, {"sleep", "1000"}));
  executor_->launch(std::move(tasks));
  executor_->kill({1, 2, 3, 4, 5, 99});
  for (std::uint64_t run = 1; run <= 5; run++) EXPECT_EQ(wait(run).ended, Executor::Ended::killed);
  EXPECT_EQ(run(task(6, {"true"})).status, 0) << "the slots are free again";
}

TEST_F(ExecutorTest, NoMoreRunAtATimeThanThereAreSlots) {
  options_.slots = 3;
  make();
  std::vector<Executor::Task> tasks;
  for (std::uint64_t run = 1; run <= 30; run++) tasks.push_back(shell(run, "sleep 0.01"));
  tasks[10].cpus = 3;
  executor_->launch(std::move(tasks));
  for (std::uint64_t run = 1; run <= 30; run++) wait(run);
  // The most at any moment, from the recorded times.
  std::vector<std::pair<std::uint64_t, int>> moments;
  for (const auto& [run, exit] : exits_) {
    moments.emplace_back(exit.started_us, run == 11 ? 3 : 1);
    moments.emplace_back(exit.ended_us, run == 11 ? -3 : -1);
  }
  std::sort(moments.begin(), moments.end());
  int now = 0;
  for (const auto& [at, change] : moments) {
    now += change;
    EXPECT_LE(now, 3);
  }
}

TEST_F(ExecutorTest, ThousandsOfTasksAreEachReportedOnce) {
  constexpr std::uint64_t kTasks = 3000;
  std::vector<Executor::Task> tasks;
  for (std::uint64_t run = 1; run <= kTasks; run++) tasks.push_back(task(run, {"true"}));
  executor_->launch(std::move(tasks));
  for (std::uint64_t run = 1; run <= kTasks; run++) ASSERT_EQ(wait(run).status, 0);
}

TEST_F(ExecutorTest, DestructionLeavesNoProcess) {
  auto made = shell(1, "echo $$; sleep 1000");
  made.stream = true;
  executor_->launch({std::move(made)});
  const std::string file = folder_ + "/out/1.out";
  ASSERT_TRUE(eventually([&] { return std::filesystem::exists(file) && std::filesystem::file_size(file) > 0; }));
  pid_t pid = 0;
  std::ifstream(file) >> pid;
  executor_.reset();
  EXPECT_TRUE(eventually([&] { return !alive(pid); }));
}

TEST_F(ExecutorTest, LeftoversOfAnEarlierSessionAreFoundByTheirEnvironment) {
  const std::string mine = "test" + std::to_string(getpid()) + ":";
  use({{"PATH=/usr/bin:/bin", "MATRIX_SESSION=" + mine + "1"}, "/", "", 022});
  // setsid: it leaves the group, so that only its environment tells whose it is.
  const auto exit = run(shell(1,
                              "setsid sleep 1000 >/dev/null 2>&1 & while ! pgrep -f 'sleep 1000' -s $! >/dev/null; do "
                              "sleep 0.01; done; echo $!"));
  const pid_t pid = std::stoi(exit.output.text);
  EXPECT_TRUE(alive(pid));
  EXPECT_EQ(kill_leftovers(mine, "1"), 0u);
  EXPECT_EQ(kill_leftovers(mine, "2"), 1u);
  EXPECT_TRUE(eventually([&] { return !alive(pid); }));
}

}  // namespace
}  // namespace matrix

// The agent over a store in this process, with real tasks.
#include "matrix/agent/agent.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "matrix/agent/expiry.h"
#include "matrix/core/procedures.h"
#include "matrix/jobs.h"
#include "tests/support/local_client.h"

namespace matrix {
namespace {

using namespace std::chrono_literals;

class AgentTest : public testing::Test {
 protected:
  AgentTest() {
    rlimit files{};
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
    files.rlim_cur = std::min<rlim_t>(files.rlim_cur, 512);
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
    limit_before_ = std::to_string(files.rlim_cur);
    zht::add_general_procedures(procedures_);
    add_procedures(procedures_);
    store_ = std::make_unique<testing_support::LocalStore>(procedures_);
    client_ = store_->client();
    jobs_ = std::make_unique<Jobs>(*client_, name_);
    std::string name = testing::TempDir() + "/matrix_agent.XXXXXX";
    folder_ = mkdtemp(name.data());
    start();
  }
  ~AgentTest() override {
    stop();
    jobs_.reset();
    client_.reset();
    std::filesystem::remove_all(folder_);
  }
  void start() {
    stop_ = eventfd(0, EFD_CLOEXEC);
    thread_ = std::thread([this] {
      const auto client = store_->client();
      Agent agent(*client, {.name = name_, .data_folder = folder_, .slots = 2});
      const auto ended = agent.run(stop_);
      EXPECT_TRUE(ended) << ended.error().message;
    });
  }
  void stop() {
    if (!thread_.joinable()) return;
    eventfd_write(stop_, 1);
    thread_.join();
    close(stop_);
  }
  Job job(std::vector<std::string> argv) {
    Job made;
    made.argv = std::move(argv);
    made.environment = {"PATH=/usr/bin:/bin"};
    made.cwd = "/";
    return made;
  }
  std::string submit(Job made, const std::vector<Item>& items = {}) {
    auto id = jobs_->submit(std::move(made), items);
    EXPECT_TRUE(id) << id.error().message;
    return *id;
  }
  JobState wait(const std::string& id) {
    // The store's clock stands still: the callback answers when the job ends, or never.
    auto state = jobs_->wait(id);
    EXPECT_TRUE(state) << state.error().message;
    return *state;
  }

  std::string limit_before_;
  // Its own in each process: an agent ends what an earlier one of its name left running, also beside us.
  const std::string name_ = "test-" + std::to_string(::getpid());
  zht::Procedures procedures_;
  std::unique_ptr<testing_support::LocalStore> store_;
  std::unique_ptr<zht::Client> client_;
  std::unique_ptr<Jobs> jobs_;
  std::string folder_;
  int stop_ = -1;
  std::thread thread_;
};

TEST_F(AgentTest, ATaskIsRunAndItsResultCanBeRead) {
  const auto id = submit(job({"sh", "-c", "echo out; exit 3"}));
  const JobState state = wait(id);
  EXPECT_EQ(state.phase, Phase::failed);
  EXPECT_EQ(state.exit_code, 3u);
  const auto results = jobs_->results(id, 0);
  ASSERT_EQ(results->size(), 1u);
  EXPECT_EQ((*results)[0].output, "out\n");
}

TEST_F(AgentTest, ItemsAndNumbersReachTheirTasks) {
  std::vector<Item> items(3000);
  for (std::size_t i = 0; i < items.size(); i++) items[i].text = "item" + std::to_string(i);
  const auto id = submit(job({"echo", "{#}", "{}"}), items);
  EXPECT_EQ(wait(id).done, 3000u);
  std::size_t seen = 0;
  for (std::uint32_t chunk = 0; chunk < 3; chunk++) {
    const auto results = jobs_->results(id, chunk);
    for (const auto& result : *results) {
      EXPECT_EQ(result.output, std::to_string(result.task + 1) + " item" + std::to_string(result.task) + "\n");
      seen++;
    }
  }
  EXPECT_EQ(seen, 3000u);
}

TEST_F(AgentTest, AnArrayCountsAsAsked) {
  Job array = job({"sh", "-c", "echo {} $MATRIX_INDEX $MATRIX_TASK $MATRIX_ATTEMPT"});
  array.task_count = 3;
  array.first_index = -5;
  array.index_step = 5;
  const auto id = submit(array);
  wait(id);
  const auto results = jobs_->results(id, 0);
  std::set<std::string> outputs;
  for (const auto& result : *results) outputs.insert(result.output);
  EXPECT_EQ(outputs, (std::set<std::string>{"-5 -5 0 1\n", "0 0 1 1\n", "5 5 2 1\n"}));
}

TEST_F(AgentTest, WithoutItemsBracesAreLeftAlone) {
  const auto id = submit(job({"echo", "{}", "{#}"}));
  wait(id);
  const auto results = jobs_->results(id, 0);
  EXPECT_EQ((*results)[0].output, "{} {#}\n");
}

TEST_F(AgentTest, JobsWaitForEachOtherByName) {
  Job first = job({"sh", "-c", "sleep 0.2; echo 1 >> " + folder_ + "/order"});
  first.name = "first";
  submit(first);
  Job second = job({"sh", "-c", "echo 2 >> " + folder_ + "/order"});
  second.after = {*jobs_->resolve("first")};
  wait(submit(second));
  std::ifstream order(folder_ + "/order");
  int one = 0, two = 0;
  order >> one >> two;
  EXPECT_EQ(one, 1);
  EXPECT_EQ(two, 2);
  EXPECT_EQ(jobs_->resolve("third").code(), base::Code::not_found);
}

TEST_F(AgentTest, ACancelledJobEndsSoonAndLeavesNoProcess) {
  Job made = job({"sh", "-c", "sleep 1000"});
  made.task_count = 5000;
  const auto id = submit(made);
  auto running = jobs_->wait_for_change(id, 0, 10s);
  while (running && running->state.started_us == 0) running = jobs_->wait_for_change(id, running->version, 10s);
  ASSERT_TRUE(jobs_->cancel(id, "test"));
  const JobState state = wait(id);
  EXPECT_EQ(state.phase, Phase::cancelled);
  EXPECT_EQ(state.cancelled, 5000u);
}

TEST_F(AgentTest, ARestartedAgentFinishesWhatWasBegun) {
  Job made = job({"sh", "-c", "echo {} >> " + folder_ + "/ran"});
  made.task_count = 2000;
  made.index_step = 1;
  const auto id = submit(made);
  for (int i = 0; i < 3; i++) {
    auto seen = jobs_->wait_for_change(id, 0, 10s);
    stop();
    start();
  }
  EXPECT_EQ(wait(id).done, 2000u);
  std::set<std::uint32_t> recorded;
  for (std::uint32_t chunk = 0; chunk < 2; chunk++) {
    const auto results = jobs_->results(id, chunk);
    for (const auto& result : *results)
      EXPECT_TRUE(recorded.insert(result.task).second) << result.task << " recorded twice";
  }
  EXPECT_EQ(recorded.size(), 2000u);
}

TEST_F(AgentTest, TheStoresDeathsAreOutlived) {
  Job made = job({"true"});
  made.task_count = 2000;
  const auto id = submit(made);
  for (int i = 0; i < 5; i++) {
    std::this_thread::yield();
    store_->restart(true);
  }
  auto state = jobs_->wait(id);
  while (!state && state.code() == base::Code::unavailable) state = jobs_->wait(id);
  ASSERT_TRUE(state) << state.error().message;
  EXPECT_EQ(state->done, 2000u);
}

TEST_F(AgentTest, ARemovedJobLeavesNoRecord) {
  Job named = job({"true"});
  named.name = "old";
  const auto id = submit(named, std::vector<Item>(2000));
  wait(id);
  const auto later = submit(named);
  wait(later);
  ASSERT_TRUE(jobs_->remove(id));
  EXPECT_EQ(jobs_->state(id).code(), base::Code::not_found);
  EXPECT_EQ(*jobs_->resolve("old"), later);
  ASSERT_TRUE(jobs_->remove(later));
  EXPECT_EQ(jobs_->resolve("old").code(), base::Code::not_found);
  for (std::uint32_t partition = 0; partition < client_->partition_count(); partition++) {
    const auto page = client_->call(zht::Operation::scan(zht::PartitionId{partition}, 0, "{t:", 100));
    EXPECT_TRUE(page.entries.empty());
  }
  Job running = job({"sleep", "1000"});
  const auto alive = submit(running);
  EXPECT_EQ(jobs_->remove(alive).code(), base::Code::conflict);
  ASSERT_TRUE(jobs_->cancel(alive, "test"));
  wait(alive);
}

TEST_F(AgentTest, WhatCannotBeSubmittedIsRefused) {
  EXPECT_EQ(jobs_->submit(job({})).code(), base::Code::invalid);
  Job named = job({"true"});
  named.name = "17";
  EXPECT_EQ(jobs_->submit(named).code(), base::Code::invalid);
  named.name = "a/b";
  EXPECT_EQ(jobs_->submit(named).code(), base::Code::invalid);
  Job many = job({"true"});
  many.task_count = kMaxTasks + 1;
  EXPECT_EQ(jobs_->submit(many).code(), base::Code::invalid);
  EXPECT_EQ(jobs_->resolve("99999").code(), base::Code::not_found);
}

// What a task may open is what its submitter may; the agent itself needs more.
TEST_F(AgentTest, TasksHaveTheSubmittersLimitOfOpenFiles) {
  rlimit own{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &own), 0);
  Job told = job({"/bin/sh", "-c", "ulimit -Sn"});
  told.open_files = 100;
  const std::string id = submit(told);
  EXPECT_EQ(wait(id).phase, Phase::done);
  EXPECT_EQ(jobs_->results(id, 0)->at(0).output, "100\n");
  const std::string other = submit(job({"/bin/sh", "-c", "ulimit -Sn"}));  // of an older client: as the agent was started
  EXPECT_EQ(wait(other).phase, Phase::done);
  EXPECT_EQ(jobs_->results(other, 0)->at(0).output, limit_before_ + "\n");
}

TEST_F(AgentTest, EndedJobsGoWhenTheirTimeIsOver) {
  Job brief = job({"/bin/true"}), usual = job({"/bin/sh", "-c", "head -c 100000 /dev/zero"}), named = job({"/bin/true"});
  brief.keep_ms = 60'000;
  named.name = "named";
  named.keep_ms = 60'000;
  const std::string first = submit(brief), second = submit(usual), third = submit(named);
  for (const std::string& id : {first, second, third}) EXPECT_EQ(wait(id).phase, Phase::done);
  const std::uint64_t ended = jobs_->state(second)->ended_us;
  stop();
  Expiry expiry(*client_, name_, folder_);
  EXPECT_EQ(expiry.pass(ended + 50'000'000)->removed, 0u);
  EXPECT_EQ(expiry.pass(ended + 70'000'000)->removed, 2u);
  EXPECT_EQ(jobs_->state(first).code(), base::Code::not_found);
  EXPECT_EQ(jobs_->resolve("named").code(), base::Code::not_found);
  ASSERT_EQ(jobs_->list(100)->size(), 1u);
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/matrix/" + second + "/0.out"));
  EXPECT_EQ(expiry.pass(ended + 6ull * 86'400'000'000)->removed, 0u);
  EXPECT_EQ(expiry.pass(ended + 8ull * 86'400'000'000)->removed, 1u);
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/matrix/" + second));
  // Of a job nothing is left, whatever its key.
  std::string left;
  for (std::uint32_t partition = 0; partition < client_->partition_count(); partition++) {
    for (const auto& entry : client_->call(zht::Operation::scan(zht::PartitionId{partition}, 0, "{t:", 1000)).entries) left += entry.key + " ";
  }
  EXPECT_EQ(left, "");
  start();
}

}  // namespace
}  // namespace matrix

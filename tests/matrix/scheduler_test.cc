#include "matrix/core/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>

#include "matrix/core/procedures.h"
#include "novoht/base/random.h"
#include "tests/matrix/memory_tables.h"

namespace matrix {
namespace {

using namespace std::chrono_literals;
using base::Code;
using base::fail;

// An agent's scheduler between a store and processes that a test owns: requests to the store are on their way until the
// test answers, repeats, loses or delays them; processes end when the test says so; the agent dies when it says so.
class World {
 public:
  explicit World(std::uint32_t slots = 2) : slots_(slots) {
    add_procedures(procedures_);
    start();
  }

  void start() {
    incarnation_++;
    Scheduler::Options options;
    options.agent = "a";
    options.incarnation = incarnation_;
    options.slots = slots_;
    scheduler = std::make_unique<Scheduler>(options);
    for (const auto& job : live) scheduler->on_job(job, now);
  }
  // kill -9: its processes die, its requests may still arrive at the store later.
  void crash() {
    for (auto& request : requests) request.orphan = true;
    runs.clear();
    start();
  }

  void submit(Job job, const std::vector<Item>& items = {}) {
    JobState state;
    state.total = job.task_count;
    job.has_items = !items.empty();
    store.values[keys::job(job.id)] = encode(job);
    store.values[keys::state(job.id)] = encode(state);
    for (std::uint32_t chunk = 0; job.has_items && chunk < job.chunk_count(); chunk++) {
      const auto first = items.begin() + chunk * job.chunk_size;
      store.values[keys::items(job.id, chunk)] = encode(std::vector<Item>(first, first + job.tasks_in(chunk)));
    }
    jobs[job.id] = job;
    live.insert(job.id);
    scheduler->on_job(job.id, now);
  }

  struct Request {
    std::uint64_t incarnation;
    Scheduler::Action action;
    bool orphan = false;
  };
  struct Process {
    Scheduler::Launch launch;
    bool killed = false;
  };

  void step() {
    for (auto& action : scheduler->take_actions(now)) {
      if (auto* launch = std::get_if<Scheduler::Launch>(&action)) {
        const auto key = std::pair{launch->job->id, launch->task};
        for (const auto& [id, process] : runs)
          EXPECT_FALSE(process.launch.job->id == key.first && process.launch.task == key.second)
              << "runs twice at a time";
        EXPECT_FALSE(launch->job->at_most_once && starts[key] > 0) << "started twice";
        starts[key]++;
        if (on_launch) on_launch(*launch);
        runs.emplace(static_cast<std::uint64_t>(launch->run), Process{*launch, false});
      } else if (auto* kill = std::get_if<Scheduler::Kill>(&action)) {
        const auto at = runs.find(static_cast<std::uint64_t>(kill->run));
        if (at != runs.end()) at->second.killed = true;
      } else if (auto* forget = std::get_if<Scheduler::Forget>(&action)) {
        live.erase(forget->job);
      } else if (auto* watch = std::get_if<Scheduler::WatchEnd>(&action)) {
        watches.push_back(watch->job);
      } else if (std::holds_alternative<Scheduler::Retire>(action)) {
        retired = true;
      } else {
        requests.push_back({incarnation_, std::move(action)});
      }
    }
  }

  // The store executes request `index`. `answer` ok: the scheduler hears of it; else it gets that error although it
  // happened.
  void execute(std::size_t index, Code answer = Code::ok) {
    const Request request = requests[index];
    requests.erase(requests.begin() + static_cast<std::ptrdiff_t>(index));
    if (const auto* claim = std::get_if<Scheduler::Claim>(&request.action)) {
      auto reply = store.run(procedures_, "matrix.claim", keys::job(claim->job), encode(claim->request));
      if (request.orphan) return;
      if (answer != Code::ok) return scheduler->on_claim_failed(claim->job, fail(answer, "lost"), now);
      if (!reply) return scheduler->on_claim_failed(claim->job, reply.error(), now);
      scheduler->on_claimed(claim->job, *decode_claim_reply(*reply), now);
    } else if (const auto* record = std::get_if<Scheduler::Record>(&request.action)) {
      auto reply = store.run(procedures_, "matrix.record", keys::job(record->job), encode(*record->request));
      if (request.orphan) return;
      if (answer != Code::ok) return scheduler->on_record_failed(record->job, record->batch, fail(answer, "lost"), now);
      if (!reply) return scheduler->on_record_failed(record->job, record->batch, reply.error(), now);
      scheduler->on_recorded(record->job, record->batch, *decode_record_reply(*reply), now);
    } else if (const auto* skip = std::get_if<Scheduler::Skip>(&request.action)) {
      auto reply =
          store.run(procedures_, "matrix.cancel", keys::job(skip->job), encode(CancelRequest{skip->reason, true, 0}));
      if (request.orphan) return;
      scheduler->on_cancel(skip->job, now);
    }
  }
  void refuse(std::size_t index) {
    const Request request = requests[index];
    requests.erase(requests.begin() + static_cast<std::ptrdiff_t>(index));
    if (request.orphan) return;
    if (const auto* claim = std::get_if<Scheduler::Claim>(&request.action))
      scheduler->on_claim_failed(claim->job, fail(Code::unavailable, "down"), now);
    else if (const auto* record = std::get_if<Scheduler::Record>(&request.action))
      scheduler->on_record_failed(record->job, record->batch, fail(Code::unavailable, "down"), now);
    else
      requests.push_back(request);  // the agent's loop repeats it
  }
  void cancel(const std::string& job) {
    ASSERT_TRUE(store.run(procedures_, "matrix.cancel", keys::job(job), encode(CancelRequest{"test", false, 0})));
    if (scheduler->knows(job)) scheduler->on_cancel(job, now);
  }
  void exit(std::uint64_t run, std::uint32_t exit_code = 0) {
    const Process process = runs.at(run);
    runs.erase(run);
    TaskResult result;
    result.started_us = 1;
    result.ended_us = 501;
    result.exit_code = process.killed ? 130 : exit_code;
    result.state = process.killed ? TaskState::cancelled : exit_code == 0 ? TaskState::done : TaskState::failed;
    scheduler->on_exit(RunId{run}, result, now);
  }
  void look_at_ends() {
    for (std::size_t i = watches.size(); i-- > 0;) {
      if (!has_ended(watches[i])) continue;
      const std::string job = watches[i];
      watches.erase(watches.begin() + static_cast<std::ptrdiff_t>(i));
      scheduler->on_job_ended(job, state(job).phase == Phase::done, now);
    }
  }

  // Everything works at once until nothing is left to do.
  void settle() {
    for (int round = 0; round < 200'000 && !(live.empty() && requests.empty()); round++) {
      step();
      if (!requests.empty())
        execute(0);
      else if (!runs.empty())
        exit(runs.begin()->first, exit_code_of(runs.begin()->second.launch));
      else if (scheduler->wake_at() != base::Time::max())
        now = std::max(now, scheduler->wake_at());
      look_at_ends();
    }
    EXPECT_TRUE(live.empty()) << "jobs are stuck";
  }

  JobState state(const std::string& job) { return *decode_job_state(store.values[keys::state(job)]); }
  bool has_ended(const std::string& job) { return store.values.count(keys::end(job)) != 0; }
  std::map<std::uint32_t, TaskResult> results(const std::string& job) {
    std::map<std::uint32_t, TaskResult> all;
    for (std::uint32_t chunk = 0; chunk < jobs[job].chunk_count(); chunk++) {
      const auto recorded = decode_results(store.values[keys::results(job, chunk)]);
      for (const auto& result : *recorded) {
        EXPECT_EQ(all.count(result.task), 0u) << "task " << result.task << " recorded twice";
        all[result.task] = result;
      }
    }
    return all;
  }

  matrix_test::MemoryTables store;
  std::unique_ptr<Scheduler> scheduler;
  std::set<std::string> live;
  std::map<std::string, Job> jobs;
  std::vector<Request> requests;
  std::map<std::uint64_t, Process> runs;
  std::vector<std::string> watches;
  std::map<std::pair<std::string, std::uint32_t>, int> starts;
  std::function<std::uint32_t(const Scheduler::Launch&)> exit_code_of = [](const auto&) { return 0u; };
  std::function<void(const Scheduler::Launch&)> on_launch;
  bool retired = false;
  base::Time now{1h};

 private:
  zht::Procedures procedures_;
  std::uint32_t slots_;
  std::uint64_t incarnation_ = 0;
};

Job job_of(const std::string& id, std::uint32_t tasks) {
  Job job;
  job.id = id;
  job.task_count = tasks;
  job.argv = {"true"};
  return job;
}

TEST(Scheduler, OneTaskTakesOneClaimAndOneRecord) {
  World world;
  world.submit(job_of("1", 1));
  world.step();
  ASSERT_EQ(world.requests.size(), 1u);
  world.execute(0);
  world.step();
  ASSERT_EQ(world.runs.size(), 1u) << "nothing lies between the claim and the launch";
  world.exit(world.runs.begin()->first);
  world.step();
  ASSERT_EQ(world.requests.size(), 1u) << "the result is recorded at once";
  world.execute(0);
  world.step();
  EXPECT_EQ(world.state("1").phase, Phase::done);
  EXPECT_TRUE(world.live.empty());
}

TEST(Scheduler, ManyTasksShareFewRecords) {
  World world;
  world.submit(job_of("1", 10'000));
  int requests = 0;
  while (!world.live.empty()) {
    world.step();
    while (!world.requests.empty()) {
      world.execute(0);
      requests++;
    }
    world.step();
    while (!world.runs.empty()) world.exit(world.runs.begin()->first);
    world.now += 100us;
  }
  EXPECT_EQ(world.state("1").done, 10'000u);
  EXPECT_LT(requests, 10'000 / 20) << "at most 0.05 requests a task";
}

TEST(Scheduler, NeverMoreThanTheSlotsForLongTasks) {
  World world(3);
  world.submit(job_of("1", 100));
  world.step();
  world.execute(0);
  world.step();
  EXPECT_EQ(world.runs.size(), 3u);
}

TEST(Scheduler, ATaskOfManyCpusIsNotStarvedBySmallOnes) {
  World world(4);
  Job big = job_of("2", 1);
  big.cpus = 4;
  world.submit(job_of("1", 100));
  world.submit(big);
  bool ran = false;
  world.on_launch = [&](const Scheduler::Launch& launch) { ran = ran || launch.job->id == "2"; };
  for (int i = 0; i < 30 && !ran; i++) {
    world.step();
    while (!world.requests.empty()) world.execute(0);
    world.step();
    if (!world.runs.empty()) world.exit(world.runs.begin()->first);
  }
  EXPECT_TRUE(ran);
}

TEST(Scheduler, ATaskThatNeedsMoreThanThereIsFailsWithAReason) {
  World world(2);
  Job job = job_of("1", 1);
  job.cpus = 3;
  world.submit(job);
  world.settle();
  EXPECT_EQ(world.state("1").failed, 1u);
  EXPECT_EQ(world.results("1")[0].error, "needs 3 cpus; this agent has 2");
}

TEST(Scheduler, GreaterPriorityGoesFirstAndEqualOnesTakeTurns) {
  World world(1);
  Job urgent = job_of("3", 2);
  urgent.priority = 5;
  world.submit(job_of("1", 3));
  world.submit(job_of("2", 3));
  world.submit(urgent);
  std::string order;
  world.on_launch = [&](const Scheduler::Launch& launch) { order += launch.job->id; };
  world.step();
  while (!world.requests.empty()) world.execute(0);
  while (order.size() < 8) {
    world.step();
    if (!world.runs.empty()) world.exit(world.runs.begin()->first);
  }
  EXPECT_EQ(order, "33121212");
}

TEST(Scheduler, FailedTasksAreTriedAgainAsOftenAsAsked) {
  World world;
  Job job = job_of("1", 2);
  job.retries = 2;
  world.submit(job);
  world.exit_code_of = [](const Scheduler::Launch& launch) {
    return launch.task == 0 && launch.attempt < 3 ? 9u : launch.task == 1 ? 7u : 0u;
  };
  world.settle();
  const auto results = world.results("1");
  EXPECT_EQ(results.at(0).state, TaskState::done);
  EXPECT_EQ(results.at(0).attempt, 3u);
  EXPECT_EQ(results.at(1).exit_code, 7u);
  EXPECT_EQ(results.at(1).attempt, 3u);
}

TEST(Scheduler, AJobWaitsForTheJobsItFollows) {
  World world;
  Job second = job_of("2", 1), third = job_of("3", 2), fourth = job_of("4", 1);
  second.after = {"1"};
  third.after = {"1", "2"};
  fourth.after = {"2"};
  fourth.after_any = true;
  world.submit(fourth);
  world.submit(third);
  world.submit(second);
  world.submit(job_of("1", 1));
  std::string order;
  world.on_launch = [&](const Scheduler::Launch& launch) { order += launch.job->id; };
  world.exit_code_of = [](const Scheduler::Launch& launch) { return launch.job->id == "2" ? 1u : 0u; };
  world.settle();
  EXPECT_EQ(order, "124");
  EXPECT_EQ(world.state("3").skipped, 2u);
  EXPECT_EQ(world.state("3").phase, Phase::cancelled);
  EXPECT_EQ(world.state("4").phase, Phase::done);
}

TEST(Scheduler, ALostReplyIsAskedForAgainAndChangesNothing) {
  World world;
  world.submit(job_of("1", 1));
  world.step();
  world.execute(0, Code::timeout);
  world.now += 1s;
  world.step();
  world.execute(0);
  world.step();
  ASSERT_EQ(world.runs.size(), 1u);
  world.exit(world.runs.begin()->first, 5);
  world.step();
  world.execute(0, Code::timeout);
  world.now += 1s;
  world.settle();
  EXPECT_EQ(world.results("1").at(0).exit_code, 5u);
  EXPECT_EQ(world.starts.begin()->second, 1);
}

TEST(Scheduler, LongTasksAreMarkedAsRunningAndGetTheNextAttemptAfterACrash) {
  World world;
  world.submit(job_of("1", 1));
  world.step();
  world.execute(0);
  world.step();
  world.now += 1s;
  world.step();
  ASSERT_EQ(world.requests.size(), 1u);
  world.execute(0);
  EXPECT_EQ(world.state("1").running, 1u);
  world.crash();
  world.settle();
  EXPECT_EQ(world.results("1").at(0).attempt, 2u);
}

TEST(Scheduler, AtMostOnceTasksThatHadNotStartedAreNotLost) {
  World world(2);
  Job job = job_of("1", 10);
  job.at_most_once = true;
  world.submit(job);
  for (int i = 0; i < 5; i++) {
    world.step();
    while (!world.requests.empty()) world.execute(0);
  }
  ASSERT_EQ(world.runs.size(), 2u);
  world.crash();
  world.settle();
  EXPECT_EQ(world.state("1").lost, 2u);
  EXPECT_EQ(world.state("1").done, 8u);
}

TEST(Scheduler, AtMostOnceTasksGetTheirTurnBesideOthers) {
  World world(2);
  Job job = job_of("2", 3);
  job.at_most_once = true;
  world.submit(job_of("1", 100'000));
  world.submit(job);
  for (int i = 0; i < 400 && world.live.count("2"); i++) {
    world.step();
    while (!world.requests.empty()) world.execute(0);
    world.step();
    if (!world.runs.empty()) world.exit(world.runs.begin()->first);
    world.now += 100us;
  }
  EXPECT_EQ(world.state("2").done, 3u);
}

TEST(Scheduler, CancelEndsWhatRunsAndWhatWaits) {
  World world;
  world.submit(job_of("1", 5000));
  world.step();
  world.execute(0);
  world.step();
  world.exit(world.runs.begin()->first);
  world.cancel("1");
  world.settle();
  const JobState state = world.state("1");
  EXPECT_EQ(state.phase, Phase::cancelled);
  EXPECT_EQ(state.done, 1u);
  EXPECT_EQ(state.cancelled, 4999u);
}

TEST(Scheduler, AGraphRunsInOrderAndSkipsWhatCannotSucceed) {
  World world(4);
  // 0 -> 1 -> 3, 0 -> 2 -> 3; 4 fails -> 5 -> 6; in chunks of two.
  Job job = job_of("1", 7);
  job.graph = true;
  job.chunk_size = 2;
  std::vector<Item> items(7);
  items[1].parents = {0};
  items[2].parents = {0, 0};
  items[3].parents = {1, 2};
  items[5].parents = {4};
  items[6].parents = {5, 3};
  world.submit(job, items);
  std::set<std::uint32_t> ended;
  world.on_launch = [&](const Scheduler::Launch& launch) {
    for (const auto parent : items[launch.task].parents) EXPECT_TRUE(ended.count(parent)) << launch.task;
  };
  world.exit_code_of = [&](const Scheduler::Launch& launch) {
    ended.insert(launch.task);
    return launch.task == 4 ? 1u : 0u;
  };
  world.settle();
  EXPECT_EQ(world.state("1").done, 4u);
  EXPECT_EQ(world.state("1").failed, 1u);
  EXPECT_EQ(world.state("1").skipped, 2u);
}

TEST(Scheduler, AReplacedAgentRetires) {
  World world;
  world.submit(job_of("1", 3000));
  world.step();
  auto old = std::move(world.scheduler);
  world.crash();
  world.settle();
  old->on_claim_failed("1", fail(Code::conflict, "later one"), world.now);
  const auto actions = old->take_actions(world.now);
  EXPECT_TRUE(std::any_of(actions.begin(), actions.end(),
                          [](const auto& a) { return std::holds_alternative<Scheduler::Retire>(a); }));
}

// Random schedules: replies come late, out of order, or never; requests of dead agents arrive after their death; agents
// die at every step. MATRIX_SEED=n replays one, MATRIX_SEEDS=n runs so many.
void random_schedule(std::uint64_t seed) {
  base::Random random(seed);
  World world(static_cast<std::uint32_t>(1 + random.below(4)));
  const int count = static_cast<int>(1 + random.below(4));
  std::map<std::string, std::vector<Item>> graphs;
  for (int i = 1; i <= count; i++) {
    Job job = job_of(std::to_string(i), static_cast<std::uint32_t>(1 + random.below(30)));
    job.chunk_size = static_cast<std::uint32_t>(1 + random.below(12));
    job.at_most_once = random.chance(0.3);
    job.retries = random.chance(0.3) && !job.at_most_once ? 2 : 0;
    if (i > 1 && random.chance(0.3)) job.after = {std::to_string(1 + random.below(static_cast<std::uint64_t>(i - 1)))};
    job.after_any = random.chance(0.5);
    std::vector<Item> items;
    if (random.chance(0.4)) {
      job.graph = random.chance(0.7);
      items.resize(job.task_count);
      for (std::uint32_t task = 1; job.graph && task < job.task_count; task++)
        while (random.chance(0.5)) items[task].parents.push_back(static_cast<std::uint32_t>(random.below(task)));
    }
    world.submit(job, items);
    if (job.graph) graphs[job.id] = items;
  }
  std::set<std::pair<std::string, std::uint32_t>> succeeded;
  world.on_launch = [&](const Scheduler::Launch& launch) {
    const auto graph = graphs.find(launch.job->id);
    if (graph == graphs.end()) return;
    for (const auto parent : graph->second[launch.task].parents)
      EXPECT_TRUE(succeeded.count({launch.job->id, parent}))
          << "task " << launch.task << " before its parent " << parent;
  };
  const auto end_one = [&] {
    auto at = world.runs.begin();
    std::advance(at, static_cast<std::ptrdiff_t>(random.below(world.runs.size())));
    const std::uint32_t exit_code = random.chance(0.1) ? 1 : 0;
    if (exit_code == 0 && !at->second.killed) succeeded.insert({at->second.launch.job->id, at->second.launch.task});
    world.exit(at->first, exit_code);
  };
  for (int i = 0; i < 400; i++) {
    world.step();
    const auto what = random.below(100);
    if (what < 35 && !world.requests.empty())
      world.execute(random.below(world.requests.size()));
    else if (what < 42 && !world.requests.empty())
      world.execute(random.below(world.requests.size()), Code::timeout);
    else if (what < 47 && !world.requests.empty())
      world.refuse(random.below(world.requests.size()));
    else if (what < 80 && !world.runs.empty())
      end_one();
    else if (what < 82)
      world.crash();
    else if (what == 82 && random.chance(0.2))
      world.cancel(std::to_string(1 + random.below(static_cast<std::uint64_t>(count))));
    else
      world.now += std::chrono::milliseconds(random.below(40));
    world.look_at_ends();
  }
  world.exit_code_of = [&](const Scheduler::Launch& launch) {
    succeeded.insert({launch.job->id, launch.task});
    return 0u;
  };
  world.settle();
  EXPECT_FALSE(world.retired);
  for (int i = 1; i <= count; i++) {
    const std::string id = std::to_string(i);
    const JobState state = world.state(id);
    EXPECT_TRUE(world.has_ended(id));
    EXPECT_EQ(state.ended(), world.jobs[id].task_count) << "job " << id;
    const auto results = world.results(id);  // checks that none is there twice
    std::uint32_t done = 0;
    for (const auto& [task, result] : results) done += result.state == TaskState::done;
    EXPECT_EQ(done, state.done);
    if (!state.cancel_asked) {
      EXPECT_EQ(results.size(), world.jobs[id].task_count);
    }
  }
}

TEST(Scheduler, RandomSchedulesWithCrashesRecordEachTaskOnce) {
  const char* one = std::getenv("MATRIX_SEED");
  const char* many = std::getenv("MATRIX_SEEDS");
  const std::uint64_t first = one ? std::strtoull(one, nullptr, 10) : 1;
  const std::uint64_t count = one ? 1 : many ? std::strtoull(many, nullptr, 10) : 500;
  for (std::uint64_t seed = first; seed < first + count; seed++) {
    random_schedule(seed);
    if (testing::Test::HasFailure()) {
      std::cout << "replay: MATRIX_SEED=" << seed << " tests/matrix_scheduler_test --gtest_filter=*RandomSchedules*\n";
      return;
    }
  }
}

}  // namespace
}  // namespace matrix

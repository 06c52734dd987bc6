// The agent's brain: which task runs next, what is recorded when, what happens after a crash, a cancel, a lost reply.
// It does no I/O: it is told events and the time, and hands out actions.
//
//   Scheduler scheduler({.agent = "local", .incarnation = 7, .slots = 2});
//   scheduler.on_job("12", now);
//   for (const auto& action : scheduler.take_actions(now)) ...   // Claim{"12", ...}
//   scheduler.on_claimed("12", reply, now);                      // -> Launch ...
//   scheduler.on_exit(run, result, now);                         // -> Record ...
//   scheduler.on_recorded("12", batch, reply, now);              // -> Forget when that was the last task
//
// A job's tasks arrive by chunks, claimed a few ahead of need. Nothing goes to the store between "ready" and "launch",
// except for at-most-once tasks, which are marked as running first. Results are recorded in groups: at once when
// nothing was recorded for `record_interval`, else with the others of that interval or when `record_results` have
// gathered. A record that fails is repeated unchanged until it is answered: the store takes each result once.
//
// Ready tasks of jobs of one priority take turns, one task each, so that a small job is not stuck behind a huge one.
#pragma once

#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "matrix/core/records.h"
#include "novoht/base/clock.h"
#include "novoht/base/result.h"

namespace matrix {

enum class RunId : std::uint64_t {};

class Scheduler {
 public:
  struct Options {
    std::string agent = "local";
    std::uint64_t incarnation = 1;
    std::uint32_t slots = 1;  // cpus to give away
    base::Duration record_interval = std::chrono::milliseconds(10);
    std::size_t record_results = 256;
    base::Duration mark_after = std::chrono::milliseconds(20);  // a task that runs longer is recorded as running
    base::Duration ahead = std::chrono::milliseconds(6);        // how much work waits at the executor beyond its slots
    std::uint32_t most_ahead = 64;
    std::size_t most_unrecorded = 20'000;  // results; then nothing is launched until the store takes some
  };

  // Read chunks of the job (and the job itself); answer with on_claimed or on_claim_failed.
  struct Claim {
    std::string job;
    ClaimRequest request;
  };
  // Say on_job_ended when job `job` has ended.
  struct WatchEnd {
    std::string job;
  };
  // Run a task; answer with on_exit, once.
  struct Launch {
    RunId run;
    std::shared_ptr<const Job> job;
    std::uint32_t task;
    std::uint32_t attempt;
    Item item;
  };
  // End a task's processes; its on_exit follows.
  struct Kill {
    RunId run;
  };
  // Answer with on_recorded or on_record_failed.
  struct Record {
    std::string job;
    std::uint64_t batch;
    std::shared_ptr<const RecordRequest> request;
  };
  // A job that this one waits for did not succeed: cancel the job in the store, then say on_cancel.
  struct Skip {
    std::string job;
    std::string reason;
  };
  // The job has ended or is gone: take it off the live list.
  struct Forget {
    std::string job;
  };
  // This agent has been replaced by a later incarnation: stop everything.
  struct Retire {
    std::string reason;
  };
  using Action = std::variant<Claim, WatchEnd, Launch, Kill, Record, Skip, Forget, Retire>;

  explicit Scheduler(Options options);
  ~Scheduler();

  void on_job(const std::string& job, base::Time now);     // submitted, or found alive at the start; twice does no harm
  void on_cancel(const std::string& job, base::Time now);  // the store's record says so already
  void on_claimed(const std::string& job, ClaimReply reply, base::Time now);
  void on_claim_failed(const std::string& job, const base::Error& error, base::Time now);
  void on_exit(RunId run, TaskResult result, base::Time now);  // result.task and attempt are filled in here
  void on_recorded(const std::string& job, std::uint64_t batch, const RecordReply& reply, base::Time now);
  void on_record_failed(const std::string& job, std::uint64_t batch, const base::Error& error, base::Time now);
  void on_job_ended(const std::string& job, bool succeeded, base::Time now);

  // What is to be done now. Call after events, and again when wake_at() has come.
  std::vector<Action> take_actions(base::Time now);
  base::Time wake_at() const { return wake_at_; }  // Time::max(): no timer is needed

  bool knows(const std::string& job) const { return jobs_.count(job) != 0; }
  bool has_unrecorded() const { return unrecorded_ > 0; }
  std::size_t job_count() const { return jobs_.size(); }
  std::size_t running_count() const { return runs_.size(); }

 private:
  struct OwnedChunk {
    std::uint64_t epoch = 0;
    std::vector<Item> items;
  };
  struct ActiveJob {
    std::string id;
    std::shared_ptr<const Job> spec;
    std::uint64_t order = 0;
    std::set<std::string> open_parents;
    bool waiting_for_parents = false;
    bool claiming = false, all_claimed = false, cancelling = false, finished = false;
    bool touched = false;  // it is in touched_
    std::uint32_t next_chunk = 0;
    base::Time claim_not_before{};
    base::Duration claim_backoff{};
    std::map<std::uint32_t, OwnedChunk> chunks;
    std::unordered_map<std::uint32_t, std::uint32_t> attempts;  // of a task: last begun, when not 0
    std::deque<std::uint32_t> ready;                            // may be launched
    std::deque<std::uint32_t> unmarked;                         // at-most-once: to be marked as running first
    std::set<std::uint32_t> marking;                            // ... the marks are on their way
    std::set<std::uint32_t> launched;
    // Graph jobs: how many parents are open, and who waits for whom.
    std::vector<std::pair<std::uint32_t, TaskState>> graph_states;  // of the chunks claimed so far, until it is linked
    std::unordered_map<std::uint32_t, std::uint32_t> open;
    std::unordered_map<std::uint32_t, std::vector<std::uint32_t>> children;
    std::vector<TaskResult> results;  // to be recorded
    std::vector<RunningMark> marks;
    std::shared_ptr<const RecordRequest> recording;
    std::uint64_t batch = 0;
    base::Time recorded_at{}, record_not_before{};
    base::Duration record_backoff{};
  };
  struct Run {
    std::string job;
    std::uint32_t task = 0, attempt = 0, cpus = 1;
    bool killed = false;
  };
  struct Unmarked {
    RunId run;
    base::Time due;
  };

  ActiveJob* find(const std::string& job);
  void add_chunk(ActiveJob& job, ClaimedChunk claimed);
  void link_graph(ActiveJob& job);
  void task_ended(ActiveJob& job, std::uint32_t task, TaskState state);
  void enter_turn(ActiveJob& job);
  void leave_turn(ActiveJob& job);
  void push_ready(ActiveJob& job, std::uint32_t task);
  void make_ready(ActiveJob& job, std::uint32_t task);
  void end_without_run(ActiveJob& job, std::uint32_t task, TaskState state, std::string error);
  void cancel_unstarted(ActiveJob& job);
  void finish(ActiveJob& job);
  void want_claim(ActiveJob& job, base::Time now);
  void want_marks(ActiveJob& job);
  void want_record(ActiveJob& job, base::Time now);
  void dispatch(base::Time now);
  // Look at the job in the next take_actions: something about it has changed, or (look_at) its time has come. Thousands
  // of jobs may wait for others; those cost nothing.
  void touch(ActiveJob& job);
  void look_at(const ActiveJob& job, base::Time at) { timers_.emplace(at, job.id); }
  std::uint32_t chunk_of(const ActiveJob& job, std::uint32_t task) const { return task / job.spec->chunk_size; }

  Options options_;
  std::map<std::string, std::unique_ptr<ActiveJob>> jobs_;
  std::map<std::pair<std::int64_t, std::uint64_t>, ActiveJob*> turn_;  // (-priority, turn): jobs with ready tasks
  std::map<std::string, std::set<std::string>> waiting_on_;            // parent job -> jobs that wait for it
  std::unordered_map<std::uint64_t, Run> runs_;
  std::deque<Unmarked> unmarked_runs_;
  std::vector<ActiveJob*> touched_;
  std::multimap<base::Time, std::string> timers_;
  std::set<std::string> at_most_once_;  // jobs that look for free slots to mark tasks for
  std::vector<Action> actions_;
  std::uint64_t next_run_ = 1, next_turn_ = 1, next_batch_ = 1;
  std::uint32_t used_cpus_ = 0;
  std::size_t unrecorded_ = 0;
  double mean_run_ns_ = 1e9;  // of recent tasks
  base::Time wake_at_ = base::Time::max();
};

}  // namespace matrix

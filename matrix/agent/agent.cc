#include "matrix/agent/agent.h"

#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "matrix/agent/expiry.h"
#include "matrix/core/expand.h"
#include "matrix/core/scheduler.h"
#include "matrix/exec/executor.h"
#include "novoht/base/check.h"
#include "zht/support/log.h"

namespace matrix {
namespace {

using base::Code;
using base::Error;
using base::fail;
using base::Result;
using zht::Condition;
using zht::Millis;
using zht::Operation;
using zht::Outcome;
using zht::Range;
using namespace std::chrono_literals;

constexpr Millis kWatch{30'000};                                // a callback is registered anew after this long
constexpr Millis kRetry{100};                                   // between tries of what has no back-off of its own
constexpr std::uint64_t kInboxTrim = std::uint64_t{64} << 10;   // bytes read; then the inbox is emptied

base::Time now() { return base::SystemClock().now(); }

std::uint64_t wall_us() {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::system_clock::now().time_since_epoch())
          .count());
}

// Many slots need many descriptors. Returns the limit this process was started with: a program that closes, or waits with select()
// for, all descriptors it may have is not to be given ours.
std::uint64_t raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  const rlim_t before = limit.rlim_cur;
  limit.rlim_cur = std::max(before, std::min<rlim_t>(limit.rlim_max, 65'536));
  setrlimit(RLIMIT_NOFILE, &limit);
  return before;
}

// Set by the agent for each task.
bool is_own_variable(std::string_view line) {
  for (const std::string_view name :
       {"MATRIX_JOB=", "MATRIX_TASK=", "MATRIX_ATTEMPT=", "MATRIX_SESSION=", "MATRIX_INDEX="})
    if (line.starts_with(name)) return true;
  return false;
}

TaskResult result_of(Executor::Exit exit) {
  TaskResult result;
  result.started_us = exit.started_us;
  result.ended_us = exit.ended_us;
  result.cpu_us = exit.cpu_us;
  result.max_rss_bytes = exit.max_rss_bytes;
  result.signal = static_cast<std::uint32_t>(exit.signal);
  result.output_size = exit.output.size;
  result.error_output_size = exit.error_output.size;
  result.output = std::move(exit.output.text);
  result.error_output = std::move(exit.error_output.text);
  result.output_file = std::move(exit.output.file);
  result.error_output_file = std::move(exit.error_output.file);
  result.error = std::move(exit.error);
  switch (exit.ended) {
    case Executor::Ended::exited:
      result.state = exit.status == 0 ? TaskState::done : TaskState::failed;
      result.exit_code = static_cast<std::uint32_t>(exit.status);
      break;
    case Executor::Ended::signalled:
      result.state = TaskState::failed;
      result.exit_code = 128 + static_cast<std::uint32_t>(exit.signal);
      if (result.error.empty())
        result.error = "ended by signal " + std::to_string(exit.signal) + " (" + strsignal(exit.signal) + ")";
      break;
    case Executor::Ended::not_started:
      result.state = TaskState::failed;
      result.exit_code = static_cast<std::uint32_t>(exit.status);
      break;
    case Executor::Ended::timed_out:
      result.state = TaskState::timed_out;
      result.exit_code = 124;
      break;
    case Executor::Ended::killed:
      result.state = TaskState::cancelled;
      result.exit_code = 130;
      break;
  }
  return result;
}

}  // namespace

class Agent::Loop {
 public:
  Loop(zht::Client& client, Options options) : client_(client), options_(std::move(options)), log_("matrix.agent") {
    if (options_.slots == 0) options_.slots = std::max(1u, std::thread::hardware_concurrency());
    event_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    CHECK(event_ >= 0, "no file descriptor for the agent's mailbox");
  }
  ~Loop() {
    executor_.reset();
    {
      const std::lock_guard lock(mailbox_->mutex);
      mailbox_->event = -1;  // answers that come later fall on the floor
    }
    close(event_);
  }

  Result<void> run(int stop_fd) {
    mailbox_->event = event_;
    open_files_ = raise_descriptor_limit();
    TRY(begin_session());
    const std::size_t leftovers = kill_leftovers(options_.name + ":", std::to_string(incarnation_));
    if (leftovers > 0) log_.warn("killed processes of an earlier agent", {{"count", leftovers}});
    Scheduler::Options choices;
    choices.agent = options_.name;
    choices.incarnation = incarnation_;
    choices.slots = options_.slots;
    scheduler_ = std::make_unique<Scheduler>(choices);
    Executor::Options executor_options;
    executor_options.slots = options_.slots;
    executor_ =
        std::make_unique<Executor>(executor_options, [mailbox = mailbox_, this](std::vector<Executor::Exit> exits) {
          auto shared = std::make_shared<std::vector<Executor::Exit>>(std::move(exits));
          mailbox->post([this, shared] {
            for (auto& exit : *shared) {
              const RunId run{exit.run};
              TaskResult result = result_of(std::move(exit));
              if (result.state == TaskState::timed_out) result.error = "ran longer than its timeout";
              scheduler_->on_exit(run, std::move(result), now());
            }
          });
        });
    TRY(find_live_jobs());
    Expiry expiry(client_, options_.name, options_.data_folder);
    expiry.start();
    watch_inbox();
    log_.info("serving", {{"agent", options_.name}, {"incarnation", incarnation_}, {"slots", options_.slots}});
    while (!retired_) {
      step(now());
      if (wait(stop_fd)) return stop();
    }
    return fail(Code::conflict, retire_reason_);
  }

 private:
  struct Mailbox {
    std::mutex mutex;
    std::vector<std::function<void()>> notes;  // guarded by mutex
    int event = -1;                            // guarded by mutex; -1: the loop is gone
    void post(std::function<void()> note) {
      const std::lock_guard lock(mutex);
      if (event < 0) return;
      notes.push_back(std::move(note));
      if (notes.size() > 1) return;  // it was poked for the first
      const std::uint64_t one = 1;
      [[maybe_unused]] const auto written = write(event, &one, sizeof one);
    }
  };

  // Performs what the scheduler wants and notes what falls due.
  void step(base::Time at) {
    std::vector<Executor::Task> launches;
    std::vector<std::uint64_t> kills;
    for (auto& action : scheduler_->take_actions(at)) {
      std::visit(
          [&](auto& wanted) {
            using Wanted = std::decay_t<decltype(wanted)>;
            if constexpr (std::is_same_v<Wanted, Scheduler::Launch>)
              launches.push_back(task_of(wanted));
            else if constexpr (std::is_same_v<Wanted, Scheduler::Kill>)
              kills.push_back(static_cast<std::uint64_t>(wanted.run));
            else
              perform(wanted);
          },
          action);
    }
    if (!launches.empty()) executor_->launch(std::move(launches));
    if (!kills.empty()) executor_->kill(kills);
  }

  // Sleeps until something happens, then reads the mailbox. True: asked to stop.
  bool wait(int stop_fd) {
    base::Time until = scheduler_->wake_at();
    if (!later_.empty()) until = std::min(until, later_.begin()->first);
    pollfd wanted[2] = {{event_, POLLIN, 0}, {stop_fd, POLLIN, 0}};
    timespec patience{};
    if (until != base::Time::max()) {
      const auto left = std::max(base::Duration{0}, until - now());
      patience = {static_cast<time_t>(left / 1s), static_cast<long>((left % 1s).count())};
    }
    ppoll(wanted, 2, until == base::Time::max() ? nullptr : &patience, nullptr);
    drain();
    const base::Time at = now();
    while (!later_.empty() && later_.begin()->first <= at) {
      const auto note = std::move(later_.begin()->second);
      later_.erase(later_.begin());
      note();
    }
    return (wanted[1].revents & POLLIN) != 0;
  }

  void drain() {
    std::vector<std::function<void()>> notes;
    {
      const std::lock_guard lock(mailbox_->mutex);
      std::uint64_t ignored;
      [[maybe_unused]] const auto got = read(event_, &ignored, sizeof ignored);
      notes.swap(mailbox_->notes);
    }
    for (const auto& note : notes) note();
  }

  void later(std::function<void()> note) { later_.emplace(now() + kRetry, std::move(note)); }

  // Sends an operation; `then` runs on this loop with the outcome.
  void send(Operation operation, std::function<void(Outcome&)> then, Millis timeout = {}) {
    client_.submit(
        std::move(operation),
        [mailbox = mailbox_, then = std::move(then)](Outcome outcome) {
          auto shared = std::make_shared<Outcome>(std::move(outcome));
          mailbox->post([then, shared] { then(*shared); });
        },
        timeout);
  }

  // The incarnation grows with every start: chunks claimed under a lower one are this agent's to take over.
  Result<void> begin_session() {
    const std::string key = keys::session(options_.name);
    while (true) {
      Session session;
      zht::Version version = 0;
      auto found = client_.lookup(key);
      if (found) {
        TRY_LET(decoded, decode_session(found->value));
        session = decoded;
        version = found->version;
      } else if (found.code() != Code::not_found) {
        return std::move(found).error();
      }
      session.incarnation++;
      session.pid = static_cast<std::uint32_t>(getpid());
      session.slots = options_.slots;
      session.started_us = wall_us();
      char host[256] = "";
      gethostname(host, sizeof host - 1);
      session.host = host;
      auto swap = client_.cswap(key, found ? Condition::at_version(version) : Condition::absent(), encode(session));
      if (!swap) {
        if (swap.code() == Code::timeout) continue;  // it may have happened: look again
        return std::move(swap).error();
      }
      if (!swap->swapped) continue;
      incarnation_ = session.incarnation;
      return {};
    }
  }

  Result<void> find_live_jobs() {
    // First the inbox's place, then the list: a job submitted in between is seen twice, which does no harm.
    const Outcome inbox = client_.call(Operation::lookup(keys::inbox(options_.name), Range::nothing()));
    if (!inbox.ok() && inbox.code != Code::not_found) return inbox.error();
    inbox_version_ = inbox.version;
    inbox_offset_ = inbox.ok() ? inbox.size : 0;
    const std::string prefix = keys::live_prefix(options_.name);
    const auto partition = zht::partition_of(prefix, client_.partition_count());
    std::uint64_t cursor = 0;
    std::vector<std::pair<std::uint64_t, std::string>> jobs;
    do {
      const Outcome page = client_.call(Operation::scan(partition, cursor, prefix, 1000));
      if (!page.ok()) return page.error();
      for (const auto& entry : page.entries) {
        const std::string job = entry.key.substr(prefix.size());
        jobs.emplace_back(strtoull(job.c_str(), nullptr, 10), job);
      }
      cursor = page.cursor;
    } while (cursor != 0);
    std::sort(jobs.begin(), jobs.end());  // in the order of submission
    for (const auto& [number, job] : jobs) scheduler_->on_job(job, now());
    return {};
  }

  void watch_inbox() {
    send(
        Operation::callback(keys::inbox(options_.name), Condition::after_version(inbox_version_),
                            Range::bytes(inbox_offset_, zht::kMaxValueSize / 2)),
        [this](Outcome& outcome) { on_inbox(outcome); }, kWatch);
  }

  void on_inbox(Outcome& outcome) {
    if (!outcome.ok()) {
      if (outcome.code == Code::timeout) return watch_inbox();
      return later([this] { watch_inbox(); });
    }
    inbox_version_ = outcome.version;
    if (outcome.size < inbox_offset_) {
      // Shorter than what was read: it was emptied, or the store is an older one. What is in it now is news.
      inbox_offset_ = 0;
      if (outcome.size == 0) return watch_inbox();
      return send(Operation::lookup(keys::inbox(options_.name)), [this](Outcome& found) { on_inbox(found); });
    }
    const std::string_view text = outcome.value;
    std::size_t at = 0;
    for (std::size_t end; (end = text.find('\n', at)) != std::string_view::npos; at = end + 1) {
      const std::string_view line = text.substr(at, end - at);
      if (line.starts_with("run "))
        scheduler_->on_job(std::string(line.substr(4)), now());
      else if (line.starts_with("cancel "))
        cancel_if_known(std::string(line.substr(7)));
    }
    inbox_offset_ += at;
    if (inbox_offset_ >= kInboxTrim && inbox_offset_ == outcome.size) return trim_inbox();
    watch_inbox();
  }

  // A cancel of a job that has ended needs nothing.
  void cancel_if_known(const std::string& job) {
    if (scheduler_->knows(job)) scheduler_->on_cancel(job, now());
  }

  void trim_inbox() {
    send(Operation::cswap(keys::inbox(options_.name), Condition::at_version(inbox_version_), ""),
         [this](Outcome& outcome) {
           if (outcome.ok()) {
             inbox_offset_ = 0;
             inbox_version_ = outcome.version;
           }
           watch_inbox();
         });
  }

  void perform(Scheduler::Claim& claim) {
    send(Operation::update(keys::job(claim.job), "matrix.claim", encode(claim.request)),
         [this, job = claim.job](Outcome& outcome) {
           if (!outcome.ok()) return scheduler_->on_claim_failed(job, outcome.error(), now());
           auto reply = decode_claim_reply(outcome.value);
           if (!reply) return scheduler_->on_claim_failed(job, reply.error(), now());
           if (reply->state.cancel_asked) cancel_if_known(job);
           scheduler_->on_claimed(job, *std::move(reply), now());
         });
  }

  void perform(Scheduler::Record& record) {
    send(Operation::update(keys::job(record.job), "matrix.record", encode(*record.request)),
         [this, job = record.job, batch = record.batch](Outcome& outcome) {
           if (!outcome.ok()) {
             log_.warn("results not recorded yet", {{"job", job}, {"why", outcome.message}});
             return scheduler_->on_record_failed(job, batch, outcome.error(), now());
           }
           auto reply = decode_record_reply(outcome.value);
           if (!reply) return scheduler_->on_record_failed(job, batch, reply.error(), now());
           scheduler_->on_recorded(job, batch, *reply, now());
         });
  }

  void perform(Scheduler::WatchEnd& watch) {
    const std::string job = watch.job;
    send(
        Operation::callback(keys::end(job), Condition::present()),
        [this, job](Outcome& outcome) {
          if (outcome.ok()) {
            const auto state = decode_job_state(outcome.value);
            return scheduler_->on_job_ended(job, state && state->phase == Phase::done, now());
          }
          Scheduler::WatchEnd again{job};
          if (outcome.code == Code::timeout) return perform(again);
          later([this, again]() mutable { perform(again); });
        },
        kWatch);
  }

  void perform(Scheduler::Skip& skip) { skip_from(skip.job, skip.reason, 0); }

  void skip_from(const std::string& job, const std::string& reason, std::uint32_t from) {
    send(Operation::update(keys::job(job), "matrix.cancel", encode(CancelRequest{reason, true, from})),
         [=, this](Outcome& outcome) {
           if (outcome.code == Code::not_found) return scheduler_->on_cancel(job, now());
           if (!outcome.ok()) return later([=, this] { skip_from(job, reason, from); });
           const auto reply = decode_cancel_reply(outcome.value);
           if (reply && !is_end(reply->state.phase) && reply->next_chunk > from)
             return skip_from(job, reason, reply->next_chunk);
           scheduler_->on_cancel(job, now());
         });
  }

  void perform(Scheduler::Forget& forget) {
    settings_.erase(forget.job);
    remove_live(forget.job);
  }

  void remove_live(const std::string& job) {
    send(Operation::remove(keys::live(options_.name, job), true), [this, job](Outcome& outcome) {
      if (!outcome.ok() && outcome.code != Code::not_found) later([this, job] { remove_live(job); });
    });
  }

  void perform(Scheduler::Retire& retire) {
    retired_ = true;
    retire_reason_ = retire.reason;
  }

  Executor::Task task_of(const Scheduler::Launch& launch) {
    const Job& job = *launch.job;
    auto& setting = settings_[job.id];
    if (!setting) {
      Setting::Options common;
      // A task that submits tasks must not hand its own number on to them.
      for (const auto& line : job.environment)
        if (!is_own_variable(line)) common.environment.push_back(line);
      common.environment.push_back("MATRIX_JOB=" + job.id);
      common.environment.push_back("MATRIX_SESSION=" + options_.name + ":" + std::to_string(incarnation_));
      common.cwd = job.cwd.empty() ? "/" : job.cwd;
      common.stdin_path = job.stdin_path;
      common.umask = static_cast<mode_t>(job.umask);
      common.open_files = job.open_files != 0 ? job.open_files : open_files_;
      setting = std::make_shared<const Setting>(std::move(common));
    }
    Executor::Task task;
    task.run = static_cast<std::uint64_t>(launch.run);
    task.setting = setting;
    task.cpus = job.cpus;
    task.timeout = Millis(job.timeout_ms);
    task.stream = job.stream;
    const std::string number = std::to_string(launch.task);
    task.output_stem = options_.data_folder + "/matrix/" + job.id + "/" + number;
    task.environment = {"MATRIX_TASK=" + number, "MATRIX_ATTEMPT=" + std::to_string(launch.attempt)};
    if (!launch.item.argv.empty()) {
      task.argv = launch.item.argv;
    } else if (job.has_items || job.index_step != 0) {
      const std::string item = job.has_items
                                   ? launch.item.text
                                   : std::to_string(job.first_index + std::int64_t{launch.task} * job.index_step);
      if (job.index_step != 0) task.environment.push_back("MATRIX_INDEX=" + item);
      task.argv.reserve(job.argv.size());
      for (const auto& word : job.argv)
        task.argv.push_back(expand(word, item, std::uint64_t{launch.task} + 1, job.shell));
    } else {
      task.argv = job.argv;
    }
    if (job.shell && !task.argv.empty()) task.argv = {"/bin/sh", "-c", task.argv[0]};
    return task;
  }

  // What runs is ended without a record, so that the next agent runs it again; what has ended is recorded, if the store
  // answers soon.
  Result<void> stop() {
    executor_.reset();
    log_.info("stopping", {{"agent", options_.name}});
    const base::Time until = now() + 2s;
    while (now() < until && scheduler_->has_unrecorded()) {
      for (auto& action : scheduler_->take_actions(now()))
        if (auto* record = std::get_if<Scheduler::Record>(&action))
          perform(*record);
        else if (auto* forget = std::get_if<Scheduler::Forget>(&action))
          perform(*forget);
      pollfd wanted{event_, POLLIN, 0};
      poll(&wanted, 1, 20);
      drain();
    }
    return {};
  }

  zht::Client& client_;
  Options options_;
  support::Log log_;
  std::uint64_t incarnation_ = 0;
  int event_ = -1;
  std::uint64_t open_files_ = 0;
  std::shared_ptr<Mailbox> mailbox_ = std::make_shared<Mailbox>();
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<Executor> executor_;
  std::map<std::string, std::shared_ptr<const Setting>> settings_;
  std::multimap<base::Time, std::function<void()>> later_;
  zht::Version inbox_version_ = 0;
  std::uint64_t inbox_offset_ = 0;
  bool retired_ = false;
  std::string retire_reason_;
};

Agent::Agent(zht::Client& client, Options options) : loop_(std::make_unique<Loop>(client, std::move(options))) {}
Agent::~Agent() = default;
Result<void> Agent::run(int stop_fd) { return loop_->run(stop_fd); }

}  // namespace matrix

#include "matrix/core/scheduler.h"

#include <algorithm>
#include <utility>

namespace matrix {
namespace {

using base::Code;
using base::Duration;
using base::Time;
using namespace std::chrono_literals;

constexpr Duration kFirstBackoff = 20ms;
constexpr Duration kMostBackoff = 1s;
constexpr std::size_t kRecordAtMost = 2048;                 // results in one request
constexpr std::size_t kRecordBytes = std::size_t{4} << 20;  // of output in one request, about
constexpr std::uint32_t kChunksAtOnce = 4;

Duration grow(Duration backoff) { return backoff == Duration{} ? kFirstBackoff : std::min(backoff * 2, kMostBackoff); }

}  // namespace

Scheduler::Scheduler(Options options) : options_(std::move(options)) {}
Scheduler::~Scheduler() = default;

Scheduler::ActiveJob* Scheduler::find(const std::string& job) {
  const auto at = jobs_.find(job);
  return at == jobs_.end() ? nullptr : at->second.get();
}

void Scheduler::touch(ActiveJob& job) {
  if (std::exchange(job.touched, true)) return;
  touched_.push_back(&job);
}

void Scheduler::on_job(const std::string& job, Time) {
  auto& active = jobs_[job];
  if (active) return;
  active = std::make_unique<ActiveJob>();
  active->id = job;
  touch(*active);
}

void Scheduler::on_cancel(const std::string& job, Time now) {
  on_job(job, now);
  ActiveJob& active = *find(job);
  touch(active);
  if (active.cancelling) return;
  active.cancelling = true;
  active.claim_not_before = now;
  if (active.waiting_for_parents) {
    // Nothing was claimed; the cancel itself has ended every task. One look at the job tells.
    active.waiting_for_parents = false;
    for (const auto& parent : active.open_parents) waiting_on_[parent].erase(job);
    active.open_parents.clear();
  }
  cancel_unstarted(active);
  for (auto& [id, run] : runs_)
    if (run.job == job && !run.killed) {
      run.killed = true;
      actions_.push_back(Kill{RunId{id}});
    }
}

// The jobs in turn_ are those with ready tasks, no others.
void Scheduler::enter_turn(ActiveJob& job) {
  job.order = next_turn_++;
  turn_[{-std::int64_t{job.spec->priority}, job.order}] = &job;
}

void Scheduler::leave_turn(ActiveJob& job) {
  if (job.spec) turn_.erase({-std::int64_t{job.spec->priority}, job.order});
}

void Scheduler::push_ready(ActiveJob& job, std::uint32_t task) {
  if (job.ready.empty()) enter_turn(job);
  job.ready.push_back(task);
}

void Scheduler::cancel_unstarted(ActiveJob& job) {
  std::vector<std::uint32_t> tasks(job.ready.begin(), job.ready.end());
  tasks.insert(tasks.end(), job.unmarked.begin(), job.unmarked.end());
  for (const auto& [task, open] : job.open) tasks.push_back(task);
  leave_turn(job);
  job.ready.clear();
  job.unmarked.clear();
  job.open.clear();
  job.children.clear();
  for (const auto task : tasks) end_without_run(job, task, TaskState::cancelled, {});
}

void Scheduler::end_without_run(ActiveJob& job, std::uint32_t task, TaskState state, std::string error) {
  TaskResult result;
  result.task = task;
  result.state = state;
  result.exit_code = state == TaskState::cancelled ? 130 : state == TaskState::skipped ? 1 : 125;
  result.attempt = 0;
  result.error = std::move(error);
  job.results.push_back(std::move(result));
  unrecorded_++;
}

void Scheduler::on_claimed(const std::string& id, ClaimReply reply, Time now) {
  ActiveJob* job = find(id);
  if (job == nullptr) return;
  touch(*job);
  job->claiming = false;
  job->claim_backoff = {};
  if (is_end(reply.state.phase)) return finish(*job);
  const bool first = job->spec == nullptr;
  if (reply.job) job->spec = std::make_shared<const Job>(std::move(*reply.job));
  if (job->spec == nullptr)
    return on_claim_failed(id, base::fail(Code::corrupt, "job ", id, ": the reply holds no job"), now);
  if (reply.state.cancel_asked) job->cancelling = true;
  if (first && !job->spec->after.empty() && !job->cancelling) {
    job->waiting_for_parents = true;
    for (const auto& parent : job->spec->after) {
      job->open_parents.insert(parent);
      if (waiting_on_[parent].insert(id).second && waiting_on_[parent].size() == 1)
        actions_.push_back(WatchEnd{parent});
    }
    return;
  }
  // A graph's first look claims one chunk at most; it is linked when all of them are here.
  if (first && job->spec->graph && reply.next_chunk < job->spec->chunk_count()) return;
  job->next_chunk = reply.next_chunk;
  for (auto& claimed : reply.chunks) {
    if (job->chunks.count(claimed.index)) continue;
    if (job->spec->graph)
      for (std::uint32_t offset = 0; offset < claimed.chunk.states.size(); offset++)
        job->graph_states.emplace_back(claimed.index * job->spec->chunk_size + offset, claimed.chunk.state_of(offset));
    add_chunk(*job, std::move(claimed));
  }
  job->all_claimed = job->next_chunk >= job->spec->chunk_count();
  if (job->spec->graph && job->all_claimed) link_graph(*job);
  if (job->cancelling) cancel_unstarted(*job);
}

void Scheduler::add_chunk(ActiveJob& job, ClaimedChunk claimed) {
  const std::uint32_t first = claimed.index * job.spec->chunk_size;
  for (std::uint32_t offset = 0; offset < claimed.chunk.states.size(); offset++) {
    if (is_end(claimed.chunk.state_of(offset))) continue;
    const std::uint32_t task = first + offset;
    if (const auto attempt = claimed.chunk.attempt_of(offset)) job.attempts[task] = attempt;
    if (!job.spec->graph) make_ready(job, task);
  }
  job.chunks[claimed.index] = {claimed.chunk.epoch, std::move(claimed.items)};
}

// The parents of a graph's tasks may lie in any of its chunks, so a graph is claimed whole before it is linked.
void Scheduler::link_graph(ActiveJob& job) {
  const auto states = std::exchange(job.graph_states, {});
  std::unordered_map<std::uint32_t, TaskState> ended;
  std::vector<std::uint32_t> fresh;
  for (const auto& [task, state] : states) {
    if (is_end(state))
      ended[task] = state;
    else
      fresh.push_back(task);
  }
  std::vector<std::uint32_t> startable, doomed;
  for (const auto task : fresh) {
    const auto& items = job.chunks[chunk_of(job, task)].items;
    const std::uint32_t offset = task % job.spec->chunk_size;
    std::uint32_t open = 0;
    bool failed = false;
    if (offset < items.size())
      for (const auto parent : std::set<std::uint32_t>(items[offset].parents.begin(), items[offset].parents.end())) {
        const auto at = ended.find(parent);
        if (at == ended.end()) {
          open++;
          job.children[parent].push_back(task);
        } else if (at->second != TaskState::done) {
          failed = true;
        }
      }
    job.open[task] = open;
    if (failed)
      doomed.push_back(task);
    else if (open == 0)
      startable.push_back(task);
  }
  for (const auto task : startable) {
    job.open.erase(task);
    make_ready(job, task);
  }
  for (const auto task : doomed) {
    if (job.open.erase(task) == 0) continue;
    end_without_run(job, task, TaskState::skipped, "a task that it waits for did not succeed");
    task_ended(job, task, TaskState::skipped);
  }
}

// Tells the children. Skipping runs down the graph without recursion, however deep it is.
void Scheduler::task_ended(ActiveJob& job, std::uint32_t task, TaskState state) {
  if (job.children.empty()) return;
  std::vector<std::pair<std::uint32_t, TaskState>> todo{{task, state}};
  while (!todo.empty()) {
    const auto [parent, how] = todo.back();
    todo.pop_back();
    const auto at = job.children.find(parent);
    if (at == job.children.end()) continue;
    const auto children = std::move(at->second);
    job.children.erase(at);
    for (const auto child : children) {
      const auto open = job.open.find(child);
      if (open == job.open.end()) continue;
      if (how != TaskState::done) {
        job.open.erase(open);
        end_without_run(job, child, TaskState::skipped, "a task that it waits for did not succeed");
        todo.emplace_back(child, TaskState::skipped);
      } else if (--open->second == 0) {
        job.open.erase(open);
        make_ready(job, child);
      }
    }
  }
}

void Scheduler::make_ready(ActiveJob& job, std::uint32_t task) {
  if (job.spec->at_most_once) {
    job.unmarked.push_back(task);
    at_most_once_.insert(job.id);
    return;
  }
  push_ready(job, task);
}

void Scheduler::on_claim_failed(const std::string& id, const base::Error& error, Time now) {
  ActiveJob* job = find(id);
  if (job == nullptr) return;
  touch(*job);
  job->claiming = false;
  if (error.code == Code::not_found) return finish(*job);
  if (error.code == Code::conflict) {
    actions_.push_back(Retire{error.message});
    return;
  }
  job->claim_backoff = grow(job->claim_backoff);
  job->claim_not_before = now + job->claim_backoff;
}

void Scheduler::on_job_ended(const std::string& parent, bool succeeded, Time now) {
  const auto at = waiting_on_.find(parent);
  if (at == waiting_on_.end()) return;
  const auto waiting = std::move(at->second);
  waiting_on_.erase(at);
  for (const auto& id : waiting) {
    ActiveJob* job = find(id);
    if (job == nullptr || !job->waiting_for_parents) continue;
    touch(*job);
    if (!succeeded && !job->spec->after_any) {
      job->waiting_for_parents = false;
      for (const auto& other : job->open_parents)
        if (other != parent) waiting_on_[other].erase(id);
      job->open_parents.clear();
      // Claimed anew only after the cancel has been recorded (on_cancel lifts this).
      job->claim_not_before = Time::max();
      actions_.push_back(Skip{id, "job " + parent + ", which it waits for, did not succeed"});
      continue;
    }
    job->open_parents.erase(parent);
    if (job->open_parents.empty()) {
      job->waiting_for_parents = false;
      job->claim_not_before = now;
    }
  }
}

void Scheduler::on_exit(RunId id, TaskResult result, Time) {
  const auto at = runs_.find(static_cast<std::uint64_t>(id));
  if (at == runs_.end()) return;
  const Run run = std::move(at->second);
  runs_.erase(at);
  used_cpus_ -= run.cpus;
  if (result.started_us != 0 && result.ended_us >= result.started_us)
    mean_run_ns_ = mean_run_ns_ * 0.9 + 0.1 * 1000.0 * static_cast<double>(result.ended_us - result.started_us);
  ActiveJob* job = find(run.job);
  if (job == nullptr || !job->launched.erase(run.task)) return;
  touch(*job);
  if (job->chunks.find(chunk_of(*job, run.task)) == job->chunks.end()) return;  // fenced meanwhile
  result.task = run.task;
  result.attempt = run.attempt;
  const bool bad = result.state == TaskState::failed || result.state == TaskState::timed_out;
  if (bad && !job->cancelling && run.attempt <= job->spec->retries) {
    job->attempts[run.task] = run.attempt;
    make_ready(*job, run.task);
    return;
  }
  const TaskState state = result.state;
  job->attempts.erase(run.task);
  job->results.push_back(std::move(result));
  unrecorded_++;
  task_ended(*job, run.task, state);
}

void Scheduler::on_recorded(const std::string& id, std::uint64_t batch, const RecordReply& reply, Time now) {
  ActiveJob* job = find(id);
  if (job == nullptr || job->batch != batch || !job->recording) return;
  touch(*job);
  const auto request = std::move(job->recording);
  job->recording = nullptr;
  job->record_backoff = {};
  for (const auto& update : request->chunks) unrecorded_ -= update.results.size();
  const std::set<std::uint32_t> fenced(reply.fenced.begin(), reply.fenced.end());
  for (const auto& update : request->chunks)
    for (const auto& mark : update.running)
      if (job->marking.erase(mark.task) != 0 && fenced.count(update.chunk) == 0) {
        if (job->cancelling) {
          end_without_run(*job, mark.task, TaskState::cancelled, {});
          continue;
        }
        push_ready(*job, mark.task);
      }
  // A later incarnation owns these: what runs of them is ended, what they produced is thrown away.
  for (const auto chunk : fenced) {
    job->chunks.erase(chunk);
    const auto gone = [&](std::uint32_t task) { return chunk_of(*job, task) == chunk; };
    std::erase_if(job->ready, gone);
    std::erase_if(job->unmarked, gone);
    if (job->ready.empty()) leave_turn(*job);
    const auto before = job->results.size();
    std::erase_if(job->results, [&](const TaskResult& r) { return gone(r.task); });
    unrecorded_ -= before - job->results.size();
    for (auto& [run_id, run] : runs_)
      if (run.job == id && gone(run.task) && !run.killed) {
        run.killed = true;
        actions_.push_back(Kill{RunId{run_id}});
      }
  }
  if (is_end(reply.state.phase)) return finish(*job);
  if (reply.state.cancel_asked && !job->cancelling) on_cancel(id, now);
}

void Scheduler::on_record_failed(const std::string& id, std::uint64_t batch, const base::Error& error, Time now) {
  ActiveJob* job = find(id);
  if (job == nullptr || job->batch != batch || !job->recording) return;
  touch(*job);
  if (error.code == Code::not_found) return finish(*job);  // the job's records were removed
  job->record_backoff = grow(job->record_backoff);
  job->record_not_before = now + job->record_backoff;
  job->batch = 0;  // nothing is under way; want_record sends the same request again
}

void Scheduler::finish(ActiveJob& job) {
  if (job.finished) return;
  job.finished = true;
  touch(job);
  at_most_once_.erase(job.id);
  std::size_t dropped = job.results.size();
  if (job.recording)
    for (const auto& update : job.recording->chunks) dropped += update.results.size();
  unrecorded_ -= dropped;
  leave_turn(job);
  for (const auto& parent : job.open_parents) waiting_on_[parent].erase(job.id);
  for (auto& [id, run] : runs_)
    if (run.job == job.id && !run.killed) {
      run.killed = true;
      actions_.push_back(Kill{RunId{id}});
    }
  actions_.push_back(Forget{job.id});
}

void Scheduler::want_claim(ActiveJob& job, Time now) {
  if (job.claiming || job.all_claimed || job.waiting_for_parents) return;
  const bool first = job.spec == nullptr;
  // Enough for the time one claim may take at the rate of no-op tasks.
  const std::size_t enough = options_.slots + options_.most_ahead + kChunkSize / 4;
  if (!first && !job.spec->graph && job.ready.size() + job.unmarked.size() >= enough) return;
  if (job.claim_not_before > now) {
    if (job.claim_not_before != Time::max()) look_at(job, job.claim_not_before);
    return;
  }
  ClaimRequest request{options_.agent, options_.incarnation, job.next_chunk, first ? 1 : kChunksAtOnce, first};
  // A graph is claimed whole: the first look only tells that it is one.
  if (!first && job.spec->graph) request.max_chunks = job.spec->chunk_count();
  job.claiming = true;
  actions_.push_back(Claim{job.id, std::move(request)});
}

void Scheduler::want_marks(ActiveJob& job) {
  // No more than can start at once: what is marked and not started when the agent dies is lost. Where others compete
  // for the slots there is never a free one to see, so one task is marked to take its turn among them.
  const std::size_t free = options_.slots > used_cpus_ ? options_.slots - used_cpus_ : 0;
  const std::size_t most = std::max<std::size_t>(free, turn_.empty() ? 0 : 1);
  while (!job.unmarked.empty() && job.marking.size() + job.ready.size() < most) {
    const std::uint32_t task = job.unmarked.front();
    job.unmarked.pop_front();
    job.marking.insert(task);
    job.marks.push_back({task, job.attempts[task] + 1});
  }
}

void Scheduler::want_record(ActiveJob& job, Time now) {
  if (job.recording && job.batch != 0) return;
  if (job.recording) {  // the last one failed
    if (job.record_not_before > now) return look_at(job, job.record_not_before);
    job.batch = next_batch_++;
    actions_.push_back(Record{job.id, job.batch, job.recording});
    return;
  }
  if (job.results.empty() && job.marks.empty()) return;
  const bool drained = job.all_claimed && job.ready.empty() && job.launched.empty() && job.open.empty();
  const bool due = job.results.size() >= options_.record_results || drained || !job.marking.empty() ||
                   now >= job.recorded_at + options_.record_interval;
  if (!due) return look_at(job, job.recorded_at + options_.record_interval);
  auto request = std::make_shared<RecordRequest>();
  request->agent = options_.agent;
  request->incarnation = options_.incarnation;
  request->running = static_cast<std::uint32_t>(job.launched.size());
  std::map<std::uint32_t, ChunkUpdate> updates;
  const auto update_of = [&](std::uint32_t task) -> ChunkUpdate* {
    const std::uint32_t index = chunk_of(job, task);
    const auto owned = job.chunks.find(index);
    if (owned == job.chunks.end()) return nullptr;
    ChunkUpdate& update = updates[index];
    update.chunk = index;
    update.epoch = owned->second.epoch;
    return &update;
  };
  std::size_t taken = 0, bytes = 0;
  for (; taken < job.results.size() && taken < kRecordAtMost && bytes < kRecordBytes; taken++) {
    TaskResult& result = job.results[taken];
    bytes += result.output.size() + result.error_output.size() + 64;
    if (ChunkUpdate* update = update_of(result.task))
      update->results.push_back(std::move(result));
    else
      unrecorded_--;
  }
  job.results.erase(job.results.begin(), job.results.begin() + static_cast<std::ptrdiff_t>(taken));
  for (const auto& mark : job.marks)
    if (job.marking.count(mark.task) || job.launched.count(mark.task))
      if (ChunkUpdate* update = update_of(mark.task)) update->running.push_back(mark);
  job.marks.clear();
  for (auto& [index, update] : updates) request->chunks.push_back(std::move(update));
  if (request->chunks.empty()) return;
  job.recording = std::move(request);
  job.batch = next_batch_++;
  job.recorded_at = now;
  actions_.push_back(Record{job.id, job.batch, job.recording});
}

void Scheduler::dispatch(Time now) {
  // Short tasks are handed over a little ahead of time, so that a slot never waits for this thread; measured in work,
  // not in tasks: a long task must not sit behind another while a slot elsewhere is free.
  const double mean = std::max(mean_run_ns_, 1000.0);
  const auto ahead = static_cast<std::uint32_t>(
      std::min<double>(options_.most_ahead, options_.slots * static_cast<double>(options_.ahead.count()) / mean));
  while (!turn_.empty() && unrecorded_ < options_.most_unrecorded) {
    const auto turn = turn_.begin();
    ActiveJob& job = *turn->second;
    const std::uint32_t cpus = std::max<std::uint32_t>(1, std::min(job.spec->cpus, options_.slots));
    // A task that needs several cpus waits at the head of the line: smaller ones behind it must not starve it.
    if (used_cpus_ + cpus > options_.slots + (cpus == 1 ? ahead : 0)) return;
    const std::uint32_t task = job.ready.front();
    job.ready.pop_front();
    turn_.erase(turn);
    if (!job.ready.empty()) enter_turn(job);
    touch(job);
    if (job.spec->cpus > options_.slots) {
      end_without_run(
          job, task, TaskState::failed,
          "needs " + std::to_string(job.spec->cpus) + " cpus; this agent has " + std::to_string(options_.slots));
      task_ended(job, task, TaskState::failed);
      continue;
    }
    const auto attempt = job.attempts.find(task);
    const RunId run{next_run_++};
    Run& added = runs_[static_cast<std::uint64_t>(run)];
    added = {job.id, task, (attempt == job.attempts.end() ? 0 : attempt->second) + 1, cpus, false};
    used_cpus_ += cpus;
    job.launched.insert(task);
    const auto& items = job.chunks[chunk_of(job, task)].items;
    const std::uint32_t offset = task % job.spec->chunk_size;
    actions_.push_back(Launch{run, job.spec, task, added.attempt, offset < items.size() ? items[offset] : Item{}});
    if (!job.spec->at_most_once) unmarked_runs_.push_back({run, now + options_.mark_after});
  }
}

std::vector<Scheduler::Action> Scheduler::take_actions(Time now) {
  while (!timers_.empty() && timers_.begin()->first <= now) {
    if (ActiveJob* job = find(timers_.begin()->second)) touch(*job);
    timers_.erase(timers_.begin());
  }
  dispatch(now);
  Time mark_at = Time::max();
  while (!unmarked_runs_.empty()) {
    const Unmarked& oldest = unmarked_runs_.front();
    const auto at = runs_.find(static_cast<std::uint64_t>(oldest.run));
    if (at != runs_.end() && oldest.due > now) {
      mark_at = oldest.due;
      break;
    }
    ActiveJob* job = at == runs_.end() ? nullptr : find(at->second.job);
    if (job != nullptr) {
      job->marks.push_back({at->second.task, at->second.attempt});
      touch(*job);
    }
    unmarked_runs_.pop_front();
  }
  for (const auto& id : at_most_once_)
    if (ActiveJob* job = find(id)) touch(*job);
  const auto touched = std::exchange(touched_, {});
  for (ActiveJob* job : touched) {
    job->touched = false;
    if (job->finished) {
      jobs_.erase(std::string(job->id));
      continue;
    }
    want_claim(*job, now);
    if (job->spec == nullptr) continue;
    want_marks(*job);
    want_record(*job, now);
    if (job->unmarked.empty()) at_most_once_.erase(job->id);
  }
  wake_at_ = timers_.empty() ? mark_at : std::min(mark_at, timers_.begin()->first);
  return std::exchange(actions_, {});
}

}  // namespace matrix

#include "matrix/core/procedures.h"

#include <algorithm>

#include "matrix/core/records.h"
#include "novoht/base/mutant.h"

namespace matrix {
namespace {

using base::Bytes;
using base::Code;
using base::fail;
using base::Result;
using zht::Transaction;

// One procedure may take 10,000 steps; a chunk costs at most four.
constexpr std::uint32_t kMostChunksLookedAt = 2000;
constexpr std::size_t kReplyBytes = std::size_t{4} << 20;  // of items in one claim, about

std::string job_of(Bytes key) {
  const Bytes tag = zht::hash_tag(key);
  return std::string(tag.starts_with("t:") ? tag.substr(2) : tag);
}

std::uint64_t now_us(const Transaction& tables) {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(tables.now().time_since_epoch()).count());
}

Result<Job> read_job(Transaction& tables, const std::string& id) {
  const auto found = tables.lookup(keys::job(id));
  if (!found) return fail(Code::not_found, "no job ", id);
  return decode_job(found->value);
}

Result<JobState> read_state(Transaction& tables, const std::string& id) {
  const auto found = tables.lookup(keys::state(id));
  if (!found) return fail(Code::not_found, "no job ", id);
  return decode_job_state(found->value);
}

Result<Chunk> read_chunk(Transaction& tables, const Job& job, std::uint32_t index) {
  const auto found = tables.lookup(keys::chunk(job.id, index));
  // A chunk record comes into being with its first claim.
  if (!found) return Chunk{0, {}, 0, std::string(job.tasks_in(index), '\0'), {}};
  TRY_LET(chunk, decode_chunk(found->value));
  if (chunk.states.size() != job.tasks_in(index))
    return fail(Code::corrupt, "job ", job.id, " chunk ", index, ": ", chunk.states.size(), " tasks, expected ",
                job.tasks_in(index));
  return chunk;
}

void count(JobState& state, TaskState end, std::uint32_t exit_code) {
  switch (end) {
    case TaskState::done:
      state.done++;
      break;
    case TaskState::timed_out:
      state.timed_out++;
      break;
    case TaskState::cancelled:
      state.cancelled++;
      break;
    case TaskState::lost:
      state.lost++;
      break;
    case TaskState::skipped:
      state.skipped++;
      break;
    default:
      state.failed++;
      break;
  }
  state.exit_code = std::max(state.exit_code, exit_code);
}

// What stands for the exit code of a task that has none of its own.
// A skipped one must not hide the exit code of the failure that was the reason.
std::uint32_t exit_code_without_run(TaskState state) {
  return state == TaskState::cancelled ? 130 : state == TaskState::skipped ? 1 : 125;
}

Result<void> write_state(Transaction& tables, const std::string& id, JobState& state) {
  if (!is_end(state.phase) && state.ended() == state.total) {
    state.phase = state.done == state.total                                   ? Phase::done
                  : state.cancel_asked && state.cancelled + state.skipped > 0 ? Phase::cancelled
                                                                              : Phase::failed;
    state.ended_us = now_us(tables);
    state.running = 0;
    TRY(tables.insert(keys::end(id), encode(state)));
  }
  return tables.insert(keys::state(id), encode(state));
}

void set_attempt(Chunk& chunk, std::uint32_t offset, std::uint32_t attempt) {
  if (chunk.attempts.size() < chunk.states.size()) chunk.attempts.resize(chunk.states.size(), '\0');
  chunk.attempts[offset] = static_cast<char>(std::min<std::uint32_t>(attempt, 255));
}

Result<std::string> claim(Transaction& tables, Bytes key, Bytes arguments) {
  TRY_LET(request, decode_claim_request(arguments));
  const std::string id = job_of(key);
  TRY_LET(job, read_job(tables, id));
  TRY_LET(state, read_state(tables, id));
  const std::uint32_t count_of_chunks = job.chunk_count();
  ClaimReply reply;
  reply.next_chunk = std::min(request.from_chunk, count_of_chunks);
  const bool only_look = is_end(state.phase) || (request.with_job && !job.after.empty());
  const std::uint32_t last = std::min(count_of_chunks, request.from_chunk + kMostChunksLookedAt);
  bool changed = false;
  std::size_t bytes = 0;
  for (std::uint32_t index = reply.next_chunk;
       !only_look && index < last && reply.chunks.size() < request.max_chunks && bytes < kReplyBytes; index++) {
    reply.next_chunk = index + 1;
    TRY_LET(chunk, read_chunk(tables, job, index));
    const bool ended =
        std::all_of(chunk.states.begin(), chunk.states.end(), [](char s) { return is_end(static_cast<TaskState>(s)); });
    // Of a graph the ended chunks are shown too: whether a task may run depends on how its parents ended.
    if (ended && job.graph) reply.chunks.push_back({index, chunk, {}});
    if (ended) continue;
    if (chunk.epoch > 0 && chunk.agent != request.agent) continue;
    if (chunk.epoch > 0 && chunk.incarnation > request.incarnation)
      return fail(Code::conflict, "agent ", request.agent, " incarnation ", request.incarnation, ": chunk ", index,
                  " of job ", id, " belongs to incarnation ", chunk.incarnation);
    if (chunk.epoch == 0 || chunk.incarnation < request.incarnation) {
      // What ran under the dead incarnation runs again, or for at-most-once is given up.
      std::vector<TaskResult> lost;
      for (std::uint32_t offset = 0; offset < chunk.states.size(); offset++) {
        if (chunk.state_of(offset) != TaskState::running) continue;
        chunk.states[offset] = static_cast<char>(job.at_most_once ? TaskState::lost : TaskState::fresh);
        if (!job.at_most_once) continue;
        TaskResult result;
        result.task = index * job.chunk_size + offset;
        result.state = TaskState::lost;
        result.exit_code = exit_code_without_run(TaskState::lost);
        result.attempt = chunk.attempt_of(offset);
        result.ended_us = now_us(tables);
        result.error = "its agent ended while it ran, and it may run at most once";
        count(state, TaskState::lost, result.exit_code);
        lost.push_back(std::move(result));
      }
      if (!lost.empty()) TRY(tables.append(keys::results(id, index), encode(lost)));
      chunk.epoch++;
      chunk.agent = request.agent;
      chunk.incarnation = request.incarnation;
      TRY(tables.insert(keys::chunk(id, index), encode(chunk)));
      changed = true;
    }
    std::vector<Item> items;
    if (job.has_items) {
      const auto found = tables.lookup(keys::items(id, index));
      if (!found) return fail(Code::corrupt, "job ", id, ": the items of chunk ", index, " are missing");
      bytes += found->value.size();
      TRY_LET(decoded, decode_items(found->value));
      if (decoded.size() != job.tasks_in(index))
        return fail(Code::corrupt, "job ", id, " chunk ", index, ": ", decoded.size(), " items, expected ",
                    job.tasks_in(index));
      items = std::move(decoded);
    }
    reply.chunks.push_back({index, std::move(chunk), std::move(items)});
  }
  if (changed) {
    if (state.phase == Phase::waiting) state.phase = Phase::running;
    if (state.started_us == 0) state.started_us = now_us(tables);
    state.agent = request.agent;
    TRY(write_state(tables, id, state));
  }
  if (request.with_job) reply.job = std::move(job);
  reply.state = std::move(state);
  return encode(reply);
}

Result<std::string> record(Transaction& tables, Bytes key, Bytes arguments) {
  TRY_LET(request, decode_record_request(arguments));
  const std::string id = job_of(key);
  TRY_LET(job, read_job(tables, id));
  TRY_LET(state, read_state(tables, id));
  RecordReply reply;
  for (ChunkUpdate& update : request.chunks) {
    if (update.chunk >= job.chunk_count())
      return fail(Code::invalid, "job ", id, " has ", job.chunk_count(), " chunks; there is no chunk ", update.chunk);
    TRY_LET(chunk, read_chunk(tables, job, update.chunk));
    if (chunk.epoch != update.epoch || chunk.agent != request.agent || chunk.incarnation != request.incarnation) {
      reply.fenced.push_back(update.chunk);
      continue;
    }
    const std::uint32_t first = update.chunk * job.chunk_size;
    const auto size = static_cast<std::uint32_t>(chunk.states.size());
    bool changed = false;
    std::vector<TaskResult> accepted;
    for (TaskResult& result : update.results) {
      const std::uint32_t offset = result.task - first;
      if (result.task < first || offset >= size || !is_end(result.state))
        return fail(Code::invalid, "job ", id, " chunk ", update.chunk, ": task ", result.task, " state ",
                    static_cast<int>(result.state), " cannot be recorded in it");
      if (is_end(chunk.state_of(offset))) continue;
      chunk.states[offset] = static_cast<char>(result.state);
      count(state, result.state, result.exit_code);
      accepted.push_back(std::move(result));
    }
    for (const RunningMark& mark : update.running) {
      const std::uint32_t offset = mark.task - first;
      if (mark.task < first || offset >= size)
        return fail(Code::invalid, "job ", id, " chunk ", update.chunk, ": there is no task ", mark.task, " in it");
      if (is_end(chunk.state_of(offset))) continue;
      chunk.states[offset] = static_cast<char>(TaskState::running);
      set_attempt(chunk, offset, mark.attempt);
      changed = true;
    }
    if (base::kMutant == base::Mutant::record_twice && !accepted.empty())
      TRY(tables.append(keys::results(id, update.chunk), encode(accepted)));
    if (!accepted.empty()) {
      TRY(tables.append(keys::results(id, update.chunk), encode(accepted)));
      reply.accepted += static_cast<std::uint32_t>(accepted.size());
      changed = true;
    }
    if (changed) TRY(tables.insert(keys::chunk(id, update.chunk), encode(chunk)));
  }
  if (!is_end(state.phase)) {
    state.running = request.running;
    TRY(write_state(tables, id, state));
  }
  reply.state = std::move(state);
  return encode(reply);
}

Result<std::string> cancel(Transaction& tables, Bytes key, Bytes arguments) {
  TRY_LET(request, decode_cancel_request(arguments));
  const std::string id = job_of(key);
  TRY_LET(job, read_job(tables, id));
  TRY_LET(state, read_state(tables, id));
  CancelReply reply;
  const std::uint32_t count_of_chunks = job.chunk_count();
  reply.next_chunk = std::min(request.from_chunk, count_of_chunks);
  if (!is_end(state.phase)) {
    state.cancel_asked = true;
    if (state.reason.empty()) state.reason = request.reason;
    const TaskState end = request.skipped ? TaskState::skipped : TaskState::cancelled;
    const std::uint32_t last = std::min(count_of_chunks, request.from_chunk + kMostChunksLookedAt);
    for (std::uint32_t index = reply.next_chunk; index < last; index++) {
      reply.next_chunk = index + 1;
      TRY_LET(chunk, read_chunk(tables, job, index));
      if (chunk.epoch > 0) continue;
      bool changed = false;
      for (char& task : chunk.states) {
        if (is_end(static_cast<TaskState>(task))) continue;
        task = static_cast<char>(end);
        count(state, end, exit_code_without_run(end));
        changed = true;
      }
      if (changed) TRY(tables.insert(keys::chunk(id, index), encode(chunk)));
    }
    TRY(write_state(tables, id, state));
  } else {
    reply.next_chunk = count_of_chunks;
  }
  reply.state = std::move(state);
  return encode(reply);
}

}  // namespace

void add_procedures(zht::Procedures& procedures) {
  procedures.add("matrix.claim", claim);
  procedures.add("matrix.record", record);
  procedures.add("matrix.cancel", cancel);
}

}  // namespace matrix

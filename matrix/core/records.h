// What MATRIX keeps in the store, as plain values, and their bytes. matrix.proto is the encoding, README.md says under
// which key each lies and who writes it.
//
// All records of a job share the hash tag {t:<job>}, so one request can read a chunk, record results and count them.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "novoht/base/bytes.h"
#include "novoht/base/result.h"

namespace matrix {

inline constexpr std::uint32_t kChunkSize = 1024;      // tasks in a chunk record
inline constexpr std::uint32_t kMaxTasks = 4'000'000;  // of a job: its chunks must fit one procedure's steps

// A job's records and outputs go so long after its end, unless it says otherwise.
inline constexpr std::chrono::milliseconds kDefaultKeep{std::chrono::hours(24 * 7)};

// How a task stands. Everything from `done` on is an end state: the first one recorded is final.
enum class TaskState : std::uint8_t {
  fresh = 0,
  running = 1,
  done = 2,    // exit code 0
  failed = 3,  // another exit code, a signal, or it could not be started
  timed_out = 4,
  cancelled = 5,
  lost = 6,     // at-most-once: it may have run, its agent died
  skipped = 7,  // something it waited for did not succeed
};
inline bool is_end(TaskState state) { return state >= TaskState::done; }
std::string_view name_of(TaskState state);

enum class Phase : std::uint8_t { waiting = 0, running = 1, done = 2, failed = 3, cancelled = 4 };
inline bool is_end(Phase phase) { return phase >= Phase::done; }
std::string_view name_of(Phase phase);

struct Job {
  std::string id;
  std::string name;
  std::uint32_t task_count = 1;
  std::uint32_t chunk_size = kChunkSize;
  std::vector<std::string> argv;
  std::vector<std::string> environment;  // NAME=value
  std::string cwd;
  std::string stdin_path;  // empty: /dev/null
  std::uint32_t umask = 022;
  std::uint64_t open_files = 0;  // soft limit of descriptors, as the submitter has it; 0: the agent's own
  std::uint64_t keep_ms = 0;     // after its end; 0: kDefaultKeep
  std::uint32_t cpus = 1;
  std::uint32_t retries = 0;
  std::uint64_t timeout_ms = 0;  // of one attempt; 0: none
  std::int32_t priority = 0;     // greater runs first
  bool at_most_once = false;
  bool stream = false;             // output goes to its file while the task runs
  std::vector<std::string> after;  // ids of jobs that must end first
  bool after_any = false;          // ... however they end
  bool has_items = false;
  std::uint64_t submitted_us = 0;
  std::int64_t first_index = 0;  // array: {} of task i is first_index + i * index_step
  std::int64_t index_step = 0;   // 0: not an array
  bool shell = false;            // argv[0] is a line for /bin/sh
  bool graph = false;            // items carry parents

  std::uint32_t chunk_count() const { return (task_count + chunk_size - 1) / chunk_size; }
  std::uint32_t tasks_in(std::uint32_t chunk) const {
    return chunk + 1 < chunk_count() ? chunk_size : task_count - chunk * chunk_size;
  }
};

struct Item {
  std::string text;
  std::vector<std::string> argv;       // instead of the job's, when not empty
  std::vector<std::uint32_t> parents;  // tasks of the same job
  std::string name;
};

struct Chunk {
  std::uint64_t epoch = 0;  // 0: nobody claimed it yet
  std::string agent;
  std::uint64_t incarnation = 0;
  std::string states;    // one TaskState a task
  std::string attempts;  // the last attempt known to have begun, one byte a task; empty: all 0
  TaskState state_of(std::uint32_t offset) const { return static_cast<TaskState>(states[offset]); }
  std::uint32_t attempt_of(std::uint32_t offset) const {
    return offset < attempts.size() ? static_cast<unsigned char>(attempts[offset]) : 0;
  }
};

struct TaskResult {
  std::uint32_t task = 0;
  TaskState state = TaskState::done;
  std::uint32_t exit_code = 0;  // as a shell says it: 128 + signal; 124 timed out; 126, 127 could not be started
  std::uint32_t signal = 0;
  std::uint32_t attempt = 1;
  std::uint64_t started_us = 0, ended_us = 0;  // 0: never started
  std::uint64_t cpu_us = 0;
  std::uint64_t max_rss_bytes = 0;
  std::string output, error_output;  // whole, unless there is a file
  std::uint64_t output_size = 0, error_output_size = 0;
  std::string output_file, error_output_file;
  std::string error;
};

struct JobState {
  Phase phase = Phase::waiting;
  std::uint32_t total = 0, done = 0, failed = 0, timed_out = 0, cancelled = 0, lost = 0, skipped = 0;
  std::uint32_t running = 0;    // as of the last record
  std::uint32_t exit_code = 0;  // the worst of the tasks that ended
  bool cancel_asked = false;
  std::string reason;
  std::uint64_t submitted_us = 0, started_us = 0, ended_us = 0;
  std::string agent;
  std::uint32_t ended() const { return done + failed + timed_out + cancelled + lost + skipped; }
};

struct ClaimRequest {
  std::string agent;
  std::uint64_t incarnation = 0;
  std::uint32_t from_chunk = 0;
  std::uint32_t max_chunks = 1;
  bool with_job = false;  // the reply holds the job; and when that one waits for other jobs, nothing is claimed
};
struct ClaimedChunk {
  std::uint32_t index = 0;
  Chunk chunk;
  std::vector<Item> items;  // empty when the job has none
};
struct ClaimReply {
  std::optional<Job> job;
  JobState state;
  std::vector<ClaimedChunk> chunks;
  std::uint32_t next_chunk = 0;  // the chunk count: every chunk was looked at
};

struct RunningMark {
  std::uint32_t task = 0;
  std::uint32_t attempt = 1;
};
struct ChunkUpdate {
  std::uint32_t chunk = 0;
  std::uint64_t epoch = 0;
  std::vector<TaskResult> results;
  std::vector<RunningMark> running;
};
struct RecordRequest {
  std::string agent;
  std::uint64_t incarnation = 0;
  std::vector<ChunkUpdate> chunks;
  std::uint32_t running = 0;
};
struct RecordReply {
  JobState state;
  std::vector<std::uint32_t> fenced;
  std::uint32_t accepted = 0;
};

struct CancelRequest {
  std::string reason;
  bool skipped = false;
  std::uint32_t from_chunk = 0;
};
struct CancelReply {
  JobState state;
  std::uint32_t next_chunk = 0;
};

struct Session {
  std::uint64_t incarnation = 0;
  std::uint32_t pid = 0;
  std::uint32_t slots = 0;
  std::uint64_t started_us = 0;
  std::string host;
};

std::string encode(const Job& job);
std::string encode(const std::vector<Item>& items);
std::string encode(const Chunk& chunk);
std::string encode(const std::vector<TaskResult>& results);
std::string encode(const JobState& state);
std::string encode(const ClaimRequest& request);
std::string encode(const ClaimReply& reply);
std::string encode(const RecordRequest& request);
std::string encode(const RecordReply& reply);
std::string encode(const CancelRequest& request);
std::string encode(const CancelReply& reply);
std::string encode(const Session& session);

// corrupt, naming the record, when the bytes are not one. A results value is the concatenation of what was appended.
base::Result<Job> decode_job(base::Bytes bytes);
base::Result<std::vector<Item>> decode_items(base::Bytes bytes);
base::Result<Chunk> decode_chunk(base::Bytes bytes);
base::Result<std::vector<TaskResult>> decode_results(base::Bytes bytes);
base::Result<JobState> decode_job_state(base::Bytes bytes);
base::Result<ClaimRequest> decode_claim_request(base::Bytes bytes);
base::Result<ClaimReply> decode_claim_reply(base::Bytes bytes);
base::Result<RecordRequest> decode_record_request(base::Bytes bytes);
base::Result<RecordReply> decode_record_reply(base::Bytes bytes);
base::Result<CancelRequest> decode_cancel_request(base::Bytes bytes);
base::Result<CancelReply> decode_cancel_reply(base::Bytes bytes);
base::Result<Session> decode_session(base::Bytes bytes);

// Keys. `job` is an id, `agent` a name; both are letters, digits, '-', '_' and '.'.
namespace keys {
std::string job(const std::string& job);    // {t:J}job   the job, written once
std::string state(const std::string& job);  // {t:J}st    counts; changes with every record
std::string end(const std::string& job);    // {t:J}end   there when the job has ended: its JobState
std::string items(const std::string& job, std::uint32_t chunk);      // {t:J}i/C   written once
std::string chunk(const std::string& job, std::uint32_t chunk);      // {t:J}c/C   owner, epoch, one byte a task
std::string results(const std::string& job, std::uint32_t chunk);    // {t:J}r/C   appended to by every record
std::string inbox(const std::string& agent);                         // {a:A}in    lines "run J", "cancel J"
std::string live(const std::string& agent, const std::string& job);  // {a:A}j/J   until the job has ended
std::string live_prefix(const std::string& agent);                   // {a:A}j/
std::string history(const std::string& agent);                       // {a:A}jobs  lines "<id> <name>", a fragment each
std::string session(const std::string& agent);                       // {a:A}s
std::string name(const std::string& name);                           // {n:NAME}   the id of the latest job of that name
inline constexpr const char* kNextId = "{m:next}";                   // the last job id given out, a decimal
}  // namespace keys

}  // namespace matrix

#include "matrix/core/records.h"

#include <charconv>

#include "matrix/core/matrix.pb.h"

namespace matrix {
namespace {

using base::Code;
using base::fail;
using base::Result;

template <typename Message>
std::string bytes_of(const Message& message) {
  std::string bytes;
  message.SerializeToString(&bytes);
  return bytes;
}

template <typename Message>
Result<Message> parse(base::Bytes bytes, const char* what) {
  Message message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())))
    return fail(Code::corrupt, "not a ", what, " record: ", bytes.size(), " bytes");
  return message;
}

std::vector<std::string> strings(const google::protobuf::RepeatedPtrField<std::string>& from) {
  return {from.begin(), from.end()};
}

void put(proto::Job& to, const Job& from) {
  to.set_id(from.id);
  to.set_name(from.name);
  to.set_task_count(from.task_count);
  to.set_chunk_size(from.chunk_size);
  for (const auto& word : from.argv) to.add_argv(word);
  for (const auto& line : from.environment) to.add_environment(line);
  to.set_cwd(from.cwd);
  to.set_stdin_path(from.stdin_path);
  to.set_umask(from.umask);
  to.set_open_files(from.open_files);
  to.set_keep_ms(from.keep_ms);
  to.set_cpus(from.cpus);
  to.set_retries(from.retries);
  to.set_timeout_ms(from.timeout_ms);
  to.set_priority(from.priority);
  to.set_at_most_once(from.at_most_once);
  to.set_stream(from.stream);
  for (const auto& id : from.after) to.add_after(id);
  to.set_after_any(from.after_any);
  to.set_has_items(from.has_items);
  to.set_submitted_us(from.submitted_us);
  to.set_first_index(from.first_index);
  to.set_index_step(from.index_step);
  to.set_shell(from.shell);
  to.set_graph(from.graph);
}

Result<Job> get(const proto::Job& from) {
  Job job;
  job.id = from.id();
  job.name = from.name();
  job.task_count = from.task_count();
  job.chunk_size = from.chunk_size();
  if (job.chunk_size == 0 || job.chunk_size > 1 << 20 || job.task_count == 0 || job.task_count > kMaxTasks)
    return fail(Code::corrupt, "job ", job.id, ": ", job.task_count, " tasks in chunks of ", job.chunk_size);
  job.argv = strings(from.argv());
  job.environment = strings(from.environment());
  job.cwd = from.cwd();
  job.stdin_path = from.stdin_path();
  job.umask = from.umask();
  job.open_files = from.open_files();
  job.keep_ms = from.keep_ms();
  job.cpus = from.cpus();
  job.retries = from.retries();
  job.timeout_ms = from.timeout_ms();
  job.priority = from.priority();
  job.at_most_once = from.at_most_once();
  job.stream = from.stream();
  job.after = strings(from.after());
  job.after_any = from.after_any();
  job.has_items = from.has_items();
  job.submitted_us = from.submitted_us();
  job.first_index = from.first_index();
  job.index_step = from.index_step();
  job.shell = from.shell();
  job.graph = from.graph();
  return job;
}

void put(proto::Items& to, const std::vector<Item>& from) {
  for (const Item& item : from) {
    auto& added = *to.add_items();
    added.set_text(item.text);
    for (const auto& word : item.argv) added.add_argv(word);
    for (const auto parent : item.parents) added.add_parents(parent);
    added.set_name(item.name);
  }
}

std::vector<Item> get(const proto::Items& from) {
  std::vector<Item> items;
  items.reserve(static_cast<std::size_t>(from.items_size()));
  for (const auto& item : from.items())
    items.push_back({item.text(), strings(item.argv()), {item.parents().begin(), item.parents().end()}, item.name()});
  return items;
}

void put(proto::Chunk& to, const Chunk& from) {
  to.set_epoch(from.epoch);
  to.set_agent(from.agent);
  to.set_incarnation(from.incarnation);
  to.set_states(from.states);
  to.set_attempts(from.attempts);
}

Chunk get(const proto::Chunk& from) {
  return {from.epoch(), from.agent(), from.incarnation(), from.states(), from.attempts()};
}

void put(proto::Result& to, const TaskResult& from) {
  to.set_task(from.task);
  to.set_state(static_cast<std::uint32_t>(from.state));
  to.set_exit_code(from.exit_code);
  to.set_signal(from.signal);
  to.set_attempt(from.attempt);
  to.set_started_us(from.started_us);
  to.set_ended_us(from.ended_us);
  to.set_cpu_us(from.cpu_us);
  to.set_max_rss_bytes(from.max_rss_bytes);
  to.set_output(from.output);
  to.set_error_output(from.error_output);
  to.set_output_size(from.output_size);
  to.set_error_output_size(from.error_output_size);
  to.set_output_file(from.output_file);
  to.set_error_output_file(from.error_output_file);
  to.set_error(from.error);
}

TaskResult get(const proto::Result& from) {
  TaskResult result;
  result.task = from.task();
  result.state = static_cast<TaskState>(from.state());
  result.exit_code = from.exit_code();
  result.signal = from.signal();
  result.attempt = from.attempt();
  result.started_us = from.started_us();
  result.ended_us = from.ended_us();
  result.cpu_us = from.cpu_us();
  result.max_rss_bytes = from.max_rss_bytes();
  result.output = from.output();
  result.error_output = from.error_output();
  result.output_size = from.output_size();
  result.error_output_size = from.error_output_size();
  result.output_file = from.output_file();
  result.error_output_file = from.error_output_file();
  result.error = from.error();
  return result;
}

void put(proto::JobState& to, const JobState& from) {
  to.set_phase(static_cast<std::uint32_t>(from.phase));
  to.set_total(from.total);
  to.set_done(from.done);
  to.set_failed(from.failed);
  to.set_timed_out(from.timed_out);
  to.set_cancelled(from.cancelled);
  to.set_lost(from.lost);
  to.set_skipped(from.skipped);
  to.set_running(from.running);
  to.set_exit_code(from.exit_code);
  to.set_cancel_asked(from.cancel_asked);
  to.set_reason(from.reason);
  to.set_submitted_us(from.submitted_us);
  to.set_started_us(from.started_us);
  to.set_ended_us(from.ended_us);
  to.set_agent(from.agent);
}

JobState get(const proto::JobState& from) {
  JobState state;
  state.phase = static_cast<Phase>(from.phase());
  state.total = from.total();
  state.done = from.done();
  state.failed = from.failed();
  state.timed_out = from.timed_out();
  state.cancelled = from.cancelled();
  state.lost = from.lost();
  state.skipped = from.skipped();
  state.running = from.running();
  state.exit_code = from.exit_code();
  state.cancel_asked = from.cancel_asked();
  state.reason = from.reason();
  state.submitted_us = from.submitted_us();
  state.started_us = from.started_us();
  state.ended_us = from.ended_us();
  state.agent = from.agent();
  return state;
}

std::string numbered(const std::string& job, const char* kind, std::uint32_t number) {
  char digits[16];
  const auto end = std::to_chars(digits, digits + sizeof digits, number).ptr;
  std::string key = "{t:";
  key += job;
  key += kind;
  key.append(digits, end);
  return key;
}

}  // namespace

std::string_view name_of(TaskState state) {
  switch (state) {
    case TaskState::fresh:
      return "waiting";
    case TaskState::running:
      return "running";
    case TaskState::done:
      return "done";
    case TaskState::failed:
      return "failed";
    case TaskState::timed_out:
      return "timed_out";
    case TaskState::cancelled:
      return "cancelled";
    case TaskState::lost:
      return "lost";
    case TaskState::skipped:
      return "skipped";
  }
  return "unknown";
}

std::string_view name_of(Phase phase) {
  switch (phase) {
    case Phase::waiting:
      return "waiting";
    case Phase::running:
      return "running";
    case Phase::done:
      return "done";
    case Phase::failed:
      return "failed";
    case Phase::cancelled:
      return "cancelled";
  }
  return "unknown";
}

std::string encode(const Job& job) {
  proto::Job message;
  put(message, job);
  return bytes_of(message);
}
std::string encode(const std::vector<Item>& items) {
  proto::Items message;
  put(message, items);
  return bytes_of(message);
}
std::string encode(const Chunk& chunk) {
  proto::Chunk message;
  put(message, chunk);
  return bytes_of(message);
}
std::string encode(const std::vector<TaskResult>& results) {
  proto::Results message;
  for (const auto& result : results) put(*message.add_results(), result);
  return bytes_of(message);
}
std::string encode(const JobState& state) {
  proto::JobState message;
  put(message, state);
  return bytes_of(message);
}
std::string encode(const ClaimRequest& request) {
  proto::ClaimRequest message;
  message.set_agent(request.agent);
  message.set_incarnation(request.incarnation);
  message.set_from_chunk(request.from_chunk);
  message.set_max_chunks(request.max_chunks);
  message.set_with_job(request.with_job);
  return bytes_of(message);
}
std::string encode(const ClaimReply& reply) {
  proto::ClaimReply message;
  if (reply.job) put(*message.mutable_job(), *reply.job);
  put(*message.mutable_state(), reply.state);
  for (const auto& claimed : reply.chunks) {
    auto& added = *message.add_chunks();
    added.set_index(claimed.index);
    put(*added.mutable_chunk(), claimed.chunk);
    if (!claimed.items.empty()) put(*added.mutable_items(), claimed.items);
  }
  message.set_next_chunk(reply.next_chunk);
  return bytes_of(message);
}
std::string encode(const RecordRequest& request) {
  proto::RecordRequest message;
  message.set_agent(request.agent);
  message.set_incarnation(request.incarnation);
  message.set_running(request.running);
  for (const auto& update : request.chunks) {
    auto& added = *message.add_chunks();
    added.set_chunk(update.chunk);
    added.set_epoch(update.epoch);
    for (const auto& result : update.results) put(*added.add_results(), result);
    for (const auto& mark : update.running) {
      auto& running = *added.add_running();
      running.set_task(mark.task);
      running.set_attempt(mark.attempt);
    }
  }
  return bytes_of(message);
}
std::string encode(const RecordReply& reply) {
  proto::RecordReply message;
  put(*message.mutable_state(), reply.state);
  for (const auto chunk : reply.fenced) message.add_fenced(chunk);
  message.set_accepted(reply.accepted);
  return bytes_of(message);
}
std::string encode(const CancelRequest& request) {
  proto::CancelRequest message;
  message.set_reason(request.reason);
  message.set_skipped(request.skipped);
  message.set_from_chunk(request.from_chunk);
  return bytes_of(message);
}
std::string encode(const CancelReply& reply) {
  proto::CancelReply message;
  put(*message.mutable_state(), reply.state);
  message.set_next_chunk(reply.next_chunk);
  return bytes_of(message);
}
std::string encode(const Session& session) {
  proto::Session message;
  message.set_incarnation(session.incarnation);
  message.set_pid(session.pid);
  message.set_slots(session.slots);
  message.set_started_us(session.started_us);
  message.set_host(session.host);
  return bytes_of(message);
}

Result<Job> decode_job(base::Bytes bytes) {
  TRY_LET(message, parse<proto::Job>(bytes, "job"));
  return get(message);
}
Result<std::vector<Item>> decode_items(base::Bytes bytes) {
  TRY_LET(message, parse<proto::Items>(bytes, "task items"));
  return get(message);
}
Result<Chunk> decode_chunk(base::Bytes bytes) {
  TRY_LET(message, parse<proto::Chunk>(bytes, "task chunk"));
  return get(message);
}
Result<std::vector<TaskResult>> decode_results(base::Bytes bytes) {
  TRY_LET(message, parse<proto::Results>(bytes, "task results"));
  std::vector<TaskResult> results;
  results.reserve(static_cast<std::size_t>(message.results_size()));
  for (const auto& result : message.results()) results.push_back(get(result));
  return results;
}
Result<JobState> decode_job_state(base::Bytes bytes) {
  TRY_LET(message, parse<proto::JobState>(bytes, "job state"));
  return get(message);
}
Result<ClaimRequest> decode_claim_request(base::Bytes bytes) {
  TRY_LET(message, parse<proto::ClaimRequest>(bytes, "claim request"));
  return ClaimRequest{message.agent(), message.incarnation(), message.from_chunk(), message.max_chunks(),
                      message.with_job()};
}
Result<ClaimReply> decode_claim_reply(base::Bytes bytes) {
  TRY_LET(message, parse<proto::ClaimReply>(bytes, "claim reply"));
  ClaimReply reply;
  if (message.has_job()) {
    TRY_LET(job, get(message.job()));
    reply.job = std::move(job);
  }
  reply.state = get(message.state());
  for (const auto& claimed : message.chunks())
    reply.chunks.push_back({claimed.index(), get(claimed.chunk()), get(claimed.items())});
  reply.next_chunk = message.next_chunk();
  return reply;
}
Result<RecordRequest> decode_record_request(base::Bytes bytes) {
  TRY_LET(message, parse<proto::RecordRequest>(bytes, "record request"));
  RecordRequest request{message.agent(), message.incarnation(), {}, message.running()};
  for (const auto& update : message.chunks()) {
    ChunkUpdate added{update.chunk(), update.epoch(), {}, {}};
    added.results.reserve(static_cast<std::size_t>(update.results_size()));
    for (const auto& result : update.results()) added.results.push_back(get(result));
    for (const auto& mark : update.running()) added.running.push_back({mark.task(), mark.attempt()});
    request.chunks.push_back(std::move(added));
  }
  return request;
}
Result<RecordReply> decode_record_reply(base::Bytes bytes) {
  TRY_LET(message, parse<proto::RecordReply>(bytes, "record reply"));
  return RecordReply{get(message.state()), {message.fenced().begin(), message.fenced().end()}, message.accepted()};
}
Result<CancelRequest> decode_cancel_request(base::Bytes bytes) {
  TRY_LET(message, parse<proto::CancelRequest>(bytes, "cancel request"));
  return CancelRequest{message.reason(), message.skipped(), message.from_chunk()};
}
Result<CancelReply> decode_cancel_reply(base::Bytes bytes) {
  TRY_LET(message, parse<proto::CancelReply>(bytes, "cancel reply"));
  return CancelReply{get(message.state()), message.next_chunk()};
}
Result<Session> decode_session(base::Bytes bytes) {
  TRY_LET(message, parse<proto::Session>(bytes, "session"));
  return Session{message.incarnation(), message.pid(), message.slots(), message.started_us(), message.host()};
}

namespace keys {
std::string job(const std::string& job) { return "{t:" + job + "}job"; }
std::string state(const std::string& job) { return "{t:" + job + "}st"; }
std::string end(const std::string& job) { return "{t:" + job + "}end"; }
std::string items(const std::string& job, std::uint32_t chunk) { return numbered(job, "}i/", chunk); }
std::string chunk(const std::string& job, std::uint32_t chunk) { return numbered(job, "}c/", chunk); }
std::string results(const std::string& job, std::uint32_t chunk) { return numbered(job, "}r/", chunk); }
std::string inbox(const std::string& agent) { return "{a:" + agent + "}in"; }
std::string live(const std::string& agent, const std::string& job) { return live_prefix(agent) + job; }
std::string live_prefix(const std::string& agent) { return "{a:" + agent + "}j/"; }
std::string history(const std::string& agent) { return "{a:" + agent + "}jobs"; }
std::string session(const std::string& agent) { return "{a:" + agent + "}s"; }
std::string name(const std::string& name) { return "{n:" + name + "}"; }
}  // namespace keys

}  // namespace matrix

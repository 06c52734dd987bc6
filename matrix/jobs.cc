#include "matrix/jobs.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>

#include "novoht/base/random.h"

namespace matrix {
namespace {

using base::Code;
using base::fail;
using base::Result;
using zht::Condition;
using zht::Millis;
using zht::Operation;

// A callback is registered anew after this long; the store need not remember waiters whose client is gone for longer.
constexpr Millis kWatch{30'000};
constexpr std::size_t kBatchBytes = std::size_t{2} << 20;

std::uint64_t wall_us() {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::system_clock::now().time_since_epoch())
          .count());
}

bool is_number(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
}

}  // namespace

Result<void> check_name(const std::string& name) {
  const bool fine =
      !name.empty() && name.size() <= 100 && !is_number(name) &&
      name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == std::string::npos;
  if (fine) return {};
  return fail(Code::invalid, "the name ", base::escape(name),
              " cannot be used; give 1 to 100 letters, digits, '-', '_' or '.', not only digits");
}

Result<std::string> agent_name(const std::string& data_folder) {
  const std::string path = data_folder + "/matrix/agent";
  for (int attempt = 0; attempt < 3; attempt++) {
    std::ifstream in(path);
    std::string name;
    if (in >> name) return name;
    mkdir(data_folder.c_str(), 0700);
    mkdir((data_folder + "/matrix").c_str(), 0700);
    const std::uint64_t random = base::entropy();
    name = "a" + base::to_hex(base::Bytes(reinterpret_cast<const char*>(&random), 6));
    // Written aside and linked: of two programs that come first at the same time one wins, both then read the same.
    const std::string aside = path + "." + std::to_string(getpid());
    std::ofstream out(aside, std::ios::trunc);
    out << name << "\n";
    out.close();
    if (!out) return base::fail_errno(errno == 0 ? EIO : errno, aside);
    const bool linked = link(aside.c_str(), path.c_str()) == 0;
    const int error = errno;
    unlink(aside.c_str());
    if (!linked && error != EEXIST) return base::fail_errno(error, path);
  }
  return fail(Code::io, path, ": cannot be read");
}

Jobs::Jobs(zht::Client& client, std::string agent) : client_(client), agent_(std::move(agent)) {}

Result<std::string> Jobs::submit(Job job, const std::vector<Item>& items) {
  if (!items.empty()) {
    job.task_count = static_cast<std::uint32_t>(std::min<std::size_t>(items.size(), kMaxTasks + 1));
    job.has_items = true;
  }
  if (job.task_count == 0 || job.task_count > kMaxTasks)
    return fail(Code::invalid, "a job has 1 to ", kMaxTasks, " tasks, not ",
                items.empty() ? job.task_count : items.size());
  if (job.argv.empty() && !job.graph) return fail(Code::invalid, "no command was given");
  if (!job.name.empty()) TRY(check_name(job.name));
  job.submitted_us = wall_us();
  TRY_LET(id, client_.update(keys::kNextId, "add", "1"));
  job.id = id;

  JobState state;
  state.total = job.task_count;
  state.submitted_us = job.submitted_us;
  state.agent = agent_;
  std::vector<Operation> operations;
  std::size_t bytes = 0;
  if (job.has_items) {
    const std::uint32_t chunks = job.chunk_count();
    for (std::uint32_t chunk = 0; chunk < chunks; chunk++) {
      const auto first = items.begin() + static_cast<std::ptrdiff_t>(std::size_t{chunk} * job.chunk_size);
      std::string encoded = encode(std::vector<Item>(first, first + job.tasks_in(chunk)));
      if (encoded.size() > zht::kMaxValueSize)
        return fail(Code::invalid, "items ", chunk * job.chunk_size, " to ",
                    chunk * job.chunk_size + job.tasks_in(chunk) - 1, " are ", encoded.size(), " bytes together; ",
                    zht::kMaxValueSize, " are possible: give names of files instead");
      bytes += encoded.size();
      operations.push_back(Operation::insert(keys::items(id, chunk), std::move(encoded)));
      if (bytes >= kBatchBytes || operations.size() >= zht::kMaxBatchSize / 2) {
        TRY(client_.batch(std::move(operations)));
        operations.clear();
        bytes = 0;
      }
    }
  }
  operations.push_back(Operation::insert(keys::job(id), encode(job)));
  operations.push_back(Operation::insert(keys::state(id), encode(state)));
  TRY(client_.batch(std::move(operations)));
  if (!job.name.empty()) TRY(client_.insert(keys::name(job.name), id));
  // From here on it runs: the live list is what a restarted agent reads, the inbox wakes the present one.
  TRY(client_.batch({Operation::insert(keys::live(agent_, id), ""),
                     Operation::append(keys::history(agent_), id + " " + job.name + "\n"),
                     Operation::append(keys::inbox(agent_), "run " + id + "\n")}));
  return id;
}

Result<std::string> Jobs::resolve(const std::string& id_or_name) {
  if (is_number(id_or_name)) {
    auto found = client_.lookup(keys::state(id_or_name), zht::Range::nothing());
    if (!found && found.code() == Code::not_found)
      return fail(Code::not_found, "there is no job ", id_or_name, "; 'matrix status' lists them");
    if (!found) return std::move(found).error();
    return id_or_name;
  }
  TRY(check_name(id_or_name));
  auto found = client_.lookup(keys::name(id_or_name));
  if (!found && found.code() == Code::not_found)
    return fail(Code::not_found, "there is no job named ", id_or_name, "; 'matrix status' lists them");
  if (!found) return std::move(found).error();
  return found->value;
}

Result<Job> Jobs::job(const std::string& id) {
  TRY_LET(found, client_.lookup(keys::job(id)));
  return decode_job(found.value);
}

Result<JobState> Jobs::state(const std::string& id) {
  TRY_LET(found, client_.lookup(keys::state(id)));
  return decode_job_state(found.value);
}

Result<JobState> Jobs::wait(const std::string& id, Millis patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (true) {
    Millis left = kWatch;
    if (patience.count() > 0)
      left = std::min(left, std::chrono::ceil<Millis>(deadline - std::chrono::steady_clock::now()));
    if (left.count() <= 0) return fail(Code::timeout, "job ", id, " has not ended within ", patience.count(), " ms");
    auto found = client_.callback(keys::end(id), Condition::present(), left);
    if (found) return decode_job_state(found->value);
    if (found.code() != Code::timeout) return std::move(found).error();
  }
}

Result<Jobs::Seen> Jobs::wait_for_change(const std::string& id, zht::Version seen, Millis patience) {
  TRY_LET(found, client_.callback(keys::state(id), Condition::after_version(seen), patience));
  TRY_LET(state, decode_job_state(found.value));
  return Seen{std::move(state), found.version};
}

Result<JobState> Jobs::cancel(const std::string& id, const std::string& reason) {
  CancelRequest request{reason, false, 0};
  JobState state;
  TRY_LET(spec, job(id));
  do {
    TRY_LET(reply, client_.update(keys::job(id), "matrix.cancel", encode(request)));
    TRY_LET(decoded, decode_cancel_reply(reply));
    request.from_chunk = decoded.next_chunk;
    state = std::move(decoded.state);
  } while (request.from_chunk < spec.chunk_count());
  const std::string agent = state.agent.empty() ? agent_ : state.agent;
  TRY(client_.append(keys::inbox(agent), "cancel " + id + "\n"));
  return state;
}

Result<std::vector<TaskResult>> Jobs::results(const std::string& id, std::uint32_t chunk, std::uint64_t* offset) {
  const std::uint64_t from = offset == nullptr ? 0 : *offset;
  auto found = client_.lookup(keys::results(id, chunk),
                              from == 0 ? zht::Range::whole() : zht::Range::bytes(from, zht::kMaxValueSize));
  if (!found && found.code() == Code::not_found) return std::vector<TaskResult>{};
  if (!found) return std::move(found).error();
  if (offset != nullptr) *offset = from + found->value.size();
  return decode_results(found->value);
}

Result<Chunk> Jobs::chunk(const Job& job, std::uint32_t chunk) {
  auto found = client_.lookup(keys::chunk(job.id, chunk));
  if (found) return decode_chunk(found->value);
  if (found.code() != Code::not_found) return std::move(found).error();
  return Chunk{0, {}, 0, std::string(job.tasks_in(chunk), '\0'), {}};
}

Result<std::vector<Item>> Jobs::items(const std::string& id, std::uint32_t chunk) {
  TRY_LET(found, client_.lookup(keys::items(id, chunk)));
  return decode_items(found.value);
}

Result<void> Jobs::remove(const std::string& id) {
  TRY_LET(spec, job(id));
  TRY_LET(now, state(id));
  if (!is_end(now.phase)) return fail(Code::conflict, "job ", id, " has not ended; 'matrix cancel ", id, "' ends it");
  // Chunks first: until the last batch the job can be found and removed again.
  std::vector<Operation> operations;
  for (std::uint32_t chunk = 0; chunk < spec.chunk_count(); chunk++) {
    for (auto key : {keys::items(id, chunk), keys::chunk(id, chunk), keys::results(id, chunk)})
      operations.push_back(Operation::remove(std::move(key), true));
    if (operations.size() < 1000) continue;
    TRY(client_.batch(std::move(operations)));
    operations.clear();
  }
  for (auto key : {keys::end(id), keys::state(id), keys::job(id)})
    operations.push_back(Operation::remove(std::move(key), true));
  TRY(client_.batch(std::move(operations)));
  if (spec.name.empty()) return {};
  auto forgotten =
      client_.cswap_remove(keys::name(spec.name), Condition::equals(id));  // unless a later job has the name
  if (!forgotten && forgotten.code() != Code::not_found) return std::move(forgotten).error();
  return {};
}

Result<std::vector<Jobs::Entry>> Jobs::list(std::size_t most) {
  std::vector<Entry> entries;
  auto found = client_.lookup(keys::history(agent_), zht::Range::tail(most));
  if (!found && found.code() == Code::not_found) return entries;
  if (!found) return std::move(found).error();
  const std::string& text = found->value;
  std::size_t at = 0;
  for (std::size_t end; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
    const std::size_t space = std::min(text.find(' ', at), end);
    entries.push_back({text.substr(at, space - at), space < end ? text.substr(space + 1, end - space - 1) : ""});
  }
  // The first fragment may hold many lines: what an agent kept when it shortened the history.
  if (entries.size() > most) entries.erase(entries.begin(), entries.end() - static_cast<std::ptrdiff_t>(most));
  return entries;
}

Result<std::optional<Session>> Jobs::session() {
  auto found = client_.lookup(keys::session(agent_));
  if (!found && found.code() == Code::not_found) return std::optional<Session>();
  if (!found) return std::move(found).error();
  TRY_LET(session, decode_session(found->value));
  return std::optional<Session>(std::move(session));
}

}  // namespace matrix

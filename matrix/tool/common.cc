#include "matrix/tool/common.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <mutex>

#include "matrix/core/expand.h"
#include "zht/support/output.h"
#include "zht/support/paths.h"
#include "zht/support/service.h"

namespace matrix {
namespace {

using base::Code;
using base::fail;
using base::Result;
using std::chrono::milliseconds;
using zht::Condition;
using zht::Operation;
using zht::Outcome;

constexpr milliseconds kWatch{30'000};
constexpr milliseconds kFollowAfter{20};
constexpr milliseconds kAgentPatience{15'000};

// Outcomes of callbacks, put where a poll() sees them.
struct Bell {
  std::mutex mutex;
  std::optional<Outcome> end, change;  // guarded by mutex
  int event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  ~Bell() { close(event); }
  void ring(std::optional<Outcome> Bell::*which, Outcome outcome) {
    const std::lock_guard lock(mutex);
    this->*which = std::move(outcome);
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = write(event, &one, sizeof one);
  }
};

}  // namespace

Result<Reach> open_session(const Context& context, bool with_agent) {
  Reach reach;
  TRY_LET(data, support::data_folder(context.flags->data));
  reach.data = data;
  zht::ClientOptions options = with_agent ? context.flags->client_options() : context.flags->looking_options();
  options.data_folder = data;
  TRY_LET(client, zht::connect(options));
  reach.client = std::move(client);
  TRY_LET(agent, agent_name(data));
  reach.agent = agent;
  reach.jobs = std::make_unique<Jobs>(*reach.client, agent);
  if (!with_agent) return reach;
  reach.agent_ran = support::service_pid(data, "matrix").has_value();
  if (reach.agent_ran) return reach;
  if (!options.cluster.empty())
    return fail(Code::unavailable, "no agent runs on this machine; start one: matrix agent --cluster ...");
  // The node starts it within a moment and again whenever it ends.
  TRY(support::register_service(data, {"matrix", {support::self_path(), "agent", "--data", data}}));
  return reach;
}

void expect_agent(const Context& context, const Reach& reach) {
  if (reach.agent_ran) return;
  const bool serves =
      support::wait_until(kAgentPatience, [&] { return support::service_pid(reach.data, "matrix").has_value(); });
  if (!serves && !context.flags->quiet)
    support::complain("matrix",
                      "the job waits: the node has not started the agent; its log is " + reach.data + "/node.log");
}

Result<Ending> wait_for_end(const Context& context, Reach& reach, const std::string& id, const Waiting& waiting) {
  using Instant = std::chrono::steady_clock::time_point;
  const auto& [pace, tick, follow, cancels, patience] = waiting;
  auto bell = std::make_shared<Bell>();
  zht::Client& client = *reach.client;
  const auto watch_end = [&] {
    client.submit(
        Operation::callback(keys::end(id), Condition::present()),
        [bell](Outcome outcome) { bell->ring(&Bell::end, std::move(outcome)); }, kWatch);
  };
  const auto watch_change = [&](zht::Version seen) {
    client.submit(
        Operation::callback(keys::state(id), Condition::after_version(seen)),
        [bell](Outcome outcome) { bell->ring(&Bell::change, std::move(outcome)); }, kWatch);
  };
  Ending ending;
  Result<void> shown;  // the first error of what shows things
  bool more = false;
  const auto show = [&](Result<void> result) -> Result<void> {
    if (result || !shown) return {};
    shown = std::move(result);
    TRY(reach.jobs->cancel(id, shown.error().message));
    return {};
  };
  const auto read_on = [&]() -> Result<void> {
    if (!shown) return {};
    auto result = follow.read_on();
    more = result && *result;
    return show(result ? Result<void>{} : Result<void>(result.error()));
  };
  watch_end();
  if (pace.count() > 0) watch_change(0);
  zht::Version seen = 0;
  bool change_due = false;
  auto next_change = std::chrono::steady_clock::now();
  int interrupts = 0, follow_fd = -1;
  const Instant follow_at = std::chrono::steady_clock::now() + kFollowAfter;
  const Instant give_up_at = patience.count() > 0 ? std::chrono::steady_clock::now() + patience : Instant::max();
  while (true) {
    Instant until = give_up_at;
    if (change_due) until = std::min(until, next_change);
    if (follow.open && follow_fd < 0) until = std::min(until, follow_at);
    int sleep = more ? 0 : -1;
    if (!more && until != Instant::max()) {
      const auto left = std::chrono::ceil<milliseconds>(until - std::chrono::steady_clock::now()).count();
      sleep = static_cast<int>(std::clamp<std::int64_t>(left, 0, 3'600'000));
    }
    pollfd wanted[3] = {{bell->event, POLLIN, 0}, {context.signals->fd(), POLLIN, 0}, {follow_fd, POLLIN, 0}};
    poll(wanted, 3, sleep);  // a negative descriptor is passed over
    if (follow.open && follow_fd < 0 && std::chrono::steady_clock::now() >= follow_at) {
      follow_fd = follow.open();
      TRY(read_on());
    }
    if (wanted[1].revents != 0 && context.signals->wait(milliseconds(0))) {
      ending.interrupted = true;
      if (!cancels) return ending;
      if (++interrupts > 1) return fail(Code::timeout, "interrupted twice; job ", id, " may still be ending");
      auto cancelled = reach.jobs->cancel(id, "interrupted");
      if (!cancelled) return std::move(cancelled).error();
    }
    if (follow_fd >= 0 && (more || wanted[2].revents != 0)) TRY(read_on());
    std::optional<Outcome> end, change;
    {
      const std::lock_guard lock(bell->mutex);
      std::uint64_t ignored;
      [[maybe_unused]] const auto got = read(bell->event, &ignored, sizeof ignored);
      end.swap(bell->end);
      change.swap(bell->change);
    }
    if (end) {
      if (end->ok()) {
        TRY_LET(state, decode_job_state(end->value));
        ending.state = std::move(state);
        if (!shown && !ending.interrupted) return std::move(shown).error();
        return ending;
      }
      if (end->code != Code::timeout && end->code != Code::unavailable) return end->error();
      watch_end();
    }
    if (std::chrono::steady_clock::now() >= give_up_at)
      return fail(Code::timeout, "job ", id, " has not ended within ", patience.count(), " ms");
    if (change) {
      if (change->ok()) {
        seen = change->version;
        if (const auto state = decode_job_state(change->value); state && tick && shown) TRY(show(tick(*state)));
        next_change = std::chrono::steady_clock::now() + pace;
      }
      change_due = true;
    }
    if (change_due && std::chrono::steady_clock::now() >= next_change) {
      change_due = false;
      watch_change(seen);
    }
  }
}

Result<void> write_all(int fd, std::string_view data) {
  while (!data.empty()) {
    const ssize_t size = write(fd, data.data(), data.size());
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return base::fail_errno(errno, fd == STDOUT_FILENO ? "standard output" : "standard error");
    data.remove_prefix(static_cast<std::size_t>(size));
  }
  return {};
}

Result<void> write_output(int fd, const TaskResult& result, bool error_output, std::uint64_t skip) {
  const std::string& text = error_output ? result.error_output : result.output;
  const std::string& path = error_output ? result.error_output_file : result.output_file;
  if (path.empty()) {
    if (skip < text.size()) return write_all(fd, std::string_view(text).substr(skip));
    return {};
  }
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0)
    return fail(Code::io, "the output of task ", result.task, " (",
                error_output ? result.error_output_size : result.output_size, " bytes) is not readable here: ", path,
                ": ", std::strerror(errno));
  std::vector<char> buffer(64 << 10);
  Result<void> written;
  off_t at = static_cast<off_t>(skip);
  for (ssize_t size; written && (size = pread(file, buffer.data(), buffer.size(), at)) > 0; at += size)
    written = write_all(fd, {buffer.data(), static_cast<std::size_t>(size)});
  close(file);
  return written;
}

std::string read_output(const TaskResult& result, bool error_output, std::size_t most) {
  const std::string& path = error_output ? result.error_output_file : result.output_file;
  if (path.empty()) return error_output ? result.error_output : result.output;
  std::ifstream file(path, std::ios::binary);
  std::string text(most, '\0');
  file.read(text.data(), static_cast<std::streamsize>(most));
  text.resize(static_cast<std::size_t>(file.gcount()));
  return text;
}

std::string time_of(std::uint64_t us) {
  if (us == 0) return {};
  return support::iso_time(base::WallTime{std::chrono::microseconds(us)});
}

std::string item_of(const Job& job, std::uint32_t task, const std::vector<Item>& items) {
  if (job.has_items) {
    const std::uint32_t offset = task % job.chunk_size;
    if (offset >= items.size()) return {};
    return job.graph ? items[offset].name : items[offset].text;
  }
  if (job.index_step != 0) return std::to_string(job.first_index + std::int64_t{task} * job.index_step);
  return {};
}

nlohmann::json json_of(const std::string& id, const Job* job, const JobState& state) {
  nlohmann::json json{{"job", id}, {"state", std::string(name_of(state.phase))}};
  if (job != nullptr) {
    json["name"] = job->name;
    json["command"] = job->argv;
    json["cwd"] = job->cwd;
    json["after"] = job->after;
  }
  json["tasks"] = {{"total", state.total},         {"done", state.done},           {"failed", state.failed},
                   {"timed_out", state.timed_out}, {"cancelled", state.cancelled}, {"lost", state.lost},
                   {"skipped", state.skipped},     {"running", state.running}};
  json["exit_code"] = state.exit_code;
  json["reason"] = state.reason;
  json["agent"] = state.agent;
  json["submitted"] = time_of(state.submitted_us);
  json["started"] = time_of(state.started_us);
  json["ended"] = time_of(state.ended_us);
  return json;
}

nlohmann::json json_of(const TaskResult& result, const std::string& item, bool with_output) {
  nlohmann::json json{{"task", result.task},
                      {"state", std::string(name_of(result.state))},
                      {"exit_code", result.exit_code},
                      {"attempt", result.attempt},
                      {"started", time_of(result.started_us)},
                      {"ended", time_of(result.ended_us)},
                      {"cpu_us", result.cpu_us},
                      {"max_rss_bytes", result.max_rss_bytes},
                      {"stdout_bytes", result.output_size},
                      {"stderr_bytes", result.error_output_size}};
  if (result.signal != 0) json["signal"] = result.signal;
  if (!item.empty()) json["item"] = item;
  if (!result.error.empty()) json["error"] = result.error;
  if (!result.output_file.empty()) json["stdout_file"] = result.output_file;
  if (!result.error_output_file.empty()) json["stderr_file"] = result.error_output_file;
  if (!with_output) return json;
  for (const bool error_output : {false, true}) {
    const std::string text = read_output(result, error_output);
    const std::string field = error_output ? "stderr" : "stdout";
    if (support::is_utf8(text))
      json[field] = text;
    else
      json[field + "_b64"] = support::to_base64(text);
  }
  return json;
}

}  // namespace matrix

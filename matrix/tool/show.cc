// status, wait, logs, cancel, explain.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <map>

#include "matrix/tool/common.h"
#include "zht/support/output.h"

namespace matrix {
namespace {

using base::Code;
using base::fail;
using base::Result;
using std::chrono::milliseconds;

std::string elapsed(const JobState& state) {
  if (state.started_us == 0) return "-";
  const std::uint64_t until = state.ended_us != 0
                                  ? state.ended_us
                                  : static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                                                   std::chrono::system_clock::now().time_since_epoch())
                                                                   .count());
  return support::human_duration(std::chrono::microseconds(until > state.started_us ? until - state.started_us : 0));
}

std::string command_of(const Job& job) {
  std::string text;
  for (const auto& word : job.argv) text += (text.empty() ? "" : " ") + word;
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  return text;
}

Result<int> list(const Context& context, std::size_t most) {
  TRY_LET(reach, open_session(context, false));
  TRY_LET(entries, reach.jobs->list(most));
  nlohmann::json rows = nlohmann::json::array();
  support::Table table({"JOB", "NAME", "STATE", "TASKS", "DONE", "NOT OK", "TIME", "COMMAND"});
  for (const auto& entry : entries) {
    auto state = reach.jobs->state(entry.id);
    auto job = reach.jobs->job(entry.id);
    if (!state || !job) {
      if ((!state ? state.code() : job.code()) == Code::not_found) continue;
      return !state ? std::move(state).error() : std::move(job).error();
    }
    if (context.flags->json)
      rows.push_back(json_of(entry.id, &*job, *state));
    else
      table.row({entry.id, entry.name.empty() ? "-" : entry.name, std::string(name_of(state->phase)),
                 std::to_string(state->total), std::to_string(state->done),
                 std::to_string(state->ended() - state->done), elapsed(*state), command_of(*job)});
  }
  if (context.flags->json)
    support::print_json(rows);
  else if (entries.empty())
    std::cout << "no jobs yet; 'matrix run -- CMD' makes one\n";
  else
    table.print();
  return 0;
}

// One line a task: its recorded result, or how far it is.
struct TaskLine {
  std::uint32_t task = 0;
  TaskState state = TaskState::fresh;
  std::optional<TaskResult> result;
  std::string item;
};

Result<std::vector<TaskLine>> task_lines(Jobs& jobs, const Job& job, std::uint32_t chunk) {
  TRY_LET(record, jobs.chunk(job, chunk));
  TRY_LET(results, jobs.results(job.id, chunk));
  std::vector<Item> items;
  if (job.has_items) {
    TRY_LET(found, jobs.items(job.id, chunk));
    items = std::move(found);
  }
  std::vector<TaskLine> lines;
  for (std::uint32_t offset = 0; offset < record.states.size(); offset++) {
    const std::uint32_t task = chunk * job.chunk_size + offset;
    lines.push_back({task, record.state_of(offset), {}, item_of(job, task, items)});
  }
  for (auto& result : results) {
    const std::uint32_t offset = result.task - chunk * job.chunk_size;
    if (offset >= lines.size()) continue;
    lines[offset].state = result.state;  // may be later than the chunk record that was read before it
    lines[offset].result = std::move(result);
  }
  return lines;
}

Result<int> status(const Context& context, const std::string& which, bool all_tasks) {
  TRY_LET(reach, open_session(context, false));
  TRY_LET(id, reach.jobs->resolve(which));
  TRY_LET(state, reach.jobs->state(id));
  TRY_LET(job, reach.jobs->job(id));
  constexpr std::size_t kShown = 20;
  std::vector<TaskLine> shown;
  std::size_t left_out = 0;
  const bool trouble = state.ended() > state.done;
  for (std::uint32_t chunk = 0; (all_tasks || trouble) && chunk < job.chunk_count(); chunk++) {
    TRY_LET(lines, task_lines(*reach.jobs, job, chunk));
    for (auto& line : lines) {
      const bool bad = is_end(line.state) && line.state != TaskState::done;
      if (!all_tasks && !bad) continue;
      if (all_tasks || shown.size() < kShown)
        shown.push_back(std::move(line));
      else
        left_out++;
    }
  }
  if (context.flags->json) {
    nlohmann::json value = json_of(id, &job, state);
    if (all_tasks || trouble) {
      auto& rows = value["results"] = nlohmann::json::array();
      for (const auto& line : shown) {
        if (line.result)
          rows.push_back(json_of(*line.result, line.item, false));
        else
          rows.push_back({{"task", line.task}, {"state", std::string(name_of(line.state))}});
      }
    }
    support::print_json(value);
    return 0;
  }
  std::cout << "job        " << id << (job.name.empty() ? "" : " (" + job.name + ")") << "\n"
            << "state      " << name_of(state.phase) << (state.reason.empty() ? "" : ", " + state.reason) << "\n"
            << "command    " << command_of(job) << "\n"
            << "folder     " << job.cwd << "\n"
            << "tasks      " << state.total << ": " << state.done << " done";
  for (const auto& [count, name] : {std::pair{state.failed, "failed"},
                                    {state.timed_out, "timed out"},
                                    {state.cancelled, "cancelled"},
                                    {state.lost, "lost"},
                                    {state.skipped, "skipped"},
                                    {state.running, "running"}})
    if (count != 0) std::cout << ", " << count << " " << name;
  std::cout << "\nexit code  " << state.exit_code << "\ntime       " << elapsed(state) << "\nsubmitted  "
            << time_of(state.submitted_us) << "\n";
  if (!job.after.empty()) {
    std::cout << "after      ";
    for (std::size_t i = 0; i < job.after.size(); i++) std::cout << (i ? ", " : "") << job.after[i];
    std::cout << "\n";
  }
  if (shown.empty()) return 0;
  std::cout << "\n";
  support::Table table({"TASK", "STATE", "EXIT", "ATTEMPT", "TIME", "ITEM", "WHY"});
  for (const auto& line : shown) {
    const auto& result = line.result;
    table.row({std::to_string(line.task), std::string(name_of(line.state)),
               result ? std::to_string(result->exit_code) : "-", result ? std::to_string(result->attempt) : "-",
               result && result->started_us != 0
                   ? support::human_duration(std::chrono::microseconds(result->ended_us - result->started_us))
                   : "-",
               base::escape(line.item, 40), result ? result->error : ""});
  }
  table.print();
  if (left_out != 0) std::cout << "... and " << left_out << " more; --tasks shows all\n";
  return 0;
}

Result<int> wait(const Context& context, const std::vector<std::string>& which, milliseconds patience) {
  TRY_LET(reach, open_session(context, false));
  std::uint32_t worst = 0;
  nlohmann::json rows = nlohmann::json::array();
  for (const auto& text : which) {
    TRY_LET(id, reach.jobs->resolve(text));
    Waiting waiting;
    waiting.cancels = false;  // Ctrl-C ends the waiting, not the job
    waiting.patience = patience;
    TRY_LET(ending, wait_for_end(context, reach, id, waiting));
    if (ending.interrupted) return 130;
    const JobState* const state = &ending.state;
    worst = std::max(worst, state->exit_code);
    if (context.flags->json)
      rows.push_back(json_of(id, nullptr, *state));
    else if (!context.flags->quiet && state->phase != Phase::done)
      support::complain("matrix", "job " + id + " " + std::string(name_of(state->phase)) + ": " +
                                      std::to_string(state->total - state->done) + " of " +
                                      std::to_string(state->total) + " tasks did not succeed, worst exit code " +
                                      std::to_string(state->exit_code) +
                                      (state->reason.empty() ? "" : " (" + state->reason + ")"));
  }
  if (context.flags->json) support::print_json(rows);
  return static_cast<int>(worst);
}

Result<int> logs(const Context& context, const std::string& which, std::int64_t task, bool error_output) {
  TRY_LET(reach, open_session(context, false));
  TRY_LET(id, reach.jobs->resolve(which));
  TRY_LET(job, reach.jobs->job(id));
  if (task >= static_cast<std::int64_t>(job.task_count))
    return fail(Code::not_found, "job ", id, " has tasks 0 to ", job.task_count - 1, ", no task ", task);
  const std::uint32_t first = task < 0 ? 0 : static_cast<std::uint32_t>(task) / job.chunk_size;
  const std::uint32_t last = task < 0 ? job.chunk_count() - 1 : first;
  bool found = false;
  nlohmann::json rows = nlohmann::json::array();
  for (std::uint32_t chunk = first; chunk <= last; chunk++) {
    TRY_LET(results, reach.jobs->results(id, chunk));
    std::sort(results.begin(), results.end(), [](const auto& a, const auto& b) { return a.task < b.task; });
    for (const auto& result : results) {
      if (task >= 0 && result.task != static_cast<std::uint32_t>(task)) continue;
      found = true;
      if (context.flags->json)
        rows.push_back(json_of(result, "", true));
      else
        TRY(write_output(STDOUT_FILENO, result, error_output));
    }
  }
  if (!found && task >= 0) {
    // It runs, perhaps with output in its file already, or has not begun.
    TaskResult partial;
    partial.task = static_cast<std::uint32_t>(task);
    const std::string stem = reach.data + "/matrix/" + id + "/" + std::to_string(task);
    (error_output ? partial.error_output_file : partial.output_file) = stem + (error_output ? ".err" : ".out");
    const std::string& path = error_output ? partial.error_output_file : partial.output_file;
    if (access(path.c_str(), R_OK) == 0)
      TRY(write_output(STDOUT_FILENO, partial, error_output));
    else if (!context.flags->quiet)
      support::complain("matrix", "task " + std::to_string(task) + " of job " + id + " has no result yet");
  }
  if (context.flags->json) support::print_json(rows);
  return 0;
}

Result<int> cancel(const Context& context, const std::vector<std::string>& which) {
  TRY_LET(reach, open_session(context, false));
  nlohmann::json rows = nlohmann::json::array();
  for (const auto& text : which) {
    TRY_LET(id, reach.jobs->resolve(text));
    TRY_LET(state, reach.jobs->cancel(id, "cancelled by the user"));
    if (context.flags->json) rows.push_back(json_of(id, nullptr, state));
  }
  if (context.flags->json) support::print_json(rows);
  return 0;
}

Result<int> remove(const Context& context, const std::vector<std::string>& which) {
  TRY_LET(reach, open_session(context, false));
  for (const auto& text : which) {
    TRY_LET(id, reach.jobs->resolve(text));
    TRY(reach.jobs->remove(id));
    std::error_code ignored;
    std::filesystem::remove_all(reach.data + "/matrix/" + id, ignored);
  }
  if (context.flags->json) support::print_json({{"removed", which.size()}});
  return 0;
}

// Why a job, or one of its tasks, is where it is.
Result<int> explain(const Context& context, const std::string& which, std::int64_t task) {
  TRY_LET(reach, open_session(context, false));
  TRY_LET(id, reach.jobs->resolve(which));
  TRY_LET(job, reach.jobs->job(id));
  TRY_LET(state, reach.jobs->state(id));
  TRY_LET(session, reach.jobs->session());
  std::vector<std::string> lines;
  lines.push_back("job " + id + " was submitted " + time_of(state.submitted_us) + " to agent " + state.agent);
  if (!session)
    lines.push_back("no agent has ever served this data folder");
  else
    lines.push_back("agent " + reach.agent + ": incarnation " + std::to_string(session->incarnation) + ", " +
                    std::to_string(session->slots) + " slots, pid " + std::to_string(session->pid) + " on " +
                    session->host + ", since " + time_of(session->started_us));
  for (const auto& parent : job.after) {
    auto of_parent = reach.jobs->state(parent);
    lines.push_back("it waits for job " + parent + ", which is " +
                    (of_parent ? std::string(name_of(of_parent->phase)) : of_parent.error().message));
  }
  if (job.cpus > 1) lines.push_back("each task takes " + std::to_string(job.cpus) + " cpus");
  lines.push_back("it is " + std::string(name_of(state.phase)) + ": " + std::to_string(state.ended()) + " of " +
                  std::to_string(state.total) + " tasks have ended, " + std::to_string(state.running) + " run" +
                  (state.reason.empty() ? "" : "; " + state.reason));
  if (task >= 0) {
    if (task >= static_cast<std::int64_t>(job.task_count))
      return fail(Code::not_found, "job ", id, " has tasks 0 to ", job.task_count - 1, ", no task ", task);
    const auto number = static_cast<std::uint32_t>(task);
    TRY_LET(tasks, task_lines(*reach.jobs, job, number / job.chunk_size));
    TRY_LET(chunk, reach.jobs->chunk(job, number / job.chunk_size));
    const TaskLine& line = tasks[number % job.chunk_size];
    lines.push_back("task " + std::to_string(number) + " is in chunk " + std::to_string(number / job.chunk_size) +
                    (chunk.epoch == 0 ? ", which no agent has claimed yet"
                                      : ", claimed in epoch " + std::to_string(chunk.epoch) + " by agent " +
                                            chunk.agent + " incarnation " + std::to_string(chunk.incarnation)));
    lines.push_back("task " + std::to_string(number) + " is " + std::string(name_of(line.state)) +
                    (line.result ? ", attempt " + std::to_string(line.result->attempt) + ", exit code " +
                                       std::to_string(line.result->exit_code) +
                                       (line.result->error.empty() ? "" : ": " + line.result->error)
                                 : ""));
  }
  if (context.flags->json) {
    support::print_json({{"job", id}, {"state", std::string(name_of(state.phase))}, {"story", lines}});
  } else {
    for (const auto& line : lines) std::cout << line << "\n";
  }
  return 0;
}

}  // namespace

void add_show_verbs(support::Program& program, const Context& context) {
  struct Flags {
    std::vector<std::string> jobs;
    std::string job;
    std::int64_t task = -1;
    bool tasks = false, error_output = false;
    std::size_t most = 20;
    milliseconds patience{0};
  };
  {
    auto flags = std::make_shared<Flags>();
    auto& verb = program.verb("status", "Shows the latest jobs, or one in detail.",
                              {"matrix status", "matrix status build --json"});
    verb.options().add_option("JOB", flags->job, "id or name");
    verb.options().add_flag("--tasks", flags->tasks, "every task of the job, not only those that did not succeed");
    verb.options().add_option("--last", flags->most, "without JOB: how many jobs")->check(CLI::Range(1u, 100'000u));
    verb.action([flags, &context] {
      return flags->job.empty() ? list(context, flags->most) : status(context, flags->job, flags->tasks);
    });
  }
  {
    auto flags = std::make_shared<Flags>();
    auto& verb = program.verb("wait", "Waits for jobs to end; ends with the worst exit code.",
                              {"matrix wait build", "matrix wait 17 18 --timeout 1h"});
    verb.options().remove_option(verb.options().get_option("--timeout"));
    support::add_duration(verb.options(), "--timeout", flags->patience, "how long to wait; default for ever");
    verb.options().add_option("JOB", flags->jobs, "ids or names")->required();
    verb.action([flags, &context] { return wait(context, flags->jobs, flags->patience); });
  }
  {
    auto flags = std::make_shared<Flags>();
    auto& verb = program.verb("logs", "Prints what a job's tasks wrote, in the order of the tasks.",
                              {"matrix logs build", "matrix logs 17 --task 4 --stderr"});
    verb.options().add_option("JOB", flags->job, "id or name")->required();
    verb.options()
        .add_option("--task", flags->task, "only this one; the first is 0")
        ->check(CLI::Range(std::int64_t{0}, std::int64_t{kMaxTasks}));
    verb.options().add_flag("--stderr", flags->error_output, "what they wrote to standard error");
    verb.action([flags, &context] { return logs(context, flags->job, flags->task, flags->error_output); });
  }
  {
    auto flags = std::make_shared<Flags>();
    auto& verb = program.verb("cancel", "Cancels jobs: what runs is ended, what waits does not start.",
                              {"matrix cancel build", "matrix cancel 17 18"});
    verb.options().add_option("JOB", flags->jobs, "ids or names")->required();
    verb.action([flags, &context] { return cancel(context, flags->jobs); });
  }
  {
    auto flags = std::make_shared<Flags>();
    auto& verb = program.verb("remove", "Removes jobs that have ended: their records and their outputs.",
                              {"matrix remove build", "matrix remove 17 18"});
    verb.options().add_option("JOB", flags->jobs, "ids or names")->required();
    verb.action([flags, &context] { return remove(context, flags->jobs); });
  }
  {
    auto flags = std::make_shared<Flags>();
    auto& verb = program.verb("explain", "Says why a job or a task is where it is.",
                              {"matrix explain build", "matrix explain 17 --task 4"});
    verb.options().add_option("JOB", flags->job, "id or name")->required();
    verb.options()
        .add_option("--task", flags->task, "one task; the first is 0")
        ->check(CLI::Range(std::int64_t{0}, std::int64_t{kMaxTasks}));
    verb.action([flags, &context] { return explain(context, flags->job, flags->task); });
  }
}

}  // namespace matrix

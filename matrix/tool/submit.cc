// run, map, submit.
#include <fcntl.h>
#include <sys/inotify.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>

#include "matrix/core/expand.h"
#include "matrix/tool/common.h"
#include "matrix/tool/graph_file.h"
#include "matrix/tool/standard_input.h"
#include "zht/support/output.h"
#include "zht/support/paths.h"
#include "zht/support/progress.h"

extern char** environ;

namespace matrix {
namespace {

using base::Code;
using base::fail;
using base::Result;
using std::chrono::milliseconds;

struct SubmitFlags {
  std::string name, array, cwd, stdin_path;
  std::vector<std::string> after, environment;
  bool after_any = false, shell = false, at_most_once = false, clean = false;
  milliseconds keep{0};
  std::uint32_t cpus = 1, retries = 0;
  std::int32_t priority = 0;
  milliseconds timeout{0};
};

void add_flags(CLI::App& app, SubmitFlags& flags, bool array) {
  // --timeout belongs to the task here; how long to try to reach the store has its default.
  app.remove_option(app.get_option("--timeout"));
  support::add_duration(app, "--timeout", flags.timeout, "end an attempt that runs longer, such as 90s; exit code 124");
  support::add_duration(app, "--keep", flags.keep, "remove records and outputs so long after the end; default 7d");
  app.add_option("--name", flags.name, "a name to find the job by")->type_name("NAME");
  app.add_option("--after", flags.after, "start when these jobs have succeeded; if one fails, skip")
      ->type_name("JOB[,JOB]")
      ->delimiter(',')
      ->allow_extra_args(false);
  app.add_flag("--after-any", flags.after_any, "with --after: start however they end");
  if (array)
    app.add_option("--array", flags.array, "a task for each number; {} and $MATRIX_INDEX are the number")
        ->type_name("FROM-TO[:STEP]");
  app.add_option("--cpus", flags.cpus, "cpus a task takes")->check(CLI::Range(1u, 100'000u));
  app.add_option("--retries", flags.retries, "run a failed task again, so many times")->check(CLI::Range(0u, 250u));
  app.add_option("--priority", flags.priority, "greater goes first; default 0")
      ->check(CLI::Range(-1'000'000, 1'000'000));
  app.add_option("--cwd", flags.cwd, "folder to run in; default this one")->type_name("DIR");
  app.add_option("--env", flags.environment, "set a variable beyond the present ones")
      ->type_name("NAME=VALUE")
      ->allow_extra_args(false);
  app.add_flag("--clean-env", flags.clean, "only --env variables, PATH and HOME");
  app.add_option("--stdin", flags.stdin_path,
                 "file that each task reads as standard input; default none (`run`: this program's, unless a terminal)")
      ->type_name("FILE");
  app.add_flag("--shell", flags.shell, "the command is one line for /bin/sh; what replaces {} is quoted for it");
  app.add_flag("--at-most-once", flags.at_most_once,
               "never run a task again after its agent died; it is recorded as lost");
}

// What is left of the line: [::: items [::: items]...] [--] command [::: items [::: items]...].
struct Words {
  std::vector<std::string> command;
  std::vector<std::vector<std::string>> sources;
  // Takes the words from `at`, a ":::", up to `end`.
  void add_sources(const std::vector<std::string>& rest, std::size_t& at, std::size_t end) {
    for (; at < end; at++) {
      if (rest[at] == ":::") sources.emplace_back();
      else sources.back().push_back(rest[at]);
    }
  }
};

Result<Words> split_words(const std::vector<std::string>& rest, const std::string& verb, bool map) {
  Words words;
  std::size_t at = 0;
  if (at < rest.size() && rest[at].size() > 1 && rest[at][0] == '-' && rest[at] != "--")
    return fail(Code::invalid, "unknown option '", rest[at], "'; try 'matrix ", verb, " --help'");
  if (map && at < rest.size() && rest[at] == ":::") {
    const auto command = std::find(rest.begin(), rest.end(), "--");
    words.add_sources(rest, at, static_cast<std::size_t>(command - rest.begin()));
  }
  if (at < rest.size() && rest[at] == "--") at++;
  for (; at < rest.size(); at++) {
    if (map && words.sources.empty() && rest[at] == ":::") {
      words.add_sources(rest, at, rest.size());
      break;
    }
    words.command.push_back(rest[at]);
  }
  for (const char* mark : {"::::", ":::+", "::::+"}) {
    if (map && std::find(words.command.begin(), words.command.end(), mark) != words.command.end())
      return fail(Code::invalid, "'", mark, "' is not supported; give items after :::, or a file of them with -a");
  }
  if (words.command.empty())
    return fail(Code::invalid, "no command given; write it after --, as in: matrix ", verb,
                map ? " ::: a b -- echo {}" : " -- echo hello");
  return words;
}

Result<void> parse_array(const std::string& text, Job& job) {
  long long from = 0, to = 0, step = 1;
  int used = 0;
  const bool with_step = std::sscanf(text.c_str(), "%lld-%lld:%lld%n", &from, &to, &step, &used) == 3 &&
                         used == static_cast<int>(text.size());
  if (!with_step) {
    step = 1;
    if (std::sscanf(text.c_str(), "%lld-%lld%n", &from, &to, &used) != 2 || used != static_cast<int>(text.size()))
      return fail(Code::invalid, "--array '", text, "' is not FROM-TO or FROM-TO:STEP, such as 1-100 or 0-90:10");
  }
  if (step < 1 || to < from)
    return fail(Code::invalid, "--array '", text, "' is empty; FROM must not be above TO, and STEP at least 1");
  const long long count = (to - from) / step + 1;
  if (count > kMaxTasks)
    return fail(Code::invalid, "--array '", text, "' makes ", count, " tasks; ", kMaxTasks, " are possible");
  job.task_count = static_cast<std::uint32_t>(count);
  job.first_index = from;
  job.index_step = step;
  return {};
}

std::string one_line(const std::vector<std::string>& words) {
  std::string line;
  for (const auto& word : words) line += (line.empty() ? "" : " ") + word;
  return line;
}

Result<Job> job_of(const SubmitFlags& flags, std::vector<std::string> command, Reach& reach) {
  Job job;
  job.name = flags.name;
  if (!job.name.empty()) TRY(check_name(job.name));
  job.argv = std::move(command);
  if (flags.shell) {
    job.argv = {one_line(job.argv)};
    job.shell = true;
  }
  job.cpus = flags.cpus;
  job.retries = flags.retries;
  job.priority = flags.priority;
  job.timeout_ms = static_cast<std::uint64_t>(flags.timeout.count());
  job.at_most_once = flags.at_most_once;
  job.after_any = flags.after_any;
  TRY_LET(cwd, support::absolute_path(flags.cwd.empty() ? "." : flags.cwd));
  job.cwd = cwd;
  if (!flags.stdin_path.empty()) {
    TRY_LET(path, support::absolute_path(flags.stdin_path));
    if (access(path.c_str(), R_OK) != 0) return base::fail_errno(errno, "--stdin " + flags.stdin_path);
    job.stdin_path = path;
  }
  job.keep_ms = static_cast<std::uint64_t>(flags.keep.count());
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) job.open_files = files.rlim_cur;
  const mode_t mask = umask(022);
  umask(mask);
  job.umask = mask;
  std::map<std::string, std::string> environment;
  for (char** line = environ; *line != nullptr; line++) {
    const std::string text = *line;
    const auto equals = text.find('=');
    if (equals == std::string::npos) continue;
    const std::string name = text.substr(0, equals);
    if (!flags.clean || name == "PATH" || name == "HOME") environment[name] = text;
  }
  for (const auto& text : flags.environment) {
    const auto equals = text.find('=');
    if (equals == std::string::npos || equals == 0) return fail(Code::invalid, "--env '", text, "' is not NAME=VALUE");
    environment[text.substr(0, equals)] = text;
  }
  for (auto& [name, line] : environment) job.environment.push_back(std::move(line));
  for (const auto& parent : flags.after) {
    TRY_LET(id, reach.jobs->resolve(parent));
    job.after.push_back(id);
  }
  if (!flags.array.empty()) TRY(parse_array(flags.array, job));
  return job;
}

// A file of a task's output that grows while we look. One thread.
class Tail {
 public:
  Tail(std::string path, int to) : path_(std::move(path)), to_(to) {}
  ~Tail() {
    if (fd_ >= 0) close(fd_);
  }
  // A part of what is new; true: there may be more. A bounded part, for a task may write faster than we print.
  Result<bool> read_on() {
    if (fd_ < 0) fd_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd_ < 0) return false;
    struct stat info;
    if (fstat(fd_, &info) == 0 && static_cast<std::uint64_t>(info.st_size) < at_) at_ = 0;  // another attempt began
    char buffer[64 << 10];
    for (int part = 0; part < 16; part++) {
      const ssize_t size = pread(fd_, buffer, sizeof buffer, static_cast<off_t>(at_));
      if (size <= 0) return false;
      TRY(write_all(to_, {buffer, static_cast<std::size_t>(size)}));
      at_ += static_cast<std::uint64_t>(size);
    }
    return true;
  }
  std::uint64_t printed() const { return at_; }

 private:
  std::string path_;
  int to_, fd_ = -1;
  std::uint64_t at_ = 0;
};

// Why a task did not simply exit; one line on stderr.
void explain_failure(const TaskResult& result) {
  if (!result.error.empty()) support::complain("matrix", "task " + std::to_string(result.task) + ": " + result.error);
}

Result<int> run(const Context& context, const SubmitFlags& flags, const std::vector<std::string>& rest) {
  TRY_LET(words, split_words(rest, "run", false));
  TRY_LET(reach, open_session(context, true));
  TRY_LET(job, job_of(flags, words.command, reach));
  const bool json = context.flags->json;
  job.stream = !json;
  std::unique_ptr<StandardInput> input;
  if (flags.stdin_path.empty()) {
    TRY_LET(carried, StandardInput::carry(reach.data + "/matrix"));
    input = std::move(carried);
    if (input) job.stdin_path = input->path();
  }
  TRY_LET(id, reach.jobs->submit(job));
  expect_agent(context, reach);
  // A job that lasts longer than a moment writes its output to files, which are followed as they grow.
  const std::string folder = reach.data + "/matrix/" + id;
  Tail output(folder + "/0.out", STDOUT_FILENO), error_output(folder + "/0.err", STDERR_FILENO);
  int notify = -1;
  Follow follow;
  follow.open = [&] {
    mkdir((reach.data + "/matrix").c_str(), 0700);
    mkdir(folder.c_str(), 0700);
    notify = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    inotify_add_watch(notify, folder.c_str(), IN_CREATE | IN_MODIFY);
    return notify;
  };
  follow.read_on = [&]() -> Result<bool> {
    char events[4096];
    while (read(notify, events, sizeof events) > 0) {
    }
    TRY_LET(more, output.read_on());
    TRY_LET(more_errors, error_output.read_on());
    return more || more_errors;
  };
  Waiting waiting;
  if (!json) waiting.follow = follow;
  auto ending = wait_for_end(context, reach, id, waiting);
  if (notify >= 0) {
    close(notify);
    rmdir(folder.c_str());  // stays when there is output in it
  }
  if (!ending) return std::move(ending).error();
  TRY_LET(results, reach.jobs->results(id, 0));
  if (json) {
    nlohmann::json value = json_of(id, &job, ending->state);
    if (!results.empty()) value["task"] = json_of(results[0], "", true);
    support::print_json(value);
    return static_cast<int>(ending->interrupted ? 130 : ending->state.exit_code);
  }
  if (!results.empty()) {
    TRY(write_output(STDOUT_FILENO, results[0], false, output.printed()));
    TRY(write_output(STDERR_FILENO, results[0], true, error_output.printed()));
    if (!ending->interrupted) explain_failure(results[0]);
  } else if (!ending->state.reason.empty() && !ending->interrupted) {
    support::complain("matrix", "job " + id + ": " + ending->state.reason);
  }
  return static_cast<int>(ending->interrupted ? 130 : ending->state.exit_code);
}

// Prints results in the order of the tasks as they come in.
class InOrder {
 public:
  InOrder(Jobs& jobs, const Job& job) : jobs_(jobs), job_(job) {}
  Result<void> read_on(bool all) {
    while (chunk_ < job_.chunk_count()) {
      TRY_LET(results, jobs_.results(job_.id, chunk_, &offset_));
      for (auto& result : results) held_.emplace(result.task, std::move(result));
      const std::uint32_t end = chunk_ * job_.chunk_size + job_.tasks_in(chunk_);
      for (; next_ < end; next_++) {
        const auto at = held_.find(next_);
        if (at == held_.end() && !all) return {};
        if (at == held_.end()) continue;
        TRY(write_output(STDOUT_FILENO, at->second, false));
        TRY(write_output(STDERR_FILENO, at->second, true));
        explain_failure(at->second);
        held_.erase(at);
      }
      held_.clear();
      chunk_++;
      offset_ = 0;
    }
    return {};
  }

 private:
  Jobs& jobs_;
  const Job& job_;
  std::uint32_t chunk_ = 0, next_ = 0;
  std::uint64_t offset_ = 0;
  std::map<std::uint32_t, TaskResult> held_;
};

// `command`: as job_of() makes it of the words, of one line with `shell`.
Result<std::vector<Item>> read_items(const std::string& file, bool null_separated, const Words& words,
                                     const std::vector<std::string>& command, bool shell) {
  std::vector<Item> items;
  if (!words.sources.empty()) {
    if (!file.empty()) return fail(Code::invalid, "items come from -a ", file, " or from :::, not from both");
    std::uint64_t count = 1;
    for (const auto& source : words.sources) count = std::min<std::uint64_t>(count * source.size(), kMaxTasks + 1);
    if (count == 0) return fail(Code::invalid, "no items after :::, nothing to run; name some, as in ::: a b c");
    if (count > kMaxTasks) return fail(Code::invalid, "the items after ::: make more than ", kMaxTasks, " combinations");
    for (const auto& parts : combinations(words.sources)) {
      Item item;
      for (const auto& part : parts) item.text += (item.text.empty() && &part == &parts.front() ? "" : " ") + part;
      if (parts.size() > 1) {  // with its own words: only here each part is known
        for (const auto& word : command) item.argv.push_back(expand(word, parts, items.size() + 1, shell));
      }
      items.push_back(std::move(item));
    }
    return items;
  }
  std::ifstream stream;
  const bool standard = file.empty() || file == "-";
  if (!standard) {
    stream.open(file, std::ios::binary);
    if (!stream) return base::fail_errno(errno, file);
  } else if (isatty(STDIN_FILENO)) {
    std::fprintf(stderr,
                 "matrix: reading items from the terminal, one a line, until Ctrl-D; or give -a FILE or ::: ITEMS\n");
  }
  std::istream& in = standard ? std::cin : stream;
  std::string line;
  while (std::getline(in, line, null_separated ? '\0' : '\n')) {
    if (items.size() > kMaxTasks) break;  // refused with the number below
    items.push_back({line, {}, {}, {}});
  }
  if (!standard && stream.bad()) return fail(Code::io, file, ": cannot be read");
  if (items.empty())
    return fail(Code::invalid, "no items in ", standard ? "standard input" : file,
                ", nothing to run; give one a line, or use -a FILE or ::: ITEMS");
  return items;
}

Result<int> finish_map(const Context& context, Reach& reach, const Job& job, bool print) {
  support::Progress bar("tasks", job.task_count, context.flags->quiet || context.flags->json);
  InOrder printer(*reach.jobs, job);
  Waiting waiting;
  waiting.pace = milliseconds(bar.shown() || print ? 50 : 0);
  waiting.tick = [&](const JobState& state) -> Result<void> {
    if (print) {
      bar.clear();
      TRY(printer.read_on(false));
    }
    const std::uint32_t bad = state.ended() - state.done;
    bar.set(state.ended(), bad == 0 ? "" : std::to_string(bad) + " not ok");
    return {};
  };
  auto ending = wait_for_end(context, reach, job.id, waiting);
  if (!ending) return std::move(ending).error();
  bar.set(ending->state.ended());
  bar.finish();
  if (print) TRY(printer.read_on(true));
  const JobState& state = ending->state;
  if (context.flags->json) {
    nlohmann::json value = json_of(job.id, &job, state);
    value["results"] = nlohmann::json::array();
    for (std::uint32_t chunk = 0; chunk < job.chunk_count(); chunk++) {
      TRY_LET(results, reach.jobs->results(job.id, chunk));
      std::sort(results.begin(), results.end(), [](const auto& a, const auto& b) { return a.task < b.task; });
      std::vector<Item> items;
      if (job.has_items) {
        TRY_LET(found, reach.jobs->items(job.id, chunk));
        items = std::move(found);
      }
      for (const auto& result : results)
        value["results"].push_back(json_of(result, item_of(job, result.task, items), true));
    }
    support::print_json(value);
  } else if (state.done < state.total && !ending->interrupted) {
    std::string text = "job " + job.id + ": " + std::to_string(state.total - state.done) + " of " +
                       std::to_string(state.total) + " tasks did not succeed, worst exit code " +
                       std::to_string(state.exit_code);
    if (!state.reason.empty()) text += " (" + state.reason + ")";
    support::complain("matrix", text + "; 'matrix status " + job.id + "' lists them");
  }
  return static_cast<int>(ending->interrupted ? 130 : state.exit_code);
}

void print_id(const Context& context, const std::string& id) {
  if (context.flags->json)
    support::print_json({{"job", id}});
  else
    std::cout << id << "\n";
}

}  // namespace

void add_submit_verbs(support::Program& program, const Context& context) {
  {
    struct RunFlags : SubmitFlags {
      bool ignored = false;
    };
    auto flags = std::make_shared<RunFlags>();
    auto& verb = program.verb("run", "Runs a command as a task, shows its output, and ends with its exit code.",
                              {"matrix run -- uname -a", "matrix run --timeout 10s --retries 2 -- ./flaky.sh"});
    verb.options().add_flag("--wait", flags->ignored, "wait for the end (the default; `matrix submit` does not)");
    add_flags(verb.options(), *flags, false);
    verb.takes_command().action([flags, &context, &verb] { return run(context, *flags, verb.options().remaining()); });
  }
  {
    struct MapFlags : SubmitFlags {
      std::string file;
      bool null_separated = false, no_output = false, detach = false, ignored = false;
    };
    auto flags = std::make_shared<MapFlags>();
    auto& verb =
        program.verb("map", "Runs a command once for each item, and shows their outputs in the order of the items.",
                     {"ls *.txt | matrix map -- wc -w {}", "matrix map ::: a b c -- echo {#} {}"});
    verb.options()
        .add_option("-a,--arg-file", flags->file, "items, one a line; default: standard input")
        ->type_name("FILE");
    verb.options().add_flag("-0,--null", flags->null_separated, "items end with a zero byte, not a newline");
    verb.options().add_flag("--no-output", flags->no_output, "do not show the tasks' outputs");
    verb.options().add_flag("--output", flags->ignored, "show the tasks' outputs, in order (the default)");
    verb.options().add_flag("--detach", flags->detach, "do not wait: print the job's id");
    verb.options().add_flag("--wait", flags->ignored, "wait for the end (the default)");
    verb.options().footer(
        "In CMD: {} the item, {.} without extension, {/} its last component, {//} its folder,\n"
        "{/.} last component without extension, {#} its number from 1. Without any, the item is the last argument.\n"
        "Several ::: make a task of every combination; {1}, {2/} and so on are an item of the first, second ... of them.");
    add_flags(verb.options(), *flags, false);
    verb.takes_command().action([flags, &context, &verb]() -> Result<int> {
      TRY_LET(words, split_words(verb.options().remaining(), "map", true));
      const std::size_t sources = std::max<std::size_t>(words.sources.size(), 1);
      if (std::none_of(words.command.begin(), words.command.end(), [&](const auto& word) { return has_placeholder(word, sources); })) {
        // Each part a word of its own, where there are several.
        if (words.sources.size() < 2) words.command.push_back("{}");
        for (std::size_t i = 1; words.sources.size() > 1 && i <= words.sources.size(); i++)
          words.command.push_back("{" + std::to_string(i) + "}");
      }
      const std::vector<std::string> command = flags->shell ? std::vector{one_line(words.command)} : words.command;
      TRY_LET(items, read_items(flags->file, flags->null_separated, words, command, flags->shell));
      TRY_LET(reach, open_session(context, true));
      TRY_LET(job, job_of(*flags, words.command, reach));
      TRY_LET(id, reach.jobs->submit(job, items));
      job.id = id;
      job.has_items = true;
      job.task_count = static_cast<std::uint32_t>(items.size());
      if (flags->detach) {
        print_id(context, id);
        return 0;
      }
      expect_agent(context, reach);
      return finish_map(context, reach, job, !flags->no_output && !context.flags->json);
    });
  }
  {
    struct GraphFlags : SubmitFlags {
      std::string file;
      bool no_output = false, detach = false;
    };
    auto flags = std::make_shared<GraphFlags>();
    auto& verb =
        program.verb("dag", "Runs a graph of tasks from a TOML or JSON file, each when those before it have succeeded.",
                     {"matrix dag build.toml", "matrix dag pipeline.json --detach --name nightly"});
    verb.options()
        .add_option("FILE", flags->file, "name, and for each [tasks.NAME]: command = [...] or \"line\", after = [...]")
        ->required();
    verb.options().add_flag("--no-output", flags->no_output, "do not show the tasks' outputs");
    verb.options().add_flag("--detach", flags->detach, "do not wait: print the job's id");
    add_flags(verb.options(), *flags, false);
    for (const char* meaningless : {"--shell"}) verb.options().remove_option(verb.options().get_option(meaningless));
    verb.action([flags, &context]() -> Result<int> {
      TRY_LET(text, support::read_file(flags->file));
      TRY_LET(graph, parse_graph(flags->file, text));
      if (flags->name.empty()) flags->name = graph.name;
      TRY_LET(reach, open_session(context, true));
      TRY_LET(job, job_of(*flags, {"dag", flags->file}, reach));
      job.graph = true;
      TRY_LET(id, reach.jobs->submit(job, graph.items));
      job.id = id;
      job.has_items = true;
      job.task_count = static_cast<std::uint32_t>(graph.items.size());
      if (flags->detach) {
        print_id(context, id);
        return 0;
      }
      expect_agent(context, reach);
      return finish_map(context, reach, job, !flags->no_output && !context.flags->json);
    });
  }
  {
    auto flags = std::make_shared<SubmitFlags>();
    auto& verb =
        program.verb("submit", "Submits a command and prints the job's id at once.",
                     {"matrix submit --name build -- make", "matrix submit --after build --array 1-100 -- ./test {}"});
    add_flags(verb.options(), *flags, true);
    verb.takes_command().action([flags, &context, &verb]() -> Result<int> {
      TRY_LET(words, split_words(verb.options().remaining(), "submit", false));
      TRY_LET(reach, open_session(context, true));
      TRY_LET(job, job_of(*flags, words.command, reach));
      TRY_LET(id, reach.jobs->submit(std::move(job)));
      print_id(context, id);
      return 0;
    });
  }
}

}  // namespace matrix

// Runs processes: so many at a time, each in a process group of its own, its output captured, its end reported once.
//
//   Executor executor({.slots = 2}, [](std::vector<Executor::Exit> exits) { ... });   // called on an executor thread
//   executor.launch({Executor::Task{.run = 1, .setting = setting, .argv = {"/bin/true"}}});
//
// Fast path: a few threads, each with an epoll loop over the pidfds and pipes of the processes it started. A process is
// made by clone(CLONE_VM | CLONE_VFORK | CLONE_PIDFD): no copy of page tables, no growth with the agent's memory. Tasks
// beyond the free slots wait in one queue from which whichever thread sees a process end takes the next, without a
// detour.
//
// Output stays in memory up to `inline_limit` bytes a stream; beyond, and for `stream` tasks that run longer than a
// moment, the whole stream lies in the file <output_stem>.out or .err.
//
// When the first process of a task ends, the rest of its process group is killed. When the agent dies, the kernel kills
// that first process (PDEATHSIG); kill_leftovers() finds descendants that outlived it.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "novoht/base/result.h"

namespace matrix {

// What the tasks of a job share. Immutable once tasks use it.
class Setting {
 public:
  struct Options {
    std::vector<std::string> environment;  // NAME=value
    std::string cwd = "/";
    std::string stdin_path;  // empty: /dev/null
    mode_t umask = 022;
    std::uint64_t open_files = 0;  // soft limit of descriptors; 0: this process's
  };
  explicit Setting(Options options);
  const Options& options() const { return options_; }
  const std::vector<char*>& environment() const { return environment_; }  // not null-terminated
  // Where `program` is, searched in the PATH of this environment; with a slash in it, itself. not_found; invalid:
  // found, but it may not be executed. Any thread.
  base::Result<std::string> find_program(const std::string& program) const;

 private:
  Options options_;
  std::vector<char*> environment_;
  std::string path_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::string> found_;  // guarded by mutex_
};

class Executor {
 public:
  struct Options {
    std::uint32_t slots = 1;                // cpus given away at a time
    std::uint32_t threads = 0;              // 0: as many as cores, at most `slots`
    std::size_t inline_limit = 4096;        // bytes of one stream kept in memory
    std::chrono::milliseconds grace{1000};  // between SIGTERM and SIGKILL
    std::chrono::milliseconds stream_after{20};
  };
  enum class Ended : std::uint8_t { exited, signalled, not_started, timed_out, killed };
  struct Task {
    std::uint64_t run = 0;
    std::shared_ptr<const Setting> setting;
    std::vector<std::string> argv;
    std::vector<std::string> environment;  // beyond the setting's
    std::chrono::milliseconds timeout{0};  // 0: none
    std::uint32_t cpus = 1;
    bool stream = false;
    std::string output_stem;  // a path without ".out"; its folder is made when needed
  };
  struct Stream {
    std::string text;  // whole, when there is no file
    std::string file;
    std::uint64_t size = 0;
  };
  struct Exit {
    std::uint64_t run = 0;
    Ended ended = Ended::exited;
    int status = 0;     // exited: the exit code; not_started: 126 or 127
    int signal = 0;     // that ended it, whatever `ended` says
    std::string error;  // not_started: why; or what went wrong with its output
    std::uint64_t started_us = 0, ended_us = 0, cpu_us = 0, max_rss_bytes = 0;  // wall time, microseconds since 1970
    Stream output, error_output;
  };
  using OnExit = std::function<void(std::vector<Exit>)>;

  Executor(Options options, OnExit on_exit);
  ~Executor();  // kills what runs; nothing is reported any more
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  void launch(std::vector<Task> tasks);  // each is reported once; any thread
  void kill(const std::vector<std::uint64_t>&
                runs);  // SIGTERM to their groups, SIGKILL after the grace; unknown ones are fine
  std::uint32_t slots() const { return options_.slots; }

 private:
  class Worker;
  struct Shared;
  Options options_;
  std::unique_ptr<Shared> shared_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

// Every task's environment names its agent's session in MATRIX_SESSION. Kills (SIGKILL) all processes of this user
// whose MATRIX_SESSION starts with `prefix` and is not `prefix + current`; returns how many.
std::size_t kill_leftovers(const std::string& prefix, const std::string& current);

}  // namespace matrix

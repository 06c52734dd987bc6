// Processes: starting one in the background, lock files that tell who holds them, signals as a file descriptor, waiting for
// a condition with a deadline.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "novoht/base/result.h"

namespace support {

// Starts argv[0] (a path, or looked up in PATH) in a session of its own, not as a child of the caller: no terminal, stdin
// from /dev/null, stdout and stderr appended to `log_file`. Signals are reset. Returns its pid once exec has succeeded;
// not_found when there is no such program.
base::Result<pid_t> spawn_background(const std::vector<std::string>& argv, const std::string& log_file,
                                     const std::string& folder = "/");

// As spawn_background, but a child of the caller, who must wait for it.
// `die_with_parent`: it gets SIGTERM when the calling thread's process ends.
base::Result<pid_t> spawn_child(const std::vector<std::string>& argv, const std::string& log_file, bool die_with_parent);

// A file locked with flock(2) whose content is the holder's pid. Released by destruction and by death; the file stays.
class LockFile {
 public:
  LockFile(LockFile&& from) noexcept : fd_(std::exchange(from.fd_, -1)), path_(std::move(from.path_)) {}
  LockFile& operator=(LockFile&& from) noexcept;
  ~LockFile();
  // conflict: another process holds it; the message names its pid.
  static base::Result<LockFile> acquire(const std::string& path);
  // Waits up to `patience` for the holder to let go.
  static base::Result<LockFile> acquire(const std::string& path, std::chrono::milliseconds patience);
  const std::string& path() const { return path_; }

 private:
  LockFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  int fd_;
  std::string path_;
};
// Who holds the lock file; nothing when nobody does or there is no such file. 0: held, the pid not yet written.
std::optional<pid_t> held_by(const std::string& path);

// Signals that arrive through a file descriptor instead of interrupting. Make it first thing in main(), before any thread:
// it blocks the signals for the thread and those it starts.
//   SignalWaiter signals({SIGINT, SIGTERM}); ... if (auto number = signals.wait(100ms)) return 128 + *number;
class SignalWaiter {
 public:
  explicit SignalWaiter(const std::vector<int>& signals);
  ~SignalWaiter();
  SignalWaiter(const SignalWaiter&) = delete;
  SignalWaiter& operator=(const SignalWaiter&) = delete;
  int fd() const { return fd_; }  // readable when a signal is there
  std::optional<int> wait(std::chrono::milliseconds timeout);  // negative: for ever

 private:
  int fd_ = -1;
  sigset_t before_;
};

// Asks `condition` until it is true or the time is over; returns what it last said. Asks often at first, then every 20 ms.
bool wait_until(std::chrono::milliseconds timeout, const std::function<bool()>& condition);

// SIGTERM, then SIGKILL when `pid` is still there after `patience`. Fine when it is gone.
base::Result<void> stop_process(pid_t pid, std::chrono::milliseconds patience);
bool process_exists(pid_t pid);  // a zombie does not count

std::string self_path();    // of this executable
std::string self_folder();  // the folder it is in
// The program `name` of the platform: $ZHT_PROGRAM (for "zht"), beside this executable, else in PATH. not_found.
base::Result<std::string> find_program(const std::string& name);

}  // namespace support

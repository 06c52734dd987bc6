#include "zht/support/process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

extern char** environ;

namespace support {
namespace {

using base::Code;
using base::fail;
using base::fail_errno;
using base::Result;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

// What the processes between fork and exec tell their ancestor. Small enough for one atomic write to a pipe.
struct Report {
  enum Kind : int { started, exec_failed } kind;
  int value;  // pid, errno
};

struct Launch {
  std::string program;  // a path
  std::vector<char*> argv;
  std::string folder;
  int log = -1;
  int null = -1;
  int report = -1;  // a pipe, closed by exec
  bool own_session = false;
  pid_t die_with = 0;  // a parent after whose death the child gets SIGTERM
};

// Between fork and exec only async-signal-safe calls are allowed: other threads may have held any lock.
[[noreturn]] void become(const Launch& launch) {
  if (launch.own_session) setsid();
  if (launch.die_with != 0) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != launch.die_with) _exit(127);
  }
  for (int number = 1; number < 65; number++) signal(number, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  dup2(launch.null, STDIN_FILENO);
  dup2(launch.log, STDOUT_FILENO);
  dup2(launch.log, STDERR_FILENO);
  if (chdir(launch.folder.c_str()) == 0) execve(launch.program.c_str(), launch.argv.data(), environ);
  const Report report{Report::exec_failed, errno};
  [[maybe_unused]] const ssize_t ignored = write(launch.report, &report, sizeof report);
  _exit(127);
}

Result<std::string> in_path(const std::string& program) {
  if (program.find('/') != std::string::npos) return program;
  const char* path = std::getenv("PATH");
  std::string folders = path == nullptr ? "/usr/local/bin:/usr/bin:/bin" : path;
  for (std::size_t from = 0; from <= folders.size();) {
    const std::size_t end = std::min(folders.find(':', from), folders.size());
    const std::string candidate = folders.substr(from, end - from) + "/" + program;
    if (end > from && access(candidate.c_str(), X_OK) == 0) return candidate;
    from = end + 1;
  }
  return fail(Code::not_found, "program '", program, "' is not in PATH");
}

Result<pid_t> start(const std::vector<std::string>& argv, const std::string& log_file, const std::string& folder,
                    bool detached, bool die_with_parent) {
  CHECK(!argv.empty());
  Launch launch;
  TRY_LET(program, in_path(argv[0]));
  launch.program = program;
  for (const std::string& word : argv) launch.argv.push_back(const_cast<char*>(word.c_str()));
  launch.argv.push_back(nullptr);
  launch.folder = folder;
  launch.own_session = detached;
  launch.die_with = die_with_parent ? getpid() : 0;
  int pipe_fds[2];
  if (pipe2(pipe_fds, O_CLOEXEC) != 0) return fail_errno(errno, "pipe");
  launch.report = pipe_fds[1];
  launch.null = open("/dev/null", O_RDWR | O_CLOEXEC);
  launch.log = open(log_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  const int log_error = errno;
  const auto close_all = [&] {
    close(pipe_fds[0]);
    if (launch.report >= 0) close(launch.report);
    if (launch.null >= 0) close(launch.null);
    if (launch.log >= 0) close(launch.log);
  };
  if (launch.log < 0) {
    close_all();
    return fail_errno(log_error, "log file " + log_file);
  }
  const pid_t child = fork();
  if (child == 0) {
    if (!detached) become(launch);
    // A second fork leaves the process without a parent to wait for it.
    const pid_t grandchild = fork();
    if (grandchild == 0) become(launch);
    const Report report{Report::started, grandchild};
    [[maybe_unused]] const ssize_t ignored = write(launch.report, &report, sizeof report);
    _exit(0);
  }
  const int fork_error = errno;
  close(launch.report);
  launch.report = -1;
  if (child < 0) {
    close_all();
    return fail_errno(fork_error, "fork");
  }
  if (detached)
    while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
    }
  pid_t pid = child;
  int error = 0;
  Report report{};
  for (ssize_t got; (got = read(pipe_fds[0], &report, sizeof report)) != 0;) {  // ends when exec has closed the pipe
    if (got < 0 && errno == EINTR) continue;
    if (got != sizeof report) break;
    if (report.kind == Report::started)
      pid = report.value;
    else
      error = report.value;
  }
  if (pid < 0) error = EAGAIN;
  if (error != 0 && !detached) waitpid(child, nullptr, 0);
  close_all();
  if (error != 0) return fail_errno(error, "cannot start " + launch.program);
  return pid;
}

bool is_program(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) && access(path.c_str(), X_OK) == 0;
}

std::optional<pid_t> read_pid(int fd) {
  char text[32] = {};
  const ssize_t got = pread(fd, text, sizeof text - 1, 0);
  pid_t pid = 0;
  if (got > 0) std::from_chars(text, text + got, pid);
  return pid;
}

}  // namespace

Result<pid_t> spawn_background(const std::vector<std::string>& argv, const std::string& log_file,
                               const std::string& folder) {
  return start(argv, log_file, folder, true, false);
}
Result<pid_t> spawn_child(const std::vector<std::string>& argv, const std::string& log_file, bool die_with_parent) {
  return start(argv, log_file, "/", false, die_with_parent);
}

LockFile& LockFile::operator=(LockFile&& from) noexcept {
  std::swap(fd_, from.fd_);
  std::swap(path_, from.path_);
  return *this;
}

LockFile::~LockFile() {
  if (fd_ < 0) return;
  [[maybe_unused]] const int ignored = ftruncate(fd_, 0);
  close(fd_);
}

Result<LockFile> LockFile::acquire(const std::string& path) { return acquire(path, milliseconds(50)); }

Result<LockFile> LockFile::acquire(const std::string& path, milliseconds patience) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return fail_errno(errno, "lock file " + path);
  int error = 0;
  // held_by() takes the lock for an instant, so even a free lock may need a second try.
  const bool locked = wait_until(patience, [&] {
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) return true;
    error = errno;
    return error != EWOULDBLOCK && error != EINTR;
  });
  if (!locked || (error != 0 && flock(fd, LOCK_EX | LOCK_NB) != 0)) {
    const auto holder = read_pid(fd);
    close(fd);
    if (error == EWOULDBLOCK) return fail(Code::conflict, path, " is held by process ", holder.value_or(0));
    return fail_errno(error, "lock file " + path);
  }
  const std::string pid = std::to_string(getpid()) + "\n";
  if (ftruncate(fd, 0) != 0 || pwrite(fd, pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
    error = errno;
    close(fd);
    return fail_errno(error, "lock file " + path);
  }
  return LockFile(fd, path);
}

std::optional<pid_t> held_by(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return std::nullopt;
  std::optional<pid_t> holder;
  if (flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK) holder = read_pid(fd);
  close(fd);
  return holder;
}

SignalWaiter::SignalWaiter(const std::vector<int>& signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : signals) sigaddset(&set, number);
  pthread_sigmask(SIG_BLOCK, &set, &before_);
  fd_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  CHECK(fd_ >= 0, "signalfd");
}

SignalWaiter::~SignalWaiter() {
  close(fd_);
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

std::optional<int> SignalWaiter::wait(milliseconds timeout) {
  const auto deadline = steady_clock::now() + timeout;
  for (;;) {
    int left = -1;
    if (timeout.count() >= 0)
      left = static_cast<int>(
          std::max<std::int64_t>(0, std::chrono::duration_cast<milliseconds>(deadline - steady_clock::now()).count()));
    pollfd poll_fd{fd_, POLLIN, 0};
    const int ready = poll(&poll_fd, 1, left);
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return std::nullopt;
    signalfd_siginfo info{};
    if (read(fd_, &info, sizeof info) == sizeof info) return static_cast<int>(info.ssi_signo);
  }
}

bool wait_until(milliseconds timeout, const std::function<bool()>& condition) {
  const auto deadline = steady_clock::now() + timeout;
  auto pause = std::chrono::microseconds(500);
  for (;;) {
    if (condition()) return true;
    if (steady_clock::now() >= deadline) return condition();
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::microseconds(20'000));
  }
}

bool process_exists(pid_t pid) {
  if (pid <= 0 || (kill(pid, 0) != 0 && errno == ESRCH)) return false;
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  if (!std::getline(stat, text)) return false;
  // The state follows the name, which is in parentheses and may itself hold any character.
  const std::size_t close_paren = text.rfind(')');
  if (close_paren == std::string::npos || close_paren + 2 >= text.size() || text[close_paren + 2] != 'Z') return true;
  // A zombie with threads that still run has its files open.
  std::error_code gone;
  std::filesystem::directory_iterator task("/proc/" + std::to_string(pid) + "/task", gone), end;
  std::size_t threads = 0;
  for (; !gone && task != end; task.increment(gone)) threads++;
  return threads > 1;
}

Result<void> stop_process(pid_t pid, milliseconds patience) {
  const auto gone = [pid] {
    waitpid(pid, nullptr, WNOHANG);  // when it is a child of ours
    return !process_exists(pid);
  };
  for (const int number : {SIGTERM, SIGKILL}) {
    if (kill(pid, number) != 0) {
      if (errno == ESRCH) return {};
      return fail_errno(errno, "cannot stop process " + std::to_string(pid));
    }
    if (wait_until(number == SIGTERM ? patience : milliseconds(5000), gone)) return {};
  }
  return fail(Code::timeout, "process ", pid, " is still there 5 s after SIGKILL");
}

std::string self_path() {
  char path[4096];
  const ssize_t size = readlink("/proc/self/exe", path, sizeof path);
  std::string found = size > 0 ? std::string(path, static_cast<std::size_t>(size)) : std::string();
  // A rebuilt program has another file under its name; the new one is as good.
  if (found.ends_with(" (deleted)")) found.resize(found.size() - 10);
  return found;
}

std::string self_folder() {
  const std::string path = self_path();
  return path.substr(0, path.find_last_of('/'));
}

Result<std::string> find_program(const std::string& name) {
  if (name == "zht")
    if (const char* set = std::getenv("ZHT_PROGRAM"); set != nullptr && *set != '\0') {
      if (!is_program(set)) return fail(Code::not_found, "$ZHT_PROGRAM is ", set, ", which cannot be executed");
      return std::string(set);
    }
  // Tests live in a folder beside bin/.
  for (const std::string& candidate : {self_folder() + "/" + name, self_folder() + "/../bin/" + name})
    if (is_program(candidate)) return candidate;
  auto found = in_path(name);
  if (!found)
    return fail(Code::not_found, "program '", name, "' is neither in ", self_folder(),
                " nor in PATH; install it there");
  return found;
}

}  // namespace support

#include "matrix/exec/spawn.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

namespace matrix {
namespace {

struct Birth {
  const SpawnRequest& request;
  int error = 0;
  Spawned::Step step = Spawned::Step::clone;
};

int give_up(Birth& birth, Spawned::Step step) {
  birth.step = step;
  birth.error = errno;
  _exit(127);
}

// Runs in the child, in the parent's memory: only plain system calls from here to exec.
int be_born(void* argument) {
  Birth& birth = *static_cast<Birth*>(argument);
  const SpawnRequest& request = birth.request;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != request.agent) _exit(127);
  setsid();
  struct sigaction by_default = {};
  by_default.sa_handler = SIG_DFL;
  for (const int number : {SIGPIPE, SIGHUP, SIGINT, SIGQUIT, SIGTERM}) sigaction(number, &by_default, nullptr);
  ::umask(request.umask);
  rlimit files{};
  if (request.open_files != 0 && getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = request.open_files < files.rlim_max ? request.open_files : files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }
  if (chdir(request.cwd) != 0) return give_up(birth, Spawned::Step::cwd);
  int input = request.null_fd;
  if (request.stdin_path != nullptr) {
    // Of a pipe without a writer: nothing is read, and nobody is waited for while the caller's thread sleeps.
    input = open(request.stdin_path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (input < 0) return give_up(birth, Spawned::Step::open_stdin);
    fcntl(input, F_SETFL, 0);
  }
  dup2(input, STDIN_FILENO);
  dup2(request.output_fd, STDOUT_FILENO);
  dup2(request.error_fd, STDERR_FILENO);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execve(request.program, request.argv, request.environment);
  if (errno == ENOEXEC) {
    char** words = const_cast<char**>(request.argv);
    static char shell[] = "/bin/sh";
    words[-1] = shell;
    words[0] = const_cast<char*>(request.program);
    execve(shell, words - 1, request.environment);
  }
  return give_up(birth, Spawned::Step::exec);
}

}  // namespace

Spawned spawn(const SpawnRequest& request, char* stack, std::size_t stack_size) {
  Birth birth{request};
  Spawned spawned;
  int pid_fd = -1;
  const pid_t pid = clone(be_born, stack + stack_size, CLONE_VM | CLONE_VFORK | CLONE_PIDFD | SIGCHLD, &birth, &pid_fd);
  if (pid < 0) {
    spawned.error = errno;
    return spawned;
  }
  if (birth.error != 0) {
    while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    close(pid_fd);
    spawned.error = birth.error;
    spawned.step = birth.step;
    return spawned;
  }
  spawned.pid = pid;
  spawned.pid_fd = pid_fd;
  return spawned;
}

}  // namespace matrix

// One process, started as fast as the kernel can: clone(CLONE_VM | CLONE_VFORK | CLONE_PIDFD). The caller's thread
// sleeps until the child has called exec, so what the child needs may lie on the caller's stack.
#pragma once

#include <sys/types.h>

#include <string>

namespace matrix {

struct SpawnRequest {
  const char* program;       // a path
  char* const* argv;         // null-terminated; argv[-1] is free for "/bin/sh" (a script without a first line)
  char* const* environment;  // null-terminated
  const char* cwd;
  const char* stdin_path;  // null: /dev/null through null_fd
  int null_fd;
  int output_fd, error_fd;
  mode_t umask;
  unsigned long open_files;  // soft limit of descriptors; 0: the caller's
  pid_t agent;  // the caller's pid: when it is not the parent any more, the child does not start
};
struct Spawned {
  pid_t pid = -1;
  int pid_fd = -1;
  int error = 0;                                                        // errno; then there is no process
  enum class Step { clone, cwd, open_stdin, exec } step = Step::clone;  // where it failed
};

// The calling thread must have all signals blocked and must live as long as the process may: the kernel kills the child
// (SIGKILL) when that thread ends. `stack`: at least 32 KiB, used until exec.
Spawned spawn(const SpawnRequest& request, char* stack, std::size_t stack_size);

}  // namespace matrix

#include "matrix/tool/standard_input.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <vector>

namespace matrix {

using base::fail_errno;
using base::Result;

namespace {

constexpr const char* kPrefix = "stdin-";

bool worth_carrying() {
  struct stat status {};
  if (::fstat(STDIN_FILENO, &status) != 0 || ::isatty(STDIN_FILENO) != 0) return false;
  return !S_ISCHR(status.st_mode) || status.st_rdev != makedev(1, 3);
}

// Of processes that were killed.
void remove_stale(const std::string& folder) {
  DIR* stream = ::opendir(folder.c_str());
  if (stream == nullptr) return;
  while (const dirent* each = ::readdir(stream)) {
    const std::string name = each->d_name;
    if (!name.starts_with(kPrefix)) continue;
    const long pid = std::atol(name.c_str() + std::string(kPrefix).size());
    if (pid > 0 && ::kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH) ::unlink((folder + "/" + name).c_str());
  }
  ::closedir(stream);
}

}  // namespace

Result<std::unique_ptr<StandardInput>> StandardInput::carry(const std::string& folder) {
  if (!worth_carrying()) return std::unique_ptr<StandardInput>();
  ::mkdir(folder.c_str(), 0700);
  remove_stale(folder);
  std::unique_ptr<StandardInput> input(new StandardInput);
  input->path_ = folder + "/" + kPrefix + std::to_string(::getpid());
  ::unlink(input->path_.c_str());
  if (::mkfifo(input->path_.c_str(), 0600) != 0) return fail_errno(errno, "make pipe " + input->path_);
  // For reading too: until the task has opened it, nothing that lies in it may be lost, and nothing waits.
  input->pipe_ = ::open(input->path_.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (input->pipe_ < 0) return fail_errno(errno, "open pipe " + input->path_);
  input->opened_ = ::inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
  input->stop_ = ::eventfd(0, EFD_CLOEXEC);
  if (input->opened_ < 0 || ::inotify_add_watch(input->opened_, input->path_.c_str(), IN_OPEN) < 0)
    return fail_errno(errno, "watch pipe " + input->path_);
  if (input->stop_ < 0) return fail_errno(errno, "eventfd");
  input->thread_ = std::thread([at = input.get()] { at->run(); });
  return input;
}

StandardInput::~StandardInput() {
  if (stop_ >= 0) ::eventfd_write(stop_, 1);
  if (thread_.joinable()) thread_.join();
  if (!path_.empty()) ::unlink(path_.c_str());
  for (const int fd : {pipe_, opened_, stop_}) {
    if (fd >= 0) ::close(fd);
  }
}

void StandardInput::run() {
  pollfd first[] = {{opened_, POLLIN, 0}, {stop_, POLLIN, 0}};
  while (::poll(first, 2, -1) < 0 && errno == EINTR) {
  }
  if ((first[1].revents & POLLIN) != 0) return;
  std::vector<char> buffer(std::size_t{64} << 10);
  std::size_t from = 0, to = 0;
  for (bool ended = false; !ended || from < to;) {
    const bool full = from < to;
    pollfd wanted[] = {{full ? -1 : STDIN_FILENO, POLLIN, 0}, {full ? pipe_ : -1, POLLOUT, 0}, {stop_, POLLIN, 0}};
    if (::poll(wanted, 3, -1) < 0) {
      if (errno == EINTR) continue;
      return;
    }
    if ((wanted[2].revents & POLLIN) != 0) return;
    if (full && wanted[1].revents != 0) {
      const ssize_t put = ::write(pipe_, buffer.data() + from, to - from);
      if (put > 0) from += static_cast<std::size_t>(put);
    } else if (!full && wanted[0].revents != 0) {
      const ssize_t got = ::read(STDIN_FILENO, buffer.data(), buffer.size());
      if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      ended = got <= 0;
      from = 0;
      to = got > 0 ? static_cast<std::size_t>(got) : 0;
    }
  }
  // The task reads what is left, and then the end.
  ::close(pipe_);
  pipe_ = -1;
}

}  // namespace matrix

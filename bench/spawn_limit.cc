#include "bench/spawn_limit.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <thread>

#include "bench/measure.h"

extern char** environ;

namespace bench {
namespace {

// By itself: what vfork's child might clobber is not in sight.
[[gnu::noinline]] pid_t start(char* const* argv) {
  const pid_t pid = vfork();
  if (pid == 0) {
    execve(argv[0], argv, environ);
    _exit(127);
  }
  return pid;
}

// Children are the thread's own: __WNOTHREAD keeps threads from reaping each other's.
void spawn_some(char* const* argv, std::atomic<std::size_t>& left, std::size_t width) {
  std::size_t running = 0;
  while (true) {
    while (running < width) {
      std::size_t now = left.load();
      while (now > 0 && !left.compare_exchange_weak(now, now - 1)) {
      }
      if (now == 0) break;
      require(start(argv) > 0, "vfork failed");
      running++;
    }
    if (running == 0) return;
    int status = 0;
    const pid_t pid = waitpid(-1, &status, __WNOTHREAD);
    if (pid < 0 && errno == EINTR) continue;
    require(pid > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0,
            "a process of the spawn limit did not exit with 0");
    running--;
  }
}

}  // namespace

double spawn_limit(const std::vector<std::string>& argv, std::size_t count, std::size_t width) {
  std::vector<char*> words;
  for (const auto& word : argv) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  const std::size_t threads =
      std::max<std::size_t>(1, std::min<std::size_t>(width, std::thread::hardware_concurrency()));
  std::atomic<std::size_t> left = count;
  std::vector<std::thread> workers;
  Stopwatch watch;
  for (std::size_t i = 0; i < threads; i++) {
    const std::size_t share = width / threads + (i < width % threads ? 1 : 0);
    workers.emplace_back([&, share] { spawn_some(words.data(), left, share); });
  }
  for (auto& worker : workers) worker.join();
  return watch.seconds();
}

}  // namespace bench

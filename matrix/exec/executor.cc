#include "matrix/exec/executor.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <thread>
#include <unordered_map>

#include "matrix/exec/spawn.h"
#include "novoht/base/check.h"

namespace matrix {
namespace {

using base::Code;
using base::fail;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using Instant = steady_clock::time_point;

constexpr std::size_t kStackSize = 64 << 10;
constexpr std::size_t kReadSize = 64 << 10;
// Pipes of a process join the epoll set only when it has lived this long: until then a pipe's own 64 KiB take its
// output, and the many processes that end sooner cost one wake-up instead of three.
constexpr milliseconds kPipesAfter{5};

std::uint64_t wall_us() {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000 + static_cast<std::uint64_t>(now.tv_nsec) / 1000;
}

std::uint64_t microseconds(const timeval& t) {
  return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000 + static_cast<std::uint64_t>(t.tv_usec);
}

void poke(int event_fd) {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = write(event_fd, &one, sizeof one);
}

}  // namespace

Setting::Setting(Options options) : options_(std::move(options)) {
  for (auto& line : options_.environment) {
    environment_.push_back(line.data());
    if (line.starts_with("PATH=")) path_ = line.substr(5);
  }
  if (path_.empty()) path_ = "/usr/local/bin:/usr/bin:/bin";
}

base::Result<std::string> Setting::find_program(const std::string& program) const {
  if (program.empty()) return fail(Code::not_found, "the command's name is empty");
  if (program.find('/') != std::string::npos) return program;
  {
    const std::lock_guard lock(mutex_);
    const auto known = found_.find(program);
    if (known != found_.end()) return known->second;
  }
  std::string refused;
  for (std::size_t from = 0; from <= path_.size();) {
    const std::size_t end = std::min(path_.find(':', from), path_.size());
    std::string folder = path_.substr(from, end - from);
    from = end + 1;
    if (folder.empty() || folder[0] != '/') folder = options_.cwd + "/" + folder;
    std::string candidate = folder + "/" + program;
    struct stat info;
    if (stat(candidate.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
    if (access(candidate.c_str(), X_OK) != 0) {
      refused = candidate;
      continue;
    }
    const std::lock_guard lock(mutex_);
    return found_[program] = candidate;
  }
  if (!refused.empty()) return fail(Code::invalid, refused, ": may not be executed");
  return fail(Code::not_found, program, ": not found in PATH");
}

struct Executor::Shared {
  std::mutex mutex;
  // Guarded by mutex: tasks not started yet, first in first out; cpus in use, in all and by each worker's tasks; which
  // workers sleep and are to be poked when there is a task for them.
  std::deque<Task> queue;
  std::uint32_t used = 0;
  std::vector<std::uint32_t> used_by;
  std::vector<bool> idle;
  std::vector<Worker*> workers;
  std::uint32_t slots = 1, share = 1;
  std::atomic<bool> stopping{false};
  OnExit on_exit;

  // May `worker` start the first of the queue? Each has an even share of the slots: starting a process blocks a thread
  // for a third of a short task's life, and one thread that took all slots would leave the other cores idle.
  bool fits(std::size_t worker) const {
    if (queue.empty()) return false;
    const std::uint32_t cpus = queue.front().cpus;
    return (used == 0 || used + cpus <= slots) && (used_by[worker] == 0 || used_by[worker] + cpus <= share);
  }
  // A sleeping worker that may, taken off the sleepers; nobody when there is none.
  Worker* wake_one() {
    for (std::size_t worker = 0; worker < workers.size(); worker++)
      if (idle[worker] && fits(worker)) {
        idle[worker] = false;
        return workers[worker];
      }
    return nullptr;
  }
};

class Executor::Worker {
 public:
  Worker(Shared& shared, const Options& options, std::size_t number)
      : shared_(shared),
        options_(options),
        number_(number),
        stack_(new char[kStackSize]),
        buffer_(new char[kReadSize]) {
    epoll_ = epoll_create1(EPOLL_CLOEXEC);
    event_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    null_ = open("/dev/null", O_RDONLY | O_CLOEXEC);
    CHECK(epoll_ >= 0 && event_ >= 0 && null_ >= 0, "an executor needs three file descriptors");
    epoll_event wanted{};
    wanted.events = EPOLLIN;
    wanted.data.u64 = kEvent;
    epoll_ctl(epoll_, EPOLL_CTL_ADD, event_, &wanted);
    thread_ = std::thread([this] { work(); });
  }
  ~Worker() {
    poke(event_);
    thread_.join();
    close(epoll_);
    close(event_);
    close(null_);
  }
  void wake() { poke(event_); }
  void kill(const std::vector<std::uint64_t>& runs) {
    {
      const std::lock_guard lock(mutex_);
      kills_.insert(kills_.end(), runs.begin(), runs.end());
    }
    poke(event_);
  }

 private:
  enum Kind : std::uint64_t { kPid = 0, kOutput = 1, kError = 2, kEvent = 3 };
  struct Pipe {
    int fd = -1;
    bool watched = false;
    int file = -1;
    bool broken = false;  // its file cannot be written: the rest is dropped
    Stream stream;
  };
  struct Run {
    Task task;
    std::uint32_t generation = 0;
    bool alive = false;
    pid_t pid = -1;
    int pid_fd = -1;
    Pipe out, err;
    Instant started{};
    std::uint64_t started_us = 0;
    bool timed_out = false, killed = false, flush_timer = false;
    std::string error;
  };
  enum class Timer { timeout, force, flush };
  struct Due {
    std::uint32_t slot, generation;
    Timer timer;
  };

  static std::uint64_t tag(std::uint32_t slot, std::uint32_t generation, Kind kind) {
    return std::uint64_t{generation} << 32 | std::uint64_t{slot} << 2 | kind;
  }

  void work() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, nullptr);
    std::vector<epoll_event> events(256);
    while (!shared_.stopping) {
      Task task;
      while (take(task)) start(std::move(task));
      report();
      const int count = epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), patience());
      {
        const std::lock_guard lock(shared_.mutex);
        shared_.idle[number_] = false;
      }
      for (int i = 0; i < count; i++) handle(events[static_cast<std::size_t>(i)]);
      on_time(steady_clock::now());
      report();
    }
    for (auto& run : runs_)
      if (run->alive) ::kill(-run->pid, SIGKILL);
    for (auto& run : runs_)
      if (run->alive) {
        siginfo_t info;
        while (waitid(P_PID, static_cast<id_t>(run->pid), &info, WEXITED) < 0 && errno == EINTR) {
        }
        close_all(*run);
      }
  }

  // The next task, if one fits. Whoever leaves some in the queue that another could start wakes that one.
  bool take(Task& task) {
    if (shared_.stopping) return false;
    Worker* next = nullptr;
    bool taken = false;
    {
      const std::lock_guard lock(shared_.mutex);
      taken = shared_.fits(number_);
      if (taken) {
        task = std::move(shared_.queue.front());
        shared_.queue.pop_front();
        shared_.used += task.cpus;
        shared_.used_by[number_] += task.cpus;
      }
      next = shared_.wake_one();
    }
    if (next != nullptr) next->wake();
    return taken;
  }

  void give_back(std::uint32_t cpus) {
    const std::lock_guard lock(shared_.mutex);
    shared_.used -= cpus;
    shared_.used_by[number_] -= cpus;
  }

  int patience() {
    {
      // Idle from the moment on at which nothing can be taken: whoever adds a task later sees that and pokes.
      const std::lock_guard lock(shared_.mutex);
      if (shared_.fits(number_)) return 0;
      shared_.idle[number_] = true;
    }
    Instant next = Instant::max();
    if (!fresh_.empty()) next = fresh_.front().first;
    if (!due_.empty()) next = std::min(next, due_.begin()->first);
    if (next == Instant::max()) return -1;
    const auto left = std::chrono::ceil<milliseconds>(next - steady_clock::now()).count();
    return static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000));
  }

  void refuse(Task task, int status, std::string error) {
    Exit exit;
    exit.run = task.run;
    exit.ended = Ended::not_started;
    exit.status = status;
    exit.error = std::move(error);
    exit.started_us = exit.ended_us = wall_us();
    exits_.push_back(std::move(exit));
    give_back(task.cpus);
  }

  void start(Task task) {
    const Setting& setting = *task.setting;
    auto program = setting.find_program(task.argv.empty() ? std::string() : task.argv[0]);
    if (!program)
      return refuse(std::move(task), program.code() == Code::invalid ? 126 : 127,
                    "cannot run: " + program.error().message);
    int out[2], err[2];
    if (pipe2(out, O_CLOEXEC) != 0)
      return refuse(std::move(task), 126, std::string("cannot make a pipe: ") + std::strerror(errno));
    if (pipe2(err, O_CLOEXEC) != 0) {
      const int error = errno;
      close(out[0]);
      close(out[1]);
      return refuse(std::move(task), 126, std::string("cannot make a pipe: ") + std::strerror(error));
    }
    words_.clear();
    words_.push_back(nullptr);
    for (auto& word : task.argv) words_.push_back(word.data());
    words_.push_back(nullptr);
    lines_.clear();
    for (auto& line : task.environment) lines_.push_back(line.data());
    lines_.insert(lines_.end(), setting.environment().begin(), setting.environment().end());
    lines_.push_back(nullptr);
    const auto& common = setting.options();
    const SpawnRequest request{program->c_str(),
                               words_.data() + 1,
                               lines_.data(),
                               common.cwd.c_str(),
                               common.stdin_path.empty() ? nullptr : common.stdin_path.c_str(),
                               null_,
                               out[1],
                               err[1],
                               common.umask,
                               common.open_files,
                               getpid()};
    const std::uint64_t now_us = wall_us();
    const Instant now = steady_clock::now();
    const Spawned spawned = spawn(request, stack_.get(), kStackSize);
    close(out[1]);
    close(err[1]);
    if (spawned.error != 0) {
      close(out[0]);
      close(err[0]);
      const std::string why = std::strerror(spawned.error);
      switch (spawned.step) {
        case Spawned::Step::cwd:
          return refuse(std::move(task), 126, "cannot change to folder " + common.cwd + ": " + why);
        case Spawned::Step::open_stdin:
          return refuse(std::move(task), 126, "cannot open its input " + common.stdin_path + ": " + why);
        case Spawned::Step::clone:
          return refuse(std::move(task), 126, "cannot make a process: " + why);
        case Spawned::Step::exec:
          break;
      }
      const bool missing = spawned.error == ENOENT || spawned.error == ENOTDIR;
      std::string text = "cannot run " + *program + ": " + why;
      if (spawned.error == ENOENT && access(program->c_str(), F_OK) == 0)
        text += " (the interpreter named in its first line?)";
      return refuse(std::move(task), missing ? 127 : 126, std::move(text));
    }
    std::uint32_t slot;
    if (free_.empty()) {
      slot = static_cast<std::uint32_t>(runs_.size());
      runs_.push_back(std::make_unique<Run>());
    } else {
      slot = free_.back();
      free_.pop_back();
    }
    Run& run = *runs_[slot];
    const std::uint32_t generation = run.generation;
    run = Run{};
    run.generation = generation;
    run.alive = true;
    run.task = std::move(task);
    run.pid = spawned.pid;
    run.pid_fd = spawned.pid_fd;
    run.out.fd = out[0];
    run.err.fd = err[0];
    run.started = now;
    run.started_us = now_us;
    by_run_[run.task.run] = slot;
    fcntl(run.out.fd, F_SETFL, O_NONBLOCK);
    fcntl(run.err.fd, F_SETFL, O_NONBLOCK);
    watch(run.pid_fd, tag(slot, generation, kPid));
    fresh_.emplace_back(now + kPipesAfter, Due{slot, generation, Timer::flush});
    if (run.task.timeout.count() > 0) due_.emplace(now + run.task.timeout, Due{slot, generation, Timer::timeout});
  }

  void watch(int fd, std::uint64_t data) {
    epoll_event wanted{};
    wanted.events = EPOLLIN;
    wanted.data.u64 = data;
    epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &wanted);
  }

  void watch_pipes(std::uint32_t slot) {
    Run& run = *runs_[slot];
    for (auto [pipe, kind] : {std::pair{&run.out, kOutput}, std::pair{&run.err, kError}})
      if (pipe->fd >= 0 && !pipe->watched) {
        pipe->watched = true;
        watch(pipe->fd, tag(slot, run.generation, kind));
      }
  }

  void handle(const epoll_event& event) {
    const auto kind = static_cast<Kind>(event.data.u64 & 3);
    if (event.data.u64 == kEvent) {
      std::uint64_t ignored;
      while (read(event_, &ignored, sizeof ignored) > 0) {
      }
      take_kills();
      return;
    }
    const auto slot = static_cast<std::uint32_t>(event.data.u64 >> 2 & 0x3fffffff);
    const auto generation = static_cast<std::uint32_t>(event.data.u64 >> 32);
    if (slot >= runs_.size() || !runs_[slot]->alive || runs_[slot]->generation != generation) return;
    Run& run = *runs_[slot];
    if (kind == kPid) return finish(slot);
    Pipe& pipe = kind == kOutput ? run.out : run.err;
    if ((event.events & EPOLLIN) != 0)
      read_some(run, pipe);
    else if ((event.events & (EPOLLHUP | EPOLLERR)) != 0)
      close_pipe(pipe);
    if (run.task.stream && !run.flush_timer && !pipe.stream.text.empty()) {
      run.flush_timer = true;
      due_.emplace(run.started + options_.stream_after, Due{slot, generation, Timer::flush});
    }
  }

  // One read; false when there is nothing more for now.
  bool read_some(Run& run, Pipe& pipe) {
    if (pipe.fd < 0) return false;
    const ssize_t size = read(pipe.fd, buffer_.get(), kReadSize);
    if (size < 0) return errno == EINTR;
    if (size == 0) {
      close_pipe(pipe);
      return false;
    }
    pipe.stream.size += static_cast<std::uint64_t>(size);
    const std::string_view data(buffer_.get(), static_cast<std::size_t>(size));
    if (pipe.file >= 0 || pipe.broken) {
      write_out(run, pipe, data);
    } else {
      pipe.stream.text.append(data);
      const bool by_now = run.task.stream && steady_clock::now() >= run.started + options_.stream_after;
      if (pipe.stream.text.size() > options_.inline_limit || by_now) spill(run, pipe);
    }
    return true;
  }

  void spill(Run& run, Pipe& pipe) {
    if (pipe.file >= 0 || pipe.broken) return;
    const std::string path = run.task.output_stem + (&pipe == &run.out ? ".out" : ".err");
    const int flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
    pipe.file = open(path.c_str(), flags, 0600);
    if (pipe.file < 0 && errno == ENOENT) {
      std::error_code ignored;
      std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
      pipe.file = open(path.c_str(), flags, 0600);
    }
    pipe.stream.file = path;
    if (pipe.file < 0) {
      pipe.broken = true;
      run.error = "its output is lost: " + path + ": " + std::strerror(errno);
      return;
    }
    write_out(run, pipe, pipe.stream.text);
    pipe.stream.text.clear();
    pipe.stream.text.shrink_to_fit();
  }

  void write_out(Run& run, Pipe& pipe, std::string_view data) {
    while (!data.empty() && !pipe.broken) {
      const ssize_t size = write(pipe.file, data.data(), data.size());
      if (size < 0 && errno == EINTR) continue;
      if (size < 0) {
        pipe.broken = true;
        run.error = "the end of its output is lost: " + pipe.stream.file + ": " + std::strerror(errno);
        return;
      }
      data.remove_prefix(static_cast<std::size_t>(size));
    }
  }

  void close_pipe(Pipe& pipe) {
    if (pipe.fd < 0) return;
    // While another thread's child is between clone and exec it holds a copy of this descriptor, so closing alone may
    // leave the epoll entry alive.
    if (pipe.watched) epoll_ctl(epoll_, EPOLL_CTL_DEL, pipe.fd, nullptr);
    close(pipe.fd);
    pipe.fd = -1;
  }

  void close_all(Run& run) {
    close_pipe(run.out);
    close_pipe(run.err);
    if (run.out.file >= 0) close(run.out.file);
    if (run.err.file >= 0) close(run.err.file);
    run.out.file = run.err.file = -1;
    if (run.pid_fd >= 0) {
      epoll_ctl(epoll_, EPOLL_CTL_DEL, run.pid_fd, nullptr);
      close(run.pid_fd);
    }
    run.pid_fd = -1;
  }

  void finish(std::uint32_t slot) {
    Run& run = *runs_[slot];
    // The first process is a zombie: its group's number cannot be taken by a stranger before it is reaped below.
    ::kill(-run.pid, SIGKILL);
    siginfo_t info{};
    rusage usage{};
    while (syscall(SYS_waitid, P_PID, run.pid, &info, WEXITED, &usage) < 0 && errno == EINTR) {
    }
    Exit exit;
    exit.ended_us = wall_us();
    while (read_some(run, run.out)) {
    }
    while (read_some(run, run.err)) {
    }
    exit.run = run.task.run;
    exit.started_us = run.started_us;
    exit.cpu_us = microseconds(usage.ru_utime) + microseconds(usage.ru_stime);
    exit.max_rss_bytes = static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
    if (info.si_code == CLD_EXITED) {
      exit.ended = Ended::exited;
      exit.status = info.si_status;
    } else {
      exit.ended = Ended::signalled;
      exit.signal = info.si_status;
    }
    if (run.timed_out) exit.ended = Ended::timed_out;
    if (run.killed) exit.ended = Ended::killed;
    close_all(run);
    exit.error = std::move(run.error);
    exit.output = std::move(run.out.stream);
    exit.error_output = std::move(run.err.stream);
    by_run_.erase(exit.run);
    run.alive = false;
    run.generation++;
    free_.push_back(slot);
    exits_.push_back(std::move(exit));
    give_back(run.task.cpus);
  }

  // Asks the group to end; a timer forces it.
  void end(std::uint32_t slot) {
    Run& run = *runs_[slot];
    run.killed = true;
    ::kill(-run.pid, SIGTERM);
    due_.emplace(steady_clock::now() + options_.grace, Due{slot, run.generation, Timer::force});
  }

  void take_kills() {
    std::vector<std::uint64_t> kills;
    {
      const std::lock_guard lock(mutex_);
      kills.swap(kills_);
    }
    for (const auto number : kills) {
      const auto at = by_run_.find(number);
      if (at != by_run_.end() && !runs_[at->second]->killed) end(at->second);
    }
  }

  void on_time(Instant now) {
    while (!fresh_.empty() && fresh_.front().first <= now) {
      const Due due = fresh_.front().second;
      fresh_.pop_front();
      if (runs_[due.slot]->alive && runs_[due.slot]->generation == due.generation) watch_pipes(due.slot);
    }
    while (!due_.empty() && due_.begin()->first <= now) {
      const Due due = due_.begin()->second;
      due_.erase(due_.begin());
      Run& run = *runs_[due.slot];
      if (!run.alive || run.generation != due.generation) continue;
      switch (due.timer) {
        case Timer::timeout:
          if (run.killed) break;
          run.timed_out = true;
          ::kill(-run.pid, SIGTERM);
          due_.emplace(now + options_.grace, Due{due.slot, due.generation, Timer::force});
          break;
        case Timer::force:
          ::kill(-run.pid, SIGKILL);
          break;
        case Timer::flush:
          if (!run.out.stream.text.empty()) spill(run, run.out);
          if (!run.err.stream.text.empty()) spill(run, run.err);
          break;
      }
    }
  }

  void report() {
    if (exits_.empty()) return;
    std::vector<Exit> exits;
    exits.swap(exits_);
    shared_.on_exit(std::move(exits));
  }

  Shared& shared_;
  const Options& options_;
  const std::size_t number_;
  int epoll_ = -1, event_ = -1, null_ = -1;
  std::unique_ptr<char[]> stack_, buffer_;
  std::mutex mutex_;
  std::vector<std::uint64_t> kills_;  // guarded by mutex_
  // The rest belongs to the worker's thread.
  std::vector<std::unique_ptr<Run>> runs_;
  std::vector<std::uint32_t> free_;
  std::unordered_map<std::uint64_t, std::uint32_t> by_run_;
  std::deque<std::pair<Instant, Due>> fresh_;
  std::multimap<Instant, Due> due_;
  std::vector<Exit> exits_;  // to be reported
  std::vector<char*> words_, lines_;
  std::thread thread_;
};

Executor::Executor(Options options, OnExit on_exit) : options_(options), shared_(std::make_unique<Shared>()) {
  options_.slots = std::max<std::uint32_t>(1, options_.slots);
  // What this process itself inherited must not go on to the tasks; its own descriptors are all opened so.
  syscall(SYS_close_range, 3u, ~0u, CLOSE_RANGE_CLOEXEC);
  if (options_.threads == 0) options_.threads = std::max(1u, std::thread::hardware_concurrency());
  options_.threads = std::min(options_.threads, options_.slots);
  shared_->on_exit = std::move(on_exit);
  shared_->idle.resize(options_.threads, false);
  shared_->used_by.resize(options_.threads, 0);
  shared_->slots = options_.slots;
  shared_->share = (options_.slots + options_.threads - 1) / options_.threads;
  std::vector<Worker*> workers;
  for (std::size_t i = 0; i < options_.threads; i++) {
    workers_.push_back(std::make_unique<Worker>(*shared_, options_, i));
    workers.push_back(workers_.back().get());
  }
  const std::lock_guard lock(shared_->mutex);
  shared_->workers = std::move(workers);
}

Executor::~Executor() {
  shared_->stopping = true;
  workers_.clear();
}

void Executor::launch(std::vector<Task> tasks) {
  Worker* wake = nullptr;
  {
    const std::lock_guard lock(shared_->mutex);
    for (Task& task : tasks) {
      task.cpus = std::clamp<std::uint32_t>(task.cpus, 1, options_.slots);
      shared_->queue.push_back(std::move(task));
    }
    wake = shared_->wake_one();  // it wakes the next, if there is work for two
  }
  if (wake != nullptr) wake->wake();
}

void Executor::kill(const std::vector<std::uint64_t>& runs) {
  std::vector<Exit> exits;
  {
    const std::lock_guard lock(shared_->mutex);
    for (const auto run : runs) {
      const auto at =
          std::find_if(shared_->queue.begin(), shared_->queue.end(), [&](const Task& t) { return t.run == run; });
      if (at == shared_->queue.end()) continue;
      shared_->queue.erase(at);
      Exit exit;
      exit.run = run;
      exit.ended = Ended::killed;
      exits.push_back(std::move(exit));
    }
  }
  for (auto& worker : workers_) worker->kill(runs);
  if (!exits.empty()) shared_->on_exit(std::move(exits));
}

std::size_t kill_leftovers(const std::string& prefix, const std::string& current) {
  std::size_t killed = 0;
  std::error_code error;
  const std::string wanted = "MATRIX_SESSION=" + prefix;
  for (std::filesystem::directory_iterator at("/proc", error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream file("/proc/" + name + "/environ", std::ios::binary);
    std::string line;
    while (std::getline(file, line, '\0')) {
      if (!line.starts_with(wanted) || line.substr(wanted.size()) == current) continue;
      const pid_t pid = static_cast<pid_t>(std::stol(name));
      if (pid != getpid() && ::kill(pid, SIGKILL) == 0) killed++;
      break;
    }
  }
  return killed;
}

}  // namespace matrix

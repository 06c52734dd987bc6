// What share of what the kernel can spawn is left when every task is a recorded, captured, cancellable job?
//
//   tasks_bench --system matrix --address DATA_FOLDER --dir FOLDER --quick
//
// `noop process`: /bin/true as fast as it goes, as many at a time as there are cores. `sleep S x64`: 64 at a time, the
// share of the ideal time. `submit to result`: one task at a time through the C++ interface, from submit() to its
// result in hand. The matrix rows include everything a user gets: durable records in the store, captured output, exit
// codes. xargs records nothing; spawn_limit does nothing but vfork, exec and wait. `idle`: an agent with nothing to do.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <memory>
#include <thread>

#include "bench/measure.h"
#include "bench/spawn_limit.h"
#include "matrix/jobs.h"
#include "zht/support/process.h"
#include "zht/support/service.h"

namespace {

using bench::require;

constexpr std::size_t kWide = 64;

struct SleepRow {
  const char* name;
  const char* argument;
  double seconds;
  std::size_t rounds[3];  // tiny, quick, full: tasks are 64 times this
};
constexpr SleepRow kSleeps[] = {{"sleep 1 x64", "1", 1.0, {1, 2, 5}},
                                {"sleep 0.1 x64", "0.1", 0.1, {2, 20, 50}},
                                {"sleep 0.01 x64", "0.01", 0.01, {2, 50, 200}}};

std::size_t cores() { return std::max(1u, std::thread::hardware_concurrency()); }

// An agent of our own with as many slots as the row wants, on the given node.
class Agent {
 public:
  Agent(const std::string& data, std::size_t slots) : data_(data) {
    const std::string program = support::self_folder() + "/../bin/matrix";
    pid_ = fork();
    require(pid_ >= 0, "fork failed");
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGTERM);
      const int null = open("/dev/null", O_RDWR);
      dup2(null, 0);
      dup2(null, 1);
      dup2(null, 2);
      const std::string number = std::to_string(slots);
      execl(program.c_str(), "matrix", "agent", "--data", data.c_str(), "--slots", number.c_str(), nullptr);
      _exit(127);
    }
    if (!support::wait_until(std::chrono::seconds(20), [&] { return support::service_pid(data_, "matrix") == pid_; }))
      bench::wrong("the agent did not start: " + program);
  }
  pid_t pid() const { return pid_; }
  ~Agent() {
    kill(pid_, SIGTERM);
    waitpid(pid_, nullptr, 0);
  }

 private:
  std::string data_;
  pid_t pid_;
};

class Matrix {
 public:
  explicit Matrix(const bench::Arguments& arguments) : data_(arguments.address) {
    require(!data_.empty(), "matrix needs --address, the data folder of a running node");
    zht::ClientOptions options;
    options.data_folder = data_;
    options.start_node = false;
    auto client = zht::connect(options);
    if (!client) bench::wrong(client.error().message);
    client_ = *std::move(client);
    auto agent = matrix::agent_name(data_);
    if (!agent) bench::wrong(agent.error().message);
    jobs_ = std::make_unique<matrix::Jobs>(*client_, *agent);
  }
  const std::string& data() const { return data_; }

  double run(const std::vector<std::string>& argv, std::size_t count) {
    bench::Stopwatch watch;
    const std::string id = submit(argv, count);
    const auto state = jobs_->wait(id);
    const double seconds = watch.seconds();
    if (!state) bench::wrong(state.error().message);
    require(state->done == count && state->total == count, "not every task is recorded as done");
    std::size_t recorded = 0;
    for (std::uint32_t chunk = 0; chunk < (count + matrix::kChunkSize - 1) / matrix::kChunkSize; chunk++) {
      const auto results = jobs_->results(id, chunk);
      if (!results) bench::wrong(results.error().message);
      recorded += results->size();
    }
    require(recorded == count, "not every task has exactly one result");
    return seconds;
  }
  void submit_to_result(std::size_t count, bench::Latencies& latencies) {
    for (std::size_t i = 0; i < count; i++) {
      bench::Stopwatch watch;
      const std::string id = submit({"/bin/true"}, 1);
      const auto state = jobs_->wait(id);
      const auto results = jobs_->results(id, 0);
      latencies.add(watch.nanoseconds());
      require(state && state->done == 1 && results && results->size() == 1, "the task has no result");
    }
  }

 private:
  std::string submit(const std::vector<std::string>& argv, std::size_t count) {
    matrix::Job job;
    job.argv = argv;
    job.cwd = "/";
    job.environment = {"PATH=/usr/bin:/bin"};
    job.task_count = static_cast<std::uint32_t>(count);
    auto id = jobs_->submit(std::move(job));
    if (!id) bench::wrong(id.error().message);
    return *id;
  }
  std::string data_;
  std::unique_ptr<zht::Client> client_;
  std::unique_ptr<matrix::Jobs> jobs_;
};

double xargs(const bench::Arguments& arguments, const std::string& command, const std::string& argument,
             std::size_t count, std::size_t width) {
  const std::string items = arguments.folder + "/items";
  {
    std::ofstream file(items);
    for (std::size_t i = 0; i < count; i++) file << (argument.empty() ? std::to_string(i) : argument) << "\n";
  }
  const std::string line = "xargs -n 1 -P " + std::to_string(width) + " " + command + " <" + items;
  bench::Stopwatch watch;
  require(std::system(line.c_str()) == 0, "xargs failed");
  return watch.seconds();
}

void submitted(const bench::Report& report, bench::Latencies& latencies) {
  report.row("submit to result", "p50_ms", latencies.percentile_us(0.5) / 1000);
  report.row("submit to result", "p99_ms", latencies.percentile_us(0.99) / 1000);
  report.row("submit to result", "p999_ms", latencies.percentile_us(0.999) / 1000);
  report.row("submit to result", "max_ms", latencies.max_us() / 1000);
}

// What an agent with nothing to do takes of a core.
void idle(const bench::Report& report, const bench::Arguments& arguments, pid_t agent) {
  std::this_thread::sleep_for(std::chrono::milliseconds(arguments.pick(50, 1000, 1000)));  // the end of what was before
  const double before = bench::processor_seconds(agent);
  bench::Stopwatch watch;
  std::this_thread::sleep_for(std::chrono::milliseconds(arguments.pick(300, 5000, 10000)));
  report.row("idle", "percent_of_core", 100 * (bench::processor_seconds(agent) - before) / watch.seconds());
}

}  // namespace

int main(int argc, char** argv) {
  const bench::Arguments arguments = bench::parse("tasks", {"matrix", "xargs", "spawn_limit"}, argc, argv);
  const bench::Report report(arguments);
  const std::size_t noops = arguments.pick<std::size_t>(200, 10'000, 40'000);
  const auto size = static_cast<std::size_t>(arguments.size);
  const bool is_matrix = arguments.system == "matrix", is_xargs = arguments.system == "xargs";
  if (is_xargs && std::system("command -v xargs >/dev/null") != 0) bench::unavailable("xargs: not on this machine");
  std::unique_ptr<Matrix> matrix;
  if (is_matrix) matrix = std::make_unique<Matrix>(arguments);

  {
    std::unique_ptr<Agent> agent;
    if (is_matrix) {
      agent = std::make_unique<Agent>(matrix->data(), cores());
      matrix->run({"/bin/true"}, 50);  // the agent has met the node
    }
    const double seconds = is_matrix  ? matrix->run({"/bin/true"}, noops)
                           : is_xargs ? xargs(arguments, "/bin/true", "", noops, cores())
                                      : bench::spawn_limit({"/bin/true"}, noops, cores());
    report.row("noop process", "tasks_per_s", static_cast<double>(noops) / seconds);
    if (is_matrix) {
      bench::Latencies latencies;
      matrix->submit_to_result(arguments.pick<std::size_t>(5, 200, 1000), latencies);
      submitted(report, latencies);
      idle(report, arguments, agent->pid());
    } else if (!is_xargs) {
      bench::Latencies latencies;
      for (std::size_t i = 0; i < arguments.pick<std::size_t>(5, 200, 1000); i++)
        latencies.add(static_cast<std::uint64_t>(bench::spawn_limit({"/bin/true"}, 1, 1) * 1e9));
      submitted(report, latencies);
    }
  }
  std::unique_ptr<Agent> agent;
  if (is_matrix) {
    agent = std::make_unique<Agent>(matrix->data(), kWide);
    matrix->run({"/bin/true"}, 50);
  }
  for (const SleepRow& row : kSleeps) {
    const std::size_t rounds = row.rounds[size == 0 ? 0 : size == 1 ? 1 : 2];
    const std::size_t count = kWide * rounds;
    const double seconds = is_matrix  ? matrix->run({"/bin/sleep", row.argument}, count)
                           : is_xargs ? xargs(arguments, "/bin/sleep", row.argument, count, kWide)
                                      : bench::spawn_limit({"/bin/sleep", row.argument}, count, kWide);
    report.row(row.name, "efficiency", row.seconds * static_cast<double>(rounds) / seconds);
  }
  return 0;
}

// What the verbs of `matrix` share: reaching the store and the agent, waiting with Ctrl-C in mind, printing results.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "matrix/jobs.h"
#include "zht/support/process.h"
#include "zht/support/program.h"

namespace matrix {

struct Context {
  const support::CommonFlags* flags = nullptr;
  support::SignalWaiter* signals = nullptr;
};

// A connection, and what was found out on the way.
struct Reach {
  std::string data;  // folder
  std::string agent;
  bool agent_ran = true;  // an agent held its lock when we looked
  std::unique_ptr<zht::Client> client;
  std::unique_ptr<Jobs> jobs;
};
// `with_agent`: see to it that an agent serves (or will in a moment): the node is told to keep one running.
base::Result<Reach> open_session(const Context& context, bool with_agent);
// After a submission: waits until an agent serves, and says on stderr when none does.
void expect_agent(const Context& context, const Reach& session);

// Something beside the job to look at while it runs: `open` is asked for a descriptor once the job has lasted a moment
// (a short job is spared the trouble), `read_on` is called then and whenever it is readable.
struct Follow {
  std::function<int()> open;
  std::function<base::Result<bool>()> read_on;  // true: there is more, ask again soon
};
// Waits for a job's end or Ctrl-C, whichever comes first, calling `tick` whenever its state has changed (at most every
// `pace`; 0: never). SIGINT or SIGTERM: cancels the job, waits for its end, and says so in `interrupted`; or just stops
// waiting. An error of `tick` or `read_on` (standard output was closed) cancels the job too and is returned after its
// end. timeout: it has not ended within `patience` (0: for ever).
struct Ending {
  JobState state;
  bool interrupted = false;
};
struct Waiting {
  std::chrono::milliseconds pace{0};
  std::function<base::Result<void>(const JobState&)> tick;
  Follow follow;
  bool cancels = true;
  std::chrono::milliseconds patience{0};
};
base::Result<Ending> wait_for_end(const Context& context, Reach& reach, const std::string& id, const Waiting& waiting);

// Writes all of it to `fd`, or says why not. Broken pipes end the program quietly elsewhere.
base::Result<void> write_all(int fd, std::string_view data);
// A result's output (or error output) to `fd`, from byte `skip` on; copied from its file when it has one.
base::Result<void> write_output(int fd, const TaskResult& result, bool error_output, std::uint64_t skip = 0);
// The same as a string; cut at `most` bytes.
std::string read_output(const TaskResult& result, bool error_output, std::size_t most = std::size_t{1} << 20);

nlohmann::json json_of(const std::string& id, const Job* job, const JobState& state);
nlohmann::json json_of(const TaskResult& result, const std::string& item, bool with_output);
std::string time_of(std::uint64_t us);  // ISO 8601, or "" for 0
// The item of a task, as its command saw it.
std::string item_of(const Job& job, std::uint32_t task, const std::vector<Item>& items);

void add_submit_verbs(support::Program& program, const Context& context);  // run, map, submit
void add_show_verbs(support::Program& program, const Context& context);    // status, wait, logs, cancel, explain
void add_agent_verb(support::Program& program, const Context& context);

}  // namespace matrix

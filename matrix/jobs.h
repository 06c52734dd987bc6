// Jobs as a library: submit, wait, read results, cancel. All of it is reads and writes of records in the store
// (matrix/README.md); the agent of this machine runs the tasks.
//
//   matrix::Jobs jobs(*client, agent);
//   matrix::Job job; job.argv = {"/bin/echo", "hello"}; job.cwd = "/tmp";
//   TRY_LET(id, jobs.submit(std::move(job)));
//   TRY_LET(state, jobs.wait(id));                  // one callback, no polling
//   TRY_LET(results, jobs.results(id, 0));          // of chunk 0
//
// Any thread, as far as the client allows it.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "matrix/core/records.h"
#include "zht/client.h"

namespace matrix {

class Jobs {
 public:
  // `client` outlives this. `agent`: the name of the agent that gets the jobs submitted here.
  Jobs(zht::Client& client, std::string agent);

  // Writes the job (its id, submitted_us, task_count and has_items are filled in) and tells the agent. `items` empty:
  // job.task_count tasks, numbered only. Returns the id; the job runs from then on, whatever becomes of the caller.
  // invalid: no command, too many tasks, a bad name. After an error nothing runs.
  base::Result<std::string> submit(Job job, const std::vector<Item>& items = {});

  // The id of a job given by id or by name (the latest of that name). not_found names what was given.
  base::Result<std::string> resolve(const std::string& id_or_name);

  base::Result<Job> job(const std::string& id);
  base::Result<JobState> state(const std::string& id);
  // Waits for the job's end. timeout: it has not ended within `patience` (0: for ever).
  base::Result<JobState> wait(const std::string& id, zht::Millis patience = {});
  // Waits until the job's state is another than `seen` (0: answers at once), or has an end.
  struct Seen {
    JobState state;
    zht::Version version = 0;
  };
  base::Result<Seen> wait_for_change(const std::string& id, zht::Version seen, zht::Millis patience);

  // Cancels what has not ended; what ended stays as it is. Fine when the job has ended.
  base::Result<JobState> cancel(const std::string& id, const std::string& reason);

  // The results recorded so far of chunk `chunk`, from byte `*offset` of their record on, which is moved behind them.
  base::Result<std::vector<TaskResult>> results(const std::string& id, std::uint32_t chunk,
                                                std::uint64_t* offset = nullptr);
  base::Result<Chunk> chunk(const Job& job, std::uint32_t chunk);  // one nobody claimed: all tasks fresh
  base::Result<std::vector<Item>> items(const std::string& id, std::uint32_t chunk);

  // Removes all records of a job that has ended. conflict: it has not; cancel it first. Its output files are the
  // caller's business, its line in the history stays.
  base::Result<void> remove(const std::string& id);

  struct Entry {
    std::string id, name;
  };
  // The latest `most` jobs of this agent, oldest first.
  base::Result<std::vector<Entry>> list(std::size_t most);
  base::Result<std::optional<Session>> session();

 private:
  zht::Client& client_;
  std::string agent_;
};

// A job's or agent's name: 1 to 100 letters, digits, '-', '_', '.'; a job's name is not a number.
base::Result<void> check_name(const std::string& name);
// The name of the agent of a data folder, made at first use and kept in <data>/matrix/agent.
base::Result<std::string> agent_name(const std::string& data_folder);

}  // namespace matrix

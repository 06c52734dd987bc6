// The agent: carries the scheduler's actions to the store and to the executor, and their answers back. One loop on the
// caller's thread; the client's and the executor's threads only put notes into its mailbox.
//
//   Agent agent(*client, {.name = "a1b2", .data_folder = data, .slots = 2});
//   TRY(agent.run(signals.fd()));    // until a signal
//
// It survives the death of the store's node: tasks go on, records and claims are repeated until they are answered. When
// the agent itself dies, the next one (a higher incarnation) kills what is left of its processes, claims its chunks and
// runs again what has no recorded end.
#pragma once

#include <memory>
#include <string>

#include "matrix/core/records.h"
#include "zht/client.h"

namespace matrix {

class Agent {
 public:
  struct Options {
    std::string name;         // unique among the agents of a cluster
    std::string data_folder;  // outputs go to <data_folder>/matrix/<job>/
    std::uint32_t slots = 0;  // 0: as many as cores
  };
  Agent(zht::Client& client, Options options);
  ~Agent();

  // Serves until `stop_fd` becomes readable, then ends what runs (it runs again under the next agent) and records what
  // has ended. conflict: a later incarnation of the same name has taken over.
  base::Result<void> run(int stop_fd);

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

}  // namespace matrix

// matrix: runs commands as tasks, one or a million, recorded in the store.
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>

#include "matrix/agent/agent.h"
#include "matrix/tool/common.h"
#include "zht/support/log.h"
#include "zht/support/paths.h"
#include "zht/support/service.h"

namespace matrix {

void add_agent_verb(support::Program& program, const Context& context) {
  struct Flags {
    std::uint32_t slots = 0;
  };
  auto flags = std::make_shared<Flags>();
  auto& verb =
      program.verb("agent", "Runs this machine's tasks until it is told to stop (the local node starts it by itself).",
                   {"matrix agent", "matrix agent --slots 8 --cluster 10.0.0.1:5470"});
  verb.options()
      .add_option("--slots", flags->slots, "cpus to give to tasks at a time; default: as many as cores")
      ->check(CLI::Range(1u, 100'000u));
  verb.action([flags, &context]() -> base::Result<void> {
    TRY(support::set_log({.level = support::level_from(context.flags->verbosity, support::Level::info)}));
    TRY_LET(data, support::data_folder(context.flags->data));
    TRY(support::make_private_folder(data));
    TRY_LET(lock, support::hold_service(data, "matrix"));
    TRY_LET(name, agent_name(data));
    zht::ClientOptions options = context.flags->client_options();
    options.data_folder = data;
    TRY_LET(client, zht::connect(options));
    Agent agent(*client, {.name = name, .data_folder = data, .slots = flags->slots});
    return agent.run(context.signals->fd());
  });
}

}  // namespace matrix

int main(int argc, char** argv) {
  signal(SIGPIPE, SIG_IGN);
  support::SignalWaiter signals({SIGINT, SIGTERM, SIGHUP});
  support::Program program("matrix", "runs commands as tasks, one or a million, each recorded exactly once",
                           {"matrix run -- make test", "matrix map -a files.txt -- wc -w {}"});
  const matrix::Context context{&program.common(), &signals};
  matrix::add_submit_verbs(program, context);
  matrix::add_show_verbs(program, context);
  matrix::add_agent_verb(program, context);
  return program.run(argc, argv);
}

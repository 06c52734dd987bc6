// The `zht` program.
#include "zht/procedure.h"
#include "zht/support/program.h"
#include "zht/tool/serve.h"
#include "zht/tool/verbs.h"

int main(int argc, char** argv) {
  support::Program program("zht", "the zero-hop hash table",
                           {"zht insert greeting hello", "zht lookup greeting"});
  zht::Procedures procedures;
  zht::tool::add_all_procedures(procedures);
  zht::tool::add_key_verbs(program);
  zht::tool::add_pipe_verb(program);
  zht::tool::add_serve(program, procedures);
  zht::tool::add_node_verbs(program);
  zht::tool::add_recover_verb(program);
  zht::tool::add_backup_verbs(program);
  zht::tool::add_top_verb(program);
  zht::tool::add_secret_verb(program);
  zht::tool::add_local_cluster_verbs(program);
  zht::tool::add_bench_verb(program);
  return program.run(argc, argv);
}

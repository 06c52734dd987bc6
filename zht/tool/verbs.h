// The verbs of the `zht` program, each group in a file of its own.
#pragma once

#include "zht/support/program.h"

namespace zht::tool {

void add_key_verbs(support::Program& program);    // insert lookup remove append cswap callback update scan batch
void add_pipe_verb(support::Program& program);    // pipe
void add_node_verbs(support::Program& program);   // status members stop leave migrate
void add_recover_verb(support::Program& program);  // recover
void add_backup_verbs(support::Program& program);  // backup restore
void add_top_verb(support::Program& program);     // top
void add_secret_verb(support::Program& program);  // secret
void add_local_cluster_verbs(support::Program& program);  // cluster up, cluster down, cluster status
void add_bench_verb(support::Program& program);   // bench

}  // namespace zht::tool

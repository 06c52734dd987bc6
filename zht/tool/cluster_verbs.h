// What status says of the cluster, for people and as JSON; the verbs that change it.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "zht/support/program.h"
#include "zht/wire/zht.pb.h"

namespace zht::tool {

nlohmann::json cluster_json(const wire::ClusterStatus& cluster);
// One screen: the nodes, and whether the data is safe.
void print_cluster(const wire::ClusterStatus& cluster);
void print_nodes(const wire::ClusterStatus& cluster);
void add_cluster_verbs(support::Program& program);  // leave, migrate

}  // namespace zht::tool

// How a cluster begins: from one node, or from a list of nodes that all are started with. The first views follow from the list
// alone, so every node computes the same and nobody has to be asked.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "zht/core/replication/view.h"

namespace zht::server {

// Node n (numbered from 1) has the instances (n - 1) * kInstancesOfNode and on.
inline constexpr std::uint32_t kInstancesOfNode = replication::kMostInstancesOfNode;
inline constexpr std::uint32_t first_instance(std::uint64_t node) { return static_cast<std::uint32_t>(node - 1) * kInstancesOfNode; }
inline constexpr std::uint64_t node_of(InstanceId instance) { return static_cast<std::uint32_t>(instance) / kInstancesOfNode + 1; }

// How many nodes they are on.
inline std::size_t nodes_of(const replication::Members& members) {
  std::set<std::uint64_t> nodes;
  for (replication::Member one : members) nodes.insert(node_of(one.instance));
  return nodes.size();
}

struct Founder {
  std::string address;        // host:port of its manager; empty: a node that began alone
  std::uint32_t instances = 1;
  std::string rack;
  bool operator==(const Founder&) const = default;
};

struct Founding {
  std::vector<Founder> nodes;  // number n at n - 1; none: this node joined later and founded nothing
  std::uint32_t partitions = 0;
  std::uint32_t copies = 3, sync_copies = 2;
  std::size_t keepers() const { return std::min<std::size_t>(nodes.size(), 3); }  // the first so many
};

// By partition: epoch 1, all members in their first incarnation. Ranges of the ring in the order of the instances; the other
// copies on the nodes after, another rack before the same one.
std::vector<replication::View> first_views(const Founding& founding);
// The same for every node that computes it from the same list.
std::uint64_t cluster_id(const Founding& founding);

// What --nodes takes: a file with host:port a line, optionally followed by instances=N and rack=NAME ('#' begins a comment), or
// slurm:LIST with a Slurm node list ("slurm:node[01-10,12]", "slurm:" alone takes $SLURM_JOB_NODELIST), whose managers listen
// at `port`. `instances`: of a node whose line says nothing. Errors: invalid (line and what is wrong), not_found, io.
base::Result<std::vector<Founder>> parse_nodes(const std::string& text, std::uint16_t port, std::uint32_t instances);
// "a[01-03,7],b" -> a01 a02 a03 a7 b. invalid.
base::Result<std::vector<std::string>> expand_hosts(const std::string& list);
std::uint32_t rack_number(const std::string& name);  // empty: 0; racks are compared, nothing else

}  // namespace zht::server

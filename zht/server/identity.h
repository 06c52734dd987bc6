// What a node is, kept in <data folder>/node.json: its id, the cluster it belongs to and its number there, how its data is laid
// out, and its incarnation, which grows, durably, at every start before anything is served: 1 in the first life, then the
// microseconds since 1970, so that no two lives have the same, not even where an older copy of the folder was put back.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "novoht/base/result.h"
#include "zht/core/view.h"
#include "zht/server/founding.h"

namespace zht::server {

inline constexpr std::uint32_t kDataFormat = 1;

struct Identity {
  core::Member member;
  std::uint32_t instance_count = 0;
  std::uint32_t partition_count = 0;
  std::uint64_t cluster = 0;  // random, or made from the list of nodes
  std::uint64_t number = 1;   // of the node in its cluster
  Founding founding;          // how the cluster began, where this node was there
  std::vector<std::uint64_t> keepers;  // numbers of the nodes that decide
  std::uint64_t config = 1;            // of the keepers: grows when they change
  // The newest such configuration in which this node has voted, 0 none; nothing: a build that did not note it may have.
  std::optional<std::uint64_t> voted = 0;
};

// Reads the identity of the node in `folder`. 0 wanted: whatever it has. Errors: not_found (a new folder), invalid (made with
// other counts; what to do), unsupported (a newer format), corrupt, io.
base::Result<Identity> read_identity(const std::string& folder, std::uint32_t wanted_instances, std::uint32_t wanted_partitions);
// Begins another life of it, the first one of a fresh_identity() too. io, no_space.
base::Result<void> begin_life(const std::string& folder, Identity& identity);

// Durably what it is now. io, no_space.
base::Result<void> save_identity(const std::string& folder, const Identity& identity);

// Of a node that begins, alone. 0 wanted: `default_instances`, 1024. invalid: fewer partitions than instances.
base::Result<Identity> fresh_identity(std::uint32_t wanted_instances, std::uint32_t wanted_partitions,
                                      std::uint32_t default_instances);

}  // namespace zht::server

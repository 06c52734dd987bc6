// What a node is, kept in <data folder>/node.json: its id, how its data is laid out, and its incarnation, which grows,
// durably, at every start before anything is served.
#pragma once

#include <cstdint>
#include <string>

#include "novoht/base/result.h"
#include "zht/core/view.h"

namespace zht::server {

inline constexpr std::uint32_t kDataFormat = 1;

struct Identity {
  core::Member member;
  std::uint32_t instance_count = 0;
  std::uint32_t partition_count = 0;
};

// Reads the identity of the node in `folder`, or makes one with the wanted counts, and begins a new life of it.
// 0 wanted: whatever it has (new: `default_instances`, 1024). Errors: invalid (made with other counts; what to do),
// unsupported (a newer format), corrupt, io, no_space.
base::Result<Identity> begin_life(const std::string& folder, std::uint32_t wanted_instances, std::uint32_t wanted_partitions,
                                  std::uint32_t default_instances);

// Of a node that keeps nothing: another at each start. invalid: fewer partitions than instances.
base::Result<Identity> fresh_identity(std::uint32_t wanted_instances, std::uint32_t wanted_partitions,
                                      std::uint32_t default_instances);

}  // namespace zht::server

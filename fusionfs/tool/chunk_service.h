// The service that gives a node's chunks to the other nodes, mounts or none: `fusionfs serve`. A node of a cluster keeps it
// running (zht/support/service.h), also after a reboot, from the first mount on that node on.
#pragma once

#include <cstdint>
#include <string>

#include "novoht/base/result.h"

namespace support {
struct CommonFlags;
}

namespace fusionfs {

// services/<this>.lock is held by the process that serves the node's chunks: the service, or a mount where no node runs.
inline constexpr const char* kChunkService = "fusionfs-chunks";

// CommonFlags::named_cluster(); empty: the local node.
std::string cluster_of(const support::CommonFlags& common);
// Where the cluster is that this node's chunks are for: cluster_of(), else where the running local node of `data` is reached by
// others; empty: it is not, and there are no others.
std::string cluster_around(const support::CommonFlags& common, const std::string& data);
// The address of this node as the first node of `cluster` sees it; 127.0.0.1 where that cannot be told.
std::string own_address(const std::string& cluster);

struct Listen {
  std::string host;
  std::uint16_t port = 0;  // 0: any
};
// "10.0.0.1", "10.0.0.1:5480", "[::1]:5480", ":5480". invalid otherwise.
base::Result<Listen> parse_listen(const std::string& text);

// Has the node of `data` keep the service running from now on, and waits for it to serve. unavailable: it does not within 10 s.
base::Result<void> keep_chunks_served(const support::CommonFlags& common, const std::string& data, const Listen& listen);

}  // namespace fusionfs

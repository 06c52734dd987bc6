// A ManagerMessage as the frame that managers send each other: protobuf (zht.proto), since it is rare and grows with time.
#pragma once

#include <string>

#include "zht/core/replication/manager.h"
#include "zht/wire/frame.h"

namespace zht::wire {
class ReplicaView;
}

namespace zht::server {

// One frame of type manager.
void encode_manager(std::string& out, const replication::ManagerMessage& message, std::uint64_t cluster);
// Of a cluster of so many partitions. invalid: not a ManagerMessage, or one with a number that cannot be (replication/bounds.h).
base::Result<replication::ManagerMessage> decode_manager(const wire::Frame& frame, std::uint32_t partitions);

void to_proto(wire::ReplicaView& to, const replication::View& view);
replication::View from_proto(const wire::ReplicaView& from);

}  // namespace zht::server

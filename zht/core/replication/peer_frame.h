// A PeerMessage as bytes: the hot path between instances, so encoded by hand. PROTOCOL.md, "Between nodes", is the contract.
//
// An entry goes to several followers, and its payload may be long: such a payload is not copied into the frame but stays
// where it is and is gathered when the frame is sent. Short ones are cheaper to copy than to gather.
#pragma once

#include "zht/core/replication/peer_message.h"
#include "zht/wire/frame.h"
#include "zht/wire/gathered.h"

namespace zht::replication {

inline constexpr std::size_t kGatherFrom = 8 << 10;      // bytes of a payload that is not copied
inline constexpr std::size_t kPeerFrameSize = 8 << 20;   // a frame that has grown past this is ended, and another begun

// Appends frames (one, unless there is much to say) that carry `message`. `cluster`: of whom both are members; nodes of
// another take no notice.
void encode_peer(wire::Gathered& out, const PeerMessage& message, std::uint64_t cluster);
// Of a cluster of so many partitions. invalid: not of this shape, or with a number that cannot be (bounds.h); unsupported: of a later build.
Result<PeerMessage> decode_peer(const wire::Frame& frame, std::uint32_t partitions);
// Which cluster a frame of type peer or manager belongs to.
inline std::uint64_t cluster_of(const wire::Frame& frame) { return frame.first; }

}  // namespace zht::replication

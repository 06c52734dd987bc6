// What the simulated network carries, and what the world may decide to do next.
#pragma once

#include <memory>
#include <variant>
#include <vector>

#include "tests/sim/history.h"
#include "zht/core/replication/manager.h"

namespace zht::sim {

struct GetViews {};
struct Views {
  std::vector<replication::View> views;
};
using Packet = std::variant<replication::PeerMessage, replication::ManagerMessage, Request, Reply, GetViews, Views>;
using PacketPtr = std::shared_ptr<const Packet>;

enum class Fault : std::uint8_t {
  crash_primary, power_primary, power_many, isolate, split, one_way, peers_only, pause, slow_network, slow_disk, move, ragged,
  full_disk, failing_disk, come_and_go, interrupt_vote, stall_link, clock, count
};

}  // namespace zht::sim

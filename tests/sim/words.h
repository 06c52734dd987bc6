// What instances say to each other, for people who follow a run.
#pragma once

#include <string>
#include <vector>

#include "zht/core/replication/peer_message.h"

namespace zht::sim {

std::vector<std::string> words_of(const replication::PeerMessage& message);

}  // namespace zht::sim

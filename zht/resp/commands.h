// What a Redis command means here: which operations of the store it takes, and how their outcomes read as a reply. No I/O.
//
// The keys and values are the ones every other client sees. Understood: PING ECHO SELECT(0) QUIT HELLO(2) CLIENT COMMAND
// CONFIG(GET) INFO, GET SET(NX XX EX PX) SETNX SETEX PSETEX DEL UNLINK EXISTS APPEND STRLEN GETRANGE MGET MSET INCR DECR
// INCRBY DECRBY TYPE, and
//   ZHT.CSWAP key expected new      the new version, or nil when the value is another (or absent)
//   ZHT.CALLBACK key timeout_ms [VALUE v | AFTER version | PRESENT | ABSENT]   [version, value], or nil after the timeout
//   ZHT.VERSION key                 the version of a key, or nil
// MSET is one atomic batch when all keys are in one partition (one {tag}); else it is refused, as a cluster's node would.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "zht/client.h"

namespace zht::resp {

struct Plan {
  std::vector<Operation> operations;   // none: `reply` is there already
  std::string reply;
  std::function<void(std::vector<Outcome>& outcomes, std::string& out)> render;
  std::chrono::milliseconds timeout{0};  // of the operations; 0: the client's own
  bool close = false;                  // after the reply
};

// `info` answers INFO. Unknown commands and wrong arguments make a plan whose reply is an error, worded as Redis words it.
Plan plan(const std::vector<std::string>& command, std::uint32_t partition_count, const std::function<std::string()>& info);

}  // namespace zht::resp

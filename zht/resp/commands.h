// What a Redis command means here: which operations of the store it takes, and how their outcomes read as a reply. No
// I/O.
//
// The keys and values are the ones every other client sees; README.md beside this file lists the commands. A command is
// planned one step at a time: a step is some operations, a question to the node, or nothing, and then its reply or the
// next step.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "zht/client.h"
#include "zht/resp/procedures.h"
#include "zht/resp/reply.h"
#include "zht/resp/table.h"
#include "zht/security/prover.h"

namespace zht::resp {

// What INFO, DBSIZE and CLIENT LIST tell of the node and the gateway.
struct Facts {
  std::uint64_t keys = 0, memory_bytes = 0, disk_bytes = 0, operations = 0, uptime_ms = 0;
  std::uint64_t connections = 0, commands = 0, accepted = 0, refused = 0;  // of the gateway
  std::size_t max_connections = 0;
  std::string durability;
};

// What a connection has said so far. Outlives the plans made with it.
struct Session {
  std::uint64_t id = 0;
  std::string peer;  // host:port
  const security::Prover* prover = nullptr;  // of what AUTH has to bring; null: nothing
  bool authenticated = false;
  bool let_in() const { return prover == nullptr || authenticated; }
  int protocol = 2;
  std::string name, library, library_version;
  bool in_multi = false, spoiled = false;  // spoiled: EXEC will refuse, as a command could not be queued
  std::size_t queued_bytes = 0;
  std::vector<Command> queued;
  std::vector<Watched> watched;
  void end_multi() {
    in_multi = spoiled = false;
    queued_bytes = 0;
    queued.clear();
    watched.clear();
  }
};

struct Plan {
  std::vector<Operation> operations;
  bool asks_node = false;  // `render` gets the facts
  std::string reply;       // when there is nothing to wait for
  // After the last outcome; writes the reply, or returns the next step. Not set: `reply` is all.
  std::function<void(std::vector<Outcome>& outcomes, const Facts& facts, Reply& out)> render;
  std::function<Plan(std::vector<Outcome>& outcomes)> next;
  std::vector<Command> follow;           // after the reply, as if they had come next: what EXEC runs one by one
  std::chrono::milliseconds timeout{0};  // of the operations; 0: the client's own
  bool barrier = false;                  // no later command of the connection starts before this one has ended
  bool close = false;                    // after the reply
};

// Unknown commands and wrong arguments make a plan whose reply is an error, worded as Redis words it.
Plan plan(Session& session, Command command, std::uint32_t partition_count);

}  // namespace zht::resp

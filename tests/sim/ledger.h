// Every entry that any primary ever made, by its place in the logs: what a partition's log, and so its tables, must be at a
// position is given by the position alone. Whatever an instance holds, after whatever crash, rewind, snapshot or recovery,
// is compared with that.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "novoht/store.h"
#include "zht/core/replication/peer_message.h"

namespace zht::sim {

using replication::Position;

class Ledger {
 public:
  struct Value {
    std::shared_ptr<const std::string> bytes;
    std::uint32_t fragments = 0;
    Version version = 0;
  };
  using State = std::map<std::string, Value>;
  struct Item {
    Position at, previous;
    std::uint64_t client = 0, sequence = 0;  // 0: nobody asked for it
    std::vector<std::string> keys;           // it changed
    State state;                             // with it
  };

  // Items of one partition are told after their predecessors. Empty: well; else what is wrong.
  std::string add(std::uint32_t partition, Position at, Position previous, std::span<const novoht::Change> changes, Bytes note);
  const Item* find(std::uint32_t partition, Position at) const;
  // The items from after `from` to `to`, both in one log; nothing when they are not, or not known.
  std::optional<std::vector<const Item*>> path(std::uint32_t partition, Version from, Position to) const;
  // Empty when the table is what it must be at `at`; else what differs.
  std::string compare(std::uint32_t partition, Position at, const novoht::Store& store) const;

 private:
  std::map<std::pair<std::uint32_t, std::pair<std::uint64_t, Version>>, Item> items_;
};

}  // namespace zht::sim

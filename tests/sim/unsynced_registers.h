// What the defect keeper_unsynced puts in the place of a keeper's registers.
#pragma once

#include <map>

#include "zht/core/replication/keeper.h"

namespace zht::sim {

// A register store that does not wait for the disk.
class UnsyncedRegisters final : public replication::RegisterStore {
 public:
  UnsyncedRegisters(novoht::Store& store) : real_(store, novoht::TableId{0}) {}
  Result<void> load(std::vector<replication::Register>& registers) const override { return real_.load(registers); }
  Result<void> save(std::span<const Item> items) override {
    if (++saves_ % 50 == 0) return real_.save(items);  // sooner or later the disk has it
    for (const Item& item : items) last_[static_cast<std::uint32_t>(item.partition)] = *item.state;
    return {};
  }

 private:
  replication::StoredRegisters real_;
  std::map<std::uint32_t, replication::Register> last_;
  std::uint64_t saves_ = 0;
};

}  // namespace zht::sim

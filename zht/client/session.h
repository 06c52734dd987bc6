// What all threads of one client share: who it is, what it has asked, and whom it asks.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "novoht/base/clock.h"
#include "zht/client/channel.h"
#include "zht/client/sequencer.h"
#include "zht/client/table.h"

namespace zht::client {

// True when the operation may change something, so that a retry of it must be recognised.
inline bool is_recorded(OpKind kind) {
  return kind != OpKind::lookup && kind != OpKind::callback && kind != OpKind::scan;
}

// The partition an operation goes to; the operation is valid.
inline PartitionId partition_of(const Operation& operation, std::uint32_t partition_count) {
  if (operation.kind == OpKind::scan) return operation.partition;
  return zht::partition_of(operation.kind == OpKind::batch ? operation.operations[0].key : operation.key, partition_count);
}

// Any thread.
class Session {
 public:
  Session(std::uint64_t id, std::shared_ptr<const Table> table) : id_(id), table_(std::move(table)) {}

  std::uint64_t id() const { return id_; }
  std::shared_ptr<const Table> table() const {
    const std::lock_guard lock(mutex_);
    return table_;
  }
  void set_table(std::shared_ptr<const Table> table) {
    const std::lock_guard lock(mutex_);
    table_ = std::move(table);
  }
  std::uint64_t begin() {
    const std::lock_guard lock(mutex_);
    return sequencer_.begin();
  }
  void end(std::uint64_t sequence) {
    const std::lock_guard lock(mutex_);
    sequencer_.end(sequence);
  }
  std::uint64_t floor() const {
    const std::lock_guard lock(mutex_);
    return sequencer_.floor();
  }
  bool idle() const {
    const std::lock_guard lock(mutex_);
    return sequencer_.idle();
  }
  bool used() const {  // anything recorded was ever asked
    const std::lock_guard lock(mutex_);
    return sequencer_.floor() > 0 || !sequencer_.idle();
  }

  // A synchronous call in one critical section at its beginning and one at its end.
  struct Ticket {
    std::shared_ptr<const Table> table;
    std::unique_ptr<Channel> channel;  // idle until now; may be none
    std::uint64_t sequence = 0;        // 0: not recorded
    std::uint64_t floor = 0;
    bool may_open = true;  // another channel to this instance is allowed
  };
  Ticket take(std::uint32_t partition, bool recorded) {
    const std::lock_guard lock(mutex_);
    Ticket ticket;
    ticket.table = table_;
    if (recorded) ticket.sequence = sequencer_.begin();
    ticket.floor = sequencer_.floor();
    Pool& pool = pools_[table_->instances[table_->owners[partition].instance].id];
    if (!pool.idle.empty()) {
      ticket.channel = std::move(pool.idle.back());
      pool.idle.pop_back();
    } else {
      ticket.may_open = pool.open < kMaxChannels;
      if (ticket.may_open) pool.open++;
    }
    return ticket;
  }
  // Ends what take() began; `ended`: the sequence number was answered or given up.
  void give_back(Ticket ticket, std::uint32_t instance, bool channel_well, bool ended) {
    std::vector<std::unique_ptr<Channel>> closed;  // outside the lock
    const std::lock_guard lock(mutex_);
    if (ticket.sequence != 0 && ended) sequencer_.end(ticket.sequence);
    Pool& pool = pools_[instance];
    if (channel_well) {
      pool.idle.push_back(std::move(ticket.channel));
      return;
    }
    // The others lead to the same place: better to connect anew than to fail on each of them.
    if (ticket.channel || ticket.may_open) pool.open--;
    pool.open -= static_cast<unsigned>(pool.idle.size());
    closed.swap(pool.idle);
    if (ticket.channel) closed.push_back(std::move(ticket.channel));
  }
  // One idle channel of each instance, for a last word.
  std::map<std::uint32_t, std::unique_ptr<Channel>> last_channels() {
    const std::lock_guard lock(mutex_);
    std::map<std::uint32_t, std::unique_ptr<Channel>> channels;
    for (auto& [instance, pool] : pools_)
      if (!pool.idle.empty()) channels[instance] = std::move(pool.idle.back());
    pools_.clear();
    return channels;
  }

 private:
  static constexpr unsigned kMaxChannels = 64;  // to one instance; more threads than that share the pipelined connection
  struct Pool {
    std::vector<std::unique_ptr<Channel>> idle;
    unsigned open = 0;  // idle or in use
  };
  const std::uint64_t id_;
  mutable std::mutex mutex_;
  std::shared_ptr<const Table> table_;
  Sequencer sequencer_;
  std::map<std::uint32_t, Pool> pools_;  // by instance id
};

}  // namespace zht::client

// What all threads of one client share: who it is, what it has asked, and whom it asks.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "novoht/base/clock.h"
#include "novoht/base/random.h"
#include "zht/client/channel.h"
#include "zht/client/sequencer.h"
#include "zht/client/table.h"

namespace zht::client {

// True when the operation may change something, so that a retry of it must be recognised.
inline bool is_recorded(OpKind kind) {
  return kind != OpKind::lookup && kind != OpKind::callback && kind != OpKind::scan;
}

using zht::partition_of;

// Under which name requests are recorded. The store keeps results for an hour after a name's last change and then no longer
// knows what it has seen, so a client goes on under a new name well before that; requests end under the name they began
// with. PROTOCOL.md, "Identity of a request".
struct Identity {
  std::uint64_t id = 0;
  base::Time since{};
  Sequencer sequencer;
};
inline constexpr auto kIdentityLife = std::chrono::minutes(20);

// How long one of several nodes may be silent before another is thought of.
inline constexpr auto kPatienceAmongOthers = std::chrono::milliseconds(300);

// The time in quarter minutes above, random bits below.
inline std::uint64_t new_client_id() {
  const std::uint64_t time = base::to_millis(base::SystemClock().wall()) / 4000;
  return time << 34 | (base::entropy() >> 30);
}

// Any thread.
class Session {
 public:
  explicit Session(std::shared_ptr<const Table> table, std::size_t max_idle = 256) : table_(std::move(table)), max_idle_(max_idle) {
    rename(base::SystemClock().now());
  }

  std::uint64_t id() const {
    const std::lock_guard lock(mutex_);
    return current_->id;
  }
  std::shared_ptr<const Table> table() const {
    const std::lock_guard lock(mutex_);
    return table_;
  }
  // The newer view of each partition counts, wherever it was heard of.
  void set_table(std::shared_ptr<const Table> table) {
    const std::lock_guard lock(mutex_);
    table_ = merged(*table_, std::move(table));
  }
  // A refusal said who leads now. False: that was known, or the instance is not.
  bool learn(std::uint32_t partition, std::uint32_t instance, std::uint64_t epoch) {
    const std::lock_guard lock(mutex_);
    auto better = with_owner(*table_, partition, instance, epoch);
    if (!better) return false;
    table_ = std::move(better);
    return true;
  }
  // Requests sent, answers had, and refusals that sent them elsewhere: in a settled cluster the first two are equal and the last
  // is zero.
  struct Counts {
    std::atomic<std::uint64_t> requests{0}, replies{0}, redirects{0};
  };
  Counts& counts() { return counts_; }
  // The identity stays valid until end().
  struct Number {
    Identity* identity = nullptr;
    std::uint64_t sequence = 0;
  };
  Number begin(base::Time now) {
    const std::lock_guard lock(mutex_);
    if (now - current_->since > kIdentityLife) rename(now);
    return {current_.get(), current_->sequencer.begin()};
  }
  void end(Number number) {
    const std::lock_guard lock(mutex_);
    number.identity->sequencer.end(number.sequence);
  }
  std::uint64_t floor(const Identity& identity) const {
    const std::lock_guard lock(mutex_);
    return identity.sequencer.floor();
  }
  // Something recorded was asked under the current name, and all of it is settled.
  bool may_say_goodbye() const {
    const std::lock_guard lock(mutex_);
    return current_->sequencer.floor() > 0 && current_->sequencer.idle();
  }

  // A synchronous call in one critical section at its beginning and one at its end.
  struct Ticket {
    std::shared_ptr<const Table> table;
    std::unique_ptr<Channel> channel;  // idle until now; may be none
    std::uint64_t client = 0;
    Number number;                     // sequence 0: not recorded
    std::uint64_t floor = 0;
    bool may_open = true;  // another channel to this instance is allowed
  };
  Ticket take(PartitionId partition, std::uint32_t turn, bool recorded, base::Time now) {
    const std::lock_guard lock(mutex_);
    Ticket ticket;
    ticket.table = table_;
    if (recorded) {
      if (now - current_->since > kIdentityLife) rename(now);
      ticket.number = {current_.get(), current_->sequencer.begin()};
    }
    ticket.client = current_->id;
    ticket.floor = current_->sequencer.floor();
    borrow(ticket, table_->instances[table_->asked(partition, turn)].id);
    return ticket;
  }
  // A channel to `instance`, for requests that are numbered one by one (begin).
  Ticket take_channel(std::uint32_t instance) {
    const std::lock_guard lock(mutex_);
    Ticket ticket;
    ticket.table = table_;
    borrow(ticket, instance);
    return ticket;
  }
  // Ends what take() began; `ended`: the sequence number was answered or given up.
  void give_back(Ticket ticket, std::uint32_t instance, bool channel_well, bool ended) {
    std::vector<std::unique_ptr<Channel>> closed;  // outside the lock
    const std::lock_guard lock(mutex_);
    if (ticket.number.sequence != 0 && ended) ticket.number.identity->sequencer.end(ticket.number.sequence);
    Pool& pool = pools_[instance];
    if (channel_well) {
      pool.idle.push_back({std::move(ticket.channel), ++uses_});
      if (++idle_ > max_idle_) closed.push_back(least_used());
      return;
    }
    if (const auto at = ticket.channel ? ticket.channel->fell_silent() : std::nullopt) {
      pool.silences = std::min(steps(pool, *at) + 1, kMostSilences);
      pool.silent_at = *at;
    }
    // The others lead to the same place: better to connect anew than to fail on each of them.
    if (ticket.channel || ticket.may_open) pool.open--;
    pool.open -= static_cast<unsigned>(pool.idle.size());
    idle_ -= pool.idle.size();
    for (Idle& one : pool.idle) closed.push_back(std::move(one.channel));
    pool.idle.clear();
    if (ticket.channel) closed.push_back(std::move(ticket.channel));
  }
  // How long a new channel to `instance` may be silent: shortly at first where others can take over, and longer where the way is
  // long, so that not each call ends its channel and is made again. A step in ten seconds it is shorter again.
  base::Duration patience(std::uint32_t instance, base::Time now) {
    const std::lock_guard lock(mutex_);
    if (table_->lone) return kPatience;
    return std::min<base::Duration>(kPatience, kPatienceAmongOthers * (1 << steps(pools_[instance], now)));
  }
  // One idle channel of each instance, for a last word.
  std::map<std::uint32_t, std::unique_ptr<Channel>> last_channels() {
    const std::lock_guard lock(mutex_);
    std::map<std::uint32_t, std::unique_ptr<Channel>> channels;
    for (auto& [instance, pool] : pools_)
      if (!pool.idle.empty()) channels[instance] = std::move(pool.idle.back().channel);
    pools_.clear();
    idle_ = 0;
    return channels;
  }

 private:
  static constexpr unsigned kMaxChannels = 64;  // to one instance; more threads than that share the pipelined connection
  struct Idle {
    std::unique_ptr<Channel> channel;
    std::uint64_t used = 0;  // when: by uses_
  };
  struct Pool {
    std::vector<Idle> idle;  // the last one was used last
    unsigned open = 0;       // idle or in use
    int silences = 0;        // of late, at most so many count
    base::Time silent_at{};
  };
  static constexpr int kMostSilences = 3;
  static int steps(const Pool& pool, base::Time now) {
    const auto passed = (now - pool.silent_at) / std::chrono::seconds(10);
    return passed >= pool.silences ? 0 : pool.silences - static_cast<int>(passed);
  }
  void borrow(Ticket& ticket, std::uint32_t instance) {
    Pool& pool = pools_[instance];
    if (!pool.idle.empty()) {
      ticket.channel = std::move(pool.idle.back().channel);
      pool.idle.pop_back();
      idle_--;
    } else {
      ticket.may_open = pool.open < kMaxChannels;
      if (ticket.may_open) pool.open++;
    }
  }
  // Takes the idle channel that has been unused for longest out of its pool; there is one.
  std::unique_ptr<Channel> least_used() {
    Pool* oldest = nullptr;
    for (auto& [instance, pool] : pools_)
      if (!pool.idle.empty() && (oldest == nullptr || pool.idle.front().used < oldest->idle.front().used)) oldest = &pool;
    std::unique_ptr<Channel> channel = std::move(oldest->idle.front().channel);
    oldest->idle.erase(oldest->idle.begin());
    oldest->open--;
    idle_--;
    return channel;
  }
  void rename(base::Time now) {
    std::erase_if(former_, [](const auto& one) { return one->sequencer.idle(); });
    if (current_ && !current_->sequencer.idle()) former_.push_back(std::move(current_));
    current_ = std::make_unique<Identity>(Identity{new_client_id(), now, {}});
  }
  Counts counts_;
  mutable std::mutex mutex_;
  std::unique_ptr<Identity> current_;
  std::vector<std::unique_ptr<Identity>> former_;  // with requests still open
  std::shared_ptr<const Table> table_;
  std::map<std::uint32_t, Pool> pools_;  // by instance id
  const std::size_t max_idle_;           // channels, over all pools
  std::size_t idle_ = 0;
  std::uint64_t uses_ = 0;
};

}  // namespace zht::client

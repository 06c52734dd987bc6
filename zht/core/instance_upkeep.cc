// What an instance does by itself as time passes, and when it has some of that to do next: nothing is looked at before it is due.
#include <algorithm>

#include "novoht/base/mutant.h"
#include "zht/core/instance.h"

namespace zht::core {

using novoht::Change;
using novoht::TableId;

namespace {

constexpr auto kLookAhead = std::chrono::seconds(1);         // for keys that expire
constexpr auto kLookAgain = std::chrono::milliseconds(900);  // sooner: clocks need not agree that well
constexpr auto kAtRest = std::chrono::milliseconds(500);     // between looks at a store in which nothing changes
constexpr auto kBusy = std::chrono::seconds(1);              // after it was used, or housekeeping got on, a store is not at rest

TableId table_of(PartitionId partition) { return static_cast<TableId>(partition); }
std::uint32_t number_of(PartitionId partition) { return static_cast<std::uint32_t>(partition); }

}  // namespace

base::Time Instance::next_due() const {
  if (cut_ != nullptr || pauses()) return {};
  base::Time due = std::min(next_forget_, watchers_.next_deadline());
  if (failure_.empty()) due = std::min({due, next_keep_, next_expiry_, next_departed_});
  return options_.clustered ? std::min(due, replicator_->next_due()) : due;
}

void Instance::on_tick() {
  tend_cut();
  for (const Watcher& watcher : watchers_.take_overdue(now_)) {
    Outcome outcome;
    outcome.code = Code::timeout;
    outcome.message = "the condition on key \"" + base::escape(watcher.key) + "\" did not come to hold in time";
    sends_.push_back({watcher.connection, frame_for(watcher, outcome)});
  }
  if (options_.clustered) replicator_->tick();
  if (failure_.empty()) {
    if (now_ >= next_departed_) forget_departed();
    if (now_ >= next_expiry_) reap_expired();
    if (now_ >= next_keep_) (void)keep_house(options_.maintain_budget);
  }
  if (now_ >= next_forget_) {
    next_forget_ = now_ + std::chrono::minutes(1);
    results_->forget_silent(now_ms_);
  }
}

// Nothing tells that work which the store has given to another thread goes on, but that the next call finds more to do.
void Instance::note_work() {
  const bool used = std::exchange(operations_seen_, statistics_.operations) != statistics_.operations;
  if (!used && !(options_.clustered && replicator_->is_active())) return;
  keep_until_ = now_ + kBusy;
  next_keep_ = std::min(next_keep_, now_);
}

// Errors are in the store's statistics; the next slice tries again.
bool Instance::keep_house(base::Duration budget) {
  if (!failure_.empty()) return house_waits_ = false;
  house_waits_ = store_->maintain(budget).value_or(false);
  if (now_ >= next_progress_) {
    next_progress_ = now_ + kAtRest;
    const std::uint64_t times = store_->statistics().checkpointing.times;
    if (std::exchange(progress_, times) != times) keep_until_ = now_ + kBusy;
  }
  next_keep_ = house_waits_ || now_ < keep_until_ ? now_ : now_ + kAtRest;
  return house_waits_;
}

// Where something was under way that has ended.
void Instance::look_again(std::span<const PartitionId> partitions) {
  for (PartitionId partition : partitions) {
    const replication::Replica& replica = *replicator_->look(partition);
    if (epochs_[number_of(partition)] == 0 && replica.is_alone()) refresh(partition);
    if (!replica.is_spare()) continue;
    const auto [known, fresh] = departed_.try_emplace(partition, now_);
    next_departed_ = std::min(next_departed_, known->second + options_.keep_departed);
  }
}

// One a tick: dropping a table takes time.
void Instance::forget_departed() {
  std::erase_if(departed_, [&](const auto& one) { return !replicator_->look(one.first)->is_spare(); });
  bool one_went = false;
  next_departed_ = base::Time::max();
  std::erase_if(departed_, [&](const auto& one) {
    const auto [partition, since] = one;
    next_departed_ = std::min(next_departed_, since + options_.keep_departed);
    if (now_ - since < options_.keep_departed) return false;
    replication::Replica& replica = *replicator_->find(partition);
    replica.ask_whether_needed();
    if (one_went || !replica.is_vouched()) return false;
    one_went = true;
    if (options_.observer != nullptr) options_.observer->on_forgotten(replicator_->self(), partition, replica.view());
    if (replicated_->forget(partition, options_.incarnation)) replica.forget();
    return true;
  });
}

// Removes keys whose time has passed, and tells those who wait for that: where this instance leads, and some key expires soon.
void Instance::reap_expired() {
  next_expiry_ = base::Time::max();
  for (auto one = expiring_.begin(); one != expiring_.end();) {
    auto& [partition, next] = *one;
    if (now_ >= next) {
      const bool alone = epochs_[number_of(partition)] != 0;
      replication::Replica* const replica = alone ? nullptr : replicator_->look(partition);
      const bool leads = alone || (replica != nullptr && replica->role() == replication::Replica::Role::primary);
      if (!leads || !store_->has_expiries(table_of(partition))) {
        one = expiring_.erase(one);
        continue;
      }
      if (alone || replica->serves(replica->view().epoch)) remove_expired(partition, replica);
      next = expires_soon(partition, replica) ? now_ : now_ + kLookAgain;
    }
    next_expiry_ = std::min(next_expiry_, next);
    ++one;
  }
}

bool Instance::expires_soon(PartitionId partition, replication::Replica* replica) {
  store_->set_now((replica != nullptr ? replica->time() : wall_) + kLookAhead);
  const bool soon = !store_->expired(table_of(partition), 1).empty();
  store_->set_now(options_.clustered ? base::WallTime{} : wall_);
  return soon;
}

void Instance::expect_expiry(PartitionId partition) {
  expiring_[partition] = next_expiry_ = now_;
}

void Instance::remove_expired(PartitionId partition, replication::Replica* replica) {
  if (base::kMutant == base::Mutant::never_expire || pauses() || !store_->has_expiries(table_of(partition))) return;
  if (options_.clustered) store_->set_now(replica != nullptr ? replica->time() : wall_);
  const auto keys = store_->expired(table_of(partition), 256);
  if (options_.clustered) store_->set_now({});
  if (keys.empty()) return;
  std::vector<Change> changes;
  std::vector<std::uint64_t> hashes;
  for (const std::string& key : keys) {
    changes.push_back(Change::remove(key));
    hashes.push_back(base::hash64(key));
  }
  if (replica != nullptr) replica = replicator_->find(partition);  // it has something to do in this round
  else if (cut_ != nullptr) cut_->before(partition, changes);
  const auto removed = replica != nullptr ? replica->append(encode_entry(changes, {}), hashes)
                                          : store_->apply(table_of(partition), changes, {}, epochs_[number_of(partition)]);
  if (!removed) return;
  changed_in_round_ = true;
  if (replica == nullptr) note_change(changes);
  if (!watchers_.empty()) notify(partition, changes, replica, *removed);
}

}  // namespace zht::core

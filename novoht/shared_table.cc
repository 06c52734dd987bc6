#include "novoht/shared_table.h"

#include <array>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "novoht/core/shared_index.h"

namespace novoht {

using core::SharedIndex;
using core::SharedNode;

struct SharedTable::Parts {
  Parts(base::FileSystem& files, SharedOptions given) : options(std::move(given)), index(files.threads()) {}
  ~Parts() {
    if (!housekeeper.joinable()) return;
    {
      const std::lock_guard lock(waiting_lock);
      stopping = true;
    }
    waiting.notify_all();
    housekeeper.join();
    (void)commit(changes.load(), Durability::always).has_value();
  }

  bool is_expired(const SharedNode& node) const {
    return node.expires && node.expires_ms() <= now_ms.load(std::memory_order_relaxed);
  }
  const SharedNode* find(Bytes key) const {
    const SharedNode* const node = index.find(base::hash64(key), key);
    return node == nullptr || is_expired(*node) ? nullptr : node;
  }
  Result<void> load();
  void tell_time() {
    const base::WallTime now = clock().wall();
    store->set_now(now);
    now_ms.store(base::to_millis(now), std::memory_order_relaxed);
  }
  const base::Clock& clock() const { return options.clock != nullptr ? *options.clock : system_clock; }
  template <typename Check>
  Result<Version> change(std::span<const Change> what, Check check);
  Result<void> commit(std::uint64_t until, Durability how);
  Result<void> lead(Durability how, std::uint64_t& reached);
  void keep_house();

  const SharedOptions options;
  const base::SystemClock system_clock;
  std::atomic<std::uint64_t> now_ms = 0;
  SharedIndex index;

  // turns: whoever changes the store or the index holds it. Never taken while holding waiting_lock.
  mutable std::mutex turns;
  std::unique_ptr<Store> store;
  std::atomic<std::uint64_t> changes = 0;  // applied; grows under turns
  std::atomic<Version> version = 0;
  std::atomic<std::uint64_t> count = 0;

  // Who waits for a flush or a sync: the first does it for all that came by then, the others wait for the news.
  std::mutex waiting_lock;
  std::condition_variable waiting;
  bool leading = false, stopping = false;
  std::uint64_t flushed = 0, synced = 0;  // changes
  std::optional<base::Error> failure;

  std::thread housekeeper;
};

// The store's keys, into the index.
Result<void> SharedTable::Parts::load() {
  std::uint64_t cursor = 0;
  std::string copy;
  do {
    const ScanPage page = store->scan(options.table, cursor, 1024);
    for (const ScanEntry& entry : page.entries) {
      const auto value = store->lookup(options.table, entry.key);
      if (!value) continue;
      auto bytes = value->contiguous();
      if (!bytes) {
        copy.clear();
        TRY(value->read(0, value->size(), copy));
        bytes = copy;
      }
      const std::uint64_t expires = value->expires() == base::kNever ? 0 : base::to_millis(value->expires());
      index.put(base::hash64(entry.key), entry.key, *bytes, expires, value->version());
    }
    cursor = page.cursor;
  } while (cursor != 0);
  version = store->version(options.table);
  count = index.count();
  return {};
}

// Makes the changes if `check`, called in turn, returns no error.
template <typename Check>
Result<Version> SharedTable::Parts::change(std::span<const Change> what, Check check) {
  Version made = 0;
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(turns);
    TRY(check());
    TRY_LET(applied, store->apply(options.table, what, {}, store->epoch(options.table)));
    made = applied;
    for (const Change& one : what) {
      const std::uint64_t hash = base::hash64(one.key), expires = one.expires == base::kNever ? 0 : base::to_millis(one.expires);
      switch (one.kind) {
        case Change::Kind::insert: index.put(hash, one.key, one.value, expires, made); break;
        case Change::Kind::append:
          // What is expired is absent; the store has done the same.
          if (const SharedNode* const node = index.find(hash, one.key); node != nullptr && is_expired(*node)) index.erase(hash, one.key);
          index.append(hash, one.key, one.value, expires, made);
          break;
        case Change::Kind::remove: index.erase(hash, one.key); break;
      }
    }
    count.store(index.count(), std::memory_order_relaxed);
    version.store(made, std::memory_order_release);
    number = changes.load(std::memory_order_relaxed) + 1;
    changes.store(number, std::memory_order_release);
  }
  if (options.durability != Durability::none) TRY(commit(number, options.durability));
  return made;
}

// Returns when the first `until` changes are flushed or synced.
Result<void> SharedTable::Parts::commit(std::uint64_t until, Durability how) {
  std::unique_lock lock(waiting_lock);
  const std::uint64_t& reached = how == Durability::always ? synced : flushed;
  while (reached < until && !failure) {
    if (leading) {
      waiting.wait(lock);
      continue;
    }
    leading = true;
    lock.unlock();
    std::uint64_t got = 0;
    auto done = lead(how, got);
    lock.lock();
    leading = false;
    if (done) {
      flushed = std::max(flushed, got);
      if (how == Durability::always) synced = std::max(synced, got);
    } else {
      failure = done.error();
    }
    waiting.notify_all();
  }
  if (reached < until) return *failure;
  return {};
}

Result<void> SharedTable::Parts::lead(Durability how, std::uint64_t& reached) {
  std::unique_lock lock(turns);
  reached = changes.load(std::memory_order_relaxed);
  if (how != Durability::always) return store->flush();
  TRY_LET(job, store->begin_sync());
  lock.unlock();  // others change on while the disk works
  auto outcome = job->run();
  lock.lock();
  store->finish_sync(outcome);
  return outcome;
}

void SharedTable::Parts::keep_house() {
  base::Time last_sync = clock().now();
  std::vector<Change> due;
  for (;;) {
    {
      std::unique_lock lock(waiting_lock);
      waiting.wait_for(lock, options.flush_interval, [this] { return stopping; });
      if (stopping) return;
    }
    for (bool more = true; more;) {
      const std::lock_guard lock(turns);
      tell_time();
      // Failures are in the statistics, and a change that needs what failed is told itself.
      more = store->maintain(std::chrono::microseconds(200)).value_or(false);
    }
    std::vector<std::string> expired;
    {
      const std::lock_guard lock(turns);
      expired = store->expired(options.table, 256);
    }
    for (const std::string& key : expired) {
      const std::array remove{Change::remove(key)};
      // It may have been given a new life meanwhile.
      (void)change(remove, [&]() -> Result<void> {
        const SharedNode* const node = index.find(base::hash64(key), key);
        if (node == nullptr || !is_expired(*node)) return base::fail(Code::not_found, "");
        return {};
      }).has_value();
    }
    const std::uint64_t all = changes.load(std::memory_order_acquire);
    const bool sync = options.durability == Durability::interval && clock().now() - last_sync >= options.sync_interval;
    if (sync) last_sync = clock().now();
    (void)commit(all, sync ? Durability::always : Durability::interval).has_value();
  }
}

// --- the public face ---

SharedTable::SharedTable(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
SharedTable::~SharedTable() = default;

Result<std::unique_ptr<SharedTable>> SharedTable::open(base::FileSystem& files, std::string folder, SharedOptions options) {
  auto parts = std::make_unique<Parts>(files, options);
  TRY_LET(store, Store::open(files, std::move(folder), options.store));
  parts->store = std::move(store);
  parts->tell_time();
  TRY(parts->load());
  Parts* const raw = parts.get();
  if (!options.store.read_only) parts->housekeeper = std::thread([raw] { raw->keep_house(); });
  return std::unique_ptr<SharedTable>(new SharedTable(std::move(parts)));
}

SharedTable::View SharedTable::view(Bytes key) const {
  const std::uint32_t place = parts_->index.enter();
  const SharedNode* const node = parts_->find(key);
  if (node == nullptr) parts_->index.leave(place);
  return View(this, node, place);
}
SharedTable::View::~View() {
  if (node_ != nullptr) table_->parts_->index.leave(place_);
}
Bytes SharedTable::View::value() const { return static_cast<const SharedNode*>(node_)->value(); }
Version SharedTable::View::version() const { return static_cast<const SharedNode*>(node_)->version; }
base::WallTime SharedTable::View::expires() const {
  const auto* const node = static_cast<const SharedNode*>(node_);
  return node->expires ? base::from_millis(node->expires_ms()) : base::kNever;
}

std::optional<std::string> SharedTable::lookup(Bytes key) const {
  if (const View found = view(key)) return std::string(found.value());
  return {};
}

Result<Version> SharedTable::apply(std::span<const Change> changes) {
  return parts_->change(changes, [] { return Result<void>(); });
}
Result<Version> SharedTable::insert(Bytes key, Bytes value, base::WallTime expires) {
  return apply(std::array{Change::insert(key, value, expires)});
}
Result<Version> SharedTable::append(Bytes key, Bytes value) { return apply(std::array{Change::append(key, value)}); }
Result<Version> SharedTable::remove(Bytes key) { return apply(std::array{Change::remove(key)}); }

Result<Version> SharedTable::compare_swap(Bytes key, std::optional<Bytes> expected, std::optional<Bytes> desired,
                                          base::WallTime expires) {
  const Change change = desired ? Change::insert(key, *desired, expires) : Change::remove(key);
  return parts_->change(std::span(&change, 1), [&]() -> Result<void> {
    const SharedNode* const node = parts_->find(key);
    if (node == nullptr ? !expected : expected && node->value() == *expected) return {};
    if (node == nullptr) return base::fail(Code::conflict, "key \"", base::escape(key), "\" is absent");
    return base::fail(Code::conflict, "key \"", base::escape(key), "\" has another value, of version ", node->version);
  });
}
Result<Version> SharedTable::compare_swap_version(Bytes key, Version expected, std::optional<Bytes> desired, base::WallTime expires) {
  const Change change = desired ? Change::insert(key, *desired, expires) : Change::remove(key);
  return parts_->change(std::span(&change, 1), [&]() -> Result<void> {
    const SharedNode* const node = parts_->find(key);
    if (node != nullptr && node->version == expected) return {};
    if (node == nullptr) return base::fail(Code::conflict, "key \"", base::escape(key), "\" is absent");
    return base::fail(Code::conflict, "key \"", base::escape(key), "\" has version ", node->version, ", expected ", expected);
  });
}

Result<void> SharedTable::flush() { return parts_->commit(parts_->changes.load(std::memory_order_acquire), Durability::interval); }
Result<void> SharedTable::sync() { return parts_->commit(parts_->changes.load(std::memory_order_acquire), Durability::always); }

ScanPage SharedTable::scan(std::uint64_t cursor, std::size_t limit, Bytes prefix) const {
  const std::lock_guard lock(parts_->turns);
  return parts_->store->scan(parts_->options.table, cursor, limit, prefix);
}
Result<void> SharedTable::compact() {
  const std::lock_guard lock(parts_->turns);
  return parts_->store->compact();
}
std::uint64_t SharedTable::count() const { return parts_->count.load(std::memory_order_relaxed); }
Version SharedTable::version() const { return parts_->version.load(std::memory_order_acquire); }
Statistics SharedTable::statistics() const {
  const std::lock_guard lock(parts_->turns);
  Statistics all = parts_->store->statistics();
  all.memory_bytes += parts_->index.memory_bytes();
  return all;
}

}  // namespace novoht

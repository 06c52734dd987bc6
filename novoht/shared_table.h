// One table for many threads: reading takes no lock and waits for nobody, changes take turns, and all of them are in a
// Store's log.
//
//   auto files = base::real_files();
//   TRY_LET(table, novoht::SharedTable::open(*files, "/var/lib/mine", {}));
//   TRY(table->insert("k", "v"));                                        // any thread
//   if (const auto view = table->view("k")) use(view.value());           // any thread, at the same time
//   auto mine = table->compare_swap("owner", std::nullopt, "me");        // conflict: somebody else was first
//
// What a thread sees: a key's value and version are always those of one change, whole; a key's version never goes back; a
// change that was acknowledged before a lookup began is seen by it (lookups and changes of one key are linearizable). The
// changes of one apply() are one record on disk, all or none after a crash, but a thread that reads two keys may see the
// one changed and the other not yet. A change can be seen by others before it is durable.
//
// It keeps an index of its own for the readers beside the Store's (README.md, "Shapes that were chosen"), so keys and
// values are in memory twice; with Options::memory_limit the Store's share of values is on disk.
// Source: [NoVoHT] II-B.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "novoht/store.h"

namespace novoht {

// When a change is acknowledged, that is, its call returns.
enum class Durability : std::uint8_t {
  none,      // at once; handed to the operating system within flush_interval
  interval,  // when it is handed to the operating system (a killed process loses nothing); synced within sync_interval
  always,    // when it is synced; threads that change at the same time share one sync
};

struct SharedOptions {
  Options store;
  TableId table{0};  // of the store; the others are left alone
  Durability durability = Durability::interval;
  base::Duration flush_interval = std::chrono::milliseconds(10);  // also how exactly expiries are kept
  base::Duration sync_interval = std::chrono::seconds(1);
  const base::Clock* clock = nullptr;  // outlives the table; none: the system's
};

// All members: any thread, except open() and the destructor, beside which no other call runs.
class SharedTable {
 public:
  // Opens (or makes) the store in `folder`. Errors: Store::open's.
  static Result<std::unique_ptr<SharedTable>> open(base::FileSystem& files, std::string folder, SharedOptions options);
  ~SharedTable();  // flushes and syncs; no View may be left
  SharedTable(const SharedTable&) = delete;
  SharedTable& operator=(const SharedTable&) = delete;

  // A value where it lies; it stays as it is while the View lives. Changes go on beside it, but memory that they free is
  // kept back until then: let it go soon. Moves between threads like any value; used by one thread at a time.
  class View {
   public:
    View(View&& other) noexcept : table_(other.table_), node_(std::exchange(other.node_, nullptr)), place_(other.place_) {}
    View& operator=(View&&) = delete;
    ~View();
    explicit operator bool() const { return node_ != nullptr; }  // the key is there
    Bytes value() const;                                         // all below: only of one that is there
    Version version() const;
    base::WallTime expires() const;

   private:
    friend class SharedTable;
    View(const SharedTable* table, const void* node, std::uint32_t place) : table_(table), node_(node), place_(place) {}
    const SharedTable* table_;
    const void* node_;
    std::uint32_t place_;
  };

  // Lock-free, whatever other threads do. An expired key is absent.
  View view(Bytes key) const;
  // The same, copied.
  std::optional<std::string> lookup(Bytes key) const;

  // Changes of one key, and of several at once. Each returns the new version of the table, which is that of the keys
  // changed. Errors: Store::apply's, then nothing has changed; io where writing or syncing failed after the change was
  // made in memory: others may have seen it, and after the next open it may be gone; the table only reads from then on.
  Result<Version> insert(Bytes key, Bytes value, base::WallTime expires = base::kNever);
  Result<Version> append(Bytes key, Bytes value);
  Result<Version> remove(Bytes key);  // also when it is not there
  Result<Version> apply(std::span<const Change> changes);
  // `desired` takes the place of `expected` (nothing: the key is absent; nothing desired: it is removed), or the same by
  // the version last seen. conflict: it is not as expected, nothing has changed.
  Result<Version> compare_swap(Bytes key, std::optional<Bytes> expected, std::optional<Bytes> desired,
                               base::WallTime expires = base::kNever);
  Result<Version> compare_swap_version(Bytes key, Version expected, std::optional<Bytes> desired,
                                       base::WallTime expires = base::kNever);

  // Returns when everything acknowledged before the call survives the death of the process, or a loss of power.
  Result<void> flush();
  Result<void> sync();

  // Keys, `limit` at most, from `cursor` (0: the start), as Store::scan; takes its turn among the changes.
  ScanPage scan(std::uint64_t cursor, std::size_t limit, Bytes prefix = {}) const;
  // Checkpoints now and drops the log; changes wait meanwhile, lookups do not.
  Result<void> compact();
  std::uint64_t count() const;        // keys, expired ones included
  Version version() const;            // of the last change
  Statistics statistics() const;      // of the store; memory_bytes with this table's own index

 private:
  struct Parts;
  explicit SharedTable(std::unique_ptr<Parts> parts);
  const std::unique_ptr<Parts> parts_;
};

}  // namespace novoht

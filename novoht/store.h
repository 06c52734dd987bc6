// NoVoHT: tables of keys and values in memory, over one log on disk.
//
// A Store is a folder: a log of checksummed records in segments, shared by all the store's tables, and a checkpoint for
// each table. A change is one record: it names the table, carries the next version (the table's own sequence number),
// the changed keys, and a note that belongs to the embedder. It is applied to memory at once and written with the next
// flush(): one write for everything a round changed, and, when asked, one sync. That is group commit.
//
//   auto files = base::real_files();
//   TRY_LET(store, novoht::Store::open(*files, "/var/lib/mine", {}));
//   TRY(store->apply(TableId{0}, std::array{Change::insert("k", "v"), Change::append("log", "line\n")}));
//   TRY(store->flush());   // a killed process loses nothing from here on
//   TRY(store->sync());    // nor does a loss of power
//
// Single writer: one thread at a time may call a Store (SyncJob::run excepted). A store has threads of its own for what
// would keep that one waiting in maintain(), where the FileSystem allows it.
// Source: [NoVoHT] II, [ZHT] 2.8.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "novoht/base/bytes.h"
#include "novoht/base/clock.h"
#include "novoht/base/file.h"
#include "novoht/base/result.h"

namespace novoht {

using base::Bytes;
using base::Code;
using base::Result;

enum class TableId : std::uint32_t {};
using Version = std::uint64_t;  // of a table: 1 for its first record, one more for each; of a key: its last record's

inline constexpr std::size_t kMaxKeySize = 65'535;
inline constexpr std::size_t kMaxValueSize = std::size_t{1} << 30;  // of one change; a value may grow past it by append
inline constexpr std::size_t kMaxRecordSize = (std::size_t{1} << 30) + (std::size_t{1} << 20);

// One key's change. insert: the value becomes this one fragment. append: one fragment more (the key is made when
// absent; an existing key keeps its expiry). remove: the key goes, if there.
struct Change {
  enum class Kind : std::uint8_t { insert = 1, append = 2, remove = 3 };
  Kind kind = Kind::insert;
  Bytes key;
  Bytes value;                             // insert, append
  base::WallTime expires = base::kNever;   // insert, and append to an absent key; milliseconds are kept
  static Change insert(Bytes key, Bytes value, base::WallTime expires = base::kNever) { return {Kind::insert, key, value, expires}; }
  static Change append(Bytes key, Bytes value) { return {Kind::append, key, value, base::kNever}; }
  static Change remove(Bytes key) { return {Kind::remove, key, {}, base::kNever}; }
};

// A value as it lies in the store. Valid until the next call that changes the store, maintain() included.
class ValueView {
 public:
  std::uint64_t size() const { return size_; }                      // bytes in all
  std::uint32_t fragment_count() const { return fragment_count_; }  // 1 after insert, one more for each append
  Version version() const { return version_; }
  base::WallTime expires() const { return expires_; }
  // Offset just past fragment `index` (0..fragment_count()-1).
  std::uint64_t fragment_end(std::uint32_t index) const;
  // The whole value where it lies in one piece, else nothing: then read() copies it.
  std::optional<Bytes> contiguous() const {
    if (bytes_ == nullptr) return {};
    return Bytes(bytes_, static_cast<std::size_t>(size_));
  }
  // Appends bytes [offset, offset + size) to `out`; less where the value ends sooner. corrupt, io: only for values kept
  // on disk; `out` is unchanged.
  Result<void> read(std::uint64_t offset, std::uint64_t size, std::string& out) const;

 private:
  friend struct ValueMaker;      // the store's own
  const void* entry_ = nullptr;  // the index's own
  const void* cold_ = nullptr;   // where values on disk are
  const char* bytes_ = nullptr;  // all of it, where it lies in one piece
  std::uint64_t size_ = 0;
  std::uint32_t fragment_count_ = 0;
  Version version_ = 0;
  base::WallTime expires_{};
};

// A key as it was, for Store::rewind().
struct Restored {
  Bytes key;
  bool present = false;                         // the rest only if so
  Version version = 0;
  base::WallTime expires = base::kNever;
  Bytes value;
  std::span<const std::uint64_t> fragment_ends;  // of all fragments, the last one's is the value's size
};

struct TableKey {
  TableId table{0};
  Bytes key;
};

struct TableChange {
  TableId table{0};
  Change change;
};

// What an embedder keeps beside the tables and wants back after a crash: called while a store opens, for one table in
// the order: restore (when there is a checkpoint), then replay for every later record; and attachment() when a
// checkpoint is taken: in maintain(), compact() or an import's finish(), and in apply() and rewind() before anything of theirs
// is done. On the thread that calls these, or opens the store.
class Companion {
 public:
  virtual ~Companion() = default;
  virtual Result<void> restore(TableId table, Bytes attachment) = 0;
  virtual Result<void> replay(TableId table, Version version, std::uint64_t epoch, Bytes note) = 0;
  // Store::rewind() had taken back the records after version `to`. (Only while opening.)
  virtual Result<void> rewound(TableId table, Version to) {
    (void)table;
    (void)to;
    return {};
  }
  virtual std::string attachment(TableId table) = 0;
  // The log ends in a bad record, and what is left of that is about to be cut off: an embedder whom it matters to, also after a
  // crash in the middle of opening, makes a durable note of it first. (Only while opening, and not to read only.)
  virtual Result<void> torn() { return {}; }
};

struct Options {
  bool create = true;                                  // make the folder and the store when absent
  bool read_only = false;                              // verify and inspect: changes nothing, takes no lock
  std::uint64_t segment_size = std::uint64_t{64} << 20;  // bytes of a full log segment; the first ones are smaller
  // Checkpoint and drop segments when the log is this many times the live data (and at least four segments).
  // With W the largest of log_slack times the live data (32 bytes more for each key), log_floor, log_per_table times the tables
  // and four segments, the log's files take no more than 2 W and two segments, however fast is written: from 1.25 W on apply()
  // takes checkpoints itself, in proportion to what it writes, and from 1.7 W on waits for the disk as well, in pieces of some
  // twenty microseconds, at the bound until there is room. A segment is the largest that is there: 1 MiB at first, doubling to 8 MiB, or half the
  // live data, `segment_size` at most. Longer only by what exports and tails hold, by what a failing disk keeps from
  // being dropped, and, when the live data shrinks, for as long as it takes to write as much.
  double log_slack = 2.0;
  // ... but not a log shorter than this many bytes: with many small tables a checkpoint of each costs more than it saves.
  std::uint64_t log_floor = 0;
  // How much log at least, for each table that there is, has to be there before apply() takes checkpoints itself or waits for the
  // disk: a table's checkpoint takes a file and its share of a sync, so that with hundreds of small tables the disk is slower
  // than who writes. maintain() keeps the log as short as it would without.
  std::uint64_t log_per_table = std::uint64_t{256} << 10;
  // Bytes of a checkpoint taken at one step of maintain(): how long its caller waits, and how much longer the log becomes until
  // the checkpoint is whole.
  std::size_t maintain_slice = std::size_t{32} << 10;
  // Bytes of memory that keys, values and index together shall take; 0: no limit. Values that were not used for long then
  // lie on disk (scratch files, cold-*.values, beside log and checkpoints), from 64 bytes on and one fragment, or 1 KiB and
  // several; keys and shorter values stay in memory whatever the limit. Kept by maintain(), so it is exceeded by what is
  // applied between two calls; and while the disk is full, which is no error of a change. Not for a store that only reads.
  std::uint64_t memory_limit = 0;
  // Read those files as mapped memory: several times faster where they are in the system's cache. What was read then shows
  // as resident shared memory of the process, though it is the cache's and goes when the system needs it. (A handler for
  // SIGBUS is installed, see base::File::view().)
  bool map_cold_values = true;
  std::size_t max_key_size = kMaxKeySize;
  std::size_t max_value_size = kMaxValueSize;
  Companion* companion = nullptr;  // outlives the store
};

struct Statistics {
  std::uint64_t tables = 0, keys = 0, live_bytes = 0;  // keys + values
  std::uint64_t memory_bytes = 0;                      // what the index and values take, idle memory with it
  std::uint64_t used_bytes = 0;                        // the same without idle memory: what memory_limit is about
  // By how much memory_limit is exceeded for good: keys, index and short values alone take more. 0: it is not, or values are
  // still being sent to the disk.
  std::uint64_t over_limit_bytes = 0;
  std::uint64_t cold_bytes = 0, cold_file_bytes = 0;   // values on disk only; the files that hold them
  std::uint64_t log_bytes = 0, checkpoint_bytes = 0, segments = 0;
  std::uint64_t log_limit = 0;   // what log_bytes and kept_bytes stay below together: see Options::log_slack
  std::uint64_t kept_bytes = 0;  // files of log that is no longer needed, of which the next segments are made
  std::uint64_t reused_segments = 0;  // made out of such a file, since open
  std::uint64_t records = 0, flushes = 0, syncs = 0, checkpoints = 0;  // since open
  std::uint64_t recovered_records = 0, recovered_bytes = 0, torn_bytes_cut = 0;
  // What maintain() did in its caller's time, since open: how often, nanoseconds in all and at most at once. evacuation:
  // moving entries together; checkpoints: taking their entries; log: segments, syncs handed over, what is trimmed; cold:
  // values sent to the disk and fetched. helping: what apply() did of all this because the log was long.
  struct Share {
    std::uint64_t times = 0, nanoseconds = 0, longest = 0;
  };
  Share evacuation, checkpointing, log_keeping, cooling, helping;
  std::uint64_t maintenance_failures = 0;  // since open
  std::string last_failure;                // of maintenance, or of the write that made the store read only
};

struct ScanEntry {
  std::string key;
  Version version = 0;
  std::uint64_t size = 0;
};
struct ScanPage {
  std::vector<ScanEntry> entries;
  std::uint64_t cursor = 0;  // 0: that was all
};

// A sync that another thread may run while the owner goes on writing.
class SyncJob {
 public:
  virtual ~SyncJob() = default;
  virtual Result<void> run() = 0;  // any one thread, once; blocks
};

class Export;   // novoht/snapshot.h, as the next two
class Import;
class LogTail;

class Store {
 public:
  // Opens (or makes) the store in `folder` and recovers it: checkpoints, then the log's records. A torn tail, which a
  // crash leaves, is cut. Errors: invalid (the folder is not a store, an option is out of range), conflict (another
  // process has it open: its pid), unsupported (a newer format: which), corrupt (damage that a crash cannot explain:
  // file, offset, what was expected), no_space, io. Nothing is changed on disk by a failing open.
  static Result<std::unique_ptr<Store>> open(base::FileSystem& files, std::string folder, Options options);
  virtual ~Store() = default;  // flushes; does not sync

  // Expired keys are absent to everything below from the moment set_now() passes their expiry. They take room until a
  // remove (see expired()).
  virtual void set_now(base::WallTime now) = 0;

  virtual std::optional<ValueView> lookup(TableId table, Bytes key) const = 0;
  // The same for many keys at once, faster than one by one because their memory is fetched together. `found` has as many
  // places as `keys`.
  virtual void lookup_many(TableId table, std::span<const Bytes> keys, std::span<std::optional<ValueView>> found) const = 0;
  // A hint: this key will be looked up or changed soon. Costs some nanoseconds; waits for nothing.
  virtual void prefetch(TableId table, Bytes key) const = 0;
  // The same for keys of any tables, down to their entries: their memory is fetched together, which takes little longer
  // than fetching that of one. Worth it from two keys on.
  virtual void prefetch_all(std::span<const TableKey> keys) const = 0;
  // The table's own version (last record's number); a later change's version is always greater.
  virtual Version version(TableId table) const = 0;
  virtual std::uint64_t epoch(TableId table) const = 0;  // of its last record; 0: none
  virtual std::vector<TableId> tables() const = 0;       // that hold a record or a checkpoint

  // Applies `changes` to `table` as one record: all or, after an error, none. Later changes see earlier ones. `note` is
  // kept with the record and handed to Companion::replay; `epoch` is the embedder's and may only grow. May be empty of
  // changes (a record of a note alone). Memory has it at once, the disk with the next flush(). Room for it on disk is
  // taken before anything changes. Returns the new version. Errors, nothing changed: invalid (a size over its limit,
  // an empty key), no_space; io once a flush or sync has failed: such a store only reads, until it is opened again.
  virtual Result<Version> apply(TableId table, std::span<const Change> changes, Bytes note = {}, std::uint64_t epoch = 0) = 0;

  // Takes back the table's records after version `to`: the table has version `to` and `epoch` again, and each of `restored`
  // is as it says; that these are all keys that those records changed is the caller's to know. One record of the log; the
  // note chain of the records taken back is the embedder's (Companion::rewound). Exports and tails of the table that are open
  // end with conflict. Errors as apply()'s, nothing changed; invalid: `to` or `epoch` is greater than the table's, or a
  // restored version greater than `to`.
  virtual Result<void> rewind(TableId table, Version to, std::uint64_t epoch, std::span<const Restored> restored) = 0;

  // Independent changes, each as apply() of it alone would make it, in their order and of any tables, faster than one by one
  // because their memory is fetched together: each is a record of its own, so that one refused or lost in a crash says
  // nothing of the next. (Changes that belong together are one apply().) `versions` has as many places as `changes`: each
  // change's new version. Errors, as apply(): of the first change that was refused; those before it are made, it and those
  // after it are not, and their versions are 0.
  virtual Result<void> apply_many(std::span<const TableChange> changes, std::span<Version> versions) = 0;

  // Writes every record applied since the last flush with one write. io: the store only reads from now on; what was
  // not yet flushed may or may not be there after the next open.
  virtual Result<void> flush() = 0;
  // flush(), then everything survives a loss of power. Errors as flush().
  virtual Result<void> sync() = 0;
  // flush(), then the sync itself as a job for another thread; finish_sync() afterwards, on this one.
  virtual Result<std::unique_ptr<SyncJob>> begin_sync() = 0;
  virtual void finish_sync(const Result<void>& outcome) = 0;
  virtual bool dirty() const = 0;  // something was flushed or applied since the last successful sync

  // A slice of housekeeping (checkpoint, dropping old segments, growing the index), about `budget` long. Returns whether
  // there is more to do. Errors: no_space, io, also recorded in the statistics; the store goes on.
  virtual Result<bool> maintain(base::Duration budget) = 0;
  // Takes checkpoints of all tables now and drops the log they make needless.
  virtual Result<void> compact() = 0;

  // Keys of `table`, `limit` at most, from `cursor` (0: the start). A key present during a whole scan is returned at
  // least once.
  virtual ScanPage scan(TableId table, std::uint64_t cursor, std::size_t limit, Bytes prefix = {}) const = 0;
  // Whether any key of `table` has a time to live, passed or not. Costs next to nothing.
  virtual bool has_expiries(TableId table) const = 0;
  // Up to `limit` keys of `table` whose time has passed.
  virtual std::vector<std::string> expired(TableId table, std::size_t limit) const = 0;
  // Forgets a table and its files.
  virtual Result<void> drop(TableId table) = 0;

  // A table as a stream of bytes while it changes, and back; and the records that followed. See novoht/snapshot.h; what is
  // returned goes before the store does. begin_tail(): conflict when the table has not come to version `after` yet.
  virtual Result<std::unique_ptr<Export>> begin_export(TableId table) = 0;
  virtual Result<std::unique_ptr<Import>> begin_import(TableId table) = 0;
  virtual Result<std::unique_ptr<LogTail>> begin_tail(TableId table, Version after) = 0;
  virtual std::uint64_t used_memory() const = 0;  // Statistics::used_bytes, at once
  virtual Statistics statistics() const = 0;
};

}  // namespace novoht

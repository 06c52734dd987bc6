// An instance's partitions on its disk, as replication wants them (replication/replica_store.h), over one NoVoHT store:
// table p holds partition p, a table's version is the sequence of its last entry, its epoch that entry's epoch. Results of
// requests travel as the records' notes and as the tables' attachments, so they are part of the partition wherever it goes.
//
// What must be known besides is in a table of its own (kOrigins): in which life this store was begun, which partition's
// log began later, which import is not finished, which view took the instance in last, and whether the last life's end may have
// cost acknowledged entries.
//
// A life is *sure* of its log when nothing that it acknowledged can be missing:
//   the log ends in a bad record             not sure: that record may have been acknowledged before it rotted (the store
//                                            tells it from a log that ends well wherever the log ends)
//   a write or a sync failed                 not sure, unless durability is always: the disk may not have what the system's
//                                            cache had
//   same boot of the machine as before       sure: what was written is in the system's cache, whatever killed the process
//   durability always                        sure: what was acknowledged was synced
//   another boot                             sure only if the last life said at its end that all was synced
// What makes it unsure is noted in a file, UNSURE, until the store says so itself: the bad record is cut off while the store opens,
// and a process that ends in the middle of that must not be sure the next time.
// A log that is damaged elsewhere is put aside (files named damaged-*) and another begun: every partition counts as lost
// here, and is healed by a peer.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "novoht/snapshot.h"
#include "zht/core/cut.h"
#include "zht/core/entry.h"
#include "zht/core/replication/replica_store.h"
#include "zht/core/result_table.h"

namespace zht::core {

// One thread.
class ReplicatedStore final : public replication::ReplicaStore, private novoht::Companion {
 public:
  struct Options {
    novoht::Options store;
    // Its partitions may be on other instances too. Otherwise nothing is kept for that, and a damaged log is an error.
    bool clustered = false;
    std::uint64_t incarnation = 1;   // of this life
    bool synced_before_shown = false;  // durability always
    replication::Defects defects;    // tests only
    std::uint64_t outdated = 0;      // its folder was found to be an older copy in this life; 0: never
    std::string boot;                // names the machine's present boot; empty: unknown, so another each time
    // Bytes kept so that entries can be taken back, of all partitions together. Past it the oldest of a partition cannot be any more,
    // and a member that would have to is sent the partition whole.
    std::size_t undo_bytes = std::size_t{256} << 20;
    std::size_t results_bytes = ResultTable::kMaxBytes;
    // Nothing more is taken in while the store's values and index take more memory than this: no_space. 0: whatever they take.
    std::uint64_t memory_most = 0;
  };
  struct Opened {
    bool torn = false, damaged = false, sure = true;
    std::string damage;  // the store's words
  };
  // Opens (or makes) the store. When it returns what this life may vouch for is durable. Errors: novoht::Store::open's.
  static Result<std::unique_ptr<ReplicatedStore>> open(base::FileSystem& files, std::string folder, Options options);
  ~ReplicatedStore() override;

  static constexpr novoht::TableId kOrigins{0xffffffff};
  static novoht::TableId table_of(PartitionId partition) { return static_cast<novoht::TableId>(partition); }

  const Opened& opened() const { return opened_; }
  novoht::Store& tables() { return *store_; }
  const novoht::Store& tables() const { return *store_; }
  ResultTable& results() { return results_; }
  std::vector<PartitionId> partitions() const;  // that have an entry
  // A write or a sync failed. What was written may not be on the disk, though it can be read: the next life must not be sure.
  void distrust();
  // This life has found out that the folder is an older copy of itself (replication/sightings.h): nothing here speaks for lives before.
  // That this is durable is its caller's business.
  void set_outdated(std::uint64_t incarnation) { outdated_ = std::max(outdated_, incarnation); }
  // Everything is synced and nothing more will be written in this life: the next one, after whatever boot, is sure.
  Result<void> close();

  // Whether an entry that may yet be taken back changed `key`.
  bool unsettled(PartitionId partition, Bytes key) const;
  // The partition is nobody's here: what it held goes, and its log would begin anew.
  Result<void> forget(PartitionId partition, std::uint64_t incarnation);
  // Told of each change before apply() makes it, and of each partition whose table goes; null: nobody. (A backup's cut.)
  void tell_before(Cut* cut) { cut_ = cut; }
  // What entries were taken back, and snapshots taken in, since the store was opened.
  std::uint64_t rewinds() const { return rewinds_; }
  std::size_t undo_bytes() const { return undo_bytes_; }
  bool is_out_of_memory() const { return options_.memory_most != 0 && store_->used_memory() > options_.memory_most; }

  Origin origin(PartitionId partition) const override;
  Result<void> note_joined(PartitionId partition, Epoch epoch) override;
  replication::Position end(PartitionId partition) const override;
  Version floor(PartitionId partition) const override;
  Result<void> apply(PartitionId partition, const replication::Entry& entry) override;
  Result<void> rewind(PartitionId partition, replication::Position to) override;
  void settle(PartitionId partition, Version commit) override;
  Result<std::unique_ptr<replication::SnapshotSource>> export_snapshot(PartitionId partition) override;
  Result<void> begin_import(PartitionId partition, std::uint64_t incarnation) override;
  Result<void> import(PartitionId partition, Bytes piece) override;
  Result<bool> end_import(PartitionId partition, replication::Position at) override;
  Result<void> make_durable() override;

 private:
  // How a key was before an entry changed it.
  struct Before {
    std::string key;
    bool present = false;
    bool cut = false;  // only appended to: what it was is a beginning of what it is, and is not kept
    Version version = 0;
    base::WallTime expires = base::kNever;
    std::uint64_t size = 0;
    std::vector<std::uint64_t> fragment_ends;  // all; none when `cut`
    std::uint32_t fragment_count = 0;
    std::string value;
  };
  struct Undo {
    replication::Position before;  // the entry's predecessor
    std::vector<Before> keys;
  };
  struct Undos {
    std::deque<Undo> entries;
    std::size_t keys = 0;
    Version settled = 0;    // entries up to here will not be taken back
    Version forgotten = 0;  // entries up to here cannot be taken back, settled or not
  };
  static std::size_t size_of(const Undo& undo);
  void drop_first(Undos& undos);
  Result<void> check_room() const;

  ReplicatedStore(base::FileSystem& files, std::string folder, Options options);
  Result<void> restore(novoht::TableId table, Bytes attachment) override;
  Result<void> replay(novoht::TableId table, Version version, std::uint64_t epoch, Bytes note) override;
  Result<void> rewound(novoht::TableId table, Version to) override;
  std::string attachment(novoht::TableId table) override;
  Result<void> torn() override;

  Result<void> begin_life();
  Result<void> put_aside();
  // Nothing of the partition is left, and until its origin says otherwise it counts as lost. Durable.
  Result<void> empty(PartitionId partition, std::uint64_t incarnation);
  Result<void> put_origin(std::string key, std::string value);
  std::optional<std::string> get_origin(Bytes key) const;
  Result<std::vector<Before>> before(PartitionId partition, std::span<const novoht::Change> changes) const;

  base::FileSystem& files_;
  const std::string folder_;
  const Options options_;
  ResultTable results_;  // before the store, whose companion this is
  std::unique_ptr<novoht::Store> store_;
  Opened opened_;
  std::uint64_t born_ = 1, unsure_ = 0, outdated_ = 0;
  std::unordered_map<std::uint32_t, std::uint64_t> since_;  // by partition, where it is not born_
  std::unordered_map<std::uint32_t, Epoch> joined_;         // by partition, where it is known
  std::unordered_map<std::uint32_t, Undos> undo_;
  std::size_t undo_bytes_ = 0;
  std::unordered_map<std::uint32_t, std::unique_ptr<novoht::Import>> imports_;
  std::uint64_t rewinds_ = 0;
  Cut* cut_ = nullptr;
};

}  // namespace zht::core

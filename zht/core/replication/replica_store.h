// What the protocol needs of the store of an instance: for each partition a log of entries and the tables they make.
//
// An entry is applied to the tables the moment it is logged, before it is committed; for each uncommitted entry the store
// keeps in memory what it replaced, so that it can be taken back. The alternative, tables that hold committed entries
// only with the others laid over them, was weighed: every read and every evaluation would look in two places, each
// change would be applied twice, and the common case, that an entry is committed a moment later, would pay for the rare
// one. Taking back writes a record of its own that carries the restored states, so that opening the store after a crash
// is a replay and needs no undo; a restarted replica that must take back entries it no longer has the undo of says so
// and is sent a snapshot.
#pragma once

#include <memory>
#include <optional>

#include "zht/core/replication/peer_message.h"

namespace zht::replication {

// A partition, read in pieces while it goes on changing.
class SnapshotSource {
 public:
  struct Piece {
    std::string bytes;
    bool last = false;
  };
  virtual ~SnapshotSource() = default;
  virtual Version begun() const = 0;                // what the whole contains is this entry or a later one:
  virtual std::optional<Position> at() const = 0;   // this, known when the last piece was read
  // Piece `index`, from 0 on: the next one, or the last one again. An error ends the snapshot.
  virtual Result<Piece> read(std::uint64_t index) = 0;
};

// One thread.
class ReplicaStore {
 public:
  virtual ~ReplicaStore() = default;

  // Which incarnations a replica may speak for. Durable.
  struct Origin {
    std::uint64_t since = 0;  // the incarnation that began this log
    std::uint64_t sure = 0;   // from this one on it has, by itself, all that it ever acknowledged
    Epoch joined{0};          // of the newest view that is known to have taken this instance in, see note_joined()
  };
  virtual Origin origin(PartitionId partition) const = 0;

  // A view of this epoch took the instance in, as a learner. Durable with the entries that are logged after it. A later life
  // that hears of an older view first must not take itself for one that has no part in the partition.
  virtual Result<void> note_joined(PartitionId partition, Epoch epoch) = 0;

  virtual Position end(PartitionId partition) const = 0;   // of the last entry
  virtual Version floor(PartitionId partition) const = 0;  // rewind() reaches back to here
  // Logs and applies the entry after end(). no_space, io: nothing changed.
  virtual Result<void> apply(PartitionId partition, const Entry& entry) = 0;
  // Takes back every entry after `to`, which is at or above floor().
  virtual Result<void> rewind(PartitionId partition, Position to) = 0;
  // Entries up to `commit` will never be taken back.
  virtual void settle(PartitionId partition, Version commit) = 0;

  virtual Result<std::unique_ptr<SnapshotSource>> export_snapshot(PartitionId partition) = 0;
  // Throws away what the partition holds, durably noting that `incarnation` begins its log anew: until end_import() has
  // become durable the partition counts as lost.
  virtual Result<void> begin_import(PartitionId partition, std::uint64_t incarnation) = 0;
  virtual Result<void> import(PartitionId partition, Bytes piece) = 0;
  // A piece of what is left to do when all has come; to be called again, at the next tick, until it returns true. All of it is
  // durable then, and so is whatever was written to the store before.
  virtual Result<bool> end_import(PartitionId partition, Position at) = 0;
  // Everything written is durable when it returns ok, whatever the durability: asked of a learner that begins to count. What
  // it was sent of late was acknowledged by others long ago, and must not be lost here with the last second.
  virtual Result<void> make_durable() = 0;
};

}  // namespace zht::replication

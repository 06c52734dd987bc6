// The store of one simulated instance: a real log file (on a disk that tears, loses and rots) and small tables in memory.
// It does what ReplicaStore asks, remembers every entry so that checkers can look at whole logs, and tells a torn tail
// from damage when it is opened.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "novoht/base/file.h"
#include "zht/core/replication/replica_store.h"

namespace zht::sim {

using replication::Defect;
using replication::Defects;
using replication::Entry;
using replication::EntryPtr;
using replication::Position;

// A resolved change and whose request it was: an entry's payload.
struct Resolved {
  enum class Kind : std::uint8_t { insert = 1, append, remove };
  Kind kind = Kind::insert;
  std::string key, value;
  std::uint64_t client = 0, sequence = 0, floor = 0;
};
std::string encode(const Resolved& change);
Resolved decode_resolved(Bytes payload);

struct Cell {
  std::optional<std::string> value;
  Version version = 0;  // of the last change, a removal too
};

struct Session {
  std::uint64_t floor = 0;
  std::map<std::uint64_t, Version> results;  // request -> the entry it became
};

struct PartitionTable {
  std::vector<EntryPtr> log;  // all of it
  std::map<std::string, Cell> cells;
  std::map<std::uint64_t, Session> sessions;
  Version floor = 0;
  bool importing = false, ending = false;
  replication::ReplicaStore::Origin origin{1, 1};

  void apply(const Entry& entry);
  void rebuild(bool keep_sessions);
  Position end() const { return log.empty() ? Position{} : log.back()->at; }
};

class SimStore final : public replication::ReplicaStore {
 public:
  struct Opened {
    bool damaged = false, torn = false;
    std::size_t entries = 0;
  };
  // Opens (or makes) the log in `files`. When it is damaged it is thrown away: `incarnation` begins a new one.
  SimStore(base::FileSystem& files, std::uint64_t incarnation, Defects defects);
  const Opened& opened() const { return opened_; }
  static constexpr const char* kPath = "store/log";

  PartitionTable& table(PartitionId partition) { return tables_[static_cast<std::uint32_t>(partition)]; }
  void set_full(bool full) { full_ = full; }
  bool full() const { return full_; }

  // Writes what was logged since the last time. False: the disk failed.
  bool flush();
  // Everything flushed is durable. False: the disk failed.
  bool sync();
  bool dirty() const { return size_ + pending_.size() > synced_; }

  Origin origin(PartitionId partition) const override;
  Position end(PartitionId partition) const override;
  Version floor(PartitionId partition) const override;
  Result<void> apply(PartitionId partition, const Entry& entry) override;
  Result<void> rewind(PartitionId partition, Position to) override;
  void settle(PartitionId, Version) override {}
  Result<std::unique_ptr<replication::SnapshotSource>> export_snapshot(PartitionId partition) override;
  Result<void> begin_import(PartitionId partition, std::uint64_t incarnation) override;
  Result<void> import(PartitionId partition, Bytes piece) override;
  Result<bool> end_import(PartitionId partition, Position at) override;
  Result<void> note_joined(PartitionId partition, Epoch epoch) override;
  Result<void> make_durable() override { return {}; }  // what is acknowledged has been synced, or power never fails

 private:
  enum class Record : std::uint8_t { born = 1, unsure, entry, rewind, import_begin, import_piece, import_end, joined };
  void put(Record kind, PartitionId partition, Bytes body);
  // False: not a record this store writes.
  bool replay(Bytes record);
  void begin(std::uint64_t incarnation);
  void recover(const std::string& contents, std::uint64_t incarnation);
  const PartitionTable& at(PartitionId partition) const;

  base::FileSystem& files_;
  std::unique_ptr<base::File> file_;
  Defects defects_;
  mutable std::map<std::uint32_t, PartitionTable> tables_;
  std::uint64_t salt_ = 0, born_ = 1, unsure_ = 0, size_ = 0, synced_ = 0;
  std::string pending_;
  bool full_ = false;
  Opened opened_;
};

}  // namespace zht::sim

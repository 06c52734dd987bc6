// An instance's part in a backup's cut: the partitions it led at that moment, each as it was then, read out while it goes on
// changing. zht/backup/README.md says why what all instances have together is one moment in time.
//
// Nothing is copied when the cut is made. A key that is changed for the first time afterwards is copied before (before()); all
// others are found in the table with a version that is not after the cut's. What is asked for leaves as blocks (zht/backup/blocks.h):
// the copies first, for they take memory, then the tables from front to back.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "novoht/store.h"
#include "zht/backup/blocks.h"

namespace zht::core {

struct CutMark {
  PartitionId partition{0};
  Epoch epoch{0};       // of the view in which it was led
  Version version = 0;  // of the partition: the cut has all changes up to here
};

// One thread.
class Cut {
 public:
  static constexpr std::size_t kMostCopied = std::size_t{256} << 20;  // bytes of copies; past them the cut is lost

  Cut(const novoht::Store& store, std::uint64_t id) : store_(store), id_(id) {}
  std::uint64_t id() const { return id_; }

  // `since`: the version of the backup before, of whose keys those that are unchanged are only named; 0: there is none. Where it is
  // the mark's own nothing of the partition is read out.
  void add(const CutMark& mark, Version since);
  const std::vector<CutMark>& marks() const { return marks_; }

  // That a mark is committed and was made by who leads may take a moment to be known.
  void await(PartitionId partition) { awaited_.insert(partition); }
  void confirm(PartitionId partition, bool holds);
  std::size_t awaited() const { return awaited_.size(); }
  // Why it is worth nothing (any more); empty: it is.
  const std::string& lost() const { return lost_; }
  void lose(std::string why);

  // Before `changes` are made to the partition.
  void before(PartitionId partition, std::span<const novoht::Change> changes);
  // The partition's table is dropped or replaced.
  void replaced(PartitionId partition);

  // Appends about `bytes` of blocks, one at least. False: that was all. unavailable: it is lost; corrupt, io: of the store.
  Result<bool> read(std::size_t bytes, std::string& out);

 private:
  struct Part {
    Version version = 0, since = 0;
    std::uint64_t cursor = 0, entries = 0, kept = 0;
    std::string copied, copied_kept;  // payloads
  };
  Result<void> append(Part& part, Bytes key, const novoht::ValueView& value, std::string& to);
  void send_copies(PartitionId partition, Part& part, std::string& out);
  Result<bool> read_table(PartitionId partition, Part& part, std::size_t bytes, std::string& out);

  const novoht::Store& store_;
  const std::uint64_t id_;
  std::vector<CutMark> marks_;
  std::set<PartitionId> awaited_;
  std::map<PartitionId, Part> parts_;  // that are not read to the end
  std::set<PartitionId> copied_from_;  // of these, those with copies to be sent
  std::size_t copied_bytes_ = 0;
  std::string lost_;
  std::string entries_, kept_;  // scratch
};

}  // namespace zht::core

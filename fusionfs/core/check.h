// Reads every record of the file system and says where they disagree; repairs what a crash can leave.
//
//   Check check(client, metadata);
//   TRY_LET(found, check.run());
//   for (const Finding& each : found) ... each.text ...
//
// Safe beside mounts at work: what is only under way is seen once; a finding stands when two readings, a second apart,
// agree on it.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "fusionfs/core/metadata.h"

namespace fusionfs {

struct Finding {
  enum class Kind : std::uint8_t {
    damaged,     // a record that cannot be read
    dangling,    // a name that leads to no inode
    nameless,    // an inode with links and without a name
    links,       // a link count that is not the number of names
    listing,     // a listing that does not agree with the names
    orphan,      // an inode without links whose mount has gone
    unfinished,  // a move, a removal, a debt or a promise that nobody carries on
    misplaced,   // a directory with several names, or another parent than the one that names it
  };
  Kind kind = Kind::damaged;
  InodeId inode{};
  HomeId home{};  // of the name
  std::string name;
  std::string text;         // for people
  std::uint32_t names = 0;     // links: how many were counted
  std::uint64_t revision = 0;  // links: of the inode that was read
  // Whether another reading found the very same.
  bool same(const Finding& other) const { return names == other.names && revision == other.revision; }
  bool operator<(const Finding& other) const {
    return std::tie(kind, inode, home, name) < std::tie(other.kind, other.inode, other.home, other.name);
  }
};

struct Census {
  std::uint64_t files = 0, directories = 0, names = 0, bytes = 0;
  std::uint64_t inodes = 0;
};

class Check {
 public:
  Check(zht::Client& client, Metadata& metadata) : client_(client), metadata_(metadata) {}

  // One reading of everything. Blocks. unavailable, timeout: the store did not answer.
  base::Result<std::set<Finding>> read(Census& census);
  // Those to repair now. What is unfinished goes first, and alone: it changes the counts that the others are about, so
  // they are read anew afterwards.
  static std::set<Finding> mendable(const std::set<Finding>& found);
  // Mends one finding if that takes no guessing; returns whether it did.
  Task<bool> repair(Finding finding);

 private:
  zht::Client& client_;
  Metadata& metadata_;
};

std::string_view name_of(Finding::Kind kind);

}  // namespace fusionfs

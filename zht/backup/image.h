// A folder of backups on disk, FORMAT.md in code: which backups there are, what each holds of each partition, and reading that.
//
//   TRY_LET(folder, Folder::open("/backups/store"));
//   TRY_LET(chain, folder.chain_of(folder.newest()));        // the backup, the one it builds on, and so on to a whole one
//   TRY_LET(entries, chain.load(PartitionId{7}));            // as the partition was at the cut
//
// One thread at a time, but Chain's const functions.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "novoht/base/file.h"
#include "zht/backup/blocks.h"

namespace zht::backup {

inline constexpr std::uint32_t kFormat = 1;

// What one backup holds of one partition.
struct Holding {
  enum class State : std::uint8_t {
    whole = 1,    // all of it
    changes = 2,  // what is not as in the backup before
    same = 3,     // nothing is
  };
  struct Extent {
    std::uint64_t offset = 0, size = 0;  // of whole blocks in the data file
  };
  State state = State::whole;
  Version version = 0;        // of the partition at the cut
  std::uint64_t entries = 0;  // in the extents
  std::uint64_t removed = 0;
  std::vector<Extent> extents;
};
std::string encode_index(const std::vector<Holding>& holdings);
Result<std::vector<Holding>> parse_index(Bytes bytes);  // corrupt, unsupported

struct Manifest {
  std::uint64_t number = 0, parent = 0;  // 0: it builds on none
  std::string cluster;                   // the cluster's id
  std::uint64_t cut = 0;
  base::WallTime made{};                 // when the cut was
  std::uint32_t partitions = 0;
  std::uint64_t entries = 0, removed = 0;
  std::uint64_t data_size = 0, index_size = 0;
  std::uint32_t index_checksum = 0;
  std::uint64_t pause_us = 0;            // how long changes waited for the cut, as the backup saw it
  std::uint64_t seconds_ms = 0;          // how long it took
  std::map<std::string, std::string> parts;  // what services added: name, what they say of it (JSON)
};
std::string encode_manifest(const Manifest& manifest);
Result<Manifest> parse_manifest(Bytes text);  // corrupt, unsupported

// The magic at the beginning of a data file.
std::string data_magic(std::uint64_t number);
inline constexpr std::size_t kDataMagicSize = 24;

struct OwnedEntry {
  Version version = 0;
  base::WallTime expires = base::kNever;
  std::string value;
  std::vector<std::uint64_t> fragment_ends;
};
using Entries = std::unordered_map<std::string, OwnedEntry>;

// A backup and those below it. Its files stay open.
class Chain {
 public:
  struct Link {
    Manifest manifest;
    std::string folder;
    std::vector<Holding> holdings;  // by partition
    std::unique_ptr<base::File> data;
  };
  explicit Chain(std::vector<Link> links) : links_(std::move(links)) {}  // the newest first

  const Manifest& manifest() const { return links_.front().manifest; }
  const std::vector<Link>& links() const { return links_; }
  Version version(PartitionId partition) const;
  // As the partition was. `values`: else keys and versions only. corrupt (file and offset), io.
  enum class What { everything, keys };
  Result<Entries> load(PartitionId partition, What what = What::everything) const;

 private:
  Result<void> read(const Link& link, PartitionId partition, What what, Entries& entries) const;
  std::vector<Link> links_;
};

class Folder {
 public:
  // not_found: there is none (unless `make`); conflict: another process is at it; io.
  enum class Mode { read, make };
  static Result<Folder> open(std::string path, Mode mode);
  Folder(Folder&&) noexcept;
  ~Folder();

  const std::string& path() const { return path_; }
  const std::vector<std::uint64_t>& numbers() const { return numbers_; }  // whole backups, in order
  std::uint64_t newest() const { return numbers_.empty() ? 0 : numbers_.back(); }
  // Folders of backups that did not come to their end.
  const std::vector<std::string>& unfinished() const { return unfinished_; }
  std::string folder_of(std::uint64_t number) const;
  Result<Manifest> manifest(std::uint64_t number) const;
  Result<Chain> chain_of(std::uint64_t number) const;  // not_found (which), corrupt, unsupported, io

 private:
  struct Lock;
  explicit Folder(std::string path);
  std::string path_;
  std::vector<std::uint64_t> numbers_;
  std::vector<std::string> unfinished_;
  std::unique_ptr<Lock> lock_;
};

}  // namespace zht::backup

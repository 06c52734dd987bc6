// A disk in memory, for tests: it does what a file system promises and, when told to, what disks really do. Every change
// (write, truncate, reserve, sync, create, rename, remove, folder sync) is one numbered operation; a test runs once to
// count them and then stops the power at each in turn.
//
//   MemoryFiles disk;
//   disk.stop_at(17);                 // operation 17 is done in part, and everything after it fails
//   ... use the store until it fails ...
//   disk.crash(random);               // keeps what was synced, and any part of the rest
//   ... open again and compare ...
//
// What a power loss keeps: synced bytes always; of unsynced writes any subset of their 512-byte sectors, in any order; of
// changes to names (create, rename, remove) since the folder's last sync a prefix, as journals do.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "novoht/base/file.h"
#include "novoht/base/random.h"

namespace base {

// Any thread.
class MemoryFiles final : public FileSystem {
 public:
  MemoryFiles();
  ~MemoryFiles() override;

  Result<std::unique_ptr<File>> open(const std::string& path, OpenMode mode) override;
  Result<bool> exists(const std::string& path) override;
  Result<void> rename(const std::string& from, const std::string& to) override;
  Result<void> remove(const std::string& path) override;
  Result<std::vector<std::string>> list(const std::string& folder) override;
  Result<void> make_folder(const std::string& path) override;
  Result<void> sync_folder(const std::string& path) override;
  Result<std::unique_ptr<FileLock>> lock(const std::string& path) override;

  bool threads() const override { return false; }
  std::uint64_t free_bytes(const std::string& folder) override;

  // --- faults ---
  // Operation `number` (from 1, see operations()) is done in part and fails with io, as does every later one until
  // crash() or kill().
  void stop_at(std::uint64_t number);
  std::uint64_t operations() const;
  // Bytes the disk holds in all; writes beyond fail with no_space, having written what fitted.
  void set_capacity(std::uint64_t bytes);
  std::uint64_t used() const;
  void fail_writes(bool on);  // io, nothing written
  void fail_syncs(bool on);   // io; what was unsynced is lost from the disk's view but still read back until crash()
  // The power goes and comes back: see above for what stays. Open files and locks of before are dead.
  void crash(Random& random);
  // The process dies: everything written stays, open files and locks of before are dead.
  void kill();

  // --- the disk's surface, for tests that garble it; in effect at once and as if synced ---
  std::string contents(const std::string& path) const;           // empty when absent
  void put(const std::string& path, std::string contents);       // makes or replaces the file
  std::vector<std::string> paths() const;                        // all files, sorted

 private:
  struct Node;
  struct State;
  class Handle;
  class Lock;
  std::shared_ptr<State> state_;
};

}  // namespace base

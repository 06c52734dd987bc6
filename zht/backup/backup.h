// Making a backup of a live cluster, and reading one whole to see that it can be restored.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "zht/backup.h"
#include "zht/backup/image.h"
#include "zht/client/address.h"

namespace zht::backup {

struct MakeOptions {
  std::string folder;
  bool incremental = false;                 // on top of the newest there
  std::vector<client::Address> addresses;   // of managers
  security::Opener opener;
  std::vector<BackupService> services;
  BackupPlace place;                        // what services are given; their folders are filled in
  std::function<void(const std::string&)> tell;  // a line for people
  // Partitions done, of how many; bytes written.
  std::function<void(std::uint64_t done, std::uint64_t total, std::uint64_t bytes)> progress;
};
struct Made {
  Manifest manifest;
  std::string folder;             // of this backup
  std::uint64_t changed = 0;      // partitions that were not as in the backup before
  std::uint64_t size = 0;         // bytes of this backup on disk, services' with them
};
// Either the whole backup is there, under the next number, or nothing of it. Errors: not_found (nothing to build on), conflict (another
// backup is being made, or it is another cluster's), unavailable (no cut could be made; a node went while it was read), no_space,
// io (which file), unsupported.
Result<Made> make(const MakeOptions& options);

struct Verified {
  Manifest manifest;
  std::uint64_t keys = 0, value_bytes = 0;
  std::vector<std::uint64_t> chain;  // the backups that it needs, itself first
};
// Reads everything that restoring backup `number` would. 0: the newest. corrupt: file, offset, what is wrong.
Result<Verified> verify(const std::string& folder, std::uint64_t number, const std::vector<BackupService>& services,
                        const std::function<void(std::uint64_t done, std::uint64_t total)>& progress);

// A service's folder in each backup of a chain.
std::vector<std::string> service_folders(const Chain& chain, const std::string& name);

std::uint64_t size_of_folder(const std::string& folder);

}  // namespace zht::backup

// A backup becomes the data folder of a node that begins a cluster of its own; further nodes join it and are given their share.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "zht/backup.h"
#include "zht/backup/image.h"

namespace zht::backup {

// What a restored partition's version is past the cut's: whatever the lost time gave out, no version is given out again.
inline constexpr Version kVersionStep = Version{1} << 32;

struct RestoreOptions {
  std::string folder;
  std::uint64_t number = 0;       // of the backup; 0: the newest
  std::string data;               // the folder to be made; it is not there, or empty
  std::uint32_t instances = 1;
  std::uint32_t partitions = 0;   // 0: as in the backup
  std::uint32_t copies = 3, sync_copies = 2;
  std::vector<BackupService> services;
  std::function<void(const std::string&)> tell;
  std::function<void(std::uint64_t done, std::uint64_t total)> progress;
};
struct RestoredStore {
  Manifest manifest;
  std::uint64_t keys = 0, value_bytes = 0;
  std::uint32_t partitions = 0;
  std::vector<std::pair<std::string, std::string>> parts;  // services, and what they say (JSON)
};
// The folder takes its name when all of it is there and durable: what a restore that was interrupted leaves is called
// <data>.restoring, and the next one begins anew. Errors: conflict (the folder is not empty), not_found (no such backup), corrupt
// (file, offset), no_space, io, unsupported.
Result<RestoredStore> restore(const RestoreOptions& options);

}  // namespace zht::backup

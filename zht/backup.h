// What a service adds to backups of the store: bytes of its own that lie elsewhere than in keys, and what must be said otherwise in a
// store that is restored in another place. The program registers the services (zht/tool/backup_services.cc); zht/backup/ knows
// nothing of them.
//
//   a backup:   make() -> copies what it can -> the cut -> take() and remove() of each of its keys that is not as in the backup
//               before -> finish() copies the rest -> the backup is whole
//   a restore:  restore() -> each key through restored() -> finish()
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "zht/client.h"

namespace zht {

// For the length of one backup.
struct BackupPlace {
  Client* client = nullptr;   // of the cluster
  std::string cluster;        // as --cluster had it; empty: the local node
  std::string data;           // the local node's data folder
  std::string folder;         // the service's own in this backup; made when it is first needed
  std::vector<std::string> before;  // the same in the backup that this one builds on, and in those below it; empty: it is whole
  std::function<void(const std::string&)> tell;  // a line for people
};

class ServiceBackup {
 public:
  virtual ~ServiceBackup() = default;
  virtual bool wants(Bytes key) const = 0;
  // As the cut has them. One at a time, on any thread; must not block.
  virtual void take(Bytes key, Bytes value) = 0;
  virtual void remove(Bytes key) = 0;
  // Everything in its folder is synced when it returns. What it says of itself: a JSON object.
  virtual Result<std::string> finish() = 0;
};

// For the length of one restore.
struct RestorePlace {
  std::string data;                  // the data folder that is being made
  std::vector<std::string> folders;  // the service's own in the backup, and in those below it
  std::string about;                 // what finish() said of the backup
  std::function<void(const std::string&)> tell;
};

class ServiceRestore {
 public:
  virtual ~ServiceRestore() = default;
  virtual bool wants(Bytes key) const = 0;
  // The value that the key has in the restored store; nothing: the key is left out.
  virtual Result<std::optional<std::string>> restored(Bytes key, Bytes value) = 0;
  virtual Result<std::string> finish() = 0;  // durable; a JSON object
};

struct BackupService {
  std::string name;  // of its folder, and in the manifest
  // Null: there is nothing of the service in this cluster.
  std::function<Result<std::unique_ptr<ServiceBackup>>(const BackupPlace&)> make;
  std::function<Result<std::unique_ptr<ServiceRestore>>(const RestorePlace&)> restore;
  // Reads all that `folders` (the newest first) have for the newest one. corrupt names the file and the offset.
  std::function<Result<void>(const std::vector<std::string>& folders, const std::string& about)> verify;
};

}  // namespace zht

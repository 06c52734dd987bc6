// Files whose syncs are put off until the end: for a folder that counts only when all of it is there, where a sync of each of a
// thousand tables takes minutes and one of everything a moment.
//
//   LateSync files(*system);
//   ... open stores over `files`, write, close them ...
//   TRY(files.sync_all(folder));      // now everything in it, whoever wrote it, survives a loss of power
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "novoht/base/file.h"

namespace zht::backup {

class LateSync final : public base::FileSystem {
 public:
  explicit LateSync(base::FileSystem& below) : below_(below) {}
  // Of the file system that `folder` is on: all that was written to it. io.
  static base::Result<void> sync_all(const std::string& folder);

  base::Result<std::unique_ptr<base::File>> open(const std::string& path, base::OpenMode mode) override;
  base::Result<bool> exists(const std::string& path) override { return below_.exists(path); }
  base::Result<void> rename(const std::string& from, const std::string& to) override { return below_.rename(from, to); }
  base::Result<void> remove(const std::string& path) override { return below_.remove(path); }
  base::Result<std::vector<std::string>> list(const std::string& folder) override { return below_.list(folder); }
  base::Result<void> make_folder(const std::string& path) override { return below_.make_folder(path); }
  base::Result<void> sync_folder(const std::string&) override { return {}; }
  std::uint64_t free_bytes(const std::string& folder) override { return below_.free_bytes(folder); }
  bool threads() const override { return below_.threads(); }
  base::Result<std::unique_ptr<base::FileLock>> lock(const std::string& path) override { return below_.lock(path); }

 private:
  base::FileSystem& below_;
};

}  // namespace zht::backup

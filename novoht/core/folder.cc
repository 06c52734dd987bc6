#include "novoht/core/folder.h"

#include <algorithm>

#include "novoht/base/random.h"
#include "novoht/core/format.h"

namespace novoht::core {
namespace {

constexpr char kLockName[] = "LOCK";

Result<void> make_store_file(base::FileSystem& files, const std::string& folder) {
  StoreFile about;
  about.id = base::entropy();
  const std::string path = folder + "/" + kStoreName, temporary = path + ".new";
  TRY_LET(file, files.open(temporary, base::OpenMode::create));
  TRY(file->truncate(0));
  TRY(file->write_at(0, encode_store_file(about)));
  TRY(file->sync());
  TRY(files.rename(temporary, path));
  return files.sync_folder(folder);
}

}  // namespace

Result<std::unique_ptr<base::FileLock>> begin_folder(base::FileSystem& files, const std::string& folder, bool create, bool read_only) {
  TRY_LET(there, files.exists(folder));
  if (!there) {
    if (!create || read_only) return base::fail(Code::invalid, folder, ": no such folder, so no store");
    TRY(files.make_folder(folder));
  }
  auto listed = files.list(folder);
  if (!listed) return base::fail(Code::invalid, folder, ": not a folder that can be read (", listed.error().message, ")");
  const auto holds = [](const std::vector<std::string>& names, const char* name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (!holds(*listed, kStoreName)) {
    for (const std::string& name : *listed) {
      if (name != kLockName && name != std::string(kStoreName) + ".new")
        return base::fail(Code::invalid, folder, ": not a store: it holds ", base::escape(name), " and no file ", kStoreName);
    }
    if (!create || read_only) return base::fail(Code::invalid, folder, ": not a store: the folder is empty");
  }
  if (read_only) return std::unique_ptr<base::FileLock>();
  auto lock = files.lock(folder + "/" + kLockName);
  if (!lock && lock.code() != Code::conflict) return std::move(lock).error();
  if (!lock) return base::add_context("the store is open elsewhere", std::move(lock).error());
  TRY_LET(names, files.list(folder));
  if (!holds(names, kStoreName)) TRY(make_store_file(files, folder));
  return lock;
}

}  // namespace novoht::core

// The folder that is a store: made, recognized, locked.
#pragma once

#include <memory>
#include <string>

#include "novoht/base/file.h"

namespace novoht::core {

inline constexpr char kStoreName[] = "STORE";

// Makes sure that the folder is a store, makes one where `create` says so, and takes the lock. Nothing is made or locked, and
// the lock is null, where it shall be read only. Errors: invalid (what is there is no store, and why), conflict (locked, by whom),
// io, no_space.
base::Result<std::unique_ptr<base::FileLock>> begin_folder(base::FileSystem& files, const std::string& folder, bool create,
                                                           bool read_only);

}  // namespace novoht::core

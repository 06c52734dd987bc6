// A disk for a node that keeps nothing: files have names and sizes, and of what is written to them the first 4 KiB stay (a
// store's own description); the rest is dropped. The store's log and checkpoints then cost a function call, and its memory
// is the only copy. Reading what was dropped is refused (io): nobody should believe zeros.
#pragma once

#include <memory>

#include "novoht/base/file.h"

namespace zht::server {

std::unique_ptr<base::FileSystem> no_files();  // any thread

}  // namespace zht::server

// Where a bit of a node's files changes by itself.
#pragma once

#include <optional>
#include <string>

#include "novoht/base/memory_files.h"

namespace zht::sim {

// Any log segment or checkpoint in the folder; empty: there is none.
std::string any_file(const base::MemoryFiles& disk, const std::string& folder, base::Random& random);

struct Stretch {
  std::string path;
  std::uint64_t begin = 0, size = 0;
};
// The log's last record: what was acknowledged last, with nothing behind it that would tell of it.
std::optional<Stretch> last_record(const base::MemoryFiles& disk, const std::string& folder);

// Changes a bit there; returns in which byte of the file.
std::uint64_t flip_a_bit(base::MemoryFiles& disk, const Stretch& where, base::Random& random);

}  // namespace zht::sim

#include "tests/sim/rot.h"

#include <vector>

#include "novoht/core/format.h"

namespace zht::sim {

using namespace novoht::core;

std::string any_file(const base::MemoryFiles& disk, const std::string& folder, base::Random& random) {
  std::vector<std::string> files;
  for (const std::string& one : disk.paths())
    if (one.starts_with(folder + "/log-") || one.starts_with(folder + "/table-")) files.push_back(one);
  return files.empty() ? std::string() : files[random.below(files.size())];
}

std::optional<Stretch> last_record(const base::MemoryFiles& disk, const std::string& folder) {
  std::optional<Stretch> last;
  for (const std::string& path : disk.paths()) {  // in the order of their numbers
    const auto number = path.starts_with(folder + "/") ? segment_number(base::Bytes(path).substr(folder.size() + 1)) : std::nullopt;
    if (!number) continue;
    const std::string bytes = disk.contents(path);
    SegmentHeader header;
    const auto state = parse_segment_header(bytes, path, header);
    if (!state || *state != HeaderState::good || header.number != *number) continue;
    std::uint64_t at = kSegmentHeaderSize;
    while (const auto record = parse_record(bytes, at, segment_salt(header.store, header.number), 0)) {
      last = Stretch{path, at, record->size};
      at += record->size;
    }
  }
  return last;
}

std::uint64_t flip_a_bit(base::MemoryFiles& disk, const Stretch& where, base::Random& random) {
  std::string contents = disk.contents(where.path);
  const std::uint64_t at = where.begin + random.below(where.size);
  contents[at] = static_cast<char>(contents[at] ^ (1 << random.below(8)));
  disk.put(where.path, contents);
  return at;
}

}  // namespace zht::sim

// Opening a store whose folder holds anything. Input: a byte that says what the rest is:
//   even  the folder's files one after the other: a byte that says which file, its size (3 bytes), its bytes
//   odd   edits to a small good store: a byte that says which file and how (overwrite, cut, lengthen, swap with another,
//         seal: make a changed record's or block's checksum good again), a place (2 bytes), a size (1 byte), bytes
// A store that opens must be whole in itself, take a change, and open again with it; one that does not must be left as it is.
#include <array>
#include <map>

#include "novoht/base/memory_files.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace novoht;
using Folder = std::map<std::string, std::string>;

const Folder& good_folder() {
  static const Folder folder = [] {
    base::MemoryFiles disk;
    Options options;
    options.segment_size = 4096;
    {
      auto store = *Store::open(disk, "/store", options);
      const auto apply = [&](TableId table, const Change& change) { CHECK(store->apply(table, std::array{change}, "note", 1).has_value(), "apply"); };
      apply(TableId{1}, Change::insert("alpha", "first"));
      apply(TableId{1}, Change::append("alpha", "second"));
      apply(TableId{2}, Change::insert("gamma", std::string(500, 'g')));
      CHECK(store->compact().has_value(), "compact");
      apply(TableId{1}, Change::remove("alpha"));
      apply(TableId{1}, Change::insert("delta", "d", base::from_millis(5000)));
      CHECK(store->sync().has_value(), "sync");
      apply(TableId{2}, Change::append("gamma", "h"));
      CHECK(store->flush().has_value(), "flush");
    }
    Folder made;
    for (const std::string& path : disk.paths())
      if (!path.ends_with("LOCK")) made[path] = disk.contents(path);
    return made;
  }();
  return folder;
}

std::string path_of(std::uint8_t which) {
  const auto number = static_cast<std::uint8_t>(which / 4 % 4 + which / 64 * 4);
  switch (which % 4) {
    case 0: return "/store/STORE";
    case 1: return "/store/" + core::segment_name(number + 1u);
    case 2: return "/store/" + core::checkpoint_name(TableId{number});
    default: return "/store/" + core::checkpoint_name(TableId{number}) + ".new";
  }
}

Folder literal(base::Reader& in) {
  Folder folder;
  while (in.left() > 4) {
    const std::uint8_t which = in.u8();
    const std::size_t size = in.u16() | std::size_t{in.u8()} << 16;
    folder[path_of(which)] = in.raw(std::min(size, in.left()));
  }
  return folder;
}

// Whatever record or block begins at `at` gets the checksums that its bytes should have.
void seal(const std::string& path, std::string& bytes, std::size_t at) {
  const auto number = core::segment_number(base::Bytes(path).substr(7));
  if (number && bytes.size() >= core::kSegmentHeaderSize && at + 40 <= bytes.size()) {
    if (at < core::kSegmentHeaderSize) {
      base::store(bytes.data() + 60, base::crc32c(base::Bytes(bytes).substr(0, 60)));
      return;
    }
    const std::uint64_t store = base::load<std::uint64_t>(bytes.data() + 16);
    at = at / 8 * 8;
    const std::size_t size = core::padded(base::load<std::uint32_t>(bytes.data() + at + 8));
    if (size >= core::kRecordHeaderSize && size <= bytes.size() - at)
      core::seal_record(bytes.data() + at, size, core::segment_salt(store, *number), at);
  } else if (path.ends_with("STORE") && bytes.size() >= 40) {
    base::store(bytes.data() + 36, base::crc32c(base::Bytes(bytes).substr(0, 36)));
  } else if (bytes.size() >= core::kCheckpointMagicSize) {
    // The block that holds `at`, counted from the first.
    for (std::size_t block = core::kCheckpointMagicSize; block + core::kBlockHeaderSize <= bytes.size();) {
      const std::uint64_t size = base::load<std::uint64_t>(bytes.data() + block + 8);
      if (size > bytes.size() - block - core::kBlockHeaderSize) return;
      const std::size_t end = block + core::kBlockHeaderSize + size;
      if (at < end) {
        const base::Bytes whole(bytes.data() + block, end - block);
        const std::uint32_t header = base::crc32c(whole.substr(4, core::kBlockHeaderSize - 4));
        base::store(bytes.data() + block, base::crc32c(whole.substr(core::kBlockHeaderSize), header));
        return;
      }
      block = end;
    }
  }
}

Folder edited(base::Reader& in) {
  Folder folder = good_folder();
  while (in.left() > 4) {
    const std::uint8_t what = in.u8();
    const std::size_t at = in.u16(), size = in.u8();
    auto file = std::next(folder.begin(), what / 8 % static_cast<int>(folder.size()));
    std::string& bytes = file->second;
    switch (what % 8) {
      case 0:
      case 1:
      case 2: {
        const base::Bytes given = in.raw(std::min(size, in.left()));
        for (std::size_t i = 0; i < given.size() && at + i < bytes.size(); i++) bytes[at + i] = given[i];
        if (what % 8 == 2) seal(file->first, bytes, at);
        break;
      }
      case 3: bytes.resize(std::min(bytes.size(), at)); break;
      case 4: bytes.append(in.raw(std::min(size, in.left()))); break;
      case 5: std::swap(bytes, std::next(folder.begin(), static_cast<std::ptrdiff_t>(at % folder.size()))->second); break;
      case 6: seal(file->first, bytes, at); break;
      default:
        if (folder.size() > 1) folder.erase(file);
    }
  }
  return folder;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  base::Reader in(fuzz::bytes_of(data, size));
  const Folder folder = in.u8() % 2 == 0 ? literal(in) : edited(in);
  base::MemoryFiles disk;
  for (const auto& [path, bytes] : folder) disk.put(path, bytes);
  Options options;
  options.segment_size = 4096;
  for (const bool read_only : {true, false}) {
    options.read_only = read_only;
    auto opened = Store::open(disk, "/store", options);
    if (!opened) {
      CHECK(!opened.error().message.empty(), "refused without a reason");
      for (const auto& [path, bytes] : folder) CHECK(disk.contents(path) == bytes, "a refused store was changed");
      continue;
    }
    fuzz::walk(**opened);
    if (read_only) continue;
    const Version before = (*opened)->version(TableId{1});
    const auto applied = (*opened)->apply(TableId{1}, std::array{Change::insert("new", "value")}, {}, UINT64_MAX);
    CHECK(applied && *applied == before + 1, "a store that opened takes no change");
    CHECK((*opened)->sync().has_value(), "sync");
    opened->reset();
    auto again = Store::open(disk, "/store", options);
    CHECK(again, again ? "" : again.error().message);
    CHECK((*again)->lookup(TableId{1}, "new"), "what was synced is gone");
    fuzz::walk(**again);
  }
  return 0;
}

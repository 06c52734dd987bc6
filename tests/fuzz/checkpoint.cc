// Reading a checkpoint of anything. Input: a byte that says whether the rest is the file as it is, or blocks (kind, size,
// payload) that are given good checksums.
#include <array>

#include "novoht/base/memory_files.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace novoht;
  base::Reader in(fuzz::bytes_of(data, size));
  const bool blocks = in.u8() % 2 == 1;
  const std::string file = blocks ? fuzz::blocks_of(in, core::checkpoint_magic()) : std::string(in.raw(in.left()));
  // The store has the id that the checkpoint's header names, if it names one.
  core::StoreFile about;
  about.id = file.size() >= 48 ? base::load<std::uint64_t>(file.data() + 40) : 0;
  base::MemoryFiles disk;
  disk.put("/store/STORE", core::encode_store_file(about));
  disk.put("/store/" + core::checkpoint_name(TableId{7}), file);
  Options options;
  options.segment_size = 4096;
  auto opened = Store::open(disk, "/store", options);
  if (!opened) {
    CHECK(!opened.error().message.empty(), "refused without a reason");
    CHECK(disk.contents("/store/" + core::checkpoint_name(TableId{7})) == file, "a refused checkpoint was changed");
    return 0;
  }
  fuzz::walk(**opened);
  return 0;
}

// Taking in a snapshot of anything, over a table that is there. Input: a byte that says whether the rest is the stream as it
// is, or blocks (kind, size, payload) that are given good checksums; and how long the pieces are in which it comes.
#include <array>

#include "novoht/base/memory_files.h"
#include "novoht/snapshot.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace novoht;
  constexpr TableId kTable{7};
  base::Reader in(fuzz::bytes_of(data, size));
  const std::uint8_t first = in.u8();
  const std::string stream = first % 2 == 1 ? fuzz::blocks_of(in, core::snapshot_magic()) : std::string(in.raw(in.left()));
  const std::size_t piece = 1 + std::size_t{first} / 2;
  base::MemoryFiles disk;
  Options options;
  options.segment_size = 4096;
  auto store = *Store::open(disk, "/store", options);
  CHECK(store->apply(kTable, std::array{Change::insert("old", "one")}).has_value() && store->sync().has_value(), "apply");
  bool taken = false;
  Version version = 1;
  {
    auto import = *store->begin_import(kTable);
    Result<void> done;
    for (std::size_t at = 0; done && at < stream.size(); at += piece) done = import->write(base::Bytes(stream).substr(at, piece));
    if (done) done = import->finish();
    CHECK(done || !done.error().message.empty(), "refused without a reason");
    taken = done.has_value();
    if (taken) version = import->version();
  }
  for (int life = 0; life < 2; life++) {
    CHECK(store->version(kTable) == version, "another version than the import's");
    CHECK(taken || store->lookup(kTable, "old"), "an import that failed took the old table away");
    fuzz::walk(*store);
    store.reset();
    auto again = Store::open(disk, "/store", options);
    CHECK(again, again ? "" : again.error().message);
    store = *std::move(again);
  }
  return 0;
}

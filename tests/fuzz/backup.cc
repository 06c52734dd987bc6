// What is read of a backup's folder, and what nodes send: anything. Input: a byte that says which, then the bytes; or, for those behind
// a checksum, what a good one is put around.
#include "fusionfs/backup/index.h"
#include "tests/fuzz/fuzz.h"
#include "zht/backup/image.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace zht::backup;
  base::Reader in(fuzz::bytes_of(data, size));
  const std::uint8_t which = in.u8();
  const base::Bytes bytes = in.raw(in.left());
  const auto sealed = [&](base::Bytes magic) {
    std::string out(magic);
    base::Writer writer(out);
    writer.u32(1);
    writer.raw(bytes);
    writer.u32(base::crc32c(out));
    return out;
  };
  switch (which % 8) {
    case 0: {
      const auto block = next_block(bytes);
      CHECK(!block || !*block || (*block)->size <= bytes.size(), "a block beyond its bytes");
      break;
    }
    case 1: {
      std::uint64_t total = 0;
      for (EntryReader reader(bytes); reader.more();) {
        const auto entry = reader.next();
        if (!entry) break;
        CHECK(entry->fragment_ends.empty() || entry->fragment_ends.back() == entry->value.size(), "fragments end elsewhere");
        total += entry->key.size() + entry->value.size();
      }
      CHECK(total <= bytes.size(), "more than there is");
      break;
    }
    case 2: (void)parse_removed(bytes).has_value(); break;
    case 3: (void)parse_kept(bytes).has_value(); break;
    case 4: (void)parse_end(bytes).has_value(); break;
    case 5:
      if (const auto index = parse_index(sealed("ZHTBKidx"))) CHECK(encode_index(*index) == sealed("ZHTBKidx"), "an index that comes back otherwise");
      break;
    case 6: (void)parse_manifest(bytes).has_value(); break;
    default: (void)fusionfs::parse_saved(sealed("FFSBKidx")).has_value(); break;
  }
  return 0;
}

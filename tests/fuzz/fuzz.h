// A fuzz target is one function of bytes (libFuzzer's own name for it) that must end well whatever they are. Beside it, what
// several targets share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "novoht/base/bytes.h"
#include "novoht/base/check.h"
#include "novoht/core/format.h"
#include "novoht/store.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace fuzz {

inline base::Bytes bytes_of(const std::uint8_t* data, std::size_t size) {
  return base::Bytes(reinterpret_cast<const char*>(data), size);
}

// Checksums keep random bytes from getting far. So an input may also be a list of parts that are given good ones: takes the
// next part, a size of two bytes and then so many of them, or what is left.
inline base::Bytes next_part(base::Reader& in) {
  const std::size_t size = in.u16();
  return in.raw(size < in.left() ? size : in.left());
}

// The parts as blocks of a checkpoint or snapshot, each with its kind before it.
inline std::string blocks_of(base::Reader& in, std::string magic) {
  while (in.left() > 2) {
    const auto kind = static_cast<novoht::core::BlockKind>(in.u8());
    novoht::core::append_block(magic, kind, next_part(in), magic.size());
  }
  return magic;
}

// Everything that can be asked of a store that did open: each key listed is found, with the size it was listed with; then it
// takes a change, and opens again with it.
inline void walk(novoht::Store& store) {
  for (const novoht::TableId table : store.tables()) {
    std::uint64_t cursor = 0;
    std::string value;
    do {
      const novoht::ScanPage page = store.scan(table, cursor, 100);
      for (const novoht::ScanEntry& entry : page.entries) {
        const auto found = store.lookup(table, entry.key);
        CHECK(found && found->size() == entry.size && found->version() == entry.version, "a listed key is not found as listed");
        value.clear();
        CHECK(found->read(0, found->size(), value) && value.size() == entry.size, "a value cannot be read");
        CHECK(found->fragment_count() == 0 || found->fragment_end(found->fragment_count() - 1) == entry.size, "fragments end elsewhere");
      }
      cursor = page.cursor;
    } while (cursor != 0);
  }
}

}  // namespace fuzz

// Numbers in records and receipts: most are small, so they take seven bits a byte, low ones first; the top bit of a byte
// says that another follows. 1 to 10 bytes.
#pragma once

#include <cstdint>
#include <string>

#include "novoht/base/bytes.h"

namespace fabriq {

inline void put_number(std::string& out, std::uint64_t number) {
  while (number >= 0x80) {
    out.push_back(static_cast<char>(number | 0x80));
    number >>= 7;
  }
  out.push_back(static_cast<char>(number));
}

// A number cut short fails the reader, as any read past its end does.
inline std::uint64_t take_number(base::Reader& reader) {
  std::uint64_t number = 0;
  for (unsigned shift = 0; shift < 64; shift += 7) {
    const std::uint8_t byte = reader.u8();
    number |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
    if ((byte & 0x80) == 0) break;
  }
  return number;
}

}  // namespace fabriq

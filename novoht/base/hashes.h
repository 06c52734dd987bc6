// The hashes that [ZHT] 3.2 compares, beside our own hash64 (base/bytes.h): for who must place keys as others do, and for the
// benchmark of how evenly each spreads keys.
#pragma once

#include <cstdint>

#include "novoht/base/bytes.h"

namespace base {

// Fowler, Noll and Vo, variant 1a, 64 bits.
inline std::uint64_t fnv1a64(Bytes data) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (char byte : data) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  return hash;
}

// Jenkins's one at a time, 32 bits.
inline std::uint32_t jenkins32(Bytes data) {
  std::uint32_t hash = 0;
  for (char byte : data) {
    hash += static_cast<unsigned char>(byte);
    hash += hash << 10;
    hash ^= hash >> 6;
  }
  hash += hash << 3;
  hash ^= hash >> 11;
  return hash + (hash << 15);
}

}  // namespace base

#include "novoht/base/bytes.h"

#include <array>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace base {
namespace {

constexpr std::array<std::uint32_t, 256> make_crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; i++) {
    std::uint32_t c = i;
    for (int bit = 0; bit < 8; bit++) c = c & 1 ? 0x82f63b78u ^ (c >> 1) : c >> 1;
    table[i] = c;
  }
  return table;
}
constexpr auto kCrcTable = make_crc_table();

std::uint32_t crc_portable(Bytes data, std::uint32_t crc) {
  for (char byte : data) crc = kCrcTable[(crc ^ static_cast<unsigned char>(byte)) & 0xff] ^ (crc >> 8);
  return crc;
}

#if defined(__x86_64__)
// The instruction takes three cycles and another can begin in each: three stretches of a long input are read side by side. A
// page of 4096 bytes is three of these and 16 bytes.
constexpr std::size_t kStretch = 1360;

// What kStretch zero bytes make of a checksum, for each byte of it: the map is linear.
constexpr std::array<std::array<std::uint32_t, 256>, 4> make_stretch_table() {
  std::array<std::uint32_t, 32> of_bit{};
  for (std::size_t bit = 0; bit < 32; bit++) {
    std::uint32_t c = std::uint32_t{1} << bit;
    for (std::size_t i = 0; i < kStretch; i++) c = kCrcTable[c & 0xff] ^ (c >> 8);
    of_bit[bit] = c;
  }
  std::array<std::array<std::uint32_t, 256>, 4> table{};
  for (std::size_t byte = 0; byte < 4; byte++)
    for (std::size_t value = 0; value < 256; value++)
      for (std::size_t bit = 0; bit < 8; bit++)
        if (value >> bit & 1) table[byte][value] ^= of_bit[byte * 8 + bit];
  return table;
}
constexpr auto kStretchTable = make_stretch_table();

std::uint64_t after_stretch(std::uint64_t crc) {
  return kStretchTable[0][crc & 0xff] ^ kStretchTable[1][crc >> 8 & 0xff] ^ kStretchTable[2][crc >> 16 & 0xff] ^
         kStretchTable[3][crc >> 24 & 0xff];
}

__attribute__((target("sse4.2"))) std::uint32_t crc_sse42(Bytes data, std::uint32_t crc) {
  const char* at = data.data();
  std::size_t left = data.size();
  std::uint64_t wide = crc;
  for (; left >= 3 * kStretch; left -= 3 * kStretch, at += 3 * kStretch) {
    std::uint64_t second = 0, third = 0;
    for (std::size_t i = 0; i < kStretch; i += 8) {
      wide = _mm_crc32_u64(wide, load<std::uint64_t>(at + i));
      second = _mm_crc32_u64(second, load<std::uint64_t>(at + kStretch + i));
      third = _mm_crc32_u64(third, load<std::uint64_t>(at + 2 * kStretch + i));
    }
    wide = after_stretch(after_stretch(wide) ^ second) ^ third;
  }
  for (; left >= 8; left -= 8, at += 8) wide = _mm_crc32_u64(wide, load<std::uint64_t>(at));
  crc = static_cast<std::uint32_t>(wide);
  for (; left > 0; left--, at++) crc = _mm_crc32_u8(crc, static_cast<unsigned char>(*at));
  return crc;
}
#endif

}  // namespace

std::uint32_t crc32c(Bytes data, std::uint32_t crc) {
  crc = ~crc;
#if defined(__x86_64__)
  static const bool fast = __builtin_cpu_supports("sse4.2");
  if (fast) return ~crc_sse42(data, crc);
#endif
  return ~crc_portable(data, crc);
}

std::string escape(Bytes bytes, std::size_t most) {
  static constexpr char digits[] = "0123456789abcdef";
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); i++) {
    if (i == most) return out + "...";
    const auto c = static_cast<unsigned char>(bytes[i]);
    if (c == '"' || c == '\\') { out += '\\'; out += static_cast<char>(c); }
    else if (c >= 0x20 && c < 0x7f) out += static_cast<char>(c);
    else { out += "\\x"; out += digits[c >> 4]; out += digits[c & 15]; }
  }
  return out;
}

std::string to_hex(Bytes bytes) {
  static constexpr char digits[] = "0123456789abcdef";
  std::string out;
  for (char byte : bytes) {
    const auto c = static_cast<unsigned char>(byte);
    out += digits[c >> 4];
    out += digits[c & 15];
  }
  return out;
}

}  // namespace base

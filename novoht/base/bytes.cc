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
__attribute__((target("sse4.2"))) std::uint32_t crc_sse42(Bytes data, std::uint32_t crc) {
  const char* at = data.data();
  std::size_t left = data.size();
  std::uint64_t wide = crc;
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

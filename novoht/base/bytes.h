// Byte strings and the fixed little-endian encoding used on disk and on the wire.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace base {

using Bytes = std::string_view;  // any bytes; borrowed

static_assert(std::endian::native == std::endian::little, "loads and stores below assume a little-endian machine");

template <typename Number>
Number load(const char* from) {
  Number number;
  std::memcpy(&number, from, sizeof number);
  return number;
}
template <typename Number>
void store(char* to, Number number) {
  std::memcpy(to, &number, sizeof number);
}

// Appends fixed little-endian fields to a string.
class Writer {
 public:
  explicit Writer(std::string& out) : out_(out) {}
  void u8(std::uint8_t v) { out_.push_back(static_cast<char>(v)); }
  void u16(std::uint16_t v) { put(v); }
  void u32(std::uint32_t v) { put(v); }
  void u64(std::uint64_t v) { put(v); }
  void raw(Bytes bytes) { out_.append(bytes); }
  void str(Bytes bytes) { u32(static_cast<std::uint32_t>(bytes.size())); out_.append(bytes); }  // length, then bytes

 private:
  template <typename Number>
  void put(Number v) { out_.append(reinterpret_cast<const char*>(&v), sizeof v); }
  std::string& out_;
};

// Reads what Writer wrote. Fails once and for good instead of reading past the end: after ok() has become false every
// read answers zero or an empty string. Never trusts a length it has not checked.
class Reader {
 public:
  explicit Reader(Bytes in) : in_(in) {}
  bool ok() const { return ok_; }
  bool done() const { return ok_ && in_.empty(); }  // everything was read, and well
  std::size_t left() const { return in_.size(); }
  std::uint8_t u8() { return get<std::uint8_t>(); }
  std::uint16_t u16() { return get<std::uint16_t>(); }
  std::uint32_t u32() { return get<std::uint32_t>(); }
  std::uint64_t u64() { return get<std::uint64_t>(); }
  Bytes raw(std::size_t size) {
    if (!ok_ || size > in_.size()) { ok_ = false; return {}; }
    Bytes taken = in_.substr(0, size);
    in_.remove_prefix(size);
    return taken;
  }
  Bytes str() { return raw(u32()); }

 private:
  template <typename Number>
  Number get() {
    Bytes taken = raw(sizeof(Number));
    return ok_ ? load<Number>(taken.data()) : Number{0};
  }
  Bytes in_;
  bool ok_ = true;
};

// CRC32C (Castagnoli) of `data`, continuing from `crc`; by the processor's instruction where it has one.
std::uint32_t crc32c(Bytes data, std::uint32_t crc = 0);

// 64x64 -> 128 bit multiplication folded to 64 bits: every input bit reaches every output bit.
inline std::uint64_t mix64(std::uint64_t a, std::uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

// A fast 64-bit hash of good quality (wyhash's construction, our code). Stable across releases: it decides where a key
// lives, so it is part of the on-disk and wire contract. Golden values in tests/novoht/hash_test.cc.
inline std::uint64_t hash64(Bytes data, std::uint64_t seed = 0) {
  constexpr std::uint64_t k0 = 0xa0761d6478bd642f, k1 = 0xe7037ed1a0b428db, k2 = 0x8ebc6af09c88c6e3;
  const char* at = data.data();
  std::size_t left = data.size();
  std::uint64_t state = mix64(seed ^ k0, k1);
  for (; left > 16; left -= 16, at += 16)
    state = mix64(load<std::uint64_t>(at) ^ k1, load<std::uint64_t>(at + 8) ^ state);
  // The last 0..16 bytes; two overlapping reads cover them.
  std::uint64_t a = 0, b = 0;
  if (left >= 8) {
    a = load<std::uint64_t>(at);
    b = load<std::uint64_t>(at + left - 8);
  } else if (left >= 4) {
    a = load<std::uint32_t>(at);
    b = load<std::uint32_t>(at + left - 4);
  } else if (left > 0) {
    a = (std::uint64_t{static_cast<unsigned char>(at[0])} << 16) |
        (std::uint64_t{static_cast<unsigned char>(at[left >> 1])} << 8) | static_cast<unsigned char>(at[left - 1]);
  }
  return mix64(k2 ^ data.size(), mix64(a ^ k1, b ^ state));
}

// memcmp() == 0 and memcpy() for keys and short values. Eight bytes at a time, as who made the key has mostly just written
// it: a wider read of bytes that are still on their way to the cache waits for all that came before.
inline bool same_bytes(const char* a, const char* b, std::size_t size) {
  if (size < 16 || size > 128) return std::memcmp(a, b, size) == 0;
  const auto differ = [](const char* x, const char* y) {
    return (load<std::uint64_t>(x) ^ load<std::uint64_t>(y)) | (load<std::uint64_t>(x + 8) ^ load<std::uint64_t>(y + 8));
  };
  for (const char* const last = a + size - 16; a < last; a += 16, b += 16, size -= 16)
    if (differ(a, b) != 0) return false;
  return differ(a + size - 16, b + size - 16) == 0;
}
inline void copy_bytes(char* to, const char* from, std::size_t size) {
  if (size < 8 || size > 128) {
    if (size > 0) std::memcpy(to, from, size);
    return;
  }
  const std::uint64_t last = load<std::uint64_t>(from + size - 8);
  for (std::size_t at = 0; at + 8 < size; at += 8) store(to + at, load<std::uint64_t>(from + at));
  store(to + size - 8, last);
}

// Printable form for logs and messages: quotes, backslashes and other than printable ASCII become escapes; longer than
// `most` bytes is cut with "...".
std::string escape(Bytes bytes, std::size_t most = 80);

std::string to_hex(Bytes bytes);

}  // namespace base

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

// A fast 64-bit hash of good quality (wyhash's construction, our code). Stable across releases: it decides where a key
// lives, so it is part of the on-disk and wire contract. Golden values in tests/novoht/hash_test.cc.
std::uint64_t hash64(Bytes data, std::uint64_t seed = 0);

// Printable form for logs and messages: quotes, backslashes and other than printable ASCII become escapes; longer than
// `most` bytes is cut with "...".
std::string escape(Bytes bytes, std::size_t most = 80);

std::string to_hex(Bytes bytes);

}  // namespace base

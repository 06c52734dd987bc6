#include "fabriq/core/receipt.h"

#include <bit>

#include "fabriq/core/number.h"

namespace fabriq {
namespace {

int digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

}  // namespace

std::uint64_t siphash(const Secret& key, Bytes data) {
  std::uint64_t v0 = key[0] ^ 0x736f6d6570736575ull, v1 = key[1] ^ 0x646f72616e646f6dull;
  std::uint64_t v2 = key[0] ^ 0x6c7967656e657261ull, v3 = key[1] ^ 0x7465646279746573ull;
  const auto round = [&] {
    v0 += v1;
    v1 = std::rotl(v1, 13);
    v1 ^= v0;
    v0 = std::rotl(v0, 32);
    v2 += v3;
    v3 = std::rotl(v3, 16);
    v3 ^= v2;
    v0 += v3;
    v3 = std::rotl(v3, 21);
    v3 ^= v0;
    v2 += v1;
    v1 = std::rotl(v1, 17);
    v1 ^= v2;
    v2 = std::rotl(v2, 32);
  };
  const auto mix = [&](std::uint64_t word) {
    v3 ^= word;
    round();
    round();
    v0 ^= word;
  };
  std::uint64_t last = static_cast<std::uint64_t>(data.size()) << 56;
  for (; data.size() >= 8; data.remove_prefix(8)) mix(base::load<std::uint64_t>(data.data()));
  for (std::size_t i = 0; i < data.size(); i++)
    last |= static_cast<std::uint64_t>(static_cast<unsigned char>(data[i])) << (8 * i);
  mix(last);
  v2 ^= 0xff;
  for (int i = 0; i < 4; i++) round();
  return v0 ^ v1 ^ v2 ^ v3;
}

std::uint64_t Receipt::expected_tag(std::uint64_t queue_id, const Secret& secret) const {
  const std::uint64_t words[] = {queue_id, (std::uint64_t{partition} << 32) | era, lease, first, count, issued_ms};
  return siphash(secret, Bytes(reinterpret_cast<const char*>(words), sizeof words));
}

void Receipt::encode_to(std::string& out) const {
  put_number(out, partition);
  put_number(out, era);
  put_number(out, lease);
  put_number(out, first & ~kAlone);
  put_number(out, (std::uint64_t{count} << 1) | (first >> 63));
  put_number(out, issued_ms);
  base::Writer(out).u64(tag);
}

Receipt Receipt::decode(base::Reader& reader) {
  Receipt it;
  it.partition = static_cast<std::uint32_t>(take_number(reader));
  it.era = static_cast<std::uint32_t>(take_number(reader));
  it.lease = take_number(reader);
  it.first = take_number(reader);
  const std::uint64_t count = take_number(reader);
  it.count = static_cast<std::uint32_t>(count >> 1);
  it.first |= count << 63;
  it.issued_ms = take_number(reader);
  it.tag = reader.u64();
  return it;
}

std::string Receipt::text() const {
  std::string bytes;
  encode_to(bytes);
  return "r" + base::to_hex(bytes);
}

Result<Receipt> Receipt::parse(Bytes text) {
  const Error refused =
      fail(Code::invalid, "\"", base::escape(text, 60), "\" is not a receipt; give the one that pop printed, whole");
  if (text.size() < 2 || text[0] != 'r' || text.size() % 2 == 0 || text.size() > 200) return refused;
  std::string bytes;
  for (std::size_t i = 1; i < text.size(); i += 2) {
    const int high = digit(text[i]), low = digit(text[i + 1]);
    if (high < 0 || low < 0) return refused;
    bytes.push_back(static_cast<char>(high * 16 + low));
  }
  base::Reader reader(bytes);
  const Receipt receipt = decode(reader);
  if (!reader.done() || receipt.count == 0) return refused;
  return receipt;
}

}  // namespace fabriq

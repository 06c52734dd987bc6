#include "zht/net/cookie.h"

#include <bit>

#include "novoht/base/random.h"

namespace zht::net {

CookieJar::CookieJar() : keys_{base::entropy(), base::entropy()} {}

std::uint64_t CookieJar::cookie_for(base::Bytes address) const {
  const std::uint64_t cookie = siphash(keys_, address);
  return cookie != 0 ? cookie : 1;
}

// J.-P. Aumasson, D. J. Bernstein, "SipHash: a fast short-input PRF", 2012; two rounds a word, four at the end.
std::uint64_t siphash(const std::uint64_t (&keys)[2], base::Bytes data) {
  std::uint64_t v0 = keys[0] ^ 0x736f6d6570736575, v1 = keys[1] ^ 0x646f72616e646f6d;
  std::uint64_t v2 = keys[0] ^ 0x6c7967656e657261, v3 = keys[1] ^ 0x7465646279746573;
  const auto rounds = [&](int count) {
    while (count-- > 0) {
      v0 += v1;
      v1 = std::rotl(v1, 13) ^ v0;
      v0 = std::rotl(v0, 32);
      v2 += v3;
      v3 = std::rotl(v3, 16) ^ v2;
      v0 += v3;
      v3 = std::rotl(v3, 21) ^ v0;
      v2 += v1;
      v1 = std::rotl(v1, 17) ^ v2;
      v2 = std::rotl(v2, 32);
    }
  };
  std::uint64_t last = std::uint64_t{data.size()} << 56;
  for (; data.size() >= 8; data.remove_prefix(8)) {
    const auto word = base::load<std::uint64_t>(data.data());
    v3 ^= word;
    rounds(2);
    v0 ^= word;
  }
  for (std::size_t i = 0; i < data.size(); i++) last |= std::uint64_t{static_cast<unsigned char>(data[i])} << (8 * i);
  v3 ^= last;
  rounds(2);
  v0 ^= last;
  v2 ^= 0xff;
  rounds(4);
  return v0 ^ v1 ^ v2 ^ v3;
}

}  // namespace zht::net

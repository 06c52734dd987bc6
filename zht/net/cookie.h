// Cookies prove an address. A datagram's source can be forged, so before anything is done for one, its sender must show
// that what is sent to that address reaches him: he is sent a cookie and has to bring it along. Nothing is remembered for
// it: a cookie is a keyed hash (SipHash-2-4) of address and port, under a secret that lives as long as the process.
#pragma once

#include <cstdint>

#include "novoht/base/bytes.h"

namespace zht::net {

class CookieJar {
 public:
  CookieJar();                                               // a secret from the operating system
  CookieJar(std::uint64_t first, std::uint64_t second) : keys_{first, second} {}
  std::uint64_t cookie_for(base::Bytes address) const;       // never 0, which says "I have none yet"

 private:
  std::uint64_t keys_[2];
};

std::uint64_t siphash(const std::uint64_t (&keys)[2], base::Bytes data);

}  // namespace zht::net

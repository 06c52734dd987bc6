#include "novoht/base/random.h"

#include <sys/random.h>

#include <bit>

#include "novoht/base/check.h"

namespace base {
namespace {
std::uint64_t splitmix(std::uint64_t& state) {
  std::uint64_t z = (state += 0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}
}  // namespace

Random::Random(std::uint64_t seed) {
  for (auto& word : state_) word = splitmix(seed);
}

std::uint64_t Random::next() {
  const std::uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
  const std::uint64_t t = state_[1] << 17;
  state_[2] ^= state_[0];
  state_[3] ^= state_[1];
  state_[1] ^= state_[2];
  state_[0] ^= state_[3];
  state_[2] ^= t;
  state_[3] = std::rotl(state_[3], 45);
  return result;
}

std::uint64_t Random::below(std::uint64_t bound) {
  CHECK(bound > 0);
  // Numbers from the last, incomplete run of `bound` are drawn again, so that every answer is equally likely.
  const std::uint64_t limit = bound * (UINT64_MAX / bound);
  std::uint64_t drawn;
  do drawn = next();
  while (drawn >= limit);
  return drawn % bound;
}

double Random::unit() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

std::uint64_t entropy() {
  std::uint64_t bits = 0;
  CHECK(getrandom(&bits, sizeof bits, 0) == sizeof bits, "getrandom");
  return bits;
}

}  // namespace base

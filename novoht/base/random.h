// Randomness as a parameter: a small seeded generator (xoshiro256**), equal on every machine for an equal seed.
#pragma once

#include <array>
#include <cstdint>

namespace base {

class Random {
 public:
  explicit Random(std::uint64_t seed);
  std::uint64_t next();
  std::uint64_t below(std::uint64_t bound);  // 0..bound-1, evenly; bound > 0
  double unit();                             // [0, 1)
  bool chance(double probability) { return unit() < probability; }

 private:
  std::array<std::uint64_t, 4> state_;
};

std::uint64_t entropy();  // 64 bits from the operating system, for ids and for seeding outside tests

}  // namespace base

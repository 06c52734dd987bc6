// Time as a parameter. Cores are told the time; programs own a Clock and hand it down.
#pragma once

#include <chrono>
#include <cstdint>

namespace base {

using Duration = std::chrono::nanoseconds;
using Time = std::chrono::time_point<std::chrono::steady_clock, Duration>;      // monotonic, one process only
using WallTime = std::chrono::time_point<std::chrono::system_clock, Duration>;  // shared between machines; may jump

inline constexpr WallTime kNever{};  // as an expiry: does not expire

class Clock {
 public:
  virtual ~Clock() = default;
  virtual Time now() const = 0;       // any thread
  virtual WallTime wall() const = 0;  // any thread
};

class SystemClock final : public Clock {
 public:
  Time now() const override { return std::chrono::time_point_cast<Duration>(std::chrono::steady_clock::now()); }
  WallTime wall() const override { return std::chrono::time_point_cast<Duration>(std::chrono::system_clock::now()); }
};

// A clock that a test moves by hand.
class FakeClock final : public Clock {
 public:
  Time now() const override { return now_; }
  WallTime wall() const override { return wall_; }
  void advance(Duration by) { now_ += by; wall_ += by; }
  void jump(Duration by) { wall_ += by; }  // as when someone sets the wall clock

 private:
  Time now_{std::chrono::hours(1)};
  WallTime wall_{std::chrono::hours(24 * 365 * 56)};
};

inline std::uint64_t to_millis(WallTime t) {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(t.time_since_epoch()).count());
}
// The last millisecond that a WallTime can hold, in the year 2262; whatever number comes in from outside is no later.
inline constexpr std::uint64_t kLatestMillis = 9'223'372'036'854;
inline WallTime from_millis(std::uint64_t ms) { return WallTime{std::chrono::milliseconds(ms < kLatestMillis ? ms : kLatestMillis)}; }

}  // namespace base

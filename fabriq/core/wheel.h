// A hierarchical timer wheel whose slots are values in the store: adding a timer appends 16 bytes to one slot, however
// many there are, and finding the next one looks at eight bit maps.
//
// Times are queue time in milliseconds. Level l has 64 slots of 64^l ms. A timer goes to the level where its time and
// the wheel's first differ, so that what lies in a lower level is always due earlier than anything in a higher one.
// When the wheel comes to a slot of a higher level, its timers move down. Timers are never taken out: whoever set one
// asks, when it fires, whether it still means something.
//
//   Wheel wheel(state, slots);
//   wheel.add({.id = 7, .at = now + 30'000});
//   wheel.turn(now, budget, fire, still_meant);
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "novoht/base/result.h"

namespace fabriq {

struct Timer {
  std::uint64_t id = 0;
  std::uint64_t at = 0;
};

inline constexpr unsigned kWheelLevels = 8;  // 64^8 ms: nine thousand years
inline constexpr std::size_t kTimerSize = 16;

struct WheelState {
  std::uint64_t now = 0;                               // every timer before it has fired or is being moved
  std::array<std::uint64_t, kWheelLevels> occupied{};  // one bit a slot
  // The slot whose turn it is, while it has timers left to look at.
  bool draining = false;
  std::uint8_t level = 0, slot = 0;
  std::uint64_t offset = 0;  // bytes of it that are done
};

// Where slots are kept.
class WheelSlots {
 public:
  virtual ~WheelSlots() = default;
  virtual base::Result<void> append(unsigned level, unsigned slot, std::string_view bytes) = 0;
  virtual std::string read(unsigned level, unsigned slot, std::uint64_t offset, std::uint64_t size) = 0;
  virtual base::Result<void> remove(unsigned level, unsigned slot) = 0;
};

class Wheel {
 public:
  Wheel(WheelState& state, WheelSlots& slots) : state_(state), slots_(slots) {}
  // A time that has passed already fires at the next turn.
  base::Result<void> add(Timer timer);
  // Looks at up to `budget` timers (reduced by how many it looked at) and fires those that are due at `now`. `fire`
  // says whether to go on; `still_meant` is asked before a timer moves down: others are dropped. Whether anything was
  // looked at or moved. When it stopped early, next() is in the past.
  base::Result<bool> turn(std::uint64_t now, std::uint64_t& budget,
                          const std::function<base::Result<bool>(const Timer&)>& fire,
                          const std::function<bool(const Timer&)>& still_meant);
  // No timer is due before this time; nothing: there is none.
  std::optional<std::uint64_t> next() const;

 private:
  WheelState& state_;
  WheelSlots& slots_;
};

}  // namespace fabriq

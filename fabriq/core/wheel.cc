#include "fabriq/core/wheel.h"

#include <algorithm>
#include <bit>

#include "novoht/base/bytes.h"

namespace fabriq {
namespace {

constexpr unsigned kBits = 6;  // 64 slots a level
constexpr unsigned kTimersPerRead = 256;

std::uint64_t slot_start(std::uint64_t now, unsigned level, unsigned slot) {
  const unsigned above = kBits * (level + 1);
  const std::uint64_t high = above >= 64 ? 0 : (now >> above) << above;
  return high | (static_cast<std::uint64_t>(slot) << (kBits * level));
}

}  // namespace

base::Result<void> Wheel::add(Timer timer) {
  // A timer of the wheel's own moment would lie in the slot that is being emptied.
  const std::uint64_t at = std::max(timer.at, state_.now + 1);
  const unsigned highest = 63 - static_cast<unsigned>(std::countl_zero(at ^ state_.now));
  const unsigned level = std::min(highest / kBits, kWheelLevels - 1);
  const auto slot = static_cast<unsigned>((at >> (kBits * level)) & 63);
  std::string bytes;
  base::Writer writer(bytes);
  writer.u64(timer.id);
  writer.u64(timer.at);
  TRY(slots_.append(level, slot, bytes));
  state_.occupied[level] |= std::uint64_t{1} << slot;
  return {};
}

std::optional<std::uint64_t> Wheel::next() const {
  if (state_.draining) return state_.now;
  for (unsigned level = 0; level < kWheelLevels; level++) {
    if (state_.occupied[level] != 0)
      return slot_start(state_.now, level, static_cast<unsigned>(std::countr_zero(state_.occupied[level])));
  }
  return std::nullopt;
}

base::Result<bool> Wheel::turn(std::uint64_t now, std::uint64_t& budget,
                               const std::function<base::Result<bool>(const Timer&)>& fire,
                               const std::function<bool(const Timer&)>& still_meant) {
  bool turned = state_.draining;
  bool go_on = true;
  while (budget > 0 && go_on) {
    if (!state_.draining) {
      const auto start = next();
      if (!start || *start > now) {
        state_.now = std::max(state_.now, now);
        return turned;
      }
      unsigned level = 0;
      while (state_.occupied[level] == 0) level++;
      state_.slot = static_cast<std::uint8_t>(std::countr_zero(state_.occupied[level]));
      state_.level = static_cast<std::uint8_t>(level);
      state_.occupied[level] &= ~(std::uint64_t{1} << state_.slot);
      state_.now = std::max(state_.now, *start);
      state_.draining = turned = true;
      state_.offset = 0;
      budget--;
    }
    const std::uint64_t wanted =
        std::min<std::uint64_t>(std::max<std::uint64_t>(budget, 1), kTimersPerRead) * kTimerSize;
    const std::string bytes = slots_.read(state_.level, state_.slot, state_.offset, wanted);
    base::Reader reader(bytes);
    while (go_on && reader.left() >= kTimerSize) {
      Timer timer;
      timer.id = reader.u64();
      timer.at = reader.u64();
      budget -= std::min<std::uint64_t>(budget, 1);
      state_.offset += kTimerSize;
      if (timer.at <= now) {
        TRY_LET(more, fire(timer));
        go_on = more;
      } else if (still_meant(timer)) {
        TRY(add(timer));
      }
    }
    // Fewer bytes than a timer behind the last one are nobody's: they must not hold the wheel up.
    if (reader.left() < kTimerSize && bytes.size() < wanted) {
      TRY(slots_.remove(state_.level, state_.slot));
      state_.draining = false;
    }
  }
  return turned;
}

}  // namespace fabriq

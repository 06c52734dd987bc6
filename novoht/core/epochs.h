// When may memory that readers might still look at be used again? A reader says which epoch it entered in, in a place of
// its own, before it follows a pointer, and clears the place afterwards. What a writer has made unreachable is marked with
// the epoch of that moment, and is free once every reader inside entered later.
//
//   reader                                writer
//   place = epochs.enter();               slot = fresh;                     // unreachable from here on: `old`
//   node = slot; use *node                retired.push_back({epochs.now(), old});
//   epochs.leave(place);                  free those with a mark below epochs.oldest_inside();
//
// enter() takes no lock and waits for nobody: a few places are tried, begun at one that depends on the thread, and where
// all are taken the reader counts itself in `crowd_`, while which nothing is freed.
//
// Why it holds: all of these are sequentially consistent. A reader that oldest_inside() does not see has entered after it,
// hence after the pointer was changed, and cannot find `old`. One that it sees and that entered in a later epoch has seen
// that epoch begin, which came after the change.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <thread>

namespace novoht::core {

class Epochs {
 public:
  // Any thread; leave() on any thread, once for each enter().
  std::uint32_t enter() {
    const std::uint64_t epoch = now_.load();
    // Neighbouring thread ids must not share a place's cache line, nor far ones the same place: so they are scattered.
    const std::uint64_t thread = std::hash<std::thread::id>()(std::this_thread::get_id()) * 0x9e3779b97f4a7c15;
    const auto first = static_cast<std::uint32_t>(thread >> 32);
    for (std::uint32_t i = 0; i < kTries; i++) {
      const std::uint32_t place = (first + i) % kPlaces;
      std::uint64_t nobody = 0;
      if (places_[place].epoch.load(std::memory_order_relaxed) == 0 && places_[place].epoch.compare_exchange_strong(nobody, epoch))
        return place;
    }
    crowd_.fetch_add(1);
    return kCrowd;
  }
  void leave(std::uint32_t place) {
    if (place == kCrowd) crowd_.fetch_sub(1);
    else places_[place].epoch.store(0, std::memory_order_release);
  }

  // One writer at a time.
  std::uint64_t now() const { return now_.load(std::memory_order_relaxed); }
  // Begins a new epoch. What was retired with a mark below the result is free.
  std::uint64_t oldest_inside() {
    now_.fetch_add(1);
    std::uint64_t oldest = std::numeric_limits<std::uint64_t>::max();
    for (const Place& place : places_) {
      const std::uint64_t epoch = place.epoch.load();
      if (epoch != 0 && epoch < oldest) oldest = epoch;
    }
    return crowd_.load() == 0 ? oldest : 0;
  }

 private:
  static constexpr std::uint32_t kPlaces = 256, kTries = 8, kCrowd = kPlaces;
  struct alignas(64) Place {
    std::atomic<std::uint64_t> epoch = 0;  // 0: nobody
  };
  std::array<Place, kPlaces> places_;
  alignas(64) std::atomic<std::uint64_t> now_ = 1;
  alignas(64) std::atomic<std::uint64_t> crowd_ = 0;
};

}  // namespace novoht::core

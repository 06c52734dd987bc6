// Counts of times, in nanoseconds, to within 1/kSteps: kSteps buckets in each power of two. Adding is an increment; two
// can be merged, and the older of two states of one can be taken from the newer.
//
//   support::Histogram latencies;
//   latencies.add(elapsed_nanos);
//   latencies.at(0.99)   // nanoseconds that 99% did not exceed
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace support {

template <std::size_t kSteps>
class BasicHistogram {
  static_assert(std::has_single_bit(kSteps));
  static constexpr unsigned kBits = std::bit_width(kSteps) - 1;

 public:
  static constexpr std::size_t kBuckets = (64 - kBits) * kSteps;

  void add(std::uint64_t nanos, std::uint64_t count = 1) {
    counts_[index_of(nanos)] += count;
    count_ += count;
    sum_ += nanos * count;
    most_ = std::max(most_, nanos);
  }
  void merge(const BasicHistogram& other) {
    for (std::size_t i = 0; i < kBuckets; i++) counts_[i] += other.counts_[i];
    count_ += other.count_;
    sum_ += other.sum_;
    most_ = std::max(most_, other.most_);
  }
  // The value that a part (0..1) of all do not exceed; the upper end of its bucket, the largest of all at most.
  std::uint64_t at(double part) const {
    const auto wanted = static_cast<std::uint64_t>(part * static_cast<double>(count_));
    std::uint64_t seen = 0;
    for (std::size_t i = 0; i < kBuckets; i++)
      if ((seen += counts_[i]) > wanted) return std::min(most_, upper_end(i));
    return most_;
  }
  double micros_at(double part) const { return static_cast<double>(at(part)) / 1000; }
  std::uint64_t count() const { return count_; }
  std::uint64_t sum() const { return sum_; }
  std::uint64_t most() const { return most_; }

  // Bucket by bucket, for sending one elsewhere.
  std::uint64_t bucket(std::size_t index) const { return counts_[index]; }
  static std::uint64_t lower_end(std::size_t index) {
    if (index < kSteps) return index;
    return (kSteps + index % kSteps) << (index / kSteps - 1);
  }
  static std::uint64_t upper_end(std::size_t index) {
    return index + 1 < kBuckets ? lower_end(index + 1) - 1 : ~std::uint64_t{0};
  }
  static std::size_t index_of(std::uint64_t nanos) {
    if (nanos < kSteps) return nanos;
    const auto power =
        static_cast<unsigned>(std::bit_width(nanos)) - 1 - kBits;  // nanos >> power: kSteps..2 kSteps - 1
    return (power + 1) * kSteps + (nanos >> power) - kSteps;
  }

 private:
  std::array<std::uint64_t, kBuckets> counts_{};
  std::uint64_t count_ = 0, sum_ = 0, most_ = 0;
};

using Histogram = BasicHistogram<64>;        // 1.6%; 29 KiB
using CoarseHistogram = BasicHistogram<16>;  // 6%; 7.5 KiB: a server keeps one for each kind of operation

}  // namespace support

#include "novoht/core/write_throttle.h"

namespace novoht::core {

void WriteThrottle::begin() {
  helped_at_ = help_again_ = log_.position();
  limit_ = log_.bytes_ahead(0);
  log_.ask_at(help_again_);
}

// Housekeeping keeps the log no longer than this by itself, as far as it is called and the disk keeps up.
std::uint64_t WriteThrottle::wanted(std::size_t record_size) const {
  return std::max({checkpointing_.log_bound(), options_.log_per_table * checkpointing_.extent().tables, 4 * log_.largest_segment(record_size)});
}

// And this is the most it may be, however fast writers are.
std::uint64_t WriteThrottle::most(std::size_t record_size) const {
  const std::uint64_t wanted = this->wanted(record_size);
  return wanted > UINT64_MAX / 4 ? UINT64_MAX : 2 * (wanted + log_.largest_segment(record_size));
}

// Before a record is written. While the log is longer than wanted by more than a quarter, a writer takes checkpoints: for each
// byte as many as let all tables be taken twice before the log is as long as it may be, a slice at a time. When these are taken
// and the disk has not got them yet, it is the disk's pace that counts: from kSlowFrom of the way on a writer waits for it,
// for each byte the longer the nearer the end is, in pieces of about 20 us so that none waits long; at the end, until there is room.
void WriteThrottle::before_record(std::size_t record_size) {
  const Position position = log_.position();
  if (position + record_size < help_again_ || log_.failed()) return;
  const std::uint64_t wanted = this->wanted(record_size), largest = log_.largest_segment(record_size), most = this->most(record_size);
  const std::uint64_t written = position - helped_at_;
  helped_at_ = position;
  // When tables become small, the log cannot at once: it has to by as much as is written.
  limit_ = std::max(most, limit_ - std::min(limit_, written));
  std::uint64_t step = std::clamp<std::uint64_t>(wanted / 256, 1 << 10, 8 << 10);
  const auto ask_after = [&](std::uint64_t bytes) {
    help_again_ = position + record_size + bytes;
    log_.ask_at(help_again_);
    if (log_.bytes_ahead(record_size) + record_size + bytes + log_.kept_bytes() > limit_) (void)log_.let_go_kept(true).has_value();
  };
  const std::uint64_t ahead = log_.bytes_ahead(record_size) + record_size + step;
  const std::uint64_t taken = checkpointing_.taken() - taken_before_;
  taken_before_ = checkpointing_.taken();
  const bool long_log = most != UINT64_MAX && ahead > wanted + 2 * largest + wanted / 4;
  // What exports and tails hold no checkpoint lets go, nor one that has failed just now.
  const bool in_vain = long_log && (failures_.resting() || checkpointing_.is_held());
  if (!long_log || in_vain) {
    constexpr std::uint64_t kFar = std::uint64_t{1} << 20;
    owed_ = 0;
    owed_time_ = {};
    if (failures_.resting() && long_log) failures_.let_one_pass();
    const std::uint64_t far =
        long_log ? step : most == UINT64_MAX ? kFar : std::clamp((wanted + 2 * largest + wanted / 4 - ahead) / 4, step, kFar);
    if (in_vain) limit_ = std::max(limit_, ahead);
    return ask_after(far);
  }
  const double work = static_cast<double>(checkpointing_.extent().live_bytes + Checkpointing::kCostOfCheckpoint * checkpointing_.extent().tables);
  const auto share = static_cast<std::uint64_t>(static_cast<double>(written) * 2 * work / static_cast<double>(wanted)) + 1;
  // What cannot be taken because a sync is under way is not made good in one burst.
  owed_ = std::min(owed_ + share - std::min(owed_ + share, taken), 8 * (share + options_.maintain_slice));
  constexpr double kSlowFrom = 0.7;
  constexpr Nanoseconds kPerByte(40), kMost(10e6);  // just before the end; at once
  const double way = static_cast<double>(ahead - wanted - 2 * largest) / static_cast<double>(wanted);
  const double nearness = std::clamp((way - kSlowFrom) / (1 - kSlowFrom), 0.0, 1.0);
  owed_time_ = nearness == 0 ? owed_time_.zero()
                             : std::min<Nanoseconds>(
                                   owed_time_ + kPerByte * (nearness * nearness * static_cast<double>(written)), kMost);
  step = static_cast<std::uint64_t>(std::clamp(kNap / kPerByte / (nearness * nearness + 1e-6), 512.0, static_cast<double>(step)));
  help(record_size, step, std::min<std::uint64_t>(2 * share, options_.maintain_slice));
  taken_before_ = checkpointing_.taken();
  limit_ = std::max(limit_, std::min(ahead, log_.bytes_ahead(record_size) + record_size + step));
  ask_after(step);
}

void WriteThrottle::help(std::size_t record_size, std::uint64_t step, std::size_t slice) {
  const Timed timed(share_);
  const std::uint64_t begun = checkpointing_.taken();
  for (;;) {
    const bool full = log_.bytes_ahead(record_size) + record_size + step > limit_;
    if (!full && (checkpointing_.taken() - begun >= slice || (owed_ == 0 && owed_time_ < kNap))) return;
    if (checkpointing_.working() && full) {
      checkpointing_.wait_until_done();
    } else if (checkpointing_.syncing() && owed_time_ >= kNap) {
      const auto before = std::chrono::steady_clock::now();
      const bool done = checkpointing_.wait_until_done(before + std::chrono::duration_cast<std::chrono::nanoseconds>(owed_time_));
      owed_time_ -= std::min<Nanoseconds>(owed_time_, std::chrono::steady_clock::now() - before);
      if (!done) return;
    }
    const std::uint64_t before = checkpointing_.taken();
    const auto more = checkpointing_.step(slice);
    if (!more) return checkpointing_.note_failure(more.error());
    failures_.worked();
    owed_ -= std::min(owed_, checkpointing_.taken() - before);
    if (!*more && !(full && checkpointing_.working())) return;
  }
}

}  // namespace novoht::core

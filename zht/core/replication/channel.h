// What an instance knows of one other: when it was heard, and which leases it has granted. One for each pair, whatever the
// number of partitions they share, so that an idle cluster says one small message and one answer for each pair and beacon.
//
// Lease: this instance's beacon carries its own clock. The answer means: at some moment after the beacon was sent I
// followed you in every partition in which I had told you so, but for those I have since left, which the answer names.
// Each departure has a generation, each beacon says up to which generation they are known, and an answer names all later
// ones; so no answer, late or repeated, can be taken for a grant by someone who had left before giving it.
#pragma once

#include <algorithm>
#include <unordered_map>

#include "zht/core/replication/peer_message.h"

namespace zht::replication {

class Channel {
 public:
  // --- as the one who is followed ---
  base::Time answered() const { return answered_; }  // the newest beacon it answered, by the clock of this instance
  // Whether it has left `partition` in `epoch`. Then nothing it answers counts there.
  bool has_left(PartitionId partition, Epoch epoch) const {
    const auto found = left_.find(static_cast<std::uint32_t>(partition));
    return found != left_.end() && found->second >= epoch;
  }
  std::uint64_t seen() const { return seen_; }
  // How long answers take: the longest of late, forgotten by and by. More than a second is not a way's length but silence.
  base::Duration round_trip() const { return round_trip_; }
  void measure(base::Time stamp, base::Time now) {
    if (stamp <= std::max(answered_, excused_)) return;
    const base::Duration took = std::clamp<base::Duration>(now - stamp, base::Duration{}, std::chrono::seconds(1));
    round_trip_ = took >= round_trip_ ? took : round_trip_ - (round_trip_ - took) / 8;
  }
  void on_answer(base::Time stamp, std::uint64_t generation, const std::vector<Departure>& departures) {
    for (const Departure& one : departures) {
      Epoch& epoch = left_[static_cast<std::uint32_t>(one.partition)];
      epoch = std::max(epoch, one.epoch);
    }
    seen_ = std::max(seen_, generation);
    answered_ = std::max(answered_, stamp);
  }

  // --- as a follower ---
  void depart(PartitionId partition, Epoch epoch) {
    std::erase_if(departures_, [&](const Departure& one) { return one.partition == partition; });
    departures_.push_back({++generation_, partition, epoch});
  }
  void on_beacon(base::Time stamp, std::uint64_t seen, base::Time now) {
    if (beacon_heard_ != base::Time{}) gap_ = now - beacon_heard_;
    beacon_heard_ = now;
    if (seen > generation_) return;  // it was told of no such thing
    std::erase_if(departures_, [&](const Departure& one) { return one.generation <= seen; });
    to_answer_ = std::max(to_answer_, stamp);
  }
  // Puts the answer that is due, if any, into `message`.
  void answer(PeerMessage& message) {
    if (to_answer_ == base::Time{}) return;
    message.answered = std::exchange(to_answer_, {});
    message.generation = generation_;
    message.departures = departures_;
  }
  bool answer_due() const { return to_answer_ != base::Time{}; }

  // --- both ---
  base::Time heard() const { return heard_; }
  base::Time first_heard() const { return first_heard_; }
  base::Time unsteady() const { return unsteady_; }  // when it was last heard after a silence, or for the first time
  // True: it was suspected, and lives.
  bool hear(base::Time now, base::Duration silence) {
    if (first_heard_ == base::Time{}) first_heard_ = now;
    if (now - heard_ > silence) unsteady_ = now;
    heard_ = std::max(heard_, now);
    return std::exchange(suspected_, false);
  }
  // --- how often they speak ---
  // While there is something between the two, beacons go at the full rate, `Beat::full` apart. When there is not, each pause is at most
  // twice the one before it, up to `Beat::longest`: so whoever listens knows from the last pause how long the next one may be.
  struct Beat {
    base::Duration full{}, longest{};
  };
  void begin_beacons() { sends_ = true; }
  void end_beacons() { sends_ = false; }
  bool sends_beacons() const { return sends_; }
  base::Time beacon_sent() const { return sent_; }
  base::Time next_beacon() const { return next_beacon_; }
  void on_beacon_sent(base::Time now, bool busy, Beat beat) {
    const base::Duration passed = sent_ == base::Time{} ? base::Duration{} : now - sent_;
    if (2 * passed > 3 * beat.full && heard_ >= asked_) asked_ = now;
    sent_ = now;
    next_beacon_ = now + (busy ? beat.full : std::clamp(2 * passed, beat.full, beat.longest));
  }
  // By how much longer than at the full rate it may say nothing and be well, counted from when it was heard. Whom this one sends
  // beacons: until the first that goes after a pause, for it answers each. Who sends some: until the next may come. Whichever is sooner.
  base::Duration leisure(base::Time now, Beat beat) const {
    base::Duration longer = beat.longest;
    bool known = false;
    if (sends_ && sent_ != base::Time{}) {
      known = true;
      const bool pauses = 2 * (next_beacon_ - sent_) > 3 * beat.full;
      longer = std::min(longer, asked_ > heard_ ? asked_ - heard_ : pauses ? next_beacon_ - heard_ : base::Duration{});
    }
    if (beacon_heard_ != base::Time{} && now - beacon_heard_ < 4 * beat.longest) {
      known = true;
      longer = std::min(longer, std::min(2 * gap_, beat.longest) - 2 * beat.full);
    }
    return known ? std::max(base::Duration{}, longer) : base::Duration{};
  }
  // This instance did not run for so long: silence meanwhile says nothing of the other one.
  void excuse(base::Duration time, base::Time now) {
    if (heard_ != base::Time{}) heard_ = std::min(now, heard_ + time);
    excused_ = now;  // nor does what is answered late
  }
  void suspect() { suspected_ = true; }  // it is taken for dead, for its silence

 private:
  base::Time first_heard_{}, heard_{}, unsteady_{};
  bool suspected_ = false, sends_ = false;
  base::Time sent_{}, next_beacon_{}, beacon_heard_{};  // beacons, by this instance's clock
  base::Time asked_{};    // the first beacon after a pause that nothing was heard after yet; or an earlier one
  base::Duration gap_{};  // between the last two that were heard
  base::Time answered_{};
  base::Duration round_trip_{};
  base::Time excused_{};
  std::uint64_t seen_ = 0;
  std::unordered_map<std::uint32_t, Epoch> left_;  // by partition
  base::Time to_answer_{};
  std::uint64_t generation_ = 0;
  std::vector<Departure> departures_;
};

}  // namespace zht::replication

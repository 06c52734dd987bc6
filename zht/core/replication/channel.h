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
  void on_beacon(base::Time stamp, std::uint64_t seen) {
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
  // This instance did not run for so long: silence meanwhile says nothing of the other one.
  void excuse(base::Duration time, base::Time now) {
    if (heard_ != base::Time{}) heard_ = std::min(now, heard_ + time);
    excused_ = now;  // nor does what is answered late
  }
  void suspect() { suspected_ = true; }  // it is taken for dead, for its silence

 private:
  base::Time first_heard_{}, heard_{}, unsteady_{};
  bool suspected_ = false;
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

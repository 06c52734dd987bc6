// One instance's part in replication: its replicas, its channels to other instances, and one outgoing message for each of
// them a round. Sans-IO: messages, the time and the news that the disk has come in; messages, releases and wishes for the
// keepers go out.
//
//   replicator.begin(now);
//   replicator.on_message(message);                 // any number, and requests: serves(), append(), hold()
//   replicator.tick();                              // when next_due() has come, or sooner
//   const auto mark = replicator.mark();
//   send(replicator.take_messages());               // followers work while the own disk does
//   write, and sync as the durability asks          // perhaps on another thread, while rounds go on
//   replicator.durable(mark, clock.now());          // when it has
//   replicator.finish(clock.now());                 // the time must be read after everything of the round was done
//   send(replicator.take_messages());  show(replicator.take_released());  to_a_keeper(replicator.take_wishes());
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>

#include "zht/core/replication/replica.h"

namespace zht::replication {

struct Released {
  PartitionId partition{0};
  std::uint64_t token = 0;
  bool shown = false;  // false: deposed; the client must ask again, elsewhere
};

struct Wish {
  PartitionId partition{0};
  Change change;
};

// Told to tests, not to programs.
class ReplicationObserver {
 public:
  virtual ~ReplicationObserver() = default;
  virtual void on_promoted(Member, PartitionId) {}
  virtual void on_appended(Member, PartitionId, const Entry&, Position /*previous*/) {}  // by a primary
  virtual void on_committed(Member, PartitionId, Version /*first*/, Version /*last*/) {}
  virtual void on_broken(Member, PartitionId, std::string_view) {}
  virtual void on_forgotten(Member, PartitionId, const View&) {}  // a copy is thrown away, for that view does without
};

struct ReplicatorOptions {
  Member self;  // with an incarnation that is durable and was never used before
  std::uint32_t partitions = 0;  // of the cluster
  Timing timing;
  Defects defects;
  ReplicationObserver* observer = nullptr;
  std::function<std::uint64_t(InstanceId)> home;  // where an instance runs of which nobody has told yet, if its number says that
};

// One thread.
class Replicator final : public ReplicaHost {
 public:
  // `store`: opened and synced; outlives it.
  Replicator(ReplicatorOptions options, ReplicaStore& store);

  Member self() const override { return self_; }
  Replica* find(PartitionId partition);  // for a caller who may change it: it then has a part in this round
  Replica* look(PartitionId partition) const;
  Replica& get(PartitionId partition);  // made when absent: takes up what the store has. A partition that the cluster has
  const std::vector<PartitionId>& partitions() const { return partitions_; }  // of which there is a replica here

  // Who lives and has room, and where instances stand: told by the manager, now and then.
  void set_candidates(std::vector<Candidate> candidates);
  void set_sites(std::map<InstanceId, Site> sites);

  // A view this instance has or may soon have a part in. Others are not its concern.
  void adopt(PartitionId partition, const View& view);
  void set_goal(PartitionId partition, Goal goal);
  CopyReport report(PartitionId partition) const;  // of an empty copy where there is none
  // Replica::take_over() of this instance's copy, or of an empty one where it has none. `view`: the newest known.
  Result<void> take_over(PartitionId partition, const View& view, Epoch epoch, Position end);
  Figures figures() const;
  TailBytes& tails() override { return tails_; }

  // Whether this instance may speak for what its earlier lives acknowledged where nobody is left who knows it: not before those who
  // would know have said that its folder is no older copy (sightings.h).
  void set_may_vouch(bool may) { may_vouch_ = may; }
  void distrust();  // it is one, and the store says so now

  // `wall` is only for what keys' times to live are counted in.
  void begin(base::Time now, base::WallTime wall = {}) {
    now_ = std::max(now_, now);
    wall_ = wall;
  }
  void on_message(const PeerMessage& message);
  void tick();
  // When tick() has something to do next, as far as is known after a round; the epoch of the clock: now. Between ticks a pause of some
  // milliseconds is enough.
  base::Time next_due() const;
  // Partitions that the last finish() left with nothing under way.
  const std::vector<PartitionId>& done() const { return done_; }
  std::uint64_t looks() const { return looks_; }  // at a replica, by tick(), so far
  // Everything applied until now belongs to this mark. New entries are put into the messages.
  std::uint64_t mark();
  void durable(std::uint64_t mark, base::Time now);
  void finish(base::Time now);

  // The store failed: nothing here may be acknowledged any more, and what is not durable is not known. Silent from now on,
  // but for the wish to be counted out of every view; the process should end.
  void fail();
  bool failed() const { return failed_; }

  // Nothing is under way and nothing to say: a round in which only partitions that are alone were used ends without durable(),
  // and without finish() unless a beacon is due.
  bool is_idle() const {
    return active_.empty() && messages_.empty() && released_.empty() && wishes_.empty() && news_.empty() && !beacon_wanted_ &&
           !answer_due_;
  }
  bool is_active() const { return !active_.empty(); }  // something is under way, or was in this round
  bool is_beacon_due() const { return now_ >= next_beacon_ && (!neighbors_known_ || !neighbors_.empty()); }
  std::vector<PeerMessage> take_messages();
  std::vector<Released> take_released() { return std::exchange(released_, {}); }
  std::vector<Wish> take_wishes() { return std::exchange(wishes_, {}); }
  // Views that other instances told of, for the manager to know too.
  std::vector<ViewNews> take_news() { return std::exchange(news_, {}); }

 private:
  const Timing& timing() const override { return timing_; }
  Defects defects() const override { return defects_; }
  base::Time now() const override { return now_; }
  base::WallTime wall() const override { return wall_; }
  ReplicaStore& store() override { return store_; }
  Channel& channel(Member peer) override { return channels_[peer]; }
  base::Duration patience(base::Duration least) const override { return least * (1 << mistakes()); }
  PeerMessage& message_to(InstanceId peer) override;
  base::Duration leisure(Member peer) override { return channels_[peer].leisure(now_, beat()); }
  base::Time last_beacon() const override { return last_beacon_; }
  void want_beacon() override { beacon_wanted_ = true; }
  // Requests wait while pieces are read here and written there: dozens of snapshots at once go on in turn, a piece a round.
  bool may_vouch() const override { return may_vouch_; }
  bool may_send_piece() override { return !std::exchange(piece_sent_, true); }
  void propose(PartitionId partition, const Change& change) override { wishes_.push_back({partition, change}); }
  std::span<const Candidate> candidates() const override { return candidates_; }
  Site site_of(InstanceId instance) const override;
  std::uint64_t sites_version() const override { return sites_version_; }
  void release(PartitionId partition, const Held& held, bool shown) override { released_.push_back({partition, held.token, shown}); }
  void on_promoted(PartitionId partition) override;
  void on_appended(PartitionId partition, const Entry& entry, Position previous) override;
  void on_committed(PartitionId partition, Version first, Version last) override;
  void on_broken(PartitionId partition, std::string_view what) override;

  bool has(PartitionId partition) const { return static_cast<std::uint32_t>(partition) < replicas_.size(); }
  Channel& channel_of(Member peer);
  void excuse_silence();
  void note_mistake();
  void keep_mistakes();
  int mistakes() const;
  void trim_tails();
  Channel::Beat beat() const { return {timing_.beacon, timing_.leisure * timing_.beacon}; }
  bool is_busy() const { return now_ - busy_at_ < std::chrono::seconds(1); }
  void note_busy();
  void send_beacons();
  void send_beacon(Member peer, Channel& channel);
  void answer_beacon(Member peer, Channel& channel);

  const Member self_;
  const Timing timing_;
  ReplicaStore& store_;
  const Defects defects_;
  ReplicationObserver* const observer_;
  struct Slot {
    std::unique_ptr<Replica> replica;
    bool active = false;
    bool restless = false;
  };
  // Another instance with which replicas here have to do: it follows, or is followed.
  struct Neighbor {
    std::vector<PartitionId> partitions;
    bool follows = false;  // somewhere: it needs this instance's beacons
  };
  void activate(PartitionId partition, Slot& slot);
  void wake_all();
  void find_neighbors();
  void look_for_silence();
  Replica& at(PartitionId partition) const { return *replicas_[static_cast<std::uint32_t>(partition)].replica; }

  TailBytes tails_;  // before the replicas, which count in it until they end
  std::size_t trimmed_ = 0;  // of partitions_, the next whose tail is trimmed
  std::vector<Slot> replicas_;           // by partition number
  std::vector<PartitionId> partitions_;  // that have one
  // Those with something to do before the next tick: a round costs nothing for the others.
  std::vector<PartitionId> active_, done_;
  std::vector<PartitionId> restless_;  // with something to do at the next tick; all others rest (Replica::rests)
  std::map<Member, Neighbor> neighbors_;
  bool neighbors_known_ = false;       // no view was adopted since they were found
  base::Time next_silence_{};          // before that no neighbor that was heard of late can have been silent for long
  std::map<Member, Channel> channels_;
  std::map<InstanceId, PeerMessage> messages_;
  std::vector<Released> released_;
  std::vector<Wish> wishes_;
  std::vector<ViewNews> news_;
  std::vector<Candidate> candidates_;
  std::map<InstanceId, Site> sites_;
  std::uint64_t sites_version_ = 0;
  const std::function<std::uint64_t(InstanceId)> home_;
  base::Time now_{}, last_beacon_{}, next_beacon_{}, next_farewell_{}, ticked_{}, busy_at_{};
  base::WallTime wall_{};
  // Who was taken for dead and was not: each time all are given twice as long, up to four times. On a machine that has too much to
  // do views would change all the time else, and help nobody. That passes, a step in ten seconds without such a silence.
  int mistakes_ = 0;
  base::Time mistaken_at_{};
  std::uint64_t serial_ = 0, looks_ = 0;
  bool beacon_wanted_ = false, failed_ = false, piece_sent_ = false, stamped_ = false, answer_due_ = false, may_vouch_ = true;
};

}  // namespace zht::replication

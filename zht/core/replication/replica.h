// One partition at one instance: its log as far as it matters here, its role in the current view, and what waits for an
// entry to be committed. As the primary it orders entries and sends them; as a follower it takes them, makes them durable
// and acknowledges; as neither it tries to come back. No clock, disk, thread or socket: the host has them.
//
// The three ways a position moves:
//   end      applied to the tables and logged, here
//   durable  past this instance's durability point
//   commit   durable at the primary and at every sync member, so never to be taken back
// What is shown to anyone outside waits until the entries it rests on are committed.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <span>
#include <unordered_map>
#include <vector>

#include "novoht/base/random.h"
#include "zht/core/replication/channel.h"
#include "zht/core/replication/partition_clock.h"
#include "zht/core/replication/replica_store.h"

namespace zht::replication {

struct Timing {
  base::Duration lease = std::chrono::milliseconds(200);   // a beacon that was answered lets reads be served this long
  base::Duration grace = std::chrono::milliseconds(230);   // a follower hears nothing this long, then asks for the place;
                                                           // more than lease times the worst drift between two clocks
  base::Duration beacon = std::chrono::milliseconds(40);   // between beacons while there is something to do, and
  unsigned leisure = 4;                                    // up to so many times that while there is nothing
  base::Duration drop = std::chrono::milliseconds(150);    // the primary drops a sync member silent this long,
                                                           // and a learner silent three times as long
  base::Duration retry = std::chrono::milliseconds(60);    // what was not answered is said again
  base::Duration founding = std::chrono::seconds(2);       // who is in the first view and was never heard may yet be starting,
                                                           // and who has no substitute may be silent (Replica::is_lost)
  base::Duration slow = std::chrono::seconds(10);          // who is heard and has no substitute may take so long to follow in a view
  base::Duration shun = std::chrono::seconds(2);           // who fell out of a view is taken in last for this long
  base::Duration patience = std::chrono::seconds(1);       // changes wait this long for sync members that are missing; then
                                                           // those that wait and those that come are told so
  std::size_t copies = 3;                                  // nodes with a copy wanted, learners included
  std::size_t sync_copies = 2;                             // nodes that have every acknowledged change: once a view has
                                                           // had as many, changes wait while there are fewer (View::need)
  std::size_t message_bytes = std::size_t{1} << 20;        // of entries in one message for one partition
  std::size_t window = 4096;                               // entries sent and not acknowledged, for each follower
  std::size_t tail_bytes = std::size_t{1} << 20;           // committed entries kept in memory for followers that lag
  // Of all partitions together: entries in memory, committed or not; past the second, no change is begun.
  std::size_t all_tails_bytes = std::size_t{64} << 20;
  std::size_t all_uncommitted_bytes = std::size_t{256} << 20;
};

// An instance that could take a copy: lives, has room.
struct Candidate {
  Member member;
  std::uint32_t rack = 0;
  std::uint64_t node = 0;  // two copies are never on one node, whatever its number of instances
  bool operator==(const Candidate&) const = default;
};

// Where an instance runs.
struct Site {
  std::uint64_t node = 0;
  std::uint32_t rack = 0;
  bool operator==(const Site&) const = default;
};

// Where a partition should be, as the balancer wishes: only a wish, carried out by the primary step by step.
struct Goal {
  InstanceId primary{0};
  std::vector<InstanceId> members;  // the primary included
  bool has(InstanceId one) const { return std::find(members.begin(), members.end(), one) != members.end(); }
  bool operator==(const Goal&) const = default;
};

// Something that waits to be shown: a reply, a watcher's news. `token` is the embedder's.
struct Held {
  static constexpr Version never = ~Version{0};  // as `need`: it is let go of when there is another view, or the hand-over takes too long
  std::uint64_t token = 0;
  Version need = 0;    // not before this entry is committed
  bool reads = false;  // it says what is, or is not: needs a lease or a confirmation too
  base::Time after{};  // reads, set by hold(): a beacon later than this, answered by all, is a confirmation
};

// For reports: what one instance has of one partition, and what it knows of what others had.
struct CopyReport {
  Member self;
  Epoch epoch{0};            // of the view it knows
  bool follows = false;      // a learner of that view; else it leads it, is synchronous in it, or has no part in it
  bool whole = true;         // false: a half imported snapshot
  ReplicaStore::Origin origin;
  Position end;
  Version durable = 0, commit = 0;
  // Of its primary, as last heard in this life; 0: not. How long ago that was, and since when it lacks something of that.
  Version known_end = 0, known_commit = 0;
  base::Duration heard{}, in_step{};
  bool was_in_step = false;
};

// For reports: of the partitions that one instance leads, or that it has a copy of.
struct Figures {
  std::uint64_t leases = 0;                       // it leads, and may answer reads at once
  std::uint64_t behind = 0, learners_behind = 0;  // entries that the sync member, the learner, furthest behind lacks
  std::uint64_t waiting = 0;                      // what is held
  std::uint64_t sending = 0, receiving = 0;       // snapshots under way
  std::uint64_t tail_bytes = 0, uncommitted_bytes = 0;  // entries in memory, and those of them that are not committed
};

// Entries in memory, of all replicas of an instance: bytes.
struct TailBytes {
  std::size_t all = 0, uncommitted = 0;
};

// What a replica needs from its instance.
class ReplicaHost {
 public:
  virtual ~ReplicaHost() = default;
  virtual Member self() const = 0;
  virtual const Timing& timing() const = 0;
  virtual Defects defects() const = 0;
  virtual base::Time now() const = 0;
  virtual base::WallTime wall() const = 0;
  virtual ReplicaStore& store() = 0;
  virtual Channel& channel(Member peer) = 0;
  // How long another may be silent before it is taken for dead, where `least` is enough in good times.
  virtual base::Duration patience(base::Duration least) const = 0;
  virtual PeerMessage& message_to(InstanceId peer) = 0;  // of this round
  // By how much longer than usual `peer` may be silent because there is nothing between the two.
  virtual base::Duration leisure(Member peer) = 0;
  virtual base::Time last_beacon() const = 0;            // the last stamp given out
  virtual void want_beacon() = 0;                        // one at the end of this round
  virtual bool may_vouch() const = 0;                    // those who would know it say that this folder is no older copy
  virtual TailBytes& tails() = 0;
  virtual bool may_send_piece() = 0;                     // of a snapshot, in this round; else in a later one
  virtual void propose(PartitionId partition, const Change& change) = 0;
  virtual std::span<const Candidate> candidates() const = 0;
  virtual Site site_of(InstanceId instance) const = 0;  // of one nobody has told of: a node of its own, or what its number says
  virtual std::uint64_t sites_version() const = 0;      // another whenever site_of() or candidates() may say something else
  virtual void release(PartitionId partition, const Held& held, bool shown) = 0;
  // For whoever checks the protocol; nothing depends on them.
  virtual void on_promoted(PartitionId) {}
  virtual void on_appended(PartitionId, const Entry&, Position /*previous*/) {}
  virtual void on_committed(PartitionId, Version /*first*/, Version /*last*/) {}
  virtual void on_broken(PartitionId, std::string_view) {}
};

// One thread: the host's.
class Replica {
 public:
  enum class Role : std::uint8_t { stranger, learner, sync, primary };

  // Takes up the partition where the store, all of it durable, has it. `host` outlives it.
  Replica(ReplicaHost& host, PartitionId partition);
  ~Replica() { clear_tail(); }
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  // --- what it is ---
  const View& view() const { return view_; }
  Role role() const;
  Version commit() const { return commit_; }
  Version durable() const { return durable_; }
  Position end() const { return end_; }
  // The position of the entry with this number, where it is known: not before the last start or import.
  std::optional<Position> position_of(Version sequence) const;
  bool importing() const { return import_.has_value(); }
  // The primary of a view with nobody else in it, with nothing under way. Then the host may write to the store past this
  // replica, without append(), and nothing need be held: what a round wrote is committed when the round has ended well. The
  // replica takes up where the store is when the next view comes.
  bool is_alone() const;
  // tick() and send() have nothing to do until something comes for it: a message, a request, another view, other candidates or
  // sites, or the silence of a peer. Its host calls neither meanwhile. Everything that makes either do something must be asked here.
  bool rests() const;
  void add_to(Figures& figures) const;
  CopyReport report() const;
  std::string story() const;  // all that matters of its state, in a line, for people

  // --- as the primary ---
  // Whether requests of `epoch` are served here.
  bool serves(Epoch epoch) const;
  // A request of this epoch is not executed: who leads next is being decided. Hold it (Held::never), and the answer tells who.
  bool hands_over(Epoch epoch) const;
  // Of the partition, as its primary. With nobody else in the view it is the wall clock's.
  base::WallTime time();
  // Applies and logs a change, and sends it with the round. `keys`: hashes of the keys it changes. no_space, io: nothing
  // changed. Only while serves().
  Result<Version> append(std::string payload, std::span<const std::uint64_t> keys);
  // append() has just found no room, and another is known to have some: it will lead soon. What was refused for that may be asked again.
  bool another_has_room() const;
  // The last uncommitted entry that changed a key with this hash; 0: none. What is read of the key must wait for it.
  Version need_of(std::uint64_t key) const;
  // Whether sync members have been missing for longer than `patience`, so that nothing more can be committed for now; and that in
  // words, naming the partition and the node that was one last.
  // So many bytes of changes wait for other copies, in this instance's partitions, that no more are begun.
  bool is_crowded() const { return host_.tails().uncommitted > host_.timing().all_uncommitted_bytes; }
  bool is_short() const { return short_since_ != base::Time{} && host_.now() - short_since_ > host_.timing().patience; }
  std::string short_words() const;
  void hold(Held held);
  // Shows what may be shown. `host.now()` must be read after the values were.
  void release();
  // Not taken: a goal that only drops a member whom the present one wants, and to whom data are under way; one with two copies on a node.
  void set_goal(Goal goal);

  // --- any member: reads of what is committed, perhaps not the newest ---
  bool reads_eventually() const;

  // --- the last resort ---
  // Asks the keepers to have this copy lead alone, with what it has (Change::abandon), again and again until there is a newer view.
  // From now on it follows nobody in this epoch: what was reported of it is what will lead. conflict: its view or its log's end
  // are not these any more. invalid: it is synchronous, or its copy is not whole. io.
  Result<void> take_over(Epoch epoch, Position end);

  // --- events ---
  void adopt(const View& view);
  void on_append(Member from, const Append& append);
  void on_ack(Member from, const Ack& ack);
  void on_piece(Member from, const SnapshotPiece& piece);
  void finish_import();
  void on_piece_ack(Member from, const SnapshotAck& ack);
  void on_standing(Member from, const Standing& standing);
  void tick();
  // The instance did not run for so long: nobody's silence meanwhile counts.
  void excuse(base::Duration time);
  // Everything up to the entry that was last when `mark` was taken is durable.
  void mark(std::uint64_t serial);
  void on_durable(std::uint64_t serial);
  // Puts entries, probes and acknowledgements into the round's messages.
  void send();
  // Whether something is under way that a later round will have to look at.
  bool waits() const { return !marks_.empty() || !held_.empty() || piece_waits_; }
  // What the store holds of it can go: this instance has no part in a view that is as safe as it has to be, and newer than the
  // one that took it in last. (Who begins again hears of views in any order, and may be needed in one it has not heard of.)
  bool is_spare() const;
  // Before that: asks the sync members of its view, now and then; and whether all of them have lately said that they are there, in that
  // view and in the lives it names. While they are not, this copy may be the best that is left.
  void ask_whether_needed();
  bool is_vouched() const;
  void on_view_of(Member from, const View& view);  // `from` has told that it knows `view`
  void distrust();  // what the store says of its lives has changed
  void forget();  // the host has thrown it away (a stranger's only); its log is taken up anew
  // Lets go of committed entries in memory until `most` bytes are left; `wanted`: even those that a follower still lacks, which is then
  // sent the partition whole.
  enum class Wanted { keep, drop };
  void trim(std::size_t most, Wanted wanted);
  std::size_t tail_bytes() const { return tail_bytes_; }
  // The host has failed: everything that waits is let go of.
  void abandon() { let_go(); }
  // Those who need this instance's beacons because of this partition.
  const Members& peers() const { return peers_; }

 private:
  struct Follower {
    Version next = 1, match = 0;
    bool attached = false;        // it said that it follows, in this epoch
    bool reminded = false;        // it did not know of this epoch yet, and was told
    base::Time attached_after{};  // leases count from beacons later than this
    base::Time since{};           // this record exists, or was last not attached
    base::Time sent{};
    Version commit = 0;           // what it knows to be committed
    bool stuck = false, full = false;
    Position resumed;  // the last hint that was followed
    base::Time resumed_at{};
    // A snapshot under way.
    std::unique_ptr<SnapshotSource> snapshot;
    std::uint64_t snapshot_id = 0, piece = 0;  // the id stays when it is done
    bool piece_due = false, last_piece = false;
  };
  struct Import {
    Member from;
    std::uint64_t id = 0, next = 0;
    std::optional<Position> leads_to{};  // all of it has come
  };
  struct Alive {
    Member member;
    Standing standing;
    base::Time at{};
  };
  struct Mark {
    std::uint64_t serial;
    Version end;
    std::uint64_t rewinds;
  };

  bool broken(Defect defect) const { return host_.defects().has(defect); }
  bool is_me(Member one) const { return one == host_.self(); }
  bool follows(Member from, Epoch epoch) const;
  Version first_in_memory() const { return end_.sequence - tail_.size() + 1; }
  void catch_up();  // with what was written while alone
  // Logs, applies; the entry is the next one.
  Result<void> take(EntryPtr entry);
  // Takes back every entry after `keep`. False: the store cannot.
  bool truncate(Version keep);
  void forget_log();
  bool note_joined(Epoch epoch);  // false: the store cannot
  static std::size_t size_of(const Entry& entry) { return entry.payload.size() + sizeof(Entry) + kEntryOverhead; }
  static constexpr std::size_t kEntryOverhead = 64;  // of its place in memory
  void count_tail(const Entry& entry, bool comes);
  void drop_first_of_tail();
  void clear_tail();
  void trim_tail();
  void advance(Version commit);
  void try_commit();
  template <typename Test>
  bool all_of_mine(Test test) const;
  // The oldest of the newest beacons that those who must have answered, have. The epoch of the clock: one has not.
  base::Time granted() const;
  bool leased(base::Time granted) const;
  void let_go();
  std::size_t needed() const;  // nodes with a sync member, or changes wait
  // What fails together is counted as one: copies are as many as the nodes they are on.
  struct Spread {
    std::size_t nodes = 0, racks = 0, sync_nodes = 0, sync_racks = 0;
    bool grows = false;  // fewer nodes than are wanted have a copy, and another could take one
  };
  const Spread& spread() const;
  std::size_t nodes_of(const Members& members, std::optional<Member> except = {}) const;
  std::uint64_t home_of(InstanceId instance) const { return host_.site_of(instance).node; }
  template <typename Test>
  void let_go_of(Test test);
  void note_short(const View& before);

  void acknowledge();
  void answer(Ack ack);
  void ask_view(Member of);
  void send_to(Member peer, Follower& follower);
  void begin_snapshot(Member peer, Follower& follower);
  void send_piece(Member peer, Follower& follower);
  void say_again(Member to);
  void resume(Follower& follower, const Ack& ack);
  Version first_of_epoch(Version sequence) const;  // of the run that `sequence` lies in; base_ where it is not known
  base::Time heard(Member peer, const Follower& follower) const;
  base::Duration patience(Member peer, base::Duration least) const;
  bool has_substitute(Member peer) const;
  bool is_shunned(std::uint64_t node) const;
  bool is_lost(Member peer, const Follower& follower, base::Duration least) const;

  void propose(const Change& change);
  void tick_primary();
  bool rests_as_primary() const;
  void tick_stranger();
  void ask_to_settle();
  void come_back(Member old);
  void weigh(Member from, const Standing& standing);
  void want(Change::Kind kind, Member target, std::size_t copies = 0);
  bool is_ready(Member peer) const;  // attached, heard of late, and a round from the end at most
  bool has_room(Member peer) const;  // as far as was told
  void want_room();
  bool is_steady(Member peer) const;
  void want_goal();
  bool in_reach(const Goal& goal) const;
  std::optional<Member> choose_sync() const;
  std::optional<Member> redundant() const;
  std::optional<Member> surplus(const Goal& goal) const;
  void keep_enough(Goal& goal) const;
  std::optional<Member> choose_learner() const;
  void continue_wish();

  ReplicaHost& host_;
  const PartitionId partition_;
  View view_;

  // The log. Positions are known from base_ on; entries are in memory from first_in_memory() on.
  Position base_, end_;
  std::vector<Position> runs_;  // the first entry of each epoch after base_
  std::deque<EntryPtr> tail_;
  std::size_t tail_bytes_ = 0;
  Version durable_ = 0, commit_ = 0;
  std::uint64_t rewinds_ = 0, rewinds_durable_ = 0;  // how often entries were taken back, or a note was made
  std::deque<Mark> marks_;
  ReplicaStore::Origin origin_;

  // As the primary.
  std::map<Member, Follower> followers_;
  Members peers_;  // their names
  std::unordered_map<std::uint64_t, Version> touched_;                   // by key hash, uncommitted only
  std::deque<std::pair<Version, std::uint64_t>> touched_order_;
  std::deque<Held> held_;
  Position takeover_;     // see Append; committed up to there before anything is read
  PartitionClock clock_;
  Change wish_;           // undecided; only a newer epoch settles it once it was proposed
  bool wish_sent_ = false, full_ = false;
  base::Time wished_at_{};
  std::optional<Goal> goal_;
  std::uint64_t next_snapshot_ = 1;
  bool piece_waits_ = false;  // for its turn
  std::map<std::uint64_t, base::Time> shunned_;  // by node
  mutable Spread spread_;
  mutable std::optional<std::pair<Epoch, std::uint64_t>> spread_of_;  // which view, and which sites
  base::Time short_since_{};            // the epoch of the clock: as many sync members as needed
  std::optional<InstanceId> last_lost_;  // the sync member that fell out last

  // As a follower.
  base::Time adopted_at_{};
  bool deposing_ = false;
  bool taking_over_ = false;  // see take_over()
  Version verified_ = 0;  // equal to the primary's log up to here, in this epoch
  bool ack_due_ = false;
  Version acked_ = 0;
  bool cannot_write_ = false;
  std::optional<Import> import_;
  std::pair<Member, std::uint64_t> imported_;  // the last snapshot that was finished

  // What the primary said last of itself, when, and when this had all of it.
  Version known_end_ = 0, known_commit_ = 0;
  base::Time known_at_{}, in_step_at_{};

  // As a stranger, and in general.
  std::map<InstanceId, Alive> standings_;
  std::map<Member, base::Time> vouched_;  // sync members of this view that were there, and when they said so
  base::Time next_question_{};
  base::Time next_standing_{};
  Change last_proposed_;
  unsigned proposed_ = 0;  // again, so often
  base::Time next_propose_{};
};

}  // namespace zht::replication

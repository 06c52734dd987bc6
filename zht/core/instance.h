// One instance: the partitions of one core, their requests, retries, watchers and log, and its part in replication. No
// sockets, threads or clock: frames, messages of other instances, views, the time and the disk come in; reply frames,
// messages and wishes go out. One thread at a time; nothing here blocks on anything but the disk it was given.
//
// It works in rounds. Between begin_round() and end_round() any number of frames and messages is taken; every change is in
// memory at once and in one write at the end of the round (and one sync, durability always). Replies may leave only after
// end_round() has returned ok: that is what makes an acknowledgement a promise.
//
//   instance.begin_round(clock.now(), clock.wall());
//   for (each message of an instance) instance.on_peer(message);
//   for (each connection) instance.on_frames(connection, its_frames, out_buffer_of[connection]);
//   send(instance.take_peer_messages());        // followers work while the own disk does
//   TRY(instance.end_round());                  // writes, and syncs
//   instance.finish_round(clock.now());         // the time must be read after everything else of the round
//   send the buffers, instance.take_sends(), instance.take_peer_messages()
//   to the manager: instance.take_wishes(), instance.take_news()
//
// A partition whose view has this instance alone is committed by the end of the round: its replies are in the buffers. Where
// others are in the view, a reply is held until replication allows it to be shown: its entries are on every sync member, and
// what it read was read under a lease. It then comes with take_sends() of that or a later round; a reply that may not be
// shown, because another leads now, comes as `retry`. So the replies of one connection may overtake each other; a request's
// number tells them apart. A node on its own needs neither take_peer_messages() nor finish_round().
//
// Views come from the manager (adopt()) and from peers, with their messages; who lives and has room, where racks are, and
// what the balancer wishes come from the manager alone. When failure() is not empty a clustered instance is silent but for
// the wish to be counted out (go on with rounds until it was taken); the process should end then.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "zht/core/cut.h"
#include "zht/core/replicated_store.h"
#include "zht/core/replication/replicator.h"
#include "zht/core/transaction.h"
#include "zht/core/view.h"
#include "zht/core/watchers.h"
#include "zht/procedure.h"
#include "zht/wire/frame.h"

namespace zht::core {

enum class Durability { none, interval, always };
std::string_view name_of(Durability durability);
Result<Durability> parse_durability(std::string_view text);

// Bytes of memory, of one instance. What is full says so: `no_space` where something has to be removed first, `unavailable` where that
// passes by itself. (Uncommitted changes and what followers lack: replication::Timing.)
struct ByteLimits {
  // Values, keys and index. Values that were not used for long go to the disk to keep it; where that is not enough, and a quarter more
  // is taken, changes that add something are refused (no_space), by half more such as remove something too. Others' changes are taken in up
  // to twice as much, and then this copy drops out. 0: no limit.
  std::uint64_t memory = 0;
  std::size_t undo = std::size_t{256} << 20;     // what entries that may be taken back have changed
  std::size_t waiting = std::size_t{256} << 20;  // answers that wait for other copies, or for their connection (unavailable)
  std::size_t results = ResultTable::kMaxBytes;  // what is remembered of clients' requests (unavailable)
};

struct InstanceOptions {
  InstanceId id{0};
  Durability durability = Durability::interval;
  std::size_t max_value_size = kMaxValueSize;
  std::uint64_t segment_size = std::uint64_t{64} << 20;
  std::uint64_t log_floor = std::uint64_t{64} << 20;  // a shorter log is not compacted: there are hundreds of tables

  // Its partitions may be on other instances too, now or later. Otherwise the rest is of no importance.
  bool clustered = false;
  std::uint64_t outdated = 0;     // the life in which its folder was found to be an older copy (replication/sightings.h); 0: never
  std::uint64_t incarnation = 0;  // durable, and greater than in any life before; 0: as the table has it
  std::string boot;               // names the machine's present boot (see ReplicatedStore); empty: unknown
  base::Duration maintain_budget = std::chrono::milliseconds(2);  // of the store's housekeeping in a tick; 0: one step
  replication::Timing timing;
  ByteLimits limits;
  // What is held of a partition in which it has no part any more goes after so long, where the others are as many as needed.
  base::Duration keep_departed = std::chrono::seconds(60);
  replication::Defects defects;   // tests only, as the next
  replication::ReplicationObserver* observer = nullptr;
  std::function<std::uint64_t(InstanceId)> home;  // the node of an instance of which nobody has told yet, if its number says that
};

struct InstanceStatistics {
  std::uint64_t operations = 0, changes = 0, retries_answered = 0, redirects = 0, rounds = 0, syncs = 0;
  std::uint64_t held = 0, let_go = 0;  // replies that waited for others; of those, the ones that ended as `retry`
  std::array<std::uint64_t, 10> by_kind{};  // operations, by OpKind; 0: of no known kind
  std::uint64_t refused_for_memory = 0;     // no_space, for ByteLimits::memory
  std::uint64_t refused_for_room = 0;       // unavailable, for one of the other limits
};

// Bytes of memory that are taken, beside values, keys and index, which the store counts.
struct InstanceBytes {
  std::size_t undo = 0, waiting = 0, results = 0, tails = 0, uncommitted = 0, watchers = 0;
};

// What has become ready for a connection: a watcher's news, or replies that had to wait.
struct Send {
  ConnectionId to{0};
  std::string frame;  // or several, one after the other
};

class Instance {
 public:
  // Opens the store in `folder` and takes up what the views known so far give to options.id: `views`, by partition, none
  // left out (epoch 0: unknown). `files` and `procedures` outlive it. Errors: those of ReplicatedStore::open.
  static Result<std::unique_ptr<Instance>> open(base::FileSystem& files, std::string folder, InstanceOptions options,
                                                const Procedures& procedures, std::vector<replication::View> views);
  // The same on a node that is alone.
  static Result<std::unique_ptr<Instance>> open(base::FileSystem& files, std::string folder, InstanceOptions options,
                                                const Procedures& procedures, const MembershipTable& table);
  ~Instance();

  void begin_round(base::Time now, base::WallTime wall);
  // Executes request and goodbye frames of one connection, in order. Their replies are appended to `out`, except those of
  // callbacks that have to wait. The more frames at once the better: the memory they need is fetched together.
  // Returns how many were executed: all, or (one at least) as many as it took to append `most` bytes.
  std::size_t on_frames(ConnectionId from, std::span<const wire::Frame> frames, std::string& out,
                        std::size_t most = SIZE_MAX);
  void on_frame(ConnectionId from, const wire::Frame& frame, std::string& out);
  // A hint, also before the round: a frame about this key comes next.
  void expect(PartitionId partition, Bytes key) const {
    __builtin_prefetch(epochs_.data() + static_cast<std::uint32_t>(partition));
    store_->prefetch(novoht::TableId{static_cast<std::uint32_t>(partition)}, key);
  }
  void on_closed(ConnectionId connection);
  // Timeouts of watchers, expiry, forgotten sessions, housekeeping of the store. Call inside a round, when next_due() has come, or
  // sooner; kTick after the last one is soon enough.
  void on_tick();
  // When on_tick() has something to do next, as far as is known after a round; in the past: now.
  base::Time next_due() const;
  // Housekeeping of the store for `budget`, in a round or between two: returns whether there is more that could be done at once.
  bool keep_house(base::Duration budget);
  bool has_house_to_keep() const { return house_waits_; }  // as keep_house() said last
  // io: the store only reads from now on; no reply of this round's buffers may be sent.
  Result<void> end_round() { return end_round(Sync::now); }

  // --- durability always, the sync left for later ---
  // A round that is_quiet(), or was before on_tick(), may end with its write alone: end_round(Sync::later). begin_sync() then, run the job anywhere,
  // finish_sync() here; rounds go on meanwhile, and their changes wait for the next sync. What is not synced yet may not be
  // shown: take_needed() says, of what was executed since it was last asked, the round whose changes the replies rest on (this
  // one's or an earlier one's), and they may leave when synced() has come to that. 0: at the end of the round.
  enum class Sync { now, later };
  Result<void> end_round(Sync sync);
  std::uint64_t take_needed() {
    round_needed_ = std::max(round_needed_, needed_);
    return std::exchange(needed_, 0);
  }
  std::uint64_t changed_until() const { return changed_until_; }  // the last round that changed something
  std::uint64_t synced() const { return synced_; }                // rounds
  Durability durability() const { return options_.durability; }

  // --- a backup's cut (zht/backup/README.md); all inside a round. One at a time; one that nobody asks for goes after a minute ---
  // From now on changes wait, unexecuted, until end_pause() or until `limit` is over. Makes the cut, with what this instance leads
  // now. `since`: by partition, see Cut::add(). conflict: another is being made or read.
  Result<std::vector<CutMark>> begin_cut(std::uint64_t cut, base::Duration limit, const std::map<PartitionId, Version>& since);
  // Executes what has waited. The marks again: they are the same, or the cut is lost. not_found: there is no such cut (any more).
  // unavailable: changes did not wait until now.
  Result<std::vector<CutMark>> end_pause(std::uint64_t cut);
  // How many marks are not certain yet. unavailable: the cut is lost, and why; not_found.
  Result<std::size_t> unsure_of(std::uint64_t cut);
  // See Cut::read().
  Result<bool> read_cut(std::uint64_t cut, std::size_t bytes, std::string& out);
  void forget_cut(std::uint64_t cut);

  // --- replication; all inside a round but the two that say otherwise ---
  void on_peer(const replication::PeerMessage& message);
  // From the manager. Views that are not newer are passed over.
  void adopt(PartitionId partition, const replication::View& view);
  void set_goal(PartitionId partition, replication::Goal goal) { replicator_->set_goal(partition, std::move(goal)); }
  void set_candidates(std::vector<replication::Candidate> candidates) { replicator_->set_candidates(std::move(candidates)); }
  void set_sites(std::map<InstanceId, replication::Site> sites) { replicator_->set_sites(std::move(sites)); }
  // Before end_round(): what may leave before the disk has it; nothing may be taken by the round afterwards. After
  // finish_round(): the rest.
  std::vector<replication::PeerMessage> take_peer_messages();
  // Before end_round(): what was done in this round concerns no other instance. Then take_peer_messages() is not needed, and
  // finish_round() only where is_due(); nor has it wishes or news.
  bool is_due() const { return options_.clustered && replicator_->is_beacon_due(); }
  bool is_quiet() const { return !options_.clustered || (replicator_->is_idle() && news_.empty()); }
  // After end_round(), well or not. `now`: read after everything of the round was done.
  void finish_round(base::Time now);
  std::vector<replication::Wish> take_wishes() { return replicator_->take_wishes(); }
  std::vector<replication::ViewNews> take_news() { return std::exchange(news_, {}); }
  // The operator's last resort: see Replica::take_over(). Between rounds or in one.
  Result<void> take_over(PartitionId partition, Epoch epoch, replication::Position end);
  // What there is to say of its partitions, for reports.
  replication::Replicator& replicator() { return *replicator_; }
  const replication::View& view_of(PartitionId partition) const { return views_[static_cast<std::uint32_t>(partition)]; }
  const ReplicatedStore::Opened& opened() const { return replicated_->opened(); }
  ReplicatedStore& replicated_store() { return *replicated_; }
  replication::Member self() const { return replicator_->self(); }
  // Instead of a last sync(): nothing will be written any more in this life.
  Result<void> close();

  std::vector<Send> take_sends() {
    sends_bytes_ = 0;
    return std::exchange(sends_, {});
  }

  // One at a time: begin on this thread, run anywhere, finish on this thread.
  bool dirty() const { return store_->dirty(); }
  Result<std::unique_ptr<novoht::SyncJob>> begin_sync();  // io: there is nothing to finish then
  void finish_sync(const Result<void>& outcome);
  Result<void> sync();

  const InstanceStatistics& statistics() const { return statistics_; }
  InstanceBytes bytes() const;
  const ByteLimits& limits() const { return options_.limits; }
  // Its memory is so full that it had better be given no more copies.
  bool is_short_of_memory() const { return options_.limits.memory != 0 && memory_used_ > options_.limits.memory + options_.limits.memory / 8; }
  base::Time round_began() const { return now_; }
  novoht::Statistics store_statistics() const;  // keys: those of users
  std::size_t watcher_count() const { return watchers_.count(); }
  std::size_t partition_count() const;  // that it leads
  const std::string& failure() const { return failure_; }  // why it only reads; empty: well
  InstanceId id() const { return options_.id; }
  // Leads it, and nobody else has a part in it: what is asked is answered in the same round.
  bool is_alone(PartitionId partition) const { return alone_epoch(partition) != 0; }
  std::uint64_t alone_epoch(PartitionId partition) const {  // 0: it is not, or changes wait
    return pauses() ? 0 : epochs_[static_cast<std::uint32_t>(partition)];
  }
  Epoch epoch_of(PartitionId partition) const { return view_of(partition).epoch; }
  std::uint32_t partitions() const { return static_cast<std::uint32_t>(views_.size()); }  // of the cluster

  static constexpr base::Duration kTick = std::chrono::milliseconds(20);

 private:
  // An answer that waits to be shown.
  struct Waiting {
    ConnectionId to{0};
    std::uint64_t request = 0;
    PartitionId partition{0};
    std::uint8_t op = 0;
    bool waits = false;
    std::string frame;
  };

  Instance(InstanceOptions options, const Procedures& procedures, std::vector<replication::View> views);

  void execute(ConnectionId from, const wire::Frame& frame, const wire::OperationView& operation, std::string& out);
  void on_replicated(ConnectionId from, const wire::Frame& frame, const wire::OperationView& operation, std::string& out);
  bool may_read_eventually(replication::Replica* replica, PartitionId partition, const wire::OperationView& operation) const;
  void hold(replication::Replica& replica, ConnectionId to, std::uint64_t request, std::uint8_t op, PartitionId partition,
            replication::Held what, std::string frame);
  void release(const replication::Released& released);
  void take_up();
  void refresh(PartitionId partition);
  void look_again(std::span<const PartitionId> partitions);
  void leave(PartitionId partition);
  void stop_serving();
  void forget_departed();
  void remove_expired(PartitionId partition, replication::Replica* replica);
  // What is read of this key, in the request at hand, rests on this.
  void reads_key(Bytes key);
  Result<void> check_operation(const wire::OperationView& operation, PartitionId partition) const;
  void answer_error(const wire::Frame& frame, const Error& error, std::string& out) const;
  void answer_retry(const wire::Frame& frame, std::string& out);
  void encode_retry(std::uint8_t op, std::uint64_t request, PartitionId partition, std::string& out, bool maybe = false,
                    Bytes why = {});
  void answer_at_once(const wire::Frame& frame, const Error& error, std::string& out);
  void answer(const wire::Frame& frame, const Outcome& outcome, std::string& out) const;
  void answer_recorded(const wire::Frame& frame, const Recorded& recorded, std::string& out) const;

  void do_lookup(const wire::Frame& frame, const wire::OperationView& operation, std::string& out);
  void do_callback(ConnectionId from, const wire::Frame& frame, const wire::OperationView& operation, std::string& out);
  void do_scan(const wire::Frame& frame, const wire::OperationView& operation, std::string& out);
  void do_change(const wire::Frame& frame, const wire::OperationView& operation, std::string& out);
  // An insert without a condition needs no look at what is there.
  void do_insert(const wire::Frame& frame, const wire::OperationView& operation, std::string& out);
  void take(ConnectionId from, const wire::Frame& frame, std::string& out);  // with `prepared_`
  void take_as(ConnectionId from, const wire::Frame& frame, wire::OperationView& operation, std::string& out);
  Bytes prepare_note(const wire::Frame& frame, std::size_t place);
  // Whether the request may be executed; otherwise it has been answered.
  bool admit(const wire::Frame& frame, std::string& out);
  Result<Version> apply(PartitionId partition, std::span<const novoht::Change> changes, Note&& note);
  // no_space: the changes add something, and there is no memory for it.
  Result<void> check_memory(std::span<const novoht::Change> changes);
  std::string news_for(const Watcher& watcher, const Seen& seen);

  // Each evaluates against the transaction and puts its changes there. A failed condition is an outcome with its code.
  Outcome evaluate(const wire::OperationView& operation);
  Outcome evaluate_batch(const wire::OperationView& operation);
  Outcome evaluate_update(const wire::OperationView& operation);
  base::WallTime expiry_of(const wire::OperationView& operation) const;
  void remember_refusal(const wire::Frame& frame, OpKind kind, const Outcome& outcome);
  void refuse(const wire::Frame& frame, OpKind kind, const Error& error, std::string& out);
  Outcome refusal(Code code, std::string message, const Seen& seen);

  void fill(Outcome& outcome, const Seen& seen, const Range& range);
  // Wakes the watchers of every key that the changes, which became this version, are about.
  void notify(PartitionId partition, std::span<const novoht::Change> changes, replication::Replica* replica, Version version);
  bool satisfied(const Condition& condition, const Seen& seen) const;
  std::string frame_for(const Watcher& watcher, const Outcome& outcome) const;
  void note_failure(const Result<void>& outcome);
  void reap_expired();
  bool expires_soon(PartitionId partition, replication::Replica* replica);
  void expect_expiry(PartitionId partition);
  void note_expiries(PartitionId partition, std::span<const novoht::Change> changes) {
    for (const novoht::Change& change : changes)
      if (change.expires != base::kNever) [[unlikely]] expect_expiry(partition);
  }
  void note_work();

  static constexpr ConnectionId kCutMark{~std::uint64_t{0}};  // in the place of a connection: what waits is a mark of a cut
  // A request that waits for the end of a pause.
  struct Parked {
    ConnectionId from{0};
    std::string bytes;  // what the frame borrows from
    wire::Frame frame;
  };
  bool pauses() const { return pause_until_ != base::Time{}; }
  bool park(ConnectionId from, const wire::Frame& frame, std::string& out);
  void go_on();  // after a pause
  Result<Cut*> find_cut(std::uint64_t id);
  std::vector<CutMark> led_now();
  void tend_cut();

  const InstanceOptions options_;
  const Procedures& procedures_;
  std::vector<replication::View> views_;  // by partition, the newest known
  // By partition: the epoch of its view where this instance is alone in that and nothing is under way, else 0.
  std::vector<std::uint64_t> epochs_;
  std::unique_ptr<ReplicatedStore> replicated_;
  novoht::Store* store_ = nullptr;   // its tables
  ResultTable* results_ = nullptr;   // its results
  std::unique_ptr<replication::Replicator> replicator_;
  // Of the request at hand, where others are in the view: what its answer has to wait for. null: nothing.
  replication::Replica* replica_ = nullptr;
  replication::Held hold_;
  bool at_once_ = false;
  std::deque<Waiting> waiting_;      // by token, from first_token_ on
  std::uint64_t first_token_ = 1;
  std::size_t waiting_bytes_ = 0, sends_bytes_ = 0;
  std::uint64_t memory_used_ = 0;  // by the store, at the beginning of the round
  std::map<PartitionId, base::Time> departed_;  // when it was first seen to be spare
  std::vector<replication::ViewNews> news_;
  std::uint64_t mark_ = 0;
  bool marked_ = false, taken_up_ = false;
  Watchers watchers_;
  std::unique_ptr<PartitionTransaction> transaction_;
  std::vector<Send> sends_;
  InstanceStatistics statistics_;
  base::Time now_{};
  base::WallTime wall_{};
  std::uint64_t now_ms_ = 0;
  bool changed_in_round_ = false;
  // Durability always. Rounds are numbered from 1; by the key's hash, modulo: the last round that changed such a key.
  void note_change(std::span<const novoht::Change> changes);
  void rests_on_all() { needed_ = std::max(needed_, changed_until_); }
  std::uint64_t round_ = 0, needed_ = 0, round_needed_ = 0, changed_until_ = 0, synced_ = 0, syncing_until_ = 0;
  std::vector<std::uint64_t> changed_at_;
  std::string failure_;
  std::unique_ptr<Cut> cut_;
  base::Time cut_used_{}, pause_until_{};  // epoch: there is none
  std::deque<Parked> parked_;
  std::size_t parked_bytes_ = 0;
  std::string note_;  // scratch
  wire::OperationView plain_;  // scratch, of requests without extra fields: most of it is never touched
  static constexpr std::size_t kTogether = 32;  // frames prepared, then executed
  std::array<std::array<char, 64>, kTogether> notes_;  // scratch, of inserts
  Bytes prepared_;  // of notes_: that of the frame being executed, where that is an insert
  // When what on_tick() does is due.
  base::Time next_forget_{}, next_keep_{}, next_expiry_ = base::Time::max(), next_departed_ = base::Time::max();
  std::map<PartitionId, base::Time> expiring_;  // led here, with keys that expire: when the next one may
  std::uint64_t operations_seen_ = 0, progress_ = 0;
  base::Time keep_until_{}, next_progress_{};
  bool house_waits_ = false;
};

}  // namespace zht::core

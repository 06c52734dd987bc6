// One instance: the partitions of one core, their requests, retries, watchers and log. No sockets, threads or clock:
// frames, the time and the disk come in, reply frames go out. One thread owns an Instance; nothing here blocks on
// anything but the disk it was given.
//
// It works in rounds. Between begin_round() and end_round() any number of frames is executed; every change is in memory
// at once and in one write at the end of the round (and one sync, durability always). Replies may leave only after
// end_round() has returned ok: that is what makes an acknowledgement a promise.
//
//   instance.begin_round(clock.now(), clock.wall());
//   for (each connection) instance.on_frames(connection, its_frames, out_buffer_of[connection]);
//   TRY(instance.end_round());
//   send the buffers, and instance.take_sends()
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "novoht/store.h"
#include "zht/core/result_table.h"
#include "zht/core/transaction.h"
#include "zht/core/view.h"
#include "zht/core/watchers.h"
#include "zht/procedure.h"
#include "zht/wire/frame.h"

namespace zht::core {

enum class Durability { none, interval, always };
std::string_view name_of(Durability durability);
Result<Durability> parse_durability(std::string_view text);

struct InstanceOptions {
  InstanceId id{0};
  Durability durability = Durability::interval;
  std::size_t max_value_size = kMaxValueSize;
  std::uint64_t segment_size = std::uint64_t{64} << 20;
  std::uint64_t log_floor = std::uint64_t{64} << 20;  // a shorter log is not compacted: there are hundreds of tables
};

struct InstanceStatistics {
  std::uint64_t operations = 0, changes = 0, retries_answered = 0, redirects = 0, rounds = 0, syncs = 0;
  std::array<std::uint64_t, 10> by_kind{};  // operations, by OpKind; 0: of no known kind
};

// A reply for a connection other than the one being served: a watcher's.
struct Send {
  ConnectionId to{0};
  std::string frame;
};

class Instance final : private novoht::Companion {
 public:
  // Opens the store in `folder` and rebuilds the state of the partitions that `table` gives to options.id. `files`,
  // `procedures` and `table` outlive it. Errors: those of novoht::Store::open.
  static Result<std::unique_ptr<Instance>> open(base::FileSystem& files, std::string folder, InstanceOptions options,
                                                const Procedures& procedures, const MembershipTable& table);
  ~Instance() override;

  void begin_round(base::Time now, base::WallTime wall);
  // Executes request and goodbye frames of one connection, in order. Their replies are appended to `out`, except those of
  // callbacks that have to wait. The more frames at once the better: the memory they need is fetched together.
  // Returns how many were executed: all, or (one at least) as many as it took to append `most` bytes.
  std::size_t on_frames(ConnectionId from, std::span<const wire::Frame> frames, std::string& out,
                        std::size_t most = SIZE_MAX);
  void on_frame(ConnectionId from, const wire::Frame& frame, std::string& out);
  void on_closed(ConnectionId connection);
  // Timeouts of watchers, expiry, forgotten sessions, housekeeping of the store. Call inside a round, every kTick.
  void on_tick();
  // io: the store only reads from now on; no reply of this round may be sent.
  Result<void> end_round();
  std::vector<Send> take_sends() { return std::exchange(sends_, {}); }

  // Durability interval: begin on this thread, run anywhere, finish on this thread.
  bool dirty() const { return store_->dirty(); }
  Result<std::unique_ptr<novoht::SyncJob>> begin_sync() { return store_->begin_sync(); }
  void finish_sync(const Result<void>& outcome) { note_failure(outcome); store_->finish_sync(outcome); }
  Result<void> sync();

  const InstanceStatistics& statistics() const { return statistics_; }
  base::Time round_began() const { return now_; }
  novoht::Statistics store_statistics() const { return store_->statistics(); }
  std::size_t watcher_count() const { return watchers_.count(); }
  std::size_t partition_count() const { return owned_; }
  const std::string& failure() const { return failure_; }  // why it only reads; empty: well
  InstanceId id() const { return options_.id; }
  Epoch epoch_of(PartitionId partition) const { return table_.view_of(partition).epoch; }

  static constexpr base::Duration kTick = std::chrono::milliseconds(20);

 private:
  Instance(InstanceOptions options, const Procedures& procedures, const MembershipTable& table);
  Result<void> restore(novoht::TableId table, Bytes attachment) override;
  Result<void> replay(novoht::TableId table, Version version, std::uint64_t epoch, Bytes note) override;
  std::string attachment(novoht::TableId table) override;

  bool owns(PartitionId partition) const;
  Result<void> check_operation(const wire::OperationView& operation, PartitionId partition) const;
  void answer_error(const wire::Frame& frame, const Error& error, std::string& out) const;
  void answer_retry(const wire::Frame& frame, std::string& out);
  void answer(const wire::Frame& frame, const Outcome& outcome, std::string& out) const;
  void answer_recorded(const wire::Frame& frame, const Recorded& recorded, std::string& out) const;

  void do_lookup(const wire::Frame& frame, const wire::OperationView& operation, std::string& out);
  void do_callback(ConnectionId from, const wire::Frame& frame, const wire::OperationView& operation, std::string& out);
  void do_scan(const wire::Frame& frame, const wire::OperationView& operation, std::string& out);
  void do_change(const wire::Frame& frame, const wire::OperationView& operation, std::string& out);
  // An insert without a condition needs no look at what is there.
  void do_insert(const wire::Frame& frame, const wire::OperationView& operation, std::string& out);
  // Whether the request may be executed; otherwise it has been answered.
  bool admit(const wire::Frame& frame, std::string& out);
  Result<Version> apply(PartitionId partition, std::span<const novoht::Change> changes, const Note& note);

  // Each evaluates against the transaction and puts its changes there. A failed condition is an outcome with its code.
  Outcome evaluate(const wire::OperationView& operation);
  Outcome evaluate_batch(const wire::OperationView& operation);
  Outcome evaluate_update(const wire::OperationView& operation);
  base::WallTime expiry_of(const wire::OperationView& operation) const;
  void remember_refusal(const wire::Frame& frame, OpKind kind, const Outcome& outcome);
  void refuse(const wire::Frame& frame, OpKind kind, const Error& error, std::string& out);
  Outcome refusal(Code code, std::string message, const Seen& seen);

  void fill(Outcome& outcome, const Seen& seen, const Range& range);
  // Wakes the watchers of every key the transaction changed.
  void notify(PartitionId partition, std::span<const novoht::Change> changes);
  bool satisfied(const Condition& condition, const Seen& seen) const;
  void send_to(const Watcher& watcher, const Outcome& outcome);
  void note_failure(const Result<void>& outcome);
  void reap_expired();

  const InstanceOptions options_;
  const Procedures& procedures_;
  const MembershipTable& table_;
  std::unique_ptr<novoht::Store> store_;
  std::vector<std::uint64_t> epochs_;  // by partition: of its view, where this instance is the primary; else 0
  ResultTable results_;
  Watchers watchers_;
  std::unique_ptr<PartitionTransaction> transaction_;
  std::vector<Send> sends_;
  InstanceStatistics statistics_;
  base::Time now_{};
  base::WallTime wall_{};
  std::uint64_t now_ms_ = 0;
  std::size_t owned_ = 0;
  bool changed_in_round_ = false;
  std::string failure_;
  std::string note_;  // scratch
  base::Time next_forget_{};
};

}  // namespace zht::core

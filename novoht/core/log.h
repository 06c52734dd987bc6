// The writing end of the log: segments, the record being gathered for the next write, syncs, and dropping what is no
// longer needed. Recovery (core/recovery.h) reads it back.
//
// Room for a record is a promise: room() has the segment's blocks on disk before the caller changes anything in memory.
#pragma once

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "novoht/core/background.h"
#include "novoht/core/format.h"

namespace novoht::core {

struct Segment {
  std::uint64_t number = 0;
  Position begin = 0;       // of its first record
  std::uint64_t size = 0;   // bytes reserved on disk
  bool reused = false;      // was another segment before
  std::shared_ptr<base::File> file;
};

// What recovery found, and where writing goes on.
struct LogState {
  std::uint64_t store = 0;
  std::deque<Segment> segments;    // that hold records, oldest first; the last is written on
  std::uint64_t offset = 0;        // in the last segment
  Position position = 0;           // of the next record; everything before is durable
  std::uint64_t next_number = 1;
  std::optional<Segment> spare;    // prepared and not begun
  bool ends_with_mark = false;
};

// One thread; a job of begin_sync() may run on another.
class Log {
 public:
  // live_bytes says what all tables hold: segments grow with it, up to `segment_size`. checkpoint_room says how many bytes
  // checkpoints may take beyond those that are there: no segment takes the disk's last room from them, for without them no
  // segment would ever go. bound says how many bytes of segments there may be without need: those that are kept for reuse
  // count.
  Log(base::FileSystem& files, std::string folder, std::uint64_t segment_size, std::function<std::uint64_t()> live_bytes,
      std::function<std::uint64_t()> checkpoint_room, std::function<std::uint64_t()> bound)
      : files_(files), folder_(std::move(folder)), segment_size_(segment_size), live_bytes_(std::move(live_bytes)),
        checkpoint_room_(std::move(checkpoint_room)), bound_(std::move(bound)), preparing_(files.threads()) {}

  void adopt(LogState state);

  // Whether room(size) is there without a write, a new segment or more memory: then records written since the last flush
  // stay where they are.
  bool has_room(std::size_t size) const {
    return offset_ + size <= unasked_until_ && pending_size_ + size <= pending_capacity_ && pending_size_ < kFlushAt;
  }
  // From `position` on has_room() says no until this is called again, so that the caller looks after what else has to be done.
  void ask_at(Position position) {
    ask_at_ = position;
    set_unasked();
  }
  // Where a record of `size` bytes may be encoded, for salt(), offset(), position(); then commit(size), or nothing.
  // Errors: no_space, io (nothing changed; after a failed write or sync the log is failed for good).
  Result<char*> room(std::size_t size) {
    if (has_room(size)) [[likely]]
      return next();
    return room_slowly(size);
  }
  char* next() { return pending_.get() + pending_size_; }  // after has_room()
  void commit(std::size_t size) {
    pending_size_ += size;
    offset_ += size;
    position_ += size;
    marked_ = false;
  }
  std::uint64_t salt() const { return salt_; }
  std::uint64_t offset() const { return offset_; }
  // Of a record that has not been written yet.
  std::uint64_t offset_of(const char* record) const { return pending_offset_ + static_cast<std::uint64_t>(record - pending_.get()); }
  Position position() const { return position_; }
  Position durable() const { return durable_; }
  Position written() const { return position_ - pending_size_; }  // records before have been flushed
  const std::deque<Segment>& segments() const { return segments_; }
  Position trimmed_to() const { return trimmed_to_; }  // records before may go at any time
  Position begin() const { return segments_.empty() ? position_ : segments_.front().begin; }

  Result<void> flush();
  Result<void> sync();
  // What a job will have made durable.
  struct Syncing {
    Position position = 0;
    std::uint64_t names = 0;
  };
  // Writes what is gathered and returns the job that syncs it; end_sync() with the same `what` when it has run.
  Result<std::unique_ptr<SyncJob>> begin_sync(Syncing& what);
  void end_sync(const Syncing& what, const Result<void>& outcome);
  bool dirty() const { return durable_ != position_; }
  // All that is written, and what follows, will be synced soon: a thread has it begin its way to the disk, some megabytes at a
  // time, so that the disk is not idle until then and the sync does not take as long. To be called now and then.
  void expect_sync() {
    if (position_ >= expected_until_ + kExpectEvery) expect_sync_now();
  }
  bool failed() const { return failed_; }
  base::Error failure() const { return failure_; }
  // As failing a write does: nothing more is written.
  void fail_with(base::Error error);

  // Makes the next segment ready, in the background, once this one is half full, or at once when a record was refused for
  // want of one. Errors: no_space, io.
  Result<void> prepare();
  // Begins a new segment, so that the one before can be dropped.
  Result<void> rotate();
  // Whether a segment ends at or before `needed`; if so writes a trim record, and once that is durable drop_trimmed()
  // removes such segments, one a call, and returns whether there are more. `keep`: some may be kept, for the next segments
  // to be made out of them: their blocks, and their pages in the system's cache, need not be had again.
  Result<bool> trim(Position needed);
  bool wants_sync_for_trim() const { return can_drop() && durable_ < trim_durable_at_; }
  Result<bool> drop_trimmed(bool keep);
  // Gives the disk back what is kept. (A file is gone when it is closed, and that takes a large one some milliseconds.) io: a
  // file could not be removed; the next opening does.
  Result<void> let_go_kept(bool in_background = false);

  // A last record that says that everything before it is synced, if so. Nothing is kept.
  void close();

  std::uint64_t bytes() const;
  // What bytes() may come to before the next call of this, should a record of `record_size` bytes need a segment: what is
  // written, and two segments as large as the largest.
  std::uint64_t bytes_ahead(std::size_t record_size) const;
  std::uint64_t largest_segment(std::size_t record_size) const;  // of those that are there, and the next
  std::uint64_t kept_bytes() const;  // of dropped segments that are kept for reuse
  std::uint64_t reused_segments() const { return reused_; }  // begun, that is
  std::uint64_t segment_count() const { return segments_.size() + (spare_ ? 1 : 0); }
  std::uint64_t flushes() const { return flushes_; }
  std::uint64_t syncs() const { return syncs_; }

 private:
  class Job;
  static constexpr std::uint64_t kFar = std::uint64_t{1} << 62;
  static constexpr std::size_t kFlushAt = std::size_t{1} << 20;  // bytes gathered before they are written unasked

  static constexpr std::uint64_t kExpectEvery = std::uint64_t{4} << 20;

  Result<char*> room_slowly(std::size_t size);
  void expect_sync_now();
  void set_unasked() {
    if (failed_ || segments_.empty()) unasked_until_ = 0;
    else unasked_until_ = std::min(segments_.back().size, ask_at_ > position_ ? offset_ + std::min(ask_at_ - position_, kFar) : 0);
  }
  Result<void> make_space(std::size_t size);
  Result<void> begin_segment(std::size_t record_size, bool small = false);
  std::uint64_t next_size(std::size_t record_size, bool small = false) const;
  Result<Segment> make_segment(std::uint64_t number, std::uint64_t size, bool write_zeros) const;
  Result<Segment> reuse_segment(std::uint64_t number, const Segment& old) const;
  bool may_be_reused(const Segment& segment, std::size_t record_size) const;
  bool worth_keeping(const Segment& segment) const;
  Result<std::uint64_t> affordable_size(std::size_t record_size, bool small = false) const;
  Result<void> take_prepared(Result<void> outcome);
  bool can_drop() const { return segments_.size() >= 2 && segments_[1].begin <= trimmed_to_; }
  std::string path_of(std::uint64_t number) const { return folder_ + "/" + segment_name(number); }
  std::string kept_path(std::uint64_t number) const { return folder_ + "/" + kept_name(number); }

  base::FileSystem& files_;
  const std::string folder_;
  const std::uint64_t segment_size_;
  const std::function<std::uint64_t()> live_bytes_, checkpoint_room_, bound_;
  std::uint64_t store_ = 0;

  std::deque<Segment> segments_;
  std::optional<Segment> spare_;
  std::deque<Segment> kept_;  // dropped, for the next ones to be made out of them
  std::uint64_t next_number_ = 1;
  Position needed_from_ = 0;

  std::unique_ptr<char[]> pending_;   // gathered, to be written at pending_offset_ of the last segment
  std::size_t pending_size_ = 0, pending_capacity_ = 0;
  std::uint64_t pending_offset_ = 0;
  std::uint64_t salt_ = 0, offset_ = 0;
  std::uint64_t unasked_until_ = 0;   // offset to which records may come without a question: see set_unasked()
  Position ask_at_ = UINT64_MAX;
  Position position_ = 0, durable_ = 0;
  Position expected_until_ = 0;  // see expect_sync()
  std::uint64_t names_ = 0, names_durable_ = 0;  // changes to the folder; those that were synced
  std::uint64_t syncs_before_ = 0;               // this segment
  bool marked_ = false;               // the last record is a mark
  std::size_t refused_size_ = 0;      // of the last record for which no segment could be had; 0: none since the last segment

  Position trimmed_to_ = 0;           // segments before may go ...
  Position trim_durable_at_ = 0;      // ... when the log is durable up to here

  bool failed_ = false;
  base::Error failure_;
  std::uint64_t flushes_ = 0, syncs_ = 0, reused_ = 0;

  Segment prepared_;  // the background's
  std::atomic<bool> warming_ = false;
  Background preparing_;
};

}  // namespace novoht::core

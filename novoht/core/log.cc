#include "novoht/core/log.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <thread>
#include <utility>

#include "novoht/base/mutant.h"

namespace novoht::core {
namespace {
constexpr std::uint64_t kFirstSegment = std::uint64_t{1} << 20;
constexpr std::uint64_t kSmallest = std::uint64_t{64} << 10;  // of one that is begun so that those before it can go
constexpr std::uint64_t kGrowTo = std::uint64_t{8} << 20;  // segments double up to here whatever the tables hold
// A sync costs a third more where blocks are written for the first time, and a zero costs about as much as any byte: with
// more than a sync for so many bytes of log, segments are zeroed beforehand.
constexpr std::uint64_t kZeroBelow = std::uint64_t{64} << 10;
// Between two pieces the thread rests, or where it shares a processor with the owner it would keep that one waiting for
// milliseconds at a time.
constexpr std::size_t kWarmPiece = std::size_t{128} << 10;
constexpr auto kWarmRest = std::chrono::microseconds(100);
}  // namespace

class Log::Job final : public SyncJob {
 public:
  Job(base::FileSystem* files, std::string folder, std::vector<std::shared_ptr<base::File>> segments)
      : files_(files), folder_(std::move(folder)), segments_(std::move(segments)) {}
  Result<void> run() override {
    if (files_ != nullptr) TRY(files_->sync_folder(folder_));
    for (const auto& segment : segments_) TRY(segment->sync());
    return {};
  }

 private:
  base::FileSystem* const files_;  // when names are to be synced too
  const std::string folder_;
  const std::vector<std::shared_ptr<base::File>> segments_;
};

void Log::adopt(LogState state) {
  store_ = state.store;
  segments_ = std::move(state.segments);
  spare_ = std::move(state.spare);
  next_number_ = state.next_number;
  offset_ = pending_offset_ = state.offset;
  position_ = durable_ = state.position;
  needed_from_ = begin();
  marked_ = state.ends_with_mark;
  if (!segments_.empty()) salt_ = segment_salt(store_, segments_.back().number);
  set_unasked();
}

void Log::fail_with(base::Error error) {
  if (failed_) return;
  failed_ = true;
  set_unasked();
  failure_ = base::add_context("the store only reads since a write failed", std::move(error));
}

Result<char*> Log::room_slowly(std::size_t size) {
  if (failed_) return failure_;
  if (pending_size_ >= kFlushAt) TRY(flush());
  if (segments_.empty() || offset_ + size > segments_.back().size) {
    if (auto begun = begin_segment(size); !begun) {
      if (begun.code() == Code::no_space) refused_size_ = size;
      return std::move(begun).error();
    }
  }
  TRY(make_space(size));
  return pending_.get() + pending_size_;
}

Result<void> Log::make_space(std::size_t size) {
  if (pending_size_ + size <= pending_capacity_) return {};
  const std::size_t capacity = std::max<std::size_t>(std::bit_ceil(pending_size_ + size), 4096);
  auto larger = std::make_unique_for_overwrite<char[]>(capacity + kEndZeros);
  if (pending_size_ > 0) std::memcpy(larger.get(), pending_.get(), pending_size_);
  pending_ = std::move(larger);
  pending_capacity_ = capacity;
  return {};
}

// Segments are sized so that some of them make up the log's bound: small for a small store, doubling while it grows.
std::uint64_t Log::next_size(std::size_t record_size, bool small) const {
  const std::uint64_t previous = segments_.empty() || small ? kFirstSegment / 2 : segments_.back().size;
  std::uint64_t size = std::max(std::min(2 * previous, kGrowTo), std::bit_floor(live_bytes_() / 2 + 1));
  size = std::min(std::max(size, kFirstSegment), std::max(segment_size_, std::uint64_t{4096}));
  const std::uint64_t least = (kSegmentHeaderSize + record_size + 4095) / 4096 * 4096;
  return std::max(size, least);
}

// The same, or as large as leaves room for checkpoints: of what is there, and of what these segments may add to it.
Result<std::uint64_t> Log::affordable_size(std::size_t record_size, bool small) const {
  std::uint64_t size = next_size(record_size, small);
  const std::uint64_t free = files_.free_bytes(folder_);
  if (free == UINT64_MAX) return size;
  const std::uint64_t least = std::min(size, std::max<std::uint64_t>(std::min(small ? kSmallest : kFirstSegment, segment_size_),
                                                                     (kSegmentHeaderSize + record_size + 4095) / 4096 * 4096));
  const std::uint64_t rest = segments_.empty() ? 0 : segments_.back().size - std::min(offset_, segments_.back().size);
  const std::uint64_t kept = checkpoint_room_() + rest;
  while (2 * size + kept > free && size > least) size = std::max(size / 2 / 4096 * 4096, least);
  if (2 * size + kept > free)
    return base::fail(Code::no_space, folder_, ": No space left on device: ", free, " bytes are free; a log segment of ", size,
                      " and checkpoints of ", kept + size, " need more");
  return size;
}

Result<Segment> Log::make_segment(std::uint64_t number, std::uint64_t size, bool write_zeros) const {
  const std::string path = path_of(number);
  Segment segment;
  segment.number = number;
  segment.size = size;
  TRY_LET(file, files_.open(path, base::OpenMode::create_new));
  const auto fill = [&]() -> Result<void> {
    TRY(file->reserve(size));
    if (!write_zeros) return {};
    // In small pieces, so that a sync of the log does not wait behind a long queue.
    const std::string zeros(std::min<std::uint64_t>(size, std::uint64_t{1} << 20), '\0');
    for (std::uint64_t at = 0; at < size; at += zeros.size()) {
      TRY(file->write_at(at, Bytes(zeros).substr(0, size - at)));
      TRY(file->sync());
    }
    return {};
  };
  if (auto filled = fill(); !filled) {
    file.reset();
    (void)files_.remove(path).has_value();
    return std::move(filled).error();
  }
  segment.file = std::move(file);
  return segment;
}

// The names are synced before anything is written under the new one: what follows a loss of power is then either the old
// segment, which is not needed, or one of this number that was not begun.
Result<Segment> Log::reuse_segment(std::uint64_t number, const Segment& old) const {
  TRY(files_.rename(kept_path(old.number), path_of(number)));
  TRY(files_.sync_folder(folder_));
  old.file->expect_use(0, old.size);
  Segment segment;
  segment.number = number;
  segment.size = old.size;
  segment.reused = true;
  segment.file = old.file;
  return segment;
}

// As large as a new one would be, or not much larger; and while it is there, the disk has room for checkpoints.
bool Log::may_be_reused(const Segment& segment, std::size_t record_size) const {
  const std::uint64_t size = next_size(record_size);
  if (segment.size < size || segment.size / 2 > size) return false;
  const std::uint64_t free = files_.free_bytes(folder_);
  return free == UINT64_MAX || free >= 2 * segment.size + checkpoint_room_();
}

// As much as the log may be, for a checkpoint lets go of a whole log at once, which is then written again.
bool Log::worth_keeping(const Segment& segment) const {
  return may_be_reused(segment, 0) && kept_bytes() + segment.size <= std::max(bound_(), 4 * segment.size);
}

Result<void> Log::let_go_kept(bool in_background) {
  while (!kept_.empty()) {
    Segment one = std::move(kept_.front());
    kept_.pop_front();
    TRY(files_.remove(kept_path(one.number)));
    if (in_background) preparing_.then([file = std::move(one.file)]() mutable { file.reset(); });
  }
  return {};
}

Result<void> Log::prepare() {
  if (failed_) return {};
  if (preparing_.running()) {
    auto outcome = preparing_.poll();
    return outcome ? take_prepared(*std::move(outcome)) : Result<void>{};
  }
  if (spare_ || segments_.empty() || (offset_ <= segments_.back().size / 2 && refused_size_ == 0)) return {};
  warming_ = false;
  if (!kept_.empty() && !may_be_reused(kept_.front(), refused_size_)) TRY(let_go_kept(refused_size_ == 0));
  if (!kept_.empty()) {
    preparing_.start([this, number = next_number_++, old = std::move(kept_.front())]() -> Result<void> {
      TRY_LET(made, reuse_segment(number, old));
      prepared_ = std::move(made);
      return {};
    });
    kept_.pop_front();
    if (auto outcome = preparing_.poll()) return take_prepared(*std::move(outcome));
    return {};
  }
  TRY_LET(size, affordable_size(refused_size_));
  const std::uint64_t number = next_number_++;
  const bool write_zeros = (syncs_ - syncs_before_) * kZeroBelow > offset_;
  preparing_.start([this, number, size = size, write_zeros]() -> Result<void> {
    TRY_LET(made, make_segment(number, size, write_zeros));
    prepared_ = std::move(made);
    return {};
  });
  if (auto outcome = preparing_.poll()) return take_prepared(*std::move(outcome));
  return {};
}

Result<void> Log::take_prepared(Result<void> outcome) {
  if (!outcome) return outcome;
  spare_ = std::move(prepared_);
  names_++;
  // What was read once is in the system's cache: a write there need not find memory, nor map the file's blocks.
  if (files_.threads() && !spare_->reused) {
    warming_ = true;
    preparing_.then([this, file = spare_->file, size = spare_->size] {
      std::string piece(kWarmPiece, '\0');
      for (std::uint64_t at = 0; at < size && warming_; at += piece.size()) {
        if (!file->read_at(at, piece.data(), piece.size())) return;
        std::this_thread::sleep_for(kWarmRest);
      }
    });
  }
  return {};
}

Result<void> Log::begin_segment(std::size_t record_size, bool small) {
  TRY(flush());
  if (auto outcome = preparing_.wait()) TRY(take_prepared(*std::move(outcome)));
  Segment segment;
  if (spare_ && spare_->size < kSegmentHeaderSize + record_size) {
    // Too small for this record: it gives way.
    const std::uint64_t number = spare_->number;
    spare_.reset();
    TRY(files_.remove(path_of(number)));
    names_++;
  }
  if (spare_) {
    segment = std::move(*spare_);
    spare_.reset();
    reused_ += segment.reused;
  } else {
    auto size = affordable_size(record_size, small);
    if (!size && !kept_.empty()) {
      TRY(let_go_kept());
      size = affordable_size(record_size, small);
    }
    if (!size) return std::move(size).error();
    TRY_LET(made, make_segment(next_number_++, *size, false));
    segment = std::move(made);
    names_++;
  }
  segment.begin = position_;
  salt_ = segment_salt(store_, segment.number);
  const std::string header = encode_segment_header(
      {.store = store_, .number = segment.number, .begin = position_, .needed_from = needed_from_, .size = segment.size,
       .reused = segment.reused});
  segments_.push_back(std::move(segment));
  TRY(make_space(header.size()));
  std::memcpy(pending_.get(), header.data(), header.size());
  pending_size_ = header.size();
  pending_offset_ = 0;
  offset_ = header.size();
  set_unasked();
  syncs_before_ = syncs_;
  refused_size_ = 0;
  return {};
}

Result<void> Log::flush() {
  if (failed_) return failure_;
  if (pending_size_ == 0) return {};
  if constexpr (base::kMutant == base::Mutant::write_late) {
    static thread_local Position seen = 0;
    static thread_local unsigned rounds = 0;  // that brought something
    rounds += std::exchange(seen, position_) != position_;
    if (rounds % 2 == 1 && pending_size_ < kFlushAt) return {};
  }
  const Segment& segment = segments_.back();
  std::size_t size = pending_size_;
  if (segment.reused) {
    const std::size_t zeros = std::min<std::uint64_t>(kEndZeros, segment.size - std::min(segment.size, pending_offset_ + size));
    std::memset(pending_.get() + size, 0, zeros);
    size += zeros;
  }
  if (auto wrote = segment.file->write_at(pending_offset_, Bytes(pending_.get(), size)); !wrote) {
    fail_with(wrote.error());
    return wrote;
  }
  flushes_++;
  pending_offset_ += pending_size_;
  pending_size_ = 0;
  if (pending_capacity_ > 4 * kFlushAt) {
    pending_.reset();
    pending_capacity_ = 0;
  }
  return {};
}

Result<std::unique_ptr<SyncJob>> Log::begin_sync(Syncing& what) {
  TRY(flush());
  // All that is not yet known to be durable, also what another unfinished job is about.
  std::vector<std::shared_ptr<base::File>> unsynced;
  for (std::size_t i = 0; i < segments_.size(); i++) {
    const Position end = i + 1 < segments_.size() ? segments_[i + 1].begin : position_;
    if (end > durable_ || i + 1 == segments_.size()) unsynced.push_back(segments_[i].file);
  }
  what = {position_, names_};
  return std::unique_ptr<SyncJob>(new Job(names_ != names_durable_ ? &files_ : nullptr, folder_, std::move(unsynced)));
}

void Log::end_sync(const Syncing& what, const Result<void>& outcome) {
  if (!outcome) return fail_with(outcome.error());
  durable_ = std::max(durable_, what.position);
  names_durable_ = std::max(names_durable_, what.names);
  syncs_++;
}

void Log::expect_sync_now() {
  if (!files_.threads() || failed_) return;
  const Position from = std::max(expected_until_, durable_);
  expected_until_ = position_;
  std::vector<std::shared_ptr<base::File>> written;
  for (std::size_t i = 0; i < segments_.size(); i++)
    if ((i + 1 < segments_.size() ? segments_[i + 1].begin : position_) > from) written.push_back(segments_[i].file);
  preparing_.then([files = std::move(written)] {
    for (const auto& file : files) file->expect_sync();
  });
}

Result<void> Log::sync() {
  Syncing what;
  TRY_LET(job, begin_sync(what));
  auto outcome = job->run();
  end_sync(what, outcome);
  return outcome;
}

Result<void> Log::rotate() {
  if (segments_.empty() || offset_ <= kSegmentHeaderSize) return {};
  return begin_segment(0, true);
}

Result<bool> Log::trim(Position needed) {
  if (segments_.size() < 2 || segments_[1].begin > needed || needed <= trimmed_to_) return false;
  RecordFields fields;
  fields.type = RecordType::trim;
  fields.version = needed;
  const std::size_t size = record_size({}, {}, 0);
  TRY_LET(to, room(size));
  encode_record(to, size, fields, salt_, offset_, position_, durable_);
  commit(size);
  TRY(flush());
  trimmed_to_ = needed_from_ = needed;
  trim_durable_at_ = position_;
  return true;
}

Result<bool> Log::drop_trimmed(bool keep) {
  if (!can_drop() || durable_ < trim_durable_at_) return false;
  Segment& oldest = segments_.front();
  if (keep && worth_keeping(oldest)) {
    TRY(files_.rename(path_of(oldest.number), kept_path(oldest.number)));
    kept_.push_back(std::move(oldest));
  } else {
    TRY(files_.remove(path_of(oldest.number)));
    // The file is gone when it is closed, and that takes a large one some milliseconds.
    preparing_.then([file = std::move(oldest.file)]() mutable { file.reset(); });
  }
  segments_.pop_front();
  return can_drop();
}

void Log::close() {
  warming_ = false;
  (void)let_go_kept().has_value();
  if (failed_) return;
  if (!dirty() && !marked_ && !segments_.empty()) {
    const std::size_t size = record_size({}, {}, 0);
    if (offset_ + size <= segments_.back().size) {
      if (auto to = room(size)) {
        RecordFields fields;
        fields.type = RecordType::mark;
        encode_record(*to, size, fields, salt_, offset_, position_, durable_);
        commit(size);
      }
    }
  }
  (void)flush().has_value();
}

std::uint64_t Log::bytes() const {
  std::uint64_t sum = spare_ ? spare_->size : 0;
  for (const Segment& segment : segments_) sum += segment.size;
  return sum;
}

std::uint64_t Log::largest_segment(std::size_t record_size) const {
  std::uint64_t largest = std::max(next_size(record_size), spare_ ? spare_->size : 0);
  for (const Segment& segment : segments_) largest = std::max(largest, segment.size);
  return largest;
}

std::uint64_t Log::bytes_ahead(std::size_t record_size) const {
  std::uint64_t sum = segments_.empty() ? 0 : offset_;
  for (std::size_t i = 0; i + 1 < segments_.size(); i++) sum += segments_[i].size;
  return sum + 2 * largest_segment(record_size);
}

std::uint64_t Log::kept_bytes() const {
  std::uint64_t sum = 0;
  for (const Segment& segment : kept_) sum += segment.size;
  return sum;
}

}  // namespace novoht::core

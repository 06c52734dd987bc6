#include "novoht/core/log.h"

#include <algorithm>
#include <bit>

namespace novoht::core {
namespace {
constexpr std::uint64_t kFirstSegment = std::uint64_t{1} << 20;
constexpr std::uint64_t kGrowTo = std::uint64_t{8} << 20;  // segments double up to here whatever the tables hold
constexpr std::uint64_t kSlice = std::uint64_t{1} << 20;   // of zeros written at a time while a segment is prepared
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
  spare_wanted_ = spare_ ? spare_->size : 0;
  next_number_ = state.next_number;
  offset_ = pending_offset_ = state.offset;
  position_ = durable_ = state.position;
  needed_from_ = begin();
  marked_ = state.ends_with_mark;
  if (!segments_.empty()) salt_ = segment_salt(store_, segments_.back().number);
}

void Log::fail_with(base::Error error) {
  if (failed_) return;
  failed_ = true;
  failure_ = base::add_context("the store only reads since a write failed", std::move(error));
}

Result<char*> Log::room_slowly(std::size_t size) {
  if (failed_) return failure_;
  if (pending_size_ >= kFlushAt) TRY(flush());
  if (segments_.empty() || offset_ + size > segments_.back().size) TRY(begin_segment(size));
  TRY(make_space(size));
  return pending_.get() + pending_size_;
}

Result<void> Log::make_space(std::size_t size) {
  if (pending_size_ + size <= pending_capacity_) return {};
  const std::size_t capacity = std::max<std::size_t>(std::bit_ceil(pending_size_ + size), 4096);
  auto larger = std::make_unique_for_overwrite<char[]>(capacity);
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

Result<Segment> Log::make_segment(std::uint64_t first_size) {
  Segment segment;
  segment.number = next_number_;
  const std::string path = path_of(segment.number);
  TRY_LET(file, files_.open(path, base::OpenMode::create_new));
  if (auto reserved = file->reserve(first_size); !reserved) {
    file.reset();
    (void)files_.remove(path).has_value();
    return std::move(reserved).error();
  }
  next_number_++;
  segment.size = first_size;
  segment.file = std::move(file);
  names_changed_ = true;
  return segment;
}

Result<void> Log::begin_segment(std::size_t record_size, bool small) {
  TRY(flush());
  if (spare_) {
    const std::uint64_t least = kSegmentHeaderSize + record_size;
    // One not quite ready is finished now, when that is all that is missing; one too small gives way.
    if (spare_->size < least && spare_wanted_ >= least) {
      TRY(spare_->file->reserve(spare_wanted_));
      spare_->size = spare_wanted_;
    }
    if (spare_->size < least) {
      const std::uint64_t number = spare_->number;
      spare_.reset();
      TRY(files_.remove(path_of(number)));
      names_changed_ = true;
    }
  }
  Segment segment;
  if (spare_) {
    segment = std::move(*spare_);
    spare_.reset();
  } else {
    TRY_LET(made, make_segment(next_size(record_size, small)));
    segment = std::move(made);
  }
  segment.begin = position_;
  salt_ = segment_salt(store_, segment.number);
  const std::string header = encode_segment_header(
      {.store = store_, .number = segment.number, .begin = position_, .needed_from = needed_from_, .size = segment.size});
  segments_.push_back(std::move(segment));
  TRY(make_space(header.size()));
  std::memcpy(pending_.get(), header.data(), header.size());
  pending_size_ = header.size();
  pending_offset_ = 0;
  offset_ = header.size();
  return {};
}

Result<void> Log::flush() {
  if (failed_) return failure_;
  if (pending_size_ == 0) return {};
  if (auto wrote = segments_.back().file->write_at(pending_offset_, Bytes(pending_.get(), pending_size_)); !wrote) {
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

Result<std::unique_ptr<SyncJob>> Log::begin_sync() {
  TRY(flush());
  std::vector<std::shared_ptr<base::File>> unsynced;
  for (std::size_t i = 0; i < segments_.size(); i++) {
    const Position end = i + 1 < segments_.size() ? segments_[i + 1].begin : position_;
    if (end > durable_ || i + 1 == segments_.size()) unsynced.push_back(segments_[i].file);
  }
  syncing_.push_back(position_);
  auto job = std::make_unique<Job>(names_changed_ ? &files_ : nullptr, folder_, std::move(unsynced));
  names_changed_ = false;
  return std::unique_ptr<SyncJob>(std::move(job));
}

void Log::finish_sync(const Result<void>& outcome) {
  CHECK(!syncing_.empty(), "finish_sync() without begin_sync()");
  if (outcome) {
    durable_ = std::max(durable_, syncing_.front());
    syncs_++;
  } else {
    fail_with(outcome.error());
  }
  syncing_.pop_front();
}

Result<void> Log::sync() {
  TRY_LET(job, begin_sync());
  auto outcome = job->run();
  finish_sync(outcome);
  return outcome;
}

bool Log::wants_spare() const {
  if (failed_ || segments_.empty()) return false;
  if (spare_) return spare_->size < spare_wanted_;
  return offset_ > segments_.back().size / 2;
}

Result<bool> Log::prepare() {
  if (!wants_spare()) return false;
  if (!spare_) {
    const std::uint64_t wanted = next_size(0);
    TRY_LET(made, make_segment(std::min(wanted, kSlice)));
    spare_ = std::move(made);
    spare_wanted_ = wanted;
  } else {
    const std::uint64_t size = std::min(spare_wanted_, spare_->size + kSlice);
    TRY(spare_->file->reserve(size));
    spare_->size = size;
  }
  // Zeros still on their way to the disk would slow down the first syncs of the new segment. Nobody waits for these when
  // nobody syncs.
  if (syncs_ > 0) {
    if (auto synced = spare_->file->sync(); !synced) {
      fail_with(synced.error());
      return std::move(synced).error();
    }
  }
  return wants_spare();
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

Result<bool> Log::drop_trimmed() {
  if (segments_.size() < 2 || segments_[1].begin > trimmed_to_) return false;
  if (durable_ < trim_durable_at_) TRY(sync());
  TRY(files_.remove(path_of(segments_.front().number)));
  segments_.pop_front();
  return segments_.size() >= 2 && segments_[1].begin <= trimmed_to_;
}

void Log::close() {
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

}  // namespace novoht::core

#include "novoht/core/recovery.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

#include "novoht/core/file_bytes.h"
#include "novoht/core/read_ahead.h"
#include "novoht/core/table.h"

namespace novoht::core {
namespace {

constexpr std::size_t kBatch = 512;         // records read ahead together
constexpr std::size_t kBatchesAhead = 16;
constexpr std::size_t kPrepare = 24, kApproach = 12;  // records before one is taken

// Whether a record may begin with these bytes, as far as can be seen without its checksum.
bool may_be_record(Bytes bytes) {
  const auto size = base::load<std::uint32_t>(bytes.data() + 8);
  const auto type = static_cast<std::uint8_t>(bytes[28]), flags = static_cast<std::uint8_t>(bytes[29]);
  return size >= kRecordHeaderSize && size <= bytes.size() && type >= 1 && type <= 5 && flags <= (kHasEpoch | kHasNote);
}

constexpr std::uint64_t kPiece = std::uint64_t{1} << 20;  // of a segment, read at once

// What lies where the log does not go on.
struct Beyond {
  Position durable = 0;    // the furthest position that a good record says was durable
  std::uint64_t size = 0;  // up to where good records lie
};
// `bytes` are those of the segment from `offset` on.
Beyond look_for_records(Bytes bytes, std::uint64_t offset, std::uint64_t salt, Position begin) {
  Beyond beyond;
  for (std::uint64_t at = 0; at + kRecordHeaderSize <= bytes.size();) {
    // Zeros and the bytes of an older segment, of which there are many, are not worth a closer look.
    if (!may_be_record(bytes.substr(at))) {
      at += 8;
      continue;
    }
    const auto record = parse_record_at(bytes.substr(at), offset + at, salt, begin + (offset + at - kSegmentHeaderSize));
    if (record) {
      beyond.durable = std::max(beyond.durable, record->durable);
      if (record->type == RecordType::trim) beyond.durable = std::max(beyond.durable, record->version);
      beyond.size = at + record->size;
    }
    at += record ? record->size : 8;
  }
  return beyond;
}

// How many bytes there are up to the last that is not zero.
std::uint64_t count_nonzero(Bytes bytes) {
  std::uint64_t end = bytes.size();
  while (end >= 8 && base::load<std::uint64_t>(bytes.data() + end - 8) == 0) end -= 8;
  while (end > 0 && bytes[end - 1] == '\0') end--;
  return end;
}

struct Decoded {
  Record record;
  std::uint64_t offset;
  std::uint64_t hash;           // of the key, where there is one change
  std::optional<Change> change;  // that one, if good
};
// Some records of a segment as they follow each other; the last batch of each also says how it ends.
struct Batch {
  std::uint64_t number = 0;
  std::string path;
  SegmentHeader header;
  HeaderState state = HeaderState::bad;
  std::vector<std::shared_ptr<char[]>> hold;  // what the records point into
  std::vector<Decoded> records;   // only of a segment whose header is good
  std::optional<base::Error> error;
  bool last = false;
  // With the last one:
  std::uint64_t size = 0;        // of the segment
  std::uint64_t end_offset = 0;  // where no record follows, ...
  std::string end_reason;        // ... why, ...
  Position evidence = 0;         // ... how far what lies beyond says that the log was synced, ...
  std::uint64_t beyond = 0;      // ... and how much of that was written for this segment, as far as that can be told
  std::string bad;               // all of a segment whose header is not good, or an older segment's
  bool older = false;            // the header is that of what the file was before
};

// Reads segments one after the other. One thread.
class Decoder {
 public:
  Decoder(base::FileSystem& files, std::string folder, std::uint64_t store, std::vector<std::uint64_t> numbers)
      : files_(files), folder_(std::move(folder)), store_(store), numbers_(std::move(numbers)) {}

  bool next(Batch& batch) {
    batch.records.clear();
    batch.error.reset();
    batch.last = false;
    batch.hold.clear();
    batch.bad.clear();
    if (segment_ == nullptr && index_ == numbers_.size()) return false;
    if (auto decoded = decode(batch); !decoded) {
      batch.error = std::move(decoded).error();
      segment_.reset();
      index_ = numbers_.size();
    }
    return true;
  }

 private:
  Result<void> decode(Batch& batch) {
    if (segment_ == nullptr) TRY(begin());
    batch.number = number_;
    batch.path = path_;
    batch.header = header_;
    batch.state = state_;
    batch.older = state_ == HeaderState::good && header_.store == store_ && header_.number < number_;
    if (state_ != HeaderState::good || batch.older) {
      TRY_LET(whole, segment_->read(0, segment_->size()));
      batch.bad = whole.bytes;
      return end(batch);
    }
    if (header_.store != store_ || header_.number != number_) return end(batch);
    batch.hold.push_back(piece_.hold);
    while (batch.records.size() < kBatch) {
      const Bytes here = piece_.bytes.substr(std::min(at_ - piece_.offset, std::uint64_t{piece_.bytes.size()}));
      const auto record = parse_record_at(here, at_, salt_, header_.begin + (at_ - kSegmentHeaderSize), &batch.end_reason);
      // It may go on beyond this piece.
      const std::uint64_t size = here.size() < kRecordHeaderSize ? kRecordHeaderSize : padded(base::load<std::uint32_t>(here.data() + 8));
      if (!record && size > here.size() && piece_.end() < segment_->size()) {
        TRY_LET(next, segment_->read(at_, std::max(kPiece, size)));
        piece_ = std::move(next);
        batch.hold.push_back(piece_.hold);
        continue;
      }
      if (!record) {
        TRY(look_beyond(batch));
        return end(batch);
      }
      Decoded& next = batch.records.emplace_back(Decoded{*record, at_, 0, std::nullopt});
      at_ += record->size;
      if (record->type != RecordType::changes || record->change_count != 1) continue;
      ChangeReader in(record->changes, 1);
      next.change = in.next();
      if (!next.change) continue;
      next.hash = Table::hash(next.change->key);
      if (in.next() || !in.ok()) next.change.reset();  // not to be believed: who takes the record says so
    }
    return {};
  }

  Result<void> end(Batch& batch) {
    batch.last = true;
    batch.size = segment_->size();
    batch.end_offset = at_;
    segment_.reset();
    piece_ = {};
    return {};
  }

  // Zeros, mostly: what is looked at as a whole begins with the first piece that holds something else.
  Result<void> look_beyond(Batch& batch) {
    batch.evidence = 0;
    batch.beyond = 0;
    std::uint64_t at = at_;
    while (at < segment_->size()) {
      TRY_LET(piece, segment_->read(at, kPiece));
      if (count_nonzero(piece.bytes) > 0) break;
      if (piece.bytes.empty()) return {};
      at += piece.bytes.size() / 8 * 8;
      if (piece.bytes.size() < 8) return {};
    }
    TRY_LET(rest, segment_->read(at, segment_->size() - at));
    const Beyond beyond = look_for_records(rest.bytes, at, salt_, header_.begin);
    batch.evidence = beyond.durable;
    // An older segment's bytes are no torn tail, but they begin behind some zeros: what lies where those should be may have
    // been a record.
    const std::uint64_t zeros = at_ + kEndZeros > at ? at_ + kEndZeros - at : 0;
    const std::uint64_t count =
        header_.reused ? std::max(beyond.size, count_nonzero(Bytes(rest.bytes).substr(0, zeros))) : count_nonzero(rest.bytes);
    if (count > 0) batch.beyond = at - at_ + count;
    return {};
  }

  Result<void> begin() {
    number_ = numbers_[index_++];
    path_ = folder_ + "/" + segment_name(number_);
    salt_ = segment_salt(store_, number_);
    at_ = kSegmentHeaderSize;
    header_ = {};
    TRY_LET(segment, PieceReader::open(files_, path_, pool_));
    TRY_LET(piece, segment->read(0, kPiece));
    TRY_LET(state, parse_segment_header(piece.bytes, path_, header_));
    state_ = state;
    piece_ = std::move(piece);
    segment_ = std::move(segment);
    return {};
  }

  base::FileSystem& files_;
  const std::string folder_;
  const std::uint64_t store_;
  const std::vector<std::uint64_t> numbers_;
  PiecePool pool_;
  std::size_t index_ = 0;
  std::unique_ptr<PieceReader> segment_;
  Piece piece_;
  std::uint64_t number_ = 0, salt_ = 0, at_ = 0;
  std::string path_;
  SegmentHeader header_;
  HeaderState state_ = HeaderState::bad;
};

// Syncs the segments on a thread of its own while they are read: what a killed process left in the system's cache has to
// reach the disk before the store is written on, and that takes as long as reading it.
class EarlySync {
 public:
  EarlySync(base::FileSystem& files, std::vector<std::string> paths) {
    try {
      thread_ = std::thread([this, &files, all = std::move(paths)] {
        for (const std::string& path : all) {
          auto file = stopped_ ? base::Result<std::unique_ptr<base::File>>(nullptr) : files.open(path, base::OpenMode::read);
          if (!file) outcome_ = std::move(file).error();
          else if (*file != nullptr) outcome_ = (*file)->sync();
          if (!outcome_) return;
        }
      });
    } catch (const std::system_error&) {
      // No thread to be had: then mend_log() does it alone.
    }
  }
  ~EarlySync() {
    stopped_ = true;
    if (thread_.joinable()) thread_.join();
  }
  EarlySync(const EarlySync&) = delete;
  EarlySync& operator=(const EarlySync&) = delete;
  Result<void> wait() {
    if (thread_.joinable()) thread_.join();
    return outcome_;
  }

 private:
  std::atomic<bool> stopped_ = false;
  Result<void> outcome_;  // the thread's, until it has ended
  std::thread thread_;
};

}  // namespace

Result<std::string> read_file(base::FileSystem& files, const std::string& path) {
  TRY_LET(file, files.open(path, base::OpenMode::read));
  TRY_LET(size, file->size());
  std::string bytes(size, '\0');
  TRY_LET(got, file->read_at(0, bytes.data(), bytes.size()));
  bytes.resize(got);
  return bytes;
}

Result<LogScan> scan_log(base::FileSystem& files, const std::string& folder, const std::vector<std::string>& names,
                         std::uint64_t store, Position durable, bool read_only, RecordSink& sink) {
  std::vector<std::uint64_t> numbers;
  for (const std::string& name : names)
    if (const auto number = segment_number(name)) numbers.push_back(*number);
  std::sort(numbers.begin(), numbers.end());

  LogScan scan;
  scan.state.store = store;
  scan.state.next_number = numbers.empty() ? 1 : numbers.back() + 1;
  Position end = 0;              // of the good records so far
  Position evidence = durable;   // the log was durable at least up to here
  Position needed_from = 0;      // some record says that nothing before is needed any more
  bool ended = false;
  std::string end_path = folder, end_reason = "no segment";
  std::uint64_t end_offset = 0;
  std::vector<std::string> unbegun;

  std::optional<EarlySync> syncing;
  if (files.threads() && !read_only && !numbers.empty()) {
    std::vector<std::string> paths;
    for (const std::uint64_t number : numbers) paths.push_back(folder + "/" + segment_name(number));
    syncing.emplace(files, std::move(paths));
  }
  Decoder decoder(files, folder, store, numbers);
  ReadAhead<Batch> batches(files.threads(), kBatchesAhead, [&decoder](Batch& batch) { return decoder.next(batch); });
  // Of the segment that is being read:
  bool fresh = true;                // nothing of it was looked at yet
  bool counts = false;              // it continues the log, and its records are taken
  Position recent = 0;              // what its records say about how far the log was synced

  for (Batch batch; batches.next(batch);) {
    if (batch.error) return *batch.error;
    const std::string& path = batch.path;
    const SegmentHeader& header = batch.header;
    if (fresh) {
      recent = 0;
      counts = false;
      if (batch.state == HeaderState::good && !batch.older && (header.store != store || header.number != batch.number))
        return base::fail(Code::corrupt, path, " offset 0: a segment of another store or place (store ", header.store,
                          " number ", header.number, "), expected store ", store, " number ", batch.number);
      if (batch.state == HeaderState::good && !batch.older) {
        const bool first = scan.state.segments.empty();
        needed_from = std::max(needed_from, header.needed_from);
        if (!ended && !first && header.begin != end) {
          ended = true;
          end_reason = "the log ends at position " + std::to_string(end) + ", and the next segment begins at " +
                       std::to_string(header.begin);
        }
        counts = !ended;
        if (counts && first) end = header.begin;
        // A spare older than a begun segment was given up.
        if (counts && scan.state.spare) {
          scan.drop.push_back(folder + "/" + segment_name(scan.state.spare->number));
          scan.state.spare.reset();
        }
      }
    }
    fresh = batch.last;

    for (std::size_t i = 0; i < batch.records.size(); i++) {
      const Decoded& next = batch.records[i];
      recent = std::max(recent, next.record.durable);
      if (next.record.type == RecordType::trim) recent = std::max(recent, next.record.version);
      if (!counts) continue;
      if (i == 0)
        for (std::size_t ahead = 0; ahead < std::min(kPrepare, batch.records.size()); ahead++)
          if (batch.records[ahead].record.change_count == 1) sink.prepare(batch.records[ahead].record, batch.records[ahead].hash);
      if (i + kPrepare < batch.records.size()) {
        const Decoded& far = batch.records[i + kPrepare];
        if (far.record.change_count == 1) sink.prepare(far.record, far.hash);
      }
      if (i + kApproach < batch.records.size()) {
        const Decoded& near = batch.records[i + kApproach];
        if (near.record.change_count == 1) sink.approach(near.record, near.hash);
      }
      if (next.record.type == RecordType::trim) needed_from = std::max(needed_from, next.record.version);
      TRY(sink.take(next.record, next.change ? &*next.change : nullptr, next.hash, RecordPlace{path, next.offset, end}));
      end += next.record.size;
      scan.state.ends_with_mark = next.record.type == RecordType::mark;
      scan.records++;
      scan.bytes += next.record.size;
    }
    if (!batch.last) continue;

    if (batch.state != HeaderState::good || batch.older) {
      // The header is written together with the first record, so a good record in its sector means that it was good once.
      const std::uint64_t salt = segment_salt(store, batch.number);
      if (parse_record(batch.bad, kSegmentHeaderSize, salt, end))
        return base::fail(Code::corrupt, path, " offset 0: the segment's header is damaged");
      const Bytes records = Bytes(batch.bad).substr(std::min(kSegmentHeaderSize, batch.bad.size()));
      const Beyond beyond = look_for_records(records, kSegmentHeaderSize, salt, end);
      if (batch.older ? beyond.size == 0 : batch.state == HeaderState::blank && count_nonzero(batch.bad) == 0) {
        unbegun.push_back(path);
        if (!ended)
          scan.state.spare =
              Segment{.number = batch.number, .begin = 0, .size = batch.size, .reused = batch.older, .file = nullptr};
        continue;
      }
      evidence = std::max(evidence, beyond.durable);
      if (!ended) {
        ended = true;
        end_path = path;
        end_offset = 0;
        end_reason = "the segment's header is damaged";
      }
      scan.torn = true;
      scan.torn_bytes += batch.older ? beyond.size : count_nonzero(batch.bad);
      scan.drop.push_back(path);
      continue;
    }
    evidence = std::max({evidence, recent, batch.evidence});
    if (!counts) {
      evidence = std::max(evidence, header.needed_from);
      scan.torn = true;
      scan.torn_bytes += batch.end_offset + batch.beyond;
      scan.drop.push_back(path);
      continue;
    }
    scan.state.segments.push_back(
        Segment{.number = batch.number, .begin = header.begin, .size = batch.size, .reused = header.reused, .file = nullptr});
    scan.state.offset = batch.end_offset;
    end_path = path;
    end_offset = batch.end_offset;
    end_reason = batch.end_reason;
    scan.torn_bytes += batch.beyond;
    if (batch.beyond > 0) scan.torn = true;
  }

  if (!scan.state.segments.empty() && scan.state.segments.front().begin > needed_from)
    return base::fail(Code::corrupt, folder, "/", segment_name(scan.state.segments.front().number), ": begins at position ",
                      scan.state.segments.front().begin, ", but the log is needed from ", needed_from,
                      ": an older segment is missing");
  if (evidence > end)
    return base::fail(Code::corrupt, end_path, " offset ", end_offset, ": ", end_reason, ", but the log was synced ",
                      evidence - end, " bytes further");
  scan.state.position = end;
  if (syncing) TRY(syncing->wait());

  if (!read_only) {
    for (Segment& segment : scan.state.segments) {
      TRY_LET(file, files.open(folder + "/" + segment_name(segment.number), base::OpenMode::read_write));
      segment.file = std::move(file);
    }
    if (scan.state.spare) {
      TRY_LET(file, files.open(folder + "/" + segment_name(scan.state.spare->number), base::OpenMode::read_write));
      scan.state.spare->file = std::move(file);
      std::erase(unbegun, folder + "/" + segment_name(scan.state.spare->number));
    }
  }
  for (std::string& path : unbegun) {
    if (std::find(scan.drop.begin(), scan.drop.end(), path) == scan.drop.end()) scan.drop.push_back(std::move(path));
  }
  return scan;
}

Result<void> mend_log(base::FileSystem& files, const std::string& folder, LogScan& scan) {
  // From the back: what is left after a crash in between is still a log with a torn tail.
  std::sort(scan.drop.begin(), scan.drop.end());
  for (auto path = scan.drop.rbegin(); path != scan.drop.rend(); ++path) TRY(files.remove(*path));
  if (scan.state.segments.empty()) return scan.drop.empty() ? Result<void>{} : files.sync_folder(folder);
  Segment& last = scan.state.segments.back();
  if (scan.torn) {
    // Whole records may lie beyond the cut; none may ever seem to follow a new one.
    static const std::string zeros(std::size_t{256} << 10, '\0');
    for (std::uint64_t at = scan.state.offset; at < last.size; at += zeros.size())
      TRY(last.file->write_at(at, Bytes(zeros).substr(0, std::min<std::uint64_t>(zeros.size(), last.size - at))));
  }
  // Everything that was read is from now on taken for durable.
  for (const Segment& segment : scan.state.segments) TRY(segment.file->sync());
  return files.sync_folder(folder);
}

}  // namespace novoht::core

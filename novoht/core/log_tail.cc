#include "novoht/core/log_tail.h"

#include <algorithm>

namespace novoht::core {
namespace {

constexpr std::size_t kReadSize = std::size_t{256} << 10;

}  // namespace

// Makes buffer_ hold `size` bytes from `offset` on.
Result<void> TableTail::fill(const Segment& segment, std::uint64_t offset, std::size_t size) {
  if (buffer_segment_ == segment.number && offset >= buffer_begin_ && offset + size <= buffer_begin_ + buffer_.size()) return {};
  // Never beyond what has been written: a record that is still to come would be remembered as zeros.
  const std::uint64_t written = kSegmentHeaderSize + (std::min(host_.log().written(), segment.begin + segment.size) - segment.begin);
  buffer_.resize(std::max(size, std::min<std::size_t>(kReadSize, written > offset ? written - offset : 0)));
  TRY_LET(got, segment.file->read_at(offset, buffer_.data(), buffer_.size()));
  buffer_.resize(got);
  buffer_segment_ = segment.number;
  buffer_begin_ = offset;
  if (got < size)
    return base::fail(Code::corrupt, segment_name(segment.number), " offset ", offset, ": the file ends, expected ", size, " bytes more");
  return {};
}

// The record at at_. Only a record of this table is checked whole: of the others the header says how long they are.
Result<Record> TableTail::read_record(const Segment& segment) {
  const std::uint64_t offset = kSegmentHeaderSize + (at_.position() - segment.begin);
  TRY(fill(segment, offset, kRecordHeaderSize));
  const std::uint64_t salt = segment_salt(host_.store_id(), segment.number);
  const auto bad = [&](const std::string& why) {
    return base::fail(Code::corrupt, segment_name(segment.number), " offset ", offset, ": ", why);
  };
  const auto head = parse_record_header(Bytes(buffer_).substr(offset - buffer_begin_), offset, salt);
  if (!head) return bad("no record begins here");
  if (head->table != table_ || head->type != RecordType::changes) return *head;
  TRY(fill(segment, offset, head->size));
  std::string why;
  const auto record = parse_record_at(Bytes(buffer_).substr(offset - buffer_begin_), offset, salt, at_.position(), &why);
  if (!record) return bad(why);
  return *record;
}

Result<void> TableTail::hand_on(const Record& record, const std::function<Result<void>(const LogRecord&)>& take) {
  changes_.clear();
  ChangeReader in(record.changes, record.change_count);
  while (const auto change = in.next()) changes_.push_back(*change);
  if (!in.ok())
    return base::fail(Code::corrupt, "table ", static_cast<std::uint32_t>(table_), " version ", record.version,
                      ": malformed changes");
  return take({.version = record.version, .epoch = record.epoch, .note = record.note, .changes = changes_});
}

Result<bool> TableTail::next_until(Version last, std::size_t max_bytes, const std::function<Result<void>(const LogRecord&)>& take) {
  const auto number = static_cast<std::uint32_t>(table_);
  const Version newest = store_.version(table_);
  if (host_.birth_of(table_) != birth_) return base::fail(Code::conflict, "table ", number, " was dropped or replaced");
  const Position end = at_.position() + std::max<std::size_t>(max_bytes, 1);
  while (reached_ < last) {
    const Position written = host_.log().written();
    if (at_.position() >= written) {
      // Everything flushed was seen: a record that is missing now lies in a checkpoint.
      if (written == host_.log().position() && reached_ < newest)
        return base::fail(Code::not_found, "table ", number, " version ", reached_ + 1, " is no longer in the log");
      return false;
    }
    if (at_.position() >= end) return true;
    const auto& segments = host_.log().segments();
    auto after = std::upper_bound(segments.begin(), segments.end(), at_.position(),
                                  [](Position position, const Segment& segment) { return position < segment.begin; });
    CHECK(after != segments.begin(), "the log dropped what is held");
    const Segment& segment = *std::prev(after);
    TRY_LET(record, read_record(segment));
    const Position next = at_.position() + record.size;
    if (record.table == table_ && record.type == RecordType::changes && record.version > reached_) {
      if (record.version != reached_ + 1)
        return base::fail(Code::not_found, "table ", number, " version ", reached_ + 1, " is no longer in the log, which has ",
                          record.version);
      TRY(hand_on(record, take));
      reached_ = record.version;
    }
    at_.move(next);
  }
  return false;
}

}  // namespace novoht::core

#include "novoht/core/recovery.h"

#include <algorithm>
#include <array>

namespace novoht::core {
namespace {

constexpr std::size_t kAhead = 16;  // records checked before the first of them is handed on

// The furthest position that a good record at or after `offset` says was durable.
Position durable_after(Bytes segment, std::uint64_t offset, std::uint64_t salt, Position begin) {
  Position durable = 0;
  for (std::uint64_t at = std::max<std::uint64_t>(offset, kSegmentHeaderSize); at + kRecordHeaderSize <= segment.size();) {
    // Zeros, of which there are many, are not worth a closer look.
    if (base::load<std::uint64_t>(segment.data() + at) == 0) {
      at += 8;
      continue;
    }
    const auto record = parse_record(segment, at, salt, begin + (at - kSegmentHeaderSize));
    if (record) {
      durable = std::max(durable, record->durable);
      if (record->type == RecordType::trim) durable = std::max(durable, record->version);
    }
    at += record ? record->size : 8;
  }
  return durable;
}

std::uint64_t count_nonzero_end(Bytes bytes, std::uint64_t offset) {
  std::uint64_t end = bytes.size();
  while (end > offset && bytes[end - 1] == '\0') end--;
  return end > offset ? end - offset : 0;
}

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

  for (const std::uint64_t number : numbers) {
    const std::string path = folder + "/" + segment_name(number);
    TRY_LET(bytes, read_file(files, path));
    SegmentHeader header;
    TRY_LET(header_state, parse_segment_header(bytes, path, header));
    const std::uint64_t salt = segment_salt(store, number);
    const bool first = scan.state.segments.empty();
    if (header_state == HeaderState::good && (header.store != store || header.number != number))
      return base::fail(Code::corrupt, path, " offset 0: a segment of another store or place (store ", header.store,
                        " number ", header.number, "), expected store ", store, " number ", number);
    if (header_state == HeaderState::blank && count_nonzero_end(bytes, 0) == 0) {
      unbegun.push_back(path);
      if (!ended) {
        scan.state.spare = Segment{.number = number, .begin = 0, .size = bytes.size(), .file = nullptr};
      }
      continue;
    }
    if (header_state != HeaderState::good) {
      // The header is written together with the first record, so a good record in its sector means that it was good once.
      const Position begin = end;
      if (parse_record(bytes, kSegmentHeaderSize, salt, begin))
        return base::fail(Code::corrupt, path, " offset 0: the segment's header is damaged");
      evidence = std::max(evidence, durable_after(bytes, kSegmentHeaderSize, salt, begin));
      if (!ended) {
        ended = true;
        end_path = path;
        end_offset = 0;
        end_reason = "the segment's header is damaged";
      }
      scan.torn = true;
      scan.torn_bytes += count_nonzero_end(bytes, 0);
      scan.drop.push_back(path);
      continue;
    }
    needed_from = std::max(needed_from, header.needed_from);
    if (!ended && !first && header.begin != end) {
      ended = true;
      end_reason = "the log ends at position " + std::to_string(end) + ", and the next segment begins at " +
                   std::to_string(header.begin);
    }
    if (ended) {
      evidence = std::max({evidence, header.needed_from, durable_after(bytes, kSegmentHeaderSize, salt, header.begin)});
      scan.torn = true;
      scan.torn_bytes += count_nonzero_end(bytes, 0);
      scan.drop.push_back(path);
      continue;
    }
    if (first) end = header.begin;
    // A spare older than a begun segment was given up.
    if (scan.state.spare) {
      scan.drop.push_back(folder + "/" + segment_name(scan.state.spare->number));
      scan.state.spare.reset();
    }
    std::uint64_t at = kSegmentHeaderSize;
    // Some records are read ahead, so that the sink's memory is on its way while they are checked.
    struct Ahead {
      Record record;
      std::uint64_t offset;
      Position position;
    };
    std::array<Ahead, kAhead> ring;
    std::size_t read = 0, handed = 0;
    for (bool more = true; more || handed < read;) {
      while (more && read - handed < kAhead) {
        const auto record = parse_record(bytes, at, salt, end, &end_reason);
        more = record.has_value();
        if (!more) break;
        sink.prepare(*record);
        ring[read++ % kAhead] = {*record, at, end};
        at += record->size;
        end += record->size;
      }
      if (handed == read) break;
      const Ahead& next = ring[handed++ % kAhead];
      evidence = std::max(evidence, next.record.durable);
      if (next.record.type == RecordType::trim) needed_from = std::max(needed_from, next.record.version);
      TRY(sink.take(next.record, RecordPlace{path, next.offset, next.position}));
      scan.state.ends_with_mark = next.record.type == RecordType::mark;
      scan.records++;
      scan.bytes += next.record.size;
    }
    Segment segment{.number = number, .begin = header.begin, .size = bytes.size(), .file = nullptr};
    scan.state.segments.push_back(std::move(segment));
    scan.state.offset = at;
    end_path = path;
    end_offset = at;
    evidence = std::max(evidence, durable_after(bytes, at, salt, header.begin));
    const std::uint64_t beyond = count_nonzero_end(bytes, at);
    scan.torn_bytes += beyond;
    if (beyond > 0) scan.torn = true;
  }

  if (!scan.state.segments.empty() && scan.state.segments.front().begin > needed_from)
    return base::fail(Code::corrupt, folder, "/", segment_name(scan.state.segments.front().number), ": begins at position ",
                      scan.state.segments.front().begin, ", but the log is needed from ", needed_from,
                      ": an older segment is missing");
  if (evidence > end)
    return base::fail(Code::corrupt, end_path, " offset ", end_offset, ": ", end_reason, ", but the log was synced ",
                      evidence - end, " bytes further");
  scan.state.position = end;

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

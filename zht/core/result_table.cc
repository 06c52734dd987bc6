#include "zht/core/result_table.h"

#include <algorithm>

namespace zht::core {
namespace {

void encode_recorded(base::Writer& writer, const Recorded& recorded) {
  writer.u8(static_cast<std::uint8_t>(recorded.kind));
  writer.u8(recorded.present ? 1 : 0);
  writer.u64(recorded.size);
  writer.u32(recorded.fragment_count);
  writer.str(recorded.outcome ? Bytes(*recorded.outcome) : Bytes());
}

Recorded decode_recorded(base::Reader& reader, Version version) {
  Recorded recorded;
  recorded.kind = static_cast<OpKind>(reader.u8());
  recorded.present = reader.u8() != 0;
  recorded.version = version;
  recorded.size = reader.u64();
  recorded.fragment_count = reader.u32();
  if (const Bytes outcome = reader.str(); !outcome.empty()) recorded.outcome = std::make_unique<std::string>(outcome);
  return recorded;
}

}  // namespace

void encode_note(std::string& out, const Note& note) {
  base::Writer writer(out);
  writer.u64(note.client);
  writer.u64(note.sequence);
  writer.u64(note.floor);
  writer.u64(note.time_ms);
  encode_recorded(writer, note.recorded);
}

Result<Note> decode_note(Bytes bytes, Version version) {
  base::Reader reader(bytes);
  Note note;
  note.client = reader.u64();
  note.sequence = reader.u64();
  note.floor = reader.u64();
  note.time_ms = reader.u64();
  note.recorded = decode_recorded(reader, version);
  if (!reader.done()) return fail(Code::corrupt, "note of ", bytes.size(), " bytes is not a request's");
  return note;
}

ResultTable::Answer ResultTable::find(PartitionId partition, std::uint64_t client, std::uint64_t sequence, bool retry,
                                      std::uint64_t now_ms) const {
  if (last_ == nullptr || last_client_ != client) {
    const auto found = sessions_.find(client);
    if (found == sessions_.end()) {
      const bool may_be_forgotten = retry && session_start_ms(client) + kSessionLifeMs < now_ms;
      if (may_be_forgotten) return {Verdict::expired, nullptr};
      return {sessions_.size() < kMaxSessions && outcome_bytes_ < kMaxOutcomeBytes ? Verdict::fresh : Verdict::full, nullptr};
    }
    last_client_ = client;
    last_ = const_cast<Session*>(&found->second);
  }
  const Session& session = *last_;
  if (sequence <= session.floor) return {Verdict::expired, nullptr};
  if (sequence <= session.newest) {
    const auto at = std::lower_bound(session.entries.begin() + static_cast<std::ptrdiff_t>(session.head),
                                     session.entries.end(), sequence,
                                     [](const Entry& entry, std::uint64_t wanted) { return entry.sequence < wanted; });
    // A number used twice, for keys of different partitions, is none of our clients'; what became of it is unknown.
    if (at != session.entries.end() && at->sequence == sequence)
      return at->partition == partition ? Answer{Verdict::answered, &at->recorded} : Answer{Verdict::expired, nullptr};
  }
  const bool room = session.entries.size() - session.head < kMaxResults && outcome_bytes_ < kMaxOutcomeBytes;
  return {room ? Verdict::fresh : Verdict::full, nullptr};
}

void ResultTable::Session::mark(PartitionId partition) {
  const auto number = static_cast<std::uint32_t>(partition);
  if (partitions.size() <= number / 64) [[unlikely]]
    partitions.resize(number / 64 + 1);
  partitions[number / 64] |= std::uint64_t{1} << number % 64;
}

bool ResultTable::Session::marked(PartitionId partition) const {
  const auto number = static_cast<std::uint32_t>(partition);
  return number / 64 < partitions.size() && (partitions[number / 64] >> number % 64 & 1) != 0;
}

ResultTable::Session& ResultTable::session_of(std::uint64_t client) {
  if (last_ == nullptr || last_client_ != client) {
    last_ = &sessions_[client];
    last_client_ = client;
  }
  return *last_;
}

void ResultTable::clear(Recorded& recorded) {
  if (!recorded.outcome) return;
  outcome_bytes_ -= recorded.outcome->size();
  recorded.outcome.reset();
}

void ResultTable::raise(Session& session, std::uint64_t to) {
  if (to <= session.floor) return;
  session.floor = to;
  session.newest = std::max(session.newest, to);
  std::vector<Entry>& entries = session.entries;
  std::size_t& head = session.head;
  while (head < entries.size() && entries[head].sequence <= to) clear(entries[head++].recorded);
  if (head == entries.size()) {
    entries.clear();
    head = 0;
  } else if (head > 64 && head > entries.size() / 2) {
    entries.erase(entries.begin(), session.first());
    head = 0;
  }
}

void ResultTable::record(PartitionId partition, Note note) {
  Session& session = session_of(note.client);
  session.last_ms = std::max(session.last_ms, note.time_ms);
  session.mark(partition);
  raise(session, note.floor);
  if (note.sequence <= session.floor) return;
  if (note.recorded.outcome) outcome_bytes_ += note.recorded.outcome->size();
  if (session.newest < note.sequence) {
    session.newest = note.sequence;
    session.entries.push_back({note.sequence, partition, std::move(note.recorded)});
    return;
  }
  const auto at = std::lower_bound(session.first(), session.entries.end(), note.sequence,
                                   [](const Entry& entry, std::uint64_t wanted) { return entry.sequence < wanted; });
  if (at == session.entries.end() || at->sequence != note.sequence) {
    session.entries.insert(at, {note.sequence, partition, std::move(note.recorded)});
    return;
  }
  clear(at->recorded);
  at->partition = partition;
  at->recorded = std::move(note.recorded);
}

void ResultTable::forget(std::uint64_t client, std::uint64_t now_ms) {
  const auto found = sessions_.find(client);
  if (found == sessions_.end()) return;
  Session& session = found->second;
  raise(session, ~std::uint64_t{0});
  session.entries.shrink_to_fit();
  session.last_ms = now_ms - std::min(now_ms, kSessionLifeMs - kGoodbyeMs);
}

void ResultTable::forget_silent(std::uint64_t now_ms) {
  last_ = nullptr;
  for (auto one = sessions_.begin(); one != sessions_.end();) {
    if (one->second.last_ms + kSessionLifeMs >= now_ms) {
      ++one;
      continue;
    }
    for (Entry& entry : one->second.entries) clear(entry.recorded);
    one = sessions_.erase(one);
  }
}

void ResultTable::encode(PartitionId partition, std::string& out) const {
  base::Writer writer(out);
  const std::size_t at = out.size();
  std::uint32_t count = 0;
  writer.u32(0);
  for (const auto& [client, session] : sessions_) {
    if (!session.marked(partition)) continue;
    count++;
    writer.u64(client);
    writer.u64(session.floor);
    writer.u64(session.last_ms);
    const auto durable = [&](const Entry& entry) { return entry.partition == partition && !entry.recorded.refused; };
    const auto first = session.entries.begin() + static_cast<std::ptrdiff_t>(session.head);
    writer.u32(static_cast<std::uint32_t>(std::count_if(first, session.entries.end(), durable)));
    for (auto entry = first; entry != session.entries.end(); ++entry) {
      if (!durable(*entry)) continue;
      writer.u64(entry->sequence);
      writer.u64(entry->recorded.version);
      encode_recorded(writer, entry->recorded);
    }
  }
  base::store(out.data() + at, count);
}

Result<void> ResultTable::decode(PartitionId partition, Bytes in) {
  drop(partition);
  if (in.empty()) return {};
  base::Reader reader(in);
  const auto before = [](const Entry& a, const Entry& b) { return a.sequence < b.sequence; };
  for (std::uint32_t left = reader.u32(); left > 0 && reader.ok(); left--) {
    Session& session = session_of(reader.u64());
    session.mark(partition);
    const std::uint64_t floor = reader.u64();
    session.last_ms = std::max(session.last_ms, reader.u64());
    const std::size_t had = session.entries.size();
    for (std::uint32_t entries = reader.u32(); entries > 0 && reader.ok(); entries--) {
      const std::uint64_t sequence = reader.u64();
      const Version version = reader.u64();
      Entry entry{sequence, partition, decode_recorded(reader, version)};
      if (entry.recorded.outcome) outcome_bytes_ += entry.recorded.outcome->size();
      session.newest = std::max(session.newest, sequence);
      session.entries.push_back(std::move(entry));
    }
    const auto added = session.entries.begin() + static_cast<std::ptrdiff_t>(had);
    if (!std::is_sorted(added, session.entries.end(), before)) return fail(Code::corrupt, "result table: sequences out of order");
    std::inplace_merge(session.first(), added, session.entries.end(), before);
    raise(session, std::max(floor, session.floor));
    // Those of this partition that an already higher floor covers.
    const std::uint64_t known = session.floor;
    while (session.head < session.entries.size() && session.entries[session.head].sequence <= known)
      clear(session.entries[session.head++].recorded);
  }
  if (!reader.done()) return fail(Code::corrupt, "result table of ", in.size(), " bytes is cut short or too long");
  return {};
}

void ResultTable::drop(PartitionId partition) {
  last_ = nullptr;
  const auto number = static_cast<std::uint32_t>(partition);
  for (auto one = sessions_.begin(); one != sessions_.end();) {
    Session& session = one->second;
    if (session.marked(partition)) {
      session.partitions[number / 64] &= ~(std::uint64_t{1} << number % 64);
      session.entries.erase(session.entries.begin(), session.first());
      session.head = 0;
      std::erase_if(session.entries, [&](Entry& entry) {
        if (entry.partition != partition) return false;
        clear(entry.recorded);
        return true;
      });
    }
    const bool unused =
        std::all_of(session.partitions.begin(), session.partitions.end(), [](std::uint64_t bits) { return bits == 0; });
    one = unused ? sessions_.erase(one) : std::next(one);
  }
}

}  // namespace zht::core

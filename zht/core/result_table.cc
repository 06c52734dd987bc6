#include "zht/core/result_table.h"

#include <algorithm>

namespace zht::core {
namespace {

void encode_recorded(base::Writer& writer, const Recorded& recorded) {
  writer.u8(static_cast<std::uint8_t>(recorded.kind));
  writer.u8(recorded.present ? 1 : 0);
  writer.u64(recorded.size);
  writer.u32(recorded.fragment_count);
  writer.str(recorded.outcome);
}

Recorded decode_recorded(base::Reader& reader, Version version) {
  Recorded recorded;
  recorded.kind = static_cast<OpKind>(reader.u8());
  recorded.present = reader.u8() != 0;
  recorded.version = version;
  recorded.size = reader.u64();
  recorded.fragment_count = reader.u32();
  recorded.outcome = std::string(reader.str());
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

ResultTable::Answer ResultTable::find(std::uint64_t client, std::uint64_t sequence, bool retry,
                                      std::uint64_t now_ms) const {
  const auto found = sessions_.find(client);
  if (found == sessions_.end()) {
    const bool may_be_forgotten = retry && session_start_ms(client) + kSessionLifeMs < now_ms;
    return {may_be_forgotten ? Verdict::expired : Verdict::fresh, nullptr};
  }
  const Session& session = found->second;
  if (sequence <= session.floor) return {Verdict::expired, nullptr};
  if (session.head == session.entries.size() || session.entries.back().sequence < sequence) return {};
  const auto at = std::lower_bound(session.entries.begin() + static_cast<std::ptrdiff_t>(session.head),
                                   session.entries.end(), sequence,
                                   [](const Entry& entry, std::uint64_t wanted) { return entry.sequence < wanted; });
  if (at == session.entries.end() || at->sequence != sequence) return {};
  return {Verdict::answered, &at->recorded};
}

void ResultTable::Session::raise(std::uint64_t to) {
  if (to <= floor) return;
  floor = to;
  while (head < entries.size() && entries[head].sequence <= floor) entries[head++].recorded.outcome.clear();
  if (head == entries.size()) {
    entries.clear();
    head = 0;
  } else if (head > 64 && head > entries.size() / 2) {
    entries.erase(entries.begin(), entries.begin() + static_cast<std::ptrdiff_t>(head));
    head = 0;
  }
}

void ResultTable::record(const Note& note) {
  Session& session = sessions_[note.client];
  session.last_ms = std::max(session.last_ms, note.time_ms);
  session.raise(note.floor);
  if (note.sequence <= session.floor) return;
  if (session.entries.empty() || session.entries.back().sequence < note.sequence) {
    session.entries.push_back({note.sequence, note.recorded});
    return;
  }
  const auto at = std::lower_bound(session.entries.begin() + static_cast<std::ptrdiff_t>(session.head),
                                   session.entries.end(), note.sequence,
                                   [](const Entry& entry, std::uint64_t wanted) { return entry.sequence < wanted; });
  if (at != session.entries.end() && at->sequence == note.sequence) at->recorded = note.recorded;
  else session.entries.insert(at, {note.sequence, note.recorded});
}

void ResultTable::forget(std::uint64_t client) { sessions_.erase(client); }

void ResultTable::forget_silent(std::uint64_t now_ms) {
  std::erase_if(sessions_, [&](const auto& one) { return one.second.last_ms + kSessionLifeMs < now_ms; });
}

void ResultTable::encode(std::string& out) const {
  base::Writer writer(out);
  writer.u32(static_cast<std::uint32_t>(sessions_.size()));
  for (const auto& [client, session] : sessions_) {
    writer.u64(client);
    writer.u64(session.floor);
    writer.u64(session.last_ms);
    const auto durable = [](const Entry& entry) { return !entry.recorded.refused; };
    const auto first = session.entries.begin() + static_cast<std::ptrdiff_t>(session.head);
    writer.u32(static_cast<std::uint32_t>(std::count_if(first, session.entries.end(), durable)));
    for (auto entry = first; entry != session.entries.end(); ++entry) {
      if (!durable(*entry)) continue;
      writer.u64(entry->sequence);
      writer.u64(entry->recorded.version);
      encode_recorded(writer, entry->recorded);
    }
  }
}

Result<void> ResultTable::decode(Bytes in) {
  sessions_.clear();
  if (in.empty()) return {};
  base::Reader reader(in);
  for (std::uint32_t left = reader.u32(); left > 0 && reader.ok(); left--) {
    Session& session = sessions_[reader.u64()];
    session.floor = reader.u64();
    session.last_ms = reader.u64();
    for (std::uint32_t entries = reader.u32(); entries > 0 && reader.ok(); entries--) {
      const std::uint64_t sequence = reader.u64();
      const Version version = reader.u64();
      session.entries.push_back({sequence, decode_recorded(reader, version)});
    }
  }
  if (!reader.done()) return fail(Code::corrupt, "result table of ", in.size(), " bytes is cut short or too long");
  return {};
}

}  // namespace zht::core

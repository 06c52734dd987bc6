#include "zht/core/result_table.h"

#include <algorithm>
#include <bit>

namespace zht::core {
namespace {

void encode_recorded(base::Writer& writer, const Recorded& recorded) {
  writer.u8(static_cast<std::uint8_t>(recorded.kind));
  writer.u8(recorded.present ? 1 : 0);
  writer.u64(recorded.size);
  writer.u32(recorded.fragment_count);
  writer.str(recorded.outcome ? Bytes(*recorded.outcome) : Bytes());
}

constexpr std::uint64_t kEnded = ~std::uint64_t{0};  // the floor of who has said goodbye

// What is said of forgotten sessions has the form of a session of nobody, without results, as older readers take it:
//   floor 0   last number: an hour after the time before which sessions began that were forgotten
//   floor c   client c, named before, came after it may have been forgotten, with the sequence in the last number
constexpr std::uint64_t kOffsetMs = kSessionLife / std::chrono::milliseconds(1);
void encode_nobody(base::Writer& writer, std::uint64_t client, std::uint64_t number) {
  for (const std::uint64_t one : {std::uint64_t{0}, client, number}) writer.u64(one);
  writer.u32(0);
}

// A session's age, as its last number. Older writers have the time of day there.
constexpr std::uint64_t kOldestMs = 100'000'000'000;

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

void encode_insert_note(char* to, std::uint64_t client, std::uint64_t sequence, std::uint64_t floor, std::uint64_t time_ms,
                        std::uint64_t size) {
  base::store(to, client);
  base::store(to + 8, sequence);
  base::store(to + 16, floor);
  base::store(to + 24, time_ms);
  to[32] = static_cast<char>(OpKind::insert);
  to[33] = 1;
  base::store(to + 34, size);
  base::store(to + 42, std::uint32_t{1});
  base::store(to + 46, std::uint32_t{0});
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

bool ResultTable::may_be_forgotten(PartitionId partition, std::uint64_t client) const {
  const auto found = forgot_before_ms_.find(static_cast<std::uint32_t>(partition));
  return found != forgot_before_ms_.end() && session_start_ms(client) < found->second;
}

// Of what it sends after `sequence` nothing can have been executed before it was forgotten: that is an hour ago, and no message
// is under way so long.
void ResultTable::come(Session& session, PartitionId partition, std::uint64_t client, std::uint64_t sequence) {
  session.mark(partition);
  count(session);
  if (may_be_forgotten(partition, client) && session.floor + 1 < sequence) session.came.emplace_back(partition, sequence);
}

ResultTable::Answer ResultTable::find(PartitionId partition, std::uint64_t client, std::uint64_t sequence, bool retry) const {
  if (last_ == nullptr || last_client_ != client) {
    const auto found = sessions_.find(client);
    if (found == sessions_.end()) {
      if (retry && may_be_forgotten(partition, client)) return {Verdict::expired, nullptr};
      return {sessions_.size() < kMaxSessions && has_room() ? Verdict::fresh : Verdict::full, nullptr};
    }
    last_client_ = client;
    last_ = const_cast<Session*>(&found->second);
  }
  const Session& session = *last_;
  if (sequence <= session.floor) return {Verdict::expired, nullptr};
  if (sequence <= session.newest) {
    const std::size_t at = session.entries.find(sequence);
    // A number used twice, for keys of different partitions, is none of our clients'; what became of it is unknown.
    if (session.entries.has(at, sequence)) {
      const Entry& entry = session.entries.at(at);
      return entry.partition == partition ? Answer{Verdict::answered, &entry.recorded} : Answer{Verdict::expired, nullptr};
    }
  }
  if (retry) {
    const auto came = std::find_if(session.came.begin(), session.came.end(), [&](const auto& one) { return one.first == partition; });
    const bool unknown = came != session.came.end() ? sequence < came->second
                                                    : !session.marked(partition) && may_be_forgotten(partition, client);
    if (unknown) return {Verdict::expired, nullptr};
  }
  const bool room = session.entries.size() < kMaxResults && has_room();
  return {room ? Verdict::fresh : Verdict::full, nullptr};
}

std::size_t ResultTable::Window::search(std::uint64_t sequence) const {
  std::size_t low = 0, high = count_;
  while (low < high) {
    const std::size_t middle = low + (high - low) / 2;
    if (at(middle).sequence < sequence) low = middle + 1;
    else high = middle;
  }
  return low;
}

void ResultTable::Window::insert(std::size_t index, Entry entry) {
  if (count_ == ring_.size()) {
    std::vector<Entry> larger(std::max<std::size_t>(4, 2 * count_));
    for (std::size_t i = 0; i < count_; i++) larger[i] = std::move(at(i));
    ring_.swap(larger);
    head_ = 0;
  }
  count_++;
  for (std::size_t i = count_ - 1; i > index; i--) at(i) = std::move(at(i - 1));
  const bool first = index == 0, last = index == count_ - 1;
  if (first) first_ = entry.sequence;
  if (last) last_ = entry.sequence;
  at(index) = std::move(entry);
}

void ResultTable::Window::fit() {
  std::vector<Entry> smaller(std::bit_ceil(std::max<std::size_t>(4, 2 * count_)));
  for (std::size_t i = 0; i < count_; i++) smaller[i] = std::move(at(i));
  ring_.swap(smaller);
  head_ = 0;
}

void ResultTable::count(Session& session) {
  constexpr std::size_t kPlace = 64;  // of a session in the table
  const std::size_t now = sizeof(Session) + kPlace + session.entries.bytes() + session.partitions.size() * sizeof(std::uint64_t) +
                          session.came.size() * sizeof session.came.front();
  session_bytes_ += now - session.counted;
  session.counted = now;
}

ResultTable::Session& ResultTable::find_session(std::uint64_t client) {
  last_ = &sessions_[client];
  last_client_ = client;
  if (last_->counted == 0) count(*last_);
  return *last_;
}

void ResultTable::clear(Session& session, Recorded& recorded) {
  if (!recorded.outcome) return;
  session.outcomes--;
  outcome_bytes_ -= recorded.outcome->size();
  recorded.outcome.reset();
}

void ResultTable::raise(Session& session, std::uint64_t to) {
  if (to <= session.floor) return;
  session.floor = to;
  session.newest = std::max(session.newest, to);
  if (!session.came.empty()) std::erase_if(session.came, [&](const auto& one) { return one.second - 1 <= to; });
  Window& entries = session.entries;
  std::size_t covered = entries.find(to);
  covered += entries.has(covered, to);
  for (std::size_t i = 0; i < covered && session.outcomes > 0; i++) clear(session, entries.at(i).recorded);
  entries.drop_first(covered);
  if (!entries.is_sparse()) return;
  entries.fit();
  count(session);
}

void ResultTable::keep(Session& session, PartitionId partition, std::uint64_t sequence, Recorded recorded) {
  if (recorded.outcome) {
    session.outcomes++;
    outcome_bytes_ += recorded.outcome->size();
  }
  const std::size_t at = sequence > session.newest ? session.entries.size() : session.entries.find(sequence);
  session.newest = std::max(session.newest, sequence);
  if (!session.entries.has(at, sequence)) {
    const bool grows = session.entries.full();
    session.entries.insert(at, {sequence, partition, std::move(recorded)});
    if (grows) count(session);
    return;
  }
  Entry& entry = session.entries.at(at);
  clear(session, entry.recorded);
  entry.partition = partition;
  entry.recorded = std::move(recorded);
}

void ResultTable::record(PartitionId partition, Note note) {
  Session& session = session_of(note.client);
  session.last_ms = now_ms_;
  raise(session, note.floor);
  if (!session.marked(partition)) come(session, partition, note.client, note.sequence);
  if (note.sequence > session.floor) keep(session, partition, note.sequence, std::move(note.recorded));
}

void ResultTable::keep_insert(Session& session, PartitionId partition, std::uint64_t sequence, std::uint64_t size, Version version) {
  Recorded recorded;
  recorded.kind = OpKind::insert;
  recorded.present = true;
  recorded.fragment_count = 1;
  recorded.size = size;
  recorded.version = version;
  keep(session, partition, sequence, std::move(recorded));
}

void ResultTable::forget(std::uint64_t client) {
  const auto found = sessions_.find(client);
  if (found == sessions_.end()) return;
  Session& session = found->second;
  raise(session, kEnded);
  session.entries.release();
  count(session);
  session.last_ms = now_ms_ + std::min<std::int64_t>(0, kGoodbye / std::chrono::milliseconds(1) - life_ms_);
}

void ResultTable::forget_silent(std::uint64_t wall_ms) {
  last_ = nullptr;
  for (auto one = sessions_.begin(); one != sessions_.end();) {
    Session& session = one->second;
    if (session.last_ms + life_ms_ >= now_ms_) {
      ++one;
      continue;
    }
    const std::uint64_t began = std::min(session_start_ms(one->first) + 1, wall_ms + kOffsetMs);
    // Who has said goodbye sends nothing again.
    for (std::size_t word = 0; word < session.partitions.size() && session.floor != kEnded; word++)
      for (std::uint64_t bits = session.partitions[word]; bits != 0; bits &= bits - 1) {
        std::uint64_t& before = forgot_before_ms_[static_cast<std::uint32_t>(64 * word + static_cast<std::size_t>(std::countr_zero(bits)))];
        before = std::max(before, began);
      }
    raise(session, kEnded);
    session_bytes_ -= session.counted;
    one = sessions_.erase(one);
  }
}

void ResultTable::encode(PartitionId partition, std::string& out) const {
  base::Writer writer(out);
  const std::size_t at = out.size();
  std::uint32_t count = 0;
  writer.u32(0);
  // What was forgotten here must not be fresh where this is taken over. No client is 0.
  if (const auto forgot = forgot_before_ms_.find(static_cast<std::uint32_t>(partition)); forgot != forgot_before_ms_.end()) {
    count++;
    encode_nobody(writer, 0, forgot->second + kOffsetMs);
  }
  for (const auto& [client, session] : sessions_) {
    if (!session.marked(partition)) continue;
    count++;
    writer.u64(client);
    writer.u64(session.floor);
    writer.u64(static_cast<std::uint64_t>(std::max<std::int64_t>(0, now_ms_ - session.last_ms)));
    const std::size_t count_at = out.size();
    std::uint32_t durable = 0;
    writer.u32(0);
    for (std::size_t i = 0; i < session.entries.size(); i++) {
      const Entry& entry = session.entries.at(i);
      if (entry.partition != partition || entry.recorded.refused) continue;
      durable++;
      writer.u64(entry.sequence);
      writer.u64(entry.recorded.version);
      encode_recorded(writer, entry.recorded);
    }
    base::store(out.data() + count_at, durable);
    for (const auto& [where, sequence] : session.came) {
      if (where != partition) continue;
      count++;
      encode_nobody(writer, client, sequence);
    }
  }
  base::store(out.data() + at, count);
}

std::string ResultTable::forgotten_before(std::uint64_t ms) {
  std::string out;
  base::Writer writer(out);
  writer.u32(1);
  encode_nobody(writer, 0, ms + kOffsetMs);
  return out;
}

Result<void> ResultTable::decode(PartitionId partition, Bytes in) {
  drop(partition);
  if (in.empty()) return {};
  base::Reader reader(in);
  for (std::uint32_t left = reader.u32(); left > 0 && reader.ok(); left--) {
    const std::uint64_t client = reader.u64();
    if (client == 0) {
      const std::uint64_t whose = reader.u64(), number = reader.u64();
      if (whose != 0 && number == 0) return fail(Code::corrupt, "result table: a client came with sequence 0");
      if (whose != 0) session_of(whose).came.emplace_back(partition, number);
      else forgot_before_ms_[static_cast<std::uint32_t>(partition)] = number - std::min(number, kOffsetMs);
      if (reader.u32() != 0) return fail(Code::corrupt, "result table: results of nobody");
      continue;
    }
    const bool known = sessions_.contains(client);
    Session& session = session_of(client);
    session.mark(partition);
    const std::uint64_t floor = reader.u64(), age = reader.u64();
    const std::int64_t last_ms = now_ms_ - static_cast<std::int64_t>(age < kOldestMs ? age : 0);
    session.last_ms = known ? std::max(session.last_ms, last_ms) : last_ms;
    // What other partitions have and this one brings become one window.
    Window merged, had = std::move(session.entries);
    session.entries.release();
    std::size_t from = 0;
    std::uint64_t before = 0;
    const auto take_until = [&](std::uint64_t sequence) {
      while (from < had.size() && had.at(from).sequence < sequence) merged.insert(merged.size(), std::move(had.at(from++)));
    };
    for (std::uint32_t entries = reader.u32(); entries > 0 && reader.ok(); entries--) {
      const std::uint64_t sequence = reader.u64();
      const Version version = reader.u64();
      Recorded recorded = decode_recorded(reader, version);
      if (!reader.ok()) break;
      if (sequence <= before) return fail(Code::corrupt, "result table: sequence ", sequence, " after ", before);
      before = sequence;
      take_until(sequence);
      if (recorded.outcome) {
        session.outcomes++;
        outcome_bytes_ += recorded.outcome->size();
      }
      session.newest = std::max(session.newest, sequence);
      merged.insert(merged.size(), {sequence, partition, std::move(recorded)});
    }
    take_until(~std::uint64_t{0});
    session.entries = std::move(merged);
    const std::uint64_t had_floor = std::exchange(session.floor, 0);
    raise(session, std::max(floor, had_floor));
    count(session);
  }
  if (!reader.done()) return fail(Code::corrupt, "result table of ", in.size(), " bytes is cut short or too long");
  return {};
}

void ResultTable::rewind(PartitionId partition, Version to) {
  for (auto& [client, session] : sessions_) {
    if (!session.marked(partition)) continue;
    const auto gone = [&](const Entry& entry) {
      return entry.partition == partition && !entry.recorded.refused && entry.recorded.version > to;
    };
    bool some = false;
    for (std::size_t i = 0; i < session.entries.size() && !some; i++) some = gone(session.entries.at(i));
    if (!some) continue;
    Window others;
    for (std::size_t i = 0; i < session.entries.size(); i++) {
      Entry& entry = session.entries.at(i);
      if (gone(entry)) clear(session, entry.recorded);
      else others.insert(others.size(), std::move(entry));
    }
    session.entries = std::move(others);
    count(session);
  }
}

void ResultTable::drop(PartitionId partition) {
  last_ = nullptr;
  const auto number = static_cast<std::uint32_t>(partition);
  forgot_before_ms_.erase(number);
  for (auto one = sessions_.begin(); one != sessions_.end();) {
    Session& session = one->second;
    if (session.marked(partition)) {
      session.partitions[number / 64] &= ~(std::uint64_t{1} << number % 64);
      std::erase_if(session.came, [&](const auto& came) { return came.first == partition; });
      Window others;
      for (std::size_t i = 0; i < session.entries.size(); i++) {
        Entry& entry = session.entries.at(i);
        if (entry.partition == partition) clear(session, entry.recorded);
        else others.insert(others.size(), std::move(entry));
      }
      session.entries = std::move(others);
      count(session);
    }
    const bool unused =
        std::all_of(session.partitions.begin(), session.partitions.end(), [](std::uint64_t bits) { return bits == 0; });
    if (unused) session_bytes_ -= session.counted;
    one = unused ? sessions_.erase(one) : std::next(one);
  }
}

}  // namespace zht::core

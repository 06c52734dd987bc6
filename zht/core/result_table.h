// What an instance remembers of requests, so that a retry gets the first execution's answer and never a second
// execution. Part of the replicated state of each partition: it is rebuilt from the log's notes and travels in
// checkpoints, partition by partition.
//
// One table serves all partitions of the instance, because one client's sequences are consecutive whatever partitions
// they go to: what it has in flight lies side by side, and whether a request is new takes one comparison with the newest
// one seen. (A table for each partition cost two cache misses a request, 40% of an insert's time with 32 clients and 1024
// partitions.) A client's floor is a fact about the client, so it counts in every partition from wherever it was heard.
//
// What was refused (a conflict, an absent key) leaves no trace in the log; it is remembered for this life only, so that
// a late copy of a refused request cannot succeed after its client was told no. REPLICATION: exactly-once retries.
//
// Sessions that were silent for an hour are forgotten, by a clock that nobody sets. What was in flight then may be sent again all
// the same (its client was stopped), also when the client is known here again because another partition's results brought it
// or because it has changed something since. So it is remembered, by partition, up to when those had begun whose results were
// forgotten, and of a client that comes again after that, which of its requests are older than its coming.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "zht/types.h"

namespace zht::core {

// The answer to an executed request, as small as it can be: insert, append, cswap and remove need the numbers alone.
struct Recorded {
  OpKind kind = OpKind::insert;
  bool refused = false;        // this life only
  bool present = false;        // the key exists now
  std::uint32_t fragment_count = 0;
  std::uint64_t size = 0;
  Version version = 0;
  std::unique_ptr<std::string> outcome;  // update, batch and refusals: the encoded outcome; else none
};

// A log record's note: who asked, and the answer.
struct Note {
  std::uint64_t client = 0, sequence = 0, floor = 0, time_ms = 0;
  Recorded recorded;
};
void encode_note(std::string& out, const Note& note);
// The same of an insert, to `to`.
inline constexpr std::size_t kInsertNoteSize = 50;
void encode_insert_note(char* to, std::uint64_t client, std::uint64_t sequence, std::uint64_t floor, std::uint64_t time_ms,
                        std::uint64_t size);
Result<Note> decode_note(Bytes note, Version version);

inline constexpr base::Duration kSessionLife = std::chrono::hours(1), kGoodbye = std::chrono::minutes(2);

class ResultTable {
 public:
  // Bounds on what clients that never raise their floor, or never say goodbye, can make an instance remember. Past them
  // a change is refused with `unavailable`: later, the same request may be executed.
  static constexpr std::size_t kMaxResults = std::size_t{1} << 20;          // of one client
  static constexpr std::size_t kMaxSessions = std::size_t{1} << 20;         // clients
  static constexpr std::size_t kMaxBytes = std::size_t{256} << 20;          // of all of it, by default

  enum class Verdict { fresh, answered, expired, full };
  struct Answer {
    Verdict verdict = Verdict::fresh;
    const Recorded* recorded = nullptr;  // answered; until the next non-const call
  };

  // `life`: of a silent session. `most`: bytes; what was remembered before is not dropped for it.
  explicit ResultTable(base::Duration life = kSessionLife, std::size_t most = kMaxBytes)
      : most_(most), life_ms_(life / std::chrono::milliseconds(1)) {}

  // The time, by a clock that goes on evenly, whatever it shows; called before what happens then, with the first call before any
  // but record() and decode(), which an opened store may have made before.
  void set_now(base::Time now) {
    const std::int64_t ms = now.time_since_epoch() / std::chrono::milliseconds(1);
    if (!begun_ms_) [[unlikely]]
      begun_ms_ = ms;
    now_ms_ = ms - *begun_ms_;
  }
  // Has (client, sequence) been seen in `partition`? `retry`: the client says it may have sent it before. expired: below
  // the floor, or a retry whose first execution may have been forgotten; whether it happened is unknown. full:
  // new, but there is no room to remember its answer.
  Answer find(PartitionId partition, std::uint64_t client, std::uint64_t sequence, bool retry) const;
  void record(PartitionId partition, Note note);
  // The same for an insert, as fast as it can be: nothing is gathered first to be copied.
  void record_insert(PartitionId partition, std::uint64_t client, std::uint64_t sequence, std::uint64_t floor, std::uint64_t size,
                     Version version) {
    Session& session = session_of(client);
    session.last_ms = now_ms_;
    if (!session.marked(partition)) [[unlikely]]
      come(session, partition, client, sequence);
    if (floor > session.floor) raise(session, floor);
    if (sequence <= session.floor) return;
    if (sequence <= session.newest || session.entries.full()) return keep_insert(session, partition, sequence, size, version);
    session.newest = sequence;
    session.entries.append_insert(partition, sequence, size, version);
  }
  // The client has said goodbye: no answer of its is needed any more, in any partition. For kGoodbye more it is known to
  // have ended, so that a late copy of one of its requests is refused.
  void forget(std::uint64_t client);
  // Sessions that were silent for their life, as far as this table was there to see it. That some were forgotten is remembered,
  // and goes along with the results. `wall_ms`: the time of day; a client that says it began more than an hour later has made its
  // number up, and must not have all others taken for forgotten.
  void forget_silent(std::uint64_t wall_ms);
  std::size_t session_count() const { return sessions_.size(); }
  std::size_t bytes() const { return outcome_bytes_ + session_bytes_; }
  std::size_t most() const { return most_; }

  // The durable parts of one partition; for its checkpoint and its migration. decode() replaces what is there of it.
  void encode(PartitionId partition, std::string& out) const;
  Result<void> decode(PartitionId partition, Bytes in);
  // What decode() takes where nothing is known of sessions that began before `ms` (since 1970): whatever they send again is refused.
  static std::string forgotten_before(std::uint64_t ms);
  void drop(PartitionId partition);
  // What was recorded of changes after version `to` never happened. (Floors stay: they are facts about the clients.)
  void rewind(PartitionId partition, Version to);

 private:
  struct Entry {
    std::uint64_t sequence = 0;
    PartitionId partition{0};
    Recorded recorded;
  };
  // Entries by sequence, in a ring: one client's come and go at the rate of its requests, and nothing is moved for that.
  class Window {
   public:
    std::size_t size() const { return count_; }
    bool empty() const { return count_ == 0; }
    Entry& at(std::size_t index) { return ring_[(head_ + index) & (ring_.size() - 1)]; }
    const Entry& at(std::size_t index) const { return ring_[(head_ + index) & (ring_.size() - 1)]; }
    bool full() const { return count_ == ring_.size(); }
    std::size_t find(std::uint64_t sequence) const {  // the first that is not before it
      if (count_ == 0 || sequence <= first_) return 0;
      if (sequence > last_) return count_;
      return dense() ? sequence - first_ : search(sequence);
    }
    bool has(std::size_t index, std::uint64_t sequence) const {
      return index < count_ && (dense() ? first_ + index : at(index).sequence) == sequence;
    }
    void insert(std::size_t index, Entry entry);
    // At the end, which is after all others; there is room.
    void append_insert(PartitionId partition, std::uint64_t sequence, std::uint64_t size, Version version) {
      Entry& entry = at(count_);  // has no `outcome`
      entry.sequence = sequence;
      entry.partition = partition;
      entry.recorded.kind = OpKind::insert;
      entry.recorded.refused = false;
      entry.recorded.present = true;
      entry.recorded.fragment_count = 1;
      entry.recorded.size = size;
      entry.recorded.version = version;
      if (count_++ == 0) first_ = sequence;
      last_ = sequence;
    }
    // Their outcomes have been cleared.
    void drop_first(std::size_t count) {
      if (count == 0) return;
      const bool was_dense = dense();
      head_ = (head_ + count) & (ring_.size() - 1);
      count_ -= count;
      if (count_ > 0) first_ = was_dense ? first_ + count : at(0).sequence;
    }
    void release() { *this = {}; }
    std::size_t bytes() const { return ring_.size() * sizeof(Entry); }
    // Far more room than what is in it needs: of a client that has said at last what it has.
    bool is_sparse() const { return ring_.size() >= 256 && count_ < ring_.size() / 16; }
    void fit();

   private:
    std::size_t search(std::uint64_t sequence) const;
    std::vector<Entry> ring_;  // a power of two
    std::size_t head_ = 0, count_ = 0;
    // Of the first and last entry, so that a window without gaps, as nearly all are, is searched without a look at the
    // entries: they have left the cache since they were written.
    std::uint64_t first_ = 0, last_ = 0;
    bool dense() const { return last_ - first_ + 1 == count_; }
  };
  struct Session {
    std::uint64_t floor = 0;
    std::uint64_t newest = 0;  // no sequence above, nor a floor, was ever recorded
    std::int64_t last_ms = 0;  // when it last changed something, by set_now()
    std::size_t outcomes = 0;  // entries that have one
    Window entries;
    std::vector<std::uint64_t> partitions;  // one bit each: where it has changed something
    // Where it came after it may have been forgotten, and with which sequence: what it sent before that, and is above its floor,
    // may have been executed. Hardly ever any.
    std::vector<std::pair<PartitionId, std::uint64_t>> came;
    std::size_t counted = 0;  // bytes, in session_bytes_
    void mark(PartitionId partition) {
      const auto number = static_cast<std::uint32_t>(partition);
      if (partitions.size() <= number / 64) [[unlikely]]
        partitions.resize(number / 64 + 1);
      partitions[number / 64] |= std::uint64_t{1} << number % 64;
    }
    bool marked(PartitionId partition) const {
      const auto number = static_cast<std::uint32_t>(partition);
      return number / 64 < partitions.size() && (partitions[number / 64] >> number % 64 & 1) != 0;
    }
  };
  Session& session_of(std::uint64_t client) {
    return last_ != nullptr && last_client_ == client ? *last_ : find_session(client);
  }
  Session& find_session(std::uint64_t client);
  // Whether results of this client in this partition may have been forgotten.
  bool may_be_forgotten(PartitionId partition, std::uint64_t client) const;
  // The session changes something in the partition for the first time, as far as is known here.
  void come(Session& session, PartitionId partition, std::uint64_t client, std::uint64_t sequence);
  void raise(Session& session, std::uint64_t to);
  void clear(Session& session, Recorded& recorded);
  bool has_room() const { return bytes() < most_; }
  void count(Session& session);  // after what it has in memory has changed its size
  void keep(Session& session, PartitionId partition, std::uint64_t sequence, Recorded recorded);
  void keep_insert(Session& session, PartitionId partition, std::uint64_t sequence, std::uint64_t size, Version version);

  std::unordered_map<std::uint64_t, Session> sessions_;
  std::size_t most_;
  std::size_t outcome_bytes_ = 0, session_bytes_ = 0;
  // The one asked for last: a connection's requests come in runs.
  mutable std::uint64_t last_client_ = 0;
  std::int64_t life_ms_, now_ms_ = 0;
  std::optional<std::int64_t> begun_ms_;
  // By partition: sessions that began before this, by their clients' clocks, may have results there that were forgotten.
  std::unordered_map<std::uint32_t, std::uint64_t> forgot_before_ms_;
  mutable Session* last_ = nullptr;
};

// When the session of `client` began: its upper 30 bits count 4-second steps since 1970.
inline std::uint64_t session_start_ms(std::uint64_t client) { return (client >> 34) * 4000; }

}  // namespace zht::core

// What a partition remembers of requests, so that a retry gets the first execution's answer and never a second
// execution. Part of the replicated state: it is rebuilt from the log's notes, travels in checkpoints, and is the same
// on every copy. Per client: a floor, below which everything was answered, and the results above it.
//
// What was refused (a conflict, an absent key) leaves no trace in the log; it is remembered for this life only, so that
// a late copy of a refused request cannot succeed after its client was told no. REPLICATION: exactly-once retries.
#pragma once

#include <cstdint>
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
  Version version = 0;
  std::uint64_t size = 0;
  std::uint32_t fragment_count = 0;
  std::string outcome;         // update, batch and refusals: the encoded outcome
};

// A log record's note: who asked, and the answer.
struct Note {
  std::uint64_t client = 0, sequence = 0, floor = 0, time_ms = 0;
  Recorded recorded;
};
void encode_note(std::string& out, const Note& note);
Result<Note> decode_note(Bytes note, Version version);

class ResultTable {
 public:
  enum class Verdict { fresh, answered, expired };
  struct Answer {
    Verdict verdict = Verdict::fresh;
    const Recorded* recorded = nullptr;  // answered; until the next non-const call
  };

  // Has (client, sequence) been seen? `retry`: the client says it may have sent it before. expired: below the floor,
  // or a retry of a session so old that it may have been forgotten; whether it happened is unknown.
  Answer find(std::uint64_t client, std::uint64_t sequence, bool retry, std::uint64_t now_ms) const;
  void record(const Note& note);
  void forget(std::uint64_t client);
  void forget_silent(std::uint64_t now_ms);  // sessions silent for kSessionLife
  std::size_t session_count() const { return sessions_.size(); }

  void encode(std::string& out) const;  // durable parts only; for the checkpoint
  Result<void> decode(Bytes in);

 private:
  struct Entry {
    std::uint64_t sequence = 0;
    Recorded recorded;
  };
  struct Session {
    std::uint64_t floor = 0;
    std::uint64_t last_ms = 0;
    std::vector<Entry> entries;  // by sequence; the first `head` are forgotten
    std::size_t head = 0;
    void raise(std::uint64_t to);
  };
  std::unordered_map<std::uint64_t, Session> sessions_;
};

inline constexpr std::uint64_t kSessionLifeMs = 3'600'000;
// When the session of `client` began: its upper 30 bits count 4-second steps since 1970.
inline std::uint64_t session_start_ms(std::uint64_t client) { return (client >> 34) * 4000; }

}  // namespace zht::core

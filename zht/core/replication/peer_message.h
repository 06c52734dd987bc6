// What instances say to each other. One message from an instance to another carries everything a round has for it: sign of
// life, entries, acknowledgements and commit points of all the partitions the two share. A message may be lost, late,
// repeated or overtaken; nothing here relies on more than that it is whole.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "novoht/base/clock.h"
#include "zht/core/replication/view.h"

namespace zht::replication {

// A place in a partition's log. Equal positions in two logs mean equal logs up to there.
struct Position {
  Epoch epoch{0};
  Version sequence = 0;  // 1 for the first entry; the version of every key the entry changed
  auto operator<=>(const Position&) const = default;  // of two logs, that which ends later has what is committed in the other's
};

// One change: what a primary made of a request, already resolved, with what is remembered of the request. `payload` is
// the store's business.
struct Entry {
  Position at;
  std::string payload;
};
using EntryPtr = std::shared_ptr<const Entry>;  // many followers are sent the same bytes

// Primary to follower.
struct Append {
  PartitionId partition{0};
  Epoch epoch{0};
  Position previous;  // the entry before the first of `entries`
  Version end = 0;    // of the primary's log
  // The epoch in which the primary became it, and where its log ended then: no entry of an older epoch lies beyond.
  Position takeover;
  Version commit = 0;
  base::WallTime time{};  // of the partition, see PartitionClock
  std::vector<EntryPtr> entries;  // may be none: a probe, or news of the commit point
};

// Follower to primary. An acknowledgement also says: in this epoch I follow you.
struct Ack {
  enum class Verdict : std::uint8_t {
    matched,    // durable here and equal to yours up to `match`
    elsewhere,  // my log does not hold `previous`; I have `hint`, perhaps you have it too
    stuck,      // I would have to take back more than I can: I need a snapshot
    full,       // I cannot write any more
    behind,     // your epoch is newer than mine: tell me the view
  };
  PartitionId partition{0};
  Epoch epoch{0};
  Verdict verdict = Verdict::matched;
  Version match = 0;
  Version commit = 0;  // what I know to be committed
  std::uint64_t snapshot = 0;  // the last one of yours that I took; what I had before it counts for nothing
  Position hint;       // elsewhere, stuck
  Version floor = 0;   // elsewhere: of entries up to here I no longer know the epochs
};

// A whole partition on its way to a learner, in pieces, in order.
struct SnapshotPiece {
  PartitionId partition{0};
  Epoch epoch{0};
  std::uint64_t id = 0;     // of this snapshot
  std::uint64_t index = 0;  // of this piece, from 0
  bool last = false;
  Position at;              // what the whole contains
  std::string bytes;
};
struct SnapshotAck {
  PartitionId partition{0};
  Epoch epoch{0};
  std::uint64_t id = 0;
  std::uint64_t next = 0;  // the piece it waits for
};

// Of a restarted sync member, to the others: may it come back with this log? Where all have restarted, who has the longest?
struct Standing {
  PartitionId partition{0};
  std::uint64_t since = 0;  // the incarnation that began this log
  Position end;
};

struct ViewNews {
  PartitionId partition{0};
  View view;
};

// From this answer on the sender follows nobody in `partition` under `epoch` or an older one.
struct Departure {
  std::uint64_t generation = 0;
  PartitionId partition{0};
  Epoch epoch{0};
};

struct PeerMessage {
  Member from;
  InstanceId to{0};

  base::Time beacon{};          // the sender's clock; the epoch of the clock: no beacon
  std::uint64_t seen = 0;       // with a beacon: departures up to this generation are known
  base::Time answered{};        // the newest beacon this answers
  Member answering;             // ... and whose it was: generations count for one incarnation of it
  std::uint64_t generation = 0; // with an answer
  std::vector<Departure> departures;  // with an answer: those after the beacon's `seen`

  std::vector<Append> appends;
  std::vector<Ack> acks;
  std::vector<SnapshotPiece> pieces;
  std::vector<SnapshotAck> piece_acks;
  std::vector<Standing> standings;
  std::vector<ViewNews> views;
};

}  // namespace zht::replication

// What the client library and the procedures say to each other: the arguments and results of the procedures, as flat
// little-endian records (u32 lengths before byte strings). Every request names the queue's id, so that a client that
// knows an older queue of the same name is told so.
//
//   fabriq.open    Descriptor                -> nothing     makes the partition; fine when it is there
//   fabriq.close   u64 queue id              -> nothing     unmakes it (its other keys are swept); fine when it is not
//   fabriq.push    PushRequest               -> PushReply
//   fabriq.pop     PopRequest                -> PopReply    acknowledgements ride on it
//   fabriq.settle  SettleRequest             -> SettleReply
//   fabriq.peek    PeekRequest               -> PopReply    (without receipts)
//   fabriq.info    u64 queue id              -> Info
//   fabriq.redrive u64 queue id, u64 count   -> u64 how many dead messages became ready again
//   fabriq.purge   u64 queue id              -> u64 how many messages went
//   fabriq.sweep   u32-counted keys          -> u64 how many of them were garbage and are gone
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fabriq/core/receipt.h"
#include "fabriq/core/records.h"

namespace fabriq {

// What the library keeps with a message beside its body; the store does not look into it.
struct Attributes {
  std::string producer;
  std::uint64_t sequence = 0;
  std::string id;
  std::string encode() const;  // empty when all is
  static Attributes decode(Bytes bytes);
};

struct PushRequest {
  std::uint64_t queue_id = 0;
  std::string producer;        // empty: no de-duplication by sequence
  std::uint64_t sequence = 0;  // of the first message within this partition; the others follow it
  std::string id;              // one message only: de-duplicated by this id
  std::uint64_t delay_ms = 0;
  struct Message {
    Bytes attributes, body;  // borrowed
  };
  std::vector<Message> messages;
  std::string encode() const;
  static Result<PushRequest> decode(Bytes bytes);
};

struct PushReply {
  struct Stored {
    std::uint64_t number = 0;
    bool repeated = false;  // it was here already; this is the first one's number
  };
  std::vector<Stored> messages;
  std::string encode() const;
  static Result<PushReply> decode(Bytes bytes);
};

struct Settle {
  enum class Kind : std::uint8_t { acknowledge = 0, give_back = 1, extend = 2 };
  Kind kind = Kind::acknowledge;
  Receipt receipt;
  std::uint64_t ms = 0;  // give_back: not before; extend: from now
};

struct Settled {
  enum class Outcome : std::uint8_t {
    done = 0,
    already = 1,     // this very receipt did it before
    superseded = 2,  // the lease ended and the message went on, or was given back, or purged
    forged = 3,      // never issued by this queue
    busy = 4,        // nothing was done for want of room in this request; send it again
  };
  Outcome outcome = Outcome::done;  // the worst of its messages
  std::uint32_t settled = 0;        // messages for which it was done, now or before
};

struct SettleRequest {
  std::uint64_t queue_id = 0;
  std::vector<Settle> items;  // kMaxBatch messages in all at most
  std::string encode() const;
  static Result<SettleRequest> decode(Bytes bytes);
};

struct SettleReply {
  std::vector<Settled> items;
  std::string encode() const;
  static Result<SettleReply> decode(Bytes bytes);
};

struct PopRequest {
  std::uint64_t queue_id = 0;
  std::uint32_t max_count = 1;                       // 0: only to see what is there
  std::uint64_t max_bytes = std::uint64_t{1} << 20;  // at least one message is returned whatever its size
  std::uint64_t lease_ms = 0;                        // 0: the queue's visibility timeout
  bool at_most_once = false;                         // removed at once: no receipt
  std::vector<Settle> items;                         // done first
  std::string encode() const;
  static Result<PopRequest> decode(Bytes bytes);
};

struct PopReply {
  struct Message {
    std::uint64_t number = 0;
    std::uint64_t pushed_ms = 0;
    std::uint32_t deliveries = 0;  // this one included
    Bytes attributes, body;        // lie in the reply's bytes
    Receipt receipt;               // count 0: none
  };
  std::vector<Message> messages;
  std::vector<Receipt> groups;  // the same receipts with those of neighbours joined
  std::vector<Settled> items;
  std::uint64_t bell = 0;           // version of the bell key that this answer has seen
  std::uint64_t ready_left = 0;     // messages that could be had now
  std::uint64_t next_event_ms = 0;  // from now: when time alone may make a message ready; kNoEvent: never
  std::uint64_t oldest_ms = 0;      // age of the message that would be next; only when none was asked for
  std::string encode() const;
  static Result<PopReply> decode(Bytes bytes);
};
inline constexpr std::uint64_t kNoEvent = UINT64_MAX;

struct PeekRequest {
  std::uint64_t queue_id = 0;
  std::uint32_t max_count = 1;
  bool dead = false;  // the dead-letter list instead
  std::string encode() const;
  static Result<PeekRequest> decode(Bytes bytes);
};

// Of one partition, or summed over several.
struct Info {
  std::uint64_t ready = 0, leased = 0, waiting = 0, dead = 0;                     // messages
  std::uint64_t bytes = 0;                                                        // of entries kept
  std::uint64_t pushed = 0, acked = 0, redelivered = 0, expired = 0, purged = 0;  // messages, ever
  std::uint64_t oldest_ms = 0;                                                    // age of the first ready message
  std::string encode() const;
  static Result<Info> decode(Bytes bytes);
  Info& operator+=(const Info& other);
};

}  // namespace fabriq

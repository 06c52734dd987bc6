// What a queue partition keeps in the store, and under which keys. Everything of partition p of queue Q carries the tag
// "{q:Q:p}", so that one request changes it together. After the tag: one letter, then fixed little-endian numbers.
//
//   key                  value
//   {q:Q:p}d             Descriptor: the queue's id, era, policy and secret; the partition exists when this does
//   {q:Q:p}w             WriterState: what a push changes; its version is the bell that waiting consumers listen to
//   {q:Q:p}r             ReaderState: what a pop and an acknowledgement change
//   {q:Q:p}s era n       segment n: entries in order of arrival, one fragment per push
//   {q:Q:p}k era n       SegmentRest: how many of a segment's messages are still here, once the reader has moved past
//   it {q:Q:p}l era L       LeaseRecord of lease L: a range of messages of one segment, handed out together {q:Q:p}x
//   era i       entry of message i, alone: it was delayed, or came back {q:Q:p}y era i       AloneState of message i
//   {q:Q:p}z era i       u64 lease: who settled message i after it had come back (0: nobody may claim it); a day
//   {q:Q:p}f era n       page n of the list of messages that came back and are ready; u64 each
//   {q:Q:p}g era n       page n of the dead-letter list
//   {q:Q:p}t era l s     slot s of level l of the timer wheel (wheel.h)
//   {q:Q:p}P producer    what is remembered of a producer's pushes (see pushes.cc); a day
//   {q:Q:p}I id          u64 message: the push that was given this id; a day
//   {fabriq}queue/Q      QueueRecord: how the queue was created
//
// A purge raises the era; what carries an older one is garbage that anyone may sweep.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "fabriq/core/wheel.h"
#include "zht/types.h"

namespace fabriq {

using base::Bytes;
using base::Code;
using base::Error;
using base::Result;
using Millis = std::chrono::milliseconds;

inline constexpr std::uint32_t kFormat = 1;  // of everything below; a reader refuses a greater one
inline constexpr std::size_t kMaxNameSize = 80;
inline constexpr std::size_t kMaxPartitions = 1024;
// One message and its attributes, so that its entry and the request around it fit in one value of the store.
inline constexpr std::size_t kMaxMessageSize = zht::kMaxValueSize - (std::size_t{64} << 10);
inline constexpr std::size_t kMaxIdSize = 200;                               // producer ids and message ids
inline constexpr std::uint32_t kMaxBatch = 1024;                             // messages in one request
inline constexpr std::uint64_t kSegmentSize = std::uint64_t{4} << 20;        // a push starts a new segment past this
inline constexpr std::uint64_t kSmallSegment = std::uint64_t{64} << 10;      // drained ones up to this are kept in use
inline constexpr std::uint64_t kMaxLeaseMillis = 12ull * 3600 * 1000;        // 12 h
inline constexpr std::uint64_t kMaxDelayMillis = 365ull * 24 * 3600 * 1000;  // a year
inline constexpr std::uint64_t kMemoryMillis = 24ull * 3600 * 1000;  // how long old pushes and receipts are known
inline constexpr std::uint64_t kAlone = std::uint64_t{1} << 63;      // number of a message that was pushed with a delay

using Secret = std::array<std::uint64_t, 2>;

// Letters, digits, '.', '_' and '-', 1 to 80 of them. invalid names what is wrong.
Result<void> check_name(Bytes name);

struct Descriptor {
  std::uint64_t queue_id = 0;
  std::uint32_t era = 0;
  std::uint32_t partition = 0;
  std::uint64_t visibility_ms = 30'000;
  std::uint32_t max_deliveries = 0;  // 0: no limit
  std::uint64_t max_bytes = 0;       // of this partition; 0: no limit
  Secret secret{};
  std::string encode() const;
  static Result<Descriptor> decode(Bytes bytes);
};

struct WriterState {
  std::uint64_t appended = 0;      // messages that went into segments, ever: the next one's number
  std::uint64_t delayed = 0;       // messages that were pushed with a delay, ever: the next one's number less kAlone
  std::uint64_t segment = 0;       // the one that grows
  std::uint64_t segment_size = 0;  // its bytes
  std::uint64_t stored = 0;        // bytes of entries, ever
  std::string encode() const;
  static Result<WriterState> decode(Bytes bytes);
};

// A list of message numbers that grows at its end by append and is read from its front; pages of kListPage numbers.
inline constexpr std::uint64_t kListPage = 4096;
struct ListState {
  std::uint64_t first = 0, read = 0;    // page with the front; numbers read from it
  std::uint64_t last = 0, written = 0;  // page with the end; numbers in it
  bool empty() const { return first == last && read == written; }
};

struct ReaderState {
  std::uint64_t freed = 0;    // bytes of entries that are gone, ever; first, so that a push can read it alone
  std::uint64_t taken = 0;    // messages that left the fresh part of the segments, ever: the next one's number
  std::uint64_t segment = 0;  // where `taken` lies
  std::uint64_t offset = 0;
  std::uint64_t segment_taken = 0;  // of `segment`
  std::uint64_t segment_gone = 0;   // of those: settled, or moved out to stand alone
  std::uint64_t entry_size = 0;     // of the entry read last: a hint of how much to read
  std::uint64_t next_lease = 1;
  std::uint64_t oldest_lease = 1;   // of those that end in order of issue, the first that may still be there
  std::uint64_t last_deadline = 0;  // the latest of those
  std::uint64_t clock = 0;          // queue time when last looked at, and
  std::uint64_t skew = 0;           // how far it is ahead of the wall clock: it never goes back
  std::uint64_t leased = 0;         // messages by state; fresh: WriterState::appended - taken
  std::uint64_t returned = 0;       //   came back and are ready
  std::uint64_t waiting = 0;        //   delayed
  std::uint64_t dead = 0;
  std::uint64_t acked = 0;        // messages, ever: settled by acknowledgement or by an at-most-once pop
  std::uint64_t redelivered = 0;  // handed out again, ever
  std::uint64_t expired = 0;      // leases that ran out, ever, by message
  std::uint64_t purged = 0;       // messages dropped by purge, ever
  ListState ready_list, dead_list;
  WheelState wheel;
  std::string encode() const;
  static Result<ReaderState> decode(Bytes bytes);
  static Result<std::uint64_t> decode_freed(Bytes first_eight);
};

struct SegmentRest {
  std::uint64_t size = 0;
  std::uint64_t left = 0;  // messages
  std::string encode() const;
  static Result<SegmentRest> decode(Bytes bytes);
};

// One handing-out of `count` messages that lie side by side in a segment.
struct LeaseRecord {
  std::uint64_t segment = 0;
  std::uint64_t offset = 0;
  std::uint64_t size = 0;   // bytes of the entries
  std::uint64_t first = 0;  // number of the first message
  std::uint32_t count = 0;
  std::uint32_t pending = 0;   // neither settled nor moved out
  std::uint64_t deadline = 0;  // queue time
  bool in_order = false;       // ends in order of issue; else the wheel knows its deadline
  std::string gone;            // one bit a message, when some of several are no longer pending
  bool is_gone(std::uint32_t k) const { return !gone.empty() && ((gone[k / 8] >> (k % 8)) & 1) != 0; }
  void set_gone(std::uint32_t k);
  std::string encode() const;
  static Result<LeaseRecord> decode(Bytes bytes);
};

// A message that stands alone, outside the segments.
struct AloneState {
  enum class Phase : std::uint8_t { ready = 0, leased = 1, waiting = 2, dead = 3 };
  Phase phase = Phase::ready;
  std::uint32_t deliveries = 0;
  std::uint64_t lease = 0;  // of the last delivery; 0: none
  bool given_up = false;    // the consumer returned it: that lease can settle nothing any more
  bool shared = false;      // more than one lease was issued for it
  std::uint64_t until = 0;  // leased, waiting: queue time
  std::uint64_t size = 0;   // of the entry
  std::string encode() const;
  static Result<AloneState> decode(Bytes bytes);
};

// One message as it lies in a segment or alone:
//   u32 body size, u32 attributes size, u64 wall clock of the push in ms, attributes, body
inline constexpr std::size_t kEntryHeader = 16;
struct Entry {
  std::uint64_t pushed_ms = 0;
  Bytes attributes;  // the client library's: see Attributes in messages.h
  Bytes body;
  std::uint64_t size() const { return kEntryHeader + attributes.size() + body.size(); }
  void encode_to(std::string& out) const;
  void encode_head_to(std::string& out) const;  // without the body
  // The entry at the start of `bytes`; nothing when it does not end there.
  static bool decode(Bytes bytes, Entry& entry);
  static std::uint64_t size_at(Bytes header) {
    return kEntryHeader + base::load<std::uint32_t>(header.data()) + base::load<std::uint32_t>(header.data() + 4);
  }
};

// What "{fabriq}queue/Q" holds.
struct QueueRecord {
  enum class Phase : std::uint8_t { creating = 0, ready = 1, deleting = 2 };
  Phase phase = Phase::creating;
  std::uint64_t queue_id = 0;
  std::uint32_t partitions = 4;
  std::uint64_t visibility_ms = 30'000;
  std::uint32_t max_deliveries = 0;
  std::uint64_t max_bytes = 0;  // of the queue
  Secret secret{};
  std::uint64_t created_ms = 0;
  std::string encode() const;
  static Result<QueueRecord> decode(Bytes bytes);
};

inline constexpr std::string_view kQueuePrefix = "{fabriq}queue/";
std::string queue_key(Bytes name);                               // "{fabriq}queue/<name>"
std::string partition_tag(Bytes name, std::uint32_t partition);  // "{q:<name>:<partition>}"
std::string bell_key(Bytes name, std::uint32_t partition);

// Keys of one partition.
class Keys {
 public:
  explicit Keys(Bytes tag) : tag_(tag) {}
  std::string plain(char letter) const { return tag_ + letter; }
  std::string numbered(char letter, std::uint32_t era, std::uint64_t number) const;
  std::string slot(std::uint32_t era, unsigned level, unsigned slot) const;
  std::string named(char letter, Bytes name) const { return tag_ + letter + std::string(name); }
  const std::string& tag() const { return tag_; }
  // Whether `key` carries an era that a purge has ended.
  bool is_garbage(Bytes key, std::uint32_t era) const;

 private:
  std::string tag_;
};

}  // namespace fabriq

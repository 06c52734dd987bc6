// Data frames: a fixed 72-byte little-endian header, then key, value and extra bytes. PROTOCOL.md beside this file is
// the contract; this is its codec. Decoding borrows from the buffer: nothing is copied on the way in.
//
//   std::string out;
//   encode_request(out, Operation::insert("k", "v"), {.request = 1, .client = me, .sequence = 7, .epoch = 3});
//   ...
//   TRY_LET(frame, next_frame(buffer, kMaxFrameSize));   // nothing yet: frame is empty
//   TRY_LET(operation, decode_operation(*frame));
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "zht/types.h"

namespace zht::wire {

inline constexpr std::uint32_t kMagic = 0x3154485a;  // "ZHT1"
inline constexpr std::uint8_t kProtocolVersion = 1;
inline constexpr std::size_t kHeaderSize = 72;
inline constexpr std::size_t kMaxFrameSize = std::size_t{64} << 20;  // header and body

enum class FrameType : std::uint8_t {
  request = 1,          // op: OpKind
  reply = 2,            // op: as asked; status
  control_request = 3,  // op: ControlKind; value: a protobuf message of zht.proto
  control_reply = 4,
  goodbye = 5,          // the client ends: what was kept to recognise its retries may go; not answered
  peer = 6,             // instance to instance: replication; not answered. first: the cluster both belong to
  manager = 7,          // manager to manager: a ManagerMessage of zht.proto; not answered. first: as above
};

enum class ControlKind : std::uint8_t {
  membership = 1,
  status = 2,
  stop = 3,
  services_changed = 4,
  sync = 5,
  join = 6,        // a node wants to belong to the cluster; answered when it has a number
  complain = 7,    // a client cannot reach an instance
  leave = 8,       // empty this node, then end it
  migrate = 9,     // move partitions; a wish
  recover = 10,    // what is left of partitions that nobody serves; and to go on with it
  exited = 11,     // a node's process has ended, says its witness
  claim = 12,      // a founder of the cluster that speaks for the first time: is its number another data folder's?
  backup = 13,     // one step of a backup: the cut is made, or read
  hello = 32,  // PROTOCOL.md, "Who may connect"
  prove = 33,
};

// Statuses beyond base::Code, for the protocol's own use; a client never shows them.
inline constexpr std::uint8_t kStatusRetry = 64;  // wrong epoch or not the owner: nothing done; see the newer view

// Of datagrams alone.
inline constexpr std::uint8_t kStatusStream = 65;  // ask over a connection, under the same identity: it may have been executed
inline constexpr std::uint8_t kStatusCookie = 66;  // nothing done: send it again with the cookie before this frame

// A datagram is a cookie (u64; 0: none yet) and one frame, this many bytes at most: it fits an Ethernet frame whole.
inline constexpr std::size_t kDatagramCookieSize = 8, kMaxDatagram = 1432;

enum Flags : std::uint32_t {
  kMissingOk = 1 << 0,  // request: remove
  kPresent = 1 << 1,    // reply: the key exists
  kEventual = 1 << 2,   // request: any replica may answer
  kRetry = 1 << 3,      // request: it may have been sent before
};

// A frame in somebody's buffer.
struct Frame {
  FrameType type = FrameType::request;
  std::uint8_t op = 0;
  std::uint8_t status = 0;
  std::uint32_t flags = 0;
  std::uint64_t request = 0;  // chosen by the asker, repeated in the reply
  // In a request: client, sequence, floor. In a reply: key version, value size, value offset.
  std::uint64_t first = 0, second = 0, third = 0;
  std::uint64_t epoch = 0;
  std::uint32_t partition = 0;
  Bytes key;    // reply: the error message
  Bytes value;
  Bytes extra;  // fields: u16 tag, u32 size, bytes
  std::size_t size = 0;  // of the whole frame

  std::uint64_t client() const { return first; }
  std::uint64_t sequence() const { return second; }
  std::uint64_t floor() const { return third; }
};

// Who asks. sequence 0: not recorded (reads). floor: every earlier request of this client up to here was answered or
// given up.
struct Identity {
  std::uint64_t request = 0;
  std::uint64_t client = 0;
  std::uint64_t sequence = 0;
  std::uint64_t floor = 0;
  std::uint64_t epoch = 0;
  PartitionId partition{0};
  std::uint64_t timeout_ms = 0;  // callback: how long to wait; others: not sent
  bool retry = false;            // it may have been sent before
};

// The first frame in `buffer`; nothing when it is not complete yet. invalid, unsupported: what comes is not a frame of
// this protocol, or one over `max_size`; the connection is beyond repair.
Result<std::optional<Frame>> next_frame(Bytes buffer, std::size_t max_size);
// The same without copies, for whoever takes many: false when it is not complete yet, and `frame` is as it was.
Result<bool> next_frame(Bytes buffer, std::size_t max_size, Frame& frame);

// An operation as it lies in a request frame.
struct OperationView {
  OpKind kind = OpKind::lookup;
  Bytes key, value;
  Condition::Kind condition = Condition::Kind::none;
  Bytes condition_value;
  Version condition_version = 0;
  Desired desired = Desired::value;
  std::uint64_t ttl_ms = 0, limit = 0, cursor = 0, timeout_ms = 0;
  bool missing_ok = false, eventual = false;
  Range range;
  Bytes procedure;
  Bytes operations;  // batch: encoded; walk with next_operation
  std::uint32_t operation_count = 0;
};
// invalid: unknown kind, a field out of shape, or a must-understand field this build does not know.
Result<OperationView> decode_operation(const Frame& frame);
Result<void> decode_operation(const Frame& frame, OperationView& operation);  // which is as it was made
// Takes the first operation off a batch's `operations`.
Result<OperationView> next_operation(Bytes& operations);

void encode_request(std::string& out, const Operation& operation, const Identity& identity);
void encode_goodbye(std::string& out, std::uint64_t client);

// Replies. The value may be written straight into `out`: begin_reply, append the value's bytes, end_reply.
struct ReplyHead {
  std::uint8_t op = 0;
  std::uint8_t status = 0;
  std::uint32_t flags = 0;
  std::uint64_t request = 0;
  Version version = 0;
  std::uint64_t size = 0, offset = 0, epoch = 0;
  std::uint32_t partition = 0;
};
std::size_t begin_reply(std::string& out, const ReplyHead& head, Bytes message = {});  // returns where the frame starts
void end_reply(std::string& out, std::size_t start, Bytes extra = {});
void encode_reply(std::string& out, OpKind kind, const Outcome& outcome, std::uint64_t request, std::uint64_t epoch,
                  std::uint32_t partition);
// The extra fields of an outcome (fragments, batch outcomes, scan entries), for begin_reply's callers.
void encode_outcome_extra(std::string& extra, const Outcome& outcome);
Result<Outcome> decode_outcome(const Frame& frame);

// An outcome alone, as batches and the result table carry it.
void encode_outcome(std::string& out, const Outcome& outcome);
Result<Outcome> decode_outcome(Bytes& in);

// Frames of type peer and manager: append the value's bytes between the two. `gathered`: bytes of the value that are not in
// `out` but sent from elsewhere.
std::size_t begin_node_frame(std::string& out, FrameType type, std::uint64_t cluster);
void end_node_frame(std::string& out, std::size_t start, std::size_t gathered = 0);

void encode_control(std::string& out, FrameType type, ControlKind kind, std::uint64_t request, Code status, Bytes message,
                    Bytes body);

}  // namespace zht::wire

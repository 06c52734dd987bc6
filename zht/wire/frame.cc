#include "zht/wire/frame.h"

namespace zht::wire {
namespace {

// Tags of extra fields. With the top bit set a reader that does not know the tag must refuse the frame; without, it
// passes over it.
constexpr std::uint16_t kMust = 0x8000;
enum Tag : std::uint16_t {
  tag_condition = kMust | 1,   // u8 kind, u64 version, value bytes
  tag_ttl = kMust | 2,         // u64 milliseconds
  tag_limit = kMust | 3,       // u64
  tag_range = kMust | 4,       // u8 kind, u64 offset, u64 size
  tag_procedure = kMust | 5,   // name
  tag_operations = kMust | 6,  // u32 count, then each operation
  tag_timeout = kMust | 7,     // u64 milliseconds
  tag_cursor = kMust | 8,      // u64
  tag_desired = kMust | 9,     // u8
  tag_fragments = kMust | 32,  // u32 sizes
  tag_fragment_count = 33,     // u32 count, u32 index
  tag_outcomes = kMust | 34,   // u32 count, then each outcome
  tag_failed_index = 35,       // u32
  tag_entries = kMust | 36,    // u32 count; each: u64 version, u64 size, u32 length, key
};

// Writes one field; the size is filled in when the body is done.
class Field {
 public:
  Field(std::string& out, std::uint16_t tag) : out_(out), writer(out) {
    writer.u16(tag);
    at_ = out.size();
    writer.u32(0);
  }
  ~Field() { base::store<std::uint32_t>(out_.data() + at_, static_cast<std::uint32_t>(out_.size() - at_ - 4)); }

 private:
  std::string& out_;
  std::size_t at_ = 0;

 public:
  base::Writer writer;
};

void encode_extra(std::string& out, const Operation& operation, std::uint64_t timeout_ms);

std::uint32_t flags_of(const Operation& operation) {
  return (operation.missing_ok ? std::uint32_t{kMissingOk} : 0u) | (operation.eventual ? std::uint32_t{kEventual} : 0u);
}

void encode_operation(std::string& out, const Operation& operation) {
  base::Writer writer(out);
  writer.u8(static_cast<std::uint8_t>(operation.kind));
  writer.u8(static_cast<std::uint8_t>(flags_of(operation)));
  writer.str(operation.key);
  writer.str(operation.value);
  std::string extra;
  encode_extra(extra, operation, 0);
  writer.str(extra);
}

void encode_extra(std::string& out, const Operation& operation, std::uint64_t timeout_ms) {
  if (operation.condition.kind != Condition::Kind::none) {
    Field field(out, tag_condition);
    field.writer.u8(static_cast<std::uint8_t>(operation.condition.kind));
    field.writer.u64(operation.condition.version);
    field.writer.raw(operation.condition.value);
  }
  if (operation.ttl.count() > 0) Field(out, tag_ttl).writer.u64(static_cast<std::uint64_t>(operation.ttl.count()));
  if (operation.limit != 0) Field(out, tag_limit).writer.u64(operation.limit);
  if (operation.range.kind != Range::Kind::whole) {
    Field field(out, tag_range);
    field.writer.u8(static_cast<std::uint8_t>(operation.range.kind));
    field.writer.u64(operation.range.offset);
    field.writer.u64(operation.range.size);
  }
  if (operation.kind == OpKind::update) Field(out, tag_procedure).writer.raw(operation.procedure);
  if (operation.kind == OpKind::batch) {
    Field field(out, tag_operations);
    field.writer.u32(static_cast<std::uint32_t>(operation.operations.size()));
    for (const Operation& one : operation.operations) encode_operation(out, one);
  }
  if (timeout_ms != 0) Field(out, tag_timeout).writer.u64(timeout_ms);
  if (operation.cursor != 0) Field(out, tag_cursor).writer.u64(operation.cursor);
  if (operation.desired != Desired::value) Field(out, tag_desired).writer.u8(static_cast<std::uint8_t>(operation.desired));
}

// Lays out a header; the three lengths are filled in by finish().
std::size_t begin(std::string& out, FrameType type, std::uint8_t op, std::uint8_t status, std::uint32_t flags,
                  std::uint64_t request, std::uint64_t first, std::uint64_t second, std::uint64_t third,
                  std::uint64_t epoch, std::uint32_t partition) {
  // Straight to where they stay: numbers just written, read again in wider pieces to be copied, would have to wait until
  // all writes before them have reached the cache.
  const std::size_t start = out.size();
  out.resize(start + kHeaderSize);
  char* const header = out.data() + start;
  base::store(header, kMagic);
  header[4] = static_cast<char>(kProtocolVersion);
  header[5] = static_cast<char>(type);
  header[6] = static_cast<char>(op);
  header[7] = static_cast<char>(status);
  base::store(header + 8, flags);
  base::store(header + 16, request);
  base::store(header + 24, first);
  base::store(header + 32, second);
  base::store(header + 40, third);
  base::store(header + 48, epoch);
  base::store(header + 56, partition);
  return start;
}

void finish(std::string& out, std::size_t start, std::size_t key, std::size_t value, std::size_t extra) {
  char* header = out.data() + start;
  base::store(header + 12, static_cast<std::uint32_t>(key + value + extra));
  base::store(header + 60, static_cast<std::uint32_t>(key));
  base::store(header + 64, static_cast<std::uint32_t>(value));
  base::store(header + 68, static_cast<std::uint32_t>(extra));
}

Result<void> decode_extra(OperationView& operation, Bytes extra) {
  base::Reader reader(extra);
  while (reader.left() > 0) {
    const std::uint16_t tag = reader.u16();
    const Bytes body = reader.str();
    if (!reader.ok()) return fail(Code::invalid, "request: extra fields are cut short");
    base::Reader field(body);
    switch (tag) {
      case tag_condition: {
        const std::uint8_t kind = field.u8();
        operation.condition_version = field.u64();
        operation.condition_value = field.raw(field.left());
        if (!field.ok() || kind > static_cast<std::uint8_t>(Condition::Kind::version_after))
          return fail(Code::invalid, "request: condition of kind ", int{kind}, " is not known");
        operation.condition = static_cast<Condition::Kind>(kind);
        break;
      }
      case tag_ttl: operation.ttl_ms = field.u64(); break;
      case tag_limit: operation.limit = field.u64(); break;
      case tag_range: {
        const std::uint8_t kind = field.u8();
        if (kind > static_cast<std::uint8_t>(Range::Kind::nothing))
          return fail(Code::invalid, "request: range of kind ", int{kind}, " is not known");
        operation.range.kind = static_cast<Range::Kind>(kind);
        operation.range.offset = field.u64();
        operation.range.size = field.u64();
        break;
      }
      case tag_procedure: operation.procedure = body; continue;
      case tag_operations:
        operation.operation_count = field.u32();
        operation.operations = field.raw(field.left());
        break;
      case tag_timeout: operation.timeout_ms = field.u64(); break;
      case tag_cursor: operation.cursor = field.u64(); break;
      case tag_desired: {
        const std::uint8_t desired = field.u8();
        if (desired > static_cast<std::uint8_t>(Desired::keep))
          return fail(Code::invalid, "request: desired of kind ", int{desired}, " is not known");
        operation.desired = static_cast<Desired>(desired);
        break;
      }
      default:
        if (tag & kMust) return fail(Code::unsupported, "request: field ", tag & ~kMust, " is not known to this build");
        continue;
    }
    if (!field.ok()) return fail(Code::invalid, "request: field ", tag & ~kMust, " is cut short");
  }
  return {};
}

Result<OpKind> decode_kind(std::uint8_t kind) {
  if (kind < static_cast<std::uint8_t>(OpKind::insert) || kind > static_cast<std::uint8_t>(OpKind::scan))
    return fail(Code::unsupported, "request: operation ", int{kind}, " is not known");
  return static_cast<OpKind>(kind);
}

Result<Outcome> decode_outcome_at(Bytes& in, int depth);

// `depth`: outcomes within outcomes. A batch holds no batch, so more than one level comes from no server, and without a
// bound a hostile reply would recurse until the stack ends.
Result<void> decode_outcome_extra(Outcome& outcome, Bytes extra, int depth) {
  base::Reader reader(extra);
  while (reader.left() > 0) {
    const std::uint16_t tag = reader.u16();
    Bytes body = reader.str();
    if (!reader.ok()) return fail(Code::corrupt, "reply: extra fields are cut short");
    base::Reader field(body);
    switch (tag) {
      case tag_fragments:
        outcome.fragments.resize(body.size() / 4);
        for (auto& size : outcome.fragments) size = field.u32();
        break;
      case tag_fragment_count:
        outcome.fragment_count = field.u32();
        outcome.fragment_index = field.u32();
        break;
      case tag_outcomes: {
        const std::uint32_t count = field.u32();
        if (!field.ok() || count > kMaxBatchSize || depth > 1) return fail(Code::corrupt, "reply: ", count, " outcomes, ", depth, " deep");
        body.remove_prefix(4);
        for (std::uint32_t i = 0; i < count; i++) {
          TRY_LET(one, decode_outcome_at(body, depth + 1));
          outcome.outcomes.push_back(std::move(one));
        }
        continue;
      }
      case tag_failed_index: outcome.failed_index = field.u32(); break;
      case tag_cursor: outcome.cursor = field.u64(); break;
      case tag_entries: {
        const std::uint32_t count = field.u32();
        for (std::uint32_t i = 0; i < count && field.ok(); i++) {
          ScanEntry entry;
          entry.version = field.u64();
          entry.size = field.u64();
          entry.key = std::string(field.str());
          outcome.entries.push_back(std::move(entry));
        }
        break;
      }
      default:
        if (tag & kMust) return fail(Code::unsupported, "reply: field ", tag & ~kMust, " is not known to this build");
        continue;
    }
    if (!field.ok()) return fail(Code::corrupt, "reply: field ", tag & ~kMust, " is cut short");
  }
  return {};
}

Result<Outcome> decode_outcome_at(Bytes& in, int depth) {
  base::Reader reader(in);
  Outcome outcome;
  const std::uint8_t code = reader.u8();
  outcome.present = reader.u8() != 0;
  outcome.version = reader.u64();
  outcome.size = reader.u64();
  outcome.offset = reader.u64();
  outcome.message = std::string(reader.str());
  outcome.value = std::string(reader.str());
  const Bytes extra = reader.str();
  if (!reader.ok() || code > static_cast<std::uint8_t>(Code::unsupported)) return fail(Code::corrupt, "outcome: cut short");
  outcome.code = static_cast<Code>(code);
  outcome.fragment_count = outcome.present ? 1 : 0;
  TRY(decode_outcome_extra(outcome, extra, depth));
  in.remove_prefix(in.size() - reader.left());
  return outcome;
}

}  // namespace

Result<std::optional<Frame>> next_frame(Bytes buffer, std::size_t max_size) {
  Frame frame;
  TRY_LET(complete, next_frame(buffer, max_size, frame));
  return complete ? std::optional<Frame>(frame) : std::nullopt;
}

Result<bool> next_frame(Bytes buffer, std::size_t max_size, Frame& frame) {
  if (buffer.size() < kHeaderSize) {
    // Refuse what can never become a frame as soon as its first bytes show it.
    if (buffer.size() >= 4 && base::load<std::uint32_t>(buffer.data()) != kMagic)
      return fail(Code::invalid, "not a ZHT frame: it starts with \"", base::escape(buffer.substr(0, 4)), "\"");
    return false;
  }
  const char* header = buffer.data();
  if (base::load<std::uint32_t>(header) != kMagic)
    return fail(Code::invalid, "not a ZHT frame: it starts with \"", base::escape(buffer.substr(0, 4)), "\"");
  const auto version = static_cast<std::uint8_t>(header[4]);
  if (version != kProtocolVersion)
    return fail(Code::unsupported, "frame of protocol version ", int{version}, ", this build speaks ", int{kProtocolVersion});
  const auto type = static_cast<std::uint8_t>(header[5]);
  if (type < 1 || type > static_cast<std::uint8_t>(FrameType::manager))
    return fail(Code::unsupported, "frame of type ", int{type}, " is not known");
  const std::uint64_t body = base::load<std::uint32_t>(header + 12);
  const std::uint64_t key = base::load<std::uint32_t>(header + 60);
  const std::uint64_t value = base::load<std::uint32_t>(header + 64);
  const std::uint64_t extra = base::load<std::uint32_t>(header + 68);
  if (body != key + value + extra)
    return fail(Code::invalid, "frame of ", body, " body bytes whose parts are ", key, ", ", value, " and ", extra);
  if (kHeaderSize + body > max_size)
    return fail(Code::invalid, "frame of ", kHeaderSize + body, " bytes, the limit is ", max_size);
  if (buffer.size() < kHeaderSize + body) return false;
  frame.type = static_cast<FrameType>(type);
  frame.op = static_cast<std::uint8_t>(header[6]);
  frame.status = static_cast<std::uint8_t>(header[7]);
  frame.flags = base::load<std::uint32_t>(header + 8);
  frame.request = base::load<std::uint64_t>(header + 16);
  frame.first = base::load<std::uint64_t>(header + 24);
  frame.second = base::load<std::uint64_t>(header + 32);
  frame.third = base::load<std::uint64_t>(header + 40);
  frame.epoch = base::load<std::uint64_t>(header + 48);
  frame.partition = base::load<std::uint32_t>(header + 56);
  frame.key = buffer.substr(kHeaderSize, key);
  frame.value = buffer.substr(kHeaderSize + key, value);
  frame.extra = buffer.substr(kHeaderSize + key + value, extra);
  frame.size = kHeaderSize + body;
  return true;
}

Result<OperationView> decode_operation(const Frame& frame) {
  OperationView operation;
  TRY(decode_operation(frame, operation));
  return operation;
}

Result<void> decode_operation(const Frame& frame, OperationView& operation) {
  TRY_LET(kind, decode_kind(frame.op));
  operation.kind = kind;
  operation.key = frame.key;
  operation.value = frame.value;
  operation.missing_ok = frame.flags & kMissingOk;
  operation.eventual = frame.flags & kEventual;
  if (!frame.extra.empty()) return decode_extra(operation, frame.extra);
  return {};
}

Result<OperationView> next_operation(Bytes& operations) {
  base::Reader reader(operations);
  OperationView operation;
  TRY_LET(kind, decode_kind(reader.u8()));
  operation.kind = kind;
  const std::uint8_t flags = reader.u8();
  operation.missing_ok = flags & kMissingOk;
  operation.eventual = flags & kEventual;
  operation.key = reader.str();
  operation.value = reader.str();
  const Bytes extra = reader.str();
  if (!reader.ok()) return fail(Code::invalid, "batch: cut short");
  if (!extra.empty()) TRY(decode_extra(operation, extra));
  operations.remove_prefix(operations.size() - reader.left());
  return operation;
}

void encode_request(std::string& out, const Operation& operation, const Identity& identity) {
  const std::size_t start =
      begin(out, FrameType::request, static_cast<std::uint8_t>(operation.kind), 0,
            flags_of(operation) | (identity.retry ? std::uint32_t{kRetry} : 0u), identity.request, identity.client,
            identity.sequence, identity.floor, identity.epoch, static_cast<std::uint32_t>(identity.partition));
  out.append(operation.key);
  out.append(operation.value);
  const std::size_t before = out.size();
  encode_extra(out, operation, identity.timeout_ms);
  finish(out, start, operation.key.size(), operation.value.size(), out.size() - before);
}

void encode_goodbye(std::string& out, std::uint64_t client) {
  begin(out, FrameType::goodbye, 0, 0, 0, 0, client, 0, 0, 0, 0);
}

std::size_t begin_reply(std::string& out, const ReplyHead& head, Bytes message) {
  const std::size_t start = begin(out, FrameType::reply, head.op, head.status, head.flags, head.request, head.version,
                                  head.size, head.offset, head.epoch, head.partition);
  base::store(out.data() + start + 60, static_cast<std::uint32_t>(message.size()));
  out.append(message);
  return start;
}

void end_reply(std::string& out, std::size_t start, Bytes extra) {
  const std::size_t key = base::load<std::uint32_t>(out.data() + start + 60);
  const std::size_t value = out.size() - start - kHeaderSize - key;
  out.append(extra);
  finish(out, start, key, value, extra.size());
}

void encode_outcome_extra(std::string& extra, const Outcome& outcome) {
  if (!outcome.fragments.empty()) {
    Field field(extra, tag_fragments);
    for (std::uint32_t size : outcome.fragments) field.writer.u32(size);
  }
  if (outcome.fragment_count > 1 || outcome.fragment_index > 0) {
    Field field(extra, tag_fragment_count);
    field.writer.u32(outcome.fragment_count);
    field.writer.u32(outcome.fragment_index);
  }
  if (!outcome.outcomes.empty()) {
    Field field(extra, tag_outcomes);
    field.writer.u32(static_cast<std::uint32_t>(outcome.outcomes.size()));
    for (const Outcome& one : outcome.outcomes) encode_outcome(extra, one);
  }
  if (outcome.failed_index != 0) Field(extra, tag_failed_index).writer.u32(outcome.failed_index);
  if (!outcome.entries.empty()) {
    Field field(extra, tag_entries);
    field.writer.u32(static_cast<std::uint32_t>(outcome.entries.size()));
    for (const ScanEntry& entry : outcome.entries) {
      field.writer.u64(entry.version);
      field.writer.u64(entry.size);
      field.writer.str(entry.key);
    }
  }
  if (outcome.cursor != 0) Field(extra, tag_cursor).writer.u64(outcome.cursor);
}

void encode_reply(std::string& out, OpKind kind, const Outcome& outcome, std::uint64_t request, std::uint64_t epoch,
                  std::uint32_t partition) {
  const std::size_t start = begin_reply(out,
                                        {.op = static_cast<std::uint8_t>(kind),
                                         .status = static_cast<std::uint8_t>(outcome.code),
                                         .flags = outcome.present ? std::uint32_t{kPresent} : 0,
                                         .request = request,
                                         .version = outcome.version,
                                         .size = outcome.size,
                                         .offset = outcome.offset,
                                         .epoch = epoch,
                                         .partition = partition},
                                        outcome.message);
  out.append(outcome.value);
  std::string extra;
  encode_outcome_extra(extra, outcome);
  end_reply(out, start, extra);
}

Result<Outcome> decode_outcome(const Frame& frame) {
  Outcome outcome;
  if (frame.status > static_cast<std::uint8_t>(Code::unsupported))
    return fail(Code::unsupported, "reply of status ", int{frame.status}, " is not known");
  outcome.code = static_cast<Code>(frame.status);
  outcome.message = std::string(frame.key);
  outcome.present = frame.flags & kPresent;
  outcome.value = std::string(frame.value);
  outcome.version = frame.first;
  outcome.size = frame.second;
  outcome.offset = frame.third;
  outcome.fragment_count = outcome.present ? 1 : 0;
  if (!frame.extra.empty()) TRY(decode_outcome_extra(outcome, frame.extra, 0));
  return outcome;
}

void encode_outcome(std::string& out, const Outcome& outcome) {
  base::Writer writer(out);
  writer.u8(static_cast<std::uint8_t>(outcome.code));
  writer.u8(outcome.present ? 1 : 0);
  writer.u64(outcome.version);
  writer.u64(outcome.size);
  writer.u64(outcome.offset);
  writer.str(outcome.message);
  writer.str(outcome.value);
  std::string extra;
  encode_outcome_extra(extra, outcome);
  writer.str(extra);
}

Result<Outcome> decode_outcome(Bytes& in) { return decode_outcome_at(in, 0); }

std::size_t begin_node_frame(std::string& out, FrameType type, std::uint64_t cluster) {
  return begin(out, type, 0, 0, 0, 0, cluster, 0, 0, 0, 0);
}

void end_node_frame(std::string& out, std::size_t start, std::size_t gathered) {
  finish(out, start, 0, out.size() - start - kHeaderSize + gathered, 0);
}

void encode_control(std::string& out, FrameType type, ControlKind kind, std::uint64_t request, Code status, Bytes message,
                    Bytes body) {
  const std::size_t start = begin(out, type, static_cast<std::uint8_t>(kind), static_cast<std::uint8_t>(status), 0, request,
                                  0, 0, 0, 0, 0);
  out.append(message);
  out.append(body);
  finish(out, start, message.size(), body.size(), 0);
}

}  // namespace zht::wire

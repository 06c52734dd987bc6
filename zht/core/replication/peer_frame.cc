#include "zht/core/replication/peer_frame.h"

#include <algorithm>

#include "zht/core/replication/bounds.h"

namespace zht::replication {
namespace {

using base::Reader;
using base::Writer;
using base::fail;

enum Part : std::uint8_t { part_beacon = 1, part_answer = 2 };
enum Section : std::uint8_t {
  section_append = 1, section_ack, section_piece, section_piece_ack, section_standing, section_view
};

constexpr std::uint64_t kLatestMs = 8'000'000'000'000;  // in the year 2223: there is room to count on from there

template <typename Id>
std::uint32_t id(Id value) { return static_cast<std::uint32_t>(value); }

void put(Writer& out, Member member) {
  out.u32(id(member.instance));
  out.u64(member.incarnation);
}
void put(Writer& out, Position at) {
  out.u64(number(at.epoch));
  out.u64(at.sequence);
}
void put(Writer& out, base::Time time) { out.u64(static_cast<std::uint64_t>(time.time_since_epoch().count())); }

Member get_member(Reader& in) {
  const InstanceId instance{in.u32()};
  return {instance, in.u64()};
}
Position get_position(Reader& in) {
  const Epoch epoch{in.u64()};
  return {epoch, in.u64()};
}
base::Time get_time(Reader& in) { return base::Time(base::Duration(static_cast<std::int64_t>(in.u64()))); }

// One frame after the other; each names sender and receiver.
class Encoder {
 public:
  Encoder(wire::Gathered& out, const PeerMessage& message, std::uint64_t cluster)
      : out_(out), message_(message), cluster_(cluster), writer_(out.bytes) {}

  void run() {
    begin((message_.beacon != base::Time{} ? part_beacon : 0) | (message_.answered != base::Time{} ? part_answer : 0));
    if (message_.beacon != base::Time{}) {
      put(writer_, message_.beacon);
      writer_.u64(message_.seen);
    }
    if (message_.answered != base::Time{}) answer();
    for (const Append& one : message_.appends) append(one);
    for (const Ack& one : message_.acks) ack(one);
    for (const SnapshotPiece& one : message_.pieces) piece(one);
    for (const SnapshotAck& one : message_.piece_acks) {
      section(section_piece_ack, one.partition, one.epoch);
      writer_.u64(one.id);
      writer_.u64(one.next);
    }
    for (const Standing& one : message_.standings) {
      section(section_standing, one.partition, Epoch{0});
      writer_.u64(one.since);
      put(writer_, one.end);
    }
    for (const ViewNews& one : message_.views) {
      section(section_view, one.partition, Epoch{0});
      encode(out_.bytes, one.view);
    }
    end();
  }

 private:
  void begin(int parts) {
    gathered_before_ = out_.pieces_size;
    start_ = wire::begin_node_frame(out_.bytes, wire::FrameType::peer, cluster_);
    put(writer_, message_.from);
    writer_.u32(id(message_.to));
    writer_.u8(static_cast<std::uint8_t>(parts));
  }
  void end() { wire::end_node_frame(out_.bytes, start_, out_.pieces_size - gathered_before_); }

  void section(Section kind, PartitionId partition, Epoch epoch) {
    if (out_.bytes.size() - start_ + out_.pieces_size - gathered_before_ > kPeerFrameSize) {
      end();
      begin(0);
    }
    writer_.u8(kind);
    writer_.u32(id(partition));
    writer_.u64(number(epoch));
  }

  void answer() {
    put(writer_, message_.answered);
    put(writer_, message_.answering);
    writer_.u64(message_.generation);
    writer_.u32(static_cast<std::uint32_t>(message_.departures.size()));
    for (const Departure& one : message_.departures) {
      writer_.u64(one.generation);
      writer_.u32(id(one.partition));
      writer_.u64(number(one.epoch));
    }
  }

  void append(const Append& one) {
    section(section_append, one.partition, one.epoch);
    put(writer_, one.previous);
    writer_.u64(one.end);
    put(writer_, one.takeover);
    writer_.u64(one.commit);
    writer_.u64(std::min(base::to_millis(one.time), kLatestMs));
    writer_.u32(static_cast<std::uint32_t>(one.entries.size()));
    for (const EntryPtr& entry : one.entries) {
      put(writer_, entry->at);
      writer_.u32(static_cast<std::uint32_t>(entry->payload.size()));
      if (entry->payload.size() < kGatherFrom) {
        writer_.raw(entry->payload);
        continue;
      }
      out_.gather(entry->payload, entry);
    }
  }

  void ack(const Ack& one) {
    section(section_ack, one.partition, one.epoch);
    writer_.u8(static_cast<std::uint8_t>(one.verdict));
    writer_.u64(one.match);
    writer_.u64(one.commit);
    writer_.u64(one.snapshot);
    put(writer_, one.hint);
    writer_.u64(one.floor);
  }

  void piece(const SnapshotPiece& one) {
    section(section_piece, one.partition, one.epoch);
    writer_.u64(one.id);
    writer_.u64(one.index);
    writer_.u8(one.last ? 1 : 0);
    put(writer_, one.at);
    writer_.str(one.bytes);
  }

  wire::Gathered& out_;
  const PeerMessage& message_;
  const std::uint64_t cluster_;
  Writer writer_;
  std::size_t start_ = 0, gathered_before_ = 0;
};

bool decode_append(Reader& in, Append& one) {
  one.previous = get_position(in);
  one.end = in.u64();
  one.takeover = get_position(in);
  one.commit = in.u64();
  const std::uint64_t time = in.u64();
  if (time > kLatestMs) return false;
  one.time = base::from_millis(time);
  for (std::uint32_t left = in.u32(); left > 0 && in.ok(); left--) {
    const Position at = get_position(in);
    const Bytes payload = in.str();
    if (in.ok()) one.entries.push_back(std::make_shared<const Entry>(Entry{at, std::string(payload)}));
  }
  return true;
}

bool decode_ack(Reader& in, Ack& one) {
  const std::uint8_t verdict = in.u8();
  one.verdict = static_cast<Ack::Verdict>(verdict);
  one.match = in.u64();
  one.commit = in.u64();
  one.snapshot = in.u64();
  one.hint = get_position(in);
  one.floor = in.u64();
  return verdict <= static_cast<std::uint8_t>(Ack::Verdict::behind);
}

}  // namespace

void encode_peer(wire::Gathered& out, const PeerMessage& message, std::uint64_t cluster) { Encoder(out, message, cluster).run(); }

Result<PeerMessage> decode_peer(const wire::Frame& frame, std::uint32_t partitions) {
  Reader in(frame.value);
  PeerMessage message;
  message.from = get_member(in);
  message.to = InstanceId{in.u32()};
  const std::uint8_t parts = in.u8();
  if (parts & part_beacon) {
    message.beacon = get_time(in);
    message.seen = in.u64();
  }
  if (parts & part_answer) {
    message.answered = get_time(in);
    message.answering = get_member(in);
    message.generation = in.u64();
    for (std::uint32_t left = in.u32(); left > 0 && in.ok(); left--) {
      Departure one;
      one.generation = in.u64();
      one.partition = PartitionId{in.u32()};
      one.epoch = Epoch{in.u64()};
      message.departures.push_back(one);
    }
  }
  while (in.ok() && in.left() > 0) {
    const std::uint8_t kind = in.u8();
    const PartitionId partition{in.u32()};
    const Epoch epoch{in.u64()};
    const auto begin = [&](auto& all) -> auto& {
      auto& one = all.emplace_back();
      one.partition = partition;
      one.epoch = epoch;
      return one;
    };
    switch (kind) {
      case section_append:
        if (!decode_append(in, begin(message.appends))) return fail(Code::invalid, "a message between instances: a partition's time of no calendar");
        break;
      case section_ack:
        if (!decode_ack(in, begin(message.acks))) return fail(Code::invalid, "a message between instances: an acknowledgement of no known kind");
        break;
      case section_piece: {
        SnapshotPiece& one = begin(message.pieces);
        one.id = in.u64();
        one.index = in.u64();
        one.last = in.u8() != 0;
        one.at = get_position(in);
        one.bytes = std::string(in.str());
        break;
      }
      case section_piece_ack: {
        const std::uint64_t snapshot = in.u64();
        message.piece_acks.push_back({partition, epoch, snapshot, in.u64()});
        break;
      }
      case section_standing: {
        const std::uint64_t since = in.u64();
        message.standings.push_back({partition, since, get_position(in)});
        break;
      }
      case section_view: message.views.push_back({partition, decode_view(in)}); break;
      default: return fail(Code::unsupported, "a message between instances: part ", int{kind}, " is not known to this build");
    }
  }
  if ((parts & ~(part_beacon | part_answer)) != 0 || !in.done())
    return fail(Code::invalid, "a message between instances of ", frame.value.size(), " bytes is not one");
  if (auto checked = check(message, partitions); !checked) return base::add_context("a message between instances", std::move(checked).error());
  return message;
}

}  // namespace zht::replication

#include "fabriq/core/messages.h"

#include <algorithm>

namespace fabriq {
namespace {

Error unreadable(std::string_view what, std::size_t size) {
  return fail(Code::invalid, "queue: ", what, " of ", size,
              " bytes cannot be read; client and node must be of one version");
}

void put_items(std::string& out, const std::vector<Settle>& items) {
  base::Writer writer(out);
  writer.u32(static_cast<std::uint32_t>(items.size()));
  for (const Settle& item : items) {
    writer.u8(static_cast<std::uint8_t>(item.kind));
    writer.u64(item.ms);
    item.receipt.encode_to(out);
  }
}

bool take_items(base::Reader& reader, std::vector<Settle>& items) {
  const std::uint32_t count = reader.u32();
  if (count > kMaxBatch) return false;
  std::uint64_t messages = 0;
  for (std::uint32_t i = 0; i < count && reader.ok(); i++) {
    Settle item;
    const std::uint8_t kind = reader.u8();
    if (kind > 2) return false;
    item.kind = static_cast<Settle::Kind>(kind);
    item.ms = reader.u64();
    item.receipt = Receipt::decode(reader);
    messages += item.receipt.count;
    if (item.receipt.count == 0 || messages > kMaxBatch) return false;
    items.push_back(item);
  }
  return reader.ok();
}

void put_settled(base::Writer& writer, const std::vector<Settled>& items) {
  writer.u32(static_cast<std::uint32_t>(items.size()));
  for (const Settled& item : items) {
    writer.u8(static_cast<std::uint8_t>(item.outcome));
    writer.u32(item.settled);
  }
}

bool take_settled(base::Reader& reader, std::vector<Settled>& items) {
  const std::uint32_t count = reader.u32();
  for (std::uint32_t i = 0; i < count && reader.ok(); i++) {
    Settled item;
    item.outcome = static_cast<Settled::Outcome>(std::min<std::uint8_t>(reader.u8(), 4));
    item.settled = reader.u32();
    items.push_back(item);
  }
  return reader.ok();
}

}  // namespace

std::string Attributes::encode() const {
  std::string out;
  if (producer.empty() && id.empty()) return out;
  base::Writer writer(out);
  writer.str(producer);
  writer.u64(sequence);
  writer.str(id);
  return out;
}

Attributes Attributes::decode(Bytes bytes) {
  Attributes it;
  if (bytes.empty()) return it;
  base::Reader reader(bytes);
  it.producer = std::string(reader.str());
  it.sequence = reader.u64();
  it.id = std::string(reader.str());
  return it;
}

std::string PushRequest::encode() const {
  std::string out;
  std::size_t size = 64 + producer.size() + id.size();
  for (const Message& message : messages) size += 8 + message.attributes.size() + message.body.size();
  out.reserve(size);
  base::Writer writer(out);
  writer.u64(queue_id);
  writer.str(producer);
  writer.u64(sequence);
  writer.str(id);
  writer.u64(delay_ms);
  writer.u32(static_cast<std::uint32_t>(messages.size()));
  for (const Message& message : messages) {
    writer.str(message.attributes);
    writer.str(message.body);
  }
  return out;
}

Result<PushRequest> PushRequest::decode(Bytes bytes) {
  base::Reader reader(bytes);
  PushRequest it;
  it.queue_id = reader.u64();
  it.producer = std::string(reader.str());
  it.sequence = reader.u64();
  it.id = std::string(reader.str());
  it.delay_ms = reader.u64();
  const std::uint32_t count = reader.u32();
  if (!reader.ok() || count == 0 || count > kMaxBatch) return unreadable("push", bytes.size());
  it.messages.reserve(count);
  for (std::uint32_t i = 0; i < count; i++) {
    Message message;
    message.attributes = reader.str();
    message.body = reader.str();
    it.messages.push_back(message);
  }
  if (!reader.done()) return unreadable("push", bytes.size());
  return it;
}

std::string PushReply::encode() const {
  std::string out;
  base::Writer writer(out);
  writer.u32(static_cast<std::uint32_t>(messages.size()));
  for (const Stored& stored : messages) {
    writer.u64(stored.number);
    writer.u8(stored.repeated ? 1 : 0);
  }
  return out;
}

Result<PushReply> PushReply::decode(Bytes bytes) {
  base::Reader reader(bytes);
  PushReply it;
  const std::uint32_t count = reader.u32();
  for (std::uint32_t i = 0; i < count && reader.ok(); i++) {
    Stored stored;
    stored.number = reader.u64();
    stored.repeated = reader.u8() != 0;
    it.messages.push_back(stored);
  }
  if (!reader.done()) return unreadable("answer to a push", bytes.size());
  return it;
}

std::string SettleRequest::encode() const {
  std::string out;
  base::Writer(out).u64(queue_id);
  put_items(out, items);
  return out;
}

Result<SettleRequest> SettleRequest::decode(Bytes bytes) {
  base::Reader reader(bytes);
  SettleRequest it;
  it.queue_id = reader.u64();
  if (!take_items(reader, it.items) || !reader.done()) return unreadable("settlement", bytes.size());
  return it;
}

std::string SettleReply::encode() const {
  std::string out;
  base::Writer writer(out);
  put_settled(writer, items);
  return out;
}

Result<SettleReply> SettleReply::decode(Bytes bytes) {
  base::Reader reader(bytes);
  SettleReply it;
  if (!take_settled(reader, it.items) || !reader.done()) return unreadable("answer to a settlement", bytes.size());
  return it;
}

std::string PopRequest::encode() const {
  std::string out;
  base::Writer writer(out);
  writer.u64(queue_id);
  writer.u32(max_count);
  writer.u64(max_bytes);
  writer.u64(lease_ms);
  writer.u8(at_most_once ? 1 : 0);
  put_items(out, items);
  return out;
}

Result<PopRequest> PopRequest::decode(Bytes bytes) {
  base::Reader reader(bytes);
  PopRequest it;
  it.queue_id = reader.u64();
  it.max_count = reader.u32();
  it.max_bytes = reader.u64();
  it.lease_ms = reader.u64();
  it.at_most_once = reader.u8() != 0;
  if (!take_items(reader, it.items) || !reader.done()) return unreadable("pop", bytes.size());
  return it;
}

std::string PopReply::encode() const {
  std::string out;
  std::size_t size = 64 + groups.size() * 48 + items.size() * 5;
  for (const Message& message : messages) size += 80 + message.attributes.size() + message.body.size();
  out.reserve(size);
  base::Writer writer(out);
  writer.u64(bell);
  writer.u64(ready_left);
  writer.u64(next_event_ms);
  writer.u64(oldest_ms);
  writer.u32(static_cast<std::uint32_t>(messages.size()));
  for (const Message& message : messages) {
    writer.u64(message.number);
    writer.u64(message.pushed_ms);
    writer.u32(message.deliveries);
    message.receipt.encode_to(out);
    writer.str(message.attributes);
    writer.str(message.body);
  }
  writer.u32(static_cast<std::uint32_t>(groups.size()));
  for (const Receipt& group : groups) group.encode_to(out);
  put_settled(writer, items);
  return out;
}

Result<PopReply> PopReply::decode(Bytes bytes) {
  base::Reader reader(bytes);
  PopReply it;
  it.bell = reader.u64();
  it.ready_left = reader.u64();
  it.next_event_ms = reader.u64();
  it.oldest_ms = reader.u64();
  const std::uint32_t count = reader.u32();
  for (std::uint32_t i = 0; i < count && reader.ok(); i++) {
    Message message;
    message.number = reader.u64();
    message.pushed_ms = reader.u64();
    message.deliveries = reader.u32();
    message.receipt = Receipt::decode(reader);
    message.attributes = reader.str();
    message.body = reader.str();
    it.messages.push_back(message);
  }
  const std::uint32_t groups = reader.u32();
  for (std::uint32_t i = 0; i < groups && reader.ok(); i++) it.groups.push_back(Receipt::decode(reader));
  if (!take_settled(reader, it.items) || !reader.done()) return unreadable("answer to a pop", bytes.size());
  return it;
}

std::string PeekRequest::encode() const {
  std::string out;
  base::Writer writer(out);
  writer.u64(queue_id);
  writer.u32(max_count);
  writer.u8(dead ? 1 : 0);
  return out;
}

Result<PeekRequest> PeekRequest::decode(Bytes bytes) {
  base::Reader reader(bytes);
  PeekRequest it;
  it.queue_id = reader.u64();
  it.max_count = reader.u32();
  it.dead = reader.u8() != 0;
  if (!reader.done()) return unreadable("peek", bytes.size());
  return it;
}

std::string Info::encode() const {
  std::string out;
  base::Writer writer(out);
  for (const std::uint64_t number :
       {ready, leased, waiting, dead, bytes, pushed, acked, redelivered, expired, purged, oldest_ms})
    writer.u64(number);
  return out;
}

Result<Info> Info::decode(Bytes bytes) {
  base::Reader reader(bytes);
  Info it;
  for (std::uint64_t* number : {&it.ready, &it.leased, &it.waiting, &it.dead, &it.bytes, &it.pushed, &it.acked,
                                &it.redelivered, &it.expired, &it.purged, &it.oldest_ms})
    *number = reader.u64();
  if (!reader.ok()) return unreadable("info", bytes.size());
  return it;
}

Info& Info::operator+=(const Info& other) {
  ready += other.ready;
  leased += other.leased;
  waiting += other.waiting;
  dead += other.dead;
  bytes += other.bytes;
  pushed += other.pushed;
  acked += other.acked;
  redelivered += other.redelivered;
  expired += other.expired;
  purged += other.purged;
  oldest_ms = std::max(oldest_ms, other.oldest_ms);
  return *this;
}

}  // namespace fabriq

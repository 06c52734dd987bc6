#include "fabriq/core/records.h"

#include <algorithm>

#include "fabriq/core/number.h"

namespace fabriq {
namespace {

Error damaged(std::string_view what, std::size_t size) {
  return fail(Code::corrupt, "queue: ", what, " of ", size, " bytes cannot be read");
}

// Every record opens with its format, so that an older program refuses what it cannot understand.
Result<void> check_format(std::string_view what, base::Reader& reader) {
  const std::uint8_t format = reader.u8();
  if (!reader.ok()) return damaged(what, 0);
  if (format > kFormat)
    return fail(Code::unsupported, "queue: ", what, " has format ", int{format}, ", this program knows up to ", kFormat,
                "; use a newer one");
  return {};
}

}  // namespace

Result<void> check_name(Bytes name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
  };
  if (name.empty() || name.size() > kMaxNameSize || !std::all_of(name.begin(), name.end(), allowed))
    return fail(Code::invalid, "queue name \"", base::escape(name, 40), "\" is not possible; use 1 to ", kMaxNameSize,
                " letters, digits, '.', '_' and '-'");
  return {};
}

std::string Descriptor::encode() const {
  std::string out;
  base::Writer writer(out);
  writer.u8(kFormat);
  writer.u64(queue_id);
  writer.u32(era);
  writer.u32(partition);
  writer.u64(visibility_ms);
  writer.u32(max_deliveries);
  writer.u64(max_bytes);
  writer.u64(secret[0]);
  writer.u64(secret[1]);
  return out;
}

Result<Descriptor> Descriptor::decode(Bytes bytes) {
  base::Reader reader(bytes);
  TRY(check_format("partition descriptor", reader));
  Descriptor it;
  it.queue_id = reader.u64();
  it.era = reader.u32();
  it.partition = reader.u32();
  it.visibility_ms = reader.u64();
  it.max_deliveries = reader.u32();
  it.max_bytes = reader.u64();
  it.secret[0] = reader.u64();
  it.secret[1] = reader.u64();
  if (!reader.ok()) return damaged("partition descriptor", bytes.size());
  return it;
}

std::string WriterState::encode() const {
  std::string out;
  base::Writer(out).u8(kFormat);
  for (const std::uint64_t number : {appended, delayed, segment, segment_size, stored}) put_number(out, number);
  return out;
}

Result<WriterState> WriterState::decode(Bytes bytes) {
  base::Reader reader(bytes);
  TRY(check_format("writer state", reader));
  WriterState it;
  for (std::uint64_t* number : {&it.appended, &it.delayed, &it.segment, &it.segment_size, &it.stored})
    *number = take_number(reader);
  if (!reader.ok()) return damaged("writer state", bytes.size());
  return it;
}

std::string ReaderState::encode() const {
  std::string out;
  out.reserve(160);
  base::Writer writer(out);
  writer.u64(freed);
  writer.u8(kFormat);
  for (const std::uint64_t number : {taken,
                                     segment,
                                     offset,
                                     segment_taken,
                                     segment_gone,
                                     entry_size,
                                     next_lease,
                                     oldest_lease,
                                     last_deadline,
                                     clock,
                                     skew,
                                     leased,
                                     returned,
                                     waiting,
                                     dead,
                                     acked,
                                     redelivered,
                                     expired,
                                     purged,
                                     ready_list.first,
                                     ready_list.read,
                                     ready_list.last,
                                     ready_list.written,
                                     dead_list.first,
                                     dead_list.read,
                                     dead_list.last,
                                     dead_list.written,
                                     wheel.now})
    put_number(out, number);
  std::uint8_t levels = 0;
  for (unsigned level = 0; level < kWheelLevels; level++)
    if (wheel.occupied[level] != 0) levels |= static_cast<std::uint8_t>(1u << level);
  writer.u8(levels);
  for (const std::uint64_t bits : wheel.occupied)
    if (bits != 0) writer.u64(bits);
  writer.u8(wheel.draining ? 1 : 0);
  if (wheel.draining) {
    writer.u8(wheel.level);
    writer.u8(wheel.slot);
    put_number(out, wheel.offset);
  }
  return out;
}

Result<ReaderState> ReaderState::decode(Bytes bytes) {
  base::Reader reader(bytes);
  ReaderState it;
  it.freed = reader.u64();
  TRY(check_format("reader state", reader));
  for (std::uint64_t* number : {&it.taken,
                                &it.segment,
                                &it.offset,
                                &it.segment_taken,
                                &it.segment_gone,
                                &it.entry_size,
                                &it.next_lease,
                                &it.oldest_lease,
                                &it.last_deadline,
                                &it.clock,
                                &it.skew,
                                &it.leased,
                                &it.returned,
                                &it.waiting,
                                &it.dead,
                                &it.acked,
                                &it.redelivered,
                                &it.expired,
                                &it.purged,
                                &it.ready_list.first,
                                &it.ready_list.read,
                                &it.ready_list.last,
                                &it.ready_list.written,
                                &it.dead_list.first,
                                &it.dead_list.read,
                                &it.dead_list.last,
                                &it.dead_list.written,
                                &it.wheel.now})
    *number = take_number(reader);
  const std::uint8_t levels = reader.u8();
  for (unsigned level = 0; level < kWheelLevels; level++)
    if ((levels >> level) & 1) it.wheel.occupied[level] = reader.u64();
  it.wheel.draining = reader.u8() != 0;
  if (it.wheel.draining) {
    it.wheel.level = reader.u8();
    it.wheel.slot = reader.u8();
    it.wheel.offset = take_number(reader);
  }
  if (!reader.ok()) return damaged("reader state", bytes.size());
  return it;
}

Result<std::uint64_t> ReaderState::decode_freed(Bytes first_eight) {
  if (first_eight.size() < 8) return damaged("reader state", first_eight.size());
  return base::load<std::uint64_t>(first_eight.data());
}

std::string SegmentRest::encode() const {
  std::string out;
  put_number(out, size);
  put_number(out, left);
  return out;
}

Result<SegmentRest> SegmentRest::decode(Bytes bytes) {
  base::Reader reader(bytes);
  SegmentRest it;
  it.size = take_number(reader);
  it.left = take_number(reader);
  if (!reader.ok()) return damaged("segment record", bytes.size());
  return it;
}

void LeaseRecord::set_gone(std::uint32_t k) {
  if (gone.empty()) gone.assign((count + 7) / 8, '\0');
  gone[k / 8] = static_cast<char>(gone[k / 8] | (1 << (k % 8)));
}

std::string LeaseRecord::encode() const {
  std::string out;
  for (const std::uint64_t number :
       {segment, offset, size, first, std::uint64_t{count}, std::uint64_t{pending}, deadline, std::uint64_t{in_order}})
    put_number(out, number);
  out += gone;
  return out;
}

Result<LeaseRecord> LeaseRecord::decode(Bytes bytes) {
  base::Reader reader(bytes);
  LeaseRecord it;
  for (std::uint64_t* number : {&it.segment, &it.offset, &it.size, &it.first}) *number = take_number(reader);
  it.count = static_cast<std::uint32_t>(take_number(reader));
  it.pending = static_cast<std::uint32_t>(take_number(reader));
  it.deadline = take_number(reader);
  it.in_order = take_number(reader) != 0;
  it.gone = std::string(reader.raw(reader.left()));
  if (!reader.ok() || it.count == 0 || it.pending > it.count ||
      (!it.gone.empty() && it.gone.size() != (it.count + 7) / 8))
    return damaged("lease", bytes.size());
  return it;
}

std::string AloneState::encode() const {
  std::string out;
  base::Writer writer(out);
  writer.u8(static_cast<std::uint8_t>(phase));
  writer.u8(static_cast<std::uint8_t>((given_up ? 1 : 0) | (shared ? 2 : 0)));
  for (const std::uint64_t number : {std::uint64_t{deliveries}, lease, until, size}) put_number(out, number);
  return out;
}

Result<AloneState> AloneState::decode(Bytes bytes) {
  base::Reader reader(bytes);
  AloneState it;
  const std::uint8_t phase = reader.u8();
  it.phase = static_cast<Phase>(phase);
  const std::uint8_t flags = reader.u8();
  it.given_up = (flags & 1) != 0;
  it.shared = (flags & 2) != 0;
  it.deliveries = static_cast<std::uint32_t>(take_number(reader));
  for (std::uint64_t* number : {&it.lease, &it.until, &it.size}) *number = take_number(reader);
  if (!reader.ok() || phase > 3) return damaged("message state", bytes.size());
  return it;
}

void Entry::encode_to(std::string& out) const {
  encode_head_to(out);
  out.append(body);
}

void Entry::encode_head_to(std::string& out) const {
  base::Writer writer(out);
  writer.u32(static_cast<std::uint32_t>(body.size()));
  writer.u32(static_cast<std::uint32_t>(attributes.size()));
  writer.u64(pushed_ms);
  writer.raw(attributes);
}

bool Entry::decode(Bytes bytes, Entry& entry) {
  base::Reader reader(bytes);
  const std::uint32_t body_size = reader.u32();
  const std::uint32_t attributes_size = reader.u32();
  entry.pushed_ms = reader.u64();
  entry.attributes = reader.raw(attributes_size);
  entry.body = reader.raw(body_size);
  return reader.ok();
}

std::string QueueRecord::encode() const {
  std::string out;
  base::Writer writer(out);
  writer.u8(kFormat);
  writer.u8(static_cast<std::uint8_t>(phase));
  writer.u64(queue_id);
  writer.u32(partitions);
  writer.u64(visibility_ms);
  writer.u32(max_deliveries);
  writer.u64(max_bytes);
  writer.u64(secret[0]);
  writer.u64(secret[1]);
  writer.u64(created_ms);
  return out;
}

Result<QueueRecord> QueueRecord::decode(Bytes bytes) {
  base::Reader reader(bytes);
  TRY(check_format("queue record", reader));
  QueueRecord it;
  const std::uint8_t phase = reader.u8();
  it.phase = static_cast<Phase>(phase);
  it.queue_id = reader.u64();
  it.partitions = reader.u32();
  it.visibility_ms = reader.u64();
  it.max_deliveries = reader.u32();
  it.max_bytes = reader.u64();
  it.secret[0] = reader.u64();
  it.secret[1] = reader.u64();
  it.created_ms = reader.u64();
  if (!reader.ok() || phase > 2 || it.partitions == 0 || it.partitions > kMaxPartitions)
    return damaged("queue record", bytes.size());
  return it;
}

std::string queue_key(Bytes name) { return std::string(kQueuePrefix) + std::string(name); }

std::string partition_tag(Bytes name, std::uint32_t partition) {
  return "{q:" + std::string(name) + ":" + std::to_string(partition) + "}";
}

std::string bell_key(Bytes name, std::uint32_t partition) { return partition_tag(name, partition) + "w"; }

std::string Keys::numbered(char letter, std::uint32_t era, std::uint64_t number) const {
  std::string key;
  key.reserve(tag_.size() + 13);
  key = tag_;
  key.push_back(letter);
  base::Writer writer(key);
  writer.u32(era);
  writer.u64(number);
  return key;
}

std::string Keys::slot(std::uint32_t era, unsigned level, unsigned slot) const {
  return numbered('t', era, (std::uint64_t{level} << 8) | slot);
}

bool Keys::is_garbage(Bytes key, std::uint32_t era) const {
  if (!key.starts_with(tag_) || key.size() != tag_.size() + 13) return false;
  constexpr std::string_view kOfAnEra = "sklxyzfgt";
  if (kOfAnEra.find(key[tag_.size()]) == std::string_view::npos) return false;
  return base::load<std::uint32_t>(key.data() + tag_.size() + 1) < era;
}

}  // namespace fabriq

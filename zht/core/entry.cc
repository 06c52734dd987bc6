#include "zht/core/entry.h"

namespace zht::core {

using novoht::Change;

namespace {
constexpr std::uint8_t kExpires = 0x80;  // in a change's kind
}

std::string encode_entry(std::span<const Change> changes, base::Bytes note) {
  std::string out;
  std::size_t size = 8 + note.size();
  for (const Change& change : changes) size += 17 + change.key.size() + change.value.size();
  out.reserve(size);
  base::Writer writer(out);
  writer.str(note);
  writer.u32(static_cast<std::uint32_t>(changes.size()));
  for (const Change& change : changes) {
    const bool expires = change.expires != base::kNever;
    writer.u8(static_cast<std::uint8_t>(static_cast<std::uint8_t>(change.kind) | (expires ? kExpires : 0)));
    if (expires) writer.u64(base::to_millis(change.expires));
    writer.str(change.key);
    writer.str(change.value);
  }
  return out;
}

base::Result<EntryView> decode_entry(base::Bytes payload) {
  base::Reader reader(payload);
  EntryView entry;
  entry.note = reader.str();
  const std::uint32_t count = reader.u32();
  if (count <= payload.size() / 9) entry.changes.reserve(count);
  for (std::uint32_t i = 0; i < count && reader.ok(); i++) {
    Change& change = entry.changes.emplace_back();
    const std::uint8_t kind = reader.u8();
    if ((kind & ~kExpires) < 1 || (kind & ~kExpires) > 3)
      return base::fail(base::Code::corrupt, "an entry of ", payload.size(), " bytes: change ", i, " is of kind ", int{kind});
    change.kind = static_cast<Change::Kind>(kind & ~kExpires);
    if (kind & kExpires) change.expires = base::from_millis(reader.u64());
    change.key = reader.str();
    change.value = reader.str();
  }
  if (!reader.done()) return base::fail(base::Code::corrupt, "an entry of ", payload.size(), " bytes is cut short or too long");
  return entry;
}

}  // namespace zht::core

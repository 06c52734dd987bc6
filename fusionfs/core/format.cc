#include "fusionfs/core/format.h"

#include <charconv>

namespace fusionfs {
namespace {

constexpr std::uint8_t kInodeFormat = 1;
constexpr std::uint8_t kEntryFormat = 1;
constexpr std::uint8_t kSplitFormat = 1;

void put_hex(std::string& out, std::uint64_t number) {
  char digits[16];
  const auto end = std::to_chars(digits, digits + sizeof digits, number, 16).ptr;
  out.append(digits, end);
}

std::string key_with(HomeId home, char kind) {
  std::string key;
  key.reserve(48);
  key += "{d:";
  put_hex(key, raw(home));
  key += '}';
  key += kind;
  return key;
}

std::string key_with_number(HomeId home, char kind, std::uint64_t number) {
  std::string key = key_with(home, kind);
  key += '/';
  put_hex(key, number);
  return key;
}

std::string key_with_numbers(InodeId inode, char kind, std::uint64_t id) {
  std::string key = key_with_number(home_of(inode), kind, counter_of(inode));
  key += '/';
  put_hex(key, id);
  return key;
}

}  // namespace

bool parse_hex(Bytes text, std::uint64_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, 16);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}
std::string tag_of(HomeId home) {
  std::string tag = "{d:";
  put_hex(tag, raw(home));
  tag += '}';
  return tag;
}
std::string inode_key(InodeId inode) { return key_with_number(home_of(inode), 'i', counter_of(inode)); }
std::string attributes_key(InodeId inode) { return key_with_number(home_of(inode), 'x', counter_of(inode)); }
std::string entry_key(HomeId home, Bytes name) {
  std::string key = key_with(home, 'e');
  key += '/';
  key += name;
  return key;
}
std::string listing_key(HomeId home) { return key_with(home, 'l'); }
std::string debt_key(HomeId home, std::uint64_t id) { return key_with_number(home, 'u', id); }
std::string paid_key(InodeId inode, std::uint64_t id) { return key_with_numbers(inode, 'k', id); }
std::string transfer_key(HomeId home, std::uint64_t id) { return key_with_number(home, 'm', id); }
std::string pending_key(InodeId inode, std::uint64_t id) { return key_with_numbers(inode, 'p', id); }
std::string fence_key(HomeId home) { return key_with(home, 'c'); }
std::string lease_key(HomeId home) { return key_with(home, 'w'); }
std::string openers_key(HomeId home) { return key_with(home, 'o'); }
std::string keepers_key(InodeId inode) { return key_with_number(home_of(inode), 'h', counter_of(inode)); }
std::string split_key(HomeId home) { return key_with(home, 's'); }
std::string provenance_key(InodeId inode) { return key_with_number(home_of(inode), 'v', counter_of(inode)); }
std::string locks_key(InodeId inode) { return key_with_number(home_of(inode), 'f', counter_of(inode)); }
std::string session_key(std::uint64_t session) {
  std::string key = "{s:";
  put_hex(key, session);
  return key + "}alive";
}
std::string session_orphans_key(std::uint64_t session) {
  std::string key = "{s:";
  put_hex(key, session);
  return key + "}orphans";
}

std::string encode(const Inode& inode) {
  std::string out;
  out.reserve(116 + inode.content.size());
  base::Writer to(out);
  to.u8(kInodeFormat);
  to.u8(static_cast<std::uint8_t>(inode.copies.empty() ? inode.flags & ~Inode::kCopied : inode.flags | Inode::kCopied));
  to.u16(inode.wanted);
  to.u32(inode.mode);
  to.u32(inode.uid);
  to.u32(inode.gid);
  to.u32(inode.links);
  to.u64(inode.device);
  to.u64(inode.size);
  to.u64(inode.blocks);
  to.u64(static_cast<std::uint64_t>(inode.atime));
  to.u64(static_cast<std::uint64_t>(inode.mtime));
  to.u64(static_cast<std::uint64_t>(inode.ctime));
  to.u64(static_cast<std::uint64_t>(inode.btime));
  to.u64(inode.store);
  to.u64(raw(inode.parent));
  to.u64(inode.revision);
  to.str(inode.content);
  if (!inode.copies.empty()) {
    to.u8(static_cast<std::uint8_t>(inode.copies.size()));
    for (const std::uint64_t each : inode.copies) to.u64(each);
  }
  return out;
}

std::optional<Inode> decode_inode(InodeId id, Bytes bytes) {
  base::Reader from(bytes);
  Inode inode;
  inode.id = id;
  if (from.u8() != kInodeFormat) return std::nullopt;
  inode.flags = from.u8();
  inode.wanted = from.u16();
  inode.mode = from.u32();
  inode.uid = from.u32();
  inode.gid = from.u32();
  inode.links = from.u32();
  inode.device = from.u64();
  inode.size = from.u64();
  inode.blocks = from.u64();
  inode.atime = static_cast<Nanos>(from.u64());
  inode.mtime = static_cast<Nanos>(from.u64());
  inode.ctime = static_cast<Nanos>(from.u64());
  inode.btime = static_cast<Nanos>(from.u64());
  inode.store = from.u64();
  inode.parent = InodeId{from.u64()};
  inode.revision = from.u64();
  inode.content = from.str();
  if (inode.has(Inode::kCopied)) {
    const std::uint8_t count = from.u8();
    for (std::uint8_t i = 0; i < count && from.ok(); ++i) inode.copies.push_back(from.u64());
    inode.flags = static_cast<std::uint8_t>(inode.flags & ~Inode::kCopied);
  }
  if (!from.done()) return std::nullopt;
  return inode;
}

namespace {
constexpr std::uint8_t kMovingFlag = 1, kInitialFlag = 2;
}

std::string encode(const Entry& entry) {
  std::string out;
  base::Writer to(out);
  to.u8(kEntryFormat);
  to.u8(static_cast<std::uint8_t>((entry.moving ? kMovingFlag : 0) | (entry.initial ? kInitialFlag : 0)));
  to.u16(static_cast<std::uint16_t>(entry.type >> 12));
  to.u64(raw(entry.inode));
  if (entry.moving) {
    to.u64(entry.moving->transfer);
    to.u64(static_cast<std::uint64_t>(entry.moving->since));
    to.u64(raw(entry.moving->to));
    to.u8(entry.moving->exchange ? 1 : 0);
    to.str(entry.moving->name);
  }
  if (entry.initial) to.str(*entry.initial);
  return out;
}

std::optional<Entry> decode_entry(Bytes bytes) {
  base::Reader from(bytes);
  Entry entry;
  if (from.u8() != kEntryFormat) return std::nullopt;
  const std::uint8_t flags = from.u8();
  entry.type = std::uint32_t{from.u16()} << 12;
  entry.inode = InodeId{from.u64()};
  if ((flags & kMovingFlag) != 0) {
    Moving moving;
    moving.transfer = from.u64();
    moving.since = static_cast<Nanos>(from.u64());
    moving.to = HomeId{from.u64()};
    moving.exchange = from.u8() != 0;
    moving.name = from.str();
    entry.moving = std::move(moving);
  }
  if ((flags & kInitialFlag) != 0) entry.initial = std::string(from.str());
  if (!from.done()) return std::nullopt;
  return entry;
}

void encode(const ListingRecord& record, std::string& out) {
  base::Writer to(out);
  to.u8(static_cast<std::uint8_t>(record.kind));
  to.u8(static_cast<std::uint8_t>(record.type >> 12));
  to.u16(static_cast<std::uint16_t>(record.name.size()));
  to.u32(record.generation);
  to.u64(record.sequence);
  to.u64(raw(record.inode));
  to.u64(static_cast<std::uint64_t>(record.mtime));
  to.u64(static_cast<std::uint64_t>(record.ctime));
  to.u32(record.live);
  to.u32(record.directories);
  to.u32(record.next);
  to.u32(record.records);
  to.raw(record.name);
}

std::optional<ListingRecord> decode_listing(Bytes& in) {
  base::Reader from(in);
  ListingRecord record;
  const std::uint8_t kind = from.u8();
  if (kind < 1 || kind > 3) return std::nullopt;
  record.kind = static_cast<ListingRecord::Kind>(kind);
  record.type = std::uint32_t{from.u8()} << 12;
  const std::uint16_t name_size = from.u16();
  record.generation = from.u32();
  record.sequence = from.u64();
  record.inode = InodeId{from.u64()};
  record.mtime = static_cast<Nanos>(from.u64());
  record.ctime = static_cast<Nanos>(from.u64());
  record.live = from.u32();
  record.directories = from.u32();
  record.next = from.u32();
  record.records = from.u32();
  record.name = from.raw(name_size);
  if (!from.ok()) return std::nullopt;
  in.remove_prefix(in.size() - from.left());
  return record;
}

std::string encode(const Dying& dying) {
  std::string out;
  base::Writer to(out);
  to.u8(dying.by_rename ? 1 : 0);
  to.u64(dying.transfer);
  to.u64(raw(dying.parent));
  to.u64(static_cast<std::uint64_t>(dying.since));
  to.str(dying.name);
  return out;
}

std::optional<Dying> decode_dying(Bytes bytes) {
  base::Reader from(bytes);
  Dying dying;
  dying.by_rename = from.u8() != 0;
  dying.transfer = from.u64();
  dying.parent = HomeId{from.u64()};
  dying.since = static_cast<Nanos>(from.u64());
  dying.name = from.str();
  if (!from.done()) return std::nullopt;
  return dying;
}

std::uint64_t name_hash(Bytes name) { return base::hash64(name); }

std::optional<HomeId> Split::place(std::uint64_t hash) const {
  for (std::size_t i = 0; i < children.size(); ++i) {
    if ((hash >> (base + i) & 1) != 0) return children[i];
  }
  if (moved && leaving(hash)) return next;
  return std::nullopt;
}

bool Split::leaving(std::uint64_t hash) const { return under_way() && (hash >> (base + children.size()) & 1) != 0; }

namespace {
constexpr std::uint8_t kFillingFlag = 1, kMovedFlag = 2;
}

std::string encode(const Split& split) {
  std::string out;
  base::Writer to(out);
  to.u8(kSplitFormat);
  to.u8(static_cast<std::uint8_t>((split.filling ? kFillingFlag : 0) | (split.moved ? kMovedFlag : 0)));
  to.u8(split.base);
  to.u8(static_cast<std::uint8_t>(split.children.size()));
  to.u64(split.prefix);
  to.u64(raw(split.directory));
  for (const HomeId child : split.children) to.u64(raw(child));
  to.u64(raw(split.next));
  to.u64(static_cast<std::uint64_t>(split.since));
  to.str(split.dying);
  return out;
}

std::optional<Split> decode_split(Bytes bytes) {
  base::Reader from(bytes);
  Split split;
  if (from.u8() != kSplitFormat) return std::nullopt;
  const std::uint8_t flags = from.u8();
  split.filling = (flags & kFillingFlag) != 0;
  split.moved = (flags & kMovedFlag) != 0;
  split.base = from.u8();
  const std::uint8_t count = from.u8();
  split.prefix = from.u64();
  split.directory = InodeId{from.u64()};
  for (std::uint8_t i = 0; i < count && from.ok(); ++i) split.children.push_back(HomeId{from.u64()});
  split.next = HomeId{from.u64()};
  split.since = static_cast<Nanos>(from.u64());
  split.dying = from.str();
  if (!from.done() || split.base + split.children.size() >= 64) return std::nullopt;
  return split;
}

std::string encode(const Lease& lease) {
  std::string out;
  base::Writer to(out);
  to.u64(lease.session);
  to.u64(static_cast<std::uint64_t>(lease.until));
  to.u64(static_cast<std::uint64_t>(lease.contended_until));
  return out;
}

std::optional<Lease> decode_lease(Bytes bytes) {
  base::Reader from(bytes);
  Lease lease;
  lease.session = from.u64();
  lease.until = static_cast<Nanos>(from.u64());
  lease.contended_until = static_cast<Nanos>(from.u64());
  if (!from.done()) return std::nullopt;
  return lease;
}

std::string encode(const Attributes& attributes) {
  std::string out;
  base::Writer to(out);
  to.u32(static_cast<std::uint32_t>(attributes.size()));
  for (const auto& [name, value] : attributes) {
    to.str(name);
    to.str(value);
  }
  return out;
}

std::optional<Attributes> decode_attributes(Bytes bytes) {
  base::Reader from(bytes);
  const std::uint32_t count = from.u32();
  Attributes attributes;
  for (std::uint32_t i = 0; i < count && from.ok(); ++i) {
    std::string name(from.str());
    attributes.emplace_back(std::move(name), std::string(from.str()));
  }
  if (!from.done()) return std::nullopt;
  return attributes;
}

void overlay(Inode& directory, const ListingRecord& tail) {
  directory.links = 2 + tail.directories;
  directory.mtime = tail.mtime;
  if (tail.ctime > directory.ctime) directory.ctime = tail.ctime;
  directory.size = 4096 + std::uint64_t{32} * tail.live;
  directory.blocks = (directory.size + 511) / 512;
  directory.revision += tail.sequence;  // both only grow
}

}  // namespace fusionfs

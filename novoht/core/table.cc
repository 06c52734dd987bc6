#include "novoht/core/table.h"

#include <algorithm>
#include <new>
#include <utility>

namespace novoht::core {
namespace {

constexpr std::size_t kShortMax = 4096;                       // bytes of a value, with its ends, that an entry may hold
constexpr std::size_t kPieceMin = 4096, kPieceMax = 256 << 10;  // of a long value
constexpr std::size_t kColdPayload = 12;
constexpr std::size_t kColdLeast = 64;         // a shorter value hardly takes more than the note where it lies
constexpr std::size_t kColdLeastParts = 1024;  // the same for one of several fragments
constexpr std::size_t kMergeBelow = 16 << 10;  // a piece on disk is written again together with what follows it
constexpr std::uint64_t kDisplaced = 1;                       // in a slot: lies beyond its home bucket

// Fullness at which a leaf grows. Above, probes get long; below, memory is wasted.
constexpr std::size_t most_entries(std::size_t bucket_count) { return bucket_count * 7 * 27 / 32; }

}  // namespace

// --- values ---

void LongValue::add_bytes(Bytes bytes) {
  while (!bytes.empty() || pieces.empty()) {
    if (pieces.empty() || pieces.back().size == pieces.back().capacity) {
      // The first piece is exact, as most long values are never appended to; later ones grow with the value.
      // Where all before is on disk, memory is short.
      const std::size_t least = capacity == 0 ? std::min<std::size_t>(4 * bytes.size(), kPieceMin) : kPieceMin;
      const std::size_t room = pieces.empty() ? bytes.size() : std::clamp<std::size_t>(capacity, least, kPieceMax);
      Piece piece;
      piece.capacity = std::max<std::size_t>({room, bytes.size(), 1});
      piece.bytes = std::make_unique_for_overwrite<char[]>(piece.capacity);
      piece.begin = size;
      capacity += piece.capacity;
      pieces.push_back(std::move(piece));
    }
    Piece& last = pieces.back();
    const std::size_t part = std::min(bytes.size(), last.capacity - last.size);
    std::copy_n(bytes.data(), part, last.bytes.get() + last.size);
    last.size += part;
    size += part;
    bytes.remove_prefix(part);
  }
}

void LongValue::add(Bytes fragment) {
  add_bytes(fragment);
  ends.push_back(size);
}

void LongValue::add_cold(ColdPlace place, std::size_t bytes) {
  Piece piece;
  piece.begin = size;
  piece.size = piece.capacity = bytes;
  piece.place = place;
  pieces.push_back(std::move(piece));
  size += bytes;
}

Result<void> LongValue::read(std::uint64_t offset, std::uint64_t count, const ColdValues* cold, std::string& out) const {
  const std::size_t before = out.size();
  auto piece = std::upper_bound(pieces.begin(), pieces.end(), offset,
                                [](std::uint64_t at, const Piece& one) { return at < one.begin; });
  if (piece != pieces.begin()) --piece;
  for (; piece != pieces.end() && count > 0; ++piece) {
    const std::uint64_t skip = offset - piece->begin;
    if (skip >= piece->size) continue;
    const std::uint64_t part = std::min<std::uint64_t>(count, piece->size - skip);
    if (piece->bytes != nullptr) {
      out.append(piece->bytes.get() + skip, part);
    } else if (auto read = cold->read(piece->place, piece->size, skip, part, out); !read) {
      out.resize(before);
      return read;
    }
    offset += part;
    count -= part;
  }
  return {};
}

std::uint32_t Entry::fragment_count() const {
  if (form == kWhole || form == kCold) return 1;
  if (form == kShort) return short_count();
  return static_cast<std::uint32_t>(long_value()->ends.size());
}

std::uint64_t Entry::fragment_end(std::uint32_t index) const {
  if (form == kWhole || form == kCold) return value_size;
  if (form == kLong) return long_value()->ends[index];
  return base::load<std::uint16_t>(payload() + 4 + short_capacity() - 2 * (std::size_t{index} + 1));
}

std::optional<Bytes> Entry::contiguous() const {
  if (form == kWhole) return Bytes(payload(), value_size);
  if (form == kShort) return Bytes(payload() + 4, value_size);
  if (form == kCold) return {};
  const LongValue& value = *long_value();
  if (value.pieces.size() != 1 || value.pieces[0].bytes == nullptr) return {};
  return Bytes(value.pieces[0].bytes.get(), value.pieces[0].size);
}

Result<void> Entry::read(std::uint64_t offset, std::uint64_t count, const ColdValues* cold, std::string& out) const {
  const std::uint64_t whole = size();
  if (offset >= whole) return {};
  count = std::min(count, whole - offset);
  if (form == kLong) return long_value()->read(offset, count, cold, out);
  if (form == kCold) return cold->read(cold_place(), value_size, offset, count, out);
  out.append(payload() + (form == kShort ? 4 : 0) + offset, count);
  return {};
}

bool Entry::on_disk() const {
  if (form == kCold) return true;
  if (form != kLong) return false;
  const auto& pieces = long_value()->pieces;
  return std::any_of(pieces.begin(), pieces.end(), [](const LongValue::Piece& piece) { return piece.bytes == nullptr; });
}

std::size_t Entry::block_size_of_others() const {
  const std::size_t before = sizeof(Entry) + (expires ? 8 : 0) + key_size;
  if (form == kShort) return before + 4 + short_capacity();
  if (form == kCold) return before + kColdPayload;
  return before + sizeof(LongValue*);
}

std::uint64_t Entry::memory() const {
  if (form != kLong) return 0;
  const LongValue& value = *long_value();
  return sizeof(LongValue) + value.capacity + value.ends.size() * 8 + value.pieces.size() * sizeof(LongValue::Piece);
}

// --- entries ---

Entry* Table::make(Bytes key, std::uint64_t expires_ms, Version version, std::size_t payload_size, Entry::Form form) {
  const std::size_t size = sizeof(Entry) + (expires_ms != 0 ? 8 : 0) + key.size() + payload_size;
  auto* const entry = reinterpret_cast<Entry*>(arena_.allocate(size));
  entry->version = version;
  entry->value_size = 0;
  entry->key_size = static_cast<std::uint16_t>(key.size());
  entry->form = form;
  entry->expires = expires_ms != 0;
  entry->used = false;
  char* at = entry->tail();
  if (expires_ms != 0) {
    base::store(at, expires_ms);
    at += 8;
  }
  std::memcpy(at, key.data(), key.size());
  return entry;
}

inline Entry* Table::make_whole(Bytes key, Bytes value, Version version) {
  auto* const entry = reinterpret_cast<Entry*>(arena_.allocate(sizeof(Entry) + key.size() + value.size()));
  entry->version = version;
  entry->value_size = static_cast<std::uint32_t>(value.size());
  entry->key_size = static_cast<std::uint16_t>(key.size());
  entry->form = Entry::kWhole;
  entry->expires = false;
  entry->used = false;
  base::copy_bytes(entry->tail(), key.data(), key.size());
  base::copy_bytes(entry->tail() + key.size(), value.data(), value.size());
  return entry;
}

Entry* Table::make_value(Bytes key, Bytes value, std::uint64_t expires_ms, Version version) {
  if (value.size() <= kShortMax && expires_ms == 0) return make_whole(key, value, version);
  if (value.size() <= kShortMax) {
    Entry* const entry = make(key, expires_ms, version, value.size(), Entry::kWhole);
    entry->value_size = static_cast<std::uint32_t>(value.size());
    if (!value.empty()) std::memcpy(entry->payload(), value.data(), value.size());
    return entry;
  }
  Entry* const entry = make(key, expires_ms, version, sizeof(LongValue*), Entry::kLong);
  auto* const longer = new LongValue;
  longer->add(value);
  base::store(entry->payload(), longer);
  count_long(entry->memory(), 0);
  return entry;
}

void Table::destroy(Entry* entry) {
  const std::size_t size = entry->block_size();
  if (entry->form == Entry::kLong) {
    count_long(0, entry->memory());
    for (const LongValue::Piece& piece : entry->long_value()->pieces)
      if (piece.bytes == nullptr) cold_->release(piece.place, piece.size);
    delete entry->long_value();
  } else if (entry->form == Entry::kCold) {
    cold_->release(entry->cold_place(), entry->value_size);
  }
  arena_.release(reinterpret_cast<char*>(entry), size);
}

void Table::count_in(std::uint64_t hash, const Entry& entry) {
  count_++;
  live_bytes_ += entry.key_size + entry.size();
  if (!entry.expires) return;
  if (expiries_ == nullptr) expiries_ = std::make_unique<std::multiset<std::pair<std::uint64_t, std::uint64_t>>>();
  expiries_->emplace(entry.expires_ms(), hash);
}

void Table::count_out(std::uint64_t hash, const Entry& entry) {
  count_--;
  live_bytes_ -= entry.key_size + entry.size();
  if (!entry.expires) return;
  expiries_->erase(expiries_->find({entry.expires_ms(), hash}));
}

// What nearly every insertion does.
inline bool Table::place_at_home(std::uint64_t hash, Entry* entry) {
  if (bucket_count_ == 0) return false;
  const std::size_t index = leaf_index(hash);
  Leaf& leaf = *leaves_[index];
  if (leaf.entry_count >= most_entries(bucket_count_)) return false;
  Bucket& bucket = roots_[index][home_of(hash, bucket_count_)];
  const std::uint32_t free = match(bucket.tags, 0);
  if (free == 0) return false;
  const auto slot = static_cast<std::size_t>(__builtin_ctz(free));
  bucket.tags[slot] = tag_of(hash);
  bucket.slots[slot] = reinterpret_cast<std::uint64_t>(entry) | hash >> 48 << 48;
  leaf.entry_count++;
  return true;
}

// --- operations ---

Table::Place Table::locate_beyond(std::uint64_t hash, Bytes key) const {
  Bucket* const buckets = roots_[leaf_index(hash)];
  std::size_t at = home_of(hash, bucket_count_);
  for (std::size_t step = 1; step < bucket_count_ && buckets[at].passed != 0; step++) {
    at = at + 1 == bucket_count_ ? 0 : at + 1;
    if (const Place where = locate_in(buckets[at], hash, key); where.bucket != nullptr) return where;
  }
  return {};
}

void Table::put(std::uint64_t hash, Bytes key, Bytes value, std::uint64_t expires_ms, Version version) {
  const Place where = locate(hash, key);
  if (where.bucket == nullptr) {
    if (expires_ms == 0 && value.size() <= kShortMax) [[likely]] {
      Entry* const entry = make_whole(key, value, version);
      if (!place_at_home(hash, entry)) place(hash, entry);
      count_++;
      live_bytes_ += key.size() + value.size();
      return;
    }
    Entry* const entry = make_value(key, value, expires_ms, version);
    place(hash, entry);
    count_in(hash, *entry);
    return;
  }
  Entry* const old = entry_of(where.bucket->slots[where.slot]);
  // Over the old value, where the block has just the size that the arena would give to the new one.
  if (const std::size_t head = sizeof(Entry) + key.size();
      old->form == Entry::kWhole && !old->expires && expires_ms == 0 && head + old->value_size <= Arena::kExact &&
      padded(head + old->value_size) == padded(head + value.size())) {
    live_bytes_ += value.size() - old->value_size;
    old->value_size = static_cast<std::uint32_t>(value.size());
    old->version = version;
    base::copy_bytes(old->payload(), value.data(), value.size());
    return;
  }
  Entry* const entry = make_value(key, value, expires_ms, version);
  count_out(hash, *old);
  replace(where, entry);
  destroy(old);
  count_in(hash, *entry);
}

void Table::append(std::uint64_t hash, Bytes key, Bytes fragment, std::uint64_t expires_ms, Version version) {
  const Place where = locate(hash, key);
  if (where.bucket == nullptr) {
    Entry* const entry = make_value(key, fragment, expires_ms, version);
    place(hash, entry);
    count_in(hash, *entry);
    return;
  }
  Entry* const old = entry_of(where.bucket->slots[where.slot]);
  live_bytes_ += fragment.size();
  if (old->form == Entry::kLong) {
    const std::uint64_t before = old->memory();
    old->long_value()->add(fragment);
    count_long(old->memory(), before);
    old->version = version;
    return;
  }
  if (old->form == Entry::kCold) {
    // What is on disk stays there.
    Entry* const entry = make(old->key(), old->expires_ms(), version, sizeof(LongValue*), Entry::kLong);
    auto* const longer = new LongValue;
    longer->add_cold(old->cold_place(), old->value_size);
    longer->ends.push_back(longer->size);
    longer->add(fragment);
    base::store(entry->payload(), longer);
    count_long(entry->memory(), 0);
    replace(where, entry);
    arena_.release(reinterpret_cast<char*>(old), old->block_size());
    return;
  }
  const std::size_t old_size = old->value_size, size = old_size + fragment.size();
  const std::uint32_t old_count = old->fragment_count();
  const std::size_t need = size + 2 * (std::size_t{old_count} + 1);
  if (old->form == Entry::kShort && need <= old->short_capacity()) {
    char* const bytes = old->payload() + 4;
    if (!fragment.empty()) std::memcpy(bytes + old_size, fragment.data(), fragment.size());
    base::store(bytes + old->short_capacity() - 2 * (std::size_t{old_count} + 1), static_cast<std::uint16_t>(size));
    base::store(old->payload(), static_cast<std::uint16_t>(old_count + 1));
    old->value_size = static_cast<std::uint32_t>(size);
    old->version = version;
    return;
  }
  Entry* entry;
  if (need <= kShortMax) {
    // Half as much again, up to what the arena rounds to anyway.
    const std::size_t before = sizeof(Entry) + (old->expires ? 8 : 0) + old->key_size + 4;
    const std::size_t capacity = std::min(padded(before + need + need / 2) - before, kShortMax + 8);
    entry = make(old->key(), old->expires_ms(), version, 4 + capacity, Entry::kShort);
    entry->value_size = static_cast<std::uint32_t>(size);
    char* const to = entry->payload();
    base::store(to, static_cast<std::uint16_t>(old_count + 1));
    base::store(to + 2, static_cast<std::uint16_t>(capacity));
    const Bytes value = *old->contiguous();
    std::memcpy(to + 4, value.data(), value.size());
    if (!fragment.empty()) std::memcpy(to + 4 + value.size(), fragment.data(), fragment.size());
    if (old->form == Entry::kShort) {
      const std::size_t ends = 2 * std::size_t{old_count};
      std::memcpy(to + 4 + capacity - ends, old->payload() + 4 + old->short_capacity() - ends, ends);
    } else {
      base::store(to + 4 + capacity - 2, static_cast<std::uint16_t>(old_size));
    }
    base::store(to + 4 + capacity - 2 * (std::size_t{old_count} + 1), static_cast<std::uint16_t>(size));
  } else {
    entry = make(old->key(), old->expires_ms(), version, sizeof(LongValue*), Entry::kLong);
    auto* const longer = new LongValue;
    longer->add_bytes(*old->contiguous());
    for (std::uint32_t i = 0; i < old_count; i++) longer->ends.push_back(old->fragment_end(i));
    longer->add(fragment);
    base::store(entry->payload(), longer);
    count_long(entry->memory(), 0);
  }
  replace(where, entry);
  destroy(old);
}

bool Table::erase(std::uint64_t hash, Bytes key) {
  const Place where = locate(hash, key);
  if (where.bucket == nullptr) return false;
  const std::size_t leaf = leaf_index(hash);
  Entry* const entry = entry_of(where.bucket->slots[where.slot]);
  count_out(hash, *entry);
  where.bucket->tags[where.slot] = 0;
  leaves_[leaf]->entry_count--;
  std::size_t at = home_of(hash, bucket_count_);
  for (Bucket* const buckets = roots_[leaf]; &buckets[at] != where.bucket; at = at + 1 == bucket_count_ ? 0 : at + 1)
    if (buckets[at].passed != 255) buckets[at].passed--;
  destroy(entry);
  return true;
}

void Table::load(std::uint64_t key_hash, const CheckpointEntry& from) {
  const Entry* const old = find(key_hash, from.key);
  if (old != nullptr && old->version >= from.version) return;
  put(key_hash, from.key, from.value.substr(0, from.fragment_end(0)), from.expires_ms, from.version);
  for (std::uint32_t i = 1; i < from.fragment_count; i++) {
    const std::uint64_t begin = from.fragment_end(i - 1);
    append(key_hash, from.key, from.value.substr(begin, from.fragment_end(i) - begin), 0, from.version);
  }
}

void Table::forget() {
  if (long_bytes_ == 0 && bucket_count_ == kLeafBuckets) {
    Leaf* last = nullptr;
    for (Leaf* leaf : leaves_)
      if (std::exchange(last, leaf) != leaf) delete leaf;
    leaves_.clear();
  }
  clear();
}

void Table::clear() {
  Leaf* last = nullptr;
  for (Leaf* leaf : leaves_) {
    if (leaf == last) continue;
    last = leaf;
    for (std::size_t b = 0; b < leaf->bucket_count; b++)
      for (std::size_t s = 0; s < kSlots; s++)
        if (leaf->buckets[b].tags[s] != 0) destroy(entry_of(leaf->buckets[b].slots[s]));
    free_leaf(leaf);
  }
  leaves_.clear();
  many_roots_.clear();
  roots_ = few_roots_;
  expiries_.reset();
  depth_ = bucket_count_ = 0;
  count_ = live_bytes_ = 0;
}

// --- the index ---

Table::Leaf* Table::make_leaf(std::size_t bucket_count, std::uint32_t depth) {
  const std::size_t size = bucket_count * sizeof(Bucket);
  auto* const buckets = static_cast<Bucket*>(size == Arena::kPage ? static_cast<void*>(arena_.allocate_page())
                                                                  : ::operator new(size, std::align_val_t{64}));
  std::memset(static_cast<void*>(buckets), 0, size);
  count_index((size == Arena::kPage ? 0 : size) + sizeof(Leaf) + 2 * sizeof(void*), 0);
  return new Leaf{buckets, static_cast<std::uint32_t>(bucket_count), 0, depth};
}

void Table::free_leaf(Leaf* leaf) {
  const std::size_t size = leaf->bucket_count * sizeof(Bucket);
  count_index(0, (size == Arena::kPage ? 0 : size) + sizeof(Leaf) + 2 * sizeof(void*));
  if (leaf->bucket_count == kLeafBuckets) arena_.release_page(reinterpret_cast<char*>(leaf->buckets));
  else ::operator delete(leaf->buckets, std::align_val_t{64});
  delete leaf;
}

void Table::put_slot(Leaf& leaf, std::size_t home, std::uint8_t tag, std::uint64_t slot) {
  std::size_t at = home;
  for (;;) {
    Bucket& bucket = leaf.buckets[at];
    if (const std::uint32_t free = match(bucket.tags, 0); free != 0) {
      const auto index = static_cast<std::size_t>(__builtin_ctz(free));
      bucket.tags[index] = tag;
      bucket.slots[index] = (slot & ~kDisplaced) | (at == home ? 0 : kDisplaced);
      leaf.entry_count++;
      return;
    }
    if (bucket.passed != 255) bucket.passed++;
    at = at + 1 == leaf.bucket_count ? 0 : at + 1;
  }
}

void Table::place(std::uint64_t hash, Entry* entry) {
  if (place_at_home(hash, entry)) [[likely]]
    return;
  if (leaves_.empty()) {
    leaves_.push_back(make_leaf(1, 0));
    roots_[0] = leaves_[0]->buckets;
    bucket_count_ = 1;
  }
  while (leaves_[leaf_index(hash)]->entry_count >= most_entries(bucket_count_)) {
    if (bucket_count_ < kLeafBuckets) grow();
    else split(hash);
  }
  put_slot(*leaves_[leaf_index(hash)], home_of(hash, bucket_count_), tag_of(hash),
           reinterpret_cast<std::uint64_t>(entry) | hash >> 48 << 48);
}

void Table::replace(Place where, Entry* entry) {
  std::uint64_t& slot = where.bucket->slots[where.slot];
  slot = (slot & (std::uint64_t{0xffff} << 48 | kDisplaced)) | reinterpret_cast<std::uint64_t>(entry);
}

// The one leaf of a small table doubles; every entry is hashed again.
void Table::grow() {
  rebuilt_++;
  Leaf* const old = leaves_[0];
  const std::size_t bucket_count = std::min<std::size_t>(std::size_t{2} * bucket_count_, kLeafBuckets);
  Leaf* const leaf = make_leaf(bucket_count, 0);
  for (std::size_t b = 0; b < old->bucket_count; b++) {
    for (std::size_t s = 0; s < kSlots; s++) {
      if (old->buckets[b].tags[s] == 0) continue;
      const std::uint64_t slot = old->buckets[b].slots[s];
      put_slot(*leaf, home_of(hash(entry_of(slot)->key()), bucket_count), old->buckets[b].tags[s], slot);
    }
  }
  free_leaf(old);
  leaves_[0] = leaf;
  roots_[0] = leaf->buckets;
  bucket_count_ = static_cast<std::uint32_t>(bucket_count);
}

// The leaf of `hash` becomes two, by one more bit. An entry in its home bucket keeps that place and need not be touched.
void Table::split(std::uint64_t of) {
  rebuilt_++;
  std::size_t index = leaf_index(of);
  Leaf* const old = leaves_[index];
  if (old->depth == depth_) {
    std::vector<Leaf*> leaves(leaves_.size() * 2);
    for (std::size_t i = 0; i < leaves.size(); i++) leaves[i] = leaves_[i / 2];
    leaves_.swap(leaves);
    if (leaves_.size() > kFewRoots) {
      many_roots_.resize(leaves_.size());
      roots_ = many_roots_.data();
    }
    for (std::size_t i = 0; i < leaves_.size(); i++) roots_[i] = leaves_[i]->buckets;
    depth_++;
    index = leaf_index(of);
  }
  Leaf* const halves[2] = {make_leaf(kLeafBuckets, old->depth + 1), make_leaf(kLeafBuckets, old->depth + 1)};
  const std::uint32_t shift = 63 - old->depth;
  // The keys of those that are not at home are hashed again, and their memory is fetched some buckets before.
  constexpr std::size_t kBefore = 6;
  const auto fetch = [&](const Bucket& bucket) {
    for (std::size_t s = 0; s < kSlots; s++) {
      if (bucket.tags[s] == 0 || (bucket.slots[s] & kDisplaced) == 0) continue;
      const char* const entry = reinterpret_cast<const char*>(entry_of(bucket.slots[s]));
      __builtin_prefetch(entry);
      __builtin_prefetch(entry + 64);
    }
  };
  for (std::size_t b = 0; b < kBefore; b++) fetch(old->buckets[b]);
  for (std::size_t b = 0; b < kLeafBuckets; b++) {
    if (b + kBefore < kLeafBuckets) fetch(old->buckets[b + kBefore]);
    const Bucket& bucket = old->buckets[b];
    for (std::size_t s = 0; s < kSlots; s++) {
      if (bucket.tags[s] == 0) continue;
      const std::uint64_t slot = bucket.slots[s];
      std::uint64_t bits = slot;
      std::size_t home = b;
      if ((slot & kDisplaced) != 0 || shift < 48) {
        bits = hash(entry_of(slot)->key());
        home = home_of(bits, kLeafBuckets);
      }
      put_slot(*halves[bits >> shift & 1], home, bucket.tags[s], slot);
    }
  }
  const std::size_t run = std::size_t{1} << (depth_ - old->depth), begin = index / run * run;
  for (std::size_t i = begin; i < begin + run; i++) {
    leaves_[i] = halves[i < begin + run / 2 ? 0 : 1];
    roots_[i] = leaves_[i]->buckets;
  }
  free_leaf(old);
}

// --- walks ---

// A cursor is a leaf's first 32 bits of hash and, below, the last 32 bits from which its entries are still to be seen.
// Both survive a leaf's growth and split: what was seen stays seen, or is seen again.
std::uint64_t Table::collect(std::uint64_t cursor, std::size_t limit, std::vector<Found>& found) const {
  if (leaves_.empty()) return 0;
  limit = std::max<std::size_t>(limit, 1);
  std::vector<Found> here;
  std::uint64_t prefix = cursor >> 32;
  std::uint64_t low = cursor & 0xffffffff;
  while (prefix >> 32 == 0) {
    const Leaf& leaf = *leaves_[depth_ == 0 ? 0 : prefix >> (32 - depth_)];
    for (std::size_t home = home_of(low, bucket_count_); home < bucket_count_; home++) {
      here.clear();
      // An entry that lies at home need not be hashed to know that it belongs there; nor, where a bucket is taken whole,
      // for its order.
      const bool whole = low <= first_low(home);
      std::size_t at = home;
      for (std::size_t step = 0; step < bucket_count_; step++) {
        const Bucket& bucket = leaf.buckets[at];
        for (std::size_t s = 0; s < kSlots; s++) {
          const bool displaced = (bucket.slots[s] & kDisplaced) != 0;
          if (bucket.tags[s] == 0 || displaced == (at == home)) continue;
          const Entry* const entry = entry_of(bucket.slots[s]);
          std::uint64_t of_key = 0;
          __builtin_prefetch(entry);
          __builtin_prefetch(reinterpret_cast<const char*>(entry) + 64);
          __builtin_prefetch(reinterpret_cast<const char*>(entry) + 128);
          if (displaced || !whole) {
            of_key = hash(entry->key());
            if (home_of(of_key, bucket_count_) != home || (of_key & 0xffffffff) < low) continue;
          }
          here.push_back({of_key, entry});
        }
        if (bucket.passed == 0) break;
        at = at + 1 == bucket_count_ ? 0 : at + 1;
      }
      std::size_t taken = here.size();
      // The next call takes it whole, and nothing of it need be put in order.
      if (taken > limit - found.size() && !found.empty() && whole) return prefix << 32 | first_low(home);
      if (taken > limit - found.size()) {
        for (Found& one : here) one.hash = hash(one.entry->key());
        std::sort(here.begin(), here.end(), [](const Found& a, const Found& b) {
          return static_cast<std::uint32_t>(a.hash) < static_cast<std::uint32_t>(b.hash);
        });
        taken = limit - found.size();
        while (taken > 0 && taken < here.size() &&
               static_cast<std::uint32_t>(here[taken].hash) == static_cast<std::uint32_t>(here[taken - 1].hash))
          taken++;
      }
      found.insert(found.end(), here.begin(), here.begin() + static_cast<std::ptrdiff_t>(taken));
      if (taken < here.size()) return prefix << 32 | static_cast<std::uint32_t>(here[taken].hash);
      low = first_low(home + 1);
      if (found.size() >= limit && home + 1 < bucket_count_) return prefix << 32 | low;
    }
    low = 0;
    prefix = (prefix >> (32 - leaf.depth) << (32 - leaf.depth)) + (std::uint64_t{1} << (32 - leaf.depth));
    if (found.size() >= limit && prefix >> 32 == 0) return prefix << 32;
  }
  return 0;
}

std::uint64_t Table::evacuate(std::uint64_t cursor, std::size_t limit) {
  if (leaves_.empty()) return 0;
  std::size_t seen = 0, moved_count = 0;
  // Where the index was rebuilt somewhere since, the leaf is begun again: its entries may lie in other buckets. Those that
  // were moved are then only looked at, so that it comes to its end however often that happens.
  std::uint64_t prefix = cursor & 0xffffffff, bucket = rebuilt_ == rebuilt_at_cursor_ ? cursor >> 32 : 0;
  rebuilt_at_cursor_ = rebuilt_;
  while (prefix >> 32 == 0) {
    const Leaf& leaf = *leaves_[depth_ == 0 ? 0 : prefix >> (32 - depth_)];
    for (std::size_t b = bucket; b < leaf.bucket_count; b++) {
      if (moved_count >= limit || seen >= kLeafBuckets * kSlots + limit) return prefix | static_cast<std::uint64_t>(b) << 32;
      if (b + 3 < leaf.bucket_count) {
        const Bucket& later = leaf.buckets[b + 3];
        for (std::size_t s = 0; s < kSlots; s++) {
          if (later.tags[s] == 0) continue;
          const char* const entry = reinterpret_cast<const char*>(entry_of(later.slots[s]));
          for (std::size_t line = 0; line < 3; line++) __builtin_prefetch(entry + 64 * line);
        }
      }
      for (std::size_t s = 0; s < kSlots; s++) {
        if (leaf.buckets[b].tags[s] == 0) continue;
        seen++;
        Entry* const old = entry_of(leaf.buckets[b].slots[s]);
        if (!arena_.is_old(reinterpret_cast<const char*>(old))) continue;
        const std::size_t size = old->block_size();
        auto* const moved = reinterpret_cast<Entry*>(arena_.allocate(size));
        base::copy_bytes(reinterpret_cast<char*>(moved), reinterpret_cast<const char*>(old), size);
        replace({&leaf.buckets[b], s}, moved);
        arena_.release(reinterpret_cast<char*>(old), size);
        moved_count++;
      }
    }
    bucket = 0;
    prefix = (prefix >> (32 - leaf.depth) << (32 - leaf.depth)) + (std::uint64_t{1} << (32 - leaf.depth));
  }
  return 0;
}

// --- values on disk ---

// What take_staged() has to do once the bytes are written.
struct Table::Staged {
  Place where;
  std::size_t first = 0, count = 0;  // pieces of a long value that become one; count 0: the whole entry becomes cold
  ColdPlace place;
};

Entry* Table::make_cold(const Entry& old, ColdPlace place) {
  Entry* const entry = make(old.key(), old.expires_ms(), old.version, kColdPayload, Entry::kCold);
  entry->value_size = static_cast<std::uint32_t>(old.size());
  base::store(entry->payload(), place.offset);
  base::store(entry->payload() + 8, place.file);
  return entry;
}

Result<void> Table::stage(const Place& where, std::vector<Staged>& staged, std::optional<std::uint32_t> empty) {
  const Entry& entry = *entry_of(where.bucket->slots[where.slot]);
  std::string copied;
  if (entry.form == Entry::kCold) {
    if (!empty || entry.cold_place().file != *empty) return {};
    TRY(entry.read(0, entry.value_size, cold_, copied));
    TRY_LET(place, cold_->stage(copied));
    staged.push_back({where, 0, 0, place});
    return {};
  }
  if (entry.form != Entry::kLong) {
    if (empty || entry.value_size < (entry.form == Entry::kWhole ? kColdLeast : kColdLeastParts)) return {};
    TRY_LET(place, cold_->stage(*entry.contiguous()));
    staged.push_back({where, 0, 0, place});
    return {};
  }
  const LongValue& value = *entry.long_value();
  const auto& pieces = value.pieces;
  if (!empty && pieces.size() == 1 && value.ends.size() == 1 && pieces[0].bytes != nullptr && value.size <= UINT32_MAX) {
    TRY_LET(place, cold_->stage(*entry.contiguous()));
    staged.push_back({where, 0, 0, place});
    return {};
  }
  // Runs of pieces in memory, and short ones on disk before them, become one piece. From the back, so that the numbers of
  // those before stay right while they are taken.
  for (std::size_t end = pieces.size(); end > 0;) {
    std::size_t first = end - 1;
    const LongValue::Piece& last = pieces[first];
    if (empty ? last.bytes != nullptr || last.place.file != *empty : last.bytes == nullptr) {
      end = first;
      continue;
    }
    std::uint64_t size = last.size;
    while (!empty && first > 0 && size < kMergeBelow * 16 && (pieces[first - 1].bytes != nullptr || pieces[first - 1].size < kMergeBelow))
      size += pieces[--first].size;
    if (!empty && value.size < kColdLeastParts) return {};
    copied.clear();
    TRY(value.read(pieces[first].begin, size, cold_, copied));
    TRY_LET(place, cold_->stage(copied));
    staged.push_back({where, first, end - first, place});
    end = first;
  }
  return {};
}

void Table::take_staged(const Staged& one) {
  Entry* const old = entry_of(one.where.bucket->slots[one.where.slot]);
  if (one.count == 0 && old->form != Entry::kShort) {
    replace(one.where, make_cold(*old, one.place));
    return destroy(old);
  }
  if (one.count == 0) {
    Entry* const entry = make(old->key(), old->expires_ms(), old->version, sizeof(LongValue*), Entry::kLong);
    auto* const longer = new LongValue;
    longer->add_cold(one.place, old->value_size);
    for (std::uint32_t i = 0; i < old->short_count(); i++) longer->ends.push_back(old->fragment_end(i));
    base::store(entry->payload(), longer);
    count_long(entry->memory(), 0);
    replace(one.where, entry);
    return destroy(old);
  }
  const std::uint64_t before = old->memory();
  LongValue& value = *old->long_value();
  LongValue::Piece piece;
  piece.begin = value.pieces[one.first].begin;
  piece.place = one.place;
  const auto first = value.pieces.begin() + static_cast<std::ptrdiff_t>(one.first);
  const auto end = first + static_cast<std::ptrdiff_t>(one.count);
  for (auto each = first; each != end; ++each) {
    piece.size += each->size;
    if (each->bytes != nullptr) value.capacity -= each->capacity;
    else cold_->release(each->place, each->size);
  }
  piece.capacity = piece.size;
  *first = std::move(piece);
  value.pieces.erase(first + 1, end);
  count_long(old->memory(), before);
}

// A cursor is a leaf's first 32 bits of hash, and below them a bucket in it.
Result<Table::Cooled> Table::cool(std::uint64_t cursor, std::size_t entries, std::uint64_t bytes, std::optional<std::uint32_t> empty) {
  Cooled done;
  if (leaves_.empty()) return done;
  std::vector<Staged> staged;
  std::size_t seen = 0;
  std::uint64_t prefix = cursor >> 16, bucket = cursor & 0xffff;
  while (prefix >> 32 == 0 && seen < entries && cold_->staged() < bytes) {
    const Leaf& leaf = *leaves_[depth_ == 0 ? 0 : prefix >> (32 - depth_)];
    for (; bucket < leaf.bucket_count && seen < entries && cold_->staged() < bytes; bucket++) {
      if (bucket + 2 < leaf.bucket_count) {
        const Bucket& later = leaf.buckets[bucket + 2];
        for (std::size_t s = 0; s < kSlots; s++)
          if (later.tags[s] != 0) __builtin_prefetch(entry_of(later.slots[s]));
      }
      for (std::size_t s = 0; s < kSlots; s++) {
        const Place where{&leaf.buckets[bucket], s};
        if (where.bucket->tags[s] == 0) continue;
        Entry& entry = *entry_of(where.bucket->slots[s]);
        seen++;
        if (entry.used && !empty) {
          entry.used = false;
          continue;
        }
        const std::size_t count_before = staged.size(), bytes_before = cold_->staged();
        auto put = stage(where, staged, empty);
        if (put) continue;
        staged.resize(count_before);
        cold_->forget_staged(bytes_before);
        if (!entry.on_disk()) return std::move(put).error();
        done.unread = std::move(put).error();
      }
    }
    if (bucket < leaf.bucket_count) break;
    bucket = 0;
    prefix = (prefix >> (32 - leaf.depth) << (32 - leaf.depth)) + (std::uint64_t{1} << (32 - leaf.depth));
  }
  done.bytes = cold_->staged();
  TRY(cold_->write());
  for (const Staged& one : staged) take_staged(one);
  done.cursor = prefix >> 32 != 0 ? 0 : prefix << 16 | bucket;
  return done;
}

Result<std::uint64_t> Table::warm(std::uint64_t key_hash, std::uint64_t most) {
  std::uint64_t came = 0;
  if (leaves_.empty()) return came;
  Bucket* const buckets = roots_[leaf_index(key_hash)];
  std::size_t at = home_of(key_hash, bucket_count_);
  for (std::size_t step = 0; step < bucket_count_; step++) {
    for (std::uint32_t bits = match(buckets[at].tags, tag_of(key_hash)); bits != 0; bits &= bits - 1) {
      const Place where{&buckets[at], static_cast<std::size_t>(__builtin_ctz(bits))};
      Entry* const old = entry_of(where.bucket->slots[where.slot]);
      if (!old->used || old->size() > most || !old->on_disk() || hash(old->key()) != key_hash) continue;
      std::string bytes;
      TRY(old->read(0, old->size(), cold_, bytes));
      Entry* entry;
      if (old->form == Entry::kCold) {
        entry = make_value(old->key(), bytes, old->expires_ms(), old->version);
      } else {
        entry = make(old->key(), old->expires_ms(), old->version, sizeof(LongValue*), Entry::kLong);
        auto* const longer = new LongValue;
        longer->add_bytes(bytes);
        for (std::size_t i = 0; i < old->long_value()->ends.size(); i++) longer->ends.push_back(old->long_value()->ends[i]);
        base::store(entry->payload(), longer);
        count_long(entry->memory(), 0);
      }
      entry->used = true;
      replace(where, entry);
      destroy(old);
      came += bytes.size();
    }
    if (buckets[at].passed == 0) break;
    at = at + 1 == bucket_count_ ? 0 : at + 1;
  }
  return came;
}

std::vector<std::string> Table::expired(std::uint64_t now_ms, std::size_t limit) const {
  std::vector<std::string> keys;
  if (expiries_ == nullptr) return keys;
  std::pair<std::uint64_t, std::uint64_t> last{};
  for (const auto& due : *expiries_) {
    if (due.first > now_ms || keys.size() >= limit) break;
    if (due == last) continue;
    last = due;
    const Bucket* const buckets = roots_[leaf_index(due.second)];
    std::size_t at = home_of(due.second, bucket_count_);
    for (std::size_t step = 0; step < bucket_count_; step++) {
      for (std::uint32_t bits = match(buckets[at].tags, tag_of(due.second)); bits != 0; bits &= bits - 1) {
        const Entry* const entry = entry_of(buckets[at].slots[__builtin_ctz(bits)]);
        if (entry->expires_ms() == due.first && hash(entry->key()) == due.second) keys.emplace_back(entry->key());
      }
      if (buckets[at].passed == 0) break;
      at = at + 1 == bucket_count_ ? 0 : at + 1;
    }
  }
  return keys;
}

}  // namespace novoht::core

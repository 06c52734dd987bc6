// One table's keys and values in memory: an index of one-byte tags over entries in an arena.
//
// The index is a directory of leaves, chosen by the hash's first bits. A leaf is an array of 64-byte buckets, each one
// cache line: seven tags (one byte of the hash each, 0 for a free slot), a count of entries that belong here but had to
// go further, and seven slots. A slot is the entry's address with 16 more bits of the hash on top, so that the key of
// another is hardly ever looked at. A full leaf grows, and at kLeafBuckets splits in two: the most that one insertion
// ever moves is some thousand slots, and mostly without touching the entries. An empty table has no leaf.
//
//   hash:  63..32 directory, from the top (63..48 also in the slot)   31..8 bucket in the leaf   7..0 tag
//
// Nothing here knows the time: an entry whose expiry has passed is there until it is erased.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "novoht/core/arena.h"
#include "novoht/core/cold.h"
#include "novoht/core/format.h"

namespace novoht::core {

// Offsets, added at the end: no addition ever moves more than some of them.
class FragmentEnds {
 public:
  void push_back(std::uint64_t end) {
    if (few_.size() < kFew) return few_.push_back(end);
    if (many_ == nullptr) many_ = std::make_unique<std::deque<std::uint64_t>>();
    many_->push_back(end);
  }
  std::uint64_t operator[](std::size_t index) const { return index < few_.size() ? few_[index] : (*many_)[index - few_.size()]; }
  std::size_t size() const { return few_.size() + (many_ == nullptr ? 0 : many_->size()); }

 private:
  static constexpr std::size_t kFew = 1024;
  std::vector<std::uint64_t> few_;
  std::unique_ptr<std::deque<std::uint64_t>> many_;
};

// A value that is too long for the arena or has grown past it: bytes in pieces, the ends of its fragments beside. Pieces
// may be on disk.
struct LongValue {
  struct Piece {
    std::unique_ptr<char[]> bytes;  // null: on disk
    std::uint64_t begin = 0;
    std::size_t size = 0, capacity = 0;
    ColdPlace place;
  };
  std::vector<Piece> pieces;
  FragmentEnds ends;
  std::uint64_t size = 0;
  std::uint64_t capacity = 0;  // of the pieces in memory

  void add(Bytes fragment);
  void add_bytes(Bytes bytes);
  void add_cold(ColdPlace place, std::size_t bytes);
  Result<void> read(std::uint64_t offset, std::uint64_t count, const ColdValues* cold, std::string& out) const;
};

// How an entry lies in the arena: this header, the expiry in milliseconds if it has one, the key, then the value:
//   whole     the bytes; one fragment
//   short     count and capacity (16 bits each), then `capacity` bytes: the value from the left, 16-bit fragment ends
//             from the right
//   long      a LongValue's address
//   cold      where it lies on disk: offset (64 bits) and file (32 bits); one fragment
struct Entry {
  enum Form : std::uint8_t { kWhole = 0, kShort = 1, kLong = 2, kCold = 3 };
  Version version;
  std::uint32_t value_size;  // of a long one: unused
  std::uint16_t key_size;
  Form form;
  bool expires : 1;
  bool used : 1;  // looked up since the hand of Table::cool() passed

  const char* tail() const { return reinterpret_cast<const char*>(this) + sizeof(Entry); }
  char* tail() { return reinterpret_cast<char*>(this) + sizeof(Entry); }
  std::uint64_t expires_ms() const { return expires ? base::load<std::uint64_t>(tail()) : 0; }
  Bytes key() const { return Bytes(tail() + (expires ? 8 : 0), key_size); }
  const char* payload() const { return tail() + (expires ? 8 : 0) + key_size; }
  char* payload() { return tail() + (expires ? 8 : 0) + key_size; }
  LongValue* long_value() const { return base::load<LongValue*>(payload()); }
  std::uint16_t short_count() const { return base::load<std::uint16_t>(payload()); }
  std::uint16_t short_capacity() const { return base::load<std::uint16_t>(payload() + 2); }

  std::uint64_t size() const { return form == kLong ? long_value()->size : value_size; }
  std::uint32_t fragment_count() const;
  std::uint64_t fragment_end(std::uint32_t index) const;
  std::optional<Bytes> contiguous() const;
  ColdPlace cold_place() const { return {base::load<std::uint64_t>(payload()), base::load<std::uint32_t>(payload() + 8)}; }
  // `cold`: where values on disk are; may be null when there are none. `out` is unchanged after an error.
  Result<void> read(std::uint64_t offset, std::uint64_t count, const ColdValues* cold, std::string& out) const;
  bool on_disk() const;  // some of it
  std::size_t block_size() const {
    if (form == kWhole) [[likely]]
      return sizeof(Entry) + (expires ? 8 : 0) + key_size + value_size;
    return block_size_of_others();
  }
  std::size_t block_size_of_others() const;
  std::uint64_t memory() const;
};
static_assert(sizeof(Entry) == 16);

// One thread.
class alignas(64) Table {
 public:
  // Values may go to `cold`, unless that is null.
  explicit Table(Arena& arena, ColdValues* cold = nullptr) : arena_(arena), cold_(cold) {}
  ~Table() { clear(); }
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  // Not the plain hash64, by which an embedder may spread keys over a ring of tables: the keys of one table would share
  // its first bits, which choose the leaf, and leaf after leaf would split without parting them.
  static std::uint64_t hash(Bytes key) { return base::hash64(key, 0x6e6f766f6874); }

  const Entry* find(std::uint64_t hash, Bytes key) const {
    const Place where = locate(hash, key);
    return where.bucket == nullptr ? nullptr : entry_of(where.bucket->slots[where.slot]);
  }
  // The value becomes one fragment. expires_ms 0: never.
  void put(std::uint64_t hash, Bytes key, Bytes value, std::uint64_t expires_ms, Version version);
  // One fragment more; an absent key is made, with `expires_ms`.
  void append(std::uint64_t hash, Bytes key, Bytes fragment, std::uint64_t expires_ms, Version version);
  bool erase(std::uint64_t hash, Bytes key);
  // As a checkpoint has it; an entry already there that is not older stays.
  void load(std::uint64_t hash, const CheckpointEntry& entry);
  void clear();
  // The table goes, and its arena and cold values too: nothing need be given back to those.
  void forget();

  // Asks the processor for what find() will need; each after the one before had time to arrive. A table that was in use a
  // moment ago needs only the last two.
  // (Always inlined: a function that does nothing else is one without effect to GCC, which drops calls of it.)
  [[gnu::always_inline]] void prefetch() const { __builtin_prefetch(this); }
  [[gnu::always_inline]] void prefetch_root(std::uint64_t hash) const {
    if (bucket_count_ != 0) __builtin_prefetch(&roots_[leaf_index(hash)]);
  }
  [[gnu::always_inline]] void prefetch_bucket(std::uint64_t hash) const {
    if (bucket_count_ != 0) __builtin_prefetch(home_bucket(hash));
  }
  // `size`: how much of the entry. A value that is to be overwritten is wanted whole: where its memory is not in the cache, all
  // that is written after it waits (a fifth of an insert's time at 132 bytes).
  [[gnu::always_inline]] void prefetch_entry(std::uint64_t hash, std::size_t size = 128) const {
    if (bucket_count_ == 0) return;
    const Bucket& bucket = *home_bucket(hash);
    for (std::uint32_t bits = match(bucket.tags, tag_of(hash)); bits != 0; bits &= bits - 1) {
      const std::uint64_t slot = bucket.slots[__builtin_ctz(bits)];
      if (slot >> 48 != hash >> 48) continue;
      const char* const entry = reinterpret_cast<const char*>(entry_of(slot));
      for (const char* line = entry; line < entry + size; line += 64) __builtin_prefetch(line);
      return;
    }
  }

  std::uint64_t count() const { return count_; }
  std::uint64_t live_bytes() const { return live_bytes_; }      // keys + values
  std::uint64_t index_bytes() const { return index_bytes_; }    // directory, and leaves outside the arena
  std::uint64_t long_bytes() const { return long_bytes_; }      // long values, which are not in the arena
  bool has_expiries() const { return expiries_ != nullptr && !expiries_->empty(); }

  // Visits the keys in the order of their places: from `cursor` (0: the first) on, at most `limit` of them where no two
  // share a hash; returns the cursor of the next, 0 at the end. An entry there during a whole walk is visited at least
  // once, whatever changes in between.
  template <typename Visit>
  std::uint64_t walk(std::uint64_t cursor, std::size_t limit, Visit visit) const {
    std::vector<Found> found;
    const std::uint64_t next = collect(cursor, limit, found);
    for (const Found& one : found) visit(*one.entry);
    return next;
  }
  // Moves entries out of the arena's old chunks, bucket by bucket: from `cursor` (0: the first) on until about `limit`
  // were moved; returns the next cursor, 0 at the end. All are out when a walk has ended. One walk at a time.
  std::uint64_t evacuate(std::uint64_t cursor, std::size_t limit);
  // One step of what keeps memory within a limit: from `cursor` on, values that were not used since the last time go to the
  // disk, about `bytes` of them, or `entries` have been looked at. With `empty`, values that lie in that cold file are
  // copied to another instead. Returns the next cursor, 0 at the end; values on disk that could not be read stay where they
  // are. Errors: no_space, io, and nothing of this step has changed.
  struct Cooled {
    std::uint64_t cursor = 0;
    std::uint64_t bytes = 0;
    std::optional<base::Error> unread;  // why the last of those could not be read
  };
  Result<Cooled> cool(std::uint64_t cursor, std::size_t entries, std::uint64_t bytes, std::optional<std::uint32_t> empty = {});
  // Brings values on disk, of keys with this hash that were used, back to memory; `most` bytes of each. Returns how many
  // bytes came.
  Result<std::uint64_t> warm(std::uint64_t hash, std::uint64_t most);
  // Keys whose expiry is at or before `now_ms`, soonest first.
  std::vector<std::string> expired(std::uint64_t now_ms, std::size_t limit) const;

 private:
  static constexpr std::size_t kSlots = 7;             // of a bucket
  struct Bucket {
    std::uint8_t tags[kSlots];
    std::uint8_t passed;  // entries that belong here or before and lie further on; 255: that or more
    std::uint64_t slots[kSlots];
  };
  static_assert(sizeof(Bucket) == 64);
  static constexpr std::size_t kLeafBuckets = Arena::kPage / sizeof(Bucket);  // of a leaf that splits when full
  struct Leaf {
    Bucket* buckets;
    std::uint32_t bucket_count, entry_count;
    std::uint32_t depth;  // hash bits that all its entries share
  };
  struct Found {
    std::uint64_t hash;
    const Entry* entry;
  };
  struct Place {
    Bucket* bucket = nullptr;
    std::size_t slot = 0;
  };

  std::size_t leaf_index(std::uint64_t hash) const { return static_cast<std::size_t>((hash >> 1) >> (63 - depth_)); }
  static std::size_t home_of(std::uint64_t hash, std::size_t bucket_count) {
    return static_cast<std::size_t>((std::uint64_t{static_cast<std::uint32_t>(hash)} * bucket_count) >> 32);
  }
  // The least last 32 bits of a hash whose home is `bucket`.
  std::uint64_t first_low(std::size_t bucket) const {
    return ((std::uint64_t{bucket} << 32) + bucket_count_ - 1) / bucket_count_;
  }
  static std::uint8_t tag_of(std::uint64_t hash) {
    const auto tag = static_cast<std::uint8_t>(hash);
    return tag != 0 ? tag : 1;
  }
  static Entry* entry_of(std::uint64_t slot) { return reinterpret_cast<Entry*>(slot & 0x0000fffffffffff8); }

  // One bit for each of the seven tags that equal `tag`.
  static std::uint32_t match(const std::uint8_t* tags, std::uint8_t tag) {
#if defined(__SSE2__)
    const __m128i all = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(tags));
    return static_cast<std::uint32_t>(_mm_movemask_epi8(_mm_cmpeq_epi8(all, _mm_set1_epi8(static_cast<char>(tag))))) & 0x7f;
#else
    std::uint32_t bits = 0;
    for (int i = 0; i < 7; i++) bits |= static_cast<std::uint32_t>(tags[i] == tag) << i;
    return bits;
#endif
  }
  Bucket* home_bucket(std::uint64_t hash) const { return roots_[leaf_index(hash)] + home_of(hash, bucket_count_); }
  // Where in `bucket` the key lies, if there.
  static Place locate_in(Bucket& bucket, std::uint64_t hash, Bytes key) {
    for (std::uint32_t bits = match(bucket.tags, tag_of(hash)); bits != 0; bits &= bits - 1) {
      const auto slot = static_cast<std::size_t>(__builtin_ctz(bits));
      if (bucket.slots[slot] >> 48 != hash >> 48) continue;
      const Entry* const entry = entry_of(bucket.slots[slot]);
      // Where the key lies depends on the entry's first line; its second is not waited for a second time.
      __builtin_prefetch(reinterpret_cast<const char*>(entry) + 64);
      if (entry->key_size == key.size() && base::same_bytes(entry->key().data(), key.data(), key.size())) return {&bucket, slot};
    }
    return {};
  }
  // Nearly always in its home bucket.
  Place locate(std::uint64_t hash, Bytes key) const {
    if (bucket_count_ == 0) [[unlikely]]
      return {};
    Bucket& home = *home_bucket(hash);
    const Place where = locate_in(home, hash, key);
    if (where.bucket != nullptr || home.passed == 0) [[likely]]
      return where;
    return locate_beyond(hash, key);
  }
  Place locate_beyond(std::uint64_t hash, Bytes key) const;
  Entry* make(Bytes key, std::uint64_t expires_ms, Version version, std::size_t payload_size, Entry::Form form);
  Entry* make_whole(Bytes key, Bytes value, Version version);  // that does not expire
  Entry* make_value(Bytes key, Bytes value, std::uint64_t expires_ms, Version version);
  void destroy(Entry* entry);
  void place(std::uint64_t hash, Entry* entry);  // of a key not there; grows as needed
  bool place_at_home(std::uint64_t hash, Entry* entry);
  static void put_slot(Leaf& leaf, std::size_t home, std::uint8_t tag, std::uint64_t slot);
  static void replace(Place where, Entry* entry);
  void grow();
  void split(std::uint64_t of);
  Leaf* make_leaf(std::size_t bucket_count, std::uint32_t depth);
  void free_leaf(Leaf* leaf);
  void count_in(std::uint64_t hash, const Entry& entry);
  void count_long(std::uint64_t more, std::uint64_t less) {
    long_bytes_ += more - less;
    arena_.count_outside(more, less);
  }
  void count_index(std::uint64_t more, std::uint64_t less) {
    index_bytes_ += more - less;
    arena_.count_outside(more, less);
  }
  Entry* make_cold(const Entry& old, ColdPlace place);
  struct Staged;
  Result<void> stage(const Place& where, std::vector<Staged>& staged, std::optional<std::uint32_t> empty);
  void take_staged(const Staged& one);
  void count_out(std::uint64_t hash, const Entry& entry);
  std::uint64_t collect(std::uint64_t cursor, std::size_t limit, std::vector<Found>& found) const;

  // What every lookup reads lies in one cache line: where many tables are in use, each line of a table is a miss.
  static constexpr std::size_t kFewRoots = 4;
  Bucket** roots_ = few_roots_;     // of each leaf its buckets; here below while there are few
  std::uint32_t depth_ = 0;
  std::uint32_t bucket_count_ = 0;  // of each leaf
  std::unique_ptr<std::multiset<std::pair<std::uint64_t, std::uint64_t>>> expiries_;  // (milliseconds, hash)
  Bucket* few_roots_[kFewRoots] = {};
  std::vector<Bucket*> many_roots_;

  Arena& arena_;
  ColdValues* const cold_;
  std::vector<Leaf*> leaves_;  // the directory: 2^depth_ of them, runs of equal ones
  std::uint64_t rebuilt_ = 0, rebuilt_at_cursor_ = 0;  // how often leaves were split or grew; when evacuate() last ran
  std::uint64_t count_ = 0, live_bytes_ = 0, index_bytes_ = 0, long_bytes_ = 0;
};

}  // namespace novoht::core

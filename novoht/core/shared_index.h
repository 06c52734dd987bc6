// An index that any number of threads read while one changes it. Keys and values lie in nodes that never change once they
// can be found; a change makes a new node and stores its address over the old one's, so a reader has the one or the other,
// whole. What was replaced is freed when no reader can be looking at it any more (core/epochs.h).
//
// The shape is core/table.h's, made of atomics: a directory of leaves by the hash's first bits; a leaf is 128 buckets, each
// one cache line of eight slots; a slot is a node's address with 16 bits of the hash on top. A full leaf is replaced by two
// new ones, and a full directory by one twice as long: never in place.
//
//   hash:  63..32 directory, from the top   31..16 in the slot   6..0 bucket
//
// A value that has been appended to lies in a buffer beside its node, with room to grow: an append writes beyond what the
// old node says is there, and makes a node that says there is more. Readers of the old node never look beyond its end.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <optional>

#include "novoht/core/arena.h"
#include "novoht/core/epochs.h"
#include "novoht/store.h"

namespace novoht::core {

struct SharedBuffer {
  std::uint64_t capacity;
  char* bytes() { return reinterpret_cast<char*>(this) + sizeof(SharedBuffer); }
};

// This header, then: the expiry in milliseconds, if it has one; a buffer's address and the value's size, if it lies there;
// the key; the value, if it does not.
struct SharedNode {
  Version version;
  std::uint32_t inline_size;
  std::uint16_t key_size;
  bool buffered, expires;

  const char* tail() const { return reinterpret_cast<const char*>(this) + sizeof(SharedNode); }
  char* tail() { return reinterpret_cast<char*>(this) + sizeof(SharedNode); }
  std::size_t buffer_at() const { return expires ? 8 : 0; }
  std::size_t key_at() const { return buffer_at() + (buffered ? 16 : 0); }
  std::uint64_t expires_ms() const { return expires ? base::load<std::uint64_t>(tail()) : 0; }
  SharedBuffer* buffer() const { return base::load<SharedBuffer*>(tail() + buffer_at()); }
  Bytes key() const { return Bytes(tail() + key_at(), key_size); }
  Bytes value() const {
    if (buffered) return Bytes(buffer()->bytes(), base::load<std::uint64_t>(tail() + buffer_at() + 8));
    return Bytes(tail() + key_at() + key_size, inline_size);
  }
  std::size_t block_size() const { return sizeof(SharedNode) + key_at() + key_size + inline_size; }
};
static_assert(sizeof(SharedNode) == 16);

class SharedIndex {
 public:
  explicit SharedIndex(bool threaded);  // a thread of its own makes memory ready
  ~SharedIndex();  // no reader inside
  SharedIndex(const SharedIndex&) = delete;
  SharedIndex& operator=(const SharedIndex&) = delete;

  // Any thread: between enter() and leave() what find() returned stays as it is.
  std::uint32_t enter() const { return epochs_.enter(); }
  void leave(std::uint32_t place) const { epochs_.leave(place); }
  const SharedNode* find(std::uint64_t hash, Bytes key) const;

  // One thread at a time; readers may be inside.
  void put(std::uint64_t hash, Bytes key, Bytes value, std::uint64_t expires_ms, Version version);
  void append(std::uint64_t hash, Bytes key, Bytes fragment, std::uint64_t expires_ms, Version version);
  void erase(std::uint64_t hash, Bytes key);
  std::uint64_t count() const { return count_; }
  std::uint64_t memory_bytes() const { return arena_.reserved() + table_bytes_; }
  std::uint64_t retired_count() const { return retired_.size(); }  // waiting for readers to leave

 private:
  static constexpr std::size_t kSlots = 8, kBuckets = 128, kLeafSlots = kSlots * kBuckets;
  static constexpr std::size_t kMost = kLeafSlots * 3 / 4;  // slots in use, dead ones included, at which a leaf is replaced
  static constexpr std::uint64_t kEmpty = 0, kDead = 1, kAddress = 0x0000fffffffffff8;
  struct alignas(64) Bucket {
    std::atomic<std::uint64_t> slots[kSlots];
  };
  struct Leaf {
    Bucket buckets[kBuckets];
    std::uint32_t depth;              // the writer's, as all below
    std::uint32_t used = 0, live = 0;
  };
  struct Directory {
    explicit Directory(std::uint32_t d) : depth(d), leaves(new std::atomic<Leaf*>[std::size_t{1} << d]) {}
    std::size_t size() const { return std::size_t{1} << depth; }
    std::size_t index(std::uint64_t hash) const { return static_cast<std::size_t>((hash >> 1) >> (63 - depth)); }
    const std::uint32_t depth;
    const std::unique_ptr<std::atomic<Leaf*>[]> leaves;
  };
  struct Retired {
    enum Kind : std::uint8_t { kNode, kBuffer, kLeaf, kDirectory } kind;
    std::uint64_t epoch;
    void* what;
  };
  struct Place {
    Leaf* leaf;
    std::atomic<std::uint64_t>* slot;  // the key's; or, without a node, where it would go
    SharedNode* node;
  };

  static SharedNode* node_of(std::uint64_t slot) { return reinterpret_cast<SharedNode*>(slot & kAddress); }
  static std::uint64_t tagged(std::uint64_t hash, const SharedNode* node) {
    return (hash >> 16 << 48) | reinterpret_cast<std::uint64_t>(node);
  }
  Place locate(std::uint64_t hash, Bytes key);
  SharedNode* make(Bytes key, std::uint64_t expires_ms, Version version, bool buffered, std::size_t inline_size);
  void set(std::uint64_t hash, const Place& place, SharedNode* node);
  void make_room(std::uint64_t hash);
  static void put_fresh(Leaf& leaf, std::uint64_t hash, std::uint64_t slot);
  Leaf* make_leaf(std::uint32_t depth);
  void retire(Retired::Kind kind, void* what);
  void release(const Retired& retired);
  void reclaim();

  mutable Epochs epochs_;
  std::atomic<Directory*> directory_;
  Arena arena_;
  std::deque<Retired> retired_;
  std::uint64_t reclaim_at_ = kReclaimEvery;
  std::uint64_t count_ = 0, table_bytes_ = 0;
  static constexpr std::uint64_t kReclaimEvery = 256;
};

}  // namespace novoht::core

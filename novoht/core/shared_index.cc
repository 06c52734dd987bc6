#include "novoht/core/shared_index.h"

#include <algorithm>
#include <cstring>

namespace novoht::core {

SharedIndex::SharedIndex(bool threaded) : arena_(threaded) {
  auto* const directory = new Directory(0);
  directory->leaves[0].store(make_leaf(0));
  directory_.store(directory);
}

SharedIndex::~SharedIndex() {
  for (const Retired& one : retired_) release(one);
  const Directory* const directory = directory_.load();
  const Leaf* last = nullptr;
  for (std::size_t i = 0; i < directory->size(); i++) {
    Leaf* const leaf = directory->leaves[i].load();
    if (leaf == last) continue;
    last = leaf;
    for (Bucket& bucket : leaf->buckets) {
      for (auto& slot : bucket.slots) {
        SharedNode* const node = node_of(slot.load());
        if (node == nullptr) continue;
        if (node->buffered) release({Retired::kBuffer, 0, node->buffer()});
        release({Retired::kNode, 0, node});
      }
    }
    release({Retired::kLeaf, 0, leaf});
  }
  delete directory;
}

// Every load is sequentially consistent, which core/epochs.h needs and which costs nothing on x86.
const SharedNode* SharedIndex::find(std::uint64_t hash, Bytes key) const {
  const Directory* const directory = directory_.load();
  const Leaf* const leaf = directory->leaves[directory->index(hash)].load();
  const std::uint64_t tag = hash >> 16 & 0xffff;
  std::size_t at = hash % kBuckets;
  for (std::size_t step = 0; step < kBuckets; step++, at = (at + 1) % kBuckets) {
    for (const auto& slot : leaf->buckets[at].slots) {
      const std::uint64_t word = slot.load();
      if (word == kEmpty) return nullptr;
      if (word >> 48 != tag || word == kDead) continue;
      const SharedNode* const node = node_of(word);
      if (node->key_size == key.size() && std::memcmp(node->key().data(), key.data(), key.size()) == 0) return node;
    }
  }
  return nullptr;
}

SharedIndex::Place SharedIndex::locate(std::uint64_t hash, Bytes key) {
  const Directory* const directory = directory_.load();
  Place place{directory->leaves[directory->index(hash)].load(), nullptr, nullptr};
  const std::uint64_t tag = hash >> 16 & 0xffff;
  std::size_t at = hash % kBuckets;
  for (std::size_t step = 0; step < kBuckets; step++, at = (at + 1) % kBuckets) {
    for (auto& slot : place.leaf->buckets[at].slots) {
      const std::uint64_t word = slot.load(std::memory_order_relaxed);
      if (word == kEmpty || word == kDead) {
        if (place.slot == nullptr) place.slot = &slot;
        if (word == kEmpty) return place;
        continue;
      }
      if (word >> 48 != tag) continue;
      SharedNode* const node = node_of(word);
      if (node->key() == key) return {place.leaf, &slot, node};
    }
  }
  return place;
}

SharedNode* SharedIndex::make(Bytes key, std::uint64_t expires_ms, Version version, bool buffered, std::size_t inline_size) {
  const std::size_t size = sizeof(SharedNode) + (expires_ms != 0 ? 8 : 0) + (buffered ? 16 : 0) + key.size() + inline_size;
  auto* const node = reinterpret_cast<SharedNode*>(arena_.allocate(size));
  node->version = version;
  node->inline_size = static_cast<std::uint32_t>(inline_size);
  node->key_size = static_cast<std::uint16_t>(key.size());
  node->buffered = buffered;
  node->expires = expires_ms != 0;
  if (expires_ms != 0) base::store(node->tail(), expires_ms);
  std::memcpy(node->tail() + node->key_at(), key.data(), key.size());
  return node;
}

void SharedIndex::set(std::uint64_t hash, const Place& place, SharedNode* node) {
  if (place.node != nullptr) {
    place.slot->store(tagged(hash, node));
    retire(Retired::kNode, place.node);
    return;
  }
  if (place.slot->load(std::memory_order_relaxed) == kEmpty) place.leaf->used++;
  place.leaf->live++;
  count_++;
  place.slot->store(tagged(hash, node));
  if (place.leaf->used >= kMost) make_room(hash);
}

void SharedIndex::put(std::uint64_t hash, Bytes key, Bytes value, std::uint64_t expires_ms, Version version) {
  const Place place = locate(hash, key);
  SharedNode* const node = make(key, expires_ms, version, false, value.size());
  if (!value.empty()) std::memcpy(node->tail() + node->key_at() + key.size(), value.data(), value.size());
  SharedBuffer* const buffer = place.node != nullptr && place.node->buffered ? place.node->buffer() : nullptr;
  set(hash, place, node);
  if (buffer != nullptr) retire(Retired::kBuffer, buffer);
}

void SharedIndex::append(std::uint64_t hash, Bytes key, Bytes fragment, std::uint64_t expires_ms, Version version) {
  const Place place = locate(hash, key);
  if (place.node == nullptr) return put(hash, key, fragment, expires_ms, version);
  const Bytes old = place.node->value();
  SharedBuffer* const before = place.node->buffered ? place.node->buffer() : nullptr;
  SharedBuffer* buffer = before;
  const std::uint64_t size = old.size() + fragment.size();
  if (buffer == nullptr || size > buffer->capacity) {
    const std::uint64_t capacity = std::max<std::uint64_t>(64, size + size / 2);
    buffer = reinterpret_cast<SharedBuffer*>(arena_.allocate(sizeof(SharedBuffer) + capacity));
    buffer->capacity = capacity;
    if (!old.empty()) std::memcpy(buffer->bytes(), old.data(), old.size());
  }
  if (!fragment.empty()) std::memcpy(buffer->bytes() + old.size(), fragment.data(), fragment.size());
  SharedNode* const node = make(key, place.node->expires_ms(), version, true, 0);
  base::store(node->tail() + node->buffer_at(), buffer);
  base::store(node->tail() + node->buffer_at() + 8, size);
  set(hash, place, node);
  if (before != nullptr && before != buffer) retire(Retired::kBuffer, before);
}

void SharedIndex::erase(std::uint64_t hash, Bytes key) {
  const Place place = locate(hash, key);
  if (place.node == nullptr) return;
  place.slot->store(kDead);
  place.leaf->live--;
  count_--;
  if (place.node->buffered) retire(Retired::kBuffer, place.node->buffer());
  retire(Retired::kNode, place.node);
}

SharedIndex::Leaf* SharedIndex::make_leaf(std::uint32_t depth) {
  table_bytes_ += sizeof(Leaf);
  auto* const leaf = new Leaf;
  leaf->depth = depth;
  for (Bucket& bucket : leaf->buckets)
    for (auto& slot : bucket.slots) slot.store(kEmpty, std::memory_order_relaxed);
  return leaf;
}

// Into a leaf that nobody can see yet and that does not have the key.
void SharedIndex::put_fresh(Leaf& leaf, std::uint64_t hash, std::uint64_t slot) {
  for (std::size_t at = hash % kBuckets;; at = (at + 1) % kBuckets) {
    for (auto& free : leaf.buckets[at].slots) {
      if (free.load(std::memory_order_relaxed) != kEmpty) continue;
      free.store(slot, std::memory_order_relaxed);
      leaf.used++;
      leaf.live++;
      return;
    }
  }
}

// The leaf of `hash` is replaced: by one without its dead slots when those are many, else by two.
void SharedIndex::make_room(std::uint64_t hash) {
  Directory* directory = directory_.load();
  Leaf* const old = directory->leaves[directory->index(hash)].load();
  const bool split = old->live >= kMost / 2 && old->depth < 32;
  if (split && old->depth == directory->depth) {
    auto* const longer = new Directory(directory->depth + 1);
    for (std::size_t i = 0; i < longer->size(); i++) longer->leaves[i].store(directory->leaves[i / 2].load());
    table_bytes_ += longer->size() * sizeof(Leaf*) / 2;
    directory_.store(longer);
    retire(Retired::kDirectory, directory);
    directory = longer;
  }
  Leaf* const fresh[2] = {make_leaf(old->depth + (split ? 1 : 0)), split ? make_leaf(old->depth + 1) : nullptr};
  for (Bucket& bucket : old->buckets) {
    for (auto& slot : bucket.slots) {
      const std::uint64_t word = slot.load(std::memory_order_relaxed);
      if (node_of(word) == nullptr) continue;
      const std::uint64_t key_hash = base::hash64(node_of(word)->key());
      put_fresh(*fresh[split ? key_hash >> (63 - old->depth) & 1 : 0], key_hash, word);
    }
  }
  const std::size_t run = std::size_t{1} << (directory->depth - old->depth), begin = directory->index(hash) / run * run;
  for (std::size_t i = begin; i < begin + run; i++)
    directory->leaves[i].store(fresh[split && i >= begin + run / 2 ? 1 : 0]);
  retire(Retired::kLeaf, old);
}

void SharedIndex::retire(Retired::Kind kind, void* what) {
  retired_.push_back({kind, epochs_.now(), what});
  if (retired_.size() >= reclaim_at_) reclaim();
}

void SharedIndex::reclaim() {
  const std::uint64_t oldest = epochs_.oldest_inside();
  while (!retired_.empty() && retired_.front().epoch < oldest) {
    release(retired_.front());
    retired_.pop_front();
  }
  reclaim_at_ = retired_.size() + kReclaimEvery;
}

void SharedIndex::release(const Retired& retired) {
  switch (retired.kind) {
    case Retired::kNode: {
      auto* const node = static_cast<SharedNode*>(retired.what);
      arena_.release(reinterpret_cast<char*>(node), node->block_size());
      break;
    }
    case Retired::kBuffer: {
      auto* const buffer = static_cast<SharedBuffer*>(retired.what);
      arena_.release(reinterpret_cast<char*>(buffer), sizeof(SharedBuffer) + buffer->capacity);
      break;
    }
    case Retired::kLeaf:
      table_bytes_ -= sizeof(Leaf);
      delete static_cast<Leaf*>(retired.what);
      break;
    case Retired::kDirectory:
      table_bytes_ -= static_cast<Directory*>(retired.what)->size() * sizeof(Leaf*);
      delete static_cast<Directory*>(retired.what);
      break;
  }
}

}  // namespace novoht::core

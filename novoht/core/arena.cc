#include "novoht/core/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <new>

namespace novoht::core {
namespace {

constexpr std::uint64_t kSparesFrom = 8 << 20;   // bytes of chunks from which on one is kept ready ...
constexpr std::uint64_t kSpareEach = 48 << 20;  // ... and another for so many more
constexpr std::size_t kSparesMost = 16;

// Sizes over kExact: eight lists to each doubling. Returns the list's index above the exact ones and rounds `size` up.
std::size_t list_of(std::size_t& size) {
  const int power = std::bit_width(size - 1) - 1;  // 2^power < size <= 2^(power + 1)
  const std::size_t step = std::size_t{1} << (power - 3);
  const std::size_t eighth = (size - (std::size_t{1} << power) + step - 1) / step;  // 1..8
  size = (std::size_t{1} << power) + eighth * step;
  return static_cast<std::size_t>(power - 10) * 8 + eighth - 1;
}

}  // namespace

Arena::~Arena() {
  unmap(block_chunks_);
  unmap(page_chunks_);
  unmap(old_);
  stopped_ = true;
  worker_.stop();
  unmap(spares_);
}

void Arena::unmap(const std::vector<Chunk>& chunks) {
  for (const Chunk& chunk : chunks)
    if (chunk.begin != nullptr) ::munmap(chunk.begin, chunk.size);
}

// A huge page is mapped longer than needed and cut to a huge page's boundaries.
Arena::Chunk Arena::map_chunk(std::size_t size, bool touch) {
  const auto map = [](std::size_t bytes) {
    void* const mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) throw std::bad_alloc();
    return static_cast<char*>(mapped);
  };
  if (size != kChunk) return {map(size), size};
  char* const wide = map(2 * kChunk);
  const auto address = reinterpret_cast<std::uintptr_t>(wide);
  const std::size_t before = (kChunk - address % kChunk) % kChunk, after = kChunk - before;
  if (before > 0) ::munmap(wide, before);
  if (after > 0) ::munmap(wide + before + kChunk, after);
  char* const begin = wide + before;
  (void)::madvise(begin, kChunk, MADV_HUGEPAGE);  // only faster
  if (touch)
    for (std::size_t at = 0; at < kChunk; at += 4096) begin[at] = 0;
  return {begin, kChunk};
}

// The first chunks are small, as most stores are.
Arena::Rest Arena::make_chunk(std::vector<Chunk>& among) {
  Chunk chunk{nullptr, 0};
  if (among.size() < kSmallChunks) {
    chunk = map_chunk(kSmallChunk, false);
  } else {
    {
      std::scoped_lock lock(mutex_);
      if (!spares_.empty()) {
        chunk = spares_.back();
        spares_.pop_back();
        ordered_--;
      }
    }
    if (chunk.begin == nullptr) chunk = map_chunk(kChunk, false);
  }
  among.push_back(chunk);
  reserved_ += chunk.size;
  order_spares();
  return {chunk.begin, chunk.begin + chunk.size};
}

void Arena::order_spares() {
  if (!worker_.threaded() || reserved_ < kSparesFrom) return;
  for (const std::size_t wanted = std::min<std::size_t>(1 + reserved_ / kSpareEach, kSparesMost); ordered_ < wanted; ordered_++) {
    worker_.run([this] {
      Chunk chunk{nullptr, 0};
      if (!stopped_) {
        try {
          chunk = map_chunk(kChunk, true);
        } catch (const std::bad_alloc&) {
          // A spare that is none: who takes it tries again, and learns of it.
        }
      }
      std::scoped_lock lock(mutex_);
      spares_.push_back(chunk);
    });
  }
}

char* Arena::carve(std::size_t size) {
  if (blocks_.left() < size) {
    // What is left of the chunk goes to the lists in pieces of at most kExact.
    while (blocks_.left() >= 16) {
      const std::size_t piece = std::min<std::size_t>(blocks_.left(), kExact);
      auto* const block = reinterpret_cast<FreeBlock*>(blocks_.next);
      block->next = free_[piece / 8];
      free_[piece / 8] = block;
      blocks_.next += piece;
    }
    if (!frugal_ || !take_apart(size)) {
      blocks_ = make_chunk(block_chunks_);
      blocks_reserved_ += blocks_.left();
    }
  }
  char* const block = blocks_.next;
  blocks_.next += size;
  return block;
}

// Makes a free block, much larger than needed, what is carved from.
bool Arena::take_apart(std::size_t size) {
  if (blocks_reserved_ < blocks_used_ + blocks_used_ / 16 + kChunk) return false;  // too little to be worth it
  const auto use = [this](std::size_t list, std::size_t block_size) {
    FreeBlock* const block = free_[list];
    if (block == nullptr) return false;
    free_[list] = block->next;
    blocks_ = {reinterpret_cast<char*>(block), reinterpret_cast<char*>(block) + block_size};
    return true;
  };
  for (std::size_t list = kLists; list-- > kExactLists;) {
    const std::size_t above = list - kExactLists, power = std::size_t{1} << (10 + above / 8);
    const std::size_t block_size = power + (above % 8 + 1) * (power / 8);
    if (block_size >= 2 * size && use(list, block_size)) return true;
  }
  for (std::size_t list = kExactLists; list-- > 2 * size / 8 + 1;)
    if (use(list, list * 8)) return true;
  return false;
}

char* Arena::allocate_page() {
  other_used_ += kPage;
  if (FreeBlock* const page = free_pages_) {
    free_pages_ = page->next;
    return reinterpret_cast<char*>(page);
  }
  if (pages_.left() < kPage) pages_ = make_chunk(page_chunks_);
  char* const page = pages_.next;
  pages_.next += kPage;
  return page;
}

void Arena::release_page(char* page) {
  other_used_ -= kPage;
  auto* const free_page = reinterpret_cast<FreeBlock*>(page);
  free_page->next = free_pages_;
  free_pages_ = free_page;
}

char* Arena::allocate_slowly(std::size_t size) {
  if (size <= kExact) {
    size = (size + 7) / 8 * 8;
    blocks_used_ += size;
    return carve(size);
  }
  if (size > kLargest) {
    other_used_ += size;
    reserved_ += size;
    return static_cast<char*>(::operator new(size));
  }
  const std::size_t list = kExactLists + list_of(size);
  blocks_used_ += size;
  if (FreeBlock* const block = free_[list]) {
    free_[list] = block->next;
    return reinterpret_cast<char*>(block);
  }
  return carve(size);
}

void Arena::release_slowly(char* block, std::size_t size) {
  if (size > kLargest) {
    other_used_ -= size;
    reserved_ -= size;
    ::operator delete(block);
    return;
  }
  std::size_t list = (size + 7) / 8;
  if (size > kExact) list = kExactLists + list_of(size);
  else size = list * 8;
  blocks_used_ -= size;
  if (is_old(block)) return;
  auto* const free_block = reinterpret_cast<FreeBlock*>(block);
  free_block->next = free_[list];
  free_[list] = free_block;
}

// The small chunks stay: there is little in them.
void Arena::begin_evacuation() {
  const auto first = block_chunks_.begin() + static_cast<std::ptrdiff_t>(std::min(block_chunks_.size(), kSmallChunks));
  old_.assign(first, block_chunks_.end());
  block_chunks_.erase(first, block_chunks_.end());
  old_numbers_.assign(std::bit_ceil(2 * old_.size() + 2), 0);
  old_mask_ = old_numbers_.size() - 1;
  for (const Chunk& chunk : old_) {
    const std::uintptr_t number = reinterpret_cast<std::uintptr_t>(chunk.begin) / kChunk;
    std::size_t at = number & old_mask_;
    while (old_numbers_[at] != 0) at = (at + 1) & old_mask_;
    old_numbers_[at] = number;
  }
  free_.fill(nullptr);
  blocks_ = {};
}

// To give a huge page back takes time too.
void Arena::end_evacuation() {
  for (const Chunk& chunk : old_) {
    reserved_ -= chunk.size;
    blocks_reserved_ -= chunk.size;
    worker_.run([chunk] { unmap({chunk}); });
  }
  old_.clear();
  old_numbers_.assign(2, 0);
  old_mask_ = 1;
}

}  // namespace novoht::core

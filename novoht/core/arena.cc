#include "novoht/core/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <new>

namespace novoht::core {
namespace {

constexpr std::size_t kSmallChunk = std::size_t{256} << 10, kSmallChunks = 4;
constexpr std::size_t kChunk = std::size_t{2} << 20;  // a huge page

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
}

void Arena::unmap(std::vector<Chunk>& chunks) {
  for (const Chunk& chunk : chunks) ::munmap(chunk.begin, chunk.size);
  chunks.clear();
}

// The first chunks are small, as most stores are. The others are mapped a huge page longer than needed and cut to one's
// boundaries.
Arena::Rest Arena::make_chunk(std::vector<Chunk>& among) {
  const auto map = [](std::size_t size) {
    void* const mapped = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) throw std::bad_alloc();
    return static_cast<char*>(mapped);
  };
  Chunk chunk{nullptr, kSmallChunk};
  if (among.size() < kSmallChunks) {
    chunk.begin = map(kSmallChunk);
  } else {
    char* const wide = map(2 * kChunk);
    const auto address = reinterpret_cast<std::uintptr_t>(wide);
    const std::size_t before = (kChunk - address % kChunk) % kChunk, after = kChunk - before;
    if (before > 0) ::munmap(wide, before);
    if (after > 0) ::munmap(wide + before + kChunk, after);
    chunk = {wide + before, kChunk};
    (void)::madvise(chunk.begin, kChunk, MADV_HUGEPAGE);  // only faster
  }
  among.push_back(chunk);
  reserved_ += chunk.size;
  return {chunk.begin, chunk.begin + chunk.size};
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
    blocks_ = make_chunk(block_chunks_);
    blocks_reserved_ += blocks_.left();
  }
  char* const block = blocks_.next;
  blocks_.next += size;
  return block;
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

void Arena::begin_evacuation() {
  old_.swap(block_chunks_);
  std::sort(old_.begin(), old_.end(), [](const Chunk& a, const Chunk& b) { return a.begin < b.begin; });
  free_.fill(nullptr);
  blocks_ = {};
}

bool Arena::is_old(const char* block) const {
  auto after = std::upper_bound(old_.begin(), old_.end(), block, [](const char* at, const Chunk& chunk) { return at < chunk.begin; });
  return after != old_.begin() && block < (after - 1)->begin + (after - 1)->size;
}

void Arena::end_evacuation() {
  for (const Chunk& chunk : old_) {
    reserved_ -= chunk.size;
    blocks_reserved_ -= chunk.size;
  }
  unmap(old_);
}

}  // namespace novoht::core

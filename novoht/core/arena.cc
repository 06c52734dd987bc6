#include "novoht/core/arena.h"

#include <sys/mman.h>

#include <bit>
#include <new>

namespace novoht::core {
namespace {

constexpr std::size_t kChunk = std::size_t{1} << 20;

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
  for (char* chunk : chunks_) ::munmap(chunk, kChunk);
}

char* Arena::carve(std::size_t size) {
  if (static_cast<std::size_t>(end_ - next_) < size) {
    // What is left of the chunk goes to the lists in pieces of at most kExact.
    while (end_ - next_ >= 16) {
      const std::size_t piece = std::min<std::size_t>(static_cast<std::size_t>(end_ - next_), kExact);
      auto* const block = reinterpret_cast<FreeBlock*>(next_);
      block->next = free_[piece / 8];
      free_[piece / 8] = block;
      next_ += piece;
    }
    // Pages that nobody touches cost nothing, so the first chunk of a small store is as cheap as a small one.
    void* const chunk = ::mmap(nullptr, kChunk, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (chunk == MAP_FAILED) throw std::bad_alloc();
    chunks_.push_back(static_cast<char*>(chunk));
    reserved_ += kChunk;
    next_ = static_cast<char*>(chunk);
    end_ = next_ + kChunk;
  }
  char* const block = next_;
  next_ += size;
  return block;
}

char* Arena::allocate_slowly(std::size_t size) {
  if (size <= kExact) {
    size = (size + 7) / 8 * 8;
    used_ += size;
    return carve(size);
  }
  if (size > kLargest) {
    used_ += size;
    reserved_ += size;
    return static_cast<char*>(::operator new(size));
  }
  const std::size_t list = kExactLists + list_of(size);
  used_ += size;
  if (FreeBlock* const block = free_[list]) {
    free_[list] = block->next;
    return reinterpret_cast<char*>(block);
  }
  return carve(size);
}

void Arena::release_slowly(char* block, std::size_t size) {
  if (size > kLargest) {
    used_ -= size;
    reserved_ -= size;
    ::operator delete(block);
    return;
  }
  const std::size_t list = kExactLists + list_of(size);
  used_ -= size;
  auto* const free_block = reinterpret_cast<FreeBlock*>(block);
  free_block->next = free_[list];
  free_[list] = free_block;
}

}  // namespace novoht::core

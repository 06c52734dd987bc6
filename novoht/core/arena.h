// Memory for keys and values: blocks of 8-byte granularity without a header of their own (who frees one knows its size),
// carved from chunks and recycled by size; and pages for the index. One arena serves all tables of a store, so a small
// table costs nothing here. Blocks over kLargest are the system allocator's. All chunks but the first few are huge pages
// where the system has them: a lookup at random is then spared most of its address translation, a third of its time.
//
// Recycling by size alone would waste without bound when sizes change. So when more than the blocks in use, and kWasteMin,
// lies idle, the arena can be evacuated: all its chunks become old, whoever holds blocks in them moves each to a new
// one a few at a time, and then the old chunks go back to the system.
//
// The system's memory costs when it is first touched (a huge page takes 100 us to clear, several ms in a virtual machine
// whose host has yet to find it), so once a store has grown some chunks, a thread keeps the next ones ready.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "novoht/core/background.h"

namespace novoht::core {

// One thread, and one of its own when `threaded`.
class Arena {
 public:
  explicit Arena(bool threaded) : worker_(threaded) {}
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // A block of at least `size` bytes, 8-byte aligned, contents undefined.
  char* allocate(std::size_t size) {
    if (size <= kExact) [[likely]] {
      const std::size_t number = (size + 7) / 8;
      if (FreeBlock* const block = free_[number]) {
        free_[number] = block->next;
        blocks_used_ += number * 8;
        return reinterpret_cast<char*>(block);
      }
      if (blocks_.left() >= number * 8) [[likely]] {
        blocks_used_ += number * 8;
        char* const block = blocks_.next;
        blocks_.next += number * 8;
        return block;
      }
    }
    return allocate_slowly(size);
  }
  // `size` is the one it was allocated with.
  void release(char* block, std::size_t size) {
    if (size <= kExact && old_.empty()) [[likely]] {
      const std::size_t number = (size + 7) / 8;
      auto* const free_block = reinterpret_cast<FreeBlock*>(block);
      free_block->next = free_[number];
      free_[number] = free_block;
      blocks_used_ -= number * 8;
      return;
    }
    release_slowly(block, size);
  }

  // A page of kPage bytes, 64-byte aligned, contents undefined.
  char* allocate_page();
  void release_page(char* page);

  std::uint64_t used() const { return blocks_used_ + other_used_; }  // in blocks and pages handed out
  // What whoever allocates here holds elsewhere, so that it is counted too.
  void count_outside(std::uint64_t more, std::uint64_t less) { outside_ += more - less; }
  std::uint64_t outside() const { return outside_; }
  // Rather cuts up larger free blocks than takes another chunk. (Slower; for where memory is short.)
  void be_frugal() { frugal_ = true; }
  std::uint64_t reserved() const { return reserved_ + ordered_ * kChunk; }  // taken from the system

  bool wants_evacuation() const { return old_.empty() && blocks_reserved_ > 2 * blocks_used_ + kWasteMin; }
  void begin_evacuation();
  bool evacuating() const { return !old_.empty(); }
  bool is_old(const char* block) const {  // lies in a chunk that is to go
    const std::uintptr_t number = reinterpret_cast<std::uintptr_t>(block) / kChunk;
    for (std::size_t at = number & old_mask_;; at = (at + 1) & old_mask_) {
      if (old_numbers_[at] == number) return true;
      if (old_numbers_[at] == 0) return false;
    }
  }
  void end_evacuation();                 // no block in old chunks is in use

  static constexpr std::size_t kPage = 176 * 64;     // 186 of them fill a chunk of 2 MiB but for a thousandth
  static constexpr std::size_t kExact = 1024;        // up to here one list for every multiple of 8
  static constexpr std::size_t kWasteMin = 64 << 20;  // what may lie idle in any case
  static constexpr std::size_t kLargest = 32 << 10;  // up to here lists for eighths of powers of two

 private:
  struct FreeBlock {
    FreeBlock* next;
  };
  static constexpr std::size_t kSmallChunk = std::size_t{256} << 10, kSmallChunks = 4;
  static constexpr std::size_t kChunk = std::size_t{2} << 20;  // a huge page
  static constexpr std::size_t kExactLists = kExact / 8 + 1;
  static constexpr std::size_t kLists = kExactLists + 5 * 8;

  char* allocate_slowly(std::size_t size);
  void release_slowly(char* block, std::size_t size);
  char* carve(std::size_t size);
  bool take_apart(std::size_t size);
  struct Chunk {
    char* begin;
    std::size_t size;
  };
  // What is left of a chunk that is being used up.
  struct Rest {
    char* next = nullptr;
    char* end = nullptr;
    std::size_t left() const { return static_cast<std::size_t>(end - next); }
  };
  Rest make_chunk(std::vector<Chunk>& among);

  std::array<FreeBlock*, kLists> free_{};
  FreeBlock* free_pages_ = nullptr;
  Rest blocks_, pages_;
  static Chunk map_chunk(std::size_t size, bool touch);
  static void unmap(const std::vector<Chunk>& chunks);
  void order_spares();

  std::vector<Chunk> block_chunks_, page_chunks_;
  std::vector<Chunk> old_;                         // huge pages only
  std::vector<std::uintptr_t> old_numbers_{0, 0};  // their addresses by kChunk, as a hash table; 0 is a free place
  std::size_t old_mask_ = 1;
  std::uint64_t blocks_used_ = 0, blocks_reserved_ = 0;
  std::uint64_t other_used_ = 0;  // pages and large blocks
  std::uint64_t reserved_ = 0;    // all but spares
  std::uint64_t outside_ = 0;
  bool frugal_ = false;

  std::size_t ordered_ = 0;  // spares, ready or about to be
  std::mutex mutex_;         // of spares_
  std::vector<Chunk> spares_;
  std::atomic<bool> stopped_ = false;
  Worker worker_;
};

}  // namespace novoht::core

// Memory for keys and values: blocks of 8-byte granularity without a header of their own (who frees one knows its size),
// carved from chunks and recycled by size; and pages for the index. One arena serves all tables of a store, so a small
// table costs nothing here. Blocks over kLargest are the system allocator's. All chunks but the first few are huge pages
// where the system has them: a lookup at random is then spared most of its address translation, a third of its time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace novoht::core {

// One thread.
class Arena {
 public:
  Arena() = default;
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // A block of at least `size` bytes, 8-byte aligned, contents undefined.
  char* allocate(std::size_t size) {
    if (size <= kExact) [[likely]] {
      const std::size_t number = (size + 7) / 8;
      if (FreeBlock* const block = free_[number]) {
        free_[number] = block->next;
        used_ += number * 8;
        return reinterpret_cast<char*>(block);
      }
    }
    return allocate_slowly(size);
  }
  // `size` is the one it was allocated with.
  void release(char* block, std::size_t size) {
    if (size <= kExact) [[likely]] {
      const std::size_t number = (size + 7) / 8;
      auto* const free_block = reinterpret_cast<FreeBlock*>(block);
      free_block->next = free_[number];
      free_[number] = free_block;
      used_ -= number * 8;
      return;
    }
    release_slowly(block, size);
  }

  // A page of kPage bytes, 64-byte aligned, contents undefined.
  char* allocate_page();
  void release_page(char* page);

  std::uint64_t used() const { return used_; }          // in blocks handed out
  std::uint64_t reserved() const { return reserved_; }  // taken from the system

  static constexpr std::size_t kPage = 176 * 64;     // 186 of them fill a chunk of 2 MiB but for a thousandth
  static constexpr std::size_t kExact = 1024;        // up to here one list for every multiple of 8
  static constexpr std::size_t kLargest = 32 << 10;  // up to here lists for eighths of powers of two

 private:
  struct FreeBlock {
    FreeBlock* next;
  };
  static constexpr std::size_t kExactLists = kExact / 8 + 1;
  static constexpr std::size_t kLists = kExactLists + 5 * 8;

  char* allocate_slowly(std::size_t size);
  void release_slowly(char* block, std::size_t size);
  char* carve(std::size_t size);
  // What is left of a chunk that is being used up.
  struct Rest {
    char* next = nullptr;
    char* end = nullptr;
    std::size_t left() const { return static_cast<std::size_t>(end - next); }
  };
  Rest make_chunk();

  std::array<FreeBlock*, kLists> free_{};
  FreeBlock* free_pages_ = nullptr;
  Rest blocks_, pages_;
  struct Chunk {
    char* begin;
    std::size_t size;
  };
  std::vector<Chunk> chunks_;
  std::uint64_t used_ = 0, reserved_ = 0;
};

}  // namespace novoht::core

// What the machine allows: the same work with an index that knows every answer. An insert copies the pair to the end of a
// log buffer and to the end of memory and notes its address in one scattered word; a lookup fetches that word, then the
// pair, and compares; a round writes the buffer to a file. No hash, no checksum, no growth, no versions, no recovery.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bench/novoht_engines.h"

namespace bench {

class LimitEngine {
 public:
  static constexpr bool kOnDisk = true;
  LimitEngine(const std::string& folder, std::size_t pairs, Use)
      : pairs_(pairs), slots_(map(pairs * sizeof(char*))), memory_(map(pairs * 2 * kEntry)), next_(memory_), log_(kRound * kRecord),
        file_(::open((folder + "/log").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600)) {
    require(file_ >= 0, "limit: the log does not open");
  }
  ~LimitEngine() {
    ::munmap(slots_, pairs_ * sizeof(char*));
    ::munmap(memory_, pairs_ * 2 * kEntry);
    ::close(file_);
  }
  LimitEngine(const LimitEngine&) = delete;
  LimitEngine& operator=(const LimitEngine&) = delete;

  void insert(Bytes key, Bytes value) {
    note(key, value);
    put(slot_of(key), key, value, {});
  }
  void append(Bytes key, Bytes value) {
    note(key, value);
    char*& slot = slot_of(key);
    put(slot, key, old_value(slot), value);
  }
  void remove(Bytes key) {
    note(key, {});
    slot_of(key) = nullptr;
  }
  bool equals(Bytes key, Bytes expected) { return equals(slot_of(key), key, expected); }
  bool has(Bytes key) { return slot_of(key) != nullptr; }
  void round() {
    require(::write(file_, log_.data(), used_) == static_cast<ssize_t>(used_), "limit: write failed");
    used_ = 0;
  }
  std::size_t equal_many(std::span<const Pair> pairs) {
    for (const Pair& pair : pairs) __builtin_prefetch(&slot_of(pair.key()));
    for (const Pair& pair : pairs)
      for (std::size_t line = 0; line < 2; line++) __builtin_prefetch(slot_of(pair.key()) + 64 * line);
    std::size_t good = 0;
    for (const Pair& pair : pairs) good += equals(pair.key(), pair.value());
    return good;
  }
  void insert_many(std::span<const Pair> pairs) {
    for (const Pair& pair : pairs) __builtin_prefetch(&slot_of(pair.key()));
    for (const Pair& pair : pairs) insert(pair.key(), pair.value());
  }

 private:
  static constexpr std::size_t kRecord = 120, kEntry = 2 + kKeySize + 2 * kValueSize;

  static char* map(std::size_t bytes) {
    void* const mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    require(mapped != MAP_FAILED, "limit: mmap failed");
    (void)::madvise(mapped, bytes, MADV_HUGEPAGE);
    return static_cast<char*>(mapped);
  }
  // Pair's first word is made of its index, which comes out again by the inverse; then scattered.
  char*& slot_of(Bytes key) const {
    constexpr std::uint64_t kInverse = 0xf1de83e19937733d;  // of 0x9e3779b97f4a7c15, modulo 2^64
    const std::uint64_t index = (base::load<std::uint64_t>(key.data()) - 1) * kInverse;
    return reinterpret_cast<char**>(slots_)[index * 0x9e3779b1 % pairs_];
  }
  void note(Bytes key, Bytes value) {
    char* const to = log_.data() + used_;
    base::copy_bytes(to + 40, key.data(), key.size());
    base::copy_bytes(to + 40 + kKeySize, value.data(), value.size());
    used_ += value.empty() ? kRecord - kValueSize : kRecord;
    if (used_ + kRecord > log_.size()) round();
  }
  void put(char*& slot, Bytes key, Bytes first, Bytes second) {
    char* const to = next_;
    base::store(to, static_cast<std::uint16_t>(first.size() + second.size()));
    base::copy_bytes(to + 2, key.data(), key.size());
    base::copy_bytes(to + 2 + kKeySize, first.data(), first.size());
    base::copy_bytes(to + 2 + kKeySize + first.size(), second.data(), second.size());
    next_ += 2 + kKeySize + first.size() + second.size();
    slot = to;
  }
  static Bytes old_value(const char* entry) { return Bytes(entry + 2 + kKeySize, base::load<std::uint16_t>(entry)); }
  static bool equals(const char* entry, Bytes key, Bytes expected) {
    return entry != nullptr && base::same_bytes(entry + 2, key.data(), key.size()) && old_value(entry) == expected;
  }

  const std::size_t pairs_;
  char* const slots_;
  char* const memory_;
  char* next_;
  std::vector<char> log_;
  std::size_t used_ = 0;
  const int file_;
};

}  // namespace bench

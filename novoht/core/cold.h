// Values that are on disk instead of in memory. They lie in files of their own, cold-<number>.values, which are a place to
// put things and no more: log and checkpoints have everything, so these files are never synced, nothing is read from them
// when a store is opened, and the next opening removes what a crash has left of them.
//
//   header, 64 bytes: magic "NoVoHTcv", format (4), 0 (4), store's id (8), number (8), zeros
//   a value: pieces of kChunk bytes, the last one shorter, each followed by its checksum (4), which begins with the store,
//   the file and the offset, so that what lies elsewhere is never taken for it
//
// The owner decides what goes: it stages some values, writes them with one write, and only then lets go of the memory.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "novoht/base/file.h"
#include "novoht/core/background.h"

namespace novoht::core {

struct ColdPlace {
  std::uint64_t offset = 0;
  std::uint32_t file = 0;
};

// One thread.
class ColdValues {
 public:
  static constexpr std::size_t kChunk = std::size_t{16} << 10;
  static constexpr std::uint64_t kHeaderSize = 64;

  // `next` is higher than any such file's number in the folder. A file holds about `file_size` bytes. `views`: read through
  // base::FileView where the files have that.
  ColdValues(base::FileSystem& files, std::string folder, std::uint64_t store, std::uint64_t file_size, std::uint32_t next, bool views);
  ~ColdValues();  // removes the files

  // Where the value will lie once write() has returned well.
  base::Result<ColdPlace> stage(base::Bytes value);
  std::size_t staged() const { return buffer_.size(); }
  // Writes what was staged. After an error (no_space, io) none of it is there.
  base::Result<void> write();
  void forget_staged(std::size_t from = 0);  // what was staged when staged() was `from`, and later

  // Appends bytes [offset, offset + count) of the value of `size` bytes to `out`. Errors: io, corrupt (file and offset);
  // `out` is unchanged.
  base::Result<void> read(ColdPlace place, std::uint64_t size, std::uint64_t offset, std::uint64_t count, std::string& out) const;
  // The value is no longer needed.
  void release(ColdPlace place, std::uint64_t size);

  std::uint64_t live_bytes() const { return live_; }  // as they lie there
  std::uint64_t file_bytes() const { return total_; }
  // A file that should be emptied (its values staged anew): the one with the most dead bytes, when more than half is dead.
  bool wants_emptying(std::uint32_t& file) const;

  static std::string name_of(std::uint32_t number);
  static bool is_name(base::Bytes name, std::uint32_t& number);

 private:
  struct ColdFile {
    std::shared_ptr<base::File> file;
    std::string path;
    std::unique_ptr<base::FileView> view;  // null: none
    std::uint64_t size = 0, live = 0;
  };
  base::Result<void> begin_file();
  void drop_if_dead(std::uint32_t number);
  static base::Result<std::size_t> read_at(const ColdFile& one, std::uint64_t offset, char* to, std::size_t size);
  static base::Error cut_short(const ColdFile& one, std::uint64_t offset);
  std::optional<base::Error> check(const ColdFile& one, ColdPlace place, std::uint64_t size, base::Bytes chunk, std::uint64_t offset) const;
  static std::uint64_t stored(std::uint64_t size) { return size + 4 * ((size + kChunk - 1) / kChunk); }
  std::uint32_t sum(std::uint32_t file, std::uint64_t offset, base::Bytes chunk) const;

  base::FileSystem& files_;
  const std::string folder_;
  const std::uint64_t store_, file_size_;
  std::uint32_t next_;
  const bool views_;
  std::uint32_t current_ = 0;  // written on; 0: none
  std::map<std::uint32_t, ColdFile> all_;
  std::string buffer_;  // staged, for the end of the current file
  std::uint64_t live_ = 0, total_ = 0;
  mutable std::string scratch_;
  Worker closer_;  // a large file takes some milliseconds to go
};

}  // namespace novoht::core

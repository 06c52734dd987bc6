// Files as a parameter: everything NoVoHT does to a disk goes through these two interfaces, so that a test can own the
// disk (MemoryFiles in novoht/base/memory_files.h tears, loses, refuses and garbles).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "novoht/base/bytes.h"
#include "novoht/base/result.h"

namespace base {

// The first bytes of a file as memory: to read a little at a random place is five times faster than a system call, where the
// system has it in its cache. One thread at a time.
class FileView {
 public:
  virtual ~FileView() = default;
  // Copies bytes [offset, offset + size). false: not to be had this way (beyond the view or the file's end, or the disk
  // failed); read_at() says why.
  virtual bool read(std::uint64_t offset, char* to, std::size_t size) = 0;
};

// One open file. One thread at a time, except sync() and read_at(), which may run on other threads beside write_at().
// Every error names the file and the offset.
class File {
 public:
  virtual ~File() = default;
  // Reads up to `size` bytes at `offset` into `to`; returns how many, fewer only at the end of the file.
  virtual Result<std::size_t> read_at(std::uint64_t offset, char* to, std::size_t size) = 0;
  // Writes all of `data` at `offset`, growing the file as needed. no_space or io: some of it may have been written.
  virtual Result<void> write_at(std::uint64_t offset, Bytes data) = 0;
  // Returns when everything written before the call survives a loss of power (fdatasync). After a failure nothing
  // written since the last success may be trusted, and calling again proves nothing.
  virtual Result<void> sync() = 0;
  virtual Result<std::uint64_t> size() = 0;
  virtual Result<void> truncate(std::uint64_t size) = 0;
  // Makes the file `size` bytes long, the new bytes zero AND backed by disk blocks, so that a later write into them
  // cannot fail for lack of space. no_space leaves the file as it was. (A file system may note the first write to such a
  // block; where syncs are to be cheapest, write zeros over them beforehand.)
  virtual Result<void> reserve(std::uint64_t size) = 0;
  // A hint: what was written will be synced soon, and may go to the disk meanwhile.
  virtual void expect_sync() {}
  // A hint: bytes [offset, offset + size) will be written or read soon, in pieces. Any thread.
  virtual void expect_use(std::uint64_t offset, std::uint64_t size) {
    (void)offset;
    (void)size;
  }
  // A view of the first `size` bytes, of which the file need not have all yet; null where there is no such thing. It sees
  // what is written later, and outlives the file. Reading one that fails raises SIGBUS: the first view installs a handler
  // for that signal, which passes on every other one to the handler before it.
  virtual std::unique_ptr<FileView> view(std::uint64_t size) {
    (void)size;
    return nullptr;
  }
};

enum class OpenMode { read, read_write, create, create_new };  // create: read_write, made when absent

// A held lock; released by destruction, and by the death of the process.
class FileLock {
 public:
  virtual ~FileLock() = default;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  virtual Result<std::unique_ptr<File>> open(const std::string& path, OpenMode mode) = 0;
  virtual Result<bool> exists(const std::string& path) = 0;
  virtual Result<void> rename(const std::string& from, const std::string& to) = 0;  // replaces `to` atomically
  virtual Result<void> remove(const std::string& path) = 0;
  virtual Result<std::vector<std::string>> list(const std::string& folder) = 0;  // names, sorted
  virtual Result<void> make_folder(const std::string& path) = 0;                 // and its parents; fine when there
  virtual Result<void> sync_folder(const std::string& path) = 0;                 // names survive a loss of power
  // Bytes that files in `folder` may still take, as far as that can be told; UINT64_MAX where it cannot.
  virtual std::uint64_t free_bytes(const std::string& folder) {
    (void)folder;
    return UINT64_MAX;
  }
  // Whether work may be handed to other threads. Not where a run must repeat exactly (MemoryFiles).
  virtual bool threads() const { return true; }
  // Takes the file's exclusive lock, made when absent. conflict when another process (or File) holds it; the message
  // names the holder's pid where known.
  virtual Result<std::unique_ptr<FileLock>> lock(const std::string& path) = 0;
};

// The operating system's files. Any thread.
std::unique_ptr<FileSystem> real_files();

}  // namespace base

#include "fusionfs/data/chunk_store.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <tuple>

#include "novoht/base/random.h"

namespace fusionfs {

using base::Code;
using base::fail;
using base::fail_errno;

namespace {

std::string hex(std::uint64_t number) {
  char digits[16];
  return std::string(digits, std::to_chars(digits, digits + sizeof digits, number, 16).ptr);
}

Result<void> make_folder(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return fail_errno(errno, "make folder " + path);
  return {};
}

}  // namespace

Result<std::unique_ptr<ChunkStore>> ChunkStore::open(const std::string& folder) {
  TRY(make_folder(folder));
  std::unique_ptr<ChunkStore> store(new ChunkStore);
  store->folder_ = folder;
  const std::string path = folder + "/identity";
  // Two mounts may come first at once: the link decides whose identity stands.
  for (int round = 0; round < 3 && store->identity_ == 0; ++round) {
    if (const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC); fd >= 0) {
      char text[32] = {};
      const ssize_t size = ::read(fd, text, sizeof text);
      ::close(fd);
      std::string_view digits(text, size > 0 ? static_cast<std::size_t>(size) : 0);
      while (!digits.empty() && digits.back() == '\n') digits.remove_suffix(1);
      if (!parse_hex(digits, store->identity_) || store->identity_ == 0) {
        return fail(Code::corrupt, path, ": expected a hexadecimal number, found ", base::escape(digits));
      }
      break;
    }
    if (errno != ENOENT) return fail_errno(errno, "open " + path);
    const std::string fresh = path + "." + hex(base::entropy());
    const int fd = ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) return fail_errno(errno, "create " + fresh);
    const std::string text = hex(base::entropy() | 1) + "\n";
    const bool written = ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) && ::fsync(fd) == 0;
    const int error = errno;
    ::close(fd);
    if (written && ::link(fresh.c_str(), path.c_str()) != 0 && errno != EEXIST)
      return fail_errno(errno, "link " + path);
    ::unlink(fresh.c_str());
    if (!written) return fail_errno(error, "write " + fresh);
  }
  TRY(store->read_boots());
  return store;
}

ChunkStore::~ChunkStore() {
  if (users_ >= 0) ::close(users_);
}

// One line for each life of the machine: its number, and "clean" when it ended with everything on the disk.
Result<void> ChunkStore::read_boots() {
  char id[64] = {};
  if (const int fd = ::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC); fd >= 0) {
    const ssize_t got = ::read(fd, id, sizeof id - 1);
    ::close(fd);
    if (got > 0) boots_.now = base::hash64(base::Bytes(id, static_cast<std::size_t>(got))) | 1;
  }
  std::ifstream file(folder_ + "/boots");
  std::string number, state;
  while (file >> number >> state) {
    std::uint64_t boot = 0;
    if (parse_hex(number, boot) && state == "clean") boots_.clean.insert(boot);
  }
  return {};
}

Result<void> ChunkStore::write_boots(bool clean) {
  if (clean)
    boots_.clean.insert(boots_.now);
  else
    boots_.clean.erase(boots_.now);
  const std::string path = folder_ + "/boots", fresh = path + "." + hex(base::entropy());
  std::string text;
  for (const std::uint64_t boot : boots_.clean) text += hex(boot) + " clean\n";
  if (!clean) text += hex(boots_.now) + " open\n";
  const int fd = ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return fail_errno(errno, "create " + fresh);
  const bool written = ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) && ::fsync(fd) == 0;
  const int error = errno;
  ::close(fd);
  if (written && ::rename(fresh.c_str(), path.c_str()) == 0) return {};
  ::unlink(fresh.c_str());
  return fail_errno(written ? errno : error, "write " + path);
}

Result<void> ChunkStore::begin_writing() {
  if (users_ >= 0) return {};
  const std::string path = folder_ + "/users";
  users_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (users_ < 0 || ::flock(users_, LOCK_SH) != 0) return fail_errno(errno, "open " + path);
  TRY(read_boots());
  return write_boots(false);
}

// Syncing takes as long as everything that anybody has written to this disk: nobody is kept out meanwhile. Who comes in the
// meantime writes a `boots` of his own.
void ChunkStore::end_writing() {
  if (users_ < 0) return;
  const auto boots = [&] {
    struct stat status {};
    const bool there = ::stat((folder_ + "/boots").c_str(), &status) == 0;
    return there ? std::tuple(status.st_ino, status.st_mtim.tv_sec, status.st_mtim.tv_nsec) : std::tuple(ino_t{0}, time_t{0}, 0L);
  };
  const auto before = boots();
  const bool last = ::flock(users_, LOCK_EX | LOCK_NB) == 0;
  ::flock(users_, LOCK_UN);
  if (last && ::syncfs(users_) == 0 && ::flock(users_, LOCK_EX | LOCK_NB) == 0 && boots() == before)
    static_cast<void>(write_boots(true));
  ::close(users_);
  users_ = -1;
}

std::string ChunkStore::path_of(InodeId inode, std::uint64_t index) const {
  std::string path = folder_;
  const std::uint64_t spread = (raw(inode) ^ raw(inode) >> kCounterBits) & 0xff;
  path += '/';
  path += "0123456789abcdef"[spread >> 4];
  path += "0123456789abcdef"[spread & 15];
  path += '/';
  path += hex(raw(inode));
  path += '.';
  path += hex(index);
  return path;
}

Result<void> ChunkStore::remove(InodeId inode, std::uint64_t size) const {
  if (size > kMaxFileSize) return fail(Code::invalid, "a file of ", size, " bytes: more than one can have");
  const std::uint64_t recorded = (size + kChunkSize - 1) / kChunkSize;
  for (std::uint64_t index = 0;; ++index) {
    const std::string path = path_of(inode, index);
    if (::unlink(path.c_str()) == 0) continue;
    if (errno != ENOENT) return fail_errno(errno, "unlink " + path);
    if (index >= recorded) return {};
  }
}

Result<std::vector<ChunkStore::Chunk>> ChunkStore::list() const {
  std::vector<Chunk> chunks;
  for (int folder = 0; folder < 256; ++folder) {
    const std::string path = folder_ + "/" + "0123456789abcdef"[folder >> 4] + "0123456789abcdef"[folder & 15];
    DIR* stream = ::opendir(path.c_str());
    if (stream == nullptr) {
      if (errno == ENOENT) continue;
      return fail_errno(errno, "open folder " + path);
    }
    while (const dirent* each = ::readdir(stream)) {
      const std::string_view name = each->d_name;
      const auto dot = name.find('.');
      std::uint64_t inode = 0, index = 0;
      if (dot == 0 || dot == std::string_view::npos) continue;
      if (parse_hex(name.substr(0, dot), inode) && parse_hex(name.substr(dot + 1), index))
        chunks.push_back({InodeId{inode}, index});
    }
    ::closedir(stream);
  }
  return chunks;
}

// Others of this node (its mounts, what serves its chunks) may have removed a chunk that is open here, and begun another: a file
// that was emptied has none. mutex_ is held.
Result<LocalContent::File> LocalContent::known_locked(std::uint64_t index) {
  const auto known = files_.find(index);
  if (known == files_.end()) return File();
  struct stat status {};
  if (::fstat(known->second->descriptor(), &status) != 0) return fail_errno(errno, "stat " + store_.path_of(inode_, index));
  if (status.st_nlink > 0) return known->second;
  files_.erase(known);
  unsynced_.erase(index);
  uncounted_.insert(index);
  if (index == 0) writing_ = false;  // the mark was on it
  return File();
}

// mutex_ is held.
void LocalContent::forget_counts_locked() {
  counted_.clear();
  uncounted_.clear();
  counted_sum_ = counted_chunks_ = 0;
}

// mutex_ is held.
Result<LocalContent::File> LocalContent::chunk_locked(std::uint64_t index, bool make) {
  TRY_LET(known, known_locked(index));
  if (known) return known;
  TRY_LET(opened, ChunkFile::open(store_.path_of(inode_, index), make, store_.boots()));
  File file(std::move(opened));
  if (file) files_[index] = file;
  return file;
}

Result<LocalContent::File> LocalContent::chunk(std::uint64_t index, bool make) {
  const std::lock_guard lock(mutex_);
  return chunk_locked(index, make);
}

// The file's first chunk, made when absent. mutex_ is held.
Result<LocalContent::File> LocalContent::first_locked() {
  for (;;) {
    TRY(chunk_locked(0, true));
    TRY_LET(first, known_locked(0));
    if (first) return first;  // else removed in between
  }
}

// mutex_ is held.
Result<bool> LocalContent::marked_locked() {
  if (writing_) TRY(known_locked(0));
  return writing_;
}

Result<void> LocalContent::begin_writing(std::uint64_t recorded_size) {
  const std::lock_guard lock(mutex_);
  TRY_LET(marked, marked_locked());
  if (marked) return {};
  for (;;) {
    TRY_LET(first, first_locked());
    if (::flock(first->descriptor(), LOCK_EX | LOCK_NB) == 0) {
      // A writer that crashed writes past the end in order, so its leftovers are the tail of one chunk and those after
      // it.
      TRY_LET(still, first_locked());
      if (still != first) continue;
      for (std::uint64_t index = recorded_size / kChunkSize;; ++index) {
        TRY_LET(file, chunk_locked(index, false));
        if (!file) break;
        const std::uint64_t keep = index * kChunkSize < recorded_size ? recorded_size - index * kChunkSize : 0;
        TRY_LET(more, file->seek(keep, true));
        if (more < kChunkSize) TRY(file->keep(keep));
      }
    }
    if (::flock(first->descriptor(), LOCK_SH) != 0) return fail_errno(errno, "lock " + store_.path_of(inode_, 0));
    TRY_LET(still, first_locked());
    if (still == first) break;  // else whoever kept writers out has removed it
  }
  writing_ = true;
  return {};
}

Result<void> LocalContent::read(std::uint64_t offset, char* to, std::size_t size) {
  while (size > 0) {
    const std::uint64_t index = offset / kChunkSize, within = offset % kChunkSize;
    const std::size_t part = static_cast<std::size_t>(std::min<std::uint64_t>(size, kChunkSize - within));
    TRY_LET(file, chunk(index, false));
    if (file)
      TRY(file->read(within, to, part));
    else
      std::memset(to, 0, part);
    to += part;
    offset += part;
    size -= part;
  }
  return {};
}

Result<void> LocalContent::write(std::uint64_t offset, base::Bytes bytes) {
  while (!bytes.empty()) {
    const std::uint64_t index = offset / kChunkSize, within = offset % kChunkSize;
    const std::size_t part = static_cast<std::size_t>(std::min<std::uint64_t>(bytes.size(), kChunkSize - within));
    File file;
    {
      const std::lock_guard lock(mutex_);
      if (writing_) TRY(go_on_writing_locked());
      TRY_LET(opened, chunk_locked(index, true));
      file = std::move(opened);
      unsynced_.insert(index);
      uncounted_.insert(index);
    }
    TRY(file->write(within, bytes.substr(0, part)));
    bytes.remove_prefix(part);
    offset += part;
  }
  return {};
}

Result<void> LocalContent::truncate(std::uint64_t size, std::uint64_t old_size) {
  const std::lock_guard lock(mutex_);
  forget_counts_locked();
  const std::uint64_t chunks_before = (old_size + kChunkSize - 1) / kChunkSize;
  std::uint64_t index = size / kChunkSize;
  if (size % kChunkSize != 0) {
    TRY_LET(file, chunk_locked(index, false));
    if (file) TRY(file->keep(size % kChunkSize));
    if (file) unsynced_.insert(index);
    ++index;
  }
  for (;; ++index) {
    if (index == 0) {  // kept, empty: it carries the mark of begin_writing
      TRY_LET(file, chunk_locked(0, false));
      if (file) TRY(file->keep(0));
      continue;
    }
    const std::string path = store_.path_of(inode_, index);
    const bool was_there = ::unlink(path.c_str()) == 0;
    if (!was_there && errno != ENOENT) return fail_errno(errno, "unlink " + path);
    files_.erase(index);
    unsynced_.erase(index);
    if (!was_there && index >= chunks_before) return {};
  }
}

Result<void> LocalContent::allocate(std::uint64_t offset, std::uint64_t size) {
  // Refused at once, not when the disk is full: others write to it, and what was taken until then would have to be given back.
  const std::string& folder = store_.folder();
  struct statvfs disk {};
  if (::statvfs(folder.c_str(), &disk) != 0) return fail_errno(errno, "statvfs " + folder);
  const std::uint64_t available = std::uint64_t{disk.f_bavail} * disk.f_frsize;
  if (size > std::uint64_t{disk.f_blocks} * disk.f_frsize ||
      (size > available && size > available + blocks(offset + size) * 512))
    return fail(Code::no_space, folder, ": ", size, " bytes asked for, ", available, " available");
  while (size > 0) {
    const std::uint64_t index = offset / kChunkSize, within = offset % kChunkSize;
    const std::uint64_t part = std::min(size, kChunkSize - within);
    TRY_LET(file, chunk(index, true));
    TRY(file->allocate(within, part));
    {
      const std::lock_guard lock(mutex_);
      unsynced_.insert(index);
      uncounted_.insert(index);
    }
    offset += part;
    size -= part;
  }
  return {};
}

Result<void> LocalContent::punch(std::uint64_t offset, std::uint64_t size) {
  while (size > 0) {
    const std::uint64_t index = offset / kChunkSize, within = offset % kChunkSize;
    const std::uint64_t part = std::min(size, kChunkSize - within);
    TRY_LET(file, chunk(index, false));
    if (file) {
      TRY(file->punch(within, part));
      const std::lock_guard lock(mutex_);
      unsynced_.insert(index);
      uncounted_.insert(index);
    }
    offset += part;
    size -= part;
  }
  return {};
}

Result<void> LocalContent::sync() {
  std::vector<std::pair<std::uint64_t, File>> todo;
  {
    const std::lock_guard lock(mutex_);
    for (const std::uint64_t index : unsynced_) {
      const auto open = files_.find(index);
      if (open != files_.end()) todo.emplace_back(index, open->second);
    }
    unsynced_.clear();
  }
  Result<void> result;
  for (const auto& [index, file] : todo) {
    if (!result) break;
    result = file->sync();
    if (result) continue;
    const std::lock_guard lock(mutex_);
    for (const auto& each : todo) unsynced_.insert(each.first);
  }
  return result;
}

Result<std::uint64_t> LocalContent::seek(std::uint64_t offset, std::uint64_t size, bool data) {
  while (offset < size) {
    const std::uint64_t index = offset / kChunkSize, within = offset % kChunkSize;
    const std::uint64_t next = (index + 1) * kChunkSize;
    TRY_LET(file, chunk(index, false));
    if (!file) {
      if (!data) return offset;
      offset = next;
      continue;
    }
    TRY_LET(found, file->seek(within, data));
    if (found >= kChunkSize) {
      offset = next;
      continue;
    }
    return std::min(size, index * kChunkSize + found);
  }
  return size;
}

std::uint64_t LocalContent::blocks(std::uint64_t size) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t chunks = std::max<std::uint64_t>((size + kChunkSize - 1) / kChunkSize, 1);
  for (; counted_chunks_ < chunks; ++counted_chunks_) uncounted_.insert(counted_chunks_);
  for (const std::uint64_t index : uncounted_) {
    const auto file = index < chunks ? chunk_locked(index, false) : File();
    const auto blocks = file && *file ? (*file)->blocks() : Result<std::uint64_t>(std::uint64_t{0});
    std::uint64_t& counted = counted_[index];
    counted_sum_ -= counted;
    counted = blocks ? *blocks : 0;
    counted_sum_ += counted;
    if (counted == 0) counted_.erase(index);
  }
  uncounted_.clear();
  return counted_sum_;
}

Result<std::vector<std::uint32_t>> LocalContent::sums(std::uint64_t offset, std::uint64_t count) {
  const std::uint64_t index = offset / kChunkSize, first = offset % kChunkSize / kBlockSize;
  if (offset % kBlockSize != 0 || first + count > kChunkSize / kBlockSize)
    return fail(Code::invalid, "checksums of ", count, " blocks from byte ", offset, " on: not the blocks of one chunk");
  TRY_LET(file, chunk(index, false));
  if (!file) return std::vector<std::uint32_t>(count);
  return file->sums(first, count);
}

Result<void> LocalContent::go_on_writing() {
  const std::lock_guard lock(mutex_);
  return go_on_writing_locked();
}

Result<void> LocalContent::go_on_writing_locked() {
  TRY_LET(marked, marked_locked());
  if (marked) return {};
  for (;;) {
    TRY_LET(first, first_locked());
    if (::flock(first->descriptor(), LOCK_SH) != 0) return fail_errno(errno, "lock " + store_.path_of(inode_, 0));
    TRY_LET(still, first_locked());
    if (still == first) break;
  }
  writing_ = true;
  return {};
}

Result<bool> LocalContent::keep_writers_out() {
  const std::lock_guard lock(mutex_);
  TRY_LET(first, first_locked());
  if (::flock(first->descriptor(), LOCK_EX | LOCK_NB) == 0) {
    TRY_LET(still, first_locked());
    return still == first;
  }
  if (errno == EWOULDBLOCK) return false;
  return fail_errno(errno, "lock " + store_.path_of(inode_, 0));
}

}  // namespace fusionfs

#include "fusionfs/data/chunk_store.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

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

bool parse_hex(std::string_view text, std::uint64_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, 16);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
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
  return store;
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

Content::~Content() {
  for (const auto& [index, fd] : descriptors_) ::close(fd);
}

// mutex_ is held.
Result<int> Content::chunk(std::uint64_t index, bool make) {
  const auto known = descriptors_.find(index);
  if (known != descriptors_.end()) return known->second;
  const std::string path = store_.path_of(inode_, index);
  int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC | (make ? O_CREAT : 0), 0600);
  if (fd < 0 && errno == ENOENT) {
    if (!make) return -1;
    TRY(make_folder(path.substr(0, path.rfind('/'))));
    fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_CREAT, 0600);
  }
  if (fd < 0) return fail_errno(errno, "open " + path);
  descriptors_[index] = fd;
  return fd;
}

Result<void> Content::begin_writing(std::uint64_t recorded_size) {
  const std::lock_guard lock(mutex_);
  if (writing_) return {};
  TRY_LET(first, chunk(0, true));
  if (::flock(first, LOCK_EX | LOCK_NB) == 0) {
    // A writer that crashed writes past the end in order, so its leftovers are the tail of one chunk and those after
    // it.
    for (std::uint64_t index = recorded_size / kChunkSize;; ++index) {
      TRY_LET(fd, chunk(index, false));
      if (fd < 0) break;
      const std::uint64_t keep = index * kChunkSize < recorded_size ? recorded_size - index * kChunkSize : 0;
      struct stat status {};
      if (::fstat(fd, &status) != 0) return fail_errno(errno, "stat " + store_.path_of(inode_, index));
      if (static_cast<std::uint64_t>(status.st_size) > keep && ::ftruncate(fd, static_cast<off_t>(keep)) != 0) {
        return fail_errno(errno, "truncate " + store_.path_of(inode_, index));
      }
    }
  }
  if (::flock(first, LOCK_SH) != 0) return fail_errno(errno, "lock " + store_.path_of(inode_, 0));
  writing_ = true;
  return {};
}

Result<void> Content::read(std::uint64_t offset, char* to, std::size_t size) {
  while (size > 0) {
    const std::uint64_t index = offset / kChunkSize, within = offset % kChunkSize;
    const std::size_t part = static_cast<std::size_t>(std::min<std::uint64_t>(size, kChunkSize - within));
    int fd = -1;
    {
      const std::lock_guard lock(mutex_);
      TRY_LET(opened, chunk(index, false));
      fd = opened;
    }
    std::size_t have = 0;
    while (fd >= 0 && have < part) {
      const ssize_t got = ::pread(fd, to + have, part - have, static_cast<off_t>(within + have));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return fail_errno(errno, "read " + store_.path_of(inode_, index));
      if (got == 0) break;
      have += static_cast<std::size_t>(got);
    }
    std::memset(to + have, 0, part - have);
    to += part;
    offset += part;
    size -= part;
  }
  return {};
}

Result<void> Content::write(std::uint64_t offset, base::Bytes bytes) {
  while (!bytes.empty()) {
    const std::uint64_t index = offset / kChunkSize, within = offset % kChunkSize;
    const std::size_t part = static_cast<std::size_t>(std::min<std::uint64_t>(bytes.size(), kChunkSize - within));
    int fd = -1;
    {
      const std::lock_guard lock(mutex_);
      TRY_LET(opened, chunk(index, true));
      fd = opened;
      unsynced_[index] = true;
    }
    std::size_t done = 0;
    while (done < part) {
      const ssize_t put = ::pwrite(fd, bytes.data() + done, part - done, static_cast<off_t>(within + done));
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) return fail_errno(errno, "write " + store_.path_of(inode_, index));
      done += static_cast<std::size_t>(put);
    }
    bytes.remove_prefix(part);
    offset += part;
  }
  return {};
}

Result<void> Content::truncate(std::uint64_t size, std::uint64_t old_size) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t chunks_before = (old_size + kChunkSize - 1) / kChunkSize;
  std::uint64_t index = size / kChunkSize;
  if (size % kChunkSize != 0) {
    TRY_LET(fd, chunk(index, false));
    struct stat status {};
    if (fd >= 0 && ::fstat(fd, &status) != 0) return fail_errno(errno, "stat " + store_.path_of(inode_, index));
    if (fd >= 0 && static_cast<std::uint64_t>(status.st_size) > size % kChunkSize &&
        ::ftruncate(fd, static_cast<off_t>(size % kChunkSize)) != 0) {
      return fail_errno(errno, "truncate " + store_.path_of(inode_, index));
    }
    if (fd >= 0) unsynced_[index] = true;
    ++index;
  }
  for (;; ++index) {
    const std::string path = store_.path_of(inode_, index);
    if (index == 0) {  // kept, empty: it carries the mark of begin_writing
      TRY_LET(fd, chunk(0, false));
      if (fd >= 0 && ::ftruncate(fd, 0) != 0) return fail_errno(errno, "truncate " + path);
      continue;
    }
    const bool was_there = ::unlink(path.c_str()) == 0;
    if (!was_there && errno != ENOENT) return fail_errno(errno, "unlink " + path);
    const auto open = descriptors_.find(index);
    if (open != descriptors_.end()) {
      ::close(open->second);
      descriptors_.erase(open);
      unsynced_.erase(index);
    }
    if (!was_there && index >= chunks_before) return {};
  }
}

Result<void> Content::allocate(std::uint64_t offset, std::uint64_t size) {
  while (size > 0) {
    const std::uint64_t index = offset / kChunkSize, within = offset % kChunkSize;
    const std::uint64_t part = std::min(size, kChunkSize - within);
    const std::lock_guard lock(mutex_);
    TRY_LET(fd, chunk(index, true));
    if (::fallocate(fd, 0, static_cast<off_t>(within), static_cast<off_t>(part)) != 0) {
      return fail_errno(errno, "allocate " + store_.path_of(inode_, index));
    }
    unsynced_[index] = true;
    offset += part;
    size -= part;
  }
  return {};
}

Result<void> Content::punch(std::uint64_t offset, std::uint64_t size) {
  while (size > 0) {
    const std::uint64_t index = offset / kChunkSize, within = offset % kChunkSize;
    const std::uint64_t part = std::min(size, kChunkSize - within);
    const std::lock_guard lock(mutex_);
    TRY_LET(fd, chunk(index, false));
    if (fd >= 0) {
      if (::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(within),
                      static_cast<off_t>(part)) != 0) {
        return fail_errno(errno, "punch " + store_.path_of(inode_, index));
      }
      unsynced_[index] = true;
    }
    offset += part;
    size -= part;
  }
  return {};
}

Result<void> Content::sync() {
  std::vector<std::pair<std::uint64_t, int>> todo;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [index, dirty] : unsynced_) {
      const auto open = descriptors_.find(index);
      if (dirty && open != descriptors_.end()) {
        const int copy = ::fcntl(open->second, F_DUPFD_CLOEXEC, 3);  // truncate may close it meanwhile
        if (copy < 0) return fail_errno(errno, "duplicate descriptor of " + store_.path_of(inode_, index));
        todo.emplace_back(index, copy);
      }
    }
    unsynced_.clear();
  }
  Result<void> result;
  for (const auto& [index, fd] : todo) {
    if (result && ::fdatasync(fd) != 0) {
      result = fail_errno(errno, "sync " + store_.path_of(inode_, index));
      const std::lock_guard lock(mutex_);
      for (const auto& each : todo) unsynced_[each.first] = true;
    }
    ::close(fd);
  }
  return result;
}

Result<std::uint64_t> Content::seek(std::uint64_t offset, std::uint64_t size, bool data) {
  while (offset < size) {
    const std::uint64_t index = offset / kChunkSize, within = offset % kChunkSize;
    const std::uint64_t next = (index + 1) * kChunkSize;
    const std::lock_guard lock(mutex_);
    TRY_LET(fd, chunk(index, false));
    if (fd < 0) {
      if (!data) return offset;
      offset = next;
      continue;
    }
    const off_t found = ::lseek(fd, static_cast<off_t>(within), data ? SEEK_DATA : SEEK_HOLE);
    if (found < 0 && errno != ENXIO) return fail_errno(errno, "seek in " + store_.path_of(inode_, index));
    if (found < 0) {  // past the chunk file's end, which reads as a hole
      if (!data) return offset;
      offset = next;
      continue;
    }
    if (!data && static_cast<std::uint64_t>(found) >= kChunkSize) {
      offset = next;
      continue;
    }
    return std::min(size, index * kChunkSize + static_cast<std::uint64_t>(found));
  }
  return size;
}

std::uint64_t Content::blocks(std::uint64_t size) {
  std::uint64_t sum = 0;
  const std::lock_guard lock(mutex_);
  for (std::uint64_t index = 0; index * kChunkSize < size || index == 0; ++index) {
    const auto open = descriptors_.find(index);
    struct stat status {};
    if (open != descriptors_.end() ? ::fstat(open->second, &status) == 0
                                   : ::stat(store_.path_of(inode_, index).c_str(), &status) == 0) {
      sum += static_cast<std::uint64_t>(status.st_blocks);
    }
  }
  return sum;
}

int Content::descriptor(std::uint64_t offset, std::size_t size, std::uint64_t& position) {
  if (size == 0 || offset / kChunkSize != (offset + size - 1) / kChunkSize) return -1;
  const std::lock_guard lock(mutex_);
  const auto fd = chunk(offset / kChunkSize, false);
  if (!fd || *fd < 0) return -1;
  position = offset % kChunkSize;
  struct stat status {};
  if (::fstat(*fd, &status) != 0 || static_cast<std::uint64_t>(status.st_size) < position + size) return -1;
  return *fd;
}

}  // namespace fusionfs

#include "novoht/base/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <mutex>

#include "novoht/base/mutant.h"

namespace base {
namespace {

Error failed(int error, std::string_view verb, const std::string& path) {
  return fail_errno(error, std::string(verb) + " " + path);
}
Error failed_at(int error, std::string_view verb, const std::string& path, std::uint64_t offset, std::size_t size) {
  return fail_errno(error, std::string(verb) + " " + path + " offset " + std::to_string(offset) + " size " +
                               std::to_string(size));
}

// --- views ---

// Where the thread goes on when the memory it is reading has no file behind it.
thread_local sigjmp_buf* volatile guarded = nullptr;
struct sigaction handler_before;

void on_sigbus(int number, siginfo_t* about, void* context) {
  if (sigjmp_buf* const place = guarded) siglongjmp(*place, 1);
  // Somebody else's.
  if ((handler_before.sa_flags & SA_SIGINFO) != 0) return handler_before.sa_sigaction(number, about, context);
  if (handler_before.sa_handler != SIG_DFL && handler_before.sa_handler != SIG_IGN) return handler_before.sa_handler(number);
  ::signal(number, SIG_DFL);  // and what raised it does so again
}

void install_handler() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action = {};
    action.sa_sigaction = on_sigbus;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;  // the handler is left by a jump, which keeps no mask
    ::sigaction(SIGBUS, &action, &handler_before);
  });
}

__attribute__((noinline)) bool copy_guarded(const char* from, char* to, std::size_t size) {
  sigjmp_buf place;
  if (sigsetjmp(place, 0) != 0) {
    guarded = nullptr;
    return false;
  }
  guarded = &place;
  __asm__ volatile("" ::: "memory");
  std::memcpy(to, from, size);
  __asm__ volatile("" ::: "memory");
  guarded = nullptr;
  return true;
}

class MappedView final : public FileView {
 public:
  MappedView(const char* begin, std::uint64_t size) : begin_(begin), size_(size) {}
  ~MappedView() override { ::munmap(const_cast<char*>(begin_), size_); }
  bool read(std::uint64_t offset, char* to, std::size_t size) override {
    if (offset > size_ || size > size_ - offset) return false;
    return copy_guarded(begin_ + offset, to, size);
  }

 private:
  const char* const begin_;
  const std::uint64_t size_;
};

class RealFile final : public File {
 public:
  RealFile(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  ~RealFile() override { ::close(descriptor_); }

  Result<std::size_t> read_at(std::uint64_t offset, char* to, std::size_t size) override {
    std::size_t done = 0;
    while (done < size) {
      const ssize_t got = ::pread(descriptor_, to + done, size - done, static_cast<off_t>(offset + done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return failed_at(errno, "read", path_, offset + done, size - done);
      if (got == 0) break;
      done += static_cast<std::size_t>(got);
    }
    return done;
  }

  Result<void> write_at(std::uint64_t offset, Bytes data) override {
    while (!data.empty()) {
      const ssize_t put = ::pwrite(descriptor_, data.data(), data.size(), static_cast<off_t>(offset));
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) return failed_at(errno, "write", path_, offset, data.size());
      offset += static_cast<std::uint64_t>(put);
      data.remove_prefix(static_cast<std::size_t>(put));
    }
    return {};
  }

  Result<void> sync() override {
    if constexpr (kMutant == Mutant::never_sync) return {};
    if (::fdatasync(descriptor_) == 0) return {};
    const int error = errno;
    // What the disk did not take is marked clean all the same, and stays in the page cache: the next life would read it there, take it
    // for synced, and acknowledge more on top of it. Without those pages it reads what the disk has.
    (void)::posix_fadvise(descriptor_, 0, 0, POSIX_FADV_DONTNEED);
    return failed(error, "sync", path_);
  }

  Result<std::uint64_t> size() override {
    struct stat about;
    if (::fstat(descriptor_, &about) != 0) return failed(errno, "size of", path_);
    return static_cast<std::uint64_t>(about.st_size);
  }

  Result<void> truncate(std::uint64_t size) override {
    if (::ftruncate(descriptor_, static_cast<off_t>(size)) != 0) return failed(errno, "truncate", path_);
    return {};
  }

  Result<void> reserve(std::uint64_t size) override {
    TRY_LET(old_size, this->size());
    if (size <= old_size) return {};
    // Where the file system can reserve blocks, nothing need be written; else zeros are.
    if (::fallocate(descriptor_, 0, static_cast<off_t>(old_size), static_cast<off_t>(size - old_size)) == 0) return {};
    if (errno != EOPNOTSUPP && errno != ENOSYS && errno != EINVAL) {
      const int refused = errno;
      (void)!::ftruncate(descriptor_, static_cast<off_t>(old_size));
      return failed_at(refused, "reserve", path_, old_size, size - old_size);
    }
    static const std::string zeros(std::size_t{256} << 10, '\0');
    for (std::uint64_t at = old_size; at < size;) {
      const std::size_t piece = static_cast<std::size_t>(std::min<std::uint64_t>(zeros.size(), size - at));
      if (auto wrote = write_at(at, Bytes(zeros).substr(0, piece)); !wrote) {
        (void)!::ftruncate(descriptor_, static_cast<off_t>(old_size));
        return wrote;
      }
      at += piece;
    }
    return {};
  }

  void expect_sync() override { (void)::sync_file_range(descriptor_, 0, 0, SYNC_FILE_RANGE_WRITE); }
  void expect_use(std::uint64_t offset, std::uint64_t size) override {
    (void)::posix_fadvise(descriptor_, static_cast<off_t>(offset), static_cast<off_t>(size), POSIX_FADV_WILLNEED);
  }

  std::unique_ptr<FileView> view(std::uint64_t size) override {
    if (size == 0) return nullptr;
    void* const begin = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor_, 0);
    if (begin == MAP_FAILED) return nullptr;
    (void)::madvise(begin, size, MADV_RANDOM);  // one page for one value, not sixteen
    install_handler();
    return std::make_unique<MappedView>(static_cast<const char*>(begin), size);
  }

 private:
  const std::string path_;
  const int descriptor_;
};

class RealLock final : public FileLock {
 public:
  explicit RealLock(int descriptor) : descriptor_(descriptor) {}
  ~RealLock() override { ::close(descriptor_); }

 private:
  const int descriptor_;
};

class RealFiles final : public FileSystem {
 public:
  std::uint64_t free_bytes(const std::string& folder) override {
    struct statvfs about {};
    if (::statvfs(folder.c_str(), &about) != 0) return UINT64_MAX;
    return std::uint64_t{about.f_bavail} * about.f_frsize;
  }
  Result<std::unique_ptr<File>> open(const std::string& path, OpenMode mode) override {
    int flags = O_CLOEXEC;
    switch (mode) {
      case OpenMode::read: flags |= O_RDONLY; break;
      case OpenMode::read_write: flags |= O_RDWR; break;
      case OpenMode::create: flags |= O_RDWR | O_CREAT; break;
      case OpenMode::create_new: flags |= O_RDWR | O_CREAT | O_EXCL; break;
    }
    const int descriptor = ::open(path.c_str(), flags, 0600);
    if (descriptor < 0) return failed(errno, "open", path);
    return std::unique_ptr<File>(new RealFile(path, descriptor));
  }

  Result<bool> exists(const std::string& path) override {
    struct stat about;
    if (::stat(path.c_str(), &about) == 0) return true;
    if (errno == ENOENT || errno == ENOTDIR) return false;
    return failed(errno, "look for", path);
  }

  Result<void> rename(const std::string& from, const std::string& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0) return failed(errno, "rename", from + " to " + to);
    return {};
  }

  Result<void> remove(const std::string& path) override {
    if (::unlink(path.c_str()) != 0) return failed(errno, "remove", path);
    return {};
  }

  Result<std::vector<std::string>> list(const std::string& folder) override {
    DIR* const stream = ::opendir(folder.c_str());
    if (stream == nullptr) return failed(errno, "list", folder);
    std::vector<std::string> names;
    errno = 0;
    while (const dirent* entry = ::readdir(stream)) {
      const std::string name = entry->d_name;
      if (name != "." && name != "..") names.push_back(name);
      errno = 0;
    }
    const int error = errno;
    ::closedir(stream);
    if (error != 0) return failed(error, "list", folder);
    std::sort(names.begin(), names.end());
    return names;
  }

  Result<void> make_folder(const std::string& path) override {
    for (std::size_t at = 1; at <= path.size(); at++) {
      if (at != path.size() && path[at] != '/') continue;
      const std::string part = path.substr(0, at);
      if (::mkdir(part.c_str(), 0700) == 0) {
        // Its name too: a store that syncs its own folder alone would be gone as a whole after a loss of power.
        const std::size_t slash = part.rfind('/');
        TRY(sync_folder(slash == std::string::npos ? "." : slash == 0 ? "/" : part.substr(0, slash)));
        continue;
      }
      const int error = errno;
      struct stat about;
      if (::stat(part.c_str(), &about) == 0 && S_ISDIR(about.st_mode)) continue;
      return failed(error == EEXIST ? ENOTDIR : error, "make folder", part);
    }
    return {};
  }

  Result<void> sync_folder(const std::string& path) override {
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) return failed(errno, "open folder", path);
    const int outcome = ::fsync(descriptor);
    const int error = errno;
    ::close(descriptor);
    if (outcome != 0) return failed(error, "sync folder", path);
    return {};
  }

  Result<std::unique_ptr<FileLock>> lock(const std::string& path) override {
    const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (descriptor < 0) return failed(errno, "open", path);
    auto held = std::make_unique<RealLock>(descriptor);
    if (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK) return failed(errno, "lock", path);
      char text[32] = {};
      const ssize_t got = ::pread(descriptor, text, sizeof text - 1, 0);
      std::string holder(text, got > 0 ? static_cast<std::size_t>(got) : 0);
      holder.erase(std::find_if(holder.begin(), holder.end(), [](char c) { return c < '0' || c > '9'; }), holder.end());
      return fail(Code::conflict, path, ": held by ", holder.empty() ? "another process" : "process " + holder);
    }
    // For the message above only; the lock itself does not depend on it.
    const std::string pid = std::to_string(::getpid()) + "\n";
    if (::ftruncate(descriptor, 0) == 0) (void)!::pwrite(descriptor, pid.data(), pid.size(), 0);
    return std::unique_ptr<FileLock>(std::move(held));
  }
};

}  // namespace

std::unique_ptr<FileSystem> real_files() { return std::make_unique<RealFiles>(); }

}  // namespace base

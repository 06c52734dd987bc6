// A disk that can lose its power: a file system that passes everything on to a folder and remembers what was not synced. At the
// loss that is taken back, as a real disk with a volatile cache may.
//
//   power_disk BELOW MOUNT SEED        serves until it is unmounted; SIGUSR1: the power goes, all that is unsynced is lost;
//                                      SIGUSR2: any part of it is. Afterwards every operation fails with EIO: unmount, mount anew.
//
// Bytes are kept or lost in pages, each on its own; a file's bytes are safe from fsync and fdatasync of it on. Names (made,
// renamed, removed) are safe from fsync of their folder on, and are otherwise kept up to some moment and lost from then on, as by
// a file system with a journal. SIGUSR1 and SIGUSR2 are answered by a line "lost N pages, M names" on standard output.
#define FUSE_USE_VERSION 314
#include <dirent.h>
#include <fcntl.h>
#include <fuse3/fuse.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <list>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>

namespace {

constexpr off_t kPage = 4096;

// What a file was when it was last synced, where it has been changed since.
struct Unsynced {
  int file = -1;  // of the folder below, open for as long as there is something to take back
  off_t size = 0;
  std::map<off_t, std::string> pages;  // by offset; shorter at the file's old end
};

struct UnsyncedName {
  ino_t folder;
  std::function<void()> take_back;
};

class Disk {
 public:
  Disk(std::string below, unsigned seed) : below_(std::move(below)), random_(seed) {
    trash_ = below_ + "/.removed";
    ::mkdir(trash_.c_str(), 0700);
  }

  std::string path(const char* name) const { return below_ + name; }
  std::mutex& mutex() { return mutex_; }
  bool dead() const { return dead_; }

  // The bytes [offset, offset + size) of this file are about to change, or its size is.
  void note(int file, off_t offset, off_t size) {
    struct stat about {};
    if (::fstat(file, &about) != 0) return;
    const auto [found, fresh] = files_.try_emplace(about.st_ino);
    Unsynced& unsynced = found->second;
    if (fresh) {
      unsynced.file = ::open(("/proc/self/fd/" + std::to_string(file)).c_str(), O_RDWR | O_CLOEXEC);
      unsynced.size = about.st_size;
    }
    const off_t end = std::min(offset + size, unsynced.size);
    for (off_t page = offset / kPage * kPage; page < end; page += kPage) {
      const auto [kept, unknown] = unsynced.pages.try_emplace(page);
      if (!unknown) continue;
      kept->second.resize(static_cast<std::size_t>(std::min(kPage, unsynced.size - page)));
      const ssize_t got = ::pread(unsynced.file, kept->second.data(), kept->second.size(), page);
      kept->second.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    }
  }

  void synced(int file) {
    struct stat about {};
    if (::fstat(file, &about) == 0) forget(about.st_ino);
  }

  void note_name(const std::string& path, std::function<void()> take_back) {
    struct stat about {};
    const std::string folder = path.substr(0, path.rfind('/'));
    if (::stat(folder.c_str(), &about) == 0) names_.push_back({about.st_ino, std::move(take_back)});
  }

  void folder_synced(const std::string& path) {
    struct stat about {};
    if (::stat(path.c_str(), &about) == 0) names_.remove_if([&](const UnsyncedName& one) { return one.folder == about.st_ino; });
  }

  // Another name of the file, so that its removal can be taken back.
  std::string put_aside(const std::string& path) {
    const std::string aside = trash_ + "/" + std::to_string(next_++);
    return ::link(path.c_str(), aside.c_str()) == 0 ? aside : std::string();
  }

  // all: whatever is not synced; otherwise any part of it.
  void lose(bool all) {
    const std::lock_guard lock(mutex_);
    dead_ = true;
    std::size_t pages = 0, names = 0;
    for (auto& [ino, unsynced] : files_) {
      struct stat about {};
      if (unsynced.file < 0 || ::fstat(unsynced.file, &about) != 0) continue;
      for (const auto& [offset, bytes] : unsynced.pages) {
        if (!all && coin()) continue;
        if (::pwrite(unsynced.file, bytes.data(), bytes.size(), offset) >= 0) pages++;
      }
      // What lay beyond the old end: gone, or zeros here and there.
      if (all || coin()) {
        if (::ftruncate(unsynced.file, unsynced.size) == 0 && about.st_size != unsynced.size) pages++;
      } else {
        const std::string zeros(kPage, '\0');
        for (off_t page = (unsynced.size + kPage - 1) / kPage * kPage; page < about.st_size; page += kPage)
          if (coin() && ::pwrite(unsynced.file, zeros.data(), static_cast<std::size_t>(std::min(kPage, about.st_size - page)), page) >= 0)
            pages++;
      }
      ::close(unsynced.file);
    }
    files_.clear();
    std::size_t keep = all || names_.empty() ? 0 : random_() % (names_.size() + 1);
    for (; names_.size() > keep; names_.pop_back(), names++) names_.back().take_back();
    names_.clear();
    std::printf("lost %zu pages, %zu names\n", pages, names);
    std::fflush(stdout);
  }

 private:
  bool coin() { return (random_() & 1) != 0; }
  void forget(ino_t ino) {
    const auto found = files_.find(ino);
    if (found == files_.end()) return;
    if (found->second.file >= 0) ::close(found->second.file);
    files_.erase(found);
  }

  const std::string below_;
  std::string trash_;
  std::mutex mutex_;  // guards all below
  std::mt19937 random_;
  std::map<ino_t, Unsynced> files_;
  std::list<UnsyncedName> names_;  // in the order they were made
  unsigned next_ = 0;
  bool dead_ = false;
};

Disk* disk;

int answer(int outcome) { return outcome == 0 ? 0 : -errno; }
int file_of(fuse_file_info* info) { return static_cast<int>(info->fh); }

// Runs `work` as the only one, unless the power is gone.
template <typename Work>
int alone(Work work) {
  const std::lock_guard lock(disk->mutex());
  return disk->dead() ? -EIO : work();
}

int do_getattr(const char* name, struct stat* about, fuse_file_info*) {
  return alone([&] { return answer(::lstat(disk->path(name).c_str(), about)); });
}

int made(const char* name, int outcome) {
  if (outcome != 0) return -errno;
  const std::string path = disk->path(name);
  disk->note_name(path, [path] { ::remove(path.c_str()); });
  return 0;
}

int do_mknod(const char* name, mode_t mode, dev_t device) {
  return alone([&] { return made(name, ::mknod(disk->path(name).c_str(), mode, device)); });
}

int do_mkdir(const char* name, mode_t mode) {
  return alone([&] { return made(name, ::mkdir(disk->path(name).c_str(), mode)); });
}

int do_unlink(const char* name) {
  return alone([&] {
    const std::string path = disk->path(name), aside = disk->put_aside(path);
    if (::unlink(path.c_str()) != 0) return -errno;
    if (!aside.empty()) disk->note_name(path, [path, aside] { ::rename(aside.c_str(), path.c_str()); });
    return 0;
  });
}

int do_rmdir(const char* name) {
  return alone([&] {
    const std::string path = disk->path(name);
    if (::rmdir(path.c_str()) != 0) return -errno;
    disk->note_name(path, [path] { ::mkdir(path.c_str(), 0700); });
    return 0;
  });
}

int do_rename(const char* from_name, const char* to_name, unsigned flags) {
  return alone([&] {
    if (flags != 0) return -EINVAL;
    const std::string from = disk->path(from_name), to = disk->path(to_name), aside = disk->put_aside(to);
    if (::rename(from.c_str(), to.c_str()) != 0) return -errno;
    disk->note_name(to, [from, to, aside] {
      ::rename(to.c_str(), from.c_str());
      if (!aside.empty()) ::rename(aside.c_str(), to.c_str());
    });
    return 0;
  });
}

int do_open(const char* name, fuse_file_info* info) {
  return alone([&] {
    const int file = ::open(disk->path(name).c_str(), (info->flags & ~(O_CREAT | O_EXCL | O_APPEND | O_ACCMODE)) | O_RDWR | O_CLOEXEC);
    if (file < 0) return -errno;
    info->fh = static_cast<std::uint64_t>(file);
    return 0;
  });
}

int do_create(const char* name, mode_t mode, fuse_file_info* info) {
  return alone([&] {
    const std::string path = disk->path(name);
    const bool fresh = ::access(path.c_str(), F_OK) != 0;
    const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | (info->flags & O_EXCL), mode);
    if (file < 0) return -errno;
    if (fresh) (void)made(name, 0);
    info->fh = static_cast<std::uint64_t>(file);
    return 0;
  });
}

int do_read(const char*, char* buffer, std::size_t size, off_t offset, fuse_file_info* info) {
  return alone([&] {
    const ssize_t got = ::pread(file_of(info), buffer, size, offset);
    return got < 0 ? -errno : static_cast<int>(got);
  });
}

int do_write(const char*, const char* buffer, std::size_t size, off_t offset, fuse_file_info* info) {
  return alone([&] {
    disk->note(file_of(info), offset, static_cast<off_t>(size));
    const ssize_t put = ::pwrite(file_of(info), buffer, size, offset);
    return put < 0 ? -errno : static_cast<int>(put);
  });
}

int do_truncate(const char* name, off_t size, fuse_file_info*) {
  return alone([&] {
    const int file = ::open(disk->path(name).c_str(), O_RDWR | O_CLOEXEC);
    if (file < 0) return -errno;
    disk->note(file, size, std::numeric_limits<off_t>::max() - size);
    const int outcome = answer(::ftruncate(file, size));
    ::close(file);
    return outcome;
  });
}

int do_fallocate(const char*, int mode, off_t offset, off_t size, fuse_file_info* info) {
  return alone([&] {
    disk->note(file_of(info), offset, size);
    return answer(::fallocate(file_of(info), mode, offset, size));
  });
}

int do_fsync(const char*, int, fuse_file_info* info) {
  return alone([&] {
    disk->synced(file_of(info));
    return 0;
  });
}

int do_fsyncdir(const char* name, int, fuse_file_info*) {
  return alone([&] {
    disk->folder_synced(disk->path(name));
    return 0;
  });
}

int do_release(const char*, fuse_file_info* info) {
  ::close(file_of(info));
  return 0;
}

int do_readdir(const char* name, void* buffer, fuse_fill_dir_t fill, off_t, fuse_file_info*, fuse_readdir_flags) {
  return alone([&] {
    DIR* const folder = ::opendir(disk->path(name).c_str());
    if (folder == nullptr) return -errno;
    while (const dirent* one = ::readdir(folder))
      if (std::strcmp(one->d_name, ".removed") != 0) fill(buffer, one->d_name, nullptr, 0, fuse_fill_dir_flags{});
    ::closedir(folder);
    return 0;
  });
}

int do_chmod(const char* name, mode_t mode, fuse_file_info*) {
  return alone([&] { return answer(::chmod(disk->path(name).c_str(), mode)); });
}

int do_statfs(const char* name, struct statvfs* about) {
  return alone([&] { return answer(::statvfs(disk->path(name).c_str(), about)); });
}

void* on_start(fuse_conn_info*, fuse_config* config) {
  config->use_ino = 1;
  config->hard_remove = 1;  // an open file that is removed keeps no name
  config->attr_timeout = config->entry_timeout = 1.0;
  return nullptr;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: power_disk BELOW MOUNT SEED\n");
    return 2;
  }
  Disk the_disk(argv[1], static_cast<unsigned>(std::atoi(argv[3])));
  disk = &the_disk;
  sigset_t losses;
  sigemptyset(&losses);
  sigaddset(&losses, SIGUSR1);
  sigaddset(&losses, SIGUSR2);
  pthread_sigmask(SIG_BLOCK, &losses, nullptr);
  std::thread([losses] {
    int signal = 0;
    while (sigwait(&losses, &signal) == 0) disk->lose(signal == SIGUSR1);
  }).detach();

  fuse_operations operations{};
  operations.init = on_start;
  operations.getattr = do_getattr;
  operations.mknod = do_mknod;
  operations.mkdir = do_mkdir;
  operations.unlink = do_unlink;
  operations.rmdir = do_rmdir;
  operations.rename = do_rename;
  operations.open = do_open;
  operations.create = do_create;
  operations.read = do_read;
  operations.write = do_write;
  operations.truncate = do_truncate;
  operations.fallocate = do_fallocate;
  operations.fsync = do_fsync;
  operations.fsyncdir = do_fsyncdir;
  operations.release = do_release;
  operations.readdir = do_readdir;
  operations.chmod = do_chmod;
  operations.statfs = do_statfs;
  const char* arguments[] = {argv[0], "-f", "-o", "fsname=power_disk", argv[2]};
  return fuse_main(5, const_cast<char**>(arguments), &operations, nullptr);
}

#define FUSE_USE_VERSION 314
#include "fusionfs/fuse/glue.h"

#include <fcntl.h>
#include <fuse3/fuse_lowlevel.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>

#include "fusionfs/fuse/access_lists.h"
#include "novoht/base/mutant.h"

namespace fusionfs {
namespace {

Glue& glue_of(fuse_req_t request) { return *static_cast<Glue*>(fuse_req_userdata(request)); }
FileSystem& files_of(fuse_req_t request) { return glue_of(request).files; }
InodeId inode_of(fuse_ino_t number) { return InodeId{number}; }

std::uint32_t thread_of(fuse_req_t request) { return static_cast<std::uint32_t>(fuse_req_ctx(request)->pid); }

// Whether a request is the last of a system call that went along a path: then `serve` tells the retries. Others are on the way along
// one, tell them themselves, or come at any time (RELEASE, pages read ahead), beside what their thread does now.
enum class Part { last, attributes, other };

// Runs a task for a request and answers with `reply` wherever the task ends.
template <typename T, typename Reply>
void serve(fuse_req_t request, Task<T> task, Reply reply, Part part = Part::other) {
  FileSystem& files = files_of(request);
  const std::uint32_t thread = part == Part::other ? 0 : thread_of(request);
  const auto kind = part == Part::attributes ? Retries::Request::attributes : Retries::Request::other;
  // Alone: this thread waits for the store itself, which is quickest. Beside others: it goes on to the next request.
  using Which = CallsBlock::Which;
  const bool first = files.begin() == 0;
  const CallsBlock calls(glue_of(request).options.store_in_process ? Which::every : first ? Which::lone : Which::none);
  start(std::move(task), [&files, request, thread, kind, reply = std::move(reply)](T result) mutable {
    if (thread != 0) files.retries().answered(thread, kind);  // before the thread can go on
    reply(request, result);
    files.end();
  });
}

void answer_error(fuse_req_t request, int error) { fuse_reply_err(request, error); }

// An inode that is not there though the kernel knows a name of it: another mount has removed it, or has given the name to
// another. The kernel looks the path up anew and comes back. Directories are met on the way to others, again and again where
// many are moved: theirs stays ENOENT.
int or_stale(InodeId inode, int error) {
  return error == ENOENT && counter_of(inode) != kDirectoryCounter ? ESTALE : error;
}

struct stat to_stat(const GlueOptions& options, const Inode& inode) {
  struct stat status {};
  status.st_ino = raw(inode.id);
  status.st_mode = inode.mode & ~options.umask;
  status.st_nlink = inode.links;
  status.st_uid = options.uid.value_or(inode.uid);
  status.st_gid = options.gid.value_or(inode.gid);
  status.st_rdev = static_cast<dev_t>(inode.device);
  status.st_size = static_cast<off_t>(inode.size);
  status.st_blksize = 65536;
  status.st_blocks = static_cast<blkcnt_t>(inode.blocks);
  const auto time = [](Nanos nanos) {
    Nanos seconds = nanos / 1'000'000'000, rest = nanos % 1'000'000'000;
    if (rest < 0) {
      rest += 1'000'000'000;
      --seconds;
    }
    return timespec{static_cast<time_t>(seconds), static_cast<long>(rest)};
  };
  status.st_atim = time(inode.atime);
  status.st_mtim = time(inode.mtime);
  status.st_ctim = time(inode.ctime);
  return status;
}

// Times are kept from 1677 to 2262; what lies outside becomes the nearest, as with other file systems' ranges.
Nanos to_nanos(const timespec& time) {
  constexpr Nanos kMostSeconds = std::numeric_limits<Nanos>::max() / 1'000'000'000 - 1;
  const Nanos seconds = std::clamp<Nanos>(time.tv_sec, -kMostSeconds, kMostSeconds);
  return seconds * 1'000'000'000 + (seconds == time.tv_sec ? time.tv_nsec : 0);
}

fuse_entry_param to_entry(const Glue& glue, const Inode& inode) {
  fuse_entry_param entry{};
  entry.ino = raw(inode.id);
  entry.attr = to_stat(glue.options, inode);
  entry.attr_timeout = glue.files.about_to_change(inode) ? 0 : glue.options.attribute_timeout;
  // A symbolic link is followed without any request that could tell of its name: the name is asked for each time.
  entry.entry_timeout = is_symlink(inode.mode) ? 0 : glue.options.entry_timeout;
  return entry;
}

// The kernel did not take the answer (the caller was interrupted): it does not hold the reference either.
void reply_looked(fuse_req_t request, const Looked& looked) {
  if (looked.error != 0) return answer_error(request, looked.error);
  const Glue& glue = glue_of(request);
  FileSystem& files = glue.files;
  const fuse_entry_param entry = to_entry(glue, looked.inode);
  if (fuse_reply_entry(request, &entry) != 0) files.forget(looked.inode.id, 1);
}

void reply_attributes(fuse_req_t request, const Looked& looked) {
  if (looked.error != 0) return answer_error(request, looked.error);
  const Glue& glue = glue_of(request);
  const struct stat status = to_stat(glue.options, looked.inode);
  fuse_reply_attr(request, &status, glue.files.about_to_change(looked.inode) ? 0 : glue.options.attribute_timeout);
}

// Answers a change of a directory's names. FileSystem says ESTALE when the directory is not there any more: the kernel looks its name up
// anew, and ENOENT is told when that leads to the same.
void answer_change(fuse_req_t request, int error) {
  Retries& retries = files_of(request).retries();
  if (error == ESTALE) error = retries.stale(thread_of(request), ENOENT);
  if (error != ESTALE) retries.answered(thread_of(request));
  answer_error(request, error);
}

void reply_made(fuse_req_t request, const Looked& made) {
  if (made.error != 0) return answer_change(request, made.error);
  files_of(request).retries().answered(thread_of(request));
  reply_looked(request, made);
}

// From this version of its protocol on (Linux 6.6) the kernel drops the pages of what is written past its cache.
constexpr unsigned kDropsPages = 39;

void on_init(void* userdata, fuse_conn_info* connection) {
  Glue& glue = *static_cast<Glue*>(userdata);
  glue.writes_past_cache = connection->proto_minor >= kDropsPages;
  const auto want = [&](unsigned capability) {
    if ((connection->capable & capability) != 0) connection->want |= capability;
  };
  const auto refuse = [&](unsigned capability) { connection->want &= ~capability; };
  want(FUSE_CAP_ASYNC_READ);
  want(FUSE_CAP_ATOMIC_O_TRUNC);
  want(FUSE_CAP_PARALLEL_DIROPS);
  want(FUSE_CAP_READDIRPLUS);
  want(FUSE_CAP_READDIRPLUS_AUTO);
  want(FUSE_CAP_ASYNC_DIO);
  want(FUSE_CAP_CACHE_SYMLINKS);
  want(FUSE_CAP_EXPORT_SUPPORT);  // file handles outlive the kernel's cache
  // The page cache is dropped when another mount has changed a file, not whenever our own write moves its mtime.
  want(FUSE_CAP_EXPLICIT_INVAL_DATA);
  refuse(FUSE_CAP_AUTO_INVAL_DATA);
  refuse(FUSE_CAP_SPLICE_READ);
  refuse(FUSE_CAP_HANDLE_KILLPRIV);
  for (const unsigned locks : {FUSE_CAP_POSIX_LOCKS, FUSE_CAP_FLOCK_LOCKS}) {
    if (glue.options.local_locks)
      refuse(locks);
    else
      want(locks);
  }
  if (glue.options.writeback) want(FUSE_CAP_WRITEBACK_CACHE);
  want(FUSE_CAP_POSIX_ACL);
  want(FUSE_CAP_DONT_MASK);  // a default list takes the place of the caller's umask
  connection->max_write = 1u << 20;
  connection->max_readahead = 1u << 20;
  connection->max_background = glue.options.max_background;
  connection->congestion_threshold = glue.options.max_background * 3 / 4;
  connection->time_gran = 1;
}

void on_lookup(fuse_req_t request, fuse_ino_t parent, const char* name) {
  serve(request, files_of(request).lookup(inode_of(parent), name, thread_of(request)), reply_looked, Part::other);
}

void on_forget(fuse_req_t request, fuse_ino_t inode, std::uint64_t count) {
  files_of(request).forget(inode_of(inode), count);
  fuse_reply_none(request);
}

void on_forget_multi(fuse_req_t request, std::size_t count, fuse_forget_data* forgets) {
  for (std::size_t i = 0; i < count; ++i) files_of(request).forget(inode_of(forgets[i].ino), forgets[i].nlookup);
  fuse_reply_none(request);
}

void on_getattr(fuse_req_t request, fuse_ino_t inode, fuse_file_info* info) {
  FileSystem& files = files_of(request);
  const InodeId id = inode_of(inode);
  const bool by_name = info == nullptr && counter_of(id) != kDirectoryCounter;
  serve(request, by_name ? files.getattr_by_name(id, thread_of(request)) : files.getattr(id), reply_attributes,
        Part::attributes);
}

void on_setattr(fuse_req_t request, fuse_ino_t inode, struct stat* status, int to_set, fuse_file_info* info) {
  FileSystem& files = files_of(request);
  SetRequest set;
  set.inode = inode_of(inode);
  const Nanos now = files.metadata().now();
  if ((to_set & FUSE_SET_ATTR_MODE) != 0) {
    set.fields_set |= SetRequest::kMode;
    set.mode = status->st_mode & 07777;
  }
  if ((to_set & FUSE_SET_ATTR_UID) != 0) {
    set.fields_set |= SetRequest::kUid;
    set.uid = status->st_uid;
  }
  if ((to_set & FUSE_SET_ATTR_GID) != 0) {
    set.fields_set |= SetRequest::kGid;
    set.gid = status->st_gid;
  }
  if ((to_set & FUSE_SET_ATTR_SIZE) != 0) {
    set.fields_set |= SetRequest::kSize;
    set.size = static_cast<std::uint64_t>(status->st_size);
  }
  if ((to_set & (FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_ATIME_NOW)) != 0) {
    set.fields_set |= SetRequest::kAtime;
    set.atime = (to_set & FUSE_SET_ATTR_ATIME_NOW) != 0 ? now : to_nanos(status->st_atim);
  }
  if ((to_set & (FUSE_SET_ATTR_MTIME | FUSE_SET_ATTR_MTIME_NOW)) != 0) {
    set.fields_set |= SetRequest::kMtime;
    set.mtime = (to_set & FUSE_SET_ATTR_MTIME_NOW) != 0 ? now : to_nanos(status->st_mtim);
  }
  set.now = now;
  serve(request, info == nullptr ? files.setattr_by_name(std::move(set), thread_of(request)) : files.setattr(std::move(set)),
        reply_attributes, Part::last);
}

void on_readlink(fuse_req_t request, fuse_ino_t inode) {
  serve(request, files_of(request).read_link(inode_of(inode)), [inode](fuse_req_t to, const TextReply& reply) {
    if (reply.error != 0)
      answer_error(to, or_stale(inode_of(inode), reply.error));
    else
      fuse_reply_readlink(to, reply.text.c_str());
  });
}

CreateRequest creation(fuse_req_t request, const char* name, mode_t mode) {
  CreateRequest create;
  create.name = name;
  create.mode = mode;
  create.uid = fuse_req_ctx(request)->uid;
  create.gid = fuse_req_ctx(request)->gid;
  return create;
}

void make(fuse_req_t request, fuse_ino_t parent, CreateRequest create) {
  serve(request, make_inheriting(files_of(request), inode_of(parent), std::move(create), fuse_req_ctx(request)->umask), reply_made,
        Part::other);
}

void on_mknod(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode, dev_t device) {
  CreateRequest create = creation(request, name, (mode & S_IFMT) == 0 ? mode | S_IFREG : mode);
  create.device = device;
  make(request, parent, std::move(create));
}

void on_mkdir(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode) {
  make(request, parent, creation(request, name, (mode & 07777) | S_IFDIR));
}

void on_symlink(fuse_req_t request, const char* target, fuse_ino_t parent, const char* name) {
  CreateRequest create = creation(request, name, S_IFLNK | 0777);
  create.target = target;
  make(request, parent, std::move(create));
}

void on_unlink(fuse_req_t request, fuse_ino_t parent, const char* name) {
  serve(request, files_of(request).unlink(inode_of(parent), name), answer_change, Part::other);
}

void on_rmdir(fuse_req_t request, fuse_ino_t parent, const char* name) {
  serve(request, files_of(request).remove_directory(inode_of(parent), name), answer_change, Part::other);
}

void on_rename(fuse_req_t request, fuse_ino_t from, const char* name, fuse_ino_t to, const char* new_name,
               unsigned flags) {
  if ((flags & ~(kNoReplace | kExchange)) != 0) return answer_error(request, EINVAL);
  serve(request, files_of(request).rename(inode_of(from), name, inode_of(to), new_name, flags), answer_change, Part::other);
}

void on_link(fuse_req_t request, fuse_ino_t inode, fuse_ino_t parent, const char* name) {
  serve(request, files_of(request).link(inode_of(inode), inode_of(parent), name), reply_made, Part::other);
}

// Whether close(2) need not ask us: nothing was written, or each write was committed. A file opened for both may have
// shared mappings, whose pages the kernel writes back before a FLUSH only.
bool close_is_idle(const FileSystem& files, int flags) {
  const int access = flags & O_ACCMODE;
  return access == O_RDONLY || (access == O_WRONLY && files.commits_at_once());
}

void set_handle(const Glue& glue, fuse_file_info& file, bool alone) {
  // Pages in the kernel's cache are read without asking.
  if (glue.files.strict()) file.direct_io = 1;
  file.noflush = close_is_idle(glue.files, file.flags) ? 1 : 0;
  file.fh = glue.files.new_handle() | (file.noflush != 0 ? FileLocks::kSilent : 0);
  if (glue.options.writeback || (file.flags & O_ACCMODE) != O_WRONLY) return;
  if ((file.flags & O_APPEND) != 0) {
    // The kernel puts what is appended where it believes the end to be: it must not keep it there.
    file.direct_io = 1;
  } else if (alone && glue.writes_past_cache) {
    // A new file is written straight through: a copy less, and the kernel does not ask for its capabilities before each write.
    file.direct_io = 1;
    file.fh |= FileSystem::kPastCache;
  }
}

// Who opens a file and what for, as a line of provenance. Empty: it is not asked for.
std::string use_of(fuse_req_t request, int flags) {
  if (!glue_of(request).options.provenance) return {};
  const auto* caller = fuse_req_ctx(request);
  std::ifstream file("/proc/" + std::to_string(caller->pid) + "/cmdline", std::ios::binary);
  std::string command(4096, '\0');
  file.read(command.data(), static_cast<std::streamsize>(command.size()));
  command.resize(static_cast<std::size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  while (!command.empty() && command.back() == '\0') command.pop_back();
  std::replace(command.begin(), command.end(), '\0', ' ');
  const int access = flags & O_ACCMODE;
  char node[256] = {};
  ::gethostname(node, sizeof node - 1);
  return std::to_string(files_of(request).metadata().now()) + "\t" +
         (access == O_RDONLY   ? "read"
          : access == O_WRONLY ? "write"
                               : "read,write") +
         "\t" + std::to_string(caller->uid) + "\t" + std::to_string(caller->pid) + "\t" + node + "\t" +
         base::escape(command, 2000) + "\n";
}

void on_open(fuse_req_t request, fuse_ino_t inode, fuse_file_info* info) {
  fuse_file_info file = *info;
  serve(request, files_of(request).open(inode_of(inode), info->flags, fuse_req_ctx(request)->uid == 0, thread_of(request)),
        [file, inode, use = use_of(request, info->flags)](fuse_req_t to, const Opened& opened) mutable {
          if (opened.error != 0) return answer_error(to, opened.error);
          file.keep_cache = opened.keep_cache ? 1 : 0;
          FileSystem& files = files_of(to);
          if (!use.empty()) files.note_use(inode_of(inode), use);
          set_handle(glue_of(to), file, opened.alone);
          if (fuse_reply_open(to, &file) != 0) start(files.release(inode_of(inode)), [](int) {});
        },
        Part::last);
}

void on_create(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode, fuse_file_info* info) {
  fuse_file_info file = *info;
  const std::string use = use_of(request, info->flags);
  serve(request,
        create_inheriting(files_of(request), inode_of(parent), creation(request, name, mode), fuse_req_ctx(request)->umask, info->flags),
        [file, use](fuse_req_t to, const Opened& opened) mutable {
          if (opened.error != 0) return answer_change(to, opened.error);
          files_of(to).retries().answered(thread_of(to));
          const Glue& glue = glue_of(to);
          FileSystem& files = glue.files;
          if (!use.empty()) files.note_use(opened.inode.id, use);
          const fuse_entry_param entry = to_entry(glue, opened.inode);
          file.keep_cache = opened.keep_cache ? 1 : 0;
          set_handle(glue, file, opened.alone);
          if (fuse_reply_create(to, &entry, &file) != 0) {
            const InodeId id = opened.inode.id;
            start(files.release(id), [&files, id](int) { files.forget(id, 1); });
          }
        },
        Part::other);
}

// One buffer for each thread that reads; a request asks for 1 MiB at most.
void answer_read(fuse_req_t request, fuse_ino_t inode, std::size_t size, off_t offset) {
  thread_local std::vector<char> buffer;
  if (buffer.size() < size) buffer.resize(size);
  std::size_t got = 0;
  const int error =
      files_of(request).read(inode_of(inode), static_cast<std::uint64_t>(offset), buffer.data(), size, got);
  if (error != 0)
    answer_error(request, error);
  else
    fuse_reply_buf(request, buffer.data(), got);
}

void on_read(fuse_req_t request, fuse_ino_t inode, std::size_t size, off_t offset, fuse_file_info*) {
  if (!files_of(request).strict()) return answer_read(request, inode, size, offset);
  serve(request, files_of(request).current(inode_of(inode)), [inode, size, offset](fuse_req_t to, int error) {
    if (error != 0)
      answer_error(to, error);
    else
      answer_read(to, inode, size, offset);
  });
}

// The caller, as far as it matters to who may leave a file its set-id bits.
Changer changer_of(fuse_req_t request) {
  const auto belongs = [request](std::uint32_t group) {
    if (fuse_req_ctx(request)->gid == group) return true;
    std::vector<gid_t> groups(64);
    int count = fuse_req_getgroups(request, static_cast<int>(groups.size()), groups.data());
    if (count > static_cast<int>(groups.size())) {
      groups.resize(static_cast<std::size_t>(count));
      count = fuse_req_getgroups(request, count, groups.data());
    }
    groups.resize(static_cast<std::size_t>(std::clamp<int>(count, 0, static_cast<int>(groups.size()))));
    return std::find(groups.begin(), groups.end(), group) != groups.end();
  };
  return {fuse_req_ctx(request)->uid == 0, belongs};
}

Task<int> append_and_take_privileges(FileSystem& files, InodeId inode, std::uint64_t believed, std::string bytes, Changer changer) {
  int error = co_await files.append(inode, believed, std::move(bytes));
  if (error == 0) error = co_await files.take_privileges(inode, std::move(changer));
  co_return error;
}

Task<int> allocate_and_take_privileges(FileSystem& files, InodeId inode, int mode, std::uint64_t offset, std::uint64_t size,
                                       Changer changer) {
  int error = co_await files.current(inode);
  if (error == 0) error = co_await files.allocate(inode, mode, offset, size);
  if (error == 0 && files.strict()) error = co_await files.flush(inode);
  if (error == 0) error = co_await files.take_privileges(inode, std::move(changer));
  co_return error;
}

void on_write(fuse_req_t request, fuse_ino_t inode, const char* bytes, std::size_t size, off_t offset,
              fuse_file_info* info) {
  FileSystem& files = files_of(request);
  if ((info->flags & O_APPEND) != 0 && info->writepage == 0) {
    serve(request,
          append_and_take_privileges(files, inode_of(inode), static_cast<std::uint64_t>(offset), std::string(bytes, size),
                                     changer_of(request)),
          [size](fuse_req_t to, int failed) {
            if (failed != 0)
              answer_error(to, failed);
            else
              fuse_reply_write(to, size);
          });
    return;
  }
  const int error = files.write(inode_of(inode), static_cast<std::uint64_t>(offset), base::Bytes(bytes, size));
  if (error != 0) return answer_error(request, error);
  // O_DIRECT too: of a write that is not waited for (io_submit) the kernel leaves older pages in its cache.
  const bool past_cache = (info->fh & FileSystem::kPastCache) != 0 || (info->writepage == 0 && (files.strict() || (info->flags & O_DIRECT) != 0));
  if (!files.commits_at_once() && !past_cache) {
    fuse_reply_write(request, size);
    return;
  }
  Task<int> rest = past_cache ? files.wrote_past_cache(inode_of(inode), changer_of(request))
                              : files.flush(inode_of(inode));
  serve(request, std::move(rest), [size](fuse_req_t to, int failed) {
    if (failed != 0)
      answer_error(to, failed);
    else
      fuse_reply_write(to, size);
  });
}

void on_flush(fuse_req_t request, fuse_ino_t inode, fuse_file_info* info) {
  serve(request, files_of(request).closed(inode_of(inode), info->lock_owner), answer_error);
}

void on_release(fuse_req_t request, fuse_ino_t inode, fuse_file_info* info) {
  const std::uint64_t flock_owner = info->flock_release != 0 ? info->lock_owner : 0;
  serve(request, files_of(request).release(inode_of(inode), info->fh, flock_owner), answer_error);
}

FileLock::Type lock_type(int type) {
  return type == F_RDLCK   ? FileLock::Type::shared
         : type == F_WRLCK ? FileLock::Type::exclusive
                           : FileLock::Type::none;
}

FileLock record_lock(const struct flock& given, const fuse_file_info& info) {
  FileLock lock;
  lock.type = lock_type(given.l_type);
  lock.owner = info.lock_owner;
  lock.pid = static_cast<std::uint32_t>(given.l_pid);
  lock.first = static_cast<std::uint64_t>(given.l_start);
  lock.last = given.l_len == 0 ? kLockToEnd : lock.first + static_cast<std::uint64_t>(given.l_len) - 1;
  return lock;
}

void on_getlk(fuse_req_t request, fuse_ino_t inode, fuse_file_info* info, struct flock* given) {
  serve(request, files_of(request).locks().test(inode_of(inode), record_lock(*given, *info)),
        [](fuse_req_t to, const FileLocks::Tested& tested) {
          if (tested.error != 0) return answer_error(to, tested.error);
          const FileLock& lock = tested.lock;
          struct flock answer {};
          answer.l_type = lock.type == FileLock::Type::none     ? F_UNLCK
                          : lock.type == FileLock::Type::shared ? F_RDLCK
                                                                : F_WRLCK;
          answer.l_whence = SEEK_SET;
          answer.l_start = static_cast<off_t>(lock.first);
          answer.l_len = lock.last == kLockToEnd ? 0 : static_cast<off_t>(lock.last - lock.first + 1);
          answer.l_pid = static_cast<pid_t>(lock.pid);
          fuse_reply_lock(to, &answer);
        });
}

void on_interrupt(fuse_req_t request, void* data) {
  files_of(request).locks().interrupt(*static_cast<FileLocks::Wait*>(data));
}

// May wait for hours: not counted among what is under way, and ended by a signal to the caller, or by the mount's end.
void set_lock_of(fuse_req_t request, fuse_ino_t inode, const FileLock& lock, bool sleep, std::uint64_t handle) {
  const auto wait = std::make_shared<FileLocks::Wait>();
  if (sleep) fuse_req_interrupt_func(request, on_interrupt, wait.get());
  FileSystem& files = files_of(request);
  using Which = CallsBlock::Which;
  const bool alone = files.begin() == 0;
  const CallsBlock calls(glue_of(request).options.store_in_process ? Which::every : alone ? Which::lone : Which::none);
  files.begin_locking();
  start(files.lock(inode_of(inode), lock, sleep, wait, handle), [&files, request, wait, sleep](int error) {
    // Returns only when no interrupt is being told of any more: `wait` may go.
    if (sleep) fuse_req_interrupt_func(request, nullptr, nullptr);
    answer_error(request, error);
    files.end_locking();
  });
  files.end();
}

void on_setlk(fuse_req_t request, fuse_ino_t inode, fuse_file_info* info, struct flock* given, int sleep) {
  set_lock_of(request, inode, record_lock(*given, *info), sleep != 0, info->fh & ~FileSystem::kPastCache);
}

void on_flock(fuse_req_t request, fuse_ino_t inode, fuse_file_info* info, int operation) {
  FileLock lock;
  lock.kind = FileLock::Kind::flock;
  lock.type = (operation & LOCK_UN) != 0   ? FileLock::Type::none
              : (operation & LOCK_EX) != 0 ? FileLock::Type::exclusive
                                           : FileLock::Type::shared;
  lock.owner = info->lock_owner;
  lock.pid = static_cast<std::uint32_t>(fuse_req_ctx(request)->pid);
  set_lock_of(request, inode, lock, (operation & LOCK_NB) == 0, info->fh & ~FileSystem::kPastCache);
}

void on_fsync(fuse_req_t request, fuse_ino_t inode, int, fuse_file_info*) {
  if constexpr (base::kMutant == base::Mutant::drop_fsync) {
    fuse_reply_err(request, 0);
    return;
  }
  serve(request, files_of(request).sync(inode_of(inode)), answer_error);
}

using Directory = std::shared_ptr<OpenDirectory>;

void on_opendir(fuse_req_t request, fuse_ino_t inode, fuse_file_info* info) {
  auto* handle = new Directory(std::make_shared<OpenDirectory>());
  (*handle)->id = inode_of(inode);
  fuse_file_info file = *info;
  file.fh = reinterpret_cast<std::uint64_t>(handle);
  serve(request, files_of(request).open_directory(inode_of(inode), thread_of(request)), [handle, file](fuse_req_t to, int error) {
    if (error != 0) answer_error(to, error);
    if (error != 0 || fuse_reply_open(to, &file) != 0) delete handle;
  }, Part::last);
}

void on_releasedir(fuse_req_t request, fuse_ino_t, fuse_file_info* info) {
  delete reinterpret_cast<Directory*>(info->fh);
  answer_error(request, 0);
}

void read_directory(fuse_req_t request, std::size_t size, off_t offset, fuse_file_info* info, bool plus) {
  const Directory directory = *reinterpret_cast<Directory*>(info->fh);
  const std::size_t smallest = plus ? 160 : 32;  // bytes an entry takes at least
  serve(request,
        files_of(request).read_directory(directory, static_cast<std::uint64_t>(offset), size / smallest + 1, plus),
        [size, plus, listed = directory->id](fuse_req_t to, const DirectoryPage& page) {
          if (page.error != 0) return answer_error(to, page.error);
          const Glue& glue = glue_of(to);
          FileSystem& files = glue.files;
          std::string buffer(size, '\0');
          std::size_t used = 0;
          std::vector<InodeId> kept;
          for (const DirectoryEntry& each : page.entries) {
            std::size_t need = 0;
            if (plus) {
              fuse_entry_param entry{};
              const bool named = each.has_attributes;
              if (named) {
                entry = to_entry(glue, files.as_seen_here(each.attributes));
              } else {
                entry.attr.st_ino = raw(each.inode);
                entry.attr.st_mode = each.type;
              }
              need = fuse_add_direntry_plus(to, buffer.data() + used, size - used, each.name.c_str(), &entry,
                                            static_cast<off_t>(each.next));
              if (need > size - used) break;
              if (named) {
                files.keep(listed, each.name, each.attributes);
                kept.push_back(each.inode);
              }
            } else {
              struct stat status {};
              status.st_ino = raw(each.inode);
              status.st_mode = each.type;
              need = fuse_add_direntry(to, buffer.data() + used, size - used, each.name.c_str(), &status,
                                       static_cast<off_t>(each.next));
              if (need > size - used) break;
            }
            used += need;
          }
          if (fuse_reply_buf(to, buffer.data(), used) != 0) {
            for (const InodeId id : kept) files.forget(id, 1);
          }
        });
}

void on_readdir(fuse_req_t request, fuse_ino_t, std::size_t size, off_t offset, fuse_file_info* info) {
  read_directory(request, size, offset, info, false);
}
void on_readdirplus(fuse_req_t request, fuse_ino_t, std::size_t size, off_t offset, fuse_file_info* info) {
  read_directory(request, size, offset, info, true);
}

void on_fsyncdir(fuse_req_t request, fuse_ino_t inode, int, fuse_file_info*) {
  serve(request, files_of(request).sync_directory(inode_of(inode)), answer_error);
}

void on_statfs(fuse_req_t request, fuse_ino_t) {
  struct statvfs status {};
  const int error = files_of(request).statistics(status);
  if (error != 0)
    answer_error(request, error);
  else
    fuse_reply_statfs(request, &status);
}

constexpr std::string_view kVirtual = "fusionfs.";  // attributes that tell where a file lies; not listed
constexpr std::string_view kTrusted = "trusted.";   // the kernel lets root alone read and write them; listing is up to us

bool is_list(std::string_view name) { return name == kAccessList || name == kDefaultList; }

// 0, or what a local file system says to a name in none of its namespaces, or with nothing behind the namespace.
int check_attribute(std::string_view name) {
  for (const std::string_view space : {std::string_view("user."), kTrusted, std::string_view("security.")}) {
    if (name.starts_with(space)) return name == space ? EINVAL : 0;
  }
  return is_list(name) ? 0 : EOPNOTSUPP;
}

bool refused_list(fuse_req_t request, std::string_view name) { return is_list(name) && !glue_of(request).options.access_lists; }

void on_setxattr(fuse_req_t request, fuse_ino_t inode, const char* name, const char* value, std::size_t size,
                 int flags) {
  FileSystem& files = files_of(request);
  if (std::strlen(name) > kMaxName) return answer_error(request, ERANGE);
  const std::string_view attribute(name);
  if (attribute.starts_with(kVirtual)) return answer_error(request, EPERM);
  if (const int error = check_attribute(attribute); error != 0) return answer_error(request, error);
  if (refused_list(request, attribute)) return answer_error(request, EOPNOTSUPP);
  if (attribute == kAccessList) {
    serve(request,
          set_access_list(files, inode_of(inode), name, std::string(value, size), static_cast<std::uint32_t>(flags), changer_of(request)),
          answer_error);
    return;
  }
  serve(request,
        files.set_attribute(inode_of(inode), name, std::string(value, size), static_cast<std::uint32_t>(flags),
                            std::nullopt),
        [inode](fuse_req_t to, int error) { answer_error(to, or_stale(inode_of(inode), error)); });
}

void reply_text(fuse_req_t request, InodeId inode, const TextReply& reply, std::size_t size) {
  if (reply.error != 0)
    answer_error(request, or_stale(inode, reply.error));
  else if (size == 0)
    fuse_reply_xattr(request, reply.text.size());
  else if (reply.text.size() > size)
    answer_error(request, ERANGE);
  else
    fuse_reply_buf(request, reply.text.data(), reply.text.size());
}

// Bits that are not shown are not granted by a list either.
std::string less_umask(const Glue& glue, std::string list) {
  const auto mode = mode_of_access_list(list, 0);
  return mode && glue.options.umask != 0 ? with_mode(std::move(list), *mode & ~glue.options.umask) : list;
}

void on_getxattr(fuse_req_t request, fuse_ino_t inode, const char* name, std::size_t size) {
  if (std::string_view(name).starts_with(kVirtual)) {
    serve(request, files_of(request).layout(inode_of(inode), std::string(name + kVirtual.size())),
          [inode, size](fuse_req_t to, const TextReply& reply) { reply_text(to, inode_of(inode), reply, size); });
    return;
  }
  serve(request, files_of(request).get_attribute(inode_of(inode), name),
        [inode, size, access = std::string_view(name) == kAccessList](fuse_req_t to, TextReply& reply) {
          if (access && reply.error == 0) reply.text = less_umask(glue_of(to), std::move(reply.text));
          reply_text(to, inode_of(inode), reply, size);
        });
}

// A list of names, each ended by a zero, without those that start with `prefix`.
std::string without(const std::string& names, std::string_view prefix) {
  std::string rest;
  for (std::size_t at = 0; at < names.size();) {
    const std::size_t end = std::min(names.find('\0', at), names.size() - 1) + 1;
    if (!std::string_view(names).substr(at).starts_with(prefix)) rest.append(names, at, end - at);
    at = end;
  }
  return rest;
}

void on_listxattr(fuse_req_t request, fuse_ino_t inode, std::size_t size) {
  serve(request, files_of(request).list_attributes(inode_of(inode)),
        [inode, size, all = fuse_req_ctx(request)->uid == 0](fuse_req_t to, TextReply& reply) {
          if (!all) reply.text = without(reply.text, kTrusted);
          reply_text(to, inode_of(inode), reply, size);
        });
}

void on_removexattr(fuse_req_t request, fuse_ino_t inode, const char* name) {
  if (refused_list(request, name)) return answer_error(request, EOPNOTSUPP);
  const bool list = is_list(name);  // one that is not there is as good as removed
  serve(request, files_of(request).remove_attribute(inode_of(inode), name), [inode, list](fuse_req_t to, int error) {
    answer_error(to, list && error == ENODATA ? 0 : or_stale(inode_of(inode), error));
  });
}

void on_fallocate(fuse_req_t request, fuse_ino_t inode, int mode, off_t offset, off_t size, fuse_file_info*) {
  if (offset < 0 || size <= 0) return answer_error(request, EINVAL);
  serve(request,
        allocate_and_take_privileges(files_of(request), inode_of(inode), mode, static_cast<std::uint64_t>(offset),
                                     static_cast<std::uint64_t>(size), changer_of(request)),
        answer_error);
}

void on_lseek(fuse_req_t request, fuse_ino_t inode, off_t offset, int whence, fuse_file_info*) {
  if (whence != SEEK_DATA && whence != SEEK_HOLE) return answer_error(request, EINVAL);
  if (offset < 0) return answer_error(request, ENXIO);
  serve(request, files_of(request).current(inode_of(inode)), [inode, offset, whence](fuse_req_t to, int failed) {
    std::uint64_t found = 0;
    const int error = failed != 0 ? failed
                                  : files_of(to).seek(inode_of(inode), static_cast<std::uint64_t>(offset), whence == SEEK_DATA, found);
    if (error != 0)
      answer_error(to, error);
    else
      fuse_reply_lseek(to, static_cast<off_t>(found));
  });
}

void on_copy_file_range(fuse_req_t request, fuse_ino_t from, off_t from_offset, fuse_file_info*, fuse_ino_t to,
                        off_t to_offset, fuse_file_info*, std::size_t size, int flags) {
  if (flags != 0 || from_offset < 0 || to_offset < 0) return answer_error(request, EINVAL);
  FileSystem& files = files_of(request);
  if (files.strict()) return answer_error(request, EOPNOTSUPP);  // the kernel reads and writes instead
  constexpr std::size_t kPiece = std::size_t{1} << 20,
                        kMost = std::size_t{64} << 20;  // of one answer: the caller goes on
  thread_local std::vector<char> buffer(kPiece);
  std::size_t copied = 0;
  int error = 0;
  while (copied < std::min(size, kMost)) {
    std::size_t got = 0;
    const std::size_t piece = std::min(kPiece, std::min(size, kMost) - copied);
    error = files.read(inode_of(from), static_cast<std::uint64_t>(from_offset) + copied, buffer.data(), piece, got);
    if (error != 0 || got == 0) break;
    error = files.write(inode_of(to), static_cast<std::uint64_t>(to_offset) + copied, base::Bytes(buffer.data(), got));
    if (error != 0) break;
    copied += got;
  }
  if (error != 0 && copied == 0) return answer_error(request, error);
  if (!files.commits_at_once()) {
    fuse_reply_write(request, copied);
    return;
  }
  serve(request, files.flush(inode_of(to)), [copied](fuse_req_t answer_to, int failed) {
    if (failed != 0)
      answer_error(answer_to, failed);
    else
      fuse_reply_write(answer_to, copied);
  });
}

}  // namespace

const fuse_lowlevel_ops& fuse_operations() {
  static const fuse_lowlevel_ops operations = [] {
    fuse_lowlevel_ops ops{};
    ops.init = on_init;
    ops.lookup = on_lookup;
    ops.forget = on_forget;
    ops.forget_multi = on_forget_multi;
    ops.getattr = on_getattr;
    ops.setattr = on_setattr;
    ops.readlink = on_readlink;
    ops.mknod = on_mknod;
    ops.mkdir = on_mkdir;
    ops.symlink = on_symlink;
    ops.unlink = on_unlink;
    ops.rmdir = on_rmdir;
    ops.rename = on_rename;
    ops.link = on_link;
    ops.open = on_open;
    ops.create = on_create;
    ops.read = on_read;
    ops.write = on_write;
    ops.flush = on_flush;
    ops.release = on_release;
    ops.fsync = on_fsync;
    ops.getlk = on_getlk;
    ops.setlk = on_setlk;
    ops.flock = on_flock;
    ops.opendir = on_opendir;
    ops.readdir = on_readdir;
    ops.readdirplus = on_readdirplus;
    ops.releasedir = on_releasedir;
    ops.fsyncdir = on_fsyncdir;
    ops.statfs = on_statfs;
    ops.setxattr = on_setxattr;
    ops.getxattr = on_getxattr;
    ops.listxattr = on_listxattr;
    ops.removexattr = on_removexattr;
    ops.fallocate = on_fallocate;
    ops.lseek = on_lseek;
    ops.copy_file_range = on_copy_file_range;
    return ops;
  }();
  return operations;
}

}  // namespace fusionfs

// What FUSE itself costs: a file system that keeps everything in memory, answers at once and does nothing else. The
// limit for any file system that the kernel reaches through /dev/fuse with this libfuse.
//
//   fuse_limit DIR        mounts on DIR and serves until SIGTERM or unmount
//
// Files of up to 64 KiB keep their bytes; past that only the length (a sequential 1 MiB row reads zeros): copying
// gigabytes into memory would measure the allocator.
#define FUSE_USE_VERSION 314
#include <fuse3/fuse_lowlevel.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace {

constexpr double kTimeout = 1.0;  // seconds, as FusionFS's default
constexpr std::size_t kKept = 65536;

struct Node {
  std::mutex mutex;
  struct stat status {};
  std::string bytes;
  std::unordered_map<std::string, Node*> names;  // directories
  std::uint64_t lookups = 0;                     // guarded by mutex
};

Node root;

Node* node_of(fuse_ino_t number) { return number == FUSE_ROOT_ID ? &root : reinterpret_cast<Node*>(number); }
fuse_ino_t number_of(Node* node) { return node == &root ? FUSE_ROOT_ID : reinterpret_cast<fuse_ino_t>(node); }

// The kernel holds the directory's lock across every change of it; ours orders lookups beside them.
fuse_entry_param entry_of(Node* node) {
  fuse_entry_param entry{};
  entry.ino = number_of(node);
  const std::lock_guard lock(node->mutex);
  node->lookups += 1;
  entry.attr = node->status;
  entry.attr_timeout = entry.entry_timeout = kTimeout;
  return entry;
}

Node* find(Node* directory, const char* name) {
  const std::lock_guard lock(directory->mutex);
  const auto found = directory->names.find(name);
  return found == directory->names.end() ? nullptr : found->second;
}

Node* make(fuse_req_t request, Node* directory, const char* name, mode_t mode) {
  auto* node = new Node;
  node->status.st_ino = number_of(node);
  node->status.st_mode = mode;
  node->status.st_nlink = S_ISDIR(mode) ? 2 : 1;
  node->status.st_uid = fuse_req_ctx(request)->uid;
  node->status.st_gid = fuse_req_ctx(request)->gid;
  clock_gettime(CLOCK_REALTIME_COARSE, &node->status.st_mtim);
  node->status.st_atim = node->status.st_ctim = node->status.st_mtim;
  const std::lock_guard lock(directory->mutex);
  directory->names[name] = node;
  return node;
}

void on_init(void*, fuse_conn_info* connection) {
  for (const unsigned wanted : {FUSE_CAP_ASYNC_READ, FUSE_CAP_PARALLEL_DIROPS, FUSE_CAP_READDIRPLUS,
                                FUSE_CAP_READDIRPLUS_AUTO, FUSE_CAP_ATOMIC_O_TRUNC, FUSE_CAP_EXPLICIT_INVAL_DATA}) {
    connection->want |= connection->capable & wanted;
  }
  connection->want &= ~static_cast<unsigned>(FUSE_CAP_AUTO_INVAL_DATA | FUSE_CAP_SPLICE_READ);
  connection->max_write = 1 << 20;
  connection->max_readahead = 1 << 20;
  connection->max_background = 64;
}

void on_lookup(fuse_req_t request, fuse_ino_t parent, const char* name) {
  Node* node = find(node_of(parent), name);
  if (node == nullptr) {
    fuse_reply_err(request, ENOENT);
    return;
  }
  const fuse_entry_param entry = entry_of(node);
  fuse_reply_entry(request, &entry);
}

void forget(fuse_ino_t number, std::uint64_t count) {
  Node* node = node_of(number);
  bool last = false;
  {
    const std::lock_guard lock(node->mutex);
    node->lookups -= std::min(node->lookups, count);
    last = node->lookups == 0 && node->status.st_nlink == 0;
  }
  if (last) delete node;
}
void on_forget(fuse_req_t request, fuse_ino_t number, std::uint64_t count) {
  forget(number, count);
  fuse_reply_none(request);
}
void on_forget_multi(fuse_req_t request, std::size_t count, fuse_forget_data* forgets) {
  for (std::size_t i = 0; i < count; ++i) forget(forgets[i].ino, forgets[i].nlookup);
  fuse_reply_none(request);
}

void reply_attributes(fuse_req_t request, Node* node) {
  struct stat status {};
  {
    const std::lock_guard lock(node->mutex);
    status = node->status;
  }
  fuse_reply_attr(request, &status, kTimeout);
}
void on_getattr(fuse_req_t request, fuse_ino_t number, fuse_file_info*) { reply_attributes(request, node_of(number)); }
void on_setattr(fuse_req_t request, fuse_ino_t number, struct stat* to, int set, fuse_file_info*) {
  Node* node = node_of(number);
  {
    const std::lock_guard lock(node->mutex);
    if ((set & FUSE_SET_ATTR_MODE) != 0) node->status.st_mode = (node->status.st_mode & S_IFMT) | (to->st_mode & 07777);
    if ((set & FUSE_SET_ATTR_UID) != 0) node->status.st_uid = to->st_uid;
    if ((set & FUSE_SET_ATTR_GID) != 0) node->status.st_gid = to->st_gid;
    if ((set & FUSE_SET_ATTR_SIZE) != 0) {
      node->status.st_size = to->st_size;
      node->bytes.resize(std::min<std::size_t>(kKept, static_cast<std::size_t>(to->st_size)));
    }
    if ((set & FUSE_SET_ATTR_MTIME) != 0) node->status.st_mtim = to->st_mtim;
    if ((set & FUSE_SET_ATTR_ATIME) != 0) node->status.st_atim = to->st_atim;
  }
  reply_attributes(request, node);
}

void on_mknod(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode, dev_t) {
  const fuse_entry_param entry = entry_of(make(request, node_of(parent), name, mode));
  fuse_reply_entry(request, &entry);
}
void on_mkdir(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode) {
  const fuse_entry_param entry = entry_of(make(request, node_of(parent), name, mode | S_IFDIR));
  fuse_reply_entry(request, &entry);
}
void on_symlink(fuse_req_t request, const char* target, fuse_ino_t parent, const char* name) {
  Node* node = make(request, node_of(parent), name, S_IFLNK | 0777);
  node->bytes = target;
  node->status.st_size = static_cast<off_t>(node->bytes.size());
  const fuse_entry_param entry = entry_of(node);
  fuse_reply_entry(request, &entry);
}
void on_readlink(fuse_req_t request, fuse_ino_t number) {
  fuse_reply_readlink(request, node_of(number)->bytes.c_str());
}

void drop(Node* node) {
  if (node == nullptr) return;
  bool last = false;
  {
    const std::lock_guard lock(node->mutex);
    node->status.st_nlink = 0;
    last = node->lookups == 0;
  }
  if (last) delete node;
}
void on_unlink(fuse_req_t request, fuse_ino_t parent, const char* name) {
  Node* directory = node_of(parent);
  Node* node = nullptr;
  {
    const std::lock_guard lock(directory->mutex);
    const auto found = directory->names.find(name);
    if (found != directory->names.end()) {
      node = found->second;
      directory->names.erase(found);
    }
  }
  fuse_reply_err(request, node == nullptr ? ENOENT : 0);
  drop(node);
}
void on_rmdir(fuse_req_t request, fuse_ino_t parent, const char* name) {
  Node* node = find(node_of(parent), name);
  if (node != nullptr && !node->names.empty()) {
    fuse_reply_err(request, ENOTEMPTY);
    return;
  }
  on_unlink(request, parent, name);
}
void on_rename(fuse_req_t request, fuse_ino_t parent, const char* name, fuse_ino_t new_parent, const char* new_name,
               unsigned flags) {
  if (flags != 0) {
    fuse_reply_err(request, EINVAL);
    return;
  }
  Node *from = node_of(parent), *to = node_of(new_parent);
  std::unique_lock first(from < to ? from->mutex : to->mutex);
  std::unique_lock<std::mutex> second;
  if (from != to) second = std::unique_lock(from < to ? to->mutex : from->mutex);
  const auto found = from->names.find(name);
  Node* replaced = nullptr;
  if (found != from->names.end()) {
    Node* node = found->second;
    from->names.erase(found);
    Node*& place = to->names[new_name];
    replaced = place;
    place = node;
  }
  first.unlock();
  if (second) second.unlock();
  fuse_reply_err(request, 0);
  drop(replaced);
}

void on_open(fuse_req_t request, fuse_ino_t, fuse_file_info* info) {
  info->keep_cache = 1;
  fuse_reply_open(request, info);
}
void on_create(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode, fuse_file_info* info) {
  const fuse_entry_param entry = entry_of(make(request, node_of(parent), name, mode | S_IFREG));
  fuse_reply_create(request, &entry, info);
}
void on_read(fuse_req_t request, fuse_ino_t number, std::size_t size, off_t offset, fuse_file_info*) {
  static const std::vector<char> zeros(1 << 20);
  Node* node = node_of(number);
  std::unique_lock lock(node->mutex);
  const auto length = static_cast<std::size_t>(node->status.st_size), at = static_cast<std::size_t>(offset);
  if (at >= length) {
    lock.unlock();
    fuse_reply_buf(request, nullptr, 0);
    return;
  }
  size = std::min({size, length - at, zeros.size()});
  if (at + size <= node->bytes.size()) {
    fuse_reply_buf(request, node->bytes.data() + at, size);
    return;
  }
  lock.unlock();
  fuse_reply_buf(request, zeros.data(), size);
}
void on_write(fuse_req_t request, fuse_ino_t number, const char* bytes, std::size_t size, off_t offset,
              fuse_file_info*) {
  Node* node = node_of(number);
  {
    const std::lock_guard lock(node->mutex);
    const auto end = static_cast<std::size_t>(offset) + size;
    if (end <= kKept) {
      if (node->bytes.size() < end) node->bytes.resize(end);
      std::memcpy(node->bytes.data() + offset, bytes, size);
    }
    node->status.st_size = std::max(node->status.st_size, static_cast<off_t>(end));
  }
  fuse_reply_write(request, size);
}
void refuse_flush(fuse_req_t request, fuse_ino_t, fuse_file_info*) { fuse_reply_err(request, ENOSYS); }
void on_done(fuse_req_t request, fuse_ino_t, fuse_file_info*) { fuse_reply_err(request, 0); }
void on_fsync(fuse_req_t request, fuse_ino_t, int, fuse_file_info*) { fuse_reply_err(request, 0); }

using Names = std::vector<std::string>;
void on_opendir(fuse_req_t request, fuse_ino_t number, fuse_file_info* info) {
  auto* names = new Names;
  Node* directory = node_of(number);
  {
    const std::lock_guard lock(directory->mutex);
    names->reserve(directory->names.size());
    for (const auto& [name, node] : directory->names) names->push_back(name);
  }
  info->fh = reinterpret_cast<std::uint64_t>(names);
  fuse_reply_open(request, info);
}
void on_releasedir(fuse_req_t request, fuse_ino_t, fuse_file_info* info) {
  delete reinterpret_cast<Names*>(info->fh);
  fuse_reply_err(request, 0);
}
// The kernel lists and removes under one lock, but names that were there at opendir may be gone by now.
template <typename Add>
void reply_names(fuse_req_t request, fuse_ino_t number, std::size_t size, off_t offset, fuse_file_info* info, Add add) {
  const Names& names = *reinterpret_cast<Names*>(info->fh);
  std::string buffer(size, '\0');
  std::size_t used = 0;
  for (auto at = static_cast<std::size_t>(offset); at < names.size(); ++at) {
    Node* const node = find(node_of(number), names[at].c_str());
    if (node == nullptr) continue;
    const std::size_t need = add(buffer.data() + used, size - used, names[at].c_str(), node, static_cast<off_t>(at + 1));
    if (need > size - used) break;
    used += need;
  }
  fuse_reply_buf(request, buffer.data(), used);
}
void on_readdir(fuse_req_t request, fuse_ino_t number, std::size_t size, off_t offset, fuse_file_info* info) {
  reply_names(request, number, size, offset, info, [&](char* to, std::size_t room, const char* name, Node* node, off_t next) {
    return fuse_add_direntry(request, to, room, name, &node->status, next);
  });
}
void on_readdirplus(fuse_req_t request, fuse_ino_t number, std::size_t size, off_t offset, fuse_file_info* info) {
  reply_names(request, number, size, offset, info, [&](char* to, std::size_t room, const char* name, Node* node, off_t next) {
    const std::size_t need = fuse_add_direntry_plus(request, nullptr, 0, name, nullptr, next);
    if (need > room) return need;
    const fuse_entry_param entry = entry_of(node);  // counts as a lookup, so only when it goes out
    return fuse_add_direntry_plus(request, to, room, name, &entry, next);
  });
}
void on_getxattr(fuse_req_t request, fuse_ino_t, const char*, std::size_t) { fuse_reply_err(request, ENOSYS); }

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "fuse_limit: expected one argument, the directory to mount on\n");
    return 2;
  }
  root.status.st_mode = S_IFDIR | 0755;
  root.status.st_nlink = 2;
  root.status.st_ino = FUSE_ROOT_ID;
  root.lookups = 1;
  fuse_lowlevel_ops operations{};
  operations.init = on_init;
  operations.lookup = on_lookup;
  operations.forget = on_forget;
  operations.forget_multi = on_forget_multi;
  operations.getattr = on_getattr;
  operations.setattr = on_setattr;
  operations.mknod = on_mknod;
  operations.mkdir = on_mkdir;
  operations.symlink = on_symlink;
  operations.readlink = on_readlink;
  operations.unlink = on_unlink;
  operations.rmdir = on_rmdir;
  operations.rename = on_rename;
  operations.open = on_open;
  operations.create = on_create;
  operations.read = on_read;
  operations.write = on_write;
  operations.flush = refuse_flush;
  operations.release = on_done;
  operations.fsync = on_fsync;
  operations.opendir = on_opendir;
  operations.releasedir = on_releasedir;
  operations.readdir = on_readdir;
  operations.readdirplus = on_readdirplus;
  operations.getxattr = on_getxattr;
  const char* arguments[] = {"fuse_limit", "-o", "fsname=fuse_limit,default_permissions", nullptr};
  fuse_args list = FUSE_ARGS_INIT(3, const_cast<char**>(arguments));
  fuse_session* session = fuse_session_new(&list, &operations, sizeof operations, nullptr);
  if (session == nullptr || fuse_set_signal_handlers(session) != 0 || fuse_session_mount(session, argv[1]) != 0) {
    std::fprintf(stderr, "fuse_limit: cannot mount on %s\n", argv[1]);
    return 1;
  }
  fuse_loop_config* loop = fuse_loop_cfg_create();
  fuse_loop_cfg_set_clone_fd(loop, 1);
  fuse_loop_cfg_set_max_threads(loop, 2);
  fuse_session_loop_mt(session, loop);
  fuse_loop_cfg_destroy(loop);
  fuse_session_unmount(session);
  fuse_remove_signal_handlers(session);
  fuse_session_destroy(session);
  fuse_opt_free_args(&list);
  return 0;
}

#define FUSE_USE_VERSION 314
#include "fusionfs/fuse/session.h"

#include <dirent.h>
#include <fuse3/fuse_lowlevel.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "fusionfs/data/chunk_server.h"
#include "fusionfs/data/sweep.h"
#include "fusionfs/fuse/glue.h"
#include "fusionfs/fuse/wait.h"
#include "zht/support/log.h"
#include "zht/support/output.h"
#include "zht/support/process.h"

namespace fusionfs {

using base::Code;
using base::fail;
using base::fail_errno;
using base::Result;

namespace {

bool parse_seconds(std::string_view text, double& seconds) {
  char* end = nullptr;
  const std::string copy(text);
  const double value = std::strtod(copy.c_str(), &end);
  if (copy.empty() || *end != '\0' || !(value >= 0) || value > 1e6) return false;
  seconds = value;
  return true;
}

// mountinfo writes blanks and the like as \ooo.
std::string unescape(const std::string& text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size()) {
      plain += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0'));
      i += 3;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

Result<void> take_away(const std::string& directory, Unmount how) {
  const bool lazy = how != Unmount::when_idle;
  if (::geteuid() == 0) {
    // MNT_FORCE ends every request that waits for an answer with ECONNABORTED.
    if (how == Unmount::force) static_cast<void>(::umount2(directory.c_str(), UMOUNT_NOFOLLOW | MNT_FORCE));
    if (::umount2(directory.c_str(), UMOUNT_NOFOLLOW | (lazy ? MNT_DETACH : 0)) == 0 ||
        (how == Unmount::force && errno == EINVAL))
      return {};
    if (errno == EBUSY)
      return fail(Code::conflict, directory, " is in use; close what is open there, or unmount with --lazy or --force");
    if (errno == EINVAL) return fail(Code::not_found, "nothing is mounted at ", directory);
    return fail_errno(errno, "unmount " + directory);
  }
  if (how == Unmount::force)
    return fail(Code::invalid, "--force needs root (umount2 with MNT_FORCE); unmount ", directory, " with --lazy");
  std::vector<std::string> argv{"fusermount3", "-u"};
  if (lazy) argv.push_back("-z");
  argv.push_back("--");
  argv.push_back(directory);
  TRY_LET(pid, support::spawn_child(argv, "/dev/null", false));
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
  return fail(Code::conflict, "fusermount3 could not unmount ", directory,
              "; close what is open there, or unmount with --lazy");
}

}  // namespace

// Options of mount(8) and fstab that ask for what is so already, or are mount(8)'s own business.
constexpr std::string_view kIdle[] = {
    "default_permissions", "defaults", "auto",     "noauto", "_netdev", "nofail",   "user",       "nouser",     "users",
    "nousers",             "owner",    "group",    "silent", "loud",    "dirsync",  "nolazytime", "norelatime", "nostrictatime",
    "diratime",            "nodiratime", "nomand", "user_xattr"};

Result<void> parse_options(const std::string& list, MountOptions& options) {
  std::istringstream parts(list);
  std::string part;
  while (std::getline(parts, part, ',')) {
    const auto equals = part.find('=');
    const std::string name = part.substr(0, equals), value = equals == std::string::npos ? "" : part.substr(equals + 1);
    const bool plain = equals == std::string::npos;
    if (plain && name == "ro")
      options.read_only = true;
    else if (plain && name == "rw")
      options.read_only = false;
    else if (plain && name == "allow_other")
      options.allow_other = true;
    else if (plain && name == "noallow_other")
      options.allow_other = false;
    else if (plain && name == "acl")
      options.access_lists = true;
    else if (plain && name == "noacl")
      options.access_lists = false;
    else if (part == "coherence=strict" || part == "coherence=close-to-open")
      options.strict = value == "strict";
    else if (plain && name == "writeback")
      options.writeback = true;
    else if (part == "local_lock=all" || (plain && name == "nolock"))
      options.local_locks = true;
    else if (part == "local_lock=none" || (plain && name == "lock"))
      options.local_locks = false;
    else if (plain && (name == "relatime" || name == "atime" || name == "noatime"))
      options.relatime = name != "noatime";
    else if (plain && (name == "sync" || name == "async"))
      options.synchronous = name == "sync";
    else if (plain && name == "provenance")
      options.provenance = true;
    else if (plain && (name == "embed" || name == "noembed"))
      options.embed = name == "embed";
    else if (plain && name == "dev")
      options.device_files = true;
    else if (plain && name == "nodev")
      options.device_files = false;
    else if (plain && name == "suid")
      options.set_user_id = true;
    else if (plain && name == "nosuid")
      options.set_user_id = false;
    else if (plain && name == "exec")
      options.no_execute = false;
    else if (plain && name == "noexec")
      options.no_execute = true;
    else if (plain && name == "nonempty")
      options.non_empty = true;
    else if (name == "fsname" && !value.empty() && value.find('\\') == std::string::npos)
      options.source = value;
    else if (name.starts_with("x-") || name.starts_with("X-") || name == "comment" ||
             (plain && std::find(std::begin(kIdle), std::end(kIdle), name) != std::end(kIdle))) {
      // What it asks for is so already, or is mount(8)'s business.
    } else if (name == "attr_timeout") {
      if (!parse_seconds(value, options.attribute_timeout))
        return fail(Code::invalid, "-o attr_timeout=", base::escape(value), ": expected seconds, such as 1 or 0.5");
    } else if (name == "entry_timeout") {
      if (!parse_seconds(value, options.entry_timeout))
        return fail(Code::invalid, "-o entry_timeout=", base::escape(value), ": expected seconds, such as 1 or 0.5");
    } else if ((name == "uid" || name == "gid") && !plain) {
      const auto id = support::parse_number(value, 0, 0xfffffffe);
      if (!id) return fail(Code::invalid, "-o ", base::escape(part), ": expected a number");
      (name == "uid" ? options.uid : options.gid) = static_cast<std::uint32_t>(*id);
    } else if (name == "umask" && !plain) {
      char* end = nullptr;
      const unsigned long bits = std::strtoul(value.c_str(), &end, 8);
      if (value.empty() || *end != '\0' || bits > 0777)
        return fail(Code::invalid, "-o umask=", base::escape(value), ": expected octal bits, such as 022");
      options.umask = static_cast<std::uint32_t>(bits);
    } else if (name == "cluster" && !value.empty()) {
      options.cluster = value;
    } else if (name == "data" && !value.empty()) {
      options.data = value;
    } else if (name == "memory") {
      const auto size = support::parse_size(value);
      if (!size || *size < (std::uint64_t{1} << 20)) return fail(Code::invalid, "-o memory=", base::escape(value), ": expected 1MiB or more");
      options.memory = *size;
    } else if (name == "replicas") {
      const auto count = support::parse_number(value, 1, 8);
      if (!count) return fail(Code::invalid, "-o replicas=", base::escape(value), ": expected 1 to 8");
      options.replicas = static_cast<unsigned>(*count);
    } else if (plain && name == "noserve") {
      options.serve = false;
    } else if (name == "serve") {
      options.serve = true;
      const auto colon = value.rfind(':');
      const bool port = colon != std::string::npos && value.find(']', colon) == std::string::npos;
      options.serve_host = port ? value.substr(0, colon) : value;
      if (options.serve_host.starts_with("[") && options.serve_host.ends_with("]"))
        options.serve_host = options.serve_host.substr(1, options.serve_host.size() - 2);
      if (port) {
        const auto number = support::parse_number(value.substr(colon + 1), 0, 65535);
        if (!number) return fail(Code::invalid, "-o serve=", base::escape(value), ": expected an address, or address:port");
        options.serve_port = static_cast<std::uint16_t>(*number);
      }
    } else if (name == "threads") {
      double count = 0;
      if (!parse_seconds(value, count) || count < 1 || count > 64)
        return fail(Code::invalid, "-o threads=", base::escape(value), ": expected 1 to 64");
      options.threads = static_cast<int>(count);
    } else if (!part.empty()) {
      return fail(Code::invalid, "-o ", base::escape(part),
                  ": no such option; known are ro, rw, allow_other, noallow_other, acl, noacl, coherence=strict|close-to-open, writeback, "
                  "dev, nodev, suid, nosuid, exec, noexec, sync, async, nonempty, embed, noembed, local_lock=all|none, relatime, noatime, "
                  "provenance, memory=SIZE, replicas=N, serve[=ADDRESS[:PORT]], noserve, uid=N, gid=N, umask=OCTAL, "
                  "attr_timeout=S, entry_timeout=S, threads=N, cluster=HOST:PORT, data=FOLDER, fsname=NAME");
    }
  }
  return {};
}

std::vector<Mounted> mounts() {
  std::vector<Mounted> found;
  std::ifstream table("/proc/self/mountinfo");
  std::string line;
  while (std::getline(table, line)) {
    std::istringstream fields(line);
    std::string id, parent, device, root, point, options, field;
    fields >> id >> parent >> device >> root >> point >> options;
    while (fields >> field && field != "-") {
    }
    std::string type, source;
    fields >> type >> source;
    if (type == "fuse.fusionfs") found.push_back({unescape(point), unescape(source), options});
  }
  return found;
}

std::string service_name(const std::string& directory) {
  char text[32];
  std::snprintf(text, sizeof text, "fusionfs-%016llx", static_cast<unsigned long long>(base::hash64(directory)));
  return text;
}

Result<void> check_mount_point(const MountOptions& options) {
  const std::string& directory = options.directory;
  // The process that served it was killed. (stat(2) may still be answered from the kernel's cache.)
  struct statvfs space {};
  if (::statvfs(directory.c_str(), &space) != 0 && errno == ENOTCONN) TRY(take_away(directory, Unmount::lazy));
  struct stat status {};
  if (::stat(directory.c_str(), &status) != 0) {
    if (errno == ENOENT) {
      return fail(Code::not_found, directory, " does not exist; make it: mkdir -p ", directory);
    } else {
      return fail_errno(errno, directory);
    }
  }
  if (!S_ISDIR(status.st_mode)) return fail(Code::invalid, directory, " is not a directory");
  for (const Mounted& mounted : mounts()) {
    if (mounted.directory == directory)
      return fail(Code::conflict, directory, " has a FusionFS mounted on it; unmount it first: fusionfs umount ",
                  directory);
  }
  if (!options.non_empty) {
    DIR* stream = ::opendir(directory.c_str());
    if (stream == nullptr) return fail_errno(errno, "open " + directory);
    int entries = 0;
    while (const dirent* each = ::readdir(stream)) {
      if (std::strcmp(each->d_name, ".") != 0 && std::strcmp(each->d_name, "..") != 0) ++entries;
    }
    ::closedir(stream);
    if (entries > 0)
      return fail(Code::invalid, directory, " is not empty (", entries,
                  " entries); choose an empty one, or hide them with --nonempty");
  }
  if (::access("/dev/fuse", F_OK) != 0)
    return fail(Code::unavailable, "there is no /dev/fuse; load the kernel module: modprobe fuse");
  if (::access("/dev/fuse", R_OK | W_OK) != 0) {
    if (::geteuid() == 0) return fail_errno(errno, "open /dev/fuse");
    return fail(Code::io, "/dev/fuse: ", std::strerror(errno), "; who may mount needs to read and write it (as root: chmod 666 /dev/fuse)");
  }
  if (::geteuid() != 0) {
    if (const auto helper = support::find_program("fusermount3"); !helper) {
      return fail(Code::unavailable, "mounting without root needs fusermount3; install the package fuse3");
    }
  }
  return {};
}

Result<void> unmount(const std::string& directory, Unmount how) {
  bool ours = false;
  for (const Mounted& mounted : mounts()) ours = ours || mounted.directory == directory;
  if (!ours) return fail(Code::not_found, "no FusionFS is mounted at ", directory, "; see: fusionfs status");
  return take_away(directory, how);
}

namespace {

// The session that signals end. libfuse's own handlers would also take SIGPIPE; these wake serve_mount's thread only.
fuse_session* signalled = nullptr;
volatile sig_atomic_t signal_came = 0;
void on_signal(int) {
  signal_came = 1;
  if (signalled != nullptr) fuse_session_exit(signalled);
}

struct SignalHandlers {
  explicit SignalHandlers(fuse_session* session) {
    signalled = session;
    struct sigaction action {};
    action.sa_handler = on_signal;
    for (const int number : {SIGTERM, SIGINT, SIGHUP}) ::sigaction(number, &action, nullptr);
    action.sa_handler = SIG_IGN;
    ::sigaction(SIGPIPE, &action, nullptr);
    sigset_t set;
    sigemptyset(&set);
    for (const int number : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&set, number);
    ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  }
  ~SignalHandlers() {
    // From here on another signal ends nothing early: what was written is being committed.
    sigset_t set;
    sigemptyset(&set);
    for (const int number : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&set, number);
    ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
    signalled = nullptr;
  }
};

}  // namespace

Result<bool> serve_mount(zht::Client& client, const MountOptions& options, const std::function<void()>& ready,
                         const std::function<void(bool signalled)>& committed) {
  static const support::Log log("fusionfs.mount");
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &files);
  }
  TRY_LET(chunks, ChunkStore::open(options.data_folder + "/chunks"));
  if (!options.read_only) TRY(chunks->begin_writing());
  base::SystemClock clock;
  fuse_session* session = nullptr;
  FileSystemOptions file_options;
  if (options.strict && options.writeback)
    return fail(Code::invalid, "-o writeback keeps writes back, which coherence=strict forbids: choose one of them");
  const double attribute_timeout = options.strict ? 0 : options.attribute_timeout, entry_timeout = options.strict ? 0 : options.entry_timeout;
  file_options.attribute_timeout = std::chrono::milliseconds(static_cast<long>(attribute_timeout * 1000));
  file_options.name_timeout = std::chrono::milliseconds(static_cast<long>(entry_timeout * 1000));
  file_options.strict = options.strict;
  file_options.read_only = options.read_only;
  file_options.moment = std::min<std::chrono::milliseconds>(file_options.moment, options.timeout);
  file_options.relatime = options.relatime;
  file_options.provenance = options.provenance;
  file_options.commit_at_once = options.store_in_process || options.strict;
  file_options.warn = [](const std::string& text) { log.warn(text); };
  file_options.changed_elsewhere = [&session](InodeId inode) {
    if (session != nullptr) fuse_lowlevel_notify_inval_inode(session, raw(inode), 0, 0);
  };
  file_options.fill_cache = [&session](InodeId inode, base::Bytes bytes) {
    fuse_bufvec data = FUSE_BUFVEC_INIT(bytes.size());
    data.buf[0].mem = const_cast<char*>(bytes.data());
    if (session != nullptr) fuse_lowlevel_notify_store(session, raw(inode), 0, &data, FUSE_BUF_NO_SPLICE);
  };
  std::unique_ptr<ChunkServer> server;
  if (!options.serve_host.empty()) {
    TRY_LET(opener, Stores(client, *chunks).opener());
    TRY_LET(started, ChunkServer::start(*chunks, options.serve_host, options.serve_port, opener));
    server = std::move(started);
    const bool v6 = options.serve_host.find(':') != std::string::npos;
    file_options.serves_at =
        (v6 ? "[" + options.serve_host + "]" : options.serve_host) + ":" + std::to_string(server->port());
  }
  file_options.copies = options.replicas;
  file_options.memory = options.memory;
  const std::string session_file = options.data_folder + "/services/" + service_name(options.directory) + ".session";
  std::ifstream(session_file) >> file_options.previous_session;
  struct Watching {  // the sweep that is to hear of files that lack a copy, while there is one
    std::mutex mutex;
    Sweeper* sweeper = nullptr;
  } watching;
  file_options.lacking = [&watching](InodeId inode) {
    const std::lock_guard lock(watching.mutex);
    if (watching.sweeper != nullptr) watching.sweeper->look_at(inode);
  };
  FileSystem file_system(client, clock, *chunks, std::move(file_options));
  if (const int error = wait(file_system.start(0755, ::geteuid(), ::getegid())); error != 0) {
    return fail(Code::unavailable, "the store did not answer: ", std::strerror(error), "; is it running? zht status");
  }

  // Should this process be killed, the next mount here need not wait until that shows.
  std::ofstream(session_file) << file_system.session() << "\n";
  Repair repair(client, *chunks, file_system.stores(), {});
  std::unique_ptr<Sweeper> sweeper;
  if (!options.read_only) {
    sweeper = std::make_unique<Sweeper>(client, *chunks, [&file_system] { return file_system.stores().epoch(); },
                                        [](const std::string& text) { log.info(text); }, &repair);
    const std::lock_guard lock(watching.mutex);
    watching.sweeper = sweeper.get();
  }

  if (const auto found = file_system.stores().refresh(); !found) log.warn("chunk stores: " + found.error().message);

  std::string mount_options = "fsname=" + options.source + ",subtype=fusionfs,default_permissions";
  if (options.synchronous) mount_options += ",sync";
  if (options.allow_other.value_or(::geteuid() == 0)) mount_options += ",allow_other";
  if (options.read_only) mount_options += ",ro";
  if (options.no_execute) mount_options += ",noexec";
  if (::geteuid() == 0) {
    mount_options += options.device_files ? ",dev" : ",nodev";
    mount_options += options.set_user_id ? ",suid" : ",nosuid";
  }
  const char* argv[] = {"fusionfs", "-o", mount_options.c_str(), nullptr};
  fuse_args arguments = FUSE_ARGS_INIT(3, const_cast<char**>(argv));
  Glue glue{file_system, {}};
  glue.options.entry_timeout = entry_timeout;
  glue.options.attribute_timeout = attribute_timeout;
  glue.options.access_lists = options.access_lists;
  glue.options.writeback = options.writeback;
  glue.options.local_locks = options.local_locks;
  glue.options.provenance = options.provenance;
  glue.options.uid = options.uid;
  glue.options.gid = options.gid;
  glue.options.umask = options.umask;
  glue.options.store_in_process = options.store_in_process;
  Result<void> result;
  session = fuse_session_new(&arguments, &fuse_operations(), sizeof(fuse_lowlevel_ops), &glue);
  if (session == nullptr) {
    result = fail(Code::io, "libfuse refused the options ", mount_options);
  } else if (fuse_session_mount(session, options.directory.c_str()) != 0) {
    result = fail(Code::io, "mounting on ", options.directory, " failed; see the line above, or: dmesg | tail");
  } else {
    {
      const SignalHandlers handlers(session);
      ready();
      fuse_loop_config* loop = fuse_loop_cfg_create();
      fuse_loop_cfg_set_clone_fd(loop, options.threads > 1 ? 1 : 0);
      // A node that does not answer holds up those threads that read from it: there are others then.
      const int most = server || options.replicas > 1 ? std::max(options.threads, 16) : options.threads;
      fuse_loop_cfg_set_max_threads(loop, static_cast<unsigned>(most));
      fuse_loop_cfg_set_idle_threads(loop, static_cast<unsigned>(options.threads));
      const int ended = options.threads == 1 ? fuse_session_loop(session) : fuse_session_loop_mt(session, loop);
      fuse_loop_cfg_destroy(loop);
      if (ended < 0) result = fail(Code::io, "serving ", options.directory, " ended: ", std::strerror(-ended));
    }
    fuse_session_unmount(session);
  }
  {
    const std::lock_guard lock(watching.mutex);
    watching.sweeper = nullptr;
  }
  sweeper.reset();
  const int error = file_system.stop();
  if (error == 0) ::unlink(session_file.c_str());
  committed(signal_came != 0);
  chunks->end_writing();
  if (session != nullptr) {
    fuse_session* last = session;
    session = nullptr;
    fuse_session_destroy(last);
  }
  fuse_opt_free_args(&arguments);
  if (result && error != 0) result = fail(Code::io, "some writes could not be committed: ", std::strerror(error));
  if (!result) return result.error();
  return signal_came != 0;
}

}  // namespace fusionfs

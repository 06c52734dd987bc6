#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <sstream>
#include <thread>
#include <nlohmann/json.hpp>

#include "fusionfs/data/sweep.h"
#include "fusionfs/fuse/session.h"
#include "fusionfs/tool/chunk_service.h"
#include "fusionfs/tool/verbs.h"
#include "zht/local_server.h"
#include "zht/support/log.h"
#include "zht/support/output.h"
#include "zht/support/paths.h"
#include "zht/support/process.h"
#include "zht/support/program.h"
#include "zht/support/service.h"

namespace fusionfs {
namespace {

using base::Code;
using base::fail;
using base::Result;

constexpr std::chrono::milliseconds kDefaultTimeout{30'000};

void block_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&set, number);
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
}

// Other nodes are to reach this node's chunks: by the service that its node keeps running; where there is no such node, through
// the mount, unless another mount does that (then serve_host is emptied). What is returned is held while it does.
Result<std::optional<support::LockFile>> see_to_serving(const support::CommonFlags& common, MountOptions& options,
                                                        const std::string& cluster, bool node_is_here) {
  if (options.serve_host.empty()) options.serve_host = own_address(cluster);
  TRY(parse_listen(options.serve_host.find(':') != std::string::npos ? "[" + options.serve_host + "]" : options.serve_host));
  if (!node_is_here && support::held_by(options.data_folder + "/node.lock")) {
    const auto kept = keep_chunks_served(common, options.data_folder, {options.serve_host, options.serve_port});
    if (kept) {
      options.serve_host.clear();
      return std::optional<support::LockFile>();
    }
    if (!common.quiet) support::complain("fusionfs", kept.error().message + "; the mount serves them while it lasts");
  }
  auto lock = support::hold_service(options.data_folder, kChunkService);
  if (lock) return std::optional<support::LockFile>(std::move(*lock));
  if (lock.code() != Code::conflict) return lock.error();
  options.serve_host.clear();
  return std::optional<support::LockFile>();
}

// Whether no mount, agent or other service of the data folder runs besides `own`.
bool alone(const std::string& data_folder, const std::string& own) {
  const std::vector<std::string> running = support::running_services(data_folder);
  return std::all_of(running.begin(), running.end(), [&](const std::string& name) { return name == own; });
}

// The right to serve this directory. A process that served it until now may be committing what is left: it is waited for, aloud. One that
// serves it in another mount namespace (a container's) goes on for as long as it likes.
Result<support::LockFile> hold_mount(const MountOptions& options, const std::string& own, bool quiet) {
  constexpr std::chrono::seconds kSilently{1}, kMost{60};
  auto lock = support::hold_service(options.data_folder, own);
  bool told = false;
  const auto began = std::chrono::steady_clock::now();
  while (!lock && lock.code() == Code::conflict) {
    const auto pid = support::service_pid(options.data_folder, own);
    if (pid && *pid > 0) {
      struct stat here {}, there {};
      const std::string theirs = "/proc/" + std::to_string(*pid) + "/ns/mnt";
      if (::stat("/proc/self/ns/mnt", &here) == 0 && ::stat(theirs.c_str(), &there) == 0 && here.st_ino != there.st_ino)
        return fail(Code::conflict, options.directory, " is served in another mount namespace, by process ", *pid,
                    "; unmount it there (nsenter -t ", *pid, " -m umount ", options.directory, "), or mount on another directory");
    }
    const std::vector<Mounted> all = mounts();
    const bool mounted = std::any_of(all.begin(), all.end(), [&](const Mounted& each) { return each.directory == options.directory; });
    const auto waited = std::chrono::steady_clock::now() - began;
    if (mounted || waited > kMost) return lock.error();
    if (!told && !quiet && waited > kSilently) {
      std::fprintf(stderr, "fusionfs: waiting for process %d, which commits what was written to %s before\n", pid ? static_cast<int>(*pid) : 0,
                   options.directory.c_str());
      told = true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    lock = support::hold_service(options.data_folder, own);
  }
  return lock;
}

// Serves the mount until it ends. With -o embed a local node that is not running yet runs in this process (unless nodes are
// configured): what a mount asks of it is then done without a switch to another process. It goes with the mount, or with the
// last of the others that use it meanwhile; whoever comes later starts one.
Result<void> serve(const support::CommonFlags& common, MountOptions options, const std::function<void()>& ready) {
  block_signals();
  const std::string own = service_name(options.directory);
  TRY_LET(lock, hold_mount(options, own, common.quiet));
  std::optional<support::LockFile> held(std::move(lock));
  zht::ClientOptions client_options = common.client_options();
  client_options.data_folder = options.data_folder;
  if (common.timeout.count() == 0) client_options.timeout = kDefaultTimeout;
  options.timeout = client_options.timeout;
  std::unique_ptr<zht::LocalServer> node;
  std::unique_ptr<zht::Client> client;
  if (options.embed && cluster_of(common).empty() && client_options.start_node) {
    auto started = zht::LocalServer::start(options.data_folder);
    if (!started && started.code() != Code::conflict) return started.error();
    if (started) {
      node = std::move(*started);
      client = node->client();
      options.store_in_process = true;
      if (!common.quiet)
        std::fprintf(stderr, "zht: the mount is the local node in %s as long as it lasts\n", options.data_folder.c_str());
    }
  }
  if (!client) {
    TRY_LET(connected, zht::connect(client_options));
    client = std::move(connected);
  }
  std::optional<support::LockFile> serving;
  const bool asks = options.serve.value_or(true) && options.serve_host.empty();
  const std::string cluster = asks ? cluster_around(common, options.data_folder) : std::string();
  if (!options.serve.value_or(!cluster.empty())) {
    options.serve_host.clear();
  } else {
    TRY_LET(others_reach_it, see_to_serving(common, options, cluster, node != nullptr));
    serving = std::move(others_reach_it);
  }
  const auto served = serve_mount(*client, options, ready, [&](bool told_to_end) {
    // Before the name is given up: who mounts next is the node again.
    if (node && !told_to_end && !serving && alone(options.data_folder, own)) node.reset();
    held.reset();
  });
  if (!served) return served.error();
  serving.reset();
  client.reset();
  const bool told_to_end = *served;
  if (!node) return {};
  support::SignalWaiter signals({SIGTERM, SIGINT});
  if (told_to_end) node->stop();
  while (!node->ended(std::chrono::milliseconds(0))) {
    if (signals.wait(std::chrono::milliseconds(500)))
      node->stop();
    else if (!told_to_end && alone(options.data_folder, own))
      break;
  }
  return {};
}

// What the process in the background tells the one that was asked: a byte (0: mounted, else the error's code) and a
// text.
void tell(int pipe, Code code, const std::string& text) {
  std::string message(1, static_cast<char>(code));
  message += text;
  std::size_t done = 0;
  while (done < message.size()) {
    const ssize_t put = ::write(pipe, message.data() + done, message.size() - done);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) break;
    done += static_cast<std::size_t>(put);
  }
  ::close(pipe);
}

Result<int> mount_in_background(const support::CommonFlags& common, const MountOptions& options) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return base::fail_errno(errno, "pipe");
  const pid_t child = ::fork();
  if (child < 0) return base::fail_errno(errno, "fork");
  if (child == 0) {
    ::close(ends[0]);
    ::setsid();
    if (const pid_t grandchild = ::fork(); grandchild != 0) ::_exit(grandchild < 0 ? 1 : 0);
    if (::chdir("/") != 0) ::_exit(1);
    const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    ::dup2(null, 0);
    ::dup2(null, 1);
    bool mounted = false;
    const std::string log = options.data_folder + "/fusionfs.log";
    const auto result = serve(common, options, [&] {
      mounted = true;
      // Until now the terminal saw what went wrong.
      const int file = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
      ::dup2(file >= 0 ? file : null, 2);
      tell(ends[1], Code::ok, {});
    });
    if (!result && !mounted) tell(ends[1], result.error().code, result.error().message);
    if (!result && mounted)
      support::Log("fusionfs.mount").error("ended", {{"directory", options.directory}, {"error", result.error()}});
    std::_Exit(result ? 0 : 1);
  }
  ::close(ends[1]);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  std::string told;
  char buffer[4096];
  for (;;) {
    const ssize_t got = ::read(ends[0], buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    told.append(buffer, static_cast<std::size_t>(got));
  }
  ::close(ends[0]);
  if (told.empty())
    return fail(Code::io, "the process that should serve ", options.directory, " ended without a word; see ",
                options.data_folder, "/fusionfs.log");
  if (told[0] != 0) return base::Error{static_cast<Code>(told[0]), told.substr(1)};
  return 0;
}

// Absolute and without symbolic links, as the kernel's table of mounts shows it; also of a dead mount.
std::string mount_point_of(const std::string& directory) {
  char* real = ::realpath(directory.c_str(), nullptr);
  if (real != nullptr) {
    std::string path(real);
    ::free(real);
    return path;
  }
  auto absolute = support::absolute_path(directory);
  return absolute ? *absolute : directory;
}

Result<int> umount_directory(const support::CommonFlags& common, const std::string& directory, Unmount how) {
  const std::string path = mount_point_of(directory);
  TRY_LET(data, support::data_folder(common.data));
  const auto server = support::service_pid(data, service_name(path));
  TRY(unmount(path, how));
  // The process commits what is left before it goes.
  if (server && *server > 0 && how != Unmount::lazy &&
      !support::wait_until(std::chrono::seconds(60), [&] { return !support::service_pid(data, service_name(path)); })) {
    return fail(Code::timeout, "unmounted ", path, ", but its process ", *server, " has not ended after 60 s; see ",
                data, "/fusionfs.log");
  }
  return 0;
}

// `-o remount,...` as mount(8) gives it: with all options that the mount has. The kernel's own can be changed.
std::optional<unsigned long> remount_flags(const std::vector<std::string>& lists, bool read_only) {
  static const std::pair<const char*, unsigned long> kFlags[] = {
      {"ro", MS_RDONLY},       {"nosuid", MS_NOSUID},         {"nodev", MS_NODEV},      {"noexec", MS_NOEXEC},
      {"noatime", MS_NOATIME}, {"nodiratime", MS_NODIRATIME}, {"relatime", MS_RELATIME}};
  bool remount = false;
  unsigned long flags = read_only ? MS_RDONLY : 0;
  for (const std::string& list : lists) {
    std::istringstream parts(list);
    for (std::string part; std::getline(parts, part, ',');) {
      remount = remount || part == "remount";
      for (const auto& [name, flag] : kFlags) {
        if (part == name) flags |= flag;
        if (flag == MS_RDONLY && part == "rw") flags &= ~flag;
      }
    }
  }
  return remount ? std::optional(flags) : std::nullopt;
}

Result<int> remount(const std::string& directory, unsigned long flags) {
  const std::vector<Mounted> all = mounts();
  if (std::none_of(all.begin(), all.end(), [&](const Mounted& each) { return each.directory == directory; }))
    return fail(Code::not_found, "no FusionFS is mounted at ", directory, "; see: fusionfs status");
  if (::mount(nullptr, directory.c_str(), nullptr, MS_REMOUNT | flags, nullptr) != 0)
    return base::fail_errno(errno, "remount " + directory);
  return 0;
}

Result<int> show_status(const support::CommonFlags& common, const std::string& only) {
  TRY_LET(data, support::data_folder(common.data));
  const std::string wanted = only.empty() ? "" : mount_point_of(only);
  support::Table table({"DIRECTORY", "STATE", "PID", "SHORT", "OPTIONS"});
  const auto lacking = read_short(data + "/chunks");
  nlohmann::json list = nlohmann::json::array();
  for (const Mounted& mounted : mounts()) {
    if (!wanted.empty() && mounted.directory != wanted) continue;
    struct stat status {};
    const bool dead = ::stat(mounted.directory.c_str(), &status) != 0 && errno == ENOTCONN;
    const auto pid = support::service_pid(data, service_name(mounted.directory));
    const std::string state = dead ? "dead" : pid ? "serving" : "serving (another node's)";
    table.row({mounted.directory, state, pid ? std::to_string(*pid) : "-",
               pid && lacking ? std::to_string(lacking->chunks) : "-", mounted.options});
    nlohmann::json each{
        {"directory", mounted.directory}, {"state", dead ? "dead" : "serving"}, {"options", mounted.options}};
    if (pid) each["pid"] = *pid;
    if (pid && lacking) each["short_chunk_count"] = lacking->chunks;
    list.push_back(std::move(each));
  }
  if (!wanted.empty() && list.empty())
    return fail(Code::not_found, "no FusionFS is mounted at ", wanted, "; mount one: fusionfs mount ", wanted);
  if (common.json)
    support::print_json(list);
  else
    table.print();
  return 0;
}

}  // namespace

void add_mount_verbs(support::Program& program) {
  struct Arguments {
    std::string directory;
    std::vector<std::string> options;
    std::string coherence;
    bool foreground = false, non_empty = false, lazy = false, force = false, read_only = false;
  };
  const auto arguments = std::make_shared<Arguments>();
  {
    auto& verb = program.verb("mount", "Mounts the file system on a directory and returns when it is there.",
                              {"fusionfs mount /mnt/shared", "fusionfs mount -f -o ro,attr_timeout=5 /mnt/shared"});
    verb.options().add_option("directory", arguments->directory, "an empty directory")->required();
    verb.options()
        .add_option("-o", arguments->options,
                    "options as mount(8) takes them: ro, allow_other, noacl, writeback, attr_timeout=S, threads=N, ...")
        ->allow_extra_args(false);
    verb.options().add_flag("-f,--foreground", arguments->foreground,
                            "serve in this process until it is unmounted or Ctrl-C");
    verb.options().add_option("--coherence", arguments->coherence,
                              "strict: what other mounts do is seen at once; close-to-open (default): when a file is opened")
        ->check(CLI::IsMember({"strict", "close-to-open"}));
    verb.options().add_flag("-r,--read-only", arguments->read_only, "as -o ro");
    verb.options().add_flag("--nonempty", arguments->non_empty, "hide what the directory holds");
    verb.action([&program, arguments]() -> Result<int> {
      if (const auto flags = remount_flags(arguments->options, arguments->read_only))
        return remount(mount_point_of(arguments->directory), *flags);
      support::CommonFlags common = program.common();
      MountOptions options;
      options.non_empty = arguments->non_empty;
      options.read_only = arguments->read_only;
      for (const auto& list : arguments->options) TRY(parse_options(list, options));
      if (!arguments->coherence.empty()) options.strict = arguments->coherence == "strict";
      if (common.cluster.empty()) common.cluster = options.cluster;
      if (common.data.empty()) common.data = options.data;
      TRY_LET(data, support::data_folder(common.data));
      TRY(support::make_private_folder(data));
      TRY(support::make_private_folder(data + "/services"));
      options.data_folder = data;
      options.directory = mount_point_of(arguments->directory);
      TRY(check_mount_point(options));
      if (arguments->foreground) {
        TRY(serve(common, options, [] {}));
        return 0;
      }
      return mount_in_background(common, options);
    });
  }
  {
    auto& verb = program.verb("umount", "Unmounts; returns when everything written is in the store.",
                              {"fusionfs umount /mnt/shared", "fusionfs umount --lazy /mnt/shared"});
    verb.options().add_option("directory", arguments->directory, "where it is mounted")->required();
    auto* lazy = verb.options().add_flag("-l,--lazy", arguments->lazy, "take it away now even while files are open");
    verb.options()
        .add_flag("--force", arguments->force, "also end with an error whatever waits for it (root; a store that does not answer)")
        ->excludes(lazy);
    verb.action([&program, arguments]() -> Result<int> {
      const Unmount how = arguments->force ? Unmount::force : arguments->lazy ? Unmount::lazy : Unmount::when_idle;
      return umount_directory(program.common(), arguments->directory, how);
    });
  }
  {
    auto& verb = program.verb("status", "Shows the mounts of this machine.",
                              {"fusionfs status", "fusionfs status /mnt/shared --json"});
    verb.options().add_option("directory", arguments->directory, "only this mount");
    verb.action([&program, arguments]() -> Result<int> { return show_status(program.common(), arguments->directory); });
  }
}

}  // namespace fusionfs

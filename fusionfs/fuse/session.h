// The life of one mount: checks, mounting, serving until somebody unmounts it or a signal comes, leaving nothing
// behind.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "novoht/base/result.h"
#include "zht/client.h"

namespace fusionfs {

struct MountOptions {
  std::string directory;    // absolute
  std::string data_folder;  // of the node whose chunks/ holds what is written here
  bool non_empty = false;   // mount over a directory that has entries
  bool read_only = false;
  // Other users than the one who mounts. Absent: when root mounts; others need user_allow_other in fuse.conf.
  std::optional<bool> allow_other;
  bool access_lists = true;  // may be set; those that are set count anyhow
  bool writeback = false;
  bool local_locks = false;
  bool relatime = false;
  bool provenance = false;
  bool device_files = false;  // root only
  bool set_user_id = false;   // root only
  bool no_execute = false;
  bool synchronous = false;         // each write is synced before it returns
  std::string source = "fusionfs";  // what df and /proc/mounts show as the device
  std::size_t memory = std::size_t{64} << 20;  // bytes that are remembered of inodes which are not in use
  double attribute_timeout = 1.0;  // seconds
  double entry_timeout = 1.0;
  // What other mounts have done is seen at once, at the price of asking for everything: no name, attribute or page is believed.
  bool strict = false;
  int threads = 2;  // that read requests from the kernel
  std::chrono::milliseconds timeout{30'000};  // of the client given: how long a request waits for a store that does not answer
  // All files are shown as belonging to these, with the bits of `umask` taken away. Absent: as they are.
  std::optional<std::uint32_t> uid, gid;
  std::uint32_t umask = 0;
  std::string cluster, data;  // -o cluster=, data=: as the flags of that name, for /etc/fstab
  unsigned replicas = 1;           // nodes that have each file's contents, as far as there are so many
  std::string serve_host;          // where this node's chunks are served to other nodes; empty: they are not
  std::uint16_t serve_port = 0;    // 0: any
  std::optional<bool> serve;       // asked for or refused; else: when the store is a cluster
  // Be the local node too, when none runs and no nodes are configured: the mount's business is then done in one process.
  bool embed = false;
  bool store_in_process = false;  // the client given executes on the calling thread (zht/local_server.h)
};

// Reads one "-o" list: "ro,attr_timeout=5". invalid names the option that is not known, or its value.
base::Result<void> parse_options(const std::string& list, MountOptions& options);

// Whether the directory can be mounted on; a dead mount found there (its process was killed) is taken away first.
// not_found, invalid (not a directory; not empty), conflict (mounted already), unavailable (no /dev/fuse), io.
base::Result<void> check_mount_point(const MountOptions& options);

// Mounts, calls `ready`, serves until unmounted or SIGTERM, SIGINT or SIGHUP, commits what is left, calls `committed`, syncs the
// chunks' disk (which may take as long as others have written there). The signals must be
// blocked in every thread when this is called. Returns whether a signal ended it. Errors: what mounting met; io:
// something could not be committed.
base::Result<bool> serve_mount(zht::Client& client, const MountOptions& options, const std::function<void()>& ready,
                               const std::function<void(bool signalled)>& committed);

// when_idle: refused (conflict) while anything is open there. lazy: nobody new gets in; it ends with the last that is open.
// force (root): what waits for the file system ends with an error now, and what is open there is of no use any more.
enum class Unmount : std::uint8_t { when_idle, lazy, force };
// not_found: nothing of ours is mounted there.
base::Result<void> unmount(const std::string& directory, Unmount how);

struct Mounted {
  std::string directory;
  std::string source;
  std::string options;
};
std::vector<Mounted> mounts();  // of FusionFS, in this mount namespace

// services/<this>.lock is held by the process that serves the mount.
std::string service_name(const std::string& directory);

}  // namespace fusionfs

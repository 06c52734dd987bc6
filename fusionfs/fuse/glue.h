// The kernel's requests, as libfuse's low-level interface hands them over, given to a FileSystem. Most replies are sent
// from the thread on which the store's answer arrived; the thread that read the request has long gone on to the next.
#pragma once

#include "fusionfs/fuse/file_system.h"

struct fuse_lowlevel_ops;

namespace fusionfs {

struct GlueOptions {
  double entry_timeout = 1.0;  // seconds the kernel believes a name
  double attribute_timeout = 1.0;
  bool access_lists = true;  // POSIX ACLs may be set here; the kernel enforces those that are, anyhow
  bool provenance = false;     // who opens what is told to FileSystem::note_use()
  bool local_locks = false;    // flock and fcntl locks hold within this mount only
  bool writeback = false;     // the kernel gathers writes; O_APPEND from two nodes at once is then not atomic
  std::uint32_t max_background = 64;
  std::optional<std::uint32_t> uid, gid;  // shown instead of the owner and group that files have
  std::uint32_t umask = 0;                // permission bits not shown
  bool store_in_process = false;  // calls of the store are made by the thread that read the request, always
};

// The userdata of the session: lives as long as it.
struct Glue {
  FileSystem& files;
  GlueOptions options;
  bool writes_past_cache = false;  // new files opened for writing alone; set by init, before any other request
};

const fuse_lowlevel_ops& fuse_operations();

}  // namespace fusionfs

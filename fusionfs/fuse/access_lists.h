// POSIX access control lists as the kernel hands them over: u32 version 2, then u16 tag, u16 permissions, u32 id for each
// entry. The kernel enforces them; what is done here is what they imply for the mode, and what new files inherit.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "fusionfs/fuse/file_system.h"

namespace fusionfs {

inline constexpr const char* kAccessList = "system.posix_acl_access";
inline constexpr const char* kDefaultList = "system.posix_acl_default";

// The permission bits that a list implies: its owner, mask (or group) and other entries. Nothing: it is no list.
std::optional<std::uint32_t> mode_of_access_list(const std::string& bytes, std::uint32_t mode);

// What a new file of `mode` (type and permissions, the umask not applied) gets in a directory with this default list.
struct Inherited {
  std::uint32_t mode = 0;
  std::string access;  // empty: the mode says it all
};
std::optional<Inherited> inherit(const std::string& default_list, std::uint32_t mode);

// Gives the new file its lists; a directory the default list too. 0, or an errno.
Task<int> give_lists(FileSystem& files, InodeId inode, Inherited lists, bool directory, std::string default_list);

}  // namespace fusionfs

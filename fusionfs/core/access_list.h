// POSIX access control lists, as the kernel hands them over and as they are kept: u32 version 2, then u16 tag, u16 permissions, u32 id
// for each entry. Mounts' kernels enforce them. A list and its inode's mode say the same thing of three classes, so whatever changes
// one of the two changes the other, in one step:
//
//   u::rw- g::--- m::r-- o::---   is kept beside mode 0640: the mask (without one, the group's entry) is the mode's group bits
//   chmod 0660                    makes the mask rw-, and leaves g::--- alone
//   u::rw- g::r-- o::---          is mode 0640, and is not kept
//
// Everything here is bytes in, bytes out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "novoht/base/bytes.h"

namespace fusionfs {

inline constexpr const char* kAccessList = "system.posix_acl_access";
inline constexpr const char* kDefaultList = "system.posix_acl_default";

// `mode` with the permission bits that a list implies: its owner, mask (or group) and other entries. Nothing: it is no list.
std::optional<std::uint32_t> mode_of_access_list(base::Bytes list, std::uint32_t mode);
// Whether mode_of_access_list() is all that it says.
bool mode_says_it_all(base::Bytes list);
// The list after chmod(2). One that is not well-formed is returned as it is.
std::string with_mode(std::string list, std::uint32_t mode);

// What a new file of `mode` (type and permissions, the umask not applied) gets in a directory with this default list.
struct Inherited {
  std::uint32_t mode = 0;
  std::string access;  // empty: the mode says it all
};
std::optional<Inherited> inherit(const std::string& default_list, std::uint32_t mode);

}  // namespace fusionfs

// What a mount does for access control lists (core/access_list.h), beside keeping them: new files inherit, and setting one is a chmod.
// The kernel evaluates them on every mount, with `-o noacl` too: what a list forbids on one mount is allowed on none.
#pragma once

#include <cstdint>
#include <string>

#include "fusionfs/core/access_list.h"
#include "fusionfs/fuse/file_system.h"

namespace fusionfs {

// As files.make() and files.create(), with what the directory's default list says of new files; without one, the umask applies.
Task<Looked> make_inheriting(FileSystem& files, InodeId parent, CreateRequest create, std::uint32_t umask);
Task<Opened> create_inheriting(FileSystem& files, InodeId parent, CreateRequest create, std::uint32_t umask, int flags);

// `name` is kAccessList. Errors: EINVAL: it is no list.
Task<int> set_access_list(FileSystem& files, InodeId inode, std::string name, std::string value, std::uint32_t flags, Changer changer);

}  // namespace fusionfs

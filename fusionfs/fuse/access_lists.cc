#include "fusionfs/fuse/access_lists.h"

#include <sys/stat.h>

#include <cerrno>

namespace fusionfs {

namespace {

// Gives the new file its lists; a directory the default list too.
Task<int> give_lists(FileSystem& files, InodeId inode, Inherited lists, bool directory, std::string default_list) {
  if (!lists.access.empty()) {
    const int error = co_await files.set_attribute(inode, kAccessList, lists.access, 0, lists.mode & 07777);
    if (error != 0) co_return error;
  }
  if (!directory) co_return 0;
  const int error = co_await files.set_attribute(inode, kDefaultList, std::move(default_list), 0, std::nullopt);
  co_return error;
}

}  // namespace

Task<Looked> make_inheriting(FileSystem& files, InodeId parent, CreateRequest create, std::uint32_t umask) {
  TextReply inherited = co_await files.get_attribute(parent, kDefaultList);
  const auto lists = inherited.error == 0 ? inherit(inherited.text, create.mode) : std::nullopt;
  create.mode = lists ? lists->mode : is_symlink(create.mode) ? create.mode : create.mode & ~(umask & 0777);
  const bool directory = is_directory(create.mode), symlink = is_symlink(create.mode);
  Looked made = co_await files.make(parent, std::move(create));
  if (made.error != 0 || !lists || symlink) co_return made;
  const InodeId id = made.inode.id;
  const int error = co_await give_lists(files, id, *lists, directory, inherited.text);
  if (error != 0) {
    files.forget(id, 1);
    made.error = error;
  }
  co_return made;
}

Task<Opened> create_inheriting(FileSystem& files, InodeId parent, CreateRequest create, std::uint32_t umask, int flags) {
  TextReply inherited = co_await files.get_attribute(parent, kDefaultList);
  const auto lists = inherited.error == 0 ? inherit(inherited.text, create.mode) : std::nullopt;
  const std::uint32_t mode = lists ? lists->mode : create.mode & ~(umask & 0777);
  Opened made = co_await files.create(parent, std::move(create.name), mode, create.uid, create.gid, flags);
  if (made.error != 0 || !lists) co_return made;
  const InodeId id = made.inode.id;
  const int error = co_await give_lists(files, id, *lists, false, inherited.text);
  if (error != 0) {
    co_await files.release(id);
    files.forget(id, 1);
    made.error = error;
  }
  co_return made;
}

Task<int> set_access_list(FileSystem& files, InodeId inode, std::string name, std::string value, std::uint32_t flags, Changer changer) {
  const Looked looked = co_await files.getattr(inode);
  if (looked.error != 0) co_return looked.error;
  auto mode = mode_of_access_list(value, looked.inode.mode);
  if (!mode) co_return EINVAL;
  // As chmod(2) by an owner outside the group.
  if ((*mode & S_ISGID) != 0 && !changer.privileged && !changer.belongs(looked.inode.gid)) *mode &= ~std::uint32_t{S_ISGID};
  const int error = co_await files.set_attribute(inode, std::move(name), std::move(value), flags, mode);
  co_return error;
}

}  // namespace fusionfs

// ls, stat, du and df: what the file system holds, read from the store. None needs a mount; a path on one is
// understood too.
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>

#include "fusionfs/fuse/session.h"
#include "fusionfs/fuse/wait.h"
#include "fusionfs/tool/place.h"
#include "fusionfs/tool/verbs.h"
#include "zht/support/output.h"
#include "zht/support/program.h"

namespace fusionfs {
namespace {

using base::Code;
using base::fail;
using base::Result;

std::string mode_text(std::uint32_t mode) {
  const std::uint32_t type = mode & kTypeMask;
  std::string text(1, type == S_IFDIR    ? 'd'
                      : type == S_IFLNK  ? 'l'
                      : type == S_IFIFO  ? 'p'
                      : type == S_IFSOCK ? 's'
                      : type == S_IFCHR  ? 'c'
                      : type == S_IFBLK  ? 'b'
                                         : '-');
  const char* bits = "rwxrwxrwx";
  for (int i = 0; i < 9; ++i) text += (mode >> (8 - i) & 1) != 0 ? bits[i] : '-';
  if ((mode & S_ISUID) != 0) text[3] = text[3] == 'x' ? 's' : 'S';
  if ((mode & S_ISGID) != 0) text[6] = text[6] == 'x' ? 's' : 'S';
  if ((mode & S_ISVTX) != 0) text[9] = text[9] == 'x' ? 't' : 'T';
  return text;
}

std::string time_text(Nanos time) { return support::iso_time(base::WallTime(std::chrono::nanoseconds(time))); }

// Names need not be UTF-8: what is not is told in base64 beside.
void put_name(nlohmann::json& to, const std::string& name) {
  to["name"] = name;
  if (!support::is_utf8(name)) to["name_b64"] = support::to_base64(name);
}

std::uint64_t disk_bytes(const Inode& inode) {
  return inode.has(Inode::kInline) ? inode.content.size() : inode.blocks * 512;
}

nlohmann::json describe(const Inode& inode) {
  return {{"inode", raw(inode.id)},
          {"mode", mode_text(inode.mode)},
          {"link_count", inode.links},
          {"uid", inode.uid},
          {"gid", inode.gid},
          {"size_bytes", inode.size},
          {"disk_bytes", disk_bytes(inode)},
          {"accessed", time_text(inode.atime)},
          {"modified", time_text(inode.mtime)},
          {"changed", time_text(inode.ctime)},
          {"born", time_text(inode.btime)}};
}

struct Child {
  std::string name;
  Inode inode;
};

// What lies in a directory, with the inodes; those that go meanwhile are left out.
Result<std::vector<Child>> children(Place& place, InodeId directory) {
  Metadata::ListReply listed = wait(place.metadata->list(directory, {}));
  if (listed.error != 0) return base::fail_errno(listed.error, "directory " + std::to_string(raw(directory)));
  std::map<HomeId, std::vector<InodeId>> wanted;
  for (const auto& [cursor, each] : listed.listing.names) {
    if (!is_directory(each.type)) wanted[home_of(each.inode)].push_back(each.inode);
  }
  std::map<InodeId, Inode> inodes;
  constexpr std::size_t kPage = 1000;
  for (const auto& [home, ids] : wanted) {
    for (std::size_t from = 0; from < ids.size(); from += kPage) {
      const auto end = ids.begin() + static_cast<std::ptrdiff_t>(std::min(from + kPage, ids.size()));
      Reply reply = wait(place.metadata->inodes(home, {ids.begin() + static_cast<std::ptrdiff_t>(from), end}));
      if (reply.error != 0) return base::fail_errno(reply.error, "inodes of home " + std::to_string(raw(home)));
      for (Inode& inode : reply.inodes) inodes[inode.id] = std::move(inode);
    }
  }
  std::vector<Child> found;
  for (const auto& [cursor, each] : listed.listing.names) {
    if (is_directory(each.type)) {
      Reply reply = wait(place.metadata->getattr(each.inode));
      if (reply.error == 0) found.push_back({each.name, std::move(*reply.inode)});
    } else if (const auto inode = inodes.find(each.inode); inode != inodes.end()) {
      found.push_back({each.name, inode->second});
    }
  }
  std::sort(found.begin(), found.end(), [](const Child& a, const Child& b) { return a.name < b.name; });
  return found;
}

Result<int> list(const support::CommonFlags& common, const std::string& path) {
  TRY_LET(place, open_place(common));
  TRY_LET(inode, find_path(place, path));
  std::vector<Child> found;
  if (is_directory(inode.mode)) {
    TRY_LET(all, children(place, inode.id));
    found = std::move(all);
  } else {
    found.push_back({path.substr(path.rfind('/') + 1), inode});
  }
  if (common.json) {
    nlohmann::json names = nlohmann::json::array();
    for (const Child& each : found) {
      nlohmann::json one = describe(each.inode);
      put_name(one, each.name);
      names.push_back(std::move(one));
    }
    support::print_json(names);
    return 0;
  }
  support::Table table({"MODE", "LINKS", "UID", "GID", "SIZE", "MODIFIED", "NAME"});
  for (const Child& each : found) {
    table.row({mode_text(each.inode.mode), std::to_string(each.inode.links), std::to_string(each.inode.uid),
               std::to_string(each.inode.gid), std::to_string(each.inode.size), time_text(each.inode.mtime),
               base::escape(each.name) +
                   (is_symlink(each.inode.mode) ? " -> " + base::escape(each.inode.content) : "")});
  }
  table.print();
  return 0;
}

Result<int> show(const support::CommonFlags& common, const std::string& path) {
  TRY_LET(place, open_place(common));
  TRY_LET(inode, find_path(place, path));
  const char* content = !is_regular(inode.mode)      ? "none"
                        : inode.has(Inode::kInline) ? "inline"
                        : inode.store == 0          ? "none"
                                                    : "chunks";
  const auto partition = zht::partition_of(inode_key(inode.id), place.client->partition_count());
  nlohmann::json whole = describe(inode);
  whole["home"] = raw(home_of(inode.id));
  whole["partition"] = static_cast<std::uint32_t>(partition);
  whole["content"] = content;
  if (inode.store != 0) whole["store"] = inode.store;
  if (is_directory(inode.mode)) {
    const Reply reply = wait(place.metadata->homes(inode.id));
    if (reply.error == 0) whole["home_count"] = reply.shards.size() + 1;
  }
  if (is_symlink(inode.mode)) whole["target"] = inode.content;
  if (common.json) {
    support::print_json(whole);
    return 0;
  }
  support::Table table({"PROPERTY", "VALUE"});
  for (const auto& [key, value] : whole.items()) {
    std::string name = key;
    std::replace(name.begin(), name.end(), '_', ' ');
    table.row({name, value.is_string() ? value.get<std::string>() : value.dump()});
  }
  table.print();
  return 0;
}

struct Sum {
  std::uint64_t files = 0, directories = 0, size = 0, disk = 0;
};

Result<Sum> sum_of(Place& place, const Inode& top) {
  Sum sum;
  std::set<InodeId> linked;  // several names, one file
  const auto add = [&](const Inode& inode) {
    if (inode.links > 1 && !linked.insert(inode.id).second) return;
    sum.files += 1;
    sum.size += inode.size;
    sum.disk += disk_bytes(inode);
  };
  if (!is_directory(top.mode)) add(top);
  std::vector<InodeId> todo;
  if (is_directory(top.mode)) todo.push_back(top.id);
  while (!todo.empty()) {
    const InodeId directory = todo.back();
    todo.pop_back();
    sum.directories += 1;
    TRY_LET(found, children(place, directory));
    for (const Child& each : found) {
      if (is_directory(each.inode.mode))
        todo.push_back(each.inode.id);
      else
        add(each.inode);
    }
  }
  return sum;
}

Result<int> usage(const support::CommonFlags& common, const std::vector<std::string>& paths) {
  TRY_LET(place, open_place(common));
  support::Table table({"FILES", "DIRECTORIES", "SIZE", "DISK", "PATH"});
  nlohmann::json whole = nlohmann::json::array();
  for (const std::string& path : paths) {
    TRY_LET(inode, find_path(place, path));
    TRY_LET(sum, sum_of(place, inode));
    table.row({support::human_count(sum.files), support::human_count(sum.directories), support::human_size(sum.size),
               support::human_size(sum.disk), path});
    whole.push_back({{"path", path},
                     {"file_count", sum.files},
                     {"directory_count", sum.directories},
                     {"size_bytes", sum.size},
                     {"disk_bytes", sum.disk}});
  }
  if (common.json)
    support::print_json(whole);
  else
    table.print();
  return 0;
}

Result<int> free_space(const support::CommonFlags& common) {
  TRY_LET(place, open_place(common));
  struct statvfs disk {};
  if (::statvfs(place.chunks->folder().c_str(), &disk) != 0) return base::fail_errno(errno, place.chunks->folder());
  TRY_LET(chunks, place.chunks->list());
  std::uint64_t used = 0;
  for (const auto& chunk : chunks) {
    struct stat status {};
    if (::stat(place.chunks->path_of(chunk.inode, chunk.index).c_str(), &status) == 0)
      used += static_cast<std::uint64_t>(status.st_blocks) * 512;
  }
  const std::uint64_t size = disk.f_blocks * disk.f_frsize, available = disk.f_bavail * disk.f_frsize;
  if (common.json) {
    support::print_json({{"folder", place.chunks->folder()},
                         {"store", place.chunks->identity()},
                         {"chunk_count", chunks.size()},
                         {"chunks_bytes", used},
                         {"disk_bytes", size},
                         {"available_bytes", available}});
    return 0;
  }
  support::Table table({"CHUNKS", "HELD", "DISK", "AVAILABLE", "FOLDER"});
  table.row({support::human_count(chunks.size()), support::human_size(used), support::human_size(size),
             support::human_size(available), place.chunks->folder()});
  table.print();
  return 0;
}

}  // namespace

void add_look_verbs(support::Program& program) {
  {
    auto& verb = program.verb("ls", "Lists a directory.", {"fusionfs ls /", "fusionfs ls /mnt/shared/src --json"});
    const auto path = std::make_shared<std::string>("/");
    verb.options().add_option("path", *path, "on a mount, or from the file system's root (default /)");
    verb.action([&program, path]() -> Result<int> { return list(program.common(), *path); });
  }
  {
    auto& verb = program.verb("stat", "Shows all that is known of a file or directory.",
                              {"fusionfs stat /mnt/shared/data", "fusionfs stat / --json"});
    const auto path = std::make_shared<std::string>();
    verb.options().add_option("path", *path, "on a mount, or from the file system's root")->required();
    verb.action([&program, path]() -> Result<int> { return show(program.common(), *path); });
  }
  {
    auto& verb = program.verb("du", "Sums up files and bytes below directories.",
                              {"fusionfs du /", "fusionfs du /mnt/shared/a /mnt/shared/b --json"});
    const auto paths = std::make_shared<std::vector<std::string>>(std::vector<std::string>{"/"});
    verb.options().add_option("path", *paths, "on a mount, or from the file system's root (default /)");
    verb.action([&program, paths]() -> Result<int> { return usage(program.common(), *paths); });
  }
  {
    auto& verb = program.verb("df", "Shows the space that file contents take and have on this node.",
                              {"fusionfs df", "fusionfs df --json"});
    verb.action([&program]() -> Result<int> { return free_space(program.common()); });
  }
}

}  // namespace fusionfs

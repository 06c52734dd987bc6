// What a mount lets go of: the kernel decides how long it knows an inode, the mount what it remembers of it.
#include <malloc.h>

#include <algorithm>

#include "fusionfs/fuse/file_system.h"

namespace fusionfs {
namespace {

std::uint64_t inline_blocks(const Inode& record) { return (record.content.size() + 4095) / 4096 * 8; }

}  // namespace

// The bytes of a small file come with its record, and once more when it is opened: until then nobody reads them.
void FileSystem::drop_content_locked(MountedInode& inode) {
  Inode& record = inode.record;
  if (inode.opens > 0 || inode.dirty || inode.in_flight || inode.gone || !is_regular(record.mode) || record.content.empty()) return;
  record.blocks = inline_blocks(record);
  std::string().swap(record.content);
  inode.content_dropped = true;
}

void FileSystem::remember_less() {
  const base::Time now = clock_.now();
  const std::size_t before = table_.bytes();
  std::size_t bytes = before;
  for (const std::chrono::seconds age : {std::chrono::seconds(12), std::chrono::seconds(2), std::chrono::seconds(0)}) {
    if (bytes <= options_.memory) break;
    bytes -= std::min(bytes, table_.drop_idle(now, now - age, options_.name_timeout + kAnswerTaken));
  }
  // Pages in the middle of the heap go back only when that is asked for.
  constexpr std::size_t kMuch = std::size_t{8} << 20, kLetGo = std::size_t{1} << 20;
  most_remembered_ = std::max(most_remembered_, before);
  if (most_remembered_ < bytes + kLetGo && ::mallinfo2().fordblks < kMuch) return;
  (void)::malloc_trim(0);
  most_remembered_ = bytes;
}

Inode FileSystem::view(const Inode& record) {
  Inode copy;
  copy.id = record.id;
  copy.flags = record.flags;
  copy.mode = record.mode;
  copy.uid = record.uid;
  copy.gid = record.gid;
  copy.links = record.links;
  copy.device = record.device;
  copy.size = record.size;
  copy.blocks = record.has(Inode::kInline) && !record.content.empty() ? inline_blocks(record) : record.blocks;
  copy.atime = record.atime;
  copy.mtime = record.mtime;
  copy.ctime = record.ctime;
  copy.btime = record.btime;
  copy.store = record.store;
  copy.copies = record.copies;
  copy.wanted = record.wanted;
  copy.parent = record.parent;
  copy.revision = record.revision;
  return copy;
}

}  // namespace fusionfs

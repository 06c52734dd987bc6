#include "fusionfs/fuse/access_lists.h"

namespace fusionfs {

namespace {

constexpr std::size_t kHeader = 4, kEntry = 8;
enum Tag : std::uint16_t { kOwner = 0x01, kNamedUser = 0x02, kGroup = 0x04, kNamedGroup = 0x08, kMask = 0x10, kOther = 0x20 };

bool well_formed(const std::string& bytes) {
  return bytes.size() >= kHeader && (bytes.size() - kHeader) % kEntry == 0;
}

}  // namespace

std::optional<std::uint32_t> mode_of_access_list(const std::string& bytes, std::uint32_t mode) {
  if (!well_formed(bytes)) return std::nullopt;
  std::optional<std::uint32_t> group, mask;
  for (std::size_t at = kHeader; at < bytes.size(); at += kEntry) {
    const auto tag = base::load<std::uint16_t>(bytes.data() + at);
    const std::uint32_t bits = base::load<std::uint16_t>(bytes.data() + at + 2) & 7u;
    if (tag == kOwner) mode = (mode & ~0700u) | bits << 6;
    if (tag == kGroup) group = bits;
    if (tag == kMask) mask = bits;
    if (tag == kOther) mode = (mode & ~07u) | bits;
  }
  if (mask)
    mode = (mode & ~070u) | *mask << 3;
  else if (group)
    mode = (mode & ~070u) | *group << 3;
  return mode & 07777;
}

std::optional<Inherited> inherit(const std::string& default_list, std::uint32_t mode) {
  if (!well_formed(default_list) || default_list.size() == kHeader) return std::nullopt;
  Inherited lists;
  lists.access = default_list;
  lists.mode = mode & ~0777u;
  bool masked = false, named = false;
  for (std::size_t at = kHeader; at < default_list.size(); at += kEntry)
    masked = masked || base::load<std::uint16_t>(default_list.data() + at) == kMask;
  // The entries that stand for the three classes are cut to what the file was to be made with.
  for (std::size_t at = kHeader; at < default_list.size(); at += kEntry) {
    const auto tag = base::load<std::uint16_t>(default_list.data() + at);
    std::uint32_t bits = base::load<std::uint16_t>(default_list.data() + at + 2) & 7u;
    const bool of_group = tag == kMask || (tag == kGroup && !masked);
    if (tag == kOwner) lists.mode |= (bits &= mode >> 6 & 7u) << 6;
    if (of_group) lists.mode |= (bits &= mode >> 3 & 7u) << 3;
    if (tag == kOther) lists.mode |= bits &= mode & 7u;
    named = named || tag == kNamedUser || tag == kNamedGroup || tag == kMask;
    base::store(lists.access.data() + at + 2, static_cast<std::uint16_t>(bits));
  }
  if (!named) lists.access.clear();
  return lists;
}

Task<int> give_lists(FileSystem& files, InodeId inode, Inherited lists, bool directory, std::string default_list) {
  if (!lists.access.empty()) {
    const int error = co_await files.set_attribute(inode, kAccessList, lists.access, 0, lists.mode & 07777);
    if (error != 0) co_return error;
  }
  if (!directory) co_return 0;
  const int error = co_await files.set_attribute(inode, kDefaultList, std::move(default_list), 0, std::nullopt);
  co_return error;
}

}  // namespace fusionfs

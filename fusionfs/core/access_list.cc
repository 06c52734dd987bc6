#include "fusionfs/core/access_list.h"

namespace fusionfs {

namespace {

constexpr std::size_t kHeader = 4, kEntry = 8;
constexpr std::uint32_t kVersion = 2;
enum Tag : std::uint16_t { kOwner = 0x01, kNamedUser = 0x02, kGroup = 0x04, kNamedGroup = 0x08, kMask = 0x10, kOther = 0x20 };

bool well_formed(base::Bytes list) {
  return list.size() >= kHeader && (list.size() - kHeader) % kEntry == 0 && base::load<std::uint32_t>(list.data()) == kVersion;
}
std::uint16_t tag_at(base::Bytes list, std::size_t at) { return base::load<std::uint16_t>(list.data() + at); }
std::uint32_t bits_at(base::Bytes list, std::size_t at) { return base::load<std::uint16_t>(list.data() + at + 2) & 7u; }

bool masked(base::Bytes list) {
  for (std::size_t at = kHeader; at < list.size(); at += kEntry) {
    if (tag_at(list, at) == kMask) return true;
  }
  return false;
}

// The mode's bits that an entry stands for: how far they are shifted. Nothing: none.
std::optional<unsigned> shift_of(std::uint16_t tag, bool has_mask) {
  if (tag == kOwner) return 6;
  if (tag == (has_mask ? kMask : kGroup)) return 3;
  if (tag == kOther) return 0;
  return std::nullopt;
}

}  // namespace

std::optional<std::uint32_t> mode_of_access_list(base::Bytes list, std::uint32_t mode) {
  if (!well_formed(list)) return std::nullopt;
  const bool has_mask = masked(list);
  for (std::size_t at = kHeader; at < list.size(); at += kEntry) {
    if (const auto shift = shift_of(tag_at(list, at), has_mask)) mode = (mode & ~(7u << *shift)) | bits_at(list, at) << *shift;
  }
  return mode & 07777;
}

bool mode_says_it_all(base::Bytes list) {
  if (!well_formed(list)) return false;
  for (std::size_t at = kHeader; at < list.size(); at += kEntry) {
    const std::uint16_t tag = tag_at(list, at);
    if (tag != kOwner && tag != kGroup && tag != kOther) return false;
  }
  return true;
}

std::string with_mode(std::string list, std::uint32_t mode) {
  if (!well_formed(list)) return list;
  const bool has_mask = masked(list);
  for (std::size_t at = kHeader; at < list.size(); at += kEntry) {
    if (const auto shift = shift_of(tag_at(list, at), has_mask))
      base::store(list.data() + at + 2, static_cast<std::uint16_t>(mode >> *shift & 7u));
  }
  return list;
}

std::optional<Inherited> inherit(const std::string& default_list, std::uint32_t mode) {
  if (!well_formed(default_list) || default_list.size() == kHeader) return std::nullopt;
  Inherited lists;
  lists.access = default_list;
  lists.mode = mode & ~0777u;
  const bool has_mask = masked(default_list);
  // The entries that stand for the three classes are cut to what the file was to be made with.
  for (std::size_t at = kHeader; at < default_list.size(); at += kEntry) {
    const auto shift = shift_of(tag_at(default_list, at), has_mask);
    if (!shift) continue;
    const std::uint32_t bits = bits_at(default_list, at) & mode >> *shift;
    lists.mode |= bits << *shift;
    base::store(lists.access.data() + at + 2, static_cast<std::uint16_t>(bits));
  }
  if (mode_says_it_all(lists.access)) lists.access.clear();
  return lists;
}

}  // namespace fusionfs

#include "fusionfs/core/check.h"

#include <cerrno>
#include <cstdlib>

namespace fusionfs {

using base::Bytes;
using base::Result;
using zht::Operation;
using zht::Outcome;

namespace {

constexpr std::uint64_t kPage = 2000;          // keys of one scan
constexpr Nanos kUnfinished = 10'000'000'000;  // older than this (or so far ahead), nobody is at it any more

struct Name {
  HomeId home{};
  std::string name;
  Entry entry;
};

// What says that a debt was paid, or a move has arrived, and is to go with the change. Those of older builds go by themselves.
bool is_marker(Bytes rest, const std::string& value) {
  if (rest.starts_with("k/")) return value.size() == 8;
  if (!rest.starts_with("m/") || value.empty() || value[0] != 'd') return false;
  const auto arrived = unpack<Reply>(Bytes(value).substr(1));
  return arrived && arrived->names.size() == 1;
}

// Everything that one reading sees.
struct Picture {
  std::map<InodeId, Inode> inodes;
  std::vector<Name> names;
  std::map<HomeId, std::string> listings;
  std::map<HomeId, Split> splits;
  std::vector<std::pair<std::string, std::string>> others;  // debts and promises
  std::set<InodeId> kept;                                   // orphans of mounts that live

  InodeId directory_of(HomeId home) const {
    const auto split = splits.find(home);
    return split == splits.end() ? make_inode(home, kDirectoryCounter) : split->second.directory;
  }
  // While a home is split its names are in both for a moment: which are those that count.
  bool counts(HomeId home, const std::string& name) const {
    const auto split = splits.find(home);
    return split == splits.end() || (!split->second.filling && !split->second.place(name_hash(name)));
  }
  std::string where(HomeId home, const std::string& name) const {
    return base::escape(name) + " in directory " + std::to_string(raw(directory_of(home)));
  }
};

}  // namespace

std::string_view name_of(Finding::Kind kind) {
  switch (kind) {
    case Finding::Kind::damaged:
      return "damaged";
    case Finding::Kind::dangling:
      return "dangling";
    case Finding::Kind::nameless:
      return "nameless";
    case Finding::Kind::links:
      return "links";
    case Finding::Kind::listing:
      return "listing";
    case Finding::Kind::orphan:
      return "orphan";
    case Finding::Kind::unfinished:
      return "unfinished";
    case Finding::Kind::misplaced:
      return "misplaced";
  }
  return "?";
}

Result<std::set<Finding>> Check::read(Census& census) {
  Picture picture;
  std::set<Finding> found;
  const auto find = [&](Finding::Kind kind, InodeId inode, HomeId home, std::string name, std::string text,
                        std::uint32_t names = 0, std::uint64_t revision = 0) {
    Finding finding;
    finding.names = names;
    finding.revision = revision;
    finding.kind = kind;
    finding.inode = inode;
    finding.home = home;
    finding.name = std::move(name);
    finding.text = std::move(text);
    found.insert(std::move(finding));
  };
  for (std::uint32_t partition = 0; partition < client_.partition_count(); ++partition) {
    std::uint64_t cursor = 0;
    do {
      const Outcome page = client_.call(Operation::scan(zht::PartitionId{partition}, cursor, "{d:", kPage));
      if (!page.ok()) return page.error();
      std::vector<Operation> lookups;
      for (const auto& entry : page.entries) lookups.push_back(Operation::lookup(entry.key));
      const std::vector<Outcome> values = client_.call_all(std::move(lookups));
      for (std::size_t i = 0; i < values.size(); ++i) {
        const std::string& key = page.entries[i].key;
        if (values[i].code == base::Code::not_found) continue;  // went meanwhile
        if (!values[i].ok()) return values[i].error();
        const auto brace = key.find('}');
        std::uint64_t home_number = 0;
        if (brace == std::string::npos || !parse_hex(Bytes(key).substr(3, brace - 3), home_number)) continue;
        const HomeId home{home_number};
        const Bytes rest = Bytes(key).substr(brace + 1);
        const auto damaged = [&] {
          find(Finding::Kind::damaged, InodeId{}, home, std::string(rest),
               "record " + base::escape(key) + " cannot be read");
        };
        std::uint64_t counter = 0;
        if (rest == "l") {
          picture.listings[home] = values[i].value;
        } else if (rest == "s") {
          if (auto split = decode_split(values[i].value))
            picture.splits[home] = std::move(*split);
          else
            damaged();
        } else if (rest.starts_with("i/") && parse_hex(rest.substr(2), counter)) {
          const InodeId id = make_inode(home, static_cast<std::uint32_t>(counter));
          if (auto inode = decode_inode(id, values[i].value))
            picture.inodes[id] = std::move(*inode);
          else
            damaged();
        } else if (rest.starts_with("e/")) {
          if (auto entry = decode_entry(values[i].value))
            picture.names.push_back({home, std::string(rest.substr(2)), std::move(*entry)});
          else
            damaged();
        } else if (rest.starts_with("u/") || rest.starts_with("p/") || is_marker(rest, values[i].value)) {
          picture.others.emplace_back(key, values[i].value);
        }
      }
      cursor = page.cursor;
    } while (cursor != 0);
  }
  if (const Outcome sessions = client_.call(Operation::lookup(kSessionsKey)); sessions.ok()) {
    base::Reader list(sessions.value);
    while (list.left() >= 8) {
      const std::uint64_t session = list.u64();
      if (!client_.call(Operation::lookup(session_key(session), zht::Range::nothing())).ok()) continue;
      const Outcome orphans = client_.call(Operation::lookup(session_orphans_key(session)));
      base::Reader ids(orphans.value);
      while (ids.left() >= 8) picture.kept.insert(InodeId{ids.u64()});
    }
  }

  const Nanos now = metadata_.now();
  std::map<InodeId, std::uint32_t> names_of;
  std::map<HomeId, std::map<std::string, InodeId>> names_in;
  census = {};
  for (const Name& each : picture.names) {
    const InodeId id = each.entry.inode;
    if (!picture.counts(each.home, each.name)) continue;
    census.names += 1;
    names_of[id] += 1;
    names_in[each.home][each.name] = id;
    const auto inode = picture.inodes.find(id);
    if (each.entry.moving && std::abs(now - each.entry.moving->since) > kUnfinished) {
      find(Finding::Kind::unfinished, id, each.home, each.name, "move of " + picture.where(each.home, each.name));
    }
    if (inode == picture.inodes.end()) {
      find(each.entry.initial ? Finding::Kind::unfinished : Finding::Kind::dangling, id, each.home, each.name,
           picture.where(each.home, each.name) + " leads to inode " + std::to_string(raw(id)) + ", which is not there");
    } else if (is_directory(inode->second.mode) && inode->second.parent != picture.directory_of(each.home) && !each.entry.moving) {
      find(Finding::Kind::misplaced, id, each.home, each.name,
           "directory " + picture.where(each.home, each.name) + " has another parent");
    }
  }
  for (const auto& [id, inode] : picture.inodes) {
    census.inodes += 1;
    const auto counted = names_of.find(id);
    const std::uint32_t names = counted == names_of.end() ? 0 : counted->second;
    const std::string number = std::to_string(raw(id));
    if (is_directory(inode.mode)) {
      census.directories += 1;
      if (inode.has(Inode::kDying)) {
        const auto dying = decode_dying(inode.content);
        if (!dying || std::abs(now - dying->since) > kUnfinished)
          find(Finding::Kind::unfinished, id, home_of(id), "", "removal of directory " + number);
      }
      if (names != 1 && id != kRootInode && !inode.has(Inode::kDying)) {
        find(names == 0 ? Finding::Kind::nameless : Finding::Kind::misplaced, id, HomeId{}, "",
             "directory " + number + " has " + std::to_string(names) + " names");
      }
      if (picture.listings.count(home_of(id)) == 0)
        find(Finding::Kind::listing, id, HomeId{}, "", "directory " + number + " has no listing");
      continue;
    }
    census.files += 1;
    census.bytes += inode.size;
    if (inode.links == 0 && names == 0) {
      if (picture.kept.count(id) == 0)
        find(Finding::Kind::orphan, id, HomeId{}, "", "inode " + number + " has no name, and no mount keeps it");
    } else if (names == 0) {
      find(Finding::Kind::nameless, id, HomeId{}, "",
           "inode " + number + " has no name and says it has " + std::to_string(inode.links), 0, inode.revision);
    } else if (names != inode.links) {
      find(
          Finding::Kind::links, id, HomeId{}, "",
          "inode " + number + " says it has " + std::to_string(inode.links) + " names and has " + std::to_string(names),
          names, inode.revision);
    }
  }
  for (const auto& [home, bytes] : picture.listings) {
    if (const auto split = picture.splits.find(home); split != picture.splits.end()) {
      if (split->second.filling) continue;
    }
    std::map<std::string, InodeId> listed;
    Bytes rest = bytes;
    std::optional<ListingRecord> last;
    while (!rest.empty()) {
      auto record = decode_listing(rest);
      if (!record) break;
      if (record->kind == ListingRecord::Kind::add) listed[record->name] = record->inode;
      if (record->kind == ListingRecord::Kind::remove) listed.erase(record->name);
      last = std::move(record);
    }
    const std::uint32_t live = static_cast<std::uint32_t>(listed.size());
    std::erase_if(listed, [&](const auto& each) { return !picture.counts(home, each.first); });
    const InodeId directory = picture.directory_of(home);
    if (!rest.empty() || !last) {
      find(Finding::Kind::damaged, directory, home, "l",
           "the listing of directory " + std::to_string(raw(directory)) + " cannot be read");
    } else if (listed != names_in[home] || last->live != live) {
      find(Finding::Kind::listing, directory, home, "",
           "the listing of directory " + std::to_string(raw(directory)) + " has " + std::to_string(listed.size()) +
               " names, the directory " + std::to_string(names_in[home].size()));
    }
  }
  for (const auto& [home, split] : picture.splits) {
    const std::string number = std::to_string(raw(split.directory));
    if (picture.inodes.count(split.directory) == 0) {
      find(Finding::Kind::nameless, InodeId{}, home, split_key(home),
           "names of directory " + number + ", which is not there");
    } else if (split.under_way() && std::abs(now - split.since) > kUnfinished) {
      find(Finding::Kind::unfinished, split.directory, home, split_key(home), "splitting of directory " + number);
    } else if (!split.dying.empty() && !picture.inodes[split.directory].has(Inode::kDying)) {
      find(Finding::Kind::unfinished, split.directory, home, split_key(home), "removal of directory " + number);
    }
  }
  for (const auto& [key, value] : picture.others) {
    find(Finding::Kind::unfinished, InodeId{}, HomeId{}, key,
         std::string(key.find("}u/") != std::string::npos   ? "debt "
                     : key.find("}p/") != std::string::npos ? "promise "
                                                            : "marker ") +
             base::escape(key));
  }
  return found;
}

std::set<Finding> Check::mendable(const std::set<Finding>& found) {
  std::set<Finding> unfinished, others;
  for (const Finding& each : found) {
    if (each.kind == Finding::Kind::unfinished) {
      unfinished.insert(each);
    } else if (each.kind != Finding::Kind::damaged && each.kind != Finding::Kind::dangling &&
               each.kind != Finding::Kind::listing) {
      others.insert(each);
    }
  }
  return unfinished.empty() ? others : unfinished;
}

Task<bool> Check::repair(Finding finding) {
  switch (finding.kind) {
    case Finding::Kind::unfinished: {
      if (finding.name == split_key(finding.home)) {
        const int error = co_await metadata_.settle_shard(finding.home);
        co_return error == 0;
      }
      if (finding.name.starts_with("{d:")) {
        const int error = co_await metadata_.settle_record(finding.name);
        co_return error == 0;
      }
      if (finding.name.empty()) {  // a removal: looking the directory up would do, but its name may be gone
        const int error = co_await metadata_.settle_directory(finding.inode);
        co_return error == 0;
      }
      const InodeId directory = co_await metadata_.directory_of(finding.home);
      Reply reply = co_await metadata_.lookup(directory, finding.name);
      co_return reply.error == 0 || reply.error == ENOENT;
    }
    case Finding::Kind::orphan: {
      Reply reply = co_await metadata_.reap(finding.inode);
      co_return reply.error == 0;
    }
    case Finding::Kind::misplaced: {
      if (finding.name.empty()) co_return false;
      SetRequest set;
      set.inode = finding.inode;
      set.fields_set = SetRequest::kParent;
      set.parent = co_await metadata_.directory_of(finding.home);
      Reply reply = co_await metadata_.setattr(set);
      co_return reply.error == 0;
    }
    case Finding::Kind::links:
    case Finding::Kind::nameless: {
      if (finding.name == split_key(finding.home)) {
        const int error = co_await metadata_.drop_stray_shard(finding.home);
        co_return error == 0;
      }
      // A count may be too high after a crash between two homes, never too low; how many names there are was counted, and
      // is set only if nobody has changed the inode since it was read.
      Reply inode = co_await metadata_.getattr(finding.inode);
      if (inode.error != 0) co_return false;
      if (is_directory(inode.inode->mode)) {  // its maker died before it wrote the name
        const int error = co_await metadata_.drop_nameless(finding.inode);
        co_return error == 0;
      }
      const std::uint32_t names = finding.names;
      SetRequest set;
      set.inode = finding.inode;
      set.fields_set = SetRequest::kLinks;
      set.links = names;
      set.revision = finding.revision;
      Reply reply = co_await metadata_.setattr(set);
      if (reply.error == 0 && names == 0) reply = co_await metadata_.reap(finding.inode);
      co_return reply.error == 0;
    }
    default:
      co_return false;
  }
}

}  // namespace fusionfs

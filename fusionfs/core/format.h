// How a file system lies in the store: keys, inodes, directory entries, listings. FORMAT.md says it in prose.
//
// A *home* is one directory shard: one hash tag, one partition, one number. An inode number carries its home in its
// upper bits, so the key of an inode is computed, never looked up:
//
//   InodeId root = make_inode(HomeId{0}, 1);           // a directory's own inode is number 1 of its own home
//   inode_key(root) == "{d:0}i/1"
//   entry_key(home_of(root), "etc") == "{d:0}e/etc"
//
// Everything here is bytes in, bytes out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "novoht/base/bytes.h"
#include "novoht/base/result.h"

namespace fusionfs {

using base::Bytes;

enum class InodeId : std::uint64_t {};
enum class HomeId : std::uint64_t {};

inline constexpr unsigned kCounterBits = 28;  // inodes of one home: 268 million; 68 thousand million homes
inline constexpr std::uint32_t kMaxCounter = (1u << kCounterBits) - 1;
inline constexpr std::uint32_t kDirectoryCounter = 1;  // the directory itself
inline constexpr std::uint32_t kFirstFileCounter = 2;
inline constexpr std::uint64_t kMaxHome = (std::uint64_t{1} << (64 - kCounterBits)) - 1;
inline constexpr InodeId kRootInode{1};
inline constexpr HomeId kRootHome{0};
inline constexpr std::size_t kMaxName = 255;               // bytes
inline constexpr std::size_t kMaxInline = 4096;            // bytes of a file kept in its inode
inline constexpr std::size_t kMaxAttributeValue = 65'536;  // bytes of one extended attribute
inline constexpr std::size_t kMaxAttributes = 262'144;     // bytes of all extended attributes of one inode
inline constexpr std::uint32_t kMaxLinks = 65'000;

constexpr InodeId make_inode(HomeId home, std::uint32_t counter) {
  return InodeId{static_cast<std::uint64_t>(home) << kCounterBits | counter};
}
constexpr HomeId home_of(InodeId inode) { return HomeId{static_cast<std::uint64_t>(inode) >> kCounterBits}; }
constexpr std::uint32_t counter_of(InodeId inode) {
  return static_cast<std::uint32_t>(static_cast<std::uint64_t>(inode) & kMaxCounter);
}
constexpr std::uint64_t raw(InodeId inode) { return static_cast<std::uint64_t>(inode); }
constexpr std::uint64_t raw(HomeId home) { return static_cast<std::uint64_t>(home); }

// Keys. All of one home share its tag. Numbers in them are written in hexadecimal.
bool parse_hex(Bytes text, std::uint64_t& number);    // the whole of a number's text
std::string tag_of(HomeId home);                      // "{d:<hex>}"
std::string inode_key(InodeId inode);                 // tag i/<counter hex>      Inode
std::string attributes_key(InodeId inode);            // tag x/<counter hex>      extended attributes
std::string entry_key(HomeId home, Bytes name);       // tag e/<name>             Entry
std::string listing_key(HomeId home);                 // tag l                    ListingRecord...
std::string debt_key(HomeId home, std::uint64_t id);  // tag u/<hex>              Debt: a link to be taken off elsewhere
std::string paid_key(InodeId inode, std::uint64_t id);     // tag k/<counter>/<hex>  a debt already taken off here: whose
std::string transfer_key(HomeId home, std::uint64_t id);   // tag m/<hex>          outcome of a move into this home
std::string pending_key(InodeId inode, std::uint64_t id);  // tag p/<counter>/<hex>  a link promised to another home
std::string fence_key(HomeId home);                        // tag c   u64: how often changes that were to arrive were called off
std::string lease_key(HomeId home);                        // tag w   Lease: who alone changes names here (ttl)
std::string openers_key(HomeId home);                      // tag o   Openers: mounts that have files of it open (ttl)
std::string keepers_key(InodeId inode);                    // tag h/<counter hex>  those that may have this one, without a name, open
std::string split_key(HomeId home);                        // tag s   Split: which of a directory's names are here
std::string provenance_key(InodeId inode);                 // tag v/<counter hex>  who opened it: lines of text (ttl)
std::string locks_key(InodeId inode);                      // tag f/<counter hex>  LockRecord (ttl)

// Keys of the whole file system.
inline constexpr const char* kNextHomeKey = "{fusionfs}next_home";  // decimal; the general procedure `add`
inline constexpr const char* kRenameLockKey =
    "{fusionfs}rename_lock";                                       // RenameLock; held while a directory changes its parent
inline constexpr const char* kSessionsKey = "{fusionfs}sessions";  // session ids, one fragment each
std::string session_key(std::uint64_t session);                    // ttl, kept alive by its mount
std::string session_orphans_key(std::uint64_t session);  // inode numbers (u64) that lost their last name while open

// File types are the upper bits of the mode, as in stat(2).
constexpr std::uint32_t kTypeMask = 0170000;
constexpr bool is_directory(std::uint32_t mode) { return (mode & kTypeMask) == 0040000; }
constexpr bool is_regular(std::uint32_t mode) { return (mode & kTypeMask) == 0100000; }
constexpr bool is_symlink(std::uint32_t mode) { return (mode & kTypeMask) == 0120000; }

// Nanoseconds since 1970, as every time here.
using Nanos = std::int64_t;

struct Inode {
  enum Flag : std::uint8_t {
    kInline = 1,         // `content` is the file
    kHasAttributes = 2,  // attributes_key() exists
    kDying = 4,          // a directory being removed: nothing may be created in it
    kCopied = 8,         // `copies` has some (set and cleared by encode())
    kLinked = 16,        // has had more than one link, or was promised one, at some time
  };
  InodeId id{};
  std::uint8_t flags = 0;
  std::uint16_t wanted = 0;  // chunk stores that were to have the content when it was written; 0: nobody said
  std::uint32_t mode = 0;
  std::uint32_t uid = 0, gid = 0;
  std::uint32_t links = 1;  // of a directory: computed from its listing (2 + directories in it)
  std::uint64_t device = 0;
  std::uint64_t size = 0;
  std::uint64_t blocks = 0;  // of 512 bytes, in the chunk store
  Nanos atime = 0, mtime = 0, ctime = 0, btime = 0;
  std::uint64_t store = 0;     // the chunk store (its random identity) that holds the content; 0: none yet
  InodeId parent{};            // directories
  std::uint64_t revision = 0;  // grows with every change: tells newer from older when answers overtake each other
  std::string content;         // symlink: target; kInline: the file; dying directory: Dying
  std::vector<std::uint64_t> copies;  // other chunk stores that have all of the content

  bool has(Flag flag) const { return (flags & flag) != 0; }
  // The chunk stores that have the content; none: it is inline, or there is none yet.
  std::vector<std::uint64_t> stores() const {
    std::vector<std::uint64_t> all;
    if (store != 0) all.push_back(store);
    if (store != 0) all.insert(all.end(), copies.begin(), copies.end());
    return all;
  }
};
std::string encode(const Inode& inode);
std::optional<Inode> decode_inode(InodeId id, Bytes bytes);  // nothing: damaged, or a newer format

// A name leaving for another directory (or being exchanged with one there).
struct Moving {
  std::uint64_t transfer = 0;  // random; transfer_key() in `to` decides
  Nanos since = 0;
  HomeId to{};
  std::string name;  // there
  bool exchange = false;
};
struct Entry {
  InodeId inode{};
  std::uint32_t type = 0;  // mode & kTypeMask
  std::optional<Moving> moving;
  std::optional<std::string> initial;  // directories: the encoded Inode that whoever misses it inserts
};
std::string encode(const Entry& entry);
std::optional<Entry> decode_entry(Bytes bytes);

// The listing is a log: names as they came and went. Its last record carries the state of the directory after it, so
// that a change costs one append and reads only the tail.
struct ListingRecord {
  enum class Kind : std::uint8_t { add = 1, remove = 2, state = 3 };
  Kind kind = Kind::state;
  std::uint32_t type = 0;      // of the named file
  std::uint64_t sequence = 0;  // grows by one; the readdir cursor of an added name
  InodeId inode{};
  Nanos mtime = 0, ctime = 0;              // of the directory, from here on
  std::uint32_t live = 0;                  // names
  std::uint32_t directories = 0;           // of them
  std::uint32_t next = kFirstFileCounter;  // inode counter
  std::uint32_t generation = 0;            // grows with each compaction
  std::uint32_t records = 0;               // in the listing, this one included
  std::string name;
};
void encode(const ListingRecord& record, std::string& out);
// Reads one record from the front of `in` and advances; nothing: damaged (or done, when `in` is empty).
std::optional<ListingRecord> decode_listing(Bytes& in);

// What a directory's removal needs to be finished or undone by whoever meets it.
struct Dying {
  bool by_rename = false;  // undone unless the transfer in `parent` was done
  std::uint64_t transfer = 0;
  HomeId parent{};
  std::string name;  // in `parent`
  Nanos since = 0;
};
std::string encode(const Dying& dying);
std::optional<Dying> decode_dying(Bytes bytes);

// A directory that grows is split: half of the names of one of its homes go to a new home, and so on. `next` and the
// following say that a split is under way (FORMAT.md, "Splitting"). Absent: all names are here.
struct Split {
  bool filling = false;     // this home is being filled by a split; its names do not count yet
  std::uint8_t base = 0;    // the bits of name_hash() that all names here have had in common from the beginning
  std::uint64_t prefix = 0;  // these bits
  InodeId directory{};
  std::vector<HomeId> children;  // the i-th has the names with bit base + i set (and those before it clear)
  HomeId next{};                 // being split off; kRootHome: none
  bool moved = false;            // the names are in `next`, what is left of them here is being removed
  Nanos since = 0;
  std::string dying;  // encode(Dying): the directory is being removed. (Its first home has that in its inode.)

  bool under_way() const { return next != kRootHome; }
  // Where to look for a name: nothing is here, else the home to ask.
  std::optional<HomeId> place(std::uint64_t hash) const;
  bool leaving(std::uint64_t hash) const;  // among the names that go to `next`
};
std::string encode(const Split& split);
std::optional<Split> decode_split(Bytes bytes);
std::uint64_t name_hash(Bytes name);

// While it lasts, only its session's mount changes the names of a home: so that mount knows which names there are
// without asking. Others wait for its end; for a minute after one had to, none is given.
struct Lease {
  std::uint64_t session = 0;
  Nanos until = 0, contended_until = 0;  // by the store's clock
};
inline constexpr Nanos kLeaseLife = 1'000'000'000;
inline constexpr Nanos kContended = 60'000'000'000;
inline constexpr Nanos kLongestLife = 60'000'000'000;  // of a session's locks, from when it last spoke up
std::string encode(const Lease& lease);
std::optional<Lease> decode_lease(Bytes bytes);

// Extended attributes of one inode, sorted by name.
using Attributes = std::vector<std::pair<std::string, std::string>>;
std::string encode(const Attributes& attributes);
std::optional<Attributes> decode_attributes(Bytes bytes);

// Applies what the directory's listing knows better than its record.
void overlay(Inode& directory, const ListingRecord& tail);

}  // namespace fusionfs

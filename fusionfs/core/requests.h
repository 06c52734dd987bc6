// What a mount asks of a directory shard: one request to one procedure, one reply, one round trip. Each struct lists
// its fields once; pack() and unpack() follow the list. Requests go to the procedure "fusionfs.<name>" on the home's
// tag.
//
//   auto arguments = pack(CreateRequest{.name = "a", .mode = S_IFREG | 0644, .now = t});
//   client.submit(Operation::update(tag_of(home), "fusionfs.create", arguments), [](Outcome outcome) {
//     auto reply = unpack<Reply>(outcome.value);   // reply->error is an errno
//   });
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fusionfs/core/format.h"

namespace fusionfs {

// A field that older builds neither send nor know: it stands last, is left out while it has its default, and has that where a
// request ends before it.
template <typename T>
struct Added {
  T& value;
};

class Packer {
 public:
  explicit Packer(std::string& out) : to_(out) {}
  template <typename... Fields>
  void operator()(const Fields&... fields) {
    (put(fields), ...);
  }

 private:
  void put(bool v) { to_.u8(v ? 1 : 0); }
  void put(std::uint8_t v) { to_.u8(v); }
  void put(std::uint32_t v) { to_.u32(v); }
  void put(std::int32_t v) { to_.u32(static_cast<std::uint32_t>(v)); }
  void put(std::uint64_t v) { to_.u64(v); }
  void put(std::int64_t v) { to_.u64(static_cast<std::uint64_t>(v)); }
  void put(InodeId v) { to_.u64(raw(v)); }
  void put(HomeId v) { to_.u64(raw(v)); }
  void put(const std::string& v) { to_.str(v); }
  void put(const Entry& v) { to_.str(encode(v)); }
  void put(const Inode& v) {
    to_.u64(raw(v.id));
    to_.str(encode(v));
  }
  void put(const Dying& v) { to_.str(encode(v)); }
  void put(const Split& v) { to_.str(encode(v)); }
  template <typename T>
  void put(const std::optional<T>& v) {
    to_.u8(v ? 1 : 0);
    if (v) put(*v);
  }
  template <typename T>
  void put(const std::vector<T>& v) {
    to_.u32(static_cast<std::uint32_t>(v.size()));
    for (const auto& each : v) put(each);
  }
  template <typename T>
  void put(const Added<T>& v) {
    if (v.value != T{}) put(v.value);
  }
  base::Writer to_;
};

class Unpacker {
 public:
  explicit Unpacker(Bytes in) : from_(in) {}
  template <typename... Fields>
  void operator()(Fields&&... fields) {
    (get(fields), ...);
  }
  bool done() const { return good_ && from_.done(); }

 private:
  void get(bool& v) { v = from_.u8() != 0; }
  void get(std::uint8_t& v) { v = from_.u8(); }
  void get(std::uint32_t& v) { v = from_.u32(); }
  void get(std::int32_t& v) { v = static_cast<std::int32_t>(from_.u32()); }
  void get(std::uint64_t& v) { v = from_.u64(); }
  void get(std::int64_t& v) { v = static_cast<std::int64_t>(from_.u64()); }
  void get(InodeId& v) { v = InodeId{from_.u64()}; }
  void get(HomeId& v) { v = HomeId{from_.u64()}; }
  void get(std::string& v) { v = from_.str(); }
  void get(Entry& v) { take(v, decode_entry(from_.str())); }
  void get(Inode& v) {
    const InodeId id{from_.u64()};
    take(v, decode_inode(id, from_.str()));
  }
  void get(Dying& v) { take(v, decode_dying(from_.str())); }
  void get(Split& v) { take(v, decode_split(from_.str())); }
  template <typename T>
  void get(std::optional<T>& v) {
    if (from_.u8() != 0) get(v.emplace());
  }
  template <typename T>
  void get(std::vector<T>& v) {
    const std::uint32_t count = from_.u32();
    for (std::uint32_t i = 0; i < count && good_ && from_.ok(); ++i) get(v.emplace_back());
  }
  template <typename T>
  void get(const Added<T>& v) {
    if (from_.left() > 0) get(v.value);
  }
  template <typename T>
  void take(T& v, std::optional<T> decoded) {
    if (decoded)
      v = std::move(*decoded);
    else
      good_ = false;
  }
  base::Reader from_;
  bool good_ = true;
};

template <typename Message>
std::string pack(const Message& message) {
  std::string out;
  Packer to(out);
  const_cast<Message&>(message).fields(to);
  return out;
}
template <typename Message>
std::optional<Message> unpack(Bytes bytes) {
  Message message;
  Unpacker from(bytes);
  message.fields(from);
  if (!from.done()) return std::nullopt;
  return message;
}

// The answer of every procedure. `error` 0: done; else an errno, and nothing was changed. Some errnos are ours:
//   EAGAIN       `entry` (or `other_entry`) is moving, or a removal is under way in `inode`: settle that, then ask
//   again EINPROGRESS  the directory `other_entry` would be replaced: mark it dying first, then ask again ESTALE the
//   directory is being removed; `inode` is its record
//   EREMCHG      the name is in another home: `shards` tells which
//   EXFULL       the name is on its way to another home (a split is under way)
//   ECANCELED    what was to arrive here has been called off, or `fence` was not this home's: `debt` is
struct Reply {
  std::int32_t error = 0;
  std::optional<Entry> entry;        // found, made or removed
  std::optional<Inode> inode;        // its inode as it is now, when it lives in this home
  std::optional<Entry> other_entry;  // rename: what was replaced, or stands in the way
  std::optional<Inode> other;        // its inode as it is now, when it lives in this home
  // The inode that lost a link was removed with its last: its chunks can go. With ENOENT: the directory itself is not there.
  bool gone = false;
  // rename and transfers: the move took place; commit: `inode` comes without its content, which is what the asker has.
  bool done = false;
  std::uint64_t debt = 0;            // a link is to be taken off an inode of another home; pay: the debt is noted as paid
  std::uint64_t sequence = 0;        // changes of names, and what is said of a directory: the last listing record's
  Nanos lease_left = 0;              // the asking session holds the directory's lease for this long
  Nanos wait = 0;                    // EUSERS: another session's lease ends after this
  std::vector<Inode> inodes;
  bool sharded = false;          // changes of names: the directory has, or is getting, more than this home
  std::uint32_t live = 0;        // changes of names: how many are here now
  Nanos changed = 0;             // changes of names: the directory's mtime and ctime by them
  Nanos left = 0;                // (by Metadata::rename, not sent) the same of the directory that the name left
  std::uint8_t shard_base = 0;   // of the Split of the home that answers
  std::vector<HomeId> shards;    // its children
  std::vector<Entry> entries;    // split_read: one for each name asked for that is here ...
  std::vector<std::string> names;  // ... and its name
  // Sessions that may have the inode open that has lost its last name: each is to be told, and lets go of it.
  std::vector<std::uint64_t> keepers;
  template <typename A>
  void fields(A& a) {
    a(error, entry, inode, other_entry, other, gone, done, debt, sequence, lease_left, wait, inodes, sharded, live,
      changed, shard_base, shards, entries, names, keepers);
  }
};

struct NameRequest {  // lookup
  std::string name;
  template <typename A>
  void fields(A& a) {
    a(name);
  }
};
// open: what `name` leads to, or `inode` (or neither); and the asking mount is an opener of this home from now on (core/openers.h).
struct OpenRequest {
  std::string name;
  InodeId inode{};
  std::uint64_t session = 0;
  bool opens_now = false;  // while a change of names of its own is under way
  template <typename A>
  void fields(A& a) {
    a(name, inode, session, opens_now);
  }
};
struct CreateRequest {  // create
  std::string name;
  std::uint32_t mode = 0;  // with the type
  std::uint32_t uid = 0, gid = 0;
  std::uint64_t device = 0;
  Nanos now = 0;
  std::string target;         // of a symlink
  InodeId directory{};        // of a directory: its number, from a new home
  std::uint64_t session = 0;  // of the mount that asks: it is given, and holds, the lease
  // Of the directory in which it is made, as last known: where its own record is in another home.
  std::uint32_t parent_mode = 0, parent_gid = 0;
  std::uint64_t opener = 0;  // the session that opens what is made; 0: it is not opened, or the session is known as an opener
  bool opens_now = false;    // as of OpenRequest
  template <typename A>
  void fields(A& a) {
    a(name, mode, uid, gid, device, now, target, directory, session, parent_mode, parent_gid, opener, opens_now);
  }
};
struct UnlinkRequest {  // unlink; remove_directory
  std::string name;
  Nanos now = 0;
  std::vector<InodeId> held;  // open in the mount: keep the inode when its last name goes
  InodeId directory{};        // remove_directory: only if the name still means this
  std::uint64_t session = 0;  // of the mount that asks: it is given, and holds, the lease
  template <typename A>
  void fields(A& a) {
    a(name, now, held, directory, session);
  }
};
inline constexpr std::uint32_t kNoReplace = 1, kExchange = 2;  // as RENAME_NOREPLACE and RENAME_EXCHANGE
struct RenameRequest {                                         // rename: within one home
  std::string from, to;
  std::uint32_t flags = 0;
  Nanos now = 0;
  std::vector<InodeId> held;
  InodeId dying{};  // the directory at `to`, which the caller has marked under `transfer`
  std::uint64_t transfer = 0;
  std::uint64_t session = 0;  // of the mount that asks: it is given, and holds, the lease
  std::uint64_t fence = 0;    // with `dying`: the home's, as known before that was marked
  template <typename A>
  void fields(A& a) {
    a(from, to, flags, now, held, dying, transfer, session, Added<std::uint64_t>{fence});
  }
};
struct TransferRequest {  // move_begin, move_end, move_undo in the home left; move_install, move_cancel in the one
                          // entered
  std::uint64_t transfer = 0;
  std::string name;  // in the home asked
  Nanos now = 0;
  std::uint32_t flags = 0;
  HomeId to{};                 // the home at the other end: move_begin where it goes, move_install where it comes from
  std::string to_name;         // the name there
  std::optional<Entry> entry;  // move_install: what arrives; move_end: what was exchanged for it
  std::vector<InodeId> held;
  InodeId dying{};
  std::uint64_t session = 0;  // of the mount that asks: it is given, and holds, the lease
  std::uint64_t fence = 0;    // move_install: of the home asked, as known before the name left was marked
  template <typename A>
  void fields(A& a) {
    a(transfer, name, now, flags, to, to_name, entry, held, dying, session, Added<std::uint64_t>{fence});
  }
};
struct LinkRequest {  // link (within one home), promise_link, add_entry, settle_link
  InodeId inode{};
  std::string name;
  std::uint32_t type = 0;
  Nanos now = 0;
  std::uint64_t id = 0;       // of the promise
  HomeId to{};                // promise_link: where the name will be
  bool undo = false;          // settle_link
  std::uint64_t session = 0;  // of the mount that asks: it is given, and holds, the lease
  std::uint64_t fence = 0;    // add_entry: of the home asked, as known before the link was promised
  template <typename A>
  void fields(A& a) {
    a(inode, name, type, now, id, to, undo, session, Added<std::uint64_t>{fence});
  }
};
struct PayRequest {  // pay: takes off the link that the debt `id` of home `debtor` is about
  InodeId inode{};
  std::uint64_t id = 0;
  HomeId debtor{};
  Nanos now = 0;
  std::vector<InodeId> held;
  std::uint64_t revision = 0;  // of the inode, read before the debt was seen to be there; 0: not read
  std::uint64_t session = 0;  // of the mount that asks
  template <typename A>
  void fields(A& a) {
    a(inode, id, debtor, now, held, revision, session);
  }
};
// What the rename lock says: whoever takes it over calls `transfer`, which was to arrive in `to`, off first.
struct RenameLock {
  std::uint64_t owner = 0, transfer = 0;
  HomeId from{}, to{};
  std::string name;  // in `from`
  Nanos since = 0;
  template <typename A>
  void fields(A& a) {
    a(owner, transfer, from, to, name, since);
  }
};
struct DropRequest {  // pay_debt (of mounts of older builds), reap
  InodeId inode{};
  std::uint64_t id = 0;
  Nanos now = 0;
  std::vector<InodeId> held;
  std::uint64_t session = 0;  // of the mount that asks
  template <typename A>
  void fields(A& a) {
    a(inode, id, now, held, session);
  }
};
struct SetRequest {  // setattr
  enum Field : std::uint32_t {
    kMode = 1,
    kUid = 2,
    kGid = 4,
    kSize = 8,
    kAtime = 16,
    kMtime = 32,
    kParent = 64,
    kLinks = 128,
    kKeepCtime = 256  // of reading: only when it was read last is noted
  };
  InodeId inode{};
  std::uint32_t fields_set = 0;
  std::uint32_t mode = 0;  // permission bits only
  std::uint32_t uid = 0, gid = 0;
  std::uint64_t size = 0;
  Nanos atime = 0, mtime = 0;
  Nanos now = 0;  // ctime
  InodeId parent{};
  std::uint32_t links = 0;  // kLinks: fsck only, and only while the record is at `revision`
  std::uint64_t revision = 0;
  template <typename A>
  void fields(A& a) {
    a(inode, fields_set, mode, uid, gid, size, atime, mtime, now, parent, links, revision);
  }
};
struct CommitRequest {  // commit: what writing has changed
  InodeId inode{};
  std::uint64_t size = 0;  // the file is at least this long now
  std::uint64_t blocks = 0;
  Nanos mtime = 0;
  std::uint64_t store = 0;   // not 0: the content is in this chunk store from now on, no longer inline
  std::uint64_t offset = 0;  // inline: bytes to put at `offset`
  std::string bytes;
  std::uint64_t appended_by = 0;  // session: its right to append ends with this
  // With `store`: the stores that have got everything that was written; others have no copy any more.
  std::vector<std::uint64_t> wrote;
  // Stores that have been given a copy, of this `revision` of the file. Nothing else changes. EAGAIN: it has changed.
  std::vector<std::uint64_t> copied;
  // With `bytes`: the revision that the asker had before; then the answer needs no content.
  std::uint64_t revision = 0;
  std::uint32_t replicas = 0;  // with `store` or `copied`: how many stores are to have the content; 0: as it was
  template <typename A>
  void fields(A& a) {
    a(inode, size, blocks, mtime, store, offset, bytes, appended_by, wrote, copied, revision, Added<std::uint32_t>{replicas});
  }
};
struct AttributeRequest {  // set_attribute, remove_attribute
  InodeId inode{};
  std::string name, value;
  std::uint32_t flags = 0;  // XATTR_CREATE 1, XATTR_REPLACE 2
  Nanos now = 0;
  std::optional<std::uint32_t> mode;  // permission bits that an access control list implies
  template <typename A>
  void fields(A& a) {
    a(inode, name, value, flags, now, mode);
  }
};
struct InodesRequest {  // attributes
  std::vector<InodeId> inodes;
  template <typename A>
  void fields(A& a) {
    a(inodes);
  }
};
struct SplitRequest {  // split_begin, split_read, split_install, split_done, split_finish
  HomeId next{};       // the home that is split off
  Nanos now = 0;
  std::uint64_t session = 0;
  Split split;                     // split_install: of the home asked
  std::vector<std::string> names;  // split_read, split_install, split_finish
  std::vector<Entry> entries;      // split_install: of `names`
  bool last = false;               // split_finish: all other names have been removed
  template <typename A>
  void fields(A& a) {
    a(next, now, session, split, names, entries, last);
  }
};
struct DirectoryRequest {  // make_directory, mark_dying, unmark_dying, drop_directory, stat_directory, touch_directory
  std::optional<Inode> inode;
  std::optional<Dying> dying;
  Nanos mtime = 0, ctime = 0;  // touch_directory
  template <typename A>
  void fields(A& a) {
    a(inode, dying, mtime, ctime);
  }
};

}  // namespace fusionfs

// Who has locked which bytes of a file, on any mount: one record beside the inode, changed by one procedure.
//
//   fcntl(F_SETLK)   record locks: an owner's own never conflict; they are split and merged as ranges are given back
//   flock(2)         whole files; they do not see record locks, nor the other way round
//   append           a mount's right to be the only one that appends (O_APPEND), so that no two write at one offset
//
// A session's locks live as long as it says every now and then that it does (LocksRequest): those of a mount that was
// killed end with its lease, by the store's clock. Everything here is bytes in, bytes out.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "fusionfs/core/requests.h"
#include "zht/procedure.h"

namespace fusionfs {

inline constexpr std::uint64_t kLockToEnd = ~std::uint64_t{0};
inline constexpr std::size_t kMostLocks = 16'384;  // of one file

struct FileLock {
  enum class Kind : std::uint8_t { record = 0, flock = 1, append = 2 };
  enum class Type : std::uint8_t { shared = 0, exclusive = 1, none = 2 };
  Kind kind = Kind::record;
  Type type = Type::shared;
  std::uint64_t session = 0;  // of the mount
  std::uint64_t owner = 0;    // in that mount: a process's files, an open file
  std::uint32_t pid = 0;
  std::uint64_t first = 0, last = kLockToEnd;  // bytes, both included
  bool operator==(const FileLock&) const = default;

  bool same_owner(const FileLock& other) const {
    return kind == other.kind && session == other.session && owner == other.owner;
  }
  bool overlaps(const FileLock& other) const { return first <= other.last && other.first <= last; }
};

// The first lock that does not allow `wanted`.
const FileLock* conflict_of(const std::vector<FileLock>& locks, const FileLock& wanted);
// Sets `lock` (Type::none: takes away) in place of what its owner has in its range; neighbours that are alike become one.
void set_lock(std::vector<FileLock>& locks, const FileLock& lock);

struct LockRecord {
  std::map<std::uint64_t, Nanos> sessions;  // until when they live
  Nanos contended_until = 0;                // appending: somebody had to wait; nobody keeps it longer than one write
  std::vector<FileLock> locks;
};
std::string encode(const LockRecord& record);
std::optional<LockRecord> decode_lock_record(Bytes bytes);

struct LockRequest {  // lock
  enum Action : std::uint8_t {
    set = 0,       // EAGAIN with what stands in the way
    test = 1,      // the same answer, and nothing changes
    drop_all = 2,  // every lock of the session (and of the owner, unless 0) of the kind
  };
  InodeId inode{};
  std::uint8_t action = set;
  std::uint8_t kind = 0, type = 0;
  std::uint64_t session = 0, owner = 0;
  std::uint32_t pid = 0;
  std::uint64_t first = 0, last = kLockToEnd;
  Nanos life = 0;
  bool tell_inode = false;
  template <typename A>
  void fields(A& a) {
    a(inode, action, kind, type, session, owner, pid, first, last, life, tell_inode);
  }
};
FileLock lock_of(const LockRequest& request);

struct LockReply {
  std::int32_t error = 0;  // EAGAIN, ENOLCK (too many), ENOENT (appending: no such inode)
  // EAGAIN: what stands in the way, and when it ends unless its mount renews it.
  std::uint8_t type = 0;
  std::uint64_t session = 0, owner = 0;
  std::uint32_t pid = 0;
  std::uint64_t first = 0, last = 0;
  Nanos wait = 0;
  std::uint64_t version = 0;  // of the record: what to wait for a change after. 0: changed by this very request
  bool contended = false;
  std::optional<Inode> inode;
  std::vector<InodeId> lost;  // lock_renew: no lock of the session is left there
  template <typename A>
  void fields(A& a) {
    a(error, type, session, owner, pid, first, last, wait, version, contended, inode, lost);
  }
};

struct LocksRequest {  // lock_renew: of inodes of one home
  std::uint64_t session = 0;
  Nanos life = 0;
  std::vector<InodeId> inodes;
  template <typename A>
  void fields(A& a) {
    a(session, life, inodes);
  }
};

base::Result<LockReply> lock_file(zht::Transaction& tables, HomeId home, const LockRequest& request);
base::Result<LockReply> renew_locks(zht::Transaction& tables, HomeId home, const LocksRequest& request);
// Takes the session's right to append away (after the commit of what it appended).
base::Result<void> end_append(zht::Transaction& tables, InodeId inode, std::uint64_t session);

}  // namespace fusionfs

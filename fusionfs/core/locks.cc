#include "fusionfs/core/locks.h"

#include <algorithm>
#include <cerrno>

namespace fusionfs {

using base::Code;
using base::fail;
using base::Result;

namespace {

constexpr std::uint8_t kLockFormat = 1;

Result<LockRecord> read_record(zht::Transaction& tables, InodeId inode, std::uint64_t* version = nullptr) {
  const auto found = tables.lookup(locks_key(inode));
  if (!found) return LockRecord{};
  if (version != nullptr) *version = found->version;
  auto record = decode_lock_record(found->value);
  if (!record) return fail(Code::corrupt, "locks of inode ", raw(inode), ": damaged, or of a newer format");
  return std::move(*record);
}

// Sessions without locks are forgotten, and the record with the last one.
Result<void> write_record(zht::Transaction& tables, InodeId inode, LockRecord& record) {
  const Nanos now = tables.now().time_since_epoch().count();
  std::erase_if(record.sessions, [&](const auto& session) {
    return std::none_of(record.locks.begin(), record.locks.end(),
                        [&](const FileLock& each) { return each.session == session.first; });
  });
  Nanos until = record.contended_until;
  for (const auto& [session, end] : record.sessions) until = std::max(until, end);
  if (until <= now) return tables.remove(locks_key(inode));
  const auto life = std::chrono::ceil<std::chrono::milliseconds>(std::chrono::nanoseconds(until - now));
  return tables.insert(locks_key(inode), encode(record), life + std::chrono::milliseconds(1));
}

void drop_dead(LockRecord& record, Nanos now) {
  std::erase_if(record.sessions, [&](const auto& each) { return each.second <= now; });
  std::erase_if(record.locks, [&](const FileLock& each) { return record.sessions.count(each.session) == 0; });
}

}  // namespace

const FileLock* conflict_of(const std::vector<FileLock>& locks, const FileLock& wanted) {
  for (const FileLock& each : locks) {
    if (each.kind != wanted.kind || each.same_owner(wanted) || !each.overlaps(wanted)) continue;
    if (each.type == FileLock::Type::exclusive || wanted.type == FileLock::Type::exclusive) return &each;
  }
  return nullptr;
}

void set_lock(std::vector<FileLock>& locks, const FileLock& lock) {
  std::vector<FileLock> after;
  FileLock merged = lock;
  for (FileLock& each : locks) {
    if (!each.same_owner(lock)) {
      after.push_back(each);
      continue;
    }
    const bool touches = each.overlaps(lock) || (each.last != kLockToEnd && each.last + 1 == lock.first) ||
                         (lock.last != kLockToEnd && lock.last + 1 == each.first);
    if (touches && each.type == lock.type) {
      merged.first = std::min(merged.first, each.first);
      merged.last = std::max(merged.last, each.last);
      continue;
    }
    if (!each.overlaps(lock)) {
      after.push_back(each);
      continue;
    }
    if (each.first < lock.first) {
      FileLock before = each;
      before.last = lock.first - 1;
      after.push_back(before);
    }
    if (each.last > lock.last) {
      each.first = lock.last + 1;
      after.push_back(each);
    }
  }
  if (lock.type != FileLock::Type::none) after.push_back(merged);
  locks = std::move(after);
}

std::string encode(const LockRecord& record) {
  std::string out;
  base::Writer to(out);
  to.u8(kLockFormat);
  to.u64(static_cast<std::uint64_t>(record.contended_until));
  to.u32(static_cast<std::uint32_t>(record.sessions.size()));
  for (const auto& [session, until] : record.sessions) {
    to.u64(session);
    to.u64(static_cast<std::uint64_t>(until));
  }
  to.u32(static_cast<std::uint32_t>(record.locks.size()));
  for (const FileLock& each : record.locks) {
    to.u8(static_cast<std::uint8_t>(each.kind));
    to.u8(static_cast<std::uint8_t>(each.type));
    to.u64(each.session);
    to.u64(each.owner);
    to.u32(each.pid);
    to.u64(each.first);
    to.u64(each.last);
  }
  return out;
}

std::optional<LockRecord> decode_lock_record(Bytes bytes) {
  base::Reader from(bytes);
  LockRecord record;
  if (from.u8() != kLockFormat) return std::nullopt;
  record.contended_until = static_cast<Nanos>(from.u64());
  const std::uint32_t sessions = from.u32();
  for (std::uint32_t i = 0; i < sessions && from.ok(); ++i) {
    const std::uint64_t session = from.u64();
    record.sessions[session] = static_cast<Nanos>(from.u64());
  }
  const std::uint32_t locks = from.u32();
  for (std::uint32_t i = 0; i < locks && from.ok(); ++i) {
    FileLock lock;
    lock.kind = static_cast<FileLock::Kind>(from.u8());
    lock.type = static_cast<FileLock::Type>(from.u8());
    lock.session = from.u64();
    lock.owner = from.u64();
    lock.pid = from.u32();
    lock.first = from.u64();
    lock.last = from.u64();
    record.locks.push_back(lock);
  }
  if (!from.done()) return std::nullopt;
  return record;
}

FileLock lock_of(const LockRequest& request) {
  FileLock lock;
  lock.kind = static_cast<FileLock::Kind>(request.kind);
  lock.type = static_cast<FileLock::Type>(request.type);
  lock.session = request.session;
  lock.owner = request.owner;
  lock.pid = request.pid;
  lock.first = request.first;
  lock.last = request.last;
  return lock;
}

Result<LockReply> lock_file(zht::Transaction& tables, HomeId home, const LockRequest& request) {
  if (home_of(request.inode) != home || request.kind > 2 || request.type > 2 || request.session == 0 ||
      request.first > request.last) {
    return fail(Code::invalid, "lock of inode ", raw(request.inode), ": kind ", int{request.kind}, ", type ",
                int{request.type}, ", bytes ", request.first, " to ", request.last, ", session ", request.session);
  }
  LockReply reply;
  if (request.tell_inode) {
    const auto found = tables.lookup(inode_key(request.inode));
    if (!found) {
      reply.error = ENOENT;
      return reply;
    }
    reply.inode = decode_inode(request.inode, found->value);
    if (!reply.inode)
      return fail(Code::corrupt, "inode ", raw(request.inode), ": damaged, or of a newer format");
  }
  TRY_LET(record, read_record(tables, request.inode, &reply.version));
  const Nanos now = tables.now().time_since_epoch().count();
  // A clock that was set back, or that of another node which leads now, must not stretch what there is.
  record.contended_until = std::min(record.contended_until, now + kContended);
  bool stretched = false;
  for (auto& [session, until] : record.sessions) {
    stretched = stretched || until > now + kLongestLife;
    until = std::min(until, now + kLongestLife);
  }
  drop_dead(record, now);
  const FileLock lock = lock_of(request);
  if (request.action == LockRequest::drop_all) {
    std::erase_if(record.locks, [&](const FileLock& each) {
      return each.session == lock.session && each.kind == lock.kind && (lock.owner == 0 || each.owner == lock.owner);
    });
    TRY(write_record(tables, request.inode, record));
    return reply;
  }
  const bool appending = lock.kind == FileLock::Kind::append;
  if (lock.type != FileLock::Type::none) {
    if (const FileLock* other = conflict_of(record.locks, lock)) {
      reply.error = EAGAIN;
      reply.type = static_cast<std::uint8_t>(other->type);
      reply.session = other->session;
      reply.owner = other->owner;
      reply.pid = other->pid;
      reply.first = other->first;
      reply.last = other->last;
      reply.wait = std::max<Nanos>(record.sessions[other->session] - now, 1);
      if (request.action == LockRequest::test) return reply;
      // flock(2) changes a lock by giving it up first: two that both want more would else wait for each other for ever.
      const bool given_up = lock.kind == FileLock::Kind::flock &&
                            std::erase_if(record.locks, [&](const FileLock& each) { return each.same_owner(lock); }) > 0;
      const bool first_to_wait = appending && record.contended_until < now + kContended / 2;
      if (first_to_wait) record.contended_until = now + kContended;
      if (given_up || first_to_wait || stretched) {
        reply.version = 0;
        TRY(write_record(tables, request.inode, record));
      }
      return reply;
    }
  }
  reply.contended = record.contended_until > now;
  if (request.action == LockRequest::test) return reply;
  set_lock(record.locks, lock);
  if (record.locks.size() > kMostLocks) {
    reply.error = ENOLCK;
    return reply;
  }
  if (request.life > 0) {
    const Nanos life = std::min(request.life, kLongestLife);
    record.sessions[lock.session] = std::max(record.sessions[lock.session], now + life);
  }
  TRY(write_record(tables, request.inode, record));
  return reply;
}

Result<LockReply> renew_locks(zht::Transaction& tables, HomeId home, const LocksRequest& request) {
  LockReply reply;
  const Nanos now = tables.now().time_since_epoch().count();
  const Nanos life = std::min(std::max<Nanos>(request.life, 1), kLongestLife);
  for (const InodeId inode : request.inodes) {
    if (home_of(inode) != home) return fail(Code::invalid, "inode ", raw(inode), " does not live in ", tag_of(home));
    TRY_LET(record, read_record(tables, inode));
    drop_dead(record, now);
    if (record.sessions.count(request.session) == 0) {
      reply.lost.push_back(inode);
      continue;
    }
    record.sessions[request.session] = now + life;
    TRY(write_record(tables, inode, record));
  }
  return reply;
}

Result<void> end_append(zht::Transaction& tables, InodeId inode, std::uint64_t session) {
  TRY_LET(record, read_record(tables, inode));
  const std::size_t before = record.locks.size();
  std::erase_if(record.locks, [&](const FileLock& each) {
    return each.session == session && each.kind == FileLock::Kind::append;
  });
  if (record.locks.size() == before) return {};
  return write_record(tables, inode, record);
}

}  // namespace fusionfs

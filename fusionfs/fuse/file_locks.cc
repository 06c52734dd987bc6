#include "fusionfs/fuse/file_locks.h"

#include <algorithm>
#include <cerrno>

#include "fusionfs/core/metadata.h"

namespace fusionfs {

using zht::Condition;
using zht::Operation;
using zht::Outcome;

namespace {

constexpr std::chrono::milliseconds kWaitRecordLife{20'000};
constexpr std::chrono::milliseconds kLongestWait{5'000};  // then the record of who waits is written anew
constexpr int kLongestCircle = 64;
constexpr std::size_t kMostProcesses = 4096;  // that are known to close descriptors: forgotten, a trial lock may take 20 ms
constexpr std::chrono::milliseconds kAppendLife{10'000};
constexpr int kAppendRounds = 10'000;

// Who waits for whom: u64 session, u64 owner.
std::string waits_key(std::uint64_t session, std::uint64_t owner) {
  std::string bytes;
  base::Writer(bytes).u64(session);
  base::Writer(bytes).u64(owner);
  return "{fw:" + base::to_hex(bytes) + "}";
}

// A callback that interrupt() ends.
class Interruptible {
 public:
  Interruptible(zht::Client& client, Operation operation, zht::Millis timeout, FileLocks::Wait& wait)
      : meeting_(std::make_shared<Meeting>()) {
    const std::lock_guard lock(wait.mutex);
    if (wait.interrupted) {
      meeting_->reply();
      return;
    }
    wait.request = client.start(std::move(operation), [meeting = meeting_](const Outcome&) { meeting->reply(); }, timeout);
  }
  bool await_ready() const noexcept { return meeting_->replied(); }
  bool await_suspend(std::coroutine_handle<> waiter) noexcept {
    const std::shared_ptr<Meeting> meeting = meeting_;  // a copy: the coroutine may go on and destroy this object
    return meeting->wait(waiter);
  }
  void await_resume() const noexcept {}

 private:
  std::shared_ptr<Meeting> meeting_;
};

bool interrupted(FileLocks::Wait& wait) {
  const std::lock_guard lock(wait.mutex);
  return wait.interrupted;
}

}  // namespace

FileLocks::FileLocks(zht::Client& client, const base::Clock& clock, Options options)
    : client_(client), clock_(clock), options_(std::move(options)) {}

void FileLocks::interrupt(Wait& wait) {
  zht::RequestNumber request = 0;
  {
    const std::lock_guard lock(wait.mutex);
    wait.interrupted = true;
    request = std::exchange(wait.request, 0);
  }
  if (request != 0) client_.cancel(request);
}

void FileLocks::stop() {
  std::set<std::shared_ptr<Wait>> waits;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    waits = waits_;
  }
  for (const auto& each : waits) interrupt(*each);
}

LockRequest FileLocks::request_for(InodeId inode, const FileLock& lock) const {
  LockRequest request;
  request.inode = inode;
  request.kind = static_cast<std::uint8_t>(lock.kind);
  request.type = static_cast<std::uint8_t>(lock.type);
  request.session = options_.session;
  request.owner = lock.owner;
  request.pid = lock.pid;
  request.first = lock.first;
  request.last = lock.last;
  request.life = std::chrono::nanoseconds(options_.life).count();
  return request;
}

Task<LockReply> FileLocks::ask(LockRequest request) {
  Call call(client_, Operation::update(tag_of(home_of(request.inode)), "fusionfs.lock", pack(request)));
  const Outcome outcome = co_await call;
  LockReply reply;
  reply.error = EIO;
  if (outcome.ok()) {
    if (auto read = unpack<LockReply>(outcome.value)) reply = std::move(*read);
  } else if (options_.warn) {
    options_.warn("lock of inode " + std::to_string(raw(request.inode)) + ": " + outcome.message);
    reply.error = errno_of(outcome);
  }
  co_return reply;
}

void FileLocks::remember(InodeId inode, const FileLock& lock) {
  const std::lock_guard guard(mutex_);
  auto& locks = held_[inode];
  set_lock(locks, lock);
  if (locks.empty()) held_.erase(inode);
}

std::uint64_t FileLocks::releases_ended() const {
  const std::lock_guard lock(mutex_);
  return releases_;
}

bool FileLocks::holds(InodeId inode, FileLock::Kind kind, std::uint64_t owner) const {
  const std::lock_guard lock(mutex_);
  const auto found = held_.find(inode);
  if (found == held_.end()) return false;
  return std::any_of(found->second.begin(), found->second.end(), [&](const FileLock& each) {
    return each.kind == kind && (owner == 0 || each.owner == owner);
  });
}

std::set<std::uint64_t> FileLocks::begin_release(std::uint64_t handle) {
  const std::lock_guard lock(mutex_);
  const auto found = by_handle_.find(handle);
  if (found == by_handle_.end()) return {};
  std::set<std::uint64_t> owners = std::move(found->second.owners);
  by_handle_.erase(found);
  released_.insert(owners.begin(), owners.end());
  return owners;
}

void FileLocks::end_release(const std::set<std::uint64_t>& owners) {
  const std::lock_guard lock(mutex_);
  for (const std::uint64_t owner : owners) released_.erase(released_.find(owner));
  releases_ += !owners.empty();
}

void FileLocks::closed(InodeId inode, std::uint64_t owner) {
  const std::lock_guard lock(mutex_);
  if (by_handle_.empty()) return;  // no locks are in use
  if (processes_.size() >= kMostProcesses) processes_.clear();
  processes_.insert(owner);
  for (auto at = by_handle_.begin(); at != by_handle_.end();) {
    if (at->second.inode == inode) at->second.owners.erase(owner);
    at = at->second.owners.empty() ? by_handle_.erase(at) : std::next(at);
  }
}

Task<int> FileLocks::wait_for_change(InodeId inode, const LockReply& met, std::shared_ptr<Wait> wait) {
  if (met.version == 0) co_return 0;  // changed by the very request: ask again
  const auto left = std::chrono::ceil<zht::Millis>(std::chrono::nanoseconds(met.wait));
  Interruptible changed(
      client_, Operation::callback(locks_key(inode), Condition::after_version(met.version), zht::Range::nothing()),
      std::clamp(left + zht::Millis(1), zht::Millis(10), kLongestWait), *wait);
  co_await changed;
  co_return 0;
}

// Whether whoever holds what `self` waits for waits, in the end, for `self`. `last`: of those in the circle `self` is the
// one that gives way.
Task<bool> FileLocks::in_a_circle(FileLock self, LockReply met, bool& last) {
  std::uint64_t session = met.session, owner = met.owner;
  last = true;
  for (int depth = 0; depth < kLongestCircle; ++depth) {
    if (session == self.session && owner == self.owner) co_return true;
    if (std::pair(session, owner) > std::pair(self.session, self.owner)) last = false;
    Call call(client_, Operation::lookup(waits_key(session, owner)));
    const Outcome found = co_await call;
    if (!found.ok()) co_return false;
    base::Reader from(found.value);
    session = from.u64();
    owner = from.u64();
    if (!from.done()) co_return false;
  }
  co_return false;
}

Task<int> FileLocks::lock(InodeId inode, FileLock lock, bool sleep, std::shared_ptr<Wait> wait, std::uint64_t handle) {
  lock.session = options_.session;
  const LockRequest request = request_for(inode, lock);
  const std::string edge = waits_key(lock.session, lock.owner);
  const bool noted = handle != 0 && lock.kind == FileLock::Kind::record;
  bool waits = false, tried_again = false;
  int circles = 0, error = 0;
  for (;;) {
    const std::uint64_t releases = releases_ended();
    LockReply reply = co_await ask(request);
    error = reply.error;
    if (error == 0) break;
    if (error == EAGAIN && lock.kind == FileLock::Kind::flock) {
      FileLock none = lock;  // what was held has been given up
      none.type = FileLock::Type::none;
      remember(inode, none);
    }
    if (error != EAGAIN) break;
    if (!sleep) {
      // A file that was closed without a word (read-only, or nothing left to commit; or its locks are its own, not a process's)
      // is on its way to be released.
      bool closing = false, released = false;
      if (reply.session == options_.session) {
        const std::lock_guard guard(mutex_);
        released = released_.contains(reply.owner) || releases_ != releases;
        closing = released || std::any_of(by_handle_.begin(), by_handle_.end(),
                              [&](const auto& each) {
                                return each.second.owners.count(reply.owner) > 0 &&
                                       ((each.first & kSilent) != 0 || processes_.count(reply.owner) == 0);
                              });
      }
      if (!released && (!closing || std::exchange(tried_again, true))) break;
      reply.wait = std::chrono::nanoseconds(std::chrono::milliseconds(20)).count();
      co_await wait_for_change(inode, reply, wait);
      continue;
    }
    if (!waits) {
      const std::lock_guard guard(mutex_);
      if (stopped_) error = EINTR;
      if (stopped_) break;
      waits_.insert(wait);
      waits = true;
    }
    if (lock.kind == FileLock::Kind::record) {
      std::string whom;
      base::Writer(whom).u64(reply.session);
      base::Writer(whom).u64(reply.owner);
      Call written(client_, Operation::insert(edge, whom, kWaitRecordLife));
      co_await written;
      bool last = false;
      const bool circle = co_await in_a_circle(lock, reply, last);
      // Seen twice, some time apart: a lock that has just been given need not have been taken off the list of waits yet.
      // Of a circle's members one gives way; the others go on waiting unless it does not.
      if (circle && ++circles > (last ? 1 : 8)) {
        error = EDEADLK;
        break;
      }
      if (circle) reply.wait = std::chrono::nanoseconds(std::chrono::milliseconds(100)).count();
      if (!circle) circles = 0;
    }
    co_await wait_for_change(inode, reply, wait);
    if (interrupted(*wait)) {
      error = EINTR;
      break;
    }
  }
  if (waits) {
    if (lock.kind == FileLock::Kind::record) {
      Call removed(client_, Operation::remove(edge, true));
      co_await removed;
    }
    const std::lock_guard guard(mutex_);
    waits_.erase(wait);
  }
  if (error != 0) co_return error;
  remember(inode, lock);
  if (noted && lock.type != FileLock::Type::none) {
    const std::lock_guard guard(mutex_);
    by_handle_[handle].inode = inode;
    by_handle_[handle].owners.insert(lock.owner);
  }
  co_return 0;
}

Task<FileLocks::Tested> FileLocks::test(InodeId inode, FileLock lock) {
  lock.session = options_.session;
  LockRequest request = request_for(inode, lock);
  request.action = LockRequest::test;
  const LockReply reply = co_await ask(request);
  Tested tested;
  tested.lock.type = FileLock::Type::none;
  if (reply.error == EAGAIN) {
    tested.lock = lock;
    tested.lock.type = static_cast<FileLock::Type>(reply.type);
    tested.lock.session = reply.session;
    tested.lock.owner = reply.owner;
    tested.lock.pid = reply.pid;
    tested.lock.first = reply.first;
    tested.lock.last = reply.last;
  } else {
    tested.error = reply.error;
  }
  co_return tested;
}

Task<int> FileLocks::drop(InodeId inode, FileLock::Kind kind, std::uint64_t owner) {
  if (kind != FileLock::Kind::append && !holds(inode, kind, owner)) co_return 0;
  FileLock lock;
  lock.kind = kind;
  lock.owner = owner;
  LockRequest request = request_for(inode, lock);
  request.action = LockRequest::drop_all;
  const LockReply reply = co_await ask(request);
  if (reply.error == 0) {
    const std::lock_guard guard(mutex_);
    const auto found = held_.find(inode);
    if (found != held_.end()) {
      std::erase_if(found->second, [&](const FileLock& each) {
        return each.kind == kind && (owner == 0 || each.owner == owner);
      });
      if (found->second.empty()) held_.erase(found);
    }
  }
  co_return reply.error;
}

Task<LockReply> FileLocks::take_append(InodeId inode) {
  FileLock lock;
  lock.kind = FileLock::Kind::append;
  lock.type = FileLock::Type::exclusive;
  lock.owner = options_.session;
  LockRequest request = request_for(inode, lock);
  request.life = std::chrono::nanoseconds(kAppendLife).count();
  request.tell_inode = true;
  const auto wait = std::make_shared<Wait>();
  LockReply reply;
  bool waits = false;
  for (int round = 0; round < kAppendRounds; ++round) {
    reply = co_await ask(request);
    if (reply.error != EAGAIN) break;
    if (!waits) {
      const std::lock_guard guard(mutex_);
      if (stopped_) reply.error = EINTR;
      if (stopped_) break;
      waits_.insert(wait);
      waits = true;
    }
    co_await wait_for_change(inode, reply, wait);
    if (interrupted(*wait)) {
      reply.error = EINTR;
      break;
    }
  }
  if (waits) {
    const std::lock_guard guard(mutex_);
    waits_.erase(wait);
  }
  if (reply.error == EAGAIN) reply.error = EIO;
  co_return reply;
}

// A mount that was stopped for longer than its lease takes back what nobody else has taken meanwhile.
Task<int> FileLocks::settle(InodeId home, LocksRequest request) {
  Call call(client_, Operation::update(tag_of(home_of(home)), "fusionfs.lock_renew", pack(request)));
  const Outcome outcome = co_await call;
  if (!outcome.ok()) co_return errno_of(outcome);
  const auto reply = unpack<LockReply>(outcome.value);
  if (!reply) co_return EIO;
  for (const InodeId inode : reply->lost) {
    std::vector<FileLock> mine;
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = held_.find(inode); found != held_.end()) mine = found->second;
    }
    for (const FileLock& each : mine) {
      const LockReply again = co_await ask(request_for(inode, each));
      if (again.error != EAGAIN) continue;
      FileLock none = each;
      none.type = FileLock::Type::none;
      remember(inode, none);
      if (options_.warn) {
        options_.warn("inode " + std::to_string(raw(inode)) + ": a lock of process " + std::to_string(each.pid) +
                      " was lost while the store did not hear of this mount for " +
                      std::to_string(options_.life.count()) + " ms; another mount has it now");
      }
    }
  }
  co_return 0;
}

void FileLocks::keep_alive() {
  constexpr std::size_t kMost = 1000;  // of one request
  std::vector<LocksRequest> requests;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [inode, locks] : held_) {  // those of one home are neighbours
      if (requests.empty() || home_of(requests.back().inodes.back()) != home_of(inode) ||
          requests.back().inodes.size() == kMost) {
        requests.emplace_back();
      }
      requests.back().inodes.push_back(inode);
    }
  }
  for (LocksRequest& request : requests) {
    request.session = options_.session;
    request.life = std::chrono::nanoseconds(options_.life).count();
    const InodeId any = request.inodes.front();
    start(settle(any, std::move(request)), [](int) {});
  }
}

}  // namespace fusionfs

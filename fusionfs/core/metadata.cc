#include "fusionfs/core/metadata.h"

#include <algorithm>
#include <cerrno>

#include "fusionfs/core/openers.h"
#include "novoht/base/random.h"

namespace fusionfs {
namespace {

using zht::Condition;
using zht::Operation;
using zht::Outcome;

constexpr std::uint64_t kHomesReserved = 1024, kHomesMask = 2047;
constexpr Nanos kRenameLockLeft = 5'000'000'000;  // longer than a rename takes that waits for leases of others
constexpr int kMostPayments = 100;  // tries: others go on changing the inode
constexpr int kMaxRounds = 1000;

Reply refuse(int error) {
  Reply reply;
  reply.error = error;
  return reply;
}

}  // namespace

int errno_of(const Outcome& outcome) {
  switch (outcome.code) {
    case base::Code::ok:
      return 0;
    case base::Code::not_found:
      return ENOENT;
    case base::Code::no_space:
      return ENOSPC;
    case base::Code::invalid:
      return EINVAL;
    default:
      return EIO;
  }
}

Metadata::Metadata(zht::Client& client, const base::Clock& clock, MetadataOptions options)
    : client_(client), clock_(clock), options_(std::move(options)) {}

Nanos Metadata::now() const { return clock_.wall().time_since_epoch().count(); }

Task<Reply> Metadata::ask(HomeId home, const char* procedure, std::string arguments) {
  for (int round = 0;; ++round) {
    Call call(client_, Operation::update(tag_of(home), procedure, arguments));
    const Outcome outcome = co_await call;
    if (!outcome.ok()) {
      if (options_.trouble) options_.trouble(std::string(procedure) + " in " + tag_of(home) + ": " + outcome.message);
      co_return refuse(errno_of(outcome));
    }
    auto reply = unpack<Reply>(outcome.value);
    if (!reply && options_.trouble)
      options_.trouble(std::string(procedure) + " in " + tag_of(home) + ": the answer cannot be read");
    if (!reply) co_return refuse(EIO);
    if (reply->error != EUSERS || round == kMaxRounds) co_return std::move(*reply);
    co_await pause(home, reply->wait);
  }
}

// Lets a directory's lease run out.
Task<int> Metadata::pause(HomeId home, Nanos time) {
  const auto millis = std::chrono::ceil<zht::Millis>(std::chrono::nanoseconds(time));
  Call call(client_, Operation::callback(lease_key(home), Condition::absent(), zht::Range::nothing()),
            std::clamp(millis, zht::Millis(1), zht::Millis(2000)));
  co_await call;
  co_return 0;
}

void Metadata::forget(HomeId home, const char* procedure, std::string arguments) {
  call_and_forget(client_, Operation::update(tag_of(home), procedure, std::move(arguments)));
}

Task<Reply> Metadata::make_root(std::uint32_t mode, std::uint32_t uid, std::uint32_t gid) {
  Inode root;
  root.id = kRootInode;
  root.mode = 0040000 | (mode & 07777);
  root.uid = uid;
  root.gid = gid;
  root.links = 2;
  root.parent = kRootInode;
  root.atime = root.mtime = root.ctime = root.btime = now();
  DirectoryRequest request;
  request.inode = root;
  Reply reply = co_await ask(kRootHome, "fusionfs.make_directory", pack(request));
  co_return reply;
}

Task<Reply> Metadata::find_in(HomeId& home, std::string name, For what) {
  NameRequest request;
  request.name = name;
  for (int round = 0; round < kMaxRounds; ++round) {
    const Tell tell = what == For::looking || options_.opener == 0 ? Tell::no
                      : what == For::opening                       ? tell_opener(home)
                                                                   : Tell::opens_now;
    Reply reply;
    if (tell == Tell::no) {
      reply = co_await ask(home, "fusionfs.lookup", pack(request));
    } else {
      OpenRequest open;
      open.name = name;
      open.session = options_.opener;
      open.opens_now = tell == Tell::opens_now;
      const base::Time at = clock_.now();
      reply = co_await ask(home, "fusionfs.open", pack(open));
      if (reply.error == 0) told_opener(home, at);
    }
    if (elsewhere(reply)) {
      co_await follow(std::move(reply), home, name);
      continue;
    }
    if (reply.error != 0) co_return reply;
    if (reply.entry->moving) {
      // The name is what it was until the move has arrived.
      Call arrived(client_, Operation::lookup(transfer_key(reply.entry->moving->to, reply.entry->moving->transfer)));
      const Outcome marker = co_await arrived;
      if (marker.code != base::Code::ok && marker.code != base::Code::not_found) co_return refuse(errno_of(marker));
      const bool decided = marker.ok() && !marker.value.empty() && marker.value[0] == 'd';
      if (decided || abandoned("m" + std::to_string(reply.entry->moving->transfer), reply.entry->moving->since)) {
        const int error = co_await settle_move(home, name);
        if (error != 0) co_return refuse(error);
        continue;
      }
    }
    co_return reply;
  }
  co_return refuse(EIO);
}

Task<Reply> Metadata::find(InodeId directory, std::string name, For what) {
  HomeId home = home_for(directory, name);
  Reply reply = co_await find_in(home, std::move(name), what);
  co_return reply;
}

Metadata::Tell Metadata::tell_opener(HomeId home) {
  if (options_.opener == 0) return Tell::no;
  const std::lock_guard lock(openers_mutex_);
  if (const auto removals = removals_.find(raw(home)); removals != removals_.end() && removals->second > 0) return Tell::opens_now;
  const auto until = opener_until_.find(raw(home));
  const bool long_enough = until != opener_until_.end() && until->second - clock_.now() > std::chrono::nanoseconds(kOpenerLife / 2);
  return long_enough ? Tell::no : Tell::opener;
}

void Metadata::told_opener(HomeId home, base::Time at) {
  const std::lock_guard lock(openers_mutex_);
  constexpr std::size_t kMany = 10'000;
  if (opener_until_.size() > kMany) std::erase_if(opener_until_, [&](const auto& each) { return each.second < at; });
  opener_until_[raw(home)] = at + std::chrono::nanoseconds(kOpenerLife);
}

Metadata::Removal::Removal(Metadata& metadata, HomeId home) : metadata_(metadata), home_(home) {
  const std::lock_guard lock(metadata_.openers_mutex_);
  metadata_.removals_[raw(home_)] += 1;
}

Metadata::Removal::~Removal() {
  const std::lock_guard lock(metadata_.openers_mutex_);
  const auto found = metadata_.removals_.find(raw(home_));
  if (--found->second == 0) metadata_.removals_.erase(found);
}

Task<Reply> Metadata::open(InodeId inode) {
  const HomeId home = home_of(inode);
  const Tell tell = counter_of(inode) == kDirectoryCounter ? Tell::no : tell_opener(home);
  if (tell == Tell::no) {
    Reply reply = co_await getattr(inode);
    co_return reply;
  }
  OpenRequest request;
  request.inode = inode;
  request.session = options_.opener;
  request.opens_now = tell == Tell::opens_now;
  const base::Time at = clock_.now();
  Reply reply = co_await ask(home, "fusionfs.open", pack(request));
  if (reply.error == 0) told_opener(home, at);
  co_return reply;
}

Task<int> Metadata::keep_open(HomeId home) {
  if (tell_opener(home) == Tell::no) co_return 0;
  OpenRequest request;
  request.session = options_.opener;
  const base::Time at = clock_.now();
  Reply reply = co_await ask(home, "fusionfs.open", pack(request));
  if (reply.error == 0) told_opener(home, at);
  co_return reply.error;
}

Task<Reply> Metadata::lookup(InodeId directory, std::string name) {
  HomeId home = home_for(directory, name);
  for (int round = 0; round < kMaxRounds; ++round) {
    Reply reply = co_await find_in(home, name, For::looking);
    if (reply.error != 0) co_return reply;
    if (!is_directory(reply.entry->type)) {
      if (reply.inode) co_return reply;
      const InodeId id = reply.entry->inode;
      Reply inode = co_await getattr(id);
      if (inode.error == ENOENT) continue;  // a removal overtook us: the name is gone by now
      if (inode.error != 0) co_return inode;
      reply.inode = std::move(inode.inode);
      co_return reply;
    }
    const Entry entry = *reply.entry;
    Reply met = co_await meet_directory(home, name, entry, std::move(reply));
    if (met.error == ESTALE) continue;
    co_return met;
  }
  co_return refuse(EIO);
}

// The inode of a directory lives in the directory's own home. ESTALE: look again.
Task<Reply> Metadata::meet_directory(HomeId home, std::string name, Entry entry, Reply found) {
  Reply inode = co_await getattr(entry.inode);
  if (inode.error == ENOENT && entry.initial) {
    // Its maker wrote the name and has not written the directory, or crashed: the same bytes from whoever is first.
    const auto initial = decode_inode(entry.inode, *entry.initial);
    if (!initial) co_return refuse(EIO);
    DirectoryRequest request;
    request.inode = initial;
    inode = co_await ask(home_of(entry.inode), "fusionfs.make_directory", pack(request));
    if (inode.error == 0 && inode.done) {
      // Or it was removed, name and all, since the name was read: then it must not come back.
      NameRequest find;
      find.name = name;
      Reply still = co_await ask_name(home, std::move(name), "fusionfs.lookup", pack(find));
      if (still.error != 0 && still.error != ENOENT) co_return refuse(still.error);
      if (still.error == ENOENT || still.entry->inode != entry.inode) {
        co_await drop_nameless(entry.inode);
        co_return refuse(ESTALE);
      }
    }
  }
  if (inode.error != 0) co_return refuse(inode.error);
  if (inode.inode->has(Inode::kDying)) {
    const auto dying = decode_dying(inode.inode->content);
    if (dying && abandoned("d" + std::to_string(raw(entry.inode)), dying->since)) {
      const int error = co_await settle_dying(*inode.inode, home_of(entry.inode));
      co_return refuse(error == 0 ? ESTALE : error);  // look again
    }
  }
  found.inode = std::move(inode.inode);
  found.sequence = inode.sequence;  // the directory's own
  found.shards = std::move(inode.shards);
  co_return found;
}

Task<Reply> Metadata::getattr(InodeId inode) {
  if (counter_of(inode) == kDirectoryCounter) {
    DirectoryRequest request;
    Reply reply = co_await ask(home_of(inode), "fusionfs.stat_directory", pack(request));
    if (reply.error == ESTALE) reply.error = 0;  // being removed, not yet gone
    if (!reply.shards.empty()) reply = co_await with_shards(std::move(reply));
    co_return reply;
  }
  Call call(client_, Operation::lookup(inode_key(inode)));
  const Outcome outcome = co_await call;
  if (!outcome.ok()) co_return refuse(errno_of(outcome));
  Reply reply;
  reply.inode = decode_inode(inode, outcome.value);
  if (!reply.inode) reply.error = EIO;
  co_return reply;
}

Task<Reply> Metadata::create(InodeId directory, CreateRequest request) {
  request.now = now();
  request.session = options_.session;
  HomeId home = home_for(directory, request.name);
  const bool opens = request.opener != 0;
  for (int round = 0; round < kMaxRounds; ++round) {
    const Tell tell = opens ? tell_opener(home) : Tell::no;
    request.opener = tell != Tell::no ? options_.opener : 0;
    request.opens_now = tell == Tell::opens_now;
    const base::Time at = clock_.now();
    Reply reply = co_await ask(home, "fusionfs.create", pack(request));
    if (request.opener != 0 && reply.error == 0) told_opener(home, at);
    if (elsewhere(reply)) {
      co_await follow(std::move(reply), home, request.name);
      continue;
    }
    if (reply.error == ESTALE) {
      co_await settle_dying(*reply.inode, home);
      continue;
    }
    if (big(reply)) co_await split_when_big(home, reply.live);
    co_return reply;
  }
  co_return refuse(EIO);
}

Task<std::uint64_t> Metadata::new_home() {
  std::uint64_t seen = homes_.load();
  while ((seen & kHomesMask) > 0) {
    if (homes_.compare_exchange_weak(seen, seen + (kHomesMask + 1) - 1)) co_return seen / (kHomesMask + 1);
  }
  Call call(client_, Operation::update(kNextHomeKey, "add", std::to_string(kHomesReserved)));
  const Outcome outcome = co_await call;
  if (!outcome.ok()) co_return 0;
  const std::uint64_t last = std::strtoull(outcome.value.c_str(), nullptr, 10);
  if (last < kHomesReserved || last > kMaxHome) co_return 0;
  // Two who come at once reserve twice and the first reservation is lost: there are plenty.
  const std::uint64_t first = last - kHomesReserved + 1;  // 1 the first time: 0 is the root's
  homes_.store((first + 1) * (kHomesMask + 1) + kHomesReserved - 1);
  co_return first;
}

Task<Reply> Metadata::make_directory(InodeId directory, CreateRequest request, Inode parent) {
  const std::uint64_t home = co_await new_home();
  if (home == 0) co_return refuse(EIO);
  request.now = now();
  request.directory = make_inode(HomeId{home}, kDirectoryCounter);
  request.session = options_.session;
  request.parent_mode = parent.mode;
  request.parent_gid = parent.gid;
  // The name and the directory itself are written at once, in two homes, the name first: a name without its directory is
  // completed by whoever meets it. A directory without a name is removed below, or later (settle_leftovers).
  Inode child;
  child.id = request.directory;
  child.mode = request.mode;
  child.uid = request.uid;
  child.gid = request.gid;
  child.links = 2;
  child.parent = directory;
  child.atime = child.mtime = child.ctime = child.btime = request.now;
  if ((parent.mode & 02000) != 0) {
    child.gid = parent.gid;
    child.mode |= 02000;
  }
  DirectoryRequest make;
  make.inode = child;
  const HomeId name_home = home_for(directory, request.name);
  Call name_made(client_, Operation::update(tag_of(name_home), "fusionfs.create", pack(request)), {}, Call::Style::beside);
  Call child_made(client_, Operation::update(tag_of(HomeId{home}), "fusionfs.make_directory", pack(make)));
  const Outcome child_outcome = co_await child_made;
  const Outcome name_outcome = co_await name_made;
  Reply reply = refuse(errno_of(name_outcome));
  if (name_outcome.ok()) {
    if (auto read = unpack<Reply>(name_outcome.value))
      reply = std::move(*read);
    else
      reply.error = EIO;
  }
  if (reply.error == EUSERS || elsewhere(reply) || reply.error == ESTALE) {
    if (reply.error == EUSERS) co_await pause(name_home, reply.wait);
    reply = co_await create(directory, request);
  }
  if (big(reply)) co_await split_when_big(name_home, reply.live);
  if (reply.error != 0) {
    // Only when the name certainly is not there: after a timeout it may lead here.
    if (name_outcome.ok() && child_outcome.ok()) {
      const Dying dying;
      DirectoryRequest request_dying;
      request_dying.dying = dying;
      co_await ask(HomeId{home}, "fusionfs.mark_dying", pack(request_dying));
      forget(HomeId{home}, "fusionfs.drop_directory", pack(DirectoryRequest{}));
    }
    co_return reply;
  }
  if (!child_outcome.ok()) co_return refuse(errno_of(child_outcome));  // the name is there and completes itself
  if (reply.inode->gid != child.gid || reply.inode->mode != child.mode) {
    SetRequest set;  // the parent had changed since it was last seen
    set.inode = child.id;
    set.fields_set = SetRequest::kMode | SetRequest::kGid;
    set.mode = reply.inode->mode;
    set.gid = reply.inode->gid;
    set.now = request.now;
    Reply corrected = co_await setattr(set);
    if (corrected.error != 0) co_return corrected;
  }
  ListingRecord empty;
  empty.mtime = empty.ctime = request.now;
  overlay(*reply.inode, empty);
  co_return reply;
}

// Tells the owner about what lost its last link, and those that may have it open.
Task<int> Metadata::settle_links(Reply reply, std::optional<Inode> dropped) {
  if (!dropped || dropped->links > 0) co_return 0;
  if (reply.gone) {
    if (options_.gone) options_.gone(*dropped);
  } else if (options_.orphaned) {
    options_.orphaned(*dropped, !reply.keepers.empty());
  }
  if (!reply.keepers.empty()) co_await tell_keepers(dropped->id, std::move(reply.keepers));
  co_return 0;
}

Task<int> Metadata::tell_keepers(InodeId inode, std::vector<std::uint64_t> keepers) {
  for (const std::uint64_t keeper : keepers) {
    // Before, that no list is begun for a session that has ended; and after, since it may have read its list for the last time.
    Call before(client_, Operation::lookup(session_key(keeper), zht::Range::nothing()));
    Outcome alive = co_await before;
    if (alive.code != base::Code::not_found) {
      std::string id;
      base::Writer(id).u64(raw(inode));
      Call tell(client_, Operation::append(session_orphans_key(keeper), id));
      const Outcome told = co_await tell;
      if (!told.ok()) co_return errno_of(told);
      Call after(client_, Operation::lookup(session_key(keeper), zht::Range::nothing()));
      alive = co_await after;
    }
    if (alive.code == base::Code::not_found) co_await reap(inode, keeper);
  }
  co_return 0;
}

// Not waited for. What fails is found again when somebody goes through all records.
void Metadata::remove_later(std::string key) {
  if (CallsBlock::now() == CallsBlock::Which::every) {
    if (!client_.call(Operation::remove(std::move(key), true)).ok() && options_.left) options_.left();
    return;
  }
  client_.submit(Operation::remove(std::move(key), true), [left = options_.left](const Outcome& outcome) {
    if (!outcome.ok() && left) left();
  });
}

// See the procedure `pay` for the order of the steps.
Task<int> Metadata::pay(InodeId inode, HomeId debtor, std::uint64_t debt) {
  PayRequest request;
  request.inode = inode;
  request.id = debt;
  request.debtor = debtor;
  request.now = now();
  Reply reply;
  request.session = options_.opener;
  for (int round = 0; round < kMostPayments; ++round) {
    const Removal removal(*this, home_of(inode));
    request.held = held(home_of(inode));
    reply = co_await ask(home_of(inode), "fusionfs.pay", pack(request));
    if (reply.error != EAGAIN) break;
    Call seen(client_, Operation::lookup(debt_key(debtor, debt), zht::Range::nothing()));
    const Outcome still = co_await seen;
    if (still.code == base::Code::not_found) co_return 0;  // somebody else has paid
    if (!still.ok()) co_return errno_of(still);
    request.revision = reply.inode->revision;
  }
  if (reply.error != 0) {
    if (options_.left) options_.left();
    co_return reply.error;
  }
  co_await settle_links(reply, reply.inode);
  if (reply.debt == 0) {
    remove_later(debt_key(debtor, debt));
    co_return 0;
  }
  Call forget(client_, Operation::remove(debt_key(debtor, debt), true));
  const Outcome forgotten = co_await forget;
  if (forgotten.ok())
    remove_later(paid_key(inode, debt));
  else if (options_.left)
    options_.left();
  co_return 0;
}

Task<Reply> Metadata::unlink(InodeId directory, std::string name) {
  HomeId home = home_for(directory, name);
  UnlinkRequest request;
  request.name = name;
  request.session = options_.session;
  for (int round = 0; round < kMaxRounds; ++round) {
    const Removal removal(*this, home);
    request.now = now();
    request.held = held(home);
    Reply reply = co_await ask(home, "fusionfs.unlink", pack(request));
    if (elsewhere(reply)) {
      co_await follow(std::move(reply), home, name);
      continue;
    }
    if (reply.error == EAGAIN) {
      const int error = co_await settle_move(home, name);
      if (error != 0) co_return refuse(error);
      continue;
    }
    if (reply.error == ESTALE) reply.error = ENOENT;
    if (reply.error != 0) co_return reply;
    co_await settle_links(reply, reply.inode);
    if (reply.debt != 0) co_await pay(reply.entry->inode, home, reply.debt);  // failing, it stays on record
    co_return reply;
  }
  co_return refuse(EIO);
}

Task<int> Metadata::mark_dying(InodeId directory, Dying dying) {
  DirectoryRequest request;
  const HomeId home = home_of(directory);
  for (int round = 0; round < kMaxRounds; ++round) {
    dying.since = now();
    request.dying = dying;
    Reply reply = co_await ask(home, "fusionfs.mark_dying", pack(request));
    if (reply.error == EAGAIN) {
      const int error = co_await settle_dying(*reply.inode, home);
      if (error != 0) co_return error;
      continue;
    }
    if (reply.error == EXFULL) {
      const int error = co_await settle_split(home);
      if (error != 0) co_return error;
      continue;
    }
    if (reply.error != 0 || reply.shards.empty()) co_return reply.error;
    Reply others = co_await ask_shards(home, std::move(reply), "fusionfs.mark_dying", pack(request));
    if (others.error == 0) co_return 0;
    co_await unmark_dying(directory, dying);
    if (others.error != EXFULL) co_return others.error;
  }
  co_return EBUSY;
}

Task<Reply> Metadata::remove_directory(InodeId directory, std::string name) {
  HomeId home = home_for(directory, name);
  for (int round = 0; round < kMaxRounds; ++round) {
    NameRequest find;
    find.name = name;
    Reply found = co_await ask(home, "fusionfs.lookup", pack(find));
    if (elsewhere(found)) {
      co_await follow(std::move(found), home, name);
      continue;
    }
    if (found.error != 0) co_return found;
    const Entry entry = *found.entry;
    if (!is_directory(entry.type)) co_return refuse(ENOTDIR);
    if (entry.moving) {
      const int error = co_await settle_move(home, name);
      if (error != 0) co_return refuse(error);
      continue;
    }
    Dying dying;
    dying.transfer = base::entropy();
    dying.parent = home;
    dying.name = name;
    const int error = co_await mark_dying(entry.inode, dying);
    // ENOENT: the directory was never made, or somebody removes it just now; the name is what is left.
    if (error != 0 && error != ENOENT) co_return refuse(error);
    UnlinkRequest request;
    request.name = name;
    request.session = options_.session;
    request.now = now();
    request.directory = entry.inode;
    Reply removed = co_await ask_name(home, name, "fusionfs.remove_directory", pack(request));
    if (removed.error == EAGAIN) {
      co_await unmark_dying(entry.inode, dying);
      continue;
    }
    if (removed.error != 0) co_return removed;
    // The name went by another hand, and so did the directory, which this caller has not marked: the other removal is the one that was.
    if (error == ENOENT && !removed.done) co_return refuse(ENOENT);
    if (error == ENOENT)
      co_await drop_nameless(entry.inode);  // somebody who met the name may have made it meanwhile
    else
      co_await drop_directory_soon(entry.inode);
    removed.entry = entry;
    co_return removed;
  }
  co_return refuse(EIO);
}

// A directory that somebody set out to remove. Recent: they are at it, so wait a little. Old: finish it.
Task<int> Metadata::settle_dying(Inode directory, HomeId met) {
  const auto dying = decode_dying(directory.content);
  if (!dying) co_return EIO;
  const HomeId home = home_of(directory.id);
  Call seen(client_, Operation::lookup(inode_key(directory.id)));
  const Outcome before = co_await seen;
  if (before.code == base::Code::not_found) co_return 0;
  if (!before.ok()) co_return errno_of(before);
  const auto inode = decode_inode(directory.id, before.value);
  if (!inode) co_return EIO;
  DirectoryRequest request;
  request.dying = *dying;
  if (!inode->has(Inode::kDying)) {
    // Its first home decides: a mark elsewhere is a leftover.
    if (met == home) co_return 0;
    Reply unmarked = co_await ask(met, "fusionfs.unmark_dying", pack(request));
    co_return unmarked.error;
  }
  if (!abandoned("d" + std::to_string(raw(directory.id)), dying->since)) {
    Call changed(
        client_,
        Operation::callback(inode_key(directory.id), Condition::after_version(before.version), zht::Range::nothing()),
        zht::Millis(100));
    co_await changed;
    co_return 0;
  }
  bool revive = false;
  if (dying->by_rename) {
    TransferRequest cancel;
    cancel.transfer = dying->transfer;
    Reply cancelled = co_await ask(dying->parent, "fusionfs.move_cancel", pack(cancel));
    if (cancelled.error != 0) co_return cancelled.error;
    NameRequest find;
    find.name = dying->name;
    Reply found = co_await ask_name(dying->parent, dying->name, "fusionfs.lookup", pack(find));
    if (found.error != 0 && found.error != ENOENT) co_return found.error;
    revive = found.error == 0 && found.entry->inode == directory.id;
  } else {
    // Whether all its homes are empty was perhaps not yet known.
    Reply marked = co_await ask(home, "fusionfs.mark_dying", pack(request));
    if (marked.error == 0 && !marked.shards.empty())
      marked = co_await ask_shards(home, std::move(marked), "fusionfs.mark_dying", pack(request));
    if (marked.error == EXFULL) co_return 0;
    revive = marked.error == ENOTEMPTY;
    if (marked.error != 0 && marked.error != ENOENT && !revive) co_return marked.error == EAGAIN ? 0 : marked.error;
  }
  if (revive) {
    const int error = co_await unmark_dying(directory.id, *dying);
    co_return error;
  }
  if (!dying->by_rename) {
    UnlinkRequest remove;
    remove.name = dying->name;
    remove.session = options_.session;
    remove.now = now();
    remove.directory = directory.id;
    Reply removed = co_await ask_name(dying->parent, dying->name, "fusionfs.remove_directory", pack(remove));
    if (removed.error != 0) co_return removed.error == EAGAIN ? 0 : removed.error;
  }
  const int error = co_await drop_directory(directory.id);
  co_return error == EBUSY ? 0 : error;
}

// Of a directory that was moved. One that has gone since needs none.
Task<int> Metadata::set_parent(InodeId directory, InodeId parent) {
  SetRequest set;
  set.inode = directory;
  set.fields_set = SetRequest::kParent;
  set.parent = parent;
  Reply reply = co_await setattr(set);
  co_return reply.error == ENOENT ? 0 : reply.error;
}

// A name that somebody is moving to another directory. Recent: wait for its next change. Old: decide it.
Task<int> Metadata::settle_move(HomeId home, std::string name) {
  Call seen(client_, Operation::lookup(entry_key(home, name)));
  const Outcome before = co_await seen;
  if (before.code == base::Code::not_found) co_return 0;
  if (!before.ok()) co_return errno_of(before);
  const auto entry = decode_entry(before.value);
  if (!entry) co_return EIO;
  if (!entry->moving) co_return 0;
  const Moving moving = *entry->moving;
  if (!abandoned("m" + std::to_string(moving.transfer), moving.since)) {
    Call changed(
        client_,
        Operation::callback(entry_key(home, name), Condition::after_version(before.version), zht::Range::nothing()),
        zht::Millis(100));
    co_await changed;
    co_return 0;
  }
  TransferRequest request;
  request.transfer = moving.transfer;
  request.session = options_.session;
  request.name = name;
  request.now = now();
  Reply outcome = co_await ask(moving.to, "fusionfs.move_cancel", pack(request));
  if (outcome.error != 0) co_return outcome.error;
  if (!outcome.done) {
    Reply undone = co_await ask_name(home, name, "fusionfs.move_undo", pack(request));
    co_return undone.error;
  }
  if (is_directory(entry->type)) {
    const InodeId parent = co_await directory_of(moving.to);
    const int error = co_await set_parent(entry->inode, parent);
    if (error != 0) co_return error;
  }
  if (moving.exchange) {
    request.entry = outcome.other_entry;
    if (outcome.other_entry && is_directory(outcome.other_entry->type)) {
      const InodeId parent = co_await directory_of(home);
      const int error = co_await set_parent(outcome.other_entry->inode, parent);
      if (error != 0) co_return error;
    }
  }
  Reply ended = co_await ask_name(home, name, "fusionfs.move_end", pack(request));
  if (ended.error != 0) co_return ended.error;
  if (outcome.debt != 0 && outcome.other_entry) co_await pay(outcome.other_entry->inode, moving.to, outcome.debt);
  remove_later(transfer_key(moving.to, moving.transfer));
  co_return 0;
}

Task<Reply> Metadata::rename(InodeId from, std::string from_name, InodeId to, std::string to_name,
                             std::uint32_t flags) {
  for (int round = 0; round < kMaxRounds; ++round) {
    const HomeId from_home = home_for(from, from_name), to_home = home_for(to, to_name);
    Reply reply;
    if (from_home == to_home) {
      reply = co_await rename_within(from_home, from_name, to_name, flags);
    } else {
      Place from_place{from, from_home, from_name}, to_place{to, to_home, to_name};
      reply = co_await rename_across(std::move(from_place), std::move(to_place), flags);
    }
    if (reply.error == EREMCHG) continue;
    if (big(reply)) co_await split_when_big(to_home, reply.live);
    co_return reply;
  }
  co_return refuse(EIO);
}

Task<Reply> Metadata::rename_within(HomeId home, std::string from_name, std::string to_name, std::uint32_t flags) {
  RenameRequest request;
  request.from = from_name;
  request.to = to_name;
  request.flags = flags;
  request.transfer = base::entropy();
  request.session = options_.session;
  request.fence = fence_of(home);
  Dying dying;
  for (int round = 0; round < kMaxRounds; ++round) {
    const Removal removal(*this, home);
    request.now = now();
    request.held = held(home);
    Reply reply = co_await ask(home, "fusionfs.rename", pack(request));
    if (elsewhere(reply)) {
      co_await follow(reply, home, from_name);
      reply.error = EREMCHG;
    }
    if (reply.error == EAGAIN) {
      int error = co_await settle_move(home, from_name);
      if (error == 0) error = co_await settle_move(home, to_name);
      if (error != 0) co_return refuse(error);
      continue;
    }
    if (reply.error == EINPROGRESS) {
      dying.by_rename = true;
      dying.transfer = request.transfer;
      dying.parent = home;
      dying.name = to_name;
      const int error = co_await mark_dying(reply.other_entry->inode, dying);
      if (error != 0 && error != ENOENT) co_return refuse(error);
      request.dying = reply.other_entry->inode;
      continue;
    }
    if (reply.error == ESTALE) reply.error = ENOENT;
    if (reply.error != 0) {
      if (request.dying != InodeId{} && reply.error != EIO) co_await unmark_dying(request.dying, dying);
      if (reply.error == ECANCELED) {
        learn_fence(home, reply);
        request.fence = reply.debt;
        request.dying = InodeId{};
        request.transfer = base::entropy();
        continue;
      }
      co_return reply;
    }
    if (request.dying != InodeId{}) co_await drop_directory_soon(request.dying);
    if ((flags & kExchange) == 0 && reply.other_entry && reply.other_entry->inode != reply.entry->inode) {
      co_await settle_links(reply, reply.other);
      if (reply.debt != 0) co_await pay(reply.other_entry->inode, home, reply.debt);
    }
    if (reply.done && !reply.inode) {
      SetRequest touch;  // an inode of another home: its ctime
      touch.inode = reply.entry->inode;
      touch.now = request.now;
      Reply touched = co_await setattr(touch);
      reply.inode = std::move(touched.inode);
    }
    co_return reply;
  }
  co_return refuse(EIO);
}

// Held, and written anew with each attempt's transfer, by whoever moves a directory. It has no end of its own: a holder that was
// held up for long must not find out after its move has arrived. Whoever takes it away calls that move off first.
Task<int> Metadata::lock_renames(RenameLock wanted, std::optional<std::string>& held) {
  wanted.since = now();
  const std::string value = pack(wanted);
  if (held) {
    Call renew(client_, Operation::cswap(kRenameLockKey, Condition::equals(*held), value));
    const Outcome renewed = co_await renew;
    held.reset();
    if (renewed.ok()) held = value;
    if (renewed.ok()) co_return 0;
    if (renewed.code != base::Code::conflict && renewed.code != base::Code::not_found) co_return errno_of(renewed);
  }
  for (int round = 0; round < kMaxRounds; ++round) {
    Call take(client_, Operation::insert_new(kRenameLockKey, value));
    const Outcome taken = co_await take;
    if (taken.ok()) held = value;
    if (taken.ok()) co_return 0;
    if (taken.code != base::Code::conflict) co_return errno_of(taken);
    const int error = co_await free_rename_lock();
    if (error != 0) co_return error;
    Call freed(client_, Operation::callback(kRenameLockKey, Condition::absent(), zht::Range::nothing()),
               zht::Millis(1000));
    co_await freed;
  }
  co_return EBUSY;
}

// Takes the rename lock away from a holder that has had it for long.
Task<int> Metadata::free_rename_lock() {
  Call look(client_, Operation::lookup(kRenameLockKey));
  const Outcome seen = co_await look;
  if (seen.code == base::Code::not_found) co_return 0;
  if (!seen.ok()) co_return errno_of(seen);
  const auto lock = unpack<RenameLock>(seen.value);
  if (!lock) co_return 0;  // of an older build: that ends by itself
  if (!abandoned("r" + std::to_string(lock->transfer), lock->since, kRenameLockLeft)) co_return 0;
  TransferRequest cancel;
  cancel.transfer = lock->transfer;
  Reply outcome = co_await ask(lock->to, "fusionfs.move_cancel", pack(cancel));
  if (outcome.error != 0) co_return outcome.error;
  // What has arrived is carried to its end: until then a directory's parent may be the old one.
  for (int round = 0; outcome.done && round < kMaxRounds; ++round) {
    NameRequest find;
    find.name = lock->name;
    Reply found = co_await ask_name(lock->from, lock->name, "fusionfs.lookup", pack(find));
    if (found.error != 0 && found.error != ENOENT) co_return found.error;
    if (found.error != 0 || !found.entry->moving || found.entry->moving->transfer != lock->transfer) break;
    const int error = co_await settle_move(home_from(lock->from, lock->name), lock->name);
    if (error != 0) co_return error;
  }
  Call free(client_, Operation::cswap_remove(kRenameLockKey, Condition::at_version(seen.version)));
  co_await free;
  co_return 0;
}

// Whether `to` lies below `moved`. The rename lock keeps the parents still.
Task<int> Metadata::check_no_cycle(InodeId moved, InodeId to) {
  InodeId at = to;
  for (int depth = 0; depth < 100'000; ++depth) {
    if (at == moved) co_return EINVAL;
    if (at == kRootInode) co_return 0;
    Reply reply = co_await getattr(at);
    if (reply.error != 0) co_return reply.error;
    at = reply.inode->parent;
  }
  co_return ELOOP;
}

Task<Reply> Metadata::rename_across(Place from_place, Place to_place, std::uint32_t flags) {
  const InodeId from_directory = from_place.directory, to_directory = to_place.directory;
  const std::string &from_name = from_place.name, &to_name = to_place.name;
  HomeId from = from_place.home, to = to_place.home;
  TransferRequest begin;
  begin.name = from_name;
  begin.flags = flags;
  begin.to = to;
  begin.to_name = to_name;
  TransferRequest install;
  install.session = options_.session;
  install.name = to_name;
  install.flags = flags;
  TransferRequest end;
  end.session = options_.session;
  end.name = from_name;
  Dying dying;
  RenameLock lock;
  lock.owner = base::entropy();
  lock.from = install.to = from;
  lock.to = to;
  lock.name = install.to_name = from_name;
  std::optional<std::string> locked;
  // Whether the move may yet arrive, or has, and is not ended: then the lock is left to whoever settles that.
  bool open = false;
  Reply result = refuse(EIO);
  for (int round = 0; round < kMaxRounds; ++round) {
    const std::uint64_t transfer = base::entropy();
    begin.transfer = install.transfer = end.transfer = lock.transfer = transfer;
    install.fence = fence_of(to);  // before anything says that this move is under way
    NameRequest find;
    find.name = from_name;
    Reply found = co_await ask(from, "fusionfs.lookup", pack(find));
    if (elsewhere(found)) {
      co_await follow(std::move(found), from, from_name);
      result = refuse(EREMCHG);
      break;
    }
    if (found.error != 0) {
      result = found;
      break;
    }
    bool directories = is_directory(found.entry->type);
    InodeId other_directory{};
    if ((flags & kExchange) != 0) {
      find.name = to_name;
      Reply other = co_await ask(to, "fusionfs.lookup", pack(find));
      if (elsewhere(other)) {
        co_await follow(std::move(other), to, to_name);
        result = refuse(EREMCHG);
        break;
      }
      if (other.error != 0) {
        result = other;
        break;
      }
      if (is_directory(other.entry->type)) other_directory = other.entry->inode;
    }
    if (from_directory != to_directory && (directories || other_directory != InodeId{})) {
      int error = co_await lock_renames(lock, locked);
      if (error != 0) {
        result = refuse(error);
        break;
      }
      error = directories ? co_await check_no_cycle(found.entry->inode, to_directory) : 0;
      if (error == 0 && other_directory != InodeId{}) error = co_await check_no_cycle(other_directory, from_directory);
      if (error != 0) {
        result = refuse(error);
        break;
      }
    }
    begin.now = install.now = end.now = now();
    Reply begun = co_await ask(from, "fusionfs.move_begin", pack(begin));
    if (elsewhere(begun)) {
      co_await follow(std::move(begun), from, from_name);
      result = refuse(EREMCHG);
      break;
    }
    if (begun.error == EAGAIN) {
      const int error = co_await settle_move(from, from_name);
      if (error != 0) {
        result = refuse(error);
        break;
      }
      continue;
    }
    if (begun.error != 0) {
      result = refuse(begun.error == ESTALE ? ENOENT : begun.error);
      break;
    }
    if (begun.entry->inode != found.entry->inode) {  // not what the check was about
      co_await ask_name(from, from_name, "fusionfs.move_undo", pack(end));
      continue;
    }
    open = true;
    install.entry = begun.entry;
    install.dying = InodeId{};
    Reply installed;
    for (int attempt = 0; attempt < kMaxRounds; ++attempt) {
      const Removal removal(*this, to);
      install.held = held(to);
      installed = co_await ask(to, "fusionfs.move_install", pack(install));
      if (elsewhere(installed)) {
        // The mark says where it arrives: begun again for another home.
        HomeId next = to;
        co_await follow(std::move(installed), next, to_name);
        installed = refuse(EREMCHG);
        break;
      }
      if (installed.error == EAGAIN) {
        installed.error = co_await settle_move(to, to_name);
        if (installed.error == 0) {
          installed.error = EAGAIN;
          continue;
        }
      }
      if (installed.error == EINPROGRESS) {
        dying.by_rename = true;
        dying.transfer = transfer;
        dying.parent = to;
        dying.name = to_name;
        const int error = co_await mark_dying(installed.other_entry->inode, dying);
        if (error == 0 || error == ENOENT) {
          install.dying = installed.other_entry->inode;
          continue;
        }
        installed.error = error;
      }
      break;
    }
    if (installed.error != 0) {
      Reply cancelled;
      if (installed.error == EIO) {
        // No answer: it may yet arrive, or have arrived.
        cancelled = co_await ask(to, "fusionfs.move_cancel", pack(install));
        if (cancelled.error != 0) {
          result = refuse(EIO);
          break;
        }  // settled by whoever meets it
      }
      if (installed.error == ECANCELED) learn_fence(to, installed);
      if (!cancelled.done) {
        open = false;
        if (install.dying != InodeId{}) co_await unmark_dying(install.dying, dying);
        co_await ask_name(from, from_name, "fusionfs.move_undo", pack(end));
        if (installed.error == ECANCELED || installed.error == EAGAIN) continue;
        if (installed.error == ESTALE) installed.error = ENOENT;
        result = installed;
        if (installed.error == EALREADY) result.error = 0;  // two names of one file: nothing happens
        break;
      }
      installed = std::move(cancelled);
    }
    // Arrived: from here on only forward. A directory that does not know its new parent yet keeps the mark of its move.
    result = installed;
    if (directories && from_directory != to_directory) {
      result.error = co_await set_parent(begun.entry->inode, to_directory);
      if (result.error != 0) break;
    }
    if ((flags & kExchange) != 0) {
      end.entry = installed.other_entry;
      if (installed.other_entry && is_directory(installed.other_entry->type) && from_directory != to_directory) {
        result.error = co_await set_parent(installed.other_entry->inode, from_directory);
        if (result.error != 0) break;
      }
    }
    Reply ended = co_await ask_name(from, from_name, "fusionfs.move_end", pack(end));
    result.error = ended.error;
    if (ended.error != 0) break;
    open = false;
    result.left = ended.changed;
    if (ended.inode) result.inode = std::move(ended.inode);
    if (install.dying != InodeId{}) co_await drop_directory_soon(install.dying);
    if ((flags & kExchange) == 0 && installed.other_entry) {
      co_await settle_links(installed, installed.other);
      if (installed.debt != 0) co_await pay(installed.other_entry->inode, to, installed.debt);
    }
    remove_later(transfer_key(to, transfer));
    if (!result.inode && !directories) {
      SetRequest touch;
      touch.inode = begun.entry->inode;
      touch.now = begin.now;
      Reply touched = co_await setattr(touch);
      result.inode = std::move(touched.inode);
    }
    break;
  }
  if (locked && !open) call_and_forget(client_, Operation::cswap_remove(kRenameLockKey, Condition::equals(*locked)));
  co_return result;
}

Task<Reply> Metadata::link(InodeId inode, std::uint32_t type, InodeId directory, std::string name) {
  LinkRequest request;
  request.session = options_.session;
  request.inode = inode;
  request.name = name;
  request.type = type;
  HomeId home = home_for(directory, name);
  for (int round = 0; round < kMaxRounds; ++round) {
    request.now = now();
    request.to = home;
    if (home_of(inode) == home) {
      Reply reply = co_await ask(home, "fusionfs.link", pack(request));
      if (elsewhere(reply)) {
        co_await follow(std::move(reply), home, name);
        continue;
      }
      if (reply.error == ESTALE) reply.error = ENOENT;
      if (big(reply)) co_await split_when_big(home, reply.live);
      co_return reply;
    }
    request.id = base::entropy();
    request.undo = false;
    request.fence = fence_of(home);
    Reply promised = co_await ask(home_of(inode), "fusionfs.promise_link", pack(request));
    if (promised.error != 0) co_return promised;
    Reply added = co_await ask(home, "fusionfs.add_entry", pack(request));
    if (added.error == EIO) {  // the name may be there: whoever settles the promise asks the marker
      if (options_.left) options_.left();
      co_return added;
    }
    request.undo = added.error != 0;
    Reply settled = co_await ask(home_of(inode), "fusionfs.settle_link", pack(request));
    if (added.error != 0) co_await settle_links(settled, settled.inode);
    if (added.error == 0 && settled.error == 0) remove_later(transfer_key(home, request.id));
    if (settled.error != 0 && options_.left) options_.left();
    if (added.error == ECANCELED) {  // somebody took us, or another, for dead
      learn_fence(home, added);
      continue;
    }
    if (elsewhere(added)) {
      co_await follow(std::move(added), home, name);
      continue;
    }
    if (added.error != 0) co_return refuse(added.error == ESTALE ? ENOENT : added.error);
    if (big(added)) co_await split_when_big(home, added.live);
    promised.entry = std::move(added.entry);
    promised.sequence = added.sequence;
    promised.lease_left = added.lease_left;
    promised.sharded = added.sharded;
    promised.changed = added.changed;
    co_return promised;
  }
  co_return refuse(EIO);
}

Task<int> Metadata::settle_directory(InodeId directory) {
  Reply inode = co_await getattr(directory);
  if (inode.error != 0) co_return inode.error == ENOENT ? 0 : inode.error;
  if (!inode.inode->has(Inode::kDying)) co_return 0;
  const int error = co_await settle_dying(*inode.inode, home_of(directory));
  co_return error;
}

Task<int> Metadata::drop_nameless(InodeId directory) {
  Dying dying;
  dying.transfer = base::entropy();
  const int error = co_await mark_dying(directory, dying);
  if (error != 0) co_return error;
  const int dropped = co_await drop_directory(directory);
  co_return dropped;
}

Task<int> Metadata::settle_record(std::string key) {
  Call call(client_, Operation::lookup(key));
  const Outcome record = co_await call;
  if (record.code == base::Code::not_found) co_return 0;
  if (!record.ok()) co_return errno_of(record);
  const auto brace = key.find('}'), slash = key.rfind('/');
  if (!key.starts_with("{d:") || brace == std::string::npos || slash < brace) co_return EINVAL;
  const HomeId home{std::strtoull(key.c_str() + 3, nullptr, 16)};
  const std::uint64_t id = std::strtoull(key.c_str() + slash + 1, nullptr, 16);
  if (key.compare(brace + 1, 2, "u/") == 0) {
    const InodeId owed{std::strtoull(record.value.c_str(), nullptr, 10)};
    const int error = co_await pay(owed, home, id);
    co_return error;
  }
  if (key.compare(brace + 1, 2, "k/") == 0) {
    if (record.value.size() != 8) co_return 0;  // of an older build: it ends by itself
    const HomeId debtor{base::load<std::uint64_t>(record.value.data())};
    const int error = co_await forget_marker(std::move(key), debt_key(debtor, id));
    co_return error;
  }
  if (key.compare(brace + 1, 2, "m/") == 0) {
    const int error = co_await settle_marker(std::move(key), id, record.value);
    co_return error;
  }
  auto promise = unpack<LinkRequest>(record.value);
  if (!promise) co_return EIO;
  // Not whether the name is there: it may have come and gone since, and its link with it.
  TransferRequest cancel;
  cancel.transfer = promise->id;
  Reply outcome = co_await ask(promise->to, "fusionfs.move_cancel", pack(cancel));
  if (outcome.error != 0) co_return outcome.error;
  promise->undo = !outcome.done;
  promise->now = now();
  Reply settled = co_await ask(home, "fusionfs.settle_link", pack(*promise));
  if (settled.error != 0) co_return settled.error;
  co_await settle_links(settled, settled.inode);
  if (outcome.done) remove_later(transfer_key(promise->to, promise->id));
  co_return 0;
}

// A marker is of use as long as the record is there whose settling asks for it.
Task<int> Metadata::forget_marker(std::string marker, std::string needed_by) {
  Call seen(client_, Operation::lookup(needed_by, zht::Range::nothing()));
  const Outcome needed = co_await seen;
  if (needed.ok()) co_return 0;
  if (needed.code != base::Code::not_found) co_return errno_of(needed);
  Call remove(client_, Operation::remove(marker, true));
  const Outcome removed = co_await remove;
  co_return removed.ok() ? 0 : errno_of(removed);
}

// What says that a move, or a promised name, has arrived.
Task<int> Metadata::settle_marker(std::string key, std::uint64_t transfer, std::string value) {
  if (value.empty() || value[0] != 'd') co_return 0;  // of an older build: it ends by itself
  auto arrived = unpack<Reply>(base::Bytes(value).substr(1));
  if (!arrived) co_return EIO;
  if (arrived->names.size() != 1 || !arrived->entry) co_return 0;  // of an older build: where it came from is not known
  if (arrived->shards.empty()) {
    const int error = co_await forget_marker(std::move(key), pending_key(arrived->entry->inode, transfer));
    co_return error;
  }
  NameRequest find;
  find.name = arrived->names.front();
  Reply left = co_await ask_name(arrived->shards.front(), find.name, "fusionfs.lookup", pack(find));
  if (left.error != 0 && left.error != ENOENT && left.error != ESTALE) co_return left.error;
  if (left.error == 0 && left.entry->moving && left.entry->moving->transfer == transfer) co_return 0;
  Call remove(client_, Operation::remove(key, true));
  const Outcome removed = co_await remove;
  co_return removed.ok() ? 0 : errno_of(removed);
}

Task<Reply> Metadata::setattr(SetRequest request) {
  if (request.now == 0) request.now = now();
  Reply reply = co_await ask(home_of(request.inode), "fusionfs.setattr", pack(request));
  if (!reply.shards.empty()) {
    if ((request.fields_set & SetRequest::kMtime) != 0) {
      DirectoryRequest times;
      times.mtime = request.mtime;
      times.ctime = request.now;
      Reply touched = co_await ask_shards(home_of(request.inode), reply, "fusionfs.touch_directory", pack(times));
      if (touched.error != 0) co_return refuse(touched.error);
    }
    reply = co_await with_shards(std::move(reply));
  }
  co_return reply;
}

Task<Reply> Metadata::commit(CommitRequest request) {
  Reply reply = co_await ask(home_of(request.inode), "fusionfs.commit", pack(request));
  co_return reply;
}

Task<Reply> Metadata::set_attribute(AttributeRequest request, bool remove) {
  request.now = now();
  Reply reply = co_await ask(home_of(request.inode), remove ? "fusionfs.remove_attribute" : "fusionfs.set_attribute",
                             pack(request));
  if (!reply.shards.empty()) reply = co_await with_shards(std::move(reply));
  co_return reply;
}

Task<Metadata::AttributesReply> Metadata::get_attributes(InodeId inode) {
  Call call(client_, Operation::lookup(attributes_key(inode)));
  const Outcome outcome = co_await call;
  AttributesReply reply;
  if (outcome.code == base::Code::not_found) co_return reply;
  reply.error = errno_of(outcome);
  if (reply.error != 0) co_return reply;
  auto decoded = decode_attributes(outcome.value);
  if (decoded)
    reply.attributes = std::move(*decoded);
  else
    reply.error = EIO;
  co_return reply;
}

Task<Reply> Metadata::reap(InodeId inode, std::uint64_t session) {
  DropRequest request;
  request.inode = inode;
  request.session = session != 0 ? session : options_.opener;
  request.now = now();
  Reply reply = co_await ask(home_of(inode), "fusionfs.reap", pack(request));
  if (reply.error == 0 && reply.gone && reply.inode && options_.gone) options_.gone(*reply.inode);
  co_return reply;
}

Task<Reply> Metadata::inodes(HomeId home, std::vector<InodeId> wanted) {
  InodesRequest request;
  request.inodes = std::move(wanted);
  Reply reply = co_await ask(home, "fusionfs.attributes", pack(request));
  co_return reply;
}

}  // namespace fusionfs

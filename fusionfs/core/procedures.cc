#include "fusionfs/core/procedures.h"

#include <algorithm>
#include <cerrno>
#include <unordered_map>

#include "fusionfs/core/requests.h"

namespace fusionfs {
namespace {

using base::Code;
using base::fail;
using base::Result;
using zht::Transaction;

constexpr std::chrono::milliseconds kMarkerLife{std::chrono::hours(24)};
constexpr std::chrono::milliseconds kLeaseRecordLife{std::chrono::minutes(3)};

// A listing is rewritten without its dead records when they are more than half of it; but never more than this many
// bytes inside one request, which would hold up the partition's other users: bigger ones wait until they have shrunk.
constexpr std::uint64_t kMaxCompaction = std::uint64_t{8} << 20;
constexpr std::uint32_t kMinRecordsToCompact = 64;
constexpr std::size_t kCompactedFragment = std::size_t{1} << 20;

Reply refuse(int error) {
  Reply reply;
  reply.error = error;
  return reply;
}

// The keys of one home, decoded.
class Shard {
 public:
  Shard(Transaction& tables, HomeId home) : tables_(tables), home_(home) {}

  HomeId home() const { return home_; }
  bool local(InodeId inode) const { return home_of(inode) == home_; }

  // Reads the directory's own record and the tail of its listing. An errno when there is none, or it is dying.
  Result<int> open() {
    TRY_LET(directory, inode(make_inode(home_, kDirectoryCounter)));
    if (!directory) return ENOENT;
    const auto tail = tables_.lookup(listing_key(home_), zht::Range::tail(1));
    if (!tail) return fail(Code::corrupt, "directory ", tag_of(home_), " has an inode and no listing");
    Bytes bytes = tail->value;
    auto record = decode_listing(bytes);
    if (!record || !bytes.empty()) return fail(Code::corrupt, "listing of ", tag_of(home_), ": last record is damaged");
    directory_ = std::move(*directory);
    tail_ = std::move(*record);
    listing_size_ = tail->size;
    return directory_.has(Inode::kDying) ? ESTALE : 0;
  }
  // Asks for the lease of the names for `session`. Returns how long another session has it: nothing may change then.
  Result<Nanos> claim(std::uint64_t session) {
    const Nanos now = tables_.now().time_since_epoch().count();
    Lease lease;
    const std::string key = lease_key(home_);
    if (const auto found = tables_.lookup(key)) {
      auto decoded = decode_lease(found->value);
      if (!decoded) return fail(Code::corrupt, "lease of ", tag_of(home_), ": damaged, or of a newer format");
      lease = *decoded;
    }
    // A clock that was set back must not stretch them.
    lease.until = std::min(lease.until, now + kLeaseLife);
    lease.contended_until = std::min(lease.contended_until, now + kContended);
    if (lease.session != session && lease.until > now) {
      if (lease.contended_until <= now) lease.contended_until = now + kContended;
      TRY(tables_.insert(key, encode(lease), kLeaseRecordLife));
      return lease.until - now;
    }
    if (session == 0) return Nanos{0};
    const bool mine = lease.session == session && lease.until > now;
    if (lease.contended_until <= now && (!mine || lease.until - now < kLeaseLife / 2)) {
      lease.session = session;
      lease.until = now + kLeaseLife;
      TRY(tables_.insert(key, encode(lease), kLeaseRecordLife));
    } else if (!mine) {
      return Nanos{0};
    }
    lease_left_ = lease.until - now;
    return Nanos{0};
  }
  Nanos lease_left() const { return lease_left_; }
  Transaction& tables() { return tables_; }
  const Inode& directory() const { return directory_; }
  const ListingRecord& tail() const { return tail_; }

  Result<std::optional<Inode>> inode(InodeId id) {
    const auto found = tables_.lookup(inode_key(id));
    if (!found) return std::optional<Inode>();
    auto decoded = decode_inode(id, found->value);
    if (!decoded) return fail(Code::corrupt, "inode ", raw(id), ": damaged, or of a newer format");
    return decoded;
  }
  Result<void> put(Inode& inode) {
    inode.revision += 1;
    return tables_.insert(inode_key(inode.id), encode(inode));
  }
  Result<void> erase(const Inode& inode) {
    TRY(tables_.remove(inode_key(inode.id)));
    if (inode.has(Inode::kHasAttributes)) TRY(tables_.remove(attributes_key(inode.id)));
    return {};
  }

  Result<std::optional<Entry>> entry(Bytes name) {
    const auto found = tables_.lookup(entry_key(home_, name));
    if (!found) return std::optional<Entry>();
    auto decoded = decode_entry(found->value);
    if (!decoded)
      return fail(Code::corrupt, "entry ", base::escape(name), " of ", tag_of(home_),
                  ": damaged, or of a newer format");
    return decoded;
  }
  Result<void> put(Bytes name, const Entry& entry) { return tables_.insert(entry_key(home_, name), encode(entry)); }

  // Both write the entry and the listing. `now` becomes the directory's mtime and ctime.
  Result<void> add(const std::string& name, const Entry& entry, Nanos now) {
    TRY(put(name, entry));
    tail_.live += 1;
    if (is_directory(entry.type)) tail_.directories += 1;
    return log(ListingRecord::Kind::add, name, entry, now);
  }
  Result<void> take(const std::string& name, const Entry& entry, Nanos now) {
    TRY(tables_.remove(entry_key(home_, name)));
    tail_.live -= 1;
    if (is_directory(entry.type)) tail_.directories -= 1;
    return log(ListingRecord::Kind::remove, name, entry, now);
  }
  // Only the directory's times change.
  Result<void> touch(Nanos mtime, Nanos ctime) {
    tail_.kind = ListingRecord::Kind::state;
    tail_.name.clear();
    tail_.inode = InodeId{};
    tail_.type = 0;
    tail_.mtime = mtime;
    tail_.ctime = ctime;
    return append();
  }

  // A counter that no inode of this home has. It only comes round after 268 million creations.
  Result<std::uint32_t> next_counter() {
    for (int tries = 0; tries < 1000; ++tries) {
      const std::uint32_t counter = tail_.next;
      tail_.next = counter == kMaxCounter ? kFirstFileCounter : counter + 1;
      if (!tables_.lookup(inode_key(make_inode(home_, counter)), zht::Range::nothing())) return counter;
    }
    return fail(Code::no_space, "directory shard ", tag_of(home_), " has no free inode number");
  }

  // Takes one link off a local inode; the inode goes with its last link unless the mount has it open.
  Result<void> drop_link(InodeId id, Nanos now, const std::vector<InodeId>& held, std::optional<Inode>& after,
                         bool& gone) {
    TRY_LET(found, inode(id));
    if (!found) return {};  // taken care of before
    Inode file = std::move(*found);
    if (file.links > 0) file.links -= 1;
    file.ctime = std::max(file.ctime, now);
    gone = file.links == 0 && std::find(held.begin(), held.end(), id) == held.end();
    if (gone) {
      file.revision += 1;
      TRY(erase(file));
    } else {
      TRY(put(file));
    }
    after = std::move(file);
    return {};
  }
  // The same for any inode: a foreign one leaves a debt.
  Result<void> release(const Entry& entry, Nanos now, const std::vector<InodeId>& held, Reply& reply,
                       std::optional<Inode>& after) {
    if (is_directory(entry.type)) return {};  // its own home was marked dying; the caller drops it
    if (local(entry.inode)) return drop_link(entry.inode, now, held, after, reply.gone);
    // Unique among all homes: the payer remembers it.
    std::string place = tag_of(home_);
    base::Writer(place).u64(tail_.sequence);
    reply.debt = base::hash64(place);
    return tables_.insert(debt_key(home_, reply.debt), std::to_string(raw(entry.inode)));
  }
  Result<void> set_ctime(InodeId id, Nanos now, std::optional<Inode>& after) {
    if (!local(id)) return {};
    TRY_LET(found, inode(id));
    if (!found) return fail(Code::corrupt, "inode ", raw(id), " has a name in its home and no record");
    found->ctime = std::max(found->ctime, now);
    TRY(put(*found));
    after = std::move(found);
    return {};
  }

 private:
  Result<void> log(ListingRecord::Kind kind, const std::string& name, const Entry& entry, Nanos now) {
    tail_.kind = kind;
    tail_.name = name;
    tail_.inode = entry.inode;
    tail_.type = entry.type;
    tail_.mtime = std::max(tail_.mtime, now);
    tail_.ctime = std::max(tail_.ctime, now);
    return append();
  }
  Result<void> append() {
    tail_.sequence += 1;
    tail_.records += 1;
    std::string bytes;
    encode(tail_, bytes);
    TRY(tables_.append(listing_key(home_), bytes));
    listing_size_ += bytes.size();
    if (tail_.records < kMinRecordsToCompact || tail_.live >= tail_.records / 2) return {};
    if (tail_.live > 0 && listing_size_ > kMaxCompaction) return {};
    return compact();
  }
  Result<void> compact() {
    std::vector<ListingRecord> kept;
    if (tail_.live > 0) {
      const auto whole = tables_.lookup(listing_key(home_));
      if (!whole) return fail(Code::corrupt, "listing of ", tag_of(home_), " is gone");
      std::unordered_map<std::string, std::size_t> place;  // of a live name in `kept`; size_t: index
      Bytes rest = whole->value;
      std::vector<ListingRecord> all;
      while (!rest.empty()) {
        auto record = decode_listing(rest);
        if (!record)
          return fail(Code::corrupt, "listing of ", tag_of(home_), ": damaged at byte ",
                      whole->value.size() - rest.size());
        if (record->kind == ListingRecord::Kind::add) {
          place[record->name] = all.size();
          all.push_back(std::move(*record));
        } else if (record->kind == ListingRecord::Kind::remove) {
          place.erase(record->name);
        }
      }
      for (std::size_t i = 0; i < all.size(); ++i) {
        const auto found = place.find(all[i].name);
        if (found != place.end() && found->second == i) kept.push_back(std::move(all[i]));
      }
    }
    tail_.kind = ListingRecord::Kind::state;
    tail_.name.clear();
    tail_.inode = InodeId{};
    tail_.type = 0;
    tail_.generation += 1;
    tail_.records = static_cast<std::uint32_t>(kept.size()) + 1;
    std::string last;
    encode(tail_, last);
    // The state is a fragment of its own: the next change reads only that.
    TRY(tables_.remove(listing_key(home_)));
    std::string bytes;
    listing_size_ = last.size();
    for (auto& record : kept) {
      record.generation = tail_.generation;
      encode(record, bytes);
      if (bytes.size() < kCompactedFragment) continue;
      TRY(tables_.append(listing_key(home_), bytes));
      listing_size_ += bytes.size();
      bytes.clear();
    }
    if (!bytes.empty()) TRY(tables_.append(listing_key(home_), bytes));
    listing_size_ += bytes.size();
    return tables_.append(listing_key(home_), last);
  }

  Transaction& tables_;
  HomeId home_;
  Inode directory_;
  ListingRecord tail_;
  std::uint64_t listing_size_ = 0;
  Nanos lease_left_ = 0;
};

// Opens the shard as a directory that takes part in a change; a refusal ends the procedure.
#define OPEN_DIRECTORY(shard)                                        \
  {                                                                  \
    TRY_LET(open_error, (shard).open());                             \
    if (open_error != 0) {                                           \
      Reply refused = refuse(open_error);                            \
      if (open_error == ESTALE) refused.inode = (shard).directory(); \
      return refused;                                                \
    }                                                                \
  }

Result<Reply> lookup(Transaction& tables, HomeId home, const NameRequest& request) {
  Shard shard(tables, home);
  TRY_LET(entry, shard.entry(request.name));
  if (!entry) return refuse(ENOENT);
  Reply reply;
  if (shard.local(entry->inode)) {
    TRY_LET(inode, shard.inode(entry->inode));
    if (!inode)
      return fail(Code::corrupt, "name ", base::escape(request.name), " of ", tag_of(home), " leads to no inode");
    reply.inode = std::move(inode);
  }
  reply.entry = std::move(entry);
  return reply;
}

Result<Reply> create(Shard& shard, const CreateRequest& request) {
  Reply reply;
  TRY_LET(existing, shard.entry(request.name));
  if (existing) {
    reply.error = EEXIST;
    if (shard.local(existing->inode)) {
      TRY_LET(inode, shard.inode(existing->inode));
      reply.inode = std::move(inode);
    }
    reply.entry = std::move(existing);
    return reply;
  }
  Inode inode;
  inode.mode = request.mode;
  inode.uid = request.uid;
  inode.gid = request.gid;
  inode.device = request.device;
  inode.atime = inode.mtime = inode.ctime = inode.btime = request.now;
  inode.content = request.target;
  inode.size = request.target.size();
  if (is_regular(request.mode)) inode.flags = Inode::kInline;
  if ((shard.directory().mode & 02000) != 0) {
    inode.gid = shard.directory().gid;
    if (is_directory(request.mode)) inode.mode |= 02000;
  }
  Entry entry;
  entry.type = request.mode & kTypeMask;
  if (is_directory(request.mode)) {
    inode.id = request.directory;
    inode.links = 2;
    inode.parent = make_inode(shard.home(), kDirectoryCounter);
    entry.initial = encode(inode);
  } else {
    TRY_LET(counter, shard.next_counter());
    inode.id = make_inode(shard.home(), counter);
    TRY(shard.put(inode));
  }
  entry.inode = inode.id;
  TRY(shard.add(request.name, entry, request.now));
  reply.entry = std::move(entry);
  reply.inode = std::move(inode);
  return reply;
}

Result<Reply> unlink(Shard& shard, const UnlinkRequest& request) {
  TRY_LET(entry, shard.entry(request.name));
  if (!entry) return refuse(ENOENT);
  Reply reply;
  reply.entry = entry;
  if (entry->moving) {
    reply.error = EAGAIN;
    return reply;
  }
  if (is_directory(entry->type)) {
    reply.error = EISDIR;
    return reply;
  }
  TRY(shard.take(request.name, *entry, request.now));
  TRY(shard.release(*entry, request.now, request.held, reply, reply.inode));
  return reply;
}

Result<Reply> remove_directory(Shard& shard, const UnlinkRequest& request) {
  TRY_LET(entry, shard.entry(request.name));
  Reply reply;
  if (!entry || entry->inode != request.directory) return reply;  // done before
  if (entry->moving) {
    reply.error = EAGAIN;
    reply.entry = std::move(entry);
    return reply;
  }
  TRY(shard.take(request.name, *entry, request.now));
  return reply;
}

// What may replace what. 0, or the errno of rename(2).
int replaceable(const Entry& from, const Entry& to) {
  if (is_directory(from.type) && !is_directory(to.type)) return ENOTDIR;
  if (!is_directory(from.type) && is_directory(to.type)) return EISDIR;
  return 0;
}

Result<Reply> rename(Shard& shard, const RenameRequest& request) {
  // Whoever found the dying directory abandoned cancelled the transfer before reviving it.
  if (request.dying != InodeId{} &&
      shard.tables().lookup(transfer_key(shard.home(), request.transfer), zht::Range::nothing()))
    return refuse(ECANCELED);
  Reply reply;
  TRY_LET(from, shard.entry(request.from));
  TRY_LET(to, shard.entry(request.to));
  if (!from) return refuse(ENOENT);
  reply.entry = from;
  reply.other_entry = to;
  if (from->moving || (to && to->moving)) {
    reply.error = EAGAIN;
    return reply;
  }
  if ((request.flags & kExchange) != 0) {
    if (!to) return refuse(ENOENT);
    if (request.from == request.to) return reply;
    TRY(shard.take(request.from, *from, request.now));
    TRY(shard.take(request.to, *to, request.now));
    TRY(shard.add(request.from, *to, request.now));
    TRY(shard.add(request.to, *from, request.now));
    TRY(shard.set_ctime(from->inode, request.now, reply.inode));
    TRY(shard.set_ctime(to->inode, request.now, reply.other));
    reply.done = true;
    return reply;
  }
  if (to) {
    if ((request.flags & kNoReplace) != 0) {
      reply.error = EEXIST;
      return reply;
    }
    if (from->inode == to->inode) return reply;  // two names of one file: nothing happens
    reply.error = replaceable(*from, *to);
    if (reply.error != 0) return reply;
    if (is_directory(to->type) && request.dying != to->inode) {
      reply.error = EINPROGRESS;
      return reply;
    }
    TRY(shard.take(request.to, *to, request.now));
    TRY(shard.release(*to, request.now, request.held, reply, reply.other));
  }
  TRY(shard.take(request.from, *from, request.now));
  TRY(shard.add(request.to, *from, request.now));
  TRY(shard.set_ctime(from->inode, request.now, reply.inode));
  reply.done = true;
  return reply;
}

// A move to another home. The name left is marked; arriving there, with the marker transfer_key(), is what decides;
// then the name left is removed. move_cancel settles the marker against a move that has not yet arrived.
Result<Reply> move_begin(Transaction& tables, HomeId home, const TransferRequest& request) {
  Shard shard(tables, home);
  OPEN_DIRECTORY(shard);
  TRY_LET(entry, shard.entry(request.name));
  if (!entry) return refuse(ENOENT);
  Reply reply;
  if (entry->moving) {
    reply.error = EAGAIN;
    reply.entry = std::move(entry);
    return reply;
  }
  entry->moving = Moving{request.transfer, request.now, request.to, request.to_name, (request.flags & kExchange) != 0};
  TRY(shard.put(request.name, *entry));
  reply.entry = std::move(entry);
  return reply;
}

constexpr char kArrived = 'd', kCancelled = 'c';

Result<Reply> move_install(Shard& shard, const TransferRequest& request) {
  const std::string marker_key = transfer_key(shard.home(), request.transfer);
  if (const auto marker = shard.tables().lookup(marker_key)) {
    if (marker->value.empty() || marker->value[0] != kArrived) return refuse(ECANCELED);
    auto before = unpack<Reply>(Bytes(marker->value).substr(1));
    if (!before) return fail(Code::corrupt, "marker ", marker_key, " is damaged");
    return *before;
  }
  if (!request.entry) return fail(Code::invalid, "move_install without an entry");
  Entry arriving = *request.entry;
  arriving.moving.reset();
  Reply reply;
  reply.entry = arriving;
  TRY_LET(to, shard.entry(request.name));
  reply.other_entry = to;
  if (to && to->moving) {
    reply.error = EAGAIN;
    return reply;
  }
  if ((request.flags & kExchange) != 0) {
    if (!to) {
      reply.error = ENOENT;
      return reply;
    }
    TRY(shard.take(request.name, *to, request.now));
    TRY(shard.set_ctime(to->inode, request.now, reply.other));
  } else if (to) {
    if ((request.flags & kNoReplace) != 0) {
      reply.error = EEXIST;
      return reply;
    }
    if (arriving.inode == to->inode) {
      reply.error = EALREADY;
      return reply;
    }
    reply.error = replaceable(arriving, *to);
    if (reply.error != 0) return reply;
    if (is_directory(to->type) && request.dying != to->inode) {
      reply.error = EINPROGRESS;
      return reply;
    }
    TRY(shard.take(request.name, *to, request.now));
    TRY(shard.release(*to, request.now, request.held, reply, reply.other));
  }
  TRY(shard.add(request.name, arriving, request.now));
  TRY(shard.set_ctime(arriving.inode, request.now, reply.inode));
  reply.done = true;
  TRY(shard.tables().insert(marker_key, std::string(1, kArrived) + pack(reply)));
  return reply;
}

Result<Reply> move_end(Shard& shard, const TransferRequest& request) {
  TRY_LET(entry, shard.entry(request.name));
  Reply reply;
  if (!entry || !entry->moving || entry->moving->transfer != request.transfer) return reply;  // done before
  TRY(shard.take(request.name, *entry, request.now));
  if (request.entry) {
    Entry back = *request.entry;
    back.moving.reset();
    TRY(shard.add(request.name, back, request.now));
  }
  TRY(shard.set_ctime(entry->inode, request.now, reply.inode));
  reply.done = true;
  return reply;
}

Result<Reply> move_undo(Transaction& tables, HomeId home, const TransferRequest& request) {
  Shard shard(tables, home);
  TRY_LET(entry, shard.entry(request.name));
  if (!entry || !entry->moving || entry->moving->transfer != request.transfer) return Reply{};
  entry->moving.reset();
  TRY(shard.put(request.name, *entry));
  return Reply{};
}

// Whether the move arrived; if it has not, it never will.
Result<Reply> move_cancel(Transaction& tables, HomeId home, const TransferRequest& request) {
  const std::string marker_key = transfer_key(home, request.transfer);
  if (const auto marker = tables.lookup(marker_key)) {
    if (marker->value.empty() || marker->value[0] != kArrived) return Reply{};
    auto before = unpack<Reply>(Bytes(marker->value).substr(1));
    if (!before) return fail(Code::corrupt, "marker ", marker_key, " is damaged");
    return *before;
  }
  TRY(tables.insert(marker_key, std::string(1, kCancelled), kMarkerLife));
  return Reply{};
}

Result<Reply> link(Shard& shard, const LinkRequest& request) {
  TRY_LET(existing, shard.entry(request.name));
  if (existing) return refuse(EEXIST);
  TRY_LET(inode, shard.inode(request.inode));
  if (!inode || inode->links == 0) return refuse(ENOENT);
  if (inode->links >= kMaxLinks) return refuse(EMLINK);
  inode->links += 1;
  inode->ctime = std::max(inode->ctime, request.now);
  TRY(shard.put(*inode));
  Entry entry;
  entry.inode = request.inode;
  entry.type = inode->mode & kTypeMask;
  TRY(shard.add(request.name, entry, request.now));
  Reply reply;
  reply.entry = std::move(entry);
  reply.inode = std::move(inode);
  return reply;
}

Result<Reply> promise_link(Transaction& tables, HomeId home, const LinkRequest& request) {
  Shard shard(tables, home);
  TRY_LET(inode, shard.inode(request.inode));
  if (!inode || inode->links == 0) return refuse(ENOENT);
  if (inode->links >= kMaxLinks) return refuse(EMLINK);
  inode->links += 1;
  inode->ctime = std::max(inode->ctime, request.now);
  TRY(shard.put(*inode));
  TRY(tables.insert(pending_key(request.inode, request.id), pack(request)));
  Reply reply;
  reply.inode = std::move(inode);
  return reply;
}

Result<Reply> add_entry(Shard& shard, const LinkRequest& request) {
  TRY_LET(existing, shard.entry(request.name));
  if (existing) return refuse(EEXIST);
  Entry entry;
  entry.inode = request.inode;
  entry.type = request.type;
  TRY(shard.add(request.name, entry, request.now));
  Reply reply;
  reply.entry = std::move(entry);
  return reply;
}

Result<Reply> settle_link(Transaction& tables, HomeId home, const LinkRequest& request) {
  const std::string key = pending_key(request.inode, request.id);
  if (!tables.lookup(key, zht::Range::nothing())) return Reply{};
  TRY(tables.remove(key));
  Reply reply;
  if (request.undo) {
    Shard shard(tables, home);
    TRY(shard.drop_link(request.inode, request.now, {}, reply.inode, reply.gone));
  }
  return reply;
}

Result<Reply> pay_debt(Transaction& tables, HomeId home, const DropRequest& request) {
  const std::string key = paid_key(request.inode, request.id);
  if (tables.lookup(key, zht::Range::nothing())) return Reply{};
  TRY(tables.insert(key, "1", kMarkerLife));
  Shard shard(tables, home);
  Reply reply;
  TRY(shard.drop_link(request.inode, request.now, request.held, reply.inode, reply.gone));
  return reply;
}

// Removes an inode without names whose last opener has closed it.
Result<Reply> reap(Transaction& tables, HomeId home, const DropRequest& request) {
  Shard shard(tables, home);
  TRY_LET(inode, shard.inode(request.inode));
  Reply reply;
  if (!inode) {
    reply.gone = true;
    return reply;
  }
  if (inode->links > 0) return reply;
  TRY(shard.erase(*inode));
  reply.gone = true;
  reply.inode = std::move(inode);
  return reply;
}

Result<Reply> setattr(Transaction& tables, HomeId home, const SetRequest& request) {
  Shard shard(tables, home);
  const bool directory = counter_of(request.inode) == kDirectoryCounter;
  Inode inode;
  if (directory) {
    TRY_LET(error, shard.open());
    if (error != 0 && error != ESTALE) return refuse(error);
    inode = shard.directory();
  } else {
    TRY_LET(found, shard.inode(request.inode));
    if (!found) return refuse(ENOENT);
    inode = std::move(*found);
  }
  const auto set = [&](SetRequest::Field field) { return (request.fields_set & field) != 0; };
  if (set(SetRequest::kMode)) inode.mode = (inode.mode & kTypeMask) | (request.mode & 07777);
  if (set(SetRequest::kUid)) inode.uid = request.uid;
  if (set(SetRequest::kGid)) inode.gid = request.gid;
  if (set(SetRequest::kAtime)) inode.atime = request.atime;
  if (set(SetRequest::kMtime)) inode.mtime = request.mtime;
  if (set(SetRequest::kParent)) inode.parent = request.parent;
  if (set(SetRequest::kLinks)) {
    if (directory) return refuse(EISDIR);
    if (inode.revision != request.revision) return refuse(EAGAIN);
    inode.links = request.links;
  }
  if (set(SetRequest::kSize)) {
    if (!is_regular(inode.mode)) return refuse(directory ? EISDIR : EINVAL);
    inode.size = request.size;
    if (inode.has(Inode::kInline) && inode.content.size() > request.size) inode.content.resize(request.size);
    if (request.size == 0) {  // what is written next may be small
      inode.flags |= Inode::kInline;
      inode.store = 0;
      inode.blocks = 0;
    }
    if (!set(SetRequest::kMtime)) inode.mtime = request.now;
  }
  inode.ctime = request.now;
  if (directory) {
    if (set(SetRequest::kMtime)) TRY(shard.touch(request.mtime, request.now));
    TRY(shard.put(inode));
    overlay(inode, shard.tail());
  } else {
    TRY(shard.put(inode));
  }
  Reply reply;
  reply.inode = std::move(inode);
  return reply;
}

Result<Reply> commit(Transaction& tables, HomeId home, const CommitRequest& request) {
  Shard shard(tables, home);
  TRY_LET(inode, shard.inode(request.inode));
  if (!inode) return refuse(ENOENT);
  if (request.store != 0) {
    if (inode->store != 0 && inode->store != request.store) {
      Reply reply = refuse(EXDEV);
      reply.inode = std::move(inode);
      return reply;
    }
    inode->store = request.store;
    inode->flags = static_cast<std::uint8_t>(inode->flags & ~Inode::kInline);
    inode->content.clear();
    inode->blocks = request.blocks;
  } else if (!request.bytes.empty()) {
    if (!inode->has(Inode::kInline) || request.offset + request.bytes.size() > kMaxInline) {
      Reply reply = refuse(EMEDIUMTYPE);  // somebody else moved the content to a chunk store
      reply.inode = std::move(inode);
      return reply;
    }
    if (inode->content.size() < request.offset + request.bytes.size())
      inode->content.resize(request.offset + request.bytes.size());
    inode->content.replace(request.offset, request.bytes.size(), request.bytes);
  }
  inode->size = std::max(inode->size, request.size);
  inode->mtime = std::max(inode->mtime, request.mtime);
  inode->ctime = std::max(inode->ctime, request.mtime);
  TRY(shard.put(*inode));
  Reply reply;
  reply.inode = std::move(inode);
  return reply;
}

Result<Reply> change_attribute(Transaction& tables, HomeId home, const AttributeRequest& request, bool remove) {
  Shard shard(tables, home);
  TRY_LET(inode, shard.inode(request.inode));
  if (!inode) return refuse(ENOENT);
  Attributes attributes;
  const std::string key = attributes_key(request.inode);
  if (const auto found = tables.lookup(key)) {
    auto decoded = decode_attributes(found->value);
    if (!decoded) return fail(Code::corrupt, "extended attributes of inode ", raw(request.inode), " are damaged");
    attributes = std::move(*decoded);
  }
  const auto place = std::lower_bound(attributes.begin(), attributes.end(), request.name,
                                      [](const auto& each, const std::string& name) { return each.first < name; });
  const bool present = place != attributes.end() && place->first == request.name;
  if (remove) {
    if (!present) return refuse(ENODATA);
    attributes.erase(place);
  } else {
    if (present && (request.flags & 1) != 0) return refuse(EEXIST);
    if (!present && (request.flags & 2) != 0) return refuse(ENODATA);
    if (present)
      place->second = request.value;
    else
      attributes.insert(place, {request.name, request.value});
  }
  const std::string bytes = encode(attributes);
  if (bytes.size() > kMaxAttributes) return refuse(ENOSPC);
  if (attributes.empty()) {
    TRY(tables.remove(key));
    inode->flags = static_cast<std::uint8_t>(inode->flags & ~Inode::kHasAttributes);
  } else {
    TRY(tables.insert(key, bytes));
    inode->flags = static_cast<std::uint8_t>(inode->flags | Inode::kHasAttributes);
  }
  if (request.mode) inode->mode = (inode->mode & kTypeMask) | (*request.mode & 07777);
  inode->ctime = std::max(inode->ctime, request.now);
  TRY(shard.put(*inode));
  Reply reply;
  if (counter_of(request.inode) == kDirectoryCounter) {
    TRY_LET(error, shard.open());
    if (error == 0) overlay(*inode, shard.tail());
  }
  reply.inode = std::move(inode);
  return reply;
}
Result<Reply> set_attribute(Transaction& tables, HomeId home, const AttributeRequest& request) {
  return change_attribute(tables, home, request, false);
}
Result<Reply> remove_attribute(Transaction& tables, HomeId home, const AttributeRequest& request) {
  return change_attribute(tables, home, request, true);
}

Result<Reply> attributes(Transaction& tables, HomeId home, const InodesRequest& request) {
  Shard shard(tables, home);
  Reply reply;
  for (const InodeId id : request.inodes) {
    if (!shard.local(id)) return fail(Code::invalid, "inode ", raw(id), " does not live in ", tag_of(home));
    TRY_LET(inode, shard.inode(id));
    if (inode) reply.inodes.push_back(std::move(*inode));
  }
  return reply;
}

Result<Reply> stat_directory(Transaction& tables, HomeId home, const DirectoryRequest&) {
  Shard shard(tables, home);
  TRY_LET(error, shard.open());
  if (error != 0 && error != ESTALE) return refuse(error);
  Reply reply;
  reply.error = error;
  reply.inode = shard.directory();
  overlay(*reply.inode, shard.tail());
  return reply;
}

// Idempotent: the maker and whoever meets the name first may both do it.
Result<Reply> make_directory(Transaction& tables, HomeId home, const DirectoryRequest& request) {
  if (!request.inode || request.inode->id != make_inode(home, kDirectoryCounter)) {
    return fail(Code::invalid, "make_directory: the inode is not that of ", tag_of(home));
  }
  Shard shard(tables, home);
  TRY_LET(error, shard.open());
  Reply reply;
  if (error == ENOENT) {
    Inode made = *request.inode;
    TRY(shard.put(made));
    ListingRecord state;
    state.mtime = request.inode->mtime;
    state.ctime = request.inode->ctime;
    state.records = 1;
    std::string bytes;
    encode(state, bytes);
    TRY(tables.insert(listing_key(home), bytes));
    reply.inode = std::move(made);
    overlay(*reply.inode, state);
    return reply;
  }
  reply.inode = shard.directory();
  overlay(*reply.inode, shard.tail());
  return reply;
}

Result<Reply> mark_dying(Transaction& tables, HomeId home, const DirectoryRequest& request) {
  if (!request.dying) return fail(Code::invalid, "mark_dying without a reason");
  Shard shard(tables, home);
  TRY_LET(error, shard.open());
  if (error == ENOENT) return refuse(ENOENT);
  Reply reply;
  reply.inode = shard.directory();
  if (error == ESTALE) {
    const auto before = decode_dying(shard.directory().content);
    if (before && before->transfer == request.dying->transfer) return reply;  // by this very caller
    reply.error = EAGAIN;
    return reply;
  }
  if (shard.tail().live > 0) {
    reply.error = ENOTEMPTY;
    return reply;
  }
  reply.inode->flags |= Inode::kDying;
  reply.inode->content = encode(*request.dying);
  TRY(shard.put(*reply.inode));
  return reply;
}

Result<Reply> unmark_dying(Transaction& tables, HomeId home, const DirectoryRequest& request) {
  Shard shard(tables, home);
  TRY_LET(error, shard.open());
  if (error != ESTALE || !request.dying) return Reply{};
  const auto before = decode_dying(shard.directory().content);
  if (!before || before->transfer != request.dying->transfer) return Reply{};
  Inode inode = shard.directory();
  inode.flags = static_cast<std::uint8_t>(inode.flags & ~Inode::kDying);
  inode.content.clear();
  TRY(shard.put(inode));
  return Reply{};
}

// The last step of a removal: the name is gone already.
Result<Reply> drop_directory(Transaction& tables, HomeId home, const DirectoryRequest&) {
  Shard shard(tables, home);
  TRY_LET(error, shard.open());
  if (error == ENOENT) return Reply{};
  if (error != ESTALE) return refuse(EBUSY);
  TRY(shard.erase(shard.directory()));
  TRY(tables.remove(listing_key(home)));
  return Reply{};
}

// A change of the names of a directory, under its lease.
template <typename Request, Result<Reply> (*act)(Shard&, const Request&)>
Result<Reply> change(Transaction& tables, HomeId home, const Request& request) {
  Shard shard(tables, home);
  OPEN_DIRECTORY(shard);
  TRY_LET(wait, shard.claim(request.session));
  if (wait > 0) {
    Reply reply = refuse(EUSERS);
    reply.wait = wait;
    return reply;
  }
  TRY_LET(reply, act(shard, request));
  reply.sequence = shard.tail().sequence;
  reply.lease_left = shard.lease_left();
  return reply;
}

// The last step of a change: fine in a directory that is dying or has gone.
template <typename Request, Result<Reply> (*act)(Shard&, const Request&)>
Result<Reply> finish(Transaction& tables, HomeId home, const Request& request) {
  Shard shard(tables, home);
  TRY_LET(error, shard.open());
  if (error != 0 && error != ESTALE) return Reply{};
  if (error == 0) return change<Request, act>(tables, home, request);
  return act(shard, request);
}

// Wraps `function` as a procedure: the home comes from the key's tag, arguments and reply from their field lists.
template <typename Request>
void add(zht::Procedures& procedures, const char* name,
         Result<Reply> (*function)(Transaction&, HomeId, const Request&)) {
  procedures.add(std::string("fusionfs.") + name,
                 [function, name](Transaction& tables, Bytes key, Bytes arguments) -> Result<std::string> {
                   const Bytes tag = zht::hash_tag(key);
                   std::uint64_t home = 0;
                   if (tag.size() < 3 || tag.substr(0, 2) != "d:")
                     return fail(Code::invalid, name, ": key ", base::escape(key), " is not a directory shard");
                   for (const char c : tag.substr(2)) {
                     const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
                     if (digit < 0 || home > kMaxHome >> 4)
                       return fail(Code::invalid, name, ": key ", base::escape(key), " is not a directory shard");
                     home = home << 4 | static_cast<std::uint64_t>(digit);
                   }
                   const auto request = unpack<Request>(arguments);
                   if (!request)
                     return fail(Code::invalid, name, ": arguments of ", arguments.size(), " bytes cannot be read");
                   TRY_LET(reply, function(tables, HomeId{home}, *request));
                   return pack(reply);
                 });
}

}  // namespace

void add_procedures(zht::Procedures& procedures) {
  add(procedures, "lookup", lookup);
  add(procedures, "create", change<CreateRequest, create>);
  add(procedures, "unlink", change<UnlinkRequest, unlink>);
  add(procedures, "remove_directory", finish<UnlinkRequest, remove_directory>);
  add(procedures, "rename", change<RenameRequest, rename>);
  add(procedures, "move_begin", move_begin);
  add(procedures, "move_install", change<TransferRequest, move_install>);
  add(procedures, "move_end", finish<TransferRequest, move_end>);
  add(procedures, "move_undo", move_undo);
  add(procedures, "move_cancel", move_cancel);
  add(procedures, "link", change<LinkRequest, link>);
  add(procedures, "promise_link", promise_link);
  add(procedures, "add_entry", change<LinkRequest, add_entry>);
  add(procedures, "settle_link", settle_link);
  add(procedures, "pay_debt", pay_debt);
  add(procedures, "reap", reap);
  add(procedures, "setattr", setattr);
  add(procedures, "commit", commit);
  add(procedures, "set_attribute", set_attribute);
  add(procedures, "remove_attribute", remove_attribute);
  add(procedures, "attributes", attributes);
  add(procedures, "stat_directory", stat_directory);
  add(procedures, "make_directory", make_directory);
  add(procedures, "mark_dying", mark_dying);
  add(procedures, "unmark_dying", unmark_dying);
  add(procedures, "drop_directory", drop_directory);
}

}  // namespace fusionfs

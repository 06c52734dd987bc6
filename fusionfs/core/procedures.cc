#include "fusionfs/core/procedures.h"

#include <algorithm>
#include <cerrno>

#include "fusionfs/core/access_list.h"
#include "fusionfs/core/locks.h"
#include "fusionfs/core/openers.h"
#include "fusionfs/core/shard.h"
#include "fusionfs/core/splitting.h"

namespace fusionfs {
namespace {

using base::Code;
using base::fail;
using base::Result;
using zht::Transaction;

Result<Reply> lookup(Transaction& tables, HomeId home, const NameRequest& request) {
  Shard shard(tables, home);
  HERE(shard, request.name, false);
  TRY_LET(entry, shard.entry(request.name));
  if (!entry) {
    Reply absent = refuse(ENOENT);
    TRY_LET(there, shard.exists());
    absent.gone = !there;
    return absent;
  }
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

Result<Reply> open(Transaction& tables, HomeId home, const OpenRequest& request) {
  Shard shard(tables, home);
  Reply reply;
  if (!request.name.empty()) {
    NameRequest find;
    find.name = request.name;
    TRY_LET(found, lookup(tables, home, find));
    if (found.error != 0) return found;
    reply = std::move(found);
  } else if (request.inode != InodeId{}) {
    if (!shard.local(request.inode)) return fail(Code::invalid, "inode ", raw(request.inode), " does not live in ", tag_of(home));
    TRY_LET(inode, shard.inode(request.inode));
    if (!inode) return refuse(ENOENT);
    reply.inode = std::move(inode);
  }
  TRY(note_opener(tables, home, request.session, request.opens_now));
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
  const bool known = shard.local(shard.directory().id);
  if (((known ? shard.directory().mode : request.parent_mode) & 02000) != 0) {
    inode.gid = known ? shard.directory().gid : request.parent_gid;
    if (is_directory(request.mode)) inode.mode |= 02000;
  }
  Entry entry;
  entry.type = request.mode & kTypeMask;
  if (is_directory(request.mode)) {
    inode.id = request.directory;
    inode.links = 2;
    inode.parent = shard.directory().id;
    entry.initial = encode(inode);
  } else {
    TRY_LET(counter, shard.next_counter());
    inode.id = make_inode(shard.home(), counter);
    TRY(shard.put(inode));
  }
  if (request.opener != 0) TRY(note_opener(shard.tables(), shard.home(), request.opener, request.opens_now));
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
  TRY(shard.release(*entry, request.now, {request.session, request.held}, reply, reply.inode));
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
  reply.done = true;
  return reply;
}

// What may replace what. 0, or the errno of rename(2).
int replaceable(const Entry& from, const Entry& to) {
  if (is_directory(from.type) && !is_directory(to.type)) return ENOTDIR;
  if (!is_directory(from.type) && is_directory(to.type)) return EISDIR;
  return 0;
}

// What stands at `name` makes way for `arriving`, which is not the same file. 0; else the errno of rename(2), or EINPROGRESS.
template <typename Request>
Result<int> make_way(Shard& shard, const std::string& name, const Entry& to, const Entry& arriving,
                     const Request& request, Reply& reply) {
  if ((request.flags & kNoReplace) != 0) return EEXIST;
  if (const int error = replaceable(arriving, to); error != 0) return error;
  if (is_directory(to.type) && request.dying != to.inode) return EINPROGRESS;
  TRY(shard.take(name, to, request.now));
  TRY(shard.release(to, request.now, {request.session, request.held}, reply, reply.other));
  return 0;
}

constexpr char kArrived = 'd';

// A change that was begun by who knew `fence` of this home: the refusal when it was called off since, or may have been.
// A marker that says so was left by an older build.
Result<std::optional<Reply>> fenced(Shard& shard, std::uint64_t transfer, std::uint64_t fence) {
  TRY_LET(now, shard.fence());
  if (now == fence && !shard.tables().lookup(transfer_key(shard.home(), transfer), zht::Range::nothing()))
    return std::optional<Reply>();
  Reply reply = refuse(ECANCELED);
  reply.debt = now;
  return std::optional(std::move(reply));
}

Result<Reply> rename(Shard& shard, const RenameRequest& request) {
  // Whoever found the dying directory abandoned called the change off before reviving it.
  if (request.dying != InodeId{}) {
    TRY_LET(called_off, fenced(shard, request.transfer, request.fence));
    if (called_off) return std::move(*called_off);
  }
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
    const bool same = from->inode == to->inode;
    if (same && (request.flags & kNoReplace) == 0) return reply;  // two names of one file: nothing happens
    TRY_LET(error, make_way(shard, request.to, *to, *from, request, reply));
    reply.error = error;
    if (error != 0) return reply;
  }
  TRY(shard.take(request.from, *from, request.now));
  TRY(shard.add(request.to, *from, request.now));
  TRY(shard.set_ctime(from->inode, request.now, reply.inode));
  reply.done = true;
  return reply;
}

// A move to another home. The name left is marked; arriving there, with the marker transfer_key(), is what decides;
// then the name left is removed. move_cancel keeps a move that has not yet arrived from ever arriving. The marker says where the
// move came from (`shards`, `names`), that whoever meets it can see whether it is still of use.
Result<Reply> move_begin(Transaction& tables, HomeId home, const TransferRequest& request) {
  Shard shard(tables, home);
  OPEN_DIRECTORY(shard);
  HERE(shard, request.name, true);
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

Result<Reply> move_install(Shard& shard, const TransferRequest& request) {
  const std::string marker_key = transfer_key(shard.home(), request.transfer);
  if (const auto marker = shard.tables().lookup(marker_key)) {
    if (marker->value.empty() || marker->value[0] != kArrived) return refuse(ECANCELED);
    auto before = unpack<Reply>(Bytes(marker->value).substr(1));
    if (!before) return fail(Code::corrupt, "marker ", marker_key, " is damaged");
    return *before;
  }
  if (!request.entry) return fail(Code::invalid, "move_install without an entry");
  TRY_LET(called_off, fenced(shard, request.transfer, request.fence));
  if (called_off) return std::move(*called_off);
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
    const bool same = arriving.inode == to->inode && (request.flags & kNoReplace) == 0;
    TRY_LET(error, same ? Result<int>(EALREADY) : make_way(shard, request.name, *to, arriving, request, reply));
    reply.error = error;
    if (error != 0) return reply;
  }
  TRY(shard.add(request.name, arriving, request.now));
  TRY(shard.set_ctime(arriving.inode, request.now, reply.inode));
  reply.done = true;
  Reply marker = reply;
  if (!request.to_name.empty()) {
    marker.shards = {request.to};
    marker.names = {request.to_name};
  }
  TRY(shard.tables().insert(marker_key, std::string(1, kArrived) + pack(marker)));
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
  HERE(shard, request.name, true);
  TRY_LET(entry, shard.entry(request.name));
  if (!entry || !entry->moving || entry->moving->transfer != request.transfer) return Reply{};
  entry->moving.reset();
  TRY(shard.put(request.name, *entry));
  return Reply{};
}

// Whether the move, or the promised name, arrived; if it has not, it never will.
Result<Reply> move_cancel(Transaction& tables, HomeId home, const TransferRequest& request) {
  const std::string marker_key = transfer_key(home, request.transfer);
  if (const auto marker = tables.lookup(marker_key)) {
    if (marker->value.empty() || marker->value[0] != kArrived) return Reply{};
    auto before = unpack<Reply>(Bytes(marker->value).substr(1));
    if (!before) return fail(Code::corrupt, "marker ", marker_key, " is damaged");
    return *before;
  }
  // Into a directory that is gone nothing arrives.
  Shard shard(tables, home);
  TRY_LET(error, shard.open());
  if (error == 0 || error == ESTALE) TRY(shard.grow_fence());
  return Reply{};
}

Result<Reply> link(Shard& shard, const LinkRequest& request) {
  TRY_LET(existing, shard.entry(request.name));
  if (existing) return refuse(EEXIST);
  TRY_LET(inode, shard.inode(request.inode));
  if (!inode || inode->links == 0) return refuse(ENOENT);
  if (inode->links >= kMaxLinks) return refuse(EMLINK);
  inode->links += 1;
  inode->flags |= Inode::kLinked;
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
  inode->flags |= Inode::kLinked;
  inode->ctime = std::max(inode->ctime, request.now);
  TRY(shard.put(*inode));
  TRY(tables.insert(pending_key(request.inode, request.id), pack(request)));
  Reply reply;
  reply.inode = std::move(inode);
  return reply;
}

// A promised link's name. The marker, as of a move, decides: with it the promise is kept whatever becomes of the name
// meanwhile; who takes the maker for dead calls it off first (move_cancel), and what arrives later is refused.
Result<Reply> add_entry(Shard& shard, const LinkRequest& request) {
  TRY_LET(called_off, fenced(shard, request.id, request.fence));
  if (called_off) return std::move(*called_off);
  TRY_LET(existing, shard.entry(request.name));
  if (existing) return refuse(EEXIST);
  Entry entry;
  entry.inode = request.inode;
  entry.type = request.type;
  TRY(shard.add(request.name, entry, request.now));
  Reply reply;
  reply.done = true;
  reply.entry = std::move(entry);
  Reply marker = reply;
  marker.names = {request.name};
  TRY(shard.tables().insert(transfer_key(shard.home(), request.id), std::string(1, kArrived) + pack(marker)));
  return reply;
}

Result<Reply> settle_link(Transaction& tables, HomeId home, const LinkRequest& request) {
  const std::string key = pending_key(request.inode, request.id);
  if (!tables.lookup(key, zht::Range::nothing())) return Reply{};
  TRY(tables.remove(key));
  Reply reply;
  if (request.undo) {
    Shard shard(tables, home);
    TRY(shard.drop_link(request.inode, request.now, {request.session, {}}, reply, reply.inode));
  }
  return reply;
}

// A request may come again, or very late, when the debt has long been forgotten; it must not take off another link.
//
// An inode that has never had more than one link goes with it (or is left with none, held open): then there is nothing that a second
// payment could do. Any other is paid for with its revision, which the payer reads before he sees once more that the debt is there:
// what somebody else pays meanwhile makes it another. That it was paid is noted until the debt is gone, and by then no payer can have
// read a revision that is still the inode's and have seen the debt.
Result<Reply> pay(Transaction& tables, HomeId home, const PayRequest& request) {
  Shard shard(tables, home);
  TRY_LET(inode, shard.inode(request.inode));
  Reply reply;
  const std::string key = paid_key(request.inode, request.id);
  if (tables.lookup(key, zht::Range::nothing())) {
    reply.debt = request.id;
    return reply;
  }
  if (!inode) return reply;
  if (inode->links > 1 || inode->has(Inode::kLinked)) {
    if (request.revision != inode->revision) {
      reply.error = EAGAIN;
      reply.inode = std::move(inode);
      return reply;
    }
    std::string debtor;
    base::Writer(debtor).u64(raw(request.debtor));
    TRY(tables.insert(key, debtor));
    reply.debt = request.id;
  }
  TRY(shard.drop_link(request.inode, request.now, {request.session, request.held}, reply, reply.inode));
  return reply;
}

// As mounts of older builds ask.
Result<Reply> pay_debt(Transaction& tables, HomeId home, const DropRequest& request) {
  const std::string key = paid_key(request.inode, request.id);
  if (tables.lookup(key, zht::Range::nothing())) return Reply{};
  TRY(tables.insert(key, "1", kMarkerLife));
  Shard shard(tables, home);
  Reply reply;
  TRY(shard.drop_link(request.inode, request.now, {request.session, request.held}, reply, reply.inode));
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
  if (request.session == 0) {  // fsck knows that nobody has it open
    TRY(tables.remove(keepers_key(request.inode)));
  } else {
    TRY_LET(free, let_go(tables, request.inode, request.session));
    if (!free) return reply;
  }
  TRY(shard.erase(*inode));
  reply.gone = true;
  reply.inode = std::move(inode);
  return reply;
}

// The other homes of the directory: what this one answers is only of its own names.
Result<void> add_shards(Shard& shard, Reply& reply) {
  reply.sequence = shard.tail().sequence;
  TRY_LET(split, shard.split());
  if (split) tell_shards(*split, reply);
  return {};
}

Result<Attributes> attributes_of(Transaction& tables, InodeId inode) {
  const auto found = tables.lookup(attributes_key(inode));
  if (!found) return Attributes{};
  auto decoded = decode_attributes(found->value);
  if (!decoded) return fail(Code::corrupt, "extended attributes of inode ", raw(inode), " are damaged");
  return std::move(*decoded);
}

// `inode` has got another mode: its access control list says the same from now on.
Result<void> follow_mode(Transaction& tables, const Inode& inode) {
  if (!inode.has(Inode::kHasAttributes)) return {};
  TRY_LET(all, attributes_of(tables, inode.id));
  for (auto& [name, value] : all) {
    if (name != kAccessList) continue;
    std::string list = with_mode(value, inode.mode);
    if (list == value) return {};
    value = std::move(list);
    TRY(tables.insert(attributes_key(inode.id), encode(all)));
    return {};
  }
  return {};
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
  if (set(SetRequest::kMode)) {
    inode.mode = (inode.mode & kTypeMask) | (request.mode & 07777);
    TRY(follow_mode(tables, inode));
  }
  if (set(SetRequest::kUid)) inode.uid = request.uid;
  if (set(SetRequest::kGid)) inode.gid = request.gid;
  if (set(SetRequest::kAtime)) inode.atime = request.atime;
  if (set(SetRequest::kMtime)) inode.mtime = request.mtime;
  if (set(SetRequest::kParent)) inode.parent = request.parent;
  if (set(SetRequest::kLinks)) {
    if (directory) return refuse(EISDIR);
    if (inode.revision != request.revision) return refuse(EAGAIN);
    inode.links = request.links;
    inode.flags |= Inode::kLinked;
  }
  if (set(SetRequest::kSize)) {
    if (!is_regular(inode.mode)) return refuse(directory ? EISDIR : EINVAL);
    inode.size = request.size;
    if (inode.has(Inode::kInline) && inode.content.size() > request.size) inode.content.resize(request.size);
    if (request.size == 0) {  // what is written next may be small
      inode.flags |= Inode::kInline;
      inode.store = 0;
      inode.copies.clear();
      inode.wanted = 0;
      inode.blocks = 0;
    }
    if (!set(SetRequest::kMtime)) inode.mtime = request.now;
  }
  if (!set(SetRequest::kKeepCtime)) inode.ctime = request.now;
  if (directory) {
    if (set(SetRequest::kMtime)) TRY(shard.touch(request.mtime, request.now));
    TRY(shard.put(inode));
    overlay(inode, shard.tail());
  } else {
    TRY(shard.put(inode));
  }
  Reply reply;
  if (directory) TRY(add_shards(shard, reply));
  reply.inode = std::move(inode);
  return reply;
}

Result<Reply> commit(Transaction& tables, HomeId home, const CommitRequest& request) {
  Shard shard(tables, home);
  TRY_LET(inode, shard.inode(request.inode));
  if (!inode) return refuse(ENOENT);
  // A mount that asks for fewer does not take back what another has promised.
  if (request.replicas > inode->wanted) inode->wanted = static_cast<std::uint16_t>(std::min<std::uint32_t>(request.replicas, 255));
  if (!request.copied.empty()) {
    if (inode->revision != request.revision || inode->store == 0) return refuse(EAGAIN);
    for (const std::uint64_t each : request.copied) {
      const std::vector<std::uint64_t> have = inode->stores();
      if (std::find(have.begin(), have.end(), each) == have.end()) inode->copies.push_back(each);
    }
    TRY(shard.put(*inode));
    Reply reply;
    reply.inode = std::move(inode);
    return reply;
  }
  bool known = false;
  if (request.store != 0) {
    const std::vector<std::uint64_t> wrote = request.wrote.empty() ? std::vector{request.store} : request.wrote;
    std::vector<std::uint64_t> stores = inode->store == 0 ? wrote : inode->stores();
    std::erase_if(stores, [&](std::uint64_t each) { return std::find(wrote.begin(), wrote.end(), each) == wrote.end(); });
    if (stores.empty()) {
      Reply reply = refuse(EXDEV);
      reply.inode = std::move(inode);
      return reply;
    }
    inode->store = stores.front();
    inode->copies.assign(stores.begin() + 1, stores.end());
    inode->flags = static_cast<std::uint8_t>(inode->flags & ~Inode::kInline);
    inode->content.clear();
    inode->blocks = request.blocks;
  } else if (!request.bytes.empty()) {
    known = request.revision != 0 && inode->revision == request.revision;
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
  if (request.appended_by != 0) TRY(end_append(tables, request.inode, request.appended_by));
  Reply reply;
  reply.done = known;
  if (known) inode->content.clear();
  reply.inode = std::move(inode);
  return reply;
}

Result<Reply> change_attribute(Transaction& tables, HomeId home, const AttributeRequest& request, bool remove) {
  Shard shard(tables, home);
  TRY_LET(inode, shard.inode(request.inode));
  if (!inode) return refuse(ENOENT);
  TRY_LET(attributes, attributes_of(tables, request.inode));
  const std::string key = attributes_key(request.inode);
  std::optional<std::uint32_t> mode = request.mode;
  bool kept = !remove;
  if (!remove && request.name == kAccessList) {
    mode = mode_of_access_list(request.value, inode->mode);
    if (!mode) return refuse(EINVAL);
    constexpr std::uint32_t kSetGroup = 02000;  // the asker may have to give it up
    if (request.mode && (*request.mode & kSetGroup) == 0) *mode &= ~kSetGroup;
    kept = !mode_says_it_all(request.value);
  }
  const auto place = std::lower_bound(attributes.begin(), attributes.end(), request.name,
                                      [](const auto& each, const std::string& name) { return each.first < name; });
  const bool present = place != attributes.end() && place->first == request.name;
  if (remove && !present) return refuse(ENODATA);
  if (!remove && present && (request.flags & 1) != 0) return refuse(EEXIST);
  if (!remove && !present && (request.flags & 2) != 0) return refuse(ENODATA);
  if (present && kept)
    place->second = request.value;
  else if (present)
    attributes.erase(place);
  else if (kept)
    attributes.insert(place, {request.name, request.value});
  const std::string bytes = encode(attributes);
  if (bytes.size() > kMaxAttributes) return refuse(ENOSPC);
  if (attributes.empty()) {
    TRY(tables.remove(key));
    inode->flags = static_cast<std::uint8_t>(inode->flags & ~Inode::kHasAttributes);
  } else {
    TRY(tables.insert(key, bytes));
    inode->flags = static_cast<std::uint8_t>(inode->flags | Inode::kHasAttributes);
  }
  if (mode) inode->mode = (inode->mode & kTypeMask) | (*mode & 07777);
  inode->ctime = std::max(inode->ctime, request.now);
  TRY(shard.put(*inode));
  Reply reply;
  if (counter_of(request.inode) == kDirectoryCounter) {
    TRY_LET(error, shard.open());
    if (error == 0) overlay(*inode, shard.tail());
    TRY(add_shards(shard, reply));
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
  TRY(add_shards(shard, reply));
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
    reply.done = true;
    overlay(*reply.inode, state);
    return reply;
  }
  reply.inode = shard.directory();
  overlay(*reply.inode, shard.tail());
  TRY(add_shards(shard, reply));
  return reply;
}

// Of the directory's first home the mark is in its inode.
Result<void> set_dying(Shard& shard, const std::string& dying) {
  Inode inode = shard.directory();
  if (shard.local(inode.id)) {
    inode.flags = static_cast<std::uint8_t>(dying.empty() ? inode.flags & ~Inode::kDying : inode.flags | Inode::kDying);
    inode.content = dying;
    return shard.put(inode);
  }
  TRY_LET(split, shard.split());
  if (!split) return fail(Code::corrupt, tag_of(shard.home()), " is no directory");
  split->dying = dying;
  return shard.put(*split);
}

Result<Reply> mark_dying(Transaction& tables, HomeId home, const DirectoryRequest& request) {
  if (!request.dying) return fail(Code::invalid, "mark_dying without a reason");
  Shard shard(tables, home);
  TRY_LET(error, shard.open());
  if (error == ENOENT) return refuse(ENOENT);
  TRY_LET(split, shard.split());
  if (split && split->under_way()) return refuse(EXFULL);
  Reply reply;
  TRY(add_shards(shard, reply));
  reply.inode = shard.directory();
  if (error == ESTALE && shard.local(shard.directory().id)) {
    const auto before = decode_dying(shard.directory().content);
    if (before && before->transfer == request.dying->transfer) return reply;  // by this very caller
    reply.error = EAGAIN;
    return reply;
  }
  if (shard.tail().live > 0) {
    reply.error = ENOTEMPTY;
    return reply;
  }
  // Whoever has marked the first home may mark the others, whatever an earlier removal has left there.
  TRY(set_dying(shard, encode(*request.dying)));
  return reply;
}

Result<Reply> unmark_dying(Transaction& tables, HomeId home, const DirectoryRequest& request) {
  Shard shard(tables, home);
  TRY_LET(error, shard.open());
  Reply reply;
  TRY(add_shards(shard, reply));
  if (error != ESTALE || !request.dying) return reply;
  const auto before = decode_dying(shard.directory().content);
  if (!before || before->transfer != request.dying->transfer) return reply;
  TRY(set_dying(shard, {}));
  return reply;
}

// The last step of a removal: the name is gone already.
Result<Reply> drop_directory(Transaction& tables, HomeId home, const DirectoryRequest&) {
  Shard shard(tables, home);
  TRY_LET(error, shard.open());
  if (error == ENOENT) return Reply{};
  if (error != ESTALE) return refuse(EBUSY);
  if (shard.local(shard.directory().id)) TRY(shard.erase(shard.directory()));
  for (const std::string& key : {listing_key(home), split_key(home), lease_key(home), fence_key(home), openers_key(home)}) {
    if (tables.lookup(key, zht::Range::nothing())) TRY(tables.remove(key));
  }
  return Reply{};
}

// The names that a request is about belong to this home; else the refusal.
template <typename Request>
Result<std::optional<Reply>> elsewhere(Shard& shard, const Request& request) {
  if constexpr (std::is_same_v<Request, RenameRequest>) {
    TRY_LET(from, shard.elsewhere(request.from, true));
    if (from) return from;
    return shard.elsewhere(request.to, true);
  } else {
    return shard.elsewhere(request.name, true);
  }
}

// Another home of a directory whose times were set.
Result<Reply> touch_directory(Transaction& tables, HomeId home, const DirectoryRequest& request) {
  Shard shard(tables, home);
  TRY_LET(error, shard.open());
  if (error != 0 && error != ESTALE) return Reply{};
  TRY(shard.touch(request.mtime, request.ctime));
  Reply reply;
  TRY(add_shards(shard, reply));
  return reply;
}

// A change of the names of a directory, under its lease.
template <typename Request, Result<Reply> (*act)(Shard&, const Request&)>
Result<Reply> change(Transaction& tables, HomeId home, const Request& request) {
  Shard shard(tables, home);
  OPEN_DIRECTORY(shard);
  TRY_LET(refused, elsewhere(shard, request));
  if (refused) return std::move(*refused);
  TRY_LET(wait, shard.claim(request.session));
  if (wait > 0) {
    Reply reply = refuse(EUSERS);
    reply.wait = wait;
    return reply;
  }
  TRY_LET(reply, act(shard, request));
  reply.sequence = shard.tail().sequence;
  reply.lease_left = shard.lease_left();
  reply.live = shard.tail().live;
  reply.changed = shard.tail().mtime;
  TRY_LET(split, shard.split());
  reply.sharded = split.has_value();
  return reply;
}

// The last step of a change: fine in a directory that is dying or has gone.
template <typename Request, Result<Reply> (*act)(Shard&, const Request&)>
Result<Reply> finish(Transaction& tables, HomeId home, const Request& request) {
  Shard shard(tables, home);
  TRY_LET(error, shard.open());
  if (error != 0 && error != ESTALE) return Reply{};
  if (error == 0) return change<Request, act>(tables, home, request);
  HERE(shard, request.name, true);
  return act(shard, request);
}

// Wraps `function` as a procedure: the home comes from the key's tag, arguments and reply from their field lists.
template <typename Answer, typename Request>
void add(zht::Procedures& procedures, const char* name,
         Result<Answer> (*function)(Transaction&, HomeId, const Request&)) {
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
  add(procedures, "open", open);
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
  add(procedures, "pay", pay);
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
  add(procedures, "touch_directory", touch_directory);
  add(procedures, "lock", lock_file);
  add(procedures, "lock_renew", renew_locks);
  add(procedures, "split_begin", split_begin);
  add(procedures, "split_read", split_read);
  add(procedures, "split_install", split_install);
  add(procedures, "split_done", split_done);
  add(procedures, "split_finish", split_finish);
}

}  // namespace fusionfs

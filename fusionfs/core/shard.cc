#include "fusionfs/core/shard.h"

#include <algorithm>
#include <unordered_map>

#include "fusionfs/core/openers.h"

namespace fusionfs {

using base::Bytes;
using base::Code;
using base::fail;
using base::Result;

namespace {

constexpr std::chrono::milliseconds kLeaseRecordLife{std::chrono::minutes(3)};

// A listing is rewritten without its dead records when they are more than half of it; but never more than this many
// bytes inside one request, which would hold up the partition's other users: bigger ones wait until they have shrunk.
constexpr std::uint64_t kMaxCompaction = std::uint64_t{8} << 20;
constexpr std::uint32_t kMinRecordsToCompact = 64;
constexpr std::size_t kCompactedFragment = std::size_t{1} << 20;

}  // namespace

void tell_shards(const Split& split, Reply& reply) {
  reply.sharded = true;
  reply.shard_base = split.base;
  reply.shards = split.children;
  if (split.moved) reply.shards.push_back(split.next);
}

Result<int> Shard::open() {
  TRY_LET(directory, inode(make_inode(home_, kDirectoryCounter)));
  if (!directory) {
    TRY_LET(known, split());
    if (!known) return ENOENT;
    directory.emplace();
    directory->id = known->directory;
    directory->mode = 0040000;
    directory->content = known->dying;
    if (!known->dying.empty()) directory->flags |= Inode::kDying;
  }
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

Result<bool> Shard::exists() {
  if (tables_.lookup(inode_key(make_inode(home_, kDirectoryCounter)), zht::Range::nothing())) return true;
  TRY_LET(known, split());
  return known.has_value();
}

Result<std::optional<Split>> Shard::split() {
  if (split_) return *split_;
  const auto found = tables_.lookup(split_key(home_));
  if (found) {
    auto decoded = decode_split(found->value);
    if (!decoded) return fail(Code::corrupt, "split of ", tag_of(home_), ": damaged, or of a newer format");
    split_.emplace(std::move(decoded));
  } else {
    split_.emplace();
  }
  return *split_;
}

Result<void> Shard::put(const Split& split) {
  split_.emplace(split);
  return tables_.insert(split_key(home_), encode(split));
}

Result<std::optional<Reply>> Shard::elsewhere(Bytes name, bool to_change) {
  TRY_LET(known, split());
  if (!known) return std::optional<Reply>();
  const std::uint64_t hash = name_hash(name);
  if (known->place(hash)) {
    Reply reply = refuse(EREMCHG);
    tell_shards(*known, reply);
    return std::optional(std::move(reply));
  }
  if (to_change && known->leaving(hash)) return std::optional(refuse(EXFULL));
  return std::optional<Reply>();
}

Result<std::uint64_t> Shard::fence() {
  const auto found = tables_.lookup(fence_key(home_));
  if (!found) return std::uint64_t{0};
  if (found->value.size() != 8) return fail(Code::corrupt, "fence of ", tag_of(home_), ": damaged, or of a newer format");
  return base::load<std::uint64_t>(found->value.data());
}

Result<void> Shard::grow_fence() {
  TRY_LET(now, fence());
  std::string value;
  base::Writer(value).u64(now + 1);
  return tables_.insert(fence_key(home_), value);
}

Result<Nanos> Shard::claim(std::uint64_t session) {
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

Result<std::optional<Inode>> Shard::inode(InodeId id) {
  const auto found = tables_.lookup(inode_key(id));
  if (!found) return std::optional<Inode>();
  auto decoded = decode_inode(id, found->value);
  if (!decoded) return fail(Code::corrupt, "inode ", raw(id), ": damaged, or of a newer format");
  return decoded;
}

Result<void> Shard::put(Inode& inode) {
  inode.revision += 1;
  return tables_.insert(inode_key(inode.id), encode(inode));
}

Result<void> Shard::erase(const Inode& inode) {
  TRY(tables_.remove(inode_key(inode.id)));
  if (inode.has(Inode::kHasAttributes)) TRY(tables_.remove(attributes_key(inode.id)));
  for (const std::string& key : {locks_key(inode.id), provenance_key(inode.id)}) {
    if (tables_.lookup(key, zht::Range::nothing())) TRY(tables_.remove(key));
  }
  return {};
}

Result<std::optional<Entry>> Shard::entry(Bytes name) {
  const auto found = tables_.lookup(entry_key(home_, name));
  if (!found) return std::optional<Entry>();
  auto decoded = decode_entry(found->value);
  if (!decoded)
    return fail(Code::corrupt, "entry ", base::escape(name), " of ", tag_of(home_),
                ": damaged, or of a newer format");
  return decoded;
}

Result<void> Shard::put(Bytes name, const Entry& entry) { return tables_.insert(entry_key(home_, name), encode(entry)); }

Result<void> Shard::add(const std::string& name, const Entry& entry, Nanos now) {
  TRY(put(name, entry));
  tail_.live += 1;
  if (is_directory(entry.type)) tail_.directories += 1;
  return log(ListingRecord::Kind::add, name, entry, now);
}

Result<void> Shard::take(const std::string& name, const Entry& entry, Nanos now) {
  TRY(tables_.remove(entry_key(home_, name)));
  tail_.live -= 1;
  if (is_directory(entry.type)) tail_.directories -= 1;
  return log(ListingRecord::Kind::remove, name, entry, now);
}

Result<void> Shard::touch(Nanos mtime, Nanos ctime) {
  tail_.kind = ListingRecord::Kind::state;
  tail_.name.clear();
  tail_.inode = InodeId{};
  tail_.type = 0;
  tail_.mtime = mtime;
  tail_.ctime = ctime;
  return append();
}

Result<std::uint32_t> Shard::next_counter() {
  for (int tries = 0; tries < 1000; ++tries) {
    const std::uint32_t counter = tail_.next;
    tail_.next = counter == kMaxCounter ? kFirstFileCounter : counter + 1;
    if (!tables_.lookup(inode_key(make_inode(home_, counter)), zht::Range::nothing())) return counter;
  }
  return fail(Code::no_space, "directory shard ", tag_of(home_), " has no free inode number");
}

Result<void> Shard::drop_link(InodeId id, Nanos now, const Asker& asker, Reply& reply, std::optional<Inode>& after) {
  TRY_LET(found, inode(id));
  if (!found) return {};  // taken care of before
  Inode file = std::move(*found);
  if (file.links > 0) file.links -= 1;
  file.ctime = std::max(file.ctime, now);
  if (file.links == 0) {
    const bool held = std::find(asker.held.begin(), asker.held.end(), id) != asker.held.end();
    TRY_LET(keepers, keepers_of(tables_, id, asker.session, held));
    if (!keepers.empty()) TRY(put_keepers(tables_, id, keepers));
    reply.gone = !held && keepers.empty();
    reply.keepers = std::move(keepers);
  }
  if (reply.gone) {
    file.revision += 1;
    TRY(erase(file));
  } else {
    TRY(put(file));
  }
  after = std::move(file);
  return {};
}

Result<void> Shard::release(const Entry& entry, Nanos now, const Asker& asker, Reply& reply, std::optional<Inode>& after) {
  if (is_directory(entry.type)) return {};  // its own home was marked dying; the caller drops it
  if (local(entry.inode)) return drop_link(entry.inode, now, asker, reply, after);
  // Unique among all homes: the payer remembers it.
  std::string place = tag_of(home_);
  base::Writer(place).u64(tail_.sequence);
  reply.debt = base::hash64(place);
  return tables_.insert(debt_key(home_, reply.debt), std::to_string(raw(entry.inode)));
}

Result<void> Shard::set_ctime(InodeId id, Nanos now, std::optional<Inode>& after) {
  if (!local(id)) return {};
  TRY_LET(found, inode(id));
  if (!found) return fail(Code::corrupt, "inode ", raw(id), " has a name in its home and no record");
  found->ctime = std::max(found->ctime, now);
  TRY(put(*found));
  after = std::move(found);
  return {};
}

Result<void> Shard::log(ListingRecord::Kind kind, const std::string& name, const Entry& entry, Nanos now) {
  tail_.kind = kind;
  tail_.name = name;
  tail_.inode = entry.inode;
  tail_.type = entry.type;
  tail_.mtime = std::max(tail_.mtime, now);
  tail_.ctime = std::max(tail_.ctime, now);
  return append();
}

Result<void> Shard::append() {
  tail_.sequence += 1;
  tail_.records += 1;
  std::string bytes;
  encode(tail_, bytes);
  TRY(tables_.append(listing_key(home_), bytes));
  listing_size_ += bytes.size();
  if (tail_.records < kMinRecordsToCompact || tail_.live >= tail_.records / 2) return {};
  if (tail_.live > 0 && listing_size_ > kMaxCompaction) return {};
  return compact({});
}

Result<void> Shard::compact(const std::function<bool(const std::string&)>& keeps) {
  std::vector<ListingRecord> kept;
  if (tail_.live > 0) {
    const auto whole = tables_.lookup(listing_key(home_));
    if (!whole) return fail(Code::corrupt, "listing of ", tag_of(home_), " is gone");
    std::unordered_map<std::string, std::size_t> place;  // of a live name in `all`; size_t: index
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
      if (found != place.end() && found->second == i && (!keeps || keeps(all[i].name))) kept.push_back(std::move(all[i]));
    }
  }
  tail_.kind = ListingRecord::Kind::state;
  tail_.name.clear();
  tail_.inode = InodeId{};
  tail_.type = 0;
  tail_.generation += 1;
  tail_.live = static_cast<std::uint32_t>(kept.size());
  tail_.directories = static_cast<std::uint32_t>(
      std::count_if(kept.begin(), kept.end(), [](const ListingRecord& each) { return is_directory(each.type); }));
  tail_.records = tail_.live + 1;
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

}  // namespace fusionfs

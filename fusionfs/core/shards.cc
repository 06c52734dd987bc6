// The part of Metadata that knows that a directory may have several homes: which of them has a name, what they say
// together, and how one is split in two.
#include <algorithm>

#include "fusionfs/core/metadata.h"

namespace fusionfs {

using zht::Condition;
using zht::Operation;
using zht::Outcome;

namespace {

constexpr std::uint64_t kListingPage = std::uint64_t{4} << 20;  // bytes
constexpr std::size_t kMovedAtOnce = 1000;                      // names of one request
constexpr int kMaxRounds = 1000;
constexpr std::size_t kMostFences = 100'000;                   // homes

struct Exclusive {
  explicit Exclusive(std::shared_mutex& guarded) : mutex(guarded) { mutex.lock(); }
  ~Exclusive() { mutex.unlock(); }
  Exclusive(const Exclusive&) = delete;
  Exclusive& operator=(const Exclusive&) = delete;
  std::shared_mutex& mutex;
};

std::string nothing() { return pack(DirectoryRequest{}); }

}  // namespace

// By the maker's clock, if that can be: else a leftover would be met as new in a minute's time as well. Nodes' clocks may
// differ by any amount, though, and what was left by one that is ahead would be young for hours: what stays as it is
// before our own eyes is given up too.
bool Metadata::abandoned(const std::string& mark, Nanos since, Nanos patience) {
  if (now() - since > patience) return true;
  const base::Time at = clock_.now();
  const Exclusive lock(sighted_mutex_);
  if (sighted_.size() > 1000) std::erase_if(sighted_, [&](const auto& each) { return at - each.second > std::chrono::minutes(1); });
  const auto first = sighted_.try_emplace(mark + std::to_string(since), at).first;
  return at - first->second > std::chrono::nanoseconds(patience);
}

HomeId Metadata::home_from(HomeId home, const std::string& name) const {
  if (!any_shards_.load(std::memory_order_acquire)) return home;
  const std::uint64_t hash = name_hash(name);
  const std::shared_lock lock(shards_mutex_);
  for (;;) {
    const auto known = shards_.find(raw(home));
    if (known == shards_.end()) return home;
    const auto next = known->second.place(hash);
    if (!next) return home;
    home = *next;
  }
}

void Metadata::learn(HomeId home, const Reply& reply) {
  if (reply.shards.empty()) return;
  const Exclusive lock(shards_mutex_);
  Split& known = shards_[raw(home)];
  if (known.children.size() >= reply.shards.size()) return;
  known.base = reply.shard_base;
  known.children = reply.shards;
  any_shards_.store(true, std::memory_order_release);
}

std::uint64_t Metadata::fence_of(HomeId home) {
  if (!any_fences_.load(std::memory_order_acquire)) return 0;
  const std::shared_lock lock(shards_mutex_);
  const auto known = fences_.find(raw(home));
  return known == fences_.end() ? 0 : known->second;
}

void Metadata::learn_fence(HomeId home, const Reply& reply) {
  const Exclusive lock(shards_mutex_);
  if (fences_.size() > kMostFences) fences_.clear();  // then it is told once more
  fences_[raw(home)] = reply.debt;
  any_fences_.store(true, std::memory_order_release);
}

Task<int> Metadata::follow(Reply reply, HomeId& home, std::string name) {
  int error = 0;
  if (reply.error == EREMCHG)
    learn(home, reply);
  else
    error = co_await settle_split(home);
  home = home_from(home, name);
  co_return error;
}

Task<Reply> Metadata::ask_name(HomeId home, std::string name, const char* procedure, std::string arguments) {
  home = home_from(home, name);
  for (int round = 0; round < kMaxRounds; ++round) {
    Reply reply = co_await ask(home, procedure, arguments);
    if (!elsewhere(reply)) co_return reply;
    co_await follow(std::move(reply), home, name);
  }
  Reply reply;
  reply.error = EIO;
  co_return reply;
}

Task<Reply> Metadata::ask_shards(HomeId home, Reply first, const char* procedure, std::string arguments) {
  learn(home, first);
  std::vector<HomeId> todo = first.shards;
  first.inodes.clear();
  while (!todo.empty()) {
    const HomeId child = todo.back();
    Reply reply = co_await ask(child, procedure, arguments);
    if (reply.error == EXFULL) {
      const int error = co_await settle_split(child);
      if (error != 0) reply.error = error;
      if (error == 0) continue;
    }
    if (reply.error != 0 && reply.error != ENOENT) {
      first.error = reply.error;
      co_return first;
    }
    learn(child, reply);
    todo.pop_back();
    todo.insert(todo.end(), reply.shards.begin(), reply.shards.end());
    if (reply.inode) first.inodes.push_back(std::move(*reply.inode));
  }
  co_return first;
}

Task<Reply> Metadata::with_shards(Reply first) {
  const InodeId directory = first.inode->id;
  // A shard that is being removed answers ESTALE and what it knows.
  std::vector<HomeId> todo = first.shards;
  learn(home_of(directory), first);
  while (!todo.empty()) {
    std::vector<std::unique_ptr<Call>> calls;
    for (const HomeId child : todo) {
      calls.push_back(std::make_unique<Call>(
          client_, Operation::update(tag_of(child), "fusionfs.stat_directory", nothing())));
    }
    std::vector<HomeId> more;
    for (std::size_t i = 0; i < calls.size(); ++i) {
      const Outcome outcome = co_await *calls[i];
      const auto reply = outcome.ok() ? unpack<Reply>(outcome.value) : std::nullopt;
      if (!reply) {
        first.error = outcome.ok() ? EIO : errno_of(outcome);
        continue;
      }
      if (!reply->inode) continue;  // gone
      const Inode& part = *reply->inode;
      Inode& whole = *first.inode;
      whole.links += part.links - 2;
      whole.mtime = std::max(whole.mtime, part.mtime);
      whole.ctime = std::max(whole.ctime, part.ctime);
      whole.size += part.size - 4096;
      whole.revision += part.revision;
      learn(todo[i], *reply);
      more.insert(more.end(), reply->shards.begin(), reply->shards.end());
    }
    todo = std::move(more);
  }
  first.inode->blocks = (first.inode->size + 511) / 512;
  co_return first;
}

Task<Reply> Metadata::homes(InodeId directory) {
  Reply whole = co_await ask(home_of(directory), "fusionfs.stat_directory", nothing());
  for (std::size_t i = 0; i < whole.shards.size(); ++i) {
    Reply reply = co_await ask(whole.shards[i], "fusionfs.stat_directory", nothing());
    whole.shards.insert(whole.shards.end(), reply.shards.begin(), reply.shards.end());
  }
  co_return whole;
}

Task<InodeId> Metadata::directory_of(HomeId home) {
  Call call(client_, Operation::lookup(split_key(home)));
  const Outcome outcome = co_await call;
  const auto split = outcome.ok() ? decode_split(outcome.value) : std::nullopt;
  co_return split ? split->directory : make_inode(home, kDirectoryCounter);
}

// The first home last: it is what decides.
Task<int> Metadata::unmark_dying(InodeId directory, Dying dying) {
  DirectoryRequest request;
  request.dying = dying;
  const HomeId home = home_of(directory);
  Reply first = co_await ask(home, "fusionfs.stat_directory", nothing());
  if (first.error == ENOENT) co_return 0;
  if (first.error != 0 && first.error != ESTALE) co_return first.error;
  first.error = 0;
  if (!first.shards.empty()) {
    Reply others = co_await ask_shards(home, std::move(first), "fusionfs.unmark_dying", pack(request));
    if (others.error != 0) co_return others.error;
  }
  Reply reply = co_await ask(home, "fusionfs.unmark_dying", pack(request));
  co_return reply.error;
}

Task<int> Metadata::drop_directory(InodeId directory) {
  const HomeId home = home_of(directory);
  Reply first = co_await ask(home, "fusionfs.stat_directory", nothing());
  if (first.error == ENOENT) co_return 0;
  if (first.error != ESTALE) co_return first.error == 0 ? EBUSY : first.error;
  if (!first.shards.empty()) {
    // Those that are split off a home before that home: none is left that nothing leads to.
    Reply whole = co_await homes(directory);
    std::vector<HomeId> all = std::move(whole.shards);
    for (; !all.empty(); all.pop_back()) {
      Reply dropped = co_await ask(all.back(), "fusionfs.drop_directory", nothing());
      if (dropped.error != 0) co_return dropped.error;
    }
  }
  Reply dropped = co_await ask(home, "fusionfs.drop_directory", nothing());
  const Exclusive lock(shards_mutex_);
  shards_.erase(raw(home));
  co_return dropped.error;
}

// Where it fails it stays marked, and is dropped by whoever meets it.
Task<int> Metadata::drop_directory_soon(InodeId directory) {
  if (!any_shards_.load(std::memory_order_acquire)) {
    forget(home_of(directory), "fusionfs.drop_directory", nothing());
    co_return 0;
  }
  const int error = co_await drop_directory(directory);
  co_return error;
}

Task<int> Metadata::split_when_big(HomeId home, std::uint32_t names) {
  {
    const Exclusive lock(shards_mutex_);
    // A directory's homes grow together: each is split at a size of its own, so that they are not all split at once. A split
    // that failed (no room, say) is tried again when there are a good many names more.
    const std::uint32_t own = options_.split_at / 4 * static_cast<std::uint32_t>(raw(home) % 8) / 8;
    std::uint32_t& tried = splitting_.try_emplace(raw(home), options_.split_at + own).first->second;
    if (names < tried) co_return 0;
    tried = names + options_.split_at / 4;
  }
  if (options_.grown) {
    options_.grown(home);
    co_return 0;
  }
  const int error = co_await split(home);
  co_return error;
}

Task<int> Metadata::split(HomeId home) {
  const int error = co_await split_now(home);
  const Exclusive lock(shards_mutex_);
  if (error == 0) splitting_.erase(raw(home));
  co_return error;
}

Task<int> Metadata::split_now(HomeId home) {
  SplitRequest request;
  const std::uint64_t next = co_await new_home();
  request.next = HomeId{next};
  if (request.next == kRootHome) co_return EIO;
  request.now = now();
  request.session = options_.session;
  const InodeId directory = co_await directory_of(home);
  if (options_.spread) options_.spread(directory);
  Reply begun = co_await ask(home, "fusionfs.split_begin", pack(request));
  if (options_.spread) options_.spread(directory);
  if (begun.error != 0) co_return begun.error;
  Call call(client_, Operation::lookup(split_key(home)));
  const Outcome record = co_await call;
  auto split = record.ok() ? decode_split(record.value) : std::nullopt;
  if (!split) co_return record.ok() ? EIO : errno_of(record);
  if (split->next != request.next) co_return 0;  // somebody else has carried it to its end
  const int error = co_await carry_split(home, *split);
  co_return error;
}

Task<int> Metadata::settle_split(HomeId home) {
  Call call(client_, Operation::lookup(split_key(home)));
  const Outcome record = co_await call;
  if (record.code == base::Code::not_found) co_return 0;
  if (!record.ok()) co_return errno_of(record);
  const auto split = decode_split(record.value);
  if (!split) co_return EIO;
  if (!split->under_way()) co_return 0;
  if (!abandoned("s" + std::to_string(raw(home)), split->since)) {
    Call changed(client_,
                 Operation::callback(split_key(home), Condition::after_version(record.version), zht::Range::nothing()),
                 zht::Millis(100));
    co_await changed;
    co_return 0;
  }
  const int error = co_await carry_split(home, *split);
  co_return error;
}

Task<int> Metadata::settle_shard(HomeId home) {
  int error = co_await settle_split(home);
  if (error != 0) co_return error;
  Call call(client_, Operation::lookup(split_key(home)));
  const Outcome record = co_await call;
  const auto split = record.ok() ? decode_split(record.value) : std::nullopt;
  if (!split || split->dying.empty()) co_return record.ok() && !split ? EIO : 0;
  Inode directory;
  directory.id = split->directory;
  directory.content = split->dying;
  error = co_await settle_dying(directory, home);
  co_return error;
}

Task<int> Metadata::carry_split(HomeId home, Split split) {
  SplitRequest request;
  request.next = split.next;
  request.now = now();
  request.split.base = static_cast<std::uint8_t>(split.base + split.children.size() + 1);
  request.split.prefix = split.prefix | std::uint64_t{1} << (split.base + split.children.size());
  request.split.directory = split.directory;
  Listing none;  // named: g++ 12 copies unnamed aggregates across a co_await byte by byte
  ListReply listed = co_await list_home(home, std::move(none));
  if (listed.error != 0) co_return listed.error;
  std::vector<std::string> leaving;
  for (const auto& [sequence, name] : listed.listing.names) {
    if (split.leaving(name_hash(name.name))) leaving.push_back(name.name);
  }
  listed = {};
  const auto some = [&](std::size_t from) {
    const auto begin = leaving.begin() + static_cast<std::ptrdiff_t>(from);
    const auto count = static_cast<std::ptrdiff_t>(std::min(kMovedAtOnce, leaving.size() - from));
    return std::vector<std::string>(begin, begin + count);
  };
  for (std::size_t from = 0; !split.moved && (from == 0 || from < leaving.size()); from += kMovedAtOnce) {
    request.names = some(from);
    request.entries.clear();
    Reply read = co_await ask(home, "fusionfs.split_read", pack(request));
    if (read.error == EALREADY) break;
    if (read.error != 0) co_return read.error;
    request.names = std::move(read.names);
    request.entries = std::move(read.entries);
    Reply installed = co_await ask(request.next, "fusionfs.split_install", pack(request));
    if (installed.error == EALREADY) break;
    if (installed.error != 0) co_return installed.error;
  }
  request.names.clear();
  request.entries.clear();
  Reply done = co_await ask(request.next, "fusionfs.split_done", pack(request));
  if (done.error != 0) co_return done.error;
  for (std::size_t from = 0; from == 0 || from < leaving.size(); from += kMovedAtOnce) {
    request.names = some(from);
    request.last = from + kMovedAtOnce >= leaving.size();
    Reply finished = co_await ask(home, "fusionfs.split_finish", pack(request));
    if (finished.error == EALREADY) co_return 0;
    if (finished.error != 0) co_return finished.error;
    learn(home, finished);
  }
  co_return 0;
}

// A home of a directory that is gone: nothing in it can be reached.
Task<int> Metadata::drop_stray_shard(HomeId home) {
  Dying dying;
  dying.since = now();
  DirectoryRequest request;
  request.dying = dying;
  Reply marked = co_await ask(home, "fusionfs.mark_dying", pack(request));
  if (marked.error != 0) co_return marked.error == ENOENT ? 0 : marked.error;
  Reply dropped = co_await ask(home, "fusionfs.drop_directory", pack(request));
  co_return dropped.error;
}

Task<Metadata::ListReply> Metadata::list(InodeId directory, Listing known) {
  const HomeId home = home_of(directory);
  if (known.offset == 0) known = {};
  ListReply reply = co_await list_home(home, std::move(known));
  if (reply.error != 0) co_return reply;
  // A home's names are read before how it is split: those that went elsewhere meanwhile are in the homes named there.
  Listing whole = std::move(reply.listing);
  reply.listing = {};
  std::vector<HomeId> homes{home};
  for (std::size_t i = 0; i < homes.size(); ++i) {
    Listing part;
    if (i > 0) {
      Listing none;
      ListReply more = co_await list_home(homes[i], std::move(none));
      if (more.error == ENOENT) continue;  // the directory is being removed
      if (more.error != 0) {
        reply.error = more.error;
        co_return reply;
      }
      part = std::move(more.listing);
    }
    Call call(client_, Operation::lookup(split_key(homes[i])));
    const Outcome record = co_await call;
    if (record.code == base::Code::not_found && i == 0) break;
    auto split = record.ok() ? decode_split(record.value) : std::nullopt;
    if (record.code == base::Code::not_found) continue;
    if (!split) {
      reply.error = record.ok() ? EIO : errno_of(record);
      co_return reply;
    }
    std::map<std::uint64_t, Listing::Name>& names = i == 0 ? whole.names : part.names;
    std::erase_if(names, [&](const auto& each) { return split->place(name_hash(each.second.name)).has_value(); });
    if (i == 0) {
      // The next reading begins anew, and nobody may believe that one home's sequence number says it all.
      whole.sequence_of.clear();
      whole.offset = whole.sequence = 0;
      whole.generation = 0;
    }
    homes.insert(homes.end(), split->children.begin(), split->children.end());
    if (split->moved) homes.push_back(split->next);
    const std::uint64_t ordinal = std::uint64_t{i} << Listing::kShardBits;
    for (; i > 0 && !part.names.empty();) {
      auto node = part.names.extract(part.names.begin());
      node.key() |= ordinal;
      whole.names.insert(whole.names.end(), std::move(node));
    }
  }
  reply.listing = std::move(whole);
  co_return reply;
}

Task<Metadata::ListReply> Metadata::list_home(HomeId home, Listing known) {
  const std::string key = listing_key(home);
  ListReply reply;
  std::string pending;  // a record cut by the page's end
  bool checked = known.offset == 0;
  for (int round = 0; round < 1'000'000; ++round) {
    // The tail first, when something is known: another generation makes the known offset meaningless.
    if (!checked) {
      Call tail(client_, Operation::lookup(key, zht::Range::tail(1)));
      const Outcome last = co_await tail;
      if (!last.ok()) {
        reply.error = errno_of(last);
        co_return reply;
      }
      Bytes bytes = last.value;
      const auto record = decode_listing(bytes);
      if (!record) {
        reply.error = EIO;
        co_return reply;
      }
      checked = true;
      if (record->generation != known.generation || last.size < known.offset)
        known = Listing{};
      else if (last.size == known.offset)
        break;
    }
    Call page(client_, Operation::lookup(key, zht::Range::bytes(known.offset + pending.size(), kListingPage)));
    const Outcome outcome = co_await page;
    if (!outcome.ok()) {
      reply.error = errno_of(outcome);
      co_return reply;
    }
    if (outcome.value.empty()) {
      if (!pending.empty()) reply.error = EIO;
      break;
    }
    pending += outcome.value;
    Bytes rest = pending;
    bool restart = false;
    while (!rest.empty()) {
      Bytes at = rest;
      auto record = decode_listing(at);
      if (!record) break;
      if (known.offset == 0 && known.names.empty() && known.generation == 0) known.generation = record->generation;
      if (record->generation != known.generation) {
        restart = true;
        break;
      }  // compacted between two pages
      known.offset += rest.size() - at.size();
      known.sequence = record->sequence;
      rest = at;
      if (record->kind == ListingRecord::Kind::add) {
        known.names[record->sequence] = {record->name, record->inode, record->type};
        known.sequence_of[record->name] = record->sequence;
      } else if (record->kind == ListingRecord::Kind::remove) {
        const auto found = known.sequence_of.find(record->name);
        if (found != known.sequence_of.end()) {
          known.names.erase(found->second);
          known.sequence_of.erase(found);
        }
      }
    }
    if (restart) {
      known = Listing{};
      pending.clear();
      continue;
    }
    pending.assign(rest);
    if (known.offset + pending.size() >= outcome.size) {
      if (!pending.empty()) reply.error = EIO;
      break;
    }
  }
  reply.listing = std::move(known);
  co_return reply;
}

}  // namespace fusionfs

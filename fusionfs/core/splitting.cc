#include "fusionfs/core/splitting.h"

#include "fusionfs/core/shard.h"

namespace fusionfs {

using base::Code;
using base::fail;
using base::Result;
using zht::Transaction;

namespace {

// The split that `request` is about, or nothing when it is over (or never was).
Result<std::optional<Split>> under_way(Shard& shard, const SplitRequest& request) {
  TRY_LET(split, shard.split());
  if (!split || !split->under_way() || split->next != request.next) return std::optional<Split>();
  return split;
}

}  // namespace

Result<Reply> split_begin(Transaction& tables, HomeId home, const SplitRequest& request) {
  Shard shard(tables, home);
  OPEN_DIRECTORY(shard);
  TRY_LET(wait, shard.claim(request.session));
  if (wait > 0) {
    Reply reply = refuse(EUSERS);
    reply.wait = wait;
    return reply;
  }
  TRY_LET(known, shard.split());
  Split split;
  split.directory = shard.directory().id;
  if (known) split = *known;
  if (split.under_way()) return refuse(EXFULL);
  if (split.base + split.children.size() >= 60) return refuse(EMLINK);  // names that share 60 bits cannot be told apart
  split.next = request.next;
  split.since = request.now;
  TRY(shard.put(split));
  // The listing goes on by one: whoever believed to know all names learns otherwise.
  TRY(shard.touch(shard.tail().mtime, shard.tail().ctime));
  return Reply{};
}

Result<Reply> split_read(Transaction& tables, HomeId home, const SplitRequest& request) {
  Shard shard(tables, home);
  TRY_LET(split, under_way(shard, request));
  if (!split || split->moved) return refuse(EALREADY);
  Reply reply;
  for (const std::string& name : request.names) {
    TRY_LET(entry, shard.entry(name));
    if (!entry || !split->leaving(name_hash(name))) continue;
    reply.entries.push_back(std::move(*entry));
    reply.names.push_back(name);
  }
  return reply;
}

Result<Reply> split_install(Transaction& tables, HomeId home, const SplitRequest& request) {
  if (request.names.size() != request.entries.size()) return fail(Code::invalid, "split_install: a name without entry");
  Shard shard(tables, home);
  TRY_LET(known, shard.split());
  if (!known) {
    Split split = request.split;
    split.filling = true;
    TRY(shard.put(split));
    ListingRecord state;
    state.records = 1;
    std::string bytes;
    encode(state, bytes);
    TRY(tables.insert(listing_key(home), bytes));
  } else if (!known->filling) {
    return refuse(EALREADY);
  }
  OPEN_DIRECTORY(shard);
  for (std::size_t i = 0; i < request.names.size(); ++i) {
    TRY_LET(there, shard.entry(request.names[i]));
    if (!there) TRY(shard.add(request.names[i], request.entries[i], 0));
  }
  return Reply{};
}

Result<Reply> split_done(Transaction& tables, HomeId home, const SplitRequest&) {
  Shard shard(tables, home);
  TRY_LET(split, shard.split());
  if (!split || !split->filling) return Reply{};
  split->filling = false;
  TRY(shard.put(*split));
  return Reply{};
}

Result<Reply> split_finish(Transaction& tables, HomeId home, const SplitRequest& request) {
  Shard shard(tables, home);
  TRY_LET(split, under_way(shard, request));
  if (!split) return refuse(EALREADY);
  TRY_LET(error, shard.open());
  if (error != 0 && error != ESTALE) return refuse(error);
  split->moved = true;
  for (const std::string& name : request.names) {
    if (split->leaving(name_hash(name))) TRY(tables.remove(entry_key(home, name)));
  }
  if (request.last) {
    TRY(shard.compact([&split](const std::string& name) { return !split->leaving(name_hash(name)); }));
    split->children.push_back(split->next);
    split->next = kRootHome;
    split->moved = false;
    split->since = 0;
  }
  TRY(shard.put(*split));
  Reply reply;
  tell_shards(*split, reply);
  return reply;
}

}  // namespace fusionfs

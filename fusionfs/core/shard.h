// One directory shard as a procedure sees it: the keys of one home, decoded, with the changes that keep entry, inode
// and listing together. What the procedures of procedures.cc and splitting.cc are made of.
#pragma once

#include <cerrno>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "fusionfs/core/format.h"
#include "fusionfs/core/requests.h"
#include "zht/procedure.h"

namespace fusionfs {

inline constexpr std::chrono::milliseconds kMarkerLife{std::chrono::hours(24)};

inline Reply refuse(int error) {
  Reply reply;
  reply.error = error;
  return reply;
}

void tell_shards(const Split& split, Reply& reply);  // where else the directory's names are

class Shard {
 public:
  Shard(zht::Transaction& tables, HomeId home) : tables_(tables), home_(home) {}

  HomeId home() const { return home_; }
  bool local(InodeId inode) const { return home_of(inode) == home_; }
  zht::Transaction& tables() { return tables_; }

  // Reads the directory's own record, the tail of its listing and how it is split. An errno when there is none
  // (ENOENT), or it is dying (ESTALE).
  base::Result<int> open();
  // Whether there is a directory, dying or not.
  base::Result<bool> exists();
  // After open(). Of a shard that is not the directory's first: what is known of the directory without asking its home.
  const Inode& directory() const { return directory_; }
  const ListingRecord& tail() const { return tail_; }

  // How the directory is split, as far as this home knows. Nothing: it is the only shard.
  base::Result<std::optional<Split>> split();
  base::Result<void> put(const Split& split);
  // Nothing when the name's entry is to be looked for, and may be changed, here. Else the refusal: EREMCHG with the
  // homes to ask; EXFULL (only when it is to be changed) while the name is on its way to another home.
  base::Result<std::optional<Reply>> elsewhere(base::Bytes name, bool to_change);

  // Whoever takes a change that was to arrive here for abandoned calls it off: the fence grows, and what was sent by somebody who
  // knew an older one is refused, however late it comes. Nothing has to be remembered of each.
  base::Result<std::uint64_t> fence();
  base::Result<void> grow_fence();

  // Asks for the lease of the names for `session`. Returns how long another session has it: nothing may change then.
  base::Result<Nanos> claim(std::uint64_t session);
  Nanos lease_left() const { return lease_left_; }

  base::Result<std::optional<Inode>> inode(InodeId id);
  base::Result<void> put(Inode& inode);
  base::Result<void> erase(const Inode& inode);
  base::Result<std::optional<Entry>> entry(base::Bytes name);
  base::Result<void> put(base::Bytes name, const Entry& entry);

  // Both write the entry and the listing. `now` becomes the directory's mtime and ctime.
  base::Result<void> add(const std::string& name, const Entry& entry, Nanos now);
  base::Result<void> take(const std::string& name, const Entry& entry, Nanos now);
  // Only the directory's times change.
  base::Result<void> touch(Nanos mtime, Nanos ctime);
  // Rewrites the listing with the live names, those for which `keeps` (if given) holds.
  base::Result<void> compact(const std::function<bool(const std::string&)>& keeps);

  // A counter that no inode of this home has. It only comes round after 268 million creations.
  base::Result<std::uint32_t> next_counter();

  // Who takes a link off, and what that mount has open.
  struct Asker {
    std::uint64_t session = 0;
    const std::vector<InodeId>& held;
  };
  // Takes one link off a local inode; the inode goes with its last link unless a mount has it open. `after` is the inode then;
  // reply.gone and reply.keepers say the rest.
  base::Result<void> drop_link(InodeId id, Nanos now, const Asker& asker, Reply& reply, std::optional<Inode>& after);
  // The same for what `entry` named: an inode of another home leaves a debt.
  base::Result<void> release(const Entry& entry, Nanos now, const Asker& asker, Reply& reply, std::optional<Inode>& after);
  base::Result<void> set_ctime(InodeId id, Nanos now, std::optional<Inode>& after);

 private:
  base::Result<void> log(ListingRecord::Kind kind, const std::string& name, const Entry& entry, Nanos now);
  base::Result<void> append();

  zht::Transaction& tables_;
  HomeId home_;
  Inode directory_;
  ListingRecord tail_;
  std::uint64_t listing_size_ = 0;
  Nanos lease_left_ = 0;
  std::optional<std::optional<Split>> split_;
};

// Opens the shard as a directory that takes part in a change; a refusal ends the procedure.
#define OPEN_DIRECTORY(shard)                                        \
  {                                                                  \
    TRY_LET(open_error, (shard).open());                             \
    if (open_error != 0) {                                           \
      Reply refused = refuse(open_error);                            \
      if (open_error == ESTALE) refused.inode = (shard).directory(); \
      refused.gone = open_error == ENOENT;                           \
      return refused;                                                \
    }                                                                \
  }

// The same for a name that is not kept here (any more).
#define HERE(shard, name, to_change)                            \
  {                                                             \
    TRY_LET(not_here, (shard).elsewhere((name), (to_change)));  \
    if (not_here) return std::move(*not_here);                  \
  }

}  // namespace fusionfs

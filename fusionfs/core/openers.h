// Files that are open when their last name goes, on whichever mount. A mount that opens a file of a home is one of the home's *openers*
// for half a minute, and says so again while any of its files there is open: one small write in so long, not one for each open. An
// inode that loses its last name while its home has openers stays, without a name, and with a list of them (its keepers): each lets
// go of it as soon as it does not have it open. With the last it goes.
//
//   note_opener(tables, home, B, false)                              // B opens a file
//   keepers_of(tables, inode, asker, held)  ->  {B}                              // A removes it: B is to be told
//   let_go(tables, inode, B)                ->  true                             // nobody else: the inode can go
//
// Everything here is bytes in, bytes out.
#pragma once

#include <vector>

#include "fusionfs/core/format.h"
#include "zht/procedure.h"

namespace fusionfs {

inline constexpr Nanos kOpenerLife = 30'000'000'000;
// An opener may remove what it is opening itself at this moment: then it is a keeper of that too.
inline constexpr Nanos kOpensNow = 3'000'000'000;

struct Opener {
  std::uint64_t session = 0;
  Nanos until = 0, opens_now_until = 0;  // by the store's clock
};
std::string encode(const std::vector<Opener>& openers);
std::optional<std::vector<Opener>> decode_openers(Bytes bytes);

base::Result<void> note_opener(zht::Transaction& tables, HomeId home, std::uint64_t session, bool opens_now);
// The sessions that may have `inode`, whose last name goes now, open; of the asker's own `held` says so.
base::Result<std::vector<std::uint64_t>> keepers_of(zht::Transaction& tables, InodeId inode, std::uint64_t asker, bool held);
base::Result<void> put_keepers(zht::Transaction& tables, InodeId inode, const std::vector<std::uint64_t>& keepers);
// `session` does not have it open any more. Whether nobody has.
base::Result<bool> let_go(zht::Transaction& tables, InodeId inode, std::uint64_t session);

}  // namespace fusionfs

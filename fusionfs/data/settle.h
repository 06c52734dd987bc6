// Copies of one file that differ although each agrees with its own checksums: a mount that died after it had written to one and
// before it had written to the other leaves such. Nothing of that was synced (fsync returns when every copy has it), so
// either may stand; but all copies have to be the same, or who reads gets now this and now that.
//
// What stands: a block with a checksum before one without (never written there, or a write that did not come to its end), then
// that of the file's home, the first of its stores that answers. Each node mends its own copy, and only while nobody has
// the file open for writing.
#pragma once

#include "fusionfs/data/stores.h"

namespace fusionfs {

struct Settled {
  bool busy = false;             // somebody writes it: not looked at
  std::uint64_t differed = 0;    // blocks of this node's copy that were not as they should be
  std::uint64_t settled = 0;     // of these, now as in the other copy; the rest could not be read there
};

// Compares this node's copy with the others, by checksums: bytes travel where these differ. `inode` as the store has it now.
// Blocks on disk and network; not for a client's own thread. Errors: of this node's disk. Nodes that do not answer are left out.
base::Result<Settled> settle_copy(const ChunkStore& local, const Stores& stores, const Inode& inode);

}  // namespace fusionfs

// The part of FusionFS that runs inside the store: every change to one directory shard is a procedure, so that its
// conditions, its inode, its entry and its listing change together, in one round trip, without a retry loop.
// requests.h names the arguments and the reply of each.
#pragma once

#include "zht/procedure.h"

namespace fusionfs {

// Registers "fusionfs.lookup", "fusionfs.create", ... Called once by a node at start.
void add_procedures(zht::Procedures& procedures);

}  // namespace fusionfs

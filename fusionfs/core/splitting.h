// How a directory shard is split: the steps, each a procedure in one home, that Metadata::carry_split() goes through in
// this order. Each may be repeated, by several clients at once: whoever meets a split that somebody left carries it on.
//
//   split_begin    in the home that splits: from now on the names that leave are not changed
//   split_read     there: their entries
//   split_install  in the new home, until split_done: takes them (again)
//   split_done     there: the names are complete
//   split_finish   in the home that splits: the first one sends everybody to the new home; all remove what has moved
//
// FORMAT.md, "Splitting".
#pragma once

#include "fusionfs/core/requests.h"
#include "zht/procedure.h"

namespace fusionfs {

// `next` is the new home. EXFULL: a split is under way. Takes the lease, as a change of names does.
base::Result<Reply> split_begin(zht::Transaction& tables, HomeId home, const SplitRequest& request);
// EALREADY: no such split is under way, or its names have moved.
base::Result<Reply> split_read(zht::Transaction& tables, HomeId home, const SplitRequest& request);
// EALREADY: it is done.
base::Result<Reply> split_install(zht::Transaction& tables, HomeId home, const SplitRequest& request);
base::Result<Reply> split_done(zht::Transaction& tables, HomeId home, const SplitRequest& request);
// `names`, which have moved, go; with `last` the split ends. EALREADY: it has ended.
base::Result<Reply> split_finish(zht::Transaction& tables, HomeId home, const SplitRequest& request);

}  // namespace fusionfs

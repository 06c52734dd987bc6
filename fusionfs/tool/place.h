// What the verbs that look into the file system work with: the store, the names in it, this node's chunks.
#pragma once

#include <memory>
#include <string>

#include "fusionfs/core/metadata.h"
#include "fusionfs/data/chunk_store.h"
#include "novoht/base/clock.h"

namespace support {
struct CommonFlags;
}

namespace fusionfs {

struct Place {
  std::unique_ptr<zht::Client> client;
  std::unique_ptr<ChunkStore> chunks;
  std::unique_ptr<base::SystemClock> clock;
  std::unique_ptr<Metadata> metadata;
};

base::Result<Place> open_place(const support::CommonFlags& common, MetadataOptions options = {});
// A path on a mount of this machine, or else one from the file system's root. Symbolic links inside are not followed.
// not_found names the part that is not there.
base::Result<Inode> find_path(Place& place, const std::string& path);

}  // namespace fusionfs

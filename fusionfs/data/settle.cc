#include "fusionfs/data/settle.h"

#include <algorithm>

namespace fusionfs {

using base::Result;

Result<Settled> settle_copy(const ChunkStore& local, const Stores& stores, const Inode& inode) {
  Settled result;
  const std::vector<std::uint64_t> all = inode.stores();
  if (all.size() < 2 || std::find(all.begin(), all.end(), local.identity()) == all.end()) return result;
  LocalContent mine(local, inode.id);
  TRY_LET(alone, mine.keep_writers_out());
  result.busy = !alone;
  if (result.busy) return result;
  bool decides = true;  // whether the store looked at counts more than this node's: the first that answers does
  for (const std::uint64_t store : all) {
    if (store == local.identity()) {
      decides = false;
      continue;
    }
    const auto other = stores.open(inode.id, {store});
    bool answers = true;
    for (std::uint64_t at = 0; answers && at < inode.size; at += kChunkSize) {
      const std::uint64_t blocks = (std::min(kChunkSize, inode.size - at) + kBlockSize - 1) / kBlockSize;
      const auto theirs = other->sums(at, blocks);
      answers = theirs.has_value();
      if (!answers) break;
      TRY_LET(ours, mine.sums(at, blocks));
      for (std::uint64_t block = 0; block < blocks; ++block) {
        const std::uint32_t here = ours[block], there = (*theirs)[block];
        if (here == there || there == 0 || (here != 0 && !decides)) continue;
        result.differed += 1;
        std::string bytes(kBlockSize, '\0');
        if (!other->read(at + block * kBlockSize, bytes.data(), bytes.size())) continue;  // damaged there
        TRY(mine.write(at + block * kBlockSize, bytes));
        result.settled += 1;
      }
    }
    if (answers) decides = false;
  }
  if (result.settled != 0) TRY(mine.sync());
  return result;
}

}  // namespace fusionfs

// Reads all chunks of this node, says whose checksums do not agree, takes what is damaged from another copy.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "fusionfs/data/repair.h"
#include "fusionfs/data/settle.h"
#include "fusionfs/data/stores.h"
#include "fusionfs/fuse/wait.h"
#include "fusionfs/tool/place.h"
#include "fusionfs/tool/verbs.h"
#include "zht/support/output.h"
#include "zht/support/progress.h"
#include "zht/support/program.h"

namespace fusionfs {
namespace {

using base::Code;
using base::fail;
using base::Result;

struct Totals {
  std::uint64_t chunks = 0, blocks = 0, without_sum = 0, bad = 0, healed = 0, differed = 0, settled = 0, busy = 0, copies_made = 0,
                copies_lacking = 0, short_chunks = 0;
};

// The block as another store has it.
bool fetch_block(Place& place, Stores& stores, const Inode& inode, std::uint64_t offset, std::string& block) {
  block.resize(kBlockSize);
  for (const std::uint64_t other : inode.stores()) {
    if (other == place.chunks->identity()) continue;
    if (stores.open(inode.id, {other})->read(offset, block.data(), block.size())) return true;
  }
  return false;
}

Result<void> scrub_chunk(Place& place, Stores& stores, const ChunkStore::Chunk& chunk, const std::optional<Inode>& inode,
                         Totals& totals, nlohmann::json& list, bool quiet) {
  const std::string path = place.chunks->path_of(chunk.inode, chunk.index);
  TRY_LET(file, ChunkFile::open(path, false, place.chunks->boots()));
  if (!file) return {};  // it went meanwhile
  TRY_LET(scrubbed, file->scrub());
  totals.chunks += 1;
  totals.blocks += scrubbed.blocks;
  totals.without_sum += scrubbed.without_sum;
  for (const std::uint32_t block : scrubbed.bad) {
    const std::uint64_t offset = chunk.index * kChunkSize + block * kBlockSize;
    std::string good;
    bool healed = false;
    if (inode && fetch_block(place, stores, *inode, offset, good)) {
      TRY(file->heal(block, good));
      healed = true;
    }
    totals.bad += 1;
    totals.healed += healed ? 1 : 0;
    list.push_back({{"inode", raw(chunk.inode)}, {"offset_bytes", offset}, {"path", path}, {"healed", healed}});
    if (!quiet)
      std::printf("%s: block %u (byte %llu of inode %llu): %s\n", path.c_str(), block,
                  static_cast<unsigned long long>(offset), static_cast<unsigned long long>(raw(chunk.inode)),
                  healed ? "healed from another copy" : "DAMAGED, and there is no other copy that answers");
  }
  return {};
}

// Makes the copies that a file lacks, of those asked for when it was written or, `wanted`, now.
Result<void> replicate(Place& place, Repair& repair, const Inode& inode, std::size_t wanted, Totals& totals) {
  if (!repair.is_mine(inode) || repair.lacks(inode, wanted) == 0) return {};
  TRY_LET(made, repair.mend(inode, wanted));
  totals.copies_made += made;
  const Reply now = wait(place.metadata->getattr(inode.id));
  const std::size_t lacks = now.error == 0 ? repair.lacks(*now.inode, wanted) : 0;
  totals.copies_lacking += lacks;
  totals.short_chunks += lacks > 0 ? chunk_count(*now.inode) : 0;
  return {};
}

Result<int> scrub(const support::CommonFlags& common, std::size_t replicas) {
  TRY_LET(place, open_place(common));
  Stores stores(*place.client, *place.chunks);
  TRY(stores.refresh());
  Repair repair(*place.client, *place.chunks, stores, {.lost_after = std::chrono::milliseconds(0), .bytes_per_second = 0});
  TRY_LET(chunks, place.chunks->list());
  std::sort(chunks.begin(), chunks.end(), [](const auto& one, const auto& other) {
    return std::pair(raw(one.inode), one.index) < std::pair(raw(other.inode), other.index);
  });
  Totals totals;
  nlohmann::json list = nlohmann::json::array();
  InodeId last{};
  std::optional<Inode> inode;
  for (const auto& chunk : chunks) {
    if (chunk.inode != last) {
      Reply reply = wait(place.metadata->getattr(chunk.inode));
      if (reply.error != 0 && reply.error != ENOENT)
        return fail(Code::unavailable, "the store did not answer about inode ", raw(chunk.inode));
      inode = std::move(reply.inode);
      last = chunk.inode;
      if (inode) {
        TRY_LET(settled, settle_copy(*place.chunks, stores, *inode));
        totals.differed += settled.differed;
        totals.settled += settled.settled;
        totals.busy += settled.busy ? 1 : 0;
        if (settled.differed != 0 && !common.quiet && !common.json)
          std::printf("inode %llu: %llu blocks differ from the file's other copies, %llu are now as there\n",
                      static_cast<unsigned long long>(raw(chunk.inode)), static_cast<unsigned long long>(settled.differed),
                      static_cast<unsigned long long>(settled.settled));
      }
      if (inode) TRY(replicate(place, repair, *inode, replicas, totals));
    }
    TRY(scrub_chunk(place, stores, chunk, inode, totals, list, common.quiet || common.json));
  }
  const std::uint64_t left = totals.bad - totals.healed;
  if (common.json) {
    support::print_json({{"chunk_count", totals.chunks},
                         {"block_count", totals.blocks},
                         {"new_checksum_count", totals.without_sum},
                         {"damaged_count", totals.bad},
                         {"healed_count", totals.healed},
                         {"differing_count", totals.differed},
                         {"settled_count", totals.settled},
                         {"not_compared_count", totals.busy},
                         {"copies_made_count", totals.copies_made},
                         {"copies_lacking_count", totals.copies_lacking},
                         {"short_chunk_count", totals.short_chunks},
                         {"damaged", list}});
  } else if (!common.quiet) {
    std::printf("%s chunks, %s blocks of 4 KiB: %s", support::human_count(totals.chunks).c_str(),
                support::human_count(totals.blocks).c_str(), totals.bad == 0 ? "clean" : "");
    if (totals.bad != 0)
      std::printf("%llu damaged, %llu of them healed", static_cast<unsigned long long>(totals.bad),
                  static_cast<unsigned long long>(totals.healed));
    if (totals.without_sum != 0)
      std::printf("; %llu had no checksum and got one", static_cast<unsigned long long>(totals.without_sum));
    if (totals.differed != 0)
      std::printf("; %llu differed from another copy, %llu of them settled", static_cast<unsigned long long>(totals.differed),
                  static_cast<unsigned long long>(totals.settled));
    if (totals.busy != 0)
      std::printf("; %llu files are being written and were not compared", static_cast<unsigned long long>(totals.busy));
    if (totals.copies_made != 0) std::printf("; %llu copies made", static_cast<unsigned long long>(totals.copies_made));
    if (totals.copies_lacking != 0)
      std::printf("; %llu copies (of %llu chunks) lack a node to be on", static_cast<unsigned long long>(totals.copies_lacking),
                  static_cast<unsigned long long>(totals.short_chunks));
    std::printf("\n");
  }
  if (left != 0) return fail(Code::corrupt, left, " blocks are damaged and could not be healed");
  return 0;
}

}  // namespace

void add_scrub_verb(support::Program& program) {
  auto& verb = program.verb("scrub", "Reads all chunks of this node, verifies their checksums, heals from other copies.",
                            {"fusionfs scrub", "fusionfs scrub --replicas 2"});
  const auto replicas = std::make_shared<std::size_t>(1);
  verb.options()
      .add_option("--replicas", *replicas, "copy files that are on fewer nodes to others (default: as many as was asked for when a file was written)")
      ->check(CLI::Range(1, 8));
  verb.action([&program, replicas]() -> Result<int> { return scrub(program.common(), *replicas); });
}

}  // namespace fusionfs

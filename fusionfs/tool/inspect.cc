#include <fcntl.h>
#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "fusionfs/core/check.h"
#include "fusionfs/data/chunk_store.h"
#include "fusionfs/data/sweep.h"
#include "fusionfs/fuse/session.h"
#include "fusionfs/fuse/wait.h"
#include "fusionfs/tool/place.h"
#include "fusionfs/tool/verbs.h"
#include "zht/support/output.h"
#include "zht/support/program.h"

namespace fusionfs {
namespace {

using base::Code;
using base::fail;
using base::Result;

Result<int> check_file_system(const support::CommonFlags& common, bool repair) {
  MetadataOptions options;
  std::vector<Inode> gone;
  options.gone = [&](const Inode& inode) { gone.push_back(inode); };
  TRY_LET(store, open_place(common, options));
  Metadata& metadata = *store.metadata;
  Check check(*store.client, metadata);
  Census before, census;
  TRY_LET(first, check.read(before));
  TRY_LET(stray_before, find_strays(*store.client, *store.chunks));
  std::this_thread::sleep_for(std::chrono::seconds(1));
  TRY_LET(second, check.read(census));
  const auto both = [](const std::set<Finding>& one, const std::set<Finding>& other) {
    std::set<Finding> common_ones;
    for (const Finding& each : other) {
      if (const auto found = one.find(each); found != one.end() && found->same(each)) common_ones.insert(each);
    }
    return common_ones;
  };
  const std::set<Finding> standing = both(first, second);
  std::set<Finding> open = standing;
  for (int round = 0; repair && round < 6 && !Check::mendable(open).empty(); ++round) {
    // What a node with another clock has left is given up when it has been watched for a while.
    if (round >= 2) std::this_thread::sleep_for(std::chrono::milliseconds(1200));
    for (const Finding& each : Check::mendable(open)) wait(check.repair(each));
    TRY_LET(again, check.read(census));
    if (!again.empty()) {
      std::this_thread::sleep_for(std::chrono::seconds(1));
      TRY_LET(once_more, check.read(census));
      again = both(again, once_more);
    }
    open = std::move(again);
  }
  TRY_LET(stray, find_strays(*store.client, *store.chunks));
  std::erase_if(stray, [&](const auto& each) { return stray_before.count(each.first) == 0; });
  std::uint64_t left = open.size();
  nlohmann::json list = nlohmann::json::array();
  std::set<Finding> all = standing;
  all.insert(open.begin(), open.end());  // and what came to light when others were mended
  for (const Finding& each : all) {
    const bool done = open.count(each) == 0;
    list.push_back({{"kind", name_of(each.kind)}, {"what", each.text}, {"repaired", done}});
    if (!common.json)
      std::printf("%s: %s%s\n", std::string(name_of(each.kind)).c_str(), each.text.c_str(), done ? " (repaired)" : "");
  }
  for (const auto& [id, last] : stray) {
    bool done = false;
    if (repair) {
      TRY_LET(removed, remove_stray(*store.client, *store.chunks, id, last));
      done = removed;
    }
    left += done ? 0 : 1;
    list.push_back({{"kind", "stray"},
                    {"what", "chunks of inode " + std::to_string(raw(id)) + ", which has none here"},
                    {"repaired", done}});
    if (!common.json)
      std::printf("stray: chunks of inode %llu, which has none here%s\n", static_cast<unsigned long long>(raw(id)),
                  done ? " (repaired)" : "");
  }
  for (const Inode& inode : gone) TRY(store.chunks->remove(inode.id, inode.size));
  if (common.json) {
    support::print_json({{"files", census.files},
                         {"directories", census.directories},
                         {"size_bytes", census.bytes},
                         {"findings", list},
                         {"left_count", left}});
  } else if (!common.quiet) {
    std::printf("%s files, %s directories, %s: %s\n", support::human_count(census.files).c_str(),
                support::human_count(census.directories).c_str(), support::human_size(census.bytes).c_str(),
                left == 0 ? "clean" : (std::to_string(left) + " findings").c_str());
  }
  if (left == 0) return 0;
  return fail(Code::corrupt, left, " findings are left",
              repair ? "; they need a look by a person" : "; mend what can be mended: fusionfs fsck --repair");
}

Result<int> locate_file(const support::CommonFlags& common, const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return base::fail_errno(errno, path);
  char* real = ::realpath(path.c_str(), nullptr);
  const std::string whole = real != nullptr ? real : path;
  ::free(real);
  bool ours = false;
  for (const Mounted& mounted : mounts())
    ours = ours || whole == mounted.directory || whole.starts_with(mounted.directory + "/");
  if (!ours) return fail(Code::invalid, path, " is not on a FusionFS; see: fusionfs status");
  // What was written and not yet closed is committed first.
  if (const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC); file >= 0) {
    ::fsync(file);
    ::close(file);
  }
  TRY_LET(store, open_place(common));
  const InodeId id{status.st_ino};
  const Reply reply = wait(store.metadata->getattr(id));
  if (reply.error != 0)
    return fail(Code::not_found, path, ": inode ", raw(id), ": ", std::strerror(reply.error),
                "; is --data the folder of its node?");
  const Inode& inode = *reply.inode;
  nlohmann::json chunks = nlohmann::json::array();
  const std::vector<std::uint64_t> stores = inode.stores();
  const bool here = std::find(stores.begin(), stores.end(), store.chunks->identity()) != stores.end();
  for (std::uint64_t index = 0; here && index * kChunkSize < inode.size; ++index) {
    const std::string chunk = store.chunks->path_of(id, index);
    struct stat chunk_status {};
    if (::stat(chunk.c_str(), &chunk_status) != 0) continue;  // a hole
    chunks.push_back({{"offset_bytes", index * kChunkSize},
                      {"size_bytes", std::min(kChunkSize, inode.size - index * kChunkSize)},
                      {"path", chunk}});
  }
  const std::string place = inode.has(Inode::kInline) ? "inline"
                            : inode.store == 0        ? "none"
                            : here                    ? "this node"
                                                      : "another node";
  const auto partition = zht::partition_of(inode_key(id), store.client->partition_count());
  Stores others(*store.client, *store.chunks);
  TRY(others.refresh());
  Repair repair(*store.client, *store.chunks, others, {.lost_after = std::chrono::milliseconds(0)});
  const std::size_t lacks = repair.lacks(inode);
  const std::uint64_t too_few = lacks > 0 ? chunk_count(inode) : 0;
  if (common.json) {
    support::print_json({{"inode", raw(id)},
                         {"copy_count", stores.size()},
                         {"wanted_copy_count", std::max<std::size_t>(inode.wanted, stores.empty() ? 0 : 1)},
                         {"short_chunk_count", too_few},
                         {"home", raw(home_of(id))},
                         {"partition", static_cast<std::uint32_t>(partition)},
                         {"size_bytes", inode.size},
                         {"content", place},
                         {"chunks", chunks}});
    return 0;
  }
  std::printf("inode %llu, home %llu, partition %u, %s, content: %s\n", static_cast<unsigned long long>(raw(id)),
              static_cast<unsigned long long>(raw(home_of(id))), static_cast<unsigned>(partition),
              support::human_size(inode.size).c_str(), place.c_str());
  if (lacks > 0)
    std::printf("SHORT: %llu chunks lack %llu of %u copies\n", static_cast<unsigned long long>(too_few),
                static_cast<unsigned long long>(lacks), static_cast<unsigned>(inode.wanted));
  support::Table table({"OFFSET", "SIZE", "CHUNK"});
  for (const auto& each : chunks) {
    table.row({std::to_string(each["offset_bytes"].get<std::uint64_t>()),
               std::to_string(each["size_bytes"].get<std::uint64_t>()), each["path"].get<std::string>()});
  }
  if (!chunks.empty()) table.print();
  return 0;
}

}  // namespace

void add_inspect_verbs(support::Program& program) {
  {
    auto& verb = program.verb("fsck", "Reads every record of the file system and says where they disagree.",
                              {"fusionfs fsck", "fusionfs fsck --repair"});
    const auto repair = std::make_shared<bool>(false);
    verb.options().add_flag("--repair", *repair,
                            "mend what a crash can leave: unfinished moves, link counts, stray chunks");
    verb.action([&program, repair]() -> Result<int> { return check_file_system(program.common(), *repair); });
  }
  {
    auto& verb = program.verb("locate", "Shows where a file's inode and chunks are.",
                              {"fusionfs locate /mnt/shared/data", "fusionfs locate /mnt/shared/data --json"});
    const auto path = std::make_shared<std::string>();
    verb.options().add_option("file", *path, "a file on a mount")->required();
    verb.action([&program, path]() -> Result<int> { return locate_file(program.common(), *path); });
  }
}

}  // namespace fusionfs

#include "fusionfs/tool/place.h"

#include <cerrno>

#include "fusionfs/fuse/session.h"
#include "fusionfs/fuse/wait.h"
#include "zht/support/paths.h"
#include "zht/support/program.h"

namespace fusionfs {

using base::Code;
using base::fail;
using base::Result;

Result<Place> open_place(const support::CommonFlags& common, MetadataOptions options) {
  Place place;
  TRY_LET(data, support::data_folder(common.data));
  TRY_LET(client, zht::connect(common.looking_options()));
  TRY(support::make_private_folder(data));
  TRY_LET(chunks, ChunkStore::open(data + "/chunks"));
  place.client = std::move(client);
  place.chunks = std::move(chunks);
  place.clock = std::make_unique<base::SystemClock>();
  place.metadata = std::make_unique<Metadata>(*place.client, *place.clock, std::move(options));
  return place;
}

Result<Inode> find_path(Place& place, const std::string& path) {
  TRY_LET(whole, support::absolute_path(path));
  std::string rest = whole;
  for (const Mounted& mounted : mounts()) {
    if (whole == mounted.directory || whole.starts_with(mounted.directory + "/"))
      rest = whole.substr(mounted.directory.size());
  }
  Reply at = wait(place.metadata->getattr(kRootInode));
  if (at.error == ENOENT)
    return fail(Code::not_found, "there is no file system in this store yet; mount it: fusionfs mount DIR");
  std::string seen;
  while (at.error == 0) {
    rest.erase(0, rest.find_first_not_of('/'));
    if (rest.empty()) return std::move(*at.inode);
    const std::string name = rest.substr(0, rest.find('/'));
    rest.erase(0, name.size());
    if (name == ".") continue;
    seen += "/" + name;
    if (!is_directory(at.inode->mode)) return fail(Code::not_found, base::escape(seen), ": not a directory on the way");
    at = wait(place.metadata->lookup(at.inode->id, name));
  }
  if (at.error == ENOENT) return fail(Code::not_found, base::escape(seen), ": there is no such file or directory");
  return base::fail_errno(at.error, seen.empty() ? path : seen);
}

}  // namespace fusionfs

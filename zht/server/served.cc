#include "zht/server/served.h"

#include <sys/stat.h>

#include "zht/server/identity.h"
#include "zht/support/config.h"
#include "zht/support/paths.h"

namespace zht::server {

using base::Result;

namespace {

std::string path_in(const std::string& data) { return data + "/served.toml"; }

bool is_there(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0;
}

}  // namespace

Result<void> remember_served(const support::Config& config, const std::string& data) {
  // Of a first start alone: how the folder was made.
  const std::string text = config.set_text({"join", "nodes", "instances", "partitions"});
  if (const auto before = support::read_file(path_in(data)); before && *before == text) return {};
  return support::write_file_atomically(path_in(data), text);
}

Result<bool> recall_served(support::Config& config, const std::string& data) {
  if (!is_there(path_in(data))) return false;
  TRY(config.load_file(path_in(data)));
  return true;
}

bool is_member(const std::string& data) {
  const auto identity = read_identity(data, 0, 0);
  return identity && (identity->founding.nodes.size() > 1 || is_there(data + "/others.json"));
}

}  // namespace zht::server

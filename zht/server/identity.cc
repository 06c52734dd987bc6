#include "zht/server/identity.h"

#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "novoht/base/random.h"
#include "zht/support/paths.h"

namespace zht::server {

using base::Code;
using base::fail;

namespace {

base::Result<Identity> parse(const std::string& path, const std::string& text) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  const auto number = [&](const char* name) -> std::uint64_t {
    const auto at = json.find(name);
    return at != json.end() && at->is_number_unsigned() ? at->get<std::uint64_t>() : 0;
  };
  if (!json.is_object() || number("format") == 0) return fail(Code::corrupt, path, " is not a node's identity");
  if (number("format") > kDataFormat)
    return fail(Code::unsupported, path, ": data of format ", number("format"), ", this build reads up to ", kDataFormat,
                "; use the newer zht that wrote it");
  Identity identity;
  identity.member = {number("node"), number("incarnation")};
  identity.instance_count = static_cast<std::uint32_t>(number("instances"));
  identity.partition_count = static_cast<std::uint32_t>(number("partitions"));
  if (identity.member.node == 0 || identity.instance_count == 0 || identity.instance_count > 1024 ||
      identity.partition_count < identity.instance_count || identity.partition_count > (1u << 20))
    return fail(Code::corrupt, path, ": node ", identity.member.node, " with ", identity.instance_count, " instances and ",
                identity.partition_count, " partitions cannot be");
  return identity;
}

}  // namespace

base::Result<Identity> fresh_identity(std::uint32_t wanted_instances, std::uint32_t wanted_partitions,
                                      std::uint32_t default_instances) {
  Identity identity;
  identity.member = {base::entropy() | 1, 1};
  identity.instance_count = wanted_instances != 0 ? wanted_instances : default_instances;
  identity.partition_count = wanted_partitions != 0 ? wanted_partitions : kDefaultPartitionCount;
  if (identity.partition_count < identity.instance_count)
    return fail(Code::invalid, identity.partition_count, " partitions for ", identity.instance_count,
                " instances; there must be at least one each");
  return identity;
}

base::Result<Identity> begin_life(const std::string& folder, std::uint32_t wanted_instances, std::uint32_t wanted_partitions,
                                  std::uint32_t default_instances) {
  const std::string path = folder + "/node.json";
  Identity identity;
  struct stat there {};
  if (::stat(path.c_str(), &there) == 0) {
    TRY_LET(text, support::read_file(path));
    TRY_LET(read, parse(path, text));
    identity = read;
    if (wanted_instances != 0 && wanted_instances != identity.instance_count)
      return fail(Code::invalid, folder, " was made with ", identity.instance_count, " instances, not ", wanted_instances,
                  "; leave --instances out, or use another data folder");
    if (wanted_partitions != 0 && wanted_partitions != identity.partition_count)
      return fail(Code::invalid, folder, " was made with ", identity.partition_count, " partitions, not ", wanted_partitions,
                  "; leave --partitions out, or use another data folder");
  } else {
    TRY_LET(fresh, fresh_identity(wanted_instances, wanted_partitions, default_instances));
    identity = fresh;
    identity.member.incarnation = 0;
  }
  identity.member.incarnation++;
  const nlohmann::json json = {{"format", kDataFormat},
                               {"node", identity.member.node},
                               {"incarnation", identity.member.incarnation},
                               {"instances", identity.instance_count},
                               {"partitions", identity.partition_count}};
  TRY(support::write_file_atomically(path, json.dump(2) + "\n"));
  return identity;
}

}  // namespace zht::server

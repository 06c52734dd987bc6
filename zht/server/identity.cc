#include "zht/server/identity.h"

#include <sys/stat.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "novoht/base/clock.h"
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
  identity.cluster = number("cluster");
  identity.number = number("number");
  identity.config = std::max<std::uint64_t>(number("config"), 1);
  identity.voted.reset();
  if (json.contains("voted")) identity.voted = number("voted");
  identity.founding.partitions = identity.partition_count;
  identity.founding.copies = static_cast<std::uint32_t>(number("copies"));
  identity.founding.sync_copies = static_cast<std::uint32_t>(number("sync_copies"));
  const auto text_of = [](const nlohmann::json& in, const char* name) {
    const auto at = in.find(name);
    return at != in.end() && at->is_string() ? at->get<std::string>() : std::string();
  };
  if (const auto nodes = json.find("founders"); nodes != json.end() && nodes->is_array())
    for (const auto& one : *nodes) {
      if (!one.is_object() || !one.contains("instances") || !one["instances"].is_number_unsigned())
        return fail(Code::corrupt, path, ": a founder of the cluster is not described");
      const auto count = one["instances"].get<std::uint32_t>();
      identity.founding.nodes.push_back({text_of(one, "address"), count, text_of(one, "rack")});
    }
  if (const auto keepers = json.find("keepers"); keepers != json.end() && keepers->is_array())
    for (const auto& one : *keepers)
      if (one.is_number_unsigned()) identity.keepers.push_back(one.get<std::uint64_t>());
  if (identity.cluster == 0) {  // of a build that knew no clusters: it was alone
    identity.cluster = identity.member.node;
    identity.number = 1;
    identity.founding.nodes = {{{}, identity.instance_count, {}}};
    identity.keepers = {1};
  }
  if (identity.number == 0 || identity.number > 1'000'000 || identity.member.node == 0 || identity.instance_count == 0 ||
      identity.instance_count > kInstancesOfNode ||
      identity.partition_count < identity.instance_count || identity.partition_count > (1u << 20))
    return fail(Code::corrupt, path, ": node ", identity.member.node, " with ", identity.instance_count, " instances and ",
                identity.partition_count, " partitions cannot be");
  return identity;
}

}  // namespace

base::Result<Identity> fresh_identity(std::uint32_t wanted_instances, std::uint32_t wanted_partitions,
                                      std::uint32_t default_instances) {
  Identity identity;
  identity.member = {base::entropy() | 1, 0};
  identity.cluster = base::entropy() | 1;
  identity.instance_count = wanted_instances != 0 ? wanted_instances : default_instances;
  identity.partition_count = wanted_partitions != 0 ? wanted_partitions : kDefaultPartitionCount;
  if (identity.partition_count < identity.instance_count)
    return fail(Code::invalid, identity.partition_count, " partitions for ", identity.instance_count,
                " instances; there must be at least one each");
  identity.founding.nodes = {{{}, identity.instance_count, {}}};
  identity.founding.partitions = identity.partition_count;
  identity.keepers = {1};
  return identity;
}

base::Result<Identity> read_identity(const std::string& folder, std::uint32_t wanted_instances, std::uint32_t wanted_partitions) {
  const std::string path = folder + "/node.json";
  struct stat there {};
  if (::stat(path.c_str(), &there) != 0) return fail(Code::not_found, path, " is not there yet");
  TRY_LET(text, support::read_file(path));
  TRY_LET(identity, parse(path, text));
  if (wanted_instances != 0 && wanted_instances != identity.instance_count)
    return fail(Code::invalid, folder, " was made with ", identity.instance_count, " instances, not ", wanted_instances,
                "; leave --instances out, or use another data folder");
  if (wanted_partitions != 0 && wanted_partitions != identity.partition_count)
    return fail(Code::invalid, folder, " was made with ", identity.partition_count, " partitions, not ", wanted_partitions,
                "; leave --partitions out, or use another data folder");
  return identity;
}

base::Result<void> begin_life(const std::string& folder, Identity& identity) {
  // By the time of day too: an older copy of the folder, put back, must not begin a life that there was.
  const auto now = std::chrono::duration_cast<std::chrono::microseconds>(base::SystemClock().wall().time_since_epoch()).count();
  std::uint64_t& life = identity.member.incarnation;
  life = life == 0 ? 1 : std::max(life + 1, static_cast<std::uint64_t>(std::max<std::int64_t>(now, 0)));
  return save_identity(folder, identity);
}

base::Result<void> save_identity(const std::string& folder, const Identity& identity) {
  nlohmann::json nodes = nlohmann::json::array();
  for (const Founder& one : identity.founding.nodes)
    nodes.push_back({{"address", one.address}, {"instances", one.instances}, {"rack", one.rack}});
  nlohmann::json json = {{"format", kDataFormat},
                               {"node", identity.member.node},
                               {"incarnation", identity.member.incarnation},
                               {"instances", identity.instance_count},
                               {"partitions", identity.partition_count},
                               {"cluster", identity.cluster},
                               {"number", identity.number},
                               {"founders", nodes},
                               {"keepers", identity.keepers},
                               {"config", identity.config},
                               {"copies", identity.founding.copies},
                               {"sync_copies", identity.founding.sync_copies}};
  if (identity.voted) json["voted"] = *identity.voted;
  return support::write_file_atomically(folder + "/node.json", json.dump(2) + "\n");
}

}  // namespace zht::server

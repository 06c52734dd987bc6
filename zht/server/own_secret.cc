#include "zht/server/own_secret.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <nlohmann/json.hpp>

#include "zht/client/known_secrets.h"
#include "zht/net/listen.h"
#include "zht/server/founding.h"
#include "zht/server/identity.h"
#include "zht/support/log.h"
#include "zht/support/paths.h"
#include "zht/support/process.h"

namespace zht::server {

using base::Code;
using base::fail;
using base::Result;

namespace {

const support::Log& logger() {
  static const support::Log log("zht.secret");
  return log;
}

std::string hexadecimal(std::uint64_t number) { return base::to_hex({reinterpret_cast<const char*>(&number), sizeof number}); }
std::string name_of_cluster(std::uint64_t id) { return "cluster-" + hexadecimal(id); }

bool beyond_loopback(const std::string& address) {
  const auto parsed = net::parse_address(address);
  return parsed && !is_loopback(parsed->first);
}

// Whether anything is to be opened that has to be proven.
bool opens_a_door(const Settings& settings) {
  return !settings.listen.empty() || !settings.resp.empty() || (!settings.http.empty() && beyond_loopback(settings.http));
}

// Under which names the secret of the cluster that `settings` speaks of may be known here. None: this node begins alone.
struct Cluster {
  std::vector<std::string> names;  // the first that is known
  std::string own;                 // under which all its nodes find it; empty: none such
  bool may_make = true;
  std::string remedy;              // where it may not
};

Result<Cluster> cluster_of(const Settings& settings) {
  Cluster cluster;
  const auto known = settings.in_memory ? Result<Identity>(fail(Code::not_found, "nothing is kept")) : read_identity(settings.data, 0, 0);
  if (known) {
    cluster.own = name_of_cluster(known->cluster);
    struct stat others {};
    const bool alone = known->founding.nodes.size() <= 1 && ::stat((settings.data + "/others.json").c_str(), &others) != 0;
    cluster.may_make = alone || !beyond_loopback(settings.listen);
    cluster.remedy = "its cluster was begun without a secret: put one into every node's data folder (zht secret new, mode 600)";
  } else if (!settings.join.empty()) {
    std::string rest = settings.join;
    while (!rest.empty()) {
      const std::size_t comma = std::min(rest.find(','), rest.size());
      cluster.names.push_back(rest.substr(0, comma));
      rest.erase(0, comma + 1);
    }
    cluster.may_make = false;
    cluster.remedy = "no secret of the cluster at " + settings.join + " is known to this user: copy `secret` from the data folder of one of its "
                     "nodes to " + settings.data + "/secret (mode 600), or name it with --secret-file";
  } else if (!settings.nodes.empty()) {
    TRY_LET(mine, net::parse_address(settings.listen));
    TRY_LET(nodes, parse_nodes(settings.nodes, mine.second, 1));
    std::string all;
    for (const Founder& one : nodes) {
      all += one.address + "\n";
      cluster.names.push_back(one.address);
      cluster.may_make = cluster.may_make && !beyond_loopback(one.address);
    }
    cluster.own = "nodes-" + hexadecimal(base::hash64(all));
    cluster.remedy = "the nodes of " + settings.nodes + " need one secret: make it (zht secret new), copy it to every node's data folder "
                     "(mode 600), or name it with --secret-file";
  }
  if (!cluster.own.empty()) cluster.names.insert(cluster.names.begin(), cluster.own);
  return cluster;
}

std::optional<std::string> known_to(const Cluster& cluster) {
  for (const std::string& name : cluster.names)
    if (auto known = client::known_secret(name)) return known;
  return std::nullopt;
}

}  // namespace

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.rfind("127.", 0) == 0;
}

Result<security::Opener> find_or_make_credentials(const Settings& settings, std::string& homeless) {
  TRY_LET(found, credentials_of(settings));
  if (found || settings.insecure || !opens_a_door(settings) || says_none(settings)) return found;
  TRY_LET(cluster, cluster_of(settings));
  // Who joins may be started in the same moment as the node that it is to find.
  if (!cluster.may_make) support::wait_until(std::chrono::seconds(3), [&] { return known_to(cluster).has_value(); });
  const auto lock = client::lock_secrets();
  if (!lock && (settings.in_memory || !cluster.names.empty())) return lock.error();  // else nobody shares it: no matter
  if (settings.in_memory) {
    TRY_LET(path, client::make_homeless_secret());
    homeless = path;
    return security::load_credentials(security::End::node, path, {}, {});
  }
  const std::string path = security::secret_path(settings.data);
  const auto known = known_to(cluster);
  if (!known && !cluster.may_make)
    return fail(Code::invalid, "it would listen without a secret, unauthenticated, open to whoever reaches the port; ", cluster.remedy,
                ". Have munge vouch (--secret-file munge), give TLS files, or, where all who reach the ports may do everything, --insecure");
  if (known) TRY(security::copy_secret(*known, path));
  else TRY(security::make_secret(path));
  if (known) logger().info("has the secret of its cluster from another node of this user", {{"secret", path}, {"found", *known}});
  else logger().info("made a secret for this cluster; nodes on other machines need a copy of it", {{"secret", path}});
  if (!cluster.own.empty()) TRY(client::note_secret(cluster.own, path));
  return credentials_of(settings);
}

void tell_tools(const security::Opener& opener, const std::vector<std::string>& addresses, std::uint64_t cluster) {
  std::vector<std::string> names;
  for (const std::string& address : addresses) {
    names.push_back(address);
    const auto parsed = net::parse_address(address);
    if (!parsed) continue;
    const std::string port = ":" + std::to_string(parsed->second);
    char host[256] = {};
    if (parsed->first != "0.0.0.0" && parsed->first != "::") continue;
    names.push_back("127.0.0.1" + port);
    if (::gethostname(host, sizeof host - 1) == 0) names.push_back(host + port);
  }
  if (!opener || !opener->secret) {
    for (const std::string& name : names) client::forget_secret(name);
    return;
  }
  names.push_back(name_of_cluster(cluster));
  const auto secret = support::absolute_path(opener->secret->origin());
  for (const std::string& name : names) {
    const auto noted = secret ? client::note_secret(name, *secret) : Result<void>(secret.error());
    if (noted) continue;
    logger().warn("this user's tools will not find the secret; they need ZHT_SECRET_FILE",
                  {{"secret", opener->secret->origin()}, {"error", noted.error()}});
    return;
  }
}

}  // namespace zht::server

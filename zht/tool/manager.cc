#include "zht/tool/manager.h"

#include <cstdlib>

#include "zht/client/local_node.h"
#include "zht/support/paths.h"
#include "zht/support/process.h"

namespace zht::tool {

Millis patience(const support::Program& program, Millis otherwise) {
  return program.common().timeout.count() > 0 ? program.common().timeout : otherwise;
}

// --cluster or $ZHT_CLUSTER; none: the local node's manager.
Result<std::vector<client::Address>> managers(const support::Program& program) {
  std::string cluster = program.common().cluster;
  if (cluster.empty())
    if (const char* set = std::getenv("ZHT_CLUSTER"); set != nullptr) cluster = set;
  TRY_LET(folder, support::data_folder(program.common().data));
  if (!cluster.empty()) {
    TRY_LET(opener, security::credentials_from_environment(folder));
    return client::parse_cluster(cluster, opener);
  }
  if (!support::held_by(folder + "/node.lock"))
    return fail(Code::unavailable, "no node runs in ", folder, "; start one with: zht serve --background");
  TRY_LET(manager, client::manager_of(folder));
  return std::vector<client::Address>{manager};
}

// The first manager that answers.
Result<wire::Status> status_of(const std::vector<client::Address>& addresses, Millis timeout) {
  Result<wire::Status> status = fail(Code::unavailable, "no address given");
  for (const client::Address& address : addresses) {
    status = client::fetch_status(address, timeout);
    if (status) break;
  }
  return status;
}

}  // namespace zht::tool

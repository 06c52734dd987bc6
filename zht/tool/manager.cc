#include "zht/tool/manager.h"

#include <cstdlib>

#include "zht/client/known_secrets.h"
#include "zht/client/local_node.h"
#include "zht/support/paths.h"
#include "zht/support/process.h"

namespace zht::tool {

Millis patience(const support::Program& program, Millis otherwise) {
  return program.common().timeout.count() > 0 ? program.common().timeout : otherwise;
}

// What CommonFlags::named_cluster() says; none: the local node's manager.
Result<std::vector<client::Address>> managers(const support::Program& program) {
  const std::string cluster = program.common().named_cluster();
  TRY_LET(folder, support::data_folder(program.common().data));
  if (!cluster.empty()) return client::find_cluster(cluster, folder);
  if (!support::held_by(folder + "/node.lock"))
    return fail(Code::unavailable, "no node runs in ", folder, "; start one with: zht serve --background --data ", folder);
  TRY_LET(manager, client::manager_of(folder));
  return std::vector<client::Address>{manager};
}

// The first manager that answers.
Result<wire::Status> status_of(const std::vector<client::Address>& addresses, Millis timeout) {
  Error all{Code::unavailable, ""};
  for (const client::Address& address : addresses) {
    auto status = client::fetch_status(address, timeout);
    if (status || addresses.size() == 1) return status;
    all.message += (all.message.empty() ? "nobody answers: " : "; ") + status.error().message;
  }
  return all;
}

}  // namespace zht::tool

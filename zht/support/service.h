// Services of the local node: programs that the node keeps running as its children (a MATRIX agent, a FusionFS mount).
//
// A tool registers one: the node, which looks at the folder every half second, starts it and starts it again whenever it
// ends. The service itself holds its lock for as long as it serves, so that there is one of it whoever started it, and
// `zht stop` knows whom to stop.
//
//   support::register_service(data, {"matrix-agent", {program, "agent", "--data", data}});   // the tool
//   TRY_LET(lock, support::hold_service(data, "matrix-agent"));                              // the service, first thing
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "novoht/base/result.h"
#include "zht/support/process.h"

namespace support {

struct Service {
  std::string name;               // letters, digits, '.', '_', '-'; 1 to 100 of them
  std::vector<std::string> argv;  // argv[0]: an absolute path
};

// services/<name>.json is there when this returns, and survives a restart of the node. Replaces one of the same name.
base::Result<void> register_service(const std::string& data_folder, const Service& service);
// Takes it off the list; a running one is not stopped by this. Fine when it is not there.
base::Result<void> unregister_service(const std::string& data_folder, const std::string& name);
// All registered, by name. A file that cannot be read as one is left out and its name put in `broken` when given.
base::Result<std::vector<Service>> list_services(const std::string& data_folder, std::vector<std::string>* broken = nullptr);

// Held by the service itself while it serves. conflict: one runs already, with its pid.
base::Result<LockFile> hold_service(const std::string& data_folder, const std::string& name);
std::optional<pid_t> service_pid(const std::string& data_folder, const std::string& name);
// Names whose lock is held now, registered or not.
std::vector<std::string> running_services(const std::string& data_folder);

}  // namespace support

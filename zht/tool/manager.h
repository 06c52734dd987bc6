// Asking the node's manager, for the verbs that show how it is.
#pragma once

#include <vector>

#include "zht/client/control.h"
#include "zht/support/program.h"
#include "zht/wire/zht.pb.h"

namespace zht::tool {

// Of CommonFlags::named_cluster(); none: the local node's manager. unavailable: no node runs.
Result<std::vector<client::Address>> managers(const support::Program& program);
// The status of the first manager that answers.
Result<wire::Status> status_of(const std::vector<client::Address>& addresses, Millis timeout);
Millis patience(const support::Program& program, Millis otherwise);  // --timeout, or `otherwise`

}  // namespace zht::tool

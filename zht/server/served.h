// How a data folder was served last, in the folder's served.toml: where its node listened, with which secret, for which others.
// Whoever starts a node that died, a client or a mount, starts it as it was: their own environment says how to reach a node, not how
// to be one, and a member of a cluster that came back on its unix socket alone would be cut off from it.
#pragma once

#include <string>

#include "novoht/base/result.h"
#include "zht/server/node.h"

namespace support {
class Config;
}

namespace zht::server {

// Durably, of settings that are in `config` (add_settings()), when the node serves. io, no_space.
base::Result<void> remember_served(const support::Config& config, const std::string& data);
// What was remembered replaces what `config` has, with all its origins; nothing remembered: nothing happens. False then.
base::Result<bool> recall_served(support::Config& config, const std::string& data);
// Whether the folder's node has others beside it that would miss it, as far as the folder tells.
bool is_member(const std::string& data);

}  // namespace zht::server

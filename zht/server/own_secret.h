// The secret of a node that is about to listen. A node whose settings name none, nor TLS's files, and that is not told to do without
// (`insecure`), has the one in its data folder; where there is none it takes that of the cluster it is to belong to, if this user's
// nodes on this machine know it (client/known_secrets.h), else it makes one. So no port of a node is ever open to other users of
// the machine unless somebody said so, and nobody has to do anything for it as long as all is on one machine.
#pragma once

#include <string>
#include <vector>

#include "novoht/base/result.h"
#include "zht/security/guard.h"
#include "zht/server/node.h"

namespace zht::server {

// As credentials_of(), which finds what this has made. invalid: it must not be made here (a node that joins has to bring the secret of
// its cluster; nodes of a list beyond this machine have to be given one). `homeless`: the path of a secret made for a node that keeps
// nothing on disk; the caller removes it.
base::Result<security::Opener> find_or_make_credentials(const Settings& settings, std::string& homeless);
// This user's tools find what opens `addresses` (host:port) from now on; nothing, where `opener` has no secret. `cluster`: its id.
void tell_tools(const security::Opener& opener, const std::vector<std::string>& addresses, std::uint64_t cluster);

bool is_loopback(const std::string& host);

}  // namespace zht::server

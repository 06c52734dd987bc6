// Who may connect to a service's own links (FusionFS's chunk servers): who may connect to the cluster, by the same proof.
// The filter itself, and how it is driven, is security/guard.h; here is what opens the door.
//
//   TRY_LET(opener, zht::link_opener("fusionfs chunks", [&] { return word_kept_in_the_store(); }));
//   zht::Guard guard(opener, zht::Side::asker);
#pragma once

#include <functional>
#include <string>

#include "zht/security/guard.h"

namespace zht {

using security::Guard;
using security::Opener;
using security::Side;

// Never null. Where munge vouches for the cluster's own connections ($ZHT_SECRET_FILE), credentials for `purpose`: a proof given on
// such a link is of no use at a node. Else a secret that `otherwise` says (16 to 4096 bytes of text, the same for all ends), which is
// kept in the store: whoever may read that may have the links too, whatever key lets it in there. With TLS's files ($ZHT_TLS_...) TLS below.
// Errors: as Secret::load and TlsContext::load; those of `otherwise`. Blocks on files. Any thread.
base::Result<Opener> link_opener(base::Bytes purpose, const std::function<base::Result<std::string>()>& otherwise);

// What $ZHT_SECRET_FILE or one of $ZHT_TLS_... says, as a process with another working folder has to be told it: an absolute path;
// nothing, and words that are no paths (none, munge), as they are. Error: io. Any thread.
base::Result<std::string> absolute_credential(const std::string& value);

}  // namespace zht

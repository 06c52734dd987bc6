// How this user's tools find the secret of a cluster that this user's nodes serve: a folder of the user's own, zht-secrets beside the
// usual data folder (mode 0700), has a link of the name `host:port` for each address where such a node listens; it leads to
// the secret in that node's data folder. Where that folder is gone the link leads nowhere, and counts for nothing.
//
//   TRY(note_secret("127.0.0.1:5470", "/srv/zht/secret"));              // a node that listens there
//   TRY_LET(seeds, find_cluster("127.0.0.1:5470,10.0.0.2:5470", data));  // a client: each address with what it proves there
//
// Nodes of one list (`--nodes`) that are founded together find one secret under the name `nodes-<hash of the list>`, and those of
// a cluster that was begun without one under `cluster-<id>`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "zht/client/address.h"
#include "zht/support/process.h"

namespace zht::client {

// Where the secret known as `name` is; nothing: none is known, or it is not there any more.
std::optional<std::string> known_secret(const std::string& name);
// From now on `name` leads to the file `secret` (absolute). io, no_space; invalid: there is no folder for such links.
base::Result<void> note_secret(const std::string& name, const std::string& secret);
void forget_secret(const std::string& name);
// Held by whoever looks for a secret and makes one where there is none, so that two do not make two.
base::Result<support::LockFile> lock_secrets();
// A new secret in that folder itself, for a node that has no other; its path. The caller removes it.
base::Result<std::string> make_homeless_secret();

// What a client proves at `address`: $ZHT_SECRET_FILE and $ZHT_TLS_... where they are set; else the key of the secret that is known for
// the address, else that of `data_folder`/secret, if there is one. Null: nothing. Errors as security::load_credentials.
base::Result<security::Opener> credentials_at(const Address& address, const std::string& data_folder);
// parse_cluster(), with credentials_at() each address, or at another of them where nothing is known of it.
base::Result<std::vector<Address>> find_cluster(const std::string& text, const std::string& data_folder);

}  // namespace zht::client

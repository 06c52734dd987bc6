// What a TCP connection goes through before, and with TLS while, frames are exchanged: TLS where files are given for it, then
// the handshake where there is a secret. A sans-IO filter that every maker of connections uses alike: the frame server,
// the client's channel and its engine, and the links between nodes.
//
//   Guard guard(credentials, Side::asker);
//   guard.begin(to_wire);                          // send that
//   TRY(guard.receive(bytes, plain, to_wire));     // for all that comes; send to_wire, also when it fails
//   if (guard.open()) guard.send(frames, to_wire); // before that, nothing of ours leaves
//   if (guard.transparent()) ... drop it: bytes pass as they are from here on
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "zht/security/handshake.h"
#include "zht/security/munge.h"
#include "zht/security/secret.h"
#include "zht/security/tls.h"

namespace zht::security {

// What opens the door, on both sides of it: a secret or munge, TLS, or TLS and one of them.
struct Credentials {
  std::optional<Secret> secret;
  std::optional<Key> key;              // of a client: only where there is no secret
  std::shared_ptr<const Munge> munge;  // only where there is no secret
  std::shared_ptr<const TlsContext> tls;
  // What has to be proven; null: nothing but TLS.
  const Prover* prover() const {
    if (secret) return &*secret;
    return key ? static_cast<const Prover*>(&*key) : munge.get();
  }
};
using Opener = std::shared_ptr<const Credentials>;  // null: nothing is asked
inline const Prover* prover_of(const Opener& opener) { return opener ? opener->prover() : nullptr; }

// Of a node, which proves the secret itself, or of a client, which proves a key: that of `kAdminKey` where its user can read the
// secret, else the one in the file it was given.
enum class End { node, client };
// The secret (of a client also: a key) in `secret_file` (empty: `data_folder`/secret, if there is one; "none": no secret;
// "munge", "munge:SOCKET": munge in its place) and TLS's files (all empty: no TLS). Null when there is neither. Errors as
// Secret::load, Key::load, Munge::open and TlsContext::load.
base::Result<Opener> load_credentials(End end, const std::string& secret_file, const TlsFiles& tls, const std::string& data_folder);
// The same from $ZHT_SECRET_FILE, $ZHT_TLS_CERTIFICATE, $ZHT_TLS_KEY and $ZHT_TLS_CA.
base::Result<Opener> credentials_from_environment(End end, const std::string& data_folder);
// Whether that is a word in the place of a secret's file, and no path.
inline bool is_word(const std::string& secret_file) { return secret_file == "none" || Munge::is_meant(secret_file); }
inline std::string secret_path(const std::string& data_folder) { return data_folder + "/secret"; }

class Guard {
 public:
  Guard(Opener opener, Side side);
  void begin(std::string& to_wire);  // the asker's first words; nothing for an answerer
  // What came over the wire. What of it is frames is appended to `plain`; what is to be sent, to `to_wire`, also when it
  // fails. After an error the connection is of no use. Errors: invalid, unsupported (Handshake, TlsSession), unavailable.
  base::Result<void> receive(base::Bytes from_wire, std::string& plain, std::string& to_wire);
  bool open() const { return open_; }                                // the other side is proven
  Role role() const { return role_; }                                // of an answerer, once open: what the other side may
  bool transparent() const { return open_ && !tls_; }
  base::Result<void> send(base::Bytes plain, std::string& to_wire);  // once it is open

 private:
  base::Result<void> shake(std::string& plain, std::string& to_wire);
  Opener opener_;
  const Side side_;
  std::optional<TlsSession> tls_;
  std::optional<Handshake> handshake_;
  std::string pending_;  // of the handshake
  bool open_ = false;
  Role role_ = Role::node;  // TLS alone tells nobody from anybody
};

}  // namespace zht::security

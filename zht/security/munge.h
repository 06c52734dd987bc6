// Munge instead of a secret: where every machine of a cluster runs munged with one key (as Slurm's clusters do), the daemon
// vouches for the user of a process, and nobody has to carry a file around. Let in are processes of this process's own user and
// of root, on both sides of a connection.
//
//   TRY_LET(munge, Munge::open("munge"));           // or munge:/run/another/socket
//   Handshake handshake(Side::asker, *munge);
//
// A credential carries the statement that it proves (this connection's nonces, whose side it is, what for), so that one given
// to somebody else, or for another connection, is of no use here; munged lets each be read once on a machine, within its
// time to live. libmunge is loaded when it is first asked for: who does not use it need not have it.
#pragma once

#include <memory>
#include <string>

#include "zht/security/prover.h"

namespace zht::security {

class Munge final : public Prover {
 public:
  // Whether that, in the place of a secret's file, asks for munge: `munge`, or `munge:` and the path of munged's socket.
  static bool is_meant(base::Bytes word);
  // `word` as above. unsupported: built without libmunge-dev, or there is no libmunge here. unavailable: munged does not answer;
  // invalid: an empty path. Asks munged once: 0.1 ms where it answers.
  static base::Result<std::shared_ptr<const Munge>> open(base::Bytes word);
  // The same for another kind of connection: what is proven on those proves nothing on these.
  std::shared_ptr<const Munge> for_purpose(base::Bytes purpose) const;

  // Each asks munged and waits for it: 0.1 ms where it answers. Where it did not, the next ones fail at once for a second, so
  // that callers do not hold a node up.
  char method() const override { return kByMunge; }
  base::Result<std::string> prove(base::Bytes statement) const override;
  base::Result<void> check(base::Bytes statement, base::Bytes proof) const override;
  bool admits(base::Bytes word) const override;  // a credential of the text `zht`: munge -s zht
  const std::string& origin() const override { return origin_; }
  std::string remedy() const override;

 private:
  Munge() = default;
  base::Result<void> opens(base::Bytes credential, base::Bytes payload) const;
  std::string origin_, socket_, purpose_;  // socket_ empty: munged's usual one
};

}  // namespace zht::security

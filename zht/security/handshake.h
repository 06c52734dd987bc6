// How two ends of a new connection show each other that they belong to the cluster, before anything else is said on it: that
// they know its secret, or that munge vouches for them (prover.h).
// Bytes in, bytes out: no sockets, no clock.
//
//   asker     -> hello: its nonce
//   answerer  -> its own nonce, and its proof of the statement "answerer" + both nonces + binding
//   asker     -> its proof of the statement "asker" + both nonces + binding
//   answerer  -> ok
//
// What holds: neither end sends or heeds anything else before the other has proven itself. A proof is good for one connection
// (both ends bring a fresh nonce) and one direction (the roles are in it: it cannot be sent back), and where TLS is below
// for that TLS session alone (`binding` is derived from it: nobody can sit in between). The frames are control frames
// (PROTOCOL.md, "Who may connect"), so an end without a secret answers them with an error and not with silence.
#pragma once

#include <string>

#include "novoht/base/result.h"
#include "zht/security/prover.h"

namespace zht::security {

enum class Side { asker, answerer };

class Handshake {
 public:
  static constexpr std::size_t kMostBytes = 1024;  // of a frame of it
  // `prover` outlives it.
  Handshake(Side side, const Prover& prover, std::string binding = {});
  // What the asker says first.
  void begin(std::string& out);
  // Takes what it can of `in`, `used` bytes; `out` is what to send, also when it fails. True: both are proven, and what
  // follows in `in` is not its own. invalid: the other end does not know the secret, or has none, or munge speaks for
  // somebody else; unsupported, invalid: that was no handshake; unavailable: munged does not answer.
  base::Result<bool> take(base::Bytes in, std::size_t& used, std::string& out);
  // Of an answerer, once both are proven: what the asker may.
  Role role() const { return named_ ? role_of_key(named_->key_name()) : Role::node; }

 private:
  base::Result<bool> ask(base::Bytes reply_value, std::string& out);
  base::Result<bool> answer(std::uint8_t kind, std::uint64_t request, base::Bytes value, std::string& out);
  std::string statement(Side of) const;

  const Side side_;
  const Prover& prover_;
  std::shared_ptr<const Prover> named_;  // of an answerer: the key that the asker says it has
  const Prover& checker() const { return named_ ? *named_ : prover_; }
  const std::string binding_, nonce_;
  std::string other_nonce_;
  int step_ = 0;
};

}  // namespace zht::security

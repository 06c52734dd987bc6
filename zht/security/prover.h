// What opens a cluster's door besides TLS: a secret that both ends know (secret.h), or what munged says of a process's user
// (munge.h). An end proves a statement that names one connection and its own side of it (handshake.h); the other checks it.
#pragma once

#include <string>

#include "novoht/base/bytes.h"
#include "novoht/base/result.h"

namespace zht::security {

// Immutable once made: any thread.
class Prover {
 public:
  Prover() = default;
  virtual ~Prover() = default;
  // How the other end has to prove itself: the first byte of a hello (PROTOCOL.md, "Who may connect").
  virtual char method() const = 0;
  // At most kMostProof bytes, good for this statement alone. unavailable: munged does not answer.
  virtual base::Result<std::string> prove(base::Bytes statement) const = 0;
  // invalid: that does not prove it, or proves it of somebody who is not let in. unavailable: munged does not answer.
  virtual base::Result<void> check(base::Bytes statement, base::Bytes proof) const = 0;
  // Whether who brings this word (AUTH of a Redis client, a bearer of /metrics) is let in.
  virtual bool admits(base::Bytes word) const = 0;
  virtual const std::string& origin() const = 0;  // where it comes from, for messages
  virtual std::string remedy() const = 0;         // what to do, for who comes without

 protected:
  Prover(const Prover&) = default;
  Prover(Prover&&) = default;
  Prover& operator=(const Prover&) = default;
  Prover& operator=(Prover&&) = default;
};

inline constexpr std::size_t kMostProof = 800;
inline constexpr char kBySecret = 1, kByMunge = 2;  // methods

}  // namespace zht::security

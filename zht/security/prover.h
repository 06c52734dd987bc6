// What opens a cluster's door besides TLS: a secret that both ends know (secret.h), or what munged says of a process's user
// (munge.h). An end proves a statement that names one connection and its own side of it (handshake.h); the other checks it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "novoht/base/bytes.h"
#include "novoht/base/result.h"

namespace zht::security {

// What the other end of a connection may ask for; each role may what those before it may.
//   client  operations on keys, the membership table, status, sync
//   admin   stop, leave, migrate, recover
//   node    what nodes say to each other: views, copies, joining
enum class Role : std::uint8_t { client, admin, node };
// Of the key that was proven: "node", "admin", "client:NAME"; empty: the secret itself, which is a node's.
Role role_of_key(base::Bytes name);

// Immutable once made: any thread.
class Prover {
 public:
  Prover() = default;
  virtual ~Prover() = default;
  // How the other end has to prove itself: the first byte of a hello (PROTOCOL.md, "Who may connect").
  virtual char method() const = 0;
  // The name of the key it proves, which the asker says in its hello; empty: the method has none.
  virtual std::string key_name() const { return {}; }
  // For an answerer: what checks an asker that names its key. invalid: no such key is derived here.
  virtual base::Result<std::shared_ptr<const Prover>> for_key(base::Bytes name) const;
  // At most kMostProof bytes, good for this statement alone. unavailable: munged does not answer.
  virtual base::Result<std::string> prove(base::Bytes statement) const = 0;
  // invalid: that does not prove it, or proves it of somebody who is not let in. unavailable: munged does not answer.
  virtual base::Result<void> check(base::Bytes statement, base::Bytes proof) const = 0;
  // Whether who brings this word (AUTH of a Redis client, a bearer of /metrics) is let in.
  virtual bool admits(base::Bytes word) const = 0;
  // The same for a caller with a name (AUTH NAME WORD); "default" has none.
  virtual bool admits(base::Bytes name, base::Bytes word) const { return name == "default" && admits(word); }
  virtual const std::string& origin() const = 0;  // where it comes from, for messages
  virtual std::string remedy() const = 0;         // what to do, for who comes without

 protected:
  Prover(const Prover&) = default;
  Prover(Prover&&) = default;
  Prover& operator=(const Prover&) = default;
  Prover& operator=(Prover&&) = default;
};

inline constexpr std::size_t kMostProof = 800;
inline constexpr char kBySecret = 1, kByMunge = 2, kByKey = 3;  // methods

}  // namespace zht::security

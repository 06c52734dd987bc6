// The cluster's secret: whoever knows it belongs to the cluster, as a node or as a client. It is a file of 16 to 4096 bytes
// (white space at its end does not count), readable by its owner alone; what is compared and proven is a key derived
// from it, never the bytes themselves.
#pragma once

#include <array>
#include <string>

#include "zht/security/prover.h"

namespace zht::security {

inline constexpr std::size_t kProofSize = 32;

class Secret final : public Prover {
 public:
  // invalid: fewer than 16 or more than 4096 bytes.
  static base::Result<Secret> from_text(base::Bytes text, const std::string& origin);
  // not_found; invalid: not a file, readable or writable by others, of another user (but root), too short, too long; io.
  static base::Result<Secret> load(const std::string& path);

  // HMAC-SHA256 over `message`, kProofSize bytes.
  std::string mac(base::Bytes message) const;
  char method() const override { return kBySecret; }
  base::Result<std::string> prove(base::Bytes statement) const override { return mac(statement); }
  base::Result<void> check(base::Bytes statement, base::Bytes proof) const override;
  // Whether `text` is the secret, in a time that does not depend on where it differs: for AUTH of Redis clients.
  bool is(base::Bytes text) const;
  bool admits(base::Bytes word) const override { return is(word); }
  // What lets a reader of /metrics in, and nothing else; hexadecimal.
  std::string metrics_token() const;
  const std::string& origin() const override { return origin_; }  // where it was read, for messages
  std::string remedy() const override;

 private:
  std::array<char, kProofSize> key_{};
  std::string origin_;
};

// A new file of mode 0600 with 256 random bits as text. conflict: there is one already.
base::Result<void> make_secret(const std::string& path);

bool same(base::Bytes one, base::Bytes other);  // compared in constant time
std::string random_bytes(std::size_t count);
std::string hex(base::Bytes bytes);

}  // namespace zht::security

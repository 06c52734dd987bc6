// The cluster's secret, and the keys that are derived from it. A process that knows the secret belongs to the cluster as a node;
// tools and other clients are given a key of it, which proves less:
//
//   secret --HMAC--> root key --HMAC "zht key 1 NAME"--> "admin", "client:NAME"       (prover.h: what each role may)
//
// A key cannot be turned back into the secret, nor into another key. The secret is a file of 16 to 4096 bytes (white space at its
// end does not count), readable by its owner alone; a key's file is one line, `zht key NAME HEX`. What is compared and
// proven is derived from the bytes, never the bytes themselves.
#pragma once

#include <array>
#include <string>

#include "zht/security/prover.h"

namespace zht::security {

inline constexpr std::size_t kProofSize = 32;

// One key that was derived of a secret: proves itself under its name. Holders of the secret derive the same one to check it.
class Key final : public Prover {
 public:
  Key(std::string name, const std::array<char, kProofSize>& bytes, std::string origin);
  // not_found; invalid: not a key's file, or readable by others (as Secret::load); io.
  static base::Result<Key> load(const std::string& path);
  std::string text() const;  // of a key's file
  std::string word() const;  // the key alone, hexadecimal: what Redis clients say

  char method() const override { return kByKey; }
  std::string key_name() const override { return name_; }
  base::Result<std::string> prove(base::Bytes statement) const override;
  base::Result<void> check(base::Bytes statement, base::Bytes proof) const override;
  bool admits(base::Bytes) const override { return false; }
  const std::string& origin() const override { return origin_; }
  std::string remedy() const override;

 private:
  std::string name_, origin_;
  std::array<char, kProofSize> bytes_{};
};

inline constexpr const char* kAdminKey = "admin";
inline constexpr const char* kClientKey = "client:default";  // of Redis clients that give no name

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
  // The secret, or the word of `kClientKey`; with a name, the word of client:NAME.
  bool admits(base::Bytes word) const override { return is(word) || admits("default", word); }
  bool admits(base::Bytes name, base::Bytes word) const override;
  // `name`: "admin", or "client:" and 1 to 32 letters, digits, '-', '_' and '.'. invalid otherwise.
  base::Result<Key> key(base::Bytes name) const;
  base::Result<std::shared_ptr<const Prover>> for_key(base::Bytes name) const override;
  // What lets a reader of /metrics in, and nothing else; hexadecimal.
  std::string metrics_token() const;
  const std::string& origin() const override { return origin_; }  // where it was read, for messages
  std::string remedy() const override;

 private:
  std::array<char, kProofSize> key_{};
  std::string origin_;
};

// Whether the file at `path` is a key's, and not a secret.
base::Result<bool> is_key_file(const std::string& path);

// A new file of mode 0600 with 256 random bits as text. conflict: there is one already.
base::Result<void> make_secret(const std::string& path);
// `from`, a secret, copied to `path`, of mode 0600. conflict: something is there already; otherwise as Secret::load.
base::Result<void> copy_secret(const std::string& from, const std::string& path);

bool same(base::Bytes one, base::Bytes other);  // compared in constant time
std::string random_bytes(std::size_t count);
std::string hex(base::Bytes bytes);

}  // namespace zht::security

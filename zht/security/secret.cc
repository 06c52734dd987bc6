#include "zht/security/secret.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>

namespace zht::security {

using base::Bytes;
using base::Code;
using base::fail;
using base::Result;

namespace {
constexpr std::size_t kLeast = 16, kMost = 4096;

std::array<char, kProofSize> hmac(Bytes key, Bytes message) {
  std::array<char, kProofSize> out{};
  unsigned size = 0;
  const auto* made = HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                          reinterpret_cast<const unsigned char*>(message.data()), message.size(),
                          reinterpret_cast<unsigned char*>(out.data()), &size);
  CHECK(made != nullptr && size == out.size(), "OpenSSL has no HMAC-SHA256");
  return out;
}

Bytes trimmed(Bytes text) {
  while (!text.empty() && std::strchr(" \t\r\n", text.back()) != nullptr) text.remove_suffix(1);
  return text;
}
constexpr Bytes kKeyFile = "zht key ";

struct Closer {
  int descriptor;
  ~Closer() { ::close(descriptor); }
};

// What a file holds that its owner alone can read.
Result<std::string> read_private(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) {
    if (errno == ENOENT)
      return fail(Code::not_found, "there is no cluster secret in ", path, "; copy it from another node, or make one with: zht secret new");
    return base::fail_errno(errno, "cluster secret " + path);
  }
  const Closer closer{descriptor};
  struct stat info {};
  if (::fstat(descriptor, &info) != 0) return base::fail_errno(errno, "cluster secret " + path);
  if (!S_ISREG(info.st_mode)) return fail(Code::invalid, "cluster secret ", path, " is not a file");
  if (info.st_uid != ::geteuid() && info.st_uid != 0)
    return fail(Code::invalid, "cluster secret ", path, " belongs to user ", info.st_uid, ", not to this one (", ::geteuid(), ")");
  // A group may be meant to read it when root gave it to that group; others never.
  const unsigned forbidden = info.st_uid == 0 && ::geteuid() != 0 ? 0027u : 0077u;
  if ((info.st_mode & forbidden) != 0) {
    char mode[8];
    std::snprintf(mode, sizeof mode, "%04o", static_cast<unsigned>(info.st_mode & 07777));
    return fail(Code::invalid, "cluster secret ", path, " has mode ", mode, ": others can read or change it; run: chmod 600 ", path);
  }
  std::string text(kMost + 64, '\0');
  std::size_t size = 0;
  while (size < text.size()) {
    const ssize_t got = ::read(descriptor, text.data() + size, text.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return base::fail_errno(errno, "cluster secret " + path);
    if (got == 0) break;
    size += static_cast<std::size_t>(got);
  }
  text.resize(size);
  return text;
}

Result<void> write_private(const std::string& path, Bytes text, const char* what) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (descriptor < 0) {
    if (errno == EEXIST) return fail(Code::conflict, "there is a ", what, " in ", path, " already");
    return base::fail_errno(errno, "cannot make the " + std::string(what) + " " + path);
  }
  const bool written = ::write(descriptor, text.data(), text.size()) == static_cast<ssize_t>(text.size()) && ::fsync(descriptor) == 0;
  const int error = errno;
  ::close(descriptor);
  if (written) return {};
  ::unlink(path.c_str());
  return base::fail_errno(error, "cannot write the " + std::string(what) + " " + path);
}

bool is_key_name(Bytes name) {
  if (name == kAdminKey || name == "node") return true;
  if (!name.starts_with("client:")) return false;
  name.remove_prefix(7);
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
  };
  return !name.empty() && name.size() <= 32 && std::all_of(name.begin(), name.end(), fits);
}

Result<std::array<char, kProofSize>> from_hex(Bytes text) {
  std::array<char, kProofSize> bytes{};
  if (text.size() != 2 * bytes.size()) return fail(Code::invalid, text.size(), " digits");
  for (std::size_t i = 0; i < bytes.size(); i++) {
    unsigned char byte = 0;
    const auto [at, error] = std::from_chars(text.data() + 2 * i, text.data() + 2 * i + 2, byte, 16);
    if (error != std::errc() || at != text.data() + 2 * i + 2) return fail(Code::invalid, "no hexadecimal digits");
    bytes[i] = static_cast<char>(byte);
  }
  return bytes;
}
}  // namespace

Role role_of_key(Bytes name) {
  return name.empty() || name == "node" ? Role::node : name == kAdminKey ? Role::admin : Role::client;
}

Result<std::shared_ptr<const Prover>> Prover::for_key(Bytes) const {
  return fail(Code::invalid, remedy());
}

Key::Key(std::string name, const std::array<char, kProofSize>& bytes, std::string origin)
    : name_(std::move(name)), origin_(std::move(origin)), bytes_(bytes) {}

Result<Key> Key::load(const std::string& path) {
  TRY_LET(text, read_private(path));
  Bytes line = trimmed(text);
  const auto broken = fail(Code::invalid, path, " is no key of a cluster (zht secret client NAME makes one)");
  if (!line.starts_with(kKeyFile)) return broken;
  line.remove_prefix(kKeyFile.size());
  const std::size_t space = line.find(' ');
  if (space == Bytes::npos || !is_key_name(line.substr(0, space))) return broken;
  const auto bytes = from_hex(line.substr(space + 1));
  if (!bytes) return broken;
  return Key(std::string(line.substr(0, space)), *bytes, path);
}

std::string Key::word() const { return hex({bytes_.data(), bytes_.size()}); }
std::string Key::text() const { return std::string(kKeyFile) + name_ + " " + word() + "\n"; }

Result<std::string> Key::prove(Bytes statement) const {
  const auto proof = hmac({bytes_.data(), bytes_.size()}, statement);
  return std::string(proof.data(), proof.size());
}

Result<void> Key::check(Bytes statement, Bytes proof) const {
  const auto right = hmac({bytes_.data(), bytes_.size()}, statement);
  if (same(proof, {right.data(), right.size()})) return {};
  return fail(Code::invalid, "that proves another secret than this cluster's");
}

std::string Key::remedy() const {
  return "this end has a cluster's key (" + name_ + "), which has to be proven";
}

Result<bool> is_key_file(const std::string& path) {
  TRY_LET(text, read_private(path));
  return text.starts_with(kKeyFile);
}

Result<Secret> Secret::from_text(Bytes text, const std::string& origin) {
  text = trimmed(text);
  if (text.size() < kLeast || text.size() > kMost)
    return fail(Code::invalid, origin, ": a cluster secret of ", text.size(), " bytes; ", kLeast, " to ", kMost,
                " are needed (make one with: zht secret new)");
  Secret secret;
  secret.key_ = hmac("zht cluster secret 1", text);
  secret.origin_ = origin;
  return secret;
}

Result<Secret> Secret::load(const std::string& path) {
  TRY_LET(text, read_private(path));
  if (text.starts_with(kKeyFile))
    return fail(Code::invalid, path, " is a client's key; a node needs the cluster's secret itself");
  auto secret = from_text(text, path);
  OPENSSL_cleanse(text.data(), text.size());
  return secret;
}

Result<Key> Secret::key(Bytes name) const {
  if (!is_key_name(name))
    return fail(Code::invalid, "a key '", base::escape(name, 60),
                "': client:NAME, with a NAME of 1 to 32 letters, digits, '-', '_' and '.', or admin");
  return Key(std::string(name), hmac({key_.data(), key_.size()}, "zht key 1 " + std::string(name)), origin_);
}

Result<std::shared_ptr<const Prover>> Secret::for_key(Bytes name) const {
  TRY_LET(derived, key(name));
  return std::shared_ptr<const Prover>(std::make_shared<const Key>(std::move(derived)));
}

bool Secret::admits(Bytes name, Bytes word) const {
  if (name == "default" && is(word)) return true;
  const auto derived = key("client:" + std::string(name.substr(0, 64)));
  return derived && same(derived->word(), trimmed(word));
}

std::string Secret::mac(Bytes message) const {
  const auto proof = hmac({key_.data(), key_.size()}, message);
  return {proof.data(), proof.size()};
}

Result<void> Secret::check(Bytes statement, Bytes proof) const {
  if (same(proof, mac(statement))) return {};
  return fail(Code::invalid, "that proves another secret than this cluster's");
}

std::string Secret::remedy() const {
  return "this cluster has a secret, which has to be proven first: $ZHT_SECRET_FILE names the file";
}

bool Secret::is(Bytes text) const {
  text = trimmed(text);
  return same({key_.data(), key_.size()}, std::string_view(hmac("zht cluster secret 1", text.substr(0, kMost)).data(), kProofSize)) &&
         text.size() >= kLeast && text.size() <= kMost;
}

std::string Secret::metrics_token() const { return hex(mac("zht metrics 1")); }

Result<void> make_secret(const std::string& path) {
  return write_private(path, hex(random_bytes(32)) + "\n", "cluster secret");
}

Result<void> copy_secret(const std::string& from, const std::string& path) {
  TRY(Secret::load(from));
  TRY_LET(text, read_private(from));
  return write_private(path, text, "cluster secret");
}

bool same(Bytes one, Bytes other) {
  return one.size() == other.size() && CRYPTO_memcmp(one.data(), other.data(), one.size()) == 0;
}

std::string random_bytes(std::size_t count) {
  std::string bytes(count, '\0');
  CHECK(RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(count)) == 1, "the system gives no random bytes");
  return bytes;
}

std::string hex(Bytes bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const char c : bytes) {
    text += kDigits[static_cast<unsigned char>(c) >> 4];
    text += kDigits[static_cast<unsigned char>(c) & 15];
  }
  return text;
}

}  // namespace zht::security

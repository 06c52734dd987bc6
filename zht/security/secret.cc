#include "zht/security/secret.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
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
}  // namespace

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
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) {
    if (errno == ENOENT)
      return fail(Code::not_found, "there is no cluster secret in ", path, "; copy it from another node, or make one with: zht secret new");
    return base::fail_errno(errno, "cluster secret " + path);
  }
  struct Closer {
    int descriptor;
    ~Closer() { ::close(descriptor); }
  } const closer{descriptor};
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
  auto secret = from_text(text, path);
  OPENSSL_cleanse(text.data(), text.size());
  return secret;
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
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (descriptor < 0) {
    if (errno == EEXIST) return fail(Code::conflict, "there is a cluster secret in ", path, " already");
    return base::fail_errno(errno, "cannot make the cluster secret " + path);
  }
  const std::string text = hex(random_bytes(32)) + "\n";
  const bool written = ::write(descriptor, text.data(), text.size()) == static_cast<ssize_t>(text.size()) && ::fsync(descriptor) == 0;
  const int error = errno;
  ::close(descriptor);
  if (written) return {};
  ::unlink(path.c_str());
  return base::fail_errno(error, "cannot write the cluster secret " + path);
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

#include "zht/client/known_secrets.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "novoht/base/bytes.h"
#include "novoht/base/random.h"
#include "zht/support/paths.h"

namespace zht::client {

using base::Code;
using base::fail;
using base::Result;

namespace {

std::string environment(const char* name) {
  const char* set = std::getenv(name);
  return set != nullptr ? set : "";
}

bool is_usable(const std::string& name) { return !name.empty() && name.front() != '.' && name.size() < 200 && name.find('/') == std::string::npos; }

Result<std::string> folder() { return support::user_folder("zht-secrets"); }

Result<std::string> made_folder() {
  TRY_LET(path, folder());
  TRY(support::make_private_folder(path));
  return path;
}

bool is_there(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0;
}

// Links to data folders that are gone.
void prune(const std::string& path) {
  std::error_code error;
  std::vector<std::filesystem::path> dead;
  for (const auto& entry : std::filesystem::directory_iterator(path, error))
    if (entry.is_symlink(error) && !is_there(entry.path().string())) dead.push_back(entry.path());
  for (const auto& one : dead) std::filesystem::remove(one, error);
}

}  // namespace

std::optional<std::string> known_secret(const std::string& name) {
  const auto place = folder();
  if (!place || !is_usable(name)) return std::nullopt;
  std::string path = *place + "/" + name;
  if (!is_there(path)) return std::nullopt;
  return path;
}

Result<void> note_secret(const std::string& name, const std::string& secret) {
  if (!is_usable(name)) return fail(Code::invalid, "no name for a secret: ", base::escape(name, 100));
  TRY_LET(place, made_folder());
  const std::string path = place + "/" + name;
  char now[4096];
  const ssize_t size = ::readlink(path.c_str(), now, sizeof now);
  if (size > 0 && std::string(now, static_cast<std::size_t>(size)) == secret) return {};
  prune(place);
  const std::uint64_t random = base::entropy();
  const std::string fresh = place + "/.new-" + base::to_hex({reinterpret_cast<const char*>(&random), sizeof random});
  if (::symlink(secret.c_str(), fresh.c_str()) != 0) return base::fail_errno(errno, fresh);
  if (::rename(fresh.c_str(), path.c_str()) == 0) return {};
  const int error = errno;
  ::unlink(fresh.c_str());
  return base::fail_errno(error, path);
}

void forget_secret(const std::string& name) {
  const auto place = folder();
  if (place && is_usable(name)) ::unlink((*place + "/" + name).c_str());
}

Result<support::LockFile> lock_secrets() {
  TRY_LET(place, made_folder());
  return support::LockFile::acquire(place + "/.lock", std::chrono::seconds(10));
}

Result<std::string> make_homeless_secret() {
  TRY_LET(place, made_folder());
  const std::uint64_t random = base::entropy();
  std::string path = place + "/memory-" + base::to_hex({reinterpret_cast<const char*>(&random), sizeof random});
  TRY(security::make_secret(path));
  return path;
}

Result<security::Opener> credentials_at(const Address& address, const std::string& data_folder) {
  const security::TlsFiles tls{environment("ZHT_TLS_CERTIFICATE"), environment("ZHT_TLS_KEY"), environment("ZHT_TLS_CA")};
  std::string secret = environment("ZHT_SECRET_FILE");
  if (secret.empty() && !address.is_unix()) {
    auto known = known_secret(address.text());
    if (!known && (address.host == "localhost" || address.host == "::1")) known = known_secret("127.0.0.1:" + std::to_string(address.port));
    secret = known.value_or("");
  }
  return security::load_credentials(security::End::client, secret, tls, data_folder);
}

Result<std::vector<Address>> find_cluster(const std::string& text, const std::string& data_folder) {
  TRY_LET(addresses, parse_cluster(text));
  for (Address& address : addresses) {
    TRY_LET(opener, credentials_at(address, data_folder));
    address.opener = std::move(opener);
  }
  // They are one cluster: what opens the node of this machine opens those of others.
  const auto known = std::find_if(addresses.begin(), addresses.end(), [](const Address& one) { return one.opener != nullptr; });
  if (known != addresses.end())
    for (Address& address : addresses)
      if (!address.opener) address.opener = known->opener;
  return addresses;
}

}  // namespace zht::client

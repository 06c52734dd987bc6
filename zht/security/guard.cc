#include "zht/security/guard.h"

#include <sys/stat.h>

#include <cstdlib>

#include "zht/wire/frame.h"

namespace zht::security {

using base::Bytes;
using base::Code;
using base::fail;
using base::Result;

namespace {

Result<void> load_secret(End end, const std::string& path, Credentials& to) {
  if (end == End::client) {
    TRY_LET(is_key, is_key_file(path));
    if (is_key) {
      TRY_LET(key, Key::load(path));
      to.key = std::move(key);
      return {};
    }
  }
  TRY_LET(secret, Secret::load(path));
  if (end == End::node) {
    to.secret = std::move(secret);
  } else {
    TRY_LET(key, secret.key(kAdminKey));
    to.key = std::move(key);
  }
  return {};
}

}  // namespace

Result<Opener> load_credentials(End end, const std::string& secret_file, const TlsFiles& files, const std::string& data_folder) {
  auto credentials = std::make_shared<Credentials>();
  std::string path = secret_file;
  struct stat info {};
  if (path.empty() && !data_folder.empty() && ::stat(secret_path(data_folder).c_str(), &info) == 0) path = secret_path(data_folder);
  if (Munge::is_meant(path)) {
    TRY_LET(munge, Munge::open(path));
    credentials->munge = std::move(munge);
  } else if (!path.empty() && path != "none") {
    TRY(load_secret(end, path, *credentials));
  }
  if (files.any()) {
    TRY_LET(tls, TlsContext::load(files));
    credentials->tls = std::move(tls);
  }
  if (credentials->prover() == nullptr && !credentials->tls) return Opener();
  return Opener(std::move(credentials));
}

Result<Opener> credentials_from_environment(End end, const std::string& data_folder) {
  const auto value = [](const char* name) -> std::string {
    const char* set = std::getenv(name);
    return set != nullptr ? set : "";
  };
  return load_credentials(end, value("ZHT_SECRET_FILE"), {value("ZHT_TLS_CERTIFICATE"), value("ZHT_TLS_KEY"), value("ZHT_TLS_CA")}, data_folder);
}

Guard::Guard(Opener opener, Side side) : opener_(std::move(opener)), side_(side) {
  if (opener_->tls) tls_.emplace(*opener_->tls, side);
  else handshake_.emplace(side, *opener_->prover());
}

void Guard::begin(std::string& to_wire) {
  if (side_ == Side::answerer) return;
  if (tls_) tls_->begin(to_wire);
  else handshake_->begin(to_wire);
}

Result<void> Guard::receive(Bytes from_wire, std::string& plain, std::string& to_wire) {
  if (!tls_) {
    if (open_) plain.append(from_wire);
    else pending_.append(from_wire);
    return open_ ? Result<void>() : shake(plain, to_wire);
  }
  if (!tls_->ready() && side_ == Side::answerer && from_wire.starts_with("ZHT1")) {
    const Error error = fail(Code::invalid, "this node speaks TLS; $ZHT_TLS_CERTIFICATE, $ZHT_TLS_KEY and $ZHT_TLS_CA name the files");
    wire::end_reply(to_wire, wire::begin_reply(to_wire, {.status = static_cast<std::uint8_t>(error.code)}, error.message));
    return error;
  }
  if (!tls_->ready() && side_ == Side::asker && from_wire.starts_with("ZHT1"))
    return fail(Code::invalid, "it speaks no TLS, which this side asks for");
  const bool was_ready = tls_->ready();
  auto received = tls_->receive(from_wire, open_ ? plain : pending_, to_wire);
  if (tls_->ready() && !was_ready) {
    if (const Prover* prover = opener_->prover(); prover != nullptr) {
      handshake_.emplace(side_, *prover, tls_->binding());
      if (side_ == Side::asker) {
        std::string hello;
        handshake_->begin(hello);
        TRY(tls_->send(hello, to_wire));
      }
    } else {
      open_ = true;
      plain += std::exchange(pending_, {});
    }
  }
  if (!open_ && handshake_ && !pending_.empty()) TRY(shake(plain, to_wire));
  return received;
}

Result<void> Guard::shake(std::string& plain, std::string& to_wire) {
  std::string out;
  std::size_t used = 0;
  auto done = handshake_->take(pending_, used, out);
  if (!out.empty()) {
    if (tls_) TRY(tls_->send(out, to_wire));
    else to_wire += out;
  }
  if (!done) return std::move(done).error();
  pending_.erase(0, used);
  if (*done) {
    open_ = true;
    role_ = handshake_->role();
    plain += std::exchange(pending_, {});
    handshake_.reset();
  }
  return {};
}

Result<void> Guard::send(Bytes plain, std::string& to_wire) {
  if (tls_) return tls_->send(plain, to_wire);
  to_wire.append(plain);
  return {};
}

}  // namespace zht::security

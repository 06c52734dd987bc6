#include "zht/security/tls.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/stat.h>

namespace zht::security {

using base::Bytes;
using base::Code;
using base::fail;
using base::Result;

namespace {
std::string reason() {
  char text[256] = "no reason given";
  const unsigned long first = ERR_peek_error();
  if (first != 0) {
    if (const char* words = ERR_reason_error_string(first); words != nullptr) return ERR_clear_error(), words;
    ERR_error_string_n(first, text, sizeof text);
  }
  ERR_clear_error();
  return text;
}
}  // namespace

Result<std::shared_ptr<const TlsContext>> TlsContext::load(const TlsFiles& files) {
  if (files.certificate.empty() || files.key.empty() || files.ca.empty())
    return fail(Code::invalid, "TLS takes three files: tls_certificate (", files.certificate.empty() ? "missing" : files.certificate,
                "), tls_key (", files.key.empty() ? "missing" : files.key, ") and tls_ca (", files.ca.empty() ? "missing" : files.ca, ")");
  struct stat info {};
  if (::stat(files.key.c_str(), &info) == 0 && (info.st_mode & 0007) != 0)
    return fail(Code::invalid, "tls_key ", files.key, " can be read by anyone; run: chmod 600 ", files.key);
  ERR_clear_error();
  std::shared_ptr<const TlsContext> made(new TlsContext(SSL_CTX_new(TLS_method())));
  SSL_CTX* const context = made->get();
  if (context == nullptr) return fail(Code::io, "TLS: ", reason());
  SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(context, 0);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  if (SSL_CTX_use_certificate_chain_file(context, files.certificate.c_str()) != 1)
    return fail(Code::invalid, "tls_certificate ", files.certificate, ": ", reason());
  if (SSL_CTX_use_PrivateKey_file(context, files.key.c_str(), SSL_FILETYPE_PEM) != 1 || SSL_CTX_check_private_key(context) != 1)
    return fail(Code::invalid, "tls_key ", files.key, ": ", reason());
  if (SSL_CTX_load_verify_locations(context, files.ca.c_str(), nullptr) != 1)
    return fail(Code::invalid, "tls_ca ", files.ca, ": ", reason());
  return made;
}

TlsContext::~TlsContext() { SSL_CTX_free(context_); }

TlsSession::TlsSession(const TlsContext& context, Side side, bool certificate)
    : ssl_(SSL_new(context.get())), in_(BIO_new(BIO_s_mem())), out_(BIO_new(BIO_s_mem())) {
  CHECK(ssl_ != nullptr && in_ != nullptr && out_ != nullptr, "OpenSSL has no memory");
  SSL_set_bio(ssl_, in_, out_);
  if (!certificate) SSL_set_verify(ssl_, SSL_VERIFY_NONE, nullptr);
  if (side == Side::asker) SSL_set_connect_state(ssl_);
  else SSL_set_accept_state(ssl_);
}

TlsSession::~TlsSession() { SSL_free(ssl_); }

void TlsSession::drain(std::string& to_wire) {
  while (true) {
    const std::size_t there = BIO_ctrl_pending(out_);
    if (there == 0) return;
    const std::size_t before = to_wire.size();
    to_wire.resize(before + there);
    const int got = BIO_read(out_, to_wire.data() + before, static_cast<int>(there));
    to_wire.resize(before + static_cast<std::size_t>(std::max(got, 0)));
    if (got <= 0) return;
  }
}

Result<void> TlsSession::go_on(std::string& to_wire) {
  ERR_clear_error();
  const int done = SSL_do_handshake(ssl_);
  const int error = done == 1 ? SSL_ERROR_NONE : SSL_get_error(ssl_, done);
  drain(to_wire);
  if (done == 1) {
    ready_ = true;
    return {};
  }
  if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) return {};
  const long verdict = SSL_get_verify_result(ssl_);
  const std::string why = reason();
  if (verdict != X509_V_OK)
    return fail(Code::invalid, "TLS: the other side's certificate: ", X509_verify_cert_error_string(verdict));
  return fail(Code::invalid, "TLS: ", why);
}

void TlsSession::begin(std::string& to_wire) {
  (void)go_on(to_wire).has_value();  // it cannot fail before anything has come
}

Result<void> TlsSession::receive(Bytes from_wire, std::string& plain, std::string& to_wire) {
  for (bool more = true; more || !from_wire.empty();) {
    if (!from_wire.empty()) {
      const int taken = BIO_write(in_, from_wire.data(), static_cast<int>(std::min<std::size_t>(from_wire.size(), 1 << 20)));
      if (taken <= 0) return fail(Code::io, "TLS: no memory");
      from_wire.remove_prefix(static_cast<std::size_t>(taken));
    }
    more = false;
    if (!ready_) {
      TRY(go_on(to_wire));
      if (!ready_) continue;
    }
    while (true) {
      constexpr std::size_t room = 16 << 10;  // a TLS record's most
      const std::size_t before = plain.size();
      plain.resize(before + room);
      ERR_clear_error();
      const int got = SSL_read(ssl_, plain.data() + before, room);
      plain.resize(before + static_cast<std::size_t>(std::max(got, 0)));
      if (got > 0) continue;
      const int error = SSL_get_error(ssl_, got);
      drain(to_wire);
      if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) break;
      if (error == SSL_ERROR_ZERO_RETURN) return fail(Code::unavailable, "closed by the other side");
      return fail(Code::invalid, "TLS: ", reason());
    }
  }
  return {};
}

Result<void> TlsSession::send(Bytes plain, std::string& to_wire) {
  while (!plain.empty()) {
    ERR_clear_error();
    const int wrote = SSL_write(ssl_, plain.data(), static_cast<int>(std::min<std::size_t>(plain.size(), 1 << 20)));
    if (wrote <= 0) return fail(Code::io, "TLS: ", reason());
    plain.remove_prefix(static_cast<std::size_t>(wrote));
  }
  drain(to_wire);
  return {};
}

void TlsSession::end(std::string& to_wire) {
  if (!ready_) return;
  ERR_clear_error();
  (void)SSL_shutdown(ssl_);
  ERR_clear_error();
  drain(to_wire);
}

std::string TlsSession::binding() const {
  static constexpr char kLabel[] = "EXPORTER-zht-handshake-1";
  std::string bytes(32, '\0');
  const int made = SSL_export_keying_material(ssl_, reinterpret_cast<unsigned char*>(bytes.data()), bytes.size(), kLabel,
                                              sizeof kLabel - 1, nullptr, 0, 0);
  CHECK(made == 1, "TLS 1.3 has exporters");
  return bytes;
}

}  // namespace zht::security

// TLS 1.3 below the frames, bytes in and bytes out: OpenSSL over memory, so that the event loop, the blocking channel and the
// client's Asio loop use one and the same. Both ends show a certificate, and each asks that the other's is of the cluster's
// own CA; names in certificates are not looked at (nodes come and go, and have addresses, not names).
#pragma once

#include <memory>
#include <string>

#include "novoht/base/bytes.h"
#include "novoht/base/result.h"
#include "zht/security/handshake.h"

struct ssl_ctx_st;
struct ssl_st;
struct bio_st;

namespace zht::security {

struct TlsFiles {
  std::string certificate, key, ca;  // PEM
  bool any() const { return !certificate.empty() || !key.empty() || !ca.empty(); }
};

class TlsContext {  // any thread
 public:
  // invalid: one of the three is missing, not PEM, or the key is not the certificate's, or others can read it.
  static base::Result<std::shared_ptr<const TlsContext>> load(const TlsFiles& files);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;
  ssl_ctx_st* get() const { return context_; }

 private:
  explicit TlsContext(ssl_ctx_st* context) : context_(context) {}
  ssl_ctx_st* context_;
};

class TlsSession {  // one connection; one thread at a time
 public:
  // certificate: the other end has to show one. (Frames: always. An answerer may do without.)
  TlsSession(const TlsContext& context, Side side, bool certificate = true);
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  // What came; what it held is appended to `plain`, what has to be said to `to_wire` (an alert too, when it fails).
  // invalid: the other end is not of our CA, or speaks no TLS; unavailable: it has said that it closes.
  base::Result<void> receive(base::Bytes from_wire, std::string& plain, std::string& to_wire);
  void begin(std::string& to_wire);  // the asker's first words
  bool ready() const { return ready_; }
  base::Result<void> send(base::Bytes plain, std::string& to_wire);  // after ready()
  void end(std::string& to_wire);  // says that nothing follows: what the other end has got is all there is
  std::string binding() const;  // 32 bytes that both ends, and nobody else, can tell of this session

 private:
  base::Result<void> go_on(std::string& to_wire);
  void drain(std::string& to_wire);
  ssl_st* ssl_;
  bio_st *in_, *out_;
  bool ready_ = false;
};

}  // namespace zht::security

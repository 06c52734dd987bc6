// TLS on an accepted socket, for listeners whose bytes are not frames: Redis clients, HTTP. Frames have security::Guard, which
// knows the cluster's secret as well; here what is said within the TLS (AUTH, a token) proves that.
//
//   TlsSocket tls(port, descriptor);
//   switch (tls.read(buffer, plain)) { ... }     // as often as the descriptor is readable
//   switch (tls.write(out, sent)) { ... }        // all: nothing is left, here or there; blocked: when it is writable
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "novoht/base/bytes.h"
#include "zht/security/tls.h"

namespace zht::net {

// How a listener speaks it.
struct TlsPort {
  std::shared_ptr<const security::TlsContext> context;  // null: plain
  bool certificates = true;  // callers show one of the cluster's CA
  explicit operator bool() const { return context != nullptr; }
};

// What a TLS caller's first bytes are, and no Redis command's or HTTP request's.
inline bool is_tls(base::Bytes first) { return !first.empty() && first[0] == '\x16'; }

class TlsSocket {  // one thread
 public:
  TlsSocket(const TlsPort& port, int descriptor)
      : session_(*port.context, security::Side::answerer, port.certificates), descriptor_(descriptor) {}

  enum class Read {
    some,     // perhaps nothing of it for us
    nothing,  // for now
    ended,    // what it held before the end is in `plain`; nothing follows
    plain,    // not TLS from the first byte; the caller may be told so, unencrypted
    failed,   // it has been told why, as far as TLS has words for it
  };
  // One read into `buffer`; appends to `plain`.
  Read read(std::string& buffer, std::string& plain);
  enum class Wrote { all, blocked, failed };
  Wrote write(base::Bytes out, std::size_t& sent);  // moves `sent` over what it took of `out`
  void end();  // says that nothing follows; the caller closes the socket then
  bool ready() const { return session_.ready(); }
  bool moved() { return std::exchange(moved_, false); }  // the other end took something, since this was last asked

 private:
  bool push();  // false: failed
  bool idle() const { return sealed_sent_ == sealed_.size(); }  // nothing waits for the socket
  security::TlsSession session_;
  const int descriptor_;
  std::string sealed_;
  std::size_t sealed_sent_ = 0;
  bool begun_ = false, moved_ = false;
};

}  // namespace zht::net

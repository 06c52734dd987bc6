#include "zht/net/tls_socket.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace zht::net {

TlsSocket::Read TlsSocket::read(std::string& buffer, std::string& plain) {
  const ssize_t got = ::recv(descriptor_, buffer.data(), buffer.size(), 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return Read::nothing;
  if (got <= 0) return Read::failed;
  const base::Bytes bytes(buffer.data(), static_cast<std::size_t>(got));
  if (!std::exchange(begun_, true) && !is_tls(bytes)) return Read::plain;
  const auto received = session_.receive(bytes, plain, sealed_);
  const bool pushed = push();
  if (received && pushed) return Read::some;
  return !received && received.code() == base::Code::unavailable && pushed ? Read::ended : Read::failed;
}

bool TlsSocket::push() {
  while (!idle()) {
    const ssize_t wrote = ::send(descriptor_, sealed_.data() + sealed_sent_, sealed_.size() - sealed_sent_, MSG_NOSIGNAL);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return errno == EAGAIN;
    sealed_sent_ += static_cast<std::size_t>(wrote);
    moved_ = true;
  }
  constexpr std::size_t kKept = std::size_t{64} << 10;
  if (sealed_.capacity() > kKept) std::string().swap(sealed_);
  sealed_.clear();
  sealed_sent_ = 0;
  return true;
}

TlsSocket::Wrote TlsSocket::write(base::Bytes out, std::size_t& sent) {
  constexpr std::size_t kAtOnce = std::size_t{256} << 10;  // encrypted before the socket has room: no more than it takes soon
  while (true) {
    if (!push()) return Wrote::failed;
    if (!idle()) return Wrote::blocked;
    if (sent == out.size()) return Wrote::all;
    const std::size_t some = std::min(kAtOnce, out.size() - sent);
    if (!session_.ready() || !session_.send(out.substr(sent, some), sealed_)) return Wrote::failed;
    sent += some;
  }
}

void TlsSocket::end() {
  session_.end(sealed_);
  (void)push();  // as much as it takes now
}

}  // namespace zht::net

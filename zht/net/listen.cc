#include "zht/net/listen.h"

#include <netdb.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

#include "novoht/base/bytes.h"

namespace zht::net {

using base::Code;
using base::fail;
using base::Result;

Result<std::pair<std::string, std::uint16_t>> parse_address(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0)
    return fail(Code::invalid, "address \"", base::escape(text), "\" is not host:port");
  std::string host = text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  std::uint16_t port = 0;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data() + colon + 1, end, port);
  if (error != std::errc() || at != end || text.size() == colon + 1)
    return fail(Code::invalid, "address \"", base::escape(text), "\": the port is not a number from 0 to 65535");
  return std::pair{host, port};
}

namespace {
// Closes the descriptor unless it is handed on.
struct Socket {
  explicit Socket(int d) : descriptor(d) {}
  Socket(Socket&& from) noexcept : descriptor(std::exchange(from.descriptor, -1)) {}
  Socket& operator=(Socket&&) = delete;
  int descriptor;
  ~Socket() {
    if (descriptor >= 0) ::close(descriptor);
  }
};
}  // namespace

namespace {
// Bound to `address`; SOCK_STREAM or SOCK_DGRAM.
Result<Socket> bind_to(const std::string& address, int type, const std::string& what) {
  TRY_LET(parts, parse_address(address));
  addrinfo hints{};
  hints.ai_socktype = type;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(parts.first.c_str(), std::to_string(parts.second).c_str(), &hints, &found); error != 0)
    return fail(Code::invalid, what, ": ", ::gai_strerror(error));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(found, ::freeaddrinfo);
  Socket socket(::socket(found->ai_family, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket.descriptor < 0) return base::fail_errno(errno, what);
  const int on = 1;
  if (type == SOCK_STREAM) ::setsockopt(socket.descriptor, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(socket.descriptor, found->ai_addr, found->ai_addrlen) != 0) {
    if (errno == EADDRINUSE) return fail(Code::conflict, what, ": another process has that port");
    return base::fail_errno(errno, what);
  }
  return socket;
}
}  // namespace

Result<int> listen_udp(const std::string& address) {
  TRY_LET(socket, bind_to(address, SOCK_DGRAM, "cannot take datagrams on " + address));
  return std::exchange(socket.descriptor, -1);
}

Result<Listening> listen_tcp(const std::string& address) {
  const std::string what = "cannot listen on " + address;
  TRY_LET(socket, bind_to(address, SOCK_STREAM, what));
  if (::listen(socket.descriptor, 4096) != 0) {
    if (errno == EADDRINUSE) return fail(Code::conflict, what, ": another process has that port");
    return base::fail_errno(errno, what);
  }
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  ::getsockname(socket.descriptor, reinterpret_cast<sockaddr*>(&bound), &size);
  char host[NI_MAXHOST], port[NI_MAXSERV];
  ::getnameinfo(reinterpret_cast<sockaddr*>(&bound), size, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
  const std::string name = bound.ss_family == AF_INET6 ? "[" + std::string(host) + "]" : std::string(host);
  return Listening{std::exchange(socket.descriptor, -1), name + ":" + port, {}};
}

Result<Listening> listen_unix(const std::string& path) {
  sockaddr_un name{};
  if (path.size() >= sizeof name.sun_path)
    return fail(Code::invalid, "unix socket path of ", path.size(), " bytes, at most ", sizeof name.sun_path - 1, ": ", path);
  name.sun_family = AF_UNIX;
  std::memcpy(name.sun_path, path.data(), path.size());
  Socket socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket.descriptor < 0) return base::fail_errno(errno, "cannot listen on " + path);
  ::unlink(path.c_str());
  if (::bind(socket.descriptor, reinterpret_cast<const sockaddr*>(&name), sizeof name) != 0 || ::listen(socket.descriptor, 4096) != 0)
    return base::fail_errno(errno, "cannot listen on " + path);
  ::chmod(path.c_str(), 0600);
  return Listening{std::exchange(socket.descriptor, -1), {}, path};
}

bool is_of_this_user(int descriptor) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return false;
  return peer.uid == ::geteuid() || peer.uid == 0;
}

}  // namespace zht::net

// The limit of `store`: what one core can do that answers every request and does nothing else. A bare epoll loop; no hash,
// no table, no log. It reads what a socket holds, answers all of it with one write, and goes on to the next.
//
//   echo_limit 127.0.0.1 6000      serves until SIGTERM; a path instead of host and port: a unix socket
//
// Request: u32 its size, u32 the size of the reply, u64 anything; then bytes. Reply: the same 16 bytes, then as many bytes
// of the request as fit, then zeros. `store_bench --system limit` asks for replies as long as the store's values.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace {

constexpr std::size_t kHead = 16, kRead = 256 << 10;

struct Connection {
  std::string rest;  // of a request that is not complete
};

// Answers every whole request of `in`; what is left of it.
std::string_view answer(std::string_view in, std::string& out) {
  while (in.size() >= kHead) {
    std::uint32_t size = 0, reply = 0;
    std::memcpy(&size, in.data(), 4);
    std::memcpy(&reply, in.data() + 4, 4);
    if (size < kHead || reply < kHead || size > kRead || reply > kRead) std::exit(1);
    if (in.size() < size) break;
    const std::size_t from = out.size(), same = std::min(size, reply);
    out.append(in.data(), same);
    out.resize(from + reply);
    in.remove_prefix(size);
  }
  return in;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3) {
    std::fprintf(stderr, "usage: echo_limit HOST PORT | PATH\n");
    return 2;
  }
  int listener = -1;
  if (argc == 2) {
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    std::snprintf(name.sun_path, sizeof name.sun_path, "%s", argv[1]);
    listener = ::socket(AF_UNIX, SOCK_STREAM, 0);
    if (::bind(listener, reinterpret_cast<sockaddr*>(&name), sizeof name) != 0) return 1;
  } else {
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_port = htons(static_cast<std::uint16_t>(std::atoi(argv[2])));
    if (::inet_pton(AF_INET, argv[1], &name.sin_addr) != 1) return 2;
    listener = ::socket(AF_INET, SOCK_STREAM, 0);
    const int on = 1;
    ::setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (::bind(listener, reinterpret_cast<sockaddr*>(&name), sizeof name) != 0) return 1;
  }
  const int loop = ::epoll_create1(0);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = listener;
  if (::listen(listener, 1024) != 0 || ::epoll_ctl(loop, EPOLL_CTL_ADD, listener, &event) != 0) return 1;
  std::unordered_map<int, Connection> connections;
  std::vector<char> buffer(kRead);
  std::string out, joined;
  for (;;) {
    epoll_event ready[64];
    const int count = ::epoll_wait(loop, ready, 64, -1);
    for (int i = 0; i < count; i++) {
      const int fd = ready[i].data.fd;
      if (fd == listener) {
        const int accepted = ::accept(listener, nullptr, nullptr);
        if (accepted < 0) continue;
        const int on = 1;
        ::setsockopt(accepted, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        event.events = EPOLLIN;
        event.data.fd = accepted;
        ::epoll_ctl(loop, EPOLL_CTL_ADD, accepted, &event);
        connections[accepted];
        continue;
      }
      Connection& connection = connections[fd];
      const ssize_t got = ::recv(fd, buffer.data(), buffer.size(), 0);
      if (got <= 0) {
        ::close(fd);
        connections.erase(fd);
        continue;
      }
      std::string_view in(buffer.data(), static_cast<std::size_t>(got));
      if (!connection.rest.empty()) {
        joined.assign(connection.rest).append(in);
        in = joined;
      }
      out.clear();
      connection.rest.assign(answer(in, out));
      for (std::size_t sent = 0; sent < out.size();) {
        const ssize_t wrote = ::send(fd, out.data() + sent, out.size() - sent, MSG_NOSIGNAL);
        if (wrote <= 0) break;
        sent += static_cast<std::size_t>(wrote);
      }
    }
  }
}

// The limit of `store`, `resp` and `queue`: what one core can do that answers every request and does nothing else. A bare epoll
// loop; no hash, no table. It reads what a socket holds, answers all of it with one write, and goes on to the next.
//
//   echo_limit [--append FILE [--sync]] [--resp] ADDRESS...      serves until SIGTERM
//
// ADDRESS: 127.0.0.1:6000, or the path of a unix socket. With --append what was read is appended to FILE before it is answered; with
// --sync too, all that one wait brought is written and synced together, as a server that groups commits would.
//
// Request: u32 its size, u32 the size of the reply, u64 anything; then bytes. Reply: the same 16 bytes, then as many bytes
// of the request as fit, then zeros. `store_bench --system limit` asks for replies as long as the store's values. With --resp it
// answers redis-benchmark: SET with OK, GET with 132 bytes that are always the same.
#include <arpa/inet.h>
#include <fcntl.h>
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
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

namespace {

constexpr std::size_t kHead = 16, kRead = 256 << 10, kLargest = 16 << 20;

[[noreturn]] void give_up(const char* what) {
  std::fprintf(stderr, "echo_limit: %s\n", what);
  std::exit(1);
}

// Answers every whole request of `in`; what is left of it.
std::string_view answer(std::string_view in, std::string& out) {
  while (in.size() >= kHead) {
    std::uint32_t size = 0, reply = 0;
    std::memcpy(&size, in.data(), 4);
    std::memcpy(&reply, in.data() + 4, 4);
    if (size < kHead || reply < kHead || size > kLargest || reply > kLargest) give_up("not a request");
    if (in.size() < size) break;
    const std::size_t from = out.size(), same = std::min(size, reply);
    out.append(in.data(), same);
    out.resize(from + reply);
    in.remove_prefix(size);
  }
  return in;
}

// One line of `in` from `at` on, without its end; false: it is not complete.
bool line(std::string_view in, std::size_t& at, std::string_view& text) {
  const std::size_t end = in.find("\r\n", at);
  if (end == std::string_view::npos) return false;
  text = in.substr(at, end - at);
  at = end + 2;
  return true;
}

// The same for arrays of bulk strings, whose first word is the command.
std::string_view answer_resp(std::string_view in, std::string& out) {
  static const std::string value = "$132\r\n" + std::string(132, 'v') + "\r\n";
  for (;;) {
    std::size_t at = 0;
    std::string_view head, command;
    if (!line(in, at, head)) return in;
    if (head.empty() || head[0] != '*') give_up("not an array");
    const int words = std::atoi(std::string(head.substr(1)).c_str());
    for (int word = 0; word < words; word++) {
      if (!line(in, at, head)) return in;
      const auto size = static_cast<std::size_t>(std::atoi(std::string(head.substr(1)).c_str()));
      if (in.size() < at + size + 2) return in;
      if (word == 0) command = in.substr(at, size);
      at += size + 2;
    }
    out += command == "SET" ? "+OK\r\n" : command == "GET" ? value : "-ERR only SET and GET\r\n";
    in.remove_prefix(at);
  }
}

int listen_at(const std::string& address) {
  int listener = -1;
  if (address.starts_with("/")) {
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    std::snprintf(name.sun_path, sizeof name.sun_path, "%s", address.c_str());
    listener = ::socket(AF_UNIX, SOCK_STREAM, 0);
    if (::bind(listener, reinterpret_cast<sockaddr*>(&name), sizeof name) != 0) give_up("bind");
  } else {
    const std::size_t colon = address.rfind(':');
    sockaddr_in name{};
    name.sin_family = AF_INET;
    if (colon == std::string::npos || ::inet_pton(AF_INET, address.substr(0, colon).c_str(), &name.sin_addr) != 1) give_up("not an address");
    name.sin_port = htons(static_cast<std::uint16_t>(std::atoi(address.c_str() + colon + 1)));
    listener = ::socket(AF_INET, SOCK_STREAM, 0);
    const int on = 1;
    ::setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (::bind(listener, reinterpret_cast<sockaddr*>(&name), sizeof name) != 0) give_up("bind");
  }
  if (::listen(listener, 1024) != 0) give_up("listen");
  return listener;
}

void send_all(int fd, std::string& out) {
  for (std::size_t sent = 0; sent < out.size();) {
    const ssize_t wrote = ::send(fd, out.data() + sent, out.size() - sent, MSG_NOSIGNAL);
    if (wrote <= 0) break;
    sent += static_cast<std::size_t>(wrote);
  }
  out.clear();
}

struct Connection {
  std::string rest;  // of a request that is not complete
  std::string out;   // with --sync: answers that wait for it
};

}  // namespace

int main(int argc, char** argv) {
  std::set<int> listeners;
  int file = -1;
  bool sync = false, resp = false;
  for (int i = 1; i < argc; i++) {
    const std::string word = argv[i];
    if (word == "--append" && i + 1 < argc) file = ::open(argv[++i], O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
    else if (word == "--sync") sync = true;
    else if (word == "--resp") resp = true;
    else listeners.insert(listen_at(word));
  }
  if (listeners.empty() || (sync && file < 0)) {
    std::fprintf(stderr, "usage: echo_limit [--append FILE [--sync]] [--resp] ADDRESS...\n");
    return 2;
  }
  const int loop = ::epoll_create1(0);
  epoll_event event{};
  event.events = EPOLLIN;
  for (const int listener : listeners) {
    event.data.fd = listener;
    if (::epoll_ctl(loop, EPOLL_CTL_ADD, listener, &event) != 0) return 1;
  }
  std::unordered_map<int, Connection> connections;
  std::vector<char> buffer(kRead);
  std::string out, joined, log;
  std::vector<int> waiting;
  for (;;) {
    epoll_event ready[64];
    const int count = ::epoll_wait(loop, ready, 64, -1);
    for (int i = 0; i < count; i++) {
      const int fd = ready[i].data.fd;
      if (listeners.contains(fd)) {
        const int accepted = ::accept(fd, nullptr, nullptr);
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
      if (sync) {
        log.append(in);
      } else if (file >= 0 && ::write(file, in.data(), in.size()) != got) {
        give_up("write");
      }
      if (!connection.rest.empty()) {
        joined.assign(connection.rest).append(in);
        in = joined;
      }
      std::string& to = sync ? connection.out : out;
      connection.rest.assign(resp ? answer_resp(in, to) : answer(in, to));
      if (sync) waiting.push_back(fd);
      else send_all(fd, out);
    }
    if (log.empty()) continue;
    if (::write(file, log.data(), log.size()) != static_cast<ssize_t>(log.size()) || ::fdatasync(file) != 0) give_up("write and sync");
    log.clear();
    for (const int fd : waiting)
      if (const auto found = connections.find(fd); found != connections.end()) send_all(fd, found->second.out);
    waiting.clear();
  }
}

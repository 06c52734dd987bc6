// Addresses, and sockets that listen on them.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "novoht/base/result.h"

namespace zht::net {

struct Listening {
  int descriptor = -1;    // non-blocking; the receiver closes it
  std::string address;    // "127.0.0.1:40000", also where port 0 was asked for; empty for unix
  std::string unix_path;  // empty for TCP
};

// "host:port" -> its parts. invalid: the message names the text. "[::1]:80" for IPv6.
base::Result<std::pair<std::string, std::uint16_t>> parse_address(const std::string& text);

// invalid: not host:port, or no such host; conflict: another process has the port; io.
base::Result<Listening> listen_tcp(const std::string& address);
// The descriptor of a bound, non-blocking UDP socket; the receiver closes it. Errors as listen_tcp.
base::Result<int> listen_udp(const std::string& address);
// A stale socket file is replaced: whoever calls this holds the data folder's lock. Mode 0600.
base::Result<Listening> listen_unix(const std::string& path);

// Whether the other end of a connected unix socket is a process of this process's user, or of root. The socket file's mode says
// the same; but it may have been opened up, or the folder handed over.
bool is_of_this_user(int descriptor);

}  // namespace zht::net

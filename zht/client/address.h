// Where something listens: a unix socket or host:port.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <vector>

#include "novoht/base/result.h"
#include "zht/security/guard.h"

namespace zht::client {

struct Address {
  std::string path;  // of a unix socket; empty: TCP
  std::string host;
  std::uint16_t port = 0;
  security::Opener opener;  // what both sides prove over TCP; null: nothing is asked
  bool is_unix() const { return !path.empty(); }
  std::string text() const;  // "host:port" or "unix:/path"
  bool operator==(const Address&) const = default;
};

// "host:port", "[v6]:port" or "unix:/path". invalid names what is wrong with it.
base::Result<Address> parse_address(const std::string& text);

// What --cluster takes: addresses with commas between, or the path of a file with one a line ('#' begins a comment). Each is
// given `opener`.
base::Result<std::vector<Address>> parse_cluster(const std::string& text, const security::Opener& opener = nullptr);

// What connect(2) takes. Names are looked up, which may take long; unavailable when there is no such name.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
  int family() const { return storage.ss_family; }
};
base::Result<std::vector<SocketAddress>> resolve(const Address& address);
// The same of what needs no looking up: a path, a number. None: it is a name. Never waits.
std::vector<SocketAddress> resolve_literal(const Address& address);

}  // namespace zht::client

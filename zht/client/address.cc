#include "zht/client/address.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cstring>
#include <sstream>

#include "novoht/base/bytes.h"
#include "zht/support/output.h"
#include "zht/support/paths.h"

namespace zht::client {

using base::Code;
using base::fail;
using base::Result;

std::string Address::text() const {
  if (is_unix()) return "unix:" + path;
  return (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" + std::to_string(port);
}

Result<Address> parse_address(const std::string& text) {
  Address address;
  if (text.starts_with("unix:")) {
    address.path = text.substr(5);
    if (address.path.empty()) return fail(Code::invalid, "address 'unix:' has no path; write unix:/path");
    return address;
  }
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0)
    return fail(Code::invalid, "address '", base::escape(text), "' is not host:port, such as 127.0.0.1:5470");
  address.host = text.substr(0, colon);
  if (address.host.size() > 1 && address.host.front() == '[' && address.host.back() == ']')
    address.host = address.host.substr(1, address.host.size() - 2);
  else if (address.host.find(':') != std::string::npos)
    return fail(Code::invalid, "address '", base::escape(text), "': write an IPv6 address as [address]:port");
  const auto port = support::parse_number(text.substr(colon + 1), 1, 65535);
  if (!port) return fail(Code::invalid, "address '", base::escape(text), "': port ", port.error().message);
  address.port = static_cast<std::uint16_t>(*port);
  return address;
}

Result<std::vector<Address>> parse_cluster(const std::string& text, const security::Opener& opener) {
  std::string list = text;
  struct stat info {};
  if (stat(text.c_str(), &info) == 0 && S_ISREG(info.st_mode)) {
    TRY_LET(content, support::read_file(text, 1 << 20));
    list.clear();
    std::istringstream lines(content);
    for (std::string line; std::getline(lines, line);) {
      line = line.substr(0, line.find('#'));
      line.erase(0, line.find_first_not_of(" \t\r"));
      line.erase(line.find_last_not_of(" \t\r") + 1);
      if (!line.empty()) list += (list.empty() ? "" : ",") + line;
    }
    if (list.empty())
      return fail(Code::invalid, "cluster file ", text, " names no address; write one host:port a line");
  } else if (text.find('/') != std::string::npos && !text.starts_with("unix:")) {
    return fail(Code::not_found, "cluster file ", base::escape(text), " does not exist");
  }
  std::vector<Address> addresses;
  std::istringstream parts(list);
  for (std::string part; std::getline(parts, part, ',');) {
    TRY_LET(address, parse_address(part));
    address.opener = opener;
    addresses.push_back(std::move(address));
  }
  if (addresses.empty()) return fail(Code::invalid, "no address given; write host:port[,host:port...]");
  return addresses;
}

namespace {

Result<std::vector<SocketAddress>> look_up(const Address& address, int more_flags) {
  std::vector<SocketAddress> found;
  if (address.is_unix()) {
    SocketAddress one;
    auto* unix_address = reinterpret_cast<sockaddr_un*>(&one.storage);
    unix_address->sun_family = AF_UNIX;
    if (address.path.size() >= sizeof unix_address->sun_path)
      return fail(Code::invalid, "socket path ", address.path, " of ", address.path.size(),
                  " bytes is too long; at most ", sizeof unix_address->sun_path - 1);
    std::memcpy(unix_address->sun_path, address.path.data(), address.path.size());
    one.size = sizeof(sockaddr_un);
    found.push_back(one);
    return found;
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | more_flags;
  addrinfo* list = nullptr;
  const std::string port = std::to_string(address.port);
  if (const int error = getaddrinfo(address.host.c_str(), port.c_str(), &hints, &list); error != 0)
    return fail(Code::unavailable, address.text(), ": ", gai_strerror(error));
  for (const addrinfo* at = list; at != nullptr; at = at->ai_next) {
    SocketAddress one;
    std::memcpy(&one.storage, at->ai_addr, at->ai_addrlen);
    one.size = at->ai_addrlen;
    found.push_back(one);
  }
  freeaddrinfo(list);
  return found;
}

}  // namespace

Result<std::vector<SocketAddress>> resolve(const Address& address) { return look_up(address, 0); }

std::vector<SocketAddress> resolve_literal(const Address& address) {
  auto found = look_up(address, AI_NUMERICHOST);
  return found ? *std::move(found) : std::vector<SocketAddress>();
}

}  // namespace zht::client

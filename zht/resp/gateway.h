// The RESP listener: any Redis client reaches the store through it. One thread with an event loop; commands become
// operations of a zht::Client, all of a turn together, and replies leave in the order of their commands. With the
// node's own client, operations execute on this thread: a Redis client's command takes no hop. A change that has to be synced
// first (durability always) is answered when it is, and the loop goes on meanwhile.
//
// Bounds: an argument of 16 MiB, a command of 64 MiB, 10,000 commands and 64 MiB of replies under way a connection; a
// client past the last two is not read from until it has caught up, and closed when it reads nothing for two minutes. 1
// GiB of outcomes and of half-read commands over all connections.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "novoht/base/result.h"
#include "zht/client.h"
#include "zht/net/event_loop.h"
#include "zht/net/tls_socket.h"
#include "zht/resp/commands.h"

namespace zht::resp {

class Gateway {
 public:
  // Gets the facts of the node and tells them to its argument, once, on any thread.
  using AskNode = std::function<void(std::function<void(Facts)>)>;
  // `client` and `prover` outlive it; the first two may call back until stop() has returned. With a prover, AUTH comes before
  // everything else, within 10 s; of connections that are at that there are kMostUnproven at most, and a random one makes way.
  // Where `tls` has a context, every connection speaks TLS, and who does not is told so.
  Gateway(Client& client, AskNode ask_node, std::size_t max_connections = 20'000, const security::Prover* prover = nullptr,
          net::TlsPort tls = {});
  ~Gateway();
  // Before run(). Returns the address it got. Errors as net::FrameServer::listen_tcp.
  base::Result<std::string> listen(const std::string& address);
  // The same at a unix socket, for this user's processes and root's: no AUTH, no TLS. Errors as net::listen_unix.
  base::Result<void> listen_unix(const std::string& path);
  static constexpr std::size_t kMostUnproven = 256;
  void run();   // starts the thread
  void stop();  // closes every connection, ends the thread
  struct Counts {
    std::uint64_t connections = 0, commands = 0;
  };
  Counts counts() const;  // any thread

 private:
  class Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace zht::resp

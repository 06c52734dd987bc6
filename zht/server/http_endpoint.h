// Answers GET requests, for those who watch the node: Prometheus, a load balancer, curl. On an event loop that does
// other work, so everything about a request is bounded: 8 KiB, ten seconds to say it and ten to read the answer, 64
// connections (one makes way: Unproven). Our own two hundred lines instead of a library: cpp-httplib gives each
// connection a thread for as long as it likes to be slow, and reads headers without end.
//
//   HttpEndpoint http(loop, [](const std::string& path, const std::string& bearer, HttpEndpoint::Answer answer) { answer({200, "text/plain",
//   "hi\n"}); }); TRY_LET(address, http.listen("127.0.0.1:9100"));
//
// Everything on the loop's thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "novoht/base/result.h"
#include "zht/net/acceptor.h"
#include "zht/net/event_loop.h"
#include "zht/net/tls_socket.h"

namespace zht::server {

struct HttpReply {
  int status = 200;
  std::string type, body;
};

struct HttpLimits {
  std::size_t request_size = 8192, connections = 64;
  std::chrono::milliseconds request_time{10'000};  // to say a request; to read an answer
  std::chrono::milliseconds idle_time{60'000};     // between requests
  std::chrono::milliseconds answer_time{5'000};    // of the handler; past it 503
};

class HttpEndpoint {
 public:
  using Answer = std::function<void(HttpReply)>;  // once, now or later, on the loop's thread
  // path: without what follows a '?'; bearer: of an Authorization header
  using Handler = std::function<void(const std::string& path, const std::string& bearer, Answer answer)>;

  // Where `tls` has a context, every connection speaks TLS, and who does not is told so.
  HttpEndpoint(net::EventLoop& loop, Handler handler, net::TlsPort tls = {}, HttpLimits limits = {});
  ~HttpEndpoint();                                               // closes everything; late answers go nowhere
  base::Result<std::string> listen(const std::string& address);  // the address it got; errors as net::listen_tcp
  std::size_t connection_count() const { return connections_.size(); }

 private:
  struct Connection;
  using Clock = std::chrono::steady_clock;

  void take(int descriptor);
  void on_connection(Connection& connection, std::uint32_t events);
  void take_request(Connection& connection);
  void reply(Connection& connection, const HttpReply& reply);
  void refuse(Connection& connection, const char* why);
  bool send(Connection& connection);
  void flush(Connection& connection);
  void look(Clock::time_point now);
  void close(std::uint64_t number);

  net::EventLoop& loop_;
  const Handler handler_;
  const net::TlsPort tls_;
  const HttpLimits limits_;
  std::unique_ptr<net::Acceptor> listener_;
  net::Unproven all_;  // nobody is anybody here
  std::unordered_map<std::uint64_t, std::unique_ptr<Connection>> connections_;
  std::vector<std::unique_ptr<Connection>> closed_;  // their code may still be on the stack
  std::uint64_t next_ = 1;
  std::shared_ptr<HttpEndpoint*> self_;  // what late answers and the timer hold on to; empty when this is gone
};

// A request's first line and headers, as far as they matter here.
struct HttpRequest {
  std::string method, path, bearer;
  bool keep_alive = false;
  std::size_t size = 0;  // bytes of it
};
enum class HttpParse { request, more, broken };
HttpParse parse_http(std::string_view bytes, HttpRequest& request);

}  // namespace zht::server

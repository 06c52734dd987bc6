#include "zht/server/http_endpoint.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include "zht/net/listen.h"

namespace zht::server {
namespace {

bool equals_ignoring_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) {
    const auto low = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
    return low(x) == low(y);
  });
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

std::string_view words_of(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 431:
      return "Request Header Fields Too Large";
    default:
      return "Service Unavailable";
  }
}

}  // namespace

HttpParse parse_http(std::string_view bytes, HttpRequest& request) {
  std::size_t at = 0;
  bool first = true, has_body = false;
  request = {};
  while (true) {
    const std::size_t newline = bytes.find('\n', at);
    if (newline == std::string_view::npos) return HttpParse::more;
    std::string_view line = bytes.substr(at, newline - at);
    at = newline + 1;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (first) {
      const std::size_t one = line.find(' '), two = line.rfind(' ');
      if (one == std::string_view::npos || one == two || one == 0) return HttpParse::broken;
      const std::string_view version = line.substr(two + 1);
      if (version != "HTTP/1.1" && version != "HTTP/1.0") return HttpParse::broken;
      request.method = line.substr(0, one);
      std::string_view path = line.substr(one + 1, two - one - 1);
      if (path.empty() || path.front() != '/' || path.find(' ') != std::string_view::npos) return HttpParse::broken;
      request.path = path.substr(0, path.find('?'));
      request.keep_alive = version == "HTTP/1.1";
      first = false;
      continue;
    }
    if (line.empty()) break;
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos || colon == 0) return HttpParse::broken;
    const std::string_view name = line.substr(0, colon), value = trimmed(line.substr(colon + 1));
    if (equals_ignoring_case(name, "connection")) {
      if (equals_ignoring_case(value, "close")) request.keep_alive = false;
      if (equals_ignoring_case(value, "keep-alive")) request.keep_alive = true;
    }
    if (equals_ignoring_case(name, "authorization") && equals_ignoring_case(value.substr(0, 7), "bearer "))
      request.bearer = trimmed(value.substr(7));
    if (equals_ignoring_case(name, "transfer-encoding") ||
        (equals_ignoring_case(name, "content-length") && value != "0"))
      has_body = true;
  }
  // Nothing here takes a body: it is not read, and what follows it cannot be told from it.
  if (has_body) request.keep_alive = false;
  request.size = at;
  return HttpParse::request;
}

struct HttpEndpoint::Connection final : net::Ready {
  Connection(HttpEndpoint& e, std::uint64_t n, int d) : endpoint(e), number(n), descriptor(d) {
    secured = static_cast<bool>(e.tls_);
  }
  ~Connection() override { ::close(descriptor); }
  void on_ready(std::uint32_t events) override { endpoint.on_connection(*this, events); }
  HttpEndpoint& endpoint;
  const std::uint64_t number;
  const int descriptor;
  bool secured = false;  // bytes go through `tls`, which is there from the first ones on
  std::optional<net::TlsSocket> tls;
  std::string in, out;
  std::size_t sent = 0;
  bool waiting = false;     // for the handler
  bool keep_alive = false;  // after the present answer
  bool head = false;        // the answer goes without its body
  std::uint64_t request = 0;
  Clock::time_point since = Clock::now();  // of what it does now: idling, saying, waiting, reading
  std::uint32_t interest = EPOLLIN;
};

HttpEndpoint::HttpEndpoint(net::EventLoop& loop, Handler handler, net::TlsPort tls, HttpLimits limits)
    : loop_(loop), handler_(std::move(handler)), tls_(std::move(tls)), limits_(limits), all_(limits.connections),
      self_(std::make_shared<HttpEndpoint*>(this)) {
  loop_.every(std::chrono::milliseconds(500), [weak = std::weak_ptr<HttpEndpoint*>(self_)] {
    if (const auto self = weak.lock()) (*self)->look(Clock::now());
  });
}

HttpEndpoint::~HttpEndpoint() {
  for (auto& [number, connection] : connections_) loop_.remove(connection->descriptor, *connection);
}

base::Result<std::string> HttpEndpoint::listen(const std::string& address) {
  TRY_LET(listening, net::listen_tcp(address));
  const std::string got = listening.address;
  listener_ = std::make_unique<net::Acceptor>(loop_, std::move(listening), [this](int descriptor) { take(descriptor); });
  TRY(listener_->begin());
  return got;
}

void HttpEndpoint::take(int descriptor) {
  if (const auto victim = all_.in_the_way()) close(*victim);
  auto connection = std::make_unique<Connection>(*this, next_++, descriptor);
  if (!loop_.add(descriptor, EPOLLIN, *connection)) return;
  all_.add(connection->number, Clock::now());
  connections_.emplace(connection->number, std::move(connection));
}

void HttpEndpoint::on_connection(Connection& connection, std::uint32_t events) {
  if (events & EPOLLOUT) return flush(connection);
  std::string buffer(4096, '\0'), plain;
  const bool first = connection.in.empty() && !connection.waiting && connection.out.empty();
  if (connection.secured) {
    if (!connection.tls) connection.tls.emplace(tls_, connection.descriptor);  // it says something
    using Read = net::TlsSocket::Read;
    const auto read = connection.tls->read(buffer, plain);
    if (read == Read::nothing) return;
    if (read == Read::plain) return refuse(connection, "this port speaks TLS: https://");
    if (read != Read::some) return close(connection.number);
    if (plain.empty()) return flush(connection);
  } else {
    const ssize_t got = ::recv(connection.descriptor, buffer.data(), buffer.size(), 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) return close(connection.number);
    plain = buffer.substr(0, static_cast<std::size_t>(got));
    if (first && net::is_tls(plain)) return refuse(connection, "this port speaks no TLS: http://");
  }
  if (first) connection.since = Clock::now();
  connection.in += plain;
  take_request(connection);
}

// In plain words, to one who cannot be served.
void HttpEndpoint::refuse(Connection& connection, const char* why) {
  connection.tls.reset();
  connection.secured = false;
  connection.keep_alive = false;
  reply(connection, {400, "text/plain", std::string(why) + "\n"});
}

void HttpEndpoint::take_request(Connection& connection) {
  if (connection.waiting || !connection.out.empty()) {
    // The next request comes while this one is answered; more than one is not kept.
    if (connection.in.size() > limits_.request_size) close(connection.number);
    return;
  }
  HttpRequest request;
  const HttpParse parsed = parse_http(connection.in, request);
  connection.keep_alive = false;
  connection.head = request.method == "HEAD";
  if (parsed == HttpParse::broken) return reply(connection, {400, "text/plain", "not an HTTP/1 request\n"});
  if (parsed == HttpParse::more || request.size > limits_.request_size) {
    if (connection.in.size() > limits_.request_size) reply(connection, {431, "text/plain", "at most 8 KiB\n"});
    return;
  }
  connection.in.erase(0, request.size);
  connection.keep_alive = request.keep_alive;
  if (request.method != "GET" && request.method != "HEAD") {
    connection.keep_alive = false;
    return reply(connection, {405, "text/plain", "GET and HEAD only\n"});
  }
  connection.waiting = true;
  connection.since = Clock::now();
  handler_(request.path, request.bearer, [weak = std::weak_ptr<HttpEndpoint*>(self_), number = connection.number,
                          which = ++connection.request](const HttpReply& made) {
    const auto self = weak.lock();
    if (!self) return;
    const auto found = (*self)->connections_.find(number);
    if (found == (*self)->connections_.end() || !found->second->waiting || found->second->request != which) return;
    (*self)->reply(*found->second, made);
  });
}

void HttpEndpoint::reply(Connection& connection, const HttpReply& reply) {
  connection.waiting = false;
  connection.since = Clock::now();
  std::string& out = connection.out;
  out = "HTTP/1.1 " + std::to_string(reply.status) + " ";
  out.append(words_of(reply.status));
  out += "\r\nContent-Type: " + reply.type + "; charset=utf-8\r\nContent-Length: " + std::to_string(reply.body.size()) +
         "\r\nCache-Control: no-store\r\nConnection: " + (connection.keep_alive ? "keep-alive" : "close") + "\r\n\r\n";
  if (!connection.head) out += reply.body;
  flush(connection);
}

// Whether all is sent; else it waits for the socket, or the connection is closed.
bool HttpEndpoint::send(Connection& connection) {
  bool blocked = false, failed = false;
  if (connection.tls) {
    const auto wrote = connection.tls->write(connection.out, connection.sent);
    blocked = wrote == net::TlsSocket::Wrote::blocked;
    failed = wrote == net::TlsSocket::Wrote::failed;
  }
  while (!connection.tls && !blocked && !failed && connection.sent < connection.out.size()) {
    const ssize_t wrote = ::send(connection.descriptor, connection.out.data() + connection.sent,
                                 connection.out.size() - connection.sent, MSG_NOSIGNAL);
    if (wrote >= 0) connection.sent += static_cast<std::size_t>(wrote);
    else if (errno == EAGAIN) blocked = true;
    else failed = errno != EINTR;
  }
  if (failed) close(connection.number);
  else if (blocked && std::exchange(connection.interest, EPOLLOUT) != EPOLLOUT) loop_.change(connection.descriptor, EPOLLOUT, connection);
  return !failed && !blocked;
}

void HttpEndpoint::flush(Connection& connection) {
  if (!send(connection)) return;
  const bool answered = !connection.out.empty();
  connection.out.clear();
  connection.sent = 0;
  if (answered && !connection.keep_alive) {
    if (connection.tls) connection.tls->end();
    // What the peer still says is not read; without this its reset would take our last words with it.
    ::shutdown(connection.descriptor, SHUT_WR);
    return close(connection.number);
  }
  if (std::exchange(connection.interest, EPOLLIN) != EPOLLIN) loop_.change(connection.descriptor, EPOLLIN, connection);
  if (!answered) return;  // of a TLS handshake
  connection.since = Clock::now();
  if (!connection.in.empty())
    loop_.post([weak = std::weak_ptr<HttpEndpoint*>(self_), number = connection.number] {
      const auto self = weak.lock();
      if (!self) return;
      const auto found = (*self)->connections_.find(number);
      if (found != (*self)->connections_.end()) (*self)->take_request(*found->second);
    });
}

void HttpEndpoint::look(Clock::time_point now) {
  closed_.clear();
  std::vector<std::uint64_t> late, unanswered;
  for (const auto& [number, connection] : connections_) {
    const auto time = now - connection->since;
    if (connection->waiting) {
      if (time > limits_.answer_time) unanswered.push_back(number);
    } else if (const bool idles = connection->in.empty() && connection->out.empty() && (!connection->tls || connection->tls->ready());
               time > (idles ? limits_.idle_time : limits_.request_time)) {
      late.push_back(number);
    }
  }
  for (std::uint64_t number : late) close(number);
  for (std::uint64_t number : unanswered)
    if (const auto found = connections_.find(number); found != connections_.end())
      reply(*found->second, {503, "text/plain", "the node's instances have not answered in time\n"});
}

void HttpEndpoint::close(std::uint64_t number) {
  const auto found = connections_.find(number);
  if (found == connections_.end()) return;
  loop_.remove(found->second->descriptor, *found->second);
  all_.remove(number);
  closed_.push_back(std::move(found->second));
  connections_.erase(found);
}

}  // namespace zht::server

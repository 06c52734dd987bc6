#include "zht/server/node_parts.h"

#include "zht/server/metrics.h"
#include "zht/server/own_secret.h"
#include "zht/support/paths.h"

// Where a node can be reached: by nodes and clients, by Redis clients, over HTTP.
namespace zht::server {

using base::Code;
using base::fail;
using base::Result;

namespace {

// An address to listen on; refused where nothing authenticates who comes to it, be it from this machine alone.
Result<std::pair<std::string, std::uint16_t>> allowed_address(const std::string& text, bool authenticated, bool insecure) {
  TRY_LET(address, net::parse_address(text));
  if (!authenticated && !insecure)
    return fail(Code::invalid, "listening on ", text, " would let in anyone who reaches the port",
                is_loopback(address.first) ? " (every user of this machine)" : "",
                ", unauthenticated; leave secret_file out, and a secret is made (zht secret --help), have munge vouch (--secret-file munge), "
                "give TLS files (tls_certificate, tls_key, tls_ca), or --insecure");
  if (!authenticated)
    logger().warn("insecure: whoever reaches this port can read and change every key, end the node, and, as a node of the cluster would, "
                  "take its partitions away",
                  {{"address", text}, {"who", is_loopback(address.first) ? "every user of this machine" : "the network"}});
  return address;
}

resp::Facts facts_of(const wire::Status& status) {
  resp::Facts facts;
  facts.uptime_ms = status.uptime_ms();
  facts.durability = status.durability();
  for (const wire::InstanceStatus& one : status.instances()) {
    facts.keys += one.keys();
    facts.memory_bytes += one.memory_bytes();
    facts.disk_bytes += one.disk_bytes();
    facts.operations += one.operations();
  }
  return facts;
}

}  // namespace

// The one address a user chooses, before anything is recovered: a bad or taken one is told at once.
Result<void> Node::Parts::listen_as_manager() {
  endpoint = std::make_unique<net::FrameServer>(loop, *this);
  if (!settings.listen.empty()) {
    TRY_LET(parsed, allowed_address(settings.listen, opener != nullptr, settings.insecure));
    address = parsed;
    endpoint->guard(opener);
    TRY_LET(bound, endpoint->listen_tcp(settings.listen));
    tcp = bound;
  }
  return {};
}

// The address others are told, of one this process is bound to.
std::string Node::Parts::reachable(const std::string& bound) const {
  return settings.advertise.empty() ? bound : settings.advertise + bound.substr(bound.rfind(':'));
}

Result<void> Node::Parts::listen() {
  for (std::uint32_t i = 0; i < instances.size(); i++) {
    if (!settings.listen.empty()) {
      const std::string host = address.first.find(':') == std::string::npos ? address.first : "[" + address.first + "]";
      const std::uint32_t port = address.second == 0 ? 0 : address.second + 1 + i;
      Result<std::string> bound = port > 65'535 ? Result<std::string>(fail(Code::conflict, "no such port"))
                                                : instances[i]->listen_tcp(host + ":" + std::to_string(port));
      if (!bound && bound.code() == Code::conflict) bound = instances[i]->listen_tcp(host + ":0");
      if (!bound) return bound.error();
      own[i].set_tcp(reachable(*bound));
      if (settings.udp && !opener) {  // a datagram carries no connection that could have proven anything
        const auto datagrams = instances[i]->listen_udp(*bound);
        own[i].set_udp(datagrams.has_value());
        if (!datagrams) logger().warn("no datagrams", {{"address", *bound}, {"error", datagrams.error()}});
      }
    }
    if (!settings.unix_sockets) continue;
    TRY_LET(path, support::socket_path(settings.data, "instance-" + std::to_string(i) + ".sock"));
    TRY(instances[i]->listen_unix(path));
    own[i].set_unix_socket(path);
  }
  if (!settings.unix_sockets) return {};
  TRY_LET(path, support::socket_path(settings.data, "node.sock"));
  unix_path = path;
  return {};
}

void Node::Parts::tell_tools() const {
  std::vector<std::string> where;
  if (!tcp.empty()) where = {tcp, reachable(tcp)};
  for (const wire::Instance& one : own)
    if (!one.tcp().empty()) where.push_back(one.tcp());
  if (!where.empty()) server::tell_tools(opener, where, identity.cluster);
}

// How a port that is not for frames speaks TLS; `kind` is a setting's word.
net::TlsPort Node::Parts::tls_port(const std::string& kind) const {
  if (!opener || !opener->tls || kind == "off") return {};
  return {opener->tls, kind != "server"};
}

// Redis clients know one address; the gateway's client knows which instance each key is with.
Result<void> Node::Parts::listen_for_redis(Node& node) {
  const net::TlsPort tls = tls_port(settings.resp_tls);
  TRY(allowed_address(settings.resp, security::prover_of(opener) != nullptr || (tls && tls.certificates), settings.insecure));
  redis_client = node.client();
  redis = std::make_unique<resp::Gateway>(
      *redis_client,
      [this](std::function<void(resp::Facts)> tell) {
        loop.post([this, tell = std::move(tell)] {
          gather([tell](const wire::Status& status) { tell(facts_of(status)); });
        });
      },
      settings.max_connections, security::prover_of(opener), tls);
  TRY_LET(bound, redis->listen(settings.resp));
  resp_address = bound;
  if (settings.unix_sockets) {
    TRY_LET(path, support::socket_path(settings.data, "resp.sock"));
    TRY(redis->listen_unix(path));
  }
  redis->run();
  return {};
}

// Off unless asked for: a port is the machine's, and a node is often just one user's.
Result<void> Node::Parts::listen_for_http() {
  const net::TlsPort tls = tls_port(settings.http_tls);
  TRY_LET(where, net::parse_address(settings.http));
  // Figures, and no keys: on loopback for every user of the machine.
  if (!is_loopback(where.first))
    TRY(allowed_address(settings.http, security::prover_of(opener) != nullptr || (tls && tls.certificates), settings.insecure));
  // Of a port that others than this machine's users reach, the figures are for who has the token.
  const bool asks = security::prover_of(opener) != nullptr && !is_loopback(where.first);
  const auto admits = [this](const std::string& bearer) {
    return opener->secret ? security::same(bearer, opener->secret->metrics_token()) : opener->prover()->admits(bearer);
  };
  http = std::make_unique<HttpEndpoint>(loop, [this, asks, admits](const std::string& path, const std::string& bearer, HttpEndpoint::Answer answer) {
    if (path == "/metrics" && asks && !admits(bearer))
      return answer({401, "text/plain", "Authorization: Bearer <what `zht secret token` prints>\n"});
    if (path == "/metrics")
      return gather([answer](const wire::Status& status) {
        answer({200, "text/plain; version=0.0.4", metrics_text(status)});
      });
    if (path == "/healthz")
      return gather([answer, asks](const wire::Status& status) {
        const std::string ails = what_ails(status);
        if (!ails.empty()) return answer({503, "text/plain", asks ? "not well\n" : ails});
        answer({200, "text/plain", asks ? "ok\n" : "ok\n" + what_is_at_risk(status)});
      });
    answer({path == "/" ? 200 : 404, "text/plain", "/metrics\n/healthz\n"});
  }, tls);
  TRY_LET(bound, http->listen(settings.http));
  http_address = bound;
  return {};
}

void Node::Parts::end_redis() {
  if (redis) redis->stop();
  redis_client.reset();
  redis.reset();
}

}  // namespace zht::server

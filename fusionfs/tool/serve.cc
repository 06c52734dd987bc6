#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <memory>

#include "fusionfs/data/chunk_server.h"
#include "fusionfs/data/stores.h"
#include "fusionfs/data/sweep.h"
#include "fusionfs/tool/chunk_service.h"
#include "fusionfs/tool/verbs.h"
#include "zht/guard.h"
#include "zht/local_server.h"
#include "zht/support/log.h"
#include "zht/support/output.h"
#include "zht/support/paths.h"
#include "zht/support/process.h"
#include "zht/support/program.h"
#include "zht/support/service.h"

namespace fusionfs {

using base::Code;
using base::fail;
using base::Result;

std::string cluster_of(const support::CommonFlags& common) {
  return common.named_cluster();
}

std::string cluster_around(const support::CommonFlags& common, const std::string& data) {
  const std::string named = cluster_of(common);
  return named.empty() ? zht::reachable_address(data).value_or("") : named;
}

std::string own_address(const std::string& cluster) {
  std::string first = cluster;
  if (std::ifstream list(cluster); list && std::getline(list, first)) {
  }
  first = first.substr(0, first.find(','));
  const auto colon = first.rfind(':');
  std::string host = first.substr(0, colon);
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  std::string own = "127.0.0.1";
  if (colon == std::string::npos || ::getaddrinfo(host.c_str(), first.c_str() + colon + 1, &hints, &found) != 0) return own;
  // Connecting a datagram socket sends nothing; it chooses the address that packets there would come from.
  const int socket = ::socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  char text[NI_MAXHOST];
  if (socket >= 0 && ::connect(socket, found->ai_addr, found->ai_addrlen) == 0 &&
      ::getsockname(socket, reinterpret_cast<sockaddr*>(&bound), &size) == 0 &&
      ::getnameinfo(reinterpret_cast<sockaddr*>(&bound), size, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0) {
    own = text;
  }
  if (socket >= 0) ::close(socket);
  ::freeaddrinfo(found);
  return own;
}

Result<Listen> parse_listen(const std::string& text) {
  Listen listen;
  const auto colon = text.rfind(':');
  const bool port = colon != std::string::npos && text.find(']', colon) == std::string::npos;
  listen.host = port ? text.substr(0, colon) : text;
  if (listen.host.size() > 2 && listen.host.front() == '[' && listen.host.back() == ']')
    listen.host = listen.host.substr(1, listen.host.size() - 2);
  const auto number = support::parse_number(port ? text.substr(colon + 1) : "0", 0, 65535);
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST;
  addrinfo* found = nullptr;
  const bool address = listen.host.empty() || ::getaddrinfo(listen.host.c_str(), nullptr, &hints, &found) == 0;
  if (found != nullptr) ::freeaddrinfo(found);
  if (!number || !address)
    return fail(Code::invalid, base::escape(text), ": expected an address of this node, or address:port, such as 10.0.0.1:5480");
  listen.port = static_cast<std::uint16_t>(*number);
  return listen;
}

namespace {

constexpr std::chrono::seconds kStartPatience{10};

// As the service is to be started by the node, which may have another environment.
std::vector<std::string> service_argv(const support::CommonFlags& common, const std::string& data, const Listen& listen) {
  std::vector<std::string> argv{"/usr/bin/env"};
  for (const char* name : {"ZHT_SECRET_FILE", "ZHT_TLS_CERTIFICATE", "ZHT_TLS_KEY", "ZHT_TLS_CA"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    argv.push_back(std::string(name) + "=" + zht::absolute_credential(value).value_or(value));
  }
  argv.insert(argv.end(), {support::self_path(), "serve", "--data", data});
  std::string cluster = cluster_of(common);
  if (std::ifstream file(cluster); !cluster.empty() && file) {
    if (const auto path = support::absolute_path(cluster)) cluster = *path;
  }
  if (!cluster.empty()) argv.insert(argv.end(), {"--cluster", cluster});
  const bool v6 = listen.host.find(':') != std::string::npos;
  argv.insert(argv.end(), {"--listen", (v6 ? "[" + listen.host + "]" : listen.host) + ":" + std::to_string(listen.port)});
  return argv;
}

bool chunks_are_served(const std::string& data) { return support::service_pid(data, kChunkService).value_or(0) > 0; }

Result<void> serve_chunks(const support::CommonFlags& common, Listen listen) {
  static const support::Log log("fusionfs.serve");
  support::SignalWaiter signals({SIGTERM, SIGINT, SIGHUP});
  TRY_LET(data, support::data_folder(common.data));
  TRY(support::make_private_folder(data));
  TRY(support::make_private_folder(data + "/services"));
  TRY_LET(lock, support::hold_service(data, kChunkService));
  TRY_LET(client, zht::connect(common.client_options()));
  TRY_LET(chunks, ChunkStore::open(data + "/chunks"));
  TRY(chunks->begin_writing());
  Stores stores(*client, *chunks);
  TRY_LET(opener, stores.opener());
  if (listen.host.empty()) listen.host = own_address(cluster_around(common, data));
  const bool v6 = listen.host.find(':') != std::string::npos;
  const std::string host = (v6 ? "[" + listen.host + "]" : listen.host) + ":";
  Result<std::unique_ptr<ChunkServer>> server = fail(Code::unavailable, "not listening yet");
  if (listen.port == 0) {
    // Where it was until a moment ago: others still know that.
    const zht::Outcome before = client->call(zht::Operation::lookup(store_key(chunks->identity())));
    if (before.ok() && before.value.starts_with(host)) {
      if (const auto port = support::parse_number(before.value.substr(host.size()), 1, 65535))
        server = ChunkServer::start(*chunks, listen.host, static_cast<std::uint16_t>(*port), opener);
    }
  }
  if (!server) server = ChunkServer::start(*chunks, listen.host, listen.port, opener);
  if (!server) return server.error();
  stores.serve_at(host + std::to_string((*server)->port()));
  log.info("serving chunks", {{"address", host + std::to_string((*server)->port())}, {"chunk_store", chunks->identity()}});
  Repair repair(*client, *chunks, stores, {});
  auto sweeper = std::make_unique<Sweeper>(*client, *chunks, [&stores] { return stores.epoch(); },
                                           [](const std::string& text) { log.info(text); }, &repair);
  bool told = false;
  do {
    const auto done = stores.refresh();
    if (!done && !told) log.warn("chunk stores: " + done.error().message);
    told = !done;
  } while (!signals.wait(kStoreLife / 4));
  sweeper.reset();
  stores.leave();
  server->reset();
  chunks->end_writing();
  return {};
}

Result<int> stop_serving(const support::CommonFlags& common) {
  TRY_LET(data, support::data_folder(common.data));
  TRY(support::unregister_service(data, kChunkService));
  const auto pid = support::service_pid(data, kChunkService);
  if (!pid || *pid <= 0) {
    if (!common.quiet) std::fprintf(stderr, "fusionfs: nobody serves the chunks of %s\n", data.c_str());
    return 0;
  }
  for (const std::string& name : support::running_services(data)) {
    if (name != kChunkService && support::service_pid(data, name) == pid)
      return fail(Code::conflict, "the chunks of ", data, " are served by the mount of process ", *pid,
                  "; unmount it, or mount with -o noserve");
  }
  TRY(support::stop_process(*pid, std::chrono::seconds(10)));
  return 0;
}

}  // namespace

Result<void> keep_chunks_served(const support::CommonFlags& common, const std::string& data, const Listen& listen) {
  const support::Service wanted{kChunkService, service_argv(common, data, listen)};
  TRY_LET(all, support::list_services(data));
  const auto known = std::find_if(all.begin(), all.end(), [](const auto& each) { return each.name == kChunkService; });
  const bool same = known != all.end() && known->argv == wanted.argv;
  if (!same) {
    TRY(support::register_service(data, wanted));
    // What runs as it was told before makes way; the node starts it anew.
    const auto pid = support::service_pid(data, kChunkService);
    if (known != all.end() && pid && *pid > 0) TRY(support::stop_process(*pid, std::chrono::seconds(10)));
  }
  if (support::wait_until(kStartPatience, [&] { return chunks_are_served(data); })) return {};
  return fail(Code::unavailable, "the node in ", data, " has not started ", kChunkService, " within ", kStartPatience.count(),
              " s; see ", data, "/services/", kChunkService, ".log");
}

void add_serve_verb(support::Program& program) {
  auto& verb = program.verb("serve", "Gives this node's chunks to the other nodes, whether anything is mounted or not.",
                            {"fusionfs serve --keep --cluster 10.0.0.1:5470", "fusionfs serve --remove"});
  struct Arguments {
    std::string listen;
    bool keep = false, remove = false;
  };
  const auto arguments = std::make_shared<Arguments>();
  verb.options().add_option("--listen", arguments->listen,
                            "address[:port] of this node (default: as the cluster's first node sees it, any port)");
  auto* keep = verb.options().add_flag("--keep", arguments->keep,
                                       "have the node keep it running from now on, and return when it serves (a mount does that too)");
  verb.options().add_flag("--remove", arguments->remove, "end it, and have the node keep it no longer")->excludes(keep);
  verb.action([&program, arguments]() -> Result<int> {
    const support::CommonFlags& common = program.common();
    if (arguments->remove) return stop_serving(common);
    Listen listen;
    if (!arguments->listen.empty()) {
      TRY_LET(parsed, parse_listen(arguments->listen));
      listen = parsed;
    }
    if (!arguments->keep) {
      TRY(serve_chunks(common, listen));
      return 0;
    }
    TRY_LET(data, support::data_folder(common.data));
    if (!support::held_by(data + "/node.lock"))
      return fail(Code::unavailable, "no node runs in ", data, " that could keep it; start one: zht serve --data ", data);
    if (listen.host.empty()) listen.host = own_address(cluster_around(common, data));
    TRY(keep_chunks_served(common, data, listen));
    return 0;
  });
}

}  // namespace fusionfs

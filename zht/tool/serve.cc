#include "zht/tool/serve.h"

#include <signal.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <iostream>

#include "zht/client/local_node.h"
#include "zht/guard.h"
#include "zht/procedure.h"
#include "zht/server/node.h"
#include "zht/server/served.h"
#include "zht/server/witness.h"
#include "zht/support/config.h"
#include "zht/support/log.h"
#include "zht/support/paths.h"
#include "zht/support/process.h"
#include "zht/support/program.h"

namespace zht::tool {
namespace {

struct Flags {
  std::string config_file, listen, resp, http, instances, partitions, durability, sync_interval, max_value_size, secret_file, resp_tls, http_tls;
  std::string memory_limit;
  std::string join, nodes, advertise, rack, replicas, sync_replicas, failover;
  bool insecure = false, background = false, as_before = false, print_config = false, example_config = false;
};

base::Result<int> serve(const support::Program& program, const Flags& flags, const Procedures& procedures) {
  if (flags.example_config) {
    std::cout << server::example_config();
    return 0;
  }
  server::Settings settings;
  support::Config config;
  server::add_settings(config, settings);
  if (!flags.config_file.empty()) TRY(config.load_file(flags.config_file));
  TRY(config.load_environment());
  TRY_LET(data, support::data_folder(program.common().data));
  if (flags.as_before) TRY(server::recall_served(config, data));
  // A member of a cluster that does not listen is cut off from it: it does as it did, where nothing else is said.
  else if (flags.listen.empty() && settings.listen.empty() && server::is_member(data)) TRY(server::recall_served(config, data));
  const auto flag = [&](const char* key, const std::string& value) -> base::Result<void> {
    if (value.empty()) return {};
    return config.set(key, value, std::string("--") + key);
  };
  TRY(flag("listen", flags.listen));
  if (flags.instances == "0") return base::fail(base::Code::invalid, "--instances 0: a node has at least one instance");
  TRY(flag("resp", flags.resp));
  TRY(flag("http", flags.http));
  TRY(flag("instances", flags.instances));
  TRY(flag("partitions", flags.partitions));
  TRY(flag("durability", flags.durability));
  TRY(flag("sync_interval", flags.sync_interval));
  TRY(flag("max_value_size", flags.max_value_size));
  TRY(flag("memory_limit", flags.memory_limit));
  TRY(flag("secret_file", flags.secret_file));
  TRY(flag("resp_tls", flags.resp_tls));
  TRY(flag("http_tls", flags.http_tls));
  TRY(flag("join", flags.join));
  TRY(flag("nodes", flags.nodes));
  TRY(flag("advertise", flags.advertise));
  TRY(flag("rack", flags.rack));
  TRY(flag("replicas", flags.replicas));
  TRY(flag("sync_replicas", flags.sync_replicas));
  TRY(flag("failover", flags.failover));
  if (flags.insecure) TRY(config.set("insecure", "true", "--insecure"));
  if (flags.print_config) {
    std::cout << config.text();
    return 0;
  }
  settings.data = data;
  if (flags.background) {
    // The node will have another working folder.
    for (const char* name : {"ZHT_SECRET_FILE", "ZHT_TLS_CERTIFICATE", "ZHT_TLS_KEY", "ZHT_TLS_CA"})
      if (const char* set = std::getenv(name); set != nullptr) {
        TRY_LET(absolute, absolute_credential(set));
        ::setenv(name, absolute.c_str(), 1);
      }
    std::vector<std::string> more;
    const auto pass = [&](const char* name, const std::string& value) {
      if (!value.empty()) more.insert(more.end(), {name, value});
    };
    TRY_LET(absolute_config, flags.config_file.empty() ? base::Result<std::string>(std::string()) : support::absolute_path(flags.config_file));
    pass("--config", absolute_config);
    pass("--listen", flags.listen);
    pass("--resp", flags.resp);
    pass("--http", flags.http);
    pass("--instances", flags.instances);
    pass("--partitions", flags.partitions);
    pass("--durability", flags.durability);
    pass("--sync-interval", flags.sync_interval);
    pass("--max-value-size", flags.max_value_size);
    pass("--memory-limit", flags.memory_limit);
    TRY_LET(absolute_secret, absolute_credential(flags.secret_file));
    pass("--secret-file", absolute_secret);
    pass("--resp-tls", flags.resp_tls);
    pass("--http-tls", flags.http_tls);
    pass("--join", flags.join);
    TRY_LET(absolute_nodes, flags.nodes.empty() || flags.nodes.rfind("slurm:", 0) == 0 ? base::Result<std::string>(flags.nodes)
                                                                                        : support::absolute_path(flags.nodes));
    pass("--nodes", absolute_nodes);
    pass("--advertise", flags.advertise);
    pass("--rack", flags.rack);
    pass("--replicas", flags.replicas);
    pass("--sync-replicas", flags.sync_replicas);
    pass("--failover", flags.failover);
    if (flags.insecure) more.push_back("--insecure");
    if (flags.as_before) more.push_back("--as-before");
    if (const auto holder = support::held_by(data + "/node.lock"))
      return base::fail(base::Code::conflict, "a node already serves ", data, *holder > 0 ? " (pid " + std::to_string(*holder) + ")" : "",
                        "; stop it with: zht stop --data ", data);
    TRY(support::make_private_folder(data));
    TRY(client::start_node(data, more));
    if (!program.common().quiet) std::cerr << "zht: serving " << data << " in the background\n";
    return 0;
  }
  // Before any thread: the signals belong to the waiter.
  support::SignalWaiter signals({SIGINT, SIGTERM});
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGHUP, SIG_IGN);
  TRY(support::set_log({.level = support::level_from(program.common().verbosity,
                                                     program.common().quiet ? support::Level::error : support::Level::info)}));
  TRY(server::check_settings(settings));
  TRY_LET(witness, server::Witness::start([settings] { return server::credentials_of(settings); }));
  TRY_LET(node, server::Node::start(settings, procedures, std::move(witness), &signals));
  if (!node) return 0;
  // As another process with another working folder and environment has to be told it.
  for (std::string* one : {&settings.secret_file, &settings.tls_certificate, &settings.tls_key, &settings.tls_ca}) {
    TRY_LET(absolute, absolute_credential(*one));
    *one = absolute;
  }
  if (const auto kept = server::remember_served(config, data); !kept)
    support::Log("zht.serve").warn("who starts this node again will not know how it was served", {{"error", kept.error()}});
  node->run(signals);
  return 0;
}

}  // namespace

void add_serve(support::Program& program, const Procedures& procedures) {
  auto flags = std::make_shared<Flags>();
  auto& verb = program.verb("serve", "Runs a node: the store on this machine, for this user.",
                            {"zht serve", "zht serve --data /srv/zht --listen 127.0.0.1:5470 --durability always",
                             "zht serve --example-config > zht.toml && zht serve --config zht.toml"});
  auto& app = verb.options();
  app.add_option("--config", flags->config_file, "TOML file; --example-config prints one, which is the manual");
  app.add_option("--listen", flags->listen, "host:port for TCP; without it unix sockets in the data folder alone");
  app.add_option("--resp", flags->resp, "host:port for Redis clients");
  app.add_option("--http", flags->http, "host:port of /metrics and /healthz (default: none)");
  app.add_option("--instances", flags->instances, "threads that serve (new data folders only; default: one per core)");
  app.add_option("--partitions", flags->partitions, "slices of the ring (new data folders only; default: 1024)");
  app.add_option("--durability", flags->durability, "none, interval (default) or always");
  app.add_option("--sync-interval", flags->sync_interval, "of durability interval (default 1s)");
  app.add_option("--max-value-size", flags->max_value_size, "of one request (default 16MiB)");
  app.add_option("--memory-limit", flags->memory_limit, "of data and what is under way (default: half of what there is)");
  app.add_option("--secret-file", flags->secret_file,
                 "the cluster's secret: a file, none or munge (default: `secret` in the data folder, made where there is none; see zht secret)");
  app.add_option("--resp-tls", flags->resp_tls, "where tls_certificate etc. are set: auto (default: mutual), mutual, server, off");
  app.add_option("--http-tls", flags->http_tls, "the same for /metrics and /healthz");
  app.add_option("--join", flags->join, "host:port of a node of the cluster to belong to (new data folders only)");
  app.add_option("--nodes", flags->nodes, "file with the nodes of the cluster, host:port a line, or slurm:node[01-10]");
  app.add_option("--advertise", flags->advertise, "host under which others reach this node (default: that of --listen)");
  app.add_option("--rack", flags->rack, "copies are kept on different ones");
  app.add_option("--replicas", flags->replicas, "copies of each partition (default 3, as far as there are nodes)");
  app.add_option("--sync-replicas", flags->sync_replicas, "copies that have every acknowledged change (default 2)");
  app.add_option("--failover", flags->failover, "silence after which a copy takes over (default 400ms)");
  app.add_flag("--insecure", flags->insecure,
               "make and ask for no secret: whoever reaches a port, every user of this machine at least, may read and change everything");
  app.add_flag("--as-before", flags->as_before, "as the data folder was served last (served.toml there), whatever the environment says; so do "
                                                "clients and mounts that start a node which died");
  app.add_flag("--background", flags->background, "return when it serves; its log is node.log in the data folder");
  app.add_flag("--example-config", flags->example_config, "print a configuration file with every setting explained, and stop");
  app.add_flag("--print-config", flags->print_config, "print the settings, where each came from, and stop");
  verb.action([&program, &procedures, flags] { return serve(program, *flags, procedures); });
}

}  // namespace zht::tool

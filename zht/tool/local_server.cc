#include "zht/local_server.h"

#include "zht/client/control.h"
#include "zht/client/local_node.h"
#include "zht/server/node.h"
#include "zht/server/served.h"
#include "zht/support/config.h"
#include "zht/support/paths.h"
#include "zht/support/process.h"
#include "zht/tool/serve.h"
#include "zht/wire/zht.pb.h"

namespace zht {

Result<std::string> reachable_address(const std::string& data_folder) {
  TRY_LET(manager, client::manager_of(data_folder));
  TRY_LET(status, client::fetch_status(manager, std::chrono::seconds(5)));
  for (const wire::InstanceStatus& one : status.instances()) {
    const std::string host = one.tcp().substr(0, one.tcp().rfind(':'));
    if (!host.empty() && host != "0.0.0.0" && host != "[::]" && host != "::") return one.tcp();
  }
  return std::string();
}

LocalServer::LocalServer() = default;

Result<std::unique_ptr<LocalServer>> LocalServer::start(const std::string& data_folder) {
  server::Settings settings;
  support::Config config;
  server::add_settings(config, settings);
  TRY(config.load_environment());
  TRY_LET(folder, support::absolute_path(data_folder));
  TRY_LET(served_before, server::recall_served(config, folder));
  settings.data = folder;
  settings.mapped = true;  // most rounds hold one caller's change: the write(2) would be half of it
  TRY(support::make_private_folder(folder));
  // Clients that look for a node and start one take turns with us.
  auto turn = support::LockFile::acquire(folder + "/start.lock");
  if (!turn) return turn.error();
  std::unique_ptr<LocalServer> local(new LocalServer);
  tool::add_all_procedures(local->procedures_);
  TRY_LET(node, server::Node::start(settings, local->procedures_));
  local->node_ = std::move(node);
  if (!served_before) TRY(server::remember_served(config, folder));
  local->thread_ = std::thread([server = local.get()] {
    server->node_->run();
    const std::lock_guard lock(server->mutex_);
    server->ended_ = true;
    server->changed_.notify_all();
  });
  return local;
}

LocalServer::~LocalServer() {
  if (thread_.joinable()) {
    node_->leave();
    thread_.join();
  }
}

std::unique_ptr<Client> LocalServer::client() { return node_->client(); }
void LocalServer::stop() { node_->stop(); }

bool LocalServer::ended(Millis wait_for) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, wait_for, [this] { return ended_; });
  return ended_;
}

}  // namespace zht

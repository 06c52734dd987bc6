// The local node of a data folder inside this process, just as `zht serve` would be it: others of this user find it through
// the folder, it keeps the folder's services, knows every service's procedures, and `zht stop` ends it. For a service that
// lives next to its store and would else start a process for it (fusionfs mount).
//
//   auto server = zht::LocalServer::start(data_folder);      // conflict: there is one; zht::connect() to it
//   auto client = (*server)->client();                       // executes on the calling thread
//   ...
//   while (!(*server)->ended(200ms)) { ... }                 // goes on as a node
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "zht/client.h"
#include "zht/procedure.h"

namespace zht {

namespace server {
class Node;
}

// Where other machines' clients and nodes reach the running node of `data_folder`, "host:port" of one of its instances; empty: it
// is for this machine's users alone (no TCP, or any address without a name to reach it by). unavailable: no node runs there, or it
// does not answer within 5 s. Any thread.
Result<std::string> reachable_address(const std::string& data_folder);

class LocalServer {
 public:
  // With what the environment says (ZHT_DURABILITY and the others that zht serve knows). Signals are the caller's affair;
  // block them before. conflict: another process is the folder's node, or about to be. Other errors: as zht serve's.
  static Result<std::unique_ptr<LocalServer>> start(const std::string& data_folder);
  ~LocalServer();  // ends it when it has not ended; other services of the folder go on and start a node when they need one
  LocalServer(const LocalServer&) = delete;
  LocalServer& operator=(const LocalServer&) = delete;

  std::unique_ptr<Client> client();
  // As `zht stop`: ends the folder's services (SIGTERM to each, this process too if it is one), then the node. Any thread.
  void stop();
  bool ended(Millis wait_for);  // whether it has, after waiting that long at most

 private:
  LocalServer();
  Procedures procedures_;
  std::unique_ptr<server::Node> node_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace zht

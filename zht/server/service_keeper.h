// Keeps the services registered in the data folder running as children of the node (zht/support/service.h), and ends
// all that hold a lock there when the node stops: those it started and those started by hand, such as mounts.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

namespace zht::server {

class ServiceKeeper {
 public:
  struct Running {
    std::string name;
    pid_t pid = 0;
  };
  explicit ServiceKeeper(std::string data_folder) : data_folder_(std::move(data_folder)) {}
  // Reaps ended children, starts what should run and does not. One that keeps ending is started ever more rarely (up to
  // every 10 s). Call now and then; one thread.
  void look(std::chrono::steady_clock::time_point now);
  // SIGTERM to every holder of a service lock, SIGKILL to those still there after 10 s.
  void stop_all();
  std::vector<Running> running() const;

 private:
  struct Child {
    pid_t pid = 0;
    int failures = 0;  // in a row, each within 5 s of its start
    std::chrono::steady_clock::time_point started{}, not_before{};
  };
  std::string data_folder_;
  std::map<std::string, Child> children_;
};

}  // namespace zht::server

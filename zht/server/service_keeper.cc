#include "zht/server/service_keeper.h"

#include <signal.h>
#include <sys/wait.h>

#include <algorithm>

#include "zht/support/log.h"
#include "zht/support/process.h"
#include "zht/support/service.h"

namespace zht::server {

using namespace std::chrono_literals;

namespace {
const support::Log& logger() {
  static const support::Log log("zht.services");
  return log;
}
}  // namespace

void ServiceKeeper::look(std::chrono::steady_clock::time_point now) {
  for (auto& [name, child] : children_) {
    int status = 0;
    if (child.pid == 0 || ::waitpid(child.pid, &status, WNOHANG) != child.pid) continue;
    const bool quick = now - child.started < 5s;
    child.failures = quick ? child.failures + 1 : 0;
    child.not_before = now + std::min<std::chrono::milliseconds>(100ms * (1 << std::min(child.failures, 7)), 10'000ms);
    logger().warn("service ended", {{"service", name},
                                    {"pid", child.pid},
                                    {WIFSIGNALED(status) ? "signal" : "exit", WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status)}});
    child.pid = 0;
  }
  const auto services = support::list_services(data_folder_);
  if (!services) return;
  for (const support::Service& service : *services) {
    Child& child = children_[service.name];
    if (child.pid != 0 || now < child.not_before) continue;
    if (support::service_pid(data_folder_, service.name)) continue;  // someone else's child holds it; fine
    auto started = support::spawn_child(service.argv, data_folder_ + "/services/" + service.name + ".log", false);
    child.started = now;
    if (!started) {
      child.failures++;
      child.not_before = now + 10s;
      logger().warn("service cannot be started", {{"service", service.name}, {"error", started.error()}});
      continue;
    }
    child.pid = *started;
    logger().info("service started", {{"service", service.name}, {"pid", child.pid}});
  }
  std::erase_if(children_, [&](const auto& one) {
    return one.second.pid == 0 &&
           std::none_of(services->begin(), services->end(), [&](const auto& service) { return service.name == one.first; });
  });
}

void ServiceKeeper::stop_all() {
  std::vector<pid_t> pids;
  for (const std::string& name : support::running_services(data_folder_))
    if (const auto pid = support::service_pid(data_folder_, name); pid && *pid > 1) pids.push_back(*pid);
  for (const auto& [name, child] : children_)
    if (child.pid != 0 && std::find(pids.begin(), pids.end(), child.pid) == pids.end()) pids.push_back(child.pid);
  for (pid_t pid : pids) ::kill(pid, SIGTERM);
  const auto reap = [&] {
    for (auto& [name, child] : children_)
      if (child.pid != 0 && ::waitpid(child.pid, nullptr, WNOHANG) == child.pid) child.pid = 0;
  };
  const auto gone = [&] {
    reap();
    return std::none_of(pids.begin(), pids.end(), [](pid_t pid) { return support::process_exists(pid); });
  };
  if (support::wait_until(10s, gone)) return;
  for (pid_t pid : pids)
    if (support::process_exists(pid)) ::kill(pid, SIGKILL);
  support::wait_until(2s, gone);
}

std::vector<ServiceKeeper::Running> ServiceKeeper::running() const {
  std::vector<Running> out;
  for (const std::string& name : support::running_services(data_folder_))
    out.push_back({name, support::service_pid(data_folder_, name).value_or(0)});
  return out;
}

}  // namespace zht::server

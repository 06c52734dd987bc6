// The node's figures as Prometheus reads them, made from the same status that `zht status` shows.
#pragma once

#include <cstdint>
#include <string>

namespace zht::wire {
class Status;
}

namespace zht::server {

std::string metrics_text(const wire::Status& status);
// Empty: well; else what is wrong, a line each.
std::string what_ails(const wire::Status& status);
// What of the cluster's data is not safe, in a line; empty: nothing. No reason to send a node no requests.
std::string what_is_at_risk(const wire::Status& status);

// Of this process.
struct ProcessFigures {
  std::uint64_t resident_bytes = 0, open_files = 0;
  double cpu_seconds = 0;
};
ProcessFigures process_figures();

}  // namespace zht::server

// What `zht top` shows: two looks at a node, and what happened in between. No terminal here.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "zht/support/output.h"
#include "zht/wire/zht.pb.h"

namespace zht::tool {

// `before` empty, or of an earlier life of the node: everything since its start. seconds: between the two.
struct TopView {
  TopView(const std::optional<wire::Status>& before, const wire::Status& now, double seconds);

  struct Times {  // microseconds, to 6%
    double rate = 0, p50 = 0, p99 = 0, p999 = 0;
    std::uint64_t count = 0;  // since the start
  };
  struct Row {
    std::string name;
    Times times;
    const wire::InstanceStatus* instance = nullptr;  // of an instance's row
  };
  // Lines of the screen, none longer than `width`.
  std::vector<std::string> lines(std::size_t width) const;
  nlohmann::json json() const;

  wire::Status now;
  double seconds = 0, cpu_percent = 0, resp_rate = 0;
  bool since_start = false;
  Times all;
  std::vector<Row> instances, operations;
};

// How the copies of what each instance leads keep up with it.
support::Table copies_table(const wire::Status& status);

}  // namespace zht::tool

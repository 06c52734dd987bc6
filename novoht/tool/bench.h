// `novoht bench`: what a workload costs on this machine, in this folder.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "novoht/shared_table.h"

namespace novoht::tool {

struct BenchPlan {
  std::string folder;                    // absent or empty; made, and removed afterwards unless `keep`
  std::vector<std::string> workloads;    // of: insert overwrite get append mixed remove; in this order
  std::uint64_t count = 1'000'000;       // keys, and changes or lookups of each workload
  std::size_t key_size = 48, value_size = 24;
  std::uint32_t threads = 1;             // 1: a Store; more: a SharedTable
  std::uint64_t batch = 1;               // changes in one call
  Durability durability = Durability::none;
  bool keep = false;
  bool progress = false;
};

// Runs it and checks every answer. One object: the plan, then a row for each workload (ops_per_s, us_per_op, p50_us, p99_us,
// p999_us, max_us), memory and disk. Errors: invalid (the folder holds something; sizes that cannot be), the store's;
// corrupt where an answer was wrong.
Result<nlohmann::ordered_json> bench(const BenchPlan& plan);

}  // namespace novoht::tool

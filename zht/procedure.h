// Procedures: functions that a service runs inside the store, on the keys of one hash tag, where a client-side loop of
// lookup and cswap would collapse under contention. Source: [ZHT] 2.1 and algorithm 2 (cswap runs update() at the server).
//
// A procedure is deterministic: what it does depends only on the keys it reads, its arguments and the request's time.
// It runs on the primary between two requests; what is logged and replicated is the batch of changes it made. When it
// returns an error nothing is changed and the caller gets that error.
//
//   registry.add("counter.add", [](Transaction& tables, Bytes key, Bytes arguments) -> Result<std::string> {
//     const auto old = tables.lookup(key);
//     std::string sum = std::to_string(to_number(old ? old->value : "0") + to_number(arguments));
//     TRY(tables.insert(key, sum));
//     return sum;
//   });
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "zht/types.h"

namespace zht {

// The keys of one hash tag as one request sees them: its own changes included, nobody else's in between. A key with
// another tag than the request's is refused (invalid); past the limits (10,000 steps, 64 MiB written) no_space.
class Transaction {
 public:
  struct Found {
    std::string value;  // the bytes asked for
    Version version = 0;  // 0: changed by this very request
    std::uint64_t size = 0;
    std::uint32_t fragment_count = 0;
    std::vector<std::uint32_t> fragments;  // sizes of those inside `value`, in order, when there is more than one
    base::WallTime expires = base::kNever;
  };
  virtual ~Transaction() = default;
  virtual base::WallTime now() const = 0;  // the request's time; the only clock there is
  virtual std::optional<Found> lookup(Bytes key, Range range = {}) = 0;  // costs the bytes asked for, not the value's size
  virtual Result<void> insert(Bytes key, Bytes value, std::chrono::milliseconds ttl = {}) = 0;
  virtual Result<void> append(Bytes key, Bytes value) = 0;
  virtual Result<void> remove(Bytes key) = 0;  // fine when absent
};

using Procedure = std::function<Result<std::string>(Transaction& tables, Bytes key, Bytes arguments)>;

class Procedures {
 public:
  void add(std::string name, Procedure procedure);
  const Procedure* find(std::string_view name) const;

 private:
  std::map<std::string, Procedure, std::less<>> procedures_;
};

// The general ones every store has. Arguments and results are decimal numbers or byte strings:
//   add        key holds a decimal integer (absent: 0); argument: what to add; result: the sum
//   max        argument replaces the integer when it is greater; result: the greater
//   set_if     argument: u32 length, expected bytes, new bytes; inserts when equal; result: "1" or "0"
//   list_take  removes up to <argument> fragments from the front of the value; result: for each u32 length, bytes
void add_general_procedures(Procedures& procedures);

}  // namespace zht

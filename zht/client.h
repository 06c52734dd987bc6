// A client of the store: every operation is one request to the instance that owns the key, and one reply.
//
//   TRY_LET(client, zht::connect({}));                       // the local node, started when none runs
//   TRY(client->insert("greeting", "hello"));
//   TRY_LET(value, client->lookup("greeting"));              // value.value == "hello"
//   TRY_LET(swap, client->cswap("greeting", Condition::at_version(value.version), "hi"));
//   if (!swap.swapped) ... swap.current ...
//
// Safe to use from any thread. A request is retried (same identity: it executes once) until its deadline; `timeout`
// means it may have happened, every other error that it did not. Source: [ZHT] 2.1, 2.3, 2.6.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "zht/types.h"

namespace zht {

using Millis = std::chrono::milliseconds;

struct Value {
  std::string value;
  Version version = 0;
  std::vector<std::uint32_t> fragments;  // sizes; empty when there is one fragment
  std::uint64_t size = 0;                // of the whole value
  std::uint64_t offset = 0;              // of value[0] within it
};
struct Appended {
  std::uint64_t size = 0;  // of the value now
  std::uint32_t fragment_index = 0;
  Version version = 0;
};
struct Swap {
  bool swapped = false;
  Version version = 0;                 // new when swapped, else the current one (0: absent)
  std::optional<std::string> current;  // what is there instead, when not swapped; nothing: absent
};

// Called once, on one of the client's own threads. Must not block; may submit further operations.
using Completion = std::function<void(Outcome)>;

class Client {
 public:
  virtual ~Client() = default;

  // The one entry: everything else is written in terms of it. `completion` is always called, exactly once, at the
  // latest a little after `timeout`. An invalid operation completes at once with `invalid`. For callback, `timeout` is
  // how long to wait for the condition. timeout 0: the client's default.
  virtual void submit(Operation operation, Completion completion, Millis timeout = {}) = 0;
  virtual std::uint32_t partition_count() const = 0;

  // Blocking forms. Not to be called from a completion.
  virtual Outcome call(Operation operation, Millis timeout = {});
  virtual std::vector<Outcome> call_all(std::vector<Operation> operations, Millis timeout = {});  // pipelined; answers in order

  Result<Version> insert(Bytes key, Bytes value, Millis ttl = {});
  Result<Version> insert_new(Bytes key, Bytes value, Millis ttl = {});  // conflict: already there
  Result<Value> lookup(Bytes key, Range range = {});                    // not_found
  Result<Version> remove(Bytes key);                                    // not_found
  Result<Appended> append(Bytes key, Bytes value, std::uint64_t limit = 0);
  Result<Swap> cswap(Bytes key, Condition expected, Bytes desired, Millis ttl = {});
  Result<Swap> cswap_remove(Bytes key, Condition expected);
  // Waits until `condition` holds, for `timeout` at most. Value::version is 0 when the key is absent.
  Result<Value> callback(Bytes key, Condition condition, Millis timeout, Range range = {});
  Result<std::string> update(Bytes key, std::string_view procedure, Bytes arguments);
  // All or nothing. On failure the error names the operation; use call() to see what it found.
  Result<std::vector<Outcome>> batch(std::vector<Operation> operations);
};

struct ClientOptions {
  // Where the cluster is: "host:port[,host:port...]" or the path of a file with one address a line. Empty: the value of
  // $ZHT_CLUSTER; that empty too: the local node of `data_folder`, started in the background when none runs.
  std::string cluster;
  std::string data_folder;            // of the local node; empty: $ZHT_DATA, else $XDG_DATA_HOME/zht, else ~/.local/share/zht
  Millis timeout{10'000};             // default for an operation, retries included
  Millis connect_timeout{2'000};
  bool quiet = false;                // do not say on stderr that a node was started
  bool start_node = true;             // start the local node when none runs (also when it dies under a running client)
  std::size_t max_in_flight = 65'536;  // operations; one more waits for room (submit blocks, except on a client thread)
};

// Connects and fetches the membership table. unavailable: nobody answers (the message names the addresses and, for a
// local node that would not start, the end of its log); invalid: an address that cannot be parsed.
Result<std::unique_ptr<Client>> connect(ClientOptions options);

}  // namespace zht

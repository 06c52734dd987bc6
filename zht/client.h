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
#include <utility>
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

// What an outcome says, typed as the blocking forms below answer.
Result<Version> version_of(Outcome outcome);
Result<Value> value_of(Outcome outcome);
Result<Appended> appended_of(Outcome outcome);
Result<Swap> swap_of(Outcome outcome);

// Called once, on one of the client's own threads. Must not block; may submit further operations. What it throws ends the
// process.
using Completion = std::function<void(Outcome)>;
using EachCompletion = std::function<void(std::size_t index, Outcome)>;  // as Completion, once for each index
using AllCompletion = std::function<void(std::vector<Outcome>)>;

// A request that was begun, for cancel(). 0: none.
using RequestNumber = std::uint64_t;

// Messages, whatever their size: in a settled cluster every operation is one request and one reply, and after a change of the
// membership table one redirect at most.
struct ClientCounts {
  std::uint64_t requests = 0, replies = 0;
  std::uint64_t redirects = 0;  // of the replies: refused by who does not lead the partition (any more)
};

// Threads: everything may be called from any thread at any time, except that nothing may be under way in another thread
// while the client is destroyed; destruction answers what was submitted and not yet answered (see submit).
//
// Errors, of every operation (base::Code; STYLE of the whole project, one meaning each):
//   not_found    lookup, remove: no such key
//   conflict     insert_new, conditions, batch: the condition did not hold; nothing changed
//   invalid      this operation can never work; the message names the field, its value and the range. Nothing was sent
//                where the client can tell by itself
//   unavailable  nobody answered, or the operation was cancelled, and certainly nothing changed; the same call may succeed
//                later
//   timeout      no definite answer in time: a change MAY have happened. callback: the condition did not hold in time
//   no_space     the store's disk, or a bound (append's limit, watchers of a key), is full; nothing changed
//   corrupt, io  stored bytes are wrong; the store's disk failed. It goes on reading
//   unsupported  the node speaks a newer protocol than this build, or a field of the request is too new for it
//
// One operation is linearizable per key, a batch per partition. Operations submitted one after the other on one key from
// one thread execute in that order unless the key's instance dies or changes meanwhile; wait for the first answer where
// the order matters. Source: [ZHT] 2.1 (operations), 2.3 (retries, client-side state), 2.6 (connection cache).
class Client {
 public:
  virtual ~Client() = default;

  // The one entry: everything else is written in terms of it. `completion` is always called, exactly once, at the
  // latest a little after `timeout`. An invalid operation completes at once with `invalid`. For callback, `timeout` is
  // how long to wait for the condition. timeout 0: the client's default. Blocks only while ClientOptions::max_in_flight
  // operations wait for their answers, and never inside a completion.
  virtual void submit(Operation operation, Completion completion, Millis timeout = {}) = 0;
  virtual std::uint32_t partition_count() const = 0;
  // Since it was made. Any thread.
  virtual ClientCounts counts() const { return {}; }

  // As submit, with a number for cancel(). A client that cannot cancel returns 0.
  virtual RequestNumber start(Operation operation, Completion completion, Millis timeout = {});
  // Ends the request early, unless it has its answer: the completion is called with `unavailable` when nothing of it can
  // have happened, `timeout` when it may have (it was sent, and may change something), and for a callback. Does not wait
  // for that. An unknown number, or that of an ended request, is fine.
  virtual void cancel(RequestNumber request);
  // Many at once: `completion` is called for each, with its index. Each is a request of its own: some may succeed and
  // others fail. What goes to one instance leaves in one write.
  virtual void submit_each(std::vector<Operation> operations, EachCompletion completion, Millis timeout = {});
  // The same with one completion, when the last is answered; the answers are in order.
  void submit_all(std::vector<Operation> operations, AllCompletion completion, Millis timeout = {});

  // Blocking forms. Not to be called from a completion. A call that need not be retried is sent and received on the
  // calling thread; call_all waits for the last answer.
  virtual Outcome call(Operation operation, Millis timeout = {});
  virtual std::vector<Outcome> call_all(std::vector<Operation> operations, Millis timeout = {});  // as submit_all; answers in order

  // call() where the answer can be had on this thread without waiting for anything but the instance, for 2 s at most; else
  // nothing is returned and it goes on as submit() would. For event loops and for languages whose interrupts must get
  // through. `completion` is called only in the latter case.
  virtual std::optional<Outcome> call_or_submit(Operation operation, Completion completion, Millis timeout = {});

  // submit_each() for event loops: what this process's own node executes is executed on this thread, now, and answered before it
  // returns, but for what may only be shown when it is on the disk (durability always) and what other nodes have a part in. That
  // is answered later on any thread, where `completion` must only hand on. `waits`: rather wait here for the disk: for a lone
  // caller that is the shortest.
  virtual void call_each(std::vector<Operation> operations, EachCompletion completion, bool waits = false);

  // Typed. Keys are 1..kMaxKeySize bytes, any bytes; values 0..max_value_size (16 MiB unless the node was told otherwise).
  // Each waits for the client's default time at most.

  // Sets the value. ttl: after so many milliseconds the key is absent; 0: it lives for ever. Returns the key's new version.
  virtual Result<Version> insert(Bytes key, Bytes value, Millis ttl = {});
  Result<Version> insert_new(Bytes key, Bytes value, Millis ttl = {});  // conflict: already there
  // The value or the part of it that `range` names (past its end: nothing), with the sizes of its fragments.
  virtual Result<Value> lookup(Bytes key, Range range = {});            // not_found
  // Of any copy, which may be old (Operation::lookup_eventual): served also while nobody leads the partition.
  Result<Value> lookup_eventual(Bytes key, Version at_least = 0, Range range = {});  // not_found
  Result<Version> remove(Bytes key);                                    // not_found
  // Adds a fragment at the end (an absent key is made); constant time whatever the value's size. no_space: it would grow
  // past `limit` bytes (0: no such limit).
  Result<Appended> append(Bytes key, Bytes value, std::uint64_t limit = 0);
  // Sets the value if `expected` holds (see Condition). A condition that does not hold is a result, not an error.
  Result<Swap> cswap(Bytes key, Condition expected, Bytes desired, Millis ttl = {});
  Result<Swap> cswap_remove(Bytes key, Condition expected);
  // Waits until `condition` holds, for `timeout` at most. Evaluated first when it is registered, so that no change is
  // missed; registered anew when the node dies meanwhile. Value::version is 0 when the key is absent.
  Result<Value> callback(Bytes key, Condition condition, Millis timeout, Range range = {});
  // Runs a procedure (zht/procedure.h) at the instance that owns `key`, atomically. invalid: no such procedure there.
  Result<std::string> update(Bytes key, std::string_view procedure, Bytes arguments);
  // All or nothing, on keys of one partition (give them one {tag}); at most kMaxBatchSize, and a value's size in all. On
  // failure the error names the operation; use call() to see what it found.
  Result<std::vector<Outcome>> batch(std::vector<Operation> operations);

  // Multi-key: each key by itself (no atomicity between them), all at once: one write to each instance that owns some of
  // them. One result per key, in order.
  virtual std::vector<Result<Value>> lookup_many(std::vector<std::string> keys);
  virtual std::vector<Result<Version>> insert_many(std::vector<std::pair<std::string, std::string>> pairs, Millis ttl = {});
  std::vector<Result<Version>> remove_many(std::vector<std::string> keys);

  // Every key that begins with `prefix`, a page at a time: entry(key, version, size) on the calling thread, in no order;
  // false from it ends the scan. A key that is there all the while is told at least once. Each page is one request to one
  // partition; `page` entries of them at most, 1..10000.
  Result<void> scan(std::string prefix, const std::function<bool(const ScanEntry& entry)>& entry, std::uint64_t page = 1000);
};

struct ClientOptions {
  // Where the cluster is: "host:port[,host:port...]" or the path of a file with one address a line. Empty: the local node
  // of `data_folder`, started in the background when none runs; with that empty too, what $ZHT_CLUSTER names comes before it.
  std::string cluster;
  std::string data_folder;            // of the local node; empty: $ZHT_DATA, else $XDG_DATA_HOME/zht, else ~/.local/share/zht
  Millis timeout{10'000};             // default for an operation, retries included
  Millis connect_timeout{2'000};
  bool quiet = false;                // do not say on stderr that a node was started
  bool start_node = true;             // start the local node when none runs (also when it dies under a running client)
  // Operations, callbacks aside; one more waits for room (submit blocks, except on a client thread).
  std::size_t max_in_flight = 65'536;
  std::size_t max_waiters = 1'048'576;  // callbacks; one more is refused (no_space)
  // Idle connections that are kept, of blocking calls and of submit() each, over all instances; past it the one unused for
  // longest is closed. At least 1. (A blocking call opens one of its own where all are in use, up to 64 an instance.)
  std::size_t max_connections = 256;
  // Blocking calls whose request fits a datagram go as one, where the instance is reached by TCP and takes them: less
  // latency than a connection has. What is lost or does not fit goes over a connection.
  bool datagrams = false;
};

// Connects and fetches the membership table, within connect_timeout (a local node that has to start or recover first: within
// two minutes, or `timeout` where that was set). unavailable: nobody answers (the message names the addresses and, for a
// local node that would not start, the end of its log); invalid: an address that cannot be parsed.
//
// A process that forks must not use a client of the parent's in the child: its threads are not there. Connect anew.
Result<std::unique_ptr<Client>> connect(ClientOptions options);

}  // namespace zht

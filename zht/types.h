// The words of the key-value API: operations, what they answer, and their limits. DESIGN: operations are values, so that
// a client can send them, a batch can hold them, a test can record them.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "novoht/base/bytes.h"
#include "novoht/base/clock.h"
#include "novoht/base/result.h"

namespace zht {

using base::Bytes;
using base::Code;
using base::Error;
using base::Result;

enum class PartitionId : std::uint32_t {};
enum class InstanceId : std::uint32_t {};
enum class Epoch : std::uint64_t {};
using Version = std::uint64_t;  // of a key: grows with every change, also across remove and insert; 0: no version

inline constexpr std::size_t kMaxKeySize = 65'535;                         // bytes; at least 1
inline constexpr std::size_t kMaxValueSize = std::size_t{16} << 20;        // bytes of one request's value, default
inline constexpr std::size_t kMaxBatchSize = 4096;                         // operations
inline constexpr std::uint32_t kDefaultPartitionCount = 1024;

// The part of `key` that decides where it lives: between the braces of a leading "{tag}", else the whole key. An empty
// or unclosed tag does not count.
Bytes hash_tag(Bytes key);
std::uint64_t ring_position(Bytes key);                       // hash of hash_tag(key)
PartitionId partition_of(Bytes key, std::uint32_t partition_count);  // contiguous ranges of the ring

enum class OpKind : std::uint8_t { insert = 1, lookup, remove, append, cswap, callback, update, batch, scan };

// What a compare-and-swap, an insert or a check expects to find, and what a callback waits for.
struct Condition {
  enum class Kind : std::uint8_t {
    none = 0,
    absent = 1,
    present = 2,
    value = 3,          // equals `value`
    version = 4,        // equals `version`
    version_after = 5,  // the key's last change is later than `version`; a removal counts as a change
  };
  Kind kind = Kind::none;
  std::string value;
  Version version = 0;
  static Condition absent() { return {Kind::absent, {}, 0}; }
  static Condition present() { return {Kind::present, {}, 0}; }
  static Condition equals(std::string v) { return {Kind::value, std::move(v), 0}; }
  static Condition at_version(Version v) { return {Kind::version, {}, v}; }
  static Condition after_version(Version v) { return {Kind::version_after, {}, v}; }
};

// Which part of a value a lookup returns.
struct Range {
  enum class Kind : std::uint8_t { whole = 0, bytes = 1, tail = 2, nothing = 3 };
  Kind kind = Kind::whole;
  std::uint64_t offset = 0;  // bytes: first byte
  std::uint64_t size = 0;    // bytes: how many at most; tail: how many of the last fragments
  static Range whole() { return {}; }
  static Range bytes(std::uint64_t offset, std::uint64_t size) { return {Kind::bytes, offset, size}; }
  static Range tail(std::uint64_t fragments) { return {Kind::tail, 0, fragments}; }
  static Range nothing() { return {Kind::nothing, 0, 0}; }  // version and size only
};

// What a cswap leaves behind when its condition holds.
enum class Desired : std::uint8_t { value = 0, remove = 1, keep = 2 };  // keep: only check

struct Operation {
  OpKind kind = OpKind::lookup;
  std::string key;    // update: the key or "{tag}" that decides the partition; batch: empty
  std::string value;  // insert, append, cswap: the new value; update: the arguments
  Condition condition;                 // insert: none or absent; cswap, callback: any; remove, append: none or version, present;
                                       // an eventual lookup: none or version_after, see lookup_eventual
  Desired desired = Desired::value;    // cswap
  std::chrono::milliseconds ttl{0};    // insert, cswap, append to an absent key; 0: lives for ever
  std::uint64_t limit = 0;             // append: refuse (no_space) to grow past this many bytes; 0: past what a reply holds, 63 MiB
                                       // scan: entries a page at most, 1..10000; 0: 1000
  bool missing_ok = false;             // remove: an absent key is fine
  bool eventual = false;               // lookup: any copy may answer, also with what is old
  Range range;                         // lookup, callback
  std::string procedure;               // update
  std::vector<Operation> operations;   // batch: on keys of one partition; no callback, batch or scan inside
  PartitionId partition{0};            // scan
  std::uint64_t cursor = 0;            // scan: 0 to begin; `key` is the prefix

  static Operation insert(std::string key, std::string value, std::chrono::milliseconds ttl = {});
  static Operation insert_new(std::string key, std::string value, std::chrono::milliseconds ttl = {});  // conflict when present
  static Operation lookup(std::string key, Range range = {});
  // Answered by any copy of the partition from what it knows to be committed: it may be old, or not there yet, but was true once.
  // Only a copy answers that has seen the change of its partition with version `at_least`: who gives the newest version that an
  // operation on the partition brought him never goes back. 0: any.
  static Operation lookup_eventual(std::string key, Version at_least = 0, Range range = {});
  static Operation remove(std::string key, bool missing_ok = false);
  static Operation append(std::string key, std::string value, std::uint64_t limit = 0);
  static Operation cswap(std::string key, Condition expected, std::string desired, std::chrono::milliseconds ttl = {});
  static Operation cswap_remove(std::string key, Condition expected);
  static Operation check(std::string key, Condition expected);  // a cswap that changes nothing
  static Operation callback(std::string key, Condition condition, Range range = {});
  static Operation update(std::string key, std::string procedure, std::string arguments);
  static Operation batch(std::vector<Operation> operations);
  static Operation scan(PartitionId partition, std::uint64_t cursor = 0, std::string prefix = {}, std::uint64_t limit = 0);
};

struct ScanEntry {
  std::string key;
  Version version = 0;
  std::uint64_t size = 0;
};

// The answer to one operation.
//   ok         done; see the fields
//   conflict   cswap, insert_new, conditions: nothing changed; `present`, `value` and `version` say what is there now
//   not_found  lookup, remove: absent; `version` is that of its removal where known
//   timeout    a change may have happened; callback: the condition did not hold in time
struct Outcome {
  Code code = Code::ok;
  std::string message;                        // of an error
  bool present = false;                       // the key exists (after the operation; for conflict: now)
  std::string value;                          // lookup, callback, conflict: bytes asked for; update: the result
  Version version = 0;                        // of the key
  std::uint64_t size = 0;                     // of the whole value
  std::uint32_t fragment_count = 0;           // of the whole value
  std::uint64_t offset = 0;                   // where `value` starts within the whole value (range, tail)
  std::vector<std::uint32_t> fragments;       // lookup: sizes of the fragments inside `value`, in order, when there is
                                              // more than one; a byte range cuts its first and last
  std::uint32_t fragment_index = 0;           // append: this fragment's number, from 0
  std::vector<Outcome> outcomes;              // batch: one each, on success; on failure those up to the failed one
  std::uint32_t failed_index = 0;             // batch: which operation failed, when code is not ok
  std::vector<ScanEntry> entries;             // scan
  std::uint64_t cursor = 0;                   // scan: where to go on; 0: that was all

  bool ok() const { return code == Code::ok; }
  Error error() const { return Error{code, message}; }
};

// The partition an operation goes to; of one that is not valid, some partition.
PartitionId partition_of(const Operation& operation, std::uint32_t partition_count);

// Says what is wrong with an operation before it is sent anywhere: sizes, missing fields, a batch that spans
// partitions. invalid, naming the field and the numbers.
Result<void> validate(const Operation& operation, std::uint32_t partition_count, std::size_t max_value_size = kMaxValueSize);

}  // namespace zht

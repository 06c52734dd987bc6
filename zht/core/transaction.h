// One request's view of a partition: the store's keys with the request's own changes on top. Nothing reaches the store
// until the request is known to succeed; then changes() goes to it as one record.
//
// Byte strings given to insert(), append() and remove() are borrowed until the transaction ends; keep() makes an owned
// copy for those that do not live as long (a procedure's).
#pragma once

#include <chrono>
#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include "novoht/store.h"
#include "zht/procedure.h"
#include "zht/wire/frame.h"

namespace zht::core {

// Times to live are cut to this: 31 years, so that no sum of times overflows.
inline constexpr std::chrono::milliseconds kMaxTtl{1'000'000'000'000};

inline constexpr std::size_t kMaxSteps = 10'000;                              // of one procedure or batch
// What one answer can hold of a value: its bytes, and four for each fragment. No value grows past it by appends.
inline constexpr std::size_t kMaxReplyBytes = wire::kMaxFrameSize - (std::size_t{1} << 20);
inline constexpr std::size_t kMaxWrittenBytes = std::size_t{64} << 20;        // by one procedure or batch

// One key as the request sees it now.
struct Seen {
  bool present = false;
  bool changed = false;  // by this request
  Version version = 0;   // 0 when absent or changed
  std::uint64_t size = 0;
  std::uint32_t fragment_count = 0;
  base::WallTime expires = base::kNever;
  std::optional<novoht::ValueView> stored;  // the part that is in the store, when it counts
  std::vector<Bytes> own;                   // fragments this request put on top, in order

  // Appends bytes [offset, offset + count) of the value.
  Result<void> read(std::uint64_t offset, std::uint64_t count, std::string& out) const;
  std::uint64_t fragment_end(std::uint32_t index) const;
  Result<bool> equals(Bytes value) const;
};

// The bytes of a value that `range` asks for, where they start, and the sizes of the fragments among them (when the
// value has more than one).
struct Slice {
  std::uint64_t offset = 0, size = 0;
  std::vector<std::uint32_t> fragments;
};
Slice slice_of(const Seen& seen, const Range& range);

class PartitionTransaction final : public Transaction {
 public:
  PartitionTransaction(const novoht::Store& store, base::WallTime now) : store_(store), now_(now) {}

  // Begins a request on `table`. `tag`: the hash tag every key must have; empty: any (the caller checked).
  void begin(novoht::TableId table, Bytes tag);
  Seen see(Bytes key) const;
  Result<void> put(novoht::Change change);  // borrowed; no_space past the limits
  Bytes keep(Bytes bytes);
  const std::vector<novoht::Change>& changes() const { return changes_; }
  void set_now(base::WallTime now) { now_ = now; }

  // What procedures see.
  base::WallTime now() const override { return now_; }
  std::optional<Found> lookup(Bytes key, Range range) override;
  Result<void> insert(Bytes key, Bytes value, std::chrono::milliseconds ttl) override;
  Result<void> append(Bytes key, Bytes value) override;
  Result<void> remove(Bytes key) override;

 private:
  Result<void> check_key(Bytes key) const;

  const novoht::Store& store_;
  base::WallTime now_;
  novoht::TableId table_{0};
  Bytes tag_;
  std::size_t steps_ = 0, written_ = 0;
  std::vector<novoht::Change> changes_;
  std::unordered_map<Bytes, std::vector<std::uint32_t>> by_key_;  // changes by key; built from the second change on
  std::deque<std::string> owned_;
  std::optional<Error> failed_;  // a read that failed inside a procedure: the request fails, whatever it returns

 public:
  const std::optional<Error>& failed() const { return failed_; }
};

}  // namespace zht::core

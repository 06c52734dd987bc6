// Reading a table's records back from a log that is being written: novoht/snapshot.h's LogTail.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "novoht/core/log.h"
#include "novoht/snapshot.h"

namespace novoht::core {

// What LogTail, Export and Import need of the store they belong to.
class SnapshotHost {
 public:
  virtual ~SnapshotHost() = default;
  virtual Log& log() = 0;
  virtual std::uint64_t store_id() const = 0;
  // The log keeps records from `position` on until let go.
  virtual void hold(Position position) = 0;
  virtual void let_go(Position position) = 0;
  // Another number for each table that ever had this id; makes the table when absent.
  virtual std::uint64_t birth_of(TableId table) = 0;
};

// Holds a position, until it moves on or goes.
class Held {
 public:
  Held(SnapshotHost& host, Position position) : host_(host), position_(position) { host_.hold(position_); }
  ~Held() { host_.let_go(position_); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  Position position() const { return position_; }
  void move(Position to) {
    host_.hold(to);
    host_.let_go(position_);
    position_ = to;
  }

 private:
  SnapshotHost& host_;
  Position position_;
};

class TableTail final : public LogTail {
 public:
  // From `from` on; the first record handed on is the one after version `after`.
  TableTail(SnapshotHost& host, Store& store, TableId table, Version after, Position from)
      : host_(host), store_(store), table_(table), birth_(host.birth_of(table)), reached_(after), at_(host, from) {}

  Result<bool> next(std::size_t max_bytes, const std::function<Result<void>(const LogRecord&)>& take) override {
    return next_until(UINT64_MAX, max_bytes, take);
  }
  // The same, but no further than version `last`.
  Result<bool> next_until(Version last, std::size_t max_bytes, const std::function<Result<void>(const LogRecord&)>& take);
  Version reached() const override { return reached_; }

 private:
  Result<Record> read_record(const Segment& segment);
  Result<void> fill(const Segment& segment, std::uint64_t offset, std::size_t size);
  Result<void> hand_on(const Record& record, const std::function<Result<void>(const LogRecord&)>& take);

  SnapshotHost& host_;
  Store& store_;
  const TableId table_;
  const std::uint64_t birth_;
  Version reached_;
  Held at_;
  std::string buffer_;  // bytes of segment buffer_segment_ from buffer_begin_ on
  std::uint64_t buffer_segment_ = 0, buffer_begin_ = 0;
  std::vector<Change> changes_;
};

}  // namespace novoht::core

// A table as a stream of bytes: novoht/snapshot.h's Export and Import over what a store gives them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "novoht/core/checkpoint.h"
#include "novoht/core/install.h"
#include "novoht/core/log_tail.h"
#include "novoht/snapshot.h"

namespace novoht::core {

class TableExport final : public Export {
 public:
  TableExport(SnapshotHost& host, Store& store, TableId table, std::string attachment);

  Result<std::string> next(std::size_t max_bytes) override;
  bool done() const override { return stage_ == Stage::ended && sent_ == buffer_.size(); }
  Version begun() const override { return begun_; }
  Version version() const override { return version_; }

 private:
  enum class Stage { entries, records, ended, failed };
  Result<void> more(std::size_t bytes);
  Result<void> take_entries(std::size_t bytes);
  Result<void> take_records(std::size_t bytes);
  void add_block(BlockKind kind, Bytes payload);

  SnapshotHost& host_;
  Store& store_;
  const TableId table_;
  const std::uint64_t birth_;
  const Version begun_;
  Version version_ = 0;
  TableTail tail_;
  Stage stage_ = Stage::entries;
  std::string buffer_, block_;  // of the stream from offset_ - buffer_.size() on; a block being made
  std::size_t sent_ = 0;        // of the buffer
  std::uint64_t offset_ = 0, cursor_ = 0, entries_ = 0;
};

// A table that nobody can see yet.
class Shadow {
 public:
  virtual ~Shadow() = default;
  virtual Table& table() = 0;
};
// What an import leads to.
struct Imported {
  Version version = 0;
  std::uint64_t epoch = 0;
  std::string attachment;  // as of the version at which the export was begun
  struct Note {
    Version version;
    std::uint64_t epoch;
    std::string note;
  };
  std::vector<Note> notes;  // since
};
class ImportHost {
 public:
  virtual ~ImportHost() = default;
  virtual std::unique_ptr<Shadow> make_shadow() = 0;
  // A piece of it, see Import::finish_some(); or all of it. Returns whether that was the end: `shadow` has been taken then.
  // `installation`: what is under way; null at first.
  virtual Result<bool> install(TableId table, std::unique_ptr<Shadow>& shadow, std::unique_ptr<Installation>& installation,
                               const Imported& imported, std::size_t bytes, bool all) = 0;
};

class TableImport final : public Import {
 public:
  TableImport(ImportHost& host, TableId table) : host_(host), table_(table), shadow_(host.make_shadow()) {}

  Result<void> write(Bytes bytes) override;
  bool complete() const override { return stage_ == Stage::ended; }
  Version version() const override { return imported_.version; }
  Result<bool> finish_some(std::size_t bytes) override { return finish_within(bytes, false); }
  Result<void> finish() override {
    TRY(finish_within(0, true));
    return {};
  }

 private:
  Result<bool> finish_within(std::size_t bytes, bool all);
  enum class Stage { magic, header, attachment, entries, records, ended, failed };
  Result<void> take(BlockKind kind, Bytes payload);
  Result<void> take_entries(Bytes payload);
  Result<void> take_records(Bytes payload);
  Result<void> take_end(Bytes payload);
  base::Error damaged(std::string_view what) const;

  ImportHost& host_;
  const TableId table_;
  std::unique_ptr<Shadow> shadow_;
  std::unique_ptr<Installation> installation_;  // goes first: a thread may be at it
  Imported imported_;
  Stage stage_ = Stage::magic;
  std::string buffer_;        // what has come of the block at offset_
  std::uint64_t offset_ = 0;  // in the stream
  std::uint64_t entries_ = 0;
  Version newest_ = 0;  // of the entries
};

}  // namespace novoht::core

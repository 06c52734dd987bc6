// A table as a stream of bytes, taken while it is being written and put in place of another somewhere else, and the log's
// records that bring such a copy up to date. This is what a migration sends.
//
//   TRY_LET(from, source.begin_export(TableId{7}));
//   TRY_LET(into, target.begin_import(TableId{7}));
//   while (!from->done()) {
//     TRY_LET(bytes, from->next(256 << 10));         // source goes on serving between two slices
//     TRY(into->write(bytes));
//   }
//   TRY(into->finish());                             // the table is there, whole and durable, at version from->version()
//   TRY_LET(tail, source.begin_tail(TableId{7}, from->version()));   // while `from` is there nothing of it can be missing
//   from.reset();
//   ... target applies what tail->next() hands on, as it comes ...
//
// The stream's bytes are in FORMAT.md, "Snapshot". All of these belong to the store that made them and must go before it;
// they are called from the thread that calls the store.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <utility>

#include "novoht/store.h"

namespace novoht {

// A table going out. Its entries are as they were at some moment between begin_export() and the last of them, so after them
// come the table's records of that time; whoever plays these over the entries, skipping what an entry already has by its
// version, has the table exactly as it was at version(). Import does so.
// While one is open, the log keeps the records since it was begun.
class Export {
 public:
  virtual ~Export() = default;
  // The stream's next bytes, `max_bytes` (1 or more) at most; fewer at the end, none after it. Takes the time of reading
  // about that much, and holds one value more in memory at most. Errors: conflict (the table was dropped or replaced since
  // begin_export()), corrupt, io; no more can be had then.
  virtual Result<std::string> next(std::size_t max_bytes) = 0;
  virtual bool done() const = 0;        // the stream's end was handed out
  virtual Version begun() const = 0;    // the table's version when the export was begun
  virtual Version version() const = 0;  // that the stream leads to; known once done()
};

// A table coming in. Nothing of it is seen, and the table that has its number stays as it is, until finish(); destroyed
// before, it leaves nothing.
class Import {
 public:
  virtual ~Import() = default;
  // The stream's next bytes, as many or few as there are. Errors: corrupt (which block, at which offset of the stream),
  // unsupported (a newer format: which), invalid (not a snapshot; bytes beyond its end); the import has failed then.
  virtual Result<void> write(Bytes bytes) = 0;
  virtual bool complete() const = 0;    // the stream's end has come
  virtual Version version() const = 0;  // the table's, once complete()
  // Puts the table in place of the one that has its number, with its version, epoch and attachment, even where that one's
  // version was greater. The Companion is told it all (restore, then replay for its records), asked for the attachment that
  // comes of it and given back what it had; at the end restore has that attachment. When finish() returns, the table survives
  // a loss of power; before, and after an error, the old one does. Takes the time of writing the table. Errors: corrupt (not
  // complete()), no_space, io, the Companion's; the import has failed then.
  virtual Result<void> finish() = 0;
  // The same in pieces, for who must not stop so long: takes about `bytes` of the table, leaves writing and syncs to a thread,
  // and returns whether that was the end, which takes a sync of the folder. Where the table that has its number is changed
  // between two pieces, the next one begins again, and does all of it.
  virtual Result<bool> finish_some(std::size_t bytes) = 0;
};

// A table made elsewhere than in a store, as the stream that Import takes: entries in any order, each key once.
//   SnapshotWriter writer(table, version, epoch, attachment);
//   writer.add(entry); ... TRY(into->write(writer.take())); ... writer.end(); TRY(into->write(writer.take()));
class SnapshotWriter {
 public:
  // `version`: the table's; no entry's is greater.
  SnapshotWriter(TableId table, Version version, std::uint64_t epoch, Bytes attachment);
  void add(const Restored& entry);  // one that is present
  std::size_t waiting() const { return stream_.size() + block_.size(); }
  std::string take();  // the stream's bytes since the last take()
  void end();

 private:
  void end_block();
  std::string stream_, block_;
  std::uint64_t offset_ = 0, entries_ = 0;
  const Version version_;
};

// A record of a table as it lies in the log.
struct LogRecord {
  Version version = 0;
  std::uint64_t epoch = 0;
  Bytes note;
  std::span<const Change> changes;
};

// A table's records in the order of their versions, read back from the log. While one is open, the log keeps what it has not
// handed on yet.
class LogTail {
 public:
  virtual ~LogTail() = default;
  // Hands on the records after the last one, as far as they have been flushed; reads about `max_bytes` of the log. Returns
  // whether there is more to be had now. An error of `take` is returned and counts the record as not handed on.
  // Errors: not_found (the log no longer has the next record: an Export is needed), conflict (the table was dropped or
  // replaced), corrupt, io.
  virtual Result<bool> next(std::size_t max_bytes, const std::function<Result<void>(const LogRecord&)>& take) = 0;
  virtual Version reached() const = 0;  // of the last record handed on
};

}  // namespace novoht

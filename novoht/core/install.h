// An imported table takes the place of the one that has its number. What that takes long for, syncing the log, writing the
// checkpoint and syncing it, is done by a thread and in pieces; what is left is one rename, which the owner does at once.
#pragma once

#include <memory>
#include <string>

#include "novoht/core/background.h"
#include "novoht/core/checkpoint.h"
#include "novoht/core/log.h"

namespace novoht::core {

// One thread, and one of its own where the files allow threads.
class Installation {
 public:
  // Of the table that is to go: whether that was changed meanwhile.
  struct Before {
    std::uint64_t birth = 0;
    Version version = 0;
    bool operator==(const Before&) const = default;
  };

  // What the checkpoint says is as of now: from `header.position`, the log's end, on there is no record of the table. Writes
  // to <checkpoint's name>.<serial>.new.
  static Result<std::unique_ptr<Installation>> begin(base::FileSystem& files, const std::string& folder, Log& log,
                                                     const CheckpointHeader& header, Bytes attachment, Before before,
                                                     std::uint64_t serial);

  // Some of it: about `bytes` of the table, or, with `wait`, all. Returns whether only the name is missing. Errors: those of
  // the disk (a log that failed says so too), and of reading a value from `cold`, which may be null.
  Result<bool> go_on(const Table& table, const ColdValues* cold, std::size_t bytes, bool wait);
  // Durably. Once go_on() said so.
  Result<void> give_name();
  std::uint64_t size() const { return writer_->size(); }
  Before before() const { return before_; }
  const std::string& attachment() const { return attachment_; }

 private:
  enum class Stage { log, taking, ending, written };
  Installation(base::FileSystem& files, std::string folder, Log& log, const CheckpointHeader& header, Bytes attachment, Before before)
      : files_(files), folder_(std::move(folder)), log_(log), header_(header), before_(before), attachment_(attachment),
        background_(files.threads()) {}
  Result<void> take_outcome(Result<void> outcome);

  base::FileSystem& files_;
  const std::string folder_;
  Log& log_;
  const CheckpointHeader header_;
  const Before before_;
  const std::string attachment_;
  std::unique_ptr<CheckpointWriter> writer_;
  std::unique_ptr<SyncJob> log_job_;
  Log::Syncing log_syncing_;
  Stage stage_ = Stage::log;
  bool whole_ = false;  // all of the table was taken
  Background background_;  // last: what it works on outlives it
};

}  // namespace novoht::core

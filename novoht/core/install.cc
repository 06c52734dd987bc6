#include "novoht/core/install.h"

#include <algorithm>
#include <chrono>

namespace novoht::core {
namespace {

constexpr std::size_t kSlice = std::size_t{256} << 10;
constexpr std::chrono::milliseconds kPatience(1);  // with a slice that is being written: mostly a tenth of that

}  // namespace

Result<std::unique_ptr<Installation>> Installation::begin(base::FileSystem& files, const std::string& folder, Log& log,
                                                          const CheckpointHeader& header, Bytes attachment, Before before,
                                                          std::uint64_t serial) {
  std::unique_ptr<Installation> made(new Installation(files, folder, log, header, attachment, before));
  TRY_LET(writer, CheckpointWriter::begin(files, folder + "/" + checkpoint_name(header.table), header, attachment,
                                          "." + std::to_string(serial) + ".new"));
  made->writer_ = std::move(writer);
  TRY_LET(job, log.begin_sync(made->log_syncing_));
  made->log_job_ = std::move(job);
  made->background_.start([job = made->log_job_.get()] { return job->run(); });
  return made;
}

Result<void> Installation::take_outcome(Result<void> outcome) {
  if (stage_ == Stage::log) {
    log_.end_sync(log_syncing_, outcome);
    log_job_.reset();
    stage_ = Stage::taking;
    return log_.failed() ? Result<void>(log_.failure()) : outcome;
  }
  if (stage_ == Stage::ending) stage_ = Stage::written;
  return outcome;
}

Result<bool> Installation::go_on(const Table& table, const ColdValues* cold, std::size_t bytes, bool wait) {
  const std::size_t slice = wait ? kSlice : std::min(kSlice, bytes);
  for (std::size_t taken = 0;; taken += slice) {
    if (background_.running()) {
      if (wait) background_.wait_until_done();
      else if (stage_ == Stage::taking) background_.wait_until_done(std::chrono::steady_clock::now() + kPatience);
      auto outcome = background_.poll();
      if (!outcome) return false;
      TRY(take_outcome(*std::move(outcome)));
    }
    if (stage_ == Stage::written) return true;
    if (whole_) {
      stage_ = Stage::ending;
      background_.start([this]() -> Result<void> {
        TRY(writer_->write_end({.entries = writer_->entries(), .version = header_.version, .position = header_.position}));
        return writer_->sync();
      });
      continue;
    }
    if (!wait && taken >= bytes) return false;
    TRY_LET(all, writer_->take_some(table, cold, slice));
    whole_ = all;
    writer_->hand_over();
    background_.start([this] { return writer_->write_taken(); });
  }
}

Result<void> Installation::give_name() {
  TRY(writer_->give_name());
  return files_.sync_folder(folder_);
}

}  // namespace novoht::core

// Another node's chunk store, as this one reaches it: a few connections, kept; a node that does not answer is left alone
// for a moment, so that what has another copy goes on at once.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fusionfs/data/chunk_link.h"
#include "fusionfs/data/chunk_protocol.h"
#include "fusionfs/data/content.h"

namespace fusionfs {

// Any thread. Errors: unavailable; what the other node answers.
class ChunkPeer {
 public:
  ChunkPeer(std::uint64_t identity, std::string address, zht::Opener opener)
      : identity_(identity), address_(std::move(address)), opener_(std::move(opener)) {}
  ChunkPeer(const ChunkPeer&) = delete;
  ChunkPeer& operator=(const ChunkPeer&) = delete;
  std::uint64_t identity() const { return identity_; }
  const std::string& address() const { return address_; }

  base::Result<ChunkAnswer> ask(const ChunkRequest& request);
  // It did not answer when it was last asked, a short time ago: better not to begin anything there.
  bool silent() const;
  bool has_answered() const;  // ever

 private:
  using Link = std::unique_ptr<ChunkLink>;
  base::Result<Link> connect();
  base::Result<ChunkAnswer> exchange(ChunkLink& link, base::Bytes request, std::chrono::milliseconds patience);

  const std::uint64_t identity_;
  const std::string address_;  // host:port
  const zht::Opener opener_;
  mutable std::mutex mutex_;
  std::vector<Link> idle_;                              // guarded by mutex_
  std::chrono::steady_clock::time_point down_until_{};  // guarded by mutex_
  bool answered_ = false;                               // guarded by mutex_
  std::chrono::steady_clock::time_point silent_since_{};  // zero: it answered. Guarded by mutex_
};

// A file's bytes in that store.
class RemoteContent final : public Content {
 public:
  RemoteContent(std::shared_ptr<ChunkPeer> peer, InodeId inode) : peer_(std::move(peer)), inode_(inode) {}
  base::Result<void> begin_writing(std::uint64_t recorded_size) override;
  base::Result<void> read(std::uint64_t offset, char* to, std::size_t size) override;
  base::Result<void> write(std::uint64_t offset, base::Bytes bytes) override;
  base::Result<void> truncate(std::uint64_t size, std::uint64_t old_size) override;
  base::Result<void> allocate(std::uint64_t offset, std::uint64_t size) override;
  base::Result<void> punch(std::uint64_t offset, std::uint64_t size) override;
  base::Result<void> sync() override;
  base::Result<std::uint64_t> seek(std::uint64_t offset, std::uint64_t size, bool data) override;
  std::uint64_t blocks(std::uint64_t size) override;
  base::Result<std::vector<std::uint32_t>> sums(std::uint64_t offset, std::uint64_t count) override;

 private:
  base::Result<ChunkAnswer> ask(ChunkOperation operation, std::uint64_t first = 0, std::uint64_t second = 0,
                                base::Bytes bytes = {});
  const std::shared_ptr<ChunkPeer> peer_;
  const InodeId inode_;
  std::mutex mutex_;
  bool writing_ = false;  // guarded by mutex_
};

}  // namespace fusionfs

#include "fusionfs/data/sweep.h"

#include <algorithm>

#include "fusionfs/core/requests.h"

namespace fusionfs {

using base::Code;
using base::fail;
using base::Result;
using zht::Operation;
using zht::Outcome;

namespace {

constexpr std::size_t kAtOnce = 500;  // inodes of one request
constexpr zht::Millis kPatience{5'000};
constexpr std::chrono::seconds kFirstPause{5}, kLongestPause{600};

bool is_stray(const ChunkStore& chunks, const Inode& inode) {
  const std::vector<std::uint64_t> stores = inode.stores();
  return !stores.empty() && std::find(stores.begin(), stores.end(), chunks.identity()) == stores.end();
}

}  // namespace

Result<std::map<InodeId, std::uint64_t>> find_strays(zht::Client& client, const ChunkStore& chunks,
                                                     const std::atomic<bool>* stop) {
  TRY_LET(list, chunks.list());
  std::map<InodeId, std::uint64_t> strays;  // until the store says otherwise; those of one home are neighbours
  for (const auto& chunk : list) {
    std::uint64_t& last = strays[chunk.inode];
    last = std::max(last, chunk.index);
  }
  std::vector<InodeId> all;
  for (const auto& [inode, last] : strays) all.push_back(inode);
  for (auto from = all.begin(); from != all.end();) {
    if (stop != nullptr && stop->load()) return fail(Code::unavailable, "told to stop");
    InodesRequest request;
    const HomeId home = home_of(*from);
    for (; from != all.end() && home_of(*from) == home && request.inodes.size() < kAtOnce; ++from)
      request.inodes.push_back(*from);
    const Outcome outcome = client.call(Operation::update(tag_of(home), "fusionfs.attributes", pack(request)), kPatience);
    if (!outcome.ok()) return outcome.error();
    const auto reply = unpack<Reply>(outcome.value);
    if (!reply || reply->error != 0) return fail(Code::corrupt, "inodes of ", tag_of(home), ": the answer cannot be read");
    for (const Inode& inode : reply->inodes) {
      if (!is_stray(chunks, inode)) strays.erase(inode.id);
    }
  }
  return strays;
}

Result<bool> remove_stray(zht::Client& client, const ChunkStore& chunks, InodeId inode, std::uint64_t last_chunk) {
  LocalContent content(chunks, inode);
  TRY_LET(alone, content.keep_writers_out());
  if (!alone) return false;
  const Outcome outcome = client.call(Operation::lookup(inode_key(inode)), kPatience);
  if (outcome.code != Code::not_found) {
    if (!outcome.ok()) return outcome.error();
    const auto record = decode_inode(inode, outcome.value);
    if (!record) return fail(Code::corrupt, "inode ", raw(inode), ": damaged, or of a newer format");
    if (!is_stray(chunks, *record)) return false;
  }
  TRY(chunks.remove(inode, (last_chunk + 1) * kChunkSize));
  return true;
}

Sweeper::Sweeper(zht::Client& client, const ChunkStore& chunks, std::function<std::uint64_t()> epoch,
                 std::function<void(const std::string&)> tell)
    : client_(client), chunks_(chunks), epoch_(std::move(epoch)), tell_(std::move(tell)), thread_([this] { run(); }) {}

Sweeper::~Sweeper() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void Sweeper::run() {
  using Clock = std::chrono::steady_clock;
  Clock::duration pause = kFirstPause;
  Clock::time_point next = Clock::now() + std::chrono::seconds(1);
  std::uint64_t epoch = epoch_();
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, std::chrono::seconds(1), [&] { return stopping_.load(); })) {
    if (epoch_() != epoch) {
      epoch = epoch_();
      pause = kFirstPause;
      next = std::min(next, Clock::now() + pause);
    }
    if (Clock::now() < next) continue;
    lock.unlock();
    const auto began = Clock::now();
    std::uint64_t removed = 0;
    // What cannot be asked or removed now is found again next time.
    if (const auto strays = find_strays(client_, chunks_, &stopping_); strays) {
      for (const auto& [inode, last] : *strays) {
        if (stopping_) break;
        if (const auto gone = remove_stray(client_, chunks_, inode, last); gone && *gone) ++removed;
      }
    }
    if (removed > 0) tell_("removed chunks of " + std::to_string(removed) + " files that have none here any more");
    next = Clock::now() + std::max<Clock::duration>(pause, 50 * (Clock::now() - began));
    pause = std::min<Clock::duration>(2 * pause, kLongestPause);
    lock.lock();
  }
}

}  // namespace fusionfs

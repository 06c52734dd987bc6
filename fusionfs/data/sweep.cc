#include "fusionfs/data/sweep.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

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
constexpr std::chrono::seconds kFirstPause{5}, kLackingPause{20}, kLongestPause{600};
constexpr std::size_t kMostUrgent = 100'000;  // files; what is beyond is found by the next sweep

bool is_stray(const ChunkStore& chunks, const Inode& inode) {
  const std::vector<std::uint64_t> stores = inode.stores();
  return !stores.empty() && std::find(stores.begin(), stores.end(), chunks.identity()) == stores.end();
}

}  // namespace

Result<std::map<InodeId, std::uint64_t>> find_strays(zht::Client& client, const ChunkStore& chunks, const std::atomic<bool>* stop,
                                                     const std::function<void(const Inode&)>& visit) {
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
      if (visit) visit(inode);
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

std::optional<Short> read_short(const std::string& chunk_folder) {
  Short found;
  std::ifstream file(chunk_folder + "/short");
  if (!(file >> found.files >> found.chunks)) return std::nullopt;
  return found;
}

Sweeper::Sweeper(zht::Client& client, const ChunkStore& chunks, std::function<std::uint64_t()> epoch,
                 std::function<void(const std::string&)> tell, Repair* repair)
    : client_(client), chunks_(chunks), epoch_(std::move(epoch)), tell_(std::move(tell)), repair_(repair), thread_([this] { run(); }) {}

Sweeper::~Sweeper() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void Sweeper::look_at(InodeId inode) {
  const std::lock_guard lock(mutex_);
  if (repair_ != nullptr && urgent_.size() < kMostUrgent) urgent_.insert(inode);
}

// One process of the node at a time: its mounts and what serves its chunks would all do the same.
void Sweeper::mend(const std::vector<InodeId>& inodes) {
  if (repair_ == nullptr || inodes.empty()) return;
  const int lock = ::open((chunks_.folder() + "/repair").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  std::uint64_t made = 0;
  if (lock >= 0 && ::flock(lock, LOCK_EX | LOCK_NB) == 0) {
    for (const InodeId inode : inodes) {
      if (stopping_) break;
      const Outcome outcome = client_.call(Operation::lookup(inode_key(inode)), kPatience);
      const auto record = outcome.ok() ? decode_inode(inode, outcome.value) : std::nullopt;
      if (!record) continue;
      if (const auto done = repair_->mend(*record, 0, &stopping_); done) made += *done;
    }
  }
  if (lock >= 0) ::close(lock);
  if (made > 0) tell_("made " + std::to_string(made) + " copies of files that had too few");
}

void Sweeper::sweep() {
  std::vector<InodeId> lacking;
  Short found;
  const auto strays = find_strays(client_, chunks_, &stopping_, [&](const Inode& inode) {
    if (repair_ == nullptr || repair_->lacks(inode) == 0 || !repair_->is_mine(inode)) return;
    found.files += 1;
    found.chunks += chunk_count(inode);
    if (lacking.size() < kMostUrgent) lacking.push_back(inode.id);
  });
  // What cannot be asked or removed now is found again next time.
  if (!strays) return;
  std::uint64_t removed = 0;
  for (const auto& [inode, last] : *strays) {
    if (stopping_) break;
    if (const auto gone = remove_stray(client_, chunks_, inode, last); gone && *gone) ++removed;
  }
  if (removed > 0) tell_("removed chunks of " + std::to_string(removed) + " files that have none here any more");
  if (repair_ == nullptr) return;
  std::ofstream(chunks_.folder() + "/short") << found.files << " " << found.chunks << "\n";
  if (found.files > 0 && told_lacking_ == 0)
    tell_(std::to_string(found.chunks) + " chunks of " + std::to_string(found.files) +
          " files are on fewer nodes than was asked for; the others are made when there are nodes for them (fusionfs status)");
  told_lacking_ = found.files;
  mend(lacking);
}

void Sweeper::run() {
  using Clock = std::chrono::steady_clock;
  Clock::duration pause = kFirstPause;
  Clock::time_point next = Clock::now() + std::chrono::seconds(1);
  std::uint64_t epoch = epoch_();
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, std::chrono::seconds(1), [&] { return stopping_.load(); })) {
    std::vector<InodeId> urgent(urgent_.begin(), urgent_.end());
    urgent_.clear();
    lock.unlock();
    mend(urgent);
    if (epoch_() != epoch) {
      epoch = epoch_();
      pause = kFirstPause;
      next = std::min(next, Clock::now() + pause);
    }
    if (Clock::now() >= next) {
      const auto began = Clock::now();
      sweep();
      // While something is lacking it is looked for again soon: that another node does not come back shows only then.
      if (told_lacking_ > 0) pause = std::min<Clock::duration>(pause, kLackingPause);
      next = Clock::now() + std::max<Clock::duration>(pause, 50 * (Clock::now() - began));
      pause = std::min<Clock::duration>(2 * pause, kLongestPause);
    }
    lock.lock();
  }
}

}  // namespace fusionfs

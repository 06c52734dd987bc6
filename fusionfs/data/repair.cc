#include "fusionfs/data/repair.h"

#include <algorithm>
#include <thread>

#include "fusionfs/core/requests.h"

namespace fusionfs {

using base::Code;
using base::fail;
using base::Result;
using zht::Operation;
using zht::Outcome;
using SteadyClock = std::chrono::steady_clock;

namespace {

constexpr std::size_t kPiece = std::size_t{1} << 20;
constexpr std::size_t kMostStores = 64;  // tried
constexpr zht::Millis kPatience{5'000};

Result<Reply> commit(zht::Client& client, const CommitRequest& request) {
  const Outcome outcome = client.call(Operation::update(tag_of(home_of(request.inode)), "fusionfs.commit", pack(request)), kPatience);
  if (!outcome.ok()) return outcome.error();
  auto reply = unpack<Reply>(outcome.value);
  if (!reply) return fail(Code::corrupt, "inode ", raw(request.inode), ": the answer cannot be read");
  return std::move(*reply);
}

}  // namespace

std::uint64_t chunk_count(const Inode& inode) {
  return inode.stores().empty() ? 0 : std::max<std::uint64_t>((inode.size + kChunkSize - 1) / kChunkSize, 1);
}

bool Repair::lives(std::uint64_t store) {
  if (stores_.known(store)) {
    unheard_.erase(store);
    return true;
  }
  const auto now = SteadyClock::now();
  return now - unheard_.try_emplace(store, now).first->second < options_.lost_after;
}

std::size_t Repair::lacks(const Inode& inode, std::size_t wanted) {
  if (!is_regular(inode.mode) || inode.stores().empty()) return 0;
  std::size_t living = 0;
  for (const std::uint64_t each : inode.stores()) living += lives(each) ? 1 : 0;
  wanted = std::max<std::size_t>(wanted, inode.wanted);
  return wanted > living ? wanted - living : 0;
}

bool Repair::is_mine(const Inode& inode) const {
  for (const std::uint64_t each : inode.stores()) {
    if (each == local_.identity()) return true;
    if (stores_.known(each)) return false;
  }
  return false;
}

void Repair::pace(std::uint64_t bytes) {
  if (options_.bytes_per_second == 0) return;
  std::this_thread::sleep_until(next_);
  const std::chrono::duration<double> takes(static_cast<double>(bytes) / static_cast<double>(options_.bytes_per_second));
  next_ = std::max(next_, SteadyClock::now()) + std::chrono::duration_cast<SteadyClock::duration>(takes);
}

Result<bool> Repair::copy(const Inode& inode, std::uint64_t to, std::size_t wanted, const std::atomic<bool>* stop) {
  const auto from = stores_.open(inode.id, {local_.identity()}), into = stores_.open(inode.id, {to});
  // What an earlier attempt has left there is not among what is copied now.
  if (const auto begun = into->begin_writing(0); !begun) return false;
  if (const auto cut = into->truncate(0, inode.size); !cut) return false;
  std::string piece;
  std::uint64_t at = 0;
  while (at < inode.size) {
    TRY_LET(data, from->seek(at, inode.size, true));
    if (data >= inode.size) break;
    TRY_LET(hole, from->seek(data, inode.size, false));
    for (at = data; at < hole; at += piece.size()) {
      if (stop != nullptr && stop->load()) return fail(Code::unavailable, "told to stop");
      piece.resize(std::min<std::uint64_t>(kPiece, hole - at));
      pace(piece.size());
      TRY(from->read(at, piece.data(), piece.size()));
      if (const auto written = into->write(at, piece); !written) return false;
    }
  }
  if (const auto synced = into->sync(); !synced) return false;
  CommitRequest request;
  request.inode = inode.id;
  request.copied = {to};
  request.revision = inode.revision;
  request.replicas = static_cast<std::uint32_t>(wanted);
  TRY_LET(reply, commit(client_, request));
  return reply.error == 0;
}

Result<std::size_t> Repair::mend(const Inode& seen, std::size_t wanted, const std::atomic<bool>* stop) {
  std::size_t made = 0;
  if (lacks(seen, wanted) == 0 || !is_mine(seen)) return made;
  for (const std::uint64_t each : stores_.choose(kMostStores)) {
    // As it is now: whoever copies is told by the commit if it changes again.
    const Outcome outcome = client_.call(Operation::lookup(inode_key(seen.id)), kPatience);
    if (outcome.code == Code::not_found) return made;
    if (!outcome.ok()) return outcome.error();
    const auto inode = decode_inode(seen.id, outcome.value);
    if (!inode) return fail(Code::corrupt, "inode ", raw(seen.id), ": damaged, or of a newer format");
    if (lacks(*inode, wanted) == 0 || !is_mine(*inode)) return made;
    const std::vector<std::uint64_t> have = inode->stores();
    if (std::find(have.begin(), have.end(), each) != have.end()) continue;
    TRY_LET(copied, copy(*inode, each, wanted, stop));
    made += copied ? 1 : 0;
  }
  return made;
}

}  // namespace fusionfs

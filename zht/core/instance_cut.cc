#include "zht/core/instance.h"

// The instance's part in a backup's cut: changes wait for a moment, the partitions it leads are marked, and read out afterwards.
namespace zht::core {

using base::fail;

namespace {

constexpr std::size_t kMostParked = 1 << 16, kMostParkedBytes = std::size_t{64} << 20;
constexpr base::Duration kCutLife = std::chrono::minutes(1), kLongestPause = std::chrono::seconds(10);

bool may_change(const wire::Frame& frame) {
  switch (static_cast<OpKind>(frame.op)) {
    case OpKind::lookup:
    case OpKind::callback:
    case OpKind::scan: return false;
    default: return true;
  }
}

}  // namespace

// True: the request waits, or was sent away. A connection's requests stay in order: behind one that waits all do.
bool Instance::park(ConnectionId from, const wire::Frame& frame, std::string& out) {
  const auto waits_already = [&] {
    return std::any_of(parked_.begin(), parked_.end(), [&](const Parked& one) { return one.from == from; });
  };
  if (!may_change(frame) && (from == ConnectionId{0} || !waits_already())) return false;
  if (from == ConnectionId{0}) {  // a datagram's sender cannot be answered later
    const std::size_t start = wire::begin_reply(
        out, {.op = frame.op, .status = wire::kStatusStream, .request = frame.request, .epoch = frame.epoch, .partition = frame.partition});
    wire::end_reply(out, start);
    return true;
  }
  const std::size_t size = frame.key.size() + frame.value.size() + frame.extra.size();
  if (parked_.size() >= kMostParked || parked_bytes_ + size > kMostParkedBytes) {
    encode_retry(frame.op, frame.request, PartitionId{frame.partition}, out);
    return true;
  }
  Parked& one = parked_.emplace_back();
  one.from = from;
  one.bytes.reserve(size);
  one.bytes.append(frame.key).append(frame.value).append(frame.extra);
  one.frame = frame;
  const Bytes bytes = one.bytes;
  one.frame.key = bytes.substr(0, frame.key.size());
  one.frame.value = bytes.substr(frame.key.size(), frame.value.size());
  one.frame.extra = bytes.substr(frame.key.size() + frame.value.size());
  parked_bytes_ += size;
  return true;
}

void Instance::go_on() {
  pause_until_ = {};
  for (const Parked& one : parked_) {
    if (one.from == ConnectionId{0}) continue;
    Send send{one.from, {}};
    on_frame(one.from, one.frame, send.frame);
    if (!send.frame.empty()) sends_.push_back(std::move(send));
  }
  parked_.clear();
  parked_bytes_ = 0;
}

void Instance::tend_cut() {
  if (pauses() && now_ >= pause_until_) {
    cut_->lose("changes waited too long for the cut to be made everywhere");
    go_on();
  }
  if (cut_ != nullptr && now_ - cut_used_ > kCutLife) forget_cut(cut_->id());
}

Result<Cut*> Instance::find_cut(std::uint64_t id) {
  if (cut_ == nullptr || cut_->id() != id)
    return fail(Code::not_found, "instance ", static_cast<std::uint32_t>(options_.id), " knows of no such cut");
  cut_used_ = now_;
  return cut_.get();
}

std::vector<CutMark> Instance::led_now() {
  std::vector<CutMark> marks;
  if (replicator_->failed()) return marks;
  for (std::uint32_t p = 0; p < partitions(); p++) {
    const replication::Replica* const replica = replicator_->look(PartitionId{p});
    if (replica == nullptr || !replica->serves(replica->view().epoch)) continue;
    marks.push_back({PartitionId{p}, replica->view().epoch, store_->version(static_cast<novoht::TableId>(p))});
  }
  return marks;
}

Result<std::vector<CutMark>> Instance::begin_cut(std::uint64_t cut, base::Duration limit, const std::map<PartitionId, Version>& since) {
  if (!failure_.empty()) return fail(Code::io, "the store only reads: ", failure_);
  if (cut_ != nullptr && now_ - cut_used_ > kCutLife) forget_cut(cut_->id());
  if (cut_ != nullptr) return fail(Code::conflict, "another backup is being made");
  cut_ = std::make_unique<Cut>(*store_, cut);
  cut_used_ = now_;
  for (const CutMark& mark : led_now()) {
    const auto before = since.find(mark.partition);
    cut_->add(mark, before == since.end() ? 0 : before->second);
  }
  replicated_->tell_before(cut_.get());
  pause_until_ = now_ + std::min(limit, kLongestPause);
  return cut_->marks();
}

Result<std::vector<CutMark>> Instance::end_pause(std::uint64_t id) {
  TRY_LET(cut, find_cut(id));
  if (!pauses()) return fail(Code::unavailable, cut->lost().empty() ? "changes did not wait" : cut->lost());
  std::vector<CutMark> marks = led_now();
  // That they are committed, and that nobody else led meanwhile, is certain when a read of them could be answered.
  for (const CutMark& mark : marks) {
    if (epochs_[static_cast<std::uint32_t>(mark.partition)] != 0) continue;  // alone
    replication::Replica& replica = *replicator_->find(mark.partition);
    cut->await(mark.partition);
    hold(replica, kCutMark, id, 0, mark.partition, {.need = mark.version, .reads = true}, {});
  }
  go_on();
  return marks;
}

Result<std::size_t> Instance::unsure_of(std::uint64_t id) {
  TRY_LET(cut, find_cut(id));
  if (!cut->lost().empty()) return fail(Code::unavailable, cut->lost());
  return cut->awaited();
}

Result<bool> Instance::read_cut(std::uint64_t id, std::size_t bytes, std::string& out) {
  TRY_LET(cut, find_cut(id));
  return cut->read(bytes, out);
}

void Instance::forget_cut(std::uint64_t id) {
  if (cut_ == nullptr || cut_->id() != id) return;
  if (pauses()) go_on();
  replicated_->tell_before(nullptr);
  cut_.reset();
}

}  // namespace zht::core

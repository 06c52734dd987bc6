#include "zht/server/node_parts.h"

#include <functional>

// A node's part in a backup: its instances make the cut and are read, a step a request (zht/backup/README.md).
namespace zht::server {

using base::Code;
using base::fail;
using base::Result;

namespace {

constexpr std::uint64_t kMostAtOnce = std::uint64_t{4} << 20;

class InRound final : public LocalRequest {
 public:
  explicit InRound(std::function<void(core::Instance&)> work) : work_(std::move(work)) {}
  void execute(core::Instance& core) override { work_(core); }

 private:
  const std::function<void(core::Instance&)> work_;
};

template <typename T>
Result<T> in_round(InstanceThread& instance, const std::function<Result<T>(core::Instance&)>& work) {
  Result<T> outcome = fail(Code::unavailable, "the instance is ending");
  InRound request([&](core::Instance& core) { outcome = work(core); });
  instance.run_local(request);
  if (!request.kept && outcome) return fail(Code::unavailable, "the instance's store failed, or it is ending");
  return outcome;
}

void put(wire::BackupReply& reply, std::uint32_t instance, const std::vector<core::CutMark>& marks) {
  for (const core::CutMark& mark : marks) {
    wire::PartitionMark& one = *reply.add_marks();
    one.set_partition(static_cast<std::uint32_t>(mark.partition));
    one.set_epoch(static_cast<std::uint64_t>(mark.epoch));
    one.set_version(mark.version);
    one.set_instance(instance);
  }
}

}  // namespace

Result<void> Node::Parts::read_cut(const wire::BackupRequest& request, wire::BackupReply& reply) {
  const std::size_t place = request.instance() - first_instance(identity.number);
  if (place >= instances.size()) return fail(Code::invalid, "instance ", request.instance(), " is not of this node");
  const std::size_t wanted = std::clamp<std::uint64_t>(request.size(), 1, kMostAtOnce);
  CutBytes& kept = cut_bytes[place];
  if (kept.cut != request.cut()) kept = {.cut = request.cut()};
  if (kept.sent == kept.bytes.size() && !kept.all_read) {
    kept.bytes.clear();
    kept.sent = 0;
    TRY_LET(more, in_round<bool>(*instances[place],
                                 [&](core::Instance& core) { return core.read_cut(request.cut(), wanted, kept.bytes); }));
    kept.all_read = !more;
  }
  const std::size_t size = std::min<std::size_t>(kept.bytes.size() - kept.sent, kMostAtOnce);
  reply.set_blocks(kept.bytes.substr(kept.sent, size));
  kept.sent += size;
  reply.set_done(kept.all_read && kept.sent == kept.bytes.size());
  if (reply.done()) kept.bytes = {}, kept.sent = 0;
  return {};
}

void Node::Parts::forget_cut(std::uint64_t cut) {
  for (auto& instance : instances)
    (void)in_round<void>(*instance, [&](core::Instance& core) -> Result<void> {
      core.forget_cut(cut);
      return {};
    });
  std::erase_if(cut_bytes, [&](const auto& one) { return one.second.cut == cut; });
  std::erase_if(cuts, [&](const auto& one) { return one.second == cut; });
}

// Whoever makes a backup and dies leaves nothing waiting.
void Node::Parts::on_closed(net::ConnectionNumber connection) {
  if (const auto found = cuts.find(connection); found != cuts.end()) forget_cut(found->second);
}

void Node::Parts::backup(net::ConnectionNumber from, const wire::Frame& frame, std::string& out) {
  const auto answer = [&](Code code, Bytes message, Bytes body) {
    wire::encode_control(out, wire::FrameType::control_reply, wire::ControlKind::backup, frame.request, code, message, body);
  };
  wire::BackupRequest request;
  if (!request.ParseFromArray(frame.value.data(), static_cast<int>(frame.value.size())) || request.cut() == 0)
    return answer(Code::invalid, "a request that cannot be read", {});
  const std::uint64_t cut = request.cut();
  wire::BackupReply reply;
  Result<void> done;
  const auto each = [&](const std::function<Result<void>(core::Instance&, std::uint32_t)>& work) {
    for (std::size_t i = 0; i < instances.size() && done; i++) {
      const std::uint32_t number = first_instance(identity.number) + static_cast<std::uint32_t>(i);
      done = in_round<void>(*instances[i], [&](core::Instance& core) { return work(core, number); });
    }
  };
  switch (request.step()) {
    case wire::BackupRequest::kBegin: {
      if (settings.in_memory) return answer(Code::unsupported, "this node keeps nothing on a disk", {});
      std::map<PartitionId, Version> since;
      for (const wire::PartitionMark& one : request.since()) since[PartitionId{one.partition()}] = one.version();
      each([&](core::Instance& core, std::uint32_t number) -> Result<void> {
        reply.add_instances(number);
        TRY_LET(marks, core.begin_cut(cut, std::chrono::milliseconds(std::min<std::uint64_t>(request.limit_ms(), 60'000)), since));
        put(reply, number, marks);
        return {};
      });
      if (done) cuts[from] = cut;
      else forget_cut(cut);
      break;
    }
    case wire::BackupRequest::kGoOn:
      each([&](core::Instance& core, std::uint32_t number) -> Result<void> {
        TRY_LET(marks, core.end_pause(cut));
        put(reply, number, marks);
        return {};
      });
      if (!done) forget_cut(cut);
      break;
    case wire::BackupRequest::kConfirm:
      each([&](core::Instance& core, std::uint32_t) -> Result<void> {
        TRY_LET(unsure, core.unsure_of(cut));
        reply.set_unsure(reply.unsure() + unsure);
        return {};
      });
      break;
    case wire::BackupRequest::kRead: done = read_cut(request, reply); break;
    case wire::BackupRequest::kForget: forget_cut(cut); break;
    default: return answer(Code::unsupported, "a step of a backup that this build does not know", {});
  }
  if (!done) return answer(done.code(), done.error().message, {});
  answer(Code::ok, {}, reply.SerializeAsString());
}

}  // namespace zht::server

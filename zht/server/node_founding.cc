#include <condition_variable>
#include <thread>

#include "zht/client/channel.h"
#include "zht/server/node_parts.h"
#include "zht/support/paths.h"

// The first start of a node that is in the list its cluster is made from: before it speaks as the node with that number, the others
// say whether they know it already (claims.h). Until then its sockets are there, and all that is asked is told what it waits for.
namespace zht::server {

using base::Code;
using base::fail;
using base::Result;

namespace {

// Ends threads that ask, and waits for them.
struct Askers {
  std::mutex mutex;
  std::condition_variable changed;
  bool ended = false;  // guarded by mutex
  std::vector<std::thread> threads;

  bool pause(std::chrono::milliseconds time) {  // false: it is over
    std::unique_lock lock(mutex);
    changed.wait_for(lock, time, [this] { return ended; });
    return !ended;
  }
  void end() {
    {
      const std::lock_guard lock(mutex);
      ended = true;
    }
    changed.notify_all();
    for (std::thread& one : threads) one.join();
    threads.clear();
  }
  ~Askers() { end(); }
};

Result<wire::ClaimReply> ask(const std::string& address, const security::Opener& opener, const wire::ClaimRequest& request) {
  TRY_LET(at, client::parse_address(address));
  at.opener = opener;
  const base::Time deadline = base::SystemClock().now() + std::chrono::seconds(2);
  TRY_LET(channel, client::Channel::open(at, deadline));
  TRY_LET(answer, channel.control(wire::ControlKind::claim, request.SerializeAsString(), deadline));
  wire::ClaimReply reply;
  if (!reply.ParseFromString(answer) || reply.uid() == 0) return fail(Code::corrupt, address, ": an answer that cannot be read");
  return reply;
}

}  // namespace

// What is said of founders; a node that has served knows it from the others' gossip, too.
void Node::Parts::claim(const wire::Frame& frame, std::string& out) {
  const auto reply = [&](Code code, Bytes message, Bytes body) {
    wire::encode_control(out, wire::FrameType::control_reply, wire::ControlKind::claim, frame.request, code, message, body);
  };
  wire::ClaimRequest request;
  if (!request.ParseFromArray(frame.value.data(), static_cast<int>(frame.value.size())) || request.uid() == 0 || request.number() == 0)
    return reply(Code::invalid, "a request that cannot be read", {});
  if (request.cluster() != identity.cluster)
    return reply(Code::invalid, "it belongs to another cluster, or was given another list of nodes", {});
  const auto uid = claims->claim(request.number(), request.uid());
  if (!uid) return reply(uid.code(), uid.error().message, {});
  constexpr std::size_t most = 64;  // told of; it asks several times a second, for as long as it cannot join
  if (*uid != request.uid() && begun_anew.size() < most && begun_anew.emplace(request.number(), request.uid()).second)
    logger().warn("a node of the list begins anew that is known already: it has lost its data, and is to join as another",
                  {{"node", request.number()}});
  wire::ClaimReply answer;
  answer.set_node(identity.number);
  answer.set_uid(*uid);
  reply(Code::ok, {}, answer.SerializeAsString());
}

void Node::Parts::on_frame_before(const wire::Frame& frame, std::string& out) {
  if (frame.type != wire::FrameType::control_request && frame.type != wire::FrameType::request) return;
  const auto kind = static_cast<wire::ControlKind>(frame.op);
  const auto reply = [&](Code code, Bytes message, Bytes body) {
    wire::encode_control(out, wire::FrameType::control_reply, kind, frame.request, code, message, body);
  };
  if (frame.type == wire::FrameType::request) return reply(Code::invalid, "this is a node's manager", {});
  switch (kind) {
    case wire::ControlKind::claim: return claim(frame, out);
    case wire::ControlKind::membership: return reply(Code::ok, {}, *table.get());
    case wire::ControlKind::stop: stopping = true; return reply(Code::ok, {}, {});
    default: return reply(Code::unavailable, before, {});
  }
}

Result<bool> Node::Parts::begin_as_founder(support::SignalWaiter* signals) {
  struct OnSignal final : net::Ready {
    OnSignal(support::SignalWaiter& s, bool& e) : from(s), ended(e) {}
    void on_ready(std::uint32_t) override {
      if (from.wait(std::chrono::milliseconds(0))) ended = true;
    }
    support::SignalWaiter& from;
    bool& ended;
  };
  std::optional<OnSignal> on_signal;
  if (signals != nullptr) TRY(loop.add(signals->fd(), EPOLLIN, on_signal.emplace(*signals, stopping)));
  wire::MembershipTable nobody;
  nobody.set_partition_count(identity.partition_count);
  nobody.set_max_value_size(settings.max_value_size);
  table.set(nobody.SerializeAsString());
  if (settings.unix_sockets) {
    TRY_LET(path, support::socket_path(settings.data, "node.sock"));
    unix_path = path;
    TRY(endpoint->listen_unix(unix_path));
  }
  auto began = ask_founders();
  if (on_signal) loop.remove(signals->fd(), *on_signal);
  before.clear();
  if (!began || !*began) return began;
  TRY(begin_life(settings.data, identity));
  return true;
}

// False: told to end.
Result<bool> Node::Parts::ask_founders() {
  const std::vector<Founder> nodes = identity.founding.nodes;
  const std::string name = "node " + std::to_string(identity.number) + " of the list";
  struct Heard {  // also of what is heard when this has returned
    FirstStart first;
    std::map<std::uint64_t, std::string> silence;  // why nothing is heard of these
    std::optional<Result<Identity>> joined;
  };
  const auto heard = std::make_shared<Heard>(Heard{{nodes.size(), identity.number, identity.member.node}, {}, {}});
  TRY_LET(own_uid, claims->claim(identity.number, identity.member.node));
  heard->first.answered(identity.number, own_uid, clock.now());  // its folder may have lost a part only
  wire::ClaimRequest request;
  request.set_cluster(identity.cluster);
  request.set_number(identity.number);
  request.set_uid(identity.member.node);
  request.set_build(ZHT_VERSION);
  Askers askers;
  const auto begin_asking = [&](const std::vector<std::uint64_t>& whom) {
    askers.threads.emplace_back([this, &askers, heard, &nodes, request, whom] {
      for (std::size_t turn = 0; askers.pause(std::chrono::milliseconds(turn == 0 ? 0 : 300)); turn++) {
        const std::uint64_t node = whom[turn % whom.size()];
        auto answer = ask(nodes[node - 1].address, opener, request);
        loop.post([this, heard, node, answer = std::move(answer)] {
          if (answer) heard->first.answered(node, answer->uid(), clock.now());
          if (answer) heard->silence.erase(node);
          else heard->silence[node] = answer.error().message;
        });
      }
    });
  };
  std::vector<std::uint64_t> others;  // no witnesses, but one of them may remember
  for (std::uint64_t node = 1; node <= nodes.size(); node++) {
    if (node == identity.number) continue;
    if (node <= heard->first.witnesses()) begin_asking({node});
    else others.push_back(node);
  }
  if (!others.empty()) begin_asking(others);
  const auto begin_joining = [&] {
    std::string seeds;
    for (std::uint64_t node = 1; node <= nodes.size(); node++)
      if (node != identity.number) seeds += (seeds.empty() ? "" : ",") + nodes[node - 1].address;
    askers.threads.emplace_back([this, &askers, heard, seeds] {
      while (askers.pause(std::chrono::milliseconds(0))) {
        auto found = join_cluster(seeds, identity.member.node, [&askers] { return !askers.pause(std::chrono::milliseconds(0)); });
        const bool later = !found && found.code() != Code::invalid && found.code() != Code::unsupported;
        if (!later) return loop.post([heard, found = std::move(found)] { heard->joined = found; });
        if (askers.pause(std::chrono::milliseconds(200))) logger().warn("cannot join yet", {{"error", found.error()}});
      }
    });
  };
  loop.every(std::chrono::milliseconds(100), [] {});  // what is waited for may also be the time
  const base::Time warn_at = clock.now() + std::chrono::seconds(5);
  bool warned = false, joins = false;
  while (!stopping && !heard->joined) {
    const auto verdict = heard->first.verdict(clock.now());
    if (verdict == FirstStart::Verdict::begins) return true;
    if (verdict == FirstStart::Verdict::lost && !std::exchange(joins, true)) {
      before = name + " has served before, from another data folder: those data are gone, and it joins the cluster as a new node";
      logger().warn(before, {{"data", settings.data}});
      begin_joining();
    }
    if (verdict == FirstStart::Verdict::waits) {
      std::string whom;
      for (std::uint64_t node : heard->first.awaited()) {
        const auto why = heard->silence.find(node);
        whom += (whom.empty() ? "" : "; ") + (why == heard->silence.end() ? nodes[node - 1].address : why->second);
      }
      before = name + " starts for the first time, and waits until the others have said that they do not know it: " + whom;
      if (clock.now() >= warn_at && !std::exchange(warned, true)) logger().warn(before);
    }
    loop.turn();
  }
  askers.end();
  if (stopping) return false;
  TRY_LET(joined, *heard->joined);
  joined.instance_count = identity.instance_count;
  if (settings.rack.empty()) settings.rack = nodes[identity.number - 1].rack;
  identity = joined;
  return true;
}

}  // namespace zht::server

#include "zht/backup/cluster_cut.h"

#include <algorithm>
#include <thread>

#include "novoht/base/clock.h"
#include "novoht/base/mutant.h"
#include "novoht/base/random.h"
#include "zht/client/channel.h"
#include "zht/client/control.h"
#include "zht/wire/zht.pb.h"

namespace zht::backup {

using namespace std::chrono_literals;
using base::fail;
using Request = wire::BackupRequest;

namespace {

constexpr Millis kStepPatience = 5s, kReadPatience = 30s, kConfirmPatience = 5s;
constexpr std::uint64_t kPiece = std::uint64_t{1} << 20;

base::Time now() { return base::SystemClock().now(); }

}  // namespace

struct ClusterCut::Parts {
  struct Node {
    std::uint64_t number = 0;
    client::Address address;
    std::unique_ptr<client::Channel> channel;
    wire::BackupReply begun, gone_on;
    Result<void> outcome;
    std::string name() const { return "node " + std::to_string(number) + " (" + address.text() + ")"; }
  };
  std::vector<Node> nodes;
  std::string cluster;
  std::uint32_t partitions = 0;
  std::uint64_t cut = 0, pause_us = 0;
  std::vector<Mark> marks;
  std::vector<std::uint32_t> instances;
  std::map<std::uint32_t, std::size_t> node_of;  // instance -> place in nodes

  static Result<wire::BackupReply> ask(Node& node, const Request& request, Millis patience);
  // Each node on a thread of its own: the pause is as long as the slowest takes.
  Result<void> ask_all(const Request& request, wire::BackupReply Node::*answer);
  Result<void> find_nodes(const std::vector<client::Address>& addresses, const security::Opener& opener);
  Result<void> try_once(const Wanted& wanted, Millis limit);
  Result<void> compare();
  Result<void> confirm();
  void forget();
};

Result<wire::BackupReply> ClusterCut::Parts::ask(Node& node, const Request& request, Millis patience) {
  const base::Time deadline = now() + patience;
  if (node.channel == nullptr) {
    TRY_LET(channel, client::Channel::open(node.address, deadline));
    node.channel = std::make_unique<client::Channel>(std::move(channel));
  }
  auto answer = node.channel->control(wire::ControlKind::backup, request.SerializeAsString(), deadline);
  if (!answer) {
    if (answer.code() == Code::unavailable || answer.code() == Code::io) node.channel.reset();
    return base::add_context(node.name(), std::move(answer).error());
  }
  wire::BackupReply reply;
  if (!reply.ParseFromString(*answer)) return fail(Code::corrupt, node.name(), ": an answer that cannot be read");
  return reply;
}

Result<void> ClusterCut::Parts::ask_all(const Request& request, wire::BackupReply Node::*answer) {
  const auto one = [&](Node& node) {
    auto reply = ask(node, request, kStepPatience);
    node.outcome = reply ? Result<void>() : Result<void>(reply.error());
    if (reply) node.*answer = std::move(*reply);
  };
  std::vector<std::thread> threads;
  for (std::size_t i = 1; i < nodes.size(); i++) threads.emplace_back([&, i] { one(nodes[i]); });
  one(nodes.front());
  for (std::thread& thread : threads) thread.join();
  for (const Node& node : nodes)
    if (!node.outcome) return node.outcome;
  return {};
}

// All that live, as the first that answers knows them. (One that it has not noticed to be dead does not answer; one that it takes for
// dead leads nothing, or the cut does not hold.)
Result<void> ClusterCut::Parts::find_nodes(const std::vector<client::Address>& addresses, const security::Opener& opener) {
  nodes.clear();
  Error all{Code::unavailable, ""};
  for (const client::Address& address : addresses) {
    const auto status = client::fetch_status(address, 3s);
    if (!status) {
      all.message += (all.message.empty() ? "nobody answers: " : "; ") + status.error().message;
      continue;
    }
    cluster = status->cluster().cluster();
    partitions = status->partition_count();
    for (const wire::ClusterNode& one : status->cluster().nodes()) {
      if (one.node() == status->cluster().node()) {
        nodes.push_back({.number = one.node(), .address = address});
        continue;
      }
      if (!one.lives() || one.address().empty()) continue;
      TRY_LET(at, client::parse_cluster(one.address(), opener));
      nodes.push_back({.number = one.node(), .address = at.front()});
    }
    if (nodes.empty()) nodes.push_back({.number = 1, .address = address});
    // Connected before anything waits.
    for (Node& node : nodes) {
      TRY_LET(channel, client::Channel::open(node.address, now() + kStepPatience));
      node.channel = std::make_unique<client::Channel>(std::move(channel));
    }
    return {};
  }
  return all;
}

// Each partition is marked once, and was led by the same instance in the same view, with nothing changed, all the time.
Result<void> ClusterCut::Parts::compare() {
  marks.assign(partitions, {});
  std::vector<char> seen(partitions);
  instances.clear();
  node_of.clear();
  const auto key = [](const wire::PartitionMark& one) {
    return std::tuple(one.partition(), one.instance(), one.epoch(), one.version());
  };
  for (std::size_t i = 0; i < nodes.size(); i++) {
    const Node& node = nodes[i];
    const auto& first = node.begun.marks();
    const auto& then = node.gone_on.marks();
    if (!std::equal(first.begin(), first.end(), then.begin(), then.end(), [&](const auto& a, const auto& b) { return key(a) == key(b); }))
      return fail(Code::unavailable, node.name(), ": partitions changed hands while the cut was made");
    for (const wire::PartitionMark& one : first) {
      if (one.partition() >= partitions) return fail(Code::corrupt, node.name(), ": it leads partition ", one.partition(), " of ", partitions);
      if (seen[one.partition()]) return fail(Code::unavailable, "partition ", one.partition(), " is led by two");
      seen[one.partition()] = 1;
      marks[one.partition()] = {one.version(), one.instance()};
      if (node_of.emplace(one.instance(), i).second) instances.push_back(one.instance());
    }
  }
  for (std::uint32_t p = 0; p < partitions; p++)
    if (!seen[p]) return fail(Code::unavailable, "partition ", p, " has nobody who leads it, among the ", nodes.size(), " nodes that answer");
  return {};
}

Result<void> ClusterCut::Parts::confirm() {
  Request request;
  request.set_step(Request::kConfirm);
  request.set_cut(cut);
  for (const base::Time until = now() + kConfirmPatience;; std::this_thread::sleep_for(5ms)) {
    std::uint64_t unsure = 0;
    for (Node& node : nodes) {
      TRY_LET(reply, ask(node, request, kStepPatience));
      unsure += reply.unsure();
    }
    if (unsure == 0) return {};
    if (now() > until) return fail(Code::unavailable, unsure, " partitions cannot commit what they were asked last");
  }
}

void ClusterCut::Parts::forget() {
  if (cut == 0) return;
  Request request;
  request.set_step(Request::kForget);
  request.set_cut(cut);
  for (Node& node : nodes) (void)ask(node, request, 2s).has_value();
  cut = 0;
}

Result<void> ClusterCut::Parts::try_once(const Wanted& wanted, Millis limit) {
  cut = base::entropy() | 1;
  Request request;
  request.set_step(Request::kBegin);
  request.set_cut(cut);
  request.set_limit_ms(static_cast<std::uint64_t>(limit.count()));
  for (const auto& [partition, version] : wanted.since) {
    wire::PartitionMark& one = *request.add_since();
    one.set_partition(partition);
    one.set_version(version);
  }
  const base::Time began = now();
  if (base::kMutant == base::Mutant::cut_apart) {
    Request next = request;
    next.set_step(Request::kGoOn);
    for (Node& node : nodes) {
      TRY_LET(begun, ask(node, request, kStepPatience));
      TRY_LET(gone_on, ask(node, next, kStepPatience));
      node.begun = std::move(begun);
      node.gone_on = std::move(gone_on);
      std::this_thread::sleep_for(20ms);
    }
    TRY(compare());
    return confirm();
  }
  TRY(ask_all(request, &Node::begun));
  // From here until the first goes on nothing changes anywhere: this is the moment.
  request.clear_since();
  request.set_step(Request::kGoOn);
  TRY(ask_all(request, &Node::gone_on));
  pause_us = static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(now() - began).count());
  TRY(compare());
  return confirm();
}

ClusterCut::ClusterCut(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
ClusterCut::ClusterCut(ClusterCut&&) noexcept = default;
ClusterCut::~ClusterCut() {
  if (parts_ != nullptr) parts_->forget();
}

Result<ClusterCut> ClusterCut::make(const std::vector<client::Address>& addresses, const security::Opener& opener, const Wanted& wanted) {
  auto parts = std::make_unique<Parts>();
  Millis limit = 500ms;
  for (const base::Time until = now() + wanted.patience;; std::this_thread::sleep_for(200ms)) {
    auto found = parts->find_nodes(addresses, opener);
    if (found && !wanted.cluster.empty() && wanted.cluster != parts->cluster)
      return fail(Code::conflict, "this is cluster ", parts->cluster, ", and the backup before is of cluster ", wanted.cluster);
    auto made = found ? parts->try_once(wanted, limit) : std::move(found);
    if (made) return ClusterCut(std::move(parts));
    parts->forget();
    const bool passes = made.code() == Code::unavailable || made.code() == Code::not_found || made.code() == Code::conflict;
    if (!passes || now() > until) return base::add_context("no cut could be made", made.error());
    if (wanted.tell) wanted.tell(made.error().message);
    limit = std::min<Millis>(limit * 2, 4s);
  }
}

const std::string& ClusterCut::cluster() const { return parts_->cluster; }
std::uint64_t ClusterCut::number() const { return parts_->cut; }
const std::vector<ClusterCut::Mark>& ClusterCut::marks() const { return parts_->marks; }
const std::vector<std::uint32_t>& ClusterCut::instances() const { return parts_->instances; }
std::uint64_t ClusterCut::pause_us() const { return parts_->pause_us; }

Result<void> ClusterCut::read(std::uint32_t instance, const std::function<Result<void>(Bytes)>& take) {
  const auto found = parts_->node_of.find(instance);
  if (found == parts_->node_of.end()) return fail(Code::not_found, "instance ", instance, " has no part in the cut");
  const Parts::Node& known = parts_->nodes[found->second];
  Parts::Node node{.number = known.number, .address = known.address};
  Request request;
  request.set_step(Request::kRead);
  request.set_cut(parts_->cut);
  request.set_instance(instance);
  request.set_size(kPiece);
  for (bool done = false; !done;) {
    TRY_LET(reply, Parts::ask(node, request, kReadPatience));
    TRY(take(reply.blocks()));
    done = reply.done();
  }
  return {};
}

}  // namespace zht::backup

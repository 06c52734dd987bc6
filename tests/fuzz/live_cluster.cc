// Three nodes that run: instances with their replicas, managers, keepers. Everything they say to each other travels as bytes, and the input
// says what becomes of it: each message takes a byte of it, which lets it pass, loses, repeats or delays it, or changes some of its bytes,
// half of the time to numbers at the edges of what they can be. Members that lie like that can lose data, so what is answered is not
// looked at; but nobody may end, and when the input is used up all go on ticking among themselves.
#include <google/protobuf/stubs/logging.h>

#include <deque>

#include "novoht/base/memory_files.h"
#include "tests/fuzz/fuzz.h"
#include "zht/core/instance.h"
#include "zht/core/replication/peer_frame.h"
#include "zht/server/cluster.h"
#include "zht/server/manager_codec.h"

using namespace zht;
using namespace std::chrono_literals;

namespace {

constexpr std::uint32_t kPartitions = 3;
constexpr std::size_t kNodes = 3;
constexpr std::uint64_t kCluster = 1;

struct Node {
  base::MemoryFiles disk;
  std::unique_ptr<server::Cluster> cluster;
  std::unique_ptr<core::Instance> instance;
};

class World {
 public:
  explicit World(base::Bytes input) : in_(input) {
    add_general_procedures(procedures_);
    server::Founding founding;
    for (std::size_t n = 0; n < kNodes; n++) founding.nodes.push_back({"10.0.0." + std::to_string(n + 1) + ":1", 1, ""});
    founding.partitions = kPartitions;
    founding.copies = 3;
    founding.sync_copies = 2;
    for (std::size_t n = 0; n < kNodes; n++) {
      server::ClusterOptions options;
      options.identity.member = {n + 1, 1};
      options.identity.instance_count = 1;
      options.identity.partition_count = kPartitions;
      options.identity.cluster = kCluster;
      options.identity.number = n + 1;
      options.identity.founding = founding;
      options.identity.keepers = {1, 2, 3};
      options.folder = "keeper";
      auto cluster = server::Cluster::open(options, nodes_[n].disk);
      CHECK(cluster, cluster ? "" : cluster.error().message);
      nodes_[n].cluster = *std::move(cluster);
      core::InstanceOptions instance;
      instance.id = InstanceId{server::first_instance(n + 1)};
      instance.clustered = true;
      instance.incarnation = 1;
      instance.boot = "boot";
      instance.segment_size = 64 << 10;
      instance.timing.tail_bytes = instance.timing.all_tails_bytes = 4096;
      instance.limits.undo = 4096;
      instance.limits.memory = 1 << 20;
      auto opened = core::Instance::open(nodes_[n].disk, "store", instance, procedures_, nodes_[n].cluster->views());
      CHECK(opened, opened ? "" : opened.error().message);
      nodes_[n].instance = *std::move(opened);
    }
  }

  void run() {
    for (int quiet = 0; quiet < 30; is_over() ? quiet++ : quiet = 0) {
      const std::size_t left = in_.left();
      step();
      if (in_.left() == left) (void)in_.u8();  // time passes also where nobody speaks
    }
  }

 private:
  struct Said {
    std::size_t to;
    std::string bytes;  // one frame
    base::Time at;
  };

  void step() {
    clock_.advance(10ms);
    for (std::size_t n = 0; n < kNodes; n++) ask(n);
    std::deque<Said> now;
    for (std::size_t left = under_way_.size(); left > 0; left--) {
      Said one = std::move(under_way_.front());
      under_way_.pop_front();
      if (one.at > clock_.now()) under_way_.push_back(std::move(one));
      else carry(std::move(one), now);
    }
    for (std::size_t n = 0; n < kNodes; n++) turn(n, now);
  }

  bool is_over() const { return !in_.ok() || in_.left() == 0; }

  // What becomes of one message.
  void carry(Said one, std::deque<Said>& now) {
    const std::uint8_t fate = is_over() ? 0 : in_.u8();
    if (fate >= 0xf8) return;
    if (fate >= 0xf0) now.push_back(one);
    if (fate >= 0xe0 && fate < 0xf0) {
      one.at = clock_.now() + std::chrono::milliseconds(10 * (1 + fate % 16));
      return under_way_.push_back(std::move(one));
    }
    if (fate >= 0x80 && fate < 0xe0) change(one.bytes, fate % 4 + 1u);
    now.push_back(std::move(one));
  }

  // Bytes after the header, whose lengths stay right.
  void change(std::string& bytes, unsigned count) {
    static constexpr std::uint64_t kEdges[] = {0, 1, 2, 3, 0x7f, 0xff, 0xffff, 0x7fffffff, 0xffffffff,
                                              std::uint64_t{1} << 62, UINT64_MAX >> 1, UINT64_MAX};
    for (; count > 0 && bytes.size() > wire::kHeaderSize; count--) {
      const std::size_t at = wire::kHeaderSize + in_.u16() % (bytes.size() - wire::kHeaderSize);
      const std::uint8_t how = in_.u8();
      if (how < 0x80) {
        bytes[at] = static_cast<char>(in_.u8());
        continue;
      }
      const std::uint64_t number = kEdges[how % std::size(kEdges)];
      for (std::size_t i = 0, width = how & 0x40 ? 8 : 4; i < width && at + i < bytes.size(); i++)
        bytes[at + i] = reinterpret_cast<const char*>(&number)[i];
    }
  }

  void turn(std::size_t n, const std::deque<Said>& now) {
    Node& node = nodes_[n];
    core::Instance& instance = *node.instance;
    instance.begin_round(clock_.now(), clock_.wall());
    instance.set_candidates(node.cluster->candidates(clock_.now()));
    instance.set_sites(node.cluster->sites());
    for (const Said& one : now) {
      if (one.to != n) continue;
      const auto frame = wire::next_frame(one.bytes, wire::kMaxFrameSize);
      if (!frame || !*frame) continue;
      if ((*frame)->type == wire::FrameType::peer) {
        if (const auto message = replication::decode_peer(**frame, kPartitions)) instance.on_peer(*message);
      } else if (const auto message = server::decode_manager(**frame, kPartitions)) {
        if (node.cluster->belongs(message->from)) node.cluster->on_message(*message, clock_.now());
      }
    }
    node.cluster->tick(clock_.now());
    auto step = node.cluster->step(clock_.now());
    if (step) {
      for (const replication::ViewNews& one : step->views) instance.adopt(one.partition, one.view);
      for (const replication::Placed& one : step->goals) instance.set_goal(one.partition, one.goal);
      for (const replication::ManagerMessage& one : step->messages) {
        std::string bytes;
        server::encode_manager(bytes, one, kCluster);
        send(static_cast<std::uint64_t>(one.to) - 1, std::move(bytes));
      }
    }
    (void)node.cluster->table(clock_.now());
    instance.on_tick();
    std::string out;
    for (const std::string& request : asked_[n])
      if (const auto frame = wire::next_frame(request, wire::kMaxFrameSize); frame && *frame) instance.on_frame(core::ConnectionId{1}, **frame, out);
    asked_[n].clear();
    send(instance.take_peer_messages());
    (void)instance.end_round().has_value();
    instance.finish_round(clock_.now());
    send(instance.take_peer_messages());
    for (const replication::Wish& one : instance.take_wishes()) node.cluster->wish(one);
    for (const replication::ViewNews& one : instance.take_news()) node.cluster->adopt(one);
    (void)instance.take_sends();
    (void)instance.replicator().figures();
    for (std::uint32_t p = 0; p < kPartitions; p++) (void)instance.replicator().report(PartitionId{p});
  }

  void send(std::vector<replication::PeerMessage> messages) {
    for (const replication::PeerMessage& one : messages) {
      wire::Gathered gathered;
      replication::encode_peer(gathered, one, kCluster);
      const std::string bytes = gathered.whole();
      const std::size_t to = server::node_of(one.to) - 1;
      for (base::Bytes rest = bytes; !rest.empty();) {
        const std::size_t size = (**wire::next_frame(rest, wire::kMaxFrameSize)).size;
        send(to, std::string(rest.substr(0, size)));
        rest.remove_prefix(size);
      }
    }
  }
  void send(std::size_t to, std::string bytes) {
    if (to < kNodes && under_way_.size() < 10'000) under_way_.push_back({to, std::move(bytes), clock_.now()});
  }

  // A client that changes something now and then, at whichever node.
  void ask(std::size_t n) {
    if (++asks_ % 3 != 0) return;
    const std::string key = "k" + std::to_string(asks_ % 11);
    const PartitionId partition = partition_of(key, kPartitions);
    const std::string value(asks_ % 900, 'v');
    const Operation operation = asks_ % 5 == 0 ? Operation::append(key, value) : Operation::insert(key, value);
    wire::Identity identity;
    identity.request = asks_;
    identity.client = (std::uint64_t{base::to_millis(clock_.wall()) / 4000} << 34) | 5;
    identity.sequence = ++sequence_;
    identity.epoch = replication::number(nodes_[n].instance->epoch_of(partition));
    identity.partition = partition;
    wire::encode_request(asked_[n].emplace_back(), operation, identity);
  }

  base::Reader in_;
  base::FakeClock clock_;
  Procedures procedures_;
  Node nodes_[kNodes];
  std::deque<Said> under_way_;
  std::vector<std::string> asked_[kNodes];
  std::uint64_t asks_ = 0, sequence_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const bool quiet = (google::protobuf::SetLogHandler(nullptr), true);
  (void)quiet;
  World(fuzz::bytes_of(data, std::min<std::size_t>(size, 20'000))).run();
  return 0;
}

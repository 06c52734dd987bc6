// The simulator's inside: the world (cluster.cc), its nodes (node.cc) with their instances (seat.cc), and its clients (client.cc);
// others play in it. Instance i is at node i % kNodes.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <set>
#include <string>
#include <vector>

#include "novoht/base/memory_files.h"
#include "novoht/base/random.h"
#include "tests/sim/bare_server.h"
#include "tests/sim/cluster.h"
#include "tests/sim/frames.h"
#include "tests/sim/ledger.h"
#include "tests/sim/losses.h"
#include "tests/sim/packet.h"
#include "tests/sim/sim_store.h"
#include "zht/core/instance.h"
#include "zht/core/replication/keepership.h"
#include "zht/core/replication/sightings.h"

namespace zht::sim {

using namespace replication;
using core::ConnectionId;
using core::Instance;

inline constexpr Micros ms = 1000, sec = 1000 * ms;
inline constexpr int kNodes = 6, kSeeds = 4, kKeepers = 3, kClients = 6;  // nodes past the first kSeeds join later
inline constexpr int kClientBase = 100, kReader = kClientBase + kClients;
inline constexpr const char* kKeys[] = {"a", "b", "c", "x"};

inline int home(InstanceId instance) { return static_cast<int>(static_cast<std::uint32_t>(instance) % kNodes); }

inline Micros between(base::Random& random, Micros a, Micros b) {
  return a + static_cast<Micros>(random.below(static_cast<std::uint64_t>(b - a + 1)));
}

class Cluster;

class Node;

// One instance of a node, with rounds of its own: the real thing over the node's disk, or the bare protocol.
class Seat final : public ReplicationObserver {
 public:
  Seat(Node& node, int place);
  bool open();  // false: it died meanwhile
  void close();
  // One round of its event loop: what came, then the disk, then what may be said.
  void round(const std::function<void()>& work);
  void on_peer(const PeerMessage& message);
  void on_request(int from, const Request& asked);
  void tick();
  void adopt(PartitionId partition, const View& view);
  void take_over(PartitionId partition, Epoch epoch, Position end);
  void sync();  // under durability interval, now and then
  void set_full(bool full);
  void check_tables(const char* when);
  void drop_watches();
  void note_rewinds();

  InstanceId id() const;
  Member self() const;
  std::string folder() const;
  std::unique_ptr<SimStore> store;     // of the bare protocol
  std::unique_ptr<Instance> instance;  // or else
  Replicator* replicator = nullptr;

 private:
  bool open_instance();
  void open_protocol();
  void instance_round(const std::function<void()>& work);
  void finish(base::Time at);
  void finish_later(base::Time begun);
  bool stalls();
  void after_round();
  void take_frames(Bytes frames);
  void note_alone(bool shown);
  void sync_soon();
  void note_failure();
  void fail();
  std::string name() const;

  void on_promoted(Member, PartitionId partition) override;
  void on_appended(Member, PartitionId partition, const Entry& entry, Position previous) override;
  void on_committed(Member, PartitionId partition, Version first, Version last) override;
  void on_broken(Member, PartitionId, std::string_view what) override;
  void on_forgotten(Member, PartitionId partition, const View& view) override;

  Node& node_;
  Cluster& world_;
  const int place_;
  Micros synced_at_ = 0;
  bool syncing_ = false, finish_later_ = false, failure_noted_ = false;
  std::uint64_t marked_ = 0, unsynced_ = 0;
  std::unique_ptr<Replicator> own_;  // of the bare protocol
  std::unique_ptr<BareServer> server_;
  struct Asked {
    int client;
    Request request;
  };
  std::map<std::uint64_t, Asked> asked_;  // by the frame's number
  std::uint64_t next_frame_ = 1;
  std::string out_;                       // frames that may leave at the round's end
  std::map<std::uint32_t, Position> seen_;  // by partition: where the log was after the last round
};

// A machine with one process: a manager, perhaps a keeper, and instances.
class Node {
 public:
  Node(Cluster& world, int id);
  void start();
  void stop(bool power);
  void deliver(int from, const PacketPtr& packet);
  void set_goal(PartitionId partition, const Goal& goal);
  bool keep_alone(std::uint64_t config);
  void set_clock(double rate, Micros wall_ahead);
  int number() const { return id_; }
  std::uint64_t life() const { return life_; }
  Cluster& world() { return world_; }
  Micros local(Micros now) const { return offset_ + static_cast<Micros>(static_cast<double>(now) * rate_); }
  base::Time now() const;
  base::WallTime wall() const { return base::from_millis(kWallMillis) + std::chrono::microseconds(local(world_now()) + wall_ahead_); }
  Seat& seat_of(InstanceId instance);
  bool has_failed() const;  // the store of an instance
  // After anything that happened here: what follows from it for the cluster.
  void after_turn();
  void reply_retry(int to, const Request& request);

  bool up = false, powered = true, known = false, leaving = false;
  bool removed = false;  // its machine is gone, and nobody starts it
  Micros paused_until = 0;
  std::map<std::uint64_t, Micros> ended;  // by incarnation: when
  base::MemoryFiles disk, keeper_disk, own_disk;  // the last: what the node remembers of itself and of others
  std::uint64_t incarnation = 1, boot = 1;
  std::uint32_t rack = 0;
  bool is_full() const { return full_; }
  std::uint64_t voted() const { return voted_; }
  std::uint64_t knows_config() const { return config_; }
  void set_full(bool full);
  std::deque<Seat> seats;
  std::unique_ptr<Manager> manager;
  std::unique_ptr<Keepership> keepership;
  std::unique_ptr<Sightings> sightings;  // not with the bare protocol
  // old_copies.cc
  SightingsState remembered() const;  // as its disk has it
  void copy_folder();
  // Puts an older copy of the folder back, if there is one that `may` be; it is given what that copy remembers.
  bool put_back(const std::function<bool(const SightingsState&)>& may);

 private:
  // What `cp -a` of its data folder makes.
  struct FolderCopy {
    Micros at = 0;
    std::map<std::string, std::string> disk, keeper_disk, own_disk;
    std::uint64_t incarnation = 0, config = 0, voted = 0;
    std::vector<NodeId> keepers;
  };
  std::deque<FolderCopy> copies_;
  Sightings::Verdict told_verdict_ = Sightings::Verdict::waits;  // to the instances
  void begin_sightings();
  void keep_sightings();
  void tell_verdict();
  void use_sightings();
  Result<RegisterStore*> open_registers();
  bool load_registers();
  void die_opening();
  Micros world_now() const;
  void tick();

  Cluster& world_;
  const int id_;
  std::uint64_t life_ = 0;  // to tell events of an earlier process
  double rate_ = 1;
  Micros offset_ = 0, wall_ahead_ = 0;
  std::uint64_t config_ = 1, voted_ = 0;  // who keeps, as durably noted, and in what this node has voted
  std::vector<NodeId> keepers_;
  std::unique_ptr<novoht::Store> registers_;
  std::unique_ptr<RegisterStore> register_store_;
  bool full_ = false;
};

class Client {
 public:
  Client(Cluster& world, int id, bool reader) : world_(world), id_(id), reader_(reader) {}
  void next();
  void on(const Packet& packet);
  void read_all();
  void forget(std::uint32_t partition);  // versions there begin anew
  bool finished = false;
  double read_bias = 0, watch_bias = 0;
  std::vector<View> views;

 private:
  void post();
  void give_up();
  bool is_enough() const;
  View& view() { return views[request_.partition]; }

  Cluster& world_;
  const int id_;
  const bool reader_;
  bool busy_ = false;
  std::uint64_t sequence_ = 0, timer_ = 0;
  Request request_;
  Micros began_ = 0;
  std::size_t call_ = 0;
  std::vector<std::pair<std::uint32_t, std::string>> todo_;
  std::map<std::pair<std::uint32_t, std::string>, std::pair<std::optional<std::string>, Version>> seen_;
  std::map<std::uint32_t, Micros> forgot_;  // by partition: what was asked before then is not remembered
};

class Cluster {
 public:
  Cluster(std::uint64_t seed, const RunOptions& run);
  RunResult run();

  void at(Micros when, std::function<void()> what) { events_.push({std::max(when, now), order_++, std::move(what)}); }
  void send(int from, int to, Packet packet);
  void learned(PartitionId partition, const View& view);
  // Interval: what partitions may lack, after a disk has lost something.
  void look_for_losses();
  bool is_destroyed(std::uint32_t partition) const;
  void crash_point(int node);
  bool crash_now(int node);
  void restart(int node);
  bool dies_opening();
  bool loses_power() { return power_ && random.chance(0.5); }
  void say(const char* format, ...) __attribute__((format(printf, 2, 3)));
  void happened(Happened kind) { result.happened.add(kind); }
  // A keeper has said that it accepts what `proposer` proposed.
  void accepted(int voter, int proposer, PartitionId partition);
  void left(int node);
  void other_keepers(int node, std::uint64_t config, const std::vector<NodeId>& keepers);
  bool keeps(int node) const {
    return std::find(keepers.begin(), keepers.end(), NodeId{static_cast<std::uint64_t>(node)}) != keepers.end();
  }
  void bad(const char* kind, std::string text) { result.violations.push_back({kind, std::move(text)}); }
  void answered();
  void tell(int from, int to, const Packet& packet);
  View& latest(std::uint32_t partition) { return latest_[partition]; }
  static std::string name(int node) { return "n" + std::to_string(node); }
  Node& node_of(InstanceId instance) { return nodes[static_cast<std::size_t>(home(instance))]; }
  // Some instance of any node.
  InstanceId any_instance() { return InstanceId{static_cast<std::uint32_t>(random.below(kNodes * static_cast<std::uint64_t>(seat_count)))}; }

  base::Random random;
  const RunOptions options;
  RunResult result;
  History history;
  Ledger ledger;
  Losses losses{history, ledger};
  Micros now = 0, work_until = 0, stop_faults = 0;
  Timing timing;
  core::ByteLimits limits;
  Micros replace_after = 800 * ms;
  std::uint64_t config = 1;     // of the keepers, the newest that anyone knows
  std::vector<NodeId> keepers;  // ... and who they are
  bool always = true;  // durability: else what was written is acknowledged, and synced within a second
  std::uint32_t partition_count = 1;
  int seat_count = 1;  // instances of a node
  std::vector<View> first;
  std::vector<int> seeds;
  bool slow_disk = false;
  double round_pause = 0;
  std::deque<Node> nodes;
  std::deque<Client> clients;

 private:
  struct Event {
    Micros at;
    std::uint64_t order;
    std::function<void()> run;
    bool operator<(const Event& other) const { return at != other.at ? at > other.at : order > other.order; }
  };
  using Links = std::set<std::pair<int, int>>;

  void fault();
  void crash(int node, bool power);
  void reaped(int node, std::uint64_t life, int times);
  static bool has_part(const View& view, int node);
  void rot(int node);
  void rot_keeper(int node, bool power);
  void cut(Links links, Micros hold);
  void split(const std::set<int>& side, Micros hold, bool clients_too);
  void move_something();
  void come_or_go();
  void deafen(NodeId keeper);
  void hear_one_first();
  void starve(int node);
  void interrupt_vote(int proposer, PartitionId partition);
  // old_copies.cc
  void copy_folders();
  void put_back(int node);
  void put_all_back();
  void accept_loss();
  std::uint64_t next_life(const Node& node) const;
  // operator.cc
  void destroy();
  void operate();
  void destroy_keepers();
  void replace_keepers();
  void look_for_abandoned(std::uint32_t partition, const View& view);
  void deliver(int from, int to, std::uint64_t order, const PacketPtr& packet);
  void heal();
  void judge();

  std::priority_queue<Event> events_;
  std::uint64_t order_ = 0;
  double loss_ = 0, repeat_ = 0, crash_point_ = 0, pace_ = 1;
  Micros tail_ = 0, slow_until_ = 0, last_answer_ = 0;
  bool rot_allowed_ = false, power_ = false;
  std::array<int, static_cast<std::size_t>(Fault::count)> weights_{};
  std::map<std::pair<int, int>, int> cut_;
  std::map<std::pair<int, int>, std::uint64_t> arrived_;  // by link, the latest in order of what was sent
  std::map<int, Micros> stalled_;                         // what these say is held back until then
  bool vote_armed_ = false;
  std::set<std::tuple<std::uint32_t, Epoch, Member>> given_up_;  // which partition, in which view, and who was told to go on
  std::vector<View> latest_;
  std::map<std::pair<std::uint32_t, std::uint64_t>, View> decided_;
  std::map<std::uint64_t, std::vector<NodeId>> decided_keepers_;
  std::optional<NodeId> deaf_;  // a keeper that was not told the latest decisions
  bool quiet_ = false;  // no more faults
  std::map<int, std::uint64_t> keeper_rot_;  // by node: in which configuration of the keepers
};

}  // namespace zht::sim

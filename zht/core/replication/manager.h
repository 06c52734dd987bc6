// A node's manager, as far as replication goes: it knows all views and who lives, relays its instances' wishes to a keeper,
// tells its instances of new views, and now and then makes the balancer's plan. Views are spread at once by the keeper
// that decided them; gossip finds what that missed. Sans-IO.
//
// Gossip: every node counts its own heartbeats; who knows a higher count of a node than another has newer news of it. A
// message to one random node each period carries all counts and a digest of all views; where digests differ the two
// compare epochs and exchange what is newer, so that a settled cluster says next to nothing.
#pragma once

#include <optional>

#include "novoht/base/random.h"
#include "zht/core/replication/balancer.h"
#include "zht/core/replication/keeper.h"
#include "zht/core/replication/replicator.h"

namespace zht::replication {

// How far a node's data folder was seen to be (sightings.h).
struct Sighting {
  std::uint64_t incarnation = 0, mark = 0;
  auto operator<=>(const Sighting&) const = default;
};

// Whether a node's folder is an older copy of itself, put back, as far as the node knows.
enum class Folder : std::uint8_t { unknown, good, older, last = older };

struct NodeInfo {
  NodeId node{0};
  std::uint64_t heartbeat = 0;  // grows with every period, and with every start
  Members instances;
  std::uint32_t rack = 0;
  bool room = true;      // its disk takes more
  bool leaving = false;  // wants to be emptied
  std::string about;     // what else it tells of itself: the embedder's business
  bool stopping = false; // ends for a while: no place for a copy, and nothing shall be led there
  std::uint64_t lost_registers = 0;  // it should vote in this configuration of keepers, and has lost what it had promised
  Sighting sighting;  // of its folder, durable; incarnation 0: none yet in this life
};

struct ManagerMessage {
  NodeId from{0}, to{0};
  std::vector<KeeperMessage> keeper;
  std::vector<ViewNews> views;
  std::vector<Placed> goals;
  std::vector<NodeInfo> nodes;        // gossip, and then
  std::uint64_t digest = 0;           // ... of all views the sender knows
  std::vector<Epoch> epochs;          // of all partitions: tell me what is newer
  bool answer_epochs = false;         // ... and your own epochs, for I may know more
  // Who the keepers are; a higher number is newer. With gossip.
  std::uint64_t config = 0;
  std::vector<NodeId> keepers;
  // From a keeper to one that shall become one (keepership.h): all registers, those of who keeps and who votes among them, none
  // left out. And that it votes.
  std::vector<Register> install;
  bool installed = false;
  bool asks_keepers = false;  // to be told who the keepers are, also when that is not news
  std::uint64_t answers = 0;  // ... which a life of the receiver has asked, and who knows it says: `config` is as new as any it knows
  // sightings.h: the sender's incarnation (0: of a build that has none), what it remembers of the receiver's folder, the life of the
  // receiver whose memory the sender has looked at, and what is known of the sender's folder.
  std::uint64_t life = 0;
  std::optional<Sighting> seen;
  std::uint64_t checked = 0;
  Folder folder = Folder::unknown;  // with either
};

struct ManagerOptions {
  NodeId self{0};
  std::vector<NodeId> keepers;
  std::uint64_t config = 1;  // of the keepers
  base::Duration gossip = std::chrono::milliseconds(200);
  // A keeper is told a wish when it was heard within this time, and else when it has answered a knock. Less than the silence
  // after which a primary drops a member.
  base::Duration fresh = std::chrono::milliseconds(100);
  // What was wished for this long ago is still wished for, or else settled by a newer epoch; so late an answer to a knock will do,
  // for on a machine that has too much to do none is earlier.
  base::Duration wish_life = std::chrono::seconds(1);
  base::Duration dead = std::chrono::seconds(2);  // without news of a node for this long it is no place for a copy
  base::Duration balance = std::chrono::seconds(1);
  BalanceOptions balancing;
  bool balances = true;
  std::uint32_t partitions = ~std::uint32_t{0};  // of the views, the first so many are partitions'
  std::size_t remembered = std::size_t{32} << 20;  // bytes of what is known of other nodes; past that nothing more is noted
};

// One thread.
class Manager {
 public:
  // `views`: by partition, as last known. `peers`: nodes to gossip with at first; more become known.
  Manager(ManagerOptions options, NodeInfo self, std::vector<View> views, std::vector<NodeId> peers, std::uint64_t seed);

  void on_message(const ManagerMessage& message, base::Time now);
  void wish(const Wish& wish);                  // of an instance here
  void adopt(PartitionId partition, const View& view);
  void broadcast(PartitionId partition);        // a keeper here has decided it
  // The process that ran these instances of `node` has ended, says who saw it: the node is thought dead until it is heard of in a
  // later life. `out`: its instances are to be counted out of every view without waiting; one manager's business.
  void ended(NodeId node, const Members& members, bool out);
  void send_goal(const Placed& goal);           // to the node of the partition's primary; forgotten when that is not known
  // Has every other node say a word; when one did last.
  void knock_everywhere();
  base::Time spoke(NodeId node) const;
  // All others hear at once what this node says of itself now, rather than one after another by gossip.
  void announce();
  // Goals that empty this node of what others have copies of (balancer.h).
  std::vector<Placed> hand_over(base::Time now) const;
  void tick(base::Time now);  // when next_due() has come, or sooner; and before a wish() if time has passed
  base::Time next_due() const;
  std::vector<ManagerMessage> take_messages();
  std::vector<PartitionId> take_news() { return std::exchange(news_, {}); }   // for the instances and the keeper here
  std::vector<Placed> take_goals() { return std::exchange(goals_, {}); }      // for the instances here

  const View& view(PartitionId partition) const { return views_[static_cast<std::uint32_t>(partition)]; }
  const std::vector<View>& views() const { return views_; }
  // Other keepers than before; older ones are passed over.
  bool set_keepers(std::uint64_t config, std::vector<NodeId> keepers);
  const std::vector<NodeId>& keepers() const { return options_.keepers; }
  std::uint64_t config() const { return options_.config; }
  // What is to be sent besides, to be taken with take_messages().
  ManagerMessage& message_for(NodeId node) { return message_to(node); }
  std::uint64_t version() const;  // of the whole table: grows with every view
  std::vector<Candidate> candidates(base::Time now) const;
  std::map<InstanceId, Site> sites() const;
  NodeInfo& self() { return nodes_[options_.self].info; }
  // Every node that was ever heard of, this one too, and whether it is thought to live.
  struct Acquaintance {
    const NodeInfo* info;
    bool lives;
  };
  std::vector<Acquaintance> acquaintances(base::Time now) const;
  std::size_t remembered() const { return remembered_; }            // bytes
  std::uint64_t not_remembered() const { return forgotten_; }       // news of nodes that found no room

 private:
  struct Known {
    NodeInfo info;
    base::Time heard{};
    bool ended = false;  // and not heard of since in a later life
    base::Time spoke{};  // itself, to this node
  };
  bool has_ended(NodeId node) const;
  void count_out();
  ManagerMessage& message_to(NodeId node);
  void tell(NodeId keeper, const Wish& wish);
  void knock(NodeId keeper, const Wish& wish);
  void answered(NodeId keeper, base::Time now);
  void hear_of(const NodeInfo& info, base::Time now);
  void compare(const ManagerMessage& message);
  void gossip(base::Time now);
  void gossip_to(NodeId node, std::vector<NodeInfo> nodes);
  std::span<const View> partitions() const { return std::span(views_).first(std::min<std::size_t>(views_.size(), options_.partitions)); }
  std::vector<Place> places(base::Time now) const;  // that live
  std::set<PartitionId> moving(base::Time now);
  bool plans(base::Time now) const;  // it is this node's business
  void plan(base::Time now);
  struct Intent {
    Goal goal;
    View seen;              // the newest
    base::Time changed{};   // since when it is that
    base::Time said{};      // when the goal was told last
    bool told = false;      // the primary of that view
  };
  std::set<PartitionId> touched(base::Time now);
  static bool is_foreign(const Intent& intent, const View& now_is);
  void follow_up(base::Time now);
  void forget_hopeless(base::Time now);
  bool lives(const Known& known, base::Time now) const;
  std::uint64_t digest() const;

  ManagerOptions options_;
  std::vector<View> views_;
  std::map<NodeId, Known> nodes_;
  std::map<NodeId, ManagerMessage> messages_;
  std::size_t remembered_ = 0;
  std::uint64_t forgotten_ = 0;
  std::vector<PartitionId> news_;
  std::vector<Placed> goals_;
  base::Random random_;
  struct Tries {
    Epoch base{0};
    std::size_t count = 0;
  };
  // By the planner: of what has a copy too many the view, and since when it is that.
  struct Surplus {
    Epoch epoch{0};
    base::Time since{};
  };
  std::map<PartitionId, Surplus> surplus_;
  // By the planner: goals it has set, until their partitions are there. A primary that hands over takes its goal with it, so the next
  // one is told at once; and the next plan is made of where everything will be.
  std::map<PartitionId, Intent> intents_;
  // By the planner: each partition's view as last seen, and since when. An operator's move is not undone while it is still under way.
  std::vector<Surplus> views_seen_;
  bool rests_ = false;            // nothing moves, and the last plan was to move nothing
  std::uint64_t no_plan_of_ = 0;  // version() of a table of which no goal came, with these:
  std::vector<Place> places_;
  std::set<PartitionId> planned_moves_;  // what was under way at the last plan: its changes are the planner's own
  std::unordered_map<std::uint32_t, Tries> tries_;  // of wishes that are not granted yet, by partition
  // Keepers: when they were heard themselves, and what they will be told when they answer.
  struct Door {
    struct Waiting {
      Wish wish;
      base::Time at{};
    };
    base::Time heard{}, knocked{};
    std::map<PartitionId, Waiting> wishes;
  };
  std::map<NodeId, Door> doors_;
  // Members whose process has ended, until every view does without them, or for so long.
  struct Ended {
    Member member;
    base::Time until, next{};
  };
  std::vector<Ended> ended_;
  base::Time now_{}, next_gossip_{}, next_plan_{}, planned_{};
};

}  // namespace zht::replication

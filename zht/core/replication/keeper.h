// A keeper: one of the few managers that hold every partition's view. Each partition is a register of its own, and each
// epoch of a register is decided once, by single-decree Paxos among the keepers: the value is the next view, made from the
// current one by a Change. A decided view is never decided again; a promise is durable before it is given.
//
// Keepers are consulted only when views change. What touches hundreds of partitions at once (a node dies) travels in one
// message to each keeper and costs each one write. No clock, disk, thread or socket: time, messages and the disk come in.
//
//   keeper.on(from, messages, now);   // any number of these, and
//   keeper.tick(now);                 // every 10 ms or so
//   for (auto& send : TRY(keeper.end_round(now))) network.send(send.to, send.messages);
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "novoht/base/random.h"
#include "novoht/store.h"
#include "zht/core/replication/view.h"

namespace zht::replication {

enum class NodeId : std::uint64_t {};

struct Ballot {
  std::uint64_t round = 0;
  NodeId node{0};
  auto operator<=>(const Ballot&) const = default;
};

// What a keeper knows of one partition. Promise and acceptance are about the epoch after the current view's.
struct Register {
  View current;
  Ballot promised;
  Ballot accepted_at;
  std::optional<View> accepted;
};

// What is said of one partition; many of these travel together.
struct KeeperMessage {
  enum class Kind : std::uint8_t {
    change,    // anyone to a keeper: please make `change` happen; answered by a view, or by silence and then tried again
    ask,       // which view is newer than `epoch`?
    view,      // `view` is decided
    prepare,   // keeper to keeper, about `epoch`: promise `ballot`?
    promise,   // ... yes, and the highest acceptance so far was `view` at `accepted_at`
    refuse,    // ... no, `ballot` is promised
    accept,    // accept `view` at `ballot`? If that is not promised any more: refuse
    accepted,  // ... done
    last = accepted
  };
  Kind kind = Kind::ask;
  PartitionId partition{0};
  Epoch epoch{0};
  Ballot ballot, accepted_at;
  std::optional<View> view;
  Change change;
  std::uint64_t config = 0;  // prepare to accepted: the configuration in which the sender votes
};

struct KeeperSend {
  NodeId to{0};
  std::vector<KeeperMessage> messages;
};

// Where registers survive. One thread.
class RegisterStore {
 public:
  virtual ~RegisterStore() = default;
  struct Item {
    PartitionId partition;
    const Register* state;
  };
  // All durable when it returns ok. After an error nothing more may be promised: the keeper stays silent.
  virtual Result<void> save(std::span<const Item> items) = 0;
  // Replaces those of `registers` (by partition number) that were ever saved. corrupt: names the partition.
  virtual Result<void> load(std::vector<Register>& registers) const = 0;
};

// Registers in a NoVoHT store: one key for each partition, one write and one sync for a batch.
class StoredRegisters final : public RegisterStore {
 public:
  StoredRegisters(novoht::Store& store, novoht::TableId table) : store_(store), table_(table) {}
  Result<void> save(std::span<const Item> items) override;
  Result<void> load(std::vector<Register>& registers) const override;

 private:
  novoht::Store& store_;
  novoht::TableId table_;
};

struct KeeperOptions {
  NodeId self{0};
  std::vector<NodeId> keepers;  // self among them
  // What was not answered after this, and up to twice as much again, is said again; later after four times that.
  base::Duration retry = std::chrono::milliseconds(30);
  Defects defects;
  // After these comes the register of numbers (next_enrolment()), and then that of who keeps (next_keepers()).
  std::uint32_t partitions = ~std::uint32_t{0} - 1;
  std::uint64_t config = 1;  // of the keepers: votes of another count for nothing
};

// One thread.
class Keeper {
 public:
  // `registers`: by partition number, as saved or, at first, the views the cluster was made with. `store` outlives it.
  Keeper(KeeperOptions options, std::vector<Register> registers, RegisterStore& store, std::uint64_t seed);

  void on(NodeId from, std::span<const KeeperMessage> messages, base::Time now);
  void tick(base::Time now);
  bool waits() const { return !failed_ && !proposals_.empty(); }  // for tick()
  // Saves what changed and returns what may then be said. An error: this keeper can promise nothing more, ever; its
  // process should end.
  Result<std::vector<KeeperSend>> end_round(base::Time now);

  const View& view(PartitionId partition) const { return at(partition).current; }
  const std::vector<Register>& registers() const { return registers_; }  // for another Keeper to begin with
  std::uint32_t partition_count() const { return static_cast<std::uint32_t>(registers_.size()); }
  // Views that became current since the last call, for the manager to spread.
  std::vector<PartitionId> take_news() { return std::exchange(news_, {}); }

 private:
  struct Proposal {
    enum class Phase : std::uint8_t { prepare, accept };
    Change change;
    Epoch epoch{0};
    Phase phase = Phase::prepare;
    Ballot ballot, best_at;
    std::optional<View> best, value;
    std::set<NodeId> votes;
    // Since when it is tried, with whatever ballot; how often this was said, and when it is to be said again.
    base::Time begun{};
    unsigned said = 0;
    base::Time deadline{};
    bool refused = false;  // then: with a higher ballot
  };

  const Register& at(PartitionId partition) const { return registers_[static_cast<std::uint32_t>(partition)]; }
  Register& at(PartitionId partition) { return registers_[static_cast<std::uint32_t>(partition)]; }
  void on(NodeId from, const KeeperMessage& message, base::Time now);
  void on_change(NodeId from, const KeeperMessage& message, base::Time now);
  void on_refuse(const KeeperMessage& message, base::Time now);
  void on_prepare(NodeId from, const KeeperMessage& message);
  void on_promise(NodeId from, const KeeperMessage& message, base::Time now);
  void on_accept(NodeId from, const KeeperMessage& message);
  void on_accepted(NodeId from, const KeeperMessage& message);
  // Whether `message` is no vote, or one in this configuration; whoever is behind is helped up.
  bool is_ours(NodeId from, const KeeperMessage& message);
  // Whether `message` is about the epoch that is open here; whoever is behind is helped up.
  bool is_open(NodeId from, const KeeperMessage& message);
  std::optional<View> next_of(PartitionId partition, const Change& change) const;
  Proposal* proposal_of(const KeeperMessage& message, Proposal::Phase phase);
  void propose(PartitionId partition, const Change& change, base::Time begun, base::Time now);
  void say(PartitionId partition, Proposal& proposal, base::Time now);
  void learn(PartitionId partition, const View& view);
  void send(NodeId to, KeeperMessage message) { sends_[to].push_back(std::move(message)); }
  void tell(NodeId to, PartitionId partition);
  KeeperMessage about(KeeperMessage::Kind kind, PartitionId partition) const;
  bool is_majority(const std::set<NodeId>& votes) const { return votes.size() * 2 > options_.keepers.size(); }

  const KeeperOptions options_;
  std::vector<Register> registers_;
  RegisterStore& store_;
  base::Random random_;
  std::unordered_map<std::uint32_t, Proposal> proposals_;  // by partition
  std::unordered_map<std::uint32_t, std::uint64_t> rounds_;  // highest ballot round heard of, where higher than promised
  std::set<PartitionId> dirty_;
  std::map<NodeId, std::vector<KeeperMessage>> sends_;
  std::vector<PartitionId> news_;
  std::optional<Error> failed_;
};

}  // namespace zht::replication

// What a node's manager knows and does as a part of the cluster: the views, who lives, its keeper if it is one, the wishes of
// its instances. The cores of zht/core/replication put together; no sockets and no threads, but the keeper's disk.
//
//   cluster->on_message(message, now);  cluster->wish(wish);  cluster->adopt(news);  cluster->tick(now);   // any number, then
//   auto step = cluster->step(now);
//   send(step.messages);  tell_instances(step.views, step.goals);  if (step.table_changed) publish(cluster->encoded_table());
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "zht/core/replication/keepership.h"
#include "zht/core/replication/sightings.h"
#include "zht/server/identity.h"
#include "zht/wire/zht.pb.h"

namespace zht::server {

struct ClusterOptions {
  Identity identity;               // incarnation: of this life
  std::vector<replication::NodeInfo> known;  // other nodes heard of in earlier lives, or from who let this one join
  std::string folder;              // of the keeper's registers
  std::string rack;
  std::size_t copies = 3, sync_copies = 2;
  std::uint64_t max_value_size = 0;
  bool balances = true;
  base::Duration replace_keeper = std::chrono::seconds(10);  // one that nobody heard for this long is replaced
  // What this node remembers of itself and of others (Sightings::to_save), from its last life. None: it keeps nothing on a disk.
  std::optional<std::string> remembered;
  // Durably notes what of the keepers is not as `identity` has it. An error: that stays as it was.
  std::function<base::Result<void>(const Identity&)> save;
};

class Cluster {
 public:
  // Errors: those of novoht::Store::open, corrupt (a register).
  static base::Result<std::unique_ptr<Cluster>> open(ClusterOptions options, base::FileSystem& files);

  // --- events ---
  void on_message(const replication::ManagerMessage& message, base::Time now);
  void wish(const replication::Wish& wish) { manager_->wish(wish); }
  void ended(std::uint64_t node, const replication::Members& members, bool out) { manager_->ended(replication::NodeId{node}, members, out); }
  void adopt(const replication::ViewNews& news) { manager_->adopt(news.partition, news.view); }
  void tick(base::Time now);  // when next_due() has come, or sooner; and before a wish() if time has passed
  base::Time next_due() const {
    const base::Time due = std::min(manager_->next_due(), keepership_->next_due());
    return sightings_ ? std::min(due, sightings_->next_due()) : due;
  }
  // What this node tells of itself.
  void introduce(const wire::NodeAbout& about);
  // ... and, as others should know it soon, at once.
  void set_leaving() { manager_->self().leaving = true, manager_->announce(); }
  void set_room(bool room) { manager_->self().room = room, manager_->announce(); }
  void set_stopping() { manager_->self().stopping = true, manager_->announce(); }
  std::size_t remembered() const { return manager_->remembered(); }  // bytes, of other nodes
  std::uint64_t not_remembered() const { return manager_->not_remembered(); }
  void set_left();  // emptied: others need not think of it any more
  // Has every other node say a word, and when that was last.
  void knock_everywhere() { manager_->knock_everywhere(); }
  base::Time spoke(std::uint64_t node) const { return manager_->spoke(replication::NodeId{node}); }
  // A number for a node that wants to join; nothing as long as none is decided, and then this is to be asked again.
  std::optional<std::uint64_t> enrol(std::uint64_t uid);
  // What empties this node, for a while, of what others have copies of.
  std::vector<replication::Placed> hand_over(base::Time now) const { return manager_->hand_over(now); }
  // The last resort (Keepership::keep_alone): `gone` are nodes of which a person says that they will never come back. conflict: that
  // is not all the keepers there are but a minority, or one of them lives.
  base::Result<void> keep_alone(std::uint64_t config, const std::set<std::uint64_t>& gone, base::Time now);
  // Where a partition shall be, told to whoever leads it.
  void send_goal(const replication::Placed& goal);

  struct Step {
    std::vector<replication::ManagerMessage> messages;
    std::vector<replication::ViewNews> views;  // of partitions, newer than before
    std::vector<replication::Placed> goals;    // for instances here
    // Of those views, for the log: who leads now, who came, who went; and in which partitions. A node that dies changes
    // hundreds of views in one way.
    std::map<std::string, std::vector<PartitionId>> story;
    bool table_changed = false;
    std::optional<std::string> remember;  // to be written, durably, and then remembered() called
    bool verdict = false;                 // may_vouch() or outdated() is not as it was
  };
  // error: this keeper's disk failed; it is none any more.
  base::Result<Step> step(base::Time now);

  // --- what is known ---
  std::uint32_t partition_count() const { return options_.identity.partition_count; }
  std::vector<replication::View> views() const;  // of the partitions
  const replication::View& view(PartitionId partition) const { return manager_->view(partition); }
  std::uint64_t version() const;
  wire::MembershipTable table(base::Time now) const;
  std::vector<replication::Candidate> candidates(base::Time now) const { return manager_->candidates(now); }
  std::map<InstanceId, replication::Site> sites() const { return manager_->sites(); }
  std::vector<replication::Manager::Acquaintance> nodes(base::Time now) const { return manager_->acquaintances(now); }
  wire::NodeAbout about(std::uint64_t node) const;  // empty: not heard of yet
  bool is_keeper() const { return keepership_->votes(); }
  // Of this node's folder, see sightings.h: what is to be remembered is written, or could not be; whether it speaks for earlier lives; the
  // life in which it was found to be an older copy; and, in this life, why.
  void remembered(bool durably) { durably ? sightings_->saved() : sightings_->not_saved(); }
  void note_change() { if (sightings_) sightings_->note_change(); }
  bool may_vouch() const { return !sightings_ || sightings_->verdict() != replication::Sightings::Verdict::waits; }
  std::uint64_t outdated() const { return sightings_ ? sightings_->outdated() : 0; }
  std::string older_copy() const { return sightings_ ? sightings_->reason() : std::string(); }
  // What this node kept was damaged, and put aside: where, and what was wrong. Empty: nothing.
  const std::string& damage() const { return damage_; }
  bool has_lost_registers() const { return keepership_->has_lost_registers(); }
  // Whether others have what this node kept: if it does keep it must not leave.
  bool may_leave() const { return keepership_->may_leave(); }
  const std::vector<std::uint64_t>& keepers() const { return options_.identity.keepers; }
  bool keeps(std::uint64_t node) const { return std::find(keepers().begin(), keepers().end(), node) != keepers().end(); }
  std::uint64_t config() const { return options_.identity.config; }
  std::uint64_t self() const { return options_.identity.number; }
  // Whether the cluster has given this number to a node. One that joined just now knows of nobody yet, and says yes.
  bool belongs(replication::NodeId node) const;
  bool can_decide(base::Time now) const;  // a majority of the keepers lives, as far as is known here
  bool alone(base::Time now) const;  // no other node was ever heard of that has not left

 private:
  void on_known(const replication::ManagerMessage& message, base::Time now);
  Cluster(ClusterOptions options, base::FileSystem& files);
  base::Result<replication::RegisterStore*> open_registers();
  base::Result<void> open_store();
  void note_keepers();

  ClusterOptions options_;
  base::FileSystem& files_;
  std::unique_ptr<novoht::Store> store_;
  std::unique_ptr<replication::RegisterStore> registers_;
  std::unique_ptr<replication::Manager> manager_;
  std::unique_ptr<replication::Sightings> sightings_;  // null: it keeps nothing on a disk
  replication::Sightings::Verdict told_verdict_ = replication::Sightings::Verdict::waits;
  std::unique_ptr<replication::Keepership> keepership_;
  std::vector<replication::View> told_;  // views as the instances were told of them
  std::string damage_;
  std::optional<base::Error> failed_;
  bool told_failure_ = false;
  std::uint64_t nodes_seen_ = 0;  // a sum over all nodes that changes when one of them tells something new
};

}  // namespace zht::server

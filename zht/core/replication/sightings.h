// Whether a node's data folder is an older copy of itself, put back: what it acknowledged and promised since is not in it, and nothing
// in it says so. But others have seen the folder further, and remember.
//
//   sighting   how far a folder was: the node's life (its incarnation, which no two lives ever share) and a count in that life, that
//              grows once a period while the folder changes, and is told to all when it is durable
//   past       a folder knows its lives, and how far it was in each. A sighting that is not in its past is of a folder that was
//              further: this one is an older copy
//
// Every node remembers the newest sighting of every other, durably. Whoever meets another in a new life tells what it remembers of it,
// until that has answered that it has looked. Before, nothing that life says of itself is remembered, and its votes count for nothing.
//
//   waits      a node that begins. It speaks for no earlier life yet, and does not vote.
//   confirmed  it has been told by those who would know:
//                - all that it knows; or
//                - a majority of the keepers (itself among them, if it keeps) whose own folders are known to be good: whoever restarts
//                  while others run has that after one round trip; or
//                - after `patience`, a majority of the keepers of whom none is known to be an older copy: where all have restarted, and
//                  not all come back, for there nobody's folder is known to be good before somebody says so.
//              What it waits for is no more than what could decide anything: so whenever that could, it is confirmed too. Alone: at once.
//   outdated   somebody has seen it further. Durably, its log speaks for no earlier life, and what it kept is not used: it is healed by
//              the others as if it had lost its disk. A majority of keepers that are outdated cannot vote, so nothing is decided
//              before a person says so. It confirms others when its keeper votes again.
//
// What was written in the last period before a folder was copied, and again after the copy, is told by nobody; nor is a copy of all
// folders from one instant. No clock, disk, thread or socket: the host writes what to_save() gives.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>

#include "zht/core/replication/manager.h"

namespace zht::replication {

struct SightingsOptions {
  NodeId self{0};
  std::uint64_t incarnation = 1;
  base::Duration period = std::chrono::seconds(1);
  base::Duration again = std::chrono::milliseconds(300);  // what was not answered is said again
  base::Duration patience = std::chrono::seconds(1);
  Defects defects;
};

// What is remembered, as to_save() writes it.
struct SightingsState {
  std::map<std::uint64_t, std::uint64_t> lives;  // of this folder, with the last mark of each
  std::map<NodeId, Sighting> seen;
  std::uint64_t outdated = 0;

  static SightingsState read(Bytes saved);  // of what cannot be read: nothing
  std::string text() const;
  bool is_past(Sighting one) const;  // whether this folder was there
};

// One thread. `manager` outlives it, and knows by now of everybody that this node knew in its last life.
class Sightings {
 public:
  enum class Verdict : std::uint8_t { waits, confirmed, outdated };

  // `saved`: what to_save() gave last, durably; empty: nothing. What cannot be read is nothing: others know better.
  Sightings(SightingsOptions options, Manager& manager, Bytes saved);

  void on_message(const ManagerMessage& message, base::Time now);
  void tick(base::Time now);  // with the manager's, and when next_due() has come
  base::Time next_due() const;
  void note_change() { changed_ = true; }  // the folder is not what it was at the last mark
  // What is to be written now, if anything. saved() when it is durable; nothing more is given before; not_saved(): it could not be.
  std::optional<std::string> to_save(base::Time now);
  void saved();
  void not_saved() { saving_.reset(), changed_ = true; }

  // outdated: when that is durable.
  Verdict verdict() const { return verdict_; }
  // The life in which this folder was found to be an older copy; 0: never. It speaks for no life before that.
  std::uint64_t outdated() const { return state_.outdated; }
  // In words, of this life: who has seen it further. Empty: nobody.
  const std::string& reason() const { return reason_; }
  // Whether the keeper here votes.
  void set_votes(bool votes) { votes_ = votes; }
  std::string story() const;  // all that matters of its state, in a line, for people
  // Whether that life of `node` has looked at what this one remembers of it. Always, of a build that knows no sightings (0).
  bool trusts(NodeId node, std::uint64_t life) const;
  std::uint64_t life() const { return options_.incarnation; }
  Sighting seen(NodeId node) const;

 private:
  struct Peer {
    std::uint64_t life = 0, trusted = 0;  // as last heard; and the one that has looked
    bool told = false;                    // ... what it remembers, in that life
    Folder folder = Folder::unknown;      // as it said then
    base::Time next_tell{};
  };
  Folder folder() const;
  void tell(NodeId node, Peer& peer, base::Time now);
  void conclude(base::Time now);

  const SightingsOptions options_;
  Manager& manager_;
  Verdict verdict_ = Verdict::waits;
  SightingsState state_;
  std::string reason_;
  bool found_ = false;     // ... in this life, and it is not durable yet
  bool votes_ = false;
  std::set<NodeId> known_;  // at the beginning
  std::map<NodeId, Peer> peers_;
  bool changed_ = true, learned_ = false;
  struct Saving {
    std::uint64_t mark;
    bool outdated;
  };
  std::optional<Saving> saving_;
  base::Time begun_{}, next_save_{};
};

}  // namespace zht::replication

// Which data folder is behind a node's number. The founders of a cluster that is made from a list (founding.h) know their numbers
// from the list, not from anyone who gave them out, and each begins in its first life: so a founder whose data folder was lost
// would be taken for the node it was, with all that node had acknowledged and promised. Therefore a data folder has a random uid,
// every node remembers durably whose uid each number is, and a founder asks before it speaks for the first time:
//
//   - one node that knows another uid for its number is enough: it has lost its data, and may only join, as another node;
//   - it begins when a majority of the witnesses (the first seven of the list) have noted its uid, and all of them, or else
//     kPatience later: of those that are silent then, one may know better.
//
// So it can be mistaken only where a majority of the witnesses have lost their folders, too, and nobody who remembers runs: then
// nothing tells its start from the first of all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "novoht/base/clock.h"
#include "novoht/base/result.h"

namespace zht::server {

// By node number, in <data folder>/uids.json. One thread.
class Claims {
 public:
  // Of the cluster with this id; what the folder remembers of another is forgotten. Empty folder: nothing is kept. Errors: corrupt, io.
  static base::Result<Claims> open(const std::string& folder, std::uint64_t cluster);
  // The uid that `number` has: `uid` when none was known, which is durable then. Errors (none is known still): io, no_space.
  base::Result<std::uint64_t> claim(std::uint64_t number, std::uint64_t uid);
  std::uint64_t of(std::uint64_t number) const;  // 0: not known

 private:
  std::string path_;
  std::uint64_t cluster_ = 0;
  std::map<std::uint64_t, std::uint64_t> uids_;
};

// What a founder has heard, and what it may do. One thread.
class FirstStart {
 public:
  static constexpr std::size_t kWitnesses = 7;
  static constexpr base::Duration kPatience = std::chrono::seconds(10);
  // Number `self` of `nodes`, with this uid.
  FirstStart(std::size_t nodes, std::uint64_t self, std::uint64_t uid);
  // `node` knows `uid` for the number of this one.
  void answered(std::uint64_t node, std::uint64_t uid, base::Time now);
  enum class Verdict : std::uint8_t { waits, begins, lost };
  Verdict verdict(base::Time now) const;
  std::vector<std::uint64_t> awaited() const;  // witnesses that have not answered
  std::size_t witnesses() const { return witnesses_; }

 private:
  bool is_majority() const { return agreed_.size() * 2 > witnesses_; }

  const std::size_t witnesses_;
  const std::uint64_t uid_;
  std::set<std::uint64_t> agreed_;  // witnesses; this one among them
  base::Time agreed_at_{};          // a majority of them
  bool lost_ = false;
};

}  // namespace zht::server

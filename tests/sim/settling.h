// Clusters in which nothing is asked and nothing fails but whole nodes: do views come to rest after each join, leave, death and
// return, are all copies where they should be then, and how long does it take? Managers, keepers, balancers and replicas are the
// real ones, as zht/server puts them together; below them is a store that has only positions. So sixteen nodes are cheap.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "novoht/base/clock.h"
#include "zht/core/replication/defect.h"
#include "zht/types.h"

namespace zht::sim {

struct SettlingOptions {
  int instances = 2;  // of each node
  std::uint32_t partitions = 64;
  std::size_t copies = 3, sync_copies = 2;
  bool data = true;       // a new copy takes a snapshot
  std::uint32_t racks = 0;  // node n is in rack n % racks; 0: nobody has said
  base::Duration way = std::chrono::milliseconds(1);  // that a message takes, at most a fifth longer
  std::uint64_t seed = 1;
  replication::Defects defects;
  bool verbose = false;  // every view, on stdout
};

class Settling {
 public:
  explicit Settling(const SettlingOptions& options);
  ~Settling();

  // --- what happens to nodes: they are numbered from 0, and the first is there from the start ---
  int join();
  void leave(int node);  // it is emptied, and ends when it is
  void kill(int node);   // its machine is gone, without a word
  void back(int node);   // as it was
  void stop(int node);   // hands over, and ends
  // All that instance `from` leads shall be led by `to`.
  void migrate(InstanceId from, InstanceId to);
  InstanceId instance(int node, int place) const;
  bool runs(int node) const;

  void run(base::Duration time);
  // Runs until no view has changed for `quiet` and nobody is leaving: how long that took, without the quiet. Nothing: longer than
  // `limit`; words() says what still changed.
  std::optional<base::Duration> settle(base::Duration limit, base::Duration quiet = std::chrono::seconds(5));
  // What is wrong with where copies are, now that all is at rest: in words. Empty: nothing.
  std::string wrong() const;
  std::string words() const;    // the last views, and by whom partitions are held
  std::uint64_t views() const;  // decided so far

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace zht::sim

// The cut of a backup, as its maker sees it: all nodes are asked to have changes wait, then to mark what they lead and go on; then
// each instance's part is read. README.md says why that is one moment in time, and what makes a cut fail.
//
//   TRY_LET(cut, ClusterCut::make(addresses, opener, {.since = versions_before}));
//   for (std::uint32_t instance : cut.instances()) ... on a thread of its own: cut.read(instance, take) ...
//   cut.forget();
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "zht/backup/blocks.h"
#include "zht/client.h"
#include "zht/client/address.h"

namespace zht::backup {

class ClusterCut {
 public:
  struct Wanted {
    std::map<std::uint32_t, Version> since;  // by partition: its version in the backup before; left out: all of it
    std::string cluster;                     // must be this one; empty: any
    Millis patience{30'000};                 // for a cut that holds
    std::function<void(const std::string&)> tell;  // of each try that failed
  };
  struct Mark {
    Version version = 0;
    std::uint32_t instance = 0;
  };
  // `addresses`: of managers; the first that answers says who else there is. Errors: unavailable (why no cut held), conflict
  // (another backup is under way; another cluster than wanted), unsupported (an older build).
  static Result<ClusterCut> make(const std::vector<client::Address>& addresses, const security::Opener& opener, const Wanted& wanted);
  ClusterCut(ClusterCut&&) noexcept;
  ~ClusterCut();  // forgets it

  const std::string& cluster() const;
  std::uint64_t number() const;
  const std::vector<Mark>& marks() const;                // by partition
  const std::vector<std::uint32_t>& instances() const;   // those that lead something
  std::uint64_t pause_us() const;                        // from the first that was told to wait to the last that went on
  // Hands on what the instance has, in order; on a connection of its own, so that each may be read by a thread. An error of `take`
  // is returned. unavailable: the node is gone, or the cut is lost.
  Result<void> read(std::uint32_t instance, const std::function<Result<void>(Bytes)>& take);

 private:
  struct Parts;
  explicit ClusterCut(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace zht::backup

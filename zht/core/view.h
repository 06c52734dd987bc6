// Who holds what. A view names a partition's primary and copies; the membership table is all views and all addresses.
// Every client and every node holds the whole table, which is why an operation needs no hop. Source: [ZHT] 2.2, 2.3.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "zht/types.h"

namespace zht::core {

// A node in one of its lives: the incarnation grows, durably, at every start, so that what an earlier life promised is
// never mistaken for a promise of this one.
struct Member {
  std::uint64_t node = 0;
  std::uint64_t incarnation = 0;
  bool operator==(const Member&) const = default;
};

struct View {
  Epoch epoch{0};
  InstanceId primary{0};
  std::vector<InstanceId> sync;      // the primary included; a lone node's views have one member
  std::vector<InstanceId> learners;  // follow, waited for by nobody
  bool operator==(const View&) const = default;
};

struct InstanceAddress {
  InstanceId id{0};
  Member member;
  std::string tcp;          // "host:port"; empty: none
  std::string unix_socket;  // path; of use on the same machine only
  bool udp = false;         // datagrams too, at `tcp`
};

struct MembershipTable {
  std::uint64_t version = 0;
  std::vector<InstanceAddress> instances;
  std::vector<View> partitions;  // by partition number

  std::uint32_t partition_count() const { return static_cast<std::uint32_t>(partitions.size()); }
  const View& view_of(PartitionId partition) const { return partitions[static_cast<std::uint32_t>(partition)]; }
};

// The table of a node on its own: every partition a view with one member, spread evenly and in ranges over `instances`.
// The views' epoch is the node's incarnation: what was sent to an earlier life is refused by this one.
MembershipTable lone_table(Member node, std::vector<InstanceAddress> instances, std::uint32_t partition_count);

// Which partitions instance `index` of `count` holds on a lone node: [first, last).
struct PartitionRange {
  std::uint32_t first = 0, last = 0;
};
PartitionRange lone_range(std::uint32_t index, std::uint32_t count, std::uint32_t partition_count);

}  // namespace zht::core

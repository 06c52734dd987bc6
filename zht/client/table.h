// The membership table as a client uses it: which instance owns a partition, and where it listens. Immutable once made.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "zht/client/address.h"
#include "zht/types.h"

namespace zht::client {

struct Owner {
  std::uint32_t instance = 0;  // index into Table::instances
  std::uint64_t epoch = 0;
  std::uint32_t copies = 0;  // index into Table::copies
};

inline constexpr std::uint32_t kNobody = ~std::uint32_t{0};  // id of the instance that owns what has no owner

struct Table {
  struct Instance {
    std::uint32_t id = 0;
    std::vector<Address> addresses;  // best first; none: not reached from here
    bool datagrams = false;          // its TCP address takes small requests as datagrams too
    bool operator==(const Instance&) const = default;
  };
  std::uint64_t version = 0;
  std::uint32_t partition_count = 0;
  std::size_t max_value_size = kMaxValueSize;
  std::vector<Instance> instances;
  std::vector<Owner> owners;  // of each partition
  std::vector<std::vector<std::uint32_t>> copies = std::vector<std::vector<std::uint32_t>>(1);  // who is in some view, as indices, sorted
  bool lone = true;           // one node has it all: nobody else could tell more, or take over

  const Owner& owner_of(PartitionId partition) const { return owners[static_cast<std::uint32_t>(partition)]; }
  // Whom a request is sent to, as an index into `instances`: in turn 0 who leads the partition, in the next ones the others that
  // have a copy (only eventual lookups have such turns), then from the beginning. What is known of copies may be old.
  std::uint32_t asked(PartitionId partition, std::uint32_t turn) const;
  // How many different turns there are; at least 1.
  std::uint32_t turns(PartitionId partition) const;
  // The turn in which an eventual lookup is best asked first: of a copy on this machine, else any, as `any` says.
  std::uint32_t best_turn(PartitionId partition, std::uint32_t any) const;
};

// `fresh`, but for the partitions of which `known` has heard a newer view.
std::shared_ptr<const Table> merged(const Table& known, std::shared_ptr<const Table> fresh);
// `table` with another owner of one partition; null: that is not newer, or the instance is not in the table.
std::shared_ptr<const Table> with_owner(const Table& table, std::uint32_t partition, std::uint32_t instance, std::uint64_t epoch);

// From the wire's MembershipTable. `same_machine`: it came through a unix socket, so that the paths in it are of use.
// Its TCP addresses are given `opener`. corrupt: a partition without owner, an instance without address.
Result<std::shared_ptr<const Table>> parse_table(base::Bytes message, bool same_machine, const security::Opener& opener = nullptr);

}  // namespace zht::client

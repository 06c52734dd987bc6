#include "zht/core/view.h"

#include "novoht/base/check.h"

namespace zht::core {

PartitionRange lone_range(std::uint32_t index, std::uint32_t count, std::uint32_t partition_count) {
  const auto cut = [&](std::uint64_t i) { return static_cast<std::uint32_t>(i * partition_count / count); };
  return {cut(index), cut(std::uint64_t{index} + 1)};
}

MembershipTable lone_table(Member node, std::vector<InstanceAddress> instances, std::uint32_t partition_count) {
  CHECK(!instances.empty());
  MembershipTable table;
  table.version = node.incarnation;
  table.partitions.resize(partition_count);
  const auto count = static_cast<std::uint32_t>(instances.size());
  for (std::uint32_t i = 0; i < count; i++) {
    instances[i].member = node;
    const PartitionRange range = lone_range(i, count, partition_count);
    for (std::uint32_t p = range.first; p < range.last; p++)
      table.partitions[p] = {Epoch{node.incarnation}, instances[i].id, {instances[i].id}, {}};
  }
  table.instances = std::move(instances);
  return table;
}

}  // namespace zht::core

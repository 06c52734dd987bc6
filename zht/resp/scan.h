// SCAN and KEYS over all partitions. A cursor of SCAN holds the partition and the place in it, so that nothing is
// remembered between two calls, and fits 53 bits, as some clients read it into a double.
#pragma once

#include <cstdint>
#include <string>

#include "zht/resp/commands.h"

namespace zht::resp {

// SCAN cursor [MATCH pattern] [COUNT n] [TYPE type]. A key that is there all the while is returned at least once.
Plan plan_scan(const Command& command, std::uint32_t partition_count, int protocol);
// Refuses to answer more than kMostKeys.
Plan plan_keys(const std::string& pattern, std::uint32_t partition_count, int protocol);
inline constexpr std::size_t kMostKeys = 1'000'000;

struct Place {
  std::uint32_t partition = 0;
  std::uint64_t cursor = 0;
};
// What is left of a store's cursor when it travels in 53 bits: its lower bits are gone, so that some keys come twice.
std::uint64_t rounded(std::uint64_t cursor, std::uint32_t partition_count);
std::uint64_t pack(Place place, std::uint32_t partition_count);
bool unpack(std::uint64_t number, std::uint32_t partition_count, Place& place);

}  // namespace zht::resp

// How much memory a node may take: what its cgroup or its machine gives it, how that is shared out, and how what was freed goes back to
// the system. And what a start that was killed for memory leaves for the next one to tell of.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "zht/core/instance.h"

namespace zht::server {

// The least of the machine's memory and of the limits of this process's cgroup and those above it (versions 1 and 2). `root`: where
// /proc and /sys are; tests have their own.
std::uint64_t available_memory(const std::string& root = {});
// How often the kernel has killed a process of this cgroup for memory; 0 where that is not told.
std::uint64_t memory_kills(const std::string& root = {});

// What a node of `instances` instances may take altogether, `wanted` bytes or, 0, half of what is available: five eighths of it for values
// and index, the rest for what is under way, and each instance its part.
inline constexpr std::uint64_t kLeastMemory = std::uint64_t{64} << 20;
std::uint64_t memory_share(std::uint64_t wanted, std::uint64_t available);
void share_out(std::uint64_t memory, std::uint32_t instances, core::InstanceOptions& options);

// Once, before there are threads: large blocks come from the system and go back to it when they are freed, whatever was freed before.
void set_up_allocator();
// Now and then: what lies free inside the allocator goes back, if it is much.
void give_back_memory();

// A file that is there while a node recovers its data. One that is found at a start tells that the last start did not come to its end.
class StartMark {
 public:
  explicit StartMark(std::string folder) : path_(std::move(folder) + "/starting") {}
  ~StartMark() { done(); }
  StartMark(const StartMark&) = delete;
  StartMark& operator=(const StartMark&) = delete;
  // What is to be told of the last start, if it ended before it served: also why, where that was for memory. Then marks this one.
  std::optional<std::string> begin(const std::string& root = {});
  void done();  // as when this ends

 private:
  const std::string path_;
};

}  // namespace zht::server

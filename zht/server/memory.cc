#include "zht/server/memory.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <sstream>
#include <vector>

#include "zht/support/paths.h"

namespace zht::server {
namespace {

std::optional<std::uint64_t> number_in(const std::string& path) {
  const auto text = support::read_file(path);
  if (!text || text->empty() || text->front() < '0' || text->front() > '9') return {};  // "max": none
  return std::strtoull(text->c_str(), nullptr, 10);
}

// The number after `word` in a file of lines like "word number".
std::optional<std::uint64_t> number_after(const std::string& path, const std::string& word) {
  const auto text = support::read_file(path);
  if (!text) return {};
  std::istringstream lines(*text);
  std::string name;
  std::uint64_t value = 0;
  for (std::string line; std::getline(lines, line);)
    if (std::istringstream(line) >> name >> value && (name == word || name == word + ":")) return value;
  return {};
}

struct Place {
  std::string folder, limit, kills_file;
};

// The cgroup of this process, and those above it.
std::vector<Place> cgroups(const std::string& root) {
  std::vector<Place> places;
  const auto text = support::read_file(root + "/proc/self/cgroup");
  if (!text) return places;
  std::istringstream lines(*text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string kinds = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool unified = kinds == ",,";
    if (!unified && kinds.find(",memory,") == std::string::npos) continue;
    std::string path = line.substr(second + 1);
    for (const std::string& mount : unified ? std::vector<std::string>{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}
                                            : std::vector<std::string>{"/sys/fs/cgroup/memory"}) {
      for (std::string at = path;; at = at.substr(0, at.rfind('/'))) {
        const std::string folder = root + mount + (at == "/" ? "" : at);
        places.push_back({folder, unified ? "/memory.max" : "/memory.limit_in_bytes", unified ? "/memory.events" : "/memory.oom_control"});
        if (at.empty() || at == "/") break;
      }
    }
  }
  return places;
}

}  // namespace

std::uint64_t available_memory(const std::string& root) {
  std::uint64_t least = number_after(root + "/proc/meminfo", "MemTotal").value_or(std::uint64_t{1} << 20) << 10;
  for (const Place& one : cgroups(root))
    if (const auto limit = number_in(one.folder + one.limit)) least = std::min(least, *limit);
  return least;
}

std::uint64_t memory_kills(const std::string& root) {
  std::uint64_t most = 0;
  for (const Place& one : cgroups(root)) most = std::max(most, number_after(one.folder + one.kills_file, "oom_kill").value_or(0));
  return most;
}

std::uint64_t memory_share(std::uint64_t wanted, std::uint64_t available) { return wanted != 0 ? wanted : std::max(available / 2, kLeastMemory); }

void share_out(std::uint64_t memory, std::uint32_t instances, core::InstanceOptions& options) {
  const std::uint64_t mine = memory / std::max(1u, instances);
  const auto part = [&](std::uint64_t most, std::uint64_t share) {
    constexpr std::uint64_t kLeast = std::uint64_t{4} << 20;
    return static_cast<std::size_t>(std::clamp(share, kLeast, most));
  };
  constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
  options.limits.memory = mine / 8 * 5;
  options.limits.undo = part(256 * kMiB, mine / 16);
  options.limits.waiting = part(256 * kMiB, mine / 16);
  options.limits.results = part(256 * kMiB, mine / 16);
  options.timing.all_tails_bytes = part(64 * kMiB, mine / 16);
  options.timing.all_uncommitted_bytes = part(256 * kMiB, mine / 16);
}

// glibc moves its threshold up when a large block is freed, and keeps the next ones on its heap, from whose middle nothing goes back.
void set_up_allocator() {
  (void)::mallopt(M_MMAP_THRESHOLD, 256 << 10);
  (void)::mallopt(M_TRIM_THRESHOLD, 4 << 20);
}

void give_back_memory() {
  constexpr std::size_t kMuch = std::size_t{32} << 20;
  const struct mallinfo2 heap = ::mallinfo2();
  if (heap.fordblks > kMuch) (void)::malloc_trim(0);
}

std::optional<std::string> StartMark::begin(const std::string& root) {
  std::optional<std::string> told;
  const std::uint64_t kills = memory_kills(root);
  if (const auto text = support::read_file(path_)) {
    unsigned long long pid = 0, before = 0;
    if (std::sscanf(text->c_str(), "%llu %llu", &pid, &before) == 2) {
      told = "the last start (process " + std::to_string(pid) + ") ended before its data were recovered";
      if (kills > before)
        *told += ": the kernel has killed a process of this cgroup for memory since; " + std::to_string(available_memory(root) >> 20) +
                 " MiB are available here: give it more, or set memory_limit lower";
    }
  }
  (void)support::write_file_atomically(path_, std::to_string(::getpid()) + " " + std::to_string(kills) + "\n");
  return told;
}

void StartMark::done() { (void)::unlink(path_.c_str()); }

}  // namespace zht::server

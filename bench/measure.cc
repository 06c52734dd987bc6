#include "bench/measure.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>

namespace bench {
namespace {

[[noreturn]] void usage(const std::string& bench, const std::string& what) {
  std::fprintf(stderr, "%s_bench: %s; see bench/README.md\n", bench.c_str(), what.c_str());
  std::exit(2);
}

}  // namespace

std::string Arguments::option(std::string_view name, std::string_view otherwise) const {
  const std::string start = "--" + std::string(name) + "=";
  for (const std::string& one : extra) {
    if (one.starts_with(start)) return one.substr(start.size());
  }
  return std::string(otherwise);
}

Arguments parse(std::string bench, std::vector<std::string> systems, int argc, char** argv) {
  Arguments arguments;
  arguments.bench = std::move(bench);
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const auto value = [&]() -> std::string {
      if (i + 1 >= argc) usage(arguments.bench, flag + " needs a value");
      return argv[++i];
    };
    if (flag == "--systems") {
      for (const std::string& system : systems) std::printf("%s\n", system.c_str());
      std::exit(0);
    } else if (flag == "--system") arguments.system = value();
    else if (flag == "--tiny") arguments.size = Size::tiny;
    else if (flag == "--quick") arguments.size = Size::quick;
    else if (flag == "--address") arguments.address = value();
    else if (flag == "--dir") arguments.folder = value();
    else if (flag == "--durability") arguments.durability = value();
    else if (flag.starts_with("--") && flag.find('=') != std::string::npos) arguments.extra.push_back(flag);
    else usage(arguments.bench, "unknown argument \"" + flag + "\"");
  }
  if (std::find(systems.begin(), systems.end(), arguments.system) == systems.end()) {
    usage(arguments.bench, "unknown system \"" + arguments.system + "\" (--systems lists them)");
  }
  return arguments;
}

void unavailable(std::string_view reason) {
  std::fprintf(stderr, "%.*s\n", static_cast<int>(reason.size()), reason.data());
  std::exit(77);
}

void wrong(std::string_view what) {
  std::fprintf(stderr, "wrong: %.*s\n", static_cast<int>(what.size()), what.data());
  std::fflush(stdout);
  std::_Exit(1);
}

double Latencies::percentile_us(double fraction) {
  if (samples_.empty()) return 0;
  const std::size_t last = samples_.size() - 1;
  const auto place = samples_.begin() + static_cast<std::ptrdiff_t>(
                         std::min(last, static_cast<std::size_t>(fraction * static_cast<double>(samples_.size()))));
  std::nth_element(samples_.begin(), place, samples_.end());
  return *place / 1e3;
}

Report Report::with(How how) const {
  Report made = *this;
  made.how_.clear();
  if (!how.client.empty()) made.how_ += ",\"client\":\"" + how.client + "\"";
  if (!how.transport.empty()) made.how_ += ",\"transport\":\"" + how.transport + "\"";
  if (how.connections != 0) made.how_ += ",\"connections\":" + std::to_string(how.connections);
  if (how.in_flight != 0) made.how_ += ",\"in_flight\":" + std::to_string(how.in_flight);
  return made;
}

void Report::row(std::string_view row, std::string_view metric, double value) const {
  std::printf("{\"bench\":\"%s\",\"row\":\"%.*s\",\"system\":\"%s\",\"metric\":\"%.*s\",\"value\":%.6g,\"durability\":\"%s\"%s}\n",
              bench_.c_str(), static_cast<int>(row.size()), row.data(), system_.c_str(), static_cast<int>(metric.size()), metric.data(),
              value, durability_.c_str(), how_.c_str());
  std::fflush(stdout);
}

void Report::latency(std::string_view name, Latencies& latencies) const {
  row(name, "p50_us", latencies.percentile_us(0.5));
  row(name, "p99_us", latencies.percentile_us(0.99));
  row(name, "p999_us", latencies.percentile_us(0.999));
  row(name, "max_us", latencies.max_us());
}

double processor_seconds(int pid) {
  std::ifstream file("/proc/" + (pid == 0 ? std::string("self") : std::to_string(pid)) + "/stat");
  std::string text((std::istreambuf_iterator<char>(file)), {});
  const std::size_t name_end = text.rfind(')');  // a program's name may hold anything
  require(name_end != std::string::npos, "no such process: " + std::to_string(pid));
  std::istringstream fields(text.substr(name_end + 1));
  std::string field;
  double ticks = 0;
  for (int number = 3; fields >> field && number <= 15; number++)
    if (number >= 14) ticks += std::stod(field);  // utime, stime
  return ticks / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

std::uint64_t resident_bytes(int pid) {
  std::ifstream file("/proc/" + (pid == 0 ? std::string("self") : std::to_string(pid)) + "/statm");
  std::uint64_t size = 0, resident = 0;
  file >> size >> resident;
  return resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

std::uint64_t disk_bytes(const std::string& folder) {
  std::uint64_t total = 0;
  DIR* dir = ::opendir(folder.c_str());
  if (dir == nullptr) return 0;
  while (const dirent* entry = ::readdir(dir)) {
    const std::string name = entry->d_name;
    if (name == "." || name == "..") continue;
    struct stat status{};
    const std::string path = folder + "/" + name;
    if (::lstat(path.c_str(), &status) != 0) continue;
    total += static_cast<std::uint64_t>(status.st_blocks) * 512;
    if (S_ISDIR(status.st_mode)) total += disk_bytes(path);
  }
  ::closedir(dir);
  return total;
}

}  // namespace bench

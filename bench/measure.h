// What every benchmark program needs: its arguments, a clock, latencies, and rows on stdout.
//
//   int main(int argc, char** argv) {
//     bench::Arguments arguments = bench::parse("novoht", {"novoht", "unordered_map"}, argc, argv);
//     bench::Report report(arguments);
//     const std::size_t pairs = arguments.pick(1'000, 200'000, 1'000'000);  // tiny, quick, full
//     bench::Stopwatch watch;
//     for (...) insert(...);
//     bench::require(all_there, "insert 1M: key 17 is missing");
//     report.row("insert 1M", "us_per_op", watch.seconds() * 1e6 / pairs);
//   }
//
// The program measures one system in one run; bench/run alternates systems over rounds and takes medians. Row names and
// metrics are the fixed ones of bench/README.md. A row whose answers were not checked is not a row.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace bench {

enum class Size { tiny, quick, full };  // tiny: correctness inside ctest, well under 10 s; quick: a row takes about 1 s

struct Arguments {
  std::string bench;       // "store"
  std::string system;      // --system: "zht", "redis", ...
  Size size = Size::full;  // --tiny, --quick
  std::string address;     // --address: where the system listens: host:port, or the path of a unix socket
  std::string folder;      // --dir: an empty folder to work in, removed by the caller
  std::string durability = "interval";  // --durability: none, interval or always: of the system under test
  std::vector<std::string> extra;       // any other --name=value, as given

  template <typename Number>
  Number pick(Number tiny, Number quick, Number full) const {
    return size == Size::tiny ? tiny : size == Size::quick ? quick : full;
  }
  // The value of an extra "--name=value", or `otherwise`.
  std::string option(std::string_view name, std::string_view otherwise) const;
};

// Reads the command line. `--systems` prints the known systems, one a line, and exits 0; a bad argument is one line on
// stderr and exit 2.
Arguments parse(std::string bench, std::vector<std::string> systems, int argc, char** argv);

// This system cannot be measured on this machine: the reason on stderr, exit 77. bench/run prints it and goes on.
[[noreturn]] void unavailable(std::string_view reason);

// A wrong answer or a failed call: one line on stderr, exit 1. A benchmark that is wrong has no result.
[[noreturn]] void wrong(std::string_view what);
inline void require(bool holds, std::string_view otherwise) {
  if (!holds) wrong(otherwise);
}

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }
  std::uint64_t nanoseconds() const {
    return static_cast<std::uint64_t>((std::chrono::steady_clock::now() - start_).count());
  }
  void restart() { start_ = std::chrono::steady_clock::now(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// Latencies in nanoseconds, percentiles exact up to 4 s, the longest beyond. One thread; merge() joins those of several.
class Latencies {
 public:
  void add(std::uint64_t nanoseconds) {
    samples_.push_back(nanoseconds > UINT32_MAX ? UINT32_MAX : static_cast<std::uint32_t>(nanoseconds));
    longest_ = std::max(longest_, nanoseconds);
  }
  void reserve(std::size_t count) { samples_.reserve(count); }
  void merge(const Latencies& other) {
    samples_.insert(samples_.end(), other.samples_.begin(), other.samples_.end());
    longest_ = std::max(longest_, other.longest_);
  }
  std::size_t count() const { return samples_.size(); }
  double percentile_us(double fraction);  // 0.5, 0.99, ...; 0 without samples; reorders the samples
  double max_us() const { return static_cast<double>(longest_) / 1e3; }

 private:
  std::vector<std::uint32_t> samples_;
  std::uint64_t longest_ = 0;
};

// How a row was measured, told beside each of its figures, so that a reader sees what is compared with what. What is empty or 0
// is left out.
struct How {
  std::string client;     // "raw loop", "C++ client"
  std::string transport;  // "tcp", "unix", "udp", "in process"
  std::size_t connections = 0, in_flight = 0;  // in flight on each connection
};

// Prints one JSON line per figure, at once.
class Report {
 public:
  explicit Report(const Arguments& arguments)
      : bench_(arguments.bench), system_(arguments.system), durability_(arguments.durability) {}
  Report with(How how) const;  // a report of rows that were measured so
  void row(std::string_view row, std::string_view metric, double value) const;
  void latency(std::string_view row, Latencies& latencies) const;  // p50_us, p99_us, p999_us, max_us

 private:
  std::string bench_, system_, durability_, how_;
};

// Processor time that process `pid` (0: this one) has taken, all its threads, in seconds.
double processor_seconds(int pid = 0);

// Resident memory of process `pid` (0: this one) in bytes; bytes on disk (allocated blocks) below `folder`.
std::uint64_t resident_bytes(int pid = 0);
std::uint64_t disk_bytes(const std::string& folder);

}  // namespace bench

// How far long work has come: one line on stderr, drawn over itself a few times a second and gone at the end. Only where
// stderr is a terminal and nobody asked for quiet.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

namespace novoht::tool {

class Progress {
 public:
  // total 0: not known.
  Progress(bool wanted, std::string what, std::uint64_t total)
      : shown_(wanted && ::isatty(2) != 0), what_(std::move(what)), total_(total) {}
  ~Progress() {
    if (drawn_) std::fprintf(stderr, "\r\033[K");
  }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void at(std::uint64_t done) {
    if (!shown_ || done % 256 != 0) return;
    const auto now = std::chrono::steady_clock::now();
    if (now - last_ < std::chrono::milliseconds(200)) return;
    last_ = now;
    drawn_ = true;
    if (total_ == 0) std::fprintf(stderr, "\r%s %llu\033[K", what_.c_str(), static_cast<unsigned long long>(done));
    else std::fprintf(stderr, "\r%s %llu of %llu (%llu%%)\033[K", what_.c_str(), static_cast<unsigned long long>(done),
                      static_cast<unsigned long long>(total_), static_cast<unsigned long long>(100 * done / total_));
    std::fflush(stderr);
  }

 private:
  const bool shown_;
  const std::string what_;
  const std::uint64_t total_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace novoht::tool

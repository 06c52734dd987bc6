// A progress bar on stderr, shown only when stderr is a tty and neither --quiet nor --json was given; else nothing at all.
//   support::Progress bar("tasks", 1000, common.quiet || common.json);
//   bar.set(17); ... bar.finish();
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace support {

// One thread. Redraws at most ten times a second.
class Progress {
 public:
  Progress(std::string label, std::uint64_t total, bool off);  // total 0: unknown, counts up
  ~Progress();                                                 // finishes
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void set(std::uint64_t done, const std::string& note = {});
  void add(std::uint64_t more = 1) { set(done_ + more); }
  void total(std::uint64_t total) { total_ = total; }
  void clear();   // takes the bar off the screen, so that a line can be printed; the next set() draws it again
  void finish();  // draws the last state and ends the line
  bool shown() const { return shown_; }

 private:
  void draw(bool last);
  std::string label_, note_;
  std::uint64_t total_, done_ = 0;
  bool shown_, drawn_ = false, finished_ = false;
  std::chrono::steady_clock::time_point start_, last_{};
};

}  // namespace support

#include "zht/support/progress.h"

#include <algorithm>
#include <cstdio>

#include "zht/support/output.h"

namespace support {

using std::chrono::steady_clock;

Progress::Progress(std::string label, std::uint64_t total, bool off)
    : label_(std::move(label)), total_(total), shown_(!off && stderr_is_tty()), start_(steady_clock::now()) {}

Progress::~Progress() { finish(); }

void Progress::set(std::uint64_t done, const std::string& note) {
  done_ = done;
  if (!note.empty()) note_ = note;
  if (!shown_ || finished_) return;
  const auto now = steady_clock::now();
  if (drawn_ && now - last_ < std::chrono::milliseconds(100)) return;
  last_ = now;
  draw(false);
}

void Progress::clear() {
  if (drawn_) std::fputs("\r\033[K", stderr);
  drawn_ = false;
}

void Progress::finish() {
  if (finished_) return;
  finished_ = true;
  if (shown_ && drawn_) draw(true);
}

void Progress::draw(bool last) {
  const double seconds = std::chrono::duration<double>(steady_clock::now() - start_).count();
  const double rate = seconds > 0 ? static_cast<double>(done_) / seconds : 0;
  std::string line = label_ + " ";
  if (total_ > 0) {
    constexpr std::size_t width = 30;
    const double part = std::min(1.0, static_cast<double>(done_) / static_cast<double>(total_));
    const auto filled = static_cast<std::size_t>(part * width);
    line += "[" + std::string(filled, '#') + std::string(width - filled, '.') + "] " +
            std::to_string(static_cast<int>(part * 100)) + "% " + human_count(done_) + "/" + human_count(total_);
  } else {
    line += human_count(done_);
  }
  line += " " + human_count(static_cast<std::uint64_t>(rate)) + "/s " +
          human_duration(std::chrono::duration_cast<base::Duration>(std::chrono::duration<double>(seconds)));
  if (!last && total_ > done_ && rate > 0)
    line += ", " + human_duration(std::chrono::seconds(static_cast<long>(static_cast<double>(total_ - done_) / rate))) +
            " left";
  if (!note_.empty()) line += " " + note_;
  std::fprintf(stderr, "\r\033[K%s%s", line.c_str(), last ? "\n" : "");
  std::fflush(stderr);
  drawn_ = true;
}

}  // namespace support

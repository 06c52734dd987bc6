#include "zht/tool/screen.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

namespace zht::tool {
namespace {

void put(const std::string& text) {
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t wrote = ::write(STDOUT_FILENO, text.data() + at, text.size() - at);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return;
    at += static_cast<std::size_t>(wrote);
  }
}

}  // namespace

Screen::Screen() {
  if (::tcgetattr(STDIN_FILENO, &before_) == 0) {
    termios raw = before_;
    raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);  // Ctrl-C stays a signal
    raw.c_cc[VMIN] = 0;
    raw.c_cc[VTIME] = 0;
    changed_ = ::tcsetattr(STDIN_FILENO, TCSANOW, &raw) == 0;
  }
  put("\033[?1049h\033[?25l\033[2J");
}

Screen::~Screen() {
  put("\033[0m\033[?25h\033[?1049l");
  if (changed_) ::tcsetattr(STDIN_FILENO, TCSANOW, &before_);
}

Screen::Size Screen::size() const {
  winsize window{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) != 0 || window.ws_row == 0 || window.ws_col == 0) return {};
  return {window.ws_row, window.ws_col};
}

void Screen::draw(const std::vector<std::string>& lines) {
  const Size window = size();
  std::string out = "\033[H";
  for (std::size_t i = 0; i < lines.size() && i < window.rows; i++) {
    if (i > 0) out += "\r\n";
    if (i == 0) out += "\033[7m";
    out += lines[i].substr(0, window.columns);
    out += "\033[K";
    if (i == 0) out += "\033[0m";
  }
  out += "\033[J";
  put(out);
}

char Screen::key() {
  pollfd ready{STDIN_FILENO, POLLIN, 0};
  char pressed = 0;
  if (::poll(&ready, 1, 0) == 1 && ::read(STDIN_FILENO, &pressed, 1) == 1) return pressed;
  return 0;
}

}  // namespace zht::tool

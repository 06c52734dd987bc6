// The whole terminal, for as long as this lives: the alternate screen, no cursor, keys as they are pressed. Whatever
// ends the program in an orderly way gives the terminal back as it was; signals are the caller's to turn into an
// orderly end.
#pragma once

#include <termios.h>

#include <cstddef>
#include <string>
#include <vector>

namespace zht::tool {

class Screen {
 public:
  Screen();  // stdin and stdout are a terminal
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;
  struct Size {
    std::size_t rows = 24, columns = 80;
  };
  Size size() const;
  // One write, over what was there, so that nothing flickers; the first line stands out. Lines past the last row are
  // dropped.
  void draw(const std::vector<std::string>& lines);
  // A key, or 0 when none was pressed.
  char key();

 private:
  termios before_{};
  bool changed_ = false;
};

}  // namespace zht::tool

// The worked examples of novoht/FORMAT.md.
#pragma once

#include <fstream>
#include <sstream>
#include <string>

namespace novoht::testing {

// The block that begins with ```hex <name>: bytes in hexadecimal, `|` and what follows is commentary.
inline std::string from_format_document(const std::string& name) {
  std::ifstream in(std::string(NOVOHT_SOURCE) + "/novoht/FORMAT.md");
  std::string line, bytes;
  bool inside = false;
  while (std::getline(in, line)) {
    if (line == "```hex " + name) {
      inside = true;
    } else if (inside && line == "```") {
      break;
    } else if (inside) {
      std::istringstream words(line.substr(0, line.find('|')));
      for (std::string word; words >> word;)
        for (std::size_t i = 0; i + 1 < word.size(); i += 2)
          bytes += static_cast<char>(std::stoi(word.substr(i, 2), nullptr, 16));
    }
  }
  return bytes;
}

}  // namespace novoht::testing

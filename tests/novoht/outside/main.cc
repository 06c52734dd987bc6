// Runs the lines with which novoht/README.md begins.
#include "example.h"

int main(int, char** argv) {
  if (auto done = example(argv[1]); !done) {
    std::cerr << done.error().message << "\n";
    return 1;
  }
  return 0;
}

// Runs a fuzz target without libFuzzer: every file of the folders (or files) named, then mutations of them by a fixed seed,
// for a while. An input that ends the program is left in ./failed-input first. Prints one line of what was done.
//
//   fuzz_record tests/fuzz/corpus/record [--seconds=60] [--seed=7]
//
// With clang the same target is linked with libFuzzer instead (preset fuzz), which takes the same folders.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "novoht/base/random.h"
#include "tests/fuzz/fuzz.h"

namespace {

std::string current;  // for the handler, which is given nothing

void save_input(int signal) {
  const int file = ::open("failed-input", O_CREAT | O_TRUNC | O_WRONLY, 0600);
  if (file >= 0 && ::write(file, current.data(), current.size()) >= 0) (void)!::write(2, "input saved in ./failed-input\n", 30);
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

void run(std::string input) {
  current = std::move(input);
  (void)LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(current.data()), current.size());
}

// A few changes at random places; sometimes a piece of another input.
std::string mutated(base::Random& random, const std::vector<std::string>& corpus) {
  std::string bytes = corpus[random.below(corpus.size())];
  for (std::uint64_t left = 1 + random.below(8); left > 0; left--) {
    const std::size_t at = random.below(bytes.size() + 1);
    switch (random.below(6)) {
      case 0:
        if (at < bytes.size()) bytes[at] = static_cast<char>(random.next());
        break;
      case 1:
        if (at < bytes.size()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << random.below(8)));
        break;
      case 2: bytes.insert(at, std::string(1 + random.below(16), static_cast<char>(random.next()))); break;
      case 3: bytes.erase(at, 1 + random.below(16)); break;
      case 4: {
        const std::string& other = corpus[random.below(corpus.size())];
        const std::size_t from = random.below(other.size() + 1);
        bytes.insert(at, other.substr(from, 1 + random.below(64)));
        break;
      }
      default: {
        // Numbers at the edges of what they can be.
        static constexpr std::uint64_t kEdges[] = {0, 1, 0x7f, 0xff, 0xffff, 0x10000, 0x7fffffff, 0xffffffff, UINT64_MAX >> 1, UINT64_MAX};
        char number[8];
        base::store(number, kEdges[random.below(std::size(kEdges))]);
        for (std::size_t i = 0, width = std::size_t{1} << random.below(4); i < width && at + i < bytes.size(); i++) bytes[at + i] = number[i];
      }
    }
  }
  return bytes;
}

}  // namespace

int main(int argc, char** argv) {
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) ::signal(signal, save_input);
  double seconds = std::getenv("ZHT_LONG") != nullptr ? 120 : 1.5;
  std::uint64_t seed = 1;
  std::vector<std::string> corpus;
  const auto add = [&](const std::filesystem::path& path) {
    std::ifstream in(path, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  };
  for (int i = 1; i < argc; i++) {
    const std::string argument = argv[i];
    if (argument.starts_with("--seconds=")) seconds = std::atof(argument.c_str() + 10);
    else if (argument.starts_with("--seed=")) seed = std::strtoull(argument.c_str() + 7, nullptr, 10);
    else if (std::filesystem::is_directory(argument)) {
      std::vector<std::filesystem::path> paths;
      for (const auto& entry : std::filesystem::directory_iterator(argument)) paths.push_back(entry.path());
      std::sort(paths.begin(), paths.end());
      for (const auto& path : paths) add(path);
    } else if (std::filesystem::exists(argument)) {
      add(argument);
    } else {
      std::fprintf(stderr, "%s: no file or folder %s\n", argv[0], argument.c_str());
      return 2;
    }
  }
  if (corpus.empty()) {
    std::fprintf(stderr, "%s: no seeds: name a folder of them\n", argv[0]);
    return 2;
  }
  for (const std::string& input : corpus) run(input);
  base::Random random(seed);
  std::uint64_t count = 0;
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  for (; std::chrono::steady_clock::now() < end; count++) run(mutated(random, corpus));
  std::printf("%s: %zu seeds and %llu mutations of them, no failure\n", std::filesystem::path(argv[0]).filename().c_str(), corpus.size(),
              static_cast<unsigned long long>(count));
  return 0;
}

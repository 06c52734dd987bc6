// What share of what FUSE can do does a file system leave? Names and small files by 1, 2 and 8 threads, each in a
// directory of its own, one file read and written in sequence, one directory that grows; every answer is checked.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>

#include "bench/measure.h"

namespace {

using bench::require;

constexpr std::size_t kSmall = 4096;

// A system many times slower is asked for fewer operations: rates need no more of them.
std::size_t share(const bench::Arguments& arguments, std::size_t count) {
  const std::size_t slower = arguments.system == "juicefs" ? 20 : arguments.system == "glusterfs" ? 40 : 1;
  return slower > 1 ? std::max<std::size_t>(count / slower, 80) : count;
}

std::string path_of(const std::string& folder, int thread, const char* kind, std::size_t number) {
  return folder + "/" + std::to_string(thread) + "/" + kind + std::to_string(number);
}

void must(int result, const char* what, const std::string& path) {
  if (result < 0) bench::wrong(std::string(what) + " " + path + ": " + std::strerror(errno));
}

// Runs work(thread, number) for every number below `count`, split among the threads; operations a second.
double rate(int threads, std::size_t count, const std::function<void(int, std::size_t)>& work) {
  std::vector<std::thread> running;
  const bench::Stopwatch watch;
  for (int thread = 0; thread < threads; ++thread) {
    running.emplace_back([&, thread] {
      for (std::size_t number = 0; number < count / static_cast<std::size_t>(threads); ++number) work(thread, number);
    });
  }
  for (auto& each : running) each.join();
  return static_cast<double>(count / static_cast<std::size_t>(threads) * static_cast<std::size_t>(threads)) /
         watch.seconds();
}

std::string pattern(int thread, std::size_t number) {
  std::string bytes(kSmall, '\0');
  for (std::size_t i = 0; i < bytes.size(); i += 8) {
    const std::uint64_t word = (static_cast<std::uint64_t>(thread) << 48 | number << 16 | i) * 0x9e3779b97f4a7c15u;
    std::memcpy(bytes.data() + i, &word, 8);
  }
  return bytes;
}

void names_and_small_files(const bench::Report& report, const bench::Arguments& arguments, int threads) {
  const std::size_t count = share(arguments, arguments.pick<std::size_t>(80, 6'000, 40'000));
  const std::string suffix = " " + std::to_string(threads) + (threads == 1 ? " thread" : " threads");
  const std::string folder = arguments.folder + "/t" + std::to_string(threads);
  must(::mkdir(folder.c_str(), 0755), "mkdir", folder);
  for (int thread = 0; thread < threads; ++thread) {
    const std::string own = folder + "/" + std::to_string(thread);
    must(::mkdir(own.c_str(), 0755), "mkdir", own);
  }
  const auto row = [&](const char* name, const std::function<void(int, std::size_t)>& work) {
    report.row(name + suffix, "ops_per_s", rate(threads, count, work));
  };
  row("create", [&](int thread, std::size_t number) {
    const std::string path = path_of(folder, thread, "f", number);
    const int file = ::open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY, 0644);
    must(file, "create", path);
    must(::close(file), "close", path);
  });
  row("stat", [&](int thread, std::size_t number) {
    const std::string path = path_of(folder, thread, "f", number);
    struct stat status {};
    must(::stat(path.c_str(), &status), "stat", path);
    require(S_ISREG(status.st_mode) && status.st_size == 0 && status.st_nlink == 1,
            path + ": stat answers something else");
  });
  row("rename", [&](int thread, std::size_t number) {
    const std::string path = path_of(folder, thread, "f", number);
    must(::rename(path.c_str(), path_of(folder, thread, "g", number).c_str()), "rename", path);
  });
  row("unlink", [&](int thread, std::size_t number) {
    const std::string path = path_of(folder, thread, "g", number);
    must(::unlink(path.c_str()), "unlink", path);
  });
  row("mkdir", [&](int thread, std::size_t number) {
    const std::string path = path_of(folder, thread, "d", number);
    must(::mkdir(path.c_str(), 0755), "mkdir", path);
  });
  for (int thread = 0; thread < threads; ++thread) {
    const std::string own = folder + "/" + std::to_string(thread);
    struct stat status {};
    must(::stat(own.c_str(), &status), "stat", own);
    for (std::size_t number = 0; number < count / static_cast<std::size_t>(threads); ++number) {
      const std::string path = path_of(folder, thread, "d", number);
      must(::rmdir(path.c_str()), "rmdir", path);
    }
    must(::rmdir(own.c_str()), "rmdir of what must be empty now:", own);
    must(::mkdir(own.c_str(), 0755), "mkdir", own);
  }
  row("write4k", [&](int thread, std::size_t number) {
    const std::string path = path_of(folder, thread, "w", number);
    const std::string bytes = pattern(thread, number);
    const int file = ::open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY, 0644);
    must(file, "create", path);
    require(::write(file, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()), path + ": short write");
    must(::close(file), "close", path);
  });
  row("read4k", [&](int thread, std::size_t number) {
    const std::string path = path_of(folder, thread, "w", number);
    char bytes[kSmall + 1];
    const int file = ::open(path.c_str(), O_RDONLY);
    must(file, "open", path);
    const ssize_t got = ::read(file, bytes, sizeof bytes);
    must(::close(file), "close", path);
    require(got == static_cast<ssize_t>(kSmall) && pattern(thread, number) == std::string(bytes, kSmall),
            path + ": reads something else than was written");
  });
  for (int thread = 0; thread < threads; ++thread) {
    for (std::size_t number = 0; number < count / static_cast<std::size_t>(threads); ++number) {
      const std::string path = path_of(folder, thread, "w", number);
      must(::unlink(path.c_str()), "unlink", path);
    }
  }
}

void sequential(const bench::Report& report, const bench::Arguments& arguments) {
  constexpr std::size_t kPiece = std::size_t{1} << 20;
  const std::size_t pieces = arguments.pick<std::size_t>(4, 256, 1024);
  const std::string path = arguments.folder + "/sequential";
  std::string bytes(kPiece, '\0');
  // The limit keeps no bytes of big files: zeros are what it can give back.
  const bool zeros = arguments.system == "fuse_limit";
  const auto fill = [&](std::size_t piece) {
    if (!zeros) std::memset(bytes.data(), static_cast<int>(piece * 37 % 251 + 1), kPiece);
  };
  {
    const bench::Stopwatch watch;
    const int file = ::open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY, 0644);
    must(file, "create", path);
    for (std::size_t piece = 0; piece < pieces; ++piece) {
      fill(piece);
      require(::write(file, bytes.data(), kPiece) == static_cast<ssize_t>(kPiece), path + ": short write");
    }
    must(::close(file), "close", path);
    report.row("seq write 1M", "mb_per_s", static_cast<double>(pieces * kPiece) / 1e6 / watch.seconds());
  }
  {
    const int file = ::open(path.c_str(), O_RDONLY);
    must(file, "open", path);
    must(::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) == 0 ? 0 : -1, "drop the cache of", path);
    std::string back(kPiece, 'x');
    const bench::Stopwatch watch;
    for (std::size_t piece = 0; piece < pieces; ++piece) {
      std::size_t got = 0;
      while (got < kPiece) {
        const ssize_t part = ::read(file, back.data() + got, kPiece - got);
        require(part > 0, path + ": the file is shorter than what was written");
        got += static_cast<std::size_t>(part);
      }
      fill(piece);
      require(back == bytes, path + ": reads something else than was written");
    }
    report.row("seq read 1M", "mb_per_s", static_cast<double>(pieces * kPiece) / 1e6 / watch.seconds());
    must(::close(file), "close", path);
  }
  must(::unlink(path.c_str()), "unlink", path);
}

// One directory that grows (to a million names in a full run, or to --directory=N; less for a slower system): the rate of each
// tenth, then how fast it is listed.
void one_directory(const bench::Report& report, const bench::Arguments& arguments) {
  const std::size_t wanted = std::strtoul(arguments.option("directory", "0").c_str(), nullptr, 10) / 10 * 10;
  const std::size_t usual = arguments.pick<std::size_t>(2'000, 50'000, 1'000'000);
  const std::size_t tenth = share(arguments, wanted > 0 ? wanted : usual) / 10, count = tenth * 10;
  const std::string folder = arguments.folder + "/one";
  must(::mkdir(folder.c_str(), 0755), "mkdir", folder);
  for (std::size_t part = 0; part < 10; ++part) {
    const bench::Stopwatch watch;
    for (std::size_t number = part * tenth; number < (part + 1) * tenth; ++number) {
      const std::string path = folder + "/f" + std::to_string(number);
      const int file = ::open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY, 0644);
      must(file, "create", path);
      must(::close(file), "close", path);
    }
    report.row("create, one directory " + std::to_string(part * 10) + "%", "ops_per_s",
               static_cast<double>(tenth) / watch.seconds());
  }
  std::size_t seen = 0;
  const bench::Stopwatch watch;
  DIR* stream = ::opendir(folder.c_str());
  require(stream != nullptr, folder + ": cannot be listed");
  while (const dirent* each = ::readdir(stream)) seen += each->d_name[0] == 'f' ? 1 : 0;
  ::closedir(stream);
  report.row("list one directory", "names_per_s", static_cast<double>(count) / watch.seconds());
  require(seen == count, folder + ": the listing has other names than were made");
  for (std::size_t number = 0; number < count; ++number) {
    const std::string path = folder + "/f" + std::to_string(number);
    must(::unlink(path.c_str()), "unlink", path);
  }
  must(::rmdir(folder.c_str()), "rmdir", folder);
}

}  // namespace

int main(int argc, char** argv) {
  const bench::Arguments arguments =
      bench::parse("fs", {"fusionfs", "fuse_limit", "juicefs", "glusterfs", "local"}, argc, argv);
  const bench::Report report(arguments);
  const std::string only = arguments.option("only", "");  // names, sequential or directory
  for (const int threads : {1, 2, 8}) {
    if (only.empty() || only == "names") names_and_small_files(report, arguments, threads);
  }
  if (only.empty() || only == "sequential") sequential(report, arguments);
  if (only.empty() || only == "directory") one_directory(report, arguments);
  return 0;
}

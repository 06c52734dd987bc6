// What share of what FUSE can do does a file system leave? Names and small files by 1, 2 and 8 threads, each in a
// directory of its own, one file read and written in sequence, one directory that grows; every answer is checked. Every system does
// the same operations in directories of the same sizes.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>
#include <thread>
#include <utility>

#include "bench/measure.h"

namespace {

using bench::require;

constexpr std::size_t kSmall = 4096;

std::string path_of(const std::string& folder, int thread, const char* kind, std::size_t number) {
  return folder + "/" + std::to_string(thread) + "/" + kind + std::to_string(number);
}

void must(int result, const char* what, const std::string& path) {
  if (result < 0) bench::wrong(std::string(what) + " " + path + ": " + std::strerror(errno));
}

// A row that is measured in pieces, one in each cycle.
class Row {
 public:
  explicit Row(std::string name) : name_(std::move(name)) {}

  // Calls work(thread, number) for numbers 0..each-1 in each of `threads`, and times each call.
  void add(int threads, std::size_t each, const std::function<void(int, std::size_t)>& work) {
    std::vector<std::thread> running;
    std::vector<bench::Latencies> latencies(static_cast<std::size_t>(threads));
    const bench::Stopwatch watch;
    for (int thread = 0; thread < threads; ++thread) {
      running.emplace_back([&, thread] {
        bench::Latencies& mine = latencies[static_cast<std::size_t>(thread)];
        mine.reserve(each);
        const bench::Stopwatch own;
        std::uint64_t before = 0;
        for (std::size_t number = 0; number < each; ++number) {
          work(thread, number);
          const std::uint64_t now = own.nanoseconds();
          mine.add(now - before);
          before = now;
        }
      });
    }
    for (auto& one : running) one.join();
    seconds_ += watch.seconds();
    operations_ += each * static_cast<std::size_t>(threads);
    for (const auto& one : latencies) latencies_.merge(one);
  }
  double seconds() const { return seconds_; }
  void print(const bench::Report& report) {
    report.row(name_, "ops_per_s", static_cast<double>(operations_) / seconds_);
    report.row(name_, "p999_us", latencies_.percentile_us(0.999));
    report.row(name_, "max_us", latencies_.max_us());
  }

 private:
  std::string name_;
  double seconds_ = 0;
  std::size_t operations_ = 0;
  bench::Latencies latencies_;
};

std::string pattern(int thread, std::size_t number) {
  std::string bytes(kSmall, '\0');
  for (std::size_t i = 0; i < bytes.size(); i += 8) {
    const std::uint64_t word = (static_cast<std::uint64_t>(thread) << 48 | number << 16 | i) * 0x9e3779b97f4a7c15u;
    std::memcpy(bytes.data() + i, &word, 8);
  }
  return bytes;
}

// How long each figure is measured at least.
double wanted_seconds(const bench::Arguments& arguments) { return arguments.pick(0.0, 1.0, 3.0); }

// Cycles over new names: of every system the same number of them in a directory, as many cycles as give each row its time.
void names_and_small_files(const bench::Report& plain, const bench::Arguments& arguments, int threads) {
  const std::size_t each = arguments.pick<std::size_t>(80, 1'500, 8'000) / static_cast<std::size_t>(threads);
  const double wanted = wanted_seconds(arguments);
  const std::string suffix = " " + std::to_string(threads) + (threads == 1 ? " thread" : " threads");
  const std::string folder = arguments.folder + "/t" + std::to_string(threads);
  const bench::Report report = plain.with({.client = "system calls of " + std::to_string(threads) + (threads == 1 ? " thread" : " threads"),
                                           .transport = "", .connections = 0, .in_flight = 0});
  must(::mkdir(folder.c_str(), 0755), "mkdir", folder);
  for (int thread = 0; thread < threads; ++thread) {
    const std::string own = folder + "/" + std::to_string(thread);
    must(::mkdir(own.c_str(), 0755), "mkdir", own);
  }
  Row create("create" + suffix), stat("stat" + suffix), rename("rename" + suffix), unlink("unlink" + suffix), mkdir("mkdir" + suffix),
      write4k("write4k" + suffix), read4k("read4k" + suffix);
  Row* const rows[] = {&create, &stat, &rename, &unlink, &mkdir, &write4k, &read4k};
  const auto shortest = [&] {
    double least = create.seconds();
    for (const Row* row : rows) least = std::min(least, row->seconds());
    return least;
  };
  // A system one of whose operations is much quicker than the others would cycle for long: no more than this in all.
  const double most = 2.0 * wanted * static_cast<double>(std::size(rows));
  const bench::Stopwatch all;
  do {
    create.add(threads, each, [&](int thread, std::size_t number) {
      const std::string path = path_of(folder, thread, "f", number);
      const int file = ::open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY, 0644);
      must(file, "create", path);
      must(::close(file), "close", path);
    });
    do {
      stat.add(threads, each, [&](int thread, std::size_t number) {
        const std::string path = path_of(folder, thread, "f", number);
        struct stat status {};
        must(::stat(path.c_str(), &status), "stat", path);
        require(S_ISREG(status.st_mode) && status.st_size == 0 && status.st_nlink == 1, path + ": stat answers something else");
      });
    } while (stat.seconds() < wanted);
    rename.add(threads, each, [&](int thread, std::size_t number) {
      const std::string path = path_of(folder, thread, "f", number);
      must(::rename(path.c_str(), path_of(folder, thread, "g", number).c_str()), "rename", path);
    });
    unlink.add(threads, each, [&](int thread, std::size_t number) {
      const std::string path = path_of(folder, thread, "g", number);
      must(::unlink(path.c_str()), "unlink", path);
    });
    mkdir.add(threads, each, [&](int thread, std::size_t number) {
      const std::string path = path_of(folder, thread, "d", number);
      must(::mkdir(path.c_str(), 0755), "mkdir", path);
    });
    for (int thread = 0; thread < threads; ++thread) {
      for (std::size_t number = 0; number < each; ++number) {
        const std::string path = path_of(folder, thread, "d", number);
        must(::rmdir(path.c_str()), "rmdir", path);
      }
      const std::string own = folder + "/" + std::to_string(thread);
      must(::rmdir(own.c_str()), "rmdir of what must be empty now:", own);
      must(::mkdir(own.c_str(), 0755), "mkdir", own);
    }
    write4k.add(threads, each, [&](int thread, std::size_t number) {
      const std::string path = path_of(folder, thread, "w", number);
      const std::string bytes = pattern(thread, number);
      const int file = ::open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY, 0644);
      must(file, "create", path);
      require(::write(file, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()), path + ": short write");
      must(::close(file), "close", path);
    });
    read4k.add(threads, each, [&](int thread, std::size_t number) {
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
      for (std::size_t number = 0; number < each; ++number) {
        const std::string path = path_of(folder, thread, "w", number);
        must(::unlink(path.c_str()), "unlink", path);
      }
    }
  } while (shortest() < wanted && all.seconds() < most);
  for (Row* row : rows) row->print(report);
}

constexpr std::size_t kPiece = std::size_t{1} << 20;

// A file of `pieces` MiB written and read back once; the seconds of each.
std::pair<double, double> sequential_once(const std::string& path, std::size_t pieces, bool zeros) {
  std::string bytes(kPiece, '\0');
  const auto fill = [&](std::size_t piece) {
    if (!zeros) std::memset(bytes.data(), static_cast<int>(piece * 37 % 251 + 1), kPiece);
  };
  std::pair<double, double> took;
  {
    const bench::Stopwatch watch;
    const int file = ::open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY, 0644);
    must(file, "create", path);
    for (std::size_t piece = 0; piece < pieces; ++piece) {
      fill(piece);
      require(::write(file, bytes.data(), kPiece) == static_cast<ssize_t>(kPiece), path + ": short write");
    }
    must(::close(file), "close", path);
    took.first = watch.seconds();
  }
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
  took.second = watch.seconds();
  must(::close(file), "close", path);
  must(::unlink(path.c_str()), "unlink", path);
  return took;
}

void sequential(const bench::Report& report, const bench::Arguments& arguments) {
  const std::size_t pieces = arguments.pick<std::size_t>(4, 256, 1024);
  // The limit keeps no bytes of big files: zeros are what it can give back.
  const bool zeros = arguments.system == "fuse_limit";
  double writing = 0, reading = 0, megabytes = 0;
  do {
    const auto [wrote, read] = sequential_once(arguments.folder + "/sequential", pieces, zeros);
    writing += wrote;
    reading += read;
    megabytes += static_cast<double>(pieces * kPiece) / 1e6;
  } while (std::min(writing, reading) < wanted_seconds(arguments));
  report.row("seq write 1M", "mb_per_s", megabytes / writing);
  report.row("seq read 1M", "mb_per_s", megabytes / reading);
}

// One directory that grows (to --directory=N names): the rate of each tenth, then how fast it is listed.
void one_directory(const bench::Report& report, const bench::Arguments& arguments) {
  const std::size_t wanted = std::strtoul(arguments.option("directory", "0").c_str(), nullptr, 10) / 10 * 10;
  const std::size_t usual = arguments.pick<std::size_t>(2'000, 10'000, 50'000);
  const std::size_t tenth = (wanted > 0 ? wanted : usual) / 10, count = tenth * 10;
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
  std::size_t listings = 0;
  const bench::Stopwatch watch;
  do {
    std::size_t seen = 0;
    DIR* stream = ::opendir(folder.c_str());
    require(stream != nullptr, folder + ": cannot be listed");
    while (const dirent* one = ::readdir(stream)) seen += one->d_name[0] == 'f' ? 1 : 0;
    ::closedir(stream);
    require(seen == count, folder + ": the listing has other names than were made");
    ++listings;
  } while (watch.seconds() < wanted_seconds(arguments));
  report.row("list one directory", "names_per_s", static_cast<double>(count * listings) / watch.seconds());
  for (std::size_t number = 0; number < count; ++number) {
    const std::string path = folder + "/f" + std::to_string(number);
    must(::unlink(path.c_str()), "unlink", path);
  }
  must(::rmdir(folder.c_str()), "rmdir", folder);
}

}  // namespace

int main(int argc, char** argv) {
  const bench::Arguments arguments =
      bench::parse("fs", {"fusionfs", "fusionfs_embed", "fuse_limit", "juicefs", "glusterfs", "local"}, argc, argv);
  const bench::Report report(arguments);
  const std::string only = arguments.option("only", "");  // names, sequential or directory
  for (const int threads : {1, 2, 8}) {
    if (only.empty() || only == "names") names_and_small_files(report, arguments, threads);
  }
  if (only.empty() || only == "sequential") sequential(report, arguments);
  if (only.empty() || only == "directory") one_directory(report, arguments);
  return 0;
}

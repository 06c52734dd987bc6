// Which processes opened a file, as mounts with -o provenance have kept it; how fast a mount is.
#include <CLI/CLI.hpp>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "fusionfs/fuse/wait.h"
#include "fusionfs/tool/place.h"
#include "fusionfs/tool/verbs.h"
#include "zht/support/output.h"
#include "zht/support/program.h"

namespace fusionfs {
namespace {

using base::Code;
using base::fail;
using base::Result;

// "2026-01-02T03:04:05.678Z"
std::string iso_time(Nanos time) {
  const std::time_t seconds = static_cast<std::time_t>(time / 1'000'000'000);
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  char text[32], whole[48];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts);
  std::snprintf(whole, sizeof whole, "%s.%03dZ", text, static_cast<int>(time / 1'000'000 % 1000));
  return whole;
}

Result<int> show_provenance(const support::CommonFlags& common, const std::string& path) {
  TRY_LET(place, open_place(common));
  TRY_LET(inode, find_path(place, path));
  const auto kept = place.client->lookup(provenance_key(inode.id));
  if (!kept && kept.code() != Code::not_found) return kept.error();
  if (!kept)
    return fail(Code::not_found, path, ": nothing is kept about it; mounts keep it with: fusionfs mount -o provenance");
  support::Table table({"TIME", "USE", "USER", "PROCESS", "NODE", "COMMAND"});
  nlohmann::json list = nlohmann::json::array();
  std::istringstream lines(kept->value);
  std::string line;
  while (std::getline(lines, line)) {
    std::vector<std::string> fields;
    std::istringstream parts(line);
    for (std::string field; std::getline(parts, field, '\t');) fields.push_back(field);
    if (fields.size() != 6) continue;
    const std::string time = iso_time(std::strtoll(fields[0].c_str(), nullptr, 10));
    table.row({time, fields[1], fields[2], fields[3], fields[4], fields[5]});
    list.push_back({{"time", time},
                    {"use", fields[1]},
                    {"user", std::strtoull(fields[2].c_str(), nullptr, 10)},
                    {"process", std::strtoull(fields[3].c_str(), nullptr, 10)},
                    {"node", fields[4]},
                    {"command", fields[5]}});
  }
  if (common.json)
    support::print_json(list);
  else
    table.print();
  return 0;
}

struct Rate {
  std::string what, unit;
  double value = 0;
};

// Creates, looks at, reads and removes `count` small files in a folder of its own, then writes and reads a large one.
Result<std::vector<Rate>> measure(const std::string& folder, std::size_t count) {
  std::vector<Rate> rates;
  const std::string body(4096, 'b');
  std::string back(body.size(), '\0');
  const auto timed = [&](const char* what, const char* unit, double amount,
                         const std::function<Result<void>()>& work) -> Result<void> {
    const auto started = std::chrono::steady_clock::now();
    TRY(work());
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - started;
    rates.push_back({what, unit, amount / took.count()});
    return {};
  };
  const auto each = [&](const std::function<bool(const std::string&)>& act) {
    return [&folder, count, act]() -> Result<void> {
      for (std::size_t i = 0; i < count; ++i) {
        const std::string path = folder + "/f" + std::to_string(i);
        if (!act(path)) return base::fail_errno(errno != 0 ? errno : EIO, path);
      }
      return {};
    };
  };
  const auto open_and = [&](int flags, const std::function<bool(int)>& act) {
    return each([flags, act](const std::string& path) {
      errno = 0;
      const int file = ::open(path.c_str(), flags | O_CLOEXEC, 0644);
      if (file < 0) return false;
      const bool done = act(file);
      return ::close(file) == 0 && done;
    });
  };
  const double files = static_cast<double>(count);
  TRY(timed("create", "ops_per_s", files, open_and(O_CREAT | O_EXCL | O_WRONLY, [](int) { return true; })));
  TRY(timed("stat", "ops_per_s", files, each([](const std::string& path) {
              struct stat status {};
              return ::stat(path.c_str(), &status) == 0;
            })));
  TRY(timed("write 4 KiB", "ops_per_s", files, open_and(O_WRONLY, [&](int file) {
              return ::write(file, body.data(), body.size()) == static_cast<ssize_t>(body.size());
            })));
  TRY(timed("read 4 KiB", "ops_per_s", files, open_and(O_RDONLY, [&](int file) {
              return ::read(file, back.data(), back.size()) == static_cast<ssize_t>(back.size()) && back == body;
            })));
  TRY(timed("unlink", "ops_per_s", files, each([](const std::string& path) { return ::unlink(path.c_str()) == 0; })));
  constexpr std::size_t kPiece = std::size_t{1} << 20, kPieces = 256;
  const std::string large = folder + "/large", piece(kPiece, 'L');
  const int file = ::open(large.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0644);
  if (file < 0) return base::fail_errno(errno, large);
  std::string read_back(kPiece, '\0');
  const double megabytes = static_cast<double>(kPiece) * kPieces / 1e6;
  Result<void> done = timed("sequential write", "mb_per_s", megabytes, [&]() -> Result<void> {
    for (std::size_t i = 0; i < kPieces; ++i) {
      if (::pwrite(file, piece.data(), kPiece, static_cast<off_t>(i * kPiece)) != static_cast<ssize_t>(kPiece))
        return base::fail_errno(errno, large);
    }
    if (::fsync(file) != 0) return base::fail_errno(errno, large);
    return {};
  });
  ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
  if (done)
    done = timed("sequential read", "mb_per_s", megabytes, [&]() -> Result<void> {
      for (std::size_t i = 0; i < kPieces; ++i) {
        if (::pread(file, read_back.data(), kPiece, static_cast<off_t>(i * kPiece)) != static_cast<ssize_t>(kPiece) ||
            read_back != piece)
          return fail(Code::io, large, ": reads something else than was written");
      }
      return {};
    });
  ::close(file);
  ::unlink(large.c_str());
  if (!done) return done.error();
  return rates;
}

Result<int> bench(const support::CommonFlags& common, const std::string& directory, std::size_t count) {
  std::string folder = directory + "/.fusionfs-bench.XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr) return base::fail_errno(errno, "make a folder in " + directory);
  const auto rates = measure(folder, count);
  if (::rmdir(folder.c_str()) != 0) std::fprintf(stderr, "%s is left; remove it: rm -r %s\n", folder.c_str(), folder.c_str());
  if (!rates) return rates.error();
  support::Table table({"WHAT", "RATE", ""});
  nlohmann::json list = nlohmann::json::array();
  for (const Rate& each : *rates) {
    char text[32];
    std::snprintf(text, sizeof text, "%.0f", each.value);
    table.row({each.what, text, each.unit == "mb_per_s" ? "MB/s" : "/s"});
    list.push_back({{"row", each.what}, {"metric", each.unit}, {"value", each.value}});
  }
  if (common.json)
    support::print_json(list);
  else
    table.print();
  return 0;
}

}  // namespace

void add_provenance_verbs(support::Program& program) {
  {
    auto& verb = program.verb("provenance", "Shows which processes opened a file (where mounted with -o provenance).",
                              {"fusionfs provenance /mnt/shared/data", "fusionfs provenance /mnt/shared/data --json"});
    const auto path = std::make_shared<std::string>();
    verb.options().add_option("file", *path, "a file on a mount, or a path from the file system's root")->required();
    verb.action([&program, path]() -> Result<int> { return show_provenance(program.common(), *path); });
  }
  {
    auto& verb = program.verb("bench", "Measures a mount (or any directory) by one thread; leaves nothing behind.",
                              {"fusionfs bench /mnt/shared", "fusionfs bench /tmp --files 20000 --json"});
    const auto directory = std::make_shared<std::string>();
    const auto count = std::make_shared<std::size_t>(5'000);
    verb.options().add_option("directory", *directory, "where to make the files")->required();
    verb.options().add_option("--files", *count, "how many small files (default 5000)")->check(CLI::Range(1, 10'000'000));
    verb.action([&program, directory, count]() -> Result<int> { return bench(program.common(), *directory, *count); });
  }
}

}  // namespace fusionfs

#include "zht/support/paths.h"

#include <fcntl.h>
#include <pwd.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "novoht/base/bytes.h"
#include "novoht/base/random.h"

namespace support {
namespace {

using base::Code;
using base::fail;
using base::fail_errno;
using base::Result;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// The names in `folder` survive a loss of power, as far as its file system can see to that.
Result<void> sync_names(const std::string& folder) {
  if (const int dir = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); dir >= 0) {
    const int synced = fsync(dir) == 0 ? 0 : errno;
    close(dir);
    if (synced != 0 && synced != EINVAL) return fail_errno(synced, folder);
  }
  return {};
}

// A folder that only this user can have made and can change.
Result<void> check_private(const std::string& path) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) return fail_errno(errno, path);
  if (!S_ISDIR(info.st_mode)) return fail(Code::invalid, path, " is not a folder; remove it or name another");
  if (info.st_uid != geteuid())
    return fail(Code::invalid, path, " belongs to user ", info.st_uid, ", not to ", geteuid(), "; name another folder");
  if ((info.st_mode & 0022) != 0)
    return fail(Code::invalid, path, " can be written by others (mode ", std::oct, info.st_mode & 0777,
                "); chmod 700 it");
  return {};
}

}  // namespace

Result<std::string> absolute_path(const std::string& path) {
  std::error_code error;
  std::string absolute = std::filesystem::absolute(path, error).lexically_normal().string();
  if (error) return fail(Code::io, path, ": ", error.message());
  while (absolute.size() > 1 && absolute.back() == '/') absolute.pop_back();
  return absolute;
}

Result<std::string> data_folder(const std::string& flag) {
  if (!flag.empty()) return absolute_path(flag);
  if (const std::string set = environment("ZHT_DATA"); !set.empty()) return absolute_path(set);
  auto found = user_folder("zht");
  if (!found && found.code() == Code::invalid)
    return fail(Code::invalid, "no data folder: neither ZHT_DATA, XDG_DATA_HOME nor HOME is set; give --data DIR");
  return found;
}

Result<std::string> user_folder(const std::string& name) {
  if (const std::string set = environment("XDG_DATA_HOME"); !set.empty()) return absolute_path(set + "/" + name);
  std::string home = environment("HOME");
  if (home.empty())
    if (const passwd* user = getpwuid(geteuid()); user != nullptr) home = user->pw_dir;
  if (home.empty()) return fail(Code::invalid, "neither XDG_DATA_HOME nor HOME is set");
  return absolute_path(home + "/.local/share/" + name);
}

Result<void> make_private_folder(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) {
    if (errno != ENOENT) return fail_errno(errno, "folder " + path);
    const std::size_t slash = path.find_last_of('/');
    if (slash != std::string::npos && slash > 0) {
      std::error_code error;
      std::filesystem::create_directories(path.substr(0, slash), error);
      if (error)
        return fail(base::code_of_errno(error.value()), "folder ", path.substr(0, slash), ": ", error.message());
    }
    if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return fail_errno(errno, "folder " + path);
    TRY(sync_names(slash == std::string::npos ? "." : path.substr(0, slash + 1)));  // a loss of power must not take the folder with all in it
    if (stat(path.c_str(), &info) != 0) return fail_errno(errno, "folder " + path);
  }
  if (!S_ISDIR(info.st_mode)) return fail(Code::invalid, path, " is a file, not a folder; remove it or name another");
  if (info.st_uid != geteuid())
    return fail(Code::invalid, "folder ", path, " belongs to user ", info.st_uid, ", not to ", geteuid(),
                "; name another folder or run as its owner");
  if (access(path.c_str(), R_OK | W_OK | X_OK) != 0) return fail_errno(errno, "folder " + path);
  return {};
}

Result<std::string> socket_path(const std::string& folder, const std::string& name) {
  constexpr std::size_t most = sizeof(sockaddr_un::sun_path) - 1;
  std::string plain = folder + "/" + name;
  if (plain.size() <= most) return plain;
  std::error_code ignored;
  const std::string target = std::filesystem::weakly_canonical(folder, ignored).string();
  const std::string links = "/tmp/zht-" + std::to_string(geteuid());
  if (mkdir(links.c_str(), 0700) != 0 && errno != EEXIST) return fail_errno(errno, "folder " + links);
  TRY(check_private(links));
  const std::uint64_t hash = base::hash64(target);
  const std::string link = links + "/" + base::to_hex({reinterpret_cast<const char*>(&hash), sizeof hash});
  std::string through = link + "/" + name;
  if (through.size() > most)
    return fail(Code::invalid, "socket name '", name, "' is too long: ", through.size(), " bytes, at most ", most);
  if (symlink(target.c_str(), link.c_str()) != 0 && errno != EEXIST) return fail_errno(errno, "link " + link);
  const auto points_to = std::filesystem::read_symlink(link, ignored);
  if (points_to != target)
    return fail(Code::invalid, link, " points to ", points_to, ", not to ", target, "; remove it");
  return through;
}

Result<void> write_file_atomically(const std::string& path, const std::string& content, unsigned mode) {
  const std::uint64_t random = base::entropy();
  const std::string temporary = path + ".new-" + base::to_hex({reinterpret_cast<const char*>(&random), 4});
  const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
  if (fd < 0) return fail_errno(errno, temporary);
  const auto give_up = [&](int error) {
    close(fd);
    unlink(temporary.c_str());
    return fail_errno(error, path);
  };
  for (std::size_t at = 0; at < content.size();) {
    const ssize_t wrote = write(fd, content.data() + at, content.size() - at);
    if (wrote < 0 && errno != EINTR) return give_up(errno);
    if (wrote > 0) at += static_cast<std::size_t>(wrote);
  }
  if (fsync(fd) != 0) return give_up(errno);
  close(fd);
  if (rename(temporary.c_str(), path.c_str()) != 0) {
    const int error = errno;
    unlink(temporary.c_str());
    return fail_errno(error, path);
  }
  const std::size_t slash = path.find_last_of('/');
  return sync_names(slash == std::string::npos ? "." : path.substr(0, slash + 1));
}

Result<std::string> read_file(const std::string& path, std::size_t most) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return fail_errno(errno, path);
  std::string content;
  char buffer[65536];
  for (;;) {
    const ssize_t got = read(fd, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      const int error = errno;
      close(fd);
      return fail_errno(error, path);
    }
    if (got == 0) break;
    content.append(buffer, static_cast<std::size_t>(got));
    if (content.size() > most) {
      close(fd);
      return fail(Code::invalid, path, ": more than ", most, " bytes");
    }
  }
  close(fd);
  return content;
}

}  // namespace support

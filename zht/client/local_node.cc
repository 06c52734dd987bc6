#include "zht/client/local_node.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "zht/client/control.h"
#include "zht/client/known_secrets.h"
#include "zht/support/paths.h"
#include "zht/support/process.h"

namespace zht::client {
namespace {

using namespace std::chrono_literals;

constexpr Millis kAnswerTime = 5s;  // a node that accepts a connection answers within this

std::uintmax_t size_of(const std::string& path) {
  std::error_code absent;
  const auto size = std::filesystem::file_size(path, absent);
  return absent ? 0 : size;
}

// What the node wrote to its log since it was `from` bytes long, its last line.
std::string last_words(const std::string& log, std::uintmax_t from) {
  std::ifstream file(log, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(std::max(from, size_of(log) - std::min<std::uintmax_t>(size_of(log), 4096))));
  std::string last;
  for (std::string line; std::getline(file, line);)
    if (!line.empty()) last = line;
  if (!last.empty()) return last;
  std::error_code unknown;  // what it had to say may have found no room
  const auto space = std::filesystem::space(std::filesystem::path(log).parent_path(), unknown);
  if (!unknown && space.available < 4096) return "no space left on the device of " + log;
  return "it left no message in " + log;
}

Result<LocalNode> answering(const std::string& data_folder, const Address& manager, Millis patience) {
  TRY_LET(table, fetch_table(manager, std::min(patience, kAnswerTime)));
  return LocalNode{data_folder, manager, std::move(table), false};
}

// Waits for the node that process `pid` is, or is about to be; 0: whoever holds the node's lock.
Result<LocalNode> wait_for(const std::string& data_folder, const Address& manager, pid_t pid, std::uintmax_t log_size,
                           Millis patience, const std::atomic<bool>* cancelled) {
  Result<LocalNode> node =
      fail(Code::unavailable, "the node in ", data_folder, " does not answer within ", patience.count(), " ms; see node.log there");
  bool gone = false;
  support::wait_until(patience, [&] {
    if (cancelled != nullptr && *cancelled) return true;
    // Asked first: a node that answers and ends between the two questions is seen as gone, not as silent.
    gone = pid != 0 ? !support::process_exists(pid) : !support::held_by(data_folder + "/node.lock");
    auto found = answering(data_folder, manager, patience);
    if (found) node = std::move(found);
    return node.has_value() || gone;
  });
  if (!node && gone)
    return fail(Code::unavailable, "the local node in ", data_folder,
                " did not start: ", last_words(data_folder + "/node.log", log_size));
  return node;
}

}  // namespace

Result<Address> manager_of(const std::string& data_folder) {
  TRY_LET(path, support::socket_path(data_folder, "node.sock"));
  Address manager{.path = std::move(path)};
  // For those of the cluster that it tells of: they are reached by TCP. A secret that cannot be read is of no use, and the node is
  // reached without.
  if (auto opener = credentials_at(manager, data_folder)) manager.opener = *std::move(opener);
  return manager;
}

bool stopped_on_purpose(const std::string& data_folder) {
  const std::string lock = data_folder + "/node.lock";
  return !support::held_by(lock) && size_of(lock) == 0;
}

Result<LocalNode> start_node(const std::string& data_folder, const std::vector<std::string>& arguments,
                             Millis patience, const std::atomic<bool>* cancelled) {
  TRY(support::make_private_folder(data_folder));
  TRY_LET(manager, manager_of(data_folder));
  TRY_LET(program, support::find_program("zht"));
  std::vector<std::string> argv{program, "serve", "--data", data_folder};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  const std::string log = data_folder + "/node.log";
  const std::uintmax_t log_size = size_of(log);
  TRY_LET(pid, support::spawn_background(argv, log));
  TRY_LET(node, wait_for(data_folder, manager, pid, log_size, patience, cancelled));
  node.started = true;
  return node;
}

Result<LocalNode> find_node(const std::string& data_folder, bool start, bool quiet, Millis patience,
                            const std::atomic<bool>* cancelled) {
  TRY_LET(manager, manager_of(data_folder));
  auto found = answering(data_folder, manager, patience);
  if (found || found.code() != Code::unavailable) return found;
  const std::string node_lock = data_folder + "/node.lock";
  if (!start && !support::held_by(node_lock))
    return fail(Code::unavailable, "no node runs in ", data_folder, "; start one with: zht serve --background --data ",
                data_folder);
  if (!start) return wait_for(data_folder, manager, 0, size_of(data_folder + "/node.log"), patience, cancelled);
  TRY(support::make_private_folder(data_folder));
  TRY_LET(start_lock, support::LockFile::acquire(data_folder + "/start.lock", patience));
  // Somebody may have started it while this one waited for the lock.
  found = answering(data_folder, manager, patience);
  if (found || found.code() != Code::unavailable) return found;
  if (support::held_by(node_lock)) {  // starting, recovering, or ending
    found = wait_for(data_folder, manager, 0, size_of(data_folder + "/node.log"), patience, cancelled);
    if (found || support::held_by(node_lock)) return found;
  }
  TRY_LET(node, start_node(data_folder, {"--as-before"}, patience, cancelled));
  if (!quiet)
    std::fprintf(stderr, "zht: started a local node in %s (stop it with: zht stop --data %s)\n", data_folder.c_str(), data_folder.c_str());
  return node;
}

}  // namespace zht::client

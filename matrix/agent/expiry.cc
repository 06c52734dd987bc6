#include "matrix/agent/expiry.h"

#include <chrono>
#include <filesystem>
#include <vector>

#include "matrix/jobs.h"

namespace matrix {

using base::Code;
using base::Result;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t kAtOnce = 1000;  // jobs
constexpr std::uint64_t kHistoryTrim = std::uint64_t{1} << 20;  // bytes; past it only the latest jobs are kept, however young
constexpr std::size_t kHistoryKept = 2000;                      // jobs
constexpr auto kFirstPause = 30s, kPause = 600s, kShortPause = 1s;

std::uint64_t wall_us() {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::system_clock::now().time_since_epoch()).count());
}

}  // namespace

Expiry::~Expiry() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void Expiry::start() {
  thread_ = std::thread([this] { run(); });
}

void Expiry::run() {
  std::chrono::seconds pause = kFirstPause;
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, pause, [this] { return stopping_; })) {
    lock.unlock();
    const auto done = pass(wall_us());  // what failed is tried again
    pause = done && done->more ? kShortPause : kPause;
    lock.lock();
  }
}

// Whether the job has gone, or went just now.
Result<bool> Expiry::expired(const std::string& id, std::uint64_t now_us, bool too_many) {
  Jobs jobs(client_, agent_);
  const auto state = jobs.state(id);
  if (!state && state.code() == Code::not_found) return true;
  if (!state) return state.error();
  if (!is_end(state->phase)) return false;
  if (!too_many) {
    const auto job = jobs.job(id);
    if (!job) return job.error();
    const std::uint64_t keep_ms = job->keep_ms != 0 ? job->keep_ms : static_cast<std::uint64_t>(kDefaultKeep.count());
    if (now_us < state->ended_us || (now_us - state->ended_us) / 1000 < keep_ms) return false;
  }
  const auto removed = jobs.remove(id);
  if (!removed && removed.code() != Code::not_found) return removed.error();
  std::error_code ignored;
  std::filesystem::remove_all(data_folder_ + "/matrix/" + id, ignored);
  return true;
}

Result<Expiry::Pass> Expiry::pass(std::uint64_t now_us) {
  const auto history = client_.lookup(keys::history(agent_));
  if (!history && history.code() == Code::not_found) return Pass{};
  if (!history) return history.error();
  std::vector<base::Bytes> lines;
  for (base::Bytes rest = history->value; !rest.empty();) {
    const auto end = std::min(rest.find('\n'), rest.size() - 1) + 1;
    lines.push_back(rest.substr(0, end));
    rest.remove_prefix(end);
  }
  if (next_ >= lines.size()) next_ = 0;
  const bool too_many = history->value.size() > kHistoryTrim;
  const std::size_t last = std::min(lines.size(), next_ + kAtOnce);
  Pass done;
  std::string kept;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    bool gone = false;
    if (i >= next_ && i < last) {
      const std::string id(lines[i].substr(0, lines[i].find_first_of(" \n")));
      TRY_LET(went, expired(id, now_us, too_many && i + kHistoryKept < lines.size()));
      gone = went;
    }
    if (gone)
      done.removed += 1;
    else
      kept += lines[i];
  }
  next_ = last - done.removed;
  done.more = last < lines.size();
  // A submission meanwhile makes this fail: the lines go the next time.
  if (done.removed > 0)
    TRY(client_.cswap(keys::history(agent_), zht::Condition::at_version(history->version), kept));
  return done;
}

}  // namespace matrix

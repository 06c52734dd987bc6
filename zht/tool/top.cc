// `zht top`: a live screen of the node.
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>

#include "zht/support/output.h"
#include "zht/support/process.h"
#include "zht/tool/manager.h"
#include "zht/tool/screen.h"
#include "zht/tool/top_view.h"
#include "zht/tool/verbs.h"

namespace zht::tool {
namespace {

using namespace std::chrono_literals;
using std::chrono::steady_clock;

struct Look {
  wire::Status status;
  steady_clock::time_point at;
};

Result<Look> look(const support::Program& program) {
  TRY_LET(addresses, managers(program));
  TRY_LET(status, status_of(addresses, patience(program, 5s)));
  return Look{std::move(status), steady_clock::now()};
}

TopView view_of(const std::optional<Look>& before, const Look& now) {
  return TopView(before ? std::optional(before->status) : std::nullopt, now.status,
                 before ? std::chrono::duration<double>(now.at - before->at).count() : 0);
}

// Waits for a key, a signal or the end of the time.
void wait(const support::SignalWaiter& signals, steady_clock::time_point until) {
  pollfd ready[2] = {{STDIN_FILENO, POLLIN, 0}, {signals.fd(), POLLIN, 0}};
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - steady_clock::now()).count();
  ::poll(ready, 2, static_cast<int>(std::max<std::int64_t>(0, left)));
}

Result<int> live(const support::Program& program, Millis interval) {
  support::SignalWaiter signals({SIGINT, SIGTERM, SIGHUP, SIGWINCH, SIGTSTP});
  Screen screen;
  std::optional<Look> before, now;
  std::string trouble;
  auto next = steady_clock::now();
  for (;;) {
    if (steady_clock::now() >= next) {
      auto looked = look(program);
      trouble = looked ? "" : looked.error().message;
      if (looked) {
        before = std::exchange(now, *std::move(looked));
        // The second look comes soon: until then there are only figures since the start.
        next = steady_clock::now() + (before ? interval : std::min<Millis>(interval, 200ms));
      } else {
        next = steady_clock::now() + interval;
      }
    }
    std::vector<std::string> lines;
    if (now) lines = view_of(before, *now).lines(screen.size().columns);
    if (!trouble.empty()) lines.insert(lines.begin() + (lines.empty() ? 0 : 1), "no answer: " + trouble);
    const std::size_t rows = screen.size().rows;
    if (lines.size() + 1 < rows) lines.resize(rows - 1);
    if (lines.size() >= rows) lines.resize(rows - 1);
    lines.emplace_back("q quits");
    screen.draw(lines);
    wait(signals, next);
    if (const char key = screen.key(); key == 'q' || key == 'Q' || key == 4) return 0;  // 4: Ctrl-D
    if (const auto signal = signals.wait(0ms); signal && *signal != SIGWINCH && *signal != SIGTSTP)
      return 128 + *signal;
  }
}

// Two looks, `interval` apart, and what happened in between.
Result<int> once(const support::Program& program, Millis interval) {
  TRY_LET(before, look(program));
  support::SignalWaiter signals({SIGINT, SIGTERM});
  if (const auto signal = signals.wait(interval)) return 128 + *signal;
  TRY_LET(now, look(program));
  const TopView view = view_of(before, now);
  if (program.common().json) {
    support::print_json(view.json());
  } else {
    for (const std::string& line : view.lines(200)) std::cout << line << "\n";
  }
  return 0;
}

}  // namespace

void add_top_verb(support::Program& program) {
  auto& verb = program.verb("top", "Shows, live, operations per second and latencies of each instance.",
                            {"zht top", "zht top --once --interval 5s --json"});
  auto interval = std::make_shared<Millis>(1000);
  auto only_once = std::make_shared<bool>(false);
  support::add_duration(verb.options(), "--interval", *interval, "between two looks (1s)");
  verb.options().add_flag("--once", *only_once,
                          "print once what happened in one interval; so without a terminal, and with --json");
  verb.action([&program, interval, only_once]() -> Result<int> {
    if (*interval < 10ms) return fail(Code::invalid, "--interval ", interval->count(), "ms: at least 10ms");
    const bool terminal = support::stdout_is_tty() && ::isatty(STDIN_FILENO) == 1;
    return *only_once || program.common().json || !terminal ? once(program, *interval) : live(program, *interval);
  });
}

}  // namespace zht::tool

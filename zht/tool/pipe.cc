// `zht pipe`: one JSON operation a line on stdin, one JSON answer a line on stdout, in order, each written at once.
#include <poll.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>

#include "zht/tool/pipe_line.h"
#include "zht/tool/verbs.h"

namespace zht::tool {
namespace {

constexpr std::size_t kMaxLine = std::size_t{64} << 20;

// Lines of stdin, without the newline. One that is too long is passed over and told as such.
class Lines {
 public:
  enum class Kind { line, too_long, end };
  Result<Kind> next(std::string& line) {
    line.clear();
    bool too_long = false;
    for (;;) {
      if (at_ == buffer_.size()) {
        TRY_LET(more, refill());
        if (!more) {
          if (too_long) return Kind::too_long;
          return line.empty() ? Kind::end : Kind::line;  // a last line without its newline counts
        }
      }
      const std::size_t newline = buffer_.find('\n', at_);
      const std::size_t end = newline == std::string::npos ? buffer_.size() : newline;
      if (line.size() + (end - at_) > kMaxLine) too_long = true;
      if (too_long)
        line.clear();
      else
        line.append(buffer_, at_, end - at_);
      at_ = end;
      if (newline == std::string::npos) continue;
      at_++;
      return too_long ? Kind::too_long : Kind::line;
    }
  }

 private:
  Result<bool> refill() {
    buffer_.resize(65536);
    at_ = 0;
    ssize_t got;
    do got = read(STDIN_FILENO, buffer_.data(), buffer_.size());
    while (got < 0 && errno == EINTR);
    buffer_.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    if (got < 0) return base::fail_errno(errno, "standard input");
    return got > 0;
  }
  std::string buffer_;
  std::size_t at_ = 0;
};

Result<void> write_out(const std::string& text) {
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t wrote = write(STDOUT_FILENO, text.data() + at, text.size() - at);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return base::fail_errno(errno, "standard output");
    at += static_cast<std::size_t>(wrote);
  }
  return {};
}

bool is_blank(const std::string& line) { return line.find_first_not_of(" \t\r") == std::string::npos; }

Error too_long() { return fail(Code::invalid, "a line of more than ", kMaxLine, " bytes"); }

// Answers in the order of their lines, whichever order they come in; at most `depth` outstanding.
class Ordered {
 public:
  explicit Ordered(std::size_t depth) : depth_(depth) {}
  std::size_t reserve() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return answers_.size() < depth_; });
    answers_.emplace_back();
    return first_ + answers_.size() - 1;
  }
  void set(std::size_t number, std::string answer) {
    const std::lock_guard lock(mutex_);
    answers_[number - first_] = std::move(answer);
    std::string ready;
    while (!answers_.empty() && answers_.front()) {
      ready += *answers_.front() + "\n";
      answers_.pop_front();
      first_++;
    }
    if (ready.empty()) return;
    if (auto wrote = write_out(ready); !wrote && status_) status_ = std::move(wrote);
    changed_.notify_all();
  }
  Result<void> finish() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return answers_.empty(); });
    return status_;
  }

 private:
  const std::size_t depth_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::optional<std::string>> answers_;
  std::size_t first_ = 0;
  Result<void> status_;
};

// Each operation starts after the one before has been answered.
Result<void> run_in_sequence(Client& client) {
  Lines lines;
  for (std::string text;;) {
    TRY_LET(kind, lines.next(text));
    if (kind == Lines::Kind::end) return {};
    if (kind == Lines::Kind::line && is_blank(text)) continue;
    std::string answer;
    if (kind == Lines::Kind::too_long) {
      answer = refusal(too_long());
    } else if (auto line = parse_line(text); !line) {
      answer = refusal(line.error());
    } else {
      const Operation operation = line->operation;
      answer = answer_of(operation, client.call(std::move(line->operation), line->timeout));
    }
    TRY(write_out(answer + "\n"));
  }
}

Result<void> run_pipelined(Client& client, std::size_t depth) {
  Lines lines;
  Ordered answers(depth);
  for (std::string text;;) {
    TRY_LET(kind, lines.next(text));
    if (kind == Lines::Kind::end) return answers.finish();
    if (kind == Lines::Kind::line && is_blank(text)) continue;
    const std::size_t number = answers.reserve();
    if (kind == Lines::Kind::too_long) {
      answers.set(number, refusal(too_long()));
      continue;
    }
    auto line = parse_line(text);
    if (!line) {
      answers.set(number, refusal(line.error()));
      continue;
    }
    Operation shape;  // what answer_of looks at
    shape.kind = line->operation.kind;
    client.submit(
        std::move(line->operation),
        [&answers, number, shape](Outcome outcome) { answers.set(number, answer_of(shape, outcome)); }, line->timeout);
  }
}

}  // namespace

void add_pipe_verb(support::Program& program) {
  auto& verb =
      program.verb("pipe", "Runs JSON operations from stdin, one a line, and answers each with a line of JSON.",
                   {R"(echo '{"op":"insert","key":"a","value":"1"}' | zht pipe)",
                    R"(echo '{"op":"cswap","key":"a","expect":"1","value":"2"}' | zht pipe)"});
  auto depth = std::make_shared<std::uint64_t>(1);
  verb.options()
      .add_option("--pipeline", *depth, "operations under way at once; answers stay in order")
      ->check(CLI::Range(1, 100000));
  verb.action([&program, depth]() -> Result<void> {
    TRY_LET(client, connect(program.common().client_options()));
    if (*depth == 1) return run_in_sequence(*client);
    return run_pipelined(*client, *depth);
  });
}

}  // namespace zht::tool

#include "zht/resp/parser.h"

#include <charconv>
#include <utility>

namespace zht::resp {
namespace {

bool number(std::string_view text, std::int64_t& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size();
}

// The words of an inline command; quotes and backslashes as redis-cli's users type them.
bool words(std::string_view text, std::vector<std::string>& out) {
  std::size_t at = 0;
  while (true) {
    while (at < text.size() && (text[at] == ' ' || text[at] == '\t')) at++;
    if (at == text.size()) return true;
    std::string word;
    const char quote = text[at] == '"' || text[at] == '\'' ? text[at] : '\0';
    if (quote != '\0') at++;
    for (;; at++) {
      if (at == text.size()) {
        if (quote != '\0') return false;
        break;
      }
      if (quote == '\0' && (text[at] == ' ' || text[at] == '\t')) break;
      if (text[at] == quote && quote != '\0') {
        at++;
        break;
      }
      if (text[at] == '\\' && quote == '"' && at + 1 < text.size()) {
        const char next = text[++at];
        word += next == 'n' ? '\n' : next == 'r' ? '\r' : next == 't' ? '\t' : next;
        continue;
      }
      word += text[at];
    }
    out.push_back(std::move(word));
  }
}

}  // namespace

bool Parser::line(std::string_view& out) {
  const std::size_t end = buffer_.find('\n', at_);
  if (end == std::string::npos) return false;
  out = std::string_view(buffer_).substr(at_, end - at_);
  if (!out.empty() && out.back() == '\r') out.remove_suffix(1);
  at_ = end + 1;
  return true;
}

Parser::Step Parser::fail(std::string text) {
  error_ = std::move(text);
  return Step::broken;
}

Parser::Step Parser::next(std::vector<std::string>& command) {
  if (!error_.empty()) return Step::broken;
  while (true) {
    if (at_ > 0 && (at_ == buffer_.size() || at_ > (std::size_t{1} << 20))) {
      buffer_.erase(0, at_);
      at_ = 0;
    }
    std::string_view text;
    if (arguments_left_ < 0) {
      if (at_ == buffer_.size()) return Step::more;
      const bool array = buffer_[at_] == '*';
      if (!line(text))
        return buffer_.size() - at_ > kMaxInline ? fail("Protocol error: too big inline request") : Step::more;
      if (!array) {
        command.clear();
        if (!words(text, command)) return fail("Protocol error: unbalanced quotes in request");
        if (command.empty()) continue;
        return Step::command;
      }
      std::int64_t count = 0;
      if (!number(text.substr(1), count) || count > static_cast<std::int64_t>(kMaxArguments))
        return fail("Protocol error: invalid multibulk length");
      if (count <= 0) continue;
      arguments_left_ = count;
      partial_.clear();
    }
    if (arguments_left_ == 0) {
      arguments_left_ = -1;
      taken_ = 0;
      command = std::exchange(partial_, {});
      return Step::command;
    }
    if (bulk_ < 0) {
      if (!line(text))
        return buffer_.size() - at_ > kMaxInline ? fail("Protocol error: too big bulk count string") : Step::more;
      if (text.empty() || text[0] != '$') return fail("Protocol error: expected '$'");
      if (!number(text.substr(1), bulk_) || bulk_ < 0) return fail("Protocol error: invalid bulk length");
      if (static_cast<std::uint64_t>(bulk_) > max_bulk_)
        return fail("Protocol error: invalid bulk length: " + std::to_string(bulk_) + " bytes, the limit is " + std::to_string(max_bulk_));
      if (taken_ + static_cast<std::size_t>(bulk_) > max_command_)
        return fail("Protocol error: too big a command: its arguments may have " + std::to_string(max_command_) + " bytes together");
    }
    const auto size = static_cast<std::size_t>(bulk_);
    if (buffer_.size() - at_ < size + 2) return Step::more;
    if (buffer_[at_ + size] != '\r' || buffer_[at_ + size + 1] != '\n')
      return fail("Protocol error: a bulk string without its end");
    partial_.emplace_back(buffer_, at_, size);
    taken_ += size + 16;
    at_ += size + 2;
    bulk_ = -1;
    arguments_left_--;
  }
}

}  // namespace zht::resp

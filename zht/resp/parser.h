// Reads RESP2 requests, as every Redis client sends them: an array of bulk strings, or one line of words ("inline", for
// people with telnet). Incremental: give it what has arrived, take what is complete.
//
//   Parser parser;
//   parser.feed("*2\r\n$3\r\nGET\r\n$1\r\nk\r\n");
//   std::vector<std::string> command;
//   while (parser.next(command) == Parser::Step::command) ...
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace zht::resp {

class Parser {
 public:
  enum class Step { command, more, broken };
  static constexpr std::size_t kMaxArguments = 100'000;
  static constexpr std::size_t kMaxInline = std::size_t{64} << 10;

  // max_bulk: bytes of one argument; max_command: of all arguments of one. More breaks the connection, as the rest of
  // the stream cannot be trusted.
  Parser(std::size_t max_bulk, std::size_t max_command) : max_bulk_(max_bulk), max_command_(max_command) {}
  void feed(std::string_view bytes) { buffer_.append(bytes); }
  // broken: error() says what; nothing more can be read.
  Step next(std::vector<std::string>& command);
  const std::string& error() const { return error_; }
  std::size_t buffered() const { return buffer_.size() - at_ + taken_; }  // bytes held, of an unfinished command too

 private:
  bool line(std::string_view& out);  // without its end; false: not all there
  Step fail(std::string text);
  std::size_t max_bulk_, max_command_;
  std::string buffer_;
  std::size_t at_ = 0;
  std::int64_t arguments_left_ = -1;  // -1: between commands
  std::int64_t bulk_ = -1;            // size of the argument whose bytes come next
  std::vector<std::string> partial_;
  std::size_t taken_ = 0;  // bytes in partial_
  std::string error_;
};

}  // namespace zht::resp

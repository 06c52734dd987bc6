// A value, or an error that says what went wrong. The member names are those of C++23's std::expected, so that a later
// compiler can replace this file with an alias.
//
//   Result<Config> load(Bytes text) {
//     TRY_LET(tree, parse(text));                       // an error returns from here as it is
//     if (tree.empty()) return fail(Code::invalid, "line ", 1, ": empty configuration");
//     return Config(std::move(tree));
//   }
#pragma once

#include <cstdint>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "novoht/base/check.h"

namespace base {

// What went wrong, in the one vocabulary of code, wire, exit status and errno.
enum class Code : std::uint8_t {
  ok = 0,           // only inside protocols; an Error never carries it
  not_found = 1,    // no such key, file, task or queue
  conflict = 2,     // a comparison failed, or it is already there; read again
  invalid = 3,      // this argument can never work
  unavailable = 4,  // nobody to serve it now; nothing changed; try again later
  timeout = 5,      // the deadline passed; THE CHANGE MAY HAVE HAPPENED
  no_space = 6,     // a disk or a configured bound is full
  corrupt = 7,      // stored bytes are wrong
  io = 8,           // a system call failed
  unsupported = 9,  // a newer format or protocol than this build
};

std::string_view name_of(Code code);  // "not_found", ...
int exit_status_of(Code code);        // the program's exit status: 3 not_found, 4 conflict, 2 invalid, ...
int errno_of(Code code);              // ENOENT, EEXIST, EINVAL, ETIMEDOUT, ENOSPC, EIO, EOPNOTSUPP
Code code_of_errno(int error);        // ENOSPC and EDQUOT: no_space; ENOENT: not_found; EEXIST: conflict; else io

struct Error {
  Code code = Code::io;
  std::string message;  // names the object and the numbers; no trailing full stop or newline
};

// Builds an Error from parts that can be written to a stream.
template <typename... Parts>
Error fail(Code code, const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return Error{code, std::move(text).str()};
}

// Puts `context` before the message: "segment 7: <message>".
Error add_context(std::string_view context, Error error);

// The error of a failed system call: code from errno, "<what>: <strerror>".
Error fail_errno(int error, std::string_view what);

template <typename T>
class [[nodiscard]] Result {
 public:
  using value_type = T;
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT: implicit on purpose
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT
  template <typename U>
    requires(std::is_convertible_v<U, T> && !std::is_same_v<std::remove_cvref_t<U>, T> &&
             !std::is_same_v<std::remove_cvref_t<U>, Error> && !std::is_same_v<std::remove_cvref_t<U>, Result>)
  Result(U&& value) : state_(std::in_place_index<0>, std::forward<U>(value)) {}  // NOLINT

  bool has_value() const { return state_.index() == 0; }
  explicit operator bool() const { return has_value(); }
  T& value() & { CHECK(has_value(), error_text()); return std::get<0>(state_); }
  const T& value() const& { CHECK(has_value(), error_text()); return std::get<0>(state_); }
  T&& value() && { CHECK(has_value(), error_text()); return std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  const Error& error() const& { CHECK(!has_value(), "error() of a Result that holds a value"); return std::get<1>(state_); }
  Error&& error() && { CHECK(!has_value(), "error() of a Result that holds a value"); return std::get<1>(std::move(state_)); }
  Code code() const { return has_value() ? Code::ok : std::get<1>(state_).code; }
  template <typename U>
  T value_or(U&& other) const& { return has_value() ? **this : static_cast<T>(std::forward<U>(other)); }

 private:
  std::string_view error_text() const { return has_value() ? std::string_view() : std::get<1>(state_).message; }
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  using value_type = void;
  Result() = default;
  Result(Error error) : error_(std::move(error)), failed_(true) {}  // NOLINT
  bool has_value() const { return !failed_; }
  explicit operator bool() const { return !failed_; }
  void value() const { CHECK(!failed_, error_.message); }
  const Error& error() const& { CHECK(failed_, "error() of a Result that holds a value"); return error_; }
  Error&& error() && { CHECK(failed_, "error() of a Result that holds a value"); return std::move(error_); }
  Code code() const { return failed_ ? error_.code : Code::ok; }

 private:
  Error error_;
  bool failed_ = false;
};

}  // namespace base

#define BASE_CONCAT_(a, b) a##b
#define BASE_CONCAT(a, b) BASE_CONCAT_(a, b)
// TRY(expression): returns its error from this function, or goes on.
#define TRY(...)                                                                          \
  do {                                                                                    \
    if (auto try_result = (__VA_ARGS__); !try_result) return std::move(try_result).error(); \
  } while (false)
// TRY_LET(name, expression): as TRY, and `name` is the value.
#define TRY_LET(name, ...)                                                                      \
  auto BASE_CONCAT(try_result_, __LINE__) = (__VA_ARGS__);                                      \
  if (!BASE_CONCAT(try_result_, __LINE__)) return std::move(BASE_CONCAT(try_result_, __LINE__)).error(); \
  auto name = *std::move(BASE_CONCAT(try_result_, __LINE__))

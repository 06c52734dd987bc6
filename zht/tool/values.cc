#include "zht/tool/values.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <iostream>
#include <nlohmann/json.hpp>

#include "zht/support/output.h"
#include "zht/support/paths.h"

namespace zht::tool {

void ValueSource::add_to(CLI::App& app, const std::string& name, const std::string& help) {
  app.add_option(name, argument, help + "; - reads standard input");
  app.add_option("--file", file, "read the value from this file");
}

Result<std::string> ValueSource::read() const {
  if (!file.empty() && !argument.empty()) return fail(Code::invalid, "a value and --file are given; leave one out");
  if (!file.empty()) return support::read_file(file, std::size_t{1} << 30);
  if (argument != "-") return argument;
  std::string value;
  char buffer[65536];
  for (;;) {
    const ssize_t got = ::read(STDIN_FILENO, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return base::fail_errno(errno, "standard input");
    if (got == 0) return value;
    value.append(buffer, static_cast<std::size_t>(got));
    if (value.size() > (std::size_t{1} << 30)) return fail(Code::invalid, "standard input: more than 1 GiB");
  }
}

void put_bytes(nlohmann::json& to, const std::string& field, Bytes bytes) {
  if (support::is_utf8(bytes))
    to[field] = std::string(bytes);
  else
    to[field + "_b64"] = support::to_base64(bytes);
}

void print_value(const std::string& value, bool raw) {
  std::cout << value;
  if (!raw) std::cout << "\n";
}

Error error_of(const Outcome& outcome, Bytes key) {
  const std::string what = "key \"" + base::escape(key, 60) + "\"";
  if (outcome.code == Code::not_found) return Error{outcome.code, what + " is not there"};
  if (outcome.message.empty()) return Error{outcome.code, what + ": " + std::string(base::name_of(outcome.code))};
  return Error{outcome.code,
               outcome.message.find(what) != std::string::npos ? outcome.message : what + ": " + outcome.message};
}

}  // namespace zht::tool

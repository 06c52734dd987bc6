// Values in and out of the command line.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "zht/support/program.h"
#include "zht/types.h"

namespace zht::tool {

// A value given as an argument, as "-" (standard input to its end) or as a file.
struct ValueSource {
  std::string argument;
  std::string file;
  // Adds the positional `name` and --file.
  void add_to(CLI::App& app, const std::string& name, const std::string& help);
  Result<std::string> read() const;
};

// "field": text when it is UTF-8, else "field_b64".
void put_bytes(nlohmann::json& to, const std::string& field, Bytes bytes);

// The value's bytes on stdout and, unless `raw`, a newline.
void print_value(const std::string& value, bool raw);

// The error of an outcome, saying which key it is about.
Error error_of(const Outcome& outcome, Bytes key);

}  // namespace zht::tool

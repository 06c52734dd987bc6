// How programs print and read numbers, times and tables: results on stdout, once, for people or as one JSON value.
#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "novoht/base/clock.h"
#include "novoht/base/result.h"

namespace support {

// Columns as wide as their widest cell, numbers to the right. An empty table prints its header alone.
//   Table table({"QUEUE", "MESSAGES"}); table.row({"jobs", "12"}); table.print();
class Table {
 public:
  explicit Table(std::vector<std::string> header);
  void row(std::vector<std::string> cells);  // as many as the header has
  std::string text() const;
  void print() const;  // to stdout

 private:
  std::vector<std::vector<std::string>> rows_;
};

std::string human_size(std::uint64_t bytes);        // "512 B", "1.5 KiB", "64 MiB"
std::string human_count(std::uint64_t count);       // "1,234,567"
std::string human_duration(base::Duration elapsed);  // "17 us", "1.25 s", "3 min 20 s", "2 d 4 h"
std::string iso_time(base::WallTime time);          // "2026-01-02T03:04:05.678Z"

// Exactly one JSON value and a newline on stdout. Strings that are not UTF-8 have the bad bytes replaced: put such bytes
// in a *_b64 field.
void print_json(const nlohmann::json& value);

std::string to_base64(std::string_view bytes);
base::Result<std::string> from_base64(std::string_view text);
bool is_utf8(std::string_view bytes);

// "64MiB", "1.5GiB", "10kB", "100B", "4k" (k, m, g, t alone are powers of 1024), "0". invalid names what was given.
base::Result<std::uint64_t> parse_size(std::string_view text);
// "10ms", "1.5s", "2m" or "2min", "1h", "7d", "100us", "0".
base::Result<base::Duration> parse_duration(std::string_view text);
// Decimal digits only; invalid names the bounds.
base::Result<std::uint64_t> parse_number(std::string_view text, std::uint64_t least, std::uint64_t most);

bool stdout_is_tty();
bool stderr_is_tty();
bool use_colour();  // stdout is a tty and NO_COLOR is not set

}  // namespace support

#include "zht/support/output.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <iostream>
#include <nlohmann/json.hpp>

namespace support {
namespace {

using base::Code;
using base::fail;
using base::Result;

bool is_number(const std::string& cell) {
  return !cell.empty() && (std::isdigit(static_cast<unsigned char>(cell[0])) || (cell[0] == '-' && cell.size() > 1)) &&
         cell.find_first_not_of("0123456789.,%+-eE") == std::string::npos;
}

struct Unit {
  std::string_view name;
  double factor;
};

// "<decimal number><unit>", the number not negative.
Result<double> parse_with_unit(std::string_view what, std::string_view text, const std::vector<Unit>& units,
                               std::string_view example) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  if (error == std::errc() && std::isfinite(number) && number >= 0 && !std::signbit(number)) {
    if (unit.empty() && number == 0) return 0.0;
    for (const Unit& known : units)
      if (unit == known.name) {
        if (number * known.factor < 9.2e18) return number * known.factor;
        return fail(Code::invalid, what, " '", text, "' is too large");
      }
    if (unit.empty()) return fail(Code::invalid, what, " '", text, "' has no unit; write it as ", example);
  }
  return fail(Code::invalid, what, " '", text, "' cannot be read; write it as ", example);
}

std::string trimmed(double number) {
  char text[64];
  std::snprintf(text, sizeof text, number < 10 ? "%.2f" : number < 100 ? "%.1f" : "%.0f", number);
  std::string out = text;
  if (out.find('.') != std::string::npos) {
    while (out.back() == '0') out.pop_back();
    if (out.back() == '.') out.pop_back();
  }
  return out;
}

constexpr char kBase64[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

}  // namespace

Table::Table(std::vector<std::string> header) { rows_.push_back(std::move(header)); }

void Table::row(std::vector<std::string> cells) {
  CHECK(cells.size() == rows_[0].size(), "a row has as many cells as the header");
  rows_.push_back(std::move(cells));
}

std::string Table::text() const {
  std::vector<std::size_t> widths(rows_[0].size(), 0);
  std::vector<bool> right(rows_[0].size(), rows_.size() > 1);
  for (std::size_t r = 0; r < rows_.size(); r++)
    for (std::size_t c = 0; c < widths.size(); c++) {
      widths[c] = std::max(widths[c], rows_[r][c].size());
      if (r > 0 && !is_number(rows_[r][c]) && rows_[r][c] != "-" && !rows_[r][c].empty()) right[c] = false;
    }
  std::string out;
  for (const auto& row : rows_) {
    std::string line;
    for (std::size_t c = 0; c < row.size(); c++) {
      const std::string gap(widths[c] - row[c].size(), ' ');
      if (c > 0) line += "  ";
      line += right[c] ? gap + row[c] : row[c] + gap;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

void Table::print() const { std::cout << text(); }

std::string human_size(std::uint64_t bytes) {
  static constexpr const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  auto number = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (number >= 1024 && unit + 1 < std::size(units)) number /= 1024, unit++;
  return trimmed(number) + " " + units[unit];
}

std::string human_count(std::uint64_t count) {
  std::string digits = std::to_string(count);
  for (std::size_t at = digits.size(); at > 3;) digits.insert(at -= 3, ",");
  return digits;
}

std::string human_duration(base::Duration elapsed) {
  const double seconds = std::chrono::duration<double>(elapsed).count();
  if (seconds < 0) return "-" + human_duration(-elapsed);
  if (seconds < 1e-6) return std::to_string(elapsed.count()) + " ns";
  if (seconds < 1e-3) return trimmed(seconds * 1e6) + " us";
  if (seconds < 1) return trimmed(seconds * 1e3) + " ms";
  if (seconds < 60) return trimmed(seconds) + " s";
  const auto whole = static_cast<std::uint64_t>(seconds);
  const auto two = [](std::uint64_t a, const char* big, std::uint64_t b, const char* small) {
    return std::to_string(a) + big + (b ? " " + std::to_string(b) + small : "");
  };
  if (whole < 3600) return two(whole / 60, " min", whole % 60, " s");
  if (whole < 86400) return two(whole / 3600, " h", whole % 3600 / 60, " min");
  return two(whole / 86400, " d", whole % 86400 / 3600, " h");
}

std::string iso_time(base::WallTime time) {
  const auto millis = base::to_millis(time);
  const auto seconds = static_cast<std::time_t>(millis / 1000);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  char text[64];
  std::snprintf(text, sizeof text, "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", parts.tm_year + 1900, parts.tm_mon + 1,
                parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec, static_cast<int>(millis % 1000));
  return text;
}

void print_json(const nlohmann::json& value) {
  std::cout << value.dump(stdout_is_tty() ? 2 : -1, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
}

std::string to_base64(std::string_view bytes) {
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::size_t left = std::min<std::size_t>(3, bytes.size() - i);
    std::uint32_t group = 0;
    for (std::size_t k = 0; k < 3; k++) group = group << 8 | (k < left ? static_cast<unsigned char>(bytes[i + k]) : 0u);
    for (std::size_t k = 0; k < 4; k++) out += k <= left ? kBase64[group >> (18 - 6 * k) & 63] : '=';
  }
  return out;
}

Result<std::string> from_base64(std::string_view text) {
  const auto bad = [&](std::string_view why) {
    return fail(Code::invalid, "base64 of ", text.size(), " characters: ", why);
  };
  if (text.size() % 4 != 0) return bad("the length is not a multiple of 4");
  std::string out;
  for (std::size_t i = 0; i < text.size(); i += 4) {
    std::uint32_t group = 0;
    std::size_t padding = 0;
    for (std::size_t k = 0; k < 4; k++) {
      const char c = text[i + k];
      const char* at = c == '\0' ? nullptr : std::strchr(kBase64, c);
      if (c == '=' && i + 4 == text.size() && k >= 2)
        padding++;
      else if (at == nullptr || padding > 0)
        return bad("character " + std::to_string(i + k) + " does not belong there");
      group = group << 6 | (c == '=' ? 0u : static_cast<std::uint32_t>(at - kBase64));
    }
    for (std::size_t k = 0; k + padding < 3; k++) out += static_cast<char>(group >> (16 - 8 * k));
  }
  return out;
}

bool is_utf8(std::string_view bytes) {
  for (std::size_t i = 0; i < bytes.size();) {
    const auto lead = static_cast<unsigned char>(bytes[i]);
    const std::size_t more = lead < 0x80                   ? 0
                             : lead >= 0xc2 && lead < 0xe0 ? 1
                             : lead >= 0xe0 && lead < 0xf0 ? 2
                             : lead >= 0xf0 && lead < 0xf5 ? 3
                                                           : 4;
    if (more == 4 || i + more >= bytes.size()) return false;
    for (std::size_t k = 1; k <= more; k++)
      if ((static_cast<unsigned char>(bytes[i + k]) & 0xc0) != 0x80) return false;
    const auto second = more > 0 ? static_cast<unsigned char>(bytes[i + 1]) : 0;
    // Overlong forms, surrogates and what lies past U+10FFFF.
    if ((lead == 0xe0 && second < 0xa0) || (lead == 0xed && second > 0x9f) || (lead == 0xf0 && second < 0x90) ||
        (lead == 0xf4 && second > 0x8f))
      return false;
    i += more + 1;
  }
  return true;
}

Result<std::uint64_t> parse_size(std::string_view text) {
  static const std::vector<Unit> units{
      {"B", 1},      {"k", 1024.0},   {"K", 1024.0}, {"KiB", 1024.0}, {"kB", 1e3},   {"m", 0x1p20},
      {"M", 0x1p20}, {"MiB", 0x1p20}, {"MB", 1e6},   {"g", 0x1p30},   {"G", 0x1p30}, {"GiB", 0x1p30},
      {"GB", 1e9},   {"t", 0x1p40},   {"T", 0x1p40}, {"TiB", 0x1p40}, {"TB", 1e12}};
  TRY_LET(bytes, parse_with_unit("size", text, units, "64MiB, 10kB or 512B"));
  return static_cast<std::uint64_t>(std::llround(bytes));
}

Result<base::Duration> parse_duration(std::string_view text) {
  static const std::vector<Unit> units{{"ns", 1},   {"us", 1e3},   {"ms", 1e6},   {"s", 1e9},
                                       {"m", 60e9}, {"min", 60e9}, {"h", 3600e9}, {"d", 86400e9}};
  TRY_LET(nanos, parse_with_unit("duration", text, units, "10ms, 2s, 5min or 1h"));
  return base::Duration(std::llround(nanos));
}

Result<std::uint64_t> parse_number(std::string_view text, std::uint64_t least, std::uint64_t most) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < least || number > most)
    return fail(Code::invalid, "'", text, "' is not a whole number from ", least, " to ", most);
  return number;
}

bool stdout_is_tty() { return isatty(STDOUT_FILENO) == 1; }
bool stderr_is_tty() { return isatty(STDERR_FILENO) == 1; }
bool use_colour() {
  const char* off = std::getenv("NO_COLOR");
  return stdout_is_tty() && (off == nullptr || *off == '\0');
}

}  // namespace support

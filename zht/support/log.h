// Logging, one line an event, to stderr or a file:
//   2026-01-02T03:04:05.678Z info zht.migration partition=17 from=3 moved
//
//   support::set_log({.level = support::Level::info});
//   support::Log log("zht.migration");
//   log.info("moved", {{"partition", 17}, {"from", 3}});
//
// error: someone must act; warn: we coped; info: the state changed; debug: per request, off by default. Keys of the store
// are escaped and shortened (log_key), values never logged. Any thread. The destination belongs to the process, as
// stderr does; main() sets it once.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "novoht/base/bytes.h"
#include "novoht/base/result.h"

namespace support {

enum class Level : std::uint8_t { debug, info, warn, error, off };

struct LogOptions {
  Level level = Level::warn;
  std::string file;  // empty: stderr; else appended to
};
// $ZHT_LOG (debug, info, warn, error, off), when it is set and `from_flags` says nothing louder, decides the level.
base::Result<void> set_log(LogOptions options);
Level level_from(int verbosity, Level quiet_default);  // -v: info, -vv: debug, else $ZHT_LOG, else the default

struct Field {
  std::string_view key;
  std::string value;
  Field(std::string_view k, std::string v) : key(k), value(std::move(v)) {}
  Field(std::string_view k, std::string_view v) : key(k), value(v) {}
  Field(std::string_view k, const char* v) : key(k), value(v) {}
  Field(std::string_view k, bool v) : key(k), value(v ? "yes" : "no") {}
  template <typename Number>
    requires(std::integral<Number> && !std::same_as<Number, bool>)
  Field(std::string_view k, Number v) : key(k), value(std::to_string(v)) {}
  Field(std::string_view k, double v);
  Field(std::string_view k, const base::Error& e) : key(k), value(e.message) {}
};

class Log {
 public:
  explicit Log(std::string name) : name_(std::move(name)) {}
  using Fields = std::initializer_list<Field>;
  void debug(std::string_view text, Fields fields = {}) const { write(Level::debug, text, fields); }
  void info(std::string_view text, Fields fields = {}) const { write(Level::info, text, fields); }
  void warn(std::string_view text, Fields fields = {}) const { write(Level::warn, text, fields); }
  void error(std::string_view text, Fields fields = {}) const { write(Level::error, text, fields); }
  bool enabled(Level level) const;
  void write(Level level, std::string_view text, Fields fields) const;

 private:
  std::string name_;
};

std::string log_key(base::Bytes key);  // escaped, at most 40 bytes of it

}  // namespace support

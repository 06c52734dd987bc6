#include "zht/support/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <cstdlib>
#include <mutex>

namespace support {
namespace {

std::shared_ptr<spdlog::logger> make_logger(spdlog::sink_ptr sink) {
  auto logger = std::make_shared<spdlog::logger>("", std::move(sink));
  logger->set_level(spdlog::level::trace);
  logger->flush_on(spdlog::level::trace);
  // The level is written by us: spdlog calls it "warning".
  logger->set_formatter(
      std::make_unique<spdlog::pattern_formatter>("%Y-%m-%dT%H:%M:%S.%eZ %v", spdlog::pattern_time_type::utc));
  return logger;
}

// Where the process's log lines go. Replaced by set_log(); a thread that is writing keeps the old one alive.
struct Output {
  std::mutex mutex;
  std::shared_ptr<spdlog::logger> logger = make_logger(std::make_shared<spdlog::sinks::stderr_sink_mt>());
  std::atomic<Level> level{Level::warn};
};
Output& output() {
  static Output* one = new Output;  // never destroyed: threads may log while the program ends
  return *one;
}

constexpr std::string_view kNames[] = {"debug", "info", "warn", "error", "off"};

bool parse_level(std::string_view text, Level& level) {
  for (std::size_t i = 0; i < std::size(kNames); i++)
    if (text == kNames[i]) {
      level = static_cast<Level>(i);
      return true;
    }
  return false;
}

bool needs_quotes(std::string_view value) {
  if (value.empty()) return true;
  for (const char c : value)
    if (c <= ' ' || c == '"' || c == '=' || c == '\\' || static_cast<unsigned char>(c) >= 0x7f) return true;
  return false;
}

}  // namespace

Field::Field(std::string_view k, double v) : key(k) {
  char text[40];
  std::snprintf(text, sizeof text, "%.6g", v);
  value = text;
}

base::Result<void> set_log(LogOptions options) {
  spdlog::sink_ptr sink;
  try {
    if (options.file.empty())
      sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
    else
      sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(options.file);
  } catch (const spdlog::spdlog_ex& error) {
    return base::fail(base::Code::io, "log file ", options.file, ": ", error.what());
  }
  const std::lock_guard lock(output().mutex);
  output().logger = make_logger(std::move(sink));
  output().level = options.level;
  return {};
}

Level level_from(int verbosity, Level quiet_default) {
  if (verbosity > 1) return Level::debug;
  if (verbosity == 1) return Level::info;
  Level level = quiet_default;
  if (const char* set = std::getenv("ZHT_LOG"); set != nullptr) parse_level(set, level);
  return level;
}

bool Log::enabled(Level level) const { return level >= output().level.load(std::memory_order_relaxed); }

void Log::write(Level level, std::string_view text, Fields fields) const {
  if (!enabled(level)) return;
  std::string line(kNames[static_cast<std::size_t>(level)]);
  line += ' ';
  line += name_;
  for (const Field& field : fields) {
    line += ' ';
    line += field.key;
    line += '=';
    if (needs_quotes(field.value)) {
      line += '"';
      line += base::escape(field.value, 1000);
      line += '"';
    } else {
      line += field.value;
    }
  }
  line += ' ';
  line += text;
  std::shared_ptr<spdlog::logger> logger;
  {
    const std::lock_guard lock(output().mutex);
    logger = output().logger;
  }
  logger->log(spdlog::level::info, spdlog::string_view_t(line.data(), line.size()));
}

std::string log_key(base::Bytes key) { return base::escape(key, 40); }

}  // namespace support

// What people and programs write: lines of zht pipe, configuration files, HTTP requests, durations and sizes,
// addresses. Input: a byte that chooses, then the text.
#include <sys/mman.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"
#include "zht/client/address.h"
#include "zht/resp/table.h"
#include "zht/server/http_endpoint.h"
#include "zht/server/node.h"
#include "zht/support/config.h"
#include "zht/support/output.h"
#include "zht/tool/pipe_line.h"

namespace {

void read_configuration(const std::string& text) {
  static const int file = ::memfd_create("config", 0);
  static const std::string path = "/proc/self/fd/" + std::to_string(file);
  CHECK(::ftruncate(file, 0) == 0 && ::pwrite(file, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()),
        "memfd");
  zht::server::Settings settings;
  support::Config config;
  zht::server::add_settings(config, settings);
  const auto loaded = config.load_file(path);
  CHECK(loaded || !loaded.error().message.empty(), "refused without a reason");
  if (!loaded) return;
  // What was taken can be printed and taken again.
  const std::string printed = config.text();
  CHECK(::ftruncate(file, 0) == 0 &&
            ::pwrite(file, printed.data(), printed.size(), 0) == static_cast<ssize_t>(printed.size()),
        "memfd");
  zht::server::Settings again_settings;
  support::Config again;
  zht::server::add_settings(again, again_settings);
  const auto reloaded = again.load_file(path);
  CHECK(reloaded, "what --print-config prints is refused: " + reloaded.error().message);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string text(fuzz::bytes_of(data + 1, size - 1));
  switch (data[0] % 5) {
    case 0: {
      const auto line = zht::tool::parse_line(text);
      if (!line) {
        CHECK(!zht::tool::refusal(line.error()).empty(), "");
      } else {
        zht::Outcome outcome;
        outcome.present = true;
        outcome.value = text;
        const std::string answer = zht::tool::answer_of(line->operation, outcome);
        CHECK(answer.find('\n') == std::string::npos && answer.front() == '{', "not one line: " + answer);
      }
      break;
    }
    case 1:
      read_configuration(text);
      break;
    case 2: {
      zht::server::HttpRequest request;
      if (zht::server::parse_http(text, request) == zht::server::HttpParse::request)
        CHECK(request.size <= text.size() && request.size > 0 && request.path.starts_with('/'),
              "a request beyond its bytes");
      break;
    }
    case 3:
      (void)support::parse_size(text).has_value();
      (void)support::parse_duration(text).has_value();
      (void)support::parse_number(text, 0, 100).has_value();
      (void)support::is_utf8(text);
      if (const auto decoded = support::from_base64(text); decoded)
        CHECK(support::from_base64(support::to_base64(*decoded)).value() == *decoded, "");
      (void)zht::client::parse_cluster(text).has_value();
      break;
    default: {
      const std::size_t middle = text.find('\n');
      const std::string pattern = text.substr(0, middle),
                        rest = middle == std::string::npos ? "" : text.substr(middle + 1);
      if (zht::resp::glob_matches(pattern, rest))
        CHECK(rest.starts_with(zht::resp::glob_prefix(pattern)), "another prefix");
    }
  }
  return 0;
}

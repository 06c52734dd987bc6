// Configuration: defaults, then a TOML file, then the environment, then flags; each value knows where it came from.
//
//   struct Settings { std::string listen = "127.0.0.1:5470"; std::uint64_t memory = 1 << 30; base::Duration sync{1s}; };
//   support::Config config;
//   config.add("listen", settings.listen, "host:port to listen on", "ZHT_LISTEN");
//   config.add_size("memory_limit", settings.memory, "of cold values", "");
//   TRY(config.load_file("/etc/zht.toml"));   // unknown key: "/etc/zht.toml:3: no setting 'lisen'; did you mean 'listen'?"
//   TRY(config.load_environment());
//   TRY(config.set("listen", flag, "--listen"));
//   std::cout << config.text();               // --print-config: a TOML file with the origin of each value as comment
//
// Settings must outlive the Config. Nested TOML tables are dotted keys: [log] level = "info" is log.level.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "novoht/base/clock.h"
#include "novoht/base/result.h"

namespace support {

class Config {
 public:
  void add(std::string key, std::string& to, std::string help, std::string environment = {});
  void add(std::string key, bool& to, std::string help, std::string environment = {});
  void add(std::string key, std::uint64_t& to, std::uint64_t least, std::uint64_t most, std::string help,
           std::string environment = {});
  void add_size(std::string key, std::uint64_t& to, std::string help, std::string environment = {});       // "64MiB"
  void add_duration(std::string key, base::Duration& to, std::string help, std::string environment = {});  // "10ms"
  // One of `choices`.
  void add_choice(std::string key, std::string& to, std::vector<std::string> choices, std::string help,
                  std::string environment = {});

  base::Result<void> load_file(const std::string& path);
  base::Result<void> load_environment();
  base::Result<void> set(const std::string& key, const std::string& value, const std::string& origin);
  std::string text() const;  // with origins; can be loaded again
  // The same of what was set, by whatever, but for the settings `without`; no comments.
  std::string set_text(const std::vector<std::string>& without) const;
  std::string origin_of(const std::string& key) const;

 private:
  struct Item {
    std::string key, help, environment, origin;
    bool quoted = true;  // in text()
    std::function<base::Result<void>(const std::string&)> parse;
    std::function<std::string()> print;
  };
  Item* find(const std::string& key);
  void add_item(Item item);
  base::Result<void> load_table(const void* table, const std::string& prefix, const std::string& path);
  std::vector<Item> items_;
};

// The candidate most like `typed`, or empty when none is near: for "did you mean".
std::string nearest_of(const std::string& typed, const std::vector<std::string>& candidates);

}  // namespace support

// The configuration file that a node prints is its manual: it can be loaded, names every setting, and says the defaults.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "zht/server/node.h"
#include "zht/support/config.h"

namespace zht::server {
namespace {

struct SettingsTest : testing::Test {
  SettingsTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "zht-settings-XXXXXX").string();
    folder = ::mkdtemp(pattern.data());
    add_settings(config, settings);
  }
  ~SettingsTest() override { std::filesystem::remove_all(folder); }
  std::string file(std::string_view text) const {
    const std::string path = folder + "/zht.toml";
    std::ofstream(path) << text;
    return path;
  }
  // "key = value" of every setting, as --print-config shows them.
  static std::vector<std::string> values(const support::Config& of) {
    std::vector<std::string> lines;
    std::istringstream text(of.text());
    for (std::string line; std::getline(text, line);)
      if (!line.starts_with("#")) lines.push_back(line.substr(0, line.find("  # from")));
    return lines;
  }
  std::string folder;
  Settings settings;
  support::Config config;
};

TEST_F(SettingsTest, TheExampleNamesEverySettingAtItsDefault) {
  Settings plain;
  support::Config defaults;
  add_settings(defaults, plain);
  const std::string path = file(example_config());
  const auto loaded = config.load_file(path);
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_EQ(values(config), values(defaults));
  for (const std::string& line : values(config)) {
    const std::string key = line.substr(0, line.find(" = "));
    EXPECT_TRUE(config.origin_of(key).starts_with(path)) << key << " is not in the example";
  }
  EXPECT_TRUE(check_settings(settings));
}

TEST_F(SettingsTest, WhatIsPrintedCanBeLoaded) {
  ASSERT_TRUE(config.load_file(file("listen = \"127.0.0.1:7\"\nsync_interval = \"20ms\"\nbusy_poll = \"0s\"\nudp = false\n")));
  const std::string printed = config.text();
  EXPECT_NE(printed.find("zht.toml:2"), std::string::npos) << printed;
  Settings again;
  support::Config other;
  add_settings(other, again);
  ASSERT_TRUE(other.load_file(file(printed)));
  EXPECT_EQ(values(other), values(config));
  EXPECT_EQ(again.sync_interval, std::chrono::milliseconds(20));
}

TEST_F(SettingsTest, MistakesNameTheirLine) {
  const auto error = [&](std::string_view text) {
    const auto loaded = config.load_file(file(text));
    return loaded ? std::string() : loaded.error().message;
  };
  EXPECT_NE(error("\n\nlissen = \"x\"\n").find("zht.toml:3: no setting 'lissen'; did you mean 'listen'?"), std::string::npos);
  EXPECT_NE(error("durability = \"sometimes\"\n").find("zht.toml:1"), std::string::npos);
  EXPECT_NE(error("listen = \"a\nb").find("zht.toml:1"), std::string::npos);
  EXPECT_NE(error("sync_interval = 5\n").find("sync_interval"), std::string::npos) << "a time needs a unit";
}

TEST_F(SettingsTest, WhatCanNeverWorkIsRefused) {
  const auto refused = [](auto change) {
    Settings with;
    change(with);
    return check_settings(with).code() == Code::invalid;
  };
  EXPECT_TRUE(refused([](Settings& s) { s.max_value_size = 0; }));
  EXPECT_TRUE(refused([](Settings& s) { s.max_value_size = 1 << 30; }));
  EXPECT_TRUE(refused([](Settings& s) { s.segment_size = 1; }));
  EXPECT_TRUE(refused([](Settings& s) { s.sync_interval = std::chrono::nanoseconds(1); }));
  EXPECT_TRUE(refused([](Settings& s) { s.busy_poll = std::chrono::seconds(1); }));
}

}  // namespace
}  // namespace zht::server

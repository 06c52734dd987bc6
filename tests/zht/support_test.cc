// Pure parts of zht/support, and its files, locks and processes in a temporary folder.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "zht/support/config.h"
#include "zht/support/output.h"
#include "zht/support/paths.h"
#include "zht/support/process.h"
#include "zht/support/service.h"

namespace support {
namespace {

using namespace std::chrono_literals;
using base::Code;

class SupportTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "zht-support-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string file(const std::string& name, const std::string& content) {
    std::ofstream(folder_ + "/" + name) << content;
    return folder_ + "/" + name;
  }
  std::string folder_;
};

TEST(Units, SizesAreReadWithTheirUnit) {
  EXPECT_EQ(*parse_size("64MiB"), 64u << 20);
  EXPECT_EQ(*parse_size("1.5k"), 1536u);
  EXPECT_EQ(*parse_size("10kB"), 10'000u);
  EXPECT_EQ(*parse_size("0"), 0u);
  for (const char* bad : {"", "12", "-1B", "MiB", "1XB", "1e3B", "99999999999TiB", "nanB", "infB", " 1B", "-0B"})
    EXPECT_EQ(parse_size(bad).code(), Code::invalid) << bad;
}

TEST(Units, DurationsAreReadWithTheirUnit) {
  EXPECT_EQ(*parse_duration("10ms"), 10ms);
  EXPECT_EQ(*parse_duration("1.5s"), 1500ms);
  EXPECT_EQ(*parse_duration("2min"), 120s);
  EXPECT_EQ(*parse_duration("0"), 0s);
  for (const char* bad : {"", "10", "-1s", "1 s", "s", "1000000000d"})
    EXPECT_EQ(parse_duration(bad).code(), Code::invalid) << bad;
  EXPECT_EQ(parse_duration("10").error().message, "duration '10' has no unit; write it as 10ms, 2s, 5min or 1h");
}

TEST(Units, ArePrintedForPeople) {
  EXPECT_EQ(human_size(512), "512 B");
  EXPECT_EQ(human_size(1536), "1.5 KiB");
  EXPECT_EQ(human_count(1234567), "1,234,567");
  EXPECT_EQ(human_count(123), "123");
  EXPECT_EQ(human_duration(17us), "17 us");
  EXPECT_EQ(human_duration(200s), "3 min 20 s");
  EXPECT_EQ(iso_time(base::from_millis(1767323045678)), "2026-01-02T03:04:05.678Z");
}

TEST(Base64, GoesBothWaysAndRefusesTheRest) {
  for (const std::string& bytes :
       {std::string(), std::string("f"), std::string("fo"), std::string("foo"), std::string("\0\xff\x80z", 4)})
    EXPECT_EQ(*from_base64(to_base64(bytes)), bytes);
  EXPECT_EQ(to_base64("foob"), "Zm9vYg==");
  for (const char* bad : {"Zg", "Zg=", "Z===", "Zm=v", "Zm9*", "Zg==Zg=="})
    EXPECT_EQ(from_base64(bad).code(), Code::invalid) << bad;
}

TEST(Utf8, IsTold) {
  EXPECT_TRUE(is_utf8("plain, \xc3\xa9, \xe2\x82\xac, \xf0\x9f\x98\x80"));
  for (const char* bad : {"\x80", "\xc3", "\xc0\xaf", "\xed\xa0\x80", "\xf5\x80\x80\x80", "a\xff"})
    EXPECT_FALSE(is_utf8(bad));
}

TEST(TableText, IsAlignedWithNumbersToTheRight) {
  Table table({"QUEUE", "MESSAGES"});
  table.row({"jobs", "12"});
  table.row({"a-long-name", "3"});
  EXPECT_EQ(table.text(), "QUEUE        MESSAGES\njobs               12\na-long-name         3\n");
}

struct Settings {
  std::string listen = "127.0.0.1:5470";
  std::uint64_t memory = 1 << 20;
  base::Duration sync = 1s;
  std::string durability = "interval";
};
Config config_of(Settings& settings) {
  Config config;
  config.add("listen", settings.listen, "where to listen");
  config.add_size("store.memory_limit", settings.memory, "of values", "SUPPORT_TEST_MEMORY");
  config.add_duration("sync_interval", settings.sync, "between syncs");
  config.add_choice("durability", settings.durability, {"none", "interval", "always"}, "promise");
  return config;
}

TEST_F(SupportTest, ConfigTakesFlagOverEnvironmentOverFileOverDefault) {
  Settings settings;
  Config config = config_of(settings);
  ASSERT_TRUE(config.load_file(
      file("c.toml", "sync_interval = \"20ms\"\ndurability = \"always\"\n[store]\nmemory_limit = \"2MiB\"\n")));
  setenv("SUPPORT_TEST_MEMORY", "4MiB", 1);
  ASSERT_TRUE(config.load_environment());
  unsetenv("SUPPORT_TEST_MEMORY");
  ASSERT_TRUE(config.set("durability", "none", "--durability"));
  EXPECT_EQ(settings.listen, "127.0.0.1:5470");
  EXPECT_EQ(settings.memory, 4u << 20);
  EXPECT_EQ(settings.sync, 20ms);
  EXPECT_EQ(settings.durability, "none");
  EXPECT_EQ(config.origin_of("sync_interval"), folder_ + "/c.toml:1");
  EXPECT_EQ(config.origin_of("durability"), "--durability");
  Settings again;
  Config second = config_of(again);
  ASSERT_TRUE(second.load_file(file("again.toml", config.text())));
  EXPECT_EQ(again.memory, settings.memory);
}

TEST_F(SupportTest, ConfigErrorsNameTheLine) {
  Settings settings;
  Config config = config_of(settings);
  EXPECT_EQ(config.load_file(file("a", "\nlisen = 3\n")).error().message,
            folder_ + "/a:2: no setting 'lisen'; did you mean 'listen'?");
  EXPECT_EQ(config.load_file(file("b", "durability = \"maybe\"")).error().message,
            folder_ + "/b:1: durability: 'maybe' is not one of: none, interval, always");
  EXPECT_EQ(config.load_file(file("c", "= =")).code(), Code::invalid);
  EXPECT_EQ(config.load_file(folder_ + "/none").code(), Code::invalid);
}

TEST_F(SupportTest, LongSocketPathsGoThroughAShortLink) {
  EXPECT_EQ(*socket_path("/tmp/d", "node.sock"), "/tmp/d/node.sock");
  const std::string deep = folder_ + "/" + std::string(120, 'x');
  std::filesystem::create_directories(deep);
  const auto path = socket_path(deep, "node.sock");
  ASSERT_TRUE(path) << path.error().message;
  EXPECT_LE(path->size(), 107u);
  std::ofstream(*path) << "here";
  EXPECT_TRUE(std::filesystem::exists(deep + "/node.sock"));
  EXPECT_EQ(*socket_path(deep, "node.sock"), *path);
  std::filesystem::remove(std::filesystem::path(*path).parent_path());
}

TEST_F(SupportTest, PrivateFoldersAreMadeAndChecked) {
  ASSERT_TRUE(make_private_folder(folder_ + "/a/b"));
  struct stat info {};
  stat((folder_ + "/a/b").c_str(), &info);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  EXPECT_TRUE(make_private_folder(folder_ + "/a/b"));
  EXPECT_EQ(make_private_folder(file("plain", "")).code(), Code::invalid);
}

TEST_F(SupportTest, ALockFileTellsItsHolderAndRefusesASecond) {
  const std::string path = folder_ + "/lock";
  EXPECT_FALSE(held_by(path));
  {
    auto lock = LockFile::acquire(path);
    ASSERT_TRUE(lock);
    EXPECT_EQ(held_by(path), getpid());
    const auto second = LockFile::acquire(path);
    EXPECT_EQ(second.code(), Code::conflict);
    EXPECT_NE(second.error().message.find(std::to_string(getpid())), std::string::npos);
  }
  EXPECT_FALSE(held_by(path));
  EXPECT_TRUE(LockFile::acquire(path));
}

TEST_F(SupportTest, ABackgroundProcessRunsAloneAndIsStopped) {
  const auto pid = spawn_background({"sh", "-c", "echo started; exec sleep 600"}, folder_ + "/log");
  ASSERT_TRUE(pid) << pid.error().message;
  EXPECT_TRUE(wait_until(20s, [&] { return *read_file(folder_ + "/log") == "started\n"; }));
  EXPECT_EQ(getsid(*pid), *pid);
  EXPECT_TRUE(stop_process(*pid, 10s));
  EXPECT_FALSE(process_exists(*pid));
  EXPECT_EQ(spawn_background({"/no/such/program"}, folder_ + "/log").code(), Code::not_found);
  EXPECT_EQ(spawn_background({"no-such-program-at-all"}, folder_ + "/log").code(), Code::not_found);
}

TEST_F(SupportTest, ServicesAreListedAndTheirHolderIsKnown) {
  ASSERT_TRUE(register_service(folder_, {"agent", {"/bin/sleep", "1"}}));
  ASSERT_TRUE(register_service(folder_, {"mount-1", {"/bin/true"}}));
  EXPECT_EQ(register_service(folder_, {"../x", {"/bin/true"}}).code(), Code::invalid);
  file("services/bad.json", "{}");
  std::vector<std::string> broken;
  const auto services = list_services(folder_, &broken);
  ASSERT_TRUE(services);
  ASSERT_EQ(services->size(), 2u);
  EXPECT_EQ((*services)[0].argv, (std::vector<std::string>{"/bin/sleep", "1"}));
  EXPECT_EQ(broken, std::vector<std::string>{"bad"});
  EXPECT_FALSE(service_pid(folder_, "agent"));
  const auto lock = hold_service(folder_, "agent");
  ASSERT_TRUE(lock);
  EXPECT_EQ(service_pid(folder_, "agent"), getpid());
  EXPECT_EQ(running_services(folder_), std::vector<std::string>{"agent"});
  ASSERT_TRUE(unregister_service(folder_, "mount-1"));
  EXPECT_EQ(list_services(folder_)->size(), 1u);
}

TEST(Signals, ArriveThroughTheWaiter) {
  SignalWaiter signals({SIGUSR1});
  EXPECT_FALSE(signals.wait(0ms));
  raise(SIGUSR1);
  EXPECT_EQ(signals.wait(10s), SIGUSR1);
}

}  // namespace
}  // namespace support

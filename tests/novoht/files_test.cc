// What a FileSystem promises, asked of the operating system's and of the one in memory; and how the latter fails.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "novoht/base/memory_files.h"

namespace base {
namespace {

class FilesTest : public ::testing::TestWithParam<bool> {
 protected:
  FilesTest() {
    if (GetParam()) {
      std::string pattern = (std::filesystem::temp_directory_path() / "novoht-files-XXXXXX").string();
      folder_ = ::mkdtemp(pattern.data());
      files_ = real_files();
    } else {
      files_ = std::make_unique<MemoryFiles>();
      folder_ = "/memory";
      files_->make_folder(folder_).value();
    }
  }
  ~FilesTest() override {
    if (GetParam()) std::filesystem::remove_all(folder_);
  }
  std::string read(const std::string& path) {
    auto file = files_->open(path, OpenMode::read);
    if (!file) return std::string(name_of(file.code()));
    std::string bytes(*(*file)->size() + 10, '?');
    bytes.resize(*(*file)->read_at(0, bytes.data(), bytes.size()));
    return bytes;
  }
  std::string folder_;
  std::unique_ptr<FileSystem> files_;
};

TEST_P(FilesTest, WhatIsWrittenIsRead) {
  const std::string path = folder_ + "/a";
  EXPECT_EQ(files_->open(path, OpenMode::read).code(), Code::not_found);
  auto file = *files_->open(path, OpenMode::create_new);
  EXPECT_EQ(files_->open(path, OpenMode::create_new).code(), Code::conflict);
  ASSERT_TRUE(file->write_at(3, "abc"));
  EXPECT_EQ(read(path), std::string("\0\0\0abc", 6));
  ASSERT_TRUE(file->truncate(4));
  ASSERT_TRUE(file->reserve(7));
  ASSERT_TRUE(file->reserve(2));  // never shrinks
  EXPECT_EQ(read(path), std::string("\0\0\0a\0\0\0", 7));
  ASSERT_TRUE(file->sync());
  char byte = 0;
  EXPECT_EQ(*file->read_at(100, &byte, 1), 0u);
}

TEST_P(FilesTest, AViewShowsWhatIsWrittenAndFailsWhereTheFileEnds) {
  const std::string path = folder_ + "/file";
  auto file = *files_->open(path, OpenMode::create);
  const auto view = file->view(64 << 10);
  if (!view) {
    EXPECT_FALSE(GetParam());
    return;
  }
  ASSERT_TRUE(file->write_at(0, std::string(20'000, 'a')));
  std::string bytes(10'000, '?');
  ASSERT_TRUE(view->read(10'000, bytes.data(), bytes.size()));
  EXPECT_EQ(bytes, std::string(10'000, 'a'));
  ASSERT_TRUE(file->write_at(10'000, "b"));
  ASSERT_TRUE(view->read(10'000, bytes.data(), 1));
  EXPECT_EQ(bytes[0], 'b');
  // Memory without a file behind it; and again, for the first failure must not have changed anything.
  for (int i = 0; i < 2; i++) EXPECT_FALSE(view->read(30'000, bytes.data(), bytes.size()));
  EXPECT_FALSE(view->read(60'000, bytes.data(), bytes.size()));
  ASSERT_TRUE(file->truncate(0));
  EXPECT_FALSE(view->read(0, bytes.data(), 1));
  file.reset();
  EXPECT_FALSE(view->read(0, bytes.data(), 1));
}

TEST_P(FilesTest, NamesAreMadeMovedListedAndRemoved) {
  ASSERT_TRUE(files_->make_folder(folder_ + "/x/y"));
  ASSERT_TRUE(files_->make_folder(folder_ + "/x/y"));
  (*files_->open(folder_ + "/x/b", OpenMode::create)).reset();
  (*files_->open(folder_ + "/x/a", OpenMode::create)).reset();
  EXPECT_EQ(*files_->list(folder_ + "/x"), (std::vector<std::string>{"a", "b", "y"}));
  ASSERT_TRUE(files_->rename(folder_ + "/x/a", folder_ + "/x/b"));
  EXPECT_FALSE(*files_->exists(folder_ + "/x/a"));
  EXPECT_TRUE(*files_->exists(folder_ + "/x/b"));
  ASSERT_TRUE(files_->sync_folder(folder_ + "/x"));
  ASSERT_TRUE(files_->remove(folder_ + "/x/b"));
  EXPECT_EQ(files_->remove(folder_ + "/x/b").code(), Code::not_found);
  EXPECT_EQ(files_->list(folder_ + "/none").code(), Code::not_found);
  const auto missing = files_->open(folder_ + "/none/a", OpenMode::create);
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().message.find("/none/a"), std::string::npos);
}

TEST_P(FilesTest, ALockIsHeldOnce) {
  auto first = files_->lock(folder_ + "/LOCK");
  ASSERT_TRUE(first);
  const auto second = files_->lock(folder_ + "/LOCK");
  ASSERT_FALSE(second);
  EXPECT_EQ(second.code(), Code::conflict);
  EXPECT_NE(second.error().message.find("held by process"), std::string::npos) << second.error().message;
  first->reset();
  EXPECT_TRUE(files_->lock(folder_ + "/LOCK"));
}

INSTANTIATE_TEST_SUITE_P(Both, FilesTest, ::testing::Bool(), [](const auto& tested) { return tested.param ? "Real" : "Memory"; });

TEST(MemoryFilesTest, ACrashKeepsWhatWasSyncedAndAnyPartOfTheRest) {
  bool kept_all = false, kept_none = false, kept_some = false;
  for (std::uint64_t seed = 0; seed < 50; seed++) {
    MemoryFiles disk;
    Random random(seed);
    ASSERT_TRUE(disk.make_folder("/d"));
    auto file = *disk.open("/d/f", OpenMode::create);
    ASSERT_TRUE(file->write_at(0, std::string(1024, 's')));
    ASSERT_TRUE(file->sync());
    ASSERT_TRUE(disk.sync_folder("/d"));
    ASSERT_TRUE(file->write_at(512, std::string(1024, 'u')));
    disk.crash(random);
    EXPECT_EQ(file->write_at(0, "x").code(), Code::io);  // a handle of before
    const std::string after = disk.contents("/d/f");
    EXPECT_EQ(after.substr(0, 512), std::string(512, 's'));
    const bool first = after.substr(512, 512) == std::string(512, 'u'), second = after.size() > 1024;
    EXPECT_TRUE(first || after.substr(512, 512) == std::string(512, 's'));
    kept_all |= first && second;
    kept_none |= !first && !second;
    kept_some |= first != second;
  }
  EXPECT_TRUE(kept_all && kept_none && kept_some);
}

TEST(MemoryFilesTest, AFullDiskTakesWhatFits) {
  MemoryFiles disk;
  ASSERT_TRUE(disk.make_folder("/d"));
  disk.set_capacity(100);
  auto file = *disk.open("/d/f", OpenMode::create);
  EXPECT_EQ(file->reserve(101).code(), Code::no_space);
  EXPECT_EQ(disk.used(), 0u);
  EXPECT_EQ(file->write_at(0, std::string(150, 'x')).code(), Code::no_space);
  EXPECT_EQ(disk.used(), 100u);
  EXPECT_TRUE(file->write_at(50, "over"));
}

TEST(MemoryFilesTest, TheOperationThatStopsIsTheOneAskedFor) {
  MemoryFiles disk;
  ASSERT_TRUE(disk.make_folder("/d"));
  auto file = *disk.open("/d/f", OpenMode::create);
  const std::uint64_t before = disk.operations();
  disk.stop_at(before + 2);
  EXPECT_TRUE(file->write_at(0, "whole"));
  EXPECT_EQ(file->write_at(10, "half").code(), Code::io);
  EXPECT_EQ(file->write_at(20, "none").code(), Code::io);
  disk.kill();
  EXPECT_EQ(disk.contents("/d/f"), std::string("whole\0\0\0\0\0ha", 12));
}

}  // namespace
}  // namespace base

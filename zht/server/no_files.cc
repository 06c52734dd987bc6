#include "zht/server/no_files.h"

#include <algorithm>
#include <map>
#include <mutex>

namespace zht::server {
namespace {

using base::Bytes;
using base::Code;
using base::fail;
using base::Result;

constexpr std::uint64_t kKept = 4096;

// What a name stands for. One thread at a time, as base::File says.
struct Content {
  std::uint64_t size = 0;
  std::string start;  // the first kKept bytes at most
};
using ContentPointer = std::shared_ptr<Content>;

class NoFile final : public base::File {
 public:
  explicit NoFile(ContentPointer content) : content_(std::move(content)) {}
  Result<std::size_t> read_at(std::uint64_t offset, char* to, std::size_t size) override {
    if (offset >= content_->size) return std::size_t{0};
    size = static_cast<std::size_t>(std::min<std::uint64_t>(size, content_->size - offset));
    if (offset + size > kKept) return fail(Code::io, "a node in memory alone keeps no files to read");
    content_->start.resize(std::max(content_->start.size(), static_cast<std::size_t>(offset) + size));
    content_->start.copy(to, size, static_cast<std::size_t>(offset));
    return size;
  }
  Result<void> write_at(std::uint64_t offset, Bytes data) override {
    content_->size = std::max(content_->size, offset + data.size());
    if (offset >= kKept) return {};
    const Bytes kept = data.substr(0, static_cast<std::size_t>(kKept - offset));
    const auto at = static_cast<std::size_t>(offset);
    content_->start.resize(std::max(content_->start.size(), at + kept.size()));
    content_->start.replace(at, kept.size(), kept);
    return {};
  }
  Result<void> sync() override { return {}; }
  Result<std::uint64_t> size() override { return content_->size; }
  Result<void> truncate(std::uint64_t size) override {
    content_->size = size;
    content_->start.resize(std::min(content_->start.size(), static_cast<std::size_t>(std::min(size, kKept))));
    return {};
  }
  Result<void> reserve(std::uint64_t size) override {
    content_->size = std::max(content_->size, size);
    return {};
  }

 private:
  const ContentPointer content_;
};

class NoLock final : public base::FileLock {};

class NoFiles final : public base::FileSystem {
 public:
  Result<std::unique_ptr<base::File>> open(const std::string& path, base::OpenMode mode) override {
    const std::lock_guard lock(mutex_);
    auto& content = files_[path];
    const bool fresh = content == nullptr;
    if (fresh && (mode == base::OpenMode::read || mode == base::OpenMode::read_write)) {
      files_.erase(path);
      return fail(Code::not_found, "open ", path, ": no such file");
    }
    if (!fresh && mode == base::OpenMode::create_new) return fail(Code::conflict, "open ", path, ": it exists");
    if (fresh) content = std::make_shared<Content>();
    return std::unique_ptr<base::File>(new NoFile(content));
  }
  Result<bool> exists(const std::string& path) override {
    const std::lock_guard lock(mutex_);
    return files_.contains(path);
  }
  Result<void> rename(const std::string& from, const std::string& to) override {
    const std::lock_guard lock(mutex_);
    auto moved = files_.extract(from);
    if (moved.empty()) return fail(Code::not_found, "rename ", from, ": no such file");
    files_.insert_or_assign(to, std::move(moved.mapped()));
    return {};
  }
  Result<void> remove(const std::string& path) override {
    const std::lock_guard lock(mutex_);
    if (files_.erase(path) == 0) return fail(Code::not_found, "remove ", path, ": no such file");
    return {};
  }
  Result<std::vector<std::string>> list(const std::string& folder) override {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> names;
    for (const auto& [path, content] : files_)
      if (path.size() > folder.size() + 1 && path.starts_with(folder + "/"))
        if (std::string name = path.substr(folder.size() + 1); name.find('/') == std::string::npos) names.push_back(std::move(name));
    return names;
  }
  Result<void> make_folder(const std::string&) override { return {}; }
  Result<void> sync_folder(const std::string&) override { return {}; }
  // Nothing here takes long enough to be worth another thread.
  bool threads() const override { return false; }
  Result<std::unique_ptr<base::FileLock>> lock(const std::string&) override { return std::unique_ptr<base::FileLock>(new NoLock); }

 private:
  std::mutex mutex_;
  std::map<std::string, ContentPointer> files_;
};

}  // namespace

std::unique_ptr<base::FileSystem> no_files() { return std::make_unique<NoFiles>(); }

}  // namespace zht::server

#include "zht/backup/late_sync.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace zht::backup {

namespace {

class Unsynced final : public base::File {
 public:
  explicit Unsynced(std::unique_ptr<base::File> below) : below_(std::move(below)) {}
  base::Result<std::size_t> read_at(std::uint64_t offset, char* to, std::size_t size) override { return below_->read_at(offset, to, size); }
  base::Result<void> write_at(std::uint64_t offset, base::Bytes data) override { return below_->write_at(offset, data); }
  base::Result<void> sync() override { return {}; }
  base::Result<std::uint64_t> size() override { return below_->size(); }
  base::Result<void> truncate(std::uint64_t size) override { return below_->truncate(size); }
  base::Result<void> reserve(std::uint64_t size) override { return below_->reserve(size); }
  void expect_use(std::uint64_t offset, std::uint64_t size) override { below_->expect_use(offset, size); }
  std::unique_ptr<base::FileView> view(std::uint64_t size) override { return below_->view(size); }

 private:
  const std::unique_ptr<base::File> below_;
};

}  // namespace

base::Result<std::unique_ptr<base::File>> LateSync::open(const std::string& path, base::OpenMode mode) {
  TRY_LET(file, below_.open(path, mode));
  return std::unique_ptr<base::File>(std::make_unique<Unsynced>(std::move(file)));
}

base::Result<void> LateSync::sync_all(const std::string& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return base::fail_errno(errno, folder);
  const int outcome = ::syncfs(descriptor), error = errno;
  ::close(descriptor);
  if (outcome != 0) return base::fail_errno(error, folder);
  return {};
}

}  // namespace zht::backup

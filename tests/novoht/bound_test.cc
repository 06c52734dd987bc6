// The log's bound (Options::log_slack) holds at the full speed of who writes: whether or not there is housekeeping between two
// rounds, with one table and with many, and on a disk whose syncs take long.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>

#include "novoht/base/memory_files.h"
#include "novoht/base/random.h"
#include "novoht/snapshot.h"

namespace novoht {
namespace {

// A disk whose syncs take time, with threads that wait for them.
class SlowFiles final : public base::FileSystem {
 public:
  explicit SlowFiles(std::chrono::microseconds sync) : sync_(sync) {}
  Result<std::unique_ptr<base::File>> open(const std::string& path, base::OpenMode mode) override {
    TRY_LET(file, disk.open(path, mode));
    return std::unique_ptr<base::File>(new SlowFile(std::move(file), sync_));
  }
  Result<bool> exists(const std::string& path) override { return disk.exists(path); }
  Result<void> rename(const std::string& from, const std::string& to) override { return disk.rename(from, to); }
  Result<void> remove(const std::string& path) override { return disk.remove(path); }
  Result<std::vector<std::string>> list(const std::string& folder) override { return disk.list(folder); }
  Result<void> make_folder(const std::string& path) override { return disk.make_folder(path); }
  Result<void> sync_folder(const std::string& path) override { return disk.sync_folder(path); }
  Result<std::unique_ptr<base::FileLock>> lock(const std::string& path) override { return disk.lock(path); }
  bool threads() const override { return true; }

  base::MemoryFiles disk;

 private:
  class SlowFile final : public base::File {
   public:
    SlowFile(std::unique_ptr<base::File> file, std::chrono::microseconds sync) : file_(std::move(file)), sync_(sync) {}
    Result<std::size_t> read_at(std::uint64_t offset, char* to, std::size_t size) override { return file_->read_at(offset, to, size); }
    Result<void> write_at(std::uint64_t offset, Bytes data) override { return file_->write_at(offset, data); }
    Result<void> sync() override {
      std::this_thread::sleep_for(sync_);
      return file_->sync();
    }
    Result<std::uint64_t> size() override { return file_->size(); }
    Result<void> truncate(std::uint64_t size) override { return file_->truncate(size); }
    Result<void> reserve(std::uint64_t size) override { return file_->reserve(size); }

   private:
    const std::unique_ptr<base::File> file_;
    const std::chrono::microseconds sync_;
  };
  const std::chrono::microseconds sync_;
};

constexpr std::uint64_t kSegment = 64 << 10;

class BoundTest : public ::testing::Test {
 protected:
  BoundTest() {
    options_.segment_size = kSegment;
    options_.log_per_table = 0;
  }
  void open(base::FileSystem& files) {
    store_.reset();
    auto opened = Store::open(files, "/store", options_);
    ASSERT_TRUE(opened) << opened.error().message;
    store_ = *std::move(opened);
  }
  void put(std::uint32_t tables, std::uint64_t key, std::uint64_t what) {
    const std::string value = value_of(key, what), name = "key " + std::to_string(key);
    const TableId table{static_cast<std::uint32_t>(key % tables)};
    const auto done = store_->apply(table, std::array{Change::insert(name, value)});
    ASSERT_TRUE(done) << done.error().message;
  }
  static std::string value_of(std::uint64_t key, std::uint64_t what) {
    return std::to_string(key) + std::string(120 + what % 10, static_cast<char>('a' + what % 26));
  }
  // As store.h has it.
  std::uint64_t bound(const Statistics& s) const {
    const double live = static_cast<double>(s.live_bytes + 32 * s.keys);
    const auto wanted = std::max({static_cast<std::uint64_t>(options_.log_slack * live), options_.log_floor,
                                  options_.log_per_table * s.tables, 4 * kSegment});
    return 2 * wanted + 2 * kSegment;
  }

  Options options_;
  std::unique_ptr<SlowFiles> files_ = std::make_unique<SlowFiles>(std::chrono::microseconds(0));
  std::unique_ptr<Store> store_;  // goes before its files
};

struct Load {
  const char* name;
  std::chrono::microseconds sync;
  std::uint32_t tables;
  bool housekeeping;
  std::uint64_t floor;
  std::uint64_t per_table = 0;
};

class SpeedTest : public BoundTest, public ::testing::WithParamInterface<Load> {};
INSTANTIATE_TEST_SUITE_P(BoundTest, SpeedTest,
                         ::testing::Values(Load{"OneTable", {}, 1, false, 0}, Load{"ManyTables", {}, 100, false, 0},
                                           Load{"WithHousekeeping", {}, 100, true, 0},
                                           Load{"WithFloor", {}, 100, false, 3 << 20},
                                           Load{"WithLogForEachTable", {}, 100, false, 0, 30 << 10},
                                           Load{"OneTableSlowSync", std::chrono::milliseconds(10), 1, false, 0},
                                           Load{"ManyTablesSlowSync", std::chrono::milliseconds(2), 100, false, 0},
                                           Load{"ManyTablesSlowSyncWithHousekeeping", std::chrono::milliseconds(2), 100, true, 0}),
                         [](const auto& one) { return std::string(one.param.name); });

TEST_P(SpeedTest, TheLogStaysWithinItsBoundWhileWritersDoNotPause) {
  const Load load = GetParam();
  options_.log_floor = load.floor;
  options_.log_per_table = load.per_table;
  files_ = std::make_unique<SlowFiles>(load.sync);
  open(*files_);
  constexpr std::uint64_t kKeys = 6000, kRecords = 70'000;
  base::Random random(1);
  std::vector<std::uint64_t> last(kKeys);
  double fullest = 0;
  for (std::uint64_t i = 0; i < kRecords; i++) {
    const std::uint64_t key = i < kKeys ? i : random.below(kKeys);
    last[key] = i;
    ASSERT_NO_FATAL_FAILURE(put(load.tables, key, i));
    if (i % 16 != 0) continue;
    if (i % 160 == 0) {
      ASSERT_TRUE(store_->flush());
      if (load.housekeeping) {
        const auto maintained = store_->maintain({});
        ASSERT_TRUE(maintained) << maintained.error().message;
      }
    }
    const Statistics s = store_->statistics();
    ASSERT_LE(s.log_bytes + s.kept_bytes, bound(s)) << "after " << i << " records";
    // By the very files, now and then.
    if (i % 1600 == 0) {
      std::uint64_t on_disk = 0;
      for (const std::string& path : files_->disk.paths())
        if (path.find("/log-") != std::string::npos) on_disk += files_->disk.contents(path).size();
      ASSERT_LE(on_disk, bound(s) + kSegment);  // one may be in the making
    }
    if (i > kRecords / 2) fullest = std::max(fullest, static_cast<double>(s.log_bytes) / static_cast<double>(bound(s)));
  }
  const Statistics s = store_->statistics();
  EXPECT_EQ(s.maintenance_failures, 0u) << s.last_failure;
  EXPECT_GT(s.checkpoints, load.tables);
  EXPECT_LE(s.log_limit, 2 * bound(s));
  EXPECT_GT(fullest, 0.4);  // else nothing was asked of it
  EXPECT_TRUE(load.housekeeping || s.helping.times > 0);
  open(files_->disk);
  for (std::uint64_t key = 0; key < kKeys; key++) {
    const auto value = store_->lookup(TableId{static_cast<std::uint32_t>(key % load.tables)}, "key " + std::to_string(key));
    ASSERT_TRUE(value);
    ASSERT_EQ(value->contiguous(), value_of(key, last[key]));
  }
}

// What an export holds is not waited for; when it is gone the log comes back.
TEST_F(BoundTest, AnExportMayHoldMoreAndWritersGoOn) {
  open(*files_);
  constexpr std::uint64_t kKeys = 2000;
  for (std::uint64_t i = 0; i < kKeys; i++) ASSERT_NO_FATAL_FAILURE(put(4, i, i));
  auto from = store_->begin_export(TableId{0});
  ASSERT_TRUE(from);
  for (std::uint64_t i = 0; i < 30 * kKeys; i++) ASSERT_NO_FATAL_FAILURE(put(4, i % kKeys, i));
  Statistics s = store_->statistics();
  EXPECT_GT(s.log_bytes, bound(s));
  EXPECT_GE(s.log_limit, s.log_bytes);
  from->reset();
  for (std::uint64_t i = 0; i < 60 * kKeys; i++) ASSERT_NO_FATAL_FAILURE(put(4, i % kKeys, i));
  s = store_->statistics();
  EXPECT_LE(s.log_bytes + s.kept_bytes, bound(s));
}

// Tables that become small make the bound small: the log follows by as much as is written.
TEST_F(BoundTest, AfterRemovingTheLogComesDownWithWhatIsWritten) {
  open(*files_);
  constexpr std::uint64_t kKeys = 6000;
  for (std::uint64_t i = 0; i < 10 * kKeys; i++) ASSERT_NO_FATAL_FAILURE(put(4, i % kKeys, i));
  std::uint64_t limit = store_->statistics().log_limit;
  for (std::uint64_t key = 100; key < kKeys; key++) {
    const TableId table{static_cast<std::uint32_t>(key % 4)};
    ASSERT_TRUE(store_->apply(table, std::array{Change::remove("key " + std::to_string(key))}));
    const Statistics s = store_->statistics();
    ASSERT_LE(s.log_bytes, std::max(limit, bound(s)));
    limit = s.log_limit;
  }
  for (std::uint64_t i = 0; i < 10 * kKeys; i++) ASSERT_NO_FATAL_FAILURE(put(4, i % 100, i));
  const Statistics s = store_->statistics();
  EXPECT_LE(s.log_bytes + s.kept_bytes, bound(s));
}

}  // namespace
}  // namespace novoht

// The store on the operating system's files, with its own threads: beside a sync on another thread, and killed (kill -9)
// at any moment. NOVOHT_KILLS=<n> runs more rounds, ZHT_LONG=1 an hour's worth of them.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/novoht/shadow.h"

namespace novoht {
namespace {

using testing::equals;
using testing::equals_prefix;
using testing::Model;
using testing::NoteKeeper;
using testing::OwnedRecord;

class KillTest : public ::testing::Test {
 protected:
  KillTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "novoht-kill-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    options_.segment_size = 32 << 10;
    options_.log_slack = 1.0;
    options_.maintain_slice = 1000;
    options_.companion = &notes_;
  }
  ~KillTest() override { std::filesystem::remove_all(folder_); }
  std::unique_ptr<Store> open() {
    notes_ = NoteKeeper();
    auto opened = Store::open(*files_, folder_ + where_, options_);
    EXPECT_TRUE(opened) << opened.error().message;
    return opened ? *std::move(opened) : nullptr;
  }

  std::unique_ptr<base::FileSystem> files_ = base::real_files();
  std::string folder_, where_ = "/store";
  Options options_;
  NoteKeeper notes_;
};

// Without a memory limit, and with all values on disk that may be.
class LimitTest : public KillTest, public ::testing::WithParamInterface<std::uint64_t> {
 protected:
  LimitTest() { options_.memory_limit = GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(KillTest, LimitTest, ::testing::Values(0, 1),
                         [](const auto& one) { return std::string(one.param == 0 ? "InMemory" : "OnDisk"); });

TEST_P(LimitTest, SyncsOnAnotherThreadRunBesideChangesAndHousekeeping) {
  base::Random random(1);
  Model model;
  {
    auto store = open();
    ASSERT_TRUE(store);
    std::unique_ptr<SyncJob> job;
    std::thread syncing;
    Result<void> outcome;
    for (int i = 0; i < 6000; i++) {
      const OwnedRecord record = testing::random_record(random, 4, 200, 3000);
      const auto version = testing::apply_to(*store, record);
      ASSERT_TRUE(version) << version.error().message;
      model.apply(record);
      notes_.add(record.table, *version, record.note);
      if (i % 7 == 0) {
        ASSERT_TRUE(store->flush());
        ASSERT_TRUE(store->maintain({}));
      }
      if (i % 50 == 0) {
        if (job) {
          syncing.join();
          store->finish_sync(outcome);
        }
        job = *store->begin_sync();
        syncing = std::thread([&job, &outcome] { outcome = job->run(); });
      }
    }
    syncing.join();
    store->finish_sync(outcome);
    ASSERT_TRUE(store->sync());
    EXPECT_FALSE(store->dirty());
    EXPECT_GT(store->statistics().checkpoints, 0u);
    EXPECT_EQ(store->statistics().cold_bytes > 0, GetParam() != 0);
    EXPECT_TRUE(equals(*store, model));
  }
  auto store = open();
  ASSERT_TRUE(store);
  EXPECT_TRUE(equals(*store, model));
  EXPECT_EQ(notes_.chain, model.notes.chain);
}

// The child changes its store by a plan that the parent knows, and notes after every flush how far it has come.
TEST_F(KillTest, AKilledProcessLosesNothingItHadFlushed) {
  const char* const rounds_text = std::getenv("NOVOHT_KILLS");
  const int rounds = rounds_text != nullptr ? std::atoi(rounds_text) : std::getenv("ZHT_LONG") == nullptr ? 12 : 3000;
  std::uint64_t promised = 0, checked = 0;
  std::vector<OwnedRecord> records;
  base::Random random(2);
  void* const shared = ::mmap(nullptr, sizeof(std::atomic<std::uint32_t>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  auto& flushed = *new (shared) std::atomic<std::uint32_t>(0);  // how far the child has come; it stays when the child goes
  const auto begin = std::chrono::steady_clock::now();
  for (int round = 0; round < rounds; round++) {
    const std::uint64_t seed = random.next();
    if (round % 50 == 49) {  // the model is played from its beginning every time
      records.clear();
      std::filesystem::remove_all(folder_ + "/store");
    }
    options_.memory_limit = static_cast<std::uint64_t>(round % 2);  // every other one with values on disk
    // Dies after a number of flushes, at whatever it is then doing. It does not go far beyond, should this process be kept
    // from killing it: every record is checked again in each round until the next beginning. And it calls for that only once:
    // on a busy machine each handing over of a processor takes as long as everything else in a round.
    flushed = 0;
    const std::uint64_t flushes = 1 + random.below(300), last = flushes + 50;
    std::array<int, 2> pipe;
    ASSERT_EQ(::pipe(pipe.data()), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::close(pipe[0]);
      base::Random plan(seed);
      auto store = open();
      if (!store) ::_exit(1);
      for (std::uint32_t count = 1;; count++) {
        const OwnedRecord record = testing::random_record(plan, 4, 200, 3000);
        const auto version = testing::apply_to(*store, record);
        if (!version) ::_exit(2);
        notes_.add(record.table, *version, record.note);
        if (count % 5 != 0) continue;
        if (!store->flush() || !store->maintain({})) ::_exit(3);
        flushed = count;
        if (count / 5 == flushes && ::write(pipe[1], "k", 1) != 1) ::_exit(4);
        while (count / 5 == last) ::pause();
      }
    }
    ::close(pipe[1]);
    char ready = 0;
    EXPECT_EQ(::read(pipe[0], &ready, 1), 1);
    ::kill(child, SIGKILL);
    ::close(pipe[0]);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child ended with " << WEXITSTATUS(status);

    const std::uint64_t before = records.size();
    base::Random plan(seed);
    for (std::uint32_t i = 0; i < flushed + 2000; i++) records.push_back(testing::random_record(plan, 4, 200, 3000));
    auto store = open();
    ASSERT_TRUE(store) << "round " << round << " seed " << seed;
    ASSERT_TRUE(equals_prefix(*store, notes_, records, before + flushed)) << "round " << round << " seed " << seed;
    promised += before + flushed;
    checked += records.size();
    if (round % 100 == 99) {
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      std::printf("%d of %d rounds, %llu records checked, %.0f s\n", round + 1, rounds, static_cast<unsigned long long>(checked), seconds);
      std::fflush(stdout);
    }
  }
  ::munmap(shared, sizeof(std::atomic<std::uint32_t>));
  std::printf("%d times kill -9: 0 of %llu promised records lost, %llu checked, 0 wrong\n", rounds,
              static_cast<unsigned long long>(promised), static_cast<unsigned long long>(checked));
}

// A file system of a few megabytes that is full, and then is not.
TEST_P(LimitTest, AFullFileSystemRefusesChangesAndTheStoreGoesOnWhenThereIsRoomAgain) {
  const std::string small = folder_ + "/small";
  std::filesystem::create_directory(small);
  if (::mount("tmpfs", small.c_str(), "tmpfs", 0, "size=6m") != 0) GTEST_SKIP() << "mounting is not allowed here";
  struct Mounted {
    ~Mounted() { ::umount2(at.c_str(), MNT_DETACH); }
    std::string at;
  } mounted{small};
  where_ = "/small/store";
  { std::ofstream(small + "/ballast") << std::string(std::size_t{2} << 20, 'b'); }
  options_.segment_size = 256 << 10;
  options_.maintain_slice = 64 << 10;
  base::Random random(3);
  Model model;
  auto store = open();
  ASSERT_TRUE(store);
  int refused = 0, after = 0;
  for (int i = 0; i < 6000; i++) {
    // Keys enough that what is alive does not fit, until there is room again and they are removed.
    OwnedRecord record = testing::random_record(random, 2, 20'000, 2000);
    for (auto& change : record.changes) {
      if (i >= 4500) change = {Change::Kind::remove, "key" + std::to_string(random.below(20'000)), ""};
      else if (change.kind != Change::Kind::remove) change.value.resize(2000, 'v');
    }
    const auto version = testing::apply_to(*store, record);
    if (version) {
      model.apply(record);
      notes_.add(record.table, *version, record.note);
      if (refused > 0 && i > 4000) after++;
    } else {
      ASSERT_EQ(version.code(), Code::no_space) << version.error().message;
      refused++;
    }
    ASSERT_TRUE(store->flush());
    const auto maintained = store->maintain({});
    ASSERT_TRUE(maintained || maintained.code() == Code::no_space) << maintained.error().message;
    if (i == 4000) {
      ASSERT_TRUE(equals(*store, model));
      std::filesystem::remove(small + "/ballast");
    }
  }
  EXPECT_GT(refused, 0);
  EXPECT_GT(after, 0);
  EXPECT_TRUE(equals(*store, model));
  store.reset();
  store = open();
  ASSERT_TRUE(store);
  EXPECT_TRUE(equals(*store, model));
}

}  // namespace
}  // namespace novoht

// File locks: ranges against a model of single bytes, what stands in whose way, leases by the store's clock.
#include "fusionfs/core/locks.h"

#include <gtest/gtest.h>

#include <array>
#include <cerrno>

#include "fusionfs/core/procedures.h"
#include "novoht/base/random.h"
#include "tests/support/local_client.h"

namespace fusionfs {
namespace {

using Kind = FileLock::Kind;
using Type = FileLock::Type;

FileLock make(Type type, std::uint64_t owner, std::uint64_t first, std::uint64_t last) {
  FileLock lock;
  lock.type = type;
  lock.session = owner % 2 + 1;  // owners of the same number in two mounts are two owners
  lock.owner = owner / 2;
  lock.first = first;
  lock.last = last;
  return lock;
}

TEST(Locks, RangesAreWhatAModelOfSingleBytesSays) {
  constexpr std::size_t kBytes = 24, kOwners = 4;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    base::Random random(seed);
    std::array<std::array<Type, kBytes>, kOwners> model;
    for (auto& each : model) each.fill(Type::none);
    std::vector<FileLock> locks;
    for (int step = 0; step < 300; ++step) {
      const auto owner = random.below(kOwners);
      const auto first = random.below(kBytes), last = first + random.below(kBytes - first);
      const Type type = static_cast<Type>(random.below(3));
      const FileLock lock = make(type, owner, first, last);
      bool blocked = false;
      for (std::size_t other = 0; other < kOwners; ++other) {
        for (std::size_t at = first; at <= last && other != owner && type != Type::none; ++at) {
          const Type there = model[other][at];
          blocked = blocked || there == Type::exclusive || (there == Type::shared && type == Type::exclusive);
        }
      }
      ASSERT_EQ(type != Type::none && conflict_of(locks, lock) != nullptr, blocked) << "seed " << seed;
      if (blocked) continue;
      set_lock(locks, lock);
      for (std::size_t at = first; at <= last; ++at) model[owner][at] = type;
      for (std::size_t other = 0; other < kOwners; ++other) {
        std::array<Type, kBytes> found;
        found.fill(Type::none);
        std::size_t pieces = 0, runs = 0;
        for (const FileLock& each : locks) {
          if (!each.same_owner(make(Type::none, other, 0, 0))) continue;
          ++pieces;
          for (std::size_t i = each.first; i <= each.last; ++i) {
            ASSERT_EQ(found[i], Type::none) << "seed " << seed << ": two locks of one owner on one byte";
            found[i] = each.type;
          }
        }
        for (std::size_t i = 0; i < kBytes; ++i)
          runs += found[i] != Type::none && (i == 0 || found[i - 1] != found[i]) ? 1 : 0;
        ASSERT_EQ(found, model[other]) << "seed " << seed;
        ASSERT_EQ(pieces, runs) << "seed " << seed << ": neighbours that are alike are one";
      }
    }
    LockRecord record;
    record.locks = locks;
    record.sessions[1] = 5;
    record.sessions[2] = 6;
    const auto back = decode_lock_record(encode(record));
    ASSERT_TRUE(back);
    EXPECT_EQ(back->locks, locks);
    EXPECT_EQ(back->sessions, record.sessions);
  }
}

TEST(Locks, ToTheEndOfTheFileIsToTheEnd) {
  std::vector<FileLock> locks;
  set_lock(locks, make(Type::exclusive, 0, 10, kLockToEnd));
  set_lock(locks, make(Type::exclusive, 0, 0, 9));
  ASSERT_EQ(locks.size(), 1u);
  EXPECT_EQ(locks[0].last, kLockToEnd);
  set_lock(locks, make(Type::none, 0, 5, 5));
  ASSERT_EQ(locks.size(), 2u);
  EXPECT_EQ(conflict_of(locks, make(Type::shared, 1, 5, 5)), nullptr);
  EXPECT_NE(conflict_of(locks, make(Type::shared, 1, kLockToEnd, kLockToEnd)), nullptr);
}

TEST(Locks, DamagedRecordsAreRefused) {
  LockRecord record;
  record.locks.push_back(make(Type::shared, 0, 0, 1));
  record.sessions[1] = 1;
  const std::string bytes = encode(record);
  for (std::size_t size = 0; size < bytes.size(); ++size)
    EXPECT_FALSE(decode_lock_record(Bytes(bytes).substr(0, size))) << size;
}

class LockTest : public testing::Test {
 protected:
  LockTest() {
    add_procedures(procedures_);
    store_ = std::make_unique<testing_support::LocalStore>(procedures_);
    client_ = store_->client();
  }
  LockReply ask(const LockRequest& request) {
    const auto answer = client_->update(tag_of(home_of(request.inode)), "fusionfs.lock", pack(request));
    EXPECT_TRUE(answer.has_value());
    return *unpack<LockReply>(*answer);
  }
  LockReply lock(std::uint64_t session, Type type, Kind kind = Kind::record, std::uint64_t owner = 1,
                 LockRequest::Action action = LockRequest::set) {
    LockRequest request;
    request.inode = kFile;
    request.action = action;
    request.kind = static_cast<std::uint8_t>(kind);
    request.type = static_cast<std::uint8_t>(type);
    request.session = session;
    request.owner = owner;
    request.life = 10'000'000'000;
    return ask(request);
  }
  bool kept() { return client_->lookup(locks_key(kFile)).has_value(); }
  std::vector<InodeId> renew(std::uint64_t session) {
    LocksRequest request;
    request.session = session;
    request.life = 10'000'000'000;
    request.inodes = {kFile};
    const auto answer = client_->update(tag_of(home_of(kFile)), "fusionfs.lock_renew", pack(request));
    EXPECT_TRUE(answer.has_value());
    return unpack<LockReply>(*answer)->lost;
  }
  static constexpr InodeId kFile{7};
  zht::Procedures procedures_;
  std::unique_ptr<testing_support::LocalStore> store_;
  std::unique_ptr<zht::Client> client_;
};

TEST_F(LockTest, ALockEndsWithItsMountsLeaseAndLastsWhileTheMountRenews) {
  EXPECT_EQ(lock(1, Type::exclusive).error, 0);
  const LockReply refused = lock(2, Type::shared);
  EXPECT_EQ(refused.error, EAGAIN);
  EXPECT_EQ(refused.session, 1u);
  EXPECT_GT(refused.wait, 9'000'000'000);
  store_->advance(std::chrono::seconds(8));
  EXPECT_TRUE(renew(1).empty());
  store_->advance(std::chrono::seconds(8));
  EXPECT_EQ(lock(2, Type::shared).error, EAGAIN);
  store_->advance(std::chrono::seconds(3));
  EXPECT_EQ(lock(2, Type::shared).error, 0);
  EXPECT_EQ(renew(1), std::vector<InodeId>{kFile}) << "it is told that its lock is lost";
  EXPECT_EQ(lock(2, Type::none).error, 0);
  EXPECT_FALSE(kept()) << "nothing is left of a file without locks";
}

// The node that led before was hours ahead: what it said of a mount that died must not hold for hours.
TEST_F(LockTest, ALockGivenByAClockThatWasAheadEndsAllTheSame) {
  EXPECT_EQ(lock(1, Type::exclusive).error, 0);
  store_->clock().jump(std::chrono::hours(-5));
  store_->restart(false);
  const LockReply refused = lock(2, Type::exclusive);
  EXPECT_EQ(refused.error, EAGAIN);
  EXPECT_LE(refused.wait, kLongestLife);
  store_->advance(std::chrono::seconds(61));
  EXPECT_EQ(lock(2, Type::exclusive).error, 0);
}

TEST_F(LockTest, FlockAndRecordLocksDoNotSeeEachOther) {
  EXPECT_EQ(lock(1, Type::exclusive, Kind::record).error, 0);
  EXPECT_EQ(lock(2, Type::exclusive, Kind::flock).error, 0);
  EXPECT_EQ(lock(1, Type::shared, Kind::flock).error, EAGAIN);
  EXPECT_EQ(lock(2, Type::shared, Kind::record, 1, LockRequest::test).error, EAGAIN);
  EXPECT_EQ(lock(2, Type::none, Kind::flock, 0, LockRequest::drop_all).error, 0);
  EXPECT_EQ(lock(1, Type::shared, Kind::flock).error, 0);
}

TEST_F(LockTest, TwoSharersOfAnFlockThatBothWantMoreDoNotWaitForEachOther) {
  EXPECT_EQ(lock(1, Type::shared, Kind::flock).error, 0);
  EXPECT_EQ(lock(2, Type::shared, Kind::flock).error, 0);
  EXPECT_EQ(lock(1, Type::exclusive, Kind::flock).error, EAGAIN);  // gives up what it had, as flock(2) does
  EXPECT_EQ(lock(2, Type::exclusive, Kind::flock).error, 0);
}

TEST_F(LockTest, TheRightToAppendIsShortOnceSomebodyHadToWaitForIt) {
  EXPECT_FALSE(lock(1, Type::exclusive, Kind::append).contended);
  EXPECT_EQ(lock(2, Type::exclusive, Kind::append).error, EAGAIN);
  EXPECT_EQ(lock(1, Type::none, Kind::append).error, 0);
  const LockReply next = lock(2, Type::exclusive, Kind::append);
  EXPECT_EQ(next.error, 0);
  EXPECT_TRUE(next.contended);
  store_->advance(std::chrono::minutes(2));
  EXPECT_FALSE(lock(1, Type::exclusive, Kind::append).contended);
}

TEST_F(LockTest, WhatMakesNoSenseIsRefused) {
  for (const auto& [kind, type, session] : {std::tuple(3, 0, 1), std::tuple(0, 3, 1), std::tuple(0, 0, 0)}) {
    LockRequest request;
    request.inode = kFile;
    request.kind = static_cast<std::uint8_t>(kind);
    request.type = static_cast<std::uint8_t>(type);
    request.session = static_cast<std::uint64_t>(session);
    EXPECT_EQ(client_->update(tag_of(home_of(kFile)), "fusionfs.lock", pack(request)).code(), base::Code::invalid);
  }
  LockRequest backwards;
  backwards.inode = kFile;
  backwards.session = 1;
  backwards.first = 5;
  backwards.last = 4;
  EXPECT_EQ(client_->update(tag_of(home_of(kFile)), "fusionfs.lock", pack(backwards)).code(), base::Code::invalid);
}

}  // namespace
}  // namespace fusionfs

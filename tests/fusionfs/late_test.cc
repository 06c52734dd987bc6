// Requests that arrive long after everybody has given them up, and answers that get lost. What a client that was held up sends must
// not undo what others have settled meanwhile, a day later either; and of what was settled nothing stays in the store.
#include <deque>
#include <functional>

#include "novoht/base/random.h"
#include "tests/fusionfs/metadata_fixture.h"

namespace fusionfs {
namespace {

using Wanted = std::function<bool(const zht::Operation&)>;

Wanted asks(const std::string& procedure) {
  return [procedure](const zht::Operation& operation) { return operation.procedure == procedure; };
}

// Holds back the first request that `wanted` says, until arrive().
class LateClient final : public zht::Client {
 public:
  LateClient(zht::Client& inner, Wanted wanted) : inner_(inner), wanted_(std::move(wanted)) {}
  void submit(zht::Operation operation, zht::Completion completion, zht::Millis timeout) override {
    if (!wanted_ || !wanted_(operation)) return inner_.submit(std::move(operation), std::move(completion), timeout);
    wanted_ = nullptr;
    held_ = [this, operation = std::move(operation), completion = std::move(completion), timeout]() mutable {
      inner_.submit(std::move(operation), std::move(completion), timeout);
    };
  }
  std::uint32_t partition_count() const override { return inner_.partition_count(); }
  bool holds() const { return static_cast<bool>(held_); }
  void arrive() { std::exchange(held_, nullptr)(); }

 private:
  zht::Client& inner_;
  Wanted wanted_;
  std::function<void()> held_;
};

// Loses one request, or its answer.
class LossyClient final : public zht::Client {
 public:
  enum class What { request, answer };
  LossyClient(zht::Client& inner, int number, What what) : inner_(inner), left_(number), what_(what) {}
  void submit(zht::Operation operation, zht::Completion completion, zht::Millis timeout) override {
    if (left_-- != 0) return inner_.submit(std::move(operation), std::move(completion), timeout);
    if (what_ == What::answer) inner_.submit(std::move(operation), [](zht::Outcome) {}, timeout);
    zht::Outcome outcome;
    outcome.code = base::Code::timeout;
    completion(std::move(outcome));
  }
  std::uint32_t partition_count() const override { return inner_.partition_count(); }
  bool lost() const { return left_ < 0; }

 private:
  zht::Client& inner_;
  int left_;
  const What what_;
};

class LateTest : public MetadataTest {
 protected:
  void settle() {
    later(60);
    for (int round = 0; round < 3; ++round) {
      EXPECT_EQ(settle_leftovers(), 0);
      later(4);
    }
  }
  void a_day() { later(25 * 3600); }
  // Everything there is, "tag" + rest, but the root's own.
  std::string beside_the_root() {
    std::string found;
    for (const std::string& key : keys("")) {
      if (!key.starts_with("{d:0}")) found += key + " ";
    }
    return found;
  }
  std::string markers() {
    std::string found;
    for (const char* kind : {"m/", "k/", "u/", "p/"}) {
      for (const std::string& key : keys(kind)) found += key + " ";
    }
    return found;
  }
};

TEST_F(LateTest, ADebtIsPaidOnceHoweverLateTheFirstPaymentComes) {
  const InodeId one = dir(kRootInode, "one"), two = dir(kRootInode, "two"), three = dir(kRootInode, "three");
  const InodeId a = file(one, "a");
  ASSERT_EQ(link(a, two, "b"), 0);
  ASSERT_EQ(link(a, three, "c"), 0);
  ASSERT_EQ(links(a), 3u);
  // Each request that could take the link off may be the one that comes late.
  for (const char* procedure : {"fusionfs.pay", "fusionfs.pay_debt"}) {
    for (int skipped = 0; skipped < 2; ++skipped) {
      SCOPED_TRACE(std::string(procedure) + " " + std::to_string(skipped));
      int left = skipped;
      LateClient late(*client_, [procedure, &left](const zht::Operation& operation) {
        return operation.procedure == procedure && left-- == 0;
      });
      Metadata slow(late, store_->clock(), {});
      std::optional<int> error;
      start(slow.unlink(two, "b"), [&](Reply reply) { error = reply.error; });
      settle();
      EXPECT_EQ(links(a), 2u);
      EXPECT_EQ(markers(), "");
      a_day();
      if (late.holds()) late.arrive();
      EXPECT_EQ(links(a), 2u);
      settle();
      EXPECT_EQ(links(a), 2u);
      EXPECT_EQ(markers(), "");
      EXPECT_EQ(error, 0);
      fsck();
      ASSERT_EQ(link(a, two, "b"), 0);
    }
  }
}

TEST_F(LateTest, ADebtThatTwoPayAtOnceIsPaidOnce) {
  const InodeId one = dir(kRootInode, "one"), two = dir(kRootInode, "two"), three = dir(kRootInode, "three");
  const InodeId a = file(one, "a");
  ASSERT_EQ(link(a, two, "b"), 0);
  ASSERT_EQ(link(a, three, "c"), 0);
  DyingClient dying(*client_, 1);  // takes the name away, and no more
  Metadata dead(dying, store_->clock(), {});
  EXPECT_EQ(wait(dead.unlink(two, "b")).error, 0);
  ASSERT_EQ(keys("u/").size(), 1u);
  std::string debt = keys("u/").front();
  // The settler that is held up at any of its requests; another settles meanwhile.
  for (int at = 0; at < 6; ++at) {
    SCOPED_TRACE(at);
    int left = at;
    LateClient late(*client_, [&left](const zht::Operation&) { return left-- == 0; });
    Metadata slow(late, store_->clock(), {});
    std::optional<int> error;
    start(slow.settle_record(debt), [&](int result) { error = result; });
    EXPECT_EQ(wait(metadata_->settle_record(debt)), 0);
    a_day();
    if (late.holds()) late.arrive();
    EXPECT_EQ(error, 0);
    EXPECT_EQ(links(a), 2u);
    settle();
    EXPECT_EQ(markers(), "");
    fsck();
    ASSERT_EQ(link(a, two, "b"), 0);
    DyingClient again(*client_, 1);
    Metadata dead_too(again, store_->clock(), {});
    EXPECT_EQ(wait(dead_too.unlink(two, "b")).error, 0);
    ASSERT_EQ(keys("u/").size(), 1u);
    debt = keys("u/").front();
  }
}

TEST_F(LateTest, AMoveThatWasCalledOffDoesNotArriveADayLater) {
  const InodeId one = dir(kRootInode, "one"), two = dir(kRootInode, "two");
  const InodeId a = file(one, "a");
  LateClient late(*client_, asks("fusionfs.move_install"));
  Metadata slow(late, store_->clock(), {});
  std::optional<int> error;
  start(slow.rename(one, "a", two, "b", 0), [&](Reply reply) { error = reply.error; });
  ASSERT_TRUE(late.holds());
  settle();
  EXPECT_EQ(at(one, "a"), raw(a));
  EXPECT_EQ(markers(), "");
  EXPECT_EQ(unlink(one, "a"), 0);
  a_day();
  late.arrive();
  EXPECT_EQ(at(two, "b"), 0u);
  EXPECT_EQ(error, ENOENT);
  settle();
  EXPECT_EQ(markers(), "");
  fsck();
}

TEST_F(LateTest, APromisedNameThatWasCalledOffDoesNotArriveADayLater) {
  const InodeId one = dir(kRootInode, "one"), two = dir(kRootInode, "two");
  const InodeId a = file(one, "a");
  LateClient late(*client_, asks("fusionfs.add_entry"));
  Metadata slow(late, store_->clock(), {});
  std::optional<int> error;
  start(slow.link(a, S_IFREG, two, "b"), [&](Reply reply) { error = reply.error; });
  ASSERT_TRUE(late.holds());
  settle();
  EXPECT_EQ(links(a), 1u);
  EXPECT_EQ(unlink(one, "a"), 0);
  a_day();
  late.arrive();
  EXPECT_EQ(error, ENOENT);
  EXPECT_EQ(find(two, "b").error, ENOENT);
  settle();
  EXPECT_EQ(markers(), "");
  fsck();
}

// Replacing an empty directory by another in the same directory: who finds the mark on it abandoned revives it.
TEST_F(LateTest, ADirectoryThatWasRevivedIsNotReplacedADayLater) {
  const InodeId one = dir(kRootInode, "one"), two = dir(kRootInode, "two");
  int left = 1;
  LateClient late(*client_, [&](const zht::Operation& operation) { return operation.procedure == "fusionfs.rename" && left-- == 0; });
  Metadata slow(late, store_->clock(), {});
  std::optional<int> error;
  start(slow.rename(kRootInode, "one", kRootInode, "two", 0), [&](Reply reply) { error = reply.error; });
  ASSERT_TRUE(late.holds());
  settle();
  const InodeId f = file(two, "f");
  a_day();
  late.arrive();
  EXPECT_EQ(error, ENOTEMPTY);
  EXPECT_EQ(at(kRootInode, "one"), raw(one));
  EXPECT_EQ(at(two, "f"), raw(f));
  settle();
  fsck();
}

// Each below the other is nowhere. A mover that has checked and was held up finds that it has been overtaken.
TEST_F(LateTest, TwoDirectoriesDoNotMoveBelowEachOther) {
  const InodeId a = dir(kRootInode, "a"), b = dir(kRootInode, "b");
  for (const char* procedure : {"fusionfs.move_begin", "fusionfs.move_install", "fusionfs.move_end"}) {
    SCOPED_TRACE(procedure);
    LateClient late(*client_, asks(procedure));
    Metadata slow(late, store_->clock(), {});
    std::optional<int> error;
    start(slow.rename(kRootInode, "a", b, "a", 0), [&](Reply reply) { error = reply.error; });
    ASSERT_TRUE(late.holds());
    later(60);
    const bool arrived = procedure == std::string("fusionfs.move_end");
    EXPECT_EQ(rename(kRootInode, "b", a, "b"), arrived ? EINVAL : 0);
    late.arrive();
    settle();
    EXPECT_TRUE(error.has_value());
    EXPECT_EQ(list(kRootInode), arrived ? "b " : "a ");
    EXPECT_EQ(arrived ? at(b, "a") : at(a, "b"), raw(arrived ? a : b));
    EXPECT_EQ(markers(), "");
    fsck();
    if (arrived) break;
    ASSERT_EQ(rename(a, "b", kRootInode, "b"), 0);
  }
}

// What one lost request or answer leaves is found, whatever the caller was told.
TEST_F(LateTest, OneLostRequestOrAnswerLeavesNothingWrong) {
  using Change = std::function<int(Metadata&, InodeId, InodeId)>;
  const std::vector<std::pair<std::string, Change>> changes{
      {"directory", [](Metadata& m, InodeId x, InodeId y) { return wait(m.rename(x, "d", y, "e", 0)).error; }},
      {"over a directory", [](Metadata& m, InodeId x, InodeId y) { return wait(m.rename(x, "d", y, "empty", 0)).error; }},
      {"exchange", [](Metadata& m, InodeId x, InodeId y) { return wait(m.rename(x, "d", y, "empty", kExchange)).error; }},
      {"file over a file", [](Metadata& m, InodeId x, InodeId y) { return wait(m.rename(x, "f", y, "g", 0)).error; }},
      {"file over a linked file", [](Metadata& m, InodeId x, InodeId y) { return wait(m.rename(x, "f", y, "h", 0)).error; }},
      {"unlink", [](Metadata& m, InodeId, InodeId y) { return wait(m.unlink(y, "h")).error; }},
      {"rmdir", [](Metadata& m, InodeId, InodeId y) { return wait(m.remove_directory(y, "empty")).error; }},
  };
  for (const auto& [what, change] : changes) {
    for (const auto kind : {LossyClient::What::request, LossyClient::What::answer}) {
      for (int number = 0;; ++number) {
        SCOPED_TRACE(what + (kind == LossyClient::What::request ? ", request " : ", answer ") + std::to_string(number));
        const std::string suffix = what + std::to_string(static_cast<int>(kind)) + "." + std::to_string(number);
        const InodeId x = dir(kRootInode, "x" + suffix), y = dir(kRootInode, "y" + suffix);
        dir(x, "d");
        dir(y, "empty");
        file(x, "f");
        file(y, "g");
        EXPECT_EQ(link(file(x, "h"), y, "h"), 0);
        LossyClient lossy(*client_, number, kind);
        Metadata metadata(lossy, store_->clock(), {});
        change(metadata, x, y);
        settle();
        EXPECT_EQ(markers(), "");
        Check check(*client_, *metadata_);
        Census census;
        const auto found = check.read(census);
        ASSERT_TRUE(found.has_value());
        for (const Finding& each : *found) ADD_FAILURE() << name_of(each.kind) << ": " << each.text;
        if (!lossy.lost() || testing::Test::HasFailure()) break;
        ASSERT_LT(number, 60);
      }
    }
  }
}

// After a mount died all records are gone through once; what may still be somebody's business is all that is looked at again.
TEST_F(LateTest, RecordsAreGoneThroughOnceAndOnlyWhatIsUnfinishedAgain) {
  const InodeId d = dir(kRootInode, "d");
  for (int i = 0; i < 300; ++i) file(kRootInode, "f" + std::to_string(i));
  later(60);
  DyingClient dying(*client_, 2);  // reads the name and marks it as moving
  Metadata dead(dying, store_->clock(), {});
  wait(dead.rename(kRootInode, "f7", d, "g", 0));
  DyingClient counting(*client_, 100'000);
  Metadata metadata(counting, store_->clock(), {});
  later(4);
  const Metadata::Leftovers first = wait(metadata.settle_leftovers());
  EXPECT_EQ(first.error, 0);
  const int once = 100'000 - counting.left();
  EXPECT_GT(once, 300);
  EXPECT_EQ(first.again, std::vector<std::string>{entry_key(kRootHome, "f7")});
  EXPECT_EQ(wait(metadata.look_again(first.again)).again, std::vector<std::string>());
  EXPECT_LT(100'000 - counting.left() - once, 10);
  EXPECT_EQ(list(d), "");
  fsck();
}

TEST_F(LateTest, AnEmptiedFileSystemHoldsNothingButItsRoot) {
  std::vector<InodeId> all;
  MetadataOptions options;
  options.session = 7;  // with leases
  options.split_at = 20;
  options.gone = [](const Inode&) {};
  Metadata mount(*client_, store_->clock(), options);
  const auto make = [&](InodeId in, const std::string& name) {
    CreateRequest request;
    request.name = name;
    request.mode = S_IFREG | 0644;
    return wait(mount.create(in, request)).inode->id;
  };
  for (int i = 0; i < 6; ++i) all.push_back(dir(i == 0 ? kRootInode : all.back(), "d" + std::to_string(i)));
  for (std::size_t d = 0; d < all.size(); ++d) {
    for (int i = 0; i < 60; ++i) make(all[d], "f" + std::to_string(i));
  }
  for (std::size_t d = 0; d + 1 < all.size(); ++d) {
    for (int i = 0; i < 20; ++i) {
      const std::string name = "f" + std::to_string(i);
      EXPECT_EQ(wait(mount.rename(all[d], name, all[d + 1], "moved" + name, 0)).error, 0);
      const InodeId other = wait(mount.lookup(all[d], "f" + std::to_string(20 + i))).inode->id;
      EXPECT_EQ(wait(mount.link(other, S_IFREG, all[d + 1], "linked" + name)).error, 0);
    }
  }
  const InodeId first = wait(mount.lookup(all[0], "f59")).inode->id;
  AttributeRequest attribute;
  attribute.inode = first;
  attribute.name = "user.x";
  attribute.value = "y";
  EXPECT_EQ(wait(mount.set_attribute(attribute, false)).error, 0);
  auto note = zht::Operation::append(provenance_key(first), "opened\n");
  note.ttl = zht::Millis{std::chrono::hours(24 * 90)};
  EXPECT_TRUE(client_->call(note).ok());
  for (std::size_t d = all.size(); d-- > 0;) {
    for (const auto& [cursor, each] : wait(mount.list(all[d], {})).listing.names) {
      if (is_directory(each.type)) continue;
      EXPECT_EQ(wait(mount.unlink(all[d], each.name)).error, 0) << each.name;
    }
    EXPECT_EQ(wait(mount.remove_directory(d == 0 ? kRootInode : all[d - 1], "d" + std::to_string(d))).error, 0);
  }
  later(60);
  EXPECT_EQ(beside_the_root(), "");
  fsck();
}

}  // namespace
}  // namespace fusionfs

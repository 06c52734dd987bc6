// Directories that have grown over several homes: everything works as in small ones, and a split that nobody finished
// is finished by whoever meets it.
#include <map>
#include <set>

#include "novoht/base/random.h"
#include "tests/fusionfs/metadata_fixture.h"

namespace fusionfs {
namespace {

constexpr std::uint32_t kSmall = 8;  // names in a home before it is split

class ShardsTest : public CrashTest {
 protected:
  ShardsTest() : CrashTest(kSmall) {}
  std::string name(int i) { return "n" + std::to_string(i); }
  void fill(InodeId directory, int from, int to) {
    for (int i = from; i < to; ++i) ASSERT_EQ(make_file(directory, name(i)).error, 0) << i;
  }
  std::set<std::string> listed(InodeId directory, Metadata& metadata) {
    std::set<std::string> names;
    const auto reply = wait(metadata.list(directory, {}));
    EXPECT_EQ(reply.error, 0);
    for (const auto& [cursor, each] : reply.listing.names) EXPECT_TRUE(names.insert(each.name).second) << each.name;
    return names;
  }
  std::set<std::string> listed(InodeId directory) { return listed(directory, *metadata_); }
  std::size_t homes() { return keys("s").size(); }
};

TEST_F(ShardsTest, ADirectoryGrowsOverManyHomes) {
  const InodeId d = dir(kRootInode, "d");
  fill(d, 0, 300);
  EXPECT_GT(homes(), 20u);
  Metadata stranger(*client_, store_->clock(), {});  // has to learn where the names are
  for (Metadata* metadata : {metadata_.get(), &stranger}) {
    for (int i = 0; i < 300; ++i) EXPECT_EQ(wait(metadata->lookup(d, name(i))).error, 0) << i;
    EXPECT_EQ(wait(metadata->lookup(d, "other")).error, ENOENT);
    EXPECT_EQ(listed(d, *metadata).size(), 300u);
  }
  EXPECT_EQ(make_file(d, name(7)).error, EEXIST);
  fsck();
  // Inode numbers are all different although many homes hand them out.
  std::set<std::uint64_t> numbers;
  for (int i = 0; i < 300; ++i) numbers.insert(at(d, name(i)));
  EXPECT_EQ(numbers.size(), 300u);
}

TEST_F(ShardsTest, LinksSizeAndTimesAreOfAllHomes) {
  const InodeId d = dir(kRootInode, "d");
  fill(d, 0, 100);
  for (int i = 0; i < 20; ++i) dir(d, "sub" + std::to_string(i));
  later(5);
  const auto before = *wait(metadata_->getattr(d)).inode;
  EXPECT_EQ(before.links, 22u);
  EXPECT_EQ(before.size, 4096u + 120 * 32);
  later(5);
  EXPECT_EQ(unlink(d, name(63)), 0);
  const auto after = *wait(metadata_->getattr(d)).inode;
  EXPECT_GT(after.mtime, before.mtime);
  EXPECT_GT(after.revision, before.revision);
  SetRequest back;
  back.inode = d;
  back.fields_set = SetRequest::kMtime;
  back.mtime = 1'000'000'000;
  EXPECT_EQ(wait(metadata_->setattr(back)).inode->mtime, 1'000'000'000);
  EXPECT_EQ(wait(metadata_->getattr(d)).inode->mtime, 1'000'000'000);
}

TEST_F(ShardsTest, SetgidReachesEveryHome) {
  const InodeId d = dir(kRootInode, "d");
  SetRequest set;
  set.inode = d;
  set.fields_set = SetRequest::kMode | SetRequest::kGid;
  set.mode = 02755;
  set.gid = 42;
  ASSERT_EQ(wait(metadata_->setattr(set)).error, 0);
  for (int i = 0; i < 60; ++i) {
    CreateRequest request;
    request.name = name(i);
    request.mode = S_IFREG | 0644;
    request.parent_mode = S_IFDIR | 02755;
    request.parent_gid = 42;
    EXPECT_EQ(wait(metadata_->create(d, request)).inode->gid, 42u);
  }
}

TEST_F(ShardsTest, RenameBetweenHomesOfOneDirectory) {
  const InodeId d = dir(kRootInode, "d");
  fill(d, 0, 64);
  std::map<std::string, std::uint64_t> model;
  for (int i = 0; i < 64; ++i) model[name(i)] = at(d, name(i));
  for (int i = 0; i < 64; ++i) {
    ASSERT_EQ(rename(d, name(i), d, "to" + std::to_string(i)), 0) << i;
    EXPECT_EQ(at(d, "to" + std::to_string(i)), model[name(i)]);
    EXPECT_EQ(at(d, name(i)), 0u);
  }
  for (int i = 0; i + 1 < 64; i += 2) {  // replacing, exchanging
    const auto one = at(d, "to" + std::to_string(i)), two = at(d, "to" + std::to_string(i + 1));
    ASSERT_EQ(rename(d, "to" + std::to_string(i), d, "to" + std::to_string(i + 1), kExchange), 0);
    EXPECT_EQ(at(d, "to" + std::to_string(i)), two);
    ASSERT_EQ(rename(d, "to" + std::to_string(i), d, "to" + std::to_string(i + 1)), 0);
    EXPECT_EQ(at(d, "to" + std::to_string(i + 1)), two);
    EXPECT_EQ(wait(metadata_->getattr(InodeId{one})).error, ENOENT);
  }
  EXPECT_EQ(listed(d).size(), 32u);
  later(10);
  fsck();
}

TEST_F(ShardsTest, DirectoriesInABigDirectoryMoveAndGo) {
  const InodeId d = dir(kRootInode, "d"), e = dir(kRootInode, "e");
  for (int i = 0; i < 40; ++i) dir(d, name(i));
  for (int i = 0; i < 40; i += 2) ASSERT_EQ(rename(d, name(i), e, name(i)), 0);
  for (int i = 1; i < 40; i += 2) ASSERT_EQ(rename(d, name(i), d, "x" + std::to_string(i)), 0);
  EXPECT_EQ(links(d), 22u);
  EXPECT_EQ(links(e), 22u);
  EXPECT_EQ(wait(metadata_->getattr(InodeId{at(e, name(2))})).inode->parent, e);
  later(10);
  fsck();
  for (int i = 0; i < 40; i += 2) ASSERT_EQ(rmdir(e, name(i)), 0);
  EXPECT_EQ(links(e), 2u);
}

TEST_F(ShardsTest, OnlyAnEmptyOneIsRemovedAndNothingIsLeft) {
  const InodeId d = dir(kRootInode, "d");
  fill(d, 0, 100);
  // The one name left may be in any home; the first being empty must not be enough.
  for (int left : {5, 50, 99}) {
    for (int i = 0; i < 100; ++i) {
      if (i != left) {
        ASSERT_EQ(unlink(d, name(i)), 0);
      }
    }
    EXPECT_EQ(rmdir(kRootInode, "d"), ENOTEMPTY);
    EXPECT_EQ(rename(kRootInode, "d", kRootInode, "d2"), 0);
    dir(kRootInode, "over");
    EXPECT_EQ(rename(kRootInode, "over", kRootInode, "d2"), ENOTEMPTY);
    EXPECT_EQ(rmdir(kRootInode, "over"), 0);
    EXPECT_EQ(rename(kRootInode, "d2", kRootInode, "d"), 0);
    for (int i = 0; i < 100; ++i) {
      if (i != left) {
        ASSERT_EQ(make_file(d, name(i)).error, 0) << "none of its homes may stay marked";
      }
    }
  }
  for (int i = 0; i < 100; ++i) ASSERT_EQ(unlink(d, name(i)), 0);
  EXPECT_EQ(rmdir(kRootInode, "d"), 0);
  EXPECT_EQ(homes(), 0u);
  EXPECT_TRUE(keys("e/").empty());
  fsck();
}

TEST_F(ShardsTest, OpenFilesKeepTheirInodeWhereverTheirNameIs) {
  const InodeId d = dir(kRootInode, "d");
  fill(d, 0, 50);
  for (int i = 0; i < 50; ++i) held_.push_back(InodeId{at(d, name(i))});
  Metadata stranger(*client_, store_->clock(), {.held = [this](HomeId home) {
                      std::vector<InodeId> here;
                      for (const InodeId each : held_)
                        if (home_of(each) == home) here.push_back(each);
                      return here;
                    }});
  for (int i = 0; i < 50; ++i) ASSERT_EQ(wait(stranger.unlink(d, name(i))).error, 0);
  for (const InodeId each : held_) EXPECT_EQ(wait(metadata_->getattr(each)).error, 0);
}

TEST_F(ShardsTest, LinksBetweenBigDirectories) {
  const InodeId d = dir(kRootInode, "d"), e = dir(kRootInode, "e");
  fill(d, 0, 40);
  for (int i = 0; i < 40; ++i) ASSERT_EQ(link(InodeId{at(d, name(i))}, e, name(i)), 0);
  for (int i = 0; i < 40; ++i) EXPECT_EQ(links(InodeId{at(e, name(i))}), 2u);
  for (int i = 0; i < 40; ++i) ASSERT_EQ(unlink(d, name(i)), 0);
  for (int i = 0; i < 40; ++i) EXPECT_EQ(links(InodeId{at(e, name(i))}), 1u);
  fsck();
}

// The request that makes the home grow past its size also splits it: dies at each step of that. The size is each home's own,
// up to a fourth above the option's.
TEST_F(ShardsTest, ASplitThatWasLeftIsFinishedByOthers) {
  int round = 0;
  const int most = kSmall / 4;
  const int steps = at_every_step(
      [&](InodeId top) { fill(top, 0, kSmall - 1); },
      [&](Metadata& crashing, InodeId top) {
        for (int i = 0; i <= most; ++i) {
          CreateRequest request;
          request.name = "last" + std::to_string(i);
          request.mode = S_IFREG | 0644;
          if (wait(crashing.create(top, request)).error != 0) return;
        }
      },
      [&](InodeId top) {
        std::set<std::string> names = listed(top);
        int made = 0;
        for (int i = 0; i <= most; ++i) {
          const std::string each = "last" + std::to_string(i);
          EXPECT_EQ(at(top, each) != 0, names.count(each) != 0) << each;
          made += static_cast<int>(names.count(each));
        }
        EXPECT_EQ(names.size(), kSmall - 1 + static_cast<unsigned>(made));
        for (int i = 0; i < static_cast<int>(kSmall) - 1; ++i) EXPECT_NE(at(top, name(i)), 0u);
        if (++round % 2 == 0) fsck();  // finds nothing more, met or not
        for (int i = 0; i < 40; ++i) ASSERT_EQ(make_file(top, "more" + std::to_string(i)).error, 0);
        for (const auto& each : names) EXPECT_EQ(unlink(top, each), 0);
        EXPECT_EQ(listed(top).size(), 40u);
        for (int i = 0; i < 40; ++i) ASSERT_EQ(unlink(top, "more" + std::to_string(i)), 0);
        fsck();
      });
  EXPECT_GT(steps, 8);
}

TEST_F(ShardsTest, TheRemovalOfABigDirectoryMayBeLeftAnywhere) {
  at_every_step(
      [&](InodeId top) {
        const InodeId d = dir(top, "d");
        fill(d, 0, 30);
        for (int i = 0; i < 30; ++i) ASSERT_EQ(unlink(d, name(i)), 0);
      },
      [&](Metadata& crashing, InodeId top) { wait(crashing.remove_directory(top, "d")); },
      [&](InodeId top) {
        if (const auto d = at(top, "d"); d != 0) {
          for (int i = 0; i < 30; ++i) ASSERT_EQ(make_file(InodeId{d}, name(i)).error, 0) << i;
          for (int i = 0; i < 30; ++i) ASSERT_EQ(unlink(InodeId{d}, name(i)), 0);
          EXPECT_EQ(rmdir(top, "d"), 0);
        }
        fsck();
      });
}

TEST_F(ShardsTest, ARemovalThatWasCalledOffMayBeLeftAnywhere) {
  at_every_step(
      [&](InodeId top) {
        const InodeId d = dir(top, "d");
        fill(d, 0, 30);
        // One name is left, and not in the first home.
        int left = 0;
        while (keys("e/" + name(left)).front().starts_with(tag_of(home_of(d)))) ++left;
        for (int i = 0; i < 30; ++i) {
          if (i != left) {
            ASSERT_EQ(unlink(d, name(i)), 0);
          }
        }
      },
      [&](Metadata& crashing, InodeId top) { wait(crashing.remove_directory(top, "d")); },
      [&](InodeId top) {
        const InodeId d{at(top, "d")};
        ASSERT_NE(raw(d), 0u);
        for (int i = 0; i < 30; ++i) ASSERT_EQ(make_file(d, "x" + std::to_string(i)).error, 0) << i;
        EXPECT_EQ(listed(d).size(), 31u);
        for (const auto& each : listed(d)) ASSERT_EQ(unlink(d, each), 0);
        fsck();
      });
}

TEST_F(ShardsTest, ARenameBetweenHomesMayBeLeftAnywhere) {
  at_every_step([&](InodeId top) { fill(top, 0, 30); },
                [&](Metadata& crashing, InodeId top) {
                  for (int i = 0; i < 4; ++i) wait(crashing.rename(top, name(i), top, "to" + std::to_string(i), 0));
                },
                [&](InodeId top) {
                  for (int i = 0; i < 4; ++i)
                    EXPECT_NE(at(top, name(i)) == 0, at(top, "to" + std::to_string(i)) == 0) << i;
                  EXPECT_EQ(listed(top).size(), 30u);
                  for (const auto& each : listed(top)) ASSERT_EQ(unlink(top, each), 0);
                });
}

}  // namespace
}  // namespace fusionfs

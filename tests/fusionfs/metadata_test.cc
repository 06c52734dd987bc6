#include "fusionfs/core/metadata.h"

#include <atomic>
#include <thread>

#include "tests/fusionfs/metadata_fixture.h"

namespace fusionfs {
namespace {

TEST_F(MetadataTest, RootIsThereAndEmpty) {
  const Reply root = wait(metadata_->getattr(kRootInode));
  ASSERT_EQ(root.error, 0);
  EXPECT_TRUE(is_directory(root.inode->mode));
  EXPECT_EQ(root.inode->links, 2u);
  EXPECT_EQ(list(kRootInode), "");
  EXPECT_EQ(find(kRootInode, "a").error, ENOENT);
}

TEST_F(MetadataTest, CreateMakesNameInodeAndListing) {
  const Reply made = make_file(kRootInode, "a");
  ASSERT_EQ(made.error, 0);
  EXPECT_EQ(made.inode->mode, S_IFREG | 0644u);
  EXPECT_EQ(at(kRootInode, "a"), raw(made.inode->id));
  EXPECT_EQ(make_file(kRootInode, "a").error, EEXIST);
  EXPECT_EQ(list(kRootInode), "a ");
  EXPECT_NE(file(kRootInode, "b"), made.inode->id);
}

TEST_F(MetadataTest, ChangesInOneDirectoryCostOneRequestEach) {
  DyingClient counting(*client_, 100);
  Metadata metadata(counting, store_->clock(), {});
  CreateRequest request;
  request.name = "a";
  request.mode = S_IFREG | 0644;
  EXPECT_EQ(wait(metadata.create(kRootInode, request)).error, 0);
  EXPECT_EQ(counting.left(), 99);
  EXPECT_EQ(wait(metadata.rename(kRootInode, "a", kRootInode, "b", 0)).error, 0);
  EXPECT_EQ(counting.left(), 98);
  EXPECT_EQ(wait(metadata.unlink(kRootInode, "b")).error, 0);
  EXPECT_EQ(counting.left(), 97);
}

TEST_F(MetadataTest, DirectoryTimesAndLinksFollowItsContents) {
  const InodeId d = dir(kRootInode, "d");
  const auto before = wait(metadata_->getattr(d)).inode->mtime;
  later(1);
  file(d, "f");
  EXPECT_GT(wait(metadata_->getattr(d)).inode->mtime, before);
  EXPECT_EQ(links(kRootInode), 3u);
  dir(kRootInode, "e");
  EXPECT_EQ(links(kRootInode), 4u);
  EXPECT_EQ(rmdir(kRootInode, "e"), 0);
  EXPECT_EQ(links(kRootInode), 3u);
  EXPECT_EQ(links(d), 2u);
}

TEST_F(MetadataTest, SetgidDirectoryHandsDownItsGroup) {
  const InodeId d = dir(kRootInode, "d");
  SetRequest set;
  set.inode = d;
  set.fields_set = SetRequest::kMode | SetRequest::kGid;
  set.mode = 02755;
  set.gid = 42;
  EXPECT_EQ(wait(metadata_->setattr(set)).error, 0);
  EXPECT_EQ(make_file(d, "f").inode->gid, 42u);
  const Reply child = make_dir(d, "c");
  EXPECT_EQ(child.inode->gid, 42u);
  EXPECT_EQ(child.inode->mode & 07777, 02755u);
  EXPECT_EQ(wait(metadata_->getattr(child.inode->id)).inode->gid, 42u);
}

TEST_F(MetadataTest, UnlinkRemovesTheLastNameAndTheInode) {
  const InodeId a = file(kRootInode, "a");
  EXPECT_EQ(link(a, kRootInode, "b"), 0);
  EXPECT_EQ(links(a), 2u);
  EXPECT_EQ(unlink(kRootInode, "a"), 0);
  EXPECT_EQ(links(a), 1u);
  EXPECT_TRUE(gone_.empty());
  EXPECT_EQ(unlink(kRootInode, "b"), 0);
  EXPECT_EQ(gone_, std::vector{a});
  EXPECT_EQ(wait(metadata_->getattr(a)).error, ENOENT);
  EXPECT_EQ(unlink(kRootInode, "b"), ENOENT);
}

TEST_F(MetadataTest, AnOpenFileOutlivesItsLastName) {
  const InodeId a = file(kRootInode, "a");
  held_ = {a};
  EXPECT_EQ(unlink(kRootInode, "a"), 0);
  EXPECT_EQ(orphaned_, std::vector{a});
  EXPECT_EQ(wait(metadata_->getattr(a)).inode->links, 0u);
  EXPECT_EQ(wait(metadata_->reap(a)).error, 0);
  EXPECT_EQ(wait(metadata_->getattr(a)).error, ENOENT);
  EXPECT_EQ(gone_, std::vector{a});
}

TEST_F(MetadataTest, OnlyAnEmptyDirectoryIsRemoved) {
  const InodeId d = dir(kRootInode, "d");
  file(d, "f");
  EXPECT_EQ(rmdir(kRootInode, "d"), ENOTEMPTY);
  EXPECT_EQ(unlink(kRootInode, "d"), EISDIR);
  EXPECT_EQ(rmdir(d, "f"), ENOTDIR);
  EXPECT_EQ(unlink(d, "f"), 0);
  EXPECT_EQ(rmdir(kRootInode, "d"), 0);
  EXPECT_EQ(make_file(d, "g").error, ENOENT);
  EXPECT_EQ(keys("l").size(), 1u);
}

TEST_F(MetadataTest, RenameWithinADirectory) {
  const InodeId a = file(kRootInode, "a"), b = file(kRootInode, "b");
  EXPECT_EQ(rename(kRootInode, "a", kRootInode, "b", kNoReplace), EEXIST);
  EXPECT_EQ(rename(kRootInode, "a", kRootInode, "b"), 0);
  EXPECT_EQ(at(kRootInode, "b"), raw(a));
  EXPECT_EQ(at(kRootInode, "a"), 0u);
  EXPECT_EQ(gone_, std::vector{b});
  const InodeId c = file(kRootInode, "c");
  EXPECT_EQ(rename(kRootInode, "b", kRootInode, "c", kExchange), 0);
  EXPECT_EQ(at(kRootInode, "b"), raw(c));
  EXPECT_EQ(at(kRootInode, "c"), raw(a));
  EXPECT_EQ(rename(kRootInode, "none", kRootInode, "c"), ENOENT);
  const InodeId d = dir(kRootInode, "d"), e = dir(kRootInode, "e");
  EXPECT_EQ(rename(kRootInode, "c", kRootInode, "d"), EISDIR);
  EXPECT_EQ(rename(kRootInode, "d", kRootInode, "c"), ENOTDIR);
  file(e, "x");
  EXPECT_EQ(rename(kRootInode, "d", kRootInode, "e"), ENOTEMPTY);
  EXPECT_EQ(rename(kRootInode, "e", kRootInode, "d"), 0);
  EXPECT_EQ(at(kRootInode, "d"), raw(e));
  EXPECT_EQ(wait(metadata_->getattr(d)).error, ENOENT);
}

TEST_F(MetadataTest, RenameAcrossDirectories) {
  const InodeId d = dir(kRootInode, "d"), a = file(kRootInode, "a"), b = file(d, "b");
  EXPECT_EQ(rename(kRootInode, "a", d, "b", kNoReplace), EEXIST);
  EXPECT_EQ(rename(kRootInode, "a", d, "b"), 0);
  EXPECT_EQ(at(d, "b"), raw(a));
  EXPECT_EQ(at(kRootInode, "a"), 0u);
  EXPECT_EQ(gone_, std::vector{b});
  // The inode stays in the home it was made in; taking its name off elsewhere leaves no debt behind.
  EXPECT_EQ(unlink(d, "b"), 0);
  EXPECT_EQ(gone_, (std::vector{b, a}));
  EXPECT_TRUE(keys("u/").empty());
  EXPECT_TRUE(keys("m/").empty());
}

TEST_F(MetadataTest, ADirectoryKnowsItsNewParent) {
  const InodeId d = dir(kRootInode, "d"), e = dir(kRootInode, "e"), f = dir(e, "f");
  EXPECT_EQ(rename(kRootInode, "e", d, "e"), 0);
  EXPECT_EQ(wait(metadata_->getattr(e)).inode->parent, d);
  EXPECT_EQ(links(kRootInode), 3u);
  EXPECT_EQ(links(d), 3u);
  EXPECT_EQ(rename(kRootInode, "d", f, "d"), EINVAL);  // below itself
  EXPECT_EQ(rename(d, "e", kRootInode, "e"), 0);
  EXPECT_EQ(rename(kRootInode, "d", f, "d"), 0);
}

TEST_F(MetadataTest, ExchangeAcrossDirectories) {
  const InodeId d = dir(kRootInode, "d"), e = dir(kRootInode, "e"), x = dir(d, "x"), y = file(e, "y");
  EXPECT_EQ(rename(d, "x", e, "y", kExchange), 0);
  EXPECT_EQ(at(d, "x"), raw(y));
  EXPECT_EQ(at(e, "y"), raw(x));
  EXPECT_EQ(wait(metadata_->getattr(x)).inode->parent, e);
  EXPECT_EQ(links(d), 2u);
  EXPECT_EQ(links(e), 3u);
}

TEST_F(MetadataTest, HardLinksAcrossDirectories) {
  const InodeId d = dir(kRootInode, "d"), a = file(kRootInode, "a");
  EXPECT_EQ(link(a, d, "b"), 0);
  EXPECT_EQ(links(a), 2u);
  EXPECT_EQ(link(a, d, "b"), EEXIST);
  EXPECT_EQ(links(a), 2u);
  EXPECT_EQ(rename(kRootInode, "a", d, "b"), 0);  // two names of one file
  EXPECT_EQ(at(kRootInode, "a"), raw(a));
  EXPECT_EQ(unlink(d, "b"), 0);
  EXPECT_EQ(links(a), 1u);
  EXPECT_TRUE(keys("p/").empty());
}

TEST_F(MetadataTest, ListingIsCompactedAndCursorsStay) {
  std::vector<InodeId> ids;
  for (int i = 0; i < 300; ++i) ids.push_back(file(kRootInode, "f" + std::to_string(i)));
  const Listing all = wait(metadata_->list(kRootInode, {})).listing;
  EXPECT_EQ(all.names.size(), 300u);
  for (int i = 0; i < 290; ++i) EXPECT_EQ(unlink(kRootInode, "f" + std::to_string(i)), 0);
  const Listing few = wait(metadata_->list(kRootInode, all)).listing;  // from what was known
  const Listing fresh = wait(metadata_->list(kRootInode, {})).listing;
  EXPECT_EQ(few.names.size(), 10u);
  EXPECT_EQ(fresh.names.size(), 10u);
  EXPECT_GT(fresh.generation, 0u);
  EXPECT_LT(fresh.offset, 15'000u);
  for (const auto& [sequence, name] : fresh.names) {
    ASSERT_EQ(all.names.count(sequence), 1u);
    EXPECT_EQ(all.names.at(sequence).name, name.name);
  }
  file(kRootInode, "new");
  EXPECT_EQ(wait(metadata_->list(kRootInode, few)).listing.names.size(), 11u);
  for (int i = 290; i < 300; ++i) EXPECT_EQ(unlink(kRootInode, "f" + std::to_string(i)), 0);
  EXPECT_EQ(list(kRootInode), "new ");
}

TEST_F(MetadataTest, ExtendedAttributes) {
  AttributeRequest set;
  set.inode = file(kRootInode, "a");
  set.name = "user.b";
  set.value = "1";
  EXPECT_EQ(wait(metadata_->set_attribute(set, true)).error, ENODATA);
  set.flags = 2;
  EXPECT_EQ(wait(metadata_->set_attribute(set, false)).error, ENODATA);
  set.flags = 1;
  EXPECT_EQ(wait(metadata_->set_attribute(set, false)).error, 0);
  EXPECT_EQ(wait(metadata_->set_attribute(set, false)).error, EEXIST);
  set.flags = 0;
  set.name = "user.a";
  EXPECT_EQ(wait(metadata_->set_attribute(set, false)).error, 0);
  const auto attributes = wait(metadata_->get_attributes(set.inode)).attributes;
  ASSERT_EQ(attributes.size(), 2u);
  EXPECT_EQ(attributes[0].first, "user.a");
  EXPECT_EQ(wait(metadata_->set_attribute(set, true)).error, 0);
  set.name = "user.b";
  EXPECT_FALSE(wait(metadata_->set_attribute(set, true)).inode->has(Inode::kHasAttributes));
  EXPECT_EQ(unlink(kRootInode, "a"), 0);
  EXPECT_TRUE(keys("x/").empty());
}

TEST_F(MetadataTest, EverythingSurvivesAStoreThatWasKilled) {
  const InodeId d = dir(kRootInode, "d"), a = file(d, "a");
  store_->restart(true);
  EXPECT_EQ(at(d, "a"), raw(a));
  EXPECT_EQ(list(kRootInode), "d ");
}

TEST_F(CrashTest, RenameAcrossDirectories) {
  at_every_step(
      [&](InodeId top) {
        file(dir(top, "s"), "a");
        file(dir(top, "t"), "b");
      },
      [&](Metadata& crashing, InodeId top) {
        const InodeId s{at(top, "s")}, t{at(top, "t")};
        wait(crashing.rename(s, "a", t, "b", 0));
      },
      [&](InodeId top) {
        const InodeId s{at(top, "s")}, t{at(top, "t")};
        const auto a = at(s, "a"), b = at(t, "b");
        EXPECT_NE(b, 0u);
        EXPECT_NE(a, b);
        EXPECT_EQ(list(s), a != 0 ? "a " : "");
        EXPECT_EQ(list(t), "b ");
        // Both directories work as ever.
        if (a != 0) {
          EXPECT_EQ(unlink(s, "a"), 0);
        }
        EXPECT_EQ(rename(t, "b", s, "a"), 0);
        EXPECT_EQ(rmdir(top, "t"), 0);
      });
}

// A node whose clock is an hour off, either way.
class SkewedClock final : public base::Clock {
 public:
  SkewedClock(const base::Clock& right, std::chrono::hours off) : right_(right), off_(off) {}
  base::Time now() const override { return right_.now() + off_; }
  base::WallTime wall() const override { return right_.wall() + off_; }

 private:
  const base::Clock& right_;
  const std::chrono::hours off_;
};

TEST_F(CrashTest, WhatANodeWithAnotherClockHasLeftIsGivenUpAsSoonAsWatched) {
  std::atomic<bool> ended{false};
  std::thread time([&] {  // goes on by itself: who waits for another's change does so for a while
    while (!ended) {
      store_->advance(std::chrono::milliseconds(200));
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  for (const int hours : {-1, 1}) {
    for (int requests = 0, done = 0; done == 0; ++requests) {
      ASSERT_LT(requests, 50);
      const std::string tag = std::to_string(hours) + "." + std::to_string(requests);
      SCOPED_TRACE("hours and requests: " + tag);
      const InodeId from = dir(kRootInode, "from" + tag), to = dir(kRootInode, "to" + tag);
      const InodeId moved = dir(from, "d"), removed = dir(from, "r");
      DyingClient dying(*client_, requests);
      const SkewedClock clock(store_->clock(), std::chrono::hours(hours));
      {
        Metadata crashing(dying, clock, {});
        wait(crashing.rename(from, "d", to, "d", 0));
        wait(crashing.remove_directory(from, "r"));
      }
      done = dying.died() ? 0 : 1;
      for (int look = 0; look < 3; ++look) {
        for (const InodeId each : {from, to}) {
          for (const char* name : {"d", "r"}) wait(metadata_->lookup(each, name));
        }
        later(4);
      }
      later(31);  // the tree's rename lock ends by itself
      EXPECT_EQ(at(from, "d") + at(to, "d"), raw(moved)) << "in one place";
      // Nothing is in anybody's way any more.
      EXPECT_EQ(rename(at(from, "d") != 0 ? from : to, "d", kRootInode, "back" + tag), 0);
      const int gone = rmdir(from, "r");
      EXPECT_TRUE(gone == 0 || gone == ENOENT) << gone;
      EXPECT_EQ(at(from, "r"), 0u) << raw(removed);
      later(60);
      fsck();
    }
  }
  ended = true;
  time.join();
}

TEST_F(CrashTest, RenameOfADirectoryOverAnother) {
  at_every_step(
      [&](InodeId top) {
        dir(dir(top, "s"), "a");
        dir(dir(top, "t"), "b");
      },
      [&](Metadata& crashing, InodeId top) {
        const InodeId s{at(top, "s")}, t{at(top, "t")};
        wait(crashing.rename(s, "a", t, "b", 0));
      },
      [&](InodeId top) {
        later(40);  // the rename lock
        const InodeId s{at(top, "s")}, t{at(top, "t")};
        const auto a = at(s, "a"), b = at(t, "b");
        EXPECT_NE(b, 0u);
        EXPECT_NE(a, b);
        if (a == 0) {
          EXPECT_EQ(wait(metadata_->getattr(InodeId{b})).inode->parent, t);
        }
        EXPECT_EQ(make_file(InodeId{b}, "x").error, 0);  // alive
        EXPECT_EQ(unlink(InodeId{b}, "x"), 0);
        EXPECT_EQ(rename(t, "b", s, "c"), 0);
        EXPECT_EQ(rmdir(s, "c"), 0);
      });
}

TEST_F(CrashTest, RemoveDirectory) {
  at_every_step([&](InodeId top) { dir(top, "d"); },
                [&](Metadata& crashing, InodeId top) { wait(crashing.remove_directory(top, "d")); },
                [&](InodeId top) {
                  const auto d = at(top, "d");
                  if (d != 0) {
                    EXPECT_EQ(make_file(InodeId{d}, "x").error, 0);
                    EXPECT_EQ(unlink(InodeId{d}, "x"), 0);
                    EXPECT_EQ(rmdir(top, "d"), 0);
                  }
                  EXPECT_EQ(make_dir(top, "d").error, 0);
                  EXPECT_EQ(rmdir(top, "d"), 0);
                });
}

TEST_F(CrashTest, MakeDirectory) {
  at_every_step([](InodeId) {},
                [&](Metadata& crashing, InodeId top) {
                  CreateRequest request;
                  request.name = "d";
                  request.mode = S_IFDIR | 0755;
                  wait(crashing.make_directory(top, request, Inode{}));
                },
                [&](InodeId top) {
                  const auto d = at(top, "d");
                  if (d == 0) {
                    EXPECT_EQ(make_dir(top, "d").error, 0);
                  }
                  EXPECT_EQ(make_file(InodeId{at(top, "d")}, "x").error, 0);
                  EXPECT_EQ(unlink(InodeId{at(top, "d")}, "x"), 0);
                  EXPECT_EQ(rmdir(top, "d"), 0);
                });
}

TEST_F(CrashTest, ExchangeAcrossDirectories) {
  at_every_step(
      [&](InodeId top) {
        dir(dir(top, "s"), "a");
        file(dir(top, "t"), "b");
      },
      [&](Metadata& crashing, InodeId top) {
        const InodeId s{at(top, "s")}, t{at(top, "t")};
        wait(crashing.rename(s, "a", t, "b", kExchange));
      },
      [&](InodeId top) {
        later(40);
        const InodeId s{at(top, "s")}, t{at(top, "t")};
        const Reply a = find(s, "a"), b = find(t, "b");
        ASSERT_EQ(a.error, 0);
        ASSERT_EQ(b.error, 0);
        EXPECT_NE(is_directory(a.inode->mode), is_directory(b.inode->mode));
        EXPECT_EQ(links(s) + links(t), 5u);
      });
}

TEST_F(CrashTest, LinkIntoAnotherDirectory) {
  at_every_step(
      [&](InodeId top) {
        file(dir(top, "s"), "a");
        dir(top, "t");
      },
      [&](Metadata& crashing, InodeId top) {
        const InodeId s{at(top, "s")}, t{at(top, "t")};
        wait(crashing.link(InodeId{at(s, "a")}, S_IFREG, t, "b"));
      },
      [&](InodeId top) {
        fsck();
        const InodeId s{at(top, "s")}, t{at(top, "t")};
        const InodeId a{at(s, "a")};
        EXPECT_EQ(links(a), at(t, "b") != 0 ? 2u : 1u);
      });
}

// The name came, its maker died, and somebody took the name away before the promise was settled: the link went once.
TEST_F(CrashTest, APromisedLinkWhoseNameIsGoneAgainIsNotTakenOffTwice) {
  at_every_step(
      [&](InodeId top) {
        file(dir(top, "s"), "a");
        dir(top, "t");
      },
      [&](Metadata& crashing, InodeId top) {
        const InodeId s{at(top, "s")}, t{at(top, "t")};
        wait(crashing.link(InodeId{at(s, "a")}, S_IFREG, t, "b"));
      },
      [&](InodeId top) {
        const InodeId t{at(top, "t")};
        if (at(t, "b") != 0) {
          EXPECT_EQ(unlink(t, "b"), 0);
        }
        fsck();
        EXPECT_EQ(links(InodeId{at(InodeId{at(top, "s")}, "a")}), 1u);
        EXPECT_TRUE(keys("p/").empty());
      });
}

// Whoever takes the maker of a link for dead, and is wrong, does not take its link.
TEST_F(MetadataTest, ALinkThatArrivesAfterItsPromiseWasSettledIsMadeAnew) {
  const InodeId a = file(kRootInode, "a"), d = dir(kRootInode, "d");
  class Meddler final : public zht::Client {
   public:
    Meddler(zht::Client& inner, Metadata& metadata, std::string key) : inner_(inner), metadata_(metadata), key_(std::move(key)) {}
    void submit(zht::Operation operation, zht::Completion completion, zht::Millis timeout) override {
      inner_.submit(std::move(operation), std::move(completion), timeout);
      if (!std::exchange(settled_, true)) {
        EXPECT_EQ(wait(metadata_.settle_record(promise())), 0);
      }
    }
    std::uint32_t partition_count() const override { return inner_.partition_count(); }

   private:
    std::string promise() {
      for (std::uint32_t partition = 0; partition < inner_.partition_count(); ++partition) {
        for (const auto& each : inner_.call(zht::Operation::scan(zht::PartitionId{partition}, 0, "{d:", 10'000)).entries) {
          if (each.key.find(key_) != std::string::npos) return each.key;
        }
      }
      return {};
    }
    zht::Client& inner_;
    Metadata& metadata_;
    const std::string key_;
    bool settled_ = false;
  } meddler(*client_, *metadata_, "}p/");
  Metadata slow(meddler, store_->clock(), {});
  EXPECT_EQ(wait(slow.link(a, S_IFREG, d, "b")).error, 0);
  EXPECT_EQ(at(d, "b"), raw(a));
  EXPECT_EQ(links(a), 2u);
  fsck();
}

// Who has read a directory's name, and asks for the directory when both have been removed, does not make it anew.
TEST_F(MetadataTest, ADirectoryRemovedWhileSomebodyLooksItUpStaysAway) {
  const InodeId d = dir(kRootInode, "d");
  class Remover final : public zht::Client {
   public:
    Remover(zht::Client& inner, std::function<void()> remove) : inner_(inner), remove_(std::move(remove)) {}
    void submit(zht::Operation operation, zht::Completion completion, zht::Millis timeout) override {
      inner_.submit(std::move(operation), std::move(completion), timeout);
      if (const auto remove = std::exchange(remove_, nullptr)) remove();
    }
    std::uint32_t partition_count() const override { return inner_.partition_count(); }

   private:
    zht::Client& inner_;
    std::function<void()> remove_;
  } remover(*client_, [this] { EXPECT_EQ(rmdir(kRootInode, "d"), 0); });
  Metadata looking(remover, store_->clock(), {});
  EXPECT_EQ(wait(looking.lookup(kRootInode, "d")).error, ENOENT);
  EXPECT_FALSE(client_->call(zht::Operation::lookup(inode_key(d))).ok());
  Check check(*client_, *metadata_);
  Census census;
  EXPECT_TRUE(check.read(census)->empty());
}

TEST_F(CrashTest, UnlinkOfAFileFromElsewhere) {
  at_every_step(
      [&](InodeId top) {
        const InodeId s = dir(top, "s");
        file(s, "a");
        EXPECT_EQ(rename(s, "a", dir(top, "t"), "a"), 0);
      },
      [&](Metadata& crashing, InodeId top) { wait(crashing.unlink(InodeId{at(top, "t")}, "a")); },
      [&](InodeId top) {
        const InodeId t{at(top, "t")};
        if (at(t, "a") != 0) {
          EXPECT_EQ(unlink(t, "a"), 0);
        }
        fsck();
        EXPECT_TRUE(keys("u/").empty());
      });
}

TEST_F(MetadataTest, CheckFindsWhatDisagrees) {
  const InodeId a = file(kRootInode, "a"), d = dir(kRootInode, "d");
  file(d, "b");
  Check check(*client_, *metadata_);
  Census census;
  EXPECT_TRUE(check.read(census)->empty());
  EXPECT_EQ(census.files, 2u);
  EXPECT_EQ(census.directories, 2u);
  EXPECT_TRUE(client_->remove(inode_key(a)));
  EXPECT_TRUE(client_->remove(entry_key(home_of(d), "b")));
  EXPECT_TRUE(client_->insert(inode_key(make_inode(home_of(d), 99)), "rubbish"));
  std::set<Finding::Kind> kinds;
  const auto found = check.read(census);
  for (const Finding& each : *found) kinds.insert(each.kind);
  EXPECT_EQ(kinds, (std::set{Finding::Kind::damaged, Finding::Kind::dangling, Finding::Kind::nameless,
                             Finding::Kind::listing}));
}

}  // namespace
}  // namespace fusionfs

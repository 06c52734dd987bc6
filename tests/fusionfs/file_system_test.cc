// Two mounts of one store, driven without a kernel: what each answers is compared with a model after every operation.
#include "fusionfs/fuse/file_system.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/falloc.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "fusionfs/core/procedures.h"
#include "fusionfs/fuse/wait.h"
#include "novoht/base/random.h"
#include "tests/support/local_client.h"

namespace fusionfs {
namespace {

class FileSystemTest : public testing::Test {
 protected:
  FileSystemTest() {
    add_procedures(procedures_);
    zht::add_general_procedures(procedures_);
    store_ = std::make_unique<testing_support::LocalStore>(procedures_);
    std::string folder = (std::filesystem::temp_directory_path() / "fusionfs_test.XXXXXX").string();
    EXPECT_NE(::mkdtemp(folder.data()), nullptr);
    folder_ = folder;
    chunks_ = *ChunkStore::open(folder_ + "/chunks");
    a_ = mount();
    b_ = mount();
  }
  ~FileSystemTest() override {
    EXPECT_EQ(a_.files->stop(), 0);
    EXPECT_EQ(b_.files->stop(), 0);
    a_.files.reset();
    b_.files.reset();
    std::filesystem::remove_all(folder_);
  }

  struct Mount {
    std::unique_ptr<zht::Client> client;
    std::unique_ptr<FileSystem> files;
  };
  Mount mount(bool leases = false, std::uint64_t previous_session = 0) {
    Mount made;
    made.client = store_->client();
    FileSystemOptions options;
    options.attribute_timeout = std::chrono::milliseconds(0);  // two mounts, one model
    options.split_at = 6;                                      // the random ones grow past it
    options.previous_session = previous_session;
    options.leases = leases;                                   // they take turns more often than leases end
    options.warn = [](const std::string& text) { ADD_FAILURE() << text; };
    options.fill_cache = [this](InodeId id, base::Bytes bytes) { filled_[raw(id)] = bytes; };
    made.files = std::make_unique<FileSystem>(*made.client, store_->clock(), *chunks_, options);
    EXPECT_EQ(wait(made.files->start(0755, 0, 0)), 0);
    return made;
  }
  static InodeId create(FileSystem& files, InodeId directory, const std::string& name) {
    const Opened opened = wait(files.create(directory, name, 0644, 0, 0, O_CREAT | O_RDWR));
    EXPECT_EQ(opened.error, 0);
    return opened.inode.id;
  }
  static std::string read_all(FileSystem& files, InodeId id) {
    std::string bytes(std::size_t{1} << 20, 'x');
    std::size_t got = 0;
    EXPECT_EQ(files.read(id, 0, bytes.data(), bytes.size(), got), 0);
    bytes.resize(got);
    return bytes;
  }
  // What another mount sees that opens the file now.
  static std::string fetch(FileSystem& files, InodeId directory, const std::string& name) {
    const Looked looked = wait(files.lookup(directory, name));
    if (looked.error != 0) return "error " + std::to_string(looked.error);
    EXPECT_EQ(wait(files.open(looked.inode.id, O_RDONLY)).error, 0);
    std::string bytes = read_all(files, looked.inode.id);
    EXPECT_EQ(wait(files.release(looked.inode.id)), 0);
    files.forget(looked.inode.id, 1);
    return bytes;
  }
  static std::vector<std::string> names(FileSystem& files, InodeId directory, bool plus) {
    auto open = std::make_shared<OpenDirectory>();
    open->id = directory;
    std::vector<std::string> found;
    std::uint64_t cursor = 0;
    for (;;) {
      const DirectoryPage page = wait(files.read_directory(open, cursor, 7, plus));
      EXPECT_EQ(page.error, 0);
      if (page.entries.empty()) return found;
      for (const auto& entry : page.entries) {
        if (entry.name != "." && entry.name != "..") found.push_back(entry.name);
        cursor = entry.next;
      }
    }
  }

  zht::Procedures procedures_;
  std::unique_ptr<testing_support::LocalStore> store_;
  std::string folder_;
  std::unique_ptr<ChunkStore> chunks_;
  std::map<std::uint64_t, std::string> filled_;  // the kernel's page cache, by inode
  Mount a_, b_;
};

TEST_F(FileSystemTest, WhatWasClosedIsReadElsewhere) {
  const InodeId id = create(*a_.files, kRootInode, "f");
  EXPECT_EQ(a_.files->write(id, 0, "hello"), 0);
  EXPECT_EQ(wait(a_.files->flush(id)), 0);
  EXPECT_EQ(fetch(*b_.files, kRootInode, "f"), "hello");
  const std::string big(10'000, 'y');
  EXPECT_EQ(a_.files->write(id, 3, big), 0);
  EXPECT_EQ(wait(a_.files->release(id)), 0);
  EXPECT_EQ(fetch(*b_.files, kRootInode, "f"), "hel" + big);
}

TEST_F(FileSystemTest, WritersInBothMountsKeepBothTheirBytes) {
  const InodeId id = create(*a_.files, kRootInode, "f");
  const Looked looked = wait(b_.files->lookup(kRootInode, "f"));
  EXPECT_EQ(wait(b_.files->open(id, O_RDWR)).error, 0);
  EXPECT_EQ(a_.files->write(id, 0, "aaaa"), 0);
  EXPECT_EQ(b_.files->write(id, 4, "bbbb"), 0);
  EXPECT_EQ(wait(a_.files->flush(id)), 0);
  EXPECT_EQ(wait(b_.files->flush(id)), 0);
  EXPECT_EQ(fetch(*a_.files, kRootInode, "f"), "aaaabbbb");
  EXPECT_EQ(a_.files->write(id, 8, std::string(8000, 'A')), 0);  // to chunks
  EXPECT_EQ(b_.files->write(id, 0, "BB"), 0);                    // still inline here
  EXPECT_EQ(wait(a_.files->flush(id)), 0);
  EXPECT_EQ(wait(b_.files->flush(id)), 0);
  EXPECT_EQ(fetch(*a_.files, kRootInode, "f").substr(0, 12), "BBaabbbbAAAA");
  EXPECT_EQ(fetch(*b_.files, kRootInode, "f").size(), 8008u);
  EXPECT_EQ(wait(a_.files->release(id)), 0);
  EXPECT_EQ(wait(b_.files->release(id)), 0);
  b_.files->forget(looked.inode.id, 1);
}

// Written here, small and not yet committed, while the other mount makes it large: looking at it in between loses nothing.
TEST_F(FileSystemTest, WhatIsNotCommittedOutlivesAnotherMountsMoveToChunks) {
  const InodeId id = create(*a_.files, kRootInode, "f");
  EXPECT_EQ(a_.files->write(id, 0, "aaaa"), 0);
  EXPECT_EQ(wait(a_.files->flush(id)), 0);
  const Looked looked = wait(b_.files->lookup(kRootInode, "f"));
  EXPECT_EQ(wait(b_.files->open(id, O_RDWR)).error, 0);
  EXPECT_EQ(b_.files->write(id, 1, "BB"), 0);
  EXPECT_EQ(a_.files->write(id, 4, std::string(8000, 'A')), 0);
  EXPECT_EQ(wait(a_.files->flush(id)), 0);
  wait(b_.files->lookup(kRootInode, "f"));
  EXPECT_EQ(wait(b_.files->flush(id)), 0);
  EXPECT_EQ(fetch(*a_.files, kRootInode, "f"), "aBBa" + std::string(8000, 'A'));
  EXPECT_EQ(fetch(*b_.files, kRootInode, "f"), "aBBa" + std::string(8000, 'A'));
  EXPECT_EQ(wait(a_.files->release(id)), 0);
  EXPECT_EQ(wait(b_.files->release(id)), 0);
  b_.files->forget(looked.inode.id, 2);
}

TEST_F(FileSystemTest, AnUnlinkedFileIsReadUntilItIsClosed) {
  const InodeId id = create(*a_.files, kRootInode, "f");
  EXPECT_EQ(a_.files->write(id, 0, std::string(100'000, 'z')), 0);
  EXPECT_EQ(wait(a_.files->flush(id)), 0);
  EXPECT_EQ(wait(a_.files->unlink(kRootInode, "f")), 0);
  EXPECT_EQ(wait(a_.files->getattr(id)).inode.links, 0u);
  EXPECT_EQ(a_.files->write(id, 100'000, "more"), 0);
  EXPECT_EQ(read_all(*a_.files, id).size(), 100'004u);
  EXPECT_EQ(chunks_->list()->size(), 1u);
  EXPECT_EQ(wait(a_.files->release(id)), 0);
  for (int i = 0; i < 1000 && !chunks_->list()->empty(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_TRUE(chunks_->list()->empty());
}

TEST_F(FileSystemTest, ADeadMountsOrphansAreBuried) {
  Mount dead = mount();
  const InodeId id = create(*dead.files, kRootInode, "f");
  EXPECT_EQ(dead.files->write(id, 0, std::string(100'000, 'z')), 0);
  EXPECT_EQ(wait(dead.files->flush(id)), 0);
  EXPECT_EQ(wait(dead.files->unlink(kRootInode, "f")), 0);
  dead.files.reset();  // without stop()
  store_->advance(std::chrono::seconds(60));
  Mount next = mount();
  EXPECT_EQ(wait(next.files->getattr(id)).error, ENOENT);
  EXPECT_EQ(next.files->stop(), 0);
  EXPECT_TRUE(chunks_->list()->empty());
}

// A mount that was killed and is mounted again need not wait until its session has ended, and one that lives looks after the rest.
TEST_F(FileSystemTest, WhatADeadMountLeftIsMetByThoseThatLive) {
  const auto leave = [&](Mount& dying, const std::string& name) {
    const InodeId id = create(*dying.files, kRootInode, name);
    EXPECT_EQ(wait(dying.files->flush(id)), 0);
    EXPECT_EQ(wait(dying.files->unlink(kRootInode, name)), 0);
    return id;
  };
  Mount dead = mount();
  const InodeId mine = leave(dead, "f");
  const std::uint64_t session = dead.files->session();
  dead.files.reset();  // without stop()
  Mount next = mount(false, session);
  EXPECT_EQ(wait(next.files->metadata().getattr(mine)).error, ENOENT);

  Mount other = mount();
  const InodeId theirs = leave(other, "g");
  // A promise of a link whose maker died, which nobody ever asks about.
  const InodeId file = create(*next.files, kRootInode, "h");
  LinkRequest promise;
  promise.inode = file;
  promise.name = "never";
  promise.id = 7;
  promise.to = kRootHome;
  const auto promised = other.client->call(zht::Operation::update(tag_of(kRootHome), "fusionfs.promise_link", pack(promise)));
  EXPECT_EQ(unpack<Reply>(promised.value)->inode->links, 2u);
  other.files.reset();
  store_->advance(std::chrono::seconds(60));  // all sessions end; those of a_, b_ and next are renewed
  const auto settled = [&] {
    store_->advance(std::chrono::seconds(8));  // to the next time that they look
    return wait(next.files->metadata().getattr(theirs)).error == ENOENT && wait(next.files->metadata().getattr(file)).inode->links == 1;
  };
  bool done = false;
  for (int i = 0; i < 3000 && !done; ++i) {
    done = settled();
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_TRUE(done);
  EXPECT_EQ(wait(next.files->release(file)), 0);
  EXPECT_EQ(next.files->stop(), 0);
}

TEST_F(FileSystemTest, BytesPastTheRecordedEndAreNeverShown) {
  {
    Mount dead = mount();
    const InodeId id = create(*dead.files, kRootInode, "f");
    EXPECT_EQ(dead.files->write(id, 0, std::string(5000, 'a')), 0);
    EXPECT_EQ(wait(dead.files->flush(id)), 0);
    EXPECT_EQ(dead.files->write(id, 5000, std::string(5000, 'b')), 0);  // never committed
  }
  const Looked looked = wait(a_.files->lookup(kRootInode, "f"));
  const InodeId id = looked.inode.id;
  EXPECT_EQ(wait(a_.files->open(id, O_RDWR)).error, 0);
  EXPECT_EQ(a_.files->write(id, 9'999, "c"), 0);
  const std::string bytes = read_all(*a_.files, id);
  EXPECT_EQ(bytes, std::string(5000, 'a') + std::string(4'999, '\0') + "c");
  EXPECT_EQ(wait(a_.files->release(id)), 0);
}

TEST_F(FileSystemTest, HolesAreFoundAndPunched) {
  const InodeId id = create(*a_.files, kRootInode, "f");
  const std::uint64_t far = 3 * kChunkSize + 8192;
  EXPECT_EQ(a_.files->write(id, far, std::string(4096, 'x')), 0);
  EXPECT_EQ(wait(a_.files->getattr(id)).inode.size, far + 4096);
  std::uint64_t found = 0;
  EXPECT_EQ(a_.files->seek(id, 0, true, found), 0);
  EXPECT_EQ(found, far);
  EXPECT_EQ(a_.files->seek(id, far, false, found), 0);
  EXPECT_EQ(found, far + 4096);
  EXPECT_EQ(a_.files->seek(id, far + 4096, true, found), ENXIO);
  EXPECT_EQ(wait(a_.files->allocate(id, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, far, 4096)), 0);
  EXPECT_EQ(a_.files->seek(id, 0, true, found), ENXIO);
  char byte = 'x';
  std::size_t got = 0;
  EXPECT_EQ(a_.files->read(id, far + 1, &byte, 1, got), 0);
  EXPECT_EQ(byte, '\0');
  EXPECT_EQ(wait(a_.files->release(id)), 0);
  EXPECT_EQ(wait(a_.files->unlink(kRootInode, "f")), 0);
}

TEST_F(FileSystemTest, UnderALeaseAbsentNamesAreNotAskedFor) {
  Mount mine = mount(true);
  CreateRequest request;
  request.name = "d";
  request.mode = S_IFDIR | 0755;
  const InodeId d = wait(mine.files->make(kRootInode, request)).inode.id;
  EXPECT_EQ(wait(mine.files->release(create(*mine.files, d, "a"))), 0);
  EXPECT_EQ(wait(mine.files->lookup(d, "b")).error, ENOENT);
  // The name is put there behind everybody's back: who asks the store would see it.
  Entry entry;
  entry.inode = wait(mine.files->lookup(d, "a")).inode.id;
  entry.type = S_IFREG;
  EXPECT_TRUE(mine.client->insert(entry_key(home_of(d), "b"), encode(entry)));
  EXPECT_EQ(wait(mine.files->lookup(d, "b")).error, ENOENT);
  EXPECT_EQ(wait(mine.files->lookup(d, "a")).error, 0);
  store_->advance(std::chrono::seconds(2));  // the lease has ended
  EXPECT_EQ(wait(mine.files->lookup(d, "b")).error, 0);
  EXPECT_TRUE(mine.client->remove(entry_key(home_of(d), "b")));
  EXPECT_EQ(mine.files->stop(), 0);
}

TEST_F(FileSystemTest, AnotherMountsChangeWaitsForTheLeaseAndIsSeen) {
  Mount mine = mount(true), other = mount(true);
  std::atomic<bool> done{false};
  std::thread clock([&] {  // time goes on by itself: waiting for a lease ends
    while (!done) {
      store_->advance(std::chrono::milliseconds(10));
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  // In turns, each finds what the other has just made, removed or renamed, whoever has the lease.
  for (int round = 0; round < 20; ++round) {
    FileSystem &one = round % 2 == 0 ? *mine.files : *other.files, &two = round % 2 == 0 ? *other.files : *mine.files;
    const std::string name = "f" + std::to_string(round);
    EXPECT_EQ(wait(one.lookup(kRootInode, name)).error, ENOENT);
    EXPECT_EQ(wait(two.lookup(kRootInode, name)).error, ENOENT);
    EXPECT_EQ(wait(one.release(create(one, kRootInode, name))), 0);
    EXPECT_EQ(wait(two.lookup(kRootInode, name)).error, 0);
    EXPECT_EQ(wait(two.rename(kRootInode, name, kRootInode, "g" + name, 0)), 0);
    EXPECT_EQ(wait(one.lookup(kRootInode, name)).error, ENOENT);
    EXPECT_EQ(wait(one.lookup(kRootInode, "g" + name)).error, 0);
  }
  EXPECT_EQ(mine.files->stop(), 0);
  EXPECT_EQ(other.files->stop(), 0);
  done = true;
  clock.join();
}

TEST_F(FileSystemTest, AWritePastTheCacheTakesSetIdBitsAndCapabilities) {
  FileSystem& files = *a_.files;
  const InodeId id = create(files, kRootInode, "f");
  const auto set_mode = [&](std::uint32_t mode) {
    SetRequest request;
    request.inode = id;
    request.fields_set = SetRequest::kMode;
    request.mode = mode;
    EXPECT_EQ(wait(files.setattr(request)).error, 0);
  };
  const auto mode_after = [&](bool privileged) {
    EXPECT_EQ(files.write(id, 0, "x"), 0);
    EXPECT_EQ(wait(files.wrote_past_cache(id, {privileged, [](std::uint32_t) { return true; }})), 0);
    return wait(files.getattr(id)).inode.mode & 07777;
  };
  set_mode(06755);
  EXPECT_EQ(mode_after(true), 06755u);
  EXPECT_EQ(mode_after(false), 0755u);
  set_mode(02745);  // without the group's execute bit it asks for mandatory locks and stays
  EXPECT_EQ(mode_after(false), 02745u);
  for (const char* name : {"security.capability", "user.note"})
    EXPECT_EQ(wait(files.set_attribute(id, name, "v", 0, std::nullopt)), 0);
  mode_after(true);
  EXPECT_EQ(wait(files.get_attribute(id, "security.capability")).error, ENODATA);
  EXPECT_EQ(wait(files.get_attribute(id, "user.note")).text, "v");
  EXPECT_EQ(wait(files.release(id)), 0);
}

TEST_F(FileSystemTest, ASmallFileWrittenPastTheCacheIsPutIntoItByTheLastClose) {
  FileSystem& files = *a_.files;
  const auto write_and_close = [&](const std::string& name, const std::string& bytes, bool read_meanwhile) {
    const InodeId id = create(files, kRootInode, name);
    if (read_meanwhile) {
      EXPECT_EQ(wait(files.open(id, O_RDONLY)).error, 0);
    }
    EXPECT_EQ(files.write(id, 0, bytes), 0);
    EXPECT_EQ(wait(files.wrote_past_cache(id, {})), 0);
    EXPECT_EQ(wait(files.flush(id)), 0);
    EXPECT_EQ(wait(files.release(id, FileSystem::kPastCache)), 0);
    const bool filled = filled_.count(raw(id)) != 0;
    if (filled) {
      EXPECT_EQ(filled_[raw(id)], bytes);
    }
    if (read_meanwhile) {
      EXPECT_EQ(wait(files.release(id)), 0);
    }
    const Opened again = wait(files.open(id, O_RDONLY));
    EXPECT_TRUE(again.keep_cache) << name;
    EXPECT_EQ(wait(files.release(id)), 0);
    return filled;
  };
  EXPECT_TRUE(write_and_close("small", std::string(4096, 's'), false));
  EXPECT_FALSE(write_and_close("read meanwhile", "r", true));
  EXPECT_FALSE(write_and_close("big", std::string(100'000, 'b'), false));
}

TEST_F(FileSystemTest, ReadOnlyMountsRefuseEveryChange) {
  FileSystemOptions options;
  options.read_only = true;
  const InodeId id = create(*a_.files, kRootInode, "f");
  auto client = store_->client();
  FileSystem files(*client, store_->clock(), *chunks_, options);
  ASSERT_EQ(wait(files.start(0755, 0, 0)), 0);
  EXPECT_EQ(wait(files.create(kRootInode, "g", 0644, 0, 0, O_CREAT)).error, EROFS);
  EXPECT_EQ(wait(files.unlink(kRootInode, "f")), EROFS);
  EXPECT_EQ(wait(files.open(id, O_RDWR)).error, EROFS);
  EXPECT_EQ(wait(files.open(id, O_RDONLY)).error, 0);
  EXPECT_EQ(wait(files.release(id)), 0);
  EXPECT_EQ(files.stop(), 0);
  EXPECT_EQ(wait(a_.files->release(id)), 0);
}

// One file, random reads, writes, truncations, holes and reopenings in two mounts that take turns, against a string.
class RandomData : public FileSystemTest, public testing::WithParamInterface<int> {};

TEST_P(RandomData, AgreesWithAString) {
  base::Random random(static_cast<std::uint64_t>(GetParam()));
  SCOPED_TRACE("replay: --gtest_filter=*RandomData*/" + std::to_string(GetParam()));
  std::string model;
  const InodeId id = create(*a_.files, kRootInode, "f");
  EXPECT_EQ(wait(a_.files->release(id)), 0);
  wait(b_.files->lookup(kRootInode, "f"));
  const std::uint64_t limit = GetParam() % 2 == 0 ? 6'000 : 300'000;
  for (int turn = 0; turn < 40; ++turn) {
    FileSystem& files = random.chance(0.5) ? *a_.files : *b_.files;
    const bool truncating = random.chance(0.05);
    ASSERT_EQ(wait(files.open(id, O_RDWR | (truncating ? O_TRUNC : 0))).error, 0);
    if (truncating) model.clear();
    for (int step = 0; step < 10; ++step) {
      const std::uint64_t offset = random.below(limit), size = 1 + random.below(random.chance(0.5) ? 200 : 9'000);
      switch (random.below(7)) {
        case 0:
        case 1:
        case 2: {
          std::string bytes(size, '\0');
          for (char& byte : bytes) byte = static_cast<char>('a' + random.below(26));
          ASSERT_EQ(files.write(id, offset, bytes), 0);
          if (model.size() < offset + size) model.resize(offset + size);
          model.replace(offset, size, bytes);
          break;
        }
        case 3: {
          SetRequest set;
          set.inode = id;
          set.fields_set = SetRequest::kSize;
          set.size = random.chance(0.2) ? 0 : offset;
          ASSERT_EQ(wait(files.setattr(set)).error, 0);
          model.resize(set.size);
          break;
        }
        case 4: {
          ASSERT_EQ(wait(files.allocate(id, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, size)), 0);
          for (std::uint64_t at = offset; at < std::min<std::uint64_t>(model.size(), offset + size); ++at)
            model[at] = '\0';
          break;
        }
        case 5: {
          ASSERT_EQ(wait(files.sync(id)), 0);
          break;
        }
        default: {
          std::string bytes(size, 'x');
          std::size_t got = 0;
          ASSERT_EQ(files.read(id, offset, bytes.data(), size, got), 0);
          bytes.resize(got);
          ASSERT_EQ(bytes, offset < model.size() ? model.substr(offset, size) : "") << "at " << offset;
        }
      }
      ASSERT_EQ(wait(files.getattr(id)).inode.size, model.size());
    }
    ASSERT_TRUE(read_all(files, id) == model) << "turn " << turn;
    ASSERT_EQ(wait(files.release(id)), 0);
  }
}
INSTANTIATE_TEST_SUITE_P(Seeds, RandomData, testing::Range(0, 12));

// Random changes of names in a few directories, by two mounts in turns, against a tree in memory.
class RandomNames : public FileSystemTest, public testing::WithParamInterface<int> {
 protected:
  struct Node {
    std::uint64_t id = 0;
    bool directory = false;
    std::map<std::string, std::shared_ptr<Node>> names;
    std::uint32_t links = 1;
    Node* parent = nullptr;
  };
  using Pointer = std::shared_ptr<Node>;

  static bool below(const Node* at, const Node* top) {
    for (; at != nullptr; at = at->parent) {
      if (at == top) return true;
    }
    return false;
  }
  // rename(2) on the model: 0 or the errno.
  static int rename(Node& from, const std::string& name, Node& to, const std::string& new_name, std::uint32_t flags) {
    const auto source = from.names.find(name);
    const auto target = to.names.find(new_name);
    if (source == from.names.end()) return ENOENT;
    const Pointer moved = source->second;
    const Pointer other = target == to.names.end() ? nullptr : target->second;
    if ((flags & kExchange) != 0) {
      if (!other) return ENOENT;
      if (moved->directory && below(&to, moved.get())) return EINVAL;
      if (other->directory && below(&from, other.get())) return EINVAL;
      from.names[name] = other;
      to.names[new_name] = moved;
      if (moved->directory) moved->parent = &to;
      if (other->directory) other->parent = &from;
      return 0;
    }
    if (moved->directory && below(&to, moved.get())) return EINVAL;
    if (other && (flags & kNoReplace) != 0) return EEXIST;
    if (other == moved) return 0;
    if (other && moved->directory && !other->directory) return ENOTDIR;
    if (other && !moved->directory && other->directory) return EISDIR;
    if (other && other->directory && !other->names.empty()) return ENOTEMPTY;
    if (other) other->links -= 1;
    from.names.erase(name);
    to.names[new_name] = moved;
    if (moved->directory) moved->parent = &to;
    return 0;
  }
  void compare(FileSystem& files, const Node& node) {
    std::vector<std::string> expected;
    std::uint32_t directories = 0;
    for (const auto& [name, child] : node.names) {
      expected.push_back(name);
      directories += child->directory ? 1 : 0;
      const Looked looked = wait(files.lookup(InodeId{node.id}, name));
      ASSERT_EQ(looked.error, 0) << name;
      ASSERT_EQ(raw(looked.inode.id), child->id) << name;
      ASSERT_EQ(is_directory(looked.inode.mode), child->directory);
      if (!child->directory) {
        ASSERT_EQ(looked.inode.links, child->links) << name;
      }
      files.forget(looked.inode.id, 1);
      if (child->directory) compare(files, *child);
    }
    std::vector<std::string> listed = names(files, InodeId{node.id}, true);
    std::sort(listed.begin(), listed.end());
    ASSERT_EQ(listed, expected);
    ASSERT_EQ(wait(files.getattr(InodeId{node.id})).inode.links, 2 + directories);
  }
};

TEST_P(RandomNames, AgreeWithATreeInMemory) {
  base::Random random(static_cast<std::uint64_t>(GetParam()) + 1000);
  SCOPED_TRACE("replay: --gtest_filter=*RandomNames*/" + std::to_string(GetParam()));
  Node root;
  root.id = raw(kRootInode);
  root.directory = true;
  std::vector<Pointer> directories;  // alive or not
  const auto pick = [&]() -> Node* {
    for (int i = 0; i < 10 && !directories.empty(); ++i) {
      Node* node = directories[random.below(directories.size())].get();
      if (below(node, &root)) return node;
    }
    return &root;
  };
  const auto any_name = [&] { return std::string(1, static_cast<char>('a' + random.below(6))); };
  // Half of the seeds: one mount that holds leases makes all the changes and answers from what it knows.
  Mount holder = mount(true);
  const bool leases = GetParam() % 2 == 1;
  for (int step = 0; step < 600; ++step) {
    FileSystem& files = leases ? *holder.files : random.chance(0.5) ? *a_.files : *b_.files;
    if (leases && random.chance(0.3)) {
      const Node* probe = pick();
      const std::string name = std::string(1, static_cast<char>('a' + random.below(6)));
      const Looked looked = wait(files.lookup(InodeId{probe->id}, name));
      ASSERT_EQ(looked.error, probe->names.count(name) == 0 ? ENOENT : 0) << "step " << step;
    }
    Node *one = pick(), *two = random.chance(0.4) ? one : pick();
    const std::string name = any_name(), other = any_name();
    const auto found = one->names.find(name);
    const InodeId at{one->id};
    switch (random.below(8)) {
      case 0:
      case 1: {
        CreateRequest request;
        request.name = name;
        request.mode = S_IFREG | 0644;
        const Looked made = wait(files.make(at, request));
        ASSERT_EQ(made.error, found != one->names.end() ? EEXIST : 0);
        if (made.error == 0) {
          one->names[name] = std::make_shared<Node>();
          one->names[name]->id = raw(made.inode.id);
          files.forget(made.inode.id, 1);
        }
        break;
      }
      case 2: {
        CreateRequest request;
        request.name = name;
        request.mode = S_IFDIR | 0755;
        const Looked made = wait(files.make(at, request));
        ASSERT_EQ(made.error, found != one->names.end() ? EEXIST : 0);
        if (made.error == 0) {
          auto node = std::make_shared<Node>();
          node->id = raw(made.inode.id);
          node->directory = true;
          node->parent = one;
          one->names[name] = node;
          directories.push_back(node);
          files.forget(made.inode.id, 1);
        }
        break;
      }
      case 3: {
        const int error = wait(files.unlink(at, name));
        const int expected = found == one->names.end() ? ENOENT : found->second->directory ? EISDIR : 0;
        ASSERT_EQ(error, expected);
        if (error == 0) {
          found->second->links -= 1;
          one->names.erase(found);
        }
        break;
      }
      case 4: {
        const int error = wait(files.remove_directory(at, name));
        const int expected = found == one->names.end()       ? ENOENT
                             : !found->second->directory     ? ENOTDIR
                             : !found->second->names.empty() ? ENOTEMPTY
                                                             : 0;
        ASSERT_EQ(error, expected);
        if (error == 0) {
          found->second->parent = nullptr;
          one->names.erase(found);
        }
        break;
      }
      case 5: {
        if (found == one->names.end() || found->second->directory) break;
        const Looked linked = wait(files.link(InodeId{found->second->id}, InodeId{two->id}, other));
        ASSERT_EQ(linked.error, two->names.count(other) != 0 ? EEXIST : 0);
        if (linked.error == 0) {
          found->second->links += 1;
          two->names[other] = found->second;
          files.forget(linked.inode.id, 1);
        }
        break;
      }
      default: {
        const std::uint32_t flags = random.chance(0.2) ? kExchange : random.chance(0.2) ? kNoReplace : 0;
        const Pointer replaced = two->names.count(other) != 0 ? two->names[other] : nullptr;
        const int expected = rename(*one, name, *two, other, flags);
        ASSERT_EQ(wait(files.rename(at, name, InodeId{two->id}, other, flags)), expected)
            << "step " << step << ": " << one->id << "/" << name << " to " << two->id << "/" << other << " flags "
            << flags;
        if (expected == 0 && replaced && replaced->directory && flags == 0 && two->names[other] != replaced) {
          replaced->parent = nullptr;
        }
      }
    }
    if (step % 60 == 59) {
      compare(*a_.files, root);
      compare(leases ? *holder.files : *b_.files, root);
      if (HasFatalFailure()) break;
    }
  }
  EXPECT_EQ(holder.files->stop(), 0);
}
INSTANTIATE_TEST_SUITE_P(Seeds, RandomNames, testing::Range(0, 20));

}  // namespace
}  // namespace fusionfs

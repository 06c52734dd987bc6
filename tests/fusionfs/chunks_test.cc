// Chunks: what is written is read, whatever else is done; damage is found, told, and healed from a copy; other nodes'
// chunks through their servers.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "fusionfs/core/procedures.h"
#include "fusionfs/data/chunk_server.h"
#include "fusionfs/data/settle.h"
#include "fusionfs/data/stores.h"
#include "fusionfs/data/sweep.h"
#include "fusionfs/fuse/file_system.h"
#include "fusionfs/fuse/wait.h"
#include "novoht/base/random.h"
#include "tests/support/local_client.h"

namespace fusionfs {
namespace {

using base::Code;

class ChunksTest : public testing::Test {
 protected:
  ChunksTest() {
    std::string folder = (std::filesystem::temp_directory_path() / "fusionfs_chunks.XXXXXX").string();
    EXPECT_NE(::mkdtemp(folder.data()), nullptr);
    folder_ = folder;
    boots_.now = 1;
  }
  ~ChunksTest() override { std::filesystem::remove_all(folder_); }
  std::unique_ptr<ChunkFile> open() {
    auto opened = ChunkFile::open(folder_ + "/chunk", true, boots_);
    EXPECT_TRUE(opened.has_value());
    return std::move(*opened);
  }
  // As a disk that lies: past our checksums.
  void flip(const std::string& path, std::uint64_t at) {
    const int file = ::open(path.c_str(), O_RDWR);
    ASSERT_GE(file, 0);
    char byte = 0;
    ASSERT_EQ(::pread(file, &byte, 1, static_cast<off_t>(at)), 1);
    byte = static_cast<char>(byte ^ 0x10);
    ASSERT_EQ(::pwrite(file, &byte, 1, static_cast<off_t>(at)), 1);
    ::close(file);
  }
  static std::string read(ChunkFile& file, std::uint64_t at, std::size_t size) {
    std::string bytes(size, 'x');
    const auto done = file.read(at, bytes.data(), size);
    return done ? bytes : "error: " + done.error().message;
  }
  std::string folder_;
  Boots boots_;
};

TEST_F(ChunksTest, AnyMixOfChangesReadsAsAModelSaysAndEveryChecksumAgrees) {
  constexpr std::size_t kSpan = 40'000;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    base::Random random(seed);
    const auto one = open(), other = open();  // as two mounts have it
    ASSERT_TRUE(one->keep(0));
    std::string model(kSpan, '\0');
    for (int step = 0; step < 300; ++step) {
      ChunkFile& file = random.chance(0.5) ? *one : *other;
      const std::size_t at = random.below(kSpan), size = 1 + random.below(std::min<std::size_t>(kSpan - at, 9'000));
      switch (random.below(5)) {
        case 0:
        case 1: {
          std::string bytes(size, '\0');
          for (char& each : bytes) each = static_cast<char>(random.below(256));
          ASSERT_TRUE(file.write(at, bytes));
          model.replace(at, size, bytes);
          break;
        }
        case 2:
          ASSERT_TRUE(file.punch(at, size));
          std::fill_n(model.begin() + static_cast<std::ptrdiff_t>(at), size, '\0');
          break;
        case 3:
          if (!random.chance(0.2)) break;
          ASSERT_TRUE(file.keep(at));
          std::fill(model.begin() + static_cast<std::ptrdiff_t>(at), model.end(), '\0');
          break;
        default:
          ASSERT_TRUE(file.allocate(at, size));
      }
      ASSERT_EQ(read(random.chance(0.5) ? *one : *other, at, size), model.substr(at, size)) << "seed " << seed;
    }
    ASSERT_EQ(read(*one, 0, kSpan), model) << "seed " << seed;
    const auto scrubbed = other->scrub();
    ASSERT_TRUE(scrubbed.has_value());
    EXPECT_TRUE(scrubbed->bad.empty()) << "seed " << seed;
  }
}

// A node's mount and what serves its chunks are two processes: what one removes and begins anew the other must not go on with.
TEST_F(ChunksTest, WhatAnotherProcessOfTheNodeBeganAnewIsReadAndWrittenThere) {
  const auto store = *ChunkStore::open(folder_ + "/chunks");
  const InodeId inode{7};
  for (const std::uint64_t at : {std::uint64_t{0}, kChunkSize}) {
    LocalContent mount(*store, inode), service(*store, inode);
    const auto shown = [&](LocalContent& content) {
      std::string bytes(5, 'x');
      const auto done = content.read(at, bytes.data(), bytes.size());
      return done ? bytes : done.error().message;
    };
    for (LocalContent* const writer : {&service, &mount}) {
      ASSERT_TRUE(writer->begin_writing(0));
      ASSERT_TRUE(writer->write(at, writer == &service ? "first" : "other"));
      EXPECT_EQ(shown(mount), shown(service));
      // Emptied, which takes all its chunks, and written again by the other.
      ASSERT_TRUE(store->remove(inode, 2 * kChunkSize));
      LocalContent& next = writer == &service ? mount : service;
      ASSERT_TRUE(next.begin_writing(0));
      ASSERT_TRUE(next.write(at, "newer"));
      EXPECT_EQ(shown(*writer), "newer") << at;
      ASSERT_TRUE(writer->write(at, "newest"));
      EXPECT_EQ(shown(next), "newes") << at;
      // It is marked again as being written: nobody takes it away.
      LocalContent sweeper(*store, inode);
      const auto kept_out = sweeper.keep_writers_out();
      ASSERT_TRUE(kept_out);
      EXPECT_FALSE(*kept_out);
      ASSERT_TRUE(writer->truncate(0, at + 6));
      ASSERT_TRUE(store->remove(inode, 2 * kChunkSize));
    }
  }
}

TEST_F(ChunksTest, RoomThatTheDiskDoesNotHaveIsRefusedBeforeAnyIsTaken) {
  const auto store = *ChunkStore::open(folder_ + "/chunks");
  const auto allocated = LocalContent(*store, make_inode(kRootHome, 7)).allocate(0, kMaxFileSize);
  ASSERT_FALSE(allocated.has_value());
  EXPECT_EQ(allocated.code(), Code::no_space);
  EXPECT_TRUE(store->list()->empty());
}

TEST_F(ChunksTest, DamageIsFoundAndNamedAndNotWrittenOver) {
  const auto file = open();
  const std::string bytes(20'000, 'a');
  ASSERT_TRUE(file->write(0, bytes));
  flip(folder_ + "/chunk", 9'000);
  std::string to(4096, ' ');
  const auto failed = file->read(8'192, to.data(), to.size());
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.code(), Code::corrupt);
  EXPECT_NE(failed.error().message.find("/chunk: block 2 at byte 8192"), std::string::npos) << failed.error().message;
  EXPECT_EQ(read(*file, 0, 8'192), bytes.substr(0, 8'192)) << "its neighbours are well";
  // A part of the block would make the rest look right: refused. All of it is fine.
  EXPECT_EQ(file->write(8'200, "b").code(), Code::corrupt);
  EXPECT_EQ(file->scrub()->bad, std::vector<std::uint32_t>{2});
  EXPECT_TRUE(*file->heal(2, std::string(4096, 'a')));
  EXPECT_EQ(read(*file, 0, bytes.size()), bytes);
  EXPECT_FALSE(*file->heal(2, std::string(4096, 'z'))) << "it is well: nothing is done";
  flip(folder_ + "/chunk", 9'000);
  EXPECT_TRUE(file->write(8'192, std::string(4096, 'c')));
  EXPECT_EQ(read(*file, 8'192, 4096), std::string(4096, 'c'));
}

TEST_F(ChunksTest, AfterALossOfPowerWhatDoesNotAgreeIsLetPassUnlessThatLifeEndedWell) {
  ASSERT_TRUE(open()->write(0, std::string(4096, 'a')));
  flip(folder_ + "/chunk", 100);
  EXPECT_TRUE(read(*open(), 0, 4096).starts_with("error: "));
  boots_.now = 2;
  EXPECT_EQ(read(*open(), 0, 100), std::string(100, 'a'));
  boots_.clean.insert(1);
  EXPECT_TRUE(read(*open(), 0, 4096).starts_with("error: "));
  boots_.clean.clear();
  EXPECT_EQ(open()->scrub()->without_sum, 1u) << "it gets the checksum of what is there";
}

TEST_F(ChunksTest, ChunksOfBeforeThereWereChecksumsAreRead) {
  {
    const int file = ::open((folder_ + "/chunk").c_str(), O_RDWR | O_CREAT, 0600);
    ASSERT_EQ(::pwrite(file, "old", 3, 5'000), 3);
    ::close(file);
  }
  const auto file = open();
  EXPECT_EQ(read(*file, 5'000, 4), std::string("old\0", 4));
  ASSERT_TRUE(file->write(5'003, "er"));
  EXPECT_EQ(read(*file, 5'000, 5), "older");
  EXPECT_EQ(file->scrub()->bad.size(), 0u);
}

// Of a cluster with this secret.
zht::Opener opener(const std::string& secret) {
  zht::security::Credentials credentials;
  credentials.secret = *zht::security::Secret::from_text(secret, "test");
  return std::make_shared<const zht::security::Credentials>(std::move(credentials));
}

TEST_F(ChunksTest, TheSecretNeverTravelsAndNothingIsSaidToWhoDoesNotKnowIt) {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(listener, 4), 0);
  ASSERT_EQ(::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), 0);
  std::string heard;
  std::thread stranger([&] {  // listens, sends the same bytes back, and has no secret
    const int socket = ::accept(listener, nullptr, nullptr);
    char piece[4096];
    for (ssize_t got = 0; (got = ::recv(socket, piece, sizeof piece, 0)) > 0;) {
      heard.append(piece, static_cast<std::size_t>(got));
      static_cast<void>(::send(socket, piece, static_cast<std::size_t>(got), MSG_NOSIGNAL));
    }
    ::close(socket);
  });
  ChunkRequest request;
  request.operation = ChunkOperation::write;
  request.bytes = "something that is nobody's business";
  const std::string secret = "a secret of enough letters";
  ChunkPeer peer(1, "127.0.0.1:" + std::to_string(ntohs(address.sin_port)), opener(secret));
  EXPECT_EQ(peer.ask(request).code(), Code::unavailable);
  stranger.join();
  ::close(listener);
  EXPECT_FALSE(heard.empty());
  EXPECT_EQ(heard.find(secret), std::string::npos);
  EXPECT_EQ(heard.find("business"), std::string::npos);
}

TEST_F(ChunksTest, FramesThatAreNoneEndTheConnection) {
  const auto store = *ChunkStore::open(folder_ + "/chunks");
  const auto right = opener("a secret of enough letters");
  const auto server = *ChunkServer::start(*store, "127.0.0.1", 0, right);
  const std::string address = "127.0.0.1:" + std::to_string(server->port());
  const InodeId file = make_inode(HomeId{1}, 2);
  ChunkRequest request;
  request.operation = ChunkOperation::blocks;
  request.inode = file;
  EXPECT_EQ(ChunkPeer(store->identity(), address, opener("a guess of enough letters")).ask(request).code(), Code::unavailable);
  EXPECT_EQ(ChunkPeer(store->identity() + 1, address, right).ask(request).code(), Code::unavailable);
  ChunkPeer peer(store->identity(), address, right);
  EXPECT_TRUE(peer.ask(request).has_value());
  request.operation = ChunkOperation::read;
  request.second = kMostChunkBytes + 1;
  EXPECT_EQ(peer.ask(request)->code, Code::invalid);
  request.first = ~std::uint64_t{0} - 5;
  EXPECT_EQ(peer.ask(request)->code, Code::invalid);
  base::Random random(7);
  for (int round = 0; round < 200; ++round) {
    std::string bytes(random.below(60), '\0');
    for (char& each : bytes) each = static_cast<char>(random.below(256));
    static_cast<void>(decode_chunk_request(bytes));
    static_cast<void>(decode_chunk_answer(bytes));
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    ASSERT_EQ(::send(ends[0], bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
    ::close(ends[0]);
    ChunkLink link(ends[1], right, zht::Side::answerer);
    EXPECT_FALSE(link.prove(std::chrono::milliseconds(1000)));
  }
  request.first = request.second = 0;
  EXPECT_TRUE(peer.ask(request).has_value()) << "the server goes on";
}

TEST_F(ChunksTest, CallersThatSayNothingKeepNobodyOut) {
  const auto store = *ChunkStore::open(folder_ + "/chunks");
  const auto right = opener("a secret of enough letters");
  const auto server = *ChunkServer::start(*store, "127.0.0.1", 0, right);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(server->port());
  ChunkRequest request;
  request.operation = ChunkOperation::blocks;
  request.inode = make_inode(HomeId{1}, 2);
  std::vector<int> silent;
  for (int i = 0; i < 600; ++i) {
    const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ASSERT_EQ(::connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    silent.push_back(socket);
    if (i % 100 != 99) continue;
    ChunkPeer peer(store->identity(), "127.0.0.1:" + std::to_string(server->port()), right);
    EXPECT_TRUE(peer.ask(request).has_value()) << "beside " << i + 1 << " that say nothing";
  }
  for (const int socket : silent) ::close(socket);
}

// Two nodes: two chunk stores, a mount at each, one store of names.
class NodesTest : public ChunksTest {
 protected:
  NodesTest() {
    add_procedures(procedures_);
    zht::add_general_procedures(procedures_);
    store_ = std::make_unique<testing_support::LocalStore>(procedures_);
    for (Node& node : nodes_) start(node, 2);
  }
  ~NodesTest() override {
    for (Node& node : nodes_) stop(node);
  }
  struct Node {
    std::unique_ptr<ChunkStore> chunks;
    std::unique_ptr<zht::Client> client;
    std::unique_ptr<ChunkServer> server;
    std::unique_ptr<FileSystem> files;
  };
  void start(Node& node, unsigned copies) {
    if (!node.chunks) node.chunks = *ChunkStore::open(folder_ + "/" + std::to_string(&node - nodes_));
    node.client = store_->client();
    node.server = *ChunkServer::start(*node.chunks, "127.0.0.1", 0, *Stores(*node.client, *node.chunks).opener());
    FileSystemOptions options;
    options.attribute_timeout = std::chrono::milliseconds(0);
    options.leases = false;
    options.copies = copies;
    options.lacking = [this](InodeId inode) {
      if (Sweeper* const sweeper = sweeper_) sweeper->look_at(inode);
    };
    options.serves_at = "127.0.0.1:" + std::to_string(node.server->port());
    options.warn = [this](const std::string& text) {
      const std::lock_guard lock(mutex_);
      warnings_ += text + "\n";
    };
    node.files = std::make_unique<FileSystem>(*node.client, store_->clock(), *node.chunks, options);
    EXPECT_EQ(wait(node.files->start(0755, 0, 0)), 0);
    EXPECT_TRUE(node.files->stores().refresh());
    for (Node& each : nodes_) {
      if (each.files) {
        EXPECT_TRUE(each.files->stores().refresh());
      }
    }
  }
  static void stop(Node& node) {
    if (node.files) {
      EXPECT_EQ(node.files->stop(), 0);
    }
    node.files.reset();
    node.server.reset();
  }
  InodeId make(Node& node, const std::string& name, const std::string& bytes) {
    const Opened opened = wait(node.files->create(kRootInode, name, 0644, 0, 0, O_RDWR));
    EXPECT_EQ(opened.error, 0);
    EXPECT_EQ(node.files->write(opened.inode.id, 0, bytes), 0);
    EXPECT_EQ(wait(node.files->sync(opened.inode.id)), 0);
    EXPECT_EQ(wait(node.files->release(opened.inode.id)), 0);
    return opened.inode.id;
  }
  std::string fetch(Node& node, const std::string& name) {
    const Looked looked = wait(node.files->lookup(kRootInode, name));
    if (looked.error != 0) return "error " + std::to_string(looked.error);
    EXPECT_EQ(wait(node.files->open(looked.inode.id, O_RDONLY)).error, 0);
    std::string bytes(looked.inode.size, 'x');
    std::size_t got = 0;
    const int error = node.files->read(looked.inode.id, 0, bytes.data(), bytes.size(), got);
    EXPECT_EQ(wait(node.files->release(looked.inode.id)), 0);
    node.files->forget(looked.inode.id, 1);
    return error != 0 ? "error " + std::to_string(error) : bytes.substr(0, got);
  }
  Inode record(InodeId id) {
    Reply reply = wait(nodes_[0].files->metadata().getattr(id));
    EXPECT_EQ(reply.error, 0);
    return *reply.inode;
  }
  std::string warnings() {
    const std::lock_guard lock(mutex_);
    return warnings_;
  }
  zht::Procedures procedures_;
  std::unique_ptr<testing_support::LocalStore> store_;
  Node nodes_[2];
  std::atomic<Sweeper*> sweeper_{nullptr};  // hears of files that lack a copy
  std::mutex mutex_;
  std::string warnings_;
};

std::string long_text(std::size_t size) {
  std::string bytes(size, '\0');
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>('a' + i * 7 % 26);
  return bytes;
}

TEST_F(NodesTest, NothingNewGoesToANodeThatDidNotAnswer) {
  Node third;
  third.chunks = *ChunkStore::open(folder_ + "/third");
  start(third, 1);
  const std::uint64_t second = nodes_[1].chunks->identity();
  nodes_[1].server.reset();  // it lives on by its name in the store, for some seconds
  for (int file = 0; file < 2; ++file) make(nodes_[0], "meets it or not " + std::to_string(file), long_text(10'000));
  for (int file = 0; file < 4; ++file) {
    const InodeId id = make(nodes_[0], "f" + std::to_string(file), long_text(10'000));
    EXPECT_EQ(record(id).stores(), (std::vector{nodes_[0].chunks->identity(), third.chunks->identity()}));
  }
  EXPECT_NE(warnings().find("chunk store " + std::to_string(second)), std::string::npos);
  stop(third);
}

TEST_F(NodesTest, WhatOneNodeWritesAnotherReadsAndChanges) {
  stop(nodes_[0]);
  start(nodes_[0], 1);  // one copy
  const std::string text = long_text(3'000'000);
  const InodeId id = make(nodes_[0], "f", text);
  EXPECT_EQ(record(id).stores(), std::vector<std::uint64_t>{nodes_[0].chunks->identity()});
  EXPECT_TRUE(fetch(nodes_[1], "f") == text);
  wait(nodes_[1].files->lookup(kRootInode, "f"));
  EXPECT_EQ(wait(nodes_[1].files->open(id, O_RDWR)).error, 0);
  EXPECT_EQ(nodes_[1].files->write(id, 2'999'999, "the end"), 0);
  EXPECT_EQ(wait(nodes_[1].files->sync(id)), 0);
  SetRequest cut;
  cut.inode = id;
  cut.fields_set = SetRequest::kSize;
  cut.size = 3'000'003;
  EXPECT_EQ(wait(nodes_[1].files->setattr(cut)).error, 0);
  std::uint64_t found = 0;
  EXPECT_EQ(nodes_[1].files->seek(id, 0, false, found), 0);
  EXPECT_EQ(found, 3'000'003u);
  EXPECT_EQ(wait(nodes_[1].files->release(id)), 0);
  EXPECT_EQ(fetch(nodes_[0], "f"), text.substr(0, 2'999'999) + "the ");
  EXPECT_TRUE(nodes_[1].chunks->list()->empty());
  EXPECT_EQ(wait(nodes_[1].files->unlink(kRootInode, "f")), 0);
  for (int i = 0; i < 2000 && !nodes_[0].chunks->list()->empty(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_TRUE(nodes_[0].chunks->list()->empty()) << "the space is given back where it was taken";
}

TEST_F(NodesTest, WithTwoCopiesOneNodeMayGoAndWhatMissedAChangeIsNoCopyAnyMore) {
  const std::string text = long_text(200'000);
  const InodeId id = make(nodes_[0], "f", text);
  ASSERT_EQ(record(id).stores().size(), 2u);
  nodes_[0].server.reset();  // as if the node had died
  EXPECT_TRUE(fetch(nodes_[1], "f") == text);
  wait(nodes_[1].files->lookup(kRootInode, "f"));
  EXPECT_EQ(wait(nodes_[1].files->open(id, O_RDWR)).error, 0);
  EXPECT_EQ(nodes_[1].files->write(id, 0, "changed"), 0);
  EXPECT_EQ(wait(nodes_[1].files->sync(id)), 0);
  EXPECT_EQ(wait(nodes_[1].files->release(id)), 0);
  EXPECT_EQ(record(id).stores(), std::vector<std::uint64_t>{nodes_[1].chunks->identity()});
  EXPECT_NE(warnings().find("missed a change"), std::string::npos) << warnings();
  // It comes back, and reads what was written meanwhile, not what it has.
  stop(nodes_[0]);
  start(nodes_[0], 2);
  EXPECT_TRUE(fetch(nodes_[0], "f") == "changed" + text.substr(7));
}

// Fewer nodes than copies asked for: what there is is written, it is said, and the rest is made by and by.
TEST_F(NodesTest, CopiesThatThereWasNoNodeForAreMadeWhenOneComes) {
  stop(nodes_[1]);
  EXPECT_TRUE(nodes_[0].files->stores().refresh());
  Repair repair(*nodes_[0].client, *nodes_[0].chunks, nodes_[0].files->stores(), {.lost_after = std::chrono::milliseconds(0)});
  const Sweeper sweeper(*nodes_[0].client, *nodes_[0].chunks, [this] { return nodes_[0].files->stores().epoch(); },
                        [](const std::string&) {}, &repair);
  const std::string text = long_text(200'000);
  const InodeId id = make(nodes_[0], "f", text), other = make(nodes_[0], "g", text);
  EXPECT_EQ(record(id).stores(), std::vector<std::uint64_t>{nodes_[0].chunks->identity()});
  EXPECT_EQ(record(id).wanted, 2);
  EXPECT_EQ(wait(nodes_[0].files->layout(id, "short_chunks")).text, "1");
  EXPECT_NE(warnings().find("is on 1 of 2 chunk stores"), std::string::npos) << warnings();
  EXPECT_EQ(warnings().find("is on 1 of 2"), warnings().rfind("is on 1 of 2")) << "said once";
  const auto lacking = [&] { return read_short(nodes_[0].chunks->folder()).value_or(Short{}).files; };
  for (int i = 0; i < 2000 && lacking() != 2; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(lacking(), 2u);
  start(nodes_[1], 2);
  const auto whole = [&] { return record(id).stores().size() == 2 && record(other).stores().size() == 2; };
  for (int i = 0; i < 2000 && !whole(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  ASSERT_TRUE(whole());
  EXPECT_EQ(wait(nodes_[0].files->getattr(id)).inode.copies, std::vector<std::uint64_t>{nodes_[1].chunks->identity()});
  EXPECT_EQ(wait(nodes_[0].files->layout(id, "short_chunks")).text, "0");
  nodes_[0].server.reset();
  EXPECT_TRUE(fetch(nodes_[1], "f") == text);
}

// A mount that has just begun, or the file's node has, and the one does not know of the other yet.
TEST_F(NodesTest, AReadWaitsForAStoreThatIsNotAnnouncedYet) {
  for (Node& node : nodes_) stop(node);
  start(nodes_[0], 1);
  const std::string text = long_text(200'000);
  make(nodes_[0], "f", text);
  ASSERT_TRUE(nodes_[0].client->remove(store_key(nodes_[0].chunks->identity())));
  nodes_[1].server.reset();
  {
    Node& late = nodes_[0];
    std::unique_ptr<FileSystem> hidden = std::move(late.files);  // start() lets all others look for stores
    start(nodes_[1], 1);
    late.files = std::move(hidden);
  }
  std::thread announce([this] {
    std::this_thread::sleep_for(std::chrono::milliseconds(700));
    EXPECT_TRUE(nodes_[0].files->stores().refresh());
    store_->advance(std::chrono::seconds(2));  // from when it was asked last, by the mount's clock
  });
  EXPECT_TRUE(fetch(nodes_[1], "f") == text) << warnings();
  announce.join();
}

// A node that takes connections and says nothing, and chunks there that are to be deleted: the mount goes on saying that it lives.
TEST_F(NodesTest, AMountSpeaksUpWhileANodeDoesNotAnswer) {
  std::vector<std::string> names;
  for (int i = 0; i < 8; ++i) make(nodes_[0], names.emplace_back("f" + std::to_string(i)), long_text(10'000));
  const auto port = nodes_[1].server->port();
  nodes_[1].server.reset();
  const int deaf = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1;
  ::setsockopt(deaf, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::bind(deaf, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(deaf, 64), 0);
  const std::string key = session_key(nodes_[0].files->session());
  for (const std::string& name : names) EXPECT_EQ(wait(nodes_[0].files->unlink(kRootInode, name)), 0);
  const auto version = [&] { return nodes_[0].client->call(zht::Operation::lookup(key)).version; };
  const auto before = version();
  const auto began = std::chrono::steady_clock::now();
  store_->advance(std::chrono::seconds(8));  // a beat is due
  while (version() == before && std::chrono::steady_clock::now() - began < std::chrono::seconds(10))
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::milliseconds(1500)) << "an answer of that node is waited for longer";
  ::close(deaf);
}

TEST_F(NodesTest, ACopyThatMissedAChangeIsMadeAgainElsewhere) {
  Node third;
  third.chunks = *ChunkStore::open(folder_ + "/third");
  const std::string text = long_text(200'000);
  const InodeId id = make(nodes_[0], "f", text);
  ASSERT_EQ(record(id).stores().size(), 2u);
  start(third, 1);
  Repair repair(*nodes_[0].client, *nodes_[0].chunks, nodes_[0].files->stores(), {});
  Sweeper sweeper(*nodes_[0].client, *nodes_[0].chunks, [] { return std::uint64_t{0}; }, [](const std::string&) {}, &repair);
  sweeper_ = &sweeper;
  nodes_[1].server.reset();
  wait(nodes_[0].files->lookup(kRootInode, "f"));
  EXPECT_EQ(wait(nodes_[0].files->open(id, O_RDWR)).error, 0);
  EXPECT_EQ(nodes_[0].files->write(id, 0, "changed"), 0);
  EXPECT_EQ(wait(nodes_[0].files->sync(id)), 0);
  EXPECT_EQ(wait(nodes_[0].files->release(id)), 0);
  const std::vector<std::uint64_t> wanted{nodes_[0].chunks->identity(), third.chunks->identity()};
  for (int i = 0; i < 3000 && record(id).stores() != wanted; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(record(id).stores(), wanted);
  sweeper_ = nullptr;
  nodes_[0].server.reset();
  EXPECT_TRUE(fetch(third, "f") == "changed" + text.substr(7));
  stop(third);
}

// Each moves it to chunks of its own; whoever commits second takes what it has written to the other's.
TEST_F(NodesTest, ASmallFileThatTwoNodesGrowAtOnceHasWhatBothHaveWritten) {
  for (Node& node : nodes_) stop(node);
  for (Node& node : nodes_) start(node, 1);
  const InodeId id = make(nodes_[0], "f", "small");
  for (Node& node : nodes_) {
    wait(node.files->lookup(kRootInode, "f"));
    EXPECT_EQ(wait(node.files->open(id, O_RDWR)).error, 0);
  }
  const std::string one(10'000, '1'), two(70'000, '2');
  EXPECT_EQ(nodes_[0].files->write(id, 5, one), 0);
  EXPECT_EQ(nodes_[1].files->write(id, 2, "A"), 0);  // inline still
  EXPECT_EQ(nodes_[1].files->write(id, 20'000, two), 0);
  for (Node& node : nodes_) EXPECT_EQ(wait(node.files->sync(id)), 0);
  EXPECT_EQ(nodes_[1].files->write(id, 90'000, "end"), 0);
  for (Node& node : nodes_) EXPECT_EQ(wait(node.files->sync(id)), 0);
  for (Node& node : nodes_) EXPECT_EQ(wait(node.files->release(id)), 0);
  const std::string whole = "smAll" + one + std::string(20'000 - 10'005, '\0') + two + "end";
  EXPECT_EQ(record(id).stores(), std::vector<std::uint64_t>{nodes_[0].chunks->identity()});
  for (Node& node : nodes_) EXPECT_TRUE(fetch(node, "f") == whole);
  for (int i = 0; i < 2000 && !nodes_[1].chunks->list()->empty(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_TRUE(nodes_[1].chunks->list()->empty()) << "what was moved away takes no room";
}

// What a commit says of room is what a reader counts who begins anew.
TEST_F(ChunksTest, BlocksAreCountedAsWhatWasChangedSays) {
  const auto store = *ChunkStore::open(folder_ + "/chunks");
  const InodeId inode{7};
  constexpr std::uint64_t kSpan = 3 * kChunkSize;
  LocalContent content(*store, inode);
  base::Random random(7);
  for (int step = 0; step < 200; ++step) {
    const std::uint64_t at = random.below(kSpan - 100'000), size = 1 + random.below(100'000);
    switch (random.below(6)) {
      case 0:
        ASSERT_TRUE(content.punch(at, size));
        break;
      case 1:
        ASSERT_TRUE(content.allocate(at, size));
        break;
      case 2:
        if (!random.chance(0.2)) break;
        ASSERT_TRUE(content.truncate(at, kSpan));
        break;
      default:
        ASSERT_TRUE(content.write(at, std::string(size, 'x')));
    }
    ASSERT_EQ(content.blocks(kSpan), LocalContent(*store, inode).blocks(kSpan)) << "step " << step;
  }
}

TEST_F(NodesTest, ChunksOfWhichNoRecordSpeaksGoAndNoOthers) {
  const std::string text = long_text(200'000);
  const InodeId id = make(nodes_[0], "f", text), kept = make(nodes_[0], "kept", text);
  ASSERT_EQ(record(id).stores().size(), 2u);
  Node& away = nodes_[1];
  away.server.reset();
  wait(nodes_[0].files->lookup(kRootInode, "f"));
  EXPECT_EQ(wait(nodes_[0].files->open(id, O_RDWR)).error, 0);
  EXPECT_EQ(nodes_[0].files->write(id, 0, "changed"), 0);
  EXPECT_EQ(wait(nodes_[0].files->sync(id)), 0);
  EXPECT_EQ(wait(nodes_[0].files->release(id)), 0);
  // What a mount that died had written for a file that was removed since; and for one that nobody has committed yet.
  const InodeId gone = make_inode(kRootHome, 4711);
  LocalContent stray(*away.chunks, gone);
  ASSERT_TRUE(stray.write(70 << 20, "x"));
  const InodeId small = make(nodes_[0], "small", "inline");
  LocalContent early(*away.chunks, small);
  ASSERT_TRUE(early.write(0, "x"));
  const auto strays = find_strays(*away.client, *away.chunks);
  ASSERT_TRUE(strays);
  EXPECT_EQ(*strays, (std::map<InodeId, std::uint64_t>{{id, 0}, {gone, 1}}));
  EXPECT_TRUE(find_strays(*nodes_[0].client, *nodes_[0].chunks)->empty());
  {
    LocalContent writer(*away.chunks, id);
    ASSERT_TRUE(writer.begin_writing(0));
    EXPECT_FALSE(*remove_stray(*away.client, *away.chunks, id, 0)) << "somebody writes it";
  }
  // Opened before they went, written after: into new chunks.
  LocalContent late(*away.chunks, gone);
  char byte = 0;
  ASSERT_TRUE(late.read(0, &byte, 1));
  for (const auto& [inode, last] : *strays) EXPECT_TRUE(*remove_stray(*away.client, *away.chunks, inode, last));
  EXPECT_FALSE(*remove_stray(*away.client, *away.chunks, kept, 0));
  EXPECT_EQ(away.chunks->list()->size(), 2u) << "kept and early";
  ASSERT_TRUE(late.begin_writing(0));
  ASSERT_TRUE(late.write(0, "y"));
  LocalContent reader(*away.chunks, gone);
  ASSERT_TRUE(reader.read(0, &byte, 1));
  EXPECT_EQ(byte, 'y');
  // Now and then by itself.
  ASSERT_TRUE(LocalContent(*away.chunks, make_inode(kRootHome, 4712)).write(0, "x"));
  std::atomic<int> told{0};
  const Sweeper sweeper(*away.client, *away.chunks, [] { return std::uint64_t{0}; }, [&](const std::string&) { ++told; });
  for (int i = 0; i < 3000 && told == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(told, 1);
}

TEST_F(NodesTest, DamageIsReadFromTheOtherCopyAndWithoutOneIsAnErrorThatNamesTheChunk) {
  const std::string text = long_text(100'000);
  const InodeId id = make(nodes_[0], "f", text);
  flip(nodes_[0].chunks->path_of(id, 0), 50'000);
  EXPECT_TRUE(fetch(nodes_[0], "f") == text);
  flip(nodes_[1].chunks->path_of(id, 0), 50'000);
  EXPECT_EQ(fetch(nodes_[0], "f"), "error " + std::to_string(EIO));
  EXPECT_NE(warnings().find(nodes_[0].chunks->path_of(id, 0) + ": block 12"), std::string::npos) << warnings();
}

TEST_F(NodesTest, CopiesThatDifferThoughBothAgreeWithTheirChecksumsAreSettledByTheFilesHome) {
  const std::string text = long_text(200'000);
  const InodeId id = make(nodes_[0], "f", text);
  ASSERT_EQ(record(id).stores().size(), 2u);
  const auto change = [&](Node& node, std::uint64_t at, const std::string& bytes) {  // a mount dies before it has written the other
    LocalContent content(*node.chunks, id);
    ASSERT_TRUE(content.write(at, bytes));
  };
  Node& home = record(id).store == nodes_[0].chunks->identity() ? nodes_[0] : nodes_[1];
  Node& other = &home == &nodes_[0] ? nodes_[1] : nodes_[0];
  change(home, 10'000, "at home only");
  change(other, 150'000, "elsewhere only");
  const auto settle = [&](Node& node) { return *settle_copy(*node.chunks, node.files->stores(), record(id)); };
  EXPECT_TRUE(settle(other).busy) << "its chunk server keeps what was written through it open for a while";
  stop(other);
  start(other, 2);
  EXPECT_EQ(settle(home).differed, 0u);
  const Settled done = settle(other);
  EXPECT_EQ(done.differed, 2u);
  EXPECT_EQ(done.settled, 2u);
  EXPECT_EQ(settle(other).differed, 0u);
  EXPECT_EQ(fetch(other, "f"), fetch(home, "f"));
  EXPECT_EQ(fetch(home, "f"), text.substr(0, 10'000) + "at home only" + text.substr(10'012));
  // A block that the home has lost the checksum of (a write there did not come to its end) is taken from where it is well.
  {
    const int file = ::open(home.chunks->path_of(id, 0).c_str(), O_RDWR);
    const std::uint32_t unknown = 0;
    ASSERT_EQ(::pwrite(file, &unknown, 4, static_cast<off_t>(kChunkSize + 32 + 4 * 7)), 4);
    ASSERT_EQ(::pwrite(file, "half", 4, 7 * 4096), 4);
    ::close(file);
  }
  EXPECT_EQ(settle(other).differed, 0u);
  EXPECT_EQ(settle(home).settled, 1u);
  EXPECT_EQ(fetch(home, "f"), text.substr(0, 10'000) + "at home only" + text.substr(10'012));
}

TEST_F(NodesTest, ANodeThatIsGoneAnswersWithAnErrorAndSoon) {
  stop(nodes_[0]);
  start(nodes_[0], 1);
  make(nodes_[0], "f", long_text(10'000));
  nodes_[0].server.reset();
  EXPECT_EQ(fetch(nodes_[1], "f"), "error " + std::to_string(EIO));
  stop(nodes_[0]);
  start(nodes_[0], 1);
  EXPECT_EQ(fetch(nodes_[1], "f"), long_text(10'000)) << "and is there again when it is back";
}

}  // namespace
}  // namespace fusionfs

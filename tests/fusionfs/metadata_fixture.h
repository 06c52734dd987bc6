// A store in memory with one client's Metadata on it, and clients that die at a chosen request.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>

#include "fusionfs/core/check.h"
#include "fusionfs/core/metadata.h"
#include "fusionfs/core/procedures.h"
#include "fusionfs/fuse/wait.h"
#include "tests/support/local_client.h"

namespace fusionfs {

// A client that dies at its n-th request: what it sent before has happened, nothing after.
class DyingClient final : public zht::Client {
 public:
  DyingClient(zht::Client& inner, int requests) : inner_(inner), left_(requests) {}
  void submit(zht::Operation operation, zht::Completion completion, zht::Millis timeout) override {
    if (left_ > 0) {
      --left_;
      inner_.submit(std::move(operation), std::move(completion), timeout);
      return;
    }
    died_ = true;
    zht::Outcome outcome;
    outcome.code = base::Code::timeout;
    completion(outcome);
  }
  std::uint32_t partition_count() const override { return inner_.partition_count(); }
  bool died() const { return died_; }
  int left() const { return left_; }

 private:
  zht::Client& inner_;
  int left_;
  bool died_ = false;
};

class MetadataTest : public testing::Test {
 protected:
  explicit MetadataTest(std::uint32_t split_at = MetadataOptions{}.split_at) {
    add_procedures(procedures_);
    zht::add_general_procedures(procedures_);
    store_ = std::make_unique<testing_support::LocalStore>(procedures_);
    client_ = store_->client();
    MetadataOptions options;
    options.held = [this](HomeId home) {
      std::vector<InodeId> here;
      for (const InodeId each : held_) {
        if (home_of(each) == home) here.push_back(each);
      }
      return here;
    };
    options.gone = [this](const Inode& inode) { gone_.push_back(inode.id); };
    options.orphaned = [this](const Inode& inode, bool) { orphaned_.push_back(inode.id); };
    options.split_at = split_at;
    metadata_ = std::make_unique<Metadata>(*client_, store_->clock(), options);
    EXPECT_EQ(wait(metadata_->make_root(0755, 0, 0)).error, 0);
  }

  Reply make_file(InodeId directory, const std::string& name) {
    CreateRequest request;
    request.name = name;
    request.mode = S_IFREG | 0644;
    return wait(metadata_->create(directory, request));
  }
  Reply make_dir(InodeId directory, const std::string& name, std::uint32_t mode = 0755) {
    CreateRequest request;
    request.name = name;
    request.mode = S_IFDIR | mode;
    return wait(
        metadata_->make_directory(directory, request, wait(metadata_->getattr(directory)).inode.value_or(Inode{})));
  }
  InodeId file(InodeId directory, const std::string& name) { return make_file(directory, name).inode->id; }
  InodeId dir(InodeId directory, const std::string& name) { return make_dir(directory, name).inode->id; }
  int rename(InodeId from, const std::string& name, InodeId to, const std::string& new_name, std::uint32_t flags = 0) {
    return wait(metadata_->rename(from, name, to, new_name, flags)).error;
  }
  int link(InodeId inode, InodeId directory, const std::string& name) {
    return wait(metadata_->link(inode, S_IFREG, directory, name)).error;
  }
  int unlink(InodeId directory, const std::string& name) { return wait(metadata_->unlink(directory, name)).error; }
  int rmdir(InodeId directory, const std::string& name) {
    return wait(metadata_->remove_directory(directory, name)).error;
  }
  Reply find(InodeId directory, const std::string& name) { return wait(metadata_->lookup(directory, name)); }
  // raw number of what a name leads to; 0: nothing
  std::uint64_t at(InodeId directory, const std::string& name) {
    const Reply reply = find(directory, name);
    return reply.error == 0 ? raw(reply.inode->id) : 0;
  }
  std::uint32_t links(InodeId inode) {
    const Reply reply = wait(metadata_->getattr(inode));
    return reply.error == 0 ? reply.inode->links : 0;
  }
  std::string list(InodeId directory) {
    std::string names;
    for (const auto& [sequence, name] : wait(metadata_->list(directory, {})).listing.names) names += name.name + " ";
    return names;
  }
  int settle_leftovers() { return wait(metadata_->settle_leftovers()).error; }
  void later(int seconds) { store_->advance(std::chrono::seconds(seconds)); }
  // Every key of the file system, for finding leftovers.
  std::vector<std::string> keys(const std::string& part) {
    std::vector<std::string> found;
    for (std::uint32_t partition = 0; partition < client_->partition_count(); ++partition) {
      const auto page = client_->call(zht::Operation::scan(zht::PartitionId{partition}, 0, "{d:", 10'000));
      for (const auto& entry : page.entries) {
        if (entry.key.find("}" + part) != std::string::npos) found.push_back(entry.key);
      }
    }
    return found;
  }

  // What a crash left and nobody met is mended, and then there is nothing more to find.
  void fsck() {
    Check check(*client_, *metadata_);
    Census census;
    auto found = check.read(census);
    ASSERT_TRUE(found.has_value());
    for (int round = 0; round < 3 && !found->empty(); ++round) {
      if (round > 0) later(4);  // what a node with another clock has left is watched for a while
      for (const Finding& each : Check::mendable(*found)) wait(check.repair(each));
      found = check.read(census);
    }
    for (const Finding& each : *found) ADD_FAILURE() << name_of(each.kind) << ": " << each.text;
  }

  zht::Procedures procedures_;
  std::unique_ptr<testing_support::LocalStore> store_;
  std::unique_ptr<zht::Client> client_;
  std::vector<InodeId> held_, gone_, orphaned_;
  std::unique_ptr<Metadata> metadata_;
};

// Whatever request was its last, others find the change done or not done, and nothing of it is left behind.
class CrashTest : public MetadataTest {
 protected:
  explicit CrashTest(std::uint32_t split_at = MetadataOptions{}.split_at) : MetadataTest(split_at), split_at_(split_at) {}
  // Sets up with `prepare`, runs `change` on a client that dies after 0, 1, 2... requests, and `check`s each time after
  // the time when others settle what was abandoned. Returns how many requests the whole change takes.
  template <typename Prepare, typename Change, typename Check>
  int at_every_step(Prepare prepare, Change change, Check check) {
    for (int requests = 0;; ++requests) {
      const InodeId top = dir(kRootInode, "top" + std::to_string(requests));
      prepare(top);
      DyingClient dying(*client_, requests);
      MetadataOptions options;
      options.split_at = split_at_;
      Metadata crashing(dying, store_->clock(), options);
      change(crashing, top);
      later(10);
      SCOPED_TRACE("died at request " + std::to_string(requests));
      check(top);
      later(60);
      fsck();
      leave(requests, prepare, change);
      if (!dying.died()) return requests;
      if (requests > 50) ADD_FAILURE() << "never done";
      if (requests > 50) return requests;
    }
  }

 private:
  // The same, and nobody comes by: going through all records once finds and settles it.
  template <typename Prepare, typename Change>
  void leave(int requests, Prepare prepare, Change change) {
    const InodeId top = dir(kRootInode, "left" + std::to_string(requests));
    prepare(top);
    DyingClient dying(*client_, requests);
    MetadataOptions options;
    options.split_at = split_at_;
    Metadata crashing(dying, store_->clock(), options);
    change(crashing, top);
    later(60);
    EXPECT_EQ(settle_leftovers(), 0);
    Check check(*client_, *metadata_);
    Census census;
    const auto found = check.read(census);
    ASSERT_TRUE(found.has_value());
    for (const Finding& each : *found) ADD_FAILURE() << name_of(each.kind) << ": " << each.text;
  }
  const std::uint32_t split_at_;
};

}  // namespace fusionfs

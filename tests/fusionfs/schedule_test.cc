// Two mounts change the same few directories at once: every request of theirs is delivered in a random order, one at a
// time, and sometimes one of the mounts dies between two requests. Afterwards the tree is one that doing the two changes
// one after the other gives (the dead one's perhaps not), and fsck finds nothing that it does not mend.
#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>

#include "novoht/base/random.h"
#include "tests/fusionfs/metadata_fixture.h"

namespace fusionfs {
namespace {

// Holds requests back until they are let go. Dead: they are never sent, nor answered; and ended: refused, so that what
// waited for them goes away.
class HeldClient final : public zht::Client {
 public:
  explicit HeldClient(zht::Client& inner) : inner_(inner) {}
  void submit(zht::Operation operation, zht::Completion completion, zht::Millis timeout) override {
    if (ended_) refuse(completion);
    else held_.push_back({std::move(operation), std::move(completion), timeout});
  }
  std::uint32_t partition_count() const override { return inner_.partition_count(); }
  bool waiting() const { return !dead_ && !held_.empty(); }
  void let_one_go() {
    Held next = std::move(held_.front());
    held_.pop_front();
    if (next.operation.kind == zht::OpKind::callback) {
      zht::Outcome outcome;  // a wait that ends at once: the caller looks again
      outcome.code = base::Code::timeout;
      next.completion(std::move(outcome));
      return;
    }
    inner_.submit(std::move(next.operation), std::move(next.completion), next.timeout);
  }
  void die() { dead_ = true; }
  void end() {
    ended_ = true;
    while (!held_.empty()) {
      const zht::Completion completion = std::move(held_.front().completion);
      held_.pop_front();
      refuse(completion);
    }
  }

 private:
  struct Held {
    zht::Operation operation;
    zht::Completion completion;
    zht::Millis timeout;
  };
  static void refuse(const zht::Completion& completion) {
    zht::Outcome outcome;
    outcome.code = base::Code::io;
    completion(std::move(outcome));
  }
  zht::Client& inner_;
  std::deque<Held> held_;
  bool dead_ = false, ended_ = false;
};

struct Change {
  enum class Kind { create, mkdir, unlink, rmdir, rename, exchange, link } kind = Kind::create;
  std::size_t from = 0, to = 0;  // of the directories
  std::string name, new_name;
};

// The tree as a model: directory -> name -> what it leads to. Files have numbers, directories too (from 100 on).
using Tree = std::map<int, std::map<std::string, int>>;
constexpr int kFirstDirectory = 100;
bool is_dir(int thing) { return thing >= kFirstDirectory; }

bool below(const Tree& tree, int directory, int top) {
  if (directory == top) return true;
  const auto inside = tree.find(top);
  if (inside == tree.end()) return false;
  return std::any_of(inside->second.begin(), inside->second.end(),
                     [&](const auto& each) { return is_dir(each.second) && below(tree, directory, each.second); });
}

// 0 or an errno. `fresh`: the number of what is made.
int apply(Tree& tree, const std::vector<int>& directories, const Change& change, int fresh) {
  const int from = directories[change.from], to = directories[change.to];
  if (tree.count(from) == 0) return ENOENT;
  auto& here = tree[from];
  const auto found = here.find(change.name);
  switch (change.kind) {
    case Change::Kind::create:
    case Change::Kind::mkdir:
      if (found != here.end()) return EEXIST;
      here[change.name] = fresh;
      if (is_dir(fresh)) tree[fresh];
      return 0;
    case Change::Kind::unlink:
      if (found == here.end()) return ENOENT;
      if (is_dir(found->second)) return EISDIR;
      here.erase(found);
      return 0;
    case Change::Kind::rmdir:
      if (found == here.end()) return ENOENT;
      if (!is_dir(found->second)) return ENOTDIR;
      if (!tree[found->second].empty()) return ENOTEMPTY;
      tree.erase(found->second);
      here.erase(change.name);
      return 0;
    default:
      break;
  }
  if (found == here.end() || tree.count(to) == 0) return ENOENT;
  const int thing = found->second;
  auto& there = tree[to];
  const auto other = there.find(change.new_name);
  if (change.kind == Change::Kind::link) {
    if (is_dir(thing)) return EPERM;
    if (other != there.end()) return EEXIST;
    there[change.new_name] = thing;
    return 0;
  }
  if (change.kind == Change::Kind::exchange && other == there.end()) return ENOENT;
  if (is_dir(thing) && below(tree, to, thing)) return EINVAL;
  if (change.kind == Change::Kind::exchange) {
    const int second = other->second;
    if (is_dir(second) && below(tree, from, second)) return EINVAL;
    here[change.name] = second;
    there[change.new_name] = thing;
    return 0;
  }
  if (other != there.end()) {
    const int replaced = other->second;
    if (replaced == thing) return 0;
    if (is_dir(thing) && !is_dir(replaced)) return ENOTDIR;
    if (!is_dir(thing) && is_dir(replaced)) return EISDIR;
    if (is_dir(replaced)) {
      if (!tree[replaced].empty()) return ENOTEMPTY;
      tree.erase(replaced);
    }
  }
  here.erase(change.name);
  tree[to][change.new_name] = thing;
  return 0;
}

class ScheduleTest : public MetadataTest, public testing::WithParamInterface<int> {
 protected:
  ScheduleTest() : MetadataTest(4) {}

  // Everything under the root by path, with which names are one file.
  // While it settles: a name may go when it is looked at (its removal is carried on).
  std::string picture(InodeId directory, const std::string& path, std::map<std::uint64_t, std::string>& first,
                      bool settles) {
    std::map<std::string, Listing::Name> names;
    for (const auto& [cursor, each] : wait(metadata_->list(directory, {})).listing.names) names[each.name] = each;
    std::string text;
    for (const auto& [name, each] : names) {
      const Reply reply = find(directory, name);
      EXPECT_TRUE(reply.error == 0 || (settles && reply.error == ENOENT)) << path << "/" << name << ": " << reply.error;
      if (reply.error != 0) continue;
      const std::string whole = path + "/" + name;
      text += whole + (is_directory(each.type) ? "/" : "=" + first.try_emplace(raw(each.inode), whole).first->second) + "\n";
      if (is_directory(each.type)) text += picture(each.inode, whole, first, settles);
    }
    return text;
  }
  static std::string picture(const Tree& tree, int directory, const std::string& path, std::map<int, std::string>& first) {
    std::string text;
    for (const auto& [name, thing] : tree.at(directory)) {
      const std::string whole = path + "/" + name;
      text += whole + (is_dir(thing) ? "/" : "=" + first.try_emplace(thing, whole).first->second) + "\n";
      if (is_dir(thing)) text += picture(tree, thing, whole, first);
    }
    return text;
  }
  static std::string picture(const Tree& tree) {
    std::map<int, std::string> first;
    return picture(tree, kFirstDirectory, "", first);
  }
  std::string picture(bool settles = false) {
    std::map<std::uint64_t, std::string> first;
    return picture(kRootInode, "", first, settles);
  }
};

// Named, not in a lambda: the coroutine outlives whoever starts it.
Task<int> run(Metadata& metadata, std::vector<InodeId> directories, Change change) {
  const InodeId from = directories[change.from], to = directories[change.to];
  Reply reply;
  switch (change.kind) {
    case Change::Kind::create: {
      CreateRequest request;
      request.name = change.name;
      request.mode = S_IFREG | 0644;
      reply = co_await metadata.create(from, request);
      break;
    }
    case Change::Kind::mkdir: {
      CreateRequest request;
      request.name = change.name;
      request.mode = S_IFDIR | 0755;
      Inode parent;
      reply = co_await metadata.make_directory(from, request, parent);
      break;
    }
    case Change::Kind::unlink:
      reply = co_await metadata.unlink(from, change.name);
      break;
    case Change::Kind::rmdir:
      reply = co_await metadata.remove_directory(from, change.name);
      break;
    case Change::Kind::rename:
    case Change::Kind::exchange:
      reply = co_await metadata.rename(from, change.name, to, change.new_name,
                                       change.kind == Change::Kind::exchange ? kExchange : 0);
      break;
    case Change::Kind::link: {
      Reply found = co_await metadata.lookup(from, change.name);
      if (found.error != 0) co_return found.error;
      if (is_directory(found.inode->mode)) co_return EPERM;
      reply = co_await metadata.link(found.inode->id, S_IFREG, to, change.new_name);
    }
  }
  co_return reply.error;
}

TEST_P(ScheduleTest, TwoMountsAtOnceAreAsOneAfterTheOther) {
  const int seed = GetParam();
  base::Random random(static_cast<std::uint64_t>(seed) + 5000);
  SCOPED_TRACE("replay: --gtest_filter=*ScheduleTest*/" + std::to_string(seed));
  Tree tree;
  int files = 1, directories_made = kFirstDirectory + 1;
  std::vector<int> model{kFirstDirectory};
  std::vector<InodeId> real{kRootInode};
  tree[kFirstDirectory];
  for (int i = 0; i < 3; ++i) {
    const std::string name(1, static_cast<char>('x' + i));
    const std::size_t parent = i == 2 ? 1 : 0;  // z lies in x
    real.push_back(dir(real[parent], name));
    model.push_back(directories_made);
    tree[model[parent]][name] = directories_made;
    tree[directories_made++];
  }
  for (int i = 0; i < 12; ++i) {
    const std::size_t in = random.below(model.size());
    const std::string name(1, static_cast<char>('a' + random.below(6)));
    if (tree[model[in]].count(name) != 0) continue;
    file(real[in], name);
    tree[model[in]][name] = files++;
  }
  ASSERT_EQ(picture(), picture(tree));
  const auto any_change = [&] {
    Change change;
    change.kind = static_cast<Change::Kind>(random.below(7));
    change.from = random.below(model.size());
    change.to = random.below(model.size());
    const auto name = [&] {
      return std::string(1, random.chance(0.2) ? static_cast<char>('x' + random.below(3))
                                               : static_cast<char>('a' + random.below(6)));
    };
    change.name = name();
    change.new_name = name();
    return change;
  };
  for (int turn = 0; turn < 12; ++turn) {
    const Change one = any_change(), two = any_change();
    const int fresh_one = one.kind == Change::Kind::mkdir ? directories_made++ : files++;
    const int fresh_two = two.kind == Change::Kind::mkdir ? directories_made++ : files++;
    HeldClient first(*client_), second(*client_);
    MetadataOptions options;
    options.split_at = 4;
    Metadata first_metadata(first, store_->clock(), options), second_metadata(second, store_->clock(), options);
    std::optional<int> first_error, second_error;
    start(run(first_metadata, real, one), [&](int error) { first_error = error; });
    start(run(second_metadata, real, two), [&](int error) { second_error = error; });
    const bool one_dies = random.chance(0.4);
    int steps_left = one_dies ? static_cast<int>(random.below(12)) : -1;
    for (int step = 0; first.waiting() || second.waiting(); ++step) {
      if (step > 400) {
        later(5);  // one waits for what the other, dead, has left
        step = 0;
      }
      if (steps_left == 0) first.die();
      if (steps_left >= 0 && --steps_left < 0) continue;
      HeldClient& next = !first.waiting() ? second : !second.waiting() ? first : random.chance(0.5) ? first : second;
      if (next.waiting()) next.let_one_go();
    }
    ASSERT_TRUE(second_error.has_value()) << "turn " << turn;
    later(40);  // what was abandoned may be settled now
    for (int round = 0; round < 3; ++round) picture(true);
    fsck();
    // Which orders explain what came of it: each change done, wholly or not at all, one before the other.
    std::vector<std::pair<Tree, std::string>> possible;
    const auto consider = [&](bool with_first, bool first_is_first) {
      Tree result = tree;
      int error_one = -1, error_two = -1;
      if (with_first && first_is_first) error_one = apply(result, model, one, fresh_one);
      error_two = apply(result, model, two, fresh_two);
      if (with_first && !first_is_first) error_one = apply(result, model, one, fresh_one);
      if (second_error && *second_error != error_two) return;
      if (first_error && *first_error != error_one) return;
      possible.emplace_back(result, picture(result));
    };
    consider(true, true);
    consider(true, false);
    if (!first_error) consider(false, false);
    const std::string now = picture();
    const auto match = std::find_if(possible.begin(), possible.end(), [&](const auto& each) { return each.second == now; });
    const auto text = [](const Change& each) {
      return std::to_string(static_cast<int>(each.kind)) + " " + std::to_string(each.from) + "/" + each.name + " " +
             std::to_string(each.to) + "/" + each.new_name;
    };
    ASSERT_TRUE(match != possible.end())
        << "turn " << turn << ": " << text(one) << " (" << (first_error ? std::to_string(*first_error) : "died") << ") and "
        << text(two) << " (" << *second_error << ") left\n"
        << now << "from\n"
        << picture(tree);
    tree = match->first;
    first.end();
  }
}
INSTANTIATE_TEST_SUITE_P(Seeds, ScheduleTest, testing::Range(0, 80));

}  // namespace
}  // namespace fusionfs

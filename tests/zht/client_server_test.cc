// The client against a real node in a process of its own, which is killed, stopped and started under it.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <map>
#include <mutex>
#include <thread>

#include "zht/client.h"
#include "zht/client/control.h"
#include "zht/client/local_node.h"
#include "zht/support/paths.h"
#include "zht/support/process.h"
#include "zht/wire/zht.pb.h"

namespace zht {
namespace {

using namespace std::chrono_literals;

class ClientTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "zht-client-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    data_ = folder_ + "/data";
  }
  void TearDown() override {
    kill_node();
    std::filesystem::remove_all(folder_);
  }
  ClientOptions options() const {
    ClientOptions options;
    options.data_folder = data_;
    options.quiet = true;
    options.timeout = 60s;
    return options;
  }
  // Starts the node when none runs.
  std::unique_ptr<Client> client(ClientOptions with) {
    auto connected = connect(std::move(with));
    EXPECT_TRUE(connected) << connected.error().message;
    return connected ? *std::move(connected) : nullptr;
  }
  std::unique_ptr<Client> client() { return client(options()); }
  pid_t node() const { return support::held_by(data_ + "/node.lock").value_or(0); }
  void kill_node() {
    if (const pid_t pid = node(); pid > 0) {
      kill(pid, SIGCONT);
      kill(pid, SIGKILL);
      support::wait_until(20s, [&] { return !support::process_exists(pid); });
    }
  }
  // Stopped in all its threads when this returns: the signal reaches each at its own time.
  void stop_still() {
    const std::string tasks = "/proc/" + std::to_string(node()) + "/task";
    ASSERT_EQ(kill(node(), SIGSTOP), 0);
    ASSERT_TRUE(support::wait_until(20s, [&] {
      for (const auto& task : std::filesystem::directory_iterator(tasks)) {
        const auto stat = support::read_file(task.path().string() + "/stat");
        if (!stat || stat->find(") T ") == std::string::npos) return false;
      }
      return true;
    }));
  }
  std::string folder_, data_;
};

TEST_F(ClientTest, EveryOperationAnswersAsItsCommentSays) {
  const auto c = client();
  const auto version = c->insert("k", "one");
  ASSERT_TRUE(version) << version.error().message;
  EXPECT_EQ(c->insert_new("k", "two").code(), Code::conflict);
  EXPECT_EQ(c->lookup("k")->value, "one");
  const auto appended = c->append("k", "+two");
  EXPECT_EQ(appended->size, 7u);
  EXPECT_EQ(appended->fragment_index, 1u);
  const auto value = c->lookup("k");
  EXPECT_EQ(value->value, "one+two");
  EXPECT_EQ(value->fragments, (std::vector<std::uint32_t>{3, 4}));
  EXPECT_EQ(c->lookup("k", Range::tail(1))->value, "+two");
  EXPECT_EQ(c->lookup("k", Range::bytes(2, 3))->value, "e+t");
  auto swap = c->cswap("k", Condition::equals("no"), "x");
  EXPECT_FALSE(swap->swapped);
  EXPECT_EQ(swap->current, "one+two");
  swap = c->cswap("k", Condition::at_version(value->version), "three");
  EXPECT_TRUE(swap->swapped);
  EXPECT_GT(swap->version, value->version);
  EXPECT_TRUE(c->cswap("none", Condition::absent(), "there")->swapped);
  EXPECT_TRUE(c->cswap_remove("none", Condition::present())->swapped);
  EXPECT_EQ(c->lookup("none").code(), Code::not_found);
  EXPECT_EQ(c->callback("k", Condition::equals("three"), 30s)->value, "three");
  EXPECT_EQ(c->callback("k", Condition::absent(), 20ms).code(), Code::timeout);
  EXPECT_EQ(*c->update("n", "add", "41"), "41");
  EXPECT_EQ(*c->update("n", "add", "1"), "42");
  EXPECT_EQ(c->update("n", "no such procedure", "").code(), Code::invalid);
  EXPECT_TRUE(c->batch({Operation::insert("{t}a", "1"), Operation::append("{t}b", "2")}));
  EXPECT_EQ(c->batch({Operation::remove("{t}a"), Operation::check("{t}b", Condition::absent())}).code(),
            Code::conflict);
  EXPECT_EQ(c->lookup("{t}a")->value, "1") << "all or nothing";
  EXPECT_TRUE(c->remove("k"));
  EXPECT_EQ(c->remove("k").code(), Code::not_found);
  EXPECT_EQ(c->insert("", "v").code(), Code::invalid);
  EXPECT_EQ(c->insert("k", std::string(kMaxValueSize + 1, 'x')).code(), Code::invalid);
  const std::string big(kMaxValueSize, 'b');
  ASSERT_TRUE(c->insert("big", big));
  EXPECT_EQ(c->lookup("big")->value, big);
  EXPECT_EQ(c->call_all({Operation::insert("big", big), Operation::lookup("big"), Operation::lookup("")})[1].value,
            big);
}

TEST_F(ClientTest, PipelinedOperationsFromManyThreadsAreAllAnsweredOnce) {
  ClientOptions with = options();
  with.max_in_flight = 100;
  const auto c = client(with);
  constexpr int threads = 4, each = 5000;
  std::vector<std::atomic<int>> answered(threads * each);
  std::atomic<int> left = threads * each, wrong = 0;
  std::promise<void> done;
  std::vector<std::thread> pool;
  for (int t = 0; t < threads; t++)
    pool.emplace_back([&, t] {
      for (int i = 0; i < each; i++) {
        const int number = t * each + i;
        c->submit(Operation::insert("k" + std::to_string(number), std::to_string(number)),
                  [&, number](Outcome outcome) {
                    answered[static_cast<std::size_t>(number)]++;
                    if (!outcome.ok()) wrong++;
                    if (--left == 0) done.set_value();
                  });
      }
    });
  for (auto& thread : pool) thread.join();
  ASSERT_EQ(done.get_future().wait_for(120s), std::future_status::ready);
  EXPECT_EQ(wrong, 0);
  for (const auto& count : answered) ASSERT_EQ(count, 1);
  std::vector<Operation> lookups;
  for (int i = 0; i < threads * each; i++) lookups.push_back(Operation::lookup("k" + std::to_string(i)));
  const auto answers = c->call_all(std::move(lookups));
  for (int i = 0; i < threads * each; i++) ASSERT_EQ(answers[static_cast<std::size_t>(i)].value, std::to_string(i));
}

// A program that waits for many conditions goes on with its other work.
TEST_F(ClientTest, WaitersHoldUpNobodyElse) {
  ClientOptions with = options();
  with.max_in_flight = 100;
  with.max_waiters = 400;
  const auto c = client(with);
  ASSERT_TRUE(c->insert("here", "1"));
  std::promise<void> all_refused, all_woken;
  std::atomic<int> refused = 0, woken = 0;
  const auto began = std::chrono::steady_clock::now();
  for (int i = 0; i < 450; i++)
    c->submit(
        Operation::callback("nothing", Condition::present()),
        [&](Outcome outcome) {
          if (outcome.code == Code::no_space && ++refused == 50) all_refused.set_value();
          if (outcome.ok() && ++woken == 400) all_woken.set_value();
        },
        60s);
  std::promise<std::string> found;
  c->submit(Operation::lookup("here"), [&](Outcome outcome) { found.set_value(outcome.value); });
  EXPECT_EQ(found.get_future().get(), "1");
  EXPECT_EQ(all_refused.get_future().wait_for(30s), std::future_status::ready);
  EXPECT_TRUE(c->insert("nothing", "something"));
  EXPECT_EQ(all_woken.get_future().wait_for(30s), std::future_status::ready);
  EXPECT_LT(std::chrono::steady_clock::now() - began, 50s) << "before a wait would have ended by itself";
}

TEST_F(ClientTest, ACompletionMaySubmit) {
  const auto c = client();
  std::promise<std::string> found;
  c->submit(Operation::insert("a", "1"), [&](Outcome) {
    c->submit(Operation::append("a", "2"), [&](Outcome) {
      c->submit(Operation::lookup("a"), [&](Outcome outcome) { found.set_value(outcome.value); });
    });
  });
  auto future = found.get_future();
  ASSERT_EQ(future.wait_for(60s), std::future_status::ready);
  EXPECT_EQ(future.get(), "12");
}

// Every acknowledged append is there once; one whose outcome is unknown, at most once; one that failed, not at all.
TEST_F(ClientTest, KilledUnderLoadEveryAcknowledgedAppendIsThereOnce) {
  const auto c = client();
  struct Line {
    std::string text;
    Code code;
  };
  std::mutex mutex;
  std::map<std::string, std::vector<Line>> lines;  // by key
  std::atomic<bool> stop{false};
  std::atomic<int> count{0};
  const auto record = [&](const std::string& key, std::string text, Code code) {
    const std::lock_guard lock(mutex);
    lines[key].push_back({std::move(text), code});
    count++;
  };
  std::vector<std::thread> pool;
  for (int t = 0; t < 3; t++)  // synchronous
    pool.emplace_back([&, t] {
      for (int i = 0; !stop; i++) {
        const std::string text = std::to_string(t) + "." + std::to_string(i) + ";", key = "log" + std::to_string(i % 3);
        record(key, text, c->append(key, text).code());
      }
    });
  pool.emplace_back([&] {  // pipelined
    for (int i = 0; !stop; i += 20) {
      std::vector<Operation> operations;
      for (int k = 0; k < 20; k++)
        operations.push_back(Operation::append("log" + std::to_string(k % 3), "p." + std::to_string(i + k) + ";"));
      const auto answers = c->call_all(std::move(operations));
      for (int k = 0; k < 20; k++)
        record("log" + std::to_string(k % 3), "p." + std::to_string(i + k) + ";",
               answers[static_cast<std::size_t>(k)].code);
    }
  });
  for (int round = 0; round < 5; round++) {
    const int before = count;
    EXPECT_TRUE(support::wait_until(120s, [&] { return count > before + 300; })) << "no progress after kill " << round;
    kill_node();
  }
  const int before = count;
  EXPECT_TRUE(support::wait_until(120s, [&] { return count > before + 300; }));
  stop = true;
  for (auto& thread : pool) thread.join();
  for (auto& [key, appended] : lines) {
    std::map<std::string, int> found;
    const auto value = c->lookup(key);
    ASSERT_TRUE(value) << value.error().message;
    for (std::size_t at = 0; at < value->value.size();) {
      const std::size_t end = value->value.find(';', at) + 1;
      found[value->value.substr(at, end - at)]++;
      at = end;
    }
    for (const Line& line : appended) {
      const int times = found[line.text];
      if (line.code == Code::ok)
        EXPECT_EQ(times, 1) << key << " " << line.text;
      else if (line.code == Code::timeout)
        EXPECT_LE(times, 1) << key << " " << line.text;
      else
        EXPECT_EQ(times, 0) << key << " " << line.text << " " << base::name_of(line.code);
    }
  }
}

TEST_F(ClientTest, ACallbackSurvivesTheNode) {
  const auto c = client();
  ASSERT_TRUE(c->insert("k", "old"));
  auto waiting = std::async(std::launch::async, [&] { return c->callback("k", Condition::equals("new"), 120s); });
  std::this_thread::sleep_for(50ms);  // most likely registered; the test holds either way
  kill_node();
  const auto second = client();
  ASSERT_TRUE(second->insert("k", "new"));
  const auto value = waiting.get();
  ASSERT_TRUE(value) << value.error().message;
  EXPECT_EQ(value->value, "new");
}

TEST_F(ClientTest, ASilentNodeMeansMayHaveHappenedForChangesAlone) {
  const auto c = client();
  ASSERT_TRUE(c->insert("k", "v"));
  stop_still();
  EXPECT_EQ(c->call(Operation::insert("k", "w"), 200ms).code, Code::timeout);
  EXPECT_EQ(c->call(Operation::lookup("k"), 200ms).code, Code::unavailable);
  const auto answers = c->call_all({Operation::append("l", "1"), Operation::lookup("k")}, 200ms);
  EXPECT_EQ(answers[0].code, Code::timeout);
  EXPECT_EQ(answers[1].code, Code::unavailable);
  ClientOptions hurried = options();
  hurried.timeout = hurried.connect_timeout = 300ms;
  EXPECT_EQ(connect(hurried).code(), Code::unavailable);
  ASSERT_EQ(kill(node(), SIGCONT), 0);
  EXPECT_TRUE(c->insert("k", "x"));
  EXPECT_EQ(c->lookup("k")->value, "x");
}

TEST_F(ClientTest, ASilentNodeIsAskedAnewAndExecutesOnce) {
  const auto c = client();
  ASSERT_TRUE(c->insert("sync", ""));
  stop_still();
  auto waiting = std::async(std::launch::async, [&] { return c->append("sync", "x"); });
  std::promise<Outcome> answer;
  c->submit(Operation::append("async", "x"), [&](Outcome outcome) { answer.set_value(std::move(outcome)); });
  // Both give up their connections after client::kPatience, and ask on new ones.
  std::this_thread::sleep_for(client::kPatience + 500ms);
  ASSERT_EQ(kill(node(), SIGCONT), 0);
  EXPECT_EQ(waiting.get()->size, 1u);
  EXPECT_EQ(answer.get_future().get().size, 1u);
  EXPECT_EQ(c->lookup("sync")->value, "x");
  EXPECT_EQ(c->lookup("async")->value, "x");
}

TEST_F(ClientTest, WithNobodyThereNothingHappened) {
  ClientOptions with = options();
  (void)client();  // starts the node
  with.start_node = false;
  const auto c = client(with);
  ASSERT_TRUE(c->insert("k", "v"));
  kill_node();
  const Outcome outcome = c->call(Operation::insert("k", "w"), 300ms);
  EXPECT_EQ(outcome.code, Code::unavailable) << outcome.message;
  EXPECT_EQ(c->call_all({Operation::append("k", "w")}, 300ms)[0].code, Code::unavailable);
  EXPECT_EQ(connect(with).code(), Code::unavailable);
  with.cluster = "127.0.0.1:1";
  const auto refused = connect(with);
  EXPECT_EQ(refused.code(), Code::unavailable);
  EXPECT_NE(refused.error().message.find("127.0.0.1:1"), std::string::npos);
  with.cluster = "nonsense";
  EXPECT_EQ(connect(with).code(), Code::invalid);
}

TEST_F(ClientTest, ClientsThatStartTogetherStartOneNode) {
  std::vector<std::future<bool>> clients;
  for (int i = 0; i < 6; i++)
    clients.push_back(std::async(std::launch::async, [this, i] {
      auto c = connect(options());
      return c && (*c)->insert("k" + std::to_string(i), "v");
    }));
  for (auto& one : clients) EXPECT_TRUE(one.get());
  const auto c = client();
  for (int i = 0; i < 6; i++) EXPECT_TRUE(c->lookup("k" + std::to_string(i)));
}

TEST_F(ClientTest, ANodeThatDoesNotStartSaysWhy) {
  std::filesystem::create_directories(data_);
  std::filesystem::permissions(data_, std::filesystem::perms::owner_all);
  std::filesystem::create_directories(data_ + "/store");
  ASSERT_TRUE(support::write_file_atomically(data_ + "/node.json", "not json"));
  const auto refused = connect(options());
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("did not start"), std::string::npos) << refused.error().message;
  EXPECT_NE(refused.error().message.find("node.json"), std::string::npos) << refused.error().message;
}

TEST_F(ClientTest, ADataFolderWithALongNameWorks) {
  data_ = folder_ + "/" + std::string(120, 'd');
  const auto c = client();
  ASSERT_TRUE(c->insert("k", "v"));
  EXPECT_EQ(c->lookup("k")->value, "v");
  kill_node();
  const auto socket = support::socket_path(data_, "node.sock");
  ASSERT_TRUE(socket);
  std::filesystem::remove(std::filesystem::path(*socket).parent_path());  // the link, not the folder
}

TEST_F(ClientTest, AClusterIsReachedOverTcpAndAgainAfterItsRestart) {
  const std::vector<std::string> arguments{"--listen", "127.0.0.1:0", "--instances", "2"};
  ASSERT_TRUE(client::start_node(data_, arguments));
  const auto status = client::fetch_status(*client::manager_of(data_), 20s);
  ASSERT_TRUE(status);
  ClientOptions with = options();
  with.cluster = status->manager_tcp();
  const auto c = client(with);
  for (int i = 0; i < 50; i++) ASSERT_TRUE(c->append("k" + std::to_string(i), "1"));
  std::atomic<bool> stop{false};
  std::atomic<int> failures{0};
  std::thread load([&] {
    for (int i = 0; !stop; i++)
      if (!c->insert("load" + std::to_string(i % 100), std::to_string(i))) failures++;
  });
  kill_node();
  // The manager comes back where it was; the instances may be elsewhere.
  const auto again = client::start_node(data_, {"--listen", with.cluster});
  ASSERT_TRUE(again) << again.error().message;
  std::vector<Operation> operations;
  for (int i = 0; i < 50; i++) operations.push_back(Operation::append("k" + std::to_string(i), "2"));
  for (const Outcome& outcome : c->call_all(std::move(operations))) EXPECT_TRUE(outcome.ok()) << outcome.message;
  for (int i = 0; i < 50; i++) EXPECT_EQ(c->lookup("k" + std::to_string(i))->value, "12");
  stop = true;
  load.join();
  EXPECT_EQ(failures, 0);
}

TEST_F(ClientTest, OutstandingRequestsAreAnsweredWhenTheClientEnds) {
  std::promise<Code> ended;
  {
    const auto c = client();
    ASSERT_TRUE(c->insert("other", "v"));
    c->submit(
        Operation::callback("k", Condition::present()), [&](Outcome outcome) { ended.set_value(outcome.code); }, 600s);
  }
  auto future = ended.get_future();
  ASSERT_EQ(future.wait_for(0s), std::future_status::ready);
  EXPECT_NE(future.get(), Code::ok);
}

TEST_F(ClientTest, AStoppedNodeIsNotStartedByAClientThatStillRuns) {
  const auto c = client();
  ASSERT_TRUE(c->insert("k", "v"));
  const pid_t pid = node();
  ASSERT_TRUE(client::ask_to_stop(*client::manager_of(data_), 20s));
  ASSERT_TRUE(support::wait_until(60s, [&] { return !support::process_exists(pid); }));
  EXPECT_EQ(c->call(Operation::lookup("k"), 2500ms).code, Code::unavailable);  // longer than the silence before a start
  EXPECT_EQ(node(), 0);
  const auto second = client();  // who comes now does start it, and the first goes on
  EXPECT_EQ(c->lookup("k")->value, "v");
}

TEST_F(ClientTest, StopEndsTheNode) {
  (void)client();
  const pid_t pid = node();
  ASSERT_GT(pid, 0);
  ASSERT_TRUE(client::ask_to_stop(*client::manager_of(data_), 20s));
  EXPECT_TRUE(support::wait_until(60s, [&] { return !support::process_exists(pid); }));
  EXPECT_FALSE(support::held_by(data_ + "/node.lock"));
}

}  // namespace
}  // namespace zht

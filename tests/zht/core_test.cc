// The instance through its front door: operations, refusals, retries, watchers, expiry, restarts.
#include <gtest/gtest.h>

#include "tests/support/local_client.h"
#include "zht/wire/frame.h"

namespace zht::core {
namespace {

using testing_support::LocalStore;

Procedures& procedures() {
  static Procedures all = [] {
    Procedures made;
    add_general_procedures(made);
    made.add("test.two_then_fail", [](Transaction& tables, Bytes key, Bytes arguments) -> Result<std::string> {
      TRY(tables.insert(key, "changed"));
      TRY(tables.append(key, arguments));
      return fail(Code::conflict, "no after all");
    });
    made.add("test.other_tag", [](Transaction& tables, Bytes, Bytes) -> Result<std::string> {
      (void)tables.lookup("{elsewhere}");
      return std::string();
    });
    made.add("test.own_changes", [](Transaction& tables, Bytes key, Bytes) -> Result<std::string> {
      TRY(tables.append(key, "a"));
      TRY(tables.append(key, "bc"));
      const auto seen = tables.lookup(key);
      TRY(tables.remove(key));
      if (tables.lookup(key)) return fail(Code::corrupt, "removed and there");
      TRY(tables.insert(key, seen->value + "!"));
      return seen->value + "/" + std::to_string(seen->fragment_count);
    });
    return made;
  }();
  return all;
}

struct CoreTest : testing::Test {
  LocalStore store{procedures()};
  std::unique_ptr<Client> client = store.client();
  std::string get(const std::string& key) {
    auto value = client->lookup(key);
    return value ? value->value : std::string(base::name_of(value.code()));
  }
};

TEST_F(CoreTest, WhatIsInsertedIsThere) {
  const auto first = client->insert("k", "one");
  const auto second = client->insert("k", "two");
  ASSERT_TRUE(first && second);
  EXPECT_GT(*second, *first);
  EXPECT_EQ(get("k"), "two");
  EXPECT_EQ(get("other"), "not_found");
}

TEST_F(CoreTest, VersionsGrowAcrossRemoveAndInsert) {
  const auto first = client->insert("k", "one");
  const auto removed = client->remove("k");
  const auto again = client->insert("k", "one");
  ASSERT_TRUE(first && removed && again);
  EXPECT_LT(*first, *removed);
  EXPECT_LT(*removed, *again);
  EXPECT_EQ(client->remove("absent").code(), Code::not_found);
}

TEST_F(CoreTest, InsertNewRefusesWhatIsThere) {
  EXPECT_TRUE(client->insert_new("k", "one"));
  EXPECT_EQ(client->insert_new("k", "two").code(), Code::conflict);
  EXPECT_EQ(get("k"), "one");
}

TEST_F(CoreTest, AppendMakesFragments) {
  EXPECT_EQ(client->append("k", "ab")->fragment_index, 0u);
  EXPECT_EQ(client->append("k", "cde")->fragment_index, 1u);
  const auto third = client->append("k", "f");
  EXPECT_EQ(third->fragment_index, 2u);
  EXPECT_EQ(third->size, 6u);
  const auto whole = client->lookup("k");
  EXPECT_EQ(whole->value, "abcdef");
  EXPECT_EQ(whole->fragments, (std::vector<std::uint32_t>{2, 3, 1}));
  const auto tail = client->lookup("k", Range::tail(2));
  EXPECT_EQ(tail->value, "cdef");
  EXPECT_EQ(tail->offset, 2u);
  EXPECT_EQ(tail->fragments, (std::vector<std::uint32_t>{3, 1}));
  const auto middle = client->lookup("k", Range::bytes(1, 3));
  EXPECT_EQ(middle->value, "bcd");
  EXPECT_EQ(middle->fragments, (std::vector<std::uint32_t>{1, 2}));
  EXPECT_EQ(client->lookup("k", Range::bytes(100, 3))->value, "");
  EXPECT_EQ(client->lookup("k", Range::nothing())->size, 6u);
}

TEST_F(CoreTest, AppendStopsAtItsLimit) {
  EXPECT_TRUE(client->append("k", "12345", 8));
  EXPECT_EQ(client->append("k", "6789", 8).code(), Code::no_space);
  EXPECT_EQ(get("k"), "12345");
}

TEST_F(CoreTest, CompareAndSwapByValueVersionAndAbsence) {
  EXPECT_TRUE(client->cswap("k", Condition::absent(), "one")->swapped);
  const auto refused = client->cswap("k", Condition::absent(), "two");
  EXPECT_FALSE(refused->swapped);
  EXPECT_EQ(refused->current, "one");
  const auto swapped = client->cswap("k", Condition::equals("one"), "two");
  EXPECT_TRUE(swapped->swapped);
  EXPECT_FALSE(client->cswap("k", Condition::at_version(refused->version), "three")->swapped);
  EXPECT_TRUE(client->cswap("k", Condition::at_version(swapped->version), "three")->swapped);
  EXPECT_TRUE(client->cswap_remove("k", Condition::equals("three"))->swapped);
  const auto absent = client->cswap("k", Condition::equals("three"), "four");
  EXPECT_FALSE(absent->swapped);
  EXPECT_FALSE(absent->current.has_value());
}

TEST_F(CoreTest, BatchIsAllOrNothing) {
  ASSERT_TRUE(client->insert("{t}a", "1"));
  const Outcome failed = client->call(Operation::batch({Operation::insert("{t}b", "2"), Operation::append("{t}a", "x"),
                                                        Operation::check("{t}a", Condition::equals("1"))}));
  EXPECT_EQ(failed.code, Code::conflict);
  EXPECT_EQ(failed.failed_index, 2u);
  EXPECT_EQ(get("{t}a"), "1");
  EXPECT_EQ(get("{t}b"), "not_found");
  const auto done = client->batch({Operation::insert_new("{t}b", "2"), Operation::append("{t}a", "x"), Operation::lookup("{t}a"),
                                   Operation::remove("{t}none", true)});
  ASSERT_TRUE(done) << done.error().message;
  EXPECT_EQ((*done)[2].value, "1x");
  EXPECT_EQ((*done)[0].version, (*done)[1].version);
  EXPECT_EQ(get("{t}b"), "2");
}

TEST_F(CoreTest, ProcedureThatFailsChangesNothing) {
  EXPECT_EQ(client->update("k", "test.two_then_fail", "x").code(), Code::conflict);
  EXPECT_EQ(get("k"), "not_found");
  EXPECT_EQ(client->update("k", "no.such", "x").code(), Code::invalid);
  EXPECT_EQ(client->update("k", "test.other_tag", "").code(), Code::invalid);
}

TEST_F(CoreTest, ProcedureSeesItsOwnChanges) {
  EXPECT_EQ(*client->update("k", "test.own_changes", ""), "abc/2");
  EXPECT_EQ(get("k"), "abc!");
}

TEST_F(CoreTest, GeneralProcedures) {
  EXPECT_EQ(*client->update("n", "add", "5"), "5");
  EXPECT_EQ(*client->update("n", "add", "-7"), "-2");
  EXPECT_EQ(*client->update("n", "max", "3"), "3");
  ASSERT_TRUE(client->append("l", "a") && client->append("l", "b"));
  EXPECT_EQ(client->update("l", "list_take", "1")->substr(4), "a");
  EXPECT_EQ(get("l"), "b");
}

TEST_F(CoreTest, KeysExpireAndTheirWatchersHear) {
  ASSERT_TRUE(client->insert("k", "v", std::chrono::milliseconds(500)));
  Code heard = Code::ok;
  bool told = false;
  client->submit(Operation::callback("k", Condition::absent()),
                 [&](const Outcome& outcome) { told = true; heard = outcome.code; }, std::chrono::seconds(10));
  store.advance(std::chrono::milliseconds(400));
  EXPECT_EQ(get("k"), "v");
  EXPECT_FALSE(told);
  store.advance(std::chrono::milliseconds(200));
  EXPECT_EQ(get("k"), "not_found");
  EXPECT_TRUE(told);
  EXPECT_EQ(heard, Code::ok);
  // What comes after it does not lie on top of it, not even after a replay of the log.
  ASSERT_TRUE(client->insert("e", "old", std::chrono::milliseconds(10)));
  store.clock().advance(std::chrono::milliseconds(20));
  EXPECT_EQ(client->append("e", "new")->size, 3u);
  store.restart(true);
  EXPECT_EQ(get("e"), "new");
}

TEST_F(CoreTest, CallbackIsAnsweredAtOnceWhenItHolds) {
  ASSERT_TRUE(client->insert("k", "v"));
  const auto value = client->callback("k", Condition::present(), std::chrono::seconds(1));
  EXPECT_EQ(value->value, "v");
}

TEST_F(CoreTest, CallbackHearsTheChangeItWaitsFor) {
  const auto version = client->insert("k", "v");
  std::vector<Outcome> heard;
  for (int i = 0; i < 3; i++)
    client->submit(Operation::callback("k", i == 2 ? Condition::equals("w") : Condition::after_version(*version)),
                   [&](Outcome outcome) { heard.push_back(std::move(outcome)); }, std::chrono::seconds(10));
  EXPECT_TRUE(heard.empty());
  ASSERT_TRUE(client->insert("k", "u"));
  EXPECT_EQ(heard.size(), 2u);
  ASSERT_TRUE(client->insert("k", "w"));
  ASSERT_EQ(heard.size(), 3u);
  EXPECT_EQ(heard[2].value, "w");
}

TEST_F(CoreTest, CallbackTimesOut) {
  Code heard = Code::ok;
  client->submit(Operation::callback("k", Condition::present()), [&](const Outcome& outcome) { heard = outcome.code; },
                 std::chrono::milliseconds(100));
  store.advance(std::chrono::milliseconds(50));
  EXPECT_EQ(heard, Code::ok);
  store.advance(std::chrono::milliseconds(60));
  EXPECT_EQ(heard, Code::timeout);
}

TEST_F(CoreTest, ScanSeesEveryKeyOfAPartition) {
  for (int i = 0; i < 100; i++) ASSERT_TRUE(client->insert("{t}" + std::to_string(i), "v"));
  const PartitionId partition = partition_of("{t}", client->partition_count());
  std::set<std::string> seen;
  std::uint64_t cursor = 0;
  do {
    const Outcome page = client->call(Operation::scan(partition, cursor, "{t}", 7));
    ASSERT_TRUE(page.ok());
    for (const auto& entry : page.entries) seen.insert(entry.key);
    cursor = page.cursor;
  } while (cursor != 0);
  EXPECT_EQ(seen.size(), 100u);
}

TEST_F(CoreTest, EverythingAcknowledgedSurvivesTheProcess) {
  for (int i = 0; i < 50; i++) ASSERT_TRUE(client->append("k" + std::to_string(i % 7), std::to_string(i) + ","));
  std::vector<std::string> before;
  for (int i = 0; i < 7; i++) before.push_back(get("k" + std::to_string(i)));
  store.restart(true);
  for (int i = 0; i < 7; i++) EXPECT_EQ(get("k" + std::to_string(i)), before[static_cast<std::size_t>(i)]);
}

// Frames by hand: what a client library would never send twice, and what an enemy would.
struct FrameTest : testing::Test {
  base::MemoryFiles files;
  base::FakeClock clock;
  std::uint64_t life = 1;
  MembershipTable table;
  std::unique_ptr<Instance> instance;
  std::uint64_t me = ((base::to_millis(base::FakeClock().wall()) / 4000) << 34) | 7;

  void SetUp() override { open(); }
  void open() {
    table = lone_table({1, life}, {InstanceAddress{}}, 4);
    instance = std::move(Instance::open(files, "store", {}, procedures(), table)).value();
  }
  void restart() {
    instance.reset();
    files.kill();
    life++;
    open();
  }
  std::string run(const std::string& request) {
    std::string reply;
    instance->begin_round(clock.now(), clock.wall());
    instance->on_frame(ConnectionId{1}, **wire::next_frame(request, wire::kMaxFrameSize), reply);
    EXPECT_TRUE(instance->end_round());
    return reply;
  }
  wire::Identity identity(const Operation& operation, std::uint64_t sequence, std::uint64_t floor = 0, bool retry = false) {
    const std::string& key = operation.kind == OpKind::batch ? operation.operations[0].key : operation.key;
    return {.request = sequence, .client = me, .sequence = sequence, .floor = floor, .epoch = life,
            .partition = partition_of(key, 4), .retry = retry};
  }
  Outcome ask(const Operation& operation, std::uint64_t sequence, std::uint64_t floor = 0, bool retry = false) {
    std::string request;
    wire::encode_request(request, operation, identity(operation, sequence, floor, retry));
    const std::string reply = run(request);
    return wire::decode_outcome(**wire::next_frame(reply, wire::kMaxFrameSize)).value();
  }
};

TEST_F(FrameTest, ARetryIsAnsweredNotExecuted) {
  const Outcome first = ask(Operation::append("k", "x"), 1);
  const Outcome again = ask(Operation::append("k", "x"), 1, 0, true);
  EXPECT_EQ(first.version, again.version);
  EXPECT_EQ(again.size, 1u);
  restart();
  const Outcome late = ask(Operation::append("k", "x"), 1, 0, true);
  EXPECT_EQ(late.version, first.version);
  EXPECT_EQ(late.fragment_index, 0u);
  EXPECT_EQ(ask(Operation::append("k", "y"), 2).size, 2u);
}

TEST_F(FrameTest, ARetriedBatchAndUpdateGetTheirFirstAnswers) {
  const auto batch = Operation::batch({Operation::append("{t}k", "x"), Operation::lookup("{t}k")});
  const Outcome first = ask(batch, 1);
  const Outcome sum = ask(Operation::update("{t}n", "add", "4"), 2);
  restart();
  const Outcome again = ask(batch, 1, 0, true);
  ASSERT_EQ(again.outcomes.size(), 2u);
  EXPECT_EQ(again.outcomes[1].value, "x");
  EXPECT_EQ(again.outcomes[0].version, first.outcomes[0].version);
  EXPECT_EQ(ask(Operation::update("{t}n", "add", "4"), 2, 0, true).value, sum.value);
}

TEST_F(FrameTest, ARefusedRequestCannotSucceedLater) {
  EXPECT_EQ(ask(Operation::cswap("k", Condition::equals("a"), "b"), 1).code, Code::conflict);
  EXPECT_EQ(ask(Operation::insert("k", "a"), 2).code, Code::ok);
  EXPECT_EQ(ask(Operation::cswap("k", Condition::equals("a"), "b"), 1, 0, true).code, Code::conflict);
}

TEST_F(FrameTest, BelowTheFloorIsUnknown) {
  ask(Operation::append("k", "x"), 1);
  ask(Operation::append("k", "x"), 2, 1);
  EXPECT_EQ(ask(Operation::append("k", "x"), 1, 0, true).code, Code::timeout);
  EXPECT_EQ(ask(Operation::lookup("k"), 0).size, 2u);
}

TEST_F(FrameTest, ARetryOfAForgottenSessionIsUnknown) {
  ask(Operation::append("k", "x"), 1);
  clock.advance(std::chrono::hours(3));
  instance->begin_round(clock.now(), clock.wall());
  instance->on_tick();
  ASSERT_TRUE(instance->end_round());
  EXPECT_EQ(ask(Operation::append("k", "x"), 1, 0, true).code, Code::timeout);
  EXPECT_EQ(ask(Operation::append("k", "x"), 2).code, Code::ok);  // new work of an idle client goes on
}

TEST_F(FrameTest, AnotherLifesRequestsAreSentAway) {
  std::string request;
  wire::encode_request(request, Operation::insert("k", "v"), identity(Operation::insert("k", "v"), 1));
  restart();
  const std::string reply = run(request);
  EXPECT_EQ((*wire::next_frame(reply, wire::kMaxFrameSize))->status, wire::kStatusRetry);
  EXPECT_EQ((*wire::next_frame(reply, wire::kMaxFrameSize))->epoch, life);
  EXPECT_EQ(ask(Operation::lookup("k"), 0).code, Code::not_found);
}

TEST_F(FrameTest, AChangeWithoutIdentityIsRefused) {
  EXPECT_EQ(ask(Operation::insert("k", "v"), 0).code, Code::invalid);
}

TEST_F(FrameTest, AKeyOfAnotherPartitionIsRefused) {
  auto who = identity(Operation::insert("k", "v"), 1);
  who.partition = PartitionId{(static_cast<std::uint32_t>(who.partition) + 1) % 4};
  std::string request;
  wire::encode_request(request, Operation::insert("k", "v"), who);
  const std::string reply = run(request);
  EXPECT_EQ((*wire::next_frame(reply, wire::kMaxFrameSize))->status, static_cast<std::uint8_t>(Code::invalid));
}

// Every byte of a valid request changed at random: an answer or none, never a crash, and the store still serves.
TEST_F(FrameTest, GarbledRequestsHarmNothing) {
  base::Random random(1);
  const auto batch = Operation::batch({Operation::cswap("{t}k", Condition::equals("a"), "b", std::chrono::seconds(1)),
                                       Operation::append("{t}k", "x", 10), Operation::update("{t}k", "add", "1")});
  for (int round = 0; round < 20'000; round++) {
    std::string request;
    const auto& operation = round % 3 == 0   ? batch
                            : round % 3 == 1 ? Operation::callback("k", Condition::at_version(3))
                                             : Operation::scan(PartitionId{0});
    wire::encode_request(request, operation,
                         operation.kind == OpKind::scan ? wire::Identity{.epoch = life}
                                                        : identity(operation, 1 + static_cast<std::uint64_t>(round)));
    for (std::uint64_t changes = 1 + random.below(4); changes > 0; changes--)
      request[random.below(request.size())] = static_cast<char>(random.next());
    auto frame = wire::next_frame(request, wire::kMaxFrameSize);
    if (!frame || !*frame) continue;
    std::string reply;
    instance->begin_round(clock.now(), clock.wall());
    instance->on_frame(ConnectionId{1}, **frame, reply);
    ASSERT_TRUE(instance->end_round());
    if (!reply.empty()) { ASSERT_TRUE(wire::next_frame(reply, wire::kMaxFrameSize)); }
  }
  // As another client: this one may have said goodbye.
  me++;
  EXPECT_EQ(ask(Operation::insert("fine", "v"), 1'000'000).code, Code::ok);
}

}  // namespace
}  // namespace zht::core

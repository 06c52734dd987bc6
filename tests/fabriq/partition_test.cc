// What one partition of a queue promises, one fact a test.
#include <gmock/gmock.h>

#include "tests/fabriq/box.h"

namespace fabriq_test {
namespace {

using Outcome = Settled::Outcome;

TEST(Partition, MessagesComeInTheOrderInWhichTheyWerePushed) {
  Box box;
  for (const char* body : {"a", "b", "c"}) box.push(body);
  EXPECT_EQ(box.pop().body(), "a");
  EXPECT_EQ(box.pop().body(), "b");
  EXPECT_EQ(box.pop().body(), "c");
  EXPECT_EQ(box.pop().size(), 0u);
}

TEST(Partition, APopTakesSeveral) {
  Box box;
  for (int i = 0; i < 10; i++) box.push(std::to_string(i));
  const auto first = box.pop(4);
  ASSERT_EQ(first.size(), 4u);
  EXPECT_EQ(first.body(3), "3");
  EXPECT_EQ(first.reply.groups.size(), 1u);
  EXPECT_EQ(first.reply.ready_left, 6u);
  EXPECT_EQ(box.pop(100).size(), 6u);
}

TEST(Partition, AnAcknowledgedMessageIsGone) {
  Box box;
  box.push("a");
  const auto popped = box.pop();
  EXPECT_EQ(box.ack(popped.receipt()), Outcome::done);
  box.advance(1h);
  EXPECT_EQ(box.pop().size(), 0u);
  EXPECT_EQ(box.info().acked, 1u);
  EXPECT_EQ(box.info().leased, 0u);
}

TEST(Partition, TheSameReceiptAgainIsFine) {
  Box box;
  box.push("a");
  const auto popped = box.pop();
  EXPECT_EQ(box.ack(popped.receipt()), Outcome::done);
  EXPECT_EQ(box.ack(popped.receipt()), Outcome::already);
  EXPECT_EQ(box.info().acked, 1u);
  box.advance(25h);
  EXPECT_EQ(box.ack(popped.receipt()), Outcome::superseded);  // nobody remembers
}

TEST(Partition, AnUnacknowledgedMessageComesBackWithItsDeliveryCounted) {
  Box box;
  box.push("a");
  const auto first = box.pop();
  EXPECT_EQ(first.deliveries(), 1u);
  box.advance(29s);
  EXPECT_EQ(box.pop().size(), 0u);
  box.advance(2s);
  const auto second = box.pop();
  ASSERT_EQ(second.body(), "a");
  EXPECT_EQ(second.deliveries(), 2u);
  EXPECT_EQ(second.reply.messages[0].number, first.reply.messages[0].number);
}

TEST(Partition, AStaleReceiptIsRefusedAndTheCurrentOneIsTaken) {
  Box box;
  box.push("a");
  const auto first = box.pop();
  box.advance(31s);
  const auto second = box.pop();
  EXPECT_EQ(box.ack(first.receipt()), Outcome::superseded);
  EXPECT_EQ(box.ack(second.receipt()), Outcome::done);
  EXPECT_EQ(box.ack(first.receipt()), Outcome::superseded);
  EXPECT_EQ(box.ack(second.receipt()), Outcome::already);
  EXPECT_EQ(box.info().acked, 1u);
}

TEST(Partition, ALateAcknowledgementCountsUnlessTheMessageWentOn) {
  Box box;
  box.push("a");
  const auto first = box.pop();
  box.advance(31s);
  EXPECT_EQ(box.info().ready, 1u);  // it is back
  EXPECT_EQ(box.ack(first.receipt()), Outcome::done);
  EXPECT_EQ(box.pop().size(), 0u);
  EXPECT_EQ(box.info().ready, 0u);
}

TEST(Partition, AnAlteredReceiptIsForged) {
  Box box;
  box.push("a");
  box.push("b");
  const auto popped = box.pop();
  const std::string text = popped.receipt().text();
  std::size_t refused = 0;
  for (std::size_t i = 1; i < text.size(); i++) {
    std::string other = text;
    other[i] = other[i] == '0' ? '1' : '0';
    const auto receipt = Receipt::parse(other);
    if (!receipt || box.ack(*receipt) == Outcome::forged) refused++;
  }
  EXPECT_EQ(refused, text.size() - 1);
  EXPECT_EQ(box.ack(*Receipt::parse(text)), Outcome::done);
}

TEST(Partition, AMessageGivenBackComesAtOnceOrLater) {
  Box box;
  box.push("a");
  auto popped = box.pop();
  EXPECT_EQ(box.nack(popped.receipt()), Outcome::done);
  EXPECT_EQ(box.nack(popped.receipt()), Outcome::already);
  EXPECT_EQ(box.ack(popped.receipt()), Outcome::superseded);
  popped = box.pop();
  EXPECT_EQ(popped.deliveries(), 2u);
  EXPECT_EQ(box.nack(popped.receipt(), 5000), Outcome::done);
  const auto empty = box.pop();
  EXPECT_EQ(empty.size(), 0u);
  EXPECT_GT(empty.reply.next_event_ms, 0u);
  EXPECT_LE(empty.reply.next_event_ms, 5000u);
  box.advance(5s);
  EXPECT_EQ(box.pop().deliveries(), 3u);
}

TEST(Partition, AnExtendedLeaseEndsLater) {
  Box box;
  box.push("a");
  const auto popped = box.pop();
  box.advance(20s);
  EXPECT_EQ(box.extend(popped.receipt(), 60'000), Outcome::done);
  box.advance(50s);
  EXPECT_EQ(box.pop().size(), 0u);
  box.advance(11s);
  EXPECT_EQ(box.pop().body(), "a");
  EXPECT_EQ(box.extend(popped.receipt(), 60'000), Outcome::superseded);
}

TEST(Partition, OneOfABatchIsExtendedTheOthersComeBack) {
  Box box;
  for (const char* body : {"a", "b", "c"}) box.push(body);
  const auto popped = box.pop(3);
  EXPECT_EQ(box.extend(popped.receipt(1), 120'000), Outcome::done);
  box.advance(31s);
  const auto back = box.pop(3);
  ASSERT_EQ(back.size(), 2u);
  EXPECT_EQ(back.body(0), "a");
  EXPECT_EQ(back.body(1), "c");
  EXPECT_EQ(box.ack(popped.receipt(1)), Outcome::done);
  EXPECT_EQ(box.ack(popped.receipt(0)), Outcome::superseded);
}

TEST(Partition, AReceiptOfAWholeBatchSettlesAllOfIt) {
  Box box;
  for (int i = 0; i < 100; i++) box.push("m");
  const auto popped = box.pop(100);
  ASSERT_EQ(popped.reply.groups.size(), 1u);
  const Settled settled = box.settle(Settle::Kind::acknowledge, popped.reply.groups[0]);
  EXPECT_EQ(settled.outcome, Outcome::done);
  EXPECT_EQ(settled.settled, 100u);
  EXPECT_EQ(box.ack(popped.receipt(17)), Outcome::already);
  EXPECT_EQ(box.info().acked, 100u);
}

TEST(Partition, AnAtMostOncePopRemoves) {
  Box box;
  box.push("a");
  PopRequest request;
  request.at_most_once = true;
  const auto popped = box.pop(request);
  EXPECT_EQ(popped.body(), "a");
  EXPECT_EQ(popped.receipt().count, 0u);
  box.advance(1h);
  EXPECT_EQ(box.pop().size(), 0u);
  EXPECT_EQ(box.info().acked, 1u);
}

TEST(Partition, AcknowledgementsRideOnAPop) {
  Box box;
  box.push("a");
  box.push("b");
  const auto first = box.pop();
  PopRequest request;
  request.items = {{Settle::Kind::acknowledge, first.receipt(), 0}};
  const auto second = box.pop(request);
  EXPECT_EQ(second.body(), "b");
  ASSERT_EQ(second.reply.items.size(), 1u);
  EXPECT_EQ(second.reply.items[0].outcome, Outcome::done);
  EXPECT_EQ(box.info().acked, 1u);
}

TEST(Partition, AProducersRetryMakesNoSecondMessage) {
  Box box;
  const auto first = box.push_as("p", 10, {"a", "b"});
  const auto again = box.push_as("p", 10, {"a", "b"});
  ASSERT_TRUE(first && again);
  EXPECT_FALSE(first->messages[0].repeated);
  EXPECT_TRUE(again->messages[0].repeated);
  EXPECT_EQ(first->messages[1].number, again->messages[1].number);
  const auto overlapping = box.push_as("p", 11, {"b", "c"});
  EXPECT_TRUE(overlapping->messages[0].repeated);
  EXPECT_FALSE(overlapping->messages[1].repeated);
  EXPECT_EQ(box.push_as("q", 10, {"d"})->messages[0].repeated, false);
  const auto popped = box.pop(10);
  ASSERT_EQ(popped.size(), 4u);
  EXPECT_EQ(popped.body(2), "c");
}

TEST(Partition, ARetryIsKnownAlsoAfterTheMessageWasSettled) {
  Box box;
  ASSERT_TRUE(box.push_as("p", 0, {"a"}));
  box.ack(box.pop().receipt());
  EXPECT_TRUE(box.push_as("p", 0, {"a"})->messages[0].repeated);
  EXPECT_EQ(box.pop().size(), 0u);
}

TEST(Partition, APushThatIsTooOldToBeRememberedIsRefused) {
  Box box;
  for (std::uint64_t i = 0; i < 5000; i++) ASSERT_TRUE(box.push_as("p", i, {"m"}));
  EXPECT_TRUE(box.push_as("p", 4500, {"m"})->messages[0].repeated);
  EXPECT_EQ(box.push_as("p", 3, {"m"}).code(), Code::conflict);
  EXPECT_EQ(box.info().pushed, 5000u);
}

TEST(Partition, AProducerIsRememberedADayAfterItsLastPush) {
  Box box;
  for (std::uint64_t day = 0; day < 10; day++) {
    ASSERT_TRUE(box.push_as("p", day, {"m"}));
    box.advance(23h);
    EXPECT_TRUE(box.push_as("p", day, {"m"})->messages[0].repeated) << day;
  }
}

TEST(Partition, AMessageIdIsTakenOnce) {
  Box box;
  PushRequest request;
  request.queue_id = 77;
  request.id = "order-1";
  request.messages = {{"", "a"}};
  const auto first = box.push(request);
  const auto again = box.push(request);
  EXPECT_EQ(first->messages[0].number, again->messages[0].number);
  EXPECT_TRUE(again->messages[0].repeated);
  EXPECT_EQ(box.info().ready, 1u);
}

TEST(Partition, ADelayedMessageComesWhenItsTimeHasCome) {
  Box box;
  box.push("later", 60'000);
  box.push("now");
  EXPECT_EQ(box.pop().body(), "now");
  EXPECT_EQ(box.pop().size(), 0u);
  EXPECT_EQ(box.info().waiting, 1u);
  box.advance(61s);
  EXPECT_EQ(box.pop(2).size(), 2u);  // the other's lease has ended, too
}

TEST(Partition, ADeadMessageWaitsOnItsOwnListUntilRedriven) {
  Box box(Descriptor{.max_deliveries = 2});
  box.push("poison");
  box.nack(box.pop().receipt());
  const auto second = box.pop();
  EXPECT_EQ(second.deliveries(), 2u);
  box.nack(second.receipt());
  EXPECT_EQ(box.pop().size(), 0u);
  EXPECT_EQ(box.info().dead, 1u);
  EXPECT_EQ(box.peek(5, true).body(), "poison");
  std::string arguments;
  base::Writer writer(arguments);
  writer.u64(77);
  writer.u64(10);
  box.run("fabriq.redrive", arguments);
  EXPECT_EQ(box.info().dead, 0u);
  const auto third = box.pop();
  EXPECT_EQ(third.deliveries(), 1u);
  EXPECT_EQ(box.ack(second.receipt()), Outcome::superseded);
  EXPECT_EQ(box.ack(third.receipt()), Outcome::done);
  EXPECT_EQ(box.ack(second.receipt()), Outcome::superseded);
}

TEST(Partition, APurgeTakesEverythingAndEveryReceiptWithIt) {
  Box box;
  for (int i = 0; i < 10; i++) box.push("m");
  const auto popped = box.pop(3);
  box.push("later", 1000);
  box.run("fabriq.purge", Bytes("\x4d\0\0\0\0\0\0\0", 8));
  EXPECT_EQ(box.ack(popped.receipt()), Outcome::superseded);
  box.advance(1h);
  EXPECT_EQ(box.pop(10).size(), 0u);
  const Info info = box.info();
  EXPECT_EQ(info.purged, 11u);
  EXPECT_EQ(info.bytes, 0u);
  box.push("new");
  EXPECT_EQ(box.pop().body(), "new");
  std::string keys;
  for (const auto& key : box.tables.keys(Box::kTag)) base::Writer(keys).str(key);
  box.run("fabriq.sweep", keys);
  EXPECT_LE(box.tables.count(Box::kTag), 5u);  // d, w, r, the new message's segment and lease
  EXPECT_EQ(box.info().leased, 1u);
}

TEST(Partition, AFullQueueRefusesAndTakesAgainAfterAPop) {
  Box box(Descriptor{.max_bytes = 1000});
  const std::string body(400, 'x');
  box.push(body);
  box.push(body);
  PushRequest request;
  request.queue_id = 77;
  request.messages = {{"", body}};
  EXPECT_EQ(box.push(request).code(), Code::no_space);
}

TEST(Partition, TheCostOfAnOperationDoesNotGrowWithTheQueue) {
  Box box;
  box.push("first");
  ASSERT_TRUE(box.push_as("p", 0, {std::string(100, 'x')}));
  const auto small_push = box.tables.cost;
  for (std::uint64_t i = 1; i < 30'000; i++) ASSERT_TRUE(box.push_as("p", i, {std::string(100, 'x')}));
  ASSERT_TRUE(box.push_as("p", 30'000, {std::string(100, 'x')}));
  EXPECT_LE(box.tables.cost.steps, small_push.steps + 2);
  EXPECT_LE(box.tables.cost.read, small_push.read + 150);
  EXPECT_LE(box.tables.cost.written, small_push.written + 50);
  for (int i = 0; i < 10'000; i++) {
    const auto popped = box.pop();
    EXPECT_LE(box.tables.cost.steps, 12u);
    EXPECT_LE(box.tables.cost.read, 1000u);
    EXPECT_LE(box.tables.cost.written, 400u);
    ASSERT_EQ(popped.size(), 1u);
    if (i % 2 == 0) continue;  // leases pile up
    box.ack(popped.receipt());
    EXPECT_LE(box.tables.cost.steps, 10u);
    EXPECT_LE(box.tables.cost.written, 300u);
  }
}

TEST(Partition, ADrainedQueueGivesItsSpaceBack) {
  Box box;
  for (int i = 0; i < 3000; i++) box.push(std::string(10'000, 'x'));
  EXPECT_GT(box.tables.count("{q:jobs:0}s"), 5u);
  for (int i = 0; i < 3000; i++) {
    const auto popped = box.pop();
    ASSERT_EQ(popped.size(), 1u);
    box.ack(popped.receipt());
  }
  EXPECT_EQ(box.tables.count("{q:jobs:0}s"), 0u);
  EXPECT_EQ(box.info().bytes, 0u);
}

TEST(Partition, ABigMessageComesBackWhole) {
  Box box;
  const std::string body(kMaxMessageSize, 'b');
  box.push("small");
  box.push(body);
  box.push("small");
  const auto popped = box.pop(3);
  ASSERT_GE(popped.size(), 1u);
  const auto next = box.pop(3);
  ASSERT_GE(next.size(), 1u);
  EXPECT_EQ(next.reply.messages[0].body.size(), body.size());
  box.advance(1h);
  std::size_t total = 0;
  for (int i = 0; i < 5; i++) total += box.pop(3).size();
  EXPECT_EQ(total, 3u);
}

TEST(Partition, AClockSetBackHoldsNothingUpForLong) {
  Box box;
  box.push("a");
  box.pop();
  box.clock.jump(-24h * 365);
  EXPECT_EQ(box.pop().size(), 0u);
  box.push("b");
  EXPECT_EQ(box.pop().body(), "b");
  box.advance(31s);
  EXPECT_EQ(box.pop(2).size(), 2u);
}

TEST(Partition, APushRingsTheBell) {
  Box box;
  const auto empty = box.pop();
  EXPECT_EQ(empty.reply.bell, box.tables.version_of("{q:jobs:0}w"));
  EXPECT_EQ(empty.reply.next_event_ms, kNoEvent);
  box.push("a");
  EXPECT_GT(box.tables.version_of("{q:jobs:0}w"), empty.reply.bell);
}

TEST(Partition, AnotherQueueOfTheSameNameIsToldSo) {
  Box box;
  PopRequest request;
  request.queue_id = 78;
  EXPECT_EQ(box.call("fabriq.pop", request.encode()).code(), Code::conflict);
  box.run("fabriq.close", Bytes("\x4d\0\0\0\0\0\0\0", 8));
  request.queue_id = 77;
  EXPECT_EQ(box.call("fabriq.pop", request.encode()).code(), Code::not_found);
}

TEST(Receipt, SiphashGivesThePublishedValue) {
  std::string data;
  for (char c = 0; c < 15; c++) data.push_back(c);
  EXPECT_EQ(siphash({0x0706050403020100ull, 0x0f0e0d0c0b0a0908ull}, data), 0xa129ca6149be45e5ull);
}

TEST(Requests, CutShortAreRefused) {
  PushRequest push;
  push.messages = {{"attributes", "body"}};
  PopRequest pop;
  pop.items = {{Settle::Kind::extend, Receipt{}, 5}};
  const std::string pushed = push.encode(), popped = pop.encode();
  for (std::size_t size = 0; size < pushed.size(); size++)
    EXPECT_FALSE(PushRequest::decode(Bytes(pushed).substr(0, size)));
  for (std::size_t size = 0; size < popped.size(); size++)
    EXPECT_FALSE(PopRequest::decode(Bytes(popped).substr(0, size)));
  EXPECT_TRUE(PushRequest::decode(pushed));
  EXPECT_TRUE(PopRequest::decode(popped));
}

}  // namespace
}  // namespace fabriq_test

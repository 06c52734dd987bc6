// One partition of a queue in memory, in a test's words.
#pragma once

#include <gtest/gtest.h>

#include "fabriq/core/messages.h"
#include "fabriq/core/procedures.h"
#include "tests/fabriq/memory_tables.h"

namespace fabriq_test {

using namespace fabriq;
using namespace std::chrono_literals;

class Box {
 public:
  explicit Box(Descriptor descriptor = {}) : tables(clock), descriptor_(descriptor) {
    add_procedures(procedures_);
    descriptor_.queue_id = 77;
    descriptor_.secret = {1, 2};
    run("fabriq.open", descriptor_.encode());
  }

  Result<std::string> call(std::string_view name, Bytes arguments) {
    return tables.run(procedures_, name, kTag, arguments);
  }
  std::string run(std::string_view name, Bytes arguments) {
    auto result = call(name, arguments);
    EXPECT_TRUE(result) << name << ": " << (result ? "" : result.error().message);
    return result ? *result : std::string();
  }

  Result<PushReply> push(const PushRequest& request) {
    TRY_LET(reply, call("fabriq.push", request.encode()));
    return PushReply::decode(reply);
  }
  // One message each, without a producer.
  std::uint64_t push(Bytes body, std::uint64_t delay_ms = 0) {
    PushRequest request;
    request.queue_id = 77;
    request.delay_ms = delay_ms;
    request.messages = {{"", body}};
    auto reply = push(request);
    EXPECT_TRUE(reply) << (reply ? "" : reply.error().message);
    return reply ? reply->messages.at(0).number : 0;
  }
  Result<PushReply> push_as(std::string producer, std::uint64_t sequence, std::vector<std::string> bodies) {
    PushRequest request;
    request.queue_id = 77;
    request.producer = std::move(producer);
    request.sequence = sequence;
    for (const auto& body : bodies) request.messages.push_back({"", body});
    return push(request);
  }

  struct Popped {
    std::string bytes;  // what the reply borrows from
    PopReply reply;
    std::string body(std::size_t i = 0) const {
      return i < reply.messages.size() ? std::string(reply.messages[i].body) : "(none)";
    }
    const Receipt& receipt(std::size_t i = 0) const { return reply.messages.at(i).receipt; }
    std::uint32_t deliveries(std::size_t i = 0) const { return reply.messages.at(i).deliveries; }
    std::size_t size() const { return reply.messages.size(); }
  };
  Popped pop(PopRequest request) {
    request.queue_id = 77;
    Popped popped;
    popped.bytes = run("fabriq.pop", request.encode());
    auto reply = PopReply::decode(popped.bytes);
    EXPECT_TRUE(reply);
    if (reply) popped.reply = *reply;
    return popped;
  }
  Popped pop(std::uint32_t count = 1) {
    PopRequest request;
    request.max_count = count;
    return pop(request);
  }
  Settled settle(Settle::Kind kind, const Receipt& receipt, std::uint64_t ms = 0) {
    SettleRequest request;
    request.queue_id = 77;
    request.items = {{kind, receipt, ms}};
    auto reply = SettleReply::decode(run("fabriq.settle", request.encode()));
    EXPECT_TRUE(reply && reply->items.size() == 1);
    return reply && !reply->items.empty() ? reply->items[0] : Settled{};
  }
  Settled::Outcome ack(const Receipt& receipt) { return settle(Settle::Kind::acknowledge, receipt).outcome; }
  Settled::Outcome nack(const Receipt& receipt, std::uint64_t ms = 0) {
    return settle(Settle::Kind::give_back, receipt, ms).outcome;
  }
  Settled::Outcome extend(const Receipt& receipt, std::uint64_t ms) {
    return settle(Settle::Kind::extend, receipt, ms).outcome;
  }

  Info info() {
    auto info = Info::decode(run("fabriq.info", Bytes("\x4d\0\0\0\0\0\0\0", 8)));
    EXPECT_TRUE(info);
    return info ? *info : Info{};
  }
  Popped peek(std::uint32_t count, bool dead = false) {
    Popped popped;
    popped.bytes = run("fabriq.peek", PeekRequest{77, count, dead}.encode());
    popped.reply = *PopReply::decode(popped.bytes);
    return popped;
  }
  void advance(base::Duration by) { clock.advance(by); }

  static constexpr std::string_view kTag = "{q:jobs:0}";
  base::FakeClock clock;
  MemoryTables tables;

 private:
  Descriptor descriptor_;
  zht::Procedures procedures_;
};

}  // namespace fabriq_test

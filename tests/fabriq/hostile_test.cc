// Arguments and stored records as nobody should send or leave them: every procedure answers, none crashes, and a
// refused one changes nothing.
#include "novoht/base/random.h"
#include "tests/fabriq/box.h"

namespace fabriq_test {
namespace {

std::string damaged(std::string bytes, base::Random& random) {
  switch (random.below(4)) {
    case 0:
      return bytes.substr(0, random.below(bytes.size() + 1));
    case 1:
      for (std::uint64_t n = 1 + random.below(4); n > 0 && !bytes.empty(); n--)
        bytes[random.below(bytes.size())] = static_cast<char>(random.next());
      return bytes;
    case 2:
      bytes.insert(random.below(bytes.size() + 1), std::string(1 + random.below(9), static_cast<char>(random.next())));
      return bytes;
    default:
      for (std::size_t i = 0; i + 4 <= bytes.size() && random.chance(0.8); i += 1 + random.below(8))
        base::store<std::uint32_t>(bytes.data() + i, random.chance(0.5) ? UINT32_MAX : 0);
      return bytes;
  }
}

constexpr const char* kNames[] = {"fabriq.open", "fabriq.close", "fabriq.push",    "fabriq.pop",   "fabriq.settle",
                                  "fabriq.peek", "fabriq.info",  "fabriq.redrive", "fabriq.purge", "fabriq.sweep"};

std::vector<std::string> valid_arguments(Box& box) {
  PushRequest push;
  push.queue_id = 77;
  push.producer = "p";
  push.messages = {{"", "one"}, {"", "two"}};
  PopRequest pop;
  pop.queue_id = 77;
  pop.max_count = 2;
  SettleRequest settle;
  settle.queue_id = 77;
  box.push("m");
  const auto popped = box.pop();
  if (popped.size() > 0) settle.items = {{Settle::Kind::give_back, popped.receipt(), 10}};
  pop.items = settle.items;
  return {Descriptor{.queue_id = 77}.encode(),
          push.encode(),
          pop.encode(),
          settle.encode(),
          PeekRequest{77, 5, false}.encode(),
          std::string("\x4d\0\0\0\0\0\0\0", 8)};
}

TEST(Hostile, DamagedArgumentsAreAnsweredByEveryProcedure) {
  base::Random random(1);
  for (int round = 0; round < 300; round++) {
    Box box;  // the last one may be closed by now
    for (const std::string& valid : valid_arguments(box)) {
      const std::string bytes = damaged(valid, random);
      for (const char* name : kNames) {
        const auto result = box.call(name, bytes);
        if (!result) {
          EXPECT_FALSE(result.error().message.empty());
        }
      }
    }
  }
}

// Whoever can write to the store can damage a queue: it then says so, or goes on with what it finds.
TEST(Hostile, DamagedRecordsAreAnsweredToo) {
  for (std::uint64_t seed = 1; seed <= 300; seed++) {
    base::Random random(seed);
    Box box;
    for (int i = 0; i < 5; i++) box.push("message");
    box.push("later", 1000);
    box.nack(box.pop().receipt());
    box.pop(2);
    const auto keys = box.tables.keys(Box::kTag);
    std::string& victim = box.tables.bytes_of(keys[random.below(keys.size())]);
    victim = damaged(victim, random);
    box.advance(1min);
    for (int round = 0; round < 3; round++) {
      PushRequest push;
      push.queue_id = 77;
      push.messages = {{"", "m"}};
      PopRequest pop;
      pop.queue_id = 77;
      pop.max_count = 10;
      for (const auto& [name, arguments] :
           std::vector<std::pair<const char*, std::string>>{{"fabriq.push", push.encode()},
                                                            {"fabriq.pop", pop.encode()},
                                                            {"fabriq.peek", PeekRequest{77, 5, true}.encode()},
                                                            {"fabriq.info", std::string("\x4d\0\0\0\0\0\0\0", 8)}}) {
        const auto result = box.call(name, arguments);
        if (!result) {
          EXPECT_FALSE(result.error().message.empty());
        }
      }
      box.advance(1h);
    }
  }
}

}  // namespace
}  // namespace fabriq_test

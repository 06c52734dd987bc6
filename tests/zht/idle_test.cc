// What an instance does while nothing happens to it: nothing, but what keeps others certain that it lives.
#include "novoht/base/memory_files.h"
#include "tests/zht/trio.h"

namespace zht::core {
namespace {

TEST(Idle, ALoneInstanceOfAThousandPartitionsLooksAtNoneAndSleeps) {
  base::MemoryFiles disk;
  base::FakeClock clock;
  std::vector<replication::View> views(1024);
  for (replication::View& view : views) {
    view.epoch = Epoch{1};
    view.primary = {InstanceId{0}, 1};
    view.sync = {view.primary};
  }
  InstanceOptions options;
  options.clustered = true;
  options.incarnation = 1;
  const auto opened = Instance::open(disk, "store", options, procedures(), views);
  ASSERT_TRUE(opened) << opened.error().message;
  Instance& instance = **opened;
  const auto tick = [&] {
    instance.begin_round(clock.now(), clock.wall());
    instance.on_tick();
    EXPECT_TRUE(instance.end_round());
    instance.finish_round(clock.now());
  };
  const auto ticks_in = [&](base::Duration time) {
    int ticks = 0;
    for (const base::Time end = clock.now() + time; clock.now() < end; ticks++) {
      clock.advance(std::max<base::Duration>(instance.next_due() - clock.now(), Instance::kTick));
      tick();
    }
    return ticks;
  };
  ticks_in(3s);
  const std::uint64_t looks = instance.replicator().looks();
  EXPECT_LE(ticks_in(10s), 25);  // at the store, now and then
  EXPECT_EQ(instance.replicator().looks(), looks);
  EXPECT_EQ(instance.partition_count(), 1024u);
}

TEST(Idle, MembersInStepLookAtNothing) {
  Trio trio;
  trio.begin();
  const std::uint64_t number = trio.ask(0, Operation::insert("k", "v"), 1);
  trio.run(3s);
  EXPECT_EQ(trio.answer(0, number).code, Code::ok);
  std::vector<std::uint64_t> looks;
  for (Trio::One& one : trio.all) looks.push_back(one.core->replicator().looks());
  trio.run(10s);
  for (std::size_t i = 0; i < trio.all.size(); i++) EXPECT_EQ(trio.all[i].core->replicator().looks(), looks[i]) << i;
}

TEST(Idle, WhatIsDueIsDoneAlthoughNobodyLooked) {
  Trio trio;
  trio.begin();
  trio.run(3s);
  trio.kill(0);
  trio.run(1s);
  EXPECT_EQ(trio.view.primary.instance, InstanceId{1});  // it was silent
}

}  // namespace
}  // namespace zht::core

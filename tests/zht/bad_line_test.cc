// What a bad line is laid to: three instances with one partition.
#include "tests/zht/trio.h"

namespace zht::core {
namespace {

struct BadLine : testing::Test, Trio {};

// It lacked a moment's changes whenever it was looked at, and changes waited for nobody: with one every 10 ms it never counted.
TEST_F(BadLine, ALearnerThatIsAlwaysAMomentBehindBecomesSynchronous) {
  view.epoch = Epoch{1};
  view.need = 1;
  view.primary = {InstanceId{0}, 1};
  view.sync = {view.primary};
  view.learners = {{InstanceId{1}, 1}, {InstanceId{2}, 1}};
  for (std::size_t i = 0; i < all.size(); i++) open(i);
  far[1] = far[2] = 20ms;
  std::uint64_t sequence = 0;
  base::Duration longest{};
  for (int i = 0; i < 150; i++) {
    const base::Time asked = clock.now();
    const auto number = ask(0, Operation::insert("k", "v"), ++sequence);
    run(10ms);
    if (i % 10 != 0) continue;
    for (int wait = 0; wait < 50 && !answered(0, number); wait++) run(10ms);
    longest = std::max(longest, clock.now() - asked);
  }
  EXPECT_GE(view.sync.size(), 2u) << replication::to_string(view);
  EXPECT_LT(longest, 300ms);  // what is held for it is held for a moment
}

}  // namespace
}  // namespace zht::core

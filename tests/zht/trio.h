// Three instances with one partition, played by hand: the test moves the clock, carries the messages and is the keepers.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <set>

#include "novoht/base/memory_files.h"
#include "zht/core/instance.h"

namespace zht::core {

using namespace std::chrono_literals;

inline const Procedures& procedures() {
  static const Procedures all = [] {
    Procedures made;
    add_general_procedures(made);
    return made;
  }();
  return all;
}

// Some instances with one partition, and the keepers' part played by hand.
struct Trio {
  struct One {
    base::MemoryFiles disk;
    std::unique_ptr<Instance> core;
    std::uint64_t incarnation = 1;
    std::map<std::uint64_t, wire::Frame> replies;
    std::deque<std::string> bytes;  // what the replies borrow from
    base::Duration clock{};         // its wall clock's error
  };
  std::deque<One> all = std::deque<One>(3);
  base::FakeClock clock;
  replication::View view;
  Durability durability = Durability::interval;
  std::string boot = "b";
  std::set<std::size_t> cut;   // instances that nobody hears and who hear nobody, keepers included
  std::set<std::size_t> deaf;  // those who hear of no new views from the keepers
  std::set<std::size_t> paused;  // those whose process does not run
  std::set<std::size_t> full;    // those who have said that they have no room (fill())
  std::uint64_t segment_size = std::uint64_t{64} << 20;
  bool mail_waits = false;       // what is said to those is there when they go on, and else lost
  std::set<std::pair<std::size_t, std::size_t>> blocked;  // who is not heard by whom
  std::vector<replication::Change> wished;                // what the keepers were asked, granted or not
  replication::Timing timing;
  ByteLimits limits;
  replication::Defects defects;
  std::uint64_t next = 1;
  std::uint64_t me = ((base::to_millis(base::FakeClock().wall()) / 4000) << 34) | 7;
  std::vector<replication::PeerMessage> under_way;
  std::map<std::size_t, base::Duration> far;  // how much longer it takes to say something to one, and to hear it
  std::deque<std::pair<base::Time, replication::PeerMessage>> on_the_way;
  bool granting = true;

  void begin() {
    view.epoch = Epoch{1};
    view.need = 2;
    view.primary = {InstanceId{0}, 1};
    view.sync = {view.primary, {InstanceId{1}, 1}};
    view.learners = {{InstanceId{2}, 1}};
    for (std::size_t i = 0; i < all.size(); i++) open(i);
    run(100ms);
  }
  void open(std::size_t i) {
    One& one = all[i];
    InstanceOptions options;
    options.id = InstanceId{static_cast<std::uint32_t>(i)};
    options.clustered = true;
    options.incarnation = one.incarnation;
    options.boot = boot;
    options.durability = durability;
    options.keep_departed = 1s;
    options.timing = timing;
    options.segment_size = segment_size;
    options.defects = defects;
    options.limits = limits;
    auto opened = Instance::open(one.disk, "store", options, procedures(), {view});
    ASSERT_TRUE(opened) << opened.error().message;
    one.core = std::move(*opened);
  }
  void kill(std::size_t i) {
    all[i].core.reset();
    all[i].disk.kill();
    all[i].incarnation++;
  }
  // Its disk takes nothing more, and everybody has heard that.
  void fill(std::size_t i) {
    all[i].disk.set_capacity(all[i].disk.used());
    full.insert(i);
  }
  // One round of one instance.
  template <typename Work>
  void round(std::size_t i, Work work) {
    One& one = all[i];
    if (!one.core || paused.contains(i)) return;
    one.core->begin_round(clock.now(), clock.wall() + one.clock);
    std::string out;
    work(*one.core, out);
    for (replication::PeerMessage& message : one.core->take_peer_messages()) under_way.push_back(std::move(message));
    EXPECT_TRUE(one.core->end_round());
    one.core->finish_round(clock.now());
    take(one, out);
    for (Send& send : one.core->take_sends()) take(one, send.frame);
    for (replication::PeerMessage& message : one.core->take_peer_messages()) under_way.push_back(std::move(message));
    for (const replication::Wish& wish : one.core->take_wishes()) {
      if (!cut.contains(i)) wished.push_back(wish.change);
      if (const auto made = granting && !cut.contains(i) ? replication::next_view(view, wish.change) : std::nullopt) view = *made;
    }
  }
  static void take(One& one, Bytes frames) {
    while (!frames.empty()) {
      const auto size = (*wire::next_frame(frames, wire::kMaxFrameSize))->size;
      const std::string& kept = one.bytes.emplace_back(frames.substr(0, size));
      const auto frame = **wire::next_frame(kept, wire::kMaxFrameSize);
      EXPECT_FALSE(one.replies.contains(frame.request)) << "answered twice";
      one.replies[frame.request] = frame;
      frames.remove_prefix(size);
    }
  }
  // The keepers grant the last wish of this kind, if there is one that still applies.
  bool grant(replication::Change::Kind kind) {
    for (auto wish = wished.rbegin(); wish != wished.rend(); ++wish)
      if (const auto made = wish->kind == kind ? replication::next_view(view, *wish, defects) : std::nullopt) {
        view = *made;
        return true;
      }
    return false;
  }
  void run(base::Duration time) {
    for (base::Duration passed{}; passed < time; passed += 10ms) {
      clock.advance(10ms);
      std::vector<replication::PeerMessage> now;
      for (replication::PeerMessage& message : std::exchange(under_way, {})) {
        const base::Duration way = far[static_cast<std::uint32_t>(message.from.instance)] + far[static_cast<std::uint32_t>(message.to)];
        on_the_way.emplace_back(clock.now() + way, std::move(message));
      }
      std::erase_if(on_the_way, [&](auto& one) {
        if (one.first > clock.now()) return false;
        now.push_back(std::move(one.second));
        return true;
      });
      for (const replication::PeerMessage& message : now)
        if (mail_waits && paused.contains(static_cast<std::uint32_t>(message.to))) on_the_way.emplace_back(clock.now(), message);
      for (std::size_t i = 0; i < all.size(); i++) {
        round(i, [&](Instance& core, std::string&) {
          if (!cut.contains(i) && !deaf.contains(i)) core.adopt(PartitionId{0}, view);
          for (const replication::PeerMessage& message : now) {
            const std::size_t from = static_cast<std::uint32_t>(message.from.instance), to = static_cast<std::uint32_t>(message.to);
            if (to == i && !cut.contains(from) && !cut.contains(to) && !blocked.contains({from, to})) core.on_peer(message);
          }
          std::vector<replication::Candidate> candidates;
          for (std::size_t other = 0; other < all.size(); other++)
            if (all[other].core && !full.contains(other)) candidates.push_back({all[other].core->self(), 0, other});
          core.set_candidates(candidates);
          std::map<InstanceId, replication::Site> sites;
          for (std::uint32_t other = 0; other < all.size(); other++) sites[InstanceId{other}] = {other, 0};
          core.set_sites(sites);
          if (core.next_due() <= clock.now()) core.on_tick();
        });
      }
    }
  }
  std::uint64_t ask(std::size_t i, const Operation& operation, std::uint64_t sequence = 0, Epoch epoch = {}, std::uint64_t timeout_ms = 0) {
    const std::uint64_t number = next++;
    std::string request;
    wire::encode_request(request, operation,
                         {.request = number, .client = sequence != 0 ? me : 0, .sequence = sequence,
                          .epoch = replication::number(epoch != Epoch{0} ? epoch : view.epoch), .partition = PartitionId{0},
                          .timeout_ms = timeout_ms});
    round(i, [&](Instance& core, std::string& out) { core.on_frame(ConnectionId{1}, **wire::next_frame(request, wire::kMaxFrameSize), out); });
    return number;
  }
  Epoch next_epoch() const { return replication::next(view.epoch); }
  bool answered(std::size_t i, std::uint64_t number) { return all[i].replies.contains(number); }
  bool sent_away(std::size_t i, std::uint64_t number) {
    return answered(i, number) && all[i].replies.at(number).status == wire::kStatusRetry;
  }
  Outcome answer(std::size_t i, std::uint64_t number) {
    if (!answered(i, number)) ADD_FAILURE() << "not answered";
    if (!answered(i, number)) return {};
    return wire::decode_outcome(all[i].replies.at(number)).value();
  }
};

}  // namespace zht::core

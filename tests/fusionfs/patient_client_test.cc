// Who waits how long for a store that does not answer.
#include "fusionfs/fuse/patient_client.h"

#include <gtest/gtest.h>

#include <vector>

#include "fusionfs/core/task.h"
#include "fusionfs/fuse/inodes.h"

namespace fusionfs {
namespace {

using zht::Millis;
using zht::Operation;
using zht::Outcome;

constexpr Millis kWhole{0};  // the client's own time

// Answers when it is told to, and keeps how long it was given for each operation.
class StubbornClient final : public zht::Client {
 public:
  void submit(Operation operation, zht::Completion completion, Millis timeout) override {
    given_.push_back(timeout);
    waiting_.push_back({std::move(operation), std::move(completion)});
  }
  std::uint32_t partition_count() const override { return 1024; }
  // The operation that has waited for longest ends so.
  void end(base::Code code) {
    auto [operation, completion] = std::move(waiting_.front());
    waiting_.erase(waiting_.begin());
    Outcome outcome;
    outcome.code = code;
    completion(outcome);
  }
  Millis last() const { return given_.back(); }

 private:
  std::vector<Millis> given_;
  std::vector<std::pair<Operation, zht::Completion>> waiting_;
};

class PatientClientTest : public testing::Test {
 protected:
  Millis ask(const std::string& key) {
    patient_.submit(Operation::lookup(key), [](const Outcome&) {});
    return stubborn_.last();
  }
  void ask_and_end(const std::string& key, base::Code code) {
    ask(key);
    stubborn_.end(code);
  }

  StubbornClient stubborn_;
  PatientClient patient_{stubborn_};
};

TEST_F(PatientClientTest, ASilentStoreIsWaitedForOnce) {
  EXPECT_EQ(ask("a"), kWhole);
  EXPECT_EQ(ask("a"), kWhole);  // nothing is known yet
  EXPECT_FALSE(patient_.silent("a"));
  stubborn_.end(base::Code::timeout);
  EXPECT_TRUE(patient_.silent("a"));
  EXPECT_EQ(ask("a"), PatientClient::kMoment);
  EXPECT_EQ(ask("of another partition"), PatientClient::kMoment) << "nobody answered all the while";
}

TEST_F(PatientClientTest, AnAnswerEndsTheSilence) {
  ask_and_end("a", base::Code::unavailable);
  ask_and_end("of another partition", base::Code::not_found);
  EXPECT_EQ(ask("of another partition"), kWhole);
  EXPECT_EQ(ask("of a third"), kWhole);
  EXPECT_EQ(ask("a"), PatientClient::kMoment) << "its partition has not answered yet";
  for (int i = 0; i < 3; ++i) stubborn_.end(base::Code::ok);
  EXPECT_FALSE(patient_.silent("a"));
  EXPECT_EQ(ask("a"), kWhole);
}

TEST_F(PatientClientTest, OnePartitionIsSilentWhileOthersAnswer) {
  ask("a");
  ask("of another partition");
  stubborn_.end(base::Code::ok);       // "a"
  stubborn_.end(base::Code::timeout);  // the other; "a" was answered while it waited
  EXPECT_EQ(ask("a"), kWhole);
  EXPECT_EQ(ask("of another partition"), PatientClient::kMoment);
}

TEST_F(PatientClientTest, WhatHasATimeOfItsOwnKeepsItAndTellsNothing) {
  patient_.submit(Operation::lookup("a"), [](const Outcome&) {}, Millis(7));
  EXPECT_EQ(stubborn_.last(), Millis(7));
  patient_.submit(Operation::callback("a", zht::Condition::absent()), [](const Outcome&) {});
  stubborn_.end(base::Code::timeout);
  stubborn_.end(base::Code::timeout);
  EXPECT_FALSE(patient_.silent("a"));
  EXPECT_EQ(ask("a"), kWhole);
}

TEST_F(PatientClientTest, CallsAreAsPatient) {
  // Client::call() waits for submit()'s completion, which a client may call at once.
  class Refusing final : public zht::Client {
   public:
    void submit(Operation, zht::Completion completion, Millis timeout) override {
      last = timeout;
      Outcome outcome;
      outcome.code = base::Code::timeout;
      completion(outcome);
    }
    std::uint32_t partition_count() const override { return 1024; }
    Millis last{-1};
  } refusing;
  PatientClient patient(refusing, Millis(300));
  patient.call(Operation::lookup("a"));
  EXPECT_EQ(refusing.last, kWhole);
  patient.call(Operation::lookup("a"));
  EXPECT_EQ(refusing.last, Millis(300));
}

Task<int> take_turn(Turn& turn, std::vector<CallsBlock::Which>& seen) {
  co_await turn.take();
  seen.push_back(CallsBlock::now());
  turn.give();
  co_return 0;
}

// The thread that gives the turn away may wait for the store for its own sake, and has something to answer: it does not wait for
// those that come after it.
TEST(Turn, WhoGoesOnInAnothersThreadDoesNotHoldItUp) {
  Turn turn;
  std::vector<CallsBlock::Which> seen;
  start([](Turn& mine) -> Task<int> {
    co_await mine.take();
    co_return 0;
  }(turn), [](int) {});
  start(take_turn(turn, seen), [](int) {});
  start(take_turn(turn, seen), [](int) {});
  {
    const CallsBlock calls(CallsBlock::Which::lone);
    turn.give();
    EXPECT_EQ(CallsBlock::now(), CallsBlock::Which::lone);
  }
  EXPECT_EQ(seen, (std::vector{CallsBlock::Which::none, CallsBlock::Which::none}));
}

}  // namespace
}  // namespace fusionfs

#include "matrix/core/procedures.h"

#include <gtest/gtest.h>

#include "matrix/core/records.h"
#include "tests/matrix/memory_tables.h"

namespace matrix {
namespace {

class ProceduresTest : public testing::Test {
 protected:
  ProceduresTest() { add_procedures(procedures_); }

  void submit(Job job) {
    job.id = "1";
    job_ = job;
    JobState state;
    state.total = job.task_count;
    tables_.values[keys::job("1")] = encode(job);
    tables_.values[keys::state("1")] = encode(state);
  }
  ClaimReply claim(std::uint64_t incarnation, std::uint32_t from = 0, std::uint32_t most = 100) {
    auto reply = tables_.run(procedures_, "matrix.claim", keys::job("1"),
                             encode(ClaimRequest{"a", incarnation, from, most, true}));
    EXPECT_TRUE(reply) << reply.error().message;
    return *decode_claim_reply(*reply);
  }
  RecordReply record(std::uint64_t incarnation, std::uint32_t chunk, std::uint64_t epoch,
                     std::vector<TaskResult> results, std::vector<RunningMark> marks = {}) {
    RecordRequest request{"a", incarnation, {{chunk, epoch, std::move(results), std::move(marks)}}, 0};
    auto reply = tables_.run(procedures_, "matrix.record", keys::job("1"), encode(request));
    EXPECT_TRUE(reply) << reply.error().message;
    return *decode_record_reply(*reply);
  }
  CancelReply cancel() {
    auto reply = tables_.run(procedures_, "matrix.cancel", keys::job("1"), encode(CancelRequest{"why", false, 0}));
    return *decode_cancel_reply(*reply);
  }
  static TaskResult done(std::uint32_t task, std::uint32_t exit_code = 0) {
    TaskResult result;
    result.task = task;
    result.state = exit_code == 0 ? TaskState::done : TaskState::failed;
    result.exit_code = exit_code;
    return result;
  }
  std::vector<TaskResult> results(std::uint32_t chunk) {
    return *decode_results(tables_.values[keys::results("1", chunk)]);
  }
  JobState state() { return *decode_job_state(tables_.values[keys::state("1")]); }
  bool has_ended() { return tables_.values.count(keys::end("1")) != 0; }

  zht::Procedures procedures_;
  matrix_test::MemoryTables tables_;
  Job job_;
};

Job tasks(std::uint32_t count) {
  Job job;
  job.task_count = count;
  job.argv = {"true"};
  return job;
}

TEST_F(ProceduresTest, ChunksAreClaimedInOrderAndOnce) {
  submit(tasks(2500));
  const ClaimReply first = claim(1, 0, 2);
  ASSERT_EQ(first.chunks.size(), 2u);
  EXPECT_EQ(first.chunks[0].chunk.epoch, 1u);
  EXPECT_EQ(first.chunks[1].chunk.states.size(), 1024u);
  EXPECT_EQ(first.next_chunk, 2u);
  const ClaimReply second = claim(1, 2, 2);
  ASSERT_EQ(second.chunks.size(), 1u);
  EXPECT_EQ(second.chunks[0].chunk.states.size(), 452u);
  EXPECT_EQ(second.next_chunk, 3u);
  EXPECT_EQ(claim(1, 0, 2).chunks[0].chunk.epoch, 1u) << "the same claim again changes nothing";
}

TEST_F(ProceduresTest, TheFirstEndStateWins) {
  submit(tasks(2));
  claim(1);
  EXPECT_EQ(record(1, 0, 1, {done(0, 3)}).accepted, 1u);
  EXPECT_EQ(record(1, 0, 1, {done(0, 0)}).accepted, 0u);
  EXPECT_EQ(record(1, 0, 1, {done(0, 3), done(1)}).accepted, 1u) << "a repeated request records the rest only";
  ASSERT_EQ(results(0).size(), 2u);
  EXPECT_EQ(results(0)[0].exit_code, 3u);
  EXPECT_EQ(state().phase, Phase::failed);
  EXPECT_EQ(state().exit_code, 3u);
  EXPECT_TRUE(has_ended());
}

TEST_F(ProceduresTest, AResultOfTheOldOwnerIsRefused) {
  submit(tasks(2));
  claim(1);
  record(1, 0, 1, {}, {{0, 1}});
  const ClaimReply taken = claim(2);
  EXPECT_EQ(taken.chunks[0].chunk.epoch, 2u);
  EXPECT_EQ(taken.chunks[0].chunk.state_of(0), TaskState::fresh);
  EXPECT_EQ(taken.chunks[0].chunk.attempt_of(0), 1u) << "the next attempt is 2";
  EXPECT_EQ(record(1, 0, 1, {done(0)}).fenced, std::vector<std::uint32_t>{0});
  EXPECT_EQ(state().done, 0u);
  EXPECT_EQ(record(2, 0, 2, {done(0), done(1)}).accepted, 2u);
  EXPECT_EQ(state().phase, Phase::done);
}

TEST_F(ProceduresTest, AnOldIncarnationIsToldThatItIsOver) {
  submit(tasks(1));
  claim(2);
  const auto reply = tables_.run(procedures_, "matrix.claim", keys::job("1"), encode(ClaimRequest{"a", 1, 0, 1, true}));
  EXPECT_EQ(reply.code(), base::Code::conflict);
}

TEST_F(ProceduresTest, AtMostOnceTasksThatRanAreLostWithTheirAgent) {
  Job job = tasks(3);
  job.at_most_once = true;
  submit(job);
  claim(1);
  record(1, 0, 1, {done(2)}, {{0, 1}});
  const ClaimReply taken = claim(2);
  EXPECT_EQ(taken.chunks[0].chunk.state_of(0), TaskState::lost);
  EXPECT_EQ(taken.chunks[0].chunk.state_of(1), TaskState::fresh);
  EXPECT_EQ(state().lost, 1u);
  record(2, 0, 2, {done(1)});
  EXPECT_EQ(state().phase, Phase::failed);
  EXPECT_EQ(results(0).size(), 3u);
}

TEST_F(ProceduresTest, CancelEndsWhatNobodyOwnsAndMarksTheRest) {
  submit(tasks(3000));
  claim(1, 0, 1);
  EXPECT_EQ(cancel().next_chunk, 3u);
  EXPECT_EQ(state().cancelled, 3000u - 1024u);
  EXPECT_FALSE(has_ended());
  EXPECT_TRUE(claim(1, 1).chunks.empty());
  std::vector<TaskResult> rest;
  for (std::uint32_t task = 0; task < 1024; task++) {
    rest.push_back(done(task));
    if (task > 0) rest.back().state = TaskState::cancelled;
  }
  record(1, 0, 1, rest);
  EXPECT_EQ(state().phase, Phase::cancelled);
  EXPECT_EQ(state().done, 1u);
  EXPECT_TRUE(has_ended());
}

TEST_F(ProceduresTest, RequestsThatCannotBeTrueAreRefusedWhole) {
  submit(tasks(2));
  claim(1);
  const auto send = [&](ChunkUpdate update) {
    return tables_
        .run(procedures_, "matrix.record", keys::job("1"), encode(RecordRequest{"a", 1, {std::move(update)}, 0}))
        .code();
  };
  EXPECT_EQ(send({0, 1, {done(0), done(2)}, {}}), base::Code::invalid);
  EXPECT_EQ(send({1, 1, {done(0)}, {}}), base::Code::invalid);
  TaskResult running = done(0);
  running.state = TaskState::running;
  EXPECT_EQ(send({0, 1, {running}, {}}), base::Code::invalid);
  EXPECT_EQ(state().ended(), 0u);
  EXPECT_EQ(tables_.run(procedures_, "matrix.record", keys::job("1"), "\xff\xff garbage").code(), base::Code::corrupt);
  EXPECT_EQ(tables_.run(procedures_, "matrix.claim", keys::job("9"), encode(ClaimRequest{})).code(),
            base::Code::not_found);
}

TEST_F(ProceduresTest, EndedChunksOfAGraphAreShown) {
  Job job = tasks(2000);
  job.graph = true;
  submit(job);
  claim(1, 0, 1);
  std::vector<TaskResult> all;
  for (std::uint32_t task = 0; task < 1024; task++) all.push_back(done(task));
  record(1, 0, 1, all);
  EXPECT_EQ(claim(2).chunks.size(), 2u);
}

}  // namespace
}  // namespace matrix

#include "zht/tool/pipe_line.h"

#include <gtest/gtest.h>

namespace zht::tool {
namespace {

std::string error_of(const std::string& line) {
  const auto parsed = parse_line(line);
  return parsed ? "fine" : parsed.error().message;
}

TEST(PipeLine, OperationsAreRead) {
  const auto insert = parse_line(R"({"op":"insert","key":"k","value":"v","timeout_ms":50})");
  ASSERT_TRUE(insert);
  EXPECT_EQ(insert->operation.kind, OpKind::insert);
  EXPECT_EQ(insert->operation.value, "v");
  EXPECT_EQ(insert->timeout, Millis(50));
  const auto swap = parse_line(R"({"op":"cswap","key_b64":"//4=","expect":null,"value_b64":"AAE="})");
  ASSERT_TRUE(swap);
  EXPECT_EQ(swap->operation.key, "\xff\xfe");
  EXPECT_EQ(swap->operation.value, std::string("\0\x01", 2));
  EXPECT_EQ(swap->operation.condition.kind, Condition::Kind::absent);
  EXPECT_EQ(parse_line(R"({"op":"cswap","key":"k","expect":"a","value":null})")->operation.desired, Desired::remove);
  EXPECT_EQ(parse_line(R"({"op":"callback","key":"k","expect":"a"})")->operation.condition.value, "a");
  EXPECT_EQ(parse_line(R"({"op":"callback","key":"k","value":"a"})")->operation.condition.value, "a");
  EXPECT_EQ(parse_line(R"({"op":"callback","key":"k","version":7})")->operation.condition.version, 7u);
  EXPECT_EQ(parse_line(R"({"op":"callback","key":"k"})")->operation.condition.kind, Condition::Kind::present);
  EXPECT_EQ(parse_line(R"({"op":"remove","key":"k"})")->operation.kind, OpKind::remove);
  EXPECT_EQ(parse_line(R"({"op":"lookup","key":"k"})")->operation.kind, OpKind::lookup);
  EXPECT_FALSE(parse_line(R"({"op":"lookup","key":"k"})")->operation.eventual);
  const auto eventual = parse_line(R"({"op":"lookup","key":"k","eventual":true,"version":7})");
  ASSERT_TRUE(eventual);
  EXPECT_TRUE(eventual->operation.eventual);
  EXPECT_EQ(eventual->operation.condition.version, 7u);
  EXPECT_EQ(parse_line(R"({"op":"append","key":"k","value":""})")->operation.kind, OpKind::append);
  // What programs write that always write all fields, or count in floating point.
  const auto full =
      parse_line(R"({"op":"lookup","key":"k","key_b64":null,"value":null,"expect":null,"timeout_ms":null})");
  ASSERT_TRUE(full);
  EXPECT_EQ(full->timeout, Millis(0));
  EXPECT_EQ(parse_line(R"({"op":"lookup","key":"k","timeout_ms":250.0})")->timeout, Millis(250));
  EXPECT_EQ(parse_line(R"({"op":"callback","key":"k","timeout_ms":0})")->timeout, Millis(1)) << "0: do not wait";
}

TEST(PipeLine, WhatIsWrongIsNamed) {
  EXPECT_EQ(error_of("{"), "not JSON: {");
  EXPECT_EQ(error_of("[1]"), "not a JSON object: [1]");
  EXPECT_EQ(error_of(R"({"key":"k"})"), "\"op\" is missing or not a string");
  EXPECT_EQ(error_of(R"({"op":"insert"})"), "\"key\" is missing");
  EXPECT_EQ(error_of(R"({"op":"insert","key":"k"})"), "insert: \"value\" is missing");
  EXPECT_EQ(error_of(R"({"op":"insert","key":17,"value":"v"})"), "\"key\" is not a string");
  EXPECT_EQ(error_of(R"({"op":"insert","key":"k","key_b64":"aw==","value":"v"})"),
            "\"key\" and \"key_b64\" are both given");
  EXPECT_EQ(error_of(R"({"op":"cswap","key":"k","value":"v"})"),
            "cswap: \"expect\" is missing; null expects that the key is absent");
  EXPECT_EQ(error_of(R"({"op":"lookup","key":"k","timeout_ms":-1})"),
            "\"timeout_ms\" is not a whole number from 0 to 31536000000");
  for (const char* number : {"2.5", "1e400", "-1.0", "1e30", "\"5\"", "true"})
    EXPECT_NE(error_of(std::string(R"({"op":"lookup","key":"k","timeout_ms":)") + number + "}"), "fine") << number;
  EXPECT_EQ(error_of(R"({"op":"lookup","key":"k","tiemout":1})"), "unknown field \"tiemout\"");
  EXPECT_NE(error_of(R"({"op":"steal","key":"k"})"), "fine");
  EXPECT_EQ(error_of(R"({"op":"remove","key":"k","eventual":true})"), "remove: only a lookup can be eventual");
  EXPECT_EQ(error_of(R"({"op":"lookup","key":"k","eventual":1})"), "\"eventual\" is not true or false");
  EXPECT_NE(error_of(R"({"op":"insert","key":"k","value_b64":"***"})"), "fine");
  EXPECT_NE(error_of("{\"op\":\"lookup\",\"key\":\"\xff\"}"), "fine") << "not UTF-8";
}

TEST(PipeLine, AnswersSayWhatHappened) {
  const Operation lookup = Operation::lookup("k"), insert = Operation::insert("k", "v"),
                  swap = Operation::cswap("k", Condition::absent(), "v"),
                  callback = Operation::callback("k", Condition::present()), append = Operation::append("k", "v");
  Outcome outcome;
  outcome.present = true;
  outcome.value = "v";
  outcome.version = 3;
  outcome.size = 1;
  EXPECT_EQ(answer_of(lookup, outcome), R"({"status":"ok","value":"v","version":3})");
  EXPECT_EQ(answer_of(append, outcome), R"({"size":1,"status":"ok","version":3})");
  EXPECT_EQ(answer_of(insert, outcome), R"({"status":"ok","version":3})");
  outcome.code = Code::conflict;
  EXPECT_EQ(answer_of(swap, outcome), R"({"status":"mismatch","value":"v","version":3})");
  outcome.value = "\xff";
  EXPECT_EQ(answer_of(swap, outcome), R"({"status":"mismatch","value_b64":"/w==","version":3})");
  outcome = {};
  outcome.code = Code::conflict;
  EXPECT_EQ(answer_of(swap, outcome), R"({"status":"mismatch","value":null})");
  outcome.code = Code::not_found;
  EXPECT_EQ(answer_of(lookup, outcome), R"({"status":"notfound"})");
  outcome.code = Code::timeout;
  outcome.message = "no answer";
  EXPECT_EQ(answer_of(insert, outcome), R"({"error":"timeout: no answer","status":"unknown"})");
  EXPECT_EQ(answer_of(callback, outcome), R"({"error":"timeout: no answer","status":"fail"})");
  outcome.code = Code::unavailable;
  EXPECT_EQ(answer_of(insert, outcome), R"({"error":"unavailable: no answer","status":"fail"})");
}

}  // namespace
}  // namespace zht::tool

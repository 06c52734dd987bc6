// One line of `zht pipe`: JSON in, JSON out.
//   {"op":"insert|lookup|remove|append|cswap|callback","key":K,"value":V,"expect":V or null,"timeout_ms":N}
//   {"status":"ok|notfound|mismatch|fail|unknown","value":...,"version":N}
// fail: it certainly did not happen ("error" says why); unknown: it may have. Strings are UTF-8; "key_b64", "value_b64" and
// "expect_b64" carry other bytes. Beyond the table: remove takes "expect_version"; append answers "size"; insert takes
// "ttl_ms" and "new":true (mismatch when there); callback waits until the key equals "expect" or "value", is absent
// ("expect":null), has changed after "version", or, with none of them, is present. cswap with "value":null removes. lookup with
// "eventual":true is answered by any copy, which may be old; with "version" by one that has seen that version of the partition.
#pragma once

#include <string>

#include "zht/client.h"

namespace zht::tool {

struct Line {
  Operation operation;
  Millis timeout{0};  // 0: the client's default
};

// invalid says what is wrong with it: not JSON, no such operation, a field of the wrong type.
Result<Line> parse_line(const std::string& text);

std::string answer_of(const Operation& operation, const Outcome& outcome);  // one line, without the newline
std::string refusal(const Error& error);  // the answer to a line that parse_line did not take

}  // namespace zht::tool

// Redis commands that one operation of the store cannot express (SET ... GET, EXPIRE, TTL, INCR that keeps the time to
// live, transactions), run inside the store as one procedure, "resp", on the keys of one tag. Its arguments are a
// script, its result the reply, ready to be sent.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "zht/procedure.h"
#include "zht/resp/table.h"

namespace zht::resp {

inline constexpr std::string_view kProcedure = "resp";

struct Watched {
  std::string key;
  Version version = 0;  // when it was watched; 0: absent
};

struct Script {
  int protocol = 2;
  bool transaction = false;  // the reply is an array with each command's; nil when a watched key has changed
  std::vector<Watched> watched;
  std::vector<Command> commands;  // names in upper case, Spec::in_store, arity right
};
std::string encode(const Script& script);

void add_procedures(Procedures& procedures);

// Redis's reading of numbers: no spaces, no plus sign, no leading zeros.
bool read_integer(std::string_view text, std::int64_t& out);

// The end of a life in milliseconds since 1970 as `option` (EX PX EXAT PXAT) gives it; false: out of range.
bool read_expiry(std::string_view option, std::int64_t number, std::int64_t now_ms, std::int64_t& at_ms);

}  // namespace zht::resp

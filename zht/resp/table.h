// The commands that are understood: how many words each takes and where its keys are. One table, for checking what
// clients send, for COMMAND, and for finding the keys of a transaction.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zht::resp {

using Command = std::vector<std::string>;  // the name, then the arguments

struct Spec {
  std::string_view name;  // upper case
  int arity;              // words, the name included; negative: at least so many
  int first, last, step;  // words that are keys, as COMMAND has them; first 0: none; last -1: to the end
  bool writes;
  bool in_store;  // runs inside the store as part of a transaction (procedures.h)
};

const Spec* find_spec(std::string_view upper_name);
const std::vector<Spec>& all_specs();
bool arity_fits(const Spec& spec, std::size_t words);
std::vector<std::string_view> keys_of(const Spec& spec, const Command& command);

// Redis's words for what does not fit the table.
std::string unknown_command(const Command& command);
std::string wrong_arity(std::string_view name);

std::string upper(std::string_view text);
// Sets the one of `flags` that `option`, in upper case, names; false: none of them.
bool set_flag(std::string_view option, std::initializer_list<std::pair<std::string_view, bool*>> flags);
std::string lower(std::string_view text);

// Redis's pattern language for KEYS and SCAN: * ? [a-z] [^a] and \ before any of them.
bool glob_matches(std::string_view pattern, std::string_view text);
std::string glob_prefix(std::string_view pattern);  // what every match begins with

}  // namespace zht::resp

#include "zht/resp/table.h"

#include <algorithm>
#include <map>

#include "novoht/base/bytes.h"

namespace zht::resp {

const std::vector<Spec>& all_specs() {
  // name, words, first key, last key, step, writes, in the store
  static const std::vector<Spec> all = {
      {"APPEND", 3, 1, 1, 1, true, true},          {"AUTH", -2, 0, 0, 0, false, false},
      {"CLIENT", -2, 0, 0, 0, false, false},       {"COMMAND", -1, 0, 0, 0, false, false},
      {"CONFIG", -2, 0, 0, 0, false, false},       {"COPY", -3, 1, 2, 1, true, true},
      {"DBSIZE", 1, 0, 0, 0, false, false},        {"DECR", 2, 1, 1, 1, true, true},
      {"DECRBY", 3, 1, 1, 1, true, true},          {"DEL", -2, 1, -1, 1, true, true},
      {"DISCARD", 1, 0, 0, 0, false, false},       {"ECHO", 2, 0, 0, 0, false, true},
      {"EXEC", 1, 0, 0, 0, false, false},          {"EXISTS", -2, 1, -1, 1, false, true},
      {"EXPIRE", -3, 1, 1, 1, true, true},         {"EXPIREAT", -3, 1, 1, 1, true, true},
      {"EXPIRETIME", 2, 1, 1, 1, false, true},     {"FLUSHALL", -1, 0, 0, 0, true, false},
      {"FLUSHDB", -1, 0, 0, 0, true, false},       {"GET", 2, 1, 1, 1, false, true},
      {"GETDEL", 2, 1, 1, 1, true, true},          {"GETEX", -2, 1, 1, 1, true, true},
      {"GETRANGE", 4, 1, 1, 1, false, true},       {"GETSET", 3, 1, 1, 1, true, true},
      {"HELLO", -1, 0, 0, 0, false, false},        {"INCR", 2, 1, 1, 1, true, true},
      {"INCRBY", 3, 1, 1, 1, true, true},          {"INCRBYFLOAT", 3, 1, 1, 1, true, true},
      {"INFO", -1, 0, 0, 0, false, false},         {"KEYS", 2, 0, 0, 0, false, false},
      {"MEMORY", -2, 0, 0, 0, false, false},       {"MGET", -2, 1, -1, 1, false, true},
      {"MSET", -3, 1, -1, 2, true, true},          {"MSETNX", -3, 1, -1, 2, true, true},
      {"MULTI", 1, 0, 0, 0, false, false},         {"OBJECT", -2, 0, 0, 0, false, false},
      {"PERSIST", 2, 1, 1, 1, true, true},         {"PEXPIRE", -3, 1, 1, 1, true, true},
      {"PEXPIREAT", -3, 1, 1, 1, true, true},      {"PEXPIRETIME", 2, 1, 1, 1, false, true},
      {"PING", -1, 0, 0, 0, false, true},          {"PSETEX", 4, 1, 1, 1, true, true},
      {"PTTL", 2, 1, 1, 1, false, true},           {"QUIT", -1, 0, 0, 0, false, false},
      {"RENAME", 3, 1, 2, 1, true, true},          {"RENAMENX", 3, 1, 2, 1, true, true},
      {"RESET", 1, 0, 0, 0, false, false},         {"SCAN", -2, 0, 0, 0, false, false},
      {"SELECT", 2, 0, 0, 0, false, false},        {"SET", -3, 1, 1, 1, true, true},
      {"SETEX", 4, 1, 1, 1, true, true},           {"SETNX", 3, 1, 1, 1, true, true},
      {"SETRANGE", 4, 1, 1, 1, true, true},        {"STRLEN", 2, 1, 1, 1, false, true},
      {"SUBSTR", 4, 1, 1, 1, false, true},         {"TIME", 1, 0, 0, 0, false, false},
      {"TOUCH", -2, 1, -1, 1, false, true},        {"TTL", 2, 1, 1, 1, false, true},
      {"TYPE", 2, 1, 1, 1, false, true},           {"UNLINK", -2, 1, -1, 1, true, true},
      {"UNWATCH", 1, 0, 0, 0, false, false},       {"WAIT", 3, 0, 0, 0, false, false},
      {"WATCH", -2, 1, -1, 1, false, false},       {"ZHT.BATCH", -3, 0, 0, 0, true, false},
      {"ZHT.CALLBACK", -3, 1, 1, 1, false, false}, {"ZHT.CSWAP", -4, 1, 1, 1, true, false},
      {"ZHT.VERSION", 2, 1, 1, 1, false, false},
  };
  return all;
}

const Spec* find_spec(std::string_view upper_name) {
  static const std::map<std::string_view, const Spec*> by_name = [] {
    std::map<std::string_view, const Spec*> made;
    for (const Spec& spec : all_specs()) made.emplace(spec.name, &spec);
    return made;
  }();
  const auto found = by_name.find(upper_name);
  return found == by_name.end() ? nullptr : found->second;
}

bool arity_fits(const Spec& spec, std::size_t words) {
  return spec.arity >= 0 ? words == static_cast<std::size_t>(spec.arity)
                         : words >= static_cast<std::size_t>(-spec.arity);
}

std::vector<std::string_view> keys_of(const Spec& spec, const Command& command) {
  std::vector<std::string_view> keys;
  if (spec.first == 0) return keys;
  const std::size_t end =
      spec.last < 0 ? command.size() : std::min<std::size_t>(command.size(), static_cast<std::size_t>(spec.last) + 1);
  for (auto i = static_cast<std::size_t>(spec.first); i < end; i += static_cast<std::size_t>(spec.step))
    keys.emplace_back(command[i]);
  return keys;
}

std::string unknown_command(const Command& command) {
  std::string text = "ERR unknown command '" + base::escape(command[0], 128) + "', with args beginning with: ";
  for (std::size_t i = 1; i < command.size() && text.size() < 256; i++)
    text += "'" + base::escape(command[i], 128) + "' ";
  return text;
}

std::string wrong_arity(std::string_view name) {
  return "ERR wrong number of arguments for '" + lower(name) + "' command";
}

std::string upper(std::string_view text) {
  std::string made(text);
  for (char& c : made) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return made;
}

bool set_flag(std::string_view option, std::initializer_list<std::pair<std::string_view, bool*>> flags) {
  for (const auto& [name, flag] : flags)
    if (option == name) return *flag = true;
  return false;
}

std::string lower(std::string_view text) {
  std::string made(text);
  for (char& c : made) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return made;
}

namespace {

// One element of a pattern at `at`, which moves past it, against one character.
bool element_matches(std::string_view pattern, std::size_t& at, char c) {
  if (pattern[at] == '?') return at++, true;
  if (pattern[at] == '[') {
    const bool negated = ++at < pattern.size() && pattern[at] == '^';
    if (negated) at++;
    bool found = false;
    for (; at < pattern.size() && pattern[at] != ']'; at++) {
      if (pattern[at] == '\\' && at + 1 < pattern.size()) {
        found |= pattern[++at] == c;
      } else if (at + 2 < pattern.size() && pattern[at + 1] == '-' && pattern[at + 2] != ']') {
        const auto [low, high] = std::minmax(pattern[at], pattern[at + 2]);
        found |= low <= c && c <= high;
        at += 2;
      } else {
        found |= pattern[at] == c;
      }
    }
    if (at < pattern.size()) at++;
    return found != negated;
  }
  if (pattern[at] == '\\' && at + 1 < pattern.size()) at++;
  return pattern[at++] == c;
}

}  // namespace

// Iterative, with one place to go back to (the last star): time is at most pattern times text, whatever the pattern.
bool glob_matches(std::string_view pattern, std::string_view text) {
  std::size_t at = 0, place = 0;
  std::size_t star = std::string_view::npos, star_place = 0;
  while (place < text.size()) {
    if (at < pattern.size() && pattern[at] == '*') {
      star = at++;
      star_place = place;
      continue;
    }
    if (at < pattern.size()) {
      std::size_t next = at;
      if (element_matches(pattern, next, text[place])) {
        at = next;
        place++;
        continue;
      }
    }
    if (star == std::string_view::npos) return false;
    at = star + 1;
    place = ++star_place;
  }
  while (at < pattern.size() && pattern[at] == '*') at++;
  return at == pattern.size();
}

std::string glob_prefix(std::string_view pattern) {
  std::string prefix;
  for (std::size_t i = 0; i < pattern.size() && pattern[i] != '*' && pattern[i] != '?' && pattern[i] != '['; i++) {
    if (pattern[i] == '\\' && i + 1 < pattern.size()) i++;
    prefix += pattern[i];
  }
  return prefix;
}

}  // namespace zht::resp

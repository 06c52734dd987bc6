#include "zht/resp/commands.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>

#include "zht/resp/parser.h"

namespace zht::resp {
namespace {

using Command = std::vector<std::string>;
using Outcomes = std::vector<Outcome>;

std::string upper(std::string text) {
  for (char& c : text) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return text;
}

Plan error(std::string_view text) {
  Plan plan;
  add_error(plan.reply, text);
  return plan;
}
Plan ready(const std::function<void(std::string&)>& write) {
  Plan plan;
  write(plan.reply);
  return plan;
}
Plan ok() { return ready([](std::string& out) { add_simple(out, "OK"); }); }

std::optional<std::int64_t> number(const std::string& text) {
  std::int64_t value = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failed != std::errc() || end != text.data() + text.size()) return {};
  return value;
}

void add_failure(std::string& out, const Outcome& outcome) {
  const char* kind = outcome.code == Code::no_space     ? "OOM "
                     : outcome.code == Code::unavailable ? "TRYAGAIN "
                     : outcome.code == Code::timeout     ? "TIMEOUT it may have happened: "
                                                         : "ERR ";
  add_error(out, kind + outcome.message);
}

// One operation whose outcome one function renders; errors other than `expected` become error replies.
Plan one(Operation operation, std::function<void(const Outcome&, std::string&)> render, std::vector<Code> expected = {}) {
  Plan plan;
  plan.operations.push_back(std::move(operation));
  plan.render = [render = std::move(render), expected = std::move(expected)](Outcomes& outcomes, std::string& out) {
    const Outcome& outcome = outcomes[0];
    if (!outcome.ok() && std::find(expected.begin(), expected.end(), outcome.code) == expected.end()) return add_failure(out, outcome);
    render(outcome, out);
  };
  return plan;
}

void value_or_nil(const Outcome& outcome, std::string& out) { outcome.present ? add_bulk(out, outcome.value) : add_nil(out); }

// --- strings ---

Plan get(const Command& command) { return one(Operation::lookup(command[1]), value_or_nil, {Code::not_found}); }

Plan set(const Command& command) {
  Operation operation = Operation::insert(command[1], command[2]);
  bool nx = false, xx = false;
  for (std::size_t i = 3; i < command.size(); i++) {
    const std::string option = upper(command[i]);
    if (option == "NX") nx = true;
    else if (option == "XX") xx = true;
    else if ((option == "EX" || option == "PX") && i + 1 < command.size()) {
      const auto time = number(command[++i]);
      if (!time) return error("ERR value is not an integer or out of range");
      if (*time <= 0 || *time > 1'000'000'000'000) return error("ERR invalid expire time in 'set' command");
      operation.ttl = std::chrono::milliseconds(option == "EX" ? *time * 1000 : *time);
    } else return error("ERR syntax error");
  }
  if (nx && xx) return error("ERR syntax error");
  if (nx) operation.condition = Condition::absent();
  if (xx) {
    const auto ttl = operation.ttl;
    operation = Operation::cswap(command[1], Condition::present(), command[2], ttl);
  }
  return one(std::move(operation), [](const Outcome& outcome, std::string& out) { outcome.ok() ? add_simple(out, "OK") : add_nil(out); },
             nx || xx ? std::vector<Code>{Code::conflict} : std::vector<Code>{});
}

Plan set_with_time(const Command& command, std::int64_t unit) {
  const auto time = number(command[2]);
  if (!time) return error("ERR value is not an integer or out of range");
  if (*time <= 0 || *time > 1'000'000'000) return error("ERR invalid expire time in '" + command[0] + "' command");
  return one(Operation::insert(command[1], command[3], std::chrono::milliseconds(*time * unit)),
             [](const Outcome&, std::string& out) { add_simple(out, "OK"); });
}

Plan setnx(const Command& command) {
  return one(Operation::insert_new(command[1], command[2]),
             [](const Outcome& outcome, std::string& out) { add_integer(out, outcome.ok() ? 1 : 0); }, {Code::conflict});
}

Plan append(const Command& command) {
  return one(Operation::append(command[1], command[2]),
             [](const Outcome& outcome, std::string& out) { add_integer(out, static_cast<std::int64_t>(outcome.size)); });
}

Plan strlen(const Command& command) {
  return one(Operation::lookup(command[1], Range::nothing()),
             [](const Outcome& outcome, std::string& out) { add_integer(out, outcome.ok() ? static_cast<std::int64_t>(outcome.size) : 0); },
             {Code::not_found});
}

// Both ends count, negative from the value's end: known only when the value is, so it is cut here.
Plan getrange(const Command& command) {
  const auto first = number(command[2]), last = number(command[3]);
  if (!first || !last) return error("ERR value is not an integer or out of range");
  const bool from_start = *first >= 0 && *last >= *first;
  Operation operation = Operation::lookup(command[1]);
  if (from_start) operation.range = Range::bytes(static_cast<std::uint64_t>(*first), static_cast<std::uint64_t>(*last - *first) + 1);
  return one(std::move(operation), [first = *first, last = *last, from_start](const Outcome& outcome, std::string& out) {
    if (!outcome.ok() || from_start) return add_bulk(out, outcome.ok() ? outcome.value : "");
    const auto size = static_cast<std::int64_t>(outcome.value.size());
    const std::int64_t a = std::max<std::int64_t>(0, first < 0 ? first + size : first);
    const std::int64_t b = std::min<std::int64_t>(size - 1, last < 0 ? last + size : last);
    add_bulk(
        out,
        a > b
            ? std::string_view()
            : std::string_view(outcome.value).substr(static_cast<std::size_t>(a), static_cast<std::size_t>(b - a + 1)));
  }, {Code::not_found});
}

Plan increment(const Command& command, std::int64_t by) {
  return one(Operation::update(command[1], "add", std::to_string(by)), [](const Outcome& outcome, std::string& out) {
    add_integer(out, number(outcome.value).value_or(0));
  });
}
Plan increment_by(const Command& command, bool negative) {
  const auto by = number(command[2]);
  if (!by || (negative && *by == INT64_MIN)) return error("ERR value is not an integer or out of range");
  return increment(command, negative ? -*by : *by);
}

// --- several keys: each on its own, together on the way ---

Plan count_of(const Command& command, Operation (*make)(std::string)) {
  Plan plan;
  for (std::size_t i = 1; i < command.size(); i++) plan.operations.push_back(make(command[i]));
  plan.render = [](Outcomes& outcomes, std::string& out) {
    std::int64_t count = 0;
    for (const Outcome& outcome : outcomes) {
      if (outcome.ok()) count++;
      else if (outcome.code != Code::not_found) return add_failure(out, outcome);
    }
    add_integer(out, count);
  };
  return plan;
}

Plan mget(const Command& command) {
  Plan plan;
  for (std::size_t i = 1; i < command.size(); i++) plan.operations.push_back(Operation::lookup(command[i]));
  plan.render = [](Outcomes& outcomes, std::string& out) {
    for (const Outcome& outcome : outcomes)
      if (!outcome.ok() && outcome.code != Code::not_found) return add_failure(out, outcome);
    add_array(out, outcomes.size());
    for (const Outcome& outcome : outcomes) value_or_nil(outcome, out);
  };
  return plan;
}

Plan mset(const Command& command, std::uint32_t partition_count) {
  if (command.size() % 2 == 0) return error("ERR wrong number of arguments for 'mset' command");
  std::vector<Operation> all;
  for (std::size_t i = 1; i < command.size(); i += 2) {
    if (partition_of(command[i], partition_count) != partition_of(command[1], partition_count))
      return error("CROSSSLOT Keys in request don't hash to the same slot; give them one {tag}");
    all.push_back(Operation::insert(command[i], command[i + 1]));
  }
  return one(Operation::batch(std::move(all)), [](const Outcome&, std::string& out) { add_simple(out, "OK"); });
}

// --- the store's own ---

Plan cswap(const Command& command) {
  return one(Operation::cswap(command[1], Condition::equals(command[2]), command[3]), [](const Outcome& outcome, std::string& out) {
    outcome.ok() ? add_integer(out, static_cast<std::int64_t>(outcome.version)) : add_nil(out);
  }, {Code::conflict});
}

Plan callback(const Command& command) {
  const auto timeout = number(command[2]);
  if (!timeout || *timeout < 0) return error("ERR timeout is not a number of milliseconds");
  Condition condition = Condition::present();
  if (command.size() > 3) {
    const std::string kind = upper(command[3]);
    const std::int64_t after = command.size() == 5 ? number(command[4]).value_or(-1) : -1;
    if (kind == "VALUE" && command.size() == 5) condition = Condition::equals(command[4]);
    else if (kind == "AFTER" && after >= 0) condition = Condition::after_version(static_cast<Version>(after));
    else if (kind == "ABSENT" && command.size() == 4) condition = Condition::absent();
    else if (kind != "PRESENT" || command.size() != 4) return error("ERR syntax error");
  }
  Plan plan = one(Operation::callback(command[1], std::move(condition)), [](const Outcome& outcome, std::string& out) {
    if (!outcome.ok()) return add_nil(out);
    add_array(out, 2);
    add_integer(out, static_cast<std::int64_t>(outcome.version));
    value_or_nil(outcome, out);
  }, {Code::timeout});
  plan.timeout = std::chrono::milliseconds(std::max<std::int64_t>(1, *timeout));
  return plan;
}

Plan version(const Command& command) {
  return one(Operation::lookup(command[1], Range::nothing()), [](const Outcome& outcome, std::string& out) {
    outcome.ok() ? add_integer(out, static_cast<std::int64_t>(outcome.version)) : add_nil(out);
  }, {Code::not_found});
}

// --- the connection ---

Plan hello(const Command& command) {
  if (command.size() > 1 && command[1] != "2") return error("NOPROTO this server speaks RESP2");
  return ready([](std::string& out) {
    add_array(out, 8);
    for (const char* text : {"server", "zht", "version", "7.0.0", "proto"}) add_bulk(out, text);
    add_integer(out, 2);
    add_bulk(out, "mode");
    add_bulk(out, "standalone");
  });
}

Plan client(const Command& command) {
  const std::string what = command.size() > 1 ? upper(command[1]) : "";
  if (what == "SETNAME" || what == "SETINFO" || what == "NO-EVICT" || what == "NO-TOUCH") return ok();
  if (what == "GETNAME") return ready([](std::string& out) { add_nil(out); });
  if (what == "ID") return ready([](std::string& out) { add_integer(out, 1); });
  return error("ERR unknown subcommand of 'client'");
}

struct Entry {
  std::size_t least, most;  // words, the command's name included; most 0: any number
  std::function<Plan(const Command&)> make;
};

const std::map<std::string, Entry>& commands() {
  static const std::map<std::string, Entry> all = {
      {"GET", {2, 2, get}},
      {"SET", {3, 0, set}},
      {"SETNX", {3, 3, setnx}},
      {"SETEX", {4, 4, [](const Command& c) { return set_with_time(c, 1000); }}},
      {"PSETEX", {4, 4, [](const Command& c) { return set_with_time(c, 1); }}},
      {"DEL",
       {2, 0,
        [](const Command& c) {
          return count_of(c, [](std::string key) { return Operation::remove(std::move(key)); });
        }}},
      {"UNLINK",
       {2, 0,
        [](const Command& c) {
          return count_of(c, [](std::string key) { return Operation::remove(std::move(key)); });
        }}},
      {"EXISTS",
       {2, 0,
        [](const Command& c) {
          return count_of(c, [](std::string key) { return Operation::lookup(std::move(key), Range::nothing()); });
        }}},
      {"APPEND", {3, 3, append}},
      {"STRLEN", {2, 2, strlen}},
      {"GETRANGE", {4, 4, getrange}},
      {"SUBSTR", {4, 4, getrange}},
      {"MGET", {2, 0, mget}},
      {"INCR", {2, 2, [](const Command& c) { return increment(c, 1); }}},
      {"DECR", {2, 2, [](const Command& c) { return increment(c, -1); }}},
      {"INCRBY", {3, 3, [](const Command& c) { return increment_by(c, false); }}},
      {"DECRBY", {3, 3, [](const Command& c) { return increment_by(c, true); }}},
      {"TYPE",
       {2, 2,
        [](const Command& c) {
          return one(
              Operation::lookup(c[1], Range::nothing()),
              [](const Outcome& outcome, std::string& out) { add_simple(out, outcome.ok() ? "string" : "none"); },
              {Code::not_found});
        }}},
      {"ZHT.CSWAP", {4, 4, cswap}},
      {"ZHT.CALLBACK", {3, 5, callback}},
      {"ZHT.VERSION", {2, 2, version}},
      {"PING",
       {1, 2,
        [](const Command& c) {
          return ready([&](std::string& out) { c.size() == 2 ? add_bulk(out, c[1]) : add_simple(out, "PONG"); });
        }}},
      {"ECHO", {2, 2, [](const Command& c) { return ready([&](std::string& out) { add_bulk(out, c[1]); }); }}},
      {"SELECT", {2, 2, [](const Command& c) { return c[1] == "0" ? ok() : error("ERR DB index is out of range"); }}},
      {"HELLO", {1, 0, hello}},
      {"CLIENT", {2, 0, client}},
      {"COMMAND", {1, 0, [](const Command&) { return ready([](std::string& out) { add_array(out, 0); }); }}},
      {"CONFIG",
       {2, 0,
        [](const Command& c) {
          if (upper(c[1]) != "GET") return error("ERR CONFIG " + c[1] + " is not supported; settings are zht serve's");
          // redis-benchmark asks for settings before it starts; every one is there, and empty.
          return ready([&](std::string& out) {
            add_array(out, 2 * (c.size() - 2));
            for (std::size_t i = 2; i < c.size(); i++) {
              add_bulk(out, c[i]);
              add_bulk(out, "");
            }
          });
        }}},
      {"QUIT",
       {1, 1,
        [](const Command&) {
          Plan plan = ok();
          plan.close = true;
          return plan;
        }}},
  };
  return all;
}

}  // namespace

Plan plan(const Command& command, std::uint32_t partition_count, const std::function<std::string()>& info) {
  const std::string name = upper(command[0]);
  if (name == "INFO") return ready([&](std::string& out) { add_bulk(out, info()); });
  if (name == "MSET" && command.size() >= 3) return mset(command, partition_count);
  const auto found = commands().find(name);
  if (found == commands().end()) return error("ERR unknown command '" + base::escape(command[0], 64) + "'");
  if (command.size() < found->second.least || (found->second.most != 0 && command.size() > found->second.most))
    return error("ERR wrong number of arguments for '" + base::escape(command[0], 64) + "' command");
  Plan made = found->second.make(command);
  for (const Operation& operation : made.operations)
    if (auto valid = validate(operation, partition_count); !valid) return error("ERR " + valid.error().message);
  return made;
}

}  // namespace zht::resp
